/* Arrays and objects as nets: what may come next by place and by how many there are. Properties
 * come in the order in which schemas name them, further ones behind those. */
#include "grammar/schema_int.h"
#include "grammar/chars.h"
#include "grammar/regex.h"

#include "base/mem.h"

#include <stdio.h>

/* Of all parts: the greatest `least` and the smallest `most`. */
static sl_status counts_of(sl_schema *s, const sl_schema_set *parts, const char *least,
                           const char *most, uint64_t *min, uint64_t *max) {
    sl_status st = SL_OK;
    *min = 0;
    *max = UINT64_MAX;
    for (uint32_t i = 0; i < parts->n && st == SL_OK; i++) {
        uint64_t low = 0, high = UINT64_MAX;
        st = sl_schema_number_of(parts->v[i], least, SL_SCHEMA_MAX_COUNT, &low, s->err);
        if (st == SL_OK)
            st = sl_schema_number_of(parts->v[i], most, SL_SCHEMA_MAX_COUNT, &high, s->err);
        *min = SL_MAX(*min, low);
        *max = SL_MIN(*max, high);
    }
    return st;
}

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

static sl_status item_rule(sl_schema *s, const sl_schema_set *parts, size_t at, uint32_t *out) {
    sl_schema_set set = {0};
    sl_status st = SL_OK;
    for (uint32_t i = 0; i < parts->n && st == SL_OK; i++) {
        sl_json prefix, rest;
        items_of(parts->v[i], &prefix, &rest);
        const sl_json one = at < sl_json_count(prefix) ? sl_json_at(prefix, at) : rest;
        if (one.value) st = sl_schema_set_add(s, &set, one);
    }
    return st == SL_OK ? sl_schema_rule(s, &set, out) : st;
}

sl_status sl_schema_array(sl_schema *s, const sl_schema_set *parts, uint32_t from, uint32_t to) {
    sl_rules *n = &s->g->rules;
    sl_rx_store *rx = s->g->rx;
    uint64_t min, max, listed = 0;
    uint32_t rule = 0;
    sl_status st = counts_of(s, parts, "minItems", "maxItems", &min, &max);
    for (uint32_t i = 0; i < parts->n; i++) {
        sl_json prefix, rest;
        items_of(parts->v[i], &prefix, &rest);
        listed = SL_MAX(listed, (uint64_t)sl_json_count(prefix));
    }
    if (st != SL_OK) return st;
    if (listed > SL_SCHEMA_MAX_COUNT)
        return sl_json_fail(parts->v[0], "prefixItems", s->err, SL_ERR_LIMIT,
                            "%llu schemas, limit %u", (unsigned long long)listed,
                            SL_SCHEMA_MAX_COUNT);
    /* from place `last` on nothing depends on the place */
    const uint64_t last = max != UINT64_MAX ? SL_MAX(max, 1u) : SL_MAX(SL_MAX(min, listed), 1u);
    const sl_rx comma = sl_json_mark(s->g, ",", true, true),
                close = sl_json_mark(s->g, "]", true, false);
    uint32_t open = sl_rules_state(n);
    sl_rules_edge(n, from, SL_EDGE_TEXT, sl_json_mark(s->g, "[", false, true), open);
    if (min == 0) sl_rules_edge(n, open, SL_EDGE_TEXT, sl_rx_chars(rx, "]"), to);
    for (uint64_t i = 0; i < last && i < max && st == SL_OK; i++) {
        const uint32_t done = sl_rules_state(n), next = sl_rules_state(n);
        if (i <= listed) st = item_rule(s, parts, (size_t)i, &rule);
        if (st != SL_OK) return st;
        sl_rules_edge(n, open, SL_EDGE_CALL, rule, done);
        if (i + 1 >= min) sl_rules_edge(n, done, SL_EDGE_TEXT, close, to);
        if (i + 1 < max) sl_rules_edge(n, done, SL_EDGE_TEXT, comma, next);
        if (i + 1 == last && max == UINT64_MAX) {
            if (i < listed) st = item_rule(s, parts, (size_t)i + 1, &rule);
            sl_rules_edge(n, next, SL_EDGE_CALL, rule, done);
        }
        open = next;
    }
    return st;
}

