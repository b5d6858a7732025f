/* Words of sm_90 for kernels that keep copies under way by themselves: barriers in shared memory
 * that count bytes, and copies of the copy engine that report to them. The emulator has them, too:
 * there a copy has arrived when it was asked for, and a wait lets others run.
 *
 *     void sl_mbar_init(sl_mbar *b, uint32_t arrivals);
 *         one thread; then sl_mbar_ready by it, then a barrier of the block
 *     void sl_mbar_ready(void);
 *     void sl_mbar_arrive(sl_mbar *b);
 *     void sl_mbar_expect(sl_mbar *b, uint32_t bytes);    arrives, and so many bytes will
 *     void sl_mbar_wait(sl_mbar *b, uint32_t parity);     until phase `parity` is over
 *     void sl_bulk_copy(void *shared, const void *global, uint32_t bytes, sl_mbar *b);
 *     void sl_bulk_copy_once(...);                        the same, of what is read once
 *         16-byte aligned, a multiple of 16 bytes
 *     void sl_tensor_copy(void *shared, const sl_tensor_map *m, uint32_t column, uint32_t row,
 *                         sl_mbar *b);
 *         a box of a matrix, its rows swizzled as wgmma.h has them, zeros outside of the matrix;
 *         shared is 1024-byte aligned
 *     void sl_tensor_keep(...), sl_tensor_keep_pair(...);   the same of what is read more than once
 *     void sl_tensor_renew(const sl_tensor_map *m);   before a block first uses a map that the host
 *         wrote, where it may have had another one in its place
 *     void sl_tensor_fetch(const sl_tensor_map *m, bool one);   soon this map, and unless `one` the
 *         one behind it, will be used
 *     sl_tensor_copy_pair: the same into both blocks of a cluster of two, each at this address, and
 *         each block's barrier at b counts the bytes
 *     void sl_async_fence(void);   between a thread's own accesses and those of the copy engine or
 *                                  the tensor cores to the same memory
 *     uint32_t sl_load_acquire(const uint32_t *p);        what another block has released
 *     uint4 sl_load_shared(const uint32_t *p);
 *         four words of shared memory as they are now
 *     void sl_add_shared(uint32_t *p, uint32_t n);        of shared memory, behind all before it
 *     void sl_add_release(uint32_t *p, uint32_t n);
 *     uint32_t sl_transpose8(uint32_t v);   a tile of 8 x 8 of 16 bits of a warp: lane has row
 *         lane / 4, columns 2 (lane % 4) and one more, and gets those of the transposed tile
 *     void sl_stmatrix_x4_trans(void *shared, const uint32_t r[4]);   four such tiles: row j of the
 *         transposed tile i goes where lane 8 i + j says, 16 bytes, 16-byte aligned
 * Clusters of two, neighbours in x:
 *     uint32_t sl_cluster_rank(void);
 *     void sl_cluster_sync(void);                         all threads of both
 *     void sl_mbar_arrive_at(sl_mbar *b, uint32_t rank);  of that block
 *     sl_registers_more(n), sl_registers_less(n)          of each thread of a warp group */
#ifndef SL_CUDA_ASYNC_H
#define SL_CUDA_ASYNC_H

#include "stage/cuda/kernels/device.h"

typedef uint64_t sl_mbar;

/* What the driver makes of a matrix: see sl_cuda_tensor_map. */
typedef struct sl_tensor_map {
    uint64_t word[16];
} sl_tensor_map;

#define SL_SPIN_LIMIT (1u << 26) /* a wait of seconds is a bug: the kernel ends */

#ifdef __CUDACC__

SL_DEV void sl_mbar_init(sl_mbar *b, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sl_shared_address(b)),
                 "r"(arrivals)
                 : "memory");
}

SL_DEV void sl_mbar_ready(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

SL_DEV void sl_mbar_arrive(sl_mbar *b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(sl_shared_address(b)) : "memory");
}

SL_DEV void sl_mbar_expect(sl_mbar *b, uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(sl_shared_address(b)),
        "r"(bytes)
        : "memory");
}

SL_DEV bool sl_mbar_try(sl_mbar *b, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(sl_shared_address(b)), "r"(parity)
                 : "memory");
    return done != 0;
}

SL_DEV bool sl_mbar_test(sl_mbar *b, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(sl_shared_address(b)), "r"(parity)
                 : "memory");
    return done != 0;
}

SL_DEV void sl_mbar_wait(sl_mbar *b, uint32_t parity) {
    for (uint32_t i = 0; !sl_mbar_try(b, parity); i++)
        if (i > SL_SPIN_LIMIT) __trap();
}

SL_DEV void sl_cp_async_arrive(sl_mbar *b) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(sl_shared_address(b))
                 : "memory");
}

SL_DEV void sl_bulk_copy(void *shared, const void *global, uint32_t bytes, sl_mbar *b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(sl_shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(sl_shared_address(b))
                 : "memory");
}

SL_DEV uint64_t sl_once_policy(void) {
    uint64_t p;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}

