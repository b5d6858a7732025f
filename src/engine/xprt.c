/* The expert side: dispatches wait at their lane's barrier; a layer that is ready becomes one
 * grouped GEMM over the rows of all members, and every member gets one reply. On the lowest expert
 * worker the sequencer of each lane lives here, too. */
#include "engine/worker_int.h"

#include "base/log.h"
#include "base/mutate.h"

#include <string.h>

/* A member's message that its barrier holds back: at most one per lane and chunk
 * (sched/membership.h). */
typedef struct pending {
    bool here;  /* not answered yet */
    bool early; /* its round is not announced here yet: it still has to go to the barrier */
    sl_wire_header h;
    sl_buf *payload; /* kept until the layer's last chunk is answered: later ones may refer to it */
    sl_wire_dispatch view;
    uint64_t came_ns;
    uint32_t data_before; /* rows with data in earlier chunks of the layer */
} pending;

typedef struct xlane {
    sl_barrier *barrier;
    sl_seq *seq;         /* NULL unless this worker is the sequencer */
    pending *from;       /* [SL_PLAN_MAX_WORKERS][chunks] */
    uint64_t next_round; /* of `next`; 0: none */
    uint32_t next[SL_PLAN_MAX_WORKERS];
    uint32_t n_next;
} xlane;

typedef struct task {
    uint32_t lane, layer, chunk;
    uint64_t round;
    uint32_t n_reply, reply_to[SL_PLAN_MAX_WORKERS];
    bool has_next;
    uint32_t n_next, next[SL_PLAN_MAX_WORKERS];
} task;

struct sl_xprt {
    sl_worker *w;
    const sl_model_spec *m;
    bool sequencer;
    xlane *lane;
    uint32_t n_lanes, n_chunks;
    bool dead[SL_PLAN_MAX_WORKERS];
    task *queue; /* ring */
    size_t queue_cap, queue_head, queue_len;
    bool begun; /* the head's experts are at the device until `event` */
    sl_event event;
    uint32_t entries;             /* of the head, when begun */
    uint32_t max_rows, max_pairs; /* of one task: all attention workers' rows of a lane */
    /* scratch of a task */
    float *x;   /* [max_rows][d_model], for rows that cannot be used where they lie */
    float *sum; /* [max_rows or, exact, max_pairs][d_model]: returned rows before they are packed */
    /* by pair in expert order: its row, where its result goes, whether it is added there */
    uint32_t *pair_row;
    float **pair_to;
    uint8_t *pair_adds;
    float *pair_gate;
    sl_buf *reply[SL_PLAN_MAX_WORKERS];            /* to task.reply_to[i]; NULL: a bare header */
    uint32_t *group_expert, *group_first, *cursor; /* [n_experts + 1] */
};

static void finish(sl_xprt *x);

bool sl_xprt_may_announce(const sl_xprt *x, uint32_t src) {
    const sl_worker *w = x->w;
    return x->sequencer ? src != w->id && (w->plan.worker[src].roles & SL_ROLE_EXPERT)
                        : src == w->expert_worker[0];
}

static pending *pending_of(const sl_xprt *x, uint32_t lane, uint32_t member, uint32_t chunk) {
    return &x->lane[lane].from[(size_t)member * x->n_chunks + chunk];
}

static bool is_last(const sl_xprt *x, uint32_t layer, uint32_t chunk) {
    return layer == x->m->n_moe - 1u && chunk == x->n_chunks - 1u;
}

static bool is_attention(const sl_xprt *x, uint32_t id) {
    return id < x->w->plan.n_workers && (x->w->plan.worker[id].roles & SL_ROLE_ATTENTION);
}

/* ---- membership ---- */

static sl_status push_ready(sl_xprt *x, uint32_t lane, const sl_ready *r, sl_err *err) {
    xlane *l = &x->lane[lane];
    if (x->queue_len == x->queue_cap)
        return sl_fail(err, SL_ERR_INTERNAL, "%zu layers are ready at once", x->queue_len);
    task *t = &x->queue[(x->queue_head + x->queue_len++) % x->queue_cap];
    t->lane = lane;
    t->layer = r->layer;
    t->chunk = r->chunk;
    t->round = r->round;
    t->n_reply = (uint32_t)r->reply_to->n;
    memcpy(t->reply_to, r->reply_to->ids, r->reply_to->n * sizeof *t->reply_to);
    t->has_next = l->seq && is_last(x, r->layer, r->chunk) && l->next_round == r->round + 1;
    t->n_next = t->has_next ? l->n_next : 0;
    memcpy(t->next, l->next, t->n_next * sizeof *t->next);
    return SL_OK;
}

