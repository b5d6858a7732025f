/* --device auto: deployments on this machine's processors and GPUs, each as the options that one
 * would have to give for it, so that a plan's own rules say what it is and whether it can be. */
#include "device_auto.h"

#include "cmd.h"
#include "job.h"
#include "profile.h"

#include "base/log.h"
#include "base/mem.h"
#include "engine/measure/devices.h"
#include "format/plan_json.h"
#include "format/plan_sides.h"
#include "format/profile_file.h"
#include "model/model.h"
#include "sched/head.h"
#include "stage/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_CANDIDATES 6u
#define MOST_MEASURED   (2 * MOST_CANDIDATES) /* either side of each anew */
#define DEVICE_TEXT     12u                   /* "cuda:1023,", of one worker in a list */
#define NAME_BYTES      256u

/* A deployment that may be taken. */
typedef struct candidate {
    sl_options o;
    char *devices; /* of its list; NULL: there is none */
    char name[NAME_BYTES];
    sl_model_spec spec;
    sl_plan plan; /* zeroed where the options make none */
    bool on_gpus;
    bool prompts; /* a worker for these on a GPU, beside those of candidate `split` */
    sl_err why;   /* it cannot be; empty: it can */
    sl_status st;
    sl_devices_step step;
} candidate;

/* What one kind of device was found to cost, and what that depends on. */
typedef struct measured {
    sl_device_kind kind;
    sl_numerics numerics;
    sl_kv_type kv_type;
    uint32_t threads; /* of a GPU 0: they do not matter */
    sl_kind_costs of;
} measured;

typedef struct search {
    const sl_options *o;
    bool processes;
    uint32_t requests;
    const char *kernels;
    const char *transport; /* between workers, of those candidates that have several */
    sl_model_spec spec;
    sl_model_info info;
    sl_cuda_gpus gpus;
    uint32_t *gpu; /* [n_gpu] those that can be used, the one with most memory first */
    uint32_t n_gpu;
    bool has_profile[SL_DEVICE_KIND_COUNT];
    sl_kind_costs profile[SL_DEVICE_KIND_COUNT];
    bool has_link;
    sl_link_cost link;
    measured found[MOST_MEASURED];
    uint32_t n_found;
    candidate c[MOST_CANDIDATES]; /* all on processors first */
    uint32_t n, split;            /* split: attention on GPUs alone, where there is such a one */
} search;

bool sl_device_is_auto(const sl_options *o) {
    return strcmp(o->device, "auto") == 0;
}

/* ---- what cannot be together with it ---- */

/* What the plan's file says of its own accord. */
static sl_status check_plan_file(const search *s, sl_err *err) {
    sl_plan p = {0};
    if (!s->o->plan[0]) return SL_OK;
    sl_status st = sl_plan_read(s->o->plan, &s->spec, &p, err);
    if (st != SL_OK) return st;
    if (sl_plan_n_gpu(&p) > 0 || sl_device_is_modelled(&p.device))
        st = sl_fail(err, SL_ERR_ARG,
                     "--device auto: %s names devices itself: leave out --device, or say which",
                     s->o->plan);
    else if (sl_plan_has_prefill(&p) || sl_plan_n_first(&p) < p.n_workers)
        st = sl_fail(err, SL_ERR_UNSUPPORTED,
                     "--device auto: %s has workers for prompts or free places, which are not "
                     "compared: name devices",
                     s->o->plan);
    sl_plan_free(&p);
    return st;
}

