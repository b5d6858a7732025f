/* What a dot, brackets and a slice reach. */
#include "jinja/jinja_int.h"

#include "base/utf8.h"

static sl_jv bind(sl_jrun *r, sl_jv self, const sl_jbuiltin *fn) {
    sl_jbound *b = sl_jrun_take(r, 1, sizeof *b);
    if (!b) return sl_jv_undefined(NULL);
    *b = (sl_jbound){self, fn};
    return (sl_jv){.kind = SL_JV_METHOD, .as.bound = b};
}

static sl_jv loop_attr(const sl_jloop *l, const char *name) {
    int64_t at = (int64_t)l->at, n = (int64_t)l->list->n;
    const struct {
        const char *name;
        sl_jv v;
    } row[] = {{"index", sl_jv_int(at + 1)},
               {"index0", sl_jv_int(at)},
               {"first", sl_jv_bool(at == 0)},
               {"last", sl_jv_bool(at + 1 == n)},
               {"length", sl_jv_int(n)},
               {"revindex", sl_jv_int(n - at)},
               {"revindex0", sl_jv_int(n - at - 1)},
               {"depth", sl_jv_int(l->nested)},
               {"depth0", sl_jv_int((int64_t)l->nested - 1)}};
    if (!strcmp(name, "previtem") && at > 0) return l->list->v[at - 1];
    if (!strcmp(name, "nextitem") && at + 1 < n) return l->list->v[at + 1];
    for (size_t i = 0; i < SL_LEN(row); i++)
        if (!strcmp(name, row[i].name)) return row[i].v;
    return sl_jv_undefined(name);
}

/* An entry of a dict or namespace by name. */
static sl_jv entry(sl_jrun *r, sl_jv of, const char *name) {
    sl_jstr key = {.p = name, .n = strlen(name)};
    const sl_jv *v = sl_jdict_find(r, of.as.dict, (sl_jv){.kind = SL_JV_STRING, .as.s = &key});
    return v ? *v : sl_jv_undefined(name);
}

sl_jv sl_jv_attr(sl_jrun *r, sl_jv of, const char *name) {
    const sl_jbuiltin *fn = NULL;
    if (of.kind == SL_JV_UNDEFINED)
        return sl_jrun_fail(r, SL_ERR_ARG, "\"%.60s\" is undefined and has no \"%.60s\"",
                            of.as.name ? of.as.name : "a value", name);
    if (of.kind == SL_JV_NAMESPACE) return entry(r, of, name);
    fn = sl_jmethod_find(of.kind, name);
    if (fn) return bind(r, of, fn);
    if (of.kind == SL_JV_LOOP) return loop_attr(of.as.loop, name);
    if (of.kind == SL_JV_MACRO && !strcmp(name, "name"))
        return sl_jstr_literal(r, of.as.macro->node->name);
    if (of.kind == SL_JV_DICT && strncmp(name, "__", 2) != 0) return entry(r, of, name);
    return sl_jv_undefined(name);
}

sl_jv sl_jv_get(sl_jrun *r, sl_jv v, const char *key) {
    if (v.kind == SL_JV_DICT)
        v = entry(r, v, key);
    else
        v.kind = SL_JV_MISSING;
    if (v.kind == SL_JV_UNDEFINED) v.kind = SL_JV_MISSING;
    return v;
}

sl_jv sl_jv_at(sl_jv v, size_t i) {
    bool has = v.kind == SL_JV_LIST && i < v.as.list->n;
    return has ? v.as.list->v[i] : (sl_jv){.kind = SL_JV_MISSING};
}

bool sl_jv_as_span(sl_jv v, sl_span *out) {
    if (v.kind != SL_JV_STRING) return false;
    *out = (sl_span){(const uint8_t *)v.as.s->p, v.as.s->n};
    return true;
}

static bool index_of(sl_jv key, size_t n, size_t *out) {
    if (key.kind != SL_JV_INT && key.kind != SL_JV_BOOL) return false;
    int64_t i = key.kind == SL_JV_BOOL ? key.as.b : key.as.i;
    if (i < 0) i += (int64_t)n;
    *out = (size_t)i;
    return i >= 0 && (uint64_t)i < n;
}

