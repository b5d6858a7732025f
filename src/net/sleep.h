/* How a thread of a transport sleeps on descriptors, and is woken by an eventfd. */
#ifndef SL_NET_SLEEP_H
#define SL_NET_SLEEP_H

#include "base/clock.h"
#include "base/status.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#define SL_SLEEP_FDS 3u

/* Until one of n <= SL_SLEEP_FDS descriptors (-1: none) can be read, at most until then; 0: does
 * not sleep. Whether one can be, or a signal came. Thread: owner. */
static inline bool sl_sleep_on(const int *fd, size_t n, uint64_t until_ns) {
    struct pollfd fds[SL_SLEEP_FDS];
    const uint64_t now_ns = until_ns ? sl_now_ns() : 0;
    const uint64_t ns = until_ns > now_ns ? until_ns - now_ns : 0;
    const struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u),
                                .tv_nsec = (long)(ns % 1000000000u)};
    for (size_t i = 0; i < n; i++) fds[i] = (struct pollfd){.fd = fd[i], .events = POLLIN};
    return ppoll(fds, n, &ts, NULL) != 0;
}

/* Thread: any. */
static inline void sl_sleep_end(int event_fd) {
    const uint64_t one = 1;
    const ssize_t n = write(event_fd, &one, sizeof one);
    SL_ASSERT(n == (ssize_t)sizeof one || errno == EAGAIN);
}

#endif
