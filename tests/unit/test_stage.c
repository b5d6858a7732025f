/* Stages of rows, and what a device promises about order and events, on a device that takes its
 * time. What models compute is held by test_model_*, that an engine waits for it by the law. */
#include "deferred.h"

#include "base/memfd.h"
#include "base/rng.h"
#include "stage/stage_int.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static const char folder[] = SL_SOURCE_DIR "/bench/lab/models/shared-top2";

static void no_wait(void *ctx, uint64_t deadline_ns) {
    (void)ctx, (void)deadline_ns;
}

/* Weights are not needed: `late` or at once, on an emulated device without costs. */
static sl_device *open_device(bool late) {
    static deferred_maker maker = {.seed = 1};
    const sl_device_spec spec = {.kind = SL_DEVICE_EMULATED, .time_scale = 1};
    const sl_device_opts o = {.folder = folder,
                              .hosts = {.attention = true, .experts = true},
                              .device = &spec,
                              .threads = 1,
                              .max_rows = 8,
                              .max_pairs = 16,
                              .wait = no_wait};
    sl_device *d = NULL;
    sl_err err;
    if ((late ? deferred_open(&maker, &o, &d, &err) : sl_device_open(&o, &d, &err)) != SL_OK)
        fail_msg("%s", err.msg);
    return d;
}

static sl_mem rows_of(sl_device *d, size_t n) {
    sl_mem m;
    sl_err err;
    assert_int_equal(sl_device_take_rows(d, n, &m, &err), SL_OK);
    return m;
}

static float *floats(sl_mem m) {
    return (float *)(uintptr_t)m.at;
}

static void run(sl_device *d, const sl_stage_call *c) {
    const sl_event e = sl_device_submit(d, c);
    sl_device_drain(d);
    assert_true(sl_device_is_done(d, &e));
}

/* Rows to messages and back, in any order; rounding twice is rounding once. */
static void rows_travel(void **state) {
    (void)state;
    sl_device *d = open_device(false);
    const uint32_t width = d->spec->d_model, picked[] = {2, 0, 2};
    for (int w = 0; w < SL_WIRE_FORMAT_COUNT; w++) {
        sl_wire_format wire = (sl_wire_format)w;
        sl_mem x = rows_of(d, 3), y = rows_of(d, 3);
        size_t bytes = sl_wire_row_bytes(wire, width);
        uint8_t *data = sl_alloc(6, bytes), *at[3], *again[3];
        assert_non_null(data);
        for (size_t i = 0; i < 3; i++) at[i] = data + i * bytes, again[i] = data + (i + 3) * bytes;
        for (uint32_t i = 0; i < 3 * width; i++) floats(x)[i] = (float)i / 7 - 1;
        const sl_stage_pack p = {.n = 3, .wire = wire, .rows = x, .row = picked, .at = at};
        run(d, &(sl_stage_call){.op = SL_OP_PACK, .pack = p});
        const sl_stage_pack back = {.n = 3, .wire = wire, .rows = y, .at = at};
        run(d, &(sl_stage_call){.op = SL_OP_UNPACK, .pack = back});
        for (uint32_t i = 0; i < 3; i++)
            for (uint32_t j = 0; j < width; j++) {
                float want = floats(x)[picked[i] * width + j], got = floats(y)[i * width + j];
                assert_true(wire == SL_WIRE_F32 ? want == got
                                                : fabsf(want - got) <= fabsf(want) / 8 + 0.01f);
            }
        const sl_stage_pack once = {.n = 3, .wire = wire, .rows = y, .at = again};
        run(d, &(sl_stage_call){.op = SL_OP_PACK, .pack = once});
        assert_memory_equal(data, data + 3 * bytes, 3 * bytes);
        sl_device_give(d, x);
        sl_device_give(d, y);
        sl_free(data);
    }
    sl_device_close(d);
}

/* Whatever the kernels and the values, also NaN, infinities and denormals: the bits of wire_rows.h.
 */
