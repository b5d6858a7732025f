/* The attention side of schedule aep (src/engine/flow.c; who enters: src/sched/intake.h): parts of
 * requests that move through the blocks on their own, batched by block, the policy's pick first. */
#include "sim/deployment_int.h"

#include <string.h>

typedef enum part_state { PART_NONE, PART_READY, PART_AWAY } part_state;

typedef struct part {
    uint8_t state, kind;
    bool sample, listed, goes_on;
    uint32_t next, layer, rows, generation;
    uint32_t missing; /* (row, position) pairs that the experts owe */
    uint32_t beside;  /* prompt rows in flight when it began */
    uint64_t epoch;
    double keys, began_at, sent_at;
} part;

typedef struct list {
    uint32_t head, tail, n;
} list;

struct sim_flow {
    part *part; /* [max_slots] */
    list waiting[SL_PART_KINDS];
    sl_intake in;
    list *ready; /* [n_layers + 1] */
    sl_queue_state *queue;
    uint64_t *total;
    double *ahead;
    uint64_t arrivals, wave, seen;
    uint32_t n_free;
    double depth;
    /* the running batch */
    list batch;
    uint32_t layer, batch_rows;
    uint64_t epoch;
    uint32_t shared_rows; /* of the batch that has just left: their shared experts are due */
    bool runs_shared;
    /* scratch of a dispatch */
    uint32_t *to_msg, *row_mark; /* [n_expert] */
    uint32_t *count;             /* [n_expert][n_experts] */
    uint32_t *touched, n_touched;
};

static void append(sim_flow *f, list *l, uint32_t slot) {
    f->part[slot].next = SIM_NONE;
    if (l->n++ == 0)
        l->head = slot;
    else
        f->part[l->tail].next = slot;
    l->tail = slot;
}

static uint32_t take_first(sim_flow *f, list *l) {
    uint32_t slot = l->head;
    l->head = f->part[slot].next;
    l->n--;
    return slot;
}

static void make_ready(sim_flow *f, uint32_t slot) {
    part *p = &f->part[slot];
    sl_queue_state *q = &f->queue[p->layer];
    if (q->rows == 0) *q = (sl_queue_state){.head = f->arrivals, .epoch = p->epoch};
    f->arrivals++;
    q->epoch = SL_MIN(q->epoch, p->epoch);
    q->rows += p->rows;
    f->total[p->layer] += p->rows;
    f->depth += p->rows;
    p->state = PART_READY;
    append(f, &f->ready[p->layer], slot);
}

/* ---- slots get rows ---- */

static sl_part_kind kind_of(const sl_life *t) {
    return sl_intake_kind(t->done, t->given);
}

void sim_flow_wake(sim_worker *w, uint32_t slot) {
    sim_flow *f = w->attn->flow;
    const sl_life *t = &w->attn->slots.life[slot];
    part *p = &f->part[slot];
    if (p->listed || p->state != PART_NONE || !sl_life_has_work(t)) return;
    p->listed = true;
    append(f, &f->waiting[kind_of(t)], slot);
}

static void begin_part(sim *s, sim_worker *w, sl_part_kind kind, uint32_t rows) {
    sim_flow *f = w->attn->flow;
    uint32_t slot = take_first(f, &f->waiting[kind]);
    part *p = &f->part[slot];
    sl_life *t = &w->attn->slots.life[slot];
    f->n_free -= rows;
    t->in_step = true;
    p->listed = false;
    p->kind = (uint8_t)kind;
    p->layer = 0;
    p->rows = rows;
    p->keys = sim_attn_keys(s, t->done, rows);
    p->sample = t->done + rows >= t->given;
    p->epoch = sl_intake_epoch(p->goes_on && p->generation == t->generation, p->epoch, f->wave);
    p->generation = t->generation;
    p->goes_on = false;
    p->began_at = sim_now(s);
    p->beside = f->in.rows[SL_PART_PROMPT] + f->in.rows[SL_PART_REST];
    f->in.rows[kind] += rows;
    make_ready(f, slot);
}

static const sl_life *peek(sim_worker *w, sl_part_kind kind) {
    sim_flow *f = w->attn->flow;
    list *l = &f->waiting[kind];
    while (l->n > 0) {
        const sl_life *t = &w->attn->slots.life[l->head];
        if (sl_life_has_work(t) && kind_of(t) == kind) return t;
        uint32_t slot = take_first(f, l);
        f->part[slot].listed = f->part[slot].goes_on = false;
        sim_flow_wake(w, slot);
    }
    return NULL;
}

