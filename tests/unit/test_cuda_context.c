/* A GPU's context (stage/cuda/cuda_int.h) over a driver library without a GPU: lists and what they
 * lie in, copies, marks, graphs, errors by name. With a seed nothing runs before it is waited for.
 */
#include "stage/cuda/cuda_int.h"

#include "base/rng.h"
#include "cuda/driver_test.h"
#include "stage/cuda/graph.h"
#include "stage/cuda/kernels/args_check.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static sl_cuda *opened(uint64_t seed) {
    sl_err err = {0};
    sl_cuda *c;
    set_seed(seed);
    if (sl_cuda_open(0, SL_NUMERICS_CPU, &c, &err) != SL_OK) fail_msg("%s", err.msg);
    return c;
}

static void gpus_are_described(void **state) {
    sl_err err = {0};
    sl_cuda_info info;
    uint32_t n;
    (void)state;
    assert_int_equal(sl_cuda_count(&n, &err), SL_OK);
    assert_int_equal(n, 2);
    assert_int_equal(sl_cuda_describe(1, &info, &err), SL_OK);
    assert_string_equal(info.name, "Emulated GPU 1");
    assert_true(info.major == 9 && info.sms == 4 && info.shared_bytes == 232448);
    assert_true(info.memory_bytes == (uint64_t)8 << 30 && info.free_bytes == info.memory_bytes);
    says(sl_cuda_describe(2, &info, &err), SL_ERR_UNSUPPORTED, &err, "no GPU 2: 2 are there");
    sl_cuda *c;
    says(sl_cuda_open(7, SL_NUMERICS_CPU, &c, &err), SL_ERR_UNSUPPORTED, &err,
         "cuda:7: there is no");
    assert_null(c);
}

static void memory_is_given_and_taken(void **state) {
    sl_err err = {0};
    uint64_t a, b;
    (void)state;
    sl_cuda *c = opened(0);
    const uint64_t before = sl_cuda_free_bytes(c);
    assert_true(sl_cuda_info_of(c)->free_bytes == before);
    assert_int_equal(sl_cuda_alloc(c, 1000, &a, &err), SL_OK);
    assert_true(a && a % 256 == 0 && sl_cuda_free_bytes(c) == before - 1000);
    says(sl_cuda_alloc(c, before, &b, &err), SL_ERR_NOMEM, &err,
         "Emulated GPU 0 has no 8589934592 bytes: of 8589934592, 8589933592 are free");
    assert_true(!b);
    is_well(c); /* callers may do without it */
    sl_cuda_free(c, a);
    sl_cuda_free(c, 0);
    assert_true(sl_cuda_free_bytes(c) == before);
    sl_cuda_close(c);
    sl_cuda_close(NULL);
    assert_true(used() == 0);
}

/* Values there and back, in the order of calls. */
static void copies_keep_their_order(void **state) {
    enum { N = 5000 };
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        sl_err err = {0};
        sl_cuda *c = opened(seed);
        uint64_t at, pinned_at;
        void *pinned;
        uint8_t in[N], out[N];
        assert_int_equal(sl_cuda_alloc(c, 2 * N, &at, &err), SL_OK);
        assert_int_equal(sl_cuda_pin(c, 2 * N, &pinned, &pinned_at, &err), SL_OK);
        for (uint32_t i = 0; i < N; i++) in[i] = (uint8_t)(i * 7);
        assert_int_equal(sl_cuda_copy_in(c, at, in, N, &err), SL_OK);
        sl_cuda_copy(c, at + N, at, N);
        sl_cuda_fill(c, at, 9, N / 2);
        sl_cuda_copy_out_later(c, pinned, at, 2 * N);
        sl_cuda_drain(c);
        uint8_t *p = pinned;
        for (uint32_t i = 0; i < N; i++) {
            assert_int_equal(p[i], i < N / 2 ? 9 : in[i]);
            assert_int_equal(p[N + i], in[i]);
        }
        for (uint32_t i = 0; i < N; i++) p[i] = (uint8_t)i;
        sl_cuda_copy_in_later(c, at + 1, p, N);
        assert_int_equal(sl_cuda_copy_out(c, out, at + 1, N, &err), SL_OK);
        assert_memory_equal(out, p, N);
        sl_cuda_copy_in_later(c, at, p, 0);
        is_well(c);
        sl_cuda_copy_out_later(c, out, at, N); /* not pinned */
        says(sl_cuda_failed(c, &err), SL_ERR_INTERNAL, &err,
             "cuMemcpyDtoHAsync_v2: CUDA_ERROR_INVALID_VALUE (1, invalid argument)");
        sl_cuda_unpin(c, pinned);
        sl_cuda_free(c, at);
        sl_cuda_close(c);
        assert_true(used() == 0);
    }
}

