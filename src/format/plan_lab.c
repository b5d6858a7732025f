/* Parts of a plan that only experiments have: skew, devices and their costs, pinned cores. */
#include "format/plan_lab.h"

#include "format/profile_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COST_US 1e9
#define MAX_SCALE   1e6
#define MAX_PERIOD  65536u

static const char emulated[] = "emulated:";

/* ---- route skew ---- */

static sl_status bad_skew(const char *text, const char *why, sl_err *err) {
    return sl_fail(err, SL_ERR_ARG, "route skew '%.60s': %s; exp:THETA[:permuted][:SEED] expected",
                   text, why);
}

sl_status sl_route_skew_parse(const char *text, sl_route_skew *out, sl_err *err) {
    sl_route_skew s = {.on = true, .seed = 1};
    const char *p = text;
    char *end;
    if (strncmp(p, "exp:", 4) != 0) return bad_skew(text, "the only kind is exp", err);
    p += 4;
    s.theta = strtod(p, &end);
    if (end == p || !(s.theta >= 0 && s.theta <= SL_SKEW_MAX_THETA) || *p == '-')
        return bad_skew(text, "THETA is a number from 0 to 20", err);
    p = end;
    if (strncmp(p, ":permuted", 9) == 0 && (p[9] == '\0' || p[9] == ':')) {
        s.permuted = true;
        p += 9;
    }
    if (*p == ':') {
        errno = 0;
        s.seed = strtoull(p + 1, &end, 10);
        if (p[1] < '0' || p[1] > '9' || errno) return bad_skew(text, "SEED is a number", err);
        p = end;
    }
    if (*p) return bad_skew(text, "something follows", err);
    *out = s;
    return SL_OK;
}

void sl_route_skew_print(const sl_route_skew *s, char out[SL_SKEW_TEXT]) {
    snprintf(out, SL_SKEW_TEXT, "exp:%.17g%s:%llu", s->theta, s->permuted ? ":permuted" : "",
             (unsigned long long)s->seed);
}

/* ---- device ---- */

static sl_status read_cost(sl_json v, const char *name, sl_stage_cost *c, sl_err *err) {
    static const char *const keys[] = {"fixed", "floor",   "row",  "key",   "read", "pad",
                                       "sum",   "sum_row", "task", "slope", "step"};
    double *const field[] = {&c->fixed_us, &c->floor_us, &c->row_us,     &c->key_us,  &c->read_us,
                             &c->pad_us,   &c->sum_us,   &c->sum_row_us, &c->task_us, &c->slope_us};
    uint64_t step = 0;
    sl_json cost = {0};
    sl_status st = sl_json_object(v, name, SL_JSON_OPTIONAL, &cost, err);
    if (st != SL_OK || !cost.value) return st;
    st = sl_json_only(cost, keys, SL_LEN(keys), err);
    for (size_t i = 0; st == SL_OK && i < SL_LEN(field); i++)
        st = sl_json_f64(cost, keys[i], SL_JSON_OPTIONAL, 0, MAX_COST_US, field[i], err);
    if (st == SL_OK)
        st = sl_json_u64(cost, "step", SL_JSON_OPTIONAL, 0, SL_STAGE_MAX_STEP, &step, err);
    c->step = (uint32_t)step;
    return st;
}

static sl_status read_link(sl_json v, const char *name, sl_json_need need, sl_link_cost *out,
                           sl_err *err) {
    static const char *const keys[] = {"alpha", "byte", "half", "half_duplex"};
    sl_json link = {0};
    sl_link_cost l = {0};
    sl_status st = sl_json_object(v, name, need, &link, err);
    if (st != SL_OK || !link.value) return st;
    st = sl_json_only(link, keys, SL_LEN(keys), err);
    if (st == SL_OK)
        st = sl_json_f64(link, "alpha", SL_JSON_OPTIONAL, 0, MAX_COST_US, &l.alpha_us, err);
    if (st == SL_OK)
        st = sl_json_f64(link, "byte", SL_JSON_OPTIONAL, 0, MAX_COST_US, &l.byte_us, err);
    if (st == SL_OK)
        st = sl_json_f64(link, "half", SL_JSON_OPTIONAL, 0, MAX_COST_US, &l.half_bytes, err);
    if (st == SL_OK) st = sl_json_bool(link, "half_duplex", SL_JSON_OPTIONAL, &l.half_duplex, err);
    if (st == SL_OK) *out = l;
    return st;
}

