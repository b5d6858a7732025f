/* Configurations: all readings of the text so far. What a byte makes of one is found once. */
#include "grammar/grammar_int.h"

#include "base/mem.h"

#include <stdlib.h>

static uint64_t mix(uint64_t h) {
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
    return h ^ h >> 29;
}

static uint32_t *pair_at(sl_pairs *p, uint64_t key) {
    size_t at = mix(key) & (p->slots - 1);
    while (p->value[at] && p->key[at] != key) at = (at + 1) & (p->slots - 1);
    p->key[at] = key;
    return &p->value[at];
}

/* Where the value of a key stands; 0 in it: none yet. NULL: no memory. */
static uint32_t *pair(sl_grammar *g, uint64_t key) {
    sl_pairs *p = &g->moves;
    if (2 * (p->n + 1) > p->slots) {
        sl_pairs q = {.n = p->n, .slots = p->slots ? 2 * p->slots : 256};
        q.key = sl_alloc(q.slots, sizeof *q.key);
        q.value = sl_alloc(q.slots, sizeof *q.value);
        if (!q.key || !q.value) {
            sl_free(q.key);
            sl_free(q.value);
            sl_grammar_spoil(g, SL_ERR_NOMEM, "", 0);
            return NULL;
        }
        for (size_t i = 0; i < p->slots; i++)
            if (p->value[i]) *pair_at(&q, p->key[i]) = p->value[i];
        g->memory += (q.slots - p->slots) * (sizeof *q.key + sizeof *q.value);
        sl_free(p->key);
        sl_free(p->value);
        *p = q;
    }
    return pair_at(p, key);
}

static bool same_config(const sl_grammar *g, const sl_config *c, const sl_reading *v, uint32_t n,
                        bool ends) {
    return c->n == n && c->ends == ends && !memcmp(g->readings + c->first, v, n * sizeof *v);
}

static uint64_t hash_readings(const sl_reading *v, uint32_t n, bool ends) {
    uint64_t h = ends;
    for (uint32_t i = 0; i < n; i++) h = mix(h * 31 + ((uint64_t)v[i].state << 32 | v[i].stacks));
    return h;
}

static bool rehash(sl_grammar *g) {
    const size_t slots = g->n_config_slots ? 2 * g->n_config_slots : 256;
    uint32_t *table = sl_alloc(slots, sizeof *table);
    if (!table) {
        sl_grammar_spoil(g, SL_ERR_NOMEM, "", 0);
        return false;
    }
    g->memory += (slots - g->n_config_slots) * sizeof *table;
    for (uint32_t i = 1; i < g->n_configs; i++) {
        const sl_config *c = &g->configs[i];
        size_t at = hash_readings(g->readings + c->first, c->n, c->ends) & (slots - 1);
        while (table[at]) at = (at + 1) & (slots - 1);
        table[at] = i;
    }
    sl_free(g->config_slots);
    g->config_slots = table;
    g->n_config_slots = slots;
    return true;
}

/* Of g->found: sorted by state, one reading a state. */
static uint32_t intern_found(sl_grammar *g) {
    const uint32_t n = g->n_found;
    if (g->bad != SL_OK || (n == 0 && !g->found_end)) return 0;
    if (n > SL_GRAMMAR_MAX_PARALLEL) {
        sl_grammar_spoil(g, SL_ERR_LIMIT, "readings of one text", SL_GRAMMAR_MAX_PARALLEL);
        return 0;
    }
    if (2 * ((size_t)g->n_configs + 1) > g->n_config_slots && !rehash(g)) return 0;
    size_t at = hash_readings(g->found, n, g->found_end) & (g->n_config_slots - 1);
    for (; g->config_slots[at]; at = (at + 1) & (g->n_config_slots - 1))
        if (same_config(g, &g->configs[g->config_slots[at]], g->found, n, g->found_end))
            return g->config_slots[at];
    if (!g->n_configs) g->n_configs = 1;
    if (!sl_grammar_room(g, (void **)&g->configs, &g->cap_configs, g->n_configs + 1,
                         sizeof *g->configs) ||
        !sl_grammar_room(g, (void **)&g->readings, &g->cap_readings, g->n_readings + n,
                         sizeof *g->readings))
        return 0;
    if (n) memcpy(g->readings + g->n_readings, g->found, n * sizeof *g->found);
    g->configs[g->n_configs] = (sl_config){.first = g->n_readings, .n = n, .ends = g->found_end};
    g->n_readings += n;
    g->config_slots[at] = g->n_configs;
    return g->n_configs++;
}

static void find(sl_grammar *g, sl_rx state, uint32_t stacks) {
    uint32_t low = 0, high = g->n_found;
    while (low < high) {
        const uint32_t mid = (low + high) / 2;
        if (g->found[mid].state < state)
            low = mid + 1;
        else
            high = mid;
    }
    if (low < g->n_found && g->found[low].state == state) {
        g->found[low].stacks = sl_stacks_join(g, g->found[low].stacks, stacks);
        return;
    }
    if (!sl_grammar_room(g, (void **)&g->found, &g->cap_found, g->n_found + 1, sizeof *g->found))
        return;
    memmove(g->found + low + 1, g->found + low, (g->n_found - low) * sizeof *g->found);
    g->found[low] = (sl_reading){state, stacks};
    g->n_found++;
}