static sl_status check_options(const search *s, sl_err *err) {
    const sl_options *o = s->o;
    const struct {
        bool given;
        const char *option, *why;
    } no[] = {
        {o->remote, "--remote", "workers on other machines are not measured"},
        {o->attention_device[0], "--attention-device", "auto chooses for all workers"},
        {o->expert_device[0], "--expert-device", "auto chooses for all workers"},
        {o->prefill + o->prefill_experts > 0, "--prefill", "a side for prompts is not compared"},
        {o->max_attention > 0, "--max-attention", "who comes later is not compared"},
        {o->max_experts > 0, "--max-experts", "who comes later is not compared"},
        {strcmp(o->numerics, "exact") == 0, "--numerics exact",
         "these bits are of GPUs alone, and auto may take processors; cpu is the same on both"},
        {o->random_weights, "--random-weights", "what is measured are a checkpoint's weights"},
    };
    for (size_t i = 0; i < SL_LEN(no); i++)
        if (no[i].given)
            return sl_fail(err, SL_ERR_UNSUPPORTED, "--device auto: not with %s: %s", no[i].option,
                           no[i].why);
    if (s->spec.weightless)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "--device auto: %s has no weights, and what is measured are these",
                       o->arg[0]);
    return check_plan_file(s, err);
}

/* ---- candidates ---- */

static int by_free(const void *a, const void *b) {
    const sl_cuda_gpu *x = *(const sl_cuda_gpu *const *)a, *y = *(const sl_cuda_gpu *const *)b;
    if (x->free_bytes != y->free_bytes) return x->free_bytes < y->free_bytes ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index);
}

/* Where there is none, `gpu` is the first all the same, to see whether there could be one. */
static sl_status find_gpus(search *s, sl_err *err) {
    sl_cuda_list_devices(&s->gpus);
    const sl_cuda_gpu **usable = sl_alloc(s->gpus.n + 1u, sizeof *usable);
    s->gpu = sl_alloc(s->gpus.n + 1u, sizeof *s->gpu);
    sl_status st = SL_OK;
    if (!usable || !s->gpu) st = sl_fail(err, SL_ERR_NOMEM, "list of GPUs");
    for (uint32_t i = 0; st == SL_OK && i < s->gpus.n; i++)
        if (!s->gpus.gpu[i].why[0]) usable[s->n_gpu++] = &s->gpus.gpu[i];
    if (st == SL_OK) qsort(usable, s->n_gpu, sizeof *usable, by_free);
    for (uint32_t i = 0; st == SL_OK && i < s->n_gpu; i++) s->gpu[i] = usable[i]->index;
    sl_free(usable);
    return st;
}

/* GPUs in turns, one for each of n workers; one where they would be all the same. */
static char *list_of_gpus(const search *s, uint32_t n) {
    const uint32_t others = SL_MAX(s->n_gpu, 1u), listed = others == 1 ? 1 : n;
    char *text = sl_alloc(listed, DEVICE_TEXT);
    size_t at = 0;
    for (uint32_t i = 0; text && i < listed; i++)
        at +=
            (size_t)snprintf(text + at, DEVICE_TEXT, "%scuda:%u", i ? "," : "", s->gpu[i % others]);
    return text;
}

static void name_it(candidate *c, bool roles) {
    const struct {
        const char *option, *text; /* text NULL: the option says it all */
        bool said;
    } of[] = {{"--device", c->o.device, c->o.device[0]},
              {"--attention-device", c->o.attention_device, c->o.attention_device[0]},
              {"--expert-device", c->o.expert_device, c->o.expert_device[0]},
              {"--prefill 1", NULL, c->prompts},
              {"--offload-experts", NULL, c->o.offload_experts}};
    size_t n =
        (size_t)snprintf(c->name, NAME_BYTES, "%s", roles ? "--attention 1 --experts 1" : "");
    for (size_t i = 0; i < SL_LEN(of); i++)
        if (of[i].said && n < NAME_BYTES)
            n +=
                (size_t)snprintf(c->name + n, NAME_BYTES - n, "%s%s%s%s", n ? " " : "",
                                 of[i].option, of[i].text ? " " : "", of[i].text ? of[i].text : "");
}

static void make_plan(candidate *c) {
    c->st = sl_deploy_plan(&c->o, &c->spec, &c->plan, &c->why);
    if (c->st != SL_OK) c->plan = (sl_plan){0};
}

