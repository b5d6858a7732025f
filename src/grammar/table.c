/* The table of a state: one walk over the tree of tokens. Where a state takes any plain character a
 * number of times, plain tokens need no walk. */
#include "grammar/vocab_int.h"

#include "base/mem.h"

#define MOST_SPARSE 1024u /* tokens in a list; more are a mask */

typedef struct walk {
    const sl_vocab *v;
    sl_rx_store *s;
    uint32_t *mask, *list, *exits;
    uint32_t *dead; /* stretches of plain tokens that are not allowed: first, and the one behind the
                       last */
    uint32_t n_list, n_exits, n_dead;
    size_t cap_list, cap_exits, cap_dead;
    sl_runs runs;
    bool failed;
} walk;

static void append(walk *w, uint32_t **v, uint32_t *n, size_t *cap, uint32_t x) {
    if (*n == *cap) {
        const size_t more = *cap ? 2 * *cap : 64;
        uint32_t *grown = sl_grow(*v, *cap, more, sizeof **v);
        if (!grown) {
            w->failed = true;
            return;
        }
        *v = grown;
        *cap = more;
    }
    (*v)[(*n)++] = x;
}

static void add_token(walk *w, uint32_t id) {
    for (; id != SL_TRIE_NO_TOKEN; id = w->v->twin[id]) {
        if (w->mask)
            w->mask[id / 32] |= 1u << id % 32;
        else
            append(w, &w->list, &w->n_list, &w->cap_list, id);
    }
    if (w->mask || w->n_list <= MOST_SPARSE) return;
    w->mask = sl_alloc(w->v->words, sizeof *w->mask);
    w->failed |= !w->mask;
    for (uint32_t i = 0; w->mask && i < w->n_list; i++)
        w->mask[w->list[i] / 32] |= 1u << w->list[i] % 32;
    w->n_list = w->mask ? 0 : w->n_list;
}

/* Whether every plain character matches e; *single: and no two of them do. */
static bool takes_plain(sl_rx_store *s, sl_rx plain, sl_rx e, bool *single) {
    *single = false;
    if (sl_rx_live(s, sl_rx_and2(s, plain, sl_rx_not(s, e)))) return false;
    *single = !sl_rx_live(s, sl_rx_and2(s, e, sl_rx_rep(s, plain, 2, SL_RX_MANY)));
    return true;
}

/* How many plain characters a state takes, whatever they are; 0: not known. *exact: it neither
 * takes more of them nor ends behind them. */
static uint32_t plain_run(sl_rx_store *s, sl_rx plain, sl_rx state, bool *exact) {
    sl_rx_node node = *sl_rx_at(s, state);
    sl_rx after = SL_RX_EPS;
    bool single;
    *exact = false;
    if (node.kind == SL_RX_K_CAT) {
        after = node.b;
        node = *sl_rx_at(s, node.a);
    }
    if (node.kind != SL_RX_K_REP || !takes_plain(s, plain, node.a, &single)) return 0;
    const sl_rx_row row = sl_rx_row_of(s, after);
    *exact = single && !sl_rx_nullable(s, after);
    for (unsigned b = 0x20; b < 256 && *exact; b++)
        if (b != '"' && b != '\\' && row.to[row.cls[b]] != SL_RX_NONE) *exact = false;
    return node.c;
}

static void add_plain(walk *w, uint32_t most) {
    const sl_vocab *v = w->v;
    const uint32_t kept = SL_MIN(most, SL_VOCAB_LENGTHS);
    w->mask = sl_alloc(v->words, sizeof *w->mask);
    if (!w->mask) {
        w->failed = true;
        return;
    }
    memcpy(w->mask, v->plain + kept * v->words, v->words * sizeof *w->mask);
    for (uint32_t i = v->n_plain; i-- > 0 && v->plain_length[i] > SL_VOCAB_LENGTHS;)
        if (v->plain_length[i] <= most) w->mask[v->plain_ids[i] / 32] |= 1u << v->plain_ids[i] % 32;
}

static void add_dead(walk *w, uint32_t from, uint32_t to) {
    if (from == to) return;
    if (w->n_dead && w->dead[w->n_dead - 1] == from) {
        w->dead[w->n_dead - 1] = to;
        return;
    }
    append(w, &w->dead, &w->n_dead, &w->cap_dead, from);
    append(w, &w->dead, &w->n_dead, &w->cap_dead, to);
}

/* A state on the way to a node. */
typedef struct step {
    sl_rx state;
    sl_rx_row row;
} step;

/* The way to a node, the root's state first; `few` where it is long enough. NULL: no memory. */
static step *way_from(walk *w, sl_rx state, uint32_t most_depth, step few[64]) {
    step *way = most_depth < 64 ? few : sl_alloc((size_t)most_depth + 1, sizeof *way);
    if (way) way[0] = (step){state, sl_rx_row_of(w->s, state)};
    w->failed |= !way;
    return way;
}

static void note_exit(walk *w, sl_rx state, uint32_t node) {
    if (sl_rx_nullable(w->s, state)) append(w, &w->exits, &w->n_exits, &w->cap_exits, node);
}

/* Whether all plain tokens below a node are allowed, which saves looking at them. Exits there are
 * for other tokens alone, and the walk over those notes them. */
