/* Routed experts of very few rows in numerics fast, weights in bf16, sm_90: one launch, in which
 * every multiprocessor streams its share of the weights without a pause.
 *
 * A block has 8 warps that multiply and 2 that feed them through a ring of stages in shared memory:
 * one copies weights, the other rows of mid. First come units of 8 values of d_ff of one group (8
 * rows of gate, 8 of up), dealt out in turn, group after group; then units of 16 columns of y with
 * all groups, so that a column is summed in one block, in the order of the groups. A block is at
 * the first groups' weights of down while the last groups' sums of up are still under way in
 * others; only rows of mid wait for those, weights never. */
#include "stage/cuda/kernels/args_fast.h"
#include "stage/cuda/kernels/async.h"
#include "stage/cuda/kernels/fast.h"

#define SL_SMALL_WARPS   8u /* that multiply */
#define SL_SMALL_THREADS (SL_SMALL_WARPS * 32 + 64)
#define SL_SMALL_SLOTS   16u
#define SL_SMALL_COLS    16u

/* An expert and the pairs that want it. */
typedef struct sl_small_group {
    const uint8_t *gate, *up, *down;
    uint32_t n;
    uint8_t pair[SL_FAST_SMALL_ROWS], row[SL_FAST_SMALL_ROWS];
} sl_small_group;

/* Shared memory; what follows is at a->x_at, a->table_at and a->stage_at. */
typedef struct sl_small_room {
    sl_mbar full[SL_SMALL_SLOTS], empty[SL_SMALL_SLOTS];
    sl_small_group group[SL_FAST_SMALL_PAIRS];
    uint32_t id[SL_FAST_SMALL_PAIRS], leaders[2], n_groups;
    float weight[SL_FAST_SMALL_PAIRS];
    float4 red[2][SL_SMALL_WARPS][32];                          /* sums of an up unit, by turns */
    float y[SL_SMALL_WARPS][SL_FAST_SMALL_ROWS][SL_SMALL_COLS]; /* of a down unit */
} sl_small_room;

typedef char sl_small_room_fits[sizeof(sl_small_room) <= SL_FAST_SMALL_ROOM ? 1 : -1];

/* Where a warp is in the ring. */
typedef struct sl_small_turn {
    uint32_t slot, parity;
} sl_small_turn;

SL_DEV void sl_small_next(const sl_fast_small_args *a, sl_small_turn *t) {
    if (++t->slot == a->slots) {
        t->slot = 0;
        t->parity ^= 1;
    }
}

SL_DEV uint32_t sl_small_up_units(const sl_fast_small_args *a, const sl_small_room *room) {
    return a->phases & 1 ? room->n_groups * (a->d_ff / 8) : 0;
}

SL_DEV uint32_t sl_small_down_units(const sl_fast_small_args *a) {
    return a->phases & 2 ? a->d_model / SL_SMALL_COLS : 0;
}

/* Units of down go to the blocks from the last on: those have the fewest of up. */
SL_DEV uint32_t sl_small_first_down(void) {
    return gridDim.x - 1 - blockIdx.x;
}

SL_DEV uint8_t *sl_small_stage(const sl_fast_small_args *a, sl_small_room *room, uint32_t slot) {
    return (uint8_t *)room + a->stage_at + slot * a->slot_bytes;
}

/* A stage of 16 weight rows, lane i's is `row` (lanes from 16 on have none). */
SL_DEV void sl_small_feed(const sl_fast_small_args *a, sl_small_room *room, sl_small_turn *t,
                          const uint8_t *row, uint32_t k) {
    uint8_t *stage = sl_small_stage(a, room, t->slot);
    sl_mbar_wait(&room->empty[t->slot], t->parity ^ 1);
    __syncwarp(); /* else the slot is filled and freed before a slow lane has looked */
    if (sl_lane() == 0) sl_mbar_expect(&room->full[t->slot], 16 * k * 2);
    __syncwarp();
    if (sl_lane() < 16)
        sl_bulk_copy_once(stage + sl_lane() * (k * 2 + SL_FAST_SMALL_PAD), row, k * 2,
                          &room->full[t->slot]);
    __syncwarp();
    sl_small_next(a, t);
}

