/* One rail: its connections, the stripes that leave by it and those that come. */
#include "net/rails_int.h"

#include "base/mem.h"

#include <stdio.h>

#define AGAIN_US 200000u /* between two calls of a rail that is not there */
#define REST_US  100000u /* longest sleep */

static uint64_t now_us(const rail *t) {
    return sl_clock_now_us(&t->clock);
}

static rail_end *end_of(const rail *t, uint64_t key) {
    rail_end *e = t->ends;
    while (e && e->key != key) e = e->next;
    return e;
}

static void forget(rail *t, rail_end *gone) {
    rail_end **at = &t->ends;
    while (*at && *at != gone) at = &(*at)->next;
    if (*at) *at = gone->next;
    sl_free(gone);
}

/* ---- who is at the other end ---- */

/* The link has this rail now. False: the link is gone, or has it. */
static bool bind(rail *t, uint64_t key, const sl_hello *peer) {
    sl_rails *r = t->all;
    const uint32_t bit = 1u << t->index;
    pthread_mutex_lock(&r->lock);
    rails_link *l = rails_link_of(r, key);
    const bool good = l && !(l->bound & bit) && l->peer.worker == peer->worker &&
                      l->peer.incarnation == peer->incarnation;
    if (good) l->bound |= bit;
    pthread_mutex_unlock(&r->lock);
    return good;
}

static sl_status on_open(void *ctx, sl_conn *c, const sl_hello *peer, sl_err *err) {
    rail *t = ctx;
    rail_end *e = sl_conn_user(c);
    if (!e) return SL_OK; /* it says which link it is of */
    const sl_wire_header h = {.kind = SL_MSG_RAIL_IS, .number = e->key, .chunk = t->index};
    if (sl_net_send(t->net, c, h, NULL) != SL_OK)
        return sl_fail(err, SL_ERR_PEER_DOWN, "a rail is gone as it is greeted");
    if (!bind(t, e->key, peer))
        return sl_fail(err, SL_ERR_PROTOCOL, "rail %u answers for another worker", t->index);
    e->open = true;
    return SL_OK;
}

static sl_status greeted(rail *t, sl_conn *c, const sl_wire_header *h, sl_err *err) {
    if (sl_conn_user(c) || h->chunk != t->index || h->number == 0 || end_of(t, h->number))
        return sl_fail(err, SL_ERR_PROTOCOL, "rail %u says that it is rail %u of something",
                       t->index, h->chunk);
    rail_end *e = sl_alloc(1, sizeof *e);
    if (!e) return sl_fail(err, SL_ERR_NOMEM, "a rail");
    if (!bind(t, h->number, sl_conn_hello(c))) {
        sl_free(e);
        return sl_fail(err, SL_ERR_PROTOCOL, "rail %u of a connection that is not there", t->index);
    }
    *e = (rail_end){.next = t->ends, .key = h->number, .conn = c, .open = true};
    t->ends = e;
    sl_conn_set_user(c, e);
    return SL_OK;
}

static void on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    rail *t = ctx;
    sl_rails *r = t->all;
    rail_end *e = sl_conn_user(c);
    (void)why;
    if (!e) return;
    e->conn = NULL;
    pthread_mutex_lock(&r->lock);
    rails_link *l = rails_link_of(r, e->key);
    if (l && e->open) rails_break(l, t->index, text);
    pthread_mutex_unlock(&r->lock);
    if (l && !e->open) {
        e->again_us = now_us(t) + AGAIN_US;
        return;
    }
    forget(t, e);
    sl_net_wake(r->o.main);
}

/* ---- stripes that come ---- */

/* The lock is given up while the bytes are copied: others write, too. */
static void write_stripe(sl_rails *r, const rail *t, rails_item *it, const sl_buf *b) {
    const size_t at = sl_stripe_begin(it->payload->len, r->o.n, t->index);
    it->busy++;
    pthread_mutex_unlock(&r->lock);
    if (b) memcpy(it->payload->data + at, b->data, b->len);
    pthread_mutex_lock(&r->lock);
    it->busy--;
    if (it->dropped && it->busy == 0) {
        it->next = r->dropped;
        r->dropped = it;
    } else if (!it->dropped) {
        it->missing--;
    }
}

static sl_status take_stripe(rail *t, rail_end *e, const sl_wire_header *h, sl_buf **b,
                             sl_err *err) {
    sl_rails *r = t->all;
    sl_status st = SL_OK;
    bool whole = false;
    if (h->number != ++e->got)
        return sl_fail(err, SL_ERR_PROTOCOL, "stripe %llu after %llu",
                       (unsigned long long)h->number, (unsigned long long)e->got - 1);
    pthread_mutex_lock(&r->lock);
    rails_link *l = rails_link_of(r, e->key);
    rails_item *it = l ? rails_item_of(l, h->number) : NULL;
    const size_t len = *b ? (*b)->len : 0;
    if (it && len != sl_stripe_begin(it->payload->len, r->o.n, t->index + 1) -
                         sl_stripe_begin(it->payload->len, r->o.n, t->index)) {
        st = sl_fail(err, SL_ERR_PROTOCOL, "stripe %u of %zu bytes of a message of %zu", t->index,
                     len, it->payload->len);
    } else if (it) {
        write_stripe(r, t, it, *b);
        whole = !it->dropped && it->missing == 0;
    } else if (l) {
        const rails_early early = {.rail = t->index, .number = h->number, .bytes = *b};
        if ((st = rails_come_early(l, &early, err)) == SL_OK) *b = NULL;
    }
    pthread_mutex_unlock(&r->lock);
    if (whole) sl_net_wake(r->o.main);
    return st;
}

