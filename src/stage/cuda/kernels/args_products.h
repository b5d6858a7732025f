/* Arguments of the kernels of products, of rounded rows and of widened rows. Pointers to data and
 * to lists are what kernels read them by. C and CUDA. */
#ifndef SL_STAGE_CUDA_ARGS_PRODUCTS_H
#define SL_STAGE_CUDA_ARGS_PRODUCTS_H

#include <stdint.h>

/* Jobs of one launch, which travel as its argument: at most 4096 bytes. */
#define SL_PRODUCT_JOBS 24u

/* products_few.cu and products_few_int8.cu: threads of a block of the first, the most rows of
 * weights and of x of a tile, chunks under way. */
#define SL_FEW_THREADS 128u
#define SL_FEW_COLS    32u
#define SL_FEW_ROWS    8u
#define SL_FEW_STAGES  4u

/* products_many.cu: tiles, units of 32 values at a time, and words of shared memory: of a unit of a
 * row two for each of 16 lanes, and four so that banks differ; or one, of 16 bits. */
#define SL_MANY_THREADS  256u
#define SL_MANY_ROWS     32u
#define SL_MANY_COLS     64u
#define SL_MANY_UNITS    2u
#define SL_MANY_PITCH    36u
#define SL_MANY_PITCH_16 16u
#define SL_MANY_X_WORDS  (SL_MANY_UNITS * SL_MANY_ROWS * SL_MANY_PITCH)
#define SL_MANY_W_WORDS  (SL_MANY_UNITS * SL_MANY_COLS * SL_MANY_PITCH)

/* products_int8.cu: rows of x of a tile, the most rows of weights, 8 for each warp, chunks under
 * way. */
#define SL_INT8_ROWS   64u
#define SL_INT8_COLS   64u
#define SL_INT8_STAGES 2u

/* A matrix: n rows of k values of the kernel's type, `stride` bytes apart. F8_E4M3: row r has the
 * scales of row (scale_row + r) / 128 of so many `across`, value i that of (scale_col + i) / 128;
 * scale_col is a multiple of 4. */
typedef struct sl_product_side {
    const uint8_t *w;
    const float *scale;
    uint64_t stride;
    uint32_t scale_row, scale_col, across;
} sl_product_side;

typedef enum sl_product_end {
    SL_PRODUCT_STORE,  /* y = product with side 0 */
    SL_PRODUCT_SWIGLU, /* y = silu(product with side 0) * product with side 1 */
    SL_PRODUCT_GATE    /* y = silu(y) * product with side 0 */
} sl_product_end;

/* fast_products.cu: threads of a block, rows of x of a stream, weight rows of a tile and chunks of
 * 64 values that are under way. */
#define SL_FAST_THREADS   256u
#define SL_FAST_FEW_ROWS  8u
#define SL_FAST_TILE_COLS 128u
#define SL_FAST_STAGES    4u
#define SL_EXACT_CHUNKS   8u /* of 64 values: a segment of k in numerics exact */

#define SL_PRODUCT_LISTED 8u /* rows whose numbers travel with the job */

/* y[r][j] = row number r of x times row j of the matrix; a row's number is row[r], or few[r] of a
 * job that is `listed`, or r. */
typedef struct sl_product_job {
    sl_product_side side[2];
    const uint8_t *x; /* rows of f32, or rounded ones (quant/act.h) */
    const uint32_t *row;
    float *y;
    uint64_t x_stride; /* bytes */
    uint32_t n, k, n_rows, y_stride;
    uint32_t first; /* its first tile in the grid */
    uint32_t few[SL_PRODUCT_LISTED];
    uint8_t end;       /* sl_product_end */
    uint8_t w_aligned; /* rows of weights begin at multiples of 16 bytes */
    uint8_t x_aligned; /* rows of x do */
    uint8_t listed;
} sl_product_job;

/* How a kernel's dynamic shared memory is divided: some stages one behind the other, each with so
 * many values of some rows of weights, of F8_E4M3 their scales, and of some rows of x. */
typedef struct sl_product_room {
    uint32_t chunk;                 /* values of a row, a multiple of 256 */
    uint32_t pitch;                 /* bytes between rows of weights, which lie at the front */
    uint32_t scale_at, scale_pitch; /* of F8_E4M3: where, floats between rows */
    uint32_t x_at, x_pitch;
    uint32_t stage; /* bytes of all */
} sl_product_room;

/* A launch's tiles: their weight rows, a power of two, and how a stage lies. */
typedef struct sl_product_shape {
    uint32_t cols;
    sl_product_room room;
} sl_product_shape;

typedef struct sl_product_args {
    uint32_t n_jobs;
    sl_product_shape shape;
    /* Numerics fast, where several blocks have parts of k: sums of each part of each tile, and how
     * many have come, zero before and after. */
    float *parts;
    uint32_t *done;
    sl_product_job job[SL_PRODUCT_JOBS];
} sl_product_args;

/* A warp has 256 values of a row. */
#define SL_QUANTISE_THREADS 256u
static inline uint32_t sl_quantise_blocks(uint32_t n_rows, uint32_t k) {
    const uint64_t warps = (uint64_t)n_rows * ((k + 255) / 256), each = SL_QUANTISE_THREADS / 32;
    return (uint32_t)((warps + each - 1) / each);
}

/* Row i of dst is row[i] (or i) of x in 8 bits, `block` values with one scale, sums of `part`. */
typedef struct sl_quantise_args {
    const float *x;
    const uint32_t *row;
    uint8_t *dst;
    uint64_t dst_stride;
    uint32_t n_rows, x_stride, k, block;
    uint32_t aligned; /* rows of x begin at multiples of 16 bytes */
} sl_quantise_args;

/* Row i of x is row id[i] of the matrix, of `type` (sl_dtype). */
typedef struct sl_widen_args {
    sl_product_side side;
    const uint32_t *id;
    float *x;
    uint32_t n_rows, k, type, aligned;
} sl_widen_args;

#endif
