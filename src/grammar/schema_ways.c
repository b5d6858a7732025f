/* A set of schemas that all must hold as alternatives without references, allOf and choices. */
#include "grammar/schema_int.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>

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

static sl_json find_anchor(sl_schema *s, sl_json at, const char *name) {
    static const char *const ids[] = {"$id", "id"}; /* before $anchor: those that begin with # */
    void *iter = NULL;
    const char *key;
    sl_json child = {0}, found = {0};
    sl_span id;
    s->steps++;
    if (sl_json_is_text(sl_json_get(at, "$anchor"), name)) return at;
    for (size_t i = 0; i < SL_LEN(ids); i++)
        if (sl_json_as_span(sl_json_get(at, ids[i]), &id) && id.data[0] == '#' &&
            !strcmp((const char *)id.data + 1, name))
            return at;
    if (sl_json_kind_of(at) == SL_JSON_OBJECT)
        while (!found.value && sl_json_next(at, &iter, &key, &child))
            if (strcmp(key, "const") != 0 && strcmp(key, "enum") != 0)
                found = find_anchor(s, child, name);
    for (size_t i = 0;
         sl_json_kind_of(at) == SL_JSON_ARRAY && !found.value && i < sl_json_count(at); i++)
        found = find_anchor(s, sl_json_at(at, i), name);
    return found;
}

