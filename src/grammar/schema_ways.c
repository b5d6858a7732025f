/* References, allOf, anyOf and oneOf: a set of schemas as alternatives of plain ones. */
#include "grammar/schema_int.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>

/* A set that goes: its memory counted no longer. */
static void set_free(sl_schema *s, sl_schema_set *set) {
    s->g->memory -= set->cap * sizeof *set->v;
    sl_free(set->v);
    *set = (sl_schema_set){0};
}

void sl_schema_ways_free(sl_schema_ways *w) {
    for (uint32_t i = 0; i < w->n; i++) sl_free(w->v[i].parts.v);
    sl_free(w->v);
    *w = (sl_schema_ways){0};
}

/* One step of a JSON pointer, unescaped in place of `step`. */
static bool pointer_step(const char **at, char *step, size_t room) {
    size_t n = 0;
    const char *p = *at + 1;
    for (; *p && *p != '/' && n + 1 < room; p++) {
        unsigned byte = (uint8_t)*p;
        if (*p == '%' && p[1] && p[2]) {
            const char hex[3] = {p[1], p[2], 0};
            byte = (unsigned)strtoul(hex, NULL, 16);
            p += 2;
        }
        step[n++] = (char)byte;
    }
    step[n] = 0;
    *at = p;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (step[i] == '~' && step[i + 1] != '0' && step[i + 1] != '1') return false;
        if (step[i] == '~')
            step[k++] = step[++i] == '0' ? '~' : '/';
        else
            step[k++] = step[i];
    }
    step[k] = 0;
    return *p == 0 || *p == '/';
}

static sl_json find_anchor(sl_json at, const char *name) {
    void *iter = NULL;
    const char *key;
    sl_json child = {0}, found = {0};
    if (sl_json_is_text(sl_json_get(at, "$anchor"), name)) return at;
    if (sl_json_kind_of(at) == SL_JSON_OBJECT)
        while (!found.value && sl_json_next(at, &iter, &key, &child))
            if (strcmp(key, "const") != 0 && strcmp(key, "enum") != 0)
                found = find_anchor(child, name);
    for (size_t i = 0;
         sl_json_kind_of(at) == SL_JSON_ARRAY && !found.value && i < sl_json_count(at); i++)
        found = find_anchor(sl_json_at(at, i), name);
    return found;
}

static sl_status refer(sl_schema *s, sl_json schema, sl_json *out) {
    char step[512];
    sl_span text = {0};
    const sl_json ref = sl_json_get(schema, "$ref");
    if (!sl_json_as_span(ref, &text) || memchr(text.data, 0, text.len))
        return sl_json_fail(schema, "$ref", s->err, SL_ERR_FORMAT, "is no text");
    const char *at = (const char *)text.data;
    if (*at != '#')
        return sl_json_fail(schema, "$ref", s->err, SL_ERR_UNSUPPORTED,
                            "\"%.80s\": only references within the schema (#...) are supported",
                            at);
    *out = s->root;
    at++;
    if (*at && *at != '/')
        *out = find_anchor(s->root, at);
    else
        while (*at && out->value) {
            if (!pointer_step(&at, step, sizeof step))
                *out = (sl_json){0};
            else if (sl_json_kind_of(*out) == SL_JSON_ARRAY)
                *out = step[0] >= '0' && step[0] <= '9' ? sl_json_at(*out, strtoul(step, NULL, 10))
                                                        : (sl_json){0};
            else
                *out = sl_json_get(*out, step);
        }
    if (!out->value)
        return sl_json_fail(schema, "$ref", s->err, SL_ERR_FORMAT, "\"%.80s\" is not in the schema",
                            (const char *)text.data);
    return SL_OK;
}

static sl_status types_of(sl_json schema, sl_err *err, unsigned *out) {
    static const char *const names[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};
    static const unsigned bits[] = {
        SL_TYPE_NULL,   SL_TYPE_BOOL,  SL_TYPE_INT,   SL_TYPE_INT | SL_TYPE_REAL,
        SL_TYPE_STRING, SL_TYPE_ARRAY, SL_TYPE_OBJECT};
    const sl_json type = sl_json_get(schema, "type");
    const size_t n = sl_json_kind_of(type) == SL_JSON_ARRAY ? sl_json_count(type) : 1;
    *out = type.value ? 0 : SL_TYPE_ANY;
    for (size_t i = 0; type.value && i < n; i++) {
        const sl_json one = sl_json_kind_of(type) == SL_JSON_ARRAY ? sl_json_at(type, i) : type;
        size_t k = 0;
        while (k < SL_LEN(names) && !sl_json_is_text(one, names[k])) k++;
        if (k == SL_LEN(names))
            return sl_json_fail(schema, "type", err, SL_ERR_FORMAT, "is no type of JSON");
        *out |= bits[k];
    }
    return SL_OK;
}

