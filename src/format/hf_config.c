#include "format/hf_config.h"

#include "format/json.h"

#include <math.h>
#include <stdio.h>

/* What a key of a published config means for us. */
typedef enum sl_hf_rule {
    USED,     /* read below, with its own checks */
    HARMLESS, /* training, bookkeeping, or how Python returns things */
    OFF,      /* changes results unless it is null, false, 0, "" or empty */
    ONE,      /* changes results unless it is null or 1 */
} sl_hf_rule;

typedef struct sl_hf_key {
    const char *key;
    sl_hf_rule rule;
} sl_hf_key;

/* Classes whose config we read, with what transformers assumes when a key is absent. */
typedef struct sl_hf_class {
    const char *name, *model_type;
    double rope_theta, rms_eps;
    double rope_part;         /* partial_rotary_factor */
    const char *expert_width; /* key of the width of one expert */
    bool qk_norm, sparse_step, window, norm_topk;
    bool norm_topk_fixed;  /* norm_topk_prob cannot be false */
    bool yarn;             /* rope_scaling may be YaRN */
    bool head_dim_derived; /* always hidden_size / num_attention_heads */
    const sl_hf_key *own;  /* what config_keys says of these is not so for this class */
    size_t n_own;
    sl_status (*read_own)(sl_json root, sl_model_spec *m, sl_err *err); /* NULL: nothing */
} sl_hf_class;

static const sl_hf_key own_qwen2[] = {{"qkv_bias", USED},
                                      {"shared_expert_intermediate_size", USED}};
static const sl_hf_key own_olmoe[] = {{"clip_qkv", USED}};
static const sl_hf_key own_glm4[] = {
    {"attention_bias", USED},
    {"use_qk_norm", USED},
    {"partial_rotary_factor", USED},
    {"n_routed_experts", USED},
    {"n_shared_experts", USED},
    {"n_group", USED},
    {"topk_group", USED},
    {"routed_scaling_factor", USED},
    {"first_k_dense_replace", USED},
    {"num_nextn_predict_layers", USED},
};

static sl_status read_qwen2(sl_json root, sl_model_spec *m, sl_err *err);
static sl_status read_olmoe(sl_json root, sl_model_spec *m, sl_err *err);
static sl_status read_glm4(sl_json root, sl_model_spec *m, sl_err *err);

static const sl_hf_class classes[] = {
    {.name = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .rope_theta = 1e4,
     .rms_eps = 1e-6,
     .rope_part = 1,
     .expert_width = "moe_intermediate_size",
     .qk_norm = true,
     .yarn = true,
     .sparse_step = true},
    {.name = "Qwen2MoeForCausalLM",
     .model_type = "qwen2_moe",
     .rope_theta = 1e4,
     .rms_eps = 1e-6,
     .rope_part = 1,
     .expert_width = "moe_intermediate_size",
     .sparse_step = true,
     .own = own_qwen2,
     .n_own = SL_LEN(own_qwen2),
     .read_own = read_qwen2},
    {.name = "MixtralForCausalLM",
     .model_type = "mixtral",
     .rope_theta = 1e6,
     .rms_eps = 1e-5,
     .rope_part = 1,
     .expert_width = "intermediate_size",
     .window = true,
     .norm_topk = true,
     .norm_topk_fixed = true},
    {.name = "OlmoeForCausalLM",
     .model_type = "olmoe",
     .rope_theta = 1e4,
     .rms_eps = 1e-5,
     .rope_part = 1,
     .expert_width = "intermediate_size",
     .qk_norm = true,
     .head_dim_derived = true,
     .own = own_olmoe,
     .n_own = SL_LEN(own_olmoe),
     .read_own = read_olmoe},
    {.name = "Glm4MoeForCausalLM",
     .model_type = "glm4_moe",
     .rope_theta = 1e4,
     .rms_eps = 1e-5,
     .rope_part = 0.5,
     .expert_width = "moe_intermediate_size",
     .norm_topk = true,
     .own = own_glm4,
     .n_own = SL_LEN(own_glm4),
     .read_own = read_glm4},
};

