/* Texts of strings, numbers and listed values that satisfy schemas. */
#include "grammar/schema_int.h"
#include "grammar/chars.h"
#include "grammar/regex.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

sl_rx sl_schema_quoted(sl_rx_store *rx, sl_rx content) {
    const sl_rx quote = sl_rx_chars(rx, "\"");
    return sl_rx_cat(rx, quote, sl_rx_cat(rx, content, quote));
}

static sl_status pattern_of(sl_schema *s, sl_json part, const char *word, sl_alphabet alphabet,
                            sl_rx *out) {
    sl_span text = {0};
    if (!sl_json_as_span(sl_json_get(part, word), &text))
        return sl_json_fail(part, "pattern", s->err, SL_ERR_FORMAT, "is no text");
    const sl_status st = sl_regex_parse(s->g->rx, text, alphabet, true, out, s->err);
    return sl_json_says(part, "pattern", st, s->err);
}

/* Texts of a format, or those that are none. Nothing follows from a word that no draft has, nor,
 * where schemas are compared, from a format of which not every text is known: *out is SL_RX_ALL. */
static sl_status format_of(sl_schema *s, sl_json part, bool holds, sl_rx *out) {
    const sl_json word = sl_json_get(part, holds ? "format" : SL_WORD_NOT_FORMAT);
    sl_span text = {0};
    *out = SL_RX_ALL;
    if (!sl_json_as_span(word, &text))
        return sl_json_fail(part, "format", s->err, SL_ERR_FORMAT, "is no text");
    const sl_schema_form *f = sl_schema_format((const char *)text.data);
    if (!f && !holds) *out = SL_RX_NONE; /* every text is what it asks for */
    if (!f) return SL_OK;
    if (f->regex && !f->exact && s->depth > 0) return SL_OK;
    if (!f->regex || !(f->exact || holds))
        return sl_json_fail(part, "format", s->err, SL_ERR_UNSUPPORTED,
                            "\"%.40s\" is not enforced%s", f->name,
                            f->regex ? " in what must not hold (not, oneOf, if)" : "");
    const sl_status st =
        sl_regex_parse(s->g->rx, (sl_span){(const uint8_t *)f->regex, strlen(f->regex)},
                       holds ? SL_ALPHABET_JSON : SL_ALPHABET_KEY, false, out, s->err);
    if (!holds) *out = sl_rx_not(s->g->rx, *out);
    return st;
}

/* What a text must not be. *plain: its characters are written in one form each, or a text that must
 * not be could be written in another. */
static sl_status not_string_part(sl_schema *s, sl_json part, sl_rx *content, bool *plain) {
    sl_rx_store *rx = s->g->rx;
    const sl_json texts = sl_json_get(part, SL_WORD_NOT_TEXTS);
    sl_rx e = SL_RX_ALL;
    sl_status st = SL_OK;
    if (texts.value) {
        sl_rx_list list = {0};
        sl_span text;
        for (size_t i = 0; i < sl_json_count(texts); i++)
            if (sl_json_as_span(sl_json_at(texts, i), &text))
                sl_rx_list_add(rx, &list, sl_rx_json_text(rx, text));
        e = sl_rx_not(rx, sl_rx_or_list(rx, &list));
    } else if (sl_json_get(part, SL_WORD_NOT_PATTERN).value) {
        st = pattern_of(s, part, SL_WORD_NOT_PATTERN, SL_ALPHABET_KEY, &e);
        e = sl_rx_not(rx, e);
    } else if (sl_json_get(part, SL_WORD_NOT_FORMAT).value) {
        st = format_of(s, part, false, &e);
    }
    *plain |= e != SL_RX_ALL;
    *content = sl_rx_and2(rx, *content, e);
    return st;
}

