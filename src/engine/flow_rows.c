/* Rows of schedule aep: their storage, the way out to the experts, the way back, the merge. */
#include "base/mutate.h"
#include "engine/flow.h"
#include "engine/outgoing.h"

#include <string.h>

static size_t row_bytes(const sl_flow *f) {
    return sl_wire_row_bytes((sl_wire_format)f->a->w->plan.wire, f->a->m->d_model);
}

/* ---- storage ---- */

void sl_flow_take_rows(sl_flow *f, uint32_t slot, uint32_t rows) {
    sl_part *p = &f->part[slot];
    SL_ASSERT(rows > 0 && rows <= f->n_free);
    p->first = f->free_row;
    p->rows = rows;
    for (uint32_t i = 0, r = f->free_row;; i++, r = f->next[r]) {
        f->slot[r] = slot;
        f->tag[r] = sl_tag_make(slot, f->lane->slot[slot].life->generation, r);
        f->owed[r] = 0;
        if (i + 1 < rows) continue;
        f->free_row = f->next[r];
        f->next[r] = SL_FLOW_NONE;
        break;
    }
    f->n_free -= rows;
}

void sl_flow_give_rows(sl_flow *f, uint32_t slot) {
    sl_part *p = &f->part[slot];
    uint32_t last = p->first;
    for (uint32_t r = p->first; r != SL_FLOW_NONE; r = f->next[r]) {
        f->slot[r] = SL_FLOW_NONE;
        f->owed[r] = 0;
        last = r;
    }
    f->next[last] = f->free_row;
    f->free_row = p->first;
    f->n_free += p->rows;
    p->rows = 0;
}

void sl_flow_load(sl_flow *f, uint32_t slot) {
    const sl_part *p = &f->part[slot];
    sl_lane *lane = f->lane;
    sl_slot *s = &lane->slot[slot];
    size_t k = f->a->m->top_k;
    uint32_t pos = s->life->done;
    SL_ASSERT(s->life->used && s->life->generation == p->generation);
    s->first_row = lane->n_rows;
    for (uint32_t r = p->first; r != SL_FLOW_NONE; r = f->next[r], pos++) {
        uint32_t at = lane->n_rows++;
        f->batch_row[at] = r;
        lane->row_id[at] = s->tokens[pos];
        lane->row_pos[at] = pos;
        lane->row_pages[at] = s->pages;
        lane->row_tag[at] = f->tag[r];
        for (size_t j = 0; j < k; j++) {
            bool lost = SL_MUTATION(LOST_ROW) && j > 0 && f->tag[r] % 97 == 5;
            lane->piece[at * k + j] = lost ? NULL : f->piece + (r * k + j) * row_bytes(f);
        }
    }
}

void sl_flow_merge(sl_flow *f, bool returned) {
    sl_lane *lane = f->lane;
    size_t row = f->a->m->d_model * sizeof *f->x;
    if (!returned) {
        for (uint32_t i = 0; i < lane->n_rows; i++)
            memcpy(lane->x + i * f->a->m->d_model, f->x + f->batch_row[i] * f->a->m->d_model, row);
        return;
    }
    size_t bytes = f->a->max_rows * row;
    sl_lane_add(lane, &(sl_stage_merge){.x = sl_mem_host(f->x, bytes),
                                        .shared = sl_mem_host(f->shared, f->shared ? bytes : 0),
                                        .from = f->batch_row,
                                        .piece = lane->piece,
                                        .wire = (sl_wire_format)f->a->w->plan.wire});
    f->a->w->n.rows_merged += lane->n_rows;
}

void sl_flow_store(const sl_flow *f, const float *rows, float *out) {
    size_t d = f->a->m->d_model;
    for (uint32_t i = 0; i < f->lane->n_rows; i++)
        memcpy(out + f->batch_row[i] * d, rows + i * d, d * sizeof *out);
}

/* ---- out ---- */

