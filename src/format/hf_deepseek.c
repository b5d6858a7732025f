/* DeepSeek-V2 (arXiv:2405.04434) and V3 (arXiv:2412.19437), with all that share their classes:
 * V2-Lite, R1, Kimi-K2. */
#include "format/hf_config_int.h"
#include "format/tensors.h"

/* clang-format off */
#define PARTS                                                                                                              \
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

static const sl_arch_tensor tensors_v2[] = {
    PARTS,
};
static const sl_arch_tensor tensors_v3[] = {
    PARTS,
    {SL_ROLE_ROUTER_BIAS, SL_SCOPE_MOE_BLOCK, ATTN, BLOCK "mlp.gate.e_score_correction_bias", SL_DIM_EXPERTS, SL_DIM_NONE},
    MTP,
};
/* clang-format on */

static const sl_arch_store stores[] = {
    {.role = SL_ROLE_K_B, SL_STACK_HEADS, .gguf = true},
    {.role = SL_ROLE_V_B, SL_STACK_HEADS, .gguf = true},
};

/* Keys of both classes. Weights are read by name, so that code which a file points to (auto_map)
 * has nothing to say. */
static const sl_hf_key own[] = {
    {"q_lora_rank", SL_HF_USED},
    {"kv_lora_rank", SL_HF_USED},
    {"qk_nope_head_dim", SL_HF_USED},
    {"qk_rope_head_dim", SL_HF_USED},
    {"qk_head_dim", SL_HF_USED},
    {"v_head_dim", SL_HF_USED},
    {"routed_scaling_factor", SL_HF_USED},
    {"n_group", SL_HF_USED},
    {"topk_group", SL_HF_USED},
    {"topk_method", SL_HF_USED},
    {"scoring_func", SL_HF_USED},
    {"rope_interleave", SL_HF_USED},
    {"num_nextn_predict_layers", SL_HF_USED},
    {"moe_layer_freq", SL_HF_IS, {"1"}},
    {"auto_map", SL_HF_HARMLESS},
    {"aux_loss_alpha", SL_HF_HARMLESS},
    {"seq_aux", SL_HF_HARMLESS},
    {"ep_size", SL_HF_HARMLESS},
};

static sl_status expect_text(sl_json root, const char *key, const char *want, sl_err *err) {
    const char *text = NULL;
    sl_status st = sl_json_string(root, key, SL_JSON_OPTIONAL, &text, err);
    if (st == SL_OK && text && strcmp(text, want) != 0)
        st = sl_json_fail(root, key, err, SL_ERR_UNSUPPORTED,
                          "\"%.40s\" is not supported (supported: \"%s\")", text, want);
    return st;
}

