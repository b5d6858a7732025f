/* Metadata of a GGUF file -> sl_model_spec.
 *
 * As with config.json (format/hf_config.h), every key of the architecture is either used, known to
 * leave results alone, accepted only with the value that means "off", or refused by name. Thread:
 * any. */
#ifndef SL_FORMAT_GGUF_CONFIG_H
#define SL_FORMAT_GGUF_CONFIG_H

#include "format/gguf.h"

/* What files of an architecture have beyond those of all: keys, and what follows from them. */
enum {
    SL_GGUF_SHARED_WIDTH = 1, /* a shared expert in each routed block, by its width */
    SL_GGUF_SHARED_COUNT = 2, /* ... by how many experts it is as wide as */
    SL_GGUF_GROUPS = 4,       /* of experts */
    SL_GGUF_SCALE = 8,        /* of the router's weights */
    SL_GGUF_LEADING = 16,     /* dense blocks before the routed ones */
    SL_GGUF_FURTHER = 32,     /* blocks behind the last that predict further tokens, not read */
    SL_GGUF_YARN = 64,        /* rope.scaling.type may be yarn */
    SL_GGUF_LATENT = 128,     /* latent attention */
    SL_GGUF_PARTIAL = 256,    /* rope.dimension_count may be below that of a head */
    SL_GGUF_WINDOWS = 512,    /* a window in every other block */
    SL_GGUF_CLAMP = 1024,     /* attention.clamp_kqv */
    SL_GGUF_NORM_MAY = 2048,  /* norms of queries and keys where the tensors are */
    SL_GGUF_WEIGHTS = 4096,   /* llama.cpp reads expert_weights_norm */
    SL_GGUF_LLAMA4 = 8192,    /* what its files leave unsaid, see SL_GGUF_LLAMA4_CHUNK */
    SL_GGUF_GPT_OSS = 16384,  /* ..., see SL_GGUF_GPT_OSS_LIMIT */
    SL_GGUF_BRANCH = 32768,   /* a dense branch beside experts */
    SL_GGUF_LINEAR = 65536,   /* blocks of linear attention, gates of queries in the others */
};

/* Values of expert_gating_func. */
enum {
    SL_GGUF_GATE_SOFTMAX = 1,
    SL_GGUF_GATE_SIGMOID = 2,
    SL_GGUF_GATE_CHOSEN = 3, /* softmax over those that are chosen */
};

#define SL_GGUF_EXPERT_WIDTH "expert_feed_forward_length"

/* A family under its name in GGUF (general.architecture). Two may share a name: then
 * expert_gating_func tells them apart, and the first is meant when it is missing. */
typedef struct sl_gguf_arch {
    const char *name;  /* "llama" */
    const char *width; /* key of the width of one expert, without the architecture */
    const char *eps;   /* key of what norms add; NULL: attention.layer_norm_rms_epsilon */
    uint32_t gating;   /* 0: SL_GGUF_GATE_SOFTMAX */
    uint32_t has;      /* bits of SL_GGUF_... */
    bool rope_pairs;   /* sl_model_spec.rope_pairs */
    bool norm_topk;    /* what readers take for granted */
} sl_gguf_arch;

/* Files of llama4 do not say these; every fourth block rotates nothing and sees all. 128 experts
 * mean queries and keys without norms, attention.sliding_window 0 no chunks and rotation in all. */
#define SL_GGUF_LLAMA4_CHUNK  8192u
#define SL_GGUF_LLAMA4_GROWTH 0.1f
#define SL_GGUF_LLAMA4_EVERY  4u
#define SL_GGUF_ROPE_FACTORS  "rope_freqs.weight" /* what frequencies are divided by */

/* Files of gpt-oss do not say these; YaRN blends between pairs, even blocks have the window. */
#define SL_GGUF_GPT_OSS_LIMIT 7.0f

/* NULL when there is none; by the name of the class. */
const sl_gguf_arch *sl_gguf_arch_of_class(const char *class);

/* mscale_all_dim of YaRN with latent attention, from the factor of all scores, and back; factor is
 * that of the context, above 1. */
double sl_gguf_mscale_of_scores(double factor, double scores);
double sl_gguf_scores_of_mscale(double factor, double mscale);
/* The factor of sin and cos that follows from that of the context where nothing else is said. */
double sl_gguf_yarn_attention(double factor);

/* Fills everything of *spec but n_params, n_params_active and hash, and the sampling that the file
 * recommends. */
sl_status sl_gguf_config_parse(const sl_gguf *g, sl_model_spec *spec, sl_generation_spec *gen,
                               sl_err *err) SL_MUST_CHECK;

#endif
