/* Integer products with Q8_0, Q4_0 and MXFP4. */
#include "kernel/avx512/tile_32.h"

void sl_avx512_int8_tile_32(const sl_act_tile *t) {
    int8_tile_32(t);
}
