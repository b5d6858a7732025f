/* The classes of the Llama line. */
#include "format/hf_config_int.h"

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
    .model_type = "qwen3_moe",
    .key = {SL_LLAMA_KEYS, .bias = "attention_bias", .experts = "num_experts",
            .expert_width = "moe_intermediate_size", .dense_width = "intermediate_size",
            .every = "decoder_sparse_step", .dense = "mlp_only_layers"},
    .small = SL_SMALL_O_BIAS,
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
    .model_type = "qwen2_moe",
    .key = {SL_LLAMA_KEYS, .bias = "qkv_bias", .experts = "num_experts",
            .expert_width = "moe_intermediate_size", .dense_width = "intermediate_size",
            .shared_width = "shared_expert_intermediate_size", .every = "decoder_sparse_step",
            .dense = "mlp_only_layers"},
    .small = SL_SMALL_BIAS_GIVEN | SL_SMALL_SHARED_GATE,
    .gguf = {.name = "qwen2moe", .width = SL_GGUF_EXPERT_WIDTH, .has = SL_GGUF_SHARED_WIDTH},
    .rope_theta = 1e4,
    .rms_eps = 1e-6,
    .own = SL_HF_KEYS(own_qwen2),
};

const sl_family sl_hf_mixtral = {
    .name = "MixtralForCausalLM",
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
    .model_type = "olmoe",
    .key = {SL_LLAMA_KEYS, .bias = "attention_bias", .experts = "num_experts",
            .expert_width = "intermediate_size"},
    .small = SL_SMALL_O_BIAS | SL_SMALL_QK_WIDE,
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
    .model_type = "glm4_moe",
    .key = {SL_LLAMA_KEYS, .bias = "attention_bias", .qk_norm = "use_qk_norm",
            .experts = "n_routed_experts", .expert_width = "moe_intermediate_size",
            .dense_width = "intermediate_size", .n_shared = "n_shared_experts",
            .dense_first = "first_k_dense_replace", .further = "num_nextn_predict_layers"},
    .given = {.n_shared = 1, .dense_first = 1},
    .small = SL_SMALL_ROUTER_BIAS,
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
