/* A picture of a trace: a row for each worker and link, time to the right. Thread: owner. */
#ifndef SL_TRACE_TRACE_SVG_H
#define SL_TRACE_TRACE_SVG_H

#include "base/status.h"

#include <stdio.h>

/* Window as in sl_trace_stats_read. Spans too short to be seen are left out or drawn as one with
 * their neighbours, so the size of the picture does not depend on that of the trace. */
sl_status sl_trace_svg_write(const char *path, double from_us, double to_us, FILE *out,
                             sl_err *err) SL_MUST_CHECK;

#endif
