/* How long the FinDEP solver takes.
 * usage: bench_solve [INSTANCES]
 * One CSV line a row of shapes: layers, largest batch, largest r2, cut, instances, then p50, p99
 * and the maximum of the time on the wall and p50 and p99 of the CPU's in microseconds, and how
 * often AASS won. Instances are random coefficients around those of bench/coeffs. */
#include "base/clock.h"
#include "base/rng.h"
#include "plan/findep.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double near_to(uint64_t *rng, double x) { /* within a factor of 5 */
    double u = (double)sl_rng_below(rng, 1u << 30) / (1u << 30);
    return x * exp((2 * u - 1) * log(5));
}

static sl_findep_problem draw(uint64_t *rng, uint32_t layers, uint32_t batch, uint32_t r2_max,
                              sl_findep_cut cut) {
    static const uint32_t tokens[] = {512, 1024, 2048, 4096, 8192};
    sl_findep_problem p = {.layers = layers,
                           .ag = 1 + (uint32_t)sl_rng_below(rng, 7),
                           .tokens = tokens[sl_rng_below(rng, SL_LEN(tokens))],
                           .experts = 128,
                           .top_k = 8,
                           .batch_per_ag = 1 + (uint32_t)sl_rng_below(rng, batch),
                           .r2_max = r2_max,
                           .integer_tokens = true,
                           .skew = 1,
                           .cut = cut};
    double scale = p.tokens / 2048.0, share = 128.0 / (p.ag * p.top_k) * 40 / 128;
    p.eg = 8 - p.ag;
    p.attn = (sl_findep_line){near_to(rng, 0.15), near_to(rng, 1.9 * scale), 0};
    p.shared = (sl_findep_line){near_to(rng, 0.05), near_to(rng, 0.66 * scale), 0};
    p.a2e = (sl_findep_line){near_to(rng, 0.04), near_to(rng, 0.0033 * share), 0};
    p.e2a = (sl_findep_line){near_to(rng, 0.04), near_to(rng, 0.0033 * share), 0};
    p.expert = (sl_findep_line){near_to(rng, 0.12), near_to(rng, 0.0076 * share), 0};
    return p;
}

/* What this thread computed: others on the machine do not count. */
static double cpu_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static void measure(uint32_t layers, uint32_t batch, uint32_t r2_max, sl_findep_cut cut, int n) {
    double *us = calloc((size_t)n, sizeof *us), *cpu = calloc((size_t)n, sizeof *cpu);
    uint64_t rng = 1;
    int aass = 0;
    for (int i = 0; us && cpu && i < n; i++) {
        sl_findep_problem p = draw(&rng, layers, batch, r2_max, cut);
        sl_findep_result r;
        sl_err err;
        double began = cpu_us();
        uint64_t began_ns = sl_now_ns();
        if (sl_findep_solve(&p, false, &r, &err) != SL_OK) exit(1);
        us[i] = (double)(sl_now_ns() - began_ns) / 1e3;
        cpu[i] = cpu_us() - began;
        aass += r.at.order == SL_ORDER_AASS;
    }
    if (!us || !cpu) exit(1);
    qsort(us, (size_t)n, sizeof *us, by_value);
    qsort(cpu, (size_t)n, sizeof *cpu, by_value);
    printf("%u,%u,%u,%s,%d,%.1f,%.1f,%.1f,%.1f,%.1f,%d\n", layers, batch, r2_max,
           cut == SL_FINDEP_CUT_TOKENS ? "tokens" : "either", n, us[n / 2], us[n * 99 / 100],
           us[n - 1], cpu[n / 2], cpu[n * 99 / 100], aass);
    free(us);
    free(cpu);
}

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 1000;
    if (n < 1) return 2;
    printf("layers,batch,r2_max,cut,n,p50_us,p99_us,max_us,p50_cpu_us,p99_cpu_us,aass\n");
    measure(94, 256, 32, SL_FINDEP_CUT_TOKENS, n);
    measure(94, 256, 32, SL_FINDEP_CUT_EITHER, n);
    measure(94, 256, 256, SL_FINDEP_CUT_TOKENS, n);
    measure(60, 64, 32, SL_FINDEP_CUT_TOKENS, n);
    return 0;
}
