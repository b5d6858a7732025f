/* "loop": nets in threads of one process. A block is handed over whole, nothing is copied. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "net/loop/loop_int.h"

#define PART_US 100000u /* between signs of a message that takes its time */

typedef struct loop_link {
    uint64_t key; /* own end */
    sl_port *peer;
    sl_conn *conn;
    uint64_t n_sent, last_due_us;
    bool shut; /* nobody takes what is sent: it ends when what the peer had said was heard */
} loop_link;

typedef struct loop_transport {
    sl_transport base;
    sl_loop_hub *hub;
    sl_port *port;
    loop_link **links;
    size_t n_links, cap_links;
    sl_block_list fresh; /* without delays: in order of arrival */
    sl_block **heap;     /* with delays: by (due_us, order) */
    size_t n_heap, cap_heap;
    uint64_t n_arrived;
    bool some_shut;
} loop_transport;

/* ---- links ---- */

static loop_link *find_link(const loop_transport *t, uint64_t key) {
    for (size_t i = 0; i < t->n_links; i++)
        if (t->links[i]->key == key) return t->links[i];
    return NULL;
}

static loop_link *add_link(loop_transport *t, uint64_t key, sl_port *peer) {
    if (t->n_links == t->cap_links) {
        size_t cap = t->cap_links ? 2 * t->cap_links : 16;
        loop_link **grown = sl_grow(t->links, t->cap_links, cap, sizeof(loop_link *));
        if (!grown) return NULL;
        t->links = grown;
        t->cap_links = cap;
    }
    loop_link *l = sl_alloc(1, sizeof *l);
    if (!l) return NULL;
    l->key = key;
    l->peer = peer;
    t->links[t->n_links++] = l;
    return l;
}

static void remove_link(loop_transport *t, loop_link *l) {
    for (size_t i = 0; i < t->n_links; i++)
        if (t->links[i] == l) t->links[i] = t->links[--t->n_links];
    sl_free(l);
}

/* Takes the block. */
static bool put(loop_transport *t, loop_link *l, sl_loop_event event, uint64_t due_us,
                sl_block *b) {
    b->event = event;
    b->key = l->key ^ 1;
    b->due_us = due_us;
    if (sl_port_post(l->peer, b)) return true;
    sl_block_give(&t->base.net->pool, b);
    return false;
}

/* Who takes in a message bit by bit hears from its peer meanwhile. */
static void put_parts(loop_transport *t, loop_link *l, sl_loop_passage p) {
    for (uint64_t at_us = p.begins_us + PART_US; at_us < p.ends_us; at_us += PART_US) {
        sl_block *b = sl_block_take(&t->base.net->pool, 0);
        if (b) (void)put(t, l, SL_LOOP_PART, at_us, b);
    }
}

/* When it arrives. Delays never let a message of a connection overtake an earlier one. */
static uint64_t arrival_us(loop_transport *t, loop_link *l, const sl_block *b) {
    uint64_t now_us = sl_clock_now_us(&t->base.net->clock);
    uint64_t due_us = now_us + sl_loop_delay_us(t->hub, l->key ^ 1, l->n_sent++);
    sl_loop_passage p = sl_loop_pass(t->hub, sl_port_number(t->port), sl_port_number(l->peer),
                                     now_us, sizeof b->header + b->buf.len);
    put_parts(t, l, p);
    l->last_due_us = SL_MAX(SL_MAX(due_us, p.ends_us), l->last_due_us);
    return l->last_due_us;
}

/* Takes the block. */
static bool post(loop_transport *t, loop_link *l, sl_loop_event event, sl_block *b) {
    uint64_t from = sl_port_number(t->port), to = sl_port_number(l->peer);
    b->event = event;
    b->key = l->key ^ 1;
    b->due_us = 0;
    if (sl_loop_carry(t->hub, from, to, b)) return true;
    if (!sl_loop_has_delays(t->hub)) return put(t, l, event, 0, b);
    if (event == SL_LOOP_DATA) sl_loop_damage(t->hub, from, to, b);
    return put(t, l, event, arrival_us(t, l, b), b);
}

static bool post_gone(loop_transport *t, loop_link *l, const char *text) {
    size_t n = strnlen(text, SL_NET_MAX_TEXT);
    sl_block *b = sl_block_take(&t->base.net->pool, n);
    if (!b) return false;
    memcpy(b->buf.data, text, n);
    return post(t, l, SL_LOOP_GONE, b);
}

/* ---- transport calls ---- */

/* A call that nobody has answered, and nobody will. */
static void refuse(loop_transport *t, const sl_block *b) {
    sl_cur cur = sl_cur_of((sl_span){b->buf.data, b->buf.len});
    sl_port *peer = b->event == SL_LOOP_CALL ? sl_port_find(t->hub, sl_cur_u64(&cur)) : NULL;
    loop_link *l = peer ? add_link(t, b->key, peer) : NULL;
    if (!l) return;
    (void)post_gone(t, l, "nobody listens any more");
    remove_link(t, l);
}

