/* Figures of a run from its spans. */
#include "trace/trace_stats.h"

#include "base/mem.h"
#include "trace/trace_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SAMPLES (1u << 24)

/* ---- samples ---- */

static sl_status samples_add(sl_samples *s, double v, sl_err *err) {
    if (s->n == s->cap) {
        size_t cap = SL_MAX(s->cap * 2, (size_t)64);
        if (cap > MAX_SAMPLES)
            return sl_fail(err, SL_ERR_LIMIT,
                           "more than %u samples: choose a window (--from, --to)", MAX_SAMPLES / 2);
        double *bigger = sl_grow(s->v, s->cap, cap, sizeof *bigger);
        if (!bigger) return sl_fail(err, SL_ERR_NOMEM, "%zu samples", cap);
        s->v = bigger;
        s->cap = cap;
    }
    s->v[s->n++] = v;
    s->sum += v;
    return SL_OK;
}

static int by_value(const void *pa, const void *pb) {
    double a = *(const double *)pa, b = *(const double *)pb;
    return a < b ? -1 : a > b;
}

double sl_samples_quantile(sl_samples *s, double q) {
    if (s->n == 0) return 0;
    qsort(s->v, s->n, sizeof *s->v, by_value);
    double rank = ceil(q * (double)s->n);
    return s->v[rank < 1 ? 0 : SL_MIN((size_t)rank, s->n) - 1];
}

static void samples_free(sl_samples *s) {
    sl_free(s->v);
    *s = (sl_samples){0};
}

/* ---- one span ---- */

static sl_trace_worker_stats *worker_of(sl_trace_stats *s, uint32_t pid) {
    for (size_t i = 0; i < s->n_workers; i++) {
        if (s->worker[i].pid == pid) return &s->worker[i];
    }
    return NULL;
}

static int kind_of(const char *name, int category) {
    for (uint32_t k = 0; k < SL_TRACE_KIND_COUNT; k++) {
        if ((int)sl_trace_kind_category(k) == category && strcmp(sl_trace_kind_name(k), name) == 0)
            return (int)k;
    }
    return -1;
}

static int category_of(const char *name) {
    for (uint32_t c = 0; c < SL_TRACE_CAT_COUNT; c++) {
        if (strcmp(sl_trace_category_name(c), name) == 0) return (int)c;
    }
    return -1;
}

static sl_status layer_of(sl_trace_stats *s, uint32_t layer, sl_trace_layer_stats **out,
                          sl_err *err) {
    if (layer >= SL_TRACE_MAX_LAYERS)
        return sl_fail(err, SL_ERR_LIMIT, "layer %u, limit %u", layer, SL_TRACE_MAX_LAYERS - 1);
    if (layer >= s->n_layers) {
        sl_trace_layer_stats *more = sl_grow(s->layer, s->n_layers, layer + 1u, sizeof *more);
        if (!more) return sl_fail(err, SL_ERR_NOMEM, "figures of %u layers", layer + 1);
        s->layer = more;
        s->n_layers = layer + 1u;
    }
    *out = &s->layer[layer];
    (*out)->used = true;
    if ((*out)->worker_rows) return SL_OK;
    (*out)->worker_rows = sl_alloc(s->n_workers, sizeof *(*out)->worker_rows);
    return (*out)->worker_rows ? SL_OK
                               : sl_fail(err, SL_ERR_NOMEM, "rows of %zu workers", s->n_workers);
}

static size_t bucket_of(uint64_t rows) {
    size_t b = 0;
    while (b < SL_TRACE_BUCKETS - 1 && rows > 1ull << b) b++;
    return b;
}

