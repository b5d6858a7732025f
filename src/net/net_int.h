/* Inside of the fabric: what transports give to the sessions and take from them.
 *
 * A transport moves (72-byte header, payload) pairs over links, in order and without gaps per link,
 * and says when a link is gone. It knows nothing of handshakes. Everything above it (sessions,
 * heartbeats, limits, refusals) is shared. Thread: owner of the net, unless said otherwise. */
#ifndef SL_NET_NET_INT_H
#define SL_NET_NET_INT_H

#include "base/poll.h"
#include "net/net.h"
#include "net/window.h"

#define SL_NET_HANDSHAKE_US     2000000u
#define SL_NET_MAX_PENDING      64u     /* callers without a HELLO that fits */
#define SL_NET_MAX_CALLS        16u     /* let in by one look; they are read before the next ones */
#define SL_NET_MAX_UNTRUSTED    4096u   /* payload bytes before authentication */
#define SL_NET_MAX_TEXT         480u    /* of a REFUSE, BYE or ERROR */
#define SL_NET_LINGER_US        300000u /* how long a closed link may still flush */
#define SL_NET_HEARTBEAT_US     250000u
#define SL_NET_DEAD_AFTER_US    2000000u /* as long as this process runs on time */
#define SL_NET_SILENCE_LIMIT_US 10000000u
#define SL_NET_COORDINATOR_US   60000000u /* the least that a silent coordinator is borne */
#define SL_HELLO_BYTES          212u
#define SL_NONCE_BYTES          32u
#define SL_HALF_BYTES           32u
#define SL_MAC_BYTES            32u

typedef struct sl_transport sl_transport;

/* A payload with room for its envelope: one allocation, handed from net to net and from thread to
 * thread whole. Any net's pool may recycle it. */
typedef struct sl_block {
    sl_buf buf; /* first: sl_buf pointers are block pointers */
    struct sl_block *next;
    void *link;      /* the transport's: where it goes or came from */
    uint64_t key;    /* loop: link of the receiver; UCX: message of a window, or 0 */
    uint64_t due_us; /* loop: not before */
    uint64_t order;  /* loop: among equal due_us; UCX: sequence number */
    uint32_t event;  /* loop: what arrives */
    uint32_t size_class;
    bool quiet; /* who sleeps need not wake for it, where the transport can tell */
    uint8_t header[SL_WIRE_HEADER_BYTES];
    uint8_t note[SL_WINDOW_NOTE_BYTES]; /* right behind the header, with which it leaves */
} sl_block;

static inline sl_block *sl_block_of(sl_buf *b) {
    return (sl_block *)(void *)b;
}

/* FIFO of blocks. */
typedef struct sl_block_list {
    sl_block *head, **tail; /* tail NULL: empty and not yet used */
} sl_block_list;

static inline void sl_block_push(sl_block_list *l, sl_block *b) {
    b->next = NULL;
    if (!l->head) l->tail = &l->head;
    *l->tail = b;
    l->tail = &b->next;
}

static inline sl_block *sl_block_pop(sl_block_list *l) {
    sl_block *b = l->head;
    if (b) l->head = b->next;
    return b;
}

#define SL_POOL_CLASSES 22u /* 256 B .. 512 MB */
typedef struct sl_block_pool {
    sl_block *free[SL_POOL_CLASSES];
    size_t free_bytes, max_free_bytes;
} sl_block_pool;

sl_block *sl_block_take(sl_block_pool *p, size_t len) SL_MUST_CHECK; /* NULL: out of memory */
void sl_block_give(sl_block_pool *p, sl_block *b);                   /* NULL-safe */
void sl_block_give_all(sl_block_pool *p, sl_block_list *l);
void sl_block_pool_drain(sl_block_pool *p);

/* Where a caller calls from, as far as the transport can tell. When too many wait, one of the key
 * that most of them have gives way. */
typedef struct sl_origin {
    uint64_t key;
    char text[48]; /* for logs */
} sl_origin;

