#include "engine/attn_int.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/mutate.h"
#include "engine/flow.h"

#include <string.h>

/* ---- tokens to the coordinator ---- */

void sl_attn_flush(sl_attn *a) {
    if (a->n_out == 0) return;
    sl_buf *b = sl_net_buf_take(a->w->net, sl_wire_tokens_bytes(a->n_out, a->n_pairs));
    if (!b) {
        sl_log(SL_LOG_ERROR, "attn", "out of memory for %u tokens", a->n_out);
        a->w->stop = true;
        a->w->stop_status = sl_fail(&a->w->stop_err, SL_ERR_NOMEM, "message of tokens");
        return;
    }
    sl_wire_tokens_encode(a->out, a->n_out, a->pairs, a->n_pairs, b->data);
    sl_wire_header h = {.kind = SL_MSG_TOKENS, .rows = a->n_out};
    sl_status st = sl_worker_send(a->w, SL_NO_WORKER, h, b);
    (void)st; /* a lost coordinator ends the worker */
    a->n_out = 0;
    a->n_pairs = 0;
}

void sl_attn_emit(sl_attn *a, const sl_slot *s, uint32_t position, uint32_t token, sl_finish finish,
                  const sl_logprob *logprobs, uint32_t n) {
    if (a->n_out == a->out_cap) sl_attn_flush(a);
    if (a->n_out == a->out_cap) return; /* out of memory: the worker stops */
    a->out[a->n_out++] = (sl_wire_token){.request = s->request,
                                         .position = position,
                                         .token = token,
                                         .finish = finish,
                                         .n_logprobs = n,
                                         .made_us = sl_clock_now_us(&a->w->clock)};
    if (n) memcpy(a->pairs + a->n_pairs, logprobs, n * sizeof *logprobs);
    a->n_pairs += n;
}

/* The end of a request that needs the lost expert worker. */
static void emit_lost(sl_attn *a, const sl_slot *s) {
    sl_attn_emit(a, s, s->life->tokens, a->lost_worker, SL_FINISH_ERROR, NULL, 0);
}

/* ---- slots ---- */

void sl_slot_release(sl_attn *a, sl_slot *s) {
    sl_free(s->tokens);
    sl_free(s->pages);
    sl_free(s->bias);
    sl_slots_release(&a->slots, s->life);
    *s = (sl_slot){.life = s->life};
}

void sl_slot_break(sl_slot *s, uint32_t block, uint32_t position) {
    if (s->life->ends) return; /* cancelled by its client, or for an earlier row */
    s->life->ends = s->broken = true;
    s->broken_block = block;
    s->broken_position = position;
}

void sl_slot_end(sl_attn *a, sl_slot *s) {
    if (s->broken)
        sl_attn_emit(a, s, s->broken_position, s->broken_block, SL_FINISH_NOT_FINITE, NULL, 0);
    else
        sl_attn_emit(a, s, s->life->tokens, UINT32_MAX, SL_FINISH_STOP, NULL, 0);
    sl_slot_release(a, s);
}

static bool ends(const sl_slot *s, uint32_t token) {
    for (uint32_t i = 0; i < s->n_stop; i++) {
        if (s->stop[i] == token) return true;
    }
    return false;
}

void sl_slot_append(sl_attn *a, sl_slot *s, uint32_t token, const sl_logprob *logprobs,
                    uint32_t n) {
    uint32_t position = s->life->tokens;
    bool last = sl_life_append(s->life);
    s->tokens[position] = token;
    a->w->n.tokens++;
    sl_finish finish = SL_FINISH_NONE;
    if (ends(s, token))
        finish = SL_FINISH_STOP;
    else if (last)
        finish = SL_FINISH_LENGTH;
    sl_attn_emit(a, s, position, token, finish, logprobs, n);
    if (finish != SL_FINISH_NONE) sl_slot_release(a, s);
}

static sl_status check_submit(const sl_attn *a, const sl_wire_submit *s, sl_err *err) {
    const sl_plan *p = &a->w->plan;
    uint64_t total = sl_kv_positions(s->n_tokens, s->max_tokens);
    if (s->start != 0 || total > p->context)
        return sl_fail(
            err, SL_ERR_PROTOCOL, "request %llu: %u tokens from %u and %u new ones, context %u",
            (unsigned long long)s->request, s->n_tokens, s->start, s->max_tokens, p->context);
    if (s->n_pages < sl_kv_pages_for(s->n_tokens) || s->n_pages > sl_kv_pages_for(total))
        return sl_fail(err, SL_ERR_PROTOCOL, "request %llu: %u pages for %u to %llu positions",
                       (unsigned long long)s->request, s->n_pages, s->n_tokens,
                       (unsigned long long)total);
    for (uint32_t i = 0; i < s->n_pages; i++) {
        if (s->pages[i] >= p->n_pages)
            return sl_fail(err, SL_ERR_PROTOCOL, "page %u, there are %u", s->pages[i], p->n_pages);
    }
    return SL_OK;
}

