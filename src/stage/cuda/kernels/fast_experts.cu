/* Routed experts in numerics fast, weights in bf16: the kernels for few rows of an expert, which
 * stream weights from memory into registers (any GPU), and those that round and sum. The products
 * are those of tensor cores: weights are the 16 rows of a tile, rows of
 * activations its 8 columns, so that one row costs what eight do and weights are read once.
 *
 * Position k of a tile stands for another k than in memory, the same one on both sides: a lane
 * loads 16 bytes of a weight row, 8 values of k, which are its part of two tiles. */
#include "stage/cuda/kernels/args_fast.h"
#include "stage/cuda/kernels/fast.h"

#define SL_STREAM_THREADS 256

/* A warp's loads: chunk i of 32 values of two weight rows, chunks `split`, split + splits, ... */
typedef struct sl_stream {
    const uint16_t *row0, *row1; /* this lane's 8 values of the warp's chunk 0 */
    uint32_t chunks, whole;      /* of the warp, and those that do not end behind k */
} sl_stream;

SL_DEV sl_stream sl_stream_of(const uint16_t *row0, const uint16_t *row1, uint32_t k,
                              uint32_t split, const uint32_t splits) {
    const uint32_t all = (k + 31) / 32, full = k / 32, at = split * 32 + sl_lane() % 4 * 8;
    sl_stream s;
    s.row0 = row0 + at;
    s.row1 = row1 + at;
    s.chunks = all > split ? (all - split + splits - 1) / splits : 0;
    s.whole = full > split ? (full - split + splits - 1) / splits : 0;
    return s;
}

/* Chunk i, which is whole: loads depend on nothing, so that all of them are under way at once. */
SL_DEV void sl_stream_load(const sl_stream *s, uint32_t i, const uint32_t splits, uint4 w[2]) {
    w[0] = sl_load16_once(s->row0 + i * splits * 32);
    w[1] = sl_load16_once(s->row1 + i * splits * 32);
}

/* Chunk i, which may end behind k: values there are some of the row's, what they are multiplied
 * with is zero. */
SL_DEV void sl_stream_tail(const sl_stream *s, uint32_t i, uint32_t k, uint32_t split,
                           const uint32_t splits, uint4 w[2]) {
    const uint32_t from = (split + i * splits) * 32 + sl_lane() % 4 * 8;
    const int32_t back = from < k ? 0 : (int32_t)(from - k) + 8;
    w[0] = sl_load16_once(s->row0 + (int32_t)(i * splits * 32) - back);
    w[1] = sl_load16_once(s->row1 + (int32_t)(i * splits * 32) - back);
}

SL_DEV void sl_stream_begin(const sl_stream *s, const uint32_t splits, uint4 w[][2],
                            const uint32_t ahead) {
    if (s->whole < ahead) return;
    SL_UNROLL for (uint32_t u = 0; u < ahead; u++) sl_stream_load(s, u, splits, w[u]);
}

/* One chunk of 32 k: 16 weight rows times 8 * tiles rows of xs, this lane's row of the first tile
 * and values of the chunk. */
SL_DEV void sl_stream_chunk(const uint4 w[2], const uint16_t *xs, uint32_t x_stride,
                            const int tiles, float d[][4]) {
    const uint32_t a0[4] = {w[0].x, w[1].x, w[0].y, w[1].y};
    const uint32_t a1[4] = {w[0].z, w[1].z, w[0].w, w[1].w};
    SL_UNROLL for (int t = 0; t < tiles; t++) {
        const uint4 x = *(const uint4 *)(xs + (size_t)t * 8 * x_stride);
        const uint32_t b0[2] = {x.x, x.y}, b1[2] = {x.z, x.w};
        sl_mma_m16n8k16_bf16(d[t], a0, b0);
        sl_mma_m16n8k16_bf16(d[t], a1, b1);
    }
}

/* Behind sl_stream_begin: all chunks of the warp. What is not a whole number of `ahead` chunks is
 * loaded as it is needed, which models' shapes avoid. */
