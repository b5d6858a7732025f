/* Mailboxes of threads of one process, with delays, holds and cuts for tests. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "base/mem.h"
#include "base/rng.h"
#include "net/loop/loop_int.h"

struct sl_port {
    uint64_t number;
    pthread_mutex_t lock;
    pthread_cond_t came;
    sl_block_list mail;
    bool closed, woken;
    atomic_bool has_mail; /* hint for polling without the lock; relaxed */
};

/* Two ports that do not hear from each other until then. */
typedef struct held_link {
    uint64_t a, b, until_us;
} held_link;

struct sl_loop_hub {
    uint64_t seed;
    uint32_t max_delay_us;
    pthread_mutex_t lock;
    sl_port **ports; /* ports[i]->number == i + 1 */
    size_t n_ports, cap_ports;
    uint64_t last_key;
    held_link held[SL_LOOP_MAX_HELD];
    uint32_t n_held;
    bool apart;
    void (*carry)(void *ctx, const sl_loop_parcel *p);
    void *carry_ctx;
};

sl_status sl_loop_hub_create(uint64_t seed, uint32_t max_delay_us, sl_loop_hub **out, sl_err *err) {
    sl_loop_hub *h = sl_alloc(1, sizeof *h);
    if (!h) return sl_fail(err, SL_ERR_NOMEM, "loop hub");
    h->seed = seed;
    h->max_delay_us = max_delay_us;
    pthread_mutex_init(&h->lock, NULL);
    *out = h;
    return SL_OK;
}

void sl_loop_hub_free(sl_loop_hub *h) {
    if (!h) return;
    for (size_t i = 0; i < h->n_ports; i++) {
        SL_ASSERT(h->ports[i]->closed);
        pthread_mutex_destroy(&h->ports[i]->lock);
        pthread_cond_destroy(&h->ports[i]->came);
        sl_free(h->ports[i]);
    }
    sl_free(h->ports);
    pthread_mutex_destroy(&h->lock);
    sl_free(h);
}

uint64_t sl_loop_new_key(sl_loop_hub *h) {
    pthread_mutex_lock(&h->lock);
    uint64_t key = h->last_key += 2;
    pthread_mutex_unlock(&h->lock);
    return key;
}

bool sl_loop_has_delays(const sl_loop_hub *h) {
    return h->max_delay_us > 0 || h->n_held > 0;
}

void sl_loop_hub_hold(sl_loop_hub *h, const char *a, const char *b, uint64_t until_us) {
    held_link l = {.until_us = until_us};
    if (h->n_held == SL_LOOP_MAX_HELD || sscanf(a, "loop:%" SCNu64, &l.a) != 1 ||
        sscanf(b, "loop:%" SCNu64, &l.b) != 1)
        return;
    h->held[h->n_held++] = l;
}

void sl_loop_hub_set_apart(sl_loop_hub *h) {
    h->apart = true;
}

void sl_loop_hub_set_carrier(sl_loop_hub *h, void (*carry)(void *ctx, const sl_loop_parcel *p),
                             void *ctx) {
    h->carry = carry;
    h->carry_ctx = ctx;
}

bool sl_loop_carry(const sl_loop_hub *h, uint64_t from, uint64_t to, sl_block *b) {
    sl_wire_header header;
    sl_err err;
    if (!h->carry) return false;
    sl_loop_parcel p = {.from = from, .to = to, .bytes = b->buf.len, .block = b};
    const sl_span bytes = {b->header, sizeof b->header};
    if (b->event == SL_LOOP_DATA && sl_wire_header_decode(bytes, &header, &err) == SL_OK)
        p.kind = header.kind;
    h->carry(h->carry_ctx, &p);
    return true;
}

void sl_loop_hub_deliver(sl_loop_hub *h, const sl_loop_parcel *p) {
    sl_port *to = sl_port_find(h, p->to);
    if (!to || !sl_port_post(to, p->block)) sl_free(p->block);
}

sl_peer_place sl_loop_place(const sl_loop_hub *h) {
    return h->apart ? SL_PEER_ELSEWHERE : SL_PEER_IN_THIS_PROCESS;
}

uint64_t sl_loop_held_until_us(const sl_loop_hub *h, uint64_t port, uint64_t peer) {
    uint64_t until_us = 0;
    for (uint32_t i = 0; i < h->n_held; i++) {
        const held_link *l = &h->held[i];
        if ((l->a == port && l->b == peer) || (l->a == peer && l->b == port))
            until_us = SL_MAX(until_us, l->until_us);
    }
    return until_us;
}

