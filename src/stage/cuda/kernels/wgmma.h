/* Products of a warp group's tensor cores (sm_90a): 64 weight rows times n rows of activations, k
 * of 16, both in shared memory in rows of 128 bytes whose 16-byte pieces are swizzled (piece ^ row
 * % 8), tiles of 8 rows one behind another and 1024-byte aligned.
 *
 * Warp w of the four has weight rows 16 w to 16 w + 15; d[4 j] and d[4 j + 1] are row lane / 4,
 * columns 8 j + 2 (lane % 4) and one more, d[4 j + 2] and d[4 j + 3] those of row lane / 4 + 8.
 *
 *     uint64_t sl_wgmma_tile(const void *shared);      what a product is told of a tile; + 2: the
 *                                                      next 16 values of k
 *     void sl_wgmma(const uint32_t n, float *d, uint64_t a, uint64_t b, uint32_t more);
 *                                                      d (+)= a b, without `more`: d =
 *     void sl_wgmma_begin(void);                       before the first of some products
 *     void sl_wgmma_commit(void);                      behind the last
 *     sl_wgmma_wait(n)                                 all but the last n such lots are done
 *
 *     void sl_wgmma_regs(const uint32_t n, float *d, const uint32_t a[4], uint64_t b,
 *                        uint32_t more);
 *         the same with a in registers, as tiles of device.h have it; n is 64 or 128
 *     void sl_wgmma_settle(float *d, const uint32_t values);
 *         behind a wait: d is not used before it
 *
 * n is a constant, one of SL_WGMMA_WIDTHS or SL_WGMMA_WIDER. */
#ifndef SL_CUDA_WGMMA_H
#define SL_CUDA_WGMMA_H

#include "stage/cuda/kernels/device.h"

#define SL_WGMMA_WIDTHS(X)                                                                         \
    X(8)                                                                                           \
    X(16)                                                                                          \
    X(24)                                                                                          \
    X(32)                                                                                          \
    X(40)                                                                                          \
    X(48)                                                                                          \
    X(56) X(64) X(72) X(80) X(88) X(96) X(104) X(112) X(120) X(128) X(136) X(144) X(152) X(160)
#define SL_WGMMA_WIDER(X) X(192) X(224) X(256)

#if defined(__CUDACC__)

SL_DEV uint64_t sl_wgmma_tile(const void *shared) {
    const uint64_t at = (sl_shared_address(shared) & 0x3ffff) >> 4;
    return at | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

SL_DEV void sl_wgmma_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

SL_DEV void sl_wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

#define sl_wgmma_wait(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")

/* Operands 4 i to 4 i + 3, as text and as values. */
#define SL_WG_P0   "%0,%1,%2,%3"
#define SL_WG_P1   "%4,%5,%6,%7"
#define SL_WG_P2   "%8,%9,%10,%11"
#define SL_WG_P3   "%12,%13,%14,%15"
#define SL_WG_P4   "%16,%17,%18,%19"
#define SL_WG_P5   "%20,%21,%22,%23"
#define SL_WG_P6   "%24,%25,%26,%27"
#define SL_WG_P7   "%28,%29,%30,%31"
#define SL_WG_P8   "%32,%33,%34,%35"
#define SL_WG_P9   "%36,%37,%38,%39"
#define SL_WG_P10  "%40,%41,%42,%43"
#define SL_WG_P11  "%44,%45,%46,%47"
#define SL_WG_P12  "%48,%49,%50,%51"
#define SL_WG_P13  "%52,%53,%54,%55"
#define SL_WG_P14  "%56,%57,%58,%59"
#define SL_WG_P15  "%60,%61,%62,%63"
#define SL_WG_P16  "%64,%65,%66,%67"
#define SL_WG_P17  "%68,%69,%70,%71"
#define SL_WG_P18  "%72,%73,%74,%75"
#define SL_WG_P19  "%76,%77,%78,%79"
#define SL_WG_P20  "%80,%81,%82,%83"
#define SL_WG_P21  "%84,%85,%86,%87"
#define SL_WG_P22  "%88,%89,%90,%91"
#define SL_WG_P23  "%92,%93,%94,%95"
#define SL_WG_P24  "%96,%97,%98,%99"
#define SL_WG_P25  "%100,%101,%102,%103"
#define SL_WG_P26  "%104,%105,%106,%107"
#define SL_WG_P27  "%108,%109,%110,%111"
#define SL_WG_P28  "%112,%113,%114,%115"
#define SL_WG_P29  "%116,%117,%118,%119"
#define SL_WG_P30  "%120,%121,%122,%123"
#define SL_WG_P31  "%124,%125,%126,%127"
#define SL_WG_D(i) "+f"(d[4 * i]), "+f"(d[4 * i + 1]), "+f"(d[4 * i + 2]), "+f"(d[4 * i + 3])
#define SL_WG_PRODUCT(n, text, a_, b_, more_, ...)                                                 \
    SL_DEV void sl_wgmma_##n(float *d, uint64_t a, uint64_t b, uint32_t more) {                    \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" more_ ", 0;\n"                           \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" text "}, "       \
                     "%" a_ ", %" b_ ", p, 1, 1, 0, 0;\n}"                                         \
                     : __VA_ARGS__                                                                 \
                     : "l"(a), "l"(b), "r"(more));                                                 \
    }