SL_DEV void sl_small_feed_weights(const sl_fast_small_args *a, sl_small_room *room) {
    sl_small_turn t = {0, 0};
    const uint32_t i = sl_lane() % 16, per_group = a->d_ff / 8;
    for (uint32_t u = blockIdx.x; u < sl_small_up_units(a, room); u += gridDim.x) {
        const sl_small_group *g = &room->group[u / per_group];
        const uint8_t *w = i < 8 ? g->gate : g->up;
        w += (size_t)(u % per_group * 8 + i % 8) * a->d_model * 2;
        for (uint32_t k = 0; k < a->d_model; k += a->up_k)
            sl_small_feed(a, room, &t, w + k * 2, a->up_k);
    }
    for (uint32_t u = sl_small_first_down(); u < sl_small_down_units(a); u += gridDim.x) {
        for (uint32_t e = 0; e < room->n_groups; e++) {
            const uint8_t *w = room->group[e].down + (size_t)(u * SL_SMALL_COLS + i) * a->d_ff * 2;
            for (uint32_t k = 0; k < a->d_ff; k += a->down_k)
                sl_small_feed(a, room, &t, w + k * 2, a->down_k);
        }
    }
}

/* Which groups' rows of mid are known to be there: bits of the first and of the last 32. */
typedef struct sl_small_known {
    uint32_t bits[2];
} sl_small_known;

SL_DEV void sl_small_await(const sl_fast_small_args *a, const sl_small_room *room, uint32_t e,
                           sl_small_known *known) {
    const uint32_t target = a->d_ff / 8 * 2;
    for (uint32_t i = 0;
         a->phases == 3 && !((e < 32 ? known->bits[0] : known->bits[1]) >> e % 32 & 1); i++) {
        SL_UNROLL for (uint32_t j = 0; j < 2; j++) {
            const uint32_t g = 32 * j + sl_lane();
            const bool there = g < room->n_groups && sl_load_acquire(a->ready + g) >= target;
            known->bits[j] = __ballot_sync(SL_ALL, there);
        }
        sl_async_fence();
        if (i > SL_SPIN_LIMIT) sl_trap();
        if (i) sl_spin();
    }
}

/* Every stage takes an arrival of the warp that feeds mid, too, which has nothing to bring at
 * first. */
SL_DEV void sl_small_feed_mid(const sl_fast_small_args *a, sl_small_room *room) {
    sl_small_turn t = {0, 0};
    sl_small_known known = {{0, 0}};
    const uint32_t lane = sl_lane();
    for (uint32_t u = blockIdx.x; u < sl_small_up_units(a, room); u += gridDim.x) {
        for (uint32_t k = 0; k < a->d_model; k += a->up_k) {
            sl_mbar_wait(&room->empty[t.slot], t.parity ^ 1);
            __syncwarp();
            if (lane == 0) sl_mbar_arrive(&room->full[t.slot]);
            __syncwarp();
            sl_small_next(a, &t);
        }
    }
    for (uint32_t u = sl_small_first_down(); u < sl_small_down_units(a); u += gridDim.x) {
        for (uint32_t e = 0; e < room->n_groups; e++) {
            const sl_small_group *g = &room->group[e];
            const uint16_t *mid = a->mid + (size_t)g->pair[lane % SL_FAST_SMALL_ROWS] * a->d_ff;
            sl_small_await(a, room, e, &known);
            for (uint32_t k = 0; k < a->d_ff; k += a->down_k) {
                uint8_t *to = sl_small_stage(a, room, t.slot) +
                              (16 + lane) * (a->down_k * 2 + SL_FAST_SMALL_PAD);
                sl_mbar_wait(&room->empty[t.slot], t.parity ^ 1);
                __syncwarp();
                if (lane == 0) sl_mbar_expect(&room->full[t.slot], g->n * a->down_k * 2);
                __syncwarp();
                if (lane < g->n) sl_bulk_copy(to, mid + k, a->down_k * 2, &room->full[t.slot]);
                __syncwarp();
                sl_small_next(a, &t);
            }
        }
    }
}

