/* What a checkpoint of a family holds, and which stage needs it: part of the family's row
 * (format/family.h). An architecture is such a table, not a forward pass of its own. Thread: any
 * (constant). */
#ifndef SL_FORMAT_ARCH_H
#define SL_FORMAT_ARCH_H

#include "base/status.h"
#include "spec/model.h"

#include <stddef.h>

/* Symbols of tensor shapes; their value comes from the spec. */
typedef enum sl_arch_dim {
    SL_DIM_NONE, /* second dimension of a vector */
    SL_DIM_VOCAB,
    SL_DIM_MODEL,
    SL_DIM_MODEL_TWICE, /* two rows of the stream, one behind the other */
    SL_DIM_Q,           /* n_heads * sl_query_dim */
    SL_DIM_KV,          /* n_kv_heads * head_dim */
    SL_DIM_HEAD,
    SL_DIM_Q_LORA,
    SL_DIM_KV_LORA,
    SL_DIM_KV_A,           /* latent and the key that is rotated */
    SL_DIM_KV_B,           /* keys before their rotated part, and values, of every head */
    SL_DIM_K_B,            /* latents of all heads */
    SL_DIM_NOPE,           /* of a head's keys before their rotated part */
    SL_DIM_V,              /* values of all heads, with MLA */
    SL_DIM_HEADS,          /* of queries */
    SL_DIM_Q_GATED,        /* of each head queries and gates */
    SL_DIM_DELTA_IN,       /* linear attention: queries, keys, values and gates */
    SL_DIM_DELTA_SMALL,    /* beta and decay of each value head */
    SL_DIM_DELTA_CHANNELS, /* queries, keys and values */
    SL_DIM_DELTA_TAPS,
    SL_DIM_DELTA_HEADS, /* of values */
    SL_DIM_DELTA_V,     /* of a head's values */
    SL_DIM_DELTA_OUT,   /* values of all heads */
    SL_DIM_FF_DENSE,
    SL_DIM_FF_EXPERT,
    SL_DIM_FF_SHARED,
    SL_DIM_EXPERTS,
    SL_DIM_ONE,
} sl_arch_dim;

/* How a gang of tensor-parallel ranks splits a tensor: whole on each rank, by rows (outputs), by
 * columns (inputs, whose products are summed over ranks; a bias behind such a product is whole, and
 * added once). The norm of all heads' queries is split by rows: its mean square is that of all. */
typedef enum sl_arch_axis { SL_AXIS_WHOLE, SL_AXIS_ROWS, SL_AXIS_COLUMNS } sl_arch_axis;

typedef enum sl_arch_stage { SL_STAGE_ATTENTION, SL_STAGE_EXPERT, SL_STAGE_HEAD } sl_arch_stage;

/* How often a tensor occurs: {L} in its name is the block, {E} the expert. */
typedef enum sl_arch_scope {
    SL_SCOPE_MODEL,
    SL_SCOPE_BLOCK,
    SL_SCOPE_FULL_BLOCK,   /* with keys and values, */
    SL_SCOPE_LINEAR_BLOCK, /* or with a state in their place */
    SL_SCOPE_DENSE_BLOCK,
    SL_SCOPE_MOE_BLOCK,
    SL_SCOPE_EXPERT,
    SL_SCOPE_MTP, /* of the block behind the last, beside what it has as a routed block */
} sl_arch_scope;

typedef enum sl_arch_role {
    SL_ROLE_EMBED,
    SL_ROLE_FINAL_NORM,
    SL_ROLE_LM_HEAD,
    SL_ROLE_ATTN_NORM,
    SL_ROLE_Q,
    SL_ROLE_Q_A, /* latents of MLA */
    SL_ROLE_Q_A_NORM,
    SL_ROLE_Q_B,
    SL_ROLE_KV_A,
    SL_ROLE_KV_A_NORM,
    SL_ROLE_KV_B,
    SL_ROLE_K_B, /* its two parts, the first transposed: GGUF */
    SL_ROLE_V_B,
    SL_ROLE_K,
    SL_ROLE_V,
    SL_ROLE_O,
    SL_ROLE_Q_BIAS,
    SL_ROLE_K_BIAS,
    SL_ROLE_V_BIAS,
    SL_ROLE_O_BIAS,
    SL_ROLE_SINKS,     /* a logit a head in the denominator of its softmax */
    SL_ROLE_DELTA_IN,  /* of linear attention (kernel/delta.h): two products, */
    SL_ROLE_DELTA_QKV, /* the first in two parts: GGUF, */
    SL_ROLE_DELTA_GATE,
    SL_ROLE_DELTA_SMALL,
    SL_ROLE_DELTA_CONV,  /* the convolution, */
    SL_ROLE_DELTA_SHIFT, /* dt_bias, */
    SL_ROLE_DELTA_RATE,  /* A_log, */
    SL_ROLE_DELTA_NORM,  /* of a value head's result, */
    SL_ROLE_DELTA_OUT,   /* and the product of these */
    SL_ROLE_Q_NORM,
    SL_ROLE_K_NORM,
    SL_ROLE_FFN_NORM,
    SL_ROLE_ROUTER,
    SL_ROLE_ROUTER_BIAS, /* added to scores for the choice, not to weights */
    SL_ROLE_LOGIT_BIAS,  /* of the router: added to its logits */
    SL_ROLE_DENSE_GATE,
    SL_ROLE_DENSE_UP,
    SL_ROLE_DENSE_DOWN,
    SL_ROLE_SHARED_NORM, /* of a dense branch */
    SL_ROLE_SHARED_GATE, /* of its SwiGLU */
    SL_ROLE_SHARED_UP,
    SL_ROLE_SHARED_DOWN,
    SL_ROLE_SHARED_SCALE,   /* one row: its sigmoid weighs the shared expert, where there is one */
    SL_ROLE_MTP_TOKEN_NORM, /* of the block that predicts a further token (model/mtp.c): of the
                             * embedding of the next token... */
    SL_ROLE_MTP_STATE_NORM, /* ...and of what the model made of the last one, whose... */
    SL_ROLE_MTP_IN,         /* ...product this is, of both */
    SL_ROLE_MTP_NORM,       /* before the head */
    SL_ROLE_EXPERT_GATE,
    SL_ROLE_EXPERT_UP,
    SL_ROLE_EXPERT_DOWN,
    SL_ROLE_EXPERT_GATE_BIAS,
    SL_ROLE_EXPERT_UP_BIAS,
    SL_ROLE_EXPERT_DOWN_BIAS,
    SL_ROLE_COUNT
} sl_arch_role;