static sl_status pop_ready(sl_xprt *x, uint32_t lane, sl_err *err) {
    sl_ready r;
    sl_status st = SL_OK;
    while (st == SL_OK && sl_barrier_pop(x->lane[lane].barrier, &r))
        st = push_ready(x, lane, &r, err);
    return st;
}

static void send_set(sl_xprt *x, uint16_t kind, uint32_t dst, uint32_t lane, uint64_t round,
                     const sl_idset *set) {
    sl_buf *b = sl_net_buf_take(x->w->net, sl_wire_set_bytes((uint32_t)set->n));
    if (!b) return;
    sl_wire_set_encode(set->ids, (uint32_t)set->n, b->data);
    sl_wire_header h = {.kind = kind, .lane = lane, .round = round};
    sl_status st = sl_worker_send(x->w, dst, h, b);
    (void)st; /* a joiner that died meanwhile is reported by its connection */
}

static void tell_dead(sl_xprt *x, uint32_t to, uint32_t member) {
    sl_worker *w = x->w;
    sl_buf *b = to == w->id || to == member ? NULL : sl_net_buf_take(w->net, 4);
    if (!b || SL_MUTATION(UNTOLD_DEATH)) {
        sl_net_buf_give(w->net, b);
        return;
    }
    sl_wire_worker_encode(member, b->data);
    sl_wire_header h = {.kind = SL_MSG_MEMBER_DEAD};
    if (sl_worker_send(w, to, h, b) != SL_OK)
        sl_log(SL_LOG_INFO, "expert", "worker %u cannot be told that %u left", to, member);
}

/* A member breaks the rules of rounds: it goes. */
static void refuse_member(sl_xprt *x, uint32_t id, const char *why) {
    sl_worker *w = x->w;
    sl_log(SL_LOG_WARN, "expert", "attention worker %u: %s", id, why);
    if (w->peer[id].conn) sl_net_close(w->net, w->peer[id].conn, SL_ERR_PROTOCOL, why);
}

static sl_status begin_round(sl_xprt *x, uint32_t lane, uint64_t round, const sl_idset *set,
                             sl_err *err) {
    uint32_t absentee;
    sl_status st = sl_barrier_open(x->lane[lane].barrier, round, set, &absentee, err);
    if (st == SL_OK && absentee != SL_NOBODY)
        refuse_member(x, absentee, "votes for rounds at the sequencer and sends nothing here");
    return st;
}

/* What the sequencer decided: keep NEXT for the last replies, tell who is in the new round. */
static sl_status apply_sequencer(sl_xprt *x, uint32_t lane, const sl_seq_out *out, sl_err *err) {
    xlane *l = &x->lane[lane];
    const sl_worker *w = x->w;
    if (out->closed) {
        l->next_round = out->round;
        l->n_next = (uint32_t)out->set->n;
        memcpy(l->next, out->set->ids, out->set->n * sizeof *l->next);
    }
    if (out->round == 0 || out->set->n == 0) return SL_OK;
    for (uint32_t i = 0; i < w->n_expert_workers; i++)
        if (w->expert_worker[i] != w->id)
            send_set(x, SL_MSG_ROUND_SET, w->expert_worker[i], lane, out->round, out->set);
    for (size_t i = 0; i < out->open_to->n; i++)
        send_set(x, SL_MSG_ROUND_OPEN, out->open_to->ids[i], lane, out->round, out->set);
    return begin_round(x, lane, out->round, out->set, err);
}

sl_status sl_xprt_on_join(sl_xprt *x, uint32_t src, const sl_wire_header *h, sl_err *err) {
    sl_seq_out out = {0};
    if (!x->sequencer || h->lane >= x->n_lanes || !is_attention(x, src))
        return sl_fail(err, SL_ERR_PROTOCOL, "join of lane %u from worker %u", h->lane, src);
    sl_status st = sl_seq_join(x->lane[h->lane].seq, src, &out, err);
    return st == SL_OK && !out.dropped ? apply_sequencer(x, h->lane, &out, err) : st;
}

