/* Messages on their way: through the sender's port, over a link, through the receiver's. A port
 * takes one at a time, or is shared by all that are at it, as a card is by flows of TCP. With rails
 * (schedule hybrid) a worker has ports and links for each of its ranks: a message of rows that is
 * long enough goes in stripes, one over each, and counts when all are there; shorter ones and all
 * others go over the first. What is behind it on the same connection waits for it, as in
 * src/net/rails.c. */
#include "sim/deployment_int.h"

#include "spec/gang.h"

#include <string.h>

#define WIRE_HEADER 72u /* bytes of a message's header */
#define PORT_BITS   4u  /* of an event: which port of the worker */
#define PORT_IN_BIT 3u
_Static_assert(SL_MAX_RANKS <= 1u << PORT_IN_BIT, "ports of a worker in an event");

static const sl_link_cost *link_of(const sim *s, const sim_worker *w, uint32_t rail) {
    if (rail > 0 && s->s->rail_link) return &s->s->rail_link[rail - 1];
    return w->roles & SL_ROLE_ATTENTION ? &s->s->attention->link : &s->s->expert->link;
}

/* A worker's own time for a message, which a measured alpha has at both ends. */
static double work_of(const sim *s, const sl_link_cost *c) {
    return s->s->message_us > 0 ? s->s->message_us : c->work_us;
}

/* The other ranks' stripes are no work of the worker: their rails' threads have it. */
static double travels(const sim *s, const sl_link_cost *c, uint32_t rail) {
    if (rail > 0 || s->s->message_us > 0) return c->alpha_us;
    return SL_MAX(c->alpha_us - 2 * c->work_us, 0.0);
}

/* ---- stripes ---- */

static uint32_t stripes_of(const sim *s, const sim_msg *m, size_t payload) {
    const bool rows = m->kind == SIM_MSG_DISPATCH || m->kind == SIM_MSG_RETURN;
    return rows && payload >= SL_MAX(s->p->rail_bytes, 1u) ? s->rails : 1;
}

/* On the wire, of a message of so many bytes. The first has in front what the message is. */
static double stripe_bytes(const sim_msg *m, uint32_t n, uint32_t i) {
    if (n == 1) return m->bytes;
    const size_t payload = m->bytes - WIRE_HEADER;
    const size_t own = sl_stripe_begin(payload, n, i + 1) - sl_stripe_begin(payload, n, i);
    return (double)(own + WIRE_HEADER + (i == 0 ? SL_STRIPED_HEAD : 0));
}

/* Its place among the messages of its connection. */
static void queue_up(sim *s, sim_worker *w, uint32_t id) {
    sim_msg *m = &s->msg[id];
    if (s->rails == 1) return;
    if (!w->last_to) {
        w->last_to = sl_alloc(s->n_workers, sizeof *w->last_to);
        if (!w->last_to) {
            sim_fail(s, sim_oom(s, "connections"));
            return;
        }
        for (uint32_t i = 0; i < s->n_workers; i++) w->last_to[i] = SIM_NONE;
    }
    const uint32_t last = w->last_to[m->dst];
    m->waits = last != SIM_NONE;
    if (m->waits) s->msg[last].behind = id;
    w->last_to[m->dst] = id;
}

/* ---- shared ports ---- */

static void look(sim *s, sim_port *p) {
    const double passed = sim_now(s) - p->looked_at;
    p->looked_at = p->at.free_at = sim_now(s);
    if (p->n == 0) return;
    p->at.busy += passed;
    p->clock += passed / p->n;
}

/* When the first of them will be through, as things are. */
static void call_turn(sim *s, uint32_t worker, sim_port *p) {
    const sim_worker *w = &s->worker[worker];
    const bool in = p >= w->in && p < w->in + s->rails;
    const uint64_t which = (uint64_t)(p - (in ? w->in : w->out)) | (in ? 1u << PORT_IN_BIT : 0);
    p->turn++;
    if (p->n == 0) return;
    const double left = SL_MAX(p->heap[0].until - p->clock, 0.0) * p->n;
    sl_sim_events_push(&s->ev, sim_now(s) + left, SIM_PORT, worker, p->turn << PORT_BITS | which);
}

static void sift_up(sim_port *p, uint32_t i) {
    for (; i > 0 && p->heap[i].until < p->heap[(i - 1) / 2].until; i = (i - 1) / 2) {
        const sim_passage was = p->heap[i];
        p->heap[i] = p->heap[(i - 1) / 2];
        p->heap[(i - 1) / 2] = was;
    }
}