/* All on processors, with the roles that were asked for. */
static void put_cpus(search *s) {
    candidate *c = &s->c[s->n++];
    c->o = *s->o;
    c->spec = s->spec;
    c->o.device = "cpu";
    c->o.gpu_memory = c->o.numerics = ""; /* of GPUs */
    c->o.offload_experts = false;
    name_it(c, false);
    make_plan(c);
}

/* Who is on GPUs, the others on processors. */
typedef struct where {
    bool attention, experts;
    bool split;   /* one worker of each role where one of both was asked for */
    bool offload; /* experts' weights stay in the machine's memory */
    bool prompts; /* of a worker for prompts alone, beside these */
} where;

/* n: how many of them are. */
static sl_status put_gpus(search *s, uint32_t n, where w, sl_err *err) {
    candidate *c = &s->c[s->n];
    c->o = *s->o;
    c->o.offload_experts = w.offload;
    c->spec = s->spec;
    c->on_gpus = true;
    c->prompts = w.prompts;
    c->devices = list_of_gpus(s, n + w.prompts);
    if (!c->devices) return sl_fail(err, SL_ERR_NOMEM, "devices of %u workers", n);
    s->n++;
    if (w.split) c->o.attention = c->o.experts = 1;
    if (w.prompts) c->o.prefill = 1;
    c->o.device = w.attention && w.experts ? c->devices : "";
    if (w.attention != w.experts) {
        c->o.attention_device = w.attention ? c->devices : "cpu";
        c->o.expert_device = w.experts ? c->devices : "cpu";
    }
    name_it(c, w.split);
    make_plan(c);
    return SL_OK;
}

static const char *find_transport(const search *s) {
    for (uint32_t i = 0; i < s->n; i++)
        if (s->c[i].plan.n_workers > 1) return sl_deploy_transport(&s->c[i].o, s->processes);
    return sl_deploy_transport(s->o, s->processes);
}

/* The plan of the first says who there is. */
static sl_status list_candidates(search *s, sl_err *err) {
    put_cpus(s);
    if (s->c[0].st != SL_OK) {
        *err = s->c[0].why;
        return s->c[0].st;
    }
    const sl_plan *p = &s->c[0].plan;
    const bool said = s->o->plan[0] || s->o->attention + s->o->experts > 0;
    uint32_t attention = 0;
    for (uint32_t i = 0; i < p->n_workers; i++)
        attention += (p->worker[i].roles & SL_ROLE_ATTENTION) != 0;
    const bool apart = attention < p->n_workers;
    const uint32_t all = p->n_workers;
    where w = {.attention = true, .experts = true};
    sl_status st = put_gpus(s, all, w, err);
    w = (where){.attention = true, .split = !said};
    s->split = s->n;
    if (st == SL_OK && (apart || !said)) st = put_gpus(s, attention, w, err);
    if (st == SL_OK && apart) st = put_gpus(s, all - attention, (where){.experts = true}, err);
    if (st == SL_OK && s->o->offload_experts && (apart || !said)) {
        w.offload = w.prompts = true;
        st = put_gpus(s, attention, w, err);
    }
    w = (where){.attention = true, .experts = true, .offload = true};
    if (st == SL_OK && s->o->offload_experts) st = put_gpus(s, all, w, err);
    s->transport = find_transport(s);
    return st;
}

/* An option may leave nothing but processors: then it and auto contradict each other. */
static sl_status check_candidates(const search *s, sl_err *err) {
    for (uint32_t i = 1; i < s->n; i++)
        if (s->c[i].st == SL_OK) return SL_OK;
    *err = s->c[1].why;
    (void)sl_err_prefix(err, "--device auto: no GPU can be taken");
    return s->c[1].st;
}

/* ---- what fits ---- */

/* Bytes that worker w takes of its GPU. */
typedef struct need {
    double weights, kv, calls;
} need;