/* Whoever called, and was not heard yet, would wait for ever: it is not on another machine. */
static void refuse_calls(loop_transport *t) {
    sl_port_shut(t->port);
    sl_port_steal(t->port, &t->fresh);
    for (const sl_block *b = t->fresh.head; b; b = b->next) refuse(t, b);
    for (size_t i = 0; i < t->n_heap; i++) refuse(t, t->heap[i]);
}

static void loop_destroy(sl_transport *base) {
    loop_transport *t = (loop_transport *)base;
    if (t->port) refuse_calls(t);
    while (t->n_links) {
        (void)post_gone(t, t->links[0], "the peer is gone");
        remove_link(t, t->links[0]);
    }
    if (t->port) sl_port_close(t->port, &base->net->pool);
    sl_block_give_all(&base->net->pool, &t->fresh);
    for (size_t i = 0; i < t->n_heap; i++) sl_block_give(&base->net->pool, t->heap[i]);
    sl_free(t->heap);
    sl_free(t->links);
    sl_free(t);
}

static sl_status loop_connect(sl_transport *base, sl_conn *c, const char *address, sl_err *err) {
    loop_transport *t = (loop_transport *)base;
    char *end = NULL;
    uint64_t number = strncmp(address, "loop:", 5) ? 0 : strtoull(address + 5, &end, 10);
    if (!number || *end)
        return sl_fail(err, SL_ERR_ARG, "address '%s': loop:NUMBER expected", address);
    sl_port *peer = sl_port_find(t->hub, number);
    if (!peer) return sl_fail(err, SL_ERR_PEER_DOWN, "nothing listens at %s", address);
    sl_block *b = sl_block_take(&base->net->pool, 8);
    loop_link *l = b ? add_link(t, sl_loop_new_key(t->hub), peer) : NULL;
    if (!l) {
        sl_block_give(&base->net->pool, b);
        return sl_fail(err, SL_ERR_NOMEM, "connection to %s", address);
    }
    sl_wr w = sl_wr_of(b->buf.data, 8);
    sl_wr_u64(&w, sl_port_number(t->port));
    if (!post(t, l, SL_LOOP_CALL, b)) {
        remove_link(t, l);
        return sl_fail(err, SL_ERR_PEER_DOWN, "nothing listens at %s", address);
    }
    l->conn = c;
    c->link = l;
    c->place = sl_loop_place(t->hub);
    return SL_OK;
}

static sl_status loop_send(sl_transport *base, sl_conn *c, sl_block *b) {
    loop_transport *t = (loop_transport *)base;
    loop_link *l = c->link;
    if (post(t, l, SL_LOOP_DATA, b)) return SL_OK;
    l->shut = t->some_shut = true;
    return SL_ERR_PEER_DOWN;
}

static void loop_drop(sl_transport *base, sl_conn *c, bool flush) {
    loop_transport *t = (loop_transport *)base;
    (void)flush;
    (void)post_gone(t, c->link, "the peer closed the connection");
    remove_link(t, c->link);
}

/* ---- arrivals ---- */

static bool before(const sl_block *a, const sl_block *b) {
    return a->due_us != b->due_us ? a->due_us < b->due_us : a->order < b->order;
}

static bool heap_push(loop_transport *t, sl_block *b) {
    if (t->n_heap == t->cap_heap) {
        size_t cap = t->cap_heap ? 2 * t->cap_heap : 64;
        sl_block **grown = sl_grow(t->heap, t->cap_heap, cap, sizeof(sl_block *));
        if (!grown) return false;
        t->heap = grown;
        t->cap_heap = cap;
    }
    size_t i = t->n_heap++;
    for (size_t up; i > 0 && before(b, t->heap[up = (i - 1) / 2]); i = up) t->heap[i] = t->heap[up];
    t->heap[i] = b;
    return true;
}

static sl_block *heap_pop(loop_transport *t) {
    sl_block *top = t->heap[0], *b = t->heap[--t->n_heap];
    size_t i = 0;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= t->n_heap) break;
        if (k + 1 < t->n_heap && before(t->heap[k + 1], t->heap[k])) k++;
        if (!before(t->heap[k], b)) break;
        t->heap[i] = t->heap[k];
        i = k;
    }
    if (t->n_heap) t->heap[i] = b;
    return top;
}

static void called(loop_transport *t, const sl_block *b) {
    sl_err err = {0};
    sl_cur cur = sl_cur_of((sl_span){b->buf.data, b->buf.len});
    sl_port *peer = sl_port_find(t->hub, sl_cur_u64(&cur));
    if (!cur.ok || !peer || find_link(t, b->key)) return;
    loop_link *l = add_link(t, b->key, peer);
    if (!l) return;
    sl_origin from = {.key = sl_port_number(peer)};
    snprintf(from.text, sizeof from.text, "loop:%" PRIu64, from.key);
    l->conn = sl_net_accept(t->base.net, &t->base, l, &from, &err);
    if (l->conn) {
        l->conn->place = sl_loop_place(t->hub);
        return;
    }
    (void)post_gone(t, l, err.msg);
    remove_link(t, l);
}

