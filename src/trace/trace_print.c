/* Figures of a trace as text and as JSON. */
#include "trace/trace_stats.h"

#include <inttypes.h>
#include <string.h>

static double ms(double us) {
    return us / 1e3;
}

static void print_layers(sl_trace_stats *s, FILE *out) {
    fprintf(out,
            "\nlayer   attention ms   expert ms   rows   expert workers max/mean   away ms p50\n");
    for (size_t i = 0; i < s->n_layers; i++) {
        sl_trace_layer_stats *l = &s->layer[i];
        if (!l->used) continue;
        uint64_t most = 0, hosts = 0;
        for (size_t w = 0; w < s->n_workers; w++) {
            most = SL_MAX(most, l->worker_rows[w]);
            hosts += s->worker[w].expert_rows > 0;
        }
        double imbalance =
            l->expert_rows ? (double)most * (double)hosts / (double)l->expert_rows : 0;
        fprintf(out, "%5zu %14.3f %11.3f %6" PRIu64 " %25.2f %13.3f\n", i, ms(l->attention_us),
                ms(l->expert_us), l->expert_rows, imbalance,
                ms(sl_samples_quantile(&l->flight_us, 0.5)));
    }
}

static void print_workers(const sl_trace_stats *s, FILE *out) {
    fprintf(out, "\n%-24s %8s %6s %6s %6s %6s %6s   %6s %14s %7s\n", "share of the window",
            "execute", "pack", "send", "poll", "wait", "idle", "busy", "kernel/working", "bubble");
    for (size_t i = 0; i < s->n_workers; i++) {
        const sl_trace_worker_stats *w = &s->worker[i];
        double window = s->to_us - s->from_us;
        fprintf(out, "%-24s", w->name);
        for (int c = 0; c < SL_TRACE_CAT_THREAD_COUNT; c++)
            fprintf(out, c ? " %5.1f%%" : " %7.1f%%", 100 * w->us[c] / window);
        fprintf(out, "   %5.1f%% %13.1f%% %6.1f%%\n", 100 * sl_trace_stats_busy(s, w),
                100 * sl_trace_stats_kernel_share(w), 100 * sl_trace_stats_bubble(w));
    }
}

/* Of a category, each behind `comma`, and behind ", " from the second on. */
static void print_kinds(const sl_trace_stats *s, const sl_trace_worker_stats *w,
                        sl_trace_category of, const char *comma, FILE *out) {
    for (uint32_t k = 0; k < SL_TRACE_KIND_COUNT; k++) {
        if (sl_trace_kind_category(k) != of || w->kind_us[k] <= 0) continue;
        fprintf(out, "%s%s %.1f%%", comma, sl_trace_kind_name(k),
                100 * w->kind_us[k] / (s->to_us - s->from_us));
        comma = ", ";
    }
    fprintf(out, "\n");
}

/* Devices beside the threads of their workers. */
static void print_devices(const sl_trace_stats *s, FILE *out) {
    const double window = s->to_us - s->from_us;
    const char *head = "\ndevices, share of the window\n";
    for (size_t i = 0; i < s->n_workers; i++) {
        const sl_trace_worker_stats *w = &s->worker[i];
        if (w->device_us <= 0) continue;
        fprintf(out, "%s%-24s  computes %.1f%%", head, w->name, 100 * w->device_us / window);
        head = "";
        print_kinds(s, w, SL_TRACE_CAT_DEVICE, ", ", out);
    }
}

static void print_kernels(const sl_trace_stats *s, FILE *out) {
    fprintf(out, "\nkernels, share of the window\n");
    for (size_t i = 0; i < s->n_workers; i++) {
        const sl_trace_worker_stats *w = &s->worker[i];
        fprintf(out, "%-24s", w->name);
        print_kinds(s, w, SL_TRACE_CAT_EXECUTE, "  ", out);
    }
}

static void print_links(sl_trace_stats *s, FILE *out) {
    if (s->n_links == 0) return;
    fprintf(out, "\n%-12s %9s %12s %10s %9s %15s %15s\n", "link", "messages", "bytes", "MB/s",
            "occupied", "latency us p50", "p99");
    for (size_t i = 0; i < s->n_links; i++) {
        sl_trace_link_stats *l = &s->link[i];
        double window = s->to_us - s->from_us;
        fprintf(out, "%-12s %9" PRIu64 " %12" PRIu64 " %10.2f %8.1f%% %15.1f %15.1f\n", l->name,
                l->messages, l->bytes, (double)l->bytes / window, 100 * l->busy_us / window,
                sl_samples_quantile(&l->latency_us, 0.5),
                sl_samples_quantile(&l->latency_us, 0.99));
    }
}

