/* Speed of the kernels as CSV on stdout, with this machine's limits measured in the same run.
 *   bench_kernels [--threads T] [--isa NAME] [--only TEXT] [--ms M] [--clock wall|cpu]
 * Products rotate over more weights than the caches hold, as experts do, in pages of 2 MB where the
 * system gives them, as mapped checkpoints have. Times are medians of single calls; read the p10
 * column on a busy machine. */
#include "base/clock.h"
#include "base/mem.h"
#include "kernel/kernel_int.h"
#include "limits.h"
#include "quant/kv_rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REPS 4000u

typedef struct bench {
    sl_exec ex;
    uint32_t threads;
    const char *only;
    uint64_t budget_ns;
    bool cpu_clock;
    uint8_t *weights;
    size_t weight_bytes;
    double peak_gflops, peak_gbs;
    uint64_t ns[MAX_REPS];
} bench;

static uint64_t now_ns(const bench *b) {
    return b->cpu_clock ? sl_thread_cpu_ns() : sl_now_ns();
}

/* One call of what is measured; rep counts up. */
typedef void (*bench_fn)(bench *b, void *ctx, uint32_t rep);

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void report(bench *b, const char *name, const char *shape, double flops, double bytes,
                   bench_fn fn, void *ctx) {
    if (b->only && !strstr(name, b->only)) return;
    uint32_t n = 0;
    fn(b, ctx, 0);
    for (uint64_t start = sl_now_ns();
         n < 5 || (n < MAX_REPS && sl_now_ns() - start < b->budget_ns); n++) {
        uint64_t t = now_ns(b);
        fn(b, ctx, n + 1);
        b->ns[n] = now_ns(b) - t;
    }
    qsort(b->ns, n, sizeof b->ns[0], by_value);
    double p50 = (double)b->ns[n / 2];
    printf("%s,%s,%s,%u,%u,%.1f,%.1f,%.1f,%.2f,%.2f,%.0f,%.0f\n", b->ex.k->name, name, shape,
           b->threads, n, (double)b->ns[n / 10] / 1e3, p50 / 1e3, (double)b->ns[n * 9 / 10] / 1e3,
           flops / p50, bytes / p50, b->peak_gflops > 0 ? 100 * flops / p50 / b->peak_gflops : 0,
           b->peak_gbs > 0 ? 100 * bytes / p50 / b->peak_gbs : 0);
    fflush(stdout);
}

/* ---- products ---- */

typedef struct gemm_ctx {
    sl_mat w;
    size_t n_mats;
    uint32_t rows;
    float *x, *y;
    uint8_t *act; /* rows are rounded to BF16 in each call; NULL: they are multiplied as they are */
    bool swiglu;
} gemm_ctx;

static void gemm_once(bench *b, void *ctx, uint32_t rep) {
    gemm_ctx *g = ctx;
    size_t bytes = (size_t)g->w.n * g->w.k * sl_dtype_bytes(g->w.dtype);
    sl_mat w = g->w, up = g->w;
    w.data = b->weights + 2 * rep % g->n_mats * bytes;
    up.data = b->weights + (2 * rep + 1) % g->n_mats * bytes;
    const sl_mat *ups[] = {&up};
    sl_gemm_job j = {
        .w = &w, .x = g->x, .n_rows = g->rows, .x_stride = w.k, .y_stride = w.n, .y = g->y};
    if (g->act) {
        sl_quantise(&b->ex, g->x, NULL, g->rows, w.k, w.k, SL_ACT_BF16, g->act);
        j.act.row[SL_ACT_BF16] = g->act;
    }
    if (g->swiglu)
        sl_gemm_swiglu(&b->ex, &j, ups, 1);
    else
        sl_gemm(&b->ex, &j, 1);
}

typedef enum gemm_kind { GEMM_PLAIN, GEMM_SWIGLU, GEMM_BF16, GEMM_PARTS } gemm_kind;

