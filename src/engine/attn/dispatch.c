/* A lane's rows to the experts and back: one message per expert worker and chunk that a layer has,
 * once more to others where one of them is lost, and the merge in fixed order. */
#include "engine/attn/lane.h"
#include "engine/attn/outgoing.h"

#include "base/log.h"
#include "base/mutate.h"
#include "sched/order.h"

#include <string.h>

/* What a chunk is made of: rows first .. end-1 of the step, and of their experts those of `group`
 * (UINT32_MAX: all). `lost`: of these, those that this expert worker owes, which go to others now
 * (UINT32_MAX: all, to their owners). */
typedef struct selection {
    uint32_t first, end, group, lost;
} selection;

static selection chunk_of(const sl_lane *lane, uint32_t chunk) {
    selection s = {.end = lane->n_away, .group = UINT32_MAX, .lost = UINT32_MAX};
    if (lane->pass.step.chunking == SL_CHUNK_EXPERTS)
        s.group = chunk;
    else
        sl_cut_rows(lane->n_away, lane->pass.step.n_cut, chunk, &s.first, &s.end);
    return s;
}

/* Where entry rj of the lane goes in a chunk, NULL: it is not of the chunk. */
static sl_outgoing *goes_to(const sl_lane *lane, const selection *s, size_t rj, sl_outgoing *out) {
    const sl_pass *p = &lane->pass;
    if (s->group != UINT32_MAX &&
        sl_cut_group(&lane->attn->cut, p->step.n_cut, p->expert[rj]) != s->group)
        return NULL;
    if (s->lost == UINT32_MAX) return &out[p->owner[rj]];
    return s->lost == p->owner[rj] ? &out[sl_outgoing_host(p, rj)] : NULL;
}

/* Whether that expert worker has the data of row r from an earlier chunk of the layer. */
static bool has_data(const sl_lane *lane, const selection *s, uint32_t r, uint32_t worker) {
    if (!lane->sent_row || s->lost != UINT32_MAX) return false;
    return lane->sent_row[(size_t)r * lane->attn->n_experts + worker] < lane->n_sent[worker];
}

static void count_entries(const sl_lane *lane, const selection *s, sl_outgoing *out) {
    uint32_t k = lane->attn->m->top_k;
    for (uint32_t r = s->first; r < s->end; r++) {
        for (uint32_t j = 0; j < k; j++) {
            sl_outgoing *o = goes_to(lane, s, (size_t)r * k + j, out);
            if (!o) continue;
            if (o->last_row != r) {
                o->n.rows++;
                o->n.n_old += has_data(lane, s, r, (uint32_t)(o - out));
            }
            o->last_row = r;
            o->n.n_entries++;
        }
    }
}

/* Begins the next row of a message: with its data, or with where that was. */
static void begin_row(sl_lane *lane, const selection *s, uint32_t r, uint32_t worker, bool old,
                      sl_outgoing *o) {
    size_t sent = (size_t)r * lane->attn->n_experts + worker;
    if (old)
        o->view.old[o->at_row - (o->n.rows - o->n.n_old)] = lane->sent_row[sent];
    else if (lane->sent_row && s->lost == UINT32_MAX)
        lane->sent_row[sent] = lane->n_sent[worker] + o->at_row;
    sl_outgoing_row(&lane->pass, r, !old, o);
}

/* Writes the rows whose data travels now (old: those whose data is there already). */
static void fill_entries(sl_lane *lane, const selection *s, bool old, sl_outgoing *out) {
    uint32_t k = lane->attn->m->top_k;
    for (uint32_t i = 0; i < lane->attn->n_experts; i++) out[i].last_row = SL_NO_ROW;
    for (uint32_t r = s->first; r < s->end; r++) {
        for (uint32_t j = 0; j < k; j++) {
            sl_outgoing *o = goes_to(lane, s, (size_t)r * k + j, out);
            if (!o || has_data(lane, s, r, (uint32_t)(o - out)) != old) continue;
            if (o->last_row != r) begin_row(lane, s, r, (uint32_t)(o - out), old, o);
            sl_outgoing_entry(&lane->pass, r, j, o);
        }
    }
}

