/* Tables that are taken by merit prove themselves before they are used, on every CPU, at every
 * start: so what all of them are compared with is computed once. */
#include "kernel/kernel_int.h"

#include "base/mem.h"
#include "base/rng.h"
#include "quant/block.h"
#include "quant/kv_rows.h"

#include <math.h>

/* Two groups of rows for tiles, of which the second is not full, and two strips of columns. */
enum { ROWS = 19, SOME = 9, FEW = 3, COLS = 18, K = 512, WIDE = K + 8 };

typedef struct results {
    float tile[SL_DTYPES][SL_AMOUNTS][ROWS * COLS];
    float o[SL_AMOUNTS][SL_ATTN_QUERIES * 40], sum[SL_AMOUNTS][SL_ATTN_QUERIES];
    float kept[SL_KV_TYPES][FEW * 32];
    float vec[7][K + 3], linear[3][K], scalar[2], wide[SL_DTYPE_COUNT][K];
    float wide_e4m3[K];
    uint16_t half[K + 3];
    float int8[SL_DTYPE_COUNT][SL_AMOUNTS_INT8][ROWS * COLS];
    float strip[SL_DTYPE_COUNT][SL_AMOUNTS_INT8][ROWS * SL_STRIP_ROWS];
    float bf16[SL_AMOUNTS][ROWS * COLS], parts[SL_AMOUNTS][ROWS * COLS];
    _Alignas(64) uint8_t act[SL_ACT_KINDS][ROWS][2 * K], norm[SL_ACT_KINDS][2 * K];
} results;

typedef struct inputs {
    float x[ROWS][WIDE], y[K + 3], page[2 * SL_KV_PAGE_TOKENS * 40];
    uint8_t w[SL_DTYPES][COLS * K * 4]; /* by type */
    uint8_t other[COLS * K * 4];        /* what is made of them, or of pages */
} inputs;

/* Weights of a type: plain ones are numbers of ordinary size, blocks get ordinary scales. */
static void draw_weights(inputs *in, sl_dtype t) {
    uint64_t rng = 11 + (uint64_t)t;
    uint8_t *w = in->w[t];
    if (!sl_dtype_is_plain(t) && sl_block_encodes(t)) {
        for (size_t c = 0; c < COLS; c++)
            sl_block_encode(t, in->x[c % ROWS], K, w + c * sl_dtype_row_bytes(t, K));
        return;
    }
    for (size_t i = 0; i < sizeof in->w[t]; i += 2) {
        uint16_t h = (uint16_t)((sl_rng_next(&rng) & 0x83ff) | 0x3000); /* +-0.125..0.25 as f16 */
        if (t == SL_F8_E4M3) h &= 0xfefe;                               /* no code of a NaN */
        memcpy(w + i, &h, sizeof h);
    }
}

static void draw(inputs *in) {
    uint64_t rng = 7;
    float *f = &in->x[0][0];
    for (size_t i = 0; i < sizeof in->x / sizeof *f; i++)
        f[i] = (float)((int)(sl_rng_next(&rng) >> 40) - (1 << 23)) * 0x1p-22f;
    for (size_t i = 0; i < SL_LEN(in->y); i++) in->y[i] = f[i + 31] * 3;
    for (size_t i = 0; i < SL_LEN(in->page); i++) in->page[i] = f[i + 77];
    for (int t = 0; t < SL_DTYPES; t++) draw_weights(in, (sl_dtype)t);
}

static void run_tiles(const sl_kernels *k, inputs *in, results *out) {
    const float *x[ROWS];
    for (int r = 0; r < ROWS; r++) x[r] = in->x[r];
    const float scale[K / SL_F8_BLOCK] = {1.5f, 0.7f, 0.01f, 3};
    for (int t = 0; t < SL_DTYPES; t++) {
        uint32_t n = sl_dtype_is_plain((sl_dtype)t) ? K - 5 : K; /* blocks fill rows */
        const sl_mat mat = {in->w[t], COLS, K, (sl_dtype)t, 0, scale};
        for (int a = 0; a < SL_AMOUNTS; a++)
            sl_call_gemm_tile(k, &(sl_gemm_tile){.w = in->w[t],
                                                 .w_stride = sl_dtype_row_bytes((sl_dtype)t, n),
                                                 .dtype = (sl_dtype)t,
                                                 .k = n,
                                                 .n_cols = COLS,
                                                 .n_rows = a == SL_FEW ? FEW : ROWS,
                                                 .y_stride = COLS,
                                                 .x = x,
                                                 .y = out->tile[t][a],
                                                 .mat = &mat});
        if (t != SL_F8_E4M3)
            sl_call_widen(k, in->w[t], (sl_dtype)t, n, out->wide[t]);
        else
            k->widen_e4m3(in->w[t], 0x1p-3f, n - 3, out->wide_e4m3);
    }
}

