/* Links over UCX: endpoints, what is queued for them, how they end. */
#include <stdio.h>

#include "base/mem.h"
#include "net/ucx/ucx_int.h"

#define END_NS       1000000000ull /* for closing all links of a net */
#define GAP_CHECK_NS 100000000ull

static uint32_t bucket_of(ucp_ep_h ep) {
    uint64_t h = (uint64_t)(uintptr_t)ep * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 56) % SL_UCX_BUCKETS;
}

static ucx_link *find_link(const ucx_transport *t, ucp_ep_h ep) {
    ucx_link *l = t->bucket[bucket_of(ep)];
    while (l && l->ep != ep) l = l->bucket_next;
    return l;
}

static sl_block_pool *pool_of(const ucx_link *l) {
    return &l->t->base.net->pool;
}

/* ---- opening and failing ---- */

ucx_link *sl_ucx_link_create(ucx_transport *t) {
    ucx_link *l = sl_alloc(1, sizeof *l);
    if (!l) return NULL;
    l->t = t;
    l->next_seq = 1;
    l->next = t->links;
    t->links = l;
    return l;
}

void sl_ucx_link_free_unopened(ucx_link *l) {
    ucx_link **at = &l->t->links;
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    sl_free(l);
}

static void link_fail(ucx_link *l, sl_status why, const char *text) {
    if (l->failed) return;
    l->failed = true;
    l->why = why;
    snprintf(l->text, sizeof l->text, "%s", text);
    l->t->any_failed = true;
}

static void link_lost(ucx_link *l, ucs_status_t status) {
    char text[sizeof l->text];
    snprintf(text, sizeof text, "connection lost: %s", ucs_status_string(status));
    link_fail(l, SL_ERR_PEER_DOWN, text);
}

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status) {
    (void)ep;
    link_lost(arg, status);
}

sl_status sl_ucx_link_open(ucx_link *l, ucp_ep_params_t *params, const char *what, sl_err *err) {
    params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler.cb = on_error;
    params->err_handler.arg = l;
    ucs_status_t st = ucp_ep_create(l->t->worker, params, &l->ep);
    if (st != UCS_OK) {
        sl_ucx_link_free_unopened(l);
        return sl_fail(err, SL_ERR_PEER_DOWN, "%s: %s", what, ucs_status_string(st));
    }
    uint32_t k = bucket_of(l->ep);
    l->bucket_next = l->t->bucket[k];
    l->t->bucket[k] = l;
    return SL_OK;
}

/* ---- sending ---- */

static void on_sent(void *request, ucs_status_t status, void *arg) {
    sl_block *b = arg;
    ucx_link *l = b->link;
    l->n_sending--;
    sl_block_give(pool_of(l), b);
    if (status != UCS_OK) link_lost(l, status);
    ucp_request_free(request);
}

sl_status sl_ucx_link_send(ucx_link *l, sl_block *b) {
    if (l->failed) {
        sl_block_give(pool_of(l), b);
        return SL_ERR_PEER_DOWN;
    }
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_REPLY, /* names the link at the receiver */
        .cb.send = on_sent,
        .user_data = b,
    };
    b->link = l;
    bool put = false;
    const size_t head = sl_ucx_window_send(l, b, &put);
    const size_t len = put ? 0 : b->buf.len;
    ucs_status_ptr_t p = ucp_am_send_nbx(l->ep, SL_UCX_AM_ID, b->header, head,
                                         len ? b->buf.data : NULL, len, &param);
    if (UCS_PTR_IS_PTR(p)) {
        l->n_sending++;
        return SL_OK;
    }
    sl_block_give(pool_of(l), b);
    if (!UCS_PTR_IS_ERR(p)) return SL_OK;
    link_lost(l, UCS_PTR_STATUS(p));
    return SL_ERR_PEER_DOWN;
}

/* ---- receiving ---- */

static uint64_t seq_of(const sl_block *b) {
    uint64_t seq;
    memcpy(&seq, b->header + SL_WIRE_SEQ_AT, sizeof seq);
    return seq;
}

static void queue(ucx_link *l, sl_block *b) {
    b->link = l;
    sl_block_push(&l->t->inbox, b);
}

