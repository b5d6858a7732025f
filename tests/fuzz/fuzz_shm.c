/* A peer on shared memory that writes whatever it likes into the rings and moves the counters at
 * will, before and after a handshake. Input: u8 mode (bit 0: shake hands first, bit 1: the greeting
 * is bent), then steps of u8 what and its operands. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "net/shm/shm_int.h"

#define KEY "the key of the tests"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static sl_net *net; /* one for all runs: making sockets costs more than a run */
static uint64_t now_us = 1000;
static uint32_t n_open, n_down;

static uint64_t read_clock(void *ctx) {
    return (void)ctx, now_us;
}

static sl_status on_open(void *ctx, sl_conn *c, const sl_hello *peer, sl_err *err) {
    (void)ctx, (void)c, (void)peer, (void)err;
    n_open++;
    return SL_OK;
}

static sl_status on_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                            sl_err *err) {
    (void)ctx, (void)c;
    uint8_t sum = 0;
    for (size_t i = 0; payload && i < payload->len; i++) sum ^= payload->data[i];
    sl_net_buf_give(net, payload);
    return h->lane == 1u + sum ? sl_fail(err, SL_ERR_PROTOCOL, "lane") : SL_OK;
}

static void on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    (void)ctx, (void)c, (void)why;
    SL_ASSERT(strlen(text) <= SL_NET_MAX_TEXT);
    n_down++;
}

static void start(void) {
    sl_err err = {0};
    sl_log_set_level(SL_LOG_ERROR);
    const sl_net_opts o = {.transport = "shm",
                           .host = "127.0.0.1",
                           .clock = {read_clock, NULL},
                           .secret = {(const uint8_t *)KEY, sizeof KEY - 1},
                           .on = {on_open, on_message, on_down}};
    sl_status st = sl_net_create(&o, &net, &err);
    SL_ASSERT(st == SL_OK);
}

/* The peer: index 0 of the area, its own ring and what it makes of the other. */
typedef struct raw {
    int fd;
    shm_area *area;
    shm_pipe tx, rx;
    uint64_t seq, session;
    uint8_t hello[SL_HELLO_BYTES + SL_NONCE_BYTES + SL_MAC_BYTES]; /* the message */
} raw;

static void step(void) {
    now_us += 1000;
    ((shm_transport *)net->transport)->next_poll_ns = 0;
    sl_net_progress(net);
}

static void put(raw *r, const void *bytes, size_t n) {
    sl_shm_tx_put(&r->tx, bytes, n);
}

static void say(raw *r, uint16_t kind, uint8_t flaw, const void *bytes, size_t n) {
    uint8_t head[SL_SHM_RECORD_HEAD];
    sl_wire_header h = {
        .kind = kind, .session = r->session, .incarnation = 1, .bytes = (uint32_t)n};
    h.seq = ++r->seq;
    if (flaw & 1) h.lane = flaw;
    sl_wr w = sl_wr_of(head, sizeof head);
    sl_wr_u32(&w, flaw == 0xFF ? UINT32_MAX : flaw & 2 ? (uint32_t)flaw << 10 : (uint32_t)n);
    sl_wr_u32(&w, flaw & 4 ? flaw : SL_SHM_MARK);
    sl_wire_header_encode(&h, head + 8);
    if (flaw & 8) head[8 + flaw % SL_WIRE_HEADER_BYTES] ^= flaw;
    put(r, head, sizeof head);
    if (n) put(r, bytes, n);
    size_t all = sizeof head + n, whole = (all + SL_SHM_RECORD_STEP - 1) & ~(size_t)63;
    put(r, NULL, whole - all);
    sl_shm_tx_publish(&r->tx);
}

static void log_in(raw *r) {
    uint8_t record[512], mac[SL_MAC_BYTES];
    const sl_transcript own = {.caller_nonce = r->hello + SL_HELLO_BYTES, .caller_hello = r->hello};
    sl_auth_mac((const uint8_t *)KEY, sizeof KEY - 1, SL_MAC_HELLO, &own,
                r->hello + SL_HELLO_BYTES + SL_NONCE_BYTES);
    say(r, SL_MSG_HELLO, 0, r->hello, sizeof r->hello);
    step();
    if (!sl_shm_rx_look(&r->rx) || sl_shm_rx_bytes(&r->rx) < 384) return;
    sl_shm_rx_take(&r->rx, record, sizeof record);
    const uint8_t *p = record + SL_SHM_RECORD_HEAD;
    sl_transcript t = {r->hello + SL_HELLO_BYTES, p + SL_HELLO_BYTES, r->hello, p};
    sl_auth_mac((const uint8_t *)KEY, sizeof KEY - 1, SL_MAC_CALLER, &t, mac);
    say(r, SL_MSG_AUTH, 0, mac, sizeof mac);
    r->session = sl_auth_session((const uint8_t *)KEY, sizeof KEY - 1, &t);
    step();
}

static void act(raw *r, sl_cur *c) {
    uint8_t what = sl_cur_u8(c), kind = sl_cur_u8(c), flaw = sl_cur_u8(c);
    size_t len = sl_cur_u8(c);
    len = SL_MIN(len, sl_cur_left(c));
    const uint8_t *bytes = sl_cur_take(c, len);
    uint64_t by = (uint64_t)(int64_t)(int8_t)flaw << kind % 24;
    switch (what % 8) {
    case 0: /* bytes that are no record */
        put(r, bytes, len);
        sl_shm_tx_publish(&r->tx);
        break;
    case 1: /* a counter jumps */
        atomic_fetch_add(&r->area->ring[kind >> 7].tail, by);
        break;
    case 2:
        atomic_fetch_add(&r->area->ring[kind >> 7].head, by);
        break;
    case 3:
        atomic_store(&r->area->sleeper[kind & 1].reasons, flaw);
        break;
    case 4: /* what was published changes under the reader's hands */
        if (len) memcpy(r->tx.data + (by & (SL_SHM_RING_BYTES / 2 - 1)), bytes, len);
        break;
    case 5: /* the socket says something */
        (void)!send(r->fd, "wake", len & 3, MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
    default:
        say(r, kind, what % 8 == 6 ? 0 : flaw, bytes, len);
    }
}

static bool bend_greeting(raw *r, sl_cur *c) {
    uint8_t bytes[16];
    size_t n = SL_MIN(sl_cur_left(c), sizeof bytes);
    if (n) memcpy(bytes, sl_cur_take(c, n), n);
    return send(r->fd, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_err err = {0};
    raw r = {0};
    if (size < 1) return 0;
    if (!net) start();
    if (sl_shm_dial(sl_net_address(net), &r.fd, &err) != SL_OK) return 0;
    sl_cur c = sl_cur_of((sl_span){data, size});
    uint8_t mode = sl_cur_u8(&c);
    if (mode & 2) {
        (void)bend_greeting(&r, &c);
        step();
    } else if (sl_shm_greet(r.fd, &r.area, &err) == SL_OK) {
        sl_hello h = {.worker = 1, .incarnation = 1, .name = "raw"};
        sl_hello_encode(&h, r.hello);
        sl_shm_pipes_open(r.area, 0, &r.tx, &r.rx);
        step();
        if (mode & 1) log_in(&r);
        while (sl_cur_left(&c) >= 4) {
            act(&r, &c);
            step();
        }
    }
    close(r.fd);
    sl_shm_area_free(r.area);
    for (int i = 0; i < 8 && ((shm_transport *)net->transport)->links; i++) step();
    SL_ASSERT(!((shm_transport *)net->transport)->links && net->n_conns == 0);
    return 0;
}
