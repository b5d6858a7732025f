/* What a seed does: the deployment, who asks what, and what goes wrong when. */
#include "format/placement.h"
#include "format/plan_sides.h"
#include "net/net_int.h"
#include "spec/schedules.h"
#include "sim.h"

#include <stdio.h>
#include <string.h>

#define PLAIN_FAMILIES 4u /* of prompts: answers without penalties, which may be gone on with */

/* By then even an actor that moves late has lost who is silent, or held apart. */
#define BORNE_US      ((SIM_PATIENCE_S - 3) * 1000000u)
#define LOST_AFTER_US (SL_NET_SILENCE_LIMIT_US + 600000u)

/* ---- the deployment ---- */

/* Attention and expert workers; 0 of the latter: colocated. */
static const uint32_t shapes[][2] = {{1, 0}, {1, 1}, {1, 3}, {2, 2}, {2, 0},
                                     {3, 0}, {3, 2}, {2, 1}, {4, 2}, {2, 4}};
#define SCARCE_SHAPES 5u /* the first ones: few pools, so that they run out */

/* Under --exact any worker may host any expert, and several may host the same one. */
static bool draw_placement(sim *s, sl_plan *p) {
    sl_share share[2 * 64 * 16];
    uint32_t count[64 * 16], n = 0, hosts[SIM_MAX_WORKERS], n_hosts = 0;
    sl_err err;
    for (uint32_t i = 0; i < p->n_workers; i++)
        if ((p->worker[i].roles & SL_ROLE_EXPERT) && !p->worker[i].prefill) hosts[n_hosts++] = i;
    uint32_t layers = sim_once_in(s, 2) ? 1 : sim_spec.n_moe, entries = layers * p->n_experts;
    bool twice = s->doubled && n_hosts > 1; /* so that somebody can stand in for who is lost */
    if (entries > SL_LEN(count)) return true;
    for (uint32_t i = 0; i < entries; i++) {
        uint32_t first = sim_below(s, n_hosts), second = sim_below(s, n_hosts);
        if (twice && first == second) second = (first + 1) % n_hosts;
        double part = (1 + sim_below(s, 9)) / 10.0;
        count[i] = first == second ? 1 : 2;
        share[n++] = (sl_share){hosts[first], part};
        if (first != second) share[n++] = (sl_share){hosts[second], 1 - part};
    }
    return sl_placement_set_shares(share, count, layers, p, &err) == SL_OK;
}

static void draw_schedule(sim *s, sl_plan *p) {
    static const sl_schedule others[] = {SL_SCHED_PINGPONG, SL_SCHED_FINDEP, SL_SCHED_EPS,
                                         SL_SCHED_AEP};
    sl_plan other = *p;
    sl_err err;
    sl_plan_set_schedule(&other, others[sim_below(s, SL_LEN(others))]);
    if (other.lanes > 1) other.lanes = 1 + sim_below(s, 3);
    if (other.chunks > 1) other.chunks = 1 + sim_below(s, 4);
    if (other.schedule == SL_SCHED_FINDEP)
        other.chunking = (sl_chunking)sim_below(s, SL_CHUNKING_COUNT);
    other.order = (sl_order)sim_below(s, SL_ORDER_COUNT);
    other.policy = (sl_policy)sim_below(s, SL_POLICY_COUNT);
    other.max_num_batched_tokens = SL_MAX(other.max_num_batched_tokens, 3 * other.lanes);
    other.exact |= other.chunking == SL_CHUNK_EXPERTS || other.schedule == SL_SCHED_AEP;
    bool wanted = !sim_once_in(s, 3);
    if (wanted && sl_plan_check(&other, &sim_spec, &err) == SL_OK) *p = other;
    /* Not in its turn, either: some of those that can. */
    other = *p;
    other.resolve = (uint32_t)(s->seed / 7 % 6);
    if (sl_plan_check(&other, &sim_spec, &err) == SL_OK) *p = other;
}

/* Workers for prompts, not in their turn, either: one seed in four has some, where bits depend on
 * no number of workers and everybody is waited for. */
