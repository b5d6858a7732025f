/* Characters: UTF-8, classes, normal forms, bytes as printable characters. */
#include "text/tokenizer_int.h"

#include <stdlib.h>
#include <utf8proc.h>

size_t sl_utf8_valid_prefix(sl_span s) {
    size_t i = 0;
    while (i < s.len) {
        utf8proc_int32_t c;
        if (s.data[i] < 0x80) {
            i++;
            continue;
        }
        utf8proc_ssize_t n = utf8proc_iterate(s.data + i, (utf8proc_ssize_t)(s.len - i), &c);
        if (n <= 0) return i;
        i += (size_t)n;
    }
    return i;
}

int32_t sl_utf8_at(sl_span text, size_t at, size_t *end) {
    if (at >= text.len) return -1;
    utf8proc_int32_t c;
    utf8proc_ssize_t n = utf8proc_iterate(text.data + at, (utf8proc_ssize_t)(text.len - at), &c);
    if (n <= 0) return -1;
    *end = at + (size_t)n;
    return c;
}

int32_t sl_utf8_before(sl_span text, size_t at, size_t *start) {
    if (at == 0) return -1;
    size_t from = at - 1, end;
    while (from > 0 && (text.data[from] & 0xC0) == 0x80) from--;
    *start = from;
    return sl_utf8_at(text, from, &end);
}

/* Property White_Space. */
bool sl_unicode_is_space(int32_t c) {
    if (c < 0) return false;
    if ((c >= 9 && c <= 13) || c == 0x85) return true;
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_ZS || k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
}

/* UTS 18 word characters: alphabetic, marks, decimal digits, connectors, joiners. The ranges are
 * the symbols with property Other_Alphabetic (circled and squared letters). */
bool sl_unicode_is_word(int32_t c) {
    if (c < 0) return false;
    if (c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
        (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
        (c >= 0x1F170 && c <= 0x1F189))
        return true;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}

static sl_status check_marks(sl_span text, bool *ascii, sl_err *err) {
    size_t marks = 0;
    *ascii = true;
    for (size_t i = 0, end; i < text.len; i = end) {
        end = i + 1;
        if (text.data[i] < 0x80) {
            marks = 0;
            continue;
        }
        *ascii = false;
        int32_t c = sl_utf8_at(text, i, &end);
        marks = c >= 0 && utf8proc_get_property(c)->combining_class ? marks + 1 : 0;
        if (marks > SL_TOK_MAX_MARKS)
            return sl_fail(err, SL_ERR_LIMIT, "text: over %u combining marks in a row at byte %zu",
                           SL_TOK_MAX_MARKS, i);
    }
    return SL_OK;
}

sl_status sl_unicode_nfc(sl_span text, bool *changed, sl_span *out, sl_err *err) {
    bool ascii;
    *changed = false;
    sl_status st = check_marks(text, &ascii, err);
    if (st != SL_OK || ascii) return st;
    utf8proc_uint8_t *nfc = NULL;
    utf8proc_ssize_t n = utf8proc_map(text.data, (utf8proc_ssize_t)text.len, &nfc,
                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n < 0)
        return sl_fail(err, n == UTF8PROC_ERROR_NOMEM ? SL_ERR_NOMEM : SL_ERR_FORMAT, "text: %s",
                       utf8proc_errmsg(n));
    if ((size_t)n == text.len && memcmp(nfc, text.data, text.len) == 0) {
        free(nfc);
        return SL_OK;
    }
    *changed = true;
    *out = (sl_span){nfc, (size_t)n};
    return SL_OK;
}

/* Bytes that are printable in Latin-1 stand for themselves; the others, in order, are 256, 257, ...
 */
static bool stands_for_itself(int32_t b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
}

int32_t sl_byte_level_char(uint8_t byte) {
    if (stands_for_itself(byte)) return byte;
    int32_t c = 256;
    for (int32_t b = 0; b < byte; b++) c += !stands_for_itself(b);
    return c;
}

static int32_t byte_of_char(int32_t c) {
    if (c < 256) return stands_for_itself(c) ? c : -1;
    int32_t nth = c - 256;
    /* the 68 bytes that do not stand for themselves: 0..32, 127..160, 173 */
    if (nth <= 32) return nth;
    if (nth <= 66) return nth - 33 + 127;
    return nth == 67 ? 173 : -1;
}

bool sl_byte_level_bytes(sl_span s, uint8_t *out, size_t *out_len) {
    size_t n = 0;
    for (size_t i = 0, end = 0; i < s.len; i = end) {
        int32_t c = sl_utf8_at(s, i, &end);
        int32_t b = c < 0 ? -1 : byte_of_char(c);
        if (b < 0) return false;
        out[n++] = (uint8_t)b;
    }
    *out_len = n;
    return true;
}
