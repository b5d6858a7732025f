/* Methods of strings, lists and dicts; functions that every template has. */
#include "jinja/jinja_int.h"

#include "base/utf8.h"

#include <time.h>

#define ARGS      sl_jrun *r, sl_jv self, const sl_jv *a, const sl_jargs *args
#define MAX_RANGE 100000 /* as jinja2's sandbox */

static const sl_jstr *text_arg(sl_jrun *r, sl_jv v) {
    if (v.kind == SL_JV_STRING) return v.as.s;
    sl_jrun_fail(r, SL_ERR_ARG, "a str is needed, not %s", sl_jv_type(v));
    return NULL;
}

static bool chars_ok(sl_jrun *r, const sl_jv *v) {
    return v->kind == SL_JV_MISSING || v->kind == SL_JV_NONE || text_arg(r, *v) != NULL;
}

static sl_jv m_strip(ARGS) {
    (void)args;
    return chars_ok(r, &a[0]) ? sl_jstr_strip(r, self.as.s, &a[0], true, true) : self;
}

static sl_jv m_lstrip(ARGS) {
    (void)args;
    return chars_ok(r, &a[0]) ? sl_jstr_strip(r, self.as.s, &a[0], true, false) : self;
}

static sl_jv m_rstrip(ARGS) {
    (void)args;
    return chars_ok(r, &a[0]) ? sl_jstr_strip(r, self.as.s, &a[0], false, true) : self;
}

static sl_jv m_upper(ARGS) {
    (void)args, (void)a;
    return sl_jstr_case(r, self.as.s, SL_JCASE_UPPER);
}

static sl_jv m_lower(ARGS) {
    (void)args, (void)a;
    return sl_jstr_case(r, self.as.s, SL_JCASE_LOWER);
}

static sl_jv m_title(ARGS) {
    (void)args, (void)a;
    return sl_jstr_case(r, self.as.s, SL_JCASE_TITLE);
}

static sl_jv m_capitalize(ARGS) {
    (void)args, (void)a;
    return sl_jstr_case(r, self.as.s, SL_JCASE_CAPITAL);
}

static bool ends(const sl_jstr *s, const sl_jstr *with, bool front) {
    return s->n >= with->n && memcmp(s->p + (front ? 0 : s->n - with->n), with->p, with->n) == 0;
}

/* startswith and endswith take one string or a tuple of them. */
static sl_jv ends_with(sl_jrun *r, sl_jv self, sl_jv with, bool front) {
    bool yes = false;
    if (with.kind == SL_JV_TUPLE) {
        for (size_t i = 0; i < with.as.list->n && !yes && r->st == SL_OK; i++) {
            const sl_jstr *s = text_arg(r, with.as.list->v[i]);
            yes = s && ends(self.as.s, s, front);
        }
        return sl_jv_bool(yes);
    }
    const sl_jstr *s = text_arg(r, with);
    return sl_jv_bool(s && ends(self.as.s, s, front));
}

static sl_jv m_startswith(ARGS) {
    (void)args;
    return ends_with(r, self, a[0], true);
}

static sl_jv m_endswith(ARGS) {
    (void)args;
    return ends_with(r, self, a[0], false);
}

static sl_jv m_removeprefix(ARGS) {
    (void)args;
    const sl_jstr *s = text_arg(r, a[0]);
    return s && ends(self.as.s, s, true) ? sl_jstr_slice(r, self.as.s, s->n, self.as.s->n) : self;
}

static sl_jv m_removesuffix(ARGS) {
    (void)args;
    const sl_jstr *s = text_arg(r, a[0]);
    return s && ends(self.as.s, s, false) ? sl_jstr_slice(r, self.as.s, 0, self.as.s->n - s->n)
                                          : self;
}

static bool count_arg(sl_jrun *r, sl_jv v, int64_t *out) {
    *out = v.kind == SL_JV_INT ? v.as.i : -1;
    if (v.kind == SL_JV_INT || v.kind == SL_JV_MISSING) return true;
    sl_jrun_fail(r, SL_ERR_ARG, "an int is needed, not %s", sl_jv_type(v));
    return false;
}

static sl_jv m_replace(ARGS) {
    (void)args;
    int64_t count;
    const sl_jstr *old = text_arg(r, a[0]), *by = text_arg(r, a[1]);
    if (!old || !by || !count_arg(r, a[2], &count)) return self;
    return sl_jstr_replace(r, self.as.s, old, by, count);
}

