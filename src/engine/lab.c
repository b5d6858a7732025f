/* What a worker does for experiments: runs where it was pinned, waits where it would compute. */
#include "engine/worker_int.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define TICK_NS     100000u  /* as kernels tick (worker.c), times the scale... */
#define MAX_TICK_NS 2000000u /* ...up to this */

static void sleep_until(uint64_t ns) {
    const struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u),
                                .tv_nsec = (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR) {
    }
}

/* Looks at the fabric at an interval and not at every message: others need this core. */
static void wait_emulated(void *ctx, uint64_t deadline_ns) {
    sl_worker *w = ctx;
    double scaled = TICK_NS * w->plan.device.time_scale;
    uint64_t tick_ns = SL_MAX(TICK_NS, (uint64_t)SL_MIN(scaled, (double)MAX_TICK_NS));
    if (w->opts->clock.now_us) return; /* virtual time does not pass by waiting */
    for (uint64_t now = sl_now_ns(); now < deadline_ns; now = sl_now_ns()) {
        sleep_until(SL_MIN(deadline_ns, now + tick_ns));
        if (now + tick_ns < deadline_ns) sl_net_progress(w->net);
    }
}

void sl_worker_emulate(sl_worker *w) {
    if (!w->plan.device.emulated) return;
    w->emulated = (sl_emulated){.device = &w->plan.device, .wait = wait_emulated, .ctx = w};
    w->exec.emulated = &w->emulated;
    /* The default slack of 50 us would be added to every wait. */
    (void)prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
}

sl_status sl_worker_pin(const sl_worker *w, sl_err *err) {
    int32_t cpu = w->opts->cpu > 0 ? w->opts->cpu - 1 : w->plan.worker[w->id].cpu;
    if (cpu < 0) return SL_OK;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        return sl_fail(err, SL_ERR_ARG, "worker %u cannot be pinned to CPU %d: %s", w->id, cpu,
                       strerror(errno));
    return SL_OK;
}
