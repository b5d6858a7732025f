/* The rows of a trace file and what it says of its run, before any event. */
#include "trace/trace_stats.h"

#include "base/mem.h"
#include "trace/trace_file.h"

#include <stdlib.h>
#include <string.h>

/* For terminals and pictures: what a file says must not do more than be read. */
static void copy_printable(const char *text, size_t len, char *out, size_t cap) {
    size_t n = SL_MIN(len, cap - 1);
    for (size_t i = 0; i < n; i++) out[i] = text[i] >= 0x20 && text[i] < 0x7F ? text[i] : '?';
    out[n] = '\0';
}

static sl_trace_row *row_of(sl_trace_outline *o, uint32_t pid, uint32_t tid) {
    for (size_t i = 0; i < o->n_rows; i++) {
        if (o->row[i].pid == pid && o->row[i].tid == tid) return &o->row[i];
    }
    return NULL;
}

static sl_status name_row(sl_trace_outline *o, const sl_trace_item *it, sl_err *err) {
    bool process = strcmp(it->name, "process_name") == 0;
    bool links = it->pid == SL_TRACE_LINKS_PID;
    const bool device = !process && !links && it->tid == SL_TRACE_DEVICE_TID;
    /* A worker's execution row has the worker's name, its device and a link their own. */
    if ((process == links && !device) || (!process && strcmp(it->name, "thread_name") != 0))
        return SL_OK;
    uint32_t tid = process ? 0 : it->tid;
    sl_trace_row *row = row_of(o, it->pid, tid);
    if (!row) {
        if (o->n_rows == SL_TRACE_MAX_ROWS)
            return sl_fail(err, SL_ERR_LIMIT, "trace of more than %u workers and links",
                           SL_TRACE_MAX_ROWS);
        if (o->n_rows == o->cap_rows) {
            size_t cap = SL_MAX(o->cap_rows * 2, (size_t)16);
            sl_trace_row *bigger = sl_grow(o->row, o->cap_rows, cap, sizeof *bigger);
            if (!bigger) return sl_fail(err, SL_ERR_NOMEM, "trace of %zu rows", cap);
            o->row = bigger;
            o->cap_rows = cap;
        }
        row = &o->row[o->n_rows++];
        *row = (sl_trace_row){.pid = it->pid, .tid = tid};
        o->n_workers += !links && !device;
    }
    copy_printable(it->label, strlen(it->label), row->name, sizeof row->name);
    return SL_OK;
}

static sl_status on_item(void *ctx, const sl_trace_item *it, sl_err *err) {
    sl_trace_outline *o = ctx;
    if (it->is_name) return name_row(o, it, err);
    if (strcmp(it->category, "execute") != 0 && strcmp(it->category, "device") != 0) return SL_OK;
    if (o->last_kernel_us < o->first_kernel_us || it->begin_us < o->first_kernel_us)
        o->first_kernel_us = it->begin_us;
    o->last_kernel_us = SL_MAX(o->last_kernel_us, it->end_us);
    if (it->lane < SL_TRACE_MAX_LAYERS) o->lanes = SL_MAX(o->lanes, it->lane + 1);
    if (it->chunk < SL_TRACE_MAX_LAYERS) o->chunks = SL_MAX(o->chunks, it->chunk + 1);
    return SL_OK;
}

static void copy_text(sl_json v, const char *key, char *out, size_t cap) {
    sl_span s;
    if (sl_json_as_span(sl_json_get(v, key), &s))
        copy_printable((const char *)s.data, s.len, out, cap);
}

static sl_status on_about(void *ctx, sl_json about, sl_err *err) {
    sl_trace_outline *o = ctx;
    (void)err;
    copy_text(about, "schedule", o->schedule, sizeof o->schedule);
    copy_text(about, "transport", o->transport, sizeof o->transport);
    copy_text(about, "model", o->model, sizeof o->model);
    sl_json workers = sl_json_get(about, "workers");
    for (size_t i = 0; i < sl_json_count(workers); i++) {
        uint64_t dropped = 0;
        double error = 0;
        sl_json w = sl_json_at(workers, i);
        sl_json_as_u64(sl_json_get(w, "dropped"), &dropped);
        sl_json_as_f64(sl_json_get(w, "clock_error_us"), &error);
        o->dropped += dropped;
        o->clock_error_us = SL_MAX(o->clock_error_us, error);
        o->missing += sl_json_kind_of(sl_json_get(w, "missing")) != SL_JSON_ABSENT;
    }
    return SL_OK;
}

static int by_place(const void *pa, const void *pb) {
    const sl_trace_row *a = pa, *b = pb;
    if (a->pid != b->pid) return a->pid < b->pid ? -1 : 1;
    return a->tid < b->tid ? -1 : a->tid > b->tid;
}

sl_status sl_trace_outline_read(const char *path, sl_trace_outline *out, sl_err *err) {
    *out = (sl_trace_outline){.first_kernel_us = 1}; /* after the last: none yet */
    const sl_trace_visitor v = {.on_about = on_about, .on_item = on_item, .ctx = out};
    sl_status st = sl_trace_read(path, &v, err);
    if (st == SL_OK && out->n_workers == 0)
        st = sl_fail(err, SL_ERR_FORMAT, "%s: no worker has a row in this trace", path);
    if (st == SL_OK)
        qsort(out->row, out->n_rows, sizeof *out->row, by_place);
    else
        sl_trace_outline_free(out);
    return st;
}

void sl_trace_outline_free(sl_trace_outline *o) {
    sl_free(o->row);
    *o = (sl_trace_outline){0};
}
