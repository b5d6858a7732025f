/* Bodies of OpenAI's /v1/responses as those of chats. */
#include "serve/dialect_int.h"
#include "serve/params_int.h"
#include "serve/talk.h"

#include <stdio.h>

#define MAX_METADATA   16u /* OpenAI's limits */
#define METADATA_KEY   64u
#define METADATA_VALUE 512u
#define MAX_ECHO       ((size_t)64 << 10) /* a larger field is not repeated in an answer */

const sl_dialect_field sl_responses_fields[] = {
    SL_DIALECT_COMMON
#include "spec/sampling.def"
    {"input", SL_FIELD_OWN, "messages"},
    {"instructions", SL_FIELD_OWN, NULL},
    {"max_output_tokens", SL_FIELD_COPY, "max_tokens"},
    {"tools", SL_FIELD_OWN, "tools"},
    {"tool_choice", SL_FIELD_OWN, "tool_choice"},
    {"parallel_tool_calls", SL_FIELD_COPY, "parallel_tool_calls"},
    {"reasoning", SL_FIELD_OWN, "reasoning_effort"},
    {"text", SL_FIELD_OWN, "response_format"},
    {"truncation", SL_FIELD_OWN, NULL},
    {"metadata", SL_FIELD_OWN, NULL},
    {"store", SL_FIELD_OWN, NULL},
    {"previous_response_id", SL_FIELD_OWN, NULL}, /* responses_chain.c */
    {"include", SL_FIELD_OWN, NULL},
    {"background", SL_FIELD_OWN, NULL},
    {"stream_options", SL_FIELD_OWN, NULL},
    {"top_logprobs", SL_FIELD_OWN, NULL},
    {"enable_response_messages", SL_FIELD_COPY, "verbose"},
    {"user", SL_FIELD_IGNORE, NULL},
    {"safety_identifier", SL_FIELD_IGNORE, NULL},
    {"prompt_cache_key", SL_FIELD_IGNORE, NULL},
    {"prompt_cache_retention", SL_FIELD_IGNORE, NULL},
    {"prompt_cache_options", SL_FIELD_IGNORE, NULL},
    {"service_tier", SL_FIELD_IGNORE, NULL},
    {"max_tool_calls", SL_FIELD_IGNORE, NULL}, /* of hosted tools, of which there are none */
    {"conversation", SL_FIELD_REFUSE, NULL},
    {"prompt", SL_FIELD_REFUSE, NULL},
    {"context_management", SL_FIELD_REFUSE, NULL},
    {"moderation", SL_FIELD_REFUSE, NULL},
};
_Static_assert(SL_LEN(sl_responses_fields) == SL_RESPONSES_FIELDS, "as many as the header says");

static bool is_given(sl_json v) {
    return sl_json_kind_of(v) > SL_JSON_NULL;
}

/* ---- input ---- */

typedef struct place {
    char name[96]; /* in errors */
    sl_api_error *e;
} place;

static sl_status bad(const place *at, const char *what) {
    return sl_api_error_bad(at->e, "input", "%s%s", at->name, what);
}

static sl_status refuse_type(sl_json v, const char *what, const place *at) {
    sl_span type = {0};
    if (!sl_json_as_span(sl_json_get(v, "type"), &type))
        return bad(at, ": not an object with a type");
    return sl_api_error_bad(at->e, "input", "%s: %s of type \"%.48s\" are not supported here",
                            at->name, what, (const char *)type.data);
}

