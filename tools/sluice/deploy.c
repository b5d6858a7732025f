/* From options to a plan and an engine. */
#include "cmd.h"

#include "device_auto.h"

#include "base/progress.h"
#include "engine/measure/auto.h"
#include "engine/measure/place.h"
#include "format/kv_file.h"
#include "format/kv_folder.h"
#include "format/plan_gpu.h"
#include "format/plan_json.h"
#include "format/plan_sides.h"
#include "format/plan_ranks.h"
#include "format/plan_lab.h"
#include "format/quantity.h"
#include "kernel/kernel.h"
#include "model/model.h"
#include "net/transports.h"
#include "stage/cuda.h"
#include "spec/kv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool wants_workers(const sl_options *o) {
    return o->attention + o->experts > 0 || o->plan[0];
}

const sl_transport_kind *sl_deploy_transport_far(const sl_options *o, sl_err *err) {
    bool any = strcmp(o->transport, "auto") == 0;
    for (size_t i = 0; any && sl_transport_at(i); i++)
        if (sl_transport_at(i)->machines) return sl_transport_at(i);
    return sl_transport_find(o->transport, true, err);
}

const char *sl_deploy_transport(const sl_options *o, bool processes) {
    if (strcmp(o->transport, "auto") != 0) return o->transport;
    sl_err none;
    if (o->remote) return sl_deploy_transport_far(o, &none)->name;
    return processes && wants_workers(o) ? "shm" : "loop";
}

void sl_deploy_setup_process(const sl_options *o) {
    sl_net_setup_process(sl_deploy_transport(o, true));
}

/* How many more than there are. */
static sl_status more_than(const sl_plan *p, uint32_t role, uint32_t most, const char *option,
                           uint32_t *out, sl_err *err) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_workers; i++) n += (p->worker[i].roles & role) != 0;
    *out = most > n ? most - n : 0;
    if (most == 0 || most >= n) return SL_OK;
    return sl_fail(err, SL_ERR_ARG, "%s %u: %u of them are there at first", option, most, n);
}

/* --max-attention, --max-experts */
static sl_status make_room(const sl_options *o, sl_plan *p, sl_err *err) {
    uint32_t attention, experts;
    sl_status st =
        more_than(p, SL_ROLE_ATTENTION, o->max_attention, "--max-attention", &attention, err);
    if (st == SL_OK)
        st = more_than(p, SL_ROLE_EXPERT, o->max_experts, "--max-experts", &experts, err);
    return st == SL_OK ? sl_plan_add_spares(attention, experts, p, err) : st;
}

/* --prefill, --prefill-experts, --prefill-rows; with --offload-experts both roles */
static sl_status make_prefill(const sl_options *o, sl_plan *p, sl_err *err) {
    if (o->prefill + o->prefill_experts > 0 && sl_plan_has_prefill(p))
        return sl_fail(err, SL_ERR_ARG,
                       "--plan says who the workers are: leave out --prefill and "
                       "--prefill-experts");
    sl_status st = SL_OK;
    if (o->prefill + o->prefill_experts > 0)
        st = sl_plan_add_prefill(o->prefill, o->prefill_experts, o->offload_experts, p, err);
    if (st != SL_OK || !o->prefill_rows) return st;
    if (!sl_plan_has_prefill(p))
        return sl_fail(err, SL_ERR_ARG,
                       "--prefill-rows: there are no workers for prompts "
                       "(--prefill)");
    p->prefill_rows = o->prefill_rows;
    return SL_OK;
}

static sl_status make_plan(const sl_options *o, const sl_model_spec *m, sl_plan *p, sl_err *err) {
    if (o->plan[0] && o->attention + o->experts > 0)
        return sl_fail(err, SL_ERR_ARG,
                       "--plan says who the workers are: leave out --attention and --experts");
    sl_status st = o->plan[0] ? sl_plan_read(o->plan, m, p, err)
                              : sl_plan_local(m, o->attention, o->experts, p, err);
    if (st == SL_OK) st = make_room(o, p, err);
    return st == SL_OK ? make_prefill(o, p, err) : st;
}

