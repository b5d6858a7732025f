/* Integer products of weights in strips (quant/strips.h) by AVX2: half a line has the same four
 * codes of eight columns, which meet four codes of a row in vpmaddubsw. Codes of few bits are added
 * up in 16 bits for as long as they cannot overflow; blocks of 256 then meet their scale in
 * vpmaddwd, which makes 32 bits of both halves of a column. */
#include "kernel/avx2/int8.h"
#include "kernel/strip_steps.h"

#define COLS 8u  /* half a strip */
#define HALF 32u /* bytes of a line */
#define LINE 64u
#define FEW  4u    /* rows side by side */
#define FAR  4352u /* bytes behind a block that are asked for */

SL_INLINE __m256i low_of(__m256i v) {
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}

SL_INLINE __m256i high_of(__m256i v) {
    return low_of(_mm256_srli_epi16(v, 4));
}

/* Eight f16 from the low or, srl = 16, the high half of words. */
SL_INLINE __m256 halves(__m256i v, int srl) {
    v = _mm256_and_si256(_mm256_srl_epi32(v, _mm_cvtsi32_si128(srl)), _mm256_set1_epi32(0xffff));
    v = _mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(v));
}

/* acc = fma(d * dx, sum, acc) */
SL_INLINE __m256 add_block(__m256 d, __m256 dx, __m256i sum, __m256 acc) {
    return _mm256_fmadd_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(sum), acc);
}

/* Lines that come FAR behind p, while what lies there is worked on. */
SL_INLINE void ask(const uint8_t *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += LINE) _mm_prefetch((const char *)p + FAR + i, _MM_HINT_T0);
}

/* ---- blocks of 32 ---- */

/* A block of eight columns. */
typedef struct block32 {
    const uint8_t *lines; /* of its half */
    __m256 d;
    uint32_t b;
} block32;

/* The sums of a block of Q8_0 with R rows; x: their codes. */
SL_INLINE void sums_q8_0(const uint8_t *lines, const uint8_t *const *x, const uint32_t R,
                         __m256i *sum) {
    const __m256i one = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 8; i++) {
        const __m256i w = sl_load(lines + LINE * i), size = _mm256_abs_epi8(w);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; r++) {
            const __m256i v = _mm256_sign_epi8(sl_quad(x[r] + 4 * i), w);
            sum[r] =
                _mm256_add_epi32(sum[r], _mm256_madd_epi16(_mm256_maddubs_epi16(size, v), one));
        }
    }
}

/* The same of Q4_0, 8 above their value: eight products of 15 and 127 stay in 16 bits. */
SL_INLINE void sums_q4_0(const uint8_t *lines, const uint8_t *const *x, const uint32_t R,
                         __m256i *sum) {
    __m256i half[FEW];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) half[r] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++) {
        const __m256i v = sl_load(lines + LINE * i), low = low_of(v), up = high_of(v);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; r++) {
            const __m256i a = _mm256_maddubs_epi16(low, sl_quad(x[r] + 4 * i));
            const __m256i b = _mm256_maddubs_epi16(up, sl_quad(x[r] + 16 + 4 * i));
            half[r] = _mm256_add_epi16(half[r], _mm256_add_epi16(a, b));
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++)
        sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(half[r], _mm256_set1_epi16(1)));
}

SL_INLINE void add_block32(const sl_act_tile *t, const block32 *w, uint32_t r0, const uint32_t R,
                           sl_dtype dtype, __m256 *acc) {
    const uint8_t *x[FEW];
    __m256i sum[FEW];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) {
        x[r] = t->x[r0 + r] + (size_t)w->b * 32;
        const int16_t *of = sl_act_sums(SL_ACT_32, t->x[r0 + r], t->k);
        sum[r] = dtype == SL_Q8_0 ? _mm256_setzero_si256() : _mm256_set1_epi32(-8 * of[w->b]);
    }
    if (dtype == SL_Q8_0)
        sums_q8_0(w->lines, x, R, sum);
    else
        sums_q4_0(w->lines, x, R, sum);
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) {
        const float dx = sl_act_scales(t->x[r0 + r], t->k)[w->b];
        acc[r] = add_block(w->d, _mm256_set1_ps(dx), sum[r], acc[r]);
    }
}