/* A text, or parts of texts, of whoever speaks; reasoning goes where thoughts do. */
static sl_status add_texts(sl_talk *t, const char *role, sl_json content, const place *at) {
    static const struct {
        const char *type, *field;
        bool thought;
    } kinds[] = {{"input_text", "text", false},    {"output_text", "text", false},
                 {"text", "text", false},          {"refusal", "refusal", false},
                 {"reasoning_text", "text", true}, {"summary_text", "text", true}};
    sl_span text;
    if (sl_json_as_span(content, &text)) {
        sl_talk_text(t, role, text);
        return SL_OK;
    }
    if (sl_json_kind_of(content) != SL_JSON_ARRAY)
        return bad(at, ": neither a string nor an array of parts");
    for (size_t i = 0; i < sl_json_count(content); i++) {
        sl_json part = sl_json_at(content, i);
        size_t k = 0;
        place inside = {.e = at->e};
        snprintf(inside.name, sizeof inside.name, "%.60s[%zu]", at->name, i);
        while (k < SL_LEN(kinds) && !sl_json_is_text(sl_json_get(part, "type"), kinds[k].type)) k++;
        if (k == SL_LEN(kinds) || kinds[k].thought != !role)
            return refuse_type(part, "parts", &inside);
        if (!sl_json_as_span(sl_json_get(part, kinds[k].field), &text))
            return bad(&inside, ": its text is missing or not a string");
        if (role)
            sl_talk_text(t, role, text);
        else
            sl_talk_reasoning(t, text);
    }
    return SL_OK;
}

static sl_status check_item(sl_json item, const char *const *known, size_t n, const place *at) {
    return sl_dialect_only(item, at->name, known, n, "input", at->e);
}

static place inside_of(const place *at, const char *field) {
    place inside = {.e = at->e};
    snprintf(inside.name, sizeof inside.name, "%.60s.%s", at->name, field);
    return inside;
}

/* What an assistant thinks, says and calls is one message, until it speaks again. */
static sl_status add_message(sl_talk *t, sl_json item, const place *at) {
    static const char *const known[] = {"type", "role", "content", "id", "status", "phase"};
    static const struct {
        const char *from, *to;
    } roles[] = {{"user", "user"},
                 {"assistant", "assistant"},
                 {"system", "system"},
                 {"developer", "system"}};
    const char *role = NULL;
    for (size_t i = 0; i < SL_LEN(roles); i++)
        if (sl_json_is_text(sl_json_get(item, "role"), roles[i].from)) role = roles[i].to;
    if (!role) return bad(at, ".role: none of user, assistant, system, developer");
    sl_status st = check_item(item, known, SL_LEN(known), at);
    if (st != SL_OK) return st;
    bool thought = t->role && !strcmp(role, "assistant") && !strcmp(t->role, role) &&
                   t->parts.len == 0 && t->calls.len == 0;
    if (!thought) sl_talk_begin(t, role, (sl_json){0});
    place content = inside_of(at, "content");
    return add_texts(t, role, sl_json_get(item, "content"), &content);
}

static sl_status add_call(sl_talk *t, sl_json item, const place *at) {
    static const char *const known[] = {"type", "call_id", "name",  "arguments",
                                        "id",   "status",  "caller"};
    sl_json id = sl_json_get(item, "call_id"), name = sl_json_get(item, "name");
    sl_span arguments;
    sl_status st = check_item(item, known, SL_LEN(known), at);
    if (st != SL_OK) return st;
    if (sl_json_kind_of(id) != SL_JSON_STRING || sl_json_kind_of(name) != SL_JSON_STRING ||
        !sl_json_as_span(sl_json_get(item, "arguments"), &arguments))
        return bad(at, ": not {\"type\":\"function_call\",\"call_id\":...,\"name\":...,"
                       "\"arguments\":\"...\"}");
    sl_talk_call(t, id, name, arguments);
    return SL_OK;
}

static sl_status add_output(sl_talk *t, sl_json item, const place *at) {
    static const char *const known[] = {"type", "call_id", "output", "id", "status", "caller"};
    sl_json id = sl_json_get(item, "call_id");
    sl_status st = check_item(item, known, SL_LEN(known), at);
    if (st != SL_OK) return st;
    if (sl_json_kind_of(id) != SL_JSON_STRING) return bad(at, ".call_id: missing or not a string");
    sl_talk_begin(t, "tool", id);
    place output = inside_of(at, "output");
    return add_texts(t, "tool", sl_json_get(item, "output"), &output);
}