/* Adds a state of rules to the work of this closure, once for each set of stacks. */
static void visit(sl_grammar *g, uint32_t state, uint32_t stacks) {
    if (!sl_grammar_room(g, (void **)&g->last, &g->cap_last, g->rules.n_states, sizeof *g->last))
        return;
    const uint32_t known = g->last[state];
    const bool valid = known < g->n_work && g->work[known].state == state;
    for (uint32_t i = valid ? known + 1 : 0; i; i = g->work[i - 1].same)
        if (g->work[i - 1].stacks == stacks) return;
    if (g->n_work >= SL_GRAMMAR_MAX_PARALLEL * 4) {
        sl_grammar_spoil(g, SL_ERR_LIMIT, "ways to go on from one place",
                         SL_GRAMMAR_MAX_PARALLEL * 4);
        return;
    }
    if (!sl_grammar_room(g, (void **)&g->work, &g->cap_work, g->n_work + 1, sizeof *g->work))
        return;
    g->last[state] = g->n_work;
    g->work[g->n_work++] = (sl_place){state, stacks, valid ? known + 1 : 0};
}

static void leave(sl_grammar *g, uint32_t stacks) {
    const sl_stacks x = g->stacks[stacks];
    if (x.empty) g->found_end = true;
    for (uint32_t i = 0; i < x.n; i++)
        visit(g, g->ways[x.first + i].to, g->ways[x.first + i].stacks);
}

static uint32_t behind(sl_grammar *g, uint32_t state, uint32_t stacks) {
    return g->rules.final[state] ? stacks : sl_stacks_push(g, state, stacks);
}

/* All readings to which the work leads without a byte. */
static void close_over(sl_grammar *g) {
    const sl_rules *r = &g->rules;
    for (uint32_t i = 0; i < g->n_work && g->bad == SL_OK; i++) {
        const sl_place at = g->work[i];
        if (r->final[at.state]) leave(g, at.stacks);
        for (uint32_t e = r->first[at.state]; e && g->bad == SL_OK; e = r->edges[e].next) {
            const sl_edge *x = &r->edges[e];
            if (x->kind == SL_EDGE_EMPTY) {
                visit(g, x->to, at.stacks);
            } else if (x->kind == SL_EDGE_CALL) {
                visit(g, r->rules[x->arg].from, behind(g, x->to, at.stacks));
            } else {
                find(g, x->arg, behind(g, x->to, at.stacks));
                if (sl_rx_nullable(g->rx, x->arg)) visit(g, x->to, at.stacks);
            }
        }
    }
}

static void begin(sl_grammar *g) {
    g->n_work = g->n_found = 0;
    g->found_end = false;
}

uint32_t sl_config_first(sl_grammar *g) {
    begin(g);
    (void)sl_stacks_push(g, 0, 0); /* makes set 0 */
    visit(g, g->rules.rules[g->root].from, 0);
    close_over(g);
    return intern_found(g);
}

uint32_t sl_config_after(sl_grammar *g, uint32_t stacks) {
    if (stacks >= g->cap_after &&
        !sl_grammar_room(g, (void **)&g->after, &g->cap_after, stacks + 1, sizeof *g->after))
        return 0;
    if (g->after[stacks]) return g->after[stacks] - 1;
    begin(g);
    leave(g, stacks);
    close_over(g);
    const uint32_t c = intern_found(g);
    if (g->bad == SL_OK) g->after[stacks] = c + 1;
    return c;
}

uint32_t sl_config_move(sl_grammar *g, uint32_t config, uint8_t byte) {
    uint32_t *known = pair(g, (uint64_t)config << 8 | byte);
    if (!known || g->bad != SL_OK) return 0;
    if (*known) return *known - 1;
    const sl_config c = g->configs[config];
    begin(g);
    for (uint32_t i = 0; i < c.n; i++) {
        const sl_reading at = g->readings[c.first + i];
        const sl_rx_row row = sl_rx_row_of(g->rx, at.state);
        const sl_rx next = row.to[row.cls[byte]];
        if (next == SL_RX_NONE) continue;
        find(g, next, at.stacks);
        if (sl_rx_nullable(g->rx, next)) leave(g, at.stacks);
    }
    close_over(g);
    const uint32_t to = intern_found(g);
    if (g->bad == SL_OK) {
        *known = to + 1;
        g->moves.n++;
    }
    return to;
}

const sl_bytes *sl_config_next(sl_grammar *g, uint32_t config) {
    sl_config *c = &g->configs[config];
    for (uint32_t i = 0; !c->known && i < c->n; i++) {
        const sl_rx_row row = sl_rx_row_of(g->rx, g->readings[c->first + i].state);
        for (unsigned b = 0; b < 256; b++)
            if (row.to[row.cls[b]] != SL_RX_NONE) c->next.w[b >> 6] |= (uint64_t)1 << (b & 63);
    }
    c->known = true;
    return &c->next;
}
