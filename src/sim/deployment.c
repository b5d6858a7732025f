/* A deployment in virtual time: workers, messages between them, their tasks, the loop. */
#include "sim/deployment_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WIRE_HEADER  72u  /* bytes of a message's header */
#define BETWEEN_US   1e5  /* a worker that ran something so recently waits; else it is idle */
#define TRACE_ORIGIN 1000 /* ns */
#define LATE_US      0.01 /* of a task: not worth another event */

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
    return align_up(at, 64) + (size_t)rows * s->s->row_bytes;
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

static sl_trace_event event_of(const sim *s, const sim_msg *m, sl_trace_kind kind, uint32_t peer) {
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

static void add_event(sim_worker *w, sl_trace_event e, double begin, double end) {
    if (!w->trace) return;
    e.begin_ns = ns_of(begin);
    e.end_ns = ns_of(end);
    sl_trace_add(w->trace, &e);
}

void sim_note_span(sim *s, sim_worker *w, sl_trace_event e, double begin_us) {
    add_event(w, e, begin_us, sim_now(s));
}

static const sl_link_cost *link_of(const sim *s, const sim_worker *w) {
    return w->roles & SL_ROLE_ATTENTION ? &s->s->attention->link : &s->s->expert->link;
}

/* A worker's own time for a message, which a measured alpha has at both ends. */
static double work_of(const sim *s, const sl_link_cost *c) {
    return s->s->message_us > 0 ? s->s->message_us : c->work_us;
}

static double travels(const sim *s, const sl_link_cost *c) {
    return s->s->message_us > 0 ? c->alpha_us : SL_MAX(c->alpha_us - 2 * c->work_us, 0.0);
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
    const sl_link_cost *c = link_of(s, w);
    double there = sl_sim_leave(&w->out, now, c, travels(s, c), m->bytes);
    s->messages++;
    s->message_bytes += m->bytes;
    w->owed_us += work_of(s, c);
    add_event(w, event_of(s, m, SL_TRACE_SEND, m->dst), now, now);
    sl_sim_events_push(&s->ev, there, SIM_HEAD, m->dst, id);
}

/* The first byte is at the receiver's in-port. */
static void on_head(sim *s, uint32_t id) {
    const sim_msg *m = &s->msg[id];
    sim_worker *w = &s->worker[m->dst];
    double end = sl_sim_come(s->half ? &w->out : &w->in, sim_now(s), link_of(s, &s->worker[m->src]),
                             link_of(s, w), m->bytes);
    sl_sim_events_push(&s->ev, end, SIM_DELIVER, m->dst, id);
}

static bool is_void(const sim *s, const sim_msg *m) {
    return s->worker[m->dst].dead || s->worker[m->src].dead;
}

static void deliver(sim *s, uint32_t id) {
    sim_msg *m = &s->msg[id];
    sim_worker *w = &s->worker[m->dst];
    if (is_void(s, m)) {
        sim_msg_drop(s, id);
        return;
    }
    m->came_at = sim_now(s);
    w->owed_us += work_of(s, link_of(s, w));
    add_event(w, event_of(s, m, SL_TRACE_RECV, m->src), sim_now(s), sim_now(s));
    sim_inbox_push(s, &w->inbox, (sim_item){.kind = SIM_DELIVER, .what = id});
    sim_touch(s, w);
}

/* The worker takes it up. */
static void handle_message(sim *s, sim_worker *w, uint32_t id) {
    const sim_msg *m = &s->msg[id];
    if (is_void(s, m)) {
        sim_msg_drop(s, id);
        return;
    }
    switch (m->kind) {
    case SIM_MSG_DISPATCH:
        if (s->aep)
            sim_queue_on_dispatch(s, w, id);
        else
            sim_xprt_on_dispatch(s, w, id);
        return;
    case SIM_MSG_RETURN:
        if (s->aep)
            sim_flow_on_return(s, w, id);
        else
            sim_attn_on_return(s, w, id);
        return;
    case SIM_MSG_JOIN:
        sim_xprt_on_join(s, w, id);
        break;
    case SIM_MSG_SET:
        sim_xprt_on_set(s, w, id);
        break;
    default:
        sim_attn_on_open(s, w, id);
    }
    sim_msg_drop(s, id);
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

/* ---- tasks ---- */

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

void sim_kernel_add(sim *s, sim_worker *w, sl_trace_kind trace, const sl_stage_cost *c, double rows,
                    double keys) {
    double us = sl_stage_cost_us(c, rows, keys) * s->scale;
    if (us <= 0) return;
    if (s->sigma > 0) us *= exp(s->sigma * normal(&s->rng) - s->sigma * s->sigma / 2);
    SL_ASSERT(w->n_kernels < SIM_MAX_PARTS);
    w->kernel[w->n_kernels++] = (sim_kernel){
        .kind = (uint8_t)trace, .rows = (uint32_t)rows, .us = us, .slow = slow_of(s, trace)};
}

/* Rows for its experts that it has not taken up. */
static double inbox_rows(const sim *s, const sim_worker *w) {
    double rows = 0;
    for (uint32_t i = 0; i < w->inbox.n; i++) {
        const sim_item *it = &w->inbox.item[(w->inbox.head + i) % w->inbox.cap];
        if (it->kind == SIM_DELIVER && s->msg[it->what].kind == SIM_MSG_DISPATCH)
            rows += s->msg[it->what].entries;
    }
    return rows;
}

static double depth_of(const sim *s, const sim_worker *w) {
    double depth = inbox_rows(s, w);
    if (w->attn) depth += s->aep ? sim_flow_depth(w) : sim_attn_depth(s, w);
    if (w->xprt) depth += sim_xprt_depth(w);
    if (w->queue) depth += sim_queue_depth(w);
    return depth;
}

static void book_depth(sim *s, sim_worker *w) {
    double now = sim_now(s);
    if (sim_counts(s)) w->depth_area += w->depth * (now - SL_MAX(w->depth_since, s->from_us));
    w->depth = depth_of(s, w);
    w->depth_since = now;
    if (sim_counts(s)) w->depth_max = SL_MAX(w->depth_max, w->depth);
}

/* What came since the last task. */
static void drain_inbox(sim *s, sim_worker *w) {
    sim_item it;
    while (s->status == SL_OK && sim_inbox_pop(&w->inbox, &it)) {
        if (it.kind == SIM_DELIVER)
            handle_message(s, w, it.what);
        else
            sim_attn_on_control(s, w, (sim_event_kind)it.kind, it.what);
    }
}

/* Experts first: others wait for them. */
static bool start_task(sim *s, sim_worker *w) {
    bool goes_on = sim_flow_goes_on(w);
    w->n_kernels = 0;
    w->about = (sl_trace_event){0};
    if (!goes_on) drain_inbox(s, w);
    if (w->xprt && sim_xprt_start(s, w)) w->running = SIM_RUN_EXPERT;
    if (w->queue && !goes_on && sim_queue_start(s, w)) w->running = SIM_RUN_QUEUE;
    if (w->running == SIM_REST && w->attn && s->aep && sim_flow_start(s, w))
        w->running = SIM_RUN_FLOW;
    if (w->running == SIM_REST && w->attn && !s->aep && sim_attn_start(s, w))
        w->running = SIM_RUN_TURN;
    return w->running != SIM_REST;
}

static void note_rest(sim *s, sim_worker *w) {
    double now = sim_now(s);
    if (now <= w->rest_since || !w->trace) return;
    bool waits = now - w->rest_since < BETWEEN_US && w->tasks > 0;
    uint8_t why = w->attn ? SL_TRACE_WHY_EXPERTS : SL_TRACE_WHY_DISPATCH;
    add_event(
        w, (sl_trace_event){.kind = waits ? SL_TRACE_WAIT : SL_TRACE_IDLE, .why = waits ? why : 0},
        w->rest_since, now);
}

/* ---- neighbours in the same memory ---- */

static void count_busy(sim *s, int change) {
    s->busy_area += s->n_busy * (sim_now(s) - s->busy_at);
    s->busy_at = sim_now(s);
    s->n_busy += (uint32_t)change;
}

static void begin_busy(sim *s, sim_worker *w, double us) {
    double slow = 0;
    for (uint32_t i = 0; i < w->n_kernels; i++) slow += w->kernel[i].slow * w->kernel[i].us;
    count_busy(s, 1);
    w->slow = slow / us;
    w->late_us = 0;
    w->looked_at = sim_now(s);
    w->area_at = s->busy_area;
}

/* What others computed since the last look makes the task longer; false: it is over. */
static bool is_late(sim *s, sim_worker *w) {
    if (w->slow <= 0) return false;
    count_busy(s, 0);
    double passed = sim_now(s) - w->looked_at;
    double others = passed > 0 ? (s->busy_area - w->area_at) / passed - 1 : 0; /* on average */
    double more = passed * (1 - 1 / (1 + w->slow * SL_MAX(others, 0.0)));
    w->looked_at = sim_now(s);
    w->area_at = s->busy_area;
    if (more < LATE_US) return false;
    w->late_us += more;
    sl_sim_events_push(&s->ev, sim_now(s) + more, SIM_TASK, w->id, 0);
    return true;
}

static void finish_task(sim *s, sim_worker *w) {
    sim_running ran = w->running;
    double at = w->began_at, own = 0;
    for (uint32_t i = 0; i < w->n_kernels; i++) own += w->kernel[i].us;
    for (uint32_t i = 0; i < w->n_kernels; i++) {
        sl_trace_event e = w->about;
        double us = w->kernel[i].us * (1 + w->late_us / own);
        e.kind = w->kernel[i].kind;
        e.rows = w->kernel[i].rows;
        add_event(w, e, at, at + us);
        at += us;
        w->rows += w->kernel[i].rows;
    }
    w->busy_us += sim_now(s) - w->began_at;
    w->tasks += w->n_kernels > 0;
    w->running = SIM_REST;
    w->rest_since = sim_now(s);
    switch (ran) {
    case SIM_RUN_TURN:
        sim_attn_finish(s, w);
        break;
    case SIM_RUN_EXPERT:
        sim_xprt_finish(s, w);
        break;
    case SIM_RUN_FLOW:
        sim_flow_finish(s, w);
        break;
    default:
        sim_queue_finish(s, w);
    }
}

/* The worker takes tasks until one lasts. */
static void kick(sim *s, sim_worker *w) {
    while (s->status == SL_OK && !w->dead && w->running == SIM_REST && start_task(s, w)) {
        double us = w->n_kernels ? w->owed_us : 0;
        for (uint32_t i = 0; i < w->n_kernels; i++) us += w->kernel[i].us;
        w->began_at = sim_now(s);
        if (us > 0) {
            note_rest(s, w);
            if (w->owed_us > 0) { /* before the first kernel */
                add_event(w, (sl_trace_event){.kind = SL_TRACE_PACK}, sim_now(s),
                          sim_now(s) + w->owed_us);
                w->busy_us += w->owed_us;
                w->began_at += w->owed_us;
                w->owed_us = 0;
            }
            begin_busy(s, w, us);
            sl_sim_events_push(&s->ev, sim_now(s) + us, SIM_TASK, w->id, 0);
            break;
        }
        finish_task(s, w);
    }
    book_depth(s, w);
    w->dirty = false;
}

/* ---- the loop ---- */

static void die(sim *s, uint32_t id) {
    sim_worker *w = &s->worker[id];
    if (w->dead) return;
    w->dead = true;
    if (w->running != SIM_REST) count_busy(s, -1);
    w->running = SIM_REST;
    sl_sim_events_push(&s->ev, sim_now(s) + s->s->notice_us, SIM_NOTICE, id, 0);
}

/* Expert workers wait for it no longer. */
static void announce(sim *s, uint32_t id) {
    for (uint32_t i = 0; i < s->n_expert; i++) {
        sim_worker *w = &s->worker[s->expert_id[i]];
        if (s->aep)
            sim_queue_on_dead(s, w, id);
        else
            sim_xprt_on_dead(s, w, id);
        sim_touch(s, w);
    }
}

/* What the engine does when others notice: see sl_sim_death. */
static void notice(sim *s, uint32_t id) {
    uint32_t duties;
    if (!sl_roster_ended(&s->roster, id, id, &duties)) return;
    if (duties & SL_ROSTER_REHOST) { /* nobody can host its experts */
        for (uint32_t i = 0; i < s->n_attn; i++) sim_attn_lose(s, &s->worker[s->attn_id[i]]);
        sim_coord_experts_lost(s);
        return;
    }
    sim_attn_lose(s, &s->worker[id]);
    sim_coord_worker_lost(s, id);
    if (duties & SL_ROSTER_ANNOUNCE) announce(s, id);
}

static sim_item item_of(const sl_sim_event *e) {
    return (sim_item){.kind = e->kind, .who = e->who, .what = (uint32_t)e->what};
}

static void handle(sim *s, const sl_sim_event *e) {
    switch ((sim_event_kind)e->kind) {
    case SIM_BEGIN: /* the coordinator has been touched */
        break;
    case SIM_COME:
        sim_coord_come(s);
        break;
    case SIM_CLIENT:
        sim_coord_client(s, e->who);
        break;
    case SIM_SUBMIT:
    case SIM_PAGE:
    case SIM_CANCEL:
    case SIM_ACK:
        sim_inbox_push(s, &s->worker[e->who].inbox, item_of(e));
        sim_touch(s, &s->worker[e->who]);
        break;
    case SIM_HEAR:
        sim_inbox_push(s, &s->heard, item_of(e));
        sim_touch_coord(s);
        break;
    case SIM_TASK:
        if (s->worker[e->who].dead || is_late(s, &s->worker[e->who])) break;
        count_busy(s, -1);
        finish_task(s, &s->worker[e->who]);
        sim_touch(s, &s->worker[e->who]);
        break;
    case SIM_HEAD:
        on_head(s, (uint32_t)e->what);
        break;
    case SIM_DELIVER:
        deliver(s, (uint32_t)e->what);
        break;
    case SIM_DIE:
        die(s, e->who);
        break;
    case SIM_NOTICE:
        notice(s, e->who);
        break;
    case SIM_END:
        s->phase = SIM_ENDING;
        s->over = s->from_us <= 0 && s->s->warmup_us > 0; /* no token came at all */
        break;
    }
}

static int by_id(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Who may have something to do at this time does it, in the order of ids, the coordinator last. */
static void run_all(sim *s) {
    qsort(s->dirty, s->n_dirty, sizeof *s->dirty, by_id);
    for (uint32_t i = 0; i < s->n_dirty && s->status == SL_OK; i++) {
        if (s->dirty[i] < s->n_workers)
            kick(s, &s->worker[s->dirty[i]]);
        else
            sim_coord_run(s);
    }
    s->n_dirty = 0;
}

static sl_status loop(sim *s) {
    sl_sim_event e;
    while (s->status == SL_OK && !s->over && sl_sim_events_pop(&s->ev, &e)) {
        handle(s, &e);
        if (sl_sim_events_at_once(&s->ev)) continue;
        run_all(s);
        if (s->ev.failed) sim_fail(s, sim_oom(s, "events"));
        if (s->s->max_events && s->ev.popped >= s->s->max_events) break;
    }
    for (uint32_t i = 0; i < s->n_workers; i++) {
        book_depth(s, &s->worker[i]);
        note_rest(s, &s->worker[i]);
    }
    return s->status;
}

/* ---- life ---- */

static sl_status check(const sl_sim_setup *s, uint32_t n_attn, uint32_t n_expert, sl_err *err) {
    if (n_attn == 0 || n_expert == 0)
        return sl_fail(err, SL_ERR_ARG, "simulation: %u attention and %u expert workers", n_attn,
                       n_expert);
    if (s->popularity && s->n_layers != 1 && s->n_layers != s->model->n_moe)
        return sl_fail(err, SL_ERR_ARG, "popularity of %u blocks, the model has %u with experts",
                       s->n_layers, s->model->n_moe);
    if (s->model->top_k < 1 || s->model->top_k > s->model->n_experts || s->model->n_moe == 0)
        return sl_fail(err, SL_ERR_ARG, "a model of %u blocks with experts, %u of %u a row",
                       s->model->n_moe, s->model->top_k, s->model->n_experts);
    if (s->plan->lanes < 1 || s->plan->lanes > SL_PLAN_MAX_LANES || s->plan->chunks < 1 ||
        s->plan->max_num_batched_tokens / s->plan->lanes < 1)
        return sl_fail(err, SL_ERR_ARG, "plan of %u lanes, %u chunks, %u rows a step",
                       s->plan->lanes, s->plan->chunks, s->plan->max_num_batched_tokens);
    if (!(s->jitter >= 0 && s->jitter <= 10))
        return sl_fail(err, SL_ERR_ARG, "jitter is %g, must be 0 to 10", s->jitter);
    for (uint32_t i = 0; i < s->n_deaths; i++) {
        if (s->death[i].worker >= (s->roles ? s->n_workers : s->plan->n_workers))
            return sl_fail(err, SL_ERR_ARG, "death of worker %u, which is not there",
                           s->death[i].worker);
    }
    return SL_OK;
}

static sl_status create_workers(sim *s) {
    for (uint32_t i = 0; i < s->n_workers; i++) {
        sim_worker *w = &s->worker[i];
        w->id = i;
        w->roles = s->s->roles ? s->s->roles[i] : (uint8_t)s->p->worker[i].roles;
        if (w->roles & SL_ROLE_ATTENTION) s->attn_id[s->n_attn++] = i;
        if (w->roles & SL_ROLE_EXPERT) {
            s->expert_index[i] = s->n_expert;
            s->expert_id[s->n_expert++] = i;
        }
    }
    return check(s->s, s->n_attn, s->n_expert, s->err);
}

static sl_status create_sides(sim *s) {
    s->members = (sl_idset){.ids = s->attn_id, .n = s->n_attn};
    s->experts = (sl_idset){.ids = s->expert_id, .n = s->n_expert};
    sl_status st = sim_route_create(s);
    for (uint32_t i = 0; st == SL_OK && i < s->n_workers; i++) {
        sim_worker *w = &s->worker[i];
        if (w->roles & SL_ROLE_EXPERT) st = s->aep ? sim_queue_create(s, w) : sim_xprt_create(s, w);
        if (st == SL_OK && (w->roles & SL_ROLE_ATTENTION)) st = sim_attn_create(s, w);
        if (st == SL_OK && s->s->trace_events)
            st = sl_trace_create(s->s->trace_events, &w->trace, s->err);
    }
    return st;
}

static sl_status create(sim *s) {
    const sl_sim_setup *o = s->s;
    s->n_workers = o->roles ? o->n_workers : s->p->n_workers;
    s->lanes = s->p->lanes;
    s->chunks = s->p->chunks;
    s->max_slots = s->p->max_num_seqs;
    s->max_rows = s->p->max_num_batched_tokens / SL_MAX(s->p->lanes, 1u);
    s->aep = s->p->schedule == SL_SCHED_AEP;
    s->half = o->attention->link.half_duplex;
    s->scale = o->time_scale > 0 ? o->time_scale : 1;
    s->sigma = o->jitter > 0 ? sqrt(log(1 + o->jitter * o->jitter)) : 0;
    s->rng = o->seed * 2 + 1;
    s->lengths_rng = o->seed + 0x5eed;
    s->serving = true;
    s->free_msg = s->free_entry = SIM_NONE;
    s->worker = sl_alloc(s->n_workers, sizeof *s->worker);
    s->attn_id = sl_alloc(s->n_workers, sizeof *s->attn_id);
    s->expert_id = sl_alloc(s->n_workers, sizeof *s->expert_id);
    s->expert_index = sl_alloc(s->n_workers, sizeof *s->expert_index);
    s->dirty = sl_alloc(s->n_workers + 1, sizeof *s->dirty);
    s->moe = sl_alloc(s->m->n_layers, 1);
    if (!s->worker || !s->attn_id || !s->expert_id || !s->expert_index || !s->dirty || !s->moe)
        return sim_oom(s, "workers");
    for (uint32_t l = 0; l < s->m->n_layers; l++) s->moe[l] = s->m->ffn[l] != SL_FFN_DENSE;
    sl_status st = create_workers(s);
    if (st == SL_OK) st = sl_cut_create(s->p, s->m, o->row_bytes, &s->cut, s->err);
    if (st == SL_OK) st = create_sides(s);
    for (uint32_t i = 0; st == SL_OK && i < o->n_deaths; i++)
        sl_sim_events_push(&s->ev, o->death[i].at_us, SIM_DIE, o->death[i].worker, 0);
    return st == SL_OK ? sim_coord_start(s) : st;
}

static void destroy(sim *s) {
    for (uint32_t i = 0; s->worker && i < s->n_workers; i++) {
        sim_attn_free(s, &s->worker[i]);
        sim_xprt_free(&s->worker[i]);
        sim_queue_free(&s->worker[i]);
        sl_trace_free(s->worker[i].trace);
        sl_free(s->worker[i].inbox.item);
    }
    for (uint32_t i = 0; i < s->n_msgs; i++) {
        sim_set_drop(s->msg[i].set);
        sl_free(s->msg[i].pair);
    }
    sim_route_free(s);
    sl_admit_free(&s->admit);
    sl_roster_free(&s->roster);
    void *const owned[] = {s->worker, s->attn_id, s->expert_id, s->expert_index, s->dirty,
                           s->moe,    s->msg,     s->entry,     s->req,          s->ttft.v,
                           s->itl.v,  s->tpot.v,  s->queued.v,  s->heard.item};
    for (size_t i = 0; i < SL_LEN(owned); i++) sl_free(owned[i]);
    sl_cut_free(&s->cut);
    sl_sim_events_free(&s->ev);
}

sl_status sl_sim_run(const sl_sim_setup *setup, sl_sim_result *out, sl_err *err) {
    *out = (sl_sim_result){0};
    sim *s = sl_alloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_ERR_NOMEM, "simulation");
    s->s = setup;
    s->m = setup->model;
    for (uint32_t l = 0; l < s->m->n_layers; l++) s->n_sight[s->m->sight[l]]++;
    s->p = setup->plan;
    s->err = err;
    sl_status st = create(s);
    if (st == SL_OK) st = loop(s);
    if (st == SL_OK) st = sim_report(s, out);
    destroy(s);
    sl_free(s);
    return st;
}
