/* gpt-oss: windows in every other block, YaRN without whole pairs, experts of four bits. */
#include "format/hf_config_int.h"
#include "format/tensors.h"

/* clang-format off */
static const sl_arch_tensor tensors[] = {
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
/* clang-format on */

static const sl_arch_store stores[] = {
    {.role = SL_ROLE_EXPERT_GATE, SL_STACK_EXPERTS, .transposed = true, .step = 2},
    {.role = SL_ROLE_EXPERT_UP, SL_STACK_EXPERTS, .transposed = true, .step = 2, .phase = 1},
    {.role = SL_ROLE_EXPERT_DOWN, SL_STACK_EXPERTS, .transposed = true},
    {.role = SL_ROLE_EXPERT_GATE_BIAS, SL_STACK_EXPERTS, .step = 2},
    {.role = SL_ROLE_EXPERT_UP_BIAS, SL_STACK_EXPERTS, .step = 2, .phase = 1},
    {.role = SL_ROLE_EXPERT_DOWN_BIAS, SL_STACK_EXPERTS},
};

static const sl_arch_alias gguf_names[] = {GGUF_FFN_NORM, {0}};

static const sl_hf_key own[] = {
    {"attention_bias", SL_HF_USED},
    {"experts_per_token", SL_HF_USED},
    {"initial_context_length", SL_HF_HARMLESS},
    /* Constants of the clamped SwiGLU. */
    {"swiglu_limit", SL_HF_IS, {"7"}},
    {"swiglu_alpha", SL_HF_IS, {"1.702"}},
};

static const sl_hf_key quant_keys[] = {
    {"quant_method", SL_HF_USED},
    {"modules_to_not_convert", SL_HF_USED},
    {"dequantize", SL_HF_OFF},
};

/* What transformers fills in when the file is silent, differently from other classes. */
static sl_status check_given(sl_json root, sl_err *err) {
    static const char *const keys[] = {"head_dim", "sliding_window"};
    for (size_t i = 0; i < SL_LEN(keys); i++)
        if (sl_json_kind_of(sl_json_get(root, keys[i])) <= SL_JSON_NULL)
            return sl_json_fail(root, keys[i], err, SL_ERR_FORMAT, "missing");
    if (sl_json_kind_of(sl_json_get(root, "rope_scaling")) == SL_JSON_ABSENT &&
        sl_json_kind_of(sl_json_get(root, "rope_parameters")) == SL_JSON_ABSENT)
        return sl_json_fail(root, "rope_scaling", err, SL_ERR_FORMAT, "missing");
    return SL_OK;
}

static sl_status read_own(sl_json root, sl_model_spec *m, sl_err *err) {
    uint32_t top_k = m->top_k;
    sl_status st = check_given(root, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, "experts_per_token", SL_JSON_OPTIONAL, 1, SL_MAX_TOP_K, &top_k, err);
    if (st == SL_OK && top_k != m->top_k)
        st = sl_json_fail(root, "experts_per_token", err, SL_ERR_FORMAT,
                          "%u contradicts num_experts_per_tok %u", top_k, m->top_k);
    m->glu_limit = 7;
    return st;
}

/* Everything but the experts is stored in plain types, whatever this list says of it. */
static sl_status check_kept(sl_json quant, sl_err *err) {
    static const char experts[] = "experts";
    sl_json list = {0};
    sl_status st = sl_json_array(quant, "modules_to_not_convert", SL_JSON_OPTIONAL, &list, err);
    for (size_t i = 0; st == SL_OK && i < sl_json_count(list); i++) {
        sl_span name = {0};
        if (!sl_json_as_span(sl_json_at(list, i), &name))
            return sl_json_fail(quant, "modules_to_not_convert", err, SL_ERR_FORMAT,
                                "entry %zu must be a text", i);
        if (memmem(name.data, name.len, experts, sizeof experts - 1))
            return sl_json_fail(quant, "modules_to_not_convert", err, SL_ERR_UNSUPPORTED,
                                "\"%.*s\": experts that are not converted",
                                (int)SL_MIN(name.len, (size_t)64), (const char *)name.data);
    }
    return st;
}

static sl_status read_quant(sl_json root, sl_json quant, sl_model_spec *m, sl_err *err) {
    const sl_hf_keys keys = SL_HF_KEYS(quant_keys);
    sl_status st = sl_hf_check_keys(quant, keys, (sl_hf_keys){0}, err);
    if (st == SL_OK) st = check_kept(quant, err);
    if (st != SL_OK) return st;
    uint32_t block = sl_dtype_block(SL_MXFP4);
    if (m->d_model % block != 0 || m->d_ff_expert % block != 0)
        return sl_json_fail(root, m->d_model % block ? "hidden_size" : "intermediate_size", err,
                            SL_ERR_FORMAT,
                            "%u is no multiple of %u, the values of a block of mxfp4",
                            m->d_model % block ? m->d_model : m->d_ff_expert, block);
    m->mxfp4 = true;
    return SL_OK;
}

const sl_family sl_hf_gpt_oss = {
    .name = "GptOssForCausalLM",
    .arch = {TENSORS(tensors), STORES(stores), .gguf = gguf_names},
    .model_type = "gpt_oss",
    .key = {SL_LLAMA_KEYS, .bias = "attention_bias", .window = "sliding_window",
            .experts = "num_local_experts", .expert_width = "intermediate_size"},
    .given = {.window = 128},
    .bias_given = true,
    .o_bias = true,
    .windows = true,
    .gguf = {.name = "gpt-oss",
             .width = SL_GGUF_EXPERT_WIDTH,
             .gating = SL_GGUF_GATE_CHOSEN,
             .norm_topk = true,
             .has = SL_GGUF_YARN | SL_GGUF_WINDOWS | SL_GGUF_GPT_OSS},
    .rope_theta = 150000,
    .rms_eps = 1e-5,
    .norm_topk = true,
    .norm_topk_fixed = true,
    .yarn = true,
    .quant = "mxfp4",
    .own = SL_HF_KEYS(own),
    .read_own = read_own,
    .read_quant = read_quant,
};
