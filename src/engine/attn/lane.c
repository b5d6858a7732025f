/* A lane's step: rows of its requests pass the blocks; MoE blocks send them to the experts and wait
 * for the replies; after the last block the head samples (head.c). One call of sl_lane_run is one
 * task. */
#include "engine/attn/lane.h"
#include "engine/attn/outgoing.h"

#include "base/log.h"
#include "base/mutate.h"
#include "engine/host/far.h"

#include <string.h>

/* ---- membership ---- */

static void send_join(sl_lane *lane) {
    sl_worker *w = lane->attn->w;
    sl_wire_header h = {.kind = SL_MSG_JOIN, .lane = lane->id};
    sl_worker_send(w, w->experts.ids[0], h, NULL); /* a lost one is reported by its connection */
    sl_attn_sent(lane->attn, lane->id, w->experts.ids[0], 1, 0);
}

void sl_lane_wake(sl_lane *lane) {
    bool join = false;
    if (sl_attn_holds(lane->attn) || !sl_slots_have_work(&lane->attn->slots, lane->id)) return;
    sl_member_want(&lane->member, &join);
    if (join) send_join(lane);
}

/* Where this worker hosts all experts and its device computes a block by itself, rows stay: only
 * the words of the round go. So a step is asked of the device block by block without waiting for
 * it, but for the last block with experts, whose gates show rows that are not finite. */
static bool keeps_rows(const sl_lane *lane) {
    const sl_attn *a = lane->attn;
    const sl_worker *w = a->w;
    const bool exactly = w->device->inside_exact && w->plan.wire == SL_WIRE_F32;
    const bool freely = !w->plan.exact && !w->device->inside_f32;
    return w->device->inside && a->n_experts == 1 && w->experts.ids[0] == w->id &&
           a->n_chunks == 1 && (freely || exactly);
}

static bool stays_inside(const sl_lane *lane) {
    return keeps_rows(lane) && lane->attn->m->ffn[lane->pass.layer] == SL_FFN_MOE;
}

/* Nor for what comes between such blocks, or in front of them: what follows is behind it on the
 * device, and reads rows, tokens and pages of this step, which stay. */
static void await_nothing(sl_lane *lane) {
    if (keeps_rows(lane) && lane->attn->w->device->copies_lists) lane->pass.event = (sl_event){0};
}

/* ---- forming a step ---- */

static void add_rows(sl_lane *lane, const sl_step_part *part) {
    sl_slot *s = &lane->pass.slot[part->slot];
    s->first_row = lane->pass.n;
    for (uint32_t i = 0; i < part->rows; i++)
        sl_pass_row(&lane->pass, s, s->life->done + i,
                    sl_tag_make(part->slot, s->life->generation, i));
}

static void begin_step(sl_lane *lane) {
    sl_attn *a = lane->attn;
    lane->pass.step.round = lane->member.round;
    sl_step_form(&lane->pass.step, sl_clock_now_us(&a->w->clock));
    a->w->next_groups = sl_resolve_word(&a->resolve);
    lane->pass.step_began_ns = sl_now_ns();
    lane->pass.round = lane->member.round;
    lane->pass.n = 0;
    lane->have_next = false;
    for (size_t i = 0; i < lane->pass.step.n_parts; i++) add_rows(lane, &lane->pass.step.part[i]);
    sl_pass_embed(&lane->pass);
    await_nothing(lane);
}

/* ---- the end of a round ---- */

/* An expert worker does not keep to the protocol: its connection goes, and with it every step here.
 */
static void refuse_expert(sl_lane *lane, uint32_t id, const sl_err *err) {
    sl_worker *w = lane->attn->w;
    sl_log(SL_LOG_WARN, "lane", "expert worker %u: %s", id, err->msg);
    if (w->peer[id].conn) sl_net_close(w->net, w->peer[id].conn, err->code, err->msg);
    sl_attn_give_up(lane->attn);
}

/* Who would say what comes next is gone: the next plan does. */
static void end_last_round(sl_lane *lane) {
    sl_member_reset(&lane->member, lane->attn->w->plan.epoch);
}

