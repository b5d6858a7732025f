/* What must hold while a seed runs, and at its end. */
#include "sim.h"

#include "engine/expert/expert.h"
#include "engine/attn/flow.h"
#include "engine/attn/lane.h"
#include "format/plan_sides.h"

#include <stdio.h>
#include <string.h>

/* ---- what a request is told ---- */

static void wrong(sim_request *r, const char *what, uint64_t at) {
    r->wrong = true;
    sim_fail(r->s, "request %u: %s at %llu is not as alone", (uint32_t)(r - r->s->request), what,
             (unsigned long long)at);
}

/* What a request hears of a token, and what it heard alone, where all was asked for. */
static bool same_logprobs(const sim_request *r, const sl_logprob *a, const sl_logprob *b) {
    for (uint32_t i = 0; i < 1 + r->n_top + r->n_scored; i++) {
        if (i == 1 + r->n_top) b += SL_MAX_LOGPROBS - r->n_top;
        if (a[i].id != b[i].id || a[i].logprob != b[i].logprob) return false;
    }
    return true;
}

static void on_prompt(sim_request *r, const sl_request_event *ev) {
    uint32_t at = ev->prompt_position;
    if (!r->prompt_logprobs || at != r->n_prompt_reported + 1 || at >= sim_prompt_of(r) || r->n > 0)
        wrong(r, "the order of a prompt's reports", at);
    else if (ev->tokens[0] != (at < r->p->n ? r->p->ids[at] : r->want->ids[at - r->p->n]) ||
             ((r->s->plan.exact || !r->s->moved) &&
              !same_logprobs(r, ev->logprobs,
                             at < r->p->n ? r->want->prompt[at] : r->want->logprobs[at - r->p->n])))
        wrong(r, "a log-probability of the prompt", at);
    r->n_prompt_reported = at;
}

static void on_token(sim_request *r, const sl_request_event *ev) {
    uint32_t at = r->n + r->given;
    if (r->n >= r->max_tokens || at >= SIM_MAX_NEW) {
        wrong(r, "one token too many", r->n);
        return;
    }
    if (r->prompt_logprobs && r->n_prompt_reported != sim_prompt_of(r) - 1)
        wrong(r, "a token before the prompt's reports", r->n);
    bool bits = r->s->plan.exact || !r->s->moved;
    if (bits && ev->tokens[0] != r->want->ids[at]) wrong(r, "token", r->n);
    if (r->logprobs != (ev->logprobs != NULL))
        wrong(r, "the presence of log-probabilities", r->n);
    else if (r->logprobs && bits && !same_logprobs(r, ev->logprobs, r->want->logprobs[at]))
        wrong(r, "a log-probability", r->n);
    r->n++;
}

void sim_on_event(void *ctx, const sl_request_event *ev) {
    sim_request *r = ctx;
    uint32_t number = (uint32_t)(r - r->s->request);
    r->s->progress_us = r->s->now_us;
    if (r->ends) wrong(r, "an event after the end", r->n);
    if (ev->request != r->id) wrong(r, "the id of an event", r->n);
    if (ev->n && ev->prompt_position)
        on_prompt(r, ev);
    else if (ev->n)
        on_token(r, ev);
    if (ev->n && !ev->prompt_position) sim_say(r->s, "request %u: token %u", number, ev->tokens[0]);
    if (ev->finish == SL_FINISH_NONE) return;
    r->ends++;
    r->finish = ev->finish;
    r->status = ev->status;
    snprintf(r->message, sizeof r->message, "%s", ev->message ? ev->message : "");
    sim_say(r->s, "request %u ends after %u tokens: %d %s", number, r->n, (int)ev->finish,
            r->message);
}

void sim_on_logits(void *ctx, uint64_t first, uint32_t n, const float *logits) {
    sim_request *r = ctx;
    if (!r->s->plan.exact && r->s->moved) return;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t at = first + i;
        if (at + 1 >= r->p->n + SIM_MAX_NEW ||
            sim_hash(logits + (size_t)i * sim_spec.vocab, sim_spec.vocab * sizeof *logits) !=
                r->want->logits[at])
            wrong(r, "a row of logits", at);
    }
}

/* ---- the coordinator's ledgers ---- */

