/* The owner's end of rails that ranks on machines of their own have: what they are told, and what
 * they say. */
#include "net/rails_int.h"

#include <stdio.h>
#include <string.h>

void rails_say(const sl_rails *r, const rails_link *l, sl_rails_word_kind kind) {
    sl_rails_word w = {.kind = kind, .key = l->key};
    if (!r->begun) return; /* they hear of it when they are there */
    for (uint32_t i = 1; i < r->o.n; i++) {
        if (kind == SL_RAILS_CALL) memcpy(w.text, l->where.at[i], sizeof w.text);
        r->far.say(r->far.ctx, i, &w);
    }
}

void sl_rails_begin(sl_rails *r) {
    r->begun = true;
    for (rails_link *l = r->links; l; l = l->next) {
        l->since_us = sl_clock_now_us(&r->o.net.clock);
        rails_say(r, l, SL_RAILS_CALL);
    }
}

/* ---- what leaves ---- */

static rails_link *whole_link(const sl_rails *r, const sl_conn *c) {
    rails_link *l = r->links;
    while (l && l->main != c) l = l->next;
    return l && l->bound == r->all_bound && !l->broken ? l : NULL;
}

bool sl_rails_can_spread(const sl_rails *r, const sl_conn *c) {
    return rails_are_far(r) && c && whole_link(r, c);
}

sl_spread_name sl_rails_spread(sl_rails *r, const sl_conn *c, bool stays, size_t bytes) {
    rails_link *l = c && !stays ? whole_link(r, c) : NULL;
    if (l) r->stats.rail_bytes += bytes;
    if (l) return (sl_spread_name){.number = ++l->sent, .key = l->key, .cut = true};
    return (sl_spread_name){.number = ++r->stayed, .key = stays ? 0 : UINT64_MAX, .cut = !stays};
}

sl_status rails_send_spread(sl_rails *r, const rails_link *l, sl_wire_header h, sl_buf *payload) {
    const sl_rails_striped s = {
        .kind = h.kind, .bytes = (uint32_t)payload->len, .number = payload->spread.number};
    const bool its = l && payload->spread.key == l->key; /* else nobody gets the other parts */
    sl_buf *b = its ? sl_net_buf_take(r->o.main, SL_STRIPED_HEAD + payload->len) : NULL;
    if (b) {
        sl_rails_striped_encode(&s, b->data);
        memcpy(b->data + SL_STRIPED_HEAD, payload->data, payload->len);
    }
    sl_net_buf_give(r->o.main, payload);
    if (!b) return its ? SL_ERR_NOMEM : SL_ERR_PEER_DOWN;
    r->stats.striped++;
    h.kind = SL_MSG_STRIPED;
    return sl_net_send(r->o.main, l->main, h, b);
}

/* ---- what ranks say ---- */

sl_status rails_hear_part(rails_item *it, uint32_t rank, uint32_t rows, sl_err *err) {
    if (it->h.rows != rows)
        return sl_fail(err, SL_ERR_PROTOCOL, "%u rows of rank %u of a message of %u", rows, rank,
                       it->h.rows);
    if (it->heard & 1u << rank)
        return sl_fail(err, SL_ERR_PROTOCOL, "rank %u has its part of a message twice", rank);
    it->heard |= 1u << rank;
    it->missing--;
    return SL_OK;
}

/* A rank's part of a message is there. */
static sl_status on_part(rails_link *l, uint32_t rank, const sl_rails_word *w, sl_err *err) {
    rails_item *it = rails_item_of(l, w->number);
    const rails_early e = {.rail = rank, .number = w->number, .rows = w->rows};
    if (!it && w->number <= l->got) return SL_OK; /* of one that is through, as it was refused */
    return it ? rails_hear_part(it, rank, w->rows, err) : rails_come_early(l, &e, err);
}

void sl_rails_on_word(sl_rails *r, uint32_t rank, const sl_rails_word *w) {
    rails_link *l = rails_link_of(r, w->key);
    sl_err err;
    if (!l || !rails_are_far(r) || rank == 0 || rank >= r->o.n) return;
    if (w->kind == SL_RAILS_BOUND) l->bound |= 1u << rank;
    if (w->kind == SL_RAILS_BROKE) rails_break(l, rank, w->text);
    if (w->kind == SL_RAILS_HERE && on_part(l, rank, w, &err) != SL_OK)
        rails_break(l, rank, err.msg);
}