static sim_passage pop(sim_port *p) {
    const sim_passage first = p->heap[0], last = p->heap[--p->n];
    uint32_t i = 0;
    for (uint32_t next; (next = 2 * i + 1) < p->n; i = next) {
        if (next + 1 < p->n && p->heap[next + 1].until < p->heap[next].until) next++;
        if (last.until <= p->heap[next].until) break;
        p->heap[i] = p->heap[next];
    }
    p->heap[i] = last;
    return first;
}

static void append(sim *s, sim_passage **list, uint32_t *n, uint32_t *cap, sim_passage x) {
    if (*n == *cap) {
        const uint32_t more = SL_MAX(2 * *cap, 8u);
        sim_passage *bigger = sl_grow(*list, *cap, more, sizeof *bigger);
        if (!bigger) {
            sim_fail(s, sim_oom(s, "messages at a port"));
            return;
        }
        *list = bigger;
        *cap = more;
    }
    (*list)[(*n)++] = x;
}

static bool is_at(const sim_port *p, uint32_t peer) {
    for (uint32_t i = 0; i < p->n; i++)
        if (p->heap[i].peer == peer) return true;
    return false;
}

/* x.until: what it takes alone. */
static void enter(sim *s, sim_port *p, sim_passage x) {
    if (is_at(p, x.peer)) {
        append(s, &p->wait, &p->n_wait, &p->cap_wait, x);
        return;
    }
    x.until += p->clock;
    append(s, &p->heap, &p->n, &p->cap, x);
    sift_up(p, p->n - 1);
}

/* The next one of its connection, if there is one. */
static void follow(sim *s, sim_port *p, uint32_t peer) {
    uint32_t i = 0;
    while (i < p->n_wait && p->wait[i].peer != peer) i++;
    if (i == p->n_wait) return;
    const sim_passage x = p->wait[i];
    p->n_wait--;
    memmove(&p->wait[i], &p->wait[i + 1], (p->n_wait - i) * sizeof *p->wait);
    enter(s, p, x);
}

static void come_to(sim *s, uint32_t worker, sim_port *p, sim_passage x) {
    look(s, p);
    enter(s, p, x);
    call_turn(s, worker, p);
}

/* ---- the way ---- */

/* Of a message's stripe: when its last byte has left, it is on its way. */
static void leave_shared(sim *s, uint64_t what) {
    const sim_msg *m = &s->msg[(uint32_t)what];
    const uint32_t i = (uint32_t)(what >> 32);
    const sim_worker *w = &s->worker[m->src];
    sl_sim_events_push(&s->ev, sim_now(s) + travels(s, link_of(s, w, i), i), SIM_DELIVER, m->dst,
                       (uint32_t)what);
}

void sim_port_turn(sim *s, uint32_t worker, uint64_t what) {
    sim_worker *w = &s->worker[worker];
    const bool in = what >> PORT_IN_BIT & 1;
    sim_port *p = &(in ? w->in : w->out)[what & ((1u << PORT_IN_BIT) - 1)];
    if (what >> PORT_BITS != p->turn) return; /* somebody came since */
    look(s, p);
    while (p->n > 0 && p->heap[0].until <= p->clock * (1 + 1e-12) + 1e-6) {
        const sim_passage done = pop(p);
        follow(s, p, done.peer);
        const bool comes = s->msg[(uint32_t)done.what].dst == worker;
        if (comes)
            sim_msg_deliver(s, (uint32_t)done.what);
        else
            leave_shared(s, done.what);
    }
    call_turn(s, worker, p);
}

void sim_msg_send(sim *s, uint32_t id, size_t bytes) {
    sim_msg *m = &s->msg[id];
    sim_worker *w = &s->worker[m->src];
    double now = sim_now(s);
    m->bytes = (uint32_t)SL_MIN(bytes + WIRE_HEADER, UINT32_MAX);
    if (m->dst == m->src) {
        m->came_at = now;
        sim_inbox_push(s, &w->inbox, (sim_item){.kind = SIM_DELIVER, .what = id});
        return;
    }
    queue_up(s, w, id);
    const uint32_t n = stripes_of(s, m, bytes);
    m->missing = s->s->shared_ports ? 2 * n : n;
    s->result.messages++;
    w->owed_us += work_of(s, link_of(s, w, 0));
    sim_note(w, sim_msg_event(s, m, SL_TRACE_SEND, m->dst), now, now);
    for (uint32_t i = 0; i < n; i++) {
        const sl_link_cost *c = link_of(s, w, i);
        const double own = stripe_bytes(m, n, i), way = travels(s, c, i);
        const uint64_t what = id | (uint64_t)i << 32;
        double there = now + way;
        s->result.message_bytes += own;
        if (s->s->shared_ports)
            come_to(s, m->src, &w->out[i],
                    (sim_passage){sl_link_cost_port_us(c, own), what, m->dst});
        else
            there = sl_sim_leave(&w->out[i].at, now, c, way, own);
        sl_sim_events_push(&s->ev, there, SIM_HEAD, m->dst, what);
    }
}

