/* Integer products with blocks of 32: Q8_0 and Q4_0.
 *
 * Two blocks of sixteen columns are turned and stay in registers while all rows pass by: a vector
 * has the same four codes of each column, which meet four codes of a row, broadcast as they are
 * loaded, and sums come out by column. To turn 32 bytes of sixteen columns takes three steps of
 * shuffles, since two columns that are loaded into one vector need no step.
 *
 * Pipes for shuffles and arithmetic are what this loop waits for, then the number of instructions:
 * so the scales of blocks take the way over memory. */
#include "kernel/avx512/int8.h"

#define AHEAD 8u /* blocks: a scale is copied so much earlier than it is read */
#define RING  (2 * AHEAD)

SL_INLINE uint32_t block_bytes(sl_dtype dtype) {
    return dtype == SL_Q8_0 ? 34 : 18;
}

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

SL_INLINE const uint8_t *row_of(const place *s, const int c) {
    const uint8_t *p = s->p[c / 4];
    return c % 4 == 0   ? p
           : c % 4 == 1 ? p + s->stride
           : c % 4 == 2 ? p + 2 * s->stride
                        : p + s->stride3;
}

SL_INLINE void move_on(place *s, size_t bytes) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        s->p[i] += bytes;
        SL_KEEP_WORD(s->p[i]);
    }
}

/* Scales of a strip's blocks, as f16; block b in b % RING. */
typedef uint16_t scales[RING][SL_STRIP] __attribute__((aligned(64)));

/* The f16 of the block that is `at` bytes behind s. */
SL_INLINE void copy_scales(const place *s, size_t at, uint16_t to[SL_STRIP]) {
#pragma GCC unroll 16
    for (int c = 0; c < 16; c++) memcpy(&to[c], row_of(s, c) + at, 2);
}

SL_INLINE __m256i load_32(const uint8_t *p) {
    return _mm256_loadu_si256((const void *)p);
}

SL_INLINE __m512i load_both(const uint8_t *p, const uint8_t *q) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load_32(p)), load_32(q), 1);
}

/* Columns first .. first + 3 in the lower halves of four vectors and the next four in the upper
 * ones: v[j] lane L word i: word 4 (L % 2) + j of column first + 4 (L / 2) + i. */
