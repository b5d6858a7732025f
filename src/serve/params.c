/* The values of a body: texts become prompts, numbers lengths and flags, each checked as it is
 * read. */
#include "serve/params_int.h"

#include "base/mem.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>

bool sl_api_serves(const sl_api_limits *limits, const char *model) {
    bool known = !strcmp(model, limits->model);
    for (size_t i = 0; i < limits->n_alias && !known; i++) known = !strcmp(model, limits->alias[i]);
    return known;
}

static sl_status read_model(sl_json root, const sl_api_limits *limits, sl_api_error *e) {
    sl_err err = {0};
    const char *model = NULL;
    if (sl_json_string(root, "model", SL_JSON_OPTIONAL, &model, &err) != SL_OK)
        return sl_api_field_error(e, "model", &err);
    if (!model || sl_api_serves(limits, model)) return SL_OK; /* there is one */
    sl_api_error_model(e, model, limits->model);
    return SL_ERR_NOTFOUND;
}

bool sl_api_scores_prompt(const sl_api_params *p) {
    return p->prompt_logprobs || (p->echo && p->logprobs);
}

sl_report sl_api_report(const sl_api_params *p) {
    const uint32_t n_top = p->n_scored && !p->echo ? 0 : p->n_top;
    return (sl_report){SL_MAX(n_top, p->n_prompt_top), p->n_scored, p->scored};
}

uint32_t sl_api_stride(const sl_api_params *p) {
    const sl_report r = sl_api_report(p);
    return p->logprobs || p->prompt_logprobs ? sl_reported(&r) : 0;
}

/* Ids that stand in the place of the likeliest; one that is there twice is scored once. */
static sl_status read_scored(sl_json root, const sl_api_limits *limits, sl_api_params *p,
                             sl_api_error *e) {
    static const char field[] = "logprob_token_ids";
    sl_err err = {0};
    sl_json v = {0};
    if (sl_json_array(root, field, SL_JSON_OPTIONAL, &v, &err) != SL_OK)
        return sl_api_field_error(e, field, &err);
    if (!v.value) return SL_OK;
    const size_t n = sl_json_count(v);
    if (n == 0 || n > SL_MAX_SCORED)
        return sl_api_error_bad(e, field, "%s: %zu ids, allowed are 1..%u", field, n,
                                SL_MAX_SCORED);
    if (!p->logprobs) return sl_api_error_bad(e, field, "%s: only with logprobs", field);
    if (p->no_answer)
        return sl_api_error_bad(e, field, "%s: with max_tokens 0 no token comes", field);
    for (size_t i = 0; i < n; i++) {
        uint32_t id = 0, k = 0;
        if (sl_api_id_at(v, i, field, limits->vocab, &id, e) != SL_OK) return SL_ERR_ARG;
        while (k < p->n_scored && p->scored[k] != id) k++;
        p->scored[k] = id;
        p->n_scored += k == p->n_scored;
    }
    return SL_OK;
}

/* Those of the prompt stand beside the answer, so they come once it is whole. */
static sl_status read_prompt_logprobs(sl_json root, uint64_t most, sl_api_params *p,
                                      sl_api_error *e) {
    sl_err err = {0};
    bool stream = false;
    uint64_t n = 0;
    p->prompt_logprobs = sl_json_kind_of(sl_json_get(root, "prompt_logprobs")) > SL_JSON_NULL;
    if (sl_json_u64(root, "prompt_logprobs", SL_JSON_OPTIONAL, 0, most, &n, &err) != SL_OK)
        return sl_api_field_error(e, "prompt_logprobs", &err);
    p->n_prompt_top = (uint32_t)n;
    if (sl_json_bool(root, "stream", SL_JSON_OPTIONAL, &stream, &err) != SL_OK)
        return sl_api_field_error(e, "stream", &err);
    if (p->prompt_logprobs && stream)
        return sl_api_error_bad(e, "prompt_logprobs", "prompt_logprobs: not with \"stream\": true");
    return SL_OK;
}

static sl_status read_logprobs(sl_json root, const sl_api_limits *limits, sl_api_params *p,
                               sl_api_error *e) {
    sl_err err = {0};
    bool chat = p->kind == SL_API_CHAT;
    const char *field = chat ? "top_logprobs" : "logprobs";
    uint64_t most = SL_MIN(SL_MAX_LOGPROBS, limits->vocab), n = 0;
    bool given = sl_json_kind_of(sl_json_get(root, field)) > SL_JSON_NULL;
    if (chat && sl_json_bool(root, "logprobs", SL_JSON_OPTIONAL, &p->logprobs, &err) != SL_OK)
        return sl_api_field_error(e, "logprobs", &err);
    if (sl_json_u64(root, field, SL_JSON_OPTIONAL, 0, most, &n, &err) != SL_OK)
        return sl_api_field_error(e, field, &err);
    if (!chat) p->logprobs = given;
    if (n > 0 && !p->logprobs)
        return sl_api_error_bad(e, "top_logprobs", "top_logprobs: only with \"logprobs\": true");
    p->n_top = (uint32_t)n;
    return read_prompt_logprobs(root, most, p, e);
}

