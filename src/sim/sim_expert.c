/* The expert side of schedules with barriers (the rules of src/engine/xprt.c): messages wait at
 * their lane's barrier; what is ready runs in order; every member gets a reply. The lowest expert
 * worker is the sequencer. */
#include "sim/deployment_int.h"

#include <string.h>

typedef struct pending {
    uint32_t msg; /* SIM_NONE: none */
    bool early;
} pending;

typedef struct xlane {
    sl_barrier *barrier;
    sl_seq *seq;
    pending *from; /* [n_attn][chunks] */
    uint64_t next_round;
    sim_set *next;
} xlane;

typedef struct task {
    uint32_t lane, layer, chunk, rows, n_reply;
    uint64_t round;
    double ready_at;
    uint32_t *reply_to; /* owned; indices of attention workers */
    sim_set *next;      /* owned reference */
} task;

struct sim_xprt {
    xlane *lane;
    task *queue; /* ring */
    uint32_t cap, head, n;
    double rows; /* of tasks that wait */
    task running;
};

static pending *pending_of(const sim *s, const sim_xprt *x, uint32_t lane, uint32_t attn,
                           uint32_t chunk) {
    return &x->lane[lane].from[(size_t)attn * s->chunks + chunk];
}

static bool is_last(const sim *s, uint32_t layer, uint32_t chunk) {
    return layer == s->m->n_moe - 1u && chunk == s->chunks - 1u;
}

static uint32_t index_of(const sim *s, uint32_t worker) {
    return s->worker[worker].attn->index;
}

/* ---- membership ---- */

static void grow_queue(sim *s, sim_xprt *x) {
    uint32_t cap = SL_MAX(2 * x->cap, 16u);
    task *bigger = sl_alloc(cap, sizeof *bigger);
    if (!bigger) {
        sim_fail(s, sim_oom(s, "tasks"));
        return;
    }
    for (uint32_t i = 0; i < x->n; i++) bigger[i] = x->queue[(x->head + i) % x->cap];
    sl_free(x->queue);
    x->queue = bigger;
    x->cap = cap;
    x->head = 0;
}

static void push_ready(sim *s, sim_worker *w, uint32_t lane, const sl_ready *r) {
    sim_xprt *x = w->xprt;
    xlane *l = &x->lane[lane];
    if (x->n == x->cap) grow_queue(s, x);
    uint32_t *to = sl_alloc(r->reply_to->n, sizeof *to);
    if (!to) sim_fail(s, sim_oom(s, "a task"));
    if (s->status != SL_OK) {
        sl_free(to);
        return;
    }
    task *t = &x->queue[(x->head + x->n++) % x->cap];
    *t = (task){.lane = lane,
                .layer = r->layer,
                .chunk = r->chunk,
                .round = r->round,
                .n_reply = (uint32_t)r->reply_to->n,
                .ready_at = sim_now(s),
                .reply_to = to};
    for (uint32_t i = 0; i < t->n_reply; i++) {
        to[i] = index_of(s, r->reply_to->ids[i]);
        const pending *p = pending_of(s, x, lane, to[i], r->chunk);
        if (p->msg != SIM_NONE) t->rows += s->msg[p->msg].entries;
    }
    x->rows += t->rows;
    if (l->seq && is_last(s, r->layer, r->chunk) && l->next_round == r->round + 1 && l->next) {
        t->next = l->next;
        t->next->refs++;
    }
}

static void pop_ready(sim *s, sim_worker *w, uint32_t lane) {
    sl_ready r;
    while (s->status == SL_OK && sl_barrier_pop(w->xprt->lane[lane].barrier, &r))
        push_ready(s, w, lane, &r);
}

static void begin_round(sim *s, sim_worker *w, uint32_t lane, uint64_t round, const sl_idset *set) {
    uint32_t absentee;
    sl_status st = sl_barrier_open(w->xprt->lane[lane].barrier, round, set, &absentee, s->err);
    if (st != SL_OK) sim_fail(s, st);
}

static void send_set(sim *s, sim_worker *w, sim_msg_kind kind, uint32_t dst, uint32_t lane,
                     uint64_t round, sim_set *set) {
    uint32_t id = sim_msg_take(s, kind, w->id, dst);
    if (id == SIM_NONE) return;
    sim_msg *m = &s->msg[id];
    m->lane = lane;
    m->round = round;
    m->set = set;
    set->refs++;
    sim_msg_send(s, id, 8 + 4 * set->ids.n);
}

