/* Routed experts of many rows in numerics fast, weights in bf16, sm_90a: tiles of 256 weight rows
 * by up to 160 pairs on warp groups' tensor cores, both products in one launch.
 *
 * A block is three warp groups. The first one feeds a ring of stages of 64 k: one warp has the copy
 * engine bring boxes of weights, three gather rows of activations. The two others multiply, each
 * half of the weight rows. Tiles are dealt out in turn: those of up (128 rows of gate and of up,
 * the same values of d_ff, which meet in a thread), then those of down (256 rows), which wait for
 * their piece's rows of mid, made by whatever blocks, long before as a rule. Weights do not wait.
 *
 * In a cluster of two, both blocks have the same weights and two pieces of one expert: each fetches
 * one of the two boxes for both. */
#include "stage/cuda/kernels/args_fast.h"
#include "stage/cuda/kernels/async.h"
#include "stage/cuda/kernels/fast.h"
#include "stage/cuda/kernels/wgmma.h"

#define SL_BIG_THREADS 384
#define SL_BIG_BOX     (128u * 128u) /* bytes of 128 weight rows of 64 k */
#define SL_BIG_K       64u
#define SL_BIG_GATHER  96u /* threads that gather */

/* Shared memory in front of the stages, which are 1024-byte aligned. */
typedef struct sl_big_room {
    sl_mbar full[SL_FAST_BIG_STAGES], empty[SL_FAST_BIG_STAGES];
    uint32_t stored[8];                 /* tiles of up that each warp has stored */
    uint32_t row[2][SL_FAST_BIG_WIDTH]; /* where a piece's rows begin, in values; by turns */
    float weight[2][SL_FAST_BIG_WIDTH]; /* of a piece's pairs, of each warp group */
} sl_big_room;

typedef char sl_big_room_fits[sizeof(sl_big_room) <= SL_FAST_BIG_ROOM ? 1 : -1];

/* Where someone is: in the ring, and in the list of tiles. */
typedef struct sl_big_turn {
    uint32_t slot, parity, stages, stage_bytes;
} sl_big_turn;

typedef struct sl_big_tile {
    uint32_t piece, tile, k_tiles;
    bool down;
} sl_big_tile;

SL_DEV sl_big_turn sl_big_first(const sl_fast_big_args *a) {
    const sl_big_turn t = {0, 0, a->counts->stages, a->counts->stage_bytes};
    return t;
}

SL_DEV void sl_big_next(sl_big_turn *t) {
    if (++t->slot == t->stages) {
        t->slot = 0;
        t->parity ^= 1;
    }
}

SL_DEV uint8_t *sl_big_stage(sl_big_room *room, const sl_big_turn *t) {
    return (uint8_t *)room + SL_FAST_BIG_ROOM + t->slot * t->stage_bytes;
}

/* Tile i of the list; false: it has ended. */
SL_DEV bool sl_big_tile_at(const sl_fast_big_args *a, uint32_t i, const uint32_t pair,
                           sl_big_tile *t) {
    const uint32_t pieces = a->counts->n_pieces / pair;
    const uint32_t up = (a->d_ff + 127) / 128, down = (a->d_model + 255) / 256;
    const uint32_t ups = a->phases & 1 ? pieces * up : 0;
    const uint32_t downs = a->phases & 2 ? pieces * down : 0;
    t->down = i >= ups;
    if (t->down) i -= ups;
    t->piece = i / (t->down ? down : up);
    t->tile = i % (t->down ? down : up);
    t->piece = t->piece * pair + (pair > 1 ? sl_cluster_rank() : 0);
    t->k_tiles = ((t->down ? a->d_ff : a->d_model) + SL_BIG_K - 1) / SL_BIG_K;
    return !t->down || i < downs;
}

/* Up tiles of which other blocks were told. */
typedef struct sl_big_told {
    uint32_t i, n; /* the next one's place in the list, and how many there were */
    sl_big_tile t;
    bool more;
} sl_big_told;

/* Tells of tiles that all warps have stored: this thread can wait for their stores to arrive, those
 * that multiply cannot afford to. */
