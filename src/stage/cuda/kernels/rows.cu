/* Kernels of rows: norms, biases, rotations, copies, keys and values into their pages, sums of the
 * results of experts. docs/numbers.md defines their bits; src/kernel/ref is the same in C. */
#include "kernel/formula.h"
#include "spec/model.h"
#include "stage/cuda/kernels/act_rows.h"
#include "stage/cuda/kernels/args_rows.h"
#include "stage/cuda/kernels/fast.h"
#include "stage/cuda/kernels/kv_rows.h"

/* ---- norms ---- */

#define NORM_CHUNK 4096u /* values in shared memory at a time, twice */
#define NORM_STEPS 8u

/* n values to shared memory, by threads from `first` on. */
SL_DEV void norm_load(const float *x, uint32_t n, uint32_t first, bool wide, float *to) {
    const uint32_t t = threadIdx.x - first, step = blockDim.x - first;
    if (wide) {
        for (uint32_t i = 4 * t; i < n; i += 4 * step)
            *(float4 *)(to + i) = *(const float4 *)(x + i);
    } else {
        for (uint32_t i = t; i < n; i += step) to[i] = x[i];
    }
}

SL_DEV float norm_step(bool squares, float v, float s) {
    return squares ? fmaf(v, v, s) : s + v;
}

/* The next steps of lane `lane` of 16: sums of values, or of the squares of what they lie above the
 * mean. Loads are some steps ahead. */
SL_DEV float norm_chain(const float *x, uint32_t n, uint32_t lane, bool squares, float mean,
                        float s) {
    const uint32_t stride = NORM_STEPS * SL_DOT_LANES;
    float now[NORM_STEPS], next[NORM_STEPS];
    uint32_t i = lane;
    bool more = i + stride - SL_DOT_LANES < n;
    SL_UNROLL
    for (uint32_t j = 0; j < NORM_STEPS; j++) next[j] = more ? x[i + j * SL_DOT_LANES] : 0.0f;
    while (more) {
        i += stride;
        more = i + stride - SL_DOT_LANES < n;
        SL_UNROLL
        for (uint32_t j = 0; j < NORM_STEPS; j++) now[j] = next[j];
        SL_UNROLL
        for (uint32_t j = 0; j < NORM_STEPS; j++) next[j] = more ? x[i + j * SL_DOT_LANES] : 0.0f;
        SL_UNROLL
        for (uint32_t j = 0; j < NORM_STEPS; j++) s = norm_step(squares, now[j] - mean, s);
    }
    for (; i < n; i += SL_DOT_LANES) s = norm_step(squares, x[i] - mean, s);
    return s;
}

/* The sum over a row, for all threads of its block: the first warp adds while the others fetch. Of
 * a row of two chunks at most, all of it is in shared memory then. */
SL_DEV float norm_sum(const sl_k_norm_args *a, const float *x, bool squares, float mean,
                      float *part) {
    SL_SHARED(float, sum, 1);
    const bool adds = sl_warp() == 0;
    float s = 0;
    norm_load(x, a->n < NORM_CHUNK ? a->n : NORM_CHUNK, 0, a->wide, part);
    __syncthreads();
    for (uint32_t at = 0, which = 0; at < a->n; at += NORM_CHUNK, which ^= 1) {
        const uint32_t left = a->n - at, more = left > NORM_CHUNK ? left - NORM_CHUNK : 0;
        if (!adds)
            norm_load(x + at + NORM_CHUNK, more < NORM_CHUNK ? more : NORM_CHUNK, SL_WARP, a->wide,
                      part + (which ^ 1) * NORM_CHUNK);
        else if (sl_lane() < SL_DOT_LANES)
            s = norm_chain(part + which * NORM_CHUNK, more ? NORM_CHUNK : left, sl_lane(), squares,
                           mean, s);
        __syncthreads();
    }
    if (adds) s = sl_lanes_tree(s);
    if (threadIdx.x == 0) sum[0] = s;
    __syncthreads();
    return sum[0];
}

/* y = (x - mean) * inv * w of eight neighbours, those past the end zero. */
SL_DEV void norm_eight(const sl_k_norm_args *a, const float *x, uint32_t at, uint32_t n, float mean,
                       float inv, float v[8]) {
    if (a->wide && n == 8) {
        *(float4 *)v = *(const float4 *)(x + at);
        *(float4 *)(v + 4) = *(const float4 *)(x + at + 4);
    } else {
        SL_UNROLL
        for (uint32_t i = 0; i < 8; i++) v[i] = i < n ? x[at + i] : 0.0f;
    }
    SL_UNROLL
    for (uint32_t i = 0; i < 8; i++)
        v[i] = i < n ? (v[i] - mean) * inv * sl_plain_value(a->w, a->dtype, at + i) : 0.0f;
}