static void admit_prompts(sim *s, sim_worker *w, sl_part_kind kind) {
    sim_flow *f = w->attn->flow;
    const sl_life *t;
    while (f->n_free > 0 && (t = peek(w, kind)) != NULL) {
        uint32_t rows =
            sl_intake_chunk(&f->in, &w->attn->lane[0].step.pacer, kind, t->done, t->given,
                            sl_life_room(t), f->waiting[SL_PART_DECODE].n, f->n_free);
        if (rows == 0) return;
        begin_part(s, w, kind, rows);
    }
}

static void admit(sim *s, sim_worker *w) {
    sim_flow *f = w->attn->flow;
    bool prompt = peek(w, SL_PART_PROMPT) != NULL, rest = peek(w, SL_PART_REST) != NULL;
    uint32_t keep = sl_intake_keep(&f->in, prompt, rest, s->max_rows);
    while (f->n_free > keep && peek(w, SL_PART_DECODE)) begin_part(s, w, SL_PART_DECODE, 1);
    admit_prompts(s, w, SL_PART_PROMPT);
    admit_prompts(s, w, SL_PART_REST);
}

/* ---- a batch ---- */

static void end_part(sim *s, sim_worker *w, uint32_t slot) {
    sim_flow *f = w->attn->flow;
    part *p = &f->part[slot];
    (void)s;
    f->in.rows[p->kind] -= p->rows;
    f->n_free += p->rows;
    p->state = PART_NONE;
    w->attn->slots.life[slot].in_step = false;
}

bool sim_flow_start(sim *s, sim_worker *w) {
    sim_flow *f = w->attn->flow;
    const sl_stage_cost *cost = s->s->attention->stage;
    uint32_t layer;
    if (w->attn->lost) return false;
    f->runs_shared = f->shared_rows > 0;
    if (f->runs_shared) {
        w->about = (sl_trace_event){.layer = sl_trace_u16(f->layer), .round = (uint32_t)f->epoch};
        sim_kernel_add(s, w, s->m->dense_branch ? SL_TRACE_BRANCH : SL_TRACE_SHARED,
                       &cost[SL_COST_SHARED], f->shared_rows, 0);
        f->shared_rows = 0;
        return true;
    }
    admit(s, w);
    const sl_policy_view v = {.policy = s->p->policy,
                              .lookahead = s->p->lookahead,
                              .delta = s->p->delta,
                              .ring = s->m->n_layers + 1u,
                              .n = 1,
                              .queue = f->queue,
                              .total = f->total,
                              .ahead = f->ahead};
    if (!sl_policy_pick(&v, &layer)) return false;
    uint64_t epoch = sl_intake_batch_epoch(f->queue[layer].epoch, f->seen);
    f->layer = layer;
    f->epoch = epoch;
    f->batch = f->ready[layer];
    f->ready[layer] = (list){0};
    f->queue[layer] = (sl_queue_state){0};
    f->total[layer] = 0;
    f->batch_rows = 0;
    double keys = 0;
    uint32_t samples = 0, slot = f->batch.head;
    for (uint32_t i = 0; i < f->batch.n; i++, slot = f->part[slot].next) {
        part *p = &f->part[slot];
        p->epoch = epoch;
        f->batch_rows += p->rows;
        keys += p->keys;
        samples += p->sample;
    }
    f->depth -= f->batch_rows;
    if (layer == 0) f->wave = epoch;
    w->about = (sl_trace_event){.layer = sl_trace_u16(layer), .round = (uint32_t)epoch};
    if (layer == s->m->n_layers) {
        if (samples) sim_kernel_add(s, w, SL_TRACE_HEAD, &cost[SL_COST_HEAD], samples, 0);
        return true;
    }
    sim_kernel_add(s, w, SL_TRACE_ATTENTION, &cost[SL_COST_ATTENTION], f->batch_rows, keys);
    if (!s->moe[layer]) {
        sim_kernel_add(s, w, SL_TRACE_DENSE, &cost[SL_COST_DENSE], f->batch_rows, 0);
        return true;
    }
    sim_kernel_add(s, w, SL_TRACE_ROUTER, &cost[SL_COST_ROUTER], f->batch_rows, 0);
    return true;
}

/* ---- dispatch ---- */

