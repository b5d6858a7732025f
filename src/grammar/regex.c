/* The parser of regular expressions. A pattern becomes a tree first: what `^` and `$` mean depends
 * on what stands around them, so the tree is built from its end with what follows in hand. */
#include "grammar/regex.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <stdio.h>

typedef enum kind { N_EMPTY, N_CHAR, N_SEQ, N_ALT, N_REP, N_BEGIN, N_END } kind;

typedef struct node {
    kind kind;
    bool anchors;            /* any inside */
    bool can_empty;          /* matches the empty text (anchors do) */
    bool is_empty;           /* matches nothing else */
    uint32_t a, b, min, max; /* children, counts; a of N_CHAR: expression */
} node;

typedef struct parser {
    sl_rx_store *s;
    sl_span in;
    size_t at;
    sl_alphabet alphabet;
    node *v;
    size_t n, cap;
    unsigned depth;
    sl_err *err;
    sl_status st;
} parser;

static void bad(parser *p, sl_status st, const char *what) {
    if (p->st == SL_OK) p->st = sl_fail(p->err, st, "regex: %s at byte %zu", what, p->at);
}

static uint32_t add(parser *p, node n) {
    if (p->st != SL_OK) return 0;
    if (p->n == p->cap) {
        const size_t cap = p->cap ? 2 * p->cap : 64;
        node *v = sl_grow(p->v, p->cap, cap, sizeof *v);
        if (!v) {
            p->st = sl_fail(p->err, SL_ERR_NOMEM, "out of memory for a regex");
            return 0;
        }
        p->v = v;
        p->cap = cap;
    }
    p->v[p->n] = n;
    return (uint32_t)p->n++;
}

static int peek(const parser *p) {
    return p->at < p->in.len ? p->in.data[p->at] : -1;
}

static bool take(parser *p, const char *text) {
    const size_t n = strlen(text);
    if (n > p->in.len - p->at || memcmp(p->in.data + p->at, text, n) != 0) return false;
    p->at += n;
    return true;
}

static uint32_t take_char(parser *p) {
    const char *s = (const char *)p->in.data + p->at;
    const size_t n = sl_utf8_sequence(s, p->in.len - p->at);
    const uint8_t *b = p->in.data + p->at;
    if (n == 0) return bad(p, SL_ERR_FORMAT, "bytes that are not UTF-8"), 0;
    uint32_t c = n == 1 ? b[0] : b[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) c = c << 6 | (b[i] & 0x3f);
    p->at += n;
    return c;
}

static bool take_hex(parser *p, unsigned n, uint32_t *out) {
    uint32_t v = 0;
    if (n > p->in.len - p->at) return false;
    for (unsigned i = 0; i < n; i++) {
        const int c = p->in.data[p->at + i] | 0x20;
        const int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (d < 0) return false;
        v = v * 16 + (uint32_t)d;
    }
    p->at += n;
    *out = v;
    return true;
}

static void add_range(parser *p, sl_chars *set, uint32_t from, uint32_t to) {
    if (p->st == SL_OK && !sl_chars_add(set, from, to))
        p->st = sl_fail(p->err, SL_ERR_NOMEM, "out of memory for a regex");
}

