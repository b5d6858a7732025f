/* Integer products with Q4_K, Q5_K and Q6_K that ask for weights long before. */
#include "kernel/avx512far/avx512far.h"

#include "kernel/avx512vnni/tile_256.h"

void sl_avx512far_int8_tile_256(const sl_act_tile *t) {
    int8_tile_256(t);
}
