/* When calls ran on a GPU, for whoever watches (sl_device_watch): a mark before and behind what a
 * call launches, told in ns of CLOCK_MONOTONIC once it is through. Marks cost the host about as
 * much as two launches a call, so none is put unless somebody watches.
 *
 * A GPU counts time from mark to mark. At the beginning it is drained, and a mark is put and waited
 * for a few times: the one that took least is the origin, half of what it took is how wrong all
 * times may be. A later mark takes its place about every second, as distances are told in float.
 * What the two clocks drift apart by is not measured; no call ends after it was told. Thread: owner
 * of the context. */
#ifndef SL_STAGE_CUDA_TIMELINE_H
#define SL_STAGE_CUDA_TIMELINE_H

#include "stage/cuda/cuda_int.h"
#include "stage/stage.h"

#define SL_CUDA_TIMED 256u /* calls in flight that are timed; others are not */

typedef struct sl_cuda_timed {
    sl_cuda_event *from, *to;
    uint64_t number; /* of the call, from 1 on; 0: free */
} sl_cuda_timed;

typedef struct sl_cuda_timeline {
    sl_cuda *c;
    bool goes, failed;
    sl_cuda_event *origin;
    uint64_t origin_ns;
    sl_cuda_timed timed[SL_CUDA_TIMED];
} sl_cuda_timeline;

void sl_cuda_timeline_free(sl_cuda_timeline *t); /* zeroed is fine */
/* Before what call `number` launches. False: it is not timed. */
bool sl_cuda_timeline_begin(sl_cuda_timeline *t, uint64_t number);
/* Behind it, of a call that is timed. mark: NULL, or one that is put already by which it will be
 * seen that the call is through, and its times are there: it is put once more, behind them. */
void sl_cuda_timeline_end(sl_cuda_timeline *t, uint64_t number, sl_cuda_event *mark);
/* Whoever watches the device hears when it ran: once, of a timed call that is through. */
void sl_cuda_timeline_tell(sl_cuda_timeline *t, uint64_t number, const sl_device *d,
                           const sl_stage_call *c, bool whole);
/* Nobody watches: the next who does starts with an origin of its own. */
static inline void sl_cuda_timeline_rest(sl_cuda_timeline *t) {
    t->goes = false;
}

#endif
