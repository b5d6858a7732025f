/* Time, injected so that the engine also runs on a virtual clock. Thread: any. */
#ifndef SL_BASE_CLOCK_H
#define SL_BASE_CLOCK_H

#include <stdint.h>

/* Monotonic microseconds. now_us(ctx) never goes back. */
typedef struct sl_clock {
    uint64_t (*now_us)(void *ctx);
    void *ctx;
} sl_clock;

static inline uint64_t sl_clock_now_us(const sl_clock *c) {
    return c->now_us(c->ctx);
}

/* CLOCK_MONOTONIC, the same origin for all processes of one machine. */
sl_clock sl_clock_real(void);
uint64_t sl_now_ns(void);
/* A number per running kernel: processes with the same one share their monotonic clock. 0: unknown.
 */
uint64_t sl_clock_id(void);
/* CPU time used by the calling thread so far. */
uint64_t sl_thread_cpu_ns(void);
/* The same of all threads of this process. */
uint64_t sl_process_cpu_ns(void);
/* Seconds since 1970, for API objects only. */
uint64_t sl_wall_s(void);

#endif
