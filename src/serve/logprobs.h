/* Log-probabilities of an answer as OpenAI writes them: for chats a list of objects, for
 * completions four lists side by side. Entries are written as tokens come. Thread: owner. */
#ifndef SL_SERVE_LOGPROBS_H
#define SL_SERVE_LOGPROBS_H

#include "spec/sampling.h"
#include "text/tokenizer.h"
#include "serve/reply.h"

/* Growable list of (id, log-probability). Zero-initialise. */
typedef struct sl_logprob_list {
    sl_logprob *data;
    size_t len, cap;
} sl_logprob_list;

sl_status sl_logprob_list_push(sl_logprob_list *l, const sl_logprob *p, size_t n) SL_MUST_CHECK;
void sl_logprob_list_free(sl_logprob_list *l);

typedef struct sl_logprob_text {
    sl_api_kind kind;
    sl_jbuf part[4]; /* chat: objects; completion: tokens, values, likeliest, offsets */
    size_t n;        /* entries */
    bool as_ids;     /* tokens are named by their ids */
} sl_logprob_text;

sl_logprob_text sl_logprob_text_init(sl_api_kind kind, bool as_ids);
void sl_logprob_text_free(sl_logprob_text *t);
void sl_logprob_text_clear(sl_logprob_text *t);
/* What is shown beside a token. */
typedef struct sl_logprob_beside {
    const sl_logprob *at; /* [n] likeliest ones, descending, or ids that were asked for */
    uint32_t n;
    bool own; /* the token itself is one of them, the first */
} sl_logprob_beside;

/* One token, p is its own; NULL: it has none, as the first of a prompt. `offset`: characters of the
 * text before it. */
void sl_logprob_text_add(sl_logprob_text *t, const sl_tokenizer *tok, uint32_t id,
                         const sl_logprob *p, sl_logprob_beside beside, uint64_t offset);
/* The same of a token of the prompt, appended to a list that is closed by its reader: an object of
 * ids, as vLLM has it, or null. A rank is known for the likeliest alone. */
void sl_logprob_prompt_add(sl_jbuf *list, const sl_tokenizer *tok, const sl_logprob *p,
                           uint32_t n_top);
/* The object, or nothing when there are no entries. */
void sl_logprob_text_write(const sl_logprob_text *t, sl_jbuf *out);

/* Characters of n bytes of UTF-8. */
uint64_t sl_utf8_count(const char *s, size_t n);

#endif
