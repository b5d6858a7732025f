/* Lanes of an attention worker (the rules of src/engine/attn.c and lane.c). */
#include "sim/deployment_int.h"

#include <string.h>

/* ---- slots ---- */

bool sim_slot_has_work(const sim *s, const sim_slot *slot) {
    if (!slot->used || slot->evict) return false;
    return slot->done < s->req[slot->request].pages * SL_KV_PAGE_TOKENS;
}

static bool lane_has_work(const sim *s, const sim_lane *l) {
    for (uint32_t i = 0; i < s->max_slots; i++)
        if (sim_slot_has_work(s, &l->slot[i])) return true;
    return false;
}

static void send_join(sim *s, sim_worker *w, uint32_t lane) {
    uint32_t id = sim_msg_take(s, SIM_MSG_JOIN, w->id, s->expert_id[0]);
    if (id == SIM_NONE) return;
    s->msg[id].lane = lane;
    sim_msg_send(s, id, 0);
}

void sim_attn_wake(sim *s, sim_worker *w, uint32_t lane, sim_slot *slot) {
    sim_lane *l = &w->attn->lane[lane];
    bool join = false;
    sim_touch(s, w);
    if (s->aep) {
        sim_flow_wake(s, w, (uint32_t)(slot - l->slot));
        return;
    }
    if (!lane_has_work(s, l)) return;
    sl_member_want(&l->member, &join);
    if (join) send_join(s, w, lane);
}

/* The emptiest lane's free slot, looked for from where one was found last. */
static sim_slot *find_slot(sim *s, sim_attn *a, uint32_t *lane) {
    *lane = 0;
    for (uint32_t l = 1; l < s->lanes; l++)
        if (a->lane[l].n_used < a->lane[*lane].n_used) *lane = l;
    sim_lane *best = &a->lane[*lane];
    for (uint32_t i = 0; i < s->max_slots && best->n_used < s->max_slots; i++) {
        if (++best->look >= s->max_slots) best->look = 0;
        if (!best->slot[best->look].used) return &best->slot[best->look];
    }
    return NULL;
}

void sim_attn_submit(sim *s, sim_worker *w, uint32_t request) {
    sim_attn *a = w->attn;
    const sim_request *r = &s->req[request];
    uint32_t lane;
    if (a->lost) {
        sim_coord_fail(s, request);
        return;
    }
    sim_slot *slot = find_slot(s, a, &lane);
    SL_ASSERT(slot);
    uint32_t given = r->prompt + r->generated;
    *slot = (sim_slot){.used = true,
                       .request = request,
                       .generation = (uint32_t)++a->generations,
                       .arrival = ++a->arrivals,
                       .given = given,
                       .tokens = given,
                       .total = r->prompt + r->output};
    a->lane[lane].n_used++;
    sim_attn_wake(s, w, lane, slot);
}

void sim_attn_release(sim *s, sim_worker *w, uint32_t lane, sim_slot *slot) {
    (void)s;
    w->attn->lane[lane].n_used--;
    *slot = (sim_slot){0};
}

static void evict(sim *s, sim_worker *w, uint32_t lane, sim_slot *slot) {
    uint32_t request = slot->request;
    sim_attn_release(s, w, lane, slot);
    sim_coord_requeue(s, request);
}

void sim_attn_evict_youngest(sim *s, sim_worker *w) {
    sim_slot *youngest = NULL;
    uint32_t lane = 0;
    for (uint32_t l = 0; l < s->lanes; l++) {
        for (uint32_t i = 0; i < s->max_slots; i++) {
            sim_slot *slot = &w->attn->lane[l].slot[i];
            if (!slot->used) continue;
            if (slot->evict) return; /* pages are on their way back already */
            if (youngest && s->req[slot->request].id < s->req[youngest->request].id) continue;
            youngest = slot;
            lane = l;
        }
    }
    if (!youngest) return;
    if (youngest->in_step)
        youngest->evict = true; /* ends with the step */
    else
        evict(s, w, lane, youngest);
}

