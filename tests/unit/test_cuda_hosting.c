/* Experts that come to a GPU and leave it while it computes: what it says to have room for finds
 * room, the place of those that left is used again, what does not fit changes nothing, and results
 * are those of a CPU throughout. Over a driver library without a GPU. */
#include "base/clock.h"
#include "cuda/hosting_test.h"
#include "stage/cuda/slabs.h"

#include <time.h>

/* ---- slabs ---- */

typedef struct held {
    uint64_t at;
    size_t bytes;
} held;

/* Pieces of two sizes come and go: they never overlap, and when all are gone the same fit. */
static void what_is_dropped_is_cut_again(void **state) {
    (void)state;
    sl_err err = {0};
    sl_cuda *c;
    uint64_t rng = 5;
    assert_int_equal(sl_cuda_open(0, SL_NUMERICS_CPU, &c, &err), SL_OK);
    sl_cuda_slabs m = {.c = c, .limit = 3 * MB};
    held h[400];
    uint32_t n = 0, most = 0;
    for (int k = 0; k < 6000; k++) {
        const size_t bytes = sl_rng_below(&rng, 3) ? 20000 : 7000;
        if (sl_rng_below(&rng, 2) && n < SL_LEN(h)) {
            uint64_t at;
            if (sl_cuda_slabs_cut(&m, bytes, &at, &err) != SL_OK) {
                assert_int_equal(err.code, SL_ERR_NOMEM);
                assert_non_null(strstr(err.msg, "--gpu-memory"));
                continue;
            }
            for (uint32_t i = 0; i < n; i++)
                assert_true(at + bytes <= h[i].at || h[i].at + h[i].bytes <= at);
            h[n++] = (held){at, bytes};
            most = SL_MAX(most, n);
        } else if (n > 0) {
            const uint32_t i = (uint32_t)sl_rng_below(&rng, n);
            sl_cuda_slabs_drop(&m, h[i].at, h[i].bytes);
            h[i] = h[--n];
        }
        assert_true(m.taken <= m.limit);
    }
    assert_true(most > 60);
    const uint64_t taken = m.taken;
    while (n > 0) n--, sl_cuda_slabs_drop(&m, h[n].at, h[n].bytes);
    assert_true(m.n_freed <= m.n_slabs); /* neighbours are one again */
    for (size_t all = 0; all + 60000 < taken * 9 / 10; all += 20224) {
        uint64_t at;
        assert_int_equal(sl_cuda_slabs_cut(&m, 20000, &at, &err), SL_OK);
    }
    sl_cuda_slabs_free(&m);
    sl_cuda_close(c);
    assert_true(used() == 0);
}

static void room_that_is_said_is_there(void **state) {
    (void)state;
    static const sl_cuda_cut cuts[] = {
        {.piece = 6144, .n = 3}, {.piece = 300000, .small = 700, .n = 3}, {.piece = 9000, .n = 2}};
    uint64_t rng = 9;
    for (int draw = 0; draw < 60; draw++) {
        sl_err err = {0};
        sl_cuda *c;
        assert_int_equal(sl_cuda_open(0, SL_NUMERICS_CPU, &c, &err), SL_OK);
        const sl_cuda_cut *cut = &cuts[draw % 3];
        sl_cuda_slabs m = {.c = c, .limit = 100000 + sl_rng_below(&rng, 8 * MB)};
        uint64_t at, scratch, beside = sl_rng_below(&rng, 50000);
        for (uint64_t i = sl_rng_below(&rng, 30); i > 0; i--) /* what is there is no expert */
            if (sl_cuda_slabs_cut(&m, 1 + sl_rng_below(&rng, 20000), &at, &err) == SL_OK && i % 2)
                sl_cuda_slabs_drop(&m, at, 256);
        const uint64_t n = sl_cuda_slabs_room(&m, cut, beside);
        if (sl_cuda_slabs_take(&m, beside + 1, "scratch", &scratch, &err) == SL_OK) {
            for (uint64_t i = 0; i < n * cut->n; i++)
                if (sl_cuda_slabs_cut(&m, cut->piece, &at, &err) != SL_OK) fail_msg("%s", err.msg);
            sl_cuda_slabs_return(&m, scratch, beside + 1);
        }
        sl_cuda_slabs_free(&m);
        sl_cuda_close(c);
    }
}