/* Words between white space, at most `most` cuts from the left (< 0: all). */
static sl_jv split_words(sl_jrun *r, const sl_jstr *s, int64_t most) {
    sl_jv list = sl_jv_list(r), none = {.kind = SL_JV_NONE};
    for (size_t i = 0, k; r->st == SL_OK;) {
        while (i < s->n && (k = sl_jspace(s->p + i, s->n - i)) > 0) i += k;
        if (i >= s->n) break;
        for (k = i; k < s->n && !sl_jspace(s->p + k, s->n - k);)
            k += SL_MAX(sl_utf8_sequence(s->p + k, s->n - k), (size_t)1);
        sl_jv word = sl_jstr_slice(r, s, i, most == 0 ? s->n : k);
        if (most == 0 && r->st == SL_OK) {
            word = sl_jstr_strip(r, word.as.s, &none, false, true);
            k = s->n;
        }
        sl_jv_push(r, list, word);
        most -= most > 0;
        i = k;
    }
    return list;
}

static size_t find_last(const sl_jstr *s, size_t to, const sl_jstr *what) {
    for (size_t i = to >= what->n ? to - what->n + 1 : 0; i > 0; i--)
        if (memcmp(s->p + i - 1, what->p, what->n) == 0) return i - 1;
    return s->n;
}

static sl_jv split(sl_jrun *r, const sl_jstr *s, const sl_jv *a, bool right) {
    int64_t most;
    if (!count_arg(r, a[1], &most) || !sl_jrun_charge(r, s->n)) return sl_jv_undefined(NULL);
    if (a[0].kind == SL_JV_MISSING || a[0].kind == SL_JV_NONE) {
        if (right && most >= 0)
            return sl_jrun_fail(r, SL_ERR_UNSUPPORTED, "rsplit at white space with a count");
        return split_words(r, s, most);
    }
    const sl_jstr *by = text_arg(r, a[0]);
    if (by && by->n == 0) sl_jrun_fail(r, SL_ERR_ARG, "split by an empty string");
    sl_jv list = sl_jv_list(r);
    size_t from = 0, to = s->n;
    while (r->st == SL_OK && most != 0) {
        size_t at = right ? find_last(s, to, by) : sl_jstr_find(s, from, by);
        if (at == s->n) break;
        sl_jv_push(r, list, sl_jstr_slice(r, s, right ? at + by->n : from, right ? to : at));
        from = right ? from : at + by->n;
        to = right ? at : to;
        most -= most > 0;
    }
    if (r->st == SL_OK) sl_jv_push(r, list, sl_jstr_slice(r, s, from, to));
    if (r->st != SL_OK || !right) return list;
    for (size_t i = 0, n = list.as.list->n; i < n / 2; i++) {
        sl_jv *v = list.as.list->v, swap = v[i];
        v[i] = v[n - 1 - i];
        v[n - 1 - i] = swap;
    }
    return list;
}

static sl_jv m_split(ARGS) {
    (void)args;
    return split(r, self.as.s, a, false);
}

static sl_jv m_rsplit(ARGS) {
    (void)args;
    return split(r, self.as.s, a, true);
}

/* Bytes of the line end at p, 0: none. */
static size_t line_end(const char *p, size_t n) {
    if (n >= 2 && p[0] == '\r' && p[1] == '\n') return 2;
    uint8_t c = (uint8_t)p[0];
    if ((c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E)) return 1;
    if (n >= 2 && memcmp(p, "\xC2\x85", 2) == 0) return 2;
    return n >= 3 && (memcmp(p, "\u2028", 3) == 0 || memcmp(p, "\u2029", 3) == 0) ? 3 : 0;
}

static sl_jv m_splitlines(ARGS) {
    (void)args;
    const sl_jstr *s = self.as.s;
    sl_jv list = sl_jv_list(r);
    for (size_t i = 0, k = 0; i < s->n && r->st == SL_OK; i = k) {
        size_t end = 0;
        for (k = i; k < s->n && (end = line_end(s->p + k, s->n - k)) == 0; k++) {
        }
        sl_jv_push(r, list, sl_jstr_slice(r, s, i, sl_jv_true(a[0]) ? k + end : k));
        k += end;
    }
    return list;
}

