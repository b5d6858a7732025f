/* Load for experiments: starts the coordinator of a deployment, drives a closed or an open loop of
 * requests through the engine's own interface and prints what came out as one JSON object. What it
 * reads, after bench/lab/run.py has filled in the rest (docs/laboratory.md):
 *
 *   {"model": FOLDER, "plan": {...}, "transport": "shm", "spawn": true, "host": "127.0.0.1",
 *    "port": 0, "trace": FILE or "", "trace_events": 0, "program": SLUICE, "load": {"loop":
 * "closed", "concurrency": 64, "rate": 0, "requests": 0, "warmup_s": 2, "measure_s": 10, "prompt":
 * [1, 1], "output": [50, 250], "seed": 1}}
 *
 * usage: lab_load FILE      (the secret of joining workers comes in SLUICE_SECRET) */
#include "load_int.h"

#include "base/options.h"
#include "format/plan_json.h"
#include "kernel/choice.h"
#include "model/model.h"
#include "net/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sl_status read_range(sl_json v, const char *key, uint32_t range[2], sl_err *err) {
    sl_json list = {0};
    sl_status st = sl_json_array(v, key, SL_JSON_REQUIRED, &list, err);
    for (size_t i = 0; st == SL_OK && i < 2; i++) {
        uint64_t n = 0;
        if (sl_json_count(list) != 2 || !sl_json_as_u64(sl_json_at(list, i), &n) || n < 1 ||
            n > 1000000 || (i == 1 && n < range[0]))
            return sl_json_fail(v, key, err, SL_ERR_ARG, "[least, most] tokens expected");
        range[i] = (uint32_t)n;
    }
    return st;
}

static sl_status read_load(sl_json v, load_spec *l, sl_err *err) {
    static const char *const keys[] = {"loop",     "concurrency", "rate",       "requests",
                                       "warmup_s", "measure_s",   "prompt",     "output",
                                       "seed",     "slo_ttft_ms", "slo_tpot_ms"};
    const char *loop = "closed";
    uint64_t concurrency = 0;
    sl_status st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_json_string(v, "loop", SL_JSON_REQUIRED, &loop, err);
    if (st == SL_OK)
        st = sl_json_u64(v, "concurrency", SL_JSON_REQUIRED, 1, LOAD_MAX_OPEN, &concurrency, err);
    if (st == SL_OK) st = sl_json_f64(v, "rate", SL_JSON_OPTIONAL, 0, 1e6, &l->rate, err);
    if (st == SL_OK)
        st = sl_json_u64(v, "requests", SL_JSON_OPTIONAL, 0, 1u << 30, &l->requests, err);
    if (st == SL_OK) st = sl_json_f64(v, "warmup_s", SL_JSON_OPTIONAL, 0, 86400, &l->warmup_s, err);
    if (st == SL_OK)
        st = sl_json_f64(v, "measure_s", SL_JSON_OPTIONAL, 0, 86400, &l->measure_s, err);
    if (st == SL_OK) st = read_range(v, "prompt", l->prompt, err);
    if (st == SL_OK) st = read_range(v, "output", l->output, err);
    if (st == SL_OK) st = sl_json_u64(v, "seed", SL_JSON_OPTIONAL, 0, UINT32_MAX, &l->seed, err);
    if (st == SL_OK)
        st = sl_json_f64(v, "slo_ttft_ms", SL_JSON_OPTIONAL, 0, 1e9, &l->slo_ttft_ms, err);
    if (st == SL_OK)
        st = sl_json_f64(v, "slo_tpot_ms", SL_JSON_OPTIONAL, 0, 1e9, &l->slo_tpot_ms, err);
    if (st != SL_OK) return st;
    l->concurrency = (uint32_t)concurrency;
    l->open = strcmp(loop, "open") == 0;
    if (!l->open && strcmp(loop, "closed") != 0)
        return sl_json_fail(v, "loop", err, SL_ERR_ARG, "\"closed\" or \"open\" expected");
    if (l->open && !(l->rate > 0))
        return sl_json_fail(v, "rate", err, SL_ERR_ARG, "an open loop needs requests a second");
    if (!l->requests && !(l->measure_s > 0))
        return sl_json_fail(v, "measure_s", err, SL_ERR_ARG, "or \"requests\": when does it end?");
    return SL_OK;
}