SL_DEV void norm_store(const sl_k_norm_args *a, float *y, uint32_t n, const float v[8]) {
    if (a->wide && n == 8) {
        *(float4 *)y = make_float4(v[0], v[1], v[2], v[3]);
        *(float4 *)(y + 4) = make_float4(v[4], v[5], v[6], v[7]);
        return;
    }
    SL_UNROLL
    for (uint32_t i = 0; i < 8; i++)
        if (i < n) y[i] = v[i];
}

SL_KERNEL_BOUNDS(sl_k_norm, sl_k_norm_args, SL_CUDA_NORM_THREADS, 2) {
    sl_fast_wait();
    sl_fast_let_next();
    SL_SHARED(float, part, 2 * NORM_CHUNK);
    const size_t row = blockIdx.x;
    const float *x = a.x + row * a.n;
    /* x - 0 is x, so a norm that is not centred is one with the mean zero. */
    float mean = 0;
    if (a.centred) mean = norm_sum(&a, x, false, 0.0f, part) / (float)a.n;
    const float inv = 1.0f / sqrtf(norm_sum(&a, x, true, mean, part) / (float)a.n + a.eps);
    if (a.n <= 2 * NORM_CHUNK) x = part;
    for (uint32_t base = sl_warp() * 256; base < a.n; base += 8 * blockDim.x) {
        const uint32_t at = base + sl_lane() * 8, n = at >= a.n ? 0 : a.n - at < 8 ? a.n - at : 8;
        float __attribute__((aligned(16))) v[8];
        norm_eight(&a, x, at, n, mean, inv, v);
        if (a.y) norm_store(&a, a.y + row * a.n + at, n, v);
        sl_act_eight(a.act, a.act_bytes, row, a.n, at, n, v);
    }
}

/* Vectors that are short, as those of heads: half a warp each, straight from memory. */
SL_KERNEL(sl_k_norm_small, sl_k_norm_args) {
    sl_fast_wait();
    sl_fast_let_next();
    const uint32_t lane = sl_lane() % SL_DOT_LANES;
    const size_t row =
        (size_t)blockIdx.x * (SL_CUDA_SMALL_THREADS / SL_DOT_LANES) + threadIdx.x / SL_DOT_LANES;
    const uint32_t n = row < a.n_rows ? a.n : 0; /* all lanes take part in the trees */
    const float *x = a.x + row * a.n;
    float mean = 0;
    if (a.centred) mean = sl_lanes_tree(norm_chain(x, n, lane, false, 0.0f, 0.0f)) / (float)a.n;
    const float s = sl_lanes_tree(norm_chain(x, n, lane, true, mean, 0.0f));
    const float inv = 1.0f / sqrtf(s / (float)a.n + a.eps);
    for (uint32_t i = lane; i < n; i += SL_DOT_LANES)
        a.y[row * a.n + i] = (x[i] - mean) * inv * sl_plain_value(a.w, a.dtype, i);
}

/* ---- element by element ---- */

SL_DEV float vec_value(const sl_k_vec_args *a, float y, float x) {
    switch (a->op) {
    case SL_CUDA_VEC_ADD:
        return y + x;
    case SL_CUDA_VEC_CLIP:
        return sl_clip_scalar(y, a->a);
    default:
        return sl_swiglu_clamped_scalar(y, x, a->a);
    }
}

SL_KERNEL(sl_k_vec, sl_k_vec_args) {
    sl_fast_wait();
    sl_fast_let_next();
    const uint64_t step = (uint64_t)gridDim.x * SL_CUDA_ROW_THREADS;
    uint64_t i = (uint64_t)blockIdx.x * SL_CUDA_ROW_THREADS + threadIdx.x;
    if (a.wide) {
        for (; i < a.n / 4; i += step) {
            const float4 y = ((const float4 *)a.y)[i], x = ((const float4 *)a.x)[i];
            ((float4 *)a.y)[i] = make_float4(vec_value(&a, y.x, x.x), vec_value(&a, y.y, x.y),
                                             vec_value(&a, y.z, x.z), vec_value(&a, y.w, x.w));
        }
        return;
    }
    for (; i < a.n; i += step) a.y[i] = vec_value(&a, a.y[i], a.x[i]);
}

SL_KERNEL(sl_k_bias_add, sl_k_bias_add_args) {
    float *y = a.y + (size_t)blockIdx.x * a.n;
    const uint32_t step = gridDim.y * SL_CUDA_ROW_THREADS;
    for (uint32_t i = blockIdx.y * SL_CUDA_ROW_THREADS + threadIdx.x; i < a.n; i += step)
        y[i] = y[i] + sl_plain_value(a.b, a.dtype, i);
}

