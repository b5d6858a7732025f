/* A lane's rows to the experts and back: one message per expert worker and chunk of a layer, and
 * the merge in fixed order. */
#include "engine/attn/lane.h"
#include "engine/attn/outgoing.h"

#include "base/log.h"
#include "base/mutate.h"

#include <string.h>

/* What a chunk is made of: rows first .. end-1 of the step, and of their experts those of `group`
 * (UINT32_MAX: all). */
typedef struct selection {
    uint32_t first, end, group;
} selection;

static selection chunk_of(const sl_lane *lane, uint32_t chunk) {
    if (lane->attn->cut.group) return (selection){0, lane->pass.n, chunk};
    selection s = {.group = UINT32_MAX};
    sl_cut_rows(lane->pass.n, lane->pass.step.n_cut, chunk, &s.first, &s.end);
    return s;
}

/* Where entry rj of the lane goes in a chunk, NULL: it is not of the chunk. */
static sl_outgoing *goes_to(const sl_lane *lane, const selection *s, size_t rj, sl_outgoing *out) {
    const uint32_t *group = lane->attn->cut.group;
    if (s->group != UINT32_MAX && group[lane->pass.expert[rj]] != s->group) return NULL;
    return &out[lane->pass.owner[rj]];
}

/* Whether that expert worker has the data of row r from an earlier chunk of the layer. */
static bool has_data(const sl_lane *lane, uint32_t r, uint32_t worker) {
    if (!lane->sent_row) return false;
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
                o->n.n_old += has_data(lane, r, (uint32_t)(o - out));
            }
            o->last_row = r;
            o->n.n_entries++;
        }
    }
}

/* Begins the next row of a message: with its data, or with where that was. */
static void begin_row(sl_lane *lane, uint32_t r, uint32_t worker, bool old, sl_outgoing *o) {
    size_t sent = (size_t)r * lane->attn->n_experts + worker;
    if (old)
        o->view.old[o->at_row - (o->n.rows - o->n.n_old)] = lane->sent_row[sent];
    else if (lane->sent_row)
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
            if (!o || has_data(lane, r, (uint32_t)(o - out)) != old) continue;
            if (o->last_row != r) begin_row(lane, r, (uint32_t)(o - out), old, o);
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
        out[i] = (sl_outgoing){.n = {.n_set = n_set}, .last_row = SL_NO_ROW};
    count_entries(lane, s, out);
    for (uint32_t i = 0; st == SL_OK && i < n; i++) {
        if (out[i].n.rows || n_set)
            st = sl_outgoing_layout(lane->attn, lane->member.set.ids, &out[i]);
    }
    if (st != SL_OK) return st;
    fill_entries(lane, s, false, out);
    if (lane->sent_row) fill_entries(lane, s, true, out);
    for (uint32_t i = 0; lane->sent_row && i < n; i++)
        lane->n_sent[i] += out[i].n.rows - out[i].n.n_old;
    return SL_OK;
}

static bool carries_set(const sl_lane *lane) {
    uint32_t moe = lane->attn->m->moe_index[lane->pass.layer];
    return sl_member_needs_set(&lane->member, moe, lane->n_left);
}

static void give_up(sl_lane *lane, sl_status st) {
    sl_log(SL_LOG_WARN, "lane", "dispatch: %s", sl_status_text(st));
    sl_outgoing_drop(&lane->pass);
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

/* To every expert worker. */
static sl_status send_chunk(sl_lane *lane) {
    sl_worker *w = lane->attn->w;
    bool with_set = carries_set(lane), last = lane->n_left == lane->attn->n_chunks - 1;
    sl_status st = SL_OK;
    for (uint32_t i = 0; st == SL_OK && i < lane->attn->n_experts; i++) {
        sl_outgoing *o = &lane->pass.out[i];
        const sl_wire_header h = {.kind = SL_MSG_DISPATCH,
                                  .flags = (with_set ? SL_WIRE_SET : 0) |
                                           (lane->stay && last ? SL_WIRE_STAY : 0) |
                                           (o->n.n_old ? SL_WIRE_OLD : 0),
                                  .round = lane->member.round,
                                  .lane = lane->id,
                                  .layer = lane->attn->m->moe_index[lane->pass.layer],
                                  .chunk = lane->n_left,
                                  .rows = o->n.rows};
        sl_buf *b = o->buf;
        o->buf = NULL;
        st = sl_worker_send(w, w->experts.ids[i], h, b);
    }
    return st;
}

void sl_lane_leave(sl_lane *lane, bool stay) {
    uint32_t n = lane->attn->n_experts;
    memset(lane->covered, 0, lane->pass.n * sizeof *lane->covered);
    sl_outgoing_assign(&lane->pass);
    if (lane->sent_row) {
        memset(lane->sent_row, 0xFF, (size_t)lane->pass.n * n * sizeof *lane->sent_row);
        memset(lane->n_sent, 0, n * sizeof *lane->n_sent);
    }
    lane->pass.leaving = true;
    lane->stay = stay;
    pack_chunk(lane);
}

bool sl_lane_left(sl_lane *lane) {
    if (lane->pass.leaving) {
        sl_status st = send_chunk(lane);
        lane->n_left++;
        if (st != SL_OK)
            give_up(lane, st);
        else if (lane->n_left < lane->attn->n_chunks)
            pack_chunk(lane);
    }
    if (lane->pass.leaving && lane->n_left < lane->attn->n_chunks) return false;
    lane->pass.leaving = false;
    lane->attn->w->n.rows_created += lane->pass.n;
    return true;
}

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

static sl_status collect(sl_lane *lane, uint32_t expert, const sl_wire_return *v, sl_err *err) {
    const sl_attn *a = lane->attn;
    uint32_t k = a->m->top_k;
    uint64_t all = k == 64 ? UINT64_MAX : (1ull << k) - 1;
    size_t row_bytes = sl_wire_row_bytes((sl_wire_format)a->w->plan.wire, a->m->d_model);
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

sl_status sl_lane_merge(sl_lane *lane, uint32_t *offender, sl_err *err) {
    sl_attn *a = lane->attn;
    uint32_t k = a->m->top_k;
    uint64_t all = k == 64 ? UINT64_MAX : (1ull << k) - 1;
    memset(lane->pass.piece, 0, (size_t)lane->pass.n * k * sizeof *lane->pass.piece);
    for (uint32_t i = 0; i < a->n_experts * a->n_chunks; i++) {
        uint32_t expert = i % a->n_experts;
        *offender = a->w->experts.ids[expert];
        sl_status st = collect(lane, expert, &lane->reply[i].view, err);
        if (st != SL_OK) return sl_err_prefix(err, "expert worker %u", *offender);
    }
    for (uint32_t r = 0; r < lane->pass.n; r++) {
        if (lane->covered[r] != all) {
            *offender = debtor(lane, r, all);
            return sl_fail(err, SL_ERR_PROTOCOL, "row %u came back with positions %llx of %llx", r,
                           (unsigned long long)lane->covered[r], (unsigned long long)all);
        }
    }
    const sl_stage_call c = sl_pass_call(&lane->pass, SL_OP_MERGE);
    sl_pass_add(&lane->pass, &(sl_stage_merge){.x = c.rows.x,
                                               .shared = a->m->d_ff_shared ? c.rows.h : (sl_mem){0},
                                               .piece = lane->pass.piece,
                                               .wire = (sl_wire_format)a->w->plan.wire});
    return SL_OK;
}
