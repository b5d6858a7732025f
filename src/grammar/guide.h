/* Guides: compiled shapes of answers, by content, and the thread that compiles them.
 *
 * Whoever draws tokens asks for the guide of a shape (grammar.h), is told when it is ready, and
 * then asks at each token what may come next. Where an answer stands in its guide is a function of
 * its tokens alone: one that goes on elsewhere reads them again. Guides of equal shapes are one,
 * which learns as it is used; those that nobody uses are kept while there is room, the latest used
 * the longest. Memory is bounded for all of them together: who asks for more is told SL_ERR_LIMIT.
 *
 * The vocabulary is made when the first guide is. Thread: owner, but for what is compiled, which a
 * thread of the store's own does. */
#ifndef SL_GRAMMAR_GUIDE_H
#define SL_GRAMMAR_GUIDE_H

#include "grammar/grammar.h"

#define SL_GUIDES_MAX_IDLE   64u                  /* that are kept though nobody uses them */
#define SL_GUIDES_MAX_MEMORY ((size_t)1024 << 20) /* bytes of all guides... */
#define SL_GUIDES_IDLE_BYTES ((size_t)256 << 20)  /* ...of which those that nobody uses */

struct sl_tokenizer;
typedef struct sl_guides sl_guides;
typedef struct sl_guide sl_guide;

typedef struct sl_guides_opts {
    const char *model;              /* folder or GGUF file of the tokenizer; copied; or */
    const struct sl_tokenizer *tok; /* this one, borrowed */
    uint32_t vocab;                 /* ids of the model */
    const uint32_t *ends;           /* [n_ends] that end an answer; copied */
    size_t n_ends;
    bool at_once;             /* sl_guides_ask compiles, there is no thread */
    void (*ready)(void *ctx); /* NULL, or called by the thread when it has compiled one */
    void *ctx;
} sl_guides_opts;

/* SL_ERR_NOMEM, SL_ERR_IO: no thread. */
sl_status sl_guides_create(const sl_guides_opts *o, sl_guides **out, sl_err *err) SL_MUST_CHECK;
/* Every guide has been let go. Waits for what is being compiled. NULL-safe. */
void sl_guides_free(sl_guides *s);

/* The guide of a shape, to be let go. NULL: no memory. */
sl_guide *sl_guides_ask(sl_guides *s, sl_span shape) SL_MUST_CHECK;
void sl_guide_let_go(sl_guide *g); /* NULL-safe */
/* SL_OK: it is ready; SL_ERR_AGAIN: it is compiled still; else why there is none. */
sl_status sl_guide_state(const sl_guide *g, sl_err *err) SL_MUST_CHECK;

/* Of one that is ready: the beginning of an answer. */
sl_grammar_at sl_guide_begin(const sl_guide *g);
/* *at moves behind the tokens. SL_ERR_ARG: no answer goes on so; SL_ERR_LIMIT, SL_ERR_NOMEM. */
sl_status sl_guide_take(sl_guide *g, const uint32_t *tokens, size_t n, sl_grammar_at *at,
                        sl_err *err) SL_MUST_CHECK;
/* What may come next: *mask has a bit for each id of the model (sl_sampling.allowed) and is
 * borrowed until the next call for any guide of the store. SL_ERR_LIMIT, SL_ERR_NOMEM. */
sl_status sl_guide_mask(sl_guide *g, sl_grammar_at at, const uint32_t **mask,
                        sl_grammar_allowed *allowed, sl_err *err) SL_MUST_CHECK;

#endif
