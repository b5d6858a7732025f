/* Arguments of the kernels of routed experts in blocks and in f32 products (group_*.cu), whose
 * lists the GPU has made (args_fast.h). C and CUDA. */
#ifndef SL_CUDA_ARGS_GROUP_H
#define SL_CUDA_ARGS_GROUP_H

#include "stage/cuda/kernels/args_fast.h"
#include "stage/cuda/kernels/args_products.h"

/* What an expert has beside gate, up and down, in that order: scales of F8_E4M3, a row of them for
 * 128 rows, and biases of plain types (sl_dtype). NULL: none. */
typedef struct sl_group_beside {
    const float *scale[3];
    const void *bias[3];
    uint32_t bias_type[3], unused;
} sl_group_beside;

/* up: y[pair][n] = swiglu(gate x, up x) of row x_row[pair] of x; else y[pair][n] = weight[pair] *
 * (down x) of row `pair` of x; with biases where an expert has some, and gpt-oss's SwiGLU where
 * there is a limit. Pairs are sorted ones. x: rows of k values, of f32 or rounded (quant/act.h) as
 * the kernel takes them, weights rows of k values of the kernel's type, one behind another. Block
 * (c, g) has group g and columns from c * shape.cols on, with up from c * shape.cols / 2. */
typedef struct sl_group_args {
    const sl_fast_group *group;
    const sl_fast_counts *counts;
    const sl_group_beside *beside; /* of experts; NULL: none has any */
    const uint32_t *x_row;
    const float *weight;
    const uint8_t *x;
    float *y;
    uint64_t x_stride; /* bytes */
    uint32_t n, k, up;
    float limit; /* 0: the plain SwiGLU */
    sl_product_shape shape;
} sl_group_args;

#endif
