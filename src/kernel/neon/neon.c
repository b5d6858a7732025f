/* NEON of every AArch64 CPU. */
#include "kernel/simd/neon.h"
#include "kernel/simd/table.h"

#include "kernel/simd/int8.h"

static bool always(void) {
    return true;
}

const sl_kernels sl_kernels_neon = {.name = "neon",
                                    .supported = always,
                                    SIMD_TABLE,
                                    .quantise = SL_EVERY_KIND(sl_ref_quantise),
                                    .rms_quantise = SL_EVERY_KIND(sl_ref_rms_quantise),
                                    .int8_tile = SL_EVERY_PRODUCT(simd_int8_tile)};
