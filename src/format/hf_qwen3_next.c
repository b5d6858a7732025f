/* Qwen3-Next: gated DeltaNet in three of four blocks, gated attention in the fourth. */
#include "format/hf_config_int.h"
#include "format/tensors.h"

/* clang-format off */
static const sl_arch_tensor tensors[] = {
    FRAME_TENSORS,
    {SL_ROLE_Q,            SL_SCOPE_FULL_BLOCK,   ATTN, BLOCK "self_attn.q_proj.weight",            SL_DIM_Q_GATED,        SL_DIM_MODEL},
    {SL_ROLE_K,            SL_SCOPE_FULL_BLOCK,   ATTN, BLOCK "self_attn.k_proj.weight",            SL_DIM_KV,             SL_DIM_MODEL},
    {SL_ROLE_V,            SL_SCOPE_FULL_BLOCK,   ATTN, BLOCK "self_attn.v_proj.weight",            SL_DIM_KV,             SL_DIM_MODEL},
    {SL_ROLE_O,            SL_SCOPE_FULL_BLOCK,   ATTN, BLOCK "self_attn.o_proj.weight",            SL_DIM_MODEL,          SL_DIM_Q},
    {SL_ROLE_Q_NORM,       SL_SCOPE_FULL_BLOCK,   ATTN, BLOCK "self_attn.q_norm.weight",            SL_DIM_HEAD,           SL_DIM_NONE},
    {SL_ROLE_K_NORM,       SL_SCOPE_FULL_BLOCK,   ATTN, BLOCK "self_attn.k_norm.weight",            SL_DIM_HEAD,           SL_DIM_NONE},
    {SL_ROLE_DELTA_IN,     SL_SCOPE_LINEAR_BLOCK, ATTN, BLOCK "linear_attn.in_proj_qkvz.weight",    SL_DIM_DELTA_IN,       SL_DIM_MODEL},
    {SL_ROLE_DELTA_QKV,    SL_SCOPE_LINEAR_BLOCK, ATTN, NULL,                                       SL_DIM_DELTA_CHANNELS, SL_DIM_MODEL},
    {SL_ROLE_DELTA_GATE,   SL_SCOPE_LINEAR_BLOCK, ATTN, NULL,                                       SL_DIM_DELTA_OUT,      SL_DIM_MODEL},
    {SL_ROLE_DELTA_SMALL,  SL_SCOPE_LINEAR_BLOCK, ATTN, BLOCK "linear_attn.in_proj_ba.weight",      SL_DIM_DELTA_SMALL,    SL_DIM_MODEL},
    {SL_ROLE_DELTA_CONV,   SL_SCOPE_LINEAR_BLOCK, ATTN, BLOCK "linear_attn.conv1d.weight",          SL_DIM_DELTA_CHANNELS, SL_DIM_DELTA_TAPS},
    {SL_ROLE_DELTA_SHIFT,  SL_SCOPE_LINEAR_BLOCK, ATTN, BLOCK "linear_attn.dt_bias",                SL_DIM_DELTA_HEADS,    SL_DIM_NONE},
    {SL_ROLE_DELTA_RATE,   SL_SCOPE_LINEAR_BLOCK, ATTN, BLOCK "linear_attn.A_log",                  SL_DIM_DELTA_HEADS,    SL_DIM_NONE},
    {SL_ROLE_DELTA_NORM,   SL_SCOPE_LINEAR_BLOCK, ATTN, BLOCK "linear_attn.norm.weight",            SL_DIM_DELTA_V,        SL_DIM_NONE},
    {SL_ROLE_DELTA_OUT,    SL_SCOPE_LINEAR_BLOCK, ATTN, BLOCK "linear_attn.out_proj.weight",        SL_DIM_MODEL,          SL_DIM_DELTA_OUT},
    {SL_ROLE_ROUTER,       SL_SCOPE_MOE_BLOCK,    ATTN, BLOCK "mlp.gate.weight",                    SL_DIM_EXPERTS,        SL_DIM_MODEL},
    MLP_DENSE,
    MLP_SHARED_GATED,
    MLP_EXPERTS,
    {SL_ROLE_MTP_TOKEN_NORM, SL_SCOPE_MTP, ATTN, "mtp.pre_fc_norm_embedding.weight", SL_DIM_MODEL, SL_DIM_NONE},
    {SL_ROLE_MTP_STATE_NORM, SL_SCOPE_MTP, ATTN, "mtp.pre_fc_norm_hidden.weight",    SL_DIM_MODEL, SL_DIM_NONE},
    {SL_ROLE_MTP_IN,         SL_SCOPE_MTP, ATTN, "mtp.fc.weight",                    SL_DIM_MODEL, SL_DIM_MODEL_TWICE},
    {SL_ROLE_MTP_NORM,       SL_SCOPE_MTP, ATTN, "mtp.norm.weight",                  SL_DIM_MODEL, SL_DIM_NONE},
};
/* clang-format on */