typedef struct sl_arch_tensor {
    sl_arch_role role;
    sl_arch_scope scope;
    sl_arch_stage stage;
    const char *name; /* pattern with {L} and {E}; NULL: GGUF alone has it */
    sl_arch_dim n, k; /* rows, columns */
} sl_arch_tensor;

/* How the matrix of a role lies in files when it is not a tensor [n][k] of its own. Its rows are
 * those from `before` (a sum of dimensions) on, every step-th from `phase` on; `after` counts those
 * behind. What is neither transposed nor stepped is used where it is mapped, the others are copied
 * when they are bound. GGUF stacks experts and does nothing else of this, unless `gguf`. */
typedef enum sl_arch_stack {
    SL_STACK_NONE,
    SL_STACK_EXPERTS, /* [experts][...] */
    SL_STACK_ROWS,  /* [experts * n][k], transposed [experts * k][n]: one expert after the other */
    SL_STACK_HEADS, /* [heads][n / heads][k] */
    SL_STACK_CHANNELS, /* [n][1][k] */
} sl_arch_stack;

typedef struct sl_arch_store {
    sl_arch_role role;
    sl_arch_stack stack;
    bool transposed;                 /* [k][n] */
    bool gguf;                       /* in GGUF, too */
    uint8_t step, phase;             /* step 0: 1 */
    sl_arch_dim before[2], after[2]; /* SL_DIM_NONE adds nothing */
} sl_arch_store;

/* A role whose name in GGUF is an architecture's own; the last has no name. */
typedef struct sl_arch_alias {
    const char *name;
    sl_arch_role role;
    bool routed; /* in routed blocks alone */
} sl_arch_alias;

typedef struct sl_arch {
    sl_router router;
    bool layer_norm; /* norms subtract the mean first */
    const sl_arch_tensor *tensor;
    size_t n_tensors;
    const sl_arch_store *store; /* of the roles that need one */
    size_t n_stores;
    const sl_arch_alias *gguf;  /* names in GGUF that are not the usual ones; NULL: none */
    const char *const *ignored; /* what names of tensors begin with that are not read; NULL ends */
    /* What names begin with of the block behind the last, in the place of "model.layers.N."; NULL:
     * that. A file that has a tensor `mtp_sign` has such a block, whatever its config says. */
    const char *mtp_block, *mtp_sign;
    bool mtp_normed; /* such a block goes on from its own result behind the norm before the head */
} sl_arch;

#define SL_ARCH_NAME_MAX 256

/* By the class of config.json; NULL: there is no such family. */
const sl_arch *sl_arch_find(const char *name);

/* NULL: the family has none. */
const sl_arch_tensor *sl_arch_tensor_of(const sl_arch *a, sl_arch_role role);
/* Of folders; NULL: the role is a tensor of its own. */
const sl_arch_store *sl_arch_store_of(const sl_arch *a, sl_arch_role role);
/* The same of GGUF. */
const sl_arch_store *sl_arch_gguf_store_of(const sl_arch *a, sl_arch_role role);

uint64_t sl_arch_dim_value(const sl_model_spec *m, sl_arch_dim d);
/* Follows from what rows and columns are: heads, widths of feed-forwards and the vocabulary are
 * split. */
sl_arch_axis sl_arch_tensor_axis(const sl_arch_tensor *t);
/* Whether this model has the tensor at all: there is no head when it is tied, no bias and no norm
 * of queries and keys when config.json says so. */
bool sl_arch_tensor_used(const sl_model_spec *m, const sl_arch_tensor *t);
/* Writes the name with block and expert filled in. */
void sl_arch_tensor_name(const sl_arch *a, const sl_model_spec *m, const sl_arch_tensor *t,
                         uint32_t layer, uint32_t expert, char out[SL_ARCH_NAME_MAX]);

/* The same of a GGUF file (arch_gguf.c), where the experts of a block share one tensor of
 * [experts][n][k]. */
void sl_arch_gguf_name(const sl_arch *a, const sl_model_spec *m, const sl_arch_tensor *t,
                       uint32_t layer, char out[SL_ARCH_NAME_MAX]);

/* Fills n_params and n_params_active (top_k of n_experts in each MoE block) of *m. */
void sl_arch_count_params(const sl_arch *a, sl_model_spec *m);

#endif