static uint32_t pages_for(const sl_options *o, const sl_model_spec *m, const sl_plan *p) {
    if (o->kv_pages) return o->kv_pages;
    return o->plan[0] ? p->n_pages : sl_plan_usual_pages(p, m);
}

/* What the schedule is and is made of; an option of another schedule is refused, not ignored. */
static sl_status apply_schedule(const sl_options *o, sl_plan *p, sl_err *err) {
    sl_status st = SL_OK;
    sl_schedule s = p->schedule;
    if (strcmp(o->schedule, "auto") != 0) st = sl_schedule_parse(o->schedule, &s, err);
    if (st == SL_OK && s != p->schedule) sl_plan_set_schedule(p, s);
    if (st == SL_OK && o->groups && s != SL_SCHED_EPS)
        st = sl_fail(err, SL_ERR_ARG, "--groups is for schedule eps, not %s", sl_schedule_name(s));
    if (st == SL_OK && (o->chunks || o->chunk_by[0] || o->order[0]) && s != SL_SCHED_FINDEP)
        st = sl_fail(err, SL_ERR_ARG, "--chunks, --chunk-by and --order are for findep, not %s",
                     sl_schedule_name(s));
    if (o->resolve != UINT32_MAX) p->resolve = o->resolve;
    if (st == SL_OK && s != SL_SCHED_AEP &&
        (o->policy[0] || o->delta > 0 || o->lookahead != UINT32_MAX))
        st = sl_fail(err, SL_ERR_ARG, "--policy, --lookahead and --delta are for aep, not %s",
                     sl_schedule_name(s));
    if (st == SL_OK && s != SL_SCHED_HYBRID && o->rail_bytes)
        st = sl_fail(err, SL_ERR_ARG, "--rail-bytes is for hybrid, not %s", sl_schedule_name(s));
    if (o->rail_bytes) p->rail_bytes = o->rail_bytes;
    if (st == SL_OK && o->chunk_by[0]) st = sl_chunking_parse(o->chunk_by, &p->chunking, err);
    if (st == SL_OK && o->order[0]) st = sl_order_parse(o->order, &p->order, err);
    if (st == SL_OK && o->policy[0]) st = sl_policy_parse(o->policy, &p->policy, err);
    if (o->microbatches) p->lanes = o->microbatches;
    if (o->chunks) p->chunks = o->chunks;
    if (o->groups) p->chunks = o->groups;
    if (o->lookahead != UINT32_MAX) p->lookahead = o->lookahead;
    if (o->delta > 0) p->delta = o->delta;
    return st;
}

/* --device, --attention-device, --expert-device, --offload-experts, --gpu-memory, --numerics; exact
 * is decided. */
static sl_status apply_devices(const sl_options *o, sl_plan *p, sl_err *err) {
    const struct {
        const char *option, *text;
        sl_devices_of whose;
    } by[] = {{"--device", o->device, SL_DEVICES_OF_ALL},
              {"--attention-device", o->attention_device, SL_DEVICES_OF_ATTENTION},
              {"--expert-device", o->expert_device, SL_DEVICES_OF_EXPERTS}};
    sl_status st = SL_OK;
    const sl_device_type *sheet = sl_data_sheet_named(o->device);
    sl_device_spec emulated;
    if (sheet) st = sl_data_sheet_device(sheet, o->arg[0], &emulated, err);
    if (sheet && st == SL_OK) sl_plan_set_emulated(&emulated, p);
    for (size_t i = sheet ? 1 : 0; st == SL_OK && i < SL_LEN(by); i++)
        if (by[i].text[0]) st = sl_plan_set_devices(by[i].option, by[i].whose, by[i].text, p, err);
    if (st == SL_OK && o->offload_experts) st = sl_plan_set_offload(p, err);
    if (st == SL_OK && (o->gpu_memory[0] || o->numerics[0]) && sl_plan_n_gpu(p) == 0)
        return sl_fail(err, SL_ERR_ARG, "%s is for workers on GPUs (--device cuda:0)",
                       o->gpu_memory[0] ? "--gpu-memory" : "--numerics");
    if (st == SL_OK && o->gpu_memory[0])
        st = sl_gpu_memory_parse(o->gpu_memory, &p->device.gpu_memory, err);
    if (st == SL_OK && o->numerics[0])
        st = sl_numerics_parse(o->numerics, &p->device.numerics, err);
    else if (o->exact && p->device.numerics == SL_NUMERICS_FAST)
        p->device.numerics = SL_NUMERICS_AUTO; /* what holds for every batch */
    return st;
}

