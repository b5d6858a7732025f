/* Integer products with blocks of 256: Q4_K, Q5_K and Q6_K.
 *
 * Sums stay in 16 bits as long as they fit: two products of a code (at most 15, 31, 63) with 127
 * are 3810, 7874, 16002, so 8, 4 or 2 of them do. Then one vpmaddwd multiplies by the scale and
 * widens. Codes of Q6_K are taken as 0..63; the sums of the activations' codes take the offset of
 * 32 away, and give what the minima of the others are multiplied by. */
#include "kernel/avx2/int8.h"

#define MAX_R  4u
#define STRIPS 2u /* that a register tile is wide */

typedef struct strip {
    __m256i q[64];     /* quads of codes, in the order of values */
    __m256i scale[16]; /* of 32 values, Q6_K: of 16; twice a column */
    __m256i pair[8];   /* minima of two parts of 32, Q6_K: scales of two parts of 16 */
    __m256 d, dmin;
} strip;

/* Byte b of each 32-bit lane, twice, as 16 bits. */
SL_INLINE __m256i twice(__m256i v, int b) {
    const __m256i lanes = _mm256_set_epi32(12, 8, 4, 0, 12, 8, 4, 0);
    __m256i i = _mm256_or_si256(lanes, _mm256_slli_epi32(lanes, 16));
    i = _mm256_add_epi8(i, _mm256_set1_epi32(b | b << 16));
    return _mm256_shuffle_epi8(v, _mm256_or_si256(i, _mm256_set1_epi32((int)0x80008000u)));
}

/* Bytes b and b + 1 of each 32-bit lane as 16 bits. */
SL_INLINE __m256i neighbours(__m256i v, int b) {
    const __m256i lanes = _mm256_set_epi32(12, 8, 4, 0, 12, 8, 4, 0);
    __m256i i = _mm256_or_si256(lanes, _mm256_slli_epi32(lanes, 16));
    i = _mm256_add_epi8(i, _mm256_set1_epi32(b | (b + 1) << 16));
    return _mm256_shuffle_epi8(v, _mm256_or_si256(i, _mm256_set1_epi32((int)0x80008000u)));
}

/* Four bytes at `at` of 8 weight rows. */
SL_INLINE __m256i load_words(const sl_strip_src *s, size_t at) {
    int32_t v[8];
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) memcpy(&v[c], s->row[c] + at, 4);
    return _mm256_setr_epi32(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
}

/* Scales and minima of Q4_K and Q5_K: 8 of 6 bits each in 12 bytes. */
SL_INLINE void fill_scales(const sl_strip_src *src, strip *out) {
    const __m256i six = _mm256_set1_epi8(63), four = _mm256_set1_epi8(15);
    const __m256i two = _mm256_set1_epi8(3);
    __m256i a = load_words(src, 4), b = load_words(src, 8), c = load_words(src, 12);
    __m256i ah = _mm256_slli_epi32(_mm256_and_si256(_mm256_srli_epi32(a, 6), two), 4);
    __m256i bh = _mm256_slli_epi32(_mm256_and_si256(_mm256_srli_epi32(b, 6), two), 4);
    __m256i scale[2] = {_mm256_and_si256(a, six), _mm256_or_si256(_mm256_and_si256(c, four), ah)};
    __m256i ch = _mm256_and_si256(_mm256_srli_epi32(c, 4), four);
    __m256i min[2] = {_mm256_and_si256(b, six), _mm256_or_si256(ch, bh)};
#pragma GCC unroll 8
    for (int s = 0; s < 8; s++) out->scale[s] = twice(scale[s / 4], s % 4);
#pragma GCC unroll 4
    for (int s = 0; s < 4; s++) out->pair[s] = neighbours(min[s / 2], s % 2 * 2);
    out->d = sl_load_d(src, 0);
    out->dmin = sl_load_d(src, 2);
}

static void fill_q4_k(const sl_strip_src *src, strip *out) {
    const __m256i low = _mm256_set1_epi8(15);
    fill_scales(src, out);
    for (uint32_t j = 0; j < 4; j++) {
        __m256i v[8];
        sl_load_quads(src, 16 + j * 32, v);
#pragma GCC unroll 8
        for (uint32_t q = 0; q < 8; q++) {
            out->q[16 * j + q] = _mm256_and_si256(v[q], low);
            out->q[16 * j + 8 + q] = _mm256_and_si256(_mm256_srli_epi16(v[q], 4), low);
        }
    }
}

