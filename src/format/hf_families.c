/* The classes of the Llama line. */
#include "format/hf_config_int.h"
#include "format/tensors.h"

/* clang-format off */
static const sl_arch_tensor qwen3[] = {
    COMMON_TENSORS,
    {SL_ROLE_Q_NORM,      SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.q_norm.weight",            SL_DIM_HEAD,      SL_DIM_NONE},
    {SL_ROLE_K_NORM,      SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.k_norm.weight",            SL_DIM_HEAD,      SL_DIM_NONE},
    {SL_ROLE_ROUTER,      SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "mlp.gate.weight",                    SL_DIM_EXPERTS,   SL_DIM_MODEL},
    MLP_DENSE,
    MLP_EXPERTS,
};

static const sl_arch_tensor qwen2[] = {
    COMMON_TENSORS,
    QKV_BIAS,
    {SL_ROLE_ROUTER,       SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "mlp.gate.weight",                     SL_DIM_EXPERTS,   SL_DIM_MODEL},
    MLP_DENSE,
    MLP_SHARED_GATED,
    MLP_EXPERTS,
};

static const sl_arch_tensor mixtral[] = {
    COMMON_TENSORS,
    {SL_ROLE_ROUTER,      SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "block_sparse_moe.gate.weight",           SL_DIM_EXPERTS,   SL_DIM_MODEL},
    {SL_ROLE_EXPERT_GATE, SL_SCOPE_EXPERT,      EXP,  BLOCK "block_sparse_moe.experts.{E}.w1.weight", SL_DIM_FF_EXPERT, SL_DIM_MODEL},
    {SL_ROLE_EXPERT_UP,   SL_SCOPE_EXPERT,      EXP,  BLOCK "block_sparse_moe.experts.{E}.w3.weight", SL_DIM_FF_EXPERT, SL_DIM_MODEL},
    {SL_ROLE_EXPERT_DOWN, SL_SCOPE_EXPERT,      EXP,  BLOCK "block_sparse_moe.experts.{E}.w2.weight", SL_DIM_MODEL,     SL_DIM_FF_EXPERT},
};

static const sl_arch_tensor olmoe[] = {
    COMMON_TENSORS,
    {SL_ROLE_Q_NORM,      SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.q_norm.weight",            SL_DIM_Q,         SL_DIM_NONE},
    {SL_ROLE_K_NORM,      SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.k_norm.weight",            SL_DIM_KV,        SL_DIM_NONE},
    {SL_ROLE_ROUTER,      SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "mlp.gate.weight",                    SL_DIM_EXPERTS,   SL_DIM_MODEL},
    MLP_EXPERTS,
};

static const sl_arch_tensor glm4[] = {
    COMMON_TENSORS,
    QKV_BIAS,
    {SL_ROLE_Q_NORM,       SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.q_norm.weight",             SL_DIM_HEAD,      SL_DIM_NONE},
    {SL_ROLE_K_NORM,       SL_SCOPE_BLOCK,       ATTN, BLOCK "self_attn.k_norm.weight",             SL_DIM_HEAD,      SL_DIM_NONE},
    {SL_ROLE_ROUTER,       SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "mlp.gate.weight",                     SL_DIM_EXPERTS,   SL_DIM_MODEL},
    {SL_ROLE_ROUTER_BIAS,  SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "mlp.gate.e_score_correction_bias",    SL_DIM_EXPERTS,   SL_DIM_NONE},
    MLP_DENSE,
    MLP_SHARED,
    MLP_EXPERTS,
    MTP,
};

/* clang-format on */

static const sl_arch_alias glm4_names[] = {GGUF_FFN_NORM, {0}};

static const sl_hf_key own_qwen3[] = {{"use_qk_norm", SL_HF_IS, {"true"}}};
static const sl_hf_key own_qwen2[] = {{"qkv_bias", SL_HF_USED},
                                      {"shared_expert_intermediate_size", SL_HF_USED}};
static const sl_hf_key own_olmoe[] = {{"clip_qkv", SL_HF_USED}};
static const sl_hf_key own_glm4[] = {
    {"attention_bias", SL_HF_USED}, {"partial_rotary_factor", SL_HF_USED}, {"n_group", SL_HF_USED},
    {"topk_group", SL_HF_USED},     {"routed_scaling_factor", SL_HF_USED},
};

static sl_status read_olmoe(sl_json root, sl_model_spec *m, sl_err *err) {
    double limit = 0;
    sl_status st = sl_json_f64(root, "clip_qkv", SL_JSON_OPTIONAL, 1e-6, 1e6, &limit, err);
    m->clip_qkv = (float)limit;
    return st;
}

sl_status sl_hf_groups(sl_json root, sl_model_spec *m, sl_err *err) {
    m->n_groups = m->top_groups = 1;
    sl_status st =
        sl_hf_u32(root, "n_group", SL_JSON_OPTIONAL, 1, SL_MAX_GROUPS, &m->n_groups, err);
    if (st != SL_OK) return st;
    uint32_t size = m->n_experts / m->n_groups;
    if (m->n_experts % m->n_groups != 0 || size < 2)
        return sl_json_fail(root, "n_group", err, SL_ERR_FORMAT,
                            "%u does not cut %u experts into equal groups of 2 or more",
                            m->n_groups, m->n_experts);
    st = sl_hf_u32(root, "topk_group", SL_JSON_OPTIONAL, 1, m->n_groups, &m->top_groups, err);
    if (st == SL_OK && m->top_groups * size < m->top_k)
        st = sl_json_fail(root, "topk_group", err, SL_ERR_FORMAT,
                          "%u groups of %u experts are fewer than num_experts_per_tok %u",
                          m->top_groups, size, m->top_k);
    return st;
}

const sl_family sl_hf_qwen3 = {
    .name = "Qwen3MoeForCausalLM",
    .arch = {TENSORS(qwen3)},
    .model_type = "qwen3_moe",
    .key = {SL_LLAMA_KEYS, .bias = "attention_bias", .experts = "num_experts",
            .expert_width = "moe_intermediate_size", .dense_width = "intermediate_size",
            .every = "decoder_sparse_step", .dense = "mlp_only_layers"},
    .o_bias = true,
    .gguf = {.name = "qwen3moe",
             .width = SL_GGUF_EXPERT_WIDTH,
             .norm_topk = true,
             .has = SL_GGUF_YARN},
    .rope_theta = 1e4,
    .rms_eps = 1e-6,
    .qk_norm = true,
    .yarn = true,
    .own = SL_HF_KEYS(own_qwen3),
};

const sl_family sl_hf_qwen2 = {
    .name = "Qwen2MoeForCausalLM",
    .arch = {TENSORS(qwen2)},
    .model_type = "qwen2_moe",
    .key = {SL_LLAMA_KEYS, .bias = "qkv_bias", .experts = "num_experts",
            .expert_width = "moe_intermediate_size", .dense_width = "intermediate_size",
            .shared_width = "shared_expert_intermediate_size", .every = "decoder_sparse_step",
            .dense = "mlp_only_layers"},
    .bias_given = true,
    .gguf = {.name = "qwen2moe", .width = SL_GGUF_EXPERT_WIDTH, .has = SL_GGUF_SHARED_WIDTH},
    .rope_theta = 1e4,
    .rms_eps = 1e-6,
    .own = SL_HF_KEYS(own_qwen2),
};

const sl_family sl_hf_mixtral = {
    .name = "MixtralForCausalLM",
    .arch = {TENSORS(mixtral)},
    .model_type = "mixtral",
    .key = {SL_LLAMA_KEYS, .window = "sliding_window", .experts = "num_local_experts",
            .expert_width = "intermediate_size"},
    .gguf = {.name = "llama",
             .width = "feed_forward_length",
             .rope_pairs = true,
             .norm_topk = true},
    .rope_theta = 1e6,
    .rms_eps = 1e-5,
    .norm_topk = true,
    .norm_topk_fixed = true,
};

const sl_family sl_hf_olmoe = {
    .name = "OlmoeForCausalLM",
    .arch = {TENSORS(olmoe)},
    .model_type = "olmoe",
    .key = {SL_LLAMA_KEYS, .bias = "attention_bias", .experts = "num_experts",
            .expert_width = "intermediate_size"},
    .o_bias = true,
    .gguf = {.name = "olmoe", .width = "feed_forward_length"},
    .rope_theta = 1e4,
    .rms_eps = 1e-5,
    .qk_norm = true,
    .head_dim_derived = true,
    .own = SL_HF_KEYS(own_olmoe),
    .read_own = read_olmoe,
};

const sl_family sl_hf_glm4 = {
    .name = "Glm4MoeForCausalLM",
    .arch = {TENSORS(glm4), .router = SL_ROUTER_SIGMOID_GROUPS, .gguf = glm4_names},
    .model_type = "glm4_moe",
    .key = {SL_LLAMA_KEYS, .bias = "attention_bias", .qk_norm = "use_qk_norm",
            .experts = "n_routed_experts", .expert_width = "moe_intermediate_size",
            .dense_width = "intermediate_size", .n_shared = "n_shared_experts",
            .dense_first = "first_k_dense_replace", .further = "num_nextn_predict_layers"},
    .given = {.n_shared = 1, .dense_first = 1},
    .gguf = {.name = "glm4moe",
             .width = SL_GGUF_EXPERT_WIDTH,
             .gating = SL_GGUF_GATE_SIGMOID,
             .has = SL_GGUF_SHARED_COUNT | SL_GGUF_GROUPS | SL_GGUF_SCALE | SL_GGUF_LEADING |
                    SL_GGUF_FURTHER | SL_GGUF_PARTIAL | SL_GGUF_NORM_MAY | SL_GGUF_WEIGHTS},
    .rope_theta = 1e4,
    .rms_eps = 1e-5,
    .rope_part = 0.5,
    .route_scale = 1,
    .norm_topk = true,
    .own = SL_HF_KEYS(own_glm4),
    .read_own = sl_hf_groups,
};
