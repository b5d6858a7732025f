/* Answers in the harmony format (gpt-oss): messages with channels and recipients. A message is
 * <|start|>role<|channel|>name<|message|>text<|end|>, and an answer begins after the role. What is
 * in the channel "final", or in none, is the answer; a message to functions.NAME, or to a tool of
 * the request, is a call of it; all others are reasoning. The recipient stands behind the role or
 * the channel: "to=functions.f". Roles, names and recipients are shown to nobody. */
#include "text/answer_int.h"

#define START   "<|start|>"
#define CHANNEL "<|channel|>"
#define MESSAGE "<|message|>"
#define END     "<|end|>"
#define CALL    "<|call|>"
#define RETURN  "<|return|>"

#define MAX_HEADER 512u /* bytes; what is longer is nothing that is known */

/* The first four have to be there; the others are markers where they are. */
bool sl_answer_harmony_markers(const char *const **out, size_t *n) {
    static const char *const markers[] = {START, CHANNEL, MESSAGE, END, CALL, RETURN};
    *out = markers;
    *n = SL_LEN(markers);
    return true;
}

static bool is_at(const sl_answer *a, size_t at, const char *marker) {
    sl_span s = sl_answer_literal(a, marker);
    return s.len == 1 && at < a->len && (uint8_t)a->w[at] == s.data[0];
}

/* The name behind "to=" in what stands before <|message|>; empty: nobody's. */
static sl_span recipient(const sl_answer *a, size_t n) {
    for (size_t i = 0; i + 3 <= n; i++) {
        bool begins = i == 0 || sl_answer_is_space(a->w[i - 1]) || sl_answer_is_symbol(a->w[i - 1]);
        if (!begins || memcmp(a->w + i, "to=", 3) != 0) continue;
        size_t end = i + 3;
        while (end < n && !sl_answer_is_space(a->w[end]) && !sl_answer_is_symbol(a->w[end])) end++;
        return (sl_span){(const uint8_t *)a->w + i + 3, end - i - 3};
    }
    return (sl_span){0};
}

/* The tool that is asked, if it is one. */
static bool asks_tool(const sl_answer *a, size_t n, sl_span *name) {
    static const char prefix[] = "functions.";
    size_t skip = sizeof prefix - 1;
    *name = recipient(a, n);
    if (!a->o.tools || name->len == 0) return false;
    if (name->len > skip && memcmp(name->data, prefix, skip) == 0) {
        *name = (sl_span){name->data + skip, name->len - skip};
        return name->len <= SL_ANSWER_MAX_NAME;
    }
    return name->len <= SL_ANSWER_MAX_NAME && sl_tool_set_has(a->o.tools, *name);
}

/* Whether the last channel of the header is the answer's. */
static bool is_final(const sl_answer *a, size_t n) {
    static const char final[] = "final";
    size_t from = n;
    while (from > 0 && !is_at(a, from - 1, CHANNEL)) from--;
    if (from == 0) return true; /* no channel */
    size_t len = n - from;
    return len == 0 || (len >= 5 && memcmp(a->w + from, final, 5) == 0 &&
                        (len == 5 || sl_answer_is_space(a->w[from + 5]) ||
                         sl_answer_is_symbol(a->w[from + 5])));
}

/* The header is the window's first n bytes, <|message|> follows. */
static void begin_message(sl_answer *a, size_t n) {
    sl_span name;
    if (n > MAX_HEADER) {
        a->body = SL_ANSWER_REASONING;
    } else if (asks_tool(a, n, &name)) {
        memcpy(a->name, name.data, name.len);
        a->n_name = name.len;
        a->body = SL_ANSWER_CALL;
        sl_answer_begin_call(a, n);
        n = 0;
    } else {
        a->body = is_final(a, n) ? SL_ANSWER_TEXT : SL_ANSWER_REASONING;
    }
    sl_answer_drop(a, n + 1);
    a->at = 0;
    a->state = SL_STATE_BODY;
}

bool sl_answer_header_step(sl_answer *a) {
    a->opening = false;
    for (; a->at < a->len; a->at++) {
        if (is_at(a, a->at, MESSAGE)) {
            begin_message(a, a->at);
            return true;
        }
        if (!is_at(a, a->at, START) && !is_at(a, a->at, END)) continue;
        sl_answer_drop(a, a->at + 1); /* another one */
        a->at = 0;
        return true;
    }
    if (a->len > 2 * MAX_HEADER) { /* too long already */
        sl_answer_drop(a, a->len - MAX_HEADER - 1);
        a->at = a->len;
    }
    if (a->last) sl_answer_drop(a, a->len);
    return false;
}

/* Before any marker: whether what came is, or may become, a recipient behind the prompt's role. */
static bool is_header(const sl_answer *a, bool *more) {
    static const char to[] = " to=";
    size_t i = 0, n = a->len && a->w[0] == ' ' ? 0 : 1;
    for (; i < a->len && n + i < sizeof to - 1; i++)
        if (a->w[i] != to[n + i]) return false;
    while (i < a->len && i < MAX_HEADER && !sl_answer_is_space(a->w[i]) &&
           !sl_answer_is_symbol(a->w[i]))
        i++;
    while (i < a->len && sl_answer_is_space(a->w[i])) i++;
    *more = i == a->len;
    return *more ? i < MAX_HEADER : is_at(a, i, CHANNEL) || is_at(a, i, MESSAGE);
}

static void end_message(sl_answer *a) {
    if (a->begun) sl_answer_end_call(a);
    a->body = SL_ANSWER_REASONING;
}

static void show(sl_answer *a) {
    if (a->body == SL_ANSWER_CALL)
        sl_answer_arguments(a, a->w, a->at);
    else
        sl_answer_say(a, a->body, a->w, a->at);
    sl_answer_drop(a, a->at);
}

bool sl_answer_body_step(sl_answer *a) {
    bool more = false;
    if (a->opening && a->len > 0 && is_header(a, &more)) {
        if (more && !a->last) return false;
        a->state = more ? SL_STATE_BODY : SL_STATE_HEADER;
        a->opening = false;
        if (!more) return true;
    }
    if (a->len > 0) a->opening = false;
    while (a->at < a->len) {
        char c = a->w[a->at];
        if (!sl_answer_is_symbol(c)) {
            a->at++;
            continue;
        }
        bool channel = is_at(a, a->at, CHANNEL), message = is_at(a, a->at, MESSAGE);
        show(a);
        if (message) { /* of a message that has begun */
            sl_answer_drop(a, 1);
            continue;
        }
        if (!channel) sl_answer_drop(a, 1);
        end_message(a);
        a->at = channel ? 1 : 0;
        if (a->state != SL_STATE_DONE) a->state = SL_STATE_HEADER;
        return true;
    }
    show(a);
    if (a->last) end_message(a);
    return false;
}