static const sl_hf_key config_keys[] = {
    {"architectures", USED},
    {"model_type", USED},
    {"hidden_size", USED},
    {"num_hidden_layers", USED},
    {"num_attention_heads", USED},
    {"num_key_value_heads", USED},
    {"head_dim", USED},
    {"vocab_size", USED},
    {"intermediate_size", USED},
    {"moe_intermediate_size", USED},
    {"num_experts", USED},
    {"num_local_experts", USED},
    {"num_experts_per_tok", USED},
    {"norm_topk_prob", USED},
    {"decoder_sparse_step", USED},
    {"mlp_only_layers", USED},
    {"max_position_embeddings", USED},
    {"rms_norm_eps", USED},
    {"rope_theta", USED},
    {"rope_scaling", USED},
    {"rope_parameters", USED},
    {"hidden_act", USED},
    {"sliding_window", USED},
    {"use_sliding_window", USED},
    {"layer_types", USED},
    {"tie_word_embeddings", USED},
    {"bos_token_id", USED},
    {"eos_token_id", USED},
    {"quantization_config", USED},
    {"attention_bias", OFF},
    {"qkv_bias", OFF},
    {"shared_expert_intermediate_size", OFF},
    {"clip_qkv", OFF},
    {"mlp_bias", OFF},
    {"auto_map", OFF},
    {"is_encoder_decoder", OFF},
    {"add_cross_attention", OFF},
    {"cross_attention_hidden_size", OFF},
    {"pruned_heads", OFF},
    {"partial_rotary_factor", ONE},
    {"pretraining_tp", ONE},
    {"attention_dropout", HARMLESS},
    {"hidden_dropout", HARMLESS},
    {"initializer_range", HARMLESS},
    {"max_window_layers", HARMLESS},
    {"output_router_logits", HARMLESS},
    {"router_aux_loss_coef", HARMLESS},
    {"router_jitter_noise", HARMLESS},
    {"use_cache", HARMLESS},
    {"torch_dtype", HARMLESS},
    {"dtype", HARMLESS},
    {"use_bfloat16", HARMLESS},
    {"transformers_version", HARMLESS},
    {"_name_or_path", HARMLESS},
    {"name_or_path", HARMLESS},
    {"_commit_hash", HARMLESS},
    {"_attn_implementation", HARMLESS},
    {"_attn_implementation_autoset", HARMLESS},
    {"attn_implementation", HARMLESS},
    {"_experts_implementation", HARMLESS},
    {"experts_implementation", HARMLESS},
    {"chunk_size_feed_forward", HARMLESS},
    {"is_decoder", HARMLESS},
    {"tie_encoder_decoder", HARMLESS},
    {"torchscript", HARMLESS},
    {"tf_legacy_loss", HARMLESS},
    {"return_dict", HARMLESS},
    {"output_attentions", HARMLESS},
    {"output_hidden_states", HARMLESS},
    {"finetuning_task", HARMLESS},
    {"id2label", HARMLESS},
    {"label2id", HARMLESS},
    {"num_labels", HARMLESS},
    {"problem_type", HARMLESS},
    {"task_specific_params", HARMLESS},
    {"tokenizer_class", HARMLESS},
    {"prefix", HARMLESS},
    {"pad_token_id", HARMLESS},
    {"sep_token_id", HARMLESS},
    {"decoder_start_token_id", HARMLESS},
    {"unsloth_version", HARMLESS},
    {"unsloth_fixed", HARMLESS},
};

static const sl_hf_key generation_used[] = {
    {"temperature", USED},
    {"top_k", USED},
    {"top_p", USED},
    {"do_sample", USED},
    {"eos_token_id", USED},
    {"bos_token_id", HARMLESS},
    {"pad_token_id", HARMLESS},
    {"decoder_start_token_id", HARMLESS},
    {"transformers_version", HARMLESS},
    {"_from_model_config", HARMLESS},
    {"_commit_hash", HARMLESS},
    {"output_attentions", HARMLESS},
    {"output_hidden_states", HARMLESS},
    {"use_cache", HARMLESS},
};

/* Options of generation that config.json of older files repeats. */
static const sl_hf_key generation_keys[] = {
    {"temperature", HARMLESS},
    {"top_k", HARMLESS},
    {"top_p", HARMLESS},
    {"do_sample", HARMLESS},
    {"max_length", HARMLESS},
    {"max_new_tokens", HARMLESS},
    {"max_time", HARMLESS},
    {"early_stopping", HARMLESS},
    {"length_penalty", HARMLESS},
    {"num_return_sequences", HARMLESS},
    {"output_scores", HARMLESS},
    {"output_logits", HARMLESS},
    {"return_dict_in_generate", HARMLESS},
    {"return_legacy_cache", HARMLESS},
    {"remove_invalid_values", HARMLESS},
    {"renormalize_logits", HARMLESS},
    {"cache_implementation", HARMLESS},
    {"cache_config", HARMLESS},
    {"compile_config", HARMLESS},
    {"disable_compile", HARMLESS},
    {"prefill_chunk_size", HARMLESS},
    {"low_memory", HARMLESS},
    {"num_assistant_tokens", HARMLESS},
    {"num_assistant_tokens_schedule", HARMLESS},
    {"assistant_confidence_threshold", HARMLESS},
    {"assistant_early_exit", HARMLESS},
    {"assistant_lookbehind", HARMLESS},
    {"target_lookbehind", HARMLESS},
    {"prompt_lookup_num_tokens", HARMLESS},
    {"max_matching_ngram_size", HARMLESS},
    {"num_beams", ONE},
    {"num_beam_groups", ONE},
    {"repetition_penalty", ONE},
    {"encoder_repetition_penalty", ONE},
    {"typical_p", ONE},
    {"guidance_scale", ONE},
    {"min_length", OFF},
    {"min_new_tokens", OFF},
    {"min_p", OFF},
    {"epsilon_cutoff", OFF},
    {"eta_cutoff", OFF},
    {"top_h", OFF},
    {"diversity_penalty", OFF},
    {"no_repeat_ngram_size", OFF},
    {"encoder_no_repeat_ngram_size", OFF},
    {"bad_words_ids", OFF},
    {"force_words_ids", OFF},
    {"constraints", OFF},
    {"forced_bos_token_id", OFF},
    {"forced_eos_token_id", OFF},
    {"suppress_tokens", OFF},
    {"begin_suppress_tokens", OFF},
    {"exponential_decay_length_penalty", OFF},
    {"sequence_bias", OFF},
    {"token_healing", OFF},
    {"watermarking_config", OFF},
    {"penalty_alpha", OFF},
    {"dola_layers", OFF},
    {"stop_strings", OFF},
};