/* Rows of others that it began with, when it started last. */
static void look_at_found(sim *s, const sim_request *r, const sl_admit_request *q) {
    const sl_engine_stats *st = &s->engine->stats;
    const sl_pages *pool = &s->engine->admit.worker[q->worker].pages;
    bool begins = sl_admit_runs(q) && q->found > 0;
    if (!begins) return;
    if (!r->shares)
        sim_fail(s, "request %u shares nothing, and found rows", (uint32_t)(r - s->request));
    if (q->found >= sl_admit_known(q) || q->found % SL_KV_PAGE_TOKENS)
        sim_fail(s, "%u rows were found, of %u tokens", q->found, sl_admit_known(q));
    s->seen[COVER_began_with_pages] = true;
    s->seen[COVER_began_with_pages_beside_others] |= pool->page[q->pages[0]].holders > 1;
    s->seen[COVER_began_with_what_was_drawn] |= q->starts == 1 && q->found > r->p->n;
    s->seen[COVER_began_with_pages_of_half_a_prompt] |=
        q->starts == 1 && q->found + SL_KV_PAGE_TOKENS < q->prompt;
    s->seen[COVER_began_with_pages_apart] |= s->engine->admit.n_pools > 1;
    s->seen[COVER_began_with_pages_under_pressure] |= s->pressure && st->pages_evicted > 0;
    s->seen[COVER_began_with_pages_and_reports] |= r->prompt_logprobs && q->starts > 1;
    s->seen[COVER_preempted_and_found] |= q->starts > 1 && st->preempted > 0;
    s->seen[COVER_lost_and_found] |= q->starts > 1 && st->lost_workers > 0;
    s->seen[COVER_drained_and_found] |= q->starts > 1 && st->moved > 0;
    s->seen[COVER_found_of_who_was_lost] |= q->starts == 1 && st->restarted_workers > 0;
}

static void look_at_request(sim *s, sim_request *r) {
    const sl_admit *a = &s->engine->admit;
    const sl_request *known = sl_ledger_find(&s->engine->ledger, r->id);
    if (!known) return;
    const sl_admit_request *q = &a->request[known->place];
    bool waits = !sl_admit_runs(q);
    s->seen[COVER_waited_for_a_place] |= waits && !r->ran && a->n_running > 0;
    if (!waits && r->worker == q->worker &&
        q->n_pages > sl_kv_pages_for(sim_prompt_of(r) + SL_MAX_AHEAD))
        s->seen[COVER_pages_grew] = true;
    if (waits && r->ran && !r->preempted) {
        r->preempted = true;
        sim_say(s, "request %u was preempted", (uint32_t)(r - s->request));
        s->seen[COVER_preempted] = true;
    }
    look_at_found(s, r, q);
    r->stayed = q->state == SL_ADMIT_STAYING || (r->stayed && !waits);
    s->seen[COVER_kv_kept] |= r->stayed && !waits;
    s->seen[COVER_kv_kept_beside_others] |= r->stayed && !waits && a->n_pools > 1;
    s->seen[COVER_kv_kept_of_a_prompt] |= r->stayed && !waits && q->drawn == 0 && q->sure > 0;
    if (!waits && q->worker != r->last_worker) {
        s->seen[COVER_went_on_with_copies] |= r->ran && q->sure > 0 && q->found == 0;
        r->last_worker = q->worker;
    }
    r->ran |= !waits;
    s->seen[COVER_suspect_cleared] |= r->suspected && !known->suspect.held;
    r->suspected = known->suspect.held;
    s->seen[COVER_suspects_go_on_beside] |= a->alone == known->place && a->n_running > 1;
    r->worker = waits ? SL_NO_WORKER : q->worker;
}

/* Copies are pages of who has them, of requests that are somewhere else or nowhere. */
static bool count_copies(sim *s, uint32_t worker, uint8_t *owners) {
    const sl_admit *a = &s->engine->admit;
    uint32_t n = 0;
    for (uint32_t r = 0; r < a->cap; r++) {
        const sl_kv_copies_of *of = &a->copies.of[r];
        const sl_admit_request *q = &a->request[r];
        if (of->at != worker) continue;
        n += of->n_asked;
        for (uint32_t i = 0; i < of->n_asked; i++) owners[of->page[i]]++;
        if (q->state == SL_ADMIT_UNUSED || of->n_here > of->n_asked ||
            of->n_here * SL_KV_PAGE_TOKENS >= sl_admit_known(q))
            return sim_fail(s, "%u of %u copies are there, of a request of %u tokens", of->n_here,
                            of->n_asked, sl_admit_known(q));
    }
    s->seen[COVER_copied] |= n > 0;
    return n == a->copies.worker[worker].n_pages ||
           sim_fail(s, "worker %u has %u copies, and is said to have %u", worker, n,
                    a->copies.worker[worker].n_pages);
}

/* Each page is free, or belongs to requests that run, or stay, is a copy, or cached. Several have
 * one only if its rows are all there. */
