/* Integer products with blocks of 32: Q8_0, Q4_0 and MXFP4.
 *
 * Few rows: the weights are used as they lie, 16 bytes of two columns to a vector, and the sums of
 * 8 columns become one vector in three steps of additions. More rows: strips of 16 columns by 256
 * values are put into quads once and stay in L1 for all rows.
 *
 * Strips hold Q8_0 as pairs of 16 bits, 256 times the codes: values 0 and 2 of a quad, then 1 and
 * 3, which a shift and a mask make. Two codes of 8 bits do not fit the sums of 16 bits that
 * vpmaddubsw makes. Codes of Q4_0 (0..15) do, a whole block of them: 8 * 2 * 15 * 127 = 30480; the
 * sum of the activations' codes takes the offset of 8 away. Those of MXFP4, 12 above their value
 * (0..24), do by halves of a block.
 *
 * Columns vary slowest, so that memory is read in its order, and what comes next is asked for in
 * that order too: rows of experts are short, several share a page, and the processor's prefetchers
 * do not follow eight of them side by side. */
#include "kernel/avx2/int8.h"

#define CHUNK  8u  /* blocks of a strip */
#define PIECE  64u /* blocks of k whose activations are packed together */
#define MAX_R  4u
#define STRIPS 2u /* that a register tile is wide */
#define COLS   (8 * STRIPS)

typedef struct strip {
    __m256i q[CHUNK * 16]; /* Q8_0: 16 of a block, codes of 4 bits: 8 */
    __m256 d[CHUNK];
} strip;

/* What codes of 4 bits are multiplied as lies so much above their value. */
SL_INLINE int32_t above(sl_dtype dtype) {
    return dtype == SL_Q4_0 ? 8 : SL_MXFP4_ABOVE;
}

/* That, of codes in bytes. */
SL_INLINE __m256i values_of(__m256i code, sl_dtype dtype) {
    static const uint8_t of[16] = SL_MXFP4_CODES_ABOVE;
    if (dtype == SL_Q4_0) return code;
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)of)),
                               code);
}

/* 16 bytes to both halves. */
SL_INLINE __m256i twice(const void *p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
}

/* Bytes at .. at + 15 of rows c and c + 4. */
SL_INLINE __m256i load_pair(const sl_strip_src *s, int c, size_t at) {
    __m256i high = twice(s->row[c + 4] + at);
    SL_KEEP(high); /* or the compiler makes the slower vinserti128 of it */
    return _mm256_blend_epi32(
        _mm256_castsi128_si256(_mm_loadu_si128((const void *)(s->row[c] + at))), high, 0xf0);
}

/* 16 bytes of 8 rows as 4 vectors of quads. */
SL_INLINE void load_quads(const sl_strip_src *s, size_t at, __m256i *v) {
    __m256i p[4], a[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) p[c] = load_pair(s, c, at);
#pragma GCC unroll 2
    for (int i = 0; i < 4; i += 2) {
        a[i] = _mm256_unpacklo_epi32(p[i], p[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(p[i], p[i + 1]);
    }
    v[0] = _mm256_unpacklo_epi64(a[0], a[2]);
    v[1] = _mm256_unpackhi_epi64(a[0], a[2]);
    v[2] = _mm256_unpacklo_epi64(a[1], a[3]);
    v[3] = _mm256_unpackhi_epi64(a[1], a[3]);
}

SL_INLINE void fill(const sl_strip_src *src, uint32_t blocks, sl_dtype dtype, strip *out) {
    const __m256i low = _mm256_set1_epi8(15), high = _mm256_set1_epi16((short)0xff00);
    for (uint32_t b = 0; b < blocks; b++) {
        const uint32_t at = b * sl_dtype_block_bytes(dtype);
        __m256i v[4], *q = out->q + b * 16;
        out->d[b] = sl_load_d_32(src, at, dtype);
        if (dtype != SL_Q8_0) {
            load_quads(src, at + sl_block_head_32(dtype), v);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                q[i] = values_of(_mm256_and_si256(v[i], low), dtype);
                q[i + 4] = values_of(_mm256_and_si256(_mm256_srli_epi16(v[i], 4), low), dtype);
            }
            continue;
        }
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            load_quads(src, at + 2 + 16 * h, v);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                q[8 * h + 2 * i] = _mm256_slli_epi16(v[i], 8);
                q[8 * h + 2 * i + 1] = _mm256_and_si256(v[i], high);
            }
        }
    }
}

