/* The fabric: authenticated connections that carry messages over a transport.
 *
 * A net belongs to one process role (a worker or a coordinator). It listens on one address,
 * connects to others on demand, does the mutual HMAC-SHA256 handshake on every connection before
 * anything else is delivered, sends heartbeats and watches the peers'. Delivery is per-connection
 * FIFO without gaps. Transports: "loop" (threads of one process, through a hub), "shm" (processes
 * of one user on one machine), "tcp" (sockets) and "ucx" (UCX). Thread: owner (the thread that
 * calls sl_net_progress) for everything but sl_net_wake. Callbacks run inside sl_net_progress; they
 * may send, connect and close, but not free the net. */
#ifndef SL_NET_NET_H
#define SL_NET_NET_H

#include "base/clock.h"
#include "base/span.h"
#include "net/crypt.h"
#include "net/wire.h"
#include "spec/plan.h"

typedef struct sl_net sl_net;
typedef struct sl_conn sl_conn;

/* Rows of a message that ranks on machines have beside its payload, in parts (net/rails.h). Zeroed:
 * all that there is lies in the payload. */
typedef struct sl_spread_name {
    uint64_t number; /* of the message; 0: none has */
    uint64_t key;    /* of the main connection that it came by or leaves by; 0: it stays here */
    bool cut;        /* rows of the payload are rank 0's columns; else they are whole everywhere */
} sl_spread_name;

/* Rows of a message that lie in memory of a device instead (engine/host/far.h). Zeroed: none do. */
typedef struct sl_far_name {
    void *window; /* whose they are */
    uint32_t slot;
    size_t bytes;
    bool leaves; /* they are to go from here; else they came */
} sl_far_name;

/* Payload bytes: 64-byte aligned, one owner at a time: whoever holds it frees it. */
typedef struct sl_buf {
    uint8_t *data;
    size_t len, cap;
    sl_spread_name spread;
    sl_far_name far;
} sl_buf;

/* From a per-net pool of recycled blocks; NULL when memory is out. */
sl_buf *sl_net_buf_take(sl_net *net, size_t len) SL_MUST_CHECK;
void sl_net_buf_give(sl_net *net, sl_buf *buf); /* NULL-safe */
/* `given` hears of each buffer that is given back and has rows far away, before it is gone. What is
 * sent has none: the sender knows where they are. */
void sl_net_on_give(sl_net *net, void (*given)(const sl_buf *buf));

/* What each side tells the other in the handshake. */
typedef struct sl_hello {
    uint32_t worker;         /* id, SL_NO_WORKER when the coordinator has not given one yet */
    uint32_t incarnation;    /* random per process start */
    uint32_t is_coordinator; /* 0 or 1 */
    /* 0 or 1, filled in by the net: messages with checksums, encrypted ones; AES in hardware */
    uint32_t wants_sums, wants_crypt, has_aes;
    uint32_t insists; /* 0 or 1, too: on encryption; a peer that would do without goes along */
    uint32_t wire;    /* sl_wire_format */
    uint32_t roles;   /* SL_ROLE_* this worker is able to take */
    uint8_t model_hash[32]; /* sl_model_spec.hash; zero: none */
    char address[96];       /* where this net listens, "" when nowhere */
    char name[64];          /* for logs */
} sl_hello;

typedef struct sl_net_events {
    /* The connection is authenticated; returning an error refuses it with err's text. */
    sl_status (*on_open)(void *ctx, sl_conn *c, const sl_hello *peer, sl_err *err);
    /* One message in order. payload (NULL when bytes == 0) is the callee's now. An error return is
     * logged and answered with SL_MSG_ERROR; SL_ERR_PROTOCOL and SL_ERR_NOMEM also close the
     * connection. */
    sl_status (*on_message)(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                            sl_err *err);
    /* The connection is gone (never opened ones too). Its user pointer is still readable. why is
     * SL_OK when either side closed it with SL_OK, SL_ERR_PEER_DOWN when the peer closed it
     * otherwise or vanished, the refusal's status when it was refused. Not called for what
     * sl_net_free closes. */
    void (*on_down)(void *ctx, sl_conn *c, sl_status why, const char *text);
} sl_net_events;

/* In-process hub for "loop" nets. With a seed, deliveries are delayed by up to max_delay_us and
 * messages of different connections overtake each other, reproducibly in their order of choice.
 * Thread: any. */
typedef struct sl_loop_hub sl_loop_hub;
sl_status sl_loop_hub_create(uint64_t seed, uint32_t max_delay_us, sl_loop_hub **out,
                             sl_err *err) SL_MUST_CHECK;
void sl_loop_hub_free(sl_loop_hub *h); /* after all its nets */
/* For simulations: what ails the links, in both directions and whoever called, of the nets at
 * addresses a and b, from now on and on their clock. Addresses of other transports are ignored, and
 * so is what is over SL_LOOP_MAX_AILS. Thread: the one that drives all nets of the hub. */
