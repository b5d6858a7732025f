/* Values as Python has them: truth, equality, order, membership, dicts. */
#include "jinja/jinja_int.h"

#include "base/utf8.h"

#include <math.h>

sl_jv sl_jv_none(void) {
    return (sl_jv){.kind = SL_JV_NONE};
}

sl_jv sl_jv_bool(bool b) {
    return (sl_jv){.kind = SL_JV_BOOL, .as.b = b};
}

sl_jv sl_jv_int(int64_t i) {
    return (sl_jv){.kind = SL_JV_INT, .as.i = i};
}

sl_jv sl_jv_float(double f) {
    return (sl_jv){.kind = SL_JV_FLOAT, .as.f = f};
}

sl_jv sl_jv_undefined(const char *name) {
    return (sl_jv){.kind = SL_JV_UNDEFINED, .as.name = name};
}

sl_jv sl_jv_marked(sl_jv v, bool user) {
    v.user = user;
    return v;
}

sl_jv sl_jv_list(sl_jrun *r) {
    sl_jlist *list = sl_jrun_take(r, 1, sizeof *list);
    return list ? (sl_jv){.kind = SL_JV_LIST, .as.list = list} : sl_jv_undefined(NULL);
}

sl_jv sl_jv_tuple(sl_jrun *r, const sl_jv *v, size_t n) {
    sl_jv tuple = sl_jv_list(r);
    for (size_t i = 0; i < n; i++) sl_jv_push(r, tuple, v[i]);
    if (r->st == SL_OK) tuple.kind = SL_JV_TUPLE;
    return tuple;
}

sl_jv sl_jv_dict(sl_jrun *r) {
    sl_jdict *dict = sl_jrun_take(r, 1, sizeof *dict);
    return dict ? (sl_jv){.kind = SL_JV_DICT, .as.dict = dict} : sl_jv_undefined(NULL);
}

/* An array of the run that is full gets twice the room. */
static bool room(sl_jrun *r, void **p, size_t n, size_t *cap, size_t size) {
    if (r->st != SL_OK) return false;
    if (sl_jmem_room(&r->mem, p, n, cap, size)) return true;
    sl_jrun_fail(r, SL_ERR_LIMIT, "the template needs more than %zu bytes of memory",
                 r->limits.memory_bytes);
    return false;
}

void sl_jv_push(sl_jrun *r, sl_jv list, sl_jv v) {
    if (r->st != SL_OK || !sl_jrun_charge(r, 0)) return;
    sl_jlist *l = list.as.list;
    if (room(r, (void **)&l->v, l->n, &l->cap, sizeof *l->v)) l->v[l->n++] = v;
}

static bool same_key(sl_jrun *r, sl_jv a, sl_jv b) {
    if (a.kind == SL_JV_STRING && b.kind == SL_JV_STRING)
        return a.as.s->n == b.as.s->n && memcmp(a.as.s->p, b.as.s->p, a.as.s->n) == 0;
    return sl_jv_equal(r, a, b);
}

const sl_jv *sl_jdict_find(sl_jrun *r, const sl_jdict *d, sl_jv key) {
    if (!sl_jrun_charge(r, 8 * d->n)) return NULL;
    for (size_t i = 0; i < d->n; i++)
        if (same_key(r, d->v[i].key, key)) return &d->v[i].value;
    return NULL;
}

static void append(sl_jrun *r, sl_jdict *d, sl_jv key, sl_jv value) {
    if (room(r, (void **)&d->v, d->n, &d->cap, sizeof *d->v)) d->v[d->n++] = (sl_jpair){key, value};
}

void sl_jdict_set(sl_jrun *r, sl_jdict *d, sl_jv key, sl_jv value) {
    if (key.kind == SL_JV_LIST || key.kind == SL_JV_DICT) {
        sl_jrun_fail(r, SL_ERR_ARG, "a %s cannot be the key of a dict", sl_jv_type(key));
        return;
    }
    sl_jv *have = (sl_jv *)sl_jdict_find(r, d, key);
    if (have)
        *have = value;
    else
        append(r, d, key, value);
}

void sl_jv_put(sl_jrun *r, sl_jv dict, const char *key, sl_jv v) {
    sl_jv k = sl_jstr_literal(r, key);
    if (r->st == SL_OK) sl_jdict_set(r, dict.as.dict, k, v);
}

static sl_jv object_from_json(sl_jrun *r, sl_json v, bool user) {
    sl_jv dict = sl_jv_dict(r);
    void *iter = NULL;
    const char *key;
    for (sl_json f; r->st == SL_OK && sl_json_next(v, &iter, &key, &f);) {
        sl_jv name = sl_jv_text(r, (sl_span){(const uint8_t *)key, strlen(key)}, user);
        sl_jv value = sl_jv_from_json(r, f, user);
        if (r->st == SL_OK) append(r, dict.as.dict, name, value); /* keys are known to differ */
    }
    return dict;
}

