/* The definition of linear attention's convolution and of a token's way through a state. */
#include "kernel/ref/ref.h"

void sl_ref_taps(const sl_taps *t) {
    for (uint32_t i = 0; i < t->n; i++) {
        float a = 0;
        for (uint32_t j = 0; j < t->n_taps; j++) a = fmaf(t->w[j * t->w_stride + i], t->x[j][i], a);
        t->y[i] = sl_gated_scalar(a, a);
    }
}

void sl_ref_delta_column(const sl_delta_step *s, uint32_t c) {
    float m = 0, o = 0;
    for (size_t i = 0; i < s->k_dim; i++)
        m = fmaf(s->from[i * s->v_dim + c] * s->decay, s->k[i], m);
    const float d = (s->v[c] - m) * s->beta;
    for (size_t i = 0; i < s->k_dim; i++) {
        const float kept = s->from[i * s->v_dim + c] * s->decay;
        const float to = s->to[i * s->v_dim + c] = fmaf(s->k[i], d, kept);
        o = fmaf(to, s->q[i], o);
    }
    if (s->o) s->o[c] = o;
}

void sl_ref_delta(const sl_delta_step *s) {
    for (uint32_t c = 0; c < s->v_dim; c++) sl_ref_delta_column(s, c);
}
