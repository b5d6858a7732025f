/* Requests: how they come, what src/sched/admit decides about them, what their clients see. */
#include "sim/deployment_int.h"

#include <math.h>

#include "plan/lengths.h"

/* ---- decisions ---- */

/* What comes to a worker is in the order in which it was sent. */
static void send(sim *s, sim_event_kind kind, uint32_t worker, uint32_t what) {
    sl_sim_events_push(&s->ev, sim_now(s) + s->s->control_us, kind, worker, what);
}

/* A word to who is to have the page, and from there to who has it. */
static void fetch(sim *s, const sl_admit_decision *d) {
    uint32_t id = sim_msg_take(s, SIM_MSG_PAGES, d->from, d->worker);
    if (id == SIM_NONE) return;
    s->msg[id].round = d->transfer;
    sl_sim_events_push(&s->ev, sim_now(s) + 2 * s->s->control_us, SIM_FETCH, d->from, id);
}

void sim_coord_copied(sim *s, uint32_t msg) {
    sl_admit_copied(&s->admit, s->msg[msg].dst, s->msg[msg].round, true);
    sim_msg_drop(s, msg);
    sim_touch_coord(s);
}

static void decide(sim *s) {
    sl_admit_decision d;
    while (s->status == SL_OK && sl_admit_next(&s->admit, (uint64_t)sim_now(s), &d)) {
        const sim_request *r = &s->req[d.request];
        /* Nobody is turned away: the queue has no limits. */
        SL_ASSERT(d.kind != SL_ADMIT_FULL && d.kind != SL_ADMIT_LATE);
        switch (d.kind) {
        case SL_ADMIT_PAGE:
            send(s, SIM_PAGE, d.worker, d.request);
            break;
        case SL_ADMIT_COPY:
            fetch(s, &d);
            break;
        case SL_ADMIT_HAND:
        case SL_ADMIT_PREEMPT:
            send(s, SIM_CANCEL, d.worker, d.request);
            break;
        case SL_ADMIT_START:
            if (s->admit.request[d.request].starts == 1 && sim_counts(s))
                sim_sample(s, &s->queued, sim_now(s) - r->came_at);
            send(s, SIM_SUBMIT, d.worker, d.request);
            break;
        default:
            break;
        }
    }
    if (s->admit.failed) sim_fail(s, sim_oom(s, "books of pages"));
}

/* It is over: its pages come back, its client hears of it. */
static void end(sim *s, uint32_t request, bool failed) {
    sl_admit_end(&s->admit, request);
    sl_sim_events_push(&s->ev, sim_now(s), SIM_CLIENT, failed, 0);
}

/* ---- arrivals ---- */

static uint32_t draw_length(sim *s, const sl_length *l) {
    return sl_length_quantile(l, sim_uniform(&s->lengths_rng) * (1 - 0x1p-52));
}

static sl_status enter(sim *s, uint32_t prompt, uint32_t output) {
    uint32_t id;
    sl_status st = sl_admit_submit(&s->admit, prompt, output, (uint64_t)sim_now(s), &id, s->err);
    if (st == SL_OK && id >= s->cap_req) {
        uint32_t cap = s->admit.cap;
        sim_request *bigger = sl_grow(s->req, s->cap_req, cap, sizeof *bigger);
        if (!bigger) return sim_oom(s, "requests");
        s->req = bigger;
        s->cap_req = cap;
    }
    if (st == SL_OK)
        s->req[id] = (sim_request){.number = s->result.submitted - 1, .came_at = sim_now(s)};
    return st;
}

static void submit(sim *s) {
    const sl_workload *load = s->s->load;
    uint32_t prompt, output;
    s->result.submitted++;
    if (!s->serving || (s->s->max_open && s->n_open >= s->s->max_open)) {
        s->result.refused++;
        s->trace_at += load->trace != NULL;
        return;
    }
    if (load->trace) {
        const sl_trace_request *t = &load->trace[s->trace_at++];
        prompt = t->input;
        output = t->output;
    } else {
        prompt = draw_length(s, &load->input);
        output = draw_length(s, &load->output);
    }
    uint32_t positions = (uint32_t)sl_kv_positions(prompt, output);
    if (positions > s->p->context || sl_kv_pages_for(positions) > s->p->n_pages) {
        s->result.refused++; /* would never fit: the engine answers 400 */
        s->shortest = s->result.too_long++ ? SL_MIN(s->shortest, positions) : positions;
        return;
    }
    s->n_open++;
    sl_status st = enter(s, prompt, output);
    if (st != SL_OK) sim_fail(s, st);
    sim_touch_coord(s);
}

