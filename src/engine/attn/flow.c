/* Schedule aep at an attention worker: what its parts ask of device and fabric. Who gets rows and
 * what runs next: sched/parts.h. */
#include "engine/attn/flow.h"
#include "engine/attn/outgoing.h"

static void wake(void *side, const sl_slot *s) {
    sl_flow *f = side;
    sl_parts_wake(&f->parts, sl_slots_index(&f->a->slots, s->life));
}

/* Parts enter block 0. */
static void enter(sl_flow *f) {
    const uint32_t *slot;
    if (sl_attn_holds(f->a)) return;
    uint32_t n = sl_parts_enter(&f->parts, sl_clock_now_us(&f->a->w->clock), &slot);
    uint64_t now_ns = n > 0 ? sl_now_ns() : 0;
    for (uint32_t i = 0; i < n; i++) {
        sl_flow_take_rows(f, slot[i]);
        f->part[slot[i]].began_ns = now_ns;
    }
}

/* The part is over, as its request was cancelled while its rows were away, or is broken. */
static void drop(sl_flow *f, uint32_t slot) {
    const sl_part *p = &f->parts.part[slot];
    if (sl_parts_comes_back(&f->parts, p->layer)) f->a->w->n.rows_cancelled += p->rows;
    sl_flow_give_rows(f, slot);
    sl_slot_end(f->a, &f->pass.slot[slot]);
    sl_attn_flush(f->a);
}

/* ---- a batch ---- */

/* Into the pass. */
static void load_batch(sl_flow *f) {
    const sl_parts *p = &f->parts;
    f->pass.n = 0;
    for (uint32_t i = 0; i < p->n_ended; i++) drop(f, p->ended[i]);
    for (uint32_t i = 0; i < p->n_batch; i++) sl_flow_load(f, p->batch[i]);
    if (p->layer > 0 && p->n_rows > 0) sl_flow_merge(f, sl_parts_comes_back(p, p->layer));
}

static void begin_block(sl_flow *f) {
    sl_pass *p = &f->pass;
    if (p->layer == 0) sl_pass_embed(p);
    sl_pass_block(p);
    sl_flow_store(f, p->x, f->x);
    f->phase = SL_FLOW_BLOCK;
}

/* The batch is ready for its next block, or leaves for the experts. */
static void leave(sl_flow *f) {
    const sl_parts *p = &f->parts;
    uint64_t now_ns = sl_now_ns();
    for (uint32_t i = 0; i < p->n_batch; i++) f->part[p->batch[i]].sent_ns = now_ns;
    sl_parts_leave(&f->parts);
}

static void end_block(sl_flow *f) {
    sl_worker *w = f->a->w;
    f->phase = SL_FLOW_RESTS;
    if (f->a->m->ffn[f->pass.layer] == SL_FFN_DENSE) {
        leave(f);
        return;
    }
    sl_pass_break(&f->pass);
    sl_pass_begin(&f->pass, SL_TRACE_DISPATCH, f->pass.n);
    if (sl_flow_leave(f) == SL_OK) {
        f->phase = SL_FLOW_PACK;
        return;
    }
    leave(f);
    sl_worker_stop(w, sl_fail(&w->stop_err, SL_ERR_NOMEM, "messages of %u rows", f->pass.n));
}

static void end_pack(sl_flow *f) {
    leave(f);
    f->a->w->n.rows_created += f->pass.n;
    sl_flow_send(f);
    f->phase = SL_FLOW_RESTS;
    if (!f->shared.bytes) return;
    sl_pass_shared(&f->pass); /* while the batch is with the experts */
    sl_flow_store(f, f->pass.h, f->shared);
    f->phase = SL_FLOW_SHARED;
}

static void end_again(sl_flow *f) {
    sl_flow_send(f);
    f->phase = SL_FLOW_RESTS;
}

static void begin_head(sl_flow *f) {
    sl_pass *p = &f->pass;
    sl_parts_head(&f->parts, sl_clock_now_us(&f->a->w->clock), &p->step);
    p->step_began_ns = sl_now_ns();
    for (uint32_t i = 0; i < f->parts.n_batch; i++)
        p->step_began_ns = SL_MIN(p->step_began_ns, f->part[f->parts.batch[i]].began_ns);
    sl_pass_begin_head(p);
    f->phase = SL_FLOW_HEAD;
}

static void end_head_piece(sl_flow *f) {
    if (!sl_pass_end_head(&f->pass)) {
        sl_pass_begin_head(&f->pass);
        return;
    }
    f->phase = SL_FLOW_RESTS;
    for (uint32_t i = 0; i < f->parts.n_batch; i++) sl_flow_give_rows(f, f->parts.batch[i]);
    sl_parts_over(&f->parts);
}

