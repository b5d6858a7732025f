/* Parts of schedule aep: which slots get rows, which block runs next, what a batch does. */
#include "engine/flow.h"

#include "base/log.h"
#include "sched/policy.h"

#include <string.h>

/* ---- lists of parts ---- */

static void append(sl_flow *f, sl_part_list *l, uint32_t slot) {
    f->part[slot].next = SL_FLOW_NONE;
    if (l->n++ == 0)
        l->head = slot;
    else
        f->part[l->tail].next = slot;
    l->tail = slot;
}

static uint32_t take_first(sl_flow *f, sl_part_list *l) {
    uint32_t slot = l->head;
    l->head = f->part[slot].next;
    l->n--;
    return slot;
}

/* The part is ready for its layer. */
static void make_ready(sl_flow *f, uint32_t slot) {
    sl_part *p = &f->part[slot];
    sl_queue_state *q = &f->queue[p->layer];
    if (q->rows == 0) *q = (sl_queue_state){.head = f->arrivals, .epoch = p->epoch};
    f->arrivals++;
    q->epoch = SL_MIN(q->epoch, p->epoch);
    q->rows += p->rows;
    f->total[p->layer] += p->rows;
    p->state = SL_PART_READY;
    append(f, &f->list[p->layer], slot);
}

/* ---- slots get rows ---- */

static sl_part_kind kind_of(const sl_slot *s) {
    return sl_intake_kind(s->life->done, s->life->given);
}

void sl_flow_wake(sl_flow *f, const sl_slot *s) {
    uint32_t slot = (uint32_t)(s - f->lane->slot);
    sl_part *p = &f->part[slot];
    if (p->listed || p->state != SL_PART_NONE || !sl_life_has_work(s->life)) return;
    p->listed = true;
    append(f, &f->waiting[kind_of(s)], slot);
}

/* A part of `rows` rows enters block 0. */
static void begin_part(sl_flow *f, sl_part_kind kind, uint32_t rows) {
    uint32_t slot = take_first(f, &f->waiting[kind]);
    sl_part *p = &f->part[slot];
    sl_life *s = f->lane->slot[slot].life;
    SL_ASSERT(p->state == SL_PART_NONE);
    sl_flow_take_rows(f, slot, rows);
    s->in_step = true;
    p->listed = false;
    p->kind = kind;
    p->layer = 0;
    p->sample = s->done + rows >= s->given;
    p->epoch = sl_intake_epoch(p->goes_on && p->generation == s->generation, p->epoch, f->wave);
    p->generation = s->generation;
    p->goes_on = false;
    p->began_us = sl_clock_now_us(&f->a->w->clock);
    p->began_ns = sl_now_ns();
    p->prompts_beside = f->in.rows[SL_PART_PROMPT] + f->in.rows[SL_PART_REST];
    f->in.rows[kind] += rows;
    make_ready(f, slot);
}

/* The first slot that waits with such work (since it came here, its request may have ended and
 * another begun); NULL: there is none. It stays in the list. */
static const sl_slot *peek(sl_flow *f, sl_part_kind kind) {
    sl_part_list *l = &f->waiting[kind];
    while (l->n > 0) {
        const sl_slot *s = &f->lane->slot[l->head];
        if (sl_life_has_work(s->life) && kind_of(s) == kind) return s;
        uint32_t slot = take_first(f, l);
        f->part[slot].listed = f->part[slot].goes_on = false;
        sl_flow_wake(f, s);
    }
    return NULL;
}

static void admit_prompts(sl_flow *f, sl_part_kind kind) {
    const sl_slot *s;
    while (f->n_free > 0 && (s = peek(f, kind)) != NULL) {
        uint32_t rows =
            sl_intake_chunk(&f->in, &f->lane->step.pacer, kind, s->life->done, s->life->given,
                            sl_life_room(s->life), f->waiting[SL_PART_DECODE].n, f->n_free);
        if (rows == 0) return;
        begin_part(f, kind, rows);
    }
}

static void admit(sl_flow *f) {
    bool prompt = peek(f, SL_PART_PROMPT) != NULL, rest = peek(f, SL_PART_REST) != NULL;
    uint32_t keep = sl_intake_keep(&f->in, prompt, rest, f->a->max_rows);
    while (f->n_free > keep && peek(f, SL_PART_DECODE)) begin_part(f, SL_PART_DECODE, 1);
    admit_prompts(f, SL_PART_PROMPT);
    admit_prompts(f, SL_PART_REST);
}

/* ---- a part ends ---- */

