/* A context-free grammar as rules: each a net of states whose edges read a text (an expression over
 * bytes), call a rule, or read nothing. The end of a rule has no edges, so that a call in last
 * place needs no way back. Thread: owner. */
#ifndef SL_GRAMMAR_RULES_H
#define SL_GRAMMAR_RULES_H

#include "grammar/expr.h"

#define SL_RULES_MAX_STATES (1u << 20)
#define SL_RULES_MAX_LOOKS  (1u << 27) /* at states, to see which can end */

typedef enum sl_edge_kind { SL_EDGE_EMPTY, SL_EDGE_TEXT, SL_EDGE_CALL } sl_edge_kind;

typedef struct sl_edge {
    uint8_t kind;
    uint32_t arg; /* expression, or rule */
    uint32_t to;
    uint32_t next; /* edge of the same state, or 0 */
} sl_edge;

typedef struct sl_rule {
    uint32_t from, to; /* states */
} sl_rule;

/* Zero-initialise; free with sl_rules_free. Once bad (no memory, a limit) it stays so. */
typedef struct sl_rules {
    uint32_t *first; /* edge of a state, 0: none */
    bool *final;     /* the end of a rule */
    uint32_t n_states;
    size_t cap_first, cap_final;
    sl_edge *edges; /* edge 0 is none */
    uint32_t n_edges;
    size_t cap_edges;
    sl_rule *rules;
    uint32_t n_rules;
    size_t cap_rules;
    sl_status bad;
} sl_rules;

uint32_t sl_rules_state(sl_rules *r);
uint32_t sl_rules_rule(sl_rules *r); /* with its two states */
void sl_rules_edge(sl_rules *r, uint32_t from, sl_edge_kind kind, uint32_t arg, uint32_t to);
/* Drops edges from which no end can be reached, and states that only lead on. SL_ERR_UNSUPPORTED: a
 * rule that calls itself before any byte (*rule says which). SL_ERR_ARG: no text ends `root`. */
sl_status sl_rules_finish(sl_rules *r, sl_rx_store *s, uint32_t root, uint32_t *rule,
                          sl_err *err) SL_MUST_CHECK;
size_t sl_rules_memory(const sl_rules *r);
void sl_rules_free(sl_rules *r);

#endif