static sl_status string_part(sl_schema *s, sl_json part, sl_rx *content, uint64_t *min,
                             uint64_t *max) {
    uint64_t low = 0, high = UINT64_MAX;
    sl_rx e = SL_RX_ALL;
    sl_status st = sl_schema_number_of(part, "minLength", SL_SCHEMA_MAX_LENGTH, &low, s->err);
    if (st == SL_OK)
        st = sl_schema_number_of(part, "maxLength", SL_SCHEMA_MAX_LENGTH, &high, s->err);
    if (st != SL_OK) return st;
    *min = SL_MAX(*min, low);
    *max = SL_MIN(*max, high);
    if (sl_json_get(part, "pattern").value) {
        st = pattern_of(s, part, "pattern", SL_ALPHABET_JSON, &e);
        if (st != SL_OK) return st;
        *content = sl_rx_and2(s->g->rx, *content, e);
    }
    if (!sl_json_get(part, "format").value) return SL_OK;
    st = format_of(s, part, true, &e);
    *content = sl_rx_and2(s->g->rx, *content, e);
    return st;
}

sl_status sl_schema_string(sl_schema *s, const sl_schema_set *parts, sl_rx *out) {
    sl_rx_store *rx = s->g->rx;
    sl_rx content = SL_RX_ALL;
    uint64_t min = 0, max = UINT64_MAX;
    bool plain = false;
    sl_status st = SL_OK;
    for (uint32_t i = 0; i < parts->n && st == SL_OK; i++) {
        st = string_part(s, parts->v[i], &content, &min, &max);
        if (st == SL_OK) st = not_string_part(s, parts->v[i], &content, &plain);
    }
    *out = SL_RX_NONE;
    if (st != SL_OK || max < min) return st;
    if (min || max != UINT64_MAX || content == SL_RX_ALL || plain) {
        const uint32_t most = max == UINT64_MAX ? SL_RX_MANY : (uint32_t)max;
        const sl_rx any = sl_rx_any_char(rx, plain ? SL_ALPHABET_KEY : SL_ALPHABET_JSON);
        content = sl_rx_and2(rx, content, sl_rx_rep(rx, any, (uint32_t)min, most));
    }
    *out = sl_schema_quoted(rx, content);
    return sl_rx_status(rx, s->err);
}

/* Digits of a number that is not negative, before and behind the point; exact. */
typedef struct digits {
    char text[400];
    sl_span whole, fraction;
} digits;

static bool digits_of(double v, digits *d) {
    char shortest[64];
    int precision = 1;
    for (; precision < 17; precision++) {
        snprintf(shortest, sizeof shortest, "%.*e", precision - 1, v);
        if (strtod(shortest, NULL) == v) break;
    }
    snprintf(shortest, sizeof shortest, "%.*e", precision - 1, v);
    const int exponent = atoi(strchr(shortest, 'e') + 1);
    const int behind = SL_MAX(0, precision - 1 - exponent);
    if (exponent > 300 || exponent < -300) return false;
    /* the digits of the shortest text that reads as v, moved to where the point is */
    char all[64];
    int n = 0;
    for (const char *p = shortest; *p != 'e'; p++)
        if (*p != '.') all[n++] = *p;
    int at = 0;
    if (exponent < 0) d->text[at++] = '0';
    for (int i = 0; i <= exponent; i++) d->text[at++] = i < n ? all[i] : '0';
    d->whole = (sl_span){(const uint8_t *)d->text, (size_t)at};
    const int from = at;
    for (int i = 0; i < behind; i++) {
        const int k = exponent + 1 + i;
        d->text[at++] = k < 0 || k >= n ? '0' : all[k];
    }
    d->fraction = (sl_span){(const uint8_t *)d->text + from, (size_t)(at - from)};
    return true;
}

#define EXACT 9007199254740992.0 /* 2^53: doubles have all integers below it */

typedef struct bounds {
    double min, max;
    bool above, below; /* the bound itself is not allowed */
} bounds;

