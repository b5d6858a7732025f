/* The expert side of schedule aep (the rules of src/engine/xqueue.c): a queue a layer and expert.
 */
#include "sim/deployment_int.h"

typedef struct queue {
    uint32_t head, tail; /* entries */
    double came_at;
} queue;

struct sim_queue {
    uint32_t hosted, *expert, *at; /* [hosted] ids; [n_experts] places in it */
    queue *queue;                  /* [n_moe][hosted] */
    sl_queue_state *state;
    uint64_t *total;
    double *ahead;
    uint64_t arrivals, seen, queued;
    /* the running batch */
    uint32_t batch, layer, rows;
};

void sim_queue_on_dispatch(sim *s, sim_worker *w, uint32_t msg) {
    sim_queue *x = w->queue;
    sim_msg *m = &s->msg[msg];
    uint32_t layer = m->layer;
    for (uint32_t id = m->entry, next; id != SIM_NONE; id = next) {
        sim_entry *e = &s->entry[id];
        next = e->next;
        e->next = SIM_NONE;
        size_t i = (size_t)layer * x->hosted + x->at[e->expert];
        sl_queue_state *q = &x->state[i];
        if (q->rows == 0) {
            *q = (sl_queue_state){.head = x->arrivals, .epoch = e->epoch};
            x->queue[i] = (queue){.head = id, .came_at = sim_now(s)};
        } else {
            s->entry[x->queue[i].tail].next = id;
        }
        x->queue[i].tail = id;
        x->arrivals += e->rows;
        q->rows += e->rows;
        q->epoch = SL_MIN(q->epoch, e->epoch);
        x->total[layer] += e->rows;
        x->queued += e->rows;
    }
    x->seen = SL_MAX(x->seen, m->round);
    m->entry = SIM_NONE;
    sim_msg_drop(s, msg);
}

/* All of a queue joins the batch. */
static double drain(sim *s, sim_queue *x, uint32_t layer, uint32_t e, double *oldest) {
    size_t i = (size_t)layer * x->hosted + e;
    uint32_t rows = x->state[i].rows;
    if (rows == 0) return 0;
    double us = sim_expert_us(s, rows, x->rows == 0);
    *oldest = SL_MIN(*oldest, x->queue[i].came_at);
    s->entry[x->queue[i].tail].next = x->batch;
    x->batch = x->queue[i].head;
    x->rows += rows;
    x->state[i].rows = 0;
    x->total[layer] -= rows;
    x->queued -= rows;
    return us;
}

bool sim_queue_start(sim *s, sim_worker *w) {
    sim_queue *x = w->queue;
    uint32_t at;
    const sl_policy_view v = {.policy = s->p->policy,
                              .lookahead = s->p->lookahead,
                              .delta = s->p->delta,
                              .ring = s->m->n_moe,
                              .n = x->hosted,
                              .queue = x->state,
                              .total = x->total,
                              .ahead = x->ahead};
    if (x->queued == 0 || !sl_policy_pick(&v, &at)) return false;
    double us = 0, oldest = sim_now(s);
    x->layer = at / x->hosted;
    x->batch = SIM_NONE;
    x->rows = 0;
    if (x->queued > x->total[x->layer]) {
        us = drain(s, x, x->layer, at % x->hosted, &oldest);
    } else {
        for (uint32_t e = 0; e < x->hosted; e++) us += drain(s, x, x->layer, e, &oldest);
    }
    const sl_stage_cost all = {.fixed_us = us};
    sim_kernel_add(s, w, SL_TRACE_EXPERT, &all, x->rows, 0);
    w->about = (sl_trace_event){.layer = s->m->moe_layer[x->layer],
                                .queued_us = (uint32_t)(sim_now(s) - oldest)};
    return true;
}

