/* Products of integers by tiles: sum[c][r] += sum over v of w[c][v] * x[v][r], sixteen weight rows
 * (columns of the result) and sixteen rows of activations.
 *
 * Weights are unpacked row by row and never turned; a piece of 256 values of the rows, turned once,
 * meets all strips of the call before the next piece. Blocks of 32 have a sum each. Of a block of
 * 256, whose parts have scales, codes are multiplied with the scales before, which takes two digits
 * of 8 bits: Q4_K and Q5_K cut the scale, 8 high + low, Q6_K cuts the product, 64 high + low. So
 * two sums are left of all 256 values. Sums of integers are exact: the bits are those of
 * docs/numbers.md.
 *
 * On the CPU where this was measured tiles and vectors are not computed with at the same time, so
 * nothing is interleaved. */
#include "kernel/amx/amx.h"

/* ---- tile registers ---- */

/* Names: macros, as their text becomes part of the instruction. */
#define SUM0 0
#define SUM1 1
#define SUM2 2
#define SUM3 3
#define W0   4
#define W1   5
#define X0   6
#define X1   7

/* ---- blocks of 32 ---- */

SL_INLINE __m128i load_16(const void *p) {
    return _mm_loadu_si128(p);
}

SL_INLINE uint16_t half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

/* Codes of a block; values 0 .. 15 of codes of 4 bits are the low halves of its bytes. */
SL_INLINE __m256i codes_32(const uint8_t *block, sl_dtype dtype) {
    static const _Alignas(16) int8_t mxfp4[16] = SL_MXFP4_CODES;
    block += sl_block_head_32(dtype);
    if (dtype == SL_Q8_0) return _mm256_loadu_si256((const void *)block);
    const __m128i v = load_16(block);
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(v), _mm_srli_epi16(v, 4), 1);
    both = _mm256_and_si256(both, _mm256_set1_epi8(15));
    if (dtype == SL_Q4_0) return _mm256_sub_epi8(both, _mm256_set1_epi8(8));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_16(mxfp4)), both);
}

/* A block's scale: f16, or MXFP4's byte. */
SL_INLINE uint16_t scale_at(const uint8_t *block, sl_dtype dtype) {
    return dtype == SL_MXFP4 ? block[0] : half_at(block);
}

SL_INLINE __m256 scales_32(__m128i of, sl_dtype dtype) {
    if (dtype != SL_MXFP4) return _mm256_cvtph_ps(of);
    const __m512i e = _mm512_castsi256_si512(_mm256_cvtepu16_epi32(of));
    return _mm512_castps512_ps256(sl_half_scales(e));
}

/* n blocks of a row, and zeros. */
SL_INLINE void unpack_32(const uint8_t *row, const uint32_t n, sl_dtype dtype, amx_strip *w,
                         uint32_t c) {
    const size_t step = sl_dtype_block_bytes(dtype);
    __m128i h = _mm_setzero_si128();
    if (n > 0) h = _mm_insert_epi16(h, scale_at(row, dtype), 0);
    if (n > 1) h = _mm_insert_epi16(h, scale_at(row + step, dtype), 1);
    if (n > 2) h = _mm_insert_epi16(h, scale_at(row + 2 * step, dtype), 2);
    if (n > 3) h = _mm_insert_epi16(h, scale_at(row + 3 * step, dtype), 3);
    if (n > 4) h = _mm_insert_epi16(h, scale_at(row + 4 * step, dtype), 4);
    if (n > 5) h = _mm_insert_epi16(h, scale_at(row + 5 * step, dtype), 5);
    if (n > 6) h = _mm_insert_epi16(h, scale_at(row + 6 * step, dtype), 6);
    if (n > 7) h = _mm_insert_epi16(h, scale_at(row + 7 * step, dtype), 7);
    _mm256_store_ps(w->d[c], scales_32(h, dtype));
#pragma GCC unroll 4
    for (uint32_t b = 0; b < AMX_PARTS; b += 2) {
        __m512i v = _mm512_setzero_si512();
        if (b < n) v = _mm512_zextsi256_si512(codes_32(row + b * step, dtype));
        if (b + 1 < n) v = _mm512_inserti64x4(v, codes_32(row + (b + 1) * step, dtype), 1);
        _mm512_store_si512(w->low[c] + b * 32, v);
    }
}