static need need_of(const search *s, const candidate *c, uint32_t w) {
    const sl_plan *p = &c->plan;
    const bool attention = p->worker[w].roles & SL_ROLE_ATTENTION;
    const bool experts = p->worker[w].roles & SL_ROLE_EXPERT;
    uint32_t senders = 0;
    for (uint32_t i = 0; i < p->n_workers; i++)
        senders += (p->worker[i].roles & SL_ROLE_ATTENTION) && sl_plan_is_seen(p, w, i);
    const uint32_t pairs = sl_plan_pairs(p, senders, c->spec.top_k, sl_job_experts(p, w));
    const double here = p->worker[w].offload ? (double)sl_cuda_offload_room(&c->spec, &s->info) +
                                                   (attention ? (double)s->info.bytes_attention : 0)
                                             : (double)sl_job_weights(p, &c->spec, &s->info, w);
    return (need){
        .weights = here,
        .kv = (double)sl_job_kv(p, &c->spec, w),
        .calls = (double)sl_cuda_calls_bytes(&c->spec, attention ? sl_plan_lane_rows(p) : 0,
                                             experts ? pairs : 0, attention ? SL_HEAD_ROWS : 0)};
}

static sl_status check_gpu(const search *s, const candidate *c, const sl_cuda_gpu *g, sl_err *err) {
    const sl_plan *p = &c->plan;
    const double most = (double)p->device.gpu_memory, free_bytes = (double)g->free_bytes;
    double all = 0;
    for (uint32_t w = 0; w < p->n_workers; w++) {
        if (!sl_plan_on_gpu(p, w) || sl_plan_device_of(p, w).index != g->index) continue;
        const need n = need_of(s, c, w);
        const double bytes = n.weights + n.kv + n.calls;
        if (most > 0 && bytes > most)
            return sl_fail(err, SL_ERR_INFEASIBLE,
                           "worker %u wants %.1f MB for weights, %.1f MB for KV and %.1f MB for "
                           "its calls, --gpu-memory is %.1f MB",
                           w, 1e-6 * n.weights, 1e-6 * n.kv, 1e-6 * n.calls, 1e-6 * most);
        all += bytes;
    }
    if (all == 0 || all + (double)SL_CUDA_LEFT <= free_bytes) return SL_OK;
    return sl_fail(err, SL_ERR_INFEASIBLE,
                   "workers on cuda:%u want %.1f MB for weights, KV and calls, and %.1f MB have to "
                   "stay free: %.1f MB are",
                   g->index, 1e-6 * all, 1e-6 * (double)SL_CUDA_LEFT, 1e-6 * free_bytes);
}

/* Whether it finds room. Small things beside are not counted: the worker finds them out. */
static void check_memory(const search *s, candidate *c) {
    for (uint32_t i = 0; c->st == SL_OK && c->on_gpus && i < s->gpus.n; i++)
        c->st = check_gpu(s, c, &s->gpus.gpu[i], &c->why);
}

static bool any_on_gpus(const search *s) {
    for (uint32_t i = 0; i < s->n; i++)
        if (s->c[i].on_gpus && s->c[i].st == SL_OK) return true;
    return false;
}

/* ---- what they cost ---- */

static void say_profile(const search *s, const char *kind, const char *path, const sl_profile *p) {
    char model[SL_PROFILE_TEXT];
    sl_profile_name(s->o->arg[0], model, sizeof model);
    sl_log(SL_LOG_INFO, "devices", "%s as %s says: %s, %u threads", kind, path, p->machine,
           p->threads);
    if (strcmp(p->model, model) != 0)
        sl_log(SL_LOG_WARN, "devices", "%s is of model %s, not %s", path, p->model, model);
}

