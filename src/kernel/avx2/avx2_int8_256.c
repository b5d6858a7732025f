/* Integer products with blocks of 256: Q4_K, Q5_K and Q6_K.
 *
 * Sums stay in 16 bits as long as they fit: two products of a code (at most 15, 31) with 127 are
 * 3810, 7874, so 8 or 4 of them do. Then one vpmaddwd multiplies by the scale and widens. Of Q6_K
 * 4 do, as two products of code - 32 with 127 are 8128: codes are taken as 0..63, and 32 times the
 * sum of the activations' codes is taken away in the same 16 bits, where what overflows in between
 * comes back.
 *
 * Tried on Zen 3, no faster: quads by halves of rows without permutations over 128 bits, asking for
 * the next block of each row as well as for the next strips, or for these into L2. */
#include "kernel/avx2/int8_256.h"

#define MAX_R  4u
#define STRIPS 2u  /* that a register tile is wide */
#define SUMS   32u /* sums of codes of a row, at most */

typedef struct strip {
    __m256i q[64];     /* quads of codes, in the order of values */
    __m256i scale[16]; /* of 32 values, Q6_K: of 16; twice a column */
    __m256i min[4];    /* of two parts of 32, as sl_head_45; not Q6_K */
    __m256 d, dmin;
} strip;

/* Four bytes at `at` of 8 weight rows. */
SL_INLINE __m256i load_words(const sl_strip_src *s, size_t at) {
    int32_t v[8];
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) memcpy(&v[c], s->row[c] + at, 4);
    return _mm256_setr_epi32(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
}

SL_INLINE void fill_head(const sl_strip_src *src, strip *out) {
    sl_head_45 h = sl_load_head_45(src, 0);
#pragma GCC unroll 8
    for (int s = 0; s < 8; s++) out->scale[s] = sl_twice(h.scale[s / 4], s % 4);
    memcpy(out->min, h.min, sizeof h.min);
    out->d = h.d;
    out->dmin = h.dmin;
}

static void fill_q4_k(const sl_strip_src *src, strip *out) {
    const __m256i low = _mm256_set1_epi8(15);
    fill_head(src, out);
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
    fill_head(src, out);
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
    }
    out->d = sl_load_d(src, 208);
}

typedef struct run {
    const sl_act_tile *t;
    const strip *w;      /* [STRIPS] */
    const int16_t *sums; /* [rows][SUMS]: pairs of offsets_of, or of sl_sums_32 */
    uint32_t b;          /* block of k */
    float *acc;          /* of row 0 and the strips' first column */
} run;

/* Quads g * most .. of a block: `sum` += scale * products, which fit 16 bits. */
SL_INLINE void group_of(const run *u, uint32_t g, uint32_t r0, const uint32_t R, sl_dtype dtype,
                        __m256i *sum) {
    const uint32_t most = dtype == SL_Q4_K ? 8 : 4, at = dtype == SL_Q5_K ? g / 2 : g;
    const uint32_t k0 = u->b * 256 + g * most * 4;
    __m256i p[2 * MAX_R];
#pragma GCC unroll 8
    for (uint32_t q = 0; q < most; q++) {
        __m256i a = _mm256_load_si256(&u->w[0].q[most * g + q]);
        __m256i c = _mm256_load_si256(&u->w[1].q[most * g + q]);
        SL_KEEP(a);
        SL_KEEP(c);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; r++) {
            __m256i x = sl_quad(u->t->x[r0 + r] + k0 + 4 * q);
            __m256i pa = _mm256_maddubs_epi16(a, x), pc = _mm256_maddubs_epi16(c, x);
            if (q == 0 && dtype == SL_Q6_K) {
                __m256i offset = sl_quad(u->sums + (r0 + r) * SUMS + 2 * g);
                pa = _mm256_sub_epi16(pa, offset), pc = _mm256_sub_epi16(pc, offset);
            }
            p[2 * r] = q == 0 ? pa : _mm256_add_epi16(p[2 * r], pa);
            p[2 * r + 1] = q == 0 ? pc : _mm256_add_epi16(p[2 * r + 1], pc);
            SL_KEEP(p[2 * r]);
            SL_KEEP(p[2 * r + 1]);
        }
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 2 * R; i++)
        sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(p[i], u->w[i & 1].scale[at]));
}

SL_INLINE void finish(const run *u, uint32_t r0, const uint32_t R, sl_dtype dtype, __m256i *sum) {
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) {
        float dx = sl_act_scales(u->t->x[r0 + r], u->t->k)[u->b];
        float *acc = u->acc + (size_t)(r0 + r) * 8 * STRIPS;
#pragma GCC unroll 2
        for (uint32_t c = 0; c < STRIPS; c++) {
            __m256 v = sl_add_block(u->w[c].d, dx, sum[2 * r + c], _mm256_load_ps(acc + 8 * c));
            if (dtype != SL_Q6_K) {
                __m256i low = sl_low_sums(u->w[c].min, u->sums + (r0 + r) * SUMS);
                __m256 m = _mm256_mul_ps(u->w[c].dmin, _mm256_set1_ps(dx));
                v = _mm256_fnmadd_ps(m, _mm256_cvtepi32_ps(low), v);
            }
            _mm256_store_ps(acc + 8 * c, v);
        }
    }
}

