/* Templates to tokens. */
#include "jinja/jinja_int.h"

#include "base/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_BRACKETS 256u
#define MAX_NUMBER   64u

typedef struct lexer {
    sl_jinja *t;
    const char *s;
    size_t n, at;
    uint32_t line;
    size_t counted; /* lines are counted up to here */
    sl_jtok *tok;
    size_t n_tok, cap;
    char bracket[MAX_BRACKETS];
    size_t n_bracket;
    sl_jtok spare; /* written when there is no room */
    sl_status st;
    sl_err *err;
} lexer;

uint32_t sl_jhash(const char *s, size_t n) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)s[i]) * 16777619u;
    return h;
}

static void count_lines(lexer *l, size_t to) {
    for (; l->counted < to; l->counted++) l->line += l->s[l->counted] == '\n';
}

static void fail(lexer *l, sl_status code, const char *what) {
    if (l->st != SL_OK) return;
    count_lines(l, SL_MIN(l->at, l->n));
    l->st = sl_fail(l->err, code, "%s: line %u: %s", l->t->name, l->line, what);
}

static sl_jtok *add(lexer *l, sl_jtok_kind kind, const char *text, size_t n) {
    count_lines(l, l->at);
    if (!sl_jmem_room(&l->t->mem, (void **)&l->tok, l->n_tok, &l->cap, sizeof *l->tok)) {
        fail(l, SL_ERR_LIMIT, "template too large");
        return &l->spare;
    }
    sl_jtok *t = &l->tok[l->n_tok++];
    *t = (sl_jtok){.kind = kind, .line = l->line, .text = text, .n = n};
    return t;
}

static bool at(const lexer *l, size_t i, const char *what) {
    size_t n = strlen(what);
    return i <= l->n && n <= l->n - i && memcmp(l->s + i, what, n) == 0;
}

static size_t skip_space(const lexer *l, size_t i) {
    for (size_t k; i < l->n && (k = sl_jspace(l->s + i, l->n - i)) > 0;) i += k;
    return i;
}

/* Where text [from, to) ends without the white space at its end. */
static size_t end_of_text(const lexer *l, size_t from, size_t to) {
    while (to > from) {
        size_t k = 1;
        while (k < 4 && to - k > from && ((uint8_t)l->s[to - k] & 0xC0) == 0x80) k++;
        if (sl_jspace(l->s + to - k, k) != k) break;
        to -= k;
    }
    return to;
}

/* Template text before a tag with `sign`; blocks and comments alone on a line take its spaces. */
static void add_data(lexer *l, size_t from, size_t to, char sign, bool block) {
    if (sign == '-') {
        to = end_of_text(l, from, to);
    } else if (sign != '+' && block) {
        size_t bol = to;
        while (bol > from && l->s[bol - 1] != '\n') bol--;
        bool starts = bol > from || from == 0 || l->s[from - 1] == '\n';
        if (starts && end_of_text(l, bol, to) == bol) to = bol;
    }
    size_t keep = l->at;
    l->at = from;
    if (to > from) add(l, SL_JT_DATA, l->s + from, to - from);
    l->at = keep;
}

/* Past what follows the end of a block or comment: a newline, or with '-' all white space. */
static size_t after_end(const lexer *l, size_t i, char sign) {
    if (sign == '-') return skip_space(l, i);
    return sign != '+' && i < l->n && l->s[i] == '\n' ? i + 1 : i;
}

/* After "{#" and its sign. */
static void lex_comment(lexer *l) {
    size_t from = l->at;
    for (size_t i = from; i < l->n; i++) {
        if (!at(l, i, "#}")) continue;
        char sign = i > from && (l->s[i - 1] == '-' || l->s[i - 1] == '+') ? l->s[i - 1] : 0;
        l->at = after_end(l, i + 2, sign);
        return;
    }
    fail(l, SL_ERR_FORMAT, "a comment without an end");
}

