/* Rows of schedule aep: their storage, the way out to the experts, the way back, the merge. */
#include "base/mutate.h"
#include "engine/attn/flow.h"
#include "engine/attn/outgoing.h"
#include "sched/order.h"

#include <string.h>

static size_t row_bytes(const sl_flow *f) {
    return sl_wire_row_bytes((sl_wire_format)f->a->w->plan.wire, f->a->m->d_model);
}

/* ---- storage ---- */

void sl_flow_take_rows(sl_flow *f, uint32_t slot) {
    uint32_t r = f->free_row, *end = &f->part[slot].first;
    for (uint32_t i = 0; i < f->parts.part[slot].rows; i++, r = f->next[r]) {
        SL_ASSERT(r != SL_FLOW_NONE);
        *end = r;
        end = &f->next[r];
        f->slot[r] = slot;
        f->tag[r] = sl_tag_make(slot, f->pass.slot[slot].life->generation, r);
        f->owed[r] = f->again[r] = 0;
    }
    *end = SL_FLOW_NONE;
    f->free_row = r;
}

/* None of its copies is with the experts any more. */
static void forget_copies(sl_flow *f, uint32_t r) {
    f->n_copies -= f->copies[r];
    f->copies[r] = 0;
}

void sl_flow_give_rows(sl_flow *f, uint32_t slot) {
    uint32_t first = f->part[slot].first, last = first;
    for (uint32_t r = first; r != SL_FLOW_NONE; r = f->next[r]) {
        forget_copies(f, r);
        f->slot[r] = SL_FLOW_NONE;
        f->owed[r] = f->again[r] = 0;
        last = r;
    }
    f->next[last] = f->free_row;
    f->free_row = first;
}

void sl_flow_load(sl_flow *f, uint32_t slot) {
    sl_pass *p = &f->pass;
    sl_slot *s = &p->slot[slot];
    size_t k = f->a->m->top_k;
    uint32_t pos = s->life->done;
    SL_ASSERT(s->life->used && s->life->generation == f->parts.part[slot].generation);
    s->first_row = p->n;
    for (uint32_t r = f->part[slot].first; r != SL_FLOW_NONE; r = f->next[r], pos++) {
        uint32_t at = sl_pass_row(p, s, pos, f->tag[r]);
        f->batch_row[at] = r;
        for (size_t j = 0; j < k; j++) {
            bool lost = SL_MUTATION(LOST_ROW) && j > 0 && f->tag[r] % 97 == 5;
            p->piece[at * k + j] = lost ? NULL : f->piece + (r * k + j) * row_bytes(f);
        }
    }
}

static void move(sl_flow *f, const sl_stage_move *m) {
    sl_stage_call c = sl_pass_call(&f->pass, SL_OP_MOVE);
    c.move = *m;
    sl_pass_submit(&f->pass, &c);
}

void sl_flow_merge(sl_flow *f, bool returned) {
    sl_pass *p = &f->pass;
    if (!returned) {
        move(f, &(sl_stage_move){.n = p->n, .from = f->x, .to = p->x, .from_row = f->batch_row});
        return;
    }
    sl_pass_add(p, &(sl_stage_merge){.x = f->x,
                                     .shared = f->shared,
                                     .from = f->batch_row,
                                     .piece = p->piece,
                                     .wire = (sl_wire_format)f->a->w->plan.wire});
    f->a->w->n.rows_merged += p->n;
}

void sl_flow_store(sl_flow *f, sl_mem rows, sl_mem out) {
    move(f, &(sl_stage_move){.n = f->pass.n, .from = rows, .to = out, .to_row = f->batch_row});
}

/* ---- out ---- */

/* Where entry ij of the pass goes; NULL: it does not leave. */
static sl_outgoing *goes_to(const sl_pass *p, size_t ij) {
    return p->owner[ij] == SL_FLOW_NONE ? NULL : &p->out[p->owner[ij]];
}

