/* What lies at the places of src/sched/rounds.h here: messages of counts. What is ready costs what
 * its rows cost, and every member gets a reply. */
#include "sched/rounds.h"
#include "sim/deployment_int.h"

#include <inttypes.h>

struct sim_expert {
    sim *s;
    sim_worker *w;
    sl_rounds *rounds;
    uint32_t *msg; /* by place; SIM_NONE: none */
    sl_round_task task;
    uint64_t began_us; /* the running task, */
    sim_set *next;     /* who is next after it */
};

/* ---- what rounds ask for ---- */

static void tell_set(void *ctx, bool open, const sl_idset *to, uint32_t lane, uint64_t round,
                     const sl_idset *ids) {
    const sim_expert *x = ctx;
    sim_set *set = sim_set_of(x->s, ids);
    for (size_t i = 0; set && i < to->n; i++) {
        uint32_t id = sim_msg_take(x->s, open ? SIM_MSG_OPEN : SIM_MSG_SET, x->w->id, to->ids[i]);
        if (id == SIM_NONE) break;
        sim_msg *m = &x->s->msg[id];
        m->lane = lane;
        m->round = round;
        m->set = set;
        set->refs++;
        sim_msg_send(x->s, id, 8 + 4 * set->ids.n);
    }
    sim_set_drop(set);
}

/* Everybody notices a death here: deployment.c. */
static void tell_dead(void *ctx, uint32_t to, uint32_t member) {
    (void)ctx, (void)to, (void)member;
}

static void refuse(void *ctx, uint32_t member, const char *why) {
    const sim_expert *x = ctx;
    sim_fail(x->s, sl_fail(x->s->err, SL_ERR_INTERNAL, "simulation: worker %" PRIu32 ": %s", member,
                           why));
}

static sl_round_msg round_msg(const sim *s, uint32_t id) {
    const sim_msg *m = &s->msg[id];
    return (sl_round_msg){.member = m->src,
                          .lane = m->lane,
                          .layer = m->layer,
                          .chunk = m->chunk,
                          .round = m->round,
                          .rows = m->entries,
                          .ends = m->ends,
                          .stay = m->stay,
                          .with_set = m->with_set,
                          .set = s->worker[m->src].attn->lane[m->lane].member.set};
}

static void recall(void *ctx, uint32_t place, sl_round_msg *out) {
    const sim_expert *x = ctx;
    *out = round_msg(x->s, x->msg[place]);
}

static void drop(void *ctx, uint32_t place, bool answered) {
    sim_expert *x = ctx;
    (void)answered;
    sim_msg_drop(x->s, x->msg[place]);
    x->msg[place] = SIM_NONE;
}

/* ---- events ---- */

void sim_expert_on_join(sim *s, sim_worker *w, uint32_t id) {
    const sim_msg *m = &s->msg[id];
    sl_status st = sl_rounds_on_join(w->expert->rounds, m->src, m->lane, s->err);
    if (st != SL_OK) sim_fail(s, st);
}

void sim_expert_on_set(sim *s, sim_worker *w, uint32_t id) {
    const sim_msg *m = &s->msg[id];
    sl_status st = sl_rounds_on_set(w->expert->rounds, m->lane, m->round, &m->set->ids, s->err);
    if (st != SL_OK) sim_fail(s, st);
}

void sim_expert_on_dispatch(sim *s, sim_worker *w, uint32_t id) {
    const sl_round_msg m = round_msg(s, id);
    uint32_t place;
    sl_status st = sl_rounds_on_dispatch(w->expert->rounds, &m, &place, s->err);
    if (st != SL_OK) sim_fail(s, st);
    if (st == SL_OK && place != SL_ROUNDS_NONE)
        w->expert->msg[place] = id;
    else
        sim_msg_drop(s, id);
}

void sim_expert_on_dead(sim *s, sim_worker *w, uint32_t member) {
    sl_status st = sl_rounds_on_dead(w->expert->rounds, member, s->err);
    if (st != SL_OK) sim_fail(s, st);
}

/* ---- a layer runs ---- */

/* Rows of all members by expert into sim.expert_rows; when the first of them came. */
static double count_rows(sim *s, const sim_expert *x) {
    double oldest = sim_now(s);
    for (uint32_t i = 0; i < x->task.n; i++) {
        const sim_msg *m = &s->msg[x->msg[x->task.place[i]]];
        for (uint32_t j = 0; j < m->n_pairs; j++)
            s->expert_rows[m->pair[j].expert] += m->pair[j].rows;
        if (m->rows) oldest = SL_MIN(oldest, m->came_at);
    }
    return oldest;
}