SL_WG_PRODUCT(8, SL_WG_P0, "4", "5", "6", SL_WG_D(0))
SL_WG_PRODUCT(16, SL_WG_P0 "," SL_WG_P1, "8", "9", "10", SL_WG_D(0), SL_WG_D(1))
SL_WG_PRODUCT(24, SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2, "12", "13", "14", SL_WG_D(0), SL_WG_D(1),
              SL_WG_D(2))
SL_WG_PRODUCT(32, SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3, "16", "17", "18", SL_WG_D(0),
              SL_WG_D(1), SL_WG_D(2), SL_WG_D(3))
SL_WG_PRODUCT(40, SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4, "20", "21", "22",
              SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4))
SL_WG_PRODUCT(48, SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5, "24",
              "25", "26", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4), SL_WG_D(5))
SL_WG_PRODUCT(56,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5
                       "," SL_WG_P6,
              "28", "29", "30", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6))
SL_WG_PRODUCT(64,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                       "," SL_WG_P7,
              "32", "33", "34", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6), SL_WG_D(7))
SL_WG_PRODUCT(72,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                       "," SL_WG_P7 "," SL_WG_P8,
              "36", "37", "38", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6), SL_WG_D(7), SL_WG_D(8))
SL_WG_PRODUCT(80,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                       "," SL_WG_P7 "," SL_WG_P8 "," SL_WG_P9,
              "40", "41", "42", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6), SL_WG_D(7), SL_WG_D(8), SL_WG_D(9))
SL_WG_PRODUCT(88,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                       "," SL_WG_P7 "," SL_WG_P8 "," SL_WG_P9 "," SL_WG_P10,
              "44", "45", "46", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6), SL_WG_D(7), SL_WG_D(8), SL_WG_D(9), SL_WG_D(10))
SL_WG_PRODUCT(96,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                       "," SL_WG_P7 "," SL_WG_P8 "," SL_WG_P9 "," SL_WG_P10 "," SL_WG_P11,
              "48", "49", "50", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6), SL_WG_D(7), SL_WG_D(8), SL_WG_D(9), SL_WG_D(10), SL_WG_D(11))
SL_WG_PRODUCT(104,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                       "," SL_WG_P7 "," SL_WG_P8 "," SL_WG_P9 "," SL_WG_P10 "," SL_WG_P11
                       "," SL_WG_P12,
              "52", "53", "54", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6), SL_WG_D(7), SL_WG_D(8), SL_WG_D(9), SL_WG_D(10), SL_WG_D(11),
              SL_WG_D(12))
SL_WG_PRODUCT(112,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                       "," SL_WG_P7 "," SL_WG_P8 "," SL_WG_P9 "," SL_WG_P10 "," SL_WG_P11
                       "," SL_WG_P12 "," SL_WG_P13,
              "56", "57", "58", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6), SL_WG_D(7), SL_WG_D(8), SL_WG_D(9), SL_WG_D(10), SL_WG_D(11),
              SL_WG_D(12), SL_WG_D(13))
SL_WG_PRODUCT(120,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                       "," SL_WG_P7 "," SL_WG_P8 "," SL_WG_P9 "," SL_WG_P10 "," SL_WG_P11
                       "," SL_WG_P12 "," SL_WG_P13 "," SL_WG_P14,
              "60", "61", "62", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6), SL_WG_D(7), SL_WG_D(8), SL_WG_D(9), SL_WG_D(10), SL_WG_D(11),
              SL_WG_D(12), SL_WG_D(13), SL_WG_D(14))
