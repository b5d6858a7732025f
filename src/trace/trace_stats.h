/* Figures of a recorded run, recomputed from its trace file. Thread: owner. */
#ifndef SL_TRACE_TRACE_STATS_H
#define SL_TRACE_TRACE_STATS_H

#include "trace/trace_read.h"

#include <stdio.h>

#define SL_TRACE_MAX_ROWS    4096u /* workers, links */
#define SL_TRACE_MAX_LAYERS  4096u
#define SL_TRACE_MAX_EXPERTS 65536u
#define SL_TRACE_BUCKETS     17u /* rows of one expert in one GEMM: 1, 2, 3-4, 5-8, ..., > 32768 */

/* Numbers whose quantiles are wanted. */
typedef struct sl_samples {
    double *v;
    size_t n, cap;
    double sum;
} sl_samples;
/* q from 0 to 1, by nearest rank; 0 when there are none. Sorts. */
double sl_samples_quantile(sl_samples *s, double q);

typedef struct sl_trace_worker_stats {
    uint32_t pid;
    char name[64];
    double us[SL_TRACE_CAT_THREAD_COUNT]; /* of the window, by category */
    double device_us; /* that its device computed; 0: it has none beside the thread */
    double kind_us[SL_TRACE_KIND_COUNT];
    double first_us, last_us; /* of its execution row, in the window */
    uint64_t spans, expert_rows, attention_rows, tokens;
} sl_trace_worker_stats;

typedef struct sl_trace_link_stats {
    uint32_t tid;
    char name[64];
    uint64_t messages, bytes;
    double busy_us;
    sl_samples latency_us;
} sl_trace_link_stats;

typedef struct sl_trace_layer_stats {
    bool used;
    double attention_us,
        expert_us; /* kernel time of all workers: the attention side's, the experts' */
    uint64_t expert_rows;
    sl_samples flight_us;  /* dispatch to the end of the merge */
    uint64_t *worker_rows; /* [workers], of experts */
} sl_trace_layer_stats;

typedef struct sl_trace_stats {
    char schedule[32], transport[32], model[256];
    uint64_t dropped, missing; /* events; workers without events */
    double clock_error_us;
    double from_us, to_us; /* the window */
    sl_trace_worker_stats *worker;
    size_t n_workers;
    sl_trace_link_stats *link;
    size_t n_links;
    sl_trace_layer_stats *layer; /* [n_layers] */
    size_t n_layers;
    uint64_t *expert; /* rows by expert, all layers, [n_experts] */
    size_t n_experts, cap_experts;
    uint64_t gemm[SL_TRACE_BUCKETS];
    sl_samples step_us, queued_us;
    uint64_t tokens, step_rows;
} sl_trace_stats;

/* from_us < 0: from the first kernel on; to_us < 0: to the end of the last one. Spans count with
 * their part in the window; steps, with their tokens, and messages when they end in it. */
sl_status sl_trace_stats_read(const char *path, double from_us, double to_us, sl_trace_stats *out,
                              sl_err *err) SL_MUST_CHECK;
void sl_trace_stats_free(sl_trace_stats *s);

/* Share of the window in which it had work in hand: its thread or, where that is more, its device.
 */
double sl_trace_stats_busy(const sl_trace_stats *s, const sl_trace_worker_stats *w);
/* Kernel time over kernel, pack and send time. */
double sl_trace_stats_kernel_share(const sl_trace_worker_stats *w);
/* Share of the time with work in the system in which the worker had none. */
double sl_trace_stats_bubble(const sl_trace_worker_stats *w);
/* Largest over mean: of expert workers' rows, of experts' rows (all layers); 0 without rows. */
double sl_trace_stats_worker_imbalance(const sl_trace_stats *s);
double sl_trace_stats_expert_imbalance(const sl_trace_stats *s);
/* The busiest worker, or link: its name ("" without one) and its share of the window. */
const char *sl_trace_stats_busiest_worker(const sl_trace_stats *s, double *share);
const char *sl_trace_stats_busiest_link(const sl_trace_stats *s, double *share);

/* A table for people, or one JSON document. Sorts samples. */
void sl_trace_stats_print(sl_trace_stats *s, FILE *out);
void sl_trace_stats_print_json(sl_trace_stats *s, FILE *out);

/* What the first pass over a file finds: rows, and where kernels ran. */
typedef struct sl_trace_row {
    uint32_t pid, tid;
    char name[64]; /* of the process for tid 0 of a worker, of the thread for others */
} sl_trace_row;
typedef struct sl_trace_outline {
    sl_trace_row *row; /* by pid execution and, where there is one, device; then links by tid */
    size_t n_rows, cap_rows;
    size_t n_workers;
    uint32_t lanes, chunks; /* 1 + highest of a kernel */
    double first_kernel_us, last_kernel_us;
    char schedule[32], transport[32], model[256];
    uint64_t dropped, missing;
    double clock_error_us;
} sl_trace_outline;
sl_status sl_trace_outline_read(const char *path, sl_trace_outline *out, sl_err *err) SL_MUST_CHECK;
void sl_trace_outline_free(sl_trace_outline *o);

#endif