static sl_status add_experts(sl_trace_stats *s, sl_json experts, sl_err *err) {
    size_t n = sl_json_count(experts) / 2;
    for (size_t i = 0; i < n; i++) {
        uint64_t id = 0, rows = 0;
        if (!sl_json_as_u64(sl_json_at(experts, 2 * i), &id) ||
            !sl_json_as_u64(sl_json_at(experts, 2 * i + 1), &rows) || id >= SL_TRACE_MAX_EXPERTS)
            return sl_fail(err, SL_ERR_FORMAT, "experts of a span: number %zu is not below %u", i,
                           SL_TRACE_MAX_EXPERTS);
        if (id >= s->cap_experts) {
            size_t cap = SL_MAX(s->cap_experts, (size_t)64);
            while (cap <= id) cap *= 2;
            uint64_t *more = sl_grow(s->expert, s->cap_experts, cap, sizeof *more);
            if (!more) return sl_fail(err, SL_ERR_NOMEM, "figures of %zu experts", cap);
            s->expert = more;
            s->cap_experts = cap;
        }
        s->n_experts = SL_MAX(s->n_experts, (size_t)id + 1);
        s->expert[id] += rows;
        if (rows) s->gemm[bucket_of(rows)]++;
    }
    return SL_OK;
}

static sl_status add_kernel(sl_trace_stats *s, sl_trace_worker_stats *w, int kind,
                            const sl_trace_item *it, double us, bool ends, sl_err *err) {
    sl_trace_layer_stats *l = NULL;
    bool expert = kind == SL_TRACE_EXPERT, attention = kind == SL_TRACE_ATTENTION;
    if (!expert && !attention && kind != SL_TRACE_ROUTER && kind != SL_TRACE_SHARED &&
        kind != SL_TRACE_BRANCH && kind != SL_TRACE_DENSE)
        return SL_OK;
    sl_status st = layer_of(s, it->layer, &l, err);
    if (st != SL_OK) return st;
    *(expert ? &l->expert_us : &l->attention_us) += us;
    if (!ends) return SL_OK;
    if (attention) w->attention_rows += it->rows;
    if (!expert) return SL_OK;
    w->expert_rows += it->rows;
    l->expert_rows += it->rows;
    l->worker_rows[w - s->worker] += it->rows;
    st = samples_add(&s->queued_us, it->queued_us, err);
    return st == SL_OK ? add_experts(s, it->experts, err) : st;
}

static sl_status add_execution(sl_trace_stats *s, sl_trace_worker_stats *w, const sl_trace_item *it,
                               sl_err *err) {
    const int category = category_of(it->category), kind = kind_of(it->name, category);
    if (category < 0 || category >= SL_TRACE_CAT_THREAD_COUNT) return SL_OK;
    double begin = SL_MAX(it->begin_us, s->from_us), end = SL_MIN(it->end_us, s->to_us);
    double us = end - begin;
    if (w->spans++ == 0 || begin < w->first_us) w->first_us = begin;
    w->last_us = SL_MAX(w->last_us, end);
    /* The fabric's progress inside a kernel is not the kernel's time. */
    double whole = it->end_us - it->begin_us;
    double poll = whole > 0 ? us * SL_MIN(it->poll_us / whole, 1.0) : 0;
    w->us[category] += us - poll;
    w->us[SL_TRACE_CAT_POLL] += poll;
    if (kind >= 0) w->kind_us[kind] += us - poll;
    if (category != SL_TRACE_CAT_EXECUTE) return SL_OK;
    return add_kernel(s, w, kind, it, us - poll, it->end_us <= s->to_us, err);
}

/* Kernels of a device are a block's time, as those of a thread; what their rows were the thread
 * says that gave them. A block that stays inside is its experts'. */
static sl_status add_device(sl_trace_stats *s, sl_trace_worker_stats *w, const sl_trace_item *it,
                            sl_err *err) {
    const int kind = kind_of(it->name, SL_TRACE_CAT_DEVICE);
    const double us = SL_MIN(it->end_us, s->to_us) - SL_MAX(it->begin_us, s->from_us);
    sl_trace_layer_stats *l = NULL;
    w->device_us += us;
    if (kind < 0) return SL_OK;
    w->kind_us[kind] += us;
    const bool experts = kind == SL_TRACE_ON_EXPERT || kind == SL_TRACE_ON_INSIDE;
    const bool attention = kind == SL_TRACE_ON_ATTENTION || kind == SL_TRACE_ON_DENSE ||
                           kind == SL_TRACE_ON_ROUTER || kind == SL_TRACE_ON_SHARED;
    if (!experts && !attention) return SL_OK;
    sl_status st = layer_of(s, it->layer, &l, err);
    if (st == SL_OK) *(experts ? &l->expert_us : &l->attention_us) += us;
    return st;
}

