/* DBRX: names of its own, attention and feed-forward in objects of their own. */
#include "format/hf_config_int.h"

static const sl_hf_key root_keys[] = {
    {"d_model", SL_HF_USED},
    {"n_heads", SL_HF_USED},
    {"n_layers", SL_HF_USED},
    {"max_seq_len", SL_HF_USED},
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

/* What other classes use is unknown here. */
static sl_status check_keys(sl_json obj, const sl_hf_key *own, size_t n_own, sl_err *err) {
    size_t n_all = 0;
    const sl_hf_key *all = sl_hf_config_keys(&n_all);
    void *iter = NULL;
    const char *key = NULL;
    sl_json v = {0};
    while (sl_json_next(obj, &iter, &key, &v)) {
        const sl_hf_key *k = sl_hf_find_key(key, all, n_all);
        if (!k || k->rule != SL_HF_USED || sl_hf_find_key(key, own, n_own)) continue;
        if (sl_json_kind_of(v) == SL_JSON_NULL) continue;
        return sl_json_fail(obj, key, err, SL_ERR_UNSUPPORTED,
                            "unknown option of DbrxForCausalLM; ignoring it could change results");
    }
    return sl_hf_check_keys(obj, own, n_own, all, n_all, err);
}

static sl_status read_sizes(sl_json root, sl_model_spec *m, sl_err *err) {
    sl_status st = sl_hf_sizes(root, &sl_hf_dbrx, SL_JSON_REQUIRED, m, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, sl_hf_dbrx.key.heads, SL_JSON_REQUIRED, 1, SL_MAX_HEADS, &m->n_heads,
                       err);
    if (st == SL_OK && m->tied_head)
        st = sl_json_fail(root, "tie_word_embeddings", err, SL_ERR_UNSUPPORTED,
                          "true is not supported for DbrxForCausalLM");
    m->head_dim = st == SL_OK ? m->d_model / m->n_heads : 0;
    if (st == SL_OK &&
        (m->d_model % m->n_heads != 0 || m->head_dim % 2 != 0 || m->head_dim > SL_HEAD_DIM_MAX))
        st = sl_json_fail(root, "n_heads", err, SL_ERR_LIMIT,
                          "%u heads of d_model %u: a head's width must be even, 2 to %u",
                          m->n_heads, m->d_model, SL_HEAD_DIM_MAX);
    return st;
}

/* attn_config's where there is one. transformers 5 reads rope_parameters instead and, when it saves
 * a model that has none, writes what it assumes: 1e4. */
static sl_status read_theta(sl_json root, sl_json attn, sl_model_spec *m, sl_err *err) {
    double own = 0;
    sl_status st = sl_json_f64(attn, "rope_theta", SL_JSON_OPTIONAL, 1, 1e12, &own, err);
    if (st == SL_OK) st = sl_hf_rope(root, &sl_hf_dbrx, m, err);
    if (st != SL_OK || own == 0) return st;
    if (m->rope_theta != (float)own && m->rope_theta != (float)sl_hf_dbrx.rope_theta)
        return sl_json_fail(attn, "rope_theta", err, SL_ERR_FORMAT,
                            "%g contradicts rope_parameters.rope_theta %g", own,
                            (double)m->rope_theta);
    m->rope_theta = (float)own;
    return SL_OK;
}

/* Left out where they are as transformers assumes: one head of keys, theta 1e4, no clipping. */
static sl_status read_attention(sl_json root, sl_model_spec *m, sl_err *err) {
    sl_json attn = {0};
    double clip = 0;
    uint32_t again;
    m->n_kv_heads = 1;
    sl_status st = sl_json_object(root, "attn_config", SL_JSON_REQUIRED, &attn, err);
    if (st == SL_OK) st = check_keys(attn, attn_keys, SL_LEN(attn_keys), err);
    if (st == SL_OK)
        st = sl_hf_u32(attn, "kv_n_heads", SL_JSON_OPTIONAL, 1, SL_MAX_HEADS, &m->n_kv_heads, err);
    if (st == SL_OK) st = sl_json_f64(attn, "clip_qkv", SL_JSON_OPTIONAL, 1e-6, 1e6, &clip, err);
    if (st == SL_OK) st = read_theta(root, attn, m, err);
    if (st == SL_OK && m->n_heads % m->n_kv_heads != 0)
        st = sl_json_fail(attn, "kv_n_heads", err, SL_ERR_FORMAT, "%u does not divide n_heads %u",
                          m->n_kv_heads, m->n_heads);
    again = m->n_kv_heads;
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

static sl_status read_ffn(sl_json root, sl_model_spec *m, sl_err *err) {
    sl_json ffn = {0};
    m->n_experts = 4;
    m->top_k = 1;
    m->d_ff_expert = 3584;
    sl_status st = sl_json_object(root, "ffn_config", SL_JSON_REQUIRED, &ffn, err);
    if (st == SL_OK) st = check_keys(ffn, ffn_keys, SL_LEN(ffn_keys), err);
    if (st == SL_OK) st = sl_hf_expect_u32(ffn, "hidden_size", m->d_model, "d_model", err);
    if (st == SL_OK) st = read_activation(ffn, err);
    if (st == SL_OK)
        st = sl_hf_u32(ffn, "ffn_hidden_size", SL_JSON_OPTIONAL, 1, SL_MAX_WIDTH, &m->d_ff_expert,
                       err);
    if (st == SL_OK)
        st = sl_hf_u32(ffn, "moe_num_experts", SL_JSON_OPTIONAL, 1, SL_MAX_EXPERTS, &m->n_experts,
                       err);
    if (st == SL_OK)
        st = sl_hf_u32(ffn, "moe_top_k", SL_JSON_OPTIONAL, 1,
                       SL_MIN(m->n_experts, (uint32_t)SL_MAX_TOP_K), &m->top_k, err);
    if (st == SL_OK) st = read_normalization(ffn, m, err);
    for (uint32_t i = 0; i < m->n_layers; i++) m->ffn[i] = SL_FFN_MOE;
    return st == SL_OK ? sl_hf_number_blocks(root, m, err) : st;
}

static sl_status read_all(sl_json root, sl_model_spec *m, sl_err *err) {
    sl_status st = check_keys(root, root_keys, SL_LEN(root_keys), err);
    m->rms_eps = 1e-5f; /* of torch's LayerNorm; the file has none */
    if (st == SL_OK) st = read_sizes(root, m, err);
    if (st == SL_OK) st = read_attention(root, m, err);
    return st == SL_OK ? read_ffn(root, m, err) : st;
}

static sl_status describe(sl_json root, sl_shape *s, sl_err *err) {
    sl_json attn = {0}, ffn = {0};
    sl_status st = sl_json_object(root, "attn_config", SL_JSON_REQUIRED, &attn, err);
    if (st == SL_OK)
        st = sl_hf_u32(attn, "kv_n_heads", SL_JSON_REQUIRED, 1, s->n_heads, &s->n_kv_heads, err);
    if (st == SL_OK) st = sl_json_object(root, "ffn_config", SL_JSON_REQUIRED, &ffn, err);
    if (st == SL_OK)
        st = sl_hf_u32(ffn, "ffn_hidden_size", SL_JSON_REQUIRED, 1, SL_MAX_WIDTH, &s->d_ff_expert,
                       err);
    if (st == SL_OK)
        st = sl_hf_u32(ffn, "moe_num_experts", SL_JSON_REQUIRED, 1, SL_MAX_EXPERTS, &s->n_experts,
                       err);
    if (st == SL_OK)
        st = sl_hf_u32(ffn, "moe_top_k", SL_JSON_REQUIRED, 1, SL_MAX_TOP_K, &s->top_k, err);
    return st;
}

const sl_family sl_hf_dbrx = {.name = "DbrxForCausalLM",
                              .model_type = "dbrx",
                              .key = {.layers = "n_layers",
                                      .d_model = "d_model",
                                      .heads = "n_heads",
                                      .max_position = "max_seq_len"},
                              .gguf = {.name = "dbrx",
                                       .width = "feed_forward_length",
                                       .eps = "attention.layer_norm_epsilon",
                                       .norm_topk = true,
                                       .has = SL_GGUF_CLAMP},
                              .rope_theta = 1e4,
                              .rope_part = 1,
                              .read_all = read_all,
                              .describe = describe};