/* sum = weights that are there times a group's quads. It takes 52 cycles, for which the register is
 * left alone: the sum of another part goes to memory meanwhile. */
#define MULTIPLY(sum, w_tile, x_tile, quads)                                                       \
    do {                                                                                           \
        AMX_LOAD(x_tile, quads, 64);                                                               \
        _tile_zero(sum);                                                                           \
        _tile_dpbssd(sum, w_tile, x_tile);                                                         \
    } while (0)

/* With one group of rows. */
SL_INLINE void products_32_one(const amx_strip *w, const amx_rows *x, amx_sums *sum) {
#pragma GCC unroll 2
    for (uint32_t p = 0; p < AMX_PARTS; p += 4) {
        AMX_LOAD(W0, w->low[0] + p * 32, AMX_PIECE);
        MULTIPLY(SUM0, W0, X0, x->quad[0][p * 8]);
        if (p) _tile_stored(SUM3, sum[0][p - 1], 64);
        AMX_LOAD(W1, w->low[0] + (p + 1) * 32, AMX_PIECE);
        MULTIPLY(SUM1, W1, X1, x->quad[0][(p + 1) * 8]);
        _tile_stored(SUM0, sum[0][p], 64);
        AMX_LOAD(W0, w->low[0] + (p + 2) * 32, AMX_PIECE);
        MULTIPLY(SUM2, W0, X0, x->quad[0][(p + 2) * 8]);
        _tile_stored(SUM1, sum[0][p + 1], 64);
        AMX_LOAD(W1, w->low[0] + (p + 3) * 32, AMX_PIECE);
        MULTIPLY(SUM3, W1, X1, x->quad[0][(p + 3) * 8]);
        _tile_stored(SUM2, sum[0][p + 2], 64);
    }
    _tile_stored(SUM3, sum[0][AMX_PARTS - 1], 64);
}

/* With two. */
SL_INLINE void products_32(const amx_strip *w, const amx_rows *x, amx_sums *sum) {
#pragma GCC unroll 4
    for (uint32_t p = 0; p < AMX_PARTS; p += 2) {
        AMX_LOAD(W0, w->low[0] + p * 32, AMX_PIECE);
        MULTIPLY(SUM0, W0, X0, x->quad[0][p * 8]);
        MULTIPLY(SUM1, W0, X1, x->quad[1][p * 8]);
        if (p) {
            _tile_stored(SUM2, sum[0][p - 1], 64);
            _tile_stored(SUM3, sum[1][p - 1], 64);
        }
        AMX_LOAD(W1, w->low[0] + (p + 1) * 32, AMX_PIECE);
        MULTIPLY(SUM2, W1, X0, x->quad[0][(p + 1) * 8]);
        MULTIPLY(SUM3, W1, X1, x->quad[1][(p + 1) * 8]);
        _tile_stored(SUM0, sum[0][p], 64);
        _tile_stored(SUM1, sum[1][p], 64);
    }
    _tile_stored(SUM2, sum[0][AMX_PARTS - 1], 64);
    _tile_stored(SUM3, sum[1][AMX_PARTS - 1], 64);
}

/* ---- blocks of 256 ---- */

/* Digits of scales times the codes 0 .. 15, and times 16. */
static const _Alignas(64) uint8_t times[8][16] = {
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30},
    {0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45},
    {0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60},
    {0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75},
    {0, 6, 12, 18, 24, 30, 36, 42, 48, 54, 60, 66, 72, 78, 84, 90},
    {0, 7, 14, 21, 28, 35, 42, 49, 56, 63, 70, 77, 84, 91, 98, 105}};
static const _Alignas(64) uint8_t sixteen[8][16] = {{0},
                                                    {[0 ... 15] = 16},
                                                    {[0 ... 15] = 32},
                                                    {[0 ... 15] = 48},
                                                    {[0 ... 15] = 64},
                                                    {[0 ... 15] = 80},
                                                    {[0 ... 15] = 96},
                                                    {[0 ... 15] = 112}};

