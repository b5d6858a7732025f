/* Sampling: a pure function of (logits, parameters, seed, choice, position), so a request that
 * continues on another worker draws the same tokens. Thread: any. */
#ifndef SL_MODEL_SAMPLER_H
#define SL_MODEL_SAMPLER_H

#include "base/mem.h"
#include "base/status.h"

#include <stdint.h>

typedef struct sl_sampling {
    float temperature; /* 0: greedy, ties to the lower id */
    float top_p;       /* (0,1]; 1: off. Kept set: smallest prefix by probability reaching top_p */
    uint32_t top_k;    /* 0: off */
    uint64_t seed;     /* fixed at admission */
    uint32_t choice;   /* index among n choices of a request */
} sl_sampling;

/* Range check with field names for the error: temperature 0..100, top_p (0,1]. */
sl_status sl_sampling_check(const sl_sampling *s, sl_err *err) SL_MUST_CHECK;

size_t sl_sampler_scratch_bytes(uint32_t vocab);

/* Id drawn for absolute position `position` (the position the new token will take). */
uint32_t sl_sample(const sl_sampling *s, const float *logits, uint32_t vocab, uint64_t position,
                   sl_arena *scratch);

#endif
