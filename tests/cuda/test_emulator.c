/* The emulator of CUDA's blocks (emulator.h): what it computes, and that it finds faults. */
#include "emulator.h"

#include "base/rng.h"
#include "base/status.h"
#include "emulated_kernels.h"
#include "quant/fp8.h"
#include "quant/half.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define SEEDS 8

void emu_k_sum_thunk(const void *args);
void emu_k_warp_thunk(const void *args);
void emu_k_tile_thunk(const void *args);
void emu_k_trans_thunk(const void *args);
void emu_k_pipe_thunk(const void *args);
void emu_k_grid_thunk(const void *args);
void emu_k_fault_thunk(const void *args);

static uint32_t dynamic_bytes = 1024;
static bool plain; /* more shared memory was not asked for */

static void launch(void (*thunk)(const void *), const void *args, uint32_t blocks, uint32_t threads,
                   uint64_t seed) {
    const emu_launch l = {.kernel = "of the test",
                          .thunk = thunk,
                          .args = args,
                          .grid = {blocks, 1, 1},
                          .threads = threads,
                          .dynamic_bytes = dynamic_bytes,
                          .plain = plain,
                          .seed = seed};
    emu_run(&l);
}

static void sums_of_blocks(void **state) {
    enum { BLOCKS = 7 };
    float x[BLOCKS * 1024], y[BLOCKS];
    (void)state;
    for (uint32_t i = 0; i < BLOCKS * 1024; i++) x[i] = (float)(i % 97);
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (uint32_t threads = 32; threads <= 1024; threads *= 2) {
            const emu_sum_args a = {x, y};
            memset(y, 0, sizeof y);
            launch(emu_k_sum_thunk, &a, BLOCKS, threads, seed);
            for (uint32_t b = 0; b < BLOCKS; b++) {
                float sum = 0;
                for (uint32_t i = 0; i < threads; i++) sum += x[b * threads + i];
                assert_true(y[b] == sum);
            }
        }
}

static void lanes_exchange(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        uint32_t out[32][8], count = 0, counts = 0;
        const emu_warp_args a = {out[0], &count};
        launch(emu_k_warp_thunk, &a, 1, 32, seed);
        for (uint32_t i = 0; i < 32; i++) {
            assert_int_equal(out[i][0], i < 16 ? i ^ 8 : (i ^ 1) * 2);
            assert_int_equal(out[i][1], i + 3 < 32 ? i + 3 : i);
            assert_int_equal(out[i][2], i >= 3 ? i - 3 : i);
            assert_int_equal(out[i][3], 5);
            assert_int_equal(out[i][4], 0x49249249u);
            assert_int_equal(out[i][5], 3);
            assert_int_equal(out[i][6], i ^ 1);
            counts |= 1u << out[i][7] / 2;
        }
        assert_int_equal(count, 64);
        assert_true(counts == 0xffffffffu);
    }
}

static float value_at(uint32_t format, const uint8_t *row, uint32_t k) {
    uint16_t h;
    if (format < 2) memcpy(&h, row + 2 * k, 2);
    if (format == 0) return sl_bf16_to_f32(h);
    if (format == 1) return sl_f16_to_f32(h);
    return format == 2 ? (float)(int8_t)row[k] : sl_e4m3_to_f32(row[k]);
}

static void tiles_are_products(void **state) {
    uint64_t rng = 1;
    (void)state;
    for (uint32_t format = 0; format < 4; format++) {
        _Alignas(16) uint8_t a[16][32], b[8][32];
        float d[16][8];
        for (uint32_t i = 0; i < 24 * 32; i++) {
            uint8_t *p = i < 16 * 32 ? &a[i / 32][i % 32] : &b[i / 32 - 16][i % 32];
            *p = (uint8_t)sl_rng_next(&rng);
            /* numbers around 1 where a byte of an exponent could be anything */
            if (format < 2 && i % 2) *p = (uint8_t)(0x3c + (*p & 0x83));
            if (format == 3 && (*p & 0x7f) == 0x7f) *p = 0;
        }
        const emu_tile_args args = {a[0], b[0], d[0], format};
        launch(emu_k_tile_thunk, &args, 1, 32, format);
        for (uint32_t i = 0; i < 16; i++)
            for (uint32_t j = 0; j < 8; j++) {
                double sum = 1, size = 1;
                for (uint32_t k = 0; k < (format < 2 ? 16 : 32); k++) {
                    const double p = (double)value_at(format, a[i], k) * value_at(format, b[j], k);
                    sum += p;
                    size += fabs(p);
                }
                assert_true(fabs(d[i][j] - sum) <= size * 0x1p-23);
            }
    }
}

static void matrices_are_transposed(void **state) {
    uint16_t x[64], y[64];
    (void)state;
    for (uint32_t i = 0; i < 64; i++) x[i] = (uint16_t)(i * 3);
    const emu_trans_args a = {x, y};
    launch(emu_k_trans_thunk, &a, 1, 32, 3);
    for (uint32_t lane = 0; lane < 32; lane++) { /* rows 2t, 2t + 1 of column g */
        assert_int_equal(y[2 * lane], x[lane % 4 * 2 * 8 + lane / 4]);
        assert_int_equal(y[2 * lane + 1], x[(lane % 4 * 2 + 1) * 8 + lane / 4]);
    }
}

