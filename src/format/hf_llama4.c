/* Llama 4: of a text model alone, and of one that also sees, whose text part is read. */
#include "format/hf_config_int.h"
#include "format/tensors.h"

/* clang-format off */
#define PARTS(P)                                                                                                                                  \
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

static const sl_arch_tensor tensors[] = {PARTS("")};
static const sl_arch_tensor nested[] = {PARTS("language_model.")};
/* clang-format on */

static const sl_arch_store stores[] = {
    {.role = SL_ROLE_EXPERT_GATE,
     .stack = SL_STACK_EXPERTS,
     .transposed = true,
     .after = {SL_DIM_FF_EXPERT}},
    {.role = SL_ROLE_EXPERT_UP,
     .stack = SL_STACK_EXPERTS,
     .transposed = true,
     .before = {SL_DIM_FF_EXPERT}},
    {.role = SL_ROLE_EXPERT_DOWN, .stack = SL_STACK_EXPERTS, .transposed = true},
};
static const char *const ignored[] = {"vision_model.", "multi_modal_projector.", NULL};

static const sl_hf_key own[] = {
    {"no_rope_layers", SL_HF_USED},
    {"no_rope_layer_interval", SL_HF_USED},
    {"attention_chunk_size", SL_HF_USED},
    {"use_qk_norm", SL_HF_USED},
    {"attn_temperature_tuning", SL_HF_USED},
    {"floor_scale", SL_HF_USED},
    {"attn_scale", SL_HF_USED},
    {"norm_topk_prob", SL_HF_OFF},
    {"mlp_only_layers", SL_HF_OFF},
    {"moe_intermediate_size", SL_HF_OFF},
    {"sliding_window", SL_HF_OFF},
    {"decoder_sparse_step", SL_HF_IS, {"1"}},
    {"for_llm_compressor", SL_HF_OFF},
};

/* Beside text_config: what concerns images, which are not read. */
static const sl_hf_key outer[] = {
    {"architectures", SL_HF_USED},
    {"model_type", SL_HF_USED},
    {"text_config", SL_HF_USED},
    {"quantization_config", SL_HF_OFF},
    {"tie_word_embeddings", SL_HF_OFF},
    {"auto_map", SL_HF_OFF},
    {"vision_config", SL_HF_HARMLESS},
    {"boi_token_index", SL_HF_HARMLESS},
    {"eoi_token_index", SL_HF_HARMLESS},
    {"image_token_index", SL_HF_HARMLESS},
    {"_attn_implementation_autoset", SL_HF_HARMLESS},
    {"_name_or_path", SL_HF_HARMLESS},
    {"torch_dtype", SL_HF_HARMLESS},
    {"dtype", SL_HF_HARMLESS},
    {"transformers_version", SL_HF_HARMLESS},
    {"initializer_range", SL_HF_HARMLESS},
    {"pad_token_id", SL_HF_HARMLESS},
    {"use_cache", SL_HF_HARMLESS},
    {"unsloth_version", SL_HF_HARMLESS},
    {"unsloth_fixed", SL_HF_HARMLESS},
};

/* An entry a block: whether it rotates. An empty list is none. */
static sl_status read_unrotated(sl_json root, sl_model_spec *m, sl_err *err) {
    uint32_t every = 4;
    sl_json list = {0};
    sl_status st =
        sl_hf_u32(root, "no_rope_layer_interval", SL_JSON_OPTIONAL, 1, UINT32_MAX, &every, err);
    if (st == SL_OK) st = sl_json_array(root, "no_rope_layers", SL_JSON_OPTIONAL, &list, err);
    if (st != SL_OK) return st;
    size_t n = sl_json_count(list);
    if (n && n != m->n_layers)
        return sl_json_fail(root, "no_rope_layers", err, SL_ERR_FORMAT, "%zu entries for %u blocks",
                            n, m->n_layers);
    for (uint32_t i = 0; i < m->n_layers; i++) {
        uint64_t rotates = (i + 1) % every != 0;
        if (n && (!sl_json_as_u64(sl_json_at(list, i), &rotates) || rotates > 1))
            return sl_json_fail(root, "no_rope_layers", err, SL_ERR_FORMAT,
                                "entry %u must be 0 or 1", i);
        m->unrotated[i] = !rotates;
    }
    return SL_OK;
}

