/* What `sluice simulate` and `plan` give the simulator: spec, costs, links, popularity. */
#include "simulate.h"

#include "cmd.h"

#include "base/mem.h"
#include "format/placement.h"
#include "format/plan_json.h"
#include "format/plan_lab.h"
#include "format/presets.h"
#include "format/profile_file.h"
#include "format/shape_config.h"
#include "format/workload_file.h"
#include "model/model.h"
#include "model/skew.h"
#include "spec/rank_cost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the model ---- */

/* What a simulation has to know of a model that the engine cannot run. */
static sl_status spec_of_shape(const sl_shape *s, sl_model_spec *m, sl_err *err) {
    if (s->n_layers > SL_MAX_LAYERS || s->n_experts > SL_MAX_EXPERTS || s->top_k > SL_MAX_TOP_K)
        return sl_fail(err, SL_ERR_LIMIT, "%s: %u blocks, %u experts, %u a row", s->name,
                       s->n_layers, s->n_experts, s->top_k);
    *m = (sl_model_spec){.n_layers = s->n_layers,
                         .d_model = s->d_model,
                         .n_heads = s->n_heads,
                         .n_kv_heads = s->n_kv_heads ? s->n_kv_heads : s->n_heads,
                         .head_dim = s->qk_head_dim,
                         .vocab = s->vocab,
                         .d_ff_dense = s->d_ff_dense,
                         .d_ff_expert = s->d_ff_expert,
                         .d_ff_shared = s->d_ff_shared + s->d_ff_residual,
                         .dense_branch = s->d_ff_residual > 0,
                         .n_experts = s->n_experts,
                         .top_k = s->top_k,
                         .n_mtp = s->n_mtp,
                         .max_position = s->max_position ? s->max_position : 1u << 20};
    for (uint32_t l = 0; l < s->n_layers; l++)
        m->ffn[l] = sl_shape_is_moe(s, l) ? SL_FFN_MOE : SL_FFN_DENSE;
    sl_model_number_blocks(m);
    return SL_OK;
}

/* *shape: also when the engine runs the model; false: only the engine knows it. */
static sl_status read_model(const char *name, sl_model_spec *m, sl_shape *shape, bool *has_shape,
                            sl_err *err) {
    sl_err other;
    *has_shape = sl_shape_open(name, shape, &other) == SL_OK;
    sl_status st = sl_model_read_spec(name, m, NULL, err);
    m->weightless = false; /* nobody needs them here */
    if (st == SL_OK || !*has_shape) return st;
    return spec_of_shape(shape, m, err);
}

/* ---- costs ---- */

/* Of workers with experts alone: from a profile of their own, or that of the others. */
static sl_status expert_costs(const sl_options *o, const sl_profile *others, const char *transport,
                              uint32_t peers, sl_costs *out, sl_link_cost copies[2], sl_err *err) {
    sl_profile p = {0};
    if (!o->expert_profile[0]) {
        sl_profile_add_copies(others, &copies[1]);
        return sl_profile_costs(others, transport, peers, out, err);
    }
    sl_status st = sl_profile_load_stages(o->expert_profile, &p, err);
    if (st == SL_OK) st = sl_profile_costs(&p, transport, peers, out, err);
    sl_profile_add_copies(&p, &copies[1]);
    sl_profile_free(&p);
    return st;
}

/* First workers of either role, and of both. */
static void count_workers(const sl_plan *p, uint32_t *attention, uint32_t *expert, uint32_t *both) {
    *attention = *expert = *both = 0;
    for (uint32_t i = 0; i < p->n_workers; i++) {
        const uint32_t roles = sl_plan_first_roles(p, i);
        *attention += (roles & SL_ROLE_ATTENTION) != 0;
        *expert += (roles & SL_ROLE_EXPERT) != 0;
        *both += roles == (SL_ROLE_ATTENTION | SL_ROLE_EXPERT);
    }
}