typedef enum sl_conn_state {
    SL_CONN_WAIT_CHALLENGE, /* we called, HELLO is out */
    SL_CONN_WAIT_WELCOME,   /* we called, AUTH is out */
    SL_CONN_WAIT_HELLO,     /* we were called */
    SL_CONN_WAIT_AUTH, /* we were called, HELLO fits (it may be a recording), CHALLENGE is out */
    SL_CONN_ADMITTING, /* on_open is running, WELCOME not yet out */
    SL_CONN_OPEN,
    SL_CONN_DOWN, /* on_down is due */
} sl_conn_state;

/* Where the peer runs, as far as a link can tell: who would notice its end? */
typedef enum sl_peer_place {
    SL_PEER_ELSEWHERE,       /* nobody: its silence has to */
    SL_PEER_ON_THIS_MACHINE, /* the kernel, which closes its end of the link */
    SL_PEER_IN_THIS_PROCESS, /* it ends with us */
} sl_peer_place;

struct sl_conn {
    sl_net *net;
    sl_transport *transport;
    sl_peer_place place; /* the transport's to say, when the link is up */
    void *link;          /* the transport's */
    void *user;
    sl_conn_state state;
    bool accepted;
    bool untold; /* WELCOME is out, the caller has not spoken since: what the owner sends is held */
    bool sums;   /* both want checksums: what is sent when it is open has them */
    sl_crypt *crypt;  /* that is encrypted by this; NULL: it is not */
    bool ending;      /* the pump found the link gone, the owner is to hear of it */
    uint32_t n_early; /* messages that wait for the owner */
    sl_hello peer;
    sl_origin origin; /* of an accepted one */
    /* Where encryption is wanted a nonce is a key of X25519, new for this connection. */
    uint8_t own_nonce[SL_NONCE_BYTES], peer_nonce[SL_NONCE_BYTES];
    uint8_t own_half[SL_HALF_BYTES]; /* the secret one to own_nonce */
    uint8_t own_hello[SL_HELLO_BYTES], peer_hello[SL_HELLO_BYTES];
    uint64_t session;
    uint32_t incarnation;        /* own, as told in the handshake */
    uint64_t send_seq, recv_seq; /* of the last message */
    uint64_t began_us;           /* the handshake */
    uint64_t heard_us, sent_us;
    sl_block_list held; /* messages that wait for WELCOME, or for the caller to have it */
    sl_conn_stats stats;
    sl_status why;
    char text[SL_NET_MAX_TEXT + 1];
};

typedef struct sl_transport_ops {
    void (*destroy)(sl_transport *t);
    /* Sets c->link; messages may be sent at once. */
    sl_status (*connect)(sl_transport *t, sl_conn *c, const char *address, sl_err *err);
    /* Takes the block (its header is filled in) in every case. */
    sl_status (*send)(sl_transport *t, sl_conn *c, sl_block *b);
    /* Forgets the connection: no upcall for it from now on. flush: what was sent still leaves, for
     * SL_NET_LINGER_US at most. */
    void (*drop)(sl_transport *t, sl_conn *c, bool flush);
    void (*progress)(sl_transport *t);
    /* Sleeps at most timeout_us; returns early when there is something for progress. */
    void (*wait)(sl_transport *t, uint64_t timeout_us);
    void (*wake)(sl_transport *t); /* Thread: any */
    /* For sl_net_watch. NULL: it cannot. */
    sl_status (*watch)(sl_transport *t, int fd, sl_err *err);
    bool (*is_flushing)(sl_transport *t);
    /* For windows; NULL: it has none. Makes one of that shape (`first` is the transport's to draw)
     * for what the peer sends, and what it is to be told of it: the key, of at most
     * SL_WINDOW_MAX_KEY_BYTES, is written to `key`. SL_ERR_AGAIN: this peer could not use one. */
    sl_status (*open_window)(sl_transport *t, sl_conn *c, sl_window_offer *offer, uint8_t *key,
                             sl_err *err);
    /* The peer has one for us. SL_ERR_PROTOCOL: that cannot be. */
    sl_status (*use_window)(sl_transport *t, sl_conn *c, const sl_window_offer *offer, sl_err *err);
} sl_transport_ops;

