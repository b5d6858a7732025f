/* A compiled grammar: what its parts share. */
#ifndef SL_GRAMMAR_GRAMMAR_INT_H
#define SL_GRAMMAR_GRAMMAR_INT_H

#include "grammar/grammar.h"
#include "grammar/rules.h"
#include "grammar/vocab_int.h"

#define SL_GRAMMAR_MAX_PARALLEL 4096u      /* (state, stacks) of one position */
#define SL_GRAMMAR_MAX_WALK     (1u << 25) /* nodes of the tree of tokens looked at for one mask */
#define SL_GRAMMAR_MAX_TABLES   ((size_t)32 << 20) /* bytes of tables; then they are made anew */

/* A set of stacks of states to return to, as the tree of their tops: interned, so that equal sets
 * are equal numbers. Set 0 holds the empty stack alone. */
typedef struct sl_stacks {
    uint32_t first, n; /* of the ways */
    bool empty;        /* holds the empty stack */
} sl_stacks;
typedef struct sl_way {
    uint32_t to;     /* state to return to */
    uint32_t stacks; /* below it */
} sl_way;

/* One reading of the text so far: in the midst of a text edge, with what comes behind it. */
typedef struct sl_reading {
    sl_rx state;
    uint32_t stacks;
} sl_reading;

/* A state of rules in a closure; `same`: the work before it with that state, 1 more. */
typedef struct sl_place {
    uint32_t state, stacks, same;
} sl_place;

typedef struct sl_config {
    uint32_t first, n; /* readings, by state */
    bool ends;
    bool known;    /* next is filled in */
    sl_bytes next; /* bytes that go on */
} sl_config;

/* (a, b) -> c, interned by open addressing; 0 is no value. */
typedef struct sl_pairs {
    uint64_t *key;
    uint32_t *value;
    size_t n, slots;
} sl_pairs;

struct sl_grammar {
    const sl_vocab *vocab;
    sl_rx_store *rx;
    sl_rules rules;
    uint32_t root;
    sl_json_space space;
    sl_stacks *stacks;
    sl_way *ways;
    uint32_t n_stacks, n_ways;
    size_t cap_stacks, cap_ways;
    uint32_t *stack_slots;
    size_t n_stack_slots;
    sl_config *configs; /* 0: none; 1: the beginning */
    sl_reading *readings;
    uint32_t n_configs, n_readings;
    size_t cap_configs, cap_readings;
    uint32_t *config_slots;
    size_t n_config_slots;
    sl_pairs moves;  /* (configuration, byte) -> configuration, 1 more than its number */
    uint32_t *after; /* stacks -> configuration behind the end of a text above them, 1 more; 0: not
                        known */
    size_t cap_after;
    sl_table **tables; /* of states, by number */
    size_t cap_tables, tables_bytes;
    sl_place *work; /* of a closure, and what it leads to */
    uint32_t *last; /* state of rules -> its last work; true where that has the state */
    size_t cap_last;
    sl_reading *found;
    uint32_t n_work, n_found;
    size_t cap_work, cap_found;
    bool found_end;
    struct sl_todo *todo; /* of a mask */
    size_t cap_todo;
    size_t memory;
    unsigned depth; /* of a union of sets of stacks */
    sl_status bad;
    const char *what;
    uint64_t limit;
};

/* An empty grammar: the caller fills in rules and root, then sl_grammar_ready. */
sl_status sl_grammar_create(const sl_vocab *v, sl_grammar **out, sl_err *err) SL_MUST_CHECK;
/* Finishes the rules and finds the beginning. `rule`: the one that an error is about. */
sl_status sl_grammar_ready(sl_grammar *g, uint32_t *rule, sl_err *err) SL_MUST_CHECK;

bool sl_grammar_room(sl_grammar *g, void **p, size_t *cap, size_t need, size_t size);
void sl_grammar_spoil(sl_grammar *g, sl_status st, const char *what, uint64_t limit);
sl_status sl_grammar_status(const sl_grammar *g, sl_err *err) SL_MUST_CHECK;
/* Descriptions as rules of a grammar that has others, too (schema.c, gbnf.c); a list of texts as an
 * expression (grammar.c). */
sl_status sl_schema_add(sl_grammar *g, sl_json schema, bool listed, uint32_t *rule,
                        sl_err *err) SL_MUST_CHECK;
sl_status sl_gbnf_add(sl_grammar *g, sl_span text, uint32_t *net, sl_err *err) SL_MUST_CHECK;
sl_status sl_choices_rx(sl_rx_store *s, const sl_span *choices, size_t n, sl_rx *out,
                        sl_err *err) SL_MUST_CHECK;
/* stacks.c */
uint32_t sl_stacks_push(sl_grammar *g, uint32_t state, uint32_t below);
uint32_t sl_stacks_join(sl_grammar *g, uint32_t a, uint32_t b);
/* configs.c: configurations; 0 when nothing goes on */
uint32_t sl_config_first(sl_grammar *g);
uint32_t sl_config_move(sl_grammar *g, uint32_t config, uint8_t byte);
uint32_t sl_config_after(sl_grammar *g, uint32_t stacks);
const sl_bytes *sl_config_next(sl_grammar *g, uint32_t config);

#endif
