/* The barrier of a gang's threads. */
#include "stage/gang/meet.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static bool is_over(sl_meeting *m, uint32_t number) {
    return atomic_load_explicit(&m->number, memory_order_acquire) != number;
}

static void sleep_until_over(sl_meeting *m, uint32_t number, uint64_t ns) {
    const struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u),
                                .tv_nsec = (long)(ns % 1000000000u)};
    /* Sequentially consistent with who ends the meeting: one of the two sees the other. */
    atomic_fetch_add(&m->sleepers, 1);
    if (atomic_load(&m->number) == number)
        syscall(SYS_futex, &m->number, FUTEX_WAIT_PRIVATE, number, &ts, NULL, 0);
    atomic_fetch_sub(&m->sleepers, 1);
}

static void check_deadline(const sl_meeting *m, const sl_meeting_guest *g, uint64_t since) {
    if (!g->deadline_ms || sl_now_ns() - since < (uint64_t)g->deadline_ms * 1000000u) return;
    sl_log(SL_LOG_ERROR, "gang", "rank %u of %u waited %u ms for the others, %u came", g->rank,
           m->n, g->deadline_ms, atomic_load(&m->came));
    abort();
}

static void await(sl_meeting *m, const sl_meeting_guest *g, uint32_t number) {
    const uint64_t since = sl_now_ns(), tick_ns = (uint64_t)SL_MAX(g->tick_us, 1u) * 1000u;
    uint64_t ticked = since, now = since;
    while (!is_over(m, number)) {
        if (now - since < m->poll_ns)
            for (int i = 0; i < 32 && !is_over(m, number); i++) relax();
        else
            sleep_until_over(m, number, g->tick ? tick_ns : 1000000000u);
        now = sl_now_ns();
        if (g->tick && now - ticked >= tick_ns && !is_over(m, number)) {
            g->tick(g->ctx);
            ticked = sl_now_ns();
        }
        check_deadline(m, g, since);
    }
}

void sl_meeting_join(sl_meeting *m, const sl_meeting_guest *g) {
    const uint32_t number = atomic_load_explicit(&m->number, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&m->came, 1, memory_order_acq_rel) + 1 < m->n) {
        await(m, g, number);
        return;
    }
    atomic_store_explicit(&m->came, 0, memory_order_relaxed);
    atomic_store(&m->number, number + 1);
    if (atomic_load(&m->sleepers))
        syscall(SYS_futex, &m->number, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
