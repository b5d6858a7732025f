/* Arguments of the kernels of routed experts in blocks of whole numbers (group_*.cu), whose lists
 * the GPU has made (args_fast.h). C and CUDA. */
#ifndef SL_CUDA_ARGS_GROUP_H
#define SL_CUDA_ARGS_GROUP_H

#include "stage/cuda/kernels/args_fast.h"
#include "stage/cuda/kernels/args_products.h"

/* up: y[pair][n] = silu(gate x) * (up x) of row x_row[pair] of x; else y[pair][n] = weight[pair] *
 * (down x) of row `pair` of x. Pairs are sorted ones. x: rounded rows of k values (quant/act.h),
 * weights rows of k values of the kernel's type, one behind another. Block (c, g) has group g and
 * columns from c * shape.cols on, with up from c * shape.cols / 2. */
typedef struct sl_group_args {
    const sl_fast_group *group;
    const sl_fast_counts *counts;
    const uint32_t *x_row;
    const float *weight;
    const uint8_t *x;
    float *y;
    uint64_t x_stride; /* bytes */
    uint32_t n, k, up;
    sl_product_shape shape;
} sl_group_args;

#endif