/* Forgets what a member sent for its layer. */
static void drop_chunks(sl_xprt *x, uint32_t lane, uint32_t member) {
    for (uint32_t c = 0; c < x->n_chunks; c++) {
        pending *p = pending_of(x, lane, member, c);
        if (p->here) x->w->n.rows_stale += p->view.rows;
        sl_net_buf_give(x->w->net, p->payload);
        *p = (pending){0};
    }
}

sl_status sl_xprt_on_dead(sl_xprt *x, uint32_t member, sl_err *err) {
    if (member >= x->w->plan.n_workers)
        return sl_fail(err, SL_ERR_PROTOCOL, "death of worker %u of %u", member,
                       x->w->plan.n_workers);
    if (!is_attention(x, member) || member == x->w->id)
        return sl_fail(err, SL_ERR_PROTOCOL, "death of worker %u, which is no member of others",
                       member);
    if (x->dead[member]) return SL_OK;
    finish(x);
    x->dead[member] = true;
    sl_status st = SL_OK;
    bool announce = false;
    for (uint32_t i = 0; st == SL_OK && i < x->n_lanes; i++) {
        xlane *l = &x->lane[i];
        sl_seq_out out = {0};
        if (l->seq) st = sl_seq_dead(l->seq, member, &out, err);
        if (st == SL_OK && l->seq) st = apply_sequencer(x, i, &out, err);
        announce = announce || out.announce;
        drop_chunks(x, i, member);
        if (st == SL_OK) st = sl_barrier_dead(l->barrier, member, err);
        if (st == SL_OK) st = pop_ready(x, i, err);
    }
    for (uint32_t i = 0; announce && i < x->w->n_expert_workers; i++)
        tell_dead(x, x->w->expert_worker[i], member);
    /* A worker that lives learns of it. */
    sl_conn *c = x->w->peer[member].conn;
    if (st == SL_OK && c) sl_net_close(x->w->net, c, SL_ERR_PEER_DOWN, "counts as dead here");
    sl_log(SL_LOG_INFO, "expert", "attention worker %u counts as silent from now on", member);
    return st;
}

bool sl_xprt_is_dead(const sl_xprt *x, uint32_t member) {
    return x->dead[member];
}

sl_status sl_xprt_on_lost(sl_xprt *x, uint32_t member, sl_err *err) {
    if (x->sequencer) return sl_xprt_on_dead(x, member, err);
    if (!x->dead[member]) tell_dead(x, x->w->expert_worker[0], member);
    return SL_OK;
}

/* ---- a message arrives ---- */

static sl_status check_rows(const sl_xprt *x, const sl_wire_header *h, const sl_wire_dispatch *v,
                            sl_err *err) {
    if (h->rows > sl_lane_max_rows(&x->w->plan))
        return sl_fail(err, SL_ERR_PROTOCOL, "%u rows in flight, %u are reserved", h->rows,
                       sl_lane_max_rows(&x->w->plan));
    for (uint32_t i = 0; i < v->n_entries; i++) {
        if (!sl_plan_is_host(&x->w->plan, h->layer, v->expert[i], x->w->id))
            return sl_fail(err, SL_ERR_PROTOCOL, "expert %u of layer %u is at worker %u",
                           v->expert[i], h->layer,
                           sl_plan_host_of(&x->w->plan, h->layer, v->expert[i], 0));
    }
    /* An expert twice in a row would make more pairs than max_pairs. */
    for (uint32_t r = 0; r < v->rows; r++) {
        for (uint32_t i = v->first[r] + 1; i < v->first[r + 1]; i++) {
            if (v->expert[i] <= v->expert[i - 1])
                return sl_fail(err, SL_ERR_PROTOCOL, "row %u names expert %u after expert %u", r,
                               v->expert[i], v->expert[i - 1]);
        }
    }
    return SL_OK;
}

static sl_status decode(const sl_xprt *x, uint32_t src, const sl_wire_header *h, const sl_buf *b,
                        sl_wire_dispatch *v, sl_err *err) {
    if (!is_attention(x, src)) return sl_fail(err, SL_ERR_PROTOCOL, "dispatch from worker %u", src);
    if (h->lane >= x->n_lanes || h->layer >= x->m->n_moe || h->chunk >= x->n_chunks)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "dispatch for lane %u of %u, layer %u of %u, chunk %u of %u", h->lane,
                       x->n_lanes, h->layer, x->m->n_moe, h->chunk, x->n_chunks);
    if (!b && (h->rows || (h->flags & SL_WIRE_SET)))
        return sl_fail(err, SL_ERR_PROTOCOL, "%u rows without a payload", h->rows);
    if (!b) return SL_OK;
    sl_status st = sl_wire_dispatch_decode(h, (sl_span){b->data, b->len}, x->m,
                                           (sl_wire_format)x->w->plan.wire, v, err);
    return st == SL_OK ? check_rows(x, h, v, err) : st;
}