static sl_status read_choices(sl_json root, sl_api_params *p, sl_api_error *e) {
    sl_err err = {0};
    uint64_t n = 1;
    (void)sl_json_as_u64(sl_json_get(root, "n"), &n);
    p->n = (uint32_t)n;
    uint64_t best_of = n;
    (void)sl_json_as_u64(sl_json_get(root, "best_of"), &best_of);
    if (best_of != n)
        return sl_api_error_bad(e, "best_of", "best_of: only as many as n are supported");
    bool *echo = p->kind == SL_API_CHAT ? &p->echo_message : &p->echo;
    if (sl_json_bool(root, "echo", SL_JSON_OPTIONAL, echo, &err) != SL_OK)
        return sl_api_field_error(e, "echo", &err);
    return SL_OK;
}

/* A number of tokens, which the context limits. */
static sl_status read_tokens(sl_json root, const char *field, uint64_t least,
                             const sl_api_limits *limits, uint32_t *out, sl_api_error *e) {
    sl_err err = {0};
    uint64_t n = *out;
    int64_t given = 0;
    bool integer = sl_json_as_i64(sl_json_get(root, field), &given);
    bool below = given<(int64_t)least, above = given>(int64_t) limits->context;
    if (integer && (below || above)) {
        sl_api_error_bad(e, field,
                         "%s: %" PRId64 " is outside %" PRIu64 "..%" PRIu32
                         ": this model's maximum context length is %" PRIu32 " tokens (--ctx).",
                         field, given, least, limits->context, limits->context);
        if (above) e->code = "context_length_exceeded";
        return SL_ERR_LIMIT;
    }
    if (sl_json_u64(root, field, SL_JSON_OPTIONAL, least, limits->context, &n, &err) != SL_OK)
        return sl_api_field_error(e, field, &err);
    *out = (uint32_t)n;
    return SL_OK;
}

static sl_status read_max_tokens(sl_json root, const sl_api_limits *limits, sl_api_params *p,
                                 sl_api_error *e) {
    uint64_t zero = 1;
    p->no_answer = p->kind == SL_API_COMPLETION &&
                   sl_json_as_u64(sl_json_get(root, "max_tokens"), &zero) && zero == 0;
    if (p->no_answer) {
        p->max_tokens = 1;
        return SL_OK;
    }
    sl_status st = read_tokens(root, "max_tokens", 1, limits, &p->max_tokens, e);
    if (st == SL_OK && p->kind == SL_API_CHAT)
        st = read_tokens(root, "max_completion_tokens", 1, limits, &p->max_tokens, e);
    return st;
}

static const char *const stream_options[] = {"include_usage", "continuous_usage_stats",
                                             "include_obfuscation"};

static sl_status read_stream(sl_json root, sl_api_params *p, sl_api_error *e) {
    sl_err err = {0};
    sl_json options = {0};
    if (sl_json_bool(root, "stream", SL_JSON_OPTIONAL, &p->stream, &err) != SL_OK)
        return sl_api_field_error(e, "stream", &err);
    if (sl_json_object(root, "stream_options", SL_JSON_OPTIONAL, &options, &err) != SL_OK)
        return sl_api_field_error(e, "stream_options", &err);
    if (!options.value) return SL_OK;
    if (!p->stream)
        return sl_api_error_bad(e, "stream_options", "stream_options: only with \"stream\": true");
    if (sl_json_only(options, stream_options, SL_LEN(stream_options), &err) != SL_OK ||
        sl_json_bool(options, "include_usage", SL_JSON_OPTIONAL, &p->include_usage, &err) !=
            SL_OK ||
        sl_json_bool(options, "continuous_usage_stats", SL_JSON_OPTIONAL, &p->continuous_usage,
                     &err) != SL_OK)
        return sl_api_field_error(e, "stream_options", &err);
    /* without a word on include_usage, usage so far is usage asked for */
    bool off =
        sl_json_kind_of(sl_json_get(options, "include_usage")) == SL_JSON_BOOL && !p->include_usage;
    p->continuous_usage = p->continuous_usage && !off;
    return SL_OK;
}

