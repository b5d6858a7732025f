/* UCX transport: one UCP worker a net, one endpoint a link, every message one active message.
 *
 * UCX keeps neither large and small messages of an endpoint in order nor the large ones among each
 * other, so arrivals are put in order by the sequence number of their header. UCX's callbacks only
 * queue; everything above is called from progress. Thread: owner of the net. */
#ifndef SL_NET_UCX_INT_H
#define SL_NET_UCX_INT_H

#include <ucp/api/ucp.h>

#include "net/net_int.h"

#define SL_UCX_AM_ID         1u
#define SL_UCX_BUCKETS       256u
#define SL_UCX_MAX_EARLY     65536u /* messages of a link that wait for an earlier one */
#define SL_UCX_MAX_UNTRUSTED 8u     /* undelivered messages of a link before authentication */
#define SL_UCX_MAX_CALLS     256u   /* connection requests not yet looked at */

typedef struct ucx_transport ucx_transport;

typedef enum ucx_link_state {
    UCX_LINK_UP,
    UCX_LINK_LINGERING, /* dropped by the session; what was sent may still leave */
    UCX_LINK_CLOSING,   /* UCX is closing the endpoint */
    UCX_LINK_CLOSED,    /* waits for its last requests */
} ucx_link_state;

typedef struct ucx_window_in {
    sl_window_in in;
    ucp_mem_h memory;
    uint64_t told; /* how many the peer knows to be taken */
} ucx_window_in;

typedef struct ucx_window_out {
    sl_window_out out;
    ucp_rkey_h key; /* as long as the memory is mapped; NULL with it: the peer is sent messages */
} ucx_window_out;

typedef struct ucx_link {
    ucx_transport *t;
    struct ucx_link *next, *bucket_next;
    sl_conn *conn; /* NULL once dropped */
    ucp_ep_h ep;
    ucx_link_state state;
    bool failed; /* UCX or the peer's bytes say so; text says why */
    sl_status why;
    char text[128];
    ucs_status_ptr_t close_request;
    uint64_t linger_until_ns, gap_since_us;
    uint64_t next_seq;
    sl_block *early; /* ascending by order (sequence number) */
    uint32_t n_early, n_queued, n_receiving, n_sending;
    ucx_window_in *in;   /* for what the peer puts; NULL: no window */
    ucx_window_out *out; /* the peer's */
} ucx_link;

struct ucx_transport {
    sl_transport base;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_listener_h listener;
    ucp_ep_h mapper; /* to this worker itself, to map what peers have; NULL: not needed yet */
    struct sockaddr_storage own;     /* where it listens; no family: nowhere */
    int event_fd, wake_fd, owner_fd; /* the last one: to watch, or -1 */
    ucx_link *links;
    ucx_link *bucket[SL_UCX_BUCKETS];
    uint32_t n_leaving; /* links that are not up */
    bool any_failed;
    uint64_t next_gap_check_ns;
    sl_block_list inbox; /* in order; block.link is a link whose conn is set */
    ucp_conn_request_h calls[SL_UCX_MAX_CALLS];
    size_t n_calls;
};

/* ---- links.c ---- */

ucx_link *sl_ucx_link_create(ucx_transport *t); /* NULL: out of memory */
/* params without error handling, which this adds. On failure the link is gone. */
sl_status sl_ucx_link_open(ucx_link *l, ucp_ep_params_t *params, const char *what, sl_err *err);
void sl_ucx_link_free_unopened(ucx_link *l);
/* Takes the block. */
sl_status sl_ucx_link_send(ucx_link *l, sl_block *b);
void sl_ucx_link_drop(ucx_link *l, bool flush);
/* Reports links that failed, ends lingering, frees what is closed. */
void sl_ucx_links_tend(ucx_transport *t);
/* Closes all and waits, 1 s at most. */
void sl_ucx_links_end(ucx_transport *t);
ucs_status_t sl_ucx_on_message(void *arg, const void *header, size_t header_length, void *data,
                               size_t length, const ucp_am_recv_param_t *param);

/* ---- windows.c: payloads by memory that both map (net/window.h) ---- */

sl_status sl_ucx_open_window(sl_transport *t, sl_conn *c, sl_window_offer *offer, uint8_t *key,
                             sl_err *err) SL_MUST_CHECK;
sl_status sl_ucx_use_window(sl_transport *t, sl_conn *c, const sl_window_offer *offer,
                            sl_err *err) SL_MUST_CHECK;
void sl_ucx_mapper_close(ucx_transport *t); /* after all windows */
/* Frees both ends; nothing of them is under way any more. */
void sl_ucx_windows_close(ucx_link *l);
/* Before b leaves: puts its payload into the peer's window, if that may be (*put), and writes its
 * note. Returns the bytes of header and note. */
size_t sl_ucx_window_send(ucx_link *l, sl_block *b, bool *put);
/* A note came with a header that says `bytes`; *number: of the message in the window, or 0. */
sl_status sl_ucx_window_noted(ucx_link *l, const uint8_t *note, size_t bytes, uint64_t *number,
                              sl_err *err) SL_MUST_CHECK;
/* The payload of b (its number is b->key), as sl_window_in_take. */
sl_status sl_ucx_window_take(ucx_link *l, sl_block *b, sl_err *err) SL_MUST_CHECK;

/* ---- what transports.c names ---- */

sl_status sl_ucx_transport_create(sl_net *n, const sl_net_opts *o, sl_transport **out,
                                  sl_err *err) SL_MUST_CHECK;
void sl_ucx_setup_process(void); /* see sl_transport_kind */

#endif
