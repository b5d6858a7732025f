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

sl_status sl_sampling_check(const sl_sampling *s, uint32_t vocab, sl_err *err) {
    sl_status st = SL_OK;
#define SL_SAMPLING(type, name, byte, standard, whence, allowed, asked, whose, what)               \
    if (st == SL_OK) st = check_range(#name, (double)s->name, allowed, err);
#include "spec/sampling.def"
    return st == SL_OK ? check_bias(s, vocab, err) : st;
}