static bool check_pages(sim *s, uint32_t worker) {
    const sl_admit *a = &s->engine->admit;
    const sl_pages *p = &a->worker[worker].pages;
    uint8_t owners[SIM_MAX_PAGES] = {0};
    uint32_t used = 0;
    SL_ASSERT(p->n_total <= SL_LEN(owners));
    for (uint32_t r = 0; r < a->cap; r++) {
        const sl_admit_request *q = &a->request[r];
        if (q->state < SL_ADMIT_STAYING || q->worker != worker) continue;
        for (uint32_t i = 0; i < q->n_pages; i++) owners[q->pages[i]]++;
    }
    if (!count_copies(s, worker, owners)) return false;
    for (uint32_t i = 0; i < p->n_total; i++) {
        uint32_t holders = i < p->n_touched ? p->page[i].holders : 0;
        bool known = holders && !sl_page_key_none(p->page[i].key);
        if ((owners[i] > 1 && !known) || owners[i] != holders)
            return sim_fail(s, "page %u of worker %u has %u owners and %u holders", i, worker,
                            owners[i], holders);
        used += holders > 0;
    }
    s->seen[COVER_pages_evicted] |= p->n_evicted > 0;
    return used + p->n_cached + p->n_free == p->n_total ||
           sim_fail(s, "worker %u: %u pages are used, %u cached and %u free of %u", worker, used,
                    p->n_cached, p->n_free, p->n_total);
}

#define HEALS_US 2000000u /* so long after it was held up a worker may still be behind */

/* Where messages take so long, or anything less, an expert worker may be slower than another one
 * often enough by chance to count as slow. */
#define JITTERS_US 5000u

/* Whether others may have waited for the worker: it stood still, moves rarely, or a link of its
 * carried little or nothing. */
static bool was_held_up(const sim *s, uint32_t worker) {
    if (s->slow == worker || s->silent[worker] || s->failure) return true;
    for (uint32_t i = 0; i < s->n_events; i++) {
        const sim_event *e = &s->event[i];
        bool link = e->kind == SIM_HOLD || e->kind == SIM_THIN;
        bool its = e->a == worker || (link && e->b == worker);
        bool holds = e->kind == SIM_STALL || link;
        if (its && holds && e->done && s->now_us < (uint64_t)e->at_us + e->for_us + HEALS_US)
            return true;
    }
    return false;
}

/* Who is done without goes on answering, and nobody breaks with it for that. Whoever leaves does.
 */
static void look_at_links(sim *s) {
    const sl_engine *e = s->engine;
    bool leave = s->failure;
    for (uint32_t i = 0; i < s->n_events; i++)
        leave = leave || s->event[i].kind == SIM_LEAVE || s->event[i].kind == SIM_RESTART;
    for (size_t i = 0; i < e->links.n && !leave; i++) {
        uint32_t by = e->links.link[i].by, other = e->links.link[i].other;
        if (e->recover.place[by].slow || e->recover.place[other].slow)
            sim_fail(s, "worker %u broke with worker %u, and one of them is only slow", by, other);
    }
}

/* Workers that are left out as others waited for them, and that are taken in again. */
static void look_at_hedged(sim *s) {
    const sl_engine *e = s->engine;
    bool aep = s->plan.schedule == SL_SCHED_AEP;
    for (uint32_t i = 0; i < s->n_workers; i++) {
        const sl_recover_place *p = &e->recover.place[i];
        s->seen[COVER_hedged_and_back] |= s->hedged[i] && p->planned && !p->slow;
        s->seen[COVER_rehosted_slow_and_back] |=
            s->hedged[i] && s->n_rehosted && p->planned && !p->slow;
        if (!p->slow || s->n_hedged == e->stats.hedged_workers) continue;
        s->n_hedged = e->stats.hedged_workers;
        bool moved = s->n_rehosted != e->stats.rehosted_workers;
        s->n_rehosted = e->stats.rehosted_workers;
        s->moved |= moved;
        if (moved) s->seen[aep ? COVER_rehosted_slow_aep : COVER_rehosted_slow] = true;
        s->hedged[i] = true;
        bool just = was_held_up(s, i);
        s->seen[COVER_misjudged] |= !just; /* what follows is checked as after any verdict */
        /* By the policy of most tokens first a queue of few rows waits while others grow. */
        bool starves = aep && s->plan.policy == SL_POLICY_MTFS;
        if (!just && !starves && s->delay_us < JITTERS_US)
            sim_fail(s, "worker %u counts as slow, and nothing has held it up", i);
        /* Often it goes on just then, and answers by the plan that holds still. */
        if (sim_once_in(s, 2))
            s->stalled_until_us[i] = SL_MIN(s->stalled_until_us[i], s->now_us + sim_below(s, 300));
        s->seen[aep ? COVER_hedged_aep : COVER_hedged] = true;
        s->seen[COVER_hedged_sequencer] |= sim_is_sequencer(s, i);
        s->seen[COVER_hedged_thin] |= s->seen[COVER_thin_under_load];
    }
}

/* Where experts of a lost worker went, while they were nowhere. */
static void look_at_lost(sim *s) {
    const sl_recover *r = &s->engine->recover;
    if (r->await_us && !r->changing) s->awaits = true;
    if (!r->changing) return;
    bool missed = false, back = true;
    for (uint32_t i = 0; i < s->n_workers; i++) {
        missed |= r->place[i].missed && r->weighed;
        back = back && (!r->place[i].missed || r->there[i]);
    }
    if (missed && s->awaits && back) s->seen[COVER_waited_for_its_place] = true;
    if (missed && !s->awaits && !back) s->seen[COVER_moved_at_once] = true;
    s->awaits = false;
}

