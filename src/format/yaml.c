/* YAML documents over libyaml as a flat list of nodes. */
#include "format/yaml.h"

#include "base/mem.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <yaml.h>

/* Children of a list or map are a chain of siblings. Node 0 is the absent value. */
typedef struct sl_yaml_node {
    sl_yaml_kind kind;
    uint32_t line, first, next, count;
    char *key;  /* in a map */
    char *text; /* of a scalar */
} sl_yaml_node;

struct sl_yaml_doc {
    char *name;
    sl_yaml_node *node;
    uint32_t n, cap, root;
};

typedef struct sl_builder {
    yaml_parser_t parser;
    sl_yaml_doc *doc;
    sl_err *err;
} sl_builder;

/* ---- building ---- */

static sl_status refuse(const sl_builder *b, const yaml_event_t *e, sl_status code,
                        const char *what) {
    return sl_fail(b->err, code, "%s:%zu: %s", b->doc->name, e->start_mark.line + 1, what);
}

static sl_status next_event(sl_builder *b, yaml_event_t *e) {
    if (yaml_parser_parse(&b->parser, e)) return SL_OK;
    const yaml_parser_t *p = &b->parser;
    if (p->error == YAML_MEMORY_ERROR)
        return sl_fail(b->err, SL_ERR_NOMEM, "%s: no memory", b->doc->name);
    return sl_fail(b->err, SL_ERR_FORMAT, "%s:%zu: column %zu: %s", b->doc->name,
                   p->problem_mark.line + 1, p->problem_mark.column + 1,
                   p->problem ? p->problem : "not YAML");
}

static sl_status add_node(sl_builder *b, const yaml_event_t *e, sl_yaml_kind kind, uint32_t *out) {
    sl_yaml_doc *d = b->doc;
    if (d->n >= SL_YAML_MAX_NODES)
        return sl_fail(b->err, SL_ERR_LIMIT, "%s:%zu: more than %u values", d->name,
                       e->start_mark.line + 1, SL_YAML_MAX_NODES);
    if (d->n == d->cap) {
        uint32_t cap = d->cap ? 2 * d->cap : 64;
        sl_yaml_node *grown = sl_grow(d->node, d->cap, cap, sizeof *grown);
        if (!grown) return sl_fail(b->err, SL_ERR_NOMEM, "%s: no memory", d->name);
        d->node = grown;
        d->cap = cap;
    }
    d->node[d->n] = (sl_yaml_node){.kind = kind, .line = (uint32_t)e->start_mark.line + 1};
    *out = d->n++;
    return SL_OK;
}

static sl_status copy_scalar(sl_builder *b, const yaml_event_t *e, char **out) {
    const char *text = (const char *)e->data.scalar.value;
    size_t len = e->data.scalar.length;
    if (memchr(text, 0, len)) return refuse(b, e, SL_ERR_FORMAT, "a NUL in a value");
    *out = sl_strndup(text, len);
    return *out ? SL_OK : sl_fail(b->err, SL_ERR_NOMEM, "%s: no memory", b->doc->name);
}

static bool is_tagged(const yaml_event_t *e) {
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        return e->data.scalar.anchor || e->data.scalar.tag;
    case YAML_SEQUENCE_START_EVENT:
        return e->data.sequence_start.anchor || e->data.sequence_start.tag;
    case YAML_MAPPING_START_EVENT:
        return e->data.mapping_start.anchor || e->data.mapping_start.tag;
    default:
        return false;
    }
}

static sl_status read_node(sl_builder *b, const yaml_event_t *e, int depth, uint32_t *out);

static void append(sl_yaml_doc *d, uint32_t parent, uint32_t *last, uint32_t child) {
    if (*last)
        d->node[*last].next = child;
    else
        d->node[parent].first = child;
    *last = child;
    d->node[parent].count++;
}