static void apply_sequencer(sim *s, sim_worker *w, uint32_t lane, const sl_seq_out *out) {
    xlane *l = &w->xprt->lane[lane];
    if (out->round == 0) return;
    sim_set *set = sim_set_of(s, out->set);
    if (!set) return;
    if (out->closed) {
        sim_set_drop(l->next);
        l->next_round = out->round;
        l->next = set;
        set->refs++;
    }
    if (out->set->n > 0) {
        for (uint32_t i = 0; i < s->n_expert; i++)
            if (s->expert_id[i] != w->id)
                send_set(s, w, SIM_MSG_SET, s->expert_id[i], lane, out->round, set);
        for (size_t i = 0; i < out->open_to->n; i++)
            send_set(s, w, SIM_MSG_OPEN, out->open_to->ids[i], lane, out->round, set);
        begin_round(s, w, lane, out->round, &set->ids);
    }
    sim_set_drop(set);
}

void sim_xprt_on_join(sim *s, sim_worker *w, uint32_t id) {
    sl_seq_out out = {0};
    const sim_msg *m = &s->msg[id];
    uint32_t lane = m->lane;
    sl_status st = sl_seq_join(w->xprt->lane[lane].seq, m->src, &out, s->err);
    if (st != SL_OK) sim_fail(s, st);
    if (st == SL_OK && !out.dropped) apply_sequencer(s, w, lane, &out);
}

/* ---- a message arrives ---- */

static void arrive(sim *s, sim_worker *w, uint32_t id, bool *dropped) {
    const sim_msg *m = &s->msg[id];
    const sl_idset *set = m->with_set ? &s->worker[m->src].attn->lane[m->lane].member.set : NULL;
    sl_status st = sl_barrier_arrive(w->xprt->lane[m->lane].barrier, m->src, m->round, m->layer,
                                     m->chunk, set, dropped, s->err);
    if (st != SL_OK) sim_fail(s, st);
}

static void vote(sim *s, sim_worker *w, uint32_t id) {
    const sim_msg *m = &s->msg[id];
    sl_seq_out out = {0};
    uint32_t lane = m->lane;
    sl_seq *seq = w->xprt->lane[lane].seq;
    if (!seq || !is_last(s, m->layer, m->chunk)) return;
    sl_status st = sl_seq_last(seq, m->src, m->round, m->stay, &out, s->err);
    if (st != SL_OK) sim_fail(s, st);
    if (st == SL_OK && !out.dropped) apply_sequencer(s, w, lane, &out);
}

void sim_xprt_on_dispatch(sim *s, sim_worker *w, uint32_t id) {
    const sim_msg *m = &s->msg[id];
    uint32_t lane = m->lane;
    bool dropped = false, early = sl_barrier_is_early(w->xprt->lane[lane].barrier, m->round);
    pending *p = pending_of(s, w->xprt, lane, index_of(s, m->src), m->chunk);
    if (p->msg != SIM_NONE) {
        sim_fail(s, sl_fail(s->err, SL_ERR_INTERNAL,
                            "simulation: worker %u sent a chunk before its reply", m->src));
        return;
    }
    if (!early) arrive(s, w, id, &dropped);
    if (dropped || s->status != SL_OK) {
        sim_msg_drop(s, id);
        return;
    }
    *p = (pending){.msg = id, .early = early};
    vote(s, w, id);
    pop_ready(s, w, lane);
}

void sim_xprt_on_set(sim *s, sim_worker *w, uint32_t id) {
    const sim_msg *m = &s->msg[id];
    uint32_t lane = m->lane;
    xlane *l = &w->xprt->lane[lane];
    begin_round(s, w, lane, m->round, &m->set->ids);
    for (uint32_t i = 0; i < s->n_attn * s->chunks && s->status == SL_OK; i++) {
        pending *p = &l->from[i];
        if (p->msg == SIM_NONE || !p->early ||
            sl_barrier_is_early(l->barrier, s->msg[p->msg].round))
            continue;
        bool dropped = false;
        p->early = false;
        arrive(s, w, p->msg, &dropped);
    }
    pop_ready(s, w, lane);
}

void sim_xprt_on_dead(sim *s, sim_worker *w, uint32_t member) {
    sim_xprt *x = w->xprt;
    uint32_t at = index_of(s, member);
    for (uint32_t i = 0; i < s->lanes && s->status == SL_OK; i++) {
        xlane *l = &x->lane[i];
        sl_seq_out out = {0};
        sl_status st = l->seq ? sl_seq_dead(l->seq, member, &out, s->err) : SL_OK;
        if (st == SL_OK && l->seq) apply_sequencer(s, w, i, &out);
        for (uint32_t c = 0; c < s->chunks; c++) {
            pending *p = pending_of(s, x, i, at, c);
            if (p->msg != SIM_NONE) sim_msg_drop(s, p->msg);
            p->msg = SIM_NONE;
        }
        if (st == SL_OK) st = sl_barrier_dead(l->barrier, member, s->err);
        if (st != SL_OK) sim_fail(s, st);
        pop_ready(s, w, i);
    }
}

/* ---- a layer runs ---- */

