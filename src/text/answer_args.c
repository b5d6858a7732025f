/* Arguments that are no JSON in the text: fields between markers, and Python's keywords. */
#include "text/answer_int.h"

#include <stdio.h>

#define MAX_KEY 1024u /* bytes of a field's name */

/* The inside of a JSON string. */
static void put_escaped(sl_answer *a, const char *text, size_t n) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    size_t start = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)text[i];
        char out[8];
        const char *at = c ? strchr(from, (char)c) : NULL;
        if (c >= 0x20 && !at) continue;
        sl_answer_arguments(a, text + start, i - start);
        start = i + 1;
        int k = at ? snprintf(out, sizeof out, "\\%c", to[at - from])
                   : snprintf(out, sizeof out, "\\u%04x", c);
        sl_answer_arguments(a, out, (size_t)k);
    }
    sl_answer_arguments(a, text + start, n - start);
}

static void put_quoted(sl_answer *a, const char *text, size_t n) {
    sl_answer_arguments(a, "\"", 1);
    put_escaped(a, text, n);
    sl_answer_arguments(a, "\"", 1);
}

/* ---- fields ---- */

/* Reads on to the literal. PART: it may begin at a->at. */
static sl_match find_literal(sl_answer *a, sl_span literal) {
    for (; a->at < a->len; a->at++) {
        sl_match m = sl_answer_match(a, a->at, literal);
        if (m != SL_MATCH_NONE) return m;
    }
    return SL_MATCH_NONE;
}

sl_op_result sl_answer_key(sl_answer *a, sl_span literal) {
    sl_value_state *v = &a->value;
    sl_match m = find_literal(a, literal);
    if (a->at > MAX_KEY) return SL_OP_FAIL;
    if (m != SL_MATCH_FULL) return SL_OP_MORE;
    size_t from = 0, to = a->at;
    while (from < to && sl_answer_is_space(a->w[from])) from++;
    while (to > from && sl_answer_is_space(a->w[to - 1])) to--;
    const sl_span key = {(const uint8_t *)a->w + from, to - from};
    unsigned kinds =
        sl_tool_set_kinds(a->o.tools, (sl_span){(const uint8_t *)a->name, a->n_name}, key);
    if (v->any) sl_answer_arguments(a, ", ", 2);
    put_quoted(a, (const char *)key.data, key.len);
    sl_answer_arguments(a, ": ", 2);
    *v = (sl_value_state){
        .on = true, .any = true, .kinds = kinds, .shows = kinds == 1u << SL_JSON_STRING};
    sl_answer_drop(a, a->at + literal.len);
    a->at = 0;
    return SL_OP_DONE;
}

/* Words that other kinds than text have, as some write them. */
static const char *word_of(const char *text, size_t n, unsigned kinds) {
    static const struct {
        const char *text, *json;
        sl_json_kind kind;
    } words[] = {{"True", "true", SL_JSON_BOOL},
                 {"False", "false", SL_JSON_BOOL},
                 {"None", "null", SL_JSON_NULL}};
    for (size_t i = 0; i < SL_LEN(words); i++)
        if (n == strlen(words[i].text) && !memcmp(text, words[i].text, n) &&
            (kinds >> words[i].kind & 1))
            return words[i].json;
    return NULL;
}

/* A value that may be something else than text: JSON where it is some of an allowed kind. */
static void put_value(sl_answer *a, const char *text, size_t n) {
    unsigned kinds = a->value.kinds;
    sl_json_doc *doc = NULL;
    sl_err err = {0};
    const char *word = word_of(text, n, kinds);
    sl_json_kind kind = SL_JSON_ABSENT;
    if (!word && sl_json_parse_within("value", (sl_span){(const uint8_t *)text, n},
                                      (size_t)64 << 20, &doc, &err) == SL_OK)
        kind = sl_json_kind_of(sl_json_root(doc));
    sl_json_doc_free(doc);
    bool text_fits = kinds >> SL_JSON_STRING & 1;
    bool fits = kinds == 0 || (kinds >> kind & 1) || !text_fits;
    if (word)
        sl_answer_arguments(a, word, strlen(word));
    else if (kind != SL_JSON_ABSENT && fits && !(kind == SL_JSON_STRING && text_fits))
        sl_answer_arguments(a, text, n);
    else
        put_quoted(a, text, n);
}

