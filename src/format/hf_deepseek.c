/* DeepSeek-V2 (arXiv:2405.04434) and V3 (arXiv:2412.19437), with all that share their classes:
 * V2-Lite, R1, Kimi-K2. */
#include "format/hf_config_int.h"

/* Keys of both classes. Weights are read by name, so that code which a file points to (auto_map)
 * has nothing to say. */
#define LATENT_KEYS                                                                                \
    {"q_lora_rank", SL_HF_USED}, {"kv_lora_rank", SL_HF_USED}, {"qk_nope_head_dim", SL_HF_USED},   \
        {"qk_rope_head_dim", SL_HF_USED}, {"qk_head_dim", SL_HF_USED}, {"v_head_dim", SL_HF_USED}, \
        {"n_routed_experts", SL_HF_USED}, {"n_shared_experts", SL_HF_USED},                        \
        {"first_k_dense_replace", SL_HF_USED}, {"routed_scaling_factor", SL_HF_USED},              \
        {"n_group", SL_HF_USED}, {"topk_group", SL_HF_USED}, {"topk_method", SL_HF_USED},          \
        {"scoring_func", SL_HF_USED}, {"rope_interleave", SL_HF_USED},                             \
        {"num_nextn_predict_layers", SL_HF_USED}, {"moe_layer_freq", SL_HF_IS, {"1"}},             \
        {"auto_map", SL_HF_HARMLESS}, {"aux_loss_alpha", SL_HF_HARMLESS},                          \
        {"seq_aux", SL_HF_HARMLESS}, {                                                             \
        "ep_size", SL_HF_HARMLESS                                                                  \
    }

static const sl_hf_key own_latent[] = {LATENT_KEYS};

static sl_status expect_text(sl_json root, const char *key, const char *want, sl_err *err) {
    const char *text = NULL;
    sl_status st = sl_json_string(root, key, SL_JSON_OPTIONAL, &text, err);
    if (st == SL_OK && text && strcmp(text, want) != 0)
        st = sl_json_fail(root, key, err, SL_ERR_UNSUPPORTED,
                          "\"%.40s\" is not supported (supported: \"%s\")", text, want);
    return st;
}

/* head_dim is that of the rotated key until sl_hf_rope has seen it. */
static sl_status read_latents(sl_json root, sl_model_spec *m, sl_err *err) {
    sl_status st =
        sl_hf_u32(root, "num_attention_heads", SL_JSON_REQUIRED, 1, SL_MAX_HEADS, &m->n_heads, err);
    if (st == SL_OK)
        st = sl_hf_expect_u32(root, "num_key_value_heads", m->n_heads, "num_attention_heads", err);
    if (st == SL_OK)
        st = sl_hf_u32(root, "q_lora_rank", SL_JSON_OPTIONAL, 1, SL_MAX_D_MODEL, &m->q_lora, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, "qk_rope_head_dim", SL_JSON_REQUIRED, 2, SL_MAX_ROPE_DIM, &m->head_dim,
                       err);
    if (st == SL_OK)
        st = sl_hf_u32(root, "kv_lora_rank", SL_JSON_REQUIRED, 1, SL_HEAD_DIM_MAX - m->head_dim,
                       &m->kv_lora, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, "qk_nope_head_dim", SL_JSON_REQUIRED, 1, SL_HEAD_DIM_MAX, &m->nope_dim,
                       err);
    if (st == SL_OK)
        st = sl_hf_u32(root, "v_head_dim", SL_JSON_REQUIRED, 1, SL_HEAD_DIM_MAX, &m->v_dim, err);
    if (st == SL_OK) st = sl_hf_expect_u32(root, "head_dim", m->head_dim, "qk_rope_head_dim", err);
    if (st == SL_OK)
        st = sl_hf_expect_u32(root, "qk_head_dim", m->nope_dim + m->head_dim,
                              "qk_nope_head_dim + qk_rope_head_dim", err);
    if (st == SL_OK && m->head_dim % 2 != 0)
        st = sl_json_fail(root, "qk_rope_head_dim", err, SL_ERR_LIMIT, "%u must be even",
                          m->head_dim);
    m->n_kv_heads = 1;
    m->rope_pairs = true;
    return st == SL_OK
               ? sl_json_bool(root, "rope_interleave", SL_JSON_OPTIONAL, &m->rope_pairs, err)
               : st;
}

