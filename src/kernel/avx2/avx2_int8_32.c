/* Integer products with blocks of 32: Q8_0 and Q4_0.
 *
 * Strips hold Q8_0 as pairs of 16 bits, values 0 and 2 of a quad, then 1 and 3: two codes of 8 bits
 * do not fit the sums of 16 bits that vpmaddubsw makes. Codes of Q4_0 (0..15) do, a whole block of
 * them: 8 * 2 * 15 * 127 = 30480; the sum of the activations' codes takes the offset of 8 away. */
#include "kernel/avx2/int8.h"

#define CHUNK  8u /* blocks of a strip */
#define MAX_R  4u
#define STRIPS 2u /* that a register tile is wide */

typedef struct strip {
    __m256i q[CHUNK * 16]; /* Q8_0: 16 of a block, Q4_0: 8 */
    __m256 d[CHUNK];
} strip;

/* Quads of bytes to pairs of 16 bits: values 0 and 2, values 1 and 3. */
SL_INLINE void widen_quads(__m256i v, __m256i *even, __m256i *odd) {
    *even = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
    *odd = _mm256_srai_epi16(v, 8);
}

static void fill_q8_0(const sl_strip_src *src, uint32_t blocks, strip *out) {
    for (uint32_t b = 0; b < blocks; b++) {
        __m256i v[8];
        sl_load_quads(src, b * 34 + 2, v);
        out->d[b] = sl_load_d(src, b * 34);
#pragma GCC unroll 8
        for (uint32_t q = 0; q < 8; q++)
            widen_quads(v[q], &out->q[b * 16 + 2 * q], &out->q[b * 16 + 2 * q + 1]);
    }
}

static void fill_q4_0(const sl_strip_src *src, uint32_t blocks, strip *out) {
    const __m256i low = _mm256_set1_epi8(15);
    for (uint32_t b = 0; b < blocks; b++) {
        __m256i v[8]; /* of each row 16 bytes: quads 0..3 low, 4..7 high; two blocks at once */
        uint32_t two = b + 1 < blocks ? 18 : 0;
#pragma GCC unroll 8
        for (int c = 0; c < 8; c++)
            v[c] = _mm256_loadu2_m128i((const __m128i *)(src->row[c] + b * 18 + two + 2),
                                       (const __m128i *)(src->row[c] + b * 18 + 2));
        sl_transpose8(v);
        for (uint32_t i = 0; i < (two ? 2u : 1u); i++) {
            out->d[b + i] = sl_load_d(src, (b + i) * 18);
#pragma GCC unroll 4
            for (uint32_t q = 0; q < 4; q++) {
                __m256i both = v[4 * i + q];
                out->q[(b + i) * 16 + q] = _mm256_and_si256(both, low);
                out->q[(b + i) * 16 + 4 + q] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
            }
        }
        b += two != 0;
    }
}

/* Codes of a chunk as Q8_0's strips want them: 8 even pairs, 8 odd pairs a block. */
static void pack_x(const sl_int8_tile *t, uint32_t b0, uint32_t blocks, __m256i *out) {
    for (uint32_t r = 0; r < t->n_rows; r++)
        for (uint32_t b = 0; b < blocks; b++)
            widen_quads(sl_load(t->x[r] + (b0 + b) * 32), &out[(r * CHUNK + b) * 2],
                        &out[(r * CHUNK + b) * 2 + 1]);
}

/* R rows from r0 on and two strips over a chunk. */
typedef struct run {
    const sl_int8_tile *t;
    const strip *w; /* [STRIPS] */
    const __m256i *xp;
    uint32_t b0, blocks;
    float *acc; /* of row 0 and the strips' first column */
} run;

SL_INLINE void block_q8_0(const run *u, uint32_t b, uint32_t r0, const uint32_t R, __m256i *sum) {
    const __m256i *w0 = u->w[0].q + b * 16, *w1 = u->w[1].q + b * 16;
    const uint8_t *x = (const uint8_t *)(u->xp + (size_t)(r0 * CHUNK + b) * 2);
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 2 * R; i++) sum[i] = _mm256_setzero_si256();
#pragma GCC unroll 2
    for (uint32_t q = 0; q < 8; q++)
