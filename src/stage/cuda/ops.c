/* Who of this folder does which operation. */
#include "stage/cuda/ops.h"

#include "stage/cuda/exec_products.h"
#include "stage/cuda/exec_rows.h"

static sl_cuda *of(const sl_exec *ex) {
    return ex->ops_ctx;
}

static void gemm(const sl_exec *ex, const sl_gemm_job *jobs, const sl_mat *const *up,
                 uint32_t n_jobs) {
    sl_cuda_gemm(of(ex), jobs, up, n_jobs);
}

static void quantise(const sl_exec *ex, const float *x, const uint32_t *row, uint32_t n_rows,
                     uint32_t x_stride, uint32_t k, const sl_segments *s, sl_act_kind kind,
                     uint8_t *dst) {
    sl_cuda_quantise(of(ex), x, row, n_rows, x_stride, k, s, kind, dst);
}

static void norm(const sl_exec *ex, const float *x, const sl_mat *w, float eps, bool centred,
                 uint32_t n_rows, uint32_t n, const sl_norm_out *out) {
    sl_cuda_norm(of(ex), x, w, eps, centred, n_rows, n, out);
}

static void bias_add(const sl_exec *ex, float *y, const sl_mat *b, uint32_t n_rows) {
    sl_cuda_bias_add(of(ex), y, b, n_rows);
}

static void gate_rows(const sl_exec *ex, float *y, const float *gate, uint32_t n_rows, uint32_t n) {
    sl_cuda_gate_rows(of(ex), y, gate, n_rows, n);
}

static void rope(const sl_exec *ex, float *x, const uint32_t *pos, const double *freq,
                 uint32_t n_rows, const sl_rope_shape *shape) {
    sl_cuda_rope(of(ex), x, pos, freq, n_rows, shape);
}

static void attention(const sl_exec *ex, const sl_attn_args *a) {
    sl_cuda_attention(of(ex), a);
}

static void attention_span(const sl_exec *ex, const sl_attn_span *a) {
    sl_cuda_attention_span(of(ex), a);
}

static void vec_add(const sl_exec *ex, float *y, const float *x, size_t n) {
    sl_cuda_vec_add(of(ex), y, x, n);
}

static void vec_clip(const sl_exec *ex, float *y, float limit, size_t n) {
    sl_cuda_vec_clip(of(ex), y, limit, n);
}

static void swiglu_clamped(const sl_exec *ex, float *gate, const float *up, float limit, size_t n) {
    sl_cuda_swiglu_clamped(of(ex), gate, up, limit, n);
}

static void embed(const sl_exec *ex, const sl_mat *w, const uint32_t *ids, uint32_t n_rows,
                  float *x) {
    sl_cuda_embed(of(ex), w, ids, n_rows, x);
}

static void copy_rows(const sl_exec *ex, const float *x, size_t x_stride, uint32_t n_rows,
                      uint32_t width, float *y, size_t y_stride) {
    sl_cuda_copy_rows(of(ex), x, x_stride, n_rows, width, y, y_stride);
}

static void pick_rows(const sl_exec *ex, const float *x, const uint32_t *row, const float *factor,
                      uint32_t n_rows, uint32_t width, float *y) {
    sl_cuda_pick_rows(of(ex), x, row, factor, n_rows, width, y);
}

static void scale_part(const sl_exec *ex, float *x, size_t stride, uint32_t n, uint32_t width,
                       float a) {
    sl_cuda_scale_part(of(ex), x, stride, n, width, a);
}

static void split_pairs(const sl_exec *ex, float *x, uint32_t n, uint32_t dim, size_t stride) {
    sl_cuda_split_pairs(of(ex), x, n, dim, stride);
}

static void put_kv(const sl_exec *ex, const sl_kv_put *p) {
    sl_cuda_put_kv(of(ex), p);
}

static bool place_qkv(const sl_exec *ex, const sl_qkv_place *p) {
    return sl_cuda_place_qkv(of(ex), p);
}

static void route(const sl_exec *ex, const sl_route_args *a) {
    sl_cuda_route(of(ex), a);
}

static void sum_pairs(const sl_exec *ex, const sl_pair_sum *s) {
    sl_cuda_sum_pairs(of(ex), s);
}

const sl_exec_ops sl_cuda_ops = {
    .gemm = gemm,
    .quantise = quantise,
    .norm = norm,
    .bias_add = bias_add,
    .gate_rows = gate_rows,
    .rope = rope,
    .attention = attention,
    .attention_span = attention_span,
    .vec_add = vec_add,
    .vec_clip = vec_clip,
    .swiglu_clamped = swiglu_clamped,
    .embed = embed,
    .copy_rows = copy_rows,
    .pick_rows = pick_rows,
    .scale_part = scale_part,
    .split_pairs = split_pairs,
    .put_kv = put_kv,
    .place_qkv = place_qkv,
    .route = route,
    .sum_pairs = sum_pairs,
};
