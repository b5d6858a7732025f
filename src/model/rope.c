/* What depends on positions alone: stretched rotations, growing queries. No function of libm
 * decides a bit of queries. */
#include "model/model_int.h"

#include "format/gguf_config.h"

#include <math.h>
#include <string.h>

double sl_rope_stretch(const sl_long_waves *w, double freq) {
    const double two_pi = 6.283185307179586, low = (double)w->low, high = (double)w->high;
    double turns = w->original * freq / two_pi;
    if (w->factor <= 0 || turns > high) return freq;
    if (turns < low || high == low) return freq / (double)w->factor;
    double kept = (turns - low) / (high - low);
    return (1 - kept) * freq / (double)w->factor + kept * freq;
}

sl_status sl_rope_apply_factors(sl_model *m, sl_err *err) {
    uint32_t half = m->spec.rope_dim / 2;
    sl_span bytes = {0};
    size_t at = 0;
    if (!m->ckpt || !sl_ckpt_gguf(m->ckpt) || !sl_ckpt_find(m->ckpt, SL_GGUF_ROPE_FACTORS, &at))
        return SL_OK;
    sl_ckpt_tensor t = sl_ckpt_at(m->ckpt, at);
    const char *path = sl_ckpt_path(m->ckpt, t.file);
    if (!t.usable || t.dtype != SL_F32 || t.n_dims != 1 || t.dim[0] != half)
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\": expected F32 of shape [%u]", path,
                       t.name, half);
    sl_status st = sl_ckpt_data(m->ckpt, t, &bytes, err);
    for (uint32_t i = 0; st == SL_OK && i < half; i++) {
        float factor;
        memcpy(&factor, bytes.data + i * sizeof factor, sizeof factor);
        if (!(factor > 0 && isfinite(factor)))
            return sl_fail(err, SL_ERR_LIMIT, "%s: tensor \"%s\": value %u is %g", path, t.name, i,
                           (double)factor);
        m->made.rope_freq[i] = (float)(m->made.rope_freq[i] / (double)factor);
    }
    return st;
}

/* The natural logarithm of x >= 1: the power of two, then the series of atanh, in f64. */
static double logarithm(double x) {
    int e = 0;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    double z = (m - 1) / (m + 1), sum = 0;
    for (int i = 23; i >= 1; i -= 2) sum = sum * (z * z) + 1.0 / i;
    return e * 0.69314718055994531 + 2 * z * sum;
}

float sl_query_scale(const sl_model_spec *spec, uint32_t pos) {
    if (spec->query_floor <= 0) return 1;
    double steps = floor((pos + 1.0) / (double)spec->query_floor);
    return (float)(logarithm(steps + 1) * (double)spec->query_growth + 1);
}