/* Whose bits numerics exact would be: the kind of all GPUs of the plan, where it matters and this
 * machine's are all of them. */
static sl_status find_gpu_kind(const sl_options *o, sl_plan *p, sl_err *err) {
    const bool asked = p->device.numerics == SL_NUMERICS_EXACT;
    const bool wanted = asked || (SL_NUMERICS_EXACT_BY_ITSELF && p->exact &&
                                  p->device.numerics == SL_NUMERICS_AUTO);
    char *kind = p->device.gpu_kind, other[SL_GPU_KIND_BYTES];
    if (!wanted || kind[0] || o->remote || sl_plan_n_gpu(p) < p->n_workers) return SL_OK;
    for (uint32_t i = 0; i < p->n_workers; i++) {
        const uint32_t index = p->worker[i].gpu;
        if (i > 0 && index == p->worker[i - 1].gpu) continue;
        sl_status st = sl_cuda_kind(index, i ? other : kind, err);
        if (st == SL_OK && (i == 0 || strcmp(kind, other) == 0)) continue;
        if (st == SL_OK)
            st = sl_fail(err, SL_ERR_UNSUPPORTED,
                         "numerics exact are the bits of one kind of GPU: cuda:%u is \"%s\", "
                         "cuda:%u is \"%s\"",
                         p->worker[0].gpu, kind, index, other);
        memset(kind, 0, SL_GPU_KIND_BYTES);
        return asked ? st : SL_OK; /* who has none says so as a worker */
    }
    return SL_OK;
}

static sl_status apply_experiments(const sl_options *o, sl_plan *p, sl_err *err) {
    sl_status st = SL_OK;
    p->random_weights = p->random_weights || o->random_weights;
    if (o->route_skew[0]) st = sl_route_skew_parse(o->route_skew, &p->skew, err);
    if (st == SL_OK) st = apply_devices(o, p, err);
    if (st == SL_OK && o->rank_link[0])
        st = sl_link_parse("--rank-link", "", o->rank_link, &p->device.rank_link, err);
    if (st == SL_OK && o->time_scale > 0) {
        if (!sl_device_is_modelled(&p->device))
            return sl_fail(err, SL_ERR_ARG, "--time-scale is for an emulated device (--device)");
        p->device.time_scale = o->time_scale;
    }
    if (st == SL_OK && o->pin[0]) st = sl_plan_pin(o->pin, p, err);
    return st == SL_OK && o->numa[0] ? sl_numa_parse(o->numa, &p->numa, err) : st;
}

/* --tp, --attention-tp, --expert-tp, --pp, --tp-ranks, --rank-hosts. */
static sl_status apply_ranks(const sl_options *o, sl_plan *p, sl_err *err) {
    const uint32_t attention = o->attention_tp ? o->attention_tp : o->tp;
    const uint32_t expert = o->expert_tp ? o->expert_tp : o->tp;
    if (attention) p->attention_tp = attention;
    if (expert) p->expert_tp = expert;
    if (o->pp) p->pp = o->pp;
    p->segments = p->segments || o->segments;
    sl_status st = SL_OK;
    if (o->rank_hosts[0]) st = sl_rank_hosts_parse(o->rank_hosts, p, err);
    if (st != SL_OK || !o->tp_ranks[0]) return st;
    sl_rank_kind kind;
    st = sl_rank_kind_parse(o->tp_ranks, &kind, err);
    if (st == SL_OK && o->rank_hosts[0] && kind != SL_RANKS_MACHINES)
        return sl_fail(err, SL_ERR_ARG, "--rank-hosts is of ranks that are machines, not %s",
                       o->tp_ranks);
    if (st == SL_OK) p->rank_kind = kind;
    return st;
}

/* Cores of this machine for each worker that computes there; one on a GPU takes one of its own, to
 * drive it, unless all are on GPUs. */
