/* The language of kernels on the host (device.h): what gcc compiles for the emulator, whose
 * functions (sl_emu_*) are in tests/cuda. One thread of a block runs at a time, on a stack of its
 * own, until it has to wait for others: so nothing here is atomic, and plain loads are enough. */
#ifndef SL_STAGE_CUDA_DEVICE_HOST_H
#define SL_STAGE_CUDA_DEVICE_HOST_H

typedef struct sl_emu_dim {
    uint32_t x, y, z;
} sl_emu_dim;

/* The block that runs, and its thread that runs. */
typedef struct sl_emu_block {
    sl_emu_dim index, threads, grid;
} sl_emu_block;

typedef struct sl_emu_thread {
    sl_emu_dim index;
    const sl_emu_block *block;
} sl_emu_thread;

extern _Thread_local const sl_emu_thread *sl_emu_here;

#ifdef SL_CUDA_RACES /* every load is watched: not these */
sl_emu_dim sl_emu_dim_of(int which) __attribute__((const));
#define threadIdx sl_emu_dim_of(0)
#define blockIdx  sl_emu_dim_of(1)
#define blockDim  sl_emu_dim_of(2)
#define gridDim   sl_emu_dim_of(3)
#else
#define threadIdx (sl_emu_here->index)
#define blockIdx  (sl_emu_here->block->index)
#define blockDim  (sl_emu_here->block->threads)
#define gridDim   (sl_emu_here->block->grid)
#endif

#define SL_KERNEL(name, args)                                                                      \
    static void name(const args a);                                                                \
    extern const uint32_t name##_bytes;                                                            \
    const uint32_t name##_bytes = sizeof(args);                                                    \
    void name##_thunk(const void *p);                                                              \
    void name##_thunk(const void *p) {                                                             \
        name(*(const args *)p);                                                                    \
    }                                                                                              \
    static void name(const args a)
#define SL_KERNEL_BOUNDS(name, args, threads, blocks) SL_KERNEL(name, args)
#define SL_DEV                                        static inline __attribute__((unused))
#define SL_TABLE                                      static const __attribute__((unused))
#define SL_UNROLL

/* The array belongs to this place of the text, whichever thread comes here first in a block. */
#define SL_SHARED(type, name, n)                                                                   \
    static const char name##_site_[] = #name;                                                      \
    type *name = (type *)sl_emu_shared(name##_site_, sizeof(type[n]))
#define SL_SHARED2(type, name, n, m)                                                               \
    static const char name##_site_[] = #name;                                                      \
    type(*name)[m] = (type(*)[m])sl_emu_shared(name##_site_, sizeof(type[n][m]))
#define SL_DYNAMIC(type, name) type *name = (type *)sl_emu_dynamic()
void *sl_emu_shared(const char *site, size_t bytes);
void *sl_emu_dynamic(void);

/* Vectors, aligned as a GPU demands it. */
#define SL_EMU_VECTOR2(name, type)                                                                 \
    typedef struct name {                                                                          \
        type x, y;                                                                                 \
    } __attribute__((aligned(8))) name;                                                            \
    SL_DEV name make_##name(type x, type y) {                                                      \
        name v = {x, y};                                                                           \
        return v;                                                                                  \
    }
#define SL_EMU_VECTOR4(name, type)                                                                 \
    typedef struct name {                                                                          \
        type x, y, z, w;                                                                           \
    } __attribute__((aligned(16))) name;                                                           \
    SL_DEV name make_##name(type x, type y, type z, type w) {                                      \
        name v = {x, y, z, w};                                                                     \
        return v;                                                                                  \
    }
SL_EMU_VECTOR2(uint2, uint32_t)
SL_EMU_VECTOR2(int2, int32_t)
SL_EMU_VECTOR2(float2, float)
SL_EMU_VECTOR4(uint4, uint32_t)
SL_EMU_VECTOR4(int4, int32_t)
SL_EMU_VECTOR4(float4, float)
#undef SL_EMU_VECTOR2
#undef SL_EMU_VECTOR4

/* Barriers: number 0 is that of the whole block. */
void sl_emu_barrier(uint32_t id, uint32_t threads, bool waits);
void sl_emu_syncwarp(uint32_t mask);
#define __syncthreads()                sl_emu_barrier(0, blockDim.x, true)
#define SL_EMU_PICK_(none, one, ...)   one
#define SL_EMU_OR_ALL_(...)            SL_EMU_PICK_(_, ##__VA_ARGS__, SL_ALL)
#define __syncwarp(...)                sl_emu_syncwarp(SL_EMU_OR_ALL_(__VA_ARGS__))
#define sl_barrier(id, threads)        sl_emu_barrier(id, threads, true)
#define sl_barrier_arrive(id, threads) sl_emu_barrier(id, threads, false)