sl_jv sl_jv_from_json(sl_jrun *r, sl_json v, bool user) {
    sl_span text;
    int64_t i = 0;
    double f = 0;
    switch (sl_json_kind_of(v)) {
    case SL_JSON_BOOL: {
        bool b = false;
        sl_json_as_bool(v, &b);
        return sl_jv_marked(sl_jv_bool(b), user);
    }
    case SL_JSON_INT:
        sl_json_as_i64(v, &i);
        return sl_jv_marked(sl_jv_int(i), user);
    case SL_JSON_REAL:
        sl_json_as_f64(v, &f);
        return sl_jv_marked(sl_jv_float(f), user);
    case SL_JSON_STRING:
        return sl_json_as_span(v, &text) ? sl_jv_text(r, text, user) : sl_jv_none();
    case SL_JSON_ARRAY: {
        sl_jv list = sl_jv_list(r);
        for (size_t k = 0; k < sl_json_count(v) && r->st == SL_OK; k++)
            sl_jv_push(r, list, sl_jv_from_json(r, sl_json_at(v, k), user));
        return list;
    }
    case SL_JSON_OBJECT:
        return object_from_json(r, v, user);
    default:
        return sl_jv_marked(sl_jv_none(), user);
    }
}

const char *sl_jv_type(sl_jv v) {
    static const char *const name[] = {"nothing",   "undefined", "NoneType", "bool",   "int",
                                       "float",     "str",       "list",     "tuple",  "dict",
                                       "namespace", "macro",     "loop",     "method", "function"};
    return name[v.kind];
}

bool sl_jv_true(sl_jv v) {
    switch (v.kind) {
    case SL_JV_MISSING:
    case SL_JV_UNDEFINED:
    case SL_JV_NONE:
        return false;
    case SL_JV_BOOL:
        return v.as.b;
    case SL_JV_INT:
        return v.as.i != 0;
    case SL_JV_FLOAT:
        return v.as.f != 0;
    case SL_JV_STRING:
        return v.as.s->n > 0;
    case SL_JV_LIST:
    case SL_JV_TUPLE:
        return v.as.list->n > 0;
    case SL_JV_DICT:
        return v.as.dict->n > 0;
    default:
        return true;
    }
}

static bool is_number(sl_jv v) {
    return v.kind == SL_JV_INT || v.kind == SL_JV_BOOL || v.kind == SL_JV_FLOAT;
}

static int64_t int_of(sl_jv v) {
    return v.kind == SL_JV_BOOL ? v.as.b : v.as.i;
}

/* -1, 0, 1, or 2 when one of them is no number. Exact, whatever the size of an integer. */
static int compare_numbers(sl_jv a, sl_jv b) {
    if (a.kind != SL_JV_FLOAT && b.kind != SL_JV_FLOAT)
        return (int_of(a) > int_of(b)) - (int_of(a) < int_of(b));
    long double x = a.kind == SL_JV_FLOAT ? (long double)a.as.f : (long double)int_of(a);
    long double y = b.kind == SL_JV_FLOAT ? (long double)b.as.f : (long double)int_of(b);
    return isnan(x) || isnan(y) ? 2 : (x > y) - (x < y);
}

static bool enter(sl_jrun *r) {
    if (r->depth >= r->limits.depth)
        sl_jrun_fail(r, SL_ERR_LIMIT, "values nested deeper than %u", r->limits.depth);
    else
        r->depth++;
    return r->st == SL_OK;
}

static bool equal_dicts(sl_jrun *r, const sl_jdict *a, const sl_jdict *b) {
    bool same = a->n == b->n;
    for (size_t i = 0; i < a->n && same && r->st == SL_OK; i++) {
        const sl_jv *other = sl_jdict_find(r, b, a->v[i].key);
        same = other && sl_jv_equal(r, a->v[i].value, *other);
    }
    return same;
}

bool sl_jv_equal(sl_jrun *r, sl_jv a, sl_jv b) {
    bool same = true;
    if (is_number(a) && is_number(b)) return compare_numbers(a, b) == 0;
    if (a.kind != b.kind) return false;
    switch (a.kind) {
    case SL_JV_UNDEFINED:
    case SL_JV_NONE:
        return true;
    case SL_JV_STRING:
        if (a.as.s->n != b.as.s->n || !sl_jrun_charge(r, a.as.s->n)) return false;
        return memcmp(a.as.s->p, b.as.s->p, a.as.s->n) == 0;
    case SL_JV_LIST:
    case SL_JV_TUPLE:
        if (a.as.list->n != b.as.list->n || !enter(r)) return false;
        for (size_t i = 0; i < a.as.list->n && same && sl_jrun_charge(r, 0); i++)
            same = sl_jv_equal(r, a.as.list->v[i], b.as.list->v[i]);
        r->depth--;
        return same;
    case SL_JV_DICT:
        if (!enter(r)) return false;
        same = equal_dicts(r, a.as.dict, b.as.dict);
        r->depth--;
        return same;
    default:
        return a.as.list == b.as.list;
    }
}

