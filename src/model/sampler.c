#include "model/sampler.h"

#include "base/rng.h"
#include "kernel/kernel.h"

#include <math.h>

/* Below this exponent e^x is 0 in f32. */
#define SL_EXP_FLOOR (-104.0f)

sl_status sl_sampling_check(const sl_sampling *s, sl_err *err) {
    if (!(s->temperature >= 0 && s->temperature <= 100))
        return sl_fail(err, SL_ERR_LIMIT, "temperature: %g is outside 0..100",
                       (double)s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return sl_fail(err, SL_ERR_LIMIT, "top_p: %g is outside (0..1]", (double)s->top_p);
    return SL_OK;
}

size_t sl_sampler_scratch_bytes(uint32_t vocab) {
    return (size_t)vocab * (sizeof(uint32_t) + sizeof(float)) + 3 * 64;
}

/* Largest logit, ties to the lower id; NaN never wins. */
static uint32_t argmax(const float *logits, uint32_t vocab) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best] || isnan(logits[best])) best = i;
    return best;
}

/* Probability of each token but for a common factor, at most 1. */
static void fill_weights(const sl_sampling *s, const float *logits, uint32_t vocab, float top,
                         float *weight) {
    for (uint32_t i = 0; i < vocab; i++) {
        float z = (logits[i] - top) / s->temperature;
        weight[i] = z > SL_EXP_FLOOR ? sl_expf(z) : 0.0f;
    }
}

/* a comes before b in the order of candidates: larger logit, ties to the lower id. Logits, not
 * weights: weights of far tokens collapse to 0. */
static bool before(const float *logits, uint32_t a, uint32_t b) {
    float x = logits[a], y = logits[b];
    if (isnan(x) || isnan(y)) return isnan(x) && isnan(y) ? a < b : isnan(y);
    return x != y ? x > y : a < b;
}

static void sift_down(const float *logits, uint32_t *heap, uint32_t n, uint32_t at) {
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n) return;
        if (child + 1 < n && before(logits, heap[child + 1], heap[child])) child++;
        if (!before(logits, heap[child], heap[at])) return;
        uint32_t keep = heap[at];
        heap[at] = heap[child];
        heap[child] = keep;
        at = child;
    }
}

/* Takes the first candidates off a heap until top_k or top_p is reached; they end up, in order of
 * rank, at the back of `heap`: rank i at heap[vocab - 1 - i]. *out_mass is their weight. */
static uint32_t take_candidates(const sl_sampling *s, const float *logits, const float *weight,
                                uint32_t vocab, uint32_t *heap, double *out_mass) {
    uint32_t k = s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab, kept = 0;
    double total = 0, mass = 0;
    for (uint32_t i = 0; i < vocab; i++) heap[i] = i;
    for (uint32_t i = vocab / 2; i-- > 0;) sift_down(logits, heap, vocab, i);
    /* top_p is a share of what top_k left: without top_k that sum needs no order */
    for (uint32_t i = 0; k == vocab && i < vocab; i++) total += weight[i];
    double goal = k == vocab ? total * (double)s->top_p : INFINITY;
    while (kept < k && (kept == 0 || mass < goal)) {
        uint32_t id = heap[0], left = vocab - 1 - kept;
        heap[0] = heap[left];
        heap[left] = id;
        sift_down(logits, heap, left, 0);
        mass += weight[id];
        kept++;
    }
    if (k < vocab && s->top_p < 1) {
        goal = mass * (double)s->top_p;
        mass = 0;
        k = kept;
        for (kept = 0; kept < k && (kept == 0 || mass < goal); kept++)
            mass += weight[heap[vocab - 1 - kept]];
    }
    *out_mass = mass;
    return kept;
}

uint32_t sl_sample(const sl_sampling *s, const float *logits, uint32_t vocab, uint64_t position,
                   sl_arena *scratch) {
    uint32_t best = argmax(logits, vocab), pick = best;
    /* an infinite or undefined maximum leaves no distribution to draw from */
    if (!(s->temperature > 0) || !isfinite(logits[best])) return best;
    size_t level = scratch->used;
    float *weight = sl_arena_take(scratch, vocab, sizeof *weight);
    uint32_t *heap = sl_arena_take(scratch, vocab, sizeof *heap);
    SL_ASSERT(weight && heap);
    fill_weights(s, logits, vocab, logits[best], weight);
    double u = sl_rng_uniform(s->seed, s->choice, position), sum = 0, mass = 0;
    bool ranked = s->top_p < 1 || (s->top_k > 0 && s->top_k < vocab);
    uint32_t n = vocab;
    if (ranked)
        n = take_candidates(s, logits, weight, vocab, heap, &mass);
    else
        for (uint32_t i = 0; i < vocab; i++) mass += weight[i];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = ranked ? heap[vocab - 1 - i] : i;
        if (weight[id] > 0) pick = id;
        sum += weight[id];
        if (sum > u * mass) break;
    }
    scratch->used = level;
    return pick;
}
