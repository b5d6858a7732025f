/* Bodies of Anthropic's /v1/messages as those of chats. */
#include "serve/dialect_int.h"
#include "serve/params_int.h"
#include "serve/talk.h"

#include <inttypes.h>
#include <stdio.h>

const sl_dialect_field sl_messages_fields[] = {
    SL_DIALECT_COMMON
#include "spec/sampling.def"
    {"messages", SL_FIELD_OWN, "messages"},
    {"system", SL_FIELD_OWN, NULL},
    {"max_tokens", SL_FIELD_OWN, "max_tokens"},
    {"stop_sequences", SL_FIELD_COPY, "stop"},
    {"tools", SL_FIELD_OWN, "tools"},
    {"tool_choice", SL_FIELD_OWN, "tool_choice"},
    {"thinking", SL_FIELD_OWN, "enable_thinking"},
    {"output_config", SL_FIELD_OWN, "reasoning_effort"},
    {"output_format", SL_FIELD_OWN, "response_format"},
    {"metadata", SL_FIELD_IGNORE, NULL},
    {"service_tier", SL_FIELD_IGNORE, NULL},
    {"speed", SL_FIELD_IGNORE, NULL},
    {"cache_control", SL_FIELD_IGNORE, NULL},
    {"user_profile_id", SL_FIELD_IGNORE, NULL},
    {"workspace_id", SL_FIELD_IGNORE, NULL},
    {"container", SL_FIELD_REFUSE, NULL},
    {"context_management", SL_FIELD_REFUSE, NULL},
    {"diagnostics", SL_FIELD_REFUSE, NULL},
    {"inference_geo", SL_FIELD_REFUSE, NULL},
    {"mcp_servers", SL_FIELD_REFUSE, NULL},
    {"thread", SL_FIELD_REFUSE, NULL},
};
_Static_assert(SL_LEN(sl_messages_fields) == SL_MESSAGES_FIELDS, "as many as the header says");

/* ---- messages ---- */

typedef struct place {
    char name[96]; /* of the block, in errors */
    sl_api_error *e;
} place;

static sl_status bad(const place *at, const char *what) {
    return sl_api_error_bad(at->e, "messages", "%s%s", at->name, what);
}

static sl_status read_text(sl_json block, const char *field, const place *at, sl_span *out) {
    if (sl_json_as_span(sl_json_get(block, field), out)) return SL_OK;
    return sl_api_error_bad(at->e, "messages", "%s.%s: missing or not a string", at->name, field);
}

static sl_status check_block(sl_json block, const place *at, const char *const *known, size_t n) {
    return sl_dialect_only(block, at->name, known, n, "messages", at->e);
}

static sl_status refuse_type(sl_json block, const place *at) {
    sl_span type = {0};
    if (!sl_json_as_span(sl_json_get(block, "type"), &type))
        return bad(at, ": not an object with a type");
    return sl_api_error_bad(at->e, "messages",
                            "%s: blocks of type \"%.48s\" are not supported here", at->name,
                            (const char *)type.data);
}

static bool is_type(sl_json block, const char *type) {
    return sl_json_is_text(sl_json_get(block, "type"), type);
}

static sl_status add_text(sl_talk *t, const char *role, sl_json block, const place *at) {
    static const char *const known[] = {"type", "text", "cache_control", "citations"};
    sl_span text;
    if (!is_type(block, "text")) return refuse_type(block, at);
    sl_status st = check_block(block, at, known, SL_LEN(known));
    if (st == SL_OK) st = read_text(block, "text", at, &text);
    if (st == SL_OK) sl_talk_text(t, role, text);
    return st;
}

/* A content that is a text or blocks of texts, of whoever speaks. */
static sl_status add_texts(sl_talk *t, const char *role, sl_json content, const place *at) {
    sl_span text;
    sl_status st = SL_OK;
    if (sl_json_as_span(content, &text)) {
        sl_talk_text(t, role, text);
        return SL_OK;
    }
    if (sl_json_kind_of(content) != SL_JSON_ARRAY)
        return bad(at, ": neither a string nor an array of blocks");
    for (size_t i = 0; st == SL_OK && i < sl_json_count(content); i++) {
        place block = {.e = at->e};
        snprintf(block.name, sizeof block.name, "%.60s[%zu]", at->name, i);
        st = add_text(t, role, sl_json_at(content, i), &block);
    }
    return st;
}

