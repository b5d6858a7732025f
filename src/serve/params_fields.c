/* Every field a body may have, what JSON it is, and what becomes of it. */
#include "serve/params_int.h"

typedef enum rule_kind {
    RULE_TAKEN,  /* read below */
    RULE_IGNORE, /* changes nothing here */
    RULE_NUMBER, /* only this number */
    RULE_BOOL,   /* only this boolean */
    RULE_EMPTY,  /* only an empty string, array or object */
    RULE_ABSENT, /* only null */
    RULE_FUNCTION_CALL,
    RULE_MODALITIES,
} rule_kind;

enum { CHAT = 1, COMPLETION = 2, BOTH = 3 };

static const struct rule {
    const char *name;
    rule_kind kind;
    unsigned where;
    double value;
    sl_form form; /* of one that is taken */
} rules[] = {
    {"model", RULE_TAKEN, BOTH, 0, SL_IS_STRING},
    {"messages", RULE_TAKEN, CHAT, 0, SL_IS_WRITTEN(sl_api_write_messages)},
    {"prompt", RULE_TAKEN, COMPLETION, 0, SL_IS_WRITTEN(sl_api_write_prompt)},
    {"max_tokens", RULE_TAKEN, CHAT, 0, SL_IS_TOKENS(1)},
    {"max_tokens", RULE_TAKEN, COMPLETION, 0, SL_IS_TOKENS(0)},
    {"max_completion_tokens", RULE_TAKEN, CHAT, 0, SL_IS_TOKENS(1)},
#define SL_SAMPLING(type, name, ...) {#name, RULE_TAKEN, BOTH, 0, SL_IS_SAMPLED},
#include "spec/sampling.def"
    {"seed", RULE_TAKEN, BOTH, 0, SL_IS_WRITTEN(sl_api_write_seed)},
    {"stream", RULE_TAKEN, BOTH, 0, SL_IS_BOOL},
    {"stream_options", RULE_TAKEN, BOTH, 0, SL_IS_WRITTEN(sl_api_write_stream_options)},
    {"stop", RULE_TAKEN, BOTH, 0, SL_IS_WRITTEN(sl_api_write_stop)},
    {"stop_token_ids", RULE_TAKEN, BOTH, 0, SL_IS_WRITTEN(sl_api_write_stop_ids)},
    {"ignore_eos", RULE_TAKEN, BOTH, 0, SL_IS_BOOL},
    {"return_token_ids", RULE_TAKEN, BOTH, 0, SL_IS_BOOL},
    {"return_tokens_as_token_ids", RULE_TAKEN, BOTH, 0, SL_IS_BOOL},
    {"return_progress", RULE_BOOL, BOTH, 0}, /* nobody knows it before the first token */
    {"verbose", RULE_TAKEN, BOTH, 0, SL_IS_BOOL},
    {"timings_per_token", RULE_TAKEN, BOTH, 0, SL_IS_BOOL},
    {"user", RULE_IGNORE, BOTH},
    {"metadata", RULE_IGNORE, BOTH},
    {"store", RULE_IGNORE, BOTH},
    {"service_tier", RULE_IGNORE, BOTH},
    {"safety_identifier", RULE_IGNORE, BOTH},
    {"prompt_cache_key", RULE_IGNORE, BOTH},
    {"prompt_cache_retention", RULE_IGNORE, BOTH},
    {"parallel_tool_calls", RULE_TAKEN, CHAT, 0, SL_IS_BOOL},
    {"prediction", RULE_IGNORE, CHAT},  /* only ever a matter of speed */
    {"priority", RULE_NUMBER, BOTH, 0}, /* requests start in the order they came */
    {"n", RULE_TAKEN, BOTH, 0, SL_IS_INTEGER(1, SL_API_MAX_CHOICES)},
    {"best_of", RULE_TAKEN, COMPLETION, 0, SL_IS_INTEGER(1, SL_API_MAX_CHOICES)},
    {"length_penalty", RULE_NUMBER, BOTH, 1},
    {"min_tokens", RULE_TAKEN, BOTH, 0, SL_IS_TOKENS(0)},
    {"top_logprobs", RULE_TAKEN, CHAT, 0, SL_IS_INTEGER(0, SL_MAX_LOGPROBS)},
    {"logprobs", RULE_TAKEN, CHAT, 0, SL_IS_BOOL},
    {"logprobs", RULE_TAKEN, COMPLETION, 0, SL_IS_INTEGER(0, SL_MAX_LOGPROBS)},
    {"prompt_logprobs", RULE_TAKEN, BOTH, 0, SL_IS_INTEGER(0, SL_MAX_LOGPROBS)},
    {"logprob_token_ids", RULE_TAKEN, BOTH, 0, SL_IS_WRITTEN(sl_api_write_scored)},
    {"prompt_embeds", RULE_EMPTY, COMPLETION},
    {"allowed_token_ids", RULE_TAKEN, BOTH, 0, SL_IS_WRITTEN(sl_api_write_allowed)},
    {"structured_outputs", RULE_TAKEN, BOTH, 0, SL_IS_WRITTEN(sl_api_write_structured)},
    {"guided_json", RULE_TAKEN, BOTH, 0, SL_IS_WRITTEN(sl_api_write_any_schema)},
    {"guided_regex", RULE_TAKEN, BOTH, 0, SL_IS_STRING},
    {"guided_choice", RULE_TAKEN, BOTH, 0, SL_IS_WRITTEN(sl_api_write_choices)},
    {"guided_grammar", RULE_TAKEN, BOTH, 0, SL_IS_STRING},
    {"guided_decoding_backend", RULE_IGNORE, BOTH}, /* there is one */
    {"guided_whitespace_pattern", RULE_ABSENT, BOTH},
    {"structural_tag", RULE_ABSENT, BOTH},
    {"grammar", RULE_TAKEN, BOTH, 0, SL_IS_STRING},
    {"json_schema", RULE_TAKEN, BOTH, 0, SL_IS_WRITTEN(sl_api_write_any_schema)},
    {"chat_template", RULE_ABSENT, CHAT},
    {"documents", RULE_ABSENT, CHAT},
    {"audio", RULE_ABSENT, CHAT},
    {"reasoning_effort", RULE_TAKEN, CHAT, 0, SL_IS_WRITTEN(sl_api_write_effort)},
    {"enable_thinking", RULE_TAKEN, CHAT, 0, SL_IS_BOOL},
    {"include_reasoning", RULE_TAKEN, CHAT, 0, SL_IS_BOOL},
    {"max_reasoning_tokens", RULE_TAKEN, CHAT, 0, SL_IS_TOKENS(0)},
    {"thinking_token_budget", RULE_TAKEN, CHAT, 0, SL_IS_TOKENS(0)},
    {"verbosity", RULE_ABSENT, CHAT},
    {"web_search_options", RULE_ABSENT, CHAT},
    {"echo", RULE_TAKEN, BOTH, 0, SL_IS_BOOL},
    {"use_beam_search", RULE_BOOL, BOTH, 0},
    {"include_stop_str_in_output", RULE_TAKEN, BOTH, 0, SL_IS_BOOL},
    {"continue_final_message", RULE_TAKEN, CHAT, 0, SL_IS_BOOL},
    {"skip_special_tokens", RULE_TAKEN, BOTH, 0, SL_IS_BOOL},
    {"spaces_between_special_tokens", RULE_IGNORE, BOTH},
    {"add_special_tokens", RULE_TAKEN, BOTH, 0, SL_IS_BOOL},
    {"add_generation_prompt", RULE_TAKEN, CHAT, 0, SL_IS_BOOL},
    {"chat_template_kwargs", RULE_TAKEN, CHAT, 0, SL_IS_OBJECT},
    {"truncate_prompt_tokens", RULE_TAKEN, BOTH, 0, SL_IS_WRITTEN(sl_api_write_truncation)},
    {"truncation_side", RULE_TAKEN, BOTH, 0, SL_IS_WRITTEN(sl_api_write_side)},
    {"cache_salt", RULE_TAKEN, BOTH, 0, SL_IS_STRING},
    {"cache", RULE_TAKEN, BOTH, 0, SL_IS_BOOL},
    {"logit_bias", RULE_TAKEN, BOTH, 0, SL_IS_WRITTEN(sl_api_write_bias)},
    {"suffix", RULE_TAKEN, COMPLETION, 0, SL_IS_WRITTEN(sl_api_write_suffix)},
    {"input_extra", RULE_TAKEN, COMPLETION, 0, SL_IS_WRITTEN(sl_api_write_files)},
    {"tools", RULE_TAKEN, CHAT, 0, SL_IS_WRITTEN(sl_api_write_tools)},
    {"functions", RULE_EMPTY, CHAT},
    {"bad_words", RULE_TAKEN, BOTH, 0, SL_IS_WRITTEN(sl_api_write_bad_words)},
    {"tool_choice", RULE_TAKEN, CHAT, 0, SL_IS_WRITTEN(sl_api_write_tool_choice)},
    {"function_call", RULE_FUNCTION_CALL, CHAT},
    {"modalities", RULE_MODALITIES, CHAT},
    {"response_format", RULE_TAKEN, BOTH, 0, SL_IS_WRITTEN(sl_api_write_format)},
};

