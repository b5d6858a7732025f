/* Dense products of many rows on one GPU, numerics fast: every tile of fast_wide.cu, the tiles of
 * mma.sync, and cuBLASLt for the same shape; and the kernels of rows beside them.
 *
 *   bench_dense [--rows 128,512,2048,8192] [--repeats 20] [--only NAME] [--driver F] [--cublaslt F]
 *
 * Qwen3-30B-A3B's shapes: queries, keys and values in one launch, what attention leaves, gate and
 * up of a dense feed-forward. Weights are read again and again, so they may lie in the second
 * cache, for cuBLASLt as well. Results are compared with sums in double, at some places. Output: a
 * table. Exit: 0, or 1 when a result was wrong. */
#include "args_bench.h"
#include "gpu.h"
#include "quant/half.h"
#include "stage/cuda/kernels/args_products.h"
#include "stage/cuda/kernels/args_prompt.h"
#include "stage/cuda/kernels/args_rows.h"
#include "stage/cuda/wide_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const uint8_t bench_image_bench[], bench_image_wide[], bench_image_products[],
    bench_image_rows[], bench_image_norm[], bench_image_prompt[];
static const uint8_t *const images[] = {bench_image_bench, bench_image_wide, bench_image_products,
                                        bench_image_rows,  bench_image_norm, bench_image_prompt};

#define JOBS   3u
#define EACH   4 /* launches in a graph */
#define PLACES 48u

typedef struct shape {
    const char *name;
    uint32_t n[JOBS], n_jobs, k, end, parts;
} shape;

static const shape shapes[] = {
    {"qkv", {4096, 512, 512}, 3, 2048, SL_PRODUCT_STORE, 1},
    {"o", {2048}, 1, 4096, SL_PRODUCT_STORE, 1},
    {"glu", {6144}, 1, 2048, SL_PRODUCT_SWIGLU, 1},
    {"gate", {128}, 1, 2048, SL_PRODUCT_STORE, SL_WIDE_PARTS},
};

typedef struct data {
    CUdeviceptr w, x, x16, y, parts;
    uint32_t rows;
} data;

static int repeats = 20, bad;
static double dense = 790;

static CUfunction function_of(sl_cuda_kernel_id id) {
    static const char *const name[] = {
#define SL_CUDA_KERNEL(name, args) #name,
#include "stage/cuda/kernels/kernels.def"
#undef SL_CUDA_KERNEL
    };
    return gpu_function(name[id]);
}

static void fill(CUdeviceptr to, uint64_t n, float scale, uint32_t seed) {
    const sl_bench_fill_args a = {(uint32_t *)to, n, scale, seed};
    gpu_launch(gpu_function("sl_k_bench_fill"), (uint32_t)gpu_sms * 8, 1, 256, 0, 1, 0, &a,
               sizeof a);
}

static double time_of(CUfunction f, uint32_t grid_x, uint32_t grid_y, uint32_t threads,
                      uint32_t shared, const void *args, size_t bytes) {
    double best = 0;
    gpu_capture();
    for (int i = 0; i < EACH; i++)
        gpu_launch(f, grid_x, grid_y, threads, shared, 1, 1, args, bytes);
    gpu_graph g = gpu_captured();
    const double us = gpu_replay_us(g, 2, repeats, &best) / EACH;
    gpu_graph_free(g);
    return us;
}

/* ---- products ---- */

static uint32_t sides_of(const shape *s) {
    return s->end == SL_PRODUCT_SWIGLU ? 2 : 1;
}

static uint32_t width_of(const shape *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_jobs; i++) n += s->n[i];
    return n;
}

static double flops_of(const shape *s, uint32_t rows) {
    return 2.0 * width_of(s) * sides_of(s) * s->k * rows;
}

/* Row c of side `side` of job j. */
static CUdeviceptr weights_at(const data *d, const shape *s, uint32_t j, uint32_t side) {
    CUdeviceptr at = d->w;
    for (uint32_t i = 0; i < j; i++) at += 2ull * sides_of(s) * s->n[i] * s->k;
    return at + 2ull * side * s->n[j] * s->k;
}

