#include "base/trace.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BUFFER 65536
#define LINE   256

struct sl_trace {
    pthread_mutex_t lock;
    int fd;
    size_t used;
    char buf[BUFFER];
};

static void flush_locked(sl_trace *t) {
    size_t at = 0;
    while (at < t->used) {
        ssize_t n = write(t->fd, t->buf + at, t->used - at);
        if (n <= 0) break; /* a full disk loses trace lines, never the run */
        at += (size_t)n;
    }
    t->used = 0;
}

sl_status sl_trace_open(const char *path, int create, sl_trace **out, sl_err *err) {
    int flags = O_WRONLY | O_APPEND | O_CLOEXEC | (create ? O_CREAT | O_TRUNC : 0);
    int fd = open(path, flags, 0644);
    if (fd < 0) return sl_fail(err, SL_ERR_IO, "trace %s: %s", path, strerror(errno));
    sl_trace *t = sl_alloc(1, sizeof *t);
    if (!t) {
        close(fd);
        return sl_fail(err, SL_ERR_NOMEM, "trace buffer");
    }
    t->fd = fd;
    pthread_mutex_init(&t->lock, NULL);
    if (create) {
        memcpy(t->buf, "[\n", 2);
        t->used = 2;
        flush_locked(t);
    }
    *out = t;
    return SL_OK;
}

static void SL_PRINTF(2, 3) append(sl_trace *t, const char *fmt, ...) {
    pthread_mutex_lock(&t->lock);
    if (BUFFER - t->used < LINE) flush_locked(t);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->buf + t->used, LINE, fmt, ap);
    va_end(ap);
    if (n > 0 && n < LINE) t->used += (size_t)n; /* an overlong line is dropped whole */
    pthread_mutex_unlock(&t->lock);
}

void sl_trace_close(sl_trace *t, int finish) {
    if (!t) return;
    if (finish) append(t, "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"end\"}\n]\n");
    flush_locked(t);
    close(t->fd);
    pthread_mutex_destroy(&t->lock);
    sl_free(t);
}

void sl_trace_name(sl_trace *t, uint32_t pid, const char *name) {
    if (!t) return;
    append(t,
           "{\"ph\":\"M\",\"pid\":%" PRIu32
           ",\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"%s\"}},\n",
           pid, name);
}

void sl_trace_span(sl_trace *t, uint32_t pid, uint32_t tid, const char *name, uint64_t begin_ns,
                   uint64_t end_ns, int64_t layer, int64_t rows) {
    if (!t) return;
    char args[80] = "";
    if (layer >= 0 && rows >= 0)
        snprintf(args, sizeof args, ",\"args\":{\"layer\":%" PRId64 ",\"rows\":%" PRId64 "}", layer,
                 rows);
    else if (rows >= 0)
        snprintf(args, sizeof args, ",\"args\":{\"rows\":%" PRId64 "}", rows);
    append(t,
           "{\"ph\":\"X\",\"pid\":%" PRIu32 ",\"tid\":%" PRIu32
           ",\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f%s},\n",
           pid, tid, name, (double)begin_ns / 1e3, (double)(end_ns - begin_ns) / 1e3, args);
}