static json_t *link_json(const sl_link_cost *l) {
    return json_pack("{s:f, s:f, s:f, s:b}", "alpha", l->alpha_us, "byte", l->byte_us, "half",
                     l->half_bytes, "half_duplex", (int)l->half_duplex);
}

sl_status sl_device_from_json(sl_json v, sl_device_spec *out, sl_err *err) {
    const char *keys[SL_COST_COUNT + 7] = {"time_scale", "crash_id", "grouped", "rank_link",
                                           "comment",    "repeats",  "strays"};
    uint64_t crash_id = 0;
    sl_device_spec d = {.kind = SL_DEVICE_EMULATED, .time_scale = 1};
    for (int i = 0; i < SL_COST_COUNT; i++) keys[i + 7] = sl_cost_name((sl_cost_kind)i);
    sl_status st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK)
        st = sl_json_f64(v, "time_scale", SL_JSON_OPTIONAL, 1e-6, MAX_SCALE, &d.time_scale, err);
    if (st == SL_OK)
        st = sl_json_u64(v, "crash_id", SL_JSON_OPTIONAL, 0, UINT32_MAX, &crash_id, err);
    d.crash_id = (uint32_t)crash_id;
    if (st == SL_OK)
        st = sl_json_u32(v, "repeats", SL_JSON_OPTIONAL, 1, MAX_PERIOD, &d.text_period, err);
    if (st == SL_OK) st = sl_json_f64(v, "strays", SL_JSON_OPTIONAL, 0, 1, &d.text_strays, err);
    if (st == SL_OK && d.text_strays > 0 && !d.text_period)
        st = sl_json_fail(v, "strays", err, SL_ERR_ARG, "from a text that repeats (repeats)");
    for (size_t i = 0; st == SL_OK && i < SL_COST_COUNT; i++)
        st = read_cost(v, sl_cost_name((sl_cost_kind)i), &d.cost[i], err);
    if (st == SL_OK) st = sl_json_bool(v, "grouped", SL_JSON_OPTIONAL, &d.grouped, err);
    if (st == SL_OK) st = read_link(v, "rank_link", SL_JSON_OPTIONAL, &d.rank_link, err);
    if (st == SL_OK) *out = d;
    return st;
}

/* Measured costs: the file of sluice profile. */
static sl_status profiled_device(const char *path, sl_device_spec *out, sl_err *err) {
    sl_profile p = {0};
    sl_costs c;
    sl_status st = sl_profile_load(path, &p, err);
    if (st == SL_OK) st = sl_profile_costs(&p, NULL, 1, &c, err);
    if (st == SL_OK) {
        *out = (sl_device_spec){.kind = SL_DEVICE_EMULATED, .time_scale = 1};
        memcpy(out->cost, c.stage, sizeof out->cost);
    }
    sl_profile_free(&p);
    return st;
}

sl_status sl_device_parse(const char *text, sl_device_spec *out, sl_err *err) {
    sl_json_doc *doc = NULL;
    if (strcmp(text, "cpu") == 0) {
        *out = (sl_device_spec){.time_scale = 1};
        return SL_OK;
    }
    if (strncmp(text, emulated, sizeof emulated - 1) != 0)
        return sl_fail(err, SL_ERR_ARG, "device '%.60s' is unknown: cpu or emulated:FILE", text);
    const char *path = text + sizeof emulated - 1;
    sl_status st = sl_json_load(path, SL_PROFILE_MAX_BYTES, &doc, err);
    if (st == SL_OK && sl_json_get(sl_json_root(doc), "stages").value)
        st = profiled_device(path, out, err);
    else if (st == SL_OK)
        st = sl_device_from_json(sl_json_root(doc), out, err);
    sl_json_doc_free(doc);
    return st;
}

static json_t *stage_json(const sl_stage_cost *c) {
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i}", "fixed",
                     c->fixed_us, "floor", c->floor_us, "slope", c->slope_us, "row", c->row_us,
                     "key", c->key_us, "read", c->read_us, "pad", c->pad_us, "sum", c->sum_us,
                     "sum_row", c->sum_row_us, "task", c->task_us, "step", (int)c->step);
}

