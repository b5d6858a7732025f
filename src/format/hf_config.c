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
    bool qk_norm, sparse_step, norm_topk_key, window;
    bool shared; /* a shared expert in each routed block, and biases that qkv_bias may drop */
    const char *expert_width; /* key of the width of one expert */
} sl_hf_class;

static const sl_hf_class classes[] = {
    {"Qwen3MoeForCausalLM", "qwen3_moe", 1e4, 1e-6, true, true, true, false, false,
     "moe_intermediate_size"},
    {"Qwen2MoeForCausalLM", "qwen2_moe", 1e4, 1e-6, false, true, true, false, true,
     "moe_intermediate_size"},
    {"MixtralForCausalLM", "mixtral", 1e6, 1e-5, false, false, false, true, false,
     "intermediate_size"},
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
    {"shared_expert_intermediate_size", USED},
    {"qkv_bias", USED},
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

static sl_status check_keys(sl_json root, const sl_hf_key *first, size_t n_first, sl_err *err) {
    void *iter = NULL;
    const char *key = NULL;
    sl_json v = {0};
    while (sl_json_next(root, &iter, &key, &v)) {
        double number = 0;
        if (sl_json_kind_of(v) == SL_JSON_NULL) continue;
        const sl_hf_key *k = find_key(key, first, n_first);
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

/* rope_scaling of transformers 4, rope_parameters of transformers 5. */
static sl_status read_rope_object(sl_json root, const char *key, double *theta, bool *has_theta,
                                  sl_err *err) {
    static const char *const known[] = {"rope_theta", "rope_type", "type", "partial_rotary_factor"};
    static const char *const type_keys[] = {"rope_type", "type"};
    sl_json obj = {0};
    double value = 0, part = 1;
    sl_status st = sl_json_object(root, key, SL_JSON_OPTIONAL, &obj, err);
    if (st != SL_OK || sl_json_kind_of(obj) == SL_JSON_ABSENT) return st;
    for (size_t i = 0; i < SL_LEN(type_keys); i++) {
        const char *type = NULL;
        st = sl_json_string(obj, type_keys[i], SL_JSON_OPTIONAL, &type, err);
        if (st != SL_OK) return st;
        if (type && strcmp(type, "default") != 0 && strcmp(type, "none") != 0)
            return sl_json_fail(obj, type_keys[i], err, SL_ERR_UNSUPPORTED,
                                "\"%.64s\" is not supported (supported: \"default\")", type);
    }
    st = sl_json_only(obj, known, SL_LEN(known), err);
    if (st == SL_OK)
        st = sl_json_f64(obj, "partial_rotary_factor", SL_JSON_OPTIONAL, 1, 1, &part, err);
    if (st == SL_OK) st = sl_json_f64(obj, "rope_theta", SL_JSON_OPTIONAL, 1, 1e12, &value, err);
    if (st != SL_OK || value == 0) return st;
    if (*has_theta && value != *theta)
        return sl_json_fail(obj, "rope_theta", err, SL_ERR_FORMAT,
                            "%g contradicts the rope_theta %g given elsewhere in the file", value,
                            *theta);
    *theta = value;
    *has_theta = true;
    return SL_OK;
}

static sl_status read_rope(sl_json root, const sl_hf_class *c, sl_model_spec *m, sl_err *err) {
    double theta = 0;
    sl_status st = sl_json_f64(root, "rope_theta", SL_JSON_OPTIONAL, 1, 1e12, &theta, err);
    bool has = theta != 0;
    if (st == SL_OK) st = read_rope_object(root, "rope_scaling", &theta, &has, err);
    if (st == SL_OK) st = read_rope_object(root, "rope_parameters", &theta, &has, err);
    m->rope_theta = (float)(has ? theta : c->rope_theta);
    return st;
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
    uint32_t a = 0, b = 0;
    sl_status st = read_u32(root, "num_experts", SL_JSON_OPTIONAL, 1, SL_MAX_EXPERTS, &a, err);
    if (st == SL_OK)
        st = read_u32(root, "num_local_experts", SL_JSON_OPTIONAL, 1, SL_MAX_EXPERTS, &b, err);
    if (st != SL_OK) return st;
    if (a && b && a != b)
        return sl_json_fail(root, "num_local_experts", err, SL_ERR_FORMAT,
                            "%u contradicts num_experts %u", b, a);
    if (!a && !b) return sl_json_fail(root, "num_experts", err, SL_ERR_FORMAT, "missing");
    m->n_experts = a ? a : b;
    return read_u32(root, "num_experts_per_tok", SL_JSON_REQUIRED, 1,
                    SL_MIN(m->n_experts, (uint32_t)SL_MAX_TOP_K), &m->top_k, err);
}

/* Which blocks are routed: all, or for classes with a step those i with (i + 1) % step == 0 that
 * are not listed as dense. */
static sl_status read_blocks(sl_json root, const sl_hf_class *c, sl_model_spec *m, sl_err *err) {
    uint32_t step = 1;
    sl_json dense = {0};
    sl_status st = SL_OK;
    if (c->sparse_step) {
        st = read_u32(root, "decoder_sparse_step", SL_JSON_OPTIONAL, 1, SL_MAX_LAYERS, &step, err);
        if (st == SL_OK) st = sl_json_array(root, "mlp_only_layers", SL_JSON_OPTIONAL, &dense, err);
    }
    if (st != SL_OK) return st;
    for (uint32_t i = 0; i < m->n_layers; i++)
        m->ffn[i] = (i + 1) % step == 0 ? SL_FFN_MOE : SL_FFN_DENSE;
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
                            "no block is routed to experts (mlp_only_layers, decoder_sparse_step)");
    if (m->n_moe < m->n_layers)
        st =
            read_u32(root, "intermediate_size", SL_JSON_REQUIRED, 1, 1u << 20, &m->d_ff_dense, err);
    return st;
}

static sl_status read_experts(sl_json root, const sl_hf_class *c, sl_model_spec *m, sl_err *err) {
    m->norm_topk = !c->norm_topk_key;
    sl_status st = sl_json_bool(root, "norm_topk_prob", SL_JSON_OPTIONAL, &m->norm_topk, err);
    if (st == SL_OK && !c->norm_topk_key && !m->norm_topk)
        st = sl_json_fail(root, "norm_topk_prob", err, SL_ERR_UNSUPPORTED,
                          "false is not supported for %s", c->name);
    if (st == SL_OK) st = read_expert_count(root, m, err);
    if (st == SL_OK)
        st = read_u32(root, c->expert_width, SL_JSON_REQUIRED, 1, 1u << 20, &m->d_ff_expert, err);
    return st == SL_OK ? read_blocks(root, c, m, err) : st;
}

/* Biases of queries, keys and values, and the shared expert; options of other classes only when
 * they are off. */
static sl_status read_shared(sl_json root, const sl_hf_class *c, sl_model_spec *m, sl_err *err) {
    static const char *const keys[] = {"qkv_bias", "shared_expert_intermediate_size"};
    for (size_t i = 0; !c->shared && i < SL_LEN(keys); i++)
        if (!is_off(root, keys[i], sl_json_get(root, keys[i])))
            return sl_json_fail(root, keys[i], err, SL_ERR_UNSUPPORTED, "is not known to %s",
                                c->name);
    if (!c->shared) return SL_OK;
    m->qkv_bias = true;
    sl_status st = sl_json_bool(root, keys[0], SL_JSON_OPTIONAL, &m->qkv_bias, err);
    return st == SL_OK
               ? read_u32(root, keys[1], SL_JSON_REQUIRED, 1, 1u << 20, &m->d_ff_shared, err)
               : st;
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
    st = check_keys(root, config_keys, SL_LEN(config_keys), err);
    if (st != SL_OK) return st;
    memcpy(m->arch, c->name, strlen(c->name) + 1);
    m->qk_norm = c->qk_norm;
    st = read_sizes(root, c, m, err);
    if (st == SL_OK) st = read_attention(root, c, m, err);
    if (st == SL_OK) st = read_rope(root, c, m, err);
    if (st == SL_OK) st = read_experts(root, c, m, err);
    if (st == SL_OK) st = read_shared(root, c, m, err);
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
    sl_status st = check_keys(root, generation_used, SL_LEN(generation_used), err);
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