static CUdeviceptr rows_at(const data *d, const shape *s, uint32_t j) {
    CUdeviceptr at = d->y;
    for (uint32_t i = 0; i < j; i++) at += 4ull * s->n[i] * d->rows;
    return at;
}

static double dot(CUdeviceptr w, CUdeviceptr x, uint32_t k, uint32_t parts) {
    uint16_t *a = malloc(k * 2);
    float *b = malloc(k * 4);
    double sum = 0;
    gpu_get(a, w, k * 2);
    gpu_get(b, x, k * 4);
    for (uint32_t i = 0; i < k; i++)
        sum += (double)sl_bf16_to_f32(a[i]) *
               (parts > 1 ? b[i] : sl_bf16_to_f32(sl_f32_to_bf16(b[i])));
    free(a);
    free(b);
    return sum;
}

/* Error at some places, in parts of the values' size; 9: not written. */
static double error_of(const data *d, const shape *s) {
    double off = 0, all = 0;
    for (uint32_t i = 0; i < PLACES; i++) {
        const uint32_t j = i % s->n_jobs, r = (uint32_t)rand() % d->rows;
        const uint32_t c = i < 6 ? s->n[j] - 1 : (uint32_t)rand() % s->n[j];
        const CUdeviceptr x = d->x + 4ull * r * s->k;
        float y = 0;
        gpu_get(&y, rows_at(d, s, j) + 4 * ((uint64_t)r * s->n[j] + c), 4);
        double want = dot(weights_at(d, s, j, 0) + 2ull * c * s->k, x, s->k, s->parts);
        if (sides_of(s) == 2)
            want = want / (1 + exp(-want)) *
                   dot(weights_at(d, s, j, 1) + 2ull * c * s->k, x, s->k, s->parts);
        off += (y - want) * (y - want);
        all += want * want;
    }
    const double e = sqrt(off / all);
    return isfinite(e) ? e : 9;
}

static void say(const char *what, const shape *s, uint32_t rows, double us, double error) {
    const double rate = flops_of(s, rows) / us * 1e-6;
    printf("%-4s %5u %-16s %9.1f us %7.1f TFLOP/s %5.1f%% %9.2g\n", s->name, rows, what, us, rate,
           100 * rate / dense, error);
    if (!(error < 5e-3)) bad = 1;
    fflush(stdout);
}

static void wide_jobs(const data *d, const shape *s, uint32_t box, uint32_t pair, sl_wide_args *a) {
    memset(a, 0, sizeof *a);
    a->n_jobs = s->n_jobs;
    a->pair = pair;
    for (uint32_t i = 0; i < s->n_jobs; i++) {
        sl_wide_job *j = &a->job[i];
        j->n = s->n[i], j->k = s->k, j->n_rows = d->rows, j->y_stride = s->n[i], j->end = s->end;
        j->parts = s->parts;
        j->y = (float *)rows_at(d, s, i);
        for (uint32_t side = 0; side < 2; side++)
            gpu_tensor_map(&j->w[side], weights_at(d, s, i, side < sides_of(s) ? side : 0), j->n,
                           j->k, SL_WIDE_BOX);
        gpu_tensor_map(&j->x, d->x16, s->parts * d->rows, s->k, box);
    }
}

static double time_wide(const data *d, const shape *s, uint32_t tile, uint32_t pair, uint32_t lead,
                        double *error) {
    const sl_wide_shape *w = &sl_wide_shape_of[tile];
    sl_wide_args a;
    wide_jobs(d, s, w->rows / 2, pair, &a);
    a.lead = lead;
    sl_wide_layout(&a, tile);
    const uint32_t most = (uint32_t)gpu_sms / 2 * 2;
    const uint32_t all = (a.tiles * pair + 1) / 2 * 2, blocks = all < most ? all : most;
    const CUfunction f = function_of(w->kernel);
    gpu_set(d->y, 0xff, 4ull * width_of(s) * d->rows);
    gpu_launch(f, blocks, 1, SL_WIDE_THREADS, SL_WIDE_SHARED, 1, 0, &a, sizeof a);
    gpu_sync(s->name);
    *error = error_of(d, s);
    return time_of(f, blocks, 1, SL_WIDE_THREADS, SL_WIDE_SHARED, &a, sizeof a);
}

