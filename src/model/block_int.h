/* What the computations of a block share, for block.c and mla.c. Thread: the owner of ex->pool. */
#ifndef SL_MODEL_BLOCK_INT_H
#define SL_MODEL_BLOCK_INT_H

#include "kernel/delta.h"
#include "kernel/ops.h"
#include "model/model_int.h"

/* Arena blocks start at multiples of this, so each may waste as much. */
#define SL_SCRATCH_SLACK 64u

static inline size_t sl_scratch_floats(size_t rows, size_t width) {
    return rows * width * sizeof(float) + SL_SCRATCH_SLACK;
}

/* Rounded rows, of every kind, in segments or not: each begins at a multiple of 64 bytes. */
static inline size_t sl_scratch_act(size_t rows, size_t width) {
    size_t n = 0;
    for (sl_act_kind i = 0; i < SL_ACT_KINDS; i++)
        n += rows * (sl_act_row_bytes(i, (uint32_t)width) + SL_SEGMENTS * 64) + SL_SCRATCH_SLACK;
    return n;
}

/* Rows that come from all ranks: in f32, or a rank's own in words and all of them; then rounded.
 * Words of a kind take no more than half of what f32 does. */
static inline size_t sl_scratch_arrival(size_t rows, size_t width) {
    return sl_scratch_floats(rows, width) + sl_scratch_act(rows, width) + 2 * SL_SCRATCH_SLACK;
}

/* The caller sized the arena with sl_*_scratch_bytes. */
static inline void *sl_take(sl_arena *a, size_t n, size_t size) {
    void *p = sl_arena_take(a, n, size);
    SL_ASSERT(p != NULL);
    return p;
}

/* Memory of lists, which is the host's wherever rows are: of a device with rows of its own, lists
 * last until the stage's calls are all asked for. */
static inline void *sl_take_list(const sl_exec *ex, sl_arena *scratch, size_t n, size_t size) {
    return sl_take(ex->lists ? ex->lists : scratch, n, size);
}

static inline float *sl_take_rows(sl_arena *a, size_t rows, size_t width) {
    size_t n;
    SL_ASSERT(!__builtin_mul_overflow(rows, width, &n));
    return sl_take(a, n, sizeof(float));
}

/* y = x w^T, rows contiguous. */
static inline sl_gemm_job sl_dense_job(const sl_mat *w, const float *x, uint32_t n_rows, float *y) {
    return (sl_gemm_job){
        .w = w, .x = x, .n_rows = n_rows, .x_stride = w->k, .y_stride = w->n, .y = y};
}

/* The kind of rows that products with w take, as a bit; that of SL_ACT_NONE: f32. */
static inline uint32_t sl_act_kinds(const sl_exec *ex, const sl_mat *w) {
    return 1u << sl_act_kind_for(ex->activations, w->dtype);
}

/* Rows row[i] (or i) of x, of k values, rounded for matrices with these segments, or none. */
static inline sl_act sl_take_act(const sl_exec *ex, uint32_t kinds, const float *x,
                                 const uint32_t *row, uint32_t n_rows, uint32_t k,
                                 const sl_segments *segments, sl_arena *scratch) {
    sl_act act = {0};
    for (sl_act_kind i = 0; i < SL_ACT_KINDS; i++) {
        if (!(kinds & 1u << i)) continue;
        uint8_t *to = sl_take(scratch, n_rows, sl_act_bytes_in(segments, i, k));
        sl_quantise_segments(ex, x, row, n_rows, k, k, segments, i, to);
        act.row[i] = to;
    }
    return act;
}

/* Rows x (RMS or layer) normalised for products with n matrices: rounded, for which scratch makes
 * room, as they take them; in f32 into h where one of them takes that, else nobody may read h. */
static inline sl_act sl_norm_to(const sl_exec *ex, const sl_mat *norm, float eps, bool centred,
                                const float *x, uint32_t n_rows, const sl_mat *const *w, uint32_t n,
                                float *h, sl_arena *scratch) {
    uint32_t kinds = 0;
    sl_norm_out out = {.y = centred ? h : NULL};
    sl_act act = {0};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t kind = sl_act_kinds(ex, w[i]);
        kinds |= kind;
        if (kind == 1u << SL_ACT_NONE) out.y = h;
    }
    for (sl_act_kind i = 0; i < SL_ACT_KINDS; i++)
        if (kinds & 1u << i)
            act.row[i] = out.act[i] = sl_take(scratch, n_rows, sl_act_row_bytes(i, norm->k));
    sl_norm_quantise(ex, x, norm, eps, centred, n_rows, norm->k, &out);
    return act;
}