static void end_round(sl_lane *lane) {
    sl_err err;
    bool join = false;
    if (lane->attn->leaderless) {
        end_last_round(lane);
        return;
    }
    sl_status st =
        lane->have_next ? SL_OK : sl_fail(&err, SL_ERR_PROTOCOL, "no next set in the last reply");
    if (st == SL_OK)
        st = sl_member_next(&lane->member, lane->member.round + 1, &lane->next, &join, &err);
    if (st != SL_OK) {
        refuse_expert(lane, lane->attn->w->experts.ids[0], &err);
        return;
    }
    bool goes_on = lane->member.state == SL_MEMBER_ROUND;
    if (goes_on) sl_turns_open(lane->turns, lane->id);
    if (join)
        send_join(lane);
    else if (!goes_on)
        sl_lane_wake(lane);
}

/* ---- blocks ---- */

/* The rows are routed: they leave. */
static void begin_leaving(sl_lane *lane) {
    sl_attn *a = lane->attn;
    bool last = sl_is_last_moe(a->m, lane->pass.layer);
    if (lane->n_away || (lane->inside && last)) sl_pass_break(&lane->pass);
    bool stay = last && !sl_attn_holds(a) && sl_slots_will_stay(&a->slots, lane->id);
    if (last) sl_member_vote(&lane->member, stay);
    sl_pass_begin(&lane->pass, SL_TRACE_DISPATCH, lane->n_away);
    lane->dispatched_ns = sl_now_ns();
    lane->leaves = true;
    sl_lane_leave(lane, stay);
}

/* The device is through with what BLOCK has asked so far; true: the block has run. */
static bool block_ran(sl_lane *lane) {
    if (lane->attn->m->ffn[lane->pass.layer] == SL_FFN_DENSE) return true;
    if (lane->leaves) return sl_lane_left(lane);
    begin_leaving(lane);
    return false;
}

static void begin_block(sl_lane *lane) {
    lane->n_left = 0;
    lane->leaves = lane->inside = lane->pass.cut = false;
    lane->n_away = lane->pass.n;
    if (lane->pass.n == 0) return;
    lane->inside = stays_inside(lane);
    if (lane->inside) {
        lane->n_away = 0;
        sl_pass_inside(&lane->pass, sl_is_last_moe(lane->attn->m, lane->pass.layer));
    } else {
        sl_pass_block(&lane->pass);
        if (lane->attn->m->ffn[lane->pass.layer] == SL_FFN_DENSE) await_nothing(lane);
    }
}

static void give_replies(sl_lane *lane) {
    sl_worker *w = lane->attn->w;
    for (uint32_t i = 0; i < lane->attn->n_experts * lane->attn->n_chunks; i++) {
        sl_net_buf_give(w->net, lane->reply[i].payload);
        lane->reply[i] = (sl_reply){0};
    }
}

static void begin_merge(sl_lane *lane) {
    sl_err err;
    uint32_t offender = 0;
    sl_pass_begin(&lane->pass, SL_TRACE_MERGE, lane->n_away);
    if (sl_lane_merge(lane, &offender, &err) != SL_OK) refuse_expert(lane, offender, &err);
}

static void count_answers(sl_lane *lane) {
    const sl_again *again = &lane->again;
    for (uint32_t i = 0; i < again->n_calls; i++) {
        if (again->call[i].state != SL_CALL_HERE) continue;
        sl_twice_counted(&lane->attn->twice, lane->attn->w->experts.ids[again->call[i].worker],
                         lane->answer[i].view.rows);
        lane->answer[i].here = false;
    }
}

/* The device has read what came back. */
static void end_merge(sl_lane *lane) {
    sl_worker *w = lane->attn->w;
    give_replies(lane);
    count_answers(lane);
    sl_again_close(&lane->again);
    w->n.rows_merged += lane->n_away;
    const sl_trace_event flight = {.kind = SL_TRACE_FLIGHT,
                                   .lane = sl_trace_u16(lane->id),
                                   .layer = sl_trace_u16(lane->pass.layer),
                                   .rows = lane->n_away};
    sl_worker_note_span(w, flight, lane->dispatched_ns);
}