static bool draw_prefill(sim *s, sl_plan *p) {
    const bool together = p->worker[0].roles == (SL_ROLE_ATTENTION | SL_ROLE_EXPERT);
    uint64_t state = s->seed * 131 + 3;
    sl_err err;
    if (sl_rng_below(&state, 4) || s->devices.stateful || !p->exact || s->doubled) return true;
    const uint32_t attention = 1 + (uint32_t)sl_rng_below(&state, 2);
    const bool shares = p->schedule == SL_SCHED_AEP && sl_rng_below(&state, 2);
    const uint32_t experts = together || shares ? 0 : 1 + (uint32_t)sl_rng_below(&state, 2);
    if (p->n_workers + attention + experts > SIM_MAX_WORKERS) return true;
    p->prefill_rows = 1 + (uint32_t)sl_rng_below(&state, 60);
    if (sl_plan_add_prefill(attention, experts, false, p, &err) == SL_OK) return true;
    return sim_fail(s, "%s", err.msg);
}

bool sim_draw_plan(sim *s) {
    sl_plan *p = &s->plan;
    sl_err err;
    uint32_t per_request = sl_kv_pages_for(SIM_CONTEXT), shape = sim_below(s, SL_LEN(shapes));
    if (s->pressure && !sim_once_in(s, 4)) shape %= SCARCE_SHAPES;
    if (sl_plan_local(&sim_spec, shapes[shape][0], shapes[shape][1], p, &err) != SL_OK)
        return sim_fail(s, "%s", err.msg);
    p->exact = !sim_once_in(s, 4);
    p->wire = sim_once_in(s, 3) ? sim_below(s, SL_WIRE_FORMAT_COUNT) : SL_WIRE_F32;
    p->threads = 1;
    p->context = SIM_CONTEXT;
    p->n_pages = per_request * (1 + sim_below(s, 3)) + sim_below(s, 5);
    if (s->pressure) p->n_pages = per_request + sim_below(s, 3);
    p->max_num_seqs = s->pressure ? 4 + sim_below(s, 4) : 1 + sim_below(s, 5);
    p->max_num_batched_tokens = 3 + sim_below(s, 60);
    p->prefill_stretch = 1.0 + 0.25 * sim_below(s, 8);
    draw_schedule(s, p);
    const sl_speculate block = s->seed % 2 ? SL_SPECULATE_MTP_ALWAYS : SL_SPECULATE_BOTH_ALWAYS,
                       guesses = sim_spec.n_mtp ? block : SL_SPECULATE_ALWAYS;
    p->speculate = s->seed % 3 == 0 ? guesses : SL_SPECULATE_OFF;
    p->kv_replicas = s->seed % 2 && shapes[shape][0] > 1 && !s->devices.stateful;
    s->doubled = p->exact && sim_once_in(s, 3);
    bool ok = !p->exact || (!s->doubled && sim_once_in(s, 2)) || draw_placement(s, p);
    return ok && draw_prefill(s, p) && sim_draw_spares(s);
}

/* ---- requests ---- */

/* How KV pages are shared is not drawn in its turn: what else happens does not depend on it. One
 * seed in five has no cache. In one of three all ask about one text, one after the other. */
static bool is_talk(const sim *s) {
    uint64_t state = s->seed * 77 + 5;
    return s->seed % 5 && sl_rng_below(&state, 3) == 0;
}

/* Of the families whose answers depend on nothing but their text, the first one of some pages. */
static uint32_t talk_of(const sim *s) {
    const sim_prompt *p = sim_prompts(s->seed / 4096);
    uint32_t longest = 0;
    for (uint32_t f = 1; f < PLAIN_FAMILIES; f++)
        if (p[f * SIM_CHOICES].n > p[longest * SIM_CHOICES].n) longest = f;
    return longest * SIM_CHOICES;
}

/* With whom it shares pages, and whether it goes on with an answer that may be there. */
static void draw_sharing(const sim *s, sim_request *r) {
    uint32_t number = (uint32_t)(r - s->request), given;
    uint64_t state = s->seed * 31 + number + 7;
    bool goes_on = sl_rng_below(&state, is_talk(s) ? 2 : 3) == 0;
    bool plain = r->p < sim_prompts(s->seed / 4096) + PLAIN_FAMILIES * SIM_CHOICES;
    given = (uint32_t)sl_rng_below(&state, SIM_MAX_NEW);
    r->shares = s->seed % 5 && sl_rng_below(&state, 6);
    r->tenant = sl_rng_below(&state, 5) == 0;
    if (is_talk(s)) r->submit_at_us += number * sl_rng_below(&state, 20000);
    if (goes_on && plain && !r->p->shape && !r->too_long)
        r->given = SL_MIN(given, SIM_MAX_NEW - r->max_tokens);
}