static uint32_t message_to(sim *s, sim_worker *w, uint32_t x, uint32_t moe) {
    sim_flow *f = w->attn->flow;
    if (f->to_msg[x] != SIM_NONE) return f->to_msg[x];
    uint32_t id = sim_msg_take(s, SIM_MSG_DISPATCH, w->id, s->expert_id[x]);
    if (id == SIM_NONE) return id;
    s->msg[id].layer = moe;
    s->msg[id].round = f->epoch;
    f->row_mark[x] = SIM_NONE;
    f->to_msg[x] = id;
    return id;
}

/* The rows of one part: their pairs by (worker, expert), one entry each. */
static void route_part(sim *s, sim_worker *w, uint32_t slot, uint32_t moe, uint32_t *row) {
    sim_flow *f = w->attn->flow;
    const part *p = &f->part[slot];
    uint32_t expert[SL_MAX_TOP_K], E = s->m->n_experts;
    f->n_touched = 0;
    for (uint32_t r = 0; r < p->rows; r++, ++*row) {
        sim_route_draw(s, moe, expert);
        uint32_t key = (uint32_t)sl_rng_next(&s->rng);
        for (uint32_t j = 0; j < s->m->top_k; j++) {
            uint32_t x = s->expert_index[sl_plan_host_of(s->p, moe, expert[j], key)];
            uint32_t id = message_to(s, w, x, moe);
            if (id == SIM_NONE) return;
            s->msg[id].rows += f->row_mark[x] != *row;
            s->msg[id].entries++;
            f->row_mark[x] = *row;
            if (f->count[x * E + expert[j]]++ == 0) f->touched[f->n_touched++] = x * E + expert[j];
        }
    }
    for (uint32_t i = 0; i < f->n_touched; i++) {
        uint32_t at = f->touched[i], id = sim_entry_take(s);
        if (id == SIM_NONE) return;
        s->entry[id] = (sim_entry){.src = w->id,
                                   .slot = slot,
                                   .generation = p->generation,
                                   .rows = f->count[at],
                                   .expert = at % E,
                                   .epoch = f->epoch};
        sim_msg_add_entry(s, f->to_msg[at / E], id);
        f->count[at] = 0;
    }
}

static void dispatch(sim *s, sim_worker *w) {
    sim_flow *f = w->attn->flow;
    uint32_t moe = s->m->moe_index[f->layer], row = 0, slot = f->batch.head;
    s->rows_created += f->batch_rows;
    s->rows_away += f->batch_rows;
    for (uint32_t x = 0; x < s->n_expert; x++) f->to_msg[x] = SIM_NONE;
    for (uint32_t i = 0; i < f->batch.n && s->status == SL_OK; i++, slot = f->part[slot].next) {
        part *p = &f->part[slot];
        p->state = PART_AWAY;
        p->missing = p->rows * s->m->top_k;
        p->sent_at = sim_now(s);
        route_part(s, w, slot, moe, &row);
    }
    for (uint32_t x = 0; x < s->n_expert && s->status == SL_OK; x++)
        if (f->to_msg[x] != SIM_NONE)
            sim_msg_send(s, f->to_msg[x], sim_dispatch_bytes(s, &s->msg[f->to_msg[x]], 0));
}

static void learn(sim *s, sim_worker *w) {
    sim_flow *f = w->attn->flow;
    uint32_t slot = f->batch.head;
    for (uint32_t i = 0; i < f->batch.n; i++, slot = f->part[slot].next) {
        const part *p = &f->part[slot];
        if (p->kind != SL_PART_DECODE) continue;
        sl_pacer_learn(&w->attn->lane[0].step.pacer, 1, p->beside,
                       (uint64_t)(sim_now(s) - p->began_at));
        f->in.hold_rest = false;
        return;
    }
}

static void run_head(sim *s, sim_worker *w) {
    sim_flow *f = w->attn->flow;
    sim_lane *l = &w->attn->lane[0];
    uint32_t slot = f->batch.head;
    double began = sim_now(s);
    learn(s, w);
    l->step.burst = true; /* the pacer has been told */
    for (uint32_t i = 0; i < f->batch.n; i++, slot = f->part[slot].next) {
        part *p = &f->part[slot];
        began = SL_MIN(began, p->began_at);
        sl_step_add(&l->step, &(sl_step_part){.slot = slot,
                                              .rows = p->rows,
                                              .prefill = p->kind != SL_PART_DECODE,
                                              .sample = p->sample});
    }
    l->began_at = began;
    sl_head_open(&w->attn->head, &l->step);
    while (!sim_attn_end_head(s, w, l)) continue;
    slot = f->batch.head;
    for (uint32_t i = 0, next; i < f->batch.n; i++, slot = next) {
        next = f->part[slot].next;
        end_part(s, w, slot);
        f->part[slot].goes_on = true;
        sim_flow_wake(w, slot);
    }
}

