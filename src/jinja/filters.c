/* Filters over one value. Those over lists are in filters_list.c. */
#include "jinja/jinja_int.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define ARGS sl_jrun *r, sl_jv self, const sl_jv *a, const sl_jargs *args

static const sl_jstr *text_of(sl_jrun *r, sl_jv v) {
    sl_jv s = sl_jv_str(r, v);
    return r->st == SL_OK ? s.as.s : NULL;
}

static const sl_jstr *text_arg(sl_jrun *r, sl_jv v, const char *what) {
    if (v.kind == SL_JV_STRING) return v.as.s;
    sl_jrun_fail(r, SL_ERR_ARG, "%s must be a str, not %s", what, sl_jv_type(v));
    return NULL;
}

static bool int_arg(sl_jrun *r, sl_jv v, int64_t missing, int64_t *out) {
    *out = v.kind == SL_JV_MISSING || v.kind == SL_JV_NONE ? missing
           : v.kind == SL_JV_BOOL                          ? v.as.b
                                                           : v.as.i;
    if (v.kind == SL_JV_MISSING || v.kind == SL_JV_INT || v.kind == SL_JV_BOOL ||
        v.kind == SL_JV_NONE)
        return true;
    sl_jrun_fail(r, SL_ERR_ARG, "an integer is needed, not %s", sl_jv_type(v));
    return false;
}

static sl_jv f_default(ARGS) {
    (void)args;
    if (self.kind == SL_JV_UNDEFINED || (sl_jv_true(a[1]) && !sl_jv_true(self)))
        return a[0].kind == SL_JV_MISSING ? sl_jstr_literal(r, "") : a[0];
    return self;
}

static sl_jv f_trim(ARGS) {
    (void)args;
    const sl_jstr *s = text_of(r, self);
    return s ? sl_jstr_strip(r, s, &a[0], true, true) : self;
}

static sl_jv to_case(sl_jrun *r, sl_jv v, sl_jcase to) {
    const sl_jstr *s = text_of(r, v);
    return s ? sl_jstr_case(r, s, to) : v;
}

static sl_jv f_upper(ARGS) {
    (void)args, (void)a;
    return to_case(r, self, SL_JCASE_UPPER);
}

static sl_jv f_lower(ARGS) {
    (void)args, (void)a;
    return to_case(r, self, SL_JCASE_LOWER);
}

static sl_jv f_capitalize(ARGS) {
    (void)args, (void)a;
    return to_case(r, self, SL_JCASE_CAPITAL);
}

/* The filter begins words at white space, hyphens and opening brackets only. */
static sl_jv f_title(ARGS) {
    (void)args, (void)a;
    const sl_jstr *s = text_of(r, self);
    sl_jout o = {0};
    for (size_t i = 0, k; s && i < s->n && r->st == SL_OK; i = k) {
        for (k = i + 1; k < s->n && !strchr("-({[<", s->p[k - 1]) && !sl_jspace(s->p + k - 1, 1);
             k++) {
        }
        sl_jv word = sl_jstr_slice(r, s, i, k);
        if (r->st == SL_OK) word = sl_jstr_case(r, word.as.s, SL_JCASE_CAPITAL);
        if (r->st == SL_OK) sl_jout_str(r, &o, word.as.s);
    }
    return sl_jout_value(r, &o);
}

static sl_jv f_string(ARGS) {
    (void)args, (void)a;
    return sl_jv_str(r, self);
}

/* Nothing is escaped here, so everything is safe. */
static sl_jv f_safe(ARGS) {
    (void)args, (void)a;
    return sl_jv_str(r, self);
}

static sl_jv f_replace(ARGS) {
    (void)args;
    int64_t count;
    const sl_jstr *s = text_of(r, self), *old = text_of(r, a[0]), *by = text_of(r, a[1]);
    if (!s || !old || !by || !int_arg(r, a[2], -1, &count)) return self;
    return sl_jstr_replace(r, s, old, by, count);
}

