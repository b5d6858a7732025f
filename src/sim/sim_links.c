/* Messages on their way: through the sender's port, over a link, through the receiver's. A port
 * takes one at a time, or is shared by all that are at it, as a card is by flows of TCP: they leave
 * in pieces by turns, and arrive in equal parts. With rails (schedule hybrid) a worker has ports
 * and links for each of its ranks: a message of rows that is long enough goes in stripes, one over
 * each, and counts when all are there; shorter ones and all others go over the first. What is
 * behind it on the same connection waits for it, as in src/net/rails.c. */
#include "sim/deployment_int.h"

#include "spec/gang.h"

#include <math.h>
#include <string.h>

#define WIRE_HEADER 72u /* bytes of a message's header */
#define PORT_BITS   4u  /* of an event: which port of the worker */
#define PORT_IN_BIT 3u
_Static_assert(SL_MAX_RANKS <= 1u << PORT_IN_BIT, "ports of a worker in an event");
/* A connection of TCP hands a card up to 64 KB at a time, and goes on when less than two such
 * pieces are queued there (Linux: tcp_tso_autosize, tcp_small_queue_check). */
#define PIECE_BYTES  65536.0
#define PIECES_AHEAD 2.0
#define PIECES_MOST  8u  /* of a message: long ones go in larger pieces, which are fewer events */
#define RAIL_AT      32u /* what passes: a message, which stripe of it, which piece of that */
#define PIECE_AT     35u
_Static_assert(SL_MAX_RANKS <= 1u << (PIECE_AT - RAIL_AT), "stripes of a message in an event");

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

static uint32_t rail_of(uint64_t what) {
    return what >> RAIL_AT & ((1u << (PIECE_AT - RAIL_AT)) - 1);
}

static double piece_bytes(double bytes) {
    return SL_MAX(PIECE_BYTES, ceil(bytes / PIECES_MOST));
}

static uint32_t pieces_of(double bytes) {
    return (uint32_t)SL_MAX(ceil(bytes / piece_bytes(bytes)), 1.0);
}

/* What a port is taken for by one piece. What a message costs whatever its length, its first has.
 */
static double piece_us(const sim *s, const sl_link_cost *c, uint64_t what) {
    const sim_msg *m = &s->msg[(uint32_t)what];
    const uint32_t n = stripes_of(s, m, m->bytes - WIRE_HEADER);
    const double all = stripe_bytes(m, n, rail_of(what)), piece = piece_bytes(all);
    const double from = piece * (double)(what >> PIECE_AT), to = SL_MIN(from + piece, all);
    return sl_link_cost_port_us(c, to) - sl_link_cost_port_us(c, from);
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
    p->clock += p->turns ? passed : passed / p->n;
}

/* When the first of them will be through, as things are. */
static void call_turn(sim *s, uint32_t worker, sim_port *p) {
    const sim_worker *w = &s->worker[worker];
    const bool in = p >= w->in && p < w->in + s->rails;
    const uint64_t which = (uint64_t)(p - (in ? w->in : w->out)) | (in ? 1u << PORT_IN_BIT : 0);
    p->turn++;
    if (p->n == 0) return;
    const double left = SL_MAX(p->heap[0].until - p->clock, 0.0) * (p->turns ? 1 : p->n);
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

/* What the connection has at the port. A message that is shorter than a piece is a part of one. */
static double pieces_at(const sim *s, const sim_port *p, uint32_t peer) {
    double n = 0;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->heap[i].peer == peer)
            n += SL_MIN(s->msg[(uint32_t)p->heap[i].what].bytes / PIECE_BYTES, 1.0);
    return n;
}

/* What leaves is on its way to the receiver's port as soon as its first byte is. */
static void head_off(sim *s, const sim_port *p, const sim_passage *x, double takes) {
    const sim_msg *m = &s->msg[(uint32_t)x->what];
    const sim_worker *w = &s->worker[m->src];
    const uint32_t rail = rail_of(x->what);
    const double begins = sim_now(s) + (x->until - takes - p->clock);
    sl_sim_events_push(&s->ev, begins + travels(s, link_of(s, w, rail), rail), SIM_HEAD, m->dst,
                       x->what);
}

