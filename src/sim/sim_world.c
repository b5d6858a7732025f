/* What all parts of a simulated deployment stand on: messages, entries of aep, sets of members,
 * kernels of a task, the trace. Calls none of them. */
#include "sim/deployment_int.h"

#include "spec/rank_cost.h"

#include <math.h>

#define TRACE_ORIGIN 1000 /* ns */

void sim_fail(sim *s, sl_status st) {
    if (s->status == SL_OK) s->status = st;
}

sl_status sim_oom(sim *s, const char *what) {
    return sl_fail(s->err, SL_ERR_NOMEM, "simulation: no memory for %s", what);
}

void sim_touch(sim *s, sim_worker *w) {
    if (w->dirty) return;
    w->dirty = true;
    s->dirty[s->n_dirty++] = w->id;
}

void sim_touch_coord(sim *s) {
    if (s->coord_dirty) return;
    s->coord_dirty = true;
    s->dirty[s->n_dirty++] = s->n_workers;
}

void sim_inbox_push(sim *s, sim_inbox *b, sim_item item) {
    if (b->n == b->cap) {
        uint32_t cap = SL_MAX(2 * b->cap, 16u);
        sim_item *bigger = sl_alloc(cap, sizeof *bigger);
        if (!bigger) {
            sim_fail(s, sim_oom(s, "messages"));
            return;
        }
        for (uint32_t i = 0; i < b->n; i++) bigger[i] = b->item[(b->head + i) % b->cap];
        sl_free(b->item);
        *b = (sim_inbox){.item = bigger, .n = b->n, .cap = cap};
    }
    b->item[(b->head + b->n++) % b->cap] = item;
}

bool sim_inbox_pop(sim_inbox *b, sim_item *out) {
    if (b->n == 0) return false;
    *out = b->item[b->head];
    b->head = (b->head + 1) % b->cap;
    b->n--;
    return true;
}

double sim_uniform(uint64_t *rng) {
    return (double)((sl_rng_next(rng) >> 11) + 1) * 0x1p-53; /* (0, 1] */
}

/* ---- messages ---- */

static size_t align_up(size_t at, size_t to) {
    return (at + to - 1) / to * to;
}

/* The wire's layouts (docs/protocol.md). */
size_t sim_dispatch_bytes(const sim *s, const sim_msg *m, size_t n_set) {
    size_t at = m->old ? 16 : 8, entries = 4 * (size_t)m->entries;
    at = align_up(at, 8) + 4 * n_set;
    at = align_up(at, 8) + 8 * (size_t)m->rows;
    at = align_up(at, 8) + 4 * ((size_t)m->rows + 1);
    for (int i = 0; i < 3; i++) at = align_up(at, 8) + entries;
    if (m->old) at = align_up(at, 8) + 4 * (size_t)m->old;
    return align_up(at, 64) + (size_t)(m->rows - m->old) * s->s->row_bytes;
}

size_t sim_return_bytes(const sim *s, uint32_t rows, size_t n_set) {
    size_t at = align_up(8 + 4 * n_set, 8) + 16 * (size_t)rows;
    const size_t times = s->p->resolve && rows ? SL_WIRE_TIMES_BYTES : 0;
    return align_up(at, 64) + (size_t)rows * s->s->row_bytes + times;
}

uint32_t sim_msg_take(sim *s, sim_msg_kind kind, uint32_t src, uint32_t dst) {
    uint32_t id = s->free_msg;
    if (id != SIM_NONE) {
        s->free_msg = s->msg[id].next;
    } else {
        if (s->n_msgs == s->cap_msgs) {
            uint32_t cap = SL_MAX(2 * s->cap_msgs, 1024u);
            sim_msg *bigger = sl_grow(s->msg, s->cap_msgs, cap, sizeof *bigger);
            if (!bigger) {
                sim_fail(s, sim_oom(s, "messages"));
                return SIM_NONE;
            }
            s->msg = bigger;
            s->cap_msgs = cap;
        }
        id = s->n_msgs++;
    }
    sim_msg *m = &s->msg[id];
    sim_pair *pair = m->pair;
    uint32_t cap = m->cap_pairs;
    *m = (sim_msg){.kind = (uint8_t)kind,
                   .src = src,
                   .dst = dst,
                   .entry = SIM_NONE,
                   .behind = SIM_NONE,
                   .pair = pair,
                   .cap_pairs = cap};
    return id;
}

void sim_msg_drop(sim *s, uint32_t id) {
    sim_msg *m = &s->msg[id];
    sim_set_drop(m->set);
    m->set = NULL;
    if (m->entry != SIM_NONE) sim_entries_give(s, m->entry);
    m->entry = SIM_NONE;
    m->next = s->free_msg;
    s->free_msg = id;
}

void sim_msg_add_pair(sim *s, uint32_t id, uint32_t expert, uint32_t rows) {
    sim_msg *m = &s->msg[id];
    if (m->n_pairs == m->cap_pairs) {
        uint32_t cap = SL_MAX(2 * m->cap_pairs, 4u);
        sim_pair *bigger = sl_grow(m->pair, m->cap_pairs, cap, sizeof *bigger);
        if (!bigger) {
            sim_fail(s, sim_oom(s, "a message"));
            return;
        }
        m->pair = bigger;
        m->cap_pairs = cap;
    }
    m->pair[m->n_pairs++] = (sim_pair){expert, rows};
}

