/* Products of weights and activations in BF16 in parts of 32 values (docs/numbers.md), as AMX
 * computes them, for the v16 that the including file has chosen. Sixteen weight rows are the lanes:
 * a part of theirs is turned, so that a pair of values of all of them is a vector, and meets the
 * same pair of each row of activations. Everything runs with subnormals flushed. */
#include "kernel/bf16.h"
#include "kernel/ref/ref.h"

#define SIMD_PARTS_X 8192u /* values of activations that are kept widened, 32 KiB */
#define SIMD_PAIRS   (SL_BF16_PART / 2)

typedef struct simd_piece {
    const sl_act_tile *t;
    uint32_t k0, n, apart;              /* values from k0 on; floats between rows of x */
    _Alignas(64) float x[SIMD_PARTS_X]; /* of each part the even values, then the odd ones */
} simd_piece;

/* Values k0 .. k0 + 31 of a row of k, zeros past its end. */
SL_INLINE const uint8_t *simd_part_at(const uint8_t *row, uint32_t k0, uint32_t k, uint8_t *end) {
    row += (size_t)k0 * sizeof(uint16_t);
    if (k - k0 >= SL_BF16_PART) return row;
    memset(end, 0, SL_BF16_PART * sizeof(uint16_t));
    memcpy(end, row, (k - k0) * sizeof(uint16_t));
    return end;
}

/* A part of sixteen weight rows: pair i of row c to w[i][c]. Who includes this may bring its own.
 */
#ifndef SIMD_TURNS
static inline void simd_turn_pairs(const uint8_t *const *row, uint32_t (*w)[16]) {
    for (uint32_t c = 0; c < 16; c++)
        for (uint32_t i = 0; i < SIMD_PAIRS; i++)
            memcpy(&w[i][c], row[c] + i * sizeof w[i][c], sizeof w[i][c]);
}
#endif

static void simd_parts_widen(simd_piece *p) {
    _Alignas(64) uint8_t end[SL_BF16_PART * sizeof(uint16_t)];
    for (uint32_t r = 0; r < p->t->n_rows; r++)
        for (uint32_t i = 0; i < p->n; i += SL_BF16_PART) {
            float *x = p->x + r * p->apart + i;
            v16 even, odd;
            v_load_pairs(simd_part_at(p->t->x[r], p->k0 + i, p->t->k, end), &even, &odd);
            v_store(x, even);
            v_store(x + SIMD_PAIRS, odd);
        }
}

/* A part of R rows x, `apart` floats from each other, onto their sums. */
SL_INLINE void simd_parts_run(const float *x, uint32_t apart, const uint32_t (*w)[16],
                              const uint32_t R, float (*sum)[16], v_doubt *doubt) {
    v16 even[SIMD_P], odd[SIMD_P];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) even[r] = odd[r] = v_set1(0);
#pragma GCC unroll 2
    for (uint32_t i = 0; i < SIMD_PAIRS; i++) {
        v16 w0, w1;
        v_load_pairs(w[i], &w0, &w1);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; r++) {
            even[r] = v_fma_flush(v_set1(x[r * apart + i]), w0, even[r], doubt);
            odd[r] = v_fma_flush(v_set1(x[r * apart + SIMD_PAIRS + i]), w1, odd[r], doubt);
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++)
        v_store(sum[r], v_add_flush(v_load(sum[r]), v_add_flush(even[r], odd[r])));
}

/* The piece of weight rows c0 .. c0 + 15, as far as there are, onto the tile's sums. */
static void simd_parts_strip(const simd_piece *p, uint32_t c0, v_doubt *doubt) {
    const sl_act_tile *t = p->t;
    const uint32_t cols = SL_MIN(16, t->n_cols - c0);
    const uint8_t *next = p->n == t->k ? sl_tile_rows_after(t, c0, 16) : NULL;
    _Alignas(64) float sum[SL_TILE_ROWS][16] = {{0}};
    _Alignas(64) uint8_t end[16][SL_BF16_PART * sizeof(uint16_t)];
    const uint8_t *row[16];
    _Alignas(64) uint32_t w[SIMD_PAIRS][16];
    for (uint32_t r = 0; p->k0 && r < t->n_rows; r++)
        memcpy(sum[r], t->y + (size_t)r * t->y_stride + c0, cols * sizeof sum[r][0]);
    for (uint32_t i = 0; i < p->n; i += SL_BF16_PART) {
        for (uint32_t c = 0; c < 16; c++)
            row[c] = simd_part_at((const uint8_t *)t->w + (c0 + SL_MIN(c, cols - 1)) * t->w_stride,
                                  p->k0 + i, t->k, end[c]);
        simd_turn_pairs(row, w);
        for (uint32_t l = 0; next && l < 16; l++)
            v_prefetch(next + (i / SL_BF16_PART * 16 + l) * 64);
        uint32_t r = 0;
        for (; r + SIMD_P <= t->n_rows; r += SIMD_P)
            simd_parts_run(p->x + r * p->apart + i, p->apart, w, SIMD_P, sum + r, doubt);
        for (; r < t->n_rows; r++)
            simd_parts_run(p->x + r * p->apart + i, p->apart, w, 1, sum + r, doubt);
    }
    for (uint32_t r = 0; r < t->n_rows; r++)
        memcpy(t->y + (size_t)r * t->y_stride + c0, sum[r], cols * sizeof sum[r][0]);
}

/* True: some sums are not sure. */
static __attribute__((noinline)) bool simd_parts_all(const sl_act_tile *t) {
    simd_piece p = {.t = t, .apart = SIMD_PARTS_X / t->n_rows / SL_BF16_PART * SL_BF16_PART};
    v_doubt doubt = v_sure();
    do {
        p.n = SL_MIN(p.apart, t->k - p.k0);
        simd_parts_widen(&p);
        for (uint32_t c0 = 0; c0 < t->n_cols; c0 += 16) simd_parts_strip(&p, c0, &doubt);
        p.k0 += p.n;
    } while (p.k0 < t->k);
    return v_doubtful(doubt);
}

static void simd_parts_tile(const sl_act_tile *t) {
    if (t->n_rows == 0) return;
    const uint32_t was = v_flush_begin();
    const bool doubt = simd_parts_all(t);
    v_flush_end(was);
    if (doubt) sl_ref_parts_tile(t);
}
