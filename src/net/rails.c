/* The owner's end of rails: main connections and their messages in order, payloads that leave in
 * stripes. */
#include "net/rails_int.h"

#include "base/log.h"
#include "base/mem.h"

#include <sodium.h>
#include <stdio.h>

/* Who leaves hangs up everywhere: so long the main connection may say so itself. */
#define GRACE_US 50000u

/* Not as the main net counts it, which another thread may drive. */
static uint64_t now_us(const sl_rails *r) {
    return sl_clock_now_us(&r->o.net.clock);
}

void rails_break(rails_link *l, uint32_t index, const char *why) {
    if (l->broken) return;
    l->broken = true;
    snprintf(l->why, sizeof l->why, "rail %u: %s", index, why);
}

sl_status rails_come_early(rails_link *l, const rails_early *what, sl_err *err) {
    if (l->n_early == RAILS_EARLY)
        return sl_fail(err, SL_ERR_PROTOCOL, "%u stripes before their header", RAILS_EARLY);
    rails_early *e = sl_alloc(1, sizeof *e);
    if (!e) return sl_fail(err, SL_ERR_NOMEM, "a stripe");
    *e = *what;
    e->next = l->early;
    l->early = e;
    l->n_early++;
    return SL_OK;
}

static rails_link *link_of(const sl_rails *r, const sl_conn *c) {
    rails_link *l = r->links;
    while (l && l->main != c) l = l->next;
    return l;
}

/* ---- orders ---- */

static rail_order *order_take(sl_rails *r) {
    pthread_mutex_lock(&r->lock);
    rail_order *o = r->free_orders;
    if (o) r->free_orders = o->next;
    pthread_mutex_unlock(&r->lock);
    return o ? o : sl_alloc(1, sizeof *o);
}

static void order_give(sl_rails *r, rail_order *o) {
    if (!o) return;
    pthread_mutex_lock(&r->lock);
    o->next = r->free_orders;
    r->free_orders = o;
    pthread_mutex_unlock(&r->lock);
}

static void order(sl_rails *r, uint32_t index, rail_order *o) {
    rail *t = &r->rail[index];
    o->next = NULL;
    pthread_mutex_lock(&r->lock);
    *t->last = o;
    t->last = &o->next;
    pthread_mutex_unlock(&r->lock);
    if (!r->o.driven && t->net) sl_net_wake(t->net);
}

/* One for each rail, or none. */
static bool orders_take(sl_rails *r, rail_order *out[SL_RAILS_MAX]) {
    bool all = true;
    for (uint32_t i = 1; i < r->o.n; i++) all = (out[i] = order_take(r)) && all;
    for (uint32_t i = 1; !all && i < r->o.n; i++) order_give(r, out[i]);
    return all;
}

/* ---- links ---- */

static sl_status link_add(sl_rails *r, sl_conn *c, uint64_t key, bool called, sl_err *err) {
    rails_link *l = sl_alloc(1, sizeof *l);
    if (!l) return sl_fail(err, SL_ERR_NOMEM, "rails of a connection");
    *l = (rails_link){
        .main = c, .peer = *sl_conn_hello(c), .key = key, .called = called, .since_us = now_us(r)};
    l->tail = &l->queue;
    pthread_mutex_lock(&r->lock);
    l->next = r->links;
    r->links = l;
    pthread_mutex_unlock(&r->lock);
    return SL_OK;
}

sl_status sl_rails_greet(sl_rails *r, sl_conn *c, sl_err *err) {
    sl_rails_greeting g = {.n = r->o.n};
    if (rails_are_far(r) && !r->begun) return SL_OK;
    while (g.key == 0) randombytes_buf(&g.key, sizeof g.key);
    for (uint32_t i = 1; i < r->o.n; i++)
        snprintf(g.at[i], sizeof g.at[i], "%s",
                 rails_are_far(r) ? r->at[i] : sl_net_address(r->rail[i].net));
    sl_buf *b = sl_net_buf_take(r->o.main, sl_rails_greeting_bytes(g.n));
    if (!b) return sl_fail(err, SL_ERR_NOMEM, "rails of a connection");
    sl_rails_greeting_encode(&g, b->data);
    sl_status st = link_add(r, c, g.key, true, err);
    if (st != SL_OK) {
        sl_net_buf_give(r->o.main, b);
        return st;
    }
    if (rails_are_far(r)) rails_say(r, r->links, SL_RAILS_EXPECT);
    /* It is gone, then, which on_down says. */
    (void)sl_net_send(r->o.main, c, (sl_wire_header){.kind = SL_MSG_RAILS}, b);
    return SL_OK;
}

