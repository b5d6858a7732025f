/* The kernel that puts queries, keys and values where attention reads them (sl_qkv_place of
 * kernel/ops.h): half a warp has a vector of a head in registers, lane i values i, i + 16, ...,
 * from the product's result to its place. The steps are those of rows.cu, to the bit. */
#include "kernel/formula.h"
#include "spec/model.h"
#include "stage/cuda/kernels/args_rows.h"
#include "stage/cuda/kernels/fast.h"
#include "stage/cuda/kernels/kv_rows.h"

#define EACH (SL_CUDA_PLACE_DIM / SL_DOT_LANES) /* values of a thread */

enum { QUERY, KEY, VALUE };

/* Which vector a thread has part of; n: values of it. A thread without one has none. */
typedef struct vector {
    uint32_t kind, head, lane, n;
} vector;

SL_DEV vector vector_of_thread(const sl_k_place_args *a) {
    const uint32_t at = (blockIdx.y * SL_CUDA_PLACE_THREADS + threadIdx.x) / SL_DOT_LANES;
    const uint32_t keys = a->heads, values = keys + a->kv_heads, end = values + a->kv_heads;
    vector v;
    v.lane = sl_lane() % SL_DOT_LANES;
    v.n = at < end ? a->dim : 0;
    v.kind = at < keys ? QUERY : at < values ? KEY : VALUE;
    v.head = at < keys ? at : at < values ? at - keys : at - values;
    return v;
}

/* Where value i of a vector comes from: of pairs in halves. */
SL_DEV uint32_t source_of(const sl_k_place_args *a, const vector *v, uint32_t i) {
    if (!a->pairs || v->kind == VALUE) return i;
    return i < a->dim / 2 ? 2 * i : 2 * (i - a->dim / 2) + 1;
}

SL_DEV void load_vector(const sl_k_place_args *a, const vector *v, float x[EACH]) {
    const float *from = v->kind == QUERY ? a->q : v->kind == KEY ? a->k : a->v;
    const uint32_t heads = v->kind == QUERY ? a->heads : a->kv_heads, first = v->head * a->dim;
    from += (size_t)blockIdx.x * heads * a->dim + first;
    SL_UNROLL
    for (uint32_t j = 0; j < EACH; j++) {
        const uint32_t i = v->lane + j * SL_DOT_LANES;
        x[j] = i < v->n ? from[source_of(a, v, i)] : 0.0f;
    }
    const void *bias = a->bias[v->kind];
    SL_UNROLL
    for (uint32_t j = 0; j < EACH; j++) {
        const uint32_t i = v->lane + j * SL_DOT_LANES;
        if (bias && i < v->n)
            x[j] = x[j] + sl_plain_value(bias, a->bias_type[v->kind], first + source_of(a, v, i));
    }
}

/* By all threads of a warp, whether their vectors have a norm or not: `norms` says it. w NULL: all
 * weights are 1. */
SL_DEV void norm_vector(const sl_k_place_args *a, const vector *v, bool norms, const void *w,
                        uint32_t type, float x[EACH]) {
    float mean = 0, s = 0;
    SL_UNROLL
    for (uint32_t j = 0; j < EACH; j++)
        if (v->lane + j * SL_DOT_LANES < v->n) s = s + x[j];
    if (a->centred) mean = sl_lanes_tree(s) / (float)a->dim;
    s = 0;
    SL_UNROLL
    for (uint32_t j = 0; j < EACH; j++)
        if (v->lane + j * SL_DOT_LANES < v->n) s = fmaf(x[j] - mean, x[j] - mean, s);
    const float inv = 1.0f / sqrtf(sl_lanes_tree(s) / (float)a->dim + a->eps);
    SL_UNROLL
    for (uint32_t j = 0; j < EACH; j++) {
        const uint32_t i = v->lane + j * SL_DOT_LANES;
        if (!norms || i >= v->n) continue;
        x[j] = (x[j] - mean) * inv * (w ? sl_plain_value(w, type, i) : 1.0f);
    }
}

/* Of vectors whose half is `steps` times 16 values, a constant: pairs lie in one thread. */
SL_DEV void turn_vector(uint32_t steps, uint32_t lane, const float *c, const float *s,
                        float x[EACH]) {
    SL_UNROLL
    for (uint32_t j = 0; j < steps; j++) {
        const uint32_t i = lane + j * SL_DOT_LANES;
        const float u = x[j], w = x[j + steps];
        x[j] = fmaf(u, c[i], -(w * s[i]));
        x[j + steps] = fmaf(w, c[i], u * s[i]);
    }
}

SL_DEV void turn(uint32_t half, uint32_t lane, const float *c, const float *s, float x[EACH]) {
    SL_UNROLL
    for (uint32_t steps = 1; steps <= EACH / 2; steps++)
        if (half == steps * SL_DOT_LANES) turn_vector(steps, lane, c, s, x);
}

