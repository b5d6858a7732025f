/* What a model is, as plain numbers: everything planner, simulator and engine need without weights.
 * Filled by src/format from config.json. Thread: immutable after filling. */
#ifndef SL_SPEC_MODEL_H
#define SL_SPEC_MODEL_H

#include "spec/kv_type.h"
#include "spec/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Formats of weights: name, values of a block, bytes of a block. The first are plain values, the
 * others blocks of GGUF (quant/block.h); a row of a matrix is a whole number of blocks. */
#define SL_DTYPE_LIST(X)                                                                           \
    X(F32, 1, 4)                                                                                   \
    X(F16, 1, 2)                                                                                   \
    X(BF16, 1, 2)                                                                                  \
    X(Q8_0, 32, 34)                                                                                \
    X(Q4_0, 32, 18) X(MXFP4, 32, 17) X(Q4_K, 256, 144) X(Q5_K, 256, 176) X(Q6_K, 256, 210)

typedef enum sl_dtype {
#define SL_DTYPE_ENUM(name, values, bytes) SL_##name,
    SL_DTYPE_LIST(SL_DTYPE_ENUM)
#undef SL_DTYPE_ENUM
        SL_DTYPE_COUNT,
    SL_DTYPE_PLAIN = SL_Q8_0, /* number of plain types */
    SL_F8_E4M3 =
        SL_DTYPE_COUNT, /* not a format by itself: its values need the scales of a matrix */
} sl_dtype;

/* Values of a row, and rows, that share a scale of F8_E4M3. */
#define SL_F8_BLOCK 128u

static inline bool sl_dtype_is_plain(sl_dtype t) {
    return t < SL_DTYPE_PLAIN;
}

/* Bytes of one value of a plain type. */
static inline uint32_t sl_dtype_bytes(sl_dtype t) {
    return t == SL_F32 ? 4 : 2;
}

/* Values of a block; 1 for plain types. */
static inline uint32_t sl_dtype_block(sl_dtype t) {
    return t < SL_DTYPE_PLAIN || t == SL_F8_E4M3 ? 1 : t < SL_Q4_K ? 32 : 256;
}

static inline uint32_t sl_dtype_block_bytes(sl_dtype t) {
    switch (t) {
#define SL_DTYPE_BYTES(name, values, bytes)                                                        \
    case SL_##name:                                                                                \
        return bytes;
        SL_DTYPE_LIST(SL_DTYPE_BYTES)
#undef SL_DTYPE_BYTES
    case SL_F8_E4M3:
        return 1;
    default:
        return 0;
    }
}

/* Bytes of n values, a whole number of blocks. */
static inline size_t sl_dtype_row_bytes(sl_dtype t, size_t n) {
    return n / sl_dtype_block(t) * sl_dtype_block_bytes(t);
}

/* Static name: "F32", "Q4_K". */
static inline const char *sl_dtype_name(sl_dtype t) {
    switch (t) {
#define SL_DTYPE_NAME(name, values, bytes)                                                         \
    case SL_##name:                                                                                \
        return #name;
        SL_DTYPE_LIST(SL_DTYPE_NAME)
#undef SL_DTYPE_NAME
    case SL_F8_E4M3:
        return "F8_E4M3";
    default:
        return "unknown";
    }
}

/* How the router turns logits into gates; equations in docs/numbers.md. */
typedef enum sl_router {
    SL_ROUTER_SOFTMAX_TOPK,
    SL_ROUTER_SIGMOID_TOPK,   /* sigmoids of the largest logits */
    SL_ROUTER_SIGMOID_GROUPS, /* "noaux_tc": biased sigmoids, the best groups first */
} sl_router;

typedef enum sl_ffn_kind { SL_FFN_DENSE, SL_FFN_MOE } sl_ffn_kind;

/* Which positions a block's queries see, up to their own: all, the last sliding_window, those since
 * the last multiple of attn_chunk. */
typedef enum sl_sight { SL_SIGHT_ALL, SL_SIGHT_WINDOW, SL_SIGHT_CHUNK } sl_sight;

/* YaRN: slow rotations are stretched, fast ones kept (docs/numbers.md). */
typedef struct sl_yarn {
    float factor;               /* of the context; 0: no YaRN */
    float beta_fast, beta_slow; /* turns within the original context between which it blends */
    float attention;            /* of sin and cos */
    float scores;               /* of all scores besides (mscale_all_dim); 0: 1 */
    uint32_t original;          /* context that was trained first */
    bool between;               /* where it blends begins and ends between pairs */
} sl_yarn;

/* rope_type "llama3": long waves are stretched, short ones kept (docs/numbers.md). */
typedef struct sl_long_waves {
    float factor; /* of long waves; 0: none is stretched */
    float low,
        high; /* turns within the original context below and above which a wave is long, short */
    uint32_t original; /* context that was trained first */
} sl_long_waves;