/* Rows that lie in queues are load that was told. */
static void look_at_queues(sim *s) {
    const sl_engine *e = s->engine;
    if (s->seen[COVER_load_queued] || !e->adapting.on) return;
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        const sl_counts *c = &e->worker[i].counts;
        for (size_t x = 0; x < (size_t)c->n_moe * c->n_experts; x++)
            s->seen[COVER_load_queued] |= c->expert[x].waits > 0;
    }
}

bool sim_check_ledger(sim *s) {
    bool ok = true;
    look_at_hedged(s);
    look_at_lost(s);
    look_at_queues(s);
    look_at_links(s);
    for (uint32_t i = 0; i < s->n_requests; i++)
        if (s->request[i].submitted && !s->request[i].refused) look_at_request(s, &s->request[i]);
    for (uint32_t i = 0; ok && i < s->n_workers; i++)
        if (sim_is(s, i, SL_ROLE_ATTENTION)) ok = check_pages(s, i);
    return ok;
}

void sim_look_at_slots(sim *s, uint32_t i) {
    const sl_attn *a = s->worker[i] ? s->worker[i]->attn : NULL;
    for (uint32_t j = 0; a && j < a->n_lanes * a->max_slots; j++) {
        const sl_life *life = a->slot[j].life;
        if (!life->used) continue;
        uint64_t ahead = sl_life_generated(life) - life->acked;
        if (ahead > SL_MAX_AHEAD)
            sim_fail(s, "worker %u is %llu tokens ahead", i, (unsigned long long)ahead);
        s->seen[COVER_parked] |= ahead == SL_MAX_AHEAD;
    }
    s->seen[COVER_chosen_anew] |= a && a->resolve.changes > 0;
    s->seen[COVER_groups_chosen_anew] |= a && a->resolve.eps && a->resolve.changes > 0;
    s->seen[COVER_lane_closed] |= a && a->slots.open < a->n_lanes;
    s->seen[COVER_chosen_anew_and_replanned] |= a && a->resolve.changes > 0 && a->w->plan.epoch > 1;
}

/* ---- the end ---- */

/* Lane l; NULL: this schedule has none. */
static const sl_lane *lane_of(const sl_attn *a, uint32_t l) {
    return a->ops == &sl_attn_lanes ? &((const sl_lanes *)a->side)->lane[l] : NULL;
}

static bool is_idle(const sl_attn *a, uint32_t l) {
    const sl_lane *lane = lane_of(a, l);
    return !lane || lane->member.state == SL_MEMBER_IDLE;
}

bool sim_is_quiet(const sim *s) {
    for (uint32_t i = 0; i < s->n_workers; i++) {
        const sl_attn *a = s->worker[i] && !s->silent[i] ? s->worker[i]->attn : NULL;
        const sl_taker *t = s->worker[i] && !s->silent[i] ? &s->worker[i]->taker : NULL;
        if (t && (t->holds || t->next) && s->engine->serving) return false;
        for (uint32_t l = 0; a && l < a->n_lanes; l++)
            if (!is_idle(a, l)) return false;
    }
    for (uint32_t i = 0; i < s->n_workers; i++) { /* a start that failed is tried again */
        const sl_drain_place *p = &s->engine->drain.place[i];
        if (p->n && !p->done && !s->failure) return false;
    }
    for (uint32_t i = 0; i < s->n_workers; i++) /* who was left out is taken in again */
        if (s->worker[i] && !s->silent[i] && s->engine->serving && s->engine->recover.begun &&
            sl_roster_serves(&s->engine->roster, i) && !s->engine->recover.place[i].planned)
            return false;
    for (uint32_t i = 0; i < s->n_workers; i++)
        if (s->returns_us[i] || s->dies_us[i] || s->engine->recover.place[i].rests ||
            ((!s->starved || s->engine->serving) && s->worker[i] && !s->silent[i] &&
             s->engine->recover.begun && !sl_roster_serves(&s->engine->roster, i)))
            return false;
    return s->engine->replan == NULL;
}

static bool ends_with(const sim_request *r, uint32_t id) {
    for (uint32_t i = 0; i < r->n_stop; i++)
        if (r->stop[i] == id) return true;
    return false;
}

static bool is_eos(uint32_t id) {
    for (uint32_t i = 0; i < sim_spec.n_eos; i++)
        if (sim_spec.eos[i] == id) return true;
    return false;
}

