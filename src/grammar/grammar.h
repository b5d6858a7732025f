/* Structured output: a description of texts, compiled, says at each token of an answer which tokens
 * may come next. Descriptions are JSON Schemas, "any JSON object", lists of choices, regular
 * expressions and GBNF; docs/structured-output.md says what of each is enforced, and that the rest
 * is refused. A token is allowed exactly when some allowed text begins with what was written and
 * it.
 *
 * A position in a text is a number: it is copied, kept and gone back to at no cost. A grammar
 * learns its states as they are met and keeps them; sl_grammar_memory says what they take, and past
 * its bound calls yield SL_ERR_LIMIT. Thread: owner for everything with a grammar; the vocabulary
 * may be shared. */
#ifndef SL_GRAMMAR_GRAMMAR_H
#define SL_GRAMMAR_GRAMMAR_H

#include "format/json.h"
#include "grammar/vocab.h"
#include "spec/limits.h"

#define SL_GRAMMAR_MAX_TEXT    (1u << 20)          /* bytes of a description */
#define SL_GRAMMAR_MAX_CHOICES 65536u              /* of a list */
#define SL_GRAMMAR_MAX_MEMORY  ((size_t)128 << 20) /* bytes of a compiled grammar and its states */

typedef struct sl_grammar sl_grammar;

/* Whitespace between the tokens of JSON. */
typedef enum sl_json_space {
    SL_JSON_SPACE_SOME, /* nothing, a space, or the end of a line and up to 64 spaces or tabs */
    SL_JSON_SPACE_NONE,
} sl_json_space;

/* The schema is read during the call alone. SL_ERR_UNSUPPORTED: a keyword that is not enforced;
 * SL_ERR_LIMIT: too large; SL_ERR_FORMAT: no schema; SL_ERR_ARG: no text satisfies it. Errors name
 * the keyword and where it stands. The same for those below, with bytes or rules. */
sl_status sl_grammar_of_schema(const sl_vocab *v, sl_json schema, sl_json_space space,
                               sl_grammar **out, sl_err *err) SL_MUST_CHECK;
/* Any JSON object. */
sl_status sl_grammar_of_json(const sl_vocab *v, sl_json_space space, sl_grammar **out,
                             sl_err *err) SL_MUST_CHECK;
/* The whole answer matches. */
sl_status sl_grammar_of_regex(const sl_vocab *v, sl_span regex, sl_grammar **out,
                              sl_err *err) SL_MUST_CHECK;
sl_status sl_grammar_of_choices(const sl_vocab *v, const sl_span *choices, size_t n,
                                sl_grammar **out, sl_err *err) SL_MUST_CHECK;
/* GBNF as llama.cpp has it; the rule `root`. */
sl_status sl_grammar_of_gbnf(const sl_vocab *v, sl_span text, sl_grammar **out,
                             sl_err *err) SL_MUST_CHECK;
/* An answer of several parts, as JSON: a part is an object with one field.
 *   {"json": SCHEMA}  {"regex": TEXT}  {"choice": [TEXT]}  {"gbnf": TEXT}   as above
 *   {"listed": SCHEMA}    as json; objects that list properties have no others, where the schema is
 *                         silent about them: what is allowed is part of what the schema allows
 *   {"text": LITERAL}     exactly that
 *   {"until": LITERAL}    any tokens up to the first of these, and it
 *   {"without": LITERAL}  any tokens without it      {"rest": true}   any tokens
 *   {"seq": [PART]}  {"or": [PART]}  {"maybe": PART}  {"many": PART}
 *   {"compact": PART}     the whole answer: JSON in it has no whitespace between its tokens
 * A literal is a text, or a list of texts and ids of tokens: special tokens are met by their ids
 * alone. Any tokens: any that have an id of the tokenizer, special ones too, but none that ends the
 * answer. SL_ERR_FORMAT: no shape. */
sl_status sl_grammar_of_shape(const sl_vocab *v, sl_span text, sl_grammar **out,
                              sl_err *err) SL_MUST_CHECK;
void sl_grammar_free(sl_grammar *g); /* NULL-safe */
size_t sl_grammar_memory(const sl_grammar *g);

/* Where a text is. Valid for its grammar, as long as that lives. */
typedef uint32_t sl_grammar_at;

sl_grammar_at sl_grammar_begin(const sl_grammar *g);
/* Whether the text may end here. */
bool sl_grammar_may_end(const sl_grammar *g, sl_grammar_at at);
/* *at moves behind the bytes. SL_ERR_ARG: no text goes on so, *at is what it was; SL_ERR_LIMIT. */
sl_status sl_grammar_read(sl_grammar *g, sl_span bytes, sl_grammar_at *at,
                          sl_err *err) SL_MUST_CHECK;
/* The same for the text of a token; one that ends an answer leaves *at. */
sl_status sl_grammar_take(sl_grammar *g, uint32_t token, sl_grammar_at *at,
                          sl_err *err) SL_MUST_CHECK;

typedef struct sl_grammar_allowed {
    uint32_t n;    /* tokens, ends included; counted up to 2 */
    uint32_t only; /* the token, when n is 1 */
    bool end;      /* the text may end */
} sl_grammar_allowed;

/* Sets mask (sl_vocab_words words; bit id % 32 of word id / 32) to what is allowed. `out` may be
 * NULL. n is 0 where no token of the vocabulary goes on although a text would. */
sl_status sl_grammar_mask(sl_grammar *g, sl_grammar_at at, uint32_t *mask, sl_grammar_allowed *out,
                          sl_err *err) SL_MUST_CHECK;

#endif