static sl_status take_bound(sl_json part, const char *key, double *out, bool *found, sl_err *err) {
    const sl_json v = sl_json_get(part, key);
    digits d;
    *found = v.value != NULL;
    if (!v.value) return SL_OK;
    if (!sl_json_as_f64(v, out)) return sl_json_fail(part, key, err, SL_ERR_FORMAT, "is no number");
    if (!digits_of(fabs(*out), &d))
        return sl_json_fail(part, key, err, SL_ERR_LIMIT, "has more than 300 digits (limit)");
    /* an integer that no double has: the next one inside the bound, so that less is allowed */
    const bool lower = key[2] == 'n' || !strcmp(key, "exclusiveMinimum");
    int64_t whole;
    if (!sl_json_as_i64(v, &whole)) return SL_OK;
    if (lower && (long double)*out < (long double)whole) *out = nextafter(*out, INFINITY);
    if (!lower && (long double)*out > (long double)whole) *out = nextafter(*out, -INFINITY);
    return SL_OK;
}

static void lower(bounds *b, double v, bool exclusive) {
    if (v > b->min || (v == b->min && exclusive)) b->above = exclusive;
    b->min = SL_MAX(b->min, v);
}

static void upper(bounds *b, double v, bool exclusive) {
    if (v < b->max || (v == b->max && exclusive)) b->below = exclusive;
    b->max = SL_MIN(b->max, v);
}

/* exclusiveMinimum as a number, or as draft 4 had it, a word about minimum. */
static sl_status number_part(sl_schema *s, sl_json part, bounds *b) {
    bool min, max, above = false, below = false, flag = false;
    double v;
    sl_status st = take_bound(part, "minimum", &v, &min, s->err);
    if (st == SL_OK && min) {
        (void)sl_json_as_bool(sl_json_get(part, "exclusiveMinimum"), &above);
        lower(b, v, above);
    }
    if (st == SL_OK) st = take_bound(part, "maximum", &v, &max, s->err);
    if (st == SL_OK && max) {
        (void)sl_json_as_bool(sl_json_get(part, "exclusiveMaximum"), &below);
        upper(b, v, below);
    }
    if (st == SL_OK && !sl_json_as_bool(sl_json_get(part, "exclusiveMinimum"), &flag)) {
        st = take_bound(part, "exclusiveMinimum", &v, &min, s->err);
        if (st == SL_OK && min) lower(b, v, true);
    }
    if (st == SL_OK && !sl_json_as_bool(sl_json_get(part, "exclusiveMaximum"), &flag)) {
        st = take_bound(part, "exclusiveMaximum", &v, &max, s->err);
        if (st == SL_OK && max) upper(b, v, true);
    }
    return st;
}

static sl_status multiple_of(sl_schema *s, sl_json part, const char *word, sl_rx *out) {
    const sl_json v = sl_json_get(part, word);
    double m;
    digits d;
    uint64_t n = 0;
    *out = SL_RX_ALL;
    if (!v.value) return SL_OK;
    if (!sl_json_as_f64(v, &m) || !(m > 0))
        return sl_json_fail(part, "multipleOf", s->err, SL_ERR_FORMAT, "is no number above 0");
    if (!digits_of(m, &d) || d.whole.len + d.fraction.len > 9)
        return sl_json_fail(part, "multipleOf", s->err, SL_ERR_LIMIT,
                            "has more than 9 digits (limit)");
    for (size_t i = 0; i < d.whole.len + d.fraction.len; i++)
        n = n * 10 + (uint64_t)(d.text[i] - '0');
    *out = sl_rx_multiple(s->g->rx, (uint32_t)n, (uint32_t)d.fraction.len);
    return SL_OK;
}

static sl_status multiple_part(sl_schema *s, sl_json part, sl_rx *out) {
    sl_rx no;
    sl_status st = multiple_of(s, part, "multipleOf", out);
    if (st != SL_OK || !sl_json_get(part, SL_WORD_NOT_MULTIPLE).value) return st;
    st = multiple_of(s, part, SL_WORD_NOT_MULTIPLE, &no);
    *out = sl_rx_and2(s->g->rx, *out, sl_rx_not(s->g->rx, no));
    return st;
}

