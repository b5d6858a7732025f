/* Shapes: what of an answer is free and what is described, put together from parts. */
#include "grammar/grammar_int.h"

#include "base/mem.h"
#include "grammar/regex.h"

#define SHAPE_MEMORY ((size_t)256 << 20) /* of a parsed shape */

typedef struct shape {
    sl_grammar *g;
    sl_err *err;
} shape;

static sl_status add(shape *s, sl_json v, uint32_t from, uint32_t to);

static sl_status refuse(const shape *s, sl_json v, const char *key, const char *what) {
    return sl_json_fail(v, key, s->err, SL_ERR_FORMAT, "%s", what);
}

/* A literal: a text, or a list of texts and ids of tokens. */
static sl_status literal(shape *s, sl_json v, sl_rx *out) {
    const sl_vocab *vocab = s->g->vocab;
    sl_span text;
    uint64_t id = 0;
    if (sl_json_as_span(v, &text)) {
        *out = sl_rx_text(s->g->rx, text);
        return SL_OK;
    }
    *out = SL_RX_EPS;
    for (size_t i = sl_json_count(v); i-- > 0;) {
        sl_json part = sl_json_at(v, i);
        const bool is_id = sl_json_as_u64(part, &id) && id < vocab->n;
        if (is_id && sl_vocab_is_end(vocab, (uint32_t)id))
            return refuse(s, v, NULL, "a token that ends the answer in its midst");
        if (is_id)
            text = sl_vocab_text(vocab, (uint32_t)id);
        else if (!sl_json_as_span(part, &text))
            return refuse(s, v, NULL, "neither texts nor ids of tokens");
        if (text.len == 0) return refuse(s, v, NULL, "a part without text");
        *out = sl_rx_cat(s->g->rx, sl_rx_text(s->g->rx, text), *out);
    }
    return *out == SL_RX_EPS ? refuse(s, v, NULL, "no text") : SL_OK;
}

/* Texts that do not have the literal. */
static sl_rx without(sl_rx_store *rx, sl_rx e) {
    return sl_rx_not(rx, sl_rx_cat(rx, SL_RX_ALL, sl_rx_cat(rx, e, SL_RX_ALL)));
}

static sl_status choice_of(shape *s, sl_json v, sl_rx *out) {
    const size_t n = sl_json_count(v);
    if (sl_json_kind_of(v) != SL_JSON_ARRAY) return refuse(s, v, NULL, "not a list of texts");
    sl_span *texts = sl_alloc(n, sizeof *texts);
    sl_status st = texts ? SL_OK : sl_fail(s->err, SL_ERR_NOMEM, "out of memory for choices");
    for (size_t i = 0; i < n && st == SL_OK; i++)
        if (!sl_json_as_span(sl_json_at(v, i), &texts[i]))
            st = refuse(s, v, NULL, "not a list of texts");
    if (st == SL_OK) st = sl_choices_rx(s->g->rx, texts, n, out, s->err);
    sl_free(texts);
    return st;
}

/* What is one expression; *is stays false for another kind of part. */
static sl_status expression(shape *s, const char *key, sl_json v, bool *is, sl_rx *out) {
    sl_rx_store *rx = s->g->rx;
    sl_rx e = SL_RX_NONE;
    sl_span text;
    *is = true;
    if (!strcmp(key, "regex")) {
        if (!sl_json_as_span(v, &text)) return refuse(s, v, NULL, "not a text");
        return sl_regex_parse(rx, text, SL_ALPHABET_RAW, false, out, s->err);
    }
    if (!strcmp(key, "choice")) return choice_of(s, v, out);
    if (!strcmp(key, "rest")) {
        *out = SL_RX_ALL;
        return SL_OK;
    }
    *is = !strcmp(key, "text") || !strcmp(key, "until") || !strcmp(key, "without");
    sl_status st = *is ? literal(s, v, &e) : SL_OK;
    if (st != SL_OK || !*is) return st;
    *out = e;
    if (key[0] != 't') *out = without(rx, e);
    if (key[0] == 'u') *out = sl_rx_cat(rx, *out, e);
    return SL_OK;
}

/* What is one expression is one edge, also where it came in several parts: their borders are then
 * none for the tokens. */
