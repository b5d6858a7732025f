/* Schemas of a request as a shape has them: objects that list properties have no others, unless the
 * schema says so. Every text that is allowed then is one that the schema allows. */
#include "serve/shapes_int.h"

#include <string.h>

/* Whether an object can be judged by itself: no other schema says what else it may have. */
static bool is_plain(sl_json v) {
    static const char *const beside[] = {"anyOf", "oneOf", "$ref"};
    void *iter = NULL;
    const char *key;
    if (sl_json_kind_of(v) == SL_JSON_ARRAY) {
        for (size_t i = 0; i < sl_json_count(v); i++)
            if (!is_plain(sl_json_at(v, i))) return false;
        return true;
    }
    if (sl_json_kind_of(v) != SL_JSON_OBJECT) return true;
    if (sl_json_get(v, "allOf").value || sl_json_get(v, "not").value) return false;
    for (size_t i = 0; i < SL_LEN(beside) && sl_json_get(v, "properties").value; i++)
        if (sl_json_get(v, beside[i]).value) return false;
    for (sl_json f; sl_json_next(v, &iter, &key, &f);)
        if (!is_plain(f)) return false;
    return true;
}

/* An object that lists its properties and is silent about others, of which it needs none. */
static bool is_list(sl_json v) {
    static const char *const others[] = {"additionalProperties", "patternProperties",
                                         "minProperties"};
    sl_json listed = sl_json_get(v, "properties"), required = sl_json_get(v, "required");
    if (sl_json_kind_of(listed) != SL_JSON_OBJECT) return false;
    for (size_t i = 0; i < SL_LEN(others); i++)
        if (sl_json_get(v, others[i]).value) return false;
    for (size_t i = 0; i < sl_json_count(required); i++) {
        sl_span name;
        if (!sl_json_as_span(sl_json_at(required, i), &name) ||
            !sl_json_get(listed, (const char *)name.data).value)
            return false;
    }
    return true;
}

/* What stands under a keyword of a schema. */
typedef enum holds { HOLDS_VALUE, HOLDS_SCHEMA, HOLDS_NAMES } holds;

static holds holds_of(const char *key) {
    static const char *const schemas[] = {"items", "prefixItems", "additionalItems",
                                          "anyOf", "oneOf",       "additionalProperties"};
    static const char *const names[] = {"properties", "patternProperties", "$defs", "definitions"};
    for (size_t i = 0; i < SL_LEN(schemas); i++)
        if (!strcmp(key, schemas[i])) return HOLDS_SCHEMA;
    for (size_t i = 0; i < SL_LEN(names); i++)
        if (!strcmp(key, names[i])) return HOLDS_NAMES;
    return HOLDS_VALUE;
}

static void put_closed(sl_jbuf *b, sl_json v, sl_shape_how *how);

/* Names with a schema each. */
static void put_names(sl_jbuf *b, sl_json v, sl_shape_how *how) {
    void *iter = NULL;
    const char *key;
    bool any = false;
    sl_shape_put(b, "{");
    for (sl_json f; sl_json_next(v, &iter, &key, &f); any = true) {
        if (any) sl_shape_put(b, ",");
        sl_jbuf_cstring(b, key);
        sl_shape_put(b, ":");
        put_closed(b, f, how);
    }
    sl_shape_put(b, "}");
}

/* The members of a schema, and what closes it; false: there were none. */
static bool put_members(sl_jbuf *b, sl_json v, sl_shape_how *how) {
    void *iter = NULL;
    const char *key;
    bool any = false;
    for (sl_json f; sl_json_next(v, &iter, &key, &f); any = true) {
        holds what = how->closed ? holds_of(key) : HOLDS_VALUE;
        if (any) sl_shape_put(b, ",");
        sl_jbuf_cstring(b, key);
        sl_shape_put(b, ":");
        how->either = how->either || !strcmp(key, "oneOf");
        if (what == HOLDS_SCHEMA)
            put_closed(b, f, how);
        else if (what == HOLDS_NAMES && sl_json_kind_of(f) == SL_JSON_OBJECT)
            put_names(b, f, how);
        else
            sl_shape_json(b, f);
    }
    if (!how->closed || !is_list(v)) return any;
    sl_shape_put(b, ",\"additionalProperties\":false"); /* behind its properties */
    how->changed = true;
    return true;
}

/* A schema or a list of them; documents are not deep (SL_JSON_MAX_DEPTH). */
static void put_closed(sl_jbuf *b, sl_json v, sl_shape_how *how) {
    if (sl_json_kind_of(v) == SL_JSON_OBJECT) {
        sl_shape_put(b, "{");
        put_members(b, v, how);
        sl_shape_put(b, "}");
    } else if (sl_json_kind_of(v) == SL_JSON_ARRAY) {
        sl_shape_put(b, "[");
        for (size_t i = 0; i < sl_json_count(v); i++) {
            if (i) sl_shape_put(b, ",");
            put_closed(b, sl_json_at(v, i), how);
        }
        sl_shape_put(b, "]");
    } else {
        sl_shape_json(b, v);
    }
}

void sl_shape_schema(sl_jbuf *b, sl_json root, sl_json schema, sl_shape_how *how) {
    static const char *const under[] = {"$defs", "definitions"};
    sl_shape_how open = {0};
    if (sl_json_kind_of(schema) != SL_JSON_OBJECT) {
        sl_shape_json(b, schema);
        return;
    }
    if (how->root.value != root.value) {
        how->root = root;
        how->plain = is_plain(root);
    }
    if (!how->plain) how = &open;
    sl_shape_put(b, "{");
    bool any = put_members(b, schema, how);
    for (size_t i = 0; i < SL_LEN(under); i++) {
        sl_json defs = sl_json_get(root, under[i]);
        if (!defs.value || sl_json_get(schema, under[i]).value) continue;
        sl_jbuf_fmt(b, "%s\"%s\":", any ? "," : "", under[i]);
        if (how->closed)
            put_names(b, defs, how);
        else
            sl_shape_json(b, defs);
        any = true;
    }
    sl_shape_put(b, "}");
}
