/* Arguments of attention in numerics exact (exact_attention.cu). Pointers are addresses that the
 * GPU reads; those called lists came through sl_cuda_list. */
#ifndef SL_STAGE_CUDA_ARGS_EXACT_ATTENTION_H
#define SL_STAGE_CUDA_ARGS_EXACT_ATTENTION_H

#include "stage/cuda/kernels/args_attention.h"

#define SL_EXACT_ATTN_PAGES 8u /* of a part: positions 256 i .. 256 i + 255 */
#define SL_EXACT_ATTN_HEADS 4u /* that a block merges */

/* `of` as of the other kernels of attention, but for max and sum. With slots every walk lies in one
 * part: what row r makes of its i-th part is at slot[r] + i, until it is merged. Without them a
 * walk is of all that its rows see. */
typedef struct sl_exact_attn_args {
    sl_k_attention_args of;
    const uint32_t *slot; /* list, or NULL */
    float *part;          /* [slots][n_heads][dim]: sums of values */
    float *state;         /* [slots][n_heads][2]: the largest score, the sum of weights */
} sl_exact_attn_args;

#endif
