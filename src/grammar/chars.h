/* Characters of Unicode as expressions over bytes: raw UTF-8, and as they stand in JSON strings.
 * Thread: owner of the store. */
#ifndef SL_GRAMMAR_CHARS_H
#define SL_GRAMMAR_CHARS_H

#include "grammar/expr.h"

#define SL_CHAR_LAST 0x10ffffu

typedef struct sl_char_range {
    uint32_t from, to;
} sl_char_range;

/* A set of characters. Zero-initialise; free with sl_chars_free. */
typedef struct sl_chars {
    sl_char_range *v;
    size_t n, cap;
} sl_chars;

bool sl_chars_add(sl_chars *set, uint32_t from, uint32_t to); /* false: no memory */
/* Sorted, disjoint, without surrogates; `invert`: all others instead. */
bool sl_chars_settle(sl_chars *set, bool invert);
void sl_chars_free(sl_chars *set);

/* How characters are written. */
typedef enum sl_alphabet {
    SL_ALPHABET_RAW,  /* UTF-8 */
    SL_ALPHABET_JSON, /* inside a JSON string: what must be escaped is, in its shortest form; every
                         character may be a \u escape where all characters are meant */
    SL_ALPHABET_KEY,  /* the same, each character in one form alone but for the case of digits */
} sl_alphabet;

/* One character of a settled set. */
sl_rx sl_rx_char_of(sl_rx_store *s, const sl_chars *set, sl_alphabet alphabet);
sl_rx sl_rx_any_char(sl_rx_store *s, sl_alphabet alphabet);
/* A text as the content of a JSON string, each character in one form. */
sl_rx sl_rx_json_text(sl_rx_store *s, sl_span utf8);
/* JSON's own: a string, a number without bounds. */
sl_rx sl_rx_json_string(sl_rx_store *s);
sl_rx sl_rx_json_number(sl_rx_store *s);
sl_rx sl_rx_json_integer(sl_rx_store *s);
/* Bytes that stand for themselves in a JSON string, of any character. */
sl_bytes sl_json_plain_bytes(void);

#endif
