/* Metadata of a GGUF file -> sl_model_spec.
 *
 * As with config.json (format/hf_config.h), every key of the architecture is either used, known to
 * leave results alone, accepted only with the value that means "off", or refused by name. Thread:
 * any. */
#ifndef SL_FORMAT_GGUF_CONFIG_H
#define SL_FORMAT_GGUF_CONFIG_H

#include "format/gguf.h"

/* A class of src/model/arch.c under its name in GGUF (general.architecture). */
typedef struct sl_gguf_arch {
    const char *name;  /* "llama" */
    const char *class; /* "MixtralForCausalLM" */
    bool qk_norm;
    bool rope_pairs;   /* sl_model_spec.rope_pairs */
    bool norm_topk;    /* what readers take for granted */
    bool shared;       /* a shared expert in each routed block */
    bool llama4;       /* what its files leave unsaid, see SL_GGUF_LLAMA4_CHUNK */
    const char *width; /* key of the width of one expert, without the architecture */
} sl_gguf_arch;

/* Files of llama4 do not say these; every fourth block rotates nothing and sees all. 128 experts
 * mean queries and keys without norms, attention.sliding_window 0 no chunks and rotation in all. */
#define SL_GGUF_LLAMA4_CHUNK  8192u
#define SL_GGUF_LLAMA4_GROWTH 0.1f
#define SL_GGUF_LLAMA4_EVERY  4u
#define SL_GGUF_ROPE_FACTORS  "rope_freqs.weight" /* what frequencies are divided by */

/* NULL when there is none; by the name of the class. */
const sl_gguf_arch *sl_gguf_arch_of_class(const char *class);

/* Fills everything of *spec but n_params, n_params_active and hash, and the sampling that the file
 * recommends. */
sl_status sl_gguf_config_parse(const sl_gguf *g, sl_model_spec *spec, sl_generation_spec *gen,
                               sl_err *err) SL_MUST_CHECK;

#endif