static void fill_q5_k(const sl_strip_src *src, strip *out) {
    const __m256i low = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16);
    __m256i high[8];
    fill_scales(src, out);
    sl_load_quads(src, 16, high);
    for (uint32_t j = 0; j < 4; j++) {
        __m256i v[8];
        sl_load_quads(src, 48 + j * 32, v);
        const __m128i down = _mm_cvtsi32_si128(2 * (int)j);
#pragma GCC unroll 8
        for (uint32_t q = 0; q < 8; q++) {
            __m256i bits = _mm256_srl_epi16(high[q], down); /* bit 0: low half, bit 1: high */
            __m256i h = _mm256_slli_epi16(bits, 4), h1 = _mm256_slli_epi16(bits, 3);
            out->q[16 * j + q] =
                _mm256_or_si256(_mm256_and_si256(v[q], low), _mm256_and_si256(h, fifth));
            v[q] = _mm256_and_si256(_mm256_srli_epi16(v[q], 4), low);
            out->q[16 * j + 8 + q] = _mm256_or_si256(v[q], _mm256_and_si256(h1, fifth));
        }
    }
}

static void fill_q6_k(const sl_strip_src *src, strip *out) {
    const __m256i low = _mm256_set1_epi8(15), top = _mm256_set1_epi8(48);
    for (uint32_t half = 0; half < 2; half++) {
        __m256i a[8], b[8], h[8], *q = out->q + half * 32;
        sl_load_quads(src, half * 64, a);
        sl_load_quads(src, half * 64 + 32, b);
        sl_load_quads(src, 128 + half * 32, h);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            __m256i t = _mm256_and_si256(_mm256_slli_epi16(h[i], 4), top);
            q[i] = _mm256_or_si256(_mm256_and_si256(a[i], low), t);
            t = _mm256_and_si256(_mm256_slli_epi16(h[i], 2), top);
            q[8 + i] = _mm256_or_si256(_mm256_and_si256(b[i], low), t);
            t = _mm256_and_si256(h[i], top);
            q[16 + i] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a[i], 4), low), t);
            t = _mm256_and_si256(_mm256_srli_epi16(h[i], 2), top);
            q[24 + i] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b[i], 4), low), t);
        }
    }
    for (int i = 0; i < 4; i++) {
        __m256i s = load_words(src, 192 + (size_t)i * 4);
        __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8), odd = _mm256_srai_epi16(s, 8);
        /* 16-bit halves of `even` are scales 0 and 2, of `odd` 1 and 3 */
        __m256i s0 = _mm256_blend_epi16(even, _mm256_slli_epi32(even, 16), 0xaa);
        __m256i s2 = _mm256_blend_epi16(even, _mm256_srli_epi32(even, 16), 0x55);
        __m256i s1 = _mm256_blend_epi16(odd, _mm256_slli_epi32(odd, 16), 0xaa);
        __m256i s3 = _mm256_blend_epi16(odd, _mm256_srli_epi32(odd, 16), 0x55);
        out->scale[4 * i] = s0;
        out->scale[4 * i + 1] = s1;
        out->scale[4 * i + 2] = s2;
        out->scale[4 * i + 3] = s3;
        out->pair[2 * i] = _mm256_blend_epi16(s0, s1, 0xaa);
        out->pair[2 * i + 1] = _mm256_blend_epi16(s2, s3, 0xaa);
    }
    out->d = sl_load_d(src, 208);
}

/* Sums of 32 codes of a row's block, as 16 bits. */
SL_INLINE __m128i sums_32(const int16_t *sum16) {
    __m256i s = _mm256_madd_epi16(sl_load(sum16), _mm256_set1_epi16(1));
    return _mm_packs_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
}

typedef struct run {
    const sl_int8_tile *t;
    const strip *w;      /* [STRIPS] */
    const int16_t *sums; /* [rows][16]: pairs that strip.pair is multiplied with */
    uint32_t b;          /* block of k */
    float *acc;          /* of row 0 and the strips' first column */
} run;

/* Values 32 s .. 32 s + 31: `sum` += scale * products, sums of 16 bits over `most` quads. */
SL_INLINE void part_of(const run *u, uint32_t s, uint32_t r0, const uint32_t R, const uint32_t most,
                       const bool half_scales, __m256i *sum) {
    const uint32_t k0 = u->b * 256 + s * 32;
#pragma GCC unroll 4
    for (uint32_t q0 = 0; q0 < 8; q0 += most) {
        __m256i p[2 * MAX_R];
#pragma GCC unroll 8
        for (uint32_t q = q0; q < q0 + most; q++) {
            __m256i a = _mm256_load_si256(&u->w[0].q[8 * s + q]);
            __m256i c = _mm256_load_si256(&u->w[1].q[8 * s + q]);
            SL_KEEP(a);
            SL_KEEP(c);
#pragma GCC unroll 4
            for (uint32_t r = 0; r < R; r++) {
                __m256i x = sl_quad(u->t->x[r0 + r] + k0 + 4 * q);
                __m256i pa = _mm256_maddubs_epi16(a, x), pc = _mm256_maddubs_epi16(c, x);
                p[2 * r] = q == q0 ? pa : _mm256_add_epi16(p[2 * r], pa);
                p[2 * r + 1] = q == q0 ? pc : _mm256_add_epi16(p[2 * r + 1], pc);
                SL_KEEP(p[2 * r]);
                SL_KEEP(p[2 * r + 1]);
            }
        }
        uint32_t at = half_scales ? 2 * s + q0 / 4 : s;
#pragma GCC unroll 8
        for (uint32_t i = 0; i < 2 * R; i++)
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(p[i], u->w[i & 1].scale[at]));
    }
}