/* To the barrier with a message whose rows are checked. *dropped: its sender is dead. */
static sl_status arrive(sl_xprt *x, uint32_t src, const sl_wire_header *h,
                        const sl_wire_dispatch *v, bool *dropped, sl_err *err) {
    sl_idset set;
    bool with_set = (h->flags & SL_WIRE_SET) != 0;
    sl_status st = with_set ? sl_idset_check(v->set, v->n_set, &set, err) : SL_OK;
    if (st != SL_OK) return st;
    return sl_barrier_arrive(x->lane[h->lane].barrier, src, h->round, h->layer, h->chunk,
                             with_set ? &set : NULL, dropped, err);
}

/* The sequencer itself knows every round before a member does. */
static bool comes_early(const sl_xprt *x, const sl_wire_header *h) {
    return !x->sequencer && sl_barrier_is_early(x->lane[h->lane].barrier, h->round);
}

/* Messages that came before their round was announced go to the barrier now. */
static void admit_early(sl_xprt *x, uint32_t lane) {
    for (uint32_t i = 0; i < x->w->plan.n_workers * x->n_chunks; i++) {
        uint32_t src = i / x->n_chunks;
        pending *p = pending_of(x, lane, src, i % x->n_chunks);
        sl_err err = {0};
        bool dropped = false;
        if (!p->early || comes_early(x, &p->h)) continue;
        p->early = false;
        if (arrive(x, src, &p->h, &p->view, &dropped, &err) == SL_OK && !dropped) continue;
        drop_chunks(x, lane, src);
        if (!dropped) refuse_member(x, src, err.msg);
    }
}

sl_status sl_xprt_on_round_set(sl_xprt *x, const sl_wire_header *h, sl_span payload, sl_err *err) {
    const uint32_t *ids;
    uint32_t n;
    sl_idset set;
    if (h->lane >= x->n_lanes)
        return sl_fail(err, SL_ERR_PROTOCOL, "round of lane %u of %u", h->lane, x->n_lanes);
    sl_status st = sl_wire_set_decode(payload, &ids, &n, err);
    if (st == SL_OK) st = sl_idset_check((uint32_t *)(uintptr_t)ids, n, &set, err);
    for (uint32_t i = 0; st == SL_OK && i < n; i++)
        if (!is_attention(x, ids[i]))
            st = sl_fail(err, SL_ERR_PROTOCOL, "round with worker %u", ids[i]);
    if (st == SL_OK) st = begin_round(x, h->lane, h->round, &set, err);
    if (st != SL_OK) return st;
    admit_early(x, h->lane);
    return pop_ready(x, h->lane, err);
}

/* How many rows with data chunks of this layer before h's have brought; v may refer to those. */
static sl_status count_data(const sl_xprt *x, uint32_t src, const sl_wire_header *h,
                            const sl_wire_dispatch *v, uint32_t *out, sl_err *err) {
    const pending *before = h->chunk ? pending_of(x, h->lane, src, h->chunk - 1) : NULL;
    uint32_t data = before ? before->data_before + before->view.rows - before->view.n_old : 0;
    for (uint32_t i = 0; i < v->n_old; i++) {
        if (v->old[i] >= data)
            return sl_fail(err, SL_ERR_PROTOCOL, "worker %u refers to row %u of %u that it sent",
                           src, v->old[i], data);
    }
    *out = data;
    return SL_OK;
}