SL_KERNEL(sl_k_gate_rows, sl_k_gate_rows_args) {
    float *y = a.y + (size_t)blockIdx.x * a.n;
    const uint32_t step = gridDim.y * SL_CUDA_ROW_THREADS;
    const float s = sl_sigmoid_scalar(a.gate[blockIdx.x]);
    for (uint32_t i = blockIdx.y * SL_CUDA_ROW_THREADS + threadIdx.x; i < a.n; i += step)
        y[i] = s * y[i];
}

/* ---- copies ---- */

/* Which row of so many that share a block this thread works on; 1 << lanes_log threads have one. */
SL_DEV uint32_t shared_row(uint32_t lanes_log) {
    return (blockIdx.x * SL_CUDA_ROW_THREADS + threadIdx.x) >> lanes_log;
}

SL_KERNEL(sl_k_copy_rows, sl_k_copy_rows_args) {
    sl_fast_wait();
    sl_fast_let_next();
    const uint32_t i = shared_row(a.lanes_log), lanes = 1u << a.lanes_log;
    if (i >= a.n_rows) return;
    const float *x = a.x + (a.from_row ? a.from_row[i] : i) * a.x_stride;
    float *y = a.y + (a.to_row ? a.to_row[i] : i) * a.y_stride;
    const bool scales = a.scales || a.factor;
    const float f = a.factor ? a.factor[i] : a.a;
    uint32_t c = threadIdx.x & (lanes - 1);
    if (!a.wide) {
        for (; c < a.width; c += lanes) y[c] = scales ? f * x[c] : x[c];
        return;
    }
    for (; c < a.width / 4; c += lanes) {
        const float4 v = ((const float4 *)x)[c];
        ((float4 *)y)[c] = scales ? make_float4(f * v.x, f * v.y, f * v.z, f * v.w) : v;
    }
}

SL_KERNEL(sl_k_put_kv, sl_k_put_kv_args) {
    const uint32_t v = shared_row(a.lanes_log), lanes = 1u << a.lanes_log;
    const uint32_t r = v / a.n_tiles, t = v - r * a.n_tiles;
    if (r >= a.n_rows) return;
    const float *x = a.x + (size_t)r * a.x_stride + (size_t)t * a.width;
    float *y = (float *)(a.base + a.at[r] + t * a.tile);
    uint32_t c = threadIdx.x & (lanes - 1);
    if (a.wide)
        for (; c < a.width / 4; c += lanes) ((float4 *)y)[c] = ((const float4 *)x)[c];
    else
        for (; c < a.width; c += lanes) y[c] = x[c];
}

SL_KERNEL(sl_k_round_kv, sl_k_put_kv_args) {
    const uint32_t v = shared_row(a.lanes_log), r = v / a.n_tiles, t = v - r * a.n_tiles;
    if (r >= a.n_rows) return;
    sl_kv_put_part(a.type, a.x + (size_t)r * a.x_stride + (size_t)t * a.width, a.width,
                   a.base + a.at[r] + t * a.tile);
}

/* ---- rotary embedding ---- */

#define ROPE_HEADS 4u /* that a thread has under way */

/* Pair i of heads h, h + step, ...: where it is, for as many as there are. */
SL_DEV void rope_load(const sl_k_rope_args *a, const float *x, uint32_t h, uint32_t step,
                      uint32_t heads, uint32_t i, float lo[ROPE_HEADS], float hi[ROPE_HEADS]) {
    SL_UNROLL
    for (uint32_t j = 0; j < ROPE_HEADS; j++) {
        const float *at = x + (size_t)(h + j * step) * a->head_dim + i;
        const bool there = h + j * step < heads && i < a->half;
        lo[j] = there ? at[0] : 0.0f;
        hi[j] = there ? at[a->half] : 0.0f;
    }
}

SL_DEV void rope_turn(const sl_k_rope_args *a, float *x, uint32_t h, uint32_t step, uint32_t heads,
                      uint32_t i, float c, float s, const float lo[ROPE_HEADS],
                      const float hi[ROPE_HEADS]) {
    SL_UNROLL
    for (uint32_t j = 0; j < ROPE_HEADS; j++) {
        float *at = x + (size_t)(h + j * step) * a->head_dim + i;
        if (h + j * step >= heads) continue;
        at[0] = fmaf(lo[j], c, -(hi[j] * s));
        at[a->half] = fmaf(hi[j], c, lo[j] * s);
    }
}

