/* Products of integers by NEON's instruction for dot products of bytes, and nothing else: the
 * table's other slots are those of NEON. */
#include "kernel/cpu.h"
#include "kernel/simd/neon.h"

#include "kernel/simd/int8.h"

const sl_kernels sl_kernels_neondot = {.name = "neondot",
                                       .supported = sl_cpu_has_dotprod,
                                       .by_merit = true,
                                       .int8_tile = SL_EVERY_INT8(simd_int8_tile)};
