/* Descriptions of workloads from YAML or JSON: lengths, arrivals, limits, routing. */
#include "format/workload_file.h"

#include "base/mem.h"
#include "format/map.h"
#include "format/presets.h"
#include "format/yaml.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>

#define MAX_SLO_US     1e12
#define MAX_RATE       1e9
#define MAX_SPEED      1e6
#define MAX_SIGMA      4
#define MAX_CONCURRENT 100000000u

/* ---- lengths ---- */

static sl_status length_text(sl_yaml v, const char *key, uint32_t *out, sl_err *err) {
    uint64_t n = 0;
    sl_status st = sl_yaml_u64(v, key, SL_JSON_REQUIRED, 1, SL_WORKLOAD_MAX_LENGTH, &n, err);
    *out = (uint32_t)n;
    return st;
}

/* [low, high] */
static sl_status read_uniform(sl_yaml v, sl_length *l, sl_err *err) {
    sl_yaml list = {0};
    uint32_t *const end[] = {&l->low, &l->high};
    sl_status st = sl_yaml_child(v, "uniform", SL_JSON_REQUIRED, SL_YAML_LIST, &list, err);
    if (st == SL_OK && sl_yaml_count(list) != 2)
        return sl_yaml_fail(v, "uniform", err, SL_ERR_FORMAT, "%zu values, two expected",
                            sl_yaml_count(list));
    for (size_t i = 0; st == SL_OK && i < 2; i++) {
        const char *text = sl_yaml_text(sl_yaml_at(list, i));
        double n = 0;
        if (sl_quantity_parse(text, SL_UNIT_NONE, &n, NULL) != SL_OK || n < 1 ||
            n > SL_WORKLOAD_MAX_LENGTH || n != (double)(uint32_t)n)
            return sl_yaml_fail(v, "uniform", err, SL_ERR_LIMIT,
                                "\"%.40s\" is not a whole number from 1 to %u", text,
                                SL_WORKLOAD_MAX_LENGTH);
        *end[i] = (uint32_t)n;
    }
    if (st == SL_OK && l->low > l->high)
        return sl_yaml_fail(v, "uniform", err, SL_ERR_FORMAT, "%u is above %u", l->low, l->high);
    return st;
}

static sl_status read_lognormal(sl_yaml v, sl_length *l, sl_err *err) {
    static const char *const keys[] = {"median", "sigma", "min", "max"};
    sl_yaml d = {0};
    uint64_t low = 1, high = SL_WORKLOAD_MAX_LENGTH;
    sl_status st = sl_yaml_child(v, "lognormal", SL_JSON_REQUIRED, SL_YAML_MAP, &d, err);
    if (st == SL_OK) st = sl_yaml_only(d, keys, SL_LEN(keys), err);
    if (st == SL_OK)
        st = sl_yaml_f64(d, "median", SL_JSON_REQUIRED, SL_UNIT_NONE, 1, SL_WORKLOAD_MAX_LENGTH,
                         &l->median, err);
    if (st == SL_OK)
        st = sl_yaml_f64(d, "sigma", SL_JSON_REQUIRED, SL_UNIT_NONE, 0, MAX_SIGMA, &l->sigma, err);
    if (st == SL_OK)
        st = sl_yaml_u64(d, "min", SL_JSON_OPTIONAL, 1, SL_WORKLOAD_MAX_LENGTH, &low, err);
    if (st == SL_OK)
        st = sl_yaml_u64(d, "max", SL_JSON_OPTIONAL, low, SL_WORKLOAD_MAX_LENGTH, &high, err);
    l->low = (uint32_t)low;
    l->high = (uint32_t)high;
    return st;
}

