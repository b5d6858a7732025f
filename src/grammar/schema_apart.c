/* Whether two schemas can hold at once: by types, listed values, texts, or a property that tells
 * objects apart. */
#include "grammar/schema_int.h"

#include "base/mem.h"

static sl_status sets_apart(sl_schema *s, const sl_schema_set *a, const sl_schema_set *b,
                            bool *out);

bool sl_schema_requires(const sl_schema_set *parts, sl_span text) {
    sl_span other;
    for (uint32_t i = 0; i < parts->n; i++) {
        const sl_json list = sl_json_get(parts->v[i], "required");
        for (size_t k = 0; k < sl_json_count(list); k++)
            if (sl_json_as_span(sl_json_at(list, k), &other) && other.len == text.len &&
                !memcmp(other.data, text.data, text.len))
                return true;
    }
    return false;
}

/* Objects are apart where one has a property that the other may not have, or with another value. */
static sl_status objects_apart(sl_schema *s, const sl_schema_set *a, const sl_schema_set *b,
                               bool *out) {
    sl_status st = SL_OK;
    for (uint32_t i = 0; i < a->n && st == SL_OK; i++) {
        const sl_json list = sl_json_get(a->v[i], "required");
        for (size_t k = 0; k < sl_json_count(list) && st == SL_OK && !*out; k++) {
            sl_span name;
            sl_schema_set x = {0}, y = {0};
            bool closed_a = false, closed_b = false;
            if (!sl_json_as_span(sl_json_at(list, k), &name)) continue;
            st = sl_schema_step(s, 1 + sl_json_count(list) / 16);
            if (st != SL_OK) break;
            st = sl_schema_under(s, a, name, &x, &closed_a);
            if (st == SL_OK) st = sl_schema_under(s, b, name, &y, &closed_b);
            if (st == SL_OK && (closed_a || closed_b)) *out = true;
            if (st == SL_OK && !*out && sl_schema_requires(b, name))
                st = sets_apart(s, &x, &y, out);
            sl_schema_set_free(s, &x);
            sl_schema_set_free(s, &y);
        }
    }
    return st;
}

static sl_status texts_apart(sl_schema *s, const sl_schema_way *a, const sl_schema_way *b,
                             unsigned type, bool *out) {
    sl_rx x, y;
    sl_schema_way p = *a, q = *b;
    p.types = q.types = type;
    sl_status st =
        type == SL_TYPE_STRING ? sl_schema_string(s, &p.parts, &x) : sl_schema_number(s, &p, &x);
    if (st == SL_OK)
        st = type == SL_TYPE_STRING ? sl_schema_string(s, &q.parts, &y)
                                    : sl_schema_number(s, &q, &y);
    if (st == SL_OK) *out = !sl_rx_live(s->g->rx, sl_rx_and2(s->g->rx, x, y));
    return st;
}

static bool lists_structured(const sl_schema_set *parts) {
    for (uint32_t i = 0; i < parts->n; i++)
        if (sl_schema_structured(parts->v[i], "enum") || sl_schema_structured(parts->v[i], "const"))
            return true;
    return false;
}

static sl_status ways_apart(sl_schema *s, const sl_schema_way *a, const sl_schema_way *b,
                            bool *out) {
    const unsigned both = a->types & b->types;
    bool listed_a = false, listed_b = false;
    sl_rx x, y;
    sl_status st = sl_schema_step(s, 1);
    *out = both == 0;
    if (st != SL_OK || *out) return st;
    /* texts of arrays and objects depend on the order of names */
    if (both & SL_TYPE_STRUCTURED && (lists_structured(&a->parts) || lists_structured(&b->parts)))
        return SL_OK;
    st = sl_schema_listed(s, a, &listed_a, &x);
    if (st == SL_OK) st = sl_schema_listed(s, b, &listed_b, &y);
    if (st != SL_OK) return st;
    if (listed_a && listed_b) {
        *out = !sl_rx_live(s->g->rx, sl_rx_and2(s->g->rx, x, y));
        return SL_OK;
    }
    if (listed_a || listed_b || (both & (SL_TYPE_NULL | SL_TYPE_BOOL | SL_TYPE_ARRAY)))
        return SL_OK;
    const unsigned number = both & (SL_TYPE_INT | SL_TYPE_REAL);
    bool string_apart = !(both & SL_TYPE_STRING), number_apart = !number,
         object_apart = !(both & SL_TYPE_OBJECT);
    if (!string_apart) st = texts_apart(s, a, b, SL_TYPE_STRING, &string_apart);
    if (st == SL_OK && !number_apart)
        st = texts_apart(s, a, b, SL_TYPE_INT | SL_TYPE_REAL, &number_apart);
    if (st == SL_OK && !object_apart) st = objects_apart(s, &a->parts, &b->parts, &object_apart);
    if (st == SL_OK && !object_apart) st = objects_apart(s, &b->parts, &a->parts, &object_apart);
    *out = string_apart && number_apart && object_apart;
    return st;
}

static sl_status sets_apart(sl_schema *s, const sl_schema_set *a, const sl_schema_set *b,
                            bool *out) {
    sl_schema_ways x = {0}, y = {0};
    sl_status st = SL_OK;
    *out = false;
    if (s->depth >= 4 || s->n_apart >= SL_SCHEMA_MAX_APART) return SL_OK; /* not known */
    s->depth++;
    s->n_apart++;
    st = sl_schema_expand(s, a, &x);
    if (st == SL_OK) st = sl_schema_expand(s, b, &y);
    *out = st == SL_OK;
    for (uint32_t i = 0; i < x.n && *out; i++)
        for (uint32_t k = 0; k < y.n && *out; k++) {
            st = ways_apart(s, &x.v[i], &y.v[k], out);
            *out &= st == SL_OK;
        }
    s->depth--;
    sl_schema_ways_free(&x);
    sl_schema_ways_free(&y);
    return st;
}

sl_status sl_schema_apart(sl_schema *s, sl_json a, sl_json b, bool *out) {
    const sl_schema_set x = {.v = &a, .n = 1}, y = {.v = &b, .n = 1};
    return sets_apart(s, &x, &y, out);
}
