/* Slots, generations and credit of windows. */
#include "net/window.h"

#include "base/mem.h"
#include "base/mutate.h"

#include <stdatomic.h>
#include <string.h>

static uint32_t slot_of(const sl_window_shape *s, uint64_t number) {
    return (uint32_t)((number - 1) % s->slots);
}

sl_window_place sl_window_place_of(const sl_window_shape *s, uint64_t number, uint32_t bytes) {
    const size_t at = (size_t)slot_of(s, number) * ((size_t)s->slot_bytes + (size_t)SL_WINDOW_LINE);
    const uint32_t generation = s->first + (uint32_t)(number - 1);
    return (sl_window_place){.number = number,
                             .flag = (uint64_t)generation << 32 | bytes,
                             .at = at,
                             .flag_at = at + s->slot_bytes};
}

/* Stored with release and read with acquire: who has seen the flag sees the payload. */
static _Atomic uint64_t *flag_in(uint8_t *memory, size_t at) {
    return (_Atomic uint64_t *)(void *)(memory + at);
}

/* Of slot i, before its first message: a generation that none of these has. */
static sl_window_place empty_place(const sl_window_shape *s, uint32_t i) {
    sl_window_place p = sl_window_place_of(s, i + 1u, 0);
    p.flag = (uint64_t)(s->first - 1) << 32;
    return p;
}

/* ---- the sender's end ---- */

bool sl_window_out_is_it(const sl_window_out *o) {
    for (uint32_t i = 0; i < o->shape.slots; i++) {
        const sl_window_place p = empty_place(&o->shape, i);
        if (atomic_load_explicit(flag_in(o->memory, p.flag_at), memory_order_acquire) != p.flag)
            return false;
    }
    return true;
}

bool sl_window_out_has_room(const sl_window_out *o, size_t bytes) {
    const bool free = o->sent - o->free_to < o->shape.slots || SL_MUTATION(UNCREDITED_SLOT);
    return bytes > 0 && bytes <= o->shape.slot_bytes && free;
}

uint64_t sl_window_out_put(sl_window_out *o, const void *payload, uint32_t bytes) {
    const sl_window_place p = sl_window_place_of(&o->shape, ++o->sent, bytes);
    memcpy(o->memory + p.at, payload, bytes);
    atomic_store_explicit(flag_in(o->memory, p.flag_at), p.flag, memory_order_release);
    return p.number;
}

sl_status sl_window_out_credit(sl_window_out *o, uint64_t taken, sl_err *err) {
    if (taken < o->free_to || taken > o->sent)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "the peer has taken %llu messages from its window, of %llu to %llu",
                       (unsigned long long)taken, (unsigned long long)o->free_to,
                       (unsigned long long)o->sent);
    o->free_to = taken;
    return SL_OK;
}

/* ---- the receiver's end ---- */

void sl_window_in_open(sl_window_in *in) {
    memset(in->memory, 0, sl_window_bytes(&in->shape));
    for (uint32_t i = 0; i < in->shape.slots; i++) {
        const sl_window_place p = empty_place(&in->shape, i);
        atomic_store_explicit(flag_in(in->memory, p.flag_at), p.flag, memory_order_release);
    }
}

sl_status sl_window_in_announced(const sl_window_in *in, uint64_t number, size_t bytes,
                                 sl_err *err) {
    if (number <= in->taken || number - in->taken > in->shape.slots)
        return sl_fail(err, SL_ERR_PROTOCOL, "message %llu of a window of %u slots, %llu are taken",
                       (unsigned long long)number, in->shape.slots, (unsigned long long)in->taken);
    if (bytes == 0 || bytes > in->shape.slot_bytes)
        return sl_fail(err, SL_ERR_PROTOCOL, "a message of %zu bytes in a slot of %u", bytes,
                       in->shape.slot_bytes);
    return SL_OK;
}

static uint64_t flag_at(const sl_window_in *in, size_t at) {
    return atomic_load_explicit(flag_in(in->memory, at), memory_order_acquire);
}

static bool is_expected(uint64_t flag, uint64_t expected) {
    if (SL_MUTATION(ANY_GENERATION)) return (uint32_t)flag == (uint32_t)expected;
    return flag == expected;
}

