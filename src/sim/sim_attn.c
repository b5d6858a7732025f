/* Lanes of an attention worker: src/sched's slots, turns and membership, with counts where the
 * engine (src/engine/attn/attn.c, lane.c) has rows. */
#include "sim/deployment_int.h"

#include <string.h>

/* ---- slots ---- */

static void send_join(sim *s, sim_worker *w, uint32_t lane) {
    uint32_t id = sim_msg_take(s, SIM_MSG_JOIN, w->id, w->side->expert_id[0]);
    if (id == SIM_NONE) return;
    s->msg[id].lane = lane;
    sim_msg_send(s, id, 0);
}

static void wake_lane(sim *s, sim_worker *w, uint32_t lane) {
    bool join = false;
    sim_touch(s, w);
    if (!sl_slots_have_work(&w->attn->slots, lane)) return;
    sl_member_want(&w->attn->lane[lane].member, &join);
    if (join) send_join(s, w, lane);
}

void sim_attn_wake(sim *s, sim_worker *w, const sl_life *life) {
    if (!s->aep) {
        wake_lane(s, w, sl_slots_lane(&w->attn->slots, life));
        return;
    }
    sim_touch(s, w);
    sim_flow_wake(w, life);
}

static uint32_t *request_of(sim_worker *w, const sl_life *life) {
    const sl_slots *slots = &w->attn->slots;
    return &w->attn->lane[sl_slots_lane(slots, life)].request[sl_slots_index(slots, life)];
}

static void release(sim *s, sim_worker *w, sl_life *life) {
    s->req[*request_of(w, life)].life = NULL;
    sl_slots_release(&w->attn->slots, life);
}

/* ---- words to the coordinator ---- */

static void tell(sim *s, sim_worker *w, sim_told_what what, sl_life *life) {
    sim_attn *a = w->attn;
    if (a->n_told == a->cap_told) {
        uint32_t cap = SL_MAX(2 * a->cap_told, 64u);
        sim_told *bigger = sl_alloc(cap, sizeof *bigger);
        if (!bigger) {
            sim_fail(s, sim_oom(s, "words to the coordinator"));
            return;
        }
        for (uint32_t i = 0; i < a->n_told; i++)
            bigger[i] = a->told[(a->told_head + i) % a->cap_told];
        sl_free(a->told);
        a->told = bigger;
        a->told_head = 0;
        a->cap_told = cap;
    }
    a->told[(a->told_head + a->n_told++) % a->cap_told] =
        (sim_told){.what = (uint8_t)what,
                   .request = *request_of(w, life),
                   .generation = life->generation,
                   .rows = life->done};
}

/* What was told is on its way. */
static void flush(sim *s, sim_worker *w) {
    sim_attn *a = w->attn;
    uint32_t n = a->n_told - a->n_sent;
    if (n == 0) return;
    a->n_sent = a->n_told;
    sl_sim_events_push(&s->ev, sim_now(s) + s->s->control_us, SIM_HEAR, w->id, n);
}

const sim_told *sim_attn_next_told(sim_attn *a) {
    return &a->told[(a->told_head + a->n_heard++) % a->cap_told];
}

static void give_way(sim *s, sim_worker *w, sl_life *life) {
    tell(s, w, SIM_TOLD_GAVE_WAY, life);
    release(s, w, life);
}

/* ---- words of the coordinator ---- */

static void on_submit(sim *s, sim_worker *w, uint32_t request) {
    const sl_admit_request *q = &s->admit.request[request];
    sl_life *life =
        sl_slots_take(&w->attn->slots, sl_admit_known(q), q->most - q->drawn, q->n_pages);
    SL_ASSERT(life);
    life->done = q->sure;
    life->parks = q->parks;
    s->req[request].life = life;
    *request_of(w, life) = request;
    sim_guess_begin(w->attn, life);
    sim_attn_wake(s, w, life);
}

static void on_page(sim *s, sim_worker *w, sl_life *life) {
    life->pages++;
    sim_attn_wake(s, w, life);
}

void sim_attn_give_way(sim *s, sim_worker *w, sl_life *life) {
    give_way(s, w, life);
    flush(s, w);
}

static void on_cancel(sim *s, sim_worker *w, sl_life *life) {
    if (sl_life_end(life)) sim_attn_give_way(s, w, life); /* else it ends with the step */
    sim_attn_wake(s, w, life);
}