static uint32_t share_of_cores(const sl_plan *p) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const uint32_t cores = online > 0 ? (uint32_t)online : 1;
    uint32_t workers = 0, driving = 0;
    for (uint32_t i = 0; i < p->n_workers; i++) {
        if (p->worker[i].spare) continue;
        driving += sl_plan_on_gpu(p, i);
        workers += !sl_plan_on_gpu(p, i);
    }
    if (workers == 0) return SL_MAX(cores / SL_MAX(driving, 1u), 1u);
    return cores > driving ? SL_MAX((cores - driving) / workers, 1u) : 1;
}

bool sl_deploy_schedule_is_open(const sl_options *o) {
    bool said = o->plan[0] || o->microbatches || o->chunks || o->groups || o->chunk_by[0] ||
                o->order[0] || o->policy[0] || o->lookahead != UINT32_MAX || o->delta > 0 ||
                o->rail_bytes || (o->resolve && o->resolve != UINT32_MAX);
    return strcmp(o->schedule, "auto") == 0 && !said;
}

/* A pipeline has work for all its ranks only with as many micro-batches as these are. */
static void fill_pipelines(const sl_options *o, sl_plan *p) {
    if (sl_plan_pipeline(p) == 1 || !sl_deploy_schedule_is_open(o)) return;
    sl_plan_set_schedule(p, SL_SCHED_PINGPONG);
    p->lanes = sl_plan_pipeline(p);
}

/* Rows of prompts and of others, at the same experts, wait for no barrier. */
static void fill_sides(const sl_options *o, sl_plan *p) {
    const bool shared = sl_plan_has_prefill(p) && !sl_plan_sides_apart(p);
    if (shared && sl_deploy_schedule_is_open(o)) sl_plan_set_schedule(p, SL_SCHED_AEP);
}

static sl_status apply_options(const sl_options *o, sl_model_spec *m, sl_plan *p, sl_err *err) {
    sl_status st = SL_OK;
    if (o->wire[0]) st = sl_wire_format_parse(o->wire, &p->wire, err);
    if (st == SL_OK) st = apply_schedule(o, p, err);
    if (st == SL_OK && o->placement[0]) st = sl_placement_make(o->placement, m, p, err);
    if (st == SL_OK) st = apply_experiments(o, p, err);
    if (st == SL_OK && o->activations[0])
        st = sl_activations_parse(o->activations, &p->activations, err);
    if (st == SL_OK && o->speculate[0]) st = sl_speculate_parse(o->speculate, &p->speculate, err);
    if (st == SL_OK && o->kv_type[0]) st = sl_kv_type_parse(o->kv_type, &p->kv_type, err);
    if (st != SL_OK) return st;
    m->kv_type = p->kv_type = sl_plan_kv_type(p);
    p->exact = p->exact || o->exact;
    st = find_gpu_kind(o, p, err);
    p->device.numerics = sl_plan_numerics(p);
    if (st == SL_OK) st = apply_ranks(o, p, err);
    fill_pipelines(o, p);
    fill_sides(o, p);
    if (st == SL_OK && o->rank_link[0] && !sl_plan_has_gangs(p) && sl_plan_pipeline(p) == 1)
        return sl_fail(err, SL_ERR_ARG,
                       "--rank-link is of gangs and pipelines (--tp, --pp), and there are none");
    if (st == SL_OK && o->progress[0]) st = sl_progress_parse(o->progress, &p->pump, err);
    if (st != SL_OK) return st;
    if (o->kv_replicas) p->kv_replicas = o->kv_replicas;
    if (o->max_num_seqs) p->max_num_seqs = o->max_num_seqs;
    if (o->prefill_stretch >= 1) p->prefill_stretch = o->prefill_stretch;
    if (o->max_num_batched_tokens) p->max_num_batched_tokens = o->max_num_batched_tokens;
    if (o->ctx) p->context = o->ctx;
    p->n_pages = pages_for(o, m, p);
    if (o->threads) p->threads = o->threads;
    if (!p->threads) p->threads = share_of_cores(p);
    return sl_plan_check(p, m, err);
}

