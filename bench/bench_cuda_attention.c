/* How fast the GPU's attention is over KV pages of each type, in all numerics: single rows over
 * long and short contexts, and the rows of a prompt. Blocks of a model are read in turn, so that no
 * cache holds what is read.
 *
 *     bench_cuda_attention [small]        small: shapes for a rehearsal without a GPU
 *
 * Columns: microseconds a call, GB/s of KV if every row reads its own, TFLOP/s, and the time by
 * that of f32. */
#include "base/mem.h"
#include "format/plan_gpu.h"
#include "quant/kv_rows.h"
#include "stage/cuda/exec_rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POOL_BYTES  ((size_t)600 << 20) /* at least, of all blocks */
#define MOST_BLOCKS 16u
#define DRAWN_PAGES 8u /* that all pages are copies of */

typedef struct shape {
    const char *what;
    uint32_t kv_heads, group, dim, lora;
    uint32_t requests, rows, context; /* rows of each request, the last of its context */
} shape;

static sl_cuda *gpu;
static sl_model_spec m; /* static: large */
static bool small;

static void check(sl_status st, const sl_err *err) {
    if (st == SL_OK) return;
    fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

static void *need(void *p) {
    if (!p) exit(1);
    return p;
}

static uint64_t room(size_t bytes) {
    sl_err err;
    uint64_t at;
    check(sl_cuda_alloc(gpu, bytes, &at, &err), &err);
    return at;
}

static float drawn(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) * 0x1p-23f - 1;
}

/* Pages of drawn rows: some are made, the others copied. */
static uint64_t make_pages(uint32_t n) {
    const size_t page = sl_kv_page_bytes(&m), row = sl_kv_row_bytes(&m);
    const uint32_t made = SL_MIN(n, DRAWN_PAGES);
    uint8_t *host = need(sl_alloc(made, page));
    float *x = need(sl_alloc(m.head_dim, sizeof *x));
    uint32_t state = 1;
    sl_err err;
    for (size_t at = 0; at < made * page; at += row) {
        for (uint32_t i = 0; i < m.head_dim; i++) x[i] = drawn(&state);
        sl_kv_round_row(m.kv_type, x, sl_kv_value_dim(&m), m.head_dim, host + at);
    }
    const uint64_t pool = room(n * page);
    check(sl_cuda_copy_in(gpu, pool, host, made * page, &err), &err);
    for (size_t done = made; done < n; done *= 2)
        sl_cuda_copy(gpu, pool + done * page, pool, SL_MIN(done, n - done) * page);
    sl_free(host);
    sl_free(x);
    return pool;
}

static uint64_t make_queries(size_t n) {
    float *q = need(sl_alloc(n, sizeof *q));
    uint32_t state = 2;
    sl_err err;
    for (size_t i = 0; i < n; i++) q[i] = 2 * drawn(&state);
    const uint64_t at = room(n * sizeof *q);
    check(sl_cuda_copy_in(gpu, at, q, n * sizeof *q, &err), &err);
    sl_free(q);
    return at;
}

/* Microseconds a call. */
static double time_of(sl_attn_args *a, uint32_t blocks, double macs) {
    sl_err err;
    sl_cuda_event *from, *to;
    const uint32_t times =
        small ? 1 : (uint32_t)SL_MAX(2 * (double)blocks, SL_MIN(200, 4e11 / macs));
    check(sl_cuda_event_create(gpu, &from, &err), &err);
    check(sl_cuda_event_create(gpu, &to, &err), &err);
    sl_cuda_attention(gpu, a);
    sl_cuda_event_record(gpu, from);
    for (uint32_t i = 0; i < times; i++) {
        a->layer = i % blocks;
        sl_cuda_attention(gpu, a);
    }
    sl_cuda_event_record(gpu, to);
    sl_cuda_drain(gpu);
    check(sl_cuda_failed(gpu, &err), &err);
    const double us = sl_cuda_event_ms(gpu, from, to) * 1e3 / times;
    sl_cuda_event_free(gpu, from);
    sl_cuda_event_free(gpu, to);
    return us;
}

