/* Exact counts of a model: parameters, operations, bytes. Bytes of tensors come from the shape's
 * bytes per weight; operations are two per multiply-add; norms, softmax and rotary embedding are
 * left out of operations (below 1 %). Pure. Thread: any. */
#ifndef SL_PLAN_ACCOUNT_H
#define SL_PLAN_ACCOUNT_H

#include "spec/device.h"
#include "spec/shape.h"

/* Parameters (values) of one block's parts and of the whole model. */
typedef struct sl_params {
    uint64_t attention; /* projections, their biases and norms, the block's norms */
    uint64_t linear;    /* the same of a block of linear attention; 0: there are none */
    uint64_t router, shared, dense;
    uint64_t expert;          /* one */
    uint64_t embedding, head; /* head: 0 when tied; the last norm belongs to it */
    uint64_t total;
    uint64_t active; /* touched by one token: top_k experts, everything else once */
} sl_params;

/* shared: with Arctic's dense branch, which like shared experts runs beside the routed ones. */
sl_params sl_account_params(const sl_shape *s);

/* What has to be kept, bytes. */
typedef struct sl_footprint {
    double attention_side; /* all blocks' attention, router, shared, dense; embedding and head */
    double expert;         /* one expert of one block */
    double expert_column;  /* one expert of every routed block */
    double total;
    double kv_token;             /* KV cache of one position, all blocks */
    double state, guessed_state; /* of one request, whatever its positions (spec/delta.h); with
                                  * what takes guesses back */
    /* The block that guesses, which is in none of the above: all of it, its experts among them,
     * and its KV of a position; 0: the model has none. */
    double block, block_kv_token;
} sl_footprint;

sl_footprint sl_account_footprint(const sl_shape *s);

typedef struct sl_account_opts {
    uint32_t tp;             /* >= 1: devices that split the stage's matrices */
    double activation_bytes; /* per value, e.g. 2 */
    bool prefill;            /* rows of one prompt share their keys; MLA expands its latents */
} sl_account_opts;

/* One execution of a stage on one of its tp devices. */
typedef struct sl_stage_work {
    double flops;            /* of the matrices */
    double weight_bytes;     /* read once, whatever the rows */
    double activation_bytes; /* inputs read and outputs written, product by product */
    double key_flops;        /* attention: scores and weighted sum over the keys */
    double key_bytes;        /* attention: keys and values read; linear: states read and written */
    double reduce_bytes;     /* rows to be summed over the tp devices; 0 with tp = 1 */
} sl_stage_work;

/* kind as in sl_costs: `rows` rows (of one expert), whose contexts sum to `keys`. MLA decodes in
 * the latent space (absorbed projections): 2 heads (2 kv_lora + rope) operations a key. In prefill
 * a key is read once for SL_ACCOUNT_TILE rows. */
#define SL_ACCOUNT_TILE 64
sl_stage_work sl_account_stage(const sl_shape *s, sl_cost_kind kind, double rows, double keys,
                               const sl_account_opts *o);

/* Operations of one token through the whole model at a context of `keys` keys. */
double sl_account_token_flops(const sl_shape *s, double keys, bool prefill);

/* Bytes of one hidden row. */
static inline double sl_account_row_bytes(const sl_shape *s, double value_bytes) {
    return (double)s->d_model * value_bytes;
}

#endif
