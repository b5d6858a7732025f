/* A grammar's life: made, asked, moved along a text, freed. */
#include "grammar/grammar_int.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "grammar/json_rules.h"
#include "grammar/regex.h"

sl_status sl_grammar_create(const sl_vocab *v, sl_grammar **out, sl_err *err) {
    sl_grammar *g = sl_alloc(1, sizeof *g);
    *out = NULL;
    if (!g) return sl_fail(err, SL_ERR_NOMEM, "out of memory for a grammar");
    g->vocab = v;
    const sl_status st = sl_rx_clone(v->base, &g->rx, err);
    if (st != SL_OK) {
        sl_free(g);
        return st;
    }
    *out = g;
    return SL_OK;
}

sl_status sl_grammar_ready(sl_grammar *g, uint32_t *rule, sl_err *err) {
    sl_status st = sl_grammar_status(g, err);
    if (st == SL_OK) st = sl_rules_finish(&g->rules, g->rx, g->root, rule, err);
    if (st != SL_OK) return st;
    g->memory += sl_rules_memory(&g->rules);
    const uint32_t first = sl_config_first(g);
    st = sl_grammar_status(g, err);
    SL_ASSERT(st != SL_OK || first == 1);
    return st;
}

void sl_grammar_free(sl_grammar *g) {
    if (!g) return;
    for (size_t i = 0; i < g->cap_tables; i++) sl_table_free(g->tables[i]);
    sl_free(g->tables);
    sl_rx_free(g->rx);
    sl_rules_free(&g->rules);
    sl_free(g->stacks);
    sl_free(g->ways);
    sl_free(g->stack_slots);
    sl_free(g->configs);
    sl_free(g->readings);
    sl_free(g->config_slots);
    sl_free(g->moves.key);
    sl_free(g->moves.value);
    sl_free(g->after);
    sl_free(g->work);
    sl_free(g->last);
    sl_free(g->found);
    sl_free(g->todo);
    sl_free(g);
}

sl_grammar_at sl_grammar_begin(const sl_grammar *g) {
    (void)g;
    return 1;
}

bool sl_grammar_may_end(const sl_grammar *g, sl_grammar_at at) {
    return g->configs[at].ends;
}

sl_status sl_grammar_read(sl_grammar *g, sl_span bytes, sl_grammar_at *at, sl_err *err) {
    uint32_t config = *at;
    sl_status st = sl_grammar_status(g, err);
    sl_rx_allow(g->rx, SL_RX_STEPS_TOKEN + bytes.len * 64);
    for (size_t i = 0; i < bytes.len && st == SL_OK; i++) {
        config = sl_config_move(g, config, bytes.data[i]);
        if (config != 0) continue;
        st = sl_grammar_status(g, err);
        if (st == SL_OK)
            return sl_fail(err, SL_ERR_ARG, "byte %zu (0x%02x) is not allowed here", i,
                           bytes.data[i]);
    }
    if (st == SL_OK) st = sl_grammar_status(g, err);
    if (st == SL_OK) *at = config;
    return st;
}

sl_status sl_grammar_take(sl_grammar *g, uint32_t token, sl_grammar_at *at, sl_err *err) {
    if (token >= g->vocab->n)
        return sl_fail(err, SL_ERR_ARG, "token %u, but %u tokens", token, g->vocab->n);
    if (sl_vocab_is_end(g->vocab, token)) {
        if (g->configs[*at].ends) return SL_OK;
        return sl_fail(err, SL_ERR_ARG, "token %u ends the text, which may not end here", token);
    }
    const sl_span text = sl_vocab_text(g->vocab, token);
    if (text.len == 0) return sl_fail(err, SL_ERR_ARG, "token %u has no text", token);
    return sl_grammar_read(g, text, at, err);
}

/* One text edge, for what is regular as a whole. */
static sl_status of_expression(sl_grammar *g, sl_rx e, sl_err *err) {
    uint32_t rule;
    sl_status st = sl_rx_status(g->rx, err);
    if (st != SL_OK) return st;
    g->root = sl_rules_rule(&g->rules);
    if (g->rules.bad == SL_OK)
        sl_rules_edge(&g->rules, g->rules.rules[g->root].from, SL_EDGE_TEXT, e,
                      g->rules.rules[g->root].to);
    return sl_grammar_ready(g, &rule, err);
}

static sl_status handed(sl_status st, sl_grammar *g, sl_grammar **out) {
    if (st == SL_OK)
        *out = g;
    else
        sl_grammar_free(g);
    return st;
}

sl_status sl_grammar_of_json(const sl_vocab *v, sl_json_space space, sl_grammar **out,
                             sl_err *err) {
    sl_grammar *g = NULL;
    sl_json_rules rules = {0};
    uint32_t rule;
    sl_status st = sl_grammar_create(v, &g, err);
    *out = NULL;
    if (st != SL_OK) return st;
    g->space = space;
    g->root = sl_json_rules_of(g, &rules)->object;
    return handed(sl_grammar_ready(g, &rule, err), g, out);
}

sl_status sl_grammar_of_regex(const sl_vocab *v, sl_span regex, sl_grammar **out, sl_err *err) {
    sl_grammar *g = NULL;
    sl_rx e = SL_RX_NONE;
    sl_status st = sl_grammar_create(v, &g, err);
    *out = NULL;
    if (st != SL_OK) return st;
    st = sl_regex_parse(g->rx, regex, SL_ALPHABET_RAW, false, &e, err);
    if (st == SL_OK) st = of_expression(g, e, err);
    return handed(st, g, out);
}

sl_status sl_choices_rx(sl_rx_store *s, const sl_span *choices, size_t n, sl_rx *out, sl_err *err) {
    size_t bytes = 0;
    if (n == 0) return sl_fail(err, SL_ERR_FORMAT, "choice: the list is empty");
    for (size_t i = 0; i < n; i++) {
        bytes += choices[i].len;
        for (size_t at = 0, more; at < choices[i].len; at += more) {
            more = sl_utf8_sequence((const char *)choices[i].data + at, choices[i].len - at);
            if (!more)
                return sl_fail(err, SL_ERR_FORMAT, "choice %zu: byte %zu is not UTF-8", i, at);
        }
    }
    if (n > SL_GRAMMAR_MAX_CHOICES)
        return sl_fail(err, SL_ERR_LIMIT, "choice: %zu texts, limit %u", n, SL_GRAMMAR_MAX_CHOICES);
    if (bytes > SL_GRAMMAR_MAX_TEXT)
        return sl_fail(err, SL_ERR_LIMIT, "choice: %zu bytes, limit %u", bytes,
                       SL_GRAMMAR_MAX_TEXT);
    sl_span *sorted = sl_alloc(n, sizeof *sorted);
    if (!sorted) return sl_fail(err, SL_ERR_NOMEM, "out of memory for choices");
    memcpy(sorted, choices, n * sizeof *sorted);
    *out = sl_rx_one_of(s, sorted, n);
    sl_free(sorted);
    return SL_OK;
}

sl_status sl_grammar_of_choices(const sl_vocab *v, const sl_span *choices, size_t n,
                                sl_grammar **out, sl_err *err) {
    sl_grammar *g = NULL;
    sl_rx e = SL_RX_NONE;
    sl_status st = sl_grammar_create(v, &g, err);
    *out = NULL;
    if (st != SL_OK) return st;
    st = sl_choices_rx(g->rx, choices, n, &e, err);
    if (st == SL_OK) st = of_expression(g, e, err);
    return handed(st, g, out);
}
