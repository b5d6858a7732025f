/* Inside of the front: one link is one client, from its first byte to its socket's end.
 *
 * Two sockets belong to a link: `net` is the client's, `plain` our end of the pair whose other end
 * the server has. Bytes are read only when there is room for them on the other side, so that a link
 * holds a record in each direction and no more, and whoever is slow is waited for by the other.
 * Thread: the front's. */
#ifndef SL_TLS_FRONT_INT_H
#define SL_TLS_FRONT_INT_H

#include "tls/gnutls/gnutls_int.h"

#include <netinet/in.h>

#define SL_TLS_RECORD 16384u /* bytes of the longest record */

typedef enum sl_tls_stage {
    SL_TLS_NEW,    /* nothing has come */
    SL_TLS_SHAKES, /* the handshake is under way */
    SL_TLS_OPEN,
    SL_TLS_BYE,  /* all that the server said is sent, but for that this is the end */
    SL_TLS_SHUT, /* our side of `net` is closed; what still comes is thrown away */
    SL_TLS_OVER, /* its sockets are to be closed */
} sl_tls_stage;

typedef enum sl_tls_greeting {
    SL_TLS_SILENT, /* so far */
    SL_TLS_SHAKEN,
    SL_TLS_FAILED,
    SL_TLS_IN_CLEAR, /* HTTP without TLS */
} sl_tls_greeting;

typedef struct sl_tls_link {
    struct sl_tls_link *prev, *next; /* in a list of the front's */
    struct sl_tls_link *next_busy;
    bool busy, counted,
        sorted; /* the front's: goes on at once, and `greeting`, `leaving` are seen */
    sl_tls_stage stage;
    sl_tls_greeting greeting;
    int net, plain;
    gnutls_session_t session;
    sl_tls_pair *pair;
    bool net_in, net_out, plain_in, plain_out; /* what may be tried: epoll tells of changes alone */
    bool leaving;      /* the server has closed its end, or the client has to go */
    bool hung_up;      /* the client's side of `net` is closed, behind what is not read of it */
    bool unsent;       /* GnuTLS has a record that did not fit into `net` */
    bool heard_all;    /* the client has ended what it says, or the server hears no more */
    uint64_t until_ns; /* when it is ended; 0: when client and server say so */
    uint8_t *held;     /* [n_held]: what did not fit into `plain` */
    size_t held_at, n_held;
    struct sockaddr_in6 from; /* or an IPv4 address */
} sl_tls_link;

/* Takes both sockets, and the reference to the pair. NULL: no memory, they are closed. */
sl_tls_link *sl_tls_link_create(int net, int plain, sl_tls_pair *pair, const struct sockaddr *from);
void sl_tls_link_free(sl_tls_link *l);
/* What epoll says of its sockets. */
void sl_tls_link_on_net(sl_tls_link *l, uint32_t events);
void sl_tls_link_on_plain(sl_tls_link *l, uint32_t events);
/* As much as can be done now, but no more than a few records; whether there is more. The buffer is
 * for the time of this call. */
bool sl_tls_link_turn(sl_tls_link *l, uint8_t record[SL_TLS_RECORD]);
/* Its time is over. */
void sl_tls_link_expire(sl_tls_link *l);
/* The client's address, as log lines have it. */
const char *sl_tls_link_from(const sl_tls_link *l, char out[INET6_ADDRSTRLEN]);

#endif
