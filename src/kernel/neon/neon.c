/* NEON of every AArch64 CPU. */
#include "kernel/simd/neon.h"

#define SIMD_SELF sl_kernels_neon /* the table, for what calls several of its entries */
#include "kernel/simd/table.h"

#include "kernel/ref/ref.h"
#include "kernel/simd/int8.h"

static bool always(void) {
    return true;
}

const sl_kernels sl_kernels_neon = {
    .name = "neon",
    .supported = always,
    SIMD_TABLE,
    .quantise = {sl_ref_quantise, sl_ref_quantise, simd_to_bf16_row},
    .rms_quantise = {sl_ref_rms_quantise, sl_ref_rms_quantise, simd_rms_to_bf16_row},
    .int8_tile = SL_EVERY_INT8(simd_int8_tile),
    .strip_tile = SL_EVERY_TYPE(sl_ref_strip_tile)};