/* How a request ends that nothing happens to, and after how many tokens. */
static sl_finish natural_end(const sim_request *r, uint32_t *n) {
    for (*n = 1; *n <= r->max_tokens; ++*n) {
        uint32_t id = r->want->ids[*n + r->given - 1];
        if (ends_with(r, id)) return r->s->seen[COVER_stopped_by_id] = true, SL_FINISH_STOP;
        if (!r->ignore_eos && is_eos(id))
            return r->s->seen[COVER_stopped_by_eos] = true, SL_FINISH_STOP;
    }
    *n = r->max_tokens;
    return SL_FINISH_LENGTH;
}

/* An error is right when nobody was there to serve it. */
static bool check_error(sim *s, const sim_request *r, uint32_t number) {
    if (r->status == SL_OK || !r->message[0])
        return sim_fail(s, "request %u died without a reason", number);
    if (r->status == SL_ERR_CRASHES) {
        s->seen[COVER_poison_found] = true;
        return r->poison || sim_fail(s, "request %u: %s", number, r->message);
    }
    s->seen[COVER_died_with_error] = true;
    return s->starved ||
           sim_fail(s, "request %u at worker %d: %s", number, (int)r->worker, r->message);
}

static bool check_request(sim *s, uint32_t i) {
    const sim_request *r = &s->request[i];
    uint32_t n;
    if (r->refused) return true;
    if (r->ends != 1) return sim_fail(s, "request %u ended %u times", i, r->ends);
    if (r->wrong) return sim_fail(s, "request %u differs", i);
    if (r->finish == SL_FINISH_ERROR) return check_error(s, r, i);
    sl_finish how = natural_end(r, &n);
    if (r->cancelled && r->finish == SL_FINISH_STOP && r->n <= r->max_tokens) return true;
    if (!s->plan.exact && s->moved) return r->finish == SL_FINISH_STOP || r->n == r->max_tokens;
    if (r->finish != how || r->n != n)
        return sim_fail(s, "request %u ends with %d after %u tokens, alone with %d after %u", i,
                        (int)r->finish, r->n, (int)how, n);
    s->seen[COVER_survived_a_failure] |= s->failure;
    if (!r->preempted) return true;
    s->seen[COVER_preempted_and_finished] = true;
    s->seen[COVER_preempted_with_penalties] |= r->p->sampling.frequency_penalty != 0;
    s->seen[COVER_preempted_with_logprobs] |= r->logprobs;
    s->seen[COVER_preempted_with_bad_words] |= r->p->sampling.n_bad > 0;
    s->seen[COVER_preempted_with_shape] |= r->p->shape != NULL;
    return true;
}

/* What was asked of two is accounted for, and nothing is out that cannot come any more, or would
 * have come by now. */
static bool check_twice(sim *s, uint32_t i) {
    const sl_worker *w = s->worker[i];
    const sl_twice *t = &w->attn->twice;
    uint64_t out = 0;
    for (uint32_t id = 0; id < t->n_workers; id++) {
        const sl_twice_debt *d = &t->debt[id];
        out += d->rows;
        if (d->rows == 0) continue;
        if (!w->peer[id].open)
            return sim_fail(s, "worker %u waits for %llu rows of worker %u, which is gone", i,
                            (unsigned long long)d->rows, id);
        if (d->epoch == w->plan.epoch && !s->silent[id])
            return sim_fail(s, "worker %u never got %llu rows of worker %u", i,
                            (unsigned long long)d->rows, id);
    }
    s->seen[COVER_owner_answered_first] |= t->first > 0;
    s->seen[COVER_asked_of_two_and_lost] |= t->lost > 0;
    if (out == t->out && t->asked == t->counted + t->late + t->lost + out) return true;
    return sim_fail(s, "worker %u: of %llu rows asked of two %llu count, %llu are late, %llu lost",
                    i, (unsigned long long)t->asked, (unsigned long long)t->counted,
                    (unsigned long long)t->late, (unsigned long long)t->lost);
}

static bool check_worker(sim *s, uint32_t i) {
    const sl_worker *w = s->worker[i];
    if (!w || s->silent[i]) return true;
    if (w->expert && w->expert_ops == &sl_expert_queues && !sl_expert_queues_are_empty(w->expert))
        return sim_fail(s, "worker %u: rows are left in the experts' queues", i);
    if (!w->attn) return true;
    uint64_t out = w->n.rows_merged + w->n.rows_cancelled + w->n.rows_lost;
    if (w->n.rows_created != out)
        return sim_fail(s, "worker %u: %llu rows created, %llu accounted for", i,
                        (unsigned long long)w->n.rows_created, (unsigned long long)out);
    const sl_flow *f = w->attn->ops == &sl_attn_parts ? w->attn->side : NULL;
    for (uint32_t k = 0; f && k < SL_PART_KINDS; k++)
        if (f->parts.n_free != w->attn->max_rows || f->parts.in.rows[k])
            return sim_fail(s, "worker %u: %u of %u rows are free, %u of kind %u in flight", i,
                            f->parts.n_free, w->attn->max_rows, f->parts.in.rows[k], k);
    if (!check_twice(s, i)) return false;
    for (uint32_t l = 0; l < w->attn->n_lanes; l++) {
        uint32_t n_used = w->attn->slots.n_used[l];
        if (n_used) return sim_fail(s, "worker %u: lane %u counts %u slots", i, l, n_used);
        for (uint32_t j = 0; j < w->attn->max_slots; j++)
            if (sl_attn_slots(w->attn, l)[j].life->used)
                return sim_fail(s, "worker %u: slot %u is still used", i, j);
        if (!is_idle(w->attn, l))
            return sim_fail(s, "worker %u: lane %u is still in round %llu", i, l,
                            (unsigned long long)lane_of(w->attn, l)->member.round);
    }
    return true;
}