/* ---- a step ---- */

static void fill_needs(sim *s, sim_lane *l) {
    for (uint32_t i = 0; i < s->max_slots; i++) {
        const sim_slot *t = &l->slot[i];
        sl_slot_need *need = &l->need[i];
        *need = (sl_slot_need){.state = SL_SLOT_EMPTY};
        if (!t->used) continue;
        bool prefill = t->done < t->given;
        need->arrival = l->steps % 2 ? t->arrival : t->given - SL_MIN(t->done, t->given);
        need->max_rows =
            sim_slot_has_work(s, t) ? s->req[t->request].pages * SL_KV_PAGE_TOKENS - t->done : 0;
        need->state = prefill ? SL_SLOT_PREFILL : SL_SLOT_DECODE;
        need->prompt_left = prefill ? t->given - t->done : 0;
    }
}

static void limit_prompts(const sim *s, sim_lane *l, uint32_t rows) {
    for (uint32_t i = 0; i < s->max_slots; i++) {
        sl_slot_need *n = &l->need[i];
        if (n->state == SL_SLOT_PREFILL)
            n->max_rows = SL_MIN(n->max_rows, rows - SL_MIN(l->slot[i].done, rows));
    }
}

static uint32_t pace(sim *s, sim_lane *l) {
    uint32_t decoding = 0, best = SIM_NONE;
    for (uint32_t i = 0; i < s->max_slots; i++) {
        const sl_slot_need *n = &l->need[i];
        decoding += n->state == SL_SLOT_DECODE && n->max_rows > 0;
        if (n->state != SL_SLOT_PREFILL || n->max_rows == 0) continue;
        if (best == SIM_NONE || n->arrival < l->need[best].arrival) best = i;
    }
    l->burst = best != SIM_NONE && decoding && l->slot[best].done < SL_PREFILL_BURST;
    if (best == SIM_NONE || !decoding) return UINT32_MAX;
    if (l->burst) {
        limit_prompts(s, l, SL_PREFILL_BURST);
        return SL_PREFILL_BURST;
    }
    uint32_t chunk = sl_pacer_chunk(&l->pacer, decoding);
    if (chunk == 0) limit_prompts(s, l, 0);
    return chunk;
}

double sim_attn_keys(const sim *s, uint32_t done, uint32_t rows) {
    double sum = 0;
    for (uint32_t k = 0; k < SL_LEN(s->n_sight); k++)
        if (s->n_sight[k]) sum += s->n_sight[k] * sl_sight_keys(s->m, (sl_sight)k, done, rows);
    return sum / s->m->n_layers;
}

static void begin_step(sim *s, sim_lane *l) {
    sl_lane_step step = {.parts = l->part, .cap = s->max_slots + 1u};
    fill_needs(s, l);
    const sl_batch_limits limits = {
        .max_rows = s->max_rows, .max_chunk = pace(s, l), .min_chunk = SL_MIN(s->max_rows, 16u)};
    sl_status st = sl_batcher_step(l->need, s->max_slots, &limits, l->turn, &step, s->err);
    if (st != SL_OK) sim_fail(s, st);
    l->turn = step.turn;
    l->steps++;
    l->n_parts = step.n_parts;
    l->rows = step.rows;
    l->decode_rows = l->samples = 0;
    l->keys = 0;
    l->began_at = sim_now(s);
    for (size_t i = 0; i < l->n_parts; i++) {
        const sl_step_part *p = &l->part[i];
        sim_slot *slot = &l->slot[p->slot];
        slot->in_step = true;
        slot->samples = p->sample;
        l->decode_rows += !p->prefill;
        l->samples += p->sample;
        l->keys += sim_attn_keys(s, slot->done, p->rows);
    }
}