/* From the last one on: whoever is told may forget its link. */
static void cut(loop_transport *t, const sl_block *b) {
    sl_cur cur = sl_cur_of((sl_span){b->buf.data, b->buf.len});
    uint64_t port = sl_cur_u64(&cur);
    for (size_t i = t->n_links; i-- > 0;)
        if (sl_port_number(t->links[i]->peer) == port)
            sl_net_link_down(t->links[i]->conn, SL_ERR_PEER_DOWN, "the connection was cut");
}

/* Takes the block. */
static void arrived(loop_transport *t, sl_block *b) {
    sl_block_pool *pool = &t->base.net->pool;
    bool of_none = b->event == SL_LOOP_CALL || b->event == SL_LOOP_CUT;
    loop_link *l = of_none ? NULL : find_link(t, b->key);
    char text[SL_NET_MAX_TEXT + 1];
    if (b->event == SL_LOOP_CALL) {
        called(t, b);
    } else if (b->event == SL_LOOP_CUT) {
        cut(t, b);
    } else if (l && b->event == SL_LOOP_GONE) {
        snprintf(text, sizeof text, "%.*s", (int)b->buf.len, (const char *)b->buf.data);
        sl_net_link_down(l->conn, SL_ERR_PEER_DOWN, text);
    } else if (l) {
        sl_net_heard(l->conn);
        if (b->event == SL_LOOP_DATA) {
            sl_net_arrived(l->conn, b);
            return;
        }
    }
    sl_block_give(pool, b);
}

static void collect(loop_transport *t) {
    sl_port_steal(t->port, &t->fresh);
    if (!sl_loop_has_delays(t->hub)) return;
    while (t->fresh.head) {
        sl_block *b = t->fresh.head;
        b->order = t->n_arrived++;
        sl_block *next = b->next;
        if (!heap_push(t, b)) break; /* out of memory: the rest waits in order */
        t->fresh.head = next;
    }
}

static bool has_more(const loop_transport *t, uint64_t key) {
    for (const sl_block *b = t->fresh.head; b; b = b->next)
        if (b->key == key) return true;
    for (size_t i = 0; i < t->n_heap; i++)
        if (t->heap[i]->key == key) return true;
    return false;
}

/* Their peers' last words, that they are gone among them, are heard first. There is none where no
 * memory was left for it. */
static void end_shut(loop_transport *t) {
    collect(t);
    t->some_shut = false;
    for (size_t i = t->n_links; i-- > 0;) {
        const loop_link *l = t->links[i];
        if (!l->shut) continue;
        if (has_more(t, l->key))
            t->some_shut = true;
        else
            sl_net_link_down(l->conn, SL_ERR_PEER_DOWN, "the peer is gone");
    }
}

static void take_all(loop_transport *t) {
    sl_block_list now = t->fresh;
    t->fresh.head = NULL;
    for (sl_block *b; (b = sl_block_pop(&now)) != NULL;) arrived(t, b);
}

static void loop_progress(sl_transport *base) {
    loop_transport *t = (loop_transport *)base;
    collect(t);
    uint64_t now_us = sl_clock_now_us(&base->net->clock);
    if (!sl_loop_has_delays(t->hub))
        take_all(t);
    else
        while (t->n_heap && t->heap[0]->due_us <= now_us) arrived(t, heap_pop(t));
    if (t->some_shut) end_shut(t);
}

static void loop_wait(sl_transport *base, uint64_t timeout_us) {
    loop_transport *t = (loop_transport *)base;
    if (t->fresh.head) return;
    if (t->n_heap) {
        uint64_t now_us = sl_clock_now_us(&base->net->clock);
        if (t->heap[0]->due_us <= now_us) return;
        timeout_us = SL_MIN(timeout_us, t->heap[0]->due_us - now_us);
    }
    sl_port_wait(t->port, timeout_us, base->net->poll_ns, &base->net->polled);
}

static void loop_wake(sl_transport *base) {
    sl_port_wake(((loop_transport *)base)->port);
}
static bool loop_is_flushing(sl_transport *base) {
    return (void)base, false;
}

static const sl_transport_ops loop_ops = {
    .destroy = loop_destroy,
    .connect = loop_connect,
    .send = loop_send,
    .drop = loop_drop,
    .progress = loop_progress,
    .wait = loop_wait,
    .wake = loop_wake,
    .is_flushing = loop_is_flushing,
};

sl_status sl_loop_transport_create(sl_net *n, const sl_net_opts *o, sl_transport **out,
                                   sl_err *err) {
    loop_transport *t = sl_alloc(1, sizeof *t);
    if (!t) return sl_fail(err, SL_ERR_NOMEM, "loop transport");
    t->base = (sl_transport){.ops = &loop_ops, .net = n, .inside = true};
    t->hub = o->hub;
    t->port = sl_port_open(o->hub);
    if (!t->port) {
        loop_destroy(&t->base);
        return sl_fail(err, SL_ERR_NOMEM, "loop transport");
    }
    snprintf(n->hello.address, sizeof n->hello.address, "loop:%" PRIu64, sl_port_number(t->port));
    *out = &t->base;
    return SL_OK;
}
