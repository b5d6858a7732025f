/* Arguments of the kernels of draws (draws.cu). Pointers are addresses that the GPU reads; those
 * called lists came through sl_cuda_list. */
#ifndef SL_STAGE_CUDA_ARGS_DRAWS_H
#define SL_STAGE_CUDA_ARGS_DRAWS_H

#include "model/seek.h"

#define SL_CUDA_DRAW_THREADS 256u
#define SL_CUDA_DRAW_PART    2048u /* tokens of a row that a block puts in order */
#define SL_CUDA_SUM_THREADS  512u
#define SL_CUDA_SEEK_IDS_LOG 8u  /* of a power of two of tokens that those of a row find room in */
#define SL_CUDA_SEEK_ROWS    32u /* of a launch: bits of a word */
#define SL_CUDA_SEEK_IDS     (1u << SL_CUDA_SEEK_IDS_LOG)

#define SL_CUDA_MASS_BLOCKS (SL_CUDA_DRAW_THREADS / 8u) /* of tokens, a block of threads has */

/* What kernels tell those behind them of a row. */
typedef struct sl_k_draw_row {
    sl_mass mass;
    float top;            /* the largest logit */
    float sum, floor;     /* of the mass: softmax's sum, 0: there is none; weights below are none */
    double likely;        /* what top_p may keep is at least as likely */
    uint32_t least, came; /* of that, the key of the least logit so far; blocks that have looked */
} sl_k_draw_row;

/* Of all kernels of draws; x and y are those of the grid.
 *   seek_part    row y, part x of it: its first 1 << list_log tokens to key[row][part][..]
 *   seek         row x: those of the row, single tokens, its edge
 *   seek_sums    row x: the sum at temperature 1 (y 0), that of its mass (y 1)
 *   seek_blocks  row y, SL_CUDA_MASS_BLOCKS blocks of tokens: their masses
 *   seek_mass    row x: the mass of all; which token u means
 *   seek_least   row y, tokens as of seek_blocks: the least logit that top_p may keep */
typedef struct sl_k_seek_args {
    const float *logits;             /* [rows][vocab] */
    const sl_sought *sought;         /* list [rows] */
    uint64_t *key;                   /* [rows][parts][1 << list_log] */
    double *block;                   /* [rows][blocks of the vocabulary] */
    sl_k_draw_row *row;              /* [rows] */
    sl_found *found;                 /* [rows], of the host */
    uint32_t seeks, sums, mass, top; /* a bit for each row that seeks anything, the sum at
                                      * temperature 1, a mass, one of SL_MASS_TOP */
    uint32_t vocab, parts, list_log;
} sl_k_seek_args;

#endif
