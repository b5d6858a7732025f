/* DBRX: names of its own, attention and feed-forward in objects of their own. */
#include "format/hf_config_int.h"
#include "format/tensors.h"

#undef BLOCK
#define BLOCK "transformer.blocks.{L}."
#define QKV   BLOCK "norm_attn_norm.attn.Wqkv.weight"
/* clang-format off */
static const sl_arch_tensor tensors[] = {
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
static const sl_arch_store stores[] = {
    {SL_ROLE_Q,           .gguf = true, .after = {SL_DIM_KV, SL_DIM_KV}},
    {SL_ROLE_K,           .gguf = true, .before = {SL_DIM_Q}, .after = {SL_DIM_KV}},
    {SL_ROLE_V,           .gguf = true, .before = {SL_DIM_Q, SL_DIM_KV}},
    {SL_ROLE_EXPERT_GATE, .stack = SL_STACK_ROWS},
    {SL_ROLE_EXPERT_UP,   .stack = SL_STACK_ROWS},
    {SL_ROLE_EXPERT_DOWN, .stack = SL_STACK_ROWS, .transposed = true},
};
/* clang-format on */

/* One tensor for queries, keys and values in GGUF, too. */
static const sl_arch_alias gguf_names[] = {{"attn_qkv.weight", SL_ROLE_Q, false},
                                           {"attn_qkv.weight", SL_ROLE_K, false},
                                           {"attn_qkv.weight", SL_ROLE_V, false},
                                           {"attn_output_norm.weight", SL_ROLE_FFN_NORM, false},
                                           {0}};

static const sl_hf_key root_keys[] = {
    {"vocab_size", SL_HF_USED},
    {"attn_config", SL_HF_USED},
    {"ffn_config", SL_HF_USED},
    {"architectures", SL_HF_USED},
    {"model_type", SL_HF_USED},
    {"num_key_value_heads", SL_HF_USED},
    {"rope_parameters", SL_HF_USED},
    {"tie_word_embeddings", SL_HF_USED},
    {"bos_token_id", SL_HF_USED},
    {"eos_token_id", SL_HF_USED},
    {"quantization_config", SL_HF_USED},
    {"auto_map",
     SL_HF_HARMLESS}, /* code for older libraries, which computes what is built in now */
    {"emb_pdrop", SL_HF_HARMLESS},
    {"resid_pdrop", SL_HF_HARMLESS},
};

/* What a library writes into every object; of inner ones nothing reads it. */
#define INNER_KEYS                                                                                 \
    {"model_type", SL_HF_HARMLESS}, {"architectures", SL_HF_HARMLESS},                             \
        {"tie_word_embeddings", SL_HF_HARMLESS}, {"bos_token_id", SL_HF_HARMLESS}, {               \
        "eos_token_id", SL_HF_HARMLESS                                                             \
    }

static const sl_hf_key attn_keys[] = {
    INNER_KEYS,
    {"clip_qkv", SL_HF_USED},
    {"kv_n_heads", SL_HF_USED},
    {"rope_theta", SL_HF_USED},
    {"attn_pdrop", SL_HF_HARMLESS},
};

static const sl_hf_key ffn_keys[] = {
    INNER_KEYS,
    {"hidden_size", SL_HF_USED},
    {"ffn_act_fn", SL_HF_USED},
    {"ffn_hidden_size", SL_HF_USED},
    {"moe_num_experts", SL_HF_USED},
    {"moe_top_k", SL_HF_USED},
    {"moe_normalize_expert_weights", SL_HF_USED},
    {"moe_jitter_eps", SL_HF_HARMLESS}, /* of training */
    {"moe_loss_weight", SL_HF_HARMLESS},
    {"uniform_expert_assignment", SL_HF_OFF},
};

/* attn_config's where there is one. transformers 5 reads rope_parameters instead and, when it saves
 * a model that has none, writes what it assumes: 1e4. */
static sl_status read_theta(sl_json attn, sl_model_spec *m, sl_err *err) {
    double own = 0;
    sl_status st = sl_json_f64(attn, "rope_theta", SL_JSON_OPTIONAL, 1, 1e12, &own, err);
    if (st != SL_OK || own == 0) return st;
    if (m->rope_theta != (float)own && m->rope_theta != (float)sl_hf_dbrx.rope_theta)
        return sl_json_fail(attn, "rope_theta", err, SL_ERR_FORMAT,
                            "%g contradicts rope_parameters.rope_theta %g", own,
                            (double)m->rope_theta);
    m->rope_theta = (float)own;
    return SL_OK;
}

static sl_status read_attention(sl_json root, sl_model_spec *m, sl_err *err) {
    const sl_hf_keys keys = SL_HF_KEYS(attn_keys);
    uint32_t again = m->n_kv_heads;
    sl_json attn = {0};
    double clip = 0;
    sl_status st = sl_json_object(root, "attn_config", SL_JSON_REQUIRED, &attn, err);
    if (st == SL_OK) st = sl_hf_check_family(attn, &sl_hf_dbrx, keys, err);
    if (st == SL_OK) st = sl_json_f64(attn, "clip_qkv", SL_JSON_OPTIONAL, 1e-6, 1e6, &clip, err);
    if (st == SL_OK) st = read_theta(attn, m, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, "num_key_value_heads", SL_JSON_OPTIONAL, 1, SL_MAX_HEADS, &again, err);
    if (st == SL_OK && again != m->n_kv_heads)
        st = sl_json_fail(root, "num_key_value_heads", err, SL_ERR_FORMAT,
                          "%u contradicts attn_config.kv_n_heads %u", again, m->n_kv_heads);
    m->clip_qkv = (float)clip;
    return st;
}

static sl_status read_activation(sl_json ffn, sl_err *err) {
    static const char *const known[] = {"name"};
    sl_json act = {0};
    const char *name = "silu";
    sl_status st = sl_json_object(ffn, "ffn_act_fn", SL_JSON_OPTIONAL, &act, err);
    if (st != SL_OK || sl_json_kind_of(act) != SL_JSON_OBJECT) return st;
    st = sl_json_only(act, known, SL_LEN(known), err);
    if (st == SL_OK) st = sl_json_string(act, "name", SL_JSON_OPTIONAL, &name, err);
    if (st == SL_OK && strcmp(name, "silu") != 0)
        st = sl_json_fail(act, "name", err, SL_ERR_UNSUPPORTED,
                          "\"%.64s\" is not supported (supported: \"silu\")", name);
    return st;
}

/* The weights of the chosen are divided by their p-norm: by their sum, or not at all. */
static sl_status read_normalization(sl_json ffn, sl_model_spec *m, sl_err *err) {
    static const char key[] = "moe_normalize_expert_weights";
    sl_json v = sl_json_get(ffn, key);
    double p = 0;
    m->norm_topk = sl_json_kind_of(v) != SL_JSON_NULL;
    if (sl_json_kind_of(v) <= SL_JSON_NULL || (sl_json_as_f64(v, &p) && p == 1)) return SL_OK;
    return sl_json_fail(ffn, key, err, SL_ERR_UNSUPPORTED,
                        "supported only as 1 (weights of sum 1) or null");
}

static sl_status read_own(sl_json root, sl_model_spec *m, sl_err *err) {
    const sl_hf_keys keys = SL_HF_KEYS(ffn_keys);
    sl_json ffn = {0};
    if (m->tied_head)
        return sl_json_fail(root, "tie_word_embeddings", err, SL_ERR_UNSUPPORTED,
                            "true is not supported for DbrxForCausalLM");
    sl_status st = read_attention(root, m, err);
    if (st == SL_OK) st = sl_json_object(root, "ffn_config", SL_JSON_REQUIRED, &ffn, err);
    if (st == SL_OK) st = sl_hf_check_family(ffn, &sl_hf_dbrx, keys, err);
    if (st == SL_OK) st = sl_hf_expect_u32(ffn, "hidden_size", m->d_model, "d_model", err);
    if (st == SL_OK) st = read_activation(ffn, err);
    return st == SL_OK ? read_normalization(ffn, m, err) : st;
}

/* What is left out is as transformers assumes. */
const sl_family sl_hf_dbrx = {
    .name = "DbrxForCausalLM",
    .arch = {TENSORS(tensors), STORES(stores), .layer_norm = true, .gguf = gguf_names},
    .model_type = "dbrx",
    .key = {.layers = "n_layers",
            .d_model = "d_model",
            .max_position = "max_seq_len",
            .heads = "n_heads",
            .kv_heads = "attn_config.kv_n_heads",
            .experts = "ffn_config.moe_num_experts",
            .top_k = "ffn_config.moe_top_k",
            .expert_width = "ffn_config.ffn_hidden_size"},
    .given = {.kv_heads = 1, .experts = 4, .top_k = 1, .expert_width = 3584},
    .gguf = {.name = "dbrx",
             .width = "feed_forward_length",
             .eps = "attention.layer_norm_epsilon",
             .norm_topk = true,
             .has = SL_GGUF_CLAMP},
    .rope_theta = 1e4,
    .rms_eps = 1e-5, /* of torch's LayerNorm; the file has none */
    .apart = true,
    .own = SL_HF_KEYS(root_keys),
    .read_own = read_own};