static void some_threads_meet(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        _Alignas(16) uint32_t x[32], y[3 * 32];
        for (uint32_t i = 0; i < 32; i++) x[i] = i + 1;
        const emu_pipe_args a = {x, y, 5};
        launch(emu_k_pipe_thunk, &a, 3, 64, seed);
        for (uint32_t i = 0; i < 3 * 32; i++)
            assert_int_equal(y[i], i % 4 < 2 ? 5 * (i % 32 + 1) : 0);
    }
}

/* Blocks that wait for each other: the last one to come lets all go on. */
static void blocks_wait_for_each_other(void **state) {
    enum { BLOCKS = 5, THREADS = 70 };
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        uint32_t part[BLOCKS] = {0}, came = 0, y[BLOCKS] = {0};
        const emu_grid_args a = {part, &came, y};
        launch(emu_k_grid_thunk, &a, BLOCKS, THREADS, seed);
        for (uint32_t i = 0; i < BLOCKS; i++) assert_int_equal(y[i], 100 * 5 + 1 + 2 + 3 + 4);
    }
}

/* What a process says that a fault has ended. */
static void dies(emu_fault fault, const char *why) {
    int pipes[2], status;
    char text[4096] = "";
    size_t n = 0;
    assert_int_equal(pipe(pipes), 0);
    const pid_t child = fork();
    if (child == 0) {
        _Alignas(16) uint32_t out[64] = {0};
        const emu_fault_args a = {out, fault};
        dup2(pipes[1], 2);
        launch(emu_k_fault_thunk, &a, 2, 64, 0);
        _exit(0);
    }
    close(pipes[1]);
    for (ssize_t got; (got = read(pipes[0], text + n, sizeof text - 1 - n)) > 0;) n += (size_t)got;
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(!WIFEXITED(status) || WEXITSTATUS(status)); /* ASan exits */
    if (!strstr(text, why)) fail_msg("'%s' in: %s", why, text);
}

static void faults_are_found(void **state) {
    (void)state;
    dies(EMU_BARRIER_LEFT, "kernel of the test, block (0, 0, 0), thread 5: left while others");
    dies(EMU_LANE_LEFT, "thread 5: left while others of its warp (mask ffffffff)");
    dies(EMU_OTHER_WAY, "thread 1: at __shfl_xor_sync with mask ffffffff, while lanes 00000001");
    dies(EMU_STUCK, "threads 0-31 wait at __syncthreads, threads 32-32 wait at a barrier");
#if defined(__SANITIZE_ADDRESS__)
    dies(EMU_OUTSIDE, "AddressSanitizer");
#else
    dies(EMU_OUTSIDE, "something was written outside of shared s");
#endif
    dies(EMU_IN_VAIN, "all look for what nobody does; block (0, 0, 0), of 2 that began: "
                      "threads 0-63 wait at a look at what others do");
    dies(EMU_NOT_ALIGNED, "is not aligned");
    dies(EMU_TRAP, "thread 9: sl_trap");
    plain = true;
    dynamic_bytes = 49000; /* and s */
    dies(EMU_GARBAGE, "49160 bytes of shared memory, which a launch has to ask for");
    plain = false;
    dies(EMU_TRAP, "thread 9: sl_trap");
    dynamic_bytes = 232400;
    dies(EMU_TRAP, "232560 bytes of shared memory, which a launch cannot have");
    dynamic_bytes = 1024;
}

#ifdef SL_CUDA_RACES
static void races_are_found(void **state) {
    (void)state;
    dies(EMU_IN_ORDER, "thread 1: reads 4 bytes at shared s + 0, which thread 0 wrote");
    dies(EMU_READ_FIRST, "thread 1: writes 4 bytes at shared s + 8, which thread 0 read");
    dies(EMU_BY_SHUFFLE, "thread 31: reads 4 bytes at shared s + 120, which thread 30 wrote");
    dies(EMU_OTHER_BLOCK, "block (1, 0, 0), thread 0: writes 4 bytes at global");
    dies(EMU_WITHOUT_RELEASE, "which thread 0 of another block wrote, and nothing says who is");
}
#endif

static void what_nobody_wrote_is_garbage(void **state) {
    (void)state;
    for (emu_fault fault = EMU_DEADLY; fault <= EMU_NOT_AWAITED; fault++) {
        _Alignas(16) uint32_t out[64] = {0};
        const emu_fault_args a = {out, fault};
        launch(emu_k_fault_thunk, &a, 1, 64, 0);
        for (uint32_t i = 0; i < 64; i++) assert_true(out[i] == 0xffffffffu);
    }
}

#ifndef SL_CUDA_RACES
static void orders_differ(void **state) {
    uint32_t found = 0;
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        uint32_t out[64] = {0};
        const emu_fault_args a = {out, EMU_IN_ORDER};
        launch(emu_k_fault_thunk, &a, 1, 64, seed);
        for (uint32_t i = 0; i < 64; i++) found |= out[i] != 7;
        if (!seed) assert_int_equal(found, 0);
    }
    assert_int_equal(found, 1);
}
#endif

static int release(void **state) {
    (void)state;
    emu_release();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_blocks),     cmocka_unit_test(lanes_exchange),
        cmocka_unit_test(tiles_are_products), cmocka_unit_test(matrices_are_transposed),
        cmocka_unit_test(some_threads_meet),  cmocka_unit_test(blocks_wait_for_each_other),
        cmocka_unit_test(faults_are_found),   cmocka_unit_test(what_nobody_wrote_is_garbage),
#ifdef SL_CUDA_RACES
        cmocka_unit_test(races_are_found),
#else
        cmocka_unit_test(orders_differ),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, release);
}