#define SL_LOOP_MAX_AILS 32u
/* What they send each other arrives not before until_us. */
void sl_loop_hub_hold(sl_loop_hub *h, const char *a, const char *b, uint64_t until_us);
/* Until then so many bytes a second pass in either direction, then what waits does at once. */
void sl_loop_hub_thin(sl_loop_hub *h, const char *a, const char *b, uint64_t bytes_per_s,
                      uint64_t until_us);
/* One bit (`bit` modulo all of them) of the next message that a sends b is another one. */
void sl_loop_hub_damage(sl_loop_hub *h, const char *a, const char *b, uint64_t bit);
/* Their connections end at both ends, and what is on its way with them. Others may follow at once.
 * Not counted among the above. */
void sl_loop_hub_cut(sl_loop_hub *h, const char *a, const char *b);
/* For simulations, before any connection: its nets play machines of their own, whose silence counts
 * (see sl_net_opts). */
void sl_loop_hub_set_apart(sl_loop_hub *h);
/* What a net of the hub has sent: the numbers of its and of the receiver's address, and what of its
 * bytes is the engine's; kind 0: the transport's own. */
typedef struct sl_loop_parcel {
    uint64_t from, to;
    uint16_t kind; /* sl_msg_kind */
    size_t bytes;  /* of the payload */
    void *block;   /* the hub's */
} sl_loop_parcel;
/* For simulations, before any connection: from now on `carry` gets what is sent, and arrives is
 * what the simulation gives back with sl_loop_hub_deliver: each parcel once, those between two nets
 * in the order in which they were sent, all before the hub is freed. Thread: the one that drives
 * all nets of the hub. */
void sl_loop_hub_set_carrier(sl_loop_hub *h, void (*carry)(void *ctx, const sl_loop_parcel *p),
                             void *ctx);
void sl_loop_hub_deliver(sl_loop_hub *h, const sl_loop_parcel *p);

/* Which connections have something: those that both ends want it for. */
typedef enum sl_net_when {
    SL_NET_WHEN_OFF,
    SL_NET_WHEN_ON,
    SL_NET_WHEN_AUTO, /* with peers that are not on this machine */
} sl_net_when;

const char *sl_net_when_name(sl_net_when when); /* "off", "on" or "auto" */
/* The reverse; SL_ERR_ARG names the option. */
sl_status sl_net_when_parse(const char *option, const char *text, sl_net_when *out,
                            sl_err *err) SL_MUST_CHECK;

/* Most bytes of a message's payload: an encrypted one has a tag behind it. */
#define SL_NET_MAX_PAYLOAD (SL_WIRE_MAX_BYTES - SL_CRYPT_TAG_BYTES)

typedef struct sl_net_opts {
    const char *transport; /* "loop", "shm", "tcp", "ucx" */
    sl_loop_hub *hub;      /* for "loop" */
    const char *host;      /* to bind; NULL: do not listen. "loop", "shm": not used */
    uint16_t port;         /* 0: any free one below 32768 */
    const char *advertise; /* HOST or HOST:PORT that others shall call; NULL, "": what it binds */
    sl_span secret; /* SL_SECRET_MIN to _MAX bytes; empty is refused on a non-loopback bind */
    sl_hello hello; /* own; address is filled in by the net */
    sl_clock clock;
    uint32_t heartbeat_us, dead_after_us; /* 0: 250 ms and 2 s */
    /* 0: 10 s. How long a silent peer is borne: one in this process for ever, another one on this
     * machine so long (its end is heard of at once), one elsewhere for dead_after_us, longer the
     * later this process itself lately ran, but no longer than this. */
    uint32_t silence_limit_us;
    /* A coordinator is borne for a minute, or for silence_limit_us if that is longer. One whose
     * process started this one: for ever, as long as it is this one's parent. 0: it did not. */
    int32_t parent;
    uint32_t callers; /* see sl_net_set_callers; 0: 64, as at first */
    /* A CRC-32C over every message; a damaged one ends its connection. Encrypted ones need none. */
    sl_net_when sums;
    /* Messages are encrypted (net/crypt.h), but over transports that stay in a machine's memory.
     * ON: a peer that does not want it is refused. */
    sl_net_when encrypt;
    /* Windows may be opened (sl_net_open_window): "ucx" alone. */
    bool windows;
    sl_net_events on;
    void *ctx;
} sl_net_opts;

/* Whoever talked to an end of a handshake can try guesses at the secret on what it heard: a short
 * one is refused, and sl_secret_make's 32 random bytes, in hex, are not worth guessing. */
#define SL_SECRET_MIN 16u
#define SL_SECRET_MAX 64u
sl_status sl_secret_make(char out[SL_SECRET_MAX + 1], sl_err *err) SL_MUST_CHECK;
/* SL_ERR_ARG names the source. */
sl_status sl_secret_check(size_t len, const char *source, sl_err *err) SL_MUST_CHECK;

/* Sets what UCX reads from the environment; call first in main, before any thread. */
void sl_net_setup_process(const char *transport);

sl_status sl_net_create(const sl_net_opts *o, sl_net **out, sl_err *err) SL_MUST_CHECK;
/* The net's own time: its clock's without the spans, of a second and more, in which this process
 * stood still; it never goes back. By it deadlines count that others are given. Valid as long as
 * the net. Thread: owner. */
