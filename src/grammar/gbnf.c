/* GBNF as llama.cpp has it: rules of characters, classes, groups and counts. A rule that does not
 * come back to itself is regular and becomes one text as long as it stays small; the others call
 * each other. */
#include "grammar/chars.h"
#include "grammar/grammar_int.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <stdio.h>

#define MAX_RULES  20000u
#define MAX_DEPTH  100u    /* groups inside one another */
#define MAX_REPEAT 100000u /* of a text */
#define MAX_COPIES 2000u   /* of what calls rules */
#define MAX_INLINE 4000u   /* nodes of a rule that becomes one text */
#define MAX_CHAIN  200u    /* rules that become text inside one another */

typedef enum kind { N_EMPTY, N_CHAR, N_RULE, N_SEQ, N_ALT, N_REP } kind;

typedef struct node {
    kind kind;
    uint32_t a, b, min, max; /* a of N_CHAR: expression, of N_RULE: its number */
} node;

typedef struct rule {
    sl_span name;
    bool defined;
    uint32_t body;
    uint8_t state; /* of the search for circles: 0 new, 1 on the way, 2 done */
    bool regular;
    uint32_t size, chain;
    sl_rx text;   /* of a regular one; */
    bool made;    /* then it is there */
    uint32_t net; /* otherwise 1 more than its rule in the grammar */
} rule;

typedef struct parser {
    sl_grammar *g;
    sl_span in;
    size_t at;
    unsigned line, depth;
    node *v;
    size_t n, cap;
    rule *rules;
    size_t n_rules, cap_rules;
    uint8_t *text; /* of the literal that is read */
    size_t n_text, cap_text;
    sl_err *err;
    sl_status st;
} parser;

static uint32_t bad(parser *p, sl_status st, const char *what) {
    if (p->st == SL_OK) p->st = sl_fail(p->err, st, "grammar: line %u: %s", p->line, what);
    return 0;
}