static sl_status add_thought(sl_talk *t, sl_json item, const place *at) {
    static const char *const known[] = {"type", "summary", "content", "id", "status"};
    sl_json content = sl_json_get(item, "content"), summary = sl_json_get(item, "summary");
    bool whole = sl_json_count(content) > 0;
    sl_status st = check_item(item, known, SL_LEN(known), at);
    if (st != SL_OK || (!whole && sl_json_count(summary) == 0)) return st;
    place inside = inside_of(at, whole ? "content" : "summary");
    return add_texts(t, NULL, whole ? content : summary, &inside);
}

static sl_status add_item(sl_talk *t, sl_json item, size_t index, sl_api_error *e) {
    static const struct {
        const char *type;
        sl_status (*add)(sl_talk *, sl_json, const place *);
    } kinds[] = {{"message", add_message},
                 {"function_call", add_call},
                 {"function_call_output", add_output},
                 {"reasoning", add_thought}};
    place at = {.e = e};
    snprintf(at.name, sizeof at.name, "input[%zu]", index);
    sl_json type = sl_json_get(item, "type");
    if (sl_json_kind_of(item) != SL_JSON_OBJECT) return bad(&at, ": not an object");
    if (!is_given(type)) return add_message(t, item, &at);
    for (size_t i = 0; i < SL_LEN(kinds); i++)
        if (sl_json_is_text(type, kinds[i].type)) return kinds[i].add(t, item, &at);
    return refuse_type(item, "items", &at);
}

static sl_status add_input(sl_talk *t, sl_json root, sl_api_error *e) {
    sl_json input = sl_json_get(root, "input"), instructions = sl_json_get(root, "instructions");
    sl_span text;
    sl_status st = SL_OK;
    if (sl_json_as_span(instructions, &text))
        sl_talk_text(t, "system", text);
    else if (is_given(instructions))
        return sl_api_error_bad(e, "instructions", "instructions: not a string");
    if (sl_json_as_span(input, &text)) {
        sl_talk_begin(t, "user", (sl_json){0});
        sl_talk_text(t, "user", text);
        return SL_OK;
    }
    if (sl_json_kind_of(input) != SL_JSON_ARRAY || sl_json_count(input) == 0)
        return sl_api_error_bad(e, "input", "input: neither a string nor an array of items");
    for (size_t i = 0; st == SL_OK && i < sl_json_count(input); i++)
        st = add_item(t, sl_json_at(input, i), i, e);
    return st;
}

/* ---- tools ---- */

static sl_status refuse_tool(sl_json tool, const char *where, const char *param, sl_api_error *e) {
    sl_span type = {0};
    if (!sl_json_as_span(sl_json_get(tool, "type"), &type))
        return sl_api_error_bad(e, param, "%s: not an object with a type", where);
    return sl_api_error_bad(e, param,
                            "%s: \"%.48s\" is not supported: this server hosts no tools, only "
                            "functions of the client's own are",
                            where, (const char *)type.data);
}

static sl_status add_tool(sl_jbuf *chat, sl_json tool, size_t i, sl_api_error *e) {
    static const char *const known[] = {"type", "name", "description", "parameters", "strict"};
    char where[32];
    snprintf(where, sizeof where, "tools[%zu]", i);
    if (!sl_json_is_text(sl_json_get(tool, "type"), "function"))
        return refuse_tool(tool, where, "tools", e);
    sl_status st = sl_dialect_only(tool, where, known, SL_LEN(known), "tools", e);
    if (st != SL_OK) return st;
    if (sl_json_kind_of(sl_json_get(tool, "name")) != SL_JSON_STRING)
        return sl_api_error_bad(e, "tools", "%s.name: missing or not a string", where);
    sl_jbuf_fmt(chat, "%s{\"type\":\"function\",\"function\":{\"name\":", i ? "," : "");
    sl_jbuf_json(chat, sl_json_get(tool, "name"));
    for (size_t k = 2; k < SL_LEN(known); k++) {
        sl_json v = sl_json_get(tool, known[k]);
        if (!is_given(v)) continue;
        sl_jbuf_fmt(chat, ",\"%s\":", known[k]);
        sl_jbuf_json(chat, v);
    }
    sl_jbuf_fmt(chat, "}}");
    return SL_OK;
}

