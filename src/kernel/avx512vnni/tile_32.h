/* Integer products with blocks of 32: Q8_0, Q4_0 and MXFP4, for the tables that ask for weights as
 * SL_ASK_STRIPS says (ask.h).
 *
 * Two blocks of sixteen columns are turned and stay in registers while all rows pass by: a vector
 * has the same four codes of each column, which meet four codes of a row, broadcast as they are
 * loaded, and sums come out by column. To turn 32 bytes of sixteen columns takes three steps of
 * shuffles, since two columns that are loaded into one vector need no step.
 *
 * Pipes for shuffles and arithmetic are what this loop waits for, and weights that come from
 * memory: lines that are asked for take the few places that a core has for misses, as do loads of
 * lines that only the second cache has. So both are asked for evenly among the rows, never at
 * once. */
#ifndef SL_KERNEL_AVX512VNNI_TILE_32_H
#define SL_KERNEL_AVX512VNNI_TILE_32_H

#include "kernel/avx512vnni/int8_32.h"

#define NEAR 128 /* bytes behind a pair of blocks, of which each column's line is asked for */

/* The rows of a strip, each fourth by address: all sixteen would not fit the registers. */
typedef struct place {
    const uint8_t *p[4];
    size_t stride, stride3;
} place;

SL_INLINE place place_of(const sl_act_tile *t, uint32_t c0) {
    place s = {.stride = t->w_stride, .stride3 = 3 * t->w_stride};
    for (uint32_t i = 0; i < 4; i++) s.p[i] = sl_tile_row(t, c0 + 4 * i, 0);
    SL_KEEP_WORD(s.stride3);
    return s;
}

/* The instruction `op` with row c of the strip: spelled out, as gcc makes addresses of rows
 * beforehand, most of which wait in vector registers. c: a constant. */
#define OF_ROW(op, strip, c, ...)                                                                  \
    do {                                                                                           \
        const place *s_ = (strip);                                                                 \
        const int c_ = (c);                                                                        \
        if (c_ % 4 == 0)                                                                           \
            __asm__(op("(%1)") : __VA_ARGS__ : "r"(s_->p[c_ / 4]));                                \
        else if (c_ % 4 == 1)                                                                      \
            __asm__(op("(%1,%2)") : __VA_ARGS__ : "r"(s_->p[c_ / 4]), "r"(s_->stride));            \
        else if (c_ % 4 == 2)                                                                      \
            __asm__(op("(%1,%2,2)") : __VA_ARGS__ : "r"(s_->p[c_ / 4]), "r"(s_->stride));          \
        else                                                                                       \
            __asm__(op("(%1,%2)") : __VA_ARGS__ : "r"(s_->p[c_ / 4]), "r"(s_->stride3));           \
    } while (0)

/* Codes, or a part of them for lane 0 to 3; MXFP4's are behind one byte. */
#define LOAD_32(row)       "vmovdqu64 2" row ", %t0"
#define HIGH_32(row)       "vinserti64x4 $1, 2" row ", %0, %0"
#define LOAD_16(row)       "vmovdqu64 2" row ", %x0"
#define LANE_1(row)        "vinserti32x4 $1, 2" row ", %0, %0"
#define LANE_2(row)        "vinserti32x4 $2, 2" row ", %0, %0"
#define LANE_3(row)        "vinserti32x4 $3, 2" row ", %0, %0"
#define LOAD_16_MXFP4(row) "vmovdqu64 1" row ", %x0"
#define LANE_1_MXFP4(row)  "vinserti32x4 $1, 1" row ", %0, %0"
#define LANE_2_MXFP4(row)  "vinserti32x4 $2, 1" row ", %0, %0"
#define LANE_3_MXFP4(row)  "vinserti32x4 $3, 1" row ", %0, %0"
/* The next block's scale and codes before it, then this block's scale in place of the first codes.
 */
#define SCALES_Q8_0(row)  "movl 32" row ", %0\n\tmovw " row ", %w0"
#define SCALES_Q4_0(row)  "movl 16" row ", %0\n\tmovw " row ", %w0"
#define SCALES_MXFP4(row) "movl 14" row ", %0\n\tmovb " row ", %b0"

SL_INLINE void move_on(place *s, size_t bytes) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        s->p[i] += bytes;
        SL_KEEP_WORD(s->p[i]);
    }
}

/* Scales of the two blocks that a strip is at. By way of memory: a gather is no faster here, and on
 * some processors very slow. */
SL_INLINE void load_scales(const place *s, sl_dtype dtype, __m512 *out) {
    uint32_t both[SL_STRIP];
#pragma GCC unroll 16
    for (int c = 0; c < 16; c++)
        if (dtype == SL_Q8_0)
            OF_ROW(SCALES_Q8_0, s, c, "=&r"(both[c]));
        else if (dtype == SL_Q4_0)
            OF_ROW(SCALES_Q4_0, s, c, "=&r"(both[c]));
        else
            OF_ROW(SCALES_MXFP4, s, c, "=&r"(both[c]));
    const __m512i v = _mm512_loadu_si512(both);
    if (dtype == SL_MXFP4) {
        out[0] = sl_half_scales(_mm512_and_si512(v, _mm512_set1_epi32(255)));
        out[1] = sl_half_scales(_mm512_srli_epi32(v, 24));
        return;
    }
    out[0] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
    out[1] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16)));
}

/* Columns first .. first + 3 in the lower halves of four vectors and the next four in the upper
 * ones: v[j] lane L word i: word 4 (L % 2) + j of column first + 4 (L / 2) + i. */
