/* Schedule aep at an attention worker: costs and messages of the parts that src/sched/parts.h
 * moves, as src/engine/attn/flow.c has their rows. */
#include "sim/deployment_int.h"

/* Of the part of the slot with the same index. */
typedef struct sim_part {
    double keys, began_at, sent_at;
} sim_part;

struct sim_flow {
    sl_parts parts;
    sim_part *part;       /* [max_slots] */
    uint32_t shared_rows; /* of the batch that has just left: their shared experts are due */
    bool runs_shared;
};

void sim_flow_wake(sim_worker *w, const sl_life *life) {
    sl_parts_wake(&w->attn->flow->parts, sl_slots_index(&w->attn->slots, life));
}

static void enter(sim *s, sim_worker *w) {
    sim_flow *f = w->attn->flow;
    const uint32_t *slot;
    uint32_t n = sl_parts_enter(&f->parts, (uint64_t)sim_now(s), &slot);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t done = w->attn->slots.life[slot[i]].done, rows = f->parts.part[slot[i]].rows;
        f->part[slot[i]] = (sim_part){.keys = sim_attn_keys(s, done, rows), .began_at = sim_now(s)};
    }
}

/* The part is over, as its request gives way. */
static void drop(sim *s, sim_worker *w, uint32_t slot) {
    const sl_parts *p = &w->attn->flow->parts;
    if (sl_parts_comes_back(p, p->part[slot].layer)) {
        s->result.rows_cancelled += p->part[slot].rows;
        s->rows_away -= p->part[slot].rows;
    }
    sim_attn_give_way(s, w, &w->attn->slots.life[slot]);
}

/* ---- a batch ---- */

static void start_block(sim *s, sim_worker *w) {
    const sim_flow *f = w->attn->flow;
    const sl_parts *p = &f->parts;
    double keys = 0;
    for (uint32_t i = 0; i < p->n_batch; i++) keys += f->part[p->batch[i]].keys;
    sim_attention_add(s, w, p->layer, p->n_rows, keys);
    if (s->moe[p->layer])
        sim_stage_add(s, w, SL_TRACE_ROUTER, SL_COST_ROUTER, p->layer, p->n_rows);
    else
        sim_stage_add(s, w, SL_TRACE_DENSE, SL_COST_DENSE, p->layer, p->n_rows);
}

/* In one piece: there is no other lane. */
static void start_head(sim *s, sim_worker *w) {
    sim_flow *f = w->attn->flow;
    sim_lane *l = &w->attn->lane[0];
    sl_parts_head(&f->parts, (uint64_t)sim_now(s), &l->step);
    sim_guess_begin_step(l);
    l->began_at = sim_now(s);
    for (uint32_t i = 0; i < f->parts.n_batch; i++)
        l->began_at = SL_MIN(l->began_at, f->part[f->parts.batch[i]].began_at);
    sl_head_open(&w->attn->head, &l->step);
    if (l->step.samples)
        sim_stage_add(s, w, SL_TRACE_HEAD, SL_COST_HEAD, 0, l->step.samples + l->step.guesses);
}

static void start_shared(sim *s, sim_worker *w) {
    sim_flow *f = w->attn->flow;
    sim_stage_add(s, w, s->m->dense_branch ? SL_TRACE_BRANCH : SL_TRACE_SHARED, SL_COST_SHARED,
                  f->parts.layer, f->shared_rows);
    f->shared_rows = 0;
}

/* Takes batches until one has rows; false: nothing is ready. */
static bool take(sim *s, sim_worker *w) {
    sl_parts *p = &w->attn->flow->parts;
    do {
        enter(s, w);
        if (!sl_parts_take(p)) return false;
        for (uint32_t i = 0; i < p->n_ended; i++) drop(s, w, p->ended[i]);
    } while (p->n_batch == 0);
    if (sl_parts_comes_back(p, p->layer)) {
        s->result.rows_merged += p->n_rows;
        s->rows_away -= p->n_rows;
    }
    return true;
}

