/* The mask of a position: the tables of its readings, then what follows where a text ends inside a
 * token: subtrees of the tree of tokens, walked beside the readings behind that end. */
#include "grammar/grammar_int.h"

#include "base/mem.h"

typedef struct sl_todo {
    uint32_t node, config;
} sl_todo;

typedef struct walk {
    sl_grammar *g;
    uint32_t *mask;
    size_t n_todo;
    uint32_t steps;
} walk;

static void allow(walk *w, uint32_t id) {
    for (; id != SL_TRIE_NO_TOKEN; id = w->g->vocab->twin[id]) w->mask[id / 32] |= 1u << id % 32;
}

static void put_off(walk *w, uint32_t node, uint32_t config) {
    sl_grammar *g = w->g;
    if (config == 0 || g->configs[config].n == 0) return;
    if (!sl_grammar_room(g, (void **)&g->todo, &g->cap_todo, w->n_todo + 1, sizeof *g->todo))
        return;
    g->todo[w->n_todo++] = (sl_todo){node, config};
}

/* The subtree of `node`, whose byte leads a reading to `state`. */
static void descend(walk *w, uint32_t node, sl_rx state, uint32_t stacks) {
    sl_grammar *g = w->g;
    const sl_trie *t = &g->vocab->all;
    const uint32_t end = t->skip[node], base = t->depth[node];
    sl_rx_row rows[64];
    if (t->token[node] != SL_TRIE_NO_TOKEN) allow(w, t->token[node]);
    if (end == node + 1) return;
    if (sl_rx_nullable(g->rx, state)) put_off(w, node, sl_config_after(g, stacks));
    rows[0] = sl_rx_row_of(g->rx, state);
    for (uint32_t i = node + 1; i < end && g->bad == SL_OK;) {
        const uint32_t depth = t->depth[i] - base;
        const sl_rx next = rows[depth - 1].to[rows[depth - 1].cls[t->byte[i]]];
        w->steps++;
        if (next == SL_RX_NONE) {
            i = t->skip[i];
            continue;
        }
        if (depth == SL_LEN(rows) - 1) { /* a long token: on from here */
            descend(w, i, next, stacks);
            i = t->skip[i];
            continue;
        }
        if (t->token[i] != SL_TRIE_NO_TOKEN) allow(w, t->token[i]);
        if (t->skip[i] > i + 1) {
            if (sl_rx_nullable(g->rx, next)) put_off(w, i, sl_config_after(g, stacks));
            rows[depth] = sl_rx_row_of(g->rx, next);
        }
        i++;
    }
}

/* Children of a node with what a configuration allows. */
static void enter(walk *w, uint32_t node, uint32_t config) {
    sl_grammar *g = w->g;
    const sl_trie *t = &g->vocab->all;
    const sl_bytes next = *sl_config_next(g, config);
    const sl_config c = g->configs[config];
    for (uint32_t i = node + 1; i < t->skip[node] && g->bad == SL_OK; i = t->skip[i]) {
        w->steps++;
        if (!sl_bytes_has(&next, t->byte[i])) continue;
        for (uint32_t k = 0; k < c.n; k++) {
            const sl_reading at = g->readings[c.first + k];
            const sl_rx_row row = sl_rx_row_of(g->rx, at.state);
            const sl_rx to = row.to[row.cls[t->byte[i]]];
            if (to != SL_RX_NONE) descend(w, i, to, at.stacks);
        }
    }
}

static void drop_tables(sl_grammar *g) {
    for (size_t i = 0; i < g->cap_tables; i++) {
        sl_table_free(g->tables[i]);
        g->tables[i] = NULL;
    }
    g->memory -= g->tables_bytes;
    g->tables_bytes = 0;
}

/* The table of a state, or of one that no token can tell from it. */
static const sl_table *table_of(sl_grammar *g, sl_rx state) {
    const sl_vocab *v = g->vocab;
    if (state < v->n_base && v->tables[state]) return v->tables[state];
    state = sl_rx_clamp(g->rx, state, v->longest + 1);
    if (!sl_grammar_room(g, (void **)&g->tables, &g->cap_tables, (size_t)state + 1,
                         sizeof *g->tables))
        return NULL;
    if (g->tables[state]) return g->tables[state];
    if (g->tables_bytes > SL_GRAMMAR_MAX_TABLES) drop_tables(g);
    sl_table *t = sl_table_make(v, g->rx, state);
    if (!t) {
        sl_grammar_spoil(g, SL_ERR_NOMEM, "", 0);
        return NULL;
    }
    g->tables_bytes += t->bytes;
    g->memory += t->bytes;
    return g->tables[state] = t;
}

static void apply(walk *w, sl_reading at, bool *first) {
    sl_grammar *g = w->g;
    const sl_table *t = table_of(g, at.state);
    const size_t words = g->vocab->words;
    if (!t) return;
    if (t->dense && *first)
        memcpy(w->mask, t->dense, words * sizeof *w->mask);
    else if (*first)
        memset(w->mask, 0, words * sizeof *w->mask);
    else
        for (size_t i = 0; t->dense && i < words; i++) w->mask[i] |= t->dense[i];
    *first = false;
    for (uint32_t i = 0; i < t->n_sparse; i++)
        w->mask[t->sparse[i] / 32] |= 1u << t->sparse[i] % 32;
    const uint32_t after = t->n_exits ? sl_config_after(g, at.stacks) : 0;
    const bool goes_on = after && g->bad == SL_OK && g->configs[after].n > 0;
    for (uint32_t i = 0; goes_on && i < t->n_exits; i++) put_off(w, t->exits[i], after);
}

static void count(const sl_grammar *g, const uint32_t *mask, sl_grammar_allowed *out) {
    for (size_t i = 0; i < g->vocab->words && out->n < 2; i++) {
        if (!mask[i]) continue;
        out->only = (uint32_t)i * 32 + (uint32_t)__builtin_ctz(mask[i]);
        out->n = SL_MIN(2u, out->n + (uint32_t)__builtin_popcount(mask[i]));
    }
    if (out->n != 1) out->only = 0;
}

sl_status sl_grammar_mask(sl_grammar *g, sl_grammar_at at, uint32_t *mask, sl_grammar_allowed *out,
                          sl_err *err) {
    walk w = {.g = g, .mask = mask};
    bool first = true;
    const sl_status st = sl_grammar_status(g, err);
    if (st != SL_OK) return st;
    sl_rx_allow(g->rx, SL_RX_STEPS_TOKEN);
    const sl_config c = g->configs[at];
    for (uint32_t i = 0; i < c.n && g->bad == SL_OK; i++)
        apply(&w, g->readings[c.first + i], &first);
    if (first) memset(mask, 0, g->vocab->words * sizeof *mask);
    while (w.n_todo && g->bad == SL_OK) {
        const sl_todo todo = g->todo[--w.n_todo];
        enter(&w, todo.node, todo.config);
        if (w.steps > SL_GRAMMAR_MAX_WALK)
            sl_grammar_spoil(g, SL_ERR_LIMIT, "steps over the vocabulary for one mask",
                             SL_GRAMMAR_MAX_WALK);
    }
    for (size_t i = 0; c.ends && i < g->vocab->n_ends; i++)
        mask[g->vocab->ends[i] / 32] |= 1u << g->vocab->ends[i] % 32;
    if (out) {
        *out = (sl_grammar_allowed){.end = c.ends};
        count(g, mask, out);
    }
    return sl_grammar_status(g, err);
}
