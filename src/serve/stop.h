/* Stop strings, matched on the text as it streams, wherever tokens end.
 *
 * Text that may turn out to be the beginning of a stop string is held back; everything before it is
 * released. The match that ends first wins (of several ending there the longest), so the result
 * depends on the text alone, not on how it was cut. One Knuth-Morris-Pratt automaton per string:
 * constant work per byte. Thread: owner. */
#ifndef SL_SERVE_STOP_H
#define SL_SERVE_STOP_H

#include "serve/jbuf.h"

#define SL_STOP_MAX_STRINGS 16u
#define SL_STOP_MAX_BYTES   1024u /* of one string */

typedef struct sl_stop sl_stop;

/* n stop strings, none empty, each at most SL_STOP_MAX_BYTES; copied. n == 0 matches nothing.
 * SL_ERR_ARG, SL_ERR_LIMIT, SL_ERR_NOMEM. */
sl_status sl_stop_create(const sl_span *strings, size_t n, sl_stop **out,
                         sl_err *err) SL_MUST_CHECK;
void sl_stop_free(sl_stop *s); /* NULL-safe */

/* Whether the stop string that ends a text is shown; at first it is not. */
void sl_stop_include(sl_stop *s, bool include);

/* Takes the next n bytes and appends to out what is now certain to be no part of a stop string.
 * True: a stop string was completed; out then ends right before it (or after it, if it is shown),
 * the rest of the text is dropped, and further calls add nothing. */
bool sl_stop_feed(sl_stop *s, const char *text, size_t n, sl_jbuf *out);

/* The one that was completed; false: none was. Borrowed. */
bool sl_stop_hit(const sl_stop *s, sl_span *out);

/* Something else comes between two texts, over which no stop string reaches: appends what was held
 * back, and begins again. */
void sl_stop_break(sl_stop *s, sl_jbuf *out);

/* The text has ended without a match: appends what was held back. */
void sl_stop_flush(sl_stop *s, sl_jbuf *out);

#endif