static sl_status add_tools(sl_jbuf *chat, sl_json root, sl_api_error *e) {
    sl_err err = {0};
    sl_json list = {0};
    sl_status st = SL_OK;
    if (sl_json_array(root, "tools", SL_JSON_OPTIONAL, &list, &err) != SL_OK)
        return sl_api_field_error(e, "tools", &err);
    if (!list.value) return SL_OK;
    sl_jbuf_fmt(chat, ",\"tools\":[");
    for (size_t i = 0; st == SL_OK && i < sl_json_count(list); i++)
        st = add_tool(chat, sl_json_at(list, i), i, e);
    sl_jbuf_put(chat, "]", 1);
    return st;
}

static sl_status add_tool_choice(sl_jbuf *chat, sl_json root, sl_api_error *e) {
    sl_json choice = sl_json_get(root, "tool_choice"), name = sl_json_get(choice, "name");
    if (!is_given(choice)) return SL_OK;
    bool object = sl_json_kind_of(choice) == SL_JSON_OBJECT;
    bool named = sl_json_is_text(sl_json_get(choice, "type"), "function");
    if (object && !named) return refuse_tool(choice, "tool_choice", "tool_choice", e);
    if (object && sl_json_kind_of(name) != SL_JSON_STRING)
        return sl_api_error_bad(e, "tool_choice", "tool_choice.name: missing or not a string");
    sl_jbuf_fmt(chat, ",\"tool_choice\":");
    if (!object) {
        sl_jbuf_json(chat, choice);
        return SL_OK;
    }
    sl_jbuf_fmt(chat, "{\"type\":\"function\",\"function\":{\"name\":");
    sl_jbuf_json(chat, name);
    sl_jbuf_fmt(chat, "}}");
    return SL_OK;
}

/* ---- the rest ---- */

static sl_status add_reasoning(sl_jbuf *chat, sl_json root, sl_api_error *e) {
    static const char *const known[] = {"effort", "summary", "generate_summary"};
    sl_json v = sl_json_get(root, "reasoning"), effort = sl_json_get(v, "effort");
    if (is_given(v) && sl_json_kind_of(v) != SL_JSON_OBJECT)
        return sl_api_error_bad(e, "reasoning", "reasoning: not an object");
    sl_status st = sl_dialect_only(v, "reasoning", known, SL_LEN(known), "reasoning", e);
    if (st != SL_OK) return st;
    for (size_t i = 1; i < SL_LEN(known); i++) {
        sl_json summary = sl_json_get(v, known[i]);
        if (is_given(summary) && !sl_json_is_text(summary, "auto"))
            return sl_api_error_bad(e, "reasoning",
                                    "reasoning.%s: only \"auto\" is supported: reasoning is "
                                    "given as it is, and not summarised",
                                    known[i]);
    }
    if (!is_given(effort)) return SL_OK;
    sl_jbuf_fmt(chat, ",\"reasoning_effort\":");
    sl_jbuf_json(chat, effort);
    return SL_OK;
}

/* As response_format of a chat, which has what is here beside the type one level down. */
static sl_status add_format(sl_jbuf *chat, sl_json format, sl_api_extra *extra, sl_api_error *e) {
    static const char *const known[] = {"type", "name", "schema", "strict", "description"};
    static const char *const where = "text.format";
    sl_err err = {0};
    sl_json type = sl_json_get(format, "type");
    bool strict, schema = sl_json_is_text(type, "json_schema");
    if (sl_json_kind_of(type) != SL_JSON_STRING)
        return sl_api_error_bad(e, where, "text.format: not an object with a type");
    sl_status st = sl_dialect_only(format, where, known, schema ? SL_LEN(known) : 1, where, e);
    if (st != SL_OK) return st;
    if (schema && sl_json_kind_of(sl_json_get(format, "schema")) != SL_JSON_OBJECT)
        return sl_api_error_bad(e, where, "text.format.schema: missing or not an object");
    if (sl_json_bool(format, "strict", SL_JSON_OPTIONAL, &strict, &err) != SL_OK)
        return sl_api_field_error(e, where, &err);
    extra->shape_field = where;
    sl_jbuf_fmt(chat, ",\"response_format\":{\"type\":");
    sl_jbuf_json(chat, type);
    for (size_t i = 1; i < SL_LEN(known) && schema; i++) {
        sl_json part = sl_json_get(format, known[i]);
        sl_jbuf_fmt(chat, "%s\"%s\":", i == 1 ? ",\"json_schema\":{" : ",", known[i]);
        if (is_given(part))
            sl_jbuf_json(chat, part);
        else
            sl_jbuf_fmt(chat, "null");
    }
    sl_jbuf_fmt(chat, schema ? "}}" : "}");
    return SL_OK;
}

