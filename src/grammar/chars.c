/* Ranges of characters cut into sequences of UTF-8, and the escapes of JSON. */
#include "grammar/chars.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>

bool sl_chars_add(sl_chars *set, uint32_t from, uint32_t to) {
    if (set->n == set->cap) {
        const size_t cap = set->cap ? 2 * set->cap : 16;
        sl_char_range *v = sl_grow(set->v, set->cap, cap, sizeof *v);
        if (!v) return false;
        set->v = v;
        set->cap = cap;
    }
    set->v[set->n++] = (sl_char_range){from, to};
    return true;
}

void sl_chars_free(sl_chars *set) {
    sl_free(set->v);
    *set = (sl_chars){0};
}

static int by_first(const void *x, const void *y) {
    const sl_char_range *a = x, *b = y;
    return a->from < b->from ? -1 : a->from > b->from;
}

static size_t joined(sl_char_range *v, size_t n) {
    size_t out = 0;
    qsort(v, n, sizeof *v, by_first);
    for (size_t i = 0; i < n; i++) {
        if (out && v[i].from <= v[out - 1].to + 1)
            v[out - 1].to = SL_MAX(v[out - 1].to, v[i].to);
        else
            v[out++] = v[i];
    }
    return out;
}

bool sl_chars_settle(sl_chars *set, bool invert) {
    sl_chars out = {0};
    uint32_t next = 0;
    bool ok = true;
    set->n = set->n ? joined(set->v, set->n) : 0;
    for (size_t i = 0; ok && invert && i < set->n; i++) {
        if (set->v[i].from > next) ok = sl_chars_add(&out, next, set->v[i].from - 1);
        next = set->v[i].to + 1;
    }
    if (invert) {
        if (ok && next <= SL_CHAR_LAST) ok = sl_chars_add(&out, next, SL_CHAR_LAST);
        sl_chars_free(set);
        *set = out;
        out = (sl_chars){0};
    }
    for (size_t i = 0; ok && i < set->n; i++) { /* UTF-8 has no surrogates */
        const sl_char_range r = set->v[i];
        if (r.from < 0xd800) ok = sl_chars_add(&out, r.from, SL_MIN(r.to, 0xd7ffu));
        if (ok && r.to > 0xdfff) ok = sl_chars_add(&out, SL_MAX(r.from, 0xe000u), r.to);
    }
    sl_chars_free(set);
    *set = out;
    return ok;
}

static unsigned encode(uint32_t c, uint8_t out[4]) {
    if (c < 0x80) return out[0] = (uint8_t)c, 1;
    const unsigned n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (unsigned i = n; i-- > 1; c >>= 6) out[i] = (uint8_t)(0x80 | (c & 0x3f));
    out[0] = (uint8_t)((0xf00 >> n & 0xff) | c);
    return n;
}

/* from .. to have sequences of one length: cut so that all but one place are whole. */
static sl_rx same_length(sl_rx_store *s, uint32_t from, uint32_t to) {
    uint8_t a[4], b[4];
    const unsigned n = encode(from, a);
    (void)encode(to, b);
    for (unsigned i = 1; i < n; i++) {
        const uint32_t low = (1u << (6 * i)) - 1;
        if ((from & ~low) == (to & ~low)) break; /* alike up to here: places below are cut */
        if (from & low)
            return sl_rx_or2(s, same_length(s, from, from | low),
                             same_length(s, (from | low) + 1, to));
        if ((to & low) != low)
            return sl_rx_or2(s, same_length(s, from, (to & ~low) - 1),
                             same_length(s, to & ~low, to));
    }
    sl_rx e = SL_RX_EPS;
    for (unsigned i = n; i-- > 0;) e = sl_rx_cat(s, sl_rx_range(s, a[i], b[i]), e);
    return e;
}

