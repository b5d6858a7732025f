/* Who computes: every kernel that src/model asks for, as an operation of a device. The host's
 * operations are the parallel loops of src/kernel; a device that computes elsewhere brings its own,
 * and the choreography of a block stays one text.
 *
 * Two kinds of pointers go in. Data (rows, weights, scales, KV pages, frequencies, sinks, biases)
 * lies in the memory of whoever computes: addresses of a device may be added to, not followed.
 * Lists (jobs, row numbers, positions, page lists, ids, gates and places of results) lie in host
 * memory and stay as they are during the call only. An operation may return before it has run;
 * operations run in the order in which they were asked for. None fails: a device keeps the first
 * error and says it at the end of the stage. Thread: the owner of the exec. */
#ifndef SL_KERNEL_OPS_H
#define SL_KERNEL_OPS_H

#include "kernel/kernel.h"

/* Row r's n_tiles vectors of `width` values, x + r * x_stride + t * width, to the part whose first
 * value is `column` (spec/kv_type.h) of position pos[r] in tile (layer, is_v, t) of its page
 * (spec/kv.h), rounded to the model's kv_type. */
typedef struct sl_kv_put {
    const sl_model_spec *m;
    uint32_t layer, is_v;
    uint32_t n_rows, n_tiles, width, column;
    const float *x;
    uint32_t x_stride; /* floats */
    const uint32_t *pos;
    const uint32_t *const *pages;
    sl_kv_pool kv;
} sl_kv_put;

/* What a router makes of logits [n_rows][n_experts], which it may overwrite (docs/numbers.md,
 * "Routers"). expert and gate: [n_rows][top_k], where whoever computes can write: of the host's
 * operations host memory. */
typedef struct sl_route_args {
    const sl_model_spec *m;
    sl_router router;
    uint32_t n_rows;
    float *logit;
    float *rank;       /* SIGMOID_GROUPS: scratch of the same shape */
    const float *bias; /* of the same router, [n_experts] */
    uint32_t *expert;
    float *gate;
    float
        *h; /* [n_rows][d_model]: a row whose gates are not finite becomes zero; NULL: none does */
} sl_route_args;

/* Pair p's values y + p * d go to to[p], or are added to what is there when adds[p], in the order
 * of p; weighed by gate[p] first unless that is NULL, as a product of its own. Only columns first
 * .. first + n - 1. Places and pairs may not overlap. */
typedef struct sl_pair_sum {
    uint32_t n_pairs, d, first, n;
    const float *y;
    const float *gate; /* list */
    float *const *to;  /* list of data */
    const uint8_t *adds;
} sl_pair_sum;

/* Queries, keys and values as products give them, to where attention reads them: what src/model
 * does with several operations (model/block.c), in this order and to the bit. Biased; put in halves
 * where m->rope_pairs; normalised a head each; clipped; rotated, and then of unit length where
 * m->qk_unit; or, in a block that is not rotated, queries times grow[row]. Queries stay where they
 * are, keys and values go into their pages. */
typedef struct sl_qkv_place {
    const sl_model_spec *m;
    uint32_t layer, n_rows;
    float *q;              /* [n_rows][n_heads][head_dim] */
    const float *k, *v;    /* [n_rows][n_kv_heads][head_dim] */
    const sl_mat *bias[3]; /* of q, k and v; NULL: none */
    const sl_mat *norm[2]; /* of q and k, head_dim values; NULL: none */
    bool centred;          /* norms subtract the mean first */
    const double *freq;    /* as of sl_rope */
    const float *grow;     /* list, or NULL */
    const uint32_t *pos;   /* list */
    const uint32_t *const *pages;
    sl_kv_pool kv;
} sl_qkv_place;

struct sl_delta_args; /* kernel/delta.h */

