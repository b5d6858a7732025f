/* Pieces of the integer products, for avx2_int8*.c.
 *
 * Many rows of activations: strips of 8 weight rows by 256 values are put into the order
 * that the products want, 4 values (a quad) of each of the 8 columns to a vector, and stay in L1
 * for all rows. Few rows: the weights are used as they lie, and the sums of 8 columns are turned
 * into one vector together. Sums of integers are exact, so both give the same bits. */
#ifndef SL_KERNEL_AVX2_INT8_H
#define SL_KERNEL_AVX2_INT8_H

#include "kernel/avx2/avx2.h"
#include "kernel/scalar.h"
#include "quant/act.h"
#include "quant/block.h"

#include <immintrin.h>

/* Eight weight rows of a tile. */
typedef struct sl_strip_src {
    const uint8_t *row[8];
} sl_strip_src;

SL_INLINE sl_strip_src sl_strip_at(const sl_act_tile *t, uint32_t c0, uint32_t k0) {
    sl_strip_src s;
    for (uint32_t c = 0; c < 8; c++) s.row[c] = sl_tile_row(t, c0 + c, k0);
    return s;
}

SL_INLINE __m256i sl_load(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

/* Asks for the bytes after these `bytes`: the strip's next block of k. */
SL_INLINE void sl_prefetch_strip(const sl_strip_src *s, size_t bytes) {
    for (uint32_t c = 0; c < 8; c++)
        for (size_t i = 0; i < bytes; i += 64)
            _mm_prefetch((const char *)s->row[c] + bytes + i, _MM_HINT_T0);
}

/* Four codes to all columns. */
SL_INLINE __m256i sl_quad(const void *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

/* v[c] lane q becomes v[q] lane c. */
SL_INLINE void sl_transpose8(__m256i *v) {
    __m256i a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

/* Bytes at..at+31 of 8 weight rows as 8 vectors of quads. */
SL_INLINE void sl_load_quads(const sl_strip_src *s, size_t at, __m256i *v) {
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) v[c] = sl_load(s->row[c] + at);
    sl_transpose8(v);
}

/* f16 at byte `at` of 8 weight rows. */
SL_INLINE __m256 sl_load_d(const sl_strip_src *s, size_t at) {
    uint16_t h[8];
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) memcpy(&h[c], s->row[c] + at, 2);
    return _mm256_cvtph_ps(_mm_setr_epi16((short)h[0], (short)h[1], (short)h[2], (short)h[3],
                                          (short)h[4], (short)h[5], (short)h[6], (short)h[7]));
}

/* 2^(e - 128) of 8 bytes e, as sl_mxfp4_half_scale. */
SL_INLINE __m256 sl_half_scales(__m256i e) {
    const __m256i one = _mm256_set1_epi32(1), least = _mm256_set1_epi32(0x00200000);
    const __m256i high = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    return _mm256_castsi256_ps(
        _mm256_blendv_epi8(_mm256_sllv_epi32(least, e), high, _mm256_cmpgt_epi32(e, one)));
}

/* Scales of blocks of 32 at byte `at` of 8 weight rows. */
SL_INLINE __m256 sl_load_d_32(const sl_strip_src *s, size_t at, sl_dtype dtype) {
    uint8_t e[8];
    if (dtype != SL_MXFP4) return sl_load_d(s, at);
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) e[c] = s->row[c][at];
    return sl_half_scales(_mm256_cvtepu8_epi32(
        _mm_setr_epi8((char)e[0], (char)e[1], (char)e[2], (char)e[3], (char)e[4], (char)e[5],
                      (char)e[6], (char)e[7], 0, 0, 0, 0, 0, 0, 0, 0)));
}

/* Lane c of the result is the sum of the lanes of p[c]. */
SL_INLINE __m256i sl_sum8(const __m256i *p) {
    __m256i a[4], b[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        a[i] = _mm256_add_epi32(_mm256_unpacklo_epi32(p[2 * i], p[2 * i + 1]),
                                _mm256_unpackhi_epi32(p[2 * i], p[2 * i + 1]));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        b[i] = _mm256_add_epi32(_mm256_unpacklo_epi64(a[2 * i], a[2 * i + 1]),
                                _mm256_unpackhi_epi64(a[2 * i], a[2 * i + 1]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(b[0], b[1], 0x20),
                            _mm256_permute2x128_si256(b[0], b[1], 0x31));
}

/* acc = fma(d * dx, sum, acc) */
SL_INLINE __m256 sl_add_block(__m256 d, float dx, __m256i sum, __m256 acc) {
    return _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_set1_ps(dx)), _mm256_cvtepi32_ps(sum), acc);
}

void sl_avx2_int8_tile_32(const sl_act_tile *t);  /* Q8_0, Q4_0, MXFP4 */
void sl_avx2_int8_tile_256(const sl_act_tile *t); /* Q4_K, Q5_K, Q6_K */
void sl_avx2_int8_few_256(const sl_act_tile *t);

/* The first n_cols of each row of `acc`, SL_TILE_COLS apart, to the tile's y. */
static inline void sl_avx2_int8_store(const sl_act_tile *t, const float *acc) {
    for (uint32_t r = 0; r < t->n_rows; r++)
        memcpy(t->y + (size_t)r * t->y_stride, acc + (size_t)r * SL_TILE_COLS,
               t->n_cols * sizeof *acc);
}

#endif
