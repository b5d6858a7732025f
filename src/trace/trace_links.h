/* From what was sent and what arrived to the time on a link. For src/trace only. Thread: any. */
#ifndef SL_TRACE_TRACE_LINKS_H
#define SL_TRACE_TRACE_LINKS_H

#include "trace/trace_file.h"

/* A message on the link src -> dst. Links are first in, first out: it occupies the link from when
 * it was sent, or the one before it had arrived, until it arrived. */
typedef struct sl_trace_hop {
    uint32_t src, dst; /* worker ids */
    uint64_t sent_ns, begin_ns, end_ns;
    const sl_trace_event *send;
} sl_trace_hop;

/* Pairs sends with arrivals, link by link in order. *unpaired: one side is not in the logs (a ring
 * was too small, or a worker's events are missing). Free *out with sl_free. */
sl_status sl_trace_hops_find(const sl_trace_log *logs, uint32_t n_logs, sl_trace_hop **out,
                             size_t *n, uint64_t *unpaired, sl_err *err) SL_MUST_CHECK;

#endif