bool sim_expert_start(sim *s, sim_worker *w) {
    sim_expert *x = w->expert;
    const sl_round_task *t = &x->task;
    uint32_t rows = 0, came = 0, back = 0;
    double us = 0;
    if (!sl_rounds_begin(x->rounds, &x->task)) return false;
    x->began_us = (uint64_t)sim_now(s);
    if (t->next) x->next = sim_set_of(s, t->next);
    double oldest = count_rows(s, x);
    for (uint32_t i = 0; i < t->n; i++) {
        const sim_msg *m = &s->msg[x->msg[t->place[i]]];
        came += m->rows;
        back += s->p->exact ? m->entries : m->rows;
        for (uint32_t j = 0; j < m->n_pairs; j++) {
            uint32_t *n = &s->expert_rows[m->pair[j].expert];
            if (*n) us += sim_expert_us(s, w, t->layer, m->pair[j].expert, *n, rows == 0);
            rows += *n;
            *n = 0;
        }
    }
    us += sim_carried_us(s, SL_ROLE_EXPERT, came, back);
    const sl_stage_cost all = {.fixed_us = us};
    if (rows) sim_kernel_add(s, w, SL_TRACE_EXPERT, &all, rows, 0);
    w->about = (sl_trace_event){.lane = sl_trace_u16(t->lane),
                                .layer = s->m->moe_layer[t->layer],
                                .chunk = sl_trace_u16(t->chunk),
                                .round = (uint32_t)t->round,
                                .queued_us = (uint32_t)(sim_now(s) - oldest)};
    return true;
}

void sim_expert_finish(sim *s, sim_worker *w) {
    sim_expert *x = w->expert;
    const sl_round_task *t = &x->task;
    for (uint32_t k = 0; k < t->n && s->status == SL_OK; k++) {
        const uint32_t i = sl_order_kth(w->id, t->n, k);
        uint32_t at = x->msg[t->place[i]];
        if (!sl_rounds_is_owed(x->rounds, t->place[i])) continue; /* its member died */
        uint32_t id = sim_msg_take(s, SIM_MSG_RETURN, w->id, t->member[i]);
        if (id == SIM_NONE) break;
        const sim_msg *from = &s->msg[at];
        sim_msg *m = &s->msg[id];
        m->lane = t->lane;
        m->layer = t->layer;
        m->chunk = t->chunk;
        m->round = t->round;
        m->rows = s->p->exact ? from->entries : from->rows;
        m->task_us = (uint32_t)((uint64_t)sim_now(s) - x->began_us);
        m->held_us = (uint32_t)((uint64_t)sim_now(s) - (uint64_t)from->came_at);
        m->set = x->next;
        if (x->next) x->next->refs++;
        if (x->next && w->attn) m->groups = sl_resolve_word(&w->attn->resolve);
        size_t n_set = m->set ? m->set->ids.n : 0;
        sim_msg_send(s, id, m->rows || m->set ? sim_return_bytes(s, m->rows, n_set) : 0);
    }
    sl_rounds_end(x->rounds);
    sim_set_drop(x->next);
    x->next = NULL;
}

double sim_expert_depth(const sim_worker *w) {
    return (double)sl_rounds_rows(w->expert->rounds);
}

/* ---- life ---- */

sl_status sim_expert_create(sim *s, sim_worker *w) {
    sim_expert *x = sl_alloc(1, sizeof *x);
    if (!x) return sim_oom(s, "an expert worker");
    w->expert = x;
    x->s = s;
    x->w = w;
    const sl_rounds_shape shape = {.n_lanes = s->lanes,
                                   .n_moe = s->m->n_moe,
                                   .chunks = s->chunks,
                                   .self = w->id,
                                   .epoch = s->p->epoch,
                                   .members = &w->side->members,
                                   .experts = &w->side->experts,
                                   .ops = {tell_set, tell_dead, refuse, recall, drop},
                                   .ctx = x,
                                   .watch = sim_watch(s, w->id)};
    sl_status st = sl_rounds_create(&shape, &x->rounds, s->err);
    if (st != SL_OK) return st;
    x->msg = sl_alloc(sl_rounds_places(x->rounds), sizeof *x->msg);
    if (!x->msg) return sim_oom(s, "messages of rounds");
    for (uint32_t i = 0; i < sl_rounds_places(x->rounds); i++) x->msg[i] = SIM_NONE;
    return SL_OK;
}

void sim_expert_free(sim_worker *w) {
    if (!w->expert) return;
    sl_rounds_free(w->expert->rounds);
    sim_set_drop(w->expert->next);
    sl_free(w->expert->msg);
    sl_free(w->expert);
}