/* Tiles of mma.sync, 128 rows, whole k. */
static double time_tiles(const data *d, const shape *s, double *error) {
    sl_product_args a;
    uint32_t tiles = 0;
    memset(&a, 0, sizeof a);
    a.n_jobs = s->n_jobs;
    a.shape.cols = SL_FAST_TILE_COLS;
    for (uint32_t i = 0; i < s->n_jobs; i++) {
        sl_product_job *j = &a.job[i];
        j->side[0].w = (const uint8_t *)weights_at(d, s, i, 0);
        j->side[1].w = (const uint8_t *)weights_at(d, s, i, sides_of(s) - 1);
        j->side[0].stride = j->side[1].stride = 2ull * s->k;
        j->x = (const uint8_t *)d->x;
        j->y = (float *)rows_at(d, s, i);
        j->x_stride = 4ull * s->k;
        j->n = s->n[i], j->k = s->k, j->n_rows = d->rows, j->y_stride = s->n[i];
        j->first = tiles;
        j->end = (uint8_t)s->end;
        const uint32_t across = a.shape.cols / sides_of(s);
        tiles += (j->n + across - 1) / across * ((d->rows + 127) / 128);
    }
    const uint32_t shared = (SL_FAST_STAGES * SL_FAST_TILE_COLS + 2 * 128) * 128;
    const CUfunction f = gpu_function("sl_k_fast_tile_128");
    gpu_set(d->y, 0xff, 4ull * width_of(s) * d->rows);
    gpu_launch(f, tiles, 1, SL_FAST_THREADS, shared, 1, 0, &a, sizeof a);
    gpu_sync(s->name);
    *error = error_of(d, s);
    return time_of(f, tiles, 1, SL_FAST_THREADS, shared, &a, sizeof a);
}

static double time_round(const data *d, const shape *s) {
    const uint32_t k = s->k;
    const sl_wide_rows_args a = {
        (const float *)d->x, NULL, (uint16_t *)d->x16, k, d->rows, k, s->parts};
    return time_of(gpu_function("sl_k_fast_wide_rows"),
                   (k / 8 + SL_WIDE_ROWS_THREADS - 1) / SL_WIDE_ROWS_THREADS, d->rows,
                   SL_WIDE_ROWS_THREADS, 0, &a, sizeof a);
}

static void bench_shape(data *d, const shape *s, const char *library) {
    double error = 0, us;
    char note[512] = "", what[64];
    const uint32_t m = width_of(s) * sides_of(s);
    sl_wide_args a;
    fill(d->w, (uint64_t)m * s->k, 1.7f / sqrtf((float)s->k), 5);
    fill(d->x, 2ull * d->rows * s->k, 1.7f, 6);
    us = time_round(d, s);
    printf("%-4s %5u %-16s %9.1f us %7.0f GB/s\n", s->name, d->rows, "round", us,
           (4e-3 + 2e-3 * s->parts) * d->rows * s->k / us);
    const double peer =
        gpu_dense_tflops(library, d->w, d->x16, d->y, m, d->rows, s->k, note, sizeof note);
    if (peer > 0) say("cublaslt", s, d->rows, flops_of(s, d->rows) / peer * 1e-6, 0);
    us = time_tiles(d, s, &error);
    say("mma.sync 128", s, d->rows, us, error);
    wide_jobs(d, s, 64, 2, &a);
    const uint32_t chosen = sl_wide_choose(&a, (uint32_t)gpu_sms);
    for (uint32_t i = 0; i < SL_WIDE_SHAPES; i++) {
        if (sl_wide_cycles(&a, i, (uint32_t)gpu_sms) == UINT32_MAX) continue;
        for (uint32_t j = 0; j < 3; j++) { /* pairs, pairs led, alone */
            us = time_wide(d, s, i, j < 2 ? 2 : 1, j ? 2 : 0, &error);
            snprintf(what, sizeof what, "%ux%u %s%s", sl_wide_shape_of[i].halves,
                     sl_wide_shape_of[i].rows,
                     j == 2 ? "alone"
                     : j    ? "led"
                            : "pairs",
                     i == chosen && j == 1 ? " *" : "");
            say(what, s, d->rows, us, error);
        }
    }
}

