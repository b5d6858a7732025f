/* One connection from the first byte to the last: handshake, sequence, silence, reasons. */
#include <sodium.h>
#include <stdio.h>

#include "base/log.h"
#include "base/mutate.h"
#include "net/net_int.h"

/* REFUSE and BYE: u32 status, then text. */
#define REASON_HEAD 4u

static sl_transcript transcript(const sl_conn *c) {
    return c->accepted ? (sl_transcript){c->peer_nonce, c->own_nonce, c->peer_hello, c->own_hello}
                       : (sl_transcript){c->own_nonce, c->peer_nonce, c->own_hello, c->peer_hello};
}

static const char *peer_name(const sl_conn *c) {
    return c->peer.name[0] ? c->peer.name : c->peer.address[0] ? c->peer.address : "peer";
}

/* ---- sending ---- */

static sl_status transmit(sl_conn *c, sl_wire_header h, sl_block *b) {
    sl_net *n = c->net;
    if (!b && !(b = sl_block_take(&n->pool, 0))) return SL_ERR_NOMEM;
    bool handshake = h.kind == SL_MSG_HELLO || h.kind == SL_MSG_CHALLENGE ||
                     h.kind == SL_MSG_AUTH || h.kind == SL_MSG_REFUSE;
    h.session = handshake ? 0 : c->session;
    h.src = n->hello.worker;
    h.incarnation = c->incarnation;
    h.seq = c->send_seq + 1;
    const bool open = c->state == SL_CONN_OPEN && h.kind != SL_MSG_WELCOME;
    const size_t len = b->buf.len;
    if (open && c->crypt) b->buf.len += SL_CRYPT_TAG_BYTES;
    h.bytes = (uint32_t)b->buf.len;
    h.sum = 0;
    sl_wire_header_encode(&h, b->header);
    if (open && c->crypt &&
        sl_crypt_seal(c->crypt, h.seq, b->header, sizeof b->header, b->buf.data, len) != SL_OK) {
        sl_block_give(&n->pool, b);
        return SL_ERR_NOMEM;
    }
    c->send_seq = h.seq;
    if (open && c->sums)
        sl_wire_set_sum(b->header, sl_wire_sum(b->header, (sl_span){b->buf.data, b->buf.len}));
    c->stats.sent_messages++;
    c->stats.sent_bytes += SL_WIRE_HEADER_BYTES + h.bytes;
    c->sent_us = sl_net_now_us(n);
    return c->transport->ops->send(c->transport, c, b);
}

static sl_status transmit_bytes(sl_conn *c, sl_msg_kind kind, const void *bytes, size_t len) {
    sl_block *b = sl_block_take(&c->net->pool, len);
    if (!b) return SL_ERR_NOMEM;
    if (len) memcpy(b->buf.data, bytes, len);
    return transmit(c, (sl_wire_header){.kind = (uint16_t)kind}, b);
}

static void transmit_reason(sl_conn *c, sl_msg_kind kind, sl_status why, const char *text) {
    uint8_t bytes[REASON_HEAD + SL_NET_MAX_TEXT];
    sl_wr w = sl_wr_of(bytes, sizeof bytes);
    sl_wr_u32(&w, (uint32_t)why);
    sl_wr_bytes(&w, text, strnlen(text, SL_NET_MAX_TEXT));
    /* Best effort: the connection ends whether or not the peer hears why. */
    (void)transmit_bytes(c, kind, bytes, w.len);
}

static void transmit_error(sl_conn *c, const char *text) {
    (void)transmit_bytes(c, SL_MSG_ERROR, text, strnlen(text, SL_NET_MAX_TEXT));
}

void sl_session_heartbeat(sl_conn *c, bool quiet) {
    sl_block *b = sl_block_take(&c->net->pool, 0);
    if (!b) return;
    b->quiet = quiet;
    (void)transmit(c, (sl_wire_header){.kind = SL_MSG_HEARTBEAT}, b);
}

