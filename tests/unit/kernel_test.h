/* Shared by the kernel tests: seeded data, bit comparison, the list of instruction sets. */
#ifndef SL_TESTS_KERNEL_TEST_H
#define SL_TESTS_KERNEL_TEST_H

#include "base/mem.h"
#include "kernel/kernel_int.h"
#include "quant/block.h"
#include "quant/half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

static uint64_t kt_state = 0x9e3779b97f4a7c15u;

static inline uint32_t kt_bits(void) {
    kt_state ^= kt_state << 13;
    kt_state ^= kt_state >> 7;
    kt_state ^= kt_state << 17;
    return (uint32_t)(kt_state >> 32);
}

static inline uint32_t kt_below(uint32_t n) {
    return (uint32_t)((uint64_t)kt_bits() * n >> 32);
}

/* Mostly in [-1, 1], with zeros of both signs, tiny and large values among them. */
static inline float kt_value(void) {
    float v = (float)kt_bits() * 0x1.0p-31f - 1.0f;
    switch (kt_below(32)) {
    case 0:
        return 0.0f;
    case 1:
        return -0.0f;
    case 2:
        return v * 1e-41f;
    case 3:
        return v * 100.0f;
    default:
        return v;
    }
}

static inline float *kt_floats(size_t n) {
    float *p = sl_alloc(n, sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = kt_value();
    return p;
}

/* Any bytes are codes and scales; d and dmin are finite, among them zero and subnormals. */
static inline void kt_fill_blocks(sl_dtype dtype, size_t n, uint8_t *p) {
    size_t bytes = sl_dtype_block_bytes(dtype), at = dtype == SL_Q6_K ? 208 : 0;
    for (size_t i = 0; i < n / sl_dtype_block(dtype); i++, p += bytes) {
        for (size_t j = 0; j < bytes; j++) p[j] = (uint8_t)kt_bits();
        uint16_t d = sl_f32_to_f16(kt_value() * 0.01f), dmin = sl_f32_to_f16(kt_value() * 0.01f);
        if (dtype == SL_MXFP4) {
            p[0] = (uint8_t)(kt_below(16) ? 110 + kt_below(20) : kt_below(4)); /* some subnormal */
            continue;
        }
        memcpy(p + at, &d, 2);
        if (dtype == SL_Q4_K || dtype == SL_Q5_K) memcpy(p + 2, &dmin, 2);
    }
}

/* n values of a dtype, one byte off alignment when `odd`. *base is what to free. */
/* Rows of k values lie one behind the other, or are parts of longer ones. */
static inline uint32_t kt_apart(sl_dtype dtype, uint32_t k) {
    return k + (kt_below(3) == 0 ? sl_dtype_block(dtype) * (1 + kt_below(5)) : 0);
}

static inline void *kt_weights(sl_dtype dtype, size_t n, bool odd, void **base) {
    uint8_t *p = sl_alloc(sl_dtype_row_bytes(dtype, n) + 1, 1);
    assert_non_null(p);
    *base = p;
    p += odd;
    if (!sl_dtype_is_plain(dtype)) {
        kt_fill_blocks(dtype, n, p);
        return p;
    }
    for (size_t i = 0; i < n; i++) {
        float v = kt_value();
        uint16_t h = dtype == SL_F16 ? sl_f32_to_f16(v) : sl_f32_to_bf16(v);
        if (dtype == SL_F32)
            memcpy(p + i * 4, &v, 4);
        else
            memcpy(p + i * 2, &h, 2);
    }
    return p;
}

/* Value i of a plain type. */
static inline float kt_weight(const void *w, sl_dtype dtype, size_t i) {
    float f;
    uint16_t h;
    if (dtype == SL_F32) {
        memcpy(&f, (const uint8_t *)w + i * 4, 4);
        return f;
    }
    memcpy(&h, (const uint8_t *)w + i * 2, 2);
    return dtype == SL_F16 ? sl_f16_to_f32(h) : sl_bf16_to_f32(h);
}

/* The next length from k on that is a whole number of blocks. */
static inline uint32_t kt_whole(sl_dtype dtype, uint32_t k) {
    uint32_t n = sl_dtype_block(dtype);
    return (k + n - 1) / n * n;
}

/* n values from `at` on, whole blocks; valid until the next call. */
static inline const float *kt_row(const void *w, sl_dtype dtype, size_t at, size_t n) {
    static float row[4096];
    assert_true(n <= SL_LEN(row));
    const uint8_t *from = (const uint8_t *)w + sl_dtype_row_bytes(dtype, at);
    if (!sl_dtype_is_plain(dtype)) sl_block_decode(dtype, from, n, row);
    for (size_t i = 0; i < n && sl_dtype_is_plain(dtype); i++) row[i] = kt_weight(from, dtype, i);
    return row;
}

/* Fails naming the first differing value. */
static inline void kt_same(const char *what, const float *got, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (sl_f32_bits(got[i]) != sl_f32_bits(want[i]))
            fail_msg("%s: value %zu is %a, reference %a", what, i, (double)got[i], (double)want[i]);
}

/* Loops over the tables beside ref that can run here; says which cannot. One that can and is not
 * given out, as it has other bits than ref, is among them: what differs is to be said. */
#define KT_EACH_ISA(k)                                                                             \
    for (size_t kt_i = 0; sl_kernels_at(kt_i, NULL); kt_i++)                                       \
        for (const sl_kernels *k = kt_isa(kt_i); k; k = NULL)

static inline const sl_kernels *kt_isa(size_t i) {
    bool supported = false;
    const sl_kernels *k = sl_kernels_at(i, &supported);
    if (!k || k == &sl_kernels_ref) return NULL;
    supported = supported || k->supported();
    if (!supported) print_message("[  SKIPPED ] %s: not supported by this CPU or OS\n", k->name);
    return supported ? k : NULL;
}

/* Zeros for `rows` rows of results that are cols + 1 apart, the last of which ends where memory
 * does: who touches what is behind them faults, with lanes that are masked out, too, where an
 * instruction does not care for its mask. *n: how many. Valid until the next call. */
static inline float *kt_results(uint32_t rows, uint32_t cols, size_t *n) {
    static uint8_t *base;
    static size_t room;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *n = rows ? (size_t)rows * (cols + 1) - 1 : 0;
    const size_t bytes = SL_MAX((*n * sizeof(float) + page - 1) / page, (size_t)1) * page;
    if (bytes > room) {
        if (base) munmap(base, room + page);
        base = mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(base != MAP_FAILED && mprotect(base + bytes, page, PROT_NONE) == 0);
        room = bytes;
    }
    float *y = (float *)(void *)(base + room) - *n;
    memset(y, 0, *n * sizeof *y);
    return y;
}

/* Whether a table proves itself (sl_kernels_selftest). */
static inline bool kt_proves(const sl_kernels *k) {
    bool same = false;
    sl_kernels_selftest(&k, 1, &same);
    return same;
}

/* Two rows of quant/act.h, of n values. */
static inline void kt_same_act(const uint8_t *a, const uint8_t *b, sl_act_kind kind, uint32_t n) {
    if (kind == SL_ACT_BF16) {
        const uint16_t *u = (const uint16_t *)a, *v = (const uint16_t *)b;
        for (uint32_t i = 0; i < n; i++)
            if (u[i] != v[i] && !(isnan(sl_bf16_to_f32(u[i])) && isnan(sl_bf16_to_f32(v[i]))))
                fail_msg("value %u is %04x, reference %04x", i, u[i], v[i]);
        return;
    }
    size_t used = (size_t)n + n / sl_act_block(kind) * 4;
    for (uint32_t i = 0; i < n; i++)
        if (a[i] != b[i]) fail_msg("code %u is %d, reference %d", i, (int8_t)a[i], (int8_t)b[i]);
    for (uint32_t i = 0; i < n / sl_act_block(kind); i++) {
        float u = sl_act_scales(a, n)[i], v = sl_act_scales(b, n)[i];
        if (!(isnan(u) && isnan(v))) kt_same("scale", &u, &v, 1);
    }
    assert_memory_equal(a + used, b + used, n / sl_act_sum_of(kind) * 2);
}

#endif
