/* Products of weights and activations in BF16 (docs/numbers.md); after simd/vec.h. Chains of a
 * register tile are run with subnormals flushed and summed up without, so the two are apart. */
#include "kernel/ref/ref.h"

/* Chains of R rows and C weight rows to acc; true: some are not sure. */
SL_INLINE bool simd_bf16_run(const sl_act_tile *t, uint32_t r0, const uint8_t *w, const uint32_t R,
                             const uint32_t C, v16 *acc) {
    const size_t stride = t->w_stride, bytes = sl_dtype_row_bytes(SL_BF16, t->k);
    const size_t whole = (size_t)t->k / 32 * 64;
    v16 s[SIMD_R * SIMD_C];
    v_doubt doubt = v_sure();
    _Alignas(64) uint8_t x_end[SIMD_R][64] = {0}, w_end[SIMD_C][64] = {0};
#pragma GCC unroll 32
    for (uint32_t i = 0; i < R * C; i++) s[i] = v_set1(0);
    for (uint32_t r = 0; r < R; r++) memcpy(x_end[r], t->x[r0 + r] + whole, bytes - whole);
    for (uint32_t c = 0; c < C; c++) memcpy(w_end[c], w + c * stride + whole, bytes - whole);
    for (size_t i = 0; i < bytes; i += 64) {
        v16 even[SIMD_C], odd[SIMD_C];
#pragma GCC unroll 8
        for (uint32_t c = 0; c < C; c++)
            v_load_pairs(i < whole ? w + c * stride + i : w_end[c], &even[c], &odd[c]);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < R; r++) {
            v16 x0, x1;
            v_load_pairs(i < whole ? t->x[r0 + r] + i : x_end[r], &x0, &x1);
#pragma GCC unroll 8
            for (uint32_t c = 0; c < C; c++) {
                v16 *a = &s[r * C + c];
                *a = v_fma_flush(x1, odd[c], *a, &doubt);
                *a = v_fma_flush(x0, even[c], *a, &doubt);
            }
        }
    }
#pragma GCC unroll 32
    for (uint32_t i = 0; i < R * C; i++) acc[i] = s[i];
    return v_doubtful(doubt);
}

static __attribute__((noinline)) bool simd_bf16_full(const sl_act_tile *t, uint32_t r0,
                                                     const uint8_t *w, v16 *acc) {
    return simd_bf16_run(t, r0, w, SIMD_R, SIMD_C, acc);
}

static __attribute__((noinline)) bool simd_bf16_row(const sl_act_tile *t, uint32_t r0,
                                                    const uint8_t *w, v16 *acc) {
    return simd_bf16_run(t, r0, w, 1, SIMD_C, acc);
}

static __attribute__((noinline)) bool simd_bf16_one(const sl_act_tile *t, uint32_t r0,
                                                    const uint8_t *w, v16 *acc) {
    return simd_bf16_run(t, r0, w, 1, 1, acc);
}

/* R rows from r0 on against C weight rows from c0 on. */
static void simd_bf16_part(const sl_act_tile *t, uint32_t r0, uint32_t c0, uint32_t R, uint32_t C) {
    const size_t stride = t->w_stride;
    const uint8_t *w = (const uint8_t *)t->w + c0 * stride;
    v16 acc[SIMD_R * SIMD_C];
    uint32_t was = v_flush_begin();
    bool doubt = C == 1   ? simd_bf16_one(t, r0, w, acc)
                 : R == 1 ? simd_bf16_row(t, r0, w, acc)
                          : simd_bf16_full(t, r0, w, acc);
    v_flush_end(was);
    float *y = t->y + (size_t)r0 * t->y_stride + c0;
    if (doubt) {
        sl_ref_bf16_tile(&(sl_act_tile){.w = w,
                                        .w_stride = stride,
                                        .dtype = SL_BF16,
                                        .k = t->k,
                                        .n_cols = C,
                                        .n_rows = R,
                                        .y_stride = t->y_stride,
                                        .x = t->x + r0,
                                        .y = y});
        return;
    }
    for (uint32_t r = 0; r < R; r++)
        for (uint32_t c = 0; c < C; c++) y[(size_t)r * t->y_stride + c] = v_tree(acc[r * C + c]);
}

static void simd_bf16_rows(const sl_act_tile *t, uint32_t c0, uint32_t C) {
    uint32_t r = 0;
    for (; C > 1 && r + SIMD_R <= t->n_rows; r += SIMD_R) simd_bf16_part(t, r, c0, SIMD_R, C);
    for (; r < t->n_rows; r++) simd_bf16_part(t, r, c0, 1, C);
}

static void simd_bf16_tile(const sl_act_tile *t) {
    uint32_t c = 0;
    for (; c + SIMD_C <= t->n_cols; c += SIMD_C) simd_bf16_rows(t, c, SIMD_C);
    for (; c < t->n_cols; c++) simd_bf16_rows(t, c, 1);
}
