/* What the tables of tensors of families share. Inside of src/format. Thread: any (constant). */
#ifndef SL_FORMAT_TENSORS_H
#define SL_FORMAT_TENSORS_H

#include "format/arch.h"

#define BLOCK "model.layers.{L}."
#define ATTN  SL_STAGE_ATTENTION
#define EXP   SL_STAGE_EXPERT

#define TENSORS(list) .tensor = list, .n_tensors = SL_LEN(list)
#define STORES(list)  .store = list, .n_stores = SL_LEN(list)

/* clang-format off */
/* What all decoders here share: role, scope, stage, name, rows, columns. */
#define FRAME_TENSORS                                                                                                           \
    {SL_ROLE_EMBED,      SL_SCOPE_MODEL, ATTN,          "model.embed_tokens.weight",               SL_DIM_VOCAB, SL_DIM_MODEL}, \
    {SL_ROLE_FINAL_NORM, SL_SCOPE_MODEL, SL_STAGE_HEAD, "model.norm.weight",                       SL_DIM_MODEL, SL_DIM_NONE},  \
    {SL_ROLE_LM_HEAD,    SL_SCOPE_MODEL, SL_STAGE_HEAD, "lm_head.weight",                          SL_DIM_VOCAB, SL_DIM_MODEL}, \
    {SL_ROLE_ATTN_NORM,  SL_SCOPE_BLOCK, ATTN,          BLOCK "input_layernorm.weight",            SL_DIM_MODEL, SL_DIM_NONE},  \
    {SL_ROLE_FFN_NORM,   SL_SCOPE_BLOCK, ATTN,          BLOCK "post_attention_layernorm.weight",   SL_DIM_MODEL, SL_DIM_NONE}

/* Those of the Llama line. */
#define COMMON_TENSORS                                                                                                          \
    FRAME_TENSORS,                                                                                                              \
    {SL_ROLE_Q,          SL_SCOPE_BLOCK, ATTN,          BLOCK "self_attn.q_proj.weight",           SL_DIM_Q,     SL_DIM_MODEL}, \
    {SL_ROLE_K,          SL_SCOPE_BLOCK, ATTN,          BLOCK "self_attn.k_proj.weight",           SL_DIM_KV,    SL_DIM_MODEL}, \
    {SL_ROLE_V,          SL_SCOPE_BLOCK, ATTN,          BLOCK "self_attn.v_proj.weight",           SL_DIM_KV,    SL_DIM_MODEL}, \
    {SL_ROLE_O,          SL_SCOPE_BLOCK, ATTN,          BLOCK "self_attn.o_proj.weight",           SL_DIM_MODEL, SL_DIM_Q}

/* What several of them have. */
#define MLP_EXPERTS                                                                                                           \
    {SL_ROLE_EXPERT_GATE, SL_SCOPE_EXPERT, EXP, BLOCK "mlp.experts.{E}.gate_proj.weight", SL_DIM_FF_EXPERT, SL_DIM_MODEL},    \
    {SL_ROLE_EXPERT_UP,   SL_SCOPE_EXPERT, EXP, BLOCK "mlp.experts.{E}.up_proj.weight",   SL_DIM_FF_EXPERT, SL_DIM_MODEL},    \
    {SL_ROLE_EXPERT_DOWN, SL_SCOPE_EXPERT, EXP, BLOCK "mlp.experts.{E}.down_proj.weight", SL_DIM_MODEL,     SL_DIM_FF_EXPERT}
#define MLP_DENSE                                                                                                    \
    {SL_ROLE_DENSE_GATE, SL_SCOPE_DENSE_BLOCK, ATTN, BLOCK "mlp.gate_proj.weight", SL_DIM_FF_DENSE, SL_DIM_MODEL},   \
    {SL_ROLE_DENSE_UP,   SL_SCOPE_DENSE_BLOCK, ATTN, BLOCK "mlp.up_proj.weight",   SL_DIM_FF_DENSE, SL_DIM_MODEL},   \
    {SL_ROLE_DENSE_DOWN, SL_SCOPE_DENSE_BLOCK, ATTN, BLOCK "mlp.down_proj.weight", SL_DIM_MODEL,    SL_DIM_FF_DENSE}