SL_KERNEL(sl_k_rope, sl_k_rope_args) {
    SL_SHARED(float, c, SL_HEAD_DIM_MAX / 2);
    SL_SHARED(float, s, SL_HEAD_DIM_MAX / 2);
    const uint32_t first = blockIdx.y * SL_CUDA_ROPE_HEADS, left = a.n_heads - first;
    const uint32_t heads = left < SL_CUDA_ROPE_HEADS ? left : SL_CUDA_ROPE_HEADS;
    const uint32_t lanes = 1u << a.lanes_log, step = SL_CUDA_ROW_THREADS >> a.lanes_log;
    const uint32_t h0 = threadIdx.x >> a.lanes_log;
    float *x = a.x + (size_t)blockIdx.x * a.x_stride + (size_t)first * a.head_dim;
    float lo[ROPE_HEADS], hi[ROPE_HEADS];
    uint32_t h = h0, i = threadIdx.x & (lanes - 1);
    rope_load(&a, x, h, step, heads, i, lo, hi); /* on their way while angles are made */
    const double pos = (double)a.pos[blockIdx.x];
    for (uint32_t j = threadIdx.x; j < a.half; j += SL_CUDA_ROW_THREADS)
        sl_sincos_scalar(pos * a.freq[j], &c[j], &s[j]);
    __syncthreads();
    for (; i < a.half; i += lanes, h = h0, rope_load(&a, x, h, step, heads, i, lo, hi))
        while (h < heads) {
            rope_turn(&a, x, h, step, heads, i, c[i], s[i], lo, hi);
            h += ROPE_HEADS * step;
            rope_load(&a, x, h, step, heads, i, lo, hi);
        }
}

#define SPLIT_PAIRS (SL_HEAD_DIM_MAX / 2 / SL_WARP) /* of a lane */

/* A vector a warp, all of it in registers before any of it is written. */
SL_KERNEL(sl_k_split_pairs, sl_k_split_pairs_args) {
    const uint32_t v = (blockIdx.x * SL_CUDA_ROW_THREADS + threadIdx.x) / SL_WARP;
    const uint32_t half = v < a.n ? a.dim / 2 : 0;
    float *x = a.x + v * a.stride, even[SPLIT_PAIRS], odd[SPLIT_PAIRS];
    SL_UNROLL
    for (uint32_t j = 0; j < SPLIT_PAIRS; j++) {
        const uint32_t i = sl_lane() + j * SL_WARP;
        even[j] = i < half ? x[2 * i] : 0.0f;
        odd[j] = i < half ? x[2 * i + 1] : 0.0f;
    }
    __syncwarp();
    SL_UNROLL
    for (uint32_t j = 0; j < SPLIT_PAIRS; j++) {
        const uint32_t i = sl_lane() + j * SL_WARP;
        if (i < half) x[i] = even[j];
        if (i < half) x[half + i] = odd[j];
    }
}

/* ---- sums of pairs ---- */

#define PAIR_ITEMS 64u /* that a block knows at a time */
#define PAIR_WIDTH (SL_CUDA_PAIR_COLUMNS / SL_CUDA_PAIR_THREADS)

SL_KERNEL(sl_k_sum_pairs, sl_k_sum_pairs_args) {
    SL_SHARED(sl_cuda_pair_item, item, PAIR_ITEMS);
    const sl_cuda_pair_place place = a.place[blockIdx.x];
    const uint32_t c0 = blockIdx.y * SL_CUDA_PAIR_COLUMNS + threadIdx.x;
    float *to = place.to + a.first, sum[PAIR_WIDTH];
    SL_UNROLL
    for (uint32_t j = 0; j < PAIR_WIDTH; j++) sum[j] = 0;
    for (uint32_t at = 0; at < place.n; at += PAIR_ITEMS) {
        const uint32_t n = place.n - at < PAIR_ITEMS ? place.n - at : PAIR_ITEMS;
        __syncthreads();
        if (threadIdx.x < n) item[threadIdx.x] = a.item[place.first + at + threadIdx.x];
        __syncthreads();
        for (uint32_t i = 0; i < n; i++) {
            const float *y = a.y + (size_t)item[i].pair * a.d + a.first;
            SL_UNROLL
            for (uint32_t j = 0; j < PAIR_WIDTH; j++) {
                const uint32_t c = c0 + j * SL_CUDA_PAIR_THREADS;
                if (c >= a.n) continue;
                const float v = a.weighs ? item[i].gate * y[c] : y[c];
                const float before = at + i == 0 && item[i].adds ? to[c] : sum[j];
                sum[j] = item[i].adds ? before + v : v;
            }
        }
    }
    SL_UNROLL
    for (uint32_t j = 0; j < PAIR_WIDTH; j++)
        if (c0 + j * SL_CUDA_PAIR_THREADS < a.n) to[c0 + j * SL_CUDA_PAIR_THREADS] = sum[j];
}
