/* The face of the attention side: requests come, are cancelled and acknowledged; what expert
 * workers say goes to the side that runs the rows. */
#include "engine/attn/attn_int.h"

#include "base/mem.h"
#include "base/mutate.h"
#include "grammar/guide.h"
#include "spec/schedules.h"

#include <string.h>

/* ---- requests ---- */

static sl_status check_submit(const sl_attn *a, const sl_wire_submit *s, sl_err *err) {
    const sl_plan *p = &a->w->plan;
    uint64_t total = sl_kv_positions(s->n_tokens, s->max_tokens);
    if (total > p->context)
        return sl_fail(err, SL_ERR_PROTOCOL, "request %llu: %u tokens and %u new ones, context %u",
                       (unsigned long long)s->request, s->n_tokens, s->max_tokens, p->context);
    if (s->n_pages < sl_kv_pages_for(s->n_tokens) || s->n_pages > sl_kv_pages_for(total))
        return sl_fail(err, SL_ERR_PROTOCOL, "request %llu: %u pages for %u to %llu positions",
                       (unsigned long long)s->request, s->n_pages, s->n_tokens,
                       (unsigned long long)total);
    for (uint32_t i = 0; i < s->n_pages; i++) {
        if (s->pages[i] >= p->n_pages)
            return sl_fail(err, SL_ERR_PROTOCOL, "page %u, there are %u", s->pages[i], p->n_pages);
    }
    if (s->start && !a->w->device->resumes)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "request %llu: start at %u, where pages are not all that rows leave behind",
                       (unsigned long long)s->request, s->start);
    return SL_OK;
}

/* What the request has beside its life; frees nothing on an error. */
static sl_status fill_slot(sl_attn *a, sl_slot *s, const sl_wire_submit *in, sl_err *err) {
    s->tokens = sl_alloc((size_t)in->n_tokens + in->max_tokens, sizeof *s->tokens);
    s->pages = sl_alloc(sl_life_max_pages(s->life), sizeof *s->pages);
    s->bias = sl_alloc(in->sampling.n_bias, sizeof *s->bias);
    s->bad = sl_alloc(in->sampling.n_bad, sizeof *s->bad);
    const uint32_t n_only = in->sampling.n_allowed;
    if (n_only) s->only = sl_alloc(n_only, sizeof *s->only);
    s->scored = sl_alloc(in->report.n_scored, sizeof *s->scored);
    if (!s->tokens || !s->pages || !s->bias || !s->bad || !s->scored || (n_only && !s->only))
        return sl_fail(err, SL_ERR_NOMEM, "request of %u tokens", in->n_tokens);
    memcpy(s->tokens, in->tokens, in->n_tokens * sizeof *s->tokens);
    memcpy(s->stop, in->stop, in->n_stop * sizeof *s->stop);
    memcpy(s->pages, in->pages, in->n_pages * sizeof *s->pages);
    memcpy(s->bias, in->sampling.bias, in->sampling.n_bias * sizeof *s->bias);
    memcpy(s->bad, in->sampling.bad, in->sampling.n_bad * sizeof *s->bad);
    if (n_only) memcpy(s->only, in->sampling.allowed, n_only * sizeof *s->only);
    sl_draft_begin(&s->draft, &a->prior);
    s->request = in->request;
    s->keys.root = in->root;
    s->tells = (in->flags & SL_SUBMIT_ROWS) != 0;
    s->life->parks = (in->flags & SL_SUBMIT_PARK) != 0;
    s->n_prompt = in->n_prompt;
    s->want_logits = (in->flags & SL_SUBMIT_LOGITS) != 0;
    s->want_logprobs = (in->flags & SL_SUBMIT_LOGPROBS) != 0;
    s->want_prompt_logprobs = (in->flags & SL_SUBMIT_PROMPT_LOGPROBS) != 0;
    memcpy(s->scored, in->report.scored, in->report.n_scored * sizeof *s->scored);
    s->report = in->report;
    s->report.scored = s->scored;
    s->sampling = in->sampling;
    s->sampling.bias = s->bias;
    s->sampling.bad = s->bad;
    s->sampling.allowed = s->only;
    s->min_tokens = in->min_tokens;
    s->n_stop = in->n_stop;
    for (uint32_t i = 0; !(in->flags & SL_SUBMIT_IGNORE_EOS) && i < a->m->n_eos; i++)
        s->stop[s->n_stop++] = a->m->eos[i];
    if (s->want_logits)
        s->life->whole_until = UINT32_MAX;
    else if (s->want_prompt_logprobs) /* the last row of the prompt says nothing about it */
        s->life->whole_until = SL_MAX(in->n_prompt, 1u) - 1;
    s->life->done = in->start + (SL_MUTATION(SKIPPED_ROW) && in->n_tokens > in->n_prompt &&
                                 in->n_tokens > in->start + 1);
    return SL_OK;
}