/* What the request has beside its life; frees nothing on an error. */
static sl_status fill_slot(sl_attn *a, sl_slot *s, const sl_wire_submit *in, sl_err *err) {
    s->tokens = sl_alloc((size_t)in->n_tokens + in->max_tokens, sizeof *s->tokens);
    s->pages = sl_alloc(sl_life_max_pages(s->life), sizeof *s->pages);
    s->bias = sl_alloc(in->sampling.n_bias, sizeof *s->bias);
    if (!s->tokens || !s->pages || !s->bias)
        return sl_fail(err, SL_ERR_NOMEM, "request of %u tokens", in->n_tokens);
    memcpy(s->tokens, in->tokens, in->n_tokens * sizeof *s->tokens);
    memcpy(s->stop, in->stop, in->n_stop * sizeof *s->stop);
    memcpy(s->pages, in->pages, in->n_pages * sizeof *s->pages);
    memcpy(s->bias, in->sampling.bias, in->sampling.n_bias * sizeof *s->bias);
    s->request = in->request;
    s->n_prompt = in->n_prompt;
    s->want_logits = (in->flags & SL_SUBMIT_LOGITS) != 0;
    s->want_logprobs = (in->flags & SL_SUBMIT_LOGPROBS) != 0;
    s->want_prompt_logprobs = (in->flags & SL_SUBMIT_PROMPT_LOGPROBS) != 0;
    s->n_top = in->n_top;
    s->sampling = in->sampling;
    s->sampling.bias = s->bias;
    s->min_tokens = in->min_tokens;
    s->n_stop = in->n_stop;
    for (uint32_t i = 0; !(in->flags & SL_SUBMIT_IGNORE_EOS) && i < a->m->n_eos; i++)
        s->stop[s->n_stop++] = a->m->eos[i];
    if (s->want_logits)
        s->life->whole_until = UINT32_MAX;
    else if (s->want_prompt_logprobs) /* the last row of the prompt says nothing about it */
        s->life->whole_until = SL_MAX(in->n_prompt, 1u) - 1;
    s->life->done = SL_MUTATION(SKIPPED_ROW) && in->n_tokens > in->n_prompt;
    return SL_OK;
}

static sl_slot *slot_at(sl_attn *a, const sl_life *life) {
    return &a->lane[sl_slots_lane(&a->slots, life)].slot[sl_slots_index(&a->slots, life)];
}

static void wake(sl_attn *a, const sl_slot *s) {
    if (a->flow)
        sl_flow_wake(a->flow, s);
    else
        sl_lane_wake(&a->lane[sl_slots_lane(&a->slots, s->life)]);
}

sl_status sl_attn_on_submit(sl_attn *a, sl_span payload, sl_err *err) {
    sl_wire_submit in;
    sl_status st = sl_wire_submit_decode(payload, a->m->vocab, &in, err);
    if (st == SL_OK) st = check_submit(a, &in, err);
    if (st != SL_OK) return st;
    if (a->lost) {
        sl_life none = {0};
        const sl_slot refused = {.life = &none, .request = in.request};
        emit_lost(a, &refused);
        sl_attn_flush(a);
        return SL_OK;
    }
    sl_life *life = sl_slots_take(&a->slots, in.n_tokens, in.max_tokens, in.n_pages);
    if (!life) return sl_fail(err, SL_ERR_PROTOCOL, "request over the %u slots", a->max_slots);
    sl_slot *s = slot_at(a, life);
    st = fill_slot(a, s, &in, err);
    if (st == SL_OK)
        wake(a, s);
    else
        sl_slot_release(a, s);
    return st;
}

/* Looked for from where the last one was found: lists of requests come in the order of slots. */
static sl_slot *slot_of(sl_attn *a, uint64_t request) {
    uint32_t n = a->n_lanes * a->max_slots;
    for (uint32_t i = 0; i < n; i++) {
        if (++a->look >= n) a->look = 0;
        sl_slot *s = &a->lane[a->look / a->max_slots].slot[a->look % a->max_slots];
        if (s->life->used && s->request == request) return s;
    }
    return NULL;
}

