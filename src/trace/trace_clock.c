/* Times of workers on one clock. */
#include "trace/trace_file.h"

uint64_t sl_trace_log_time(const sl_trace_log *log, uint64_t ns) {
    if (log->same_clock) return ns;
    double span = (double)log->last.at_ns - (double)log->first.at_ns;
    double part = span > 0 ? ((double)ns - (double)log->first.at_ns) / span : 0;
    part = SL_MIN(SL_MAX(part, -1.0), 2.0); /* no extrapolation beyond reason */
    double drift = (double)(log->last.offset_ns - log->first.offset_ns) * part;
    int64_t t = (int64_t)ns + log->first.offset_ns + (int64_t)drift;
    return t > 0 ? (uint64_t)t : 0;
}
