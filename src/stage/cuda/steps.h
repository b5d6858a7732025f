/* Steps as graphs: the calls of a step that stays inside the GPU, from EMBED to the last block with
 * experts, recorded once for so many rows and run again for later steps by one launch.
 *
 * A device asks about each call before it launches it. The calls of a queue are followed: once a
 * step has had all calls of its model in their order, the next EMBED runs the graph of the whole
 * step, if there is one for such rows, and the calls behind it find their work done (COVERED). When
 * they do not come as they did, what they would have found is computed anew, plainly (`again`).
 * What no graph can have, and rows that no graph is for, are launched kernel by kernel.
 *
 * A graph is for rows of that number, at those addresses, with up to so many parts of attention;
 * all else lies in lists (step_lists.h). Thread: owner of the context. */
#ifndef SL_STAGE_CUDA_STEPS_H
#define SL_STAGE_CUDA_STEPS_H

#include "stage/cuda/slabs.h"
#include "stage/cuda/step_lists.h"
#include "stage/stage_int.h"

#define SL_CUDA_STEPS 32u /* that are known, the ones used last */

/* Rows that were seen, and what runs for them. */
typedef struct sl_cuda_known {
    uint64_t x, h, used; /* addresses; when, 0: nothing is known here */
    uint32_t n, seen, blocks[SL_CUDA_SIGHTS];
    sl_cuda_graph *graph; /* or NULL */
    sl_cuda_event *end;   /* behind its last run */
    uint32_t in_flight;   /* calls that are not through */
    uint8_t *results;     /* pinned, of each block with experts: ids, then gates */
    uint64_t results_at;  /* for kernels */
    uint64_t runs;
} sl_cuda_known;

/* A step of a queue. */
typedef struct sl_cuda_following {
    bool goes;          /* its calls came in order so far, */
    bool whole;         /* and all of the last one's did */
    uint32_t next;      /* call that should come */
    sl_rowset rows;     /* of its EMBED */
    sl_cuda_known *run; /* whose graph has run for it; NULL: none */
} sl_cuda_following;

/* What a device does for it. */
typedef struct sl_cuda_step_work {
    /* Launches what a call asks for, with its results at `result`, pinned memory that kernels know
     * by `at`. */
    void (*launch)(void *ctx, const sl_stage_call *c, uint8_t *result, uint64_t at);
    void (*wait)(void *ctx); /* until all calls are through */
    void *ctx;
} sl_cuda_step_work;

typedef struct sl_cuda_steps {
    sl_cuda *c; /* NULL: there are no graphs */
    const sl_model_spec *m;
    sl_cuda_slabs *memory;
    sl_kv_pool kv;
    sl_cuda_step_work work;
    bool tells; /* results of all blocks are wanted, not of the last one alone */
    uint32_t calls, failures;
    bool said;
    uint64_t clock;
    sl_cuda_piece lists; /* of the step that runs */
    sl_cuda_known known[SL_CUDA_STEPS];
    sl_cuda_following queue[SL_STAGE_QUEUES];
} sl_cuda_steps;

typedef struct sl_cuda_step_says {
    sl_cuda_known *run; /* the call is COVERED: it is through where run->end is */
    uint8_t *result;    /* ...with its results here; NULL: it has none */
    uint32_t again;     /* so many calls of the step, from EMBED on, are to be computed before it */
} sl_cuda_step_says;

/* Of a device that takes SL_OP_INSIDE. SL_ERR_UNSUPPORTED: the driver has no graphs. */
sl_status sl_cuda_steps_create(sl_cuda *c, const sl_model_spec *m, sl_cuda_slabs *memory,
                               sl_kv_pool kv, const sl_cuda_step_work *work, sl_cuda_steps *out,
                               sl_err *err) SL_MUST_CHECK;
void sl_cuda_steps_free(sl_cuda_steps *s); /* nothing is in flight */

/* The next call of its queue. */
sl_cuda_step_says sl_cuda_steps_take(sl_cuda_steps *s, const sl_stage_call *c);
/* Call i of a step of these rows. */
sl_stage_call sl_cuda_steps_call(const sl_cuda_steps *s, uint32_t i, const sl_stage_call *of);
/* One of its covered calls is through. */
static inline void sl_cuda_known_ran(sl_cuda_known *k) {
    k->in_flight--;
}

#endif
