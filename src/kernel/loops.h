/* Kernels whose elements depend on nothing but themselves. Each instruction set compiles them with
 * its own flags: the compiler may vectorise such loops but never reorder or fuse, so all give the
 * same bits. */
#ifndef SL_KERNEL_LOOPS_H
#define SL_KERNEL_LOOPS_H

#include "kernel/kernel_int.h"
#include "kernel/scalar.h"

static inline void loop_rms_apply(const float *x, const float *w, float inv, uint32_t n, float *y) {
    for (uint32_t i = 0; i < n; i++) y[i] = x[i] * inv * w[i];
}

static inline void loop_sincos(uint32_t pos, const double *freq, uint32_t n, float *c, float *s) {
    for (uint32_t i = 0; i < n; i++) sl_sincos_scalar((double)pos * freq[i], &c[i], &s[i]);
}

static inline void loop_divide(float *o, float sum, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) o[i] = o[i] / sum;
}

static inline void loop_add(float *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

static inline void loop_scale(float *y, const float *x, float a, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = a * x[i];
}

static inline void loop_add_scaled(float *y, const float *x, float a, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float p = a * x[i];
        y[i] = y[i] + p;
    }
}

static inline void loop_widen_e4m3(const uint8_t *code, float scale, size_t n, float *dst) {
    for (size_t i = 0; i < n; i++) dst[i] = sl_e4m3_to_f32(code[i]) * scale;
}

/* Entries of a table that come from here. */
#define SL_PLAIN_LOOPS                                                                             \
    .rms_apply = loop_rms_apply, .sincos = loop_sincos, .divide = loop_divide, .add = loop_add,    \
    .scale = loop_scale, .add_scaled = loop_add_scaled, .widen_e4m3 = loop_widen_e4m3

#endif
