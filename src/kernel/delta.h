/* Linear attention by the gated delta rule (arXiv:2412.06464) with a convolution before it, as
 * Qwen3-Next has it, and the state that it keeps for each request in the place of keys and values.
 *
 * A row of products has of each key head its queries and keys [k_dim], values and gates [its value
 * heads][v_dim]; the small product beta and decay, a value head each. Queries, keys and values pass
 * the convolution over positions; queries and keys are of unit length then, and queries divided by
 * the root of k_dim. A value head's state takes a token by sl_delta_step, what that gives is
 * normalised and weighed by silu of its gates (docs/numbers.md#linear-attention).
 *
 * Versions. A request has two states of each block, at places 2i and 2i + 1; rows of a step go from
 * one to the other (sl_rowset.state), so that it can be given up and done again. Which rows of it
 * count is known later: rows of guesses (sched/draft.h) may be dropped. Then the version that
 * became the request's is ahead of it, and is made again from the other one and a log of the last
 * SL_DELTA_LOG rows' products, by the same operations, so with the same bits.
 *
 * Thread: the owner of the device. */
#ifndef SL_KERNEL_DELTA_H
#define SL_KERNEL_DELTA_H

#include "kernel/ops.h"
#include "spec/delta.h"

typedef struct sl_states sl_states;
struct sl_states {
    const sl_model_spec *m;
    uint32_t n;       /* places, two a request */
    size_t place;     /* floats of a place: of each block its windows, then its states */
    float *base;      /* [n][place], memory where it was written */
    uint32_t *at;     /* [n][n_linear] tokens that a version has taken */
    size_t logged;    /* floats of a row of the log */
    float *log;       /* [n / 2][n_linear][SL_DELTA_LOG][logged]; NULL: all rows of a step count */
    uint32_t *log_at; /* [n / 2][n_linear][SL_DELTA_LOG] position of a row and 1 */
};

/* Parts of a row of products: of the first one, whose order by parts is that of the convolution's
 * channels, and of the small one. */
typedef enum sl_delta_part {
    SL_DELTA_QUERY,
    SL_DELTA_KEY,
    SL_DELTA_VALUE,
    SL_DELTA_GATE,
    SL_DELTA_BETA,
    SL_DELTA_DECAY,
    SL_DELTA_PARTS
} sl_delta_part;

/* Where a part lies in a row: n values of the first key head from `first` on, those of each next
 * one `step` behind. */
typedef struct sl_delta_lie {
    uint32_t first, step, n;
} sl_delta_lie;

/* Of rows that go by key heads, all parts of one before the next head's; or by parts, all heads of
 * one before the next part. The small product goes by key heads in both. */
sl_delta_lie sl_delta_lie_of(const sl_model_spec *m, bool by_parts, sl_delta_part part);
/* Which value of the first product by key heads is its value `at` by parts. */
uint32_t sl_delta_by_heads(const sl_model_spec *m, uint32_t at);

/* Bytes that a request's states take: both versions, and the log. */
size_t sl_states_bytes(const sl_model_spec *m, bool guesses);
/* Places for so many requests of a model with linear attention, of which guesses may be dropped.
 * SL_ERR_NOMEM, SL_ERR_LIMIT; *out can be freed then, too. m is borrowed. */
sl_status sl_states_open(const sl_model_spec *m, uint32_t requests, bool guesses, sl_states *out,
                         sl_err *err) SL_MUST_CHECK;
void sl_states_close(sl_states *s); /* zeroed is fine; m is there still */

typedef struct sl_delta_args {
    const sl_model_spec *m;
    uint32_t layer;
    uint32_t n_rows;                    /* those of a request in ascending position */
    const float *in;                    /* [n_rows][channels + out] */
    const float *small;                 /* [n_rows][2 * v_heads] */
    sl_delta_lie lie[SL_DELTA_PARTS];   /* in a row of these */
    const float *conv;                  /* [taps][channels]: queries of all heads, keys, values */
    const float *rate, *shift;          /* [v_heads] e^A_log, dt_bias */
    const float *norm;                  /* [v_dim] */
    const uint32_t *pos, *state, *done; /* as of sl_rowset */
    sl_states *states;
    float *o; /* [n_rows][v_heads * v_dim] */
} sl_delta_args;

static inline void sl_delta(const sl_exec *ex, const sl_delta_args *a) {
    sl_ops(ex)->delta(ex, a);
}

#endif