/* Lists of drawn sizes, each read by a kernel launched some time after: many times what the parts
 * hold, some larger than a part, some ops with more than all parts hold. */
static void lists_are_kept_until_they_are_read(void **state) {
    enum { OPS = 120, LISTS = 12, MOST = 400000 };
    static uint32_t list[MOST];
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        sl_err err = {0};
        sl_cuda *c = opened(seed);
        uint64_t rng = seed + 1, at, listed = 0;
        uint32_t total = 0, first[LISTS], n[LISTS], add[LISTS];
        const void *on[LISTS];
        assert_int_equal(sl_cuda_alloc(c, sizeof(uint32_t) * MOST, &at, &err), SL_OK);
        uint32_t *y = (uint32_t *)(uintptr_t)at, *got = malloc(sizeof(uint32_t) * MOST);
        for (uint32_t op = 0; op < OPS; op++) {
            uint32_t lists = 1 + (uint32_t)sl_rng_below(&rng, LISTS);
            total = 0;
            for (uint32_t i = 0; i < lists; i++) {
                const bool large = sl_rng_below(&rng, 10) == 0;
                n[i] = (uint32_t)sl_rng_below(&rng, large ? MOST : 20000);
                n[i] = SL_MIN(n[i], MOST - total);
                first[i] = total;
                total += n[i];
                add[i] = (uint32_t)sl_rng_next(&rng);
                for (uint32_t j = 0; j < n[i]; j++) list[j] = first[i] + j + op;
                on[i] = sl_cuda_list(c, list, n[i] * sizeof *list);
                assert_true((uintptr_t)on[i] % 16 == 0 && on[i]);
                listed += n[i] * sizeof *list;
            }
            for (uint32_t i = 0; i < lists; i++) {
                const sl_k_check_args a = {on[i], y + first[i], n[i], add[i]};
                sl_cuda_launch(c, SL_CUDA_sl_k_check, (n[i] + 255) / 256, 1, 1, 256, 0, &a);
            }
            sl_cuda_fence(c);
            if (op % 8 && op + 1 < OPS) continue;
            assert_int_equal(sl_cuda_copy_out(c, got, at, total * sizeof *got, &err), SL_OK);
            for (uint32_t i = 0; i < lists; i++)
                for (uint32_t j = 0; j < n[i]; j++)
                    assert_true(got[first[i] + j] == sl_check_value(first[i] + j + op, add[i]));
        }
        is_well(c);
        assert_true(listed > (uint64_t)20 << 20);
        free(got);
        sl_cuda_free(c, at);
        assert_true(used() < listed / 2); /* parts are used again */
        sl_cuda_close(c);
        assert_true(used() == 0);
    }
}

static void marks_tell_what_has_run(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        enum { N = 1000 };
        sl_err err = {0};
        sl_cuda *c = opened(seed);
        sl_cuda_event *e, *f;
        uint64_t address;
        void *pinned;
        uint32_t list[N], *got;
        assert_int_equal(sl_cuda_event_create(c, &e, &err), SL_OK);
        assert_int_equal(sl_cuda_event_create(c, &f, &err), SL_OK);
        assert_int_equal(sl_cuda_pin(c, sizeof list, &pinned, &address, &err), SL_OK);
        got = pinned;
        assert_true(sl_cuda_event_is_done(c, e)); /* never put */
        sl_cuda_event_wait(c, e);
        for (uint32_t turn = 0; turn < 20; turn++) {
            memset(got, 0, sizeof list);
            for (uint32_t i = 0; i < N; i++) list[i] = i + turn;
            const sl_k_check_args a = {sl_cuda_list(c, list, sizeof list), got, N, 1};
            sl_cuda_event_record(c, e);
            sl_cuda_launch(c, SL_CUDA_sl_k_check, 4, 1, 1, 256, 0, &a);
            sl_cuda_event_record(c, f);
            if (seed) assert_true(!got[0] && !sl_cuda_event_is_done(c, f));
            if (turn % 2)
                sl_cuda_event_wait(c, f);
            else
                while (!sl_cuda_event_is_done(c, f)) continue;
            for (uint32_t i = 0; i < N; i++) assert_true(got[i] == sl_check_value(i + turn, 1));
            assert_true(sl_cuda_event_is_done(c, e) && sl_cuda_event_ms(c, e, f) >= 0);
        }
        is_well(c);
        sl_cuda_event_free(c, e);
        sl_cuda_event_free(c, f);
        sl_cuda_event_free(c, NULL);
        sl_cuda_unpin(c, pinned);
        sl_cuda_close(c);
    }
}

