/* Products of BF16 in parts for processors that have AVX-512 and no tiles. */
#include "kernel/avx512/int8.h"
#include "kernel/simd/avx512.h"

#define SIMD_TURNS
SL_INLINE void simd_turn_pairs(const uint8_t *const *row, uint32_t (*w)[SL_STRIP]) {
    sl_rows16 s;
    memcpy(s.row, row, sizeof s.row);
    sl_turn_bytes(&s, 0, w);
}

#include "kernel/simd/parts.h"

void sl_avx512_parts_tile(const sl_act_tile *t) {
    simd_parts_tile(t);
}
