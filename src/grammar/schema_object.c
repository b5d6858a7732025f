/* Objects as nets: what may come next by place and by how many there are. Properties come in the
 * order in which schemas name them, further ones behind those. */
#include "grammar/schema_int.h"
#include "grammar/chars.h"
#include "grammar/regex.h"

#include "base/mem.h"

#include <stdio.h>

#define SETS (1u << SL_SCHEMA_MAX_SOME)

/* rule[f]: of values that are what the conditions of f ask for, too, all of which are in `meets`.
 */
typedef struct property {
    sl_span name;
    bool required;
    uint32_t rule[SETS];
    sl_rx key; /* with what comes up to the value */
    bool closed;
    unsigned meets;
} property;

/* Keys that no schema names, by which patterns they match, and which conditions they meet. */
typedef struct region {
    sl_rx key;
    uint32_t rule;
    unsigned meets;
} region;

typedef struct object {
    sl_schema *s;
    const sl_schema_set *parts;
    property *v;
    uint32_t n;
    size_t cap;
    region regions[SETS << SL_SCHEMA_MAX_PATTERNS];
    uint32_t n_regions;
    sl_rx colon, names; /* names: what propertyNames allows, with quotes */
    uint64_t min, max;
    sl_schema_some some[SL_SCHEMA_MAX_SOME];
    uint32_t n_some;
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

/* The rule of a value of which a set holds, which is taken, and what the conditions `meets` ask
 * for; *closed: none can. */
static sl_status value_rule(object *o, sl_schema_set *set, unsigned meets, uint32_t *out,
                            bool *closed) {
    sl_status st = SL_OK;
    for (uint32_t k = 0; k < o->n_some && st == SL_OK; k++) {
        if (!(meets >> k & 1) || !o->some[k].value.value) continue;
        *closed |= sl_schema_is_false(o->some[k].value);
        st = sl_schema_set_add(o->s, set, o->some[k].value);
    }
    if (st == SL_OK && !*closed) return sl_schema_rule(o->s, set, out);
    sl_schema_set_free(o->s, set);
    return st;
}

static sl_status make_property(object *o, property *p) {
    sl_rx_store *rx = o->s->g->rx;
    const sl_rx text = sl_schema_quoted(rx, sl_rx_json_text(rx, p->name));
    sl_status st = SL_OK;
    p->key = sl_rx_cat(rx, text, o->colon);
    p->closed = !sl_rx_live(rx, sl_rx_and2(rx, text, o->names));
    for (uint32_t k = 0; k < o->n_some; k++)
        p->meets |= (unsigned)sl_rx_live(rx, sl_rx_and2(rx, text, o->some[k].names)) << k;
    for (unsigned f = 0; f < 1u << o->n_some && st == SL_OK && !p->closed; f++) {
        sl_schema_set set = {0};
        bool closed = false, never = false;
        if (f & ~p->meets) continue;
        st = sl_schema_under(o->s, o->parts, p->name, &set, &closed);
        p->closed |= closed;
        if (st == SL_OK && !closed)
            st = value_rule(o, &set, f, &p->rule[f], &never);
        else
            sl_schema_set_free(o->s, &set);
        if (never) p->rule[f] = UINT32_MAX;
    }
    return st;
}

static sl_status make_properties(object *o) {
    sl_status st = SL_OK;
    for (uint32_t i = 0; i < o->n && st == SL_OK; i++) st = make_property(o, &o->v[i]);
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

/* Patterns of all parts, in their order. */
static sl_status read_patterns(object *o, sl_rx patterns[SL_SCHEMA_MAX_PATTERNS], unsigned *n) {
    sl_status st = SL_OK;
    for (uint32_t i = 0; i < o->parts->n && st == SL_OK; i++) {
        const sl_json map = sl_json_get(o->parts->v[i], "patternProperties");
        void *iter = NULL;
        const char *pattern;
        sl_json child;
        while (st == SL_OK && sl_json_next(map, &iter, &pattern, &child)) {
            if (*n == SL_SCHEMA_MAX_PATTERNS)
                return sl_json_fail(o->parts->v[i], "patternProperties", o->s->err, SL_ERR_LIMIT,
                                    "more than %u patterns at one place (limit)",
                                    SL_SCHEMA_MAX_PATTERNS);
            st = sl_schema_pattern(o->s, o->parts->v[i], pattern, &patterns[(*n)++]);
        }
    }
    return st;
}

/* Keys that match the patterns of `chosen` alone, by the conditions that they meet. */
static sl_status make_region(object *o, sl_rx key, unsigned chosen) {
    sl_rx_store *rx = o->s->g->rx;
    sl_status st = SL_OK;
    for (unsigned f = 0; f < 1u << o->n_some && st == SL_OK; f++) {
        region *r = &o->regions[o->n_regions];
        sl_schema_set set = {0};
        bool closed = false;
        r->key = key;
        r->meets = f;
        for (uint32_t k = 0; k < o->n_some; k++)
            if (f >> k & 1) r->key = sl_rx_and2(rx, r->key, o->some[k].names);
        closed = !sl_rx_live(rx, r->key);
        if (!closed) st = region_set(o, chosen, &set, &closed);
        if (st == SL_OK && !closed)
            st = value_rule(o, &set, f, &r->rule, &closed);
        else
            sl_schema_set_free(o->s, &set);
        if (st == SL_OK && !closed) o->n_regions++;
    }
    return st;
}

static sl_status make_regions(object *o) {
    sl_schema *s = o->s;
    sl_rx_store *rx = s->g->rx;
    sl_rx patterns[SL_SCHEMA_MAX_PATTERNS], other = SL_RX_ALL;
    unsigned n = 0;
    sl_status st = read_patterns(o, patterns, &n);
    if (o->n) {
        sl_rx_list list = {0};
        for (uint32_t i = 0; i < o->n; i++)
            sl_rx_list_add(rx, &list, sl_rx_json_text(rx, o->v[i].name));
        other = sl_rx_not(rx, sl_rx_or_list(rx, &list));
    }
    const bool plain = n == 0 && o->n == 0 && o->n_some == 0 && o->names == SL_RX_ALL;
    const sl_rx chars = sl_rx_rep(rx, s->g->vocab->rx.key_char, 0, SL_RX_MANY);
    for (unsigned chosen = 0; chosen < 1u << n && st == SL_OK; chosen++) {
        sl_rx key = sl_rx_and2(rx, chars, other);
        for (unsigned i = 0; i < n; i++)
            key = sl_rx_and2(rx, key, chosen >> i & 1 ? patterns[i] : sl_rx_not(rx, patterns[i]));
        key = plain ? s->g->vocab->rx.string : sl_rx_and2(rx, sl_schema_quoted(rx, key), o->names);
        st = make_region(o, key, chosen);
    }
    return st == SL_OK ? sl_rx_status(rx, s->err) : st;
}

/* Places: before property i with k pairs written (all that matters of their number), and behind a
 * pair; f: the conditions that were met. */
typedef struct places {
    uint32_t *open, *done;
    uint32_t width, layers; /* values of k; of f */
} places;

static size_t place_at(const places *p, uint32_t i, uint32_t k, uint32_t f) {
    return ((size_t)i * p->width + k) * p->layers + f;
}

/* The pair of a key that no schema names, which a condition is about, is the last one: another with
 * the same key would take its place. */
static void last_pair(object *o, const places *p, const region *r, uint32_t open, uint32_t pairs,
                      uint32_t f, uint32_t to) {
    sl_rules *n = &o->s->g->rules;
    if ((f | r->meets) + 1 != p->layers || pairs < o->min) return;
    const uint32_t colon = sl_rules_state(n), value = sl_rules_state(n), end = sl_rules_state(n);
    sl_rules_edge(n, open, SL_EDGE_TEXT, r->key, colon);
    sl_rules_edge(n, colon, SL_EDGE_TEXT, o->colon, value);
    sl_rules_edge(n, value, SL_EDGE_CALL, r->rule, end);
    sl_rules_edge(n, end, SL_EDGE_TEXT, sl_json_mark(o->s->g, "}", true, false), to);
}

static void pair_edges(object *o, const places *p, uint32_t i, uint32_t k, uint32_t f,
                       uint32_t behind) {
    sl_rules *n = &o->s->g->rules;
    const uint32_t open = p->open[place_at(p, i, k, f)], more = SL_MIN(k + 1, p->width - 1);
    for (uint32_t m = 0; i < o->n && !o->v[i].closed && m < p->layers; m++) {
        if (m & ~o->v[i].meets || o->v[i].rule[m] == UINT32_MAX) continue;
        const uint32_t value = sl_rules_state(n), to = p->done[place_at(p, i + 1, more, f | m)];
        sl_rules_edge(n, open, SL_EDGE_TEXT, o->v[i].key, value);
        sl_rules_edge(n, value, SL_EDGE_CALL, o->v[i].rule[m], to);
    }
    if (i < o->n && !o->v[i].required)
        sl_rules_edge(n, open, SL_EDGE_EMPTY, 0, p->open[place_at(p, i + 1, k, f)]);
    for (uint32_t r = 0; i == o->n && r < o->n_regions; r++) {
        if (o->regions[r].meets) {
            last_pair(o, p, &o->regions[r], open, k + 1, f, behind);
            continue;
        }
        const uint32_t colon = sl_rules_state(n), value = sl_rules_state(n),
                       to = p->done[place_at(p, i, more, f)];
        sl_rules_edge(n, open, SL_EDGE_TEXT, o->regions[r].key, colon);
        sl_rules_edge(n, colon, SL_EDGE_TEXT, o->colon, value);
        sl_rules_edge(n, value, SL_EDGE_CALL, o->regions[r].rule, to);
    }
}

/* Before property i, and behind the pair before it, with k pairs; ends: no property from i on is
 * required. */
static void place_edges(object *o, const places *p, uint32_t i, uint32_t k, bool ends,
                        uint32_t to) {
    sl_rules *n = &o->s->g->rules;
    const sl_rx comma = sl_json_mark(o->s->g, ",", true, true),
                close = sl_json_mark(o->s->g, "}", true, false);
    for (uint32_t f = 0; f < p->layers; f++) {
        const size_t at = place_at(p, i, k, f);
        if (k < o->max) pair_edges(o, p, i, k, f, to);
        if (k == 0) continue;
        if (ends && k >= o->min && f + 1 == p->layers)
            sl_rules_edge(n, p->done[at], SL_EDGE_TEXT, close, to);
        if (k < o->max) sl_rules_edge(n, p->done[at], SL_EDGE_TEXT, comma, p->open[at]);
    }
}

static sl_status make_net(object *o, uint32_t from, uint32_t to) {
    sl_schema *s = o->s;
    sl_rules *n = &s->g->rules;
    /* k counts up to what is asked about: past minProperties only that it is reached, up to
     * maxProperties */
    const uint64_t top = o->max != UINT64_MAX ? o->max : SL_MAX(o->min, 1u);
    places p = {.width = (uint32_t)top + 1, .layers = 1u << o->n_some};
    const uint64_t cells = (o->n + 1) * (top + 1) * p.layers;
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
        for (uint32_t k = 0; k <= top; k++) place_edges(o, &p, i, k, ends, to);
    }
    sl_rules_edge(n, from, SL_EDGE_TEXT, sl_json_mark(s->g, "{", false, true), p.open[0]);
    if (ends && o->min == 0 && p.layers == 1)
        sl_rules_edge(n, p.open[0], SL_EDGE_TEXT, sl_rx_chars(s->g->rx, "}"), to);
    sl_free(arrays);
    return SL_OK;
}

/* Whether all properties are listed that an object may have: some schema lists them, none says
 * anything of others, none has to be there that is not listed, and there are enough. Said of what
 * is written alone, never of whether schemas can hold: so what is written is what they allow. */
static bool is_list(const object *o) {
    static const char *const others[] = {"additionalProperties", "patternProperties"};
    uint32_t listed = 0;
    bool any = false;
    if (!o->s->listed || o->n_some) return false;
    for (uint32_t i = 0; i < o->parts->n; i++) {
        const sl_json part = o->parts->v[i];
        for (size_t k = 0; k < SL_LEN(others); k++)
            if (sl_json_get(part, others[k]).value) return false;
        /* what was made of `not` lists nothing */
        any |= sl_json_get(part, "properties").value && !sl_json_get(part, SL_WORD_TYPES).value;
    }
    for (uint32_t i = 0; i < o->n && any; i++) {
        const bool nul = memchr(o->v[i].name.data, 0, o->v[i].name.len) != NULL;
        bool there = false;
        for (uint32_t k = 0; k < o->parts->n && !nul; k++)
            there |= sl_json_get(sl_json_get(o->parts->v[k], "properties"),
                                 (const char *)o->v[i].name.data)
                         .value != NULL;
        if (o->v[i].required && !there) return false;
        listed += there && !o->v[i].closed;
    }
    return any && listed >= o->min;
}

sl_status sl_schema_object(sl_schema *s, const sl_schema_set *parts, uint32_t from, uint32_t to) {
    object o = {.s = s, .parts = parts, .colon = sl_json_mark(s->g, ":", true, true)};
    sl_status st = sl_schema_counts(s, parts, "minProperties", "maxProperties", &o.min, &o.max);
    if (st == SL_OK) st = sl_schema_names(s, parts, &o.names);
    if (st == SL_OK) st = collect_names(&o);
    if (st == SL_OK) st = sl_schema_somes(s, parts, o.some, &o.n_some);
    if (st == SL_OK) st = make_properties(&o);
    if (st == SL_OK && !is_list(&o)) st = make_regions(&o);
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