static void add_spaces(parser *p, sl_chars *set) {
    static const sl_char_range spaces[] = {
        {9, 13},          {0x20, 0x20},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    for (size_t i = 0; i < SL_LEN(spaces); i++) add_range(p, set, spaces[i].from, spaces[i].to);
}

/* \d, \w, \s and their opposites; false: another escape. */
static bool class_escape(parser *p, sl_chars *set) {
    const int c = peek(p), low = c | 0x20;
    sl_chars own = {0};
    if (low != 'd' && low != 'w' && low != 's') return false;
    p->at++;
    if (low == 's')
        add_spaces(p, &own);
    else
        add_range(p, &own, '0', '9');
    if (low == 'w') {
        add_range(p, &own, 'A', 'Z');
        add_range(p, &own, 'a', 'z');
        add_range(p, &own, '_', '_');
    }
    if (p->st == SL_OK && !sl_chars_settle(&own, c != low))
        p->st = sl_fail(p->err, SL_ERR_NOMEM, "out of memory for a regex");
    for (size_t i = 0; p->st == SL_OK && i < own.n; i++)
        add_range(p, set, own.v[i].from, own.v[i].to);
    sl_chars_free(&own);
    return true;
}

/* A character behind a backslash. */
static uint32_t char_escape(parser *p) {
    static const char from[] = "tnrfv0a", to[] = "\t\n\r\f\v\0\a";
    uint32_t c = 0, low;
    if (take(p, "x")) {
        if (!take_hex(p, 2, &c)) bad(p, SL_ERR_FORMAT, "\\x without two hexadecimal digits");
        return c;
    }
    if (take(p, "u{")) {
        while (peek(p) != '}' && c <= SL_CHAR_LAST)
            if (!take_hex(p, 1, &low))
                break;
            else
                c = c * 16 + low;
        if (!take(p, "}") || c > SL_CHAR_LAST) bad(p, SL_ERR_FORMAT, "\\u{} without a character");
        return c;
    }
    if (take(p, "u")) {
        if (!take_hex(p, 4, &c)) return bad(p, SL_ERR_FORMAT, "\\u without four digits"), 0;
        if (c >= 0xd800 && c < 0xdc00) {
            if (!take(p, "\\u") || !take_hex(p, 4, &low) || low < 0xdc00 || low > 0xdfff)
                return bad(p, SL_ERR_FORMAT, "half of a surrogate pair"), 0;
            c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
        } else if (c >= 0xdc00 && c <= 0xdfff) {
            bad(p, SL_ERR_FORMAT, "half of a surrogate pair");
        }
        return c;
    }
    const int b = peek(p);
    if (b == 'c') {
        p->at++;
        const int letter = peek(p) | 0x20;
        if (letter < 'a' || letter > 'z') return bad(p, SL_ERR_FORMAT, "\\c without a letter"), 0;
        p->at++;
        return (uint32_t)(letter - 'a' + 1);
    }
    const char *known = b > 0 ? memchr(from, b, sizeof from - 1) : NULL;
    if (known) {
        p->at++;
        if (b == '0' && peek(p) >= '0' && peek(p) <= '9')
            bad(p, SL_ERR_UNSUPPORTED, "an octal escape is not supported");
        return (uint8_t)to[known - from];
    }
    if (b >= '1' && b <= '9')
        return bad(p, SL_ERR_UNSUPPORTED, "a backreference is not supported"), 0;
    if (b == 'p' || b == 'P')
        return bad(p, SL_ERR_UNSUPPORTED, "\\p (properties of Unicode) is not supported"), 0;
    if (b == 'b' || b == 'B')
        return bad(p, SL_ERR_UNSUPPORTED, "\\b (a word boundary) is not supported"), 0;
    if (b == 'k') return bad(p, SL_ERR_UNSUPPORTED, "a backreference is not supported"), 0;
    if ((b | 0x20) >= 'a' && (b | 0x20) <= 'z')
        return bad(p, SL_ERR_UNSUPPORTED, "an escape of this letter is not supported"), 0;
    if (b < 0) return bad(p, SL_ERR_FORMAT, "a backslash at the end"), 0;
    return take_char(p);
}

static uint32_t of_set(parser *p, sl_chars *set, bool invert) {
    uint32_t n = 0;
    if (p->st == SL_OK && !sl_chars_settle(set, invert))
        p->st = sl_fail(p->err, SL_ERR_NOMEM, "out of memory for a regex");
    if (p->st == SL_OK)
        n = add(p, (node){.kind = N_CHAR, .a = sl_rx_char_of(p->s, set, p->alphabet)});
    sl_chars_free(set);
    return n;
}

static uint32_t parse_class(parser *p) {
    sl_chars set = {0};
    const bool invert = take(p, "^");
    for (bool first = true; p->st == SL_OK; first = false) {
        if (peek(p) < 0) {
            bad(p, SL_ERR_FORMAT, "a class without ]");
            break;
        }
        /* [] matches nothing and [^] everything in ECMA 262; Python reads the ] as a character */
        if (first && peek(p) == ']') {
            bad(p, SL_ERR_UNSUPPORTED, "a class that begins with ] is not supported");
            break;
        }
        if (take(p, "]")) break;
        if (take(p, "[:")) bad(p, SL_ERR_UNSUPPORTED, "a named class [:name:] is not supported");
        if (take(p, "&&") || take(p, "--"))
            bad(p, SL_ERR_UNSUPPORTED, "an operation on classes is not supported");
        uint32_t from, to;
        if (take(p, "\\")) {
            if (class_escape(p, &set)) continue;
            from = take(p, "b") ? '\b' : char_escape(p);
        } else {
            from = take_char(p);
        }
        to = from;
        if (peek(p) == '-' && p->at + 1 < p->in.len && p->in.data[p->at + 1] != ']') {
            p->at++;
            if (take(p, "\\")) {
                sl_chars right = {0};
                if (class_escape(p, &right))
                    bad(p, SL_ERR_FORMAT, "a class at the end of a range");
                else
                    to = take(p, "b") ? '\b' : char_escape(p);
                sl_chars_free(&right);
            } else {
                to = take_char(p);
            }
        }
        if (to < from) bad(p, SL_ERR_FORMAT, "a range whose end comes before its beginning");
        add_range(p, &set, from, to);
    }
    return of_set(p, &set, invert);
}

static uint32_t parse_alternatives(parser *p);

static uint32_t parse_group(parser *p) {
    if (take(p, "?")) {
        if (take(p, "=") || take(p, "!") || take(p, "<=") || take(p, "<!"))
            return bad(p, SL_ERR_UNSUPPORTED, "lookaround is not supported"), 0;
        if (take(p, "P<") || take(p, "<")) {
            while (peek(p) >= 0 && peek(p) != '>') p->at++;
            if (!take(p, ">")) bad(p, SL_ERR_FORMAT, "the name of a group without >");
        } else if (!take(p, ":")) {
            return bad(p, SL_ERR_UNSUPPORTED, "a group with flags is not supported"), 0;
        }
    }
    if (++p->depth > SL_REGEX_MAX_DEPTH)
        return p->st =
                   sl_fail(p->err, SL_ERR_LIMIT, "regex: groups nested deeper than %u at byte %zu",
                           SL_REGEX_MAX_DEPTH, p->at),
               0;
    const uint32_t n = parse_alternatives(p);
    p->depth--;
    if (!take(p, ")")) bad(p, SL_ERR_FORMAT, "a group without )");
    return n;
}

static uint32_t parse_atom(parser *p) {
    sl_chars set = {0};
    if (take(p, "(")) return parse_group(p);
    if (take(p, "[")) return parse_class(p);
    if (take(p, "^") || take(p, "\\A"))
        return add(p,
                   (node){.kind = N_BEGIN, .anchors = true, .can_empty = true, .is_empty = true});
    if (take(p, "$") || take(p, "\\Z") || take(p, "\\z"))
        return add(p, (node){.kind = N_END, .anchors = true, .can_empty = true, .is_empty = true});
    if (take(p, ".")) { /* all but ends of lines */
        add_range(p, &set, '\n', '\n');
        add_range(p, &set, '\r', '\r');
        add_range(p, &set, 0x2028, 0x2029);
        return of_set(p, &set, true);
    }
    if (take(p, "\\")) {
        if (!class_escape(p, &set)) {
            const uint32_t c = char_escape(p);
            add_range(p, &set, c, c);
        }
        return of_set(p, &set, false);
    }
    const int b = peek(p);
    if (b == '*' || b == '+' || b == '?') return bad(p, SL_ERR_FORMAT, "nothing to repeat"), 0;
    const uint32_t c = take_char(p);
    add_range(p, &set, c, c);
    return of_set(p, &set, false);
}

static bool take_count(parser *p, uint32_t *out) {
    uint64_t v = 0;
    const size_t from = p->at;
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        if (v <= UINT32_MAX) v = v * 10 + (uint64_t)(peek(p) - '0');
    if (p->at == from) return false;
    if (v > SL_REGEX_MAX_REPEAT && p->st == SL_OK)
        p->st = sl_fail(p->err, SL_ERR_LIMIT, "regex: a repetition of %llu at byte %zu, limit %u",
                        (unsigned long long)v, from, SL_REGEX_MAX_REPEAT);
    *out = (uint32_t)SL_MIN(v, SL_REGEX_MAX_REPEAT);
    return true;
}

/* Counts behind an atom; false: none. */
static bool parse_counts(parser *p, uint32_t *min, uint32_t *max) {
    const size_t from = p->at;
    *min = 0;
    *max = SL_RX_MANY;
    if (take(p, "*")) return true;
    if (take(p, "+")) return *min = 1, true;
    if (take(p, "?")) return *max = 1, true;
    if (!take(p, "{")) return false;
    const bool low = take_count(p, min);
    *max = low ? *min : SL_RX_MANY;
    if (low && take(p, ",") && !take_count(p, max)) *max = SL_RX_MANY;
    if (!low || !take(p, "}")) {
        p->at = from;
        bad(p, SL_ERR_UNSUPPORTED, "a { that begins no count must be escaped");
        return false;
    }
    if (*max < *min) bad(p, SL_ERR_FORMAT, "a repetition whose end comes before its beginning");
    return true;
}

static uint32_t parse_sequence(parser *p) {
    uint32_t seq = add(p, (node){.kind = N_EMPTY, .can_empty = true, .is_empty = true});
    while (p->st == SL_OK && peek(p) >= 0 && peek(p) != '|' && peek(p) != ')') {
        uint32_t atom = parse_atom(p), min, max;
        if (p->st == SL_OK && parse_counts(p, &min, &max)) {
            const node inner = p->v[atom];
            if (inner.anchors) bad(p, SL_ERR_UNSUPPORTED, "a repeated anchor is not supported");
            if (take(p, "+")) bad(p, SL_ERR_UNSUPPORTED, "possessive repetition is not supported");
            (void)take(p, "?");
            if (peek(p) == '*' || peek(p) == '+' || peek(p) == '?' || peek(p) == '{')
                bad(p, SL_ERR_FORMAT, "a repetition of a repetition");
            atom = add(p, (node){.kind = N_REP,
                                 .can_empty = min == 0 || inner.can_empty,
                                 .is_empty = max == 0 || inner.is_empty,
                                 .a = atom,
                                 .min = min,
                                 .max = max});
        }
        if (p->st != SL_OK) break;
        const node x = p->v[seq], y = p->v[atom];
        seq = x.kind == N_EMPTY ? atom
                                : add(p, (node){.kind = N_SEQ,
                                                .anchors = x.anchors || y.anchors,
                                                .can_empty = x.can_empty && y.can_empty,
                                                .is_empty = x.is_empty && y.is_empty,
                                                .a = seq,
                                                .b = atom});
    }
    return seq;
}

static uint32_t parse_alternatives(parser *p) {
    uint32_t alt = parse_sequence(p);
    while (p->st == SL_OK && take(p, "|")) {
        const uint32_t next = parse_sequence(p);
        if (p->st != SL_OK) break;
        const node x = p->v[alt], y = p->v[next];
        alt = add(p, (node){.kind = N_ALT,
                            .anchors = x.anchors || y.anchors,
                            .can_empty = x.can_empty || y.can_empty,
                            .is_empty = x.is_empty && y.is_empty,
                            .a = alt,
                            .b = next});
    }
    return alt;
}

/* A tree without anchors. Sequences and alternatives lean to the left: those are loops. */
static sl_rx plain(parser *p, uint32_t at) {
    const node n = p->v[at];
    sl_rx_list list = {0};
    sl_rx e = SL_RX_EPS;
    switch (n.kind) {
    case N_CHAR:
        return n.a;
    case N_REP:
        return sl_rx_rep(p->s, plain(p, n.a), n.min, n.max);
    case N_SEQ:
        for (; p->v[at].kind == N_SEQ; at = p->v[at].a)
            e = sl_rx_cat(p->s, plain(p, p->v[at].b), e);
        return sl_rx_cat(p->s, plain(p, at), e);
    case N_ALT:
        for (; p->v[at].kind == N_ALT; at = p->v[at].a)
            sl_rx_list_add(p->s, &list, plain(p, p->v[at].b));
        sl_rx_list_add(p->s, &list, plain(p, at));
        return sl_rx_or_list(p->s, &list);
    default:
        return SL_RX_EPS;
    }
}

static sl_rx follow(parser *p, uint32_t at, bool begin, sl_rx after);

/* The right side of a sequence, of which nothing but the text of `left` goes before. */
static sl_rx follow_right(parser *p, uint32_t at, const node *left, bool begin, sl_rx after) {
    if (!begin || left->is_empty || !left->can_empty || !p->v[at].anchors)
        return follow(p, at, begin && left->is_empty, after);
    /* whether ^ holds here depends on the text: without ^ it does not matter */
    const sl_rx e = follow(p, at, true, after);
    if (e != follow(p, at, false, after))
        bad(p, SL_ERR_UNSUPPORTED, "^ behind what may be empty is not supported");
    return e;
}

/* The tree, then `after`; `begin`: no text has gone before. */
static sl_rx follow(parser *p, uint32_t at, bool begin, sl_rx after) {
    const node n = p->v[at];
    if (!n.anchors) return sl_rx_cat(p->s, plain(p, at), after);
    if (n.kind == N_BEGIN) return begin ? after : SL_RX_NONE;
    if (n.kind == N_END) return sl_rx_nullable(p->s, after) ? SL_RX_EPS : SL_RX_NONE;
    if (n.kind == N_ALT) {
        sl_rx_list list = {0};
        for (; p->v[at].kind == N_ALT; at = p->v[at].a)
            sl_rx_list_add(p->s, &list, follow(p, p->v[at].b, begin, after));
        sl_rx_list_add(p->s, &list, follow(p, at, begin, after));
        return sl_rx_or_list(p->s, &list);
    }
    for (; p->v[at].kind == N_SEQ; at = p->v[at].a)
        after = follow_right(p, p->v[at].b, &p->v[p->v[at].a], begin, after);
    return follow(p, at, begin, after);
}

sl_status sl_regex_parse(sl_rx_store *s, sl_span pattern, sl_alphabet alphabet, bool search,
                         sl_rx *out, sl_err *err) {
    parser p = {.s = s, .in = pattern, .alphabet = alphabet, .err = err};
    *out = SL_RX_NONE;
    if (pattern.len > SL_REGEX_MAX_BYTES)
        return sl_fail(err, SL_ERR_LIMIT, "regex: %zu bytes, limit %u", pattern.len,
                       SL_REGEX_MAX_BYTES);
    const uint32_t root = parse_alternatives(&p);
    if (p.st == SL_OK && p.at < pattern.len) bad(&p, SL_ERR_FORMAT, "a ) without (");
    if (p.st == SL_OK && search) {
        const sl_rx any = sl_rx_any_char(s, alphabet), rest = sl_rx_rep(s, any, 0, SL_RX_MANY);
        const sl_rx later = sl_rx_cat(s, rest, follow(&p, root, false, rest));
        *out = sl_rx_or2(s, p.v[root].anchors ? follow(&p, root, true, rest) : SL_RX_NONE, later);
    } else if (p.st == SL_OK) {
        *out = follow(&p, root, true, SL_RX_EPS);
    }
    sl_free(p.v);
    return p.st == SL_OK ? sl_rx_status(s, err) : p.st;
}