static sl_rx bound(sl_rx_store *rx, sl_rx_order order, double v) {
    digits d;
    return digits_of(v, &d) ? sl_rx_compare(rx, order, d.whole, d.fraction) : SL_RX_NONE;
}

/* Numbers without sign from low to high. */
static sl_rx magnitude(sl_rx_store *rx, sl_rx plain, double low, bool above, double high,
                       bool below) {
    sl_rx e = plain;
    if (low > 0 || above) e = sl_rx_and2(rx, e, bound(rx, above ? SL_RX_GT : SL_RX_GE, low));
    if (high != INFINITY) e = sl_rx_and2(rx, e, bound(rx, below ? SL_RX_LT : SL_RX_LE, high));
    return e;
}

/* Numbers that must not be, without their sign: no[0] of those from 0 on, no[1] of those up to
 * it. */
static sl_status not_numbers(sl_schema *s, sl_json part, sl_rx no[2]) {
    const sl_json list = sl_json_get(part, SL_WORD_NOT_NUMBERS);
    sl_rx_store *rx = s->g->rx;
    for (size_t i = 0; i < sl_json_count(list); i++) {
        double v;
        digits d;
        if (!sl_json_as_f64(sl_json_at(list, i), &v)) continue;
        if (sl_json_kind_of(sl_json_at(list, i)) == SL_JSON_INT && fabs(v) >= EXACT)
            return sl_json_fail(part, "enum", s->err, SL_ERR_LIMIT,
                                "an integer of 2^53 or more must not be (limit)");
        if (!digits_of(fabs(v), &d))
            return sl_json_fail(part, "enum", s->err, SL_ERR_LIMIT,
                                "has more than 300 digits (limit)");
        const sl_rx same = sl_rx_and2(rx, sl_rx_compare(rx, SL_RX_GE, d.whole, d.fraction),
                                      sl_rx_compare(rx, SL_RX_LE, d.whole, d.fraction));
        if (v >= 0) no[0] = sl_rx_and2(rx, no[0], sl_rx_not(rx, same));
        if (v <= 0) no[1] = sl_rx_and2(rx, no[1], sl_rx_not(rx, same));
    }
    return SL_OK;
}

sl_status sl_schema_number(sl_schema *s, const sl_schema_way *way, sl_rx *out) {
    sl_rx_store *rx = s->g->rx;
    const bool whole = !(way->types & SL_TYPE_REAL);
    bounds b = {.min = -INFINITY, .max = INFINITY};
    sl_rx multiple = SL_RX_ALL, no[2] = {SL_RX_ALL, SL_RX_ALL}, e;
    sl_status st = SL_OK;
    for (uint32_t i = 0; i < way->parts.n && st == SL_OK; i++) {
        st = number_part(s, way->parts.v[i], &b);
        if (st == SL_OK) st = multiple_part(s, way->parts.v[i], &e);
        if (st == SL_OK) multiple = sl_rx_and2(rx, multiple, e);
        if (st == SL_OK) st = not_numbers(s, way->parts.v[i], no);
    }
    /* no integers: none is a multiple of 1 */
    if (!(way->types & SL_TYPE_INT))
        multiple = sl_rx_and2(rx, multiple, sl_rx_not(rx, sl_rx_multiple(rx, 1, 0)));
    *out = whole ? s->g->vocab->rx.integer : s->g->vocab->rx.number;
    if (st != SL_OK || (b.min == -INFINITY && b.max == INFINITY && multiple == SL_RX_ALL &&
                        no[0] == SL_RX_ALL && no[1] == SL_RX_ALL))
        return st;
    /* with conditions, numbers are written without an exponent */
    const sl_rx some = sl_rx_rep(rx, sl_rx_range(rx, '0', '9'), 1, SL_RX_MANY);
    const sl_rx more = sl_rx_rep(rx, sl_rx_range(rx, '0', '9'), 0, SL_RX_MANY);
    const sl_rx fraction = sl_rx_rep(rx, sl_rx_cat(rx, sl_rx_chars(rx, "."), some), 0, 1);
    sl_rx plain =
        sl_rx_or2(rx, sl_rx_chars(rx, "0"), sl_rx_cat(rx, sl_rx_range(rx, '1', '9'), more));
    if (!whole) plain = sl_rx_cat(rx, plain, fraction);
    plain = sl_rx_and2(rx, plain, multiple);
    sl_rx positive = SL_RX_NONE, negative = SL_RX_NONE;
    if (b.max >= 0)
        positive = magnitude(rx, sl_rx_and2(rx, plain, no[0]), SL_MAX(b.min, 0.0),
                             b.above && b.min >= 0, b.max, b.below);
    if (b.min < 0)
        negative = sl_rx_cat(rx, sl_rx_chars(rx, "-"),
                             magnitude(rx, sl_rx_and2(rx, plain, no[1]), SL_MAX(-b.max, 0.0),
                                       b.below && b.max <= 0, -b.min, b.above));
    *out = sl_rx_or2(rx, positive, negative);
    return sl_rx_status(rx, s->err);
}

