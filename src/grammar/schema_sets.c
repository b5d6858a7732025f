/* Keywords, and sets of schemas: what stands in one, and the rule that each has. */
#include "grammar/schema_int.h"

#include "base/mem.h"

#include <ctype.h>
#include <strings.h>

/* What is enforced. */
static const char *const enforced[] = {
    "$ref",          "type",          "enum",
    "const",         "allOf",         "anyOf",
    "oneOf",         "not",           "if",
    "then",          "else",          "minLength",
    "maxLength",     "pattern",       "format",
    "minimum",       "maximum",       "exclusiveMinimum",
    "multipleOf",    "properties",    "exclusiveMaximum",
    "required",      "minProperties", "patternProperties",
    "maxProperties", "propertyNames", "additionalProperties",
    "dependencies",  "items",         "dependentRequired",
    "prefixItems",   "minItems",      "dependentSchemas",
    "maxItems",      "contains",      "additionalItems",
    "minContains",   "maxContains",   "uniqueItems",
    "$defs",         "definitions",
};
/* What says something about a value in some draft or dialect, and is not enforced. */
static const char *const refused[] = {
    "unevaluatedItems", "unevaluatedProperties",
    "$dynamicRef",      "$recursiveRef",
    "$vocabulary",      "contentEncoding",
    "nullable",         "contentMediaType",
    "contentSchema",    "extends",
    "disallow",         "divisibleBy",
};

static bool among(const char *key, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i], key)) return true;
    return false;
}

/* Whether a and b are one letter apart: another one, one more, two that changed places, or other
 * cases. */
static bool nearly(const char *a, const char *b) {
    const size_t n = strlen(a), m = strlen(b);
    size_t i = 0, k = 0;
    if (n + 1 < m || m + 1 < n || m < 4) return false;
    if (!strcasecmp(a, b)) return true;
    while (a[i] && a[i] == b[i]) i++;
    while (k < SL_MIN(n, m) - i && a[n - 1 - k] == b[m - 1 - k]) k++;
    if (SL_MAX(n, m) - i - k <= 1) return true;
    return n == m && n - i - k == 2 && a[i] == b[i + 1] && a[i + 1] == b[i];
}

/* A word that no draft has says nothing. One that is nearly a keyword is none that somebody wanted
 * to say nothing: it is refused. */
static sl_status check_word(sl_json schema, const char *key, sl_err *err) {
    if (among(key, enforced, SL_LEN(enforced))) return SL_OK;
    if (among(key, refused, SL_LEN(refused)))
        return sl_json_fail(schema, key, err, SL_ERR_UNSUPPORTED, "this keyword is not enforced");
    if (!isalpha((uint8_t)key[0])) return SL_OK;
    for (size_t i = 0; i < SL_LEN(enforced); i++)
        if (nearly(key, enforced[i]))
            return sl_json_fail(schema, key, err, SL_ERR_UNSUPPORTED,
                                "is no keyword, \"%s\" is; words that say nothing may begin with "
                                "x-",
                                enforced[i]);
    return SL_OK;
}

static bool is_one(sl_json v) {
    return sl_json_kind_of(v) == SL_JSON_OBJECT || sl_json_kind_of(v) == SL_JSON_BOOL;
}

sl_status sl_schema_is_one(sl_schema *s, sl_json v) {
    if (is_one(v)) return SL_OK;
    return sl_json_fail(v, NULL, s->err, SL_ERR_FORMAT,
                        "is no schema: neither an object nor true or false");
}

