/* JSON written into a growing buffer. */
#include "serve/jbuf.h"

#include "base/utf8.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

void sl_jbuf_free(sl_jbuf *b) {
    sl_free(b->data);
    *b = sl_jbuf_init();
}

void sl_jbuf_clear(sl_jbuf *b) {
    b->len = 0;
    if (b->data) b->data[0] = 0;
}

static bool reserve(sl_jbuf *b, size_t n) {
    if (!b->ok) return false;
    if (n >= SIZE_MAX / 2 - b->len) {
        b->ok = false;
        return false;
    }
    size_t need = b->len + n + 1;
    if (need <= b->cap) return true;
    size_t cap = b->cap ? b->cap : 256;
    while (cap < need) cap *= 2;
    char *data = sl_grow(b->data, b->cap, cap, 1);
    if (!data) {
        b->ok = false;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

void sl_jbuf_put(sl_jbuf *b, const char *bytes, size_t n) {
    if (!reserve(b, n)) return;
    if (n) memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = 0;
}

void sl_jbuf_fmt(sl_jbuf *b, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0 || !reserve(b, (size_t)n)) {
        b->ok = false;
        return;
    }
    va_start(args, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, args);
    va_end(args);
    b->len += (size_t)n;
}

static void put_control(sl_jbuf *b, uint8_t c) {
    switch (c) {
    case '\n':
        sl_jbuf_put(b, "\\n", 2);
        return;
    case '\r':
        sl_jbuf_put(b, "\\r", 2);
        return;
    case '\t':
        sl_jbuf_put(b, "\\t", 2);
        return;
    case '"':
        sl_jbuf_put(b, "\\\"", 2);
        return;
    case '\\':
        sl_jbuf_put(b, "\\\\", 2);
        return;
    default:
        sl_jbuf_fmt(b, "\\u%04x", c);
    }
}

void sl_jbuf_string(sl_jbuf *b, const char *bytes, size_t n) {
    sl_jbuf_put(b, "\"", 1);
    size_t plain = 0; /* bytes[plain..i) are copied as they are */
    for (size_t i = 0; i < n;) {
        uint8_t c = (uint8_t)bytes[i];
        size_t len = sl_utf8_sequence(bytes + i, n - i);
        bool escape = c < 0x20 || c == '"' || c == '\\' || c == 0x7F;
        if (len > 0 && !escape) {
            i += len;
            continue;
        }
        sl_jbuf_put(b, bytes + plain, i - plain);
        if (len == 0)
            sl_jbuf_put(b, "\xEF\xBF\xBD", 3);
        else
            put_control(b, c);
        plain = ++i;
    }
    sl_jbuf_put(b, bytes + plain, n - plain);
    sl_jbuf_put(b, "\"", 1);
}

void sl_jbuf_cstring(sl_jbuf *b, const char *s) {
    if (s)
        sl_jbuf_string(b, s, strlen(s));
    else
        sl_jbuf_put(b, "null", 4);
}

void sl_jbuf_ids(sl_jbuf *b, const uint32_t *ids, size_t n) {
    sl_jbuf_put(b, "[", 1);
    for (size_t i = 0; i < n; i++) sl_jbuf_fmt(b, i ? ",%" PRIu32 : "%" PRIu32, ids[i]);
    sl_jbuf_put(b, "]", 1);
}

static bool put_json(void *ctx, const char *text, size_t n) {
    sl_jbuf *b = ctx;
    sl_jbuf_put(b, text, n);
    return b->ok;
}

void sl_jbuf_json(sl_jbuf *b, sl_json v) {
    if (!sl_json_write(v, put_json, b)) b->ok = false;
}
