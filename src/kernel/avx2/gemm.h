/* What the f32 products of few rows (avx2_gemm.c) and of many (avx2_gemm_many.c) share: the two
 * halves of 16 virtual lanes, 8 lanes each. Which lanes a half holds is free as long as the tree at
 * the end pairs the right ones:
 *   f32, f16: half 0 = lanes 0..7, half 1 = lanes 8..15
 *   bf16:     half 0 = even lanes, half 1 = odd lanes, because a 32-bit word of two bf16 values
 * gives the even one by a shift and the odd one by a mask
 * Activations are packed in the same order, zero-padded to 16, so one loop serves every type. */
#ifndef SL_KERNEL_AVX2_GEMM_H
#define SL_KERNEL_AVX2_GEMM_H

#include "kernel/avx2/avx2.h"
#include "kernel/scalar.h"

#include <immintrin.h>

/* Read anew at each step: as a loop invariant it would take the sixteenth register from the chains.
 */
_Alignas(32) static const uint32_t sl_odd_mask[8] = {
    0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
    0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
};

SL_INLINE __m256i sl_w_mask(void) {
    const uint32_t *p = sl_odd_mask;
    __asm__("" : "+r"(p));
    return _mm256_load_si256((const __m256i *)p);
}

/* One half of 16 weights at w; mask is sl_w_mask(). */
SL_INLINE __m256 sl_w_load(const uint8_t *w, sl_dtype dtype, uint32_t half, __m256i mask) {
    if (dtype == SL_F32) return _mm256_loadu_ps((const float *)(w + half * 32));
    if (dtype == SL_F16) return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(w + half * 16)));
    __m256i v = _mm256_loadu_si256((const __m256i *)w);
    v = half ? _mm256_and_si256(v, mask) : _mm256_slli_epi32(v, 16);
    return _mm256_castsi256_ps(v);
}

/* Sixteen activations in the order of the two halves. */
SL_INLINE void sl_x_pack_step(const float *src, sl_dtype dtype, float *h0, float *h1) {
    __m256 a, b;
    if (dtype == SL_BF16) {
        const __m256 u = _mm256_loadu2_m128(src + 8, src),
                     v = _mm256_loadu2_m128(src + 12, src + 4);
        a = _mm256_shuffle_ps(u, v, 0x88);
        b = _mm256_shuffle_ps(u, v, 0xdd);
    } else {
        a = _mm256_loadu_ps(src), b = _mm256_loadu_ps(src + 8);
    }
    _mm256_store_ps(h0, a);
    _mm256_store_ps(h1, b);
}

/* Packs steps [s0, s0 + steps) of R rows as [2][steps][R][8]; the last step may be partial. */
SL_INLINE void sl_x_pack(const float *const *x, uint32_t k, uint32_t s0, uint32_t steps,
                         const uint32_t R, sl_dtype dtype, float *out) {
    const uint32_t whole = SL_MIN(steps, k / 16 - s0);
    const size_t half = (size_t)steps * R * 8;
    for (uint32_t r = 0; r < R; r++) {
        const float *src = x[r] + (size_t)s0 * 16;
        float *h0 = out + r * 8;
        for (uint32_t s = 0; s < whole; s++, src += 16, h0 += R * 8)
            sl_x_pack_step(src, dtype, h0, h0 + half);
        if (whole == steps) continue;
        float pad[16] = {0};
        memcpy(pad, src, k % 16 * sizeof(float));
        sl_x_pack_step(pad, dtype, h0, h0 + half);
    }
}

/* Products of plain weights for tiles of whose rows groups of four and three can be made. With
 * three or four rows all of k has to be packed at once: else hints would come too late. */
#define SL_MANY_K 2048u
SL_INLINE bool sl_gemm_is_many(const sl_gemm_tile *t) {
    return t->n_rows >= 6 || ((t->n_rows == 3 || t->n_rows == 4) && t->k <= SL_MANY_K);
}
void sl_avx2_gemm_many(const sl_gemm_tile *t);

#endif
