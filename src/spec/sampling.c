/* The standard values of sampling, and the one check that everybody asks. */
#include "spec/sampling.h"

#include <math.h>

sl_sampling sl_sampling_standard(const sl_generation_spec *model) {
    sl_sampling s = {
#define SL_SAMPLING(type, name, byte, standard, whence, allowed, asked, whose, what)               \
    .name = standard,
#include "spec/sampling.def"
    };
    if (!isnan(model->temperature)) s.temperature = model->temperature;
    if (!isnan(model->top_p)) s.top_p = model->top_p;
    if (model->repetition_penalty > 0) s.repetition_penalty = model->repetition_penalty;
    if (model->top_k > 0) s.top_k = (uint32_t)model->top_k;
    if (model->do_sample == 0) s.temperature = 0;
    return s;
}

static sl_status check_range(const char *name, double value, sl_range r, sl_err *err) {
    if (value <= r.highest && (r.above ? value > r.lowest : value >= r.lowest)) return SL_OK;
    return sl_fail(err, SL_ERR_ARG, "%s: %g is outside %s%g..%g%s", name, value, r.above ? "(" : "",
                   r.lowest, r.highest, r.above ? "]" : "");
}

static sl_status check_bias(const sl_sampling *s, uint32_t vocab, sl_err *err) {
    if (s->n_bias > SL_MAX_LOGIT_BIAS)
        return sl_fail(err, SL_ERR_ARG, "logit_bias: %u ids, limit %u", s->n_bias,
                       SL_MAX_LOGIT_BIAS);
    for (uint32_t i = 0; i < s->n_bias; i++) {
        const sl_logit_bias *b = &s->bias[i];
        if (b->id >= vocab)
            return sl_fail(err, SL_ERR_ARG, "logit_bias: id %u, the vocabulary has %u", b->id,
                           vocab);
        if (i > 0 && b->id <= s->bias[i - 1].id)
            return sl_fail(err, SL_ERR_ARG, "logit_bias: id %u after %u", b->id, s->bias[i - 1].id);
        if (!(fabsf(b->bias) <= SL_MAX_BIAS))
            return sl_fail(err, SL_ERR_ARG, "logit_bias: %g for id %u is outside -%d..%d",
                           (double)b->bias, b->id, SL_MAX_BIAS, SL_MAX_BIAS);
    }
    return SL_OK;
}

/* Ids there are, and one of them at least. */
static sl_status check_allowed(const sl_sampling *s, uint32_t vocab, sl_err *err) {
    uint32_t some = 0;
    if (s->n_allowed == 0) return SL_OK;
    if (s->n_allowed != sl_id_words(vocab))
        return sl_fail(err, SL_ERR_ARG, "allowed_token_ids: %u words, the vocabulary has %u",
                       s->n_allowed, sl_id_words(vocab));
    for (uint32_t i = 0; i < s->n_allowed; i++) some |= s->allowed[i];
    if (!some) return sl_fail(err, SL_ERR_ARG, "allowed_token_ids: empty, at least one id");
    if (vocab % 32 && s->allowed[s->n_allowed - 1] >> vocab % 32)
        return sl_fail(err, SL_ERR_ARG, "allowed_token_ids: an id above the %u of the vocabulary",
                       vocab);
    return SL_OK;
}

static sl_status check_word(const uint32_t *id, uint32_t n, uint32_t vocab, sl_err *err) {
    for (uint32_t i = 0; i < n; i++)
        if (id[i] >= vocab)
            return sl_fail(err, SL_ERR_ARG, "bad_words: id %u, the vocabulary has %u", id[i],
                           vocab);
    return SL_OK;
}

static sl_status check_bad(const sl_sampling *s, uint32_t vocab, sl_err *err) {
    uint32_t words = 0;
    if (s->n_bad > SL_MAX_BAD_WORDS + SL_MAX_BAD_TOKENS)
        return sl_fail(err, SL_ERR_ARG, "bad_words: %u lengths and ids, limit %u", s->n_bad,
                       SL_MAX_BAD_WORDS + SL_MAX_BAD_TOKENS);
    for (uint32_t at = 0; at < s->n_bad; words++) {
        const uint32_t n = s->bad[at++];
        if (n == 0 || n > s->n_bad - at)
            return sl_fail(err, SL_ERR_ARG, "bad_words: %u ids of sequence %u, %u are left", n,
                           words, s->n_bad - at);
        sl_status st = check_word(s->bad + at, n, vocab, err);
        if (st != SL_OK) return st;
        at += n;
    }
    if (words > SL_MAX_BAD_WORDS)
        return sl_fail(err, SL_ERR_ARG, "bad_words: %u sequences of tokens, limit %u", words,
                       SL_MAX_BAD_WORDS);
    return SL_OK;
}

sl_status sl_sampling_check(const sl_sampling *s, uint32_t vocab, sl_err *err) {
    sl_status st = SL_OK;
#define SL_SAMPLING(type, name, byte, standard, whence, allowed, asked, whose, what)               \
    if (st == SL_OK) st = check_range(#name, (double)s->name, allowed, err);
#include "spec/sampling.def"
    if (st == SL_OK) st = check_bias(s, vocab, err);
    if (st == SL_OK) st = check_allowed(s, vocab, err);
    return st == SL_OK ? check_bad(s, vocab, err) : st;
}

sl_status sl_report_check(const sl_report *r, uint32_t vocab, sl_err *err) {
    if (r->n_top > SL_MIN(SL_MAX_LOGPROBS, vocab))
        return sl_fail(err, SL_ERR_ARG, "logprobs: %u likeliest tokens, limit %u", r->n_top,
                       SL_MIN(SL_MAX_LOGPROBS, vocab));
    if (r->n_scored > SL_MAX_SCORED)
        return sl_fail(err, SL_ERR_ARG, "logprob_token_ids: %u ids, limit %u", r->n_scored,
                       SL_MAX_SCORED);
    for (uint32_t i = 0; i < r->n_scored; i++)
        if (r->scored[i] >= vocab)
            return sl_fail(err, SL_ERR_ARG, "logprob_token_ids: id %u, the vocabulary has %u",
                           r->scored[i], vocab);
    return SL_OK;
}