/* Rows that lost expert workers owe leave again, those of one block; false: there are none. */
static bool leave_again(sl_flow *f) {
    bool leaves;
    if (!f->due) return false;
    sl_pass_begin(&f->pass, SL_TRACE_DISPATCH, 0);
    if (sl_flow_leave_again(f, &leaves) != SL_OK) {
        sl_attn_give_up(f->a);
        return true;
    }
    f->due = leaves;
    if (leaves) f->phase = SL_FLOW_AGAIN;
    return leaves;
}

/* Everything that the device is through with; false: nothing. */
static bool go_on(sl_flow *f) {
    bool went = false;
    for (; f->phase != SL_FLOW_RESTS; went = true) {
        if (!sl_device_is_done(f->a->w->device, &f->pass.event)) return went;
        if (f->phase == SL_FLOW_BLOCK)
            end_block(f);
        else if (f->phase == SL_FLOW_PACK)
            end_pack(f);
        else if (f->phase == SL_FLOW_HEAD)
            end_head_piece(f);
        else if (f->phase == SL_FLOW_AGAIN)
            end_again(f);
        else
            f->phase = SL_FLOW_RESTS;
    }
    return went;
}

static bool run(void *side) {
    sl_flow *f = side;
    sl_parts *p = &f->parts;
    if (f->phase != SL_FLOW_RESTS) return go_on(f);
    if (leave_again(f)) return true;
    enter(f);
    if (!sl_parts_take(p)) return false;
    f->pass.layer = p->layer;
    sl_pass_begin(&f->pass, SL_TRACE_MERGE, p->n_rows);
    load_batch(f);
    if (p->n_batch > 0 && p->layer < f->a->m->n_layers) begin_block(f);
    if (p->n_batch > 0 && p->layer == f->a->m->n_layers) begin_head(f);
    go_on(f);
    return true;
}

/* ---- replies ---- */

static sl_status on_return(void *side, uint32_t expert_index, const sl_wire_header *h, sl_buf **buf,
                           sl_err *err) {
    sl_flow *f = side;
    const sl_span payload = *buf ? (sl_span){(*buf)->data, (*buf)->len} : (sl_span){0};
    sl_wire_return v;
    uint32_t slot, rows = 0;
    uint64_t sent_ns = UINT64_MAX;
    sl_status st = sl_worker_check_wave(f->a->w, h, payload.len, f->parts.seen, err);
    if (st == SL_OK)
        st =
            sl_wire_return_decode(h, payload, f->a->m, (sl_wire_format)f->a->w->plan.wire, &v, err);
    for (uint32_t i = 0; st == SL_OK && i < h->rows; i++) {
        st = sl_flow_collect(f, expert_index, h->layer, &v, i, &slot, err);
        if (st != SL_OK || slot == SL_FLOW_NONE) continue;
        rows += f->parts.part[slot].rows;
        sent_ns = SL_MIN(sent_ns, f->part[slot].sent_ns);
        if (f->parts.part[slot].state == SL_PART_NONE) drop(f, slot);
    }
    if (st == SL_OK) sl_parts_meet(&f->parts, h->wave);
    const sl_trace_event flight = {.kind = SL_TRACE_FLIGHT,
                                   .layer = sl_worker_block_of(f->a->w, h),
                                   .round = (uint32_t)h->wave,
                                   .rows = rows};
    if (rows) sl_worker_note_span(f->a->w, flight, sent_ns);
    return st;
}

static sl_status on_peer(void *side, const sl_wire_header *h, sl_span payload, sl_err *err) {
    (void)side, (void)payload;
    return sl_fail(err, SL_ERR_PROTOCOL, "round %llu in a schedule without rounds",
                   (unsigned long long)h->round);
}

static bool rests(const void *side) {
    const sl_flow *f = side;
    return f->phase == SL_FLOW_RESTS && f->parts.n_free == f->a->max_rows;
}

static void waits_for(const void *side, sl_trace_event *e) {
    const sl_flow *f = side;
    if (f->parts.n_free < f->a->max_rows)
        *e = (sl_trace_event){.kind = SL_TRACE_WAIT, .why = SL_TRACE_WHY_EXPERTS};
}

/* ---- life ---- */

