/* Integer products with Q8_0, Q4_0 and MXFP4 that ask for weights long before. */
#include "kernel/avx512far/avx512far.h"

#include "kernel/avx512vnni/tile_32.h"

void sl_avx512far_int8_tile_32(const sl_act_tile *t) {
    int8_tile_32(t);
}
