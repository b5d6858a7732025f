/* Kernels for the test of the emulator itself (test_emulator.c): each is right, but those of
 * faults. They compile for a GPU as well. */
#include "emulated_kernels.h"
#include "stage/cuda/kernels/async.h"
#include "stage/cuda/kernels/device.h"

/* y[block] = sum of x over the block's threads: by shuffles, then shared memory. */
SL_KERNEL(emu_k_sum, emu_sum_args) {
    SL_SHARED(float, part, 32);
    float v = a.x[blockIdx.x * blockDim.x + threadIdx.x];
    SL_UNROLL for (uint32_t by = 16; by; by /= 2) v += __shfl_xor_sync(SL_ALL, v, by);
    if (!sl_lane()) part[sl_warp()] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t i = 1; i < blockDim.x / SL_WARP; i++) v += part[i];
        a.y[blockIdx.x] = v;
    }
}

/* Each half of a warp by itself, and what lanes say. */
SL_KERNEL(emu_k_warp, emu_warp_args) {
    const uint32_t lane = sl_lane(), half = lane < 16 ? 0xffffu : 0xffff0000u;
    uint32_t *out = a.out + lane * 8;
    if (lane < 16) /* each its own way */
        out[0] = __shfl_xor_sync(half, lane, 8u);
    else
        out[0] = __shfl_xor_sync(half, lane * 2, 1u);
    out[1] = __shfl_down_sync(SL_ALL, lane, 3u);
    out[2] = __shfl_up_sync(SL_ALL, lane, 3u);
    out[3] = __shfl_sync(SL_ALL, lane, 37);
    out[4] = __ballot_sync(SL_ALL, lane % 3 == 0);
    out[5] = (uint32_t)__any_sync(SL_ALL, lane == 7) + 2 * (uint32_t)__all_sync(SL_ALL, lane < 32);
    const double d = __shfl_xor_sync(SL_ALL, (double)lane, 1);
    out[6] = (uint32_t)d;
    __syncwarp();
    out[7] = atomicAdd(a.count, 2);
}

/* One tile: rows of a [16][k], columns of b [8][k] as they lie in memory, by ldmatrix. */
SL_KERNEL(emu_k_tile, emu_tile_args) {
    SL_SHARED2(uint8_t, as, 16, 48);
    SL_SHARED2(uint8_t, bs, 8, 48);
    const uint32_t lane = sl_lane();
    sl_cp_async16(&as[lane / 2][lane % 2 * 16], a.a + lane * 16);
    sl_cp_async_commit();
    if (lane < 16) sl_cp_async16(&bs[lane / 2][lane % 2 * 16], a.b + lane * 16);
    sl_cp_async_commit();
    sl_cp_async_wait(0);
    __syncwarp();
    uint32_t fa[4], fb[2];
    sl_ldmatrix_x4(fa, &as[lane % 16][lane / 16 * 16]);
    sl_ldmatrix_x2(fb, &bs[lane % 8][lane / 8 % 2 * 16]);
    float d[4] = {1, 1, 1, 1};
    int32_t e[4] = {1, 1, 1, 1};
    if (a.format == 0) sl_mma_m16n8k16_bf16(d, fa, fb);
    if (a.format == 1) sl_mma_m16n8k16_f16(d, fa, fb);
    if (a.format == 2) sl_mma_m16n8k32_s8(e, fa, fb);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    if (a.format == 3) sl_mma_m16n8k32_e4m3(d, fa, fb);
#endif
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t at = (lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2;
        a.d[at] = a.format == 2 ? (float)e[i] : d[i];
    }
}

/* y = the transpose of an 8 x 8 matrix of 16 bits, by ldmatrix. */
SL_KERNEL(emu_k_trans, emu_trans_args) {
    SL_DYNAMIC(uint16_t, s);
    const uint32_t lane = sl_lane();
    uint32_t r[2], q[4];
    for (uint32_t i = lane; i < 64; i += 32) s[i] = a.x[i];
    __syncwarp();
    sl_ldmatrix_x2_trans(r, s + lane % 8 * 8);
    sl_ldmatrix_x4_trans(q, s + lane % 8 * 8);
    a.y[lane * 2] = (uint16_t)r[lane % 2];
    a.y[lane * 2 + 1] = (uint16_t)(q[3] >> 16);
}