static sl_status add_text(sl_jbuf *chat, sl_json root, sl_api_extra *extra, sl_api_error *e) {
    static const char *const known[] = {"format", "verbosity"};
    sl_json v = sl_json_get(root, "text"), format = sl_json_get(v, "format");
    sl_json verbosity = sl_json_get(v, "verbosity");
    if (is_given(v) && sl_json_kind_of(v) != SL_JSON_OBJECT)
        return sl_api_error_bad(e, "text", "text: not an object");
    sl_status st = sl_dialect_only(v, "text", known, SL_LEN(known), "text", e);
    if (st != SL_OK) return st;
    if (is_given(verbosity) && !sl_json_is_text(verbosity, "medium"))
        return sl_api_error_bad(e, "text", "text.verbosity: only \"medium\" is supported");
    return is_given(format) ? add_format(chat, format, extra, e) : SL_OK;
}

static sl_status check_metadata(sl_json root, sl_api_error *e) {
    sl_err err = {0};
    sl_json v = {0};
    void *iter = NULL;
    const char *key;
    if (sl_json_object(root, "metadata", SL_JSON_OPTIONAL, &v, &err) != SL_OK)
        return sl_api_field_error(e, "metadata", &err);
    if (sl_json_count(v) > MAX_METADATA)
        return sl_api_error_bad(e, "metadata", "metadata: %zu pairs, limit %u", sl_json_count(v),
                                MAX_METADATA);
    for (sl_json f; sl_json_next(v, &iter, &key, &f);) {
        sl_span text;
        if (strlen(key) > METADATA_KEY || !sl_json_as_span(f, &text) || text.len > METADATA_VALUE)
            return sl_api_error_bad(e, "metadata",
                                    "metadata.%.64s: a key has %u bytes at most, its value is a "
                                    "string of at most %u",
                                    key, METADATA_KEY, METADATA_VALUE);
    }
    return SL_OK;
}

/* Fields that have only one value here, and those that say what is kept. */
static sl_status check_rest(sl_json root, sl_api_extra *extra, sl_api_error *e) {
    sl_err err = {0};
    bool store = false, background = false;
    const char *id = NULL;
    static const char *const options[] = {"include_obfuscation"};
    sl_json truncation = sl_json_get(root, "truncation");
    if (sl_json_bool(root, "store", SL_JSON_OPTIONAL, &store, &err) != SL_OK)
        return sl_api_field_error(e, "store", &err);
    if (is_given(sl_json_get(root, "store"))) extra->store = store ? SL_CHAT_ON : SL_CHAT_OFF;
    if (sl_json_bool(root, "background", SL_JSON_OPTIONAL, &background, &err) != SL_OK ||
        background)
        return sl_api_error_bad(e, "background", "background: only false is supported");
    if (sl_json_string(root, "previous_response_id", SL_JSON_OPTIONAL, &id, &err) != SL_OK)
        return sl_api_field_error(e, "previous_response_id", &err);
    if (is_given(truncation) && !sl_json_is_text(truncation, "disabled"))
        return sl_api_error_bad(e, "truncation", "truncation: only \"disabled\" is supported");
    return sl_dialect_only(sl_json_get(root, "stream_options"), "stream_options", options,
                           SL_LEN(options), "stream_options", e);
}

