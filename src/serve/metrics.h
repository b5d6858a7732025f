/* What /metrics shows: latencies seen by clients here, counters from the engine, in Prometheus'
 * text format 0.0.4. Names mirror vLLM's after the prefix "sluice:". Thread: any. */
#ifndef SL_SERVE_METRICS_H
#define SL_SERVE_METRICS_H

#include "engine/engine.h"
#include "serve/jbuf.h"

#include <pthread.h>

#define SL_METRICS_BUCKETS 24u

/* Upper bounds are those of the kind of time measured; the last bucket is +Inf. */
typedef struct sl_histogram {
    uint64_t count[SL_METRICS_BUCKETS];
    uint64_t total;
    double sum;
} sl_histogram;

typedef enum sl_outcome {
    SL_OUTCOME_STOP,
    SL_OUTCOME_LENGTH,
    SL_OUTCOME_ABORT, /* the client went away or read too slowly */
    SL_OUTCOME_ERROR,
    SL_OUTCOME_COUNT
} sl_outcome;

typedef struct sl_metrics {
    pthread_mutex_t lock;
    sl_histogram queue, first_token, inter_token, end_to_end; /* seconds */
    uint64_t outcome[SL_OUTCOME_COUNT];
    uint64_t refused;  /* requests answered with 4xx or 5xx before they ran */
    uint64_t draining; /* of them: the server was about to leave */
} sl_metrics;

sl_status sl_metrics_create(sl_metrics *m, sl_err *err) SL_MUST_CHECK;
void sl_metrics_free(sl_metrics *m);

/* After `seconds`, of which it waited `queued` for its turn. */
void sl_metrics_first_token(sl_metrics *m, double seconds, double queued);
/* n tokens arrived together, `seconds` after the ones before. */
void sl_metrics_inter_token(sl_metrics *m, double seconds, uint32_t n);
void sl_metrics_finished(sl_metrics *m, sl_outcome outcome, double seconds);
void sl_metrics_refused(sl_metrics *m, bool draining);

void sl_metrics_write(sl_metrics *m, const sl_engine_stats *stats, uint32_t n_connections,
                      const char *model, sl_jbuf *out);

#endif