/* Is `word` the whole of the block whose inside begins at i? Yields where the block ends. */
static bool is_block(const lexer *l, size_t i, const char *word, char *sign, size_t *end) {
    i = skip_space(l, i);
    if (!at(l, i, word)) return false;
    i = skip_space(l, i + strlen(word));
    *sign = at(l, i, "-%}") ? '-' : at(l, i, "+%}") ? '+' : 0;
    if (*sign) i++;
    if (!at(l, i, "%}")) return false;
    *end = i + 2;
    return true;
}

static char sign_at(const lexer *l, size_t i) {
    return i < l->n && (l->s[i] == '-' || l->s[i] == '+') ? l->s[i] : 0;
}

/* Everything up to endraw is text. */
static void lex_raw(lexer *l, size_t from) {
    for (size_t i = from; i < l->n; i++) {
        char sign = 0, close = 0;
        size_t end = 0;
        if (!at(l, i, "{%")) continue;
        sign = sign_at(l, i + 2);
        if (!is_block(l, i + 2 + (sign != 0), "endraw", &close, &end)) continue;
        l->at = i;
        add_data(l, from, i, sign, true);
        l->at = after_end(l, end, close);
        return;
    }
    fail(l, SL_ERR_FORMAT, "raw without endraw");
}

/* Text up to a tag, and the tag's opening. */
static void lex_text(lexer *l) {
    size_t from = l->at, i = from;
    while (i < l->n && !(l->s[i] == '{' && i + 1 < l->n && strchr("{%#", l->s[i + 1]))) i++;
    if (i >= l->n) {
        add_data(l, from, l->n, '+', false);
        l->at = l->n;
        return;
    }
    char what = l->s[i + 1], sign = sign_at(l, i + 2), close = 0;
    size_t inside = i + 2 + (sign != 0), end = 0;
    l->at = i;
    add_data(l, from, i, sign, what != '{');
    if (what == '%' && is_block(l, inside, "raw", &close, &end) && close != '+') {
        lex_raw(l, close == '-' ? skip_space(l, end) : end);
        return;
    }
    l->at = inside;
    if (what == '#')
        lex_comment(l);
    else
        add(l, what == '%' ? SL_JT_BLOCK : SL_JT_VAR, l->s + i, 2);
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c) ||
           (uint8_t)c >= 0x80;
}

/* Digits, each but the first after at most one underscore; returns where they end. */
static size_t digits(const lexer *l, size_t i) {
    while (i < l->n &&
           (is_digit(l->s[i]) || (l->s[i] == '_' && i + 1 < l->n && is_digit(l->s[i + 1]))))
        i++;
    return i;
}

static void lex_number(lexer *l) {
    char text[MAX_NUMBER];
    size_t from = l->at, i = digits(l, from), n = 0;
    bool real = false, after_dot = from > 0 && l->s[from - 1] == '.';
    int base = 10;
    if (l->s[from] == '0' && from + 1 < l->n && strchr("xXoObB", l->s[from + 1])) {
        base = (l->s[from + 1] | 32) == 'x' ? 16 : (l->s[from + 1] | 32) == 'o' ? 8 : 2;
        for (i = from + 2; i < l->n && is_name(l->s[i]) && (uint8_t)l->s[i] < 0x80;) i++;
    } else if (!after_dot) {
        if (i + 1 < l->n && l->s[i] == '.' && is_digit(l->s[i + 1]))
            real = true, i = digits(l, i + 1);
        size_t e = i + 1 + (i + 1 < l->n && (l->s[i + 1] == '+' || l->s[i + 1] == '-'));
        if (i < l->n && (l->s[i] | 32) == 'e' && e < l->n && is_digit(l->s[e]))
            real = true, i = digits(l, e);
    }
    for (size_t k = from + (base != 10 ? 2 : 0); k < i; k++)
        if (l->s[k] != '_' && n + 1 < sizeof text) text[n++] = l->s[k];
    text[n] = 0;
    char *end = text;
    errno = 0;
    int64_t value = real ? 0 : strtoll(text, &end, base);
    double f = real ? strtod(text, &end) : 0;
    if (*end || n == 0 || n + 1 >= sizeof text || (!real && errno))
        fail(l, SL_ERR_UNSUPPORTED, "a number that does not fit in 64 bits, or none");
    sl_jtok *t = add(l, real ? SL_JT_FLOAT : SL_JT_INT, l->s + from, i - from);
    t->i = value;
    t->f = f;
    l->at = i;
}

