/* Speed of products of weights in blocks with activations in 8 bits (and in f32, --f32), one
 * thread, by the thread's CPU time, as CSV on stdout, with the limits of this core measured in the
 * same run. bench_quant [--isa NAME] [--type Q8_0] [--n N] [--k K] [--ms M] [--f32 1] [--strips 1]
 * Products rotate over more weights than the caches hold, as experts do. The limit is what
 * bandwidth and the peak of limits.h would need, whichever is longer; with AVX2, types whose sums
 * stay in 16 bits for a while can pass it. Best and median of single calls. */
#include "base/clock.h"
#include "base/mem.h"
#include "kernel/kernel_int.h"
#include "limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REPS 4000u
#define MAX_ROWS 256u

typedef struct bench {
    sl_exec ex;
    const char *type;
    uint32_t n, k;
    uint64_t budget_ns;
    bool f32, strips;
    uint8_t *weights;
    size_t weight_bytes;
    double peak_gops, peak_gbs;
    uint64_t ns[MAX_REPS];
} bench;

/* Of one thread. False: no memory. */
static bool measure_limits(bench *b) {
    sl_pool *one;
    sl_err err;
    if (sl_pool_create(1, &one, &err) != SL_OK) return false;
    sl_limits l = sl_limits_measure(one, b->weights, b->weight_bytes, 8, true);
    sl_pool_free(one);
    b->peak_gops = l.int8_gops;
    b->peak_gbs = l.read_gbs;
    return true;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Any bytes are blocks, and any blocks a strip; d and dmin must be finite, and scales no
 * subnormals, with which processors are slow. */
static void fill(bench *b, sl_dtype t) {
    uint64_t state = 88172645463325252u;
    uint32_t bytes = sl_dtype_block_bytes(t), at = t == SL_Q6_K ? 208 : 0;
    for (size_t i = 0; i + 8 <= b->weight_bytes; i += 8) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        memcpy(b->weights + i, &state, 8);
    }
    for (size_t i = 0; i + bytes <= b->weight_bytes; i += bytes) {
        if (t == SL_MXFP4) {
            b->weights[i] = 120;
            continue;
        }
        memcpy(b->weights + i + at, "\x00\x20", 2);
        if (t == SL_Q4_K || t == SL_Q5_K) memcpy(b->weights + i + 2, "\x00\x1c", 2);
    }
}

static void measure(bench *b, sl_dtype t, uint32_t rows, const float *x, uint8_t *act, float *y) {
    size_t bytes = (size_t)b->n * sl_dtype_row_bytes(t, b->k);
    sl_act_kind kind = sl_act_kind_of(t);
    uint32_t reps = 0;
    sl_mat w = {.n = b->n, .k = b->k, .dtype = t, .strips = b->strips};
    sl_gemm_job j = {.w = &w, .x = x, .n_rows = rows, .x_stride = b->k, .y_stride = b->n, .y = y};
    if (!b->f32) j.act.row[kind] = act;
    for (uint64_t start = sl_thread_cpu_ns();
         reps < 5 || (reps < MAX_REPS && sl_thread_cpu_ns() - start < b->budget_ns); reps++) {
        w.data = b->weights + reps % (b->weight_bytes / bytes) * bytes;
        uint64_t at = sl_thread_cpu_ns();
        if (!b->f32) sl_quantise(&b->ex, x, NULL, rows, b->k, b->k, kind, act);
        sl_gemm(&b->ex, &j, 1);
        b->ns[reps] = sl_thread_cpu_ns() - at;
    }
    qsort(b->ns, reps, sizeof b->ns[0], by_value);
    double ops = 2.0 * rows * b->n * b->k, p50 = (double)b->ns[reps / 2];
    double limit = SL_MAX(ops / b->peak_gops, (double)bytes / b->peak_gbs);
    printf("%s,%s,%u,%u,%u,%u,%.1f,%.1f,%.1f,%.2f,%.0f\n", sl_kernels_name(b->ex.k),
           sl_dtype_name(t), b->n, b->k, rows, reps, (double)b->ns[0] / 1e3, p50 / 1e3, ops / p50,
           (double)bytes / p50, 100 * limit / p50);
    fflush(stdout);
}

static int usage(void) {
    fprintf(stderr, "usage: bench_quant [--isa NAME] [--type TYPE] [--n N] [--k K] [--ms M] "
                    "[--f32 1] [--strips 1]\n");
    return 2;
}

int main(int argc, char **argv) {
    static bench b = {.n = 1024, .k = 2048, .budget_ns = 100000000u};
    const char *isa = NULL;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 >= argc) return usage();
        if (!strcmp(argv[i], "--isa"))
            isa = argv[i + 1];
        else if (!strcmp(argv[i], "--type"))
            b.type = argv[i + 1];
        else if (!strcmp(argv[i], "--n"))
            b.n = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--k"))
            b.k = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--ms"))
            b.budget_ns = strtoull(argv[i + 1], NULL, 10) * 1000000u;
        else if (!strcmp(argv[i], "--f32"))
            b.f32 = !strcmp(argv[i + 1], "1");
        else if (!strcmp(argv[i], "--strips"))
            b.strips = !strcmp(argv[i + 1], "1");
        else
            return usage();
    }
    const uint32_t all_rows[] = {1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 256};
    if (b.n == 0 || b.k == 0 || b.k % 256 != 0) return usage();
    if (b.strips && (b.f32 || b.n % SL_STRIP_ROWS != 0)) return usage();
    b.ex.k = sl_kernels_select(isa);
    b.weight_bytes = sl_limits_beyond_caches();
    b.weights = sl_reserve(b.weight_bytes, 1);
    float *x = sl_alloc((size_t)MAX_ROWS * b.k, sizeof *x);
    float *y = sl_alloc((size_t)MAX_ROWS * b.n, sizeof *y);
    uint8_t *act = sl_alloc(MAX_ROWS, sl_act_row_bytes(SL_ACT_32, b.k));
    if (b.weights) memset(b.weights, 1, b.weight_bytes);
    if (!b.ex.k || !b.weights || !x || !y || !act || !measure_limits(&b)) {
        fprintf(stderr, "bench_quant: %s\n", b.ex.k ? "no memory" : "no such instruction set here");
        return 1;
    }
    for (size_t i = 0; i < (size_t)MAX_ROWS * b.k; i++) x[i] = (float)(i % 251) * 0.01f - 1.2f;
    printf("# one thread: int8 peak %.0f GOP/s, read bandwidth %.1f GB/s\n", b.peak_gops,
           b.peak_gbs);
    printf("isa,type,n,k,rows,reps,best_us,p50_us,gops,gbs,pct_of_limit\n");
    for (sl_dtype t = 0; t < SL_DTYPE_COUNT; t++) {
        if (!sl_act_is_int8(sl_act_kind_of(t))) continue;
        if (b.type && strcmp(b.type, sl_dtype_name(t)) != 0) continue;
        fill(&b, t);
        for (size_t i = 0; i < SL_LEN(all_rows); i++) measure(&b, t, all_rows[i], x, act, y);
    }
    sl_release(b.weights, b.weight_bytes, 1), sl_free(x), sl_free(y), sl_free(act);
    return 0;
}