static sl_status read_profile(search *s, const char *path, sl_err *err) {
    sl_profile p = {0};
    sl_kind_costs k = {0};
    sl_status st = sl_profile_load_stages(path, &p, err);
    if (st == SL_OK) st = sl_profile_costs(&p, NULL, 1, &k.costs, err);
    if (st != SL_OK) {
        sl_profile_free(&p);
        return st;
    }
    const sl_device_kind kind = sl_profile_is_of_gpu(&p) ? SL_DEVICE_CUDA : SL_DEVICE_CPU;
    const char *name = kind == SL_DEVICE_CUDA ? "a GPU" : "processors";
    if (s->has_profile[kind])
        st = sl_fail(err, SL_ERR_ARG, "--device-profile: %s is the second one of %s", path, name);
    if (st == SL_OK && kind == SL_DEVICE_CPU) {
        sl_err none;
        sl_costs with = {0};
        s->has_link =
            sl_profile_costs(&p, s->transport, 1, &with, &none) == SL_OK && with.link.alpha_us > 0;
        s->link = with.link;
    }
    if (st == SL_OK) {
        sl_profile_add_copies(&p, &k.copies);
        s->has_profile[kind] = true;
        s->profile[kind] = k;
        say_profile(s, name, path, &p);
    }
    sl_profile_free(&p);
    return st;
}

/* --device-profile */
static sl_status read_profiles(search *s, sl_err *err) {
    const char *at = s->o->device_profile;
    sl_status st = SL_OK;
    while (st == SL_OK && *at) {
        const size_t n = strcspn(at, ",");
        char *path = sl_alloc(n + 1, 1);
        if (!path) return sl_fail(err, SL_ERR_NOMEM, "--device-profile");
        memcpy(path, at, n);
        st = n ? read_profile(s, path, err)
               : sl_fail(err, SL_ERR_ARG, "--device-profile: '%s' names no file", at);
        sl_free(path);
        at += n + (at[n] == ',');
    }
    return st;
}

static sl_status measure(const search *s, const candidate *c, const sl_device_spec *device,
                         sl_kind_costs *out, sl_err *err) {
    sl_choose_load l;
    sl_choose_describe(&c->plan, &c->spec, 0, s->requests, &l);
    const sl_measure_opts mo = {.model_folder = s->o->arg[0],
                                .m = &c->spec,
                                .isa = s->kernels,
                                .threads = c->plan.threads,
                                .activations = c->plan.activations,
                                .device = device,
                                .rows = l.prefill_rows,
                                .keys = l.keys};
    return sl_measure_kind(&mo, out, err);
}

/* Of worker w's kind of device, measured once. SL_ERR_*: it cannot be. */
static sl_status cost_of(search *s, const candidate *c, uint32_t w, const sl_kind_costs **out,
                         sl_err *err) {
    sl_device_spec device = sl_plan_device_of(&c->plan, w);
    const uint32_t threads = sl_device_is_cpu(&device) ? c->plan.threads : 0;
    measured *m = s->found;
    if (s->has_profile[device.kind]) {
        *out = &s->profile[device.kind];
        return SL_OK;
    }
    for (; m < s->found + s->n_found; m++) {
        *out = &m->of;
        if (m->kind == device.kind && m->numerics == device.numerics &&
            m->kv_type == c->spec.kv_type && m->threads == threads)
            return SL_OK;
    }
    SL_ASSERT(s->n_found < MOST_MEASURED);
    device.offload = false; /* sl_devices_offloaded has the copies */
    sl_status st = measure(s, c, &device, &m->of, err);
    if (st != SL_OK) return st;
    m->kind = device.kind;
    m->numerics = device.numerics;
    m->kv_type = c->spec.kv_type;
    m->threads = threads;
    s->n_found++;
    *out = &m->of;
    return SL_OK;
}

/* Between workers of this candidate; nothing travels where there is one. */
static sl_status link_of(search *s, const candidate *c, sl_link_cost *out, sl_err *err) {
    sl_choose_load l;
    *out = (sl_link_cost){0};
    if (c->plan.n_workers == 1) return SL_OK;
    if (!s->has_link) {
        const size_t row = sl_wire_row_bytes((sl_wire_format)c->plan.wire, c->spec.d_model);
        sl_choose_describe(&c->plan, &c->spec, row, s->requests, &l);
        const size_t bytes = sl_measure_long(l.row_bytes, l.prefill_rows);
        sl_status st = sl_measure_link(s->transport, bytes, s->o->delay_us ? s->o->delay_seed : 0,
                                       s->o->delay_us, &s->link, err);
        if (st != SL_OK) return st;
        s->has_link = true;
    }
    *out = s->link;
    return SL_OK;
}

