/* Turns of a conversation as the messages of a chat. */
#include "serve/talk.h"

#include <string.h>

static const char assistant[] = "assistant";

void sl_talk_open(sl_talk *t, sl_jbuf *out) {
    *t = (sl_talk){.out = out,
                   .id = sl_jbuf_init(),
                   .parts = sl_jbuf_init(),
                   .reasoning = sl_jbuf_init(),
                   .calls = sl_jbuf_init()};
    sl_jbuf_fmt(out, ",\"messages\":[");
}

static void put_list(sl_jbuf *out, const char *key, const sl_jbuf *list) {
    sl_jbuf_fmt(out, ",\"%s\":[", key);
    sl_jbuf_put(out, list->data, list->len);
    sl_jbuf_put(out, "]", 1);
}

/* What was collected is a message. */
static void write_message(sl_talk *t) {
    sl_jbuf *out = t->out;
    if (!t->role) return;
    sl_jbuf_fmt(out, "%s{\"role\":\"%s\"", t->n++ ? "," : "", t->role);
    if (t->id.len) {
        sl_jbuf_fmt(out, ",\"tool_call_id\":");
        sl_jbuf_put(out, t->id.data, t->id.len);
    }
    if (t->parts.len)
        put_list(out, "content", &t->parts);
    else
        sl_jbuf_fmt(out, ",\"content\":%s", t->role == assistant ? "null" : "\"\"");
    if (t->reasoning.len) {
        sl_jbuf_fmt(out, ",\"reasoning_content\":");
        sl_jbuf_string(out, t->reasoning.data, t->reasoning.len);
    }
    if (t->calls.len) put_list(out, "tool_calls", &t->calls);
    sl_jbuf_put(out, "}", 1);
    t->role = NULL;
    sl_jbuf *const all[] = {&t->id, &t->parts, &t->reasoning, &t->calls};
    for (size_t i = 0; i < SL_LEN(all); i++) {
        out->ok = out->ok && all[i]->ok;
        sl_jbuf_clear(all[i]);
    }
}

bool sl_talk_close(sl_talk *t) {
    write_message(t);
    sl_jbuf_put(t->out, "]", 1);
    sl_jbuf_free(&t->id);
    sl_jbuf_free(&t->parts);
    sl_jbuf_free(&t->reasoning);
    sl_jbuf_free(&t->calls);
    return t->out->ok;
}

void sl_talk_begin(sl_talk *t, const char *role, sl_json call_id) {
    write_message(t);
    t->role = strcmp(role, assistant) != 0 ? role : assistant;
    sl_jbuf_json(&t->id, call_id);
}

static void belong(sl_talk *t, const char *role) {
    if (!t->role || strcmp(t->role, role) != 0) sl_talk_begin(t, role, (sl_json){0});
}

static void put_part(sl_jbuf *parts, sl_span text) {
    if (parts->len) sl_jbuf_put(parts, ",", 1);
    sl_jbuf_fmt(parts, "{\"type\":\"text\",\"text\":");
    sl_jbuf_string(parts, (const char *)text.data, text.len);
    sl_jbuf_put(parts, "}", 1);
}

void sl_talk_text(sl_talk *t, const char *role, sl_span text) {
    belong(t, role);
    put_part(&t->parts, text);
}

void sl_talk_reasoning(sl_talk *t, sl_span text) {
    belong(t, assistant);
    if (t->reasoning.len) sl_jbuf_put(&t->reasoning, "\n", 1);
    sl_jbuf_put(&t->reasoning, (const char *)text.data, text.len);
}

void sl_talk_call(sl_talk *t, sl_json id, sl_json name, sl_span arguments) {
    belong(t, assistant);
    if (t->calls.len) sl_jbuf_put(&t->calls, ",", 1);
    sl_jbuf_fmt(&t->calls, "{\"id\":");
    sl_jbuf_json(&t->calls, id);
    sl_jbuf_fmt(&t->calls, ",\"type\":\"function\",\"function\":{\"name\":");
    sl_jbuf_json(&t->calls, name);
    sl_jbuf_fmt(&t->calls, ",\"arguments\":");
    sl_jbuf_string(&t->calls, (const char *)arguments.data, arguments.len);
    sl_jbuf_fmt(&t->calls, "}}");
}