sl_status sl_deploy_plan(const sl_options *o, sl_model_spec *m, sl_plan *out, sl_err *err) {
    *out = (sl_plan){0};
    sl_status st = make_plan(o, m, out, err);
    if (st == SL_OK) st = apply_options(o, m, out, err);
    if (st != SL_OK) sl_plan_free(out);
    return st;
}

static sl_auto_opts auto_opts(const sl_options *o, uint32_t requests, const sl_deployment *d) {
    return (sl_auto_opts){.model_folder = o->arg[0],
                          .m = &d->spec,
                          .transport = d->opts.transport,
                          .isa = d->kernels,
                          .here = !o->remote,
                          .requests = requests,
                          .delay_seed = d->opts.delay_seed,
                          .delay_us = d->opts.delay_us};
}

/* Experts that move: what of them has to fit. */
static sl_status prepare_moves(const sl_options *o, sl_deployment *d, sl_err *err) {
    sl_model_info info = {0};
    sl_status st = SL_OK;
    bool weights = !d->spec.weightless && !sl_device_is_modelled(&d->opts.plan.device);
    d->opts.adapt_memory = (uint64_t)(1e6 * o->adapt_memory);
    if (weights && d->opts.plan.n_workers > 1) st = sl_model_inspect(o->arg[0], &info, err);
    d->opts.expert_bytes = info.bytes_expert_most;
    return st;
}

/* --adapt: when experts move, and what the planner says that they cost. */
static sl_status prepare_adapting(const sl_options *o, uint32_t requests, sl_deployment *d,
                                  sl_err *err) {
    if (!o->adapt) return SL_OK;
    if (sl_plan_sides_apart(&d->opts.plan))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "--adapt: workers for prompts (--prefill) have experts that do not move");
    d->adapt = SL_ADAPT_OPTS;
    d->adapt.rest_us = (uint64_t)(1e6 * o->adapt_every);
    d->adapt.window_us = d->adapt.rest_us / 5;
    d->opts.adapt = &d->adapt;
    const sl_auto_opts a = auto_opts(o, requests, d);
    return sl_plan_expert_cost(&a, &d->opts.plan, &d->opts.expert_cost, err);
}

/* The feed-forward of a block without experts. Where nobody measured it: as a shared expert's, or a
 * routed one's, whose time per row and for its weights grows with the width (plan/shard.h). */
static sl_stage_cost dense_cost(const sl_plan *p, const sl_model_spec *m) {
    if (sl_device_is_modelled(&p->device)) return p->costs.stage[SL_COST_DENSE];
    bool shared = m->d_ff_shared > 0;
    sl_stage_cost c = p->costs.stage[shared ? SL_COST_SHARED : SL_COST_EXPERT];
    double wider = (double)m->d_ff_dense / (shared ? m->d_ff_shared : m->d_ff_expert);
    c.floor_us *= wider;
    c.slope_us *= wider;
    c.row_us *= wider;
    return c;
}

/* What a micro-batch takes in such a block, from the costs for which the schedule was chosen. */
static void predict_dense(uint32_t requests, sl_deployment *d) {
    const sl_plan *p = &d->opts.plan;
    if (!d->chosen.measured || d->spec.n_moe == d->spec.n_layers) return;
    sl_choose_load l;
    sl_choose_describe(p, &d->spec, 0, requests, &l); /* nothing of it travels */
    sl_stage_cost dense = dense_cost(p, &d->spec);
    const double keys[2] = {l.keys, l.prefill_rows / 2.0};
    for (int i = 0; i < 2; i++) {
        double rows = (double)d->chosen.rows[i] / p->lanes;
        double us = sl_stage_cost_us(&p->costs.stage[SL_COST_ATTENTION], rows, rows * keys[i]) +
                    sl_stage_cost_us(&dense, rows, 0);
        d->dense_s[i] = 1e-6 * us;
    }
}

