/* Kernels: one table of functions per instruction set, and mixes of them, chosen slot by slot at
 * start-up by what was measured (kernel/choice.h).
 *
 * Numbers are part of the contract (docs/numbers.md). A dot product over k has SL_DOT_LANES = 16
 * virtual lanes: lane i takes elements i, i+16, i+32, ... in one chain of fused multiply-adds from
 * +0, missing tail elements count as +0 * +0; then the fixed tree s[i] += s[i+8], s[i] += s[i+4],
 * s[i] += s[i+2], s[0] + s[1]. Every path (1 row or 1000, any tile, any thread, any instruction
 * set) gives these bits. No libm inside kernels; exp is sl_expf below; no contraction by the
 * compiler.
 *
 * Weights are rows along k in their file's format and are widened exactly to f32; or, where a job
 * brings its rows in 8 bits, weights in blocks are multiplied as integers, and where it brings them
 * in BF16, weights in BF16 in pairs.
 * Thread: any; pool variants by the pool's owner. No allocation. Aliasing: only where said. */
#ifndef SL_KERNEL_KERNEL_H
#define SL_KERNEL_KERNEL_H

#include "base/mem.h"
#include "base/pool.h"
#include "kernel/formula.h"
#include "quant/act.h"
#include "quant/strips.h"
#include "spec/activations.h"
#include "spec/kv.h"
#include "spec/model.h"

/* A weight matrix: n rows of k values, borrowed from the checkpoint mapping. k is a whole number of
 * blocks of dtype.
 *
 * F8_E4M3: a value is the f32 product of its code and the scale of its block of 128 x 128 in the
 * tensor, of which the matrix is the rows from scale_row and the columns from scale_col on: scale
 * [(scale_row + n + 127) / 128][(scale_k + 127) / 128]. */
typedef struct sl_mat {
    const void *data;
    uint32_t n, k;
    sl_dtype dtype;
    uint32_t scale_row;
    const float *scale;          /* NULL: another type */
    uint32_t scale_col, scale_k; /* scale_k: columns of the tensor; 0: k */
    size_t stride;               /* bytes between rows; 0: one lies behind the other */
    const sl_segments *segments; /* products with it are sums of these; NULL: of all k at once */
    bool
        strips; /* rows lie in strips (quant/strips.h); it begins with a strip, and ends with one */
} sl_mat;

/* Bytes between its rows. */
static inline size_t sl_mat_stride(const sl_mat *w) {
    return w->stride ? w->stride : sl_dtype_row_bytes(w->dtype, w->k);
}

/* Where value `col` of row `row` lies; of strips the line of both, which are where strips may be
 * cut. */
static inline const void *sl_mat_at(const sl_mat *w, uint32_t row, uint32_t col) {
    const size_t along = sl_dtype_row_bytes(w->dtype, col) * (w->strips ? SL_STRIP_ROWS : 1);
    const bool cut = row % SL_STRIP_ROWS != 0 || (col % sl_strips_unit(w->dtype) && col != w->k);
    SL_ASSERT(!w->strips || !cut);
    return (const uint8_t *)w->data + row * sl_mat_stride(w) + along;
}

/* Bytes from its first value to its last. */
static inline size_t sl_mat_bytes(const sl_mat *w) {
    const uint32_t last = SL_MIN(w->n, w->strips ? SL_STRIP_ROWS : 1); /* that lie together */
    return (w->n - last) * sl_mat_stride(w) + last * sl_dtype_row_bytes(w->dtype, w->k);
}

/* Scales of row `row` of the matrix; its value i has that of value scale_col + i. */
static inline const float *sl_mat_scale(const sl_mat *w, uint32_t row) {
    size_t across = ((size_t)(w->scale_k ? w->scale_k : w->k) + SL_F8_BLOCK - 1) / SL_F8_BLOCK;
    return w->scale + (w->scale_row + row) / SL_F8_BLOCK * across;
}

/* Rows of activations that are rounded (quant/act.h), n of k values; row i begins sl_act_row_bytes
 * after row i - 1, or sl_act_bytes_in for a matrix with segments. NULL: not in that format. */
typedef struct sl_act {
    const uint8_t *row[SL_ACT_KINDS];
} sl_act;

/* One segment of a grouped product: row i of `y` is row[i] (or i when row is NULL) of `x` times
 * `w`. A row of x may appear any number of times. */