SL_DEV void sl_big_tell(const sl_fast_big_args *a, const sl_big_room *room, sl_big_told *told,
                        const uint32_t pair) {
    if (!told->more) return;
    const uint4 v = sl_load_shared(room->stored), w = sl_load_shared(room->stored + 4);
    const uint32_t x = v.x < v.y ? v.x : v.y, y = v.z < v.w ? v.z : v.w;
    const uint32_t z = w.x < w.y ? w.x : w.y, u = w.z < w.w ? w.z : w.w;
    const uint32_t xy = x < y ? x : y, zu = z < u ? z : u;
    while (told->more && told->n < (xy < zu ? xy : zu)) {
        __threadfence();
        sl_add_release(a->ready + told->t.piece, 1);
        told->n++;
        told->i += gridDim.x / pair;
        told->more = sl_big_tile_at(a, told->i, pair, &told->t) && !told->t.down;
    }
}

/* One thread. What the copy engine is told of the next tile is fetched during this one. */
SL_DEV void sl_big_feed_weights(const sl_fast_big_args *a, sl_big_room *room, const uint32_t pair) {
    sl_big_turn turn = sl_big_first(a);
    sl_big_tile t, next;
    sl_big_told told;
    uint32_t i = blockIdx.x / pair;
    bool more = sl_big_tile_at(a, i, pair, &next);
    const void *maps = more ? a->piece[next.piece].maps : NULL;
    told.i = i;
    told.n = 0;
    told.t = next;
    told.more = more && !next.down && a->phases == 3;
    while (more) {
        const sl_tensor_map *m = (const sl_tensor_map *)maps;
        t = next;
        i += gridDim.x / pair;
        more = sl_big_tile_at(a, i, pair, &next);
        const sl_tensor_map *m0 = m + (t.down ? 2 : 0), *m1 = m + (t.down ? 2 : 1);
        /* The host may have written another one there since some block used it. */
        sl_tensor_renew(m0);
        if (m1 != m0) sl_tensor_renew(m1);
        const uint32_t row0 = t.tile * (t.down ? 256 : 128), row1 = row0 + (t.down ? 128 : 0);
        for (uint32_t k = 0; k < t.k_tiles; k++) {
            uint8_t *stage = sl_big_stage(room, &turn);
            sl_mbar *full = &room->full[turn.slot];
            for (uint32_t j = 0; !sl_mbar_test(&room->empty[turn.slot], turn.parity ^ 1); j++) {
                if (j > SL_SPIN_LIMIT) sl_trap();
                sl_big_tell(a, room, &told, pair);
            }
            sl_mbar_expect(full, 2 * SL_BIG_BOX);
            if (pair == 1) {
                sl_tensor_copy(stage, m0, k * SL_BIG_K, row0, full);
                sl_tensor_copy(stage + SL_BIG_BOX, m1, k * SL_BIG_K, row1, full);
            } else if (sl_cluster_rank() == 0) {
                sl_tensor_copy_pair(stage, m0, k * SL_BIG_K, row0, full);
            } else {
                sl_tensor_copy_pair(stage + SL_BIG_BOX, m1, k * SL_BIG_K, row1, full);
            }
            sl_big_next(&turn);
            if (k == 0 && more) maps = a->piece[next.piece].maps;
            if (k == 1 && more)
                sl_tensor_fetch((const sl_tensor_map *)maps + (next.down ? 2 : 0), next.down);
        }
    }
    for (uint32_t j = 0; told.more; j++) {
        if (j > SL_SPIN_LIMIT) sl_trap();
        sl_spin();
        sl_big_tell(a, room, &told, pair);
    }
}

/* What one who gathers knows of a tile: two of its rows are this thread's to find. */
typedef struct sl_big_rows {
    sl_big_tile t;
    uint32_t n, width, row[2];
    bool ready; /* the rows of mid are known to be there */
} sl_big_rows;

SL_DEV bool sl_big_is_ready(const sl_fast_big_args *a, const sl_big_tile *t) {
    return sl_load_acquire(a->ready + t->piece) >= (a->d_ff + 127) / 128;
}