static uint32_t add(parser *p, node n) {
    if (p->st == SL_OK && !sl_grammar_room(p->g, (void **)&p->v, &p->cap, p->n + 1, sizeof n))
        p->st = sl_grammar_status(p->g, p->err);
    if (p->st != SL_OK) return 0;
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

/* Blanks and comments; ends of lines only where the rule surely goes on. */
static void skip(parser *p, bool lines) {
    for (;; p->at++) {
        const int b = peek(p);
        if (b == '#') {
            while (peek(p) >= 0 && peek(p) != '\n' && peek(p) != '\r') p->at++;
            p->at--;
        } else if (b == '\n' || b == '\r') {
            if (!lines) return;
            p->line += b == '\n';
        } else if (b != ' ' && b != '\t') {
            return;
        }
    }
}

static bool is_name(int b) {
    return (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || (b >= '0' && b <= '9') || b == '-' ||
           b == '_';
}

static uint32_t find_rule(parser *p, sl_span name) {
    for (size_t i = 0; i < p->n_rules; i++)
        if (p->rules[i].name.len == name.len && !memcmp(p->rules[i].name.data, name.data, name.len))
            return (uint32_t)i;
    if (p->n_rules >= MAX_RULES) {
        if (p->st == SL_OK)
            p->st = sl_fail(p->err, SL_ERR_LIMIT, "grammar: line %u: more than %u rules (limit)",
                            p->line, MAX_RULES);
        return 0;
    }
    if (!sl_grammar_room(p->g, (void **)&p->rules, &p->cap_rules, p->n_rules + 1,
                         sizeof *p->rules)) {
        p->st = sl_grammar_status(p->g, p->err);
        return 0;
    }
    p->rules[p->n_rules] = (rule){.name = name};
    return (uint32_t)p->n_rules++;
}

static sl_span take_name(parser *p) {
    const size_t from = p->at;
    while (is_name(peek(p))) p->at++;
    return (sl_span){p->in.data + from, p->at - from};
}

static uint32_t take_hex(parser *p, unsigned n) {
    uint32_t v = 0;
    for (unsigned i = 0; i < n; i++, p->at++) {
        const int c = peek(p) | 0x20;
        const int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (d < 0) return bad(p, SL_ERR_FORMAT, "an escape without its hexadecimal digits");
        v = v << 4 | (uint32_t)d;
    }
    if (v > SL_CHAR_LAST || (v >= 0xd800 && v <= 0xdfff))
        return bad(p, SL_ERR_FORMAT, "an escape that is no character");
    return v;
}

static uint32_t take_char(parser *p) {
    if (take(p, "\\")) {
        const int b = peek(p);
        if (b >= 0) p->at++;
        switch (b) {
        case 'x':
            return take_hex(p, 2);
        case 'u':
            return take_hex(p, 4);
        case 'U':
            return take_hex(p, 8);
        case 't':
            return '\t';
        case 'r':
            return '\r';
        case 'n':
            return '\n';
        case '\\':
        case '"':
        case '[':
        case ']':
        case '-':
        case '^':
        case '/':
            return (uint32_t)b;
        default:
            return bad(p, SL_ERR_UNSUPPORTED, "an escape that GBNF does not have");
        }
    }
    const uint8_t *b = p->in.data + p->at;
    const size_t n = sl_utf8_sequence((const char *)b, p->in.len - p->at);
    if (n == 0) return bad(p, SL_ERR_FORMAT, "bytes that are not UTF-8");
    uint32_t c = n == 1 ? b[0] : b[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) c = c << 6 | (b[i] & 0x3f);
    p->at += n;
    return c;
}

static uint32_t of_set(parser *p, sl_chars *set, bool invert) {
    sl_rx e = SL_RX_NONE;
    if (p->st == SL_OK && !sl_chars_settle(set, invert))
        p->st = sl_fail(p->err, SL_ERR_NOMEM, "out of memory for a grammar");
    if (p->st == SL_OK) e = sl_rx_char_of(p->g->rx, set, SL_ALPHABET_RAW);
    sl_chars_free(set);
    return add(p, (node){.kind = N_CHAR, .a = e});
}

static uint32_t parse_class(parser *p) {
    sl_chars set = {0};
    const bool invert = take(p, "^");
    while (p->st == SL_OK && !take(p, "]")) {
        if (peek(p) < 0 || peek(p) == '\n') {
            (void)bad(p, SL_ERR_FORMAT, "a class without ]");
            break;
        }
        const uint32_t from = take_char(p);
        uint32_t to = from;
        if (peek(p) == '-' && p->at + 1 < p->in.len && p->in.data[p->at + 1] != ']') {
            p->at++;
            to = take_char(p);
        }
        if (to < from) (void)bad(p, SL_ERR_FORMAT, "a range whose end comes before its beginning");
        if (p->st == SL_OK && !sl_chars_add(&set, from, to))
            p->st = sl_fail(p->err, SL_ERR_NOMEM, "out of memory for a grammar");
    }
    return of_set(p, &set, invert);
}

static uint32_t parse_literal(parser *p) {
    p->n_text = 0;
    while (p->st == SL_OK && !take(p, "\"")) {
        if (peek(p) < 0 || peek(p) == '\n')
            return bad(p, SL_ERR_FORMAT, "a text without its end \"");
        const uint32_t c = take_char(p);
        const unsigned n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        uint32_t rest = c;
        if (!sl_grammar_room(p->g, (void **)&p->text, &p->cap_text, p->n_text + 4, 1)) {
            p->st = sl_grammar_status(p->g, p->err);
            break;
        }
        uint8_t *to = p->text + p->n_text;
        for (unsigned i = n; i-- > 1; rest >>= 6) to[i] = (uint8_t)(0x80 | (rest & 0x3f));
        to[0] = n == 1 ? (uint8_t)c : (uint8_t)((0xf00 >> n & 0xff) | rest);
        p->n_text += n;
    }
    if (p->st != SL_OK) return 0;
    return add(p, (node){.kind = N_CHAR, .a = sl_rx_text(p->g->rx, (sl_span){p->text, p->n_text})});
}

static uint32_t parse_alternatives(parser *p, bool nested);

static uint32_t parse_atom(parser *p, bool nested) {
    sl_chars set = {0};
    if (take(p, "\"")) return parse_literal(p);
    if (take(p, "[")) return parse_class(p);
    if (take(p, ".")) return of_set(p, &set, true);
    if (take(p, "(")) {
        if (++p->depth > MAX_DEPTH)
            return bad(p, SL_ERR_LIMIT, "groups nested deeper than 100 (limit)");
        skip(p, true);
        const uint32_t n = parse_alternatives(p, true);
        p->depth--;
        if (!take(p, ")")) return bad(p, SL_ERR_FORMAT, "a group without )");
        return n;
    }
    if (take(p, "<") || take(p, "!"))
        return bad(p, SL_ERR_UNSUPPORTED, "tokens (<...>) are not supported");
    (void)nested;
    if (!is_name(peek(p)))
        return bad(p, SL_ERR_FORMAT, "neither a text, a class, a group nor a rule");
    return add(p, (node){.kind = N_RULE, .a = find_rule(p, take_name(p))});
}

static uint32_t take_number(parser *p) {
    uint64_t v = 0;
    if (peek(p) < '0' || peek(p) > '9') return bad(p, SL_ERR_FORMAT, "a count without digits");
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        if (v < UINT32_MAX) v = v * 10 + (uint64_t)(peek(p) - '0');
    if (v > MAX_REPEAT && p->st == SL_OK)
        p->st = sl_fail(p->err, SL_ERR_LIMIT, "grammar: line %u: a repetition of %llu, limit %u",
                        p->line, (unsigned long long)v, MAX_REPEAT);
    return (uint32_t)SL_MIN(v, MAX_REPEAT);
}

static bool parse_counts(parser *p, bool nested, uint32_t *min, uint32_t *max) {
    *min = 0;
    *max = SL_RX_MANY;
    if (take(p, "*")) return true;
    if (take(p, "+")) return *min = 1, true;
    if (take(p, "?")) return *max = 1, true;
    if (!take(p, "{")) return false;
    skip(p, nested);
    if (peek(p) != ',') *max = *min = take_number(p);
    skip(p, nested);
    if (take(p, ",")) {
        skip(p, nested);
        *max = peek(p) == '}' ? SL_RX_MANY : take_number(p);
        skip(p, nested);
    }
    if (!take(p, "}")) (void)bad(p, SL_ERR_FORMAT, "a count without }");
    if (*max < *min) (void)bad(p, SL_ERR_FORMAT, "a count whose end comes before its beginning");
    return true;
}

static bool begins_atom(int b) {
    return b == '"' || b == '[' || b == '(' || b == '.' || b == '<' || b == '!' || is_name(b);
}

static uint32_t parse_sequence(parser *p, bool nested) {
    uint32_t seq = add(p, (node){.kind = N_EMPTY}), min, max;
    bool any = false;
    while (p->st == SL_OK && begins_atom(peek(p))) {
        uint32_t atom = parse_atom(p, nested);
        skip(p, nested);
        while (p->st == SL_OK && parse_counts(p, nested, &min, &max)) {
            atom = add(p, (node){.kind = N_REP, .a = atom, .min = min, .max = max});
            skip(p, nested);
        }
        seq = any ? add(p, (node){.kind = N_SEQ, .a = seq, .b = atom}) : atom;
        any = true;
    }
    return seq;
}

static uint32_t parse_alternatives(parser *p, bool nested) {
    uint32_t alt = parse_sequence(p, nested);
    while (p->st == SL_OK && take(p, "|")) {
        skip(p, true);
        alt = add(p, (node){.kind = N_ALT, .a = alt, .b = parse_sequence(p, nested)});
    }
    return alt;
}

static void parse_rules(parser *p) {
    for (skip(p, true); p->st == SL_OK && peek(p) >= 0; skip(p, true)) {
        if (!is_name(peek(p))) {
            (void)bad(p, SL_ERR_FORMAT, "the name of a rule was expected");
            return;
        }
        const uint32_t r = find_rule(p, take_name(p));
        skip(p, false);
        if (p->st == SL_OK && !take(p, "::="))
            (void)bad(p, SL_ERR_FORMAT, "a rule's name without ::=");
        if (p->st == SL_OK && p->rules[r].defined)
            (void)bad(p, SL_ERR_FORMAT, "a rule that is there already");
        skip(p, true);
        const uint32_t body = parse_alternatives(p, false);
        if (p->st != SL_OK) return;
        p->rules[r].body = body;
        p->rules[r].defined = true;
        if (peek(p) >= 0 && peek(p) != '\n' && peek(p) != '\r')
            (void)bad(p, SL_ERR_FORMAT, "something behind a rule that does not belong to it");
    }
    for (size_t i = 0; i < p->n_rules && p->st == SL_OK; i++)
        if (!p->rules[i].defined)
            p->st = sl_fail(p->err, SL_ERR_FORMAT, "grammar: no rule %.*s",
                            (int)SL_MIN(p->rules[i].name.len, 60u),
                            (const char *)p->rules[i].name.data);
}

/* Whether a tree is regular, how large it is as one text, and how many rules deep. */
static bool measure(parser *p, uint32_t at, uint32_t *size, uint32_t *chain);

static void measure_rule(parser *p, uint32_t r) {
    if (p->rules[r].state != 0) {
        if (p->rules[r].state == 1) p->rules[r].regular = false; /* a circle */
        return;
    }
    uint32_t size = 0, chain = 0;
    p->rules[r].state = 1;
    p->rules[r].regular = true;
    if (++p->depth > MAX_CHAIN) {
        p->rules[r].regular = false;
    } else {
        const bool regular = measure(p, p->rules[r].body, &size, &chain);
        p->rules[r].regular &= regular && size <= MAX_INLINE && chain < MAX_CHAIN;
    }
    p->depth--;
    p->rules[r].size = size;
    p->rules[r].chain = chain + 1;
    p->rules[r].state = 2;
}

static bool measure(parser *p, uint32_t at, uint32_t *size, uint32_t *chain) {
    bool regular = true;
    for (;;) {
        const node n = p->v[at];
        *size += *size < MAX_INLINE * 2;
        if (n.kind == N_RULE) {
            measure_rule(p, n.a);
            const rule *r = &p->rules[n.a];
            *size = SL_MIN(*size + r->size, MAX_INLINE * 2);
            *chain = SL_MAX(*chain, r->chain);
            return regular && r->state == 2 && r->regular;
        }
        if (n.kind == N_SEQ || n.kind == N_ALT) regular &= measure(p, n.b, size, chain);
        if (n.kind == N_EMPTY || n.kind == N_CHAR) return regular;
        at = n.a;
    }
}

static bool is_regular(parser *p, uint32_t at) {
    uint32_t size = 0, chain = 0;
    return measure(p, at, &size, &chain) && size <= MAX_INLINE;
}

static sl_rx text_of(parser *p, uint32_t at) {
    sl_rx_store *s = p->g->rx;
    sl_rx e = SL_RX_EPS;
    sl_rx_list list = {0};
    const node n = p->v[at];
    switch (n.kind) {
    case N_EMPTY:
        return SL_RX_EPS;
    case N_CHAR:
        return n.a;
    case N_RULE: {
        rule *r = &p->rules[n.a];
        if (!r->made) r->text = text_of(p, r->body);
        r->made = true;
        return r->text;
    }
    case N_REP:
        return sl_rx_rep(s, text_of(p, n.a), n.min, n.max);
    case N_SEQ:
        for (; p->v[at].kind == N_SEQ; at = p->v[at].a) e = sl_rx_cat(s, text_of(p, p->v[at].b), e);
        return sl_rx_cat(s, text_of(p, at), e);
    case N_ALT:
        for (; p->v[at].kind == N_ALT; at = p->v[at].a)
            sl_rx_list_add(s, &list, text_of(p, p->v[at].b));
        sl_rx_list_add(s, &list, text_of(p, at));
        return sl_rx_or_list(s, &list);
    }
    return SL_RX_NONE;
}

/* The net of a tree between two states. */
static void net_of(parser *p, uint32_t at, uint32_t from, uint32_t to);

static void net_of_repeat(parser *p, node n, uint32_t from, uint32_t to) {
    sl_rules *r = &p->g->rules;
    const uint32_t copies = n.max == SL_RX_MANY ? n.min : n.max;
    if (copies > MAX_COPIES) {
        (void)bad(p, SL_ERR_LIMIT, "a repetition of rules that call each other, limit 2000");
        return;
    }
    for (uint32_t i = 0; i < copies && p->st == SL_OK; i++) {
        const uint32_t next = sl_rules_state(r);
        net_of(p, n.a, from, next);
        if (i >= n.min) sl_rules_edge(r, from, SL_EDGE_EMPTY, 0, to);
        from = next;
    }
    if (n.max == SL_RX_MANY) {
        const uint32_t loop = sl_rules_state(r);
        sl_rules_edge(r, from, SL_EDGE_EMPTY, 0, loop);
        net_of(p, n.a, loop, loop);
        from = loop;
    }
    sl_rules_edge(r, from, SL_EDGE_EMPTY, 0, to);
}

static void net_of(parser *p, uint32_t at, uint32_t from, uint32_t to) {
    sl_rules *r = &p->g->rules;
    if (p->st == SL_OK && r->bad == SL_ERR_NOMEM)
        p->st = sl_fail(p->err, SL_ERR_NOMEM, "out of memory for a grammar");
    if (p->st == SL_OK && (r->bad != SL_OK || r->n_states > SL_RULES_MAX_STATES / 2))
        (void)bad(p, SL_ERR_LIMIT, "the grammar takes too many states");
    if (p->st != SL_OK) return;
    if (is_regular(p, at)) {
        sl_rules_edge(r, from, SL_EDGE_TEXT, text_of(p, at), to);
        return;
    }
    const node n = p->v[at];
    if (n.kind == N_REP) {
        net_of_repeat(p, n, from, to);
    } else if (n.kind == N_RULE) {
        if (!p->rules[n.a].net) p->rules[n.a].net = sl_rules_rule(r) + 1;
        sl_rules_edge(r, from, SL_EDGE_CALL, p->rules[n.a].net - 1, to);
    } else if (n.kind == N_ALT) {
        for (; p->v[at].kind == N_ALT; at = p->v[at].a) net_of(p, p->v[at].b, from, to);
        net_of(p, at, from, to);
    } else {
        for (; p->v[at].kind == N_SEQ; at = p->v[at].a) {
            const uint32_t mid = sl_rules_state(r);
            net_of(p, p->v[at].b, mid, to);
            to = mid;
        }
        net_of(p, at, from, to);
    }
}

static void make_nets(parser *p, uint32_t root) {
    sl_grammar *g = p->g;
    for (uint32_t i = 0; i < p->n_rules; i++) measure_rule(p, i);
    p->rules[root].net = sl_rules_rule(&g->rules) + 1;
    for (bool more = true; more && p->st == SL_OK;) { /* nets call further rules */
        more = false;
        for (uint32_t i = 0; i < p->n_rules && p->st == SL_OK; i++) {
            if (!p->rules[i].net || p->rules[i].state == 3) continue;
            p->rules[i].state = 3;
            more = true;
            if (g->rules.bad != SL_OK) return;
            const sl_rule net = g->rules.rules[p->rules[i].net - 1];
            net_of(p, p->rules[i].body, net.from, net.to);
        }
    }
}

static sl_status parse(parser *p, uint32_t *root_net) {
    uint32_t root = 0;
    parse_rules(p);
    while (p->st == SL_OK && root < p->n_rules && !sl_span_is(p->rules[root].name, "root")) root++;
    if (p->st == SL_OK && root == p->n_rules)
        p->st = sl_fail(p->err, SL_ERR_FORMAT, "grammar: no rule root");
    if (p->st == SL_OK) make_nets(p, root);
    if (p->st == SL_OK) *root_net = p->rules[root].net - 1;
    return p->st;
}

/* The grammar is whole. */
static sl_status finish(parser *p) {
    uint32_t at = 0;
    const sl_status st = sl_grammar_ready(p->g, &at, p->err);
    if (st == SL_OK) return st;
    for (size_t i = 0; i < p->n_rules; i++)
        if (p->rules[i].net == at + 1)
            return sl_err_prefix(p->err, "grammar: rule %.*s",
                                 (int)SL_MIN(p->rules[i].name.len, 60u),
                                 (const char *)p->rules[i].name.data);
    return sl_err_prefix(p->err, "grammar");
}

static void drop(parser *p) {
    p->g->memory -= p->cap * sizeof *p->v + p->cap_rules * sizeof *p->rules + p->cap_text;
    sl_free(p->v);
    sl_free(p->rules);
    sl_free(p->text);
}

static sl_status check_length(sl_span text, sl_err *err) {
    if (text.len <= SL_GRAMMAR_MAX_TEXT) return SL_OK;
    return sl_fail(err, SL_ERR_LIMIT, "grammar: %zu bytes, limit %u", text.len,
                   SL_GRAMMAR_MAX_TEXT);
}

sl_status sl_gbnf_add(sl_grammar *g, sl_span text, uint32_t *net, sl_err *err) {
    parser p = {.g = g, .in = text, .line = 1, .err = err};
    sl_status st = check_length(text, err);
    if (st != SL_OK) return st;
    st = parse(&p, net);
    drop(&p);
    return st;
}

sl_status sl_grammar_of_gbnf(const sl_vocab *v, sl_span text, sl_grammar **out, sl_err *err) {
    parser p = {.in = text, .line = 1, .err = err};
    *out = NULL;
    sl_status st = check_length(text, err);
    if (st == SL_OK) st = sl_grammar_create(v, &p.g, err);
    if (st != SL_OK) return st;
    st = parse(&p, &p.g->root);
    if (st == SL_OK) st = finish(&p);
    drop(&p);
    if (st == SL_OK)
        *out = p.g;
    else
        sl_grammar_free(p.g);
    return st;
}