/* Block b of half a strip: of a pair, or the last one. */
SL_INLINE block32 find_32(const uint8_t *strip, uint32_t half, uint32_t b, uint32_t all,
                          sl_dtype dtype) {
    const size_t bytes = SL_STRIP_ROWS * sl_dtype_block_bytes(dtype);
    const uint8_t *pair = strip + (b & ~1u) * bytes;
    if (b % 2 == 0 && b + 1 == all)
        return (block32){pair + 32 + half * HALF,
                         _mm256_cvtph_ps(_mm_loadu_si128((const void *)(pair + 16 * half))), b};
    const uint8_t *lines = pair + LINE + b % 2 * (bytes - 2 * SL_STRIP_ROWS);
    return (block32){lines + half * HALF, halves(sl_load(pair + half * HALF), b % 2 * 16), b};
}

/* Half a strip with R rows. */
SL_INLINE void half_32(const sl_act_tile *t, const uint8_t *strip, uint32_t half, uint32_t r0,
                       const uint32_t R, sl_dtype dtype, __m256 *acc) {
    const uint32_t all = t->k / 32;
    for (uint32_t b = 0; b < all; b++) {
        const block32 w = find_32(strip, half, b, all, dtype);
        if (half == 0 && r0 == 0) ask(w.lines, SL_STRIP_ROWS * sl_dtype_block_bytes(dtype));
        add_block32(t, &w, r0, R, dtype, acc);
    }
}

/* ---- blocks of 256 ---- */

/* A block of eight columns: scales as two equal numbers of 16 bits for each, minima as in
 * sl_strips' heads: of parts 0 and 2, 1 and 3, 4 and 6, 5 and 7. */
typedef struct block256 {
    const uint8_t *codes, *high; /* lines of its half */
    __m256i scale[16], min[4];
    __m256 d, dmin;
    uint32_t b;
} block256;

SL_INLINE __m256i twice(__m256i v) {
    return _mm256_or_si256(v, _mm256_slli_epi32(v, 16));
}

SL_INLINE void head_45(const uint8_t *p, block256 *w) {
    const __m256i six = _mm256_set1_epi8(63), upper = _mm256_set1_epi8(48);
    const __m256i even = _mm256_set1_epi16(255), byte = _mm256_set1_epi32(255);
    __m256i v[4];
    for (uint32_t i = 0; i < 4; i++) v[i] = sl_load(p + LINE * i);
    w->d = halves(v[0], 0), w->dmin = halves(v[0], 16);
    const __m256i s0 = _mm256_and_si256(v[1], six), m0 = _mm256_and_si256(v[2], six);
    const __m256i s1 =
        _mm256_or_si256(low_of(v[3]), _mm256_and_si256(_mm256_srli_epi16(v[1], 2), upper));
    const __m256i m1 =
        _mm256_or_si256(high_of(v[3]), _mm256_and_si256(_mm256_srli_epi16(v[2], 2), upper));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        w->scale[i] = twice(_mm256_and_si256(_mm256_srli_epi32(s0, 8 * i), byte));
        w->scale[4 + i] = twice(_mm256_and_si256(_mm256_srli_epi32(s1, 8 * i), byte));
    }
    w->min[0] = _mm256_and_si256(m0, even), w->min[1] = _mm256_srli_epi16(m0, 8);
    w->min[2] = _mm256_and_si256(m1, even), w->min[3] = _mm256_srli_epi16(m1, 8);
}

SL_INLINE void head_6(const uint8_t *p, block256 *w) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        const __m256i v = _mm256_slli_epi32(sl_load(p + LINE * (i / 4)), 24 - i % 4 * 8);
        w->scale[i] = _mm256_blend_epi16(_mm256_srli_epi32(_mm256_srai_epi32(v, 8), 16),
                                         _mm256_srai_epi32(v, 8), 0xaa);
    }
}

/* Block b of half a strip. Of a pair of Q6_K both scales are in a line before the first. */
SL_INLINE void find_256(const uint8_t *strip, uint32_t half, uint32_t b, uint32_t all,
                        sl_dtype dtype, block256 *w) {
    const size_t bytes = SL_STRIP_ROWS * sl_dtype_block_bytes(dtype);
    const uint8_t *at = strip + b * bytes;
    w->b = b;
    if (dtype == SL_Q6_K) {
        const uint8_t *pair = at - b % 2 * bytes;
        const bool alone = b % 2 == 0 && b + 1 == all;
        w->d = alone ? _mm256_cvtph_ps(_mm_loadu_si128((const void *)(at + 16 * half)))
                     : halves(sl_load(pair + half * HALF), b % 2 * 16);
        at += alone || b % 2 ? 32 : 64;
    }
    at += half * HALF;
    w->codes = at + LINE * sl_strip_codes(dtype), w->high = at + LINE * sl_strip_high(dtype);
    if (dtype == SL_Q6_K)
        head_6(at + LINE * sl_strip_head(dtype), w);
    else
        head_45(at + LINE * sl_strip_head(dtype), w);
}