/* ---- a device ---- */

static void experts_come_and_go_with_the_bits_of_a_cpu(void **state) {
    (void)state;
    uint8_t all[N], hosted[N];
    uint64_t rng = 21, bits = 0xF;
    mark(all, ~0ull);
    mark(hosted, bits);
    sl_err err = {0};
    sl_device *cpu = opened_cpu(all);
    sl_device *d = opened_gpu(hosted, 40 * MB, SL_NUMERICS_CPU, false);
    const uint64_t before = used();
    for (int k = 0; k < 12; k++) {
        const uint64_t next = some(&rng, 8);
        assert_int_equal(host(d, bits | next, &err), SL_OK); /* they come... */
        same_as(d, cpu, bits & ~next);
        assert_int_equal(host(d, next, &err), SL_OK); /* ...and others go */
        bits = next;
        same_as(d, cpu, bits);
    }
    assert_true(used() <= before + 40 * MB);
    closed(d, SL_DEVICE_CUDA);
    closed(cpu, SL_DEVICE_CPU);
    assert_true(used() == 0);
}

/* Fast kernels have a table of where experts lie: of one that came back, too, whatever is where it
 * was. */
static void fast_kernels_find_experts_that_came_back(void **state) {
    (void)state;
    uint8_t all[N], hosted[N];
    uint64_t rng = 4, bits = 0x70;
    float want[N][ROWS * 64], got[ROWS * 64];
    mark(all, ~0ull);
    mark(hosted, bits);
    sl_err err = {0};
    sl_device *d = opened_gpu(all, 0, SL_NUMERICS_FAST, false);
    for (uint32_t i = 0; i < N; i++) compute(d, SL_DEVICE_CUDA, i, want[i]);
    closed(d, SL_DEVICE_CUDA);
    d = opened_gpu(hosted, 40 * MB, SL_NUMERICS_FAST, false);
    for (int k = 0; k < 40; k++) {
        const uint64_t next =
            k == 5 ? 0 : some(&rng, 1 + (uint32_t)sl_rng_below(&rng, 12)); /* and all may leave */
        assert_int_equal(host(d, bits | next, &err), SL_OK);
        assert_int_equal(host(d, next, &err), SL_OK);
        bits = next;
        for (uint32_t i = 0; i < N; i++) {
            if (!(bits >> i & 1)) continue;
            compute(d, SL_DEVICE_CUDA, i, got);
            assert_memory_equal(got, want[i], sizeof got);
        }
    }
    closed(d, SL_DEVICE_CUDA);
    assert_true(used() == 0);
}

/* The first whose memory is not there is said with figures, and what is there goes on. */
static void what_does_not_fit_leaves_what_there_is(void **state) {
    (void)state;
    uint8_t all[N], hosted[N];
    uint64_t bits = 0xF, room, bytes;
    mark(all, ~0ull);
    mark(hosted, bits);
    sl_err err = {0};
    sl_device *cpu = opened_cpu(all);
    assert_true(sl_device_room(cpu, PAIRS, 0) == UINT64_MAX);
    sl_device *d = opened_gpu(hosted, 40 * MB, SL_NUMERICS_CPU, false);
    sl_model_info info;
    assert_int_equal(sl_model_inspect(FOLDER, &info, &err), SL_OK);
    bytes = info.bytes_expert_most;
    uint64_t memory = 40 * MB; /* down to a dozen experts; room is said with caution */
    for (int k = 0; k < 4; k++) {
        memory -= sl_device_room(d, PAIRS, 0) - 12 * bytes;
        closed(d, SL_DEVICE_CUDA);
        d = opened_gpu(hosted, memory, SL_NUMERICS_CPU, false);
    }
    room = sl_device_room(d, PAIRS, 0) / bytes;
    assert_in_range(room, 9, 14);
    assert_int_equal(host(d, (1ull << (4 + room)) - 1, &err), SL_OK); /* all that it says */
    assert_true(sl_device_room(d, PAIRS, 0) / bytes <= 1);
    assert_int_equal(host(d, (1ull << N) - 1, &err), SL_ERR_NOMEM);
    assert_non_null(strstr(err.msg, "--gpu-memory"));
    same_as(d, cpu, (1ull << (4 + room)) - 1);
    assert_int_equal(host(d, 0xF, &err), SL_OK); /* it was given up */
    assert_int_equal(sl_device_room(d, PAIRS, 0) / bytes, room);
    for (uint32_t k = 0; k < 5; k++) { /* places are used again, whoever was there */
        const uint64_t next = ((1ull << room) - 1) << (4 + k);
        assert_int_equal(host(d, 0xF | next, &err), SL_OK);
        same_as(d, cpu, 0xF | next);
        assert_int_equal(host(d, 0xF, &err), SL_OK);
    }
    closed(d, SL_DEVICE_CUDA);
    closed(cpu, SL_DEVICE_CPU);
    assert_true(used() == 0);
}

