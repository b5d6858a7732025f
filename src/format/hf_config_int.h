/* Inside of reading config.json: the rows of families, and what their readers share.
 *
 * A class whose file looks like those of the Llama line is a row with what differs (read_own after
 * the common part); one that is written otherwise brings read_all. Each family that needs more than
 * a few lines has a file of its own, hf_<family>.c. Thread: any. */
#ifndef SL_FORMAT_HF_CONFIG_INT_H
#define SL_FORMAT_HF_CONFIG_INT_H

#include "format/family.h"
#include "format/hf_config.h"

extern const sl_family sl_hf_qwen3, sl_hf_qwen2, sl_hf_mixtral, sl_hf_olmoe, sl_hf_glm4;
extern const sl_family sl_hf_deepseek_v2, sl_hf_deepseek_v3;
extern const sl_family sl_hf_dbrx;                        /* hf_dbrx.c */
extern const sl_family sl_hf_arctic;                      /* hf_arctic.c */
extern const sl_family sl_hf_gpt_oss;                     /* hf_gpt_oss.c */
extern const sl_family sl_hf_llama4, sl_hf_llama4_nested; /* hf_llama4.c */

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
sl_status sl_hf_rope(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) SL_MUST_CHECK;
/* What any class says of its sizes: width, blocks, vocabulary, context, whether the head is tied.
 */
sl_status sl_hf_sizes(sl_json root, const sl_family *f, sl_json_need context, sl_model_spec *m,
                      sl_err *err) SL_MUST_CHECK;
/* For describe: n_shared_experts, as wide as so many experts. */
sl_status sl_hf_shape_shared(sl_json root, sl_shape *s, sl_err *err) SL_MUST_CHECK;
/* n_group, topk_group. n_experts and top_k are known. */
sl_status sl_hf_groups(sl_json root, sl_model_spec *m, sl_err *err) SL_MUST_CHECK;
/* Numbers the routed blocks of m->ffn. SL_ERR_UNSUPPORTED when there is none. */
sl_status sl_hf_number_blocks(sl_json root, sl_model_spec *m, sl_err *err) SL_MUST_CHECK;

#endif