sl_status sl_xprt_on_dispatch(sl_xprt *x, uint32_t src, const sl_wire_header *h, sl_buf **payload,
                              sl_err *err) {
    sl_wire_dispatch v = {0};
    bool dropped = false;
    uint32_t data = 0;
    sl_status st = decode(x, src, h, *payload, &v, err);
    if (st != SL_OK || x->dead[src]) return st;
    xlane *l = &x->lane[h->lane];
    /* The barrier counts a layer as answered when it is ready, which is before its reply is made.
     */
    pending *p = pending_of(x, h->lane, src, h->chunk);
    if (p->here || p->payload)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "worker %u sent layer %u of round %llu before its reply to layer %u", src,
                       h->layer, (unsigned long long)h->round, p->h.layer);
    bool early = comes_early(x, h);
    st = count_data(x, src, h, &v, &data, err);
    if (st == SL_OK && !early) st = arrive(x, src, h, &v, &dropped, err);
    if (st != SL_OK || dropped) return st;
    *p = (pending){.here = true,
                   .early = early,
                   .h = *h,
                   .payload = *payload,
                   .view = v,
                   .came_ns = x->w->came_ns,
                   .data_before = data};
    *payload = NULL;
    if (l->seq && is_last(x, h->layer, h->chunk)) {
        sl_seq_out out = {0};
        st = sl_seq_last(l->seq, src, h->round, (h->flags & SL_WIRE_STAY) != 0, &out, err);
        if (st == SL_OK && !out.dropped) st = apply_sequencer(x, h->lane, &out, err);
    }
    return st == SL_OK ? pop_ready(x, h->lane, err) : st;
}

/* ---- a layer runs ---- */

/* Row and pair counts of the batch being built. */
typedef struct batch {
    uint32_t rows, entries, n_groups;
    const float *x; /* [rows][d_model] */
} batch;

/* Unpacks a message's rows, those without data from where they came. */
static void unpack_rows(const sl_xprt *x, const pending *p, uint32_t chunk, float *to) {
    uint32_t d = x->m->d_model, n_new = p->view.rows - p->view.n_old;
    sl_wire_format f = (sl_wire_format)x->w->plan.wire;
    size_t row_bytes = sl_wire_row_bytes(f, d);
    sl_wire_unpack(f, p->view.data, n_new, d, to);
    for (uint32_t i = 0; i < p->view.n_old; i++) {
        const pending *from = p - chunk; /* the layer's first chunk */
        while (p->view.old[i] >= from->data_before + from->view.rows - from->view.n_old) from++;
        sl_wire_unpack(f, from->view.data + (p->view.old[i] - from->data_before) * row_bytes, 1, d,
                       to + (size_t)(n_new + i) * d);
    }
}

/* The members' rows as floats: where they lie if that is one place, else in x. */
static const float *gather_rows(sl_xprt *x, const task *t) {
    const pending *only = pending_of(x, t->lane, t->reply_to[0], t->chunk);
    if (t->n_reply == 1 && x->w->plan.wire == SL_WIRE_F32 && only->view.n_old == 0)
        return (const float *)(const void *)only->view.data;
    size_t at = 0;
    for (uint32_t i = 0; i < t->n_reply; i++) {
        const pending *p = pending_of(x, t->lane, t->reply_to[i], t->chunk);
        unpack_rows(x, p, t->chunk, x->x + at);
        at += (size_t)p->view.rows * x->m->d_model;
    }
    return x->x;
}

/* Counts the members' rows and (row, position) pairs, these by expert. */
static batch count_pairs(sl_xprt *x, const task *t) {
    batch b = {0};
    uint32_t n_experts = x->m->n_experts, at = 0;
    memset(x->cursor, 0, (n_experts + 1u) * sizeof *x->cursor);
    for (uint32_t i = 0; i < t->n_reply; i++) {
        const pending *p = pending_of(x, t->lane, t->reply_to[i], t->chunk);
        for (uint32_t e = 0; e < p->view.n_entries; e++) x->cursor[p->view.expert[e]]++;
        b.rows += p->view.rows;
        b.entries += p->view.n_entries;
    }
    for (uint32_t e = 0; e < n_experts; e++) {
        uint32_t n = x->cursor[e];
        x->cursor[e] = at;
        if (n == 0) continue;
        x->group_expert[b.n_groups] = e;
        x->group_first[b.n_groups++] = at;
        at += n;
    }
    x->group_first[b.n_groups] = at;
    return b;
}

/* One row comes back for a dispatched row, or for each of its positions. */
static uint32_t returned_rows(const sl_xprt *x, const sl_wire_dispatch *v) {
    return x->w->plan.exact ? v->n_entries : v->rows;
}

/* The entries of a member's row r become pairs; its returned rows are those from `at` on, whose
 * values go to `to`. A row's positions are in the order of experts, so that its sum is, too. */