/* How activations are rounded where products are of 8 bits (activation_scheme) is no matter here:
 * they stay as they are. Scales are f32, whatever set of numbers they were taken from (scale_fmt);
 * which weights are F8_E4M3 is said by their tensors. */
static const sl_hf_key fp8_keys[] = {
    {"quant_method", SL_HF_USED},
    {"weight_block_size", SL_HF_USED},
    {"fmt", SL_HF_IS, {"e4m3"}},
    {"scale_fmt", SL_HF_IS, {"ue8m0", "float"}},
    {"expert_dtype", SL_HF_IS, {"fp8"}},
    {"activation_scheme", SL_HF_HARMLESS},
    {"modules_to_not_convert", SL_HF_HARMLESS},
    {"modules_to_convert", SL_HF_OFF},
    {"dequantize", SL_HF_OFF},
};

/* Blocks of 128 x 128 with a scale each. */
static sl_status read_fp8(sl_json root, sl_model_spec *m, sl_err *err) {
    static const char key[] = "quantization_config", size_key[] = "weight_block_size";
    sl_json q = {0}, size = {0};
    const char *method = NULL;
    sl_status st = sl_json_object(root, key, SL_JSON_OPTIONAL, &q, err);
    if (st != SL_OK || sl_json_kind_of(q) == SL_JSON_ABSENT) return st;
    st = sl_json_string(q, "quant_method", SL_JSON_REQUIRED, &method, err);
    if (st == SL_OK) st = expect_text(q, "quant_method", "fp8", err);
    if (st == SL_OK) st = sl_hf_check_keys(q, fp8_keys, SL_LEN(fp8_keys), NULL, 0, err);
    if (st == SL_OK) st = sl_json_array(q, size_key, SL_JSON_REQUIRED, &size, err);
    uint64_t rows = 0, cols = 0;
    if (st == SL_OK &&
        (sl_json_count(size) != 2 || !sl_json_as_u64(sl_json_at(size, 0), &rows) ||
         !sl_json_as_u64(sl_json_at(size, 1), &cols) || rows != SL_F8_BLOCK || cols != SL_F8_BLOCK))
        st = sl_json_fail(q, size_key, err, SL_ERR_UNSUPPORTED, "must be [%u, %u]", SL_F8_BLOCK,
                          SL_F8_BLOCK);
    m->fp8 = true;
    return st;
}

static sl_status read_ffn(sl_json root, double scale, sl_model_spec *m, sl_err *err) {
    uint32_t n_shared = 0, dense = 0;
    sl_status st = sl_hf_u32(root, "first_k_dense_replace", SL_JSON_REQUIRED, 0, SL_MAX_LAYERS,
                             &dense, err); /* classes disagree on what it is when it is absent */
    if (st == SL_OK)
        st = sl_hf_u32(root, "n_shared_experts", SL_JSON_REQUIRED, 1, SL_MAX_SHARED_EXPERTS,
                       &n_shared, err);
    if (st == SL_OK)
        st = sl_json_f64(root, "routed_scaling_factor", SL_JSON_OPTIONAL, 1e-6, 1e6, &scale, err);
    if (st == SL_OK) st = read_fp8(root, m, err);
    m->route_scale = (float)scale;
    m->d_ff_shared = n_shared * m->d_ff_expert;
    m->head_dim = m->kv_lora + m->rope_dim;
    return st;
}