static sl_rx number_text(sl_rx_store *rx, sl_json v) {
    double d = 0;
    int64_t i = 0;
    char text[420];
    digits digit;
    if (sl_json_as_i64(v, &i)) {
        snprintf(text, sizeof text, "%lld", (long long)i);
        return sl_rx_chars(rx, text);
    }
    (void)sl_json_as_f64(v, &d);
    if (digits_of(fabs(d), &digit)) {
        snprintf(text, sizeof text, "%s%.*s%s%.*s", d < 0 ? "-" : "", (int)digit.whole.len,
                 digit.whole.data, digit.fraction.len ? "." : "", (int)digit.fraction.len,
                 (const char *)digit.fraction.data);
    } else {
        snprintf(text, sizeof text, "%.17g", d);
    }
    return sl_rx_chars(rx, text);
}

static sl_rx value_text(sl_schema *s, sl_json v) {
    sl_rx_store *rx = s->g->rx;
    sl_span text = {0};
    bool b = false, first = true;
    void *iter = NULL;
    const char *key;
    sl_json child;
    sl_rx e;
    switch (sl_json_kind_of(v)) {
    case SL_JSON_BOOL:
        (void)sl_json_as_bool(v, &b);
        return sl_rx_chars(rx, b ? "true" : "false");
    case SL_JSON_INT:
    case SL_JSON_REAL:
        return number_text(rx, v);
    case SL_JSON_STRING:
        (void)sl_json_as_span(v, &text);
        return sl_schema_quoted(rx, sl_rx_json_text(rx, text));
    case SL_JSON_ARRAY:
        if (!sl_json_count(v))
            return sl_rx_cat(rx, sl_json_mark(s->g, "[", false, true), sl_rx_chars(rx, "]"));
        e = sl_json_mark(s->g, "]", true, false);
        for (size_t i = sl_json_count(v); i-- > 0;)
            e = sl_rx_cat(rx, sl_json_mark(s->g, i ? "," : "[", i > 0, true),
                          sl_rx_cat(rx, value_text(s, sl_json_at(v, i)), e));
        return e;
    case SL_JSON_OBJECT:
        e = sl_json_mark(s->g, "{", false, true);
        for (; sl_json_next(v, &iter, &key, &child); first = false) {
            const sl_span name = {(const uint8_t *)key, strlen(key)};
            if (!first) e = sl_rx_cat(rx, e, sl_json_mark(s->g, ",", true, true));
            e = sl_rx_cat(rx, e, sl_schema_quoted(rx, sl_rx_json_text(rx, name)));
            e = sl_rx_cat(rx, e, sl_json_mark(s->g, ":", true, true));
            e = sl_rx_cat(rx, e, value_text(s, child));
        }
        return sl_rx_cat(rx, e,
                         first ? sl_rx_chars(rx, "}") : sl_json_mark(s->g, "}", true, false));
    default:
        return sl_rx_chars(rx, "null");
    }
}