static sl_status build_chunk(sl_lane *lane, const selection *s, uint32_t n_set) {
    uint32_t n = lane->attn->n_experts;
    sl_outgoing *out = lane->pass.out;
    sl_status st = SL_OK;
    lane->pass.n_pack = 0;
    for (uint32_t i = 0; i < n; i++)
        out[i] = (sl_outgoing){
            .n = {.n_set = n_set}, .last_row = SL_NO_ROW, .far = s->lost == UINT32_MAX};
    count_entries(lane, s, out);
    if (s->lost == UINT32_MAX) sl_outgoing_spread(lane->attn, out);
    for (uint32_t i = 0; st == SL_OK && i < n; i++) {
        if (out[i].n.rows || n_set)
            st = sl_outgoing_layout(lane->attn, i, lane->member.set.ids, &out[i]);
    }
    if (st != SL_OK) return st;
    lane->pass.n_spread = sl_outgoing_list(lane->attn, out, lane->pass.spread);
    fill_entries(lane, s, false, out);
    if (!lane->sent_row || s->lost != UINT32_MAX) return SL_OK;
    fill_entries(lane, s, true, out);
    for (uint32_t i = 0; i < n; i++) lane->n_sent[i] += out[i].n.rows - out[i].n.n_old;
    return SL_OK;
}

static bool carries_set(const sl_lane *lane) {
    uint32_t moe = lane->attn->m->moe_index[lane->pass.layer];
    return sl_member_needs_set(&lane->member, moe, lane->n_left);
}

/* Nobody would answer what was not sent. */
static void give_up(sl_lane *lane, sl_status st) {
    sl_worker *w = lane->attn->w;
    sl_outgoing_drop(&lane->pass);
    if (!w->stop) sl_worker_stop(w, sl_fail(&w->stop_err, st, "messages of %u rows", lane->pass.n));
}

/* The next chunk goes to the device. */
static void pack_chunk(sl_lane *lane) {
    const selection s = chunk_of(lane, lane->n_left);
    sl_status st = build_chunk(lane, &s, carries_set(lane) ? (uint32_t)lane->member.set.n : 0);
    if (st == SL_OK)
        sl_pass_pack(&lane->pass);
    else
        give_up(lane, st);
}

/* Rows that come back for a message: one for each of its own, or for each of their positions. */
static uint32_t answer_rows(const sl_attn *a, const sl_outgoing *o) {
    return a->w->plan.exact ? o->n.n_entries : o->n.rows;
}

/* The chunk's rows of expert worker i, or the word that there are none. With a lost one the rows of
 * its that are on their way already are asked of others later. */
static sl_status send_message(sl_lane *lane, uint32_t i, sl_wire_header h, sl_buf *b) {
    sl_attn *a = lane->attn;
    uint32_t id = a->w->experts.ids[i];
    sl_again_sent(&lane->again, h.chunk * a->n_experts + i, a->lost[id],
                  answer_rows(a, &lane->pass.out[i]));
    if (a->lost[id]) {
        sl_net_buf_give(a->w->net, b);
        if (h.rows == 0) sl_turns_reply(lane->turns, lane->id);
        return SL_OK;
    }
    sl_status st = sl_worker_send(a->w, id, h, b);
    sl_attn_sent(a, lane->id, id, 1, h.rows);
    const sl_wire_counts *n = &lane->pass.out[i].n;
    sl_resolve_sent(&a->resolve, lane->id, h.chunk, i, n->n_entries, n->rows - n->n_old,
                    sl_resolve_is_on(&a->resolve) ? sl_clock_now_us(&a->w->clock) : 0);
    /* Which is heard of next. */
    return st == SL_ERR_PEER_DOWN || st == SL_ERR_NOMEM ? SL_OK : st;
}

static uint32_t chunks_out(const sl_lane *lane) {
    const sl_attn *a = lane->attn;
    return sl_cut_sent(a->n_chunks, lane->pass.step.n_cut, lane->n_away,
                       sl_is_last_moe(a->m, lane->pass.layer));
}

/* The other chunks are as if they had been answered. */
static void leave_out_rest(sl_lane *lane) {
    const sl_attn *a = lane->attn;
    for (; lane->n_left < a->n_chunks; lane->n_left++) {
        for (uint32_t i = 0; i < a->n_experts; i++) {
            sl_again_sent(&lane->again, lane->n_left * a->n_experts + i, true, 0);
            sl_turns_reply(lane->turns, lane->id);
        }
    }
}