/* A GPU's profile has no links between processes: those of the other one, or of --link. */
static sl_status find_links(const sl_options *o, const sl_profile *p, sl_simulation *x,
                            sl_err *err) {
    if (!sl_profile_is_of_gpu(p)) return SL_OK;
    x->attention.link = x->expert.link;
    if (x->expert.link.alpha_us > 0 || o->link[0] || x->plan.n_workers == 1) return SL_OK;
    return sl_fail(err, SL_ERR_ARG,
                   "%s is of a GPU and has no links between workers: --link, or --expert-profile "
                   "of processors",
                   o->profile);
}

static sl_status costs_of_profile(const sl_options *o, sl_simulation *x, sl_err *err) {
    sl_profile p = {0};
    uint32_t attention, expert, both;
    const char *transport = strcmp(o->transport, "auto") == 0 ? NULL : o->transport;
    if (strcmp(o->link, "network") == 0) {
        const sl_transport_kind *far = sl_deploy_transport_far(o, err);
        if (!far) return sl_err_prefix(err, "--link network");
        transport = far->machines;
    }
    count_workers(&x->plan, &attention, &expert, &both);
    sl_status st = sl_profile_load_stages(o->profile, &p, err);
    if (st == SL_OK && o->expert_profile[0] && both)
        st = sl_fail(err, SL_ERR_ARG,
                     "--expert-profile is of workers that have experts alone: in this plan %u have "
                     "both roles",
                     both);
    if (st == SL_OK) st = sl_profile_costs(&p, transport, expert - (both > 0), &x->attention, err);
    if (st == SL_OK)
        st = expert_costs(o, &p, transport, attention - (both > 0), &x->expert, x->copies, err);
    if (st == SL_OK) st = find_links(o, &p, x, err);
    sl_profile_add_copies(&p, &x->copies[0]);
    snprintf(x->source, sizeof x->source, o->expert_profile[0] ? "two profiles" : "a profile");
    snprintf(x->costs_of, sizeof x->costs_of, "%s", p.machine);
    sl_profile_free(&p);
    return st;
}

static sl_status costs_of_roofline(const sl_options *o, const sl_shape *shape, sl_simulation *x,
                                   sl_err *err) {
    const sl_device_type *d = sl_preset_device(o->device_type);
    if (!d)
        return sl_fail(err, SL_ERR_ARG, "--device-type: there is no data sheet of '%.40s'",
                       o->device_type);
    x->attention = x->expert = sl_data_sheet_costs(d, shape);
    snprintf(x->source, sizeof x->source, "%s's data sheet, ports of 200 Gbit/s", d->name);
    snprintf(x->costs_of, sizeof x->costs_of, "%s", d->name);
    return SL_OK;
}

static sl_status apply_link(const sl_options *o, sl_simulation *x, sl_err *err) {
    sl_costs *costs[] = {&x->attention, &x->expert};
    sl_link_cost *links[] = {&x->attention.link, &x->expert.link}, said = {0};
    bool network = strcmp(o->link, "network") == 0;
    if (network && !o->profile[0])
        return sl_fail(err, SL_ERR_ARG, "--link network: of a --profile with --links-to");
    if (o->link[0] && !network) {
        sl_status st = sl_link_parse("--link", ", or network", o->link, &said, err);
        if (st != SL_OK) return st;
    }
    if (o->duplex[0] && strcmp(o->duplex, "full") != 0 && strcmp(o->duplex, "half") != 0)
        return sl_fail(err, SL_ERR_ARG, "--duplex: '%.20s' is not full or half", o->duplex);
    for (int i = 0; i < 2; i++) {
        if (o->link[0]) /* a network: workers are apart */
            memset(costs[i]->beside, 0, sizeof costs[i]->beside);
        said.half_duplex = links[i]->half_duplex;
        if (o->link[0] && !network) *links[i] = said;
        if (o->duplex[0]) links[i]->half_duplex = o->duplex[0] == 'h';
        links[i]->alpha_us += x->copies[i].alpha_us;
        links[i]->byte_us += x->copies[i].byte_us;
    }
    return SL_OK;
}