typedef struct sl_gemm_job {
    const sl_mat *w;
    const float *x;
    const uint32_t *row; /* NULL: rows 0..n_rows-1 of x */
    uint32_t n_rows;
    uint32_t x_stride, y_stride; /* floats between rows */
    float *y;
    /* Row i of `y` is act_row[i] (or i when act_row is NULL) of these; a matrix whose type has rows
     * here is multiplied with them, any other takes x. */
    sl_act act;
    const uint32_t *act_row;
    bool decides; /* y chooses experts: whoever rounds rows of x by the way does not here */
} sl_gemm_job;

typedef struct sl_kernels sl_kernels;

/* A table that this CPU and OS run. `spec` names it: "ref", "avx2", "avx512", "avx512vnni",
 * "avx512bf16", "avx512far", "amx", "neon", "neondot", "neonmm", or mixes some:
 * TABLE,SLOT=TABLE,... as "avx2,int8_tile=avx512vnni,gemm_tile.bf16.many=avx512", the later word
 * counting. A slot is a kernel (kernels.def), with its case where it has some; a kernel's name
 * alone is all of its slots that the table has. NULL, "" or "base": sl_kernels_base. A table that
 * is taken by merit is given out only after it gave the bits of ref. NULL when the spec is unknown
 * or cannot run here, or a table has none of the slots that it is named for. Any mix gives the same
 * bits. Lives as long as the process. */
const sl_kernels *sl_kernels_select(const char *spec);
/* For a process whose parent is the same program on this machine and has tried the tables that it
 * names: none is compared with ref again, which takes 20 ms each and is in the way of whoever waits
 * for the process. Thread: before any other call here. */
void sl_kernels_trust(void);
/* The best table that needs no measurement to be taken: avx2, neon or ref. */
const sl_kernels *sl_kernels_base(void);
/* "avx2"; of a mix its tables: "avx2+avx512". */
const char *sl_kernels_name(const sl_kernels *k);
/* Whether products of weights in strips are as fast as of rows or faster: a table that was made for
 * them was measured to be. */
bool sl_kernels_like_strips(const sl_kernels *k);
/* Table i, the one with most features first, NULL past the end; *supported says whether it can run
 * here. */
const sl_kernels *sl_kernels_at(size_t i, bool *supported);

typedef struct sl_exec_ops sl_exec_ops;

/* What every computation carries: the table, the pool (NULL: the caller's thread alone), nothing
 * global. */
typedef struct sl_exec {
    const sl_kernels *k;
    sl_pool *pool;
    /* Who computes (kernel/ops.h), and what they need; NULL: this machine's processors. */
    const sl_exec_ops *ops;
    void *ops_ctx;
    sl_arena *lists; /* host memory for lists, where scratch is not; NULL: it is */
    /* What src/model rounds before products, and how products of BF16 are summed. */
    sl_activations activations;
    /* So many rows of a request in one step take the expanded form of latent attention (src/model);
     * 0: none do, so that no bit depends on what ran in the same step. */
    uint32_t expand_rows;
} sl_exec;

/* y[r][j] = dot(x[r], w[j]) for all jobs at once, as one parallel loop over (job, row tile, column
 * tile). y must not alias x. Grouped GEMM is n jobs, dense GEMM one job, GEMV one row. */
void sl_gemm(const sl_exec *ex, const sl_gemm_job *jobs, uint32_t n_jobs);

/* Rows to 8 bits or BF16: row i of dst is row[i] (or i) of x; dst has n_rows *
 * sl_act_row_bytes(kind, k). Quantising a row twice gives the same bytes. */
void sl_quantise(const sl_exec *ex, const float *x, const uint32_t *row, uint32_t n_rows,
                 uint32_t x_stride, uint32_t k, sl_act_kind kind, uint8_t *dst);
/* The same for products with a matrix that has segments: rows of sl_act_bytes_in. */
void sl_quantise_segments(const sl_exec *ex, const float *x, const uint32_t *row, uint32_t n_rows,
                          uint32_t x_stride, uint32_t k, const sl_segments *s, sl_act_kind kind,
                          uint8_t *dst);

/* The same as words that ranks pass to each other (quant/act_words.h), and words to rows: the
 * host's alone. rows: n_rows of sl_act_row_bytes(kind, k), what the words are made of. */
