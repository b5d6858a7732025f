/* Rows that pass the blocks together: what they ask of the device, and what becomes of its answers.
 */
#include "engine/attn/outgoing.h"

#include "base/mutate.h"

#include <math.h>
#include <string.h>

sl_stage_call sl_pass_call(const sl_pass *p, sl_stage_op op) {
    return (sl_stage_call){.op = op,
                           .queue = p->lane,
                           .layer = p->layer,
                           .rows = {.n = p->n,
                                    .id = p->id,
                                    .pos = p->pos,
                                    .pages = p->pages,
                                    .state = p->state,
                                    .done = p->done,
                                    .x = p->x,
                                    .h = p->h,
                                    .expert = p->expert,
                                    .gate = p->gate}};
}

uint32_t sl_pass_row(sl_pass *p, const sl_slot *s, uint32_t pos, uint64_t tag) {
    uint32_t r = p->n++;
    p->id[r] = s->tokens[pos];
    p->pos[r] = pos;
    p->pages[r] = s->pages;
    p->state[r] = sl_slots_state(&p->attn->slots, s->life);
    p->done[r] = s->life->done;
    p->tag[r] = tag;
    return r;
}

void sl_pass_submit(sl_pass *p, const sl_stage_call *c) {
    p->event = sl_device_submit(p->attn->w->device, c);
}

static void run(sl_pass *p, sl_stage_op op, sl_trace_kind traced) {
    const sl_stage_call c = sl_pass_call(p, op);
    sl_pass_begin(p, traced, p->n);
    sl_pass_submit(p, &c);
}

void sl_pass_embed(sl_pass *p) {
    sl_worker *w = p->attn->w;
    run(p, SL_OP_EMBED, SL_TRACE_EMBED);
    w->n.attention_rows += p->n;
    w->n.rounds++;
}

/* Rows whose gates are not finite end their requests. Until then they travel on as zeros (ROUTE
 * made h so), for which experts and peers need no rules. Whatever goes wrong in a row, in its
 * embedding, attention or experts, comes to its next router, or to the head. */
void sl_pass_break(sl_pass *p) {
    size_t k = p->attn->m->top_k;
    for (uint32_t r = 0; r < p->n; r++) {
        float *gate = p->gate + r * k;
        bool finite = true;
        for (uint32_t j = 0; j < k; j++) finite = finite && isfinite(gate[j]);
        if (finite) continue;
        sl_slot *s = &p->slot[sl_tag_slot(p->tag[r])];
        if (p->pos[r] < s->life->tokens)
            sl_slot_break(s, p->layer, p->pos[r]);
        else /* nobody has said it */
            s->unfit = SL_MIN(s->unfit, p->pos[r]);
        memset(gate, 0, k * sizeof *gate);
    }
}

void sl_pass_block(sl_pass *p) {
    const sl_model_spec *m = p->attn->m;
    bool dense = m->ffn[p->layer] == SL_FFN_DENSE, first = !dense && m->dense_branch;
    if (first) run(p, SL_OP_ROUTE, SL_TRACE_ROUTER);
    run(p, SL_OP_ATTEND, SL_TRACE_ATTENTION);
    if (dense)
        run(p, SL_OP_DENSE, SL_TRACE_DENSE);
    else if (!first)
        run(p, SL_OP_ROUTE, SL_TRACE_ROUTER);
}

void sl_pass_inside(sl_pass *p, bool wanted) {
    run(p, SL_OP_ATTEND, SL_TRACE_ATTENTION);
    run(p, SL_OP_INSIDE, SL_TRACE_ROUTER);
    if (!wanted) p->event = (sl_event){0}; /* whatever comes next is behind it on the device */
}

sl_mem sl_pass_shared_rows(const sl_pass *p) {
    if (!p->attn->m->d_ff_shared) return (sl_mem){0};
    return p->shared.bytes ? p->shared : p->h;
}

