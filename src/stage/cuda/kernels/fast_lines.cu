/* Routed experts of many rows in numerics fast, weights in bf16, sm_90a: as fast_big.cu, but
 * results leave in whole lines, turned round in shared memory, and the second of the warp groups
 * that multiply is some stages behind, so that it multiplies while the first one stores. Pieces
 * have SL_FAST_LINES_WIDTH pairs at most, for as many stages beside that. */
#include "stage/cuda/kernels/big.h"

#define SL_LINES_LEAD 2u  /* stages by which the first of those that multiply is ahead */
#define SL_LINES_PUT  32u /* pairs that a warp group turns round at a time, twice */

typedef char
    sl_lines_room_fits[SL_FAST_BIG_ROOM + 4 * SL_LINES_PUT * 128 <= SL_FAST_LINES_ROOM ? 1 : -1];

/* What a warp group has of a tile on its way out: 64 weight rows of each pair, in bf16, turned
 * round so that they lie one behind another, `to` those of its first pair. */
typedef struct sl_lines_out {
    uint8_t *put; /* shared, twice SL_LINES_PUT pairs of 128 bytes */
    uint16_t *to;
    uint32_t stride, n, values; /* of `to`; pairs and weight rows that there are */
    uint32_t turn;
} sl_lines_out;

SL_DEV sl_lines_out sl_lines_out_of(sl_big_room *room, uint16_t *to, uint32_t stride,
                                    uint32_t first, uint32_t n) {
    const uint32_t left = first < stride ? stride - first : 0;
    const sl_lines_out o = {(uint8_t *)room + SL_FAST_BIG_ROOM +
                                (sl_warp() / 4 - 1) * 2 * SL_LINES_PUT * 128,
                            to + first,
                            stride,
                            n,
                            left < 64 ? left : 64,
                            0};
    return o;
}

/* Pairs 8 j to 8 j + 15 of a chunk: r as two tiles of eight pairs are packed, the first eight
 * weight rows of a warp's, then the others. */
SL_DEV void sl_lines_turn(const sl_lines_out *o, uint32_t j, const uint32_t r[4]) {
    const uint32_t i = sl_lane() / 8, c = 8 * (j + i / 2) + sl_lane() % 8;
    const uint32_t piece = sl_warp() % 4 * 2 + i % 2;
    uint8_t *put = o->put + o->turn % 2 * (SL_LINES_PUT * 128);
    sl_stmatrix_x4_trans(put + c * 128 + (piece ^ (c & 7)) * 16, r);
}

/* All of the group's warps have turned round the chunk of pairs `first` on: out they go. */
SL_DEV void sl_lines_put(sl_lines_out *o, uint32_t first) {
    const uint32_t piece = threadIdx.x % 8;
    const uint8_t *put = o->put + o->turn++ % 2 * (SL_LINES_PUT * 128);
    sl_barrier(2 + sl_warp() / 4, 128);
    SL_UNROLL for (uint32_t i = 0; i < SL_LINES_PUT / 16; i++) {
        const uint32_t c = threadIdx.x % 128 / 8 + 16 * i;
        if (first + c < o->n && piece * 8 < o->values)
            *(uint4 *)(o->to + (size_t)(first + c) * o->stride + piece * 8) =
                *(const uint4 *)(put + c * 128 + (piece ^ (c & 7)) * 16);
    }
}

SL_DEV void sl_lines_end_up(const sl_fast_big_args *a, sl_lines_out *o, const float *weight,
                            const uint32_t n, const float *d0, const float *d1) {
    const uint32_t q = sl_lane() % 4 * 2;
    SL_UNROLL for (uint32_t j = 0; j < (n + 15) / 16; j++) {
        uint32_t r[4] = {0, 0, 0, 0};
        SL_UNROLL for (uint32_t i = 0; i < 2; i++) {
            const uint32_t t = 2 * j + i, at = 4 * t;
            if (t >= n / 8) continue;
            const float u = weight[8 * t + q], v = weight[8 * t + q + 1];
            r[2 * i] = sl_pack_bf16(u * sl_fast_swiglu(d0[at], d1[at], a->limit),
                                    v * sl_fast_swiglu(d0[at + 1], d1[at + 1], a->limit));
            r[2 * i + 1] = sl_pack_bf16(u * sl_fast_swiglu(d0[at + 2], d1[at + 2], a->limit),
                                        v * sl_fast_swiglu(d0[at + 3], d1[at + 3], a->limit));
        }
        sl_lines_turn(o, j * 2 % (SL_LINES_PUT / 8), r);
        if (j % 2 || j + 1 == (n + 15) / 16) sl_lines_put(o, j / 2 * SL_LINES_PUT);
    }
}