static uint32_t add_pairs(sl_xprt *x, const sl_wire_dispatch *v, uint32_t r, uint32_t row,
                          uint32_t at, float *to, const sl_wire_return *out) {
    bool exact = x->w->plan.exact;
    for (uint32_t e = v->first[r]; e < v->first[r + 1]; e++) {
        uint32_t pair = x->cursor[v->expert[e]]++;
        bool fresh = exact || e == v->first[r];
        uint32_t i = exact ? at + (e - v->first[r]) : at;
        x->pair_row[pair] = row;
        x->pair_gate[pair] = v->gate[e];
        x->pair_to[pair] = to + (size_t)i * x->m->d_model;
        x->pair_adds[pair] = !fresh;
        if (fresh) {
            out->tag[i] = v->tag[r];
            out->mask[i] = 0;
        }
        out->mask[i] |= 1ull << v->position[e];
    }
    return exact ? at + v->first[r + 1] - v->first[r] : at + 1;
}

/* The reply to a member without its values. NULL: a bare header, or no memory. */
static sl_buf *begin_reply(sl_xprt *x, const task *t, const sl_wire_dispatch *v,
                           sl_wire_return *out) {
    sl_wire_format f = (sl_wire_format)x->w->plan.wire;
    uint32_t rows = returned_rows(x, v);
    if (rows == 0 && !t->has_next) return NULL;
    sl_buf *b = sl_net_buf_take(x->w->net, sl_wire_return_bytes(rows, t->n_next, x->m->d_model, f));
    if (!b) return NULL;
    sl_wire_return_layout(b->data, rows, t->n_next, x->m->d_model, f, out);
    if (t->n_next) memcpy(out->set, t->next, t->n_next * sizeof *t->next);
    return b;
}

/* Sorts the members' pairs by expert and begins the replies, which results go to. */
static bool gather(sl_xprt *x, const task *t, batch *out) {
    batch b = count_pairs(x, t);
    uint32_t row = 0;
    float *sum = x->sum;
    if (t->n_reply) b.x = gather_rows(x, t);
    for (uint32_t i = 0; i < t->n_reply; i++) {
        const sl_wire_dispatch *v = &pending_of(x, t->lane, t->reply_to[i], t->chunk)->view;
        sl_wire_return r = {0};
        uint32_t at = 0, n = returned_rows(x, v);
        x->reply[i] = begin_reply(x, t, v, &r);
        if (!x->reply[i] && (n || t->has_next)) {
            x->w->stop = true;
            x->w->stop_status = sl_fail(&x->w->stop_err, SL_ERR_NOMEM, "reply of %u rows", n);
            while (i > 0) sl_net_buf_give(x->w->net, x->reply[--i]);
            return false;
        }
        float *to = x->w->plan.wire == SL_WIRE_F32 ? (float *)(void *)r.data : sum;
        for (uint32_t j = 0; j < v->rows; j++) at = add_pairs(x, v, j, row++, at, to, &r);
        sum += (size_t)n * x->m->d_model;
    }
    *out = b;
    return true;
}

static void send_returns(sl_xprt *x, const task *t) {
    const float *sum = x->sum;
    uint32_t d = x->m->d_model;
    sl_wire_format f = (sl_wire_format)x->w->plan.wire;
    for (uint32_t i = 0; i < t->n_reply; i++) {
        pending *p = pending_of(x, t->lane, t->reply_to[i], t->chunk);
        sl_wire_return out;
        sl_wire_header h = {.kind = SL_MSG_RETURN,
                            .flags = t->has_next ? SL_WIRE_SET : 0,
                            .round = t->round,
                            .lane = t->lane,
                            .layer = t->layer,
                            .chunk = t->chunk,
                            .rows = returned_rows(x, &p->view)};
        if (f != SL_WIRE_F32 && h.rows) {
            sl_wire_return_layout(x->reply[i]->data, h.rows, t->n_next, d, f, &out);
            sl_wire_pack(f, sum, h.rows, d, out.data);
            sum += (size_t)h.rows * d;
        }
        sl_status st = sl_worker_send(x->w, t->reply_to[i], h, x->reply[i]);
        (void)st; /* a member that died meanwhile is announced by the sequencer */
        p->here = false;
        if (t->chunk == x->n_chunks - 1) drop_chunks(x, t->lane, t->reply_to[i]);
    }
}

