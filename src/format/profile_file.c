/* Profiles of measured stages and links, read and written as JSON. */
#include "format/profile_file.h"

#include "base/mem.h"
#include "format/json.h"
#include "format/map.h"

#include <stdio.h>
#include <string.h>

#define MAX_US    1e9
#define MAX_BYTES 1e18

static const char *const cost_names[SL_COST_COUNT] = {"attention", "router", "dense",
                                                      "shared",    "expert", "head"};

const char *sl_cost_name(sl_cost_kind kind) {
    return cost_names[kind];
}

/* ---- reading ---- */

/* [[x, us]] or [[rows, keys, us]]; `width` numbers each. */
static sl_status read_points(sl_json obj, size_t width, sl_profile_points *out, sl_err *err) {
    sl_json list = {0};
    sl_status st = sl_json_array(obj, "points", SL_JSON_OPTIONAL, &list, err);
    size_t n = sl_json_count(list);
    if (st != SL_OK || n == 0) return st;
    if (n > SL_PROFILE_MAX_POINTS)
        return sl_json_fail(obj, "points", err, SL_ERR_LIMIT, "%zu points, limit %d", n,
                            SL_PROFILE_MAX_POINTS);
    out->point = sl_alloc(n, sizeof *out->point);
    if (!out->point) return sl_fail(err, SL_ERR_NOMEM, "no memory for %zu points", n);
    out->n = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        sl_json p = sl_json_at(list, i);
        double v[3] = {0};
        bool ok = sl_json_count(p) == width;
        for (size_t k = 0; ok && k < width; k++)
            ok = sl_json_as_f64(sl_json_at(p, k), &v[k]) && v[k] >= 0 && v[k] <= MAX_BYTES;
        if (!ok)
            return sl_json_fail(obj, "points", err, SL_ERR_FORMAT,
                                "point %zu is not %zu numbers from 0 to %g", i, width, MAX_BYTES);
        out->point[i] =
            (sl_profile_point){.rows = v[0], .keys = width == 3 ? v[1] : 0, .us = v[width - 1]};
    }
    return SL_OK;
}