/* The peer that this net called says where its rails are. */
static sl_status greeted(sl_rails *r, sl_conn *c, sl_span payload, sl_err *err) {
    sl_rails_greeting g;
    rail_order *o[SL_RAILS_MAX];
    sl_status st = sl_rails_greeting_decode(payload, &g, err);
    if (st != SL_OK) return st;
    if (g.n != r->o.n)
        return sl_fail(err, SL_ERR_PROTOCOL, "the peer has %u rails, this worker %u", g.n, r->o.n);
    pthread_mutex_lock(&r->lock);
    const bool known = rails_link_of(r, g.key) != NULL;
    pthread_mutex_unlock(&r->lock);
    if (known || link_of(r, c))
        return sl_fail(err, SL_ERR_PROTOCOL, "rails of a connection that has some");
    if (rails_are_far(r)) {
        st = link_add(r, c, g.key, false, err);
        if (st != SL_OK) return st;
        r->links->where = g;
        rails_say(r, r->links, SL_RAILS_CALL);
        return SL_OK;
    }
    if (!orders_take(r, o)) return sl_fail(err, SL_ERR_NOMEM, "rails of a connection");
    st = link_add(r, c, g.key, false, err);
    for (uint32_t i = 1; i < r->o.n; i++) {
        if (st != SL_OK) {
            order_give(r, o[i]);
            continue;
        }
        *o[i] = (rail_order){.kind = RAIL_CALL, .key = g.key};
        memcpy(o[i]->at, g.at[i], sizeof o[i]->at);
        order(r, i, o[i]);
    }
    return st;
}

/* Outside the lock. */
static void drop_early(sl_rails *r, rails_early *list) {
    for (rails_early *e; (e = list) != NULL;) {
        list = e->next;
        sl_net_buf_give(r->o.main, e->bytes); /* blocks are any net's */
        sl_free(e);
    }
}

static void drop_item(sl_rails *r, rails_item *it) {
    it->dropped = true;
    if (it->busy) return;
    it->next = r->dropped;
    r->dropped = it;
}

void sl_rails_on_down(sl_rails *r, sl_conn *c) {
    rails_link *l = link_of(r, c);
    rail_order *o[SL_RAILS_MAX];
    if (!l) return;
    pthread_mutex_lock(&r->lock);
    rails_link **at = &r->links;
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    for (rails_item *it; (it = l->queue) != NULL;) {
        l->queue = it->next;
        drop_item(r, it);
    }
    pthread_mutex_unlock(&r->lock);
    drop_early(r, l->early);
    if (rails_are_far(r)) {
        rails_say(r, l, SL_RAILS_HANG_UP);
    } else if (orders_take(r, o)) { /* without memory for that the peer hangs up */
        for (uint32_t i = 1; i < r->o.n; i++) {
            *o[i] = (rail_order){.kind = RAIL_HANG_UP, .key = l->key};
            order(r, i, o[i]);
        }
    }
    sl_free(l);
}

/* ---- messages that come ---- */

static rails_item *item_take(sl_rails *r) {
    pthread_mutex_lock(&r->lock);
    rails_item *it = r->free_items;
    if (it) r->free_items = it->next;
    pthread_mutex_unlock(&r->lock);
    if (!it) it = sl_alloc(1, sizeof *it);
    if (it) *it = (rails_item){0};
    return it;
}

