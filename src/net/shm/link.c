/* One link over shared rings: records in and out, waking, the end. */
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "net/shm/shm_int.h"

#define MAX_MESSAGES                                                                               \
    64u /* of one link in one progress, so that others and timers get their turn                   \
         */
#define WAKE_READS 4

static sl_block_pool *pool_of(const shm_link *l) {
    return &l->t->base.net->pool;
}

static size_t record_bytes(const sl_block *b) {
    size_t n = SL_SHM_RECORD_HEAD + b->buf.len;
    return (n + SL_SHM_RECORD_STEP - 1) / SL_SHM_RECORD_STEP * SL_SHM_RECORD_STEP;
}

/* ---- opening and failing ---- */

shm_link *sl_shm_link_create(shm_transport *t, int fd) {
    shm_link *l = sl_alloc(1, sizeof *l);
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = l};
    if (!l || epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, fd, &e) != 0) {
        close(fd);
        sl_free(l);
        return NULL;
    }
    l->t = t;
    l->fd = fd;
    l->deadline_us = sl_net_now_us(t->base.net) + SL_NET_HANDSHAKE_US;
    l->next = t->links;
    t->links = l;
    t->n_greeting++;
    return l;
}

void sl_shm_link_attach(shm_link *l, shm_area *area, uint32_t side) {
    l->area = area;
    l->own_sleeper = &area->sleeper[side].reasons;
    l->peer_sleeper = &area->sleeper[!side].reasons;
    sl_shm_pipes_open(area, side, &l->tx, &l->rx);
    l->state = SHM_LINK_UP;
    l->more = true;
    l->t->n_greeting--;
}

void sl_shm_link_fail(shm_link *l, sl_status why, const char *text) {
    if (l->failed) return;
    l->failed = true;
    l->why = why;
    snprintf(l->text, sizeof l->text, "%s", text);
    l->t->any_to_tend = true;
}

/* ---- sleeping and waking ---- */

/* A counter is stored before the peer's word is read here, the word is stored (announce) before the
 * counters are read there (is_ready), all of it sequentially consistent: so either we see that the
 * peer sleeps, or it sees the new counter and does not. */
static void wake_peer(shm_link *l, uint32_t reasons) {
    if (!(atomic_load(l->peer_sleeper) & reasons)) return;
    if (atomic_exchange(l->peer_sleeper, 0) == 0) return;
    /* A full socket holds bytes enough to wake it; a broken one shows up when it is read. */
    ssize_t n = send(l->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)n;
}

void sl_shm_link_announce(shm_link *l) {
    uint32_t reasons = 0;
    if (l->state == SHM_LINK_UP) reasons |= SL_SHM_FOR_DATA;
    if (l->queue.head) reasons |= SL_SHM_FOR_SPACE;
    if (!l->area || !reasons) return;
    atomic_store(l->own_sleeper, reasons);
    l->announced = true;
}

void sl_shm_link_awake(shm_link *l) {
    if (l->announced) atomic_store(l->own_sleeper, 0);
    l->announced = false;
}

bool sl_shm_link_is_ready(const shm_link *l) {
    if (l->state != SHM_LINK_UP && l->state != SHM_LINK_LINGERING) return false;
    if (l->queue.head && sl_shm_tx_moved(&l->tx)) return true;
    return l->state == SHM_LINK_UP && (l->more || (!l->hung_up && sl_shm_rx_moved(&l->rx)));
}

static void hang_up(shm_link *l) {
    if (l->hung_up) return;
    if (l->state == SHM_LINK_UP && !sl_shm_rx_look(&l->rx))
        sl_shm_link_fail(l, SL_ERR_PROTOCOL, "the peer left an impossible ring counter");
    l->hung_up = l->more = true;
    l->t->any_to_tend = true;
    (void)epoll_ctl(l->t->epoll_fd, EPOLL_CTL_DEL, l->fd, NULL);
}

void sl_shm_link_read_socket(shm_link *l) {
    char bytes[256];
    ssize_t n = sizeof bytes;
    for (int i = 0; i < WAKE_READS && n == (ssize_t)sizeof bytes; i++)
        n = recv(l->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) hang_up(l);
}

/* ---- sending ---- */

static void publish_tail(shm_link *l) {
    if (l->tx.own == l->tx.published) return;
    sl_shm_tx_publish(&l->tx);
    if (l->loud) wake_peer(l, SL_SHM_FOR_DATA);
}