static sl_status add_page(sl_attn *a, sl_slot *s, uint64_t page, sl_err *err) {
    uint32_t most = sl_life_max_pages(s->life);
    if (page >= a->w->plan.n_pages || s->life->pages == most)
        return sl_fail(err, SL_ERR_PROTOCOL, "page %llu as number %u of %u, there are %u",
                       (unsigned long long)page, s->life->pages, most, a->w->plan.n_pages);
    s->pages[s->life->pages++] = (uint32_t)page;
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
        sl_slot *s = slot_of(a, pair[i].request);
        if (!s) continue; /* finished meanwhile */
        if (h->kind == SL_MSG_CANCEL)
            cancel(a, s);
        else if (h->kind == SL_MSG_PAGES)
            st = add_page(a, s, pair[i].value, err);
        else
            sl_life_ack(s->life, pair[i].value);
        if (!SL_MUTATION(LOST_WAKE) || h->kind != SL_MSG_ACK) wake(a, s);
    }
    sl_attn_flush(a);
    return st;
}

/* ---- experts ---- */

sl_status sl_attn_on_return(sl_attn *a, uint32_t src, const sl_wire_header *h, sl_buf **payload,
                            sl_err *err) {
    if (a->lost) return SL_OK; /* its rows were booked as lost */
    if (h->lane >= a->n_lanes || a->expert_index[src] == UINT32_MAX)
        return sl_fail(err, SL_ERR_PROTOCOL, "return from worker %u for lane %u of %u", src,
                       h->lane, a->n_lanes);
    if (a->flow) {
        sl_span span = *payload ? (sl_span){(*payload)->data, (*payload)->len} : (sl_span){0};
        return sl_flow_on_return(a->flow, a->expert_index[src], h, span, err);
    }
    return sl_lane_on_return(&a->lane[h->lane], a->expert_index[src], h, payload, err);
}

sl_status sl_attn_on_round_open(sl_attn *a, const sl_wire_header *h, sl_span payload, sl_err *err) {
    const uint32_t *ids;
    uint32_t n;
    sl_idset set;
    if (a->lost) return SL_OK;
    if (h->lane >= a->n_lanes)
        return sl_fail(err, SL_ERR_PROTOCOL, "lane %u of %u", h->lane, a->n_lanes);
    sl_lane *lane = &a->lane[h->lane];
    sl_status st = sl_wire_set_decode(payload, &ids, &n, err);
    if (st == SL_OK) st = sl_idset_check((uint32_t *)(uintptr_t)ids, n, &set, err);
    if (st == SL_OK) st = sl_member_open(&lane->member, h->round, &set, err);
    if (st == SL_OK) sl_turns_open(&a->turns, lane->id);
    return st;
}

void sl_attn_on_expert_lost(sl_attn *a, uint32_t id, const char *why) {
    if (a->lost) return;
    a->lost = true;
    a->lost_worker = id;
    uint32_t ended = 0;
    sl_device_drain(a->w->device); /* nothing here is in use any more */
    if (a->flow) sl_flow_reset(a->flow);
    for (uint32_t l = 0; l < a->n_lanes; l++) {
        sl_lane_reset(&a->lane[l]);
        for (uint32_t i = 0; i < a->max_slots; i++) {
            sl_slot *s = &a->lane[l].slot[i];
            if (!s->life->used) continue;
            emit_lost(a, s);
            sl_slot_release(a, s);
            ended++;
        }
    }
    sl_attn_flush(a);
    if (ended)
        sl_log(why ? SL_LOG_WARN : SL_LOG_INFO, "attn", "ended %u requests: expert worker %u: %s",
               ended, id, why ? why : "it left");
}

bool sl_attn_rests(const sl_attn *a) {
    if (a->flow) return sl_flow_rests(a->flow);
    for (uint32_t l = 0; l < a->n_lanes; l++)
        if (a->lane[l].member.state != SL_MEMBER_IDLE) return false;
    return true;
}

void sl_attn_wake(sl_attn *a) {
    for (uint32_t l = 0; l < a->n_lanes; l++) {
        if (!a->flow) sl_lane_wake(&a->lane[l]);
        for (uint32_t i = 0; a->flow && i < a->max_slots; i++)
            sl_flow_wake(a->flow, &a->lane[l].slot[i]);
    }
}

bool sl_attn_run(sl_attn *a) {
    sl_turn turn;
    if (a->flow) return sl_flow_run(a->flow);
    for (uint32_t l = 0; l < a->n_lanes; l++)
        if (sl_lane_go_on(&a->lane[l])) return true;
    if (!sl_turns_next(&a->turns, &turn)) return false;
    sl_lane_run(&a->lane[turn.lane], &turn);
    return true;
}

void sl_attn_waits_for(const sl_attn *a, sl_trace_event *e) {
    if (a->flow) {
        sl_flow_waits_for(a->flow, e);
        return;
    }
    for (uint32_t l = 0; l < a->n_lanes; l++) {
        const sl_lane *lane = &a->lane[l];
        bool flight = sl_turns_awaits(&a->turns, l),
             joining = lane->member.state == SL_MEMBER_JOINING;
        if (!flight && !joining) continue;
        *e = (sl_trace_event){.kind = SL_TRACE_WAIT,
                              .why = flight ? SL_TRACE_WHY_EXPERTS : SL_TRACE_WHY_ROUND,
                              .lane = sl_trace_u16(l),
                              .layer = flight ? sl_trace_u16(lane->layer) : 0};
        if (flight) return;
    }
}

