/* Sampling: a pure function of (logits, tokens so far, parameters, seed, choice, position), so a
 * request that continues on another worker draws the same tokens. Thread: any.
 *
 * In this order: logit_bias is added; tokens of `never` are dropped; repetition_penalty divides
 * positive and multiplies other logits of tokens that occur anywhere before; frequency_penalty
 * times the count, and presence_penalty, are subtracted from tokens generated before; temperature;
 * min_p; top_k; top_p.
 */
#ifndef SL_MODEL_SAMPLER_H
#define SL_MODEL_SAMPLER_H

#include "base/mem.h"
#include "base/status.h"

#include <stdint.h>

#define SL_MAX_LOGIT_BIAS 1024u /* pairs of one request */
#define SL_MAX_LOGPROBS   20u   /* likeliest tokens reported beside the chosen one */

typedef struct sl_logit_bias {
    uint32_t id;
    float bias; /* -100..100 */
} sl_logit_bias;

typedef struct sl_sampling {
    float temperature; /* 0: greedy, ties to the lower id */
    float top_p;       /* (0,1]; 1: off. Kept set: smallest prefix by probability reaching top_p */
    uint32_t top_k;    /* 0: off */
    uint64_t seed;     /* fixed at admission */
    uint32_t choice;   /* index among n choices of a request */
    float min_p; /* [0,1]; drops tokens less likely than this share of the likeliest; 0: off */
    float presence_penalty, frequency_penalty; /* -2..2; 0: off */
    float repetition_penalty;                  /* (0,100]; 1, and 0 as in a zeroed struct: off */
    const sl_logit_bias *bias;                 /* [n_bias], borrowed; ids are different */
    uint32_t n_bias;                           /* <= SL_MAX_LOGIT_BIAS */
    const uint32_t *never;                     /* [n_never] ids that are not drawn, borrowed */
    uint32_t n_never;
} sl_sampling;

/* The tokens before the one to draw: n_prompt of the prompt, then generated ones. Borrowed. */
typedef struct sl_history {
    const uint32_t *tokens; /* each < vocab */
    uint32_t n, n_prompt;
} sl_history;

typedef struct sl_logprob {
    uint32_t id;
    float logprob;
} sl_logprob;

/* Range check, SL_ERR_ARG with field names: temperature 0..100, top_p (0,1], and as above;
 * ids of bias below vocab, strictly ascending. */
sl_status sl_sampling_check(const sl_sampling *s, uint32_t vocab, sl_err *err) SL_MUST_CHECK;

/* Of either function below. */
size_t sl_sampler_scratch_bytes(uint32_t vocab);

/* Id drawn for absolute position `position` (the position the new token will take). `past` may be
 * NULL where no penalty is set. */
uint32_t sl_sample(const sl_sampling *s, const float *logits, uint32_t vocab, uint64_t position,
                   const sl_history *past, sl_arena *scratch);

/* Log-probabilities under the unmodified logits: log softmax, natural logarithm. out[0] is `id`;
 * out[1..n] are the n likeliest tokens, ties to the lower id; n <= SL_MAX_LOGPROBS, n <= vocab.
 * Finite: nothing is below SL_LOGPROB_FLOOR. */
#define SL_LOGPROB_FLOOR (-9999.0f)
void sl_logprobs(const float *logits, uint32_t vocab, uint32_t id, uint32_t n, sl_arena *scratch,
                 sl_logprob *out);

#endif