/* Rails are connections, to each node one. */
static sl_status read_ports(const sl_options *o, sl_simulation *x, sl_err *err) {
    const bool shared = strcmp(o->ports, "shared") == 0;
    if (o->ports[0] && !shared && strcmp(o->ports, "fifo") != 0)
        return sl_fail(err, SL_ERR_ARG, "--ports: '%.20s' is not fifo or shared", o->ports);
    x->setup.shared_ports = shared || (!o->ports[0] && x->plan.schedule == SL_SCHED_HYBRID);
    return SL_OK;
}

/* Ports of the ranks that have one of their own. Left out they are like the first's. */
static sl_status read_rails(const sl_options *o, sl_simulation *x, sl_err *err) {
    const uint32_t rails = sl_plan_rails(&x->plan);
    const char *at = o->rail_links;
    uint32_t n = 0;
    if (!*at) return SL_OK;
    if (rails == 1)
        return sl_fail(err, SL_ERR_ARG, "--rail-links is of schedule hybrid, this is %s",
                       sl_schedule_name(x->plan.schedule));
    for (; at; n++) {
        const size_t length = strcspn(at, ",");
        const char *end = at[length] ? at + length : NULL;
        char one[64];
        if (n == rails - 1 || length >= sizeof one) break;
        snprintf(one, sizeof one, "%.*s", (int)length, at);
        sl_status st = sl_link_parse("--rail-links", "", one, &x->rail_link[n], err);
        if (st != SL_OK) return st;
        x->rail_link[n].half_duplex = x->attention.link.half_duplex;
        at = end ? end + 1 : NULL;
    }
    if (at || (n != 1 && n != rails - 1))
        return sl_fail(err, SL_ERR_ARG, "--rail-links '%.60s': one link, or %u, of ranks 1 to %u",
                       o->rail_links, rails - 1, rails - 1);
    for (; n < rails - 1; n++) x->rail_link[n] = x->rail_link[0];
    x->setup.rail_link = x->rail_link;
    return SL_OK;
}

/* The link between a worker's ranks: said, the emulated device's, or what was measured within a
 * machine. */
static sl_status rank_link(const sl_options *o, const sl_simulation *x, sl_link_cost *out,
                           sl_err *err) {
    *out = x->plan.device.rank_link;
    if (out->alpha_us > 0 || out->byte_us > 0) return SL_OK;
    sl_profile p = {0};
    sl_status st = o->profile[0] ? sl_profile_load(o->profile, &p, err) : SL_OK;
    if (st == SL_OK && !sl_link_of_profile(&p, false, out))
        st = sl_fail(err, SL_ERR_ARG,
                     "--tp, --pp: nothing says what ranks are linked by: --rank-link");
    sl_profile_free(&p);
    return st;
}

/* Of one device, to those of the gangs that workers are. */
static sl_status apply_ranks(const sl_options *o, const sl_shape *shape, bool has_shape,
                             sl_simulation *x, sl_err *err) {
    const uint32_t ranks[] = {sl_plan_ranks(&x->plan, SL_ROLE_ATTENTION),
                              sl_plan_ranks(&x->plan, SL_ROLE_EXPERT)};
    sl_costs *side[] = {&x->attention, &x->expert};
    sl_link_cost link;
    if (ranks[0] == 1 && ranks[1] == 1 && sl_plan_pipeline(&x->plan) == 1) return SL_OK;
    sl_status st = rank_link(o, x, &link, err);
    x->setup.rank_link = link;
    for (size_t i = 0; st == SL_OK && i < SL_LEN(side); i++) {
        const sl_gang_cut cut = {.ranks = ranks[i],
                                 .n_kv_heads = x->model.n_kv_heads,
                                 .latents = x->model.kv_lora ||
                                            (has_shape && shape->attention == SL_ATTENTION_MLA),
                                 .link = &link,
                                 .row_bytes = x->model.d_model * sizeof(float)};
        sl_gang_stages(side[i]->stage, &cut, side[i]->stage);
    }
    return st;
}

