/* Routed experts of many rows in numerics fast, weights in bf16, sm_90a: tiles of 256 weight rows
 * by up to 160 pairs on warp groups' tensor cores, both products in one launch (big.h). Two warp
 * groups multiply, each half of the weight rows, and store what they have straight from registers.
 */
#include "stage/cuda/kernels/big.h"

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

SL_DEV void sl_big_tile_of(const sl_fast_big_args *a, sl_big_room *room, sl_ring_turn *turn,
                           const sl_big_tile *t, const sl_fast_piece *p, const uint32_t n,
                           const uint32_t pair) {
    float d0[SL_FAST_BIG_WIDTH / 2], d1[SL_FAST_BIG_WIDTH / 2];
    float *weight = room->weight[sl_warp() / 4 - 1];
    const uint32_t i = threadIdx.x % 128, j = i + 128;
    const float u = i < p->n ? __ldg(a->weight + p->first + i) : 0.0f;
    const float v = j < p->n ? __ldg(a->weight + p->first + j) : 0.0f;
    sl_ring_multiply(&room->ring, turn, t->k_tiles, n, 2, pair, true, 0, d0, d1);
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
    sl_ring_turn turn = sl_big_first(a, room);
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
    sl_big_room *room = sl_big_open(pair);
    if (sl_warp() < 4) {
        sl_registers_less(56);
        sl_big_feed(a, room, pair);
    } else {
        sl_registers_more(224);
        sl_big_run(a, room, pair);
    }
    sl_big_close(a, pair);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define sl_big(a, pair) ((void)(a), (void)(pair), sl_trap())
#endif

SL_KERNEL_BOUNDS(sl_k_fast_big, sl_fast_big_args, SL_BIG_THREADS, 1) {
    sl_big(&a, 1);
}

SL_BIG_KERNEL(sl_k_fast_big_pair, 2) {
    sl_big(&a, 2);
}