/* Both sides have the schedule that suits who decodes. */
static sl_status choose_for_decode(const sl_options *o, uint32_t requests, sl_deployment *d,
                                   sl_err *err) {
    sl_plan *p = &d->opts.plan, decode;
    if (!sl_plan_sides_apart(p)) return SL_OK; /* fill_sides has chosen */
    if (o->remote)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "--schedule auto: workers on other machines are not measured where some are "
                       "for prompts (--prefill): say a schedule");
    sl_status st = sl_plan_view(p, false, &decode, err);
    if (st != SL_OK) return st;
    for (uint32_t i = 0; i < p->n_workers; i++)
        decode.worker[i].spare = p->worker[i].spare || p->worker[i].prefill;
    const sl_auto_opts a = auto_opts(o, requests, d);
    if (sl_plan_n_first(&decode) > 1) st = sl_plan_auto(&a, &decode, &d->chosen, err);
    d->opts.predicted = sl_auto_predicted(&d->chosen);
    if (st == SL_OK) sl_plan_take_schedule(&decode, p);
    sl_plan_free(&decode);
    if (st == SL_OK) predict_dense(requests, d);
    return st;
}

/* `given`: chosen with the devices, or NULL. */
static sl_status choose_schedule(const sl_options *o, uint32_t requests,
                                 const sl_device_auto *given, sl_deployment *d, sl_err *err) {
    sl_status st = SL_OK;
    const sl_auto_opts a = auto_opts(o, requests, d);
    if (!sl_deploy_schedule_is_open(o) || sl_plan_pipeline(&d->opts.plan) > 1) return SL_OK;
    if (sl_plan_has_prefill(&d->opts.plan)) return choose_for_decode(o, requests, d, err);
    d->opts.choose = o->remote;
    d->opts.auto_requests = requests;
    if (o->remote) return SL_OK; /* when the workers are there: sl_deploy_started */
    if (given && given->scheduled) {
        sl_plan_schedule_as(&given->plan, &d->opts.plan);
        d->chosen = given->schedule;
    } else {
        st = sl_plan_auto(&a, &d->opts.plan, &d->chosen, err);
    }
    d->opts.predicted = sl_auto_predicted(&d->chosen);
    if (st == SL_OK) predict_dense(requests, d);
    return st;
}

void sl_deploy_started(sl_engine *e, sl_deployment *d) {
    if (!d->opts.choose) return;
    sl_engine_chosen(e, &d->chosen, &d->opts.plan);
    predict_dense(d->opts.auto_requests, d);
}

sl_status sl_deploy_windows(const char *how, const char *transport, bool *out, sl_err *err) {
    const sl_transport_kind *kind = sl_transport_find(transport, false, err);
    if (!kind) return SL_ERR_ARG;
    *out = strcmp(how, "on") == 0;
    if (!*out && strcmp(how, "off") != 0)
        return sl_fail(err, SL_ERR_ARG, "--windows '%.20s': off or on expected", how);
    if (*out && !kind->windows)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "--windows on: transport %s has none; --transport ucx has", kind->name);
    return SL_OK;
}

sl_status sl_deploy_disk_size(const sl_options *o, uint64_t *out, sl_err *err) {
    *out = 0;
    if (!o->kv_disk_size[0]) return SL_OK;
    if (!o->kv_disk[0])
        return sl_fail(err, SL_ERR_ARG, "--kv-disk-size: --kv-disk has to say where");
    sl_status st = sl_quantity_bytes(o->kv_disk_size, out, err);
    return st == SL_OK ? st : sl_err_prefix(err, "--kv-disk-size");
}

/* --kv-disk: before any worker is started, what is wrong with it is said at once. */
static sl_status prepare_disk(const sl_options *o, sl_deployment *d, sl_err *err) {
    const sl_plan *p = &d->opts.plan;
    const uint64_t page = sl_kv_page_bytes(&d->spec);
    uint64_t bytes, n = 0;
    sl_status st = sl_deploy_disk_size(o, &bytes, err);
    if (st != SL_OK || !o->kv_disk[0]) return st;
    if (sl_device_is_modelled(&p->device))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "--kv-disk: emulated devices have no KV");
    for (uint32_t i = 0; i < p->n_workers; i++) n += (p->worker[i].roles & SL_ROLE_ATTENTION) != 0;
    if (bytes && bytes / n < SL_KV_FILE_HEAD_BYTES + SL_KV_FILE_PAGE_EXTRA + page)
        return sl_fail(err, SL_ERR_ARG,
                       "--kv-disk-size %s: %llu attention workers have KV pages of %llu bytes each",
                       o->kv_disk_size, (unsigned long long)n, (unsigned long long)page);
    d->opts.kv_disk = o->kv_disk;
    d->opts.kv_disk_bytes = bytes / n;
    return sl_kv_folder_check(o->kv_disk, err);
}

