/* Integer products of weights in strips (quant/strips.h): a vector is loaded as other forms have to
 * turn it. Blocks of 32 stay in registers while all rows pass by, blocks of 256 are unpacked for
 * many rows as others are; with few rows each line meets them as it is unpacked.
 *
 * A strip is one stream of memory. What comes FAR later is asked for to the second cache, and what
 * comes next to the first: loads that miss it hold up the products of three and more rows. */
#include "kernel/avx512vnni/avx512vnni.h"

#include "kernel/avx512vnni/int8_32.h"
#include "kernel/avx512vnni/int8_many.h"
#include "kernel/strip_steps.h"

#define FAR  8704u /* bytes */
#define NEXT 1088u
#define FEW  4u /* rows of blocks of 256 that a line meets */

/* The weights of a tile and what is taken after them. */
typedef struct stream {
    const uint8_t *end, *further;
} stream;

SL_INLINE stream stream_of(const sl_act_tile *t) {
    const uint8_t *end = (const uint8_t *)t->w + t->n_cols * t->w_stride;
    return (stream){end, t->next && sl_tile_is_dense(t) ? t->next : end};
}

/* What is taken so many bytes after what lies at p. */
SL_INLINE const uint8_t *later(const stream *s, const uint8_t *p, size_t bytes) {
    const size_t left = (size_t)(s->end - p);
    return bytes < left ? p + bytes : s->further + (bytes - left);
}

SL_INLINE __m512i line(const uint8_t *p) {
    return _mm512_loadu_si512(p);
}

/* ---- blocks of 32 ---- */

SL_INLINE void take_q8_0(const uint8_t *p, __m512i *v) {
    const __m512i above = _mm512_set1_epi8((char)0x80);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        v[i] = _mm512_xor_si512(line(p + 64 * i), above);
        SL_KEEP(v[i]);
    }
}

SL_INLINE void take_q4_0(const uint8_t *p, __m512i *v) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i both = line(p + 64 * i);
        v[i] = sl_low_of(both), v[4 + i] = sl_high_of(both);
        SL_KEEP(v[i]);
        SL_KEEP(v[4 + i]);
    }
}

SL_INLINE void take_32(const uint8_t *p, sl_dtype dtype, __m512i *v) {
    if (dtype == SL_Q8_0)
        take_q8_0(p, v);
    else
        take_q4_0(p, v);
}

/* The strip at p, onto acc[rows]. */
SL_INLINE void strip_32(const sl_act_tile *t, const stream *s, const uint8_t *p, sl_dtype dtype,
                        __m512 *acc) {
    const uint32_t all = t->k / 32, lines = (sl_dtype_block_bytes(dtype) - 2) * SL_STRIP;
    sl_blocks_32 w;
    for (w.b = 0; w.b + 2 <= all; w.b += 2, p += 2 * sl_dtype_block_bytes(dtype) * SL_STRIP) {
        const __m512i d = line(p);
        w.d[0] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(d));
        w.d[1] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(d, 16)));
        take_32(p + 64, dtype, w.v[0]);
        take_32(p + 64 + lines, dtype, w.v[1]);
        w.later = later(s, p, FAR), w.near = later(s, p, NEXT);
        sl_add_pair_32(t, &w, dtype, true, acc);
    }
    if (w.b == all) return;
    w.d[0] = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
    take_32(p + 32, dtype, w.v[0]);
    sl_add_rows_32(t, &w, 0, t->n_rows, 0, 1, dtype, true, acc);
}

SL_INLINE void tile_of_32(const sl_act_tile *t, sl_dtype dtype) {
    const stream s = stream_of(t);
    __m512 acc[SL_TILE_ROWS];
    for (uint32_t c = 0; c < t->n_cols; c += SL_STRIP) {
        for (uint32_t r = 0; r < t->n_rows; r++) acc[r] = _mm512_setzero_ps();
        strip_32(t, &s, (const uint8_t *)t->w + c * t->w_stride, dtype, acc);
        for (uint32_t r = 0; r < t->n_rows; r++)
            _mm512_storeu_ps(t->y + (size_t)r * t->y_stride + c, acc[r]);
    }
}

/* ---- few rows of blocks of 256 ---- */

/* A block of a strip. */
typedef struct block {
    sl_source256 at;
    sl_head256 h;
    const uint8_t *codes, *high; /* its lines of codes, and of what these have above four bits */
    const uint8_t *later, *near; /* what is asked for meanwhile */
    const uint8_t *x[FEW];       /* what it meets of the rows */
    sl_offsets o[FEW];
} block;

SL_INLINE void ask(block *w, const uint32_t n) {
#pragma GCC unroll 2
    for (uint32_t i = 0; i < n; i++, w->later += 64, w->near += 64) {
        sl_ask_far(w->later, 64);
        sl_ask(w->near, 64);
    }
}

/* Line i of a step. */
SL_INLINE void unpack(const block *w, const uint32_t step, const uint32_t i, sl_dtype dtype,
                      __m512i *low, __m512i *up) {
    const __m512i fifth = _mm512_set1_epi8(16), top = _mm512_set1_epi8(48);
    const uint32_t at = sl_strip_high_line(dtype, step, i), down = sl_strip_high_shift(dtype, step);
    const __m512i v = line(w->codes + (step * (32 / sl_strip_steps(dtype)) + i) * 64);
    *low = sl_low_of(v), *up = sl_high_of(v);
    if (dtype == SL_Q5_K) {
        const __m512i bits = _mm512_srli_epi16(line(w->high + 64 * at), down);
        *low = _mm512_or_si512(*low, _mm512_and_si512(_mm512_slli_epi16(bits, 4), fifth));
        *up = _mm512_or_si512(*up, _mm512_and_si512(_mm512_slli_epi16(bits, 3), fifth));
    } else if (dtype == SL_Q6_K) {
        const __m512i bits = _mm512_srli_epi16(line(w->high + 64 * at), down);
        *low = _mm512_or_si512(*low, _mm512_and_si512(_mm512_slli_epi16(bits, 4), top));
        *up = _mm512_or_si512(*up, _mm512_and_si512(bits, top));
    }
}