sl_jv sl_jv_item(sl_jrun *r, sl_jv of, sl_jv key) {
    size_t i;
    if (of.kind == SL_JV_UNDEFINED)
        return sl_jrun_fail(r, SL_ERR_ARG, "\"%.60s\" is undefined and has no items",
                            of.as.name ? of.as.name : "a value");
    if (of.kind == SL_JV_DICT) {
        const sl_jv *v = sl_jdict_find(r, of.as.dict, key);
        if (v) return *v;
    } else if (of.kind == SL_JV_LIST || of.kind == SL_JV_TUPLE) {
        if (index_of(key, of.as.list->n, &i)) return of.as.list->v[i];
    } else if (of.kind == SL_JV_STRING) {
        const sl_jstr *s = of.as.s;
        if (index_of(key, sl_jstr_length(r, s), &i)) {
            size_t from = sl_jstr_offset(s, i);
            return sl_jstr_slice(r, s, from, from + sl_utf8_sequence(s->p + from, s->n - from));
        }
    }
    if (key.kind != SL_JV_STRING) return sl_jv_undefined("item");
    char *name = sl_jmem_name(&r->mem, key.as.s->p, key.as.s->n);
    if (!name) return sl_jrun_fail(r, SL_ERR_LIMIT, "a key takes too much memory");
    if (of.kind == SL_JV_DICT) { /* it has no such key, but perhaps a method */
        const sl_jbuiltin *fn = sl_jmethod_find(of.kind, name);
        return fn ? bind(r, of, fn) : sl_jv_undefined(name);
    }
    return sl_jv_attr(r, of, name);
}

typedef struct span {
    int64_t start, stop, step;
    size_t n; /* items */
} span;

static bool slice_bound(sl_jrun *r, sl_jv v, int64_t n, int64_t low, int64_t high, int64_t *out) {
    if (v.kind == SL_JV_MISSING || v.kind == SL_JV_NONE) return true;
    if (v.kind != SL_JV_INT && v.kind != SL_JV_BOOL) {
        sl_jrun_fail(r, SL_ERR_ARG, "slices take integers, not %s", sl_jv_type(v));
        return false;
    }
    int64_t i = v.kind == SL_JV_BOOL ? v.as.b : v.as.i;
    if (i < 0) i += n;
    *out = i < low ? low : i > high ? high : i;
    return true;
}

static bool find_span(sl_jrun *r, const sl_jv part[3], size_t len, span *out) {
    int64_t n = (int64_t)len, step = 1;
    if (part[2].kind != SL_JV_MISSING && part[2].kind != SL_JV_NONE) {
        if (part[2].kind != SL_JV_INT || part[2].as.i == 0 || part[2].as.i == INT64_MIN) {
            sl_jrun_fail(r, SL_ERR_ARG, "the step of a slice must be an integer, and not zero");
            return false;
        }
        step = part[2].as.i;
    }
    int64_t start = step > 0 ? 0 : n - 1, stop = step > 0 ? n : -1;
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    if (!slice_bound(r, part[0], n, low, high, &start) ||
        !slice_bound(r, part[1], n, low, high, &stop))
        return false;
    uint64_t way = step > 0 ? (stop > start ? (uint64_t)(stop - start) : 0)
                            : (start > stop ? (uint64_t)(start - stop) : 0);
    uint64_t size = (uint64_t)(step > 0 ? step : -step);
    *out = (span){start, stop, step, way ? (size_t)((way - 1) / size + 1) : 0};
    return true;
}

sl_jv sl_jv_slice(sl_jrun *r, sl_jv of, const sl_jv part[3]) {
    span at;
    if (of.kind == SL_JV_STRING) {
        const sl_jstr *s = of.as.s;
        if (!find_span(r, part, sl_jstr_length(r, s), &at)) return sl_jv_undefined(NULL);
        if (at.step == 1) {
            size_t from = sl_jstr_offset(s, (size_t)at.start);
            const sl_jstr rest = {.p = s->p + from, .n = s->n - from};
            return sl_jstr_slice(r, s, from, from + sl_jstr_offset(&rest, at.n));
        }
    } else if (of.kind == SL_JV_LIST || of.kind == SL_JV_TUPLE) {
        if (!find_span(r, part, of.as.list->n, &at)) return sl_jv_undefined(NULL);
    } else if (of.kind == SL_JV_UNDEFINED) {
        return sl_jv_item(r, of, part[0]);
    } else {
        return sl_jrun_fail(r, SL_ERR_ARG, "%s has no slices", sl_jv_type(of));
    }
    const sl_jlist *all = sl_jv_each(r, of);
    sl_jv list = sl_jv_list(r);
    int64_t i = at.start;
    for (size_t k = 0; all && k < at.n && r->st == SL_OK; k++, i += at.step)
        sl_jv_push(r, list, all->v[i]);
    if (r->st != SL_OK) return sl_jv_undefined(NULL);
    if (of.kind == SL_JV_STRING) return sl_jstr_concat(r, list.as.list->v, list.as.list->n);
    list.kind = of.kind;
    return list;
}