void sim_flow_finish(sim *s, sim_worker *w) {
    sim_flow *f = w->attn->flow;
    if (w->attn->lost || f->runs_shared) return;
    if (f->layer == s->m->n_layers) {
        run_head(s, w);
    } else if (s->moe[f->layer]) {
        dispatch(s, w);
        if (s->m->d_ff_shared) f->shared_rows = f->batch_rows;
    } else {
        uint32_t slot = f->batch.head;
        for (uint32_t i = 0, next; i < f->batch.n; i++, slot = next) {
            next = f->part[slot].next;
            f->part[slot].layer++;
            make_ready(f, slot);
        }
    }
}

void sim_flow_on_return(sim *s, sim_worker *w, uint32_t msg) {
    sim_flow *f = w->attn->flow;
    const sim_msg *m = &s->msg[msg];
    uint32_t rows = 0;
    double sent = sim_now(s);
    for (uint32_t id = m->entry; id != SIM_NONE && !w->attn->lost; id = s->entry[id].next) {
        const sim_entry *e = &s->entry[id];
        part *p = &f->part[e->slot];
        if (p->generation != e->generation || p->missing < e->rows) {
            sim_fail(s, sl_fail(s->err, SL_ERR_INTERNAL,
                                "simulation: rows came back that slot %u does not miss", e->slot));
            break;
        }
        p->missing -= e->rows;
        if (p->missing > 0) continue;
        rows += p->rows;
        sent = SL_MIN(sent, p->sent_at);
        s->rows_merged += p->rows;
        s->rows_away -= p->rows;
        p->layer++;
        make_ready(f, e->slot);
    }
    f->seen = SL_MAX(f->seen, m->round);
    if (rows)
        sim_note_span(s, w,
                      (sl_trace_event){.kind = SL_TRACE_FLIGHT,
                                       .layer = s->m->moe_layer[m->layer],
                                       .rows = rows},
                      sent);
    sim_msg_drop(s, msg);
}

void sim_flow_reset(sim *s, sim_worker *w) {
    sim_flow *f = w->attn->flow;
    for (uint32_t i = 0; i < s->max_slots; i++) {
        if (f->part[i].state != PART_AWAY) continue;
        s->rows_lost += f->part[i].rows;
        s->rows_away -= f->part[i].rows;
    }
}

double sim_flow_depth(const sim_flow *f) {
    return f->depth;
}

/* ---- life ---- */

sl_status sim_flow_create(sim *s, sim_worker *w) {
    size_t ring = s->m->n_layers + 1u, cells = (size_t)s->n_expert * s->m->n_experts;
    sim_flow *f = sl_alloc(1, sizeof *f);
    if (!f) return sim_oom(s, "parts");
    w->attn->flow = f;
    f->part = sl_alloc(s->max_slots, sizeof *f->part);
    f->ready = sl_alloc(ring, sizeof *f->ready);
    f->queue = sl_alloc(ring, sizeof *f->queue);
    f->total = sl_alloc(ring, sizeof *f->total);
    f->ahead = sl_alloc(ring, sizeof *f->ahead);
    if (!s->cell) { /* scratch, for all workers */
        s->cell = sl_alloc(cells, sizeof *s->cell);
        s->touched = sl_alloc(cells, sizeof *s->touched);
        s->to_msg = sl_alloc(s->n_expert, sizeof *s->to_msg);
        s->last_row = sl_alloc(s->n_expert, sizeof *s->last_row);
    }
    f->to_msg = s->to_msg;
    f->row_mark = s->last_row;
    f->count = s->cell;
    f->touched = s->touched;
    f->n_free = s->max_rows;
    if (f->part && f->ready && f->queue && f->total && f->ahead && f->to_msg && f->row_mark &&
        f->count && f->touched)
        return SL_OK;
    return sim_oom(s, "parts");
}

void sim_flow_free(sim_attn *a) {
    sim_flow *f = a->flow;
    if (!f) return;
    void *const owned[] = {f->part, f->ready, f->queue, f->total, f->ahead};
    for (size_t i = 0; i < SL_LEN(owned); i++) sl_free(owned[i]);
    sl_free(f);
}
