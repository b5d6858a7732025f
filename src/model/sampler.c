#include "model/sampler.h"

#include "base/rng.h"
#include "kernel/kernel.h"

#include <math.h>

/* e^x is 0 in f32 at and below this. */
#define SL_EXP_FLOOR (-200.0f)

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

/* Probabilities at the temperature; a token whose logit is NaN gets none. */
static void fill_weights(const sl_sampling *s, const float *logits, uint32_t vocab, float top,
                         float *weight) {
    for (uint32_t i = 0; i < vocab; i++) {
        float z = (logits[i] - top) / s->temperature;
        weight[i] = z > SL_EXP_FLOOR ? z : SL_EXP_FLOOR;
    }
    sl_softmax(weight, vocab, weight);
}

/* a comes before b in the order of candidates: larger logit, ties to the lower id. Logits, not
 * weights: weights of far tokens collapse to 0. */
static bool before(const float *logits, uint32_t a, uint32_t b) {
    float x = logits[a], y = logits[b];
    if (isnan(x) || isnan(y)) return isnan(x) && isnan(y) ? a < b : isnan(y);
    return x != y ? x > y : a < b;
}

/* Restores a heap whose root is the last of its members in that order. */
static void sift_down(const float *logits, uint32_t *heap, uint32_t n, uint32_t at) {
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n) return;
        if (child + 1 < n && before(logits, heap[child], heap[child + 1])) child++;
        if (!before(logits, heap[at], heap[child])) return;
        uint32_t keep = heap[at];
        heap[at] = heap[child];
        heap[child] = keep;
        at = child;
    }
}

static void make_heap(const float *logits, uint32_t *heap, uint32_t n) {
    for (uint32_t i = n / 2; i-- > 0;) sift_down(logits, heap, n, i);
}

static double sum_of(const float *weight, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += weight[i];
    return sum;
}

/* The first k tokens in order. Tokens below `floor` are left out. */
static uint32_t rank_tokens(const float *logits, const float *weight, uint32_t vocab, uint32_t k,
                            double floor, uint32_t *list) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        if (weight[i] < floor) continue;
        if (n < k) {
            list[n++] = i;
            if (n == k) make_heap(logits, list, n);
        } else if (before(logits, i, list[0])) {
            list[0] = i;
            sift_down(logits, list, n, 0);
        }
    }
    if (n < k) make_heap(logits, list, n);
    for (uint32_t left = n; left > 1; left--) {
        uint32_t last = list[0];
        list[0] = list[left - 1];
        list[left - 1] = last;
        sift_down(logits, list, left - 1, 0);
    }
    return n;
}

/* Applies top_k, then top_p as a share of what it left. *out_mass is the weight of those kept. */
static uint32_t take_candidates(const sl_sampling *s, const float *logits, const float *weight,
                                uint32_t vocab, uint32_t *list, double *out_mass) {
    bool top_k = s->top_k > 0 && s->top_k < vocab;
    double total = 0, mass = 0, floor = 0;
    if (!top_k) {
        /* Tokens that top_p keeps are at least this likely: were one less so, it and all behind it,
         * at most vocab tokens, could not hold the share 1 - top_p that is left before it. */
        total = sum_of(weight, vocab);
        floor = (1 - (double)s->top_p) * total / vocab;
    }
    uint32_t n = rank_tokens(logits, weight, vocab, top_k ? s->top_k : vocab, floor, list),
             kept = 0;
    for (uint32_t i = 0; top_k && i < n; i++) total += weight[list[i]];
    double goal = s->top_p < 1 ? total * (double)s->top_p : INFINITY;
    while (kept < n && (kept == 0 || mass < goal)) mass += weight[list[kept++]];
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
    uint32_t *list = sl_arena_take(scratch, vocab, sizeof *list);
    SL_ASSERT(weight && list);
    fill_weights(s, logits, vocab, logits[best], weight);
    double u = sl_rng_uniform(s->seed, s->choice, position), sum = 0, mass = 0;
    bool ranked = s->top_p < 1 || (s->top_k > 0 && s->top_k < vocab);
    uint32_t n = vocab;
    if (ranked)
        n = take_candidates(s, logits, weight, vocab, list, &mass);
    else
        mass = sum_of(weight, vocab);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = ranked ? list[i] : i;
        if (weight[id] > 0) pick = id;
        sum += weight[id];
        if (sum > u * mass) break;
    }
    scratch->used = level;
    return pick;
}