static bool takes_below(walk *w, const sl_plain_node *x, sl_rx before, sl_rx next) {
    if (x->part == SL_PLAIN_INSIDE) return false;
    return sl_runs_take(&w->runs, x->part == SL_PLAIN_FIRST ? before : next, x->below, x->most);
}

/* Walks the tree of plain tokens, and notes those that are not allowed. */
static void walk_plain(walk *w, sl_rx state) {
    const sl_plain_node *t = w->v->plain_tree;
    const uint32_t end = w->v->n_plain_nodes;
    step few[64], *way = way_from(w, state, w->v->all.most_depth, few);
    for (uint32_t i = takes_below(w, t, state, state) ? end : 1; i < end && !w->failed;) {
        const sl_plain_node *x = &t[i];
        const step *at = &way[x->depth - 1];
        const sl_rx next = at->row.to[at->row.cls[x->byte]];
        if (next == SL_RX_NONE) add_dead(w, x->from, t[x->skip].from);
        if (next == SL_RX_NONE || (x->skip > i + 1 && takes_below(w, x, at->state, next))) {
            i = x->skip;
            continue;
        }
        if (x->skip > i + 1) {
            note_exit(w, next, w->v->plain_in_all[i]);
            way[x->depth] = (step){next, sl_rx_row_of(w->s, next)};
        }
        i++;
    }
    if (way != few) sl_free(way);
}

/* Walks the tree of the others. */
static void walk_rest(walk *w, sl_rx state) {
    const sl_trie *t = &w->v->rest;
    step few[64], *way = way_from(w, state, t->most_depth, few);
    for (uint32_t i = 1; i < t->n && !w->failed;) {
        const sl_rx_row *row = &way[t->depth[i] - 1].row;
        const sl_rx next = row->to[row->cls[t->byte[i]]];
        if (next == SL_RX_NONE) {
            i = t->skip[i];
            continue;
        }
        if (t->token[i] != SL_TRIE_NO_TOKEN) add_token(w, t->token[i]);
        if (t->skip[i] > i + 1) {
            note_exit(w, next, w->v->rest_in_all[i]);
            way[t->depth[i]] = (step){next, sl_rx_row_of(w->s, next)};
        }
        i++;
    }
    if (way != few) sl_free(way);
}

static bool own_mask(walk *w) {
    if (!w->mask) w->mask = sl_alloc(w->v->words, sizeof *w->mask);
    w->failed |= !w->mask;
    return w->mask;
}

/* A stretch of plain tokens that are allowed. */
static void add_stretch(walk *w, uint32_t from, uint32_t to) {
    const uint32_t *order = w->v->order;
    for (uint32_t k = from; k < to && !w->failed; k++) {
        if (w->mask)
            w->mask[order[k] / 32] |= 1u << order[k] % 32;
        else
            append(w, &w->list, &w->n_list, &w->cap_list, order[k]);
    }
}

/* Plain tokens but the dead ones. Where those are the fewer, they are taken out of all. */
static void add_living(walk *w) {
    const sl_vocab *v = w->v;
    const uint32_t all = v->n_plain;
    uint32_t dead = 0, at = 0;
    for (uint32_t i = 0; i + 1 < w->n_dead; i += 2) dead += w->dead[i + 1] - w->dead[i];
    if (dead < all / 2) {
        add_plain(w, UINT32_MAX);
        for (uint32_t i = 0; w->mask && i + 1 < w->n_dead; i += 2)
            for (uint32_t k = w->dead[i]; k < w->dead[i + 1]; k++)
                w->mask[v->order[k] / 32] &= ~(1u << v->order[k] % 32);
        return;
    }
    if (all - dead > MOST_SPARSE && !own_mask(w)) return;
    for (uint32_t i = 0; i < w->n_dead; i += 2) {
        add_stretch(w, at, w->dead[i]);
        at = w->dead[i + 1];
    }
    add_stretch(w, at, all);
}

sl_table *sl_table_make(const sl_vocab *v, sl_rx_store *s, sl_rx state) {
    walk w = {.v = v, .s = s, .runs.s = s};
    bool exact;
    const uint32_t run = plain_run(s, v->rx.plain_char, state, &exact);
    if (run && (exact || run >= v->most_plain)) {
        add_plain(&w, run);
    } else {
        walk_plain(&w, state);
        if (!w.failed) add_living(&w);
    }
    if (!w.failed) walk_rest(&w, state);
    sl_free(w.dead);
    sl_table *t = sl_alloc(1, sizeof *t);
    if (!t || w.failed || sl_rx_status(s, NULL) != SL_OK) {
        sl_free(t);
        sl_free(w.mask);
        sl_free(w.list);
        sl_free(w.exits);
        return NULL;
    }
    if (w.mask) {
        sl_free(w.list);
        w.list = NULL;
        w.n_list = 0;
    }
    *t = (sl_table){.dense = w.mask,
                    .sparse = w.list,
                    .n_sparse = w.n_list,
                    .exits = w.exits,
                    .n_exits = w.n_exits,
                    .bytes = sizeof *t + (w.mask ? v->words * sizeof *w.mask : 0) +
                             (w.list ? w.cap_list : 0) * sizeof *w.list +
                             w.cap_exits * sizeof *w.exits};
    return t;
}

void sl_table_free(sl_table *t) {
    if (!t) return;
    sl_free(t->dense);
    sl_free(t->sparse);
    sl_free(t->exits);
    sl_free(t);
}