/* Codes of a piece as Q8_0's strips want them, [chunk][row][block]: 8 even pairs, 8 odd pairs. */
static void pack_x(const sl_act_tile *t, uint32_t b0, uint32_t blocks, __m256i *out) {
    for (uint32_t r = 0; r < t->n_rows; r++)
        for (uint32_t b = 0; b < blocks; b++) {
            __m256i v = sl_load(t->x[r] + (b0 + b) * 32);
            __m256i *to = out + ((b / CHUNK * t->n_rows + r) * CHUNK + b % CHUNK) * 2;
            to[0] = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
            to[1] = _mm256_srai_epi16(v, 8);
        }
}

/* Two strips over a chunk and all rows of a tile. */
typedef struct run {
    const sl_act_tile *t;
    const strip *w; /* [STRIPS] */
    const __m256i *xp;
    uint32_t b0, blocks;
    float *acc;          /* of row 0 and the strips' first column */
    const uint8_t *next; /* what is read after: COLS rows */
    uint32_t piece;      /* bytes of each that count */
    uint32_t at;         /* of them, where this chunk's share starts */
} run;

SL_INLINE void block_q8_0(const run *u, uint32_t b, uint32_t r0, const uint32_t R, __m256i *sum) {
    const __m256i *w0 = u->w[0].q + b * 16, *w1 = u->w[1].q + b * 16;
    const uint8_t *x = (const uint8_t *)(u->xp + (size_t)(r0 * CHUNK + b) * 2);
#pragma GCC unroll 16
    for (uint32_t q = 0; q < 16; q++) {
        __m256i a = _mm256_load_si256(w0 + q), c = _mm256_load_si256(w1 + q);
        SL_KEEP(a);
        SL_KEEP(c);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; r++) {
            __m256i xv = sl_quad(x + (size_t)r * CHUNK * 64 + q % 2 * 32 + q / 2 * 4);
            __m256i pa = _mm256_madd_epi16(a, xv), pc = _mm256_madd_epi16(c, xv);
            sum[2 * r] = q ? _mm256_add_epi32(sum[2 * r], pa) : pa;
            sum[2 * r + 1] = q ? _mm256_add_epi32(sum[2 * r + 1], pc) : pc;
            SL_KEEP(sum[2 * r]);
            SL_KEEP(sum[2 * r + 1]);
        }
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 2 * R; i++) sum[i] = _mm256_srai_epi32(sum[i], 8);
}

/* Quads first .. end - 1 of codes of 4 bits; sums of 16 bits. */
SL_INLINE void quads_4(const run *u, uint32_t b, uint32_t r0, const uint32_t R,
                       const uint32_t first, const uint32_t end, __m256i *sum) {
    const __m256i *w0 = u->w[0].q + b * 16, *w1 = u->w[1].q + b * 16;
#pragma GCC unroll 8
    for (uint32_t q = first; q < end; q++) {
        __m256i a = _mm256_load_si256(w0 + q), c = _mm256_load_si256(w1 + q);
        SL_KEEP(a);
        SL_KEEP(c);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; r++) {
            __m256i xv = sl_quad(u->t->x[r0 + r] + (u->b0 + b) * 32 + q * 4);
            __m256i pa = _mm256_maddubs_epi16(a, xv), pc = _mm256_maddubs_epi16(c, xv);
            sum[2 * r] = q > first ? _mm256_add_epi16(sum[2 * r], pa) : pa;
            sum[2 * r + 1] = q > first ? _mm256_add_epi16(sum[2 * r + 1], pc) : pc;
            SL_KEEP(sum[2 * r]);
            SL_KEEP(sum[2 * r + 1]);
        }
    }
}