sl_status sl_session_offer(sl_conn *c, const sl_window_offer *offer) {
    uint8_t bytes[SL_WINDOW_MAX_OFFER];
    const size_t len = sl_window_offer_encode(offer, bytes);
    sl_block *b = sl_block_take(&c->net->pool, len);
    if (!b) return SL_ERR_NOMEM;
    memcpy(b->buf.data, bytes, len);
    return sl_session_send(c, (sl_wire_header){.kind = SL_MSG_WINDOW}, &b->buf);
}

static sl_status send_or_hold(sl_conn *c, sl_wire_header h, sl_block *b) {
    sl_net *n = c->net;
    if (c->state == SL_CONN_OPEN && !c->untold) return transmit(c, h, b);
    if (!b && !(b = sl_block_take(&n->pool, 0))) return SL_ERR_NOMEM;
    h.bytes = (uint32_t)b->buf.len;
    sl_wire_header_encode(&h, b->header);
    sl_block_push(&c->held, b);
    return SL_OK;
}

/* A message that is lost for want of memory ends its connection, as one that the link loses does:
 * who waits for the answer hears of that. */
sl_status sl_session_send(sl_conn *c, sl_wire_header h, sl_buf *payload) {
    sl_net *n = c->net;
    sl_block *b = payload ? sl_block_of(payload) : NULL;
    sl_status st = SL_OK;
    if (c->state == SL_CONN_DOWN)
        st = SL_ERR_PEER_DOWN;
    else if (payload && payload->len > SL_NET_MAX_PAYLOAD)
        st = SL_ERR_LIMIT;
    else if (h.rows > SL_WIRE_MAX_ROWS || h.flags & ~SL_WIRE_FLAGS)
        st = SL_ERR_ARG;
    if (st != SL_OK) {
        sl_block_give(&n->pool, b);
        return st;
    }
    st = send_or_hold(c, h, b);
    if (st == SL_ERR_NOMEM) sl_session_fail(c, st, "no memory for a message");
    return st;
}

static void flush_held(sl_conn *c) {
    for (sl_block *b; (b = sl_block_pop(&c->held)) != NULL;) {
        sl_wire_header h;
        sl_status st = sl_wire_header_decode((sl_span){b->header, sizeof b->header}, &h, NULL);
        SL_ASSERT(st == SL_OK);
        if (c->state == SL_CONN_OPEN)
            (void)transmit(c, h, b);
        else
            sl_block_give(&c->net->pool, b);
    }
}

/* ---- ending ---- */

/* Called, and turned away before it was let in. */
static bool is_turned_away(const sl_conn *c) {
    return sl_session_is_pending(c) || (c->accepted && c->state == SL_CONN_ADMITTING);
}

static void go_down(sl_conn *c, sl_status why, const char *text, bool flush) {
    sl_net *n = c->net;
    if (is_turned_away(c) && !n->closing) sl_pending_log(c, text);
    c->state = SL_CONN_DOWN;
    c->why = why;
    snprintf(c->text, sizeof c->text, "%.*s", (int)SL_NET_MAX_TEXT, text);
    sl_block_give_all(&n->pool, &c->held);
    if (c->link) c->transport->ops->drop(c->transport, c, flush);
    c->link = NULL;
    n->any_down = true;
}

void sl_session_fail(sl_conn *c, sl_status why, const char *text) {
    if (c->state != SL_CONN_DOWN) go_down(c, why, text, false);
}

void sl_session_close(sl_conn *c, sl_status why, const char *text) {
    if (c->state == SL_CONN_DOWN) return;
    bool open = c->state == SL_CONN_OPEN;
    if (c->link) transmit_reason(c, open ? SL_MSG_BYE : SL_MSG_REFUSE, why, text);
    /* The transport may have found the link dead while sending. */
    if (c->state != SL_CONN_DOWN) go_down(c, why, text, true);
}

static void close_for(sl_conn *c, sl_status st, const sl_err *err) {
    if (!is_turned_away(c))
        sl_log(SL_LOG_WARN, "net", "connection with %s closed: %s", peer_name(c), err->msg);
    sl_session_close(c, st, err->msg);
}

/* ---- reasons that a peer gives ---- */

static sl_status known_status(uint32_t code) {
    switch ((int32_t)code) {
    case 0:
        return SL_OK;
#define KNOWN(name, value, text)                                                                   \
    case (value):                                                                                  \
        return SL_ERR_##name;
        SL_STATUS_LIST(KNOWN)
#undef KNOWN
    }
    return SL_ERR_PEER_DOWN;
}

