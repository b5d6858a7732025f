/* Searches deployments of a model on a cluster. */
#include "cmd.h"
#include "plan_report.h"

#include "base/progress.h"
#include "base/mem.h"
#include "format/cluster_file.h"
#include "format/plan_json.h"
#include "format/profile_file.h"
#include "format/quantity.h"
#include "format/shape_config.h"
#include "format/workload_file.h"
#include "plan/lengths.h"
#include "sim/trial.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_INPUT   512
#define DEFAULT_OUTPUT  128
#define DEFAULT_TPOT_US 200e3 /* about as fast as people read: no one waits for less than that */

static sl_status read_objective(const char *text, sl_objective *out, sl_err *err) {
    static const char *const names[] = {"tok/s", "tok/s/$", "tok/s/device"};
    for (size_t i = 0; i < SL_LEN(names); i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (sl_objective)i;
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_ARG, "--objective: '%s' is not tok/s, tok/s/$ or tok/s/device",
                   text);
}

static sl_status read_slo(const char *flag, const char *text, double *us, sl_err *err) {
    if (!text[0]) return SL_OK;
    if (strcmp(text, "none") == 0) {
        *us = 0;
        return SL_OK;
    }
    sl_status st = sl_quantity_parse(text, SL_UNIT_US, us, err);
    if (st == SL_OK && !(*us > 0)) st = sl_fail(err, SL_ERR_ARG, "'%s' is not above 0", text);
    if (st == SL_OK) return st;
    sl_err_prefix(err, "%s", flag);
    return err->code = SL_ERR_ARG;
}

/* Requests that the model's context does not hold cannot be served. */
static sl_status check_lengths(const sl_workload *w, const sl_shape *m, sl_err *err) {
    uint32_t p95 = sl_length_p95(&w->input) + sl_length_p95(&w->output);
    if (m->max_position && p95 > m->max_position)
        return sl_fail(err, SL_ERR_ARG,
                       "requests of %u tokens (95th percentiles of prompt and answer) exceed the "
                       "model's context of %u",
                       p95, m->max_position);
    return SL_OK;
}

static sl_status read_workload(const sl_options *o, const sl_shape *m, sl_workload *w,
                               sl_err *err) {
    sl_status st = SL_OK;
    if (o->workload[0]) {
        st = sl_workload_open(o->workload, w, err);
    } else {
        uint32_t most = m->max_position ? m->max_position : UINT32_MAX;
        uint32_t in = SL_MIN(DEFAULT_INPUT, most / 2), out = SL_MIN(DEFAULT_OUTPUT, most / 8);
        w->input = (sl_length){.low = in, .high = in};
        w->output = (sl_length){.low = out, .high = out};
    }
    if (st == SL_OK) st = read_slo("--slo-tpot", o->slo_tpot, &w->slo_tpot_us, err);
    if (st == SL_OK) st = read_slo("--slo-ttft", o->slo_ttft, &w->slo_ttft_us, err);
    return st == SL_OK ? check_lengths(w, m, err) : st;
}

/* Without an objective the most tokens come from batches that nobody would wait for. */
static bool add_default_tpot(const sl_options *o, sl_workload *w) {
    if (o->slo_tpot[0] || w->slo_tpot_us > 0) return false;
    w->slo_tpot_us = DEFAULT_TPOT_US;
    return true;
}

/* Positions of a request in the plan; 0: the workload's longest. */
static sl_status read_context(const sl_options *o, const sl_shape *m, uint32_t *out, sl_err *err) {
    uint32_t most = m->max_position ? SL_MIN(m->max_position, 1u << 20) : 1u << 20;
    char *end;
    *out = 0;
    if (strcmp(o->plan_context, "workload") == 0) return SL_OK;
    if (strcmp(o->plan_context, "model") == 0) {
        *out = m->max_position ? most : 0;
        return *out ? SL_OK : sl_fail(err, SL_ERR_ARG, "--context: %s has no limit", m->name);
    }
    unsigned long n = strtoul(o->plan_context, &end, 10);
    if (end == o->plan_context || *end || *o->plan_context == '-' || n < 1 || n > most)
        return sl_fail(err, SL_ERR_ARG, "--context: '%.20s' is not workload, model or 1 to %u",
                       o->plan_context, most);
    *out = (uint32_t)n;
    return SL_OK;
}

/* "ep,findep" to bits of sl_layout_kind; "": 0, all. */
static sl_status read_only(const char *text, uint32_t *out, sl_err *err) {
    *out = 0;
    for (size_t n; *text; text += n + (text[n] == ',')) {
        uint32_t before = *out;
        n = strcspn(text, ",");
        for (int k = 0; k < SL_LAYOUT_COUNT; k++) {
            const char *name = sl_layout_name((sl_layout_kind)k);
            if (strlen(name) == n && strncmp(name, text, n) == 0) *out |= 1u << k;
        }
        if (*out == before)
            return sl_fail(err, SL_ERR_ARG,
                           "--only: '%.*s' is none of ep, eps, hybrid, pipeline, dep, pingpong, "
                           "findep, aep, or named twice",
                           (int)SL_MIN(n, 20u), text);
    }
    return SL_OK;
}

