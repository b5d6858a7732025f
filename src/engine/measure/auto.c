/* Plans for --schedule auto: measures stages and link, asks the laws, takes the fastest. */
#include "engine/measure/auto.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/measure/measure.h"
#include "engine/measure/survey.h"
#include "format/plan_json.h"
#include "model/skew.h"
#include "net/net.h"
#include "spec/rank_cost.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SKEW_DRAWS 256u

/* ---- who works, and on how much ---- */

/* Rows of each worker in each block, for tokens drawn from the declared skew: the busiest worker's
 * over the mean, by block and of all blocks together. */
static sl_status measure_skew(const sl_plan *p, const sl_model_spec *m, sl_choose_load *l,
                              sl_err *err) {
    sl_skew *s = NULL;
    uint32_t expert[SL_MAX_TOP_K];
    float gate[SL_MAX_TOP_K];
    double of_blocks = 0, most_all = 0;
    double *all = sl_alloc(2 * (size_t)p->n_workers, sizeof *all), *rows;
    if (!all) return sl_fail(err, SL_ERR_NOMEM, "rows of %u workers", p->n_workers);
    rows = all + p->n_workers;
    sl_status st = sl_skew_create(&p->skew, m, &s, err);
    for (uint32_t b = 0; st == SL_OK && b < m->n_moe; b++) {
        double most = 0;
        memset(rows, 0, p->n_workers * sizeof *rows);
        for (uint32_t t = 0; t < SKEW_DRAWS; t++) {
            uint32_t id = t % m->vocab;
            sl_skew_draw(s, id, t, b, expert, gate);
            for (uint32_t j = 0; j < m->top_k; j++)
                rows[sl_plan_host_of(p, b, expert[j], sl_plan_row_key(id, t, b))]++;
        }
        for (uint32_t w = 0; w < p->n_workers; w++) {
            all[w] += rows[w];
            most = SL_MAX(most, rows[w]);
        }
        of_blocks += most;
    }
    for (uint32_t w = 0; w < p->n_workers; w++) most_all = SL_MAX(most_all, all[w]);
    double mean = (double)SKEW_DRAWS * m->top_k * m->n_moe / l->expert_workers;
    l->skew = SL_MAX(of_blocks / mean, 1);
    l->skew_total = SL_MAX(most_all / mean, 1);
    sl_skew_free(s);
    sl_free(all);
    return st;
}

/* ---- what it costs ---- */

/* All stages of workers that are gangs, from those of one device. */
static void gang_stages(const sl_plan *p, const sl_model_spec *m, const sl_link_cost *link,
                        sl_costs *c) {
    sl_gang_cut cut = {.ranks = sl_plan_ranks(p, SL_ROLE_ATTENTION),
                       .n_kv_heads = m->n_kv_heads,
                       .latents = m->kv_lora > 0,
                       .link = link,
                       .row_bytes = m->d_model * sizeof(float)};
    const sl_stage_cost expert = c->stage[SL_COST_EXPERT];
    sl_gang_stages(c->stage, &cut, c->stage);
    cut.ranks = sl_plan_ranks(p, SL_ROLE_EXPERT);
    c->stage[SL_COST_EXPERT] =
        sl_gang_stage_cost(&expert, SL_COST_EXPERT, cut.ranks, m->n_kv_heads, link, cut.row_bytes);
}

/* Of an emulated device everything is known. */
static void modelled_stages(const sl_plan *p, const sl_model_spec *m, sl_costs *c) {
    memcpy(c->stage, p->device.cost, sizeof c->stage);
    gang_stages(p, m, &p->device.rank_link, c);
    for (int i = 0; i < SL_COST_COUNT; i++)
        c->stage[i] = sl_stage_cost_scaled(&c->stage[i], p->device.time_scale);
    c->grouped = p->device.grouped;
}

/* The stages of those workers that compute on such a device, into c where they are dearer than what
 * is there. Of several GPUs the first one's. */
