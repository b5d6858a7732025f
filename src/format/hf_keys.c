/* What the keys of a published config mean: tables, and the check of an object by them. */
#include "format/hf_config_int.h"

#include <ctype.h>
#include <stdlib.h>

static const sl_hf_key of_config[] = {
    {"architectures", SL_HF_USED},
    {"model_type", SL_HF_USED},
    {"hidden_size", SL_HF_USED},
    {"num_hidden_layers", SL_HF_USED},
    {"num_attention_heads", SL_HF_USED},
    {"num_key_value_heads", SL_HF_USED},
    {"head_dim", SL_HF_USED},
    {"vocab_size", SL_HF_USED},
    {"intermediate_size", SL_HF_USED},
    {"moe_intermediate_size", SL_HF_USED},
    {"num_experts", SL_HF_USED},
    {"num_local_experts", SL_HF_USED},
    {"num_experts_per_tok", SL_HF_USED},
    {"norm_topk_prob", SL_HF_USED},
    {"decoder_sparse_step", SL_HF_USED},
    {"mlp_only_layers", SL_HF_USED},
    {"max_position_embeddings", SL_HF_USED},
    {"rms_norm_eps", SL_HF_USED},
    {"rope_theta", SL_HF_USED},
    {"rope_scaling", SL_HF_USED},
    {"rope_parameters", SL_HF_USED},
    {"hidden_act", SL_HF_USED},
    {"sliding_window", SL_HF_USED},
    {"use_sliding_window", SL_HF_USED},
    {"layer_types", SL_HF_USED},
    {"tie_word_embeddings", SL_HF_USED},
    {"bos_token_id", SL_HF_USED},
    {"eos_token_id", SL_HF_USED},
    {"quantization_config", SL_HF_USED},
    {"attention_bias", SL_HF_OFF},
    {"qkv_bias", SL_HF_OFF},
    {"shared_expert_intermediate_size", SL_HF_OFF},
    {"clip_qkv", SL_HF_OFF},
    {"mlp_bias", SL_HF_OFF},
    {"auto_map", SL_HF_OFF},
    {"is_encoder_decoder", SL_HF_OFF},
    {"add_cross_attention", SL_HF_OFF},
    {"cross_attention_hidden_size", SL_HF_OFF},
    {"pruned_heads", SL_HF_OFF},
    {"partial_rotary_factor", SL_HF_IS, {"1"}},
    {"pretraining_tp", SL_HF_IS, {"1"}},
    {"attention_dropout", SL_HF_HARMLESS},
    {"hidden_dropout", SL_HF_HARMLESS},
    {"initializer_range", SL_HF_HARMLESS},
    {"max_window_layers", SL_HF_HARMLESS},
    {"output_router_logits", SL_HF_HARMLESS},
    {"router_aux_loss_coef", SL_HF_HARMLESS},
    {"router_jitter_noise", SL_HF_HARMLESS},
    {"use_cache", SL_HF_HARMLESS},
    {"torch_dtype", SL_HF_HARMLESS},
    {"dtype", SL_HF_HARMLESS},
    {"use_bfloat16", SL_HF_HARMLESS},
    {"transformers_version", SL_HF_HARMLESS},
    {"_name_or_path", SL_HF_HARMLESS},
    {"name_or_path", SL_HF_HARMLESS},
    {"_commit_hash", SL_HF_HARMLESS},
    {"_attn_implementation", SL_HF_HARMLESS},
    {"_attn_implementation_autoset", SL_HF_HARMLESS},
    {"attn_implementation", SL_HF_HARMLESS},
    {"_experts_implementation", SL_HF_HARMLESS},
    {"experts_implementation", SL_HF_HARMLESS},
    {"chunk_size_feed_forward", SL_HF_HARMLESS},
    {"is_decoder", SL_HF_HARMLESS},
    {"tie_encoder_decoder", SL_HF_HARMLESS},
    {"torchscript", SL_HF_HARMLESS},
    {"tf_legacy_loss", SL_HF_HARMLESS},
    {"return_dict", SL_HF_HARMLESS},
    {"output_attentions", SL_HF_HARMLESS},
    {"output_hidden_states", SL_HF_HARMLESS},
    {"finetuning_task", SL_HF_HARMLESS},
    {"id2label", SL_HF_HARMLESS},
    {"label2id", SL_HF_HARMLESS},
    {"num_labels", SL_HF_HARMLESS},
    {"problem_type", SL_HF_HARMLESS},
    {"task_specific_params", SL_HF_HARMLESS},
    {"tokenizer_class", SL_HF_HARMLESS},
    {"prefix", SL_HF_HARMLESS},
    {"pad_token_id", SL_HF_HARMLESS},
    {"sep_token_id", SL_HF_HARMLESS},
    {"decoder_start_token_id", SL_HF_HARMLESS},
    {"unsloth_version", SL_HF_HARMLESS},
    {"unsloth_fixed", SL_HF_HARMLESS},
};