static sl_jv partition(sl_jrun *r, sl_jv self, sl_jv by, bool right) {
    const sl_jstr *s = self.as.s, *what = text_arg(r, by);
    if (what && what->n == 0) sl_jrun_fail(r, SL_ERR_ARG, "partition by an empty string");
    if (r->st != SL_OK) return self;
    size_t at = right ? find_last(s, s->n, what) : sl_jstr_find(s, 0, what);
    sl_jv v[3] = {self, sl_jstr_literal(r, ""), sl_jstr_literal(r, "")};
    if (at < s->n) {
        v[0] = sl_jstr_slice(r, s, 0, at);
        v[1] = by;
        v[2] = sl_jstr_slice(r, s, at + what->n, s->n);
    } else if (right) {
        v[0] = v[1];
        v[2] = self;
    }
    return sl_jv_tuple(r, v, 3);
}

static sl_jv m_partition(ARGS) {
    (void)args;
    return partition(r, self, a[0], false);
}

static sl_jv m_rpartition(ARGS) {
    (void)args;
    return partition(r, self, a[0], true);
}

static sl_jv find_in(sl_jrun *r, sl_jv self, sl_jv what, bool right) {
    const sl_jstr *s = self.as.s, *w = text_arg(r, what);
    if (!w || !sl_jrun_charge(r, s->n)) return self;
    size_t at = right ? find_last(s, s->n, w) : sl_jstr_find(s, 0, w);
    if (at == s->n && w->n) return sl_jv_int(-1);
    const sl_jstr before = {.p = s->p, .n = at};
    return sl_jv_int((int64_t)sl_jstr_length(r, &before));
}

static sl_jv m_find(ARGS) {
    (void)args;
    return find_in(r, self, a[0], false);
}

static sl_jv m_rfind(ARGS) {
    (void)args;
    return find_in(r, self, a[0], true);
}

static sl_jv m_count(ARGS) {
    (void)args;
    const sl_jstr *s = self.as.s, *w = text_arg(r, a[0]);
    int64_t n = 0;
    if (!w || !sl_jrun_charge(r, s->n)) return self;
    if (w->n == 0) return sl_jv_int((int64_t)sl_jstr_length(r, s) + 1);
    for (size_t at = 0; (at = sl_jstr_find(s, at, w)) < s->n; at += w->n) n++;
    return sl_jv_int(n);
}

static sl_jv m_join(ARGS) {
    (void)args;
    const sl_jlist *l = sl_jv_each(r, a[0]);
    sl_jout o = {0};
    for (size_t i = 0; l && i < l->n && r->st == SL_OK; i++) {
        const sl_jstr *s = text_arg(r, l->v[i]);
        if (i) sl_jout_str(r, &o, self.as.s);
        if (s) sl_jout_str(r, &o, s);
    }
    return sl_jout_value(r, &o);
}

