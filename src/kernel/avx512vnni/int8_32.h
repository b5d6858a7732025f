/* Products of two blocks of 32 of sixteen columns, which are in registers, with all rows: for
 * weights that are turned as they are read, and for those that lie in strips. */
#ifndef SL_KERNEL_AVX512VNNI_INT8_32_H
#define SL_KERNEL_AVX512VNNI_INT8_32_H

#include "kernel/avx512/int8.h"

/* sum += v times the 32 codes at x. Spelled out, as gcc makes two instructions of each of these. */
SL_INLINE __m512i sl_dot_32(__m512i sum, const __m512i *v, const uint8_t *x) {
    __asm__("vpdpbusd (%1)%{1to16%}, %2, %0\n\t"
            "vpdpbusd 4(%1)%{1to16%}, %3, %0\n\t"
            "vpdpbusd 8(%1)%{1to16%}, %4, %0\n\t"
            "vpdpbusd 12(%1)%{1to16%}, %5, %0\n\t"
            "vpdpbusd 16(%1)%{1to16%}, %6, %0\n\t"
            "vpdpbusd 20(%1)%{1to16%}, %7, %0\n\t"
            "vpdpbusd 24(%1)%{1to16%}, %8, %0\n\t"
            "vpdpbusd 28(%1)%{1to16%}, %9, %0"
            : "+&v"(sum)
            : "r"(x), "v"(v[0]), "v"(v[1]), "v"(v[2]), "v"(v[3]), "v"(v[4]), "v"(v[5]), "v"(v[6]),
              "v"(v[7]), "m"(*(const uint8_t(*)[32])x));
    return sum;
}

/* Blocks of a strip, two or the last one, of which the first is block b of the rows, and what is
 * asked for meanwhile: lines of what comes later, to the second cache, and those that come next, of
 * each column or of the strip as it lies. */
typedef struct sl_blocks_32 {
    __m512i v[2][8];
    __m512 d[2];
    uint32_t b;
    const uint8_t *later, *near;
} sl_blocks_32;

/* Of n blocks, onto the chains of rows r to end - 1, with so many lines asked for at each. A sum
 * begins at what codes are above their value times the sum of the row's codes: of two neighbours,
 * of which the other counts nothing. Behind the last is still the row, as 38 bytes a block and a
 * whole number of 64 do not meet at an odd number of blocks. */
SL_INLINE void sl_add_rows_32(const sl_act_tile *t, sl_blocks_32 *w, uint32_t r, uint32_t end,
                              const uint32_t lines, const uint32_t n, sl_dtype dtype,
                              const bool strips, __m512 *acc) {
    const int bias = dtype == SL_Q8_0 ? 128 : dtype == SL_Q4_0 ? 8 : SL_MXFP4_ABOVE;
    const __m512i of[2] = {_mm512_set1_epi32(-bias & 0xffff), _mm512_set1_epi32(-bias * 65536)};
    const size_t codes = (size_t)w->b * 32, factors = t->k + (size_t)w->b * 4;
    const size_t sums = t->k + t->k / 32 * 4 + (size_t)w->b * 2, stride = strips ? 64 : t->w_stride;
    const uint8_t *const *x = t->x;
    for (; r < end; r++) {
        __m512 a = acc[r];
        for (uint32_t i = 0; i < lines; i++, w->later += 64) {
            sl_ask_far(w->later, 64);
            if (strips || lines > 1) sl_ask(w->near, 64);
            w->near += stride;
        }
#pragma GCC unroll 2
        for (uint32_t i = 0; i < n; i++) {
            __m512i sum = _mm512_dpwssd_epi32(_mm512_setzero_si512(), of[i], sl_quad(x[r] + sums));
            const float *dx = (const float *)(x[r] + factors) + i;
            sum = sl_dot_32(sum, w->v[i], x[r] + codes + 32 * i);
            a = sl_add_block(w->d[i], _mm512_set1_ps(*dx), sum, a);
        }
        acc[r] = a;
    }
}

/* With all rows; lines are asked for as evenly as they go, more at the first rows. Where the last
 * is half a line, the next pair asks for it again. */
SL_INLINE void sl_add_pair_32(const sl_act_tile *t, sl_blocks_32 *w, sl_dtype dtype,
                              const bool strips, __m512 *acc) {
    const uint32_t lines = (2 * SL_STRIP * sl_dtype_block_bytes(dtype) + 63) / 64;
    const uint32_t least = lines / t->n_rows, more = lines % t->n_rows;
    sl_add_rows_32(t, w, 0, more, least + 1, 2, dtype, strips, acc);
    sl_add_rows_32(t, w, more, t->n_rows, least, 2, dtype, strips, acc);
}

#endif