/* propertyNames of all parts as one expression of the name. */
static sl_status names_allowed(sl_schema *s, const sl_schema_set *parts, sl_rx *out) {
    sl_rx_store *rx = s->g->rx;
    *out = SL_RX_ALL;
    for (uint32_t i = 0; i < parts->n; i++) {
        sl_json names = sl_json_get(parts->v[i], "propertyNames");
        if (!names.value || sl_schema_is_true(names)) continue;
        const sl_schema_set set = {.v = &names, .n = 1};
        sl_schema_ways ways = {0};
        sl_rx all = SL_RX_NONE;
        sl_status st = sl_schema_expand(s, &set, &ways);
        for (uint32_t k = 0; k < ways.n && st == SL_OK; k++) {
            bool listed = false;
            sl_rx e = SL_RX_NONE;
            ways.v[k].types &= SL_TYPE_STRING;
            if (!ways.v[k].types) continue;
            st = sl_schema_listed(s, &ways.v[k], &listed, &e);
            if (st == SL_OK && !listed) st = sl_schema_string(s, &ways.v[k].parts, &e);
            all = sl_rx_or2(rx, all, e);
        }
        sl_schema_ways_free(&ways);
        if (st != SL_OK) return st;
        /* with its quotes; the caller's names have them, too */
        *out = sl_rx_and2(rx, *out, all);
    }
    return SL_OK;
}

static sl_rx quoted(sl_rx_store *rx, sl_rx content) {
    const sl_rx quote = sl_rx_chars(rx, "\"");
    return sl_rx_cat(rx, quote, sl_rx_cat(rx, content, quote));
}

typedef struct property {
    sl_span name;
    bool required;
    uint32_t rule;
    sl_rx key; /* with what comes up to the value */
    bool closed;
} property;

/* Keys that no schema names, by which patterns they match. */
typedef struct region {
    sl_rx key;
    uint32_t rule;
} region;

typedef struct object {
    sl_schema *s;
    const sl_schema_set *parts;
    property *v;
    uint32_t n;
    size_t cap;
    region regions[1u << SL_SCHEMA_MAX_PATTERNS];
    uint32_t n_regions;
    sl_rx colon, names; /* names: what propertyNames allows, with quotes */
    uint64_t min, max;
} object;

static sl_status add_name(object *o, sl_json part, const char *key, sl_span name, bool required) {
    for (uint32_t i = 0; i < o->n; i++)
        if (o->v[i].name.len == name.len && !memcmp(o->v[i].name.data, name.data, name.len)) {
            o->v[i].required |= required;
            return SL_OK;
        }
    if (o->n >= SL_SCHEMA_MAX_NAMES)
        return sl_json_fail(part, key, o->s->err, SL_ERR_LIMIT, "more than %u names (limit)",
                            SL_SCHEMA_MAX_NAMES);
    if (!sl_grammar_room(o->s->g, (void **)&o->v, &o->cap, o->n + 1, sizeof *o->v))
        return sl_grammar_status(o->s->g, o->s->err);
    o->v[o->n++] = (property){.name = name, .required = required};
    return SL_OK;
}

static sl_status collect_names(object *o) {
    sl_status st = SL_OK;
    for (uint32_t i = 0; i < o->parts->n && st == SL_OK; i++) {
        const sl_json own = sl_json_get(o->parts->v[i], "properties");
        void *iter = NULL;
        const char *key;
        sl_json child;
        while (st == SL_OK && sl_json_next(own, &iter, &key, &child))
            st = add_name(o, o->parts->v[i], "properties",
                          (sl_span){(const uint8_t *)key, strlen(key)}, false);
    }
    for (uint32_t i = 0; i < o->parts->n && st == SL_OK; i++) {
        const sl_json list = sl_json_get(o->parts->v[i], "required");
        if (list.value && sl_json_kind_of(list) != SL_JSON_ARRAY)
            return sl_json_fail(o->parts->v[i], "required", o->s->err, SL_ERR_FORMAT, "is no list");
        for (size_t k = 0; k < sl_json_count(list) && st == SL_OK; k++) {
            sl_span name = {0};
            if (!sl_json_as_span(sl_json_at(list, k), &name))
                return sl_json_fail(o->parts->v[i], "required", o->s->err, SL_ERR_FORMAT,
                                    "holds what is no name");
            st = add_name(o, o->parts->v[i], "required", name, true);
        }
    }
    return st;
}

