/* The name of what is in a full KV page: a hash of all tokens of its request up to the page's end,
 * and of everything else that its rows depend on, whose they are too (sched/pages.h makes it).
 * Public, because it travels with pages. */
#ifndef SL_SPEC_PAGE_KEY_H
#define SL_SPEC_PAGE_KEY_H

#include <stdbool.h>
#include <stdint.h>

/* 128 bits; zero: none. */
typedef struct sl_page_key {
    uint64_t word[2];
} sl_page_key;

static inline bool sl_page_key_is(sl_page_key a, sl_page_key b) {
    return a.word[0] == b.word[0] && a.word[1] == b.word[1];
}

static inline bool sl_page_key_none(sl_page_key k) {
    return k.word[0] == 0 && k.word[1] == 0;
}

#endif