void sl_quantise_words(const sl_exec *ex, const float *x, uint32_t n_rows, uint32_t k,
                       sl_act_kind kind, uint8_t *rows, float *words);
void sl_rows_of_words(const sl_exec *ex, const float *words, uint32_t n_rows, uint32_t k,
                      sl_act_kind kind, uint8_t *rows);

/* Fused gate and up of SwiGLU, of matrices without segments: y[r][j] = silu(dot(x[r], w1[j])) *
 * dot(x[r], w3[j]), silu(a) = a / (1 + exp(-a)). Mixtral, arXiv:2401.04088 sec. 2.1. jobs[i].w is
 * w1, up[i] is w3 (same shape, any dtype). */
void sl_gemm_swiglu(const sl_exec *ex, const sl_gemm_job *jobs, const sl_mat *const *up,
                    uint32_t n_jobs);

/* y[r] = x[r] * rsqrt(mean(x[r]^2) + eps) * w, rows of n; w f32[n] or another plain dtype, widened.
 * Sum of squares in the 16-lane order; y may be x. */
void sl_rmsnorm(const sl_exec *ex, const float *x, const sl_mat *w, float eps, uint32_t n_rows,
                uint32_t n, float *y);

/* What a norm is made for: rows in f32, rounded rows for the products that come next, or both.
 * y: rows of n; may be x; NULL where nobody reads them, which a centred norm does not allow.
 * act: n_rows * sl_act_row_bytes of each kind; NULL: none of that kind. */
typedef struct sl_norm_out {
    float *y;
    uint8_t *act[SL_ACT_KINDS];
} sl_norm_out;

/* sl_rmsnorm, or sl_layernorm where `centred`, and sl_quantise of each row while it is near: one
 * parallel loop, and without `y` no row of f32 is stored. */
void sl_norm_quantise(const sl_exec *ex, const float *x, const sl_mat *w, float eps, bool centred,
                      uint32_t n_rows, uint32_t n, const sl_norm_out *out);

/* As sl_rmsnorm, each row's mean subtracted first: LayerNorm without a bias. */
void sl_layernorm(const sl_exec *ex, const float *x, const sl_mat *w, float eps, uint32_t n_rows,
                  uint32_t n, float *y);

/* y[r][i] += b[i], rows of b->k: a bias, widened. */
void sl_bias_add(const sl_exec *ex, float *y, const sl_mat *b, uint32_t n_rows);

/* y[i] = min(limit, max(-limit, y[i])), n values; NaN stays. */
void sl_vec_clip(const sl_exec *ex, float *y, float limit, size_t n);

/* gate[i] = (u + 1) * g / (1 + exp(-SL_SWIGLU_ALPHA * g)), n values, g = min(gate[i], limit),
 * u = min(limit, max(-limit, up[i])); NaN stays. gpt-oss, arXiv:2508.10925. */
void sl_swiglu_clamped(const sl_exec *ex, float *gate, const float *up, float limit, size_t n);

/* y[r][i] = s * y[r][i], rows of n, s = 1 / (1 + exp(-gate[r])). */
void sl_gate_rows(const sl_exec *ex, float *y, const float *gate, uint32_t n_rows, uint32_t n);

/* Rotary embedding in the half-split ("rotate_half") layout of Hugging Face checkpoints, in place:
 * x [n_rows][n_heads][head_dim], row r at position pos[r]; the first rope_dim values of a head
 * turn, the others stay; freq [rope_dim/2] f64 inverse frequencies. */
typedef struct sl_rope_shape {
    uint32_t n_heads, head_dim, rope_dim;
    uint32_t x_stride; /* floats between rows */
} sl_rope_shape;
void sl_rope(const sl_exec *ex, float *x, const uint32_t *pos, const double *freq, uint32_t n_rows,
             const sl_rope_shape *shape);

/* Causal attention of each query row over its request's pages, grouped queries (GQA).
 * Keys are visited at fixed absolute positions in tiles of one page with an online softmax, so the
 * bits do not depend on batch, chunking or threads. q [n_rows][n_heads][head_dim] (stride
 * q_stride), o [n_rows][n_heads][sl_kv_value_dim(m)]; scale multiplies scores. row r attends to
 * positions [sl_sight_first(m, layer, pos[r]), pos[r]] whose pages are
 *   pages[r][0..pos[r]/SL_KV_PAGE_TOKENS] (numbers in kv; their layer tiles per spec/kv.h); rows
 * with the same list walk it together.
 * A sink is one more score of a head, seen from everywhere, whose value is zero: a head's
 * softmax begins at its maximum sink[h] and its sum 1. */
