/* Conversations: messages, their parts, and what else is for the chat template. */
#include "serve/params_int.h"

#include "base/mem.h"

/* Parts of a content, and where their text is. */
static const struct {
    const char *type, *field;
} part_kinds[] = {{"text", "text"},
                  {"input_text", "text"},
                  {"output_text", "text"},
                  {"refusal", "refusal"},
                  {"thinking", "thinking"}};

/* The text of a part; an absent one is empty. */
static bool read_part(sl_json part, sl_span *out) {
    for (size_t i = 0; i < SL_LEN(part_kinds); i++) {
        if (!sl_api_string_is(sl_json_get(part, "type"), part_kinds[i].type)) continue;
        sl_json text = sl_json_get(part, part_kinds[i].field);
        return sl_json_kind_of(text) == SL_JSON_NULL || sl_json_as_span(text, out);
    }
    return false;
}

/* A content in parts: their texts, one a line. */
static sl_status join_parts(sl_json parts, size_t index, sl_jbuf *joined, sl_api_error *e) {
    size_t n = sl_json_count(parts);
    for (size_t i = 0; i < n; i++) {
        sl_json part = sl_json_at(parts, i);
        sl_span text = {0};
        if (!read_part(part, &text))
            return sl_api_error_bad(e, "messages",
                                    "messages[%zu].content[%zu]: only parts "
                                    "{\"type\":\"text\",\"text\":...} are supported",
                                    index, i);
        if (i > 0) sl_jbuf_put(joined, "\n", 1);
        sl_jbuf_put(joined, (const char *)text.data, text.len);
    }
    return joined->ok ? SL_OK : sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
}

/* Fields of a message beside role and content go to the template, which takes those it knows. Most
 * templates know none of the last lines: clients send them back because an answer had them, and
 * nothing of the conversation is lost. What would be lost is refused. */
static const struct {
    const char *name;
    sl_json_kind kind; /* SL_JSON_ABSENT: any */
} message_fields[] = {{"role", SL_JSON_STRING},
                      {"content", SL_JSON_ABSENT},
                      {"name", SL_JSON_STRING},
                      {"tool_calls", SL_JSON_ARRAY},
                      {"tool_call_id", SL_JSON_STRING},
                      {"reasoning", SL_JSON_STRING},
                      {"reasoning_content", SL_JSON_STRING},
                      {"thinking", SL_JSON_ABSENT},
                      {"thinking_blocks", SL_JSON_ABSENT},
                      {"reasoning_details", SL_JSON_ABSENT},
                      {"refusal", SL_JSON_STRING},
                      {"annotations", SL_JSON_ARRAY},
                      {"cache_control", SL_JSON_ABSENT},
                      {"provider_specific_fields", SL_JSON_ABSENT},
                      {"id", SL_JSON_STRING},
                      {"type", SL_JSON_STRING},
                      {"status", SL_JSON_STRING}};

static sl_status check_message_fields(sl_json v, size_t index, sl_api_error *e) {
    void *iter = NULL;
    const char *key;
    for (sl_json f; sl_json_next(v, &iter, &key, &f);) {
        size_t i = 0;
        while (i < SL_LEN(message_fields) && strcmp(message_fields[i].name, key) != 0) i++;
        if (sl_api_is_empty(f) || sl_json_kind_of(f) == SL_JSON_NULL) continue;
        if (i == SL_LEN(message_fields))
            return sl_api_error_bad(e, "messages", "messages[%zu].%.64s: not supported", index,
                                    key);
        sl_json_kind kind = message_fields[i].kind;
        if (kind != SL_JSON_ABSENT && sl_json_kind_of(f) != kind)
            return sl_api_error_bad(e, "messages", "messages[%zu].%s: not %s", index, key,
                                    kind == SL_JSON_ARRAY ? "an array" : "a string");
    }
    sl_json calls = sl_json_get(v, "tool_calls");
    for (size_t i = 0; i < sl_json_count(calls); i++) {
        sl_err err = {0};
        const char *name = NULL;
        sl_json function = sl_json_get(sl_json_at(calls, i), "function");
        if (sl_json_kind_of(function) != SL_JSON_OBJECT ||
            sl_json_string(function, "name", SL_JSON_REQUIRED, &name, &err) != SL_OK)
            return sl_api_error_bad(e, "messages",
                                    "messages[%zu].tool_calls[%zu].function: no name", index, i);
    }
    return SL_OK;
}