SL_DEV void sl_stream_run(const sl_stream *from, uint32_t k, uint32_t split, const uint32_t splits,
                          uint4 w[][2], const uint32_t ahead, const uint16_t *xs, uint32_t x_stride,
                          const int tiles, float d[][4]) {
    const uint32_t step = splits * 32;
    const uint16_t *x = xs + split * 32;
    sl_stream s = *from;
    uint32_t i = 0;
    if (s.whole >= ahead) {
        for (i = ahead; i + ahead <= s.whole; i += ahead) {
            s.row0 += ahead * step;
            s.row1 += ahead * step;
            SL_UNROLL for (uint32_t u = 0; u < ahead; u++) {
                const uint4 now[2] = {w[u][0], w[u][1]};
                sl_stream_load(&s, u, splits, w[u]);
                sl_stream_chunk(now, x + u * step, x_stride, tiles, d);
            }
            x += ahead * step;
        }
        SL_UNROLL for (uint32_t u = 0; u < ahead; u++)
            sl_stream_chunk(w[u], x + u * step, x_stride, tiles, d);
        x += ahead * step;
    }
    s = *from;
#ifdef __CUDACC__
#pragma unroll 1
#endif
    for (; i < s.chunks; i++, x += step) {
        uint4 now[2];
        sl_stream_tail(&s, i, k, split, splits, now);
        sl_stream_chunk(now, x, x_stride, tiles, d);
    }
}

/* Values between rows of activations in shared memory: whole chunks, and 16-byte pieces of two rows
 * in other banks. */
SL_DEV uint32_t sl_stream_stride(uint32_t k) {
    return (k + 63) / 64 * 64 + 32;
}

/* Sums of the splits of a tile: warp `split` of them adds tiles split, split + splits, ... of all,
 * so that *tile* t is complete in its warp's d[t]. red: [warps][tiles][32] float4. */
SL_DEV void sl_stream_reduce(float4 *red, uint32_t first_warp, uint32_t split,
                             const uint32_t splits, const int tiles, float d[][4]) {
    const uint32_t lane = sl_lane();
    SL_UNROLL for (int t = 0; t < tiles; t++) {
        red[((first_warp + split) * (uint32_t)tiles + (uint32_t)t) * 32 + lane] =
            make_float4(d[t][0], d[t][1], d[t][2], d[t][3]);
    }
    __syncthreads();
    SL_UNROLL for (int t = 0; t < tiles; t++) {
        if ((uint32_t)t % splits != split) continue;
        float4 sum = red[(first_warp * (uint32_t)tiles + (uint32_t)t) * 32 + lane];
        SL_UNROLL for (uint32_t s = 1; s < splits; s++) {
            const float4 o = red[((first_warp + s) * (uint32_t)tiles + (uint32_t)t) * 32 + lane];
            sum = make_float4(sum.x + o.x, sum.y + o.y, sum.z + o.z, sum.w + o.w);
        }
        d[t][0] = sum.x, d[t][1] = sum.y, d[t][2] = sum.z, d[t][3] = sum.w;
    }
}

/* Up, few rows. Block: 16 values of d_ff of group blockIdx.y, two tiles of 8 gate and 8 up rows,
 * each in 4 splits of k. Dynamic: 8 * tiles rows of x in bf16, and the warps' sums. `ahead`: loads
 * of a lane from each of its two weight rows that are under way. */
#define SL_UP_SPLITS 4u

