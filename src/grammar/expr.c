/* Interned expressions: the table, and the constructors that keep equal ones equal. */
#include "grammar/expr_int.h"

#include "base/mem.h"

#include <stdlib.h>

#define FIRST_NODES 1024u

void sl_rx_spoil(sl_rx_store *s, sl_status st, const char *what, uint64_t limit) {
    if (s->bad != SL_OK) return;
    s->bad = st;
    s->what = what;
    s->limit = limit;
}

sl_status sl_rx_status(const sl_rx_store *s, sl_err *err) {
    if (s->bad == SL_OK) return SL_OK;
    if (s->bad == SL_ERR_NOMEM) return sl_fail(err, SL_ERR_NOMEM, "out of memory for a grammar");
    return sl_fail(err, s->bad, "the automaton takes more than %llu %s (limit)",
                   (unsigned long long)s->limit, s->what);
}

bool sl_rx_room(sl_rx_store *s, void **p, size_t *cap, size_t need, size_t size) {
    size_t more = *cap ? *cap : 64;
    if (need <= *cap) return true;
    while (more < need) more *= 2;
    void *grown = sl_grow(*p, *cap, more, size);
    if (!grown) {
        sl_rx_spoil(s, SL_ERR_NOMEM, "", 0);
        return false;
    }
    s->memory += (more - *cap) * size;
    *p = grown;
    *cap = more;
    return true;
}

static uint32_t hash_of(const sl_rx_store *s, const sl_rx_node *n) {
    uint64_t h = n->kind * 0x9e3779b97f4a7c15u;
    if (n->kind == SL_RX_K_OR || n->kind == SL_RX_K_AND) {
        for (uint32_t i = 0; i < n->b; i++)
            h = (h ^ s->items[n->a + i]) * 0xff51afd7ed558ccdu, h ^= h >> 29;
    } else {
        h = (h ^ n->a) * 0xff51afd7ed558ccdu, h ^= h >> 29;
        h = (h ^ n->b) * 0xff51afd7ed558ccdu, h ^= h >> 29;
        h = (h ^ n->c) * 0xff51afd7ed558ccdu;
    }
    return (uint32_t)(h ^ h >> 32);
}

static bool same(const sl_rx_store *s, const sl_rx_node *x, const sl_rx_node *y) {
    if (x->kind != y->kind || x->b != y->b) return false;
    if (x->kind == SL_RX_K_OR || x->kind == SL_RX_K_AND)
        return !memcmp(s->items + x->a, s->items + y->a, x->b * sizeof *s->items);
    return x->a == y->a && x->c == y->c;
}

static bool rehash(sl_rx_store *s) {
    size_t slots = s->n_slots ? s->n_slots * 2 : 4 * FIRST_NODES;
    uint32_t *table = sl_alloc(slots, sizeof *table);
    if (!table) {
        sl_rx_spoil(s, SL_ERR_NOMEM, "", 0);
        return false;
    }
    s->memory += (slots - s->n_slots) * sizeof *table;
    for (uint32_t i = 1; i < s->n_nodes; i++) {
        size_t at = hash_of(s, &s->nodes[i]) & (slots - 1);
        while (table[at]) at = (at + 1) & (slots - 1);
        table[at] = i;
    }
    sl_free(s->slots);
    s->slots = table;
    s->n_slots = slots;
    return true;
}

/* The number of a node; items of lists were put at the end of s->items and go where it is known. */
sl_rx sl_rx_intern(sl_rx_store *s, sl_rx_node node) {
    const bool list = node.kind == SL_RX_K_OR || node.kind == SL_RX_K_AND;
    if (s->bad != SL_OK) return SL_RX_NONE;
    if (2 * ((size_t)s->n_nodes + 1) > s->n_slots && !rehash(s)) return SL_RX_NONE;
    size_t at = hash_of(s, &node) & (s->n_slots - 1);
    for (; s->slots[at]; at = (at + 1) & (s->n_slots - 1))
        if (same(s, &s->nodes[s->slots[at]], &node)) {
            if (list) s->n_items -= node.b;
            return s->slots[at];
        }
    if (s->n_nodes >= SL_RX_MAX_NODES) {
        sl_rx_spoil(s, SL_ERR_LIMIT, "expressions", SL_RX_MAX_NODES);
        return SL_RX_NONE;
    }
    size_t cap = s->cap_nodes;
    if (s->n_nodes == cap) {
        size_t cap_extra = cap;
        if (!sl_rx_room(s, (void **)&s->nodes, &cap, cap + 1, sizeof *s->nodes) ||
            !sl_rx_room(s, (void **)&s->extra, &cap_extra, cap_extra + 1, sizeof *s->extra))
            return SL_RX_NONE;
        s->cap_nodes = cap;
    }
    s->nodes[s->n_nodes] = node;
    s->slots[at] = s->n_nodes;
    return s->n_nodes++;
}