/* sum += v times the four codes at x. Spelled out, as gcc makes two instructions of it. */
SL_INLINE void dot(__m512i *sum, __m512i v, const uint8_t *x) {
    __asm__("vpdpbusd %1%{1to16%}, %2, %0" : "+v"(*sum) : "m"(*(const uint32_t *)x), "v"(v));
}

/* A step with R rows, onto all[R]. */
SL_INLINE void add_step(block *w, const uint32_t step, const uint32_t R, sl_dtype dtype,
                        __m512i *all) {
    const uint32_t part = sl_strip_part(dtype);
    const uint32_t p[2] = {sl_strip_low_part(dtype, step), sl_strip_high_part(dtype, step)};
    __m512i sum[FEW][2];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++)
        for (uint32_t i = 0; i < 2; i++)
            sum[r][i] =
                dtype == SL_Q6_K ? _mm512_set1_epi32(w->o[r].v[p[i]]) : _mm512_setzero_si512();
    ask(w, dtype == SL_Q4_K ? 1 : 2);
#pragma GCC unroll 8
    for (uint32_t i = 0; i < part / 4; i++) {
        __m512i low, up;
        unpack(w, step, i, dtype, &low, &up);
        ask(w, 1);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; r++) {
            dot(&sum[r][0], low, w->x[r] + p[0] * part + 4 * i);
            dot(&sum[r][1], up, w->x[r] + p[1] * part + 4 * i);
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++)
        for (uint32_t i = 0; i < 2; i++)
            all[r] = _mm512_add_epi32(all[r], _mm512_mullo_epi32(sum[r][i], w->h.scale[p[i]]));
}

/* Block b of the strip at p, onto the chains of R rows. */
SL_INLINE void add_block(const sl_act_tile *t, const stream *s, const uint8_t *p, uint32_t b,
                         const uint32_t R, sl_dtype dtype, __m512 *acc) {
    block w;
    __m512i all[FEW];
    sl_find_256(p, b, t->k / 256, dtype, &w.at);
    sl_head_of(&w.at, true, dtype, &w.h);
    w.codes = w.at.lines + 64 * sl_strip_codes(dtype);
    w.high = w.at.lines + 64 * sl_strip_high(dtype);
    w.later = later(s, w.at.lines, FAR), w.near = later(s, w.at.lines, NEXT);
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) {
        w.x[r] = t->x[r] + (size_t)b * 256;
        sl_offsets_of(t, r, b, dtype, &w.o[r]);
        all[r] = _mm512_setzero_si512();
    }
    ask(&w, dtype == SL_Q6_K ? 4 : 2);
#pragma GCC unroll 8
    for (uint32_t step = 0; step < sl_strip_steps(dtype); step++) add_step(&w, step, R, dtype, all);
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++)
        acc[r] = sl_add_sum(&w.h, all[r], sl_act_scales(t->x[r], t->k)[b], &w.o[r], dtype, acc[r]);
}

SL_INLINE void few_rows(const sl_act_tile *t, const uint32_t R, sl_dtype dtype) {
    const stream s = stream_of(t);
    for (uint32_t c = 0; c < t->n_cols; c += SL_STRIP) {
        const uint8_t *p = (const uint8_t *)t->w + c * t->w_stride;
        __m512 acc[FEW];
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; r++) acc[r] = _mm512_setzero_ps();
        for (uint32_t b = 0; b < t->k / 256; b++) add_block(t, &s, p, b, R, dtype, acc);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; r++)
            _mm512_storeu_ps(t->y + (size_t)r * t->y_stride + c, acc[r]);
    }
}

SL_INLINE void tile_of_256(const sl_act_tile *t, sl_dtype dtype) {
    if (t->n_rows == 1)
        few_rows(t, 1, dtype);
    else if (t->n_rows == 2)
        few_rows(t, 2, dtype);
    else if (t->n_rows == 3)
        few_rows(t, 3, dtype);
    else if (t->n_rows == 4)
        few_rows(t, 4, dtype);
    else
        sl_many_256(t, true, dtype);
}

/* ---- tiles ---- */

SL_TILE_FORM(tile_q8_0, tile_of_32, SL_Q8_0)
SL_TILE_FORM(tile_q4_0, tile_of_32, SL_Q4_0)
SL_TILE_FORM(tile_q4_k, tile_of_256, SL_Q4_K)
SL_TILE_FORM(tile_q5_k, tile_of_256, SL_Q5_K)
SL_TILE_FORM(tile_q6_k, tile_of_256, SL_Q6_K)

void sl_avx512vnni_strip_tile(const sl_act_tile *t) {
    static void (*const forms[SL_DTYPE_COUNT])(const sl_act_tile *) = {
        [SL_Q8_0] = tile_q8_0, [SL_Q4_0] = tile_q4_0, [SL_Q4_K] = tile_q4_k,
        [SL_Q5_K] = tile_q5_k, [SL_Q6_K] = tile_q6_k,
    };
    if (t->n_rows) forms[t->dtype](t);
}
