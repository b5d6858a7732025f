/* What tokens of a step take from a GPU that has their logits: all of them copied to the host,
 * which draws, beside what draws seek found on the GPU. One thread of the host; logits as of
 * bench_sample, rows of which are alike.
 *
 *     bench_cuda_draws [small]        small: shapes for a rehearsal without a GPU
 *
 * Columns: microseconds with all logits copied, of which drawing; with what is sought, of which on
 * the GPU and drawing; bytes of a row that came; tokens that differ (none may), rows for which what
 * was found was not enough. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "model/sampler.h"
#include "stage/cuda/exec_draws.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ROWS 32u
#define TIMES     9u /* the least counts; the first warms up */

typedef struct way {
    const char *what;
    sl_sampling s;
    bool reports;
} way;

static sl_cuda *gpu;
static sl_arena scratch;
static uint32_t vocab;
static float *logits, *pinned; /* of the host */
static uint64_t at, pinned_at, room;

static void check(sl_status st, const sl_err *err) {
    if (st == SL_OK) return;
    fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

static double uniform(uint64_t *state) {
    return (double)((sl_rng_next(state) >> 11) + 1) * 0x1p-53;
}

static double normal(uint64_t *state) {
    const double u = uniform(state), v = uniform(state);
    return sqrt(-2 * log(u)) * cos(2 * 3.14159265358979 * v);
}

static void make_logits(void) {
    uint64_t state = 5;
    for (size_t i = 0; i < (size_t)MOST_ROWS * vocab; i++)
        logits[i] = (float)(2.2 * normal(&state));
    for (uint32_t r = 0; r < MOST_ROWS; r++)
        for (uint32_t i = 0; i < 40; i++)
            logits[(size_t)r * vocab + sl_rng_next(&state) % vocab] =
                (float)(12 + 1.5 * normal(&state));
}

static const sl_report five = {.n_top = 5};

static sl_drawn draw(const way *w, const sl_logits *l, uint32_t row, bool *enough) {
    sl_logprob out[SL_MAX_REPORTED];
    sl_drawn d = {0, 0};
    sl_sampling s = w->s;
    s.seed = row;
    *enough = sl_sample_of(&s, l, 7, NULL, &scratch, &d) &&
              (!w->reports || sl_logprobs_of(l, d.id, &five, &scratch, out));
    return d;
}

/* Microseconds of a call, and of drawing alone. */
typedef struct took {
    double all, device, draws;
} took;

static double us(uint64_t from) {
    return (double)(sl_now_ns() - from) / 1e3;
}

static took by_all(const way *w, uint32_t rows, sl_drawn *out) {
    static float *own; /* where an engine has them */
    const size_t bytes = (size_t)rows * vocab * sizeof(float);
    if (!own && !(own = sl_alloc((size_t)MOST_ROWS * vocab, sizeof *own))) exit(1);
    bool enough;
    const uint64_t began = sl_now_ns();
    sl_cuda_copy_out_later(gpu, pinned, at, bytes);
    sl_cuda_drain(gpu);
    memcpy(own, pinned, bytes);
    const double device = us(began);
    for (uint32_t r = 0; r < rows; r++) {
        const sl_logits l = sl_logits_all(own + (size_t)r * vocab, vocab);
        out[r] = draw(w, &l, r, &enough);
    }
    const double all = us(began);
    return (took){all, device, all - device};
}

static took by_found(const way *w, uint32_t rows, sl_drawn *out, bool *enough, uint32_t *bytes) {
    static sl_sought sought[MOST_ROWS];
    static sl_found found[MOST_ROWS];
    const sl_history none = {0};
    const uint64_t began = sl_now_ns();
    for (uint32_t r = 0; r < rows; r++) {
        sl_sampling s = w->s;
        s.seed = r;
        sl_sampler_seeks(&s, &none, vocab, 7, w->reports ? &five : NULL, false, &sought[r]);
    }
    sl_cuda_seek(gpu, (const float *)(uintptr_t)at, rows, vocab, sought, room,
                 (sl_found *)(uintptr_t)pinned_at);
    sl_cuda_fence(gpu);
    sl_cuda_drain(gpu);
    memcpy(found, pinned, rows * sizeof *found);
    const double device = us(began);
    for (uint32_t r = 0; r < rows; r++) {
        const sl_logits l = sl_logits_found(&sought[r], &found[r], vocab);
        out[r] = draw(w, &l, r, &enough[r]);
    }
    const double all = us(began);
    *bytes = found[0].n * 8 + 40;
    return (took){all, device, all - device};
}

static void measure(const way *w, uint32_t rows) {
    sl_drawn want[MOST_ROWS], got[MOST_ROWS];
    bool enough[MOST_ROWS]; /* else all logits would decide */
    took all = {INFINITY, 0, 0}, some = all;
    uint32_t lacks = 0, bytes = 0, others = 0;
    for (uint32_t i = 0; i <= TIMES; i++) {
        const took a = by_all(w, rows, want), b = by_found(w, rows, got, enough, &bytes);
        if (i && a.all < all.all) all = a;
        if (i && b.all < some.all) some = b;
    }
    for (uint32_t r = 0; r < rows; r++) {
        lacks += !enough[r];
        others += enough[r] && want[r].id != got[r].id;
    }
    printf("%-40s %3u rows  %9.1f (%9.1f)  %9.1f (%9.1f, %7.1f)  %5u bytes  %u differ  %u lack\n",
           w->what, rows, all.all, all.draws, some.all, some.device, some.draws, bytes, others,
           lacks);
    if (others) exit(1);
}

int main(int argc, char **argv) {
    static const way ways[] = {
        {"greedy", {.top_p = 1}, false},
        {"greedy, log-probabilities", {.top_p = 1}, true},
        {"temperature 0.6, top_k 20, top_p 0.95",
         {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f},
         false},
        {"temperature 1", {.temperature = 1, .top_p = 1}, false},
        {"temperature 0.7, top_p 0.9", {.temperature = 0.7f, .top_p = 0.9f}, false},
    };
    static const uint32_t rows[] = {1, 8, MOST_ROWS};
    const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
    void *p = NULL;
    sl_err err = {0};
    vocab = small ? 3001 : 151936;
    const size_t bytes = (size_t)MOST_ROWS * vocab * sizeof(float);
    check(sl_cuda_open(0, SL_NUMERICS_CPU, &gpu, &err), &err);
    check(sl_arena_create(sl_sampler_scratch_bytes(vocab), &scratch, &err), &err);
    check(sl_cuda_pin(gpu, SL_MAX(bytes, MOST_ROWS * sizeof(sl_found)), &p, &pinned_at, &err),
          &err);
    check(sl_cuda_alloc(gpu, bytes, &at, &err), &err);
    check(sl_cuda_alloc(gpu, sl_cuda_seek_bytes(MOST_ROWS, vocab), &room, &err), &err);
    pinned = p;
    logits = sl_alloc((size_t)MOST_ROWS * vocab, sizeof *logits);
    if (!logits) return 1;
    make_logits();
    check(sl_cuda_copy_in(gpu, at, logits, bytes, &err), &err);
    printf("%s, %u tokens\n", sl_cuda_info_of(gpu)->name, vocab);
    for (size_t i = 0; i < SL_LEN(ways); i++)
        for (size_t j = 0; j < SL_LEN(rows); j++) measure(&ways[i], rows[j]);
    check(sl_cuda_failed(gpu, &err), &err);
    sl_cuda_unpin(gpu, pinned);
    sl_cuda_close(gpu);
    sl_free(logits);
    sl_arena_free(&scratch);
    return 0;
}