SL_INLINE void block_4(const run *u, uint32_t b, uint32_t r0, const uint32_t R, sl_dtype dtype,
                       __m256i *sum) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i first[2 * MAX_R]; /* of the first half, where 16 bits do not hold both */
    const uint32_t half = dtype == SL_Q4_0 ? 0 : 4;
    if (half) {
        quads_4(u, b, r0, R, 0, half, sum);
#pragma GCC unroll 8
        for (uint32_t i = 0; i < 2 * R; i++) first[i] = _mm256_madd_epi16(sum[i], ones);
    }
    quads_4(u, b, r0, R, half, 8, sum);
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) {
        int32_t xs = sl_act_sums(SL_ACT_32, u->t->x[r0 + r], u->t->k)[u->b0 + b];
        __m256i more = _mm256_set1_epi32(above(dtype) * xs);
#pragma GCC unroll 2
        for (uint32_t c = 0; c < 2; c++) {
            __m256i all = _mm256_madd_epi16(sum[2 * r + c], ones);
            if (half) all = _mm256_add_epi32(all, first[2 * r + c]);
            sum[2 * r + c] = _mm256_sub_epi32(all, more);
        }
    }
}

SL_INLINE void run_rows(const run *u, uint32_t r0, const uint32_t R, sl_dtype dtype) {
    const uint32_t share = COLS * sl_dtype_block_bytes(dtype);
    for (uint32_t b = 0; b < u->blocks; b++) {
        __m256i sum[2 * MAX_R];
        if (r0 == 0) {
            const uint32_t at = u->at + b * share;
            const char *p = (const char *)u->next + at / u->piece * u->t->w_stride + at % u->piece;
#pragma GCC unroll 9
            for (uint32_t i = 0; i < share; i += 64) _mm_prefetch(p + i, _MM_HINT_T1);
        }
        if (dtype == SL_Q8_0)
            block_q8_0(u, b, r0, R, sum);
        else
            block_4(u, b, r0, R, dtype, sum);
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

/* COLS columns from c0 on over a piece of k. */
SL_INLINE void run_piece(const sl_act_tile *t, const __m256i *xp, uint32_t c0, uint32_t b0,
                         uint32_t blocks, sl_dtype dtype, float *acc) {
    strip w[STRIPS];
    for (uint32_t b = 0; b < blocks; b += CHUNK) {
        const uint32_t n = SL_MIN(CHUNK, blocks - b);
        const size_t row_bytes = t->w_stride;
        const uint32_t bytes = sl_dtype_block_bytes(dtype);
        for (uint32_t i = 0; i < STRIPS; i++) {
            sl_strip_src src = sl_strip_at(t, c0 + 8 * i, (b0 + b) * 32);
            fill(&src, n, dtype, &w[i]);
        }
        const run u = {t,
                       w,
                       xp + (size_t)b * t->n_rows * 2,
                       b0 + b,
                       n,
                       acc + c0,
                       (const uint8_t *)t->w + (c0 + COLS) * row_bytes + b0 * bytes,
                       blocks * bytes,
                       b * COLS * bytes};
        uint32_t r = 0;
        for (; r + 4 <= t->n_rows; r += 4) run_rows(&u, r, 4, dtype);
        if (t->n_rows - r == 3) run_rows(&u, r, 3, dtype);
        if (t->n_rows - r == 2) run_rows(&u, r, 2, dtype);
        if (t->n_rows - r == 1) run_rows(&u, r, 1, dtype);
    }
}

SL_INLINE void strips_of(const sl_act_tile *t, sl_dtype dtype) {
    _Alignas(64) float acc[SL_TILE_ROWS * SL_TILE_COLS];
    _Alignas(64) __m256i xp[SL_TILE_ROWS * PIECE * 2];
    memset(acc, 0, t->n_rows * SL_TILE_COLS * sizeof *acc);
    for (uint32_t b0 = 0; b0 < t->k / 32; b0 += PIECE) {
        uint32_t blocks = SL_MIN(PIECE, t->k / 32 - b0);
        if (dtype == SL_Q8_0) pack_x(t, b0, blocks, xp);
        for (uint32_t c0 = 0; c0 < t->n_cols; c0 += COLS)
            run_piece(t, xp, c0, b0, blocks, dtype, acc);
    }
    sl_avx2_int8_store(t, acc);
}

/* ---- few rows ---- */

#define FEW 8u /* rows at most: with more, making strips costs less than adding lanes */

/* Activations of a piece of k, [block][row]. */
typedef struct few_x {
    _Alignas(64) uint8_t code[PIECE * FEW * 32];
    float scale[PIECE * FEW];
    int32_t sum[PIECE * FEW]; /* of codes, times what weights' codes of 4 bits lie above */
} few_x;

static void few_pack(const sl_act_tile *t, uint32_t b0, uint32_t blocks, few_x *out) {
    const int32_t times = above(t->dtype);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        const float *scale = sl_act_scales(t->x[r], t->k) + b0;
        const int16_t *sum = sl_act_sums(SL_ACT_32, t->x[r], t->k) + b0;
        for (uint32_t b = 0, at = r; b < blocks; b++, at += t->n_rows) {
            memcpy(out->code + at * 32, t->x[r] + (b0 + b) * 32, 32);
            out->scale[at] = scale[b];
            out->sum[at] = times * sum[b];
        }
    }
}

/* Lanes of a and b, two by two; both halves alike. */
SL_INLINE __m256i add_lanes(__m256i a, __m256i b, sl_dtype dtype) {
    __m256i low = _mm256_unpacklo_epi32(a, b), high = _mm256_unpackhi_epi32(a, b);
    return dtype == SL_Q8_0 ? _mm256_add_epi32(low, high) : _mm256_add_epi16(low, high);
}

/* The last step of two: a sum of 8 columns. Sums of codes of 4 bits are still of 16 bits, and so is
 * that of Q4_0's whole block. */
SL_INLINE __m256i add_last(__m256i a, __m256i b, sl_dtype dtype) {
    __m256i low = _mm256_unpacklo_epi64(a, b), high = _mm256_unpackhi_epi64(a, b);
    const __m256i ones = _mm256_set1_epi16(1);
    if (dtype == SL_Q4_0) return _mm256_madd_epi16(_mm256_add_epi16(low, high), ones);
    if (dtype == SL_MXFP4) low = _mm256_madd_epi16(low, ones), high = _mm256_madd_epi16(high, ones);
    return _mm256_add_epi32(low, high);
}

/* Codes of columns c and c + 4 of one block: values 0..15, then 16..31. */
SL_INLINE void few_codes(const sl_strip_src *src, int c, size_t at, sl_dtype dtype, __m256i *w) {
    const __m256i low = _mm256_set1_epi8(15);
    w[0] = load_pair(src, c, at + sl_block_head_32(dtype));
    if (dtype == SL_Q8_0) {
        w[1] = load_pair(src, c, at + 18);
    } else {
        w[1] = values_of(_mm256_and_si256(_mm256_srli_epi16(w[0], 4), low), dtype);
        w[0] = values_of(_mm256_and_si256(w[0], low), dtype);
    }
}

/* Sums of one block of R rows and 8 columns. */
SL_INLINE void few_block(const sl_strip_src *src, size_t at, const uint8_t *x, const uint32_t R,
                         sl_dtype dtype, __m256i *sum) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i even[FEW], half[FEW]; /* of columns: the last even one; 0, 1, 4, 5 */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m256i w[2], a[2];
        few_codes(src, c, at, dtype, w);
        if (dtype == SL_Q8_0) a[0] = _mm256_abs_epi8(w[0]), a[1] = _mm256_abs_epi8(w[1]);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < R; r++) {
            __m256i p = twice(x + r * 32), q = twice(x + r * 32 + 16), s;
            SL_KEEP(p);
            SL_KEEP(q);
            if (dtype == SL_Q8_0) {
                p = _mm256_maddubs_epi16(a[0], _mm256_sign_epi8(p, w[0]));
                q = _mm256_maddubs_epi16(a[1], _mm256_sign_epi8(q, w[1]));
                s = _mm256_add_epi32(_mm256_madd_epi16(p, ones), _mm256_madd_epi16(q, ones));
            } else {
                s = _mm256_add_epi16(_mm256_maddubs_epi16(w[0], p), _mm256_maddubs_epi16(w[1], q));
            }
            SL_KEEP(s);
            if (c % 2 == 0)
                even[r] = s;
            else if (c == 1)
                half[r] = add_lanes(even[r], s, dtype);
            else
                sum[r] = add_last(half[r], add_lanes(even[r], s, dtype), dtype);
        }
    }
}

