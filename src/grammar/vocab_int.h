/* What masks read of a vocabulary. */
#ifndef SL_GRAMMAR_VOCAB_INT_H
#define SL_GRAMMAR_VOCAB_INT_H

#include "grammar/runs.h"
#include "grammar/vocab.h"

#define SL_VOCAB_LENGTHS 32u /* sums of plain tokens by characters are kept up to here */

/* A tree in preorder; node 0 is the root. */
typedef struct sl_trie {
    uint32_t n;
    uint8_t *byte;
    uint16_t *depth;
    uint32_t *skip;  /* the node behind the subtree */
    uint32_t *token; /* SL_TRIE_NO_TOKEN: none ends here */
    uint32_t most_depth;
} sl_trie;
#define SL_TRIE_NO_TOKEN UINT32_MAX

/* Where in a character the byte of a node of plain tokens is. */
typedef enum sl_plain_part {
    SL_PLAIN_LAST,  /* its last byte, or its only one */
    SL_PLAIN_FIRST, /* its first of several */
    SL_PLAIN_INSIDE,
} sl_plain_part;

/* A node of the tree of plain tokens, in preorder as above; one that ends the tree is behind it. */
typedef struct sl_plain_node {
    sl_plain_set below; /* characters behind the node, its own, too, where that begins here */
    uint32_t skip;
    uint32_t from;  /* place in `order` of the first token from here on */
    uint16_t depth; /* bytes */
    uint16_t most;  /* of those characters, one behind the other */
    uint8_t byte;
    uint8_t part;
} sl_plain_node;

/* Expressions of every store that is a clone of a vocabulary's. */
typedef struct sl_base_rx {
    sl_rx string, number, integer, plain_char, key_char;
} sl_base_rx;

/* What a state of an automaton says about all tokens. */
typedef struct sl_table {
    uint32_t *dense;  /* tokens after which the state's text goes on or ends; or */
    uint32_t *sparse; /* the same as a list */
    uint32_t n_sparse;
    uint32_t
        *exits; /* nodes of the tree of all tokens at which the text may end and tokens go on */
    uint32_t n_exits;
    size_t bytes;
} sl_table;

struct sl_vocab {
    uint32_t n, longest; /* ids; bytes of the longest text */
    size_t words;
    uint8_t *bytes; /* of all texts */
    size_t *at;     /* n + 1 */
    uint32_t *twin; /* the next id with the same text, or SL_TRIE_NO_TOKEN */
    uint32_t *ends;
    size_t n_ends;
    sl_trie all, rest;                    /* every text; those that are not plain */
    sl_plain_node *plain_tree;            /* those that are */
    uint32_t n_plain_nodes;               /* but the one behind */
    uint32_t *rest_in_all, *plain_in_all; /* nodes -> nodes of all */
    uint32_t *order; /* tokens of plain_tree as its nodes come: those of a subtree are a stretch */
    uint32_t *plain; /* (SL_VOCAB_LENGTHS + 1) masks: plain tokens of at most so many characters */
    uint32_t *plain_ids;    /* plain tokens, shortest first */
    uint16_t *plain_length; /* their characters */
    uint32_t n_plain, most_plain;
    sl_rx_store *base; /* JSON's own expressions, which every grammar begins with */
    sl_base_rx rx;
    sl_table **tables; /* of states of base, by number; NULL: none */
    uint32_t n_base;
};

/* table.c: the table of a state; NULL: no memory, or the store went bad. */
sl_table *sl_table_make(const sl_vocab *v, sl_rx_store *s, sl_rx state);
void sl_table_free(sl_table *t);

#endif
