/* The rows of the architecture table, and what follows from one for a given model. */
#include "model/arch.h"

#include <stdio.h>
#include <string.h>

#define BLOCK "model.layers.{L}."
#define ATTN  SL_STAGE_ATTENTION
#define EXP   SL_STAGE_EXPERT

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
#define QKV_BIAS                                                                                   \
    {SL_ROLE_Q_BIAS, SL_SCOPE_BLOCK, ATTN, BLOCK "self_attn.q_proj.bias", SL_DIM_Q,  SL_DIM_NONE}, \
    {SL_ROLE_K_BIAS, SL_SCOPE_BLOCK, ATTN, BLOCK "self_attn.k_proj.bias", SL_DIM_KV, SL_DIM_NONE}, \
    {SL_ROLE_V_BIAS, SL_SCOPE_BLOCK, ATTN, BLOCK "self_attn.v_proj.bias", SL_DIM_KV, SL_DIM_NONE}

static const sl_arch_tensor qwen3_moe[] = {
    COMMON_TENSORS,
    {SL_ROLE_Q_NORM,      SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.q_norm.weight",            SL_DIM_HEAD,      SL_DIM_NONE},
    {SL_ROLE_K_NORM,      SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.k_norm.weight",            SL_DIM_HEAD,      SL_DIM_NONE},
    {SL_ROLE_ROUTER,      SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "mlp.gate.weight",                    SL_DIM_EXPERTS,   SL_DIM_MODEL},
    MLP_DENSE,
    MLP_EXPERTS,
};

static const sl_arch_tensor mixtral[] = {
    COMMON_TENSORS,
    {SL_ROLE_ROUTER,      SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "block_sparse_moe.gate.weight",           SL_DIM_EXPERTS,   SL_DIM_MODEL},
    {SL_ROLE_EXPERT_GATE, SL_SCOPE_EXPERT,      EXP,  BLOCK "block_sparse_moe.experts.{E}.w1.weight", SL_DIM_FF_EXPERT, SL_DIM_MODEL},
    {SL_ROLE_EXPERT_UP,   SL_SCOPE_EXPERT,      EXP,  BLOCK "block_sparse_moe.experts.{E}.w3.weight", SL_DIM_FF_EXPERT, SL_DIM_MODEL},
    {SL_ROLE_EXPERT_DOWN, SL_SCOPE_EXPERT,      EXP,  BLOCK "block_sparse_moe.experts.{E}.w2.weight", SL_DIM_MODEL,     SL_DIM_FF_EXPERT},
};

static const sl_arch_tensor qwen2_moe[] = {
    COMMON_TENSORS,
    QKV_BIAS,
    {SL_ROLE_ROUTER,       SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "mlp.gate.weight",                     SL_DIM_EXPERTS,   SL_DIM_MODEL},
    MLP_DENSE,
    {SL_ROLE_SHARED_GATE,  SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "mlp.shared_expert.gate_proj.weight",  SL_DIM_FF_SHARED, SL_DIM_MODEL},
    {SL_ROLE_SHARED_UP,    SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "mlp.shared_expert.up_proj.weight",    SL_DIM_FF_SHARED, SL_DIM_MODEL},
    {SL_ROLE_SHARED_DOWN,  SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "mlp.shared_expert.down_proj.weight",  SL_DIM_MODEL,     SL_DIM_FF_SHARED},
    {SL_ROLE_SHARED_SCALE, SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "mlp.shared_expert_gate.weight",       SL_DIM_ONE,       SL_DIM_MODEL},
    MLP_EXPERTS,
};

static const sl_arch_tensor olmoe[] = {
    COMMON_TENSORS,
    {SL_ROLE_Q_NORM,      SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.q_norm.weight",            SL_DIM_Q,         SL_DIM_NONE},
    {SL_ROLE_K_NORM,      SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.k_norm.weight",            SL_DIM_KV,        SL_DIM_NONE},
    {SL_ROLE_ROUTER,      SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "mlp.gate.weight",                    SL_DIM_EXPERTS,   SL_DIM_MODEL},
    MLP_EXPERTS,
};

static const sl_arch_tensor glm4_moe[] = {
    COMMON_TENSORS,
    QKV_BIAS,
    {SL_ROLE_Q_NORM,       SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.q_norm.weight",             SL_DIM_HEAD,      SL_DIM_NONE},
    {SL_ROLE_K_NORM,       SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.k_norm.weight",             SL_DIM_HEAD,      SL_DIM_NONE},
    {SL_ROLE_ROUTER,       SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "mlp.gate.weight",                     SL_DIM_EXPERTS,   SL_DIM_MODEL},
    {SL_ROLE_ROUTER_BIAS,  SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "mlp.gate.e_score_correction_bias",    SL_DIM_EXPERTS,   SL_DIM_NONE},
    MLP_DENSE,
    MLP_SHARED,
    MLP_EXPERTS,
};

/* Llama 4; P is what its names begin with. */
#define LLAMA4_TENSORS(P)                                                                                                                                  \
    {SL_ROLE_EMBED,       SL_SCOPE_MODEL,       ATTN,          P "model.embed_tokens.weight",                         SL_DIM_VOCAB,     SL_DIM_MODEL},     \
    {SL_ROLE_FINAL_NORM,  SL_SCOPE_MODEL,       SL_STAGE_HEAD, P "model.norm.weight",                                 SL_DIM_MODEL,     SL_DIM_NONE},      \
    {SL_ROLE_LM_HEAD,     SL_SCOPE_MODEL,       SL_STAGE_HEAD, P "lm_head.weight",                                    SL_DIM_VOCAB,     SL_DIM_MODEL},     \
    {SL_ROLE_ATTN_NORM,   SL_SCOPE_BLOCK,       ATTN,          P BLOCK "input_layernorm.weight",                      SL_DIM_MODEL,     SL_DIM_NONE},      \
    {SL_ROLE_Q,           SL_SCOPE_BLOCK,       ATTN,          P BLOCK "self_attn.q_proj.weight",                     SL_DIM_Q,         SL_DIM_MODEL},     \
    {SL_ROLE_K,           SL_SCOPE_BLOCK,       ATTN,          P BLOCK "self_attn.k_proj.weight",                     SL_DIM_KV,        SL_DIM_MODEL},     \
    {SL_ROLE_V,           SL_SCOPE_BLOCK,       ATTN,          P BLOCK "self_attn.v_proj.weight",                     SL_DIM_KV,        SL_DIM_MODEL},     \
    {SL_ROLE_O,           SL_SCOPE_BLOCK,       ATTN,          P BLOCK "self_attn.o_proj.weight",                     SL_DIM_MODEL,     SL_DIM_Q},         \
    {SL_ROLE_FFN_NORM,    SL_SCOPE_BLOCK,       ATTN,          P BLOCK "post_attention_layernorm.weight",             SL_DIM_MODEL,     SL_DIM_NONE},      \
    {SL_ROLE_ROUTER,      SL_SCOPE_MOE_BLOCK,   ATTN,          P BLOCK "feed_forward.router.weight",                  SL_DIM_EXPERTS,   SL_DIM_MODEL},     \
    {SL_ROLE_DENSE_GATE,  SL_SCOPE_DENSE_BLOCK, ATTN,          P BLOCK "feed_forward.gate_proj.weight",               SL_DIM_FF_DENSE,  SL_DIM_MODEL},     \
    {SL_ROLE_DENSE_UP,    SL_SCOPE_DENSE_BLOCK, ATTN,          P BLOCK "feed_forward.up_proj.weight",                 SL_DIM_FF_DENSE,  SL_DIM_MODEL},     \
    {SL_ROLE_DENSE_DOWN,  SL_SCOPE_DENSE_BLOCK, ATTN,          P BLOCK "feed_forward.down_proj.weight",               SL_DIM_MODEL,     SL_DIM_FF_DENSE},  \
    {SL_ROLE_SHARED_GATE, SL_SCOPE_MOE_BLOCK,   ATTN,          P BLOCK "feed_forward.shared_expert.gate_proj.weight", SL_DIM_FF_SHARED, SL_DIM_MODEL},     \
    {SL_ROLE_SHARED_UP,   SL_SCOPE_MOE_BLOCK,   ATTN,          P BLOCK "feed_forward.shared_expert.up_proj.weight",   SL_DIM_FF_SHARED, SL_DIM_MODEL},     \
    {SL_ROLE_SHARED_DOWN, SL_SCOPE_MOE_BLOCK,   ATTN,          P BLOCK "feed_forward.shared_expert.down_proj.weight", SL_DIM_MODEL,     SL_DIM_FF_SHARED}, \
    {SL_ROLE_EXPERT_GATE, SL_SCOPE_EXPERT,      EXP,           P BLOCK "feed_forward.experts.gate_up_proj",           SL_DIM_FF_EXPERT, SL_DIM_MODEL},     \
    {SL_ROLE_EXPERT_UP,   SL_SCOPE_EXPERT,      EXP,           P BLOCK "feed_forward.experts.gate_up_proj",           SL_DIM_FF_EXPERT, SL_DIM_MODEL},     \
    {SL_ROLE_EXPERT_DOWN, SL_SCOPE_EXPERT,      EXP,           P BLOCK "feed_forward.experts.down_proj",              SL_DIM_MODEL,     SL_DIM_FF_EXPERT}

static const sl_arch_tensor llama4[] = {LLAMA4_TENSORS("")};
static const sl_arch_tensor llama4_nested[] = {LLAMA4_TENSORS("language_model.")};

static const sl_arch_store llama4_stores[] = {
    {.role = SL_ROLE_EXPERT_GATE, .stack = SL_STACK_EXPERTS, .transposed = true, .after = {SL_DIM_FF_EXPERT}},
    {.role = SL_ROLE_EXPERT_UP, .stack = SL_STACK_EXPERTS, .transposed = true, .before = {SL_DIM_FF_EXPERT}},
    {.role = SL_ROLE_EXPERT_DOWN, .stack = SL_STACK_EXPERTS, .transposed = true},
};
static const char *const llama4_ignored[] = {"vision_model.", "multi_modal_projector.", NULL};
#define DEEPSEEK_TENSORS                                                                                                              \
    FRAME_TENSORS,                                                                                                                    \
    {SL_ROLE_Q,           SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.q_proj.weight",             SL_DIM_Q,         SL_DIM_MODEL},   \
    {SL_ROLE_Q_A,         SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.q_a_proj.weight",           SL_DIM_Q_LORA,    SL_DIM_MODEL},   \
    {SL_ROLE_Q_A_NORM,    SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.q_a_layernorm.weight",      SL_DIM_Q_LORA,    SL_DIM_NONE},    \
    {SL_ROLE_Q_B,         SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.q_b_proj.weight",           SL_DIM_Q,         SL_DIM_Q_LORA},  \
    {SL_ROLE_KV_A,        SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.kv_a_proj_with_mqa.weight", SL_DIM_KV_A,      SL_DIM_MODEL},   \
    {SL_ROLE_KV_A_NORM,   SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.kv_a_layernorm.weight",     SL_DIM_KV_LORA,   SL_DIM_NONE},    \
    {SL_ROLE_KV_B,        SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.kv_b_proj.weight",          SL_DIM_KV_B,      SL_DIM_KV_LORA}, \
    {SL_ROLE_K_B,         SL_SCOPE_BLOCK,       ATTN, NULL,                                        SL_DIM_K_B,       SL_DIM_NOPE},    \
    {SL_ROLE_V_B,         SL_SCOPE_BLOCK,       ATTN, NULL,                                        SL_DIM_V,         SL_DIM_KV_LORA}, \
    {SL_ROLE_O,           SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.o_proj.weight",             SL_DIM_MODEL,     SL_DIM_V},       \
    {SL_ROLE_ROUTER,      SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "mlp.gate.weight",                     SL_DIM_EXPERTS,   SL_DIM_MODEL},   \
    MLP_DENSE,                                                                                                                        \
    MLP_SHARED,                                                                                                                       \
    MLP_EXPERTS

static const sl_arch_tensor deepseek_v2[] = {
    DEEPSEEK_TENSORS,
};

static const sl_arch_tensor deepseek_v3[] = {
    DEEPSEEK_TENSORS,
    {SL_ROLE_ROUTER_BIAS, SL_SCOPE_MOE_BLOCK, ATTN, BLOCK "mlp.gate.e_score_correction_bias", SL_DIM_EXPERTS, SL_DIM_NONE},
};

static const sl_arch_tensor gpt_oss[] = {
    COMMON_TENSORS,
    QKV_BIAS,
    {SL_ROLE_O_BIAS,           SL_SCOPE_BLOCK,     ATTN, BLOCK "self_attn.o_proj.bias",         SL_DIM_MODEL,     SL_DIM_NONE},
    {SL_ROLE_SINKS,            SL_SCOPE_BLOCK,     ATTN, BLOCK "self_attn.sinks",               SL_DIM_HEADS,     SL_DIM_NONE},
    {SL_ROLE_ROUTER,           SL_SCOPE_MOE_BLOCK, ATTN, BLOCK "mlp.router.weight",             SL_DIM_EXPERTS,   SL_DIM_MODEL},
    {SL_ROLE_LOGIT_BIAS,       SL_SCOPE_MOE_BLOCK, ATTN, BLOCK "mlp.router.bias",               SL_DIM_EXPERTS,   SL_DIM_NONE},
    {SL_ROLE_EXPERT_GATE,      SL_SCOPE_EXPERT,    EXP,  BLOCK "mlp.experts.gate_up_proj",      SL_DIM_FF_EXPERT, SL_DIM_MODEL},
    {SL_ROLE_EXPERT_UP,        SL_SCOPE_EXPERT,    EXP,  BLOCK "mlp.experts.gate_up_proj",      SL_DIM_FF_EXPERT, SL_DIM_MODEL},
    {SL_ROLE_EXPERT_DOWN,      SL_SCOPE_EXPERT,    EXP,  BLOCK "mlp.experts.down_proj",         SL_DIM_MODEL,     SL_DIM_FF_EXPERT},
    {SL_ROLE_EXPERT_GATE_BIAS, SL_SCOPE_EXPERT,    EXP,  BLOCK "mlp.experts.gate_up_proj_bias", SL_DIM_FF_EXPERT, SL_DIM_NONE},
    {SL_ROLE_EXPERT_UP_BIAS,   SL_SCOPE_EXPERT,    EXP,  BLOCK "mlp.experts.gate_up_proj_bias", SL_DIM_FF_EXPERT, SL_DIM_NONE},
    {SL_ROLE_EXPERT_DOWN_BIAS, SL_SCOPE_EXPERT,    EXP,  BLOCK "mlp.experts.down_proj_bias",    SL_DIM_MODEL,     SL_DIM_NONE},
};

static const sl_arch_tensor arctic[] = {
    COMMON_TENSORS,
    {SL_ROLE_ROUTER,      SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "block_sparse_moe.gate.weight",           SL_DIM_EXPERTS,   SL_DIM_MODEL},
    {SL_ROLE_DENSE_GATE,  SL_SCOPE_DENSE_BLOCK, ATTN, BLOCK "block_sparse_moe.mlp.w1.weight",         SL_DIM_FF_DENSE,  SL_DIM_MODEL},
    {SL_ROLE_DENSE_UP,    SL_SCOPE_DENSE_BLOCK, ATTN, BLOCK "block_sparse_moe.mlp.w3.weight",         SL_DIM_FF_DENSE,  SL_DIM_MODEL},
    {SL_ROLE_DENSE_DOWN,  SL_SCOPE_DENSE_BLOCK, ATTN, BLOCK "block_sparse_moe.mlp.w2.weight",         SL_DIM_MODEL,     SL_DIM_FF_DENSE},
    {SL_ROLE_SHARED_NORM, SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "residual_layernorm.weight",              SL_DIM_MODEL,     SL_DIM_NONE},
    {SL_ROLE_SHARED_GATE, SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "residual_mlp.w1.weight",                 SL_DIM_FF_SHARED, SL_DIM_MODEL},
    {SL_ROLE_SHARED_UP,   SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "residual_mlp.w3.weight",                 SL_DIM_FF_SHARED, SL_DIM_MODEL},
    {SL_ROLE_SHARED_DOWN, SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "residual_mlp.w2.weight",                 SL_DIM_MODEL,     SL_DIM_FF_SHARED},
    {SL_ROLE_EXPERT_GATE, SL_SCOPE_EXPERT,      EXP,  BLOCK "block_sparse_moe.experts.{E}.w1.weight", SL_DIM_FF_EXPERT, SL_DIM_MODEL},
    {SL_ROLE_EXPERT_UP,   SL_SCOPE_EXPERT,      EXP,  BLOCK "block_sparse_moe.experts.{E}.w3.weight", SL_DIM_FF_EXPERT, SL_DIM_MODEL},
    {SL_ROLE_EXPERT_DOWN, SL_SCOPE_EXPERT,      EXP,  BLOCK "block_sparse_moe.experts.{E}.w2.weight", SL_DIM_MODEL,     SL_DIM_FF_EXPERT},
};

#undef BLOCK
#define BLOCK "transformer.blocks.{L}."
#define QKV   BLOCK "norm_attn_norm.attn.Wqkv.weight"
static const sl_arch_tensor dbrx[] = {
    {SL_ROLE_EMBED,       SL_SCOPE_MODEL,     ATTN,          "transformer.wte.weight",                       SL_DIM_VOCAB,     SL_DIM_MODEL},
    {SL_ROLE_FINAL_NORM,  SL_SCOPE_MODEL,     SL_STAGE_HEAD, "transformer.norm_f.weight",                    SL_DIM_MODEL,     SL_DIM_NONE},
    {SL_ROLE_LM_HEAD,     SL_SCOPE_MODEL,     SL_STAGE_HEAD, "lm_head.weight",                               SL_DIM_VOCAB,     SL_DIM_MODEL},
    {SL_ROLE_ATTN_NORM,   SL_SCOPE_BLOCK,     ATTN,          BLOCK "norm_attn_norm.norm_1.weight",           SL_DIM_MODEL,     SL_DIM_NONE},
    {SL_ROLE_Q,           SL_SCOPE_BLOCK,     ATTN,          QKV,                                            SL_DIM_Q,         SL_DIM_MODEL},
    {SL_ROLE_K,           SL_SCOPE_BLOCK,     ATTN,          QKV,                                            SL_DIM_KV,        SL_DIM_MODEL},
    {SL_ROLE_V,           SL_SCOPE_BLOCK,     ATTN,          QKV,                                            SL_DIM_KV,        SL_DIM_MODEL},
    {SL_ROLE_O,           SL_SCOPE_BLOCK,     ATTN,          BLOCK "norm_attn_norm.attn.out_proj.weight",    SL_DIM_MODEL,     SL_DIM_Q},
    {SL_ROLE_FFN_NORM,    SL_SCOPE_BLOCK,     ATTN,          BLOCK "norm_attn_norm.norm_2.weight",           SL_DIM_MODEL,     SL_DIM_NONE},
    {SL_ROLE_ROUTER,      SL_SCOPE_MOE_BLOCK, ATTN,          BLOCK "ffn.router.layer.weight",                SL_DIM_EXPERTS,   SL_DIM_MODEL},
    {SL_ROLE_EXPERT_GATE, SL_SCOPE_EXPERT,    EXP,           BLOCK "ffn.experts.mlp.w1",                     SL_DIM_FF_EXPERT, SL_DIM_MODEL},
    {SL_ROLE_EXPERT_UP,   SL_SCOPE_EXPERT,    EXP,           BLOCK "ffn.experts.mlp.v1",                     SL_DIM_FF_EXPERT, SL_DIM_MODEL},
    {SL_ROLE_EXPERT_DOWN, SL_SCOPE_EXPERT,    EXP,           BLOCK "ffn.experts.mlp.w2",                     SL_DIM_MODEL,     SL_DIM_FF_EXPERT},
};
static const sl_arch_store dbrx_store[] = {
    {SL_ROLE_Q,           .gguf = true, .after = {SL_DIM_KV, SL_DIM_KV}},
    {SL_ROLE_K,           .gguf = true, .before = {SL_DIM_Q}, .after = {SL_DIM_KV}},
    {SL_ROLE_V,           .gguf = true, .before = {SL_DIM_Q, SL_DIM_KV}},
    {SL_ROLE_EXPERT_GATE, .stack = SL_STACK_ROWS},
    {SL_ROLE_EXPERT_UP,   .stack = SL_STACK_ROWS},
    {SL_ROLE_EXPERT_DOWN, .stack = SL_STACK_ROWS, .transposed = true},
};

/* clang-format on */

static const sl_arch_store gpt_oss_store[] = {
    {.role = SL_ROLE_EXPERT_GATE, SL_STACK_EXPERTS, .transposed = true, .step = 2},
    {.role = SL_ROLE_EXPERT_UP, SL_STACK_EXPERTS, .transposed = true, .step = 2, .phase = 1},
    {.role = SL_ROLE_EXPERT_DOWN, SL_STACK_EXPERTS, .transposed = true},
    {.role = SL_ROLE_EXPERT_GATE_BIAS, SL_STACK_EXPERTS, .step = 2},
    {.role = SL_ROLE_EXPERT_UP_BIAS, SL_STACK_EXPERTS, .step = 2, .phase = 1},
    {.role = SL_ROLE_EXPERT_DOWN_BIAS, SL_STACK_EXPERTS},
};

static const sl_arch_store deepseek_store[] = {
    {.role = SL_ROLE_K_B, SL_STACK_HEADS, .gguf = true},
    {.role = SL_ROLE_V_B, SL_STACK_HEADS, .gguf = true},
};

/* Names in GGUF. The norm before the feed-forward is the one after attention there; DBRX has one
 * tensor for queries, keys and values; Arctic's usual names are those of its dense branch. */
static const sl_arch_alias post_norm[] = {{"post_attention_norm.weight", SL_ROLE_FFN_NORM, false},
                                          {0}};
static const sl_arch_alias dbrx_names[] = {{"attn_qkv.weight", SL_ROLE_Q, false},
                                           {"attn_qkv.weight", SL_ROLE_K, false},
                                           {"attn_qkv.weight", SL_ROLE_V, false},
                                           {"attn_output_norm.weight", SL_ROLE_FFN_NORM, false},
                                           {0}};
static const sl_arch_alias arctic_names[] = {{"ffn_norm_exps.weight", SL_ROLE_FFN_NORM, true},
                                             {"ffn_norm.weight", SL_ROLE_SHARED_NORM, true},
                                             {"ffn_gate.weight", SL_ROLE_SHARED_GATE, true},
                                             {"ffn_up.weight", SL_ROLE_SHARED_UP, true},
                                             {"ffn_down.weight", SL_ROLE_SHARED_DOWN, true},
                                             {0}};

#define TENSORS(list) .tensor = list, .n_tensors = SL_LEN(list)
#define STORES(list)  .store = list, .n_stores = SL_LEN(list)

static const sl_arch rows[] = {
    {.name = "Qwen3MoeForCausalLM", TENSORS(qwen3_moe)},
    {.name = "Qwen2MoeForCausalLM", TENSORS(qwen2_moe)},
    {.name = "MixtralForCausalLM", TENSORS(mixtral)},
    {.name = "OlmoeForCausalLM", TENSORS(olmoe)},
    {.name = "Glm4MoeForCausalLM",
     .router = SL_ROUTER_SIGMOID_GROUPS,
     TENSORS(glm4_moe),
     .gguf = post_norm},
    {.name = "Llama4ForCausalLM",
     .router = SL_ROUTER_SIGMOID_TOPK,
     TENSORS(llama4),
     STORES(llama4_stores)},
    {.name = "Llama4ForConditionalGeneration",
     .router = SL_ROUTER_SIGMOID_TOPK,
     TENSORS(llama4_nested),
     STORES(llama4_stores),
     .ignored = llama4_ignored},
    {.name = "DeepseekV2ForCausalLM", TENSORS(deepseek_v2), STORES(deepseek_store)},
    {.name = "DeepseekV3ForCausalLM",
     .router = SL_ROUTER_SIGMOID_GROUPS,
     TENSORS(deepseek_v3),
     STORES(deepseek_store)},
    {.name = "DbrxForCausalLM",
     .layer_norm = true,
     TENSORS(dbrx),
     STORES(dbrx_store),
     .gguf = dbrx_names},
    {.name = "ArcticForCausalLM", TENSORS(arctic), .gguf = arctic_names},
    {.name = "GptOssForCausalLM", TENSORS(gpt_oss), STORES(gpt_oss_store), .gguf = post_norm},
};

const sl_arch *sl_arch_at(size_t i) {
    return i < SL_LEN(rows) ? &rows[i] : NULL;
}

const sl_arch *sl_arch_find(const char *name) {
    for (size_t i = 0; i < SL_LEN(rows); i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

const sl_arch_store *sl_arch_store_of(const sl_arch *a, sl_arch_role role) {
    for (size_t i = 0; i < a->n_stores; i++)
        if (a->store[i].role == role) return &a->store[i];
    return NULL;
}

const sl_arch_store *sl_arch_gguf_store_of(const sl_arch *a, sl_arch_role role) {
    const sl_arch_store *s = sl_arch_store_of(a, role);
    return s && s->gguf ? s : NULL;
}

uint64_t sl_arch_dim_value(const sl_model_spec *m, sl_arch_dim d) {
    switch (d) {
    case SL_DIM_NONE:
    case SL_DIM_ONE:
        return 1;
    case SL_DIM_VOCAB:
        return m->vocab;
    case SL_DIM_MODEL:
        return m->d_model;
    case SL_DIM_Q:
        return (uint64_t)m->n_heads * sl_query_dim(m);
    case SL_DIM_KV:
        return (uint64_t)m->n_kv_heads * m->head_dim;
    case SL_DIM_HEADS:
        return m->n_heads;
    case SL_DIM_HEAD:
        return m->head_dim;
    case SL_DIM_Q_LORA:
        return m->q_lora;
    case SL_DIM_KV_LORA:
        return m->kv_lora;
    case SL_DIM_KV_A:
        return (uint64_t)m->kv_lora + m->rope_dim;
    case SL_DIM_KV_B:
        return (uint64_t)m->n_heads * (m->nope_dim + m->v_dim);
    case SL_DIM_K_B:
        return (uint64_t)m->n_heads * m->kv_lora;
    case SL_DIM_NOPE:
        return m->nope_dim;
    case SL_DIM_V:
        return (uint64_t)m->n_heads * m->v_dim;
    case SL_DIM_FF_DENSE:
        return m->d_ff_dense;
    case SL_DIM_FF_EXPERT:
        return m->d_ff_expert;
    case SL_DIM_FF_SHARED:
        return m->d_ff_shared;
    case SL_DIM_EXPERTS:
        return m->n_experts;
    }
    return 0;
}

/* What ranks have parts of: heads, widths of feed-forwards, the vocabulary. */
static bool is_split(sl_arch_dim d) {
    switch (d) {
    case SL_DIM_VOCAB:
    case SL_DIM_Q:
    case SL_DIM_KV:
    case SL_DIM_KV_B:
    case SL_DIM_K_B:
    case SL_DIM_V:
    case SL_DIM_HEADS:
    case SL_DIM_FF_DENSE:
    case SL_DIM_FF_EXPERT:
    case SL_DIM_FF_SHARED:
        return true;
    default:
        return false;
    }
}

sl_arch_axis sl_arch_tensor_axis(const sl_arch_tensor *t) {
    return is_split(t->n) ? SL_AXIS_ROWS : is_split(t->k) ? SL_AXIS_COLUMNS : SL_AXIS_WHOLE;
}

bool sl_arch_tensor_used(const sl_model_spec *m, const sl_arch_tensor *t) {
    switch (t->role) {
    case SL_ROLE_LM_HEAD:
        return !m->tied_head;
    case SL_ROLE_Q:
        return m->q_lora == 0;
    case SL_ROLE_Q_A:
    case SL_ROLE_Q_A_NORM:
    case SL_ROLE_Q_B:
        return m->q_lora > 0;
    case SL_ROLE_KV_B:
        return !m->kv_parts;
    case SL_ROLE_K_B:
    case SL_ROLE_V_B:
        return m->kv_parts;
    case SL_ROLE_SHARED_NORM:
    case SL_ROLE_SHARED_GATE:
    case SL_ROLE_SHARED_UP:
    case SL_ROLE_SHARED_DOWN:
        return m->d_ff_shared > 0;
    case SL_ROLE_Q_BIAS:
    case SL_ROLE_K_BIAS:
    case SL_ROLE_V_BIAS:
    case SL_ROLE_O_BIAS:
        return m->qkv_bias;
    case SL_ROLE_Q_NORM:
    case SL_ROLE_K_NORM:
        return m->qk_norm;
    default:
        return true;
    }
}

void sl_arch_tensor_name(const sl_arch_tensor *t, uint32_t layer, uint32_t expert,
                         char out[SL_ARCH_NAME_MAX]) {
    size_t at = 0;
    for (const char *p = t->name; *p && at + 16 < SL_ARCH_NAME_MAX;) {
        uint32_t value = p[0] == '{' && p[1] == 'E' ? expert : layer;
        if (p[0] == '{') {
            at += (size_t)snprintf(out + at, SL_ARCH_NAME_MAX - at, "%u", value);
            p += 3;
        } else {
            out[at++] = *p++;
        }
    }
    out[at] = '\0';
}

void sl_arch_count_params(const sl_arch *a, sl_model_spec *m) {
    uint32_t n_dense = m->n_layers - m->n_moe;
    m->n_params = m->n_params_active = 0;
    for (size_t i = 0; i < a->n_tensors; i++) {
        const sl_arch_tensor *t = &a->tensor[i];
        if (!sl_arch_tensor_used(m, t)) continue;
        uint64_t one = sl_arch_dim_value(m, t->n) * sl_arch_dim_value(m, t->k);
        uint64_t all = 1, active = 1;
        if (t->scope == SL_SCOPE_BLOCK) all = active = m->n_layers;
        if (t->scope == SL_SCOPE_DENSE_BLOCK) all = active = n_dense;
        if (t->scope == SL_SCOPE_MOE_BLOCK) all = active = m->n_moe;
        if (t->scope == SL_SCOPE_EXPERT) {
            all = (uint64_t)m->n_moe * m->n_experts;
            active = (uint64_t)m->n_moe * m->top_k;
        }
        m->n_params += one * all;
        m->n_params_active += one * active;
    }
}