static void count(sl_flow *f) {
    const sl_pass *p = &f->pass;
    uint32_t k = f->a->m->top_k;
    for (uint32_t i = 0; i < p->n; i++) {
        for (uint32_t j = 0; j < k; j++) {
            sl_outgoing *o = goes_to(p, (size_t)i * k + j);
            if (!o) continue;
            if (o->last_row != i) o->n.rows++;
            o->last_row = i;
            o->n.n_entries++;
        }
    }
}

/* Notes who owes what, and what that is where it may have to leave again. */
static void assign(sl_flow *f) {
    const sl_pass *p = &f->pass;
    size_t k = f->a->m->top_k;
    sl_outgoing_assign(&f->pass);
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t r = f->batch_row[i];
        f->owed[r] = k == 64 ? UINT64_MAX : (1ull << k) - 1;
        f->again[r] = 0;
        memcpy(f->owner + r * k, p->owner + i * k, k * sizeof *f->owner);
        forget_copies(f, r);
        if (!f->sent.bytes) continue;
        memcpy(f->sent_expert + r * k, p->expert + i * k, k * sizeof *f->sent_expert);
        memcpy(f->sent_gate + r * k, p->gate + i * k, k * sizeof *f->sent_gate);
    }
}

static void fill(sl_flow *f) {
    sl_pass *p = &f->pass;
    uint32_t k = f->a->m->top_k;
    for (uint32_t i = 0; i < p->n; i++) {
        for (uint32_t j = 0; j < k; j++) {
            sl_outgoing *o = goes_to(p, (size_t)i * k + j);
            if (!o) continue;
            if (o->last_row != i) sl_outgoing_row(p, i, true, o);
            sl_outgoing_entry(p, i, j, o);
        }
    }
}

/* Messages of the pass's rows to those who own them now; the device packs them. */
static sl_status pack(sl_flow *f) {
    sl_pass *p = &f->pass;
    uint32_t n = f->a->n_experts;
    for (uint32_t i = 0; i < n; i++) p->out[i] = (sl_outgoing){.last_row = SL_NO_ROW};
    p->leaving = true;
    p->n_pack = 0;
    count(f);
    for (uint32_t i = 0; i < n; i++) {
        if (!p->out[i].n.rows || sl_outgoing_layout(f->a, i, NULL, &p->out[i]) == SL_OK) continue;
        sl_outgoing_drop(p);
        return SL_ERR_NOMEM;
    }
    fill(f);
    sl_pass_pack(p);
    return SL_OK;
}

sl_status sl_flow_leave(sl_flow *f) {
    assign(f);
    if (f->sent.bytes) sl_flow_store(f, f->pass.h, f->sent);
    return pack(f);
}

/* A lost expert worker owes something of the row. */
static bool owed_by_lost(const sl_flow *f, uint32_t r, uint32_t j) {
    uint32_t owner = f->owner[(size_t)r * f->a->m->top_k + j];
    return (f->owed[r] >> j & 1) && f->a->lost[f->a->w->experts.ids[owner]];
}

/* The row becomes one of the pass, with new owners of what is due, and no others. */
static void load_again(sl_flow *f, uint32_t slot, uint32_t r, uint32_t pos) {
    sl_pass *p = &f->pass;
    size_t k = f->a->m->top_k;
    uint32_t i = sl_pass_row(p, &p->slot[slot], pos, f->tag[r]);
    f->batch_row[i] = r;
    memcpy(p->expert + i * k, f->sent_expert + r * k, k * sizeof *p->expert);
    memcpy(p->gate + i * k, f->sent_gate + r * k, k * sizeof *p->gate);
    for (uint32_t j = 0; j < k; j++) {
        p->owner[i * k + j] = SL_FLOW_NONE;
        if (!owed_by_lost(f, r, j)) continue;
        p->owner[i * k + j] = f->owner[r * k + j] = sl_outgoing_host(p, i * k + j);
        f->again[r] |= 1ull << j;
    }
}

static void load_part_again(sl_flow *f, uint32_t slot) {
    uint32_t k = f->a->m->top_k, pos = f->pass.slot[slot].life->done;
    for (uint32_t r = f->part[slot].first; r != SL_FLOW_NONE; r = f->next[r], pos++) {
        bool due = false;
        for (uint32_t j = 0; j < k; j++) due = due || owed_by_lost(f, r, j);
        if (!due) continue;
        if (f->pass.n == 0) f->pass.layer = f->parts.part[slot].layer;
        load_again(f, slot, r, pos);
    }
}

