/* Strings with provenance, and text being written. */
#include "jinja/jinja_int.h"

#include "base/utf8.h"

#include <utf8proc.h>

void sl_jout_put(sl_jrun *r, sl_jout *o, const char *p, size_t n, bool user) {
    if (n == 0 || !sl_jrun_charge(r, n)) return;
    if (n > o->cap - o->n) {
        size_t cap = SL_MAX(o->cap ? 2 * o->cap : 64, o->n + n);
        char *fresh = sl_jrun_take(r, cap, 1);
        if (!fresh) return;
        if (o->n) memcpy(fresh, o->p, o->n);
        o->p = fresh;
        o->cap = cap;
    }
    if (o->n == 0) o->user = user;
    if ((o->mark || user != o->user) && o->mark_cap < o->cap) {
        uint8_t *fresh = sl_jrun_take(r, o->cap, 1);
        if (!fresh) return;
        if (o->mark)
            memcpy(fresh, o->mark, o->n);
        else
            memset(fresh, o->user, o->n);
        o->mark = fresh;
        o->mark_cap = o->cap;
    }
    memcpy(o->p + o->n, p, n);
    if (o->mark) memset(o->mark + o->n, user, n);
    o->n += n;
}

void sl_jout_str(sl_jrun *r, sl_jout *o, const sl_jstr *s) {
    for (size_t i = 0, k; i < s->n; i = k) {
        bool user = sl_jstr_user_at(s, i);
        for (k = s->mark ? i + 1 : s->n; k < s->n && (s->mark[k] != 0) == user; k++) {
        }
        sl_jout_put(r, o, s->p + i, k - i, user);
    }
}

sl_jv sl_jout_value(sl_jrun *r, sl_jout *o) {
    sl_jstr *s = sl_jrun_take(r, 1, sizeof *s);
    if (!s) return sl_jv_undefined(NULL);
    *s = (sl_jstr){.p = o->p ? o->p : "", .n = o->n, .mark = o->mark, .user = o->user};
    return (sl_jv){.kind = SL_JV_STRING, .as.s = s};
}

sl_jv sl_jv_text(sl_jrun *r, sl_span text, bool user) {
    sl_jstr *s = sl_jrun_take(r, 1, sizeof *s);
    if (!s) return sl_jv_undefined(NULL);
    *s = (sl_jstr){.p = text.len ? (const char *)text.data : "", .n = text.len, .user = user};
    return (sl_jv){.kind = SL_JV_STRING, .as.s = s};
}

sl_jv sl_jstr_literal(sl_jrun *r, const char *text) {
    return sl_jv_text(r, (sl_span){(const uint8_t *)text, strlen(text)}, false);
}

sl_jv sl_jstr_slice(sl_jrun *r, const sl_jstr *s, size_t from, size_t to) {
    sl_jstr *part = sl_jrun_take(r, 1, sizeof *part);
    if (!part) return sl_jv_undefined(NULL);
    *part = (sl_jstr){
        .p = s->p + from, .n = to - from, .mark = s->mark ? s->mark + from : NULL, .user = s->user};
    return (sl_jv){.kind = SL_JV_STRING, .as.s = part};
}

sl_jv sl_jstr_concat(sl_jrun *r, const sl_jv *v, size_t n) {
    size_t bytes = 0;
    sl_jout o = {0};
    for (size_t i = 0; i < n; i++) bytes += v[i].as.s->n;
    o.p = bytes ? sl_jrun_take(r, bytes, 1) : NULL;
    o.cap = o.p ? bytes : 0;
    for (size_t i = 0; i < n; i++) sl_jout_str(r, &o, v[i].as.s);
    return sl_jout_value(r, &o);
}

bool sl_jstr_user_at(const sl_jstr *s, size_t i) {
    return s->mark ? s->mark[i] != 0 : s->user;
}

bool sl_jstr_is(const sl_jstr *s, const char *text) {
    size_t n = strlen(text);
    return s->n == n && memcmp(s->p, text, n) == 0;
}

/* The order of UTF-8's bytes is that of its characters. */
int sl_jstr_compare(const sl_jstr *a, const sl_jstr *b) {
    int d = memcmp(a->p, b->p, SL_MIN(a->n, b->n));
    return d ? d : (a->n > b->n) - (a->n < b->n);
}

static bool begins_char(char c) {
    return ((uint8_t)c & 0xC0) != 0x80;
}

size_t sl_jstr_length(sl_jrun *r, const sl_jstr *s) {
    size_t n = 0;
    if (!sl_jrun_charge(r, s->n)) return 0;
    for (size_t i = 0; i < s->n; i++) n += begins_char(s->p[i]);
    return n;
}

size_t sl_jstr_offset(const sl_jstr *s, size_t chars) {
    size_t i = 0;
    for (; i < s->n; i++)
        if (begins_char(s->p[i]) && chars-- == 0) break;
    return i;
}

size_t sl_jstr_find(const sl_jstr *s, size_t from, const sl_jstr *what) {
    if (from > s->n) return s->n;
    const char *p = what->n ? memmem(s->p + from, s->n - from, what->p, what->n) : s->p + from;
    return p ? (size_t)(p - s->p) : s->n;
}

