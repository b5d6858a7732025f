/* --schedule auto with workers on other machines: when all have joined and before they get a plan,
 * what their links and stages cost is asked for. Links come first, one after the other, while
 * nobody computes: messages that come back as they were. Then they measure their stages, those at
 * one address one after the other, so that nobody measures another one's work. What somebody does
 * not know, or does not say in time, leaves the plan as it is. */
#include "engine/coord/coord_int.h"

#include "base/log.h"
#include "engine/measure/survey.h"
#include "spec/schedules.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LINK_US   200000u   /* of the rounds of one size, from the first that counts on */
#define LINKS_US  10000000u /* after which the links that were measured stand for the others */
#define POLL_US   2000u
#define SURVEY_US 60000000u /* of all, longer where many measure one after the other... */
#define EACH_US   3000000u  /* ...by so much for each; at most half of what is left to join */

enum { SHORT, LONG, SIZES }; /* of what is echoed */

static size_t bytes_of(const sl_survey *s) {
    return s->size == SHORT ? SL_MEASURE_SHORT : s->long_bytes;
}

/* The plan keeps its schedule. */
static void give_up(sl_engine *e, const char *why) {
    sl_survey *s = &e->survey;
    s->phase = SL_SURVEY_DONE;
    snprintf(s->report.why, sizeof s->report.why, "%s: %s", sl_schedule_name(e->plan.schedule),
             why);
    sl_log(SL_LOG_WARN, "auto", "%s", s->report.why);
}

/* The machine with the fewest cores for a thread, where workers share one. */
static void find_crowd(const sl_engine *e, sl_surveyed *found) {
    double least = INFINITY;
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        const sl_member_worker *w = &e->worker[i];
        uint32_t n = 0, attention = 0, experts = 0, threads = 0, most = 1;
        for (uint32_t j = 0; w->machine && j < e->plan.n_workers; j++) {
            if (e->worker[j].machine != w->machine) continue;
            n++;
            threads += e->worker[j].threads;
            most = SL_MAX(most, e->worker[j].threads);
            attention += (e->home.worker[j].roles & SL_ROLE_ATTENTION) != 0;
            experts += (e->home.worker[j].roles & SL_ROLE_EXPERT) != 0;
        }
        if (n < 2 || w->cores / (double)threads >= least) continue;
        least = w->cores / (double)threads;
        found->cores = w->cores;
        found->threads = most;
        found->core_attention = attention;
        found->core_experts = experts;
    }
}

static void choose(sl_engine *e) {
    sl_survey *s = &e->survey;
    sl_err err;
    sl_plan with = e->plan; /* borrows the placement */
    s->phase = SL_SURVEY_DONE;
    find_crowd(e, &s->found);
    s->found.ms = (double)(sl_clock_now_us(&e->clock) - s->began_us) / 1e3;
    sl_status st =
        sl_plan_auto_from(&s->found, &e->spec, e->o.auto_requests, &with, &s->report, &err);
    if (st != SL_OK) {
        give_up(e, err.msg);
        return;
    }
    sl_plan_schedule_as(&with, &e->plan);
    sl_plan_schedule_as(&with, &e->home);
    sl_plan_schedule_as(&with, &e->o.plan);
    pthread_mutex_lock(&e->lock);
    e->stats.schedule = with.schedule;
    e->stats.lanes = with.lanes;
    e->stats.chunks = with.chunks;
    e->stats.predicted = sl_auto_predicted(&s->report);
    pthread_mutex_unlock(&e->lock);
    sl_adapting_reschedule(e);
}

/* ---- links ---- */

static void send_echo(sl_engine *e) {
    sl_survey *s = &e->survey;
    if (!e->worker[s->at].conn) return; /* it joined and left: the start has failed already */
    sl_buf *b = sl_net_buf_take(e->net, bytes_of(s));
    if (!b) {
        give_up(e, "no memory to measure links with");
        return;
    }
    memset(b->data, 0, b->len);
    s->sent_us = sl_clock_now_us(&e->clock);
    s->sent_ns = sl_now_ns();
    if (s->round == SL_MEASURE_WARM) s->from_us = s->sent_us;
    const sl_wire_header h = {.kind = SL_MSG_ECHO, .number = ++s->number};
    s->echoes = sl_net_send(e->net, e->worker[s->at].conn, h, b) == SL_OK;
}

