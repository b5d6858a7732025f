/* Inside of reading config.json: keys, classes, and what their readers share.
 *
 * A class whose file looks like those of the Llama line is a row of sl_hf_classes with what differs
 * (read_own after the common part); one that is written otherwise brings read_all. Each family that
 * needs more than a few lines has a file of its own, hf_<family>.c. Thread: any. */
#ifndef SL_FORMAT_HF_CONFIG_INT_H
#define SL_FORMAT_HF_CONFIG_INT_H

#include "format/hf_config.h"
#include "format/json.h"

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

/* Classes whose config we read, with what transformers assumes when a key is absent. */
typedef struct sl_hf_class {
    const char *name, *model_type;
    const char *other_type; /* model_type of files that share the class; NULL: none */
    double rope_theta, rms_eps;
    double rope_part;         /* partial_rotary_factor */
    const char *expert_width; /* key of the width of one expert */
    bool qk_norm, sparse_step, window, norm_topk;
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
} sl_hf_class;

extern const sl_hf_class sl_hf_deepseek_v2, sl_hf_deepseek_v3;
extern const sl_hf_class sl_hf_dbrx;    /* hf_dbrx.c */
extern const sl_hf_class sl_hf_arctic;  /* hf_arctic.c */
extern const sl_hf_class sl_hf_gpt_oss; /* hf_gpt_oss.c */

/* Supported classes, in the order of messages. */
extern const sl_hf_class *const sl_hf_classes[];
extern const size_t sl_hf_n_classes;
extern const sl_hf_class sl_hf_llama4, sl_hf_llama4_nested; /* hf_llama4.c */

/* What config.json of any class may hold, and generation_config.json. */
const sl_hf_key *sl_hf_config_keys(size_t *n);
const sl_hf_key *sl_hf_generation_keys(size_t *n);
/* NULL when it is not in the table. */
const sl_hf_key *sl_hf_find_key(const char *key, const sl_hf_key *table, size_t n);
/* Each key of the object by the tables `own` and `first`, then by that of generation options. */
sl_status sl_hf_check_keys(sl_json root, const sl_hf_key *own, size_t n_own, const sl_hf_key *first,
                           size_t n_first, sl_err *err) SL_MUST_CHECK;

/* *out keeps its value when an optional key is absent. */
sl_status sl_hf_u32(sl_json root, const char *key, sl_json_need need, uint32_t min, uint32_t max,
                    uint32_t *out, sl_err *err) SL_MUST_CHECK;
/* What an optional key has to be if it is there; `why` names it in the message. */
sl_status sl_hf_expect_u32(sl_json root, const char *key, uint32_t want, const char *why,
                           sl_err *err) SL_MUST_CHECK;
/* rope_theta, rope_scaling, rope_parameters -> rope_theta, rope_dim, yarn. head_dim is known. */
sl_status sl_hf_rope(sl_json root, const sl_hf_class *c, sl_model_spec *m,
                     sl_err *err) SL_MUST_CHECK;
/* n_group, topk_group. n_experts and top_k are known. */
sl_status sl_hf_groups(sl_json root, sl_model_spec *m, sl_err *err) SL_MUST_CHECK;
/* Numbers the routed blocks of m->ffn. SL_ERR_UNSUPPORTED when there is none. */
sl_status sl_hf_number_blocks(sl_json root, sl_model_spec *m, sl_err *err) SL_MUST_CHECK;

#endif
