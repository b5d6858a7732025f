/* Filters over lists and dicts. */
#include "jinja/jinja_int.h"

#define ARGS sl_jrun *r, sl_jv self, const sl_jv *a, const sl_jargs *args

/* What a path like "function.name" or an index reaches in v; v itself without one. */
static sl_jv reach(sl_jrun *r, sl_jv v, sl_jv path) {
    if (path.kind == SL_JV_INT) return sl_jv_item(r, v, path);
    if (path.kind != SL_JV_STRING) return v;
    const sl_jstr *s = path.as.s;
    for (size_t i = 0, k; i <= s->n && r->st == SL_OK; i = k + 1) {
        const char *dot = i < s->n ? memchr(s->p + i, '.', s->n - i) : NULL;
        k = dot ? (size_t)(dot - s->p) : s->n;
        sl_jv name = sl_jstr_slice(r, s, i, k);
        int64_t index = 0;
        bool digits = k > i && k - i < 10;
        for (size_t c = i; c < k && digits; c++) {
            digits = s->p[c] >= '0' && s->p[c] <= '9';
            index = 10 * index + (s->p[c] - '0');
        }
        if (r->st == SL_OK) v = sl_jv_item(r, v, digits ? sl_jv_int(index) : name);
    }
    return v;
}

static sl_jv folded(sl_jrun *r, sl_jv v, bool fold) {
    return fold && v.kind == SL_JV_STRING ? sl_jstr_case(r, v.as.s, SL_JCASE_LOWER) : v;
}

static sl_jv f_length(ARGS) {
    (void)args, (void)a;
    switch (self.kind) {
    case SL_JV_STRING:
        return sl_jv_int((int64_t)sl_jstr_length(r, self.as.s));
    case SL_JV_LIST:
    case SL_JV_TUPLE:
        return sl_jv_int((int64_t)self.as.list->n);
    case SL_JV_DICT:
        return sl_jv_int((int64_t)self.as.dict->n);
    case SL_JV_UNDEFINED:
        return sl_jv_int(0);
    default:
        return sl_jrun_fail(r, SL_ERR_ARG, "%s has no length", sl_jv_type(self));
    }
}

static sl_jv f_first(ARGS) {
    (void)args, (void)a;
    const sl_jlist *l = sl_jv_each(r, self);
    return l && l->n ? l->v[0] : sl_jv_undefined("the first of nothing");
}

static sl_jv f_last(ARGS) {
    (void)args, (void)a;
    const sl_jlist *l = sl_jv_each(r, self);
    return l && l->n ? l->v[l->n - 1] : sl_jv_undefined("the last of nothing");
}

static sl_jv f_list(ARGS) {
    (void)args, (void)a;
    const sl_jlist *l = sl_jv_each(r, self);
    sl_jv list = l ? sl_jv_tuple(r, l->v, l->n) : self;
    if (r->st == SL_OK) list.kind = SL_JV_LIST;
    return list;
}

static sl_jv f_reverse(ARGS) {
    (void)args, (void)a;
    const sl_jlist *l = sl_jv_each(r, self);
    sl_jv list = sl_jv_list(r);
    for (size_t i = l ? l->n : 0; i > 0 && r->st == SL_OK; i--) sl_jv_push(r, list, l->v[i - 1]);
    if (r->st == SL_OK && self.kind == SL_JV_STRING)
        return sl_jstr_concat(r, list.as.list->v, list.as.list->n);
    return list;
}

static sl_jv f_join(ARGS) {
    (void)args;
    const sl_jlist *l = sl_jv_each(r, self);
    sl_jv by = a[0].kind == SL_JV_MISSING ? sl_jstr_literal(r, "") : sl_jv_str(r, a[0]);
    sl_jout o = {0};
    for (size_t i = 0; l && i < l->n && r->st == SL_OK; i++) {
        sl_jv s = sl_jv_str(r, reach(r, l->v[i], a[1]));
        if (r->st != SL_OK) break;
        if (i) sl_jout_str(r, &o, by.as.s);
        sl_jout_str(r, &o, s.as.s);
    }
    return sl_jout_value(r, &o);
}

