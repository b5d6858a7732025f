/* Pieces of the integer products, for avx512vnni/ and amx/, and of products of BF16 in parts.
 *
 * Sixteen weight rows (columns of the result) make a strip. Turning 16 x 16 words takes four steps
 * of shuffles, of which loads from several columns into one vector spare one or two: then a vector
 * has a quad (4 codes) of each column, which meets the same quad of the activations, broadcast, by
 * vpdpbusd. So blocks of 32 are multiplied, and blocks of 256 with many rows, which stay in L1 for
 * all rows. Blocks of 256 with few rows take two steps: a vector holds 4 columns then, its lane L
 * of 128 bits the quads 4 L + j of 64 values, the activations are spread by a shuffle within lanes,
 * and sums are sorted by column afterwards.
 *
 * vpdpbusd wants weights without a sign: Q8_0 is taken 128 above its value, and -128 times the sum
 * of the activations' codes is where its sums begin; Q4_0, MXFP4 and Q6_K likewise with 8, 12
 * and 32. Sums of integers are exact, so all forms give the same bits. */
#ifndef SL_KERNEL_AVX512_INT8_H
#define SL_KERNEL_AVX512_INT8_H

#include "kernel/avx512/ask.h"
#include "kernel/avx512/avx512.h"
#include "kernel/scalar.h"
#include "quant/act.h"
#include "quant/block.h"

#include <immintrin.h>

/* Keeps the compiler from loading a value again at each use. */
#define SL_KEEP(v) __asm__("" : "+v"(v))
/* The same of an address or a number, which would be made anew. */
#define SL_KEEP_WORD(v) __asm__("" : "+r"(v))

#define SL_STRIP  SL_STRIP_ROWS /* columns */
#define SL_STRIPS 2u            /* side by side in a register tile */

/* The weight rows of a strip. */
typedef struct sl_rows16 {
    const uint8_t *row[SL_STRIP];
} sl_rows16;

SL_INLINE sl_rows16 sl_rows_at(const sl_act_tile *t, uint32_t c0, uint32_t k0) {
    sl_rows16 s;
    for (uint32_t c = 0; c < SL_STRIP; c++) s.row[c] = sl_tile_row(t, c0 + c, k0);
    return s;
}

/* Asks for `bytes` of weights from `p` on, in the order of memory. */
SL_INLINE void sl_ask(const uint8_t *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

/* The same of what comes so late that the first cache could not hold it until then. Some lines at a
 * time: what is loaded meanwhile waits behind many. */
SL_INLINE void sl_ask_far(const uint8_t *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)p + i, _MM_HINT_T1);
}

/* How many strips of `strips` x SL_STRIP columns ahead weights are asked for. */
SL_INLINE uint32_t sl_strips_ahead(const sl_act_tile *t, uint32_t strips) {
    const size_t bytes = SL_MAX((size_t)1, strips * SL_STRIP * t->w_stride);
    return SL_MAX(1u, (uint32_t)((SL_ASK_STRIPS + bytes - 1) / bytes));
}

SL_INLINE __m512i sl_quad(const void *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}

/* First half of the turning of 16 x 16 words: v[c] word i of column c becomes v[4 g + j] lane L
 * word i: word 4 L + j of column 4 g + i. */
SL_INLINE void sl_turn_in_lanes(__m512i *v) {
    __m512i a[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        v[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
}

/* Lanes of four vectors, turned: out[L] lane i is v[i] lane L. */
SL_INLINE void sl_turn_lanes(__m512i v0, __m512i v1, __m512i v2, __m512i v3, __m512i *out,
                             const int step) {
    __m512i a = _mm512_shuffle_i32x4(v0, v1, 0x88), b = _mm512_shuffle_i32x4(v0, v1, 0xdd);
    __m512i c = _mm512_shuffle_i32x4(v2, v3, 0x88), d = _mm512_shuffle_i32x4(v2, v3, 0xdd);
    out[0] = _mm512_shuffle_i32x4(a, c, 0x88);
    out[step] = _mm512_shuffle_i32x4(b, d, 0x88);
    out[2 * step] = _mm512_shuffle_i32x4(a, c, 0xdd);
    out[3 * step] = _mm512_shuffle_i32x4(b, d, 0xdd);
}

/* 16 x 16 words: word q of v[c] becomes word c of v[q]. */
SL_INLINE void sl_turn(__m512i *v) {
    __m512i b[16];
    sl_turn_in_lanes(v);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) b[i] = v[i];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) sl_turn_lanes(b[j], b[4 + j], b[8 + j], b[12 + j], v + j, 4);
}