static double measure(const shape *s, sl_kv_type type, double f32) {
    const uint32_t n = s->requests * s->rows;
    const uint32_t per = (s->context + SL_KV_PAGE_TOKENS - 1) / SL_KV_PAGE_TOKENS;
    m = (sl_model_spec){.n_layers = 1,
                        .n_kv_heads = s->kv_heads,
                        .n_heads = s->kv_heads * s->group,
                        .head_dim = s->dim,
                        .kv_lora = s->lora,
                        .kv_type = type};
    const size_t block = sl_kv_page_bytes(&m) * per * s->requests;
    const uint32_t blocks = small ? 1 : (uint32_t)SL_MIN(POOL_BYTES / block + 1, MOST_BLOCKS);
    m.n_layers = blocks;
    const size_t q_row = (size_t)m.n_heads * m.head_dim,
                 o_row = (size_t)m.n_heads * sl_kv_value_dim(&m);
    uint32_t *page = need(sl_alloc(s->requests * per, sizeof *page)),
             *pos = need(sl_alloc(n, sizeof *pos));
    const uint32_t **pages = need(sl_alloc(n, sizeof *pages));
    double seen = 0;
    for (uint32_t i = 0; i < s->requests * per; i++)
        page[i] = (uint32_t)((uint64_t)i * 7919u % (s->requests * per));
    for (uint32_t r = 0; r < n; r++) {
        pages[r] = page + r / s->rows * per;
        pos[r] = s->context - s->rows + r % s->rows;
        seen += pos[r] + 1;
    }
    const uint64_t pool = make_pages(s->requests * per), q = make_queries(n * q_row);
    const uint64_t o = room(n * o_row * sizeof(float));
    sl_attn_args a = {.m = &m,
                      .n_rows = n,
                      .q = (const float *)(uintptr_t)q,
                      .q_stride = (uint32_t)q_row,
                      .pos = pos,
                      .kv = sl_kv_pool_of(&m, (void *)(uintptr_t)pool),
                      .pages = pages,
                      .scale = 1 / sqrtf((float)m.head_dim),
                      .o = (float *)(uintptr_t)o,
                      .o_stride = (uint32_t)o_row};
    const double macs = seen * (double)(q_row + o_row);
    const double bytes = seen * (double)(sl_kv_token_bytes(&m) / blocks);
    const double us = time_of(&a, blocks, macs);
    printf("%-5s %-24s %-5s %10.2f us %8.0f GB/s %8.2f TFLOP/s %6.2f of f32\n",
           sl_numerics_name(sl_cuda_numerics_of(gpu)), s->what, sl_kv_type_names[type], us,
           bytes / us * 1e-3, 2 * macs / us * 1e-6, f32 > 0 ? us / f32 : 1);
    fflush(stdout);
    sl_cuda_free(gpu, pool);
    sl_cuda_free(gpu, q);
    sl_cuda_free(gpu, o);
    sl_free(page);
    sl_free(pos);
    sl_free(pages);
    return us;
}

int main(int argc, char **argv) {
    static const shape large[] = {{"64 rows, 1024", 4, 8, 128, 0, 64, 1, 1024},
                                  {"1 row, 32768", 4, 8, 128, 0, 1, 1, 32768},
                                  {"8 rows, 4096", 4, 8, 128, 0, 8, 1, 4096},
                                  {"64 rows, 1024, of 64", 8, 8, 64, 0, 64, 1, 1024},
                                  {"prompt 2048", 4, 8, 128, 0, 1, 2048, 2048},
                                  {"512 rows at 32768", 4, 8, 128, 0, 1, 512, 32768},
                                  {"64 rows, 1024, latents", 1, 16, 576, 512, 64, 1, 1024}};
    static const shape few[] = {{"2 rows, 64", 2, 4, 128, 0, 2, 1, 64},
                                {"32 rows", 1, 4, 128, 0, 1, 32, 32},
                                {"2 rows, 64, latents", 1, 4, 48, 32, 2, 1, 64}};
    sl_err err = {0};
    small = argc > 1 && strcmp(argv[1], "small") == 0;
    const shape *shapes = small ? few : large;
    const size_t n = small ? SL_LEN(few) : SL_LEN(large);
    for (sl_numerics numerics = SL_NUMERICS_CPU; numerics < SL_NUMERICS_COUNT; numerics++) {
        check(sl_cuda_open(0, numerics, &gpu, &err), &err);
        if (numerics == SL_NUMERICS_CPU) printf("%s\n", sl_cuda_info_of(gpu)->name);
        for (size_t i = 0; i < n; i++) {
            if (numerics != SL_NUMERICS_CPU && shapes[i].lora) continue; /* as with cpu */
            double f32 = 0;
            for (sl_kv_type t = SL_KV_F32; t < SL_KV_TYPES; t++) {
                const double us = measure(&shapes[i], t, f32);
                if (t == SL_KV_F32) f32 = us;
            }
        }
        sl_cuda_close(gpu);
    }
    return 0;
}