/* 16 weight rows of a stage times the columns of x, this warp's chunks of 32 k: column lane / 4 is
 * at `x`, NULL where there is none. */
SL_DEV void sl_small_multiply(const uint8_t *stage, uint32_t k, const uint8_t *x, float d[4]) {
    const uint32_t stride = k * 2 + SL_FAST_SMALL_PAD, r = sl_lane() / 4, q = sl_lane() % 4;
    const uint8_t *w = stage + r * stride + q * 16;
    for (uint32_t c = sl_warp(); c * 32 < k; c += SL_SMALL_WARPS) {
        const uint4 lo = *(const uint4 *)(w + c * 64);
        const uint4 hi = *(const uint4 *)(w + 8 * stride + c * 64);
        uint4 v = make_uint4(0, 0, 0, 0);
        if (x) v = *(const uint4 *)(x + c * 64 + q * 16);
        const uint32_t a0[4] = {lo.x, hi.x, lo.y, hi.y}, a1[4] = {lo.z, hi.z, lo.w, hi.w};
        const uint32_t b0[2] = {v.x, v.y}, b1[2] = {v.z, v.w};
        sl_mma_m16n8k16_bf16(d, a0, b0);
        sl_mma_m16n8k16_bf16(d, a1, b1);
    }
}

/* This warp is done with the stage. */
SL_DEV void sl_small_release(const sl_fast_small_args *a, sl_small_room *room, sl_small_turn *t) {
    __syncwarp();
    if (sl_lane() == 0) sl_mbar_arrive(&room->empty[t->slot]);
    sl_small_next(a, t);
}

/* Tells all blocks of rows of mid that this warp stored a unit ago, so that it need not wait for
 * them; owed is the group + 1, or 0. */
SL_DEV void sl_small_tell(const sl_fast_small_args *a, uint32_t *owed) {
    if (!*owed) return;
    __threadfence();
    sl_async_fence(); /* copy engines read them */
    __syncwarp();
    if (sl_lane() == 0) sl_add_release(a->ready + *owed - 1, 1);
    *owed = 0;
}

/* Sums of the warps over their parts of k: warps 0 and 1 have columns 2 (lane % 4) + warp. */
SL_DEV void sl_small_store_mid(const sl_fast_small_args *a, const sl_small_room *room,
                               const sl_small_group *g, uint32_t turn, uint32_t first) {
    const uint32_t lane = sl_lane(), warp = sl_warp(), c = lane % 4 * 2 + warp;
    float gate = 0, up = 0;
    SL_UNROLL for (uint32_t w = 0; w < SL_SMALL_WARPS; w++) {
        const float4 v = room->red[turn][w][lane];
        gate += warp ? v.y : v.x;
        up += warp ? v.w : v.z;
    }
    if (c >= g->n) return;
    a->mid[(size_t)g->pair[c] * a->d_ff + first + lane / 4] =
        (uint16_t)sl_pack_bf16(sl_fast_swiglu(gate, up, a->limit), 0);
}

SL_DEV void sl_small_up(const sl_fast_small_args *a, sl_small_room *room, sl_small_turn *t) {
    const uint32_t lane = sl_lane(), warp = sl_warp(), r = lane / 4, per_group = a->d_ff / 8;
    const uint32_t x_stride = a->d_model * 2 + SL_FAST_SMALL_PAD;
    uint32_t turn = 0, owed = 0;
    for (uint32_t u = blockIdx.x; u < sl_small_up_units(a, room); u += gridDim.x, turn ^= 1) {
        const sl_small_group *g = &room->group[u / per_group];
        const uint8_t *x = NULL;
        if (r < g->n) x = (uint8_t *)room + a->x_at + g->row[r] * x_stride;
        float d[4] = {0, 0, 0, 0};
        for (uint32_t k = 0; k < a->d_model; k += a->up_k) {
            sl_mbar_wait(&room->full[t->slot], t->parity);
            sl_small_multiply(sl_small_stage(a, room, t->slot), a->up_k, x ? x + k * 2 : NULL, d);
            sl_small_release(a, room, t);
        }
        room->red[turn][warp][lane] = make_float4(d[0], d[1], d[2], d[3]);
        sl_barrier(1, SL_SMALL_WARPS * 32);
        if (warp < 2) {
            sl_small_tell(a, &owed);
            sl_small_store_mid(a, room, g, turn, u % per_group * 8);
            if (a->phases == 3) owed = u / per_group + 1;
        }
    }
    sl_small_tell(a, &owed);
}