sl_status sl_rx_create(sl_rx_store **out, sl_err *err) {
    sl_rx_store *s = sl_alloc(1, sizeof *s);
    *out = NULL;
    if (!s) return sl_fail(err, SL_ERR_NOMEM, "out of memory for a grammar");
    s->steps = SL_RX_STEPS_COMPILE;
    size_t cap = 0, cap_extra = 0;
    if (sl_rx_room(s, (void **)&s->nodes, &cap, FIRST_NODES, sizeof *s->nodes) &&
        sl_rx_room(s, (void **)&s->extra, &cap_extra, FIRST_NODES, sizeof *s->extra)) {
        s->cap_nodes = cap;
        s->n_nodes = 1; /* SL_RX_NONE is the node of zeroes and in no slot */
        (void)sl_rx_intern(s, (sl_rx_node){.kind = SL_RX_K_EPS, .nullable = true});
        (void)sl_rx_intern(s, (sl_rx_node){.kind = SL_RX_K_NOT, .nullable = true});
    }
    if (s->bad != SL_OK) {
        sl_rx_free(s);
        return sl_fail(err, SL_ERR_NOMEM, "out of memory for a grammar");
    }
    *out = s;
    return SL_OK;
}

static void *copied(const void *from, size_t n, size_t cap, size_t size) {
    void *to = sl_alloc(cap, size);
    if (to && n) memcpy(to, from, n * size);
    return to;
}

sl_status sl_rx_clone(const sl_rx_store *from, sl_rx_store **out, sl_err *err) {
    sl_rx_store *s = sl_alloc(1, sizeof *s);
    *out = NULL;
    SL_ASSERT(from->n_conditions == 0);
    if (s) {
        *s = *from;
        s->nodes = copied(from->nodes, from->n_nodes, from->cap_nodes, sizeof *s->nodes);
        s->extra = copied(from->extra, from->n_nodes, from->cap_nodes, sizeof *s->extra);
        s->items = copied(from->items, from->n_items, from->cap_items, sizeof *s->items);
        s->sets = copied(from->sets, from->n_sets, from->cap_sets, sizeof *s->sets);
        s->maps = copied(from->maps, from->n_maps, from->cap_maps, sizeof *s->maps);
        s->slots = copied(from->slots, from->n_slots, from->n_slots, sizeof *s->slots);
        s->scratch = NULL;
        s->cap_scratch = 0;
        s->conditions = NULL;
        s->cap_conditions = 0;
        s->chunk = NULL;
        s->chunk_left = 0;
        s->borrowed_maps = from->n_maps;
        s->steps = SL_RX_STEPS_COMPILE;
        if (!s->nodes || !s->extra || !s->items || !s->sets || !s->maps || !s->slots) {
            sl_rx_free(s);
            s = NULL;
        }
    }
    if (!s) return sl_fail(err, SL_ERR_NOMEM, "out of memory for a grammar");
    *out = s;
    return SL_OK;
}

void sl_rx_free(sl_rx_store *s) {
    if (!s) return;
    for (uint32_t i = s->borrowed_maps; s->maps && i < s->n_maps; i++) sl_free(s->maps[i]);
    for (struct sl_rx_chunk *c = s->chunk, *next; c; c = next) {
        next = c->next;
        sl_free(c);
    }
    for (uint32_t i = 0; i < s->n_conditions; i++) sl_free(s->conditions[i]);
    sl_free(s->conditions);
    sl_free(s->nodes);
    sl_free(s->extra);
    sl_free(s->items);
    sl_free(s->sets);
    sl_free(s->maps);
    sl_free(s->slots);
    sl_free(s->scratch);
    sl_free(s);
}

size_t sl_rx_memory(const sl_rx_store *s) {
    return s->memory;
}

