/* How metrics are written, for the files of metrics only. Thread: any. */
#ifndef SL_SERVE_METRICS_INT_H
#define SL_SERVE_METRICS_INT_H

#include "serve/metrics.h"

/* # HELP and # TYPE of a family; names get the prefix "sluice:". */
static inline void sl_metrics_put_help(sl_jbuf *b, const char *name, const char *type,
                                       const char *help) {
    sl_jbuf_fmt(b, "# HELP sluice:%s %s\n# TYPE sluice:%s %s\n", name, help, name, type);
}
/* What the plan schedules, and what --schedule auto predicted of it (metrics_detail.c). */
void sl_metrics_put_schedule(sl_jbuf *b, const sl_engine_stats *stats);
/* Families by worker, by layer and by expert (metrics_detail.c). */
void sl_metrics_put_batches(sl_jbuf *b, const sl_engine_detail *d);
void sl_metrics_put_detail(sl_jbuf *b, const sl_engine_detail *d);

#endif