/* The same with the norm of the model's blocks. */
static inline sl_act sl_norm_for(const sl_model *m, const sl_exec *ex, const sl_mat *norm,
                                 const float *x, uint32_t n_rows, const sl_mat *const *w,
                                 uint32_t n, float *h, sl_arena *scratch) {
    return sl_norm_to(ex, norm, m->spec.rms_eps, m->arch->layer_norm, x, n_rows, w, n, h, scratch);
}

/* y = x w^T of rows that may be there rounded. */
static inline void sl_project_act(const sl_exec *ex, const sl_mat *w, const float *x,
                                  const sl_act *act, uint32_t n_rows, float *y) {
    sl_gemm_job job = sl_dense_job(w, x, n_rows, y);
    job.act = *act;
    sl_gemm(ex, &job, 1);
}

/* The same of rows in f32, rounded here where w asks for it, into rows y_stride floats apart. */
static inline void sl_project_to(const sl_exec *ex, const sl_mat *w, const float *x,
                                 uint32_t n_rows, float *y, uint32_t y_stride, sl_arena *scratch) {
    size_t level = scratch->used;
    sl_gemm_job job = sl_dense_job(w, x, n_rows, y);
    job.y_stride = y_stride;
    job.act = sl_take_act(ex, sl_act_kinds(ex, w), x, NULL, n_rows, w->k, w->segments, scratch);
    sl_gemm(ex, &job, 1);
    scratch->used = level;
}

static inline void sl_project(const sl_exec *ex, const sl_mat *w, const float *x, uint32_t n_rows,
                              float *y, sl_arena *scratch) {
    sl_project_to(ex, w, x, n_rows, y, w->n, scratch);
}

static inline void sl_norm(const sl_model *m, const sl_exec *ex, const sl_mat *w, const float *x,
                           uint32_t n_rows, float *y) {
    if (m->arch->layer_norm)
        sl_layernorm(ex, x, w, m->spec.rms_eps, n_rows, w->k, y);
    else
        sl_rmsnorm(ex, x, w, m->spec.rms_eps, n_rows, w->k, y);
}

/* Values c0 .. c0 + n - 1 of a bias. */
static inline sl_mat sl_bias_part(const sl_mat *bias, uint32_t c0, uint32_t n) {
    sl_mat part = *bias;
    part.data = (const uint8_t *)bias->data + c0 * sl_dtype_row_bytes(bias->dtype, 1);
    part.k = n;
    return part;
}

/* ---- ranks (model/rank.c); without a gang what they do for one ---- */

/* Rows of a call that pass together, of `each` a thread. Ranks meet in every slice, so they cut
 * alike, however many threads each has. */
uint32_t sl_rank_slice(const sl_model *m, const sl_exec *ex, uint32_t each);
/* Whether each rank has rows of O and DOWN, so that what these multiply has to be whole: ranks give
 * each other their columns of it. Else they have columns of both, and add up. */
bool sl_rank_gives_columns(const sl_model *m);
/* Rows that a product with O or DOWN multiplies: a rank's part x of rows of `width` values becomes
 * the whole rows, from all ranks, where each has rows of the matrix; x itself where it has columns.
 * mine: of things that have `values` each. kinds: what products with them take (sl_act_kinds). Rows
 * travel while something else is computed, until sl_rank_arrived; x stays as it is until then. */
typedef struct sl_arrival {
    const float *rows; /* or words of `rounded` ones */
    uint64_t ticket;   /* 0: they are there */
    uint32_t n_rows, kinds;
    sl_act_kind rounded; /* SL_ACT_NONE: in f32 */
} sl_arrival;
sl_arrival sl_rank_send(const sl_model *m, const sl_exec *ex, const sl_holding *mine,
                        uint32_t values, uint32_t kinds, const float *x, uint32_t n_rows,
                        uint32_t width, sl_arena *scratch);
/* As products with matrices like `into` take them; of rows that came rounded x is NULL. */
typedef struct sl_arrived {
    const float *x;
    sl_act act;
} sl_arrived;
sl_arrived sl_rank_arrived(const sl_model *m, const sl_exec *ex, const sl_arrival *a,
                           const sl_mat *into, sl_arena *scratch);
