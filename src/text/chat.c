/* Messages through a template to tokens, special ones only where the template wrote them. */
#include "text/chat_int.h"

#include "base/mem.h"

#include <time.h>

/* What one rendering may take. Published templates take some hundred steps a message; 4096
 * messages with tools take 40 MiB. */
#define MAX_STEPS  50000000u
#define MAX_MEMORY ((size_t)256 << 20)
#define MAX_DEPTH  600u

typedef sl_chat_rendering rendering;

static sl_status check_message(const sl_chat_message *m, size_t i, sl_err *err) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    bool known = false;
    for (size_t k = 0; k < SL_LEN(roles); k++) known |= sl_span_is(m->role, roles[k]);
    if (!known)
        return sl_fail(err, SL_ERR_ARG,
                       "message %zu: role \"%.*s\" is not system, user, assistant or tool", i,
                       (int)SL_MIN(m->role.len, (size_t)40), (const char *)m->role.data);
    if (m->content.data && sl_utf8_valid_prefix(m->content) != m->content.len)
        return sl_fail(err, SL_ERR_ARG, "message %zu: not UTF-8 at byte %zu", i,
                       sl_utf8_valid_prefix(m->content));
    return SL_OK;
}

static sl_status check_messages(const sl_chat_message *m, size_t n, sl_err *err) {
    sl_status st = SL_OK;
    size_t bytes = 0;
    if (n == 0) return sl_fail(err, SL_ERR_ARG, "a conversation needs at least one message");
    for (size_t i = 0; i < n && st == SL_OK; i++) {
        st = check_message(&m[i], i, err);
        bytes += SL_MIN(m[i].content.len, (size_t)SL_TOKENIZER_MAX_TEXT);
        if (st == SL_OK && bytes > SL_TOKENIZER_MAX_TEXT)
            st = sl_fail(err, SL_ERR_LIMIT, "conversation longer than %u bytes",
                         SL_TOKENIZER_MAX_TEXT);
    }
    return st;
}

/* The arguments of a call, JSON in a string, as a value. */
static sl_status parse_arguments(rendering *g, size_t i, sl_jv function, sl_span text) {
    sl_err why = {0};
    bool blank = true;
    for (size_t k = 0; k < text.len; k++) blank &= strchr(" \t\r\n", text.data[k]) != NULL;
    if (blank) {
        sl_jv_put(g->run, function, "arguments", sl_jv_dict(g->run));
        return SL_OK;
    }
    sl_chat_parsed *p = sl_alloc(1, sizeof *p);
    if (!p) return sl_fail(g->err, SL_ERR_NOMEM, "arguments of a tool call");
    p->next = g->parsed;
    g->parsed = p;
    if (sl_json_parse_within("arguments", text, MAX_MEMORY, &p->doc, &why) != SL_OK)
        return sl_fail(g->err, SL_ERR_ARG, "message %zu: a tool call's %s", i, why.msg);
    sl_jv_put(g->run, function, "arguments", sl_jv_from_json(g->run, sl_json_root(p->doc), true));
    return SL_OK;
}

/* Tool calls as the template takes them. */
static sl_status adapt_calls(rendering *g, size_t i, sl_jv calls) {
    sl_status st = SL_OK;
    if (g->chat->text_arguments) return SL_OK;
    for (size_t k = 0; st == SL_OK; k++) {
        sl_span text;
        sl_jv call = sl_jv_at(calls, k);
        if (call.kind == SL_JV_MISSING) break;
        sl_jv function = sl_jv_get(g->run, call, "function");
        if (sl_jv_as_span(sl_jv_get(g->run, function, "arguments"), &text))
            st = parse_arguments(g, i, function, text);
    }
    return st;
}

/* Fields of a message as the template gets them; without calls where it shows none. */
static void put_fields(rendering *g, const sl_chat_message *m, sl_jv dict, bool calls) {
    void *iter = NULL;
    const char *key;
    for (sl_json v; sl_json_next(m->fields, &iter, &key, &v);) {
        if (!strcmp(key, "role") || (!strcmp(key, "content") && m->content.data)) continue;
        /* templates ask whether a field is there: clients send back null and no calls for absent */
        bool asks = !strcmp(key, "tool_calls");
        bool absent =
            sl_json_kind_of(v) == SL_JSON_NULL || (asks && (!calls || sl_json_count(v) == 0));
        if (absent && !g->options.as_given) continue;
        sl_jv_put(g->run, dict, key, sl_jv_from_json(g->run, v, true));
    }
}

/* Reasoning of an answer under the name that the template reads; clients have two for it. One that
 * reads "thinking" takes no content beside it in a message of calls. */
static void put_thoughts(rendering *g, sl_jv dict, bool asks) {
    sl_span content = {0};
    const char *name = g->chat->thoughts;
    if (!name || sl_jv_get(g->run, dict, name).kind != SL_JV_MISSING) return;
    sl_jv thoughts = sl_jv_get(g->run, dict, "reasoning_content");
    if (thoughts.kind != SL_JV_STRING) thoughts = sl_jv_get(g->run, dict, "reasoning");
    if (thoughts.kind != SL_JV_STRING) return;
    bool said = sl_jv_as_span(sl_jv_get(g->run, dict, "content"), &content) && content.len > 0;
    if (!strcmp(name, "thinking") && asks && said) return;
    sl_jv_put(g->run, dict, name, thoughts);
}

