/* What reaches a worker and waits for its loop, and what it sends: to a peer, to the coordinator,
 * to itself. */
#include "engine/host/far.h"

/* Messages that may wait for the loop, besides sl_inbox.more: reservations bound the token path far
 * below this. */
#define INBOX_MAX 65536u
#define INBOX_MIN 256u

#define WAVE_MAX_STEP (1ull << 32) /* of one message: no peer can make the number overflow */

/* ---- inbox ---- */

sl_status sl_inbox_reserve(sl_inbox *in, sl_err *err) {
    size_t cap = SL_MAX(in->cap * 2, INBOX_MIN);
    if (in->len >= INBOX_MAX + in->more)
        return sl_fail(err, SL_ERR_LIMIT, "%zu messages wait, limit %zu", in->len,
                       INBOX_MAX + in->more);
    sl_inbox_item *bigger = sl_alloc(cap, sizeof *bigger);
    if (!bigger) return sl_fail(err, SL_ERR_NOMEM, "inbox of %zu messages", cap);
    for (size_t i = 0; i < in->len; i++) bigger[i] = *sl_inbox_at(in, i);
    sl_free(in->item);
    in->item = bigger;
    in->cap = cap;
    in->head = 0;
    return SL_OK;
}

sl_status sl_inbox_push(sl_inbox *in, sl_inbox_item item, sl_err *err) {
    if (in->len == in->cap) {
        sl_status st = sl_inbox_reserve(in, err);
        if (st != SL_OK) return st;
    }
    *sl_inbox_at(in, in->len++) = item;
    return SL_OK;
}

bool sl_inbox_pop(sl_inbox *in, sl_inbox_item *out) {
    if (in->len == 0) return false;
    *out = in->item[in->head];
    in->head = (in->head + 1) % in->cap;
    in->len--;
    return true;
}

void sl_inbox_free(sl_inbox *in) {
    sl_free(in->item);
    *in = (sl_inbox){0};
}

/* ---- sending ---- */

sl_buf *sl_worker_buf(sl_worker *w, size_t len) {
    sl_buf *b = sl_net_buf_take(w->net, len);
    if (!b && !w->stop)
        sl_worker_stop(w, sl_fail(&w->stop_err, SL_ERR_NOMEM, "message of %zu bytes", len));
    return b;
}

static sl_status send_to_itself(sl_worker *w, sl_wire_header h, sl_buf *payload) {
    h.src = w->id;
    h.bytes = payload ? (uint32_t)payload->len : 0;
    if (payload) payload->far.leaves = false;
    sl_err err;
    const sl_inbox_item item = {.own = true,
                                .h = h,
                                .payload = payload,
                                .came_ns = sl_now_ns(),
                                .came_us = sl_clock_now_us(&w->clock)};
    sl_status st = sl_inbox_push(&w->inbox, item, &err);
    if (st == SL_OK) return st;
    sl_net_buf_give(w->net, payload);
    if (!w->stop) { /* nobody would ever answer it */
        w->stop_err = err;
        sl_worker_stop(w, st);
    }
    return st;
}

sl_status sl_worker_send(sl_worker *w, uint32_t dst, sl_wire_header h, sl_buf *payload) {
    if (!h.epoch) h.epoch = w->plan.epoch;
    if (dst == w->id && w->planned) return send_to_itself(w, h, payload);
    sl_status st = dst == SL_NO_WORKER ? SL_OK : sl_far_seal(w, dst, &h, &payload);
    if (st != SL_OK) return st;
    sl_conn *c = dst == SL_NO_WORKER ? w->coordinator : w->peer[dst].conn;
    if (!c || (dst == SL_NO_WORKER && !w->coordinator_open)) {
        sl_net_buf_give(w->net, payload);
        return SL_ERR_PEER_DOWN;
    }
    size_t bytes = payload ? payload->len : 0;
    w->n.sent_messages++;
    w->n.sent_bytes += SL_WIRE_HEADER_BYTES + bytes;
    sl_trace_event before = sl_worker_begin_send(w, dst, &h, bytes);
    st = w->rails && dst != SL_NO_WORKER ? sl_rails_send(w->rails, c, h, payload)
                                         : sl_net_send(w->net, c, h, payload);
    sl_worker_begin(w, &before);
    return st;
}

bool sl_worker_can_spread(const sl_worker *w, uint32_t id, size_t bytes) {
    if (!w->rails || !w->device->spreads || bytes == 0 || bytes < w->plan.rail_bytes) return false;
    return id == w->id || sl_rails_can_spread(w->rails, w->peer[id].conn);
}

sl_spread_name sl_worker_spread(sl_worker *w, uint32_t id, uint32_t rows) {
    const bool own = id == w->id;
    const sl_wire_format f = (sl_wire_format)w->plan.wire;
    const size_t whole = sl_wire_row_bytes(f, w->device->spec->d_model);
    return sl_rails_spread(w->rails, own ? NULL : w->peer[id].conn, own,
                           rows * (whole - sl_wire_row_bytes(f, w->device->spreads)));
}

void sl_worker_tell_of(sl_worker *w, uint16_t kind, uint32_t id, uint64_t number) {
    sl_buf *b = sl_worker_buf(w, SL_WIRE_WORKER_BYTES);
    if (!b) return;
    sl_wire_worker_encode(id, b->data);
    const sl_wire_header h = {.kind = kind, .number = number};
    sl_worker_send(w, SL_NO_WORKER, h, b);
}

sl_status sl_worker_refuse(const sl_wire_header *h, sl_err *err) {
    return sl_fail(err, SL_ERR_PROTOCOL, "unexpected %s from worker %u", sl_msg_kind_name(h->kind),
                   h->src);
}

sl_status sl_worker_check_wave(const sl_worker *w, const sl_wire_header *h, size_t bytes,
                               uint64_t seen, sl_err *err) {
    const uint32_t n_moe = w->device->spec->n_moe;
    if (h->lane || h->chunk || h->flags || h->layer >= n_moe || h->rows == 0 || bytes == 0)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "%s of %u rows, %zu bytes for layer %u of %u, lane %u, chunk %u, flags %x",
                       sl_msg_kind_name(h->kind), h->rows, bytes, h->layer, n_moe, h->lane,
                       h->chunk, h->flags);
    if (h->wave > seen && h->wave - seen > WAVE_MAX_STEP)
        return sl_fail(err, SL_ERR_PROTOCOL, "wave %llu after %llu", (unsigned long long)h->wave,
                       (unsigned long long)seen);
    return SL_OK;
}