static sl_status read_stop(sl_json root, sl_api_params *p, sl_api_error *e) {
    sl_json v = sl_json_get(root, "stop");
    sl_json_kind kind = sl_json_kind_of(v);
    if (sl_json_as_span(v, &p->stop[0])) {
        p->n_stop = 1;
    } else if (kind == SL_JSON_ARRAY) {
        if (sl_json_count(v) > SL_STOP_MAX_STRINGS)
            return sl_api_error_bad(e, "stop", "stop: %zu strings, limit %u", sl_json_count(v),
                                    SL_STOP_MAX_STRINGS);
        for (; p->n_stop < sl_json_count(v); p->n_stop++)
            if (!sl_json_as_span(sl_json_at(v, p->n_stop), &p->stop[p->n_stop]))
                return sl_api_error_bad(e, "stop", "stop[%zu]: not a string", p->n_stop);
    } else if (kind > SL_JSON_NULL) {
        return sl_api_error_bad(e, "stop", "stop: neither a string nor an array of strings");
    }
    for (size_t i = 0; i < p->n_stop; i++)
        if (p->stop[i].len == 0 || p->stop[i].len > SL_STOP_MAX_BYTES)
            return sl_api_error_bad(e, "stop", "stop: string %zu has %zu bytes, allowed are 1..%u",
                                    i, p->stop[i].len, SL_STOP_MAX_BYTES);
    return SL_OK;
}

static sl_status read_stop_ids(sl_json root, const sl_api_limits *limits, sl_api_params *p,
                               sl_api_error *e) {
    sl_err err = {0};
    sl_json v = {0};
    if (sl_json_array(root, "stop_token_ids", SL_JSON_OPTIONAL, &v, &err) != SL_OK)
        return sl_api_field_error(e, "stop_token_ids", &err);
    size_t n = sl_json_count(v);
    if (n > SL_MAX_STOP_IDS)
        return sl_api_error_bad(e, "stop_token_ids", "stop_token_ids: %zu ids, limit %u", n,
                                SL_MAX_STOP_IDS);
    for (size_t i = 0; i < n; i++) {
        uint32_t id = 0;
        if (sl_api_id_at(v, i, "stop_token_ids", limits->vocab, &id, e) != SL_OK) return SL_ERR_ARG;
        p->stop_id[p->n_stop_ids++] = id;
    }
    return SL_OK;
}

static sl_status read_ids(sl_json v, const char *field, uint32_t vocab, sl_ids *out,
                          sl_api_error *e) {
    sl_err err = {0};
    for (size_t i = 0; i < sl_json_count(v); i++) {
        uint32_t id = 0;
        if (sl_api_id_at(v, i, field, vocab, &id, e) != SL_OK) return SL_ERR_ARG;
        if (sl_ids_push(out, id, &err) != SL_OK)
            return sl_api_error_of(e, err.code, field, err.msg);
    }
    return SL_OK;
}

static sl_status refuse_long_list(const char *field, size_t n, const sl_api_limits *limits,
                                  sl_api_error *e) {
    sl_api_error_bad(
        e, field, "%s: %zu tokens, and the context of %" PRIu32 " (--ctx) holds prompt and answer",
        field, n, limits->context);
    e->code = "context_length_exceeded";
    return SL_ERR_LIMIT;
}

static sl_status read_prompt_ids(sl_json v, const sl_api_limits *limits, bool truncate, sl_ids *out,
                                 sl_api_error *e) {
    size_t n = sl_json_count(v);
    if (!truncate && n > limits->context) return refuse_long_list("prompt", n, limits, e);
    return read_ids(v, "prompt", limits->vocab, out, e);
}

/* Whether an array has texts beside ids, and is one prompt. */
static bool is_mixed(sl_json v) {
    bool text = false, id = false;
    for (size_t i = 0; i < sl_json_count(v); i++) {
        sl_json_kind kind = sl_json_kind_of(sl_json_at(v, i));
        bool number = kind == SL_JSON_INT || kind == SL_JSON_REAL;
        text |= kind == SL_JSON_STRING;
        id |= number;
        if (kind != SL_JSON_STRING && !number) return false;
    }
    return text && id;
}

/* Its texts become tokens later, what else it has is known to be ids then. */
static sl_status read_mixed(sl_json v, const sl_api_limits *limits, bool truncate,
                            sl_api_prompt *out, sl_api_error *e) {
    size_t n = sl_json_count(v);
    if (!truncate && n > limits->context) return refuse_long_list("prompt", n, limits, e);
    for (size_t i = 0; i < n; i++) {
        sl_json part = sl_json_at(v, i);
        uint64_t id = 0;
        if (sl_json_kind_of(part) == SL_JSON_STRING) continue;
        if (!sl_json_as_u64(part, &id) || id >= limits->vocab)
            return sl_api_error_bad(e, "prompt",
                                    "prompt[%zu]: neither a string nor a token id below %" PRIu32,
                                    i, limits->vocab);
    }
    out->mixed = v;
    (void)sl_json_as_span(sl_json_at(v, 0), &out->text);
    return SL_OK;
}