sl_status sl_schema_refer(sl_schema *s, sl_json schema, sl_json *out) {
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
        *out = find_anchor(s, s->root, at);
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

sl_status sl_schema_types(sl_json schema, sl_err *err, unsigned *out) {
    static const char *const names[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};
    static const unsigned bits[] = {
        SL_TYPE_NULL,   SL_TYPE_BOOL,  SL_TYPE_INT,   SL_TYPE_INT | SL_TYPE_REAL,
        SL_TYPE_STRING, SL_TYPE_ARRAY, SL_TYPE_OBJECT};
    const sl_json type = sl_json_get(schema, "type");
    uint64_t made;
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
    if (sl_json_as_u64(sl_json_get(schema, SL_WORD_TYPES), &made)) *out &= (unsigned)made;
    return SL_OK;
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
    sl_schema_set_free(s, &w->todo);
    sl_schema_set_free(s, &w->seen);
    sl_schema_set_free(s, &w->way.parts);
}

static sl_status copy_set(sl_schema *s, const sl_schema_set *from, sl_schema_set *to) {
    sl_status st = SL_OK;
    for (uint32_t i = 0; i < from->n && st == SL_OK; i++) st = sl_schema_set_add(s, to, from->v[i]);
    return st;
}

/* A further alternative: w with one more schema, which is looked at next. */
static sl_status branch(expansion *x, const open_way *w, sl_json more) {
    sl_schema *s = x->s;
    open_way copy = {.way.types = w->way.types};
    if (++x->made > SL_SCHEMA_MAX_WAYS)
        return sl_json_fail(w->seen.n ? w->seen.v[0] : more, NULL, s->err, SL_ERR_LIMIT,
                            "more than %u alternatives at one place (limit)", SL_SCHEMA_MAX_WAYS);
    sl_status st = sl_schema_step(s, 1 + (w->todo.n + w->seen.n) / 16);
    if (st == SL_OK) st = sl_schema_set_add(s, &copy.todo, more);
    for (uint32_t i = w->next; i < w->todo.n && st == SL_OK; i++)
        st = sl_schema_set_add(s, &copy.todo, w->todo.v[i]);
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

/* One more to look at, before what was to be looked at anyway: properties come in the order in
 * which references and allOf stand. */
static sl_status put(sl_schema *s, open_way *w, uint32_t *at, sl_json schema) {
    sl_schema_set *todo = &w->todo;
    const uint32_t n = todo->n;
    const sl_status st = sl_schema_set_add(s, todo, schema);
    if (st != SL_OK || todo->n == n) return st;
    memmove(&todo->v[*at + 1], &todo->v[*at], (n - *at) * sizeof *todo->v);
    todo->v[(*at)++] = schema;
    return SL_OK;
}

/* A schema that was looked at, behind what stands in it before its properties. */
static sl_status put_again(sl_schema *s, open_way *w, uint32_t *at, sl_json schema) {
    sl_schema_set *todo = &w->todo;
    if (!sl_grammar_room(s->g, (void **)&todo->v, &todo->cap, todo->n + 1, sizeof schema))
        return sl_grammar_status(s->g, s->err);
    memmove(&todo->v[*at + 1], &todo->v[*at], (todo->n++ - *at) * sizeof *todo->v);
    todo->v[(*at)++] = schema;
    return SL_OK;
}

static bool has(const sl_schema_set *set, sl_json schema) {
    for (uint32_t i = 0; i < set->n; i++)
        if (set->v[i].value == schema.value) return true;
    return false;
}

/* Alternatives take the place of w, unless one of them holds anyway; the first one is looked at
 * first: it is put last. */
static sl_status split(expansion *x, const open_way *w, sl_json list, bool *gone) {
    sl_status st = SL_OK;
    *gone = false;
    for (size_t i = 0; i < sl_json_count(list); i++)
        if (sl_schema_is_true(sl_json_at(list, i)) || has(&w->seen, sl_json_at(list, i)))
            return SL_OK;
    *gone = true;
    for (size_t i = sl_json_count(list); i-- > 0 && st == SL_OK;) {
        st = sl_schema_is_one(x->s, sl_json_at(list, i));
        if (st == SL_OK) st = branch(x, w, sl_json_at(list, i));
    }
    return st;
}

/* What stands in a schema, in its order, itself where its properties are. */
static sl_status put_all(expansion *x, open_way *w, sl_json schema) {
    sl_schema *s = x->s;
    uint32_t at = w->next;
    const char *key;
    void *iter = NULL;
    sl_json v;
    sl_status st = SL_OK;
    if (!sl_json_get(schema, "properties").value) st = sl_schema_set_add(s, &w->way.parts, schema);
    while (st == SL_OK && sl_json_next(schema, &iter, &key, &v)) {
        sl_schema_set lists = {0};
        if (!strcmp(key, "$ref")) {
            st = sl_schema_refer(s, schema, &v);
            if (st == SL_OK) st = sl_schema_is_one(s, v);
            if (st == SL_OK) st = put(s, w, &at, v);
        } else if (!strcmp(key, "allOf")) {
            if (!sl_json_count(v))
                st = sl_json_fail(schema, key, s->err, SL_ERR_FORMAT, "is no list of schemas");
            for (size_t i = 0; i < sl_json_count(v) && st == SL_OK; i++) {
                st = sl_schema_is_one(s, sl_json_at(v, i));
                if (st == SL_OK) st = put(s, w, &at, sl_json_at(v, i));
            }
        } else if (!strcmp(key, "properties")) {
            st = at == w->next ? sl_schema_set_add(s, &w->way.parts, schema)
                               : put_again(s, w, &at, schema);
        } else {
            st = sl_schema_choice(s, schema, key, &lists);
        }
        for (uint32_t i = 0; i < lists.n && st == SL_OK; i++) st = put(s, w, &at, lists.v[i]);
        sl_schema_set_free(s, &lists);
    }
    return st;
}

/* Takes in one schema, or list of alternatives; *gone: nothing satisfies the alternative, or others
 * took its place. */
static sl_status look(expansion *x, open_way *w, sl_json schema, bool *gone) {
    sl_schema *s = x->s;
    unsigned types;
    const sl_status early = sl_schema_step(s, 1 + w->seen.n / 16);
    if (early != SL_OK) return early;
    *gone = sl_schema_is_false(schema);
    if (*gone || sl_schema_is_true(schema)) return SL_OK;
    if (sl_json_kind_of(schema) == SL_JSON_ARRAY) return split(x, w, schema, gone);
    if (has(&w->seen, schema)) return sl_schema_set_add(s, &w->way.parts, schema);
    sl_status st = sl_schema_keywords(s, schema);
    if (st == SL_OK) st = sl_schema_set_add(s, &w->seen, schema);
    if (st == SL_OK) st = sl_schema_types(schema, s->err, &types);
    if (st != SL_OK) return st;
    w->way.types &= types;
    *gone = w->way.types == 0;
    if (*gone) return SL_OK;
    return put_all(x, w, schema);
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
        bool gone = false;
        while (w.next < w.todo.n && st == SL_OK && !gone) {
            const sl_json one = w.todo.v[w.next++];
            st = look(&x, &w, one, &gone);
        }
        if (st == SL_OK && !gone) st = keep(&x, &w);
        open_free(s, &w);
    }
    for (uint32_t i = 0; i < x.n; i++) open_free(s, &x.v[i]);
    s->g->memory -= x.cap * sizeof *x.v + out->cap * sizeof *out->v;
    sl_free(x.v);
    if (st != SL_OK) sl_schema_ways_free(out);
    return st;
}
