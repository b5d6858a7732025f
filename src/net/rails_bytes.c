/* What main connections say about rails, as bytes. */
#include "net/rails.h"

#include <string.h>

size_t sl_rails_greeting_bytes(uint32_t n) {
    return SL_RAILS_GREETING_HEAD + (size_t)(n - 1) * SL_RAILS_ADDRESS;
}

void sl_rails_greeting_encode(const sl_rails_greeting *g, uint8_t *out) {
    sl_wr w = sl_wr_of(out, sl_rails_greeting_bytes(g->n));
    sl_wr_u32(&w, g->n);
    sl_wr_u32(&w, 0);
    sl_wr_u64(&w, g->key);
    for (uint32_t i = 1; i < g->n; i++) sl_wr_bytes(&w, g->at[i], SL_RAILS_ADDRESS);
}

sl_status sl_rails_greeting_decode(sl_span payload, sl_rails_greeting *out, sl_err *err) {
    sl_cur c = sl_cur_of(payload);
    sl_rails_greeting g = {.n = sl_cur_u32(&c)};
    const uint32_t reserved = sl_cur_u32(&c);
    g.key = sl_cur_u64(&c);
    if (!c.ok || g.n < 2 || g.n > SL_RAILS_MAX || reserved || !g.key ||
        payload.len != sl_rails_greeting_bytes(g.n))
        return sl_fail(err, SL_ERR_PROTOCOL, "rails: %u of %zu bytes, 2 to %u rails are possible",
                       g.n, payload.len, SL_RAILS_MAX);
    for (uint32_t i = 1; i < g.n; i++) {
        memcpy(g.at[i], sl_cur_take(&c, SL_RAILS_ADDRESS), SL_RAILS_ADDRESS);
        if (!g.at[i][0] || !memchr(g.at[i], 0, SL_RAILS_ADDRESS))
            return sl_fail(err, SL_ERR_PROTOCOL, "rail %u has no address", i);
    }
    *out = g;
    return SL_OK;
}

void sl_rails_striped_encode(const sl_rails_striped *s, uint8_t *out) {
    sl_wr w = sl_wr_of(out, SL_STRIPED_HEAD);
    sl_wr_u16(&w, s->kind);
    sl_wr_u16(&w, 0);
    sl_wr_u32(&w, s->bytes);
    sl_wr_u64(&w, s->number);
}

void sl_rails_word_encode(const sl_rails_word *word, uint8_t *out) {
    sl_wr w = sl_wr_of(out, SL_RAILS_WORD_BYTES);
    sl_wr_u32(&w, word->kind);
    sl_wr_u32(&w, word->rows);
    sl_wr_u64(&w, word->key);
    sl_wr_u64(&w, word->number);
    sl_wr_bytes(&w, word->text, SL_RAILS_ADDRESS);
}

sl_status sl_rails_word_decode(sl_span payload, sl_rails_word *out, sl_err *err) {
    sl_cur c = sl_cur_of(payload);
    const uint32_t kind = sl_cur_u32(&c);
    sl_rails_word w = {.kind = (sl_rails_word_kind)kind, .rows = sl_cur_u32(&c)};
    w.key = sl_cur_u64(&c);
    w.number = sl_cur_u64(&c);
    const uint8_t *text = sl_cur_take(&c, SL_RAILS_ADDRESS);
    if (!c.ok || sl_cur_left(&c) || kind == 0 || kind >= SL_RAILS_WORDS || !w.key ||
        !memchr(text, 0, SL_RAILS_ADDRESS))
        return sl_fail(err, SL_ERR_PROTOCOL, "word %u about rails, of %zu bytes", kind,
                       payload.len);
    memcpy(w.text, text, SL_RAILS_ADDRESS);
    *out = w;
    return SL_OK;
}

static bool may_be_striped(uint16_t kind) {
    return kind == SL_MSG_DISPATCH || kind == SL_MSG_RETURN;
}

sl_status sl_rails_striped_decode(sl_span payload, uint32_t n, sl_rails_striped *out, sl_err *err) {
    sl_cur c = sl_cur_of(payload);
    sl_rails_striped s = {.kind = sl_cur_u16(&c)};
    const uint16_t reserved = sl_cur_u16(&c);
    s.bytes = sl_cur_u32(&c);
    s.number = sl_cur_u64(&c);
    if (!c.ok || reserved || !may_be_striped(s.kind) || s.bytes > SL_WIRE_MAX_BYTES ||
        sl_cur_left(&c) != sl_stripe_begin(s.bytes, n, 1))
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "kind %u of %u bytes in stripes, the first of %zu; of %u rails it has %zu",
                       s.kind, s.bytes, sl_cur_left(&c), n, sl_stripe_begin(s.bytes, n, 1));
    *out = s;
    return SL_OK;
}
