/* Argument structs of the fast kernels for routed experts (fast_*.cu).
 *
 * A pair is a row of x and one of its experts: pair r * top_k + j is the j-th expert of row r, or
 * pairs row_first[r] .. row_first[r + 1] - 1 are those of row r = pair_row[pair]. Its id is a
 * number below n_experts or, where this GPU has no part in it, any other. The sorting kernel puts
 * pairs with one expert behind one another: up makes a row of d_ff values in bf16 of each, down a
 * row of d_model, and the sum of a row's pairs is in their order. All pointers are device
 * addresses. */
#ifndef SL_CUDA_ARGS_FAST_H
#define SL_CUDA_ARGS_FAST_H

#include <stdint.h>

/* Matrices as they lie in the file, bf16: gate and up [d_ff][d_model], down [d_model][d_ff], rows
 * one behind another, 16-byte aligned. */
typedef struct sl_fast_expert {
    const uint8_t *gate, *up, *down;
    const void *maps; /* 3 tensor maps, of gate, up and down: boxes of 128 rows; NULL: none */
} sl_fast_expert;

/* Some rows of one expert, sorted pairs first .. first + n - 1: as many as a kernel takes at
 * once. */
typedef struct sl_fast_group {
    const uint8_t *gate, *up, *down;
    uint32_t first, n, expert, unused;
} sl_fast_group;

/* The same for fast_big.cu: as many as fit a warp group's registers. For launches of clusters of
 * two, pieces 2 i and 2 i + 1 are of the same expert and have one width; the last may have no
 * pairs. */
#define SL_FAST_BIG_WIDTH   160u  /* most pairs */
#define SL_FAST_BIG_ROOM    4096u /* bytes of shared memory in front of stages, 1024-byte aligned */
#define SL_FAST_BIG_WEIGHTS 32768u /* bytes of a stage that are weights */
#define SL_FAST_BIG_STAGES  8u     /* most stages */
#define SL_FAST_LINES_WIDTH 152u   /* the same of fast_lines.cu */
#define SL_FAST_LINES_ROOM  20480u
typedef struct sl_fast_piece {
    const void *maps;
    uint32_t first, n, width; /* width: of SL_WGMMA_WIDTHS, at least n */
    uint32_t unused;
} sl_fast_piece;

/* How long the lists are. */
typedef struct sl_fast_counts {
    uint32_t n_groups, n_pieces;
    uint32_t stages, stage_bytes; /* of fast_big.cu */
} sl_fast_counts;

#define SL_FAST_EXPERTS 1024u /* most of them */

/* Rows of f32 to rows of bf16, n values in all, a multiple of 8. */
typedef struct sl_fast_round_args {
    const float *x;
    uint16_t *y;
    uint64_t n;
} sl_fast_round_args;

/* fast_sort_many.cu: pairs of a block, four a thread, and values that a thread rounds. */
#define SL_FAST_SORT_THREADS 256u
#define SL_FAST_SORT_PAIRS   (4 * SL_FAST_SORT_THREADS)
#define SL_FAST_ROUND_VALUES 16u

/* The first `blocks` blocks count their pairs, others round rows. */
typedef struct sl_fast_count_args {
    const uint32_t *id;
    uint32_t n_pairs, n_experts, blocks;
    uint32_t *count; /* [blocks][n_experts up to a multiple of 4] */
    uint32_t *rank;  /* of each pair among those of its expert and block */
    sl_fast_round_args round;
} sl_fast_count_args;

/* Lists of a batch (fast_sort.cu, fast_sort_many.cu). */
typedef struct sl_fast_sort_args {
    const sl_fast_expert *expert;
    const uint32_t *id, *pair_row; /* pair_row: or NULL */
    const float *gate;
    uint32_t *heard;              /* where a copy of the ids goes; NULL: nowhere */
    const uint32_t *count, *rank; /* of sl_fast_count_args */
    uint32_t blocks;              /* that counted: as many as sort; 0: one block does all */
    uint32_t n_pairs, top_k, n_experts;
    uint32_t cap;        /* pairs of a group; 0: no groups */
    uint32_t pair;       /* blocks of a cluster that takes pieces together; 0: no pieces */
    uint32_t width;      /* most pairs of a piece */
    uint32_t stage_room; /* bytes for stages of fast_big.cu */
    sl_fast_group *group;
    sl_fast_piece *piece;
    uint32_t *x_row; /* of sorted pairs */
    float *weight;
    uint32_t *place; /* of each pair among the sorted ones; ~0: it has none */
    sl_fast_counts *counts;
} sl_fast_sort_args;

