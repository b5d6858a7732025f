/* Philox, and uniform numbers that depend on seed and position alone. */
#include "base/rng.h"

static void philox_round(uint32_t c[4], uint32_t k0, uint32_t k1) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c[0];
    uint64_t p1 = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t n0 = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
    uint32_t n2 = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
    c[0] = n0;
    c[1] = (uint32_t)p1;
    c[2] = n2;
    c[3] = (uint32_t)p0;
}

sl_philox sl_philox4x32(const uint32_t ctr[4], const uint32_t key[2]) {
    sl_philox r = {{ctr[0], ctr[1], ctr[2], ctr[3]}};
    uint32_t k0 = key[0], k1 = key[1];
    for (int i = 0; i < 10; i++) {
        philox_round(r.v, k0, k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return r;
}

double sl_rng_uniform(uint64_t seed, uint32_t choice, uint64_t position) {
    const uint32_t ctr[4] = {(uint32_t)position, (uint32_t)(position >> 32), choice, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    sl_philox r = sl_philox4x32(ctr, key);
    uint64_t bits = ((uint64_t)r.v[0] << 32 | r.v[1]) >> 11;
    return (double)bits * 0x1.0p-53;
}