static void on_ack(sim *s, sim_worker *w, uint32_t n) {
    sim_attn *a = w->attn;
    for (uint32_t i = 0; i < n; i++) {
        const sim_told *t = &a->told[a->told_head];
        sl_life *life = s->req[t->request].life; /* it may have moved to another lane */
        a->told_head = (a->told_head + 1) % a->cap_told;
        if (t->what == SIM_TOLD_ROWS) continue;
        if (!life || !sl_slots_has(&a->slots, life) || life->generation != t->generation) continue;
        sl_life_ack(life, life->acked + 1);
        sim_attn_wake(s, w, life);
    }
    a->n_told -= n;
    a->n_sent -= n;
    a->n_heard -= n;
}

void sim_attn_on_control(sim *s, sim_worker *w, sim_event_kind kind, uint32_t what) {
    if (w->attn->lost) return;
    sl_life *life = kind == SIM_ACK || kind == SIM_FETCH ? NULL : s->req[what].life;
    if (kind == SIM_FETCH)
        sim_msg_send(s, what, sl_kv_page_bytes(s->m));
    else if (kind == SIM_SUBMIT)
        on_submit(s, w, what);
    else if (kind == SIM_ACK)
        on_ack(s, w, what);
    else if (life && kind == SIM_PAGE) /* else it has ended meanwhile */
        on_page(s, w, life);
    else if (life)
        on_cancel(s, w, life);
}

/* ---- a step ---- */

double sim_attn_keys(const sim *s, uint32_t done, uint32_t rows) {
    double sum = 0;
    for (uint32_t k = 0; k < SL_LEN(s->n_sight); k++)
        if (s->n_sight[k]) sum += s->n_sight[k] * sl_sight_keys(s->m, (sl_sight)k, done, rows);
    return sum / s->m->n_layers;
}

static void begin_step(sim *s, sim_lane *l) {
    l->step.round = l->member.round;
    sl_step_form(&l->step, (uint64_t)sim_now(s));
    l->began_at = sim_now(s);
    l->keys = 0;
    sim_guess_begin_step(l);
    for (size_t i = 0; i < l->step.n_parts; i++)
        l->keys += sim_attn_keys(s, l->life[l->step.part[i].slot].done, l->step.part[i].rows);
}

/* Rows of the call draw their tokens. */
static void draw(sim *s, sim_worker *w, sim_lane *l, const sl_head_piece *piece) {
    for (uint32_t i = piece->first; i < piece->first + piece->n; i++) {
        uint32_t part = w->attn->head.part[i];
        sl_life *life = &l->life[l->step.part[part].slot];
        if (!sl_step_is_open(&l->step, part)) continue;
        if (!sim_guess_draws(s, l, part, w->attn->head.row[i])) continue;
        bool last = sl_life_append(life);
        tell(s, w, last ? SIM_TOLD_LAST : SIM_TOLD_TOKEN, life);
        if (last) release(s, w, life);
        l->n_drawn++;
    }
}

/* Pages of prompts that go on elsewhere are copied while the rest is computed. */
static void tell_rows(sim *s, sim_worker *w, sim_lane *l) {
    for (size_t i = 0; i < l->step.n_parts; i++) {
        sl_life *life = &l->life[l->step.part[i].slot];
        if (life->used && life->parks && sl_life_prefills(life)) tell(s, w, SIM_TOLD_ROWS, life);
    }
}

static void end_step(sim *s, sim_worker *w, sim_lane *l) {
    sl_step *step = &l->step;
    uint32_t tokens = l->n_drawn, rows = step->rows;
    l->n_drawn = 0;
    s->result.guesses += step->guesses;
    for (size_t i = 0; i < step->n_parts; i++) {
        if (sl_step_ends(step, i))
            give_way(s, w, &l->life[step->part[i].slot]);
        else if (sl_step_is_open(step, i))
            sim_guess(s, l, &step->part[i]);
    }
    tell_rows(s, w, l);
    sl_step_end(step, (uint64_t)sim_now(s));
    sim_note_span(s, w,
                  (sl_trace_event){.kind = SL_TRACE_STEP,
                                   .lane = sl_trace_u16((uint32_t)(l - w->attn->lane)),
                                   .round = (uint32_t)l->member.round,
                                   .rows = rows,
                                   .tokens = tokens},
                  l->began_at);
    sl_head_close(&w->attn->head);
    sim_mtp_drop(w->attn);
    flush(s, w);
}

