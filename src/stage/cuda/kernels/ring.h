/* A ring of stages in shared memory between one warp group that fills them and two that multiply,
 * for the kernels of many rows on sm_90a (fast_wide.cu, big.h). A stage has 64 values of k:
 * boxes of 128 weight rows, then rows of activations, all swizzled as wgmma.h has them. */
#ifndef SL_STAGE_CUDA_RING_H
#define SL_STAGE_CUDA_RING_H

#include "stage/cuda/kernels/async.h"
#include "stage/cuda/kernels/wgmma.h"

#define SL_RING_STAGES 8u           /* most of them */
#define SL_RING_K      64u          /* values of a row in a stage */
#define SL_RING_BOX    (128u * 128) /* bytes of 128 weight rows */

typedef struct sl_ring {
    sl_mbar full[SL_RING_STAGES], empty[SL_RING_STAGES];
} sl_ring;

/* Where someone is in it. */
typedef struct sl_ring_turn {
    uint8_t *base; /* of stage 0 */
    uint32_t slot, parity, stages, stage_bytes;
} sl_ring_turn;

SL_DEV sl_ring_turn sl_ring_first(uint8_t *base, uint32_t stages, uint32_t stage_bytes) {
    const sl_ring_turn t = {base, 0, 0, stages, stage_bytes};
    return t;
}

SL_DEV void sl_ring_next(sl_ring_turn *t) {
    if (++t->slot == t->stages) {
        t->slot = 0;
        t->parity ^= 1;
    }
}

SL_DEV uint8_t *sl_ring_stage(const sl_ring_turn *t) {
    return t->base + t->slot * t->stage_bytes;
}

/* This warp's products read the slot no more: for both blocks of a pair, what one of them fetches
 * being the other's, too. */
SL_DEV void sl_ring_release(sl_ring *r, uint32_t slot, const uint32_t pair) {
    __syncwarp();
    if (pair == 1) {
        if (sl_lane() == 0) sl_mbar_arrive(&r->empty[slot]);
    } else if (sl_lane() < 2) {
        sl_mbar_arrive_at(&r->empty[slot], sl_lane());
    }
}

/* One of the two warp groups that multiply: 64 weight rows of the first box by n rows, and where
 * there are two halves 64 of the second. lead: after so many stages the other group may begin; 0:
 * it does not wait. copied: rows of activations come by ordinary copies, not the copy engine's. */
SL_DEV void sl_ring_multiply(sl_ring *r, sl_ring_turn *turn, uint32_t k_tiles, const uint32_t n,
                             const uint32_t halves, const uint32_t pair, const bool copied,
                             uint32_t lead, float *d0, float *d1) {
    const uint32_t mine = (sl_warp() / 4 - 1) * (SL_RING_BOX / 2);
    uint32_t last = 0;
    for (uint32_t kt = 0; kt < k_tiles; kt++) {
        const uint8_t *stage = sl_ring_stage(turn);
        sl_mbar_wait(&r->full[turn->slot], turn->parity);
        if (copied) sl_async_fence();
        const uint64_t w0 = sl_wgmma_tile(stage + mine);
        const uint64_t w1 = sl_wgmma_tile(stage + (halves - 1) * SL_RING_BOX + mine);
        const uint64_t x = sl_wgmma_tile(stage + halves * SL_RING_BOX);
        sl_wgmma_begin();
        SL_UNROLL for (uint32_t k = 0; k < SL_RING_K / 16; k++) {
            sl_wgmma(n, d0, w0 + 2 * k, x + 2 * k, kt + k);
            if (halves == 2) sl_wgmma(n, d1, w1 + 2 * k, x + 2 * k, kt + k);
        }
        sl_wgmma_commit();
        if (kt) {
            sl_wgmma_wait(1);
            sl_ring_release(r, last, pair);
        }
        if (lead && kt + 1 == lead) sl_barrier_arrive(1, 256);
        last = turn->slot;
        sl_ring_next(turn);
    }
    sl_wgmma_wait(0);
    sl_ring_release(r, last, pair);
}

#endif
