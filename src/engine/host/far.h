/* Rows between workers whose devices reach each other's memory: they go from device to device, and
 * messages go without them.
 *
 * A worker offers each peer that it exchanges rows with a window of its device, and joins the
 * peer's. Rows of a message to that peer take a slot there (net/row_slots.h), if one is free and
 * they fit; its `data` is the slot's address then, which means something to devices alone. Own rows
 * of a worker with both roles take a window that it has with itself. When the device has packed
 * them the message leaves as any other, with a note in place of its data: so order, rounds, and
 * what is done about lost workers are as without. A slot is free when the receiver gives the
 * message's buffer back. Windows end with their connection: rows that are not packed by then are
 * nobody's, and the peer's memory is left as soon as no buffer names it. Thread: owner. */
#ifndef SL_ENGINE_FAR_H
#define SL_ENGINE_FAR_H

#include "engine/host/host.h"
#include "net/row_slots.h"

/* With one peer, or with itself. */
struct sl_far_window {
    struct sl_far_window *next;
    sl_worker *w;
    sl_mem own,
        other; /* what the peer packs into; what this worker does. No bytes: there is none */
    sl_row_slots_in in;
    sl_row_slots_out out;
    uint32_t leaving, here; /* buffers with rows in `other` that have not left, in `own` */
    bool gone;              /* its connection is */
};

/* The connection is gone. From any callback. */
void sl_far_lose(sl_worker *w, sl_worker_peer *p);
/* Parts from windows that are gone and that nobody names any more, and frees them. */
void sl_far_look(sl_worker *w);
/* No buffer has rows that the device will be asked for; before it is closed. */
void sl_far_close(sl_worker *w);
void sl_far_free(sl_worker *w);     /* when no buffers are left */
void sl_far_given(const sl_buf *b); /* of sl_net_on_give */

/* A buffer for a message to worker `id` with so many bytes of rows: of `bytes`, or of `head`, as it
 * is without them, when they take a slot. NULL: no memory. */
sl_buf *sl_far_buf(sl_worker *w, uint32_t id, size_t bytes, size_t head, size_t rows) SL_MUST_CHECK;
/* Where rows of this buffer lie; NULL: in it. */
uint8_t *sl_far_at(const sl_buf *b);
/* The same of a message that came and has been decoded, into *data, of so many rows with data.
 * SL_ERR_PROTOCOL: they cannot lie there. */
sl_status sl_far_find(const sl_worker *w, const sl_buf *b, uint32_t rows, uint8_t **data,
                      sl_err *err) SL_MUST_CHECK;
/* Whoever was to get them is gone: they are not to be packed. */
bool sl_far_is_lost(const sl_buf *b);

/* A DISPATCH or RETURN leaves for worker `id`, perhaps with a note. SL_ERR_PEER_DOWN: its rows are
 * in a window that is gone; it has been given back then. */
sl_status sl_far_seal(sl_worker *w, uint32_t id, sl_wire_header *h, sl_buf **payload) SL_MUST_CHECK;
/* One with a note has come: takes that off. SL_ERR_PROTOCOL. */
sl_status sl_far_arrive(sl_worker *w, sl_inbox_item *it, sl_err *err) SL_MUST_CHECK;

#endif
