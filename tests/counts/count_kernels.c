/* One piece of the kernels, called so often; counted by tests/counts/check_counts.py under
 * callgrind. count_kernels NAME     NAME of the table below; "all": one after the other; "list"
 * prints them; exit code 77: no AVX2 here */
#include "base/mem.h"
#include "kernel/kernel_int.h"
#include "quant/act.h"
#include "quant/block.h"

#include <stdio.h>
#include <stdlib.h>

#define K      1024u
#define COLS   48u
#define TIMES  20u
#define TOKENS SL_KV_PAGE_TOKENS

typedef struct data {
    float *w, *x, *y;
    uint8_t *act; /* the rows of x in 8 bits */
} data;

/* valgrind counts what runs in here: --toggle-collect=counted */
__attribute__((noinline)) void counted(const sl_kernels *k, const sl_gemm_tile *t,
                                       const sl_act_tile *i8, const sl_attn_page *a);
__attribute__((noinline)) void counted(const sl_kernels *k, const sl_gemm_tile *t,
                                       const sl_act_tile *i8, const sl_attn_page *a) {
    for (uint32_t i = 0; i < TIMES; i++) {
        if (t) sl_call_gemm_tile(k, t);
        if (i8) sl_call_int8_tile(k, i8);
        if (a) sl_call_attn_page(k, a);
    }
}

static const struct {
    const char *name;
    sl_dtype dtype;
    uint32_t rows; /* of activations; queries of a page */
    enum { FLOATS, INT8, ATTENTION } what;
} pieces[] = {
    {"gemv_bf16", SL_BF16, 1, FLOATS},      {"gemm2_bf16", SL_BF16, 2, FLOATS},
    {"gemm4_bf16", SL_BF16, 4, FLOATS},     {"gemm32_bf16", SL_BF16, 32, FLOATS},
    {"gemv_f32", SL_F32, 1, FLOATS},        {"gemm32_f16", SL_F16, 32, FLOATS},
    {"gemm4_q8_0", SL_Q8_0, 4, FLOATS},     {"gemm32_q8_0", SL_Q8_0, 32, FLOATS},
    {"gemm4_q4_k", SL_Q4_K, 4, FLOATS},     {"gemm32_q4_k", SL_Q4_K, 32, FLOATS},
    {"int8_1_q8_0", SL_Q8_0, 1, INT8},      {"int8_4_q8_0", SL_Q8_0, 4, INT8},
    {"int8_32_q8_0", SL_Q8_0, 32, INT8},    {"int8_4_q4_0", SL_Q4_0, 4, INT8},
    {"int8_32_q4_0", SL_Q4_0, 32, INT8},    {"int8_4_mxfp4", SL_MXFP4, 4, INT8},
    {"int8_32_mxfp4", SL_MXFP4, 32, INT8},  {"attention4", SL_F32, 4, ATTENTION},
    {"attention16", SL_F32, 16, ATTENTION},
};

static void run(size_t at, const sl_kernels *k, const data *d) {
    const float *rows[SL_TILE_ROWS];
    const uint8_t *codes[SL_TILE_ROWS];
    sl_attn_query query[SL_ATTN_QUERIES];
    for (uint32_t i = 0; i < SL_TILE_ROWS; i++) rows[i] = d->x + i * K;
    for (uint32_t i = 0; i < SL_TILE_ROWS; i++)
        codes[i] = d->act + i * sl_act_row_bytes(SL_ACT_32, K);
    for (uint32_t i = 0; i < SL_ATTN_QUERIES; i++)
        query[i] = (sl_attn_query){.q = d->x + i * K, .o = d->y + i * K, .last = TOKENS - 1};
    sl_gemm_tile t = {.w = d->w,
                      .w_stride = sl_dtype_row_bytes(pieces[at].dtype, K),
                      .dtype = pieces[at].dtype,
                      .k = K,
                      .n_cols = COLS,
                      .n_rows = pieces[at].rows,
                      .y_stride = COLS,
                      .x = rows,
                      .y = d->y};
    sl_act_tile i8 = {.w = d->w,
                      .w_stride = sl_dtype_row_bytes(pieces[at].dtype, K),
                      .dtype = pieces[at].dtype,
                      .k = K,
                      .n_cols = COLS,
                      .n_rows = pieces[at].rows,
                      .y_stride = COLS,
                      .x = codes,
                      .y = d->y};
    sl_attn_page a = {.query = query,
                      .n = SL_MIN(pieces[at].rows, SL_ATTN_QUERIES),
                      .head_dim = 128,
                      .k = d->w,
                      .v = d->w + TOKENS * 128,
                      .scale = 0.1f};
    counted(k, pieces[at].what == FLOATS ? &t : NULL, pieces[at].what == INT8 ? &i8 : NULL,
            pieces[at].what == ATTENTION ? &a : NULL);
}

int main(int argc, char **argv) {
    const sl_kernels *k = sl_kernels_select("avx2");
    if (!k) return 77;
    data d = {sl_alloc(SL_TILE_COLS * K, sizeof(float)), sl_alloc(SL_TILE_ROWS * K, sizeof(float)),
              sl_alloc(SL_TILE_ROWS * K, sizeof(float)),
              sl_alloc(SL_TILE_ROWS, sl_act_row_bytes(SL_ACT_32, K))};
    if (!d.w || !d.x || !d.y || !d.act) return 1;
    for (size_t i = 0; i < SL_TILE_ROWS * K; i++) d.x[i] = (float)(i % 101) * 0.01f - 0.5f;
    int status = 2;
    for (size_t i = 0; argc == 2 && i < SL_LEN(pieces); i++) {
        const bool lists = !strcmp(argv[1], "list"), all = !strcmp(argv[1], "all");
        if (lists) puts(pieces[i].name), status = 0;
        if (all || !strcmp(argv[1], pieces[i].name)) run(i, k, &d), status = 0;
    }
    sl_free(d.w), sl_free(d.x), sl_free(d.y), sl_free(d.act);
    return status;
}