static void put_head(shm_link *l, const sl_block *b) {
    uint8_t head[SL_SHM_RECORD_HEAD];
    sl_wr w = sl_wr_of(head, sizeof head);
    sl_wr_u32(&w, (uint32_t)b->buf.len);
    sl_wr_u32(&w, SL_SHM_MARK);
    sl_wr_bytes(&w, b->header, sizeof b->header);
    sl_shm_tx_put(&l->tx, head, sizeof head);
    l->sent_bytes = sizeof head;
}

/* Writes what fits of the record after its head; true when all of it is in the ring. */
static bool put_rest(shm_link *l, const sl_block *b) {
    size_t end = SL_SHM_RECORD_HEAD + b->buf.len, all = record_bytes(b);
    while (l->sent_bytes < all) {
        size_t at = l->sent_bytes, n = at < end ? end - at : all - at;
        n = SL_MIN(SL_MIN(n, sl_shm_tx_room(&l->tx)), (size_t)SL_SHM_PIECE_BYTES);
        if (n == 0) return false;
        sl_shm_tx_put(&l->tx, at < end ? b->buf.data + (at - SL_SHM_RECORD_HEAD) : NULL, n);
        l->sent_bytes += n;
        if (l->tx.own - l->tx.published >= SL_SHM_PIECE_BYTES) publish_tail(l);
    }
    return true;
}

/* False: the ring is full. */
static bool write_head_of_queue(shm_link *l) {
    sl_block *b = l->queue.head;
    l->loud = l->loud || !b->quiet;
    if (l->sent_bytes == 0) {
        if (sl_shm_tx_room(&l->tx) < SL_SHM_RECORD_HEAD) return false;
        put_head(l, b);
    }
    if (!put_rest(l, b)) return false;
    (void)sl_block_pop(&l->queue);
    sl_block_give(pool_of(l), b);
    l->sent_bytes = 0;
    return true;
}

static void write_queue(shm_link *l) {
    l->loud = false;
    while (l->queue.head && !l->failed) {
        if (write_head_of_queue(l)) continue;
        uint64_t seen = l->tx.seen;
        if (!sl_shm_tx_look(&l->tx))
            sl_shm_link_fail(l, SL_ERR_PROTOCOL, "an impossible ring counter");
        else if (l->tx.seen == seen)
            break;
    }
    publish_tail(l);
}

sl_status sl_shm_link_send(shm_link *l, sl_block *b) {
    if (l->failed || l->hung_up) {
        sl_block_give(pool_of(l), b);
        return SL_ERR_PEER_DOWN;
    }
    sl_block_push(&l->queue, b);
    /* While others wait for room, so does this one: progress looks again. */
    if (l->queue.head == b) write_queue(l);
    return l->failed ? SL_ERR_PEER_DOWN : SL_OK;
}

/* ---- receiving ---- */

static void publish_head(shm_link *l) {
    if (l->rx.own == l->rx.published) return;
    sl_shm_rx_publish(&l->rx);
    if (sl_shm_rx_bytes(&l->rx) <= SL_SHM_RING_BYTES / 2) wake_peer(l, SL_SHM_FOR_SPACE);
}

/* True when n bytes are there. */
static bool has_bytes(shm_link *l, size_t n) {
    if (sl_shm_rx_bytes(&l->rx) >= n) return true;
    if (!l->hung_up && !sl_shm_rx_look(&l->rx)) {
        sl_shm_link_fail(l, SL_ERR_PROTOCOL, "an impossible ring counter");
        return false;
    }
    return sl_shm_rx_bytes(&l->rx) >= n;
}

/* True when a message has begun. */
static bool begin_message(shm_link *l) {
    uint8_t head[SL_SHM_RECORD_HEAD];
    char text[96];
    if (!has_bytes(l, sizeof head)) return false;
    sl_shm_rx_take(&l->rx, head, sizeof head);
    sl_cur cur = sl_cur_of((sl_span){head, sizeof head});
    size_t len = sl_cur_u32(&cur), limit = sl_net_payload_limit(l->conn);
    if (sl_cur_u32(&cur) != SL_SHM_MARK) {
        sl_shm_link_fail(l, SL_ERR_PROTOCOL, "bytes in the ring that begin no message");
        return false;
    }
    if (len > limit) {
        snprintf(text, sizeof text, "a payload of %zu bytes, limit %zu", len, limit);
        sl_shm_link_fail(l, SL_ERR_PROTOCOL, text);
        return false;
    }
    l->partial = sl_block_take(pool_of(l), len);
    if (!l->partial) {
        sl_shm_link_fail(l, SL_ERR_NOMEM, "out of memory");
        return false;
    }
    memcpy(l->partial->header, sl_cur_take(&cur, SL_WIRE_HEADER_BYTES), SL_WIRE_HEADER_BYTES);
    l->got_bytes = sizeof head;
    return true;
}