static void peer_leaves(sl_conn *c, const char *verb, bool refused, sl_span payload) {
    char said[SL_NET_MAX_TEXT + 1], text[sizeof said + 160];
    sl_cur cur = sl_cur_of(payload);
    sl_status code = known_status(sl_cur_u32(&cur));
    sl_wire_text(cur.ok ? (sl_span){payload.data + cur.pos, payload.len - cur.pos} : (sl_span){0},
                 said, sizeof said);
    snprintf(text, sizeof text, "%s by %s: %s", verb, peer_name(c), said);
    if (refused && code == SL_OK) code = SL_ERR_PEER_DOWN;
    if (!refused && code != SL_OK) code = SL_ERR_PEER_DOWN;
    sl_session_fail(c, code, text);
}

/* ---- handshake ---- */

/* A caller does not know yet where its peer is, and leaves it to that one. */
static bool wants(const sl_conn *c, sl_net_when when) {
    bool far = !c->accepted || c->place == SL_PEER_ELSEWHERE;
    return when == SL_NET_WHEN_ON || (when == SL_NET_WHEN_AUTO && far);
}

/* A callee knows what its caller insists on. */
static bool wants_crypt(const sl_conn *c) {
    const sl_net_when when = c->net->encrypt;
    const bool goes_along = c->accepted && c->peer.insists && when == SL_NET_WHEN_AUTO;
    return !c->transport->inside && (wants(c, when) || goes_along);
}

static void make_own_side(sl_conn *c) {
    sl_hello h = c->net->hello;
    h.wants_sums = wants(c, c->net->sums);
    h.wants_crypt = wants_crypt(c);
    h.has_aes = h.wants_crypt && sl_crypt_has_aes();
    h.insists = h.wants_crypt && c->net->encrypt == SL_NET_WHEN_ON;
    sl_hello_encode(&h, c->own_hello);
    c->incarnation = c->net->hello.incarnation;
    if (h.wants_crypt)
        crypto_kx_keypair(c->own_nonce, c->own_half);
    else
        randombytes_buf(c->own_nonce, sizeof c->own_nonce);
}

static sl_mac mac_of(const sl_conn *c, sl_mac_role role) {
    sl_mac m;
    sl_transcript t = transcript(c);
    sl_auth_mac(c->net->secret, c->net->secret_len, role, &t, m.bytes);
    return m;
}

static uint64_t session_of(const sl_conn *c) {
    sl_transcript t = transcript(c);
    return sl_auth_session(c->net->secret, c->net->secret_len, &t);
}

/* What both have proved to want is encrypted from here on. */
static sl_status begin_crypt(sl_conn *c, sl_err *err) {
    const sl_transcript t = transcript(c);
    const sl_net *n = c->net;
    uint8_t shared[SL_HALF_BYTES];
    sl_mac of_caller, of_callee;
    const bool aes = c->peer.has_aes && sl_crypt_has_aes();
    if (!c->accepted && c->place == SL_PEER_ELSEWHERE && wants_crypt(c) && !c->peer.wants_crypt)
        sl_log(SL_LOG_WARN, "net",
               "what %s is sent is not encrypted: it takes this for its own machine, or does not "
               "want it",
               peer_name(c));
    if (!c->peer.wants_crypt || !wants_crypt(c)) return SL_OK;
    if (crypto_scalarmult(shared, c->own_half, c->peer_nonce) != 0)
        return sl_fail(err, SL_ERR_AUTH, "the key of %s is none of X25519", peer_name(c));
    sl_auth_key(n->secret, n->secret_len, SL_MAC_KEY_OF_CALLER, &t, shared, of_caller.bytes);
    sl_auth_key(n->secret, n->secret_len, SL_MAC_KEY_OF_CALLEE, &t, shared, of_callee.bytes);
    c->crypt = c->accepted ? sl_crypt_create(aes, of_callee.bytes, of_caller.bytes)
                           : sl_crypt_create(aes, of_caller.bytes, of_callee.bytes);
    c->sums = false; /* a tag is more */
    sodium_memzero(shared, sizeof shared);
    sodium_memzero(&of_caller, sizeof of_caller);
    sodium_memzero(&of_callee, sizeof of_callee);
    sodium_memzero(c->own_half, sizeof c->own_half);
    return c->crypt ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "ciphers of a connection");
}