/* What of a row goes to one expert worker takes the room of a row there. */
static sl_status count_copies(sl_flow *f) {
    const sl_pass *p = &f->pass;
    uint32_t k = f->a->m->top_k;
    for (uint32_t i = 0; i < p->n; i++) {
        for (uint32_t j = 0; j < k; j++) {
            const uint32_t *owner = p->owner + (size_t)i * k;
            bool first = owner[j] != SL_FLOW_NONE;
            for (uint32_t before = 0; first && before < j; before++)
                first = owner[before] != owner[j];
            f->copies[f->batch_row[i]] += first;
            f->n_copies += first;
            f->a->w->n.rows_reissued += first;
        }
    }
    return f->n_copies <= f->a->max_rows ? SL_OK : SL_ERR_LIMIT;
}

sl_status sl_flow_leave_again(sl_flow *f, bool *leave) {
    sl_pass *p = &f->pass;
    p->n = 0;
    for (uint32_t i = 0; i < f->a->max_slots; i++) {
        const sl_part *part = &f->parts.part[i];
        bool same = p->n == 0 || part->layer == p->layer;
        if (part->state == SL_PART_AWAY && same) load_part_again(f, i);
    }
    *leave = p->n > 0;
    if (!*leave) return SL_OK;
    sl_status st = count_copies(f);
    if (st != SL_OK) return st;
    move(f, &(sl_stage_move){.n = p->n, .from = f->sent, .to = p->h, .from_row = f->batch_row});
    return pack(f);
}

void sl_flow_send(sl_flow *f) {
    sl_worker *w = f->a->w;
    sl_pass *p = &f->pass;
    p->leaving = false;
    for (uint32_t k = 0; k < f->a->n_experts; k++) {
        const uint32_t i = sl_order_kth(w->id, f->a->n_experts, k);
        sl_outgoing *o = &p->out[i];
        const sl_wire_header h = {.kind = SL_MSG_DISPATCH,
                                  .wave = f->parts.wave,
                                  .layer = f->a->m->moe_index[p->layer],
                                  .rows = o->n.rows};
        if (!o->buf) continue;
        f->due = f->due || f->a->lost[w->experts.ids[i]];
        /* A lost expert worker is reported by its connection. */
        sl_status st = sl_worker_send(w, w->experts.ids[i], h, o->buf);
        if (st == SL_OK && f->phase == SL_FLOW_AGAIN)
            sl_twice_asked(&f->a->twice, w->experts.ids[i], w->plan.epoch, o->n.n_entries);
        sl_attn_sent(f->a, 0, w->experts.ids[i], o->n.n_entries, o->n.n_entries);
        o->buf = NULL;
    }
}

void sl_flow_spare(sl_flow *f, uint32_t expert_index) {
    const sl_worker *w = f->a->w;
    size_t k = f->a->m->top_k;
    uint64_t n = 0;
    for (size_t r = 0; r < f->a->max_rows; r++) {
        if (f->slot[r] == SL_FLOW_NONE) continue;
        for (uint32_t j = 0; j < k; j++) {
            bool once = (f->owed[r] & ~f->again[r]) >> j & 1; /* others are booked as they leave */
            n += once && f->owner[r * k + j] == expert_index;
        }
    }
    sl_twice_asked(&f->a->twice, w->experts.ids[expert_index], w->plan.epoch, n);
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
    const sl_part *p = &f->parts.part[f->slot[r]];
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
    if (f->again[r] & mask) sl_twice_counted(&f->a->twice, f->a->w->experts.ids[expert_index], 1);
    f->again[r] &= ~mask;
    memcpy(f->piece + ((size_t)r * k + j) * row_bytes(f), v->data + i * row_bytes(f), row_bytes(f));
    if (sl_parts_back(&f->parts, f->slot[r], 1) != SL_PART_AWAY) *slot = f->slot[r];
    return SL_OK;
}
