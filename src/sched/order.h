/* In which order a worker sends what it has for several others at once. Engine and simulator ask
 * here. Pure. Thread: any. */
#ifndef SL_SCHED_ORDER_H
#define SL_SCHED_ORDER_H

#include <stdint.h>

/* Who of n gets the k-th message. Each worker begins with the one behind it: if all began with the
 * first, its port would have to take in all of theirs while the ports of the others wait. */
static inline uint32_t sl_order_kth(uint32_t worker, uint32_t n, uint32_t k) {
    return (uint32_t)(((uint64_t)worker + 1 + k) % n);
}

#endif