bool sl_schema_same(sl_json a, sl_json b) {
    double x, y;
    int64_t whole, other_whole;
    bool p, q;
    sl_span t, u;
    void *iter = NULL;
    const char *key;
    sl_json child;
    if (sl_json_as_i64(a, &whole) && sl_json_as_i64(b, &other_whole)) return whole == other_whole;
    if (sl_json_as_f64(a, &x)) return sl_json_as_f64(b, &y) && x == y;
    if (sl_json_kind_of(a) != sl_json_kind_of(b)) return false;
    switch (sl_json_kind_of(a)) {
    case SL_JSON_BOOL:
        return sl_json_as_bool(a, &p) && sl_json_as_bool(b, &q) && p == q;
    case SL_JSON_STRING:
        return sl_json_as_span(a, &t) && sl_json_as_span(b, &u) && t.len == u.len &&
               !memcmp(t.data, u.data, t.len);
    case SL_JSON_ARRAY:
        if (sl_json_count(a) != sl_json_count(b)) return false;
        for (size_t i = 0; i < sl_json_count(a); i++)
            if (!sl_schema_same(sl_json_at(a, i), sl_json_at(b, i))) return false;
        return true;
    case SL_JSON_OBJECT:
        if (sl_json_count(a) != sl_json_count(b)) return false;
        while (sl_json_next(a, &iter, &key, &child)) {
            const sl_json other = sl_json_get(b, key);
            if (!other.value || !sl_schema_same(child, other)) return false;
        }
        return true;
    default:
        return true;
    }
}

unsigned sl_schema_type_of(sl_json v) {
    double d = 0.5;
    switch (sl_json_kind_of(v)) {
    case SL_JSON_BOOL:
        return SL_TYPE_BOOL;
    case SL_JSON_INT:
        return SL_TYPE_INT;
    case SL_JSON_REAL:
        (void)sl_json_as_f64(v, &d);
        return d == floor(d) ? SL_TYPE_INT : SL_TYPE_REAL;
    case SL_JSON_STRING:
        return SL_TYPE_STRING;
    case SL_JSON_ARRAY:
        return SL_TYPE_ARRAY;
    case SL_JSON_OBJECT:
        return SL_TYPE_OBJECT;
    default:
        return SL_TYPE_NULL;
    }
}

uint32_t sl_schema_structured(sl_json schema, const char *key) {
    const sl_json v = sl_json_get(schema, key);
    const bool one = !strcmp(key, "const");
    uint32_t n = 0;
    for (size_t i = 0; i < (one ? 1 : sl_json_count(v)); i++)
        n += (sl_schema_type_of(one ? v : sl_json_at(v, i)) & SL_TYPE_STRUCTURED) != 0;
    return v.value ? n : 0;
}

/* Whether a value of the list `from` stands in every other enum and const, too. */
static bool in_all(const sl_schema_set *parts, sl_json from, sl_json v) {
    for (uint32_t i = 0; i < parts->n; i++) {
        const sl_json list = sl_json_get(parts->v[i], "enum"),
                      one = sl_json_get(parts->v[i], "const");
        bool found = !list.value || list.value == from.value;
        for (size_t k = 0; k < sl_json_count(list) && !found; k++)
            found = sl_schema_same(sl_json_at(list, k), v);
        if (!found || (one.value && !sl_schema_same(one, v))) return false;
    }
    return true;
}