static sl_status read_message(sl_json v, size_t index, sl_api_params *p, sl_api_error *e) {
    sl_chat_message *m = &p->messages[index];
    if (sl_json_kind_of(v) != SL_JSON_OBJECT)
        return sl_api_error_bad(e, "messages", "messages[%zu]: not an object", index);
    if (!sl_json_as_span(sl_json_get(v, "role"), &m->role))
        return sl_api_error_bad(e, "messages", "messages[%zu].role: missing or not a string",
                                index);
    sl_status st = check_message_fields(v, index, e);
    if (st != SL_OK) return st;
    sl_json content = sl_json_get(v, "content");
    m->fields = v;
    /* OpenAI's newer name */
    if (sl_api_string_is(sl_json_get(v, "role"), "developer"))
        m->role = (sl_span){(const uint8_t *)"system", 6};
    if (sl_json_as_span(content, &m->content)) return SL_OK;
    /* an answer of calls or a refusal has none; the template is shown an empty one */
    bool own = sl_api_string_is(sl_json_get(v, "role"), "assistant");
    if (sl_json_kind_of(content) == SL_JSON_NULL || (own && !content.value)) return SL_OK;
    if (sl_json_kind_of(content) != SL_JSON_ARRAY)
        return sl_api_error_bad(
            e, "messages", "messages[%zu].content: neither a string nor an array of parts", index);
    sl_jbuf *joined = &p->joined[index];
    st = join_parts(content, index, joined, e);
    m->content = (sl_span){(const uint8_t *)(joined->len ? joined->data : ""), joined->len};
    return st;
}

sl_status sl_api_read_messages(sl_json root, sl_api_params *p, sl_api_error *e) {
    sl_err err = {0};
    sl_json v = {0};
    if (sl_json_array(root, "messages", SL_JSON_REQUIRED, &v, &err) != SL_OK)
        return sl_api_field_error(e, "messages", &err);
    size_t n = sl_json_count(v);
    if (n == 0 || n > SL_API_MAX_MESSAGES)
        return sl_api_error_bad(e, "messages", "messages: %zu, allowed are 1..%u", n,
                                SL_API_MAX_MESSAGES);
    p->messages = sl_alloc(n, sizeof *p->messages);
    p->joined = sl_alloc(n, sizeof *p->joined);
    if (!p->messages || !p->joined) return sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    for (; p->n_messages < n; p->n_messages++) {
        p->joined[p->n_messages] = sl_jbuf_init();
        sl_status st = read_message(sl_json_at(v, p->n_messages), p->n_messages, p, e);
        if (st != SL_OK) {
            p->n_messages++;
            return st;
        }
    }
    return SL_OK;
}

/* ---- arguments that are no JSON ---- */

static bool is_broken(sl_json arguments) {
    sl_span text;
    sl_err err = {0};
    sl_json_doc *doc = NULL;
    bool blank = true;
    if (!sl_json_as_span(arguments, &text)) return false;
    for (size_t i = 0; i < text.len; i++) blank &= strchr(" \t\r\n", text.data[i]) != NULL;
    if (blank) return false; /* there are none */
    bool whole = sl_json_parse_within("arguments", text, SL_API_MAX_MEMORY, &doc, &err) == SL_OK;
    sl_json_doc_free(doc);
    return !whole && err.code != SL_ERR_NOMEM;
}

/* An object as it is, but for the field at the end of `path`, whose text becomes that of a JSON
 * string; on the way there the elements of arrays are gone through. */