/* ---- when calls ran ---- */

#define SLACK_NS 50000000u /* of two clocks, on a machine that does other things */

typedef struct heard {
    uint32_t n, rows, ops;
    uint64_t from_ns, last_end_ns;
} heard;

static void hear(void *ctx, const sl_stage_call *c, bool whole, uint64_t begin_ns,
                 uint64_t end_ns) {
    heard *h = ctx;
    assert_false(whole);
    assert_true(begin_ns + SLACK_NS >= h->from_ns && begin_ns <= end_ns);
    assert_true(begin_ns + SLACK_NS >= h->last_end_ns && end_ns <= sl_now_ns());
    h->last_end_ns = end_ns;
    h->n++;
    h->ops |= 1u << c->op;
    h->rows += c->op == SL_OP_EXPERTS ? c->experts.first[c->experts.n_groups] : c->pack.n;
}

/* Every call in its order, while somebody watches; no more of them at a time than are timed; and
 * what is computed does not depend on it. */
static void whoever_watches_hears_when_calls_ran(void **state) {
    (void)state;
    uint8_t all[N];
    float plain[ROWS * 64], x[ROWS * 64] = {0};
    uint8_t *at[ROWS];
    heard h = {.from_ns = sl_now_ns()};
    mark(all, ~0ull);
    sl_device *d = opened_gpu(all, 0, SL_NUMERICS_CPU, false);
    compute(d, SL_DEVICE_CUDA, 3, plain);
    for (uint32_t k = 0; k < 2; k++) { /* again, with an origin of its own */
        d->watch = (sl_device_watch){.ran = hear, .ctx = &h};
        compute(d, SL_DEVICE_CUDA, 3, x);
        assert_memory_equal(x, plain, sizeof x);
        assert_int_equal(h.n, 3 * (k + 1));
        assert_int_equal(h.rows, 3 * ROWS * (k + 1));
        assert_int_equal(h.ops, 1u << SL_OP_UNPACK | 1u << SL_OP_EXPERTS | 1u << SL_OP_PACK);
        nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 100000000}, NULL); /* a new origin */
        d->watch = (sl_device_watch){0};
        compute(d, SL_DEVICE_CUDA, 3, x);
        assert_int_equal(h.n, 3 * (k + 1));
    }
    for (uint32_t i = 0; i < ROWS; i++) at[i] = (uint8_t *)(x + i * 64);
    const sl_stage_call c = {
        .op = SL_OP_UNPACK,
        .pack = {.n = ROWS, .wire = SL_WIRE_F32, .rows = rows_in[SL_DEVICE_CUDA], .at = at}};
    h.n = 0;
    d->watch = (sl_device_watch){.ran = hear, .ctx = &h};
    for (uint32_t i = 0; i < 600; i++) sl_device_submit(d, &c);
    sl_device_drain(d);
    assert_in_range(h.n, 256, 600);
    d->watch = (sl_device_watch){0}; /* calls in flight were timed: nobody hears of them */
    for (uint32_t i = 0; i < 10; i++) sl_device_submit(d, &c);
    closed(d, SL_DEVICE_CUDA);
    assert_true(used() == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_dropped_is_cut_again),
        cmocka_unit_test(room_that_is_said_is_there),
        cmocka_unit_test(experts_come_and_go_with_the_bits_of_a_cpu),
        cmocka_unit_test(fast_kernels_find_experts_that_came_back),
        cmocka_unit_test(what_does_not_fit_leaves_what_there_is),
        cmocka_unit_test(whoever_watches_hears_when_calls_ran),
    };
    return cmocka_run_group_tests(tests, find_fake, NULL);
}