/* A text, or an array of ids, or of both. */
static sl_status read_one_prompt(sl_json v, const sl_api_limits *limits, bool truncate,
                                 sl_api_prompt *out, sl_api_error *e) {
    if (sl_json_as_span(v, &out->text)) return SL_OK;
    if (is_mixed(v)) return read_mixed(v, limits, truncate, out, e);
    if (sl_json_kind_of(v) == SL_JSON_ARRAY && sl_json_count(v) > 0)
        return read_prompt_ids(v, limits, truncate, &out->ids, e);
    if (sl_json_kind_of(v) == SL_JSON_ARRAY)
        return sl_api_error_bad(e, "prompt", "prompt: an empty array");
    return sl_api_error_bad(e, "prompt", "prompt: neither a string nor an array of token ids");
}

static sl_status read_prompt(sl_json root, const sl_api_limits *limits, sl_api_params *p,
                             sl_api_error *e) {
    sl_json v = sl_json_get(root, "prompt");
    if (sl_json_kind_of(v) <= SL_JSON_NULL) return sl_api_error_bad(e, "prompt", "prompt: missing");
    sl_json_kind first = sl_json_kind_of(sl_json_at(v, 0));
    bool many = (first == SL_JSON_STRING || first == SL_JSON_ARRAY) && !is_mixed(v);
    size_t n = many ? sl_json_count(v) : 1;
    if (n * p->n > SL_API_MAX_CHOICES)
        return sl_api_error_bad(e, many && p->n == 1 ? "prompt" : "n",
                                "%zu prompts with n = %" PRIu32
                                ": a request has %u choices at most",
                                n, p->n, SL_API_MAX_CHOICES);
    p->prompts = sl_alloc(n, sizeof *p->prompts);
    if (!p->prompts) return sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    p->n_prompts = n;
    for (size_t i = 0; i < n; i++) {
        sl_status st =
            read_one_prompt(many ? sl_json_at(v, i) : v, limits, p->truncate, &p->prompts[i], e);
        if (st != SL_OK) return st;
    }
    return SL_OK;
}

/* With whom it shares KV pages. */
static sl_status read_cache(sl_json root, sl_api_params *p, sl_api_error *e) {
    sl_err err = {0};
    sl_span salt;
    bool cache = true;
    if (sl_json_bool(root, "cache", SL_JSON_OPTIONAL, &cache, &err) != SL_OK)
        return sl_api_field_error(e, "cache", &err);
    p->no_cache = !cache;
    if (!sl_json_as_span(sl_json_get(root, "cache_salt"), &salt)) return SL_OK;
    if (salt.len == 0)
        return sl_api_error_bad(e, "cache_salt", "cache_salt: empty, at least one character");
    p->salted = true;
    crypto_generichash(p->cache_salt, sizeof p->cache_salt, salt.data, salt.len, NULL, 0);
    return SL_OK;
}

/* Whether the answer is a message of its own, or goes on from the last one. */
static sl_status read_beginning(sl_json root, sl_api_params *p, sl_api_error *e) {
    sl_err err = {0};
    bool opens = true;
    if (p->kind != SL_API_CHAT) return SL_OK;
    if (sl_json_bool(root, "add_generation_prompt", SL_JSON_OPTIONAL, &opens, &err) != SL_OK)
        return sl_api_field_error(e, "add_generation_prompt", &err);
    if (sl_json_bool(root, "continue_final_message", SL_JSON_OPTIONAL, &p->go_on, &err) != SL_OK)
        return sl_api_field_error(e, "continue_final_message", &err);
    bool said = sl_json_kind_of(sl_json_get(root, "add_generation_prompt")) == SL_JSON_BOOL;
    if (p->go_on && said && opens)
        return sl_api_error_bad(e, "continue_final_message",
                                "continue_final_message: true, and add_generation_prompt, too: the "
                                "last message is gone on with, or a new one is opened");
    if (p->echo_message && !p->go_on)
        return sl_api_error_bad(e, "echo", "echo: in chats only with continue_final_message");
    p->no_generation = p->go_on || !opens;
    return SL_OK;
}