static void put_quoted(sl_jbuf *b, sl_json v, const char *const *path) {
    void *iter = NULL;
    const char *key;
    sl_span text;
    if (!*path && is_broken(v) && sl_json_as_span(v, &text)) {
        sl_jbuf inner = sl_jbuf_init();
        sl_jbuf_string(&inner, (const char *)text.data, text.len);
        sl_jbuf_string(b, inner.data, inner.len);
        b->ok = b->ok && inner.ok;
        sl_jbuf_free(&inner);
    } else if (*path && sl_json_kind_of(v) == SL_JSON_ARRAY) {
        sl_jbuf_put(b, "[", 1);
        for (size_t i = 0; i < sl_json_count(v); i++) {
            if (i > 0) sl_jbuf_put(b, ",", 1);
            put_quoted(b, sl_json_at(v, i), path);
        }
        sl_jbuf_put(b, "]", 1);
    } else if (*path && sl_json_kind_of(v) == SL_JSON_OBJECT) {
        sl_jbuf_put(b, "{", 1);
        for (sl_json f; sl_json_next(v, &iter, &key, &f);) {
            sl_schema_name(b, key);
            if (!strcmp(key, *path))
                put_quoted(b, f, path + 1);
            else
                sl_jbuf_json(b, f);
        }
        sl_jbuf_put(b, "}", 1);
    } else {
        sl_jbuf_json(b, v);
    }
}

static bool has_broken(const sl_chat_message *m) {
    sl_json calls = sl_json_get(m->fields, "tool_calls");
    for (size_t i = 0; i < sl_json_count(calls); i++)
        if (is_broken(sl_json_get(sl_json_get(sl_json_at(calls, i), "function"), "arguments")))
            return true;
    return false;
}

sl_status sl_api_quote_arguments(sl_api_params *p, bool *some, sl_err *err) {
    static const char *const path[] = {"tool_calls", "function", "arguments", NULL};
    sl_jbuf b = sl_jbuf_init();
    sl_status st = SL_OK;
    size_t n = 0;
    sl_jbuf_put(&b, "[", 1);
    for (size_t i = 0; i < p->n_messages; i++) {
        if (!has_broken(&p->messages[i])) continue;
        if (n++ > 0) sl_jbuf_put(&b, ",", 1);
        put_quoted(&b, p->messages[i].fields, path);
    }
    sl_jbuf_put(&b, "]", 1);
    *some = n > 0 && !p->quoted;
    if (!b.ok) st = sl_fail(err, SL_ERR_NOMEM, "arguments of calls");
    if (st == SL_OK && *some)
        st = sl_json_parse_within("messages", (sl_span){(const uint8_t *)b.data, b.len},
                                  SL_API_MAX_MEMORY, &p->quoted, err);
    sl_jbuf_free(&b);
    n = 0;
    for (size_t i = 0; st == SL_OK && *some && i < p->n_messages; i++)
        if (has_broken(&p->messages[i]))
            p->messages[i].fields = sl_json_at(sl_json_root(p->quoted), n++);
    return st;
}

/* The conversation itself is not a template's switch. */
static sl_status check_kwargs(sl_json kwargs, sl_api_error *e) {
    static const char *const taken[] = {"messages", "tools", "add_generation_prompt",
                                        "continue_final_message"};
    for (size_t i = 0; i < SL_LEN(taken); i++)
        if (sl_json_kind_of(sl_json_get(kwargs, taken[i])) != SL_JSON_ABSENT)
            return sl_api_error_bad(e, "chat_template_kwargs",
                                    "chat_template_kwargs.%s: not a switch of the template; use "
                                    "the request's own field \"%s\"",
                                    taken[i], taken[i]);
    return SL_OK;
}