/* A row of a table in each quarter: a's in the first two, b's in the others. */
SL_INLINE __m512i rows_of(const uint8_t (*table)[16], uint64_t a, uint64_t b) {
    const __m256i v = _mm256_broadcastsi128_si256(load_16(table[a]));
    return _mm512_mask_broadcast_i32x4(_mm512_castsi256_si512(v), 0xff00, load_16(table[b]));
}

/* 64 codes of 4 bits, and where `more` says so 16, times the digits of two scales. */
SL_INLINE void scale_45(__m512i code, __mmask64 more, uint64_t a, uint64_t b, sl_dtype dtype,
                        uint8_t *low, uint8_t *high) {
    __m512i l = _mm512_shuffle_epi8(rows_of(times, a & 7, b & 7), code);
    __m512i h = _mm512_shuffle_epi8(rows_of(times, a >> 3, b >> 3), code);
    if (dtype == SL_Q5_K) {
        l = _mm512_mask_add_epi8(l, more, l, rows_of(sixteen, a & 7, b & 7));
        h = _mm512_mask_add_epi8(h, more, h, rows_of(sixteen, a >> 3, b >> 3));
    }
    _mm512_store_si512(low, l);
    _mm512_store_si512(high, h);
}

/* Where bit i of the first 32 bytes is set, and bit i + 2 of the others. */
SL_INLINE __mmask64 bits_of(__m512i v, const int i) {
    const __m512i bit =
        _mm512_inserti64x4(_mm512_set1_epi8((char)(1 << i)), _mm256_set1_epi8((char)(4 << i)), 1);
    return _mm512_test_epi8_mask(v, bit);
}

/* A row's block: parts in the order of amx_part_at. */
SL_INLINE void unpack_45(const uint8_t *row, sl_dtype dtype, uint8_t *low, uint8_t *high) {
    const __m512i four = _mm512_set1_epi8(15);
    const uint8_t *code = row + (dtype == SL_Q5_K ? 48 : 16);
    const __m512i fifth = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(row + 16)));
    uint32_t first, rest;
    memcpy(&first, row + 4, 4);
    memcpy(&rest, row + 12, 4);
    rest = (rest & 0x0f0f0f0f) | (first >> 2 & 0x30303030);
    const uint64_t scale = (first & 0x3f3f3f3f) | (uint64_t)rest << 32;
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++, low += 128, high += 128) {
        const __m512i v = _mm512_loadu_si512(code + 64 * i);
        const uint64_t s = scale >> 32 * i;
        scale_45(_mm512_and_si512(v, four), bits_of(fifth, 4 * i), s & 63, s >> 16 & 63, dtype, low,
                 high);
        scale_45(_mm512_and_si512(_mm512_srli_epi16(v, 4), four), bits_of(fifth, 4 * i + 1),
                 s >> 8 & 63, s >> 24 & 63, dtype, low + 64, high + 64);
    }
}

/* 64 codes, 32 above their value, times their scales, of 16 values each, one to a quarter. */
SL_INLINE void scale_6(__m512i code, __m512i scale, uint8_t *low, uint8_t *high) {
    const __m512i bytes = _mm512_set1_epi16(255), above = _mm512_slli_epi16(scale, 5);
    __m512i even = _mm512_and_si512(code, bytes), odd = _mm512_srli_epi16(code, 8);
    even = _mm512_sub_epi16(_mm512_mullo_epi16(even, scale), above);
    odd = _mm512_sub_epi16(_mm512_mullo_epi16(odd, scale), above);
    /* the bytes of the one where the mask has ones, of the other elsewhere */
    __m512i l = _mm512_ternarylogic_epi32(even, _mm512_slli_epi16(odd, 8), bytes, 0xe4);
    __m512i h = _mm512_ternarylogic_epi32(_mm512_srai_epi16(even, 6), _mm512_slli_epi16(odd, 2),
                                          bytes, 0xe4);
    _mm512_store_si512(low, _mm512_and_si512(l, _mm512_set1_epi8(63)));
    _mm512_store_si512(high, h);
}

