#include "engine/outgoing.h"

#include <string.h>

void sl_lane_assign(sl_lane *lane) {
    const sl_attn *a = lane->attn;
    uint32_t k = a->m->top_k, moe = a->m->moe_index[lane->layer];
    for (uint32_t r = 0; r < lane->n_rows; r++) {
        uint32_t key = sl_plan_row_key(lane->row_id[r], lane->row_pos[r], moe);
        for (size_t rj = (size_t)r * k; rj < ((size_t)r + 1) * k; rj++)
            lane->owner[rj] =
                a->expert_index[sl_plan_host_of(&a->w->plan, moe, lane->expert[rj], key)];
    }
}

sl_status sl_outgoing_layout(const sl_attn *a, const uint32_t *set, sl_outgoing *o) {
    sl_wire_format f = (sl_wire_format)a->w->plan.wire;
    o->buf = sl_net_buf_take(a->w->net, sl_wire_dispatch_bytes(&o->n, a->m->d_model, f));
    if (!o->buf) return SL_ERR_NOMEM;
    sl_wire_dispatch_layout(o->buf->data, &o->n, a->m->d_model, f, &o->view);
    if (o->n.n_set) memcpy(o->view.set, set, o->n.n_set * sizeof *set);
    o->view.first[o->n.rows] = o->n.n_entries;
    o->last_row = SL_NO_ROW;
    return SL_OK;
}

void sl_outgoing_row(sl_lane *lane, uint32_t r, bool with_data, sl_outgoing *o) {
    sl_wire_format f = (sl_wire_format)lane->attn->w->plan.wire;
    uint32_t d = lane->attn->m->d_model;
    o->last_row = r;
    o->view.tag[o->at_row] = lane->row_tag[r];
    o->view.first[o->at_row] = o->at_entry;
    if (with_data) {
        lane->pack_row[lane->n_pack] = r;
        lane->pack_at[lane->n_pack++] = o->view.data + o->at_row * sl_wire_row_bytes(f, d);
    }
    o->at_row++;
}

void sl_outgoing_entry(const sl_lane *lane, uint32_t r, uint32_t j, sl_outgoing *o) {
    size_t rj = (size_t)r * lane->attn->m->top_k + j;
    o->view.expert[o->at_entry] = lane->expert[rj];
    o->view.position[o->at_entry] = j;
    o->view.gate[o->at_entry++] = lane->gate[rj];
}