/* Notes who owes what and counts it. */
static void assign(sl_flow *f, sl_outgoing *out) {
    const sl_lane *lane = f->lane;
    uint32_t k = f->a->m->top_k;
    sl_lane_assign(f->lane);
    for (uint32_t i = 0; i < lane->n_rows; i++) {
        uint32_t r = f->batch_row[i];
        f->owed[r] = k == 64 ? UINT64_MAX : (1ull << k) - 1;
        memcpy(f->owner + (size_t)r * k, lane->owner + (size_t)i * k, k * sizeof *f->owner);
        for (uint32_t j = 0; j < k; j++) {
            sl_outgoing *o = &out[lane->owner[(size_t)i * k + j]];
            if (o->last_row != i) o->n.rows++;
            o->last_row = i;
            o->n.n_entries++;
        }
    }
}

static void fill(const sl_flow *f, sl_outgoing *out) {
    const sl_lane *lane = f->lane;
    uint32_t k = f->a->m->top_k;
    for (uint32_t i = 0; i < lane->n_rows; i++) {
        for (uint32_t j = 0; j < k; j++) {
            sl_outgoing *o = &out[lane->owner[(size_t)i * k + j]];
            if (o->last_row != i) sl_outgoing_row(lane, i, true, o);
            sl_outgoing_entry(lane, i, j, o);
        }
    }
}

sl_status sl_flow_dispatch(sl_flow *f, uint32_t layer, uint64_t epoch) {
    sl_worker *w = f->a->w;
    sl_outgoing out[SL_PLAN_MAX_WORKERS];
    sl_status st = SL_OK;
    for (uint32_t i = 0; i < w->n_expert_workers; i++)
        out[i] = (sl_outgoing){.last_row = SL_NO_ROW};
    assign(f, out);
    for (uint32_t i = 0; st == SL_OK && i < w->n_expert_workers; i++)
        if (out[i].n.rows) st = sl_outgoing_layout(f->a, NULL, &out[i]);
    if (st == SL_OK) fill(f, out);
    w->n.rows_created += f->lane->n_rows;
    for (uint32_t i = 0; i < w->n_expert_workers; i++) {
        const sl_wire_header h = {.kind = SL_MSG_DISPATCH,
                                  .round = epoch,
                                  .layer = f->a->m->moe_index[layer],
                                  .rows = out[i].n.rows};
        if (st == SL_ERR_NOMEM)
            sl_net_buf_give(w->net, out[i].buf);
        else if (out[i].buf) /* a lost expert worker is reported by its connection */
            st = sl_worker_send(w, w->expert_worker[i], h, out[i].buf);
    }
    return st == SL_ERR_NOMEM ? st : SL_OK;
}

/* ---- back ---- */

sl_status sl_flow_collect(sl_flow *f, uint32_t expert_index, uint32_t moe, const sl_wire_return *v,
                          uint32_t i, uint32_t *slot, sl_err *err) {
    const sl_model_spec *m = f->a->m;
    uint32_t r = sl_tag_index(v->tag[i]), k = m->top_k;
    uint64_t mask = v->mask[i];
    *slot = SL_FLOW_NONE;
    if (r >= f->a->max_rows || f->slot[r] == SL_FLOW_NONE || f->tag[r] != v->tag[i])
        return sl_fail(err, SL_ERR_PROTOCOL, "returned row %u has unknown tag %016llx", i,
                       (unsigned long long)v->tag[i]);
    sl_part *p = &f->part[f->slot[r]];
    if (p->state != SL_PART_AWAY || m->moe_index[p->layer] != moe)
        return sl_fail(err, SL_ERR_PROTOCOL, "returned row %u of layer %u is not with the experts",
                       i, moe);
    uint32_t j = mask ? (uint32_t)__builtin_ctzll(mask) : k;
    if (j >= k || (mask & (mask - 1)) || !(mask & f->owed[r]) ||
        f->owner[(size_t)r * k + j] != expert_index)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "returned row %u covers positions %llx, one of %llx at its owner is awaited",
                       i, (unsigned long long)mask, (unsigned long long)f->owed[r]);
    f->owed[r] &= ~mask;
    memcpy(f->piece + ((size_t)r * k + j) * row_bytes(f), v->data + i * row_bytes(f), row_bytes(f));
    if (--p->missing == 0) *slot = f->slot[r];
    return SL_OK;
}