SL_INLINE void unpack_6(const uint8_t *row, uint8_t *low, uint8_t *high) {
    const __m512i four = _mm512_set1_epi8(15), top = _mm512_set1_epi8(48);
    const __m512i scale = _mm512_castsi256_si512(_mm256_cvtepi8_epi16(load_16(row + 192)));
    const __m512i quarter = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_setr_m128i(_mm_set1_epi16(0), _mm_set1_epi16(1))),
        _mm256_setr_m128i(_mm_set1_epi16(2), _mm_set1_epi16(3)), 1);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++, low += 128, high += 128) {
        __m512i v = _mm512_loadu_si512(row + 64 * h);
        __m512i t = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(row + 128 + 32 * h)));
        __m512i a = _mm512_and_si512(_mm512_sllv_epi16(t, sl_by_halves(4, 2)), top);
        __m512i b = _mm512_and_si512(_mm512_srlv_epi16(t, sl_by_halves(0, 2)), top);
        a = _mm512_or_si512(a, _mm512_and_si512(v, four));
        b = _mm512_or_si512(b, _mm512_and_si512(_mm512_srli_epi16(v, 4), four));
        const __m512i at = _mm512_add_epi16(quarter, _mm512_set1_epi16((short)(8 * h)));
        const __m512i then = _mm512_add_epi16(at, _mm512_set1_epi16(4));
        scale_6(a, _mm512_permutexvar_epi16(at, scale), low, high);
        scale_6(b, _mm512_permutexvar_epi16(then, scale), low + 64, high + 64);
    }
}

/* Scales of blocks, of all columns at once. */
SL_INLINE void take_heads(const sl_rows16 *s, sl_dtype dtype, amx_strip *w) {
    _Alignas(64) float d[2][SL_STRIP];
    sl_head256 h;
    if (dtype == SL_Q6_K) {
        h.d = h.dmin = sl_load_d(s, 208);
    } else {
        sl_load_head(s, 0, dtype, &h);
        for (uint32_t i = 0; i < 4; i++) _mm512_store_si512(w->min[i], h.min[i]);
    }
    _mm512_store_ps(d[0], h.d);
    _mm512_store_ps(d[1], h.dmin);
    for (uint32_t c = 0; c < SL_STRIP; c++) w->d[c][0] = d[0][c], w->d[c][1] = d[1][c];
}

/* Of a block of 256 the low digits' sum is part 0, the high digits' part 1. `multiply`: weights
 * with a sign or without. */
#define PRODUCTS_256(multiply)                                                                     \
    do {                                                                                           \
        _tile_zero(SUM0);                                                                          \
        _tile_zero(SUM1);                                                                          \
        _tile_zero(SUM2);                                                                          \
        _tile_zero(SUM3);                                                                          \
        for (uint32_t i = 0; i < AMX_PIECE; i += 64) {                                             \
            AMX_LOAD(X0, x->quad[0][i / 4], 64);                                                   \
            AMX_LOAD(W0, w->low[0] + i, AMX_PIECE);                                                \
            multiply(SUM0, W0, X0);                                                                \
            AMX_LOAD(W1, w->high[0] + i, AMX_PIECE);                                               \
            multiply(SUM1, W1, X0);                                                                \
            if (groups == 1) continue;                                                             \
            AMX_LOAD(X1, x->quad[1][i / 4], 64);                                                   \
            multiply(SUM2, W0, X1);                                                                \
            multiply(SUM3, W1, X1);                                                                \
        }                                                                                          \
        _tile_stored(SUM0, sum[0][0], 64);                                                         \
        _tile_stored(SUM1, sum[0][1], 64);                                                         \
        if (groups == 1) break;                                                                    \
        _tile_stored(SUM2, sum[1][0], 64);                                                         \
        _tile_stored(SUM3, sum[1][1], 64);                                                         \
    } while (0)