/* First member of every transport. */
struct sl_transport {
    const sl_transport_ops *ops;
    sl_net *net;
    bool inside; /* its bytes are in this machine's memory alone: nothing is encrypted */
};

struct sl_net {
    sl_transport *transport;
    sl_transport *self; /* connections of this net with itself */
    sl_block_pool pool;
    sl_hello hello;
    uint8_t *secret;
    size_t secret_len;
    sl_clock clock;
    uint32_t heartbeat_us, dead_after_us, silence_limit_us;
    sl_net_when sums, encrypt;
    bool windows;
    sl_window_stats by_windows;
    int32_t parent;       /* see sl_net_opts */
    uint32_t max_callers; /* with a HELLO that fits, which may be a recording, and no more */
    uint64_t late_us;     /* how late its timers were looked at, lately at worst */
    sl_net_events on;
    void *ctx;
    void (*given)(const sl_buf *buf); /* sl_net_on_give */
    sl_conn **conns;
    size_t n_conns, cap_conns;
    uint32_t delivered;     /* in the current sl_net_progress */
    uint64_t next_timer_us; /* by sl_net_now_us */
    uint64_t poll_ns;       /* sl_net_set_poll */
    sl_poll_memory polled;
    uint64_t last_look_us, still_us;
    uint64_t told_us;       /* the latest time of sl_net_clock */
    uint64_t log_window_us; /* of callers that were turned away (pending.c) */
    uint32_t n_logged, n_unlogged;
    bool any_down, in_progress, closing;
    struct sl_pump *pump; /* NULL: the owner drives the net */
    bool pumping;         /* the pump does, now */
    sl_block_list early;  /* what it has for the owner */
};

/* The fabric's time: the clock's without the spans in which this process stood still (it was
 * stopped, its machine was moved). What it could not look at counts for no deadline: neither for a
 * peer's silence nor for a handshake, so that a pause of a whole machine breaks nothing. */
static inline uint64_t sl_net_now_us(const sl_net *n) {
    return sl_clock_now_us(&n->clock) - n->still_us;
}

/* ---- the progress thread (pump.c) ---- */

/* Around every call of the owner; no-ops without a pump. */
void sl_pump_lock(const sl_net *n);
void sl_pump_unlock(const sl_net *n);
/* The owner begins or ends to sleep in the transport. Under the lock. */
void sl_pump_rest(const sl_net *n, bool resting);
void sl_pump_stop(sl_net *n);
/* One look by the pump, under its lock: bytes and timers, no callbacks. */
void sl_net_pump(sl_net *n);
/* For the owner's next progress, in order. keep takes the block. */
void sl_pump_keep(sl_conn *c, sl_block *b);
void sl_pump_keep_down(sl_conn *c, sl_status why, const char *text);
void sl_pump_deliver(sl_net *n);

/* ---- transports call these, from connect, progress or wait ---- */

/* A peer's link appeared. NULL: no memory, or leaving (err says why): the transport turns the peer
 * away. It may drop another link whose caller has proved nothing. */
sl_conn *sl_net_accept(sl_net *n, sl_transport *t, void *link, const sl_origin *from, sl_err *err);
/* Largest payload this connection may send now: ask before memory is spent on it. */
size_t sl_net_payload_limit(const sl_conn *c);
/* Something came from the peer, even if it cannot be delivered yet. */
void sl_net_heard(sl_conn *c);
/* The next message; takes the block. Only from progress. */
void sl_net_arrived(sl_conn *c, sl_block *b);
/* The link is gone. The transport keeps its state until drop is called. */
void sl_net_link_down(sl_conn *c, sl_status why, const char *text);