static sl_status read_fit(sl_json obj, uint32_t n_points, sl_fit_quality *q, sl_err *err) {
    static const char *const keys[] = {"r2", "median_error", "worst_error", "outliers"};
    sl_json fit = {0};
    uint64_t outliers = 0;
    sl_status st = sl_json_object(obj, "fit", SL_JSON_OPTIONAL, &fit, err);
    if (st != SL_OK || !fit.value) return st;
    st = sl_json_only(fit, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_json_f64(fit, "r2", SL_JSON_OPTIONAL, -1e18, 1, &q->r2, err);
    if (st == SL_OK)
        st = sl_json_f64(fit, "median_error", SL_JSON_OPTIONAL, 0, 1e18, &q->median_error, err);
    if (st == SL_OK)
        st = sl_json_f64(fit, "worst_error", SL_JSON_OPTIONAL, 0, 1e18, &q->worst_error, err);
    if (st == SL_OK)
        st = sl_json_u64(fit, "outliers", SL_JSON_OPTIONAL, 0, SL_PROFILE_MAX_POINTS, &outliers,
                         err);
    q->n_points = n_points;
    q->n_outliers = (uint32_t)outliers;
    return st;
}

static sl_status read_stage(sl_json stages, const char *name, sl_profile_stage *s, sl_err *err) {
    static const char *const keys[] = {"fixed", "floor",  "row",  "key", "pad",    "task", "again",
                                       "slope", "beside", "step", "fit", "points", "bytes"};
    double *const field[] = {&s->cost.fixed_us, &s->cost.floor_us, &s->cost.row_us,
                             &s->cost.key_us,   &s->cost.pad_us,   &s->cost.task_us,
                             &s->cost.again_us, &s->cost.slope_us, &s->beside};
    uint64_t step = 0;
    sl_json v = {0};
    sl_status st = sl_json_object(stages, name, SL_JSON_OPTIONAL, &v, err);
    if (st != SL_OK || !v.value) return st;
    s->present = true;
    st = sl_json_only(v, keys, SL_LEN(keys), err);
    for (size_t i = 0; st == SL_OK && i < SL_LEN(field); i++)
        st = sl_json_f64(v, keys[i], SL_JSON_OPTIONAL, 0, MAX_US, field[i], err);
    if (st == SL_OK)
        st = sl_json_u64(v, "step", SL_JSON_OPTIONAL, 0, SL_STAGE_MAX_STEP, &step, err);
    s->cost.step = (uint32_t)step;
    if (st == SL_OK) st = sl_json_f64(v, "bytes", SL_JSON_OPTIONAL, 0, MAX_BYTES, &s->bytes, err);
    if (st == SL_OK) st = read_points(v, 3, &s->points, err);
    if (st == SL_OK) st = read_fit(v, s->points.n, &s->fit, err);
    return st;
}

static sl_status read_link(sl_json v, sl_profile_link *l, sl_err *err) {
    static const char *const keys[] = {"transport",  "peers",       "alpha",      "byte",
                                       "half_bytes", "half_duplex", "knee_bytes", "beyond",
                                       "work",       "fit",         "points"};
    const char *transport = NULL;
    uint64_t peers = 1;
    sl_status st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_json_string(v, "transport", SL_JSON_REQUIRED, &transport, err);
    if (st == SL_OK && strlen(transport) >= sizeof l->transport)
        return sl_json_fail(v, "transport", err, SL_ERR_LIMIT, "%zu bytes, limit %zu",
                            strlen(transport), sizeof l->transport - 1);
    if (st == SL_OK) st = sl_json_u64(v, "peers", SL_JSON_OPTIONAL, 1, 1000000, &peers, err);
    if (st == SL_OK)
        st = sl_json_f64(v, "alpha", SL_JSON_REQUIRED, 0, MAX_US, &l->cost.alpha_us, err);
    if (st == SL_OK)
        st = sl_json_f64(v, "byte", SL_JSON_REQUIRED, 0, MAX_US, &l->cost.byte_us, err);
    if (st == SL_OK)
        st = sl_json_f64(v, "half_bytes", SL_JSON_OPTIONAL, 0, MAX_BYTES, &l->cost.half_bytes, err);
    if (st == SL_OK)
        st = sl_json_f64(v, "knee_bytes", SL_JSON_OPTIONAL, 0, MAX_BYTES, &l->cost.knee_bytes, err);
    if (st == SL_OK)
        st = sl_json_f64(v, "beyond", SL_JSON_OPTIONAL, 0, MAX_US, &l->cost.beyond_us, err);
    if (st == SL_OK)
        st = sl_json_f64(v, "work", SL_JSON_OPTIONAL, 0, MAX_US, &l->cost.work_us, err);
    if (st == SL_OK)
        st = sl_json_bool(v, "half_duplex", SL_JSON_OPTIONAL, &l->cost.half_duplex, err);
    if (st == SL_OK) st = read_points(v, 2, &l->points, err);
    if (st == SL_OK) st = read_fit(v, l->points.n, &l->fit, err);
    if (st == SL_OK) snprintf(l->transport, sizeof l->transport, "%s", transport);
    l->peers = (uint32_t)peers;
    return st;
}

static sl_status read_text(sl_json root, const char *key, char *out, size_t cap, sl_err *err) {
    const char *text = "";
    sl_status st = sl_json_string(root, key, SL_JSON_OPTIONAL, &text, err);
    if (st == SL_OK && strlen(text) >= cap)
        return sl_json_fail(root, key, err, SL_ERR_LIMIT, "%zu bytes, limit %zu", strlen(text),
                            cap - 1);
    if (st == SL_OK) snprintf(out, cap, "%s", text);
    return st;
}

static sl_status read_head(sl_json root, sl_profile *p, sl_err *err) {
    static const char *const keys[] = {
        "version", "model",          "machine",      "isa",     "cores",   "threads",    "stages",
        "links",   "random_weights", "memory_bytes", "seconds", "comment", "cache_bytes"};
    uint64_t version = 0, cores = 0, threads = 0;
    sl_status st = sl_json_only(root, keys, SL_LEN(keys), err);
    if (st == SL_OK)
        st = sl_json_u64(root, "version", SL_JSON_REQUIRED, SL_PROFILE_VERSION, SL_PROFILE_VERSION,
                         &version, err);
    if (st == SL_OK) st = read_text(root, "model", p->model, sizeof p->model, err);
    if (st == SL_OK) st = read_text(root, "machine", p->machine, sizeof p->machine, err);
    if (st == SL_OK) st = read_text(root, "isa", p->isa, sizeof p->isa, err);
    if (st == SL_OK) st = sl_json_u64(root, "cores", SL_JSON_OPTIONAL, 0, 1000000, &cores, err);
    if (st == SL_OK) st = sl_json_u64(root, "threads", SL_JSON_OPTIONAL, 0, 1000000, &threads, err);
    if (st == SL_OK)
        st = sl_json_bool(root, "random_weights", SL_JSON_OPTIONAL, &p->random_weights, err);
    if (st == SL_OK)
        st = sl_json_f64(root, "memory_bytes", SL_JSON_OPTIONAL, 0, MAX_BYTES, &p->memory_bytes,
                         err);
    if (st == SL_OK)
        st = sl_json_f64(root, "cache_bytes", SL_JSON_OPTIONAL, 0, MAX_BYTES, &p->cache_bytes, err);
    if (st == SL_OK)
        st = sl_json_f64(root, "seconds", SL_JSON_OPTIONAL, 0, MAX_US, &p->seconds, err);
    p->cores = (uint32_t)cores;
    p->threads = (uint32_t)threads;
    return st;
}

static sl_status read_profile(sl_json root, sl_profile *p, sl_err *err) {
    sl_json stages = {0}, links = {0};
    sl_status st = read_head(root, p, err);
    if (st == SL_OK) st = sl_json_object(root, "stages", SL_JSON_REQUIRED, &stages, err);
    if (st == SL_OK) st = sl_json_only(stages, cost_names, SL_COST_COUNT, err);
    for (size_t i = 0; st == SL_OK && i < SL_COST_COUNT; i++)
        st = read_stage(stages, cost_names[i], &p->stage[i], err);
    if (st == SL_OK) st = sl_json_array(root, "links", SL_JSON_OPTIONAL, &links, err);
    size_t n = sl_json_count(links);
    if (st == SL_OK && n > SL_PROFILE_MAX_LINKS)
        return sl_json_fail(root, "links", err, SL_ERR_LIMIT, "%zu links, limit %d", n,
                            SL_PROFILE_MAX_LINKS);
    for (size_t i = 0; st == SL_OK && i < n; i++) {
        p->n_links = (uint32_t)i + 1;
        st = read_link(sl_json_at(links, i), &p->link[i], err);
    }
    return st;
}

sl_status sl_profile_parse(const char *file, sl_span text, sl_profile *out, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_profile p = {0};
    sl_status st = sl_json_parse(file, text, &doc, err);
    if (st == SL_OK) st = read_profile(sl_json_root(doc), &p, err);
    if (st == SL_OK)
        *out = p;
    else
        sl_profile_free(&p);
    sl_json_doc_free(doc);
    return st;
}

sl_status sl_profile_load(const char *path, sl_profile *out, sl_err *err) {
    sl_map map = {0};
    sl_status st = sl_map_open(path, SL_PROFILE_MAX_BYTES, &map, err);
    if (st == SL_OK) st = sl_profile_parse(path, map.bytes, out, err);
    sl_map_close(&map);
    return st;
}

sl_status sl_profile_load_stages(const char *path, sl_profile *out, sl_err *err) {
    sl_status st = sl_profile_load(path, out, err);
    if (st != SL_OK || out->stage[SL_COST_EXPERT].present) return st;
    sl_profile_free(out);
    return sl_fail(err, SL_ERR_ARG, "%s has no times of stages: measure with a MODEL", path);
}

void sl_profile_free(sl_profile *p) {
    for (size_t i = 0; i < SL_COST_COUNT; i++) sl_free(p->stage[i].points.point);
    for (size_t i = 0; i < SL_PROFILE_MAX_LINKS; i++) sl_free(p->link[i].points.point);
    *p = (sl_profile){0};
}

/* ---- writing ---- */

static json_t *points_json(const sl_profile_points *p, bool keys) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->n; i++) {
        const sl_profile_point *at = &p->point[i];
        json_array_append_new(list, keys ? json_pack("[f,f,f]", at->rows, at->keys, at->us)
                                         : json_pack("[f,f]", at->rows, at->us));
    }
    return list;
}

