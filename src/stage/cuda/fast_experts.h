/* Routed experts of one layer on a GPU in numerics fast and exact: which kernels, and their
 * launches.
 *
 * Ids and weights of experts lie on the GPU, where the router leaves them: lists of who multiplies
 * what are made there, and nothing is asked of the host or waits for it. A batch is planned without
 * a GPU: sl_fast_plan_make chooses kernels by how many rows an expert has on average and writes
 * down the launches. sl_cuda_fast_moe runs them; benches time them. */
#ifndef SL_STAGE_CUDA_FAST_EXPERTS_H
#define SL_STAGE_CUDA_FAST_EXPERTS_H

#include "stage/cuda/cuda_int.h"
#include "stage/cuda/kernels/args_fast.h"
#include "stage/cuda/kernels/args_fast_vec.h"
#include "stage/cuda/kernels/args_group.h"

#define SL_FAST_LAUNCHES 7

/* What matrices of experts are, gate and up of one type, where groups of pairs are multiplied with
 * them as numerics `cpu` does, to its bits: blocks of whole numbers with rows in 8 bits
 * (quant/act.h), F16, BF16 and F8_E4M3 with rows of f32. Way SL_FAST_GROUPS alone does that. Left
 * out: BF16 on tensor cores. */
typedef struct sl_fast_types {
    sl_dtype up, down;
} sl_fast_types;

/* y[r] (+)= sum over the row's pairs of gate * down(swiglu(gate x[r], up x[r])) of expert id, in
 * f32, in the order of the pairs where more than SL_FAST_SMALL_ROWS rows are asked for. The experts
 * of a row differ, the pairs of a row follow one another. Pointers are device addresses; x and y
 * are rows of d_model values, one behind another. d_model and d_ff are multiples of 8, n_experts at
 * most SL_FAST_EXPERTS. */
typedef struct sl_fast_moe {
    uint32_t d_model, d_ff, n_experts, n_rows, n_pairs;
    uint32_t top_k; /* n_pairs / n_rows, where every row has as many; else row_first says */
    uint32_t n_out; /* rows of y, of which row_first then speaks; 0: those of x */
    sl_fast_types types;
    const sl_fast_expert *expert;  /* [n_experts], of sl_cuda_fast_expert */
    const sl_group_beside *beside; /* [n_experts], with types; NULL: scales and biases none */
    const uint32_t *id;            /* [n_pairs], 16-byte aligned; n_experts or more: none */
    const float *gate;             /* [n_pairs], 16-byte aligned */
    const uint32_t *row_first, *pair_row; /* [n_rows + 1], [n_pairs]; NULL with top_k */
    uint32_t *heard; /* a copy of the ids goes there, 16-byte aligned; NULL: nowhere */
    float limit;     /* of gpt-oss's SwiGLU; 0: the plain one */
    bool add;        /* y += instead of y = */
    const float *x;
    const uint16_t *x16; /* the same rows in bf16, where they are there; NULL */
    float *y;
    /* sl_fast_scratch_bytes of device memory, 256-byte aligned, whose first SL_FAST_ZEROED bytes
     * were zeroed once, before the first batch that uses it. */
    uint8_t *scratch;
    uint32_t sms; /* multiprocessors of a GPU of sm_90, all free for this; 0: another GPU */
    /* So many blocks run at the same time, and in clusters: in the emulator where a test says it.
     */
    bool together;
    bool apart; /* both products in launches of their own, all the same: for benches */
    bool many; /* forms for many rows that no GPU has run yet, where the way is AUTO or leaves it */
    bool maps; /* all experts have them */
    sl_cuda_few few;
    uint32_t
        shared; /* bytes of shared memory that fast_small.cu may take; 0: as many as it likes */
    uint32_t most_shared; /* of a block, by any kernel; 0: as many as it likes */
} sl_fast_moe;

#define SL_FAST_ZEROED 32768u