static sl_jv undefined_number(sl_jrun *r, sl_jv v) {
    return sl_jrun_fail(r, SL_ERR_ARG, "\"%.60s\" is undefined", v.as.name ? v.as.name : "a value");
}

static sl_jv f_int(ARGS) {
    (void)args;
    if (self.kind == SL_JV_UNDEFINED) return undefined_number(r, self);
    sl_jv missing = a[0].kind == SL_JV_MISSING ? sl_jv_int(0) : a[0];
    int64_t base;
    if (!int_arg(r, a[1], 10, &base)) return self;
    if (base < 2 || base > 36) return sl_jrun_fail(r, SL_ERR_ARG, "int: base %d", (int)base);
    double f = NAN;
    if (self.kind == SL_JV_INT) return self;
    if (self.kind == SL_JV_BOOL) return sl_jv_marked(sl_jv_int(self.as.b), self.user);
    if (self.kind == SL_JV_FLOAT) f = self.as.f;
    if (self.kind == SL_JV_STRING) {
        char text[64], *end;
        sl_jv none = {0}, bare = sl_jstr_strip(r, self.as.s, &none, true, true);
        if (r->st != SL_OK || bare.as.s->n == 0 || bare.as.s->n >= sizeof text) return missing;
        memcpy(text, bare.as.s->p, bare.as.s->n);
        text[bare.as.s->n] = 0;
        errno = 0;
        int64_t i = strtoll(text, &end, (int)base);
        if (!*end && !errno) return sl_jv_marked(sl_jv_int(i), sl_jv_is_user(r, self));
        f = strtod(text, &end);
        if (*end || strpbrk(text, "xX")) return missing;
    }
    if (!(fabs(f) < 9e18)) return missing;
    return sl_jv_marked(sl_jv_int((int64_t)f), sl_jv_is_user(r, self));
}

static sl_jv f_float(ARGS) {
    (void)args;
    if (self.kind == SL_JV_UNDEFINED) return undefined_number(r, self);
    sl_jv missing = a[0].kind == SL_JV_MISSING ? sl_jv_float(0) : a[0];
    if (self.kind == SL_JV_FLOAT) return self;
    if (self.kind == SL_JV_INT) return sl_jv_marked(sl_jv_float((double)self.as.i), self.user);
    if (self.kind == SL_JV_BOOL) return sl_jv_marked(sl_jv_float(self.as.b), self.user);
    if (self.kind != SL_JV_STRING) return missing;
    char text[64], *end;
    sl_jv none = {0}, bare = sl_jstr_strip(r, self.as.s, &none, true, true);
    if (r->st != SL_OK || bare.as.s->n == 0 || bare.as.s->n >= sizeof text) return missing;
    memcpy(text, bare.as.s->p, bare.as.s->n);
    text[bare.as.s->n] = 0;
    double f = strtod(text, &end);
    return *end || strpbrk(text, "xX()") ? missing
                                         : sl_jv_marked(sl_jv_float(f), sl_jv_is_user(r, self));
}

static sl_jv f_abs(ARGS) {
    (void)args, (void)a;
    if (self.kind == SL_JV_FLOAT) return sl_jv_marked(sl_jv_float(fabs(self.as.f)), self.user);
    if (self.kind == SL_JV_INT && self.as.i < 0)
        return sl_jv_marked(sl_jmath(r, '-', sl_jv_int(0), self), self.user);
    if (self.kind == SL_JV_INT) return self;
    if (self.kind == SL_JV_BOOL) return sl_jv_marked(sl_jv_int(self.as.b), self.user);
    return sl_jrun_fail(r, SL_ERR_ARG, "abs of %s", sl_jv_type(self));
}

