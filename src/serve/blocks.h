/* An answer as blocks that follow one another: a text, a thought, a call of a tool. Dialects whose
 * answers are such lists say how a block begins, goes on and ends; which block something belongs
 * to, and what of it is whole, is known here. However an answer is cut, its blocks are the same.
 * Pure. Thread: owner. */
#ifndef SL_SERVE_BLOCKS_H
#define SL_SERVE_BLOCKS_H

#include "serve/reply.h"

/* What has been written of an answer. Zero-initialise with sl_blocks_init. */
typedef struct sl_blocks {
    bool open;         /* a block is, of: */
    sl_run_kind kind;  /* and it has: */
    sl_jbuf text;      /* a text, a thought, or a call's arguments, so far */
    sl_jbuf scores;    /* of a text: log-probabilities of its tokens, entries of a list; so far, */
    sl_span news;      /* and of the piece at hand */
    sl_jbuf name;      /* of the function */
    char call_id[72];  /* of the call */
    uint32_t call;     /* which of the answer */
    uint32_t n;        /* blocks that began; the open one is the last */
    sl_jbuf raw;       /* what the model wrote, as the dialect shows it; empty: nobody asked */
    sl_jbuf items;     /* those that have ended, as the dialect writes them, with commas between */
    uint64_t sequence; /* events so far, where the dialect counts them */
    const char *finish;
    sl_jbuf stop; /* the stop string that ended it; empty: none did */
    bool full;
} sl_blocks;

/* How a dialect writes the open block. Events may be NULL pointers, where nothing is said. */
typedef struct sl_block_style {
    void (*item)(sl_jbuf *b, const sl_reply_head *h); /* all of it, as an object */
    void (*begin)(sl_jbuf *b, const sl_reply_head *h);
    void (*piece)(sl_jbuf *b, const sl_reply_head *h, sl_span text);
    void (*end)(sl_jbuf *b, const sl_reply_head *h);
} sl_block_style;

sl_blocks sl_blocks_init(void);
void sl_blocks_free(sl_blocks *k);

/* What is new of a choice, to h->blocks, with its events; `b` NULL: without. */
void sl_blocks_add(sl_jbuf *b, const sl_reply_head *h, const sl_block_style *style,
                   const sl_reply_choice *c);
/* The choice has ended: so does its last block, and why is kept. */
void sl_blocks_end(sl_jbuf *b, const sl_reply_head *h, const sl_block_style *style,
                   const sl_reply_choice *c);

/* "event: TYPE\ndata: {"type":"TYPE"": its object is open. */
void sl_event_open(sl_jbuf *b, const char *type);
void sl_event_close(sl_jbuf *b);
/* ,"KEY":"TEXT" */
void sl_event_text(sl_jbuf *b, const char *key, const char *text, size_t n);

#endif
