/* What of a schema is a choice: anyOf, oneOf, not, if, what a property needs, listed arrays and
 * objects. Each is a list of alternatives, made once for each place. */
#include "grammar/schema_int.h"

#define MAX_NESTED 16u /* lists that are compared while others are */

/* Numbers of ways; schema_not.c has the first ones. */
enum { AS_ONE_OF = 16, AS_IF, AS_SPELLED, AS_NEEDS };

static sl_status list_of(sl_schema *s, sl_json schema, const char *key, sl_json *out) {
    *out = sl_json_get(schema, key);
    if (out->value && !sl_json_count(*out))
        return sl_json_fail(schema, key, s->err, SL_ERR_FORMAT, "is no list of schemas");
    return SL_OK;
}

static sl_json any_of(sl_schema *s, sl_json list) {
    if (!sl_json_count(list)) return sl_schema_made_bool(s, s->root, false);
    const sl_json any = sl_schema_made(s, list, SL_TYPE_ANY);
    sl_schema_made_put(s, any, "anyOf", list);
    return any;
}

/* Alternative i of oneOf, and that each of the others that might hold beside it does not. */
static sl_status one_alone(sl_schema *s, sl_json list, size_t i, sl_json *out) {
    const sl_json one = sl_json_at(list, i), all = sl_schema_made_list(s, list);
    sl_status st = SL_OK;
    sl_schema_made_add(s, all, one);
    for (size_t k = 0; k < sl_json_count(list) && st == SL_OK; k++) {
        const sl_json other = sl_json_at(list, k);
        bool apart = false;
        sl_json no;
        if (k == i) continue;
        st = sl_schema_apart(s, one, other, &apart);
        if (st != SL_OK || apart) continue;
        st = sl_schema_not_beside(s, other, one, &no);
        if (st == SL_OK) sl_schema_made_add(s, all, any_of(s, no));
    }
    *out = one;
    if (sl_json_count(all) <= 1) return st;
    *out = sl_schema_made(s, list, SL_TYPE_ANY);
    sl_schema_made_put(s, *out, "allOf", all);
    return st;
}

/* While the alternatives are compared, the list stands for itself, which allows more than it does:
 * what cannot hold beside that cannot hold beside oneOf either. So it is asked from the beginning
 * how deep to look, however deep it was met first. */
static sl_status one_of(sl_schema *s, sl_json list, sl_json *out) {
    const unsigned depth = s->depth;
    sl_status st = SL_OK;
    *out = sl_schema_found(s, list, AS_ONE_OF);
    if (out->value) return SL_OK;
    sl_schema_keep(s, list, AS_ONE_OF, list);
    *out = sl_schema_made_list(s, list);
    if (s->nested < MAX_NESTED) s->depth = 0;
    s->nested++;
    for (size_t i = 0; i < sl_json_count(list) && st == SL_OK; i++) {
        sl_json one = {0};
        st = one_alone(s, list, i, &one);
        sl_schema_made_add(s, *out, one);
    }
    s->nested--;
    s->depth = depth;
    sl_schema_keep(s, list, AS_ONE_OF, *out);
    return st == SL_OK ? sl_schema_made_status(s) : st;
}

static sl_status if_of(sl_schema *s, sl_json schema, sl_json *out) {
    const sl_json is = sl_json_get(schema, "if");
    sl_json no = {0};
    *out = sl_schema_found(s, schema, AS_IF);
    if (out->value) return SL_OK;
    const sl_status st = sl_schema_not(s, is, &no);
    if (st != SL_OK) return st;
    *out = sl_schema_made_list(s, schema);
    sl_schema_made_add(s, *out, sl_schema_made_both(s, is, sl_json_get(schema, "then")));
    sl_schema_made_add(s, *out, sl_schema_made_both(s, no, sl_json_get(schema, "else")));
    sl_schema_keep(s, schema, AS_IF, *out);
    return sl_schema_made_status(s);
}

sl_status sl_schema_needs(sl_schema *s, const char *key, sl_json needs, sl_json *there,
                          sl_json *more) {
    sl_span name;
    *there = sl_schema_made(s, needs, SL_TYPE_OBJECT);
    sl_schema_made_required(s, *there, key);
    *more = needs;
    if (sl_json_as_span(needs, &name)) {
        if (memchr(name.data, 0, name.len))
            return sl_json_fail(needs, NULL, s->err, SL_ERR_UNSUPPORTED, "a name with a NUL in it");
        *more = sl_schema_made(s, needs, SL_TYPE_ANY);
        sl_schema_made_required(s, *more, (const char *)name.data);
    } else if (sl_json_kind_of(needs) == SL_JSON_ARRAY) {
        *more = sl_schema_made(s, needs, SL_TYPE_ANY);
        sl_schema_made_put(s, *more, "required", needs);
    }
    return sl_schema_made_status(s);
}