/* Of sampling a model may recommend some fields, which are read from generation_config.json; the
 * others have to be what they are by themselves. */
#define SL_SAMPLING(type, name, byte, standard, whence, ...) READ_##whence(name)
#define READ_MODEL(name)                                     {#name, SL_HF_USED},
#define READ_OURS(name)
static const sl_hf_key of_generation[] = {
#include "spec/sampling.def"
    {"do_sample", SL_HF_USED},
    {"eos_token_id", SL_HF_USED},
    {"bos_token_id", SL_HF_HARMLESS},
    {"pad_token_id", SL_HF_HARMLESS},
    {"decoder_start_token_id", SL_HF_HARMLESS},
    {"transformers_version", SL_HF_HARMLESS},
    {"_from_model_config", SL_HF_HARMLESS},
    {"_commit_hash", SL_HF_HARMLESS},
    {"output_attentions", SL_HF_HARMLESS},
    {"output_hidden_states", SL_HF_HARMLESS},
    {"use_cache", SL_HF_HARMLESS},
};

/* Options of generation that config.json of older files repeats. */
#define SL_SAMPLING(type, name, byte, standard, whence, ...) AGAIN_##whence(name, standard)
#define AGAIN_MODEL(name, standard)                          {#name, SL_HF_HARMLESS},
#define AGAIN_OURS(name, standard)                           {#name, SL_HF_IS, {#standard}},
static const sl_hf_key repeated[] = {
#include "spec/sampling.def"
    {"do_sample", SL_HF_HARMLESS},
    {"max_length", SL_HF_HARMLESS},
    {"max_new_tokens", SL_HF_HARMLESS},
    {"max_time", SL_HF_HARMLESS},
    {"early_stopping", SL_HF_HARMLESS},
    {"length_penalty", SL_HF_HARMLESS},
    {"num_return_sequences", SL_HF_HARMLESS},
    {"output_scores", SL_HF_HARMLESS},
    {"output_logits", SL_HF_HARMLESS},
    {"return_dict_in_generate", SL_HF_HARMLESS},
    {"return_legacy_cache", SL_HF_HARMLESS},
    {"remove_invalid_values", SL_HF_HARMLESS},
    {"renormalize_logits", SL_HF_HARMLESS},
    {"cache_implementation", SL_HF_HARMLESS},
    {"cache_config", SL_HF_HARMLESS},
    {"compile_config", SL_HF_HARMLESS},
    {"disable_compile", SL_HF_HARMLESS},
    {"prefill_chunk_size", SL_HF_HARMLESS},
    {"low_memory", SL_HF_HARMLESS},
    {"num_assistant_tokens", SL_HF_HARMLESS},
    {"num_assistant_tokens_schedule", SL_HF_HARMLESS},
    {"assistant_confidence_threshold", SL_HF_HARMLESS},
    {"assistant_early_exit", SL_HF_HARMLESS},
    {"assistant_lookbehind", SL_HF_HARMLESS},
    {"target_lookbehind", SL_HF_HARMLESS},
    {"prompt_lookup_num_tokens", SL_HF_HARMLESS},
    {"max_matching_ngram_size", SL_HF_HARMLESS},
    {"num_beams", SL_HF_IS, {"1"}},
    {"num_beam_groups", SL_HF_IS, {"1"}},
    {"encoder_repetition_penalty", SL_HF_IS, {"1"}},
    {"typical_p", SL_HF_IS, {"1"}},
    {"guidance_scale", SL_HF_IS, {"1"}},
    {"min_length", SL_HF_OFF},
    {"min_new_tokens", SL_HF_OFF},
    {"epsilon_cutoff", SL_HF_OFF},
    {"eta_cutoff", SL_HF_OFF},
    {"top_h", SL_HF_OFF},
    {"diversity_penalty", SL_HF_OFF},
    {"no_repeat_ngram_size", SL_HF_OFF},
    {"encoder_no_repeat_ngram_size", SL_HF_OFF},
    {"bad_words_ids", SL_HF_OFF},
    {"force_words_ids", SL_HF_OFF},
    {"constraints", SL_HF_OFF},
    {"forced_bos_token_id", SL_HF_OFF},
    {"forced_eos_token_id", SL_HF_OFF},
    {"suppress_tokens", SL_HF_OFF},
    {"begin_suppress_tokens", SL_HF_OFF},
    {"exponential_decay_length_penalty", SL_HF_OFF},
    {"sequence_bias", SL_HF_OFF},
    {"token_healing", SL_HF_OFF},
    {"watermarking_config", SL_HF_OFF},
    {"penalty_alpha", SL_HF_OFF},
    {"dola_layers", SL_HF_OFF},
    {"stop_strings", SL_HF_OFF},
};

