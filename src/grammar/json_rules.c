/* Rules of any JSON value. */
#include "grammar/json_rules.h"

static sl_rx space_of(sl_grammar *g) {
    sl_rx_store *s = g->rx;
    sl_bytes indent = {{0}};
    if (g->space == SL_JSON_SPACE_NONE) return SL_RX_EPS;
    sl_bytes_add(&indent, ' ', ' ');
    sl_bytes_add(&indent, '\t', '\t');
    const sl_rx line =
        sl_rx_cat(s, sl_rx_rep(s, sl_rx_chars(s, "\r"), 0, 1),
                  sl_rx_cat(s, sl_rx_chars(s, "\n"), sl_rx_rep(s, sl_rx_bytes(s, &indent), 0, 64)));
    return sl_rx_or(s, (sl_rx[]){SL_RX_EPS, sl_rx_chars(s, " "), line}, 3);
}

sl_rx sl_json_mark(sl_grammar *g, const char *text, bool before, bool behind) {
    const sl_rx space = space_of(g);
    const sl_rx e = sl_rx_cat(g->rx, sl_rx_chars(g->rx, text), behind ? space : SL_RX_EPS);
    return before ? sl_rx_cat(g->rx, space, e) : e;
}

/* open (item (comma item)*)? close; `item` adds the edges of one between two states. */
static void list_rule(sl_grammar *g, const sl_json_rules *r, uint32_t rule, const char *open,
                      const char *close) {
    sl_rules *n = &g->rules;
    const bool object = rule == r->object;
    const uint32_t from = n->rules[rule].from, to = n->rules[rule].to;
    const uint32_t first = sl_rules_state(n), next = sl_rules_state(n), done = sl_rules_state(n);
    sl_rules_edge(n, from, SL_EDGE_TEXT, sl_json_mark(g, open, false, true), first);
    sl_rules_edge(n, first, SL_EDGE_TEXT, sl_rx_chars(g->rx, close), to);
    sl_rules_edge(n, first, SL_EDGE_EMPTY, 0, next);
    if (object) {
        const uint32_t colon = sl_rules_state(n), value = sl_rules_state(n);
        sl_rules_edge(n, next, SL_EDGE_TEXT, g->vocab->rx.string, colon);
        sl_rules_edge(n, colon, SL_EDGE_TEXT, sl_json_mark(g, ":", true, true), value);
        sl_rules_edge(n, value, SL_EDGE_CALL, r->value, done);
    } else {
        sl_rules_edge(n, next, SL_EDGE_CALL, r->value, done);
    }
    sl_rules_edge(n, done, SL_EDGE_TEXT, sl_json_mark(g, ",", true, true), next);
    sl_rules_edge(n, done, SL_EDGE_TEXT, sl_json_mark(g, close, true, false), to);
}

const sl_json_rules *sl_json_rules_of(sl_grammar *g, sl_json_rules *r) {
    sl_rules *n = &g->rules;
    sl_rx_store *s = g->rx;
    if (r->made) return r;
    r->made = true;
    r->value = sl_rules_rule(n);
    r->object = sl_rules_rule(n);
    r->array = sl_rules_rule(n);
    if (n->bad != SL_OK) return r;
    const sl_rule value = n->rules[r->value];
    const sl_rx words = sl_rx_or(
        s, (sl_rx[]){sl_rx_chars(s, "true"), sl_rx_chars(s, "false"), sl_rx_chars(s, "null")}, 3);
    sl_rules_edge(n, value.from, SL_EDGE_TEXT, words, value.to);
    sl_rules_edge(n, value.from, SL_EDGE_TEXT, g->vocab->rx.number, value.to);
    sl_rules_edge(n, value.from, SL_EDGE_TEXT, g->vocab->rx.string, value.to);
    sl_rules_edge(n, value.from, SL_EDGE_CALL, r->object, value.to);
    sl_rules_edge(n, value.from, SL_EDGE_CALL, r->array, value.to);
    list_rule(g, r, r->object, "{", "}");
    list_rule(g, r, r->array, "[", "]");
    return r;
}