static void draw_request(sim *s, sim_request *r, uint32_t prompt, uint64_t at_us) {
    if (is_talk(s)) prompt = talk_of(s) + prompt % SIM_CHOICES;
    *r = (sim_request){.s = s,
                       .p = &sim_prompts(s->seed / 4096)[prompt],
                       .worker = SL_NO_WORKER,
                       .last_worker = SL_NO_WORKER};
    r->want = sim_reference(s, prompt);
    r->submit_at_us = at_us;
    r->max_tokens = 1 + sim_below(s, s->pressure ? SIM_MAX_NEW : 1 + sim_below(s, SIM_MAX_NEW));
    if (s->pressure && !sim_once_in(s, 3)) r->max_tokens = SIM_MAX_NEW - sim_below(s, 12);
    r->ignore_eos = sim_once_in(s, 2);
    r->n_stop = sim_once_in(s, 5) ? 1 + sim_below(s, 2) : 0;
    for (uint32_t i = 0; r->want && i < r->n_stop; i++)
        r->stop[i] = r->want->ids[sim_below(s, SIM_MAX_NEW)];
    r->logprobs = sim_once_in(s, 3);
    r->n_top = r->logprobs ? sim_below(s, 6) : 0;
    r->n_scored = r->logprobs ? (prompt + r->n_top) % (SIM_SCORED + 1) : 0;
    r->prompt_logprobs = r->logprobs && sim_once_in(s, 3);
    r->logits = sim_once_in(s, 8);
    if (sim_once_in(s, 40)) {
        r->too_long = true;
        r->max_tokens = SIM_CONTEXT - r->p->n + 2 + sim_below(s, 9);
    }
    if (s->poisonous && !r->too_long && sim_once_in(s, 4)) {
        r->poison = true;
        r->fatal = sim_below(s, r->max_tokens);
    }
    draw_sharing(s, r);
    if (s->pressure && !sim_once_in(s, 4)) return;
    if (sim_once_in(s, 5)) r->cancel_at_us = at_us + 1 + sim_below(s, 1 + sim_below(s, 100000));
    if (sim_once_in(s, 8)) r->cancel_at_n = 1 + sim_below(s, r->max_tokens);
}

bool sim_draw_requests(sim *s) {
    uint32_t n = 2 + sim_below(s, 9), span_us = 1 + sim_below(s, s->pressure ? 5000 : 60000);
    if (sim_once_in(s, 8)) n = SIM_MAX_REQUESTS - sim_below(s, 8);
    s->poisonous = sim_once_in(s, 6);
    s->poisonous |= SL_MUTATION(EARLIER_END); /* a bug that one in thousands of seeds shows */
    while (s->n_requests < n) {
        uint64_t at_us = s->now_us + 1 + sim_below(s, span_us);
        uint32_t prompt = sim_below(s, SIM_PROMPTS), choices = sim_once_in(s, 6) ? SIM_CHOICES : 1;
        if (choices > 1) prompt -= prompt % SIM_CHOICES;
        for (uint32_t c = 0; c < choices && s->n_requests < n; c++)
            draw_request(s, &s->request[s->n_requests++], prompt + c, at_us);
        s->seen[COVER_several_choices] |= choices > 1;
        if (s->what[0]) return false;
    }
    return true;
}

static void note_asked(sim *s, const sim_request *r) {
    const sl_sampling *g = &r->p->sampling;
    s->seen[COVER_penalties] |= g->frequency_penalty != 0;
    s->seen[COVER_bias] |= g->n_bias > 0;
    s->seen[COVER_allowed] |= g->n_allowed > 0;
    s->seen[COVER_bad_words] |= g->n_bad > 0;
    s->seen[COVER_min_p] |= g->min_p > 0;
    s->seen[COVER_shape] |= r->p->shape != NULL;
    s->seen[COVER_logprobs] |= r->logprobs;
    s->seen[COVER_prompt_logprobs] |= r->prompt_logprobs;
    s->seen[COVER_scored_ids] |= r->n_scored > 0;
    s->seen[COVER_logits] |= r->logits;
    s->seen[COVER_prompt_over_a_page] |= sim_prompt_of(r) > SL_KV_PAGE_TOKENS;
    s->seen[COVER_prompt_in_chunks] |=
        sim_prompt_of(r) > s->plan.max_num_batched_tokens / s->plan.lanes;
}