static sl_status measure_on(sl_device_kind kind, const sl_auto_opts *o, const sl_plan *p,
                            const sl_choose_load *l, sl_costs *c, sl_err *err) {
    sl_device_spec device = {0};
    sl_costs of = {0};
    uint32_t roles = 0;
    for (uint32_t i = p->n_workers; i-- > 0;) {
        const sl_device_spec d = sl_plan_device_of(p, i);
        if (d.kind != kind) continue;
        roles |= p->worker[i].roles;
        device = d;
    }
    if (roles == 0) return SL_OK;
    const sl_measure_opts mo = {.model_folder = o->model_folder,
                                .m = o->m,
                                .isa = o->isa,
                                .threads = p->threads,
                                .activations = p->activations,
                                .roles = roles,
                                .device = &device,
                                .rows = l->prefill_rows,
                                .keys = l->keys};
    sl_status st = sl_measure_stages(&mo, &of, err);
    if (st == SL_OK) sl_survey_dearest(&of, c);
    return st;
}

static sl_status measure_stages(const sl_auto_opts *o, const sl_plan *p, const sl_choose_load *l,
                                sl_costs *c, sl_err *err) {
    *c = (sl_costs){0};
    if (sl_device_is_modelled(&p->device)) {
        modelled_stages(p, o->m, c);
        return SL_OK;
    }
    sl_status st = measure_on(SL_DEVICE_CPU, o, p, l, c, err);
    return st == SL_OK ? measure_on(SL_DEVICE_CUDA, o, p, l, c, err) : st;
}

static sl_status measure(const sl_auto_opts *o, const sl_plan *p, const sl_choose_load *l,
                         sl_costs *c, sl_err *err) {
    const size_t bytes = sl_measure_long(l->row_bytes, l->prefill_rows);
    sl_status st = measure_stages(o, p, l, c, err);
    if (st == SL_OK)
        st = sl_measure_link(o->transport, bytes, o->delay_seed, o->delay_us, &c->link, err);
    return st;
}

sl_status sl_plan_expert_cost(const sl_auto_opts *o, const sl_plan *p, sl_stage_cost *out,
                              sl_err *err) {
    sl_choose_load l;
    sl_costs c = p->costs;
    bool modelled = sl_device_is_modelled(&p->device);
    *out = (sl_stage_cost){0};
    if (!p->has_costs && !modelled && (!o->here || o->m->weightless || sl_plan_n_gpu(p)))
        return SL_OK;
    sl_choose_describe(p, o->m, sl_wire_row_bytes((sl_wire_format)p->wire, o->m->d_model),
                       o->requests, &l);
    sl_status st = p->has_costs ? SL_OK : measure_stages(o, p, &l, &c, err);
    if (st == SL_OK) *out = c.stage[SL_COST_EXPERT];
    return st;
}

static void describe_times(const sl_costs *c, const sl_choose_load *l, char *out, size_t cap) {
    sl_choose_times d = sl_choose_times_at(c, l, false), p = sl_choose_times_at(c, l, true);
    snprintf(out, cap,
             "us a block, decode of %u rows / prompt of %u: attention %.0f / %.0f, shared %.0f / "
             "%.0f, to experts %.0f / %.0f, experts %.0f / %.0f, back %.0f / %.0f",
             l->decode_rows, l->prefill_rows, d.attention_us, p.attention_us, d.shared_us,
             p.shared_us, d.out_us, p.out_us, d.expert_us, p.expert_us, d.back_us, p.back_us);
}

/* "findep, 2 lanes, 4 chunks by tokens, asas". */
static void describe_choice(const sl_choice *x, char *out, size_t cap) {
    int n = snprintf(out, cap, "%s", sl_schedule_name(x->schedule));
    if (x->lanes > 1) n += snprintf(out + n, cap - (size_t)n, ", %u lanes", x->lanes);
    if (x->schedule == SL_SCHED_EPS)
        n += snprintf(out + n, cap - (size_t)n, ", %u groups", x->chunks);
    else if (x->chunks > 1)
        n += snprintf(out + n, cap - (size_t)n, ", %u chunks by %s", x->chunks,
                      x->chunking == SL_CHUNK_TOKENS ? "tokens" : "experts");
    if (x->order == SL_ORDER_AASS) snprintf(out + n, cap - (size_t)n, ", aass");
}

/* ---- the choice ---- */

static void apply(const sl_choice *x, sl_plan *p) {
    sl_plan_set_schedule(p, x->schedule);
    p->lanes = x->lanes;
    p->chunks = x->chunks;
    p->chunking = x->chunking;
    p->order = x->order;
}

