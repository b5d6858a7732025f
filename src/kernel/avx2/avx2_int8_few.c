/* Blocks of 256 with few rows: weights are used as they lie, one column after the other; scales are
 * unpacked for 8 columns at once, and 8 columns' sums become one vector once a block.
 *
 * Tried on Zen 3, no faster: products of two columns joined in 16 bits before they are widened
 * (shuffles cost what the products save), scales unpacked one block ahead of their use. */
#include "kernel/avx2/int8_256.h"

#define MAX_R 6u

/* A block of 8 columns and R rows. */
typedef struct part {
    const uint8_t *x[MAX_R]; /* codes */
    /* sums of codes: Q6_K of 16, negated, the even ones first; else as sl_sums_32 */
    _Alignas(32) int16_t xs[MAX_R][16];
    _Alignas(32) uint32_t scale[8][8]; /* [part][column], twice as 16 bits; not Q6_K */
    __m256i sum[MAX_R][8];             /* [row][column] */
} part;

/* Where a block's codes are, anew for each column: or the compiler would keep copies of them all.
 */
SL_INLINE void rows_of(const part *p, const uint32_t R, const uint8_t **x) {
#pragma GCC unroll 6
    for (uint32_t r = 0; r < R; r++) {
        x[r] = p->x[r];
        __asm__("" : "+r"(x[r]));
    }
}

/* A column's products: sum[r] = scale * codes. */
SL_INLINE void column_45(const uint8_t *w, part *p, uint32_t c, const uint32_t R, sl_dtype dtype) {
    const uint8_t *x[MAX_R], *code = w + (dtype == SL_Q5_K ? 48 : 16);
    const __m256i four = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16);
    __m256i high = dtype == SL_Q5_K ? sl_load(w + 16) : _mm256_setzero_si256(), sum[MAX_R];
    rows_of(p, R, x);
#pragma GCC unroll 4
    for (uint32_t j = 0; j < 4; j++) {
        __m256i v = sl_load(code + 32 * j);
        SL_KEEP(v);
        __m256i a = _mm256_and_si256(v, four);
        __m256i b = _mm256_and_si256(_mm256_srli_epi16(v, 4), four);
        if (dtype == SL_Q5_K) {
            __m256i bits = _mm256_srli_epi16(high, 2 * (int)j);
            a = _mm256_or_si256(a, _mm256_and_si256(_mm256_slli_epi16(bits, 4), fifth));
            b = _mm256_or_si256(b, _mm256_and_si256(_mm256_slli_epi16(bits, 3), fifth));
        }
        __m256i sa = sl_quad(&p->scale[2 * j][c]), sb = sl_quad(&p->scale[2 * j + 1][c]);
#pragma GCC unroll 6
        for (uint32_t r = 0; r < R; r++) {
            __m256i pa = _mm256_maddubs_epi16(a, sl_load(x[r] + 64 * j));
            __m256i pb = _mm256_maddubs_epi16(b, sl_load(x[r] + 64 * j + 32));
            pa = _mm256_madd_epi16(pa, sa), pb = _mm256_madd_epi16(pb, sb);
            sum[r] = j == 0 ? pa : _mm256_add_epi32(sum[r], pa);
            sum[r] = _mm256_add_epi32(sum[r], pb);
            SL_KEEP(sum[r]);
        }
    }
#pragma GCC unroll 6
    for (uint32_t r = 0; r < R; r++) p->sum[r][c] = sum[r];
}

/* The four vectors of 32 codes of half h of a block of Q6_K, as 0..63. */
SL_INLINE void codes_6(const uint8_t *w, uint32_t h, __m256i *v) {
    const __m256i four = _mm256_set1_epi8(15), top = _mm256_set1_epi8(48);
    __m256i a = sl_load(w + 64 * h), b = sl_load(w + 64 * h + 32), t = sl_load(w + 128 + 32 * h);
    v[0] =
        _mm256_or_si256(_mm256_and_si256(a, four), _mm256_and_si256(_mm256_slli_epi16(t, 4), top));
    v[1] =
        _mm256_or_si256(_mm256_and_si256(b, four), _mm256_and_si256(_mm256_slli_epi16(t, 2), top));
    v[2] =
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), four), _mm256_and_si256(t, top));
    v[3] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b, 4), four),
                           _mm256_and_si256(_mm256_srli_epi16(t, 2), top));
}

/* Q6_K with codes 0..63, and the offset of 32 taken away. */
SL_INLINE void column_6(const uint8_t *w, part *p, uint32_t c, const uint32_t R) {
    const uint8_t *x[MAX_R];
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    __m128i s8 = _mm_loadu_si128((const __m128i *)(w + 192));
    /* the first 16 of 32 values have one scale, the others the next */
    __m256i scale = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(s8, order)), sum[MAX_R];
    rows_of(p, R, x);
#pragma GCC unroll 6
    for (uint32_t r = 0; r < R; r++)
        sum[r] = _mm256_slli_epi32(_mm256_madd_epi16(scale, sl_load(p->xs[r])), 5);