/* Submits what the task asks of the device. */
static void begin_task(sl_lane *lane) {
    switch (lane->task.kind) {
    case SL_TURN_BEGIN:
        begin_step(lane);
        break;
    case SL_TURN_BLOCK:
        begin_block(lane);
        break;
    case SL_TURN_SHARED:
        if (lane->n_away > 0) sl_pass_shared(&lane->pass);
        break;
    case SL_TURN_MERGE:
        begin_merge(lane);
        break;
    case SL_TURN_HEAD:
        sl_pass_begin_head(&lane->pass);
        break;
    }
}

/* How long it took, where somebody wants to know. */
static void note_task(sl_lane *lane) {
    sl_attn *a = lane->attn;
    if (!sl_resolve_is_on(&a->resolve)) return;
    const uint64_t us = sl_clock_now_us(&a->w->clock) - lane->task_us;
    if (lane->task.kind == SL_TURN_BLOCK && a->moe[lane->pass.layer])
        sl_resolve_block(&a->resolve, lane->n_away, us);
    if (lane->task.kind == SL_TURN_SHARED) sl_resolve_shared(&a->resolve, lane->n_away, us);
}

/* The device is through with what the task has asked: asks for more, or the task ends. */
static void go_on(sl_lane *lane) {
    const sl_turn task = lane->task;
    const uint32_t rows = lane->pass.n;
    if (task.kind == SL_TURN_BLOCK && !block_ran(lane)) return;
    lane->begun = false;
    if (task.kind == SL_TURN_MERGE) end_merge(lane);
    if (task.kind == SL_TURN_HEAD && !sl_pass_end_head(&lane->pass)) {
        sl_turns_pause(lane->turns, &task);
        return;
    }
    note_task(lane);
    if (task.kind == SL_TURN_HEAD) sl_lane_settle(lane, rows);
    sl_turns_done(lane->turns, &task);
    if (task.kind == SL_TURN_HEAD) end_round(lane);
}

void sl_lane_run(sl_lane *lane, const sl_turn *turn) {
    lane->pass.layer = turn->layer;
    lane->task = *turn;
    lane->begun = true;
    lane->pass.event = (sl_event){0};
    if (sl_resolve_is_on(&lane->attn->resolve))
        lane->task_us = sl_clock_now_us(&lane->attn->w->clock);
    sl_turns_begin(lane->turns, turn);
    begin_task(lane);
    sl_lane_go_on(lane);
}

bool sl_lane_go_on(sl_lane *lane) {
    const sl_device *d = lane->attn->w->device;
    bool went = false;
    for (; lane->begun; went = true) {
        if (!sl_device_is_done(d, &lane->pass.event) && !SL_MUTATION(UNAWAITED)) break;
        go_on(lane);
    }
    return went;
}

/* ---- replies ---- */

/* To an attempt to get what a lost expert worker owed. */
static sl_status on_answer(sl_lane *lane, uint32_t expert_index, const sl_wire_header *h,
                           sl_buf **payload, sl_err *err) {
    sl_worker *w = lane->attn->w;
    const sl_span span = *payload ? (sl_span){(*payload)->data, (*payload)->len} : (sl_span){0};
    sl_wire_return v;
    uint32_t call;
    if (h->flags != SL_WIRE_AGAIN || span.len == 0 || (*payload)->spread.number ||
        sl_far_at(*payload))
        return sl_fail(err, SL_ERR_PROTOCOL, "answer of %zu bytes to attempt %llu, flags %x",
                       span.len, (unsigned long long)h->attempt, h->flags);
    sl_status st =
        sl_wire_return_decode(h, span, lane->attn->m, (sl_wire_format)w->plan.wire, &v, err);
    if (st != SL_OK) return st;
    sl_again_verdict verdict = sl_again_answered(&lane->again, expert_index, h->attempt, &call);
    if (verdict == SL_AGAIN_WRONG)
        return sl_fail(err, SL_ERR_PROTOCOL, "answer to attempt %llu, which lane %u did not make",
                       (unsigned long long)h->attempt, lane->id);
    if (verdict == SL_AGAIN_LATE) {
        sl_twice_late(&lane->attn->twice, w->experts.ids[expert_index], h->rows);
        return SL_OK;
    }
    lane->answer[call] = (sl_reply){.payload = *payload, .view = v, .here = true};
    *payload = NULL;
    if (verdict == SL_AGAIN_WHOLE) sl_turns_reply(lane->turns, lane->id);
    return SL_OK;
}