/* Columns of y of one unit: the sums of the warps, each over its part of k. */
SL_DEV void sl_small_store(const sl_fast_small_args *a, const sl_small_room *room, uint32_t u) {
    sl_barrier(1, SL_SMALL_WARPS * 32);
    const uint32_t row = threadIdx.x / SL_SMALL_COLS, c = threadIdx.x % SL_SMALL_COLS;
    if (row < a->n_rows) {
        float *y = a->y + (size_t)row * a->d_model + u * SL_SMALL_COLS + c;
        float sum = a->add ? *y : 0.0f;
        SL_UNROLL for (uint32_t w = 0; w < SL_SMALL_WARPS; w++) sum += room->y[w][row][c];
        *y = sum;
    }
    sl_barrier(1, SL_SMALL_WARPS * 32);
}

SL_DEV void sl_small_down(const sl_fast_small_args *a, sl_small_room *room, sl_small_turn *t) {
    const uint32_t lane = sl_lane(), r = lane / 4, q = lane % 4;
    const uint32_t stride = a->down_k * 2 + SL_FAST_SMALL_PAD;
    float *y = room->y[sl_warp()][0];
    for (uint32_t u = sl_small_first_down(); u < sl_small_down_units(a); u += gridDim.x) {
        for (uint32_t i = lane; i < SL_FAST_SMALL_ROWS * SL_SMALL_COLS; i += 32) y[i] = 0;
        __syncwarp();
        for (uint32_t e = 0; e < room->n_groups; e++) {
            const sl_small_group *g = &room->group[e];
            float d[4] = {0, 0, 0, 0};
            for (uint32_t k = 0; k < a->d_ff; k += a->down_k) {
                const uint8_t *stage = sl_small_stage(a, room, t->slot);
                sl_mbar_wait(&room->full[t->slot], t->parity);
                sl_small_multiply(stage, a->down_k, r < g->n ? stage + (16 + r) * stride : NULL, d);
                sl_small_release(a, room, t);
            }
            SL_UNROLL for (uint32_t i = 0; i < 2; i++) { /* a row is once in a group */
                if (2 * q + i < g->n) {
                    const float w = room->weight[g->pair[2 * q + i]];
                    float *to = y + g->row[2 * q + i] * SL_SMALL_COLS + r;
                    to[0] += w * d[i];
                    to[8] += w * d[2 + i];
                }
            }
            __syncwarp();
        }
        sl_small_store(a, room, u);
    }
}

/* Groups, in the order in which the pairs name experts first, by all threads. What is known before
 * the kernels in front have ended is fetched before. */
