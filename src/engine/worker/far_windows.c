/* Windows between devices of workers: offered, and joined. */
#include "engine/worker/far_windows.h"

#include "base/log.h"
#include "engine/host/far.h"

#include <string.h>

_Static_assert(SL_WINDOW_MAX_SLOTS <= SL_ROW_SLOTS_MAX, "slots that an offer may have");

static sl_far_window *create(sl_worker *w) {
    sl_far_window *f = sl_alloc(1, sizeof *f);
    if (!f) return NULL;
    f->w = w;
    f->next = w->far;
    w->far = f;
    return f;
}

static sl_status join(sl_far_window *f, sl_span key, uint32_t slots, size_t slot_bytes,
                      sl_err *err) {
    sl_device *d = f->w->device;
    sl_status st = d->ops->join(d, key, &f->other, err);
    if (st != SL_OK) return st;
    const size_t there = f->other.bytes;
    if (there < slots * slot_bytes) {
        d->ops->part(d, f->other);
        f->other = (sl_mem){0};
        return sl_fail(err, SL_ERR_PROTOCOL, "a window of %u slots of %zu bytes in %zu", slots,
                       slot_bytes, there);
    }
    f->out.slots = slots;
    f->out.slot_bytes = slot_bytes;
    return SL_OK;
}

static sl_status tell(sl_worker *w, uint32_t id, const sl_far_window *f, const sl_device_key *key) {
    const sl_window_offer offer = {
        .shape = {.slots = f->in.slots, .slot_bytes = (uint32_t)f->in.slot_bytes, .first = 1},
        .at = f->own.at,
        .key = {key->bytes, key->len}};
    uint8_t bytes[SL_WINDOW_MAX_OFFER];
    const size_t n = sl_window_offer_encode(&offer, bytes);
    sl_buf *b = sl_net_buf_take(w->net, n);
    if (!b) return SL_ERR_NOMEM;
    memcpy(b->data, bytes, n);
    return sl_worker_send(w, id, (sl_wire_header){.kind = SL_MSG_DEVICE_WINDOW}, b);
}

/* Memory that this worker's device offers; itself joins it at once. Without it there are no slots
 * that rows could come in. */
static sl_status offer(sl_worker *w, uint32_t id, sl_far_window *f, uint32_t slots,
                       size_t slot_bytes, sl_err *err) {
    sl_device *d = w->device;
    sl_device_key key;
    sl_status st = d->ops->offer(d, slots * slot_bytes, &f->own, &key, err);
    if (st != SL_OK) return st;
    f->in.slots = slots;
    f->in.slot_bytes = slot_bytes;
    if (id == w->id) return join(f, (sl_span){key.bytes, key.len}, slots, slot_bytes, err);
    st = tell(w, id, f, &key);
    return st == SL_OK || st == SL_ERR_PEER_DOWN ? SL_OK : sl_fail(err, st, "an offer");
}

/* What it has offered is joined. */
static void use(uint32_t id, sl_worker_peer *p) {
    sl_window_offer o = {0};
    sl_err err;
    sl_status st = sl_window_offer_decode((sl_span){p->offer, p->offered}, &o, &err);
    if (st == SL_OK) st = join(p->far, o.key, o.shape.slots, o.shape.slot_bytes, &err);
    p->offered = 0;
    if (st == SL_OK)
        sl_log(SL_LOG_INFO, "worker", "rows for worker %u stay on GPUs: %u slots of %u bytes", id,
               o.shape.slots, o.shape.slot_bytes);
    else
        sl_log(SL_LOG_WARN, "worker", "rows for worker %u go by the host: %s", id, err.msg);
}

void sl_far_windows_open(sl_worker *w, uint32_t id, uint32_t slots, size_t slot_bytes) {
    sl_worker_peer *p = &w->peer[id];
    sl_err err;
    if (!p->far) {
        sl_far_window *f = create(w);
        sl_status st =
            f ? offer(w, id, f, slots, slot_bytes, &err) : sl_fail(&err, SL_ERR_NOMEM, "a window");
        if (st != SL_OK)
            sl_log(SL_LOG_WARN, "worker", "rows of worker %u come by the host: %s", id, err.msg);
        if (!f) return;
        p->far = f;
    }
    if (p->offered) use(id, p);
}

sl_status sl_far_windows_on_offer(sl_worker *w, const sl_wire_header *h, const sl_conn *from,
                                  sl_span bytes, sl_err *err) {
    sl_window_offer o;
    sl_status st = sl_window_offer_decode(bytes, &o, err);
    if (st != SL_OK) return st;
    if (h->src >= w->n_peers || h->src == w->id)
        return sl_fail(err, SL_ERR_PROTOCOL, "a window of worker %u", h->src);
    sl_worker_peer *p = &w->peer[h->src];
    if (!p->open || p->conn != from) return SL_OK; /* gone meanwhile, perhaps with another here */
    if (p->has_offered || bytes.len > sizeof p->offer)
        return sl_fail(err, SL_ERR_PROTOCOL, "%s of worker %u, %zu bytes",
                       p->has_offered ? "a second window" : "a window", h->src, bytes.len);
    memcpy(p->offer, bytes.data, bytes.len);
    p->offered = (uint32_t)bytes.len;
    p->has_offered = true;
    w->windows_due = true;
    return SL_OK;
}
