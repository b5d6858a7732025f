/* A peer that writes whatever it likes into a window, and says whatever it likes of it. Input: u8
 * slots, u8 lines of a slot, then steps of u8 what and its operands. Nothing may be read or written
 * outside of window and payload, nothing but what was expected is taken, and the count never
 * goes back. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/window.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void say(sl_window_in *in, uint64_t number, uint32_t bytes) {
    sl_err err;
    const uint64_t before = in->taken;
    if (sl_window_in_announced(in, number, bytes, &err) != SL_OK) return;
    SL_ASSERT(bytes > 0 && bytes <= in->shape.slot_bytes);
    /* As long as was announced, as the transport takes it. */
    uint8_t *payload = malloc(bytes);
    if (!payload) return;
    const sl_window_place p = sl_window_place_of(&in->shape, number, bytes);
    uint64_t flag;
    memcpy(&flag, in->memory + p.flag_at, sizeof flag);
    sl_status st = sl_window_in_take(in, number, bytes, payload, &err);
    SL_ASSERT(in->taken == before + (st == SL_OK));
    SL_ASSERT(st != SL_OK || (flag == p.flag && number == before + 1));
    SL_ASSERT(st != SL_OK || memcmp(payload, in->memory + p.at, bytes) == 0);
    free(payload);
}

static const uint8_t payload[16 * SL_WINDOW_LINE];

static void step(sl_window_in *in, sl_window_out *out, sl_cur *c) {
    const size_t all = sl_window_bytes(&in->shape);
    const uint8_t what = sl_cur_u8(c);
    const uint64_t a = sl_cur_u16(c);
    const uint32_t b = sl_cur_u16(c);
    sl_window_place p = sl_window_place_of(&in->shape, in->taken + 1 + what / 8 % 4, b);
    sl_window_offer offer;
    sl_err err;
    switch (what % 8) {
    case 0: /* bytes anywhere */
        in->memory[a % all] = (uint8_t)b;
        break;
    case 1: /* a flag as it should be, or nearly */
        p.flag ^= what & 0x80 ? a : 0;
        memcpy(in->memory + p.flag_at, &p.flag, sizeof p.flag);
        break;
    case 2:
        say(in, in->taken + 1, b);
        break;
    case 3:
        say(in, in->taken + a, b);
        break;
    case 4:
        say(in, a << (what & 0xF8) % 48, b);
        break;
    case 5: /* credit, of what was put or not */
        if (sl_window_out_credit(out, a, &err) == SL_OK) SL_ASSERT(out->free_to <= out->sent);
        break;
    case 6:
        if (!sl_window_out_has_room(out, b)) break;
        p = sl_window_place_of(&out->shape, out->sent + 1, b);
        SL_ASSERT(p.flag_at + sizeof p.flag <= all && p.at + b <= p.flag_at);
        (void)sl_window_out_put(out, payload, b);
        SL_ASSERT(out->sent - out->free_to <= out->shape.slots);
        break;
    default: { /* what is left is an offer */
        const size_t left = sl_cur_left(c);
        const sl_span s = {sl_cur_take(c, left), left};
        if (sl_window_offer_decode(s, &offer, &err) != SL_OK) break;
        SL_ASSERT(offer.key.len <= SL_WINDOW_MAX_KEY_BYTES && offer.shape.first != 0);
        SL_ASSERT(offer.at + sl_window_bytes(&offer.shape) > offer.at);
        uint8_t again[SL_WINDOW_MAX_OFFER];
        SL_ASSERT(sl_window_offer_encode(&offer, again) == left && !memcmp(again, s.data, left));
    }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    sl_cur c = sl_cur_of((sl_span){data, size});
    sl_window_in in = {.shape = {.slots = 1 + sl_cur_u8(&c) % SL_WINDOW_MAX_SLOTS, .first = 9}};
    in.shape.slot_bytes = SL_WINDOW_LINE * (1 + sl_cur_u8(&c) % 16u);
    sl_window_out out = {.shape = in.shape};
    in.memory = sl_alloc(sl_window_bytes(&in.shape), 1);
    if (!in.memory) return 0;
    out.memory = in.memory;
    sl_window_in_open(&in);
    SL_ASSERT(sl_window_out_is_it(&out));
    while (sl_cur_left(&c) >= 5) step(&in, &out, &c);
    sl_free(in.memory);
    return 0;
}