static sl_status add_result(sl_talk *t, sl_json block, const place *at) {
    static const char *const known[] = {"type", "tool_use_id", "content", "is_error",
                                        "cache_control"};
    static const char failed[] = "Error:";
    sl_json id = sl_json_get(block, "tool_use_id"), content = sl_json_get(block, "content");
    bool error = false;
    sl_status st = check_block(block, at, known, SL_LEN(known));
    if (st != SL_OK) return st;
    if (sl_json_kind_of(id) != SL_JSON_STRING)
        return bad(at, ".tool_use_id: missing or not a string");
    sl_json flag = sl_json_get(block, "is_error");
    if (sl_json_kind_of(flag) > SL_JSON_NULL && !sl_json_as_bool(flag, &error))
        return bad(at, ".is_error: not a boolean");
    sl_talk_begin(t, "tool", id);
    if (error) sl_talk_text(t, "tool", (sl_span){(const uint8_t *)failed, sizeof failed - 1});
    if (sl_json_kind_of(content) <= SL_JSON_NULL) return SL_OK;
    place inside = {.e = at->e};
    snprintf(inside.name, sizeof inside.name, "%.80s.content", at->name);
    return add_texts(t, "tool", content, &inside);
}

static sl_status add_use(sl_talk *t, sl_json block, const place *at) {
    static const char *const known[] = {"type", "id", "name", "input", "cache_control", "caller"};
    sl_json id = sl_json_get(block, "id"), name = sl_json_get(block, "name"),
            input = sl_json_get(block, "input");
    sl_status st = check_block(block, at, known, SL_LEN(known));
    if (st != SL_OK) return st;
    if (sl_json_kind_of(id) != SL_JSON_STRING || sl_json_kind_of(name) != SL_JSON_STRING ||
        sl_json_kind_of(input) != SL_JSON_OBJECT)
        return bad(at, ": not {\"type\":\"tool_use\",\"id\":...,\"name\":...,\"input\":{...}}");
    sl_jbuf text = sl_jbuf_init();
    sl_jbuf_json(&text, input);
    sl_talk_call(t, id, name, (sl_span){(const uint8_t *)text.data, text.len});
    t->calls.ok = t->calls.ok && text.ok;
    sl_jbuf_free(&text);
    return SL_OK;
}

static sl_status add_thought(sl_talk *t, sl_json block, const place *at) {
    static const char *const known[] = {"type", "thinking", "signature"};
    sl_span text;
    sl_status st = check_block(block, at, known, SL_LEN(known));
    if (st == SL_OK) st = read_text(block, "thinking", at, &text);
    if (st == SL_OK) sl_talk_reasoning(t, text);
    return st;
}

static sl_status add_block(sl_talk *t, const char *role, sl_json block, const place *at) {
    static const struct {
        const char *role, *type;
        sl_status (*add)(sl_talk *, sl_json, const place *);
    } kinds[] = {{"user", "tool_result", add_result},
                 {"assistant", "tool_use", add_use},
                 {"assistant", "thinking", add_thought}};
    for (size_t i = 0; i < SL_LEN(kinds); i++)
        if (!strcmp(kinds[i].role, role) && is_type(block, kinds[i].type))
            return kinds[i].add(t, block, at);
    return add_text(t, role, block, at);
}