static sl_status read_length(sl_yaml root, const char *key, sl_length *out, sl_err *err) {
    static const char *const keys[] = {"fixed", "uniform", "lognormal"};
    sl_yaml v = sl_yaml_get(root, key);
    sl_length l = {0};
    sl_status st = SL_OK;
    if (sl_yaml_kind_of(v) == SL_YAML_ABSENT) {
        if (out->n) return SL_OK; /* the trace's */
        return sl_yaml_fail(root, key, err, SL_ERR_FORMAT, "missing");
    }
    if (sl_yaml_kind_of(v) == SL_YAML_SCALAR) {
        st = length_text(root, key, &l.low, err);
    } else {
        st = sl_yaml_only(v, keys, SL_LEN(keys), err);
        if (st == SL_OK && sl_yaml_count(v) != 1)
            st = sl_yaml_fail(root, key, err, SL_ERR_FORMAT, "one of fixed, uniform, lognormal");
    }
    if (st != SL_OK) return st;
    if (sl_yaml_get(v, "uniform").doc) {
        l.kind = SL_LENGTH_UNIFORM;
        st = read_uniform(v, &l, err);
    } else if (sl_yaml_get(v, "lognormal").doc) {
        l.kind = SL_LENGTH_LOGNORMAL;
        st = read_lognormal(v, &l, err);
    } else {
        if (sl_yaml_get(v, "fixed").doc) st = length_text(v, "fixed", &l.low, err);
        l.high = l.low;
    }
    if (st != SL_OK) return st;
    sl_free(out->sorted);
    *out = l;
    return SL_OK;
}

/* ---- the rest ---- */

static sl_status read_arrival(sl_yaml root, const sl_workload *w, sl_arrival *a, sl_err *err) {
    static const char *const keys[] = {"closed", "poisson", "trace"};
    sl_yaml v = {0};
    uint64_t concurrency = 0;
    *a = (sl_arrival){.kind = SL_ARRIVAL_CLOSED, .concurrency = 1};
    if (w->trace) *a = (sl_arrival){.kind = SL_ARRIVAL_TRACE, .speed = 1};
    sl_status st = sl_yaml_child(root, "arrival", SL_JSON_OPTIONAL, SL_YAML_MAP, &v, err);
    if (st != SL_OK || !v.doc) return st;
    st = sl_yaml_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK && sl_yaml_count(v) != 1)
        st = sl_yaml_fail(root, "arrival", err, SL_ERR_FORMAT, "one of closed, poisson, trace");
    if (st != SL_OK) return st;
    const char *kind = sl_yaml_key_at(v, 0);
    *a = (sl_arrival){0};
    if (strcmp(kind, "poisson") == 0) {
        a->kind = SL_ARRIVAL_POISSON;
        return sl_yaml_f64(v, kind, SL_JSON_REQUIRED, SL_UNIT_NONE, 1e-6, MAX_RATE, &a->rate, err);
    }
    if (strcmp(kind, "trace") == 0) {
        a->kind = SL_ARRIVAL_TRACE;
        if (!w->trace)
            return sl_yaml_fail(v, kind, err, SL_ERR_FORMAT, "there is no trace in this file");
        return sl_yaml_f64(v, kind, SL_JSON_REQUIRED, SL_UNIT_NONE, 1e-6, MAX_SPEED, &a->speed,
                           err);
    }
    a->kind = SL_ARRIVAL_CLOSED;
    if (strcmp(sl_yaml_text(sl_yaml_at(v, 0)), "full") == 0) return SL_OK;
    st = sl_yaml_u64(v, kind, SL_JSON_REQUIRED, 1, MAX_CONCURRENT, &concurrency, err);
    a->concurrency = (uint32_t)concurrency;
    return st;
}

static sl_status read_slo(sl_yaml root, sl_workload *w, sl_err *err) {
    static const char *const keys[] = {"ttft", "tpot", "quantile"};
    sl_yaml v = {0};
    w->slo_quantile = 0.9;
    sl_status st = sl_yaml_child(root, "slo", SL_JSON_OPTIONAL, SL_YAML_MAP, &v, err);
    if (st != SL_OK || !v.doc) return st;
    st = sl_yaml_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK)
        st = sl_yaml_f64(v, "ttft", SL_JSON_OPTIONAL, SL_UNIT_US, 1, MAX_SLO_US, &w->slo_ttft_us,
                         err);
    if (st == SL_OK)
        st = sl_yaml_f64(v, "tpot", SL_JSON_OPTIONAL, SL_UNIT_US, 1, MAX_SLO_US, &w->slo_tpot_us,
                         err);
    if (st == SL_OK)
        st = sl_yaml_f64(v, "quantile", SL_JSON_OPTIONAL, SL_UNIT_NONE, 0.01, 1, &w->slo_quantile,
                         err);
    return st;
}