/* From now on the thread works on this task. */
static void begin(const sl_xprt *x, const task *t, sl_trace_kind kind, uint32_t rows,
                  uint64_t waited_ns) {
    sl_worker_begin(x->w,
                    &(sl_trace_event){.kind = (uint8_t)kind,
                                      .lane = sl_trace_u16(t->lane),
                                      .layer = sl_trace_u16(x->m->moe_layer[t->layer]),
                                      .chunk = sl_trace_u16(t->chunk),
                                      .round = (uint32_t)t->round,
                                      .rows = rows,
                                      .queued_us = (uint32_t)SL_MIN(waited_ns / 1000, UINT32_MAX)});
}

/* How long the first of the task's rows have been here. */
static uint64_t queued_ns(const sl_xprt *x, const task *t) {
    uint64_t now = sl_now_ns(), oldest = now;
    for (uint32_t i = 0; i < t->n_reply; i++) {
        const pending *p = pending_of(x, t->lane, t->reply_to[i], t->chunk);
        if (p->view.rows) oldest = SL_MIN(oldest, p->came_ns);
    }
    return now - oldest;
}

/* Gives the task's experts to the device. False: the worker stops. */
static bool begin_task(sl_xprt *x, task *t) {
    sl_worker *w = x->w;
    /* Members that died after the layer became ready have no message any more. */
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_reply; i++) {
        if (pending_of(x, t->lane, t->reply_to[i], t->chunk)->here)
            t->reply_to[n++] = t->reply_to[i];
    }
    t->n_reply = n;
    begin(x, t, SL_TRACE_GATHER, 0, 0);
    uint64_t queued = queued_ns(x, t);
    batch b;
    if (!gather(x, t, &b)) return false;
    x->begun = true;
    x->entries = b.entries;
    if (b.entries == 0) return true;
    sl_worker_note_experts(w, x->group_expert, x->group_first, b.n_groups);
    begin(x, t, SL_TRACE_EXPERT, b.entries, queued);
    const sl_stage_call c = {.op = SL_OP_EXPERTS,
                             .queue = SL_QUEUE_EXPERTS,
                             .layer = x->m->moe_layer[t->layer],
                             .experts = {.n_groups = b.n_groups,
                                         .expert = x->group_expert,
                                         .first = x->group_first,
                                         .row = x->pair_row,
                                         .gate = x->pair_gate,
                                         .x = b.x,
                                         .n_rows = b.rows,
                                         .to = x->pair_to,
                                         .adds = x->pair_adds}};
    x->event = sl_device_submit(w->device, &c);
    return true;
}

static void end_task(sl_xprt *x) {
    const task *t = &x->queue[x->queue_head];
    begin(x, t, SL_TRACE_REPLY, 0, 0);
    x->w->n.expert_rows += x->entries;
    send_returns(x, t);
    x->begun = false;
    x->queue_head = (x->queue_head + 1) % x->queue_cap;
    x->queue_len--;
}

/* What the device has is answered before anybody is forgotten. */
static void finish(sl_xprt *x) {
    sl_device_drain(x->w->device);
    if (x->begun) end_task(x);
}

void sl_xprt_waits_for(sl_xprt *x, sl_trace_event *e) {
    for (uint32_t i = 0; i < x->n_lanes; i++) {
        uint64_t round;
        uint32_t layer;
        const sl_idset *missing;
        if (!sl_barrier_waiting(x->lane[i].barrier, &round, &layer, &missing)) continue;
        bool some = false;
        for (uint32_t j = 0; j < SL_PLAN_MAX_WORKERS * x->n_chunks; j++)
            some = some || x->lane[i].from[j].here;
        *e = (sl_trace_event){.kind = SL_TRACE_WAIT,
                              .why = some ? SL_TRACE_WHY_MEMBERS : SL_TRACE_WHY_DISPATCH,
                              .lane = sl_trace_u16(i),
                              .layer =
                                  layer < x->m->n_moe ? sl_trace_u16(x->m->moe_layer[layer]) : 0};
        if (some) return;
    }
}

bool sl_xprt_run(sl_xprt *x) {
    if (x->queue_len == 0) return false;
    bool begins = !x->begun;
    if (begins && !begin_task(x, &x->queue[x->queue_head])) return true;
    if (!sl_device_is_done(x->w->device, &x->event)) return begins;
    end_task(x);
    return true;
}

/* ---- life ---- */

