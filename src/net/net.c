/* A net: its connections and their timers, buffers, limits; callbacks while it progresses. */
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "net/address.h"
#include "net/net_int.h"
#include "net/transports.h"

#define POOL_BYTES ((size_t)256 << 20)

/* ---- payloads ---- */

sl_buf *sl_net_buf_take(sl_net *net, size_t len) {
    sl_pump_lock(net);
    sl_block *b = sl_block_take(&net->pool, len);
    sl_pump_unlock(net);
    return b ? &b->buf : NULL;
}

void sl_net_buf_give(sl_net *net, sl_buf *buf) {
    if (!buf) return;
    if (buf->far.window) net->given(buf);
    sl_pump_lock(net);
    sl_block_give(&net->pool, sl_block_of(buf));
    sl_pump_unlock(net);
}

void sl_net_on_give(sl_net *net, void (*given)(const sl_buf *buf)) {
    net->given = given;
}

/* ---- set-up ---- */

static bool is_loopback(const char *host) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
    if (getaddrinfo(host, NULL, &hints, &list) != 0) return false;
    bool all = list != NULL;
    for (struct addrinfo *a = list; a; a = a->ai_next) {
        const struct sockaddr_in *v4 = (const void *)a->ai_addr;
        const struct sockaddr_in6 *v6 = (const void *)a->ai_addr;
        if (a->ai_family == AF_INET)
            all = all && ntohl(v4->sin_addr.s_addr) >> 24 == 127;
        else if (a->ai_family == AF_INET6)
            all = all && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
        else
            all = false;
    }
    freeaddrinfo(list);
    return all;
}

/* *out: its transport. */
static sl_status check_opts(const sl_net_opts *o, const sl_transport_kind **out, sl_err *err) {
    const sl_transport_kind *kind = sl_transport_find(o->transport, false, err);
    if (!kind) return SL_ERR_ARG;
    if (kind->needs)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "transport %s: this program was built without %s",
                       kind->name, kind->needs);
    if (kind->threads && !o->hub)
        return sl_fail(err, SL_ERR_ARG, "transport %s needs a hub", kind->name);
    if (o->windows && !kind->windows)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "windows: transport %s has none, ucx has",
                       kind->name);
    if (!o->clock.now_us) return sl_fail(err, SL_ERR_ARG, "the fabric needs a clock");
    if (!o->on.on_open || !o->on.on_message || !o->on.on_down)
        return sl_fail(err, SL_ERR_ARG, "the fabric needs all three callbacks");
    if (o->secret.len) {
        sl_status st = sl_secret_check(o->secret.len, "the fabric", err);
        if (st != SL_OK) return st;
    }
    if (kind->machines && o->host && o->secret.len == 0 && !is_loopback(o->host))
        return sl_fail(err, SL_ERR_ARG,
                       "host %s is not a loopback address: listening there needs a secret",
                       o->host);
    *out = kind;
    return SL_OK;
}

static sl_status advertise(sl_net *n, const sl_net_opts *o, const sl_transport_kind *kind,
                           sl_err *err) {
    char address[sizeof n->hello.address];
    if (!o->advertise || !o->advertise[0] || !o->host) return SL_OK;
    if (!kind->machines)
        return sl_fail(err, SL_ERR_ARG, "address '%s': nobody forwards transport %s", o->advertise,
                       kind->name);
    sl_status st =
        sl_address_advertised(o->advertise, n->hello.address, address, sizeof address, err);
    if (st == SL_OK) memcpy(n->hello.address, address, sizeof address);
    return st;
}

const char *sl_net_when_name(sl_net_when when) {
    static const char *const names[] = {
        [SL_NET_WHEN_OFF] = "off", [SL_NET_WHEN_ON] = "on", [SL_NET_WHEN_AUTO] = "auto"};
    return names[when];
}

sl_status sl_net_when_parse(const char *option, const char *text, sl_net_when *out, sl_err *err) {
    for (int i = SL_NET_WHEN_OFF; i <= SL_NET_WHEN_AUTO; i++) {
        if (strcmp(text, sl_net_when_name((sl_net_when)i)) != 0) continue;
        *out = (sl_net_when)i;
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_ARG, "%s '%.20s': off, on or auto expected", option, text);
}

