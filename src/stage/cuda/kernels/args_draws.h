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

/* A row in y, a part of it in x: its first 1 << list_log tokens to key[row][part][..]; then one
 * block for each row makes those of the row of them. */
typedef struct sl_k_seek_args {
    const float *logits;     /* [rows][vocab] */
    const sl_sought *sought; /* list [rows] */
    uint64_t *key;           /* [rows][parts][1 << list_log] */
    sl_found *found;         /* [rows], of the host: its tokens and its edge */
    float *top;              /* [rows] the largest logits */
    uint32_t seeks;          /* a bit for each row that does; others are left alone */
    uint32_t vocab, parts, list_log;
} sl_k_seek_args;

/* A row in x: its sums, at temperature 1 in y 0, those of its mass in y 1. */
typedef struct sl_k_sums_args {
    const float *logits, *top;
    const sl_sought *sought;
    double *block; /* [rows][blocks of the vocabulary] */
    sl_found *found;
    uint32_t sums, masses; /* a bit for each row that seeks it */
    uint32_t vocab;
} sl_k_sums_args;

#endif