/* ---- the transport of a process to itself; for the others see transports.c ---- */

sl_status sl_self_transport_create(sl_net *n, sl_transport **out, sl_err *err) SL_MUST_CHECK;
bool sl_self_is_ready(const sl_transport *t);

/* ---- sessions (session.c) ---- */

sl_status sl_session_call(sl_conn *c); /* sends HELLO */
void sl_session_receive(sl_conn *c, sl_block *b);
/* Fills in and sends, or holds it until WELCOME. Takes the payload. */
sl_status sl_session_send(sl_conn *c, sl_wire_header h, sl_buf *payload);
/* Tells the peer (REFUSE or BYE) and goes down. */
void sl_session_close(sl_conn *c, sl_status why, const char *text);
/* Goes down without a word; on_down follows from progress. */
void sl_session_fail(sl_conn *c, sl_status why, const char *text);
/* Tells the peer of a window that is open for it. */
sl_status sl_session_offer(sl_conn *c, const sl_window_offer *offer);
/* quiet: the peer hears of it when it wakes anyway, as it does for heartbeats of its own. */
void sl_session_heartbeat(sl_conn *c, bool quiet);
static inline bool sl_session_is_pending(const sl_conn *c) {
    return c->accepted && (c->state == SL_CONN_WAIT_HELLO || c->state == SL_CONN_WAIT_AUTH);
}

/* ---- callers that have not proved themselves (pending.c) ---- */

/* As many as there may be are in this state, SL_CONN_WAIT_HELLO or _AUTH. */
bool sl_pending_is_full(const sl_net *n, sl_conn_state state);
/* Before one more gets into it: another one gives way then. */
void sl_pending_make_room(sl_net *n, sl_conn_state state);
uint32_t sl_pending_count(const sl_net *n);
/* A caller was turned away: so many lines in so much time, the rest is counted. */
void sl_pending_log(sl_conn *c, const char *why);
void sl_pending_log_rest(sl_net *n, uint64_t now_us, uint64_t *next_us); /* a timer */

/* ---- handshake bytes (auth.c); Thread: any ---- */

void sl_hello_encode(const sl_hello *h, uint8_t out[SL_HELLO_BYTES]);
sl_status sl_hello_decode(const uint8_t in[SL_HELLO_BYTES], sl_hello *out,
                          sl_err *err) SL_MUST_CHECK;

typedef struct sl_transcript {
    const uint8_t *caller_nonce, *callee_nonce, *caller_hello, *callee_hello;
} sl_transcript;

/* SL_MAC_HELLO covers the caller's nonce and hello alone: all there is when HELLO leaves. */
typedef enum sl_mac_role {
    SL_MAC_HELLO,
    SL_MAC_CALLER,
    SL_MAC_CALLEE,
    SL_MAC_SESSION,
    SL_MAC_KEY_OF_CALLER, /* of what the caller sends; the shared half goes in, too */
    SL_MAC_KEY_OF_CALLEE,
} sl_mac_role;
typedef struct sl_mac {
    uint8_t bytes[SL_MAC_BYTES];
} sl_mac;
void sl_auth_mac(const uint8_t *secret, size_t secret_len, sl_mac_role role, const sl_transcript *t,
                 uint8_t out[SL_MAC_BYTES]);
/* The same with what both ends alone know of this connection. */
void sl_auth_key(const uint8_t *secret, size_t secret_len, sl_mac_role role, const sl_transcript *t,
                 const uint8_t shared[SL_HALF_BYTES], uint8_t out[SL_MAC_BYTES]);
/* Both sides compute the same non-zero id; it never travels before both have proved the secret. */
uint64_t sl_auth_session(const uint8_t *secret, size_t secret_len, const sl_transcript *t);
bool sl_auth_equal(const uint8_t a[SL_MAC_BYTES], const uint8_t b[SL_MAC_BYTES]);

#endif