/* The key's event is consumed; its text moves into *key. */
static sl_status read_key(sl_builder *b, const yaml_event_t *e, uint32_t map, char **key) {
    sl_yaml_doc *d = b->doc;
    if (e->type == YAML_ALIAS_EVENT || is_tagged(e))
        return refuse(b, e, SL_ERR_UNSUPPORTED, "anchors, aliases and tags are not accepted");
    if (e->type != YAML_SCALAR_EVENT) return refuse(b, e, SL_ERR_FORMAT, "a key must be text");
    sl_status st = copy_scalar(b, e, key);
    if (st != SL_OK) return st;
    for (uint32_t c = d->node[map].first; c; c = d->node[c].next)
        if (strcmp(d->node[c].key, *key) == 0)
            return sl_fail(b->err, SL_ERR_FORMAT, "%s:%zu: key \"%.60s\" is there twice", d->name,
                           e->start_mark.line + 1, *key);
    return SL_OK;
}

static sl_status read_children(sl_builder *b, uint32_t parent, bool is_map, int depth) {
    uint32_t last = 0;
    for (;;) {
        yaml_event_t e;
        char *key = NULL;
        uint32_t child = 0;
        sl_status st = next_event(b, &e);
        if (st != SL_OK) return st;
        bool end = e.type == (is_map ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT);
        if (!end && is_map) {
            st = read_key(b, &e, parent, &key);
            yaml_event_delete(&e);
            if (st == SL_OK) st = next_event(b, &e);
            if (st != SL_OK) {
                sl_free(key);
                return st;
            }
        }
        if (!end) st = read_node(b, &e, depth + 1, &child);
        yaml_event_delete(&e);
        if (child) {
            b->doc->node[child].key = key;
            append(b->doc, parent, &last, child);
        } else {
            sl_free(key);
        }
        if (end || st != SL_OK) return st;
    }
}

/* *out is set as soon as the node exists, also on failure, so that it is freed with the document.
 */
static sl_status read_node(sl_builder *b, const yaml_event_t *e, int depth, uint32_t *out) {
    if (depth > SL_YAML_MAX_DEPTH) return refuse(b, e, SL_ERR_LIMIT, "nested deeper than 16");
    if (e->type == YAML_ALIAS_EVENT || is_tagged(e))
        return refuse(b, e, SL_ERR_UNSUPPORTED, "anchors, aliases and tags are not accepted");
    sl_status st;
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        st = add_node(b, e, SL_YAML_SCALAR, out);
        if (st == SL_OK) st = copy_scalar(b, e, &b->doc->node[*out].text);
        return st;
    case YAML_SEQUENCE_START_EVENT:
        st = add_node(b, e, SL_YAML_LIST, out);
        return st == SL_OK ? read_children(b, *out, false, depth) : st;
    case YAML_MAPPING_START_EVENT:
        st = add_node(b, e, SL_YAML_MAP, out);
        return st == SL_OK ? read_children(b, *out, true, depth) : st;
    default:
        return refuse(b, e, SL_ERR_FORMAT, "a value expected");
    }
}

/* Stream start, document start, the root, document end, stream end. */
static sl_status read_stream(sl_builder *b) {
    static const yaml_event_type_t want[] = {YAML_STREAM_START_EVENT, YAML_DOCUMENT_START_EVENT,
                                             YAML_NO_EVENT, YAML_DOCUMENT_END_EVENT,
                                             YAML_STREAM_END_EVENT};
    for (size_t i = 0; i < SL_LEN(want); i++) {
        yaml_event_t e;
        sl_status st = next_event(b, &e);
        if (st != SL_OK) return st;
        if (want[i] == YAML_NO_EVENT)
            st = read_node(b, &e, 0, &b->doc->root);
        else if (e.type != want[i])
            st = refuse(b, &e, SL_ERR_FORMAT,
                        e.type == YAML_STREAM_END_EVENT ? "empty" : "more than one document");
        yaml_event_delete(&e);
        if (st != SL_OK) return st;
    }
    return SL_OK;
}