bool sim_flow_goes_on(const sim_worker *w) {
    const sim_attn *a = w->attn;
    return a && a->flow && !a->lost && (a->flow->shared_rows > 0 || sim_mtp_runs(a));
}

bool sim_flow_start(sim *s, sim_worker *w) {
    sim_flow *f = w->attn->flow;
    if (w->attn->lost) return false;
    f->runs_shared = f->shared_rows > 0;
    const bool guesses = sim_mtp_runs(w->attn);
    if (!f->runs_shared && !guesses && !take(s, w)) return false;
    w->about =
        (sl_trace_event){.layer = sl_trace_u16(f->parts.layer), .round = (uint32_t)f->parts.wave};
    if (f->runs_shared)
        start_shared(s, w);
    else if (guesses)
        sim_mtp_start(s, w);
    else if (f->parts.layer < s->m->n_layers)
        start_block(s, w);
    else
        start_head(s, w);
    return true;
}

/* ---- dispatch ---- */

static uint32_t message_to(sim *s, sim_worker *w, uint32_t x, uint32_t moe) {
    if (s->to_msg[x] != SIM_NONE) return s->to_msg[x];
    uint32_t id = sim_msg_take(s, SIM_MSG_DISPATCH, w->id, w->side->expert_id[x]);
    if (id == SIM_NONE) return id;
    s->msg[id].layer = moe;
    s->msg[id].round = w->attn->flow->parts.wave;
    s->last_row[x] = SIM_NONE;
    s->to_msg[x] = id;
    return id;
}

/* The rows of one part: their pairs by (worker, expert), one entry each. */
static void route_part(sim *s, sim_worker *w, uint32_t slot, uint32_t moe, uint32_t *row) {
    const sl_parts *parts = &w->attn->flow->parts;
    const sl_part *p = &parts->part[slot];
    uint32_t expert[SL_MAX_TOP_K], E = s->m->n_experts;
    uint32_t request = w->attn->lane[0].request[slot], done = w->attn->slots.life[slot].done;
    for (uint32_t r = 0; r < p->rows; r++, ++*row) {
        uint32_t key = sim_route_row(s, request, done + r, moe, expert);
        for (uint32_t j = 0; j < s->m->top_k; j++) {
            uint32_t x = s->expert_index[sl_plan_host_of(&w->side->plan, moe, expert[j], key)];
            uint32_t id = message_to(s, w, x, moe);
            if (id == SIM_NONE) return;
            s->msg[id].rows += s->last_row[x] != *row;
            s->msg[id].entries++;
            s->last_row[x] = *row;
            sim_route_pair(s, x, expert[j]);
        }
    }
    for (uint32_t i = 0; i < s->n_touched; i++) {
        uint32_t at = s->touched[i], id = sim_entry_take(s);
        if (id == SIM_NONE) return;
        s->entry[id] = (sim_entry){.src = w->id,
                                   .slot = slot,
                                   .generation = p->generation,
                                   .rows = s->cell[at],
                                   .expert = at % E,
                                   .wave = parts->wave};
        sim_msg_add_entry(s, s->to_msg[at / E], id);
        s->cell[at] = 0;
    }
    s->n_touched = 0;
}

static void dispatch(sim *s, sim_worker *w) {
    sim_flow *f = w->attn->flow;
    const sl_parts *p = &f->parts;
    uint32_t row = 0;
    s->result.rows_created += p->n_rows;
    s->rows_away += p->n_rows;
    for (uint32_t x = 0; x < w->side->n_expert; x++) s->to_msg[x] = SIM_NONE;
    for (uint32_t i = 0; i < p->n_batch && s->status == SL_OK; i++) {
        f->part[p->batch[i]].sent_at = sim_now(s);
        route_part(s, w, p->batch[i], s->m->moe_index[p->layer], &row);
    }
    for (uint32_t k = 0; k < w->side->n_expert && s->status == SL_OK; k++) {
        const uint32_t x = sl_order_kth(w->id, w->side->n_expert, k);
        if (s->to_msg[x] != SIM_NONE)
            sim_msg_send(s, s->to_msg[x], sim_dispatch_bytes(s, &s->msg[s->to_msg[x]], 0));
    }
}