struct sl_exec_ops {
    /* As the functions of kernel.h whose names they have. */
    void (*gemm)(const sl_exec *ex, const sl_gemm_job *jobs, const sl_mat *const *up,
                 uint32_t n_jobs); /* up NULL: sl_gemm, else sl_gemm_swiglu */
    void (*quantise)(const sl_exec *ex, const float *x, const uint32_t *row, uint32_t n_rows,
                     uint32_t x_stride, uint32_t k, const sl_segments *s, sl_act_kind kind,
                     uint8_t *dst);
    void (*norm)(const sl_exec *ex, const float *x, const sl_mat *w, float eps, bool centred,
                 uint32_t n_rows, uint32_t n, const sl_norm_out *out);
    void (*bias_add)(const sl_exec *ex, float *y, const sl_mat *b, uint32_t n_rows);
    void (*gate_rows)(const sl_exec *ex, float *y, const float *gate, uint32_t n_rows, uint32_t n);
    void (*rope)(const sl_exec *ex, float *x, const uint32_t *pos, const double *freq,
                 uint32_t n_rows, const sl_rope_shape *shape);
    void (*attention)(const sl_exec *ex, const sl_attn_args *a);
    void (*attention_span)(const sl_exec *ex, const sl_attn_span *a);
    void (*vec_add)(const sl_exec *ex, float *y, const float *x, size_t n);
    void (*scale_part)(const sl_exec *ex, float *x, size_t stride, uint32_t n, uint32_t width,
                       float a);
    void (*vec_clip)(const sl_exec *ex, float *y, float limit, size_t n);
    void (*swiglu_clamped)(const sl_exec *ex, float *gate, const float *up, float limit, size_t n);
    void (*embed)(const sl_exec *ex, const sl_mat *w, const uint32_t *ids, uint32_t n_rows,
                  float *x);
    void (*copy_rows)(const sl_exec *ex, const float *x, size_t x_stride, uint32_t n_rows,
                      uint32_t width, float *y, size_t y_stride);
    void (*pick_rows)(const sl_exec *ex, const float *x, const uint32_t *row, const float *factor,
                      uint32_t n_rows, uint32_t width, float *y);
    void (*split_pairs)(const sl_exec *ex, float *x, uint32_t n, uint32_t dim, size_t stride);
    void (*put_kv)(const sl_exec *ex, const sl_kv_put *p);
    /* Optional. False, and nothing is done: the operations one by one do it. */
    bool (*place_qkv)(const sl_exec *ex, const sl_qkv_place *p);
    void (*route)(const sl_exec *ex, const sl_route_args *a);
    void (*sum_pairs)(const sl_exec *ex, const sl_pair_sum *s);
    /* The host's alone: NULL elsewhere, where models that need them are not opened. */
    void (*delta)(const sl_exec *ex, const struct sl_delta_args *a);
    void (*gate_values)(const sl_exec *ex, float *y, const float *gate, size_t n);
};

extern const sl_exec_ops sl_host_ops;

static inline const sl_exec_ops *sl_ops(const sl_exec *ex) {
    return ex->ops ? ex->ops : &sl_host_ops;
}

/* How many rows are computed together: so many for each thread of the host's pool, or all of them
 * where a device has no caches to spare. */
uint32_t sl_exec_rows(const sl_exec *ex, uint32_t each);

/* x[i] = row ids[i] of w, widened. */
static inline void sl_embed(const sl_exec *ex, const sl_mat *w, const uint32_t *ids,
                            uint32_t n_rows, float *x) {
    sl_ops(ex)->embed(ex, w, ids, n_rows, x);
}

/* Rows of `width` values, strides in floats; they may not overlap. */
static inline void sl_copy_rows(const sl_exec *ex, const float *x, size_t x_stride, uint32_t n_rows,
                                uint32_t width, float *y, size_t y_stride) {
    sl_ops(ex)->copy_rows(ex, x, x_stride, n_rows, width, y, y_stride);
}

/* y[i] = factor[i] * x[row[i]], rows of `width` values: row NULL is i itself, and then y may be x;
 * factor NULL is a copy. */
static inline void sl_pick_rows(const sl_exec *ex, const float *x, const uint32_t *row,
                                const float *factor, uint32_t n_rows, uint32_t width, float *y) {
    sl_ops(ex)->pick_rows(ex, x, row, factor, n_rows, width, y);
}

/* x[i] = a * x[i], the first `width` values of n vectors that are `stride` floats apart. */
static inline void sl_scale_part(const sl_exec *ex, float *x, size_t stride, uint32_t n,
                                 uint32_t width, float a) {
    sl_ops(ex)->scale_part(ex, x, stride, n, width, a);
}

/* n vectors of `dim` values, `stride` floats apart: rows of pairs (2i, 2i+1) to halves. What a
 * rotation turns lies half a vector apart again, and all that follows is as for other checkpoints,
 * to the bit. */
static inline void sl_split_pairs(const sl_exec *ex, float *x, uint32_t n, uint32_t dim,
                                  size_t stride) {
    sl_ops(ex)->split_pairs(ex, x, n, dim, stride);
}

/* y[i] = y[i] / (1 + exp(-gate[i])), n values: weighed by the sigmoid of its gate. */
static inline void sl_gate_values(const sl_exec *ex, float *y, const float *gate, size_t n) {
    sl_ops(ex)->gate_values(ex, y, gate, n);
}

static inline void sl_put_kv(const sl_exec *ex, const sl_kv_put *p) {
    sl_ops(ex)->put_kv(ex, p);
}

static inline void sl_route(const sl_exec *ex, const sl_route_args *a) {
    sl_ops(ex)->route(ex, a);
}

static inline void sl_sum_pairs(const sl_exec *ex, const sl_pair_sum *s) {
    sl_ops(ex)->sum_pairs(ex, s);
}

#endif
