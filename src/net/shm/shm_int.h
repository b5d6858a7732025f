/* Shared-memory transport: processes of one user on one machine.
 *
 * A link is a Unix stream socket and an area of shared memory with two byte rings, one a direction.
 * Nobody else has a part in them, so whatever a peer does to its link, even dying in the middle of
 * a store, harms that link alone. The caller makes the area (a sealed memfd) and passes it over the
 * socket; afterwards the socket carries nothing but bytes that wake a sleeper, and its end: the
 * kernel closes it when the process dies, and what had wholly arrived by then is still delivered.
 *
 * Everything in the area may change at any time at the peer's will: each word is read once, then
 * checked; payloads are used only after they were copied out. Thread: owner of the net. */
#ifndef SL_NET_SHM_INT_H
#define SL_NET_SHM_INT_H

#include <stdatomic.h>

#include "net/net_int.h"

#define SL_SHM_RING_BYTES ((uint64_t)1 << 22) /* of one direction; a power of two */
#define SL_SHM_DATA_AT    4096u               /* of the first ring in the area */
#define SL_SHM_AREA_BYTES (SL_SHM_DATA_AT + 2 * SL_SHM_RING_BYTES)
#define SL_SHM_PIECE_BYTES                                                                         \
    32768u /* published at once, so that both sides copy at the same time                          \
            */
#define SL_SHM_RECORD_HEAD (8u + SL_WIRE_HEADER_BYTES) /* u32 payload bytes, u32 mark, header */
#define SL_SHM_RECORD_STEP 64u                         /* records begin on cache lines */
#define SL_SHM_MARK        0x52485353u                 /* "SSHR" */

/* What a sleeper waits for. */
#define SL_SHM_FOR_DATA  0x1u
#define SL_SHM_FOR_SPACE 0x2u

/* Bytes ever written and ever read. Every word on a line of its own, each with one writer. */
typedef struct shm_ring {
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) _Atomic uint64_t head;
} shm_ring;

/* Index 0: caller to callee, or the caller. */
typedef struct shm_area {
    shm_ring ring[2];
    struct {
        _Alignas(64) _Atomic uint32_t reasons; /* SL_SHM_FOR_*; 0: awake */
    } sleeper[2];
} shm_area;

/* One direction as one side sees it. Only `seen` comes from the peer, and it has been checked. */
typedef struct shm_pipe {
    shm_ring *ring;
    uint8_t *data;
    uint64_t own;       /* this side's counter: tail of a sender, head of a receiver */
    uint64_t published; /* how much of it the peer has been told */
    uint64_t seen;      /* the other side's counter */
} shm_pipe;

typedef struct shm_transport shm_transport;

typedef enum shm_link_state {
    SHM_LINK_GREETING, /* called; the area has not come */
    SHM_LINK_UP,
    SHM_LINK_LINGERING, /* dropped by the session; what was sent is still written */
    SHM_LINK_CLOSED,    /* may be freed */
} shm_link_state;

typedef struct shm_link {
    shm_transport *t;
    struct shm_link *next;
    sl_conn *conn; /* NULL before the greeting and once dropped */
    shm_area *area;
    int fd;
    shm_link_state state;
    bool hung_up;   /* the peer's end of the socket is closed: seen of rx is final */
    bool announced; /* our sleeper word is set */
    bool loud;      /* what is being written is to wake the peer */
    bool more;      /* progress has something to do whatever the counters say */
    bool failed;
    sl_status why;
    char text[128];
    uint64_t deadline_us; /* of the greeting or the lingering, by sl_net_now_us */
    _Atomic uint32_t *own_sleeper, *peer_sleeper;
    shm_pipe tx, rx;
    sl_block_list queue; /* head: sent_bytes of its record are in the ring */
    size_t sent_bytes;
    sl_block *partial; /* being received */
    size_t got_bytes;  /* of its record */
} shm_link;

