/* Trace files: reading, figures, picture; and the events that workers send. */
#include "trace/trace_stats.h"
#include "trace/trace_svg.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    static int fd = -1;
    static FILE *nowhere;
    static char path[64];
    sl_err err;
    if (fd < 0) {
        fd = memfd_create("trace", MFD_CLOEXEC);
        nowhere = fopen("/dev/null", "we");
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (len > 65536 || ftruncate(fd, 0) != 0 || pwrite(fd, data, len, 0) != (ssize_t)len) return 0;
    sl_trace_stats s;
    if (sl_trace_stats_read(path, -1, -1, &s, &err) == SL_OK) {
        sl_trace_stats_print(&s, nowhere);
        sl_trace_stats_print_json(&s, nowhere);
        sl_trace_stats_free(&s);
    }
    sl_status st = sl_trace_svg_write(path, -1, -1, nowhere, &err);
    (void)st;
    for (size_t at = 0; at + SL_TRACE_EVENT_BYTES <= len && at < 4096; at += SL_TRACE_EVENT_BYTES) {
        sl_trace_event e;
        st = sl_trace_event_decode((sl_span){data + at, SL_TRACE_EVENT_BYTES}, &e, &err);
    }
    return 0;
}