static sl_jv pairs_of(sl_jrun *r, const sl_jdict *d) {
    sl_jv list = sl_jv_list(r);
    for (size_t i = 0; i < d->n && r->st == SL_OK; i++) {
        const sl_jv pair[2] = {d->v[i].key, d->v[i].value};
        sl_jv_push(r, list, sl_jv_tuple(r, pair, 2));
    }
    return list;
}

static sl_jv f_items(ARGS) {
    (void)args, (void)a;
    if (self.kind == SL_JV_UNDEFINED) return sl_jv_list(r);
    if (self.kind != SL_JV_DICT)
        return sl_jrun_fail(r, SL_ERR_ARG, "items of %s", sl_jv_type(self));
    return pairs_of(r, self.as.dict);
}

/* Sorts rows of (key, value) by key: stable, by merging. wrapped: keys stand in lists of one, as
 * those of jinja2's sort do, where equal ones need no order. */
static void merge_sort(sl_jrun *r, sl_jpair *v, sl_jpair *spare, size_t n, bool down,
                       bool wrapped) {
    if (n < 2 || r->st != SL_OK) return;
    size_t half = n / 2, i = 0, k = half, to = 0;
    merge_sort(r, v, spare, half, down, wrapped);
    merge_sort(r, v + half, spare, n - half, down, wrapped);
    while (i < half && k < n && sl_jrun_charge(r, 0)) {
        bool same = wrapped && sl_jv_equal(r, v[k].key, v[i].key);
        int d = same ? 0 : sl_jv_compare(r, v[k].key, v[i].key);
        spare[to++] = (down ? d > 0 : d < 0) ? v[k++] : v[i++];
    }
    while (i < half) spare[to++] = v[i++];
    memcpy(v, spare, to * sizeof *v);
}

/* The values of l in the order of what `path` reaches in each. */
static sl_jv sorted(sl_jrun *r, const sl_jlist *l, sl_jv path, bool fold, bool down, bool wrapped) {
    sl_jpair *v = l ? sl_jrun_take(r, l->n, sizeof *v) : NULL;
    sl_jpair *spare = v ? sl_jrun_take(r, l->n, sizeof *v) : NULL;
    sl_jv list = sl_jv_list(r);
    if (!spare || r->st != SL_OK) return sl_jv_undefined(NULL);
    for (size_t i = 0; i < l->n; i++)
        v[i] = (sl_jpair){folded(r, reach(r, l->v[i], path), fold), l->v[i]};
    merge_sort(r, v, spare, l->n, down, wrapped);
    for (size_t i = 0; i < l->n && r->st == SL_OK; i++) sl_jv_push(r, list, v[i].value);
    return list;
}

static sl_jv f_sort(ARGS) {
    (void)args;
    if (a[2].kind == SL_JV_STRING && memchr(a[2].as.s->p, ',', a[2].as.s->n))
        return sl_jrun_fail(r, SL_ERR_UNSUPPORTED, "sort by several attributes");
    return sorted(r, sl_jv_each(r, self), a[2], !sl_jv_true(a[1]), sl_jv_true(a[0]), true);
}

static sl_jv f_dictsort(ARGS) {
    (void)args;
    bool by_value = a[1].kind == SL_JV_STRING && sl_jstr_is(a[1].as.s, "value");
    if (self.kind != SL_JV_DICT)
        return sl_jrun_fail(r, SL_ERR_ARG, "dictsort of %s", sl_jv_type(self));
    sl_jv pairs = pairs_of(r, self.as.dict);
    if (r->st != SL_OK) return pairs;
    return sorted(r, pairs.as.list, sl_jv_int(by_value), !sl_jv_true(a[0]), sl_jv_true(a[2]),
                  false);
}

