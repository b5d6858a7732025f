/* Progress by a thread of the net's own (sl_net_set_pump): while the owner computes, the pump moves
 * bytes and sends heartbeats. It never calls back: what arrives and what breaks waits in order in
 * net->early for the owner's next sl_net_progress. One lock covers the net; the owner holds it in
 * every call, also while it sleeps in sl_net_wait, where there is nothing for the pump to do. */
#include <pthread.h>
#include <time.h>

#include "base/mem.h"
#include "net/net_int.h"

#define PUMP_US 50u /* between two looks */

typedef struct sl_pump {
    sl_net *net;
    pthread_mutex_t lock; /* recursive: callbacks call the net */
    pthread_cond_t awake; /* the owner is no longer in sl_net_wait */
    pthread_t thread;
    bool resting, stop;
} sl_pump;

static void *pump_main(void *arg) {
    sl_pump *p = arg;
    const struct timespec pause = {.tv_nsec = PUMP_US * 1000};
    for (bool stop = false; !stop;) {
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&p->lock);
        while (p->resting && !p->stop) pthread_cond_wait(&p->awake, &p->lock);
        stop = p->stop;
        if (!stop) sl_net_pump(p->net);
        pthread_mutex_unlock(&p->lock);
    }
    return NULL;
}

sl_status sl_net_set_pump(sl_net *n, sl_err *err) {
    if (n->pump) return SL_OK;
    sl_pump *p = sl_alloc(1, sizeof *p);
    if (!p) return sl_fail(err, SL_ERR_NOMEM, "progress thread");
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&p->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    pthread_cond_init(&p->awake, NULL);
    p->net = n;
    if (pthread_create(&p->thread, NULL, pump_main, p) != 0) {
        pthread_cond_destroy(&p->awake);
        pthread_mutex_destroy(&p->lock);
        sl_free(p);
        return sl_fail(err, SL_ERR_IO, "the progress thread did not start");
    }
    n->pump = p;
    return SL_OK;
}

void sl_pump_stop(sl_net *n) {
    sl_pump *p = n->pump;
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_signal(&p->awake);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->awake);
    pthread_mutex_destroy(&p->lock);
    sl_free(p);
    n->pump = NULL;
}

void sl_pump_lock(const sl_net *n) {
    if (n->pump) pthread_mutex_lock(&n->pump->lock);
}

void sl_pump_unlock(const sl_net *n) {
    if (n->pump) pthread_mutex_unlock(&n->pump->lock);
}

void sl_pump_rest(const sl_net *n, bool resting) {
    if (!n->pump) return;
    n->pump->resting = resting;
    if (!resting) pthread_cond_signal(&n->pump->awake);
}

/* ---- what the pump leaves for the owner ---- */

#define ARRIVED 0u
#define DOWN    1u

/* Who has proved nothing may not fill memory while the owner computes. */
#define MAX_UNPROVED 8u
/* Nor whoever answers where this process called; heartbeats may follow its welcome. */
#define MAX_ANSWERS 256u

void sl_pump_keep(sl_conn *c, sl_block *b) {
    const uint32_t most = sl_session_is_pending(c)   ? MAX_UNPROVED
                          : c->state != SL_CONN_OPEN ? MAX_ANSWERS
                                                     : UINT32_MAX;
    if (c->n_early >= most) {
        sl_block_give(&c->net->pool, b);
        sl_session_fail(c, SL_ERR_PROTOCOL, "too many messages before the handshake");
        return;
    }
    c->n_early++;
    b->link = c;
    b->event = ARRIVED;
    sl_block_push(&c->net->early, b);
}

void sl_pump_keep_down(sl_conn *c, sl_status why, const char *text) {
    sl_net *n = c->net;
    if (c->ending) return; /* transports say it at every look */
    c->ending = true;
    size_t len = strnlen(text, SL_NET_MAX_TEXT);
    sl_block *b = sl_block_take(&n->pool, len + 1);
    if (!b) {
        sl_session_fail(c, why, text);
        return;
    }
    memcpy(b->buf.data, text, len);
    b->buf.data[len] = 0;
    b->link = c;
    b->event = DOWN;
    b->key = (uint64_t)why;
    sl_block_push(&n->early, b);
}

/* Connections live until the reaping that follows this. */
void sl_pump_deliver(sl_net *n) {
    for (sl_block *b; (b = sl_block_pop(&n->early)) != NULL;) {
        sl_conn *c = b->link;
        b->link = NULL;
        if (b->event == ARRIVED) c->n_early--;
        if (c->state == SL_CONN_DOWN) {
            sl_block_give(&n->pool, b);
        } else if (b->event == DOWN) {
            sl_session_fail(c, (sl_status)b->key, (const char *)b->buf.data);
            sl_block_give(&n->pool, b);
        } else {
            sl_session_receive(c, b);
        }
    }
}