sl_status sl_attn_on_submit(sl_attn *a, sl_span payload, sl_err *err) {
    sl_wire_submit in;
    sl_status st = sl_wire_submit_decode(payload, a->m->vocab, &in, err);
    if (st == SL_OK) st = check_submit(a, &in, err);
    if (st != SL_OK) return st;
    sl_life *life = sl_slots_take(&a->slots, in.n_tokens, in.max_tokens, in.n_pages);
    if (!life) return sl_fail(err, SL_ERR_PROTOCOL, "request over the %u slots", a->max_slots);
    sl_slot *s = &a->slot[life - a->slots.life];
    st = fill_slot(a, s, &in, err);
    if (st == SL_OK && in.n_shape) st = sl_guided_ask(a, s, (sl_span){in.shape, in.n_shape}, err);
    sl_moves_claim(a, in.pages, in.n_pages);
    if (st == SL_OK)
        a->ops->wake(a->side, s);
    else
        sl_slot_release(a, s);
    return st;
}

static sl_status add_page(sl_attn *a, sl_slot *s, uint64_t page, sl_err *err) {
    uint32_t most = sl_life_max_pages(s->life);
    if (page >= a->w->plan.n_pages || s->life->pages == most)
        return sl_fail(err, SL_ERR_PROTOCOL, "page %llu as number %u of %u, there are %u",
                       (unsigned long long)page, s->life->pages, most, a->w->plan.n_pages);
    s->pages[s->life->pages++] = (uint32_t)page;
    sl_moves_claim(a, &s->pages[s->life->pages - 1], 1);
    return SL_OK;
}

static void cancel(sl_attn *a, sl_slot *s) {
    bool now = sl_life_end(s->life);
    if (!now && SL_MUTATION(STALE_GENERATION))
        s->pages = NULL; /* its rows still use them */
    else if (!now)
        return;
    sl_slot_end(a, s);
}

sl_status sl_attn_on_pairs(sl_attn *a, const sl_wire_header *h, sl_span payload, sl_err *err) {
    const sl_wire_pair *pair;
    sl_status st = sl_wire_pairs_decode(h, payload, &pair, err);
    for (uint32_t i = 0; st == SL_OK && i < h->rows; i++) {
        sl_slot *s = sl_slot_of(a, pair[i].request);
        if (!s) continue; /* finished meanwhile */
        if (h->kind == SL_MSG_CANCEL)
            cancel(a, s);
        else if (h->kind == SL_MSG_PAGES)
            st = add_page(a, s, pair[i].value, err);
        else
            sl_life_ack(s->life, pair[i].value);
        if (!SL_MUTATION(LOST_WAKE) || h->kind != SL_MSG_ACK) a->ops->wake(a->side, s);
    }
    sl_attn_flush(a);
    return st;
}

/* ---- experts ---- */

sl_status sl_attn_on_return(sl_attn *a, uint32_t src, const sl_wire_header *h, sl_buf **payload,
                            sl_err *err) {
    sl_twice_serves(&a->twice, src, a->w->plan.epoch);
    if (a->given_up) { /* its rows are booked as lost */
        sl_twice_late(&a->twice, src, h->rows);
        return SL_OK;
    }
    if (h->lane >= a->n_lanes || a->expert_index[src] == UINT32_MAX)
        return sl_fail(err, SL_ERR_PROTOCOL, "return from worker %u for lane %u of %u", src,
                       h->lane, a->n_lanes);
    /* Its positions are others' debts by now; where rows have groups these know who was first. */
    if (a->lost[src] && !a->barriers && !SL_MUTATION(LATE_COUNTS)) {
        sl_twice_late(&a->twice, src, h->rows);
        return SL_OK;
    }
    sl_status st = a->ops->on_return(a->side, a->expert_index[src], h, payload, err);
    if (st == SL_OK) sl_hedge_answered(&a->hedge, h->lane, src, a->barriers ? 1 : h->rows);
    return st;
}

