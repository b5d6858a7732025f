/* Blocks of 256 with one or two rows: weights are used as they lie, one column after the other;
 * 8 columns' sums become one vector once a block. */
#include "kernel/avx2/int8.h"

/* Scales of parts 0..7 in the low 8 bytes, minima in the high ones. */
SL_INLINE __m128i scales_and_minima(const uint8_t *p) {
    uint32_t a, b, c;
    memcpy(&a, p, 4), memcpy(&b, p + 4, 4), memcpy(&c, p + 8, 4);
    return _mm_setr_epi32(
        (int)(a & 0x3f3f3f3fu), (int)((c & 0x0f0f0f0fu) | (a >> 6 & 0x03030303u) << 4),
        (int)(b & 0x3f3f3f3fu), (int)((c >> 4 & 0x0f0f0f0fu) | (b >> 6 & 0x03030303u) << 4));
}

/* 16-bit value s of both halves of v, everywhere. */
SL_INLINE __m256i everywhere(__m256i v, int s) {
    return _mm256_shuffle_epi8(v, _mm256_set1_epi16((short)(2 * s | (2 * s + 1) << 8)));
}

/* A column's products with R rows: sum[r] += scale * codes, low[r] += min * sums. */
SL_INLINE void column_45(const uint8_t *w, const uint8_t *const *x, const __m128i *xs,
                         const uint32_t R, sl_dtype dtype, __m256i *sum, __m128i *low) {
    const __m256i four = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16);
    __m128i sm = scales_and_minima(w + 4);
    __m128i s8 = _mm_cvtepu8_epi16(sm), m8 = _mm_unpackhi_epi8(sm, _mm_setzero_si128());
    __m256i scale = _mm256_broadcastsi128_si256(s8);
    __m256i high = dtype == SL_Q5_K ? sl_load(w + 16) : _mm256_setzero_si256();
    const uint8_t *code = w + (dtype == SL_Q5_K ? 48 : 16);
#pragma GCC unroll 2
    for (uint32_t r = 0; r < R; r++) {
        sum[r] = _mm256_setzero_si256();
        low[r] = _mm_madd_epi16(m8, xs[r]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m256i v = sl_load(code + 32 * j);
        __m256i a = _mm256_and_si256(v, four);
        __m256i b = _mm256_and_si256(_mm256_srli_epi16(v, 4), four);
        if (dtype == SL_Q5_K) {
            __m256i bits = _mm256_srli_epi16(high, 2 * j);
            a = _mm256_or_si256(a, _mm256_and_si256(_mm256_slli_epi16(bits, 4), fifth));
            b = _mm256_or_si256(b, _mm256_and_si256(_mm256_slli_epi16(bits, 3), fifth));
        }
#pragma GCC unroll 2
        for (uint32_t r = 0; r < R; r++) {
            __m256i pa = _mm256_maddubs_epi16(a, sl_load(x[r] + 64 * j));
            __m256i pb = _mm256_maddubs_epi16(b, sl_load(x[r] + 64 * j + 32));
            pa = _mm256_madd_epi16(pa, everywhere(scale, 2 * j));
            pb = _mm256_madd_epi16(pb, everywhere(scale, 2 * j + 1));
            sum[r] = _mm256_add_epi32(sum[r], _mm256_add_epi32(pa, pb));
        }
    }
}

/* Q6_K with codes 0..63 and the offset taken away: sum[r] is complete. */
SL_INLINE void column_6(const uint8_t *w, const uint8_t *const *x, const int16_t *const *xs,
                        const uint32_t R, __m256i *sum) {
    const __m256i four = _mm256_set1_epi8(15), top = _mm256_set1_epi8(48);
    __m256i scale = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(w + 192)));
#pragma GCC unroll 2
    for (uint32_t r = 0; r < R; r++) {
        __m256i off = _mm256_slli_epi32(_mm256_madd_epi16(scale, sl_load(xs[r])), 5);
        sum[r] = _mm256_sub_epi32(_mm256_setzero_si256(), off);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        __m256i a = sl_load(w + 64 * h), b = sl_load(w + 64 * h + 32),
                t = sl_load(w + 128 + 32 * h);
        const __m256i v[4] = {
            _mm256_or_si256(_mm256_and_si256(a, four),
                            _mm256_and_si256(_mm256_slli_epi16(t, 4), top)),
            _mm256_or_si256(_mm256_and_si256(b, four),
                            _mm256_and_si256(_mm256_slli_epi16(t, 2), top)),
            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), four),
                            _mm256_and_si256(t, top)),
            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b, 4), four),
                            _mm256_and_si256(_mm256_srli_epi16(t, 2), top)),
        };
        __m128i s8 = h ? _mm256_extracti128_si256(scale, 1) : _mm256_castsi256_si128(scale);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            /* the first 16 values have one scale, the others the next */
            const __m256i at =
                _mm256_setr_epi64x(0x0101010101010101 * (4 * j) + 0x0100010001000100,
                                   0x0101010101010101 * (4 * j) + 0x0100010001000100,
                                   0x0101010101010101 * (4 * j + 2) + 0x0100010001000100,
                                   0x0101010101010101 * (4 * j + 2) + 0x0100010001000100);
            __m256i sc = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(s8), at);