static void bench_gemm(bench *b, sl_dtype dtype, uint32_t k, uint32_t n, gemm_kind kind) {
    static const char *const kernels[] = {"gemm", "gemm_swiglu", "gemm_of_bf16",
                                          "gemm_of_bf16_parts"};
    static const char *const names[] = {"f32", "f16", "bf16"};
    const uint32_t rows[] = {1, 2, 3, 4, 8, 16, 32, 64, 128, 512};
    size_t bytes = (size_t)n * k * sl_dtype_bytes(dtype);
    gemm_ctx g = {.w = {.n = n, .k = k, .dtype = dtype}, .n_mats = b->weight_bytes / bytes};
    g.swiglu = kind == GEMM_SWIGLU;
    const bool rounded = kind == GEMM_BF16 || kind == GEMM_PARTS;
    b->ex.activations = kind == GEMM_PARTS ? SL_ACTIVATIONS_BF16_PARTS : SL_ACTIVATIONS_F32;
    if (rounded) g.act = sl_alloc(512, sl_act_row_bytes(SL_ACT_BF16, k));
    g.x = sl_alloc((size_t)512 * k, sizeof(float));
    g.y = sl_alloc((size_t)512 * n, sizeof(float));
    if (!g.x || !g.y || (rounded && !g.act)) abort();
    for (size_t i = 0; i < (size_t)512 * k; i++) g.x[i] = (float)(i % 251) * 0.01f - 1.2f;
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        char shape[64];
        g.rows = rows[i];
        snprintf(shape, sizeof shape, "%s k%u n%u rows%u", names[dtype], k, n, g.rows);
        double times = g.swiglu ? 2 : 1;
        report(b, kernels[kind], shape, times * 2.0 * g.rows * n * k, times * (double)bytes,
               gemm_once, &g);
    }
    sl_free(g.x);
    sl_free(g.y);
    sl_free(g.act);
}

/* ---- attention ---- */

typedef struct attn_ctx {
    sl_model_spec m;
    sl_attn_args a;
} attn_ctx;

static void attn_once(bench *b, void *ctx, uint32_t rep) {
    (void)rep;
    sl_attention(&b->ex, &((attn_ctx *)ctx)->a);
}

/* 16 query heads on 4 kv heads; pages in memory like an engine's. */
static void bench_attention(bench *b, uint32_t dim, uint32_t rows, uint32_t first,
                            sl_kv_type type) {
    attn_ctx c = {
        .m = {.n_layers = 1, .n_heads = 16, .n_kv_heads = 4, .head_dim = dim, .kv_type = type}};
    uint32_t n_pages = sl_kv_pages_for(first + rows), width = c.m.n_heads * c.m.head_dim;
    uint8_t *kv = sl_reserve(n_pages, sl_kv_page_bytes(&c.m));
    uint32_t *page = sl_alloc(n_pages, sizeof *page);
    const uint32_t **pages = sl_alloc(rows, sizeof *pages);
    uint32_t *pos = sl_alloc(rows, sizeof *pos);
    float *q = sl_alloc((size_t)rows * width, sizeof *q),
          *o = sl_alloc((size_t)rows * width, sizeof *o);
    if (!kv || !page || !pages || !pos || !q || !o) abort();
    float row[SL_HEAD_DIM_MAX];
    const size_t tile_row = sl_kv_row_bytes(&c.m);
    for (size_t i = 0; i < n_pages * sl_kv_page_bytes(&c.m) / tile_row; i++) {
        for (uint32_t d = 0; d < dim; d++) row[d] = (float)((i * dim + d) % 97) * 0.01f - 0.5f;
        sl_kv_round(type, row, dim, kv + i * tile_row);
    }
    for (size_t i = 0; i < (size_t)rows * width; i++) q[i] = (float)(i % 89) * 0.01f - 0.4f;
    for (uint32_t i = 0; i < n_pages; i++) page[i] = i;
    double seen = 0;
    for (uint32_t r = 0; r < rows; r++) {
        pages[r] = page;
        pos[r] = first + r;
        seen += pos[r] + 1;
    }
    c.a = (sl_attn_args){&c.m,  0,      rows, q,    width, pos, sl_kv_pool_of(&c.m, kv),
                         pages, 0.088f, o,    width};
    char shape[64];
    snprintf(shape, sizeof shape, "h16/4x%u rows%u from%u", dim, rows, first);
    if (type != SL_KV_F32)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), " %s",
                 sl_kv_type_names[type]);
    report(b, "attention", shape, seen * 4.0 * width,
           seen * 2.0 * c.m.n_kv_heads * (double)tile_row, attn_once, &c);
    sl_release(kv, n_pages, sl_kv_page_bytes(&c.m));
    sl_free(page), sl_free((void *)pages), sl_free(pos), sl_free(q), sl_free(o);
}

/* ---- the pieces of kernels.def, one thread, in cache ---- */

#define PIECE_N 4096u

typedef struct piece {
    float x[PIECE_N], y[PIECE_N], z[PIECE_N];
    double freq[PIECE_N];
    int which;
} piece;

