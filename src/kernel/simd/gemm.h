/* Products with the sixteen virtual lanes as one value of type v16, for whichever instruction set
 * included its header before. Registers hold SIMD_R x SIMD_C chains; the same chains wait in memory
 * while the weights of the next piece of k are widened, which changes no bit. */
#include "kernel/kernel_int.h"
#include "quant/block.h"

#define SIMD_PIECE 1024u /* values of k that are widened at a time; whole blocks of every type */

/* Chains of R rows of x from value k0 on against C weight rows of `dtype`, n values. */
SL_INLINE void simd_run(const float *const *x, uint32_t k0, const uint8_t *w, size_t w_stride,
                        uint32_t n, const uint32_t R, const uint32_t C, sl_dtype dtype, v16 *acc) {
    const uint32_t bytes = sl_dtype_bytes(dtype), whole = n / 16 * 16;
    for (uint32_t i = 0; i < whole; i += 16) {
        v16 wv[SIMD_C];
#pragma GCC unroll 8
        for (uint32_t c = 0; c < C; c++) wv[c] = simd_load(w + c * w_stride + i * bytes, dtype);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < R; r++) {
            v16 xv = v_load(x[r] + k0 + i);
#pragma GCC unroll 8
            for (uint32_t c = 0; c < C; c++) acc[r * C + c] = v_fma(xv, wv[c], acc[r * C + c]);
        }
    }
    if (whole == n) return;
    for (uint32_t c = 0; c < C; c++) {
        uint8_t tail[64] = {0};
        memcpy(tail, w + c * w_stride + (size_t)whole * bytes, (size_t)(n - whole) * bytes);
        v16 wv = simd_load(tail, dtype);
        for (uint32_t r = 0; r < R; r++) {
            float pad[16] = {0};
            memcpy(pad, x[r] + k0 + whole, (n - whole) * sizeof *pad);
            acc[r * C + c] = v_fma(v_load(pad), wv, acc[r * C + c]);
        }
    }
}

SL_INLINE void simd_store_sums(const sl_gemm_tile *t, uint32_t r0, uint32_t c0, const uint32_t R,
                               const uint32_t C, const v16 *acc) {
    for (uint32_t r = 0; r < R; r++)
        for (uint32_t c = 0; c < C; c++)
            t->y[(size_t)(r0 + r) * t->y_stride + c0 + c] = v_tree(acc[r * C + c]);
}

SL_INLINE void simd_plain(const sl_gemm_tile *t, uint32_t r0, uint32_t c0, const uint32_t R,
                          const uint32_t C, sl_dtype dtype) {
    const size_t stride = t->w_stride;
    const uint8_t *w = (const uint8_t *)t->w + c0 * stride;
    v16 acc[SIMD_R * SIMD_C];
#pragma GCC unroll 32
    for (uint32_t i = 0; i < R * C; i++) acc[i] = v_set1(0);
    for (uint32_t c = 0; c < C; c++) v_prefetch(w + (C + c) * stride); /* past the end: harmless */
    simd_run(t->x + r0, 0, w, stride, t->k, R, C, dtype, acc);
    simd_store_sums(t, r0, c0, R, C, acc);
}

SL_INLINE void simd_plain_rows(const sl_gemm_tile *t, uint32_t r0, const uint32_t R,
                               sl_dtype dtype) {
    uint32_t c = 0;
    for (; c + SIMD_C <= t->n_cols; c += SIMD_C) simd_plain(t, r0, c, R, SIMD_C, dtype);
    for (; c < t->n_cols; c++) simd_plain(t, r0, c, R, 1, dtype);
}

SL_INLINE void simd_plain_tile(const sl_gemm_tile *t, sl_dtype dtype) {
    uint32_t r = 0;
    for (; r + SIMD_R <= t->n_rows; r += SIMD_R) simd_plain_rows(t, r, SIMD_R, dtype);
    for (; r < t->n_rows; r++) simd_plain_rows(t, r, 1, dtype);
}

/* ---- weights in blocks: SIMD_C rows are widened a piece at a time for all rows of the tile ----
 */

SL_INLINE void simd_wide(const sl_gemm_tile *t, const float *wide, uint32_t r0, uint32_t k0,
                         uint32_t n, const uint32_t R, const uint32_t C, v16 *chain) {
    v16 acc[SIMD_R * SIMD_C];
#pragma GCC unroll 32
    for (uint32_t i = 0; i < R * C; i++) acc[i] = k0 ? chain[i] : v_set1(0);
    simd_run(t->x + r0, k0, (const uint8_t *)wide, SIMD_PIECE * sizeof *wide, n, R, C, SL_F32, acc);
#pragma GCC unroll 32
    for (uint32_t i = 0; i < R * C; i++) chain[i] = acc[i];
}

SL_INLINE void simd_block_columns(const sl_gemm_tile *t, uint32_t c0, const uint32_t C) {
    _Alignas(64) float wide[SIMD_C * SIMD_PIECE];
    _Alignas(64) v16 chain[SL_TILE_ROWS * SIMD_C];
    for (uint32_t k0 = 0; k0 < t->k; k0 += SIMD_PIECE) {
        uint32_t n = SL_MIN(SIMD_PIECE, t->k - k0), r = 0;
        for (uint32_t c = 0; c < C; c++) sl_tile_decode(t, c0 + c, k0, n, wide + c * SIMD_PIECE);
        for (; r + SIMD_R <= t->n_rows; r += SIMD_R)
            simd_wide(t, wide, r, k0, n, SIMD_R, C, chain + r * C);
        for (; r < t->n_rows; r++) simd_wide(t, wide, r, k0, n, 1, C, chain + r * C);
    }
    uint32_t r = 0;
    for (; r + SIMD_R <= t->n_rows; r += SIMD_R)
        simd_store_sums(t, r, c0, SIMD_R, C, chain + r * C);
    for (; r < t->n_rows; r++) simd_store_sums(t, r, c0, 1, C, chain + r * C);
}

static void simd_block_tile(const sl_gemm_tile *t) {
    uint32_t c = 0;
    for (; c + SIMD_C <= t->n_cols; c += SIMD_C) simd_block_columns(t, c, SIMD_C);
    for (; c < t->n_cols; c++) simd_block_columns(t, c, 1);
}

static void simd_gemm_tile(const sl_gemm_tile *t) {
    if (!sl_dtype_is_plain(t->dtype))
        simd_block_tile(t);
    else if (t->dtype == SL_F32)
        simd_plain_tile(t, SL_F32);
    else if (t->dtype == SL_F16)
        simd_plain_tile(t, SL_F16);
    else
        simd_plain_tile(t, SL_BF16);
}
