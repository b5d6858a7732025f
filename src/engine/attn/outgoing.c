/* Rows on their way into messages to expert workers. */
#include "engine/attn/outgoing.h"

#include "engine/host/far.h"

#include <string.h>

static uint32_t row_key(const sl_pass *p, size_t r) {
    return sl_plan_row_key(p->id[r], p->pos[r], p->attn->m->moe_index[p->layer]);
}

static uint32_t host_of(const sl_pass *p, size_t rj, uint32_t key) {
    const sl_attn *a = p->attn;
    uint32_t moe = a->m->moe_index[p->layer];
    return a->expert_index[sl_plan_host_among(&a->w->plan, moe, p->expert[rj], key, a->lost)];
}

uint32_t sl_outgoing_host(const sl_pass *p, size_t rj) {
    return host_of(p, rj, row_key(p, rj / p->attn->m->top_k));
}

void sl_outgoing_assign(sl_pass *p) {
    uint32_t k = p->attn->m->top_k;
    for (uint32_t r = 0; r < p->n; r++) {
        uint32_t key = row_key(p, r);
        for (size_t rj = (size_t)r * k; rj < ((size_t)r + 1) * k; rj++)
            p->owner[rj] = host_of(p, rj, key);
    }
}

void sl_outgoing_spread(const sl_attn *a, sl_outgoing *out) {
    const sl_worker *w = a->w;
    const size_t row = sl_wire_row_bytes((sl_wire_format)w->plan.wire, a->m->d_model);
    bool some = false;
    for (uint32_t i = 0; i < a->n_experts; i++) {
        const uint32_t id = w->experts.ids[i];
        out[i].spreads = sl_worker_can_spread(w, id, out[i].n.rows * row);
        some = some || out[i].spreads;
    }
    /* Ranks that send rows have this worker's own, too. */
    for (uint32_t i = 0; some && i < a->n_experts; i++)
        if (w->experts.ids[i] == w->id) out[i].spreads = out[i].n.rows > 0;
}

uint32_t sl_outgoing_list(const sl_attn *a, const sl_outgoing *out, sl_stage_spread *list) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_experts; i++)
        if (out[i].spreads && out[i].buf)
            list[n++] = (sl_stage_spread){
                .is = out[i].buf->spread, .rows = out[i].n.rows, .data = out[i].view.data};
    return n;
}

sl_status sl_outgoing_layout(const sl_attn *a, uint32_t worker, const uint32_t *set,
                             sl_outgoing *o) {
    sl_wire_format f = (sl_wire_format)a->w->plan.wire;
    const sl_spread_name spread = o->spreads
                                      ? sl_worker_spread(a->w, a->w->experts.ids[worker], o->n.rows)
                                      : (sl_spread_name){0};
    const uint32_t width = spread.cut ? a->w->device->spreads : a->m->d_model;
    const size_t bytes = sl_wire_dispatch_bytes(&o->n, width, f);
    o->row_bytes = sl_wire_row_bytes(f, width);
    const size_t rows = o->far && !spread.number ? (o->n.rows - o->n.n_old) * o->row_bytes : 0;
    o->buf = sl_far_buf(a->w, a->w->experts.ids[worker], bytes, sl_wire_dispatch_bytes(&o->n, 0, f),
                        rows);
    if (!o->buf) return SL_ERR_NOMEM;
    o->buf->spread = spread;
    uint8_t *far = sl_far_at(o->buf);
    sl_wire_dispatch_layout(o->buf->data, &o->n, far ? 0 : width, f, &o->view);
    if (far) o->view.data = far;
    if (o->n.n_set) memcpy(o->view.set, set, o->n.n_set * sizeof *set);
    o->view.first[o->n.rows] = o->n.n_entries;
    o->last_row = SL_NO_ROW;
    return SL_OK;
}

void sl_outgoing_row(sl_pass *p, uint32_t r, bool with_data, sl_outgoing *o) {
    o->last_row = r;
    o->view.tag[o->at_row] = p->tag[r];
    o->view.first[o->at_row] = o->at_entry;
    if (with_data) {
        p->pack_row[p->n_pack] = r;
        p->pack_at[p->n_pack++] = o->view.data + o->at_row * o->row_bytes;
    }
    o->at_row++;
}

void sl_outgoing_entry(const sl_pass *p, uint32_t r, uint32_t j, sl_outgoing *o) {
    size_t rj = (size_t)r * p->attn->m->top_k + j;
    o->view.expert[o->at_entry] = p->expert[rj];
    o->view.position[o->at_entry] = j;
    o->view.gate[o->at_entry++] = p->gate[rj];
}

void sl_outgoing_drop(sl_pass *p) {
    for (uint32_t i = 0; p->leaving && i < p->attn->n_experts; i++) {
        sl_net_buf_give(p->attn->w->net, p->out[i].buf);
        p->out[i].buf = NULL;
    }
    p->leaving = false;
}