bool sim_submit(sim *s, sim_request *r) {
    sl_err err;
    uint32_t prompt[SIM_CONTEXT];
    memcpy(prompt, r->p->ids, r->p->n * sizeof *prompt);
    memcpy(prompt + r->p->n, r->want->ids, r->given * sizeof *prompt);
    const sl_request_params p = {.prompt = prompt,
                                 .n_prompt = sim_prompt_of(r),
                                 .shares = r->shares,
                                 .salt = {r->tenant, r->shares ? 0 : 1 + (uint8_t)(r - s->request)},
                                 .max_tokens = r->max_tokens,
                                 .sampling = r->p->sampling,
                                 .ignore_eos = r->ignore_eos && !r->p->shape,
                                 .shape = r->p->shape,
                                 .logprobs = r->logprobs,
                                 .prompt_logprobs = r->prompt_logprobs,
                                 .report = {r->n_top, r->n_scored, sim_scored},
                                 .stop = r->stop,
                                 .n_stop = r->n_stop,
                                 .on_event = sim_on_event,
                                 .on_logits = r->logits ? sim_on_logits : NULL,
                                 .ctx = r};
    uint32_t number = (uint32_t)(r - s->request);
    r->submitted = true;
    r->status = sl_engine_submit(s->engine, &p, &r->id, &err);
    r->refused = r->status != SL_OK;
    sim_say(s, "request %u of %u tokens asks for %u%s%s", number, sim_prompt_of(r), r->max_tokens,
            r->refused ? ", refused: " : "", r->refused ? err.msg : "");
    if (r->refused && r->too_long && r->status == SL_ERR_LIMIT)
        s->seen[COVER_too_long_refused] = true;
    else if (r->refused && r->status == SL_ERR_WORKER_LOST && s->failure)
        s->seen[COVER_refused_after_failure] = true;
    else if (r->refused || r->too_long)
        return sim_fail(s, "request %u: %s", number, r->refused ? err.msg : "too long, taken");
    if (!r->refused) note_asked(s, r);
    return true;
}

static void cancel(sim *s, sim_request *r) {
    uint32_t number = (uint32_t)(r - s->request);
    r->cancelled = true;
    sim_say(s, "request %u is cancelled %s", number,
            r->ends                     ? "too late"
            : r->worker == SL_NO_WORKER ? "while it waits"
                                        : "while it runs");
    s->seen[r->ends                     ? COVER_cancelled_too_late
            : r->worker == SL_NO_WORKER ? COVER_cancelled_waiting
                                        : COVER_cancelled_running] = true;
    sl_engine_cancel(s->engine, r->id);
    if (sim_once_in(s, 4)) sl_engine_cancel(s->engine, r->id);
}

bool sim_do_requests(sim *s) {
    bool ok = true;
    for (uint32_t i = 0; ok && i < s->n_requests; i++) {
        sim_request *r = &s->request[i];
        if (!r->submitted && s->now_us >= r->submit_at_us) ok = sim_submit(s, r);
        if (!r->submitted || r->refused || r->cancelled) continue;
        if ((r->cancel_at_us && s->now_us >= r->cancel_at_us) ||
            (r->cancel_at_n && r->n >= r->cancel_at_n))
            cancel(s, r);
    }
    return ok;
}

bool sim_is_over(const sim *s) {
    for (uint32_t i = 0; i < s->n_requests; i++) {
        const sim_request *r = &s->request[i];
        if (!r->submitted || (!r->refused && r->ends == 0)) return false;
    }
    return true;
}

/* ---- what goes wrong ---- */