SL_DEV void sl_bulk_copy_once(void *shared, const void *global, uint32_t bytes, sl_mbar *b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(sl_shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(sl_shared_address(b)), "l"(sl_once_policy())
                 : "memory");
}

SL_DEV void sl_tensor_copy(void *shared, const sl_tensor_map *m, uint32_t column, uint32_t row,
                           sl_mbar *b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(sl_shared_address(shared)),
                 "l"(m), "r"(sl_shared_address(b)), "r"(column), "r"(row), "l"(sl_once_policy())
                 : "memory");
}

SL_DEV void sl_tensor_keep(void *shared, const sl_tensor_map *m, uint32_t column, uint32_t row,
                           sl_mbar *b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4}], [%2];" ::"r"(sl_shared_address(shared)),
                 "l"(m), "r"(sl_shared_address(b)), "r"(column), "r"(row)
                 : "memory");
}

SL_DEV void sl_tensor_keep_pair(void *shared, const sl_tensor_map *m, uint32_t column, uint32_t row,
                                sl_mbar *b) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(sl_shared_address(shared)),
        "l"(m), "r"(sl_shared_address(b)), "r"(column), "r"(row), "h"((uint16_t)3)
        : "memory");
}

SL_DEV void sl_tensor_renew(const sl_tensor_map *m) {
    asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(m) : "memory");
}

SL_DEV void sl_tensor_fetch(const sl_tensor_map *m, bool one) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(m) : "memory");
    if (!one) asm volatile("prefetch.tensormap [%0];" ::"l"(m + 1) : "memory");
}

SL_DEV void sl_tensor_copy_pair(void *shared, const sl_tensor_map *m, uint32_t column, uint32_t row,
                                sl_mbar *b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(
                     sl_shared_address(shared)),
                 "l"(m), "r"(sl_shared_address(b)), "r"(column), "r"(row), "h"((uint16_t)3),
                 "l"(sl_once_policy())
                 : "memory");
}

SL_DEV uint32_t sl_transpose8(uint32_t v) {
    uint32_t d;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(v));
    return d;
}

SL_DEV void sl_stmatrix_x4_trans(void *shared, const uint32_t r[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                     sl_shared_address(shared)),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

SL_DEV uint32_t sl_cluster_rank(void) {
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

SL_DEV void sl_cluster_sync(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

SL_DEV void sl_mbar_arrive_at(sl_mbar *b, uint32_t rank) {
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(sl_shared_address(b)),
                 "r"(rank)
                 : "memory");
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define sl_registers_more(n) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n))
#define sl_registers_less(n) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n))
#else
#define sl_registers_more(n) ((void)0)
#define sl_registers_less(n) ((void)0)
#endif

SL_DEV void sl_async_fence(void) {
    asm volatile("fence.proxy.async;" ::: "memory");
}

SL_DEV uint32_t sl_load_acquire(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

SL_DEV void sl_add_release(uint32_t *p, uint32_t n) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(n) : "memory");
}

SL_DEV uint4 sl_load_shared(const uint32_t *p) {
    uint4 v;
    asm volatile("ld.volatile.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(sl_shared_address(p))
                 : "memory");
    return v;
}

SL_DEV void sl_add_shared(uint32_t *p, uint32_t n) {
    asm volatile("red.release.cta.shared::cta.add.u32 [%0], %1;" ::"r"(sl_shared_address(p)), "r"(n)
                 : "memory");
}

#define sl_spin() __nanosleep(40)

#else

/* Bits: 0 phase, 1-15 arrivals a phase takes, 16-31 arrivals still to come, 32-63 bytes still to
 * come. */
SL_EMU_ATOMIC void sl_emu_mbar(sl_mbar *b, uint32_t arrivals, int32_t bytes) {
    sl_emu_release(b);
    uint32_t phase = (uint32_t)*b & 1, all = (uint32_t)*b >> 1 & 0x7fff;
    uint32_t left = (uint32_t)*b >> 16;
    int32_t to_come = (int32_t)(*b >> 32) + bytes;
    if (arrivals > left) sl_emu_die("more arrivals than a barrier takes");
    left -= arrivals;
    if (left == 0 && to_come == 0) {
        phase ^= 1;
        left = all;
    }
    *b = phase | all << 1 | left << 16 | (uint64_t)(uint32_t)to_come << 32;
}

SL_EMU_ATOMIC void sl_mbar_init(sl_mbar *b, uint32_t arrivals) {
    *b = arrivals << 1 | (uint64_t)arrivals << 16;
}
#define sl_mbar_ready()         ((void)0)
#define sl_mbar_arrive(b)       sl_emu_mbar(b, 1, 0)
#define sl_mbar_expect(b, n)    (sl_emu_mbar(b, 0, (int32_t)(n)), sl_emu_mbar(b, 1, 0))
#define sl_async_fence()        ((void)0)
#define sl_add_release(p, n)    ((void)sl_emu_atomic_add(p, n))
#define sl_add_shared(p, n)     ((void)sl_emu_atomic_add(p, n))
#define sl_spin()               sl_emu_yield()

