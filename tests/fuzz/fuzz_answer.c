/* What a model may say: any text in any format of calls, with and without reasoning, whole and cut
 * anywhere. What comes out is the same, in an order that a client can follow, and without calls
 * nothing of the text is lost but what marks reasoning and the white space around it.
 * Input: u8 format, u8 flags (1 thoughts, 2 opened, 4 generic, 8 one call, 16 no tools, 32 markers
 * as special tokens, 64 thoughts in brackets), u8 seed of the cuts, then the text. */
#include "base/mem.h"
#include "text/answer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct seen {
    char *text;
    size_t n, cap, shown;
    int kind;
    bool in_call;
} seen;

static void put(seen *s, const char *text, size_t n) {
    if (s->cap - s->n < n) {
        size_t cap = 2 * s->cap + n + 64;
        s->text = sl_grow(s->text, s->cap, cap, 1);
        SL_ASSERT(s->text);
        s->cap = cap;
    }
    if (n) memcpy(s->text + s->n, text, n);
    s->n += n;
}

static void on_event(void *ctx, const sl_answer_event *ev) {
    seen *s = ctx;
    bool joins = ev->kind != SL_ANSWER_CALL && ev->kind != SL_ANSWER_CALL_END;
    SL_ASSERT(!joins || ev->text.len > 0);
    SL_ASSERT(s->in_call == (ev->kind == SL_ANSWER_ARGUMENTS || ev->kind == SL_ANSWER_CALL_END));
    SL_ASSERT(ev->text.len <= SL_ANSWER_MAX_NAME || ev->kind != SL_ANSWER_CALL);
    if (ev->kind == SL_ANSWER_CALL) s->in_call = true;
    if (ev->kind == SL_ANSWER_CALL_END) s->in_call = false;
    if (!joins || s->kind != (int)ev->kind) {
        char mark[2] = {'\n', (char)('0' + (int)ev->kind)};
        put(s, mark, 2);
    }
    s->kind = joins ? (int)ev->kind : -1;
    put(s, (const char *)ev->text.data, ev->text.len);
    put(s, (const char *)ev->id.data, ev->id.len);
    if (ev->kind == SL_ANSWER_TEXT) s->shown += ev->text.len;
}

static const sl_tool_set *tools(void) {
    static const char text[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
        "\"a\":"
        "{\"type\":\"string\"},\"b\":{\"type\":\"integer\"},\"c\":{\"type\":[\"string\",\"null\"]},"
        "\"d\":{\"anyOf\":[{\"type\":\"array\"},{\"enum\":[1,true]}]}}}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{"
        "\"properties\":"
        "{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}}}}}]";
    static sl_tool_set *set;
    sl_json_doc *doc = NULL;
    sl_err err = {0};
    if (set) return set;
    SL_ASSERT(sl_json_parse("tools", (sl_span){(const uint8_t *)text, sizeof text - 1}, &doc,
                            &err) == SL_OK);
    SL_ASSERT(sl_tool_set_create(sl_json_root(doc), &set, &err) == SL_OK);
    sl_json_doc_free(doc);
    return set;
}

/* With markers: <...> in ASCII, and [WORD], are special tokens where the format has them. */
static size_t marker_at(const char *text, size_t n) {
    char open = n ? text[0] : 0, close = open == '<' ? '>' : open == '[' ? ']' : 0;
    for (size_t i = 1; close && i < n && i < 60; i++) {
        if (text[i] == close) return i + 1;
        if ((uint8_t)text[i] <= ' ' || text[i] == open) return 0;
    }
    return 0;
}

static void feed(sl_answer *a, const char *text, size_t n, bool markers, uint32_t cuts) {
    char name[64];
    uint32_t x = cuts;
    for (size_t at = 0; at < n;) {
        size_t m = markers ? marker_at(text + at, n - at) : 0, k = 1;
        if (m) {
            memcpy(name, text + at, m);
            name[m] = 0;
            SL_ASSERT(sl_answer_marker(a, name) == SL_OK);
            at += m;
            continue;
        }
        x = x * 1664525u + 1013904223u;
        size_t most = cuts == 0 ? n : cuts == 1 ? 1 : 1 + (x >> 24) % 16;
        while (k < most && at + k < n && !(markers && marker_at(text + at + k, n - at - k))) k++;
        SL_ASSERT(sl_answer_feed(a, text + at, k) == SL_OK);
        at += k;
    }
    SL_ASSERT(sl_answer_end(a) == SL_OK);
}

static seen parse(const sl_answer_options *how, const char *text, size_t n, uint32_t cuts) {
    seen s = {.kind = -1};
    sl_answer *a = NULL;
    sl_err err = {0};
    sl_answer_options o = *how;
    o.ctx = &s;
    SL_ASSERT(sl_answer_create(NULL, &o, &a, &err) == SL_OK);
    feed(a, text, n, o.markers, cuts);
    SL_ASSERT(!s.in_call);
    if (!o.tools && !o.style.thought && !o.markers && o.style.tools != SL_TOOLS_HARMONY)
        SL_ASSERT(s.shown == n);
    sl_answer_free(a);
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3 || size > 20000) return 0;
    size_t n = size - 3;
    char *text = malloc(n + 1);
    SL_ASSERT(text);
    /* text is UTF-8: bytes that it never has stand for markers inside */
    for (size_t i = 0; i < n; i++) {
        uint8_t b = data[3 + i];
        text[i] = (char)(b == 0xC0 || b == 0xC1 || b >= 0xF5 ? '?' : b);
    }
    const sl_answer_options o = {.style = {.tools = (sl_tool_format)(data[0] % SL_TOOLS_N),
                                           .generic = data[1] & 4,
                                           .thought = data[1] & 64 ? 2 : data[1] & 1},
                                 .tools = data[1] & 16 ? NULL : tools(),
                                 .opened = data[1] & 2,
                                 .one_call = data[1] & 8,
                                 .markers =
                                     data[1] & 32 || data[0] % SL_TOOLS_N == SL_TOOLS_HARMONY,
                                 .event = on_event};
    seen whole = parse(&o, text, n, 0);
    for (uint32_t i = 0; i < 2; i++) {
        seen cut = parse(&o, text, n, i ? 2u + data[2] : 1u);
        SL_ASSERT(cut.n == whole.n && (cut.n == 0 || !memcmp(cut.text, whole.text, cut.n)));
        sl_free(cut.text);
    }
    sl_free(whole.text);
    free(text);
    return 0;
}