static void the_first_failure_stays(void **state) {
    sl_err err = {0};
    (void)state;
    sl_cuda *c = opened(0);
    uint32_t list[300] = {0};
    const sl_k_check_args a = {sl_cuda_list(c, list, sizeof list), NULL, 0, 0};
    sl_cuda_launch(c, SL_CUDA_sl_k_check, 0, 1, 1, 32, 0, &a); /* nothing */
    sl_cuda_launch(c, SL_CUDA_sl_k_check, 1, 1, 1, 32, 100000, &a);
    sl_cuda_drain(c);
    is_well(c);
    fail_at("cuLaunchKernel", 2, 700);
    sl_cuda_launch(c, SL_CUDA_sl_k_check, 1, 1, 1, 32, 0, &a);
    is_well(c);
    sl_cuda_launch(c, SL_CUDA_sl_k_check, 1, 2, 3, 32, 0, &a);
    says(sl_cuda_failed(c, &err), SL_ERR_INTERNAL, &err,
         "kernel sl_k_check, 1 x 2 x 3 blocks of 32 threads: cuLaunchKernel: "
         "CUDA_ERROR_ILLEGAL_ADDRESS (700");
    assert_null(sl_cuda_list(c, list, sizeof list));
    const void *on;
    uint8_t *room = sl_cuda_list_room(c, 3 << 20, &on);
    assert_true(room && !on);
    memset(room, 1, 3 << 20);
    sl_cuda_fail(c, SL_ERR_LIMIT, "another");
    sl_cuda_launch(c, SL_CUDA_sl_k_check, 1, 1, 1, 5000, 0, &a); /* would be refused */
    sl_cuda_fence(c);
    says(sl_cuda_failed(c, &err), SL_ERR_INTERNAL, &err, "ILLEGAL_ADDRESS");
    assert_true(sl_cuda_copy_out(c, list, 0, 4, &err) == SL_ERR_INTERNAL);
    sl_cuda_close(c);

    c = opened(2);
    sl_cuda_launch(c, SL_CUDA_sl_k_check, 1, 1, 1, 32, 300000, &a);
    says(sl_cuda_failed(c, &err), SL_ERR_LIMIT, &err,
         "kernel sl_k_check wants 300000 bytes of shared memory, a block has 232448");
    sl_cuda_close(c);

    c = opened(2); /* one that shows only later */
    fail_at("execute", 1, 700);
    sl_cuda_launch(c, SL_CUDA_sl_k_check, 1, 1, 1, 32, 0, &a);
    is_well(c);
    sl_cuda_drain(c);
    says(sl_cuda_failed(c, &err), SL_ERR_INTERNAL, &err,
         "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS");
    sl_cuda_close(c);
    assert_true(used() == 0);
}

