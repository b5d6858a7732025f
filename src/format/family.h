/* The families of models, a row each: what a class of config.json is called, here and in GGUF, what
 * its file calls what counts, what differs from other families, and who reads what is its own.
 * config.json is read by it once (sl_hf_read), for the planner as for the engine, which reads on
 * what computing needs and refuses what it cannot compute. A row stands in the family's own file,
 * hf_<family>.c, those of the Llama line together in hf_families.c. Inside of src/format. Thread:
 * any (constant). */
#ifndef SL_FORMAT_FAMILY_H
#define SL_FORMAT_FAMILY_H

#include "format/arch.h"
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

typedef struct sl_hf_keys {
    const sl_hf_key *key;
    size_t n;
} sl_hf_keys;
#define SL_HF_KEYS(list)                                                                           \
    { list, SL_LEN(list) }

/* What config.json calls what counts. NULL: the family has none of that kind. One with a dot lies
 * in an object: "ffn_config.moe_top_k". */
typedef union sl_family_keys {
    struct {
        const char *layers, *d_model, *max_position;
        const char *heads, *kv_heads;
        const char *bias, *qk_norm;  /* whether queries and keys have them */
        const char *window;          /* of all blocks, or of some (windows) */
        const char *experts, *top_k; /* the first also under another class's name */
        const char *expert_width, *dense_width, *shared_width;
        const char *n_shared;    /* as many experts the shared one is wide */
        const char *branch;      /* whether a dense branch as wide as the model is beside experts */
        const char *every;       /* so many blocks one is routed */
        const char *dense_first; /* so many first blocks are not */
        const char *routed, *dense; /* lists of blocks: those alone are routed; these are not */
        const char *further;        /* blocks behind the last */
    };
    const char *all[20];
} sl_family_keys;
_Static_assert(sizeof(sl_family_keys) == 20 * sizeof(char *), "all is all of them");

#define SL_LLAMA_KEYS                                                                              \
    .layers = "num_hidden_layers", .d_model = "hidden_size",                                       \
    .max_position = "max_position_embeddings", .heads = "num_attention_heads",                     \
    .kv_heads = "num_key_value_heads", .top_k = "num_experts_per_tok"

/* What holds where the file is silent. 0: it must not be, but for kv_heads (as many as heads),
 * every (1), and what may be missing altogether. */
typedef struct sl_family_given {
    uint32_t kv_heads, window, experts, top_k, expert_width, n_shared, every, dense_first;
} sl_family_given;

typedef struct sl_family {
    const char *name;       /* class in config.json */
    const char *model_type; /* beside it, or */
    const char *other_type; /* in files that share the class; NULL: none */
    const char *nested;     /* key of the object that has all of this; NULL: the file itself */
    sl_gguf_arch gguf;      /* its name NULL: there are no such files */
    sl_arch arch;           /* tensors */

    /* What counts: both readers of config.json. */
    sl_family_keys key;
    sl_family_given given;
    bool bias_given, o_bias; /* where there are biases: when the file is silent; behind attention */
    bool qk_norm;            /* of queries and keys, unless the file says otherwise */
    bool latent;             /* attention by latents */
    bool windows;            /* every other block has the window, or those that layer_types names */
    /* Of a family that has linear attention: in which blocks, and its sizes. Blocks are counted. */
    sl_status (*read_delta)(sl_json root, sl_model_spec *m, sl_err *err);

    /* What computing needs besides, with what transformers assumes when a key is absent, and what
     * is not computed: the engine's alone. */
    double rope_theta, rms_eps;
    double rope_part;   /* partial_rotary_factor; 0: all */
    double route_scale; /* routed_scaling_factor; 0: there is none */
    bool norm_topk;
    bool norm_topk_fixed;  /* norm_topk_prob cannot be false */
    bool yarn;             /* rope_scaling may be YaRN */
    bool mscale;           /* ... with mscale and mscale_all_dim */
    bool llama3;           /* rope_scaling may be llama3 */
    bool head_dim_derived; /* always hidden_size / num_attention_heads */
    bool own_types;        /* read_own reads layer_types */
    bool apart;            /* what other classes use is unknown to it */
    const char *quant;     /* the one quant_method there may be */
    /* What the table of all keys says of these is not so for this class. */
    sl_hf_keys own;
    sl_hf_keys outer; /* what the file may have beside `nested` */
    /* After all else; NULL: nothing. read_quant only where there is a quantization_config. */
    sl_status (*read_own)(sl_json root, sl_model_spec *m, sl_err *err);
    sl_status (*read_quant)(sl_json root, sl_json quant, sl_model_spec *m, sl_err *err);
} sl_family;

/* In the order of messages; those of one name in GGUF stand together. */
extern const sl_family *const sl_families[];
extern const size_t sl_n_families;

/* By the class of config.json; NULL: none. */
const sl_family *sl_family_of_class(sl_span name);
/* The one that `architectures` names; SL_ERR_UNSUPPORTED lists those there are behind `unknown`. */
sl_status sl_family_read(sl_json root, const char *unknown, const sl_family **out,
                         sl_err *err) SL_MUST_CHECK;

/* What the planner says of a model that has been read, but for its name and the bytes of its
 * weights. */
sl_shape sl_family_shape(const sl_family *f, const sl_model_spec *m);

#endif