static sl_status read_guesses(sl_yaml root, sl_workload *w, sl_err *err) {
    static const char *const keys[] = {"right", "found", "block"};
    sl_yaml v = {0};
    sl_status st = sl_yaml_child(root, "guesses", SL_JSON_OPTIONAL, SL_YAML_MAP, &v, err);
    if (st != SL_OK || !v.doc) return st;
    w->guess_found = 1;
    st = sl_yaml_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK)
        st = sl_yaml_f64(v, "right", SL_JSON_REQUIRED, SL_UNIT_NONE, 1e-6, 1, &w->guess_right, err);
    if (st == SL_OK)
        st = sl_yaml_f64(v, "block", SL_JSON_OPTIONAL, SL_UNIT_NONE, 0, 1, &w->guess_block, err);
    if (st == SL_OK)
        st = sl_yaml_f64(v, "found", SL_JSON_OPTIONAL, SL_UNIT_NONE, 0, 1, &w->guess_found, err);
    return st;
}

static sl_status read_routing(sl_yaml root, sl_route_skew *s, sl_err *err) {
    static const char *const keys[] = {"exp", "permuted", "seed"};
    sl_yaml v = {0};
    sl_status st = sl_yaml_child(root, "routing", SL_JSON_OPTIONAL, SL_YAML_MAP, &v, err);
    if (st != SL_OK || !v.doc) return st;
    *s = (sl_route_skew){.on = true, .seed = 1};
    st = sl_yaml_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK)
        st = sl_yaml_f64(v, "exp", SL_JSON_REQUIRED, SL_UNIT_NONE, 0, SL_SKEW_MAX_THETA, &s->theta,
                         err);
    if (st == SL_OK) st = sl_yaml_bool(v, "permuted", SL_JSON_OPTIONAL, &s->permuted, err);
    if (st == SL_OK) st = sl_yaml_u64(v, "seed", SL_JSON_OPTIONAL, 0, UINT64_MAX, &s->seed, err);
    return st;
}

/* ---- traces ---- */

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static sl_status sort_lengths(const sl_workload *w, bool output, sl_length *l, sl_err *err) {
    *l = (sl_length){.kind = SL_LENGTH_TRACE, .n = w->n_trace};
    l->sorted = sl_alloc(w->n_trace, sizeof *l->sorted);
    if (!l->sorted) return sl_fail(err, SL_ERR_NOMEM, "no memory for %zu lengths", w->n_trace);
    for (size_t i = 0; i < w->n_trace; i++)
        l->sorted[i] = output ? w->trace[i].output : w->trace[i].input;
    qsort(l->sorted, l->n, sizeof *l->sorted, by_value);
    l->low = l->sorted[0];
    l->high = l->sorted[l->n - 1];
    return SL_OK;
}

static bool ends_in(const char *path, const char *end) {
    size_t n = strlen(path), m = strlen(end);
    return n > m && strcasecmp(path + n - m, end) == 0;
}

static sl_status load_trace(const char *path, sl_workload *w, sl_err *err) {
    sl_map map = {0};
    bool csv = ends_in(path, ".csv");
    if (!csv && !ends_in(path, ".jsonl"))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: a trace ends in .jsonl or .csv", path);
    sl_status st = sl_map_open(path, SL_TRACE_MAX_BYTES, &map, err);
    if (st == SL_OK) st = sl_trace_parse(path, map.bytes, csv, &w->trace, &w->n_trace, err);
    sl_map_close(&map);
    if (st == SL_OK) st = sort_lengths(w, false, &w->input, err);
    if (st == SL_OK) st = sort_lengths(w, true, &w->output, err);
    w->n_requests = w->n_trace;
    return st;
}