/* Adds a listed value that satisfies the rest of the way. */
static sl_status add_listed(sl_schema *s, const sl_schema_way *way, sl_json from, sl_json v,
                            sl_rx string, sl_rx number, sl_rx_list *list) {
    const unsigned type = sl_schema_type_of(v);
    sl_rx_store *rx = s->g->rx;
    if (!(type & way->types) || !in_all(&way->parts, from, v)) return SL_OK;
    const char *word = NULL;
    const sl_json part = sl_schema_inside(&way->parts, SL_TYPE_STRUCTURED, &word);
    if (type & SL_TYPE_STRUCTURED && part.value)
        return sl_json_fail(part, strcmp(word, SL_WORD_SOME) ? word : NULL, s->err,
                            SL_ERR_UNSUPPORTED,
                            "is not enforced beside more than %u arrays and objects in enum or "
                            "const",
                            SL_SCHEMA_MAX_SPELLED);
    const sl_rx text = value_text(s, v);
    sl_rx rest = SL_RX_ALL;
    if (type == SL_TYPE_STRING) rest = string;
    if (type & (SL_TYPE_INT | SL_TYPE_REAL)) rest = number;
    if (rest == SL_RX_ALL || sl_rx_live(rx, sl_rx_and2(rx, text, rest)))
        sl_rx_list_add(rx, list, text);
    return SL_OK;
}

/* Of a way that spells out one listed array or object: whether the other lists do so, too. */
static sl_status spelled_in_all(sl_schema *s, const sl_schema_set *parts, bool *dead) {
    static const char *const keys[] = {"enum", "const"};
    for (uint32_t i = 0; i < parts->n; i++)
        for (size_t k = 0; k < SL_LEN(keys); k++) {
            if (!sl_json_get(parts->v[i], keys[k]).value) continue;
            const uint32_t n = sl_schema_structured(parts->v[i], keys[k]);
            *dead |= n == 0;
            if (n > SL_SCHEMA_MAX_SPELLED)
                return sl_json_fail(parts->v[i], keys[k], s->err, SL_ERR_LIMIT,
                                    "%u arrays and objects beside others, limit %u", n,
                                    SL_SCHEMA_MAX_SPELLED);
        }
    return SL_OK;
}

sl_status sl_schema_listed(sl_schema *s, const sl_schema_way *way, bool *listed, sl_rx *out) {
    sl_json values = {0}, one = {0};
    sl_rx string = SL_RX_ALL, number = SL_RX_ALL;
    sl_rx_list list = {0};
    sl_status st = SL_OK;
    *out = SL_RX_NONE;
    for (uint32_t i = 0; i < way->parts.n; i++) {
        const sl_json e = sl_json_get(way->parts.v[i], "enum"),
                      c = sl_json_get(way->parts.v[i], "const");
        if (e.value && sl_json_kind_of(e) != SL_JSON_ARRAY)
            return sl_json_fail(way->parts.v[i], "enum", s->err, SL_ERR_FORMAT, "is no list");
        if (sl_json_count(e) > SL_SCHEMA_MAX_ENUM && e.value)
            return sl_json_fail(way->parts.v[i], "enum", s->err, SL_ERR_LIMIT,
                                "%zu values, limit %u", sl_json_count(e), SL_SCHEMA_MAX_ENUM);
        if (e.value) values = e;
        if (c.value) one = c;
    }
    *listed = values.value || one.value;
    for (uint32_t i = 0; i < way->parts.n && *listed; i++)
        if (sl_json_get(way->parts.v[i], SL_WORD_SPELLED).value) {
            *listed = false;
            return spelled_in_all(s, &way->parts, listed);
        }
    if (!*listed) return SL_OK;
    if (way->types & SL_TYPE_STRING) st = sl_schema_string(s, &way->parts, &string);
    if (string == s->g->vocab->rx.string) string = SL_RX_ALL;
    if (st == SL_OK && (way->types & (SL_TYPE_INT | SL_TYPE_REAL))) {
        sl_schema_way any = *way;
        any.types |= SL_TYPE_REAL;
        st = sl_schema_number(s, &any, &number);
        if (number == s->g->vocab->rx.number) number = SL_RX_ALL;
    }
    const size_t n = one.value ? 1 : sl_json_count(values);
    for (size_t i = 0; i < n && st == SL_OK; i++)
        st = add_listed(s, way, one.value ? (sl_json){0} : values,
                        one.value ? one : sl_json_at(values, i), string, number, &list);
    *out = sl_rx_or_list(s->g->rx, &list);
    return st == SL_OK ? sl_rx_status(s->g->rx, s->err) : st;
}
