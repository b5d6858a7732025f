/* The clocks; tests put a virtual one in their place. */
#include "base/clock.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

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
uint64_t sl_process_cpu_ns(void) {
    return read_ns(CLOCK_PROCESS_CPUTIME_ID);
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

static uint64_t read_clock_id(void) {
    uint8_t text[64];
    uint64_t hash = 1469598103934665603ull; /* FNV-1a */
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text) : 0;
    if (fd >= 0) close(fd);
    for (ssize_t i = 0; i < n; i++) hash = (hash ^ text[i]) * 1099511628211ull;
    return n > 0 ? hash : 0;
}

/* Read once: it is asked for inside measurements of round trips. */
uint64_t sl_clock_id(void) {
    static _Atomic uint64_t known;
    uint64_t id = atomic_load_explicit(&known, memory_order_relaxed);
    if (id) return id;
    id = read_clock_id();
    atomic_store_explicit(&known, id, memory_order_relaxed);
    return id;
}