void sim_msg_head(sim *s, uint64_t what) {
    const uint32_t id = (uint32_t)what, i = (uint32_t)(what >> 32);
    const sim_msg *m = &s->msg[id];
    sim_worker *w = &s->worker[m->dst];
    const uint32_t n = stripes_of(s, m, m->bytes - WIRE_HEADER);
    const sl_link_cost *c = link_of(s, w, i);
    const double bytes = stripe_bytes(m, n, i);
    sim_port *p = s->half ? &w->out[i] : &w->in[i];
    if (s->s->shared_ports) {
        come_to(s, m->dst, p, (sim_passage){sl_link_cost_port_us(c, bytes), what, m->src});
        return;
    }
    const double end = sl_sim_come(&p->at, sim_now(s), link_of(s, &s->worker[m->src], i), c, bytes);
    sl_sim_events_push(&s->ev, end, SIM_DELIVER, m->dst, id);
}

/* All of it is here, and all that was sent before it. */
static void take_in(sim *s, uint32_t id) {
    sim_msg *m = &s->msg[id];
    sim_worker *w = &s->worker[m->dst];
    if (sim_msg_is_void(s, m)) {
        sim_msg_drop(s, id);
        return;
    }
    m->came_at = sim_now(s);
    w->owed_us += work_of(s, link_of(s, w, 0));
    sim_note(w, sim_msg_event(s, m, SL_TRACE_RECV, m->src), sim_now(s), sim_now(s));
    sim_inbox_push(s, &w->inbox, (sim_item){.kind = SIM_DELIVER, .what = id});
    sim_touch(s, w);
}

void sim_msg_deliver(sim *s, uint32_t id) {
    if (--s->msg[id].missing > 0 || s->msg[id].waits) return;
    while (id != SIM_NONE) {
        const sim_msg *m = &s->msg[id];
        uint32_t *last_to = s->worker[m->src].last_to, next = m->behind;
        if (last_to && last_to[m->dst] == id) last_to[m->dst] = SIM_NONE;
        take_in(s, id);
        if (next == SIM_NONE) return;
        s->msg[next].waits = false;
        id = s->msg[next].missing == 0 ? next : SIM_NONE;
    }
}

/* ---- ports ---- */

void sim_links_mark(sim_worker *w, uint32_t rails) {
    for (uint32_t i = 0; i < rails; i++) {
        w->out[i].busy_from = w->out[i].at.busy;
        w->in[i].busy_from = w->in[i].at.busy;
    }
}

double sim_links_share(const sim_port *port, uint32_t rails, double span) {
    double most = 0;
    for (uint32_t i = 0; i < rails; i++) most = SL_MAX(most, port[i].at.busy - port[i].busy_from);
    return span > 0 ? SL_MIN(most / span, 1) : 0;
}

bool sim_links_add_up(const sim *s, const sim_worker *w) {
    for (uint32_t i = 0; i < s->rails; i++)
        if (w->out[i].at.busy > w->out[i].at.free_at * (1 + 1e-9) ||
            w->in[i].at.busy > w->in[i].at.free_at * (1 + 1e-9))
            return false;
    return true;
}

sl_status sim_links_create(sim *s) {
    s->ports = sl_alloc((size_t)s->n_workers * 2 * s->rails, sizeof *s->ports);
    if (!s->ports) return sim_oom(s, "ports");
    for (uint32_t i = 0; i < s->n_workers; i++) {
        s->worker[i].out = s->ports + (size_t)i * 2 * s->rails;
        s->worker[i].in = s->worker[i].out + s->rails;
    }
    return SL_OK;
}

void sim_links_free(sim *s) {
    for (uint32_t i = 0; s->worker && i < s->n_workers; i++) sl_free(s->worker[i].last_to);
    for (size_t i = 0; s->ports && i < (size_t)s->n_workers * 2 * s->rails; i++) {
        sl_free(s->ports[i].heap);
        sl_free(s->ports[i].wait);
    }
    sl_free(s->ports);
}