static sl_status read_costs(const sl_options *o, const sl_shape *shape, bool has_shape,
                            sl_simulation *x, sl_err *err) {
    sl_status st = SL_OK;
    if (o->expert_profile[0] && !o->profile[0])
        return sl_fail(err, SL_ERR_ARG, "--expert-profile is beside --profile, of the others");
    if (o->profile[0]) {
        st = costs_of_profile(o, x, err);
    } else if (sl_device_is_modelled(&x->plan.device)) {
        memcpy(x->attention.stage, x->plan.device.cost, sizeof x->attention.stage);
        x->attention.grouped = x->plan.device.grouped;
        x->expert = x->attention;
        x->setup.time_scale = x->plan.device.time_scale;
        const sl_device_type *sheet = sl_data_sheet_named(o->device);
        x->attention.estimated = x->expert.estimated = sheet != NULL;
        if (sheet) snprintf(x->costs_of, sizeof x->costs_of, "%s", sheet->name);
        snprintf(x->source, sizeof x->source, "%s",
                 sheet ? "a data sheet" : "the plan's emulated device");
    } else if (has_shape) {
        st = costs_of_roofline(o, shape, x, err);
    } else {
        st = sl_fail(err, SL_ERR_ARG, "no costs: --profile, --device or a model with known shape");
    }
    if (st == SL_OK) st = apply_ranks(o, shape, has_shape, x, err);
    if (st == SL_OK) st = apply_link(o, x, err);
    if (st == SL_OK) st = read_ports(o, x, err);
    return st == SL_OK ? read_rails(o, x, err) : st;
}

/* A plan is the best for the costs that it was made with. */
static void compare_origin(const sl_options *o, sl_simulation *x) {
    const sl_plan_origin *p = &x->plan.origin;
    bool same = strcmp(p->attention, x->costs_of) == 0 && strcmp(p->expert, x->costs_of) == 0;
    if (!p->attention[0] || !x->costs_of[0] || same) return;
    snprintf(x->warning, sizeof x->warning,
             "%.100s was planned for %s with costs of %s and %s; this counts with those of %s",
             o->plan, p->cluster, p->attention, p->expert, x->costs_of);
}

/* ---- popularity of experts ---- */

static sl_status popularity_of(const sl_route_skew *how, sl_simulation *x, sl_err *err) {
    sl_skew *skew = NULL;
    if (!how->on) return SL_OK;
    sl_status st = sl_skew_create(how, &x->model, &skew, err);
    if (st == SL_OK) sl_skew_popularity(skew, x->popularity);
    sl_skew_free(skew);
    if (st == SL_OK) x->setup.popularity = x->popularity;
    return st;
}

/* zipf:S[:permuted][:SEED]: popularity falls as rank^-S, ranks ordered as with exp. */
static sl_status zipf(const char *text, sl_simulation *x, sl_err *err) {
    char as_exp[80], *end;
    double s = strtod(text, &end);
    uint32_t E = x->model.n_experts;
    sl_route_skew how;
    if (end == text || !(s >= 0 && s <= 20))
        return sl_fail(err, SL_ERR_ARG, "--routing zipf:%.30s: S is a number from 0 to 20", text);
    /* The order of ranks is the one that exp with a theta above 0 has: read off its weights. */
    snprintf(as_exp, sizeof as_exp, "exp:0.01%.60s", end);
    sl_status st = sl_route_skew_parse(as_exp, &how, err);
    if (st == SL_OK) st = popularity_of(&how, x, err);
    for (size_t i = 0; st == SL_OK && i < (size_t)x->model.n_moe * E; i += E) {
        double most = 0;
        for (uint32_t e = 0; e < E; e++) most = SL_MAX(most, x->popularity[i + e]);
        for (uint32_t e = 0; e < E; e++) {
            double rank = 1 + floor(log(most / x->popularity[i + e]) / 0.01 + 0.5);
            x->popularity[i + e] = pow(rank, -s);
        }
    }
    return st;
}

