/* Tools of a request as the parser of answers needs them: names, and which kinds of value a
 * parameter may have. */
#include "text/answer_int.h"

#include "base/mem.h"

typedef struct parameter {
    sl_span name;
    unsigned kinds;
} parameter;

typedef struct tool {
    sl_span name;
    size_t first, n; /* of the parameters */
} tool;

struct sl_tool_set {
    tool *tool;
    parameter *parameter;
    char *names;
    size_t n, n_parameters, n_names;
};

static sl_json properties(sl_json t) {
    return sl_json_get(sl_json_get(sl_json_get(t, "function"), "parameters"), "properties");
}

static unsigned kinds_named(sl_json type) {
    static const struct {
        const char *name;
        unsigned kinds;
    } known[] = {{"string", 1u << SL_JSON_STRING},
                 {"integer", 1u << SL_JSON_INT},
                 {"number", 1u << SL_JSON_INT | 1u << SL_JSON_REAL},
                 {"boolean", 1u << SL_JSON_BOOL},
                 {"object", 1u << SL_JSON_OBJECT},
                 {"array", 1u << SL_JSON_ARRAY},
                 {"null", 1u << SL_JSON_NULL}};
    for (size_t i = 0; i < SL_LEN(known); i++)
        if (sl_json_is_text(type, known[i].name)) return known[i].kinds;
    return 0;
}

/* What a schema says of its kind; one that does not say leaves all open. */
static unsigned kinds_of(sl_json schema, unsigned depth) {
    static const char *const unions[] = {"anyOf", "oneOf"};
    sl_json type = sl_json_get(schema, "type"), values = sl_json_get(schema, "enum");
    unsigned all = 0;
    if (sl_json_kind_of(type) == SL_JSON_STRING) return kinds_named(type);
    for (size_t i = 0; i < sl_json_count(type); i++) {
        unsigned k = kinds_named(sl_json_at(type, i));
        if (!k) return 0;
        all |= k;
    }
    if (all) return all;
    for (size_t i = 0; i < sl_json_count(values); i++)
        all |= 1u << sl_json_kind_of(sl_json_at(values, i));
    if (all) return all;
    for (size_t u = 0; u < SL_LEN(unions) && depth < 8; u++) {
        sl_json list = sl_json_get(schema, unions[u]);
        for (size_t i = 0; i < sl_json_count(list); i++) {
            unsigned k = kinds_of(sl_json_at(list, i), depth + 1);
            if (!k) return 0;
            all |= k;
        }
    }
    return all;
}

static sl_span keep(sl_tool_set *t, const char *name, size_t n) {
    sl_span s = {(const uint8_t *)t->names + t->n_names, n};
    if (n) memcpy(t->names + t->n_names, name, n);
    t->n_names += n;
    return s;
}

sl_status sl_tool_set_create(sl_json tools, sl_tool_set **out, sl_err *err) {
    size_t n = sl_json_count(tools), n_parameters = 0, n_names = 0;
    sl_span name = {0};
    void *iter = NULL;
    const char *key;
    for (size_t i = 0; i < n; i++) {
        sl_json t = sl_json_at(tools, i);
        if (sl_json_as_span(sl_json_get(sl_json_get(t, "function"), "name"), &name))
            n_names += name.len;
        iter = NULL;
        for (sl_json v; sl_json_next(properties(t), &iter, &key, &v); n_parameters++)
            n_names += strlen(key);
    }
    sl_tool_set *t = sl_alloc(1, sizeof *t);
    if (t) {
        t->tool = sl_alloc(n, sizeof *t->tool);
        t->parameter = sl_alloc(n_parameters, sizeof *t->parameter);
        t->names = sl_alloc(n_names, 1);
    }
    if (!t || !t->tool || !t->parameter || !t->names) {
        sl_tool_set_free(t);
        return sl_fail(err, SL_ERR_NOMEM, "%zu tools", n);
    }
    for (size_t i = 0; i < n; i++) {
        sl_json one = sl_json_at(tools, i);
        name = (sl_span){0};
        (void)sl_json_as_span(sl_json_get(sl_json_get(one, "function"), "name"), &name);
        tool *to = &t->tool[t->n++];
        *to = (tool){.name = keep(t, (const char *)name.data, name.len), .first = t->n_parameters};
        iter = NULL;
        for (sl_json v; sl_json_next(properties(one), &iter, &key, &v); to->n++)
            t->parameter[t->n_parameters++] =
                (parameter){keep(t, key, strlen(key)), kinds_of(v, 0)};
    }
    *out = t;
    return SL_OK;
}

void sl_tool_set_free(sl_tool_set *t) {
    if (!t) return;
    sl_free(t->tool);
    sl_free(t->parameter);
    sl_free(t->names);
    sl_free(t);
}

static bool same(sl_span a, sl_span b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

static const tool *find(const sl_tool_set *t, sl_span name) {
    for (size_t i = 0; t && i < t->n; i++)
        if (same(t->tool[i].name, name)) return &t->tool[i];
    return NULL;
}

bool sl_tool_set_has(const sl_tool_set *t, sl_span name) {
    return find(t, name) != NULL;
}

bool sl_tool_set_takes(const sl_tool_set *t, sl_span name) {
    const tool *found = find(t, name);
    return found && found->n > 0;
}

unsigned sl_tool_set_kinds(const sl_tool_set *t, sl_span name, sl_span field) {
    const tool *found = find(t, name);
    for (size_t i = 0; found && i < found->n; i++) {
        const parameter *p = &t->parameter[found->first + i];
        if (same(p->name, field)) return p->kinds;
    }
    return 0;
}
