/* The table of tile products: of integers, for five and more rows of activations, and of BF16 in
 * parts; its other slots are those of AVX-512. Here: rows on their way in and sums on their way
 * out.
 */
#include "kernel/amx/amx.h"

#include "kernel/cpu.h"

/* 16 bytes at `at` of each row, turned: word i of row r is lane r of out[i * stride]. */
SL_INLINE void turn_words(const sl_rows16 *s, size_t at, __m512i *out, uint32_t stride) {
    __m512i v[4];
    sl_load_words(s, at, v);
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++) _mm512_store_si512(out + i * stride, v[i]);
}

/* Codes and scales of n blocks of 32. Behind a row's scales are its sums: there are always as many
 * bytes as are read. */
static void take_32(const sl_rows16 *code, const sl_rows16 *scale, uint32_t n, uint32_t g,
                    amx_rows *x) {
    for (uint32_t i = 0; i < 2 * n; i++) turn_words(code, i * 16, (__m512i *)x->quad[g][i * 4], 1);
    for (uint32_t i = 0; i < n; i += 4)
        turn_words(scale, i * 4, (__m512i *)x->scale[i][g], AMX_GROUPS);
    for (uint32_t i = n; i < AMX_PARTS; i++) {
        memset(x->quad[g][i * 8], 0, 8 * sizeof x->quad[g][0]);
        memset(x->scale[i][g], 0, sizeof x->scale[i][g]);
    }
}

/* Codes of a block of 256. */
static void take_256(const sl_rows16 *code, sl_dtype dtype, uint32_t g, amx_rows *x) {
    for (uint32_t p = 0; p < AMX_PARTS; p++) {
        __m512i *to = (__m512i *)x->quad[g][amx_part_at(p, dtype) * 8];
        turn_words(code, p * 32, to, 1);
        turn_words(code, p * 32 + 16, to + 4, 1);
    }
}

/* What minima are multiplied with: sums of codes of row r0 on. */
static void take_sums(const sl_act_tile *t, uint32_t p, uint32_t r0, uint32_t rows, amx_rows *x) {
    sl_rows16 sums;
    sl_offsets of[AMX_GROUP];
    for (uint32_t r = 0; r < AMX_GROUP; r++) {
        sl_offsets_of(t, r0 + SL_MIN(r, rows - 1), p, t->dtype, &of[r]);
        sums.row[r] = (const uint8_t *)of[r].v;
    }
    turn_words(&sums, 0, (__m512i *)x->sums[0][r0 / AMX_GROUP], AMX_GROUPS);
}

static void take_group(const sl_act_tile *t, uint32_t p, uint32_t g, amx_rows *x) {
    static const uint8_t none[AMX_PIECE];
    const sl_act_kind kind = sl_act_kind_of(t->dtype);
    const uint32_t r0 = g * AMX_GROUP, rows = SL_MIN(AMX_GROUP, t->n_rows - r0);
    sl_rows16 code, scale;
    for (uint32_t r = 0; r < AMX_GROUP; r++) {
        const uint8_t *row = t->x[r0 + SL_MIN(r, rows - 1)];
        const float *first = sl_act_scales(row, t->k) + p * AMX_PIECE / sl_act_block(kind);
        code.row[r] = r < rows ? row + p * AMX_PIECE : none;
        scale.row[r] = r < rows ? (const uint8_t *)first : none;
        if (kind == SL_ACT_256) x->scale[0][g][r] = r < rows ? *first : 0;
    }
    if (kind == SL_ACT_32)
        take_32(&code, &scale, SL_MIN(AMX_PIECE, t->k - p * AMX_PIECE) / 32, g, x);
    else
        take_256(&code, t->dtype, g, x);
    if (t->dtype == SL_Q4_K || t->dtype == SL_Q5_K) take_sums(t, p, r0, rows, x);
}

void sl_amx_take_rows(const sl_act_tile *t, uint32_t p, amx_rows *x) {
    for (uint32_t g = 0; g * AMX_GROUP < t->n_rows; g++) take_group(t, p, g, x);
}

void sl_amx_store(const sl_act_tile *t, amx_chains *acc, uint32_t c0) {
    const uint32_t cols = SL_MIN(SL_STRIP, t->n_cols - c0);
    for (uint32_t r0 = 0; r0 < t->n_rows; r0 += AMX_GROUP, acc++) {
        __m512i v[SL_STRIP];
        for (uint32_t c = 0; c < SL_STRIP; c++) v[c] = _mm512_load_si512((*acc)[c]);
        sl_turn(v);
        for (uint32_t r = r0; r < SL_MIN(r0 + AMX_GROUP, t->n_rows); r++)
            sl_store_some(t->y + (size_t)r * t->y_stride + c0, _mm512_castsi512_ps(v[r - r0]),
                          cols);
    }
}

#define NOT_FEW(f)                                                                                 \
    { [SL_SOME] = f, [SL_MANY] = f }
const sl_kernels sl_kernels_amx = {.name = "amx",
                                   .supported = sl_cpu_has_amx,
                                   .by_merit = true,
                                   .parts_tile = SL_EVERY_AMOUNT(sl_amx_parts_tile),
                                   .int8_tile = {[SL_Q8_0] = NOT_FEW(sl_amx_int8_tile),
                                                 [SL_Q4_0] = NOT_FEW(sl_amx_int8_tile),
                                                 [SL_MXFP4] = NOT_FEW(sl_amx_int8_tile),
                                                 [SL_Q4_K] = NOT_FEW(sl_amx_int8_tile),
                                                 [SL_Q5_K] = NOT_FEW(sl_amx_int8_tile),
                                                 [SL_Q6_K] = NOT_FEW(sl_amx_int8_tile)}};