static sl_status prepare(const sl_options *o, bool processes, uint32_t requests,
                         const sl_device_auto *given, sl_deployment *d, sl_err *err) {
    sl_status st = sl_model_read_spec(o->arg[0], &d->spec, &d->gen, err);
    if (st == SL_OK) st = make_plan(o, &d->spec, &d->opts.plan, err);
    if (st == SL_OK) st = apply_options(o, &d->spec, &d->opts.plan, err);
    if (st == SL_OK && o->rank_link[0] && !sl_device_is_modelled(&d->opts.plan.device))
        st = sl_fail(err, SL_ERR_ARG, "--rank-link is for an emulated device (--device)");
    if (st == SL_OK) st = sl_deploy_kernels(o, d->kernels, err);
    if (st == SL_OK) st = sl_deploy_secret(o, d->secret, err);
    if (st == SL_OK && d->opts.plan.rank_kind == SL_RANKS_MACHINES && !d->secret[0])
        st = sl_fail(err, SL_ERR_ARG,
                     "ranks on machines (--tp-ranks) know their worker by the fabric's secret: "
                     "--secret-file is missing");
    if (st != SL_OK) return st;
    ssize_t n = readlink("/proc/self/exe", d->program, sizeof d->program - 1);
    if (n <= 0) return sl_fail(err, SL_ERR_IO, "/proc/self/exe: %s", strerror(errno));
    d->opts.model_folder = o->arg[0];
    d->opts.transport = sl_deploy_transport(o, processes);
    const sl_transport_kind *kind = sl_transport_find(d->opts.transport, false, err);
    if (!kind) return SL_ERR_ARG;
    if (kind->threads && o->remote)
        return sl_fail(err, SL_ERR_ARG, "--remote: transport %s is for threads of this process",
                       kind->name);
    d->opts.spawn = kind->threads ? SL_SPAWN_THREADS : SL_SPAWN_PROCESSES;
    d->opts.host = o->fabric_host;
    d->opts.port = (uint16_t)o->fabric_port;
    d->opts.secret = (sl_span){(const uint8_t *)d->secret, strlen(d->secret)};
    d->opts.program = d->program;
    d->opts.isa = d->kernels;
    d->opts.trace_path = o->trace[0] ? o->trace : NULL;
    d->opts.trace_events = o->trace_events;
    d->opts.delay_seed = o->delay_us ? o->delay_seed : 0;
    d->opts.delay_us = o->delay_us;
    d->opts.join_timeout_s = o->join_timeout;
    d->opts.silence_limit_s = o->silence_limit;
    st = sl_net_when_parse("--checksums", o->checksums, &d->opts.sums, err);
    if (st == SL_OK) st = sl_net_when_parse("--encrypt", o->encrypt, &d->opts.encrypt, err);
    if (st == SL_OK) st = sl_deploy_windows(o->windows, d->opts.transport, &d->opts.windows, err);
    if (st != SL_OK) return st;
    d->opts.patience_s = o->patience;
    st = prepare_disk(o, d, err);
    if (st != SL_OK) return st;
    if (!o->remote && !d->spec.weightless && !sl_device_is_modelled(&d->opts.plan.device))
        st = sl_cached_open(o->arg[0], &d->weights, err);
    if (st == SL_OK) st = choose_schedule(o, requests, given, d, err);
    if (st == SL_OK) st = prepare_moves(o, d, err);
    return st == SL_OK ? prepare_adapting(o, requests, d, err) : st;
}

sl_status sl_deploy_prepare(const sl_options *o, bool processes, uint32_t requests,
                            sl_deployment *d, sl_err *err) {
    sl_device_auto a;
    *d = (sl_deployment){0};
    if (!sl_device_is_auto(o)) {
        if (!o->device_profile[0]) return prepare(o, processes, requests, NULL, d, err);
        return sl_fail(err, SL_ERR_ARG,
                       "--device-profile: nothing is compared but by --device auto");
    }
    sl_status st = sl_device_auto_choose(o, processes, requests, &a, err);
    if (st == SL_OK) st = prepare(&a.options, processes, requests, &a, d, err);
    sl_device_auto_free(&a);
    return st;
}