static sl_status add_message(sl_talk *t, sl_json m, size_t index, sl_api_error *e) {
    static const char *const roles[] = {"user", "assistant", "system"};
    static const char *const known[] = {"role", "content", "id", "type"};
    const char *role = NULL;
    place at = {.e = e};
    snprintf(at.name, sizeof at.name, "messages[%zu]", index);
    for (size_t i = 0; i < SL_LEN(roles); i++)
        if (sl_json_is_text(sl_json_get(m, "role"), roles[i])) role = roles[i];
    if (!role) return bad(&at, ".role: none of user, assistant, system");
    sl_status st = check_block(m, &at, known, SL_LEN(known));
    sl_json content = sl_json_get(m, "content");
    snprintf(at.name, sizeof at.name, "messages[%zu].content", index);
    if (st != SL_OK || sl_json_kind_of(content) != SL_JSON_ARRAY)
        return st == SL_OK ? add_texts(t, role, content, &at) : st;
    for (size_t i = 0; st == SL_OK && i < sl_json_count(content); i++) {
        snprintf(at.name, sizeof at.name, "messages[%zu].content[%zu]", index, i);
        st = add_block(t, role, sl_json_at(content, i), &at);
    }
    return st;
}

/* An answer goes on from the assistant's last words, not from a call that has no result. */
static sl_status check_last(sl_json last, size_t index, bool *goes_on, sl_api_error *e) {
    sl_json content = sl_json_get(last, "content");
    *goes_on = sl_json_is_text(sl_json_get(last, "role"), "assistant");
    for (size_t i = 0; *goes_on && i < sl_json_count(content); i++)
        if (is_type(sl_json_at(content, i), "tool_use"))
            return sl_api_error_bad(e, "messages",
                                    "messages[%zu].content[%zu]: the last message is the "
                                    "assistant's, and no answer goes on behind a tool_use",
                                    index, i);
    return SL_OK;
}

static sl_status add_messages(sl_talk *t, sl_json root, bool *goes_on, sl_api_error *e) {
    sl_err err = {0};
    sl_json list = {0}, system = sl_json_get(root, "system");
    const place at = {.name = "system", .e = e};
    sl_status st = SL_OK;
    if (sl_json_kind_of(system) > SL_JSON_NULL) st = add_texts(t, "system", system, &at);
    if (st != SL_OK) return st;
    if (sl_json_array(root, "messages", SL_JSON_REQUIRED, &list, &err) != SL_OK)
        return sl_api_field_error(e, "messages", &err);
    size_t n = sl_json_count(list);
    if (n == 0) return sl_api_error_bad(e, "messages", "messages: empty");
    for (size_t i = 0; st == SL_OK && i < n; i++) st = add_message(t, sl_json_at(list, i), i, e);
    return st == SL_OK ? check_last(sl_json_at(list, n - 1), n - 1, goes_on, e) : st;
}

/* ---- tools ---- */