/* What is in the window up to n belongs to a text; a newline at its end may be the format's. */
static void show_text(sl_answer *a, size_t n, bool lines, bool over) {
    size_t skip = 0;
    sl_value_state *v = &a->value;
    if (!v->begun) {
        if (n == 0 && !over) return;
        sl_answer_arguments(a, "\"", 1);
        skip = lines && n > 0 && a->w[0] == '\n';
        v->begun = true;
    }
    size_t end = lines && n > skip && a->w[n - 1] == '\n' ? n - 1 : n;
    put_escaped(a, a->w + skip, end - skip);
    sl_answer_drop(a, over ? n : end);
}

sl_op_result sl_answer_value(sl_answer *a, sl_span literal, bool lines) {
    sl_value_state *v = &a->value;
    sl_match m = find_literal(a, literal);
    if (m != SL_MATCH_FULL) {
        if (v->shows) show_text(a, a->at, lines, false);
        if (a->last && !v->shows) { /* it was cut off: what came of it */
            sl_answer_arguments(a, a->w, a->at);
            sl_answer_drop(a, a->at);
        }
        return SL_OP_MORE;
    }
    size_t n = a->at;
    if (v->shows) {
        show_text(a, n, lines, true);
        sl_answer_arguments(a, "\"", 1);
        sl_answer_drop(a, literal.len);
    } else {
        size_t from = lines && n > 0 && a->w[0] == '\n', to = n;
        if (lines && to > from && a->w[to - 1] == '\n') to--;
        put_value(a, a->w + from, to - from);
        sl_answer_drop(a, n + literal.len);
    }
    a->at = 0;
    v->on = v->begun = false;
    return SL_OP_DONE;
}

/* ---- Python ---- */

enum { P_NAME, P_IN_NAME, P_EQUALS, P_VALUE, P_STRING, P_ESCAPE, P_WORD, P_NEXT };

/* It is certain that this is a call: a keyword's value comes, or it has no arguments. */
static void begin(sl_answer *a) {
    if (a->begun) return;
    sl_answer_begin_call(a, a->at);
    sl_answer_arguments(a, "{", 1);
}

/* What comes next is an item: the comma before it, if there is one. */
static void before_item(sl_answer *a) {
    if (a->python.comma) sl_answer_arguments(a, ", ", 2);
    a->python.comma = false;
}

static bool in_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-' || c == '+' || (uint8_t)c >= 0x80;
}

static bool add_word(sl_python_state *p, char c) {
    if (p->n_word == sizeof p->word || sl_answer_is_symbol(c)) return false;
    p->word[p->n_word++] = c;
    return true;
}

static void put_word(sl_answer *a) {
    sl_python_state *p = &a->python;
    const char *json = word_of(p->word, p->n_word, ~0u);
    if (json)
        sl_answer_arguments(a, json, strlen(json));
    else
        sl_answer_arguments(a, p->word, p->n_word);
    p->n_word = 0;
}

/* After an item: the next one, or the end of its list. */
static bool next_item(sl_answer *a, char c, bool *whole) {
    sl_python_state *p = &a->python;
    char awaited = p->depth ? p->stack[p->depth - 1] : ')';
    if (c == ',') {
        p->comma = true;
        p->key = awaited == '}';
        p->where = p->depth ? P_VALUE : P_NAME;
        return true;
    }
    if (c == ':' && p->key && awaited == '}') {
        sl_answer_arguments(a, ": ", 2);
        p->key = false;
        p->where = P_VALUE;
        return true;
    }
    if (c != awaited) return false;
    p->comma = p->key = false;
    p->where = P_NEXT;
    sl_answer_arguments(a, p->depth && c != ')' ? &c : p->depth ? "]" : "}", 1);
    *whole = p->depth == 0;
    if (p->depth) p->depth--;
    return true;
}