/* Two things are waited for: weights, while they come from the disk, then workers. */
typedef struct opening {
    const sl_cached *weights;
    sl_progress read, ready;
} opening;

static void show_opening(void *ctx, uint64_t ready, uint64_t n) {
    opening *p = ctx;
    uint64_t total = p->weights ? sl_cached_total(p->weights) : 0;
    uint64_t now = p->weights ? sl_cached_now(p->weights) : 0;
    bool reads = now < total && ready < n;
    sl_progress_end(reads ? &p->ready : &p->read);
    sl_progress_set(reads ? &p->read : &p->ready, reads ? now : ready, reads ? total : n);
}

sl_status sl_deploy_start(const sl_options *o, const sl_deployment *d, sl_engine **out,
                          sl_err *err) {
    opening shown = {.weights = d->weights};
    sl_engine_opts opts = d->opts;
    bool wanted = !o->json && !o->no_status;
    opts.progress = show_opening;
    opts.progress_ctx = &shown;
    sl_progress_begin(&shown.read, "weights in memory", SL_PROGRESS_BYTES, wanted);
    sl_progress_begin(&shown.ready, "workers ready", SL_PROGRESS_STEPS, wanted);
    sl_status st = sl_engine_create(&opts, out, err);
    sl_progress_end(&shown.read);
    sl_progress_end(&shown.ready);
    return st;
}

void sl_deploy_print_schedule(const sl_deployment *d, FILE *out) {
    const sl_plan *p = &d->opts.plan;
    fprintf(out, "\"schedule\": \"%s\", \"lanes\": %u, \"chunks\": %u",
            sl_schedule_name(p->schedule), p->lanes, p->chunks);
    if (!d->chosen.why[0]) return;
    fprintf(out, ", \"schedule_why\": ");
    sl_print_json_string(out, d->chosen.why, strlen(d->chosen.why));
}

void sl_deploy_free(sl_deployment *d) {
    sl_plan_free(&d->opts.plan);
    sl_cached_free(d->weights);
}

sl_status sl_ids_parse(const char *text, uint32_t vocab, sl_ids *out, sl_err *err) {
    const char *p = text;
    while (*p) {
        char *end;
        errno = 0;
        unsigned long v = strtoul(p, &end, 10);
        if (end == p || errno || *p == '-' || v >= vocab || (*end != ',' && *end != '\0'))
            return sl_fail(err, SL_ERR_ARG, "--ids: '%.20s' is not a token id from 0 to %u", p,
                           vocab - 1);
        sl_status st = sl_ids_push(out, (uint32_t)v, err);
        if (st != SL_OK) return st;
        p = *end ? end + 1 : end;
    }
    return out->len ? SL_OK : sl_fail(err, SL_ERR_ARG, "--ids: no token");
}

sl_status sl_deploy_chat(const sl_options *o, sl_chat **out, sl_err *err) {
    return sl_chat_open_with(o->arg[0], o->chat_template[0] ? o->chat_template : NULL, out, err);
}

sl_generation_spec sl_deploy_generation(const sl_options *o, sl_generation_spec model) {
    if (o->temp >= 0) {
        model.temperature = (float)o->temp;
        model.do_sample = -1; /* whatever the file says of it */
    }
    if (o->top_p >= 0) model.top_p = (float)o->top_p;
    if (o->top_k != 0xFFFFFFFF) model.top_k = (int32_t)SL_MIN(o->top_k, (uint32_t)INT32_MAX);
    return model;
}

sl_sampling sl_deploy_sampling(const sl_options *o, const sl_generation_spec *gen) {
    sl_generation_spec said = sl_deploy_generation(o, *gen);
    sl_sampling s = sl_sampling_standard(&said);
    s.seed = o->seed;
    if (o->top_k != 0xFFFFFFFF) s.top_k = o->top_k;
    return s;
}