/* Rows of a worker's entries go back to it in one message. */
void sim_queue_finish(sim *s, sim_worker *w) {
    sim_queue *x = w->queue;
    for (uint32_t id = x->batch, next; id != SIM_NONE && s->status == SL_OK; id = next) {
        next = s->entry[id].next;
        uint32_t src = s->entry[id].src, to = s->answer[s->worker[src].attn->index];
        if (to == SIM_NONE) {
            to = sim_msg_take(s, SIM_MSG_RETURN, w->id, src);
            if (to == SIM_NONE) return;
            s->answer[s->worker[src].attn->index] = to;
            s->answered[s->n_answered++] = to;
            s->msg[to].layer = x->layer;
            s->msg[to].round = x->seen;
        }
        s->entry[id].next = s->msg[to].entry;
        s->msg[to].entry = id;
        s->msg[to].rows += s->entry[id].rows;
    }
    x->batch = SIM_NONE;
    for (uint32_t i = 0; i < s->n_answered; i++) {
        uint32_t id = s->answered[i];
        s->answer[s->worker[s->msg[id].dst].attn->index] = SIM_NONE;
        sim_msg_send(s, id, sim_return_bytes(s, s->msg[id].rows, 0));
    }
    s->n_answered = 0;
}

void sim_queue_on_dead(sim *s, sim_worker *w, uint32_t member) {
    sim_queue *x = w->queue;
    for (uint32_t i = 0; i < s->m->n_moe * x->hosted; i++) {
        uint32_t *link = &x->queue[i].head, last = SIM_NONE, gone = 0;
        if (x->state[i].rows == 0) continue;
        while (*link != SIM_NONE) {
            uint32_t id = *link;
            if (s->entry[id].src != member) {
                last = id;
                link = &s->entry[id].next;
                continue;
            }
            *link = s->entry[id].next;
            gone += s->entry[id].rows;
            sim_entry_give(s, id);
        }
        x->queue[i].tail = last;
        x->state[i].rows -= gone;
        x->total[i / x->hosted] -= gone;
        x->queued -= gone;
    }
}

double sim_queue_depth(const sim_worker *w) {
    return (double)w->queue->queued;
}

/* ---- life ---- */

sl_status sim_queue_create(sim *s, sim_worker *w) {
    sim_queue *x = sl_alloc(1, sizeof *x);
    if (!x) return sim_oom(s, "an expert worker");
    w->queue = x;
    x->batch = SIM_NONE;
    x->at = sl_alloc(s->m->n_experts, sizeof *x->at);
    x->expert = sl_alloc(s->m->n_experts, sizeof *x->expert);
    if (!s->answer) s->answer = sl_alloc(s->n_attn, sizeof *s->answer);
    if (!s->answered) s->answered = sl_alloc(s->n_attn, sizeof *s->answered);
    if (!x->at || !x->expert || !s->answer || !s->answered) return sim_oom(s, "queues");
    for (uint32_t i = 0; i < s->n_attn; i++) s->answer[i] = SIM_NONE;
    for (uint32_t l = 0; l < s->p->place.n_layers; l++) {
        for (uint32_t e = 0; e < s->m->n_experts; e++)
            if (sl_plan_is_host(s->p, l, e, w->id)) x->at[e] = 1;
    }
    for (uint32_t e = 0; e < s->m->n_experts; e++) {
        bool here = x->at[e] != 0;
        x->at[e] = here ? x->hosted : SIM_NONE;
        if (here) x->expert[x->hosted++] = e;
    }
    size_t n = (size_t)s->m->n_moe * x->hosted;
    x->queue = sl_alloc(n, sizeof *x->queue);
    x->state = sl_alloc(n, sizeof *x->state);
    x->total = sl_alloc(s->m->n_moe, sizeof *x->total);
    x->ahead = sl_alloc(s->m->n_moe, sizeof *x->ahead);
    return x->queue && x->state && x->total && x->ahead ? SL_OK : sim_oom(s, "queues");
}

void sim_queue_free(sim *s, sim_worker *w) {
    sim_queue *x = w->queue;
    (void)s;
    if (!x) return;
    void *const owned[] = {x->expert, x->at, x->queue, x->state, x->total, x->ahead};
    for (size_t i = 0; i < SL_LEN(owned); i++) sl_free(owned[i]);
    sl_free(x);
}
