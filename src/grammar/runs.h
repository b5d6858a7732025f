/* Whole subtrees of plain tokens decided at once: whether every text of given characters, up to a
 * length, goes on from a state. Most states of patterns take a set of characters again and again.
 * Thread: owner of the store. */
#ifndef SL_GRAMMAR_RUNS_H
#define SL_GRAMMAR_RUNS_H

#include "grammar/expr.h"

/* Plain characters: bit b the ASCII character b; bit 0, which is no plain one, all others. */
typedef struct sl_plain_set {
    uint64_t w[2];
} sl_plain_set;

static inline void sl_plain_add(sl_plain_set *s, unsigned b) {
    s->w[b >> 6 & 1] |= (uint64_t)1 << (b & 63);
}

/* Where a state goes by most of its plain characters, and by which. */
typedef struct sl_run {
    sl_rx state, next;
    sl_plain_set takes;
    bool asked; /* about characters beyond ASCII */
} sl_run;

/* What was found out last. Zero-initialise and set `s`. */
typedef struct sl_runs {
    sl_rx_store *s;
    sl_run known[128];
} sl_runs;

/* Whether all texts of at most `most` of the characters go on; false: not known. */
bool sl_runs_take(sl_runs *r, sl_rx state, sl_plain_set chars, uint32_t most);

#endif