void sl_attn_on_stale(sl_attn *a, const sl_wire_header *h) {
    sl_twice_late(&a->twice, h->src, h->rows);
}

sl_status sl_attn_on_peer(sl_attn *a, const sl_wire_header *h, sl_span payload, sl_err *err) {
    if (h->src != a->w->experts.ids[0]) return sl_worker_refuse(h, err);
    if (a->given_up || a->leaderless) return SL_OK;
    if (h->lane >= a->n_lanes)
        return sl_fail(err, SL_ERR_PROTOCOL, "lane %u of %u", h->lane, a->n_lanes);
    sl_status st = a->ops->on_peer(a->side, h, payload, err);
    if (st == SL_OK) sl_hedge_answered(&a->hedge, h->lane, h->src, 1);
    return st;
}

sl_status sl_attn_on_busy(sl_attn *a, const sl_wire_header *h, sl_err *err) {
    if (a->expert_index[h->src] == UINT32_MAX || h->bytes) return sl_worker_refuse(h, err);
    sl_hedge_busy(&a->hedge, h->src, h->number, sl_clock_now_us(&a->w->clock));
    return SL_OK;
}

void sl_attn_sent(sl_attn *a, uint32_t lane, uint32_t id, uint64_t n, uint64_t rows) {
    if (a->hedges && !a->lost[id]) sl_hedge_sent(&a->hedge, lane, id, n, rows);
}

/* Who hosts something that nobody else does who is not lost. */
static void note_alone(sl_attn *a) {
    const sl_plan *p = &a->w->plan;
    for (uint32_t i = 0; i < p->n_workers; i++) sl_hedge_alone(&a->hedge, i, false);
    for (uint32_t l = 0; a->hedges && l < p->place.n_layers && !SL_MUTATION(HEDGED_ALONE); l++)
        for (uint32_t e = 0; e < p->n_experts; e++) {
            uint32_t sole = sl_plan_sole_host(p, l, e, a->lost);
            if (sole != UINT32_MAX) sl_hedge_alone(&a->hedge, sole, true);
        }
}

void sl_attn_look(sl_attn *a) {
    uint32_t id;
    sl_hedge_word word;
    sl_guided_look(a);
    if (!a->hedges || a->given_up) return;
    if (!sl_hedge_pass(&a->hedge, sl_clock_now_us(&a->w->clock), sl_net_late_us(a->w->net))) return;
    while ((word = sl_hedge_next(&a->hedge, &id)) != SL_HEDGE_NOTHING)
        if (!a->lost[id] && sl_worker_can_spare(a->w, id))
            sl_worker_tell_of(a->w, word == SL_HEDGE_SLOW ? SL_MSG_SLOW : SL_MSG_DOUBT, id,
                              sl_hedge_wasted_us(&a->hedge, id));
}

bool sl_attn_is_owed(const sl_attn *a) {
    return sl_hedge_is_owed(&a->hedge);
}

void sl_attn_lose(sl_attn *a, uint32_t id, bool gone) {
    if (gone) sl_twice_gone(&a->twice, id);
    if (!a->w->plan.worker[id].roles) return;
    sl_moves_lose(a, id);
    if (a->given_up || a->expert_index[id] == UINT32_MAX || (a->lost[id] && !gone)) return;
    a->lost[id] = true;
    sl_hedge_forgive(&a->hedge, id);
    note_alone(a);
    if (sl_plan_is_covered(&a->w->plan, a->lost) && !SL_MUTATION(LONELY_STEP))
        a->ops->lose(a->side, a->expert_index[id], gone);
    else
        sl_attn_give_up(a);
}

bool sl_attn_rests(const sl_attn *a) {
    return a->ops->rests(a->side);
}

void sl_attn_count(sl_attn *a) {
    sl_worker *w = a->w;
    sl_slots_prompts(&a->slots, &w->n.prompt_rows, &w->n.prompt_rows_done);
    w->n.again_asked = a->twice.asked;
    w->n.again_counted = a->twice.counted;
    w->n.rows_late = a->twice.late;
    w->n.again_lost = a->twice.lost;
    w->n.again_out = a->twice.out;
    w->n.choices = a->resolve.changes;
}