/* Which kernels may be taken; AUTO chooses. */
typedef enum sl_fast_way {
    SL_FAST_AUTO,
    SL_FAST_STREAM, /* few rows of an expert: weights into registers */
    SL_FAST_TILES,  /* more: tiles in shared memory */
    SL_FAST_SMALL,  /* sm_90, at most SL_FAST_SMALL_ROWS rows: one launch */
    SL_FAST_BIG,    /* sm_90a, many rows: warp groups' tensor cores */
    SL_FAST_VEC,    /* at most SL_VEC_ROWS rows: each pair by itself, no lists */
    SL_FAST_RING,   /* the same, weights by the copy engine */
    SL_FAST_LINES,  /* as BIG, with another end (fast_lines.cu); no GPU has run it yet */
    SL_FAST_EXACT,  /* numerics exact: tiles, sums in f32; a row's bits are its own matter */
    SL_FAST_GROUPS, /* where types are said, and nothing else is; no GPU has run it yet */
    SL_FAST_WAYS
} sl_fast_way;

typedef struct sl_fast_launch {
    sl_cuda_kernel_id kernel;
    uint32_t grid_x, grid_y, threads, shared;
    union {
        sl_fast_sort_args sort;
        sl_fast_round_args round;
        sl_fast_count_args count;
        sl_fast_up_args up;
        sl_fast_down_args down;
        sl_fast_sum_args sum;
        sl_fast_small_args small;
        sl_fast_big_args big;
        sl_vec_moe_args vec;
        sl_quantise_args quantise;
        sl_group_args group;
    } args;
} sl_fast_launch;

typedef struct sl_fast_plan {
    uint32_t n;
    sl_fast_launch launch[SL_FAST_LAUNCHES];
} sl_fast_plan;

/* Whether the batch can be computed in that way. */
bool sl_fast_can(const sl_fast_moe *m, sl_fast_way way);
/* The plan of VEC and RING, with rows of d_ff values in bf16 of each pair at mid; false, and
 * nothing is done, where it cannot be taken. out NULL: only that is asked. */
bool sl_fast_vec_plan(const sl_fast_moe *m, bool ring, void *mid, sl_fast_plan *out);
/* For batches of at most n_rows rows and n_pairs pairs, by any way but SL_FAST_EXACT. */
size_t sl_fast_scratch_bytes(uint32_t d_model, uint32_t d_ff, uint32_t n_experts, uint32_t n_rows,
                             uint32_t n_pairs);
/* The same for SL_FAST_EXACT, and for SL_FAST_GROUPS of any types. */
size_t sl_fast_exact_bytes(uint32_t d_model, uint32_t d_ff, uint32_t n_experts, uint32_t n_rows,
                           uint32_t n_pairs);
size_t sl_fast_groups_bytes(uint32_t d_model, uint32_t d_ff, uint32_t n_experts, uint32_t n_rows,
                            uint32_t n_pairs);
/* Whether matrices of type t are multiplied with rows of f32; and those of these sizes and types
 * can be computed as SL_FAST_GROUPS. */
bool sl_fast_is_float(sl_dtype t);
bool sl_fast_groups_fit(uint32_t d_model, uint32_t d_ff, sl_fast_types types);
/* A way that cannot be taken is chosen anew. */
void sl_fast_plan_make(const sl_fast_moe *m, sl_fast_way way, sl_fast_plan *out);

/* A batch on c's stream, as its numerics say; sms, together, maps, few, many and most_shared are
 * filled in. Thread: owner. */
void sl_cuda_fast_moe(sl_cuda *c, const sl_fast_moe *m);
void sl_cuda_fast_moe_by(sl_cuda *c, const sl_fast_moe *m, sl_fast_way way);

/* What a table of experts says of one, with matrices at gate, up and down: device addresses of them
 * that outlive it. maps: SL_FAST_MAPS_BYTES of device memory for what the copy engine is told of
 * them if they are bf16, 128-byte aligned; 0, or a GPU that has no use for it: nothing. Waits. */
#define SL_FAST_MAPS_BYTES 384u
sl_status sl_cuda_fast_expert(sl_cuda *c, const void *gate, const void *up, const void *down,
                              uint32_t d_model, uint32_t d_ff, uint64_t maps, sl_fast_expert *out,
                              sl_err *err) SL_MUST_CHECK;

#endif
