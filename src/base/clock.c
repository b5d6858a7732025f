#include "base/clock.h"

#include <time.h>

static uint64_t read_ns(clockid_t id) {
    struct timespec ts;
    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t sl_now_ns(void) {
    return read_ns(CLOCK_MONOTONIC);
}
uint64_t sl_thread_cpu_ns(void) {
    return read_ns(CLOCK_THREAD_CPUTIME_ID);
}
uint64_t sl_wall_s(void) {
    return read_ns(CLOCK_REALTIME) / 1000000000u;
}

static uint64_t real_now_us(void *ctx) {
    (void)ctx;
    return sl_now_ns() / 1000u;
}

sl_clock sl_clock_real(void) {
    return (sl_clock){.now_us = real_now_us};
}