sl_status sl_api_read_template(sl_json root, sl_api_params *p, sl_api_error *e) {
    sl_err err = {0};
    if (sl_json_object(root, "chat_template_kwargs", SL_JSON_OPTIONAL, &p->template_kwargs, &err) !=
        SL_OK)
        return sl_api_field_error(e, "chat_template_kwargs", &err);
    sl_status st = check_kwargs(p->template_kwargs, e);
    if (st != SL_OK) return st;
    if (sl_json_array(root, "tools", SL_JSON_OPTIONAL, &p->tools, &err) != SL_OK)
        return sl_api_field_error(e, "tools", &err);
    size_t n = sl_json_count(p->tools);
    if (n == 0) p->tools = (sl_json){0};
    for (size_t i = 0; i < n; i++) {
        const char *name = NULL;
        sl_json tool = sl_json_at(p->tools, i), function = sl_json_get(tool, "function");
        if (!sl_api_string_is(sl_json_get(tool, "type"), "function") ||
            sl_json_kind_of(function) != SL_JSON_OBJECT ||
            sl_json_string(function, "name", SL_JSON_REQUIRED, &name, &err) != SL_OK)
            return sl_api_error_bad(e, "tools",
                                    "tools[%zu]: not {\"type\":\"function\","
                                    "\"function\":{\"name\":...}}",
                                    i);
    }
    return SL_OK;
}

/* How hard the model is to think: an effort for templates that know one, or on and off. */
static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};

static sl_status read_reasoning(sl_json root, sl_api_params *p, sl_api_error *e) {
    sl_err err = {0};
    bool on = false, known = false;
    sl_json effort = sl_json_get(root, "reasoning_effort");
    if (sl_json_bool(root, "enable_thinking", SL_JSON_OPTIONAL, &on, &err) != SL_OK)
        return sl_api_field_error(e, "enable_thinking", &err);
    if (sl_json_kind_of(sl_json_get(root, "enable_thinking")) == SL_JSON_BOOL)
        p->thinking = on ? SL_CHAT_ON : SL_CHAT_OFF;
    if (sl_json_kind_of(effort) <= SL_JSON_NULL) return SL_OK;
    for (size_t i = 0; i < SL_LEN(efforts); i++) known |= sl_json_is_text(effort, efforts[i]);
    if (!known || !sl_json_as_span(effort, &p->effort))
        return sl_api_error_bad(e, "reasoning_effort",
                                "reasoning_effort: none of none, minimal, low, medium, high, "
                                "xhigh");
    return SL_OK;
}

static sl_status check_generation(const sl_api_params *p, sl_api_error *e) {
    if (!p->no_generation) return SL_OK;
    return sl_api_error_bad(e, "tool_choice",
                            "tool_choice: a call is begun only with add_generation_prompt");
}

/* The function that has to be called: the one that is named, or the only one there is; or one of
 * several. */
static sl_status read_forced(sl_json choice, sl_api_params *p, sl_api_error *e) {
    sl_span name;
    bool required = sl_json_is_text(choice, "required");
    sl_json function = sl_json_get(choice, "function"), only = sl_json_at(p->tools, 0);
    p->required = required && sl_json_count(p->tools) > 1;
    if (p->required) p->one_call = true;
    if (p->required) return check_generation(p, e);
    if (required) function = sl_json_get(only, "function");
    if ((!required && !sl_json_is_text(sl_json_get(choice, "type"), "function")) ||
        !sl_json_as_span(sl_json_get(function, "name"), &name))
        return sl_api_error_bad(e, "tool_choice",
                                required
                                    ? "tool_choice: \"required\" without tools"
                                    : "tool_choice: neither \"auto\", \"none\", \"required\" "
                                      "nor {\"type\":\"function\",\"function\":{\"name\":...}}");
    bool known = false;
    for (size_t i = 0; i < sl_json_count(p->tools) && !known; i++)
        known =
            sl_json_is_text(sl_json_get(sl_json_get(sl_json_at(p->tools, i), "function"), "name"),
                            (const char *)name.data);
    if (!known)
        return sl_api_error_bad(e, "tool_choice", "tool_choice: tools has no function \"%.64s\"",
                                (const char *)name.data);
    p->forced = name;
    p->one_call = true;
    return check_generation(p, e);
}