static sl_status create_lane(sl_xprt *x, xlane *l, sl_err *err) {
    sl_status st =
        sl_barrier_create(x->m->n_moe, x->n_chunks, SL_PLAN_MAX_WORKERS, &l->barrier, err);
    l->from = sl_alloc((size_t)SL_PLAN_MAX_WORKERS * x->n_chunks, sizeof *l->from);
    if (st == SL_OK && !l->from) st = sl_fail(err, SL_ERR_NOMEM, "lane of %u chunks", x->n_chunks);
    if (st == SL_OK && x->sequencer) st = sl_seq_create(SL_PLAN_MAX_WORKERS, &l->seq, err);
    if (st != SL_OK) return st;
    sl_barrier_reset(l->barrier, x->w->plan.epoch);
    if (l->seq) sl_seq_reset(l->seq, x->w->plan.epoch);
    return SL_OK;
}

static sl_status create_buffers(sl_xprt *x, sl_err *err) {
    size_t d = x->m->d_model, e = x->m->n_experts + 1u;
    x->max_rows = sl_lane_max_rows(&x->w->plan) * x->w->attention_workers;
    x->max_pairs = sl_worker_max_pairs(x->w, x->m);
    x->queue_cap = (size_t)x->n_lanes * x->n_chunks * 4;
    x->queue = sl_alloc(x->queue_cap, sizeof *x->queue);
    x->lane = sl_alloc(x->n_lanes, sizeof *x->lane);
    x->x = sl_alloc(x->max_rows, d * sizeof *x->x);
    x->sum = sl_alloc(x->w->plan.exact ? x->max_pairs : x->max_rows, d * sizeof *x->sum);
    x->pair_row = sl_alloc(x->max_pairs, sizeof *x->pair_row);
    x->pair_to = sl_alloc(x->max_pairs, sizeof *x->pair_to);
    x->pair_adds = sl_alloc(x->max_pairs, sizeof *x->pair_adds);
    x->pair_gate = sl_alloc(x->max_pairs, sizeof *x->pair_gate);
    x->group_expert = sl_alloc(e, sizeof *x->group_expert);
    x->group_first = sl_alloc(e, sizeof *x->group_first);
    x->cursor = sl_alloc(e, sizeof *x->cursor);
    if (!x->queue || !x->lane || !x->x || !x->sum || !x->pair_row || !x->pair_to || !x->pair_adds ||
        !x->pair_gate || !x->group_expert || !x->group_first || !x->cursor)
        return sl_fail(err, SL_ERR_NOMEM, "buffers of an expert worker for %u rows", x->max_rows);
    return SL_OK;
}

sl_status sl_xprt_create(sl_worker *w, sl_xprt **out, sl_err *err) {
    sl_xprt *x = sl_alloc(1, sizeof *x);
    if (!x) return sl_fail(err, SL_ERR_NOMEM, "expert worker");
    x->w = w;
    x->m = w->device->spec;
    x->n_lanes = w->plan.lanes;
    x->n_chunks = w->plan.chunks;
    x->sequencer = w->expert_worker[0] == w->id;
    sl_status st = create_buffers(x, err);
    for (uint32_t i = 0; st == SL_OK && i < x->n_lanes; i++) st = create_lane(x, &x->lane[i], err);
    if (st == SL_OK)
        *out = x;
    else
        sl_xprt_free(x);
    return st;
}

void sl_xprt_free(sl_xprt *x) {
    if (!x) return;
    for (uint32_t i = 0; x->begun && i < x->queue[x->queue_head].n_reply; i++)
        sl_net_buf_give(x->w->net, x->reply[i]);
    for (uint32_t i = 0; x->lane && i < x->n_lanes; i++) {
        xlane *l = &x->lane[i];
        for (uint32_t j = 0; l->from && j < SL_PLAN_MAX_WORKERS * x->n_chunks; j++)
            sl_net_buf_give(x->w->net, l->from[j].payload);
        sl_free(l->from);
        sl_barrier_free(l->barrier);
        sl_seq_free(l->seq);
    }
    void *const owned[] = {x->queue,
                           x->lane,
                           x->x,
                           x->sum,
                           x->pair_row,
                           x->pair_gate,
                           (void *)x->pair_to,
                           x->pair_adds,
                           x->group_expert,
                           x->group_first,
                           x->cursor};
    for (size_t i = 0; i < SL_LEN(owned); i++) sl_free(owned[i]);
    sl_free(x);
}