/* Both sizes came back often enough from worker s->at. */
static void note_link(sl_survey *s) {
    const sl_costs of = {.link =
                             sl_measured_link(s->half_us[SHORT], s->half_us[LONG], s->long_bytes)};
    sl_survey_dearest(&of, &s->found.costs);
}

static void ask_stages(sl_engine *e);

static bool is_asked(const sl_engine *e, uint32_t id) {
    return !e->home.worker[id].spare;
}

/* The first worker from `id` on whose link is to be measured; else all measure their stages. */
static void go_on(sl_engine *e, uint32_t id) {
    sl_survey *s = &e->survey;
    while (id < e->plan.n_workers && !is_asked(e, id)) id++;
    const bool late = s->n_links && sl_clock_now_us(&e->clock) - s->began_us > LINKS_US;
    if (id == e->plan.n_workers || late) {
        ask_stages(e);
        return;
    }
    s->at = id;
    s->size = SHORT;
    s->round = 0;
    send_echo(e);
}

sl_status sl_survey_on_echo(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_err *err) {
    sl_survey *s = &e->survey;
    const double half_us = (double)(sl_now_ns() - s->sent_ns) / 2e3;
    if (!s->echoes || id != s->at || h->number != s->number || h->bytes != bytes_of(s))
        return sl_fail(err, SL_ERR_PROTOCOL, "ECHO %llu of %u bytes, which nobody sent",
                       (unsigned long long)h->number, h->bytes);
    s->echoes = false;
    if (s->phase != SL_SURVEY_LINKS) return SL_OK; /* it was given up */
    const uint32_t n = s->round < SL_MEASURE_WARM ? 0 : s->round - SL_MEASURE_WARM + 1;
    if (n > 0) s->us[n - 1] = half_us;
    s->round++;
    const bool late = n > 0 && sl_clock_now_us(&e->clock) - s->from_us > LINK_US;
    if (n < SL_MEASURE_ROUNDS && !late) {
        send_echo(e);
        return SL_OK;
    }
    s->half_us[s->size] = sl_measured_median(s->us, n);
    s->round = 0;
    if (++s->size < SIZES) {
        send_echo(e);
        return SL_OK;
    }
    note_link(s);
    s->n_links++;
    go_on(e, s->at + 1);
    return SL_OK;
}

/* ---- stages ---- */

static bool ask_one(sl_engine *e, uint32_t id) {
    const sl_plan *p = &e->plan;
    if (!e->worker[id].conn) return true;                 /* as above */
    const bool known = sl_device_is_modelled(&p->device); /* only where they are is asked */
    const sl_survey_question q = {.model = e->model_folder,
                                  .roles = known ? 0 : e->home.worker[id].roles,
                                  .rows = e->survey.load.prefill_rows,
                                  .keys = e->survey.load.keys,
                                  .threads = SL_MAX(p->threads, 1u),
                                  .activations = p->activations,
                                  .kv_type = p->kv_type};
    char *text = sl_survey_question_print(&q);
    sl_buf *b = text ? sl_net_buf_take(e->net, strlen(text)) : NULL;
    if (b) memcpy(b->data, text, b->len);
    sl_free(text);
    if (b) sl_net_send(e->net, e->worker[id].conn, (sl_wire_header){.kind = SL_MSG_MEASURE}, b);
    return b != NULL;
}

/* Whether two workers say that they are called at one host. */
static bool share_host(const sl_plan *p, uint32_t i, uint32_t j) {
    const char *a = p->worker[i].address, *b = p->worker[j].address;
    const char *port = strrchr(a, ':');
    const size_t n = port ? (size_t)(port - a) : strlen(a);
    return strncmp(a, b, n) == 0 && (b[n] == ':' || b[n] == 0);
}

static bool is_measuring_there(const sl_engine *e, uint32_t id) {
    for (uint32_t i = 0; i < e->plan.n_workers; i++)
        if (e->worker[i].measures && share_host(&e->plan, i, id)) return true;
    return false;
}

/* Whoever has to measure and is alone at its host. */
static void ask_more(sl_engine *e) {
    sl_survey *s = &e->survey;
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        if (!is_asked(e, i) || e->worker[i].was_asked || is_measuring_there(e, i)) continue;
        e->worker[i].measures = e->worker[i].was_asked = true;
        if (!ask_one(e, i)) {
            give_up(e, "no memory for a question");
            return;
        }
    }
    if (s->n_measured == s->n_asked) choose(e);
}