sl_status sl_net_create(const sl_net_opts *o, sl_net **out, sl_err *err) {
    const sl_transport_kind *kind = NULL;
    sl_status st = check_opts(o, &kind, err);
    if (st != SL_OK) return st;
    if (sodium_init() < 0) return sl_fail(err, SL_ERR_INTERNAL, "libsodium could not start");
    sl_net *n = sl_alloc(1, sizeof *n);
    if (!n) return sl_fail(err, SL_ERR_NOMEM, "fabric");
    n->pool.max_free_bytes = POOL_BYTES;
    n->hello = o->hello;
    n->clock = o->clock;
    n->heartbeat_us = o->heartbeat_us ? o->heartbeat_us : SL_NET_HEARTBEAT_US;
    n->dead_after_us = o->dead_after_us ? o->dead_after_us : SL_NET_DEAD_AFTER_US;
    n->silence_limit_us = o->silence_limit_us ? o->silence_limit_us : SL_NET_SILENCE_LIMIT_US;
    n->parent = o->parent;
    n->sums = o->sums;
    n->encrypt = o->encrypt;
    n->windows = o->windows;
    sl_net_set_callers(n, o->callers);
    n->on = o->on;
    n->ctx = o->ctx;
    n->last_look_us = sl_clock_now_us(&n->clock);
    n->next_timer_us = UINT64_MAX;
    memset(n->hello.address, 0, sizeof n->hello.address);
    n->secret_len = o->secret.len;
    n->secret = sl_alloc(SL_MAX(o->secret.len, (size_t)1), 1);
    if (!n->secret)
        st = sl_fail(err, SL_ERR_NOMEM, "fabric");
    else if (o->secret.len)
        memcpy(n->secret, o->secret.data, o->secret.len);
    if (st == SL_OK) st = sl_self_transport_create(n, &n->self, err);
    if (st == SL_OK) st = kind->create(n, o, &n->transport, err);
    if (st == SL_OK) st = advertise(n, o, kind, err);
    if (st == SL_OK)
        *out = n;
    else
        sl_net_free(n);
    return st;
}

/* Longer than that between two looks at the links: this process stood still. */
static bool is_stop(const sl_net *n, uint64_t gap_us) {
    return gap_us > n->dead_after_us / 2;
}

/* A stop is taken off at the next look; whoever asks before that is not told of it either, and
 * nobody is told an earlier time than before. */
static uint64_t own_time_us(void *net) {
    sl_net *n = net;
    uint64_t now_us = sl_clock_now_us(&n->clock);
    if (is_stop(n, now_us - n->last_look_us)) now_us = n->last_look_us;
    n->told_us = SL_MAX(n->told_us, now_us - n->still_us);
    return n->told_us;
}

sl_clock sl_net_clock(sl_net *n) {
    return (sl_clock){own_time_us, n};
}

static bool is_flushing(const sl_net *n) {
    return n->transport && n->transport->ops->is_flushing(n->transport);
}

void sl_net_free(sl_net *n) {
    if (!n) return;
    SL_ASSERT(!n->in_progress);
    sl_pump_stop(n);
    n->closing = true;
    for (size_t i = 0; i < n->n_conns; i++) sl_session_close(n->conns[i], SL_OK, "leaving");
    /* Real time: a virtual clock would stand still here. */
    uint64_t deadline_ns = sl_now_ns() + 1000ull * SL_NET_LINGER_US;
    while (is_flushing(n) && sl_now_ns() < deadline_ns) {
        n->transport->ops->progress(n->transport);
        n->transport->ops->wait(n->transport, 1000);
    }
    sl_net_abandon(n);
}

static void forget(sl_conn *c) {
    sl_crypt_free(c->crypt);
    sodium_memzero(c->own_half, sizeof c->own_half);
    sl_free(c);
}

void sl_net_abandon(sl_net *n) {
    if (!n) return;
    sl_pump_stop(n);
    n->closing = true;
    sl_block_give_all(&n->pool, &n->early);
    if (n->transport) n->transport->ops->destroy(n->transport);
    if (n->self) n->self->ops->destroy(n->self);
    for (size_t i = 0; i < n->n_conns; i++) {
        sl_block_give_all(&n->pool, &n->conns[i]->held);
        forget(n->conns[i]);
    }
    sl_free(n->conns);
    sl_block_pool_drain(&n->pool);
    if (n->secret) sodium_memzero(n->secret, n->secret_len);
    sl_free(n->secret);
    sl_free(n);
}

