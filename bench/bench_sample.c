/* Draws of one token, timed: `bench_sample [VOCABULARY]`. Logits are normal with a deviation
 * of 2.2, some of them ten and more above the mean. A line a way of drawing: the least microseconds
 * of 41 draws. */
#include "base/clock.h"
#include "base/rng.h"
#include "model/sampler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define DRAWS 41

static double uniform(uint64_t *state) {
    return (double)((sl_rng_next(state) >> 11) + 1) * 0x1p-53;
}

static double normal(uint64_t *state) {
    const double u = uniform(state), v = uniform(state);
    return sqrt(-2 * log(u)) * cos(2 * 3.14159265358979 * v);
}

static double draws_us(sl_sampling s, const float *logits, uint32_t vocab, sl_arena *scratch) {
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < DRAWS; i++) {
        const sl_history none = {0};
        s.seed = i;
        const uint64_t began = sl_now_ns();
        (void)sl_sample(&s, logits, vocab, i, &none, scratch);
        least = SL_MIN(least, sl_now_ns() - began);
    }
    return (double)least / 1e3;
}

static double reports_us(const float *logits, uint32_t vocab, sl_arena *scratch) {
    const sl_report five = {.n_top = 5};
    sl_logprob out[SL_MAX_REPORTED];
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < DRAWS; i++) {
        const uint64_t began = sl_now_ns();
        sl_logprobs(logits, vocab, i, &five, scratch, out);
        least = SL_MIN(least, sl_now_ns() - began);
    }
    return (double)least / 1e3;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        sl_sampling s;
    } way[] = {
        {"greedy", {.top_p = 1}},
        {"temperature 1", {.temperature = 1, .top_p = 1}},
        {"temperature 0.7, top_p 0.95", {.temperature = 0.7f, .top_p = 0.95f}},
        {"temperature 1, top_p 0.9", {.temperature = 1, .top_p = 0.9f}},
        {"temperature 0.6, top_k 20, top_p 0.95",
         {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f}},
        {"temperature 1, min_p 0.05", {.temperature = 1, .top_p = 1, .min_p = 0.05f}},
    };
    const long asked = argc > 1 ? strtol(argv[1], NULL, 10) : 151936;
    const uint32_t vocab = asked > 100 && asked < 1 << 24 ? (uint32_t)asked : 151936;
    float *logits = malloc(vocab * sizeof *logits);
    sl_arena scratch;
    sl_err err;
    uint64_t state = 7;
    if (!logits || sl_arena_create(sl_sampler_scratch_bytes(vocab), &scratch, &err) != SL_OK)
        return 1;
    for (uint32_t i = 0; i < vocab; i++) logits[i] = (float)(2.2 * normal(&state));
    for (uint32_t i = 0; i < 3; i++) logits[vocab / 4 * i + 7] += 12.0f - (float)i;
    for (size_t i = 0; i < SL_LEN(way); i++)
        printf("%-40s %8.1f us\n", way[i].name, draws_us(way[i].s, logits, vocab, &scratch));
    printf("%-40s %8.1f us\n", "log-probabilities, 5 likeliest",
           reports_us(logits, vocab, &scratch));
    sl_arena_free(&scratch);
    free(logits);
    return 0;
}