SL_INLINE void run_rows(const run *u, uint32_t r0, const uint32_t R, sl_dtype dtype) {
    __m256i sum[2 * MAX_R];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 2 * R; i++) sum[i] = _mm256_setzero_si256();
    for (uint32_t g = 0; g < (dtype == SL_Q4_K ? 8 : 16); g++) group_of(u, g, r0, R, dtype, sum);
    finish(u, r0, R, dtype, sum);
}

/* 32 * the sums of values 0, 1, 4, 5, 8, 9, 12, 13 and of the others, for each 16 values. */
SL_INLINE void offsets_of(const uint8_t *x, int16_t *out) {
    const __m256i by = _mm256_set1_epi8(32);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        __m256i p[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) p[i] = _mm256_maddubs_epi16(by, sl_load(x + 128 * h + 32 * i));
        __m256i a =
            _mm256_add_epi16(_mm256_unpacklo_epi32(p[0], p[1]), _mm256_unpackhi_epi32(p[0], p[1]));
        __m256i b =
            _mm256_add_epi16(_mm256_unpacklo_epi32(p[2], p[3]), _mm256_unpackhi_epi32(p[2], p[3]));
        a = _mm256_add_epi16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        /* lane of 128 bits: first or second half of 32 values */
        __m128i first = _mm256_castsi256_si128(a), second = _mm256_extracti128_si256(a, 1);
        _mm_store_si128((__m128i *)(out + 16 * h), _mm_unpacklo_epi32(first, second));
        _mm_store_si128((__m128i *)(out + 16 * h + 8), _mm_unpackhi_epi32(first, second));
    }
}

static void pack_sums(const sl_act_tile *t, uint32_t b, int16_t *out) {
    for (uint32_t r = 0; r < t->n_rows; r++, out += SUMS) {
        if (t->dtype == SL_Q6_K)
            offsets_of(t->x[r] + b * 256, out);
        else
            _mm_store_si128((__m128i *)out,
                            sl_sums_32(sl_act_sums(SL_ACT_256, t->x[r], t->k) + b * 16));
    }
}

SL_INLINE void strips_of(const sl_act_tile *t, sl_dtype dtype,
                         void (*fill)(const sl_strip_src *, strip *)) {
    const size_t bytes = 8 * sl_dtype_block_bytes(dtype);
    _Alignas(64) float acc[SL_TILE_ROWS * 8 * STRIPS];
    _Alignas(64) int16_t sums[SL_TILE_ROWS * SUMS];
    strip w[STRIPS];
    for (uint32_t c0 = 0; c0 < t->n_cols; c0 += 8 * STRIPS) {
        uint32_t n = SL_MIN(8 * STRIPS, t->n_cols - c0);
        const uint8_t *after = sl_tile_rows_after(t, c0, 8 * STRIPS);
        memset(acc, 0, t->n_rows * 8 * STRIPS * sizeof *acc);
        for (uint32_t b = 0; b < t->k / 256; b++) {
            pack_sums(t, b, sums);
            for (uint32_t i = 0; i < STRIPS; i++) {
                sl_strip_src src = sl_strip_at(t, c0 + 8 * i, b * 256);
                if (c0 == 0) sl_prefetch_strip(&src, bytes / 8); /* a tile starts cold */
                sl_prefetch_bytes(after + (b * STRIPS + i) * bytes, bytes);
                fill(&src, &w[i]);
            }
            const run u = {t, w, sums, b, acc};
            uint32_t r = 0;
            for (; r + 4 <= t->n_rows; r += 4) run_rows(&u, r, 4, dtype);
            if (t->n_rows - r == 3) run_rows(&u, r, 3, dtype);
            if (t->n_rows - r == 2) run_rows(&u, r, 2, dtype);
            if (t->n_rows - r == 1) run_rows(&u, r, 1, dtype);
        }
        for (uint32_t r = 0; r < t->n_rows; r++)
            memcpy(t->y + (size_t)r * t->y_stride + c0, acc + (size_t)r * 8 * STRIPS,
                   n * sizeof *acc);
    }
}

static void strips_q4_k(const sl_act_tile *t) {
    strips_of(t, SL_Q4_K, fill_q4_k);
}

static void strips_q5_k(const sl_act_tile *t) {
    strips_of(t, SL_Q5_K, fill_q5_k);
}

static void strips_q6_k(const sl_act_tile *t) {
    strips_of(t, SL_Q6_K, fill_q6_k);
}

void sl_avx2_int8_tile_256(const sl_act_tile *t) {
    if (t->n_rows <= SL_FEW_ROWS(t->dtype))
        sl_avx2_int8_few_256(t);
    else if (t->dtype == SL_Q4_K)
        strips_q4_k(t);
    else if (t->dtype == SL_Q5_K)
        strips_q5_k(t);
    else
        strips_q6_k(t);
}
