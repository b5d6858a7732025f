/* What it costs to give the experts of a worker to others, and when that pays: for one that is
 * lost, against waiting for who takes its place; for one that others wait for, against waiting on.
 *
 * What it takes is estimated from two figures, learnt from changes of plans that were taken: a
 * change by which nobody maps anything, and what mapping and touching a byte takes beyond it. The
 * most that one worker gets counts, as workers map beside each other.
 *
 * Whoever lets others wait may go on at any moment, and nobody knows when. So what was waited for
 * already is held against what a change would cost: then a wrong verdict costs no more than waiting
 * has cost, and nothing flaps over a stop that ends by itself.
 *
 * Pure; no memory. Times are microseconds. Thread: owner. */
#ifndef SL_SCHED_REHOST_H
#define SL_SCHED_REHOST_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Longer than a stop that costs little by itself. Of a worker that was left out before, and has not
 * served well since, less is enough. */
#define SL_REHOST_LEAST_US 5000000u
#define SL_REHOST_AGAIN_US 1000000u
/* A change has to be so many times cheaper than what was waited for: one leaves a worker out, one
 * takes it in again. */
#define SL_REHOST_CHANGES 2u
/* No memory for it: nothing is sooner. */
#define SL_REHOST_NEVER UINT64_MAX

typedef struct sl_rehost {
    double change_us; /* a change that maps nothing */
    double byte_us;   /* what a byte that a worker gets adds to it */
    bool mapped;      /* the latter was measured */
} sl_rehost;

/* Until something was measured: weights in the page cache are touched at 2 GB/s. */
#define SL_REHOST_FIRST ((sl_rehost){.change_us = 10000, .byte_us = 0.0005})

/* A change took so long by which no worker got more than so many bytes. */
void sl_rehost_learn(sl_rehost *r, uint64_t bytes, uint64_t took_us);
/* How long one would take. */
uint64_t sl_rehost_us(const sl_rehost *r, uint64_t bytes);

/* Whether a worker without whom some expert has no host is left out by now. waited_us: that others
 * have waited for it; rehost_us: what giving its experts to others takes; again: it was left out
 * not long ago. */
static inline bool sl_rehost_pays(uint64_t waited_us, uint64_t rehost_us, bool again) {
    uint64_t least_us = again ? SL_REHOST_AGAIN_US : SL_REHOST_LEAST_US;
    if (rehost_us > UINT64_MAX / SL_REHOST_CHANGES) return false;
    return waited_us >= least_us && waited_us >= SL_REHOST_CHANGES * rehost_us;
}

/* How long the experts of a lost worker wait for who takes its place, which is expected in back_us
 * (sl_recover_back_us); 0: others get them at once, which takes rehost_us. They wait where that is
 * sooner by a quarter at least, as both are estimates. Who is not there after twice the time that
 * it was expected in, or when the others would have done it, is not waited for any more: so a wrong
 * estimate costs no more than the others would have taken. */
static inline uint64_t sl_rehost_awaits_us(uint64_t rehost_us, uint64_t back_us) {
    if (back_us > UINT64_MAX / 4 || back_us + back_us / 4 >= rehost_us) return 0;
    return SL_MIN(rehost_us, 2 * back_us);
}

#endif
