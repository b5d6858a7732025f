/* AVX-512 F, BW, DQ, VL and VNNI. Its bf16 products round in another order than docs/numbers.md
 * says, so they are not used. */
#include "kernel/cpu.h"
#include "kernel/simd/avx512.h"
#include "kernel/simd/table.h"

const sl_kernels sl_kernels_avx512 = {
    .name = "avx512", .supported = sl_cpu_has_avx512, .by_merit = true, SIMD_TABLE};