static sl_jv f_round(ARGS) {
    (void)args;
    int64_t digits;
    char text[400];
    double f = self.kind == SL_JV_FLOAT ? self.as.f : (double)self.as.i, scale, whole;
    if (self.kind == SL_JV_BOOL) f = self.as.b;
    if (self.kind != SL_JV_FLOAT && self.kind != SL_JV_INT && self.kind != SL_JV_BOOL)
        return sl_jrun_fail(r, SL_ERR_ARG, "round of %s", sl_jv_type(self));
    if (!int_arg(r, a[0], 0, &digits)) return self;
    if (digits < 0 || digits > 15)
        return sl_jrun_fail(r, SL_ERR_UNSUPPORTED, "round to %lld places", (long long)digits);
    if (a[1].kind == SL_JV_MISSING ||
        (a[1].kind == SL_JV_STRING && sl_jstr_is(a[1].as.s, "common"))) {
        if (self.kind != SL_JV_FLOAT)
            return self.kind == SL_JV_INT ? self : sl_jv_marked(sl_jv_int(self.as.b), self.user);
        snprintf(text, sizeof text, "%.*f", (int)digits, f);
        return sl_jv_marked(sl_jv_float(strtod(text, NULL)), self.user);
    }
    scale = pow(10, (double)digits);
    if (a[1].kind != SL_JV_STRING ||
        !(sl_jstr_is(a[1].as.s, "ceil") || sl_jstr_is(a[1].as.s, "floor")))
        return sl_jrun_fail(r, SL_ERR_ARG, "round: method must be common, ceil or floor");
    whole = sl_jstr_is(a[1].as.s, "ceil") ? ceil(f * scale) : floor(f * scale);
    return sl_jv_marked(sl_jv_float(whole / scale), self.user);
}

/* Lines but the first, as Python splits them, get spaces in front, empty ones only with blank. */
static sl_jv f_indent(ARGS) {
    (void)args;
    int64_t width = 4;
    const sl_jstr *s = text_arg(r, self, "indent: the text");
    sl_jv by = a[0];
    if (!s) return self;
    if (by.kind != SL_JV_STRING) {
        sl_jv space = sl_jstr_literal(r, " ");
        if (!int_arg(r, a[0], 4, &width)) return self;
        by = sl_jmath(r, '*', space, sl_jv_int(width));
    }
    sl_jout o = {0};
    for (size_t i = 0, k; r->st == SL_OK && i <= s->n; i = k + 1) {
        const char *nl = i < s->n ? memchr(s->p + i, '\n', s->n - i) : NULL;
        k = nl ? (size_t)(nl - s->p) : s->n;
        bool wanted = i == 0 ? sl_jv_true(a[1]) : k > i || sl_jv_true(a[2]);
        sl_jv line = sl_jstr_slice(r, s, i, nl ? k + 1 : k);
        if (r->st != SL_OK) break;
        if (wanted) sl_jout_str(r, &o, by.as.s);
        sl_jout_str(r, &o, line.as.s);
    }
    return sl_jout_value(r, &o);
}

/* separators=(item, colon) */
static bool read_separators(sl_jrun *r, sl_jv v, sl_jjson *how) {
    if (v.kind == SL_JV_MISSING || v.kind == SL_JV_NONE) return true;
    const sl_jlist *l = v.kind == SL_JV_TUPLE || v.kind == SL_JV_LIST ? v.as.list : NULL;
    if (!l || l->n != 2 || l->v[0].kind != SL_JV_STRING || l->v[1].kind != SL_JV_STRING) {
        sl_jrun_fail(r, SL_ERR_ARG, "tojson: separators must be two strings");
        return false;
    }
    how->item = *l->v[0].as.s;
    how->colon = *l->v[1].as.s;
    return true;
}

