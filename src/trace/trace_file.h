/* Trace files: Chrome-trace JSON, which Perfetto and chrome://tracing load. One process a worker
 * with a row for its owner thread ("execution"), one a lane and, where it has a device that
 * computes beside the thread, one for that ("device"); one process "links" with a row for each pair
 * of workers that sent something. docs/tracing.md is the field table. Thread: owner. */
#ifndef SL_TRACE_TRACE_FILE_H
#define SL_TRACE_TRACE_FILE_H

#include "base/trace.h"

#include <stdio.h>

#define SL_TRACE_LINKS_PID  100000u /* the process "links" */
#define SL_TRACE_DEVICE_TID 1000u   /* a worker's device */

/* A worker's clock against the one of the file, measured at two moments: at `at_ns` of the worker's
 * clock, adding `offset_ns` gives the file's, wrong by at most error_ns. */
typedef struct sl_trace_sync {
    uint64_t at_ns;
    int64_t offset_ns;
    uint64_t error_ns;
} sl_trace_sync;

/* What one worker recorded. */
typedef struct sl_trace_log {
    uint32_t id;
    const char *role;
    const sl_trace_event *events; /* borrowed */
    uint64_t n, dropped;
    bool same_clock; /* offset 0, not estimated */
    sl_trace_sync first, last;
    const char *missing; /* NULL, or why its events are not here */
} sl_trace_log;

typedef struct sl_trace_about {
    const char *model, *schedule, *transport, *version;
    uint32_t lanes, layers;
    const char *(*message_name)(uint16_t kind); /* of SEND and RECV events */
} sl_trace_about;

/* Time of a worker's event on the file's clock. */
uint64_t sl_trace_log_time(const sl_trace_log *log, uint64_t ns);

/* Writes everything to f. SL_ERR_IO, SL_ERR_NOMEM. */
sl_status sl_trace_file_write(FILE *f, const sl_trace_about *about, const sl_trace_log *logs,
                              uint32_t n_logs, sl_err *err) SL_MUST_CHECK;

/* The same for workers whose rings are all here and tell one clock: worker i is id i. */
sl_status sl_trace_rings_write(FILE *f, const sl_trace_about *about, sl_trace *const *ring,
                               const char *const *role, uint32_t n, sl_err *err) SL_MUST_CHECK;

#endif
