/* Kernels of rows that travel: to the formats of the wire and back (quant/wire_rows.c has the same
 * in C), and the sum of what came back (stage/rows.c). */
#include "quant/fp8.h"
#include "quant/wire_rows.h"
#include "stage/cuda/kernels/args_rows.h"
#include "stage/cuda/kernels/lanes.h"

/* Value i of a row as it travels; scale: of a row of fp8. */
SL_DEV float wire_value(uint32_t wire, const uint8_t *row, uint32_t i, float scale) {
    if (wire == SL_WIRE_F32) return ((const float *)row)[i];
    if (wire == SL_WIRE_BF16) return sl_bf16_to_f32(((const uint16_t *)row)[i]);
    return sl_e4m3_to_f32(row[SL_WIRE_FP8_HEAD + i]) * scale;
}

SL_DEV float wire_scale(uint32_t wire, const uint8_t *row) {
    return wire == SL_WIRE_FP8 ? *(const float *)row : 1.0f;
}

/* The bits of the largest finite magnitude of a row, for all threads of the block. */
SL_DEV uint32_t largest_of_row(const float *row, uint32_t d) {
    SL_SHARED(uint32_t, part, SL_CUDA_ROW_THREADS / SL_WARP);
    uint32_t most = 0;
    for (uint32_t i = threadIdx.x; i < d; i += SL_CUDA_ROW_THREADS) {
        const uint32_t u = sl_f32_bits(row[i]) & 0x7fffffffu;
        if (u <= 0x7f7fffffu && u > most) most = u;
    }
    most = sl_lanes_most(most);
    if (sl_lane() == 0) part[sl_warp()] = most;
    __syncthreads();
    for (uint32_t w = 0; w < SL_CUDA_ROW_THREADS / SL_WARP; w++)
        most = part[w] > most ? part[w] : most;
    return most;
}

SL_DEV void pack_bf16(const float *row, uint32_t d, uint8_t *to) {
    const bool pairs = (uintptr_t)to % 4 == 0;
    for (uint32_t i = 2 * threadIdx.x; i < d; i += 2 * SL_CUDA_ROW_THREADS) {
        const uint16_t lo = sl_f32_to_bf16(row[i]);
        const uint16_t hi = i + 1 < d ? sl_f32_to_bf16(row[i + 1]) : 0;
        if (pairs && i + 1 < d) {
            ((uint32_t *)to)[i / 2] = lo | (uint32_t)hi << 16;
            continue;
        }
        ((uint16_t *)to)[i] = lo;
        if (i + 1 < d) ((uint16_t *)to)[i + 1] = hi;
    }
}

/* Four codes at a time: rows begin at multiples of 4 bytes and end in zeros. */
SL_DEV void pack_fp8(const float *row, uint32_t d, uint8_t *to) {
    const float scale = sl_e4m3_scale_of(largest_of_row(row, d));
    const float inverse = sl_e4m3_inverse_of(scale);
    if (threadIdx.x == 0) *(float *)to = scale;
    for (uint32_t i = 4 * threadIdx.x; i < d; i += 4 * SL_CUDA_ROW_THREADS) {
        uint32_t four = 0;
        SL_UNROLL
        for (uint32_t j = 0; j < 4; j++)
            if (i + j < d) four |= (uint32_t)sl_f32_to_e4m3(row[i + j] * inverse) << (8 * j);
        *(uint32_t *)(to + SL_WIRE_FP8_HEAD + i) = four;
    }
}

SL_KERNEL(sl_k_pack, sl_k_wire_args) {
    const float *row = a.rows + (size_t)(a.row ? a.row[blockIdx.x] : blockIdx.x) * a.d;
    uint8_t *to = a.at[blockIdx.x];
    if (a.wire == SL_WIRE_FP8) {
        pack_fp8(row, a.d, to);
    } else if (a.wire == SL_WIRE_BF16) {
        pack_bf16(row, a.d, to);
    } else {
        for (uint32_t i = threadIdx.x; i < a.d; i += SL_CUDA_ROW_THREADS) ((float *)to)[i] = row[i];
    }
}

SL_KERNEL(sl_k_unpack, sl_k_wire_args) {
    float *row = a.rows + (size_t)(a.row ? a.row[blockIdx.x] : blockIdx.x) * a.d;
    const uint8_t *from = a.at[blockIdx.x];
    const float scale = wire_scale(a.wire, from);
    for (uint32_t i = threadIdx.x; i < a.d; i += SL_CUDA_ROW_THREADS)
        row[i] = wire_value(a.wire, from, i, scale);
}

SL_KERNEL(sl_k_merge, sl_k_merge_args) {
    SL_SHARED(const uint8_t *, piece, SL_MAX_TOP_K);
    SL_SHARED(float, scale, SL_MAX_TOP_K);
    const size_t i = blockIdx.x, r = a.from ? a.from[i] : i;
    if (threadIdx.x < a.k) {
        const uint8_t *p = a.piece[i * a.k + threadIdx.x];
        piece[threadIdx.x] = p;
        scale[threadIdx.x] = p ? wire_scale(a.wire, p) : 1.0f;
    }
    __syncthreads();
    const uint32_t step = gridDim.y * SL_CUDA_ROW_THREADS;
    for (uint32_t c = blockIdx.y * SL_CUDA_ROW_THREADS + threadIdx.x; c < a.d; c += step) {
        float sum = 0;
        bool any = false;
        for (uint32_t j = 0; j < a.k; j++) {
            if (!piece[j]) continue;
            const float v = wire_value(a.wire, piece[j], c, scale[j]);
            sum = any ? sum + v : v;
            any = true;
        }
        if (a.shared) sum = sum + a.shared[r * a.d + c];
        a.to[i * a.d + c] = a.x[r * a.d + c] + sum;
    }
}