/* Integer products of every type that has them. */
static void run_int8(const sl_kernels *k, inputs *in, results *out) {
    static const uint32_t rows[] = {[SL_FEW] = FEW, [SL_SOME] = SOME, [SL_MANY] = ROWS};
    for (int kind = 0; kind < SL_ACT_KINDS; kind++) {
        for (int r = 0; r < ROWS; r++)
            sl_call_quantise(k, in->x[r], K, (sl_act_kind)kind, out->act[kind][r]);
        const sl_act_part all = {out->norm[kind], (sl_act_kind)kind, K, 0, K};
        sl_call_rms_quantise(k, in->y, in->x[2], 0.37f, &all);
    }
    for (int t = 0; t < SL_DTYPE_COUNT; t++) {
        const sl_act_kind kind = sl_act_kind_of((sl_dtype)t);
        const uint8_t *x[ROWS];
        if (!sl_act_is_int8(kind)) continue;
        for (int r = 0; r < ROWS; r++) x[r] = out->act[kind][r];
        for (int a = 0; a < SL_AMOUNTS_INT8; a++) {
            sl_call_int8_tile(k, &(sl_act_tile){.w = in->w[t],
                                                .w_stride = sl_dtype_row_bytes((sl_dtype)t, K),
                                                .dtype = (sl_dtype)t,
                                                .k = K,
                                                .n_cols = COLS,
                                                .n_rows = rows[a],
                                                .y_stride = COLS,
                                                .x = x,
                                                .y = out->int8[t][a]});
            if (!sl_strips_have((sl_dtype)t)) continue;
            uint8_t *strip = in->other;
            sl_strips_put((sl_dtype)t, in->w[t], K, strip);
            sl_call_strip_tile(k, &(sl_act_tile){.w = strip,
                                                 .w_stride = sl_dtype_row_bytes((sl_dtype)t, K),
                                                 .dtype = (sl_dtype)t,
                                                 .k = K,
                                                 .n_cols = SL_STRIP_ROWS,
                                                 .n_rows = rows[a],
                                                 .y_stride = SL_STRIP_ROWS,
                                                 .x = x,
                                                 .y = out->strip[t][a]});
        }
    }
}

/* Chains of the last row and column come to 2^-126 and a little less, which is a zero or is not;
 * of two values that follow each other in a chain and lie `apart`. */
static void draw_least(inputs *in, uint32_t apart, uint16_t x[K]) {
    uint16_t *w = (uint16_t *)in->other + (COLS - 1) * (K - 5);
    for (uint32_t i = 0; i < K - 5; i++) {
        float less = sl_f32_of_bits((uint32_t)(127 - 72 - i / 2 % 6) << 23); /* 2^-72 .. 2^-77 */
        w[i] = sl_f32_to_bf16(i < 34 ? i / apart % 2 ? 0x1p-63f : -less : 0x1p-130f);
        x[i] = sl_f32_to_bf16(i < 34 ? i / apart % 2 ? 0x1p-63f : 0x1p-75f : 1.5f);
    }
}

/* Products of BF16 of either numeric, with subnormals among weights. */
static void run_bf16(const sl_kernels *k, inputs *in, bool parts, results *out) {
    _Alignas(64) uint16_t least[K];
    const uint8_t *x[ROWS];
    memcpy(in->other, in->w[SL_BF16], sizeof in->other);
    draw_least(in, parts ? 2 : 1, least);
    for (int r = 0; r < ROWS; r++) x[r] = out->act[SL_ACT_BF16][r];
    x[FEW - 1] = x[ROWS - 1] = (const uint8_t *)least;
    for (int a = 0; a < SL_AMOUNTS; a++) {
        const sl_act_tile t = {.w = in->other,
                               .w_stride = sl_dtype_row_bytes(SL_BF16, K - 5),
                               .dtype = SL_BF16,
                               .k = K - 5,
                               .n_cols = COLS,
                               .n_rows = a == SL_FEW ? FEW : ROWS,
                               .y_stride = COLS,
                               .x = x,
                               .y = parts ? out->parts[a] : out->bf16[a]};
        (parts ? sl_call_parts_tile : sl_call_bf16_tile)(k, &t);
    }
}

static void run_page(const sl_kernels *k, const inputs *in, uint32_t n, float *o, float *sum) {
    sl_attn_query q[SL_ATTN_QUERIES];
    for (uint32_t i = 0; i < n; i++)
        q[i] = (sl_attn_query){.q = in->x[i % ROWS] + i,
                               .o = o + 40 * i,
                               .max = i & 1 ? 0.5f : -INFINITY,
                               .first = i % 5,
                               .last = SL_KV_PAGE_TOKENS - 1 - i};
    const sl_attn_page page = {.query = q,
                               .n = n,
                               .head_dim = 40,
                               .v_dim = 40,
                               .k = in->page,
                               .v = in->page + SL_KV_PAGE_TOKENS * 40,
                               .scale = 0.25f};
    sl_call_attn_page(k, &page);
    for (uint32_t i = 0; i < n; i++) {
        sum[i] = q[i].sum;
        k->divide(q[i].o, q[i].sum, 40);
    }
}