static sl_jv f_unique(ARGS) {
    (void)args;
    const sl_jlist *l = sl_jv_each(r, self);
    sl_jv list = sl_jv_list(r), seen = sl_jv_list(r);
    for (size_t i = 0; l && i < l->n && r->st == SL_OK; i++) {
        sl_jv key = folded(r, reach(r, l->v[i], a[1]), !sl_jv_true(a[0]));
        if (key.kind == SL_JV_LIST || key.kind == SL_JV_DICT)
            sl_jrun_fail(r, SL_ERR_ARG, "unique of %s", sl_jv_type(key));
        if (r->st != SL_OK || sl_jv_in(r, key, seen)) continue;
        sl_jv_push(r, seen, key);
        sl_jv_push(r, list, l->v[i]);
    }
    return list;
}

static sl_jv extreme(sl_jrun *r, sl_jv self, const sl_jv *a, bool most) {
    const sl_jlist *l = sl_jv_each(r, self);
    if (!l || l->n == 0) return sl_jv_undefined("the extreme of nothing");
    size_t best = 0;
    sl_jv best_key = folded(r, reach(r, l->v[0], a[1]), !sl_jv_true(a[0]));
    for (size_t i = 1; i < l->n && sl_jrun_charge(r, 0); i++) {
        sl_jv key = folded(r, reach(r, l->v[i], a[1]), !sl_jv_true(a[0]));
        int d = r->st == SL_OK ? sl_jv_compare(r, key, best_key) : 0;
        if (!(most ? d == 1 : d == -1)) continue;
        best = i;
        best_key = key;
    }
    return l->v[best];
}

static sl_jv f_max(ARGS) {
    (void)args;
    return extreme(r, self, a, true);
}

static sl_jv f_min(ARGS) {
    (void)args;
    return extreme(r, self, a, false);
}

static sl_jv f_sum(ARGS) {
    (void)args;
    const sl_jlist *l = sl_jv_each(r, self);
    sl_jv sum = a[1].kind == SL_JV_MISSING ? sl_jv_int(0) : a[1];
    for (size_t i = 0; l && i < l->n && r->st == SL_OK; i++)
        sum = sl_jmath(r, '+', sum, reach(r, l->v[i], a[0]));
    return sum;
}

static sl_jv f_wordcount(ARGS) {
    (void)args, (void)a;
    sl_jv s = sl_jv_str(r, self);
    int64_t words = 0;
    bool inside = false;
    for (size_t i = 0; r->st == SL_OK && i < s.as.s->n; i++) {
        uint8_t c = (uint8_t)s.as.s->p[i];
        bool word =
            c >= 0x80 || c == '_' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
        words += word && !inside;
        inside = word;
    }
    return sl_jv_int(words);
}

/* The test or filter named by argument i, NULL and failed when it is not known. */
static const sl_jbuiltin *named(sl_jrun *r, const sl_jargs *args, size_t i, bool test) {
    char name[40] = "";
    if (i < args->n && args->v[i].kind == SL_JV_STRING && args->v[i].as.s->n < sizeof name)
        memcpy(name, args->v[i].as.s->p, args->v[i].as.s->n);
    const sl_jbuiltin *fn = test ? sl_jtest_find(name) : sl_jfilter_find(name);
    if (!fn)
        sl_jrun_fail(r, SL_ERR_UNSUPPORTED, "%s \"%s\" is not supported", test ? "test" : "filter",
                     name);
    return fn;
}

