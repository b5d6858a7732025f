/* Experts whose weights stay in the host's memory: whatever is asked for, in whatever order, by
 * copies that run when they like, gives a CPU's bits; experts come and go; what the driver refuses
 * to register is copied all the same; and at the end nothing is left. Over a driver library without
 * a GPU. */
#include "cuda/hosting_test.h"
#include "stage/cuda/offload.h"

enum { CALLS = 24 };

/* Experts of a block: few, most, all. */
static uint64_t drawn_experts(uint64_t *rng, uint64_t hosted) {
    uint64_t which = 0;
    const uint64_t n = sl_rng_below(rng, 3) ? 1 + sl_rng_below(rng, EXPERTS) : EXPERTS;
    while ((uint64_t)__builtin_popcountll(which) < n) which |= 1ull << sl_rng_below(rng, EXPERTS);
    return which & hosted;
}

/* Some calls in flight at once, block by block or at random; their results are those of the CPU. */
static void some_calls(sl_device *gpu, sl_device *cpu, uint64_t hosted, uint64_t *rng) {
    asked a[ANSWERS], b;
    uint32_t block[ANSWERS];
    uint64_t which[ANSWERS];
    const uint32_t n = 1 + (uint32_t)sl_rng_below(rng, ANSWERS);
    const uint32_t draw = (uint32_t)sl_rng_below(rng, 1000);
    const bool in_turn = sl_rng_below(rng, 2);
    put_drawn(gpu, SL_DEVICE_CUDA, draw);
    put_drawn(cpu, SL_DEVICE_CPU, draw);
    for (uint32_t i = 0; i < n; i++) {
        block[i] = in_turn ? i % BLOCKS : (uint32_t)sl_rng_below(rng, BLOCKS);
        which[i] = drawn_experts(rng, hosted >> block[i] * EXPERTS);
        if (which[i]) ask(gpu, SL_DEVICE_CUDA, block[i], which[i], i, &a[i]);
    }
    sl_device_drain(gpu);
    assert_int_equal(gpu->failed, SL_OK);
    for (uint32_t i = 0; i < n; i++) {
        float x[ROWS * WIDTH], y[ROWS * WIDTH];
        if (!which[i]) continue;
        ask(cpu, SL_DEVICE_CPU, block[i], which[i], i, &b);
        sl_device_drain(cpu);
        get_rows(gpu, rows_out[SL_DEVICE_CUDA][i], x, ROWS);
        get_rows(cpu, rows_out[SL_DEVICE_CPU][i], y, ROWS);
        assert_memory_equal(x, y, sizeof x);
    }
}

static void calls_have_the_bits_of_a_cpu(uint64_t seed) {
    uint8_t all[N];
    uint64_t rng = seed + 1;
    mark(all, ~0ull);
    set_seed(seed);
    sl_device *cpu = opened_cpu(all), *gpu = opened_gpu(all, 0, SL_NUMERICS_CPU, true);
    assert_false(gpu->inside);
    for (int i = 0; i < CALLS; i++) some_calls(gpu, cpu, ~0ull, &rng);
    closed(gpu, SL_DEVICE_CUDA);
    closed(cpu, SL_DEVICE_CPU);
    assert_true(used() == 0);
    set_seed(0);
}

static void copies_that_run_when_they_like_change_no_bit(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) calls_have_the_bits_of_a_cpu(seed);
}

static void what_cannot_be_registered_is_copied_all_the_same(void **state) {
    (void)state;
    setenv("SLUICE_FAKE_CUDA_REGISTER", "0", 1);
    for (uint64_t seed = 0; seed < 2; seed++) calls_have_the_bits_of_a_cpu(seed);
    unsetenv("SLUICE_FAKE_CUDA_REGISTER");
}

