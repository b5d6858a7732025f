/* What the CUDA device does with rows besides products: the operations of kernel/ops.h with these
 * names, and those of stages that move rows. Data pointers are device addresses, lists are the
 * host's, read before a call returns. Bits are those of docs/numbers.md in all numerics, but
 * for attention of fast and exact, and norms that fast makes in a product or by SLUICE_CUDA_FORMS.
 * Errors are kept by the context. Thread: the context's owner. */
#ifndef SL_STAGE_CUDA_EXEC_ROWS_H
#define SL_STAGE_CUDA_EXEC_ROWS_H

#include "kernel/ops.h"
#include "quant/wire_rows.h"
#include "stage/cuda/cuda_int.h"
#include "stage/cuda/kernels/args_attention.h"
#include "stage/cuda/kernels/args_fast_attention.h"

/* Whether this address and so many floats are multiples of 16 bytes: what four values at a time
 * want. */
static inline bool sl_cuda_is_wide(const void *p, uint64_t floats) {
    return (uintptr_t)p % 16 == 0 && floats % 4 == 0;
}

/* What kernels that read pages 16 bytes at a time want of their address: tiles are multiples of 32
 * bytes. */
#define SL_CUDA_PAGES_ALIGN 16u

/* Keys of a block in the first page, or its values. */
static inline const uint8_t *sl_cuda_kv(const sl_attn_args *a, uint32_t is_v) {
    return a->kv.base + sl_kv_tile_offset(a->m, a->layer, is_v, 0);
}

