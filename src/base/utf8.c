/* The length of one UTF-8 sequence, or that it is none. */
#include "base/utf8.h"

#include <stdbool.h>
#include <stdint.h>

static bool continues(const char *s, size_t first, size_t last) {
    for (size_t i = first; i <= last; i++)
        if (((uint8_t)s[i] & 0xC0) != 0x80) return false;
    return true;
}

size_t sl_utf8_sequence(const char *s, size_t n) {
    if (n == 0) return 0;
    uint8_t a = (uint8_t)s[0], b = n > 1 ? (uint8_t)s[1] : 0;
    if (a < 0x80) return 1;
    if (a >= 0xC2 && a <= 0xDF) return n >= 2 && continues(s, 1, 1) ? 2 : 0;
    if (a >= 0xE0 && a <= 0xEF) {
        if (n < 3 || !continues(s, 1, 2)) return 0;
        if (a == 0xE0 && b < 0xA0) return 0; /* overlong */
        if (a == 0xED && b > 0x9F) return 0; /* surrogates */
        return 3;
    }
    if (a >= 0xF0 && a <= 0xF4) {
        if (n < 4 || !continues(s, 1, 3)) return 0;
        if (a == 0xF0 && b < 0x90) return 0; /* overlong */
        if (a == 0xF4 && b > 0x8F) return 0; /* above U+10FFFF */
        return 4;
    }
    return 0;
}