SL_DEV void sl_small_begin(const sl_fast_small_args *a, sl_small_room *room) {
    const uint32_t pairs = a->n_pairs, p = threadIdx.x;
    uint32_t id = 0xffffffffu, rank = 0, n = 0, leader = p;
    sl_fast_expert *table = (sl_fast_expert *)((uint8_t *)room + a->table_at);
    if (p == 0) {
        for (uint32_t i = 0; i < a->slots; i++) {
            sl_mbar_init(&room->full[i], 2);
            sl_mbar_init(&room->empty[i], SL_SMALL_WARPS);
        }
        sl_mbar_ready();
    }
    if (a->table_at)
        for (uint32_t i = p; i < a->n_experts; i += SL_SMALL_THREADS) table[i] = a->expert[i];
    sl_fast_wait();
    sl_fast_let_next();
    if (p < pairs) {
        room->id[p] = __ldcg(a->id + p);
        room->weight[p] = __ldcg(a->gate + p);
        if (a->heard && blockIdx.x == 0 && a->phases & 1) a->heard[p] = room->id[p];
    }
    __syncthreads();
    if (p < SL_FAST_SMALL_PAIRS) {
        if (p < pairs) id = room->id[p];
        for (uint32_t i = 0; i < pairs; i++) {
            const bool same = room->id[i] == id;
            n += same;
            rank += same && i < p;
            if (same && i < leader) leader = i;
        }
        const uint32_t leaders =
            __ballot_sync(SL_ALL, p < pairs && leader == p && id < a->n_experts);
        if (sl_lane() == 0) room->leaders[sl_warp()] = leaders;
    }
    __syncthreads();
    if (p == 0) room->n_groups = (uint32_t)(__popc(room->leaders[0]) + __popc(room->leaders[1]));
    if (p < pairs && id < a->n_experts) {
        const uint32_t before = (1u << leader % 32) - 1;
        const uint32_t at =
            leader < 32 ? (uint32_t)__popc(room->leaders[0] & before)
                        : (uint32_t)(__popc(room->leaders[0]) + __popc(room->leaders[1] & before));
        sl_small_group *g = &room->group[at];
        g->pair[rank] = (uint8_t)p;
        g->row[rank] = (uint8_t)(a->pair_row ? __ldcg(a->pair_row + p) : p / a->top_k);
        if (rank == 0) {
            const sl_fast_expert *x = a->table_at ? table + id : a->expert + id;
            g->gate = x->gate;
            g->up = x->up;
            g->down = x->down;
            g->n = n;
        }
    }
    __syncthreads();
}

/* Rows of x in bf16, by the warps that multiply, while weights are on their way. */
SL_DEV void sl_small_stage_x(const sl_fast_small_args *a, sl_small_room *room) {
    const uint32_t pieces = a->d_model / 8, stride = a->d_model * 2 + SL_FAST_SMALL_PAD;
    if (!(a->phases & 1)) return;
    for (uint32_t i = threadIdx.x; i < a->n_rows * pieces; i += SL_SMALL_WARPS * 32) {
        const float4 *x = (const float4 *)(a->x + (size_t)i * 8);
        const float4 lo = __ldcg(x), hi = __ldcg(x + 1);
        const float f[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
        uint8_t *to = (uint8_t *)room + a->x_at + i / pieces * stride + i % pieces * 16;
        *(uint4 *)to = sl_fast_pack8(f);
    }
    sl_barrier(1, SL_SMALL_WARPS * 32);
}

/* The last block leaves the counters as it found them. */
SL_DEV void sl_small_end(const sl_fast_small_args *a) {
    uint32_t last = 0;
    if (a->phases != 3) return;
    sl_barrier(1, SL_SMALL_WARPS * 32);
    if (sl_warp() > 0) return;
    if (sl_lane() == 0) last = atomicAdd(a->ready + SL_FAST_SMALL_PAIRS, 1) + 1 == gridDim.x;
    if (!__any_sync(SL_ALL, last != 0)) return;
    for (uint32_t i = sl_lane(); i <= SL_FAST_SMALL_PAIRS; i += 32) a->ready[i] = 0;
}

SL_KERNEL_BOUNDS(sl_k_fast_small, sl_fast_small_args, SL_SMALL_THREADS, 1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    SL_DYNAMIC(uint8_t, memory);
    sl_small_room *room = (sl_small_room *)memory;
    sl_small_begin(&a, room);
    if (sl_warp() == SL_SMALL_WARPS) {
        sl_small_feed_weights(&a, room);
    } else if (sl_warp() > SL_SMALL_WARPS) {
        sl_small_feed_mid(&a, room);
    } else {
        sl_small_turn t = {0, 0};
        sl_small_stage_x(&a, room);
        sl_small_up(&a, room, &t);
        sl_small_down(&a, room, &t);
        sl_small_end(&a);
    }
#else
    sl_trap();
#endif
}