/* Requests whose lane has closed, or has two more than the emptiest open one, go on there. */
static void move_requests(sim *s, sim_worker *w, uint32_t lane) {
    sl_slots *slots = &w->attn->slots;
    sl_life *to, *from;
    while ((to = sl_slots_move(slots, lane, &from))) {
        sim_lane *l = &w->attn->lane[sl_slots_lane(slots, to)];
        const uint32_t at = sl_slots_index(slots, to), was = sl_slots_index(slots, from);
        l->request[at] = w->attn->lane[lane].request[was];
        if (l->draft) l->draft[at] = w->attn->lane[lane].draft[was];
        s->req[l->request[at]].life = to;
        sim_attn_wake(s, w, to);
    }
}

/* As sl_lane_settle of the engine. */
static void settle(sim *s, sim_worker *w, uint32_t lane, uint32_t rows) {
    sim_attn *a = w->attn;
    sl_resolve *r = &a->resolve;
    if (!sl_resolve_is_on(r)) return;
    if (sl_resolve_step(r, lane, rows, sl_slots_used(&a->slots), (uint64_t)sim_now(s))) {
        for (uint32_t i = 0; i < r->n_change; i++)
            sim_note_span(s, w, sl_resolve_event(&r->change[i], lane), sim_now(s));
        a->slots.open = r->lanes;
        sl_turns_set_order(&a->turns, r->order);
    }
    move_requests(s, w, lane);
}

bool sim_attn_end_head(sim *s, sim_worker *w, sim_lane *l) {
    sl_head *h = &w->attn->head;
    sl_head_piece piece;
    const uint32_t rows = l->step.rows;
    if (sim_mtp_runs(w->attn)) {
        if (!sim_mtp_end(s, w, l)) return false;
    } else {
        if (sl_head_next(h, &piece) && piece.kind == SL_HEAD_TELL) draw(s, w, l, &piece);
        sl_head_done(h, &l->step);
        if (sl_head_next(h, &piece)) return false;
        if (sim_mtp_open(s, w, l)) {
            flush(s, w);
            return false;
        }
    }
    end_step(s, w, l);
    if (!s->aep) settle(s, w, (uint32_t)(l - w->attn->lane), rows);
    return true;
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
        wake_lane(s, w, lane);
}

static void dispatch(sim *s, sim_worker *w, const sl_turn *t) {
    sim_lane *l = &w->attn->lane[t->lane];
    uint32_t moe = s->m->moe_index[t->layer];
    bool last = moe == s->m->n_moe - 1u,
         stay = last && sl_slots_will_stay(&w->attn->slots, t->lane);
    if (last) sl_member_vote(&l->member, stay);
    l->layer = t->layer;
    l->sent_at = sim_now(s);
    s->result.rows_created += l->step.rows;
    s->rows_away += l->step.rows;
    sim_route_dispatch(s, w, t->lane, moe, stay);
}

static void merge(sim *s, sim_worker *w, const sl_turn *t) {
    const sim_lane *l = &w->attn->lane[t->lane];
    s->result.rows_merged += l->step.rows;
    s->rows_away -= l->step.rows;
    sim_note_span(s, w,
                  (sl_trace_event){.kind = SL_TRACE_FLIGHT,
                                   .lane = sl_trace_u16(t->lane),
                                   .layer = sl_trace_u16(t->layer),
                                   .rows = l->step.rows},
                  l->sent_at);
}

/* ---- tasks ---- */

/* A piece of the head. What the rows of a step cost in all is the head's cost of as many, drawing
 * included; a piece that computes columns has its share. */
static void start_head(sim *s, sim_worker *w, sim_lane *l) {
    sl_head *h = &w->attn->head;
    sl_head_piece piece;
    if (sim_mtp_runs(w->attn)) {
        sim_mtp_start(s, w);
        return;
    }
    if (!h->open) {
        w->attn->head_cost = sim_stage_cost(s, w, SL_COST_HEAD, 0);
        sl_head_open(h, &l->step);
    }
    if (!sl_head_next(h, &piece) || piece.kind != SL_HEAD_COLUMNS) return;
    double all = l->step.samples + l->step.guesses, pieces = all * sl_head_column_pieces(h);
    double us = sl_stage_cost_us(&w->attn->head_cost, all, 0) * h->rows / pieces;
    sim_kernel_add(s, w, SL_TRACE_HEAD, &(sl_stage_cost){.fixed_us = us}, h->rows, 0);
}

