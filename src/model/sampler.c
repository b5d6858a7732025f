/* The next token of logits: penalties, biases, cut-offs, the draw; log-probabilities. */
#include "model/sampler.h"

#include "base/rng.h"
#include "kernel/kernel.h"

#include <math.h>
#include <string.h>

/* e^x is 0 in f32 at and below this. */
#define SL_EXP_FLOOR (-200.0f)

size_t sl_sampler_scratch_bytes(uint32_t vocab) {
    /* weights, changed logits; counts, which make room for the list of candidates */
    return (size_t)vocab * (sizeof(uint32_t) + 2 * sizeof(float)) + 4 * 64;
}

#define ARGMAX_LANES 16u

/* Largest logit, ties to the lower id; NaN never wins. What it is comes first, in lanes that
 * compilers make vectors of: a vocabulary is large. */
static uint32_t argmax(const float *logits, uint32_t vocab) {
    float most[ARGMAX_LANES], top = -INFINITY;
    for (uint32_t j = 0; j < ARGMAX_LANES; j++) most[j] = -INFINITY;
    uint32_t i = 0;
    for (; i + ARGMAX_LANES <= vocab; i += ARGMAX_LANES)
        for (uint32_t j = 0; j < ARGMAX_LANES; j++)
            most[j] = logits[i + j] > most[j] ? logits[i + j] : most[j];
    for (; i < vocab; i++) top = logits[i] > top ? logits[i] : top;
    for (uint32_t j = 0; j < ARGMAX_LANES; j++) top = most[j] > top ? most[j] : top;
    for (i = 0; i < vocab; i++)
        if (logits[i] == top) return i;
    return 0; /* all are NaN */
}

/* Probabilities at the temperature; a token whose logit is NaN gets none. */
static void fill_weights(float temperature, const float *logits, uint32_t vocab, float top,
                         float *weight) {
    for (uint32_t i = 0; i < vocab; i++) {
        float z = (logits[i] - top) / temperature;
        weight[i] = z > SL_EXP_FLOOR ? z : SL_EXP_FLOOR;
    }
    sl_softmax(sl_kernels_base(), weight, vocab, weight);
}

static bool penalises(const sl_sampling *s) {
    return s->presence_penalty != 0 || s->frequency_penalty != 0 ||
           (s->repetition_penalty > 0 && s->repetition_penalty != 1);
}

/* Marks a token of the prompt in a count of generated ones. */
#define SL_IN_PROMPT 0x80000000u

/* count: [vocab] scratch. */
static void apply_penalties(const sl_sampling *s, const sl_history *past, uint32_t vocab,
                            uint32_t *count, float *logits) {
    float repetition = s->repetition_penalty > 0 ? s->repetition_penalty : 1;
    memset(count, 0, vocab * sizeof *count);
    for (uint32_t i = 0; i < past->n; i++) {
        SL_ASSERT(past->tokens[i] < vocab);
        if (i < past->n_prompt)
            count[past->tokens[i]] |= SL_IN_PROMPT;
        else
            count[past->tokens[i]]++;
    }
    for (uint32_t i = 0; i < vocab; i++) {
        if (!count[i]) continue;
        uint32_t made = count[i] & ~SL_IN_PROMPT;
        logits[i] = logits[i] > 0 ? logits[i] / repetition : logits[i] * repetition;
        if (!made) continue;
        logits[i] -= s->frequency_penalty * (float)made;
        logits[i] -= s->presence_penalty;
    }
}

static bool has_id(const uint32_t *set, uint32_t id) {
    return set[id / 32] >> id % 32 & 1;
}

/* Whether a sequence of n ids would be whole with its last one. */
static bool completes(const uint32_t *id, uint32_t n, const sl_history *past) {
    const uint32_t before = n - 1;
    if (before == 0) return true;
    if (!past || past->n - past->n_prompt < before) return false;
    return memcmp(past->tokens + past->n - before, id, before * sizeof *id) == 0;
}