size_t sl_jspace(const char *p, size_t n) {
    static const char *const wide[] = {"\xC2\x85", "\u00a0", "\u1680", "\u2000", "\u2001",
                                       "\u2002",   "\u2003", "\u2004", "\u2005", "\u2006",
                                       "\u2007",   "\u2008", "\u2009", "\u200a", "\u2028",
                                       "\u2029",   "\u202f", "\u205f", "\u3000"};
    uint8_t c = n ? (uint8_t)*p : 0;
    if ((c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20)) return 1;
    for (size_t i = 0; c >= 0x80 && i < SL_LEN(wide); i++)
        if (strlen(wide[i]) <= n && memcmp(p, wide[i], strlen(wide[i])) == 0)
            return strlen(wide[i]);
    return 0;
}

/* Bytes to strip at p[0..n), which is one character. */
static bool strips(const char *p, size_t n, const sl_jv *chars) {
    if (chars->kind != SL_JV_STRING) return sl_jspace(p, n) == n;
    const sl_jstr *c = chars->as.s;
    for (size_t i = 0, k; i < c->n; i += k) {
        k = SL_MAX(sl_utf8_sequence(c->p + i, c->n - i), (size_t)1);
        if (k == n && memcmp(c->p + i, p, n) == 0) return true;
    }
    return false;
}

sl_jv sl_jstr_strip(sl_jrun *r, const sl_jstr *s, const sl_jv *chars, bool left, bool right) {
    size_t from = 0, to = s->n, k;
    size_t each = chars->kind == SL_JV_STRING ? chars->as.s->n : 0;
    while (left && from < to && sl_jrun_charge(r, each)) {
        k = SL_MAX(sl_utf8_sequence(s->p + from, to - from), (size_t)1);
        if (!strips(s->p + from, k, chars)) break;
        from += k;
    }
    while (right && to > from && sl_jrun_charge(r, each)) {
        for (k = 1; k < to - from && !begins_char(s->p[to - k]); k++) {
        }
        if (!strips(s->p + to - k, k, chars)) break;
        to -= k;
    }
    return sl_jstr_slice(r, s, from, to);
}

static bool has_case(utf8proc_int32_t c) {
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

/* One character in another case; the sharp s is the one common letter that becomes two. */
static size_t map_char(utf8proc_int32_t c, sl_jcase to, bool first, uint8_t out[8]) {
    bool up = to == SL_JCASE_UPPER || (first && to != SL_JCASE_LOWER);
    if (c == 0xDF && up) {
        out[0] = 'S';
        out[1] = to == SL_JCASE_UPPER ? 'S' : 's';
        return 2;
    }
    if (!up)
        c = utf8proc_tolower(c);
    else
        c = to == SL_JCASE_UPPER ? utf8proc_toupper(c) : utf8proc_totitle(c);
    return (size_t)utf8proc_encode_char(c, out);
}

sl_jv sl_jstr_case(sl_jrun *r, const sl_jstr *s, sl_jcase to) {
    sl_jout o = {0};
    bool first = true;
    for (size_t i = 0, k; i < s->n && r->st == SL_OK; i += k) {
        uint8_t out[8];
        utf8proc_int32_t c = 0;
        k = SL_MAX(sl_utf8_sequence(s->p + i, s->n - i), (size_t)1);
        utf8proc_iterate((const uint8_t *)s->p + i, (utf8proc_ssize_t)k, &c);
        size_t n = map_char(c, to, first, out);
        sl_jout_put(r, &o, (char *)out, n, sl_jstr_user_at(s, i));
        first = to == SL_JCASE_TITLE && !has_case(c);
    }
    return sl_jout_value(r, &o);
}

sl_jv sl_jstr_replace(sl_jrun *r, const sl_jstr *s, const sl_jstr *old, const sl_jstr *by,
                      int64_t count) {
    sl_jout o = {0};
    size_t at = 0;
    while (count != 0 && r->st == SL_OK) {
        size_t next = sl_jstr_find(s, at, old), skip = old->n;
        if (next + old->n > s->n || (next == s->n && old->n)) break;
        sl_jv before = sl_jstr_slice(r, s, at, next);
        if (r->st != SL_OK) break;
        sl_jout_str(r, &o, before.as.s);
        sl_jout_str(r, &o, by);
        at = next + skip;
        count -= count > 0;
        if (old->n) continue;
        if (at == s->n) break; /* between all characters, and at the end */
        skip = SL_MAX(sl_utf8_sequence(s->p + at, s->n - at), (size_t)1);
        before = sl_jstr_slice(r, s, at, at + skip);
        if (r->st == SL_OK) sl_jout_str(r, &o, before.as.s);
        at += skip;
    }
    sl_jv rest = sl_jstr_slice(r, s, at, s->n);
    if (r->st == SL_OK) sl_jout_str(r, &o, rest.as.s);
    return sl_jout_value(r, &o);
}