SL_INLINE void turn_8(const place *s, const int first, __m512i *v) {
    __m512i w[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        w[i] = load_both(row_of(s, first + i) + 2, row_of(s, first + 4 + i) + 2);
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

/* The same of codes 8 above their value: the low halves of bytes, then the high ones. */
SL_INLINE void turn_q4_0(const place *s, __m512i *v) {
    const __m512i low = _mm512_set1_epi8(15);
    sl_rows16 rows;
    __m512i w[4];
#pragma GCC unroll 16
    for (int c = 0; c < 16; c++) rows.row[c] = row_of(s, c);
    sl_load_words(&rows, 2, w);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        v[j] = _mm512_and_si512(w[j], low);
        v[4 + j] = _mm512_and_si512(_mm512_srli_epi16(w[j], 4), low);
    }
}

SL_INLINE void turn(const place *s, sl_dtype dtype, __m512i *v) {
    if (dtype == SL_Q8_0)
        turn_q8_0(s, v);
    else
        turn_q4_0(s, v);
}

/* sum += v times the 32 codes at x. Spelled out, as gcc makes two instructions of each of these. */
SL_INLINE __m512i dot_32(__m512i sum, const __m512i *v, const uint8_t *x) {
    __asm__("vpdpbusd (%1)%{1to16%}, %2, %0\n\t"
            "vpdpbusd 4(%1)%{1to16%}, %3, %0\n\t"
            "vpdpbusd 8(%1)%{1to16%}, %4, %0\n\t"
            "vpdpbusd 12(%1)%{1to16%}, %5, %0\n\t"
            "vpdpbusd 16(%1)%{1to16%}, %6, %0\n\t"
            "vpdpbusd 20(%1)%{1to16%}, %7, %0\n\t"
            "vpdpbusd 24(%1)%{1to16%}, %8, %0\n\t"
            "vpdpbusd 28(%1)%{1to16%}, %9, %0"
            : "+&v"(sum)
            : "r"(x), "v"(v[0]), "v"(v[1]), "v"(v[2]), "v"(v[3]), "v"(v[4]), "v"(v[5]), "v"(v[6]),
              "v"(v[7]), "m"(*(const uint8_t(*)[32])x));
    return sum;
}

/* n blocks of a strip, one or two, the first of which is block b of the rows. */
typedef struct blocks {
    __m512i v[2][8];
    __m512 d[2];
    uint32_t b;
} blocks;

/* Onto the chains of all rows. A sum begins at what codes are above their value times the sum of
 * the row's codes: of two neighbours, of which the other counts nothing. Behind the last is still
 * the row, as 38 bytes a block and a whole number of 64 do not meet at an odd number of blocks. */
SL_INLINE void add_blocks(const sl_act_tile *t, const blocks *w, const uint32_t n, sl_dtype dtype,
                          __m512 *acc) {
    const int bias = dtype == SL_Q8_0 ? 128 : 8;
    const __m512i of[2] = {_mm512_set1_epi32(-bias & 0xffff), _mm512_set1_epi32(-bias * 65536)};
    const size_t codes = (size_t)w->b * 32, factors = t->k + (size_t)w->b * 4;
    const size_t sums = t->k + t->k / 32 * 4 + (size_t)w->b * 2;
    const uint8_t *const *x = t->x;
    for (uint32_t r = 0; r < t->n_rows; r++) {
        __m512 a = acc[r];
#pragma GCC unroll 2
        for (uint32_t i = 0; i < n; i++) {
            __m512i sum = _mm512_dpwssd_epi32(_mm512_setzero_si512(), of[i], sl_quad(x[r] + sums));
            const float *dx = (const float *)(x[r] + factors) + i;
            sum = dot_32(sum, w->v[i], x[r] + codes + 32 * i);
            a = sl_add_block(w->d[i], _mm512_set1_ps(*dx), sum, a);
        }
        acc[r] = a;
    }
}

/* Blocks b and b + 1, or the last alone, from *s on, which moves behind them; what comes later is
 * asked for. */
SL_INLINE void take_blocks(const sl_act_tile *t, place *s, scales *d, uint32_t b, const uint32_t n,
                           sl_dtype dtype, const uint8_t *later, __m512 *acc) {
    const size_t bytes = block_bytes(dtype);
    blocks w = {.b = b};
#pragma GCC unroll 2
    for (uint32_t i = 0; i < n; i++) {
        sl_ask_far(later + i * SL_STRIP * bytes, SL_STRIP * bytes);
        w.d[i] = _mm512_cvtph_ps(_mm256_load_si256((const void *)(*d)[(b + i) % RING]));
        if (b + i + AHEAD < t->k / 32) copy_scales(s, AHEAD * bytes, (*d)[(b + i + AHEAD) % RING]);
        turn(s, dtype, w.v[i]);
        move_on(s, bytes);
    }
    add_blocks(t, &w, n, dtype, acc);
}

SL_INLINE void strip_of(const sl_act_tile *t, uint32_t c0, sl_dtype dtype, __m512 *acc) {
    const uint32_t all = t->k / 32, bytes = block_bytes(dtype);
    const uint8_t *later = sl_tile_rows_after(t, c0, SL_STRIP);
    place s = place_of(t, c0);
    scales d;
    for (uint32_t b = 0; b < SL_MIN(AHEAD, all); b++) copy_scales(&s, (size_t)b * bytes, d[b]);
    for (uint32_t b = 0; b < all; b += 2, later += 2 * SL_STRIP * bytes) {
        if (b + 1 < all)
            take_blocks(t, &s, &d, b, 2, dtype, later, acc);
        else
            take_blocks(t, &s, &d, b, 1, dtype, later, acc);
    }
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

void sl_avx512_int8_tile_32(const sl_act_tile *t) {
    if (t->n_cols < SL_STRIP)
        sl_call_int8_tile(&sl_kernels_avx2, t);
    else if (t->dtype == SL_Q8_0)
        tile_q8_0(t);
    else
        tile_q4_0(t);
}