static void experts_come_and_go(void **state) {
    (void)state;
    uint8_t all[N], hosted[N];
    sl_err err = {0};
    for (uint64_t seed = 0; seed < 2; seed++) {
        uint64_t rng = seed + 7, bits = 0x33F0F;
        mark(all, ~0ull);
        mark(hosted, bits);
        set_seed(seed);
        sl_device *cpu = opened_cpu(all), *gpu = opened_gpu(hosted, 0, SL_NUMERICS_CPU, true);
        assert_true(sl_device_room(gpu, PAIRS, 0) == UINT64_MAX);
        for (int i = 0; i < CALLS / 2; i++) {
            const uint64_t next = some(&rng, 12);
            assert_int_equal(host(gpu, bits | next, &err), SL_OK);
            some_calls(gpu, cpu, bits | next, &rng);
            assert_int_equal(host(gpu, next, &err), SL_OK);
            some_calls(gpu, cpu, next, &rng);
            bits = next;
        }
        closed(gpu, SL_DEVICE_CUDA);
        closed(cpu, SL_DEVICE_CPU);
        assert_true(used() == 0);
    }
    set_seed(0);
}

/* The kernels of numerics fast have tables with addresses of all experts. */
static void fast_kernels_find_them(void **state) {
    (void)state;
    uint8_t all[N];
    float want[N][ROWS * WIDTH], got[ROWS * WIDTH];
    mark(all, ~0ull);
    sl_device *d = opened_gpu(all, 0, SL_NUMERICS_FAST, false);
    for (uint32_t i = 0; i < N; i++) compute(d, SL_DEVICE_CUDA, i, want[i]);
    closed(d, SL_DEVICE_CUDA);
    set_seed(3);
    d = opened_gpu(all, 0, SL_NUMERICS_FAST, true);
    for (uint32_t k = 0; k < 2 * N; k++) {
        const uint32_t i = k * 7 % N;
        compute(d, SL_DEVICE_CUDA, i, got);
        assert_memory_equal(got, want[i], sizeof got);
    }
    closed(d, SL_DEVICE_CUDA);
    assert_true(used() == 0);
    set_seed(0);
}

enum { FEW = 4, LARGE = 3 * MB + 8, SMALL = 1000 };

/* What was put for an expert is in its place. */
static void is_there(sl_cuda *c, const void *const at[2], const uint8_t *from) {
    static uint8_t got[LARGE];
    sl_err err;
    assert_int_equal(sl_cuda_copy_out(c, got, (uint64_t)(uintptr_t)at[0], LARGE, &err), SL_OK);
    assert_memory_equal(got, from, LARGE);
    assert_int_equal(sl_cuda_copy_out(c, got, (uint64_t)(uintptr_t)at[1], SMALL, &err), SL_OK);
    assert_memory_equal(got, from + LARGE + 5, SMALL);
}