void sl_rx_allow(sl_rx_store *s, uint64_t steps) {
    s->steps = steps;
}

bool sl_rx_step(sl_rx_store *s, uint64_t n) {
    if (s->steps < n) sl_rx_spoil(s, SL_ERR_LIMIT, "steps at once", SL_RX_STEPS_TOKEN);
    s->steps -= SL_MIN(n, s->steps);
    return s->bad == SL_OK;
}

const sl_rx_node *sl_rx_at(const sl_rx_store *s, sl_rx e) {
    return &s->nodes[e];
}

bool sl_rx_nullable(const sl_rx_store *s, sl_rx e) {
    return s->nodes[e].nullable;
}

sl_rx sl_rx_bytes(sl_rx_store *s, const sl_bytes *set) {
    uint32_t i = 0;
    if (!(set->w[0] | set->w[1] | set->w[2] | set->w[3])) return SL_RX_NONE;
    for (; i < s->n_sets; i++)
        if (!memcmp(&s->sets[i], set, sizeof *set)) break;
    if (i == s->n_sets) {
        if (!sl_rx_room(s, (void **)&s->sets, &s->cap_sets, s->n_sets + 1, sizeof *s->sets))
            return SL_RX_NONE;
        s->sets[s->n_sets++] = *set;
    }
    return sl_rx_intern(s, (sl_rx_node){.kind = SL_RX_K_BYTES, .a = i});
}

sl_rx sl_rx_range(sl_rx_store *s, unsigned from, unsigned to) {
    sl_bytes set = {{0}};
    sl_bytes_add(&set, from, to);
    return sl_rx_bytes(s, &set);
}

sl_rx sl_rx_text(sl_rx_store *s, sl_span text) {
    sl_rx e = SL_RX_EPS;
    for (size_t i = text.len; i-- > 0;)
        e = sl_rx_cat(s, sl_rx_range(s, text.data[i], text.data[i]), e);
    return e;
}

sl_rx sl_rx_chars(sl_rx_store *s, const char *text) {
    return sl_rx_text(s, (sl_span){(const uint8_t *)text, strlen(text)});
}

static sl_rx cat2(sl_rx_store *s, sl_rx a, sl_rx b) {
    return sl_rx_intern(s, (sl_rx_node){.kind = SL_RX_K_CAT,
                                        .nullable = s->nodes[a].nullable && s->nodes[b].nullable,
                                        .fancy = s->nodes[a].fancy || s->nodes[b].fancy,
                                        .a = a,
                                        .b = b});
}

sl_rx sl_rx_cat(sl_rx_store *s, sl_rx a, sl_rx b) {
    if (a == SL_RX_NONE || b == SL_RX_NONE) return SL_RX_NONE;
    if (a == SL_RX_EPS) return b;
    if (b == SL_RX_EPS) return a;
    /* the spine of a is put before b, last first */
    const size_t base = s->n_scratch;
    for (; s->nodes[a].kind == SL_RX_K_CAT; a = s->nodes[a].b)
        if (!sl_rx_push(s, s->nodes[a].a)) return SL_RX_NONE;
    sl_rx e = cat2(s, a, b);
    while (s->n_scratch > base)
        e = e ? cat2(s, s->scratch[--s->n_scratch], e) : (s->n_scratch = base, e);
    return e;
}

bool sl_rx_push(sl_rx_store *s, sl_rx e) {
    if (!sl_rx_room(s, (void **)&s->scratch, &s->cap_scratch, s->n_scratch + 1, sizeof e))
        return false;
    s->scratch[s->n_scratch++] = e;
    return true;
}

static int by_number(const void *x, const void *y) {
    const sl_rx a = *(const sl_rx *)x, b = *(const sl_rx *)y;
    return a < b ? -1 : a > b;
}

/* Operands of a list from s->scratch[base]: those of operands of the same kind take their place. */
static bool flatten(sl_rx_store *s, sl_rx_kind kind, const sl_rx *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const sl_rx_node node = s->nodes[list[i]];
        if (node.kind != (uint8_t)kind) {
            if (!sl_rx_push(s, list[i])) return false;
            continue;
        }
        for (uint32_t k = 0; k < node.b; k++)
            if (!sl_rx_push(s, s->items[node.a + k])) return false;
    }
    return true;
}