void sim_add_event(sim *s, sim_event_kind kind, uint32_t a, uint32_t b, uint64_t at_us,
                   uint64_t for_us) {
    SL_ASSERT(s->n_events < SIM_MAX_EVENTS);
    s->event[s->n_events++] =
        (sim_event){.kind = kind, .a = a, .b = b, .at_us = s->now_us + at_us, .for_us = for_us};
}

/* Two different actors; the coordinator is one of them now and then. */
static void draw_link(sim *s, uint32_t *a, uint32_t *b) {
    *a = sim_below(s, s->n_workers);
    *b = sim_below(s, s->n_workers + 1);
    if (*a == *b) *b = s->n_workers;
}

static void draw_failures(sim *s, uint32_t span_us) {
    uint32_t n = sim_once_in(s, 3) ? 2 + sim_below(s, 3) : 1, a, b;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at_us = sim_below(s, span_us);
        switch (sim_below(s, 6)) {
        case 0:
        case 1:
            sim_add_event(s, SIM_SILENCE, sim_below(s, s->n_workers), 0, at_us, 0);
            break;
        case 2:
            draw_link(s, &a, &b);
            /* Two workers may be apart for so long that one of them is left out. */
            sim_add_event(s, SIM_HOLD, a, b, at_us,
                          LOST_AFTER_US + sim_below(s, b < s->n_workers && sim_once_in(s, 2)
                                                           ? 12000000
                                                           : 2000000));
            break;
        default:
            sim_add_event(s, SIM_KILL, sim_below(s, s->n_workers), 0, at_us,
                          sim_once_in(s, 3) ? 0 : 1 + sim_below(s, 1 + sim_below(s, 400000)));
        }
    }
}

/* Slowness that nobody may mistake for a death: whatever is drawn, no two pauses add up. */
static void draw_slowness(sim *s, uint32_t span_us) {
    uint32_t a, b, pauses = 1 + sim_below(s, 3);
    if (sim_once_in(s, 4)) s->slow = sim_below(s, s->n_workers + 1);
    switch (s->doubled && !sim_once_in(s, 3) ? 1 : sim_below(s, 4)) {
    case 0:
        draw_link(s, &a, &b);
        sim_add_event(s, SIM_HOLD, a, b, sim_below(s, span_us), 1000 + sim_below(s, 1300000));
        break;
    case 1:
        a = sim_below(s, s->n_workers);
        /* Others do without an expert worker for whom somebody stands in. */
        while (s->doubled && !sim_is(s, a, SL_ROLE_EXPERT)) a = sim_below(s, s->n_workers);
        sim_add_event(s, SIM_STALL, a, 0, sim_below(s, span_us), 1000 + sim_below(s, 1300000));
        break;
    case 2: /* the coordinator does not acknowledge for a while, now and then */
        for (uint64_t i = 0, at_us = sim_below(s, span_us); i < pauses; i++, at_us += 2000000)
            sim_add_event(s, SIM_STALL, s->n_workers, 0, at_us, 10000 + sim_below(s, 1300000));
        if (sim_once_in(s, 4)) /* or stands still for long */
            sim_add_event(s, SIM_STALL, s->n_workers, 0, 2000000u * pauses, 30000000);
        break;
    default:
        break;
    }
}

/* Others wait for an expert worker for so long that its experts move: it stands still for most of
 * the time after which it counts as dead, or a link of its is up and carries little. */
static void draw_long_slowness(sim *s, uint32_t span_us) {
    uint32_t expert = sim_below(s, s->n_workers), at_us = sim_below(s, span_us);
    while (!sim_is(s, expert, SL_ROLE_EXPERT)) expert = sim_below(s, s->n_workers);
    for (uint32_t i = 0; i < s->n_requests; i++) { /* for long enough */
        sim_request *r = &s->request[i];
        if (!r->too_long) r->max_tokens = SIM_MAX_NEW - r->given;
        r->cancel_at_us = 0;
        r->cancel_at_n = 0;
    }
    if (sim_is_near(s)) {
        sim_add_event(s, SIM_STALL, expert, 0, at_us, 5500000 + sim_below(s, 2500000));
        return;
    }
    uint32_t for_us = 8000000 + sim_below(s, 20000000);
    for (uint32_t i = 0; i < s->n_workers; i++)
        if (i != expert && sim_is(s, i, SL_ROLE_ATTENTION) && !sim_once_in(s, 3))
            sim_add_thin(s, i, expert, at_us, for_us, 2000u << sim_below(s, 3));
}