/* What follows the last block: rows are in the cache, tokens are sampled, slots end. */
void sim_attn_end_parts(sim *s, sim_worker *w, sim_lane *l) {
    uint32_t lane = (uint32_t)(l - w->attn->lane);
    for (size_t i = 0; i < l->n_parts; i++) {
        sim_slot *slot = &l->slot[l->part[i].slot];
        if (!slot->used) continue; /* aep: it made room for one before it */
        slot->done += l->part[i].rows;
        slot->in_step = false;
        if (!l->part[i].sample || slot->evict) continue;
        slot->tokens++;
        uint32_t request = slot->request;
        if (!sim_coord_token(s, w, request)) continue;
        sim_attn_release(s, w, lane, slot);
        sim_coord_finish(s, request);
    }
    for (size_t i = 0; i < l->n_parts; i++) {
        sim_slot *slot = &l->slot[l->part[i].slot];
        if (slot->used && slot->evict) evict(s, w, lane, slot);
    }
}

static void end_round(sim *s, sim_worker *w, uint32_t lane) {
    sim_lane *l = &w->attn->lane[lane];
    bool join = false;
    if (!l->next) {
        sim_fail(s, sl_fail(s->err, SL_ERR_INTERNAL, "simulation: no next set in the last reply"));
        return;
    }
    sl_status st = sl_member_next(&l->member, l->member.round + 1, &l->next->ids, &join, s->err);
    sim_set_drop(l->next);
    l->next = NULL;
    if (st != SL_OK) {
        sim_fail(s, st);
        return;
    }
    bool goes_on = l->member.state == SL_MEMBER_ROUND;
    if (goes_on) sl_turns_open(&w->attn->turns, lane);
    if (join)
        send_join(s, w, lane);
    else if (!goes_on)
        sim_attn_wake(s, w, lane, NULL);
}

static void end_step(sim *s, sim_worker *w, uint32_t lane) {
    sim_lane *l = &w->attn->lane[lane];
    uint64_t generated = l->samples;
    sim_attn_end_parts(s, w, l);
    if (!l->burst)
        sl_pacer_learn(&l->pacer, l->decode_rows, l->rows - l->decode_rows,
                       (uint64_t)(sim_now(s) - l->began_at));
    sim_note_span(s, w,
                  (sl_trace_event){.kind = SL_TRACE_STEP,
                                   .lane = sl_trace_u16(lane),
                                   .round = (uint32_t)l->member.round,
                                   .rows = l->rows,
                                   .tokens = (uint32_t)generated},
                  l->began_at);
    l->n_parts = 0;
    l->rows = 0;
}

/* Whether the lane will have rows in the next round, as far as can be known before sampling. */
static bool will_stay(const sim *s, const sim_lane *l) {
    for (uint32_t i = 0; i < s->max_slots; i++) {
        const sim_slot *t = &l->slot[i];
        if (!t->used || t->evict) continue;
        if (t->tokens + (t->in_step && t->samples) < t->total) return true;
    }
    return false;
}

static void dispatch(sim *s, sim_worker *w, const sl_turn *t) {
    sim_lane *l = &w->attn->lane[t->lane];
    uint32_t moe = s->m->moe_index[t->layer];
    bool last = moe == s->m->n_moe - 1u, stay = last && will_stay(s, l);
    if (last) sl_member_vote(&l->member, stay);
    l->layer = t->layer;
    l->sent_at = sim_now(s);
    s->rows_created += l->rows;
    s->rows_away += l->rows;
    sim_route_dispatch(s, w, t->lane, moe, stay);
}

static void merge(sim *s, sim_worker *w, const sl_turn *t) {
    const sim_lane *l = &w->attn->lane[t->lane];
    s->rows_merged += l->rows;
    s->rows_away -= l->rows;
    sim_note_span(s, w,
                  (sl_trace_event){.kind = SL_TRACE_FLIGHT,
                                   .lane = sl_trace_u16(t->lane),
                                   .layer = sl_trace_u16(t->layer),
                                   .rows = l->rows},
                  l->sent_at);
}