/* ---- kernels of rows ---- */

static void bench_rows(const data *d) {
    const uint32_t n = 2048;
    const size_t values = (size_t)d->rows * n;
    sl_k_norm_args norm = {.x = (const float *)d->x,
                           .w = (const void *)d->w,
                           .y = (float *)d->y,
                           .n_rows = d->rows,
                           .n = n,
                           .dtype = 2,
                           .wide = 1,
                           .eps = 1e-6f};
    double us = time_of(gpu_function("sl_k_norm"), d->rows, 1, 256, 0, &norm, sizeof norm);
    printf("norm %5u exact            %9.1f us %7.0f GB/s\n", d->rows, us,
           8e-3 * (double)values / us);
    for (uint32_t parts = 0; parts <= SL_WIDE_PARTS; parts += parts ? 2 : 1) {
        norm.parts = (uint16_t *)d->x16;
        norm.n_parts = parts;
        us = time_of(gpu_function("sl_k_fast_norm"), d->rows, 1, SL_FAST_NORM_THREADS, 0, &norm,
                     sizeof norm);
        printf("norm %5u %u parts          %9.1f us %7.0f GB/s\n", d->rows, parts, us,
               (8e-3 + 2e-3 * parts) * (double)values / us);
    }
    const sl_k_vec_args vec = {.y = (float *)d->y,
                               .x = (const float *)d->x,
                               .n = values,
                               .op = SL_CUDA_VEC_ADD,
                               .wide = 1};
    us = time_of(gpu_function("sl_k_vec"), 4096, 1, 256, 0, &vec, sizeof vec);
    printf("add  %5u                  %9.1f us %7.0f GB/s\n", d->rows, us,
           12e-3 * (double)values / us);
}

/* ---- attention of a prompt ---- */

#define HEADS    32u
#define KV_HEADS 4u
#define DIM      128u
#define PAGE     32u

/* Lists of a prompt of `rows` rows from position 0 on, the last rows first; the GPU's address. */
static CUdeviceptr make_walks(uint32_t rows, sl_k_attention_args *a) {
    const uint32_t each = SL_PROMPT_QUERIES / (HEADS / KV_HEADS), walks = (rows + each - 1) / each;
    const size_t bytes = walks * sizeof(sl_cuda_walk) + 3ull * rows * 4;
    sl_cuda_walk *w = calloc(1, bytes);
    uint32_t *pos = (uint32_t *)(w + walks), *low = pos + rows, *page = low + rows;
    for (uint32_t r = 0; r < rows; r++) pos[r] = r, low[r] = 0;
    for (uint32_t i = 0; i < (rows + PAGE - 1) / PAGE; i++) page[i] = i;
    for (uint32_t i = 0; i < walks; i++) {
        const uint32_t row = (walks - 1 - i) * each, n = rows - row < each ? rows - row : each;
        w[i] = (sl_cuda_walk){
            .row = row, .n = n, .last = (row + n - 1) / PAGE, .even_to = row, .to = row + n - 1};
    }
    const CUdeviceptr at = gpu_alloc(bytes);
    gpu_put(at, w, bytes);
    a->walk = (const sl_cuda_walk *)at;
    a->pos = (const uint32_t *)(at + walks * sizeof *w);
    a->low = a->pos + rows;
    a->page = a->low + rows;
    free(w);
    return at;
}