/* Other plans, one after the other or too soon; some of them with little time. */
static void draw_replans(sim *s, uint32_t span_us) {
    uint32_t n = 1 + sim_below(s, 5);
    for (uint32_t i = 0; i < n; i++)
        sim_add_event(s, SIM_REPLAN, 0, 0, sim_below(s, span_us),
                      sim_once_in(s, 5) ? sim_below(s, 6000) : 60000000);
}

/* Workers leave, restart and come back, at any time and whatever else happens to them. */
static void draw_wishes(sim *s, uint32_t span_us) {
    uint32_t n = 1 + sim_below(s, 4);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t who = sim_below(s, s->n_workers), at_us = sim_below(s, span_us);
        uint32_t grace_us = sim_once_in(s, 2) ? 0 : sim_below(s, 20000);
        bool leaves = sim_once_in(s, 2);
        sim_add_event(s, leaves ? SIM_LEAVE : SIM_RESTART, who, 0, at_us, grace_us);
        if (sim_once_in(s, 2))
            sim_add_event(s, SIM_RETURN, who, 0, at_us + sim_below(s, 2 * span_us), 0);
    }
}

void sim_draw_events(sim *s) {
    uint32_t span_us = 1000 + sim_below(s, sim_once_in(s, 2) ? 30000 : 200000);
    /* A change that somebody stands still in for so long gives up who is new: no others then. */
    if (sim_is_near(s)) {
        draw_long_slowness(s, span_us);
        return;
    }
    if (s->seed % 12 == 7)
        draw_long_slowness(s, span_us);
    else if (sim_once_in(s, 3))
        draw_failures(s, span_us);
    else if (sim_once_in(s, 2))
        draw_slowness(s, span_us);
    if (!sim_once_in(s, 3)) draw_replans(s, span_us);
    if (!s->spawns && sim_once_in(s, 2)) draw_wishes(s, span_us); /* they come by themselves */
    sim_draw_links(s, span_us);
}

/* After a failure: whether anybody is left who can serve. */
static void note_failure(sim *s) {
    s->failure = s->moved = true;
    s->starved |= !sim_has(s, SL_ROLE_ATTENTION) || !sim_has(s, SL_ROLE_EXPERT);
}

bool sim_is_sequencer(const sim *s, uint32_t worker) {
    const sl_plan *p = &s->engine->plan;
    uint32_t first = 0;
    while (first < p->n_workers && !(p->worker[first].roles & SL_ROLE_EXPERT)) first++;
    return worker == first && sl_schedule_traits_of(p->schedule)->barriers;
}

static void kill(sim *s, const sim_event *e) {
    if (!s->worker[e->a] || s->silent[e->a]) return;
    uint32_t killed = 0;
    for (uint32_t i = 0; i < s->n_workers; i++) killed += !s->worker[i];
    s->seen[COVER_two_killed] |= killed > 0;
    s->seen[COVER_prompts_killed] |= s->plan.worker[e->a].prefill;
    if (sim_is(s, e->a, SL_ROLE_EXPERT))
        s->seen[COVER_expert_killed] = true;
    else
        s->seen[COVER_attention_killed] = true;
    s->kills += sim_is(s, e->a, SL_ROLE_EXPERT) ? 1 : 2; /* of expert workers; others count more */
    s->seen[COVER_sequencer_killed] |= sim_is_sequencer(s, e->a);
    sl_drain_state state = s->engine->drain.place[e->a].state;
    s->seen[COVER_died_while_it_drained] |= state != SL_DRAIN_WANTED;
    sim_tear_worker(s, e->a);
    if (e->for_us && !s->spawns) s->returns_us[e->a] = s->now_us + e->for_us;
    note_failure(s);
}