SL_WG_PRODUCT(128,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                       "," SL_WG_P7 "," SL_WG_P8 "," SL_WG_P9 "," SL_WG_P10 "," SL_WG_P11
                       "," SL_WG_P12 "," SL_WG_P13 "," SL_WG_P14 "," SL_WG_P15,
              "64", "65", "66", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6), SL_WG_D(7), SL_WG_D(8), SL_WG_D(9), SL_WG_D(10), SL_WG_D(11),
              SL_WG_D(12), SL_WG_D(13), SL_WG_D(14), SL_WG_D(15))
SL_WG_PRODUCT(136,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                       "," SL_WG_P7 "," SL_WG_P8 "," SL_WG_P9 "," SL_WG_P10 "," SL_WG_P11
                       "," SL_WG_P12 "," SL_WG_P13 "," SL_WG_P14 "," SL_WG_P15 "," SL_WG_P16,
              "68", "69", "70", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6), SL_WG_D(7), SL_WG_D(8), SL_WG_D(9), SL_WG_D(10), SL_WG_D(11),
              SL_WG_D(12), SL_WG_D(13), SL_WG_D(14), SL_WG_D(15), SL_WG_D(16))
SL_WG_PRODUCT(144,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                       "," SL_WG_P7 "," SL_WG_P8 "," SL_WG_P9 "," SL_WG_P10 "," SL_WG_P11
                       "," SL_WG_P12 "," SL_WG_P13 "," SL_WG_P14 "," SL_WG_P15 "," SL_WG_P16
                       "," SL_WG_P17,
              "72", "73", "74", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6), SL_WG_D(7), SL_WG_D(8), SL_WG_D(9), SL_WG_D(10), SL_WG_D(11),
              SL_WG_D(12), SL_WG_D(13), SL_WG_D(14), SL_WG_D(15), SL_WG_D(16), SL_WG_D(17))
SL_WG_PRODUCT(152,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                       "," SL_WG_P7 "," SL_WG_P8 "," SL_WG_P9 "," SL_WG_P10 "," SL_WG_P11
                       "," SL_WG_P12 "," SL_WG_P13 "," SL_WG_P14 "," SL_WG_P15 "," SL_WG_P16
                       "," SL_WG_P17 "," SL_WG_P18,
              "76", "77", "78", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6), SL_WG_D(7), SL_WG_D(8), SL_WG_D(9), SL_WG_D(10), SL_WG_D(11),
              SL_WG_D(12), SL_WG_D(13), SL_WG_D(14), SL_WG_D(15), SL_WG_D(16), SL_WG_D(17),
              SL_WG_D(18))
SL_WG_PRODUCT(160,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                       "," SL_WG_P7 "," SL_WG_P8 "," SL_WG_P9 "," SL_WG_P10 "," SL_WG_P11
                       "," SL_WG_P12 "," SL_WG_P13 "," SL_WG_P14 "," SL_WG_P15 "," SL_WG_P16
                       "," SL_WG_P17 "," SL_WG_P18 "," SL_WG_P19,
              "80", "81", "82", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6), SL_WG_D(7), SL_WG_D(8), SL_WG_D(9), SL_WG_D(10), SL_WG_D(11),
              SL_WG_D(12), SL_WG_D(13), SL_WG_D(14), SL_WG_D(15), SL_WG_D(16), SL_WG_D(17),
              SL_WG_D(18), SL_WG_D(19))
SL_WG_PRODUCT(192,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                       "," SL_WG_P7 "," SL_WG_P8 "," SL_WG_P9 "," SL_WG_P10 "," SL_WG_P11
                       "," SL_WG_P12 "," SL_WG_P13 "," SL_WG_P14 "," SL_WG_P15 "," SL_WG_P16
                       "," SL_WG_P17 "," SL_WG_P18 "," SL_WG_P19 "," SL_WG_P20 "," SL_WG_P21
                       "," SL_WG_P22 "," SL_WG_P23,
              "96", "97", "98", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6), SL_WG_D(7), SL_WG_D(8), SL_WG_D(9), SL_WG_D(10), SL_WG_D(11),
              SL_WG_D(12), SL_WG_D(13), SL_WG_D(14), SL_WG_D(15), SL_WG_D(16), SL_WG_D(17),
              SL_WG_D(18), SL_WG_D(19), SL_WG_D(20), SL_WG_D(21), SL_WG_D(22), SL_WG_D(23))