/* ---- life ---- */

static sl_status create_parts(sl_attn *a, sl_err *err) {
    a->out_cap = a->max_slots * a->n_lanes + 1;
    a->out = sl_alloc(a->out_cap, sizeof *a->out);
    a->pairs = sl_alloc((size_t)a->out_cap * (1 + SL_MAX_LOGPROBS), sizeof *a->pairs);
    a->logits = sl_alloc((size_t)SL_HEAD_ROWS * a->m->vocab, sizeof *a->logits);
    sl_head_init(&a->head, &a->w->plan, a->m->vocab);
    a->lane = sl_alloc(a->n_lanes, sizeof *a->lane);
    if (!a->out || !a->pairs || !a->logits || !a->lane)
        return sl_fail(err, SL_ERR_NOMEM, "buffers of an attention worker");
    sl_status st = sl_arena_create(sl_sampler_scratch_bytes(a->m->vocab), &a->scratch, err);
    if (st == SL_OK) st = sl_device_take_rows(a->w->device, SL_HEAD_ROWS, &a->head_rows, err);
    if (st == SL_OK) st = sl_slots_create(a->n_lanes, a->max_slots, &a->slots, err);
    for (uint32_t l = 0; st == SL_OK && l < a->n_lanes; l++)
        st = sl_lane_create(a, l, &a->lane[l], err);
    return st;
}

static sl_status create_turns(sl_attn *a, sl_err *err) {
    a->moe = sl_alloc(a->m->n_layers, 1);
    if (!a->moe) return sl_fail(err, SL_ERR_NOMEM, "turns of %u blocks", a->m->n_layers);
    for (uint32_t l = 0; l < a->m->n_layers; l++) a->moe[l] = a->m->ffn[l] != SL_FFN_DENSE;
    const sl_turns_shape shape = {.n_lanes = a->n_lanes,
                                  .n_layers = a->m->n_layers,
                                  .moe = a->moe,
                                  .shared = a->m->d_ff_shared > 0,
                                  .n_replies = a->w->n_expert_workers * a->n_chunks,
                                  .order = a->w->plan.order};
    return sl_turns_init(&a->turns, &shape, err);
}

static sl_status create_cut(sl_attn *a, sl_err *err) {
    const sl_plan *p = &a->w->plan;
    size_t row_bytes = sl_wire_row_bytes((sl_wire_format)p->wire, a->m->d_model);
    return sl_cut_create(p, a->m, row_bytes, &a->cut, err);
}

sl_status sl_attn_renew(sl_attn *a, sl_err *err) {
    if (a->flow) sl_flow_reset(a->flow);
    for (uint32_t l = 0; l < a->n_lanes; l++) sl_lane_reset(&a->lane[l]);
    sl_cut_free(&a->cut);
    return create_cut(a, err);
}

sl_status sl_attn_create(sl_worker *w, sl_attn **out, sl_err *err) {
    sl_attn *a = sl_alloc(1, sizeof *a);
    if (!a) return sl_fail(err, SL_ERR_NOMEM, "attention worker");
    a->w = w;
    a->m = w->device->spec;
    a->n_lanes = w->plan.lanes;
    a->n_chunks = w->plan.chunks;
    a->max_slots = w->plan.max_num_seqs;
    a->max_rows = sl_lane_max_rows(&w->plan);
    memset(a->expert_index, 0xFF, sizeof a->expert_index);
    for (uint32_t i = 0; i < w->n_expert_workers; i++) a->expert_index[w->expert_worker[i]] = i;
    sl_status st = create_cut(a, err);
    if (st == SL_OK) st = create_turns(a, err);
    if (st == SL_OK) st = create_parts(a, err);
    if (st == SL_OK && w->plan.schedule == SL_SCHED_AEP) st = sl_flow_create(a, &a->flow, err);
    if (st == SL_OK)
        *out = a;
    else
        sl_attn_free(a);
    return st;
}

void sl_attn_free(sl_attn *a) {
    if (!a) return;
    sl_flow_free(a->flow);
    for (uint32_t l = 0; a->lane && l < a->n_lanes; l++) sl_lane_free(&a->lane[l]);
    sl_free(a->lane);
    sl_slots_free(&a->slots);
    sl_cut_free(&a->cut);
    sl_free(a->moe);
    sl_free(a->out);
    sl_free(a->pairs);
    sl_free(a->logits);
    sl_device_give(a->w->device, a->head_rows);
    sl_arena_free(&a->scratch);
    sl_free(a);
}