/* To every expert worker. */
static sl_status send_chunk(sl_lane *lane) {
    bool with_set = carries_set(lane), last = lane->n_left == lane->attn->n_chunks - 1;
    bool ends = !last && lane->n_left + 1 == chunks_out(lane);
    sl_status st = SL_OK;
    const uint32_t n = lane->attn->n_experts;
    for (uint32_t k = 0; st == SL_OK && k < n; k++) {
        const uint32_t i = sl_order_kth(lane->attn->w->id, n, k);
        sl_outgoing *o = &lane->pass.out[i];
        const sl_wire_header h = {
            .kind = SL_MSG_DISPATCH,
            .flags = (with_set ? SL_WIRE_SET : 0) | (lane->stay && last ? SL_WIRE_STAY : 0) |
                     (ends ? SL_WIRE_ENDS : 0) | (o->n.n_old ? SL_WIRE_OLD : 0),
            .round = lane->member.round,
            .lane = lane->id,
            .layer = lane->attn->m->moe_index[lane->pass.layer],
            .chunk = lane->n_left,
            .rows = o->n.rows};
        sl_buf *b = o->buf;
        o->buf = NULL;
        st = send_message(lane, i, h, b);
    }
    return st;
}

void sl_lane_leave(sl_lane *lane, bool stay) {
    uint32_t n = lane->attn->n_experts;
    memset(lane->covered, 0, lane->pass.n * sizeof *lane->covered);
    if (lane->n_away) sl_outgoing_assign(&lane->pass);
    if (lane->sent_row) {
        memset(lane->sent_row, 0xFF, (size_t)lane->pass.n * n * sizeof *lane->sent_row);
        memset(lane->n_sent, 0, n * sizeof *lane->n_sent);
    }
    lane->pass.leaving = true;
    lane->stay = stay;
    sl_resolve_drop(&lane->attn->resolve, lane->id);
    pack_chunk(lane);
}

bool sl_lane_left(sl_lane *lane) {
    if (lane->pass.leaving) {
        sl_status st = send_chunk(lane);
        lane->n_left++;
        if (st != SL_OK)
            give_up(lane, st);
        else if (lane->n_left < chunks_out(lane))
            pack_chunk(lane);
        else
            leave_out_rest(lane);
    }
    if (lane->pass.leaving && lane->n_left < lane->attn->n_chunks) return false;
    lane->pass.leaving = false;
    lane->attn->w->n.rows_created += lane->n_away;
    return true;
}

/* ---- what a lost expert worker owes ---- */

/* Room for the answers of as many calls as there can be now. */
static sl_status reserve_answers(sl_lane *lane, sl_err *err) {
    uint32_t n = lane->again.cap;
    if (n <= lane->answers) return SL_OK;
    sl_reply *bigger = sl_grow(lane->answer, lane->answers, n, sizeof *bigger);
    if (!bigger) return sl_fail(err, SL_ERR_NOMEM, "%u answers", n);
    lane->answer = bigger;
    lane->answers = n;
    return SL_OK;
}

/* The messages of an attempt, without their data. */
static sl_status build_attempt(sl_lane *lane, uint32_t group, sl_err *err) {
    sl_attn *a = lane->attn;
    selection s = chunk_of(lane, group / a->n_experts);
    s.lost = group % a->n_experts;
    sl_status st = build_chunk(lane, &s, 0);
    if (st != SL_OK) return sl_fail(err, st, "messages of rows that go again");
    lane->attempt = sl_again_begin(&lane->again, group);
    for (uint32_t i = 0; st == SL_OK && i < a->n_experts; i++) {
        if (lane->pass.out[i].n.rows == 0) continue;
        st = sl_again_with(&lane->again, group, i, err);
    }
    return st == SL_OK ? reserve_answers(lane, err) : st;
}

/* The device packs the rows beside what the lane's task asks of it. */
static void begin_attempt(sl_lane *lane, uint32_t group) {
    sl_pass *p = &lane->pass;
    const sl_event event = p->event;
    sl_err err;
    p->leaving = true;
    if (build_attempt(lane, group, &err) != SL_OK) {
        sl_log(SL_LOG_WARN, "lane", "%s", err.msg);
        sl_outgoing_drop(p);
        sl_attn_give_up(lane->attn);
        return;
    }
    if (sl_again_end(&lane->again, group)) {
        p->leaving = false;
        sl_turns_reply(lane->turns, lane->id);
        return;
    }
    sl_pass_pack(p);
    lane->ask_of = group;
    lane->asks = true;
    lane->asked = p->event;
    p->event = event;
}

/* While it was packed its group was answered, or somebody who was to stand in was lost. */
static void withdraw_attempt(sl_lane *lane) {
    sl_outgoing_drop(&lane->pass);
    sl_again_withdraw(&lane->again, lane->attempt);
    lane->asks = false;
    if (lane->again.group[lane->ask_of].phase == SL_AGAIN_HERE)
        sl_turns_reply(lane->turns, lane->id);
}

