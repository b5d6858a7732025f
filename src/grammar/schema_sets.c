/* Keywords, and sets of schemas: what stands in one, and the rule that each has. */
#include "grammar/schema_int.h"

#include "base/mem.h"

/* What is enforced, and what says nothing about a value. Everything else is refused. */
static const char *const enforced[] = {"$ref",
                                       "type",
                                       "enum",
                                       "const",
                                       "allOf",
                                       "anyOf",
                                       "oneOf",
                                       "not",
                                       "minLength",
                                       "maxLength",
                                       "pattern",
                                       "format",
                                       "minimum",
                                       "maximum",
                                       "exclusiveMinimum",
                                       "exclusiveMaximum",
                                       "multipleOf",
                                       "properties",
                                       "required",
                                       "patternProperties",
                                       "additionalProperties",
                                       "propertyNames",
                                       "minProperties",
                                       "maxProperties",
                                       "items",
                                       "prefixItems",
                                       "additionalItems",
                                       "minItems",
                                       "maxItems"};
static const char *const silent[] = {"title",    "description", "default",     "examples",
                                     "example",  "deprecated",  "readOnly",    "writeOnly",
                                     "$comment", "$defs",       "definitions", "$anchor"};

static bool among(const char *key, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i], key)) return true;
    return false;
}

static sl_status check_shape(sl_json schema, const char *key, sl_json v, sl_err *err) {
    static const char *const schemas[] = {"additionalProperties", "propertyNames", "not",
                                          "additionalItems"};
    static const char *const maps[] = {"properties", "patternProperties"};
    static const char *const lists[] = {"allOf", "anyOf", "oneOf", "prefixItems", "required"};
    const sl_json_kind kind = sl_json_kind_of(v);
    void *iter = NULL;
    const char *name;
    sl_json child;
    bool ok = true;
    if (among(key, schemas, SL_LEN(schemas))) ok = kind == SL_JSON_OBJECT || kind == SL_JSON_BOOL;
    if (!strcmp(key, "items"))
        ok = kind == SL_JSON_OBJECT || kind == SL_JSON_BOOL || kind == SL_JSON_ARRAY;
    if (among(key, maps, SL_LEN(maps))) {
        ok = kind == SL_JSON_OBJECT;
        while (ok && sl_json_next(v, &iter, &name, &child))
            ok = sl_json_kind_of(child) == SL_JSON_OBJECT || sl_json_kind_of(child) == SL_JSON_BOOL;
    }
    if (among(key, lists, SL_LEN(lists))) ok = kind == SL_JSON_ARRAY;
    if (!ok)
        return sl_json_fail(schema, key, err, SL_ERR_FORMAT,
                            "does not hold what this keyword is for");
    return SL_OK;
}

/* A metaschema of one's own may say that keywords mean nothing, or something else. */
static sl_status check_draft(sl_json schema, sl_json v, sl_err *err) {
    sl_span text = {0};
    if (sl_json_as_span(v, &text) &&
        (!strncmp((const char *)text.data, "http://json-schema.org/", 23) ||
         !strncmp((const char *)text.data, "https://json-schema.org/", 24)))
        return SL_OK;
    return sl_json_fail(schema, "$schema", err, SL_ERR_UNSUPPORTED,
                        "is no draft of json-schema.org");
}

sl_status sl_schema_keywords(sl_schema *s, sl_json schema) {
    void *iter = NULL;
    const char *key;
    sl_json v;
    bool b = true;
    sl_status st = SL_OK;
    if (sl_json_kind_of(schema) != SL_JSON_OBJECT && sl_json_kind_of(schema) != SL_JSON_BOOL)
        return sl_json_fail(schema, NULL, s->err, SL_ERR_FORMAT,
                            "is no schema: neither an object nor true or false");
    while (st == SL_OK && sl_json_next(schema, &iter, &key, &v)) {
        if (among(key, silent, SL_LEN(silent)) || !strncmp(key, "x-", 2)) continue;
        if (!strcmp(key, "$schema")) {
            st = check_draft(schema, v, s->err);
            continue;
        }
        if (!strcmp(key, "$id") && schema.value == s->root.value) continue;
        if (!strcmp(key, "uniqueItems") && sl_json_as_bool(v, &b) && !b) continue;
        if (!among(key, enforced, SL_LEN(enforced)))
            return sl_json_fail(schema, key, s->err, SL_ERR_UNSUPPORTED,
                                "this keyword is not enforced");
        st = check_shape(schema, key, v, s->err);
    }
    return st;
}

