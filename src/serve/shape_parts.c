/* Parts of shapes as JSON: literals with special tokens in them, values of a request's body. */
#include "serve/shapes_int.h"

#include <inttypes.h>
#include <stdio.h>

#define MAX_MARKER 64u /* bytes of a special token's name in a literal */

void sl_shape_put(sl_jbuf *b, const char *text) {
    sl_jbuf_put(b, text, strlen(text));
}

static void put_real(sl_jbuf *b, double x) {
    char text[40];
    int n = snprintf(text, sizeof text, "%.17g", x);
    sl_jbuf_put(b, text, (size_t)n);
    if (!strpbrk(text, ".eE")) sl_shape_put(b, ".0");
}

/* A value as it came; documents are not deep (SL_JSON_MAX_DEPTH). */
void sl_shape_json(sl_jbuf *b, sl_json v) {
    sl_span text;
    int64_t i = 0;
    double x = 0;
    bool on = false;
    void *iter = NULL;
    const char *key;
    switch (sl_json_kind_of(v)) {
    case SL_JSON_ABSENT:
    case SL_JSON_NULL:
        sl_shape_put(b, "null");
        return;
    case SL_JSON_BOOL:
        sl_shape_put(b, sl_json_as_bool(v, &on) && on ? "true" : "false");
        return;
    case SL_JSON_INT:
        if (sl_json_as_i64(v, &i)) sl_jbuf_fmt(b, "%" PRId64, i);
        return;
    case SL_JSON_REAL:
        if (sl_json_as_f64(v, &x)) put_real(b, x);
        return;
    case SL_JSON_STRING:
        if (sl_json_as_span(v, &text)) sl_jbuf_string(b, (const char *)text.data, text.len);
        return;
    case SL_JSON_ARRAY:
        for (size_t k = 0; k < sl_json_count(v); k++) {
            sl_shape_put(b, k ? "," : "[");
            sl_shape_json(b, sl_json_at(v, k));
        }
        sl_shape_put(b, sl_json_count(v) ? "]" : "[]");
        return;
    case SL_JSON_OBJECT:
        sl_shape_put(b, "{");
        for (sl_json f; sl_json_next(v, &iter, &key, &f);) {
            if (b->len && b->data[b->len - 1] != '{') sl_shape_put(b, ",");
            sl_jbuf_cstring(b, key);
            sl_shape_put(b, ":");
            sl_shape_json(b, f);
        }
        sl_shape_put(b, "}");
        return;
    }
}

/* Bytes of the special token whose name a text begins with; 0: none. */
static size_t special_at(const sl_tokenizer *tok, const char *text, int64_t *id) {
    char name[MAX_MARKER + 1];
    for (size_t n = SL_MIN(strlen(text), (size_t)MAX_MARKER); n > 1; n--) {
        if (text[n - 1] != '>' && text[n - 1] != ']') continue;
        memcpy(name, text, n);
        name[n] = 0;
        *id = sl_tokenizer_find(tok, name);
        if (*id >= 0 && sl_tokenizer_is_special(tok, (uint32_t)*id)) return n;
    }
    return 0;
}

/* A literal: its special tokens are met by their ids. */
static void put_literal(sl_jbuf *b, const sl_tokenizer *tok, const char *text) {
    bool any = false;
    sl_shape_put(b, "[");
    for (size_t plain = 0, at = 0;; at++) {
        int64_t id = -1;
        bool marks = text[at] == '<' || text[at] == '[';
        size_t n = marks ? special_at(tok, text + at, &id) : 0;
        if ((n || !text[at]) && at > plain) {
            if (any) sl_shape_put(b, ",");
            sl_jbuf_string(b, text + plain, at - plain);
            any = true;
        }
        if (!text[at]) break;
        if (!n) continue;
        sl_jbuf_fmt(b, any ? ",%" PRId64 : "%" PRId64, id);
        any = true;
        plain = at + n;
        at = plain - 1;
    }
    sl_shape_put(b, "]");
}

void sl_shape_marked(sl_jbuf *b, const sl_tokenizer *tok, const char *part, const char *text) {
    sl_jbuf_fmt(b, "{\"%s\":", part);
    put_literal(b, tok, text);
    sl_shape_put(b, "}");
}

/* {"text": ...} of a literal that may be empty, in which # stands for a number; what follows is
 * another part of the same list. */
void sl_shape_text(sl_jbuf *b, const sl_tokenizer *tok, const char *text) {
    char first[MAX_MARKER];
    const char *number = strchr(text, '#');
    if (number) {
        snprintf(first, sizeof first, "%.*s", (int)(number - text), text);
        sl_shape_text(b, tok, first);
        sl_shape_put(b, "{\"regex\":\"[0-9]{1,6}\"},");
        text = number + 1;
    }
    if (!text[0]) return;
    sl_shape_marked(b, tok, "text", text);
    sl_shape_put(b, ",");
}