/* Every call of opening, failed in turn: nothing stays behind. */
static void opening_fails_cleanly(void **state) {
    static const char *const calls[] = {
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuDeviceGetAttribute",
        "cuDeviceTotalMem_v2",
        "cuDevicePrimaryCtxRetain",
        "cuCtxSetCurrent",
        "cuMemGetInfo_v2",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuStreamCreate",
        "cuMemHostAlloc",
        "cuMemHostGetDevicePointer_v2",
        "cuEventCreate",
        "cuLaunchKernel",
        "cuStreamSynchronize",
        "execute",
    };
    (void)state;
    set_seed(0);
    for (size_t i = 0; i < SL_LEN(calls); i++)
        for (uint32_t nth = 1; nth <= 2; nth++) {
            sl_err err = {0};
            sl_cuda *c = NULL;
            fail_at(calls[i], nth, 1);
            if (sl_cuda_open(0, SL_NUMERICS_FAST, &c, &err) == SL_OK) {
                fail_at("none", 0, 0);
                assert_int_equal(nth, 2); /* called once, or not before closing */
                assert_int_equal(sl_cuda_numerics_of(c), SL_NUMERICS_FAST);
                sl_cuda_close(c);
            } else {
                assert_non_null(strstr(err.msg, "cuda:0: "));
                assert_non_null(strstr(err.msg, "INVALID_VALUE"));
                if (strcmp(calls[i], "execute") != 0) assert_non_null(strstr(err.msg, calls[i]));
                assert_null(c);
            }
            assert_true(used() == 0);
        }
    sl_err err = {0};
    sl_cuda *c;
    fail_at("cuModuleLoadData", 1, 209);
    says(sl_cuda_open(0, SL_NUMERICS_CPU, &c, &err), SL_ERR_UNSUPPORTED, &err,
         "no kernels for GPUs like Emulated GPU 0, of compute capability 9.0");
    fail_at("cuModuleGetFunction", 1, 500);
    says(sl_cuda_open(0, SL_NUMERICS_CPU, &c, &err), SL_ERR_INTERNAL, &err,
         "no image has the kernel sl_k_check");
}

static void *drive(void *arg) {
    sl_cuda *c = arg;
    sl_err err = {0};
    uint64_t at;
    uint32_t word = 5;
    if (sl_cuda_alloc(c, 4, &at, &err) != SL_OK) return "no memory";
    if (sl_cuda_copy_in(c, at, &word, 4, &err) != SL_OK) return "no copy";
    sl_cuda_adopt(c);
    sl_cuda_fill(c, at, 1, 4);
    if (sl_cuda_copy_out(c, &word, at, 4, &err) != SL_OK) return "no copy back";
    sl_cuda_free(c, at);
    return word == 0x01010101 ? NULL : "wrong";
}

typedef struct recorded {
    sl_cuda *c;
    uint64_t x, y;
} recorded;

static void launch_check(const recorded *r, uint32_t add) {
    sl_k_check_args args = {.x = (const uint32_t *)(uintptr_t)r->x,
                            .y = (uint32_t *)(uintptr_t)r->y,
                            .n = 1,
                            .add = add};
    sl_cuda_launch(r->c, SL_CUDA_sl_k_check, 1, 1, 1, 32, 0, &args);
    args.n = 0; /* it was copied */
}

static void put_x(const recorded *r, uint32_t x) {
    sl_err err;
    sl_cuda_drain(r->c);
    assert_int_equal(sl_cuda_copy_in(r->c, r->x, &x, sizeof x, &err), SL_OK);
}

static void y_is(const recorded *r, uint32_t want) {
    sl_err err;
    uint32_t y;
    assert_int_equal(sl_cuda_copy_out(r->c, &y, r->y, sizeof y, &err), SL_OK);
    assert_int_equal(y, want);
}

/* Nothing runs while it is recorded, and every time that the graph does. */
static void launches_are_recorded(void **state) {
    const sl_cuda_step step = {0};
    char why[SL_CUDA_WHY_BYTES];
    sl_err err;
    (void)state;
    for (uint64_t seed = 0; seed < 2; seed++) {
        recorded r = {.c = opened(seed)};
        assert_true(sl_cuda_has_graphs(r.c));
        assert_int_equal(sl_cuda_alloc(r.c, 4, &r.x, &err), SL_OK);
        assert_int_equal(sl_cuda_alloc(r.c, 4, &r.y, &err), SL_OK);
        put_x(&r, 3);
        launch_check(&r, 1);
        assert_true(sl_cuda_record_begin(r.c, &step, why));
        launch_check(&r, 5);
        sl_cuda_copy(r.c, r.x, r.y, 4);
        launch_check(&r, 6);
        sl_cuda_graph *g = sl_cuda_record_end(r.c, why);
        if (!g) fail_msg("%s", why);
        y_is(&r, sl_check_value(3, 1));
        for (uint32_t i = 10; i < 12; i++) {
            put_x(&r, i);
            assert_true(sl_cuda_graph_run(r.c, g, why));
            y_is(&r, sl_check_value(sl_check_value(i, 5), 6));
        }
        assert_false(sl_cuda_graph_is_stale(r.c, g));
        sl_cuda_free(r.c, r.x);
        assert_true(sl_cuda_graph_is_stale(r.c, g));
        sl_cuda_graph_free(r.c, g);
        sl_cuda_free(r.c, r.y);
        is_well(r.c);
        sl_cuda_close(r.c);
    }
}

