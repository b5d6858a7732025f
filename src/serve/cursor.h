/* Where a reader is in the stream of an answer that is kept.
 *
 * Such a stream is cut in one way for whoever reads it, and whenever: each token of a choice gives
 * the events that it gives, and so does its end. So an event has a number among those of its
 * choice, from 0 on; what ends the whole answer goes on with the numbers of the first choice. The
 * id of an event says for each choice which came last, with commas between: "17", or "4,-,9" where
 * nothing of the second has come. Who shows an id hears what follows it. Pure. Thread: owner. */
#ifndef SL_SERVE_CURSOR_H
#define SL_SERVE_CURSOR_H

#include "serve/jbuf.h"

/* Zero-initialised: there is none. */
typedef struct sl_cursor {
    size_t n;        /* choices; 0: events have no ids */
    uint64_t *said;  /* [n] events so far */
    uint64_t *heard; /* [n] of all that there will be, those that the reader has */
} sl_cursor;

/* At the beginning of n choices. False: no memory. */
bool sl_cursor_begin(sl_cursor *c, size_t n) SL_MUST_CHECK;
void sl_cursor_free(sl_cursor *c);
/* Behind the event with that id. False: it is no id of a stream with so many choices. */
bool sl_cursor_go_on(sl_cursor *c, const char *id) SL_MUST_CHECK;
/* The next events of a choice, each "...\n\n": those that the reader has not are added to `out`,
 * with their ids. */
void sl_cursor_put(sl_cursor *c, size_t choice, const sl_jbuf *events, sl_jbuf *out);
/* Whether the reader has events that were not said so far: at the end, its id is none of them. */
bool sl_cursor_is_beyond(const sl_cursor *c);

#endif
