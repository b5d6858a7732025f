/* What this machine can do at most: reads of memory, f32 and int8 arithmetic from registers. */
#ifndef SL_BENCH_LIMITS_H
#define SL_BENCH_LIMITS_H

#include "base/pool.h"

#include <stdbool.h>

typedef struct sl_limits {
    double read_gbs, read_median_gbs; /* best and median of all tries */
    double fma_gflops;                /* f32, a multiply and an add are two */
    double
        int8_gops; /* of 8 bits, sums in 32 bits in the end: by vpdpbusd or tiles where they are */
} sl_limits;

/* Bytes of weights that no cache of this machine holds: three times its largest one, 192 MB to 1
 * GB.
 */
size_t sl_limits_beyond_caches(void);

/* Of the pool's threads together; `data` is read `tries` times (3 to 64), larger than the caches.
 * cpu_clock: by the owner's CPU time, for a pool of one thread beside other programs. Zeros on
 * processors without AVX2. Thread: the pool's owner. */
sl_limits sl_limits_measure(sl_pool *pool, const uint8_t *data, size_t bytes, uint32_t tries,
                            bool cpu_clock);

#endif