/* Sets of bytes among the operands become one. */
static void join_sets(sl_rx_store *s, sl_rx_kind kind, size_t base) {
    sl_bytes all = {{0}};
    size_t n = base, found = 0;
    for (size_t i = base; i < s->n_scratch; i++) {
        const sl_rx_node *node = &s->nodes[s->scratch[i]];
        if (node->kind != SL_RX_K_BYTES) {
            s->scratch[n++] = s->scratch[i];
            continue;
        }
        for (int w = 0; w < 4; w++)
            all.w[w] = !found               ? s->sets[node->a].w[w]
                       : kind == SL_RX_K_OR ? all.w[w] | s->sets[node->a].w[w]
                                            : all.w[w] & s->sets[node->a].w[w];
        found++;
    }
    s->n_scratch = n;
    if (found) (void)sl_rx_push(s, sl_rx_bytes(s, &all));
}

/* Sorts, drops doubles and `unit`; *out: `zero`, if it is there. */
static bool settle(sl_rx_store *s, size_t base, sl_rx unit, sl_rx zero) {
    size_t n = base;
    if (s->n_scratch - base > 2)
        qsort(s->scratch + base, s->n_scratch - base, sizeof *s->scratch, by_number);
    else if (s->n_scratch - base == 2 && s->scratch[base] > s->scratch[base + 1]) {
        const sl_rx swap = s->scratch[base];
        s->scratch[base] = s->scratch[base + 1];
        s->scratch[base + 1] = swap;
    }
    for (size_t i = base; i < s->n_scratch; i++) {
        const sl_rx e = s->scratch[i];
        if (e == zero) return false;
        if (e != unit && (n == base || s->scratch[n - 1] != e)) s->scratch[n++] = e;
    }
    s->n_scratch = n;
    return true;
}

static sl_rx finish_list(sl_rx_store *s, sl_rx_kind kind, size_t base) {
    const size_t n = s->n_scratch - base;
    bool any = false, all = true, fancy = kind == SL_RX_K_AND;
    if (s->n_items + n > SL_RX_MAX_ITEMS) sl_rx_spoil(s, SL_ERR_LIMIT, "operands", SL_RX_MAX_ITEMS);
    if (s->bad != SL_OK ||
        !sl_rx_room(s, (void **)&s->items, &s->cap_items, s->n_items + n, sizeof *s->items))
        return SL_RX_NONE;
    for (size_t i = 0; i < n; i++) {
        const sl_rx_node *node = &s->nodes[s->scratch[base + i]];
        any |= node->nullable;
        all &= node->nullable;
        fancy |= node->fancy;
        s->items[s->n_items + i] = s->scratch[base + i];
    }
    const uint32_t at = (uint32_t)s->n_items;
    s->n_items += n;
    return sl_rx_intern(s, (sl_rx_node){.kind = (uint8_t)kind,
                                        .nullable = kind == SL_RX_K_OR ? any : all,
                                        .fancy = fancy,
                                        .a = at,
                                        .b = (uint32_t)n});
}

/* Where another operand matches the empty text anyway, EPS says nothing. */
static void drop_empty(sl_rx_store *s, size_t base) {
    bool other = false;
    for (size_t i = base; i < s->n_scratch; i++)
        other |= s->scratch[i] != SL_RX_EPS && s->nodes[s->scratch[i]].nullable;
    if (other && s->n_scratch > base && s->scratch[base] == SL_RX_EPS) {
        memmove(s->scratch + base, s->scratch + base + 1,
                (s->n_scratch - base - 1) * sizeof *s->scratch);
        s->n_scratch--;
    }
}

static sl_rx list_of(sl_rx_store *s, sl_rx_kind kind, const sl_rx *list, size_t n) {
    const sl_rx unit = kind == SL_RX_K_OR ? SL_RX_NONE : SL_RX_ALL;
    const sl_rx zero = kind == SL_RX_K_OR ? SL_RX_ALL : SL_RX_NONE;
    const size_t base = s->n_scratch;
    sl_rx e = SL_RX_NONE;
    if (!flatten(s, kind, list, n) || !sl_rx_step(s, s->n_scratch - base)) goto out;
    join_sets(s, kind, base);
    if (!settle(s, base, unit, zero)) {
        e = zero;
        goto out;
    }
    if (kind == SL_RX_K_OR) drop_empty(s, base);
    if (s->n_scratch - base <= 1) {
        e = s->n_scratch == base ? unit : s->scratch[base];
        goto out;
    }
    if (kind == SL_RX_K_AND && s->scratch[base] == SL_RX_EPS) {
        bool all = true;
        for (size_t i = base; i < s->n_scratch; i++) all &= s->nodes[s->scratch[i]].nullable;
        e = all ? SL_RX_EPS : SL_RX_NONE;
        goto out;
    }
    e = finish_list(s, kind, base);
out:
    s->n_scratch = base;
    return s->bad == SL_OK ? e : SL_RX_NONE;
}