SL_DEV void sl_lines_end_down(sl_lines_out *o, const uint32_t n, const float *d) {
    SL_UNROLL for (uint32_t j = 0; j < (n + 15) / 16; j++) {
        uint32_t r[4] = {0, 0, 0, 0};
        SL_UNROLL for (uint32_t i = 0; i < 2; i++) {
            const uint32_t t = 2 * j + i, at = 4 * t;
            if (t >= n / 8) continue;
            r[2 * i] = sl_pack_bf16(d[at], d[at + 1]);
            r[2 * i + 1] = sl_pack_bf16(d[at + 2], d[at + 3]);
        }
        sl_lines_turn(o, j * 2 % (SL_LINES_PUT / 8), r);
        if (j % 2 || j + 1 == (n + 15) / 16) sl_lines_put(o, j / 2 * SL_LINES_PUT);
    }
}

SL_DEV void sl_lines_tile(const sl_fast_big_args *a, sl_big_room *room, sl_ring_turn *turn,
                          const sl_big_tile *t, const sl_fast_piece *p, const uint32_t n,
                          const uint32_t pair, uint32_t lead) {
    float d0[SL_FAST_BIG_WIDTH / 2], d1[SL_FAST_BIG_WIDTH / 2];
    const uint32_t group = sl_warp() / 4 - 1, i = threadIdx.x % 128, j = i + 128;
    float *weight = room->weight[group];
    const float u = i < p->n ? __ldg(a->weight + p->first + i) : 0.0f;
    const float v = j < p->n ? __ldg(a->weight + p->first + j) : 0.0f;
    sl_ring_multiply(&room->ring, turn, t->k_tiles, n, 2, pair, true, lead, d0, d1);
    sl_barrier(2 + sl_warp() / 4, 128); /* nobody reads what the last tile has left */
    if (t->down) {
        uint16_t *to = a->part16 + (size_t)p->first * a->d_model;
        const uint32_t first = t->tile * 256 + group * 64;
        sl_lines_out o = sl_lines_out_of(room, to, a->d_model, first, p->n);
        sl_lines_end_down(&o, n, d0);
        const uint32_t turns = o.turn;
        o = sl_lines_out_of(room, to, a->d_model, first + 128, p->n);
        o.turn = turns;
        sl_lines_end_down(&o, n, d1);
        return;
    }
    weight[i] = u;
    if (j < SL_FAST_BIG_WIDTH) weight[j] = v;
    sl_barrier(2 + sl_warp() / 4, 128);
    sl_lines_out o = sl_lines_out_of(room, a->mid + (size_t)p->first * a->d_ff, a->d_ff,
                                     t->tile * 128 + group * 64, p->n);
    sl_lines_end_up(a, &o, weight, n, d0, d1);
    __syncwarp();
    if (sl_lane() == 0) sl_add_shared(&room->stored[sl_warp() - 4], 1);
}

SL_DEV void sl_lines_run(const sl_fast_big_args *a, sl_big_room *room, const uint32_t pair) {
    sl_ring_turn turn = sl_big_first(a, room);
    const uint32_t group = sl_warp() / 4 - 1;
    sl_big_tile t;
    bool begun = false;
    for (uint32_t i = blockIdx.x / pair; sl_big_tile_at(a, i, pair, &t); i += gridDim.x / pair) {
        const sl_fast_piece p = a->piece[t.piece];
        const uint32_t lead = t.k_tiles < SL_LINES_LEAD ? t.k_tiles : SL_LINES_LEAD;
        if (!begun && group) sl_barrier(1, 256);
        switch (p.width) {
#define SL_LINES_CASE(n)                                                                           \
    case n:                                                                                        \
        sl_lines_tile(a, room, &turn, &t, &p, n, pair, begun || group ? 0 : lead);                 \
        break;
            SL_WGMMA_WIDTHS(SL_LINES_CASE)
#undef SL_LINES_CASE
        }
        begun = true;
    }
}

SL_DEV void sl_lines(const sl_fast_big_args *a, const uint32_t pair) {
    sl_big_room *room = sl_big_open(pair);
    if (sl_warp() < 4) {
        sl_registers_less(56);
        sl_big_feed(a, room, pair);
    } else {
        sl_registers_more(224);
        sl_lines_run(a, room, pair);
    }
    sl_big_close(a, pair);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define sl_lines(a, pair) ((void)(a), (void)(pair), sl_trap())
#endif

SL_KERNEL_BOUNDS(sl_k_fast_lines, sl_fast_big_args, SL_BIG_THREADS, 1) {
    sl_lines(&a, 1);
}

SL_BIG_KERNEL(sl_k_fast_lines_pair, 2) {
    sl_lines(&a, 2);
}
