/* Arrays as nets: what may come next by place, and by how many satisfy `contains`. */
#include "grammar/schema_int.h"

#define MAX_CONTAINS 64u /* minContains, maxContains */

/* items as 2020-12 has it; a list in it is prefixItems, as before 2020-12, and additionalItems the
 * rest. */
static void items_of(sl_json part, sl_json *prefix, sl_json *rest) {
    const sl_json items = sl_json_get(part, "items");
    *prefix = sl_json_get(part, "prefixItems");
    *rest = items;
    if (sl_json_kind_of(items) != SL_JSON_ARRAY) return;
    *prefix = items;
    *rest = sl_json_get(part, "additionalItems");
}

/* The rule of place `at`; more: what else has to hold, if it is there. */
static sl_status item_rule(sl_schema *s, const sl_schema_set *parts, size_t at, sl_json more,
                           uint32_t *out) {
    sl_schema_set set = {0};
    sl_status st = SL_OK;
    for (uint32_t i = 0; i < parts->n && st == SL_OK; i++) {
        sl_json prefix, rest;
        items_of(parts->v[i], &prefix, &rest);
        const sl_json one = at < sl_json_count(prefix) ? sl_json_at(prefix, at) : rest;
        if (one.value) st = sl_schema_set_add(s, &set, one);
    }
    if (st == SL_OK && more.value) st = sl_schema_set_add(s, &set, more);
    if (st == SL_OK) return sl_schema_rule(s, &set, out);
    sl_schema_set_free(s, &set);
    return st;
}

/* An array on its way into a net. Places from `last` on are alike. Layer f: f items satisfy
 * `contains` so far, or that many at least in the last one. */
typedef struct array {
    sl_schema *s;
    const sl_schema_set *parts;
    uint64_t min, max, listed, last;
    sl_json contains, no; /* no: of items that must not satisfy it */
    uint64_t least, most;
    uint32_t layers;
    uint32_t any, some,
        none; /* rules of the present place: an item, one that satisfies it, one that does not */
} array;

static sl_status read_contains(array *a) {
    sl_status st = SL_OK;
    a->least = 0;
    a->most = UINT64_MAX;
    a->layers = 1;
    for (uint32_t i = 0; i < a->parts->n && st == SL_OK; i++) {
        const sl_json part = a->parts->v[i], one = sl_json_get(part, "contains");
        if (!one.value) continue;
        if (a->contains.value)
            return sl_json_fail(part, "contains", a->s->err, SL_ERR_UNSUPPORTED,
                                "is enforced once for a place");
        a->contains = one;
        a->least = 1;
        st = sl_schema_number_of(part, "minContains", MAX_CONTAINS, &a->least, a->s->err);
        if (st == SL_OK)
            st = sl_schema_number_of(part, "maxContains", MAX_CONTAINS, &a->most, a->s->err);
    }
    if (st != SL_OK || !a->contains.value) return st;
    a->layers = (uint32_t)(a->most != UINT64_MAX ? a->most : a->least) + 1;
    return a->most != UINT64_MAX ? sl_schema_not(a->s, a->contains, &a->no) : SL_OK;
}

static sl_status read_unique(array *a) {
    bool unique = false;
    for (uint32_t i = 0; i < a->parts->n && a->max > 1; i++) {
        const sl_json v = sl_json_get(a->parts->v[i], "uniqueItems");
        if (!v.value) continue;
        if (!sl_json_as_bool(v, &unique))
            return sl_json_fail(a->parts->v[i], "uniqueItems", a->s->err, SL_ERR_FORMAT,
                                "is neither true nor false");
        if (unique)
            return sl_json_fail(a->parts->v[i], "uniqueItems", a->s->err, SL_ERR_UNSUPPORTED,
                                "is not enforced for more than one item");
    }
    return SL_OK;
}

