/* The stages of a lane's rows: what lanes and parts of aep ask of the device, and what they do with
 * its answers. */
#include "engine/attn_int.h"

#include "base/mutate.h"

#include <math.h>
#include <string.h>

sl_stage_call sl_lane_call(const sl_lane *lane, sl_stage_op op) {
    return (sl_stage_call){.op = op,
                           .queue = lane->id,
                           .layer = lane->layer,
                           .rows = {.n = lane->n_rows,
                                    .id = lane->row_id,
                                    .pos = lane->row_pos,
                                    .pages = lane->row_pages,
                                    .x = lane->x,
                                    .h = lane->h,
                                    .expert = lane->expert,
                                    .gate = lane->gate}};
}

void sl_lane_submit(sl_lane *lane, const sl_stage_call *c) {
    lane->event = sl_device_submit(lane->attn->w->device, c);
}

static void run(sl_lane *lane, sl_stage_op op, sl_trace_kind traced) {
    const sl_stage_call c = sl_lane_call(lane, op);
    sl_lane_begin(lane, traced, lane->n_rows);
    sl_lane_submit(lane, &c);
}

void sl_lane_embed(sl_lane *lane) {
    sl_worker *w = lane->attn->w;
    run(lane, SL_OP_EMBED, SL_TRACE_EMBED);
    w->n.attention_rows += lane->n_rows;
    w->n.rounds++;
}

/* Rows whose gates are not finite end their requests. Until then they travel on as zeros (ROUTE
 * made h so), for which experts and peers need no rules. Whatever goes wrong in a row, in its
 * embedding, attention or experts, comes to its next router, or to the head. */
void sl_lane_break(sl_lane *lane) {
    size_t k = lane->attn->m->top_k;
    for (uint32_t r = 0; r < lane->n_rows; r++) {
        float *gate = lane->gate + r * k;
        bool finite = true;
        for (uint32_t j = 0; j < k; j++) finite = finite && isfinite(gate[j]);
        if (finite) continue;
        sl_slot_break(&lane->slot[sl_tag_slot(lane->row_tag[r])], lane->layer, lane->row_pos[r]);
        memset(gate, 0, k * sizeof *gate);
    }
}

void sl_lane_block(sl_lane *lane) {
    const sl_model_spec *m = lane->attn->m;
    bool dense = m->ffn[lane->layer] == SL_FFN_DENSE, first = !dense && m->dense_branch;
    if (first) run(lane, SL_OP_ROUTE, SL_TRACE_ROUTER);
    run(lane, SL_OP_ATTEND, SL_TRACE_ATTENTION);
    if (dense)
        run(lane, SL_OP_DENSE, SL_TRACE_DENSE);
    else if (!first)
        run(lane, SL_OP_ROUTE, SL_TRACE_ROUTER);
}

void sl_lane_shared(sl_lane *lane) {
    bool branch = lane->attn->m->dense_branch;
    if (SL_MUTATION(LOST_SHARED) && lane->n_rows % 7 == 0) return;
    run(lane, SL_OP_SHARED, branch ? SL_TRACE_BRANCH : SL_TRACE_SHARED);
}

void sl_lane_pack(sl_lane *lane) {
    sl_stage_call c = sl_lane_call(lane, SL_OP_PACK);
    c.pack = (sl_stage_pack){.n = lane->n_pack,
                             .wire = (sl_wire_format)lane->attn->w->plan.wire,
                             .rows = lane->h,
                             .row = lane->pack_row,
                             .at = lane->pack_at};
    if (lane->n_pack > 0) sl_lane_submit(lane, &c);
}

void sl_lane_add(sl_lane *lane, const sl_stage_merge *m) {
    sl_stage_call c = sl_lane_call(lane, SL_OP_MERGE);
    c.merge = *m;
    sl_lane_submit(lane, &c);
    if (!SL_MUTATION(DOUBLE_MERGE)) return;
    /* The bug: the first piece of some rows once more. */
    size_t k = lane->attn->m->top_k;
    for (uint32_t r = 0; r < lane->n_rows; r++) {
        bool again = lane->row_tag[r] % 97 == 5;
        for (size_t j = again; j < k; j++) lane->piece[r * k + j] = NULL;
    }
    c.merge.x = c.rows.x;
    c.merge.from = NULL;
    c.merge.shared = (sl_mem){0};
    sl_lane_submit(lane, &c);
}
