/* Integer products with Q4_K, Q5_K and Q6_K. */
#include "kernel/avx512vnni/avx512vnni.h"

#include "kernel/avx512vnni/tile_256.h"

void sl_avx512vnni_int8_tile_256(const sl_act_tile *t) {
    int8_tile_256(t);
}