sl_status sl_hf_check_latents(sl_json root, const sl_model_spec *m, sl_err *err) {
    const struct {
        const char *key;
        uint32_t min, max;
    } sizes[] = {{"qk_rope_head_dim", 2, SL_MAX_ROPE_DIM},
                 {"kv_lora_rank", 1, SL_HEAD_DIM_MAX - SL_MIN(m->rope_dim, SL_MAX_ROPE_DIM)},
                 {"qk_nope_head_dim", 1, SL_HEAD_DIM_MAX},
                 {"v_head_dim", 1, SL_HEAD_DIM_MAX}};
    sl_status st =
        sl_hf_expect_u32(root, "num_key_value_heads", m->n_heads, "num_attention_heads", err);
    for (size_t i = 0; st == SL_OK && i < SL_LEN(sizes); i++) {
        uint32_t size = 0;
        st =
            sl_hf_u32(root, sizes[i].key, SL_JSON_REQUIRED, sizes[i].min, sizes[i].max, &size, err);
    }
    if (st == SL_OK) st = sl_hf_expect_u32(root, "head_dim", m->rope_dim, "qk_rope_head_dim", err);
    if (st == SL_OK)
        st = sl_hf_expect_u32(root, "qk_head_dim", m->nope_dim + m->rope_dim,
                              "qk_nope_head_dim + qk_rope_head_dim", err);
    if (st == SL_OK && m->rope_dim % 2 != 0)
        st = sl_json_fail(root, "qk_rope_head_dim", err, SL_ERR_LIMIT, "%u must be even",
                          m->rope_dim);
    return st;
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
sl_status sl_hf_read_fp8(sl_json root, sl_json q, sl_model_spec *m, sl_err *err) {
    static const char size_key[] = "weight_block_size";
    const sl_hf_keys keys = SL_HF_KEYS(fp8_keys);
    sl_json size = {0};
    uint64_t rows = 0, cols = 0;
    (void)root;
    sl_status st = sl_hf_check_keys(q, keys, (sl_hf_keys){0}, err);
    if (st == SL_OK) st = sl_json_array(q, size_key, SL_JSON_REQUIRED, &size, err);
    if (st == SL_OK &&
        (sl_json_count(size) != 2 || !sl_json_as_u64(sl_json_at(size, 0), &rows) ||
         !sl_json_as_u64(sl_json_at(size, 1), &cols) || rows != SL_F8_BLOCK || cols != SL_F8_BLOCK))
        st = sl_json_fail(q, size_key, err, SL_ERR_UNSUPPORTED, "must be [%u, %u]", SL_F8_BLOCK,
                          SL_F8_BLOCK);
    m->fp8 = true;
    return st;
}

static sl_status read_own(sl_json root, const char *scores, sl_model_spec *m, sl_err *err) {
    uint32_t dense = 0; /* classes disagree on what it is when it is absent */
    m->rope_pairs = true;
    sl_status st = sl_json_bool(root, "rope_interleave", SL_JSON_OPTIONAL, &m->rope_pairs, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, "first_k_dense_replace", SL_JSON_REQUIRED, 0, SL_MAX_LAYERS, &dense,
                       err);
    return st == SL_OK ? expect_text(root, "scoring_func", scores, err) : st;
}

static sl_status read_v2(sl_json root, sl_model_spec *m, sl_err *err) {
    const char *method = "greedy";
    sl_status st = read_own(root, "softmax", m, err);
    if (st == SL_OK) st = sl_json_string(root, "topk_method", SL_JSON_REQUIRED, &method, err);
    if (st != SL_OK || strcmp(method, "greedy") == 0) return st;
    if (strcmp(method, "group_limited_greedy") == 0) return sl_hf_groups(root, m, err);
    return sl_json_fail(
        root, "topk_method", err, SL_ERR_UNSUPPORTED,
        "\"%.40s\" is not supported (supported: \"greedy\", \"group_limited_greedy\")", method);
}

static sl_status read_v3(sl_json root, sl_model_spec *m, sl_err *err) {
    sl_status st = read_own(root, "sigmoid", m, err);
    if (st == SL_OK) st = expect_text(root, "topk_method", "noaux_tc", err);
    return st == SL_OK ? sl_hf_groups(root, m, err) : st;
}

/* What both rows say. */
#define KEYS                                                                                       \
    SL_LLAMA_KEYS, .experts = "n_routed_experts", .expert_width = "moe_intermediate_size",         \
                   .dense_width = "intermediate_size", .n_shared = "n_shared_experts",             \
                   .every = "moe_layer_freq", .dense_first = "first_k_dense_replace"
#define GGUF                                                                                       \
    .name = "deepseek2", .width = SL_GGUF_EXPERT_WIDTH, .rope_pairs = true,                        \
    .has = SL_GGUF_SHARED_COUNT | SL_GGUF_GROUPS | SL_GGUF_SCALE | SL_GGUF_LEADING |               \
           SL_GGUF_FURTHER | SL_GGUF_YARN | SL_GGUF_LATENT | SL_GGUF_WEIGHTS
#define BOTH                                                                                       \
    .latent = true, .rope_theta = 1e4, .rms_eps = 1e-6, .yarn = true, .mscale = true,              \
    .quant = "fp8", .own = SL_HF_KEYS(own), .read_quant = sl_hf_read_fp8

const sl_family sl_hf_deepseek_v2 = {.name = "DeepseekV2ForCausalLM",
                                     .arch = {TENSORS(tensors_v2), STORES(stores)},
                                     .model_type = "deepseek_v2",
                                     .key = {KEYS},
                                     .gguf = {GGUF},
                                     .route_scale = 1,
                                     .norm_topk_fixed = true,
                                     .read_own = read_v2,
                                     BOTH};

const sl_family sl_hf_deepseek_v3 = {
    .name = "DeepseekV3ForCausalLM",
    .arch = {TENSORS(tensors_v3), STORES(stores), .router = SL_ROUTER_SIGMOID_GROUPS},
    .model_type = "deepseek_v3",
    .other_type = "kimi_k2",
    .key = {KEYS, .further = "num_nextn_predict_layers"},
    .gguf = {GGUF, .gating = SL_GGUF_GATE_SIGMOID},
    .route_scale = 2.5,
    .norm_topk = true,
    .read_own = read_v3,
    BOTH};