/* It is the turn of a message whose payload may lie in a window. False: the link failed. */
static bool is_whole(ucx_link *l, sl_block *b) {
    sl_err err;
    sl_status st = b->key ? sl_ucx_window_take(l, b, &err) : SL_OK;
    if (st != SL_OK) link_fail(l, st, err.msg);
    return st == SL_OK;
}

/* A message is here, all of it or but for what lies in a window. One from the past goes on as it
 * is: the session refuses it. */
static void put_in_order(ucx_link *l, sl_block *b) {
    b->order = seq_of(b);
    l->n_queued++;
    sl_block **at = &l->early;
    while (*at && (*at)->order < b->order) at = &(*at)->next;
    b->next = *at;
    *at = b;
    if (++l->n_early > SL_UCX_MAX_EARLY)
        link_fail(l, SL_ERR_PROTOCOL, "too many messages ahead of a missing one");
    while (l->early && l->early->order <= l->next_seq && is_whole(l, l->early)) {
        b = l->early;
        l->early = b->next;
        l->n_early--;
        if (b->order == l->next_seq) l->next_seq++;
        queue(l, b);
        l->gap_since_us = 0;
    }
}

static void on_received(void *request, ucs_status_t status, size_t length, void *arg) {
    sl_block *b = arg;
    ucx_link *l = b->link;
    l->n_receiving--;
    if (request) ucp_request_free(request);
    if (status == UCS_OK && length == b->buf.len && l->conn) {
        sl_net_heard(l->conn);
        put_in_order(l, b);
        return;
    }
    sl_block_give(pool_of(l), b);
    if (status != UCS_OK)
        link_lost(l, status);
    else if (l->conn)
        link_fail(l, SL_ERR_PROTOCOL, "a message shorter than announced");
}

/* The sender waits with the payload until we say where to: UCX copies it there. */
static ucs_status_t fetch(ucx_link *l, void *descriptor, sl_block *b) {
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv_am = on_received,
        .user_data = b,
    };
    b->link = l;
    l->n_receiving++;
    ucs_status_ptr_t p =
        ucp_am_recv_data_nbx(l->t->worker, descriptor, b->buf.data, b->buf.len, &param);
    if (UCS_PTR_IS_ERR(p)) on_received(NULL, UCS_PTR_STATUS(p), 0, b);
    return UCS_OK;
}

static const char *refusal(const ucx_link *l, size_t length) {
    size_t limit = sl_net_payload_limit(l->conn);
    if (length > limit) return "a payload over the limit";
    if (limit <= SL_NET_MAX_UNTRUSTED && l->n_queued + l->n_receiving >= SL_UCX_MAX_UNTRUSTED)
        return "too many messages before authentication";
    return NULL;
}

/* A note follows the header: the payload may lie in a window, where as many bytes are as the header
 * says. NULL: all is well. */
static const char *read_note(ucx_link *l, const uint8_t *header, size_t header_length,
                             size_t *length, uint64_t *number, sl_err *err) {
    *number = 0;
    if (header_length == SL_WIRE_HEADER_BYTES) return NULL;
    if (header_length != SL_WIRE_HEADER_BYTES + SL_WINDOW_NOTE_BYTES || !l->t->base.net->windows)
        return "a message with a header of the wrong size";
    uint32_t bytes;
    memcpy(&bytes, header + SL_WIRE_BYTES_AT, sizeof bytes);
    if (sl_ucx_window_noted(l, header + SL_WIRE_HEADER_BYTES, bytes, number, err) != SL_OK)
        return err->msg;
    if (*number && *length) return "a payload that came twice";
    if (*number) *length = bytes;
    return NULL;
}

ucs_status_t sl_ucx_on_message(void *arg, const void *header, size_t header_length, void *data,
                               size_t length, const ucp_am_recv_param_t *param) {
    ucx_transport *t = arg;
    sl_err err;
    uint64_t number;
    bool here = !(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV);
    /* UCX takes an error for an answer only when the payload is still at the sender. */
    ucs_status_t refused = here ? UCS_OK : UCS_ERR_REJECTED;
    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP)) return refused;
    ucx_link *l = find_link(t, param->reply_ep);
    if (!l || !l->conn || l->failed) return refused;
    sl_net_heard(l->conn);
    const char *why = read_note(l, header, header_length, &length, &number, &err);
    if (!why) why = refusal(l, length);
    sl_block *b = why ? NULL : sl_block_take(pool_of(l), length);
    if (!b) {
        link_fail(l, why ? SL_ERR_PROTOCOL : SL_ERR_NOMEM, why ? why : "out of memory");
        return refused;
    }
    memcpy(b->header, header, sizeof b->header);
    b->key = number;
    if (!here) return fetch(l, data, b);
    if (length && !number) memcpy(b->buf.data, data, length);
    put_in_order(l, b);
    return UCS_OK;
}

