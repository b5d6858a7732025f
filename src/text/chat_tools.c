/* Tools and calls in conversations for templates that know none: a message tells the model of its
 * tools and how to call them, calls and results of earlier turns stand in messages as it was told.
 */
#include "text/chat_int.h"

#include <stdio.h>

/* Fragments in the language of templates; calls are written as SL_TOOLS_HERMES reads them. */
static const char tools_text[] =
    "You can call functions. Each line between <tools> and </tools> describes one, as JSON.\n"
    "<tools>\n"
    "{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}"
    "</tools>\n"
    "To call a function, write a JSON object with its name and its arguments between <tool_call> "
    "and </tool_call>, like this:\n"
    "<tool_call>\n"
    "{\"name\": \"name of the function\", \"arguments\": {\"name of an argument\": \"its "
    "value\"}}\n"
    "</tool_call>\n"
    "You may make several calls. What they return comes between <tool_response> and "
    "</tool_response>. When no function is needed, answer without a call.";
static const char calls_text[] =
    "{{ content }}{% for call in calls %}{{ '\\n' if content or not loop.first }}<tool_call>\n"
    "{\"name\": {{ call.function.name | tojson }}, \"arguments\": "
    "{% if call.function.arguments is string %}{{ call.function.arguments or '{}' }}"
    "{% else %}{{ call.function.arguments | default({}) | tojson }}{% endif %}}\n"
    "</tool_call>{% endfor %}";
static const char result_text[] =
    "{{ before }}{{ '\\n' if before }}<tool_response>\n{{ content }}\n</tool_response>";
static const char join_text[] = "{{ first }}{{ '\\n\\n' if first and second }}{{ second }}";

sl_status sl_chat_parse_fragments(sl_chat *chat, sl_err *err) {
    static const struct {
        sl_span text;
        const char *name;
    } rows[SL_CHAT_FRAGMENTS] = {
        [SL_CHAT_TOOLS] = {{(const uint8_t *)tools_text, sizeof tools_text - 1}, "tools"},
        [SL_CHAT_CALLS] = {{(const uint8_t *)calls_text, sizeof calls_text - 1}, "calls"},
        [SL_CHAT_RESULT] = {{(const uint8_t *)result_text, sizeof result_text - 1}, "result"},
        [SL_CHAT_JOIN] = {{(const uint8_t *)join_text, sizeof join_text - 1}, "join"},
    };
    sl_status st = SL_OK;
    for (size_t i = 0; i < SL_LEN(rows) && st == SL_OK; i++)
        st = sl_jinja_parse(rows[i].name, rows[i].text, &chat->fragment[i], err);
    return st;
}

static sl_jv text_of(sl_chat_rendering *g, sl_span s) {
    return sl_jv_text(g->run, s.data ? s : (sl_span){(const uint8_t *)"", 0}, true);
}

/* A fragment with these variables, as the user's text. */
static sl_jv fill(sl_chat_rendering *g, sl_chat_fragment which, sl_jv variables) {
    sl_jinja_text out = {0};
    if (g->st != SL_OK || variables.kind != SL_JV_DICT) return text_of(g, (sl_span){0});
    g->st = sl_jinja_render(g->run, g->chat->fragment[which], variables, 1, &out, g->err);
    return text_of(g, (sl_span){(const uint8_t *)out.bytes, out.n});
}

static sl_jv two(sl_chat_rendering *g, const char *a, sl_jv x, const char *b, sl_jv y) {
    sl_jv v = sl_jv_dict(g->run);
    if (v.kind != SL_JV_DICT) return v;
    sl_jv_put(g->run, v, a, x);
    sl_jv_put(g->run, v, b, y);
    return v;
}

static void set_content(sl_chat_rendering *g, sl_jv dict, sl_jv content) {
    if (dict.kind == SL_JV_DICT) sl_jv_put(g->run, dict, "content", content);
}

static sl_jv push_role(sl_chat_rendering *g, const char *role, sl_jv list) {
    sl_jv dict = sl_jv_dict(g->run);
    if (dict.kind != SL_JV_DICT) return dict;
    sl_jv_put(g->run, dict, "role",
              sl_jv_text(g->run, (sl_span){(const uint8_t *)role, strlen(role)}, false));
    sl_jv_push(g->run, list, dict);
    return dict;
}

void sl_chat_tell_tools(sl_chat_rendering *g, const sl_chat_message *m, size_t n, sl_jv list) {
    bool system = n > 0 && sl_span_is(m[0].role, "system");
    sl_jv v = sl_jv_dict(g->run);
    g->told_at = SIZE_MAX;
    if (sl_json_kind_of(g->options.tools) != SL_JSON_ARRAY || g->chat->shows_tools ||
        v.kind != SL_JV_DICT)
        return;
    sl_jv_put(g->run, v, "tools", sl_jv_from_json(g->run, g->options.tools, true));
    g->told = fill(g, SL_CHAT_TOOLS, v);
    if (system || g->chat->takes_system) {
        if (system)
            g->told_at = 0;
        else
            set_content(g, push_role(g, "system", list), g->told);
        return;
    }
    for (size_t i = 0; i < n && g->told_at == SIZE_MAX; i++)
        if (sl_span_is(m[i].role, "user")) g->told_at = i;
}

void sl_chat_add_told(sl_chat_rendering *g, size_t i, sl_jv dict) {
    if (i != g->told_at) return;
    sl_jv content = sl_jv_get(g->run, dict, "content");
    bool system = g->chat->takes_system;
    if (content.kind != SL_JV_STRING) content = text_of(g, (sl_span){0});
    set_content(
        g, dict,
        fill(g, SL_CHAT_JOIN,
             two(g, system ? "first" : "second", content, system ? "second" : "first", g->told)));
}

void sl_chat_write_calls(sl_chat_rendering *g, sl_jv dict, sl_jv calls) {
    sl_jv content = sl_jv_get(g->run, dict, "content");
    if (content.kind != SL_JV_STRING) content = text_of(g, (sl_span){0});
    set_content(g, dict, fill(g, SL_CHAT_CALLS, two(g, "content", content, "calls", calls)));
}

void sl_chat_write_result(sl_chat_rendering *g, sl_span content, sl_jv list) {
    sl_jv before = text_of(g, (sl_span){0});
    if (g->results.kind == SL_JV_DICT)
        before = sl_jv_get(g->run, g->results, "content");
    else
        g->results = push_role(g, "user", list);
    set_content(g, g->results,
                fill(g, SL_CHAT_RESULT, two(g, "before", before, "content", text_of(g, content))));
}