static void item_give(sl_rails *r, rails_item *it) {
    pthread_mutex_lock(&r->lock);
    it->next = r->free_items;
    r->free_items = it;
    pthread_mutex_unlock(&r->lock);
}

/* A stripe that came before its header goes where it belongs. */
static sl_status put_early(const sl_rails *r, rails_item *it, const rails_early *e, sl_err *err) {
    if (rails_are_far(r)) return rails_hear_part(it, e->rail, e->rows, err);
    const size_t from = sl_stripe_begin(it->payload->len, r->o.n, e->rail);
    const size_t to = sl_stripe_begin(it->payload->len, r->o.n, e->rail + 1);
    const size_t len = e->bytes ? e->bytes->len : 0;
    if (len != to - from)
        return sl_fail(err, SL_ERR_PROTOCOL, "stripe %u of %zu bytes of a message of %zu", e->rail,
                       len, it->payload->len);
    if (len) memcpy(it->payload->data + from, e->bytes->data, len);
    it->missing--;
    return SL_OK;
}

/* Under the lock, with the header here: stripes that came before it, which go to *taken, with those
 * of messages that never left whole. */
static sl_status take_early(sl_rails *r, rails_link *l, rails_item *it, rails_early **taken,
                            sl_err *err) {
    sl_status st = SL_OK;
    for (rails_early **at = &l->early; *at;) {
        rails_early *e = *at;
        if (e->number > it->number) {
            at = &e->next;
            continue;
        }
        if (e->number == it->number && st == SL_OK) st = put_early(r, it, e, err);
        l->n_early--;
        *at = e->next;
        e->next = *taken;
        *taken = e;
    }
    return st;
}

static sl_status put_item(sl_rails *r, rails_link *l, rails_item *it, sl_err *err) {
    sl_status st = SL_OK;
    rails_early *taken = NULL;
    pthread_mutex_lock(&r->lock);
    *l->tail = it;
    l->tail = &it->next;
    if (it->number) st = take_early(r, l, it, &taken, err);
    pthread_mutex_unlock(&r->lock);
    drop_early(r, taken);
    return st;
}

static sl_status on_striped(sl_rails *r, rails_link *l, const sl_wire_header *h, sl_span payload,
                            sl_err *err) {
    sl_rails_striped s;
    const bool far = rails_are_far(r);
    sl_status st = sl_rails_striped_decode(payload, far ? 1 : r->o.n, &s, err);
    if (st != SL_OK) return st;
    /* In parts a message may have been given up after its number was taken. */
    if (far ? s.number <= l->got : s.number != l->got + 1)
        return sl_fail(err, SL_ERR_PROTOCOL, "message %llu in stripes, %llu expected",
                       (unsigned long long)s.number, (unsigned long long)l->got + 1);
    if (far && h->rows == 0) return sl_fail(err, SL_ERR_PROTOCOL, "a message in parts of no rows");
    rails_item *it = item_take(r);
    sl_buf *b = it ? sl_net_buf_take(r->o.main, s.bytes) : NULL;
    if (!b) {
        if (it) item_give(r, it);
        return sl_fail(err, SL_ERR_NOMEM, "a message of %u bytes in stripes", s.bytes);
    }
    l->got = s.number;
    if (far) b->spread = (sl_spread_name){.number = s.number, .key = l->key, .cut = true};
    *it = (rails_item){.h = *h, .payload = b, .number = s.number, .missing = r->o.n - 1};
    it->h.kind = s.kind;
    it->h.bytes = s.bytes;
    memcpy(b->data, payload.data + SL_STRIPED_HEAD, payload.len - SL_STRIPED_HEAD);
    return put_item(r, l, it, err);
}

/* Delivers the link's messages as far as they are whole. A message that cannot be delivered ends
 * its connection. */
