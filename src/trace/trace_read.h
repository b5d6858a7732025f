/* Reads trace files event by event, in bounded memory: nobody vouches for their bytes. Both forms
 * of Chrome traces are taken: an array of events, and an object with "traceEvents". Thread: any. */
#ifndef SL_TRACE_TRACE_READ_H
#define SL_TRACE_TRACE_READ_H

#include "base/trace.h"
#include "format/json.h"

#define SL_TRACE_MAX_EVENT_BYTES (64u << 10) /* text of one event */
#define SL_TRACE_MAX_ABOUT_BYTES (4u << 20)  /* text of otherData */

/* Where a span is; times in microseconds since the trace's origin. Numbers that an event lacks are
 * 0. Text is borrowed for the call. */
typedef struct sl_trace_item {
    bool is_name; /* names a process or a thread: `name` says which, `label` how; else a span */
    uint32_t pid, tid;
    const char *name, *category, *label;
    double begin_us, end_us;
    uint32_t layer, lane, chunk, round;
    uint64_t rows, bytes, tokens;
    double poll_us, queued_us, latency_us;
    sl_json experts; /* absent, or an array: expert, rows, expert, rows, ... */
} sl_trace_item;

typedef struct sl_trace_visitor {
    /* The value of "otherData", if there is one; may be NULL. */
    sl_status (*on_about)(void *ctx, sl_json about, sl_err *err);
    /* Every span and every name; other kinds of events are passed over. */
    sl_status (*on_item)(void *ctx, const sl_trace_item *item, sl_err *err);
    void *ctx;
} sl_trace_visitor;

/* SL_ERR_NOTFOUND, SL_ERR_IO; SL_ERR_FORMAT names the line; SL_ERR_LIMIT: an event is too long. */
sl_status sl_trace_read(const char *path, const sl_trace_visitor *v, sl_err *err) SL_MUST_CHECK;
/* The same for bytes in memory. */
sl_status sl_trace_read_span(const char *name, sl_span text, const sl_trace_visitor *v,
                             sl_err *err) SL_MUST_CHECK;

#endif