sl_status sl_schema_number_of(sl_json schema, const char *key, uint64_t most, uint64_t *out,
                              sl_err *err) {
    const sl_json v = sl_json_get(schema, key);
    double d = 0;
    if (!v.value) return SL_OK;
    if (!sl_json_as_f64(v, &d) || d < 0 || d != (double)(uint64_t)SL_MIN(d, 1e18))
        return sl_json_fail(schema, key, err, SL_ERR_FORMAT, "is no whole number from 0 on");
    if (d > (double)most)
        return sl_json_fail(schema, key, err, SL_ERR_LIMIT, "is %.0f, limit %llu", d,
                            (unsigned long long)most);
    *out = (uint64_t)d;
    return SL_OK;
}

bool sl_schema_is_false(sl_json schema) {
    bool b = true;
    return sl_json_as_bool(schema, &b) && !b;
}

bool sl_schema_is_true(sl_json schema) {
    bool b = false;
    if (sl_json_as_bool(schema, &b)) return b;
    return sl_json_kind_of(schema) == SL_JSON_OBJECT && sl_json_count(schema) == 0;
}

sl_status sl_schema_set_add(sl_schema *s, sl_schema_set *set, sl_json schema) {
    if (sl_schema_is_true(schema)) return SL_OK;
    for (uint32_t i = 0; i < set->n; i++)
        if (set->v[i].value == schema.value) return SL_OK;
    if (set->n >= SL_SCHEMA_MAX_PARTS)
        return sl_json_fail(schema, NULL, s->err, SL_ERR_LIMIT,
                            "more than %u schemas hold of one place (limit)", SL_SCHEMA_MAX_PARTS);
    if (!sl_grammar_room(s->g, (void **)&set->v, &set->cap, set->n + 1, sizeof schema))
        return sl_grammar_status(s->g, s->err);
    set->v[set->n++] = schema;
    return SL_OK;
}

static uint64_t hash_set(const sl_schema_set *set) {
    uint64_t h = set->n;
    for (uint32_t i = 0; i < set->n; i++) {
        h = (h ^ (uint64_t)(uintptr_t)set->v[i].value) * 0xff51afd7ed558ccdu;
        h ^= h >> 31;
    }
    return h;
}

static bool same_set(const sl_schema_set *a, const sl_schema_set *b) {
    if (a->n != b->n) return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->v[i].value != b->v[i].value) return false;
    return true;
}

static bool rehash(sl_schema *s) {
    const size_t slots = s->n_slots ? 2 * s->n_slots : 256;
    uint32_t *table = sl_alloc(slots, sizeof *table);
    if (!table) return false;
    for (uint32_t i = 0; i < s->n_known; i++) {
        size_t at = hash_set(&s->known[i].set) & (slots - 1);
        while (table[at]) at = (at + 1) & (slots - 1);
        table[at] = i + 1;
    }
    sl_free(s->slots);
    s->slots = table;
    s->n_slots = slots;
    return true;
}

sl_status sl_schema_rule(sl_schema *s, sl_schema_set *set, uint32_t *out) {
    sl_status st = SL_OK;
    if (set->n == 0) {
        *out = sl_json_rules_of(s->g, &s->json)->value;
        goto out;
    }
    if (2 * ((size_t)s->n_known + 1) > s->n_slots && !rehash(s)) {
        st = sl_fail(s->err, SL_ERR_NOMEM, "out of memory for a grammar");
        goto out;
    }
    size_t at = hash_set(set) & (s->n_slots - 1);
    for (; s->slots[at]; at = (at + 1) & (s->n_slots - 1))
        if (same_set(&s->known[s->slots[at] - 1].set, set)) {
            *out = s->known[s->slots[at] - 1].rule;
            goto out;
        }
    if (s->n_known >= SL_SCHEMA_MAX_RULES)
        st = sl_json_fail(set->v[0], NULL, s->err, SL_ERR_LIMIT,
                          "more than %u sets of schemas hold of some place (limit)",
                          SL_SCHEMA_MAX_RULES);
    else if (!sl_grammar_room(s->g, (void **)&s->known, &s->cap_known, s->n_known + 1,
                              sizeof *s->known))
        st = sl_grammar_status(s->g, s->err);
    if (st != SL_OK) goto out;
    *out = sl_rules_rule(&s->g->rules);
    s->known[s->n_known++] = (struct sl_schema_known){*set, *out};
    s->slots[at] = s->n_known;
    *set = (sl_schema_set){0};
out:
    s->g->memory -= set->cap * sizeof *set->v;
    sl_free(set->v);
    *set = (sl_schema_set){0};
    return st;
}