SL_INLINE void unpack(const block256 *w, uint32_t step, const uint32_t i, sl_dtype dtype,
                      __m256i *low, __m256i *up) {
    const __m256i fifth = _mm256_set1_epi8(16), top = _mm256_set1_epi8(48);
    const uint32_t at = sl_strip_high_line(dtype, step, i);
    const __m128i down = _mm_cvtsi32_si128((int)sl_strip_high_shift(dtype, step));
    const __m256i v = sl_load(w->codes + (step * (32 / sl_strip_steps(dtype)) + i) * LINE);
    *low = low_of(v), *up = high_of(v);
    if (dtype == SL_Q5_K) {
        const __m256i bits = _mm256_srl_epi16(sl_load(w->high + LINE * at), down);
        *low = _mm256_or_si256(*low, _mm256_and_si256(_mm256_slli_epi16(bits, 4), fifth));
        *up = _mm256_or_si256(*up, _mm256_and_si256(_mm256_slli_epi16(bits, 3), fifth));
    } else if (dtype == SL_Q6_K) {
        const __m256i bits = _mm256_srl_epi16(sl_load(w->high + LINE * at), down);
        *low = _mm256_or_si256(*low, _mm256_and_si256(_mm256_slli_epi16(bits, 4), top));
        *up = _mm256_or_si256(*up, _mm256_and_si256(bits, top));
    }
}

/* Products that stay in 16 bits when they are added up: of codes up to 15, 31 and 63. */
SL_INLINE uint32_t together(sl_dtype dtype) {
    return dtype == SL_Q4_K ? 8 : dtype == SL_Q5_K ? 4 : 2;
}

/* A step with R rows, onto all[R]. */
SL_INLINE void add_step(const block256 *w, const uint8_t *const *x, uint32_t step, const uint32_t R,
                        sl_dtype dtype, __m256i *all) {
    const uint32_t part = sl_strip_part(dtype), p = sl_strip_low_part(dtype, step);
    const uint32_t up_p = sl_strip_high_part(dtype, step), up_at = (up_p - p) * part;
#pragma GCC unroll 4
    for (uint32_t i0 = 0; i0 < part / 4; i0 += together(dtype)) {
        __m256i low_sum[FEW], up_sum[FEW];
#pragma GCC unroll 8
        for (uint32_t i = 0; i < together(dtype); i++) {
            __m256i low, up;
            unpack(w, step, i0 + i, dtype, &low, &up);
#pragma GCC unroll 4
            for (uint32_t r = 0; r < R; r++) {
                const uint8_t *at = x[r] + p * part + 4 * (i0 + i);
                const __m256i a = _mm256_maddubs_epi16(low, sl_quad(at));
                const __m256i b = _mm256_maddubs_epi16(up, sl_quad(at + up_at));
                low_sum[r] = i ? _mm256_add_epi16(low_sum[r], a) : a;
                up_sum[r] = i ? _mm256_add_epi16(up_sum[r], b) : b;
            }
        }
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; r++) {
            all[r] = _mm256_add_epi32(all[r], _mm256_madd_epi16(low_sum[r], w->scale[p]));
            all[r] = _mm256_add_epi32(all[r], _mm256_madd_epi16(up_sum[r], w->scale[up_p]));
        }
    }
}

/* What a row's sums count: of Q6_K -32 times those of each part, by its scale; of the others those
 * of two parts each, by their minima. */
SL_INLINE __m256i low_sums(const sl_act_tile *t, const block256 *w, uint32_t r, sl_dtype dtype) {
    const int16_t *s = sl_act_sums(SL_ACT_256, t->x[r], t->k) + w->b * 16;
    __m256i sum = _mm256_setzero_si256();
    if (dtype == SL_Q6_K) {
#pragma GCC unroll 16
        for (uint32_t p = 0; p < 16; p++) {
            const __m256i low = _mm256_and_si256(w->scale[p], _mm256_set1_epi32(0xffff));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(low, _mm256_set1_epi16(s[p])));
        }
        return _mm256_slli_epi32(_mm256_sub_epi32(_mm256_setzero_si256(), sum), 5);
    }
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t p = i / 2 * 4 + i % 2; /* and the one after the next */
        const uint16_t a = (uint16_t)(s[2 * p] + s[2 * p + 1]);
        const uint16_t b = (uint16_t)(s[2 * p + 4] + s[2 * p + 5]);
        const __m256i of = _mm256_set1_epi32((int)((uint32_t)b << 16 | a));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(w->min[i], of));
    }
    return sum;
}

