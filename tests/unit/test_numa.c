/* Pages moved to a memory node: by a kernel that is made up, with its ways of saying no, and by the
 * one that is there. */
#include "base/numa.h"

#include "base/clock.h"
#include "stage/cpu/near.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGE  4096u
#define PAGES 3000u
#define BASE  ((uintptr_t)1 << 30)

/* What is known of each page of [BASE, BASE + PAGES pages). */
static struct {
    int node[PAGES];     /* -1: not in memory */
    bool others[PAGES];  /* somebody else has it mapped */
    bool stuck[PAGES];   /* its move fails, and ends the call */
    uint32_t large;      /* small pages of a page, all of which move with one of them */
    unsigned long calls; /* that were to move something */
    int refuses;         /* errno of every call */
} mem;

static void reset(int node) {
    memset(&mem, 0, sizeof mem);
    mem.large = 1;
    for (uint32_t i = 0; i < PAGES; i++) mem.node[i] = node;
}

static uint32_t index_of(const void *page) {
    const uintptr_t at = (uintptr_t)page;
    assert_true(at % PAGE == 0 && at >= BASE && at < BASE + PAGES * PAGE);
    return (uint32_t)((at - BASE) / PAGE);
}

/* As Linux: a status for each page up to the first that could not be moved, and how many were not;
 * of a large page one small page is moved, the others are found taken. */
static long kernel(unsigned long n, void *const *page, const int *node, int *status) {
    bool taken[PAGES] = {false};
    assert_true(n > 0 && n <= SL_NUMA_BATCH);
    if (mem.refuses) {
        errno = mem.refuses;
        return -1;
    }
    mem.calls += node != NULL;
    for (unsigned long i = 0; i < n; i++) {
        const uint32_t at = index_of(page[i]), first = at / mem.large * mem.large;
        if (mem.node[at] < 0) {
            status[i] = -ENOENT;
        } else if (!node) {
            status[i] = mem.node[at];
        } else if (mem.others[at]) {
            status[i] = -EACCES;
        } else if (mem.stuck[at]) {
            return (long)(n - i);
        } else if (taken[first]) {
            status[i] = -EBUSY;
        } else {
            taken[first] = true;
            for (uint32_t j = first; j < first + mem.large && j < PAGES; j++) mem.node[j] = node[i];
            status[i] = node[i];
        }
    }
    return 0;
}

static sl_numa to_node(int node) {
    return (sl_numa){.node = node, .until_ns = UINT64_MAX, .call = kernel};
}

static sl_numa_told hand_in(sl_numa *n, size_t from, size_t bytes) {
    sl_numa_batch b;
    sl_numa_begin(n, &b);
    sl_numa_add(&b, (const void *)(BASE + from), bytes);
    sl_numa_flush(&b);
    return sl_numa_tell(n);
}

/* Bytes are those of the range, wherever it begins and ends. */
static void all_pages_of_a_range_move(void **state) {
    (void)state;
    const size_t from[] = {0, 100, PAGE - 1, PAGE}, bytes[] = {1, PAGE, 2 * PAGE + 5, 2500 * PAGE};
    for (size_t i = 0; i < SL_LEN(from); i++) {
        for (size_t j = 0; j < SL_LEN(bytes); j++) {
            reset(0);
            sl_numa n = to_node(1);
            const sl_numa_told t = hand_in(&n, from[i], bytes[j]);
            assert_true(t.there == bytes[j] && t.moved == bytes[j]);
            assert_true(t.others + t.left + t.absent == 0 && t.why == 0);
            for (size_t p = 0; p < PAGES; p++)
                assert_int_equal(mem.node[p],
                                 p >= from[i] / PAGE && p <= (from[i] + bytes[j] - 1) / PAGE);
            const unsigned long calls = mem.calls;
            sl_numa_again(&n);
            const sl_numa_told again = hand_in(&n, from[i], bytes[j]); /* only asks */
            assert_true(again.there == bytes[j] && again.moved == bytes[j] && mem.calls == calls);
        }
    }
}

static void what_stays_is_counted_by_reason(void **state) {
    (void)state;
    reset(0);
    for (uint32_t i = 0; i < 10; i++) mem.node[i] = -1;
    for (uint32_t i = 10; i < 30; i++) mem.others[i] = true;
    for (uint32_t i = 30; i < 60; i++) mem.node[i] = 1;
    sl_numa n = to_node(1);
    sl_numa_told t = hand_in(&n, 0, 100 * PAGE);
    assert_true(t.absent == 10 * PAGE && t.others == 20 * PAGE && t.there == 70 * PAGE);
    assert_true(t.moved == 40 * PAGE && t.left == 0);
    /* The others let go of them. */
    memset(mem.others, 0, sizeof mem.others);
    sl_numa_again(&n);
    t = hand_in(&n, 0, 100 * PAGE);
    assert_true(t.moved == 60 * PAGE && t.there == 90 * PAGE && t.absent == 10 * PAGE);
}