static void kernels_round_as_the_wire_says(void **state) {
    (void)state;
    enum { N = 3, D = 77 };
    const sl_model_spec spec = {.d_model = D, .top_k = 1};
    bool can;
    const sl_kernels *k;
    for (size_t t = 0; (k = sl_kernels_at(t, &can)) != NULL; t++) {
        const sl_exec ex = {.k = k};
        if (!can) printf("skipped: kernels %s cannot run here\n", sl_kernels_name(k));
        for (uint64_t seed = 1; can && seed <= 500; seed++) {
            sl_wire_format wire = (sl_wire_format)(seed % SL_WIRE_FORMAT_COUNT);
            size_t bytes = sl_wire_row_bytes(wire, D);
            _Alignas(4) uint8_t got[N * D * 4], want[N * D * 4];
            uint8_t *at[N];
            float x[N * D], y[N * D], z[N * D], sum[2 * D];
            uint64_t draw = seed;
            for (size_t i = 0; i < N * D; i++) {
                uint32_t bits = (uint32_t)sl_rng_next(&draw);
                memcpy(&x[i], &bits, sizeof bits);
            }
            for (size_t i = 0; i < N; i++) at[i] = got + i * bytes;
            sl_stage_call c = {
                .op = SL_OP_PACK,
                .pack = {.n = N, .wire = wire, .rows = sl_mem_host(x, sizeof x), .at = at}};
            assert_true(sl_stage_run_rows(&ex, &spec, &c, sum));
            sl_wire_pack(wire, x, N, D, want);
            assert_memory_equal(got, want, N * bytes);
            c.op = SL_OP_UNPACK;
            c.pack.rows = sl_mem_host(y, sizeof y);
            assert_true(sl_stage_run_rows(&ex, &spec, &c, sum));
            sl_wire_unpack(wire, want, N, D, z);
            assert_memory_equal(y, z, sizeof z);
        }
    }
}

/* Pieces in their order, then the shared row, then the stream; places without a piece add nothing.
 */
static void rows_are_merged_in_order(void **state) {
    (void)state;
    sl_device *d = open_device(false);
    const uint32_t width = d->spec->d_model, k = d->spec->top_k, from[] = {3, 1};
    sl_mem store = rows_of(d, 4), shared = rows_of(d, 4), x = rows_of(d, 2);
    float *a = sl_alloc(width, sizeof *a), *b = sl_alloc(width, sizeof *b);
    assert_true(a && b && k == 2);
    for (uint32_t i = 0; i < width; i++) a[i] = 1e8f, b[i] = 0.3f;
    for (uint32_t i = 0; i < 4 * width; i++) floats(store)[i] = 7, floats(shared)[i] = -1e8f;
    const uint8_t *const piece[] = {(const uint8_t *)a, (const uint8_t *)b, NULL,
                                    (const uint8_t *)b};
    sl_stage_call c = {.op = SL_OP_MERGE,
                       .rows = {.n = 2, .x = x},
                       .merge = {.x = store, .shared = shared, .from = from, .piece = piece}};
    run(d, &c);
    assert_true(floats(x)[0] == ((1e8f + 0.3f) + -1e8f) + 7);
    assert_true(floats(x)[width] == (0.3f + -1e8f) + 7);
    c.merge = (sl_stage_merge){.x = x, .piece = piece}; /* in place, nothing shared */
    float before = floats(x)[0];
    run(d, &c);
    assert_true(floats(x)[0] == before + (1e8f + 0.3f));
    sl_device_give(d, store);
    sl_device_give(d, shared);
    sl_device_give(d, x);
    sl_free(a);
    sl_free(b);
    sl_device_close(d);
}

/* Row to_row[i] of the other end; NULL: in order. */
static void rows_move(void **state) {
    (void)state;
    sl_device *d = open_device(false);
    const uint32_t width = d->spec->d_model, places[] = {4, 0};
    sl_mem x = rows_of(d, 5), y = rows_of(d, 5);
    for (uint32_t i = 0; i < 5 * width; i++) floats(x)[i] = (float)(i / width);
    const sl_stage_move there = {.n = 2, .from = x, .to = y, .to_row = places};
    run(d, &(sl_stage_call){.op = SL_OP_MOVE, .move = there});
    assert_true(floats(y)[4 * width] == 0 && floats(y)[0] == 1);
    const sl_stage_move back = {.n = 2, .from = x, .to = y, .from_row = places};
    run(d, &(sl_stage_call){.op = SL_OP_MOVE, .move = back});
    assert_true(floats(y)[0] == 4 && floats(y)[width] == 0);
    sl_device_give(d, x);
    sl_device_give(d, y);
    sl_device_close(d);
}