SL_INLINE void finish(const run *u, uint32_t r0, const uint32_t R, sl_dtype dtype, __m256i *sum) {
    const uint32_t pairs = dtype == SL_Q6_K ? 8 : 4;
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) {
        float dx = sl_act_scales(u->t->x[r0 + r], u->t->k)[u->b];
        float *acc = u->acc + (size_t)(r0 + r) * SL_TILE_COLS;
        const int16_t *xs = u->sums + (r0 + r) * 16;
        __m256i low[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        for (uint32_t i = 0; i < pairs; i++) {
            __m256i x = sl_quad(xs + 2 * i);
            low[0] = _mm256_add_epi32(low[0], _mm256_madd_epi16(u->w[0].pair[i], x));
            low[1] = _mm256_add_epi32(low[1], _mm256_madd_epi16(u->w[1].pair[i], x));
        }
#pragma GCC unroll 2
        for (uint32_t c = 0; c < STRIPS; c++) {
            __m256 v = _mm256_load_ps(acc + 8 * c);
            if (dtype == SL_Q6_K) {
                __m256i s = _mm256_sub_epi32(sum[2 * r + c], _mm256_slli_epi32(low[c], 5));
                v = sl_add_block(u->w[c].d, dx, s, v);
            } else {
                v = sl_add_block(u->w[c].d, dx, sum[2 * r + c], v);
                __m256 m = _mm256_mul_ps(u->w[c].dmin, _mm256_set1_ps(dx));
                v = _mm256_fnmadd_ps(m, _mm256_cvtepi32_ps(low[c]), v);
            }
            _mm256_store_ps(acc + 8 * c, v);
        }
    }
}

SL_INLINE void run_rows(const run *u, uint32_t r0, const uint32_t R, sl_dtype dtype) {
    const uint32_t most = dtype == SL_Q4_K ? 8 : dtype == SL_Q5_K ? 4 : 2;
    __m256i sum[2 * MAX_R];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 2 * R; i++) sum[i] = _mm256_setzero_si256();
    for (uint32_t s = 0; s < 8; s++) part_of(u, s, r0, R, most, dtype == SL_Q6_K, sum);
    finish(u, r0, R, dtype, sum);
}

static void pack_sums(const sl_int8_tile *t, uint32_t b, int16_t *out) {
    for (uint32_t r = 0; r < t->n_rows; r++, out += 16) {
        const int16_t *s = sl_act_sums(SL_ACT_256, t->x[r], t->k) + b * 16;
        if (t->dtype == SL_Q6_K)
            memcpy(out, s, 32);
        else
            _mm_store_si128((__m128i *)out, sums_32(s));
    }
}

SL_INLINE void strips_of(const sl_int8_tile *t, sl_dtype dtype,
                         void (*fill)(const sl_strip_src *, strip *)) {
    _Alignas(64) float acc[SL_TILE_ROWS * SL_TILE_COLS];
    _Alignas(64) int16_t sums[SL_TILE_ROWS * 16];
    strip w[STRIPS];
    memset(acc, 0, t->n_rows * SL_TILE_COLS * sizeof *acc);
    for (uint32_t b = 0; b < t->k / 256; b++) {
        pack_sums(t, b, sums);
        for (uint32_t c0 = 0; c0 < t->n_cols; c0 += 8 * STRIPS) {
            for (uint32_t i = 0; i < STRIPS; i++) {
                sl_strip_src src = sl_strip_at(t, c0 + 8 * i, b * 256);
                sl_prefetch_strip(&src, sl_dtype_block_bytes(dtype));
                fill(&src, &w[i]);
            }
            const run u = {t, w, sums, b, acc + c0};
            uint32_t r = 0;
            for (; r + 4 <= t->n_rows; r += 4) run_rows(&u, r, 4, dtype);
            if (t->n_rows - r == 3) run_rows(&u, r, 3, dtype);
            if (t->n_rows - r == 2) run_rows(&u, r, 2, dtype);
            if (t->n_rows - r == 1) run_rows(&u, r, 1, dtype);
        }
    }
    sl_avx2_int8_store(t, acc);
}

static void strips_q4_k(const sl_int8_tile *t) {
    strips_of(t, SL_Q4_K, fill_q4_k);
}

static void strips_q5_k(const sl_int8_tile *t) {
    strips_of(t, SL_Q5_K, fill_q5_k);
}

static void strips_q6_k(const sl_int8_tile *t) {
    strips_of(t, SL_Q6_K, fill_q6_k);
}

void sl_avx2_int8_tile_256(const sl_int8_tile *t) {
    if (t->n_rows <= SL_FEW_ROWS)
        sl_avx2_int8_few_256(t);
    else if (t->dtype == SL_Q4_K)
        strips_q4_k(t);
    else if (t->dtype == SL_Q5_K)
        strips_q5_k(t);
    else
        strips_q6_k(t);
}