/* Blocks that rotate see their chunk, the others all, unless layer_types says otherwise. */
static sl_status read_sight(sl_json root, sl_model_spec *m, sl_err *err) {
    static const char chunk[] = "chunked_attention", all[] = "full_attention";
    sl_json types = {0};
    bool any = false;
    uint32_t size = 8192;
    sl_status st =
        sl_hf_u32(root, "attention_chunk_size", SL_JSON_OPTIONAL, 1, INT32_MAX, &size, err);
    if (st == SL_OK) st = sl_json_array(root, "layer_types", SL_JSON_OPTIONAL, &types, err);
    if (st != SL_OK) return st;
    if (types.value && sl_json_count(types) != m->n_layers)
        return sl_json_fail(root, "layer_types", err, SL_ERR_FORMAT, "%zu entries for %u blocks",
                            sl_json_count(types), m->n_layers);
    for (uint32_t i = 0; i < m->n_layers; i++) {
        bool is_chunk = sl_json_is_text(sl_json_at(types, i), chunk);
        if (types.value && !is_chunk && !sl_json_is_text(sl_json_at(types, i), all))
            return sl_json_fail(root, "layer_types", err, SL_ERR_UNSUPPORTED,
                                "layer %u must be \"%s\" or \"%s\"", i, chunk, all);
        bool chunked = types.value ? is_chunk : !m->unrotated[i];
        m->sight[i] = chunked ? SL_SIGHT_CHUNK : SL_SIGHT_ALL;
        any = any || chunked;
    }
    m->attn_chunk = any ? size : 0;
    return SL_OK;
}

/* A boolean, or a number where 0 is false. */
static sl_status read_tuning(sl_json root, sl_model_spec *m, sl_err *err) {
    static const char key[] = "attn_temperature_tuning";
    sl_json v = sl_json_get(root, key);
    double number = 1, floor_scale = 8192, growth = 0.1;
    bool on = true;
    sl_status st = SL_OK;
    if (sl_json_as_f64(v, &number))
        on = number != 0;
    else
        st = sl_json_bool(root, key, SL_JSON_OPTIONAL, &on, err);
    if (st == SL_OK)
        st = sl_json_f64(root, "floor_scale", SL_JSON_OPTIONAL, 1, 1e9, &floor_scale, err);
    if (st == SL_OK) st = sl_json_f64(root, "attn_scale", SL_JSON_OPTIONAL, 0, 1e3, &growth, err);
    m->query_floor = on ? (float)floor_scale : 0;
    m->query_growth = on ? (float)growth : 0;
    return st;
}

static sl_status read_llama4(sl_json root, sl_model_spec *m, sl_err *err) {
    m->rope_pairs = m->gate_input = m->qk_unit = true;
    sl_status st = sl_json_bool(root, "use_qk_norm", SL_JSON_OPTIONAL, &m->qk_unit, err);
    if (st == SL_OK) st = read_unrotated(root, m, err);
    if (st == SL_OK) st = read_sight(root, m, err);
    return st == SL_OK ? read_tuning(root, m, err) : st;
}

/* What both rows say. */
#define ROUTED STORES(stores), .router = SL_ROUTER_SIGMOID_TOPK
#define TEXT                                                                                       \
    .rope_theta = 5e5, .rms_eps = 1e-5,                                                            \
    .key = {SL_LLAMA_KEYS,                                                                         \
            .bias = "attention_bias",                                                              \
            .experts = "num_local_experts",                                                        \
            .expert_width = "intermediate_size",                                                   \
            .dense_width = "intermediate_size_mlp",                                                \
            .every = "interleave_moe_layer_step",                                                  \
            .routed = "moe_layers"},                                                               \
    .given = {.n_shared = 1}, .o_bias = true, .llama3 = true, .own_types = true,                   \
    .own = SL_HF_KEYS(own), .read_own = read_llama4

const sl_family sl_hf_llama4 = {.name = "Llama4ForCausalLM",
                                .arch = {TENSORS(tensors), ROUTED},
                                .model_type = "llama4_text",
                                .gguf = {.name = "llama4",
                                         .width = SL_GGUF_EXPERT_WIDTH,
                                         .gating = SL_GGUF_GATE_SIGMOID,
                                         .rope_pairs = true,
                                         .has = SL_GGUF_LLAMA4},
                                TEXT};

const sl_family sl_hf_llama4_nested = {.name = "Llama4ForConditionalGeneration",
                                       .arch = {TENSORS(nested), ROUTED, .ignored = ignored},
                                       .model_type = "llama4",
                                       .nested = "text_config",
                                       .outer = SL_HF_KEYS(outer),
                                       TEXT};