#pragma GCC unroll 2
        for (uint32_t odd = 0; odd < 2; odd++) {
            __m256i a = _mm256_load_si256(w0 + 2 * q + odd),
                    c = _mm256_load_si256(w1 + 2 * q + odd);
            SL_KEEP(a);
            SL_KEEP(c);
#pragma GCC unroll 4
            for (uint32_t r = 0; r < R; r++) {
                __m256i xv = sl_quad(x + (size_t)r * CHUNK * 64 + odd * 32 + q * 4);
                sum[2 * r] = _mm256_add_epi32(sum[2 * r], _mm256_madd_epi16(a, xv));
                sum[2 * r + 1] = _mm256_add_epi32(sum[2 * r + 1], _mm256_madd_epi16(c, xv));
                SL_KEEP(sum[2 * r]);
                SL_KEEP(sum[2 * r + 1]);
            }
        }
}

SL_INLINE void block_q4_0(const run *u, uint32_t b, uint32_t r0, const uint32_t R, __m256i *sum) {
    const __m256i *w0 = u->w[0].q + b * 16, *w1 = u->w[1].q + b * 16;
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 2 * R; i++) sum[i] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (uint32_t q = 0; q < 8; q++) {
        __m256i a = _mm256_load_si256(w0 + q), c = _mm256_load_si256(w1 + q);
        SL_KEEP(a);
        SL_KEEP(c);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; r++) {
            __m256i xv = sl_quad(u->t->x[r0 + r] + (u->b0 + b) * 32 + q * 4);
            sum[2 * r] = _mm256_add_epi16(sum[2 * r], _mm256_maddubs_epi16(a, xv));
            sum[2 * r + 1] = _mm256_add_epi16(sum[2 * r + 1], _mm256_maddubs_epi16(c, xv));
            SL_KEEP(sum[2 * r]);
            SL_KEEP(sum[2 * r + 1]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) {
        int32_t xs = sl_act_sums(SL_ACT_32, u->t->x[r0 + r], u->t->k)[u->b0 + b];
        __m256i eight = _mm256_set1_epi32(8 * xs);
#pragma GCC unroll 2
        for (uint32_t c = 0; c < 2; c++)
            sum[2 * r + c] = _mm256_sub_epi32(_mm256_madd_epi16(sum[2 * r + c], ones), eight);
    }
}

SL_INLINE void run_rows(const run *u, uint32_t r0, const uint32_t R, sl_dtype dtype) {
    for (uint32_t b = 0; b < u->blocks; b++) {
        __m256i sum[2 * MAX_R];
        if (dtype == SL_Q8_0)
            block_q8_0(u, b, r0, R, sum);
        else
            block_q4_0(u, b, r0, R, sum);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; r++) {
            float dx = sl_act_scales(u->t->x[r0 + r], u->t->k)[u->b0 + b];
            float *acc = u->acc + (size_t)(r0 + r) * SL_TILE_COLS;
#pragma GCC unroll 2
            for (uint32_t c = 0; c < STRIPS; c++)
                _mm256_store_ps(acc + 8 * c, sl_add_block(u->w[c].d[b], dx, sum[2 * r + c],
                                                          _mm256_load_ps(acc + 8 * c)));
        }
    }
}

SL_INLINE void strips_of(const sl_int8_tile *t, sl_dtype dtype) {
    _Alignas(64) float acc[SL_TILE_ROWS * SL_TILE_COLS];
    _Alignas(64) __m256i xp[SL_TILE_ROWS * CHUNK * 2];
    strip w[STRIPS];
    memset(acc, 0, t->n_rows * SL_TILE_COLS * sizeof *acc);
    for (uint32_t b0 = 0; b0 < t->k / 32; b0 += CHUNK) {
        uint32_t blocks = SL_MIN(CHUNK, t->k / 32 - b0);
        if (dtype == SL_Q8_0) pack_x(t, b0, blocks, xp);
        for (uint32_t c0 = 0; c0 < t->n_cols; c0 += 8 * STRIPS) {
            for (uint32_t i = 0; i < STRIPS; i++) {
                sl_strip_src src = sl_strip_at(t, c0 + 8 * i, b0 * 32);
                sl_prefetch_strip(&src, sl_dtype_row_bytes(dtype, CHUNK * 32));
                if (dtype == SL_Q8_0)
                    fill_q8_0(&src, blocks, &w[i]);
                else
                    fill_q4_0(&src, blocks, &w[i]);
            }
            const run u = {t, w, xp, b0, blocks, acc + c0};
            uint32_t r = 0;
            for (; r + 4 <= t->n_rows; r += 4) run_rows(&u, r, 4, dtype);
            if (t->n_rows - r == 3) run_rows(&u, r, 3, dtype);
            if (t->n_rows - r == 2) run_rows(&u, r, 2, dtype);
            if (t->n_rows - r == 1) run_rows(&u, r, 1, dtype);
        }
    }
    sl_avx2_int8_store(t, acc);
}

