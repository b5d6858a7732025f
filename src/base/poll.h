/* Polling before a sleep: waking a thread that sleeps costs tens of microseconds at both ends, but
 * polling must not take a core from somebody who has work for it. So each look is followed by
 * sched_yield, and when another thread used the core for long meanwhile, the caller sleeps. Whoever
 * yields on a busy machine waits for everybody else's turn, whoever sleeps is run when it is woken:
 * after a turn that long there are no polls for a while. Thread: one at a time for each object. */
#ifndef SL_BASE_POLL_H
#define SL_BASE_POLL_H

#include "base/clock.h"
#include "base/status.h"

#include <sched.h>
#include <stdbool.h>

#define SL_POLL_NS       20000u  /* in any case: often the peer shares this core */
#define SL_POLL_TAKEN_NS 200000u /* between two looks: somebody else has work for the core */
/* Longer than a peer takes between two messages, shorter than a turn of the system's scheduler (3
 * to 4 ms): turns of others keep from polling for so many times as long. */
#define SL_POLL_BUSY_NS 2000000u
#define SL_POLL_SHY     16u

/* What a waiter remembers from one wait to the next; zeroed at first. */
typedef struct sl_poll_memory {
    uint64_t shy_until_ns;
} sl_poll_memory;

typedef struct sl_poll {
    sl_poll_memory *memory;
    uint64_t now_ns, least_ns, most_ns;
} sl_poll;

/* Looks for SL_POLL_NS, or for `long_ns` where that is more and nobody else needs the core; never
 * past until_ns. */
static inline sl_poll sl_poll_begin(sl_poll_memory *m, uint64_t long_ns, uint64_t until_ns) {
    uint64_t now_ns = sl_now_ns();
    if (now_ns < m->shy_until_ns) return (sl_poll){m, now_ns, now_ns, now_ns};
    uint64_t least_ns = SL_MIN(now_ns + SL_POLL_NS, until_ns);
    return (sl_poll){m, now_ns, least_ns, SL_MAX(least_ns, SL_MIN(now_ns + long_ns, until_ns))};
}

/* After a look in vain: lets others run, then says whether to look again; if not, to sleep. */
static inline bool sl_poll_again(sl_poll *p) {
    uint64_t before_ns = p->now_ns;
    if (before_ns >= p->most_ns) return false;
    sched_yield();
    p->now_ns = sl_now_ns();
    uint64_t taken_ns = p->now_ns - before_ns;
    if (taken_ns > SL_POLL_TAKEN_NS) p->most_ns = p->least_ns;
    if (taken_ns > SL_POLL_BUSY_NS) p->memory->shy_until_ns = p->now_ns + SL_POLL_SHY * taken_ns;
    return p->now_ns < p->most_ns;
}

#endif
