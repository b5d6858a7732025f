/* Log lines on stderr, one write per line: "2026-01-02T03:04:05.678 warn net: text", or one JSON
 * object {"ts", "level", "who", "module", "request", "msg"} (who and request only where known).
 * Thread: any. */
#ifndef SL_BASE_LOG_H
#define SL_BASE_LOG_H

#include "base/status.h"

#include <stdbool.h>

typedef enum sl_log_level { SL_LOG_ERROR, SL_LOG_WARN, SL_LOG_INFO, SL_LOG_DEBUG } sl_log_level;

/* Lines above this level are dropped; the default is SL_LOG_WARN. */
void sl_log_set_level(sl_log_level level);
/* "error", "warn", "info", "debug"; SL_ERR_ARG otherwise. */
sl_status sl_log_level_parse(const char *text, sl_log_level *out) SL_MUST_CHECK;
void sl_log_set_json(bool json);
/* Every line of this process first erases the terminal's current line: there is a status line. */
void sl_log_set_erase(bool erase);
/* "text" or "json"; SL_ERR_ARG otherwise. */
sl_status sl_log_format_parse(const char *text, bool *json) SL_MUST_CHECK;
/* Put before every line of this process, e.g. "worker 2"; copied, at most 31 bytes. */
void sl_log_set_who(const char *who);
/* Control characters in the formatted text are replaced, so that a peer cannot forge lines; in JSON
 * so is what is not UTF-8. */
void sl_log(sl_log_level level, const char *module, const char *fmt, ...) SL_PRINTF(3, 4);
/* A line about one request; id: as in X-Request-Id, NULL or "" if it has none. */
void sl_log_request(sl_log_level level, const char *module, const char *id, const char *fmt, ...)
    SL_PRINTF(4, 5);

#endif