static sl_status add_turn(shape *s, sl_json v, uint32_t from, uint32_t to) {
    sl_rules *r = &s->g->rules;
    const size_t n = sl_json_count(v);
    sl_rx whole = SL_RX_EPS;
    sl_status st = n ? SL_OK : refuse(s, v, NULL, "an empty list");
    for (size_t i = 0; i < n && st == SL_OK; i++) {
        void *iter = NULL;
        const char *key = NULL;
        sl_json part = sl_json_at(v, i), of = {0};
        sl_rx e = SL_RX_NONE;
        bool is = false;
        if (sl_json_count(part) == 1 && sl_json_next(part, &iter, &key, &of))
            st = expression(s, key, of, &is, &e);
        if (st != SL_OK) break;
        if (is) {
            whole = sl_rx_cat(s->g->rx, whole, e);
            continue;
        }
        const uint32_t before = sl_rules_state(r), behind = sl_rules_state(r);
        sl_rules_edge(r, from, SL_EDGE_TEXT, whole, before);
        st = add(s, part, before, behind);
        from = behind;
        whole = SL_RX_EPS;
    }
    if (st == SL_OK) sl_rules_edge(r, from, SL_EDGE_TEXT, whole, to);
    return st;
}

static sl_status add_ways(shape *s, sl_json v, uint32_t from, uint32_t to) {
    const size_t n = sl_json_count(v);
    sl_status st = n ? SL_OK : refuse(s, v, NULL, "an empty list");
    for (size_t i = 0; i < n && st == SL_OK; i++) st = add(s, sl_json_at(v, i), from, to);
    return st;
}

static sl_status add_many(shape *s, sl_json v, uint32_t from, uint32_t to) {
    sl_rules *r = &s->g->rules;
    const uint32_t loop = sl_rules_state(r);
    sl_rules_edge(r, from, SL_EDGE_EMPTY, 0, loop);
    sl_rules_edge(r, loop, SL_EDGE_EMPTY, 0, to);
    return add(s, v, loop, loop);
}

/* The edges of one part between two states. */
static sl_status add(shape *s, sl_json v, uint32_t from, uint32_t to) {
    sl_rules *r = &s->g->rules;
    void *iter = NULL;
    const char *key = NULL;
    sl_json of = {0};
    sl_span text;
    sl_rx e = SL_RX_NONE;
    bool is = false;
    uint32_t rule = 0;
    if (sl_json_count(v) != 1 || !sl_json_next(v, &iter, &key, &of))
        return refuse(s, v, NULL, "not an object with one field");
    if (!strcmp(key, "seq")) return add_turn(s, of, from, to);
    if (!strcmp(key, "or")) return add_ways(s, of, from, to);
    if (!strcmp(key, "many")) return add_many(s, of, from, to);
    if (!strcmp(key, "maybe")) {
        sl_rules_edge(r, from, SL_EDGE_EMPTY, 0, to);
        return add(s, of, from, to);
    }
    sl_status st = expression(s, key, of, &is, &e);
    if (st == SL_OK && is) sl_rules_edge(r, from, SL_EDGE_TEXT, e, to);
    if (st != SL_OK || is) return st;
    if (!strcmp(key, "json") || !strcmp(key, "listed"))
        st = sl_schema_add(s->g, of, key[0] == 'l', &rule, s->err);
    else if (!strcmp(key, "gbnf") && sl_json_as_span(of, &text))
        st = sl_gbnf_add(s->g, text, &rule, s->err);
    else
        st = sl_json_fail(v, key, s->err, SL_ERR_UNSUPPORTED, "no such part of a shape");
    if (st == SL_OK && r->bad == SL_OK) sl_rules_edge(r, from, SL_EDGE_CALL, rule, to);
    return st;
}

sl_status sl_grammar_of_shape(const sl_vocab *v, sl_span text, sl_grammar **out, sl_err *err) {
    sl_json_doc *doc = NULL;
    shape s = {.err = err};
    uint32_t rule;
    *out = NULL;
    if (text.len > SL_MAX_SHAPE)
        return sl_fail(err, SL_ERR_LIMIT, "structured output: %zu bytes, limit %u", text.len,
                       SL_MAX_SHAPE);
    sl_status st = sl_json_parse_within("structured output", text, SHAPE_MEMORY, &doc, err);
    if (st != SL_OK) return st;
    st = sl_grammar_create(v, &s.g, err);
    sl_json root = sl_json_root(doc), compact = sl_json_get(root, "compact");
    if (st == SL_OK && compact.value && sl_json_count(root) == 1) {
        s.g->space = SL_JSON_SPACE_NONE;
        root = compact;
    }
    if (st == SL_OK) s.g->root = sl_rules_rule(&s.g->rules);
    if (st == SL_OK && s.g->rules.bad == SL_OK) {
        const sl_rule all = s.g->rules.rules[s.g->root];
        st = add(&s, root, all.from, all.to);
    }
    if (st == SL_OK) st = sl_grammar_ready(s.g, &rule, err);
    if (st == SL_ERR_ARG) st = sl_fail(err, SL_ERR_ARG, "structured output: no text satisfies it");
    sl_json_doc_free(doc);
    if (st == SL_OK)
        *out = s.g;
    else
        sl_grammar_free(s.g);
    return st;
}