/* 8 columns from c0 on over a piece of k; acc is theirs, of row 0. */
SL_INLINE void few_columns(const sl_act_tile *t, const few_x *xp, uint32_t c0, uint32_t b0,
                           uint32_t blocks, const uint32_t R, sl_dtype dtype, float *acc) {
    const uint32_t bytes = sl_dtype_block_bytes(dtype);
    const sl_strip_src src = sl_strip_at(t, c0, b0 * 32);
    const char *next = (const char *)sl_tile_rows_after(t, c0, 8) + b0 * bytes;
    __m256 y[FEW];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < R; r++) y[r] = _mm256_load_ps(acc + r * SL_TILE_COLS);
    for (uint32_t b = 0; b < blocks; b++) {
        __m256i sum[FEW];
#pragma GCC unroll 8
        for (uint32_t i = 0; i < 8 * bytes; i += 64)
            _mm_prefetch(next + (size_t)b * 8 * bytes + i, _MM_HINT_T0);
        const __m256 d = sl_load_d_32(&src, b * bytes, dtype);
        few_block(&src, b * bytes, xp->code + b * R * 32, R, dtype, sum);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < R; r++) {
            if (dtype != SL_Q8_0)
                sum[r] = _mm256_sub_epi32(sum[r], _mm256_set1_epi32(xp->sum[b * R + r]));
            y[r] = sl_add_block(d, xp->scale[b * R + r], sum[r], y[r]);
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < R; r++) _mm256_store_ps(acc + r * SL_TILE_COLS, y[r]);
}

