/* Counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11). A value is a pure function of
 * (key, counter), so a sampler that continues elsewhere draws the same numbers. Thread: any. */
#ifndef SL_BASE_RNG_H
#define SL_BASE_RNG_H

#include <stdint.h>

typedef struct sl_philox {
    uint32_t v[4];
} sl_philox;

/* Ten rounds over counter (c0..c3) with key (k0,k1). */
sl_philox sl_philox4x32(const uint32_t ctr[4], const uint32_t key[2]);

/* Uniform double in [0,1) with 53 bits, a function of (seed, choice, position) only. */
double sl_rng_uniform(uint64_t seed, uint32_t choice, uint64_t position);

/* Small sequential generator for tests, delays and jitter: splitmix64. */
static inline uint64_t sl_rng_next(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Uniform in [0, n), n > 0; bias below 2^-32 for n < 2^32. */
static inline uint64_t sl_rng_below(uint64_t *state, uint64_t n) {
    return (uint64_t)(((unsigned __int128)sl_rng_next(state) * n) >> 64);
}

#endif