const char *sl_net_address(const sl_net *n) {
    return n->hello.address;
}

void sl_net_set_hello(sl_net *n, const sl_hello *hello) {
    char address[sizeof n->hello.address];
    sl_pump_lock(n);
    memcpy(address, n->hello.address, sizeof address);
    n->hello = *hello;
    memcpy(n->hello.address, address, sizeof address);
    sl_pump_unlock(n);
}

void sl_net_set_callers(sl_net *n, uint32_t callers) {
    sl_pump_lock(n);
    n->max_callers = SL_MAX(callers, SL_NET_MAX_PENDING);
    sl_pump_unlock(n);
}

/* ---- connections ---- */

static sl_conn *conn_create(sl_net *n, sl_transport *t) {
    if (n->n_conns == n->cap_conns) {
        size_t cap = n->cap_conns ? 2 * n->cap_conns : 16;
        sl_conn **grown = sl_grow(n->conns, n->cap_conns, cap, sizeof(sl_conn *));
        if (!grown) return NULL;
        n->conns = grown;
        n->cap_conns = cap;
    }
    sl_conn *c = sl_alloc(1, sizeof *c);
    if (!c) return NULL;
    c->net = n;
    c->transport = t;
    c->heard_us = c->sent_us = c->began_us = sl_net_now_us(n);
    n->next_timer_us = 0;
    n->conns[n->n_conns++] = c;
    return c;
}

static sl_status connect_to(sl_net *n, const char *address, void *user, sl_conn **out,
                            sl_err *err) {
    bool own = address[0] && strcmp(address, n->hello.address) == 0;
    sl_transport *t = own ? n->self : n->transport;
    sl_conn *c = conn_create(n, t);
    if (!c) return sl_fail(err, SL_ERR_NOMEM, "connection to %s", address);
    c->user = user;
    c->state = SL_CONN_WAIT_CHALLENGE;
    snprintf(c->peer.address, sizeof c->peer.address, "%s", address);
    sl_status st = t->ops->connect(t, c, address, err);
    if (st == SL_OK && (st = sl_session_call(c)) != SL_OK) {
        sl_fail(err, st, "connection to %s: %s", address, sl_status_text(st));
        if (c->state != SL_CONN_DOWN) t->ops->drop(t, c, false);
    }
    if (st != SL_OK) {
        for (size_t i = 0; i < n->n_conns; i++)
            if (n->conns[i] == c) n->conns[i] = n->conns[--n->n_conns];
        forget(c);
        return st;
    }
    *out = c;
    return SL_OK;
}

sl_status sl_net_connect(sl_net *n, const char *address, void *user, sl_conn **out, sl_err *err) {
    sl_pump_lock(n);
    sl_status st = connect_to(n, address, user, out, err);
    sl_pump_unlock(n);
    return st;
}

sl_conn *sl_net_accept(sl_net *n, sl_transport *t, void *link, const sl_origin *from, sl_err *err) {
    if (n->closing) return sl_fail(err, SL_ERR_PEER_DOWN, "leaving"), NULL;
    /* Who gave way would be freed by the owner alone, who computes. */
    if (n->pumping && sl_pending_is_full(n, SL_CONN_WAIT_HELLO))
        return sl_fail(err, SL_ERR_LIMIT, "too many callers wait"), NULL;
    sl_pending_make_room(n, SL_CONN_WAIT_HELLO);
    sl_conn *c = conn_create(n, t);
    if (!c) return sl_fail(err, SL_ERR_NOMEM, "connection"), NULL;
    c->accepted = true;
    c->state = SL_CONN_WAIT_HELLO;
    c->link = link;
    c->origin = *from;
    return c;
}

size_t sl_net_payload_limit(const sl_conn *c) {
    bool proved = c->state == SL_CONN_OPEN || c->state == SL_CONN_ADMITTING;
    return proved ? SL_WIRE_MAX_BYTES : SL_NET_MAX_UNTRUSTED;
}