/* A relative trace lies beside the workload's file. */
static sl_status read_trace(const char *file, sl_yaml root, sl_workload *w, sl_err *err) {
    char path[4096];
    const char *trace = NULL, *slash = strrchr(file, '/');
    sl_status st = sl_yaml_string(root, "trace", SL_JSON_OPTIONAL, &trace, err);
    if (st != SL_OK || !trace) return st;
    int beside = *trace == '/' || !slash ? 0 : (int)(slash + 1 - file);
    if ((size_t)snprintf(path, sizeof path, "%.*s%s", beside, file, trace) >= sizeof path)
        return sl_yaml_fail(root, "trace", err, SL_ERR_LIMIT, "path longer than %zu bytes",
                            sizeof path - 1);
    return load_trace(path, w, err);
}

static void name_after(const char *path, sl_workload *w) {
    const char *slash = strrchr(path, '/');
    snprintf(w->name, sizeof w->name, "%s", slash ? slash + 1 : path);
}

sl_status sl_workload_parse(const char *file, sl_span text, sl_workload *out, sl_err *err) {
    static const char *const keys[] = {"name", "input",   "output", "arrival", "requests",
                                       "slo",  "routing", "trace",  "guesses"};
    sl_yaml_doc *doc = NULL;
    sl_workload w = {0};
    const char *name = NULL;
    sl_status st = sl_yaml_parse(file, text, &doc, err);
    if (st != SL_OK) return st;
    sl_yaml root = sl_yaml_root(doc);
    name_after(file, &w);
    st = sl_yaml_only(root, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_yaml_string(root, "name", SL_JSON_OPTIONAL, &name, err);
    if (st == SL_OK && name) name_after(name, &w);
    if (st == SL_OK) st = read_trace(file, root, &w, err);
    if (st == SL_OK) st = read_length(root, "input", &w.input, err);
    if (st == SL_OK) st = read_length(root, "output", &w.output, err);
    if (st == SL_OK) st = read_arrival(root, &w, &w.arrival, err);
    if (st == SL_OK)
        st = sl_yaml_u64(root, "requests", SL_JSON_OPTIONAL, 1, SL_TRACE_MAX_REQUESTS,
                         &w.n_requests, err);
    if (st == SL_OK) st = read_slo(root, &w, err);
    if (st == SL_OK) st = read_routing(root, &w.skew, err);
    if (st == SL_OK) st = read_guesses(root, &w, err);
    if (st == SL_OK)
        *out = w;
    else
        sl_workload_free(&w);
    sl_yaml_doc_free(doc);
    return st;
}

static sl_status open_trace(const char *path, sl_workload *out, sl_err *err) {
    sl_workload w = {.slo_quantile = 0.9};
    w.arrival = (sl_arrival){.kind = SL_ARRIVAL_TRACE, .speed = 1};
    name_after(path, &w);
    sl_status st = load_trace(path, &w, err);
    if (st == SL_OK)
        *out = w;
    else
        sl_workload_free(&w);
    return st;
}

sl_status sl_workload_open(const char *path_or_name, sl_workload *out, sl_err *err) {
    struct stat info;
    sl_map map = {0};
    if (stat(path_or_name, &info) == 0) {
        if (ends_in(path_or_name, ".jsonl") || ends_in(path_or_name, ".csv"))
            return open_trace(path_or_name, out, err);
        sl_status st = sl_map_open(path_or_name, SL_YAML_MAX_BYTES, &map, err);
        if (st == SL_OK) st = sl_workload_parse(path_or_name, map.bytes, out, err);
        sl_map_close(&map);
        return st;
    }
    const char *text = sl_preset_workload_text(path_or_name);
    if (text) {
        sl_span span = {(const uint8_t *)text, strlen(text)};
        return sl_workload_parse(path_or_name, span, out, err);
    }
    char names[200] = "";
    for (size_t i = 0; sl_preset_workload_name(i); i++) {
        size_t at = strlen(names);
        snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", sl_preset_workload_name(i));
    }
    return sl_fail(err, SL_ERR_NOTFOUND, "'%.150s' is no file and no preset (%s)", path_or_name,
                   names);
}

void sl_workload_free(sl_workload *w) {
    sl_free(w->input.sorted);
    sl_free(w->output.sorted);
    sl_free(w->trace);
    *w = (sl_workload){0};
}