/* Of each name: the property is not there, or what it needs holds. */
static sl_status needs_of(sl_schema *s, sl_json map, sl_schema_set *lists) {
    void *iter = NULL;
    const char *key;
    sl_json needs, there, more;
    sl_status st = SL_OK;
    for (unsigned i = 0; st == SL_OK && sl_json_next(map, &iter, &key, &needs); i++) {
        sl_json list = sl_schema_found(s, map, AS_NEEDS + i);
        if (!list.value) {
            const sl_json without = sl_schema_made(s, map, SL_TYPE_ANY);
            sl_schema_made_property(s, without, key, sl_schema_made_bool(s, map, false));
            sl_schema_made_count(s, without, SL_WORD_TYPES, SL_TYPE_ANY); /* it lists nothing */
            st = sl_schema_needs(s, key, needs, &there, &more);
            list = sl_schema_made_list(s, map);
            sl_schema_made_add(s, list, without);
            sl_schema_made_add(s, list, sl_schema_made_both(s, there, more));
            sl_schema_keep(s, map, AS_NEEDS + i, list);
        }
        if (st == SL_OK) st = sl_schema_made_status(s);
        if (st == SL_OK) st = sl_schema_set_add(s, lists, list);
    }
    return st;
}

sl_json sl_schema_spell(sl_schema *s, sl_json v) {
    const bool object = sl_json_kind_of(v) == SL_JSON_OBJECT;
    const sl_json out = sl_schema_made(s, v, object ? SL_TYPE_OBJECT : SL_TYPE_ARRAY),
                  inside = object ? sl_schema_made(s, v, SL_TYPE_ANY) : sl_schema_made_list(s, v),
                  required = sl_schema_made_list(s, v);
    void *iter = NULL;
    const char *name;
    sl_json child;
    for (size_t i = 0; !object && i < sl_json_count(v); i++) {
        const sl_json one = sl_schema_made(s, v, SL_TYPE_ANY);
        sl_schema_made_put(s, one, "const", sl_json_at(v, i));
        sl_schema_made_add(s, inside, one);
    }
    while (object && sl_json_next(v, &iter, &name, &child)) {
        const sl_json one = sl_schema_made(s, v, SL_TYPE_ANY);
        sl_schema_made_put(s, one, "const", child);
        sl_schema_made_put(s, inside, name, one);
        sl_schema_made_add(s, required, sl_schema_made_text(s, v, name));
    }
    sl_schema_made_put(s, out, SL_WORD_SPELLED, sl_schema_made_bool(s, v, true));
    if (object) {
        sl_schema_made_put(s, out, "properties", inside);
        sl_schema_made_put(s, out, "required", required);
        sl_schema_made_put(s, out, "additionalProperties", sl_schema_made_bool(s, v, false));
    } else {
        sl_schema_made_put(s, out, "prefixItems", inside);
        sl_schema_made_count(s, out, "minItems", sl_json_count(v));
        sl_schema_made_count(s, out, "maxItems", sl_json_count(v));
    }
    return out;
}

/* Listed arrays and objects, if they are few, and what else is listed. */
static sl_status spelled(sl_schema *s, sl_json schema, const char *key, sl_json *out) {
    const sl_json v = sl_json_get(schema, key);
    const bool one = !strcmp(key, "const");
    const uint32_t n = sl_schema_structured(schema, key);
    if (n == 0 || n > SL_SCHEMA_MAX_SPELLED) return SL_OK;
    *out = sl_schema_found(s, v, AS_SPELLED);
    if (out->value) return SL_OK;
    *out = sl_schema_made_list(s, v);
    if (!one) sl_schema_made_add(s, *out, sl_schema_made(s, v, SL_TYPE_ANY & ~SL_TYPE_STRUCTURED));
    for (size_t i = 0; i < (one ? 1 : sl_json_count(v)); i++) {
        const sl_json value = one ? v : sl_json_at(v, i);
        if (sl_schema_type_of(value) & SL_TYPE_STRUCTURED)
            sl_schema_made_add(s, *out, sl_schema_spell(s, value));
    }
    sl_schema_keep(s, v, AS_SPELLED, *out);
    return sl_schema_made_status(s);
}

sl_status sl_schema_choice(sl_schema *s, sl_json schema, const char *key, sl_schema_set *lists) {
    const sl_json v = sl_json_get(schema, key);
    sl_json list = {0};
    sl_status st = SL_OK;
    if (!strcmp(key, "anyOf")) {
        st = list_of(s, schema, key, &list);
    } else if (!strcmp(key, "oneOf")) {
        st = list_of(s, schema, key, &list);
        if (st == SL_OK) st = one_of(s, v, &list);
    } else if (!strcmp(key, "not")) {
        st = sl_schema_not_list(s, v, &list);
    } else if (!strcmp(key, "if")) {
        if (sl_json_get(schema, "then").value || sl_json_get(schema, "else").value)
            st = if_of(s, schema, &list);
    } else if (!strcmp(key, "enum") || !strcmp(key, "const")) {
        st = spelled(s, schema, key, &list);
    } else if (!strcmp(key, "dependencies") || !strcmp(key, "dependentRequired") ||
               !strcmp(key, "dependentSchemas")) {
        return needs_of(s, v, lists);
    }
    return st == SL_OK && list.value ? sl_schema_set_add(s, lists, list) : st;
}