sl_rx sl_rx_or(sl_rx_store *s, const sl_rx *list, size_t n) {
    return list_of(s, SL_RX_K_OR, list, n);
}

void sl_rx_list_add(sl_rx_store *s, sl_rx_list *list, sl_rx e) {
    if (sl_rx_room(s, (void **)&list->v, &list->cap, list->n + 1, sizeof e)) list->v[list->n++] = e;
}

/* Alternatives that begin with the same expression; of one alone `head` is all of it. */
typedef struct sl_rx_run {
    sl_rx head;
    size_t first, n;
} sl_rx_run;

typedef struct sl_rx_split {
    sl_rx head, tail, whole;
} sl_rx_split;

static int by_head(const void *a, const void *b) {
    const sl_rx_split *x = a, *y = b;
    if (x->head != y->head) return x->head < y->head ? -1 : 1;
    return x->tail < y->tail ? -1 : x->tail > y->tail;
}

/* Sorts n alternatives by what they begin with: *out has the runs, which the caller frees, and `v`
 * what is behind their heads. */
static size_t runs_of(sl_rx_store *s, sl_rx *v, size_t n, sl_rx_run **out) {
    sl_rx_split *all = sl_alloc(n, sizeof *all);
    size_t n_runs = 0;
    *out = NULL;
    for (size_t i = 0; all && i < n; i++) {
        const sl_rx_node *node = &s->nodes[v[i]];
        const bool cat = node->kind == SL_RX_K_CAT;
        all[i] = (sl_rx_split){cat ? node->a : v[i], cat ? node->b : SL_RX_EPS, v[i]};
    }
    if (all) qsort(all, n, sizeof *all, by_head);
    for (size_t i = 0; all && i < n; i++) n_runs += i == 0 || all[i].head != all[i - 1].head;
    sl_rx_run *runs = all ? sl_alloc(n_runs, sizeof *runs) : NULL;
    for (size_t i = 0, k = 0; runs && i < n; k++) {
        runs[k] = (sl_rx_run){.head = all[i].head, .first = i};
        for (; i < n && all[i].head == runs[k].head; i++, runs[k].n++) v[i] = all[i].tail;
        if (runs[k].n == 1) runs[k].head = all[i - 1].whole;
    }
    if (!runs) sl_rx_spoil(s, SL_ERR_NOMEM, "", 0);
    sl_free(all);
    *out = runs;
    return n_runs;
}

/* ab|ac is a(b|c): else each byte of a text would derive every one of thousands of alternatives.
 * `v` is overwritten. */
static sl_rx factored(sl_rx_store *s, sl_rx *v, size_t n, uint32_t depth) {
    sl_rx_run *runs;
    if (n <= 1 || depth == SL_RX_MAX_DEPTH / 2 || !sl_rx_step(s, n)) return sl_rx_or(s, v, n);
    const size_t n_runs = runs_of(s, v, n, &runs);
    for (size_t k = 0; runs && k < n_runs; k++)
        v[k] = runs[k].n == 1 ? runs[k].head
                              : sl_rx_cat(s, runs[k].head,
                                          factored(s, v + runs[k].first, runs[k].n, depth + 1));
    sl_free(runs);
    return sl_rx_or(s, v, runs ? n_runs : 0);
}

sl_rx sl_rx_or_list(sl_rx_store *s, sl_rx_list *list) {
    const sl_rx e = factored(s, list->v, list->n, 0);
    s->memory -= list->cap * sizeof *list->v;
    sl_free(list->v);
    *list = (sl_rx_list){0};
    return e;
}

sl_rx sl_rx_or2(sl_rx_store *s, sl_rx a, sl_rx b) {
    if (a == b || b == SL_RX_NONE) return a;
    if (a == SL_RX_NONE) return b;
    return list_of(s, SL_RX_K_OR, (sl_rx[]){a, b}, 2);
}