#define MLP_SHARED                                                                                                                   \
    {SL_ROLE_SHARED_GATE, SL_SCOPE_MOE_BLOCK, ATTN, BLOCK "mlp.shared_experts.gate_proj.weight", SL_DIM_FF_SHARED, SL_DIM_MODEL},    \
    {SL_ROLE_SHARED_UP,   SL_SCOPE_MOE_BLOCK, ATTN, BLOCK "mlp.shared_experts.up_proj.weight",   SL_DIM_FF_SHARED, SL_DIM_MODEL},    \
    {SL_ROLE_SHARED_DOWN, SL_SCOPE_MOE_BLOCK, ATTN, BLOCK "mlp.shared_experts.down_proj.weight", SL_DIM_MODEL,     SL_DIM_FF_SHARED}
/* One shared expert, weighed by a gate. */
#define MLP_SHARED_GATED                                                                                                             \
    {SL_ROLE_SHARED_GATE,  SL_SCOPE_MOE_BLOCK, ATTN, BLOCK "mlp.shared_expert.gate_proj.weight", SL_DIM_FF_SHARED, SL_DIM_MODEL},    \
    {SL_ROLE_SHARED_UP,    SL_SCOPE_MOE_BLOCK, ATTN, BLOCK "mlp.shared_expert.up_proj.weight",   SL_DIM_FF_SHARED, SL_DIM_MODEL},    \
    {SL_ROLE_SHARED_DOWN,  SL_SCOPE_MOE_BLOCK, ATTN, BLOCK "mlp.shared_expert.down_proj.weight", SL_DIM_MODEL,     SL_DIM_FF_SHARED}, \
    {SL_ROLE_SHARED_SCALE, SL_SCOPE_MOE_BLOCK, ATTN, BLOCK "mlp.shared_expert_gate.weight",      SL_DIM_ONE,       SL_DIM_MODEL}
/* Of the first block behind the last (num_nextn_predict_layers). */
#define MTP                                                                                                 \
    {SL_ROLE_MTP_TOKEN_NORM, SL_SCOPE_MTP, ATTN, BLOCK "enorm.weight",            SL_DIM_MODEL, SL_DIM_NONE},        \
    {SL_ROLE_MTP_STATE_NORM, SL_SCOPE_MTP, ATTN, BLOCK "hnorm.weight",            SL_DIM_MODEL, SL_DIM_NONE},        \
    {SL_ROLE_MTP_IN,         SL_SCOPE_MTP, ATTN, BLOCK "eh_proj.weight",          SL_DIM_MODEL, SL_DIM_MODEL_TWICE}, \
    {SL_ROLE_MTP_NORM,       SL_SCOPE_MTP, ATTN, BLOCK "shared_head.norm.weight", SL_DIM_MODEL, SL_DIM_NONE}
#define QKV_BIAS                                                                                   \
    {SL_ROLE_Q_BIAS, SL_SCOPE_BLOCK, ATTN, BLOCK "self_attn.q_proj.bias", SL_DIM_Q,  SL_DIM_NONE}, \
    {SL_ROLE_K_BIAS, SL_SCOPE_BLOCK, ATTN, BLOCK "self_attn.k_proj.bias", SL_DIM_KV, SL_DIM_NONE}, \
    {SL_ROLE_V_BIAS, SL_SCOPE_BLOCK, ATTN, BLOCK "self_attn.v_proj.bias", SL_DIM_KV, SL_DIM_NONE}
/* The norm before the feed-forward is the one after attention in GGUF. */
#define GGUF_FFN_NORM {"post_attention_norm.weight", SL_ROLE_FFN_NORM, false}
/* clang-format on */

#endif
