/* Grouped against dense: an expert task as one loop over the tiles of all experts (what the engine
 * does), and expert by expert.
 * usage: bench_experts [D_MODEL D_FF [THREADS [MS]]]
 * One CSV line a task: threads, d_model, d_ff, experts, rows of each, pairs of calls, median time
 * of the grouped form in microseconds, and p10, p50, p90 of dense over grouped, of pairs that
 * alternate (of CPU time with one thread). Weights are bf16, more of them than caches hold. */
#include "base/clock.h"
#include "base/mem.h"
#include "kernel/kernel.h"

#include <stdio.h>
#include <stdlib.h>

#define EXPERTS   16u
#define MOST_ROWS 256u
#define MAX_PAIRS 2000u

typedef struct bench {
    sl_exec ex;
    uint32_t d, f;
    sl_mat gate[EXPERTS], up[EXPERTS], down[EXPERTS];
    float *x, *mid, *y;
} bench;

static sl_gemm_job job(const sl_mat *w, const float *x, uint32_t n_rows, float *y) {
    return (sl_gemm_job){
        .w = w, .x = x, .n_rows = n_rows, .x_stride = w->k, .y_stride = w->n, .y = y};
}

/* Experts first .. first + n - 1. */
static void task(bench *b, uint32_t first, uint32_t n, uint32_t rows) {
    sl_gemm_job in[EXPERTS], out[EXPERTS];
    const sl_mat *up[EXPERTS];
    for (uint32_t i = 0; i < n; i++) {
        size_t row = (size_t)(first + i) * rows;
        in[i] = job(&b->gate[first + i], b->x + row * b->d, rows, b->mid + row * b->f);
        up[i] = &b->up[first + i];
        out[i] = job(&b->down[first + i], b->mid + row * b->f, rows, b->y + row * b->d);
    }
    sl_gemm_swiglu(&b->ex, in, up, n);
    sl_gemm(&b->ex, out, n);
}

/* With one thread its own CPU time, so that others on the machine do not count. */
static uint64_t now_ns(const bench *b) {
    return b->ex.pool ? sl_now_ns() : sl_thread_cpu_ns();
}

static double time_us(bench *b, bool dense, uint32_t n, uint32_t rows) {
    uint64_t began_ns = now_ns(b);
    for (uint32_t e = 0; dense && e < n; e++) task(b, e, 1, rows);
    if (!dense) task(b, 0, n, rows);
    return (double)(now_ns(b) - began_ns) / 1e3;
}

static int by_value(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static void compare(bench *b, uint32_t threads, uint32_t n, uint32_t rows, uint64_t budget_ns) {
    static double grouped[MAX_PAIRS], ratio[MAX_PAIRS];
    uint32_t pairs = 0;
    time_us(b, false, n, rows);
    for (uint64_t began_ns = sl_now_ns();
         pairs < 7 || (pairs < MAX_PAIRS && sl_now_ns() - began_ns < budget_ns); pairs++) {
        double one = time_us(b, pairs % 2, n, rows), two = time_us(b, !(pairs % 2), n, rows);
        grouped[pairs] = pairs % 2 ? two : one;
        ratio[pairs] = pairs % 2 ? one / two : two / one;
    }
    qsort(grouped, pairs, sizeof *grouped, by_value);
    qsort(ratio, pairs, sizeof *ratio, by_value);
    printf("%u,%u,%u,%u,%u,%u,%.1f,%.3f,%.3f,%.3f\n", threads, b->d, b->f, n, rows, pairs,
           grouped[pairs / 2], ratio[pairs / 10], ratio[pairs / 2], ratio[pairs * 9 / 10]);
    fflush(stdout);
}

static bool make(bench *b) {
    size_t values = (size_t)b->d * b->f, rows = (size_t)EXPERTS * MOST_ROWS;
    uint16_t *w = sl_alloc(3 * EXPERTS * values, sizeof *w);
    b->x = sl_alloc(rows * b->d, sizeof *b->x);
    b->mid = sl_alloc(rows * b->f, sizeof *b->mid);
    b->y = sl_alloc(rows * b->d, sizeof *b->y);
    if (!w || !b->x || !b->mid || !b->y) return false;
    for (size_t i = 0; i < 3 * EXPERTS * values; i++) w[i] = (uint16_t)(0x3C00 + i * 7919 % 200);
    for (size_t i = 0; i < rows * b->d; i++) b->x[i] = (float)(i % 13) * 0.01f;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        uint16_t *at = w + 3 * e * values;
        b->gate[e] = (sl_mat){at, b->f, b->d, SL_BF16};
        b->up[e] = (sl_mat){at + values, b->f, b->d, SL_BF16};
        b->down[e] = (sl_mat){at + 2 * values, b->d, b->f, SL_BF16};
    }
    return true;
}

int main(int argc, char **argv) {
    bench b = {.ex.k = sl_kernels_select(NULL), .d = 768, .f = 2048};
    sl_err err = {0};
    if (argc > 2) b.d = (uint32_t)atoi(argv[1]), b.f = (uint32_t)atoi(argv[2]);
    uint32_t threads = argc > 3 ? (uint32_t)atoi(argv[3]) : 1;
    uint64_t budget_ns = (argc > 4 ? (uint64_t)atoi(argv[4]) : 300) * 1000000ull;
    if (b.d < 1 || b.f < 1 || threads < 1) return fprintf(stderr, "bench_experts: a 0\n"), 2;
    if (threads > 1 && sl_pool_create(threads, &b.ex.pool, &err) != SL_OK)
        return fprintf(stderr, "%s\n", err.msg), 1;
    if (!make(&b)) return fprintf(stderr, "out of memory\n"), 1;
    printf("threads,d_model,d_ff,experts,rows,pairs,grouped_us,p10,p50,p90\n");
    for (uint32_t n = 1; n <= EXPERTS; n *= 4)
        for (uint32_t rows = 1; rows <= MOST_ROWS; rows *= 4)
            compare(&b, threads, n, rows, budget_ns);
    return 0;
}
