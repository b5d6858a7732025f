/* What the kernels of routed experts of many rows share (fast_big.cu, fast_lines.cu): which tiles a
 * block has, and the warp group that feeds the ring of stages.
 *
 * Tiles are 256 weight rows by a piece's pairs, dealt out in turn: those of up (128 rows of gate
 * and of up, the same values of d_ff, which meet in a thread), then those of down (256 rows), which
 * wait for their piece's rows of mid, made by whatever blocks, long before as a rule. Weights do
 * not wait. One warp has the copy engine bring boxes of weights, three gather rows of activations.
 *
 * In a cluster of two, both blocks have the same weights and two pieces of one expert: each fetches
 * one of the two boxes for both. */
#ifndef SL_STAGE_CUDA_BIG_H
#define SL_STAGE_CUDA_BIG_H

#include "stage/cuda/kernels/args_fast.h"
#include "stage/cuda/kernels/fast.h"
#include "stage/cuda/kernels/ring.h"

#define SL_BIG_THREADS 384
#define SL_BIG_GATHER  96u /* threads that gather */

/* Shared memory in front of the stages, which are 1024-byte aligned. */
typedef struct sl_big_room {
    sl_ring ring;
    uint32_t stored[8];                 /* tiles of up that each warp has stored */
    uint32_t row[2][SL_FAST_BIG_WIDTH]; /* where a piece's rows begin, in values; by turns */
    float weight[2][SL_FAST_BIG_WIDTH]; /* of a piece's pairs, of each warp group */
} sl_big_room;

typedef char sl_big_room_fits[sizeof(sl_big_room) <= SL_FAST_BIG_ROOM ? 1 : -1];
typedef char sl_big_stages_fit[SL_FAST_BIG_STAGES <= SL_RING_STAGES ? 1 : -1];

typedef struct sl_big_tile {
    uint32_t piece, tile, k_tiles;
    bool down;
} sl_big_tile;

SL_DEV sl_ring_turn sl_big_first(const sl_fast_big_args *a, sl_big_room *room) {
    return sl_ring_first((uint8_t *)room + a->room, a->counts->stages, a->counts->stage_bytes);
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
    t->k_tiles = ((t->down ? a->d_ff : a->d_model) + SL_RING_K - 1) / SL_RING_K;
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
    sl_ring_turn turn = sl_big_first(a, room);
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
            uint8_t *stage = sl_ring_stage(&turn);
            sl_mbar *full = &room->ring.full[turn.slot];
            for (uint32_t j = 0; !sl_mbar_test(&room->ring.empty[turn.slot], turn.parity ^ 1);
                 j++) {
                if (j > SL_SPIN_LIMIT) sl_trap();
                sl_big_tell(a, room, &told, pair);
            }
            sl_mbar_expect(full, 2 * SL_RING_BOX);
            if (pair == 1) {
                sl_tensor_copy(stage, m0, k * SL_RING_K, row0, full);
                sl_tensor_copy(stage + SL_RING_BOX, m1, k * SL_RING_K, row1, full);
            } else if (sl_cluster_rank() == 0) {
                sl_tensor_copy_pair(stage, m0, k * SL_RING_K, row0, full);
            } else {
                sl_tensor_copy_pair(stage + SL_RING_BOX, m1, k * SL_RING_K, row1, full);
            }
            sl_ring_next(&turn);
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
    sl_barrier(2, SL_BIG_GATHER);
}

/* Three warps, as far ahead as there are stages: with all the weights that are under way, a row
 * takes microseconds to come. */
SL_DEV void sl_big_gather(const sl_fast_big_args *a, sl_big_room *room, const uint32_t pair) {
    const uint32_t piece = threadIdx.x % 8, first = threadIdx.x / 8 - 4;
    sl_ring_turn turn = sl_big_first(a, room);
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
            uint8_t *to = sl_ring_stage(&turn) + 2 * SL_RING_BOX;
            const uint32_t k = kt * SL_RING_K + piece * 8, bytes = k < k_all ? 16 : 0;
            sl_mbar_wait(&room->ring.empty[turn.slot], turn.parity ^ 1);
            for (uint32_t c = first; c < width; c += SL_BIG_GATHER / 8)
                sl_cp_async16_zero(to + c * 128 + (piece ^ (c & 7)) * 16,
                                   from + room->row[table][c] + (bytes ? k : 0), bytes);
            sl_cp_async_arrive(&room->ring.full[turn.slot]);
            sl_ring_next(&turn);
            if (kt == k_tiles / 2) more = sl_big_look(a, i, pair, &r);
        }
    }
}

/* The first warp group. */
SL_DEV void sl_big_feed(const sl_fast_big_args *a, sl_big_room *room, const uint32_t pair) {
    if (threadIdx.x == 0) sl_big_feed_weights(a, room, pair);
    if (sl_warp() > 0) sl_big_gather(a, room, pair);
}

SL_DEV sl_big_room *sl_big_open(const uint32_t pair) {
    SL_DYNAMIC(uint8_t, memory);
    sl_big_room *room = (sl_big_room *)(memory + (0u - (uint32_t)(uintptr_t)memory) % 1024);
    if (threadIdx.x < 8) room->stored[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < SL_FAST_BIG_STAGES; i++) {
            sl_mbar_init(&room->ring.full[i], 1 + SL_BIG_GATHER);
            sl_mbar_init(&room->ring.empty[i], 8 * pair);
        }
        sl_mbar_ready();
    }
    if (pair > 1)
        sl_cluster_sync();
    else
        __syncthreads();
    sl_fast_wait();
    sl_fast_let_next();
    return room;
}

SL_DEV void sl_big_close(const sl_fast_big_args *a, const uint32_t pair) {
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
#elif defined(__CUDACC__)
#define SL_BIG_KERNEL(name, cluster)                                                               \
    extern "C" __global__ void __cluster_dims__(cluster, 1, 1)                                     \
        __launch_bounds__(SL_BIG_THREADS, 1) name(const __grid_constant__ sl_fast_big_args a)
#else
#define SL_BIG_KERNEL(name, cluster) SL_KERNEL(name, sl_fast_big_args)
#endif

#endif