/* Log-probabilities of the text's tokens; of what else may be included there is nothing here. */
static sl_status add_logprobs(sl_jbuf *chat, sl_json root, sl_api_error *e) {
    sl_err err = {0};
    sl_json include = {0};
    bool asked = false;
    uint64_t n = 0;
    if (sl_json_array(root, "include", SL_JSON_OPTIONAL, &include, &err) != SL_OK)
        return sl_api_field_error(e, "include", &err);
    for (size_t i = 0; i < sl_json_count(include); i++)
        asked |= sl_json_is_text(sl_json_at(include, i), "message.output_text.logprobs");
    if (sl_json_u64(root, "top_logprobs", SL_JSON_OPTIONAL, 0, SL_MAX_LOGPROBS, &n, &err) != SL_OK)
        return sl_api_field_error(e, "top_logprobs", &err);
    if (n > 0 && !asked)
        return sl_api_error_bad(e, "top_logprobs",
                                "top_logprobs: only with \"message.output_text.logprobs\" in "
                                "include");
    if (asked) sl_jbuf_fmt(chat, ",\"logprobs\":true,\"top_logprobs\":%u", (unsigned)n);
    return SL_OK;
}

/* ---- what answers repeat ---- */

/* The field as it came, unless it is too large; else what stands for its absence. */
static void echo(sl_jbuf *b, sl_json root, const char *key, const char *otherwise) {
    sl_json v = sl_json_get(root, key);
    sl_jbuf_fmt(b, ",\"%s\":", key);
    size_t start = b->len;
    if (is_given(v)) sl_jbuf_json(b, v);
    if (b->len > start && b->len - start <= MAX_ECHO) return;
    b->len = start;
    sl_jbuf_fmt(b, "%s", otherwise);
}

/* What the answer is like; null: its schema is too large. */
static void echo_text(sl_jbuf *b, sl_json root) {
    sl_json text = sl_json_get(root, "text");
    bool plain = !is_given(sl_json_get(text, "format"));
    sl_jbuf_fmt(b, ",\"text\":{\"verbosity\":\"medium\"");
    echo(b, text, "format", plain ? "{\"type\":\"text\"}" : "null");
    sl_jbuf_put(b, "}", 1);
}

static void echo_all(sl_jbuf *b, sl_json root) {
    static const struct {
        const char *key, *otherwise;
    } fields[] = {{"instructions", "null"},
                  {"max_output_tokens", "null"},
                  {"metadata", "{}"},
                  {"parallel_tool_calls", "true"},
                  {"previous_response_id", "null"},
                  {"reasoning", "{\"effort\":null,\"summary\":null}"},
                  {"temperature", "null"},
                  {"tool_choice", "\"auto\""},
                  {"tools", "[]"},
                  {"top_logprobs", "0"},
                  {"top_p", "null"},
                  {"truncation", "\"disabled\""}};
    for (size_t i = 0; i < SL_LEN(fields); i++) echo(b, root, fields[i].key, fields[i].otherwise);
    echo_text(b, root);
}

sl_status sl_responses_translate(sl_json root, const sl_api_limits *limits, sl_jbuf *chat,
                                 sl_api_extra *extra, sl_api_error *e) {
    (void)limits;
    sl_talk talk;
    sl_talk_open(&talk, chat);
    sl_status st = add_input(&talk, root, e);
    if (!sl_talk_close(&talk) && st == SL_OK) st = sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    if (st == SL_OK) st = add_tools(chat, root, e);
    if (st == SL_OK) st = add_tool_choice(chat, root, e);
    if (st == SL_OK) st = add_reasoning(chat, root, e);
    if (st == SL_OK) st = add_text(chat, root, extra, e);
    if (st == SL_OK) st = add_logprobs(chat, root, e);
    bool raw = false; /* the core refuses what is no boolean */
    if (sl_json_as_bool(sl_json_get(root, "enable_response_messages"), &raw) && raw)
        sl_jbuf_fmt(chat, ",\"return_token_ids\":true");
    if (st == SL_OK) st = check_metadata(root, e);
    if (st == SL_OK) st = check_rest(root, extra, e);
    if (st == SL_OK) echo_all(&extra->echo, root);
    return st;
}
