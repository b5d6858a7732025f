/* What lies in the queues of src/sched/queues.h here: counts of rows, which cost what they cost and
 * travel back in one message to each attention worker. */
#include "sched/queues.h"
#include "sim/deployment_int.h"

#include <stdlib.h>

#define PLACES 64u /* of a worker at first */

struct sim_queue {
    sl_queues *queues;
    uint32_t *entry;       /* [places] ids of entries by place */
    uint32_t batch, layer; /* that runs: a list of entries */
};

static bool grow(sim *s, sim_queue *x) {
    uint32_t places = sl_queues_places(x->queues), more = SL_MAX(2 * places, PLACES);
    uint32_t *bigger = sl_grow(x->entry, places, more, sizeof *bigger);
    if (bigger) x->entry = bigger;
    if (bigger && sl_queues_reserve(x->queues, more, s->err) == SL_OK) return true;
    sim_fail(s, sim_oom(s, "queues"));
    return false;
}

void sim_queue_on_dispatch(sim *s, sim_worker *w, uint32_t msg) {
    sim_queue *x = w->queue;
    sim_msg *m = &s->msg[msg];
    for (uint32_t id = m->entry, next; id != SIM_NONE; id = next) {
        sim_entry *e = &s->entry[id];
        next = e->next;
        if (sl_queues_room(x->queues) == 0 && !grow(s, x)) return;
        uint32_t place = sl_queues_push(x->queues, &(sl_queue_entry){.layer = m->layer,
                                                                     .expert = e->expert,
                                                                     .source = e->src,
                                                                     .rows = e->rows,
                                                                     .wave = e->wave});
        x->entry[place] = id;
        e->came_at = m->came_at;
        m->entry = next;
    }
    sim_msg_drop(s, msg);
}

bool sim_queue_start(sim *s, sim_worker *w) {
    sim_queue *x = w->queue;
    sl_queue_batch b;
    double us = 0;
    if (!sl_queues_take(x->queues, &b)) return false;
    for (uint32_t g = 0; g < b.n_groups; g++)
        us += sim_expert_us(s, w, b.layer, b.expert[g], b.rows[g], g == 0);
    for (uint32_t i = b.n; i-- > 0;) {
        uint32_t id = x->entry[b.place[i]];
        s->entry[id].next = x->batch;
        x->batch = id;
    }
    us += sim_carried_us(s, SL_ROLE_EXPERT, b.n_rows, b.n_rows);
    const sl_stage_cost all = {.fixed_us = us};
    sim_kernel_add(s, w, SL_TRACE_EXPERT, &all, (double)b.n_rows, 0);
    w->about = (sl_trace_event){.layer = s->m->moe_layer[b.layer],
                                .queued_us =
                                    (uint32_t)(sim_now(s) - s->entry[x->entry[b.oldest]].came_at)};
    x->layer = b.layer;
    sl_queues_done(x->queues);
    return true;
}

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Rows of a worker's entries go back to it in one message, in the batch's order; workers are
 * answered in the order of their ids. */
void sim_queue_finish(sim *s, sim_worker *w) {
    sim_queue *x = w->queue;
    for (uint32_t id = x->batch, next; id != SIM_NONE && s->status == SL_OK; id = next) {
        next = s->entry[id].next;
        uint32_t src = s->entry[id].src, at = s->worker[src].attn->index, to = s->answer[at];
        if (to == SIM_NONE) {
            to = sim_msg_take(s, SIM_MSG_RETURN, w->id, src);
            if (to == SIM_NONE) return;
            s->answer[at] = to;
            s->answered[s->n_answered++] = at;
            s->msg[to].layer = x->layer;
            s->msg[to].round = sl_queues_seen(x->queues);
        }
        sim_msg_add_entry(s, to, id);
        s->msg[to].rows += s->entry[id].rows;
    }
    x->batch = SIM_NONE;
    qsort(s->answered, s->n_answered, sizeof *s->answered, by_value);
    for (uint32_t i = 0; i < s->n_answered; i++) {
        uint32_t id = s->answer[s->answered[i]];
        s->answer[s->answered[i]] = SIM_NONE;
        sim_msg_send(s, id, sim_return_bytes(s, s->msg[id].rows, 0));
    }
    s->n_answered = 0;
}

void sim_queue_on_dead(sim *s, sim_worker *w, uint32_t member) {
    const uint32_t *place;
    uint32_t n = sl_queues_drop(w->queue->queues, member, &place);
    for (uint32_t i = 0; i < n; i++) sim_entry_give(s, w->queue->entry[place[i]]);
}

double sim_queue_depth(const sim_worker *w) {
    return (double)sl_queues_rows(w->queue->queues);
}

/* ---- life ---- */

sl_status sim_queue_create(sim *s, sim_worker *w) {
    sim_queue *x = sl_alloc(1, sizeof *x);
    if (!x) return sim_oom(s, "an expert worker");
    w->queue = x;
    x->batch = SIM_NONE;
    sl_status st = sl_queues_create(s->p, s->m->n_moe, w->id, 0, &x->queues, s->err);
    if (st == SL_OK) sl_queues_watch(x->queues, sim_watch(s, w->id));
    return st;
}

void sim_queue_free(sim_worker *w) {
    if (!w->queue) return;
    sl_queues_free(w->queue->queues);
    sl_free(w->queue->entry);
    sl_free(w->queue);
}