/* In each lane of 16 bytes: word i of v[j] is word j of p[i]. */
SL_INLINE void sl_turn_words(const __m512i *p, __m512i *v) {
    __m512i a[4];
#pragma GCC unroll 2
    for (int i = 0; i < 4; i += 2) {
        a[i] = _mm512_unpacklo_epi32(p[i], p[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(p[i], p[i + 1]);
    }
    v[0] = _mm512_unpacklo_epi64(a[0], a[2]);
    v[1] = _mm512_unpackhi_epi64(a[0], a[2]);
    v[2] = _mm512_unpacklo_epi64(a[1], a[3]);
    v[3] = _mm512_unpackhi_epi64(a[1], a[3]);
}

/* 16 bytes at `at` of each row as 4 vectors: word i of column c is lane c of v[i]. */
SL_INLINE void sl_load_words(const sl_rows16 *s, size_t at, __m512i *v) {
    __m512i p[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        p[c] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(s->row[c] + at)));
#pragma GCC unroll 3
        for (int l = 1; l < 4; l++)
            p[c] = _mm512_mask_broadcast_i32x4(
                p[c], (__mmask16)(15 << 4 * l),
                _mm_loadu_si128((const void *)(s->row[c + 4 * l] + at)));
    }
    sl_turn_words(p, v);
}

/* 64 bytes at `at` of each row, turned: word i of column c is to[i][c]. */
SL_INLINE void sl_turn_bytes(const sl_rows16 *s, size_t at, uint32_t (*to)[SL_STRIP]) {
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++) {
        __m512i v[4];
        sl_load_words(s, at + 16 * i, v);
#pragma GCC unroll 4
        for (uint32_t j = 0; j < 4; j++) _mm512_store_si512(to[4 * i + j], v[j]);
    }
}

/* f16 at byte `at` of each row. */
SL_INLINE __m512 sl_load_d(const sl_rows16 *s, size_t at) {
    uint16_t h[SL_STRIP];
#pragma GCC unroll 16
    for (uint32_t c = 0; c < SL_STRIP; c++) memcpy(&h[c], s->row[c] + at, 2);
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)h));
}

/* 2^(e - 128) of 16 bytes e, as sl_mxfp4_half_scale. */
SL_INLINE __m512 sl_half_scales(__m512i e) {
    const __m512i one = _mm512_set1_epi32(1), least = _mm512_set1_epi32(0x00200000);
    const __m512i low = _mm512_sllv_epi32(least, e);
    return _mm512_castsi512_ps(
        _mm512_mask_slli_epi32(low, _mm512_cmpgt_epi32_mask(e, one), _mm512_sub_epi32(e, one), 23));
}

/* Scales of blocks of 32 at byte `at` of each row. */
SL_INLINE __m512 sl_load_d_32(const sl_rows16 *s, size_t at, sl_dtype dtype) {
    uint8_t e[SL_STRIP];
    if (dtype != SL_MXFP4) return sl_load_d(s, at);
    for (uint32_t c = 0; c < SL_STRIP; c++) e[c] = s->row[c][at];
    return sl_half_scales(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)e)));
}

/* acc = fma(d * dx, sum, acc) */
SL_INLINE __m512 sl_add_block(__m512 d, __m512 dx, __m512i sum, __m512 acc) {
    return _mm512_fmadd_ps(_mm512_mul_ps(d, dx), _mm512_cvtepi32_ps(sum), acc);
}

/* The first n floats of v. */
SL_INLINE void sl_store_some(float *y, __m512 v, uint32_t n) {
    _mm512_mask_storeu_ps(y, (__mmask16)((1u << n) - 1), v);
}

/* By the blocks of its weights. */
SL_INLINE void sl_int8_tile_by(const sl_act_tile *t, void (*of_32)(const sl_act_tile *t),
                               void (*of_256)(const sl_act_tile *t)) {
    if (t->n_rows && t->n_cols) (sl_act_kind_of(t->dtype) == SL_ACT_32 ? of_32 : of_256)(t);
}

#endif