/* The first word of a bad sequence that begins at or behind `at` and would be whole with its last
 * id; n_bad: there is none. */
static uint32_t next_bad(const sl_sampling *s, uint32_t at, const sl_history *past) {
    while (at < s->n_bad && !completes(s->bad + at + 1, s->bad[at], past)) at += 1 + s->bad[at];
    return at;
}

static uint32_t last_of(const uint32_t *sequence) {
    return sequence[sequence[0]];
}

static bool is_bad(const sl_sampling *s, uint32_t id, const sl_history *past) {
    for (uint32_t at = 0; (at = next_bad(s, at, past)) < s->n_bad; at += 1 + s->bad[at])
        if (last_of(s->bad + at) == id) return true;
    return false;
}

bool sl_sampler_excludes(const sl_sampling *s, uint32_t id, const sl_history *past) {
    for (uint32_t i = 0; i < s->n_never; i++)
        if (s->never[i] == id) return true;
    return (s->n_allowed && !has_id(s->allowed, id)) || is_bad(s, id, past);
}

bool sl_sampler_excludes_all(const sl_sampling *s, uint32_t vocab, const sl_history *past,
                             sl_arena *scratch) {
    const size_t level = scratch->used;
    const uint32_t n = sl_id_words(vocab);
    uint32_t *left = sl_arena_take(scratch, n, sizeof *left), some = 0;
    SL_ASSERT(left);
    for (uint32_t i = 0; i < n; i++) left[i] = s->n_allowed ? s->allowed[i] : UINT32_MAX;
    if (vocab % 32) left[n - 1] &= (1u << vocab % 32) - 1;
    for (uint32_t i = 0; i < s->n_never; i++)
        if (s->never[i] < vocab) left[s->never[i] / 32] &= ~(1u << s->never[i] % 32);
    for (uint32_t at = 0; (at = next_bad(s, at, past)) < s->n_bad; at += 1 + s->bad[at])
        left[last_of(s->bad + at) / 32] &= ~(1u << last_of(s->bad + at) % 32);
    for (uint32_t i = 0; i < n; i++) some |= left[i];
    scratch->used = level;
    return !some;
}

/* Drops what is not allowed, a word of 32 at a time. */
static void keep_allowed(const uint32_t *allowed, uint32_t vocab, float *logits) {
    for (uint32_t i = 0; i < vocab; i += 32) {
        const uint32_t word = allowed[i / 32], n = SL_MIN(vocab - i, 32u);
        if (word == UINT32_MAX) continue;
        for (uint32_t k = 0; k < n; k++)
            if (!(word >> k & 1)) logits[i + k] = -INFINITY;
    }
}

/* The logits to draw from: the given ones, or a changed copy in scratch. */
static const float *change_logits(const sl_sampling *s, const float *logits, uint32_t vocab,
                                  const sl_history *past, sl_arena *scratch) {
    bool penalties = past && past->n > 0 && penalises(s);
    if (!penalties && !s->n_bias && !s->n_never && !s->n_allowed && !s->n_bad) return logits;
    float *changed = sl_arena_take(scratch, vocab, sizeof *changed);
    SL_ASSERT(changed);
    memcpy(changed, logits, vocab * sizeof *changed);
    for (uint32_t i = 0; i < s->n_bias; i++) {
        SL_ASSERT(s->bias[i].id < vocab);
        changed[s->bias[i].id] += s->bias[i].bias;
    }
    for (uint32_t i = 0; i < s->n_never; i++)
        if (s->never[i] < vocab) changed[s->never[i]] = -INFINITY;
    if (s->n_allowed) keep_allowed(s->allowed, vocab, changed);
    for (uint32_t at = 0; (at = next_bad(s, at, past)) < s->n_bad; at += 1 + s->bad[at])
        changed[last_of(s->bad + at)] = -INFINITY;
    if (!penalties) return changed;
    size_t level = scratch->used;
    uint32_t *count = sl_arena_take(scratch, vocab, sizeof *count);
    SL_ASSERT(count);
    apply_penalties(s, past, vocab, count, changed);
    scratch->used = level;
    return changed;
}