static sl_choice choice_of(const sl_plan *p) {
    return (sl_choice){.schedule = p->schedule,
                       .lanes = p->lanes,
                       .chunks = p->chunks,
                       .chunking = p->chunking,
                       .order = p->order};
}

static void log_candidates(const sl_choice *list, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        char name[80];
        describe_choice(&list[i], name, sizeof name);
        sl_log(SL_LOG_DEBUG, "auto", "%s: decode %.0f us, prompt %.0f us a block, score %.3f", name,
               list[i].decode_us, list[i].prefill_us, list[i].score);
    }
}

/* The chosen one, or the next best that the plan's limits allow. */
static sl_status choose(const sl_costs *c, const sl_choose_load *l, const sl_model_spec *m,
                        sl_plan *p, sl_auto_report *r, sl_err *err) {
    sl_choice list[SL_CHOOSE_MAX];
    uint32_t n = 0, best = 0;
    sl_err unfit;
    sl_status st = sl_choose(c, l, list, &n, &best, err);
    if (st != SL_OK) return st;
    log_candidates(list, n);
    sl_plan with = *p; /* borrows the placement */
    apply(&list[best], &with);
    if (sl_plan_check(&with, m, &unfit) != SL_OK) {
        sl_log(SL_LOG_INFO, "auto", "the fastest does not fit: %s", unfit.msg);
        best = 0;
        apply(&list[0], &with);
    }
    char name[80];
    describe_choice(&list[best], name, sizeof name);
    r->choice = list[best];
    snprintf(r->why, sizeof r->why,
             "%s: decode %.0f, prompt %.0f us a block; simplest schedule %.0f, %.0f", name,
             list[best].decode_us, list[best].prefill_us, list[0].decode_us, list[0].prefill_us);
    *p = with;
    return SL_OK;
}

static void not_measured(sl_auto_report *r, const sl_plan *p, const char *why) {
    snprintf(r->why, sizeof r->why, "%s: %s", sl_schedule_name(p->schedule), why);
    sl_log(SL_LOG_INFO, "auto", "%s", r->why);
}

static bool offloads(const sl_plan *p) {
    for (uint32_t i = 0; i < p->n_workers; i++)
        if (p->worker[i].offload && p->worker[i].roles) return true;
    return false;
}

bool sl_plan_auto_asks(const sl_plan *p, bool here, sl_auto_report *out) {
    *out = (sl_auto_report){0};
    if (p->n_workers == 1)
        not_measured(out, p, "one worker does all, nothing travels");
    else if (p->random_weights)
        not_measured(out, p, "weights are random");
    else if (offloads(p))
        not_measured(out, p, "copies of experts to a GPU are not measured");
    else if (!here && sl_plan_n_gpu(p))
        not_measured(out, p, "GPUs of other machines are not measured yet");
    return !out->why[0];
}

static sl_status describe(const sl_plan *p, const sl_model_spec *m, uint32_t requests,
                          sl_choose_load *l, sl_err *err) {
    sl_choose_describe(p, m, sl_wire_row_bytes((sl_wire_format)p->wire, m->d_model), requests, l);
    return p->skew.on ? measure_skew(p, m, l, err) : SL_OK;
}

static void note_load(const sl_costs *c, const sl_choose_load *l, sl_auto_report *out) {
    out->measured = true;
    out->rows[0] = l->decode_rows;
    out->rows[1] = l->prefill_rows;
    describe_times(c, l, out->times, sizeof out->times);
}

/* From what was measured, in out->measure_ms. Ranks of a worker's own machine share the threads
 * that one device was measured with; those on others have their own. */
static sl_status choose_from(const sl_costs *measured, const sl_choose_load *l,
                             const sl_model_spec *m, sl_plan *p, sl_auto_report *out, sl_err *err) {
    sl_costs c = *measured;
    if (!sl_device_is_modelled(&p->device) && p->rank_kind == SL_RANKS_MACHINES)
        gang_stages(p, m, &c.link, &c);
    sl_status st = choose(&c, l, m, p, out, err);
    if (st != SL_OK) return st;
    p->has_costs = true;
    p->costs = c;
    note_load(&c, l, out);
    return SL_OK;
}