static sl_rx utf8_range(sl_rx_store *s, uint32_t from, uint32_t to) {
    static const uint32_t last[] = {0x7f, 0x7ff, 0xffff, SL_CHAR_LAST};
    sl_rx e = SL_RX_NONE;
    for (unsigned i = 0; i < SL_LEN(last) && from <= to; i++) {
        if (from > last[i]) continue;
        e = sl_rx_or2(s, e, same_length(s, from, SL_MIN(to, last[i])));
        from = last[i] + 1;
    }
    return e;
}

static sl_rx hex_digit(sl_rx_store *s, unsigned from, unsigned to) {
    sl_bytes set = {{0}};
    for (unsigned d = from; d <= to; d++) {
        if (d < 10) sl_bytes_add(&set, '0' + d, '0' + d);
        if (d >= 10) sl_bytes_add(&set, 'a' + d - 10, 'a' + d - 10);
        if (d >= 10) sl_bytes_add(&set, 'A' + d - 10, 'A' + d - 10);
    }
    return sl_rx_bytes(s, &set);
}

static sl_rx cat_of(sl_rx_store *s, const sl_rx *v, size_t n) {
    sl_rx e = SL_RX_EPS;
    while (n > 0) e = sl_rx_cat(s, v[--n], e);
    return e;
}

/* A character below 0x100 as \u00XX. */
static sl_rx low_escape(sl_rx_store *s, uint32_t c) {
    return cat_of(s,
                  (sl_rx[]){sl_rx_chars(s, "\\u00"), hex_digit(s, c >> 4, c >> 4),
                            hex_digit(s, c & 15, c & 15)},
                  3);
}

/* Any character as \uXXXX, those beyond U+FFFF as a pair. */
static sl_rx any_escape(sl_rx_store *s) {
    const sl_rx hex = hex_digit(s, 0, 15), hex2 = sl_rx_rep(s, hex, 2, 2),
                hex3 = sl_rx_rep(s, hex, 3, 3), d = hex_digit(s, 13, 13);
    const sl_rx not_d = sl_rx_or2(s, hex_digit(s, 0, 12), hex_digit(s, 14, 15));
    const sl_rx plain = sl_rx_or2(s, sl_rx_cat(s, not_d, hex3),
                                  cat_of(s, (sl_rx[]){d, hex_digit(s, 0, 7), hex2}, 3));
    const sl_rx pair = cat_of(s,
                              (sl_rx[]){d, hex_digit(s, 8, 11), hex2, sl_rx_chars(s, "\\u"), d,
                                        hex_digit(s, 12, 15), hex2},
                              7);
    return sl_rx_cat(s, sl_rx_chars(s, "u"), sl_rx_or2(s, plain, pair));
}

static char short_escape(uint32_t c) {
    switch (c) {
    case '"':
    case '\\':
        return (char)c;
    case '\b':
        return 'b';
    case '\f':
        return 'f';
    case '\n':
        return 'n';
    case '\r':
        return 'r';
    case '\t':
        return 't';
    default:
        return 0;
    }
}

static bool must_escape(uint32_t c) {
    return c < 0x20 || c == '"' || c == '\\';
}

static sl_rx escaped(sl_rx_store *s, uint32_t c) {
    const char text[3] = {'\\', short_escape(c), 0};
    return text[1] ? sl_rx_chars(s, text) : low_escape(s, c);
}

static bool is_everything(const sl_chars *set) {
    return set->n == 2 && set->v[0].from == 0 && set->v[0].to == 0xd7ff &&
           set->v[1].from == 0xe000 && set->v[1].to == SL_CHAR_LAST;
}

static sl_rx any_json_char(sl_rx_store *s) {
    sl_bytes plain = {{0}}, simple = {{0}};
    sl_bytes_add(&plain, 0x20, 0x7f);
    plain.w['"' >> 6] &= ~((uint64_t)1 << ('"' & 63));
    plain.w['\\' >> 6] &= ~((uint64_t)1 << ('\\' & 63));
    for (const char *p = "\"\\/bfnrt"; *p; p++) sl_bytes_add(&simple, (uint8_t)*p, (uint8_t)*p);
    const sl_rx escape = sl_rx_or2(s, sl_rx_bytes(s, &simple), any_escape(s));
    const sl_rx wide =
        sl_rx_or2(s, utf8_range(s, 0x80, 0xd7ff), utf8_range(s, 0xe000, SL_CHAR_LAST));
    return sl_rx_or(
        s, (sl_rx[]){sl_rx_bytes(s, &plain), wide, sl_rx_cat(s, sl_rx_chars(s, "\\"), escape)}, 3);
}

