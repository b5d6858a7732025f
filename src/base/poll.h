/* Polling before a sleep: waking a thread that sleeps costs tens of microseconds at both ends, but
 * polling must not take a core from somebody who has work for it. So each look is followed by
 * sched_yield, and when another thread used the core for long meanwhile, the caller sleeps. Thread:
 * one at a time for each object. */
#ifndef SL_BASE_POLL_H
#define SL_BASE_POLL_H

#include "base/clock.h"
#include "base/status.h"

#include <sched.h>
#include <stdbool.h>

#define SL_POLL_NS       20000u  /* in any case: often the peer shares this core */
#define SL_POLL_TAKEN_NS 200000u /* between two looks: somebody else has work for the core */

typedef struct sl_poll {
    uint64_t now_ns, least_ns, most_ns;
} sl_poll;

/* Looks for SL_POLL_NS, or for `long_ns` where that is more and nobody else needs the core; never
 * past until_ns. */
static inline sl_poll sl_poll_begin(uint64_t long_ns, uint64_t until_ns) {
    uint64_t now_ns = sl_now_ns(), least_ns = SL_MIN(now_ns + SL_POLL_NS, until_ns);
    return (sl_poll){now_ns, least_ns, SL_MAX(least_ns, SL_MIN(now_ns + long_ns, until_ns))};
}

/* After a look in vain: lets others run, then says whether to look again; if not, to sleep. */
static inline bool sl_poll_again(sl_poll *p) {
    uint64_t before_ns = p->now_ns;
    sched_yield();
    p->now_ns = sl_now_ns();
    if (p->now_ns - before_ns > SL_POLL_TAKEN_NS) p->most_ns = p->least_ns;
    return p->now_ns < p->most_ns;
}

#endif