static const sl_arch_alias names[] = {GGUF_FFN_NORM, {0}};
static const sl_arch_store stores[] = {{.role = SL_ROLE_DELTA_CONV, .stack = SL_STACK_CHANNELS}};
static const char *const ignored[] = {"mtp.", NULL}; /* unless it is asked for */

static const sl_hf_key own[] = {
    {"partial_rotary_factor", SL_HF_USED},
    {"shared_expert_intermediate_size", SL_HF_USED},
    {"full_attention_interval", SL_HF_USED},
    {"linear_conv_kernel_dim", SL_HF_USED},
    {"linear_key_head_dim", SL_HF_USED},
    {"linear_value_head_dim", SL_HF_USED},
    {"linear_num_key_heads", SL_HF_USED},
    {"linear_num_value_heads", SL_HF_USED},
    {"num_nextn_predict_layers", SL_HF_HARMLESS}, /* weights say it */
};

/* An entry a block, or every so many have keys and values. */
static sl_status read_types(sl_json root, sl_model_spec *m, sl_err *err) {
    static const char linear[] = "linear_attention", full[] = "full_attention";
    uint32_t every = 4;
    sl_json types = {0};
    sl_status st = sl_hf_u32(root, "full_attention_interval", SL_JSON_OPTIONAL, 1, SL_MAX_LAYERS,
                             &every, err);
    if (st == SL_OK) st = sl_json_array(root, "layer_types", SL_JSON_OPTIONAL, &types, err);
    if (st != SL_OK) return st;
    if (types.value && sl_json_count(types) != m->n_layers)
        return sl_json_fail(root, "layer_types", err, SL_ERR_FORMAT, "%zu entries for %u blocks",
                            sl_json_count(types), m->n_layers);
    sl_model_make_linear(m, every);
    for (uint32_t i = 0; types.value && i < m->n_layers; i++) {
        m->linear[i] = sl_json_is_text(sl_json_at(types, i), linear);
        if (!m->linear[i] && !sl_json_is_text(sl_json_at(types, i), full))
            return sl_json_fail(root, "layer_types", err, SL_ERR_UNSUPPORTED,
                                "layer %u must be \"%s\" or \"%s\"", i, linear, full);
    }
    sl_model_number_linear(m);
    return SL_OK;
}

static sl_status read_delta(sl_json root, sl_model_spec *m, sl_err *err) {
    const struct {
        const char *key;
        uint32_t given, max, *out;
    } sizes[] = {
        {"linear_num_key_heads", 16, SL_MAX_HEADS, &m->delta_k_heads},
        {"linear_num_value_heads", 32, SL_MAX_HEADS, &m->delta_v_heads},
        {"linear_key_head_dim", 128, SL_DELTA_DIM, &m->delta_k_dim},
        {"linear_value_head_dim", 128, SL_DELTA_DIM, &m->delta_v_dim},
        {"linear_conv_kernel_dim", 4, SL_DELTA_TAPS, &m->delta_taps},
    };
    sl_status st = read_types(root, m, err);
    m->gated = m->norm_past_one = true;
    for (size_t i = 0; st == SL_OK && i < SL_LEN(sizes); i++) {
        *sizes[i].out = sizes[i].given;
        st = sl_hf_u32(root, sizes[i].key, SL_JSON_OPTIONAL, 1, sizes[i].max, sizes[i].out, err);
    }
    if (st != SL_OK) return st;
    if (!sl_delta_fits(m))
        return sl_json_fail(root, "linear_num_value_heads", err, SL_ERR_LIMIT,
                            "%u of %u values: must be a multiple of linear_num_key_heads %u, with "
                            "%u values each at most",
                            m->delta_v_heads, m->delta_v_dim, m->delta_k_heads, SL_DELTA_VALUES);
    return SL_OK;
}

const sl_family sl_hf_qwen3_next = {
    .name = "Qwen3NextForCausalLM",
    .arch = {TENSORS(tensors), STORES(stores), .gguf = names, .ignored = ignored,
             .mtp_block = "mtp.layers.0.", .mtp_sign = "mtp.fc.weight", .mtp_normed = true},
    .model_type = "qwen3_next",
    .key = {SL_LLAMA_KEYS, .experts = "num_experts", .expert_width = "moe_intermediate_size",
            .dense_width = "intermediate_size", .shared_width = "shared_expert_intermediate_size",
            .every = "decoder_sparse_step", .dense = "mlp_only_layers"},
    .qk_norm = true,
    .read_delta = read_delta,
    .gguf = {.name = "qwen3next",
             .width = SL_GGUF_EXPERT_WIDTH,
             .norm_topk = true,
             .has = SL_GGUF_SHARED_WIDTH | SL_GGUF_FURTHER | SL_GGUF_YARN | SL_GGUF_PARTIAL |
                    SL_GGUF_LINEAR},
    .rope_theta = 1e4,
    .rms_eps = 1e-6,
    .rope_part = 0.25,
    .norm_topk = true,
    .yarn = true,
    .own_types = true,
    .quant = "fp8",
    .own = SL_HF_KEYS(own),
    .read_quant = sl_hf_read_fp8,
};
