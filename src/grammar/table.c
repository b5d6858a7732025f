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
    sl_rx asked[1024]; /* states of which is known whether they take any plain text */
    bool free[1024];
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

/* Whether every plain token is allowed from a state on. */
static bool takes_all_plain(walk *w, sl_rx state) {
    const uint32_t slot = state % SL_LEN(w->asked);
    bool exact;
    if (w->asked[slot] != state) {
        w->asked[slot] = state;
        w->free[slot] = plain_run(w->s, w->v->rx.plain_char, state, &exact) >= w->v->most_plain;
    }
    return w->free[slot];
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

/* Walks the tree of plain tokens, or that of the others. Of plain ones those that are not allowed
 * are noted, and where all that is left is, nothing is looked at. */
static void walk_tree(walk *w, bool plain, sl_rx state) {
    const sl_trie *t = plain ? &w->v->plain_tree : &w->v->rest;
    const uint32_t *node_of = plain ? w->v->plain_in_all : w->v->rest_in_all;
    sl_rx_row few[64], *rows = few;
    if (t->most_depth + 1 > SL_LEN(few)) rows = sl_alloc(t->most_depth + 1, sizeof *rows);
    if (!rows) {
        w->failed = true;
        return;
    }
    rows[0] = sl_rx_row_of(w->s, state);
    for (uint32_t i = 1; i < t->n && !w->failed;) {
        const sl_rx_row *row = &rows[t->depth[i] - 1];
        const sl_rx next = row->to[row->cls[t->byte[i]]];
        if (next == SL_RX_NONE && plain) add_dead(w, w->v->from[i], w->v->from[t->skip[i]]);
        if (next == SL_RX_NONE || (plain && takes_all_plain(w, next))) {
            i = t->skip[i];
            continue;
        }
        if (!plain && t->token[i] != SL_TRIE_NO_TOKEN) add_token(w, t->token[i]);
        if (t->skip[i] > i + 1) {
            if (sl_rx_nullable(w->s, next))
                append(w, &w->exits, &w->n_exits, &w->cap_exits, node_of[i]);
            rows[t->depth[i]] = sl_rx_row_of(w->s, next);
        }
        i++;
    }
    if (rows != few) sl_free(rows);
}

/* Plain tokens but the dead ones. Where those are the fewer, they are taken out of all. */
static void add_living(walk *w) {
    const sl_vocab *v = w->v;
    const uint32_t all = v->from[v->plain_tree.n];
    uint32_t dead = 0, at = 0;
    for (uint32_t i = 0; i + 1 < w->n_dead; i += 2) dead += w->dead[i + 1] - w->dead[i];
    if (dead < all / 2 && !w->mask) {
        add_plain(w, UINT32_MAX);
        for (uint32_t i = 0; w->mask && i + 1 < w->n_dead; i += 2)
            for (uint32_t k = w->dead[i]; k < w->dead[i + 1]; k++)
                for (uint32_t id = v->order[k]; id != SL_TRIE_NO_TOKEN; id = v->twin[id])
                    w->mask[id / 32] &= ~(1u << id % 32);
        return;
    }
    for (uint32_t i = 0; i <= w->n_dead && !w->failed; i += 2) {
        for (; at < (i < w->n_dead ? w->dead[i] : all) && !w->failed; at++)
            add_token(w, v->order[at]);
        if (i < w->n_dead) at = w->dead[i + 1];
    }
}

sl_table *sl_table_make(const sl_vocab *v, sl_rx_store *s, sl_rx state) {
    walk w = {.v = v, .s = s};
    bool exact;
    const uint32_t run = plain_run(s, v->rx.plain_char, state, &exact);
    if (run && (exact || run >= v->most_plain)) {
        add_plain(&w, run);
    } else {
        walk_tree(&w, true, state);
        if (!w.failed) add_living(&w);
    }
    if (!w.failed) walk_tree(&w, false, state);
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
