/* Products of BF16 in parts for processors that have AVX2. */
#include "kernel/avx2/avx2.h"
#include "kernel/simd/avx2.h"

#include "kernel/simd/parts.h"

void sl_avx2_parts_tile(const sl_act_tile *t) {
    simd_parts_tile(t);
}
