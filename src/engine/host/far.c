/* Rows between devices of workers: slots of messages on their way, notes, what is parted from. */
#include "engine/host/far.h"

/* ---- windows ---- */

void sl_far_lose(sl_worker *w, sl_worker_peer *p) {
    if (!p->far) return;
    p->far->gone = true;
    p->far = NULL;
    w->far_due = true;
}

static void part(sl_worker *w, sl_mem *m) {
    if (m->bytes) w->device->ops->part(w->device, *m);
    *m = (sl_mem){0};
}

void sl_far_look(sl_worker *w) {
    if (!w->far_due || !w->device || w->inbox.len) return; /* which may name some */
    w->far_due = false;
    for (sl_far_window **at = &w->far, *f; (f = *at) != NULL;) {
        if (f->gone && f->leaving == 0) part(w, &f->other);
        if (f->gone && f->here == 0) part(w, &f->own);
        if (f->gone && f->leaving == 0 && f->here == 0) {
            *at = f->next;
            sl_free(f);
        } else {
            at = &f->next;
        }
    }
}

void sl_far_close(sl_worker *w) {
    for (sl_far_window *f = w->far; f; f = f->next) {
        part(w, &f->other);
        part(w, &f->own);
        f->gone = true;
    }
}

void sl_far_free(sl_worker *w) {
    while (w->far) {
        sl_far_window *f = w->far;
        w->far = f->next;
        sl_free(f);
    }
}

/* ---- rows of a message ---- */

/* Its own rows that came to this worker lie where it packed them. */
static bool is_own(const sl_far_window *f) {
    return f->own.at == f->other.at;
}

static bool take(sl_worker *w, uint32_t id, size_t bytes, sl_far_name *out) {
    sl_far_window *f = w->peer[id].far;
    uint32_t slot;
    if (!f || !f->other.bytes || !sl_row_slots_take(&f->out, bytes, &slot)) return false;
    f->leaving++;
    *out = (sl_far_name){.window = f, .slot = slot, .bytes = bytes, .leaves = true};
    return true;
}

sl_buf *sl_far_buf(sl_worker *w, uint32_t id, size_t bytes, size_t head, size_t rows) {
    sl_far_name far = {0};
    const bool is = take(w, id, rows, &far);
    sl_buf *b = sl_net_buf_take(w->net, is ? head + SL_ROW_NOTE_BYTES : bytes);
    if (!b) {
        const sl_buf none = {.far = far};
        if (is) sl_far_given(&none);
        return NULL;
    }
    b->far = far;
    if (is) b->len = head;
    return b;
}

uint8_t *sl_far_at(const sl_buf *b) {
    const sl_far_window *f = b ? b->far.window : NULL;
    if (!f) return NULL;
    const bool other = b->far.leaves;
    const size_t at = b->far.slot * (other ? f->out.slot_bytes : f->in.slot_bytes);
    return (uint8_t *)(uintptr_t)((other ? f->other.at : f->own.at) + at);
}

sl_status sl_far_find(const sl_worker *w, const sl_buf *b, uint32_t rows, uint8_t **data,
                      sl_err *err) {
    const sl_far_window *f = b ? b->far.window : NULL;
    if (!f) return SL_OK;
    const size_t bytes =
        rows * sl_wire_row_bytes((sl_wire_format)w->plan.wire, w->device->spec->d_model);
    if (bytes > f->in.slot_bytes && !is_own(f))
        return sl_fail(err, SL_ERR_PROTOCOL, "rows of %zu bytes in a slot of %zu", bytes,
                       f->in.slot_bytes);
    *data = sl_far_at(b);
    return SL_OK;
}

bool sl_far_is_lost(const sl_buf *b) {
    const sl_far_window *f = b ? b->far.window : NULL;
    return f && f->gone;
}

void sl_far_given(const sl_buf *b) {
    sl_far_window *f = b->far.window;
    if (b->far.leaves || is_own(f)) {
        f->leaving--;
        sl_row_slots_untake(&f->out, b->far.slot);
    } else {
        f->here--;
        sl_row_slots_gone(&f->in, b->far.slot);
    }
    f->w->far_due |= f->gone;
}

/* ---- messages ---- */

/* Room for a note behind what there is, if it has that. */
static bool grow(sl_worker *w, sl_buf **payload) {
    sl_buf *b = *payload;
    if (!b) {
        *payload = sl_net_buf_take(w->net, SL_ROW_NOTE_BYTES);
        return *payload != NULL;
    }
    if (b->cap - b->len < SL_ROW_NOTE_BYTES) return false;
    b->len += SL_ROW_NOTE_BYTES;
    return true;
}

/* Notes go with these alone. */
static bool has_note(const sl_wire_header *h) {
    return h->kind == SL_MSG_DISPATCH || h->kind == SL_MSG_RETURN;
}

sl_status sl_far_seal(sl_worker *w, uint32_t id, sl_wire_header *h, sl_buf **payload) {
    sl_buf *b = *payload;
    sl_far_window *f = w->peer[id].far;
    const bool far = b && b->far.window;
    if (far && b->far.window != f) {
        sl_net_buf_give(w->net, b);
        return SL_ERR_PEER_DOWN;
    }
    if (!f || id == w->id || !has_note(h)) return SL_OK;
    if ((!far && !f->in.freed) || !grow(w, payload)) return SL_OK;
    sl_row_note note = {.slot = SL_ROW_SLOT_NONE, .freed = sl_row_slots_freed(&f->in)};
    b = *payload;
    if (far) {
        note.slot = b->far.slot;
        note.generation = sl_row_slots_announce(&f->out, note.slot);
        w->n.device_bytes += b->far.bytes;
        b->far = (sl_far_name){0};
        f->leaving--;
    }
    sl_row_note_encode(&note, b->data + b->len - SL_ROW_NOTE_BYTES);
    h->flags |= SL_WIRE_FAR;
    return SL_OK;
}

sl_status sl_far_arrive(sl_worker *w, sl_inbox_item *it, sl_err *err) {
    sl_far_window *f = it->far;
    sl_buf *b = it->payload;
    if (!(it->h.flags & SL_WIRE_FAR)) return SL_OK;
    if (!f || it->own || !has_note(&it->h) || !b || b->len < SL_ROW_NOTE_BYTES)
        return sl_fail(err, SL_ERR_PROTOCOL, "a note of a window in a message of %zu bytes",
                       b ? b->len : 0);
    b->len -= SL_ROW_NOTE_BYTES;
    it->h.bytes -= SL_ROW_NOTE_BYTES;
    it->h.flags &= ~SL_WIRE_FAR;
    const sl_row_note n = sl_row_note_decode(b->data + b->len);
    sl_status st = sl_row_slots_credit(&f->out, n.freed, err);
    if (st == SL_OK && n.slot != SL_ROW_SLOT_NONE) {
        st = sl_row_slots_come(&f->in, n.slot, n.generation, err);
        if (st != SL_OK) return st;
        b->far = (sl_far_name){.window = f, .slot = n.slot};
        f->here++;
    }
    if (st != SL_OK || b->len) return st;
    sl_net_buf_give(w->net, b);
    it->payload = NULL;
    return SL_OK;
}
