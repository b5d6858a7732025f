/* Arguments of the kernels for products of many rows by warp groups' tensor cores (fast_wide.cu).
 * C and CUDA. */
#ifndef SL_STAGE_CUDA_ARGS_WIDE_H
#define SL_STAGE_CUDA_ARGS_WIDE_H

#include <stdint.h>

#define SL_WIDE_THREADS 384u
#define SL_WIDE_JOBS    6u
#define SL_WIDE_BOX     128u  /* weight rows that one copy brings */
#define SL_WIDE_K       64u   /* values of a row in a stage */
#define SL_WIDE_ROOM    1024u /* bytes of shared memory in front of stages, 1024-byte aligned */
#define SL_WIDE_STAGES  8u    /* most of them */

/* A tile is `halves` times 128 weight rows by `rows` rows of x: X(halves, rows). The kernel of each
 * is named sl_k_fast_wide_<halves>_<rows>. */
#define SL_WIDE_PARTS 3u

#define SL_WIDE_TILES(X)                                                                           \
    X(1, 16)                                                                                       \
    X(1, 32)                                                                                       \
    X(1, 64)                                                                                       \
    X(1, 128)                                                                                      \
    X(1, 192)                                                                                      \
    X(1, 224)                                                                                      \
    X(1, 256)                                                                                      \
    X(2, 32)                                                                                       \
    X(2, 64)                                                                                       \
    X(2, 96)                                                                                       \
    X(2, 128)                                                                                      \
    X(2, 160)

/* A tensor map as the driver makes it (async.h). */
typedef struct sl_wide_map {
    uint64_t word[16];
} __attribute__((aligned(64))) sl_wide_map;

/* y[r][j] = row r of x times row j of the matrix. A row of x is one of bf16, or the sum of
 * SL_WIDE_PARTS of them, which is as good as f32: matrices of n_rows rows one behind another. Of
 * SL_PRODUCT_SWIGLU (args_products.h), tiles of two halves alone, the second half is the other
 * side's rows for the same columns. */
typedef struct sl_wide_job {
    sl_wide_map w[2]; /* boxes of SL_WIDE_BOX rows */
    sl_wide_map x;    /* bf16; boxes of half a tile's rows */
    float *y;
    uint32_t n, k, n_rows, y_stride;
    uint32_t first, down; /* its first tile, or pair of tiles; how many of them one below another */
    uint32_t end;         /* sl_product_end */
    uint32_t parts;       /* 1 or SL_WIDE_PARTS */
} sl_wide_job;

/* Clusters of two take `pair` tiles at once: those of the same rows of x, of which each block
 * fetches half for both. pair 1: each block by itself. */
typedef struct sl_wide_args {
    sl_wide_job job[SL_WIDE_JOBS];
    uint32_t n_jobs, tiles, pair;
    uint32_t stages, stage_bytes;
    uint32_t lead; /* stages by which the first consumer is ahead when they begin */
} sl_wide_args;

/* Row i of y is row row[i] (list; NULL: i) of x in bf16, k values, a multiple of 8; of more parts
 * than one, row n_rows + i what is left of it then in bf16, and so on. */
typedef struct sl_wide_rows_args {
    const float *x;
    const uint32_t *row;
    uint16_t *y;
    uint64_t x_stride; /* floats, a multiple of 4 */
    uint32_t n_rows, k, parts;
} sl_wide_rows_args;

#define SL_WIDE_ROWS_THREADS 256u

#endif