static sl_jv all_bytes(sl_jv self, bool (*is)(char c)) {
    bool yes = self.as.s->n > 0;
    for (size_t i = 0; i < self.as.s->n && yes; i++) yes = is(self.as.s->p[i]);
    return sl_jv_bool(yes);
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_white(char c) {
    return sl_jspace(&c, 1) == 1;
}

static sl_jv m_isdigit(ARGS) {
    (void)r, (void)a, (void)args;
    return all_bytes(self, is_digit);
}

static sl_jv m_isspace(ARGS) {
    (void)r, (void)a, (void)args;
    return all_bytes(self, is_white);
}

/* "{}", "{0}" and "{name}", without formats of their own. */
static sl_jv m_format(ARGS) {
    (void)a;
    const sl_jstr *s = self.as.s;
    sl_jout o = {0};
    size_t next = 0;
    for (size_t i = 0, k; i < s->n && r->st == SL_OK; i = k) {
        char c = s->p[i];
        bool twice = i + 1 < s->n && s->p[i + 1] == c;
        k = i + 1 + ((c == '{' || c == '}') && twice);
        if (c != '{' || twice) {
            sl_jout_put(r, &o, &c, 1, sl_jstr_user_at(s, i));
            if (c == '}' && !twice) sl_jrun_fail(r, SL_ERR_ARG, "format: a single \"}\"");
            continue;
        }
        char name[40] = "";
        size_t n = 0, index = 0;
        for (; k < s->n && s->p[k] != '}' && n + 1 < sizeof name; k++) name[n++] = s->p[k];
        if (k >= s->n || s->p[k] != '}' || strpbrk(name, ":!.[{"))
            return sl_jrun_fail(r, SL_ERR_UNSUPPORTED, "format \"{%s}\" is not supported", name);
        const sl_jv *v = NULL;
        for (size_t d = 0; d < n && is_digit(name[d]) && d < 4; d++)
            index = 10 * index + (size_t)(name[d] - '0');
        if (n == 0 || is_digit(name[0])) {
            index = n ? index : next++;
            v = index < args->n ? &args->v[index] : NULL;
        }
        for (size_t i2 = 0; i2 < args->n_key && !v; i2++)
            if (!strcmp(args->key[i2].name, name)) v = &args->key_value[i2];
        if (!v) return sl_jrun_fail(r, SL_ERR_ARG, "format: nothing for \"{%s}\"", name);
        sl_jv text = sl_jv_str(r, *v);
        if (r->st == SL_OK) sl_jout_str(r, &o, text.as.s);
        k++;
    }
    return sl_jout_value(r, &o);
}

static sl_jv m_list_count(ARGS) {
    (void)args;
    int64_t n = 0;
    for (size_t i = 0; i < self.as.list->n && sl_jrun_charge(r, 0); i++)
        n += sl_jv_equal(r, self.as.list->v[i], a[0]);
    return sl_jv_int(n);
}

static sl_jv m_list_index(ARGS) {
    (void)args;
    for (size_t i = 0; i < self.as.list->n && sl_jrun_charge(r, 0); i++)
        if (sl_jv_equal(r, self.as.list->v[i], a[0])) return sl_jv_int((int64_t)i);
    return sl_jrun_fail(r, SL_ERR_ARG, "index: the value is not in the list");
}

static sl_jv m_list_copy(ARGS) {
    (void)a, (void)args;
    sl_jv list = sl_jv_tuple(r, self.as.list->v, self.as.list->n);
    if (r->st == SL_OK) list.kind = SL_JV_LIST;
    return list;
}

static sl_jv m_get(ARGS) {
    (void)args;
    const sl_jv *v = sl_jdict_find(r, self.as.dict, a[0]);
    return v ? *v : a[1].kind == SL_JV_MISSING ? sl_jv_none() : a[1];
}

static sl_jv dict_list(sl_jrun *r, const sl_jdict *d, bool keys, bool values) {
    sl_jv list = sl_jv_list(r);
    for (size_t i = 0; i < d->n && r->st == SL_OK; i++) {
        const sl_jv pair[2] = {d->v[i].key, d->v[i].value};
        sl_jv_push(r, list, keys && values ? sl_jv_tuple(r, pair, 2) : pair[values]);
    }
    return list;
}

static sl_jv m_items(ARGS) {
    (void)a, (void)args;
    return dict_list(r, self.as.dict, true, true);
}

static sl_jv m_keys(ARGS) {
    (void)a, (void)args;
    return dict_list(r, self.as.dict, true, false);
}

static sl_jv m_values(ARGS) {
    (void)a, (void)args;
    return dict_list(r, self.as.dict, false, true);
}

static sl_jv m_dict_copy(ARGS) {
    (void)a, (void)args;
    sl_jv d = sl_jv_dict(r);
    for (size_t i = 0; i < self.as.dict->n && r->st == SL_OK; i++)
        sl_jdict_set(r, d.as.dict, self.as.dict->v[i].key, self.as.dict->v[i].value);
    return d;
}

static sl_jv m_cycle(ARGS) {
    (void)a;
    if (args->n == 0) return sl_jrun_fail(r, SL_ERR_ARG, "loop.cycle needs values");
    return args->v[self.as.loop->at % args->n];
}

static const sl_jbuiltin of_string[] = {
    {"strip", m_strip, 0, false, {"chars"}},
    {"lstrip", m_lstrip, 0, false, {"chars"}},
    {"rstrip", m_rstrip, 0, false, {"chars"}},
    {"split", m_split, 0, false, {"sep", "maxsplit"}},
    {"rsplit", m_rsplit, 0, false, {"sep", "maxsplit"}},
    {"splitlines", m_splitlines, 0, false, {"keepends"}},
    {"startswith", m_startswith, 1, false, {"prefix"}},
    {"endswith", m_endswith, 1, false, {"suffix"}},
    {"removeprefix", m_removeprefix, 1, false, {"prefix"}},
    {"removesuffix", m_removesuffix, 1, false, {"suffix"}},
    {"replace", m_replace, 2, false, {"old", "new", "count"}},
    {"upper", m_upper, 0, false, {0}},
    {"lower", m_lower, 0, false, {0}},
    {"title", m_title, 0, false, {0}},
    {"capitalize", m_capitalize, 0, false, {0}},
    {"find", m_find, 1, false, {"sub"}},
    {"rfind", m_rfind, 1, false, {"sub"}},
    {"count", m_count, 1, false, {"sub"}},
    {"join", m_join, 1, false, {"iterable"}},
    {"partition", m_partition, 1, false, {"sep"}},
    {"rpartition", m_rpartition, 1, false, {"sep"}},
    {"isdigit", m_isdigit, 0, false, {0}},
    {"isspace", m_isspace, 0, false, {0}},
    {"format", m_format, 0, true, {0}},
    {"casefold", NULL, 0, false, {0}},
    {"center", NULL, 0, false, {0}},
    {"encode", NULL, 0, false, {0}},
    {"expandtabs", NULL, 0, false, {0}},
    {"format_map", NULL, 0, false, {0}},
    {"index", NULL, 0, false, {0}},
    {"isalnum", NULL, 0, false, {0}},
    {"isalpha", NULL, 0, false, {0}},
    {"islower", NULL, 0, false, {0}},
    {"isupper", NULL, 0, false, {0}},
    {"isnumeric", NULL, 0, false, {0}},
    {"ljust", NULL, 0, false, {0}},
    {"rjust", NULL, 0, false, {0}},
    {"swapcase", NULL, 0, false, {0}},
    {"translate", NULL, 0, false, {0}},
    {"zfill", NULL, 0, false, {0}},
};

/* The sandbox of transformers refuses what would change a list or dict. */
static const sl_jbuiltin of_list[] = {
    {"count", m_list_count, 1, false, {"value"}},
    {"index", m_list_index, 1, false, {"value"}},
    {"copy", m_list_copy, 0, false, {0}},
    {"append", NULL, 0, false, {0}},
    {"extend", NULL, 0, false, {0}},
    {"insert", NULL, 0, false, {0}},
    {"pop", NULL, 0, false, {0}},
    {"remove", NULL, 0, false, {0}},
    {"reverse", NULL, 0, false, {0}},
    {"sort", NULL, 0, false, {0}},
    {"clear", NULL, 0, false, {0}},
};

static const sl_jbuiltin of_dict[] = {
    {"get", m_get, 1, false, {"key", "default"}},
    {"items", m_items, 0, false, {0}},
    {"keys", m_keys, 0, false, {0}},
    {"values", m_values, 0, false, {0}},
    {"copy", m_dict_copy, 0, false, {0}},
    {"pop", NULL, 0, false, {0}},
    {"popitem", NULL, 0, false, {0}},
    {"setdefault", NULL, 0, false, {0}},
    {"update", NULL, 0, false, {0}},
    {"clear", NULL, 0, false, {0}},
    {"fromkeys", NULL, 0, false, {0}},
};

static const sl_jbuiltin of_loop[] = {
    {"cycle", m_cycle, 0, true, {0}},
    {"changed", NULL, 0, true, {0}},
};

const sl_jbuiltin *sl_jmethod_find(sl_jv_kind of, const char *name) {
    const sl_jbuiltin *table = of == SL_JV_STRING ? of_string
                               : of == SL_JV_LIST ? of_list
                               : of == SL_JV_DICT ? of_dict
                               : of == SL_JV_LOOP ? of_loop
                                                  : NULL;
    size_t n = of == SL_JV_STRING ? SL_LEN(of_string)
               : of == SL_JV_LIST ? SL_LEN(of_list)
               : of == SL_JV_DICT ? SL_LEN(of_dict)
               : of == SL_JV_LOOP ? SL_LEN(of_loop)
                                  : 0;
    if (of == SL_JV_TUPLE) table = of_list, n = 2;
    for (size_t i = 0; i < n; i++)
        if (!strcmp(table[i].name, name)) return &table[i];
    return NULL;
}

/* ---- functions ---- */

static sl_jv g_range(ARGS) {
    (void)self, (void)args;
    int64_t v[3] = {0, 0, 1}, n = 0;
    for (size_t i = 0; i < 3; i++) {
        if (a[i].kind == SL_JV_MISSING) break;
        if (a[i].kind != SL_JV_INT && a[i].kind != SL_JV_BOOL)
            return sl_jrun_fail(r, SL_ERR_ARG, "range takes integers, not %s", sl_jv_type(a[i]));
        v[i] = a[i].kind == SL_JV_INT ? a[i].as.i : a[i].as.b;
    }
    if (a[1].kind == SL_JV_MISSING) v[1] = v[0], v[0] = 0;
    if (v[2] == 0) return sl_jrun_fail(r, SL_ERR_ARG, "range: the step is zero");
    sl_jv list = sl_jv_list(r);
    for (int64_t i = v[0]; r->st == SL_OK && (v[2] > 0 ? i < v[1] : i > v[1]);) {
        if (++n > MAX_RANGE)
            return sl_jrun_fail(r, SL_ERR_LIMIT, "range longer than %d", MAX_RANGE);
        sl_jv_push(r, list, sl_jv_int(i));
        if (__builtin_add_overflow(i, v[2], &i)) break;
    }
    return list;
}

/* namespace and dict: another one's entries, then the named. */
static sl_jv g_dict(ARGS) {
    (void)a, (void)self;
    sl_jv d = sl_jv_dict(r);
    const sl_jlist *pairs = NULL;
    if (args->n > 1) return sl_jrun_fail(r, SL_ERR_ARG, "one dict at most is expected");
    if (args->n == 1 && args->v[0].kind == SL_JV_DICT)
        d = m_dict_copy(r, args->v[0], a, args);
    else if (args->n == 1)
        pairs = sl_jv_each(r, args->v[0]);
    for (size_t i = 0; pairs && i < pairs->n && r->st == SL_OK; i++) {
        const sl_jlist *pair = sl_jv_each(r, pairs->v[i]);
        if (!pair || pair->n != 2) return sl_jrun_fail(r, SL_ERR_ARG, "dict of what is no pair");
        sl_jdict_set(r, d.as.dict, pair->v[0], pair->v[1]);
    }
    for (size_t i = 0; i < args->n_key && r->st == SL_OK; i++)
        sl_jv_put(r, d, args->key[i].name, args->key_value[i]);
    return d;
}

static sl_jv g_namespace(ARGS) {
    sl_jv d = g_dict(r, self, a, args);
    if (r->st == SL_OK) d.kind = SL_JV_NAMESPACE;
    return d;
}

static sl_jv g_raise(ARGS) {
    (void)self, (void)args;
    sl_jv text = sl_jv_str(r, a[0]);
    if (r->st != SL_OK) return text;
    return sl_jrun_fail(r, SL_ERR_ARG, "%.*s", (int)SL_MIN(text.as.s->n, (size_t)300),
                        text.as.s->p);
}

static sl_jv g_strftime(ARGS) {
    (void)self, (void)args;
    char format[128], text[512];
    struct tm tm;
    time_t now = (time_t)r->now_s;
    const sl_jstr *s = text_arg(r, a[0]);
    if (!s) return self;
    if (s->n >= sizeof format || memchr(s->p, 0, s->n))
        return sl_jrun_fail(r, SL_ERR_LIMIT, "strftime_now: a format of %zu bytes", s->n);
    memcpy(format, s->p, s->n);
    format[s->n] = 0;
    if (!gmtime_r(&now, &tm)) return sl_jrun_fail(r, SL_ERR_ARG, "strftime_now: no such time");
    size_t n = strftime(text, sizeof text, format, &tm);
    sl_jout o = {0};
    sl_jout_put(r, &o, text, n, sl_jv_is_user(r, a[0]));
    return sl_jout_value(r, &o);
}

static const sl_jbuiltin functions[] = {
    {"range", g_range, 1, false, {"start", "stop", "step"}},
    {"namespace", g_namespace, 0, true, {0}},
    {"dict", g_dict, 0, true, {0}},
    {"raise_exception", g_raise, 1, false, {"message"}},
    {"strftime_now", g_strftime, 1, false, {"format"}},
    {"cycler", NULL, 0, true, {0}},
    {"joiner", NULL, 0, true, {0}},
    {"lipsum", NULL, 0, true, {0}},
};

const sl_jbuiltin *sl_jfunction_find(const char *name) {
    for (size_t i = 0; i < SL_LEN(functions); i++)
        if (!strcmp(functions[i].name, name)) return &functions[i];
    return NULL;
}