typedef struct sl_attn_args {
    const sl_model_spec *m;
    uint32_t layer;
    uint32_t n_rows;
    const float *q;
    uint32_t q_stride;
    const uint32_t *pos;
    sl_kv_pool kv;
    const uint32_t *const *pages;
    float scale;
    float *o;
    uint32_t o_stride;
    const float *sink; /* [n_heads], or NULL */
    /* A rank's heads (spec/gang.h): query heads of a kv head, and how many of the first one's are
     * not here; 0, 0: n_heads / n_kv_heads, all. */
    uint32_t group, skip;
    const uint32_t *low; /* [n_rows] first position that a row sees; NULL: sl_sight_first. The
                          * host's alone */
} sl_attn_args;

/* First position that row r sees. */
static inline uint32_t sl_attn_low(const sl_attn_args *a, uint32_t r) {
    return a->low ? a->low[r] : sl_sight_first(a->m, a->layer, a->pos[r]);
}

/* n rows of a tile of a KV page from row `first` on, of the model's kv_type, as f32 [n][head_dim].
 */
void sl_kv_rows_widen(const sl_kernels *k, const sl_model_spec *m, const uint8_t *tile,
                      uint32_t first, uint32_t n, float *dst);

/* Query heads of a kv head. */
static inline uint32_t sl_attn_group(const sl_attn_args *a) {
    return a->group ? a->group : a->m->n_heads / a->m->n_kv_heads;
}

void sl_attention(const sl_exec *ex, const sl_attn_args *a);

/* The same over keys and values that lie outside of pages, each head with its own, a span of
 * positions a call: calls for spans in ascending order from position 0 on give the bits of
 * sl_attention over pages that hold the same. Positions first .. first + span - 1, both whole
 * pages; key j of head h is k + (h * span + j) * dim, its value the first v_dim values of v there.
 * Rows see all positions up to their own and nothing behind it is read. Between calls o holds sums
 * that are not divided yet, and max and sum [n_rows][n_heads] the state; `last` divides. */
typedef struct sl_attn_span {
    uint32_t n_heads, dim, v_dim; /* v_dim <= dim */
    uint32_t first, span;
    const float *k, *v;
    uint32_t n_rows;
    const float *q; /* [n_rows][n_heads][dim], rows q_stride apart; o as much of v_dim */
    uint32_t q_stride, o_stride;
    const uint32_t *pos;
    float scale;
    float *o, *max, *sum;
    bool last;
} sl_attn_span;
void sl_attention_span(const sl_exec *ex, const sl_attn_span *a);

/* p = softmax over n logits, in double-free f32: max, sl_expf, sum in 16-lane order. In place
 * allowed. */
void sl_softmax(const sl_kernels *k, const float *logit, uint32_t n, float *p);

/* y[i] += x[i] (n values). y[i] = a * x[i]. y[i] += a*x[i] as mul then add (not fused): the bits of
 * a product rounded before it travels. */
void sl_vec_add(const sl_exec *ex, float *y, const float *x, size_t n);
void sl_vec_scale(const sl_exec *ex, float *y, const float *x, float a, size_t n);
void sl_vec_add_scaled(const sl_exec *ex, float *y, const float *x, float a, size_t n);

/* Row `row` of a matrix of any type, widened to f32 [k]. */
void sl_widen_row(const sl_exec *ex, const sl_mat *w, uint32_t row, float *dst);
/* Widens n values of `dtype`, whole blocks, to f32 (embedding rows). */
void sl_widen(const sl_exec *ex, const void *src, sl_dtype dtype, size_t n, float *dst);
/* Rounds n f32 values to bf16 (nearest even, NaN kept quiet) and back: the wire formats. */
void sl_to_bf16(const sl_exec *ex, const float *src, size_t n, uint16_t *dst);

/* e^x within 2 ulp in f32, a fixed polynomial with explicit operations: the only exp of the engine.
 */
float sl_expf(float x);

#endif
