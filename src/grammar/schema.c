/* A JSON Schema as a grammar: which keywords there are, and a rule for each set of schemas that
 * holds of a place. Rules are asked for by sets and made one after the other, so that references
 * may go round. */
#include "grammar/schema_int.h"

#include "base/mem.h"

static sl_status way_net(sl_schema *s, const sl_schema_way *w, uint32_t from, uint32_t to) {
    const char *word;
    sl_rules *n = &s->g->rules;
    sl_rx_store *rx = s->g->rx;
    bool listed = false;
    sl_rx e = SL_RX_NONE;
    sl_status st = sl_schema_listed(s, w, &listed, &e);
    if (st != SL_OK || listed) {
        if (st == SL_OK) sl_rules_edge(n, from, SL_EDGE_TEXT, e, to);
        return st;
    }
    if (w->types & SL_TYPE_NULL) e = sl_rx_chars(rx, "null");
    if (w->types & SL_TYPE_BOOL)
        e = sl_rx_or(rx, (sl_rx[]){e, sl_rx_chars(rx, "true"), sl_rx_chars(rx, "false")}, 3);
    sl_rules_edge(n, from, SL_EDGE_TEXT, e, to);
    if (w->types & (SL_TYPE_INT | SL_TYPE_REAL)) {
        st = sl_schema_number(s, w, &e);
        if (st == SL_OK) sl_rules_edge(n, from, SL_EDGE_TEXT, e, to);
    }
    if (st == SL_OK && (w->types & SL_TYPE_STRING)) {
        st = sl_schema_string(s, &w->parts, &e);
        if (st == SL_OK) sl_rules_edge(n, from, SL_EDGE_TEXT, e, to);
    }
    if (st == SL_OK && (w->types & SL_TYPE_ARRAY)) {
        if (sl_schema_inside(&w->parts, SL_TYPE_ARRAY, &word).value)
            st = sl_schema_array(s, &w->parts, from, to);
        else
            sl_rules_edge(n, from, SL_EDGE_CALL, sl_json_rules_of(s->g, &s->json)->array, to);
    }
    if (st == SL_OK && (w->types & SL_TYPE_OBJECT)) {
        if (sl_schema_inside(&w->parts, SL_TYPE_OBJECT, &word).value)
            st = sl_schema_object(s, &w->parts, from, to);
        else
            sl_rules_edge(n, from, SL_EDGE_CALL, sl_json_rules_of(s->g, &s->json)->object, to);
    }
    return st;
}

static sl_status make_next(sl_schema *s) {
    const sl_schema_set set = s->known[s->done].set;
    const uint32_t rule = s->known[s->done].rule;
    sl_schema_ways ways = {0};
    s->done++;
    sl_status st = sl_schema_expand(s, &set, &ways);
    if (st == SL_OK) st = sl_grammar_status(s->g, s->err);
    for (uint32_t i = 0; i < ways.n && st == SL_OK; i++) {
        if (s->g->rules.bad == SL_ERR_NOMEM) {
            st = sl_fail(s->err, SL_ERR_NOMEM, "out of memory for a grammar");
            break;
        }
        if (s->g->rules.bad != SL_OK || s->g->rules.n_states > SL_RULES_MAX_STATES / 2) {
            st = sl_json_fail(set.v[0], NULL, s->err, SL_ERR_LIMIT,
                              "the schema takes more than %u states (limit)",
                              SL_RULES_MAX_STATES / 2);
            break;
        }
        const sl_rule r = s->g->rules.rules[rule];
        st = way_net(s, &ways.v[i], r.from, r.to);
    }
    sl_schema_ways_free(&ways);
    return st;
}

sl_status sl_schema_add(sl_grammar *g, sl_json schema, bool listed, uint32_t *rule, sl_err *err) {
    sl_schema s = {.g = g, .root = schema, .listed = listed, .err = err};
    sl_schema_set set = {0};
    sl_status st = sl_schema_keywords(&s, schema);
    if (st == SL_OK) st = sl_schema_set_add(&s, &set, schema);
    if (st == SL_OK) st = sl_schema_rule(&s, &set, rule);
    while (st == SL_OK && s.done < s.n_known) st = make_next(&s);
    for (uint32_t i = 0; i < s.n_known; i++) {
        g->memory -= s.known[i].set.cap * sizeof *s.known[i].set.v;
        sl_free(s.known[i].set.v);
    }
    g->memory -= s.cap_known * sizeof *s.known;
    sl_free(s.known);
    sl_free(s.slots);
    g->memory -= s.made_memory;
    sl_json_keep_free(s.keep);
    sl_free(s.found);
    return st;
}

sl_status sl_grammar_of_schema(const sl_vocab *v, sl_json schema, sl_json_space space,
                               sl_grammar **out, sl_err *err) {
    sl_grammar *g = NULL;
    uint32_t rule;
    sl_err own = {0};
    *out = NULL;
    if (!err) err = &own;
    sl_status st = sl_grammar_create(v, &g, err);
    if (st != SL_OK) return st;
    g->space = space;
    st = sl_schema_add(g, schema, false, &g->root, err);
    if (st == SL_OK) {
        st = sl_grammar_ready(g, &rule, err);
        if (st == SL_ERR_ARG)
            st = sl_json_fail(schema, NULL, err, SL_ERR_ARG, "no value satisfies this schema");
    }
    if (st == SL_OK)
        *out = g;
    else
        sl_grammar_free(g);
    return st;
}