typedef struct sl_model_spec {
    char arch[64];       /* class name in config.json, e.g. "Qwen3MoeForCausalLM" */
    uint32_t n_layers;   /* transformer blocks */
    uint32_t n_moe;      /* blocks whose feed-forward is routed */
    uint32_t d_model;    /* hidden size */
    uint32_t n_heads;    /* query heads */
    uint32_t n_kv_heads; /* key/value heads; n_heads is a multiple */
    uint32_t head_dim;   /* of keys as they are cached; with kv_lora: kv_lora + rope_dim */
    uint32_t kv_lora;  /* MLA: width of the latent that keys and values come from; 0: no MLA, and */
    uint32_t q_lora;   /* what follows is 0. Of the queries' latent; 0: they have none */
    uint32_t nope_dim; /* leading values of a query that are not rotated; rope_dim follow */
    uint32_t v_dim;    /* of a head's values */
    uint32_t vocab;
    uint32_t d_ff_dense;  /* width of dense blocks, 0 when there are none */
    uint32_t d_ff_expert; /* width of one expert */
    uint32_t d_ff_shared; /* width of the shared expert of a routed block, 0 when there is none */
    uint32_t n_experts;
    uint32_t top_k;
    uint32_t n_groups;       /* of experts, of equal size; 0: the router knows none */
    uint32_t top_groups;     /* groups that a token's experts come from */
    uint32_t max_position;   /* context the checkpoint was made for */
    uint32_t sliding_window; /* of blocks with SL_SIGHT_WINDOW; 0: there are none */
    uint32_t attn_chunk;     /* of blocks with SL_SIGHT_CHUNK; 0: there are none */
    float rms_eps;
    float rope_theta;
    uint32_t rope_dim; /* leading values of a head that are rotated, even */
    sl_yarn yarn;
    sl_long_waves long_waves;
    float query_floor; /* queries that are not rotated grow with each so many positions; 0: never */
    float query_growth;
    float clip_qkv;    /* queries, keys and values are kept within +-this; 0: they are not */
    float route_scale; /* of a router that scales its weights at the end */
    float glu_limit;   /* of experts whose SwiGLU is clamped (docs/numbers.md); 0: none is */
    uint32_t n_mtp;    /* blocks after the last that predict further tokens; only guesses
                        * (sched/draft.h)    ever use one, the first */
    bool kv_parts;     /* MLA: W_UK, transposed, and W_UV are tensors of their own */
    bool fp8;          /* matrices may be F8_E4M3 with scales of blocks */
    bool qk_norm;      /* RMSNorm of queries and keys; the architecture says over what */
    bool qk_unit;      /* rotated queries and keys are divided by their root mean square */
    bool gate_input;   /* a gate weighs the row that its expert receives, not the one it gives */
    bool qkv_bias;     /* q, k and v carry a bias; o where the architecture has one */
    bool norm_topk;    /* router weights of the chosen experts are rescaled to sum 1 */
    bool dense_branch; /* experts read what their block was given; the shared one, the dense branch,
                          the stream after attention by a norm of its own (Arctic) */
    bool tied_head;    /* the head is the embedding */
    bool mxfp4;        /* matrices of experts are blocks of MXFP4 with scales apart */
    bool weightless;   /* the folder has a config.json and no weights */
    bool rope_pairs;   /* rows 2i, 2i+1 of q and k heads are one rotation */
    bool gated;        /* each head's queries come with a gate, whose sigmoid weighs its result */
    bool norm_past_one; /* weights of norms are stored less 1 */
    bool delta_parts;   /* linear attention: the gates of results are a matrix of their own, behind
                         * one whose rows are in the order of the convolution's channels */
    bool delta_rates;   /* and its rates are stored, negative, not their logarithms */
    /* Blocks of linear attention (gated DeltaNet, arXiv:2412.06464), which have a state a request
     * in the place of keys and values: 0 where there are none. Value heads are a multiple of key
     * heads; a convolution over so many positions is before them. */
    uint32_t n_linear;
    uint32_t delta_k_heads, delta_v_heads, delta_k_dim, delta_v_dim, delta_taps;
    sl_kv_type kv_type; /* of the pages of the deployment that runs it, as its plan says; no file of
                         * a model has a word about it */
    uint8_t ffn[SL_MAX_LAYERS];            /* sl_ffn_kind of each block */
    uint8_t sight[SL_MAX_LAYERS];          /* sl_sight of each block */
    uint8_t unrotated[SL_MAX_LAYERS];      /* 1: a block's queries and keys are not rotated */
    uint8_t linear[SL_MAX_LAYERS];         /* 1: a block of linear attention */
    uint16_t linear_before[SL_MAX_LAYERS]; /* blocks of linear attention before a block */
    uint16_t moe_index[SL_MAX_LAYERS];     /* MoE ordinal of a block, when it is one */
    uint16_t moe_layer[SL_MAX_LAYERS];     /* block of a MoE ordinal */
    uint32_t n_eos;
    uint32_t eos[SL_MAX_EOS]; /* ids that end generation (config.json and generation_config.json) */
    int64_t bos;              /* -1: none */
    uint64_t n_params, n_params_active;
    uint8_t hash[32]; /* of config and weights' headers: workers of one engine must agree */
} sl_model_spec;