static sl_status on_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                            sl_err *err) {
    rail *t = ctx;
    rail_end *e = sl_conn_user(c);
    sl_status st;
    if (h->kind == SL_MSG_RAIL_IS)
        st = greeted(t, c, h, err);
    else if (h->kind == SL_MSG_STRIPE && e && e->open)
        st = take_stripe(t, e, h, &payload, err);
    else
        st = sl_fail(err, SL_ERR_PROTOCOL, "kind %u of message, which rails do not send",
                     (unsigned)h->kind);
    sl_net_buf_give(t->net, payload);
    return st;
}

/* ---- what the owner wants ---- */

static void call(rail *t, rail_end *e) {
    sl_err err;
    e->again_us = 0;
    if (sl_net_connect(t->net, e->at, e, &e->conn, &err) != SL_OK) {
        e->conn = NULL;
        e->again_us = now_us(t) + AGAIN_US;
    }
}

static void begin_call(rail *t, const rail_order *o) {
    rail_end *e = sl_alloc(1, sizeof *e);
    if (!e) return; /* the link's deadline ends it */
    *e = (rail_end){.next = t->ends, .key = o->key, .called_by_us = true};
    memcpy(e->at, o->at, sizeof e->at);
    t->ends = e;
    call(t, e);
}

static void hang_up(rail *t, uint64_t key) {
    rail_end *e = end_of(t, key);
    if (!e) return;
    if (e->conn) {
        sl_conn_set_user(e->conn, NULL);
        sl_net_close(t->net, e->conn, SL_OK, "its main connection ended");
    }
    forget(t, e);
}

static void send_stripe(rail *t, const rails_parcel *p) {
    rail_end *e = end_of(t, p->key);
    const size_t whole = p->payload->len;
    const size_t from = sl_stripe_begin(whole, t->all->o.n, t->index);
    const size_t to = sl_stripe_begin(whole, t->all->o.n, t->index + 1);
    if (!e || !e->open || !e->conn) return; /* its main connection ends, too */
    sl_buf *b = sl_net_buf_take(t->net, to - from);
    if (!b) {
        sl_net_close(t->net, e->conn, SL_ERR_NOMEM, "no memory for a stripe");
        return;
    }
    memcpy(b->data, p->payload->data + from, to - from);
    const sl_wire_header h = {.kind = SL_MSG_STRIPE, .number = p->number, .chunk = t->index};
    (void)sl_net_send(t->net, e->conn, h, b); /* on_down says that it is gone */
}

static void carry_out(rail *t, const rail_order *o) {
    if (o->kind == RAIL_CALL) begin_call(t, o);
    if (o->kind == RAIL_HANG_UP) hang_up(t, o->key);
    if (o->kind == RAIL_SEND) send_stripe(t, o->parcel);
}

static void take_orders(rail *t) {
    sl_rails *r = t->all;
    pthread_mutex_lock(&r->lock);
    for (rail_order *o; (o = t->orders) != NULL;) {
        if (!(t->orders = o->next)) t->last = &t->orders;
        pthread_mutex_unlock(&r->lock);
        carry_out(t, o);
        pthread_mutex_lock(&r->lock);
        if (o->kind == RAIL_SEND && --o->parcel->left == 0) {
            o->parcel->next = r->spent;
            r->spent = o->parcel;
        }
        o->next = r->free_orders;
        r->free_orders = o;
    }
    pthread_mutex_unlock(&r->lock);
}

static uint64_t call_again(rail *t) {
    uint64_t now = now_us(t), next = UINT64_MAX;
    for (rail_end *e = t->ends; e; e = e->next) {
        if (e->again_us && now >= e->again_us) call(t, e);
        if (e->again_us) next = SL_MIN(next, e->again_us);
    }
    return next;
}

/* ---- its thread ---- */

void rail_turn(rail *t) {
    take_orders(t);
    (void)call_again(t);
    (void)sl_net_progress(t->net);
}

void *rail_main(void *arg) {
    rail *t = arg;
    while (!atomic_load_explicit(&t->all->stop, memory_order_acquire)) {
        take_orders(t);
        const uint64_t again = call_again(t), now = now_us(t);
        if (sl_net_progress(t->net)) continue;
        sl_net_wait(t->net, SL_MIN((uint64_t)REST_US, again > now ? again - now : 1));
    }
    return NULL;
}

sl_status rail_open(rail *t, const char *host, sl_err *err) {
    sl_net_opts o = t->all->o.net;
    snprintf(o.hello.name, sizeof o.hello.name, "rail %u of worker %u", t->index, o.hello.worker);
    o.host = host;
    o.port = 0;
    o.advertise = NULL;
    o.on = (sl_net_events){on_open, on_message, on_down};
    o.ctx = t;
    sl_status st = sl_net_create(&o, &t->net, err);
    if (st != SL_OK) return sl_err_prefix(err, "rail %u", t->index);
    t->clock = sl_net_clock(t->net);
    return SL_OK;
}

void rail_close(rail *t) {
    while (t->ends) {
        rail_end *e = t->ends;
        t->ends = e->next;
        if (e->conn) sl_conn_set_user(e->conn, NULL);
        sl_free(e);
    }
    for (rail_order *o; (o = t->orders) != NULL;) {
        t->orders = o->next;
        if (o->kind == RAIL_SEND && --o->parcel->left == 0) {
            o->parcel->next = t->all->spent;
            t->all->spent = o->parcel;
        }
        sl_free(o);
    }
    t->last = &t->orders; /* links that go now still say so */
    sl_net_free(t->net);
    t->net = NULL;
}