static json_t *fit_json(const sl_fit_quality *q) {
    return json_pack("{s:f, s:f, s:f, s:i}", "r2", q->r2, "median_error", q->median_error,
                     "worst_error", q->worst_error, "outliers", (int)q->n_outliers);
}

json_t *sl_profile_json(const sl_profile *p) {
    json_t *stages = json_object(), *links = json_array();
    for (size_t i = 0; i < SL_COST_COUNT; i++) {
        const sl_profile_stage *s = &p->stage[i];
        if (!s->present) continue;
        json_object_set_new(
            stages, cost_names[i],
            json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:f, s:o, s:o}", "fixed",
                      s->cost.fixed_us, "floor", s->cost.floor_us, "slope", s->cost.slope_us, "row",
                      s->cost.row_us, "key", s->cost.key_us, "pad", s->cost.pad_us, "task",
                      s->cost.task_us, "again", s->cost.again_us, "bytes", s->bytes, "step",
                      (int)s->cost.step, "beside", s->beside, "fit", fit_json(&s->fit), "points",
                      points_json(&s->points, true)));
    }
    for (uint32_t i = 0; i < p->n_links; i++) {
        const sl_profile_link *l = &p->link[i];
        json_array_append_new(
            links, json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:b, s:o, s:o}", "transport",
                             l->transport, "peers", (int)l->peers, "alpha", l->cost.alpha_us,
                             "byte", l->cost.byte_us, "half_bytes", l->cost.half_bytes,
                             "knee_bytes", l->cost.knee_bytes, "beyond", l->cost.beyond_us, "work",
                             l->cost.work_us, "half_duplex", (int)l->cost.half_duplex, "fit",
                             fit_json(&l->fit), "points", points_json(&l->points, false)));
    }
    return json_pack("{s:i, s:s, s:s, s:s, s:i, s:i, s:b, s:f, s:f, s:f, s:o, s:o}", "version",
                     (int)SL_PROFILE_VERSION, "model", p->model, "machine", p->machine, "isa",
                     p->isa, "cores", (int)p->cores, "threads", (int)p->threads, "random_weights",
                     (int)p->random_weights, "memory_bytes", p->memory_bytes, "cache_bytes",
                     p->cache_bytes, "seconds", p->seconds, "stages", stages, "links", links);
}