/* Tile i; false: there is none. Asks for everything and waits for nothing more. */
SL_DEV bool sl_big_look(const sl_fast_big_args *a, uint32_t i, const uint32_t pair,
                        sl_big_rows *r) {
    if (!sl_big_tile_at(a, i, pair, &r->t)) return false;
    const sl_fast_piece *p = a->piece + r->t.piece;
    const uint32_t first = p->first;
    r->n = p->n;
    r->width = p->width;
    SL_UNROLL for (uint32_t j = 0; j < 2; j++) {
        const uint32_t c = threadIdx.x - 32 + j * SL_BIG_GATHER;
        const uint32_t at = first + (c < r->n ? c : 0);
        r->row[j] = r->t.down ? at * a->d_ff : r->n ? __ldg(a->x_row + at) * a->d_model : 0;
    }
    r->ready = !r->t.down || a->phases != 3 || sl_big_is_ready(a, &r->t);
    return true;
}

/* Behind this all threads that gather know where rows begin, and may read them. */
SL_DEV void sl_big_know(const sl_fast_big_args *a, sl_big_room *room, const sl_big_rows *r,
                        uint32_t turn) {
    SL_UNROLL for (uint32_t j = 0; j < 2;
                   j++) if (threadIdx.x - 32 + j * SL_BIG_GATHER < SL_FAST_BIG_WIDTH)
        room->row[turn][threadIdx.x - 32 + j * SL_BIG_GATHER] = r->row[j];
    for (uint32_t i = 0; !r->ready && !sl_big_is_ready(a, &r->t); i++) {
        if (i > SL_SPIN_LIMIT) sl_trap();
        sl_spin();
    }
    sl_barrier(1, SL_BIG_GATHER);
}

/* Three warps, as far ahead as there are stages: with all the weights that are under way, a row
 * takes microseconds to come. */
SL_DEV void sl_big_gather(const sl_fast_big_args *a, sl_big_room *room, const uint32_t pair) {
    const uint32_t piece = threadIdx.x % 8, first = threadIdx.x / 8 - 4;
    sl_big_turn turn = sl_big_first(a);
    sl_big_rows r;
    uint32_t i = blockIdx.x / pair, table = 0;
    bool more = sl_big_look(a, i, pair, &r);
    for (; more; table ^= 1) {
        const uint32_t width = r.width, k_tiles = r.t.k_tiles;
        const uint16_t *from = r.t.down ? a->mid : a->x16;
        const uint32_t k_all = r.t.down ? a->d_ff : a->d_model;
        sl_big_know(a, room, &r, table);
        i += gridDim.x / pair;
        for (uint32_t kt = 0; kt < k_tiles; kt++) {
            uint8_t *to = sl_big_stage(room, &turn) + 2 * SL_BIG_BOX;
            const uint32_t k = kt * SL_BIG_K + piece * 8, bytes = k < k_all ? 16 : 0;
            sl_mbar_wait(&room->empty[turn.slot], turn.parity ^ 1);
            for (uint32_t c = first; c < width; c += SL_BIG_GATHER / 8)
                sl_cp_async16_zero(to + c * 128 + (piece ^ (c & 7)) * 16,
                                   from + room->row[table][c] + (bytes ? k : 0), bytes);
            sl_cp_async_arrive(&room->full[turn.slot]);
            sl_big_next(&turn);
            if (kt == k_tiles / 2) more = sl_big_look(a, i, pair, &r);
        }
    }
}

/* This warp's products read the slot no more: for both blocks, whose weights came together. */
SL_DEV void sl_big_release(sl_big_room *room, uint32_t slot, const uint32_t pair) {
    __syncwarp();
    if (pair == 1) {
        if (sl_lane() == 0) sl_mbar_arrive(&room->empty[slot]);
    } else if (sl_lane() < 2) {
        sl_mbar_arrive_at(&room->empty[slot], sl_lane());
    }
}