static sl_status make_properties(object *o) {
    sl_rx_store *rx = o->s->g->rx;
    sl_status st = SL_OK;
    for (uint32_t i = 0; i < o->n && st == SL_OK; i++) {
        property *p = &o->v[i];
        sl_schema_set set = {0};
        const sl_rx text = quoted(rx, sl_rx_json_text(rx, p->name));
        st = sl_schema_under(o->s, o->parts, p->name, &set, &p->closed);
        if (st == SL_OK && !sl_rx_live(rx, sl_rx_and2(rx, text, o->names))) p->closed = true;
        p->key = sl_rx_cat(rx, text, o->colon);
        if (st == SL_OK && !p->closed)
            st = sl_schema_rule(o->s, &set, &p->rule);
        else
            sl_free(set.v);
    }
    return st;
}

/* The schemas of keys that match the patterns of `chosen` alone, in the order of patterns. */
static sl_status region_set(object *o, unsigned chosen, sl_schema_set *set, bool *closed) {
    unsigned bit = 0;
    sl_status st = SL_OK;
    for (uint32_t i = 0; i < o->parts->n && st == SL_OK; i++) {
        const sl_json more = sl_json_get(o->parts->v[i], "additionalProperties");
        void *iter = NULL;
        const char *pattern;
        sl_json child;
        bool found = false;
        while (st == SL_OK && sl_json_next(sl_json_get(o->parts->v[i], "patternProperties"), &iter,
                                           &pattern, &child)) {
            if (!(chosen >> bit++ & 1)) continue;
            found = true;
            *closed |= sl_schema_is_false(child);
            st = sl_schema_set_add(o->s, set, child);
        }
        if (st != SL_OK || found || !more.value) continue;
        *closed |= sl_schema_is_false(more);
        st = sl_schema_set_add(o->s, set, more);
    }
    return st;
}

static sl_status make_regions(object *o) {
    sl_schema *s = o->s;
    sl_rx_store *rx = s->g->rx;
    sl_rx patterns[SL_SCHEMA_MAX_PATTERNS], other = SL_RX_ALL;
    unsigned n = 0;
    sl_status st = SL_OK;
    for (uint32_t i = 0; i < o->parts->n && st == SL_OK; i++) {
        void *iter = NULL;
        const char *pattern;
        sl_json child;
        while (st == SL_OK && sl_json_next(sl_json_get(o->parts->v[i], "patternProperties"), &iter,
                                           &pattern, &child)) {
            if (n == SL_SCHEMA_MAX_PATTERNS)
                return sl_json_fail(o->parts->v[i], "patternProperties", s->err, SL_ERR_LIMIT,
                                    "more than %u patterns at one place (limit)",
                                    SL_SCHEMA_MAX_PATTERNS);
            st = sl_schema_pattern(s, o->parts->v[i], pattern, &patterns[n++]);
        }
    }
    if (o->n) {
        sl_rx_list list = {0};
        for (uint32_t i = 0; i < o->n; i++)
            sl_rx_list_add(rx, &list, sl_rx_json_text(rx, o->v[i].name));
        other = sl_rx_not(rx, sl_rx_or_list(rx, &list));
    }
    const bool plain = n == 0 && o->n == 0 && o->names == SL_RX_ALL;
    const sl_rx chars = sl_rx_rep(rx, s->g->vocab->rx.key_char, 0, SL_RX_MANY);
    for (unsigned chosen = 0; chosen < 1u << n && st == SL_OK; chosen++) {
        sl_rx key = sl_rx_and2(rx, chars, other);
        sl_schema_set set = {0};
        bool closed = false;
        region *r = &o->regions[o->n_regions];
        for (unsigned i = 0; i < n; i++)
            key = sl_rx_and2(rx, key, chosen >> i & 1 ? patterns[i] : sl_rx_not(rx, patterns[i]));
        key = plain ? s->g->vocab->rx.string : sl_rx_and2(rx, quoted(rx, key), o->names);
        st = region_set(o, chosen, &set, &closed);
        if (st == SL_OK && !closed && sl_rx_live(rx, key)) {
            r->key = key;
            st = sl_schema_rule(s, &set, &r->rule);
            o->n_regions++;
        } else {
            sl_free(set.v);
        }
    }
    return st == SL_OK ? sl_rx_status(rx, s->err) : st;
}

/* Places: before property i with k pairs written (all that matters of their number), and behind a
 * pair. */
typedef struct places {
    uint32_t *open, *done;
    uint32_t width; /* values of k */
} places;