const sl_hf_keys sl_hf_config_keys = SL_HF_KEYS(of_config);
const sl_hf_keys sl_hf_generation_keys = SL_HF_KEYS(of_generation);

static const sl_hf_key *find_key(const char *key, sl_hf_keys table) {
    for (size_t i = 0; i < table.n; i++)
        if (strcmp(table.key[i].key, key) == 0) return &table.key[i];
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

/* Whether the value is what the text says: true, a number or a word. */
static bool says(sl_json root, const char *key, sl_json v, const char *text) {
    double number = 0;
    bool truth = false;
    if (isdigit((unsigned char)text[0]))
        return sl_json_as_f64(v, &number) && number == strtod(text, NULL);
    if (sl_json_kind_of(v) == SL_JSON_BOOL)
        return sl_json_bool(root, key, SL_JSON_OPTIONAL, &truth, NULL) == SL_OK &&
               strcmp(text, truth ? "true" : "false") == 0;
    return strcmp(text, "true") != 0 && sl_json_is_text(v, text);
}

static sl_status check_key(sl_json root, const sl_hf_key *k, sl_json v, sl_err *err) {
    if (k->rule == SL_HF_OFF && !is_off(root, k->key, v))
        return sl_json_fail(root, k->key, err, SL_ERR_UNSUPPORTED,
                            "supported only when it is off (null, false, 0 or empty)");
    if (k->rule != SL_HF_IS || says(root, k->key, v, k->as[0])) return SL_OK;
    if (k->as[1] && says(root, k->key, v, k->as[1])) return SL_OK;
    return sl_json_fail(root, k->key, err, SL_ERR_UNSUPPORTED, "supported only as %s%s%s", k->as[0],
                        k->as[1] ? " or " : "", k->as[1] ? k->as[1] : "");
}

static bool is_size(const sl_family *f, const char *key) {
    for (size_t i = 0; f && i < SL_LEN(f->key.all); i++)
        if (f->key.all[i] && strcmp(f->key.all[i], key) == 0) return true;
    return false;
}

/* f: NULL, or that whose sizes are known besides. */
static sl_status check_keys(sl_json root, sl_hf_keys own, sl_hf_keys first, const sl_family *f,
                            sl_err *err) {
    const sl_hf_keys again = SL_HF_KEYS(repeated);
    void *iter = NULL;
    const char *key = NULL;
    sl_json v = {0};
    while (sl_json_next(root, &iter, &key, &v)) {
        if (sl_json_kind_of(v) == SL_JSON_NULL) continue;
        const sl_hf_key *k = find_key(key, own);
        if (!k && (k = find_key(key, first)) && f && f->apart && k->rule == SL_HF_USED)
            return sl_json_fail(root, key, err, SL_ERR_UNSUPPORTED,
                                "unknown option of %s; ignoring it could change results", f->name);
        if (!k) k = find_key(key, again);
        if (!k && is_size(f, key)) continue;
        if (!k)
            return sl_json_fail(root, key, err, SL_ERR_UNSUPPORTED,
                                "unknown option; ignoring it could change results");
        sl_status st = check_key(root, k, v, err);
        if (st != SL_OK) return st;
    }
    return SL_OK;
}

sl_status sl_hf_check_keys(sl_json root, sl_hf_keys own, sl_hf_keys first, sl_err *err) {
    return check_keys(root, own, first, NULL, err);
}

sl_status sl_hf_check_family(sl_json obj, const sl_family *f, sl_hf_keys own, sl_err *err) {
    return check_keys(obj, own, sl_hf_config_keys, f, err);
}