/* True when the message is whole. */
static bool take_rest(shm_link *l) {
    sl_block *b = l->partial;
    size_t end = SL_SHM_RECORD_HEAD + b->buf.len, all = record_bytes(b);
    while (l->got_bytes < all) {
        size_t at = l->got_bytes, n = at < end ? end - at : all - at;
        if (!has_bytes(l, 1)) return false;
        n = SL_MIN(SL_MIN(n, sl_shm_rx_bytes(&l->rx)), (size_t)SL_SHM_PIECE_BYTES);
        sl_shm_rx_take(&l->rx, at < end ? b->buf.data + (at - SL_SHM_RECORD_HEAD) : NULL, n);
        l->got_bytes += n;
        if (l->rx.own - l->rx.published >= SL_SHM_PIECE_BYTES) publish_head(l);
    }
    return true;
}

static void receive(shm_link *l) {
    uint64_t begin = l->rx.own;
    uint32_t n = 0;
    l->more = false;
    for (; n < MAX_MESSAGES && (l->partial || begin_message(l)) && take_rest(l); n++) {
        sl_block *b = l->partial;
        l->partial = NULL;
        sl_net_heard(l->conn);
        sl_net_arrived(l->conn, b);
        if (l->state != SHM_LINK_UP || l->failed) return;
    }
    if (l->failed) return;
    if (l->rx.own != begin) sl_net_heard(l->conn);
    publish_head(l);
    l->more = n == MAX_MESSAGES;
    if (l->hung_up && !l->more) sl_shm_link_fail(l, SL_ERR_PEER_DOWN, "the peer is gone");
}

void sl_shm_link_progress(shm_link *l) {
    if (l->failed || (l->state != SHM_LINK_UP && l->state != SHM_LINK_LINGERING)) return;
    if (l->queue.head) write_queue(l);
    if (l->state == SHM_LINK_UP && !l->failed) receive(l);
}

/* ---- closing ---- */

static void close_link(shm_link *l) {
    if (l->state == SHM_LINK_GREETING) l->t->n_greeting--;
    if (l->state == SHM_LINK_LINGERING) l->t->n_lingering--;
    l->state = SHM_LINK_CLOSED;
    l->conn = NULL;
    l->t->any_to_tend = true;
    sl_block_give_all(pool_of(l), &l->queue);
    sl_block_give(pool_of(l), l->partial);
    l->partial = NULL;
    sl_shm_area_free(l->area);
    l->area = NULL;
    /* A child that is being started may still hold the socket: close alone would leave it watched.
     */
    (void)epoll_ctl(l->t->epoll_fd, EPOLL_CTL_DEL, l->fd, NULL);
    close(l->fd);
}

/* What is in the ring when the socket closes still reaches the peer. */
void sl_shm_link_drop(shm_link *l, bool flush) {
    l->conn = NULL;
    bool linger = flush && l->state == SHM_LINK_UP && !l->failed && !l->hung_up && l->queue.head;
    if (!linger) {
        close_link(l);
        return;
    }
    sl_block_give(pool_of(l), l->partial);
    l->partial = NULL;
    l->state = SHM_LINK_LINGERING;
    l->deadline_us = sl_net_now_us(l->t->base.net) + SL_NET_LINGER_US;
    l->t->n_lingering++;
}

static void tend(shm_link *l, uint64_t now_us) {
    switch (l->state) {
    case SHM_LINK_UP:
        if (l->failed) sl_net_link_down(l->conn, l->why, l->text);
        break;
    case SHM_LINK_GREETING:
        if (l->failed) sl_log(SL_LOG_WARN, "net", "a caller was turned away: %s", l->text);
        if (l->failed || now_us >= l->deadline_us) close_link(l);
        break;
    case SHM_LINK_LINGERING:
        if (l->failed || l->hung_up || !l->queue.head || now_us >= l->deadline_us) close_link(l);
        break;
    case SHM_LINK_CLOSED:
        break;
    }
}

void sl_shm_links_tend(shm_transport *t) {
    if (!t->any_to_tend && !t->n_greeting && !t->n_lingering) return;
    uint64_t now_us = sl_net_now_us(t->base.net);
    t->any_to_tend = false;
    for (shm_link **at = &t->links; *at;) {
        shm_link *l = *at;
        tend(l, now_us);
        if (l->state != SHM_LINK_CLOSED) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        sl_free(l);
    }
    t->any_to_tend = false; /* set by the links just freed */
}

void sl_shm_links_free(shm_transport *t) {
    while (t->links) {
        shm_link *l = t->links;
        t->links = l->next;
        if (l->state != SHM_LINK_CLOSED) close_link(l);
        sl_free(l);
    }
}
