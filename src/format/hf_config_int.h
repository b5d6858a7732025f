/* Inside of reading config.json: the rows of families, and what their readers share.
 *
 * What counts is read by a family's row alone (hf_read.c); what only computing needs is read by
 * flags of the row and by its read_own (hf_config.c). Each family that needs more than a few lines
 * has a file of its own, hf_<family>.c. Thread: any. */
#ifndef SL_FORMAT_HF_CONFIG_INT_H
#define SL_FORMAT_HF_CONFIG_INT_H

#include "format/family.h"
#include "format/hf_config.h"

extern const sl_family sl_hf_qwen3, sl_hf_qwen2, sl_hf_mixtral, sl_hf_olmoe, sl_hf_glm4;
extern const sl_family sl_hf_deepseek_v2, sl_hf_deepseek_v3;
extern const sl_family sl_hf_qwen3_next;                  /* hf_qwen3_next.c */
extern const sl_family sl_hf_dbrx;                        /* hf_dbrx.c */
extern const sl_family sl_hf_arctic;                      /* hf_arctic.c */
extern const sl_family sl_hf_gpt_oss;                     /* hf_gpt_oss.c */
extern const sl_family sl_hf_llama4, sl_hf_llama4_nested; /* hf_llama4.c */

#define SL_HF_SLIDING "sliding_attention" /* in layer_types, of a block with a window */

/* What config.json of any class may hold, and generation_config.json. */
extern const sl_hf_keys sl_hf_config_keys, sl_hf_generation_keys;
/* Each key of the object by the tables `own` and `first`, then by that of generation options. */
sl_status sl_hf_check_keys(sl_json root, sl_hf_keys own, sl_hf_keys first,
                           sl_err *err) SL_MUST_CHECK;
/* Each key of an object of a family's file by the table `own`, then by that of all classes and by
 * what the family names its sizes. */
sl_status sl_hf_check_family(sl_json obj, const sl_family *f, sl_hf_keys own,
                             sl_err *err) SL_MUST_CHECK;

/* What counts, by the family's row: the fields of *m that sl_family_shape reads, wider than the
 * engine may compute, and n_mtp. `root` is the object that `nested` names where it names one. */
sl_status sl_hf_read(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) SL_MUST_CHECK;

/* *out keeps its value when an optional key is absent, and when key is NULL. */
sl_status sl_hf_u32(sl_json root, const char *key, sl_json_need need, uint32_t min, uint32_t max,
                    uint32_t *out, sl_err *err) SL_MUST_CHECK;
/* What an optional key has to be if it is there; `why` names it in the message. */
sl_status sl_hf_expect_u32(sl_json root, const char *key, uint32_t want, const char *why,
                           sl_err *err) SL_MUST_CHECK;
/* rope_theta, rope_scaling, rope_parameters -> rope_theta, rope_dim, yarn. Heads are known. */
sl_status sl_hf_rope(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) SL_MUST_CHECK;
/* n_group, topk_group. n_experts and top_k are known. */
sl_status sl_hf_groups(sl_json root, sl_model_spec *m, sl_err *err) SL_MUST_CHECK;
/* A family's read_quant: F8_E4M3 with scales of blocks. */
sl_status sl_hf_read_fp8(sl_json root, sl_json quant, sl_model_spec *m, sl_err *err) SL_MUST_CHECK;
/* Refuses latents that the engine does not compute. */
sl_status sl_hf_check_latents(sl_json root, const sl_model_spec *m, sl_err *err) SL_MUST_CHECK;

#endif