/* A page that cannot be moved ends the call: those before it have gone, and others go, too. */
static void a_call_that_ends_early_is_made_again(void **state) {
    (void)state;
    reset(0);
    mem.stuck[50] = true;
    sl_numa n = to_node(1);
    const sl_numa_told t = hand_in(&n, 0, 100 * PAGE);
    assert_true(t.moved == 50 * PAGE && t.there == t.moved);
    assert_true(t.left == 50 * PAGE && t.why == EBUSY);
    assert_true(mem.calls <= 4);
}

static void a_large_page_moves_as_one(void **state) {
    (void)state;
    reset(0);
    mem.large = 16;
    sl_numa n = to_node(1);
    const sl_numa_told t = hand_in(&n, 3 * PAGE, 64 * PAGE);
    assert_true(t.moved == 64 * PAGE && t.left == 0 && t.others == 0);
    assert_true(mem.node[0] == 1 && mem.node[79] == 1 && mem.node[80] == 0);
}

static void a_system_that_forbids_it_is_asked_once(void **state) {
    (void)state;
    reset(0);
    mem.refuses = EPERM;
    sl_numa n = to_node(1);
    sl_numa_told t = hand_in(&n, 0, 2000 * PAGE);
    assert_true(t.left == 2000 * PAGE && t.there == 0 && t.why == EPERM);
    mem.refuses = 0;
    t = hand_in(&n, 2000 * PAGE, PAGE);
    assert_true(t.left == 2001 * PAGE && mem.node[2000] == 0);
}

static void nothing_moves_when_time_is_over(void **state) {
    (void)state;
    reset(0);
    sl_numa n = to_node(1);
    n.until_ns = sl_now_ns();
    const sl_numa_told t = hand_in(&n, 0, 100 * PAGE);
    assert_true(t.left == 100 * PAGE && t.why == ETIME && mem.calls == 0);
}

static void a_batch_of_nobody_takes_nothing(void **state) {
    (void)state;
    reset(0);
    sl_numa_batch b;
    sl_numa_begin(NULL, &b);
    sl_numa_add(&b, (const void *)BASE, 10 * PAGE);
    sl_numa_flush(&b);
    assert_true(b.n == 0 && mem.calls == 0);
}

/* ---- which node ---- */

/* Nodes 0 and 2, CPUs 0 and 1 in the first, 2 and 3 in the other. */
static sl_topology two_nodes(uint32_t first, uint32_t n) {
    sl_topology t = {.n_nodes = 2, .n_memory = 2, .node_id = {0, 2}};
    for (uint32_t i = 0; i < n; i++)
        t.cpu[t.n++] = (sl_cpu){.id = (uint16_t)(first + i), .node = (first + i) / 2};
    return t;
}

static void the_node_is_that_of_all_cores(void **state) {
    (void)state;
    const sl_rank alone = {0, 1}, second = {1, 2};
    sl_numa n;
    sl_topology t = two_nodes(2, 2);
    assert_true(sl_cpu_near_begin(second, &t, &n));
    assert_int_equal(n.node, 2);
    assert_true(n.until_ns > sl_now_ns());
    t = two_nodes(1, 2); /* in both */
    assert_false(sl_cpu_near_begin(alone, &t, &n));
    t = two_nodes(0, 2);
    t.n_memory = 1;
    assert_false(sl_cpu_near_begin(alone, &t, &n));
}

/* ---- the kernel that is there ---- */

static void real_pages_are_where_they_are_said_to_be(void **state) {
    (void)state;
    const size_t bytes = 8 * (size_t)sysconf(_SC_PAGESIZE);
    sl_topology t;
    sl_err err;
    uint8_t *at = aligned_alloc((size_t)sysconf(_SC_PAGESIZE), bytes);
    assert_non_null(at);
    memset(at, 1, bytes);
    assert_int_equal(sl_topology_read("/sys", NULL, &t, &err), SL_OK);
    const int node = sl_topology_node(&t);
    sl_numa n = {.node = node == SL_NO_NODE ? 0 : node, .until_ns = UINT64_MAX};
    sl_numa_batch b;
    sl_numa_begin(&n, &b);
    sl_numa_add(&b, at, bytes);
    sl_numa_flush(&b);
    const sl_numa_told told = sl_numa_tell(&n);
    assert_true(at[0] == 1 && at[bytes - 1] == 1);
    free(at);
    assert_true(told.there + told.others + told.left + told.absent == bytes);
    if (told.why == EPERM || told.why == ENOSYS) skip();
    assert_true(told.there == bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_pages_of_a_range_move),
        cmocka_unit_test(what_stays_is_counted_by_reason),
        cmocka_unit_test(a_call_that_ends_early_is_made_again),
        cmocka_unit_test(a_large_page_moves_as_one),
        cmocka_unit_test(a_system_that_forbids_it_is_asked_once),
        cmocka_unit_test(nothing_moves_when_time_is_over),
        cmocka_unit_test(a_batch_of_nobody_takes_nothing),
        cmocka_unit_test(the_node_is_that_of_all_cores),
        cmocka_unit_test(real_pages_are_where_they_are_said_to_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
