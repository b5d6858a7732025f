/* What src/sched/adapt decides about experts and their load, carried out: workers' reports go in,
 * a change of plans comes out. */
#include "engine/coord/coord_int.h"

#include "base/log.h"
#include "format/placement.h"
#include "format/plan_json.h"

#include <string.h>

#define CHANGE_US 60000000u /* for workers to map what they get, which a disk may have to read */

/* ---- what is measured ---- */

void sl_adapting_note(sl_engine *e, uint32_t id) {
    sl_adapting *a = &e->adapting;
    const sl_counts *c = &e->worker[id].counts;
    size_t n = (size_t)c->n_moe * c->n_experts;
    if (!a->on || !sl_roster_serves(&e->roster, id)) return;
    sl_expert_stats *seen = a->seen + id * n;
    uint64_t rows = 0, calls = 0;
    for (size_t i = 0; i < n; i++) {
        const sl_expert_stats *is = &c->expert[i];
        if (is->rows < seen[i].rows || is->calls < seen[i].calls)
            seen[i] = (sl_expert_stats){0}; /* another process counts from zero */
        const sl_adapt_said said = {.rows = is->rows - seen[i].rows,
                                    .calls = is->calls - seen[i].calls,
                                    .queued = (int64_t)is->waits - (int64_t)seen[i].waits};
        if (said.rows || said.queued)
            sl_adapt_add(&a->rule, (uint32_t)(i / c->n_experts), (uint32_t)(i % c->n_experts),
                         said);
        rows += said.rows;
        calls += said.calls;
        seen[i] = *is;
    }
    const uint64_t us = e->worker[id].stats.expert_us;
    sl_expense *of = sl_plan_on_gpu(&e->plan, id) ? &a->gpus : &a->cpus;
    if (us >= a->seen_us[id])
        sl_expense_add(of, (double)calls, (double)rows, (double)(us - a->seen_us[id]));
    a->seen_us[id] = us;
}

/* ---- what experts cost ---- */

/* Some experts are on GPUs and some on CPUs: a->gpu. Else workers count as equal. */
static bool differ(sl_engine *e) {
    const sl_plan *p = &e->plan;
    uint32_t n_gpus = 0, n = 0;
    for (uint32_t i = 0; i < p->n_workers; i++) {
        const bool hosts = p->worker[i].roles & SL_ROLE_EXPERT;
        e->adapting.gpu[i] = hosts && sl_plan_on_gpu(p, i);
        n_gpus += e->adapting.gpu[i];
        n += hosts;
    }
    return n_gpus > 0 && n_gpus < n;
}

/* By what they report. Those of whom nothing is known yet are taken to be as the others. */
static void learn_both(sl_engine *e) {
    sl_adapting *a = &e->adapting;
    sl_rebalance_shape *s = &a->rule.balance.shape;
    const bool cpus = sl_expense_of(&a->cpus, &s->cost);
    if (!sl_expense_of(&a->gpus, &s->other_cost))
        s->other_cost = s->cost;
    else if (!cpus)
        s->cost = s->other_cost;
}

/* Where nobody knows what experts cost: what they took so far, by the row. */
static void learn_costs(sl_engine *e) {
    sl_rebalance_shape *s = &e->adapting.rule.balance.shape;
    sl_stage_cost *cost = &s->cost;
    const sl_stage_cost *known = &e->o.expert_cost;
    uint64_t rows = 0, ns = 0;
    s->other = differ(e) ? e->adapting.gpu : NULL;
    if (s->other) {
        learn_both(e);
        return;
    }
    if (known->fixed_us > 0 || known->floor_us > 0 || known->row_us > 0) {
        *cost = *known; /* not what was learnt while some were on GPUs */
        return;
    }
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        const sl_counts *c = &e->worker[i].counts;
        for (uint32_t l = 0; l < c->n_layers; l++) rows += c->layer[l].rows;
        for (uint32_t l = 0; l < c->n_layers; l++) ns += c->layer[l].expert_ns;
    }
    if (rows) *cost = (sl_stage_cost){.row_us = 1e-3 * (double)ns / (double)rows};
}