void sl_attn_wake(sl_attn *a) {
    for (uint32_t i = 0; i < a->n_lanes * a->max_slots; i++) a->ops->wake(a->side, &a->slot[i]);
}

bool sl_attn_run(sl_attn *a) {
    return a->ops->run(a->side);
}

void sl_attn_waits_for(const sl_attn *a, sl_trace_event *e) {
    a->ops->waits_for(a->side, e);
}

/* ---- life ---- */

static sl_status create_slots(sl_attn *a, sl_err *err) {
    sl_status st = sl_slots_create(a->n_lanes, a->max_slots, &a->slots, err);
    if (st != SL_OK) return st;
    a->slot = sl_alloc((size_t)a->n_lanes * a->max_slots, sizeof *a->slot);
    if (!a->slot) return sl_fail(err, SL_ERR_NOMEM, "%u slots", a->max_slots);
    for (uint32_t i = 0; i < a->n_lanes * a->max_slots; i++) a->slot[i].life = &a->slots.life[i];
    a->slots.watch = a->w->watch;
    return SL_OK;
}

static sl_status create_buffers(sl_attn *a, sl_err *err) {
    const uint32_t slots = a->max_slots * a->n_lanes + 1;
    a->out_cap = slots + (a->guesses ? a->max_slots * SL_BATCH_MORE : 0); /* drawn in a step */
    a->out = sl_alloc(a->out_cap, sizeof *a->out);
    /* room for likeliest tokens of all; where ids are scored, too, or guesses are right, they go
     * sooner, as do tokens that shapes decide */
    a->pairs_cap = slots * (1 + SL_MAX_LOGPROBS) + SL_MAX_REPORTED;
    a->pairs = sl_alloc(a->pairs_cap, sizeof *a->pairs);
    a->logits = sl_alloc((size_t)SL_HEAD_ROWS * a->m->vocab, sizeof *a->logits);
    if (a->w->device->finds) {
        a->sought = sl_alloc(SL_HEAD_ROWS, sizeof *a->sought);
        a->found = sl_alloc(SL_HEAD_ROWS, sizeof *a->found);
        if (!a->sought || !a->found) return sl_fail(err, SL_ERR_NOMEM, "what draws seek");
    }
    a->moe = sl_alloc(a->m->n_layers, 1);
    sl_head_init(&a->head, &a->w->plan, a->w->id, a->m->vocab);
    if (!a->out || !a->pairs || !a->logits || !a->moe)
        return sl_fail(err, SL_ERR_NOMEM, "buffers of an attention worker");
    for (uint32_t l = 0; l < a->m->n_layers; l++) a->moe[l] = a->m->ffn[l] != SL_FFN_DENSE;
    sl_status st = sl_arena_create(sl_sampler_scratch_bytes(a->m->vocab), &a->scratch, err);
    if (st == SL_OK) st = sl_draws_create(a, err);
    return st == SL_OK ? sl_device_take_rows(a->w->device, SL_HEAD_ROWS, &a->head_rows, err) : st;
}

static sl_status create_cut(sl_attn *a, sl_err *err) {
    const sl_plan *p = &a->w->plan;
    size_t row_bytes = sl_wire_row_bytes((sl_wire_format)p->wire, a->m->d_model);
    return sl_cut_create(p, a->m, row_bytes, &a->cut, err);
}

void sl_attn_close_side(sl_attn *a) {
    sl_attn_give_up(a);
    a->ops->free(a->side);
    a->side = NULL;
    sl_cut_free(&a->cut);
    sl_free(a->expert_index);
    sl_free(a->lost);
    a->expert_index = NULL;
    a->lost = NULL;
}

