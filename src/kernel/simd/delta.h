/* Linear attention over vectors in the type v16. */
#include "kernel/ref/ref.h"

static inline void simd_taps(const sl_taps *t) {
    sl_taps rest = *t;
    uint32_t i = 0;
    for (; i + 16 <= t->n; i += 16) {
        v16 a = v_set1(0);
        for (uint32_t j = 0; j < t->n_taps; j++)
            a = v_fma(v_load(t->w + j * t->w_stride + i), v_load(t->x[j] + i), a);
        v_store(t->y + i, simd_gated(a, a));
    }
    if (i == t->n) return;
    rest.n -= i;
    rest.w += i;
    rest.y += i;
    for (uint32_t j = 0; j < t->n_taps; j++) rest.x[j] += i;
    sl_ref_taps(&rest);
}

/* 16 `wide` columns from c on: what both passes read of the state stays in the first cache. */
enum { DELTA_WIDE = 2 };
SL_INLINE void simd_delta_columns(const sl_delta_step *s, uint32_t c, int wide) {
    const v16 decay = v_set1(s->decay), beta = v_set1(s->beta);
    v16 m[DELTA_WIDE], o[DELTA_WIDE], d[DELTA_WIDE];
    for (int w = 0; w < wide; w++) m[w] = o[w] = v_set1(0);
    for (size_t i = 0; i < s->k_dim; i++) {
        const v16 k = v_set1(s->k[i]);
        const float *from = s->from + i * s->v_dim + c;
        for (int w = 0; w < wide; w++) m[w] = v_fma(v_mul(v_load(from + 16 * w), decay), k, m[w]);
    }
    for (int w = 0; w < wide; w++) d[w] = v_mul(v_sub(v_load(s->v + c + 16 * w), m[w]), beta);
    for (size_t i = 0; i < s->k_dim; i++) {
        const v16 k = v_set1(s->k[i]), q = v_set1(s->q[i]);
        const size_t at = i * s->v_dim + c;
        for (int w = 0; w < wide; w++) {
            const v16 to = v_fma(k, d[w], v_mul(v_load(s->from + at + 16 * w), decay));
            v_store(s->to + at + 16 * w, to);
            o[w] = v_fma(to, q, o[w]);
        }
    }
    for (int w = 0; s->o && w < wide; w++) v_store(s->o + c + 16 * w, o[w]);
}

static inline void simd_delta(const sl_delta_step *s) {
    uint32_t c = 0;
    for (; c + 32 <= s->v_dim; c += 32) simd_delta_columns(s, c, 2);
    for (; c + 16 <= s->v_dim; c += 16) simd_delta_columns(s, c, 1);
    for (; c < s->v_dim; c++) sl_ref_delta_column(s, c);
}