static bool begin_value(sl_answer *a, char c, bool *whole) {
    sl_python_state *p = &a->python;
    bool bracket = c == '[' || c == '{' || c == '(';
    char awaited = p->depth ? p->stack[p->depth - 1] : 0;
    if (c == awaited) return next_item(a, c, whole); /* empty, or a comma at the end */
    if (p->key && c != '"' && c != '\'') return false;
    if (bracket && p->depth == SL_ANSWER_MAX_NESTED) return false;
    before_item(a);
    if (bracket) {
        p->stack[p->depth++] = c == '[' ? ']' : c == '{' ? '}' : ')';
        p->key = c == '{';
        sl_answer_arguments(a, c == '{' ? "{" : "[", 1);
        return true;
    }
    if (c == '"' || c == '\'') {
        p->where = P_STRING;
        p->quote = c;
        sl_answer_arguments(a, "\"", 1);
        return true;
    }
    p->where = P_WORD;
    return in_word(c) && add_word(p, c);
}

static bool string_byte(sl_answer *a, char c) {
    sl_python_state *p = &a->python;
    if (sl_answer_is_symbol(c)) return false;
    if (p->digits) { /* of \u or \x, as JSON writes them */
        bool hex = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f');
        p->digits--;
        if (hex) sl_answer_arguments(a, &c, 1);
        return hex;
    }
    if (c == '\\') {
        p->where = P_ESCAPE;
    } else if (c == p->quote) {
        sl_answer_arguments(a, "\"", 1);
        p->where = P_NEXT;
    } else {
        put_escaped(a, &c, 1);
    }
    return true;
}

static void escape_byte(sl_answer *a, char c) {
    static const char from[] = "nrtbf\\", to[] = "\n\r\t\b\f\\";
    sl_python_state *p = &a->python;
    const char *at = c ? strchr(from, c) : NULL;
    p->where = P_STRING;
    if (c == 'u' || c == 'x') {
        sl_answer_arguments(a, c == 'u' ? "\\u" : "\\u00", c == 'u' ? 2 : 4);
        p->digits = c == 'u' ? 4 : 2;
    } else if (at) {
        put_escaped(a, &to[at - from], 1);
    } else if (c != '\n') { /* a line that goes on */
        if (c != '"' && c != '\'') put_escaped(a, "\\", 1);
        put_escaped(a, &c, 1);
    }
}

static bool name_byte(sl_answer *a, char c) {
    sl_python_state *p = &a->python;
    if (p->where == P_IN_NAME && in_word(c)) return add_word(p, c);
    if (p->where == P_IN_NAME) p->where = P_EQUALS;
    if (sl_answer_is_space(c)) return true;
    if (c != '=') return false;
    begin(a);
    before_item(a);
    put_quoted(a, p->word, p->n_word);
    sl_answer_arguments(a, ": ", 2);
    p->n_word = 0;
    p->where = P_VALUE;
    return true;
}

/* One byte; false: no arguments of Python's. */
static bool python_byte(sl_answer *a, char c, bool *whole) {
    sl_python_state *p = &a->python;
    if (p->where == P_WORD) {
        if (in_word(c)) return add_word(p, c);
        put_word(a);
        p->where = P_NEXT;
    }
    bool free = p->where == P_NAME || p->where == P_VALUE || p->where == P_NEXT;
    if (free && sl_answer_is_space(c)) return true;
    switch (p->where) {
    case P_NAME:
        if (c == ')') {
            begin(a);
            return next_item(a, c, whole);
        }
        p->where = P_IN_NAME;
        return in_word(c) && add_word(p, c);
    case P_IN_NAME:
    case P_EQUALS:
        return name_byte(a, c);
    case P_VALUE:
        return begin_value(a, c, whole);
    case P_STRING:
        return string_byte(a, c);
    case P_ESCAPE:
        if (sl_answer_is_symbol(c)) return false;
        escape_byte(a, c);
        return true;
    default:
        if (p->key && c != ':') return false; /* a set */
        return next_item(a, c, whole);
    }
}

sl_op_result sl_answer_python(sl_answer *a) {
    bool whole = false;
    while (a->at < a->len && !whole) {
        if (!python_byte(a, a->w[a->at], &whole)) return SL_OP_FAIL;
        a->at++;
    }
    if (a->begun) sl_answer_drop(a, a->at);
    if (a->at > SL_ANSWER_MAX_HEAD) return SL_OP_FAIL;
    return whole ? SL_OP_DONE : SL_OP_MORE;
}