bool sim_attn_start(sim *s, sim_worker *w) {
    sim_attn *a = w->attn;
    if (a->lost || !sl_turns_next(&a->turns, &a->turn)) return false;
    const sl_turn *t = &a->turn;
    sim_lane *l = &a->lane[t->lane];
    w->about = (sl_trace_event){.lane = sl_trace_u16(t->lane),
                                .layer = sl_trace_u16(t->layer),
                                .round = (uint32_t)l->member.round};
    sl_turns_begin(&a->turns, t);
    l->task_us = (uint64_t)sim_now(s);
    if (t->kind == SL_TURN_BEGIN) begin_step(s, l);
    if (t->kind == SL_TURN_HEAD) start_head(s, w, l);
    if (l->step.rows == 0 && t->kind == SL_TURN_BEGIN)
        sim_kernel_add(s, w, SL_TRACE_EMBED, &(sl_stage_cost){.fixed_us = SL_SIM_EMPTY_STEP_US}, 0,
                       0);
    if (l->step.rows == 0) return true;
    switch (t->kind) {
    case SL_TURN_BLOCK:
        if (s->pipe > 1) {
            sim_pipeline_start(s, w, t);
            break;
        }
        sim_attention_add(s, w, t->layer, l->step.rows, l->keys);
        if (s->moe[t->layer])
            sim_stage_add(s, w, SL_TRACE_ROUTER, SL_COST_ROUTER, t->layer, l->step.rows);
        else
            sim_stage_add(s, w, SL_TRACE_DENSE, SL_COST_DENSE, t->layer, l->step.rows);
        break;
    case SL_TURN_SHARED:
        if (s->pipe > 1) break;
        sim_stage_add(s, w, s->m->dense_branch ? SL_TRACE_BRANCH : SL_TRACE_SHARED, SL_COST_SHARED,
                      t->layer, l->step.rows);
        break;
    default:
        break;
    }
    return true;
}

static void end_block(sim *s, sim_worker *w, const sl_turn *t) {
    if (s->moe[t->layer]) dispatch(s, w, t);
    sl_turns_done(&w->attn->turns, t);
}

void sim_attn_back(sim *s, sim_worker *w, uint32_t lane) {
    const sl_turn t = w->attn->lane[lane].held;
    if (!w->attn->lost) end_block(s, w, &t);
}

void sim_attn_finish(sim *s, sim_worker *w) {
    sim_attn *a = w->attn;
    sl_turn t = a->turn;
    if (a->lost) return;
    const sim_lane *l = &a->lane[t.lane];
    const uint64_t us = (uint64_t)sim_now(s) - l->task_us;
    if (t.kind == SL_TURN_BLOCK && s->moe[t.layer]) sl_resolve_block(&a->resolve, l->step.rows, us);
    if (t.kind == SL_TURN_SHARED) sl_resolve_shared(&a->resolve, l->step.rows, us);
    if (t.kind == SL_TURN_BLOCK) {
        if (s->pipe == 1 || !sim_pipeline_holds(s, w, &t)) end_block(s, w, &t);
        return;
    }
    if (t.kind == SL_TURN_MERGE) merge(s, w, &t);
    if (t.kind == SL_TURN_HEAD && !sim_attn_end_head(s, w, &a->lane[t.lane])) {
        sl_turns_pause(&a->turns, &t);
        return;
    }
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
            (void)sl_resolve_hear(&a->resolve, m->groups);
        }
        if (m->rows)
            sl_resolve_answered(&a->resolve, m->lane, m->chunk, s->expert_index[m->src], m->task_us,
                                m->held_us, (uint64_t)m->came_at);
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
    sim_mtp_drop(a);
    for (uint32_t l = 0; l < s->lanes; l++) {
        sim_lane *lane = &a->lane[l];
        if (!s->aep && sl_turns_in_flight(&a->turns, l)) {
            s->result.rows_lost += lane->step.rows;
            s->rows_away -= lane->step.rows;
        }
        sl_turns_drop(&a->turns, l);
        sl_resolve_drop(&a->resolve, l);
        for (uint32_t i = 0; i < s->max_slots; i++) {
            if (lane->life[i].used) release(s, w, &lane->life[i]);
        }
    }
}

