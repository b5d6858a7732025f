/* NEON of every AArch64 CPU. */
#include "kernel/simd/neon.h"
#include "kernel/simd/table.h"

static bool always(void) {
    return true;
}

const sl_kernels sl_kernels_neon = {.name = "neon", .supported = always, SIMD_TABLE};