/* Pieces larger than what passes at once, and some threads for them. */
static void pass_whole(uint64_t seed, sl_pool *pool) {
    static const uint32_t ids[FEW] = {3, 1, 0, 2}, first[FEW + 1] = {0, 1, 2, 3, 4};
    static const uint32_t one[2] = {0, 1};
    const sl_cuda_cut cut = {.piece = LARGE, .small = SMALL, .n = 1};
    const size_t each = LARGE + 5 + SMALL;
    const void *at[BLOCKS * FEW][2];
    sl_cuda_offload o;
    sl_cuda *c;
    sl_err err;
    uint64_t rng = seed;
    uint8_t *from = malloc(BLOCKS * FEW * each);
    assert_non_null(from);
    for (size_t i = 0; i < BLOCKS * FEW * each; i += 4096) from[i] = (uint8_t)sl_rng_next(&rng);
    set_seed(seed);
    assert_int_equal(sl_cuda_open(0, SL_NUMERICS_CPU, &c, &err), SL_OK);
    sl_cuda_slabs m = {.c = c};
    assert_int_equal(sl_cuda_offload_create(c, &m, &cut, BLOCKS, FEW, NULL, NULL, &o, &err), SL_OK);
    o.pool = pool;
    for (uint32_t e = 0; e < BLOCKS * FEW; e++) {
        const uint8_t *p = from + e * each;
        assert_int_equal(sl_cuda_offload_put(&o, e, p, LARGE, &at[e][0], &err), SL_OK);
        assert_int_equal(sl_cuda_offload_put(&o, e, p + LARGE + 5, SMALL, &at[e][1], &err), SL_OK);
    }
    assert_int_equal(sl_cuda_offload_settle(&o, &err), SL_OK);
    for (uint32_t b = 0; b < 2 * BLOCKS; b++) {
        const uint32_t block = b % BLOCKS;
        sl_cuda_offload_need(&o, block, ids, first, FEW);
        for (uint32_t e = 0; e < FEW; e++)
            is_there(c, at[block * FEW + e], from + (block * FEW + e) * each);
        sl_cuda_offload_used(&o, block);
    }
    const uint64_t whole = (uint64_t)FEW * (LARGE + SMALL);
    while (o.next != SL_CUDA_NO_BLOCK) sl_cuda_offload_ahead(&o);
    assert_int_equal(o.bytes, 5 * whole); /* the middle one of three has a place of its own */
    sl_cuda_offload_need(&o, 1, ids + 1, one, 1); /* one alone, of a block that is there or not */
    is_there(c, at[FEW + 1], from + (FEW + 1) * each);
    sl_cuda_offload_used(&o, 1);
    is_well(c);
    for (uint32_t e = 0; e < BLOCKS * FEW; e++)
        for (uint32_t i = 2; i-- > 0;) sl_cuda_offload_drop(&o, e, at[e][i]);
    sl_cuda_offload_free(&o);
    sl_cuda_close(c);
    free(from);
    assert_true(used() == 0);
    set_seed(0);
}

static void large_pieces_pass_whole(void **state) {
    (void)state;
    sl_err err;
    sl_pool *pool;
    assert_int_equal(sl_pool_create(3, &pool, &err), SL_OK);
    for (int registers = 0; registers < 2; registers++) {
        setenv("SLUICE_FAKE_CUDA_REGISTER", registers ? "1" : "0", 1);
        for (uint64_t seed = 0; seed < 2; seed++) pass_whole(seed, seed ? NULL : pool);
    }
    unsetenv("SLUICE_FAKE_CUDA_REGISTER");
    sl_pool_free(pool);
}

/* Places for two blocks are what it takes, and an error says so where they do not fit. */
static void two_blocks_have_to_fit(void **state) {
    (void)state;
    uint8_t all[N];
    sl_err err = {0};
    sl_device *d;
    mark(all, ~0ull);
    const sl_device_spec spec = {
        .kind = SL_DEVICE_CUDA, .gpu_memory = MB / 4, .numerics = SL_NUMERICS_CPU, .offload = true};
    const sl_device_opts o = {.folder = FOLDER,
                              .hosts = {.experts = true, .hosted = all},
                              .device = &spec,
                              .threads = 1,
                              .max_pairs = PAIRS};
    says(sl_device_open(&o, &d, &err), SL_ERR_NOMEM, &err, "--offload-experts");
    assert_true(used() == 0);
    const sl_cuda_cut cut = {.piece = 1000, .small = 10, .n = 3};
    assert_int_equal(sl_cuda_offload_bytes(&cut, 1, 4), 4 * sl_cuda_offload_stride(&cut));
    assert_int_equal(sl_cuda_offload_bytes(&cut, 9, 4), 8 * sl_cuda_offload_stride(&cut));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_that_run_when_they_like_change_no_bit),
        cmocka_unit_test(what_cannot_be_registered_is_copied_all_the_same),
        cmocka_unit_test(experts_come_and_go),
        cmocka_unit_test(fast_kernels_find_them),
        cmocka_unit_test(large_pieces_pass_whole),
        cmocka_unit_test(two_blocks_have_to_fit),
    };
    return cmocka_run_group_tests(tests, find_fake, NULL);
}