/* Takes the weight of tokens that min_p drops. The likeliest token's is the largest. */
static void apply_min_p(const sl_sampling *s, uint32_t vocab, uint32_t best, float *weight) {
    float floor = s->min_p * weight[best];
    for (uint32_t i = 0; i < vocab; i++)
        if (weight[i] < floor) weight[i] = 0;
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

/* A thought that has all the tokens that it may have, and goes on. */
static bool is_over(const sl_sampling *s, const sl_history *past) {
    if (!s->thought_close || !past) return false;
    uint32_t begin = past->n_prompt;
    if (s->thought_open) {
        while (begin < past->n && past->tokens[begin] != s->thought_open - 1) begin++;
        if (begin++ >= past->n) return false;
    }
    if (past->n - begin < s->thought_most) return false;
    for (uint32_t i = begin; i < past->n; i++)
        if (past->tokens[i] == s->thought_close - 1) return false;
    return true;
}

/* The token that ends it, where it may be drawn. */
static bool ends_thought(const sl_sampling *s, uint32_t vocab, const sl_history *past) {
    const uint32_t id = s->thought_close - 1;
    if (!is_over(s, past) || id >= vocab) return false;
    return (!s->n_allowed || has_id(s->allowed, id)) && !is_bad(s, id, past);
}

uint32_t sl_sample(const sl_sampling *s, const float *logits, uint32_t vocab, uint64_t position,
                   const sl_history *past, sl_arena *scratch) {
    size_t level = scratch->used;
    if (ends_thought(s, vocab, past)) return s->thought_close - 1;
    logits = change_logits(s, logits, vocab, past, scratch);
    uint32_t best = argmax(logits, vocab), pick = best, n = vocab;
    /* an infinite or undefined maximum leaves no distribution to draw from */
    if (!(s->temperature > 0) || !isfinite(logits[best])) goto out;
    float *weight = sl_arena_take(scratch, vocab, sizeof *weight);
    uint32_t *list = sl_arena_take(scratch, vocab, sizeof *list);
    SL_ASSERT(weight && list);
    fill_weights(s->temperature, logits, vocab, logits[best], weight);
    if (s->min_p > 0) apply_min_p(s, vocab, best, weight);
    double u = sl_rng_uniform(s->seed, s->choice, position), sum = 0, mass = 0;
    bool ranked = s->top_p < 1 || (s->top_k > 0 && s->top_k < vocab);
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
out:
    scratch->used = level;
    return pick;
}

void sl_logprobs(const float *logits, uint32_t vocab, uint32_t id, const sl_report *report,
                 sl_arena *scratch, sl_logprob *out) {
    const uint32_t n = report->n_top;
    size_t level = scratch->used;
    uint32_t best = argmax(logits, vocab);
    float top = logits[best];
    float *weight = sl_arena_take(scratch, vocab, sizeof *weight);
    uint32_t *list = sl_arena_take(scratch, vocab, sizeof *list);
    SL_ASSERT(weight && list && n <= SL_MAX_LOGPROBS && n <= vocab && id < vocab);
    fill_weights(1, logits, vocab, top, weight);
    /* the likeliest token's probability is e^0 over the sum, so its logarithm is that of the sum */
    float log_sum = -logf(weight[best]);
    uint32_t ranked = n > 0 ? rank_tokens(logits, weight, vocab, n, 0, list) : 0;
    SL_ASSERT(ranked == n);
    for (uint32_t i = 0; i < sl_reported(report); i++) {
        uint32_t at = i == 0 ? id : i <= n ? list[i - 1] : report->scored[i - 1 - n];
        SL_ASSERT(at < vocab);
        float p = logits[at] - top - log_sum;
        p = p > SL_LOGPROB_FLOOR ? p : SL_LOGPROB_FLOOR;
        out[i] = (sl_logprob){at, p < 0 ? p : 0};
    }
    scratch->used = level;
}
