/* Integer products by VNNI, of weights in rows and in strips, and loops over vectors, which need no
 * VNNI: processors that have AVX-512 without it lower their clock for wide instructions. Products
 * of many rows gain more by them than that, single loops less: a whole step of few rows got slower.
 * The other slots are those of AVX-512. */
#include "kernel/avx512vnni/avx512vnni.h"

#include "kernel/avx512/int8.h"
#include "kernel/cpu.h"
#include "kernel/simd/avx512.h"
#include "kernel/simd/vec.h"

#include "kernel/simd/scores.h"

static void int8_tile(const sl_act_tile *t) {
    sl_int8_tile_by(t, sl_avx512vnni_int8_tile_32, sl_avx512vnni_int8_tile_256);
}

const sl_kernels sl_kernels_avx512vnni = {
    .name = "avx512vnni",
    .supported = sl_cpu_has_avx512_vnni,
    .by_merit = true,
    SL_PLAIN_LOOPS,
    SIMD_VECTORS,
    .softmax = simd_softmax,
    .int8_tile = SL_EVERY_INT8(int8_tile),
    .strip_tile = SL_EVERY_TYPE(sl_avx512vnni_strip_tile),
};