/* A change of plans ends, and only deadlines, the change before it and lost workers keep it from
 * being one. */
static bool check_replan(sim *s, const sim_event *e, uint32_t *taken) {
    const sl_replan *r = &e->replan;
    if (!r->done) return sim_fail(s, "a change of plans does not end");
    if (r->status == SL_ERR_TIMEOUT && e->for_us < 1000000) s->seen[COVER_replan_too_late] = true;
    if (r->status == SL_ERR_WORKER_LOST) s->seen[COVER_replan_lost_an_expert] = true;
    if (r->status == SL_OK) {
        s->seen[COVER_replanned] = true;
        s->seen[COVER_replanned_under_load] |= e->under_load && s->plan.exact;
        s->seen[COVER_replanned_aep] |= e->under_load && s->plan.schedule == SL_SCHED_AEP;
        s->seen[COVER_replanned_again] |= ++*taken > 1;
        s->seen[COVER_replanned_without_a_worker] |= s->failure && s->engine->serving;
        return true;
    }
    bool late = r->status == SL_ERR_TIMEOUT && (e->for_us < 1000000 || s->failure);
    bool lost = r->status == SL_ERR_WORKER_LOST || r->status == SL_ERR_INFEASIBLE; /* to a worker */
    return late || r->status == SL_ERR_AGAIN || (lost && s->failure) ||
           sim_fail(s, "a change of plans ends with: %s", r->err.msg);
}

static bool check_replans(sim *s) {
    uint32_t taken = 0;
    for (uint32_t i = 0; i < s->n_events; i++) {
        const sim_event *e = &s->event[i];
        if (e->kind == SIM_REPLAN && e->done && !check_replan(s, e, &taken)) return false;
    }
    const sl_plan *p = &s->engine->plan;
    for (uint32_t i = 0; i < s->n_workers; i++) {
        const sl_worker *w = s->worker[i];
        if (!w || !w->planned || s->silent[i] || !s->engine->serving) continue;
        /* it lives and is in no plan while its links break: one of them may still be held */
        if (s->engine->roster.worker[i].state == SL_ROSTER_SUSPECT) continue;
        if (p->worker[i].prefill && !p->worker[i].roles) continue; /* its side is not whole */
        const sl_placement *own = &w->plan.place;
        if (w->plan.epoch != p->epoch || w->taker.next || w->taker.holds)
            return sim_fail(s, "worker %u: plan %u, %u is next, %s, the coordinator has plan %u", i,
                            w->plan.epoch, w->taker.next, w->taker.holds ? "holds" : "goes on",
                            p->epoch);
        const bool apart = p->worker[i].prefill && sl_plan_sides_apart(p);
        const sl_placement *place = apart ? &p->prefill_place : &p->place;
        uint32_t entries = place->n_layers * p->n_experts;
        if (w->taker.joins) continue; /* it has taken no plan with the others yet */
        if (own->n_layers != place->n_layers ||
            memcmp(own->first, place->first, (entries + 1u) * sizeof *own->first) != 0 ||
            memcmp(own->host, place->host, own->first[entries] * sizeof *own->host) != 0)
            return sim_fail(s, "worker %u has other hosts than the coordinator", i);
    }
    return true;
}

/* Under aep as many rows can go again as a worker has room for; a step with more is done again. */
static bool may_lack_room(const sim *s) {
    return s->n_hedged > 0 && s->plan.schedule == SL_SCHED_AEP;
}

/* Where others can stand in for the one expert worker that was killed no step is done again; one
 * that has left on purpose may have been the other. */