static void give_up(void *side) {
    sl_flow *f = side;
    while (f->phase == SL_FLOW_HEAD) { /* it needs no expert, and its requests have advanced */
        sl_device_drain(f->a->w->device);
        if (sl_worker_has_no_device(f->a->w)) return;
        end_head_piece(f);
    }
    for (uint32_t i = 0; i < f->a->max_slots; i++) {
        const sl_part *p = &f->parts.part[i];
        bool returned = p->state == SL_PART_READY && sl_parts_comes_back(&f->parts, p->layer);
        if (p->state == SL_PART_AWAY || returned) f->a->w->n.rows_lost += p->rows;
        f->a->w->n.steps_given_up += p->state != SL_PART_NONE;
        if (p->state != SL_PART_NONE) sl_flow_give_rows(f, i);
    }
    f->due = false;
    sl_parts_reset(&f->parts);
    sl_outgoing_drop(&f->pass);
    sl_step_drop(&f->pass.step);
    f->pass.n = 0;
    f->phase = SL_FLOW_RESTS;
    sl_attn_drop_head(f->a);
}

/* Others are asked for what it owes as soon as the pass is free. */
static void lose(void *side, uint32_t expert_index, bool gone) {
    sl_flow *f = side;
    if (!gone) sl_flow_spare(f, expert_index);
    f->due = true;
}

static sl_status create_storage(sl_flow *f, sl_err *err) {
    size_t rows = f->a->max_rows, k = f->a->m->top_k;
    size_t twice = sl_plan_has_replicas(&f->a->w->plan) ? rows : 0;
    size_t bytes = sl_wire_row_bytes((sl_wire_format)f->a->w->plan.wire, f->a->m->d_model);
    f->arrays = sl_alloc_arrays(SL_ARRAY(f->part, f->a->max_slots), SL_ARRAY(f->next, rows),
                                SL_ARRAY(f->slot, rows), SL_ARRAY(f->tag, rows),
                                SL_ARRAY(f->owed, rows), SL_ARRAY(f->again, rows),
                                SL_TABLE(f->owner, rows, k), SL_TABLE(f->piece, rows, k * bytes),
                                SL_ARRAY(f->batch_row, rows), SL_TABLE(f->sent_expert, twice, k),
                                SL_TABLE(f->sent_gate, twice, k), SL_ARRAY(f->copies, rows));
    if (!f->arrays) return sl_fail(err, SL_ERR_NOMEM, "storage of %zu rows in flight", rows);
    for (uint32_t r = 0; r < rows; r++) {
        f->next[r] = r + 1 < rows ? r + 1 : SL_FLOW_NONE;
        f->slot[r] = SL_FLOW_NONE;
    }
    sl_status st = sl_device_take_rows(f->a->w->device, rows, &f->x, err);
    if (st == SL_OK && twice) st = sl_device_take_rows(f->a->w->device, rows, &f->sent, err);
    if (st == SL_OK && f->a->m->d_ff_shared)
        st = sl_device_take_rows(f->a->w->device, rows, &f->shared, err);
    return st;
}

static void free_side(void *side) {
    sl_flow *f = side;
    if (!f) return;
    sl_pass_free(&f->pass);
    sl_device_give(f->a->w->device, f->x);
    sl_device_give(f->a->w->device, f->shared);
    sl_device_give(f->a->w->device, f->sent);
    sl_free(f->arrays);
    sl_parts_free(&f->parts);
    sl_free(f);
}

static sl_status create(sl_attn *a, void **out, sl_err *err) {
    const sl_parts_shape shape = {.plan = &a->w->plan,
                                  .n_layers = a->m->n_layers,
                                  .moe = a->moe,
                                  .top_k = a->m->top_k,
                                  .max_rows = a->max_rows};
    sl_flow *f = sl_alloc(1, sizeof *f);
    if (!f) return sl_fail(err, SL_ERR_NOMEM, "parts of an attention worker");
    f->a = a;
    sl_status st = sl_pass_create(a, 0, &f->pass, err);
    if (st == SL_OK) st = sl_parts_create(&a->slots, &shape, &f->parts, err);
    f->parts.price.speculate = a->w->plan.speculate;
    f->pass.price = &f->parts.price;
    if (st == SL_OK) st = create_storage(f, err);
    if (st == SL_OK)
        *out = f;
    else
        free_side(f);
    return st;
}

const sl_attn_side_ops sl_attn_parts = {.create = create,
                                        .free = free_side,
                                        .wake = wake,
                                        .on_return = on_return,
                                        .on_peer = on_peer,
                                        .run = run,
                                        .rests = rests,
                                        .waits_for = waits_for,
                                        .lose = lose,
                                        .give_up = give_up};