/* ---- tasks ---- */

/* A piece of the head: the engine has as many, and what it samples at the end is part of the cost.
 */
static void start_head(sim *s, sim_worker *w, const sim_lane *l) {
    sim_attn *a = w->attn;
    uint32_t pieces = sl_turns_head_pieces(s->p, s->m->vocab);
    if (a->head_left == 0) a->head_left = l->samples ? pieces : 1;
    if (l->samples == 0) return;
    sl_stage_cost piece = s->s->attention->stage[SL_COST_HEAD];
    piece.fixed_us /= pieces;
    piece.floor_us /= pieces;
    piece.row_us /= pieces;
    piece.pad_us /= pieces;
    sim_kernel_add(s, w, SL_TRACE_HEAD, &piece, l->samples, 0);
}

bool sim_attn_start(sim *s, sim_worker *w) {
    sim_attn *a = w->attn;
    if (a->lost || !sl_turns_next(&a->turns, &a->turn)) return false;
    const sl_turn *t = &a->turn;
    sim_lane *l = &a->lane[t->lane];
    const sl_stage_cost *cost = s->s->attention->stage;
    w->about = (sl_trace_event){.lane = sl_trace_u16(t->lane),
                                .layer = sl_trace_u16(t->layer),
                                .round = (uint32_t)l->member.round};
    if (t->kind == SL_TURN_BEGIN) begin_step(s, l);
    if (l->rows == 0) return true;
    switch (t->kind) {
    case SL_TURN_BLOCK:
        sim_kernel_add(s, w, SL_TRACE_ATTENTION, &cost[SL_COST_ATTENTION], l->rows, l->keys);
        if (s->moe[t->layer])
            sim_kernel_add(s, w, SL_TRACE_ROUTER, &cost[SL_COST_ROUTER], l->rows, 0);
        else
            sim_kernel_add(s, w, SL_TRACE_DENSE, &cost[SL_COST_DENSE], l->rows, 0);
        break;
    case SL_TURN_SHARED:
        sim_kernel_add(s, w, s->m->dense_branch ? SL_TRACE_BRANCH : SL_TRACE_SHARED,
                       &cost[SL_COST_SHARED], l->rows, 0);
        break;
    case SL_TURN_HEAD:
        start_head(s, w, l);
        break;
    default:
        break;
    }
    return true;
}

void sim_attn_finish(sim *s, sim_worker *w) {
    sim_attn *a = w->attn;
    sl_turn t = a->turn;
    if (a->lost) return;
    if (t.kind == SL_TURN_BLOCK && s->moe[t.layer]) dispatch(s, w, &t);
    if (t.kind == SL_TURN_MERGE) merge(s, w, &t);
    if (t.kind == SL_TURN_HEAD && a->head_left > 1) {
        a->head_left--;
        sl_turns_pause(&a->turns, &t);
        return;
    }
    if (t.kind == SL_TURN_HEAD) a->head_left = 0;
    if (t.kind == SL_TURN_HEAD) end_step(s, w, t.lane);
    sl_turns_done(&a->turns, &t);
    if (t.kind == SL_TURN_HEAD) end_round(s, w, t.lane);
}

/* ---- messages ---- */

void sim_attn_on_return(sim *s, sim_worker *w, uint32_t id) {
    sim_msg *m = &s->msg[id];
    sim_attn *a = w->attn;
    if (!a->lost) {
        if (m->set) {
            a->lane[m->lane].next = m->set;
            m->set = NULL;
        }
        if (sl_turns_awaits(&a->turns, m->lane))
            sl_turns_reply(&a->turns, m->lane);
        else
            sim_fail(s, sl_fail(s->err, SL_ERR_INTERNAL,
                                "simulation: worker %u got a reply that nothing waits for", w->id));
    }
    sim_msg_drop(s, id);
}

