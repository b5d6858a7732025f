/* Rows before products: to 8 bits, and out of a matrix of any type. */
#include "stage/cuda/kernels/act_rows.h"
#include "stage/cuda/kernels/args_products.h"
#include "stage/cuda/kernels/fast.h"
#include "stage/cuda/kernels/piece.h"

/* A warp has 256 values of a row, a lane eight of them. */
SL_KERNEL(sl_k_quantise, sl_quantise_args) {
    const uint32_t parts = (a.k + 255) / 256;
    const uint64_t warp = (uint64_t)blockIdx.x * (blockDim.x / SL_WARP) + sl_warp();
    const uint32_t r = (uint32_t)(warp / parts),
                   at = (uint32_t)(warp % parts) * 256 + 8 * sl_lane();
    const uint32_t n = at < a.k ? 8 : 0;
    float v[8];
    if (r >= a.n_rows) return;
    const float *x = a.x + (uint64_t)(a.row ? a.row[r] : r) * a.x_stride + at;
    if (n && a.aligned) {
        const float4 low = *(const float4 *)x, high = *(const float4 *)(x + 4);
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    } else {
        SL_UNROLL
        for (uint32_t i = 0; i < 8; i++) v[i] = n ? x[i] : 0.0f;
    }
    sl_act_eight_int8(a.block == 32 ? SL_ACT_32 : SL_ACT_256, a.dst + r * a.dst_stride, a.k, at, n,
                      v);
}

/* Piece q of unit u of a row. */
SL_DEV void widen_piece(const sl_widen_args *a, sl_dtype t, const uint8_t *row, uint32_t id,
                        uint32_t u, uint32_t q, float *x) {
    const uint32_t left = a->k - SL_UNIT * u, n = left < SL_UNIT ? left : SL_UNIT;
    float v[8];
    sl_piece p = {{0}};
    if (n < SL_UNIT)
        sl_piece_tail(t, row, u, q, n, &p);
    else
        sl_piece_load(t, row, u, q, a->aligned, &p);
    if (t == SL_F8_E4M3) {
        const sl_product_side *s = &a->side;
        const float *scale = s->scale + (uint64_t)((s->scale_row + id) / SL_F8_BLOCK) * s->across +
                             s->scale_col / SL_F8_BLOCK;
        sl_piece_scales(scale, s->scale_col % SL_F8_BLOCK, u, q, n, &p);
    }
    sl_piece_values(t, &p, u, v);
    SL_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t at = 4 * q + i % 4 + i / 4 * 16;
        if (at < n) x[SL_UNIT * u + at] = v[i];
    }
}

#define WIDEN(t)                                                                                   \
    case t:                                                                                        \
        widen_piece(&a, t, row, id, u, threadIdx.x % 4, x);                                        \
        break;

/* A block has 32 units of a row. */
SL_KERNEL(sl_k_widen, sl_widen_args) {
    sl_fast_wait();
    sl_fast_let_next();
    const uint32_t id = a.id[blockIdx.x], u = blockIdx.y * (blockDim.x / 4) + threadIdx.x / 4;
    const uint8_t *row = a.side.w + id * a.side.stride;
    float *x = a.x + (uint64_t)blockIdx.x * a.k;
    if (SL_UNIT * u >= a.k) return;
    switch (a.type) {
        WIDEN(SL_F32)
        WIDEN(SL_F16)
        WIDEN(SL_BF16)
        WIDEN(SL_Q8_0)
        WIDEN(SL_Q4_0)
        WIDEN(SL_MXFP4)
        WIDEN(SL_Q4_K)
        WIDEN(SL_Q5_K)
        WIDEN(SL_Q6_K)
        WIDEN(SL_F8_E4M3)
    default:
        sl_trap();
    }
}