/* The worker that has it in a step, or one of those that compute its experts. */
static uint32_t victim_of(sim *s, const sim_request *r) {
    const sl_worker *w = r->worker == SL_NO_WORKER ? NULL : s->worker[r->worker];
    const sl_attn *a = w && !s->silent[r->worker] ? w->attn : NULL;
    bool computed = false;
    for (uint32_t j = 0; a && j < a->n_lanes * a->max_slots; j++)
        computed |= a->slot[j].life->in_step && a->slot[j].request == r->id;
    uint32_t who = sim_once_in(s, 2) ? r->worker : sim_below(s, s->n_workers);
    bool can = computed && s->worker[who] && !s->silent[who] &&
               sl_roster_serves(&s->engine->roster, who) &&
               (who == r->worker || sim_is(s, who, SL_ROLE_EXPERT));
    return can ? who : SL_NO_WORKER;
}

void sim_do_poison(sim *s) {
    for (uint32_t i = 0; s->poisonous && i < s->n_requests; i++) {
        sim_request *r = &s->request[i];
        if (!r->poison || !r->submitted || r->refused || r->ends || r->n < r->fatal) continue;
        uint32_t who = victim_of(s, r);
        if (who == SL_NO_WORKER || s->crashed[who]) continue;
        sim_say(s, "request %u crashes worker %u", i, who);
        s->crashed[who] = true;
        s->loss[who] = s->engine->worker[who].loss;
        kill(s, &(sim_event){.a = who, .for_us = 1 + sim_below(s, 200000)});
    }
    for (uint32_t i = 0; i < s->n_workers; i++) {
        if (!s->crashed[i] || s->engine->worker[i].loss == s->loss[i] || !sim_once_in(s, 20))
            continue;
        s->crashed[i] = false;
        s->engine->spawned[i].crashed = true;
        s->engine->ends.n_crashes++;
    }
}

static void bring_back(sim *s, uint32_t i) {
    s->returns_us[i] = 0;
    if (s->worker[i] && !s->spawns) return;
    s->zombie[i] = s->worker[i]; /* only a planted bug starts another one now: KV has one writer */
    if (s->zombie[i] && s->kv[i])
        sim_fail(s, "worker %u has pages that the one before it still writes", i);
    s->silent[i] = false;
    sim_say(s, "another worker %u comes", i);
    s->returned = true;
    s->seen[COVER_came_back_under_load] |= s->engine->admit.n_running > 0;
    sim_start_worker(s, i);
}

/* Under --exact experts move; otherwise only the epoch changes, for where they are is in the bits.
 */
static void replan(sim *s, sim_event *e) {
    sl_err err;
    sl_plan *p = &e->replan.plan;
    bool not_now = s->engine->replan != NULL;
    if (sl_plan_copy(&s->engine->plan, p, &err) != SL_OK || (p->exact && !draw_placement(s, p))) {
        sim_fail(s, "no plan to change to");
        return;
    }
    e->replan.timeout_us = e->for_us;
    e->under_load = s->engine->admit.n_running > 0;
    sl_replan_begin(s->engine, &e->replan);
    s->seen[COVER_replan_not_now] |= not_now && e->replan.status == SL_ERR_AGAIN;
}

static sim_cover cover_of_leaver(const sim *s, uint32_t worker) {
    if (!sim_is(s, worker, SL_ROLE_EXPERT)) return COVER_drained_attention;
    return sim_is(s, worker, SL_ROLE_ATTENTION) ? COVER_drained_both : COVER_drained_expert;
}

static void wish(sim *s, sim_event *e) {
    const sl_drain_place *p = &s->engine->drain.place[e->a];
    bool was_away = p->state == SL_DRAIN_DRAINED, leaves = e->kind != SIM_RETURN, free = p->spare;
    bool gone = was_away || (p->state == SL_DRAIN_STOPS && !s->worker[e->a]);
    e->under_load = s->engine->admit.n_running > 0;
    e->wish = (sl_wish){.kind = e->kind == SIM_LEAVE     ? SL_WISH_LEAVE
                                : e->kind == SIM_RESTART ? SL_WISH_RESTART
                                                         : SL_WISH_RETURN,
                        .worker = e->a,
                        .grace_ms = (uint32_t)(e->for_us / 1000)};
    sl_drain_begin(s->engine, &e->wish);
    if (e->wish.status != SL_OK) sim_say(s, "that is refused: %s", e->wish.err.msg);
    s->seen[COVER_drain_refused] |= e->wish.status == SL_ERR_INFEASIBLE;
    if (e->wish.status != SL_OK) return;
    if (p->state == SL_DRAIN_DRAINED) s->returns_us[e->a] = 0; /* on its way, or lost: not wanted */
    if (s->failure && leaves) note_failure(s); /* the others may be lost, unheard of */
    s->moved |= sim_is(s, e->a, SL_ROLE_EXPERT);
    e->grows = free;
    s->paused |= leaves && p->alone;
    s->seen[COVER_restarted_the_last] |= leaves && p->alone;
    if (leaves) s->seen[cover_of_leaver(s, e->a)] = true;
    s->seen[COVER_drained_under_load] |= leaves && e->under_load;
    s->seen[COVER_drain_taken_back] |= !leaves && !was_away;
    if (gone && !s->spawns && !s->returns_us[e->a])
        s->returns_us[e->a] = s->now_us + 1 + sim_below(s, 90000);
}