SL_WG_PRODUCT(224,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                       "," SL_WG_P7 "," SL_WG_P8 "," SL_WG_P9 "," SL_WG_P10 "," SL_WG_P11
                       "," SL_WG_P12 "," SL_WG_P13 "," SL_WG_P14 "," SL_WG_P15 "," SL_WG_P16
                       "," SL_WG_P17 "," SL_WG_P18 "," SL_WG_P19 "," SL_WG_P20 "," SL_WG_P21
                       "," SL_WG_P22 "," SL_WG_P23 "," SL_WG_P24 "," SL_WG_P25 "," SL_WG_P26
                       "," SL_WG_P27,
              "112", "113", "114", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6), SL_WG_D(7), SL_WG_D(8), SL_WG_D(9), SL_WG_D(10), SL_WG_D(11),
              SL_WG_D(12), SL_WG_D(13), SL_WG_D(14), SL_WG_D(15), SL_WG_D(16), SL_WG_D(17),
              SL_WG_D(18), SL_WG_D(19), SL_WG_D(20), SL_WG_D(21), SL_WG_D(22), SL_WG_D(23),
              SL_WG_D(24), SL_WG_D(25), SL_WG_D(26), SL_WG_D(27))
SL_WG_PRODUCT(256,
              SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                       "," SL_WG_P7 "," SL_WG_P8 "," SL_WG_P9 "," SL_WG_P10 "," SL_WG_P11
                       "," SL_WG_P12 "," SL_WG_P13 "," SL_WG_P14 "," SL_WG_P15 "," SL_WG_P16
                       "," SL_WG_P17 "," SL_WG_P18 "," SL_WG_P19 "," SL_WG_P20 "," SL_WG_P21
                       "," SL_WG_P22 "," SL_WG_P23 "," SL_WG_P24 "," SL_WG_P25 "," SL_WG_P26
                       "," SL_WG_P27 "," SL_WG_P28 "," SL_WG_P29 "," SL_WG_P30 "," SL_WG_P31,
              "128", "129", "130", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3), SL_WG_D(4),
              SL_WG_D(5), SL_WG_D(6), SL_WG_D(7), SL_WG_D(8), SL_WG_D(9), SL_WG_D(10), SL_WG_D(11),
              SL_WG_D(12), SL_WG_D(13), SL_WG_D(14), SL_WG_D(15), SL_WG_D(16), SL_WG_D(17),
              SL_WG_D(18), SL_WG_D(19), SL_WG_D(20), SL_WG_D(21), SL_WG_D(22), SL_WG_D(23),
              SL_WG_D(24), SL_WG_D(25), SL_WG_D(26), SL_WG_D(27), SL_WG_D(28), SL_WG_D(29),
              SL_WG_D(30), SL_WG_D(31))

#define SL_WG_REGS(n, text, a_, b_, more_, ...)                                                    \
    SL_DEV void sl_wgmma_regs_##n(float *d, const uint32_t a[4], uint64_t b, uint32_t more) {      \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" more_ ", 0;\n"                           \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" text "}, {" a_   \
                     "}, %" b_ ", p, 1, 1, 0;\n}"                                                  \
                     : __VA_ARGS__                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));             \
    }
SL_WG_REGS(64,
           SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                    "," SL_WG_P7,
           "%32,%33,%34,%35", "36", "37", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3),
           SL_WG_D(4), SL_WG_D(5), SL_WG_D(6), SL_WG_D(7))
SL_WG_REGS(128,
           SL_WG_P0 "," SL_WG_P1 "," SL_WG_P2 "," SL_WG_P3 "," SL_WG_P4 "," SL_WG_P5 "," SL_WG_P6
                    "," SL_WG_P7 "," SL_WG_P8 "," SL_WG_P9 "," SL_WG_P10 "," SL_WG_P11 "," SL_WG_P12
                    "," SL_WG_P13 "," SL_WG_P14 "," SL_WG_P15,
           "%64,%65,%66,%67", "68", "69", SL_WG_D(0), SL_WG_D(1), SL_WG_D(2), SL_WG_D(3),
           SL_WG_D(4), SL_WG_D(5), SL_WG_D(6), SL_WG_D(7), SL_WG_D(8), SL_WG_D(9), SL_WG_D(10),
           SL_WG_D(11), SL_WG_D(12), SL_WG_D(13), SL_WG_D(14), SL_WG_D(15))