/* ---- closing ---- */

static void forget_messages(ucx_link *l) {
    sl_block_list keep = {0};
    ucx_transport *t = l->t;
    for (sl_block *b; (b = sl_block_pop(&t->inbox)) != NULL;) {
        if (b->link == l)
            sl_block_give(pool_of(l), b);
        else
            sl_block_push(&keep, b);
    }
    for (sl_block *b; (b = sl_block_pop(&keep)) != NULL;) sl_block_push(&t->inbox, b);
    while (l->early) {
        sl_block *b = l->early;
        l->early = b->next;
        sl_block_give(pool_of(l), b);
    }
    l->n_early = l->n_queued = 0;
}

static void start_close(ucx_link *l) {
    ucx_link **at = &l->t->bucket[bucket_of(l->ep)];
    while (*at != l) at = &(*at)->bucket_next;
    *at = l->bucket_next;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t p = ucp_ep_close_nbx(l->ep, &param);
    l->close_request = UCS_PTR_IS_PTR(p) ? p : NULL;
    l->state = l->close_request ? UCX_LINK_CLOSING : UCX_LINK_CLOSED;
}

void sl_ucx_link_drop(ucx_link *l, bool flush) {
    l->conn = NULL;
    l->t->n_leaving++;
    forget_messages(l);
    if (flush && !l->failed) {
        l->state = UCX_LINK_LINGERING;
        l->linger_until_ns = sl_now_ns() + 1000ull * SL_NET_LINGER_US;
    } else {
        start_close(l);
    }
}

/* UCX delivers everything that was sent, so a hole that no transfer in flight explains is the
 * peer's. */
static void check_gap(ucx_link *l) {
    uint64_t now_us = sl_net_now_us(l->t->base.net);
    if (!l->early || l->n_receiving)
        l->gap_since_us = 0;
    else if (!l->gap_since_us)
        l->gap_since_us = now_us;
    else if (now_us - l->gap_since_us > l->t->base.net->dead_after_us)
        link_fail(l, SL_ERR_PROTOCOL, "a sequence number is missing");
}

/* True when the link may be freed. */
static bool tend(ucx_link *l, uint64_t now_ns) {
    switch (l->state) {
    case UCX_LINK_UP:
        check_gap(l);
        if (l->failed) sl_net_link_down(l->conn, l->why, l->text);
        return false;
    case UCX_LINK_LINGERING:
        /* The peer ends the connection when it has read why; until then it may still be reading. */
        if (l->failed || now_ns >= l->linger_until_ns) start_close(l);
        return false;
    case UCX_LINK_CLOSING:
        if (ucp_request_check_status(l->close_request) == UCS_INPROGRESS) return false;
        ucp_request_free(l->close_request);
        l->close_request = NULL;
        l->state = UCX_LINK_CLOSED;
        break;
    case UCX_LINK_CLOSED:
        break;
    }
    return l->n_sending == 0 && l->n_receiving == 0;
}

void sl_ucx_links_tend(ucx_transport *t) {
    uint64_t now_ns = sl_now_ns();
    if (!t->any_failed && !t->n_leaving && now_ns < t->next_gap_check_ns) return;
    t->any_failed = false;
    t->next_gap_check_ns = now_ns + GAP_CHECK_NS;
    for (ucx_link **at = &t->links; *at;) {
        ucx_link *l = *at;
        if (!tend(l, now_ns)) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        t->n_leaving--;
        sl_ucx_windows_close(l);
        sl_free(l);
    }
}

void sl_ucx_links_end(ucx_transport *t) {
    for (ucx_link *l = t->links; l; l = l->next) {
        if (l->state == UCX_LINK_UP)
            sl_ucx_link_drop(l, false);
        else if (l->state == UCX_LINK_LINGERING)
            start_close(l);
    }
    uint64_t until_ns = sl_now_ns() + END_NS;
    while (t->links && sl_now_ns() < until_ns) {
        ucp_worker_progress(t->worker);
        sl_ucx_links_tend(t);
    }
}