/* The first worker that has all of these roles. */
static uint32_t first_with(const sl_plan *p, uint32_t roles) {
    uint32_t w = 0;
    while (w + 1 < p->n_workers && (p->worker[w].roles & roles) != roles) w++;
    return w;
}

/* Its schedule is chosen with its devices: nobody said one, and rows travel. */
static bool is_scheduled(const candidate *c) {
    return c->plan.n_workers > 1 && sl_deploy_schedule_is_open(&c->o);
}

static sl_status predict_plan(search *s, candidate *c, sl_err *err) {
    const sl_kind_costs *attention = NULL, *expert = NULL;
    sl_kind_costs copied;
    sl_link_cost link;
    const uint32_t with_experts = first_with(&c->plan, SL_ROLE_EXPERT);
    sl_status st = cost_of(s, c, first_with(&c->plan, SL_ROLE_ATTENTION), &attention, err);
    if (st == SL_OK) st = cost_of(s, c, with_experts, &expert, err);
    if (st == SL_OK) st = link_of(s, c, &link, err);
    if (st != SL_OK) return st;
    const bool offload = c->plan.worker[with_experts].offload;
    if (offload && !(expert->copies.byte_us > 0))
        return sl_fail(err, SL_ERR_INFEASIBLE,
                       "nothing says what a byte takes to the GPU: profiles have links gpu-in and "
                       "gpu-out");
    if (offload) {
        copied = sl_devices_offloaded(expert, (double)s->info.bytes_expert);
        expert = &copied;
    }
    const sl_costs costs = sl_devices_costs(&c->plan, attention, expert, &link);
    return sl_devices_predict(&costs, &c->spec, s->requests, is_scheduled(c), &c->plan, &c->step,
                              err);
}

/* Those who decode as `split`, prompts as its side for them alone. */
static sl_status predict_sides(search *s, candidate *c, sl_err *err) {
    const candidate *decodes = &s->c[s->split];
    candidate side = {.o = c->o, .spec = c->spec};
    if (decodes->st != SL_OK) return sl_fail(err, decodes->st, "%s", decodes->why.msg);
    sl_status st = sl_plan_view(&c->plan, true, &side.plan, err);
    if (st != SL_OK) return st;
    uint32_t n = 0;
    for (uint32_t i = 0; i < side.plan.n_workers; i++)
        if (side.plan.worker[i].roles) side.plan.worker[n++] = side.plan.worker[i];
    side.plan.n_workers = n;
    side.plan.skew.on = false; /* one worker has all experts; its placement knows other numbers */
    st = predict_plan(s, &side, err);
    sl_plan_free(&side.plan);
    if (st != SL_OK) return st;
    c->step = decodes->step;
    c->step.prompt_tokens_per_s = side.step.prompt_tokens_per_s;
    return SL_OK;
}

static sl_status predict(search *s, candidate *c, sl_err *err) {
    return c->prompts ? predict_sides(s, c, err) : predict_plan(s, c, err);
}

/* ---- the choice ---- */

static void say_one(const candidate *c) {
    if (c->st != SL_OK)
        sl_log(SL_LOG_INFO, "devices", "%s: cannot be: %s", c->name, c->why.msg);
    else
        sl_log(
            SL_LOG_INFO, "devices",
            "%s: %.2f tokens/s predicted, %.2f ms a step of %u rows (%s), prompts %.0f tokens/s; "
            "%s",
            c->name, c->step.tokens_per_s, 1e-3 * c->step.us, c->step.schedule.rows[0],
            sl_schedule_name(c->plan.schedule), c->step.prompt_tokens_per_s,
            c->step.schedule.times);
}