SL_INLINE void add_block256(const sl_act_tile *t, const block256 *w, uint32_t r0, const uint32_t R,
                            sl_dtype dtype, __m256 *acc) {
    const uint8_t *x[FEW];
    __m256i all[FEW];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) {
        x[r] = t->x[r0 + r] + (size_t)w->b * 256;
        all[r] = dtype == SL_Q6_K ? low_sums(t, w, r0 + r, dtype) : _mm256_setzero_si256();
    }
    for (uint32_t step = 0; step < sl_strip_steps(dtype); step++)
        add_step(w, x, step, R, dtype, all);
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) {
        const __m256 dx = _mm256_set1_ps(sl_act_scales(t->x[r0 + r], t->k)[w->b]);
        acc[r] = add_block(w->d, dx, all[r], acc[r]);
        if (dtype == SL_Q6_K) continue;
        const __m256i low = low_sums(t, w, r0 + r, dtype);
        acc[r] = _mm256_fnmadd_ps(_mm256_mul_ps(w->dmin, dx), _mm256_cvtepi32_ps(low), acc[r]);
    }
}

SL_INLINE void half_256(const sl_act_tile *t, const uint8_t *strip, uint32_t half, uint32_t r0,
                        const uint32_t R, sl_dtype dtype, __m256 *acc) {
    const uint32_t all = t->k / 256;
    block256 w;
    for (uint32_t b = 0; b < all; b++) {
        find_256(strip, half, b, all, dtype, &w);
        if (half == 0 && r0 == 0) ask(w.codes, SL_STRIP_ROWS * sl_dtype_block_bytes(dtype));
        add_block256(t, &w, r0, R, dtype, acc);
    }
}

/* ---- tiles ---- */

/* Half a strip, columns c on, with R rows. */
SL_INLINE void rows_of(const sl_act_tile *t, uint32_t c, uint32_t r0, const uint32_t R,
                       sl_dtype dtype) {
    const uint8_t *strip = (const uint8_t *)t->w + (c & ~(SL_STRIP_ROWS - 1)) * t->w_stride;
    const uint32_t half = c / COLS % 2;
    __m256 acc[FEW];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) acc[r] = _mm256_setzero_ps();
    if (sl_act_kind_of(dtype) == SL_ACT_32)
        half_32(t, strip, half, r0, R, dtype, acc);
    else
        half_256(t, strip, half, r0, R, dtype, acc);
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++)
        _mm256_storeu_ps(t->y + (size_t)(r0 + r) * t->y_stride + c, acc[r]);
}

SL_INLINE void tile_of(const sl_act_tile *t, sl_dtype dtype) {
    for (uint32_t c = 0; c < t->n_cols; c += COLS) {
        uint32_t r = 0;
        for (; r + 4 <= t->n_rows; r += 4) rows_of(t, c, r, 4, dtype);
        if (t->n_rows - r == 3) rows_of(t, c, r, 3, dtype);
        if (t->n_rows - r == 2) rows_of(t, c, r, 2, dtype);
        if (t->n_rows - r == 1) rows_of(t, c, r, 1, dtype);
    }
}

SL_TILE_FORM(tile_q8_0, tile_of, SL_Q8_0)
SL_TILE_FORM(tile_q4_0, tile_of, SL_Q4_0)
SL_TILE_FORM(tile_q4_k, tile_of, SL_Q4_K)
SL_TILE_FORM(tile_q5_k, tile_of, SL_Q5_K)
SL_TILE_FORM(tile_q6_k, tile_of, SL_Q6_K)

void sl_avx2_strip_tile(const sl_act_tile *t) {
    static void (*const forms[SL_DTYPE_COUNT])(const sl_act_tile *) = {
        [SL_Q8_0] = tile_q8_0, [SL_Q4_0] = tile_q4_0, [SL_Q4_K] = tile_q4_k,
        [SL_Q5_K] = tile_q5_k, [SL_Q6_K] = tile_q6_k,
    };
    forms[t->dtype](t);
}
