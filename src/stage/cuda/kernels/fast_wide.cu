/* Products of many rows in numerics fast, weights in bf16, sm_90a: rows of x that were rounded to
 * bf16 once, tiles on warp groups' tensor cores, all copies by the copy engine.
 *
 * A block stays for many tiles: 128 or 256 weight rows, which are the rows of the products, by up
 * to 256 rows of x. One thread keeps a ring of stages filled; two warp groups multiply, each half
 * of every 128 weight rows, and store what they have while the other one still multiplies: the
 * second begins some stages later. Two blocks of a cluster have the same rows of x, of which each
 * fetches half for both. */
#include "stage/cuda/kernels/args_products.h"
#include "stage/cuda/kernels/args_wide.h"
#include "stage/cuda/kernels/fast_parts.h"
#include "stage/cuda/kernels/ring.h"

typedef char sl_wide_is_a_ring[SL_WIDE_K == SL_RING_K && SL_WIDE_STAGES <= SL_RING_STAGES &&
                                       SL_WIDE_BOX * SL_WIDE_K * 2 == SL_RING_BOX
                                   ? 1
                                   : -1];

typedef char sl_wide_room_fits[sizeof(sl_ring) <= SL_WIDE_ROOM ? 1 : -1];

/* A tile: where it begins in the matrix and in x. */
typedef struct sl_wide_tile {
    const sl_wide_job *job;
    uint32_t col0, r0, k_tiles;
} sl_wide_tile;

/* Tile i of the list, or this block's of pair i; false: it has ended. */
SL_DEV bool sl_wide_tile_at(const sl_wide_args *a, uint32_t i, const uint32_t halves,
                            const uint32_t rows, sl_wide_tile *t) {
    if (i >= a->tiles) return false;
    uint32_t j = 0;
    while (j + 1 < a->n_jobs && a->job[j + 1].first <= i) j++;
    t->job = &a->job[j];
    i -= t->job->first;
    const uint32_t rank = a->pair > 1 ? sl_cluster_rank() : 0;
    const bool sides = t->job->end == SL_PRODUCT_SWIGLU;
    t->col0 = (i % t->job->down * a->pair + rank) * (sides ? SL_WIDE_BOX : halves * SL_WIDE_BOX);
    t->r0 = i / t->job->down * rows;
    t->k_tiles = (t->job->k + SL_RING_K - 1) / SL_RING_K * t->job->parts;
    return true;
}

/* Values k on of the weights and of rows r0 on of x to one stage of a tile. */
SL_DEV void sl_wide_fetch(const sl_wide_args *a, const sl_wide_tile *t, uint8_t *stage,
                          sl_mbar *full, uint32_t k, uint32_t r0, const uint32_t halves,
                          const uint32_t rows) {
    const sl_tensor_map *w0 = (const sl_tensor_map *)&t->job->w[0];
    const sl_tensor_map *x = (const sl_tensor_map *)&t->job->x;
    const bool sides = t->job->end == SL_PRODUCT_SWIGLU;
    uint8_t *to = stage + halves * SL_RING_BOX;
    sl_mbar_expect(full, halves * SL_RING_BOX + rows * 128);
    sl_tensor_keep(stage, w0, k, t->col0, full);
    if (halves == 2)
        sl_tensor_keep(stage + SL_RING_BOX, (const sl_tensor_map *)&t->job->w[sides], k,
                       t->col0 + (sides ? 0 : SL_WIDE_BOX), full);
    if (a->pair > 1) {
        const uint32_t half = sl_cluster_rank() * (rows / 2);
        sl_tensor_keep_pair(to + half * 128, x, k, r0 + half, full);
    } else {
        sl_tensor_keep(to, x, k, r0, full);
        sl_tensor_keep(to + rows / 2 * 128, x, k, r0 + rows / 2, full);
    }
}

/* One thread. */
SL_DEV void sl_wide_feed(const sl_wide_args *a, sl_ring *ring, sl_ring_turn turn,
                         const uint32_t halves, const uint32_t rows) {
    sl_wide_tile t;
    for (uint32_t i = blockIdx.x / a->pair; sl_wide_tile_at(a, i, halves, rows, &t);
         i += gridDim.x / a->pair) {
        uint32_t k = 0, r0 = t.r0;
        for (uint32_t kt = 0; kt < t.k_tiles; kt++) {
            sl_mbar_wait(&ring->empty[turn.slot], turn.parity ^ 1);
            sl_wide_fetch(a, &t, sl_ring_stage(&turn), &ring->full[turn.slot], k, r0, halves, rows);
            sl_ring_next(&turn);
            k += SL_RING_K;
            if (k >= t.job->k) k = 0, r0 += t.job->n_rows;
        }
    }
}

SL_DEV float sl_wide_value(const uint32_t end, const float *y, float p, float up) {
    if (end == SL_PRODUCT_SWIGLU) return sl_fast_swiglu(p, up, 0);
    return end == SL_PRODUCT_GATE ? sl_fast_swiglu(*y, p, 0) : p;
}

