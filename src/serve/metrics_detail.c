/* Metrics of layers (all workers together) and experts (all layers and workers together): their
 * number grows with the model, not with the load or the workers. */
#include "serve/metrics_int.h"

#include "base/mem.h"
#include "spec/schedules.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

void sl_metrics_put_schedule(sl_jbuf *b, const sl_engine_stats *stats) {
    static const char *const points[] = {"decode", "prompt"};
    sl_metrics_put_help(b, "schedule_info", "gauge", "How rows are grouped; always 1.");
    sl_jbuf_fmt(b, "sluice:schedule_info{schedule=\"%s\",lanes=\"%u\",chunks=\"%u\"} 1\n",
                sl_schedule_name(stats->schedule), stats->lanes, stats->chunks);
    sl_metrics_put_help(b, "schedule_predicted_layer_seconds", "gauge",
                        "Time of a block with experts for all rows in flight, by --schedule auto; "
                        "0: not predicted, or "
                        "for other workers than there are now.");
    for (int i = 0; i < 2; i++)
        sl_jbuf_fmt(b, "sluice:schedule_predicted_layer_seconds{rows=\"%s\"} %.9g\n", points[i],
                    stats->as_predicted ? stats->predicted.block_s[i] : 0.0);
}

void sl_metrics_put_batches(sl_jbuf *b, const sl_engine_detail *d) {
    sl_metrics_put_help(b, "expert_call_rows", "histogram",
                        "Rows that one expert got in one call.");
    for (uint32_t i = 0; i < d->n_workers; i++) {
        const sl_worker_stats *w = &d->worker[i];
        uint64_t below = 0;
        if (!(w->roles & 2u)) continue; /* hosts no experts (spec/plan.h) */
        for (uint32_t k = 0; k < SL_BATCH_BUCKETS; k++) {
            below += w->batch[k];
            sl_jbuf_fmt(b, "sluice:expert_call_rows_bucket{worker=\"%" PRIu32 "\",le=\"", w->id);
            if (k < SL_BATCH_BUCKETS - 1)
                sl_jbuf_fmt(b, "%u\"} %" PRIu64 "\n", 1u << k, below);
            else
                sl_jbuf_fmt(b, "+Inf\"} %" PRIu64 "\n", below);
        }
        sl_jbuf_fmt(b,
                    "sluice:expert_call_rows_sum{worker=\"%" PRIu32 "\"} %" PRIu64
                    "\nsluice:expert_call_rows_count{worker=\"%" PRIu32 "\"} %" PRIu64 "\n",
                    w->id, w->expert_rows, w->id, below);
    }
}

static const struct layer_family {
    const char *family, *help, *label;
    size_t offset;
    double scale;
} layer_families[] = {
#define ROW(family, help, label, field, scale)                                                     \
    { family, help, label, offsetof(sl_layer_stats, field), scale }
    ROW("layer_expert_rows_total", "Rows computed by experts of the block, one for each expert.",
        "", rows, 1),
    ROW("layer_expert_calls_total", "Batches of rows that expert workers computed.", "", tasks, 1),
    ROW("layer_queue_seconds_total", "How long the first rows of such batches had waited.", "",
        queued_us, 1e-6),
    ROW("layer_time_seconds_total", "Kernel time of the block.", ",side=\"attention\"",
        attention_ns, 1e-9),
    ROW("layer_time_seconds_total", "", ",side=\"expert\"", expert_ns, 1e-9),
    ROW("layer_trips_total", "Micro-batches that came back from the experts.", "", flights, 1),
    ROW("layer_trip_seconds_total", "From sending rows to the experts to the end of the merge.", "",
        away_ns, 1e-9),
#undef ROW
};

static void put_imbalance(sl_jbuf *b, const sl_engine_detail *d) {
    sl_metrics_put_help(b, "layer_imbalance_ratio", "gauge",
                        "Rows of the expert worker with the most over the mean of expert workers.");
    for (uint32_t i = 0; i < d->n_layers; i++) {
        double mean = (double)d->layer[i].rows / SL_MAX(d->n_expert_workers, 1u);
        sl_jbuf_fmt(b, "sluice:layer_imbalance_ratio{layer=\"%" PRIu32 "\"} %.6g\n", i,
                    mean > 0 ? (double)d->most_rows[i] / mean : 0.0);
    }
}

void sl_metrics_put_detail(sl_jbuf *b, const sl_engine_detail *d) {
    for (size_t f = 0; f < SL_LEN(layer_families); f++) {
        const struct layer_family *row = &layer_families[f];
        if (row->help[0]) sl_metrics_put_help(b, row->family, "counter", row->help);
        for (uint32_t i = 0; i < d->n_layers; i++) {
            uint64_t v;
            memcpy(&v, (const char *)&d->layer[i] + row->offset, sizeof v);
            sl_jbuf_fmt(b, "sluice:%s{layer=\"%" PRIu32 "\"%s} %.17g\n", row->family, i, row->label,
                        (double)v * row->scale);
        }
    }
    put_imbalance(b, d);
    sl_metrics_put_help(b, "expert_rows_total", "counter",
                        "Rows computed by the expert, in all blocks.");
    for (uint32_t i = 0; i < d->n_experts; i++)
        sl_jbuf_fmt(b, "sluice:expert_rows_total{expert=\"%" PRIu32 "\"} %" PRIu64 "\n", i,
                    d->expert[i].rows);
    sl_metrics_put_help(b, "expert_calls_total", "counter",
                        "Calls with rows for the expert, in all blocks.");
    for (uint32_t i = 0; i < d->n_experts; i++)
        sl_jbuf_fmt(b, "sluice:expert_calls_total{expert=\"%" PRIu32 "\"} %" PRIu64 "\n", i,
                    d->expert[i].calls);
}
