/* Filling sl_err, names of statuses, and the end of a process at one of our own bugs. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sl_status sl_fail(sl_err *err, sl_status code, const char *fmt, ...) {
    if (!err) return code;
    err->code = code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return code;
}

sl_status sl_err_prefix(sl_err *err, const char *fmt, ...) {
    if (!err) return SL_ERR_INTERNAL;
    char old[sizeof err->msg];
    memcpy(old, err->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    size_t used = n < 0 ? 0 : SL_MIN((size_t)n, sizeof err->msg - 1);
    snprintf(err->msg + used, sizeof err->msg - used, ": %s", old);
    return err->code;
}

const char *sl_status_text(sl_status st) {
    switch (st) {
    case SL_OK:
        return "ok";
#define SL_STATUS_CASE(name, value, text)                                                          \
    case SL_ERR_##name:                                                                            \
        return text;
        SL_STATUS_LIST(SL_STATUS_CASE)
#undef SL_STATUS_CASE
    }
    return "unknown status";
}

_Noreturn void sl_assert_failed(const char *expr, const char *file, int line) {
    fprintf(stderr, "sluice: internal error: assertion failed: %s (%s:%d)\n", expr, file, line);
    abort();
}