static void ask_stages(sl_engine *e) {
    sl_survey *s = &e->survey;
    s->phase = SL_SURVEY_STAGES;
    sl_net_set_poll(e->net, 0); /* workers measure, and some of them may do so here */
    for (uint32_t i = 0; i < e->plan.n_workers; i++) s->n_asked += is_asked(e, i);
    ask_more(e);
}

sl_status sl_survey_on_costs(sl_engine *e, uint32_t id, sl_span payload, sl_err *err) {
    sl_survey *s = &e->survey;
    sl_survey_answer a;
    sl_err bad;
    if (!e->worker[id].measures)
        return sl_fail(err, SL_ERR_PROTOCOL, "COSTS that nobody asked for");
    if (sl_survey_answer_read(payload, &a, &bad) != SL_OK)
        return sl_fail(err, SL_ERR_PROTOCOL, "%s", bad.msg);
    e->worker[id].measures = false;
    if (s->phase == SL_SURVEY_DONE) return SL_OK; /* it was given up */
    if (a.why[0]) {
        char why[240];
        snprintf(why, sizeof why, "worker %u does not know what its stages cost: %s", id, a.why);
        give_up(e, why);
        return SL_OK;
    }
    a.costs.link = (sl_link_cost){0}; /* as was measured from here */
    sl_survey_dearest(&a.costs, &s->found.costs);
    /* A card for each rank, no more and no fewer: so rails are opened. */
    if (a.rails != sl_plan_ranks(&e->plan, SL_ROLE_ATTENTION)) s->found.rails = 1;
    e->worker[id].machine = a.machine;
    e->worker[id].cores = a.cores;
    e->worker[id].threads = a.threads;
    s->n_measured++;
    ask_more(e);
    return SL_OK;
}

/* ---- the turn ---- */

/* Workers at the address that has most of them. */
static uint32_t most_at_one(const sl_engine *e) {
    uint32_t most = 1;
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        uint32_t n = 0;
        for (uint32_t j = 0; j < e->plan.n_workers; j++)
            n += is_asked(e, j) && share_host(&e->plan, i, j);
        most = SL_MAX(most, n);
    }
    return most;
}

static void begin(sl_engine *e) {
    sl_survey *s = &e->survey;
    if (!e->o.choose || !sl_plan_auto_asks(&e->plan, false, &s->report)) {
        s->phase = SL_SURVEY_DONE;
        return;
    }
    const size_t row_bytes = sl_wire_row_bytes((sl_wire_format)e->plan.wire, e->spec.d_model);
    sl_choose_describe(&e->plan, &e->spec, row_bytes, e->o.auto_requests, &s->load);
    s->long_bytes = sl_measure_long(s->load.row_bytes, s->load.prefill_rows);
    s->found.rails = sl_plan_ranks(&e->plan, SL_ROLE_ATTENTION);
    s->began_us = sl_clock_now_us(&e->clock);
    const uint64_t join_us = 1000000ull * sl_engine_join_s(e),
                   gone_us = s->began_us - e->spawned_us;
    const uint64_t most_us = SURVEY_US + (most_at_one(e) - 1) * (uint64_t)EACH_US;
    s->most_us = SL_MIN(most_us, join_us > gone_us ? (join_us - gone_us) / 2 : 0);
    s->phase = SL_SURVEY_LINKS;
    sl_net_set_poll(e->net, POLL_US);
    go_on(e, 0);
}

bool sl_survey_step(sl_engine *e) {
    sl_survey *s = &e->survey;
    if (s->phase == SL_SURVEY_NONE) begin(e);
    const bool waits = s->phase == SL_SURVEY_LINKS || s->phase == SL_SURVEY_STAGES;
    if (waits && sl_clock_now_us(&e->clock) - s->began_us > s->most_us) {
        char why[120];
        uint32_t id = s->at;
        for (uint32_t i = 0; s->phase == SL_SURVEY_STAGES && i < e->plan.n_workers; i++)
            if (e->worker[i].measures) id = i;
        snprintf(why, sizeof why, "worker %u has not said in %u s what it costs", id,
                 (unsigned)(s->most_us / 1000000u));
        give_up(e, why);
    }
    if (s->phase != SL_SURVEY_DONE) return false;
    sl_net_set_poll(e->net, 0);
    return true;
}
