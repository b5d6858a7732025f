/* Windows: memory of a receiver that one sender writes rows into (M2N, MegaScale 5).
 *
 * A window has slots; message `number` (from 1, of its direction of a connection) goes into slot
 * (number - 1) modulo slots: first the payload, then the slot's flag, 8 bytes that say which
 * message this is (its generation) and how long. What tells of it is the message's header, which
 * goes the way of every message: so order, sessions and waking are as without windows, and a
 * payload that does not fit, or finds no slot free, goes with its header. The receiver takes a
 * payload when its header's turn has come: it copies it out, as the memory is the peer's to write
 * at any time; then the slot is free. How many it has taken goes with whatever it sends next: the
 * reply is the credit. Another flag than the expected one is that of a late or strange writer: the
 * connection ends.
 *
 * The transport maps the memory into both processes and carries offers and notes
 * (net/ucx/windows.c). docs/protocol.md has the layout. Thread: owner of the net. */
#ifndef SL_NET_WINDOW_H
#define SL_NET_WINDOW_H

#include "base/span.h"
#include "base/status.h"

#define SL_WINDOW_MAX_SLOTS      64u
#define SL_WINDOW_MAX_SLOT_BYTES (64u << 20)
#define SL_WINDOW_MAX_KEY_BYTES  1024u
#define SL_WINDOW_LINE           64u /* slots and their flags begin on lines */

typedef struct sl_window_shape {
    uint32_t slots;      /* 1 to SL_WINDOW_MAX_SLOTS */
    uint32_t slot_bytes; /* of the longest payload; a multiple of SL_WINDOW_LINE */
    uint32_t first;      /* generation of message 1: not 0, drawn for this window alone */
} sl_window_shape;

/* Each slot: room for the payload, then a line with the flag at its beginning. */
static inline size_t sl_window_bytes(const sl_window_shape *s) {
    return (size_t)s->slots * ((size_t)s->slot_bytes + SL_WINDOW_LINE);
}

/* Where message `number` goes, and its flag; the flag's place is 8-byte aligned. */
typedef struct sl_window_place {
    uint64_t number, flag;
    size_t at, flag_at; /* bytes from the window's beginning */
} sl_window_place;

sl_window_place sl_window_place_of(const sl_window_shape *s, uint64_t number, uint32_t bytes);

/* ---- the sender's end ---- */

typedef struct sl_window_out {
    sl_window_shape shape;
    uint8_t *memory;        /* the receiver's, mapped here */
    uint64_t sent, free_to; /* messages put, and those that the receiver has taken */
} sl_window_out;

/* Whether the memory is as sl_window_in_open left it: that of the window which was offered. */
bool sl_window_out_is_it(const sl_window_out *o);
/* Whether a payload of so many bytes may be put now: it fits, and a slot is free. */
bool sl_window_out_has_room(const sl_window_out *o, size_t bytes);
/* Writes it; returns its number. There is room. */
uint64_t sl_window_out_put(sl_window_out *o, const void *payload, uint32_t bytes);
/* The receiver says how many it has taken. SL_ERR_PROTOCOL: it cannot be. */
sl_status sl_window_out_credit(sl_window_out *o, uint64_t taken, sl_err *err) SL_MUST_CHECK;

/* ---- the receiver's end ---- */

typedef struct sl_window_in {
    sl_window_shape shape;
    uint8_t *memory; /* sl_window_bytes; the caller's, and the peer's to write */
    uint64_t taken;
} sl_window_in;

/* Zeroes the memory and gives each slot the flag of no message, by which the peer knows it. */
void sl_window_in_open(sl_window_in *in);
/* A header says that its payload is message `number`, of so many bytes: SL_ERR_PROTOCOL when that
 * cannot be, before memory is taken for it. */
sl_status sl_window_in_announced(const sl_window_in *in, uint64_t number, size_t bytes,
                                 sl_err *err) SL_MUST_CHECK;
/* Copies message `number`, whose turn it is, to out. Its header came after it. SL_ERR_PROTOCOL: it
 * is not there, somebody else has written, another message was due, or it changed while it was
 * copied.
 */
sl_status sl_window_in_take(sl_window_in *in, uint64_t number, uint32_t bytes, void *out,
                            sl_err *err) SL_MUST_CHECK;

/* ---- bytes ---- */

/* WINDOW: u64 where the window is at the receiver, u32 slots, u32 slot_bytes, u32 first,
 * u32 key_bytes, then the transport's key to that memory. */
typedef struct sl_window_offer {
    sl_window_shape shape;
    uint64_t at;
    sl_span key; /* of a decoded one: borrowed from the payload */
} sl_window_offer;
#define SL_WINDOW_OFFER_HEAD 24u
#define SL_WINDOW_MAX_OFFER  (SL_WINDOW_OFFER_HEAD + SL_WINDOW_MAX_KEY_BYTES)
/* Returns the length. */
size_t sl_window_offer_encode(const sl_window_offer *o, uint8_t out[SL_WINDOW_MAX_OFFER]);
sl_status sl_window_offer_decode(sl_span payload, sl_window_offer *out, sl_err *err) SL_MUST_CHECK;

/* A note goes with a header: which message of the window its payload is (0: it is none), and how
 * many of the other direction were taken. */
typedef struct sl_window_note {
    uint64_t number, taken;
} sl_window_note;
#define SL_WINDOW_NOTE_BYTES 16u
void sl_window_note_encode(const sl_window_note *n, uint8_t out[SL_WINDOW_NOTE_BYTES]);
sl_window_note sl_window_note_decode(const uint8_t in[SL_WINDOW_NOTE_BYTES]);

#endif
