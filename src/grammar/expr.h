/* Regular expressions over bytes as values: interned, with derivatives (Brzozowski, 1964), so that
 * an automaton is built state by state as it is walked. An expression is a number; equal ones have
 * one number. Intersection and complement are expressions like any other, counted repetition is not
 * unfolded, and conditions on numbers are leaves that step by digit.
 *
 * A store that ran out of memory or into a limit stays bad: every call then yields SL_RX_NONE, and
 * sl_rx_status says why. Thread: owner. */
#ifndef SL_GRAMMAR_EXPR_H
#define SL_GRAMMAR_EXPR_H

#include "base/span.h"
#include "base/status.h"

typedef uint32_t sl_rx;

#define SL_RX_NONE 0u         /* matches nothing */
#define SL_RX_EPS  1u         /* matches the empty text */
#define SL_RX_ALL  2u         /* matches every text of bytes */
#define SL_RX_MANY UINT32_MAX /* repetition without an upper bound */

#define SL_RX_MAX_NODES     (1u << 20) /* expressions of one store */
#define SL_RX_MAX_ITEMS     (1u << 22) /* operands in lists, targets of transitions */
#define SL_RX_MAX_DEPTH     2000u      /* operators inside one another */
#define SL_RX_STEPS_COMPILE (1u << 25) /* of compiling a description, about a second */
#define SL_RX_STEPS_TOKEN   (1u << 22) /* of one token */
#define SL_RX_MAX_SEARCH    (1u << 16) /* states looked at to see whether one can end */

typedef struct sl_bytes {
    uint64_t w[4]; /* bit b: the byte b */
} sl_bytes;

static inline bool sl_bytes_has(const sl_bytes *s, uint8_t b) {
    return s->w[b >> 6] >> (b & 63) & 1;
}
static inline void sl_bytes_add(sl_bytes *s, unsigned from, unsigned to) {
    for (unsigned b = from; b <= to; b++) s->w[b >> 6] |= (uint64_t)1 << (b & 63);
}

typedef enum sl_rx_kind {
    SL_RX_K_NONE,
    SL_RX_K_EPS,
    SL_RX_K_BYTES, /* a: set */
    SL_RX_K_CAT,   /* a, then b; a is no CAT */
    SL_RX_K_OR,    /* b items from a */
    SL_RX_K_AND,   /* b items from a */
    SL_RX_K_NOT,   /* not a */
    SL_RX_K_REP,   /* a, b to c times */
    SL_RX_K_MULT,  /* a: condition, b: remainder, c: digits of the fraction so far + 1, 0 before */
    SL_RX_K_CMP,   /* a: condition, b: digits so far, c: order so far, in the fraction */
} sl_rx_kind;

typedef struct sl_rx_node {
    uint8_t kind;
    bool nullable;
    bool fancy; /* holds AND, NOT or a condition: it may match nothing without being NONE */
    uint32_t a, b, c;
} sl_rx_node;

/* Transitions of a state: to[cls[byte]]. */
typedef struct sl_rx_row {
    const uint8_t *cls;
    const sl_rx *to;
    uint32_t n; /* classes */
} sl_rx_row;

typedef struct sl_rx_store sl_rx_store;

sl_status sl_rx_create(sl_rx_store **out, sl_err *err) SL_MUST_CHECK;
/* A copy whose expressions have the same numbers. */
sl_status sl_rx_clone(const sl_rx_store *from, sl_rx_store **out, sl_err *err) SL_MUST_CHECK;
void sl_rx_free(sl_rx_store *s); /* NULL-safe */
/* SL_OK, or why the store is bad, in err. */
sl_status sl_rx_status(const sl_rx_store *s, sl_err *err) SL_MUST_CHECK;
size_t sl_rx_memory(const sl_rx_store *s);
/* From here on at most so many steps (derivatives, operands) are made: the bound on one call's
 * time. */
void sl_rx_allow(sl_rx_store *s, uint64_t steps);

sl_rx sl_rx_bytes(sl_rx_store *s, const sl_bytes *set);
sl_rx sl_rx_range(sl_rx_store *s, unsigned from, unsigned to);
sl_rx sl_rx_text(sl_rx_store *s, sl_span text);
sl_rx sl_rx_chars(sl_rx_store *s, const char *text);
sl_rx sl_rx_cat(sl_rx_store *s, sl_rx a, sl_rx b);
sl_rx sl_rx_or(sl_rx_store *s, const sl_rx *list, size_t n);
sl_rx sl_rx_or2(sl_rx_store *s, sl_rx a, sl_rx b);
sl_rx sl_rx_and2(sl_rx_store *s, sl_rx a, sl_rx b);
sl_rx sl_rx_not(sl_rx_store *s, sl_rx a);
sl_rx sl_rx_rep(sl_rx_store *s, sl_rx a, uint32_t min, uint32_t max);
/* A list that is made item by item. Zero-initialise; sl_rx_or_list frees it. */
typedef struct sl_rx_list {
    sl_rx *v;
    size_t n, cap;
} sl_rx_list;
void sl_rx_list_add(sl_rx_store *s, sl_rx_list *list, sl_rx e);
sl_rx sl_rx_or_list(sl_rx_store *s, sl_rx_list *list);
/* One of n texts; sorts the list. */
sl_rx sl_rx_one_of(sl_rx_store *s, sl_span *texts, size_t n);

/* A decimal without sign or exponent that is a multiple of m / 10^decimals. */
sl_rx sl_rx_multiple(sl_rx_store *s, uint32_t m, uint32_t decimals);
typedef enum sl_rx_order { SL_RX_GE, SL_RX_GT, SL_RX_LE, SL_RX_LT } sl_rx_order;
/* A decimal without sign, exponent or leading zeros, in that order to a bound whose digits before
 * and behind the point are given. */
sl_rx sl_rx_compare(sl_rx_store *s, sl_rx_order order, sl_span whole, sl_span fraction);

const sl_rx_node *sl_rx_at(const sl_rx_store *s, sl_rx e); /* borrowed until the next expression */
static inline bool sl_rx_kind_is(const sl_rx_store *s, sl_rx e, sl_rx_kind kind) {
    return sl_rx_at(s, e)->kind == kind;
}
bool sl_rx_nullable(const sl_rx_store *s, sl_rx e);
/* Whether e matches any text at all. */
bool sl_rx_live(sl_rx_store *s, sl_rx e);
/* Where each byte leads; SL_RX_NONE where no text goes on. Arrays last as long as the store. */
sl_rx_row sl_rx_row_of(sl_rx_store *s, sl_rx e);
/* e with counts above `most` lowered to it. */
sl_rx sl_rx_clamp(sl_rx_store *s, sl_rx e, uint32_t most);

/* Used by derivatives alone (conditions.c). */
typedef struct sl_rx_condition {
    bool compare;
    uint32_t m, decimals; /* of a multiple */
    sl_rx_order order;
    uint32_t n_whole, n_fraction;
    uint8_t digits[]; /* of whole, then fraction */
} sl_rx_condition;
bool sl_rx_condition_ends(const sl_rx_condition *c, const sl_rx_node *node);
/* The state behind `byte`; false: none. */
bool sl_rx_condition_step(const sl_rx_condition *c, const sl_rx_node *node, uint8_t byte,
                          sl_rx_node *out);

#endif
