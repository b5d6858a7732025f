/* Integer products with Q8_0, Q4_0 and MXFP4. */
#include "kernel/avx512vnni/avx512vnni.h"

#include "kernel/avx512vnni/tile_32.h"

void sl_avx512vnni_int8_tile_32(const sl_act_tile *t) {
    int8_tile_32(t);
}
