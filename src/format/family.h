/* The families of models, a row each: what a class of config.json is called, here and in GGUF, what
 * its file calls sizes, what differs from other families, and who reads what is its own. The
 * engine's reader of config.json, that of GGUF and the planner's walk the same rows; which tensors
 * a family has is in src/model/arch.c. A row stands in the family's own file, hf_<family>.c, those
 * of the Llama line together in hf_families.c. Inside of src/format. Thread: any (constant). */
#ifndef SL_FORMAT_FAMILY_H
#define SL_FORMAT_FAMILY_H

#include "format/gguf_config.h"
#include "format/json.h"
#include "spec/shape.h"

/* What a key of a published config means for us. */
typedef enum sl_hf_rule {
    SL_HF_USED,     /* read, with its own checks */
    SL_HF_HARMLESS, /* training, bookkeeping, or how Python returns things */
    SL_HF_OFF,      /* changes results unless it is null, false, 0, "" or empty */
    SL_HF_IS,       /* changes results unless it is null or says what is done here: `as` */
} sl_hf_rule;

typedef struct sl_hf_key {
    const char *key;
    sl_hf_rule rule;
    const char *as[2]; /* of SL_HF_IS: true, a number or a word; the second may be NULL */
} sl_hf_key;

/* What config.json calls sizes. NULL: it has none of that kind, or inside an object. */
typedef struct sl_family_keys {
    const char *layers, *d_model, *heads, *max_position;
    const char *experts, *top_k;
    const char *expert_width, *dense_width;
    const char *every;       /* every so many blocks are routed */
    const char *dense_first; /* so many first blocks are not */
} sl_family_keys;

#define SL_LLAMA_KEYS                                                                              \
    .layers = "num_hidden_layers", .d_model = "hidden_size", .heads = "num_attention_heads",       \
    .max_position = "max_position_embeddings", .top_k = "num_experts_per_tok"

/* Small tensors that come with a family: bits of `small`. */
enum {
    SL_SMALL_QKV_BIAS = 1,   /* where attention_bias is true... */
    SL_SMALL_O_BIAS = 2,     /* ...of the projection behind attention, too... */
    SL_SMALL_BIAS_GIVEN = 4, /* ...and it is true where the file is silent */
    SL_SMALL_QK_WIDE = 8,    /* norms of queries and keys are those of all heads */
    SL_SMALL_EXPERT_BIAS = 16,
    SL_SMALL_ROUTER_BIAS = 32,
    SL_SMALL_SHARED_GATE = 64,
    SL_SMALL_SINK = 128,
};

typedef struct sl_family {
    const char *name;       /* class in config.json; src/model/arch.c has it, too */
    const char *model_type; /* beside it, or */
    const char *other_type; /* in files that share the class; NULL: none */
    sl_family_keys key;
    bool qk_norm; /* of queries and keys, unless the file says otherwise */
    bool latent;  /* attention by latents */
    uint32_t small;
    sl_gguf_arch gguf; /* its name NULL: there are no such files */

    /* config.json, with what transformers assumes when a key is absent */
    double rope_theta, rms_eps;
    double rope_part; /* partial_rotary_factor */
    bool sparse_step; /* key.every is read, and mlp_only_layers lists dense blocks */
    bool window, norm_topk;
    bool norm_topk_fixed;  /* norm_topk_prob cannot be false */
    bool yarn;             /* rope_scaling may be YaRN */
    bool llama3;           /* rope_scaling may be llama3 */
    bool own_blocks;       /* its reader says which blocks are routed, and what layer_types are */
    bool mscale;           /* ... with mscale and mscale_all_dim */
    bool fp8;              /* read_own reads quantization_config */
    bool head_dim_derived; /* always hidden_size / num_attention_heads */
    bool windows;          /* layer_types may alternate full_attention and sliding_attention */
    const sl_hf_key *own;  /* what the table of all keys says of these is not so for this class */
    size_t n_own;
    const char *nested;     /* key of the object that has all of this; NULL: the file itself */
    const sl_hf_key *outer; /* what the file may have beside it */
    size_t n_outer;
    /* Instead of the common reader of heads, before rotations; NULL: the common one. */
    sl_status (*read_attention)(sl_json root, sl_model_spec *m, sl_err *err);
    /* After the common part; NULL: nothing. */
    sl_status (*read_own)(sl_json root, sl_model_spec *m, sl_err *err);
    /* Instead of the common part, from the class's own keys to the blocks; NULL: the common one.
     * Keys are checked by it, too (sl_hf_check_keys). */
    sl_status (*read_all)(sl_json root, sl_model_spec *m, sl_err *err);
    /* quantization_config, after all else; NULL: there must be none, unless fp8 says otherwise. */
    sl_status (*read_quant)(sl_json root, sl_json quant, sl_model_spec *m, sl_err *err);

    /* What counts and the planner's common reader does not see; NULL: nothing. */
    sl_status (*describe)(sl_json root, sl_shape *s, sl_err *err);
} sl_family;

/* In the order of messages; those of one name in GGUF stand together. */
extern const sl_family *const sl_families[];
extern const size_t sl_n_families;

/* By the class of config.json; NULL: none. */
const sl_family *sl_family_of_class(sl_span name);
/* The one that `architectures` names; SL_ERR_UNSUPPORTED lists those there are behind `unknown`. */
sl_status sl_family_read(sl_json root, const char *unknown, const sl_family **out,
                         sl_err *err) SL_MUST_CHECK;

/* The small tensors that follow from the class and from what s says of biases and norms. */
void sl_family_small(const sl_family *f, sl_shape *s);

#endif