/* What tool_choice makes of the tools. */
sl_status sl_api_choose_tools(sl_json root, sl_api_params *p, sl_api_error *e) {
    sl_err err = {0};
    bool several = true;
    sl_json choice = sl_json_get(root, "tool_choice");
    bool none = sl_json_is_text(choice, "none"), chosen = none || sl_json_is_text(choice, "auto");
    if (sl_json_bool(root, "parallel_tool_calls", SL_JSON_OPTIONAL, &several, &err) != SL_OK)
        return sl_api_field_error(e, "parallel_tool_calls", &err);
    p->one_call = !several;
    if (none) p->tools = (sl_json){0};
    if (p->tools.value && p->show_special)
        return sl_api_error_bad(e, "skip_special_tokens",
                                "skip_special_tokens: false shows the text as it is, in which no "
                                "calls are looked for: not with tools");
    sl_status st = SL_OK;
    if (sl_json_kind_of(choice) > SL_JSON_NULL && !chosen) st = read_forced(choice, p, e);
    return st == SL_OK ? read_reasoning(root, p, e) : st;
}

/* ---- the same as JSON Schemas ---- */

/* A function by its name; typed: said to be one. */
static void write_function(sl_jbuf *b, bool typed) {
    sl_jbuf_fmt(b,
                "{\"type\":\"object\",\"properties\":{%s\"function\":{\"type\":\"object\","
                "\"properties\":{\"name\":{\"type\":\"string\"}},\"required\":[\"name\"]}},"
                "\"required\":[%s\"function\"]}",
                typed ? "\"type\":{\"const\":\"function\"}," : "", typed ? "\"type\"," : "");
}

static void write_content(sl_jbuf *b) {
    sl_jbuf_fmt(b, "{\"anyOf\":[{\"type\":[\"string\",\"null\"]},{\"type\":\"array\",\"items\":{"
                   "\"anyOf\":[");
    for (size_t i = 0; i < SL_LEN(part_kinds); i++)
        sl_jbuf_fmt(b,
                    "%s{\"type\":\"object\",\"properties\":{\"type\":{\"const\":\"%s\"},\"%s\":{"
                    "\"type\":[\"string\",\"null\"]}},\"required\":[\"type\"]}",
                    i ? "," : "", part_kinds[i].type, part_kinds[i].field);
    sl_jbuf_fmt(b, "]}}]}");
}

void sl_api_write_messages(sl_jbuf *b, const sl_api_limits *limits) {
    (void)limits;
    sl_jbuf_fmt(
        b, "{\"type\":\"array\",\"minItems\":1,\"maxItems\":%u,\"items\":", SL_API_MAX_MESSAGES);
    sl_schema_open(b);
    for (size_t i = 0; i < SL_LEN(message_fields); i++) {
        const char *name = message_fields[i].name;
        sl_schema_name(b, name);
        if (!strcmp(name, "content")) {
            write_content(b);
        } else if (!strcmp(name, "tool_calls")) {
            sl_jbuf_fmt(b, "{\"type\":[\"array\",\"null\"],\"items\":");
            write_function(b, false);
            sl_jbuf_put(b, "}", 1);
        } else if (message_fields[i].kind == SL_JSON_ABSENT) {
            sl_jbuf_put(b, "{}", 2);
        } else {
            sl_jbuf_fmt(b, "{\"type\":[\"%s\",\"null\"]}",
                        message_fields[i].kind == SL_JSON_ARRAY ? "array" : "string");
        }
    }
    sl_schema_close(b, &message_fields[0].name, 1);
    sl_jbuf_put(b, "}", 1);
}

void sl_api_write_tools(sl_jbuf *b, const sl_api_limits *limits) {
    (void)limits;
    sl_jbuf_fmt(b, "{\"type\":\"array\",\"items\":");
    write_function(b, true);
    sl_jbuf_put(b, "}", 1);
}

void sl_api_write_tool_choice(sl_jbuf *b, const sl_api_limits *limits) {
    (void)limits;
    sl_jbuf_fmt(b, "{\"anyOf\":[{\"enum\":[\"auto\",\"none\",\"required\"]},");
    write_function(b, true);
    sl_jbuf_fmt(b, "]}");
}

void sl_api_write_effort(sl_jbuf *b, const sl_api_limits *limits) {
    (void)limits;
    sl_jbuf_fmt(b, "{\"enum\":");
    sl_words_write(b, efforts, SL_LEN(efforts));
    sl_jbuf_put(b, "}", 1);
}