static sl_status add_lane(sl_trace_stats *s, sl_trace_worker_stats *w, const sl_trace_item *it,
                          sl_err *err) {
    const int kind = kind_of(it->name, SL_TRACE_CAT_LANE);
    double us = it->end_us - it->begin_us;
    if (it->end_us > s->to_us) return SL_OK;
    if (kind == SL_TRACE_STEP) {
        s->tokens += it->tokens;
        s->step_rows += it->rows;
        w->tokens += it->tokens;
        return samples_add(&s->step_us, us, err);
    }
    if (kind != SL_TRACE_FLIGHT || it->begin_us < s->from_us) return SL_OK;
    sl_trace_layer_stats *l = NULL;
    sl_status st = layer_of(s, it->layer, &l, err);
    return st == SL_OK ? samples_add(&l->flight_us, us, err) : st;
}

static sl_status add_link(sl_trace_stats *s, const sl_trace_item *it, sl_err *err) {
    for (size_t i = 0; i < s->n_links; i++) {
        sl_trace_link_stats *l = &s->link[i];
        if (l->tid != it->tid) continue;
        l->busy_us += SL_MIN(it->end_us, s->to_us) - SL_MAX(it->begin_us, s->from_us);
        if (it->end_us > s->to_us) return SL_OK;
        l->messages++;
        l->bytes += it->bytes;
        return samples_add(&l->latency_us, it->latency_us, err);
    }
    return SL_OK;
}

static sl_status on_item(void *ctx, const sl_trace_item *it, sl_err *err) {
    sl_trace_stats *s = ctx;
    if (it->is_name || it->end_us <= s->from_us || it->begin_us >= s->to_us) return SL_OK;
    if (it->pid == SL_TRACE_LINKS_PID) return add_link(s, it, err);
    sl_trace_worker_stats *w = worker_of(s, it->pid);
    if (!w) return SL_OK;
    if (it->tid == SL_TRACE_DEVICE_TID) return add_device(s, w, it, err);
    return it->tid == 0 ? add_execution(s, w, it, err) : add_lane(s, w, it, err);
}

/* ---- the whole file ---- */

static sl_status make_rows(sl_trace_stats *s, const sl_trace_outline *o, sl_err *err) {
    s->worker = sl_alloc(o->n_workers, sizeof *s->worker);
    s->link = sl_alloc(o->n_rows - o->n_workers, sizeof *s->link);
    if (!s->worker || !s->link) return sl_fail(err, SL_ERR_NOMEM, "figures of %zu rows", o->n_rows);
    for (size_t i = 0; i < o->n_rows; i++) {
        const sl_trace_row *r = &o->row[i];
        if (r->pid == SL_TRACE_LINKS_PID) {
            s->link[s->n_links].tid = r->tid;
            memcpy(s->link[s->n_links++].name, r->name, sizeof r->name);
        } else if (r->tid == 0) {
            s->worker[s->n_workers].pid = r->pid;
            memcpy(s->worker[s->n_workers++].name, r->name, sizeof r->name);
        }
    }
    return SL_OK;
}