static sl_adapt_view view(sl_engine *e) {
    sl_adapting *a = &e->adapting;
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->plan.n_workers; i++)
        if (e->plan.worker[i].roles & SL_ROLE_EXPERT) a->host[n++] = i;
    return (sl_adapt_view){&e->plan.place, a->host, n, sl_rooming_look(e)};
}

/* ---- changes ---- */

/* The plan of everybody with the placement that the rule has made. */
static sl_status plan_of(sl_engine *e, sl_plan *out, sl_err *err) {
    const sl_spread *to = &e->adapting.rule.next;
    uint32_t n_moe = e->spec.n_moe, n_experts = e->spec.n_experts;
    sl_share *share = sl_alloc(to->first[n_moe], sizeof *share);
    uint32_t *count = sl_alloc((size_t)n_moe * n_experts, sizeof *count);
    sl_status st =
        share && count ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "placement of %u blocks", n_moe);
    for (uint32_t b = 0; st == SL_OK && b < n_moe; b++) {
        for (uint32_t i = to->first[b]; i < to->first[b + 1]; i++) {
            share[i] = (sl_share){to->piece[i].worker, to->piece[i].share};
            count[(size_t)b * n_experts + to->piece[i].expert]++;
        }
    }
    if (st == SL_OK) st = sl_plan_copy(&e->home, out, err);
    if (st == SL_OK) {
        st = sl_placement_set_shares(share, count, n_moe, out, err);
        if (st != SL_OK) sl_plan_free(out);
    }
    sl_free(share);
    sl_free(count);
    return st;
}

static void say_costs(const sl_rebalance_shape *s) {
    sl_log(SL_LOG_INFO, "engine",
           "an expert that is asked for takes %.1f us and %.2f us a row on a GPU, %.1f and %.2f on "
           "a CPU, as measured",
           s->other_cost.fixed_us, s->other_cost.row_us, s->cost.fixed_us, s->cost.row_us);
}

static void begin(sl_engine *e) {
    sl_adapting *a = &e->adapting;
    const sl_adapt_promise *p = &a->rule.promise;
    sl_err err;
    sl_log(SL_LOG_INFO, "engine",
           "experts move: steps wait for them %.3f of the least, %.3f are predicted; %u of all "
           "blocks go to another worker",
           p->before, p->after, p->n_moved);
    if (a->rule.balance.shape.other) say_costs(&a->rule.balance.shape);
    a->replan = (sl_replan){.timeout_us = CHANGE_US};
    a->changing = true;
    sl_status st = plan_of(e, &a->replan.plan, &err);
    if (st == SL_OK) st = sl_plan_check(&a->replan.plan, &e->spec, &err);
    if (st == SL_OK) {
        sl_replan_begin(e, &a->replan);
        return;
    }
    a->replan.done = true;
    a->replan.err = err;
}

static void note_end(sl_engine *e, bool taken) {
    sl_adapt_stats *s = &e->stats.adapt;
    pthread_mutex_lock(&e->lock);
    s->changes += taken;
    s->failed += !taken;
    if (taken) {
        s->before = e->adapting.rule.promise.before;
        s->after = e->adapting.rule.promise.after;
        s->pause_s = 1e-6 * (double)e->pause_us;
    }
    pthread_mutex_unlock(&e->lock);
}

/* The change that was asked for is over. */
static void look_at_change(sl_engine *e, uint64_t now_us) {
    sl_adapting *a = &e->adapting;
    if (!a->changing || !a->replan.done) return;
    a->changing = false;
    bool taken = a->replan.taken;
    sl_plan_free(&a->replan.plan);
    sl_plan_free(&a->replan.home);
    note_end(e, taken);
    if (taken)
        sl_log(SL_LOG_INFO, "engine", "experts have moved, which held up all streams for %.1f ms",
               1e-3 * (double)e->pause_us);
    else
        sl_log(SL_LOG_WARN, "engine", "experts stay where they are: %s", a->replan.err.msg);
    if (taken) a->epoch = e->plan.epoch;
    sl_adapt_changed(&a->rule, taken, e->pause_us, now_us);
}