sl_status sl_attn_open_side(sl_attn *a, sl_err *err) {
    const sl_worker *w = a->w;
    a->n_experts = (uint32_t)w->experts.n;
    a->expert_index = sl_alloc(w->plan.n_workers, sizeof *a->expert_index);
    a->lost = sl_alloc(w->plan.n_workers, 1);
    if (!a->expert_index || !a->lost) return sl_fail(err, SL_ERR_NOMEM, "index of expert workers");
    memset(a->expert_index, 0xFF, w->plan.n_workers * sizeof *a->expert_index);
    for (uint32_t i = 0; i < a->n_experts; i++) a->expert_index[w->experts.ids[i]] = i;
    sl_status st = create_cut(a, err);
    if (st == SL_OK)
        st = sl_resolve_deploy(&a->resolve, (uint32_t)w->attention.n, a->n_experts,
                               a->expert_index[w->id], err);
    a->w->next_groups = sl_resolve_word(&a->resolve);
    if (st == SL_OK) st = a->ops->create(a, &a->side, err);
    for (uint32_t id = 0; st == SL_OK && id < w->plan.n_workers; id++)
        if (!w->peer[id].open) sl_twice_gone(&a->twice, id); /* itself: with its side */
    if (st == SL_OK) a->given_up = a->leaderless = false;
    a->hedges = a->n_experts > 1;
    sl_hedge_reset(&a->hedge);
    note_alone(a);
    return st;
}

static sl_status copy_folder(sl_attn *a, const char *folder, sl_err *err) {
    if (!folder || sl_device_is_modelled(&a->w->plan.device)) return SL_OK;
    const size_t n = strlen(folder) + 1;
    a->model = sl_alloc(n, 1);
    if (!a->model) return sl_fail(err, SL_ERR_NOMEM, "name of a model");
    memcpy(a->model, folder, n);
    return SL_OK;
}

sl_status sl_attn_create(sl_worker *w, const char *folder, sl_attn **out, sl_err *err) {
    sl_attn *a = sl_alloc(1, sizeof *a);
    if (!a) return sl_fail(err, SL_ERR_NOMEM, "attention worker");
    a->w = w;
    a->m = w->device->spec;
    a->keep = sl_device_keeps(w->device) ? w->keep : NULL;
    a->n_lanes = w->plan.lanes;
    a->n_chunks = w->plan.chunks;
    a->max_slots = w->plan.max_num_seqs;
    a->max_rows = sl_plan_lane_rows(&w->plan);
    sl_resolve_init(&w->plan, a->m, w->watch, &a->resolve);
    /* An emulated device's rows leave nothing behind. */
    a->guesses = w->plan.speculate && (w->device->resumes || w->device->rewinds ||
                                       sl_device_is_modelled(&w->plan.device));
    a->barriers = sl_schedule_traits_of(w->plan.schedule)->barriers;
    a->ops = a->barriers ? &sl_attn_lanes : &sl_attn_parts;
    const sl_hedge_opts hedge = SL_HEDGE_OPTS;
    sl_status st = sl_hedge_create(a->n_lanes, w->plan.n_workers, &hedge, &a->hedge, err);
    if (st == SL_OK) st = sl_twice_create(w->plan.n_workers, &a->twice, err);
    if (st == SL_OK) st = copy_folder(a, folder, err);
    if (st == SL_OK) st = create_buffers(a, err);
    if (st == SL_OK) st = create_slots(a, err);
    if (st == SL_OK) st = sl_moves_create(a, err);
    if (st == SL_OK && a->guesses && w->device->mtp) st = sl_mtp_create(a, err);
    if (st == SL_OK) st = sl_attn_open_side(a, err);
    if (st == SL_OK)
        *out = a;
    else
        sl_attn_free(a);
    return st;
}

void sl_attn_free(sl_attn *a) {
    if (!a) return;
    if (a->side) a->ops->free(a->side);
    for (uint32_t i = 0; a->slot && i < a->n_lanes * a->max_slots; i++)
        sl_slot_release(a, &a->slot[i]);
    sl_free(a->slot);
    sl_moves_free(a);
    sl_mtp_free(a);
    sl_slots_free(&a->slots);
    sl_cut_free(&a->cut);
    sl_resolve_free(&a->resolve);
    sl_free(a->moe);
    sl_free(a->out);
    sl_free(a->pairs);
    sl_free(a->logits);
    sl_free(a->sought);
    sl_free(a->found);
    sl_free(a->expert_index);
    sl_free(a->lost);
    sl_guides_free(a->guides);
    sl_free(a->model);
    sl_device_give(a->w->device, a->head_rows);
    sl_arena_free(&a->scratch);
    sl_draws_free(a);
    sl_hedge_free(&a->hedge);
    sl_twice_free(&a->twice);
    sl_free(a);
}