static void end_part(sl_flow *f, uint32_t slot) {
    sl_part *p = &f->part[slot];
    f->in.rows[p->kind] -= p->rows;
    sl_flow_give_rows(f, slot);
    p->state = SL_PART_NONE;
    f->lane->slot[slot].life->in_step = false;
}

/* Whether rows that are to enter `layer` were with the experts and are not merged yet. */
static bool comes_back(const sl_flow *f, uint32_t layer) {
    return layer > 0 && f->a->m->ffn[layer - 1] == SL_FFN_MOE;
}

/* The request was cancelled while its rows were away, or is broken. */
static void drop_cancelled(sl_flow *f, uint32_t slot) {
    sl_part *p = &f->part[slot];
    sl_slot *s = &f->lane->slot[slot];
    if (comes_back(f, p->layer)) f->a->w->n.rows_cancelled += p->rows;
    end_part(f, slot);
    sl_slot_end(f->a, s);
    sl_attn_flush(f->a);
}

/* ---- a batch ---- */

/* Drains the queue of a layer into the lane's buffers. */
static void load_batch(sl_flow *f, uint32_t layer) {
    sl_lane *lane = f->lane;
    f->batch_epoch = sl_intake_batch_epoch(f->queue[layer].epoch, f->seen);
    lane->n_rows = 0;
    f->n_batch = 0;
    while (f->list[layer].n > 0) {
        uint32_t slot = take_first(f, &f->list[layer]);
        if (lane->slot[slot].life->ends) {
            drop_cancelled(f, slot);
            continue;
        }
        f->part[slot].epoch = f->batch_epoch;
        f->part[slot].state = SL_PART_RUNS;
        f->batch_slot[f->n_batch++] = slot;
        sl_flow_load(f, slot);
    }
    f->queue[layer] = (sl_queue_state){0};
    f->total[layer] = 0;
    if (layer > 0 && lane->n_rows > 0) sl_flow_merge(f, comes_back(f, layer));
}

static void next_layer(sl_flow *f, uint32_t slot) {
    f->part[slot].layer++;
    make_ready(f, slot);
}

static void begin_block(sl_flow *f) {
    sl_lane *lane = f->lane;
    if (lane->layer == 0) {
        sl_lane_embed(lane);
        f->wave = f->batch_epoch;
    }
    sl_lane_block(lane);
    sl_flow_store(f, lane->x, f->x);
    f->phase = SL_FLOW_BLOCK;
}

static void end_block(sl_flow *f) {
    sl_worker *w = f->a->w;
    f->phase = SL_FLOW_RESTS;
    if (f->a->m->ffn[f->lane->layer] == SL_FFN_DENSE) {
        for (uint32_t i = 0; i < f->n_batch; i++) next_layer(f, f->batch_slot[i]);
        return;
    }
    sl_lane_break(f->lane);
    sl_lane_begin(f->lane, SL_TRACE_DISPATCH, f->lane->n_rows);
    if (sl_flow_leave(f) == SL_OK) {
        f->phase = SL_FLOW_PACK;
        return;
    }
    w->stop = true;
    w->stop_status = sl_fail(&w->stop_err, SL_ERR_NOMEM, "messages of %u rows", f->lane->n_rows);
}

static void end_pack(sl_flow *f) {
    uint64_t now = sl_now_ns();
    for (uint32_t i = 0; i < f->n_batch; i++) {
        sl_part *p = &f->part[f->batch_slot[i]];
        p->state = SL_PART_AWAY;
        p->missing = p->rows * f->a->m->top_k;
        p->sent_ns = now;
    }
    sl_flow_send(f);
    f->phase = SL_FLOW_RESTS;
    if (!f->shared.bytes) return;
    sl_lane_shared(f->lane); /* while the batch is with the experts */
    sl_flow_store(f, f->lane->h, f->shared);
    f->phase = SL_FLOW_SHARED;
}

/* How long a decode row took through all blocks, beside so many rows of prompts. */
static void learn(sl_flow *f) {
    for (uint32_t i = 0; i < f->n_batch; i++) {
        const sl_part *p = &f->part[f->batch_slot[i]];
        if (p->kind != SL_PART_DECODE) continue;
        sl_pacer_learn(&f->lane->step.pacer, 1, p->prompts_beside,
                       sl_clock_now_us(&f->a->w->clock) - p->began_us);
        f->in.hold_rest = false;
        return;
    }
}