/* Queries of a page of another type than f32. */
static void run_kept(const sl_kernels *k, inputs *in, sl_kv_type t, float *o) {
    enum { DIM = 32 };
    const size_t row = sl_kv_row_of(t, DIM, DIM);
    sl_attn_query q[FEW];
    for (uint32_t i = 0; i < 2 * SL_KV_PAGE_TOKENS; i++)
        sl_kv_round(t, in->page + i * DIM, DIM, in->other + i * row);
    for (uint32_t i = 0; i < FEW; i++)
        q[i] = (sl_attn_query){.q = in->x[i],
                               .o = o + DIM * i,
                               .max = -INFINITY,
                               .first = i,
                               .last = SL_KV_PAGE_TOKENS - 1 - i};
    sl_call_attn_page(k, &(sl_attn_page){.query = q,
                                         .n = FEW,
                                         .head_dim = DIM,
                                         .v_dim = DIM,
                                         .k = (const void *)in->other,
                                         .v = (const void *)(in->other + SL_KV_PAGE_TOKENS * row),
                                         .scale = 0.25f,
                                         .type = t,
                                         .part = DIM});
}

static void run_vectors(const sl_kernels *k, const inputs *in, results *out) {
    const size_t n = K + 3;
    double freq[32];
    for (int i = 0; i < 32; i++) freq[i] = 1.0 / (1 + i);
    for (int i = 0; i < 6; i++) memcpy(out->vec[i], in->y, n * sizeof(float));
    k->center(in->y, (uint32_t)n, out->vec[6]);
    k->swiglu(out->vec[0], in->x[1], n);
    k->rms_apply(in->y, in->x[2], 0.37f, (uint32_t)n, out->vec[1]);
    k->expv(in->y, n, out->vec[2]);
    k->add_scaled(out->vec[3], in->x[3], 1.7f, n);
    k->softmax(in->y, (uint32_t)n, out->vec[4]);
    k->sincos(1000, freq, 32, out->vec[5], out->vec[5] + 32);
    k->rotate(out->vec[3], out->vec[3] + K / 2, out->vec[5], out->vec[5] + 32, 30);
    k->add(out->vec[5], in->x[4], n);
    k->swiglu_clamped(out->vec[1], in->x[5], 1.5f, n);
    k->scale(out->vec[2], out->vec[2], 0.3f, n);
    k->to_bf16(in->y, n, out->half);
    out->scalar[0] = k->rms_inverse(in->y, 1e-6f, (uint32_t)n);
}

/* Linear attention: a convolution, and a token that changes a state. */
static void run_linear(const sl_kernels *k, const inputs *in, results *out) {
    enum { KEYS = 12, VALUES = 41 }; /* whole vectors of values, and some more */
    k->taps(&(sl_taps){.n_taps = 3,
                       .n = VALUES,
                       .x = {in->x[0], in->x[1], in->x[2]},
                       .w = in->x[3],
                       .w_stride = VALUES,
                       .y = out->linear[0]});
    k->delta(&(sl_delta_step){.k_dim = KEYS,
                              .v_dim = VALUES,
                              .from = in->x[4],
                              .to = out->linear[1],
                              .q = in->x[5],
                              .k = in->x[6],
                              .v = in->x[7],
                              .decay = 0.9f,
                              .beta = 0.4f,
                              .o = out->linear[2]});
    k->gate_values(out->linear[1], in->y, VALUES);
}

static void run_all(const sl_kernels *k, inputs *in, results *out) {
    run_tiles(k, in, out);
    run_int8(k, in, out);
    run_bf16(k, in, false, out);
    run_bf16(k, in, true, out);
    run_page(k, in, FEW, out->o[SL_FEW], out->sum[SL_FEW]);
    run_page(k, in, SL_ATTN_QUERIES, out->o[SL_MANY], out->sum[SL_MANY]);
    for (sl_kv_type t = SL_KV_F16; t < SL_KV_TYPES; t++) run_kept(k, in, t, out->kept[t]);
    run_vectors(k, in, out);
    run_linear(k, in, out);
}

void sl_kernels_selftest(const sl_kernels *const *tables, size_t n, bool *same) {
    inputs *in = sl_alloc(1, sizeof *in);
    results *mine = sl_alloc(1, sizeof *mine), *ref = sl_alloc(1, sizeof *ref);
    const bool can = in && mine && ref;
    if (can && n) {
        draw(in);
        run_all(&sl_kernels_ref, in, ref);
    }
    for (size_t i = 0; i < n; i++) {
        same[i] = false;
        if (!can) continue;
        memset(mine, 0, sizeof *mine);
        run_all(tables[i], in, mine);
        same[i] = memcmp(ref, mine, sizeof *ref) == 0;
    }
    sl_free(in);
    sl_free(mine);
    sl_free(ref);
}