static sl_status add_tool(sl_jbuf *chat, sl_json tool, size_t i, sl_api_error *e) {
    static const char *const known[] = {"type",          "name",           "description",
                                        "input_schema",  "cache_control",  "strict",
                                        "defer_loading", "input_examples", "eager_input_streaming"};
    char where[32];
    bool later = false;
    snprintf(where, sizeof where, "tools[%zu]", i);
    sl_json type = sl_json_get(tool, "type"), schema = sl_json_get(tool, "input_schema");
    if (sl_json_kind_of(type) > SL_JSON_NULL && !sl_json_is_text(type, "custom")) {
        sl_span name = {0};
        return sl_json_as_span(type, &name)
                   ? sl_api_error_bad(e, "tools",
                                      "%s: \"%.48s\" is not supported, only tools of the client's "
                                      "own (\"custom\") are",
                                      where, (const char *)name.data)
                   : sl_api_error_bad(e, "tools", "%s.type: not a string", where);
    }
    sl_status st = sl_dialect_only(tool, where, known, SL_LEN(known), "tools", e);
    if (st != SL_OK) return st;
    if (sl_json_as_bool(sl_json_get(tool, "defer_loading"), &later) && later)
        return sl_api_error_bad(e, "tools", "%s.defer_loading: only false is supported", where);
    if (sl_json_kind_of(sl_json_get(tool, "name")) != SL_JSON_STRING ||
        sl_json_kind_of(schema) != SL_JSON_OBJECT)
        return sl_api_error_bad(e, "tools", "%s: not {\"name\":...,\"input_schema\":{...}}", where);
    sl_jbuf_fmt(chat, "%s{\"type\":\"function\",\"function\":{\"name\":", i ? "," : "");
    sl_jbuf_json(chat, sl_json_get(tool, "name"));
    static const struct {
        const char *from, *to;
    } others[] = {
        {"description", "description"}, {"input_schema", "parameters"}, {"strict", "strict"}};
    for (size_t k = 0; k < SL_LEN(others); k++) {
        sl_json v = sl_json_get(tool, others[k].from);
        if (sl_json_kind_of(v) <= SL_JSON_NULL) continue;
        sl_jbuf_fmt(chat, ",\"%s\":", others[k].to);
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
    static const struct {
        const char *from, *to;
    } words[] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    static const char *const known[] = {"type", "name", "disable_parallel_tool_use"};
    sl_json choice = sl_json_get(root, "tool_choice"), type = sl_json_get(choice, "type");
    const char *word = NULL;
    bool one = false;
    if (sl_json_kind_of(choice) <= SL_JSON_NULL) return SL_OK;
    for (size_t i = 0; i < SL_LEN(words); i++)
        if (sl_json_is_text(type, words[i].from)) word = words[i].to;
    sl_json name = sl_json_get(choice, "name");
    bool named = sl_json_is_text(type, "tool") && sl_json_kind_of(name) == SL_JSON_STRING;
    if (!word && !named)
        return sl_api_error_bad(e, "tool_choice",
                                "tool_choice: none of {\"type\":\"auto\"}, {\"type\":\"any\"}, "
                                "{\"type\":\"tool\",\"name\":...}, {\"type\":\"none\"}");
    sl_status st = sl_dialect_only(choice, "tool_choice", known, SL_LEN(known), "tool_choice", e);
    if (st != SL_OK) return st;
    sl_json flag = sl_json_get(choice, "disable_parallel_tool_use");
    if (sl_json_kind_of(flag) > SL_JSON_NULL && !sl_json_as_bool(flag, &one))
        return sl_api_error_bad(e, "tool_choice",
                                "tool_choice.disable_parallel_tool_use: not a boolean");
    if (word) {
        sl_jbuf_fmt(chat, ",\"tool_choice\":\"%s\"", word);
    } else {
        sl_jbuf_fmt(chat, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
        sl_jbuf_json(chat, name);
        sl_jbuf_fmt(chat, "}}");
    }
    if (one) sl_jbuf_fmt(chat, ",\"parallel_tool_calls\":false");
    return SL_OK;
}

/* ---- the rest ---- */

/* How the model is to think. The budget is Anthropic's target, not a limit, and clients have to
 * send one: it is checked, and max_tokens bounds the answer. */
static sl_status add_thinking(sl_jbuf *chat, sl_json root, sl_api_extra *extra, sl_api_error *e) {
    static const char *const known[] = {"type", "budget_tokens", "display"};
    sl_err err = {0};
    uint64_t budget = 0;
    sl_json v = sl_json_get(root, "thinking"), type = sl_json_get(v, "type");
    if (sl_json_kind_of(v) <= SL_JSON_NULL) return SL_OK;
    bool on = sl_json_is_text(type, "enabled"), off = sl_json_is_text(type, "disabled");
    if (!on && !off && !sl_json_is_text(type, "adaptive"))
        return sl_api_error_bad(e, "thinking",
                                "thinking.type: none of enabled, disabled, adaptive");
    sl_status st = sl_dialect_only(v, "thinking", known, SL_LEN(known), "thinking", e);
    if (st != SL_OK) return st;
    if (sl_json_u64(v, "budget_tokens", on ? SL_JSON_REQUIRED : SL_JSON_OPTIONAL, 1, UINT32_MAX,
                    &budget, &err) != SL_OK)
        return sl_api_field_error(e, "thinking", &err);
    sl_json display = sl_json_get(v, "display");
    if (sl_json_kind_of(display) > SL_JSON_NULL && !sl_json_is_text(display, "summarized"))
        return sl_api_error_bad(e, "thinking", "thinking.display: only summarized is supported");
    extra->as_it_is = true;
    if (on || off) sl_jbuf_fmt(chat, ",\"enable_thinking\":%s", on ? "true" : "false");
    return SL_OK;
}

/* {"type":"json_schema","schema":{...}} of the field `where`, which is static. */
static sl_status add_format(sl_jbuf *chat, sl_json format, const char *where, sl_api_extra *extra,
                            sl_api_error *e) {
    static const char *const known[] = {"type", "schema"};
    sl_json schema = sl_json_get(format, "schema");
    if (sl_json_kind_of(format) <= SL_JSON_NULL) return SL_OK;
    if (extra->shape_field)
        return sl_api_error_bad(e, where, "%s: the answer has a shape by %s already", where,
                                extra->shape_field);
    sl_status st = sl_dialect_only(format, where, known, SL_LEN(known), where, e);
    if (st != SL_OK) return st;
    if (!is_type(format, "json_schema"))
        return sl_api_error_bad(e, where, "%s.type: not json_schema", where);
    if (sl_json_kind_of(schema) != SL_JSON_OBJECT)
        return sl_api_error_bad(e, where, "%s.schema: missing or not an object", where);
    extra->shape_field = where;
    sl_jbuf_fmt(chat, ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
                      "\"strict\":true,\"schema\":");
    sl_jbuf_json(chat, schema);
    sl_jbuf_fmt(chat, "}}");
    return SL_OK;
}

static sl_status add_output(sl_jbuf *chat, sl_json root, sl_api_extra *extra, sl_api_error *e) {
    static const char *const known[] = {"effort", "format"};
    sl_json v = sl_json_get(root, "output_config"), effort = sl_json_get(v, "effort");
    if (sl_json_kind_of(v) > SL_JSON_NULL && sl_json_kind_of(v) != SL_JSON_OBJECT)
        return sl_api_error_bad(e, "output_config", "output_config: not an object");
    sl_status st = sl_dialect_only(v, "output_config", known, SL_LEN(known), "output_config", e);
    if (st != SL_OK) return st;
    if (sl_json_kind_of(effort) > SL_JSON_NULL) {
        sl_jbuf_fmt(chat, ",\"reasoning_effort\":");
        if (sl_json_is_text(effort, "max"))
            sl_jbuf_fmt(chat, "\"xhigh\"");
        else
            sl_jbuf_json(chat, effort);
    }
    st = add_format(chat, sl_json_get(v, "format"), "output_config.format", extra, e);
    if (st != SL_OK) return st;
    return add_format(chat, sl_json_get(root, "output_format"), "output_format", extra, e);
}

/* Clients have to name a number, and name large ones: it is a bound, also above the context. */
static void add_max_tokens(sl_jbuf *chat, sl_json root, const sl_api_limits *limits,
                           sl_api_extra *extra) {
    sl_json v = sl_json_get(root, "max_tokens");
    uint64_t n = 0;
    extra->at_most = true;
    if (sl_json_kind_of(v) <= SL_JSON_NULL) return;
    sl_jbuf_fmt(chat, ",\"max_tokens\":");
    if (sl_json_as_u64(v, &n) && n > limits->context)
        sl_jbuf_fmt(chat, "%" PRIu32, limits->context);
    else
        sl_jbuf_json(chat, v);
}

sl_status sl_messages_translate(sl_json root, const sl_api_limits *limits, sl_jbuf *chat,
                                sl_api_extra *extra, sl_api_error *e) {
    sl_talk talk;
    bool goes_on = false;
    add_max_tokens(chat, root, limits, extra);
    sl_talk_open(&talk, chat);
    sl_status st = add_messages(&talk, root, &goes_on, e);
    if (!sl_talk_close(&talk) && st == SL_OK) st = sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    if (goes_on) sl_jbuf_fmt(chat, ",\"continue_final_message\":true");
    if (st == SL_OK) st = add_tools(chat, root, e);
    if (st == SL_OK) st = add_tool_choice(chat, root, e);
    if (st == SL_OK) st = add_thinking(chat, root, extra, e);
    return st == SL_OK ? add_output(chat, root, extra, e) : st;
}
