/* Slots, generations and credit of windows in memory of devices. */
#include "net/row_slots.h"

static uint64_t bit(uint32_t slot) {
    return (uint64_t)1 << slot;
}

/* ---- the sender's end ---- */

bool sl_row_slots_take(sl_row_slots_out *o, size_t bytes, uint32_t *slot) {
    if (bytes == 0 || bytes > o->slot_bytes) return false;
    for (uint32_t i = 0; i < o->slots; i++) {
        if (o->busy & bit(i)) continue;
        o->busy |= bit(i);
        *slot = i;
        return true;
    }
    return false;
}

uint32_t sl_row_slots_announce(sl_row_slots_out *o, uint32_t slot) {
    o->announced |= bit(slot);
    return ++o->generation[slot];
}

void sl_row_slots_untake(sl_row_slots_out *o, uint32_t slot) {
    o->busy &= ~bit(slot);
}

sl_status sl_row_slots_credit(sl_row_slots_out *o, uint64_t freed, sl_err *err) {
    if (freed & ~o->announced)
        return sl_fail(err, SL_ERR_PROTOCOL, "the peer has read slots %llx, it was told of %llx",
                       (unsigned long long)freed, (unsigned long long)o->announced);
    o->announced &= ~freed;
    o->busy &= ~freed;
    return SL_OK;
}

/* ---- the receiver's end ---- */

sl_status sl_row_slots_come(sl_row_slots_in *in, uint32_t slot, uint32_t generation, sl_err *err) {
    if (slot >= in->slots)
        return sl_fail(err, SL_ERR_PROTOCOL, "rows in slot %u of %u", slot, in->slots);
    if (((in->busy | in->freed) & bit(slot)) || generation != in->generation[slot] + 1)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "a late writer in slot %u: generation %u after %u, which is %s", slot,
                       generation, in->generation[slot],
                       (in->busy | in->freed) & bit(slot) ? "still its own" : "read");
    in->generation[slot] = generation;
    in->busy |= bit(slot);
    return SL_OK;
}

void sl_row_slots_gone(sl_row_slots_in *in, uint32_t slot) {
    in->busy &= ~bit(slot);
    in->freed |= bit(slot);
}

uint64_t sl_row_slots_freed(sl_row_slots_in *in) {
    const uint64_t freed = in->freed;
    in->freed = 0;
    return freed;
}

/* ---- bytes ---- */

void sl_row_note_encode(const sl_row_note *n, uint8_t out[SL_ROW_NOTE_BYTES]) {
    sl_wr w = sl_wr_of(out, SL_ROW_NOTE_BYTES);
    sl_wr_u32(&w, n->slot);
    sl_wr_u32(&w, n->generation);
    sl_wr_u64(&w, n->freed);
}

sl_row_note sl_row_note_decode(const uint8_t in[SL_ROW_NOTE_BYTES]) {
    sl_cur c = sl_cur_of((sl_span){in, SL_ROW_NOTE_BYTES});
    const uint32_t slot = sl_cur_u32(&c), generation = sl_cur_u32(&c);
    return (sl_row_note){.slot = slot, .generation = generation, .freed = sl_cur_u64(&c)};
}