SL_DEV void sl_big_multiply(sl_big_room *room, sl_big_turn *turn, uint32_t k_tiles,
                            const uint32_t n, const uint32_t pair, float *d0, float *d1) {
    const uint32_t half = (sl_warp() / 4 - 1) * (SL_BIG_BOX / 2);
    uint32_t last = 0;
    for (uint32_t kt = 0; kt < k_tiles; kt++) {
        const uint8_t *stage = sl_big_stage(room, turn);
        sl_mbar_wait(&room->full[turn->slot], turn->parity);
        sl_async_fence(); /* rows came by ordinary copies */
        const uint64_t w0 = sl_wgmma_tile(stage + half);
        const uint64_t w1 = sl_wgmma_tile(stage + SL_BIG_BOX + half);
        const uint64_t x = sl_wgmma_tile(stage + 2 * SL_BIG_BOX);
        sl_wgmma_begin();
        SL_UNROLL for (uint32_t k = 0; k < SL_BIG_K / 16; k++) {
            sl_wgmma(n, d0, w0 + 2 * k, x + 2 * k, kt + k);
            sl_wgmma(n, d1, w1 + 2 * k, x + 2 * k, kt + k);
        }
        sl_wgmma_commit();
        if (kt) {
            sl_wgmma_wait(1);
            sl_big_release(room, last, pair);
        }
        last = turn->slot;
        sl_big_next(turn);
    }
    sl_wgmma_wait(0);
    sl_big_release(room, last, pair);
}

/* Two values of weight rows lane / 4 and 8 more, columns 2 (lane % 4) and one more, to rows of
 * `to`: lane has column lane / 4 then. */
SL_DEV void sl_big_store(uint16_t *to, uint32_t lo, uint32_t hi, bool stored, bool more) {
    const uint32_t a = sl_transpose8(lo), b = sl_transpose8(hi);
    if (stored) *(uint32_t *)to = a;
    if (stored && more) *(uint32_t *)(to + 8) = b;
}

SL_DEV void sl_big_end_up(const sl_fast_big_args *a, const float *weight, const sl_big_tile *t,
                          const sl_fast_piece *p, const uint32_t n, const float *d0,
                          const float *d1) {
    const uint32_t lane = sl_lane(), q = lane % 4 * 2;
    const uint32_t f = t->tile * 128 + (sl_warp() - 4) * 16 + q;
    uint16_t *to = a->mid + (size_t)(p->first + lane / 4) * a->d_ff + f;
    SL_UNROLL for (uint32_t j = 0; j < n / 8; j++) {
        const uint32_t c = 8 * j + q;
        const float u = weight[c], v = weight[c + 1];
        const uint32_t lo =
            sl_pack_bf16(u * sl_fast_swiglu(d0[4 * j], d1[4 * j], a->limit),
                         v * sl_fast_swiglu(d0[4 * j + 1], d1[4 * j + 1], a->limit));
        const uint32_t hi =
            sl_pack_bf16(u * sl_fast_swiglu(d0[4 * j + 2], d1[4 * j + 2], a->limit),
                         v * sl_fast_swiglu(d0[4 * j + 3], d1[4 * j + 3], a->limit));
        sl_big_store(to + (size_t)8 * j * a->d_ff, lo, hi, 8 * j + lane / 4 < p->n && f < a->d_ff,
                     f + 8 < a->d_ff);
    }
}

SL_DEV void sl_big_end_down(const sl_fast_big_args *a, const sl_big_tile *t, const sl_fast_piece *p,
                            const uint32_t n, const float *d0, const float *d1) {
    const uint32_t lane = sl_lane();
    const uint32_t r = t->tile * 256 + (sl_warp() - 4) * 16 + lane % 4 * 2;
    uint16_t *to = a->part16 + (size_t)(p->first + lane / 4) * a->d_model + r;
    SL_UNROLL for (uint32_t j = 0; j < n / 8; j++, to += (size_t)8 * a->d_model) {
        const bool mine = 8 * j + lane / 4 < p->n;
        sl_big_store(to, sl_pack_bf16(d0[4 * j], d0[4 * j + 1]),
                     sl_pack_bf16(d0[4 * j + 2], d0[4 * j + 3]), mine && r < a->d_model,
                     r + 8 < a->d_model);
        sl_big_store(to + 128, sl_pack_bf16(d1[4 * j], d1[4 * j + 1]),
                     sl_pack_bf16(d1[4 * j + 2], d1[4 * j + 3]), mine && r + 128 < a->d_model,
                     r + 136 < a->d_model);
    }
}