static void say_chosen(const sl_auto_report *r) {
    if (!r->measured) return;
    sl_log(SL_LOG_INFO, "auto", "measured in %.0f ms: %s", r->measure_ms, r->times);
    sl_log(SL_LOG_INFO, "auto", "%s", r->why);
}

/* Workers that share this machine's cores: those on GPUs do not. */
static void share_cores(const sl_plan *p, sl_choose_load *l) {
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (sl_device_is_modelled(&p->device) || cores <= 0) return;
    l->cores = (double)cores;
    for (uint32_t i = 0; i < p->n_workers; i++) {
        if (sl_plan_on_gpu(p, i)) continue;
        l->core_attention += (sl_plan_first_roles(p, i) & SL_ROLE_ATTENTION) != 0;
        l->core_experts += (sl_plan_first_roles(p, i) & SL_ROLE_EXPERT) != 0;
    }
}

sl_status sl_plan_auto(const sl_auto_opts *o, sl_plan *p, sl_auto_report *out, sl_err *err) {
    sl_choose_load l;
    sl_costs c;
    *out = (sl_auto_report){0};
    sl_status st = sl_plan_check_size(p, o->m, err);
    if (st == SL_OK) st = describe(p, o->m, o->requests, &l, err);
    if (st != SL_OK || !sl_plan_auto_asks(p, true, out)) return st;
    SL_ASSERT(o->here);
    share_cores(p, &l);
    uint64_t began_ns = sl_now_ns();
    st = measure(o, p, &l, &c, err);
    out->measure_ms = (double)(sl_now_ns() - began_ns) / 1e6;
    /* A GPU that cannot be measured is its worker's to report, as it opens it. */
    if (st == SL_ERR_TIMEOUT || st == SL_ERR_PEER_DOWN || st == SL_ERR_IO ||
        (st != SL_OK && sl_plan_n_gpu(p))) {
        not_measured(out, p, err->msg);
        return SL_OK;
    }
    if (st == SL_OK) st = choose_from(&c, &l, o->m, p, out, err);
    if (st == SL_OK) say_chosen(out);
    return st;
}

sl_status sl_plan_predict(const sl_costs *c, const sl_model_spec *m, uint32_t requests, bool open,
                          sl_plan *p, sl_auto_report *out, sl_choose_load *load, sl_err *err) {
    *out = (sl_auto_report){0};
    sl_status st = sl_plan_check_size(p, m, err);
    if (st == SL_OK) st = describe(p, m, requests, load, err);
    if (st != SL_OK) return st;
    share_cores(p, load);
    if (open) return choose_from(c, load, m, p, out, err);
    out->choice = choice_of(p);
    sl_choose_predict(c, load, &out->choice);
    note_load(c, load, out);
    return SL_OK;
}

sl_status sl_plan_auto_from(const sl_surveyed *s, const sl_model_spec *m, uint32_t requests,
                            sl_plan *p, sl_auto_report *out, sl_err *err) {
    sl_choose_load l;
    sl_costs c = s->costs;
    sl_status st = describe(p, m, requests, &l, err);
    *out = (sl_auto_report){.measure_ms = s->ms};
    if (st != SL_OK) return st;
    if (sl_device_is_modelled(&p->device)) modelled_stages(p, m, &c);
    if (s->threads) l.threads = s->threads;
    if (!sl_device_is_modelled(&p->device) && s->core_attention + s->core_experts > 1) {
        l.cores = s->cores;
        l.core_attention = s->core_attention;
        l.core_experts = s->core_experts;
    }
    if (p->rank_kind != SL_RANKS_MACHINES) l.rails = s->rails; /* else each has one */
    st = choose_from(&c, &l, m, p, out, err);
    if (st == SL_OK) say_chosen(out);
    return st;
}

sl_predicted sl_auto_predicted(const sl_auto_report *r) {
    return (sl_predicted){.block_s = {r->choice.decode_us * 1e-6, r->choice.prefill_us * 1e-6},
                          .rows = {r->rows[0], r->rows[1]}};
}

void sl_plan_schedule_as(const sl_plan *from, sl_plan *p) {
    const sl_choice x = choice_of(from);
    apply(&x, p);
    p->has_costs = from->has_costs;
    p->costs = from->costs;
}
