/* What leaves a rank. */
#include "net/fused_int.h"

#include <string.h>

static sl_status send_to(sl_fused *f, uint32_t rank, fused_step step, uint32_t lane, uint32_t rows,
                         sl_buf *payload, sl_err *err) {
    const sl_wire_header h = {.kind = SL_MSG_FUSED,
                              .pass = f->pass,
                              .layer = f->layer,
                              .chunk = (uint32_t)step,
                              .lane = lane,
                              .rows = rows};
    uint64_t values = payload ? payload->len / sizeof(float) : 0;
    if (step == FUSED_CONTROL) {
        f->n.control_messages++;
        f->n.control_bytes += payload ? payload->len : 0;
    } else if (step == FUSED_PART || step == FUSED_REPLY) {
        f->n.inter_messages++;
        f->n.inter_values += values;
    } else {
        f->n.intra_messages++;
        f->n.intra_values += values;
    }
    sl_status st = f->o.send(f->o.ctx, rank, h, payload);
    return st == SL_OK ? SL_OK : sl_fail(err, st, "fused: send to rank %u", rank);
}

/* Room for n rows of a part; *out NULL when there are none. */
static sl_status take(sl_fused *f, uint32_t n, sl_buf **out, sl_err *err) {
    size_t bytes = (size_t)n * f->part * sizeof(float);
    *out = bytes ? sl_net_buf_take(f->o.net, bytes) : NULL;
    return bytes && !*out ? sl_fail(err, SL_ERR_NOMEM, "fused: %zu bytes", bytes) : SL_OK;
}

/* Part tp of rows [n][d_model]. */
static void copy_part(const sl_fused *f, const float *rows, uint32_t n, uint32_t tp, sl_buf *out) {
    size_t bytes = f->part * sizeof(float);
    for (uint32_t i = 0; i < n; i++)
        memcpy(out->data + i * bytes, rows + (size_t)i * f->o.d_model + (size_t)tp * f->part,
               bytes);
}

sl_status sl_fused_send_control(sl_fused *f, uint32_t node, sl_err *err) {
    sl_span c = f->to[node].control;
    sl_buf *b = c.len ? sl_net_buf_take(f->o.net, c.len) : NULL;
    if (c.len && !b) return sl_fail(err, SL_ERR_NOMEM, "fused: %zu bytes", c.len);
    if (b) memcpy(b->data, c.data, c.len);
    return send_to(f, fused_rank(f, node, f->o.tp), FUSED_CONTROL, f->o.node, f->to[node].n, b,
                   err);
}

sl_status sl_fused_send_part(sl_fused *f, uint32_t node, const float *x, sl_err *err) {
    const sl_fused_rows *to = &f->to[node];
    sl_buf *b;
    sl_status st = take(f, to->n, &b, err);
    if (st != SL_OK) return st;
    size_t bytes = f->part * sizeof(float);
    for (uint32_t i = 0; i < to->n; i++)
        memcpy(b->data + i * bytes,
               x + (size_t)to->row[i] * f->o.d_model + (size_t)f->o.tp * f->part, bytes);
    return send_to(f, fused_rank(f, node, f->o.tp), FUSED_PART, f->o.node, to->n, b, err);
}

sl_status sl_fused_send_gather(sl_fused *f, fused_step step, uint32_t lane, const float *rows,
                               uint32_t n, sl_err *err) {
    for (uint32_t k = 1; k < f->o.n_tp; k++) { /* in a ring, so that none receives all at once */
        uint32_t t = (f->o.tp + k) % f->o.n_tp;
        sl_buf *b;
        sl_status st = take(f, n, &b, err);
        if (st == SL_OK && b) copy_part(f, rows, n, f->o.tp, b);
        if (st == SL_OK) st = send_to(f, fused_rank(f, f->o.node, t), step, lane, n, b, err);
        if (st != SL_OK) return st;
    }
    return SL_OK;
}

sl_status sl_fused_send_partial(sl_fused *f, uint32_t node, const float *partial, uint32_t n,
                                sl_buf **own, sl_err *err) {
    *own = NULL;
    for (uint32_t k = 1; k <= f->o.n_tp; k++) {
        uint32_t t = (f->o.tp + k) % f->o.n_tp;
        sl_buf *b;
        sl_status st = take(f, n, &b, err);
        if (st == SL_OK && b) copy_part(f, partial, n, t, b);
        if (st == SL_OK && t != f->o.tp)
            st = send_to(f, fused_rank(f, f->o.node, t), FUSED_REDUCE, node, n, b, err);
        else if (st == SL_OK)
            *own = b;
        if (st != SL_OK) return st;
    }
    return SL_OK;
}

sl_status sl_fused_send_reply(sl_fused *f, uint32_t node, uint32_t n, sl_buf *sums, sl_err *err) {
    return send_to(f, fused_rank(f, node, f->o.tp), FUSED_REPLY, f->o.node, n, sums, err);
}