/* Values of one query of a head, before it meets the cache. */
static inline uint32_t sl_query_dim(const sl_model_spec *m) {
    return m->kv_lora ? m->nope_dim + m->rope_dim : m->head_dim;
}

/* Number of the block that guesses use, of a model that has one: computations take it for a routed
 * block behind the last, which no block count has in it. */
static inline uint32_t sl_mtp_block(const sl_model_spec *m) {
    return m->n_layers;
}

/* Values of a row before a block's linear attention: queries, keys and values, which the
 * convolution is over, and the gates of its results; the values of its results. */
static inline uint32_t sl_delta_channels(const sl_model_spec *m) {
    return 2 * m->delta_k_heads * m->delta_k_dim + m->delta_v_heads * m->delta_v_dim;
}
static inline uint32_t sl_delta_out(const sl_model_spec *m) {
    return m->delta_v_heads * m->delta_v_dim;
}

/* Whether sizes of linear attention that are each within their limits can be computed. */
static inline bool sl_delta_fits(const sl_model_spec *m) {
    return m->delta_v_heads % m->delta_k_heads == 0 &&
           m->delta_v_heads / m->delta_k_heads * m->delta_v_dim <= SL_DELTA_VALUES;
}

/* The block behind the last is none. */
static inline bool sl_model_is_linear(const sl_model_spec *m, uint32_t block) {
    return block < m->n_layers && m->linear[block];
}

/* Fills n_linear and linear_before from linear, also of the block behind the last. */
static inline void sl_model_number_linear(sl_model_spec *m) {
    m->n_linear = 0;
    for (uint32_t i = 0; i < SL_MAX_LAYERS; i++) {
        m->linear_before[i] = (uint16_t)m->n_linear;
        m->n_linear += sl_model_is_linear(m, i);
    }
}

/* Each so many one block has keys and values, the others are of linear attention. */
static inline void sl_model_make_linear(sl_model_spec *m, uint32_t every) {
    for (uint32_t i = 0; i < m->n_layers; i++) m->linear[i] = (i + 1) % every != 0;
    sl_model_number_linear(m);
}

/* Fills n_moe, moe_index and moe_layer from ffn. */
static inline void sl_model_number_blocks(sl_model_spec *m) {
    m->n_moe = 0;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        if (m->ffn[i] != SL_FFN_MOE) continue;
        m->moe_index[i] = (uint16_t)m->n_moe;
        m->moe_layer[m->n_moe++] = (uint16_t)i;
    }
}

/* Whether `layer`, a block with experts, is the last that has some. */
static inline bool sl_is_last_moe(const sl_model_spec *m, uint32_t layer) {
    return m->moe_index[layer] + 1u == m->n_moe;
}

/* First position that a query at `pos` sees in a block. */
static inline uint32_t sl_sight_first(const sl_model_spec *m, uint32_t layer, uint32_t pos) {
    switch ((sl_sight)m->sight[layer]) {
    case SL_SIGHT_WINDOW:
        return pos >= m->sliding_window ? pos - m->sliding_window + 1 : 0;
    case SL_SIGHT_CHUNK:
        return pos - pos % m->attn_chunk;
    case SL_SIGHT_ALL:
        break;
    }
    return 0;
}

/* Keys that `rows` queries from position `done` on see together, of one kind of block. */
static inline double sl_sight_keys(const sl_model_spec *m, sl_sight kind, uint64_t done,
                                   uint64_t rows) {
    double sum[2];
    for (int i = 0; i < 2; i++) { /* of all queries before `at` */
        uint64_t at = done + (uint64_t)i * rows;
        double n = (double)at, w = m->sliding_window, c = m->attn_chunk;
        sum[i] = n * (n + 1) / 2;
        if (kind == SL_SIGHT_WINDOW && n > w) sum[i] = w * (w + 1) / 2 + (n - w) * w;
        if (kind == SL_SIGHT_CHUNK) {
            double rest = (double)(at % m->attn_chunk);
            sum[i] = (n - rest) / c * (c * (c + 1) / 2) + rest * (rest + 1) / 2;
        }
    }
    return sum[1] - sum[0];
}

/* Default sampling of generation_config.json; NaN or -1 where the file is silent. */
typedef struct sl_generation_spec {
    float temperature, top_p, repetition_penalty;
    int32_t top_k;
    int32_t do_sample; /* -1 unknown, 0, 1 */
} sl_generation_spec;

#endif