static sl_status read_counts(array *a) {
    sl_status st = sl_schema_counts(a->s, a->parts, "minItems", "maxItems", &a->min, &a->max);
    for (uint32_t i = 0; i < a->parts->n; i++) {
        sl_json prefix, rest;
        items_of(a->parts->v[i], &prefix, &rest);
        a->listed = SL_MAX(a->listed, (uint64_t)sl_json_count(prefix));
    }
    if (st == SL_OK && a->listed > SL_SCHEMA_MAX_COUNT)
        return sl_json_fail(a->parts->v[0], "prefixItems", a->s->err, SL_ERR_LIMIT,
                            "%llu schemas, limit %u", (unsigned long long)a->listed,
                            SL_SCHEMA_MAX_COUNT);
    if (st == SL_OK) st = read_contains(a);
    if (st == SL_OK) st = read_unique(a);
    a->last = a->max != UINT64_MAX ? SL_MAX(a->max, 1u) : SL_MAX(SL_MAX(a->min, a->listed), 1u);
    if (st == SL_OK && a->last * a->layers > SL_SCHEMA_MAX_CELLS)
        return sl_json_fail(a->parts->v[0], "contains", a->s->err, SL_ERR_LIMIT,
                            "%u counts at %llu places, limit %u", a->layers,
                            (unsigned long long)a->last, SL_SCHEMA_MAX_CELLS);
    return st;
}

static sl_status place_rules(array *a, size_t at) {
    sl_status st = item_rule(a->s, a->parts, at, a->no, &a->none);
    if (st == SL_OK && a->contains.value) {
        st = item_rule(a->s, a->parts, at, (sl_json){0}, &a->any);
        if (st == SL_OK) st = item_rule(a->s, a->parts, at, a->contains, &a->some);
    }
    return st;
}

/* An item of the present place from layer f. */
static void item_edges(array *a, uint32_t open, const uint32_t *done, uint32_t f) {
    sl_rules *n = &a->s->g->rules;
    const bool bounded = a->most != UINT64_MAX, top = f + 1 == a->layers;
    if (!a->contains.value || bounded || !top)
        sl_rules_edge(n, open, SL_EDGE_CALL, a->none, done[f]);
    if (a->contains.value && !top) sl_rules_edge(n, open, SL_EDGE_CALL, a->some, done[f + 1]);
    if (a->contains.value && top && !bounded) sl_rules_edge(n, open, SL_EDGE_CALL, a->any, done[f]);
}

static sl_status array_net(array *a, uint32_t *open, uint32_t *done, uint32_t *next, uint32_t to) {
    sl_rules *n = &a->s->g->rules;
    const sl_rx comma = sl_json_mark(a->s->g, ",", true, true),
                close = sl_json_mark(a->s->g, "]", true, false);
    sl_status st = SL_OK;
    for (uint64_t i = 0; i < a->last && i < a->max; i++) {
        if (i <= a->listed) st = place_rules(a, (size_t)i);
        if (st != SL_OK) return st;
        for (uint32_t f = 0; f < a->layers; f++)
            done[f] = sl_rules_state(n), next[f] = sl_rules_state(n);
        for (uint32_t f = 0; f < a->layers; f++) {
            item_edges(a, open[f], done, f);
            if (i + 1 >= a->min && f >= a->least)
                sl_rules_edge(n, done[f], SL_EDGE_TEXT, close, to);
            if (i + 1 < a->max) sl_rules_edge(n, done[f], SL_EDGE_TEXT, comma, next[f]);
        }
        if (i + 1 == a->last && a->max == UINT64_MAX) {
            if (i < a->listed) st = place_rules(a, (size_t)i + 1);
            if (st != SL_OK) return st;
            for (uint32_t f = 0; f < a->layers; f++) item_edges(a, next[f], done, f);
        }
        memcpy(open, next, a->layers * sizeof *open);
    }
    return st;
}

sl_status sl_schema_array(sl_schema *s, const sl_schema_set *parts, uint32_t from, uint32_t to) {
    array a = {.s = s, .parts = parts};
    sl_rules *n = &s->g->rules;
    uint32_t states[3][MAX_CONTAINS + 1];
    const sl_status st = read_counts(&a);
    if (st != SL_OK) return st;
    const uint32_t first = sl_rules_state(n);
    sl_rules_edge(n, from, SL_EDGE_TEXT, sl_json_mark(s->g, "[", false, true), first);
    if (a.min == 0 && a.least == 0)
        sl_rules_edge(n, first, SL_EDGE_TEXT, sl_rx_chars(s->g->rx, "]"), to);
    states[0][0] = first;
    for (uint32_t f = 1; f < a.layers; f++) states[0][f] = sl_rules_state(n);
    return array_net(&a, states[0], states[1], states[2], to);
}