static bool check_steps(sim *s) {
    uint32_t n_hosts = 0;
    /* It may be wanted again before it has gone; experts that have moved may have one host only. */
    bool left = s->engine->stats.adapt.changes > 0;
    for (uint32_t i = 0; i < s->n_events; i++) {
        const sim_event *e = &s->event[i];
        left |= e->done && (e->kind == SIM_LEAVE || e->kind == SIM_RESTART);
    }
    for (uint32_t i = 0; i < s->n_workers; i++)
        n_hosts += sim_is(s, i, SL_ROLE_EXPERT) && !s->plan.worker[i].spare; /* who comes later */
    for (uint32_t i = 0; i < s->n_workers; i++) {
        const sl_worker *w = s->worker[i];
        if (!w || !w->attn) continue;
        s->seen[COVER_decided_by_a_shape] |= w->n.tokens_forced > 0;
        s->seen[COVER_guessed] |= w->n.guesses > w->n.guesses_right;
        s->seen[COVER_guessed_right] |= w->n.guesses_right > 0;
        bool again = w->n.rows_reissued > 0;
        s->seen[COVER_sent_again] |= again;
        s->seen[COVER_sent_again_aep] |= again && s->plan.schedule == SL_SCHED_AEP;
        s->seen[COVER_answered_late] |= s->n_hedged > 0 && w->attn->twice.late > 0;
        if (s->doubled && s->n_hedged > 0 && !s->n_rehosted && !s->failure && !may_lack_room(s) &&
            w->n.steps_given_up)
            return sim_fail(s, "worker %u gave up %llu steps, and nobody was lost", i,
                            (unsigned long long)w->n.steps_given_up);
        if (s->doubled && s->kills == 1 && !left && !s->silent[i] && n_hosts > 1 &&
            w->n.steps_given_up)
            return sim_fail(s, "worker %u gave up %llu steps, and others host all experts", i,
                            (unsigned long long)w->n.steps_given_up);
    }
    return true;
}

/* Who lives serves, by the plan of home when that is everybody. */
static bool check_recovery(sim *s) {
    const sl_engine *e = s->engine;
    uint32_t n_alive = 0;
    s->seen[COVER_requeued] |= e->stats.requeued > 0;
    s->seen[COVER_handed_over] |= e->stats.handed > 0;
    s->seen[COVER_handed_over_aep] |= e->stats.handed > 0 && s->plan.schedule == SL_SCHED_AEP;
    s->seen[COVER_came_back] |= e->stats.restarted_workers > 0;
    const sl_adapt_stats *a = &e->stats.adapt;
    s->seen[COVER_moved_by_load] |= a->changes > 0;
    s->seen[COVER_moved_by_load_again] |= a->changes > 1;
    if (a->changes > 0 && s->plan.schedule == SL_SCHED_AEP) {
        static const int by[SL_POLICY_COUNT] = {[SL_POLICY_DEFRAG] = COVER_moved_by_load_defrag,
                                                [SL_POLICY_MTFS] = COVER_moved_by_load_mtfs,
                                                [SL_POLICY_FLFS] = COVER_moved_by_load_flfs,
                                                [SL_POLICY_RMF] = COVER_moved_by_load_rmf};
        s->seen[by[s->plan.policy]] = true;
    }
    s->seen[COVER_moved_by_load_and_lost] |= a->changes > 0 && e->stats.lost_workers > 0;
    s->seen[COVER_mended] |= s->seen[COVER_link_lost] && e->plan.epoch > 1;
    for (uint32_t i = 0; i < s->n_workers; i++) {
        if (!e->recover.place[i].rested || e->stats.hedged_workers) continue;
        s->seen[COVER_left_out] = true;
        s->seen[COVER_left_out_and_back] |= e->recover.place[i].planned;
    }
    bool rehosted = e->stats.lost_workers > 0 && e->plan.epoch > 1;
    s->seen[COVER_rehosted] |= rehosted;
    if (rehosted && s->seen[COVER_survived_a_failure] && s->plan.schedule == SL_SCHED_AEP) {
        static const int by[SL_POLICY_COUNT] = {[SL_POLICY_DEFRAG] = COVER_recovered_defrag,
                                                [SL_POLICY_MTFS] = COVER_recovered_mtfs,
                                                [SL_POLICY_FLFS] = COVER_recovered_flfs,
                                                [SL_POLICY_RMF] = COVER_recovered_rmf};
        s->seen[by[s->plan.policy]] = true;
    }
    s->seen[COVER_cut_and_mended] |= s->seen[COVER_cut] && !e->stats.lost_workers &&
                                     e->plan.epoch > 1 && s->seen[COVER_survived_a_failure];
    for (uint32_t i = 0; i < s->n_workers; i++) {
        if (!s->worker[i] || s->silent[i]) continue;
        n_alive++;
        const bool idle = s->plan.worker[i].prefill && !sim_has_prefill(s);
        s->seen[COVER_prompts_not_whole] |= idle;
        if (e->recover.begun && !s->starved && !idle && !sl_roster_serves(&e->roster, i))
            return sim_fail(s, "worker %u lives and does not serve", i);
    }
    if (!e->recover.begun || s->starved || n_alive < s->n_workers) return true;
    return (e->serving && e->recover.n_away == 0) ||
           sim_fail(s, "everybody lives, %u are away", e->recover.n_away);
}

