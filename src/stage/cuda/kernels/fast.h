/* What the fast kernels share: SwiGLU in f32 by approximations of the hardware, bf16, and the words
 * by which a kernel of a chain starts while the one before it still runs. */
#ifndef SL_CUDA_FAST_H
#define SL_CUDA_FAST_H

#include "stage/cuda/kernels/device.h"

#define SL_FAST_LOG2E 1.44269504f
#define SL_FAST_ALPHA 1.702f /* SL_SWIGLU_ALPHA of kernel/kernel.h */

#ifdef __CUDACC__
/* Waits until what the kernels before this one wrote can be read: first thing of a kernel that
 * reads it. Weights may be read before. Nothing where the launch does not allow an early start. */
SL_DEV void sl_fast_wait(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next kernel may take what room this one leaves. */
SL_DEV void sl_fast_let_next(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/* Soon this will be read. */
SL_DEV void sl_fast_fetch(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
/* The same of some multiple of 16 bytes, 16-byte aligned. */
SL_DEV void sl_fast_fetch_row(const void *p, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
#endif
}
#else
#define sl_fast_fetch(p)        ((void)(p))
#define sl_fast_fetch_row(p, n) ((void)(p), (void)(n))
#define sl_fast_wait()          ((void)0)
#define sl_fast_let_next()      ((void)0)
#endif

/* Whether this block is the last of n to come here, by all its threads: then it sees what the
 * others wrote before. done: a counter, 0 before and after. */
SL_DEV bool sl_fast_is_last(uint32_t *done, uint32_t n) {
    SL_SHARED(uint32_t, before, 1);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        before[0] = atomicAdd(done, 1);
        if (before[0] == n - 1) *done = 0;
    }
    __syncthreads();
    __threadfence();
    return before[0] == n - 1;
}

SL_DEV float sl_fast_bf16(uint16_t b) {
    const uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* silu(g) u, or with a limit gpt-oss's form. */
SL_DEV float sl_fast_swiglu(float g, float u, float limit) {
    float a = 1;
    if (limit > 0) {
        g = fminf(g, limit);
        u = fminf(fmaxf(u, -limit), limit) + 1.0f;
        a = SL_FAST_ALPHA;
    }
    return g * u * sl_inverse_fast(1.0f + sl_exp2_fast(-a * SL_FAST_LOG2E * g));
}

/* 8 floats to 8 bf16. */
SL_DEV uint4 sl_fast_pack8(const float *f) {
    return make_uint4(sl_pack_bf16(f[0], f[1]), sl_pack_bf16(f[2], f[3]), sl_pack_bf16(f[4], f[5]),
                      sl_pack_bf16(f[6], f[7]));
}

#endif