/* A device that is through at submit says so without being asked. */
static void some_devices_are_through_at_once(void **state) {
    (void)state;
    sl_device *d = open_device(false);
    const sl_event none = {0};
    assert_true(sl_device_is_done(d, &none));
    const sl_event e = sl_device_submit(d, &(sl_stage_call){.op = SL_OP_MOVE, .queue = 3});
    assert_true(e.number == 1 && sl_device_is_done(d, &e) && !sl_device_poll(d));
    sl_device_close(d);
}

/* Each call of a queue adds one to what the one before it left; events become true in order, after
 * the results are there, and not in the same order in every queue. */
static void queues_keep_their_order(void **state) {
    (void)state;
    enum { CALLS = 20, QUEUES = 4 };
    sl_device *d = open_device(true);
    const uint32_t width = d->spec->d_model;
    float *one = sl_alloc(width, sizeof *one);
    const uint8_t *const piece[] = {(const uint8_t *)one, NULL};
    sl_mem x[QUEUES];
    sl_event e[QUEUES][CALLS];
    uint32_t seen[QUEUES] = {0};
    bool overtaken = false;
    assert_non_null(one);
    for (uint32_t i = 0; i < width; i++) one[i] = 1;
    for (uint32_t q = 0; q < QUEUES; q++) x[q] = rows_of(d, 1);
    for (uint32_t i = 0; i < CALLS; i++)
        for (uint32_t q = 0; q < QUEUES; q++) {
            const sl_stage_call c = {.op = SL_OP_MERGE,
                                     .queue = q,
                                     .rows = {.n = 1, .x = x[q]},
                                     .merge = {.x = x[q], .piece = piece}};
            e[q][i] = sl_device_submit(d, &c);
        }
    for (bool more = true; more;) {
        more = sl_device_poll(d);
        for (uint32_t q = 0; q < QUEUES; q++) {
            uint32_t done = 0;
            for (uint32_t i = 0; i < CALLS; i++) {
                bool is = sl_device_is_done(d, &e[q][i]);
                assert_true(!is || done == i); /* no call before those submitted before it */
                done += is;
            }
            assert_true(done >= seen[q] && floats(x[q])[0] >= (float)done);
            for (uint32_t other = q + 1; other < QUEUES; other++)
                overtaken |= seen[other] > done + 1;
            seen[q] = done;
        }
    }
    assert_true(overtaken);
    for (uint32_t q = 0; q < QUEUES; q++) {
        assert_true(seen[q] == CALLS && floats(x[q])[width - 1] == CALLS);
        sl_device_give(d, x[q]);
    }
    sl_free(one);
    sl_device_close(d);
}

/* ---- KV in a file ---- */

#define KV_PAGES 3u

static sl_status open_within(int fd, uint32_t ranks, uint32_t quiet_ms, sl_device **out,
                             sl_err *err) {
    static const sl_device_spec spec = {.kind = SL_DEVICE_CPU};
    const sl_device_opts o = {.folder = SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny",
                              .hosts = {.attention = true},
                              .device = &spec,
                              .threads = 1,
                              .ranks = ranks,
                              .max_rows = 8,
                              .kv_pages = KV_PAGES,
                              .kv_fd = fd,
                              .quiet_ms = quiet_ms};
    return sl_device_open(&o, out, err);
}

static sl_status open_on(int fd, uint32_t ranks, sl_device **out, sl_err *err) {
    return open_within(fd, ranks, 0, out, err);
}