enum {
#define SL_KERNEL(name, per, tol, what) PIECE_##name,
#include "kernel/kernels.def"
#undef SL_KERNEL
    PIECE_COUNT
};

static const char *const piece_name[] = {
#define SL_KERNEL(name, per, tol, what) #name,
#include "kernel/kernels.def"
#undef SL_KERNEL
};

static void piece_once(bench *b, void *ctx, uint32_t rep) {
    piece *p = ctx;
    const sl_kernels *k = b->ex.k;
    const float *row = p->x;
    sl_attn_query query = {p->x, p->x, 0, 1, 0, 31};
    sl_gemm_tile t = {p->x, 128 * sizeof(float), SL_F32, 128, 32, 1, 32, &row, p->y};
    sl_attn_page a = {&query, 1, 128, 128, p->y, p->z, NULL, NULL, 0.1f};
    (void)rep;
    switch (p->which) {
    case PIECE_gemm_tile:
        sl_call_gemm_tile(k, &t);
        break;
    case PIECE_attn_page:
        sl_call_attn_page(k, &a);
        break;
    case PIECE_quantise:
        sl_call_quantise(k, p->x, PIECE_N, SL_ACT_32, (uint8_t *)p->y);
        break;
    case PIECE_rms_quantise:
        sl_call_rms_quantise(k, p->x, p->z, 0.5f,
                             &(sl_act_part){(uint8_t *)p->y, SL_ACT_32, PIECE_N, 0, PIECE_N});
        break;
    case PIECE_int8_tile: /* see bench_quant */
    case PIECE_strip_tile:
    case PIECE_bf16_tile: /* see gemm_of_bf16 */
    case PIECE_parts_tile:
        break;
    case PIECE_swiglu:
        k->swiglu(p->y, p->x, PIECE_N);
        break;
    case PIECE_gate_values:
        k->gate_values(p->y, p->x, PIECE_N);
        break;
    case PIECE_taps:
        k->taps(&(sl_taps){.n_taps = 1, .n = PIECE_N, .x = {p->x}, .w = p->z, .y = p->y});
        break;
    case PIECE_delta:
        k->delta(&(sl_delta_step){.k_dim = PIECE_N / 64,
                                  .v_dim = 64,
                                  .from = p->x,
                                  .to = p->y,
                                  .q = p->z,
                                  .k = p->z + 64,
                                  .v = p->z + 128,
                                  .decay = 0.9f,
                                  .beta = 0.5f,
                                  .o = p->z + 256});
        break;
    case PIECE_rms_inverse:
        p->y[0] = k->rms_inverse(p->x, 1e-6f, PIECE_N);
        break;
    case PIECE_center:
        k->center(p->x, PIECE_N, p->y);
        break;
    case PIECE_rms_apply:
        k->rms_apply(p->x, p->z, 0.5f, PIECE_N, p->y);
        break;
    case PIECE_sincos:
        k->sincos(77, p->freq, PIECE_N, p->y, p->z);
        break;
    case PIECE_rotate:
        k->rotate(p->y, p->y + PIECE_N / 2, p->z, p->z + PIECE_N / 2, PIECE_N / 2);
        break;
    case PIECE_divide:
        k->divide(p->y, 1.01f, PIECE_N);
        break;
    case PIECE_softmax:
        k->softmax(p->x, PIECE_N, p->y);
        break;
    case PIECE_expv:
        k->expv(p->x, PIECE_N, p->y);
        break;
    case PIECE_add:
        k->add(p->y, p->x, PIECE_N);
        break;
    case PIECE_scale:
        k->scale(p->y, p->x, 0.9f, PIECE_N);
        break;
    case PIECE_add_scaled:
        k->add_scaled(p->y, p->x, 1e-3f, PIECE_N);
        break;
    case PIECE_widen:
        sl_call_widen(k, p->x, SL_BF16, PIECE_N, p->y);
        break;
    case PIECE_to_bf16:
        k->to_bf16(p->x, PIECE_N, (uint16_t *)p->y);
        break;
    }
}

static void bench_pieces(bench *b) {
    piece *p = sl_alloc(1, sizeof *p);
    if (!p) abort();
    for (p->which = 0; p->which < PIECE_COUNT; p->which++) {
        for (uint32_t i = 0; i < PIECE_N; i++) {
            p->x[i] = p->y[i] = p->z[i] = (float)(i % 101) * 0.01f - 0.5f;
            p->freq[i] = 1.0 / (1 + i);
        }
        bool tile = p->which == PIECE_gemm_tile || p->which == PIECE_attn_page;
        double flops = tile ? 2.0 * PIECE_N * (1 + (p->which == PIECE_attn_page)) : PIECE_N;
        report(b, piece_name[p->which], "piece of 4096", flops, 4.0 * PIECE_N, piece_once, p);
    }
    sl_free(p);
}

