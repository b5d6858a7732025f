/* Sampling: a pure function of (logits, tokens so far, parameters, seed, choice, position), so a
 * request that continues on another worker draws the same tokens. Thread: any.
 *
 * A thought that has all the tokens that it may have is ended, whatever the logits, where its end
 * is not excluded. Else, in this order: logit_bias is added; tokens that are excluded are dropped:
 * those of `never`, those not in `allowed`, and the last one of a sequence of `bad` that would be
 * whole with it;
 * repetition_penalty divides positive and multiplies other logits of tokens that occur anywhere
 * before; frequency_penalty times the count, and presence_penalty, are subtracted from tokens
 * generated before; temperature; min_p; top_k; top_p.
 */
#ifndef SL_MODEL_SAMPLER_H
#define SL_MODEL_SAMPLER_H

#include "base/mem.h"
#include "model/seek.h"
#include "spec/sampling.h"

/* The tokens before the one to draw: n_prompt of the prompt, then generated ones. Borrowed. */
typedef struct sl_history {
    const uint32_t *tokens; /* each < vocab */
    uint32_t n, n_prompt;
} sl_history;

/* A row's logits as a draw sees them: all, or what was found of them. Borrowed. */
typedef struct sl_logits {
    uint32_t vocab, n;   /* tokens there are, and those here */
    const float *of;     /* [n] */
    const uint32_t *id;  /* [n] ascending; NULL: i itself, all are here */
    const sl_sought *at; /* where not all are here: what was sought, */
    const sl_found *f;   /* and what was found */
} sl_logits;

static inline sl_logits sl_logits_all(const float *of, uint32_t vocab) {
    return (sl_logits){.vocab = vocab, .n = vocab, .of = of};
}

static inline sl_logits sl_logits_found(const sl_sought *at, const sl_found *f, uint32_t vocab) {
    return (sl_logits){.vocab = vocab, .n = f->n, .of = f->logit, .id = f->id, .at = at, .f = f};
}

/* What a draw for that position asks of logits, that of sl_sample and, where there is a report,
 * sl_logprobs. More may be excluded by then; masked: a shape may exclude any token. */
void sl_sampler_seeks(const sl_sampling *s, const sl_history *past, uint32_t vocab,
                      uint64_t position, const sl_report *report, bool masked, sl_sought *out);

/* Of any function below. */
size_t sl_sampler_scratch_bytes(uint32_t vocab);

/* A token, and its logit as the model has it. */
typedef struct sl_drawn {
    uint32_t id;
    float logit;
} sl_drawn;

/* The token drawn for absolute position `position` (the position the new token will take). `past`
 * may be NULL where no penalty is set and no token is bad behind others. An id that is excluded
 * comes out only where no other one has a finite logit: sl_sampler_excludes tells. False: what was
 * found is not enough to say what all logits would give; never where all are here. */
bool sl_sample_of(const sl_sampling *s, const sl_logits *l, uint64_t position,
                  const sl_history *past, sl_arena *scratch, sl_drawn *out);

/* The same of all logits: the id. */
static inline uint32_t sl_sample(const sl_sampling *s, const float *logits, uint32_t vocab,
                                 uint64_t position, const sl_history *past, sl_arena *scratch) {
    const sl_logits l = sl_logits_all(logits, vocab);
    sl_drawn d = {0, 0};
    (void)sl_sample_of(s, &l, position, past, scratch, &d);
    return d.id;
}

/* Whether the id, which is below the vocabulary, may not be drawn behind `past`. */
bool sl_sampler_excludes(const sl_sampling *s, uint32_t id, const sl_history *past);
/* Whether all ids are excluded. */
bool sl_sampler_excludes_all(const sl_sampling *s, uint32_t vocab, const sl_history *past,
                             sl_arena *scratch);

/* Log-probabilities under the unmodified logits: log softmax, natural logarithm. out[0] is `id`;
 * then come the likeliest tokens, descending, ties to the lower id, and the ids of the report as
 * they stand there: sl_reported in all. Finite: nothing is below SL_LOGPROB_FLOOR. */
#define SL_LOGPROB_FLOOR (-9999.0f)
void sl_logprobs(const float *logits, uint32_t vocab, uint32_t id, const sl_report *report,
                 sl_arena *scratch, sl_logprob *out);
/* The same of what was found; false: it is not enough. */
bool sl_logprobs_of(const sl_logits *l, uint32_t id, const sl_report *report, sl_arena *scratch,
                    sl_logprob *out);

#endif