/* Row `pos` of block 0, whose request has pages 2 and 0: what it becomes. */
static void attend(sl_device *d, uint32_t pos, float *out) {
    static const uint32_t pages[] = {2, 0}, *const at = pages;
    sl_mem x = rows_of(d, 1);
    for (uint32_t i = 0; i < d->spec->d_model; i++) floats(x)[i] = (float)(i * (pos + 3) % 17) / 9;
    const sl_rowset rows = {.n = 1, .pos = &pos, .pages = &at, .x = x};
    run(d, &(sl_stage_call){.op = SL_OP_ATTEND, .rows = rows});
    memcpy(out, floats(x), d->spec->d_model * sizeof *out);
    sl_device_give(d, x);
}

/* Another device goes on where the first one was. */
static void check_file(uint32_t ranks) {
    sl_device *d = NULL, *own = NULL;
    sl_err err = {0};
    float want[256], got[256];
    int fd, small;
    size_t bytes;
    assert_int_equal(open_on(0, 1, &own, &err), SL_OK);
    assert_true(own->resumes && !own->kept && !sl_device_keeps(own));
    assert_true(own->spec->d_model <= SL_LEN(want));
    assert_true(sl_kv_file_bytes(own->spec, KV_PAGES, ranks, &bytes));
    assert_true(bytes >= KV_PAGES * sl_kv_page_bytes(own->spec));
    assert_int_equal(sl_memfd_create(bytes, &fd, &err), SL_OK);
    assert_int_equal(sl_memfd_create(bytes - 1, &small, &err), SL_OK);
    assert_int_equal(open_on(small, ranks, &d, &err), SL_ERR_PROTOCOL);
    assert_non_null(strstr(err.msg, "file of KV pages: "));
    for (uint32_t pos = 0; pos <= 40; pos++) attend(own, pos, want);
    for (uint32_t pos = 0; pos <= 40; pos++) {
        if (pos % 20 == 0) {
            sl_device_close(d);
            assert_int_equal(open_on(fd, ranks, &d, &err), SL_OK);
            assert_true(sl_device_keeps(d));
        }
        attend(d, pos, got);
    }
    assert_memory_equal(got, want, own->spec->d_model * sizeof *got);
    sl_device_close(d);
    sl_device_close(own);
    close(fd);
    close(small);
}

/* Of a gang, too: ranks with the same kv heads, and with none. */
static void pages_in_a_file_outlive_their_device(void **state) {
    (void)state;
    for (uint32_t ranks = 1; ranks <= SL_MAX_RANKS; ranks *= 2) check_file(ranks);
}

static void files_of_pages_have_a_limit(void **state) {
    sl_model_spec m;
    sl_err err;
    size_t bytes;
    (void)state;
    assert_int_equal(
        sl_model_read_spec(SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny", &m, NULL, &err), SL_OK);
    m.n_layers = UINT32_MAX / 8;
    assert_false(sl_kv_file_bytes(&m, UINT32_MAX, 8, &bytes));
    assert_false(sl_kv_file_bytes(&m, (uint32_t)(SIZE_MAX / sl_kv_page_bytes(&m)), 2, &bytes));
}

/* Whether low priority had time for it, for some of it, or for nothing. */
static void a_device_that_nobody_waits_for_gets_ready(void **state) {
    (void)state;
    static const uint32_t ms[] = {1, 2, 60000};
    float want[256], got[256];
    sl_device *own = NULL, *d = NULL;
    sl_err err = {0};
    assert_int_equal(open_on(0, 1, &own, &err), SL_OK);
    attend(own, 0, want);
    for (size_t i = 0; i < SL_LEN(ms); i++) {
        assert_int_equal(open_within(0, 1, ms[i], &d, &err), SL_OK);
        attend(d, 0, got);
        assert_memory_equal(got, want, own->spec->d_model * sizeof *got);
        sl_device_close(d);
    }
    sl_device_close(own);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_travel),
        cmocka_unit_test(kernels_round_as_the_wire_says),
        cmocka_unit_test(rows_are_merged_in_order),
        cmocka_unit_test(rows_move),
        cmocka_unit_test(some_devices_are_through_at_once),
        cmocka_unit_test(queues_keep_their_order),
        cmocka_unit_test(pages_in_a_file_outlive_their_device),
        cmocka_unit_test(files_of_pages_have_a_limit),
        cmocka_unit_test(a_device_that_nobody_waits_for_gets_ready),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