void sl_pass_shared(sl_pass *p) {
    bool branch = p->attn->m->dense_branch;
    if (SL_MUTATION(LOST_SHARED) && p->n % 7 == 0) return;
    sl_stage_call copy = sl_pass_call(p, SL_OP_MOVE), c = sl_pass_call(p, SL_OP_SHARED);
    sl_pass_begin(p, branch ? SL_TRACE_BRANCH : SL_TRACE_SHARED, p->n);
    if (p->shared.bytes) {
        copy.move = (sl_stage_move){.n = p->n, .from = p->h, .to = p->shared};
        sl_pass_submit(p, &copy);
        c.rows.h = p->shared;
    }
    p->cut = c.stays = p->n_spread > 0;
    sl_pass_submit(p, &c);
}

void sl_pass_pack(sl_pass *p) {
    sl_stage_call c = sl_pass_call(p, SL_OP_PACK);
    c.pack = (sl_stage_pack){.n = p->n_pack,
                             .wire = (sl_wire_format)p->attn->w->plan.wire,
                             .rows = p->h,
                             .row = p->pack_row,
                             .at = p->pack_at,
                             .spread = p->spread,
                             .n_spread = p->n_spread};
    if (p->n_pack > 0) sl_pass_submit(p, &c);
}

void sl_pass_add(sl_pass *p, const sl_stage_merge *m) {
    sl_stage_call c = sl_pass_call(p, SL_OP_MERGE);
    c.merge = *m;
    sl_pass_submit(p, &c);
    if (!SL_MUTATION(DOUBLE_MERGE)) return;
    /* The bug: the first piece of some rows once more. */
    size_t k = p->attn->m->top_k;
    for (uint32_t r = 0; r < p->n; r++) {
        bool again = p->tag[r] % 97 == 5;
        for (size_t j = again; j < k; j++) p->piece[r * k + j] = NULL;
    }
    c.merge.x = c.rows.x;
    c.merge.from = NULL;
    c.merge.shared = (sl_mem){0};
    c.merge.n_spread = 0;
    sl_pass_submit(p, &c);
}

/* ---- life ---- */

sl_status sl_pass_create(sl_attn *a, uint32_t lane, sl_pass *p, sl_err *err) {
    size_t rows = a->max_rows, k = a->m->top_k, copies = SL_MIN(k, a->n_experts);
    p->attn = a;
    p->lane = lane;
    p->slot = sl_attn_slots(a, lane);
    p->arrays = sl_alloc_arrays(
        SL_ARRAY(p->id, rows), SL_ARRAY(p->pos, rows), SL_ARRAY(p->state, rows),
        SL_ARRAY(p->done, rows), SL_ARRAY(p->tag, rows), SL_ARRAY(p->pages, rows),
        SL_TABLE(p->expert, rows, k), SL_TABLE(p->gate, rows, k), SL_TABLE(p->owner, rows, k),
        SL_TABLE(p->piece, rows, k), SL_ARRAY(p->out, a->n_experts),
        SL_ARRAY(p->spread, a->n_experts * (size_t)a->n_chunks),
        SL_TABLE(p->pack_row, rows, copies), SL_TABLE(p->pack_at, rows, copies));
    if (!p->arrays) return sl_fail(err, SL_ERR_NOMEM, "lane of %zu rows", rows);
    sl_status st = sl_step_create(&a->slots, &a->cut, lane, a->max_rows, a->w->plan.prefill_stretch,
                                  &p->step, err);
    p->step.resolve = &a->resolve;
    p->price = &p->step.price;
    p->price->speculate = a->w->plan.speculate;
    if (st == SL_OK) st = sl_device_take_rows(a->w->device, rows, &p->x, err);
    if (st == SL_OK) st = sl_device_take_rows(a->w->device, rows, &p->h, err);
    /* aep keeps what left in a storage of its own. */
    bool twice = a->m->d_ff_shared && a->ops == &sl_attn_lanes && sl_plan_has_replicas(&a->w->plan);
    return st == SL_OK && twice ? sl_device_take_rows(a->w->device, rows, &p->shared, err) : st;
}

void sl_pass_free(sl_pass *p) {
    if (!p->attn) return;
    sl_outgoing_drop(p);
    sl_device_give(p->attn->w->device, p->x);
    sl_device_give(p->attn->w->device, p->h);
    sl_device_give(p->attn->w->device, p->shared);
    sl_free(p->arrays);
    sl_step_free(&p->step);
}