static int usage(void) {
    fprintf(stderr, "usage: bench_kernels [--threads T] [--isa NAME] [--only TEXT] [--ms M] "
                    "[--clock wall|cpu (1 thread)]\n");
    return 2;
}

int main(int argc, char **argv) {
    static bench b = {.threads = 2, .budget_ns = 200000000u};
    const char *isa = NULL;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 >= argc) return usage();
        if (!strcmp(argv[i], "--threads"))
            b.threads = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--isa"))
            isa = argv[i + 1];
        else if (!strcmp(argv[i], "--only"))
            b.only = argv[i + 1];
        else if (!strcmp(argv[i], "--ms"))
            b.budget_ns = strtoull(argv[i + 1], NULL, 10) * 1000000u;
        else if (!strcmp(argv[i], "--clock"))
            b.cpu_clock = !strcmp(argv[i + 1], "cpu");
        else
            return usage();
    }
    if (b.cpu_clock && b.threads != 1) return usage();
    sl_err err = {0};
    b.ex.k = sl_kernels_select(isa);
    b.weight_bytes = sl_limits_beyond_caches();
    b.weights = sl_reserve(b.weight_bytes, 1);
    if (!b.ex.k || !b.weights || sl_pool_create(b.threads, &b.ex.pool, &err) != SL_OK) {
        fprintf(stderr, "bench_kernels: %s\n", b.ex.k ? err.msg : "no such instruction set here");
        return 1;
    }
    uint16_t *h = (uint16_t *)b.weights;
    for (size_t i = 0; i < b.weight_bytes / 2; i++) h[i] = (uint16_t)(0x3000 + i * 7919 % 2048);
    sl_limits most = sl_limits_measure(b.ex.pool, b.weights, b.weight_bytes, 12, b.cpu_clock);
    b.peak_gflops = most.fma_gflops;
    b.peak_gbs = most.read_gbs;
    printf("# f32 FMA peak %.1f GFLOP/s, read bandwidth %.1f GB/s, %u threads\n", b.peak_gflops,
           b.peak_gbs, b.threads);
    printf(
        "isa,kernel,shape,threads,n,p10_us,p50_us,p90_us,gflops,gbs,pct_peak_flops,pct_peak_bw\n");
    bench_gemm(&b, SL_BF16, 512, 1024, GEMM_PLAIN);
    bench_gemm(&b, SL_BF16, 512, 1024, GEMM_BF16);
    bench_gemm(&b, SL_BF16, 512, 1024, GEMM_PARTS);
    bench_gemm(&b, SL_BF16, 1024, 512, GEMM_PLAIN);
    bench_gemm(&b, SL_BF16, 1024, 512, GEMM_BF16);
    bench_gemm(&b, SL_BF16, 1024, 512, GEMM_PARTS);
    bench_gemm(&b, SL_BF16, 2048, 1024, GEMM_PLAIN);
    bench_gemm(&b, SL_BF16, 2048, 1024, GEMM_BF16);
    bench_gemm(&b, SL_BF16, 2048, 1024, GEMM_PARTS);
    bench_gemm(&b, SL_BF16, 2048, 1024, GEMM_SWIGLU);
    bench_gemm(&b, SL_F16, 1024, 512, GEMM_PLAIN);
    bench_gemm(&b, SL_F32, 1024, 512, GEMM_PLAIN);
    bench_attention(&b, 128, 1, 255, SL_KV_F32);
    bench_attention(&b, 128, 1, 4095, SL_KV_F32);
    for (sl_kv_type t = SL_KV_F32; t < SL_KV_TYPES; t++) {
        bench_attention(&b, 128, 1, 8191, t);
        bench_attention(&b, 128, 1, 32767, t);
        bench_attention(&b, 128, 512, 0, t);
    }
    bench_attention(&b, 128, 16, 1024, SL_KV_F32);
    bench_attention(&b, 64, 512, 0, SL_KV_F32);
    bench_pieces(&b);
    sl_pool_free(b.ex.pool);
    sl_release(b.weights, b.weight_bytes, 1);
    return 0;
}