static uint64_t requests_in_all(const sim *s) {
    return s->s->load->trace ? s->s->load->n_trace : s->s->load->n_requests;
}

static bool more(const sim *s) {
    uint64_t n = requests_in_all(s);
    return n == 0 || s->result.submitted < n;
}

void sim_coord_come(sim *s) {
    const sl_arrival *a = &s->s->load->arrival;
    if (!more(s)) return;
    submit(s);
    if (!more(s)) return;
    double at;
    if (a->kind == SL_ARRIVAL_TRACE)
        at = (double)s->s->load->trace[s->result.submitted].at_us / (a->speed > 0 ? a->speed : 1);
    else
        at = sim_now(s) - log(sim_uniform(&s->lengths_rng)) * 1e6 / a->rate;
    sl_sim_events_push(&s->ev, SL_MAX(at, sim_now(s)), SIM_COME, 0, 0);
}

/* All of a plan's pages are free; books of pages grow as they are used. */
static sl_status create_books(sim *s) {
    const sl_admit_shape shape = {.n_workers = s->n_workers,
                                  .max_running = s->p->max_num_seqs,
                                  .max_queue = UINT32_MAX,
                                  .prompt_rows = s->p->prefill_rows,
                                  .watch = sim_watch(s, s->n_workers)};
    sl_status st = sl_admit_create(&shape, &s->admit, s->err);
    if (st == SL_OK) st = sl_roster_create(s->n_workers, &s->roster, s->err);
    for (uint32_t i = 0; st == SL_OK && i < s->n_workers; i++) {
        if (!s->worker[i].roles) continue; /* a free place */
        sl_roster_expect(&s->roster, i, s->worker[i].roles);
        (void)sl_roster_hello(&s->roster, i, i);
        (void)sl_roster_ready(&s->roster, i, i);
    }
    for (uint32_t i = 0; st == SL_OK && i < s->n_workers; i++) {
        if (!(s->worker[i].roles & SL_ROLE_ATTENTION)) continue;
        st = sl_admit_add_pages(&s->admit, i, s->p->n_pages, 0, s->err);
        if (sl_plan_is_prefill(s->p, i)) sl_admit_set_prompts(&s->admit, i);
        sl_admit_open(&s->admit, i);
    }
    return st;
}

sl_status sim_coord_start(sim *s) {
    const sl_sim_setup *o = s->s;
    const sl_arrival *a = &o->load->arrival;
    if (o->measure_us <= 0 && o->measure_tokens == 0 && requests_in_all(s) == 0)
        return sl_fail(
            s->err, SL_ERR_ARG,
            "simulation: neither a time to measure nor a number of requests says when it ends");
    if (a->kind == SL_ARRIVAL_POISSON && !(a->rate > 0))
        return sl_fail(s->err, SL_ERR_ARG, "arrivals: %g requests a second", a->rate);
    if (a->kind == SL_ARRIVAL_TRACE && !o->load->trace)
        return sl_fail(s->err, SL_ERR_ARG, "arrivals of a trace that is not there");
    sl_status st = create_books(s);
    if (st != SL_OK) return st;
    s->phase = o->warmup_us > 0 || o->warmup_tokens > 0 ? SIM_WARM : SIM_ON;
    if (o->measure_us > 0) sl_sim_events_push(&s->ev, o->warmup_us + o->measure_us, SIM_END, 0, 0);
    if (a->kind == SL_ARRIVAL_CLOSED) {
        for (uint32_t i = 0; i < a->concurrency && more(s); i++) submit(s);
        sl_sim_events_push(&s->ev, 0, SIM_BEGIN, 0, 0);
        return s->status;
    }
    double first =
        a->kind == SL_ARRIVAL_POISSON ? -log(sim_uniform(&s->lengths_rng)) * 1e6 / a->rate : 0;
    sl_sim_events_push(&s->ev, first, SIM_COME, 0, 0);
    return SL_OK;
}

/* The client has heard of the end; in a closed loop it asks again. */
void sim_coord_client(sim *s, bool failed) {
    s->n_open--;
    s->result.failed += failed;
    if (s->s->load->arrival.kind == SL_ARRIVAL_CLOSED && more(s) && s->serving) submit(s);
}

/* ---- tokens ---- */

