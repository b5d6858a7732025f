/* What is asked about the tokens of a request: how they are drawn, and how likely they were. One
 * form for bodies of clients, the engine and its wire, from one table (sampling.def) with one
 * check; src/model/sampler.h says what the fields do. Pure. Thread: any. */
#ifndef SL_SPEC_SAMPLING_H
#define SL_SPEC_SAMPLING_H

#include "base/status.h"
#include "spec/model.h"

#include <stdbool.h>
#include <stdint.h>

/* Travels as it lies here: u32, f32. */
typedef struct sl_logit_bias {
    uint32_t id;
    float bias; /* -SL_MAX_BIAS..SL_MAX_BIAS */
} sl_logit_bias;

/* Travels as it lies here: u32, f32. */
typedef struct sl_logprob {
    uint32_t id;
    float logprob;
} sl_logprob;

/* The log-probabilities that come with a token: its own, those of the likeliest, those of ids. */
typedef struct sl_report {
    uint32_t n_top;         /* <= SL_MAX_LOGPROBS and the vocabulary */
    uint32_t n_scored;      /* <= SL_MAX_SCORED */
    const uint32_t *scored; /* [n_scored] ids below the vocabulary, borrowed */
} sl_report;

static inline uint32_t sl_reported(const sl_report *r) {
    return 1 + r->n_top + r->n_scored;
}

/* What a report may be of a vocabulary: SL_ERR_ARG names the field, its value and the limit. */
sl_status sl_report_check(const sl_report *r, uint32_t vocab, sl_err *err) SL_MUST_CHECK;

/* Numbers from lowest to highest; above: without the lowest. */
typedef struct sl_range {
    double lowest, highest;
    bool above;
} sl_range;

/* C's words for the types of rows. */
typedef float sl_field_f32;
typedef uint32_t sl_field_u32;
typedef uint64_t sl_field_u64;

typedef struct sl_sampling {
#define SL_SAMPLING(type, name, byte, standard, whence, allowed, asked, whose, what)               \
    sl_field_##type name;
#define SL_DRAW(type, name, byte, what) sl_field_##type name;
#include "spec/sampling.def"
    uint32_t n_bias; /* <= SL_MAX_LOGIT_BIAS */
    uint32_t n_never;
    uint32_t n_allowed;        /* 0, or sl_id_words of the vocabulary */
    uint32_t n_bad;            /* words of `bad` */
    const sl_logit_bias *bias; /* [n_bias], borrowed; ids strictly ascending */
    const uint32_t *never;     /* [n_never] ids that are not drawn, borrowed */
    const uint32_t *allowed; /* [n_allowed], borrowed: a bit for each id (id % 32 of word id / 32);
                              * those that are set are drawn alone, and one is. n_allowed 0: any */
    const uint32_t *bad; /* [n_bad], borrowed: sequences of ids, one after the other, each behind
                          * its length: its last id is not drawn where the ids before it were the
                          * last that were generated. SL_MAX_BAD_WORDS, SL_MAX_BAD_TOKENS */
} sl_sampling;

/* Words of a set of ids. */
static inline uint32_t sl_id_words(uint32_t vocab) {
    return vocab / 32 + (vocab % 32 != 0);
}

/* Where a request says nothing: as the model says, else the standard of each row. A model that does
 * not sample takes the likeliest token. */
sl_sampling sl_sampling_standard(const sl_generation_spec *model);

/* Every row's range, the biases, what is allowed and what is not: SL_ERR_ARG names the field, its
 * value and the range. */
sl_status sl_sampling_check(const sl_sampling *s, uint32_t vocab, sl_err *err) SL_MUST_CHECK;

#endif