static void send_attempt(sl_lane *lane) {
    sl_attn *a = lane->attn;
    if (!sl_again_is_tried(&lane->again, lane->ask_of, lane->attempt)) {
        withdraw_attempt(lane);
        return;
    }
    for (uint32_t i = 0; i < a->n_experts; i++) {
        sl_outgoing *o = &lane->pass.out[i];
        const sl_wire_header h = {.kind = SL_MSG_DISPATCH,
                                  .flags = SL_WIRE_AGAIN,
                                  .attempt = lane->attempt,
                                  .lane = lane->id,
                                  .layer = a->m->moe_index[lane->pass.layer],
                                  .chunk = lane->ask_of / a->n_experts,
                                  .rows = o->n.rows};
        const uint32_t id = a->w->experts.ids[i];
        if (!o->buf) continue;
        a->w->n.rows_reissued += h.rows;
        if (sl_worker_send(a->w, id, h, o->buf) == SL_OK) /* one that is lost is heard of */
            sl_twice_asked(&a->twice, id, a->w->plan.epoch, answer_rows(a, o));
        sl_attn_sent(a, lane->id, id, 1, h.rows);
        o->buf = NULL;
    }
    lane->pass.leaving = lane->asks = false;
}

bool sl_lane_ask_again(sl_lane *lane) {
    bool leaves = lane->begun && lane->task.kind == SL_TURN_BLOCK;
    if (lane->asks) {
        if (!sl_device_is_done(lane->attn->w->device, &lane->asked)) return false;
        send_attempt(lane);
        return true;
    }
    uint32_t group = leaves ? SL_AGAIN_NONE : sl_again_next(&lane->again);
    if (group == SL_AGAIN_NONE) return false;
    begin_attempt(lane, group);
    return true;
}

/* ---- back ---- */

/* The lane row that a tag names, or UINT32_MAX when it is not of the running step. */
static uint32_t row_of(const sl_lane *lane, uint64_t tag) {
    uint32_t slot = sl_tag_slot(tag);
    if (slot >= lane->attn->max_slots) return UINT32_MAX;
    uint64_t r = (uint64_t)lane->pass.slot[slot].first_row + sl_tag_index(tag);
    return r < lane->pass.n && lane->pass.tag[r] == tag ? (uint32_t)r : UINT32_MAX;
}

/* Whether all positions of the mask are at that expert worker. */
static bool owes(const sl_lane *lane, uint32_t r, uint64_t mask, uint32_t expert) {
    const uint32_t *owner = lane->pass.owner + (size_t)r * lane->attn->m->top_k;
    for (; mask; mask &= mask - 1)
        if (owner[__builtin_ctzll(mask)] != expert) return false;
    return true;
}

static sl_status collect(sl_lane *lane, uint32_t expert, const sl_wire_return *v,
                         const sl_buf *payload, sl_err *err) {
    const sl_attn *a = lane->attn;
    const sl_spread_name spread = payload ? payload->spread : (sl_spread_name){0};
    uint32_t k = a->m->top_k;
    uint64_t all = k == 64 ? UINT64_MAX : (1ull << k) - 1;
    const size_t row_bytes =
        sl_device_row_bytes(a->w->device, &spread, (sl_wire_format)a->w->plan.wire);
    for (uint32_t i = 0; i < v->rows; i++) {
        uint32_t r = row_of(lane, v->tag[i]);
        uint64_t mask = v->mask[i];
        if (r == UINT32_MAX)
            return sl_fail(err, SL_ERR_PROTOCOL, "returned row %u has unknown tag %016llx", i,
                           (unsigned long long)v->tag[i]);
        if (mask == 0 || (mask & ~all) || (mask & lane->covered[r]))
            return sl_fail(err, SL_ERR_PROTOCOL,
                           "returned row %u covers positions %llx, row has %llx of %llx", i,
                           (unsigned long long)mask, (unsigned long long)lane->covered[r],
                           (unsigned long long)all);
        if (!owes(lane, r, mask, expert)) /* or its true owner would seem to come twice */
            return sl_fail(err, SL_ERR_PROTOCOL,
                           "returned row %u covers positions %llx, not all of which are there", i,
                           (unsigned long long)mask);
        lane->covered[r] |= mask;
        if (SL_MUTATION(LOST_ROW) && v->tag[i] % 97 == 5) continue;
        lane->pass.piece[(size_t)r * k + (uint32_t)__builtin_ctzll(mask)] = v->data + i * row_bytes;
    }
    return SL_OK;
}