/* `not` of what says nothing but types. */
static sl_status types_without(sl_json schema, sl_err *err, unsigned *out) {
    const sl_json no = sl_json_get(schema, "not");
    unsigned types = 0;
    sl_status st = SL_OK;
    *out = SL_TYPE_ANY;
    if (!no.value) return SL_OK;
    if (sl_schema_is_true(no))
        types = SL_TYPE_ANY;
    else if (!sl_schema_is_false(no)) {
        if (sl_json_count(no) != 1 || !sl_json_get(no, "type").value)
            return sl_json_fail(schema, "not", err, SL_ERR_UNSUPPORTED,
                                "is enforced for types, true and false alone");
        st = types_of(no, err, &types);
        if (st == SL_OK && (types & (SL_TYPE_INT | SL_TYPE_REAL)) == SL_TYPE_INT)
            return sl_json_fail(schema, "not", err, SL_ERR_UNSUPPORTED,
                                "is not enforced for integer");
    }
    *out = SL_TYPE_ANY & ~types;
    return st;
}

/* An alternative on the way: what of it is still to be looked at. */
typedef struct open_way {
    sl_schema_set todo, seen;
    sl_schema_way way;
    uint32_t next; /* of todo */
} open_way;

typedef struct expansion {
    sl_schema *s;
    open_way *v;
    uint32_t n;
    size_t cap;
    sl_schema_ways *out;
    uint32_t made;
} expansion;

static void open_free(sl_schema *s, open_way *w) {
    set_free(s, &w->todo);
    set_free(s, &w->seen);
    set_free(s, &w->way.parts);
}

static sl_status copy_set(sl_schema *s, const sl_schema_set *from, sl_schema_set *to) {
    sl_status st = SL_OK;
    for (uint32_t i = 0; i < from->n && st == SL_OK; i++) st = sl_schema_set_add(s, to, from->v[i]);
    return st;
}

/* A further alternative: w with one more schema to look at. */
static sl_status branch(expansion *x, const open_way *w, sl_json more) {
    sl_schema *s = x->s;
    open_way copy = {.way.types = w->way.types};
    sl_status st = SL_OK;
    if (++x->made > SL_SCHEMA_MAX_WAYS)
        return sl_json_fail(more, NULL, s->err, SL_ERR_LIMIT,
                            "more than %u alternatives at one place (limit)", SL_SCHEMA_MAX_WAYS);
    for (uint32_t i = w->next; i < w->todo.n && st == SL_OK; i++)
        st = sl_schema_set_add(s, &copy.todo, w->todo.v[i]);
    if (st == SL_OK) st = sl_schema_set_add(s, &copy.todo, more);
    if (st == SL_OK) st = copy_set(s, &w->seen, &copy.seen);
    if (st == SL_OK) st = copy_set(s, &w->way.parts, &copy.way.parts);
    if (st == SL_OK && !sl_grammar_room(s->g, (void **)&x->v, &x->cap, x->n + 1, sizeof copy))
        st = sl_grammar_status(s->g, s->err);
    if (st == SL_OK && !sl_schema_is_false(more))
        x->v[x->n++] = copy;
    else
        open_free(s, &copy);
    return st;
}

static sl_status sets_apart(sl_schema *s, const sl_schema_set *a, const sl_schema_set *b,
                            bool *out);

static sl_status apart_of(sl_schema *s, sl_json a, sl_json b, bool *out) {
    sl_json v[2] = {a, b};
    const sl_schema_set x = {.v = &v[0], .n = 1}, y = {.v = &v[1], .n = 1};
    return sets_apart(s, &x, &y, out);
}

static sl_status check_one_of(sl_schema *s, sl_json schema, sl_json list) {
    const size_t n = sl_json_count(list);
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; k < n; k++) {
            bool apart = false;
            const sl_status st = apart_of(s, sl_json_at(list, i), sl_json_at(list, k), &apart);
            if (st != SL_OK) return st;
            if (!apart)
                return sl_json_fail(schema, "oneOf", s->err, SL_ERR_UNSUPPORTED,
                                    "alternatives %zu and %zu may both hold; anyOf allows that", i,
                                    k);
        }
    return SL_OK;
}

/* All alternatives that anyOf and oneOf of one schema make of w; neither: *split false. */
static sl_status split_at(expansion *x, const open_way *w, sl_json schema, bool *split) {
    sl_schema *s = x->s;
    const sl_json any = sl_json_get(schema, "anyOf"), one = sl_json_get(schema, "oneOf");
    sl_status st = SL_OK;
    *split = any.value || one.value;
    if (!*split) return SL_OK;
    if ((any.value && !sl_json_count(any)) || (one.value && !sl_json_count(one)))
        return sl_json_fail(schema, any.value ? "anyOf" : "oneOf", s->err, SL_ERR_FORMAT,
                            "is no list of schemas");
    if (any.value && one.value)
        return sl_json_fail(schema, "oneOf", s->err, SL_ERR_UNSUPPORTED,
                            "is not enforced beside anyOf");
    const sl_json list = any.value ? any : one;
    if (one.value) st = check_one_of(s, schema, list);
    /* the first alternative is looked at first: it is put last */
    for (size_t i = sl_json_count(list); i-- > 0 && st == SL_OK;)
        st = branch(x, w, sl_json_at(list, i));
    return st;
}

