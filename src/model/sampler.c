/* The next token of logits: penalties, biases, cut-offs, the draw; log-probabilities. */
#include "model/sampler.h"

#include "base/rng.h"
#include "model/draw.h"

#include <math.h>
#include <string.h>

size_t sl_sampler_scratch_bytes(uint32_t vocab) {
    /* changed logits, what a draw takes; counts are gone by then */
    return (size_t)vocab * sizeof(float) + sl_draw_scratch_bytes(vocab) + 64;
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
    for (uint32_t i = 0; i < past->n; i++) {
        const uint32_t id = past->tokens[i], made = count[id] & ~SL_IN_PROMPT;
        if (!count[id]) continue; /* it had its penalties */
        count[id] = 0;
        logits[id] = logits[id] > 0 ? logits[id] / repetition : logits[id] * repetition;
        if (!made) continue;
        logits[id] -= s->frequency_penalty * (float)made;
        logits[id] -= s->presence_penalty;
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
    const sl_peaks p = sl_peaks_of(logits, vocab, scratch);
    uint32_t pick = p.best;
    /* an infinite or undefined maximum leaves no distribution to draw from */
    if (s->temperature > 0 && isfinite(logits[p.best]))
        pick = sl_draw(s, &p, sl_rng_uniform(s->seed, s->choice, position), scratch);
    scratch->used = level;
    return pick;
}

void sl_logprobs(const float *logits, uint32_t vocab, uint32_t id, const sl_report *report,
                 sl_arena *scratch, sl_logprob *out) {
    const uint32_t n = report->n_top;
    size_t level = scratch->used;
    const sl_peaks p = sl_peaks_of(logits, vocab, scratch);
    float *weight = sl_arena_take(scratch, vocab, sizeof *weight);
    uint32_t *list = sl_arena_take(scratch, vocab, sizeof *list);
    SL_ASSERT(weight && list && n <= SL_MAX_LOGPROBS && n <= vocab && id < vocab);
    sl_peaks_weights(&p, 1, weight);
    /* the likeliest token's probability is e^0 over the sum, so its logarithm is that of the sum */
    const float top = logits[p.best], log_sum = -logf(weight[p.best]);
    const uint32_t ranked = sl_peaks_rank(&p, n, list, scratch);
    SL_ASSERT(ranked == n);
    for (uint32_t i = 0; i < sl_reported(report); i++) {
        uint32_t at = i == 0 ? id : i <= n ? list[i - 1] : report->scored[i - 1 - n];
        SL_ASSERT(at < vocab);
        const float l = logits[at] - top - log_sum;
        const float least = l > SL_LOGPROB_FLOOR ? l : SL_LOGPROB_FLOOR;
        out[i] = (sl_logprob){at, least < 0 ? least : 0};
    }
    scratch->used = level;
}