static void enter(sim *s, uint32_t worker, sim_port *p, sim_passage x) {
    const sim_msg *m = &s->msg[(uint32_t)x.what];
    const double takes = piece_us(s, link_of(s, &s->worker[worker], rail_of(x.what)), x.what);
    x.until = (p->turns && p->n > 0 ? p->last_until : p->clock) + takes;
    p->last_until = x.until;
    append(s, &p->heap, &p->n, &p->cap, x);
    sift_up(p, p->n - 1);
    if (m->src == worker) head_off(s, p, &x, takes);
}

/* What arrives is there piece by piece. */
static bool may_enter(const sim *s, const sim_port *p, uint32_t peer) {
    const double n = pieces_at(s, p, peer);
    return p->turns ? n < PIECES_AHEAD : n == 0;
}

/* As many pieces of the connection as may be at the port, those first that have waited longest. */
static void follow(sim *s, uint32_t worker, sim_port *p, uint32_t peer) {
    uint32_t i = 0;
    while (i < p->n_wait) {
        sim_passage *x = &p->wait[i];
        if (x->peer != peer) {
            i++;
            continue;
        }
        if (!may_enter(s, p, peer)) return;
        enter(s, worker, p, *x);
        x->what += 1ull << PIECE_AT;
        if (--x->pieces > 0) continue;
        p->n_wait--;
        memmove(x, x + 1, (p->n_wait - i) * sizeof *x);
    }
}

static void come_to(sim *s, uint32_t worker, sim_port *p, sim_passage x) {
    look(s, p);
    append(s, &p->wait, &p->n_wait, &p->cap_wait, x);
    follow(s, worker, p, x.peer);
    call_turn(s, worker, p);
}

/* ---- the way ---- */

/* Of a piece: when its last byte has left, it is on its way. */
static void leave_shared(sim *s, uint64_t what) {
    const sim_msg *m = &s->msg[(uint32_t)what];
    const uint32_t i = rail_of(what);
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
        follow(s, worker, p, done.peer);
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
    m->missing = 0;
    s->result.messages++;
    w->owed_us += work_of(s, link_of(s, w, 0));
    sim_note(w, sim_msg_event(s, m, SL_TRACE_SEND, m->dst), now, now);
    for (uint32_t i = 0; i < n; i++) {
        const sl_link_cost *c = link_of(s, w, i);
        const double own = stripe_bytes(m, n, i);
        const uint64_t what = id | (uint64_t)i << RAIL_AT;
        s->result.message_bytes += own;
        if (s->s->shared_ports) {
            const uint32_t pieces = pieces_of(own);
            m->missing += 2 * pieces;
            come_to(s, m->src, &w->out[i], (sim_passage){0, what, m->dst, pieces});
            continue;
        }
        m->missing++;
        const double there = sl_sim_leave(&w->out[i].at, now, c, travels(s, c, i), own);
        sl_sim_events_push(&s->ev, there, SIM_HEAD, m->dst, what);
    }
}

void sim_msg_head(sim *s, uint64_t what) {
    const uint32_t id = (uint32_t)what, i = rail_of(what);
    const sim_msg *m = &s->msg[id];
    sim_worker *w = &s->worker[m->dst];
    sim_port *p = s->half ? &w->out[i] : &w->in[i];
    if (s->s->shared_ports) {
        come_to(s, m->dst, p, (sim_passage){0, what, m->src, 1});
        return;
    }
    const double bytes = stripe_bytes(m, stripes_of(s, m, m->bytes - WIRE_HEADER), i);
    const sl_link_cost *sender = link_of(s, &s->worker[m->src], i);
    const double end = sl_sim_come(&p->at, sim_now(s), sender, link_of(s, w, i), bytes);
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
        for (uint32_t t = 0; t < s->rails; t++) s->worker[i].out[t].turns = true;
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