static sl_status check_mac(sl_conn *c, sl_mac_role role, const uint8_t *mac, sl_err *err) {
    sl_mac want = mac_of(c, role);
    bool equal = sl_auth_equal(want.bytes, mac);
    sodium_memzero(&want, sizeof want);
    return equal ? SL_OK : sl_fail(err, SL_ERR_AUTH, "the secrets differ (peer %s)", peer_name(c));
}

/* Hello, nonce and, of a caller, the mac over both: where they are in HELLO and CHALLENGE. */
#define NONCE_AT        SL_HELLO_BYTES
#define MAC_AT          (NONCE_AT + SL_NONCE_BYTES)
#define HELLO_BYTES     (MAC_AT + SL_MAC_BYTES)
#define CHALLENGE_BYTES MAC_AT

sl_status sl_session_call(sl_conn *c) {
    uint8_t bytes[HELLO_BYTES];
    make_own_side(c);
    sl_mac mac = mac_of(c, SL_MAC_HELLO);
    memcpy(bytes, c->own_hello, SL_HELLO_BYTES);
    memcpy(bytes + NONCE_AT, c->own_nonce, SL_NONCE_BYTES);
    memcpy(bytes + MAC_AT, mac.bytes, SL_MAC_BYTES);
    return transmit_bytes(c, SL_MSG_HELLO, bytes, sizeof bytes);
}

static sl_status expect(const sl_wire_header *h, sl_msg_kind kind, size_t bytes, sl_err *err) {
    const char *got = sl_msg_kind_name(h->kind);
    if (h->kind != kind)
        return sl_fail(err, SL_ERR_PROTOCOL, "handshake: %s (kind %u), %s expected",
                       got ? got : "unknown", h->kind, sl_msg_kind_name((uint16_t)kind));
    if (h->bytes != bytes)
        return sl_fail(err, SL_ERR_PROTOCOL, "handshake: %s of %u bytes, %zu expected", got,
                       h->bytes, bytes);
    if (kind != SL_MSG_WELCOME && h->session)
        return sl_fail(err, SL_ERR_PROTOCOL, "handshake: %s carries a session id", got);
    return SL_OK;
}

static sl_status take_peer_side(sl_conn *c, const sl_wire_header *h, const uint8_t *p,
                                sl_err *err) {
    memcpy(c->peer_hello, p, SL_HELLO_BYTES);
    memcpy(c->peer_nonce, p + NONCE_AT, SL_NONCE_BYTES);
    sl_status st = sl_hello_decode(c->peer_hello, &c->peer, err);
    c->sums = c->peer.wants_sums && wants(c, c->net->sums);
    const bool must = c->net->encrypt == SL_NET_WHEN_ON && !c->transport->inside;
    if (st == SL_OK && must && !c->peer.wants_crypt)
        st = sl_fail(err, SL_ERR_AUTH, "%s does not encrypt, here --encrypt is on", peer_name(c));
    if (st == SL_OK && c->peer.incarnation != h->incarnation)
        st = sl_fail(err, SL_ERR_PROTOCOL, "hello: incarnation %u, header says %u",
                     c->peer.incarnation, h->incarnation);
    return st;
}

/* A HELLO that fits may be a recording. It gains a place among those that sent one, and a nonce to
 * answer: no mac of ours leaves before AUTH has proved the secret for this very nonce. */