bool sim_xprt_start(sim *s, sim_worker *w) {
    sim_xprt *x = w->xprt;
    if (x->n == 0) return false;
    task *t = &x->running;
    *t = x->queue[x->head];
    x->head = (x->head + 1) % x->cap;
    x->n--;
    x->rows -= t->rows;
    uint32_t rows = 0;
    double us = 0;
    for (uint32_t i = 0; i < t->n_reply; i++) {
        const pending *p = pending_of(s, x, t->lane, t->reply_to[i], t->chunk);
        if (p->msg == SIM_NONE) continue; /* died after the layer became ready */
        const sim_msg *m = &s->msg[p->msg];
        for (uint32_t j = 0; j < m->n_pairs; j++)
            s->expert_rows[m->pair[j].expert] += m->pair[j].rows;
    }
    for (uint32_t i = 0; i < t->n_reply; i++) {
        const pending *p = pending_of(s, x, t->lane, t->reply_to[i], t->chunk);
        const sim_msg *m = p->msg == SIM_NONE ? NULL : &s->msg[p->msg];
        for (uint32_t j = 0; m && j < m->n_pairs; j++) {
            uint32_t *n = &s->expert_rows[m->pair[j].expert];
            if (*n) us += sim_expert_us(s, *n, rows == 0);
            rows += *n;
            *n = 0;
        }
    }
    const sl_stage_cost all = {.fixed_us = us};
    if (rows) sim_kernel_add(s, w, SL_TRACE_EXPERT, &all, rows, 0);
    w->about = (sl_trace_event){.lane = sl_trace_u16(t->lane),
                                .layer = s->m->moe_layer[t->layer],
                                .chunk = sl_trace_u16(t->chunk),
                                .round = (uint32_t)t->round,
                                .queued_us = (uint32_t)(sim_now(s) - t->ready_at)};
    return true;
}

void sim_xprt_finish(sim *s, sim_worker *w) {
    sim_xprt *x = w->xprt;
    task t = x->running;
    x->running = (task){0};
    for (uint32_t i = 0; i < t.n_reply && s->status == SL_OK; i++) {
        pending *p = pending_of(s, x, t.lane, t.reply_to[i], t.chunk);
        if (p->msg == SIM_NONE) continue;
        uint32_t id = sim_msg_take(s, SIM_MSG_RETURN, w->id, s->attn_id[t.reply_to[i]]);
        if (id == SIM_NONE) break;
        const sim_msg *from = &s->msg[p->msg];
        sim_msg *m = &s->msg[id];
        m->lane = t.lane;
        m->layer = t.layer;
        m->chunk = t.chunk;
        m->round = t.round;
        m->rows = s->p->exact ? from->entries : from->rows;
        m->set = t.next;
        if (t.next) t.next->refs++;
        sim_msg_drop(s, p->msg);
        p->msg = SIM_NONE;
        size_t n_set = m->set ? m->set->ids.n : 0;
        sim_msg_send(s, id, m->rows || m->set ? sim_return_bytes(s, m->rows, n_set) : 0);
    }
    sim_set_drop(t.next);
    sl_free(t.reply_to);
}

double sim_xprt_depth(const sim_worker *w) {
    return w->xprt->rows;
}

/* ---- life ---- */

sl_status sim_xprt_create(sim *s, sim_worker *w) {
    sim_xprt *x = sl_alloc(1, sizeof *x);
    if (!x) return sim_oom(s, "an expert worker");
    w->xprt = x;
    x->lane = sl_alloc(s->lanes, sizeof *x->lane);
    if (!x->lane) return sim_oom(s, "lanes");
    sl_status st = SL_OK;
    for (uint32_t i = 0; st == SL_OK && i < s->lanes; i++) {
        xlane *l = &x->lane[i];
        st = sl_barrier_create(s->m->n_moe, s->chunks, s->n_attn, &l->barrier, s->err);
        if (st == SL_OK && s->expert_id[0] == w->id) st = sl_seq_create(s->n_attn, &l->seq, s->err);
        l->from = sl_alloc((size_t)s->n_attn * s->chunks, sizeof *l->from);
        if (st == SL_OK && !l->from) st = sim_oom(s, "a barrier");
        for (uint32_t j = 0; l->from && j < s->n_attn * s->chunks; j++) l->from[j].msg = SIM_NONE;
    }
    return st;
}

static void free_task(task *t) {
    sim_set_drop(t->next);
    sl_free(t->reply_to);
}

void sim_xprt_free(sim *s, sim_worker *w) {
    sim_xprt *x = w->xprt;
    if (!x) return;
    for (uint32_t i = 0; i < x->n; i++) free_task(&x->queue[(x->head + i) % x->cap]);
    free_task(&x->running);
    for (uint32_t i = 0; x->lane && i < s->lanes; i++) {
        sl_barrier_free(x->lane[i].barrier);
        sl_seq_free(x->lane[i].seq);
        sim_set_drop(x->lane[i].next);
        sl_free(x->lane[i].from);
    }
    sl_free(x->lane);
    sl_free(x->queue);
    sl_free(x);
}
