/* Arguments of the kernels of rows (rows.cu, wire.cu). Pointers are addresses that the GPU reads;
 * those called lists came through sl_cuda_list. */
#ifndef SL_STAGE_CUDA_ARGS_ROWS_H
#define SL_STAGE_CUDA_ARGS_ROWS_H

#include <stdint.h>

/* Threads of a block. */
#define SL_CUDA_NORM_THREADS  512u /* at most */
#define SL_CUDA_SMALL_THREADS 128u /* 16 a vector */
#define SL_CUDA_ROW_THREADS   256u
#define SL_CUDA_ROPE_HEADS    16u /* of a block */
#define SL_CUDA_PAIR_THREADS  128u
#define SL_CUDA_PAIR_COLUMNS  512u /* of a block */

/* Rows x of n values, a block each: y, where there is one, and rounded rows act[kind] of
 * act_bytes[kind]. wide: rows of x and y begin at multiples of 16 bytes. parts: of fast_norm.cu
 * alone, rows in n_parts numbers of bf16 each, as sl_wide_rows_args has them (args_wide.h). */
typedef struct sl_k_norm_args {
    const float *x;
    const void *w;
    float *y;
    uint8_t *act[3];
    uint32_t act_bytes[3];
    uint16_t *parts;
    uint32_t n_parts, n_rows, n, dtype, centred, wide;
    float eps;
} sl_k_norm_args;

#define SL_FAST_NORM_THREADS 256u
#define SL_FAST_NORM_MOST    8192u /* values of a row, a multiple of 8 */

typedef enum sl_cuda_vec_op {
    SL_CUDA_VEC_ADD,
    SL_CUDA_VEC_CLIP,
    SL_CUDA_VEC_GLU,
} sl_cuda_vec_op;

typedef struct sl_k_vec_args {
    float *y;
    const float *x;
    uint64_t n;
    float a;
    uint32_t op;   /* sl_cuda_vec_op */
    uint32_t wide; /* y, x and n are multiples of 4 floats */
} sl_k_vec_args;

/* A row a block in x, columns in y. */
typedef struct sl_k_bias_add_args {
    float *y;
    const void *b;
    uint32_t dtype, n;
} sl_k_bias_add_args;

typedef struct sl_k_gate_rows_args {
    float *y;
    const float *gate;
    uint32_t n;
} sl_k_gate_rows_args;

/* Row to_row[i] of y is factor[i] * row from_row[i] of x, or a times it where `scales`, or a copy.
 * Lists may be NULL: i itself, no factor. 1 << lanes_log threads share a row; wide: everything is a
 * multiple of 4 floats. */
typedef struct sl_k_copy_rows_args {
    const float *x;
    float *y;
    uint64_t x_stride, y_stride;
    const uint32_t *from_row, *to_row;
    const float *factor;
    uint32_t n_rows, width, lanes_log, wide, scales;
    float a;
} sl_k_copy_rows_args;

/* Vector t of row r, x + r * x_stride + t * width, to base + at[r] + t * tile. put_kv copies f32,
 * round_kv makes a part of another type than f32: a warp each. */
typedef struct sl_k_put_kv_args {
    const float *x;
    uint8_t *base;
    const uint64_t *at; /* list: bytes */
    uint64_t tile;
    uint32_t n_rows, n_tiles, width, x_stride, lanes_log, wide;
    uint32_t type; /* sl_kv_type */
} sl_k_put_kv_args;

/* A row a block in x, heads in y; 1 << lanes_log threads share a head. */
typedef struct sl_k_rope_args {
    float *x;
    const uint32_t *pos; /* list */
    const double *freq;
    uint32_t n_heads, head_dim, half, x_stride, lanes_log;
} sl_k_rope_args;

typedef struct sl_k_split_pairs_args {
    float *x;
    uint64_t stride;
    uint32_t n, dim;
} sl_k_split_pairs_args;

/* Pairs whose results go to one place, in order: items first .. first + n - 1. */
typedef struct sl_cuda_pair_place {
    float *to;
    uint32_t first, n;
} sl_cuda_pair_place;

typedef struct sl_cuda_pair_item {
    uint32_t pair, adds;
    float gate;
} sl_cuda_pair_item;

/* A place a block in x, columns in y. */
typedef struct sl_k_sum_pairs_args {
    const float *y;
    const sl_cuda_pair_place *place; /* list */
    const sl_cuda_pair_item *item;   /* list */
    uint32_t d, first, n, weighs;
} sl_k_sum_pairs_args;

/* Row row[i] (list; NULL: i) of `rows` to at[i] (list), or from there: a block each. */
typedef struct sl_k_wire_args {
    float *rows;
    const uint32_t *row;
    uint8_t *const *at;
    uint32_t d, wire; /* sl_wire_format */
} sl_k_wire_args;

/* Row i of `to`, a block in x, columns in y: row from[i] (list; NULL: i) of x, plus the sum of its
 * pieces, piece[i * k ..] (list), and of row from[i] of `shared` (NULL: nothing). */
typedef struct sl_k_merge_args {
    float *to;
    const float *x, *shared;
    const uint32_t *from;
    const uint8_t *const *piece;
    uint32_t d, k, wire;
} sl_k_merge_args;

#define SL_CUDA_PLACE_THREADS 128u
#define SL_CUDA_PLACE_DIM     256u /* values of a head at most */

/* sl_qkv_place of kernel/ops.h: a row a block in x, vectors in y, 16 threads each: queries, then
 * keys, then values. */
typedef struct sl_k_place_args {
    float *q;
    const float *k, *v;
    const void *bias[3], *norm[2];
    uint32_t bias_type[3], norm_type[2];
    const double *freq;  /* NULL: they are not rotated */
    const float *grow;   /* list, or NULL */
    const uint32_t *pos; /* list */
    const uint64_t *at;  /* list: bytes from kv to a row's key of the first head */
    uint8_t *kv;
    uint64_t tile, values; /* bytes between heads; from a key to its value */
    uint32_t type;         /* sl_kv_type */
    uint32_t heads, kv_heads, dim, half, centred, pairs, unit, clips;
    float eps, clip;
} sl_k_place_args;

#endif
