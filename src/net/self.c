/* Connections of a net with itself: a worker that hosts both ends hands payloads over in place. */
#include "base/mem.h"
#include "net/net_int.h"

typedef struct self_link {
    sl_conn *conn;
    struct self_link *other; /* NULL once the other end is gone */
} self_link;

typedef struct self_transport {
    sl_transport base;
    sl_block_list inbox; /* block.link: the receiving end; event 1: the other end is gone */
} self_transport;

static void self_destroy(sl_transport *base) {
    self_transport *t = (self_transport *)base;
    sl_block_give_all(&base->net->pool, &t->inbox);
    sl_free(t);
}

static const sl_origin itself = {UINT64_MAX, "itself"}; /* no address has that key */

static sl_status self_connect(sl_transport *base, sl_conn *c, const char *address, sl_err *err) {
    self_link *near = sl_alloc(1, sizeof *near), *far = sl_alloc(1, sizeof *far);
    sl_conn *accepted = near && far ? sl_net_accept(base->net, base, far, &itself, err) : NULL;
    if (!accepted) {
        if (!near || !far) sl_fail(err, SL_ERR_NOMEM, "connection to %s", address);
        sl_free(near);
        sl_free(far);
        return err ? err->code : SL_ERR_LIMIT;
    }
    *near = (self_link){.conn = c, .other = far};
    *far = (self_link){.conn = accepted, .other = near};
    c->link = near;
    c->place = accepted->place = SL_PEER_IN_THIS_PROCESS;
    return SL_OK;
}

static sl_status self_send(sl_transport *base, sl_conn *c, sl_block *b) {
    self_transport *t = (self_transport *)base;
    self_link *l = c->link;
    if (!l->other) {
        sl_block_give(&base->net->pool, b);
        return SL_ERR_PEER_DOWN;
    }
    b->link = l->other;
    b->event = 0;
    sl_block_push(&t->inbox, b);
    return SL_OK;
}

/* The messages already sent still arrive at the other end, unless it goes first. */
static void self_drop(sl_transport *base, sl_conn *c, bool flush) {
    self_transport *t = (self_transport *)base;
    self_link *l = c->link;
    (void)flush;
    sl_block_list keep = {0};
    for (sl_block *b; (b = sl_block_pop(&t->inbox)) != NULL;) {
        if (b->link == l)
            sl_block_give(&base->net->pool, b);
        else
            sl_block_push(&keep, b);
    }
    /* `keep` is a local: its empty tail must not survive it. */
    for (sl_block *b; (b = sl_block_pop(&keep)) != NULL;) sl_block_push(&t->inbox, b);
    sl_block *gone = l->other ? sl_block_take(&base->net->pool, 0) : NULL;
    if (l->other) l->other->other = NULL;
    if (gone) {
        gone->link = l->other;
        gone->event = 1;
        sl_block_push(&t->inbox, gone);
    }
    sl_free(l);
}

static void self_progress(sl_transport *base) {
    self_transport *t = (self_transport *)base;
    size_t n = 0;
    for (sl_block *b = t->inbox.head; b; b = b->next) n++;
    for (; n > 0; n--) {
        sl_block *b = sl_block_pop(&t->inbox);
        if (!b) break;
        self_link *l = b->link;
        if (b->event) {
            sl_block_give(&base->net->pool, b);
            sl_net_link_down(l->conn, SL_ERR_PEER_DOWN, "the other end is gone");
        } else {
            sl_net_heard(l->conn);
            sl_net_arrived(l->conn, b);
        }
    }
}

static void self_wait(sl_transport *base, uint64_t timeout_us) {
    (void)base, (void)timeout_us;
}
static void self_wake(sl_transport *base) {
    (void)base;
}
static bool self_is_flushing(sl_transport *base) {
    return (void)base, false;
}

static const sl_transport_ops self_ops = {
    .destroy = self_destroy,
    .connect = self_connect,
    .send = self_send,
    .drop = self_drop,
    .progress = self_progress,
    .wait = self_wait,
    .wake = self_wake,
    .is_flushing = self_is_flushing,
};

bool sl_self_is_ready(const sl_transport *t) {
    return ((const self_transport *)t)->inbox.head != NULL;
}

sl_status sl_self_transport_create(sl_net *n, sl_transport **out, sl_err *err) {
    self_transport *t = sl_alloc(1, sizeof *t);
    if (!t) return sl_fail(err, SL_ERR_NOMEM, "fabric");
    t->base = (sl_transport){.ops = &self_ops, .net = n, .inside = true};
    *out = &t->base;
    return SL_OK;
}