uint32_t sl_loop_delay_us(const sl_loop_hub *h, uint64_t key, uint64_t nth) {
    if (!h->max_delay_us) return 0;
    uint64_t state = h->seed ^ key * 0x9E3779B97F4A7C15u ^ nth * 0xC2B2AE3D27D4EB4Fu;
    (void)sl_rng_next(&state);
    return (uint32_t)sl_rng_below(&state, (uint64_t)h->max_delay_us + 1);
}

/* ---- ports ---- */

static sl_port *new_port(void) {
    sl_port *p = sl_alloc(1, sizeof *p);
    if (!p) return NULL;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&p->came, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&p->lock, NULL);
    return p;
}

sl_port *sl_port_open(sl_loop_hub *h) {
    sl_port *p = new_port();
    if (!p) return NULL;
    pthread_mutex_lock(&h->lock);
    bool ok = h->n_ports < h->cap_ports;
    if (!ok) {
        size_t cap = h->cap_ports ? 2 * h->cap_ports : 16;
        sl_port **grown = sl_grow(h->ports, h->cap_ports, cap, sizeof(sl_port *));
        ok = grown != NULL;
        if (ok) h->ports = grown, h->cap_ports = cap;
    }
    if (ok) {
        h->ports[h->n_ports++] = p;
        p->number = h->n_ports;
    }
    pthread_mutex_unlock(&h->lock);
    if (ok) return p;
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->came);
    sl_free(p);
    return NULL;
}

void sl_port_close(sl_port *p, sl_block_pool *leftovers) {
    pthread_mutex_lock(&p->lock);
    p->closed = true;
    sl_block_give_all(leftovers, &p->mail);
    pthread_mutex_unlock(&p->lock);
}

uint64_t sl_port_number(const sl_port *p) {
    return p->number;
}

sl_port *sl_port_find(sl_loop_hub *h, uint64_t number) {
    pthread_mutex_lock(&h->lock);
    sl_port *p = number >= 1 && number <= h->n_ports ? h->ports[number - 1] : NULL;
    pthread_mutex_unlock(&h->lock);
    return p;
}

bool sl_port_post(sl_port *p, sl_block *b) {
    pthread_mutex_lock(&p->lock);
    bool ok = !p->closed;
    if (ok) {
        sl_block_push(&p->mail, b);
        atomic_store_explicit(&p->has_mail, true, memory_order_relaxed);
        pthread_cond_signal(&p->came);
    }
    pthread_mutex_unlock(&p->lock);
    return ok;
}

static bool has_mail(const sl_port *p) {
    return atomic_load_explicit(&p->has_mail, memory_order_relaxed);
}

void sl_port_steal(sl_port *p, sl_block_list *out) {
    if (!has_mail(p)) return;
    pthread_mutex_lock(&p->lock);
    sl_block *head = p->mail.head, **tail = p->mail.tail;
    p->mail.head = NULL;
    atomic_store_explicit(&p->has_mail, false, memory_order_relaxed);
    pthread_mutex_unlock(&p->lock);
    if (!head) return;
    if (!out->head)
        out->head = head;
    else
        *out->tail = head;
    out->tail = tail;
}

void sl_port_wait(sl_port *p, uint64_t timeout_us, uint64_t poll_ns, sl_poll_memory *polled) {
    uint64_t until_ns = sl_now_ns() + 1000u * SL_MIN(timeout_us, (uint64_t)3600000000u);
    sl_poll poll = sl_poll_begin(polled, poll_ns, until_ns);
    do {
        if (has_mail(p)) return;
    } while (sl_poll_again(&poll));
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                   .tv_nsec = (long)(until_ns % 1000000000u)};
    pthread_mutex_lock(&p->lock);
    int rc = 0;
    while (!p->mail.head && !p->woken && rc == 0)
        rc = pthread_cond_timedwait(&p->came, &p->lock, &until);
    p->woken = false;
    pthread_mutex_unlock(&p->lock);
}

void sl_port_wake(sl_port *p) {
    pthread_mutex_lock(&p->lock);
    p->woken = true;
    pthread_cond_signal(&p->came);
    pthread_mutex_unlock(&p->lock);
}
