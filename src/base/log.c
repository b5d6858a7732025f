/* Lines of the log, plain or JSON: one write a line, control characters escaped. */
#include "base/log.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Atomic int max_level = SL_LOG_WARN;
static _Atomic bool as_json;
static char who_text[32];
static const char *const level_names[] = {"error", "warn", "info", "debug"};

void sl_log_set_level(sl_log_level level) {
    max_level = (int)level;
}

sl_status sl_log_level_parse(const char *text, sl_log_level *out) {
    for (size_t i = 0; i < SL_LEN(level_names); i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *out = (sl_log_level)i;
            return SL_OK;
        }
    }
    return SL_ERR_ARG;
}

void sl_log_set_json(bool json) {
    as_json = json;
}

sl_status sl_log_format_parse(const char *text, bool *json) {
    *json = strcmp(text, "json") == 0;
    return *json || strcmp(text, "text") == 0 ? SL_OK : SL_ERR_ARG;
}

void sl_log_set_who(const char *who) {
    snprintf(who_text, sizeof who_text, "%s", who);
}

#define TEXT_BYTES 900u /* of a message */

/* Room for twice the text is the caller's to have. */
static size_t put_escaped(char *out, const char *text) {
    size_t n = 0;
    const char *end = text + strlen(text);
    for (const char *s = text; s < end;) {
        size_t len = sl_utf8_sequence(s, (size_t)(end - s));
        if (*s == '"' || *s == '\\') out[n++] = '\\';
        if (len == 0) out[n++] = '?';
        memcpy(out + n, s, len);
        n += len;
        s += len ? len : 1;
    }
    return n;
}

static size_t put_field(char *out, const char *name, const char *text) {
    size_t n = (size_t)sprintf(out, ",\"%s\":\"", name);
    n += put_escaped(out + n, text);
    out[n++] = '"';
    return n;
}

static void clean(char *text) {
    for (char *c = text; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    }
}

static _Atomic bool erases;

void sl_log_set_erase(bool erase) {
    atomic_store_explicit(&erases, erase, memory_order_relaxed);
}

static void write_line(sl_log_level level, const char *module, const char *id, const char *text) {
    char line[2 * TEXT_BYTES + 512], time[32], request[72];
    size_t n = 0;
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(request, sizeof request, "%s", id ? id : "");
    clean(request);
    if (as_json) {
        n = (size_t)sprintf(line, "{\"ts\":\"%s.%03ldZ\",\"level\":\"%s\"", time,
                            ts.tv_nsec / 1000000, level_names[level]);
        if (who_text[0]) n += put_field(line + n, "who", who_text);
        n += put_field(line + n, "module", module);
        if (request[0]) n += put_field(line + n, "request", request);
        n += put_field(line + n, "msg", text);
        line[n++] = '}';
    } else {
        n = (size_t)sprintf(line, "%s.%03ld %s%s%s %s: %s%s%s", time, ts.tv_nsec / 1000000,
                            who_text, who_text[0] ? " " : "", level_names[level], module, request,
                            request[0] ? ": " : "", text);
    }
    line[n++] = '\n';
    if (atomic_load_explicit(&erases, memory_order_relaxed)) {
        static const char erase[] = "\r\033[K";
        memmove(line + sizeof erase - 1, line, n);
        memcpy(line, erase, sizeof erase - 1);
        n += sizeof erase - 1;
    }
    ssize_t wrote = write(STDERR_FILENO, line, n);
    (void)wrote; /* nowhere left to report a failing stderr */
}

static void SL_PRINTF(4, 0) write_args(sl_log_level level, const char *module, const char *id,
                                       const char *fmt, va_list ap) {
    char text[TEXT_BYTES];
    if ((int)level > max_level) return;
    vsnprintf(text, sizeof text, fmt, ap);
    clean(text);
    write_line(level, module, id, text);
}

void sl_log(sl_log_level level, const char *module, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    write_args(level, module, NULL, fmt, ap);
    va_end(ap);
}

void sl_log_request(sl_log_level level, const char *module, const char *id, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    write_args(level, module, id, fmt, ap);
    va_end(ap);
}