static void print_gemms(sl_trace_stats *s, FILE *out) {
    uint64_t n = 0, rows = 0;
    for (size_t i = 0; i < SL_TRACE_BUCKETS; i++) n += s->gemm[i];
    for (size_t i = 0; i < s->n_experts; i++) rows += s->expert[i];
    if (n == 0) return;
    fprintf(out, "\nrows of one expert in one call: mean %.2f\n", (double)rows / (double)n);
    for (size_t i = 0; i < SL_TRACE_BUCKETS; i++) {
        if (s->gemm[i] == 0) continue;
        char range[32];
        uint64_t last = 1ull << i, first = i ? (last >> 1) + 1 : 1;
        if (i == SL_TRACE_BUCKETS - 1)
            snprintf(range, sizeof range, "> %" PRIu64, first - 1);
        else if (first == last)
            snprintf(range, sizeof range, "%" PRIu64, last);
        else
            snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, first, last);
        fprintf(out, "  %-12s %10" PRIu64 " %5.1f%%\n", range, s->gemm[i],
                100 * (double)s->gemm[i] / (double)n);
    }
    fprintf(
        out,
        "busiest over mean: worker %.2f, expert %.2f; rows waited %.1f us (p50), %.1f us (p99)\n",
        sl_trace_stats_worker_imbalance(s), sl_trace_stats_expert_imbalance(s),
        sl_samples_quantile(&s->queued_us, 0.5), sl_samples_quantile(&s->queued_us, 0.99));
}

void sl_trace_stats_print(sl_trace_stats *s, FILE *out) {
    double share, occupied, window = s->to_us - s->from_us;
    const char *worker = sl_trace_stats_busiest_worker(s, &share);
    const char *link = sl_trace_stats_busiest_link(s, &occupied);
    fprintf(out, "%s, schedule %s, transport %s; window %.3f to %.3f ms\n", s->model, s->schedule,
            s->transport, ms(s->from_us), ms(s->to_us));
    if (s->dropped || s->missing)
        fprintf(out,
                "incomplete: %" PRIu64 " events were dropped, %" PRIu64 " workers are missing\n",
                s->dropped, s->missing);
    if (s->clock_error_us > 0)
        fprintf(out, "clocks of different machines, aligned to %.1f us\n", s->clock_error_us);
    fprintf(out, "%" PRIu64 " tokens, %.2f per second; %zu steps, median %.3f ms, p99 %.3f ms\n",
            s->tokens, (double)s->tokens / window * 1e6, s->step_us.n,
            ms(sl_samples_quantile(&s->step_us, 0.5)), ms(sl_samples_quantile(&s->step_us, 0.99)));
    fprintf(out, "critical: %s, busy %.1f%% of the window", worker, 100 * share);
    if (link[0]) fprintf(out, "; busiest link %s, occupied %.1f%%", link, 100 * occupied);
    fputc('\n', out);
    print_workers(s, out);
    print_kernels(s, out);
    print_devices(s, out);
    print_links(s, out);
    print_layers(s, out);
    print_gemms(s, out);
}

/* ---- JSON ---- */

static void put_text(FILE *out, const char *key, const char *text) {
    fprintf(out, "\"%s\": \"", key);
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') fputc('\\', out);
        fputc(*c, out); /* printable ASCII: the reader saw to that */
    }
    fputc('"', out);
}

/* Milliseconds by kind, of the thread or of the device. */
static void put_kinds(const sl_trace_worker_stats *w, bool device, FILE *out) {
    const char *comma = "";
    fputs("{", out);
    for (uint32_t k = 0; k < SL_TRACE_KIND_COUNT; k++) {
        const bool on = sl_trace_kind_category(k) == SL_TRACE_CAT_DEVICE;
        if (on != device || w->kind_us[k] <= 0) continue;
        fprintf(out, "%s\"%s\": %.6f", comma, sl_trace_kind_name(k), ms(w->kind_us[k]));
        comma = ", ";
    }
    fputs("}", out);
}

static void put_workers(const sl_trace_stats *s, FILE *out) {
    fputs(", \"workers\": [", out);
    for (size_t i = 0; i < s->n_workers; i++) {
        const sl_trace_worker_stats *w = &s->worker[i];
        fprintf(out, "%s{\"worker\": %u, ", i ? ", " : "", w->pid);
        put_text(out, "name", w->name);
        for (uint32_t c = 0; c < SL_TRACE_CAT_THREAD_COUNT; c++)
            fprintf(out, ", \"%s_ms\": %.6f", sl_trace_category_name(c), ms(w->us[c]));
        fputs(", \"kinds_ms\": ", out);
        put_kinds(w, false, out);
        if (w->device_us > 0) {
            fprintf(out, ", \"device_ms\": %.6f, \"device_kinds_ms\": ", ms(w->device_us));
            put_kinds(w, true, out);
        }
        fprintf(out,
                ", \"recorded_ms\": %.6f, \"busy_share\": %.6f, \"kernel_share\": %.6f, "
                "\"bubble_share\": %.6f, \"attention_rows\": %" PRIu64 ", \"expert_rows\": %" PRIu64
                ", \"tokens\": %" PRIu64 "}",
                ms(w->last_us - w->first_us), sl_trace_stats_busy(s, w),
                sl_trace_stats_kernel_share(w), sl_trace_stats_bubble(w), w->attention_rows,
                w->expert_rows, w->tokens);
    }
    fputc(']', out);
}