static void begin_head(sl_flow *f) {
    sl_lane *lane = f->lane;
    learn(f);
    lane->step.burst = true; /* the pacer has been told */
    lane->step_began_ns = sl_now_ns();
    for (uint32_t i = 0; i < f->n_batch; i++) {
        const sl_part *p = &f->part[f->batch_slot[i]];
        lane->step_began_ns = SL_MIN(lane->step_began_ns, p->began_ns);
        const sl_step_part part = {.slot = f->batch_slot[i],
                                   .rows = p->rows,
                                   .prefill = p->kind != SL_PART_DECODE,
                                   .sample = p->sample};
        sl_step_add(&lane->step, &part);
    }
    sl_lane_begin_head(lane);
    f->phase = SL_FLOW_HEAD;
}

static void end_head_piece(sl_flow *f) {
    if (!sl_lane_end_head(f->lane)) {
        sl_lane_begin_head(f->lane);
        return;
    }
    f->phase = SL_FLOW_RESTS;
    for (uint32_t i = 0; i < f->n_batch; i++) {
        uint32_t slot = f->batch_slot[i];
        end_part(f, slot);
        f->part[slot].goes_on = true;
        sl_flow_wake(f, &f->lane->slot[slot]);
        f->part[slot].goes_on = f->part[slot].listed;
    }
    if (f->in.rows[SL_PART_DECODE] == 0) f->in.hold_rest = false;
}

/* Everything that the device is through with; false: nothing. */
static bool go_on(sl_flow *f) {
    bool went = false;
    for (; f->phase != SL_FLOW_RESTS; went = true) {
        if (!sl_device_is_done(f->a->w->device, &f->lane->event)) return went;
        if (f->phase == SL_FLOW_BLOCK)
            end_block(f);
        else if (f->phase == SL_FLOW_PACK)
            end_pack(f);
        else if (f->phase == SL_FLOW_HEAD)
            end_head_piece(f);
        else
            f->phase = SL_FLOW_RESTS;
    }
    return went;
}

bool sl_flow_run(sl_flow *f) {
    sl_attn *a = f->a;
    uint32_t layer;
    if (f->phase != SL_FLOW_RESTS) return go_on(f);
    admit(f);
    const sl_policy_view v = {.policy = a->w->plan.policy,
                              .lookahead = a->w->plan.lookahead,
                              .delta = a->w->plan.delta,
                              .ring = a->m->n_layers + 1,
                              .n = 1,
                              .queue = f->queue,
                              .total = f->total,
                              .ahead = f->ahead};
    if (!sl_policy_pick(&v, &layer)) return false;
    f->lane->layer = layer;
    sl_lane_begin(f->lane, SL_TRACE_MERGE, f->queue[layer].rows);
    load_batch(f, layer);
    if (f->n_batch > 0 && layer < a->m->n_layers) begin_block(f);
    if (f->n_batch > 0 && layer == a->m->n_layers) begin_head(f);
    go_on(f);
    return true;
}

/* ---- replies ---- */

static sl_status check_return(const sl_flow *f, const sl_wire_header *h, sl_span payload,
                              sl_err *err) {
    if (h->lane || h->chunk || h->flags || h->layer >= f->a->m->n_moe || h->rows == 0 ||
        payload.len == 0)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "return of %u rows, %zu bytes for layer %u of %u, lane %u, chunk %u, flags "
                       "%x",
                       h->rows, payload.len, h->layer, f->a->m->n_moe, h->lane, h->chunk, h->flags);
    if (h->round > f->seen && h->round - f->seen > SL_AEP_MAX_STEP)
        return sl_fail(err, SL_ERR_PROTOCOL, "epoch %llu after %llu", (unsigned long long)h->round,
                       (unsigned long long)f->seen);
    return SL_OK;
}

sl_status sl_flow_on_return(sl_flow *f, uint32_t expert_index, const sl_wire_header *h,
                            sl_span payload, sl_err *err) {
    sl_wire_return v;
    uint32_t slot, rows = 0;
    uint64_t sent_ns = UINT64_MAX;
    sl_status st = check_return(f, h, payload, err);
    if (st == SL_OK)
        st =
            sl_wire_return_decode(h, payload, f->a->m, (sl_wire_format)f->a->w->plan.wire, &v, err);
    for (uint32_t i = 0; st == SL_OK && i < h->rows; i++) {
        st = sl_flow_collect(f, expert_index, h->layer, &v, i, &slot, err);
        if (st != SL_OK || slot == SL_FLOW_NONE) continue;
        rows += f->part[slot].rows;
        sent_ns = SL_MIN(sent_ns, f->part[slot].sent_ns);
        f->part[slot].layer++;
        if (f->lane->slot[slot].life->ends)
            drop_cancelled(f, slot);
        else
            make_ready(f, slot);
    }
    if (st == SL_OK) f->seen = SL_MAX(f->seen, h->round);
    const sl_trace_event flight = {.kind = SL_TRACE_FLIGHT,
                                   .layer = sl_worker_block_of(f->a->w, h),
                                   .round = (uint32_t)h->round,
                                   .rows = rows};
    if (rows) sl_worker_note_span(f->a->w, flight, sent_ns);
    return st;
}

