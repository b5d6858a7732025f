/* The language of CUDA kernels: a subset of C that nvcc compiles for GPUs and gcc for the emulator
 * (tests/cuda), which runs the same text on the host.
 *
 *   SL_KERNEL(sl_k_name, sl_k_name_args) { ... a.field ... }
 *       One kernel with one struct, which it sees as `a`. kernels.def has a row for each.
 *   SL_KERNEL_BOUNDS(sl_k_name, sl_k_name_args, threads, blocks)
 *       The same with the most threads of a block, and the fewest blocks that shall fit a
 *       multiprocessor.
 *   SL_DEV
 *       A function of kernels: static, inlined. SL_FN (base/fn.h) is one that the CPU calls, too.
 *   SL_TABLE int8_t t[16] = {...};
 *       Constants at file scope.
 *   SL_SHARED(float, s, 256); SL_SHARED2(float, s, 16, 33);
 *       A static array of shared memory in a function, 16-byte aligned. It is used as an array is,
 *       but has no sizeof.
 *   SL_DYNAMIC(uint8_t, s);
 *       The dynamic shared memory, 128-byte aligned.
 *   SL_UNROLL for (...)
 *       A loop with constant bounds that is to be unrolled.
 *
 * Blocks have one dimension: threadIdx.x, blockDim.x, blockIdx.{x,y,z}, gridDim.{x,y,z}. Of CUDA
 * there are __syncthreads, __syncwarp, __shfl_sync, __shfl_xor_sync, __shfl_down_sync,
 * __shfl_up_sync (32 or 64 bits, no width), __ballot_sync, __any_sync, __all_sync, atomicAdd,
 * atomicMax, atomicCAS and atomicExch on uint32_t, __threadfence, __ldg, __ldcg, __ldcs, __stcg,
 * __stcs, __popc, __clz, __ffs, the types uint2, uint4, int4, float2, float4 with their make_, and
 * fmaf, fma, sqrtf, fabsf and their like. A sum of floats by atomics has no defined order: there is
 * none. A barrier or a collective step of a warp is reached by all whom it names; who has left
 * the kernel is missing, and the emulator says so. Blocks do not wait for each other.
 *
 * Everything else that is not C is a wrapper here, which both worlds have.
 * No templates, overloads, references, lambdas; headers that are included are C and C++. */
#ifndef SL_STAGE_CUDA_DEVICE_H
#define SL_STAGE_CUDA_DEVICE_H

#include "base/fn.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SL_WARP 32u
#define SL_ALL  0xffffffffu /* every lane of a warp */

#ifdef __CUDACC__
#include "stage/cuda/kernels/device_gpu.h"
#else
#include "stage/cuda/kernels/device_host.h"
#endif

SL_DEV uint32_t sl_lane(void) {
    return threadIdx.x & (SL_WARP - 1);
}

SL_DEV uint32_t sl_warp(void) {
    return threadIdx.x / SL_WARP;
}

/* What the two files above define alike:
 *
 * Tiles of tensor cores, d += a b, by all lanes of a warp. With g = lane / 4, t = lane % 4:
 * d[0], d[1]: row g, columns 2t and 2t + 1; d[2], d[3]: row g + 8. Of 16 bits (k of 16, two in
 * a register, the lower one in the lower half): a[0] row g, k 2t and 2t + 1; a[1] row g + 8; a[2],
 * a[3] the same with k + 8; b[0] column g, k 2t and 2t + 1; b[1] k + 8. Of 8 bits (k of 32, four in
 * a register) a[0] and b[0] have k 4t to 4t + 3, a[2] and b[1] k + 16. Of tf32 (k of 8,
 * f32 whose lower 13 bits do not count, one in a register): a[0] row g, k t; a[1] row g + 8; a[2],
 * a[3] the same with k + 4; b[0] column g, k t; b[1] k + 4. void sl_mma_m16n8k16_bf16(float d[4],
 * const uint32_t a[4], const uint32_t b[2]); void sl_mma_m16n8k16_f16(float d[4], const uint32_t
 * a[4], const uint32_t b[2]); void sl_mma_m16n8k32_e4m3(float d[4], const uint32_t a[4], const
 * uint32_t b[2]); void sl_mma_m16n8k32_s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2]);
 *     void sl_mma_m16n8k8_tf32(float d[4], const uint32_t a[4], const uint32_t b[2]);
 * Sums of floats are those of the hardware, so they are for numerics `fast` alone; s8 is exact.
 *
 * Matrices of 8 x 8 of 16 bits from shared memory, by all lanes of a warp: lane 8i + j brings the
 * address of row j of matrix i (16-byte aligned; of x2 lanes 0 to 15), and r[i] gets row g, columns
 * 2t and 2t + 1 of matrix i; of _trans rows 2t and 2t + 1 of column g.
 *     void sl_ldmatrix_x4(uint32_t r[4], const void *shared);
 *     void sl_ldmatrix_x4_trans(uint32_t r[4], const void *shared);
 *     void sl_ldmatrix_x2(uint32_t r[2], const void *shared);
 *     void sl_ldmatrix_x2_trans(uint32_t r[2], const void *shared);
 *
 * Copies from global to shared memory that go on beside what follows. Addresses are aligned to
 * the size. What a thread has copied it may read after sl_cp_async_wait, others after a barrier
 * behind that. _zero copies the first n <= 16 bytes and clears the others; with n = 0 nothing is
 * read. wait(n): all groups of this thread but its last n, a constant, have arrived.
 *     void sl_cp_async16(void *shared, const void *global);
 *     void sl_cp_async16_zero(void *shared, const void *global, uint32_t n);
 *     void sl_cp_async4(void *shared, const void *global);
 *     void sl_cp_async_commit(void);
 *     sl_cp_async_wait(n)
 *
 * A barrier of n threads of the block (whole warps) with number 1 to 15; arrive does not wait.
 *     void sl_barrier(uint32_t id, uint32_t n);
 *     void sl_barrier_arrive(uint32_t id, uint32_t n);
 *
 * 16 bytes from a 16-byte aligned address; _once: they are not kept near, for weights.
 *     uint4 sl_load16(const void *p);
 *     uint4 sl_load16_once(const void *p);
 *
 * c + sum of the products of four bytes, both signed, or a's unsigned.
 *     int32_t sl_dp4a(uint32_t a, uint32_t b, int32_t c);
 *     int32_t sl_dp4a_us(uint32_t a, uint32_t b, int32_t c);
 *
 * Byte i of the result is byte s % 8 of b:a, the low four of which are a's, s being bits 4i to
 * 4i + 3 of `select`; where s is 8 or more, eight times that byte's highest bit.
 *     uint32_t sl_byte_perm(uint32_t a, uint32_t b, uint32_t select);
 *
 * Two floats rounded to nearest even, lo in the lower half. (The bits of a NaN differ.)
 *     uint32_t sl_pack_bf16(float lo, float hi);
 *     uint32_t sl_pack_f16(float lo, float hi);
 *
 * Approximations of the hardware, for numerics `fast` alone.
 *     float sl_exp2_fast(float x);
 *     float sl_inverse_fast(float x);
 *
 * A kernel's own bug, or an argument that its host should have refused: everything ends.
 *     void sl_trap(void); */

#endif