SL_INLINE void products_256(const amx_strip *w, const amx_rows *x, uint32_t groups, sl_dtype dtype,
                            amx_sums *sum) {
    if (dtype == SL_Q6_K)
        PRODUCTS_256(_tile_dpbssd);
    else
        PRODUCTS_256(_tile_dpbusd);
}

SL_INLINE __m512 minima(const amx_strip *w, const amx_rows *x, uint32_t g, uint32_t c) {
    __m512i a = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++)
        a = _mm512_dpwssd_epi32(a, _mm512_load_si512(x->sums[i][g]),
                                _mm512_set1_epi32(w->min[i][c]));
    return _mm512_cvtepi32_ps(a);
}

/* ---- sums ---- */

/* A column's sums with a group of rows onto its chains; dx: the rows' scales. */
SL_INLINE __m512 add_column(const amx_strip *w, const amx_rows *x, amx_sums sum, uint32_t g,
                            uint32_t c, const __m512 *dx, sl_dtype dtype, __m512 acc) {
    if (sl_act_kind_of(dtype) == SL_ACT_256) {
        __m512i high = _mm512_slli_epi32(_mm512_load_si512(sum[1][c]), dtype == SL_Q6_K ? 6 : 3);
        __m512i all = _mm512_add_epi32(high, _mm512_load_si512(sum[0][c]));
        acc = sl_add_block(_mm512_set1_ps(w->d[c][0]), dx[0], all, acc);
        if (dtype == SL_Q6_K) return acc;
        const __m512 dmin = _mm512_mul_ps(_mm512_set1_ps(w->d[c][1]), dx[0]);
        return _mm512_fnmadd_ps(dmin, minima(w, x, g, c), acc);
    }
#pragma GCC unroll 8
    for (uint32_t p = 0; p < AMX_PARTS; p++)
        acc = sl_add_block(_mm512_set1_ps(w->d[c][p]), dx[p], _mm512_load_si512(sum[p][c]), acc);
    return acc;
}

/* What is asked for while a strip's piece is worked on, a sixteenth with each column. The near:
 * rows of the strip that comes after, which are in the second cache. The far, from memory: as many
 * bytes of the tile that comes after, if one does, in the order in which they lie, some while
 * weights are unpacked, the others while sums are added up. */
typedef struct hints {
    const uint8_t *near, *far;
    size_t stride; /* of near */
} hints;

#define FAR_FIRST 64u /* bytes of a column that are asked for while it is unpacked */

/* All columns. */
SL_INLINE void add_columns(const amx_strip *w, const amx_rows *x, amx_sums *sum, uint32_t groups,
                           const hints *ask, sl_dtype dtype, amx_chains *acc) {
    const size_t bytes = sl_dtype_row_bytes(dtype, AMX_PIECE);
    const uint32_t scales = sl_act_kind_of(dtype) == SL_ACT_256 ? 1 : AMX_PARTS;
    for (uint32_t g = 0; g < groups; g++) {
        __m512 dx[AMX_PARTS];
#pragma GCC unroll 8
        for (uint32_t i = 0; i < scales; i++) {
            dx[i] = _mm512_load_ps(x->scale[i][g]);
            SL_KEEP(dx[i]);
        }
        for (uint32_t c = 0; c < SL_STRIP; c++) {
            const __m512 a = _mm512_load_ps(acc[g][c]);
            _mm512_store_ps(acc[g][c], add_column(w, x, sum[g], g, c, dx, dtype, a));
            if (g > 0) continue;
            sl_ask(ask->near + c * ask->stride, bytes);
            if (ask->far) sl_ask_far(ask->far + c * bytes + FAR_FIRST, bytes - FAR_FIRST);
        }
    }
}

/* ---- tiles ---- */