sl_status sl_lane_on_return(sl_lane *lane, uint32_t expert_index, const sl_wire_header *h,
                            sl_buf **payload, sl_err *err) {
    sl_attn *a = lane->attn;
    if (h->flags & SL_WIRE_AGAIN) return on_answer(lane, expert_index, h, payload, err);
    uint32_t chunk = SL_MIN(h->chunk, a->n_chunks - 1), group = chunk * a->n_experts + expert_index;
    sl_reply *reply = &lane->reply[group];
    if (sl_again_is_late(&lane->again, group) && !SL_MUTATION(LATE_COUNTS)) {
        (void)sl_again_replied(&lane->again, group);
        sl_twice_late(&a->twice, a->w->experts.ids[expert_index], h->rows);
        return SL_OK;
    }
    bool last = h->layer == a->m->n_moe - 1u && chunk == a->n_chunks - 1;
    if (!sl_turns_awaits(lane->turns, lane->id) || h->round != lane->member.round ||
        h->layer != a->m->moe_index[lane->pass.layer] || h->chunk != chunk ||
        chunk >= lane->n_left || reply->here)
        return sl_fail(
            err, SL_ERR_PROTOCOL,
            "return for round %llu layer %u chunk %u, lane %u awaits round %llu layer %u "
            "in %u chunks",
            (unsigned long long)h->round, h->layer, h->chunk, lane->id,
            (unsigned long long)lane->member.round, a->m->moe_index[lane->pass.layer], a->n_chunks);
    sl_wire_return v = {0};
    if (*payload) {
        sl_status st = sl_wire_return_decode_columns(
            h, (sl_span){(*payload)->data, (*payload)->len}, a->m,
            sl_worker_row_width(a->w, *payload), (sl_wire_format)a->w->plan.wire, &v, err);
        if (st == SL_OK) st = sl_far_find(a->w, *payload, v.rows, &v.data, err);
        if (st != SL_OK) return st;
    } else if (h->rows) {
        return sl_fail(err, SL_ERR_PROTOCOL, "%u rows without a payload", h->rows);
    }
    if (h->flags & SL_WIRE_SET) {
        sl_idset set;
        if (!last || expert_index != 0 || v.n_set > a->w->attention.n)
            return sl_fail(err, SL_ERR_PROTOCOL, "a next set of %u in layer %u from expert %u",
                           v.n_set, h->layer, expert_index);
        sl_status st = sl_idset_check(v.set, v.n_set, &set, err);
        if (st == SL_OK) st = sl_idset_copy(&set, &lane->next, err); /* reserved */
        if (st != SL_OK) return st;
        if (!sl_resolve_hear(&a->resolve, v.groups))
            return sl_fail(err, SL_ERR_PROTOCOL, "a next round of %u groups of experts, of %u",
                           v.groups, a->n_chunks);
        lane->have_next = true;
    }
    bool first = lane->again.group[group].debt == SL_DEBT_OPEN;
    if (sl_again_replied(&lane->again, group) != SL_AGAIN_WHOLE)
        return sl_fail(err, SL_ERR_PROTOCOL, "return for layer %u chunk %u, which is here",
                       h->layer, chunk);
    if ((h->flags & SL_WIRE_TIMED) && *payload)
        sl_resolve_answered(&a->resolve, lane->id, chunk, expert_index, v.task_us, v.held_us,
                            a->w->came_us);
    if (first) sl_twice_first(&a->twice, a->w->experts.ids[expert_index], h->rows);
    *reply = (sl_reply){.payload = *payload, .view = v, .here = true};
    *payload = NULL;
    /* The device packs an attempt for it: the lane goes on when that is through. */
    if (!lane->asks || lane->ask_of != group) sl_turns_reply(lane->turns, lane->id);
    return SL_OK;
}

/* ---- life ---- */

