/* What a worker does for experiments: runs where it was pinned, waits where it would compute. */
#include "base/mem.h"
#include "base/topology.h"
#include "engine/host/host.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
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
void sl_worker_wait_until(void *ctx, uint64_t deadline_ns) {
    sl_worker *w = ctx;
    double scaled = TICK_NS * w->plan.device.time_scale;
    uint64_t tick_ns = SL_MAX(TICK_NS, (uint64_t)SL_MIN(scaled, (double)MAX_TICK_NS));
    if (w->virtual_time) return;
    for (uint64_t now = sl_now_ns(); now < deadline_ns; now = sl_now_ns()) {
        sleep_until(SL_MIN(deadline_ns, now + tick_ns));
        if (now + tick_ns < deadline_ns) sl_net_progress(w->net);
    }
}

/* Cores of this machine as if all workers of the plan were on it: they agree without talking. */
static sl_status choose_cpus(const sl_worker *w, uint32_t threads, cpu_set_t *set, sl_err *err) {
    uint16_t cpu[SL_MAX_CPUS];
    sl_topology *t = sl_alloc(1, sizeof *t);
    uint32_t *each = sl_alloc(w->plan.n_workers, sizeof *each);
    sl_status st = t && each ? sl_topology_read("/sys", NULL, t, err)
                             : sl_fail(err, SL_ERR_NOMEM, "no memory for the list of CPUs");
    for (uint32_t i = 0; each && i < w->plan.n_workers; i++) each[i] = threads;
    uint32_t n = st == SL_OK ? sl_topology_pick(t, each, w->plan.n_workers, w->id, cpu) : 0;
    for (uint32_t i = 0; i < n; i++) CPU_SET(cpu[i], set);
    sl_free(each);
    sl_free(t);
    return st;
}

bool sl_worker_picks_cpus(const sl_worker *w, int32_t wanted) {
    return wanted < 0 || (wanted == 0 && w->plan.pin_auto && w->plan.worker[w->id].cpu < 0);
}

sl_status sl_worker_pin(const sl_worker *w, int32_t wanted, uint32_t threads, sl_err *err) {
    int32_t cpu = wanted > 0 ? wanted - 1 : w->plan.worker[w->id].cpu;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sl_worker_picks_cpus(w, wanted)) {
        sl_status st = choose_cpus(w, threads, &set, err);
        if (st != SL_OK) return st;
    } else if (cpu >= 0) {
        CPU_SET(cpu, &set);
    } else {
        return SL_OK;
    }
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        return sl_fail(err, SL_ERR_ARG, "worker %u cannot be pinned to CPU %d: %s", w->id, cpu,
                       strerror(errno));
    return SL_OK;
}