static sl_status read_v2(sl_json root, sl_model_spec *m, sl_err *err) {
    const char *method = "greedy";
    sl_status st = read_ffn(root, 1, m, err);
    if (st == SL_OK) st = expect_text(root, "scoring_func", "softmax", err);
    if (st == SL_OK) st = sl_json_string(root, "topk_method", SL_JSON_REQUIRED, &method, err);
    if (st != SL_OK) return st;
    if (m->norm_topk)
        return sl_json_fail(root, "norm_topk_prob", err, SL_ERR_UNSUPPORTED,
                            "true is not supported for DeepseekV2ForCausalLM");
    if (strcmp(method, "greedy") == 0) return SL_OK;
    if (strcmp(method, "group_limited_greedy") == 0) return sl_hf_groups(root, m, err);
    return sl_json_fail(
        root, "topk_method", err, SL_ERR_UNSUPPORTED,
        "\"%.40s\" is not supported (supported: \"greedy\", \"group_limited_greedy\")", method);
}

static sl_status read_v3(sl_json root, sl_model_spec *m, sl_err *err) {
    sl_status st = read_ffn(root, 2.5, m, err);
    if (st == SL_OK) st = expect_text(root, "scoring_func", "sigmoid", err);
    if (st == SL_OK) st = expect_text(root, "topk_method", "noaux_tc", err);
    if (st == SL_OK) st = sl_hf_groups(root, m, err);
    return st == SL_OK ? sl_hf_u32(root, "num_nextn_predict_layers", SL_JSON_OPTIONAL, 0,
                                   SL_MAX_MTP, &m->n_mtp, err)
                       : st;
}

const sl_family sl_hf_deepseek_v2 = {
    .name = "DeepseekV2ForCausalLM",
    .model_type = "deepseek_v2",
    .key = {SL_LLAMA_KEYS, .experts = "n_routed_experts", .expert_width = "moe_intermediate_size",
            .dense_width = "intermediate_size", .every = "moe_layer_freq",
            .dense_first = "first_k_dense_replace"},
    .latent = true,
    .gguf = {.name = "deepseek2",
             .width = SL_GGUF_EXPERT_WIDTH,
             .rope_pairs = true,
             .has = SL_GGUF_SHARED_COUNT | SL_GGUF_GROUPS | SL_GGUF_SCALE | SL_GGUF_LEADING |
                    SL_GGUF_FURTHER | SL_GGUF_YARN | SL_GGUF_LATENT | SL_GGUF_WEIGHTS},
    .rope_theta = 1e4,
    .rms_eps = 1e-6,
    .rope_part = 1,
    .yarn = true,
    .mscale = true,
    .fp8 = true,
    .own = own_latent,
    .n_own = SL_LEN(own_latent),
    .read_attention = read_latents,
    .read_own = read_v2,
    .describe = sl_hf_shape_shared,
};

const sl_family sl_hf_deepseek_v3 = {
    .name = "DeepseekV3ForCausalLM",
    .model_type = "deepseek_v3",
    .other_type = "kimi_k2",
    .key = {SL_LLAMA_KEYS, .experts = "n_routed_experts", .expert_width = "moe_intermediate_size",
            .dense_width = "intermediate_size", .every = "moe_layer_freq",
            .dense_first = "first_k_dense_replace"},
    .latent = true,
    .small = SL_SMALL_ROUTER_BIAS,
    .gguf = {.name = "deepseek2",
             .width = SL_GGUF_EXPERT_WIDTH,
             .gating = SL_GGUF_GATE_SIGMOID,
             .rope_pairs = true,
             .has = SL_GGUF_SHARED_COUNT | SL_GGUF_GROUPS | SL_GGUF_SCALE | SL_GGUF_LEADING |
                    SL_GGUF_FURTHER | SL_GGUF_YARN | SL_GGUF_LATENT | SL_GGUF_WEIGHTS},
    .rope_theta = 1e4,
    .rms_eps = 1e-6,
    .rope_part = 1,
    .norm_topk = true,
    .yarn = true,
    .mscale = true,
    .fp8 = true,
    .own = own_latent,
    .n_own = SL_LEN(own_latent),
    .read_attention = read_latents,
    .read_own = read_v3,
    .describe = sl_hf_shape_shared,
};
