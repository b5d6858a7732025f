/* The % of strings: %s, %r, %d, %i, %f, %x, %% and %(name)s, with flags, width and precision. */
#include "jinja/jinja_int.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct spec {
    char flags[8];
    int width, precision; /* -1: none */
    char type;
    const char *name;
    size_t n_name;
} spec;

/* Reads what stands after '%' at s[*i]; false: not one of ours. */
static bool read_spec(const sl_jstr *s, size_t *i, spec *out) {
    size_t n = 0;
    *out = (spec){.width = -1, .precision = -1};
    if (*i < s->n && s->p[*i] == '(') {
        out->name = s->p + ++*i;
        while (*i < s->n && s->p[*i] != ')') ++*i, ++out->n_name;
        if (*i >= s->n) return false;
        ++*i;
    }
    while (*i < s->n && s->p[*i] && strchr("-+ 0", s->p[*i]) && n + 1 < sizeof out->flags)
        out->flags[n++] = s->p[(*i)++];
    for (int part = 0; part < 2; part++) {
        int *to = part ? &out->precision : &out->width;
        if (part && !(*i < s->n && s->p[*i] == '.')) break;
        if (part) ++*i, *to = 0;
        for (; *i < s->n && s->p[*i] >= '0' && s->p[*i] <= '9' && *to < 100; ++*i)
            *to = SL_MAX(*to, 0) * 10 + (s->p[*i] - '0');
    }
    if (*i >= s->n || !s->p[*i] || !strchr("srdifxX%", s->p[*i])) return false;
    out->type = s->p[(*i)++];
    return out->width < 100 && out->precision < 100;
}

static void put_number(sl_jrun *r, sl_jout *o, const spec *p, sl_jv v) {
    char format[32], text[512];
    bool real = p->type == 'f';
    int64_t i = v.kind == SL_JV_BOOL ? v.as.b : v.kind == SL_JV_FLOAT ? 0 : v.as.i;
    double f = v.kind == SL_JV_FLOAT ? v.as.f : (double)i;
    if (v.kind != SL_JV_INT && v.kind != SL_JV_BOOL && v.kind != SL_JV_FLOAT) {
        sl_jrun_fail(r, SL_ERR_ARG, "%%%c needs a number, not %s", p->type, sl_jv_type(v));
        return;
    }
    if (!real && v.kind == SL_JV_FLOAT) {
        if (!(f > -9e18 && f < 9e18) || p->type == 'x' || p->type == 'X') {
            sl_jrun_fail(r, SL_ERR_ARG, "%%%c of a float", p->type);
            return;
        }
        i = (int64_t)f;
    }
    if ((p->type == 'x' || p->type == 'X') && i < 0) {
        sl_jrun_fail(r, SL_ERR_UNSUPPORTED, "%%x of a negative number");
        return;
    }
    snprintf(format, sizeof format, "%%%s*.*%s", p->flags,
             real             ? "f"
             : p->type == 'x' ? PRIx64
             : p->type == 'X' ? PRIX64
                              : PRId64);
    int n = real ? snprintf(text, sizeof text, format, SL_MAX(p->width, 0), p->precision, f)
                 : snprintf(text, sizeof text, format, SL_MAX(p->width, 0), p->precision, i);
    sl_jout_put(r, o, text, SL_MIN((size_t)SL_MAX(n, 0), sizeof text - 1), v.user);
}

static void put_text(sl_jrun *r, sl_jout *o, const spec *p, sl_jv v) {
    sl_jv s = p->type == 'r' ? sl_jv_repr(r, v) : sl_jv_str(r, v);
    if (r->st != SL_OK) return;
    size_t chars = sl_jstr_length(r, s.as.s);
    if (p->precision >= 0 && chars > (size_t)p->precision) {
        chars = (size_t)p->precision;
        s = sl_jstr_slice(r, s.as.s, 0, sl_jstr_offset(s.as.s, chars));
    }
    bool left = strchr(p->flags, '-') != NULL;
    if (r->st == SL_OK && left) sl_jout_str(r, o, s.as.s);
    for (int i = (int)chars; i < p->width; i++) sl_jout_put(r, o, " ", 1, false);
    if (r->st == SL_OK && !left) sl_jout_str(r, o, s.as.s);
}

/* The value for a conversion: by name of a dict, or the next of a tuple, or the only one. */
static sl_jv value_for(sl_jrun *r, const spec *p, sl_jv args, size_t *used) {
    if (p->name) {
        sl_jstr key = {.p = p->name, .n = p->n_name};
        const sl_jv *v =
            args.kind == SL_JV_DICT
                ? sl_jdict_find(r, args.as.dict, (sl_jv){.kind = SL_JV_STRING, .as.s = &key})
                : NULL;
        if (!v) return sl_jrun_fail(r, SL_ERR_ARG, "%%: no value for a name");
        return *v;
    }
    size_t n = args.kind == SL_JV_TUPLE ? args.as.list->n : 1;
    if (*used >= n) return sl_jrun_fail(r, SL_ERR_ARG, "%%: not enough values");
    return args.kind == SL_JV_TUPLE ? args.as.list->v[(*used)++] : ((*used)++, args);
}

sl_jv sl_jstr_format(sl_jrun *r, const sl_jstr *f, sl_jv args) {
    sl_jout o = {0};
    size_t used = 0;
    /* what has items by key need not be used up */
    bool by_name =
        args.kind == SL_JV_DICT || args.kind == SL_JV_LIST || args.kind == SL_JV_UNDEFINED;
    for (size_t i = 0; i < f->n && r->st == SL_OK;) {
        spec p;
        if (f->p[i] != '%') {
            sl_jout_put(r, &o, f->p + i, 1, sl_jstr_user_at(f, i));
            i++;
            continue;
        }
        bool user = sl_jstr_user_at(f, i++);
        if (!read_spec(f, &i, &p))
            return sl_jrun_fail(r, SL_ERR_UNSUPPORTED, "a conversion after %% that is not known");
        if (p.type == '%') {
            sl_jout_put(r, &o, "%", 1, user);
            continue;
        }
        by_name |= p.name != NULL;
        sl_jv v = value_for(r, &p, args, &used);
        if (r->st != SL_OK) break;
        if (p.type == 's' || p.type == 'r')
            put_text(r, &o, &p, v);
        else
            put_number(r, &o, &p, v);
    }
    if (!by_name && used < (args.kind == SL_JV_TUPLE ? args.as.list->n : 1))
        sl_jrun_fail(r, SL_ERR_ARG, "%%: more values than conversions");
    return sl_jout_value(r, &o);
}
