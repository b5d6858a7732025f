/* A fixed pool of kernel threads that share one parallel loop at a time.
 * Threads poll briefly for work, then sleep on a futex: a pool never burns a core it does not use.
 * Thread: sl_pool_run by the pool's owner only; the owner takes part in the work. */
#ifndef SL_BASE_POOL_H
#define SL_BASE_POOL_H

#include "base/status.h"

typedef struct sl_pool sl_pool;

/* Called for every chunk [begin,end) of 0..n-1, by any thread of the pool. */
typedef void (*sl_pool_fn)(void *ctx, size_t begin, size_t end);

/* n_threads counts the owner; 1 makes no thread at all. */
sl_status sl_pool_create(uint32_t n_threads, sl_pool **out, sl_err *err) SL_MUST_CHECK;
void sl_pool_free(sl_pool *p);
uint32_t sl_pool_threads(const sl_pool *p);

/* Runs fn over 0..n-1 in chunks of `grain`; returns when all are done. With enough chunks each
 * thread starts with a share of its own, in order, and then takes what others have not begun. Which
 * thread runs which chunk may differ from run to run: results must not depend on it.
 * Between its chunks the owner calls the tick (below). */
void sl_pool_run(sl_pool *p, size_t n, size_t grain, sl_pool_fn fn, void *ctx);

/* tick(ctx) is called by the owner thread between chunks, at most every interval_us (how a worker
 * keeps its fabric and heartbeats alive under long kernels). NULL turns it off. */
void sl_pool_set_tick(sl_pool *p, void (*tick)(void *ctx), void *ctx, uint32_t interval_us);

#endif
