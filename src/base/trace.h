/* Chrome-trace JSON (chrome://tracing, Perfetto): one file for all workers of a run, also across
 * processes of one machine: every record is one line, lines are appended whole.
 * Thread: any; records are buffered per trace under a lock and written when the buffer fills. */
#ifndef SL_BASE_TRACE_H
#define SL_BASE_TRACE_H

#include "base/status.h"

typedef struct sl_trace sl_trace;

/* `create` starts a new file (the coordinator); otherwise appends to it (a worker process). */
sl_status sl_trace_open(const char *path, int create, sl_trace **out, sl_err *err) SL_MUST_CHECK;
/* Flushes; `finish` writes the closing bracket (the coordinator, after its workers). NULL-safe. */
void sl_trace_close(sl_trace *t, int finish);

/* Names the row of worker `pid`. */
void sl_trace_name(sl_trace *t, uint32_t pid, const char *name);
/* One span on row (pid, tid), times in ns of CLOCK_MONOTONIC. `name` is a plain identifier; a
 * negative layer or rows is left out. No-op when t is NULL. */
void sl_trace_span(sl_trace *t, uint32_t pid, uint32_t tid, const char *name, uint64_t begin_ns,
                   uint64_t end_ns, int64_t layer, int64_t rows);

#endif