static size_t put_char(char *to, uint32_t c) {
    if (c < 0x80) return to[0] = (char)c, 1;
    if (c < 0x800) return to[0] = (char)(0xC0 | c >> 6), to[1] = (char)(0x80 | (c & 63)), 2;
    size_t n = c < 0x10000 ? 3 : 4;
    to[0] = (char)((n == 3 ? 0xE0 : 0xF0) | c >> (6 * (n - 1)));
    for (size_t i = 1; i < n; i++) to[i] = (char)(0x80 | (c >> (6 * (n - 1 - i)) & 63));
    return n;
}

/* An escape with `want` digits of base 16, or up to three of base 8, at *i. */
static size_t escaped_char(lexer *l, size_t *i, size_t end, size_t want, int base, char *to) {
    uint32_t c = 0;
    size_t n = 0;
    for (; n < want && *i < end; n++, ++*i) {
        char d = l->s[*i];
        uint32_t v = is_digit(d)                            ? (uint32_t)(d - '0')
                     : ((d | 32) >= 'a' && (d | 32) <= 'f') ? (uint32_t)((d | 32) - 87)
                                                            : 99;
        if (v >= (uint32_t)base) break;
        c = c * (uint32_t)base + v;
    }
    if ((base == 16 && n < want) || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
        fail(l, SL_ERR_FORMAT, "an escape in a string that is no character");
    return put_char(to, c <= 0x10FFFF ? c : 0xFFFD);
}

/* The string inside s[from..end) as Python's string literal; never longer than its source. */
static void lex_escapes(lexer *l, size_t from, size_t end, sl_jtok *t) {
    static const char plain[] = "n\nt\tr\ra\ab\bf\fv\v\\\\''\"\"";
    char *to = sl_jmem_take(&l->t->mem, end - from + 4, 1);
    size_t n = 0;
    if (!to) {
        fail(l, SL_ERR_LIMIT, "template too large");
        return;
    }
    for (size_t i = from; i < end;) {
        if (l->s[i] != '\\' || i + 1 >= end) {
            to[n++] = l->s[i++];
            continue;
        }
        char c = l->s[i + 1];
        const char *known = strchr(plain, c);
        i += 2;
        if (c == '\n') continue;
        if (c && known && (known - plain) % 2 == 0)
            to[n++] = known[1];
        else if (c == 'x' || c == 'u' || c == 'U')
            n += escaped_char(l, &i, end, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, to + n);
        else if (c >= '0' && c <= '7')
            i--, n += escaped_char(l, &i, end, 3, 8, to + n);
        else if (c == 'N')
            fail(l, SL_ERR_UNSUPPORTED, "a string with \\N{...} is not supported");
        else
            to[n++] = '\\', to[n++] = c;
    }
    t->text = to;
    t->n = n;
}

static void lex_string(lexer *l) {
    size_t from = l->at + 1, i = from;
    char quote = l->s[l->at];
    bool escapes = false;
    for (; i < l->n && l->s[i] != quote; i++)
        if (l->s[i] == '\\') escapes = true, i++;
    if (i >= l->n) {
        fail(l, SL_ERR_FORMAT, "a string without an end");
        return;
    }
    sl_jtok *t = add(l, SL_JT_STRING, l->s + from, i - from);
    if (escapes) lex_escapes(l, from, i, t);
    l->at = i + 1;
}

static void lex_operator(lexer *l) {
    static const struct {
        char text[3];
        int op;
    } two[] = {{"==", SL_JOP_EQ}, {"!=", SL_JOP_NE},  {"<=", SL_JOP_LE},
               {">=", SL_JOP_GE}, {"**", SL_JOP_POW}, {"//", SL_JOP_FLOORDIV}};
    char c = l->s[l->at];
    for (size_t i = 0; i < SL_LEN(two); i++) {
        if (!at(l, l->at, two[i].text)) continue;
        add(l, SL_JT_OP, l->s + l->at, 2)->op = two[i].op;
        l->at += 2;
        return;
    }
    if (!c || !strchr("+-*/%~[](){}<>=.:|,;", c)) {
        fail(l, SL_ERR_FORMAT, "a character that no expression has");
        return;
    }
    if (strchr("([{", c)) {
        if (l->n_bracket == MAX_BRACKETS) {
            fail(l, SL_ERR_LIMIT, "nested too deep");
            return;
        }
        l->bracket[l->n_bracket++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c) && (l->n_bracket == 0 || l->bracket[--l->n_bracket] != c)) {
        fail(l, SL_ERR_FORMAT, "a bracket closes what was not opened");
    }
    add(l, SL_JT_OP, l->s + l->at, 1)->op = c;
    l->at++;
}

/* One token of a tag; false at its end. */
static bool lex_inside(lexer *l, bool block) {
    const char *end = block ? "%}" : "}}";
    l->at = skip_space(l, l->at);
    if (l->at >= l->n) {
        fail(l, SL_ERR_FORMAT, "a tag without an end");
        return false;
    }
    char c = l->s[l->at], sign = c == '-' || (c == '+' && block) ? c : 0;
    if (l->n_bracket == 0 && at(l, l->at + (sign != 0), end)) {
        add(l, block ? SL_JT_BLOCK_END : SL_JT_VAR_END, l->s + l->at, 2);
        l->at += 2 + (sign != 0);
        if (block)
            l->at = after_end(l, l->at, sign);
        else if (sign)
            l->at = skip_space(l, l->at);
        return false;
    }
    if (is_digit(c)) {
        lex_number(l);
    } else if (is_name(c)) {
        size_t from = l->at, i = from;
        while (i < l->n && is_name(l->s[i])) i++;
        add(l, SL_JT_NAME, l->s + from, i - from);
        l->at = i;
    } else if (c == '\'' || c == '"') {
        lex_string(l);
    } else {
        lex_operator(l);
    }
    return l->st == SL_OK;
}

/* A copy with one kind of line end and without the last one. */
static bool normalise(lexer *l, sl_span source) {
    char *to = sl_jmem_take(&l->t->mem, source.len + 1, 1);
    if (!to) return false;
    for (size_t i = 0; i < source.len; i++) {
        char c = (char)source.data[i];
        if (c == '\r') {
            c = '\n';
            i += i + 1 < source.len && source.data[i + 1] == '\n';
        }
        to[l->n++] = c;
    }
    if (l->n && to[l->n - 1] == '\n') l->n--;
    l->s = to;
    return true;
}

sl_status sl_jlex(sl_jinja *t, sl_span source, sl_jtok **out, size_t *n, sl_err *err) {
    lexer l = {.t = t, .line = 1, .err = err};
    for (size_t i = 0, k; i < source.len; i += k)
        if ((k = sl_utf8_sequence((const char *)source.data + i, source.len - i)) == 0)
            return sl_fail(err, SL_ERR_FORMAT, "%s: not UTF-8 at byte %zu", t->name, i);
    if (!normalise(&l, source)) return sl_fail(err, SL_ERR_LIMIT, "%s: too large", t->name);
    while (l.st == SL_OK && l.at < l.n) {
        size_t before = l.n_tok;
        lex_text(&l);
        bool tag = l.n_tok > before && l.st == SL_OK &&
                   (l.tok[l.n_tok - 1].kind == SL_JT_BLOCK || l.tok[l.n_tok - 1].kind == SL_JT_VAR);
        l.n_bracket = 0;
        if (tag) {
            bool block = l.tok[l.n_tok - 1].kind == SL_JT_BLOCK;
            while (lex_inside(&l, block)) {
            }
        }
    }
    add(&l, SL_JT_END, "", 0);
    *out = l.tok;
    *n = l.n_tok;
    return l.st;
}
