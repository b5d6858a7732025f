/* Inside of a pipeline: ranks that each have some of the blocks (spec/pipeline.h), and the ways in
 * which the ranks beside the first are had: threads of this process (pipeline_threads.c), processes
 * on other machines (pipeline_machines.c), and none but their times (pipeline_emulated.c). For
 * src/stage/gang only. Thread: the device's owner, but where something else is said. */
#ifndef SL_STAGE_PIPELINE_H
#define SL_STAGE_PIPELINE_H

#include "spec/pipeline.h"
#include "stage/gang/gang_int.h"

typedef struct pipeline pipeline;
typedef struct pipeline_queue pipeline_queue;

/* A queue's next n calls, which are one rank's. */
typedef struct pipeline_leg {
    uint32_t rank, n;
} pipeline_leg;

typedef struct pipeline_ways {
    bool in_place; /* they see all memory of this process */
    bool apart;    /* they have memory of their own: calls of a queue read what those before them
                    * have left, which has to be back */
    bool straight; /* or goes from rank to rank: legs are given several at once */
    /* All ranks open their devices; sets p->own. While rank 0 computes, its device calls
     * pipeline_tick. */
    sl_status (*open)(pipeline *p, const sl_device_opts *o, sl_err *err);
    /* Gives ranks the queue's next calls, leg by leg, and returns how many: all of each leg but the
     * last, of that some; 0: a rank has as many as it can hold. The rows that a leg leaves go
     * straight to the next one's rank. Of each call that was given it says in poll that it is
     * through (pipeline_ran), in the order of the queue. */
    uint32_t (*give)(pipeline *p, const pipeline_queue *q, const pipeline_leg *leg, uint32_t n);
    void (*poll)(pipeline *p);
    /* All ranks, rank 0 too, after what they were given before. */
    sl_status (*host)(pipeline *p, const uint8_t *hosted, uint32_t max_pairs, bool patient,
                      sl_hosting *left, sl_err *err);
    /* GANG_READ or GANG_WRITE of blocks that a rank beside the first has. */
    void (*page)(pipeline *p, uint32_t rank, const gang_job *j);
    void (*close)(pipeline *p); /* all ranks; NULL-safe after an open that failed */
    /* As of sl_device_ops, of the pipeline's device; tend NULL: nothing. */
    sl_status (*take)(sl_device *base, size_t bytes, sl_mem *out, sl_err *err);
    void (*give_back)(sl_device *base, sl_mem m);
    void (*tend)(pipeline *p);
    void (*rest)(pipeline *p); /* for a moment: nothing is to be done. NULL: others may run */
} pipeline_ways;

extern const pipeline_ways pipeline_threads, pipeline_machines, pipeline_emulated;

/* Calls of one queue, a ring that grows: those before `given` and not before `done` are with
 * `rank`, or on their way there, those behind wait. */
struct pipeline_queue {
    sl_stage_call *call;
    uint32_t cap; /* a power of two */
    uint64_t submitted, given, done;
    uint32_t rank;  /* of several legs the last one's */
    uint64_t ready; /* when its next call came to be rank 0's turn, among queues; 0: it is not */
};

static inline sl_stage_call *pipeline_call(const pipeline_queue *q, uint64_t i) {
    return &q->call[i & (q->cap - 1)];
}

/* What routers have chosen; grows. */
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
    sl_device *own;   /* rank 0's, of its ways */
    pipeline_ids ids; /* of rank 0's */
    uint32_t quiet;   /* polls since a call was submitted */
    uint64_t turns;
    pipeline_queue queue[SL_STAGE_QUEUES];
    bool computes;        /* rank 0 does, on this thread */
    uint32_t with_others; /* calls that were given to them and are not through */
    sl_status fails;      /* why no call will be given any more, */
    sl_err failure;       /* which base.failed says when no rank has one */
    uint64_t moved_ns;    /* when a call was last through */
    void (*tick)(void *ctx);
    void (*routed)(void *ctx, uint32_t layer, uint32_t rows, const uint32_t *expert);
    void *ctx;    /* of both */
    void *others; /* of its ways */
};

/* While rank 0 computes others may go on. */
void pipeline_go_on(pipeline *p);
/* The same, and what the worker wants to be called for. ctx: the pipeline. */
void pipeline_tick(void *ctx);
/* Waits until no rank has anything to do that it was given, as its ways poll. */
void pipeline_rest(pipeline *p);
/* Room for what n rows choose; false: no memory, and the device has failed. */
bool pipeline_ids_for(pipeline *p, pipeline_ids *ids, size_t n);
void pipeline_ids_free(pipeline_ids *ids);
/* Whether that call of the queue is the oldest that it has given: answers of several ranks may come
 * in another order than their calls. */
static inline bool pipeline_is_next(const pipeline *p, uint32_t queue, uint64_t call) {
    return p->queue[queue].done == call;
}
/* The oldest call that the queue has given is through. Of INSIDE: what it chose, which lies at
 * `expert` and, unless the call has them already, `gate`. */
void pipeline_ran(pipeline *p, uint32_t queue, const uint32_t *expert, const float *gate);
void pipeline_fails(pipeline *p, sl_status st, const sl_err *err);

#endif
