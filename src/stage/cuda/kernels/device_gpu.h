/* The language of kernels on a GPU (device.h): nvcc's words, and PTX behind functions. */
#ifndef SL_STAGE_CUDA_DEVICE_GPU_H
#define SL_STAGE_CUDA_DEVICE_GPU_H

#define SL_KERNEL(name, args) extern "C" __global__ void name(const __grid_constant__ args a)
#define SL_KERNEL_BOUNDS(name, args, threads, blocks)                                              \
    extern "C" __global__ void __launch_bounds__(threads, blocks)                                  \
        name(const __grid_constant__ args a)
#define SL_DEV                       static __device__ __forceinline__
#define SL_TABLE                     static __device__ const
#define SL_SHARED(type, name, n)     __shared__ __align__(16) type name[n]
#define SL_SHARED2(type, name, n, m) __shared__ __align__(16) type name[n][m]
#define SL_DYNAMIC(type, name)                                                                     \
    extern __shared__ __align__(128) uint8_t sl_dynamic_[];                                        \
    type *name = (type *)sl_dynamic_
#define SL_UNROLL _Pragma("unroll")

SL_DEV uint32_t sl_shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

#define SL_GPU_MMA(name, shape, types, type, letter)                                               \
    SL_DEV void name(type d[4], const uint32_t a[4], const uint32_t b[2]) {                        \
        asm volatile("mma.sync.aligned." shape ".row.col." types                                   \
                     " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                      \
                     : "+" letter(d[0]), "+" letter(d[1]), "+" letter(d[2]), "+" letter(d[3])      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));          \
    }
SL_GPU_MMA(sl_mma_m16n8k16_bf16, "m16n8k16", "f32.bf16.bf16.f32", float, "f")
SL_GPU_MMA(sl_mma_m16n8k16_f16, "m16n8k16", "f32.f16.f16.f32", float, "f")
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
SL_GPU_MMA(sl_mma_m16n8k32_e4m3, "m16n8k32", "f32.e4m3.e4m3.f32", float, "f")
#endif
SL_GPU_MMA(sl_mma_m16n8k8_tf32, "m16n8k8", "f32.tf32.tf32.f32", float, "f")
SL_GPU_MMA(sl_mma_m16n8k32_s8, "m16n8k32", "s32.s8.s8.s32", int32_t, "r")
#undef SL_GPU_MMA

#define SL_GPU_LDMATRIX_4(name, trans)                                                             \
    SL_DEV void name(uint32_t r[4], const void *shared) {                                          \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" trans ".shared.b16 {%0,%1,%2,%3}, [%4];"      \
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                              \
                     : "r"(sl_shared_address(shared))                                              \
                     : "memory");                                                                  \
    }
#define SL_GPU_LDMATRIX_2(name, trans)                                                             \
    SL_DEV void name(uint32_t r[2], const void *shared) {                                          \
        asm volatile("ldmatrix.sync.aligned.m8n8.x2" trans ".shared.b16 {%0,%1}, [%2];"            \
                     : "=r"(r[0]), "=r"(r[1])                                                      \
                     : "r"(sl_shared_address(shared))                                              \
                     : "memory");                                                                  \
    }
SL_GPU_LDMATRIX_4(sl_ldmatrix_x4, "")
SL_GPU_LDMATRIX_4(sl_ldmatrix_x4_trans, ".trans")
SL_GPU_LDMATRIX_2(sl_ldmatrix_x2, "")
SL_GPU_LDMATRIX_2(sl_ldmatrix_x2_trans, ".trans")
#undef SL_GPU_LDMATRIX_4
#undef SL_GPU_LDMATRIX_2

SL_DEV void sl_cp_async16(void *shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(sl_shared_address(shared)),
                 "l"(global)
                 : "memory");
}

SL_DEV void sl_cp_async16_zero(void *shared, const void *global, uint32_t n) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(sl_shared_address(shared)),
                 "l"(global), "r"(n)
                 : "memory");
}

SL_DEV void sl_cp_async4(void *shared, const void *global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(sl_shared_address(shared)),
                 "l"(global)
                 : "memory");
}

SL_DEV void sl_cp_async_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

#define sl_cp_async_wait(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")

SL_DEV void sl_barrier(uint32_t id, uint32_t n) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}

SL_DEV void sl_barrier_arrive(uint32_t id, uint32_t n) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory");
}

SL_DEV uint4 sl_load16(const void *p) {
    return *(const uint4 *)p;
}

SL_DEV uint4 sl_load16_once(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

SL_DEV int32_t sl_dp4a(uint32_t a, uint32_t b, int32_t c) {
    return __dp4a((int32_t)a, (int32_t)b, c);
}

SL_DEV int32_t sl_dp4a_us(uint32_t a, uint32_t b, int32_t c) {
    int32_t d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

SL_DEV uint32_t sl_byte_perm(uint32_t a, uint32_t b, uint32_t select) {
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(select));
    return d;
}

SL_DEV uint32_t sl_pack_bf16(float lo, float hi) {
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}

SL_DEV uint32_t sl_pack_f16(float lo, float hi) {
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}

SL_DEV float sl_exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

SL_DEV float sl_inverse_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

SL_DEV void sl_trap(void) {
    __trap();
}

#endif
