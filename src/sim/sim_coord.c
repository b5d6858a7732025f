/* Requests: how they come, which attention worker takes them, KV pages, tokens (the rules of
 * src/engine/admit.c). */
#include "sim/deployment_int.h"

#include <math.h>

#include "plan/lengths.h"

/* ---- requests ---- */

static uint32_t take_request(sim *s) {
    uint32_t id = s->free_req;
    if (id != SIM_NONE) {
        s->free_req = s->req[id].next;
    } else {
        if (s->n_req == s->cap_req) {
            uint32_t cap = SL_MAX(2 * s->cap_req, 1024u);
            sim_request *bigger = sl_grow(s->req, s->cap_req, cap, sizeof *bigger);
            if (!bigger) {
                sim_fail(s, sim_oom(s, "requests"));
                return SIM_NONE;
            }
            s->req = bigger;
            s->cap_req = cap;
        }
        id = s->n_req++;
    }
    s->req[id] = (sim_request){.id = ++s->ids,
                               .came_at = sim_now(s),
                               .worker = SIM_NONE,
                               .prev = SIM_NONE,
                               .next = SIM_NONE};
    return id;
}

static uint32_t total_positions(const sim_request *r) {
    return r->prompt + r->output;
}

static void push_waiting(sim *s, uint32_t id, bool front) {
    sim_request *r = &s->req[id];
    r->waits = true;
    r->prev = front ? SIM_NONE : s->wait_last;
    r->next = front ? s->wait_first : SIM_NONE;
    if (r->prev != SIM_NONE) s->req[r->prev].next = id;
    if (r->next != SIM_NONE) s->req[r->next].prev = id;
    if (r->prev == SIM_NONE) s->wait_first = id;
    if (r->next == SIM_NONE) s->wait_last = id;
    s->n_waiting++;
}

static void pop_waiting(sim *s, uint32_t id) {
    sim_request *r = &s->req[id];
    r->waits = false;
    if (r->prev != SIM_NONE)
        s->req[r->prev].next = r->next;
    else
        s->wait_first = r->next;
    if (r->next != SIM_NONE)
        s->req[r->next].prev = r->prev;
    else
        s->wait_last = r->prev;
    s->n_waiting--;
}

/* ---- arrivals ---- */

static uint32_t draw_length(sim *s, const sl_length *l) {
    return sl_length_quantile(l, sim_uniform(&s->lengths_rng) * (1 - 0x1p-52));
}

static void submit(sim *s) {
    const sl_workload *load = s->s->load;
    s->submitted++;
    if (!s->serving || (s->s->max_open && s->n_open >= s->s->max_open)) {
        s->refused++;
        s->trace_at += load->trace != NULL;
        return;
    }
    uint32_t id = take_request(s);
    if (id == SIM_NONE) return;
    sim_request *r = &s->req[id];
    if (load->trace) {
        const sl_trace_request *t = &load->trace[s->trace_at++];
        r->prompt = t->input;
        r->output = t->output;
    } else {
        r->prompt = draw_length(s, &load->input);
        r->output = draw_length(s, &load->output);
    }
    if (total_positions(r) > s->p->context || sl_kv_pages_for(total_positions(r)) > s->p->n_pages) {
        s->refused++; /* would never fit: the engine answers 400 */
        s->shortest = s->too_long++ ? SL_MIN(s->shortest, total_positions(r)) : total_positions(r);
        r->next = s->free_req;
        s->free_req = id;
        return;
    }
    s->n_open++;
    push_waiting(s, id, false);
    sim_coord_admit(s);
}

static uint64_t requests_in_all(const sim *s) {
    return s->s->load->trace ? s->s->load->n_trace : s->s->load->n_requests;
}

static bool more(const sim *s) {
    uint64_t n = requests_in_all(s);
    return n == 0 || s->submitted < n;
}

void sim_coord_come(sim *s) {
    const sl_arrival *a = &s->s->load->arrival;
    if (!more(s)) return;
    submit(s);
    if (!more(s)) return;
    double at;
    if (a->kind == SL_ARRIVAL_TRACE)
        at = (double)s->s->load->trace[s->submitted].at_us / (a->speed > 0 ? a->speed : 1);
    else
        at = sim_now(s) - log(sim_uniform(&s->lengths_rng)) * 1e6 / a->rate;
    sl_sim_events_push(&s->ev, SL_MAX(at, sim_now(s)), SIM_COME, 0, 0);
}