SL_DEV void sl_big_tile_of(const sl_fast_big_args *a, sl_big_room *room, sl_big_turn *turn,
                           const sl_big_tile *t, const sl_fast_piece *p, const uint32_t n,
                           const uint32_t pair) {
    float d0[SL_FAST_BIG_WIDTH / 2], d1[SL_FAST_BIG_WIDTH / 2];
    float *weight = room->weight[sl_warp() / 4 - 1];
    const uint32_t i = threadIdx.x % 128, j = i + 128;
    const float u = i < p->n ? __ldg(a->weight + p->first + i) : 0.0f;
    const float v = j < p->n ? __ldg(a->weight + p->first + j) : 0.0f;
    sl_big_multiply(room, turn, t->k_tiles, n, pair, d0, d1);
    if (t->down) {
        sl_big_end_down(a, t, p, n, d0, d1);
        return;
    }
    sl_barrier(2 + sl_warp() / 4, 128); /* nobody reads those of the last tile */
    weight[i] = u;
    if (j < SL_FAST_BIG_WIDTH) weight[j] = v;
    sl_barrier(2 + sl_warp() / 4, 128);
    sl_big_end_up(a, weight, t, p, n, d0, d1);
    __syncwarp();
    if (sl_lane() == 0) sl_add_shared(&room->stored[sl_warp() - 4], 1);
}

SL_DEV void sl_big_run(const sl_fast_big_args *a, sl_big_room *room, const uint32_t pair) {
    sl_big_turn turn = sl_big_first(a);
    sl_big_tile t;
    for (uint32_t i = blockIdx.x / pair; sl_big_tile_at(a, i, pair, &t); i += gridDim.x / pair) {
        const sl_fast_piece p = a->piece[t.piece];
        switch (p.width) {
#define SL_BIG_CASE(n)                                                                             \
    case n:                                                                                        \
        sl_big_tile_of(a, room, &turn, &t, &p, n, pair);                                           \
        break;
            SL_WGMMA_WIDTHS(SL_BIG_CASE)
#undef SL_BIG_CASE
        }
    }
}

SL_DEV void sl_big(const sl_fast_big_args *a, const uint32_t pair) {
    SL_DYNAMIC(uint8_t, memory);
    sl_big_room *room = (sl_big_room *)(memory + (0u - (uint32_t)(uintptr_t)memory) % 1024);
    if (threadIdx.x < 8) room->stored[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < SL_FAST_BIG_STAGES; i++) {
            sl_mbar_init(&room->full[i], 1 + SL_BIG_GATHER);
            sl_mbar_init(&room->empty[i], 8 * pair);
        }
        sl_mbar_ready();
    }
    if (pair > 1)
        sl_cluster_sync();
    else
        __syncthreads();
    sl_fast_wait();
    sl_fast_let_next();
    if (sl_warp() < 4) {
        sl_registers_less(56);
        if (threadIdx.x == 0) sl_big_feed_weights(a, room, pair);
        if (sl_warp() > 0) sl_big_gather(a, room, pair);
    } else {
        sl_registers_more(224);
        sl_big_run(a, room, pair);
    }
    __syncwarp();
    if (pair > 1)
        sl_cluster_sync(); /* the other block still arrives here */
    else
        __syncthreads();
    if (a->phases != 3 || sl_warp() > 0) return;
    uint32_t last = 0;
    if (threadIdx.x == 0) last = atomicAdd(a->done, 1) + 1 == gridDim.x; /* nobody waits now */
    if (!__any_sync(SL_ALL, last)) return;
    for (uint32_t i = sl_lane(); i < a->counts->n_pieces; i += 32) a->ready[i] = 0;
    if (threadIdx.x == 0) *a->done = 0;
}

/* Other GPUs have no clusters, and never get these. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define SL_BIG_KERNEL(name, cluster) SL_KERNEL(name, sl_fast_big_args)
#define sl_big(a, pair)              ((void)(a), (void)(pair), sl_trap())
#elif defined(__CUDACC__)
#define SL_BIG_KERNEL(name, cluster)                                                               \
    extern "C" __global__ void __cluster_dims__(cluster, 1, 1)                                     \
        __launch_bounds__(SL_BIG_THREADS, 1) name(const __grid_constant__ sl_fast_big_args a)
#else
#define SL_BIG_KERNEL(name, cluster) SL_KERNEL(name, sl_fast_big_args)
#endif

SL_KERNEL_BOUNDS(sl_k_fast_big, sl_fast_big_args, SL_BIG_THREADS, 1) {
    sl_big(&a, 1);
}

SL_BIG_KERNEL(sl_k_fast_big_pair, 2) {
    sl_big(&a, 2);
}