/* What is gone on with are words of an assistant. */
static sl_status check_last(const sl_api_params *p, sl_api_error *e) {
    if (!p->go_on) return SL_OK;
    size_t at = p->n_messages - 1;
    const sl_chat_message *last = &p->messages[at];
    if (!sl_span_is(last->role, "assistant"))
        return sl_api_error_bad(e, "continue_final_message",
                                "continue_final_message: messages[%zu], the last one, has the role "
                                "\"%.*s\", not \"assistant\"",
                                at, (int)SL_MIN(last->role.len, (size_t)40),
                                (const char *)last->role.data);
    if (sl_json_count(sl_json_get(last->fields, "tool_calls")) > 0)
        return sl_api_error_bad(e, "continue_final_message",
                                "continue_final_message: messages[%zu], the last one, has "
                                "tool_calls, behind which no text goes on",
                                at);
    return SL_OK;
}

static sl_status read_flags(sl_json root, sl_api_params *p, sl_api_error *e) {
    /* a template writes the special tokens of a chat itself */
    bool skip = true, special = p->kind != SL_API_CHAT, reasoning = true;
    const struct {
        const char *name;
        bool *to;
    } field[] = {{"ignore_eos", &p->ignore_eos},
                 {"return_token_ids", &p->return_token_ids},
                 {"return_tokens_as_token_ids", &p->ids_as_tokens},
                 {"timings_per_token", &p->timings_each},
                 {"verbose", &p->verbose},
                 {"include_reasoning", &reasoning},
                 {"include_stop_str_in_output", &p->include_stop},
                 {"skip_special_tokens", &skip},
                 {"add_special_tokens", &special}};
    for (size_t i = 0; i < SL_LEN(field); i++) {
        sl_err err = {0};
        if (sl_json_bool(root, field[i].name, SL_JSON_OPTIONAL, field[i].to, &err) != SL_OK)
            return sl_api_field_error(e, field[i].name, &err);
    }
    p->show_special = !skip;
    p->no_special = !special;
    p->hide_reasoning = !reasoning;
    if (p->hide_reasoning && p->show_special)
        return sl_api_error_bad(e, "include_reasoning",
                                "include_reasoning: false, and skip_special_tokens, too, with "
                                "which no reasoning is told apart");
    if (p->verbose && p->stream)
        return sl_api_error_bad(e, "verbose", "verbose: not with \"stream\": true");
    return read_beginning(root, p, e);
}

/* Which tokens a prompt keeps that is cut. */
static sl_status read_side(sl_json root, sl_api_params *p, sl_api_error *e) {
    sl_json v = sl_json_get(root, "truncation_side");
    p->keep_first = sl_api_string_is(v, "right");
    if (p->keep_first || sl_json_kind_of(v) <= SL_JSON_NULL || sl_api_string_is(v, "left"))
        return SL_OK;
    return sl_api_error_bad(e, "truncation_side",
                            "truncation_side: neither \"left\" nor \"right\"");
}

/* How long a thought may be: two names of one thing. */
static sl_status read_budget(sl_json root, const sl_api_limits *limits, sl_api_params *p,
                             sl_api_error *e) {
    static const char *const names[] = {"max_reasoning_tokens", "thinking_token_budget"};
    for (size_t i = 0; i < SL_LEN(names); i++) {
        uint32_t n = 0;
        if (sl_json_kind_of(sl_json_get(root, names[i])) <= SL_JSON_NULL) continue;
        sl_status st = read_tokens(root, names[i], 0, limits, &n, e);
        if (st != SL_OK) return st;
        if (p->budget_field && n != p->budget)
            return sl_api_error_bad(e, names[i], "%s: %u, but %s is %u", names[i], n,
                                    p->budget_field, p->budget);
        p->budget_field = names[i];
        p->budget = n;
    }
    return SL_OK;
}

/* Reads max_tokens' companions. */
static sl_status read_lengths(sl_json root, const sl_api_limits *limits, sl_api_params *p,
                              sl_api_error *e) {
    int64_t number = 0;
    sl_status st = read_tokens(root, "min_tokens", 0, limits, &p->min_tokens, e);
    if (st == SL_OK) st = read_budget(root, limits, p, e);
    if (st == SL_OK) st = read_side(root, p, e);
    if (st != SL_OK) return st;
    if (p->max_tokens > 0 && p->min_tokens > p->max_tokens)
        return sl_api_error_bad(e, "min_tokens", "min_tokens: more than max_tokens");
    sl_json keep = sl_json_get(root, "truncate_prompt_tokens");
    p->truncate = sl_json_kind_of(keep) > SL_JSON_NULL;
    if (sl_json_as_i64(keep, &number) && number == -1) return SL_OK;
    return read_tokens(root, "truncate_prompt_tokens", 1, limits, &p->keep_tokens, e);
}

