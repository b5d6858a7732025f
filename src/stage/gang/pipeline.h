/* Inside of a pipeline: ranks that each have some of the blocks (spec/pipeline.h), and the ways in
 * which the ranks beside the first are had: threads of this process (pipeline_threads.c) and
 * processes on other machines (pipeline_machines.c). For src/stage/gang only. Thread: the
 * device's owner, but where something else is said. */
#ifndef SL_STAGE_PIPELINE_H
#define SL_STAGE_PIPELINE_H

#include "spec/pipeline.h"
#include "stage/gang/gang_int.h"

typedef struct pipeline pipeline;

typedef struct pipeline_ways {
    bool in_place; /* they see all memory of this process */
    bool gathers;  /* calls are given when others wait for them, many at once */
    /* The others are there, and begin to open their devices; all or none. */
    sl_status (*start)(pipeline *p, const sl_device_opts *o, sl_err *err);
    /* Returns when they have opened them. */
    sl_status (*opened)(pipeline *p, sl_err *err);
    /* Gives a rank some of the n calls, of one queue and one after the other, and returns how many;
     * 0: it has as many as it can hold. Of each it has been given it says in poll, in the order of
     * giving, that it is through (pipeline_ran). */
    uint32_t (*give)(pipeline *p, uint32_t rank, const sl_stage_call *c, uint32_t n);
    void (*poll)(pipeline *p);
    /* The rank does it after what it was given before; returns when it has. */
    sl_status (*host)(pipeline *p, uint32_t rank, const uint8_t *hosted, uint32_t max_pairs,
                      bool patient, sl_hosting *left, sl_err *err);
    /* Blocks that the rank has. */
    void (*page)(pipeline *p, uint32_t rank, const gang_job *j);
    /* They are there no longer. NULL-safe after a start that failed. */
    void (*stop)(pipeline *p);
    sl_status (*take)(sl_device *d, size_t bytes, sl_mem *out, sl_err *err);
    void (*give_back)(sl_device *d, sl_mem m);
    void (*tend)(pipeline *p); /* as of sl_device_ops; NULL: nothing */
} pipeline_ways;

extern const pipeline_ways pipeline_threads;

/* Calls of one queue, a ring that grows: those before `given` and not before `done` are with
 * `rank`, those behind wait. */
typedef struct pipeline_queue {
    sl_stage_call *call;
    uint32_t cap; /* a power of two */
    uint64_t submitted, given, done;
    uint32_t rank;
} pipeline_queue;

/* What a block inside has chosen; grows. */
typedef struct pipeline_ids {
    uint32_t *expert;
    float *gate;
    size_t cap;
} pipeline_ids;

struct pipeline {
    sl_device base;
    const pipeline_ways *ways;
    uint32_t n;
    sl_extent blocks[SL_MAX_RANKS];
    uint8_t rank_of[SL_MAX_LAYERS];
    sl_device *own; /* rank 0's */
    pipeline_ids ids;
    pipeline_queue queue[SL_STAGE_QUEUES];
    bool computes;  /* rank 0 does, on this thread */
    cpu_set_t cpus; /* that the thread could use before it took rank 0's, if `apart` */
    bool apart;
    uint64_t moved_ns; /* when a call was last through */
    void (*tick)(void *ctx);
    void (*routed)(void *ctx, uint32_t layer, uint32_t rows, const uint32_t *expert);
    void *ctx;    /* of both */
    void *others; /* of its ways */
};

/* The options that rank r opens its device with, from those of the pipeline. */
sl_device_opts pipeline_rank_opts(const pipeline *p, const sl_device_opts *o, uint32_t rank);
/* Room for what the call, INSIDE of n rows, chooses; false: no memory, and the device has failed.
 */
bool pipeline_ids_for(pipeline *p, pipeline_ids *ids, sl_stage_call *c);
void pipeline_ids_free(pipeline_ids *ids);
/* The oldest call that the queue has given is through; chosen: by INSIDE, else NULL. */
void pipeline_ran(pipeline *p, uint32_t queue, const uint32_t *chosen);
void pipeline_fails(pipeline *p, sl_status st, const sl_err *err);

#endif
