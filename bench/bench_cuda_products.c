/* How fast the GPU's products are, of numerics cpu or of fast: shapes of models, each with rows
 * from one to many. Weights lie in so many copies that no cache holds them, and are read in turn.
 *
 *     bench_cuda_products [fast] [TYPE...]        all types, or those that are named: BF16 Q4_K ...
 *
 * Columns: microseconds a call, GB/s of weights, TFLOP/s. */
#include "base/mem.h"
#include "stage/cuda/exec_products.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WEIGHTS_BYTES ((size_t)600 << 20)
#define MOST_JOBS     128u
#define MOST_COPIES   64u

static sl_cuda *gpu;

static void check(sl_status st, const sl_err *err) {
    if (st == SL_OK) return;
    fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

static void *room(size_t bytes) {
    sl_err err;
    uint64_t at;
    check(sl_cuda_alloc(gpu, bytes, &at, &err), &err);
    sl_cuda_fill(gpu, at, 0x11, bytes);
    return (void *)(uintptr_t)at;
}

/* One shape: so many jobs, each of `rows` rows. */
typedef struct shape {
    const char *what;
    uint32_t jobs, n, k;
    bool up; /* gate and up together */
} shape;

typedef struct bench {
    sl_dtype type;
    bool rounded;
    uint32_t copies;
    sl_mat w[MOST_COPIES][MOST_JOBS], up[MOST_COPIES][MOST_JOBS];
    const sl_mat *up_of[MOST_COPIES][MOST_JOBS];
    sl_gemm_job job[MOST_COPIES][MOST_JOBS];
    uint8_t *weights;
    float *x, *y, *scale;
    uint8_t *act;
    uint32_t row[1u << 16];
} bench;

static size_t matrix_bytes(sl_dtype t, const shape *s) {
    return (sl_dtype_row_bytes(t, s->k) * s->n + 255) / 256 * 256;
}

static void lay_out(bench *b, const shape *s, uint32_t rows) {
    const size_t one = matrix_bytes(b->type, s), all = one * s->jobs * (s->up ? 2 : 1);
    const sl_act_kind kind = b->rounded ? sl_act_kind_of(b->type) : SL_ACT_NONE;
    uint8_t *at = b->weights;
    b->copies = (uint32_t)SL_MIN(MOST_COPIES, SL_MAX(1, WEIGHTS_BYTES / all));
    for (uint32_t c = 0; c < b->copies; c++)
        for (uint32_t i = 0; i < s->jobs; i++) {
            sl_mat *w = &b->w[c][i], *up = &b->up[c][i];
            *w = (sl_mat){.data = at, .n = s->n, .k = s->k, .dtype = b->type, .scale = b->scale};
            at += one;
            *up = *w;
            b->up_of[c][i] = up;
            if (s->up) up->data = at, at += one;
            sl_gemm_job *j = &b->job[c][i];
            *j = (sl_gemm_job){.w = w,
                               .x = b->x,
                               .n_rows = rows,
                               .x_stride = s->k,
                               .y_stride = s->n,
                               .y = b->y + (size_t)i * rows * s->n};
            if (s->jobs > 1) j->row = j->act_row = b->row;
            if (kind != SL_ACT_NONE) j->act.row[kind] = b->act;
        }
}

static void run(bench *b, const shape *s, uint32_t c) {
    sl_cuda_gemm(gpu, b->job[c], s->up ? b->up_of[c] : NULL, s->jobs);
}

static void measure(bench *b, const shape *s, uint32_t rows) {
    sl_err err;
    sl_cuda_event *from, *to;
    lay_out(b, s, rows);
    check(sl_cuda_event_create(gpu, &from, &err), &err);
    check(sl_cuda_event_create(gpu, &to, &err), &err);
    const double macs = (double)s->jobs * rows * s->n * s->k * (s->up ? 2 : 1);
    const uint32_t times = (uint32_t)SL_MAX(4, SL_MIN(100, 2e11 / macs));
    run(b, s, 0);
    sl_cuda_event_record(gpu, from);
    for (uint32_t i = 0; i < times; i++) run(b, s, i % b->copies);
    sl_cuda_event_record(gpu, to);
    sl_cuda_drain(gpu);
    check(sl_cuda_failed(gpu, &err), &err);
    const double us = sl_cuda_event_ms(gpu, from, to) * 1e3 / times;
    const double bytes =
        (double)sl_dtype_row_bytes(b->type, s->k) * s->n * s->jobs * (s->up ? 2 : 1);
    printf("%-8s %-4s %-14s rows %5u %10.2f us %8.0f GB/s %7.2f TFLOP/s\n", sl_dtype_name(b->type),
           b->rounded ? "int8" : "f32", s->what, rows, us, bytes / us * 1e-3, 2 * macs / us * 1e-6);
    fflush(stdout);
    sl_cuda_event_free(gpu, from);
    sl_cuda_event_free(gpu, to);
}

static bool is_wanted(const char *name, int n, char **names) {
    if (n == 0) return true;
    for (int i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static void measure_type(bench *b) {
    const shape shapes[] = {
        {"dense 4096", 1, 4096, 4096, false},    {"narrow 1024", 1, 1024, 4096, false},
        {"head 151936", 1, 151936, 2048, false}, {"8 gate, up", 8, 768, 2048, true},
        {"8 down", 8, 2048, 768, false},         {"64 gate, up", 64, 768, 2048, true}};
    const uint32_t rows[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 128, 512, 2048};
    for (size_t i = 0; i < SL_LEN(shapes); i++)
        for (size_t r = 0; r < SL_LEN(rows); r++) {
            if (i && (rows[r] > 64 || rows[r] == 24 || rows[r] == 48)) continue;
            if (shapes[i].n > 100000 && rows[r] > 8) continue;
            if (b->type >= SL_Q4_K && shapes[i].k % 256) continue;
            measure(b, &shapes[i], rows[r]);
        }
}

int main(int argc, char **argv) {
    sl_err err = {0};
    bench *b = sl_alloc(1, sizeof *b);
    const bool fast = argc > 1 && strcmp(argv[1], "fast") == 0;
    if (fast) argc--, argv++;
    check(sl_cuda_open(0, fast ? SL_NUMERICS_FAST : SL_NUMERICS_CPU, &gpu, &err), &err);
    printf("%s\n", sl_cuda_info_of(gpu)->name);
    if (!b) return 1;
    memset(b, 0, sizeof *b);
    for (uint32_t i = 0; i < SL_LEN(b->row); i++) b->row[i] = i;
    b->weights = room(WEIGHTS_BYTES + ((size_t)3 << 29)); /* or one copy of more than that */
    b->x = room((size_t)2048 * 4096 * 4);
    b->act = room((size_t)2048 * 8192);
    b->y = room((size_t)64 * 2048 * 4096 * 4);
    b->scale = room((size_t)64 << 20);
    for (sl_dtype t = 0; t <= SL_DTYPE_COUNT; t++)
        for (int rounded = 0; rounded < 2; rounded++) {
            b->type = t;
            b->rounded = rounded;
            if (rounded && !sl_act_is_int8(sl_act_kind_of(t))) continue;
            if (is_wanted(sl_dtype_name(t), argc - 1, argv + 1)) measure_type(b);
        }
    sl_cuda_close(gpu);
    sl_free(b);
    return 0;
}
