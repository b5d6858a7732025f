/* Products in BF16 that ask for weights long before, and the table of these and others. It wants
 * the instruction for pairs of BF16, which the processors that gain by it have. */
#include "kernel/avx512far/avx512far.h"
#include "kernel/cpu.h"

#include "kernel/avx512/int8.h"
#include "kernel/avx512bf16/tile.h"

static void int8_tile(const sl_act_tile *t) {
    sl_int8_tile_by(t, sl_avx512far_int8_tile_32, sl_avx512far_int8_tile_256);
}

const sl_kernels sl_kernels_avx512far = {.name = "avx512far",
                                         .supported = sl_cpu_has_avx512_bf16,
                                         .by_merit = true,
                                         .variant = true,
                                         .gemm_tile = SL_EVERY_PRODUCT(sl_avx512far_gemm_tile),
                                         .int8_tile = SL_EVERY_INT8(int8_tile),
                                         .bf16_tile = SL_EVERY_AMOUNT(bf16_tile)};