/* ---- few rows ---- */

/* Sums of one block of R rows and 8 columns, as the weights lie. */
SL_INLINE void few_block(const sl_strip_src *src, const __m256i *x, const int32_t *xsum, uint32_t b,
                         const uint32_t R, sl_dtype dtype, __m256i *sum) {
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
    for (uint32_t r = 0; r < R; r++) {
        __m256i p[8];
#pragma GCC unroll 8
        for (int c = 0; c < 8; c++) {
            if (dtype == SL_Q8_0) {
                __m256i w = sl_load(src->row[c] + b * 34 + 2);
                p[c] = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x[r], w));
            } else {
                __m128i h = _mm_loadu_si128((const __m128i *)(src->row[c] + b * 18 + 2));
                __m256i w =
                    _mm256_inserti128_si256(_mm256_castsi128_si256(h), _mm_srli_epi16(h, 4), 1);
                w = _mm256_and_si256(w, _mm256_set1_epi8(15));
                p[c] = _mm256_maddubs_epi16(w, x[r]);
            }
            p[c] = _mm256_madd_epi16(p[c], ones);
        }
        sum[r] = sl_sum8(p);
        if (dtype == SL_Q4_0) sum[r] = _mm256_sub_epi32(sum[r], _mm256_set1_epi32(8 * xsum[r]));
    }
}

SL_INLINE void few_rows(const sl_int8_tile *t, uint32_t r0, const uint32_t R, sl_dtype dtype) {
    const uint32_t bytes = dtype == SL_Q8_0 ? 34 : 18;
    size_t next = 8 * sl_dtype_row_bytes(dtype, t->k);
    for (uint32_t c0 = 0; c0 < t->n_cols; c0 += 8) {
        sl_strip_src src = sl_strip_at(t, c0, 0);
        __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (uint32_t b = 0; b < t->k / 32; b++) {
            __m256i x[2], sum[2];
            int32_t xsum[2];
            __m256 d = sl_load_d(&src, b * bytes);
#pragma GCC unroll 2
            for (uint32_t r = 0; r < R; r++) {
                x[r] = sl_load(t->x[r0 + r] + b * 32);
                xsum[r] = sl_act_sums(SL_ACT_32, t->x[r0 + r], t->k)[b];
            }
            few_block(&src, x, xsum, b, R, dtype, sum);
#pragma GCC unroll 8
            for (int c = 0; c < 8; c++)
                _mm_prefetch((const char *)src.row[c] + next + b * bytes, _MM_HINT_T0);
#pragma GCC unroll 2
            for (uint32_t r = 0; r < R; r++)
                acc[r] = sl_add_block(d, sl_act_scales(t->x[r0 + r], t->k)[b], sum[r], acc[r]);
        }
        uint32_t n = SL_MIN(8, t->n_cols - c0);
        for (uint32_t r = 0; r < R; r++) {
            float y[8];
            _mm256_storeu_ps(y, acc[r]);
            memcpy(t->y + (size_t)(r0 + r) * t->y_stride + c0, y, n * sizeof *y);
        }
    }
}

SL_INLINE void tile_of(const sl_int8_tile *t, sl_dtype dtype) {
    if (t->n_rows == 1)
        few_rows(t, 0, 1, dtype);
    else if (t->n_rows == 2)
        few_rows(t, 0, 2, dtype);
    else
        strips_of(t, dtype);
}

static void tile_q8_0(const sl_int8_tile *t) {
    tile_of(t, SL_Q8_0);
}

static void tile_q4_0(const sl_int8_tile *t) {
    tile_of(t, SL_Q4_0);
}

void sl_avx2_int8_tile_32(const sl_int8_tile *t) {
    if (t->dtype == SL_Q8_0)
        tile_q8_0(t);
    else
        tile_q4_0(t);
}