#pragma GCC unroll 2
    for (uint32_t h = 0; h < 2; h++) {
        __m256i v[4];
        codes_6(w, h, v);
#pragma GCC unroll 4
        for (uint32_t j = 0; j < 4; j++) {
            const int i = 2 * (int)(4 * h + j);
            __m256i s = _mm256_shuffle_epi8(scale, _mm256_set1_epi16((short)(i | (i + 1) << 8)));
#pragma GCC unroll 6
            for (uint32_t r = 0; r < R; r++) {
                __m256i q = _mm256_maddubs_epi16(v[j], sl_load(x[r] + 128 * h + 32 * j));
                sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(q, s));
                SL_KEEP(sum[r]);
            }
        }
    }
#pragma GCC unroll 6
    for (uint32_t r = 0; r < R; r++) p->sum[r][c] = sum[r];
}

/* Block b of R rows: where the codes are, and their sums. */
SL_INLINE void part_of(const sl_act_tile *t, uint32_t b, const uint32_t R, sl_dtype dtype,
                       part *p) {
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
#pragma GCC unroll 6
    for (uint32_t r = 0; r < R; r++) {
        const int16_t *s = sl_act_sums(SL_ACT_256, t->x[r], t->k) + b * 16;
        p->x[r] = t->x[r] + b * 256;
        if (dtype == SL_Q6_K) {
            __m256i v =
                _mm256_shuffle_epi8(_mm256_sub_epi16(_mm256_setzero_si256(), sl_load(s)), order);
            _mm256_store_si256((__m256i *)p->xs[r], _mm256_permute4x64_epi64(v, 0xd8));
        } else {
            _mm_store_si128((__m128i *)p->xs[r], sl_sums_32(s));
        }
    }
}

/* One block of 8 columns and R rows onto their chains. */
SL_INLINE void few_block(const sl_act_tile *t, const sl_strip_src *src, uint32_t b,
                         const uint32_t R, sl_dtype dtype, __m256 *acc) {
    const size_t at = (size_t)b * sl_dtype_block_bytes(dtype);
    sl_head_45 head;
    part p;
    part_of(t, b, R, dtype, &p);
    if (dtype != SL_Q6_K) {
        head = sl_load_head_45(src, at);
#pragma GCC unroll 8
        for (int s = 0; s < 8; s++)
            _mm256_store_si256((__m256i *)p.scale[s], sl_twice(head.scale[s / 4], s % 4));
    }
    for (uint32_t c = 0; c < 8; c++) {
        if (dtype == SL_Q6_K)
            column_6(src->row[c] + at, &p, c, R);
        else
            column_45(src->row[c] + at, &p, c, R, dtype);
    }
    __m256 d = dtype == SL_Q6_K ? sl_load_d(src, at + 208) : head.d;
#pragma GCC unroll 6
    for (uint32_t r = 0; r < R; r++) {
        float dx = sl_act_scales(t->x[r], t->k)[b];
        acc[r] = sl_add_block(d, dx, sl_sum8(p.sum[r]), acc[r]);
        if (dtype != SL_Q6_K) {
            __m256 m = _mm256_mul_ps(head.dmin, _mm256_set1_ps(dx));
            __m256i low = sl_low_sums(head.min, p.xs[r]);
            acc[r] = _mm256_fnmadd_ps(m, _mm256_cvtepi32_ps(low), acc[r]);
        }
    }
}

SL_INLINE void few_rows(const sl_act_tile *t, const uint32_t R, sl_dtype dtype) {
    const size_t bytes = sl_dtype_block_bytes(dtype);
    /* a tile starts cold */
    sl_prefetch_bytes(t->w, SL_MIN(8, t->n_cols) * sl_dtype_row_bytes(dtype, t->k));
    for (uint32_t c0 = 0; c0 < t->n_cols; c0 += 8) {
        sl_strip_src src = sl_strip_at(t, c0, 0);
        const uint8_t *after = sl_tile_rows_after(t, c0, 8);
        __m256 acc[MAX_R];
#pragma GCC unroll 6
        for (uint32_t r = 0; r < R; r++) acc[r] = _mm256_setzero_ps();
        for (uint32_t b = 0; b < t->k / 256; b++) {
            sl_prefetch_bytes(after + b * 8 * bytes, 8 * bytes);
            few_block(t, &src, b, R, dtype, acc);
        }
#pragma GCC unroll 6
        for (uint32_t r = 0; r < R; r++) {
            float y[8];
            _mm256_storeu_ps(y, acc[r]);
            memcpy(t->y + (size_t)r * t->y_stride + c0, y, SL_MIN(8, t->n_cols - c0) * sizeof *y);
        }
    }
}

#define ROWS(R, dtype)                                                                             \
    case R:                                                                                        \
        if (R <= SL_FEW_ROWS(dtype)) few_rows(t, R, dtype);                                        \
        return
#define FEW(name, dtype)                                                                           \
    static void name(const sl_act_tile *t) {                                                       \
        switch (t->n_rows) {                                                                       \
            ROWS(1, dtype);                                                                        \
            ROWS(2, dtype);                                                                        \
            ROWS(3, dtype);                                                                        \
            ROWS(4, dtype);                                                                        \
            ROWS(5, dtype);                                                                        \
            ROWS(6, dtype);                                                                        \
        }                                                                                          \
    }

FEW(few_q4_k, SL_Q4_K)
FEW(few_q5_k, SL_Q5_K)
FEW(few_q6_k, SL_Q6_K)

void sl_avx2_int8_few_256(const sl_act_tile *t) {
    if (t->dtype == SL_Q4_K)
        few_q4_k(t);
    else if (t->dtype == SL_Q5_K)
        few_q5_k(t);
    else
        few_q6_k(t);
}
