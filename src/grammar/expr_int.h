/* What the files of expressions share. */
#ifndef SL_GRAMMAR_EXPR_INT_H
#define SL_GRAMMAR_EXPR_INT_H

#include "grammar/expr.h"

/* What is found out about a node when it is asked for. */
typedef struct sl_rx_extra {
    sl_rx_row row; /* to NULL: not made yet */
    uint8_t live;  /* 0: not known, 1: matches something, 2: matches nothing */
    bool pruned;   /* no target of the row matches nothing */
    bool seen;     /* in the search that is under way */
} sl_rx_extra;

struct sl_rx_chunk {
    struct sl_rx_chunk *next;
    sl_rx to[];
};

struct sl_rx_store {
    sl_rx_node *nodes;
    sl_rx_extra *extra;
    uint32_t n_nodes;
    size_t cap_nodes;
    uint32_t *slots; /* of the table of nodes; 0: free */
    size_t n_slots;
    sl_rx *items;
    size_t n_items, cap_items;
    sl_bytes *sets;
    uint32_t n_sets;
    size_t cap_sets;
    uint8_t **maps; /* byte -> class, each once; those before borrowed_maps are another store's */
    uint32_t n_maps, borrowed_maps;
    size_t cap_maps;
    struct sl_rx_chunk *chunk; /* targets of rows */
    size_t chunk_left, n_targets;
    sl_rx_condition **conditions;
    uint32_t n_conditions;
    size_t cap_conditions;
    sl_rx *scratch; /* a stack */
    size_t n_scratch, cap_scratch;
    size_t memory;
    uint64_t steps; /* that are left */
    unsigned depth; /* of the derivative that is under way */
    sl_status bad;
    const char *what; /* there was too much of */
    uint64_t limit;
};

void sl_rx_spoil(sl_rx_store *s, sl_status st, const char *what, uint64_t limit);
bool sl_rx_room(sl_rx_store *s, void **p, size_t *cap, size_t need, size_t size);
bool sl_rx_push(sl_rx_store *s, sl_rx e);
/* Takes n steps; false: there were none left. */
bool sl_rx_step(sl_rx_store *s, uint64_t n);
sl_rx sl_rx_intern(sl_rx_store *s, sl_rx_node node);

#endif