static sl_status read_config(sl_json v, sl_engine_opts *o, load_spec *l, sl_model_spec *m,
                             sl_err *err) {
    static const char *const keys[] = {"model", "plan",  "transport",    "spawn",   "host",
                                       "port",  "trace", "trace_events", "program", "load"};
    sl_json plan = {0}, load = {0};
    const char *trace = "", *host = "127.0.0.1";
    bool spawn = true;
    uint64_t port = 0;
    sl_status st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_json_string(v, "model", SL_JSON_REQUIRED, &o->model_folder, err);
    if (st == SL_OK) st = sl_json_string(v, "transport", SL_JSON_REQUIRED, &o->transport, err);
    if (st == SL_OK) st = sl_json_string(v, "program", SL_JSON_REQUIRED, &o->program, err);
    if (st == SL_OK) st = sl_json_string(v, "host", SL_JSON_OPTIONAL, &host, err);
    if (st == SL_OK) st = sl_json_string(v, "trace", SL_JSON_OPTIONAL, &trace, err);
    if (st == SL_OK)
        st = sl_json_u64(v, "trace_events", SL_JSON_OPTIONAL, 0, SL_TRACE_MAX_EVENTS,
                         &o->trace_events, err);
    if (st == SL_OK) st = sl_json_bool(v, "spawn", SL_JSON_OPTIONAL, &spawn, err);
    if (st == SL_OK) st = sl_json_u64(v, "port", SL_JSON_OPTIONAL, 0, 65535, &port, err);
    if (st == SL_OK) st = sl_json_object(v, "plan", SL_JSON_REQUIRED, &plan, err);
    if (st == SL_OK) st = sl_json_object(v, "load", SL_JSON_REQUIRED, &load, err);
    if (st == SL_OK) st = read_load(load, l, err);
    if (st == SL_OK) st = sl_model_read_spec(o->model_folder, m, NULL, err);
    if (st == SL_OK) st = sl_plan_from_json(plan, m, &o->plan, err);
    if (st != SL_OK) return st;
    bool threads = strcmp(o->transport, "loop") == 0;
    o->spawn = !spawn ? SL_SPAWN_NONE : threads ? SL_SPAWN_THREADS : SL_SPAWN_PROCESSES;
    o->host = host;
    o->port = (uint16_t)port;
    o->trace_path = trace[0] ? trace : NULL;
    const char *secret = spawn ? NULL : sl_options_secret();
    if (secret) o->secret = (sl_span){(const uint8_t *)secret, strlen(secret)};
    if (l->prompt[1] + l->output[1] > o->plan.context)
        return sl_fail(err, SL_ERR_ARG, "load: prompt and output of %u and %u tokens, context %u",
                       l->prompt[1], l->output[1], o->plan.context);
    return SL_OK;
}

int main(int argc, char **argv) {
    sl_err err = {0};
    sl_json_doc *doc = NULL;
    sl_model_spec m;
    sl_engine *e = NULL;
    load_spec l = {.seed = 1};
    sl_engine_opts o = {0};
    if (argc != 2) return fprintf(stderr, "usage: lab_load FILE\n"), 2;
    sl_status st = sl_json_load(argv[1], 16u << 20, &doc, &err);
    if (st == SL_OK) st = read_config(sl_json_root(doc), &o, &l, &m, &err);
    if (st == SL_OK) {
        o.isa = sl_kernels_chosen(); /* as every other program does */
        sl_net_setup_process(o.transport);
        l.vocab = m.vocab;
        l.time_scale = sl_device_is_modelled(&o.plan.device) ? o.plan.device.time_scale : 1;
        st = sl_engine_create(&o, &e, &err);
    }
    if (st == SL_OK) st = load_run(e, &l, &err);
    sl_engine_free(e);
    sl_plan_free(&o.plan);
    sl_json_doc_free(doc);
    if (st == SL_OK) return 0;
    fprintf(stderr, "lab_load: %s\n", err.msg);
    return 1;
}