static bool has_content(const sl_chat_message *m, sl_span *out) {
    *out = m->content;
    return m->content.data || sl_json_as_span(sl_json_get(m->fields, "content"), out);
}

static sl_status put_message(rendering *g, const sl_chat_message *m, size_t i, sl_jv list) {
    sl_jrun *r = g->run;
    sl_span content_text = {0};
    sl_json asked = sl_json_get(m->fields, "tool_calls");
    bool helps = !g->options.as_given && !g->options.as_shown;
    bool writes = helps && !g->chat->shows_calls; /* calls, instead of the template */
    if (writes && sl_span_is(m->role, "tool")) {
        (void)has_content(m, &content_text);
        sl_chat_write_result(g, content_text, list);
        return g->st;
    }
    g->results = (sl_jv){0};
    sl_jv dict = sl_jv_dict(r);
    if (dict.kind != SL_JV_DICT) return SL_OK; /* the rendering will say that memory is out */
    /* a role is one of a few words: it counts as the template's */
    sl_jv_put(r, dict, "role", sl_jv_text(r, m->role, false));
    if (m->content.data) sl_jv_put(r, dict, "content", sl_jv_text(r, m->content, true));
    sl_status st = SL_OK;
    bool asks = sl_json_count(asked) > 0;
    put_fields(g, m, dict, !writes);
    if (!g->options.as_given) {
        sl_jv calls = sl_jv_get(r, dict, "tool_calls"), content = sl_jv_get(r, dict, "content");
        bool none = content.kind == SL_JV_MISSING || content.kind == SL_JV_NONE;
        if (none)
            sl_jv_put(r, dict, "content",
                      asks && g->chat->null_content ? sl_jv_none()
                                                    : sl_jv_text(r, (sl_span){0}, true));
        st = adapt_calls(g, i, calls);
        put_thoughts(g, dict, asks);
    }
    if (writes && asks) sl_chat_write_calls(g, dict, sl_jv_from_json(r, asked, true));
    if (helps) sl_chat_add_told(g, i, dict);
    sl_jv_push(r, list, dict);
    return st == SL_OK ? g->st : st;
}

/* Tools as the template takes them: clients leave out descriptions that some templates want. */
static sl_jv tools_of(rendering *g) {
    sl_jv tools = sl_jv_from_json(g->run, g->options.tools, true);
    for (size_t i = 0; g->chat->wants_said && !g->options.as_given; i++) {
        sl_jv tool = sl_jv_at(tools, i);
        if (tool.kind == SL_JV_MISSING) break;
        sl_jv function = sl_jv_get(g->run, tool, "function");
        if (function.kind == SL_JV_DICT &&
            sl_jv_get(g->run, function, "description").kind == SL_JV_MISSING)
            sl_jv_put(g->run, function, "description", sl_jv_text(g->run, (sl_span){0}, true));
    }
    return tools;
}

/* Variables of the template; those of the request come last, but not over the conversation. */
static sl_jv variables(rendering *g, sl_jv messages) {
    static const char *const taken[] = {"messages", "tools", "add_generation_prompt"};
    sl_jrun *r = g->run;
    sl_jv v = sl_jv_dict(r);
    void *iter = NULL;
    const char *key;
    if (v.kind != SL_JV_DICT) return v;
    sl_json tokens = g->chat->tokens ? sl_json_root(g->chat->tokens) : (sl_json){0};
    for (sl_json f; sl_json_next(tokens, &iter, &key, &f);)
        sl_jv_put(r, v, key, sl_jv_from_json(r, f, false));
    sl_jv_put(r, v, "documents", sl_jv_none());
    iter = NULL;
    for (sl_json f; sl_json_next(g->options.kwargs, &iter, &key, &f);) {
        bool ours = false;
        for (size_t i = 0; i < SL_LEN(taken); i++) ours |= !strcmp(key, taken[i]);
        if (!ours) sl_jv_put(r, v, key, sl_jv_from_json(r, f, true));
    }
    if (g->options.thinking != SL_CHAT_UNSET && g->chat->thinking)
        sl_jv_put(r, v, g->chat->thinking, sl_jv_bool(g->options.thinking == SL_CHAT_ON));
    if (g->options.effort.data)
        sl_jv_put(r, v, "reasoning_effort", sl_jv_text(r, g->options.effort, true));
    bool tools = sl_json_kind_of(g->options.tools) == SL_JSON_ARRAY;
    sl_jv_put(r, v, "messages", messages);
    sl_jv_put(r, v, "tools", tools ? tools_of(g) : sl_jv_none());
    sl_jv_put(r, v, "add_generation_prompt", sl_jv_bool(g->options.add_generation_prompt));
    return v;
}