static sl_status read_popularity(const sl_options *o, sl_simulation *x, sl_err *err) {
    size_t n = (size_t)x->model.n_moe * x->model.n_experts;
    sl_route_skew how;
    x->popularity = sl_alloc(n, sizeof *x->popularity);
    x->setup.n_layers = x->model.n_moe;
    if (!x->popularity) return sl_fail(err, SL_ERR_NOMEM, "popularity of %zu experts", n);
    if (!o->routing[0])
        return popularity_of(x->plan.skew.on ? &x->plan.skew : &x->load.skew, x, err);
    if (strcmp(o->routing, "uniform") == 0) return SL_OK;
    if (strncmp(o->routing, "zipf:", 5) == 0) return zipf(o->routing + 5, x, err);
    if (strncmp(o->routing, "exp:", 4) == 0) {
        sl_status st = sl_route_skew_parse(o->routing, &how, err);
        return st == SL_OK ? popularity_of(&how, x, err) : st;
    }
    sl_status st = sl_placement_read_popularity(o->routing, &x->model, x->popularity, err);
    if (st == SL_OK) x->setup.popularity = x->popularity;
    return st;
}

/* ---- the load ---- */

/* RIGHT[:FOUND[:BLOCK]] */
static sl_status read_acceptance(const sl_options *o, sl_simulation *x, sl_err *err) {
    double right = 0, found = 1, block = 0;
    char rest;
    if (!o->acceptance[0]) return SL_OK;
    if (!x->plan.speculate) return sl_fail(err, SL_ERR_ARG, "--acceptance is of --speculate");
    int colons = 0;
    for (const char *at = o->acceptance; (at = strchr(at, ':')); at++) colons++;
    const int n = sscanf(o->acceptance, "%lf:%lf:%lf%c", &right, &found, &block, &rest);
    const bool whole = n == colons + 1 && n <= 3 &&
                       strspn(o->acceptance, "0123456789.e-+:") == strlen(o->acceptance);
    if (!whole || !(right > 0 && right <= 1) || !(found >= 0 && found <= 1) ||
        !(block >= 0 && block <= 1))
        return sl_fail(err, SL_ERR_ARG,
                       "--acceptance: '%.40s' is not RIGHT or RIGHT:FOUND or RIGHT:FOUND:BLOCK, "
                       "RIGHT above 0, all at most 1",
                       o->acceptance);
    x->load.guess_right = right;
    x->load.guess_found = found;
    x->load.guess_block = block;
    return SL_OK;
}

static sl_status read_load(const sl_options *o, sl_simulation *x, sl_err *err) {
    x->load = (sl_workload){.input = {.low = 512, .high = 512},
                            .output = {.low = 128, .high = 128},
                            .arrival = {.kind = SL_ARRIVAL_CLOSED, .concurrency = 64}};
    if (o->workload[0]) {
        sl_status st = sl_workload_open(o->workload, &x->load, err);
        if (st != SL_OK) return st;
        if (x->load.arrival.kind == SL_ARRIVAL_CLOSED && x->load.arrival.concurrency == 0)
            return sl_fail(err, SL_ERR_ARG,
                           "%s: arrival: {closed: full} is for sluice plan; give a number",
                           o->workload);
    }
    sl_status st = read_acceptance(o, x, err);
    if (st != SL_OK) return st;
    if (o->requests) x->load.n_requests = o->requests;
    if (!x->load.n_requests && !x->load.n_trace && o->measure <= 0) x->load.n_requests = 256;
    return SL_OK;
}