/* Producer and consumers at barriers of their own, and tails that are cleared. */
SL_KERNEL(emu_k_pipe, emu_pipe_args) {
    SL_SHARED(uint32_t, s, 32);
    if (threadIdx.x < 32) {
        for (uint32_t i = 0; i < a.n; i++) {
            if (i) sl_barrier(2, 64); /* the last one was read */
            if (sl_lane() < 8) sl_cp_async16_zero(s + 4 * sl_lane(), a.x + 4 * sl_lane(), 8);
            sl_cp_async_commit();
            sl_cp_async_wait(0);
            sl_barrier_arrive(1, 64);
        }
        return;
    }
    uint32_t sum = 0;
    for (uint32_t i = 0; i < a.n; i++) {
        sl_barrier(1, 64);
        sum += s[sl_lane()];
        if (i + 1 < a.n) sl_barrier_arrive(2, 64);
    }
    a.y[blockIdx.x * 32 + sl_lane()] = sum;
}

/* Each block's part, summed by each block once all are there. */
SL_KERNEL(emu_k_grid, emu_grid_args) {
    if (threadIdx.x == 0) {
        a.part[blockIdx.x] = blockIdx.x + 100;
        sl_add_release(a.came, 1);
        while (sl_load_acquire(a.came) < gridDim.x) sl_spin();
    }
    __syncthreads();
    uint32_t sum = 0;
    for (uint32_t i = 0; i < gridDim.x; i++) sum += __ldcg(a.part + i);
    if (threadIdx.x + 1 == blockDim.x) a.y[blockIdx.x] = sum;
}

/* Faults, one of which a.fault picks. */
SL_KERNEL(emu_k_fault, emu_fault_args) {
    SL_SHARED(uint32_t, s, 40);
    const uint32_t t = threadIdx.x;
    if (a.fault == EMU_BARRIER_LEFT && t == 5) return;
    if (a.fault == EMU_BARRIER_LEFT) __syncthreads();
    if (a.fault == EMU_LANE_LEFT && t == 5) return;
    if (a.fault == EMU_LANE_LEFT) a.out[t] = __shfl_xor_sync(SL_ALL, t, 1u);
    if (a.fault == EMU_OTHER_WAY) {
        if (t & 1)
            a.out[t] = __shfl_xor_sync(SL_ALL, t, 1u);
        else
            a.out[t] = __shfl_down_sync(SL_ALL, t, 1u);
    }
    if (a.fault == EMU_STUCK) {
        if (t < 32)
            __syncthreads();
        else if (t > 32)
            __syncwarp();
        else
            sl_barrier(3, 64);
    }
    while (a.fault == EMU_IN_VAIN && sl_load_acquire(a.out) == 0) sl_spin();
    if (a.fault == EMU_OUTSIDE && t == 3) s[41] = 1;
    if (a.fault == EMU_GARBAGE) a.out[t] = s[t % 40];
    if (a.fault == EMU_NOT_AWAITED) {
        if (t < 8) sl_cp_async16(s + 4 * t, a.out + 4 * t);
        sl_cp_async_commit();
        __syncthreads();
        a.out[t] = s[t % 32];
    }
    if (a.fault == EMU_NOT_ALIGNED) sl_cp_async16((uint8_t *)s + 4, a.out);
    if (a.fault == EMU_IN_ORDER) { /* reads what a thread before it wrote, with no barrier */
        if (t == 0) s[0] = 7;
        a.out[t] = s[0];
    }
    if (a.fault == EMU_READ_FIRST) {
        if (t == 1) s[2] = 1;
        if (t == 0) a.out[0] = s[2];
    }
    if (a.fault == EMU_BY_SHUFFLE && t < 32) { /* which does not order memory */
        s[t] = t;
        a.out[t] = __shfl_xor_sync(SL_ALL, t, 1);
        a.out[t] += s[t ^ 1];
    }
    if (a.fault == EMU_OTHER_BLOCK && t == 0) a.out[0] = 1;
    if (a.fault == EMU_WITHOUT_RELEASE && t == 0) {
        if (blockIdx.x == 0) a.out[1] = 1;
        if (blockIdx.x == 1) a.out[2] = sl_load_acquire(a.out) + a.out[1];
    }
    if (a.fault == EMU_TRAP && t == 9) sl_trap();
}