/* Clusters of two blocks: a barrier of all their threads; where the block of that rank has what is
 * at p in this one's shared memory. */
void sl_emu_cluster_sync(void);
void *sl_emu_peer(const void *p, uint32_t rank);

/* For waits that poll: others go on first, blocks that did not begin begin. */
void sl_emu_yield(void);

/* Exchanges between lanes. */
typedef enum sl_emu_shuffle_kind {
    SL_EMU_AT,
    SL_EMU_XOR,
    SL_EMU_DOWN,
    SL_EMU_UP
} sl_emu_shuffle_kind;
uint64_t sl_emu_shuffle(sl_emu_shuffle_kind kind, uint32_t mask, uint64_t value, uint32_t lane);
uint32_t sl_emu_ballot(uint32_t mask, bool holds);

#define SL_EMU_SHUFFLE(name, type, bits)                                                           \
    SL_DEV type sl_emu_shuffle_##name(sl_emu_shuffle_kind kind, uint32_t mask, type value,         \
                                      uint32_t lane) {                                             \
        bits b;                                                                                    \
        memcpy(&b, &value, sizeof b);                                                              \
        b = (bits)sl_emu_shuffle(kind, mask, b, lane);                                             \
        memcpy(&value, &b, sizeof b);                                                              \
        return value;                                                                              \
    }
SL_EMU_SHUFFLE(u32, uint32_t, uint32_t)
SL_EMU_SHUFFLE(i32, int32_t, uint32_t)
SL_EMU_SHUFFLE(f32, float, uint32_t)
SL_EMU_SHUFFLE(u64, uint64_t, uint64_t)
SL_EMU_SHUFFLE(i64, int64_t, uint64_t)
SL_EMU_SHUFFLE(f64, double, uint64_t)
#undef SL_EMU_SHUFFLE
#define SL_EMU_SHUFFLE_OF(value)                                                                   \
    _Generic((value), uint32_t                                                                     \
             : sl_emu_shuffle_u32, int32_t                                                         \
             : sl_emu_shuffle_i32, float                                                           \
             : sl_emu_shuffle_f32, uint64_t                                                        \
             : sl_emu_shuffle_u64, int64_t                                                         \
             : sl_emu_shuffle_i64, double                                                          \
             : sl_emu_shuffle_f64)
#define __shfl_sync(mask, value, lane)     SL_EMU_SHUFFLE_OF(value)(SL_EMU_AT, mask, value, lane)
#define __shfl_xor_sync(mask, value, lane) SL_EMU_SHUFFLE_OF(value)(SL_EMU_XOR, mask, value, lane)
#define __shfl_down_sync(mask, value, by)  SL_EMU_SHUFFLE_OF(value)(SL_EMU_DOWN, mask, value, by)
#define __shfl_up_sync(mask, value, by)    SL_EMU_SHUFFLE_OF(value)(SL_EMU_UP, mask, value, by)
#define __ballot_sync(mask, holds)         sl_emu_ballot(mask, (holds) != 0)
#define __any_sync(mask, holds)            (sl_emu_ballot(mask, (holds) != 0) != 0)
#define __all_sync(mask, holds)            (sl_emu_ballot(mask, !(holds)) == 0)

/* Steps that no thread sees half of, and that order what comes before and after them. */
#ifdef SL_CUDA_RACES
#define SL_EMU_ATOMIC static __attribute__((unused, noinline, no_sanitize_thread))
void sl_emu_release(const void *p);
void sl_emu_acquire(const void *p);
void sl_emu_touch(const void *p, size_t bytes, bool writes); /* what is done behind the compiler */
#else
#define SL_EMU_ATOMIC                  SL_DEV
#define sl_emu_release(p)              ((void)(p))
#define sl_emu_acquire(p)              ((void)(p))
#define sl_emu_touch(p, bytes, writes) ((void)(p))
#endif

/* What was there before such a step, which then stores. */
SL_EMU_ATOMIC uint32_t sl_emu_atomic_old(const uint32_t *p) {
    sl_emu_release(p);
    sl_emu_acquire(p);
    return *p;
}

SL_EMU_ATOMIC uint32_t sl_emu_atomic_add(uint32_t *p, uint32_t v) {
    const uint32_t old = sl_emu_atomic_old(p);
    *p = old + v;
    return old;
}

SL_EMU_ATOMIC uint32_t sl_emu_atomic_max(uint32_t *p, uint32_t v) {
    const uint32_t old = sl_emu_atomic_old(p);
    *p = v > old ? v : old;
    return old;
}