sl_clock sl_net_clock(sl_net *n);
void sl_net_free(sl_net *n); /* closes all, flushes briefly */
/* Frees without a word to anybody, as a killed process would: for simulations. */
void sl_net_abandon(sl_net *n);
const char *sl_net_address(const sl_net *n); /* "host:port", "shm:HEX", "loop:7"; "": none */
/* A worker learns its id, model and limits from the plan, after the net exists: later handshakes
 * and headers carry these. The address stays the net's. */
void sl_net_set_hello(sl_net *n, const sl_hello *hello);

/* So many honest callers may come at once, and have a place until they have proved themselves; of
 * more than that (64 at least), one has to give way. */
void sl_net_set_callers(sl_net *n, uint32_t callers);

/* From now on a thread of the net's own moves bytes and sends heartbeats, too, about every 50 us
 * while the owner is elsewhere: for owners that compute for long and have a core to spare.
 * Callbacks still come from sl_net_progress alone. Not for simulations, whose clock is their own.
 */
sl_status sl_net_set_pump(sl_net *n, sl_err *err) SL_MUST_CHECK;

/* Starts a connection; on_open or on_down follows (handshake deadline 2 s). Messages may be sent at
 * once: they leave after WELCOME. A net may connect to its own address. */
sl_status sl_net_connect(sl_net *n, const char *address, void *user, sl_conn **out,
                         sl_err *err) SL_MUST_CHECK;
/* Payloads of this connection that its peer sends may come by a window of so many slots, each for
 * one of at most so many bytes (net/window.h), if the peer has windows, too; longer ones, and what
 * finds no slot free, come with their header. In on_open or later, once a connection. No matter how
 * a payload comes, nothing above the net sees a difference. SL_ERR_UNSUPPORTED without
 * sl_net_opts.windows; SL_ERR_NOMEM. */
sl_status sl_net_open_window(sl_net *n, sl_conn *c, uint32_t slots, size_t slot_bytes,
                             sl_err *err) SL_MUST_CHECK;
/* Never blocks. Takes payload in every case. Fills session, src, incarnation, seq, bytes of the
 * header itself. SL_ERR_PEER_DOWN when the connection is gone; SL_ERR_NOMEM ends it. on_down says
 * so in any case. */
sl_status sl_net_send(sl_net *n, sl_conn *c, sl_wire_header h, sl_buf *payload);
/* Sends BYE with a reason and drops the connection; on_down is called with `why` from the next
 * progress. */
void sl_net_close(sl_net *n, sl_conn *c, sl_status why, const char *text);

/* Delivers what is there, drives sends, handshakes and heartbeats. Returns the messages delivered;
 * 0 at once from inside a callback. */
uint32_t sl_net_progress(sl_net *n);
/* Sleeps until something arrives, sl_net_wake, or timeout_us; polls for about 20 us first.
 * Heartbeats still leave on time: it never sleeps past the next one. */
void sl_net_wait(sl_net *n, uint64_t timeout_us);
/* From now on sl_net_wait polls for `us` while nobody else needs its core (base/poll.h), for 20 us
 * otherwise: for an owner that knows whether something is on its way. sl_net_wake may go unseen as
 * long. 0: as at first. */
void sl_net_set_poll(sl_net *n, uint32_t us);
#define SL_NET_POLL_US 4000u /* of workers that wait for rows, and of measurements */
void sl_net_wake(sl_net *n); /* Thread: any */
/* sl_net_wait also returns while the caller's fd is readable: one of a net, open as long as that.
 * SL_ERR_UNSUPPORTED: over "loop"; SL_ERR_IO. */
sl_status sl_net_watch(sl_net *n, int fd, sl_err *err) SL_MUST_CHECK;

typedef struct sl_conn_stats {
    uint64_t sent_messages, sent_bytes, received_messages, received_bytes;
} sl_conn_stats;
const sl_hello *sl_conn_hello(const sl_conn *c);
/* Why what is said to this peer may not go by memory that both have beside the connection: it is on
 * another machine, or checksums or encryption are wanted of all that is said. NULL: it may. In
 * on_open and later. */
const char *sl_conn_bars_memory(const sl_conn *c);
/* What is sent and comes from here on is encrypted. In on_open and later. */
bool sl_conn_is_encrypted(const sl_conn *c);
void *sl_conn_user(const sl_conn *c);
void sl_conn_set_user(sl_conn *c, void *user);
sl_conn_stats sl_conn_stats_of(const sl_conn *c);
bool sl_conn_is_open(const sl_conn *c);
typedef struct sl_window_stats {
    uint64_t put, taken; /* messages that left and came by windows */
} sl_window_stats;
sl_window_stats sl_net_window_stats(const sl_net *n);
/* How late this process looked at its timers, lately at worst: others on this machine may be as
 * late. */
uint64_t sl_net_late_us(const sl_net *n);
/* Since the last byte came, by the net's own time. */
uint64_t sl_conn_silent_us(const sl_conn *c);

#endif
