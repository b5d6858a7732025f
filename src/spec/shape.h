/* The hyper-parameters of a decoder with routed experts, of any published family: what planner and
 * simulator need to count parameters, bytes and operations (src/plan/account.h) without weights.
 * sl_model_spec (spec/model.h) is narrower: what the engine can run.
 * Filled by src/format/shape_config.h or from a preset. Thread: immutable after filling. */
#ifndef SL_SPEC_SHAPE_H
#define SL_SPEC_SHAPE_H

#include "spec/model.h"

#include <stdbool.h>
#include <stdint.h>

#define SL_SHAPE_NAME 64

typedef enum sl_attention_kind {
    SL_ATTENTION_GQA, /* n_kv_heads == n_heads: plain multi-head attention */
    SL_ATTENTION_MLA, /* keys and values of all heads from one latent row (DeepSeek-V2) */
} sl_attention_kind;

typedef struct sl_shape {
    char name[SL_SHAPE_NAME];
    uint32_t n_layers;      /* blocks, without those that only draft tokens (MTP), ... */
    uint32_t n_mtp;         /* ...which are so many */
    uint32_t n_dense_first; /* so many first blocks are dense */
    uint32_t moe_every;     /* >= 1: of those after them, each moe_every-th is routed... */
    uint32_t n_odd;         /* ...but for these: bit l % 8 of odd[l / 8], block l is dense */
    uint8_t odd[SL_MAX_LAYERS / 8];
    uint32_t d_model, vocab;
    bool tied_head; /* the head is the embedding */

    sl_attention_kind attention;
    uint32_t n_heads, n_kv_heads;
    uint32_t qk_head_dim;               /* MLA: qk_nope_dim + qk_rope_dim */
    uint32_t v_head_dim;                /* GQA: qk_head_dim */
    uint32_t q_lora, kv_lora;           /* MLA: widths of the latents; q_lora 0: none */
    uint32_t qk_nope_dim, qk_rope_dim;  /* MLA */
    uint32_t window, n_windowed_layers; /* blocks whose rows see the last `window` keys only */

    bool gated; /* queries come with gates of the same size */
    /* Blocks of linear attention (spec/model.h), whose state takes the place of keys and values. */
    uint32_t n_linear_layers;
    uint32_t delta_channels, delta_taps, delta_heads, delta_out; /* delta_heads: of values */
    uint32_t delta_state;                                        /* values of all heads' states */

    uint32_t n_experts, top_k;
    uint32_t d_ff_expert;
    uint32_t d_ff_shared;   /* all shared experts of a block together; 0: none */
    uint32_t d_ff_dense;    /* of dense blocks; 0: there are none */
    uint32_t d_ff_residual; /* dense branch beside the experts (Arctic); 0: none */

    /* small tensors, so that totals are exact */
    uint32_t norms_per_layer;            /* of d_model values each */
    bool qk_norm;                        /* one weight a head dimension for q and one for k */
    bool qk_norm_wide;                   /* those of all heads instead (OLMoE) */
    bool qkv_bias, o_bias, expert_bias;  /* one value an output of those matrices */
    bool router_bias, shared_gate, sink; /* n_experts; d_model (Qwen2-MoE); n_heads (gpt-oss) */

    double attention_weight_bytes; /* per weight: attention, router, dense, shared, embedding */
    double expert_weight_bytes;    /* per weight of routed experts */
    double kv_value_bytes;         /* per value of the KV cache */
    uint32_t max_position;         /* 0: unknown */
} sl_shape;

static inline bool sl_shape_is_moe(const sl_shape *s, uint32_t layer) {
    if (layer < s->n_dense_first || (layer - s->n_dense_first + 1) % s->moe_every != 0)
        return false;
    return (s->odd[layer / 8] >> layer % 8 & 1) == 0;
}

/* Makes a block dense that the pattern has as routed. */
static inline void sl_shape_make_dense(sl_shape *s, uint32_t layer) {
    if (!sl_shape_is_moe(s, layer)) return;
    s->odd[layer / 8] |= (uint8_t)(1u << layer % 8);
    s->n_odd++;
}

static inline uint32_t sl_shape_n_moe(const sl_shape *s) {
    return (s->n_layers - s->n_dense_first) / s->moe_every - s->n_odd;
}

static inline uint32_t sl_shape_n_dense(const sl_shape *s) {
    return s->n_layers - sl_shape_n_moe(s);
}

/* Values of the KV cache that a block keeps of a position. */
static inline uint32_t sl_shape_kv_values(const sl_shape *s) {
    if (s->attention == SL_ATTENTION_MLA) return s->kv_lora + s->qk_rope_dim;
    return s->n_kv_heads * (s->qk_head_dim + s->v_head_dim);
}

#endif