/* The body as a JSON object, which names the model served here, or none. */
static sl_status open_body(sl_span body, const sl_api_limits *limits, sl_api_params *p,
                           sl_api_error *e) {
    sl_err err = {0};
    sl_status st = sl_json_parse_within("request body", body, SL_API_MAX_MEMORY, &p->doc, &err);
    if (st != SL_OK) return sl_api_error_of(e, st, NULL, err.msg);
    if (sl_json_kind_of(sl_json_root(p->doc)) != SL_JSON_OBJECT)
        return sl_api_error_bad(e, NULL, "request body: not a JSON object");
    return read_model(sl_json_root(p->doc), limits, e);
}

/* Moves p to *out, or frees it. */
static sl_status hand_over(sl_status st, sl_api_params *p, sl_api_params *out) {
    if (st == SL_OK)
        *out = *p;
    else
        sl_api_params_free(p);
    return st;
}

sl_status sl_api_params_parse(sl_api_kind kind, sl_span body, const sl_api_limits *limits,
                              sl_api_params *out, sl_api_error *e) {
    sl_api_params p = {.kind = kind};
    sl_status st = open_body(body, limits, &p, e);
    if (st != SL_OK) return hand_over(st, &p, out);
    sl_json root = sl_json_root(p.doc);
    st = sl_api_check_fields(kind, root, e);
    if (st == SL_OK) st = sl_api_read_sampling(root, limits, &p, e);
    if (st == SL_OK) st = read_logprobs(root, limits, &p, e);
    if (st == SL_OK) st = read_choices(root, &p, e);
    if (st == SL_OK) st = read_max_tokens(root, limits, &p, e);
    if (st == SL_OK) st = read_scored(root, limits, &p, e);
    if (st == SL_OK) st = read_stream(root, &p, e);
    if (st == SL_OK) st = read_lengths(root, limits, &p, e);
    if (st == SL_OK) st = read_flags(root, &p, e);
    if (st == SL_OK) st = read_cache(root, &p, e);
    if (st == SL_OK && kind == SL_API_COMPLETION) st = sl_api_read_fill(root, &p, e);
    if (st == SL_OK) st = sl_api_read_template(root, &p, e);
    if (st == SL_OK) st = sl_api_choose_tools(root, &p, e);
    if (st == SL_OK) st = sl_api_read_shape(root, &p, e);
    if (st == SL_OK) st = read_stop(root, &p, e);
    if (st == SL_OK) st = read_stop_ids(root, limits, &p, e);
    if (st == SL_OK)
        st = kind == SL_API_CHAT ? sl_api_read_messages(root, &p, e)
                                 : read_prompt(root, limits, &p, e);
    if (st == SL_OK) st = check_last(&p, e);
    return hand_over(st, &p, out);
}

static void write_token_list(sl_jbuf *b, const sl_api_limits *limits) {
    sl_jbuf_fmt(
        b,
        "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":%" PRIu32
        "},\"maxItems\":%" PRIu32 "}",
        limits->vocab - 1, limits->context);
}

/* Bodies of /tokenize, with a text or with a chat, and of /detokenize. */
static const sl_field text_fields[] = {
    {"model", false, SL_IS_STRING},
    {"prompt", true, SL_IS_STRING},
    {"add_special_tokens", false, SL_IS_BOOL},
    {"return_token_strs", false, SL_IS_BOOL},
};
static const sl_field chat_fields[] = {
    {"model", false, SL_IS_STRING},
    {"messages", true, SL_IS_WRITTEN(sl_api_write_messages)},
    {"add_generation_prompt", false, SL_IS_BOOL},
    {"add_special_tokens", false, SL_IS_BOOL},
    {"continue_final_message", false, SL_IS_BOOL},
    {"chat_template_kwargs", false, SL_IS_OBJECT},
    {"tools", false, SL_IS_WRITTEN(sl_api_write_tools)},
    {"return_token_strs", false, SL_IS_BOOL},
};
static const sl_field token_fields[] = {
    {"model", false, SL_IS_STRING},
    {"tokens", true, SL_IS_WRITTEN(write_token_list)},
};

/* Flags of /tokenize. */
static sl_status read_tokenize_flags(sl_json root, sl_api_params *p, sl_api_error *e) {
    bool special = p->kind != SL_API_CHAT;
    const struct {
        const char *name;
        bool *to;
    } field[] = {{"add_special_tokens", &special}, {"return_token_strs", &p->token_strs}};
    for (size_t i = 0; i < SL_LEN(field); i++) {
        sl_err err = {0};
        if (sl_json_bool(root, field[i].name, SL_JSON_OPTIONAL, field[i].to, &err) != SL_OK)
            return sl_api_field_error(e, field[i].name, &err);
    }
    p->no_special = !special;
    return read_beginning(root, p, e);
}