static void bench_prompt(const data *d) {
    const uint32_t rows = d->rows, walks = (rows + 15) / 16, width = HEADS * DIM;
    const size_t values = (size_t)KV_HEADS * rows * DIM;
    sl_prompt_args p;
    memset(&p, 0, sizeof p);
    p.attn = (sl_k_attention_args){.q = (const float *)d->y,
                                   .o = (float *)d->y + (size_t)rows * width,
                                   .q_stride = width,
                                   .o_stride = width,
                                   .dim = DIM,
                                   .v_dim = DIM,
                                   .group = HEADS / KV_HEADS,
                                   .n_heads = HEADS,
                                   .heads = HEADS / KV_HEADS,
                                   .slices = 1,
                                   .scale = 0.088f};
    const CUdeviceptr lists = make_walks(rows, &p.attn);
    const sl_prompt_keys_args k = {.k = (const uint8_t *)d->x,
                                   .v = (const uint8_t *)d->x + KV_HEADS * PAGE * DIM * 4,
                                   .page_bytes = 2 * KV_HEADS * PAGE * DIM * 4,
                                   .head_bytes = PAGE * DIM * 4,
                                   .type = SL_KV_F32,
                                   .page = p.attn.page,
                                   .to = rows - 1,
                                   .span = rows,
                                   .dim = DIM,
                                   .keys = (uint16_t *)d->x16,
                                   .values = (uint16_t *)d->x16 + values};
    p.o = (uint16_t *)d->x16 + 2 * values;
    p.span = rows;
    gpu_tensor_map(&p.keys, (CUdeviceptr)k.keys, KV_HEADS * rows, DIM, SL_PROMPT_KEYS);
    gpu_tensor_map(&p.values, (CUdeviceptr)k.values, KV_HEADS * DIM, rows, DIM);
    fill(d->y, 2ull * rows * width, 1.0f, 8);
    double us = time_of(gpu_function("sl_k_fast_prompt_keys"), rows / PAGE, KV_HEADS,
                        SL_PROMPT_KEYS_THREADS, 0, &k, sizeof k);
    printf("attn %5u pages to bf16    %9.1f us %7.0f GB/s\n", rows, us,
           12e-3 * (double)values / us);
    const uint32_t shared = SL_PROMPT_ROOM + 1024 + SL_PROMPT_STAGES * SL_PROMPT_KEYS * DIM * 4;
    us = time_of(gpu_function("sl_k_fast_prompt_wide_128"), walks, KV_HEADS, SL_PROMPT_THREADS,
                 shared, &p, sizeof p);
    const double rate = 2.0 * rows * (rows + 1.0) * width / us * 1e-6;
    printf("attn %5u                  %9.1f us %7.1f TFLOP/s %5.1f%%\n", rows, us, rate,
           100 * rate / dense);
    gpu_free(lists);
}

int main(int argc, char **argv) {
    const char *only = "", *driver = NULL, *library = NULL;
    uint32_t rows[16] = {128, 512, 2048, 8192}, n_rows = 4, most = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--rows"))
            n_rows = gpu_numbers(argv[i + 1], rows, 16);
        else if (!strcmp(argv[i], "--repeats"))
            repeats = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--only"))
            only = argv[i + 1];
        else if (!strcmp(argv[i], "--driver"))
            driver = argv[i + 1];
        else if (!strcmp(argv[i], "--cublaslt"))
            library = argv[i + 1];
        else
            gpu_die("unknown option %s", argv[i]);
    }
    alarm(60);
    gpu_open(driver);
    for (size_t i = 0; i < sizeof images / sizeof *images; i++) gpu_module(images[i]);
    for (uint32_t i = 0; i < n_rows; i++) most = rows[i] > most ? rows[i] : most;
    data d = {.w = gpu_alloc(2ull * 2 * 6144 * 4096),
              .x = gpu_alloc(4ull * most * 6144),
              .x16 = gpu_alloc(2ull * most * 6144),
              .y = gpu_alloc(4ull * most * 12288)};
    char note[512] = "";
    fill(d.w, 2ull * 6144 * 4096, 1, 3);
    fill(d.x, 2ull * most * 4096, 1, 4);
    fill(d.x16, (uint64_t)most * 4096, 1, 5);
    gpu_sync("fill");
    if (most >= 4096) {
        const double rate =
            gpu_dense_tflops(library, d.x, d.x16, d.y, 4096, 4096, 4096, note, sizeof note);
        if (rate > 0) dense = rate;
    }
    printf("%s, %d SMs; dense 4096^3 %.0f TFLOP/s by %s\n", gpu_name, gpu_sms, dense, note);
    for (uint32_t i = 0; i < n_rows; i++) {
        d.rows = rows[i];
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            if (strstr(shapes[s].name, only)) bench_shape(&d, &shapes[s], library);
        if (!*only || !strcmp(only, "rows")) bench_rows(&d), bench_prompt(&d);
    }
    return bad;
}