/* Whole steps are counted: from the first token after the warm-up until the first after the end. */
static void count_token(sim *s, double at) {
    const sl_sim_setup *o = s->s;
    s->all_tokens++;
    if (o->measure_tokens && s->all_tokens >= o->warmup_tokens + o->measure_tokens &&
        s->phase == SIM_ON)
        s->phase = SIM_ENDING;
    if (s->phase == SIM_WARM && at >= o->warmup_us && s->all_tokens > o->warmup_tokens) {
        s->phase = SIM_ON;
        s->result.from_us = at;
        for (uint32_t i = 0; i < s->n_workers; i++) {
            sim_worker *w = &s->worker[i];
            w->busy_from = w->busy_us;
            sim_links_mark(w, s->rails);
        }
    }
    if (!sim_counts(s)) return;
    if (at > s->result.to_us) {
        s->result.to_us = at;
        s->result.tokens += s->last_tokens;
        s->last_tokens = 0;
        s->over = s->phase == SIM_ENDING;
        if (s->over) s->phase = SIM_OFF;
    }
    s->last_tokens += !s->over;
}

static bool keeps_objectives(const sim *s, const sim_request *r, double tpot_us) {
    const sl_workload *l = s->s->load;
    return (l->slo_ttft_us <= 0 || r->first_at - r->came_at <= l->slo_ttft_us) &&
           (l->slo_tpot_us <= 0 || tpot_us <= l->slo_tpot_us);
}

static void finish(sim *s, uint32_t request) {
    const sim_request *r = &s->req[request];
    uint32_t tokens = s->admit.request[request].drawn;
    if (sim_counts(s)) {
        double tpot = tokens > 1 ? (r->last_at - r->first_at) / (tokens - 1) : 0;
        s->result.finished++;
        s->kept += keeps_objectives(s, r, tpot);
        if (tokens > 1) sim_sample(s, &s->tpot, tpot);
    }
    end(s, request, false);
}

static void token(sim *s, uint32_t request) {
    sim_request *r = &s->req[request];
    double now = sim_now(s);
    sl_admit_token(&s->admit, request, 0);
    bool first = s->admit.request[request].drawn == 1;
    count_token(s, now);
    if (sim_counts(s))
        sim_sample(s, first ? &s->ttft : &s->itl, now - (first ? r->came_at : r->last_at));
    if (first) r->first_at = now;
    r->last_at = now;
}

/* Acknowledges what was heard, if a request goes on for which that matters: an acknowledgement that
 * nobody needs would only make a run longer. */
static void hear(sim *s, sim_worker *w, uint32_t n) {
    sim_attn *a = w->attn;
    bool matters = false;
    if (a->lost) return; /* so are its requests */
    for (uint32_t i = 0; i < n && s->status == SL_OK; i++) {
        const sim_told *t = sim_attn_next_told(a);
        matters = matters || t->what == SIM_TOLD_TOKEN;
        if (t->what == SIM_TOLD_ROWS) {
            const sl_admit_request *q = &s->admit.request[t->request];
            if (sl_admit_runs(q) && q->worker == w->id)
                sl_admit_rows(&s->admit, t->request, t->rows);
        } else if (t->what == SIM_TOLD_GAVE_WAY) {
            bool handed = s->admit.request[t->request].kept_at != SL_ADMIT_NONE;
            sl_admit_gave_way(&s->admit, t->request);
            s->result.preempted += !handed;
            s->result.handed += handed;
        } else {
            token(s, t->request);
            if (t->what == SIM_TOLD_LAST) finish(s, t->request);
        }
    }
    a->n_owed += n;
    if (matters) {
        send(s, SIM_ACK, w->id, a->n_owed);
        a->n_owed = 0;
    }
}

void sim_coord_run(sim *s) {
    sim_item it;
    s->coord_dirty = false;
    while (s->status == SL_OK && sim_inbox_pop(&s->heard, &it))
        hear(s, &s->worker[it.who], it.what);
    decide(s);
}

/* ---- losses ---- */

static void fail_requests_of(sim *s, uint32_t worker) {
    sl_admit_close(&s->admit, worker);
    while (s->admit.worker[worker].running.n > 0)
        end(s, s->admit.worker[worker].running.first, true);
}

static void stop_serving(sim *s) {
    s->serving = false;
    while (s->admit.waiting.n > 0) end(s, s->admit.waiting.first, true);
}

void sim_coord_worker_lost(sim *s, uint32_t worker) {
    fail_requests_of(s, worker);
    if (s->admit.n_open == 0) stop_serving(s);
    decide(s);
}

void sim_coord_experts_lost(sim *s) {
    for (uint32_t i = 0; i < s->side[0].n_attn; i++) fail_requests_of(s, s->side[0].attn_id[i]);
    stop_serving(s);
}
