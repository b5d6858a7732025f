/* Products of integers by the instruction that multiplies two rows of eight bytes by two, and
 * nothing else: the table's other slots are those of NEON. */
#include "kernel/cpu.h"
#include "kernel/simd/neon.h"

#include "kernel/simd/int8.h"

const sl_kernels sl_kernels_neonmm = {.name = "neonmm",
                                      .supported = sl_cpu_has_i8mm,
                                      .by_merit = true,
                                      .int8_tile = SL_EVERY_INT8(simd_int8_tile)};