struct shm_transport {
    sl_transport base;
    int listen_fd, wake_fd, epoll_fd;
    shm_link *links;
    uint32_t n_greeting, n_lingering;
    uint64_t next_poll_ns; /* of the sockets, while this net is busy */
    bool any_to_tend;
};

/* ---- pipe.c ---- */

/* Both sides' pipes of a fresh or received area. */
void sl_shm_pipes_open(shm_area *area, uint32_t side, shm_pipe *tx, shm_pipe *rx);
/* Reads the other side's counter; false: it is impossible. */
bool sl_shm_tx_look(shm_pipe *p) SL_MUST_CHECK;
bool sl_shm_rx_look(shm_pipe *p) SL_MUST_CHECK;
/* True when the counter is not the one last looked at, so that looking again is worth it. */
bool sl_shm_tx_moved(const shm_pipe *p);
bool sl_shm_rx_moved(const shm_pipe *p);
static inline size_t sl_shm_tx_room(const shm_pipe *p) {
    return (size_t)(SL_SHM_RING_BYTES - (p->own - p->seen));
}
static inline size_t sl_shm_rx_bytes(const shm_pipe *p) {
    return (size_t)(p->seen - p->own);
}
/* n is at most the room or the bytes there. src NULL: skips. */
void sl_shm_tx_put(shm_pipe *p, const void *src, size_t n);
void sl_shm_rx_take(shm_pipe *p, void *out, size_t n); /* out NULL: skips */
/* Tells the other side; sequentially consistent, see sl_shm_link_announce. */
void sl_shm_tx_publish(shm_pipe *p);
void sl_shm_rx_publish(shm_pipe *p);

/* ---- socket.c: system calls ---- */

/* Binds a random abstract name (nothing stays behind in any file system) and writes "shm:HEX". */
sl_status sl_shm_listen(int *out_fd, char *address, size_t cap, sl_err *err) SL_MUST_CHECK;
sl_status sl_shm_dial(const char *address, int *out_fd, sl_err *err) SL_MUST_CHECK;
/* -1: nobody there, or somebody of another user (who is turned away). */
int sl_shm_accept(int listen_fd);
/* Makes the area and sends it. */
sl_status sl_shm_greet(int fd, shm_area **out, sl_err *err) SL_MUST_CHECK;
/* SL_ERR_AGAIN: it has not come yet. */
sl_status sl_shm_greeted(int fd, shm_area **out, sl_err *err) SL_MUST_CHECK;
void sl_shm_area_free(shm_area *a); /* NULL-safe */

/* ---- link.c ---- */

/* Takes fd in every case. In state SHM_LINK_GREETING; NULL: out of memory. */
shm_link *sl_shm_link_create(shm_transport *t, int fd);
/* Takes area. side 0: we called. */
void sl_shm_link_attach(shm_link *l, shm_area *area, uint32_t side);
/* Reported by the next sl_shm_links_tend. */
void sl_shm_link_fail(shm_link *l, sl_status why, const char *text);
sl_status sl_shm_link_send(shm_link *l, sl_block *b); /* takes the block */
void sl_shm_link_drop(shm_link *l, bool flush);
void sl_shm_link_progress(shm_link *l);
/* The socket is readable or closed: takes wake-up bytes, notices the end. */
void sl_shm_link_read_socket(shm_link *l);
/* True when progress has something to do. */
bool sl_shm_link_is_ready(const shm_link *l);
/* Sets our sleeper word; the caller must look at is_ready once more before it sleeps. */
void sl_shm_link_announce(shm_link *l);
void sl_shm_link_awake(shm_link *l);
/* Reports failures, ends lingering, frees what is closed. */
void sl_shm_links_tend(shm_transport *t);
void sl_shm_links_free(shm_transport *t);

/* ---- what transports.c names ---- */

sl_status sl_shm_transport_create(sl_net *n, const sl_net_opts *o, sl_transport **out,
                                  sl_err *err) SL_MUST_CHECK;

#endif