void sl_net_heard(sl_conn *c) {
    c->heard_us = sl_net_now_us(c->net);
}

void sl_net_arrived(sl_conn *c, sl_block *b) {
    if (c->state == SL_CONN_DOWN)
        sl_block_give(&c->net->pool, b);
    else if (c->net->pumping)
        sl_pump_keep(c, b);
    else
        sl_session_receive(c, b);
}

void sl_net_link_down(sl_conn *c, sl_status why, const char *text) {
    if (c->net->pumping)
        sl_pump_keep_down(c, why, text);
    else
        sl_session_fail(c, why, text);
}

static sl_status open_window(sl_net *n, sl_conn *c, uint32_t slots, size_t slot_bytes,
                             sl_err *err) {
    uint8_t key[SL_WINDOW_MAX_KEY_BYTES];
    const size_t whole = (slot_bytes + SL_WINDOW_LINE - 1) / SL_WINDOW_LINE * SL_WINDOW_LINE;
    sl_window_offer offer = {.shape = {.slots = slots, .slot_bytes = (uint32_t)whole}};
    if (!n->windows) return sl_fail(err, SL_ERR_UNSUPPORTED, "windows are off");
    if (slots < 1 || slots > SL_WINDOW_MAX_SLOTS || slot_bytes < 1 ||
        slot_bytes > SL_WINDOW_MAX_SLOT_BYTES)
        return sl_fail(err, SL_ERR_ARG, "a window of %u slots of %zu bytes: 1 to %u of 1 to %u",
                       slots, slot_bytes, SL_WINDOW_MAX_SLOTS, SL_WINDOW_MAX_SLOT_BYTES);
    /* What this process sends itself is handed over as it is. */
    if (!c->transport->ops->open_window || c->state == SL_CONN_DOWN) return SL_OK;
    sl_status st = c->transport->ops->open_window(c->transport, c, &offer, key, err);
    if (st != SL_OK) return st == SL_ERR_AGAIN ? SL_OK : st;
    st = sl_session_offer(c, &offer);
    if (st == SL_ERR_PEER_DOWN) return SL_OK; /* which on_down says */
    return st == SL_OK ? SL_OK : sl_fail(err, st, "the offer of a window");
}

sl_status sl_net_open_window(sl_net *n, sl_conn *c, uint32_t slots, size_t slot_bytes,
                             sl_err *err) {
    SL_ASSERT(c->net == n);
    sl_pump_lock(n);
    sl_status st = open_window(n, c, slots, slot_bytes, err);
    sl_pump_unlock(n);
    return st;
}

sl_status sl_net_send(sl_net *n, sl_conn *c, sl_wire_header h, sl_buf *payload) {
    SL_ASSERT(c->net == n);
    sl_pump_lock(n);
    sl_status st = sl_session_send(c, h, payload);
    sl_pump_unlock(n);
    return st;
}

void sl_net_close(sl_net *n, sl_conn *c, sl_status why, const char *text) {
    SL_ASSERT(c->net == n);
    sl_pump_lock(n);
    sl_session_close(c, why, text ? text : "");
    sl_pump_unlock(n);
}

const sl_hello *sl_conn_hello(const sl_conn *c) {
    return &c->peer;
}
void *sl_conn_user(const sl_conn *c) {
    return c->user;
}
void sl_conn_set_user(sl_conn *c, void *user) {
    c->user = user;
}
bool sl_conn_is_encrypted(const sl_conn *c) {
    return c->crypt != NULL;
}

const char *sl_conn_bars_memory(const sl_conn *c) {
    return c->place == SL_PEER_ELSEWHERE ? "it is on another machine"
           : c->crypt                    ? "messages are encrypted"
           : c->sums                     ? "messages have checksums"
                                         : NULL;
}

sl_conn_stats sl_conn_stats_of(const sl_conn *c) {
    sl_pump_lock(c->net);
    sl_conn_stats stats = c->stats;
    sl_pump_unlock(c->net);
    return stats;
}
bool sl_conn_is_open(const sl_conn *c) {
    sl_pump_lock(c->net);
    bool open = c->state == SL_CONN_OPEN;
    sl_pump_unlock(c->net);
    return open;
}
uint64_t sl_conn_silent_us(const sl_conn *c) {
    uint64_t now_us = own_time_us(c->net);
    sl_pump_lock(c->net);
    uint64_t heard_us = SL_MIN(c->heard_us, now_us);
    sl_pump_unlock(c->net);
    return now_us - heard_us;
}