static sl_status read_text(sl_json root, sl_api_params *p, sl_api_error *e) {
    p->prompts = sl_alloc(1, sizeof *p->prompts);
    if (!p->prompts) return sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    p->n_prompts = 1;
    if (sl_json_as_span(sl_json_get(root, "prompt"), &p->prompts[0].text)) return SL_OK;
    return sl_api_error_bad(e, "prompt", "prompt: missing or not a string");
}

sl_status sl_api_tokenize_parse(sl_span body, const sl_api_limits *limits, sl_api_params *out,
                                sl_api_error *e) {
    sl_api_params p = {.kind = SL_API_COMPLETION};
    sl_status st = open_body(body, limits, &p, e);
    if (st != SL_OK) return hand_over(st, &p, out);
    sl_json root = sl_json_root(p.doc);
    if (sl_json_kind_of(sl_json_get(root, "messages")) > SL_JSON_NULL) p.kind = SL_API_CHAT;
    st = p.kind == SL_API_CHAT ? sl_fields_check(chat_fields, SL_LEN(chat_fields), root, e)
                               : sl_fields_check(text_fields, SL_LEN(text_fields), root, e);
    if (st == SL_OK) st = read_tokenize_flags(root, &p, e);
    if (st == SL_OK) st = sl_api_read_template(root, &p, e);
    if (st == SL_OK && p.kind == SL_API_CHAT)
        st = sl_api_read_messages(root, &p, e);
    else if (st == SL_OK)
        st = read_text(root, &p, e);
    if (st == SL_OK) st = check_last(&p, e);
    return hand_over(st, &p, out);
}

sl_status sl_api_detokenize_parse(sl_span body, const sl_api_limits *limits, sl_api_params *out,
                                  sl_api_error *e) {
    sl_err err = {0};
    sl_json v = {0};
    sl_api_params p = {.kind = SL_API_COMPLETION};
    sl_status st = open_body(body, limits, &p, e);
    if (st == SL_OK)
        st = sl_fields_check(token_fields, SL_LEN(token_fields), sl_json_root(p.doc), e);
    if (st == SL_OK &&
        sl_json_array(sl_json_root(p.doc), "tokens", SL_JSON_REQUIRED, &v, &err) != SL_OK)
        st = sl_api_field_error(e, "tokens", &err);
    if (st == SL_OK && sl_json_count(v) > limits->context)
        st = refuse_long_list("tokens", sl_json_count(v), limits, e);
    if (st == SL_OK) st = read_ids(v, "tokens", limits->vocab, &p.ids, e);
    return hand_over(st, &p, out);
}

static void free_messages(sl_api_params *p) {
    for (size_t i = 0; i < p->n_messages && p->joined; i++) sl_jbuf_free(&p->joined[i]);
    sl_free(p->joined);
    sl_free(p->messages);
    sl_json_doc_free(p->quoted);
    p->quoted = NULL;
    p->joined = NULL;
    p->messages = NULL;
    p->n_messages = 0;
    p->tools = p->template_kwargs = p->bad_words = (sl_json){0};
    p->effort = p->forced = (sl_span){0};
    sl_json_doc_free(p->shape_doc);
    p->shape_doc = NULL;
    p->shape_of = (sl_json){0};
}

sl_status sl_api_params_forget(sl_api_params *p, sl_err *err) {
    const size_t most = SL_TOKENIZER_MAX_PIECE;
    char *kept = sl_alloc(p->n_prompts, most);
    if (!kept) return sl_fail(err, SL_ERR_NOMEM, "%zu prompts", p->n_prompts);
    for (size_t i = 0; i < p->n_prompts; i++) {
        sl_api_prompt *prompt = &p->prompts[i];
        sl_ids_free(&prompt->ids);
        prompt->mixed = (sl_json){0};
        if (!prompt->text.data) continue;
        size_t n = SL_MIN(prompt->text.len, most);
        memcpy(kept + i * most, prompt->text.data, n);
        prompt->text = (sl_span){(const uint8_t *)kept + i * most, n};
    }
    free_messages(p);
    sl_free(p->file);
    p->file = NULL;
    p->n_files = 0;
    p->suffix = (sl_span){0};
    sl_free(p->bias_text);
    p->bias_text = NULL;
    p->n_bias_texts = 0;
    memset(p->stop, 0, sizeof p->stop);
    sl_json_doc_free(p->doc);
    p->doc = NULL;
    sl_free(p->kept);
    p->kept = kept;
    return SL_OK;
}