static sl_status on_hello(sl_conn *c, const sl_wire_header *h, const uint8_t *p, sl_err *err) {
    uint8_t bytes[CHALLENGE_BYTES];
    sl_status st = expect(h, SL_MSG_HELLO, HELLO_BYTES, err);
    if (st == SL_OK) st = take_peer_side(c, h, p, err);
    if (st == SL_OK) st = check_mac(c, SL_MAC_HELLO, p + MAC_AT, err);
    if (st != SL_OK) return st;
    make_own_side(c);
    memcpy(bytes, c->own_hello, SL_HELLO_BYTES);
    memcpy(bytes + NONCE_AT, c->own_nonce, SL_NONCE_BYTES);
    sl_pending_make_room(c->net, SL_CONN_WAIT_AUTH);
    c->state = SL_CONN_WAIT_AUTH;
    st = transmit_bytes(c, SL_MSG_CHALLENGE, bytes, sizeof bytes);
    return st == SL_OK ? SL_OK : sl_fail(err, st, "CHALLENGE could not be sent");
}

static sl_status on_challenge(sl_conn *c, const sl_wire_header *h, const uint8_t *p, sl_err *err) {
    sl_status st = expect(h, SL_MSG_CHALLENGE, CHALLENGE_BYTES, err);
    if (st == SL_OK) st = take_peer_side(c, h, p, err);
    if (st != SL_OK) return st;
    sl_mac mac = mac_of(c, SL_MAC_CALLER);
    c->session = session_of(c);
    c->state = SL_CONN_WAIT_WELCOME;
    st = transmit_bytes(c, SL_MSG_AUTH, mac.bytes, sizeof mac.bytes);
    return st == SL_OK ? SL_OK : sl_fail(err, st, "AUTH could not be sent");
}

/* Asks the owner. While it decides, and until the caller has WELCOME, its messages are held. */
static sl_status admit(sl_conn *c, sl_err *err) {
    c->state = SL_CONN_ADMITTING;
    c->net->next_timer_us = 0; /* heartbeats begin */
    return c->net->on.on_open(c->net->ctx, c, &c->peer, err);
}

static sl_status on_auth(sl_conn *c, const sl_wire_header *h, const uint8_t *p, sl_err *err) {
    sl_status st = expect(h, SL_MSG_AUTH, SL_MAC_BYTES, err);
    if (st == SL_OK) st = check_mac(c, SL_MAC_CALLER, p, err);
    if (st == SL_OK) st = begin_crypt(c, err);
    if (st != SL_OK) return st;
    sl_mac mac = mac_of(c, SL_MAC_CALLEE);
    c->session = session_of(c);
    st = admit(c, err);
    if (st != SL_OK || c->state == SL_CONN_DOWN) return st;
    c->state = SL_CONN_OPEN;
    c->untold = true; /* until it has checked our mac, the caller takes no more than a handshake */
    st = transmit_bytes(c, SL_MSG_WELCOME, mac.bytes, sizeof mac.bytes);
    return st == SL_OK ? SL_OK : sl_fail(err, st, "WELCOME could not be sent");
}

static sl_status on_welcome(sl_conn *c, const sl_wire_header *h, const uint8_t *p, sl_err *err) {
    sl_status st = expect(h, SL_MSG_WELCOME, SL_MAC_BYTES, err);
    if (st == SL_OK) st = check_mac(c, SL_MAC_CALLEE, p, err);
    if (st == SL_OK) st = begin_crypt(c, err);
    if (st != SL_OK) return st;
    if (h->session != c->session)
        return sl_fail(err, SL_ERR_PROTOCOL, "handshake: WELCOME for another session");
    st = admit(c, err);
    if (c->state == SL_CONN_DOWN) return st;
    c->state = SL_CONN_OPEN; /* the peer counts us in already: a refusal has to be a BYE */
    if (st != SL_OK) return st;
    if (!c->held.head) sl_session_heartbeat(c, false); /* the peer waits for a word */
    flush_held(c);
    return SL_OK;
}

static sl_status handshake_step(sl_conn *c, const sl_wire_header *h, sl_block *b, sl_err *err) {
    const uint8_t *p = b->buf.data;
    if (h->kind == SL_MSG_REFUSE) {
        peer_leaves(c, "refused", true, (sl_span){p, b->buf.len});
        return SL_OK;
    }
    switch (c->state) {
    case SL_CONN_WAIT_HELLO:
        return on_hello(c, h, p, err);
    case SL_CONN_WAIT_CHALLENGE:
        return on_challenge(c, h, p, err);
    case SL_CONN_WAIT_AUTH:
        return on_auth(c, h, p, err);
    case SL_CONN_WAIT_WELCOME:
        return on_welcome(c, h, p, err);
    case SL_CONN_ADMITTING:
    case SL_CONN_OPEN:
    case SL_CONN_DOWN:
        break;
    }
    return sl_fail(err, SL_ERR_INTERNAL, "handshake in state %d", (int)c->state);
}