static int compare_lists(sl_jrun *r, const sl_jlist *a, const sl_jlist *b) {
    int d = 0;
    if (!enter(r)) return 0;
    for (size_t i = 0; i < SL_MIN(a->n, b->n) && d == 0 && sl_jrun_charge(r, 0); i++)
        if (!sl_jv_equal(r, a->v[i], b->v[i])) {
            d = sl_jv_compare(r, a->v[i], b->v[i]);
            r->depth--;
            return d;
        }
    r->depth--;
    return (a->n > b->n) - (a->n < b->n);
}

int sl_jv_compare(sl_jrun *r, sl_jv a, sl_jv b) {
    if (is_number(a) && is_number(b)) return compare_numbers(a, b);
    if (a.kind == SL_JV_STRING && b.kind == SL_JV_STRING) {
        sl_jrun_charge(r, SL_MIN(a.as.s->n, b.as.s->n));
        int d = sl_jstr_compare(a.as.s, b.as.s);
        return (d > 0) - (d < 0);
    }
    if (a.kind == b.kind && (a.kind == SL_JV_LIST || a.kind == SL_JV_TUPLE))
        return compare_lists(r, a.as.list, b.as.list);
    if (a.kind == SL_JV_UNDEFINED || b.kind == SL_JV_UNDEFINED) {
        const char *name = a.kind == SL_JV_UNDEFINED ? a.as.name : b.as.name;
        sl_jrun_fail(r, SL_ERR_ARG, "\"%.60s\" is undefined", name ? name : "a value");
    } else {
        sl_jrun_fail(r, SL_ERR_ARG, "%s and %s have no order", sl_jv_type(a), sl_jv_type(b));
    }
    return 0;
}

bool sl_jv_in(sl_jrun *r, sl_jv what, sl_jv where) {
    if (where.kind == SL_JV_STRING) {
        if (what.kind != SL_JV_STRING) {
            sl_jrun_fail(r, SL_ERR_ARG, "%s in a str: only a str can be", sl_jv_type(what));
            return false;
        }
        const sl_jstr *s = where.as.s;
        if (!sl_jrun_charge(r, s->n)) return false;
        return what.as.s->n == 0 || sl_jstr_find(s, 0, what.as.s) < s->n;
    }
    if (where.kind == SL_JV_DICT) return sl_jdict_find(r, where.as.dict, what) != NULL;
    const sl_jlist *list = sl_jv_each(r, where);
    for (size_t i = 0; list && i < list->n && sl_jrun_charge(r, 0); i++)
        if (sl_jv_equal(r, what, list->v[i])) return true;
    return false;
}

const sl_jlist *sl_jv_each(sl_jrun *r, sl_jv v) {
    if (v.kind == SL_JV_LIST || v.kind == SL_JV_TUPLE) return v.as.list;
    sl_jv list = sl_jv_list(r);
    if (r->st != SL_OK) return NULL;
    if (v.kind == SL_JV_DICT) {
        for (size_t i = 0; i < v.as.dict->n; i++) sl_jv_push(r, list, v.as.dict->v[i].key);
    } else if (v.kind == SL_JV_STRING) {
        const sl_jstr *s = v.as.s;
        for (size_t i = 0, k; i < s->n && r->st == SL_OK; i += k) {
            k = SL_MAX(sl_utf8_sequence(s->p + i, s->n - i), (size_t)1);
            sl_jv_push(r, list, sl_jstr_slice(r, s, i, i + k));
        }
    } else if (v.kind != SL_JV_UNDEFINED) {
        sl_jrun_fail(r, SL_ERR_ARG, "%s cannot be iterated", sl_jv_type(v));
    }
    return r->st == SL_OK ? list.as.list : NULL;
}

bool sl_jv_is_user(sl_jrun *r, sl_jv v) {
    bool user = v.user;
    if (v.kind == SL_JV_STRING)
        return v.as.s->mark ? memchr(v.as.s->mark, 1, v.as.s->n) != NULL : v.as.s->user;
    if (v.kind != SL_JV_LIST && v.kind != SL_JV_TUPLE && v.kind != SL_JV_DICT) return user;
    if (!enter(r)) return true;
    if (v.kind == SL_JV_DICT) {
        for (size_t i = 0; i < v.as.dict->n && !user && sl_jrun_charge(r, 0); i++)
            user = sl_jv_is_user(r, v.as.dict->v[i].key) || sl_jv_is_user(r, v.as.dict->v[i].value);
    } else {
        for (size_t i = 0; i < v.as.list->n && !user && sl_jrun_charge(r, 0); i++)
            user = sl_jv_is_user(r, v.as.list->v[i]);
    }
    r->depth--;
    return user;
}