/* Profiles, by the cluster's types. */
typedef struct measured {
    sl_costs costs[SL_CLUSTER_MAX_TYPES];
    sl_type_costs of_type[SL_CLUSTER_MAX_TYPES];
    sl_link_cost intra, inter;
    char name[SL_CLUSTER_MAX_TYPES][SL_PROFILE_TEXT];
    const char *machine[SL_CLUSTER_MAX_TYPES];
} measured;

/* Measured costs of the types of device `first` .. first + n - 1 instead of estimates. A link that
 * was not measured is what the cluster says. */
static sl_status read_profile(const char *path, uint32_t first, uint32_t n, sl_shape *shape,
                              sl_search_problem *p, measured *m, sl_err *err) {
    sl_profile profile = {0};
    sl_costs costs;
    sl_status st = sl_profile_load_stages(path, &profile, err);
    if (st == SL_OK) st = sl_profile_costs(&profile, NULL, 1, &costs, err);
    if (st == SL_OK && strcmp(profile.model, shape->name) != 0)
        fprintf(stderr, "sluice plan: %s is of model %s, not %s\n", path, profile.model,
                shape->name);
    for (uint32_t t = first; st == SL_OK && t < first + n; t++) {
        m->costs[t] = costs;
        m->of_type[t] =
            (sl_type_costs){.costs = &m->costs[t], .cpu = !sl_profile_is_of_gpu(&profile)};
        sl_profile_add_copies(&profile, &m->of_type[t].copies);
        snprintf(m->name[t], sizeof m->name[t], "%s", profile.machine);
        m->machine[t] = m->name[t];
    }
    if (st == SL_OK && !p->measured_intra)
        p->measured_intra = sl_link_of_profile(&profile, false, &m->intra);
    if (st == SL_OK && !p->measured_inter)
        p->measured_inter = sl_link_of_profile(&profile, true, &m->inter);
    sl_profile_free(&profile);
    return st;
}

/* TYPE=FILE */
static sl_status read_one(const char *text, size_t n, sl_shape *shape, sl_search_problem *p,
                          measured *m, sl_err *err) {
    const char *is = memchr(text, '=', n);
    char path[4096];
    if (!is || n - (size_t)(is + 1 - text) >= sizeof path)
        return sl_fail(err, SL_ERR_ARG, "--profile: '%.*s' is not TYPE=FILE", (int)SL_MIN(n, 60u),
                       text);
    const size_t named = (size_t)(is - text);
    snprintf(path, sizeof path, "%.*s", (int)(n - named - 1), is + 1);
    for (uint32_t t = 0; t < p->cluster->n_types; t++) {
        const char *name = p->cluster->type[t].name;
        if (strlen(name) != named || strncmp(name, text, named) != 0) continue;
        if (m->machine[t])
            return sl_fail(err, SL_ERR_ARG, "--profile: type %s is named twice", name);
        return read_profile(path, t, 1, shape, p, m, err);
    }
    return sl_fail(err, SL_ERR_ARG, "--profile: cluster %s has no type of device '%.*s'",
                   p->cluster->name, (int)SL_MIN(named, 60u), text);
}

/* One file for all devices, or TYPE=FILE,... The engine's own widths go with what was measured. */
static sl_status read_profiles(const sl_options *o, sl_shape *shape, sl_search_problem *p,
                               measured *m, sl_err *err) {
    sl_status st = SL_OK;
    if (!o->profile[0]) return SL_OK;
    if (!strchr(o->profile, '=')) {
        st = read_profile(o->profile, 0, p->cluster->n_types, shape, p, m, err);
    } else {
        for (const char *at = o->profile; st == SL_OK && *at;) {
            const size_t n = strcspn(at, ",");
            st = read_one(at, n, shape, p, m, err);
            at += n + (at[n] == ',');
        }
    }
    p->of_type = m->of_type;
    p->value_bytes = shape->kv_value_bytes = sizeof(float);
    return st;
}

/* Whoever is told of the search: a line on a terminal, a file, or nobody. */
typedef struct listener {
    sl_progress line;
    int fd; /* 0: none */
} listener;

static void tell(void *ctx, uint64_t done, uint64_t total) {
    listener *l = ctx;
    sl_progress_set(&l->line, done, total);
    /* who does not listen any more misses nothing */
    if (l->fd &&
        dprintf(l->fd, "%llu %llu\n", (unsigned long long)done, (unsigned long long)total) < 0)
        l->fd = 0;
}