SL_INLINE void turn_8(const place *s, const int first, __m512i *v) {
    __m512i w[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        OF_ROW(LOAD_32, s, first + i, "=v"(w[i]));
        OF_ROW(HIGH_32, s, first + 4 + i, "+v"(w[i]));
    }
    sl_turn_words(w, v);
}

/* A block's quads of codes, 128 above their value: v[i] word c is of column c. */
SL_INLINE void turn_q8_0(const place *s, __m512i *v) {
    const __m512i above = _mm512_set1_epi8((char)0x80);
    __m512i a[4], b[4];
    turn_8(s, 0, a);
    turn_8(s, 8, b);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        v[j] = _mm512_xor_si512(_mm512_shuffle_i32x4(a[j], b[j], 0x88), above);
        v[4 + j] = _mm512_xor_si512(_mm512_shuffle_i32x4(a[j], b[j], 0xdd), above);
    }
}

/* 16 bytes of codes of columns c, c + 4, c + 8 and c + 12. */
SL_INLINE __m512i load_4(const place *s, const int c, sl_dtype dtype) {
    __m512i p;
    if (dtype == SL_Q4_0) {
        OF_ROW(LOAD_16, s, c, "=v"(p));
        OF_ROW(LANE_1, s, c + 4, "+v"(p));
        OF_ROW(LANE_2, s, c + 8, "+v"(p));
        OF_ROW(LANE_3, s, c + 12, "+v"(p));
    } else {
        OF_ROW(LOAD_16_MXFP4, s, c, "=v"(p));
        OF_ROW(LANE_1_MXFP4, s, c + 4, "+v"(p));
        OF_ROW(LANE_2_MXFP4, s, c + 8, "+v"(p));
        OF_ROW(LANE_3_MXFP4, s, c + 12, "+v"(p));
    }
    return p;
}

/* The same of codes of 4 bits, the low halves of bytes, then the high ones: 8 above their value, or
 * 12. */
SL_INLINE void turn_4(const place *s, sl_dtype dtype, __m512i *v) {
    static const uint8_t mxfp4[16] = SL_MXFP4_CODES_ABOVE;
    const __m512i of = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)mxfp4));
    const __m512i low = _mm512_set1_epi8(15);
    __m512i p[4], w[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) p[c] = load_4(s, c, dtype);
    sl_turn_words(p, w);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        v[j] = _mm512_and_si512(w[j], low);
        v[4 + j] = _mm512_and_si512(_mm512_srli_epi16(w[j], 4), low);
    }
#pragma GCC unroll 8
    for (int j = 0; dtype == SL_MXFP4 && j < 8; j++) v[j] = _mm512_shuffle_epi8(of, v[j]);
}

SL_INLINE void turn(const place *s, sl_dtype dtype, __m512i *v) {
    if (dtype == SL_Q8_0)
        turn_q8_0(s, v);
    else
        turn_4(s, dtype, v);
}

SL_INLINE void take_codes(place *s, uint32_t i, sl_dtype dtype, sl_blocks_32 *w) {
    turn(s, dtype, w->v[i]);
    move_on(s, sl_dtype_block_bytes(dtype));
}

SL_INLINE void strip_of(const sl_act_tile *t, uint32_t c0, sl_dtype dtype, __m512 *acc) {
    const uint32_t all = t->k / 32, bytes = sl_dtype_block_bytes(dtype);
    const uint8_t *later = sl_tile_strips_after(t, c0, SL_STRIP, sl_strips_ahead(t, 1));
    place s = place_of(t, c0);
    sl_blocks_32 w;
    for (w.b = 0; w.b + 2 <= all; w.b += 2) {
        load_scales(&s, dtype, w.d);
        take_codes(&s, 0, dtype, &w);
        take_codes(&s, 1, dtype, &w);
        w.later = later + w.b * SL_STRIP * bytes;
        w.near = s.p[0] + NEAR;
        sl_add_pair_32(t, &w, dtype, false, acc);
    }
    if (w.b == all) return;
    const sl_rows16 last = sl_rows_at(t, c0, w.b * 32);
    w.d[0] = sl_load_d_32(&last, 0, dtype);
    take_codes(&s, 0, dtype, &w);
    sl_add_rows_32(t, &w, 0, t->n_rows, 0, 1, dtype, false, acc);
}

/* The last strip ends with the tile, so that some of its columns may be done for the second time.
 */
SL_INLINE void tile_of(const sl_act_tile *t, sl_dtype dtype) {
    for (uint32_t c = 0; c < t->n_cols; c += SL_STRIP) {
        const uint32_t c0 = SL_MIN(c, t->n_cols - SL_STRIP);
        __m512 acc[SL_TILE_ROWS];
        for (uint32_t r = 0; r < t->n_rows; r++) acc[r] = _mm512_setzero_ps();
        strip_of(t, c0, dtype, acc);
        for (uint32_t r = 0; r < t->n_rows; r++)
            _mm512_storeu_ps(t->y + (size_t)r * t->y_stride + c0, acc[r]);
    }
}

SL_TILE_FORM(tile_q8_0, tile_of, SL_Q8_0)
SL_TILE_FORM(tile_q4_0, tile_of, SL_Q4_0)
SL_TILE_FORM(tile_mxfp4, tile_of, SL_MXFP4)

static void int8_tile_32(const sl_act_tile *t) {
    if (t->n_cols < SL_STRIP)
        sl_call_int8_tile(&sl_kernels_avx2, t);
    else if (t->dtype == SL_Q8_0)
        tile_q8_0(t);
    else if (t->dtype == SL_Q4_0)
        tile_q4_0(t);
    else
        tile_mxfp4(t);
}

#endif