static void note_pages(sim *s, const sim_attn *a) {
    bool open = !a->lost && a->running < s->p->max_num_seqs;
    s->open_pages[a->index] = open ? a->free_pages : 0;
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
    s->open_pages = sl_alloc(s->n_attn, sizeof *s->open_pages);
    if (!s->open_pages) return sim_oom(s, "pages");
    for (uint32_t i = 0; i < s->n_attn; i++) note_pages(s, s->worker[s->attn_id[i]].attn);
    s->phase = o->warmup_us > 0 || o->warmup_tokens > 0 ? SIM_WARM : SIM_ON;
    if (o->measure_us > 0) sl_sim_events_push(&s->ev, o->warmup_us + o->measure_us, SIM_END, 0, 0);
    if (a->kind == SL_ARRIVAL_CLOSED) {
        for (uint32_t i = 0; i < a->concurrency && more(s); i++) submit(s);
        return s->status;
    }
    double first =
        a->kind == SL_ARRIVAL_POISSON ? -log(sim_uniform(&s->lengths_rng)) * 1e6 / a->rate : 0;
    sl_sim_events_push(&s->ev, first, SIM_COME, 0, 0);
    return SL_OK;
}

/* The client has heard of the end; in a closed loop it asks again. */
void sim_coord_client(sim *s, uint32_t id) {
    sim_request *r = &s->req[id];
    bool failed = r->failed;
    r->next = s->free_req;
    s->free_req = id;
    s->n_open--;
    s->failed += failed;
    if (s->s->load->arrival.kind == SL_ARRIVAL_CLOSED && more(s) && s->serving) submit(s);
}

/* ---- pages ---- */

/* Pages that let it run on until the coordinator has heard of its next tokens. */
static uint32_t wanted_pages(const sim_request *r) {
    uint32_t positions = r->prompt + r->generated + SL_MAX_AHEAD;
    return sl_kv_pages_for(SL_MIN(positions, total_positions(r)));
}

/* The one with most free pages. */
static uint32_t pick_worker(const sim *s, uint32_t pages) {
    uint32_t most = 0, at = 0;
    for (uint32_t i = 0; i < s->n_attn; i++) most = SL_MAX(most, s->open_pages[i]);
    if (most < pages || most == 0) return SIM_NONE;
    while (s->open_pages[at] != most) at++;
    return s->attn_id[at];
}

void sim_coord_admit(sim *s) {
    while (s->serving && s->wait_first != SIM_NONE && s->status == SL_OK) {
        uint32_t id = s->wait_first;
        sim_request *r = &s->req[id];
        uint32_t pages = wanted_pages(r), to = pick_worker(s, pages);
        if (to == SIM_NONE) return; /* in order: nobody overtakes the oldest */
        pop_waiting(s, id);
        if (!r->started && sim_counts(s)) sim_sample(s, &s->queued, sim_now(s) - r->came_at);
        r->started = true;
        r->worker = to;
        r->pages = pages;
        s->worker[to].attn->free_pages -= pages;
        s->worker[to].attn->running++;
        note_pages(s, s->worker[to].attn);
        sl_sim_events_push(&s->ev, sim_now(s) + s->s->control_us, SIM_SUBMIT, to, id);
    }
}

static void give_back(sim *s, sim_request *r) {
    sim_attn *a = s->worker[r->worker].attn;
    a->free_pages += r->pages;
    a->running--;
    r->pages = 0;
    note_pages(s, a);
    if (a->free_pages > s->p->n_pages)
        sim_fail(s,
                 sl_fail(s->err, SL_ERR_INTERNAL, "simulation: worker %u has %u free pages of %u",
                         r->worker, a->free_pages, s->p->n_pages));
}

/* Running requests of a worker get the pages they are about to need, the oldest first. */
static void grow_all(sim *s, sim_worker *w) {
    for (uint32_t l = 0; l < s->lanes; l++) {
        for (uint32_t i = 0; i < s->max_slots; i++) {
            const sl_life *life = &w->attn->lane[l].life[i];
            if (!life->used || life->ends) continue;
            sim_request *r = &s->req[w->attn->lane[l].request[i]];
            while (r->pages < wanted_pages(r) && w->attn->free_pages > 0) {
                w->attn->free_pages--;
                r->pages++;
            }
            sim_attn_on_pages(s, w, r);
        }
    }
    note_pages(s, w->attn);
}

