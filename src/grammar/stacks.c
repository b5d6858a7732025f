/* Sets of stacks, shared: stacks with one top share what is below, equal sets are one number.
 * However many stacks a text has, the sets grow with the text alone. */
#include "grammar/grammar_int.h"

#include "base/mem.h"

#define MAX_DEPTH 20000u /* of a union: stacks that differ so far down */

static uint64_t hash_of(const sl_grammar *g, const sl_stacks *x) {
    uint64_t h = x->empty ? 0x9e3779b97f4a7c15u : 1;
    for (uint32_t i = 0; i < x->n; i++) {
        h = (h ^ g->ways[x->first + i].to) * 0xff51afd7ed558ccdu, h ^= h >> 31;
        h = (h ^ g->ways[x->first + i].stacks) * 0xc4ceb9fe1a85ec53u, h ^= h >> 29;
    }
    return h;
}

static bool rehash(sl_grammar *g) {
    const size_t slots = g->n_stack_slots ? 2 * g->n_stack_slots : 256;
    uint32_t *table = sl_alloc(slots, sizeof *table);
    if (!table) {
        sl_grammar_spoil(g, SL_ERR_NOMEM, "", 0);
        return false;
    }
    g->memory += (slots - g->n_stack_slots) * sizeof *table;
    for (uint32_t i = 0; i < g->n_stacks; i++) {
        size_t at = hash_of(g, &g->stacks[i]) & (slots - 1);
        while (table[at]) at = (at + 1) & (slots - 1);
        table[at] = i + 1;
    }
    sl_free(g->stack_slots);
    g->stack_slots = table;
    g->n_stack_slots = slots;
    return true;
}

/* The number of a set whose ways are the last of g->ways; they go where the set is known. */
static uint32_t intern(sl_grammar *g, sl_stacks x) {
    if (2 * ((size_t)g->n_stacks + 1) > g->n_stack_slots && !rehash(g)) return 0;
    size_t at = hash_of(g, &x) & (g->n_stack_slots - 1);
    for (; g->stack_slots[at]; at = (at + 1) & (g->n_stack_slots - 1)) {
        const sl_stacks *y = &g->stacks[g->stack_slots[at] - 1];
        if (y->n != x.n || y->empty != x.empty ||
            memcmp(g->ways + y->first, g->ways + x.first, x.n * sizeof *g->ways) != 0)
            continue;
        g->n_ways -= x.n;
        return g->stack_slots[at] - 1;
    }
    if (!sl_grammar_room(g, (void **)&g->stacks, &g->cap_stacks, g->n_stacks + 1,
                         sizeof *g->stacks))
        return 0;
    g->stacks[g->n_stacks] = x;
    g->stack_slots[at] = g->n_stacks + 1;
    return g->n_stacks++;
}

uint32_t sl_stacks_push(sl_grammar *g, uint32_t state, uint32_t below) {
    if (g->n_stacks == 0) (void)intern(g, (sl_stacks){.empty = true});
    if (!sl_grammar_room(g, (void **)&g->ways, &g->cap_ways, g->n_ways + 1, sizeof *g->ways))
        return 0;
    g->ways[g->n_ways] = (sl_way){state, below};
    g->n_ways++;
    return intern(g, (sl_stacks){.first = g->n_ways - 1, .n = 1});
}

/* The ways of both; what lies below a way of both is joined, too, before this set's own ways are
 * put at the end. */
static uint32_t join_ways(sl_grammar *g, uint32_t a, uint32_t b) {
    const sl_stacks x = g->stacks[a], y = g->stacks[b];
    const uint32_t base = g->n_work; /* the joined ways wait on the stack of work */
    uint32_t i = 0, k = 0;
    while (i < x.n || k < y.n) {
        sl_way w;
        if (k == y.n || (i < x.n && g->ways[x.first + i].to < g->ways[y.first + k].to)) {
            w = g->ways[x.first + i++];
        } else if (i == x.n || g->ways[y.first + k].to < g->ways[x.first + i].to) {
            w = g->ways[y.first + k++];
        } else {
            w = g->ways[x.first + i++];
            w.stacks = sl_stacks_join(g, w.stacks, g->ways[y.first + k++].stacks);
        }
        if (!sl_grammar_room(g, (void **)&g->work, &g->cap_work, g->n_work + 1, sizeof *g->work))
            return 0;
        g->work[g->n_work++] = (sl_place){w.to, w.stacks, 0};
    }
    const uint32_t n = g->n_work - base, first = g->n_ways;
    g->n_work = base;
    if (!sl_grammar_room(g, (void **)&g->ways, &g->cap_ways, first + n, sizeof *g->ways)) return 0;
    for (uint32_t m = 0; m < n; m++)
        g->ways[first + m] = (sl_way){g->work[base + m].state, g->work[base + m].stacks};
    g->n_ways += n;
    return intern(g, (sl_stacks){.first = first, .n = n, .empty = x.empty || y.empty});
}

uint32_t sl_stacks_join(sl_grammar *g, uint32_t a, uint32_t b) {
    if (a == b || g->bad != SL_OK) return a;
    if (g->depth >= MAX_DEPTH) {
        sl_grammar_spoil(g, SL_ERR_LIMIT, "levels of rules inside one another", MAX_DEPTH);
        return a;
    }
    g->depth++;
    const uint32_t c = join_ways(g, a, b);
    g->depth--;
    return c;
}
