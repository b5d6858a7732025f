/* One loop at a time, joined and left through a single state word:
 *   bits 0..15 threads inside the loop, bit 16 open, bits 32..63 number of the loop.
 * A thread enters with a compare-and-swap that only succeeds while the loop is open, so the owner
 * never waits for a thread that was still asleep. Job fields are written only while nobody can be
 * inside. */
#include "base/pool.h"

#include "base/clock.h"
#include "base/mem.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SL_POOL_MAX_THREADS 1024u
#define SL_POOL_OPEN        ((uint64_t)1 << 16)
#define SL_POOL_INSIDE      ((uint64_t)0xffff)
#define SL_POOL_POLL_NS     30000u
#define SL_POOL_SHARED      4u /* chunks a thread from which on each has a share of its own */

typedef struct pool_thread {
    sl_pool *pool;
    uint32_t own; /* share */
    pthread_t handle;
} pool_thread;

/* Chunks of a loop that one thread starts with; in a cache line of its own. */
typedef struct share {
    _Alignas(64) _Atomic size_t next;
    size_t end;
} share;

struct sl_pool {
    uint32_t n_threads, n_started;
    _Atomic uint64_t state;
    size_t n, grain;
    uint32_t n_shares; /* of the loop: 1, or a share for each thread */
    share *share;
    sl_pool_fn fn;
    void *ctx;
    _Atomic uint32_t wake; /* futex of sleeping threads */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t done; /* futex of the owner waiting for the last thread inside */
    _Atomic uint32_t owner_waits;
    atomic_bool stop;
    bool running;
    void (*tick)(void *ctx);
    void *tick_ctx;
    uint64_t tick_ns, last_tick_ns;
    pool_thread *threads;
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, const struct timespec *timeout) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, timeout, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static bool loop_is_news(uint64_t state, uint64_t seen) {
    return (state & SL_POOL_OPEN) && (state >> 32) != seen;
}

/* Returns when a loop other than number `seen` is open or the pool stops. */
static uint64_t wait_for_loop(sl_pool *p, uint64_t seen) {
    uint64_t until = sl_now_ns() + SL_POOL_POLL_NS, s;
    do {
        for (int i = 0; i < 32; i++) {
            s = atomic_load_explicit(&p->state, memory_order_acquire);
            if (loop_is_news(s, seen)) return s;
            relax();
        }
    } while (sl_now_ns() < until && !atomic_load_explicit(&p->stop, memory_order_relaxed));
    for (;;) {
        /* Sequentially consistent with the owner's store of state and load of sleepers: one of the
         * two sees the other, so no wake-up is lost. */
        atomic_fetch_add(&p->sleepers, 1);
        uint32_t w = atomic_load(&p->wake);
        s = atomic_load(&p->state);
        bool leave = loop_is_news(s, seen) || atomic_load(&p->stop);
        if (!leave) futex_wait(&p->wake, w, NULL);
        atomic_fetch_sub(&p->sleepers, 1);
        s = atomic_load(&p->state);
        if (leave || loop_is_news(s, seen) || atomic_load(&p->stop)) return s;
    }
}

/* A thread walks its own share from the front, so that it reads memory in one stream; what others
 * have not begun when it is through, it takes from theirs. */
static bool take(sl_pool *p, uint32_t own, size_t *begin, size_t *end) {
    for (uint32_t i = 0; i < p->n_shares; i++) {
        share *s = &p->share[(own + i) % p->n_shares];
        if (atomic_load_explicit(&s->next, memory_order_relaxed) >= s->end) continue;
        size_t c = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        if (c >= s->end) continue;
        *begin = c * p->grain;
        *end = SL_MIN(p->n, *begin + p->grain);
        return true;
    }
    return false;
}

/* Short loops are dealt chunk by chunk: looking through everybody's share would cost more. */
static void deal(sl_pool *p) {
    const size_t chunks = p->n / p->grain + (p->n % p->grain != 0);
    p->n_shares = chunks >= SL_POOL_SHARED * (size_t)p->n_threads ? p->n_threads : 1;
    for (uint32_t i = 0; i < p->n_shares; i++) {
        p->share[i].end =
            chunks / p->n_shares * (i + 1) + SL_MIN(chunks % p->n_shares, (size_t)i + 1);
        size_t first = i ? p->share[i - 1].end : 0;
        atomic_store_explicit(&p->share[i].next, first, memory_order_relaxed);
    }
}

static void *thread_main(void *arg) {
    pool_thread *t = arg;
    sl_pool *p = t->pool;
    uint64_t seen = 0;
    for (;;) {
        uint64_t s = wait_for_loop(p, seen);
        if (atomic_load(&p->stop)) return NULL;
        if (!loop_is_news(s, seen)) continue;
        /* Acquire pairs with the owner's release of the job fields. */
        if (!atomic_compare_exchange_strong(&p->state, &s, s + 1)) continue;
        seen = s >> 32;
        size_t begin, end;
        while (take(p, t->own, &begin, &end)) p->fn(p->ctx, begin, end);
        uint64_t left = atomic_fetch_sub(&p->state, 1) - 1;
        if (!(left & (SL_POOL_OPEN | SL_POOL_INSIDE)) && atomic_load(&p->owner_waits)) {
            atomic_fetch_add(&p->done, 1);
            futex_wake(&p->done, 1);
        }
    }
}