void sim_msg_add_entry(sim *s, uint32_t id, uint32_t entry) {
    sim_msg *m = &s->msg[id];
    s->entry[entry].next = SIM_NONE;
    if (m->entry == SIM_NONE)
        m->entry = entry;
    else
        s->entry[m->last_entry].next = entry;
    m->last_entry = entry;
}

sl_trace_event sim_msg_event(const sim *s, const sim_msg *m, sl_trace_kind kind, uint32_t peer) {
    bool rows = m->kind <= SIM_MSG_RETURN;
    return (sl_trace_event){.kind = (uint8_t)kind,
                            .why = m->kind,
                            .peer = sl_trace_u16(peer),
                            .round = (uint32_t)m->round,
                            .lane = sl_trace_u16(m->lane),
                            .layer = rows ? s->m->moe_layer[m->layer] : 0,
                            .chunk = sl_trace_u16(m->chunk),
                            .rows = m->rows,
                            .bytes = m->bytes};
}

static uint64_t ns_of(double us) {
    return TRACE_ORIGIN + (uint64_t)(us * 1000 + 0.5);
}

void sim_note(sim_worker *w, sl_trace_event e, double begin, double end) {
    if (!w->trace) return;
    e.begin_ns = ns_of(begin);
    e.end_ns = ns_of(end);
    sl_trace_add(w->trace, &e);
}

void sim_note_span(sim *s, sim_worker *w, sl_trace_event e, double begin_us) {
    sim_note(w, e, begin_us, sim_now(s));
}

bool sim_msg_is_void(const sim *s, const sim_msg *m) {
    return s->worker[m->dst].dead || s->worker[m->src].dead;
}

/* ---- entries of aep, sets ---- */

uint32_t sim_entry_take(sim *s) {
    uint32_t id = s->free_entry;
    if (id != SIM_NONE) {
        s->free_entry = s->entry[id].next;
        return id;
    }
    if (s->n_entries == s->cap_entries) {
        uint32_t cap = SL_MAX(2 * s->cap_entries, 4096u);
        sim_entry *bigger = sl_grow(s->entry, s->cap_entries, cap, sizeof *bigger);
        if (!bigger) {
            sim_fail(s, sim_oom(s, "rows in flight"));
            return SIM_NONE;
        }
        s->entry = bigger;
        s->cap_entries = cap;
    }
    return s->n_entries++;
}

void sim_entry_give(sim *s, uint32_t id) {
    s->entry[id].next = s->free_entry;
    s->free_entry = id;
}

void sim_entries_give(sim *s, uint32_t list) {
    while (list != SIM_NONE) {
        uint32_t next = s->entry[list].next;
        sim_entry_give(s, list);
        list = next;
    }
}

sim_set *sim_set_of(sim *s, const sl_idset *ids) {
    sim_set *set = sl_alloc(1, sizeof *set);
    sl_err err;
    if (set && sl_idset_copy(ids, &set->ids, &err) == SL_OK) {
        set->refs = 1;
        return set;
    }
    sl_free(set);
    sim_fail(s, sim_oom(s, "a set of members"));
    return NULL;
}

void sim_set_drop(sim_set *set) {
    if (!set || --set->refs > 0) return;
    sl_idset_free(&set->ids);
    sl_free(set);
}

/* ---- kernels ---- */

static double normal(uint64_t *rng) {
    double u = sim_uniform(rng), v = sim_uniform(rng);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Share that a busy neighbour adds to a stage. */
static double slow_of(const sim *s, sl_trace_kind trace) {
    static const uint8_t cost[SL_TRACE_KIND_COUNT] = {
        [SL_TRACE_ATTENTION] = SL_COST_ATTENTION, [SL_TRACE_ROUTER] = SL_COST_ROUTER,
        [SL_TRACE_DENSE] = SL_COST_DENSE,         [SL_TRACE_SHARED] = SL_COST_SHARED,
        [SL_TRACE_EXPERT] = SL_COST_EXPERT,       [SL_TRACE_HEAD] = SL_COST_HEAD};
    const sl_costs *c = trace == SL_TRACE_EXPERT ? s->s->expert : s->s->attention;
    return SL_MAX(c->beside[cost[trace]] - 1, 0.0);
}

double sim_carried_us(const sim *s, uint32_t role, double rows, double back) {
    const uint32_t ranks = sl_plan_ranks(s->p, role), beside = ranks - 1;
    const sl_link_cost *link = &s->s->rank_link;
    const double bytes = (double)s->m->d_model * sizeof(float);
    const bool inside = s->n_workers == 1; /* rows stay at the ranks */
    if (!s->s->ranks_apart || sl_plan_rails(s->p) > 1 || inside) return 0;
    return sl_carried_us(link, beside, rows, bytes) +
           sl_carried_us(link, beside, back, bytes / ranks);
}

void sim_kernel_add(sim *s, sim_worker *w, sl_trace_kind trace, const sl_stage_cost *c, double rows,
                    double keys) {
    double us = sl_stage_cost_us(c, rows, keys) * s->scale;
    if (us <= 0) return;
    if (s->sigma > 0) us *= exp(s->sigma * normal(&s->rng) - s->sigma * s->sigma / 2);
    SL_ASSERT(w->n_kernels < SIM_MAX_PARTS);
    w->kernel[w->n_kernels++] = (sim_kernel){
        .kind = (uint8_t)trace, .rows = (uint32_t)rows, .us = us, .slow = slow_of(s, trace)};
}