static void put_links(sl_trace_stats *s, FILE *out) {
    fputs(", \"links\": [", out);
    for (size_t i = 0; i < s->n_links; i++) {
        sl_trace_link_stats *l = &s->link[i];
        fprintf(out, "%s{", i ? ", " : "");
        put_text(out, "name", l->name);
        fprintf(out,
                ", \"messages\": %" PRIu64 ", \"bytes\": %" PRIu64
                ", \"occupied_share\": %.6f, \"latency_us\": {\"p50\": %.3f, \"p99\": %.3f}}",
                l->messages, l->bytes, l->busy_us / (s->to_us - s->from_us),
                sl_samples_quantile(&l->latency_us, 0.5),
                sl_samples_quantile(&l->latency_us, 0.99));
    }
    fputc(']', out);
}

static void put_layers(sl_trace_stats *s, FILE *out) {
    const char *comma = "";
    fputs(", \"layers\": [", out);
    for (size_t i = 0; i < s->n_layers; i++) {
        sl_trace_layer_stats *l = &s->layer[i];
        if (!l->used) continue;
        fprintf(out,
                "%s{\"layer\": %zu, \"attention_ms\": %.6f, \"expert_ms\": %.6f, \"expert_rows\": "
                "%" PRIu64 ", \"away_ms\": {\"p50\": %.6f, \"p99\": %.6f}, \"worker_rows\": [",
                comma, i, ms(l->attention_us), ms(l->expert_us), l->expert_rows,
                ms(sl_samples_quantile(&l->flight_us, 0.5)),
                ms(sl_samples_quantile(&l->flight_us, 0.99)));
        for (size_t w = 0; w < s->n_workers; w++)
            fprintf(out, "%s%" PRIu64, w ? ", " : "", l->worker_rows[w]);
        fputs("]}", out);
        comma = ", ";
    }
    fputc(']', out);
}

static void put_experts(sl_trace_stats *s, FILE *out) {
    fputs(", \"expert_rows\": [", out);
    for (size_t i = 0; i < s->n_experts; i++)
        fprintf(out, "%s%" PRIu64, i ? ", " : "", s->expert[i]);
    fputs("], \"rows_per_expert_call\": [", out);
    for (size_t i = 0; i < SL_TRACE_BUCKETS; i++)
        fprintf(out, "%s%" PRIu64, i ? ", " : "", s->gemm[i]);
    fprintf(out,
            "], \"worker_imbalance\": %.6f, \"expert_imbalance\": %.6f, \"queued_us\": {\"p50\": "
            "%.3f, \"p99\": %.3f}",
            sl_trace_stats_worker_imbalance(s), sl_trace_stats_expert_imbalance(s),
            sl_samples_quantile(&s->queued_us, 0.5), sl_samples_quantile(&s->queued_us, 0.99));
}

void sl_trace_stats_print_json(sl_trace_stats *s, FILE *out) {
    double share, occupied, window = s->to_us - s->from_us;
    const char *worker = sl_trace_stats_busiest_worker(s, &share);
    const char *link = sl_trace_stats_busiest_link(s, &occupied);
    fputc('{', out);
    put_text(out, "model", s->model);
    fputs(", ", out);
    put_text(out, "schedule", s->schedule);
    fputs(", ", out);
    put_text(out, "transport", s->transport);
    fprintf(out,
            ", \"from_ms\": %.6f, \"to_ms\": %.6f, \"dropped\": %" PRIu64 ", \"missing\": %" PRIu64
            ", \"clock_error_us\": %.3f, \"tokens\": %" PRIu64
            ", \"tokens_per_s\": %.6f, \"steps\": %zu, \"step_rows\": %" PRIu64
            ", \"step_ms\": {\"p50\": %.6f, \"p99\": %.6f}, ",
            ms(s->from_us), ms(s->to_us), s->dropped, s->missing, s->clock_error_us, s->tokens,
            (double)s->tokens / window * 1e6, s->step_us.n, s->step_rows,
            ms(sl_samples_quantile(&s->step_us, 0.5)), ms(sl_samples_quantile(&s->step_us, 0.99)));
    put_text(out, "critical_worker", worker);
    fprintf(out, ", \"critical_worker_share\": %.6f, ", share);
    put_text(out, "critical_link", link);
    fprintf(out, ", \"critical_link_share\": %.6f", occupied);
    put_workers(s, out);
    put_links(s, out);
    put_layers(s, out);
    put_experts(s, out);
    fputs("}\n", out);
}
