/* Products of many rows by fast_wide.cu: in which tiles, and what that costs. Known without a GPU.
 * Thread: any. */
#ifndef SL_STAGE_CUDA_WIDE_PLAN_H
#define SL_STAGE_CUDA_WIDE_PLAN_H

#include "stage/cuda/cuda_int.h"
#include "stage/cuda/kernels/args_wide.h"

typedef struct sl_wide_shape {
    sl_cuda_kernel_id kernel;
    uint32_t halves, rows; /* SL_WIDE_TILES */
} sl_wide_shape;

#define SL_WIDE_OF(halves, rows) +1
enum { SL_WIDE_SHAPES = 0 SL_WIDE_TILES(SL_WIDE_OF) };
#undef SL_WIDE_OF
extern const sl_wide_shape sl_wide_shape_of[SL_WIDE_SHAPES];

/* Cycles of a GPU of so many multiprocessors; shape: an index; UINT32_MAX: a job is not for it. */
uint32_t sl_wide_cycles(const sl_wide_args *a, uint32_t shape, uint32_t sms);
/* The cheapest one. */
uint32_t sl_wide_choose(const sl_wide_args *a, uint32_t sms);
/* Whether it is better than tiles of mma.sync, which are smaller (fast_products.cu). */
bool sl_wide_pays(const sl_wide_args *a, uint32_t shape, uint32_t sms);
/* Tiles of all jobs, stages; the launch has as many blocks as multiprocessors, or fewer, of
 * SL_WIDE_THREADS, with SL_WIDE_SHARED bytes. Of jobs n, k, n_rows and end are there. */
void sl_wide_layout(sl_wide_args *a, uint32_t shape);
#define SL_WIDE_SHARED (226u << 10)

#endif
