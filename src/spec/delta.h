/* What a request leaves behind in blocks of linear attention, whatever its length: two versions of
 * a state, and a log of the last rows where guesses may be taken back (kernel/delta.h). Devices
 * take memory for it and the planner counts it by the same functions. Pure. Thread: any. */
#ifndef SL_SPEC_DELTA_H
#define SL_SPEC_DELTA_H

#include "spec/model.h"
#include "spec/shape.h"
#include "spec/speculate.h"

#include <stddef.h>

#define SL_DELTA_LOG SL_GUESSED_ROWS /* rows that can be taken back */

/* Sizes of a block, in values. */
typedef struct sl_delta_sizes {
    size_t window; /* rows before the next one that the convolution sees */
    size_t held;   /* states of all heads */
    size_t logged; /* a row of products, without what gates results */
} sl_delta_sizes;

static inline sl_delta_sizes sl_delta_sizes_of(size_t channels, size_t taps, size_t heads,
                                               size_t held) {
    return (sl_delta_sizes){
        .window = (taps - 1) * channels, .held = held, .logged = channels + 2 * heads};
}

static inline sl_delta_sizes sl_model_delta(const sl_model_spec *m) {
    return sl_delta_sizes_of(sl_delta_channels(m), m->delta_taps, m->delta_v_heads,
                             (size_t)m->delta_k_dim * sl_delta_out(m));
}

static inline sl_delta_sizes sl_shape_delta(const sl_shape *s) {
    return sl_delta_sizes_of(s->delta_channels, s->delta_taps, s->delta_heads, s->delta_state);
}

/* Bytes of a request in so many blocks. guesses: with the log. */
static inline size_t sl_delta_bytes(sl_delta_sizes s, size_t blocks, bool guesses) {
    const size_t log = guesses ? SL_DELTA_LOG * s.logged : 0;
    return blocks ? blocks * (2 * (s.window + s.held) + log) * sizeof(float) : 0;
}

#endif
