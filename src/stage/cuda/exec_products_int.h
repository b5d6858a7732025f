/* One launch of a kernel of products, for the files that shape it: exec_products.c, and
 * exec_fast_products.c for numerics fast and exact. */
#ifndef SL_STAGE_CUDA_EXEC_PRODUCTS_INT_H
#define SL_STAGE_CUDA_EXEC_PRODUCTS_INT_H

#include "kernel/kernel.h"
#include "stage/cuda/cuda_int.h"
#include "stage/cuda/kernels/args_products.h"

/* How a job's rows are multiplied: few of them stream weights through shared memory once, many keep
 * tiles of both there; rounded ones as integers; in numerics fast and exact on tensor cores. */
typedef enum sl_product_way {
    SL_WAY_FEW,
    SL_WAY_MANY,
    SL_WAY_FEW_INT8,
    SL_WAY_INT8,
    SL_WAY_FAST_FEW,
    SL_WAY_FAST,
    SL_WAY_FAST_WHOLE, /* the same with rows that are not rounded: of routers */
    SL_WAY_FAST_VEC,   /* very few: no tiles */
    SL_WAY_COUNT
} sl_product_way;

/* Jobs of one type of weights and one way. */
typedef struct sl_product_launch {
    sl_cuda *c;
    sl_dtype type;
    sl_product_way way;
    sl_act_kind kind;
    uint32_t k, n_rows; /* the largest of its jobs */
    /* What shaping finds: */
    sl_cuda_kernel_id kernel;
    uint32_t rows, parts; /* of x in a tile; of k */
    uint32_t shared, threads;
    sl_product_args args; /* with its shape, and what parts need */
} sl_product_launch;

/* How many tiles a job has, of so many weight rows and rows of x; and all of a launch. */
static inline uint32_t sl_product_job_tiles(const sl_product_job *j, uint32_t cols, uint32_t rows) {
    const uint32_t across = j->end == SL_PRODUCT_SWIGLU ? cols / 2 : cols;
    return (j->n + across - 1) / across * ((j->n_rows + rows - 1) / rows);
}

static inline uint32_t sl_product_tiles(const sl_product_launch *l, uint32_t cols, uint32_t rows) {
    uint32_t tiles = 0;
    for (uint32_t i = 0; i < l->args.n_jobs; i++)
        tiles += sl_product_job_tiles(&l->args.job[i], cols, rows);
    return tiles;
}

/* Whether numerics fast and exact have a kernel for a job's product with w; of few rows, or of
 * many: exact knows none that are few. */
bool sl_cuda_fast_fits(const sl_cuda *c, const sl_gemm_job *j, const sl_mat *w);
bool sl_cuda_fast_is_few(const sl_cuda *c, const sl_gemm_job *j);
/* Whether it is one of very few rows, which are f32 there: routers' products, too. */
bool sl_cuda_vec_fits(const sl_cuda *c, const sl_gemm_job *j, const sl_mat *w);
/* Jobs of way FAST_VEC. The last launch is held (context.h). */
void sl_cuda_vec_run(sl_product_launch *l);
/* Kernel, tiles, threads, shared memory of ways FAST_FEW and FAST. */
void sl_cuda_fast_shape(sl_product_launch *l);

/* Whether numerics fast may have tiles for a job that decides. */
bool sl_cuda_fast_is_whole(const sl_cuda *c, const sl_gemm_job *j, const sl_mat *w);
/* A launch of way FAST or FAST_WHOLE by warp groups' tensor cores. False, and nothing is done: the
 * GPU has none, or its jobs are not so many rows that it pays. */
bool sl_cuda_fast_wide(sl_product_launch *l);

#endif