static const sl_hf_key *find_key(const char *key, const sl_hf_key *table, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(table[i].key, key) == 0) return &table[i];
    return NULL;
}

static bool is_off(sl_json root, const char *key, sl_json v) {
    double number = 0;
    bool truth = false;
    sl_span text = {0};
    switch (sl_json_kind_of(v)) {
    case SL_JSON_ABSENT:
    case SL_JSON_NULL:
        return true;
    case SL_JSON_BOOL:
        return sl_json_bool(root, key, SL_JSON_OPTIONAL, &truth, NULL) == SL_OK && !truth;
    case SL_JSON_INT:
    case SL_JSON_REAL:
        return sl_json_as_f64(v, &number) && number == 0;
    case SL_JSON_STRING:
        return sl_json_as_span(v, &text) && text.len == 0;
    case SL_JSON_ARRAY:
    case SL_JSON_OBJECT:
        return sl_json_count(v) == 0;
    }
    return false;
}

/* Each key of the object by the tables `own` and `first`, then by that of generation. */
static sl_status check_keys(sl_json root, const sl_hf_key *own, size_t n_own,
                            const sl_hf_key *first, size_t n_first, sl_err *err) {
    void *iter = NULL;
    const char *key = NULL;
    sl_json v = {0};
    while (sl_json_next(root, &iter, &key, &v)) {
        double number = 0;
        if (sl_json_kind_of(v) == SL_JSON_NULL) continue;
        const sl_hf_key *k = find_key(key, own, n_own);
        if (!k) k = find_key(key, first, n_first);
        if (!k) k = find_key(key, generation_keys, SL_LEN(generation_keys));
        if (!k)
            return sl_json_fail(root, key, err, SL_ERR_UNSUPPORTED,
                                "unknown option; ignoring it could change results");
        if (k->rule == OFF && !is_off(root, key, v))
            return sl_json_fail(root, key, err, SL_ERR_UNSUPPORTED,
                                "supported only when it is off (null, false, 0 or empty)");
        if (k->rule == ONE && !(sl_json_as_f64(v, &number) && number == 1))
            return sl_json_fail(root, key, err, SL_ERR_UNSUPPORTED, "supported only as 1");
    }
    return SL_OK;
}

static sl_status read_u32(sl_json root, const char *key, sl_json_need need, uint32_t min,
                          uint32_t max, uint32_t *out, sl_err *err) {
    uint64_t v = *out;
    sl_status st = sl_json_u64(root, key, need, min, max, &v, err);
    *out = (uint32_t)v;
    return st;
}