double sim_attn_depth(const sim *s, const sim_worker *w) {
    double rows = 0;
    const sim_attn *a = w->attn;
    for (uint32_t l = 0; l < s->lanes; l++) {
        if (a->turns.lane[l].phase == SL_TURN_READY) rows += a->lane[l].step.rows;
    }
    return rows;
}

/* ---- life ---- */

static sl_status create_lane(sim *s, sim_worker *w, sim_lane *l) {
    uint32_t lane = (uint32_t)(l - w->attn->lane);
    l->life = sl_slots_of(&w->attn->slots, lane);
    l->request = sl_alloc(s->max_slots, sizeof *l->request);
    if (!l->request) return sim_oom(s, "a lane");
    if (s->p->speculate) {
        l->draft = sl_alloc(s->max_slots, sizeof *l->draft);
        l->first_pos = sl_alloc(s->max_slots + 1u, sizeof *l->first_pos);
        l->found = sl_alloc(s->max_slots, sizeof *l->found);
        if (!l->draft || !l->first_pos || !l->found) return sim_oom(s, "guesses");
    }
    sl_status st = sl_step_create(&w->attn->slots, &s->cut, lane, s->max_rows,
                                  s->p->prefill_stretch, &l->step, s->err);
    l->step.resolve = &w->attn->resolve;
    l->price = &l->step.price;
    l->price->speculate = s->p->speculate;
    if (st != SL_OK || s->aep) return st;
    return sl_member_init(&l->member, w->id, 0,
                          s->err); /* sets grow: most lanes may never have one */
}

sl_status sim_attn_create(sim *s, sim_worker *w) {
    sim_attn *a = sl_alloc(1, sizeof *a);
    if (!a) return sim_oom(s, "an attention worker");
    w->attn = a;
    sl_head_init(&a->head, s->p, w->id, s->m->vocab);
    size_t index;
    (void)sl_idset_find(&w->side->members, w->id, &index);
    a->index = (uint32_t)index;
    a->lane = sl_alloc(s->lanes, sizeof *a->lane);
    if (!a->lane) return sim_oom(s, "lanes");
    sl_status st = sl_slots_create(s->lanes, s->max_slots, &a->slots, s->err);
    a->slots.watch = sim_watch(s, w->id);
    sl_resolve_init(s->p, s->m, sim_watch(s, w->id), &a->resolve);
    const uint32_t self = w->roles & SL_ROLE_EXPERT ? s->expert_index[w->id] : UINT32_MAX;
    if (st == SL_OK)
        st = sl_resolve_deploy(&a->resolve, w->side->n_attn, w->side->n_expert, self, s->err);
    for (uint32_t l = 0; st == SL_OK && l < s->lanes; l++) st = create_lane(s, w, &a->lane[l]);
    if (st == SL_OK) st = sim_mtp_create(s, w);
    const sl_turns_shape shape = {.n_lanes = s->lanes,
                                  .n_layers = s->m->n_layers,
                                  .moe = s->moe,
                                  .shared = s->m->d_ff_shared > 0,
                                  .n_replies = w->side->n_expert * s->chunks,
                                  .order = a->resolve.order,
                                  .watch = sim_watch(s, w->id)};
    if (st == SL_OK) st = sl_turns_init(&a->turns, &shape, s->err);
    if (st == SL_OK && s->aep) st = sim_flow_create(s, w);
    return st;
}

void sim_attn_free(sim *s, sim_worker *w) {
    sim_attn *a = w->attn;
    if (!a) return;
    sim_flow_free(a);
    sim_mtp_free(a);
    for (uint32_t l = 0; a->lane && l < s->lanes; l++) {
        sim_lane *lane = &a->lane[l];
        sl_member_free(&lane->member);
        sim_set_drop(lane->next);
        sl_free(lane->request);
        sl_free(lane->draft);
        sl_free(lane->found);
        sl_free(lane->first_pos);
        sl_step_free(&lane->step);
    }
    sl_free(a->lane);
    sl_free(a->told);
    sl_slots_free(&a->slots);
    sl_resolve_free(&a->resolve);
    sl_free(a);
}