SL_DEV void sl_wgmma_regs(const uint32_t n, float *d, const uint32_t a[4], uint64_t b,
                          uint32_t more) {
    if (n == 64)
        sl_wgmma_regs_64(d, a, b, more);
    else
        sl_wgmma_regs_128(d, a, b, more);
}

SL_DEV void sl_wgmma_settle(float *d, const uint32_t values) {
    SL_UNROLL for (uint32_t i = 0; i < values; i++) asm volatile("" : "+f"(d[i])::"memory");
}

SL_DEV void sl_wgmma(const uint32_t n, float *d, uint64_t a, uint64_t b, uint32_t more) {
    switch (n) {
#define SL_WG_CASE(n)                                                                              \
    case n:                                                                                        \
        sl_wgmma_##n(d, a, b, more);                                                               \
        break;
        SL_WGMMA_WIDTHS(SL_WG_CASE)
        SL_WGMMA_WIDER(SL_WG_CASE)
#undef SL_WG_CASE
    }
}

#else /* other GPUs have kernels that use none of this */
#define sl_wgmma_begin()                sl_trap()
#define sl_wgmma_commit()               ((void)0)
#define sl_wgmma_wait(n)                ((void)0)
#define sl_wgmma(n, d, a, b, more)      ((void)(d), (void)(a), (void)(b), (void)(more))
#define sl_wgmma_regs(n, d, a, b, more) ((void)(d), (void)(a), (void)(b), (void)(more))
#define sl_wgmma_settle(d, values)      ((void)(d))
#endif

#else

/* The address itself. */
SL_DEV uint64_t sl_wgmma_tile(const void *shared) {
    if ((uintptr_t)shared % 1024) sl_emu_die("a tile at %p, which is not aligned", shared);
    return (uint64_t)(uintptr_t)shared / 16;
}

/* Value k of row `row` of the tile, of which the lower bits of the address tell the first k. */
SL_DEV float sl_emu_tile_value(uint64_t tile, uint32_t row, uint32_t k) {
    const uint8_t *base = (const uint8_t *)(uintptr_t)(tile / 64 * 1024);
    const uint32_t at = (uint32_t)(tile % 64) * 16 + k * 2;
    const uint32_t piece = at / 16 ^ (row & 7);
    uint16_t b;
    memcpy(&b, base + row * 128 + piece * 16 + at % 16, 2);
    const uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

SL_DEV void sl_wgmma(const uint32_t n, float *d, uint64_t a, uint64_t b, uint32_t more) {
    const uint32_t row = sl_warp() % 4 * 16 + sl_lane() / 4, column = sl_lane() % 4 * 2;
    for (uint32_t i = 0; i < n / 2; i++) {
        const uint32_t r = row + i / 2 % 2 * 8, c = i / 4 * 8 + column + i % 2;
        float sum = more ? d[i] : 0.0f;
        for (uint32_t k = 0; k < 16; k++)
            sum += sl_emu_tile_value(a, r, k) * sl_emu_tile_value(b, c, k);
        d[i] = sum;
    }
}

SL_DEV void sl_wgmma_regs(const uint32_t n, float *d, const uint32_t a[4], uint64_t b,
                          uint32_t more) {
    float row[2][16];
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t t = 0; t < 4; t++) {
            const uint32_t v = __shfl_sync(SL_ALL, a[i], sl_lane() / 4 * 4 + t);
            for (uint32_t j = 0; j < 2; j++) {
                const uint32_t u = v >> 16 * j << 16;
                memcpy(&row[i % 2][i / 2 * 8 + 2 * t + j], &u, 4);
            }
        }
    }
    for (uint32_t i = 0; i < n / 2; i++) {
        const uint32_t c = i / 4 * 8 + sl_lane() % 4 * 2 + i % 2;
        float sum = more ? d[i] : 0.0f;
        for (uint32_t k = 0; k < 16; k++) sum += row[i / 2 % 2][k] * sl_emu_tile_value(b, c, k);
        d[i] = sum;
    }
}
#define sl_wgmma_settle(d, values) ((void)(d))
#define sl_wgmma_begin()           ((void)0)
#define sl_wgmma_commit()          ((void)0)
#define sl_wgmma_wait(n)           ((void)0)

#endif
#endif