sl_window_stats sl_net_window_stats(const sl_net *n) {
    sl_pump_lock(n);
    sl_window_stats stats = n->by_windows;
    sl_pump_unlock(n);
    return stats;
}

uint64_t sl_net_late_us(const sl_net *n) {
    sl_pump_lock(n);
    uint64_t late_us = n->late_us;
    sl_pump_unlock(n);
    return late_us;
}

/* ---- progress ---- */

/* The time of a look at the links, from one reading of the clock: a process may be stopped between
 * any two. */
static uint64_t look_us(sl_net *n) {
    uint64_t now_us = sl_clock_now_us(&n->clock), gap_us = now_us - n->last_look_us;
    if (is_stop(n, gap_us)) n->still_us += gap_us;
    n->last_look_us = now_us;
    return now_us - n->still_us;
}

/* How much longer than `base_us` a machine may take whose processes run as late as this one lately
 * did: base_us is so many heartbeats, and each of them may be as late as our own timers were. */
static uint64_t stretched_us(const sl_net *n, uint64_t base_us) {
    return base_us + base_us / n->heartbeat_us * n->late_us;
}

/* How long to wait for a sign of this peer, where base_us are enough for one that nobody else
 * watches. A caller who has proved nothing yet is given no more for calling from here. */
static uint64_t patience_us(const sl_conn *c, uint64_t base_us) {
    const sl_net *n = c->net;
    uint64_t most_us = SL_MAX(base_us, (uint64_t)n->silence_limit_us);
    if (c->place == SL_PEER_IN_THIS_PROCESS) return UINT64_MAX / 2;
    /* Nobody can take its place: given up for dead in vain, it costs every request. */
    if (c->state == SL_CONN_OPEN && c->peer.is_coordinator)
        return SL_MAX(most_us, SL_NET_COORDINATOR_US);
    if (c->place == SL_PEER_ON_THIS_MACHINE && !sl_session_is_pending(c)) return most_us;
    return SL_MIN(stretched_us(n, base_us), most_us);
}

static void watch_handshake(sl_conn *c, uint64_t now_us, uint64_t *next_us) {
    uint64_t limit_us = patience_us(c, SL_NET_HANDSHAKE_US), end_us = c->began_us + limit_us;
    char text[96];
    if (now_us < end_us) {
        *next_us = SL_MIN(*next_us, end_us);
        return;
    }
    if (c->net->pumping) return; /* its next step may lie in `early`; the owner looks again */
    snprintf(text, sizeof text, "handshake not finished within %.1f s", (double)limit_us / 1e6);
    sl_session_close(c, SL_ERR_TIMEOUT, text);
}

/* Stopped or kept waiting, then, and not dead. */
static bool is_living_parent(const sl_conn *c) {
    return c->peer.is_coordinator && c->net->parent && getppid() == c->net->parent;
}

/* How long a connection has to be quiet to get a heartbeat when one is due somewhere. Of peers on
 * this machine, who may be many, half of the time is enough: then they are due together from there
 * on, and this process wakes once for all. What comes from elsewhere wakes it anyway. */
static uint64_t heartbeat_due_us(const sl_conn *c) {
    const uint64_t us = c->net->heartbeat_us;
    return c->place == SL_PEER_ELSEWHERE ? us : us / 2;
}