#pragma GCC unroll 2
            for (uint32_t r = 0; r < R; r++) {
                __m256i p = _mm256_maddubs_epi16(v[j], sl_load(x[r] + 128 * h + 32 * j));
                sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(p, sc));
            }
        }
    }
}

SL_INLINE __m128i sums_32(const int16_t *sum16) {
    __m256i s = _mm256_madd_epi16(sl_load(sum16), _mm256_set1_epi16(1));
    return _mm_packs_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
}

/* The sums of 8 columns in lanes of 128 bits, four to a vector. */
SL_INLINE __m256i low_sum8(const __m128i *p) {
    __m256i v[4], a[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(p[i]), p[4 + i], 1);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        a[i] = _mm256_add_epi32(_mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                                _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a[0], a[1]), _mm256_unpackhi_epi64(a[0], a[1]));
}

/* One block of 8 columns and R rows onto their chains. */
SL_INLINE void few_block(const sl_int8_tile *t, const sl_strip_src *src, uint32_t b,
                         const uint32_t R, sl_dtype dtype, __m256 *acc) {
    const size_t at = (size_t)b * sl_dtype_block_bytes(dtype);
    __m256i sum[2][8];
    __m128i low[2][8], xs32[2];
    const uint8_t *x[2];
    const int16_t *xs[2];
#pragma GCC unroll 2
    for (uint32_t r = 0; r < R; r++) {
        x[r] = t->x[r] + b * 256;
        xs[r] = sl_act_sums(SL_ACT_256, t->x[r], t->k) + b * 16;
        xs32[r] = sums_32(xs[r]);
    }
    for (int c = 0; c < 8; c++) {
        __m256i s[2];
        __m128i l[2];
        if (dtype == SL_Q6_K)
            column_6(src->row[c] + at, x, xs, R, s);
        else
            column_45(src->row[c] + at, x, xs32, R, dtype, s, l);
#pragma GCC unroll 2
        for (uint32_t r = 0; r < R; r++) {
            sum[r][c] = s[r];
            if (dtype != SL_Q6_K) low[r][c] = l[r];
        }
    }
    __m256 d = sl_load_d(src, at + (dtype == SL_Q6_K ? 208 : 0));
    __m256 dmin = dtype == SL_Q6_K ? d : sl_load_d(src, at + 2);
#pragma GCC unroll 2
    for (uint32_t r = 0; r < R; r++) {
        float dx = sl_act_scales(t->x[r], t->k)[b];
        acc[r] = sl_add_block(d, dx, sl_sum8(sum[r]), acc[r]);
        if (dtype != SL_Q6_K) {
            __m256 m = _mm256_mul_ps(dmin, _mm256_set1_ps(dx));
            acc[r] = _mm256_fnmadd_ps(m, _mm256_cvtepi32_ps(low_sum8(low[r])), acc[r]);
        }
    }
}

SL_INLINE void few_rows(const sl_int8_tile *t, const uint32_t R, sl_dtype dtype) {
    const size_t row_bytes = sl_dtype_row_bytes(dtype, t->k), bytes = sl_dtype_block_bytes(dtype);
    for (uint32_t c0 = 0; c0 < t->n_cols; c0 += 8) {
        sl_strip_src src = sl_strip_at(t, c0, 0);
        __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (uint32_t b = 0; b < t->k / 256; b++) {
            for (int c = 0; c < 8; c++)
                for (size_t i = 0; i < bytes; i += 64)
                    _mm_prefetch((const char *)src.row[c] + 8 * row_bytes + b * bytes + i,
                                 _MM_HINT_T0);
            few_block(t, &src, b, R, dtype, acc);
        }
        for (uint32_t r = 0; r < R; r++) {
            float y[8];
            _mm256_storeu_ps(y, acc[r]);
            memcpy(t->y + (size_t)r * t->y_stride + c0, y, SL_MIN(8, t->n_cols - c0) * sizeof *y);
        }
    }
}

#define FEW(name, dtype)                                                                           \
    static void name(const sl_int8_tile *t) {                                                      \
        if (t->n_rows == 1)                                                                        \
            few_rows(t, 1, dtype);                                                                 \
        else                                                                                       \
            few_rows(t, 2, dtype);                                                                 \
    }

FEW(few_q4_k, SL_Q4_K)
FEW(few_q5_k, SL_Q5_K)
FEW(few_q6_k, SL_Q6_K)

void sl_avx2_int8_few_256(const sl_int8_tile *t) {
    if (t->dtype == SL_Q4_K)
        few_q4_k(t);
    else if (t->dtype == SL_Q5_K)
        few_q5_k(t);
    else
        few_q6_k(t);
}