void sim_flow_finish(sim *s, sim_worker *w) {
    sim_flow *f = w->attn->flow;
    sl_parts *p = &f->parts;
    if (w->attn->lost || f->runs_shared) return;
    if (p->layer == s->m->n_layers) {
        bool over;
        do over = sim_attn_end_head(s, w, &w->attn->lane[0]);
        while (!over && !sim_mtp_runs(w->attn));
        if (over) sl_parts_over(p);
        return;
    }
    if (s->moe[p->layer]) dispatch(s, w);
    if (sl_parts_leave(p) && s->m->d_ff_shared) f->shared_rows = p->n_rows;
}

/* ---- back ---- */

void sim_flow_on_return(sim *s, sim_worker *w, uint32_t msg) {
    sim_flow *f = w->attn->flow;
    const sim_msg *m = &s->msg[msg];
    uint32_t rows = 0;
    double sent = sim_now(s);
    for (uint32_t id = m->entry; id != SIM_NONE && !w->attn->lost; id = s->entry[id].next) {
        const sim_entry *e = &s->entry[id];
        const sl_part *p = &f->parts.part[e->slot];
        if (p->state != SL_PART_AWAY || p->generation != e->generation || p->missing < e->rows) {
            sim_fail(s, sl_fail(s->err, SL_ERR_INTERNAL,
                                "simulation: rows came back that slot %u does not miss", e->slot));
            break;
        }
        if (sl_parts_back(&f->parts, e->slot, e->rows) == SL_PART_AWAY) continue;
        rows += p->rows;
        sent = SL_MIN(sent, f->part[e->slot].sent_at);
        if (p->state == SL_PART_NONE) drop(s, w, e->slot);
    }
    sl_parts_meet(&f->parts, m->round);
    if (rows)
        sim_note_span(s, w,
                      (sl_trace_event){.kind = SL_TRACE_FLIGHT,
                                       .layer = s->m->moe_layer[m->layer],
                                       .rows = rows},
                      sent);
    sim_msg_drop(s, msg);
}

void sim_flow_reset(sim *s, sim_worker *w) {
    sl_parts *p = &w->attn->flow->parts;
    for (uint32_t i = 0; i < s->max_slots; i++) {
        const sl_part *t = &p->part[i];
        bool returned = t->state == SL_PART_READY && sl_parts_comes_back(p, t->layer);
        if (t->state != SL_PART_AWAY && !returned) continue;
        s->result.rows_lost += t->rows;
        s->rows_away -= t->rows;
    }
    sl_parts_reset(p);
}

double sim_flow_depth(const sim_worker *w) {
    return (double)w->attn->flow->parts.n_ready;
}

/* ---- life ---- */

sl_status sim_flow_create(sim *s, sim_worker *w) {
    const sl_parts_shape shape = {.plan = s->p,
                                  .n_layers = s->m->n_layers,
                                  .moe = s->moe,
                                  .top_k = s->m->top_k,
                                  .max_rows = s->max_rows};
    sim_flow *f = sl_alloc(1, sizeof *f);
    if (!f) return sim_oom(s, "parts");
    w->attn->flow = f;
    f->part = sl_alloc(s->max_slots, sizeof *f->part);
    if (!f->part) return sim_oom(s, "parts");
    sl_status st = sl_parts_create(&w->attn->slots, &shape, &f->parts, s->err);
    f->parts.price.speculate = s->p->speculate;
    w->attn->lane[0].price = &f->parts.price;
    return st;
}

void sim_flow_free(sim_attn *a) {
    sim_flow *f = a->flow;
    if (!f) return;
    sl_parts_free(&f->parts);
    sl_free(f->part);
    sl_free(f);
}