/* Processors alone are left: nothing has to be measured. */
static void say_no_gpu(const search *s) {
    if (s->gpus.n == 0) {
        sl_log(SL_LOG_WARN, "devices", "--device auto: cpu, as there is no GPU: %s", s->gpus.why);
        return;
    }
    for (uint32_t i = 0; i < s->gpus.n; i++)
        sl_log(SL_LOG_WARN, "devices", "--device auto: cpu, as cuda:%u is not used: %s",
               s->gpus.gpu[i].index, s->gpus.gpu[i].why);
}

/* The fastest. A GPU that cannot be measured cannot be taken; processors have to be. */
static sl_status compare(search *s, uint32_t *best, sl_err *err) {
    sl_devices_step step[MOST_CANDIDATES] = {0};
    for (uint32_t i = 0; i < s->n; i++) {
        candidate *c = &s->c[i];
        if (c->st == SL_OK) c->st = predict(s, c, &c->why);
        if (c->st == SL_OK) step[i] = c->step;
        if (c->st != SL_OK && !c->on_gpus) {
            *err = c->why;
            return c->st;
        }
        say_one(c);
    }
    /* one can be: processors */
    *best = sl_devices_fastest(step, s->n, s->o->offload_experts);
    const candidate *c = &s->c[*best];
    sl_log(SL_LOG_INFO, "devices", "taken: %s", c->name);
    if (is_scheduled(c)) sl_log(SL_LOG_INFO, "auto", "%s", c->step.schedule.why);
    return SL_OK;
}

static sl_status choose(search *s, uint32_t *best, sl_err *err) {
    *best = 0;
    sl_status st = check_options(s, err);
    if (st == SL_OK) st = find_gpus(s, err);
    if (st == SL_OK) st = list_candidates(s, err);
    if (st == SL_OK) st = check_candidates(s, err);
    if (st == SL_OK) st = read_profiles(s, err);
    if (st != SL_OK) return st;
    if (s->n_gpu == 0) {
        say_no_gpu(s);
        return SL_OK;
    }
    st = sl_model_inspect(s->o->arg[0], &s->info, err);
    for (uint32_t i = 0; st == SL_OK && i < s->n; i++) check_memory(s, &s->c[i]);
    if (st != SL_OK || any_on_gpus(s)) return st == SL_OK ? compare(s, best, err) : st;
    for (uint32_t i = 1; i < s->n; i++) say_one(&s->c[i]);
    sl_log(SL_LOG_INFO, "devices", "taken: %s: nothing else can be", s->c[0].name);
    return SL_OK;
}

/* What was chosen, out of the list. */
static void take(candidate *c, sl_device_auto *out) {
    out->options = c->o;
    out->options.isa = out->kernels;
    out->devices = c->devices;
    out->scheduled = c->step.schedule.measured && is_scheduled(c);
    out->schedule = c->step.schedule;
    out->plan = c->plan;
    c->devices = NULL;
    c->plan = (sl_plan){0};
}

static void release(search *s) {
    for (uint32_t i = 0; i < s->n; i++) {
        sl_plan_free(&s->c[i].plan);
        sl_free(s->c[i].devices);
    }
    sl_cuda_gpus_free(&s->gpus);
    sl_free(s->gpu);
    sl_free(s);
}

sl_status sl_device_auto_choose(const sl_options *o, bool processes, uint32_t requests,
                                sl_device_auto *out, sl_err *err) {
    uint32_t best;
    search *s = sl_alloc(1, sizeof *s);
    *out = (sl_device_auto){0};
    if (!s) return sl_fail(err, SL_ERR_NOMEM, "--device auto");
    s->o = o;
    s->processes = processes;
    s->requests = requests;
    s->kernels = out->kernels;
    sl_status st = sl_model_read_spec(o->arg[0], &s->spec, NULL, err);
    if (st == SL_OK) st = sl_deploy_kernels(o, out->kernels, err);
    if (st == SL_OK) st = choose(s, &best, err);
    if (st == SL_OK) take(&s->c[best], out);
    release(s);
    return st;
}

void sl_device_auto_free(sl_device_auto *a) {
    sl_plan_free(&a->plan);
    sl_free(a->devices);
    *a = (sl_device_auto){0};
}