void sl_flow_waits_for(const sl_flow *f, sl_trace_event *e) {
    if (f->n_free < f->a->max_rows)
        *e = (sl_trace_event){.kind = SL_TRACE_WAIT, .why = SL_TRACE_WHY_EXPERTS};
}

/* ---- life ---- */

void sl_flow_reset(sl_flow *f) {
    for (uint32_t i = 0; i < f->a->max_slots; i++) {
        sl_part *p = &f->part[i];
        if (p->state == SL_PART_AWAY || (p->state == SL_PART_READY && comes_back(f, p->layer)))
            f->a->w->n.rows_lost += p->rows;
        if (p->state != SL_PART_NONE) end_part(f, i);
        *p = (sl_part){0};
    }
    uint32_t ring = f->a->m->n_layers + 1;
    memset(f->list, 0, ring * sizeof *f->list);
    memset(f->queue, 0, ring * sizeof *f->queue);
    memset(f->total, 0, ring * sizeof *f->total);
    memset(f->waiting, 0, sizeof f->waiting);
    f->in.hold_rest = false;
    f->phase = SL_FLOW_RESTS;
    sl_head_close(&f->a->head);
}

static sl_status create_storage(sl_flow *f, sl_err *err) {
    size_t rows = f->a->max_rows, k = f->a->m->top_k;
    f->next = sl_alloc(rows, sizeof *f->next);
    f->slot = sl_alloc(rows, sizeof *f->slot);
    f->tag = sl_alloc(rows, sizeof *f->tag);
    f->owed = sl_alloc(rows, sizeof *f->owed);
    f->owner = sl_alloc(rows, k * sizeof *f->owner);
    f->piece =
        sl_alloc(rows, k * sl_wire_row_bytes((sl_wire_format)f->a->w->plan.wire, f->a->m->d_model));
    f->batch_row = sl_alloc(rows, sizeof *f->batch_row);
    if (!f->next || !f->slot || !f->tag || !f->owed || !f->owner || !f->piece || !f->batch_row)
        return sl_fail(err, SL_ERR_NOMEM, "storage of %zu rows in flight", rows);
    for (uint32_t r = 0; r < rows; r++) {
        f->next[r] = r + 1 < rows ? r + 1 : SL_FLOW_NONE;
        f->slot[r] = SL_FLOW_NONE;
    }
    f->n_free = (uint32_t)rows;
    sl_status st = sl_device_take_rows(f->a->w->device, rows, &f->x, err);
    if (st == SL_OK && f->a->m->d_ff_shared)
        st = sl_device_take_rows(f->a->w->device, rows, &f->shared, err);
    return st;
}

sl_status sl_flow_create(sl_attn *a, sl_flow **out, sl_err *err) {
    size_t ring = a->m->n_layers + 1u;
    sl_flow *f = sl_alloc(1, sizeof *f);
    if (!f) return sl_fail(err, SL_ERR_NOMEM, "parts of an attention worker");
    f->a = a;
    f->lane = &a->lane[0];
    f->part = sl_alloc(a->max_slots, sizeof *f->part);
    f->batch_slot = sl_alloc(a->max_slots, sizeof *f->batch_slot);
    f->list = sl_alloc(ring, sizeof *f->list);
    f->queue = sl_alloc(ring, sizeof *f->queue);
    f->total = sl_alloc(ring, sizeof *f->total);
    f->ahead = sl_alloc(ring, sizeof *f->ahead);
    sl_status st = SL_OK;
    if (!f->part || !f->batch_slot || !f->list || !f->queue || !f->total || !f->ahead)
        st = sl_fail(err, SL_ERR_NOMEM, "queues of %zu layers, %u slots", ring, a->max_slots);
    if (st == SL_OK) st = create_storage(f, err);
    if (st == SL_OK)
        *out = f;
    else
        sl_flow_free(f);
    return st;
}

void sl_flow_free(sl_flow *f) {
    if (!f) return;
    sl_device_give(f->a->w->device, f->x);
    sl_device_give(f->a->w->device, f->shared);
    void *const owned[] = {f->part,  f->batch_slot, f->list,     f->queue, f->total,
                           f->ahead, f->next,       f->slot,     f->tag,   f->owed,
                           f->owner, f->piece,      f->batch_row};
    for (size_t i = 0; i < SL_LEN(owned); i++) sl_free(owned[i]);
    sl_free(f);
}
