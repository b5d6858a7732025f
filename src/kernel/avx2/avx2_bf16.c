/* Products of weights and activations in BF16 (docs/numbers.md) for processors without an
 * instruction for them: a word holds a pair, whose odd element is its upper half and whose even one
 * a shift away, and both come as they lie. The control register takes subnormals for zeros while
 * chains run, and does not while they are summed up. */
#include "kernel/avx2/avx2.h"
#include "kernel/simd/flush_x86.h"

#include <immintrin.h>

#define MAX_R 4u
#define MAX_C 3u

/* Columns of a group, the bytes between weight rows, and where the next group's lie. */
typedef struct group {
    const sl_act_tile *t;
    const uint8_t *w;
    size_t stride;       /* bytes between rows */
    size_t bytes, whole; /* of a row, and of its whole steps of 32 values */
    ptrdiff_t ahead;     /* from a weight to one that is read later; 0: nothing is asked for */
} group;

SL_INLINE __m256 odd_of(__m256i v) {
    return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000u)));
}

SL_INLINE __m256 even_of(__m256i v) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}

SL_INLINE __m256i load(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

/* One step of R*C chains: eight pairs at x[r] + i, and at w + i in rows `stride` apart. */
SL_INLINE void step(__m256 *acc, const uint8_t *const *x, const uint8_t *w, size_t i, size_t stride,
                    const uint32_t R, const uint32_t C) {
    __m256 wv[MAX_C];
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
#pragma GCC unroll 3
        for (uint32_t c = 0; c < C; c++) {
            __m256i v = load(w + c * stride + i);
            wv[c] = half ? even_of(v) : odd_of(v);
        }
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; r++) {
            __m256i v = load(x[r] + i);
            __m256 xv = half ? even_of(v) : odd_of(v);
            SL_KEEP(xv);
#pragma GCC unroll 3
            for (uint32_t c = 0; c < C; c++)
                acc[r * C + c] = _mm256_fmadd_ps(xv, wv[c], acc[r * C + c]);
        }
    }
}

/* Lanes 8 * half and following of the chains of R rows from r0 on: out [R][C][2][8]. */
SL_INLINE void run_half(const group *g, uint32_t r0, const uint32_t R, const uint32_t C,
                        const uint32_t half, float *out) {
    const uint8_t *x[MAX_R], *w = g->w + 32 * half;
    __m256 acc[MAX_R * MAX_C];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) x[r] = g->t->x[r0 + r] + 32 * half;
#pragma GCC unroll 12
    for (uint32_t i = 0; i < R * C; i++) acc[i] = _mm256_setzero_ps();
    for (size_t i = 0; i < g->whole; i += 64) {
        step(acc, x, w, i, g->stride, R, C);
        if (half || r0) continue; /* the first asks for all of the next group */
        for (uint32_t c = 0; c < C; c++)
            _mm_prefetch((const char *)w + g->ahead + c * g->stride + i, _MM_HINT_T0);
    }
    if (g->whole < g->bytes) {
        uint8_t end[MAX_R + MAX_C][64] = {0};
        const uint8_t *x_end[MAX_R];
        for (uint32_t r = 0; r < R; r++) {
            memcpy(end[r], g->t->x[r0 + r] + g->whole, g->bytes - g->whole);
            x_end[r] = end[r] + 32 * half;
        }
        for (uint32_t c = 0; c < C; c++)
            memcpy(end[MAX_R + c], g->w + c * g->stride + g->whole, g->bytes - g->whole);
        step(acc, x_end, end[MAX_R] + 32 * half, 0, 64, R, C);
    }
#pragma GCC unroll 12
    for (uint32_t i = 0; i < R * C; i++) _mm256_store_ps(out + (i * 2 + half) * 8, acc[i]);
}

SL_INLINE void run_both(const group *g, uint32_t r0, const uint32_t R, const uint32_t C,
                        float *out) {
    run_half(g, r0, R, C, 0, out);
    run_half(g, r0, R, C, 1, out);
}

/* Not to be inlined: the compiler does not know that the control register counts here. */
static __attribute__((noinline)) void run(const group *g, uint32_t r0, uint32_t R, uint32_t C,
                                          float *out) {
    switch (R * 4 + C) {
    case 19:
        run_both(g, r0, 4, 3, out);
        break;
    case 15:
        run_both(g, r0, 3, 3, out);
        break;
    case 11:
        run_both(g, r0, 2, 3, out);
        break;
    case 7:
        run_both(g, r0, 1, 3, out);
        break;
    default:
        for (uint32_t r = 0; r < R; r++)
            for (uint32_t c = 0; c < C; c++) {
                group one = *g;
                one.w += c * g->stride;
                one.ahead = 0;
                run_both(&one, r0 + r, 1, 1, out + (r * C + c) * 16);
            }
        break;
    }
}

/* The tree of every dot product. */
SL_INLINE float tree(const float *s) {
    __m256 eight = _mm256_add_ps(_mm256_load_ps(s), _mm256_load_ps(s + 8));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

void sl_avx2_bf16_tile(const sl_act_tile *t) {
    const size_t stride = t->w_stride, bytes = sl_dtype_row_bytes(SL_BF16, t->k);
    const uint32_t was = v_control();
    _Alignas(32) float acc[MAX_R * MAX_C * 16];
    for (uint32_t c0 = 0; c0 < t->n_cols; c0 += MAX_C) {
        const uint32_t C = SL_MIN(MAX_C, t->n_cols - c0);
        const uint8_t *w = (const uint8_t *)t->w + c0 * stride;
        const uint8_t *after = c0 + MAX_C < t->n_cols ? w + MAX_C * stride : t->next;
        const group g = {t, w, stride, bytes, bytes / 64 * 64, after ? after - w : 0};
        for (uint32_t r0 = 0; r0 < t->n_rows; r0 += MAX_R) {
            const uint32_t R = SL_MIN(MAX_R, t->n_rows - r0);
            v_flush(was);
            run(&g, r0, R, C, acc);
            v_flush_end(was);
            for (uint32_t i = 0; i < R * C; i++)
                t->y[(size_t)(r0 + i / C) * t->y_stride + c0 + i % C] = tree(acc + i * 16);
        }
    }
}
