#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Atomic int max_level = SL_LOG_WARN;
static char who_text[32];
static const char *const level_names[] = {"error", "warn", "info", "debug"};

void sl_log_set_level(sl_log_level level) { max_level = (int)level; }

sl_status sl_log_level_parse(const char *text, sl_log_level *out) {
    for (size_t i = 0; i < SL_LEN(level_names); i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *out = (sl_log_level)i;
            return SL_OK;
        }
    }
    return SL_ERR_ARG;
}

void sl_log_set_who(const char *who) { snprintf(who_text, sizeof who_text, "%s", who); }

static size_t clamp(int n, size_t cap) { return n < 0 ? 0 : SL_MIN((size_t)n, cap); }

void sl_log(sl_log_level level, const char *module, const char *fmt, ...) {
    if ((int)level > max_level) return;
    char line[1024];
    size_t cap = sizeof line - 2, n = 0;
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    n = strftime(line, cap, "%Y-%m-%dT%H:%M:%S", &tm);
    n += clamp(snprintf(line + n, cap - n, ".%03ld %s%s%s %s: ", ts.tv_nsec / 1000000,
                        who_text, who_text[0] ? " " : "", level_names[level], module),
               cap - n - 1);
    size_t text = n;
    va_list ap;
    va_start(ap, fmt);
    n += clamp(vsnprintf(line + n, cap - n, fmt, ap), cap - n - 1);
    va_end(ap);
    for (size_t i = text; i < n; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) line[i] = '?';
    }
    line[n++] = '\n';
    ssize_t wrote = write(STDERR_FILENO, line, n);
    (void)wrote; /* nowhere left to report a failing stderr */
}