/* The largest of the numbers of 16 lanes. */
SL_DEV uint32_t most_of_lanes(uint32_t v) {
    for (uint32_t i = SL_DOT_LANES / 2; i; i /= 2) {
        const uint32_t other = __shfl_xor_sync(SL_ALL, v, i);
        v = other > v ? other : v;
    }
    return v;
}

/* A head's row of q8_0: a block is two values of each of 16 lanes. By all threads of a warp; who
 * has none to `store` only takes part. */
SL_DEV void store_q8(const vector *v, bool store, uint8_t *to, const float x[EACH]) {
    SL_UNROLL
    for (uint32_t j = 0; j < EACH; j += 2, to += SL_KV_Q8_BYTES) {
        const uint32_t i = v->lane + j * SL_DOT_LANES;
        const float lo = i < v->n ? x[j] : 0.0f;
        const float hi = i + SL_DOT_LANES < v->n ? x[j + 1] : 0.0f;
        const uint32_t l = sl_kv_magnitude(lo), h = sl_kv_magnitude(hi);
        const sl_kv_q8 q = sl_kv_q8_of(most_of_lanes(l > h ? l : h));
        if (!store || j * SL_DOT_LANES >= v->n) continue;
        sl_kv_put_q8(to, &q, v->lane, lo);
        sl_kv_put_q8(to, &q, v->lane + SL_DOT_LANES, hi);
    }
}

SL_DEV void store_fp8(const vector *v, bool store, uint8_t *to, const float x[EACH]) {
    uint32_t most = 0;
    SL_UNROLL
    for (uint32_t j = 0; j < EACH; j++) {
        const uint32_t i = v->lane + j * SL_DOT_LANES;
        const uint32_t u = i < v->n ? sl_kv_finite_magnitude(x[j]) : 0;
        most = u > most ? u : most;
    }
    const float scale = sl_e4m3_scale_of(most_of_lanes(most));
    SL_UNROLL
    for (uint32_t j = 0; j < EACH; j++) {
        const uint32_t i = v->lane + j * SL_DOT_LANES;
        if (store && i < (v->n + 3) / 4 * 4) sl_kv_put_fp8(to, scale, i, v->n, x[j]);
    }
}

/* Queries are floats, keys and values what pages are of. By all threads of a warp. */
SL_DEV void store_vector(const sl_k_place_args *a, const vector *v, uint64_t at,
                         const float x[EACH]) {
    const bool query = v->kind == QUERY, store = !query && v->n > 0;
    uint8_t *to = (uint8_t *)(a->q + ((size_t)blockIdx.x * a->heads + v->head) * a->dim);
    if (!query) to = a->kv + at + v->head * a->tile + (v->kind == VALUE ? a->values : 0);
    if (a->type == SL_KV_Q8_0) store_q8(v, store, to, x);
    if (a->type == SL_KV_FP8) store_fp8(v, store, to, x);
    const bool half = !query && (a->type == SL_KV_F16 || a->type == SL_KV_BF16);
    if (!query && !half && a->type != SL_KV_F32) return;
    SL_UNROLL
    for (uint32_t j = 0; j < EACH; j++) {
        const uint32_t i = v->lane + j * SL_DOT_LANES;
        if (i >= v->n) continue;
        if (half)
            ((uint16_t *)to)[i] = sl_kv_half(a->type, x[j]);
        else
            ((float *)to)[i] = x[j];
    }
}

SL_KERNEL_BOUNDS(sl_k_place, sl_k_place_args, SL_CUDA_PLACE_THREADS, 4) {
    SL_SHARED(float, c, SL_CUDA_PLACE_DIM / 2);
    SL_SHARED(float, s, SL_CUDA_PLACE_DIM / 2);
    const vector v = vector_of_thread(&a);
    const bool moves = v.kind != VALUE;
    const uint64_t to = a.at[blockIdx.x];
    float x[EACH];
    sl_fast_let_next();
    if (a.freq) { /* before the wait: nobody writes lists or frequencies */
        const double pos = (double)a.pos[blockIdx.x];
        for (uint32_t i = threadIdx.x; i < a.half; i += SL_CUDA_PLACE_THREADS)
            sl_sincos_scalar(pos * a.freq[i], &c[i], &s[i]);
    }
    sl_fast_wait();
    load_vector(&a, &v, x);
    if (a.norm[0] || a.norm[1]) {
        const void *w = moves ? a.norm[v.kind] : NULL;
        norm_vector(&a, &v, w != NULL, w, moves ? a.norm_type[v.kind] : 0, x);
    }
    SL_UNROLL
    for (uint32_t j = 0; a.clips && j < EACH; j++) x[j] = sl_clip_scalar(x[j], a.clip);
    __syncthreads();
    if (a.freq && moves) turn(a.half, v.lane, c, s, x);
    if (a.freq && a.unit) norm_vector(&a, &v, moves, NULL, 0, x);
    if (a.grow && v.kind == QUERY) {
        const float f = a.grow[blockIdx.x];
        SL_UNROLL
        for (uint32_t j = 0; j < EACH; j++) x[j] = f * x[j];
    }
    store_vector(&a, &v, to, x);
}