static sl_status strange(const sl_window_place *p, uint64_t flag, const char *when, sl_err *err) {
    return sl_fail(err, SL_ERR_PROTOCOL,
                   "a late writer in a window: generation %08x of %u bytes%s, %08x of %u expected",
                   (unsigned)(flag >> 32), (unsigned)flag, when, (unsigned)(p->flag >> 32),
                   (unsigned)p->flag);
}

sl_status sl_window_in_take(sl_window_in *in, uint64_t number, uint32_t bytes, void *out,
                            sl_err *err) {
    sl_status st = sl_window_in_announced(in, number, bytes, err);
    if (st != SL_OK) return st;
    if (number != in->taken + 1)
        return sl_fail(err, SL_ERR_PROTOCOL, "message %llu of a window, %llu expected",
                       (unsigned long long)number, (unsigned long long)in->taken + 1);
    const sl_window_place p = sl_window_place_of(&in->shape, number, bytes);
    const uint64_t before = flag_at(in, p.flag_at);
    if (!is_expected(before, p.flag)) return strange(&p, before, "", err);
    memcpy(out, in->memory + p.at, bytes);
    atomic_thread_fence(memory_order_acquire); /* the copy before the second look */
    const uint64_t after = flag_at(in, p.flag_at);
    if (after != before) return strange(&p, after, " when it had been read", err);
    in->taken = number;
    return SL_OK;
}

/* ---- bytes ---- */

size_t sl_window_offer_encode(const sl_window_offer *o, uint8_t out[SL_WINDOW_MAX_OFFER]) {
    sl_wr w = sl_wr_of(out, SL_WINDOW_MAX_OFFER);
    sl_wr_u64(&w, o->at);
    sl_wr_u32(&w, o->shape.slots);
    sl_wr_u32(&w, o->shape.slot_bytes);
    sl_wr_u32(&w, o->shape.first);
    sl_wr_u32(&w, (uint32_t)o->key.len);
    sl_wr_bytes(&w, o->key.data, o->key.len);
    return w.len;
}

sl_status sl_window_offer_decode(sl_span payload, sl_window_offer *out, sl_err *err) {
    sl_cur c = sl_cur_of(payload);
    sl_window_offer o = {.at = sl_cur_u64(&c)};
    o.shape.slots = sl_cur_u32(&c);
    o.shape.slot_bytes = sl_cur_u32(&c);
    o.shape.first = sl_cur_u32(&c);
    o.key.len = sl_cur_u32(&c);
    const bool shaped = o.shape.slots > 0 && o.shape.slots <= SL_WINDOW_MAX_SLOTS &&
                        o.shape.slot_bytes > 0 && o.shape.slot_bytes <= SL_WINDOW_MAX_SLOT_BYTES &&
                        o.shape.slot_bytes % SL_WINDOW_LINE == 0 && o.shape.first != 0;
    if (!c.ok || !shaped || o.at == 0 || o.at % sizeof(uint64_t) ||
        o.at > UINT64_MAX - sl_window_bytes(&o.shape) || o.key.len > SL_WINDOW_MAX_KEY_BYTES ||
        o.key.len != sl_cur_left(&c))
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "a window of %u slots of %u bytes, its key has %zu in a message of %zu",
                       o.shape.slots, o.shape.slot_bytes, o.key.len, payload.len);
    o.key.data = sl_cur_take(&c, o.key.len);
    *out = o;
    return SL_OK;
}

void sl_window_note_encode(const sl_window_note *n, uint8_t out[SL_WINDOW_NOTE_BYTES]) {
    sl_wr w = sl_wr_of(out, SL_WINDOW_NOTE_BYTES);
    sl_wr_u64(&w, n->number);
    sl_wr_u64(&w, n->taken);
}

sl_window_note sl_window_note_decode(const uint8_t in[SL_WINDOW_NOTE_BYTES]) {
    sl_cur c = sl_cur_of((sl_span){in, SL_WINDOW_NOTE_BYTES});
    const uint64_t number = sl_cur_u64(&c);
    return (sl_window_note){.number = number, .taken = sl_cur_u64(&c)};
}
