/* What /metrics shows: latencies seen by clients here, counters from the engine, in Prometheus'
 * text format 0.0.4. Names mirror vLLM's after the prefix "sluice:". Thread: any. */
#ifndef SL_SERVE_METRICS_H
#define SL_SERVE_METRICS_H

#include "engine/coord/engine.h"
#include "format/cached.h"
#include "serve/jbuf.h"
#include "tls/tls.h"

#include <pthread.h>

#define SL_METRICS_BUCKETS 24u

/* Upper bounds are those of the kind of value measured; the last bucket is +Inf. */
typedef struct sl_histogram {
    uint64_t count[SL_METRICS_BUCKETS];
    uint64_t total;
    double sum;
} sl_histogram;

/* What has a histogram. "Of a choice": each of several choices or prompts of a request counts. */
typedef enum sl_measure {
    SL_MEASURE_QUEUE,         /* of a choice: waits for its turn */
    SL_MEASURE_FIRST_TOKEN,   /* of a choice, from the request's first byte */
    SL_MEASURE_INTER_TOKEN,   /* between two tokens */
    SL_MEASURE_PER_TOKEN,     /* of a choice: mean of the above */
    SL_MEASURE_PREFILL,       /* of a choice: from its start to its first token */
    SL_MEASURE_DECODE,        /* of a choice: from its first to its last token */
    SL_MEASURE_INFERENCE,     /* of a choice: both */
    SL_MEASURE_END_TO_END,    /* of a request */
    SL_MEASURE_PROMPT_TOKENS, /* of a choice, as the next one */
    SL_MEASURE_ANSWER_TOKENS,
    SL_MEASURE_ASKED_CHOICES, /* n of a request */
    SL_MEASURE_ASKED_TOKENS,  /* max_tokens of a choice */
    SL_MEASURE_COUNT
} sl_measure;

typedef enum sl_outcome {
    SL_OUTCOME_STOP,
    SL_OUTCOME_LENGTH,
    SL_OUTCOME_ABORT, /* the client went away or read too slowly */
    SL_OUTCOME_ERROR,
    SL_OUTCOME_COUNT
} sl_outcome;

typedef struct sl_metrics {
    pthread_mutex_t lock;
    sl_histogram measure[SL_MEASURE_COUNT];
    uint64_t outcome[SL_OUTCOME_COUNT];
    uint64_t refused;  /* requests answered with 4xx or 5xx before they ran */
    uint64_t draining; /* of them: the server was about to leave */
} sl_metrics;

sl_status sl_metrics_create(sl_metrics *m, sl_err *err) SL_MUST_CHECK;
void sl_metrics_free(sl_metrics *m);

/* One value: seconds or a number. */
void sl_metrics_add(sl_metrics *m, sl_measure what, double value);

/* How one choice comes along. Thread: the engine's, from submission to the last event. */
typedef struct sl_pace {
    uint64_t start_ns, submit_ns; /* the request's first byte; its submission */
    uint64_t n_prompt;            /* tokens */
    uint64_t n_made;              /* tokens that the engine handed over, at: */
    uint64_t first_ns, last_ns;
    uint64_t queued_ns; /* of the time before the first of them: in the queue */
} sl_pace;
/* What an event says about its choice's latencies. */
void sl_metrics_event(sl_metrics *m, sl_pace *p, const sl_request_event *ev, uint64_t now_ns);
/* A request. */
void sl_metrics_finished(sl_metrics *m, sl_outcome outcome, double seconds);
void sl_metrics_refused(sl_metrics *m, bool draining);

/* Names of bits SL_ROLE_*, and of what a worker does. */
const char *sl_metrics_role(uint32_t roles);
const char *sl_metrics_life(sl_worker_life life);

/* Answers kept for who asks again. */
typedef struct sl_metrics_kept {
    size_t n, bytes;
    uint64_t n_replayed, n_resumed;
    size_t journal_bytes; /* 0: there is none */
    bool journal_broken;  /* it cannot be written */
} sl_metrics_kept;

/* Of clients, before they ask anything. */
typedef struct sl_metrics_clients {
    uint32_t n;             /* connections */
    sl_tls_front_stats tls; /* zeros: they speak in the clear */
} sl_metrics_clients;

void sl_metrics_write(sl_metrics *m, const sl_engine_stats *stats, const sl_engine_detail *detail,
                      const sl_metrics_clients *clients, const sl_metrics_kept *kept,
                      const sl_cached *weights, const char *model, sl_jbuf *out);

#endif