/* ---- use ---- */

static const sl_profile_link *link_named(const sl_profile *p, const char *transport) {
    for (uint32_t i = 0; i < p->n_links; i++)
        if (strcmp(p->link[i].transport, transport) == 0) return &p->link[i];
    return NULL;
}

bool sl_profile_is_of_gpu(const sl_profile *p) {
    return link_named(p, SL_PROFILE_GPU_OUT) != NULL;
}

void sl_profile_add_copies(const sl_profile *p, sl_link_cost *link) {
    const sl_profile_link *out = link_named(p, SL_PROFILE_GPU_OUT);
    const sl_profile_link *in = link_named(p, SL_PROFILE_GPU_IN);
    if (!out || !in) return;
    link->alpha_us += (out->cost.alpha_us + in->cost.alpha_us) / 2;
    link->byte_us += (out->cost.byte_us + in->cost.byte_us) / 2;
}

static bool is_copy(const sl_profile_link *l) {
    return strcmp(l->transport, SL_PROFILE_GPU_OUT) == 0 ||
           strcmp(l->transport, SL_PROFILE_GPU_IN) == 0;
}

/* The transport that came first; NULL: there is none. */
static const char *first_transport(const sl_profile *p) {
    for (uint32_t i = 0; i < p->n_links; i++)
        if (!is_copy(&p->link[i])) return p->link[i].transport;
    return NULL;
}

sl_status sl_profile_costs(const sl_profile *p, const char *transport, uint32_t peers,
                           sl_costs *out, sl_err *err) {
    sl_costs c = {0};
    const sl_profile_link *best = NULL;
    char names[200] = "";
    for (size_t i = 0; i < SL_COST_COUNT; i++) {
        c.stage[i] = p->stage[i].cost;
        c.beside[i] = p->stage[i].beside;
        c.bytes[i] = p->stage[i].bytes;
    }
    c.cache_bytes = p->cache_bytes;
    if (!transport) transport = first_transport(p);
    for (uint32_t i = 0; transport && i < p->n_links; i++) {
        const sl_profile_link *l = &p->link[i];
        size_t at = strlen(names);
        if (is_copy(l)) continue;
        snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "", l->transport);
        if (strcmp(l->transport, transport) != 0) continue;
        uint32_t far = l->peers > peers ? l->peers - peers : peers - l->peers;
        uint32_t best_far = !best                 ? UINT32_MAX
                            : best->peers > peers ? best->peers - peers
                                                  : peers - best->peers;
        if (far < best_far) best = l;
    }
    if (transport && !best)
        return sl_fail(err, SL_ERR_NOTFOUND, "the profile has no link \"%.20s\" (%s)", transport,
                       names);
    if (best) c.link = best->cost;
    *out = c;
    return SL_OK;
}