static uint32_t deliver_link(sl_rails *r, rails_link *l) {
    uint32_t n = 0;
    sl_err err;
    for (;;) {
        const bool open = sl_conn_is_open(l->main); /* the net has a lock, too: never within ours */
        pthread_mutex_lock(&r->lock);
        rails_item *it = l->queue;
        const bool whole = it && it->missing == 0 && it->busy == 0 && open;
        if (whole && !(l->queue = it->next)) l->tail = &l->queue;
        pthread_mutex_unlock(&r->lock);
        if (!whole) return n;
        const sl_wire_header h = it->h;
        sl_buf *payload = it->payload;
        item_give(r, it);
        n++;
        if (r->o.deliver(r->o.ctx, l->main, &h, payload, &err) == SL_OK) continue;
        sl_log(SL_LOG_WARN, "rails", "%s: %s", sl_msg_kind_name(h.kind), err.msg);
        sl_net_close(r->o.main, l->main, err.code, err.msg);
        return n;
    }
}

static sl_status wait_its_turn(sl_rails *r, rails_link *l, const sl_wire_header *h, sl_buf *payload,
                               sl_err *err) {
    rails_item *it = item_take(r);
    if (!it) {
        sl_net_buf_give(r->o.main, payload);
        return sl_fail(err, SL_ERR_NOMEM, "a message that waits");
    }
    *it = (rails_item){.h = *h, .payload = payload};
    return put_item(r, l, it, err);
}

sl_status sl_rails_on_message(sl_rails *r, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                              sl_err *err) {
    rails_link *l = link_of(r, c);
    const sl_span span = payload ? (sl_span){payload->data, payload->len} : (sl_span){0};
    sl_status st;
    if (h->kind != SL_MSG_RAILS && h->kind != SL_MSG_STRIPED) {
        if (l && l->queue) return wait_its_turn(r, l, h, payload, err);
        return r->o.deliver(r->o.ctx, c, h, payload, err);
    }
    if (h->kind == SL_MSG_RAILS)
        st = greeted(r, c, span, err);
    else if (l)
        st = on_striped(r, l, h, span, err);
    else
        st = sl_fail(err, SL_ERR_PROTOCOL, "stripes of a connection without rails");
    sl_net_buf_give(r->o.main, payload);
    if (st == SL_OK && l) (void)deliver_link(r, l);
    return st;
}

/* ---- messages that leave ---- */

static bool is_striped(const sl_rails *r, const rails_link *l, const sl_wire_header *h,
                       const sl_buf *payload) {
    if (!l || !payload || rails_are_far(r) || payload->len < SL_MAX(r->o.least, (size_t)1))
        return false;
    return (h->kind == SL_MSG_DISPATCH || h->kind == SL_MSG_RETURN) &&
           payload->len <= SL_WIRE_MAX_BYTES && l->bound == r->all_bound && !l->broken;
}

static rails_parcel *parcel_take(sl_rails *r) {
    pthread_mutex_lock(&r->lock);
    rails_parcel *p = r->free_parcels;
    if (p) r->free_parcels = p->next;
    pthread_mutex_unlock(&r->lock);
    return p ? p : sl_alloc(1, sizeof *p);
}

/* The header with stripe 0; NULL: out of memory. */
static sl_buf *first_stripe(sl_rails *r, const rails_link *l, uint16_t kind, const sl_buf *whole) {
    const size_t len = sl_stripe_begin(whole->len, r->o.n, 1);
    sl_buf *b = sl_net_buf_take(r->o.main, SL_STRIPED_HEAD + len);
    if (!b) return NULL;
    const sl_rails_striped s = {.kind = kind, .bytes = (uint32_t)whole->len, .number = l->sent + 1};
    sl_rails_striped_encode(&s, b->data);
    memcpy(b->data + SL_STRIPED_HEAD, whole->data, len);
    return b;
}