SL_EMU_ATOMIC uint32_t sl_load_acquire(const uint32_t *p) {
    sl_emu_acquire(p);
    return *p;
}

/* Four counters of sl_add_shared; a fence follows. */
SL_EMU_ATOMIC uint4 sl_load_shared(const uint32_t *p) {
    for (uint32_t i = 0; i < 4; i++) sl_emu_acquire(p + i);
    return *(const uint4 *)p;
}

SL_EMU_ATOMIC bool sl_mbar_test(sl_mbar *b, uint32_t parity) {
    sl_emu_yield();
    if ((uint32_t)(*b & 1) == parity) return false;
    sl_emu_acquire(b);
    return true;
}

SL_DEV void sl_cp_async_arrive(sl_mbar *b) {
    sl_cp_async_commit();
    sl_cp_async_wait(0);
    sl_mbar_arrive(b);
}

SL_EMU_ATOMIC void sl_mbar_wait(sl_mbar *b, uint32_t parity) {
    for (uint32_t i = 0; (uint32_t)(*b & 1) == parity; i++) {
        if (i > 1000000) sl_emu_die("a barrier in shared memory that is never over");
        sl_emu_yield();
    }
    sl_emu_acquire(b);
}

SL_DEV void sl_bulk_copy(void *shared, const void *global, uint32_t bytes, sl_mbar *b) {
    if ((uintptr_t)shared % 16 || (uintptr_t)global % 16 || bytes % 16)
        sl_emu_die("a bulk copy of %u bytes from %p to %p is not aligned", bytes, global, shared);
    sl_emu_touch(global, bytes, false);
    sl_emu_touch(shared, bytes, true);
    memcpy(shared, global, bytes);
    sl_emu_mbar(b, 0, -(int32_t)bytes);
}
#define sl_bulk_copy_once       sl_bulk_copy

/* Words of a map here: address, rows, values of a row, rows of a box of 64 columns of 16 bits,
 * bytes between rows. */
SL_DEV void sl_tensor_copy(void *shared, const sl_tensor_map *m, uint32_t column, uint32_t row,
                           sl_mbar *b) {
    if ((uintptr_t)shared % 1024) sl_emu_die("a box to %p, which is not aligned", shared);
    for (uint32_t r = 0; r < m->word[3]; r++) {
        for (uint32_t c = 0; c < 64; c++) {
            const uint64_t at = m->word[0] + (size_t)(row + r) * m->word[4];
            const uint16_t *w = (const uint16_t *)(uintptr_t)at;
            const bool in = row + r < m->word[1] && column + c < m->word[2];
            const uint16_t v = in ? w[column + c] : 0;
            memcpy((uint8_t *)shared + r * 128 + (c / 8 ^ (r & 7)) * 16 + c % 8 * 2, &v, 2);
        }
    }
    sl_emu_mbar(b, 0, -(int32_t)(m->word[3] * 128));
}
SL_DEV void sl_tensor_copy_pair(void *shared, const sl_tensor_map *m, uint32_t column, uint32_t row,
                                sl_mbar *b) {
    for (uint32_t i = 0; i < 2; i++)
        sl_tensor_copy(sl_emu_peer(shared, i), m, column, row, (sl_mbar *)sl_emu_peer(b, i));
}
#define sl_tensor_keep          sl_tensor_copy
#define sl_tensor_keep_pair     sl_tensor_copy_pair
#define sl_tensor_renew(m)      ((void)(m))
#define sl_tensor_fetch(m, one) ((void)(m), (void)(one))

SL_DEV uint32_t sl_transpose8(uint32_t v) {
    const uint32_t row = sl_lane() / 4, column = sl_lane() % 4 * 2;
    const uint32_t lo = __shfl_sync(SL_ALL, v, column * 4 + row / 2);
    const uint32_t hi = __shfl_sync(SL_ALL, v, (column + 1) * 4 + row / 2);
    const uint32_t shift = row % 2 * 16;
    return (lo >> shift & 0xffff) | (hi >> shift & 0xffff) << 16;
}

SL_DEV void sl_stmatrix_x4_trans(void *shared, const uint32_t r[4]) {
    if ((uintptr_t)shared % 16) sl_emu_die("stmatrix to %p, which is not aligned", shared);
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t v = sl_transpose8(r[i]);
        const uint64_t at = (uint64_t)(uintptr_t)shared;
        const uint64_t to = __shfl_sync(SL_ALL, at, 8 * i + sl_lane() / 4);
        *(uint32_t *)(uintptr_t)(to + sl_lane() % 4 * 4) = v;
    }
}
#define sl_cluster_rank()       (blockIdx.x % 2)
#define sl_cluster_sync()       sl_emu_cluster_sync()
#define sl_mbar_arrive_at(b, r) sl_mbar_arrive((sl_mbar *)sl_emu_peer(b, r))
#define sl_registers_more(n)    ((void)0)
#define sl_registers_less(n)    ((void)0)

#endif
#endif