/* ---- open connections ---- */

/* Takes the block. */
static void deliver(sl_conn *c, const sl_wire_header *h, sl_block *b) {
    sl_net *n = c->net;
    sl_err err = {0};
    sl_buf *payload = &b->buf;
    if (h->bytes == 0) {
        sl_block_give(&n->pool, b);
        payload = NULL;
    }
    n->delivered++;
    sl_status st = n->on.on_message(n->ctx, c, h, payload, &err);
    if (st == SL_OK || c->state == SL_CONN_DOWN) return;
    sl_log(SL_LOG_WARN, "net", "%s from %s: %s", sl_msg_kind_name(h->kind), peer_name(c), err.msg);
    transmit_error(c, err.msg);
    /* One that could not be taken is lost; who sent it has to hear of that. */
    if (st == SL_ERR_PROTOCOL || st == SL_ERR_NOMEM) sl_session_close(c, st, err.msg);
}

/* A peer may have windows where this net has none: it is told nothing, and keeps to messages. */
static void take_offer(sl_conn *c, sl_span payload) {
    sl_window_offer o;
    sl_err err = {0};
    sl_status st = sl_window_offer_decode(payload, &o, &err);
    if (st == SL_OK && c->transport->ops->use_window)
        st = c->transport->ops->use_window(c->transport, c, &o, &err);
    if (st != SL_OK && c->state != SL_CONN_DOWN) close_for(c, st, &err);
}

static void unknown_kind(sl_conn *c, const sl_wire_header *h) {
    char text[SL_NET_MAX_TEXT + 1];
    snprintf(text, sizeof text, "unknown message kind %u", h->kind);
    sl_log(SL_LOG_WARN, "net", "%s from %s", text, peer_name(c));
    transmit_error(c, text);
}

/* Takes the block. */
static void open_step(sl_conn *c, const sl_wire_header *h, sl_block *b) {
    char text[SL_NET_MAX_TEXT + 1];
    sl_err err = {0};
    switch (h->kind) {
    case SL_MSG_HELLO:
    case SL_MSG_CHALLENGE:
    case SL_MSG_AUTH:
    case SL_MSG_WELCOME:
    case SL_MSG_REFUSE:
        sl_fail(&err, SL_ERR_PROTOCOL, "%s on an open connection", sl_msg_kind_name(h->kind));
        close_for(c, SL_ERR_PROTOCOL, &err);
        break;
    case SL_MSG_BYE:
        peer_leaves(c, "closed", false, (sl_span){b->buf.data, b->buf.len});
        break;
    case SL_MSG_HEARTBEAT:
        break;
    case SL_MSG_WINDOW:
        take_offer(c, (sl_span){b->buf.data, b->buf.len});
        break;
    case SL_MSG_ERROR:
        sl_wire_text((sl_span){b->buf.data, b->buf.len}, text, sizeof text);
        sl_log(SL_LOG_WARN, "net", "%s reports: %s", peer_name(c), text);
        break;
    default:
        if (sl_msg_kind_name(h->kind)) {
            deliver(c, h, b);
            return;
        }
        unknown_kind(c, h);
    }
    sl_block_give(&c->net->pool, b);
}

/* The caller does not take our WELCOME, or did not wait for it: its last word is of the handshake,
 * which is over for this end only. */
static bool refuses(const sl_conn *c, const sl_wire_header *h) {
    return c->state == SL_CONN_OPEN && c->untold && h->kind == SL_MSG_REFUSE;
}

static sl_status check_sum(const sl_block *b, const sl_wire_header *h, bool has, sl_err *err) {
    uint32_t sum = has ? sl_wire_sum(b->header, (sl_span){b->buf.data, b->buf.len}) : 0;
    if (h->sum == sum) return SL_OK;
    return sl_fail(err, SL_ERR_PROTOCOL,
                   "a message of %u bytes is damaged: its checksum is 0x%08x, it says 0x%08x",
                   h->bytes, sum, h->sum);
}