/* mid[pair][d_ff] = silu(gate x) * (up x). */
typedef struct sl_fast_up_args {
    const sl_fast_group *group;
    const sl_fast_counts *counts;
    const uint32_t *x_row;
    const float *x;      /* [rows][d_model]; read by the stream kernels */
    const uint16_t *x16; /* the same in bf16; read by the tile kernels */
    uint16_t *mid;
    uint32_t d_model, d_ff;
    float limit; /* 0: SwiGLU; else gpt-oss's clamped form with this limit */
} sl_fast_up_args;

/* part[pair][d_model] = weight[pair] * (down mid[pair]); in f32 by the stream kernels and in
 * numerics exact, in bf16 by the other tile kernels. */
typedef struct sl_fast_down_args {
    const sl_fast_group *group;
    const sl_fast_counts *counts;
    const uint16_t *mid;
    const float *weight;
    float *part;
    uint16_t *part16;
    uint32_t d_model, d_ff;
} sl_fast_down_args;

/* y[row] (+)= sum of part[place[pair]], its pairs in order. */
typedef struct sl_fast_sum_args {
    const float *part;                 /* or NULL */
    const uint16_t *part16;            /* read where part is NULL */
    const uint32_t *place, *row_first; /* row_first: or NULL */
    float *y;
    uint32_t d_model, top_k, add;
} sl_fast_sum_args;

/* Both products of many pairs, in one launch of at most as many blocks as can be resident at once.
 * mid has weights of pairs in it already, so that part16 needs only to be summed. */
typedef struct sl_fast_big_args {
    const sl_fast_piece *piece;
    const sl_fast_counts *counts;
    const uint32_t *x_row;
    const float *weight;
    const uint16_t *x16;
    uint16_t *mid, *part16;
    uint32_t *ready; /* [pieces], and one word: 0 before and after */
    uint32_t *done;
    uint32_t d_model, d_ff;
    uint32_t phases; /* 1: up, 2: down, 3: both, which waits for other blocks */
    uint32_t room;   /* bytes in front of stages */
    float limit;
} sl_fast_big_args;

/* All of a batch of at most SL_FAST_SMALL_ROWS rows in one launch of at most as many blocks as can
 * be resident at once, without lists (fast_small.cu). A stage holds 16 weight rows of `up_k` or
 * `down_k` values and n_rows rows of mid; `x_at`, `table_at` and `stage_at` are bytes from the
 * beginning of shared memory. */
#define SL_FAST_SMALL_ROWS  8u
#define SL_FAST_SMALL_PAIRS 64u
#define SL_FAST_SMALL_ROOM  16384u /* bytes in front of x_at */
#define SL_FAST_SMALL_PAD   64u    /* bytes behind each row in shared memory */
typedef struct sl_fast_small_args {
    const sl_fast_expert *expert;
    const uint32_t *id, *pair_row; /* pair_row: or NULL */
    const float *gate;
    uint32_t *heard; /* where a copy of the ids goes; NULL: nowhere */
    const float *x;
    uint16_t *mid; /* [pairs] */
    float *y;
    uint32_t *ready; /* [SL_FAST_SMALL_PAIRS + 1], 0 before and after */
    uint32_t n_rows, n_pairs, top_k, n_experts;
    uint32_t d_model, d_ff, add;
    uint32_t up_k, down_k; /* values of k in a stage */
    uint32_t slots, slot_bytes, x_at, table_at, stage_at;
    uint32_t phases; /* 1: up, 2: down, 3: both, which waits for other blocks */
    float limit;
} sl_fast_small_args;

#endif
