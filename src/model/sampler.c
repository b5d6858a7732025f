/* The next token of logits: penalties, biases, cut-offs, the draw; log-probabilities. Where only
 * some logits are here (sl_found), all others come behind the edge of those: a token that is before
 * it is as far in front as if all were here. */
#include "model/sampler.h"

#include "base/rng.h"
#include "kernel/kernel.h"
#include "model/draw.h"

#include <math.h>
#include <string.h>

size_t sl_sampler_scratch_bytes(uint32_t vocab) {
    /* changed logits, what a draw takes; counts are gone by then */
    return (size_t)vocab * sizeof(float) + sl_draw_scratch_bytes(vocab) + 64;
}

/* ---- which logits are here ---- */

#define NOT_HERE UINT32_MAX

/* Where a token is. */
static uint32_t place_of(const sl_logits *l, uint32_t id) {
    uint32_t low = 0, high = l->n;
    if (!l->id) return id;
    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        if (l->id[mid] < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low < l->n && l->id[low] == id ? low : NOT_HERE;
}

static uint32_t id_at(const sl_logits *l, uint32_t place) {
    return l->id ? l->id[place] : place;
}

/* No token that is not here comes before this one, whose logit may have been changed. */
static bool is_before_others(const sl_logits *l, uint32_t place, float logit) {
    return !l->id || !sl_draw_before(l->f->edge_logit, l->f->edge, logit, l->id[place]);
}

/* A token's logit as the model has it; false: nobody has found it. */
static bool logit_of(const sl_logits *l, uint32_t id, float *out) {
    const uint32_t at = place_of(l, id);
    const bool picked =
        at == NOT_HERE && l->at->mass.kind == SL_MASS_ANY && l->f->mass_sum > 0 && l->f->pick == id;
    if (at == NOT_HERE && !picked) return false;
    *out = picked ? l->f->pick_logit : l->of[at];
    return true;
}

/* ---- logits that are changed ---- */

static bool penalises(const sl_sampling *s) {
    return s->presence_penalty != 0 || s->frequency_penalty != 0 ||
           (s->repetition_penalty > 0 && s->repetition_penalty != 1);
}

/* Some token may get a larger logit by it: then tokens that are not here count, too. */
static bool rewards(const sl_sampling *s) {
    return s->presence_penalty < 0 || s->frequency_penalty < 0 ||
           (s->repetition_penalty > 0 && s->repetition_penalty < 1);
}

/* Marks a token of the prompt in a count of generated ones. */
#define SL_IN_PROMPT 0x80000000u

/* count: [n] scratch. */
static void apply_penalties(const sl_sampling *s, const sl_history *past, const sl_logits *l,
                            uint32_t *count, float *logits) {
    float repetition = s->repetition_penalty > 0 ? s->repetition_penalty : 1;
    memset(count, 0, l->n * sizeof *count);
    for (uint32_t i = 0; i < past->n; i++) {
        SL_ASSERT(past->tokens[i] < l->vocab);
        const uint32_t at = place_of(l, past->tokens[i]);
        if (at == NOT_HERE) continue;
        if (i < past->n_prompt)
            count[at] |= SL_IN_PROMPT;
        else
            count[at]++;
    }
    for (uint32_t i = 0; i < past->n; i++) {
        const uint32_t at = place_of(l, past->tokens[i]);
        if (at == NOT_HERE || !count[at]) continue; /* or it had its penalties */
        const uint32_t made = count[at] & ~SL_IN_PROMPT;
        count[at] = 0;
        logits[at] = logits[at] > 0 ? logits[at] / repetition : logits[at] * repetition;
        if (!made) continue;
        logits[at] -= s->frequency_penalty * (float)made;
        logits[at] -= s->presence_penalty;
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

/* Drops what is not allowed, of all tokens a word of 32 at a time. */
static void keep_allowed(const uint32_t *allowed, const sl_logits *l, float *logits) {
    for (uint32_t i = 0; l->id && i < l->n; i++)
        if (!has_id(allowed, l->id[i])) logits[i] = -INFINITY;
    for (uint32_t i = 0; !l->id && i < l->vocab; i += 32) {
        const uint32_t word = allowed[i / 32], n = SL_MIN(l->vocab - i, 32u);
        if (word == UINT32_MAX) continue;
        for (uint32_t k = 0; k < n; k++)
            if (!(word >> k & 1)) logits[i + k] = -INFINITY;
    }
}

static void drop(const sl_logits *l, uint32_t id, float *logits) {
    const uint32_t at = id < l->vocab ? place_of(l, id) : NOT_HERE;
    if (at != NOT_HERE) logits[at] = -INFINITY;
}

static bool changes(const sl_sampling *s, const sl_history *past) {
    const bool penalties = past && past->n > 0 && penalises(s);
    return penalties || s->n_bias || s->n_never || s->n_allowed || s->n_bad;
}

/* The logits to draw from: the given ones, or a changed copy in scratch. NULL: tokens that are not
 * here may come before others by it. */
static const float *change_logits(const sl_sampling *s, const sl_logits *l, const sl_history *past,
                                  sl_arena *scratch) {
    bool penalties = past && past->n > 0 && penalises(s);
    if (!changes(s, past)) return l->of;
    if (l->id && penalties && rewards(s)) return NULL;
    float *changed = sl_arena_take(scratch, l->n, sizeof *changed);
    SL_ASSERT(changed);
    memcpy(changed, l->of, l->n * sizeof *changed);
    for (uint32_t i = 0; i < s->n_bias; i++) {
        SL_ASSERT(s->bias[i].id < l->vocab);
        const uint32_t at = place_of(l, s->bias[i].id);
        if (at != NOT_HERE)
            changed[at] += s->bias[i].bias;
        else if (!(s->bias[i].bias <= 0))
            return NULL;
    }
    for (uint32_t i = 0; i < s->n_never; i++) drop(l, s->never[i], changed);
    if (s->n_allowed) keep_allowed(s->allowed, l, changed);
    for (uint32_t at = 0; (at = next_bad(s, at, past)) < s->n_bad; at += 1 + s->bad[at])
        drop(l, last_of(s->bad + at), changed);
    if (!penalties) return changed;
    size_t level = scratch->used;
    uint32_t *count = sl_arena_take(scratch, l->n, sizeof *count);
    SL_ASSERT(count);
    apply_penalties(s, past, l, count, changed);
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

/* ---- draws ---- */

static bool same_mass(const sl_mass *a, const sl_mass *b) {
    return a->kind == b->kind && a->temperature == b->temperature && a->share == b->share &&
           (a->kind == SL_MASS_ANY ? a->u == b->u : a->top_p == b->top_p);
}

static bool has_top_k(const sl_sampling *s, uint32_t vocab) {
    return s->top_k > 0 && s->top_k < vocab;
}

/* By sums over all tokens, which are those of logits as the model has them. */
static bool draw_by_mass(const sl_sampling *s, const sl_logits *l, const sl_peaks *p, double u,
                         sl_arena *scratch, uint32_t *id) {
    const sl_mass mass = sl_draw_mass(s, u);
    uint32_t at;
    if (p->logits != l->of || !same_mass(&mass, &l->at->mass) || !(l->f->mass_sum > 0))
        return false;
    if (mass.kind == SL_MASS_ANY) {
        *id = l->f->pick;
        return *id < l->vocab;
    }
    if (!sl_draw_of_some(s, p, l->f, l->vocab, u, scratch, &at)) return false;
    *id = l->id[at];
    return true;
}

/* Of some logits, as far as they are enough. A NaN that is not here comes before others where it is
 * excluded, but before no number. */
static bool draw_of_found(const sl_sampling *s, const sl_logits *l, const sl_peaks *p, double u,
                          sl_arena *scratch, uint32_t *id) {
    const float best = l->n ? p->logits[p->best] : NAN;
    if (!isfinite(best) || !is_before_others(l, p->best, best)) return false;
    *id = l->id[p->best];
    if (!(s->temperature > 0)) return true;
    if (!has_top_k(s, l->vocab)) return draw_by_mass(s, l, p, u, scratch, id);
    uint32_t *list = sl_arena_take(scratch, p->vocab, sizeof *list);
    SL_ASSERT(list);
    if (s->top_k > p->vocab) return false;
    const uint32_t last = list[sl_peaks_rank(p, s->top_k, list, scratch) - 1];
    if (!isfinite(p->logits[last]) || !is_before_others(l, last, p->logits[last])) return false;
    *id = l->id[sl_draw_of_k(s, p, u, scratch)];
    return true;
}

/* Whatever the logits say, this token comes. */
static bool draw_certain(const sl_logits *l, uint32_t id, sl_drawn *out) {
    out->id = id;
    return logit_of(l, id, &out->logit);
}

bool sl_sample_of(const sl_sampling *s, const sl_logits *l, uint64_t position,
                  const sl_history *past, sl_arena *scratch, sl_drawn *out) {
    size_t level = scratch->used;
    if (ends_thought(s, l->vocab, past)) return draw_certain(l, s->thought_close - 1, out);
    const float *logits = change_logits(s, l, past, scratch);
    const double u = s->temperature > 0 ? sl_rng_uniform(s->seed, s->choice, position) : 0;
    bool enough = logits != NULL;
    if (enough) {
        const sl_peaks p = sl_peaks_of(logits, l->n, scratch);
        out->id = p.best;
        if (l->id)
            enough = draw_of_found(s, l, &p, u, scratch, &out->id);
        else if (s->temperature > 0 && isfinite(logits[p.best]))
            /* an infinite or undefined maximum leaves no distribution to draw from */
            out->id = sl_draw(s, &p, u, scratch);
    }
    scratch->used = level;
    return enough && logit_of(l, out->id, &out->logit);
}

/* ---- log-probabilities ---- */

/* The logarithm of the sum of weights at temperature 1; false: nobody has made it. */
static bool log_sum_of(const sl_logits *l, const sl_peaks *p, sl_arena *scratch, float *out) {
    float best; /* the likeliest token's probability is e^0 over the sum */
    if (l->id) {
        if (!l->at->sum || !(l->f->sum > 0)) return false;
        best = sl_expf(0) / l->f->sum;
    } else {
        float *weight = sl_arena_take(scratch, l->vocab, sizeof *weight);
        SL_ASSERT(weight);
        sl_peaks_weights(p, 1, weight);
        best = weight[p->best];
    }
    *out = -logf(best);
    return true;
}

static sl_logprob logprob_of(uint32_t id, float logit, float top, float log_sum) {
    const float l = logit - top - log_sum;
    const float least = l > SL_LOGPROB_FLOOR ? l : SL_LOGPROB_FLOOR;
    return (sl_logprob){id, least < 0 ? least : 0};
}

bool sl_logprobs_of(const sl_logits *l, uint32_t id, const sl_report *report, sl_arena *scratch,
                    sl_logprob *out) {
    const uint32_t n = report->n_top;
    size_t level = scratch->used;
    SL_ASSERT(n <= SL_MAX_LOGPROBS && n <= l->vocab && id < l->vocab);
    if (n > l->n || l->n == 0) return false;
    const sl_peaks p = sl_peaks_of(l->of, l->n, scratch);
    uint32_t *list = sl_arena_take(scratch, l->n, sizeof *list);
    SL_ASSERT(list);
    const float top = l->of[p.best];
    float log_sum, logit;
    const uint32_t ranked = sl_peaks_rank(&p, n, list, scratch);
    SL_ASSERT(ranked == n);
    bool enough = is_before_others(l, p.best, top) && log_sum_of(l, &p, scratch, &log_sum) &&
                  (n == 0 || is_before_others(l, list[n - 1], l->of[list[n - 1]]));
    for (uint32_t i = 0; enough && i < sl_reported(report); i++) {
        uint32_t at = i == 0 ? id : i <= n ? id_at(l, list[i - 1]) : report->scored[i - 1 - n];
        SL_ASSERT(at < l->vocab);
        enough = logit_of(l, at, &logit);
        if (enough) out[i] = logprob_of(at, logit, top, log_sum);
    }
    scratch->used = level;
    return enough;
}

void sl_logprobs(const float *logits, uint32_t vocab, uint32_t id, const sl_report *report,
                 sl_arena *scratch, sl_logprob *out) {
    const sl_logits l = sl_logits_all(logits, vocab);
    const bool enough = sl_logprobs_of(&l, id, report, scratch, out);
    SL_ASSERT(enough);
}

/* ---- what a draw asks of logits ---- */

/* Tokens beyond those that are drawn from, where some of them may be excluded or penalised. */
#define SPARE 31u

/* One more single token; too many: all logits. */
static void seek_id(sl_sought *q, uint32_t id) {
    uint32_t at = q->n_ids;
    while (at > 0 && q->id[at - 1] > id) at--;
    if (at > 0 && q->id[at - 1] == id) return;
    if (q->n_ids == SL_SEEK_IDS) {
        q->all = true;
        return;
    }
    memmove(q->id + at + 1, q->id + at, (q->n_ids - at) * sizeof *q->id);
    q->id[at] = id;
    q->n_ids++;
}

static void seek_ids(const sl_sampling *s, const sl_report *report, uint32_t vocab, sl_sought *q) {
    if (s->thought_close && s->thought_close <= vocab) seek_id(q, s->thought_close - 1);
    for (uint32_t i = 0; i < s->n_bias && !q->all; i++)
        if (s->bias[i].bias > 0) seek_id(q, s->bias[i].id);
    for (uint32_t i = 0; report && i < report->n_scored && !q->all; i++)
        seek_id(q, report->scored[i]);
}

void sl_sampler_seeks(const sl_sampling *s, const sl_history *past, uint32_t vocab,
                      uint64_t position, const sl_report *report, bool masked, sl_sought *out) {
    const bool draws = s->temperature > 0, changed = masked || changes(s, past);
    const bool mass = draws && !has_top_k(s, vocab);
    uint32_t n = draws && !mass ? s->top_k : 1;
    *out = (sl_sought){.sum = report != NULL};
    if (mass) out->mass = sl_draw_mass(s, sl_rng_uniform(s->seed, s->choice, position));
    if (report) n = SL_MAX(n, report->n_top);
    out->all = n > SL_SEEK_LIST || (mass && changed) || (draws && masked) ||
               (changed && penalises(s) && rewards(s)) ||
               ((mass || report) && vocab > SL_SEEK_VOCAB);
    if (changed) n = SL_MIN(n + SPARE, SL_SEEK_LIST);
    if (out->mass.kind == SL_MASS_TOP) n = SL_SEEK_LIST;
    out->n_list = SL_MIN(SL_MIN(n, SL_SEEK_LIST), vocab);
    if (!out->all) seek_ids(s, report, vocab, out);
}