/* Their product with w, this rank's columns of rows y of d_model values. */
void sl_rank_project(const sl_model *m, const sl_exec *ex, const sl_mat *w, const sl_arrival *a,
                     float *y, sl_arena *scratch);
/* Whether a part of a call is begun before the one before it is ended, as rows travel. */
bool sl_rank_overlaps(const sl_model *m);
/* Scratch of such parts, which take turns at it: two of their own of so many bytes, or the one that
 * there is, where parts do not overlap. */
typedef struct sl_turns_scratch {
    sl_arena own[2], *at[2];
    uint32_t ahead; /* parts that are begun before one is ended: 0 or 1 */
} sl_turns_scratch;
void sl_rank_turns(bool overlap, size_t first, size_t second, sl_arena *scratch,
                   sl_turns_scratch *out);
/* Rows of the stream up to this one are there, as the call before left them. */
void sl_rank_needs(const sl_model *m, const float *x, uint32_t n_rows);
/* The first column of such a product's results that is this rank's, if it has rows of the matrix.
 */
uint32_t sl_rank_first(const sl_model *m);
/* Rows y, [n_rows][d_model], which such a product has written (from sl_rank_first on): afterwards
 * columns *first .. *first + *n - 1 are what they are of all ranks together, and the rank does what
 * follows to these. */
void sl_rank_join(const sl_model *m, const sl_exec *ex, float *y, uint32_t n_rows, uint32_t *first,
                  uint32_t *n);
/* Of a matrix that multiplies rows which all ranks have, the rows that give this rank's columns of
 * the stream. */
sl_mat sl_rank_gives(const sl_model *m, const sl_mat *w);
/* Rows y are joined, then biased (NULL, or no data: not), then added to the stream x. */
void sl_stream_add(const sl_model *m, const sl_exec *ex, const sl_mat *bias, float *y,
                   uint32_t n_rows, float *x);
/* Of a gang: y is joined, and weighed by the sigmoid of scale[row] unless that is NULL, into h.
 */
void sl_rank_put(const sl_model *m, const sl_exec *ex, float *y, uint32_t n_rows,
                 const float *scale, float *h);
/* The norm of all heads' values of which a rank has some. */
void sl_rank_norm(const sl_model *m, const sl_exec *ex, const sl_mat *w, uint32_t n_rows,
                  const sl_holding *mine, float *x, sl_arena *scratch);
/* Query heads of a kv head, and those of a rank's first one that others have; 0 without ranks. */
uint32_t sl_rank_group(const sl_model *m);
uint32_t sl_rank_skip(const sl_model *m);

/* Linear attention (model/delta.c): what sl_block_attention and sl_model_scratch_bytes do for such
 * blocks. */
size_t sl_delta_scratch_bytes(const sl_model_spec *s, uint32_t max_rows);
void sl_delta_attention(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                        float *x, sl_arena *scratch);

/* Rows at..at + n - 1 of them. */
static inline sl_rows sl_some_rows(const sl_rows *rows, uint32_t at, uint32_t n) {
    return (sl_rows){.n = n,
                     .id = rows->id ? rows->id + at : NULL,
                     .pos = rows->pos + at,
                     .kv = rows->kv,
                     .pages = rows->pages + at,
                     .low = rows->low ? rows->low + at : NULL,
                     .state = rows->state ? rows->state + at : NULL,
                     .done = rows->done ? rows->done + at : NULL,
                     .states = rows->states};
}

/* Latent attention (model/mla.c): what sl_block_attention and sl_model_scratch_bytes do for models
 * with kv_lora. */
size_t sl_mla_scratch_bytes(const sl_model_spec *s, uint32_t max_rows);
void sl_mla_attention(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                      float *x, sl_arena *scratch);

/* The expanded form (model/mla_expanded.c) of rows first .. first + n - 1, all of one request,
 * their latents in its pages: o [n][n_heads][v_dim] of the queries q [n][n_heads][nope_dim +
 * rope_dim], both of the first of them on. Scratch for up to max_rows rows. */
size_t sl_mla_expanded_bytes(const sl_model_spec *s, uint32_t max_rows);
void sl_mla_expanded(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                     uint32_t first, uint32_t n, float scale, const float *q, float *o,
                     sl_arena *scratch);

#endif
