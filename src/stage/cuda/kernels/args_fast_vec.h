/* Arguments of products of very few rows with weights in bf16, numerics fast (fast_vec.cu). All
 * pointers are device addresses. */
#ifndef SL_CUDA_ARGS_FAST_VEC_H
#define SL_CUDA_ARGS_FAST_VEC_H

#include "stage/cuda/kernels/args_attention.h"
#include "stage/cuda/kernels/args_fast.h"

#define SL_VEC_THREADS 256u
#define SL_VEC_PART    256u /* values of a weight row that a warp takes at a time */
#define SL_VEC_AHEAD   8u   /* weight rows of a stage of a warp */
#define SL_VEC_STAGES  3u
#define SL_VEC_RING    (SL_VEC_THREADS / 32 * SL_VEC_STAGES * SL_VEC_AHEAD * SL_VEC_PART * 2)
#define SL_VEC_ROWS    4u /* most rows of x of a product */
#define SL_VEC_JOBS    4u
#define SL_VEC_SETS    32u /* most pairs of a row */

/* How the host shares work: blocks of a multiprocessor, as many of the next kernel find room, or
 * one where weights lie in a ring of shared memory; bytes of that at most. */
#define SL_VEC_BLOCKS      2u
#define SL_VEC_RING_BLOCKS 1u
#define SL_VEC_SHARED      (200u << 10)

/* Where a block's shared memory has what, in bytes: behind the ring, if there is one, pointers to
 * rows of weights, x_rows rows of x of k values in whole parts, sums of each part of each row of
 * weights with `rows` rows of x. `end` is a multiple of 16. */
typedef struct sl_vec_room {
    uint32_t row, x, sum, end;
    uint32_t parts, wide; /* of k; values of a row of x with what fills its last part */
} sl_vec_room;

SL_FN sl_vec_room sl_vec_room_of(bool ring, uint32_t weights, uint32_t x_rows, uint32_t k,
                                 uint32_t rows) {
    sl_vec_room r;
    r.parts = (k + SL_VEC_PART - 1) / SL_VEC_PART;
    r.wide = r.parts * SL_VEC_PART;
    r.row = ring ? SL_VEC_RING : 0;
    r.x = r.row + (weights * (uint32_t)sizeof(void *) + 15) / 16 * 16;
    r.sum = r.x + x_rows * r.wide * (uint32_t)sizeof(float);
    r.end = r.sum + (r.parts * weights * rows * (uint32_t)sizeof(float) + 15) / 16 * 16;
    return r;
}

/* y[r][j] = row r of x times row j of w[0]; with two sides SwiGLU of the products with w[0] and
 * w[1]; with `gate` that of what y was and the product. It is added to sum[r][j], too, unless sum
 * is NULL. */
typedef struct sl_vec_job {
    const uint8_t *w[2];
    uint64_t stride[2]; /* bytes */
    float *y, *sum;
    uint32_t n, y_stride, sum_stride;
    uint32_t first; /* its first output among those of all jobs */
    uint32_t gate;
} sl_vec_job;

/* Jobs with the same rows x. Blocks share the outputs of all jobs evenly. */
typedef struct sl_vec_args {
    const float *x;
    /* Rows are normalised first (docs/numbers.md, "Norms", but for the order of sums) and go to h,
     * too, which is elsewhere. NULL: they are not. */
    const void *norm;
    float *h;
    uint32_t norm_type, centred;
    float eps;
    uint32_t x_stride, h_stride; /* floats */
    uint32_t k, n_rows, n_jobs, sides;
    uint32_t outputs, most; /* of all jobs; of a block at most */
    uint32_t fetch;         /* all weights come near before the wait */
    sl_vec_job job[SL_VEC_JOBS];
    /* What the last block that is through makes of the rows y of the only job. done: a counter, 0
     * before and after; NULL: nothing. */
    sl_k_route_args route;
    uint32_t *done;
} sl_vec_args;

/* Routed experts: pairs of row r as in args_fast.h, each by itself. mid[pair] = SwiGLU of its row
 * with its expert's gate and up, y[r] (+)= the sum of what down makes of its pairs, weighed, in
 * their order. A row of x is a block in y; blocks in x share the values of mid, or the columns. */
typedef struct sl_vec_moe_args {
    const sl_fast_expert *expert;
    const uint32_t *id, *row_first; /* row_first: or NULL */
    const float *gate;
    uint32_t *heard; /* where a copy of the ids goes; NULL: nowhere */
    const float *x;
    uint16_t *mid;
    float *y;
    uint32_t d_model, d_ff, top_k, n_experts, add, fetch;
    uint32_t most;  /* values of mid, or columns, of a block at most */
    uint32_t table; /* whether the experts' matrices are looked up in shared memory */
    float limit;    /* 0: SwiGLU; else gpt-oss's clamped form with this limit */
} sl_vec_moe_args;

#endif
