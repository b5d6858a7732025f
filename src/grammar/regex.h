/* Regular expressions as people write them, to expressions over bytes. The dialect is what ECMA
 * 262, Python and Rust read alike: literals, escapes, classes, groups, alternatives, counted
 * repetition (greedy or lazy: the language is one), anchors at the ends. What asks for more than an
 * automaton (backreferences, lookaround, word boundaries) or for tables (\p) is refused by name.
 * Thread: owner of the store. */
#ifndef SL_GRAMMAR_REGEX_H
#define SL_GRAMMAR_REGEX_H

#include "grammar/chars.h"

#define SL_REGEX_MAX_BYTES  65536u  /* of a pattern */
#define SL_REGEX_MAX_DEPTH  200u    /* groups inside one another */
#define SL_REGEX_MAX_REPEAT 100000u /* of a counted repetition */

/* `search`: a text matches when any part of it does, as with JSON Schema's pattern; otherwise the
 * whole text must. SL_ERR_FORMAT: not a regular expression; SL_ERR_UNSUPPORTED: names what is not
 * in the dialect; SL_ERR_LIMIT. */
sl_status sl_regex_parse(sl_rx_store *s, sl_span pattern, sl_alphabet alphabet, bool search,
                         sl_rx *out, sl_err *err) SL_MUST_CHECK;

#endif