void sl_api_params_free(sl_api_params *p) {
    free_messages(p);
    for (size_t i = 0; i < p->n_prompts; i++) sl_ids_free(&p->prompts[i].ids);
    sl_free(p->prompts);
    sl_free(p->file);
    sl_free(p->bias);
    sl_free(p->allowed);
    sl_free(p->bad);
    sl_free(p->bias_text);
    sl_free(p->kept);
    sl_ids_free(&p->ids);
    sl_jbuf_free(&p->extra.echo);
    sl_json_doc_free(p->doc);
    *p = (sl_api_params){0};
}

/* ---- the same as JSON Schemas ---- */

void sl_api_write_tokenize(sl_jbuf *b, const sl_api_limits *limits) {
    sl_jbuf_fmt(b, "{\"anyOf\":[");
    sl_fields_write(b, text_fields, SL_LEN(text_fields), limits);
    sl_jbuf_put(b, ",", 1);
    sl_fields_write(b, chat_fields, SL_LEN(chat_fields), limits);
    sl_jbuf_fmt(b, "]}");
}

void sl_api_write_detokenize(sl_jbuf *b, const sl_api_limits *limits) {
    sl_fields_write(b, token_fields, SL_LEN(token_fields), limits);
}

void sl_api_write_stream_options(sl_jbuf *b, const sl_api_limits *limits) {
    (void)limits;
    sl_schema_open(b);
    for (size_t i = 0; i < SL_LEN(stream_options); i++) {
        sl_schema_name(b, stream_options[i]);
        sl_jbuf_fmt(b, "{\"type\":[\"boolean\",\"null\"]}");
    }
    sl_schema_close(b, NULL, 0);
}

void sl_api_write_stop(sl_jbuf *b, const sl_api_limits *limits) {
    (void)limits;
    static const char text[] = "{\"type\":\"string\",\"minLength\":1,\"maxLength\":%u}";
    sl_jbuf_fmt(b, "{\"anyOf\":[");
    sl_jbuf_fmt(b, text, SL_STOP_MAX_BYTES);
    sl_jbuf_fmt(b, ",{\"type\":\"array\",\"maxItems\":%u,\"items\":", SL_STOP_MAX_STRINGS);
    sl_jbuf_fmt(b, text, SL_STOP_MAX_BYTES);
    sl_jbuf_fmt(b, "}]}");
}

void sl_api_write_stop_ids(sl_jbuf *b, const sl_api_limits *limits) {
    sl_jbuf_fmt(b,
                "{\"type\":\"array\",\"maxItems\":%u,\"items\":{\"type\":\"integer\",\"minimum\":0,"
                "\"maximum\":%" PRIu32 "}}",
                SL_MAX_STOP_IDS, limits->vocab - 1);
}

void sl_api_write_scored(sl_jbuf *b, const sl_api_limits *limits) {
    sl_jbuf_fmt(
        b,
        "{\"type\":\"array\",\"minItems\":1,\"maxItems\":%u,\"items\":{\"type\":\"integer\","
        "\"minimum\":0,\"maximum\":%" PRIu32 "}}",
        SL_MAX_SCORED, limits->vocab - 1);
}

void sl_api_write_truncation(sl_jbuf *b, const sl_api_limits *limits) {
    sl_jbuf_fmt(
        b,
        "{\"anyOf\":[{\"const\":-1},{\"type\":\"integer\",\"minimum\":1,\"maximum\":%" PRIu32 "}]}",
        limits->context);
}

void sl_api_write_side(sl_jbuf *b, const sl_api_limits *limits) {
    (void)limits;
    sl_jbuf_fmt(b, "{\"enum\":[\"left\",\"right\",null]}");
}

/* A text, token ids, ids with texts between them, or several of these. */
void sl_api_write_prompt(sl_jbuf *b, const sl_api_limits *limits) {
    char id[64], one[320];
    snprintf(id, sizeof id, "{\"type\":\"integer\",\"minimum\":0,\"maximum\":%" PRIu32 "}",
             limits->vocab - 1);
    snprintf(
        one, sizeof one,
        "{\"type\":\"string\"},{\"type\":\"array\",\"contains\":{\"type\":\"integer\"},\"items\":{"
        "\"anyOf\":[{\"type\":\"string\"},%s]}}",
        id);
    sl_jbuf_fmt(
        b,
        "{\"anyOf\":[%s,{\"type\":\"array\",\"minItems\":1,\"maxItems\":%u,\"items\":{\"anyOf\":"
        "[%s]}}]}",
        one, SL_API_MAX_CHOICES, one);
}