static sl_status read_class(sl_json root, const sl_hf_class **out, sl_err *err) {
    sl_json list = {0};
    sl_span name = {0};
    const char *type = NULL;
    sl_status st = sl_json_array(root, "architectures", SL_JSON_REQUIRED, &list, err);
    if (st == SL_OK) st = sl_json_string(root, "model_type", SL_JSON_OPTIONAL, &type, err);
    if (st != SL_OK) return st;
    if (sl_json_count(list) != 1 || !sl_json_as_span(sl_json_at(list, 0), &name))
        return sl_json_fail(root, "architectures", err, SL_ERR_FORMAT, "must be one class name");
    for (size_t i = 0; i < SL_LEN(classes); i++) {
        const sl_hf_class *c = &classes[i];
        if (name.len != strlen(c->name) || memcmp(name.data, c->name, name.len) != 0) continue;
        if (type && strcmp(type, c->model_type) != 0)
            return sl_json_fail(root, "model_type", err, SL_ERR_FORMAT,
                                "\"%.64s\" does not fit %s, which is \"%s\"", type, c->name,
                                c->model_type);
        *out = c;
        return SL_OK;
    }
    char known[256] = "";
    for (size_t i = 0, at = 0; i < SL_LEN(classes) && at < sizeof known; i++)
        at +=
            (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", classes[i].name);
    return sl_json_fail(root, "architectures", err, SL_ERR_UNSUPPORTED,
                        "\"%.*s\" is not supported (supported: %s)",
                        (int)SL_MIN(name.len, (size_t)64), (const char *)name.data, known);
}

typedef struct sl_hf_rope {
    double theta, part; /* 0: not given yet */
} sl_hf_rope;

/* A number that several places of the file may give. */
static sl_status read_rope_number(sl_json obj, const char *key, double min, double max,
                                  double *known, sl_err *err) {
    double value = 0;
    sl_status st = sl_json_f64(obj, key, SL_JSON_OPTIONAL, min, max, &value, err);
    if (st != SL_OK || value == 0) return st;
    if (*known != 0 && value != *known)
        return sl_json_fail(obj, key, err, SL_ERR_FORMAT,
                            "%g contradicts the %s %g given elsewhere in the file", value, key,
                            *known);
    *known = value;
    return SL_OK;
}

static sl_status read_rope_numbers(sl_json obj, const sl_hf_class *c, sl_hf_rope *rope,
                                   sl_err *err) {
    double least = c->rope_part < 1 ? 1e-6 : 1;
    sl_status st = read_rope_number(obj, "rope_theta", 1, 1e12, &rope->theta, err);
    return st == SL_OK ? read_rope_number(obj, "partial_rotary_factor", least, 1, &rope->part, err)
                       : st;
}

/* As transformers: the factor of sin and cos is 0.1 ln(factor) + 1 unless it is given. */
static sl_status read_yarn(sl_json obj, sl_model_spec *m, sl_err *err) {
    static const char *const known[] = {"rope_theta",
                                        "rope_type",
                                        "type",
                                        "factor",
                                        "original_max_position_embeddings",
                                        "beta_fast",
                                        "beta_slow",
                                        "attention_factor"};
    double factor = 0, fast = 32, slow = 1;
    uint32_t original = m->max_position;
    sl_status st = sl_json_only(obj, known, SL_LEN(known), err);
    if (st == SL_OK) st = sl_json_f64(obj, "factor", SL_JSON_REQUIRED, 1, 1024, &factor, err);
    if (st == SL_OK)
        st = read_u32(obj, "original_max_position_embeddings", SL_JSON_OPTIONAL, 1, 1u << 30,
                      &original, err);
    if (st == SL_OK) st = sl_json_f64(obj, "beta_fast", SL_JSON_OPTIONAL, 1e-3, 1e6, &fast, err);
    if (st == SL_OK) st = sl_json_f64(obj, "beta_slow", SL_JSON_OPTIONAL, 1e-3, 1e6, &slow, err);
    double attention = 0.1 * log(factor) + 1;
    if (st == SL_OK)
        st = sl_json_f64(obj, "attention_factor", SL_JSON_OPTIONAL, 1e-3, 1e3, &attention, err);
    if (st != SL_OK) return st;
    if (fast < slow)
        return sl_json_fail(obj, "beta_fast", err, SL_ERR_FORMAT, "%g is below beta_slow %g", fast,
                            slow);
    double reach = floor(factor * original);
    if (reach > m->max_position) m->max_position = (uint32_t)SL_MIN(reach, (double)(1u << 30));
    m->yarn = (sl_yarn){(float)factor, (float)fast, (float)slow, (float)attention, original};
    return SL_OK;
}

/* rope_scaling of transformers 4, rope_parameters of transformers 5. */
static sl_status read_rope_object(sl_json root, const char *key, const sl_hf_class *c,
                                  sl_hf_rope *rope, sl_model_spec *m, sl_err *err) {
    static const char *const known[] = {"rope_theta", "rope_type", "type", "partial_rotary_factor"};
    static const char *const type_keys[] = {"rope_type", "type"};
    sl_json obj = {0};
    bool yarn = false;
    sl_status st = sl_json_object(root, key, SL_JSON_OPTIONAL, &obj, err);
    if (st != SL_OK || sl_json_kind_of(obj) == SL_JSON_ABSENT) return st;
    for (size_t i = 0; i < SL_LEN(type_keys); i++) {
        const char *type = NULL;
        st = sl_json_string(obj, type_keys[i], SL_JSON_OPTIONAL, &type, err);
        if (st != SL_OK) return st;
        yarn = yarn || (type && c->yarn && strcmp(type, "yarn") == 0);
        if (type && yarn && strcmp(type, "yarn") == 0) continue;
        if (type && strcmp(type, "default") != 0 && strcmp(type, "none") != 0)
            return sl_json_fail(obj, type_keys[i], err, SL_ERR_UNSUPPORTED,
                                "\"%.64s\" is not supported (supported: \"default\"%s)", type,
                                c->yarn ? ", \"yarn\"" : "");
    }
    st = yarn ? read_yarn(obj, m, err) : sl_json_only(obj, known, SL_LEN(known), err);
    return st == SL_OK ? read_rope_numbers(obj, c, rope, err) : st;
}

static sl_status read_rope(sl_json root, const sl_hf_class *c, sl_model_spec *m, sl_err *err) {
    sl_hf_rope rope = {0};
    sl_status st = read_rope_numbers(root, c, &rope, err);
    if (st == SL_OK) st = read_rope_object(root, "rope_scaling", c, &rope, m, err);
    if (st == SL_OK) st = read_rope_object(root, "rope_parameters", c, &rope, m, err);
    if (st != SL_OK) return st;
    m->rope_theta = (float)(rope.theta != 0 ? rope.theta : c->rope_theta);
    m->rope_dim = (uint32_t)(m->head_dim * (rope.part != 0 ? rope.part : c->rope_part));
    if (m->rope_dim < 2 || m->rope_dim % 2 != 0)
        return sl_json_fail(root, "partial_rotary_factor", err, SL_ERR_LIMIT,
                            "rotates %u of the %u values of a head, must be an even number",
                            m->rope_dim, m->head_dim);
    return SL_OK;
}

static sl_status read_attention(sl_json root, const sl_hf_class *c, sl_model_spec *m, sl_err *err) {
    bool windowed = false;
    sl_json types = {0};
    sl_status st =
        read_u32(root, "num_attention_heads", SL_JSON_REQUIRED, 1, 4096, &m->n_heads, err);
    m->n_kv_heads = m->n_heads;
    if (st == SL_OK)
        st = read_u32(root, "num_key_value_heads", SL_JSON_OPTIONAL, 1, 4096, &m->n_kv_heads, err);
    if (st != SL_OK) return st;
    if (m->n_heads % m->n_kv_heads != 0)
        return sl_json_fail(root, "num_key_value_heads", err, SL_ERR_FORMAT,
                            "%u does not divide num_attention_heads %u", m->n_kv_heads, m->n_heads);
    m->head_dim = m->d_model / m->n_heads;
    if (sl_json_kind_of(sl_json_get(root, "head_dim")) <= SL_JSON_NULL &&
        m->d_model % m->n_heads != 0)
        return sl_json_fail(root, "num_attention_heads", err, SL_ERR_FORMAT,
                            "%u does not divide hidden_size %u, and there is no head_dim",
                            m->n_heads, m->d_model);
    st = read_u32(root, "head_dim", SL_JSON_OPTIONAL, 2, 1024, &m->head_dim, err);
    if (st != SL_OK) return st;
    if (m->head_dim == 0 || m->head_dim > 1024 || m->head_dim % 2 != 0)
        return sl_json_fail(root, "head_dim", err, SL_ERR_LIMIT, "%u must be even, 2 to 1024",
                            m->head_dim);
    if (c->head_dim_derived && m->head_dim * m->n_heads != m->d_model)
        return sl_json_fail(root, "head_dim", err, SL_ERR_UNSUPPORTED,
                            "%u is not hidden_size / num_attention_heads, as it is for %s",
                            m->head_dim, c->name);
    st = sl_json_bool(root, "use_sliding_window", SL_JSON_OPTIONAL, &windowed, err);
    if (st != SL_OK) return st;
    if (windowed && !c->window)
        return sl_json_fail(root, "use_sliding_window", err, SL_ERR_UNSUPPORTED,
                            "true is not supported for %s", c->name);
    if (c->window)
        st = read_u32(root, "sliding_window", SL_JSON_OPTIONAL, 1, INT32_MAX, &m->sliding_window,
                      err);
    if (st == SL_OK) st = sl_json_array(root, "layer_types", SL_JSON_OPTIONAL, &types, err);
    for (size_t i = 0; st == SL_OK && i < sl_json_count(types); i++) {
        sl_span t = {0};
        const char *want = m->sliding_window ? "sliding_attention" : "full_attention";
        if (!sl_json_as_span(sl_json_at(types, i), &t) || t.len != strlen(want) ||
            memcmp(t.data, want, t.len) != 0)
            st = sl_json_fail(root, "layer_types", err, SL_ERR_UNSUPPORTED,
                              "layer %zu must be \"%s\"", i, want);
    }
    return st;
}

static sl_status read_expert_count(sl_json root, sl_model_spec *m, sl_err *err) {
    static const char *const keys[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    const char *first = NULL;
    for (size_t i = 0; i < SL_LEN(keys); i++) {
        uint32_t n = 0;
        sl_status st = read_u32(root, keys[i], SL_JSON_OPTIONAL, 1, SL_MAX_EXPERTS, &n, err);
        if (st != SL_OK) return st;
        if (n && first && n != m->n_experts)
            return sl_json_fail(root, keys[i], err, SL_ERR_FORMAT, "%u contradicts %s %u", n, first,
                                m->n_experts);
        if (n && !first) {
            first = keys[i];
            m->n_experts = n;
        }
    }
    if (!first) return sl_json_fail(root, "num_experts", err, SL_ERR_FORMAT, "missing");
    return read_u32(root, "num_experts_per_tok", SL_JSON_REQUIRED, 1,
                    SL_MIN(m->n_experts, (uint32_t)SL_MAX_TOP_K), &m->top_k, err);
}

/* Which blocks are routed: all but the first so many, or for classes with a step those i with
 * (i + 1) % step == 0 that are not listed as dense. */
static sl_status read_blocks(sl_json root, const sl_hf_class *c, sl_model_spec *m, sl_err *err) {
    uint32_t step = 1, dense_first = 0;
    sl_json dense = {0};
    sl_status st = SL_OK;
    if (find_key("first_k_dense_replace", c->own, c->n_own)) {
        dense_first = 1;
        st = read_u32(root, "first_k_dense_replace", SL_JSON_OPTIONAL, 0, SL_MAX_LAYERS,
                      &dense_first, err);
    }
    if (c->sparse_step) {
        st = read_u32(root, "decoder_sparse_step", SL_JSON_OPTIONAL, 1, SL_MAX_LAYERS, &step, err);
        if (st == SL_OK) st = sl_json_array(root, "mlp_only_layers", SL_JSON_OPTIONAL, &dense, err);
    }
    if (st != SL_OK) return st;
    for (uint32_t i = 0; i < m->n_layers; i++)
        m->ffn[i] = i >= dense_first && (i + 1) % step == 0 ? SL_FFN_MOE : SL_FFN_DENSE;
    for (size_t i = 0; i < sl_json_count(dense); i++) {
        uint64_t layer = 0;
        if (!sl_json_as_u64(sl_json_at(dense, i), &layer) || layer >= m->n_layers)
            return sl_json_fail(root, "mlp_only_layers", err, SL_ERR_LIMIT,
                                "entry %zu must be a block, 0 to %u", i, m->n_layers - 1);
        m->ffn[layer] = SL_FFN_DENSE;
    }
    for (uint32_t i = 0; i < m->n_layers; i++) {
        if (m->ffn[i] != SL_FFN_MOE) continue;
        m->moe_index[i] = (uint16_t)m->n_moe;
        m->moe_layer[m->n_moe++] = (uint16_t)i;
    }
    if (m->n_moe == 0)
        return sl_json_fail(root, NULL, err, SL_ERR_UNSUPPORTED,
                            "no block is routed to experts (mlp_only_layers, decoder_sparse_step, "
                            "first_k_dense_replace)");
    if (m->n_moe < m->n_layers)
        st =
            read_u32(root, "intermediate_size", SL_JSON_REQUIRED, 1, 1u << 20, &m->d_ff_dense, err);
    return st;
}

static sl_status read_experts(sl_json root, const sl_hf_class *c, sl_model_spec *m, sl_err *err) {
    m->norm_topk = c->norm_topk;
    sl_status st = sl_json_bool(root, "norm_topk_prob", SL_JSON_OPTIONAL, &m->norm_topk, err);
    if (st == SL_OK && c->norm_topk_fixed && !m->norm_topk)
        st = sl_json_fail(root, "norm_topk_prob", err, SL_ERR_UNSUPPORTED,
                          "false is not supported for %s", c->name);
    if (st == SL_OK) st = read_expert_count(root, m, err);
    if (st == SL_OK)
        st = read_u32(root, c->expert_width, SL_JSON_REQUIRED, 1, 1u << 20, &m->d_ff_expert, err);
    return st == SL_OK ? read_blocks(root, c, m, err) : st;
}

static sl_status read_qwen2(sl_json root, sl_model_spec *m, sl_err *err) {
    m->qkv_bias = true;
    sl_status st = sl_json_bool(root, "qkv_bias", SL_JSON_OPTIONAL, &m->qkv_bias, err);
    return st == SL_OK ? read_u32(root, "shared_expert_intermediate_size", SL_JSON_REQUIRED, 1,
                                  1u << 20, &m->d_ff_shared, err)
                       : st;
}

static sl_status read_olmoe(sl_json root, sl_model_spec *m, sl_err *err) {
    double limit = 0;
    sl_status st = sl_json_f64(root, "clip_qkv", SL_JSON_OPTIONAL, 1e-6, 1e6, &limit, err);
    m->clip_qkv = (float)limit;
    return st;
}

static sl_status read_groups(sl_json root, sl_model_spec *m, sl_err *err) {
    m->n_groups = m->top_groups = 1;
    sl_status st = read_u32(root, "n_group", SL_JSON_OPTIONAL, 1, SL_MAX_GROUPS, &m->n_groups, err);
    if (st != SL_OK) return st;
    uint32_t size = m->n_experts / m->n_groups;
    if (m->n_experts % m->n_groups != 0 || size < 2)
        return sl_json_fail(root, "n_group", err, SL_ERR_FORMAT,
                            "%u does not cut %u experts into equal groups of 2 or more",
                            m->n_groups, m->n_experts);
    st = read_u32(root, "topk_group", SL_JSON_OPTIONAL, 1, m->n_groups, &m->top_groups, err);
    if (st == SL_OK && m->top_groups * size < m->top_k)
        st = sl_json_fail(root, "topk_group", err, SL_ERR_FORMAT,
                          "%u groups of %u experts are fewer than num_experts_per_tok %u",
                          m->top_groups, size, m->top_k);
    return st;
}

static sl_status read_glm4(sl_json root, sl_model_spec *m, sl_err *err) {
    uint32_t n_shared = 1;
    double scale = 1;
    sl_status st = read_groups(root, m, err);
    if (st == SL_OK)
        st = sl_json_f64(root, "routed_scaling_factor", SL_JSON_OPTIONAL, 1e-6, 1e6, &scale, err);
    if (st == SL_OK)
        st = read_u32(root, "n_shared_experts", SL_JSON_OPTIONAL, 1, 64, &n_shared, err);
    if (st == SL_OK) st = sl_json_bool(root, "attention_bias", SL_JSON_OPTIONAL, &m->qkv_bias, err);
    if (st == SL_OK) st = sl_json_bool(root, "use_qk_norm", SL_JSON_OPTIONAL, &m->qk_norm, err);
    if (st == SL_OK)
        st = read_u32(root, "num_nextn_predict_layers", SL_JSON_OPTIONAL, 0, 16, &m->n_mtp, err);
    m->route_scale = (float)scale;
    m->d_ff_shared = n_shared * m->d_ff_expert;
    return st;
}

static sl_status add_eos(sl_json root, sl_json v, sl_model_spec *m, sl_err *err) {
    uint64_t id = 0;
    if (!sl_json_as_u64(v, &id) || id >= m->vocab)
        return sl_json_fail(root, "eos_token_id", err, SL_ERR_LIMIT,
                            "must be ids from 0 to %u (vocab_size %u)", m->vocab - 1, m->vocab);
    for (uint32_t i = 0; i < m->n_eos; i++)
        if (m->eos[i] == id) return SL_OK;
    if (m->n_eos == SL_MAX_EOS)
        return sl_json_fail(root, "eos_token_id", err, SL_ERR_LIMIT, "more than %d ids",
                            SL_MAX_EOS);
    m->eos[m->n_eos++] = (uint32_t)id;
    return SL_OK;
}

static sl_status read_eos(sl_json root, sl_model_spec *m, sl_err *err) {
    sl_json v = sl_json_get(root, "eos_token_id");
    sl_status st = SL_OK;
    if (sl_json_kind_of(v) <= SL_JSON_NULL) return SL_OK;
    if (sl_json_kind_of(v) != SL_JSON_ARRAY) return add_eos(root, v, m, err);
    for (size_t i = 0; st == SL_OK && i < sl_json_count(v); i++)
        st = add_eos(root, sl_json_at(v, i), m, err);
    return st;
}

static sl_status read_sizes(sl_json root, const sl_hf_class *c, sl_model_spec *m, sl_err *err) {
    double eps = c->rms_eps;
    const char *act = NULL;
    sl_status st = read_u32(root, "hidden_size", SL_JSON_REQUIRED, 1, 1u << 17, &m->d_model, err);
    if (st == SL_OK)
        st = read_u32(root, "num_hidden_layers", SL_JSON_REQUIRED, 1, SL_MAX_LAYERS, &m->n_layers,
                      err);
    if (st == SL_OK)
        st = read_u32(root, "vocab_size", SL_JSON_REQUIRED, 1, 1u << 24, &m->vocab, err);
    if (st == SL_OK)
        st = read_u32(root, "max_position_embeddings", SL_JSON_REQUIRED, 1, 1u << 30,
                      &m->max_position, err);
    if (st == SL_OK) st = sl_json_f64(root, "rms_norm_eps", SL_JSON_OPTIONAL, 0, 1, &eps, err);
    m->rms_eps = (float)eps;
    if (st == SL_OK)
        st = sl_json_bool(root, "tie_word_embeddings", SL_JSON_OPTIONAL, &m->tied_head, err);
    if (st == SL_OK) st = sl_json_string(root, "hidden_act", SL_JSON_REQUIRED, &act, err);
    if (st == SL_OK && strcmp(act, "silu") != 0)
        st = sl_json_fail(root, "hidden_act", err, SL_ERR_UNSUPPORTED,
                          "\"%.64s\" is not supported (supported: \"silu\")", act);
    return st;
}

static sl_status read_bos(sl_json root, sl_model_spec *m, sl_err *err) {
    uint64_t bos = UINT64_MAX;
    sl_status st = sl_json_u64(root, "bos_token_id", SL_JSON_OPTIONAL, 0, m->vocab - 1, &bos, err);
    m->bos = bos == UINT64_MAX ? -1 : (int64_t)bos;
    return st;
}

static sl_status read_config(sl_json root, sl_model_spec *m, sl_err *err) {
    const sl_hf_class *c = NULL;
    sl_status st = read_class(root, &c, err);
    if (st != SL_OK) return st;
    if (sl_json_kind_of(sl_json_get(root, "quantization_config")) > SL_JSON_NULL)
        return sl_json_fail(root, "quantization_config", err, SL_ERR_UNSUPPORTED,
                            "quantized weights are not supported (F32, F16, BF16 are)");
    st = check_keys(root, c->own, c->n_own, config_keys, SL_LEN(config_keys), err);
    if (st != SL_OK) return st;
    memcpy(m->arch, c->name, strlen(c->name) + 1);
    m->qk_norm = c->qk_norm;
    st = read_sizes(root, c, m, err);
    if (st == SL_OK) st = read_attention(root, c, m, err);
    if (st == SL_OK) st = read_rope(root, c, m, err);
    if (st == SL_OK) st = read_experts(root, c, m, err);
    if (st == SL_OK && c->read_own) st = c->read_own(root, m, err);
    if (st == SL_OK) st = read_bos(root, m, err);
    return st == SL_OK ? read_eos(root, m, err) : st;
}

sl_status sl_hf_config_parse(const char *file, sl_span text, sl_model_spec *spec, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_model_spec m = {.bos = -1};
    sl_status st = sl_json_parse(file, text, &doc, err);
    if (st != SL_OK) return st;
    st = read_config(sl_json_root(doc), &m, err);
    sl_json_doc_free(doc);
    if (st == SL_OK) *spec = m;
    return st;
}

sl_generation_spec sl_hf_generation_none(void) {
    return (sl_generation_spec){.temperature = NAN, .top_p = NAN, .top_k = -1, .do_sample = -1};
}

static sl_status read_generation(sl_json root, sl_model_spec *m, sl_generation_spec *gen,
                                 sl_err *err) {
    double temperature = NAN, top_p = NAN;
    uint64_t top_k = UINT64_MAX;
    bool sample = false;
    if (sl_json_kind_of(root) != SL_JSON_OBJECT)
        return sl_json_fail(root, NULL, err, SL_ERR_FORMAT, "must be an object");
    sl_status st = check_keys(root, NULL, 0, generation_used, SL_LEN(generation_used), err);
    if (st == SL_OK)
        st = sl_json_f64(root, "temperature", SL_JSON_OPTIONAL, 0, 100, &temperature, err);
    if (st == SL_OK) st = sl_json_f64(root, "top_p", SL_JSON_OPTIONAL, 1e-6, 1, &top_p, err);
    if (st == SL_OK) st = sl_json_u64(root, "top_k", SL_JSON_OPTIONAL, 0, INT32_MAX, &top_k, err);
    if (st == SL_OK) st = sl_json_bool(root, "do_sample", SL_JSON_OPTIONAL, &sample, err);
    if (st == SL_OK) st = read_eos(root, m, err);
    if (st != SL_OK) return st;
    bool has_sample = sl_json_kind_of(sl_json_get(root, "do_sample")) == SL_JSON_BOOL;
    *gen = (sl_generation_spec){.temperature = (float)temperature,
                                .top_p = (float)top_p,
                                .top_k = top_k == UINT64_MAX ? -1 : (int32_t)top_k,
                                .do_sample = has_sample ? sample : -1};
    return SL_OK;
}

sl_status sl_hf_generation_parse(const char *file, sl_span text, sl_model_spec *spec,
                                 sl_generation_spec *gen, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_status st = sl_json_parse(file, text, &doc, err);
    if (st != SL_OK) return st;
    st = read_generation(sl_json_root(doc), spec, gen, err);
    sl_json_doc_free(doc);
    return st;
}