sl_rx sl_rx_and2(sl_rx_store *s, sl_rx a, sl_rx b) {
    if (a == b || b == SL_RX_ALL) return a;
    if (a == SL_RX_ALL) return b;
    if (a == SL_RX_NONE || b == SL_RX_NONE) return SL_RX_NONE;
    return list_of(s, SL_RX_K_AND, (sl_rx[]){a, b}, 2);
}

sl_rx sl_rx_not(sl_rx_store *s, sl_rx a) {
    if (s->nodes[a].kind == SL_RX_K_NOT) return s->nodes[a].a;
    return sl_rx_intern(s, (sl_rx_node){.kind = SL_RX_K_NOT,
                                        .nullable = !s->nodes[a].nullable,
                                        .fancy = a != SL_RX_NONE,
                                        .a = a});
}

sl_rx sl_rx_rep(sl_rx_store *s, sl_rx a, uint32_t min, uint32_t max) {
    const sl_rx_node node = s->nodes[a];
    if (s->bad != SL_OK) return SL_RX_NONE;
    if (max == 0 || a == SL_RX_EPS) return SL_RX_EPS;
    if (a == SL_RX_NONE) return min ? SL_RX_NONE : SL_RX_EPS;
    if (node.nullable) min = 0;
    if (min == 1 && max == 1) return a;
    if (node.kind == SL_RX_K_REP && node.b == 0 && node.c == SL_RX_MANY) return a;
    if (node.nullable && max == 1) return a;
    return sl_rx_intern(s, (sl_rx_node){.kind = SL_RX_K_REP,
                                        .nullable = min == 0,
                                        .fancy = node.fancy,
                                        .a = a,
                                        .b = min,
                                        .c = max});
}

static int by_text(const void *x, const void *y) {
    const sl_span *a = x, *b = y;
    const size_t n = SL_MIN(a->len, b->len);
    const int order = n ? memcmp(a->data, b->data, n) : 0;
    return order ? order : a->len < b->len ? -1 : a->len > b->len;
}

/* Sorted texts that agree in their first `from` bytes, as a tree of their beginnings. */
static sl_rx tree_of(sl_rx_store *s, const sl_span *texts, size_t n, size_t from, unsigned depth) {
    sl_rx e = SL_RX_NONE;
    size_t i = 0;
    if (depth > SL_RX_MAX_DEPTH) {
        sl_rx_spoil(s, SL_ERR_LIMIT, "texts that begin alike", SL_RX_MAX_DEPTH);
        return SL_RX_NONE;
    }
    for (; i < n && texts[i].len == from; i++) e = SL_RX_EPS;
    sl_rx_list list = {0};
    sl_rx_list_add(s, &list, e);
    while (i < n && s->bad == SL_OK) {
        size_t end = i + 1, common = from + 1;
        while (end < n && texts[end].data[from] == texts[i].data[from]) end++;
        while (common < texts[i].len && common < texts[end - 1].len &&
               texts[i].data[common] == texts[end - 1].data[common])
            common++;
        const sl_span head = {texts[i].data + from, common - from};
        const sl_rx tail = tree_of(s, texts + i, end - i, common, depth + 1);
        sl_rx_list_add(s, &list, sl_rx_cat(s, sl_rx_text(s, head), tail));
        i = end;
    }
    return sl_rx_or_list(s, &list);
}

sl_rx sl_rx_one_of(sl_rx_store *s, sl_span *texts, size_t n) {
    qsort(texts, n, sizeof *texts, by_text);
    return n ? tree_of(s, texts, n, 0, 0) : SL_RX_NONE;
}

sl_rx sl_rx_clamp(sl_rx_store *s, sl_rx e, uint32_t most) {
    const sl_rx_node node = s->nodes[e];
    if (node.kind == SL_RX_K_REP) {
        const uint32_t min = SL_MIN(node.b, most);
        const uint32_t max = node.c == SL_RX_MANY ? SL_RX_MANY : SL_MIN(node.c, most);
        return sl_rx_rep(s, node.a, min, max);
    }
    if (node.kind == SL_RX_K_CAT) {
        const sl_rx head = sl_rx_clamp(s, node.a, most);
        return head == node.a ? e : sl_rx_cat(s, head, node.b);
    }
    return e;
}