static void grow(sim *s, sim_worker *w, sim_request *r) {
    while (r->pages < wanted_pages(r)) {
        if (w->attn->free_pages == 0) {
            /* Only what cannot go on without a page is worth another's work. */
            if (r->prompt + r->generated >= r->pages * SL_KV_PAGE_TOKENS && w->attn->running > 1) {
                sim_attn_evict_youngest(s, w);
                grow_all(s, w);
            }
            break;
        }
        w->attn->free_pages--;
        r->pages++;
    }
    sim_attn_on_pages(s, w, r);
    note_pages(s, w->attn);
}

void sim_coord_requeue(sim *s, uint32_t id) {
    sim_request *r = &s->req[id];
    sim_worker *w = &s->worker[r->worker];
    give_back(s, r);
    s->preempted++;
    push_waiting(s, id, true);
    grow_all(s, w);
    sim_coord_admit(s);
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
        s->from_us = at;
        for (uint32_t i = 0; i < s->n_workers; i++) {
            sim_worker *w = &s->worker[i];
            w->busy_from = w->busy_us;
            w->out_from = w->out.busy;
            w->in_from = w->in.busy;
        }
    }
    if (!sim_counts(s)) return;
    if (at > s->to_us) {
        s->to_us = at;
        s->tokens += s->last_tokens;
        s->last_tokens = 0;
        s->over = s->phase == SIM_ENDING;
        if (s->over) s->phase = SIM_OFF;
    }
    s->last_tokens += !s->over;
}

static bool keeps_objectives(const sim *s, const sim_request *r) {
    const sl_workload *l = s->s->load;
    double tpot = r->output > 1 ? (r->last_at - r->first_at) / (r->output - 1) : 0;
    return (l->slo_ttft_us <= 0 || r->first_at - r->came_at <= l->slo_ttft_us) &&
           (l->slo_tpot_us <= 0 || tpot <= l->slo_tpot_us);
}

static void finish(sim *s, uint32_t id, double at) {
    sim_request *r = &s->req[id];
    sim_worker *w = &s->worker[r->worker];
    give_back(s, r);
    if (sim_counts(s)) {
        s->finished++;
        s->kept += keeps_objectives(s, r);
        if (r->output > 1) sim_sample(s, &s->tpot, (r->last_at - r->first_at) / (r->output - 1));
    }
    sl_sim_events_push(&s->ev, at, SIM_CLIENT, 0, id);
    grow_all(s, w);
    sim_coord_admit(s);
}

bool sim_coord_token(sim *s, sim_worker *w, uint32_t id) {
    sim_request *r = &s->req[id];
    double at = sim_now(s) + s->s->control_us;
    r->generated++;
    count_token(s, at);
    if (sim_counts(s)) {
        bool first = r->generated == 1;
        sim_sample(s, first ? &s->ttft : &s->itl, at - (first ? r->came_at : r->last_at));
    }
    if (r->generated == 1) r->first_at = at;
    r->last_at = at;
    if (r->generated < r->output) {
        grow(s, w, r);
        return false;
    }
    return true;
}

void sim_coord_finish(sim *s, uint32_t id) {
    finish(s, id, s->req[id].last_at);
}

void sim_coord_fail(sim *s, uint32_t id) {
    sim_request *r = &s->req[id];
    if (r->waits)
        pop_waiting(s, id);
    else if (r->worker != SIM_NONE)
        give_back(s, r);
    r->failed = true;
    sl_sim_events_push(&s->ev, sim_now(s) + s->s->control_us, SIM_CLIENT, 0, id);
}

static void stop_serving(sim *s) {
    s->serving = false;
    while (s->wait_first != SIM_NONE) sim_coord_fail(s, s->wait_first);
}

void sim_coord_worker_lost(sim *s, uint32_t worker) {
    bool left = false;
    note_pages(s, s->worker[worker].attn);
    for (uint32_t i = 0; i < s->n_attn; i++) left = left || !s->worker[s->attn_id[i]].attn->lost;
    if (!left) stop_serving(s);
    sim_coord_admit(s);
}

void sim_coord_experts_lost(sim *s) {
    stop_serving(s);
}