/* What it owes is asked of others; it may still answer. */
static void spare(sl_lane *lane, uint32_t expert_index) {
    sl_attn *a = lane->attn;
    sl_again_spare(&lane->again, expert_index);
    for (uint32_t i = expert_index; i < lane->again.n_groups; i += a->n_experts) {
        const sl_again_group *g = &lane->again.group[i];
        if (g->debt == SL_DEBT_OPEN)
            sl_twice_asked(&a->twice, a->w->experts.ids[expert_index], a->w->plan.epoch, g->rows);
    }
}

void sl_lane_lose(sl_lane *lane, uint32_t expert_index, bool gone) {
    bool joins = lane->member.state == SL_MEMBER_JOINING;
    if (gone)
        sl_again_lost(&lane->again, expert_index);
    else
        spare(lane, expert_index);
    if (lane->attn->leaderless && joins) end_last_round(lane);
}

/* What came to an attempt is needed no more; here: nor was it used. */
static void drop_answer(void *ctx, uint32_t call) {
    sl_lane *lane = ctx;
    sl_attn *a = lane->attn;
    sl_reply *answer = &lane->answer[call];
    uint32_t id = a->w->experts.ids[lane->again.call[call].worker];
    if (answer->here) sl_twice_late(&a->twice, id, answer->view.rows);
    sl_net_buf_give(a->w->net, answer->payload);
    *answer = (sl_reply){0};
}

void sl_lane_reset(sl_lane *lane) {
    sl_worker *w = lane->attn->w;
    if (sl_turns_in_flight(lane->turns, lane->id)) w->n.rows_lost += lane->n_away;
    if (lane->pass.n > 0) w->n.steps_given_up++;
    give_replies(lane);
    sl_again_reset(&lane->again);
    lane->asks = false;
    sl_resolve_drop(&lane->attn->resolve, lane->id);
    sl_outgoing_drop(&lane->pass);
    if (lane->turns->in_head == lane->id) sl_attn_drop_head(lane->attn);
    sl_turns_drop(lane->turns, lane->id);
    lane->begun = false;
    lane->pass.n = 0;
    sl_step_drop(&lane->pass.step);
    sl_member_reset(&lane->member, w->plan.epoch);
}

sl_status sl_lane_create(sl_attn *a, sl_turns *turns, uint32_t id, sl_lane *lane, sl_err *err) {
    size_t rows = a->max_rows, experts = a->n_experts, members = a->w->attention.n;
    lane->attn = a;
    lane->turns = turns;
    lane->id = id;
    lane->covered = sl_alloc(rows, sizeof *lane->covered);
    lane->reply = sl_alloc(experts * a->n_chunks, sizeof *lane->reply);
    if (a->cut.group) {
        lane->sent_row = sl_alloc(rows, experts * sizeof *lane->sent_row);
        lane->n_sent = sl_alloc(experts, sizeof *lane->n_sent);
    }
    if (!lane->covered || !lane->reply || (a->cut.group && (!lane->sent_row || !lane->n_sent)))
        return sl_fail(err, SL_ERR_NOMEM, "lane of %zu rows", rows);
    sl_status st = sl_pass_create(a, id, &lane->pass, err);
    if (st == SL_OK)
        st = sl_again_create(a->n_chunks, a->n_experts, drop_answer, lane, &lane->again, err);
    if (st == SL_OK) st = sl_idset_reserve(&lane->next, members, err);
    if (st == SL_OK) st = sl_member_init(&lane->member, a->w->id, members, err);
    if (st == SL_OK) sl_member_reset(&lane->member, a->w->plan.epoch);
    return st;
}

void sl_lane_free(sl_lane *lane) {
    if (!lane->attn) return;
    if (lane->reply) give_replies(lane);
    if (lane->again.group) sl_again_reset(&lane->again);
    sl_again_free(&lane->again);
    sl_pass_free(&lane->pass);
    void *const owned[] = {lane->covered, lane->reply, lane->sent_row, lane->n_sent, lane->answer};
    for (size_t i = 0; i < SL_LEN(owned); i++) sl_free(owned[i]);
    sl_member_free(&lane->member);
    sl_idset_free(&lane->next);
}