sl_status sl_rails_send(sl_rails *r, sl_conn *c, sl_wire_header h, sl_buf *payload) {
    rails_link *l = link_of(r, c);
    if (payload && payload->spread.number) return rails_send_spread(r, l, h, payload);
    pthread_mutex_lock(&r->lock);
    const bool striped = is_striped(r, l, &h, payload);
    pthread_mutex_unlock(&r->lock);
    rail_order *o[SL_RAILS_MAX];
    rails_parcel *p = striped ? parcel_take(r) : NULL;
    sl_buf *first = p ? first_stripe(r, l, h.kind, payload) : NULL;
    if (!first || !orders_take(r, o)) { /* whole, as without rails */
        sl_net_buf_give(r->o.main, first);
        sl_free(p);
        return sl_net_send(r->o.main, c, h, payload);
    }
    h.kind = SL_MSG_STRIPED;
    sl_status st = sl_net_send(r->o.main, c, h, first);
    *p = (rails_parcel){.payload = payload, .key = l->key, .number = ++l->sent, .left = r->o.n - 1};
    r->stats.striped++;
    r->stats.rail_bytes += payload->len - sl_stripe_begin(payload->len, r->o.n, 1);
    for (uint32_t i = 1; i < r->o.n; i++) {
        *o[i] = (rail_order){.kind = RAIL_SEND, .key = l->key, .parcel = p};
        order(r, i, o[i]);
    }
    return st;
}

sl_rails_stats sl_rails_stats_of(const sl_rails *r) {
    return r->stats;
}

/* ---- turns ---- */

/* What rails are through with goes back to the main net. */
static void clear_away(sl_rails *r) {
    pthread_mutex_lock(&r->lock);
    rails_parcel *p = r->spent;
    rails_item *it = r->dropped;
    r->spent = NULL;
    r->dropped = NULL;
    pthread_mutex_unlock(&r->lock);
    for (rails_parcel *next; p; p = next) {
        next = p->next;
        sl_net_buf_give(r->o.main, p->payload);
        pthread_mutex_lock(&r->lock);
        p->next = r->free_parcels;
        r->free_parcels = p;
        pthread_mutex_unlock(&r->lock);
    }
    for (rails_item *next; it; it = next) {
        next = it->next;
        sl_net_buf_give(r->o.main, it->payload);
        item_give(r, it);
    }
}

/* Why the link's main connection is to end now; NULL: it is not. */
static const char *why_end(sl_rails *r, rails_link *l, char text[120]) {
    pthread_mutex_lock(&r->lock);
    const bool broken = l->broken;
    const uint32_t bound = l->bound;
    if (broken) memcpy(text, l->why, sizeof l->why);
    pthread_mutex_unlock(&r->lock);
    if (!broken && bound == r->all_bound) {
        if (!l->told) sl_log(SL_LOG_INFO, "rails", "%u rails with %s", r->o.n, l->peer.name);
        l->told = true;
        return NULL;
    }
    const uint64_t now = now_us(r);
    if (broken && !l->broken_us) l->broken_us = SL_MAX(now, 1u);
    if (broken) return now - l->broken_us >= GRACE_US ? text : NULL;
    /* Who is called by ranks that are far away cannot know when these have opened their model. */
    if (rails_are_far(r) && (l->called || !r->begun)) return NULL;
    if (now - l->since_us < SL_RAILS_MS * UINT64_C(1000)) return NULL;
    snprintf(text, 120, "not all of %u rails are there after %u ms", r->o.n, SL_RAILS_MS);
    return text;
}

uint32_t sl_rails_progress(sl_rails *r) {
    uint32_t n = 0;
    char text[120];
    if (r->far.listen && r->begun && sl_rails_await(r)) r->far.listen(r->far.ctx);
    for (uint32_t i = 1; r->o.driven && i < r->o.n; i++) rail_turn(&r->rail[i]);
    for (rails_link *l = r->links; l; l = l->next) {
        n += deliver_link(r, l);
        const char *why = why_end(r, l, text);
        if (why && sl_conn_is_open(l->main))
            sl_net_close(r->o.main, l->main, SL_ERR_PEER_DOWN, why);
    }
    clear_away(r);
    return n;
}

bool sl_rails_await(const sl_rails *r) {
    for (const rails_link *l = r->links; l; l = l->next)
        if (l->queue) return true;
    return false;
}

/* ---- opening and closing ---- */