json_t *sl_device_json(const sl_device_spec *d) {
    json_t *v =
        json_pack("{s:f, s:I}", "time_scale", d->time_scale, "crash_id", (json_int_t)d->crash_id);
    for (size_t i = 0; v && i < SL_COST_COUNT; i++)
        json_object_set_new(v, sl_cost_name((sl_cost_kind)i), stage_json(&d->cost[i]));
    if (v && d->text_period) json_object_set_new(v, "repeats", json_integer(d->text_period));
    if (v && d->text_strays > 0) json_object_set_new(v, "strays", json_real(d->text_strays));
    if (v && d->grouped) json_object_set_new(v, "grouped", json_true());
    if (v && (d->rank_link.alpha_us > 0 || d->rank_link.byte_us > 0))
        json_object_set_new(v, "rank_link", link_json(&d->rank_link));
    return v;
}

/* ---- costs ---- */

sl_status sl_costs_from_json(sl_json v, sl_costs *out, sl_err *err) {
    const char *keys[SL_COST_COUNT + 1] = {"link"};
    sl_costs c = {0};
    for (int i = 0; i < SL_COST_COUNT; i++) keys[i + 1] = sl_cost_name((sl_cost_kind)i);
    sl_status st = sl_json_only(v, keys, SL_LEN(keys), err);
    for (size_t i = 0; st == SL_OK && i < SL_COST_COUNT; i++)
        st = read_cost(v, sl_cost_name((sl_cost_kind)i), &c.stage[i], err);
    if (st == SL_OK) st = read_link(v, "link", SL_JSON_REQUIRED, &c.link, err);
    if (st == SL_OK) *out = c;
    return st;
}

json_t *sl_costs_json(const sl_costs *c) {
    json_t *v = json_pack("{s:o}", "link", link_json(&c->link));
    for (size_t i = 0; v && i < SL_COST_COUNT; i++)
        json_object_set_new(v, sl_cost_name((sl_cost_kind)i), stage_json(&c->stage[i]));
    return v;
}

/* ---- pinning ---- */

sl_status sl_plan_pin(const char *text, sl_plan *p, sl_err *err) {
    uint32_t n = 0;
    p->pin_auto = strcmp(text, "auto") == 0;
    if (p->pin_auto) return SL_OK;
    for (const char *at = text;; at++) {
        char *end;
        long v = strtol(at, &end, 10);
        if (end == at || *at < '0' || *at > '9' || v > SL_PLAN_MAX_CPU || (*end && *end != ','))
            return sl_fail(err, SL_ERR_ARG, "--pin: '%.20s' is neither auto nor a CPU from 0 to %d",
                           at, SL_PLAN_MAX_CPU);
        if (n < p->n_workers) p->worker[n++].cpu = (int32_t)v;
        at = end;
        if (!*at) break;
    }
    for (uint32_t i = n; i < p->n_workers; i++) p->worker[i].cpu = p->worker[i - n].cpu;
    return SL_OK;
}

sl_status sl_numa_parse(const char *text, bool *on, sl_err *err) {
    *on = strcmp(text, "on") == 0;
    if (*on || strcmp(text, "off") == 0) return SL_OK;
    return sl_fail(err, SL_ERR_ARG, "--numa '%.20s': off or on expected", text);
}

sl_status sl_plan_check_numa(const sl_plan *p, sl_err *err) {
    bool pinned = p->pin_auto;
    if (!p->numa) return SL_OK;
    for (uint32_t i = 0; i < p->n_workers; i++) pinned |= p->worker[i].cpu >= 0;
    const char *why = NULL;
    if (sl_device_is_modelled(&p->device))
        why = "an emulated device has no weights";
    else if (p->random_weights)
        why = "random weights (--random-weights) are the same for all workers";
    else if (sl_plan_n_gpu(p) == p->n_workers)
        why = "all workers have their weights on GPUs";
    else if (!pinned)
        why = "no worker has CPUs of its own, near which weights could lie (pin, --pin auto)";
    return why ? sl_fail(err, SL_ERR_UNSUPPORTED, "plan: numa (--numa on): %s", why) : SL_OK;
}
