/* TCP transport: one socket a link, edge-triggered epoll, no threads.
 *
 * The stream is one message after the other: the 72-byte header, then the payload that its `bytes`
 * field announces. Payloads are read from the socket into the block that is handed on, and written
 * from the block that was handed in. Every link has a small buffer for what comes with a header, so
 * a short message costs one system call. Thread: owner of the net. */
#ifndef SL_NET_TCP_INT_H
#define SL_NET_TCP_INT_H

#include "net/net_int.h"

#define SL_TCP_STAGE_BYTES 16384u /* read ahead of a link */

typedef struct tcp_transport tcp_transport;

typedef enum tcp_link_state {
    TCP_LINK_CONNECTING,
    TCP_LINK_UP,
    TCP_LINK_LINGERING, /* dropped by the session; what was sent may still leave */
    TCP_LINK_CLOSED,
} tcp_link_state;

typedef struct tcp_link {
    tcp_transport *t;
    struct tcp_link *next;
    sl_conn *conn; /* NULL once dropped */
    int fd;
    tcp_link_state state;
    bool readable, writable; /* since the last EAGAIN; edge-triggered */
    bool failed;             /* the socket or the peer's bytes say so; text says why */
    bool finished;           /* lingering: our side of the stream is closed */
    sl_status why;
    char text[128];
    uint64_t deadline_ns; /* lingering ends */
    /* Sending: sent_bytes of the first block's header and payload have left. */
    sl_block_list queue;
    size_t sent_bytes;
    /* Receiving: got_bytes of the payload of `partial`; stage[at..end) is not yet looked at. */
    sl_block *partial;
    size_t got_bytes;
    size_t at, end;
    uint8_t stage[SL_TCP_STAGE_BYTES];
} tcp_link;

struct tcp_transport {
    sl_transport base;
    int epoll_fd, listen_fd, wake_fd;
    tcp_link *links;
    uint32_t n_lingering;
    bool any_to_tend; /* a link failed or closed */
    bool more;        /* a link stopped reading before its socket was empty */
};

/* ---- link.c ---- */

/* Takes fd in every case. NULL: no memory or no room in epoll. */
tcp_link *sl_tcp_link_create(tcp_transport *t, int fd, tcp_link_state state);
/* It is up: says where its peer is. A connection whose two ends have one address ends on this
 * machine. */
void sl_tcp_link_place(tcp_link *l);
/* Takes the block. */
sl_status sl_tcp_link_send(tcp_link *l, sl_block *b);
/* What epoll says of its socket. */
void sl_tcp_link_event(tcp_link *l, uint32_t events);
void sl_tcp_link_progress(tcp_link *l);
void sl_tcp_link_drop(tcp_link *l, bool flush);
/* Reports links that failed, ends lingering, frees what is closed. */
void sl_tcp_links_tend(tcp_transport *t);
void sl_tcp_links_free(tcp_transport *t);

/* ---- what transports.c names ---- */

sl_status sl_tcp_transport_create(sl_net *n, const sl_net_opts *o, sl_transport **out,
                                  sl_err *err) SL_MUST_CHECK;

#endif