/* Columns col and col + 8 of y from a group's products; up: those of the other side. */
SL_DEV void sl_wide_end(const sl_wide_tile *t, uint32_t col, const uint32_t rows,
                        const uint32_t end, const float *d, const float *up) {
    const sl_wide_job *job = t->job;
    const uint32_t first = t->r0 + sl_lane() % 4 * 2;
    const bool whole = t->r0 + rows <= job->n_rows, lo = col < job->n, hi = col + 8 < job->n;
    const size_t stride = job->y_stride;
    float *y = job->y + first * stride + col;
    SL_UNROLL for (uint32_t j = 0; j < rows / 8; j++, y += 8 * stride) {
        SL_UNROLL for (uint32_t i = 0; i < 2; i++) {
            float *to = y + i * stride;
            const bool there = whole || first + 8 * j + i < job->n_rows;
            const uint32_t at = 4 * j + i;
            if (there && lo) to[0] = sl_wide_value(end, to, d[at], up[at]);
            if (there && hi) to[8] = sl_wide_value(end, to + 8, d[at + 2], up[at + 2]);
        }
    }
}

SL_DEV void sl_wide_store(const sl_wide_tile *t, uint32_t col, const uint32_t rows, const float *d,
                          const float *up) {
    if (t->job->end == SL_PRODUCT_GATE)
        sl_wide_end(t, col, rows, SL_PRODUCT_GATE, d, up);
    else
        sl_wide_end(t, col, rows, SL_PRODUCT_STORE, d, up);
}

SL_DEV void sl_wide_run(const sl_wide_args *a, sl_ring *ring, sl_ring_turn turn,
                        const uint32_t halves, const uint32_t rows) {
    const uint32_t group = sl_warp() / 4 - 1, lane = sl_lane();
    uint32_t lead = a->lead;
    sl_wide_tile t;
    for (uint32_t i = blockIdx.x / a->pair; sl_wide_tile_at(a, i, halves, rows, &t);
         i += gridDim.x / a->pair) {
        float d0[128], d1[128];
        const uint32_t stages = lead < t.k_tiles ? lead : t.k_tiles;
        if (lead && group) sl_barrier(1, 256);
        sl_ring_multiply(ring, &turn, t.k_tiles, rows, halves, a->pair, false, group ? 0 : stages,
                         d0, d1);
        lead = 0;
        const uint32_t col = t.col0 + group * 64 + sl_warp() % 4 * 16 + lane / 4;
        if (halves == 2 && t.job->end == SL_PRODUCT_SWIGLU) {
            sl_wide_end(&t, col, rows, SL_PRODUCT_SWIGLU, d0, d1);
            continue;
        }
        sl_wide_store(&t, col, rows, d0, d0);
        if (halves == 2) sl_wide_store(&t, col + SL_WIDE_BOX, rows, d1, d1);
    }
}

SL_DEV void sl_wide(const sl_wide_args *a, const uint32_t halves, const uint32_t rows) {
    SL_DYNAMIC(uint8_t, memory);
    uint8_t *room = memory + (0u - (uint32_t)(uintptr_t)memory) % 1024;
    sl_ring *ring = (sl_ring *)room;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < SL_RING_STAGES; i++) {
            sl_mbar_init(&ring->full[i], 1);
            sl_mbar_init(&ring->empty[i], 8 * a->pair);
        }
        sl_mbar_ready();
    }
    if (a->pair > 1)
        sl_cluster_sync();
    else
        __syncthreads();
    const sl_ring_turn turn = sl_ring_first(room + SL_WIDE_ROOM, a->stages, a->stage_bytes);
    sl_fast_wait();
    sl_fast_let_next();
    if (sl_warp() < 4) {
        sl_registers_less(40);
        if (threadIdx.x == 0) sl_wide_feed(a, ring, turn, halves, rows);
    } else {
        sl_registers_more(232);
        sl_wide_run(a, ring, turn, halves, rows);
    }
    __syncwarp();
    if (a->pair > 1) sl_cluster_sync(); /* the other block still arrives here */
}

/* Other GPUs have none of this, and never get these. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define SL_WIDE_KERNEL(name)     SL_KERNEL(name, sl_wide_args)
#define sl_wide(a, halves, rows) ((void)(a), sl_trap())
#elif defined(__CUDACC__)
#define SL_WIDE_KERNEL(name)                                                                       \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(SL_WIDE_THREADS, 1)     \
        name(const __grid_constant__ sl_wide_args a)
#else
#define SL_WIDE_KERNEL(name) SL_KERNEL(name, sl_wide_args)
#endif

#define SL_WIDE_OF(halves, rows)                                                                   \
    SL_WIDE_KERNEL(sl_k_fast_wide_##halves##_##rows) {                                             \
        sl_wide(&a, halves, rows);                                                                 \
    }
SL_WIDE_TILES(SL_WIDE_OF)

/* A row a block in y, eight values a thread. */
SL_KERNEL(sl_k_fast_wide_rows, sl_wide_rows_args) {
    sl_fast_wait();
    sl_fast_let_next();
    const uint32_t i = (blockIdx.x * SL_WIDE_ROWS_THREADS + threadIdx.x) * 8, r = blockIdx.y;
    if (i >= a.k) return;
    const float *x = a.x + (a.row ? a.row[r] : r) * a.x_stride + i;
    const float4 lo = __ldcg((const float4 *)x), hi = __ldcg((const float4 *)(x + 4));
    float f[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
    sl_fast_put_parts(a.y + (size_t)r * a.k + i, (size_t)a.n_rows * a.k, a.parts, f);
}