static const char *host_of(const sl_rails_opts *o, uint32_t i, char out[SL_RAILS_ADDRESS],
                           sl_err *err) {
    if (!o->hosts || !o->hosts[0]) return o->net.host;
    size_t len = 0;
    const char *at = sl_rank_address(o->hosts, i - 1, &len);
    size_t more;
    if (!at || len == 0 || len >= SL_RAILS_ADDRESS ||
        (i + 1 == o->n && sl_rank_address(o->hosts, i, &more))) {
        sl_fail(err, SL_ERR_ARG, "--rails '%.60s': %u addresses are wanted, of ranks 1 to %u",
                o->hosts, o->n - 1, o->n - 1);
        return NULL;
    }
    memcpy(out, at, len);
    out[len] = 0;
    return out;
}

static sl_status open_rail(sl_rails *r, uint32_t i, sl_err *err) {
    rail *t = &r->rail[i];
    char host[SL_RAILS_ADDRESS];
    t->all = r;
    t->index = i;
    t->last = &t->orders;
    const char *at = host_of(&r->o, i, host, err);
    if (!at && r->o.hosts && r->o.hosts[0]) return SL_ERR_ARG;
    if (!rails_are_far(r)) return rail_open(t, at, err);
    snprintf(r->at[i], sizeof r->at[i], "%s", at ? at : "");
    return SL_OK;
}

static sl_status start_threads(sl_rails *r, sl_err *err) {
    for (uint32_t i = 1; !rails_are_far(r) && i < r->o.n; i++) {
        if (pthread_create(&r->rail[i].thread, NULL, rail_main, &r->rail[i]) != 0)
            return sl_fail(err, SL_ERR_IO, "the thread of rail %u did not start", i);
        r->rail[i].runs = true;
    }
    return SL_OK;
}

sl_status sl_rails_open(const sl_rails_opts *o, sl_rails **out, sl_err *err) {
    if (o->n < 2 || o->n > SL_RAILS_MAX)
        return sl_fail(err, SL_ERR_ARG, "%u rails: 2 to %u", o->n, SL_RAILS_MAX);
    sl_rails *r = sl_alloc(1, sizeof *r);
    if (!r) return sl_fail(err, SL_ERR_NOMEM, "%u rails", o->n);
    pthread_mutex_init(&r->lock, NULL);
    r->o = *o;
    if (o->far) r->far = *o->far;
    r->o.far = NULL;
    r->all_bound = (1u << o->n) - 2;
    sl_status st = SL_OK;
    for (uint32_t i = 1; st == SL_OK && i < o->n; i++) st = open_rail(r, i, err);
    if (st == SL_OK && !o->driven) st = start_threads(r, err);
    r->o.hosts = NULL; /* the caller's */
    if (st == SL_OK)
        *out = r;
    else
        sl_rails_free(r);
    return st;
}

static void free_lists(sl_rails *r) {
    for (rails_parcel *p; (p = r->free_parcels) != NULL; sl_free(p)) r->free_parcels = p->next;
    for (rails_item *it; (it = r->free_items) != NULL; sl_free(it)) r->free_items = it->next;
    for (rail_order *o; (o = r->free_orders) != NULL; sl_free(o)) r->free_orders = o->next;
}

void sl_rails_free(sl_rails *r) {
    if (!r) return;
    atomic_store_explicit(&r->stop, true, memory_order_release);
    for (uint32_t i = 1; i < r->o.n; i++) {
        if (!r->rail[i].runs) continue;
        sl_net_wake(r->rail[i].net);
        pthread_join(r->rail[i].thread, NULL);
    }
    for (uint32_t i = 1; i < r->o.n; i++)
        if (r->rail[i].net) rail_close(&r->rail[i]);
    while (r->links) sl_rails_on_down(r, r->links->main);
    for (uint32_t i = 1; i < r->o.n; i++)
        for (rail_order *o; (o = r->rail[i].orders) != NULL; sl_free(o))
            r->rail[i].orders = o->next;
    clear_away(r);
    free_lists(r);
    pthread_mutex_destroy(&r->lock);
    sl_free(r);
}
