/* Slots of a window that lies in memory of the receiver's device.
 *
 * The sender's device packs the rows of a message into a slot, and the message goes over the
 * fabric without them. It ends with a note: which slot, and for the how-many-th time that one is
 * used (its generation). Unlike a payload in a window of the net (net/window.h) the rows are not
 * copied out when their turn has come, but read where they are by the task that wants them: so
 * slots are free again in any order, and a note says which ones are since the last note. The reply
 * is the credit, as there. A message that finds no slot free, or fits into none, has its rows with
 * it. Pure: no memory is touched. Thread: owner of the worker. */
#ifndef SL_NET_ROW_SLOTS_H
#define SL_NET_ROW_SLOTS_H

#include "base/span.h"
#include "base/status.h"

#define SL_ROW_SLOTS_MAX 64u

/* ---- the sender's end ---- */

typedef struct sl_row_slots_out {
    uint32_t slots;     /* 1 to SL_ROW_SLOTS_MAX; 0: there is no window */
    size_t slot_bytes;  /* of the rows of one message at most */
    uint64_t busy;      /* bits: those that are taken, */
    uint64_t announced; /* and of these the ones whose message has left */
    uint32_t generation[SL_ROW_SLOTS_MAX];
} sl_row_slots_out;

/* Takes a slot for rows of so many bytes. False: they fit into none, or none is free. */
bool sl_row_slots_take(sl_row_slots_out *o, size_t bytes, uint32_t *slot);
/* Its message leaves: the generation that its note says. */
uint32_t sl_row_slots_announce(sl_row_slots_out *o, uint32_t slot);
/* Its message did not leave. */
void sl_row_slots_untake(sl_row_slots_out *o, uint32_t slot);
/* The receiver says which are free again. SL_ERR_PROTOCOL: of these it was told of none. */
sl_status sl_row_slots_credit(sl_row_slots_out *o, uint64_t freed, sl_err *err) SL_MUST_CHECK;

/* ---- the receiver's end ---- */

typedef struct sl_row_slots_in {
    uint32_t slots;
    size_t slot_bytes;
    uint64_t busy;  /* bits: rows lie there, */
    uint64_t freed; /* or lay there, and the sender does not know */
    uint32_t generation[SL_ROW_SLOTS_MAX];
} sl_row_slots_in;

/* A message says where its rows are. SL_ERR_PROTOCOL: no such slot, one whose rows are still here,
 * or another generation than the next one, as of a sender that is late. */
sl_status sl_row_slots_come(sl_row_slots_in *in, uint32_t slot, uint32_t generation,
                            sl_err *err) SL_MUST_CHECK;
/* Nobody reads them any more. */
void sl_row_slots_gone(sl_row_slots_in *in, uint32_t slot);
/* What the next note says: it is said once. */
uint64_t sl_row_slots_freed(sl_row_slots_in *in);

/* ---- bytes ---- */

#define SL_ROW_SLOT_NONE UINT32_MAX

/* The last bytes of a message with SL_WIRE_FAR: u32 slot (SL_ROW_SLOT_NONE: its rows are with it,
 * or it has none), u32 generation, u64 freed: bits of the receiver's slots. */
typedef struct sl_row_note {
    uint32_t slot, generation;
    uint64_t freed;
} sl_row_note;
#define SL_ROW_NOTE_BYTES 16u
void sl_row_note_encode(const sl_row_note *n, uint8_t out[SL_ROW_NOTE_BYTES]);
sl_row_note sl_row_note_decode(const uint8_t in[SL_ROW_NOTE_BYTES]);

#endif