static bool user_at(const sl_jinja_text *t, size_t i) {
    return t->user ? t->user[i] != 0 : t->all_user;
}

/* The rendered bytes, in parts that a user or the template wrote. */
static sl_status cut(const sl_jinja_text *t, sl_chat_text *out, sl_err *err) {
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) n += i == 0 || user_at(t, i) != user_at(t, i - 1);
    sl_chat_text text = {.bytes = sl_alloc(t->n, 1), .parts = sl_alloc(n, sizeof *text.parts)};
    if (!text.bytes || !text.parts) {
        sl_chat_text_free(&text);
        return sl_fail(err, SL_ERR_NOMEM, "conversation of %zu bytes", t->n);
    }
    if (t->n) memcpy(text.bytes, t->bytes, t->n);
    text.n_bytes = t->n;
    for (size_t i = 0; i < t->n; i++) {
        if (i == 0 || user_at(t, i) != user_at(t, i - 1))
            text.parts[text.n_parts++] =
                (sl_text_part){{(const uint8_t *)text.bytes + i, 0}, !user_at(t, i)};
        text.parts[text.n_parts - 1].text.len++;
    }
    *out = text;
    return SL_OK;
}

static sl_status render(rendering *g, const sl_chat_message *m, size_t n, sl_chat_text *out) {
    sl_jinja_text text = {0};
    sl_status st = SL_OK;
    sl_jv list = sl_jv_list(g->run);
    if (list.kind != SL_JV_LIST)
        return sl_fail(g->err, SL_ERR_NOMEM, "conversation of %zu messages", n);
    if (!g->options.as_given && !g->options.as_shown) sl_chat_tell_tools(g, m, n, list);
    st = g->st;
    for (size_t i = 0; i < n && st == SL_OK; i++) st = put_message(g, &m[i], i, list);
    if (st != SL_OK) return st;
    bool tools = sl_json_kind_of(g->options.tools) == SL_JSON_ARRAY;
    const sl_jinja *t = tools && g->chat->with_tools ? g->chat->with_tools : g->chat->plain;
    int64_t now_s = g->options.now_s ? g->options.now_s : (int64_t)time(NULL);
    st = sl_jinja_render(g->run, t, variables(g, list), now_s, &text, g->err);
    return st == SL_OK ? cut(&text, out, g->err) : st;
}

sl_status sl_chat_render(const sl_chat *chat, const sl_chat_message *messages, size_t n,
                         sl_chat_options options, sl_chat_text *out, sl_err *err) {
    size_t most = options.max_bytes ? options.max_bytes : SL_TOKENIZER_MAX_TEXT;
    most = SL_MIN(most, (size_t)SL_TOKENIZER_MAX_TEXT);
    const sl_jinja_limits limits = {
        .steps = MAX_STEPS, .memory_bytes = MAX_MEMORY, .output_bytes = most, .depth = MAX_DEPTH};
    rendering g = {.chat = chat, .options = options, .err = err};
    sl_status st = check_messages(messages, n, err);
    if (st == SL_OK) st = sl_jrun_create(&limits, &g.run, err);
    if (st == SL_OK) st = render(&g, messages, n, out);
    sl_jrun_free(g.run);
    while (g.parsed) {
        sl_chat_parsed *p = g.parsed;
        g.parsed = p->next;
        sl_json_doc_free(p->doc);
        sl_free(p);
    }
    return st;
}

void sl_chat_text_free(sl_chat_text *text) {
    sl_free(text->parts);
    sl_free(text->bytes);
    *text = (sl_chat_text){0};
}

sl_status sl_chat_prompt(const sl_chat *chat, const sl_tokenizer *tok,
                         const sl_chat_message *messages, size_t n, sl_chat_options options,
                         sl_ids *out, bool *opened, sl_err *err) {
    sl_chat_text text = {0};
    sl_status st = sl_chat_render(chat, messages, n, options, &text, err);
    const sl_text_part *end = text.n_parts ? &text.parts[text.n_parts - 1] : NULL;
    *opened = options.add_generation_prompt && end && end->parse_special &&
              sl_answer_is_opened(&chat->style, end->text);
    if (st == SL_OK)
        st =
            sl_tokenizer_encode_parts(tok, text.parts, text.n_parts, options.add_special, out, err);
    sl_chat_text_free(&text);
    return st;
}

sl_status sl_chat_encode(const sl_chat *chat, const sl_tokenizer *tok,
                         const sl_chat_message *messages, size_t n, sl_chat_options options,
                         sl_ids *out, sl_err *err) {
    bool opened;
    return sl_chat_prompt(chat, tok, messages, n, options, out, &opened, err);
}

sl_answer_style sl_chat_style(const sl_chat *chat) {
    return chat->style;
}

sl_span sl_chat_source(const sl_chat *chat, bool of_tools) {
    return (sl_span){(const uint8_t *)chat->source[of_tools], chat->n_source[of_tools]};
}

bool sl_chat_has_switch(const sl_chat *chat) {
    return chat->thinking != NULL;
}

bool sl_chat_has_effort(const sl_chat *chat) {
    return chat->takes_effort;
}