sl_status sl_pool_create(uint32_t n_threads, sl_pool **out, sl_err *err) {
    if (n_threads == 0 || n_threads > SL_POOL_MAX_THREADS)
        return sl_fail(err, SL_ERR_ARG, "pool of %u threads: must be 1 to %u", n_threads,
                       SL_POOL_MAX_THREADS);
    sl_pool *p = sl_alloc(1, sizeof *p);
    if (!p) return sl_fail(err, SL_ERR_NOMEM, "pool of %u threads", n_threads);
    p->n_threads = n_threads;
    p->threads = sl_alloc(n_threads, sizeof *p->threads);
    p->share = sl_alloc(n_threads, sizeof *p->share);
    if (!p->threads || !p->share) {
        sl_pool_free(p);
        return sl_fail(err, SL_ERR_NOMEM, "pool of %u threads", n_threads);
    }
    for (uint32_t i = 0; i + 1 < n_threads; i++) {
        p->threads[i] = (pool_thread){.pool = p, .own = i + 1};
        int e = pthread_create(&p->threads[i].handle, NULL, thread_main, &p->threads[i]);
        if (e) {
            sl_pool_free(p);
            return sl_fail(err, SL_ERR_LIMIT, "thread %u of %u does not start: error %d", i + 1,
                           n_threads, e);
        }
        p->n_started++;
    }
    *out = p;
    return SL_OK;
}

void sl_pool_free(sl_pool *p) {
    if (!p) return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->wake, 1);
    futex_wake(&p->wake, INT32_MAX);
    for (uint32_t i = 0; i < p->n_started; i++) pthread_join(p->threads[i].handle, NULL);
    sl_free(p->threads);
    sl_free(p->share);
    sl_free(p);
}

uint32_t sl_pool_threads(const sl_pool *p) {
    return p->n_threads;
}

static void maybe_tick(sl_pool *p) {
    if (!p->tick) return;
    uint64_t now = sl_now_ns();
    if (now - p->last_tick_ns < p->tick_ns) return;
    p->tick(p->tick_ctx);
    p->last_tick_ns = sl_now_ns();
}

static void wait_until_empty(sl_pool *p) {
    uint64_t until = sl_now_ns() + SL_POOL_POLL_NS;
    do {
        for (int i = 0; i < 32; i++) {
            if (!(atomic_load_explicit(&p->state, memory_order_acquire) & SL_POOL_INSIDE)) return;
            relax();
        }
        maybe_tick(p);
    } while (sl_now_ns() < until);
    struct timespec ts = {.tv_sec = (time_t)(p->tick_ns / 1000000000u),
                          .tv_nsec = (long)(p->tick_ns % 1000000000u)};
    atomic_store(&p->owner_waits, 1);
    for (;;) {
        uint32_t d = atomic_load(&p->done);
        if (!(atomic_load(&p->state) & SL_POOL_INSIDE)) break;
        futex_wait(&p->done, d, p->tick ? &ts : NULL);
        maybe_tick(p);
    }
    atomic_store(&p->owner_waits, 0);
}

void sl_pool_run(sl_pool *p, size_t n, size_t grain, sl_pool_fn fn, void *ctx) {
    SL_ASSERT(grain > 0 && !p->running);
    if (n == 0) return;
    p->running = true;
    if (p->n_started == 0 || n <= grain) {
        for (size_t i = 0; i < n; i += SL_MIN(grain, n - i)) {
            fn(ctx, i, i + SL_MIN(grain, n - i));
            maybe_tick(p);
        }
        p->running = false;
        return;
    }
    p->n = n;
    p->grain = grain;
    p->fn = fn;
    p->ctx = ctx;
    deal(p);
    uint64_t number = (atomic_load_explicit(&p->state, memory_order_relaxed) >> 32) + 1;
    if (number > UINT32_MAX) number = 1;
    atomic_store(&p->state, number << 32 | SL_POOL_OPEN);
    if (atomic_load(&p->sleepers)) {
        atomic_fetch_add(&p->wake, 1);
        futex_wake(&p->wake, INT32_MAX);
    }
    size_t begin, end;
    while (take(p, 0, &begin, &end)) {
        fn(ctx, begin, end);
        maybe_tick(p);
    }
    if (atomic_fetch_and(&p->state, ~SL_POOL_OPEN) & SL_POOL_INSIDE) wait_until_empty(p);
    p->running = false;
}

void sl_pool_set_tick(sl_pool *p, void (*tick)(void *ctx), void *ctx, uint32_t interval_us) {
    p->tick = tick;
    p->tick_ctx = ctx;
    p->tick_ns = SL_MAX((uint64_t)interval_us, 1) * 1000u;
    p->last_tick_ns = sl_now_ns();
}