void sim_on_stopped(sim *s, uint32_t i) {
    const sl_drain_place *p = &s->engine->drain.place[i];
    /* The coordinator may know of its end already: its side for prompts was no longer whole. */
    const bool again = p->state == SL_DRAIN_STOPS ? p->again : p->comes;
    if (again && !s->spawns) s->returns_us[i] = s->now_us + 1 + sim_below(s, 90000);
}

static void do_event(sim *s, sim_event *e) {
    static const char *const names[] = {"dies",
                                        "falls silent",
                                        "pauses",
                                        "is held apart",
                                        "gets another plan",
                                        "is to leave",
                                        "is to restart",
                                        "is wanted again",
                                        "is cut off",
                                        "is to be damaged",
                                        "gets a thin link"};
    e->done = true;
    sim_say(s, "worker %u %s (%u, %.1f ms)", e->a, names[e->kind], e->b, (double)e->for_us / 1e3);
    switch (e->kind) {
    case SIM_REPLAN:
        replan(s, e);
        break;
    case SIM_LEAVE:
    case SIM_RESTART:
    case SIM_RETURN:
        wish(s, e);
        break;
    case SIM_CUT:
    case SIM_DAMAGE:
    case SIM_THIN:
        sim_strike_link(s, e);
        break;
    case SIM_KILL:
        kill(s, e);
        break;
    case SIM_SILENCE:
        if (!s->worker[e->a]) break;
        s->silent[e->a] = true;
        s->starved |= !sl_roster_serves(&s->engine->roster, e->a); /* it is awaited for long */
        s->seen[COVER_silence] = true;
        s->kills += 2;
        note_failure(s);
        s->settle_until_us = SL_MAX(s->settle_until_us, s->now_us + LOST_AFTER_US);
        break;
    case SIM_STALL:
        s->stalled_until_us[e->a] = s->now_us + e->for_us;
        s->seen[e->a == s->n_workers ? COVER_slow_coordinator : COVER_slow_worker] = true;
        break;
    case SIM_HOLD:
        sl_loop_hub_hold(s->engine->hub, s->address[e->a], s->address[e->b], s->now_us + e->for_us);
        s->seen[COVER_link_held] = true;
        if (e->for_us >= LOST_AFTER_US) {
            s->seen[COVER_link_lost] = true;
            s->kills += 2;
            note_failure(s);
            s->starved |= e->for_us > BORNE_US; /* who needs just this link */
        }
        s->settle_until_us = SL_MAX(s->settle_until_us, s->now_us + e->for_us + 100000);
        break;
    }
}

/* Who is turned away, as the end of the one before is not known yet, comes again. */
static bool is_open(const sim *s, uint32_t i) {
    return s->failure || s->engine->roster.worker[i].state == SL_ROSTER_ABSENT;
}

void sim_do_events(sim *s) {
    for (uint32_t i = 0; i < s->n_events; i++)
        if (!s->event[i].done && s->now_us >= s->event[i].at_us) do_event(s, &s->event[i]);
    for (uint32_t i = 0; i < s->n_workers; i++)
        if (s->dies_us[i] && s->now_us >= s->dies_us[i]) sim_bury_worker(s, i);
    for (uint32_t i = 0; i < s->n_workers; i++)
        if (s->returns_us[i] && s->now_us >= s->returns_us[i] && !s->zombie[i] && is_open(s, i))
            bring_back(s, i);
}