SL_INLINE void few_rows(const sl_act_tile *t, const uint32_t R, sl_dtype dtype) {
    _Alignas(64) float acc[FEW * SL_TILE_COLS];
    few_x xp;
    memset(acc, 0, R * SL_TILE_COLS * sizeof *acc);
    for (uint32_t b0 = 0; b0 < t->k / 32; b0 += PIECE) {
        uint32_t blocks = SL_MIN(PIECE, t->k / 32 - b0);
        few_pack(t, b0, blocks, &xp);
        for (uint32_t c0 = 0; c0 < t->n_cols; c0 += 8)
            few_columns(t, &xp, c0, b0, blocks, R, dtype, acc + c0);
    }
    sl_avx2_int8_store(t, acc);
}

SL_INLINE void few_of(const sl_act_tile *t, sl_dtype dtype) {
    switch (t->n_rows) {
#define CASE(R)                                                                                    \
    case R:                                                                                        \
        few_rows(t, R, dtype);                                                                     \
        break
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
        CASE(7);
        CASE(8);
#undef CASE
    default:
        break;
    }
}

SL_TILE_FORM(few_q8_0, few_of, SL_Q8_0)
SL_TILE_FORM(few_q4_0, few_of, SL_Q4_0)
SL_TILE_FORM(few_mxfp4, few_of, SL_MXFP4)
SL_TILE_FORM(strips_q8_0, strips_of, SL_Q8_0)
SL_TILE_FORM(strips_q4_0, strips_of, SL_Q4_0)
SL_TILE_FORM(strips_mxfp4, strips_of, SL_MXFP4)

/* Codes of 4 bits need fewer operations once they are in strips, so these pay sooner. */
void sl_avx2_int8_tile_32(const sl_act_tile *t) {
    if (t->dtype == SL_Q8_0)
        t->n_rows <= FEW ? few_q8_0(t) : strips_q8_0(t);
    else if (t->dtype == SL_Q4_0)
        t->n_rows <= FEW - 2 ? few_q4_0(t) : strips_q4_0(t);
    else
        t->n_rows <= FEW - 2 ? few_mxfp4(t) : strips_mxfp4(t);
}
