/* Values as text: str(), repr(), JSON. */
#include "jinja/jinja_int.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#define NUMBER_BYTES 40

/* The shortest digits that read back as f, in Python's layout. */
static void print_float(double f, char out[NUMBER_BYTES]) {
    char digits[NUMBER_BYTES];
    int precision = 0;
    if (isnan(f) || isinf(f)) {
        snprintf(out, NUMBER_BYTES, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    do snprintf(digits, sizeof digits, "%.*e", precision, f);
    while (strtod(digits, NULL) != f && ++precision < 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent >= 16 || exponent < -4) {
        char *e = strchr(digits, 'e');
        *e = 0;
        snprintf(out, NUMBER_BYTES, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    snprintf(out, NUMBER_BYTES, "%.*f", SL_MAX(precision - exponent, 1), f);
}

typedef struct printer {
    sl_jrun *r;
    sl_jout *o;
    bool user;
    const sl_jjson *json; /* NULL: Python's repr */
    int level;
} printer;

static void put(printer *p, const char *s, size_t n) {
    sl_jout_put(p->r, p->o, s, n, p->user);
}

static void puts_all(printer *p, const char *s) {
    put(p, s, strlen(s));
}

static bool printable(utf8proc_int32_t c) {
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return c == ' ';
    default:
        return true;
    }
}

static void put_repr_char(printer *p, const char *s, size_t n, char quote) {
    char text[16];
    utf8proc_int32_t c = 0;
    utf8proc_iterate((const uint8_t *)s, (utf8proc_ssize_t)n, &c);
    if (c == quote || c == '\\')
        snprintf(text, sizeof text, "\\%c", (char)c);
    else if (c == '\n' || c == '\r' || c == '\t')
        snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    else if (printable(c))
        memcpy(text, s, n), text[n] = 0;
    else
        snprintf(text, sizeof text,
                 c < 256     ? "\\x%02x"
                 : c < 65536 ? "\\u%04x"
                             : "\\U%08x",
                 (unsigned)c);
    puts_all(p, text);
}

static void put_json_char(printer *p, const char *s, size_t n) {
    static const char plain[] = "\"\"\\\\\nn\rr\tt\bb\ff";
    char text[16];
    utf8proc_int32_t c = 0;
    utf8proc_iterate((const uint8_t *)s, (utf8proc_ssize_t)n, &c);
    const char *known = c > 0 && c < 128 ? strchr(plain, c) : NULL;
    while (known && (known - plain) % 2) known = strchr(known + 1, c);
    if (known)
        snprintf(text, sizeof text, "\\%c", known[1]);
    else if (c < 32 || (p->json->ascii && c >= 127 && c < 65536 && c != 127))
        snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    else if (p->json->ascii && c >= 65536)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + (unsigned)((c - 65536) >> 10),
                 0xDC00 + (unsigned)((c - 65536) & 1023));
    else
        memcpy(text, s, n), text[n] = 0;
    puts_all(p, text);
}

/* What needs no escape goes in one piece. */
static bool plain_char(char c, char quote) {
    return (uint8_t)c >= 32 && (uint8_t)c < 127 && c != quote && c != '\\';
}

static void put_string(printer *p, const sl_jstr *s) {
    bool single = memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n);
    char quote = p->json || single ? '"' : '\'';
    put(p, &quote, 1);
    for (size_t i = 0, k; i < s->n && p->r->st == SL_OK; i += k) {
        for (k = 0; i + k < s->n && plain_char(s->p[i + k], quote); k++) {
        }
        if (k) {
            put(p, s->p + i, k);
            continue;
        }
        k = SL_MAX(sl_utf8_sequence(s->p + i, s->n - i), (size_t)1);
        if (s->p[i] == 0)
            puts_all(p, p->json ? "\\u0000" : "\\x00");
        else if (p->json)
            put_json_char(p, s->p + i, k);
        else
            put_repr_char(p, s->p + i, k, quote);
    }
    put(p, &quote, 1);
}

static void put_scalar(printer *p, sl_jv v) {
    char text[NUMBER_BYTES];
    switch (v.kind) {
    case SL_JV_NONE:
        puts_all(p, p->json ? "null" : "None");
        return;
    case SL_JV_BOOL:
        puts_all(p, v.as.b ? (p->json ? "true" : "True") : (p->json ? "false" : "False"));
        return;
    case SL_JV_INT:
        snprintf(text, sizeof text, "%" PRId64, v.as.i);
        puts_all(p, text);
        return;
    case SL_JV_FLOAT:
        print_float(v.as.f, text);
        if (p->json && !isfinite(v.as.f))
            puts_all(p, isnan(v.as.f) ? "NaN" : v.as.f < 0 ? "-Infinity" : "Infinity");
        else
            puts_all(p, text);
        return;
    default:
        break;
    }
    if (v.kind == SL_JV_UNDEFINED && !p->json)
        puts_all(p, "Undefined");
    else
        sl_jrun_fail(p->r, SL_ERR_ARG, "%s cannot be written as %s", sl_jv_type(v),
                     p->json ? "JSON" : "text");
}

static void put_value(printer *p, sl_jv v);

static void put_line(printer *p) {
    if (!p->json || p->json->indent < 0) return;
    puts_all(p, "\n");
    for (int i = 0; i < p->level && p->r->st == SL_OK; i++)
        put(p, p->json->indent_by.p, p->json->indent_by.n);
}

static void put_item_end(printer *p, bool last) {
    if (last) return;
    if (p->json)
        put(p, p->json->item.p, p->json->item.n);
    else
        puts_all(p, ", ");
    put_line(p);
}

static void put_list(printer *p, const sl_jlist *list, bool tuple) {
    puts_all(p, tuple && !p->json ? "(" : "[");
    p->level++;
    if (list->n) put_line(p);
    for (size_t i = 0; i < list->n && p->r->st == SL_OK; i++) {
        put_value(p, list->v[i]);
        put_item_end(p, i + 1 == list->n);
    }
    p->level--;
    if (list->n) put_line(p);
    if (tuple && !p->json)
        puts_all(p, list->n == 1 ? ",)" : ")");
    else
        puts_all(p, "]");
}

/* JSON's keys are strings: of a scalar, its own text. */
static void put_key(printer *p, sl_jv key) {
    if (!p->json) {
        put_value(p, key);
        puts_all(p, ": ");
        return;
    }
    if (key.kind == SL_JV_STRING) {
        put_string(p, key.as.s);
    } else {
        puts_all(p, "\"");
        put_scalar(p, key);
        puts_all(p, "\"");
    }
    put(p, p->json->colon.p, p->json->colon.n);
}

static void put_dict(printer *p, const sl_jdict *d) {
    puts_all(p, "{");
    p->level++;
    if (d->n) put_line(p);
    for (size_t i = 0; i < d->n && p->r->st == SL_OK; i++) {
        put_key(p, d->v[i].key);
        put_value(p, d->v[i].value);
        put_item_end(p, i + 1 == d->n);
    }
    p->level--;
    if (d->n) put_line(p);
    puts_all(p, "}");
}

/* A dict with its keys in order, for sort_keys. */
static const sl_jdict *sorted(sl_jrun *r, const sl_jdict *d) {
    sl_jv copy = sl_jv_dict(r);
    for (size_t i = 0; i < d->n && r->st == SL_OK; i++)
        sl_jdict_set(r, copy.as.dict, d->v[i].key, d->v[i].value);
    for (size_t i = 1; i < d->n && r->st == SL_OK; i++) {
        sl_jpair *v = copy.as.dict->v, one = v[i];
        size_t k = i;
        for (; k > 0 && sl_jv_compare(r, v[k - 1].key, one.key) > 0 && sl_jrun_charge(r, 0); k--)
            v[k] = v[k - 1];
        v[k] = one;
    }
    return r->st == SL_OK ? copy.as.dict : d;
}

static void put_value(printer *p, sl_jv v) {
    sl_jrun *r = p->r;
    if (!sl_jrun_charge(r, 0)) return;
    if (r->depth >= r->limits.depth) {
        sl_jrun_fail(r, SL_ERR_LIMIT, "values nested deeper than %u", r->limits.depth);
        return;
    }
    r->depth++;
    if (v.kind == SL_JV_STRING)
        put_string(p, v.as.s);
    else if (v.kind == SL_JV_LIST || v.kind == SL_JV_TUPLE)
        put_list(p, v.as.list, v.kind == SL_JV_TUPLE);
    else if (v.kind == SL_JV_DICT)
        put_dict(p, p->json && p->json->sort ? sorted(r, v.as.dict) : v.as.dict);
    else
        put_scalar(p, v);
    r->depth--;
}

/* All of it counts as the user's when some of it is. */
static sl_jv print(sl_jrun *r, sl_jv v, const sl_jjson *json) {
    sl_jout o = {0};
    printer p = {.r = r, .o = &o, .user = sl_jv_is_user(r, v), .json = json};
    put_value(&p, v);
    return sl_jout_value(r, &o);
}

sl_jv sl_jv_repr(sl_jrun *r, sl_jv v) {
    return print(r, v, NULL);
}

sl_jv sl_jv_to_json(sl_jrun *r, sl_jv v, const sl_jjson *how) {
    return print(r, v, how);
}

sl_jv sl_jv_str(sl_jrun *r, sl_jv v) {
    if (v.kind == SL_JV_STRING) return v;
    if (v.kind == SL_JV_UNDEFINED) return sl_jstr_literal(r, "");
    return print(r, v, NULL);
}