static void refuse(sl_engine *e) {
    sl_log(SL_LOG_WARN, "engine", "experts stay where they are: %s", e->adapting.rule.why);
    pthread_mutex_lock(&e->lock);
    e->stats.adapt.refused++;
    pthread_mutex_unlock(&e->lock);
}

static void publish(sl_engine *e) {
    if (e->stats.adapt.imbalance == e->adapting.rule.imbalance) return;
    pthread_mutex_lock(&e->lock);
    e->stats.adapt.imbalance = e->adapting.rule.imbalance;
    pthread_mutex_unlock(&e->lock);
}

void sl_adapting_step(sl_engine *e) {
    sl_adapting *a = &e->adapting;
    if (!a->on) return;
    uint64_t now_us = sl_clock_now_us(&e->clock);
    look_at_change(e, now_us);
    bool whole = e->serving && e->recover.service == SL_RECOVER_SERVES && e->recover.n_away == 0 &&
                 sl_drain_rests(&e->drain);
    if (!whole || e->stopping || e->replan || a->changing) return;
    if (a->epoch != e->plan.epoch) sl_adapt_disturbed(&a->rule, now_us);
    a->epoch = e->plan.epoch;
    if (!sl_adapt_is_due(&a->rule, now_us)) return;
    learn_costs(e);
    const sl_adapt_view v = view(e);
    sl_adapt_word word = sl_adapt_next(&a->rule, &v, now_us);
    if (word == SL_ADAPT_CHANGE) begin(e);
    if (word == SL_ADAPT_REFUSED) refuse(e);
    publish(e);
}

/* ---- life ---- */

sl_status sl_adapting_open(sl_engine *e, sl_err *err) {
    sl_adapting *a = &e->adapting;
    const sl_plan *p = &e->plan;
    uint32_t n_hosts = 0, n_most = 0, spare = 1;
    if (!e->o.adapt) return SL_OK;
    for (uint32_t i = 0; i < p->n_workers; i++) {
        n_hosts += (p->worker[i].roles & SL_ROLE_EXPERT) != 0;
        n_most += (e->home.worker[i].roles & SL_ROLE_EXPERT) != 0;
    }
    if (n_most < 2)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "experts move between expert workers (--adapt), the plan has %u", n_most);
    /* As many copies as somebody gave room for. */
    uint32_t even = (p->n_experts + n_hosts - 1) / n_hosts;
    for (uint32_t i = 0; i < p->n_workers; i++)
        for (uint32_t l = 0; l < p->place.n_layers; l++) {
            uint32_t n = 0;
            for (uint32_t x = 0; x < p->n_experts; x++) n += sl_plan_is_host(p, l, x, i);
            spare = SL_MAX(spare, n > even ? n - even : 0);
        }
    const sl_rebalance_shape shape = {.n_blocks = e->spec.n_moe,
                                      .n_experts = e->spec.n_experts,
                                      .n_workers = p->n_workers,
                                      .spare = spare,
                                      .copies = true,
                                      .barrier = sl_schedule_traits_of(p->schedule)->barriers,
                                      .cost = e->o.expert_cost};
    sl_adapt_opts o = *e->o.adapt;
    o.expert_bytes = e->o.expert_bytes;
    sl_status st = sl_adapt_create(&shape, &o, sl_clock_now_us(&e->clock), &a->rule, err);
    if (st != SL_OK) return st;
    size_t n = p->n_workers, pairs = (size_t)e->spec.n_moe * e->spec.n_experts;
    a->arrays = sl_alloc_arrays(SL_TABLE(a->seen, n, pairs), SL_ARRAY(a->seen_us, n),
                                SL_ARRAY(a->host, n), SL_ARRAY(a->gpu, n));
    a->on = a->arrays != NULL;
    return a->on ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "load of %zu workers", n);
}

void sl_adapting_reschedule(sl_engine *e) {
    const sl_schedule_traits *t = sl_schedule_traits_of(e->plan.schedule);
    if (e->adapting.on) e->adapting.rule.balance.shape.barrier = t->barriers;
}

void sl_adapting_close(sl_engine *e) {
    sl_adapting *a = &e->adapting;
    sl_adapt_free(&a->rule);
    sl_free(a->arrays);
    sl_plan_free(&a->replan.plan);
    sl_plan_free(&a->replan.home);
}