sl_rx sl_rx_char_of(sl_rx_store *s, const sl_chars *set, sl_alphabet alphabet) {
    sl_rx_list list = {0};
    sl_bytes low = {{0}};
    if (alphabet == SL_ALPHABET_JSON && is_everything(set)) return any_json_char(s);
    for (size_t i = 0; i < set->n; i++) {
        const sl_char_range r = set->v[i];
        for (uint32_t c = r.from; c <= r.to && c < 0x80; c++) {
            if (alphabet != SL_ALPHABET_RAW && must_escape(c))
                sl_rx_list_add(s, &list, escaped(s, c));
            else
                sl_bytes_add(&low, c, c);
        }
        if (r.to >= 0x80) sl_rx_list_add(s, &list, utf8_range(s, SL_MAX(r.from, 0x80u), r.to));
    }
    sl_rx_list_add(s, &list, sl_rx_bytes(s, &low));
    return sl_rx_or_list(s, &list);
}

sl_rx sl_rx_any_char(sl_rx_store *s, sl_alphabet alphabet) {
    sl_char_range all[] = {{0, 0xd7ff}, {0xe000, SL_CHAR_LAST}};
    return sl_rx_char_of(s, &(sl_chars){.v = all, .n = 2}, alphabet);
}

sl_rx sl_rx_json_text(sl_rx_store *s, sl_span utf8) {
    sl_rx e = SL_RX_EPS;
    for (size_t i = utf8.len; i-- > 0;) {
        const uint8_t c = utf8.data[i];
        e = sl_rx_cat(s, must_escape(c) ? escaped(s, c) : sl_rx_range(s, c, c), e);
    }
    return e;
}

sl_rx sl_rx_json_string(sl_rx_store *s) {
    const sl_rx chars = sl_rx_rep(s, any_json_char(s), 0, SL_RX_MANY), quote = sl_rx_chars(s, "\"");
    return cat_of(s, (sl_rx[]){quote, chars, quote}, 3);
}

sl_rx sl_rx_json_integer(sl_rx_store *s) {
    const sl_rx digits = sl_rx_rep(s, sl_rx_range(s, '0', '9'), 0, SL_RX_MANY);
    const sl_rx whole =
        sl_rx_or2(s, sl_rx_chars(s, "0"), sl_rx_cat(s, sl_rx_range(s, '1', '9'), digits));
    return sl_rx_cat(s, sl_rx_rep(s, sl_rx_chars(s, "-"), 0, 1), whole);
}

sl_rx sl_rx_json_number(sl_rx_store *s) {
    const sl_rx digits = sl_rx_rep(s, sl_rx_range(s, '0', '9'), 1, SL_RX_MANY);
    const sl_rx fraction = sl_rx_rep(s, sl_rx_cat(s, sl_rx_chars(s, "."), digits), 0, 1);
    sl_bytes e = {{0}}, sign = {{0}};
    sl_bytes_add(&e, 'e', 'e');
    sl_bytes_add(&e, 'E', 'E');
    sl_bytes_add(&sign, '+', '+');
    sl_bytes_add(&sign, '-', '-');
    const sl_rx exponent = cat_of(
        s, (sl_rx[]){sl_rx_bytes(s, &e), sl_rx_rep(s, sl_rx_bytes(s, &sign), 0, 1), digits}, 3);
    return cat_of(s, (sl_rx[]){sl_rx_json_integer(s), fraction, sl_rx_rep(s, exponent, 0, 1)}, 3);
}
