/* Words to a service manager: datagrams to its socket. */
#include "base/notify.h"

#include "base/clock.h"
#include "base/options.h"
#include "base/status.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PER_LIMIT 3 /* words of being alive within the time allowed */

static int out = -1; /* connected to the manager; -1: there is none */
static uint64_t every_ns;
static _Atomic uint64_t next_ns;

static void say(const char *text) {
    if (out >= 0) (void)send(out, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void sl_notify_open(void) {
    const char *path = sl_options_notify_socket();
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const size_t n = path ? strlen(path) : 0;
    if ((n && path[0] != '/' && path[0] != '@') || n < 2 || n >= sizeof to.sun_path) return;
    memcpy(to.sun_path, path, n);
    if (path[0] == '@') to.sun_path[0] = 0; /* a name without a file */
    out = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    if (out >= 0 && connect(out, (const struct sockaddr *)&to, len) != 0) {
        close(out);
        out = -1;
    }
    every_ns = out >= 0 ? sl_options_watchdog_us() * 1000 / PER_LIMIT : 0;
}

void sl_notify_ready(const char *status) {
    char text[512];
    int n = snprintf(text, sizeof text, "READY=1\nSTATUS=%.400s", status);
    for (char *c = text + strlen("READY=1\n"); c < text + n; c++) /* one line, whatever is named */
        if ((unsigned char)*c < ' ') *c = ' ';
    say(text);
}

void sl_notify_stopping(void) {
    say("STOPPING=1\nSTATUS=running requests are ended\n");
}

void sl_notify_alive(void) {
    if (!every_ns) return;
    const uint64_t now = sl_now_ns();
    uint64_t due = atomic_load_explicit(&next_ns, memory_order_relaxed);
    if (now >= due && atomic_compare_exchange_strong(&next_ns, &due, now + every_ns))
        say("WATCHDOG=1\n");
}