/* select, reject and with an attribute first, selectattr, rejectattr. */
static sl_jv pick(sl_jrun *r, sl_jv self, const sl_jargs *args, bool attr, bool want) {
    const sl_jlist *l = sl_jv_true(self) ? sl_jv_each(r, self) : NULL;
    sl_jv list = sl_jv_list(r);
    if (args->n < (attr ? 1u : 0u) || args->n_key)
        return sl_jrun_fail(r, SL_ERR_ARG, "select and reject take a name and a test");
    bool tests = args->n > (attr ? 1u : 0u);
    const sl_jbuiltin *fn = tests ? named(r, args, attr, true) : NULL;
    const sl_jargs rest = {.v = args->v + attr + 1, .n = tests ? args->n - attr - 1 : 0};
    for (size_t i = 0; l && i < l->n && r->st == SL_OK; i++) {
        sl_jv v = attr ? reach(r, l->v[i], args->v[0]) : l->v[i];
        if (fn && r->st == SL_OK) v = sl_jcall_builtin(r, fn, v, &rest);
        if (r->st == SL_OK && sl_jv_true(v) == want) sl_jv_push(r, list, l->v[i]);
    }
    return list;
}

static sl_jv f_select(ARGS) {
    (void)a;
    return pick(r, self, args, false, true);
}

static sl_jv f_reject(ARGS) {
    (void)a;
    return pick(r, self, args, false, false);
}

static sl_jv f_selectattr(ARGS) {
    (void)a;
    return pick(r, self, args, true, true);
}

static sl_jv f_rejectattr(ARGS) {
    (void)a;
    return pick(r, self, args, true, false);
}

static sl_jv f_map(ARGS) {
    (void)a;
    const sl_jlist *l = sl_jv_true(self) ? sl_jv_each(r, self) : NULL;
    sl_jv list = sl_jv_list(r), path = {0}, missing = {0};
    for (size_t i = 0; i < args->n_key; i++) {
        if (!strcmp(args->key[i].name, "attribute")) path = args->key_value[i];
        if (!strcmp(args->key[i].name, "default")) missing = args->key_value[i];
    }
    const sl_jbuiltin *fn = path.kind == SL_JV_MISSING ? named(r, args, 0, false) : NULL;
    const sl_jargs rest = {.v = args->v + 1,
                           .n = fn ? args->n - 1 : 0,
                           .key = args->key,
                           .key_value = args->key_value,
                           .n_key = args->n_key};
    for (size_t i = 0; l && i < l->n && r->st == SL_OK; i++) {
        sl_jv v = fn ? sl_jcall_builtin(r, fn, l->v[i], &rest) : reach(r, l->v[i], path);
        if (!fn && v.kind == SL_JV_UNDEFINED && missing.kind != SL_JV_MISSING) v = missing;
        sl_jv_push(r, list, v);
    }
    return list;
}

static const sl_jbuiltin table[] = {
    {"length", f_length, 0, false, {0}},
    {"count", f_length, 0, false, {0}},
    {"first", f_first, 0, false, {0}},
    {"last", f_last, 0, false, {0}},
    {"list", f_list, 0, false, {0}},
    {"reverse", f_reverse, 0, false, {0}},
    {"join", f_join, 0, false, {"d", "attribute"}},
    {"items", f_items, 0, false, {0}},
    {"sort", f_sort, 0, false, {"reverse", "case_sensitive", "attribute"}},
    {"dictsort", f_dictsort, 0, false, {"case_sensitive", "by", "reverse"}},
    {"unique", f_unique, 0, false, {"case_sensitive", "attribute"}},
    {"max", f_max, 0, false, {"case_sensitive", "attribute"}},
    {"min", f_min, 0, false, {"case_sensitive", "attribute"}},
    {"sum", f_sum, 0, false, {"attribute", "start"}},
    {"wordcount", f_wordcount, 0, false, {0}},
    {"map", f_map, 0, true, {0}},
    {"select", f_select, 0, true, {0}},
    {"reject", f_reject, 0, true, {0}},
    {"selectattr", f_selectattr, 0, true, {0}},
    {"rejectattr", f_rejectattr, 0, true, {0}},
};

const sl_jbuiltin *sl_jfilter_list_find(const char *name) {
    for (size_t i = 0; i < SL_LEN(table); i++)
        if (!strcmp(table[i].name, name)) return &table[i];
    return NULL;
}