SL_DEV void sl_up_stage(const sl_fast_up_args *a, const sl_fast_group *g, uint16_t *xs,
                        uint32_t stride, uint32_t rows) {
    const uint32_t pieces = stride / 8;
    for (uint32_t i = threadIdx.x; i < rows * pieces; i += SL_STREAM_THREADS) {
        const uint32_t r = i / pieces, k = i % pieces * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (r < g->n && k < a->d_model) {
            const float *x = a->x + (size_t)__ldg(a->x_row + g->first + r) * a->d_model + k;
            const float4 lo = __ldcg((const float4 *)x), hi = __ldcg((const float4 *)(x + 4));
            const float f[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
            v = sl_fast_pack8(f);
        }
        *(uint4 *)(xs + (size_t)r * stride + k) = v;
    }
}

SL_DEV void sl_up_stream(const sl_fast_up_args *a, const int tiles, const uint32_t ahead) {
    SL_DYNAMIC(uint16_t, xs);
    sl_fast_wait();
    sl_fast_let_next();
    const uint32_t lane = sl_lane(), split = sl_warp() % SL_UP_SPLITS;
    const uint32_t first_warp = sl_warp() - split, q = lane % 4, r = lane / 4;
    if (blockIdx.y >= a->counts->n_groups) return;
    const sl_fast_group g = a->group[blockIdx.y];
    const uint32_t f = (blockIdx.x * 2 + sl_warp() / SL_UP_SPLITS) * 8 + r;
    const size_t at = (size_t)(f < a->d_ff ? f : a->d_ff - 1) * a->d_model;
    const sl_stream s = sl_stream_of((const uint16_t *)g.gate + at, (const uint16_t *)g.up + at,
                                     a->d_model, split, SL_UP_SPLITS);
    uint4 w[8][2];
    sl_stream_begin(&s, SL_UP_SPLITS, w, ahead);
    const uint32_t stride = sl_stream_stride(a->d_model);
    float4 *red = (float4 *)(xs + 8 * (uint32_t)tiles * stride);
    sl_up_stage(a, &g, xs, stride, 8 * (uint32_t)tiles);
    __syncthreads();
    float d[4][4] = {{0}};
    sl_stream_run(&s, a->d_model, split, SL_UP_SPLITS, w, ahead, xs + (size_t)r * stride + 8 * q,
                  stride, tiles, d);
    sl_stream_reduce(red, first_warp, split, SL_UP_SPLITS, tiles, d);
    SL_UNROLL for (int t = 0; t < tiles; t++) {
        if ((uint32_t)t % SL_UP_SPLITS != split || f >= a->d_ff) continue;
        SL_UNROLL for (uint32_t i = 0; i < 2; i++) {
            const uint32_t row = 8 * (uint32_t)t + 2 * q + i;
            if (row < g.n) {
                const float m = sl_fast_swiglu(d[t][i], d[t][2 + i], a->limit);
                a->mid[(size_t)(g.first + row) * a->d_ff + f] = (uint16_t)sl_pack_bf16(m, 0);
            }
        }
    }
}

SL_KERNEL_BOUNDS(sl_k_fast_up_8, sl_fast_up_args, SL_STREAM_THREADS, 2) {
    sl_up_stream(&a, 1, 4);
}

SL_KERNEL_BOUNDS(sl_k_fast_up_16, sl_fast_up_args, SL_STREAM_THREADS, 2) {
    sl_up_stream(&a, 2, 4);
}

SL_KERNEL_BOUNDS(sl_k_fast_up_32, sl_fast_up_args, SL_STREAM_THREADS, 1) {
    sl_up_stream(&a, 4, 8);
}

/* Down, few rows. Block: 64 values of d_model of group blockIdx.y, four tiles of 16 in 2 splits of
 * k. */
#define SL_DOWN_SPLITS 2u
#define SL_DOWN_COLS   64u

SL_DEV void sl_down_stage(const sl_fast_down_args *a, const sl_fast_group *g, uint16_t *xs,
                          uint32_t stride, uint32_t rows) {
    const uint32_t pieces = stride / 8;
    for (uint32_t i = threadIdx.x; i < rows * pieces; i += SL_STREAM_THREADS) {
        const uint32_t r = i / pieces, k = i % pieces * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (r < g->n && k < a->d_ff)
            v = __ldcg((const uint4 *)(a->mid + (size_t)(g->first + r) * a->d_ff + k));
        *(uint4 *)(xs + (size_t)r * stride + k) = v;
    }
}

SL_DEV void sl_down_stream(const sl_fast_down_args *a, const int tiles, const uint32_t ahead) {
    SL_DYNAMIC(uint16_t, xs);
    const uint32_t lane = sl_lane(), split = sl_warp() % SL_DOWN_SPLITS;
    const uint32_t first_warp = sl_warp() - split, q = lane % 4, r = lane / 4;
    sl_fast_wait(); /* for lists: weights of an empty group would be anywhere */
    sl_fast_let_next();
    if (blockIdx.y >= a->counts->n_groups) return;
    const sl_fast_group g = a->group[blockIdx.y];
    const uint32_t row = blockIdx.x * SL_DOWN_COLS + sl_warp() / SL_DOWN_SPLITS * 16 + r;
    const uint32_t end = a->d_model - 1;
    const uint16_t *down = (const uint16_t *)g.down;
    const sl_stream s = sl_stream_of(down + (size_t)(row < end ? row : end) * a->d_ff,
                                     down + (size_t)(row + 8 < end ? row + 8 : end) * a->d_ff,
                                     a->d_ff, split, SL_DOWN_SPLITS);
    uint4 w[8][2];
    sl_stream_begin(&s, SL_DOWN_SPLITS, w, ahead);
    const uint32_t stride = sl_stream_stride(a->d_ff);
    float4 *red = (float4 *)(xs + 8 * (uint32_t)tiles * stride);
    sl_down_stage(a, &g, xs, stride, 8 * (uint32_t)tiles);
    __syncthreads();
    float d[4][4] = {{0}};
    sl_stream_run(&s, a->d_ff, split, SL_DOWN_SPLITS, w, ahead, xs + (size_t)r * stride + 8 * q,
                  stride, tiles, d);
    sl_stream_reduce(red, first_warp, split, SL_DOWN_SPLITS, tiles, d);
    SL_UNROLL for (int t = 0; t < tiles; t++) {
        if ((uint32_t)t % SL_DOWN_SPLITS != split) continue;
        SL_UNROLL for (uint32_t i = 0; i < 4; i++) {
            const uint32_t x = 8 * (uint32_t)t + 2 * q + i % 2, to = row + i / 2 * 8;
            if (x < g.n && to < a->d_model) {
                const uint32_t pair = g.first + x;
                a->part[(size_t)pair * a->d_model + to] = a->weight[pair] * d[t][i];
            }
        }
    }
}

SL_KERNEL_BOUNDS(sl_k_fast_down_8, sl_fast_down_args, SL_STREAM_THREADS, 2) {
    sl_down_stream(&a, 1, 4);
}

SL_KERNEL_BOUNDS(sl_k_fast_down_16, sl_fast_down_args, SL_STREAM_THREADS, 2) {
    sl_down_stream(&a, 2, 4);
}

SL_KERNEL_BOUNDS(sl_k_fast_down_32, sl_fast_down_args, SL_STREAM_THREADS, 2) {
    sl_down_stream(&a, 4, 4);
}

/* 8 values a thread. */
SL_KERNEL(sl_k_fast_round, sl_fast_round_args) {
    sl_fast_wait();
    sl_fast_let_next();
    const uint64_t i = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i >= a.n) return;
    const float4 lo = __ldcg((const float4 *)(a.x + i)), hi = __ldcg((const float4 *)(a.x + i + 4));
    const float f[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
    *(uint4 *)(a.y + i) = sl_fast_pack8(f);
}

/* Row blockIdx.y, 8 columns a thread. */
SL_KERNEL(sl_k_fast_sum, sl_fast_sum_args) {
    sl_fast_wait();
    sl_fast_let_next();
    const uint32_t col = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (col >= a.d_model) return;
    float *y = a.y + (size_t)blockIdx.y * a.d_model + col;
    float sum[8];
    SL_UNROLL for (int i = 0; i < 8; i++) sum[i] = a.add ? y[i] : -0.0f; /* changes no bit of p */
    const uint32_t first = a.row_first ? a.row_first[blockIdx.y] : blockIdx.y * a.top_k;
    const uint32_t end = a.row_first ? a.row_first[blockIdx.y + 1] : first + a.top_k;
#ifdef __CUDACC__
#pragma unroll 4
#endif
    for (uint32_t j = first; j < end; j++) {
        const uint32_t place = __ldcg(a.place + j);
        const size_t at = (size_t)place * a.d_model + col;
        if (place == 0xffffffffu) continue;
        if (a.part) {
            const float4 lo = __ldcg((const float4 *)(a.part + at));
            const float4 hi = __ldcg((const float4 *)(a.part + at + 4));
            const float v[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
            SL_UNROLL for (int i = 0; i < 8; i++) sum[i] += v[i];
        } else {
            const uint4 p = __ldcg((const uint4 *)(a.part16 + at));
            const uint32_t v[4] = {p.x, p.y, p.z, p.w};
            SL_UNROLL for (int i = 0; i < 4; i++) {
                sum[2 * i] += sl_fast_bf16((uint16_t)v[i]);
                sum[2 * i + 1] += sl_fast_bf16((uint16_t)(v[i] >> 16));
            }
        }
    }
    *(float4 *)y = make_float4(sum[0], sum[1], sum[2], sum[3]);
    *(float4 *)(y + 4) = make_float4(sum[4], sum[5], sum[6], sum[7]);
}