/* What no graph can have speaks against it, and is no failure. */
static void what_cannot_be_recorded_is_said(void **state) {
    static const char *const said[] = {"a list of the host is read (sl_k_check)",
                                       "cuStreamSynchronize",
                                       "scratch grows",
                                       "CAPTURE_INVALIDATED",
                                       "cuEventQuery",
                                       "cuLaunchKernel"};
    const sl_cuda_step step = {0};
    const uint32_t word = 1;
    char why[SL_CUDA_WHY_BYTES];
    sl_cuda_event *e;
    sl_err err;
    uint64_t more = 0;
    (void)state;
    recorded r = {.c = opened(0)};
    assert_int_equal(sl_cuda_alloc(r.c, 4, &r.x, &err), SL_OK);
    assert_int_equal(sl_cuda_alloc(r.c, 4, &r.y, &err), SL_OK);
    assert_int_equal(sl_cuda_event_create(r.c, &e, &err), SL_OK);
    put_x(&r, 3);
    for (uint32_t i = 0; i < SL_LEN(said); i++) {
        sl_cuda_event_record(r.c, e);
        assert_true(sl_cuda_record_begin(r.c, &step, why));
        if (i == 0) assert_null(sl_cuda_list(r.c, &word, sizeof word));
        if (i == 1) sl_cuda_drain(r.c);
        if (i == 2) assert_true(sl_cuda_scratch(r.c, 1 << 20) == 0);
        if (i == 3) assert_int_not_equal(sl_cuda_alloc(r.c, 4, &more, &err), SL_OK);
        if (i == 4) assert_true(sl_cuda_event_is_done(r.c, e));
        if (i == 5) fail_at("cuLaunchKernel", 1, 700);
        launch_check(&r, 2);
        assert_null(sl_cuda_record_end(r.c, why));
        if (!strstr(why, said[i])) fail_msg("'%s' in: %s", said[i], why);
        launch_check(&r, i);
        y_is(&r, sl_check_value(3, i));
        is_well(r.c);
    }
    sl_cuda_event_free(r.c, e);
    sl_cuda_free(r.c, r.x);
    sl_cuda_free(r.c, r.y);
    sl_cuda_close(r.c);
}

static void another_thread_takes_over(void **state) {
    pthread_t thread;
    void *wrong;
    (void)state;
    sl_cuda *c = opened(1);
    assert_int_equal(pthread_create(&thread, NULL, drive, c), 0);
    assert_int_equal(pthread_join(thread, &wrong), 0);
    if (wrong) fail_msg("%s", (const char *)wrong);
    is_well(c);
    sl_cuda_close(c);
}

/* Before the library is there: what is said of one that is not, or is none. */
static void no_driver_is_said(void) {
    sl_err err = {0};
    uint32_t n;
    setenv("SLUICE_CUDA_DRIVER", "/nowhere/libcuda.so.1", 1);
    sl_status st = sl_cuda_count(&n, &err);
    if (st != SL_ERR_UNSUPPORTED || !strstr(err.msg, "no CUDA driver: /nowhere/libcuda.so.1"))
        fail_msg("%s", err.msg);
    setenv("SLUICE_CUDA_DRIVER", "libm.so.6", 1);
    st = sl_cuda_count(&n, &err);
    if (st != SL_ERR_UNSUPPORTED || !strstr(err.msg, "libm.so.6 has no cuInit: it is too old"))
        fail_msg("%s", err.msg);
    setenv("SLUICE_CUDA_DRIVER", SL_FAKE_CUDA, 1);
}

static int begin(void **state) {
    (void)state;
    no_driver_is_said();
    const char *why = find_driver();
    if (why) fail_msg("%s", why);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpus_are_described),
        cmocka_unit_test(memory_is_given_and_taken),
        cmocka_unit_test(copies_keep_their_order),
        cmocka_unit_test(lists_are_kept_until_they_are_read),
        cmocka_unit_test(marks_tell_what_has_run),
        cmocka_unit_test(the_first_failure_stays),
        cmocka_unit_test(opening_fails_cleanly),
        cmocka_unit_test(launches_are_recorded),
        cmocka_unit_test(what_cannot_be_recorded_is_said),
        cmocka_unit_test(another_thread_takes_over),
    };
    return cmocka_run_group_tests(tests, begin, NULL);
}