static sl_jv f_tojson(ARGS) {
    (void)args;
    int64_t width = -1;
    sl_jjson how = {.indent = -1,
                    .item = {.p = ", ", .n = 2},
                    .colon = {.p = ": ", .n = 2},
                    .ascii = sl_jv_true(a[0]),
                    .sort = sl_jv_true(a[3])};
    if (a[1].kind == SL_JV_STRING) {
        how.indent = 1;
        how.indent_by = *a[1].as.s;
    } else {
        if (!int_arg(r, a[1], -1, &width)) return self;
        sl_jv space = sl_jstr_literal(r, " "), by = sl_jmath(r, '*', space, sl_jv_int(width));
        if (r->st != SL_OK) return self;
        how.indent = a[1].kind == SL_JV_INT || a[1].kind == SL_JV_BOOL ? 1 : -1;
        how.indent_by = *by.as.s;
    }
    if (how.indent >= 0) how.item.n = 1;
    return read_separators(r, a[2], &how) ? sl_jv_to_json(r, self, &how) : self;
}

static sl_jv f_escape(ARGS) {
    (void)args, (void)a;
    static const char *const by[128] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&#34;", ['\''] = "&#39;"};
    const sl_jstr *s = text_of(r, self);
    sl_jout o = {0};
    for (size_t i = 0; s && i < s->n && r->st == SL_OK; i++) {
        const char *entity = (uint8_t)s->p[i] < 128 ? by[(uint8_t)s->p[i]] : NULL;
        sl_jout_put(r, &o, entity ? entity : s->p + i, entity ? strlen(entity) : 1,
                    sl_jstr_user_at(s, i));
    }
    return sl_jout_value(r, &o);
}

static sl_jv f_attr(ARGS) {
    (void)args;
    const sl_jstr *name = text_arg(r, a[0], "attr: the name");
    char *text = name ? sl_jmem_name(&r->mem, name->p, name->n) : NULL;
    if (!text) return self;
    /* unlike a dot, it does not look into dicts */
    return self.kind == SL_JV_DICT && !sl_jmethod_find(self.kind, text) ? sl_jv_undefined(text)
                                                                        : sl_jv_attr(r, self, text);
}

static sl_jv f_format(ARGS) {
    (void)a;
    const sl_jstr *s = text_of(r, self);
    if (!s) return self;
    if (args->n_key == 0) return sl_jstr_format(r, s, sl_jv_tuple(r, args->v, args->n));
    sl_jv named = sl_jv_dict(r);
    for (size_t i = 0; i < args->n_key && r->st == SL_OK; i++)
        sl_jv_put(r, named, args->key[i].name, args->key_value[i]);
    return sl_jstr_format(r, s, named);
}

static const sl_jbuiltin table[] = {
    {"default", f_default, 0, false, {"default_value", "boolean"}},
    {"d", f_default, 0, false, {"default_value", "boolean"}},
    {"trim", f_trim, 0, false, {"chars"}},
    {"upper", f_upper, 0, false, {0}},
    {"lower", f_lower, 0, false, {0}},
    {"capitalize", f_capitalize, 0, false, {0}},
    {"title", f_title, 0, false, {0}},
    {"string", f_string, 0, false, {0}},
    {"safe", f_safe, 0, false, {0}},
    {"replace", f_replace, 2, false, {"old", "new", "count"}},
    {"int", f_int, 0, false, {"default", "base"}},
    {"float", f_float, 0, false, {"default"}},
    {"abs", f_abs, 0, false, {0}},
    {"round", f_round, 0, false, {"precision", "method"}},
    {"indent", f_indent, 0, false, {"width", "first", "blank"}},
    {"tojson", f_tojson, 0, false, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"escape", f_escape, 0, false, {0}},
    {"e", f_escape, 0, false, {0}},
    {"attr", f_attr, 1, false, {"name"}},
    {"format", f_format, 0, true, {0}},
};

const sl_jbuiltin *sl_jfilter_find(const char *name) {
    for (size_t i = 0; i < SL_LEN(table); i++)
        if (!strcmp(table[i].name, name)) return &table[i];
    return sl_jfilter_list_find(name);
}
