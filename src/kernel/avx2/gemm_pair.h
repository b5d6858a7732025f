/* Two steps of k for a register tile of 4 rows of activations and 3 columns, spelled out. The
 * loop is near the limits of a core in three ways: 12 chains take all registers but four, so that a
 * compiler that unrolls it spills chains; 24 products keep both FMA pipes busy for 12 cycles; and
 * where another program runs on the second thread of the same core, only every other cycle's six
 * instructions are ours, so that each one that is not a product costs (28 a step became 22.5).
 *
 * Weights of BF16 for half 0, the even ones, are read from two bytes before them: they then are the
 * upper halves of their words, too, and one mask serves both halves, from memory in one
 * instruction where a shift needs two. The caller sees to it that these two bytes exist. */
#ifndef SL_KERNEL_AVX2_GEMM_PAIR_H
#define SL_KERNEL_AVX2_GEMM_PAIR_H

#include "kernel/avx2/gemm.h"

/* The weights of one step to ymm12..14. The mask is read anew: there is no register for it. */
#define SL_PAIR_W_BF16(at)                                                                         \
    "vmovdqa %[mask], %%ymm14\n\t"                                                                 \
    "vpand " at "(%[w]), %%ymm14, %%ymm12\n\t"                                                     \
    "vpand " at "(%[w], %[stride]), %%ymm14, %%ymm13\n\t"                                          \
    "vpand " at "(%[w], %[stride], 2), %%ymm14, %%ymm14\n\t"
#define SL_PAIR_W(load, at)                                                                        \
    load " " at "(%[w]), %%ymm12\n\t" load " " at "(%[w], %[stride]), %%ymm13\n\t" load " " at     \
         "(%[w], %[stride], 2), %%ymm14\n\t"
#define SL_PAIR_W_F16(at) SL_PAIR_W("vcvtph2ps", at)
#define SL_PAIR_W_F32(at) SL_PAIR_W("vmovups", at)

#define SL_PAIR_ROW(at, a, b, c)                                                                   \
    "vmovaps " at "(%[x]), %%ymm15\n\t"                                                            \
    "vfmadd231ps %%ymm15, %%ymm12, %[" a "]\n\t"                                                   \
    "vfmadd231ps %%ymm15, %%ymm13, %[" b "]\n\t"                                                   \
    "vfmadd231ps %%ymm15, %%ymm14, %[" c "]\n\t"
#define SL_PAIR_ROWS(at0, at1, at2, at3)                                                           \
    SL_PAIR_ROW(at0, "a0", "a1", "a2")                                                             \
    SL_PAIR_ROW(at1, "a3", "a4", "a5")                                                             \
    SL_PAIR_ROW(at2, "a6", "a7", "a8")                                                             \
    SL_PAIR_ROW(at3, "a9", "a10", "a11")

#define SL_PAIR(W, w_at)                                                                           \
    __asm__ volatile(                                                                              \
        W("0") SL_PAIR_ROWS("0", "32", "64", "96") W(w_at)                                         \
            SL_PAIR_ROWS("128", "160", "192", "224")                                               \
        : [a0] "+x"(acc[0]), [a1] "+x"(acc[1]), [a2] "+x"(acc[2]), [a3] "+x"(acc[3]),              \
          [a4] "+x"(acc[4]), [a5] "+x"(acc[5]), [a6] "+x"(acc[6]), [a7] "+x"(acc[7]),              \
          [a8] "+x"(acc[8]), [a9] "+x"(acc[9]), [a10] "+x"(acc[10]), [a11] "+x"(acc[11])           \
        : [x] "r"(x), [w] "r"(w), [stride] "r"(stride), [mask] "m"(*(const __m256i *)sl_odd_mask)  \
        : "xmm12", "xmm13", "xmm14", "xmm15", "memory")

/* acc [4][3] += the steps at w and x [2][4][8] of one half; `stride` bytes between weight rows. */
SL_INLINE void sl_gemm_pair(__m256 *acc, const float *x, const uint8_t *w, size_t stride,
                            sl_dtype dtype, const uint32_t half) {
    if (dtype == SL_F32) {
        w += (size_t)half * 32;
        SL_PAIR(SL_PAIR_W_F32, "64");
    } else if (dtype == SL_F16) {
        w += (size_t)half * 16;
        SL_PAIR(SL_PAIR_W_F16, "32");
    } else {
        w -= half ? 0 : 2;
        SL_PAIR(SL_PAIR_W_BF16, "32");
    }
}

#endif