sl_status sl_yaml_parse(const char *name, sl_span text, sl_yaml_doc **out, sl_err *err) {
    sl_builder b = {.err = err, .doc = sl_alloc(1, sizeof *b.doc)};
    yaml_event_t none = {0};
    uint32_t absent;
    if (!b.doc || !(b.doc->name = sl_strdup(name)) || !yaml_parser_initialize(&b.parser)) {
        sl_yaml_doc_free(b.doc);
        return sl_fail(err, SL_ERR_NOMEM, "%s: no memory", name);
    }
    sl_status st = SL_OK;
    if (text.len > SL_YAML_MAX_BYTES)
        st = sl_fail(err, SL_ERR_LIMIT, "%s: %zu bytes, limit %u", name, text.len,
                     SL_YAML_MAX_BYTES);
    yaml_parser_set_input_string(&b.parser, text.data, text.len);
    if (st == SL_OK) st = add_node(&b, &none, SL_YAML_ABSENT, &absent);
    if (st == SL_OK) st = read_stream(&b);
    yaml_parser_delete(&b.parser);
    if (st != SL_OK) {
        sl_yaml_doc_free(b.doc);
        return st;
    }
    *out = b.doc;
    return SL_OK;
}

void sl_yaml_doc_free(sl_yaml_doc *doc) {
    if (!doc) return;
    for (uint32_t i = 0; i < doc->n; i++) {
        sl_free(doc->node[i].key);
        sl_free(doc->node[i].text);
    }
    sl_free(doc->node);
    sl_free(doc->name);
    sl_free(doc);
}

/* ---- reading ---- */

static const sl_yaml_node *node_of(sl_yaml v) {
    static const sl_yaml_node absent = {.kind = SL_YAML_ABSENT};
    return v.doc ? &v.doc->node[v.node] : &absent;
}

sl_yaml sl_yaml_root(const sl_yaml_doc *doc) {
    return (sl_yaml){doc, doc->root};
}

sl_yaml_kind sl_yaml_kind_of(sl_yaml v) {
    return node_of(v)->kind;
}

static uint32_t line_of(sl_yaml v) {
    return node_of(v)->line;
}

static const char *file_of(sl_yaml v) {
    return v.doc ? v.doc->name : "";
}

const char *sl_yaml_text(sl_yaml v) {
    const sl_yaml_node *n = node_of(v);
    return n->kind == SL_YAML_SCALAR ? n->text : "";
}

size_t sl_yaml_count(sl_yaml v) {
    return node_of(v)->count;
}

sl_yaml sl_yaml_at(sl_yaml v, size_t i) {
    uint32_t c = node_of(v)->first;
    while (c && i-- > 0) c = v.doc->node[c].next;
    return (sl_yaml){v.doc, c};
}

const char *sl_yaml_key_at(sl_yaml map, size_t i) {
    const sl_yaml_node *n = node_of(sl_yaml_at(map, i));
    return n->key ? n->key : "";
}

sl_yaml sl_yaml_get(sl_yaml map, const char *key) {
    if (sl_yaml_kind_of(map) == SL_YAML_MAP)
        for (uint32_t c = node_of(map)->first; c; c = map.doc->node[c].next)
            if (strcmp(map.doc->node[c].key, key) == 0) return (sl_yaml){map.doc, c};
    return (sl_yaml){0};
}

sl_status sl_yaml_fail(sl_yaml v, const char *key, sl_err *err, sl_status code, const char *fmt,
                       ...) {
    char text[400];
    sl_yaml at = key ? sl_yaml_get(v, key) : v;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    uint32_t line = line_of(sl_yaml_kind_of(at) == SL_YAML_ABSENT ? v : at);
    return sl_fail(err, code, "%.200s:%u: %s%s%s", file_of(v), line, key ? key : "",
                   key ? ": " : "", text);
}