static void watch(sl_conn *c, uint64_t now_us, uint64_t *next_us) {
    sl_net *n = c->net;
    char text[96];
    if (c->state != SL_CONN_OPEN) {
        watch_handshake(c, now_us, next_us);
        return;
    }
    uint64_t limit_us = patience_us(c, SL_MIN(n->dead_after_us, n->silence_limit_us));
    /* Later than now where the process was stopped within this look: before the stop, then. */
    c->heard_us = SL_MIN(c->heard_us, now_us);
    c->sent_us = SL_MIN(c->sent_us, now_us);
    if (now_us >= c->heard_us + limit_us && is_living_parent(c)) c->heard_us = now_us;
    if (now_us >= c->heard_us + limit_us) {
        snprintf(text, sizeof text, "silent for %llu ms, limit %llu ms",
                 (unsigned long long)(now_us - c->heard_us) / 1000,
                 (unsigned long long)limit_us / 1000);
        if (n->pumping)
            sl_pump_keep_down(c, SL_ERR_TIMEOUT, text); /* after what it said before */
        else
            sl_session_close(c, SL_ERR_TIMEOUT, text);
        return;
    }
    if (now_us >= c->sent_us + heartbeat_due_us(c)) sl_session_heartbeat(c, true);
    *next_us = SL_MIN(*next_us, SL_MIN(c->heard_us + limit_us, c->sent_us + n->heartbeat_us));
}

/* Timers are due every heartbeat at least. One late look is remembered for some seconds. */
static void note_late(sl_net *n, uint64_t now_us) {
    if (n->next_timer_us == 0) return; /* asked for at once */
    n->late_us = SL_MAX(now_us - n->next_timer_us, n->late_us - n->late_us / 16);
}

static void watch_all(sl_net *n) {
    uint64_t now_us = look_us(n), next_us = UINT64_MAX;
    if (now_us < n->next_timer_us) return;
    note_late(n, now_us);
    for (size_t i = 0; i < n->n_conns; i++)
        if (n->conns[i]->state != SL_CONN_DOWN) watch(n->conns[i], now_us, &next_us);
    sl_pending_log_rest(n, now_us, &next_us);
    n->next_timer_us = next_us;
}

/* on_down may close or open other connections: the list is read afresh after each. */
static void reap(sl_net *n) {
    while (n->any_down) {
        n->any_down = false;
        for (size_t i = 0; i < n->n_conns; i++) {
            sl_conn *c = n->conns[i];
            if (c->state != SL_CONN_DOWN) continue;
            n->conns[i] = n->conns[--n->n_conns];
            n->on.on_down(n->ctx, c, c->why, c->text);
            forget(c);
            n->any_down = true;
            break;
        }
    }
}

uint32_t sl_net_progress(sl_net *n) {
    sl_pump_lock(n);
    uint32_t delivered = 0;
    if (!n->in_progress) { /* else a callback whose work ticks: its caller goes on after it */
        n->in_progress = true;
        n->delivered = 0;
        (void)look_us(n); /* before anything has its time */
        sl_pump_deliver(n);
        n->self->ops->progress(n->self);
        n->transport->ops->progress(n->transport);
        watch_all(n);
        reap(n);
        n->in_progress = false;
        delivered = n->delivered;
    }
    sl_pump_unlock(n);
    return delivered;
}

void sl_net_pump(sl_net *n) {
    n->pumping = true;
    (void)look_us(n);
    n->transport->ops->progress(n->transport);
    watch_all(n);
    n->pumping = false;
}

static bool must_not_sleep(const sl_net *n) {
    return n->any_down || n->early.head || sl_self_is_ready(n->self);
}

void sl_net_wait(sl_net *n, uint64_t timeout_us) {
    sl_pump_lock(n);
    uint64_t now_us = sl_net_now_us(n);
    if (!must_not_sleep(n) && now_us < n->next_timer_us) {
        uint64_t us = SL_MIN(timeout_us, n->next_timer_us - now_us);
        sl_pump_rest(n, true);
        n->transport->ops->wait(n->transport,
                                SL_MIN(us, n->dead_after_us / 4u)); /* no standstill */
        sl_pump_rest(n, false);
    }
    sl_pump_unlock(n);
}

void sl_net_set_poll(sl_net *n, uint32_t us) {
    n->poll_ns = 1000ull * us;
}

void sl_net_wake(sl_net *n) {
    n->transport->ops->wake(n->transport);
}

sl_status sl_net_watch(sl_net *n, int fd, sl_err *err) {
    if (!n->transport->ops->watch)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "this transport watches no descriptors");
    sl_pump_lock(n);
    sl_status st = n->transport->ops->watch(n->transport, fd, err);
    sl_pump_unlock(n);
    return st;
}