static sl_status check_shape(sl_json schema, const char *key, sl_json v, sl_err *err) {
    static const char *const schemas[] = {"additionalProperties",
                                          "propertyNames",
                                          "not",
                                          "additionalItems",
                                          "if",
                                          "then",
                                          "else",
                                          "contains"};
    static const char *const maps[] = {"properties", "patternProperties", "dependentSchemas"};
    static const char *const lists[] = {"allOf", "anyOf", "oneOf", "prefixItems", "required"};
    const sl_json_kind kind = sl_json_kind_of(v);
    void *iter = NULL;
    const char *name;
    sl_json child;
    bool ok = true;
    if (among(key, schemas, SL_LEN(schemas))) ok = is_one(v);
    if (!strcmp(key, "items")) ok = is_one(v) || kind == SL_JSON_ARRAY;
    if (among(key, maps, SL_LEN(maps))) {
        ok = kind == SL_JSON_OBJECT;
        while (ok && sl_json_next(v, &iter, &name, &child)) ok = is_one(child);
    }
    if (among(key, lists, SL_LEN(lists))) ok = kind == SL_JSON_ARRAY;
    if (!strcmp(key, "dependencies") || !strcmp(key, "dependentRequired")) {
        ok = kind == SL_JSON_OBJECT;
        while (ok && sl_json_next(v, &iter, &name, &child))
            ok = sl_json_kind_of(child) == SL_JSON_ARRAY ||
                 sl_json_kind_of(child) == SL_JSON_STRING ||
                 (!strcmp(key, "dependencies") && is_one(child));
    }
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

static bool refers(sl_schema *s, sl_json at) {
    void *iter = NULL;
    const char *key;
    sl_json child;
    bool found = sl_json_get(at, "$ref").value != NULL;
    s->steps++;
    while (!found && sl_json_next(at, &iter, &key, &child)) found = refers(s, child);
    for (size_t i = 0; sl_json_kind_of(at) == SL_JSON_ARRAY && !found && i < sl_json_count(at); i++)
        found = refers(s, sl_json_at(at, i));
    return found;
}

/* A schema with a name of its own is where references inside it begin. Before draft 6 it is "id".
 */
static sl_status check_id(sl_schema *s, sl_json schema) {
    sl_span draft = {0}, id;
    const bool known = sl_json_as_span(sl_json_get(s->root, "$schema"), &draft);
    const bool old = known && (strstr((const char *)draft.data, "draft-04") ||
                               strstr((const char *)draft.data, "draft-03"));
    const char *key = old ? "id" : "$id";
    if (schema.value == s->root.value || !sl_json_as_span(sl_json_get(schema, key), &id) ||
        id.data[0] == '#' || !refers(s, schema))
        return SL_OK;
    return sl_json_fail(schema, key, s->err, SL_ERR_UNSUPPORTED,
                        "is not supported inside a schema where references stand below it");
}

sl_status sl_schema_keywords(sl_schema *s, sl_json schema) {
    void *iter = NULL;
    const char *key;
    sl_json v;
    sl_status st = sl_schema_is_one(s, schema);
    if (st == SL_OK) st = check_id(s, schema);
    while (st == SL_OK && sl_json_next(schema, &iter, &key, &v)) {
        if (!strcmp(key, "$schema")) {
            st = check_draft(schema, v, s->err);
            continue;
        }
        st = check_word(schema, key, s->err);
        if (st == SL_OK) st = check_shape(schema, key, v, s->err);
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

sl_status sl_schema_counts(sl_schema *s, const sl_schema_set *parts, const char *least,
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

sl_status sl_schema_step(sl_schema *s, uint64_t n) {
    s->steps += n;
    if (s->steps <= SL_SCHEMA_MAX_STEPS) return SL_OK;
    return sl_json_fail(s->root, NULL, s->err, SL_ERR_LIMIT,
                        "takes more than %u steps to read (limit)", SL_SCHEMA_MAX_STEPS);
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
    if (!schema.value) { /* it could not be made */
        const sl_status st = sl_schema_made_status(s);
        return st != SL_OK ? st : sl_fail(s->err, SL_ERR_NOMEM, "out of memory for a grammar");
    }
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

void sl_schema_set_free(sl_schema *s, sl_schema_set *set) {
    s->g->memory -= set->cap * sizeof *set->v;
    sl_free(set->v);
    *set = (sl_schema_set){0};
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
    sl_schema_set_free(s, set);
    return st;
}

sl_json sl_schema_inside(const sl_schema_set *parts, unsigned types, const char **word) {
    static const struct {
        const char *word;
        sl_json_type type;
    } words[] = {
        {"items", SL_TYPE_ARRAY},
        {"prefixItems", SL_TYPE_ARRAY},
        {"additionalItems", SL_TYPE_ARRAY},
        {"minItems", SL_TYPE_ARRAY},
        {"maxItems", SL_TYPE_ARRAY},
        {"contains", SL_TYPE_ARRAY},
        {"uniqueItems", SL_TYPE_ARRAY},
        {"properties", SL_TYPE_OBJECT},
        {"required", SL_TYPE_OBJECT},
        {"patternProperties", SL_TYPE_OBJECT},
        {"additionalProperties", SL_TYPE_OBJECT},
        {"propertyNames", SL_TYPE_OBJECT},
        {"minProperties", SL_TYPE_OBJECT},
        {"maxProperties", SL_TYPE_OBJECT},
        {SL_WORD_SOME, SL_TYPE_OBJECT},
    };
    for (uint32_t i = 0; i < parts->n; i++)
        for (size_t k = 0; k < SL_LEN(words); k++) {
            *word = words[k].word;
            if (types & words[k].type && sl_json_get(parts->v[i], *word).value) return parts->v[i];
        }
    return (sl_json){0};
}