/* "2@1.5,0@3": worker 2 dies after 1.5 s. */
static sl_status read_deaths(const sl_options *o, sl_simulation *x, sl_err *err) {
    for (const char *at = o->die; *at;) {
        char *end;
        unsigned long worker = strtoul(at, &end, 10);
        double seconds = *end == '@' ? strtod(end + 1, &end) : -1;
        if (*at < '0' || *at > '9' || !(seconds >= 0 && seconds <= 1e6) || (*end && *end != ',') ||
            worker >= x->plan.n_workers || x->setup.n_deaths == SL_SIMULATE_MAX_DEATHS)
            return sl_fail(err, SL_ERR_ARG,
                           "--die: '%.20s' is not WORKER@SECONDS of one of %u workers", at,
                           x->plan.n_workers);
        x->death[x->setup.n_deaths++] = (sl_sim_death){(uint32_t)worker, seconds * 1e6};
        at = *end ? end + 1 : end;
    }
    return SL_OK;
}

/* Copies of weights are in no profile. */
static sl_status check_offload(const sl_plan *p, sl_err *err) {
    for (uint32_t i = 0; i < p->n_workers; i++)
        if (p->worker[i].offload)
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "worker %u keeps experts in its machine's memory (offload), whose "
                           "copies are not simulated",
                           i);
    return SL_OK;
}

/* Ranks on machines have no addresses here, and may be emulated: of the plan they are threads. */
static sl_status read_plan(const sl_options *o, sl_simulation *x, sl_err *err) {
    const bool apart = strcmp(o->tp_ranks, "machines") == 0;
    sl_options here = *o;
    if (apart) here.tp_ranks = "";
    sl_status st = sl_deploy_plan(&here, &x->model, &x->plan, err);
    if (st == SL_OK && apart && !sl_plan_has_gangs(&x->plan) && sl_plan_pipeline(&x->plan) == 1)
        return sl_fail(err, SL_ERR_ARG,
                       "--tp-ranks machines is of gangs and pipelines (--tp, --pp), and there are "
                       "none");
    x->setup.ranks_apart = apart || x->plan.rank_kind == SL_RANKS_MACHINES;
    return st == SL_OK ? check_offload(&x->plan, err) : st;
}

sl_status sl_simulation_prepare(const sl_options *o, sl_simulation *x, sl_err *err) {
    sl_shape shape;
    bool has_shape;
    sl_status st = read_model(o->arg[0], &x->model, &shape, &has_shape, err);
    if (st == SL_OK) st = read_plan(o, x, err);
    if (st == SL_OK) st = read_costs(o, &shape, has_shape, x, err);
    if (st == SL_OK) compare_origin(o, x);
    if (st == SL_OK) st = read_load(o, x, err);
    if (st == SL_OK) st = read_popularity(o, x, err);
    if (st == SL_OK) st = read_deaths(o, x, err);
    if (st != SL_OK) return st;
    sl_sim_setup *s = &x->setup;
    s->model = &x->model;
    s->plan = &x->plan;
    s->attention = &x->attention;
    s->expert = &x->expert;
    s->row_bytes = sl_wire_row_bytes((sl_wire_format)x->plan.wire, x->model.d_model);
    s->jitter = o->jitter;
    s->control_us = o->control_us;
    s->message_us = o->message_us;
    s->death = x->death;
    s->notice_us = o->notice * 1e6;
    s->load = &x->load;
    s->max_open = o->max_open;
    s->warmup_us = o->warmup * 1e6;
    s->measure_us = o->measure * 1e6;
    s->seed = o->seed;
    s->trace_events = o->trace[0] || o->svg[0] ? o->trace_events : 0;
    return SL_OK;
}

void sl_simulation_free(sl_simulation *x) {
    sl_plan_free(&x->plan);
    sl_workload_free(&x->load);
    sl_free(x->popularity);
}