/* Piece p of columns c0 .. c0 + 15. */
SL_INLINE void take_strip(const sl_act_tile *t, uint32_t c0, uint32_t p, const uint8_t *far,
                          sl_dtype dtype, amx_strip *w) {
    const sl_rows16 s = sl_rows_at(t, c0, p * AMX_PIECE);
    const uint32_t n = SL_MIN(AMX_PIECE, t->k - p * AMX_PIECE) / 32;
    if (sl_act_kind_of(dtype) == SL_ACT_256) take_heads(&s, dtype, w);
    for (uint32_t c = 0; c < SL_STRIP; c++) {
        if (far) sl_ask_far(far + c * sl_dtype_row_bytes(dtype, AMX_PIECE), FAR_FIRST);
        if (dtype == SL_Q6_K)
            unpack_6(s.row[c], w->low[c], w->high[c]);
        else if (dtype == SL_Q4_K || dtype == SL_Q5_K)
            unpack_45(s.row[c], dtype, w->low[c], w->high[c]);
        else if (n == AMX_PARTS)
            unpack_32(s.row[c], AMX_PARTS, dtype, w, c);
        else
            unpack_32(s.row[c], n, dtype, w, c);
    }
}

/* Where the strip after that of columns c0 .. c0 + 15 at piece p is, if only to be asked for. */
SL_INLINE const uint8_t *strip_after(const sl_act_tile *t, uint32_t c0, uint32_t p) {
    if (c0 + SL_STRIP < t->n_cols) return sl_tile_row(t, c0 + SL_STRIP, p * AMX_PIECE);
    if ((p + 1) * AMX_PIECE < t->k) return sl_tile_row(t, 0, (p + 1) * AMX_PIECE);
    return t->next ? t->next : t->w;
}

SL_INLINE void tile_of(const sl_act_tile *t, sl_dtype dtype) {
    _Alignas(64) amx_chains acc[AMX_STRIPS][AMX_GROUPS];
    _Alignas(64) amx_sums sum[AMX_GROUPS];
    amx_strip w;
    amx_rows x;
    const bool of_256 = sl_act_kind_of(dtype) == SL_ACT_256;
    const uint32_t groups = (t->n_rows + AMX_GROUP - 1) / AMX_GROUP;
    const uint8_t *far = t->next; /* NULL where the same weights come again, too */
    amx_configure(of_256 ? 64 : 32);
    memset(acc, 0, (t->n_cols + SL_STRIP - 1) / SL_STRIP * sizeof acc[0]);
    for (uint32_t p = 0; p * AMX_PIECE < t->k; p++) {
        sl_amx_take_rows(t, p, &x);
        for (uint32_t c0 = 0; c0 < t->n_cols; c0 += SL_STRIP) {
            const hints ask = {strip_after(t, c0, p), far, t->w_stride};
            take_strip(t, c0, p, far, dtype, &w);
            if (of_256)
                products_256(&w, &x, groups, dtype, sum);
            else if (groups == 1)
                products_32_one(&w, &x, sum);
            else
                products_32(&w, &x, sum);
            add_columns(&w, &x, sum, groups, &ask, dtype, acc[c0 / SL_STRIP]);
            if (far) far += SL_STRIP * sl_dtype_row_bytes(dtype, AMX_PIECE);
        }
    }
    _tile_release();
    for (uint32_t c0 = 0; c0 < t->n_cols; c0 += SL_STRIP) sl_amx_store(t, acc[c0 / SL_STRIP], c0);
}

SL_TILE_FORM(tile_q8_0, tile_of, SL_Q8_0)
SL_TILE_FORM(tile_q4_0, tile_of, SL_Q4_0)
SL_TILE_FORM(tile_mxfp4, tile_of, SL_MXFP4)
SL_TILE_FORM(tile_q4_k, tile_of, SL_Q4_K)
SL_TILE_FORM(tile_q5_k, tile_of, SL_Q5_K)
SL_TILE_FORM(tile_q6_k, tile_of, SL_Q6_K)

void sl_amx_int8_tile(const sl_act_tile *t) {
    if (t->n_rows == 0 || t->n_cols == 0) return;
    if (t->dtype == SL_Q8_0) tile_q8_0(t);
    if (t->dtype == SL_Q4_0) tile_q4_0(t);
    if (t->dtype == SL_MXFP4) tile_mxfp4(t);
    if (t->dtype == SL_Q4_K) tile_q4_k(t);
    if (t->dtype == SL_Q5_K) tile_q5_k(t);
    if (t->dtype == SL_Q6_K) tile_q6_k(t);
}
