/* The rules of draws (docs/numbers.md#draws) that the CPU and kernels of GPUs carry out alike: one
 * text, so that both draw the same token. C11 and C++17 at once. */
#ifndef SL_MODEL_DRAW_RULE_H
#define SL_MODEL_DRAW_RULE_H

#include "base/fn.h"
#include "kernel/formula.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#define SL_PEAK_BLOCK 256u /* tokens whose weights are summed up by themselves, */
#define SL_PEAK_LANES 8u   /* in so many lanes */

SL_FN uint32_t sl_draw_blocks(uint32_t vocab) {
    return (vocab + SL_PEAK_BLOCK - 1) / SL_PEAK_BLOCK;
}

/* Tokens of block b; 0: there is no such block. */
SL_FN uint32_t sl_draw_in_block(uint32_t vocab, uint32_t b) {
    const uint32_t at = b * SL_PEAK_BLOCK, left = at < vocab ? vocab - at : 0;
    return left < SL_PEAK_BLOCK ? left : SL_PEAK_BLOCK;
}

/* e^x is 0 in f32 at and below this. */
#define SL_DRAW_FLOOR (-200.0f)

/* What e is raised to for a token's weight; a NaN has none. */
SL_FN float sl_draw_power(float logit, float largest, float temperature) {
    const float z = (logit - largest) / temperature;
    return z > SL_DRAW_FLOOR ? z : SL_DRAW_FLOOR;
}

/* Token a, whose logit is x, comes before token b, whose logit is y. */
SL_FN bool sl_draw_before(float x, uint32_t a, float y, uint32_t b) {
    if (x != x || y != y) return x != x && y != y ? a < b : y != y;
    return x != y ? x > y : a < b;
}

/* Weights below this are dropped: a share of the likeliest token's, `best`. */
SL_FN float sl_draw_least(float share, float best) {
    return share > 0 ? share * best : 0;
}

/* The same of a weight: 0 when it is dropped. */
SL_FN float sl_draw_kept(float weight, float least) {
    return weight < least ? 0 : weight;
}

/* Tokens that top_p may keep are at least as likely as this: were one less so, it and all behind
 * it, at most the vocabulary, could not hold the share 1 - top_p that is left before it. */
SL_FN double sl_draw_likely(float top_p, double all, uint32_t vocab) {
    return (1 - (double)top_p) * all / vocab;
}

/* The block with which the mass is above goal, or the last that has any; *sum: the mass before it.
 */
SL_FN uint32_t sl_draw_block(const double *block, uint32_t n, double goal, double *sum) {
    uint32_t b = 0, last = 0;
    *sum = 0;
    for (; b < n; b++) {
        if (block[b] > 0) last = b;
        if (*sum + block[b] > goal) return b;
        *sum += block[b];
    }
    *sum = -INFINITY; /* rounding: the last one that has a weight */
    return last;
}

/* Of n tokens one after the other, behind a mass of `sum`: the first with which it is above goal,
 * or the last that has a weight; n: none has. Token i is list[i]; list NULL: i itself. */
SL_FN uint32_t sl_draw_walk(const float *weight, const uint32_t *list, uint32_t n, double sum,
                            double goal) {
    uint32_t pick = n;
    for (uint32_t i = 0; i < n; i++) {
        const float w = weight[list ? list[i] : i];
        if (w > 0) pick = i;
        sum += w;
        if (sum > goal) break;
    }
    return pick;
}

#endif
