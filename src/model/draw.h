/* Draws of a token from logits, for the sampler: where the largest are, in what order, and which
 * one a uniform number means. A vocabulary is large, so it is looked through in blocks: what their
 * largest logits are says which of them are worth another look.
 *
 * Order of tokens: larger logit first, equal ones by lower id, NaN last. Pure. Thread: any. */
#ifndef SL_MODEL_DRAW_H
#define SL_MODEL_DRAW_H

#include "base/mem.h"
#include "model/draw_rule.h"
#include "model/seek.h"
#include "spec/sampling.h"

/* The largest logits of blocks of SL_PEAK_BLOCK tokens; NaN is none. */
typedef struct sl_peaks {
    const float *logits;
    uint32_t vocab, n;
    float *most;   /* [n], of scratch */
    uint32_t best; /* the first token in that order; 0 where all are NaN */
} sl_peaks;

/* Scratch that the calls below take together. */
size_t sl_draw_scratch_bytes(uint32_t vocab);

sl_peaks sl_peaks_of(const float *logits, uint32_t vocab, sl_arena *scratch);

/* The first k tokens in order, in list, which has room for the vocabulary: as many as there are.
 * k <= vocab. */
uint32_t sl_peaks_rank(const sl_peaks *p, uint32_t k, uint32_t *list, sl_arena *scratch);

/* Weights of all tokens: softmax of (logit - largest) / temperature; a NaN has none. The largest is
 * finite. */
void sl_peaks_weights(const sl_peaks *p, float temperature, float *weight);

/* The token that u, uniform in [0, 1), means under temperature > 0, min_p, top_k and top_p of s.
 * The largest logit is finite. */
uint32_t sl_draw(const sl_sampling *s, const sl_peaks *p, double u, sl_arena *scratch);
/* The same with top_k of s, of tokens among which the first top_k of all are, or all. What it takes
 * of scratch is the caller's to give back, as of the calls above. */
uint32_t sl_draw_of_k(const sl_sampling *s, const sl_peaks *p, double u, sl_arena *scratch);
/* The sums over all tokens that u means a token by, where there is no top_k. */
sl_mass sl_draw_mass(const sl_sampling *s, double u);
/* With top_p alone, of the tokens that were found of so many; p is of them, in the order of their
 * ids. False: these are not enough. */
bool sl_draw_of_some(const sl_sampling *s, const sl_peaks *p, const sl_found *f, uint32_t vocab,
                     double u, sl_arena *scratch, uint32_t *out);

#endif