static sl_status search(const sl_options *o, const sl_search_problem *p, const sl_plan_file *to,
                        sl_search_result *r, sl_err *err) {
    if (o->strategies)
        return sl_plan_report_strategies(p, o->top, o->json, o->plans, to, stdout, err);
    listener who = {.fd = (int)o->report_fd};
    sl_search_problem told = *p;
    told.progress = tell;
    told.progress_ctx = &who;
    sl_progress_begin(&who.line, "plan", SL_PROGRESS_STEPS, !o->json);
    sl_status st = sl_search_run(&told, o->top, r, err);
    sl_progress_end(&who.line);
    if (st == SL_OK && o->out[0]) st = sl_plan_report_write(p, sl_search_winner(r), to, err);
    if (st == SL_OK && o->json)
        sl_plan_report_json(p, r, o->plans ? to : NULL, stdout);
    else if (st == SL_OK)
        sl_plan_report_text(p, r, stdout);
    return st;
}

/* Where no deployment is as fast as the default asks, the default goes. */
static sl_status search_by_default(const sl_options *o, const sl_search_problem *p, sl_workload *w,
                                   const sl_plan_file *to, sl_search_result *r, sl_err *err) {
    bool by_default = add_default_tpot(o, w);
    sl_status st = search(o, p, to, r, err);
    if (!by_default || st != SL_ERR_INFEASIBLE) return st;
    w->slo_tpot_us = 0;
    st = search(o, p, to, r, err);
    if (st == SL_OK)
        fprintf(stderr,
                "sluice plan: nothing keeps the default of %.0f ms a token: ranked without it\n",
                DEFAULT_TPOT_US / 1e3);
    return st;
}

/* Said, or by lookup of a load that can be guessed: whether they pay is asked while it runs. */
static sl_status read_speculate(const sl_options *o, const sl_shape *shape, const sl_workload *w,
                                sl_speculate *out, sl_err *err) {
    if (w->guess_right > 0) *out = SL_SPECULATE_LOOKUP;
    if (!o->speculate[0]) return SL_OK;
    sl_status st = sl_speculate_parse(o->speculate, out, err);
    if (st != SL_OK) sl_err_prefix(err, "--speculate");
    if (st != SL_OK || !sl_speculates_by_mtp(*out)) return st;
    if (o->strategies)
        return sl_fail(err, SL_ERR_ARG,
                       "--speculate %s: --strategies counts no memory of the block that guesses",
                       o->speculate);
    if (shape->n_mtp) return SL_OK;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "--speculate %s: %s has no block that predicts a further token", o->speculate,
                   shape->name);
}

int cmd_plan(const sl_options *o) {
    sl_err err = {0};
    sl_plan_file to = {.path = o->out};
    sl_shape shape;
    static measured m; /* large */
    sl_workload workload = {0};
    sl_search_problem p = {.shape = &shape,
                           .workload = &workload,
                           .reserve = o->reserve,
                           .value_bytes = 2,
                           .decode_only = o->decode_only,
                           .runnable = o->runnable,
                           .as_published = o->as_published,
                           .trial = sl_sim_try};
    sl_search_result *r = sl_alloc(1, sizeof *r);
    sl_cluster *cluster = sl_alloc(1, sizeof *cluster);
    sl_status st = r && cluster ? SL_OK : sl_fail(&err, SL_ERR_NOMEM, "search");
    if (st == SL_OK) st = sl_shape_open(o->arg[0], &shape, &err);
    if (st == SL_OK && !o->cluster[0])
        st = sl_fail(&err, SL_ERR_ARG, "--cluster FILE or preset is missing");
    if (st == SL_OK) st = sl_cluster_open(o->cluster, cluster, &err);
    p.cluster = cluster;
    if (st == SL_OK && o->strategies && o->profile[0])
        st = sl_fail(&err, SL_ERR_ARG, "--strategies counts with data sheets; leave --profile out");
    if (st == SL_OK) st = read_profiles(o, &shape, &p, &m, &err);
    if (st == SL_OK) st = read_workload(o, &shape, &workload, &err);
    if (st == SL_OK) st = read_speculate(o, &shape, &workload, &p.speculate, &err);
    if (st == SL_OK) st = read_objective(o->objective, &p.objective, &err);
    if (st == SL_OK) st = read_context(o, &shape, &to.context, &err);
    if (st == SL_OK) st = read_only(o->only, &p.kinds, &err);
    if (st == SL_OK && o->plans && !o->json)
        st = sl_fail(&err, SL_ERR_ARG, "--plans: only with --json; -o writes the winner's");
    if (st == SL_OK) {
        p.compute = shape.expert_weight_bytes < 2 ? SL_COMPUTE_FP8 : SL_COMPUTE_BF16;
        to.machine = m.machine;
        to.on_gpus = o->on_gpus;
        st = search_by_default(o, &p, &workload, &to, r, &err);
    }
    sl_workload_free(&workload);
    sl_free(cluster);
    sl_free(r);
    return st == SL_OK ? 0 : sl_cmd_fail("plan", &err);
}