bool sl_api_string_is(sl_json v, const char *text) {
    sl_span s;
    return sl_json_as_span(v, &s) && s.len == strlen(text) &&
           (s.len == 0 || memcmp(s.data, text, s.len) == 0);
}

bool sl_api_is_empty(sl_json v) {
    sl_span s;
    if (sl_json_as_span(v, &s)) return s.len == 0;
    sl_json_kind kind = sl_json_kind_of(v);
    return (kind == SL_JSON_ARRAY || kind == SL_JSON_OBJECT) && sl_json_count(v) == 0;
}

/* v is field r->name of root, and not null. */
static sl_status check_rule(const struct rule *r, sl_json root, sl_json v, sl_api_error *e) {
    double x = 0;
    bool b = false;
    switch (r->kind) {
    case RULE_TAKEN:
        return sl_form_check(&r->form, root, r->name, e);
    case RULE_IGNORE:
        return SL_OK;
    case RULE_NUMBER:
        if (sl_json_as_f64(v, &x) && x == r->value) return SL_OK;
        return sl_api_error_bad(e, r->name, "%s: only %g is supported", r->name, r->value);
    case RULE_BOOL:
        if (sl_json_bool(root, r->name, SL_JSON_REQUIRED, &b, NULL) == SL_OK &&
            b == (r->value != 0))
            return SL_OK;
        return sl_api_error_bad(e, r->name, "%s: only %s is supported", r->name,
                                r->value != 0 ? "true" : "false");
    case RULE_EMPTY:
        if (sl_api_is_empty(v)) return SL_OK;
        break;
    case RULE_ABSENT:
        break;
    case RULE_FUNCTION_CALL:
        if (sl_api_string_is(v, "none") || sl_api_string_is(v, "auto")) return SL_OK;
        break;
    case RULE_MODALITIES:
        if (sl_json_count(v) == 1 && sl_api_string_is(sl_json_at(v, 0), "text")) return SL_OK;
        return sl_api_error_bad(e, r->name, "%s: only [\"text\"] is supported", r->name);
    }
    return sl_api_error_bad(e, r->name, "%s: not supported by this server", r->name);
}

