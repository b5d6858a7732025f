/* Products in BF16 that ask for weights long before, and the table. It wants the instruction for
 * pairs of BF16, which the processors that gain by it have. */
#include "kernel/avx512far/avx512far.h"
#include "kernel/cpu.h"

#include "kernel/avx512bf16/tile.h"

const sl_kernels sl_kernels_avx512far = {.name = "avx512far",
                                         .supported = sl_cpu_has_avx512_bf16,
                                         .by_merit = true,
                                         .variant = true,
                                         .gemm_tile = SL_EVERY_PRODUCT(sl_avx512far_gemm_tile),
                                         .bf16_tile = SL_EVERY_AMOUNT(bf16_tile)};