/* The kernels with these names for heads of 64 and 128 values, by sl_kv_type. */
#define SL_CUDA_OF_KV_TYPES(name)                                                                  \
    [SL_KV_F32] = {SL_CUDA_##name##_64, SL_CUDA_##name##_128},                                     \
    [SL_KV_F16] = {SL_CUDA_##name##_f16_64, SL_CUDA_##name##_f16_128},                             \
    [SL_KV_BF16] = {SL_CUDA_##name##_bf16_64, SL_CUDA_##name##_bf16_128},                          \
    [SL_KV_Q8_0] = {SL_CUDA_##name##_q8_0_64, SL_CUDA_##name##_q8_0_128},                          \
    [SL_KV_FP8] = {SL_CUDA_##name##_fp8_64, SL_CUDA_##name##_fp8_128}

/* ---- exec_rows.c ---- */

void sl_cuda_norm(sl_cuda *c, const float *x, const sl_mat *w, float eps, bool centred,
                  uint32_t n_rows, uint32_t n, const sl_norm_out *out);
void sl_cuda_bias_add(sl_cuda *c, float *y, const sl_mat *b, uint32_t n_rows);
void sl_cuda_gate_rows(sl_cuda *c, float *y, const float *gate, uint32_t n_rows, uint32_t n);
void sl_cuda_vec_add(sl_cuda *c, float *y, const float *x, size_t n);
void sl_cuda_vec_clip(sl_cuda *c, float *y, float limit, size_t n);
void sl_cuda_swiglu_clamped(sl_cuda *c, float *gate, const float *up, float limit, size_t n);
void sl_cuda_rope(sl_cuda *c, float *x, const uint32_t *pos, const double *freq, uint32_t n_rows,
                  const sl_rope_shape *shape);
void sl_cuda_split_pairs(sl_cuda *c, float *x, uint32_t n, uint32_t dim, size_t stride);
void sl_cuda_put_kv(sl_cuda *c, const sl_kv_put *p);
void sl_cuda_copy_rows(sl_cuda *c, const float *x, size_t x_stride, uint32_t n_rows, uint32_t width,
                       float *y, size_t y_stride);
void sl_cuda_pick_rows(sl_cuda *c, const float *x, const uint32_t *row, const float *factor,
                       uint32_t n_rows, uint32_t width, float *y);
void sl_cuda_scale_part(sl_cuda *c, float *x, size_t stride, uint32_t n, uint32_t width, float a);
void sl_cuda_sum_pairs(sl_cuda *c, const sl_pair_sum *s);

/* Row to_row[i] of `to` becomes row from_row[i] of `from`, n rows of d values; a list that is NULL
 * is i itself. The two do not overlap. */
void sl_cuda_move_rows(sl_cuda *c, const float *from, const uint32_t *from_row, uint32_t n,
                       uint32_t d, float *to, const uint32_t *to_row);

/* ---- exec_place.c ---- */

/* False, and nothing is done, where a model's heads are not what the kernel takes: then the
 * operations one after another do it. */
bool sl_cuda_place_qkv(sl_cuda *c, const sl_qkv_place *p);

/* ---- exec_wire.c ---- */

/* Rows row[i] (NULL: i) of `rows`, n of d values each, to at[i] in a format of the wire, or from
 * there. `at` are addresses that the GPU reads and writes, multiples of 4, or of 2 for bf16. */
void sl_cuda_pack(sl_cuda *c, sl_wire_format wire, const float *rows, const uint32_t *row,
                  uint32_t n, uint32_t d, uint8_t *const *at);
void sl_cuda_unpack(sl_cuda *c, sl_wire_format wire, float *rows, const uint32_t *row, uint32_t n,
                    uint32_t d, const uint8_t *const *at);

/* Row i of `to` becomes row from[i] of x plus the sum of, in this order, its pieces that there are
 * and row from[i] of `shared`. Of n rows of d values. */
typedef struct sl_cuda_merge_rows {
    float *to;                   /* may be x where `from` is NULL */
    const float *x, *shared;     /* shared NULL: nothing */
    const uint32_t *from;        /* list [n]; NULL: i itself */
    const uint8_t *const *piece; /* list [n][k] of addresses that the GPU reads, or NULL */
    sl_wire_format wire;
    uint32_t n, d, k;
} sl_cuda_merge_rows;
void sl_cuda_merge(sl_cuda *c, const sl_cuda_merge_rows *m);

/* ---- exec_attention.c ---- */

/* How pages are walked: with very few queries of a block, so that there are enough of them, with
 * few or many, with wide heads, or with any. */
typedef enum sl_cuda_attn_form {
    SL_CUDA_ATTN_FAR,
    SL_CUDA_ATTN_FEW,
    SL_CUDA_ATTN_MANY,
    SL_CUDA_ATTN_WIDE,
    SL_CUDA_ATTN_ANY,
    SL_CUDA_ATTN_FORMS
} sl_cuda_attn_form;

/* What keys and values are like. apart: values are not what leads the keys. */
typedef struct sl_cuda_heads {
    sl_kv_type type;
    uint32_t dim, v_dim;
    bool apart;
} sl_cuda_heads;

static inline sl_cuda_heads sl_cuda_heads_of(const sl_model_spec *m) {
    return (sl_cuda_heads){m->kv_type, m->head_dim, sl_kv_value_dim(m), sl_kv_sides(m) == 2};
}

/* Whether a form can do these on this GPU. */
bool sl_cuda_attn_can(const sl_cuda *c, sl_cuda_attn_form form, const sl_cuda_heads *h);
/* The form is chosen unless it is less than SL_CUDA_ATTN_FORMS, and how many query heads of a kv
 * head a block has unless `heads` says it. All give the same bits. */
void sl_cuda_attention_as(sl_cuda *c, const sl_attn_args *a, sl_cuda_attn_form form,
                          uint32_t heads);
void sl_cuda_attention_span(sl_cuda *c, const sl_attn_span *a);

/* ---- exec_fast_attention.c ---- */

/* Numerics fast, by tensor cores in 16 bits: rows that see pages of one request, heads as of
 * sl_cuda_fast_attention (exec_attention.c). */
void sl_cuda_fast_prompt(sl_cuda *c, const sl_attn_args *a);
/* The same by warp groups (exec_fast_prompt.c): whether this GPU has that, and rows are many; and
 * with lists and all as kernels of walks have it (args_attention.h). False, and nothing was done:
 * there is no memory for the pages in bf16. */
bool sl_cuda_prompt_can(const sl_cuda *c, const sl_attn_args *a);
bool sl_cuda_prompt_wide(sl_cuda *c, const sl_attn_args *a, const sl_k_attention_args *k,
                         uint32_t walks);
/* Numerics fast: runs of rows of a request so, single rows by tensor cores, their positions split
 * over the GPU; f32 pages are rounded to tf32 on the way, pages of 16 bits go as they are. False,
 * and nothing is done, where heads are not what the kernels take. */
bool sl_cuda_fast_attention(sl_cuda *c, const sl_attn_args *a);
/* Rows of single requests as one launch of numerics fast has them: whether they are all of one;
 * numbers of pages of all; how they are split, with numbers of pages from page[at] on; and scratch
 * for launches of up to so many blocks, as long as nobody else wants more (0: there is a failure).
 * Of `a` only the model, a layer, rows, positions and pages are read. */
bool sl_cuda_split_alone(const sl_attn_args *a);
size_t sl_cuda_split_pages(const sl_attn_args *a);
void sl_cuda_split(const sl_cuda *c, const sl_attn_args *a, uint32_t at, uint32_t *page,
                   sl_fast_attn_list *out);
bool sl_cuda_split_reserve(sl_cuda *c, const sl_attn_args *a, uint32_t blocks);
/* Numerics exact, of heads that fast attention takes: the same bits for every row, whatever others
 * there are (exec_attention.c). */
void sl_cuda_exact_attention(sl_cuda *c, const sl_attn_args *a);
/* As the context's numerics say. */
void sl_cuda_attention(sl_cuda *c, const sl_attn_args *a);

/* ---- exec_route.c ---- */

/* expert and gate: where the GPU writes. `rank` is not used. */
void sl_cuda_route(sl_cuda *c, const sl_route_args *a);

#endif
