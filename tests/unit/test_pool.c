/* The thread pool: every index once, loops in order, ticks, sleep. */
#include "base/pool.h"
#include "base/clock.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define N 5000

typedef struct probe {
    _Atomic uint32_t hits[N];
    _Atomic uint32_t bad;
    size_t grain;
} probe;

static void mark(void *ctx, size_t begin, size_t end) {
    probe *p = ctx;
    if (begin >= end || end - begin > p->grain || begin % p->grain) atomic_fetch_add(&p->bad, 1);
    for (size_t i = begin; i < end; i++)
        atomic_fetch_add_explicit(&p->hits[i], 1, memory_order_relaxed);
}

static sl_pool *pool_of(uint32_t n) {
    sl_pool *p = NULL;
    sl_err err = {0};
    assert_int_equal(sl_pool_create(n, &p, &err), SL_OK);
    return p;
}

static void every_index_runs_once(void **state) {
    (void)state;
    static probe pr;
    const size_t sizes[] = {0, 1, 2, 31, 32, 33, 1000, N};
    for (uint32_t t = 1; t <= 4; t++) {
        sl_pool *p = pool_of(t);
        assert_int_equal(sl_pool_threads(p), t);
        for (int round = 0; round < 20; round++)
            for (size_t s = 0; s < SL_LEN(sizes); s++)
                for (size_t grain = 1; grain <= 64; grain *= 8) {
                    memset(&pr, 0, sizeof pr);
                    pr.grain = grain;
                    sl_pool_run(p, sizes[s], grain, mark, &pr);
                    assert_int_equal(pr.bad, 0);
                    for (size_t i = 0; i < N; i++) assert_int_equal(pr.hits[i], i < sizes[s]);
                }
        sl_pool_free(p);
    }
}

/* Plain memory written by one loop is read by the next: the pool must order them. */
static void chain(void *ctx, size_t begin, size_t end) {
    uint32_t *v = ctx;
    for (size_t i = begin; i < end; i++) v[i] = v[(i + 1) % 64 + 64] + 1;
}

static void chain_back(void *ctx, size_t begin, size_t end) {
    uint32_t *v = ctx;
    for (size_t i = begin; i < end; i++) v[i + 64] = v[(i + 5) % 64];
}

static void loops_are_ordered(void **state) {
    (void)state;
    uint32_t v[128] = {0};
    sl_pool *p = pool_of(3);
    for (uint32_t i = 1; i <= 3000; i++) {
        sl_pool_run(p, 64, 1, chain, v);
        sl_pool_run(p, 64, 4, chain_back, v);
        assert_int_equal(v[7], i);
        assert_int_equal(v[100], i);
        if (i % 1000 == 0) nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    sl_pool_free(p);
}

static void idle_pool_sleeps(void **state) {
    (void)state;
    sl_pool *p = pool_of(3);
    uint32_t v[128] = {0};
    sl_pool_run(p, 64, 1, chain, v);
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    int64_t ns = (b.tv_sec - a.tv_sec) * 1000000000ll + b.tv_nsec - a.tv_nsec;
    assert_true(ns < 20000000);
    sl_pool_free(p);
}

static void count_tick(void *ctx) {
    ++*(int *)ctx;
}

static void slow(void *ctx, size_t begin, size_t end) {
    (void)ctx, (void)begin, (void)end;
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void owner_ticks_between_chunks(void **state) {
    (void)state;
    for (uint32_t t = 1; t <= 2; t++) {
        int ticks = 0;
        sl_pool *p = pool_of(t);
        sl_pool_set_tick(p, count_tick, &ticks, 100);
        sl_pool_run(p, 20, 1, slow, NULL);
        assert_in_range(ticks, 3, 2000);
        sl_pool_set_tick(p, NULL, NULL, 0);
        int before = ticks;
        sl_pool_run(p, 5, 1, slow, NULL);
        assert_int_equal(ticks, before);
        sl_pool_free(p);
    }
}

static void bad_sizes_and_lost_memory_are_reported(void **state) {
    (void)state;
    sl_pool *p = NULL;
    sl_err err = {0};
    assert_int_equal(sl_pool_create(0, &p, &err), SL_ERR_ARG);
    assert_int_equal(sl_pool_create(100000, &p, &err), SL_ERR_ARG);
    for (uint64_t nth = 1; nth <= 2; nth++) {
        sl_mem_fail_at(nth);
        assert_int_equal(sl_pool_create(2, &p, &err), SL_ERR_NOMEM);
        sl_mem_fail_at(0);
        assert_null(p);
    }
    sl_pool_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_index_runs_once),
        cmocka_unit_test(loops_are_ordered),
        cmocka_unit_test(idle_pool_sleeps),
        cmocka_unit_test(owner_ticks_between_chunks),
        cmocka_unit_test(bad_sizes_and_lost_memory_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