static void pair_edges(object *o, const places *p, uint32_t i, uint32_t k) {
    sl_rules *n = &o->s->g->rules;
    const uint32_t open = p->open[i * p->width + k], more = SL_MIN(k + 1, p->width - 1);
    if (i < o->n && !o->v[i].closed) {
        const uint32_t value = sl_rules_state(n);
        sl_rules_edge(n, open, SL_EDGE_TEXT, o->v[i].key, value);
        sl_rules_edge(n, value, SL_EDGE_CALL, o->v[i].rule, p->done[(i + 1) * p->width + more]);
    }
    if (i < o->n && !o->v[i].required)
        sl_rules_edge(n, open, SL_EDGE_EMPTY, 0, p->open[(i + 1) * p->width + k]);
    for (uint32_t r = 0; i == o->n && r < o->n_regions; r++) {
        const uint32_t colon = sl_rules_state(n), value = sl_rules_state(n);
        sl_rules_edge(n, open, SL_EDGE_TEXT, o->regions[r].key, colon);
        sl_rules_edge(n, colon, SL_EDGE_TEXT, o->colon, value);
        sl_rules_edge(n, value, SL_EDGE_CALL, o->regions[r].rule, p->done[i * p->width + more]);
    }
}

static sl_status make_net(object *o, uint32_t from, uint32_t to) {
    sl_schema *s = o->s;
    sl_rules *n = &s->g->rules;
    /* k counts up to what is asked about: past minProperties only that it is reached, up to
     * maxProperties */
    const uint64_t top = o->max != UINT64_MAX ? o->max : SL_MAX(o->min, 1u);
    const uint64_t cells = (o->n + 1) * (top + 1);
    places p = {.width = (uint32_t)top + 1};
    const sl_rx comma = sl_json_mark(s->g, ",", true, true),
                close = sl_json_mark(s->g, "}", true, false);
    if (cells > SL_SCHEMA_MAX_CELLS)
        return sl_json_fail(o->parts->v[0],
                            o->max != UINT64_MAX ? "maxProperties" : "minProperties", s->err,
                            SL_ERR_LIMIT, "%u names times %llu, limit %u", o->n,
                            (unsigned long long)top, SL_SCHEMA_MAX_CELLS);
    void *arrays = sl_alloc_arrays(SL_ARRAY(p.open, cells), SL_ARRAY(p.done, cells));
    if (!arrays) return sl_fail(s->err, SL_ERR_NOMEM, "out of memory for a grammar");
    for (uint64_t i = 0; i < cells; i++)
        p.open[i] = sl_rules_state(n), p.done[i] = sl_rules_state(n);
    bool ends = true; /* no property from i on is required */
    for (uint32_t i = o->n + 1; i-- > 0;) {
        if (i < o->n) ends &= !o->v[i].required;
        for (uint32_t k = 0; k <= top; k++) {
            const uint32_t done = p.done[i * p.width + k];
            if (o->max == UINT64_MAX || k < o->max) pair_edges(o, &p, i, k);
            if (k == 0) continue;
            if (ends && k >= o->min) sl_rules_edge(n, done, SL_EDGE_TEXT, close, to);
            if (o->max == UINT64_MAX || k < o->max)
                sl_rules_edge(n, done, SL_EDGE_TEXT, comma, p.open[i * p.width + k]);
        }
    }
    sl_rules_edge(n, from, SL_EDGE_TEXT, sl_json_mark(s->g, "{", false, true), p.open[0]);
    if (ends && o->min == 0)
        sl_rules_edge(n, p.open[0], SL_EDGE_TEXT, sl_rx_chars(s->g->rx, "}"), to);
    sl_free(arrays);
    return SL_OK;
}

sl_status sl_schema_object(sl_schema *s, const sl_schema_set *parts, uint32_t from, uint32_t to) {
    object o = {.s = s, .parts = parts, .colon = sl_json_mark(s->g, ":", true, true)};
    sl_status st = counts_of(s, parts, "minProperties", "maxProperties", &o.min, &o.max);
    if (st == SL_OK) st = names_allowed(s, parts, &o.names);
    if (st == SL_OK) st = collect_names(&o);
    if (st == SL_OK) st = make_properties(&o);
    if (st == SL_OK) st = make_regions(&o);
    /* a key that no schema names may be written twice, so that there are fewer than were counted */
    if (st == SL_OK && o.min > 1 && o.n_regions)
        st = sl_json_fail(
            parts->v[0], "minProperties", s->err, SL_ERR_UNSUPPORTED,
            "above 1 is not enforced where properties may be added that are not named");
    if (st == SL_OK) st = make_net(&o, from, to);
    s->g->memory -= o.cap * sizeof *o.v;
    sl_free(o.v);
    return st;
}
