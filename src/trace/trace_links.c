/* Sends and receipts of a trace matched to hops. */
#include "trace/trace_links.h"

#include "base/mem.h"

#include <stdlib.h>

/* One side of a message. */
typedef struct end {
    uint32_t src, dst;
    bool arrival;
    uint64_t ns;
    const sl_trace_event *e;
} end;

static int by_link_and_time(const void *pa, const void *pb) {
    const end *a = pa, *b = pb;
    if (a->src != b->src) return a->src < b->src ? -1 : 1;
    if (a->dst != b->dst) return a->dst < b->dst ? -1 : 1;
    if (a->arrival != b->arrival) return a->arrival ? 1 : -1;
    if (a->ns != b->ns) return a->ns < b->ns ? -1 : 1;
    return a->e < b->e ? -1 : a->e > b->e; /* one log: recorded in order */
}

static bool is_end(const sl_trace_event *e) {
    return (e->kind == SL_TRACE_SEND || e->kind == SL_TRACE_RECV) && e->peer != SL_TRACE_NO_PEER;
}

static bool same_message(const sl_trace_event *a, const sl_trace_event *b) {
    return a->why == b->why && a->round == b->round && a->lane == b->lane && a->layer == b->layer &&
           a->chunk == b->chunk && a->rows == b->rows && a->bytes == b->bytes;
}

static size_t collect(const sl_trace_log *logs, uint32_t n_logs, end *out) {
    size_t n = 0;
    for (uint32_t i = 0; i < n_logs; i++) {
        for (uint64_t j = 0; j < logs[i].n; j++) {
            const sl_trace_event *e = &logs[i].events[j];
            if (!is_end(e)) continue;
            bool arrival = e->kind == SL_TRACE_RECV;
            if (out)
                out[n] = (end){.src = arrival ? e->peer : logs[i].id,
                               .dst = arrival ? logs[i].id : e->peer,
                               .arrival = arrival,
                               .ns = sl_trace_log_time(&logs[i], e->begin_ns),
                               .e = e};
            n++;
        }
    }
    return n;
}

/* Pairs of one link: sends s[0..ns), arrivals r[0..nr), both in order. A side that lost its oldest
 * events lacks partners at the beginning: the older of two that differ has none. */
static size_t pair(const end *s, size_t ns, const end *r, size_t nr, sl_trace_hop *out) {
    size_t i = 0, j = 0, n = 0;
    uint64_t free_ns = 0;
    while (i < ns && j < nr) {
        if (!same_message(s[i].e, r[j].e)) {
            if (r[j].ns < s[i].ns)
                j++;
            else
                i++;
            continue;
        }
        uint64_t begin = SL_MAX(s[i].ns, free_ns);
        free_ns = SL_MAX(begin, r[j].ns);
        out[n++] = (sl_trace_hop){.src = s[i].src,
                                  .dst = s[i].dst,
                                  .sent_ns = s[i].ns,
                                  .begin_ns = begin,
                                  .end_ns = free_ns,
                                  .send = s[i].e};
        i++;
        j++;
    }
    return n;
}

sl_status sl_trace_hops_find(const sl_trace_log *logs, uint32_t n_logs, sl_trace_hop **out,
                             size_t *n, uint64_t *unpaired, sl_err *err) {
    size_t n_ends = collect(logs, n_logs, NULL);
    end *ends = sl_alloc(n_ends, sizeof *ends);
    sl_trace_hop *hops = sl_alloc(n_ends / 2, sizeof *hops);
    if (!ends || !hops) {
        sl_free(ends);
        sl_free(hops);
        return sl_fail(err, SL_ERR_NOMEM, "trace of %zu messages", n_ends / 2);
    }
    collect(logs, n_logs, ends);
    qsort(ends, n_ends, sizeof *ends, by_link_and_time);
    size_t found = 0;
    for (size_t at = 0; at < n_ends;) {
        size_t mid = at, last;
        while (mid < n_ends && ends[mid].src == ends[at].src && ends[mid].dst == ends[at].dst &&
               !ends[mid].arrival)
            mid++;
        last = mid;
        while (last < n_ends && ends[last].src == ends[at].src && ends[last].dst == ends[at].dst)
            last++;
        found += pair(ends + at, mid - at, ends + mid, last - mid, hops + found);
        at = last;
    }
    sl_free(ends);
    *out = hops;
    *n = found;
    *unpaired = n_ends - 2 * found;
    return SL_OK;
}
