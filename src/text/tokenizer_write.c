/* Text of JSON in a growing buffer. */
#include "text/tokenizer_int.h"

#include "base/mem.h"

#include <stdio.h>

static void put(sl_tok_text *t, const void *s, size_t n) {
    if (!t->ok || n == 0) return;
    if (n > t->cap - t->len) {
        size_t cap = 2 * t->cap + n + 65536;
        char *grown = sl_grow(t->data, t->cap, cap, 1);
        t->ok = grown != NULL;
        if (!grown) return;
        t->data = grown;
        t->cap = cap;
    }
    memcpy(t->data + t->len, s, n);
    t->len += n;
}

void sl_tok_say(sl_tok_text *t, const char *s) {
    put(t, s, strlen(s));
}

void sl_tok_quote(sl_tok_text *t, sl_span s) {
    sl_tok_say(t, "\"");
    for (size_t i = 0; i < s.len; i++) {
        char code[8];
        uint8_t c = s.data[i];
        if (c < 0x20 || c == '"' || c == '\\')
            put(t, code, (size_t)snprintf(code, sizeof code, "\\u%04x", c));
        else
            put(t, &c, 1);
    }
    sl_tok_say(t, "\"");
}

void sl_tok_number(sl_tok_text *t, uint64_t v) {
    char s[24];
    put(t, s, (size_t)snprintf(s, sizeof s, "%llu", (unsigned long long)v));
}
