/* Kernels of the GPU bench: random weights, and the streams that measure memory. */
#include "args_bench.h"
#include "stage/cuda/kernels/device.h"

SL_DEV uint32_t sl_bench_hash(uint64_t i, uint32_t seed) {
    uint64_t x = i * 0x9e3779b97f4a7c15ull + seed * 0xd1b54a32d192ed03ull;
    x ^= x >> 31;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 29;
    return (uint32_t)(x >> 16);
}

SL_KERNEL(sl_k_bench_fill, sl_bench_fill_args) {
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.n / 2; i += step) {
        const uint32_t h = sl_bench_hash(i, a.seed);
        const float lo = ((float)(h & 0xffff) + 0.5f) / 32768.0f - 1.0f;
        const float hi = ((float)(h >> 16) + 0.5f) / 32768.0f - 1.0f;
        a.to[i] = sl_pack_bf16(lo * a.scale, hi * a.scale);
    }
}

/* Blocks of 8 loads a thread in one go. */
SL_KERNEL_BOUNDS(sl_k_bench_read, sl_bench_stream_args, 512, 2) {
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x * 8;
    uint32_t sum = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x * 8 + threadIdx.x; i < a.n; i += step) {
        uint4 v[8];
        SL_UNROLL for (uint32_t j = 0; j < 8; j++) {
            const uint64_t at = i + j * blockDim.x;
            v[j] = sl_load16_once(a.from + (at < a.n ? at : i) * 16);
        }
        SL_UNROLL for (uint32_t j = 0; j < 8; j++) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (sum == 0x12345678) *(uint32_t *)a.to = sum;
}

SL_KERNEL_BOUNDS(sl_k_bench_copy, sl_bench_stream_args, 512, 2) {
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x * 4;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x * 4 + threadIdx.x; i < a.n; i += step) {
        uint4 v[4];
        SL_UNROLL for (uint32_t j = 0; j < 4; j++) {
            const uint64_t at = i + j * blockDim.x;
            v[j] = sl_load16_once(a.from + (at < a.n ? at : i) * 16);
        }
        SL_UNROLL for (uint32_t j = 0; j < 4; j++) {
            const uint64_t at = i + j * blockDim.x;
            if (at < a.n) *(uint4 *)(a.to + at * 16) = v[j];
        }
    }
}