/* The expert worker that owes the first position row r lacks. */
static uint32_t debtor(const sl_lane *lane, uint32_t r, uint64_t all) {
    const sl_attn *a = lane->attn;
    uint32_t j = (uint32_t)__builtin_ctzll(all & ~lane->covered[r]);
    return a->w->experts.ids[lane->pass.owner[(size_t)r * a->m->top_k + j]];
}

/* What came by attempts, in place of what its owners owed. */
static sl_status collect_answers(sl_lane *lane, uint32_t *offender, sl_err *err) {
    const sl_again *again = &lane->again;
    for (uint32_t i = 0; i < again->n_calls; i++) {
        const sl_again_call *c = &again->call[i];
        if (c->state != SL_CALL_HERE) continue;
        *offender = lane->attn->w->experts.ids[c->worker];
        const sl_reply *r = &lane->answer[i];
        sl_status st = collect(lane, c->group % lane->attn->n_experts, &r->view, r->payload, err);
        if (st != SL_OK) return sl_err_prefix(err, "expert worker %u", *offender);
    }
    return SL_OK;
}

/* The bug: what came by attempts once more. */
static void add_answers_twice(sl_lane *lane, sl_stage_merge m) {
    uint32_t k = lane->attn->m->top_k;
    size_t row_bytes = sl_wire_row_bytes(m.wire, lane->attn->m->d_model);
    bool any = false;
    m.shared = (sl_mem){0};
    memset(lane->pass.piece, 0, (size_t)lane->pass.n * k * sizeof *lane->pass.piece);
    for (uint32_t i = 0; i < lane->again.n_calls; i++) {
        const sl_wire_return *v = &lane->answer[i].view;
        bool here = lane->again.call[i].state == SL_CALL_HERE;
        for (uint32_t j = 0; here && j < v->rows; j++, any = true)
            lane->pass.piece[(size_t)row_of(lane, v->tag[j]) * k +
                             (uint32_t)__builtin_ctzll(v->mask[j])] = v->data + j * row_bytes;
    }
    if (any) sl_pass_add(&lane->pass, &m);
}

sl_status sl_lane_merge(sl_lane *lane, uint32_t *offender, sl_err *err) {
    sl_attn *a = lane->attn;
    uint32_t k = a->m->top_k, n_spread = 0;
    uint64_t all = k == 64 ? UINT64_MAX : (1ull << k) - 1;
    memset(lane->pass.piece, 0, (size_t)lane->pass.n * k * sizeof *lane->pass.piece);
    for (uint32_t i = 0; i < a->n_experts * a->n_chunks; i++) {
        uint32_t expert = i % a->n_experts;
        *offender = a->w->experts.ids[expert];
        const sl_reply *r = &lane->reply[i];
        sl_status st = collect(lane, expert, &r->view, r->payload, err);
        if (st != SL_OK) return sl_err_prefix(err, "expert worker %u", *offender);
        if (r->payload && r->payload->spread.number)
            lane->pass.spread[n_spread++] = (sl_stage_spread){
                .is = r->payload->spread, .back = true, .rows = r->view.rows, .data = r->view.data};
    }
    sl_status st = collect_answers(lane, offender, err);
    if (st != SL_OK) return st;
    for (uint32_t r = 0; r < lane->n_away; r++) {
        if (lane->covered[r] != all) {
            *offender = debtor(lane, r, all);
            return sl_fail(err, SL_ERR_PROTOCOL, "row %u came back with positions %llx of %llx", r,
                           (unsigned long long)lane->covered[r], (unsigned long long)all);
        }
    }
    if (lane->n_away == 0) return SL_OK;
    const sl_stage_call c = sl_pass_call(&lane->pass, SL_OP_MERGE);
    const sl_stage_merge m = {.x = c.rows.x,
                              .shared = sl_pass_shared_rows(&lane->pass),
                              .piece = lane->pass.piece,
                              .wire = (sl_wire_format)a->w->plan.wire,
                              .spread = lane->pass.spread,
                              .n_spread = n_spread,
                              .cut = lane->pass.cut};
    sl_pass_add(&lane->pass, &m);
    if (SL_MUTATION(DOUBLE_AGAIN)) add_answers_twice(lane, m);
    return SL_OK;
}