sl_status sl_trace_stats_read(const char *path, double from_us, double to_us, sl_trace_stats *out,
                              sl_err *err) {
    sl_trace_outline o;
    *out = (sl_trace_stats){0};
    sl_status st = sl_trace_outline_read(path, &o, err);
    if (st != SL_OK) return st;
    memcpy(out->schedule, o.schedule, sizeof o.schedule);
    memcpy(out->transport, o.transport, sizeof o.transport);
    memcpy(out->model, o.model, sizeof o.model);
    out->dropped = o.dropped;
    out->missing = o.missing;
    out->clock_error_us = o.clock_error_us;
    out->from_us = from_us >= 0 ? from_us : SL_MIN(o.first_kernel_us, o.last_kernel_us);
    out->to_us = to_us >= 0 ? to_us : o.last_kernel_us;
    const sl_trace_visitor v = {.on_item = on_item, .ctx = out};
    if (out->to_us <= out->from_us)
        st = sl_fail(err, SL_ERR_ARG,
                     "%s: the window from %.3f to %.3f ms is empty (kernels ran from "
                     "%.3f to %.3f ms)",
                     path, out->from_us / 1e3, out->to_us / 1e3, o.first_kernel_us / 1e3,
                     o.last_kernel_us / 1e3);
    if (st == SL_OK) st = make_rows(out, &o, err);
    if (st == SL_OK) st = sl_trace_read(path, &v, err);
    sl_trace_outline_free(&o);
    if (st != SL_OK) sl_trace_stats_free(out);
    return st;
}

void sl_trace_stats_free(sl_trace_stats *s) {
    for (size_t i = 0; i < s->n_links; i++) samples_free(&s->link[i].latency_us);
    for (size_t i = 0; i < s->n_layers; i++) {
        samples_free(&s->layer[i].flight_us);
        sl_free(s->layer[i].worker_rows);
    }
    samples_free(&s->step_us);
    samples_free(&s->queued_us);
    sl_free(s->worker);
    sl_free(s->link);
    sl_free(s->layer);
    sl_free(s->expert);
    *s = (sl_trace_stats){0};
}

/* ---- figures ---- */

static double working_us(const sl_trace_worker_stats *w) {
    return w->us[SL_TRACE_CAT_EXECUTE] + w->us[SL_TRACE_CAT_PACK] + w->us[SL_TRACE_CAT_SEND];
}

double sl_trace_stats_busy(const sl_trace_stats *s, const sl_trace_worker_stats *w) {
    return SL_MAX(working_us(w), w->device_us) / (s->to_us - s->from_us);
}

double sl_trace_stats_kernel_share(const sl_trace_worker_stats *w) {
    double all = working_us(w);
    return all > 0 ? w->us[SL_TRACE_CAT_EXECUTE] / all : 0;
}

double sl_trace_stats_bubble(const sl_trace_worker_stats *w) {
    double with_work = working_us(w) + w->us[SL_TRACE_CAT_POLL] + w->us[SL_TRACE_CAT_WAIT];
    return with_work > 0 ? w->us[SL_TRACE_CAT_WAIT] / with_work : 0;
}

double sl_trace_stats_worker_imbalance(const sl_trace_stats *s) {
    uint64_t most = 0, sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < s->n_workers; i++) {
        if (!s->worker[i].kind_us[SL_TRACE_EXPERT] && !s->worker[i].expert_rows) continue;
        most = SL_MAX(most, s->worker[i].expert_rows);
        sum += s->worker[i].expert_rows;
        n++;
    }
    return sum ? (double)most * (double)n / (double)sum : 0;
}

double sl_trace_stats_expert_imbalance(const sl_trace_stats *s) {
    uint64_t most = 0, sum = 0;
    for (size_t i = 0; i < s->n_experts; i++) {
        most = SL_MAX(most, s->expert[i]);
        sum += s->expert[i];
    }
    return sum ? (double)most * (double)s->n_experts / (double)sum : 0;
}

const char *sl_trace_stats_busiest_worker(const sl_trace_stats *s, double *share) {
    const char *name = "";
    *share = 0;
    for (size_t i = 0; i < s->n_workers; i++) {
        double busy = sl_trace_stats_busy(s, &s->worker[i]);
        if (busy <= *share) continue;
        *share = busy;
        name = s->worker[i].name;
    }
    return name;
}

const char *sl_trace_stats_busiest_link(const sl_trace_stats *s, double *share) {
    const char *name = "";
    *share = 0;
    for (size_t i = 0; i < s->n_links; i++) {
        double busy = s->link[i].busy_us / (s->to_us - s->from_us);
        if (busy <= *share) continue;
        *share = busy;
        name = s->link[i].name;
    }
    return name;
}
