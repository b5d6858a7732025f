/* The classes of the Llama line. */
#include "format/hf_config_int.h"

static const sl_hf_key own_qwen3[] = {{"use_qk_norm", SL_HF_IS, {"true"}}};
static const sl_hf_key own_qwen2[] = {{"qkv_bias", SL_HF_USED},
                                      {"shared_expert_intermediate_size", SL_HF_USED}};
static const sl_hf_key own_olmoe[] = {{"clip_qkv", SL_HF_USED}};
static const sl_hf_key own_glm4[] = {
    {"attention_bias", SL_HF_USED},
    {"use_qk_norm", SL_HF_USED},
    {"partial_rotary_factor", SL_HF_USED},
    {"n_routed_experts", SL_HF_USED},
    {"n_shared_experts", SL_HF_USED},
    {"n_group", SL_HF_USED},
    {"topk_group", SL_HF_USED},
    {"routed_scaling_factor", SL_HF_USED},
    {"first_k_dense_replace", SL_HF_USED},
    {"num_nextn_predict_layers", SL_HF_USED},
};

static sl_status read_qwen2(sl_json root, sl_model_spec *m, sl_err *err) {
    m->qkv_bias = true;
    sl_status st = sl_json_bool(root, "qkv_bias", SL_JSON_OPTIONAL, &m->qkv_bias, err);
    return st == SL_OK ? sl_hf_u32(root, "shared_expert_intermediate_size", SL_JSON_REQUIRED, 1,
                                   SL_MAX_WIDTH, &m->d_ff_shared, err)
                       : st;
}

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

static sl_status read_glm4(sl_json root, sl_model_spec *m, sl_err *err) {
    uint32_t n_shared = 1;
    double scale = 1;
    sl_status st = sl_hf_groups(root, m, err);
    if (st == SL_OK)
        st = sl_json_f64(root, "routed_scaling_factor", SL_JSON_OPTIONAL, 1e-6, 1e6, &scale, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, "n_shared_experts", SL_JSON_OPTIONAL, 1, SL_MAX_SHARED_EXPERTS,
                       &n_shared, err);
    if (st == SL_OK) st = sl_json_bool(root, "attention_bias", SL_JSON_OPTIONAL, &m->qkv_bias, err);
    if (st == SL_OK) st = sl_json_bool(root, "use_qk_norm", SL_JSON_OPTIONAL, &m->qk_norm, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, "num_nextn_predict_layers", SL_JSON_OPTIONAL, 0, SL_MAX_MTP, &m->n_mtp,
                       err);
    m->route_scale = (float)scale;
    m->d_ff_shared = n_shared * m->d_ff_expert;
    return st;
}

static const sl_hf_class qwen3 = {
    .name = "Qwen3MoeForCausalLM",
    .model_type = "qwen3_moe",
    .rope_theta = 1e4,
    .rms_eps = 1e-6,
    .rope_part = 1,
    .expert_width = "moe_intermediate_size",
    .qk_norm = true,
    .yarn = true,
    .sparse_step = true,
    .own = own_qwen3,
    .n_own = SL_LEN(own_qwen3),
};

static const sl_hf_class qwen2 = {
    .name = "Qwen2MoeForCausalLM",
    .model_type = "qwen2_moe",
    .rope_theta = 1e4,
    .rms_eps = 1e-6,
    .rope_part = 1,
    .expert_width = "moe_intermediate_size",
    .sparse_step = true,
    .own = own_qwen2,
    .n_own = SL_LEN(own_qwen2),
    .read_own = read_qwen2,
};

static const sl_hf_class mixtral = {
    .name = "MixtralForCausalLM",
    .model_type = "mixtral",
    .rope_theta = 1e6,
    .rms_eps = 1e-5,
    .rope_part = 1,
    .expert_width = "intermediate_size",
    .window = true,
    .norm_topk = true,
    .norm_topk_fixed = true,
};

static const sl_hf_class olmoe = {
    .name = "OlmoeForCausalLM",
    .model_type = "olmoe",
    .rope_theta = 1e4,
    .rms_eps = 1e-5,
    .rope_part = 1,
    .expert_width = "intermediate_size",
    .qk_norm = true,
    .head_dim_derived = true,
    .own = own_olmoe,
    .n_own = SL_LEN(own_olmoe),
    .read_own = read_olmoe,
};

static const sl_hf_class glm4 = {
    .name = "Glm4MoeForCausalLM",
    .model_type = "glm4_moe",
    .rope_theta = 1e4,
    .rms_eps = 1e-5,
    .rope_part = 0.5,
    .expert_width = "moe_intermediate_size",
    .norm_topk = true,
    .own = own_glm4,
    .n_own = SL_LEN(own_glm4),
    .read_own = read_glm4,
};

const sl_hf_class *const sl_hf_classes[] = {
    &qwen3,
    &qwen2,
    &mixtral,
    &olmoe,
    &glm4,
    &sl_hf_gpt_oss,
    &sl_hf_llama4,
    &sl_hf_llama4_nested,
    &sl_hf_deepseek_v2,
    &sl_hf_deepseek_v3,
    &sl_hf_dbrx,
    &sl_hf_arctic,
};
const size_t sl_hf_n_classes = SL_LEN(sl_hf_classes);