/* Places that were free, and where somebody serves. */
static void note_growth(sim *s) {
    for (uint32_t i = 0; i < s->n_events; i++) {
        const sim_event *e = &s->event[i];
        if (!e->grows || !s->engine->recover.place[e->a].planned) continue;
        bool attention = sim_is(s, e->a, SL_ROLE_ATTENTION);
        s->seen[!attention                        ? COVER_grew_expert
                : sim_is(s, e->a, SL_ROLE_EXPERT) ? COVER_grew_both
                                                  : COVER_grew_attention] = true;
        s->seen[COVER_grew_under_load] |= e->under_load;
        s->seen[COVER_grew_and_lost] |= s->engine->stats.lost_workers > 0;
    }
}

/* Who leaves on purpose is not lost, nobody pauses for it, and what was asked comes to an end. */
static bool check_wishes(sim *s) {
    const sl_engine *e = s->engine;
    note_growth(s);
    for (uint32_t i = 0; i < s->n_workers; i++) {
        const sl_drain_place *p = &e->drain.place[i];
        s->seen[COVER_drain_given_up] |= p->n && p->done && p->status != SL_OK;
        if (p->n && !p->done && !s->failure)
            return sim_fail(s, "what was asked of worker %u does not end", i);
        if (p->state == SL_DRAIN_DRAINED && s->worker[i] && !s->silent[i])
            return sim_fail(s, "worker %u is drained and lives", i);
        if (p->n && p->done && p->status != SL_OK && !s->failure && !s->paused)
            return sim_fail(s, "%s", p->err.msg);
    }
    s->seen[COVER_drained_and_moved] |= e->stats.moved > 0;
    s->seen[COVER_drained_and_joined] |= e->stats.joined_workers > 0;
    s->seen[COVER_restarted] |= e->stats.joined_workers > 0 && e->stats.drained_workers > 0;
    if (s->failure) return true;
    if (e->stats.lost_workers || e->stats.requeued)
        return sim_fail(s, "%llu workers and %llu requests were lost without a failure",
                        (unsigned long long)e->stats.lost_workers,
                        (unsigned long long)e->stats.requeued);
    /* Of two that leave at once one stays after all: what the other says of who has let go of it
     * may end a connection that is needed again, which a change of plans mends. */
    bool crossed = s->seen[COVER_drain_taken_back] && e->stats.drained_workers > 0;
    return s->paused || crossed || s->n_rehosted || e->stats.longest_pause_s <= 0 ||
           sim_fail(s, "requests waited %.3f s without a failure", e->stats.longest_pause_s);
}

static bool check_totals(sim *s) {
    sl_engine_stats st;
    uint64_t taken = 0;
    sl_engine_stats_get(s->engine, &st);
    for (uint32_t i = 0; i < s->n_requests; i++)
        taken += s->request[i].submitted && !s->request[i].refused;
    uint64_t ended = st.finished_stop + st.finished_length + st.finished_error;
    if (ended + st.finished_cancelled != taken)
        return sim_fail(s, "%llu requests taken, %llu ended", (unsigned long long)taken,
                        (unsigned long long)(ended + st.finished_cancelled));
    for (uint32_t i = 0; i < s->n_workers; i++) { /* of the living: their own, check_worker */
        const sl_worker_stats *w = &s->engine->worker[i].stats;
        /* Of aep so many rows can go again as a worker has room for; a step with more is done
         * again. */
        bool again = s->n_hedged > 0 && s->plan.schedule == SL_SCHED_AEP;
        bool whole = !s->failure && !s->paused && !again && !s->n_rehosted;
        bool left = whole && w->rows_lost > 0;
        if (left) return sim_fail(s, "worker %u lost rows without a failure", i);
        if (!w->alive && w->rows_created != w->rows_merged + w->rows_cancelled + w->rows_lost)
            return sim_fail(s, "the books of worker %u, which died, do not balance", i);
        if (w->again_asked != w->again_counted + w->rows_late + w->again_lost + w->again_out)
            return sim_fail(s, "what worker %u says of rows asked of two does not balance", i);
    }
    if (s->engine->n_open || st.running || st.waiting || st.pages_used)
        return sim_fail(s, "%u open, %u running, %u waiting, %llu pages taken at the end",
                        s->engine->n_open, st.running, st.waiting,
                        (unsigned long long)st.pages_used);
    return true;
}

bool sim_check_end(sim *s) {
    bool ok = !s->what[0];
    for (uint32_t i = 0; ok && i < s->n_requests; i++) ok = check_request(s, i);
    for (uint32_t i = 0; ok && i < s->n_workers; i++) ok = check_worker(s, i);
    return ok && sim_check_ledger(s) && check_totals(s) && check_replans(s) && check_recovery(s) &&
           check_steps(s) && check_wishes(s);
}