void sim_attn_on_open(sim *s, sim_worker *w, uint32_t id) {
    const sim_msg *m = &s->msg[id];
    sim_attn *a = w->attn;
    if (a->lost) return;
    sl_status st = sl_member_open(&a->lane[m->lane].member, m->round, &m->set->ids, s->err);
    if (st == SL_OK)
        sl_turns_open(&a->turns, m->lane);
    else
        sim_fail(s, st);
}

/* ---- the end of it all ---- */

void sim_attn_lose(sim *s, sim_worker *w) {
    sim_attn *a = w->attn;
    if (!a || a->lost) return;
    a->lost = true;
    if (s->aep) sim_flow_reset(s, w);
    for (uint32_t l = 0; l < s->lanes; l++) {
        sim_lane *lane = &a->lane[l];
        if (!s->aep && sl_turns_in_flight(&a->turns, l)) {
            s->rows_lost += lane->rows;
            s->rows_away -= lane->rows;
        }
        sl_turns_drop(&a->turns, l);
        for (uint32_t i = 0; i < s->max_slots; i++) {
            sim_slot *slot = &lane->slot[i];
            if (!slot->used) continue;
            uint32_t request = slot->request;
            sim_attn_release(s, w, l, slot);
            sim_coord_fail(s, request);
        }
    }
}

double sim_attn_depth(const sim *s, const sim_worker *w) {
    double rows = 0;
    const sim_attn *a = w->attn;
    for (uint32_t l = 0; l < s->lanes; l++) {
        bool runs = w->running == SIM_RUN_TURN && a->turn.lane == l;
        if (a->turns.lane[l].phase == SL_TURN_READY && !runs) rows += a->lane[l].rows;
    }
    return rows;
}

/* ---- life ---- */

static sl_status create_lane(sim *s, sim_worker *w, sim_lane *l) {
    l->pacer.stretch = s->p->prefill_stretch;
    l->slot = sl_alloc(s->max_slots, sizeof *l->slot);
    l->need = sl_alloc(s->max_slots, sizeof *l->need);
    l->part = sl_alloc(s->max_slots + 1u, sizeof *l->part);
    if (!l->slot || !l->need || !l->part) return sim_oom(s, "a lane");
    if (s->aep) return SL_OK;
    return sl_member_init(&l->member, w->id, s->n_attn, s->err);
}

sl_status sim_attn_create(sim *s, sim_worker *w) {
    sim_attn *a = sl_alloc(1, sizeof *a);
    if (!a) return sim_oom(s, "an attention worker");
    w->attn = a;
    a->free_pages = s->p->n_pages;
    while (s->attn_id[a->index] != w->id) a->index++;
    a->lane = sl_alloc(s->lanes, sizeof *a->lane);
    if (!a->lane) return sim_oom(s, "lanes");
    sl_status st = SL_OK;
    for (uint32_t l = 0; st == SL_OK && l < s->lanes; l++) st = create_lane(s, w, &a->lane[l]);
    const sl_turns_shape shape = {.n_lanes = s->lanes,
                                  .n_layers = s->m->n_layers,
                                  .moe = s->moe,
                                  .shared = s->m->d_ff_shared > 0,
                                  .n_replies = s->n_expert * s->chunks,
                                  .order = s->p->order};
    if (st == SL_OK) st = sl_turns_init(&a->turns, &shape, s->err);
    if (st == SL_OK && s->aep) st = sim_flow_create(s, w);
    return st;
}

void sim_attn_free(sim *s, sim_worker *w) {
    sim_attn *a = w->attn;
    if (!a) return;
    sim_flow_free(a);
    for (uint32_t l = 0; a->lane && l < s->lanes; l++) {
        sim_lane *lane = &a->lane[l];
        sl_member_free(&lane->member);
        sim_set_drop(lane->next);
        sl_free(lane->slot);
        sl_free(lane->need);
        sl_free(lane->part);
    }
    sl_free(a->lane);
    sl_free(a);
}