static const struct rule *find_rule(sl_api_kind kind, const char *name) {
    unsigned where = kind == SL_API_CHAT ? CHAT : COMPLETION;
    for (size_t i = 0; i < SL_LEN(rules); i++)
        if ((rules[i].where & where) && !strcmp(rules[i].name, name)) return &rules[i];
    return NULL;
}

sl_status sl_api_check_fields(sl_api_kind kind, sl_json root, sl_api_error *e) {
    void *iter = NULL;
    const char *key;
    for (sl_json v; sl_json_next(root, &iter, &key, &v);) {
        if (sl_json_kind_of(v) == SL_JSON_NULL) continue;
        const struct rule *r = find_rule(kind, key);
        if (!r) return sl_api_error_unknown(e, key);
        sl_status st = check_rule(r, root, v, e);
        if (st != SL_OK) return st;
    }
    return SL_OK;
}

/* ---- the same as a JSON Schema ---- */

static void write_rule(sl_jbuf *b, const struct rule *r, const sl_api_limits *limits) {
    switch (r->kind) {
    case RULE_TAKEN:
        sl_form_write(b, &r->form, r->name, limits);
        return;
    case RULE_IGNORE:
        sl_jbuf_fmt(b, "{\"description\":\"ignored\"}");
        return;
    case RULE_NUMBER:
        sl_jbuf_fmt(b, "{\"enum\":[%g,null]}", r->value);
        return;
    case RULE_BOOL:
        sl_jbuf_fmt(b, "{\"enum\":[%s,null]}", r->value != 0 ? "true" : "false");
        return;
    case RULE_EMPTY:
        sl_jbuf_fmt(b, "{\"enum\":[\"\",[],{},null]}");
        return;
    case RULE_ABSENT:
        sl_jbuf_fmt(b, "{\"type\":\"null\"}");
        return;
    case RULE_FUNCTION_CALL:
        sl_jbuf_fmt(b, "{\"enum\":[\"none\",\"auto\",null]}");
        return;
    case RULE_MODALITIES:
        sl_jbuf_fmt(b, "{\"enum\":[[\"text\"],null]}");
        return;
    }
}

void sl_api_write_field(sl_jbuf *b, sl_api_kind kind, const char *name,
                        const sl_api_limits *limits) {
    write_rule(b, find_rule(kind, name), limits);
}

void sl_api_write_body(sl_jbuf *b, sl_api_kind kind, const sl_api_limits *limits) {
    unsigned where = kind == SL_API_CHAT ? CHAT : COMPLETION;
    const char *required = kind == SL_API_CHAT ? "messages" : "prompt";
    sl_schema_open(b);
    for (size_t i = 0; i < SL_LEN(rules); i++) {
        if (!(rules[i].where & where)) continue;
        sl_schema_name(b, rules[i].name);
        write_rule(b, &rules[i], limits);
    }
    sl_schema_close(b, &required, 1);
}