sl_status sl_yaml_child(sl_yaml map, const char *key, sl_json_need need, sl_yaml_kind kind,
                        sl_yaml *out, sl_err *err) {
    static const char *const names[] = {"nothing", "one value", "a list", "a map"};
    sl_yaml v = sl_yaml_get(map, key);
    if (sl_yaml_kind_of(v) == SL_YAML_ABSENT)
        return need == SL_JSON_OPTIONAL ? SL_OK
                                        : sl_yaml_fail(map, key, err, SL_ERR_FORMAT, "missing");
    if (sl_yaml_kind_of(v) != kind)
        return sl_yaml_fail(map, key, err, SL_ERR_FORMAT, "must be %s", names[kind]);
    *out = v;
    return SL_OK;
}

sl_status sl_yaml_string(sl_yaml map, const char *key, sl_json_need need, const char **out,
                         sl_err *err) {
    sl_yaml v = {0};
    sl_status st = sl_yaml_child(map, key, need, SL_YAML_SCALAR, &v, err);
    if (st == SL_OK && v.doc) *out = sl_yaml_text(v);
    return st;
}

sl_status sl_yaml_u64(sl_yaml map, const char *key, sl_json_need need, uint64_t min, uint64_t max,
                      uint64_t *out, sl_err *err) {
    const char *text = NULL;
    char *end = NULL;
    sl_status st = sl_yaml_string(map, key, need, &text, err);
    if (st != SL_OK || !text) return st;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end)
        return sl_yaml_fail(map, key, err, SL_ERR_FORMAT, "\"%.40s\" is not a whole number", text);
    if (errno || n < min || n > max)
        return sl_yaml_fail(map, key, err, SL_ERR_LIMIT, "%.40s is not from %llu to %llu", text,
                            (unsigned long long)min, (unsigned long long)max);
    *out = n;
    return SL_OK;
}

sl_status sl_yaml_f64(sl_yaml map, const char *key, sl_json_need need, sl_unit unit, double min,
                      double max, double *out, sl_err *err) {
    const char *text = NULL;
    double n = 0;
    sl_err why = {0};
    sl_status st = sl_yaml_string(map, key, need, &text, err);
    if (st != SL_OK || !text) return st;
    st = sl_quantity_parse(text, unit, &n, &why);
    if (st != SL_OK) return sl_yaml_fail(map, key, err, st, "%s", why.msg);
    if (n < min || n > max)
        return sl_yaml_fail(map, key, err, SL_ERR_LIMIT, "%.40s is %g, allowed: %g to %g", text, n,
                            min, max);
    *out = n;
    return SL_OK;
}

sl_status sl_yaml_bool(sl_yaml map, const char *key, sl_json_need need, bool *out, sl_err *err) {
    const char *text = NULL;
    sl_status st = sl_yaml_string(map, key, need, &text, err);
    if (st != SL_OK || !text) return st;
    bool yes = strcmp(text, "true") == 0;
    if (!yes && strcmp(text, "false") != 0)
        return sl_yaml_fail(map, key, err, SL_ERR_FORMAT, "\"%.40s\" is neither true nor false",
                            text);
    *out = yes;
    return SL_OK;
}

sl_status sl_yaml_only(sl_yaml map, const char *const *keys, size_t n, sl_err *err) {
    char list[300] = "";
    for (size_t k = 0; k < n; k++) {
        size_t at = strlen(list);
        snprintf(list + at, sizeof list - at, "%s%s", k ? ", " : "", keys[k]);
    }
    if (sl_yaml_kind_of(map) != SL_YAML_MAP)
        return sl_yaml_fail(map, NULL, err, SL_ERR_FORMAT, "must be a map of %s", list);
    for (size_t i = 0; i < sl_yaml_count(map); i++) {
        size_t k = 0;
        const char *key = sl_yaml_key_at(map, i);
        while (k < n && strcmp(keys[k], key) != 0) k++;
        if (k == n)
            return sl_yaml_fail(sl_yaml_at(map, i), NULL, err, SL_ERR_UNSUPPORTED,
                                "\"%.60s\" is unknown here (%s)", key, list);
    }
    return SL_OK;
}
