/* The connections of a server's clients: how many are let in, how long each may take to ask, and
 * who gives way when there is no more room.
 *
 * The server accepts connections itself and hands them to libmicrohttpd, which could neither make
 * room for a new one nor stop accepting without a race that aborts the process. A connection that
 * waits for no answer may be closed at any time: when all places are taken, the address that holds
 * most of such connections gives up one, so that probes are answered whoever else is connected.
 * Locks: c->lock is taken last. Thread: any, unless something else is said. */
#ifndef SL_SERVE_CONNS_H
#define SL_SERVE_CONNS_H

#include "base/status.h"
#include "tls/tls.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdbool.h>

typedef enum sl_conn_state {
    SL_CONN_IDLE,   /* no request, or not all of its head */
    SL_CONN_BODY,   /* the head of a request is here, its body is on the way */
    SL_CONN_ANSWER, /* the request is whole, its answer is not sent */
} sl_conn_state;

typedef struct sl_peer sl_peer;
typedef struct sl_conn sl_conn;

typedef struct sl_conns_opts {
    uint32_t limit; /* connections, but SL_CONNS_SPARE more while every one waits for its answer */
    uint32_t idle_ms;  /* for the head of a request, from the connection's or last answer's begin */
    uint32_t stall_ms; /* a body that brings less than SL_CONNS_BODY_RATE for so long is given up */
} sl_conns_opts;

#define SL_CONNS_SPARE     64u
#define SL_CONNS_BODY_RATE 1024u /* bytes a second */

typedef struct sl_conns {
    sl_conns_opts o;
    pthread_mutex_t lock;
    sl_conn *first, *last; /* those that wait for no answer, the longest in its state first */
    sl_peer *peers;
    uint32_t n_open;    /* accepted and not closed */
    uint32_t n_begun;   /* of them in libmicrohttpd's hands */
    uint32_t n_dropped; /* of these shut down by us */
    size_t leaving;     /* bytes that the bodies of dropped connections still hold */
    uint64_t told_ns;   /* when the log last said that there was no room */
} sl_conns;

/* c->o is filled in before the first connection comes. */
void sl_conns_init(sl_conns *c);
/* Every connection was closed before. */
void sl_conns_free(sl_conns *c);

/* Lets in whoever waits at the socket, through `tls`, if not NULL: then the socket of a connection
 * is the end of a pair at which the client speaks in the clear. Returns false when it should be
 * tried again after a pause rather than as soon as the socket is ready. Thread: one. */
bool sl_conns_accept(sl_conns *c, int listen_fd, sl_tls_front *tls, struct MHD_Daemon *d);
/* Ends what has had its time; to be called about once a second. gap_ns: since it was called last,
 * or could have been. Where that is longer, this process stood still, and that time is nobody's. */
void sl_conns_sweep(sl_conns *c, uint64_t gap_ns);
uint32_t sl_conns_open(sl_conns *c);

/* libmicrohttpd's notice of a connection; NULL: no memory, no request can be served on it. */
sl_conn *sl_conn_begin(sl_conns *c, struct MHD_Connection *mhd);
void sl_conn_end(sl_conns *c, sl_conn *conn);
/* False: it was shut down meanwhile, nothing can be answered. */
bool sl_conn_enter(sl_conns *c, sl_conn *conn, sl_conn_state state);
/* n more bytes of its body are here, `kept` of it are held, and the bodies of all connections hold
 * `excess` more than they may. Then unfinished ones that hold more give way: the largest of the
 * address that holds most, if that is another; or one that is at least twice as large. False: none
 * does, this one cannot be kept. */
bool sl_conn_receive(sl_conns *c, sl_conn *conn, size_t n, size_t kept, size_t excess);

#endif