/* In place; what is left is the message as it was sent. */
static sl_status decrypt(sl_conn *c, sl_block *b, sl_wire_header *h, sl_err *err) {
    const size_t len = SL_MAX(b->buf.len, (size_t)SL_CRYPT_TAG_BYTES) - SL_CRYPT_TAG_BYTES;
    const sl_status st =
        b->buf.len < SL_CRYPT_TAG_BYTES
            ? SL_ERR_PROTOCOL
            : sl_crypt_open(c->crypt, h->seq, b->header, sizeof b->header, b->buf.data, len);
    if (st == SL_ERR_NOMEM) return sl_fail(err, st, "no memory for the next key of a connection");
    if (st != SL_OK)
        return sl_fail(err, SL_ERR_PROTOCOL, "a message of %u bytes is not as %s has encrypted it",
                       h->bytes, peer_name(c));
    b->buf.len = len;
    h->bytes = (uint32_t)len;
    return SL_OK;
}

static sl_status check_message(sl_conn *c, sl_block *b, sl_wire_header *h, sl_err *err) {
    sl_status st = sl_wire_header_decode((sl_span){b->header, sizeof b->header}, h, err);
    if (st != SL_OK) return st;
    bool open = c->state == SL_CONN_OPEN && !refuses(c, h);
    if (h->bytes != b->buf.len)
        return sl_fail(err, SL_ERR_PROTOCOL, "header says %u payload bytes, %zu came", h->bytes,
                       b->buf.len);
    if (h->bytes > sl_net_payload_limit(c))
        return sl_fail(err, SL_ERR_PROTOCOL, "%u payload bytes before authentication, limit %zu",
                       h->bytes, sl_net_payload_limit(c));
    st = check_sum(b, h, open && c->sums, err);
    if (st != SL_OK) return st;
    if (h->seq != c->recv_seq + 1)
        return sl_fail(err, SL_ERR_PROTOCOL, "sequence number %llu, %llu expected",
                       (unsigned long long)h->seq, (unsigned long long)c->recv_seq + 1);
    if (!open) return SL_OK;
    if (h->session != c->session)
        return sl_fail(err, SL_ERR_PROTOCOL, "message of another session");
    if (h->incarnation != c->peer.incarnation)
        return sl_fail(err, SL_ERR_PROTOCOL, "message of incarnation %u, the peer is %u",
                       h->incarnation, c->peer.incarnation);
    return c->crypt ? decrypt(c, b, h, err) : SL_OK;
}

void sl_session_receive(sl_conn *c, sl_block *b) {
    sl_wire_header h;
    sl_err err = {0};
    const size_t came = b->buf.len;
    sl_status st = check_message(c, b, &h, &err);
    /* Where a peer's own mistakes cannot look so, the link's do: a loss as any other, which who has
     * it recovers from. */
    if (st != SL_OK && c->state == SL_CONN_OPEN && (c->crypt || c->sums)) st = SL_ERR_PEER_DOWN;
    if (SL_MUTATION(LOST_DAMAGED) && st != SL_OK && c->state == SL_CONN_OPEN) {
        c->recv_seq++;
        sl_block_give(&c->net->pool, b);
        return;
    }
    if (st == SL_OK) {
        c->recv_seq = h.seq;
        c->stats.received_messages++;
        c->stats.received_bytes += SL_WIRE_HEADER_BYTES + came;
        if (refuses(c, &h)) {
            peer_leaves(c, "refused", true, (sl_span){b->buf.data, b->buf.len});
            sl_block_give(&c->net->pool, b);
            return;
        }
        if (c->state == SL_CONN_OPEN && c->untold) {
            c->untold = false;
            flush_held(c); /* which may find the link gone */
        }
        if (c->state == SL_CONN_OPEN) {
            open_step(c, &h, b);
            return;
        }
        if (c->state != SL_CONN_DOWN) st = handshake_step(c, &h, b, &err);
    }
    sl_block_give(&c->net->pool, b);
    if (st != SL_OK && c->state != SL_CONN_DOWN) close_for(c, st, &err);
}
