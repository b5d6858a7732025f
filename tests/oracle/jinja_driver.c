/* Renders templates for tests/oracle/test_jinja.py: a JSON object a line on stdin,
 *   {"template": text, "globals": {...}}                variables that a user wrote
 *   {"template": text, "chat": {messages, tools, kwargs, add_generation_prompt}, "tokens": {...}}
 * and one a line on stdout: {"text": text, "user": [from, to, from, to, ...]} in bytes, or
 * {"error": message, "status": number}. */
#include "base/mem.h"
#include "jinja/jinja.h"
#include "text/chat.h"
#include "serve/jbuf.h"

#include <stdio.h>
#include <stdlib.h>

#define NOW_S        1700000000 /* 2023-11-14 22:13:20 UTC */
#define MAX_MESSAGES 64

static void put_error(sl_jbuf *b, sl_status st, const sl_err *err) {
    char code[32];
    sl_jbuf_put(b, "{\"error\":", 9);
    sl_jbuf_string(b, err->msg, strlen(err->msg));
    snprintf(code, sizeof code, ",\"status\":%d}", (int)st);
    sl_jbuf_put(b, code, strlen(code));
}

static void put_span(sl_jbuf *b, size_t from, size_t to, bool *first) {
    char text[64];
    int n = snprintf(text, sizeof text, "%s%zu,%zu", *first ? "" : ",", from, to);
    sl_jbuf_put(b, text, (size_t)n);
    *first = false;
}

static sl_status render_plain(sl_json job, sl_span source, sl_jbuf *b, sl_err *err) {
    const sl_jinja_limits limits = {1000000, (size_t)64 << 20, 1 << 20, 600};
    sl_jinja *t = NULL;
    sl_jrun *r = NULL;
    sl_jinja_text text = {0};
    bool first = true;
    sl_status st = sl_jinja_parse("t", source, &t, err);
    if (st == SL_OK) st = sl_jrun_create(&limits, &r, err);
    if (st == SL_OK)
        st = sl_jinja_render(r, t, sl_jv_from_json(r, sl_json_get(job, "globals"), true), NOW_S,
                             &text, err);
    if (st == SL_OK) {
        sl_jbuf_put(b, "{\"text\":", 8);
        sl_jbuf_string(b, text.bytes, text.n);
        sl_jbuf_put(b, ",\"user\":[", 9);
        for (size_t i = 0, k; i < text.n; i = k) {
            bool user = text.user ? text.user[i] : text.all_user;
            for (k = i; k < text.n && (text.user ? text.user[k] : text.all_user) == user; k++) {
            }
            if (user) put_span(b, i, k, &first);
        }
        sl_jbuf_put(b, "]}", 2);
    }
    sl_jrun_free(r);
    sl_jinja_free(t);
    return st;
}

static sl_status render_chat(sl_json job, sl_span source, sl_jbuf *b, sl_err *err) {
    sl_json c = sl_json_get(job, "chat"), list = sl_json_get(c, "messages");
    sl_chat_message m[MAX_MESSAGES];
    sl_chat_options o = {.as_given = true,
                         .tools = sl_json_get(c, "tools"),
                         .kwargs = sl_json_get(c, "kwargs"),
                         .now_s = NOW_S};
    sl_chat_text text = {0};
    sl_chat *chat = NULL;
    bool first = true;
    size_t n = sl_json_count(list);
    if (n > MAX_MESSAGES) return sl_fail(err, SL_ERR_LIMIT, "%zu messages", n);
    for (size_t i = 0; i < n; i++) {
        m[i] = (sl_chat_message){.fields = sl_json_at(list, i)};
        if (!sl_json_as_span(sl_json_get(m[i].fields, "role"), &m[i].role))
            return sl_fail(err, SL_ERR_ARG, "no role");
    }
    sl_json_as_bool(sl_json_get(c, "add_generation_prompt"), &o.add_generation_prompt);
    sl_status st = sl_chat_parse("t", source, sl_json_get(job, "tokens"), &chat, err);
    if (st == SL_OK) st = sl_chat_render(chat, m, n, o, &text, err);
    if (st == SL_OK) {
        sl_jbuf_put(b, "{\"text\":", 8);
        sl_jbuf_string(b, text.bytes, text.n_bytes);
        sl_jbuf_put(b, ",\"user\":[", 9);
        for (size_t i = 0; i < text.n_parts; i++) {
            size_t from = (size_t)((const char *)text.parts[i].text.data - text.bytes);
            if (!text.parts[i].parse_special)
                put_span(b, from, from + text.parts[i].text.len, &first);
        }
        sl_jbuf_put(b, "]}", 2);
    }
    sl_chat_text_free(&text);
    sl_chat_free(chat);
    return st;
}

int main(void) {
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        sl_json_doc *doc = NULL;
        sl_err err = {0};
        sl_span source = {0};
        sl_jbuf b = sl_jbuf_init();
        sl_status st = sl_json_parse("job", (sl_span){(uint8_t *)line, (size_t)n}, &doc, &err);
        sl_json job = doc ? sl_json_root(doc) : (sl_json){0};
        bool chat = sl_json_kind_of(sl_json_get(job, "chat")) == SL_JSON_OBJECT;
        if (st == SL_OK && !sl_json_as_span(sl_json_get(job, "template"), &source))
            st = sl_fail(&err, SL_ERR_ARG, "no template");
        if (st == SL_OK)
            st = chat ? render_chat(job, source, &b, &err) : render_plain(job, source, &b, &err);
        if (st != SL_OK) put_error(&b, st, &err);
        sl_jbuf_put(&b, "\n", 1);
        fwrite(b.data, 1, b.len, stdout);
        fflush(stdout);
        sl_jbuf_free(&b);
        sl_json_doc_free(doc);
    }
    free(line);
    return 0;
}
