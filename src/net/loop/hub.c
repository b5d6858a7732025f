/* Mailboxes of threads of one process; delays, and links that are held, thin, damaged or cut, for
 * tests. */
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

typedef enum ail_kind {
    AIL_HELD,   /* nothing passes until then */
    AIL_THIN,   /* so many bytes a second pass until then, in either direction */
    AIL_DAMAGE, /* a bit of the next message from a to b is another one */
} ail_kind;

/* What ails the links of two ports. */
typedef struct ail {
    ail_kind kind;
    uint64_t a, b, until_us;
    uint64_t bytes_per_s, passed_us[2]; /* thin: when all is through from a to b, and back */
    uint64_t bit;
} ail;

struct sl_loop_hub {
    uint64_t seed;
    uint32_t max_delay_us;
    pthread_mutex_t lock;
    sl_port **ports; /* ports[i]->number == i + 1 */
    size_t n_ports, cap_ports;
    uint64_t last_key;
    ail ails[SL_LOOP_MAX_AILS];
    uint32_t n_ails;
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
    return h->max_delay_us > 0 || h->n_ails > 0;
}

static bool read_ports(const char *a, const char *b, uint64_t *pa, uint64_t *pb) {
    return sscanf(a, "loop:%" SCNu64, pa) == 1 && sscanf(b, "loop:%" SCNu64, pb) == 1;
}

static void add_ail(sl_loop_hub *h, const char *a, const char *b, ail l) {
    if (!read_ports(a, b, &l.a, &l.b)) return;
    if (h->n_ails < SL_LOOP_MAX_AILS) h->ails[h->n_ails++] = l;
}

void sl_loop_hub_hold(sl_loop_hub *h, const char *a, const char *b, uint64_t until_us) {
    add_ail(h, a, b, (ail){.kind = AIL_HELD, .until_us = until_us});
}

void sl_loop_hub_thin(sl_loop_hub *h, const char *a, const char *b, uint64_t bytes_per_s,
                      uint64_t until_us) {
    SL_ASSERT(bytes_per_s > 0);
    add_ail(h, a, b, (ail){.kind = AIL_THIN, .bytes_per_s = bytes_per_s, .until_us = until_us});
}

void sl_loop_hub_damage(sl_loop_hub *h, const char *a, const char *b, uint64_t bit) {
    add_ail(h, a, b, (ail){.kind = AIL_DAMAGE, .bit = bit});
}

/* Each end finds its links with the other one gone. */
static void cut_end(sl_loop_hub *h, uint64_t at, uint64_t other) {
    sl_block_pool empty = {0};
    sl_port *port = sl_port_find(h, at);
    sl_block *b = port ? sl_block_take(&empty, 8) : NULL;
    if (!b) return;
    b->event = SL_LOOP_CUT;
    b->due_us = 0;
    sl_wr w = sl_wr_of(b->buf.data, 8);
    sl_wr_u64(&w, other);
    if (!sl_port_post(port, b)) sl_free(b);
}

void sl_loop_hub_cut(sl_loop_hub *h, const char *a, const char *b) {
    uint64_t pa, pb;
    if (!read_ports(a, b, &pa, &pb)) return;
    cut_end(h, pa, pb);
    cut_end(h, pb, pa);
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

static bool is_between(const ail *l, uint64_t port, uint64_t peer) {
    return (l->a == port && l->b == peer) || (l->a == peer && l->b == port);
}

/* From its end on everything passes a thin link at once. */
static sl_loop_passage pass_thin(ail *l, bool back, uint64_t now_us, uint64_t bytes) {
    if (now_us >= l->until_us) return (sl_loop_passage){now_us, now_us};
    uint64_t begins_us = SL_MAX(now_us, l->passed_us[back]);
    uint64_t ends_us = SL_MIN(l->until_us, begins_us + bytes * 1000000u / l->bytes_per_s);
    l->passed_us[back] = ends_us;
    return (sl_loop_passage){begins_us, ends_us};
}

sl_loop_passage sl_loop_pass(sl_loop_hub *h, uint64_t port, uint64_t peer, uint64_t now_us,
                             uint64_t bytes) {
    sl_loop_passage all = {now_us, now_us};
    for (uint32_t i = 0; i < h->n_ails; i++) {
        ail *l = &h->ails[i];
        sl_loop_passage p = {now_us, now_us};
        if (!is_between(l, port, peer)) continue;
        if (l->kind == AIL_HELD) p = (sl_loop_passage){l->until_us, l->until_us};
        if (l->kind == AIL_THIN) p = pass_thin(l, l->a != port, now_us, bytes);
        all.begins_us = SL_MAX(all.begins_us, p.begins_us);
        all.ends_us = SL_MAX(all.ends_us, p.ends_us);
    }
    return all;
}

static void flip(sl_block *b, uint64_t bit) {
    uint64_t at = bit % (8 * (sizeof b->header + b->buf.len)), byte = at / 8;
    uint8_t *p = byte < sizeof b->header ? b->header + byte : b->buf.data + byte - sizeof b->header;
    *p = (uint8_t)(*p ^ 1u << at % 8);
}

void sl_loop_damage(sl_loop_hub *h, uint64_t port, uint64_t peer, sl_block *b) {
    for (uint32_t i = 0; i < h->n_ails; i++) {
        const ail *l = &h->ails[i];
        if (l->kind != AIL_DAMAGE || l->a != port || l->b != peer) continue;
        flip(b, l->bit);
        h->ails[i].a = 0; /* of no port: once */
        return;
    }
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

void sl_port_shut(sl_port *p) {
    pthread_mutex_lock(&p->lock);
    p->closed = true;
    pthread_mutex_unlock(&p->lock);
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