SL_EMU_ATOMIC uint32_t sl_emu_atomic_exch(uint32_t *p, uint32_t v) {
    const uint32_t old = sl_emu_atomic_old(p);
    *p = v;
    return old;
}

SL_EMU_ATOMIC uint32_t sl_emu_atomic_cas(uint32_t *p, uint32_t expected, uint32_t v) {
    const uint32_t old = sl_emu_atomic_old(p);
    *p = old == expected ? v : old;
    return old;
}

#define atomicAdd  sl_emu_atomic_add
#define atomicMax  sl_emu_atomic_max
#define atomicExch sl_emu_atomic_exch
#define atomicCAS  sl_emu_atomic_cas

#define __threadfence() ((void)0)
#define __ldg(p)        (*(p))
#define __ldcg(p)       (*(p))
#define __ldcs(p)       (*(p))
#define __stcg(p, v)    ((void)(*(p) = (v)))
#define __stcs(p, v)    ((void)(*(p) = (v)))
#define __popc(x)       __builtin_popcount(x)

SL_DEV int __clz(int x) {
    return x ? __builtin_clz((unsigned)x) : 32;
}

SL_DEV int __ffs(int x) {
    return __builtin_ffs(x);
}

void sl_mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void sl_mma_m16n8k16_f16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void sl_mma_m16n8k32_e4m3(float d[4], const uint32_t a[4], const uint32_t b[2]);
void sl_mma_m16n8k8_tf32(float d[4], const uint32_t a[4], const uint32_t b[2]);
void sl_mma_m16n8k32_s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2]);
void sl_emu_ldmatrix(uint32_t *r, const void *shared, uint32_t matrices, bool trans);
#define sl_ldmatrix_x4(r, shared)       sl_emu_ldmatrix(r, shared, 4, false)
#define sl_ldmatrix_x4_trans(r, shared) sl_emu_ldmatrix(r, shared, 4, true)
#define sl_ldmatrix_x2(r, shared)       sl_emu_ldmatrix(r, shared, 2, false)
#define sl_ldmatrix_x2_trans(r, shared) sl_emu_ldmatrix(r, shared, 2, true)

/* Copied when the thread waits for it, no earlier: until then the place holds garbage. */
void sl_emu_cp_async(void *shared, const void *global, uint32_t bytes, uint32_t n);
#define sl_cp_async16(shared, global)         sl_emu_cp_async(shared, global, 16, 16)
#define sl_cp_async16_zero(shared, global, n) sl_emu_cp_async(shared, global, 16, n)
#define sl_cp_async4(shared, global)          sl_emu_cp_async(shared, global, 4, 4)
void sl_cp_async_commit(void);
void sl_emu_cp_async_wait(uint32_t n);
#define sl_cp_async_wait(n) sl_emu_cp_async_wait(n)

/* Ends the process and says which kernel, block and thread was at it. */
_Noreturn void sl_emu_die(const char *why, ...) __attribute__((format(printf, 1, 2)));

SL_DEV uint4 sl_load16(const void *p) {
    if ((uintptr_t)p % 16) sl_emu_die("16 bytes from %p, which is not aligned", p);
    return *(const uint4 *)p;
}
#define sl_load16_once(p) sl_load16(p)

SL_DEV int32_t sl_dp4a(uint32_t a, uint32_t b, int32_t c) {
    uint32_t d = (uint32_t)c;
    for (int i = 0; i < 32; i += 8) d += (uint32_t)((int8_t)(a >> i) * (int8_t)(b >> i));
    return (int32_t)d;
}

SL_DEV int32_t sl_dp4a_us(uint32_t a, uint32_t b, int32_t c) {
    uint32_t d = (uint32_t)c;
    for (int i = 0; i < 32; i += 8) d += (uint32_t)((uint8_t)(a >> i) * (int8_t)(b >> i));
    return (int32_t)d;
}

SL_DEV uint32_t sl_byte_perm(uint32_t a, uint32_t b, uint32_t select) {
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t s = select >> 4 * i, byte = (uint32_t)(both >> s % 8 * 8) & 255u;
        d |= (s & 8u ? (byte & 128u ? 255u : 0u) : byte) << 8 * i;
    }
    return d;
}

uint32_t sl_pack_bf16(float lo, float hi);
uint32_t sl_pack_f16(float lo, float hi);
#define sl_exp2_fast(x)    exp2f(x)
#define sl_inverse_fast(x) (1.0f / (x))
#define sl_trap()          sl_emu_die("sl_trap")

#endif