/* Takes in one schema; *dead: nothing satisfies the alternative, *split: others took its place. */
static sl_status look(expansion *x, open_way *w, sl_json schema, bool *dead, bool *split) {
    sl_schema *s = x->s;
    unsigned types, without;
    *dead = sl_schema_is_false(schema);
    *split = false;
    if (*dead || sl_schema_is_true(schema)) return SL_OK;
    for (uint32_t i = 0; i < w->seen.n; i++)
        if (w->seen.v[i].value == schema.value) return SL_OK;
    sl_status st = sl_schema_keywords(s, schema);
    if (st == SL_OK) st = sl_schema_set_add(s, &w->seen, schema);
    if (st == SL_OK) st = types_of(schema, s->err, &types);
    if (st == SL_OK) st = types_without(schema, s->err, &without);
    if (st != SL_OK) return st;
    w->way.types &= types & without;
    *dead = w->way.types == 0;
    if (*dead) return SL_OK;
    st = sl_schema_set_add(s, &w->way.parts, schema);
    if (st == SL_OK && sl_json_get(schema, "$ref").value) {
        sl_json target = {0};
        st = refer(s, schema, &target);
        if (st == SL_OK) st = sl_schema_set_add(s, &w->todo, target);
    }
    const sl_json all = sl_json_get(schema, "allOf");
    if (st == SL_OK && all.value && !sl_json_count(all))
        return sl_json_fail(schema, "allOf", s->err, SL_ERR_FORMAT, "is no list of schemas");
    for (size_t i = 0; i < sl_json_count(all) && st == SL_OK; i++)
        st = sl_schema_set_add(s, &w->todo, sl_json_at(all, i));
    return st == SL_OK ? split_at(x, w, schema, split) : st;
}

static sl_status keep(expansion *x, open_way *w) {
    sl_schema_ways *out = x->out;
    if (!sl_grammar_room(x->s->g, (void **)&out->v, &out->cap, out->n + 1, sizeof *out->v))
        return sl_grammar_status(x->s->g, x->s->err);
    x->s->g->memory -= w->way.parts.cap * sizeof *w->way.parts.v;
    out->v[out->n++] = w->way;
    w->way.parts = (sl_schema_set){0};
    return SL_OK;
}

sl_status sl_schema_expand(sl_schema *s, const sl_schema_set *set, sl_schema_ways *out) {
    expansion x = {.s = s, .out = out};
    open_way first = {.way.types = SL_TYPE_ANY};
    sl_status st = copy_set(s, set, &first.todo);
    *out = (sl_schema_ways){0};
    if (st == SL_OK && !sl_grammar_room(s->g, (void **)&x.v, &x.cap, 1, sizeof first))
        st = sl_grammar_status(s->g, s->err);
    if (st == SL_OK)
        x.v[x.n++] = first;
    else
        open_free(s, &first);
    while (x.n && st == SL_OK) {
        open_way w = x.v[--x.n];
        bool dead = false, split = false;
        while (w.next < w.todo.n && st == SL_OK && !dead && !split)
            st = look(&x, &w, w.todo.v[w.next++], &dead, &split);
        if (st == SL_OK && !dead && !split) st = keep(&x, &w);
        open_free(s, &w);
    }
    for (uint32_t i = 0; i < x.n; i++) open_free(s, &x.v[i]);
    s->g->memory -= x.cap * sizeof *x.v + out->cap * sizeof *out->v;
    sl_free(x.v);
    if (st != SL_OK) sl_schema_ways_free(out);
    return st;
}

static bool requires(const sl_schema_set *parts, sl_json name) {
    sl_span text, other;
    (void)sl_json_as_span(name, &text);
    for (uint32_t i = 0; i < parts->n; i++) {
        const sl_json list = sl_json_get(parts->v[i], "required");
        for (size_t k = 0; k < sl_json_count(list); k++)
            if (sl_json_as_span(sl_json_at(list, k), &other) && other.len == text.len &&
                !memcmp(other.data, text.data, text.len))
                return true;
    }
    return false;
}

static sl_status sets_apart(sl_schema *s, const sl_schema_set *a, const sl_schema_set *b,
                            bool *out);

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
            st = sl_schema_under(s, a, name, &x, &closed_a);
            if (st == SL_OK) st = sl_schema_under(s, b, name, &y, &closed_b);
            if (st == SL_OK && (closed_a || closed_b)) *out = true;
            if (st == SL_OK && !*out && requires(b, sl_json_at(list, k)))
                st = sets_apart(s, &x, &y, out);
            set_free(s, &x);
            set_free(s, &y);
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

static sl_status ways_apart(sl_schema *s, const sl_schema_way *a, const sl_schema_way *b,
                            bool *out) {
    const unsigned both = a->types & b->types;
    bool listed_a = false, listed_b = false;
    sl_rx x, y;
    *out = both == 0;
    if (*out) return SL_OK;
    sl_status st = sl_schema_listed(s, a, &listed_a, &x);
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
    if (s->depth >= 4) return SL_OK; /* not known */
    s->depth++;
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
