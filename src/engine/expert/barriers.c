/* The expert side of schedules with barriers: what lies at the places of src/sched/rounds.h:
 * dispatches, kept until their member's last chunk of the layer is answered. A chunk that may run
 * becomes one grouped GEMM over the rows of all members, and every member gets one reply. So does a
 * call of one member outside of rounds (src/sched/calls.h); its places come after those of rounds.
 */
#include "engine/expert/expert.h"

#include "base/log.h"
#include "base/mutate.h"
#include "base/options.h"
#include "engine/host/far.h"
#include "sched/calls.h"
#include "sched/order.h"
#include "sched/rounds.h"

#include <string.h>

/* A member's message; zeroed: none. */
typedef struct message {
    sl_wire_header h;
    sl_buf *payload; /* later chunks of the layer may refer to it */
    sl_wire_dispatch view;
    uint64_t came_ns, came_us;
    uint32_t data_before; /* rows with data in earlier chunks of the layer */
    bool gathers;         /* the device has begun to gather its rows */
} message;

typedef struct barriers {
    sl_worker *w;
    const sl_model_spec *m;
    sl_rounds *rounds;
    sl_calls calls;
    message *message;   /* by place: those of rounds, then those of calls */
    sl_round_task task; /* when begun, it waits for `event` */
    bool begun;
    bool alone; /* the task is a call: of this one sender, at this one place */
    uint32_t caller, call_place;
    sl_event event;
    uint32_t entries;             /* of task */
    uint64_t task_us;             /* how long it took */
    bool packing;                 /* its answers are at the device, too */
    uint32_t max_rows, max_pairs; /* of one task: all attention workers' rows of a lane */
    /* scratch of a task */
    sl_mem x;   /* [max_rows][d_model], for rows that cannot be used where they lie */
    sl_mem sum; /* [max_rows or, exact, max_pairs][d_model]: returned rows before they are packed */
    uint8_t **from, **back; /* where x's rows and those of sum are in messages */
    /* by pair in expert order: its row, the returned row it is part of, whether it is added there
     */
    uint32_t *pair_row, *pair_to;
    uint8_t *pair_adds;
    float *pair_gate;
    sl_buf **reply;      /* to the task's i-th member; NULL: a bare header */
    uint32_t *first;     /* [members + 1] of its returned rows among all */
    sl_stage_part *part; /* [members] where they are until they are packed */
    uint32_t n_parts;
    sl_stage_spread *spread; /* [members] messages that are spread over ranks, */
    bool early;              /* what came of a round is gathered before all of it has */
    bool spreads;            /* as those of this task are that leave */
    uint32_t *group_expert, *group_first, *cursor; /* [n_experts + 1] */
    void *arrays, *scratch; /* what those of messages and members, and the others, are in */
} barriers;

/* ---- what rounds ask for ---- */

static void tell_set(void *ctx, bool open, const sl_idset *to, uint32_t lane, uint64_t round,
                     const sl_idset *set) {
    barriers *x = ctx;
    const sl_wire_header h = {
        .kind = open ? SL_MSG_ROUND_OPEN : SL_MSG_ROUND_SET, .lane = lane, .round = round};
    for (size_t i = 0; i < to->n; i++) {
        sl_buf *b = sl_worker_buf(x->w, sl_wire_set_bytes((uint32_t)set->n));
        if (!b) return;
        sl_wire_set_encode(set->ids, (uint32_t)set->n, b->data);
        /* A joiner that died meanwhile is reported by its connection. */
        sl_worker_send(x->w, to->ids[i], h, b);
    }
}

static void tell_dead(void *ctx, uint32_t to, uint32_t member) {
    sl_worker *w = ((barriers *)ctx)->w;
    sl_buf *b = SL_MUTATION(UNTOLD_DEATH) ? NULL : sl_worker_buf(w, 4);
    if (!b) return;
    sl_wire_worker_encode(member, b->data);
    sl_wire_header h = {.kind = SL_MSG_MEMBER_DEAD};
    if (sl_worker_send(w, to, h, b) != SL_OK)
        sl_log(SL_LOG_INFO, "expert", "worker %u cannot be told that %u left", to, member);
}

static void refuse(void *ctx, uint32_t member, const char *why) {
    sl_worker *w = ((barriers *)ctx)->w;
    sl_log(SL_LOG_WARN, "expert", "attention worker %u: %s", member, why);
    if (w->peer[member].conn) sl_net_close(w->net, w->peer[member].conn, SL_ERR_PROTOCOL, why);
}

static sl_round_msg round_msg(const sl_wire_header *h, const sl_wire_dispatch *v) {
    return (sl_round_msg){.member = h->src,
                          .lane = h->lane,
                          .layer = h->layer,
                          .chunk = h->chunk,
                          .round = h->round,
                          .rows = v->n_entries,
                          .ends = (h->flags & SL_WIRE_ENDS) != 0,
                          .stay = (h->flags & SL_WIRE_STAY) != 0,
                          .with_set = (h->flags & SL_WIRE_SET) != 0,
                          .set = {.ids = v->set, .n = v->n_set}};
}

static void recall(void *ctx, uint32_t place, sl_round_msg *out) {
    const message *m = &((barriers *)ctx)->message[place];
    *out = round_msg(&m->h, &m->view);
}

static void drop(void *ctx, uint32_t place, bool answered) {
    barriers *x = ctx;
    message *m = &x->message[place];
    if (!answered) x->w->n.rows_stale += m->view.rows;
    sl_net_buf_give(x->w->net, m->payload);
    *m = (message){0};
}

/* ---- who is in a round ---- */

static bool is_dead(const void *side, uint32_t member) {
    const barriers *x = side;
    return sl_rounds_is_dead(x->rounds, member);
}

/* The sequencer's word on who is in a round. */
static sl_status on_set(barriers *x, const sl_wire_header *h, sl_span payload, sl_err *err) {
    const uint32_t *ids;
    uint32_t n;
    sl_idset set;
    sl_status st = sl_wire_set_decode(payload, &ids, &n, err);
    if (st == SL_OK) st = sl_idset_check((uint32_t *)(uintptr_t)ids, n, &set, err);
    return st == SL_OK ? sl_rounds_on_set(x->rounds, h->lane, h->round, &set, err) : st;
}

/* Where a call lies. */
static uint32_t place_of_call(const barriers *x, uint32_t call) {
    return sl_rounds_places(x->rounds) + call;
}

static void drop_calls(barriers *x, uint32_t member) {
    uint32_t call;
    while ((call = sl_calls_drop(&x->calls, member)) != SL_CALLS_NONE)
        drop(x, place_of_call(x, call), false);
}

/* Attention worker `member` is dead: the sequencer says so, or at the sequencer somebody who knows.
 * Its connection here goes, too. */
static sl_status on_dead(barriers *x, uint32_t member, sl_err *err) {
    if (member >= x->w->plan.n_workers)
        return sl_fail(err, SL_ERR_PROTOCOL, "death of worker %u of %u", member,
                       x->w->plan.n_workers);
    bool known = sl_rounds_is_dead(x->rounds, member);
    drop_calls(x, member);
    sl_status st = sl_rounds_on_dead(x->rounds, member, err);
    if (known || !sl_rounds_is_dead(x->rounds, member)) return st;
    /* A worker that lives learns of it; who has come in its place is another one. */
    bool newcomer = sl_worker_is_newcomer(x->w, &x->w->plan, member);
    sl_conn *c = newcomer ? NULL : x->w->peer[member].conn;
    if (st == SL_OK && c) sl_net_close(x->w->net, c, SL_ERR_PEER_DOWN, "counts as dead here");
    sl_log(SL_LOG_INFO, "expert", "attention worker %u counts as silent from now on", member);
    return st;
}

static sl_status on_peer(void *side, const sl_wire_header *h, sl_span payload, sl_err *err) {
    barriers *x = side;
    const sl_worker *w = x->w;
    uint32_t member;
    sl_status st;
    if (h->kind == SL_MSG_JOIN) return sl_rounds_on_join(x->rounds, h->src, h->lane, err);
    if (h->kind == SL_MSG_ROUND_SET && h->src == w->experts.ids[0] && h->src != w->id)
        return on_set(x, h, payload, err);
    if (h->kind == SL_MSG_MEMBER_DEAD && sl_rounds_may_announce(x->rounds, h->src)) {
        st = sl_wire_worker_decode(payload, &member, err);
        return st == SL_OK && sl_rounds_heeds(x->rounds, h->src) ? on_dead(x, member, err) : st;
    }
    return sl_worker_refuse(h, err);
}

/* With a connection to an attention worker gone, the sequencer decides that it is dead, other
 * expert workers tell it. Without the sequencer nobody is waited for. */
static sl_status on_gone(void *side, uint32_t id, bool left, sl_err *err) {
    barriers *x = side;
    (void)left;
    sl_status st = sl_rounds_on_expert_lost(x->rounds, id, err);
    if (st != SL_OK) return st;
    drop_calls(x, id);
    if (!(x->w->plan.worker[id].roles & SL_ROLE_ATTENTION)) return SL_OK;
    return sl_rounds_is_sequencer(x->rounds) ? on_dead(x, id, err)
                                             : sl_rounds_on_lost(x->rounds, id, err);
}

/* ---- a message arrives ---- */

static sl_status decode(const barriers *x, const sl_wire_header *h, const sl_buf *b,
                        sl_wire_dispatch *v, sl_err *err) {
    const sl_round_msg m = round_msg(h, v);
    sl_status st = sl_rounds_check(x->rounds, &m, err);
    if (st != SL_OK) return st;
    if (!b && (h->rows || (h->flags & SL_WIRE_SET)))
        return sl_fail(err, SL_ERR_PROTOCOL, "%u rows without a payload", h->rows);
    if (!b) return SL_OK;
    st = sl_wire_dispatch_decode_columns(h, (sl_span){b->data, b->len}, x->m,
                                         sl_worker_row_width(x->w, b),
                                         (sl_wire_format)x->w->plan.wire, v, err);
    if (st == SL_OK) st = sl_far_find(x->w, b, v->rows - v->n_old, &v->data, err);
    return st == SL_OK ? sl_worker_check_rows(x->w, h, v, 0, sl_plan_lane_rows(&x->w->plan), err)
                       : st;
}

/* How many rows with data chunks of this layer before h's have brought; v may refer to those. */
static sl_status count_data(const barriers *x, const sl_wire_header *h, const sl_wire_dispatch *v,
                            uint32_t *out, sl_err *err) {
    uint32_t place = sl_rounds_place(x->rounds, h->lane, h->src, h->chunk);
    const message *before = h->chunk ? &x->message[place - 1] : NULL;
    uint32_t data = before ? before->data_before + before->view.rows - before->view.n_old : 0;
    for (uint32_t i = 0; i < v->n_old; i++) {
        if (v->old[i] >= data)
            return sl_fail(err, SL_ERR_PROTOCOL, "worker %u refers to row %u of %u that it sent",
                           h->src, v->old[i], data);
    }
    *out = data;
    return SL_OK;
}

/* Rows that stand in for a lost expert worker's. */
static sl_status on_call(barriers *x, const sl_wire_header *h, const sl_wire_dispatch *v,
                         sl_buf **payload, sl_err *err) {
    uint32_t call;
    if (h->flags != SL_WIRE_AGAIN || h->rows == 0 || (*payload)->spread.number ||
        sl_far_at(*payload))
        return sl_fail(err, SL_ERR_PROTOCOL, "attempt of %u rows, flags %x", h->rows, h->flags);
    if (sl_rounds_is_dead(x->rounds, h->src)) return SL_OK;
    sl_status st = sl_calls_on_call(&x->calls, h->src, &call, err);
    if (st != SL_OK) return st;
    x->message[place_of_call(x, call)] =
        (message){.h = *h, .payload = *payload, .view = *v, .came_ns = x->w->came_ns};
    *payload = NULL;
    return SL_OK;
}

static sl_status on_dispatch(void *side, const sl_wire_header *h, sl_buf **payload, sl_err *err) {
    barriers *x = side;
    sl_wire_dispatch v = {0};
    uint32_t data = 0, place;
    sl_status st = decode(x, h, *payload, &v, err);
    if (st == SL_OK && (h->flags & SL_WIRE_AGAIN)) return on_call(x, h, &v, payload, err);
    if (st == SL_OK && !sl_rounds_is_dead(x->rounds, h->src)) st = count_data(x, h, &v, &data, err);
    const sl_round_msg m = round_msg(h, &v);
    if (st == SL_OK) st = sl_rounds_on_dispatch(x->rounds, &m, &place, err);
    if (st != SL_OK || place == SL_ROUNDS_NONE) return st;
    x->message[place] = (message){.h = *h,
                                  .payload = *payload,
                                  .view = v,
                                  .came_ns = x->w->came_ns,
                                  .came_us = x->w->came_us,
                                  .data_before = data};
    *payload = NULL;
    return SL_OK;
}

/* ---- a layer runs ---- */

/* Row and pair counts of the batch being built. */
typedef struct batch {
    uint32_t rows, entries, n_groups;
    sl_mem x; /* [rows][d_model] */
} batch;

static sl_wire_format wire_of(const barriers *x) {
    return (sl_wire_format)x->w->plan.wire;
}

/* Whether the device works on rows in messages as they lie there. */
static bool in_place(const barriers *x) {
    return x->w->device->in_place && wire_of(x) == SL_WIRE_F32;
}

static void submit(barriers *x, const sl_stage_call *c) {
    x->event = sl_device_submit(x->w->device, c);
}

/* Where a message's rows are, those without data where they came. */
static void find_rows(const barriers *x, const message *p, uint32_t chunk, uint8_t **at) {
    uint32_t n_new = p->view.rows - p->view.n_old;
    const sl_spread_name none = {0}, *spread = p->payload ? &p->payload->spread : &none;
    const size_t row_bytes = sl_device_row_bytes(x->w->device, spread, wire_of(x));
    for (uint32_t i = 0; i < n_new; i++) at[i] = p->view.data + i * row_bytes;
    for (uint32_t i = 0; i < p->view.n_old; i++) {
        const message *from = p - chunk; /* the layer's first chunk */
        while (p->view.old[i] >= from->data_before + from->view.rows - from->view.n_old) from++;
        at[n_new + i] = from->view.data + (p->view.old[i] - from->data_before) * row_bytes;
    }
}

static bool is_spread(const message *p) {
    return p->payload && p->payload->spread.number;
}

static sl_stage_spread spread_of(const message *p) {
    return (sl_stage_spread){.is = p->payload->spread, .rows = p->view.rows, .data = p->view.data};
}

/* Those of the task's messages that came spread over ranks: how many. */
static uint32_t list_spread(barriers *x, const sl_round_task *t) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        const message *p = &x->message[t->place[i]];
        if (is_spread(p)) x->spread[n++] = spread_of(p);
    }
    return n;
}

/* Nodes one by one (MixServe III-D): what came from one is gathered while others' rows are on their
 * way. Not before this worker's own rows have left, which others wait for. */
static void gather_some(barriers *x) {
    sl_device *d = x->w->device;
    for (uint32_t i = 0; x->early && d->spreads && i < sl_rounds_places(x->rounds); i++) {
        message *p = &x->message[i];
        if (p->gathers || !is_spread(p) || !p->payload->spread.cut) continue;
        if (!sl_rounds_awaits_others(x->rounds, i)) continue;
        const sl_stage_spread m = spread_of(p);
        sl_worker_begin(x->w, &(sl_trace_event){.kind = SL_TRACE_EARLY,
                                                .lane = sl_trace_u16(p->h.lane),
                                                .layer = sl_trace_u16(x->m->moe_layer[p->h.layer]),
                                                .chunk = sl_trace_u16(p->h.chunk),
                                                .round = (uint32_t)p->h.round,
                                                .rows = m.rows});
        d->ops->gather(d, &m, wire_of(x));
        p->gathers = true;
    }
}

/* The members' rows as floats: where they lie if that is one place, else in x. */
static sl_mem gather_rows(barriers *x, const sl_round_task *t) {
    const message *only = &x->message[t->place[0]];
    uint32_t rows = 0;
    if (t->n == 1 && in_place(x) && only->view.n_old == 0)
        return sl_mem_host(only->view.data,
                           (size_t)only->view.rows * x->m->d_model * sizeof(float));
    for (uint32_t i = 0; i < t->n; i++) {
        const message *p = &x->message[t->place[i]];
        find_rows(x, p, t->chunk, x->from + rows);
        rows += p->view.rows;
    }
    const sl_stage_call c = {.op = SL_OP_UNPACK,
                             .queue = SL_QUEUE_EXPERTS,
                             .pack = {.n = rows,
                                      .wire = wire_of(x),
                                      .rows = x->x,
                                      .at = x->from,
                                      .spread = x->spread,
                                      .n_spread = list_spread(x, t)}};
    if (rows > 0) submit(x, &c);
    return x->x;
}

/* Counts the members' rows and (row, position) pairs, these by expert. */
static batch count_pairs(barriers *x, const sl_round_task *t) {
    batch b = {0};
    uint32_t n_experts = x->m->n_experts, at = 0;
    memset(x->cursor, 0, (n_experts + 1u) * sizeof *x->cursor);
    for (uint32_t i = 0; i < t->n; i++) {
        const message *p = &x->message[t->place[i]];
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
static uint32_t returned_rows(const barriers *x, const sl_wire_dispatch *v) {
    return x->w->plan.exact ? v->n_entries : v->rows;
}

/* The entries of a member's row r become pairs; its returned rows are those from `at` on, row 0 of
 * the member being `first` of all. A row's positions are in the order of experts, so that its sum
 * is, too. */
static uint32_t add_pairs(barriers *x, const sl_wire_dispatch *v, uint32_t r, uint32_t row,
                          uint32_t at, uint32_t first, const sl_wire_return *out) {
    bool exact = x->w->plan.exact;
    for (uint32_t e = v->first[r]; e < v->first[r + 1]; e++) {
        uint32_t pair = x->cursor[v->expert[e]]++;
        bool fresh = exact || e == v->first[r];
        uint32_t i = exact ? at + (e - v->first[r]) : at;
        x->pair_row[pair] = row;
        x->pair_gate[pair] = v->gate[e];
        x->pair_to[pair] = first + i;
        x->pair_adds[pair] = !fresh;
        if (fresh) {
            out->tag[i] = v->tag[r];
            out->mask[i] = 0;
        }
        out->mask[i] |= 1ull << v->position[e];
    }
    return exact ? at + v->first[r + 1] - v->first[r] : at + 1;
}

/* Whether an answer of so many rows says how long they were here. */
static bool is_timed(const barriers *x, uint32_t rows) {
    return x->w->plan.resolve && rows > 0 && !x->alone;
}

/* The reply to a member without its values. NULL: a bare header, or no memory. */
static sl_buf *begin_reply(barriers *x, const sl_round_task *t, uint32_t member,
                           const sl_wire_dispatch *v, sl_wire_return *out) {
    sl_wire_format f = wire_of(x);
    uint32_t rows = returned_rows(x, v);
    const sl_spread_name spread = {.cut = x->spreads && rows > 0};
    const uint32_t width = spread.cut ? x->w->device->spreads : x->m->d_model;
    uint32_t n_next = t->next ? (uint32_t)t->next->n : 0;
    if (rows == 0 && !t->next) return NULL;
    const size_t times = is_timed(x, rows) ? SL_WIRE_TIMES_BYTES : 0;
    const bool whole = x->alone || spread.cut; /* rows go with it */
    sl_buf *b = sl_far_buf(x->w, member, sl_wire_return_bytes(rows, n_next, width, f) + times,
                           sl_wire_return_bytes(rows, n_next, 0, f) + times,
                           whole ? 0 : rows * sl_wire_row_bytes(f, width));
    if (!b) return NULL;
    b->spread = spread;
    uint8_t *far = sl_far_at(b);
    sl_wire_return_layout(b->data, rows, n_next, far ? 0 : width, f, out);
    if (far) out->data = far;
    if (n_next) memcpy(out->set, t->next->ids, n_next * sizeof *out->set);
    if (t->next) sl_wire_return_groups(b->data, x->w->next_groups);
    return b;
}

/* Results go to sum, or where they will travel. */
static void place_results(barriers *x, uint32_t i, const sl_wire_return *r, uint32_t n) {
    size_t row = x->m->d_model * sizeof(float);
    x->first[i + 1] = x->first[i] + n;
    if (in_place(x)) {
        x->part[i] = (sl_stage_part){.rows = sl_mem_host(r->data, n * row), .n = n};
        x->n_parts = i + 1;
        return;
    }
    x->part[0] = (sl_stage_part){.rows = x->sum, .n = x->first[i + 1]};
    x->n_parts = 1;
    const sl_spread_name spread = {.cut = x->spreads};
    const size_t row_bytes = sl_device_row_bytes(x->w->device, &spread, wire_of(x));
    for (uint32_t j = 0; j < n; j++) x->back[x->first[i] + j] = r->data + j * row_bytes;
}

/* Ranks keep results and send them themselves where all can leave so and one is long enough. */
static bool returns_spread(const barriers *x, const sl_round_task *t) {
    const size_t row = sl_wire_row_bytes(wire_of(x), x->m->d_model);
    bool some = false;
    for (uint32_t i = 0; !x->alone && i < t->n; i++) {
        const size_t bytes = returned_rows(x, &x->message[t->place[i]].view) * row;
        if (bytes &&
            !sl_worker_can_spread(x->w, t->member[i], SL_MAX(bytes, x->w->plan.rail_bytes)))
            return false;
        some = some || sl_worker_can_spread(x->w, t->member[i], bytes);
    }
    return some;
}

/* Sorts the members' pairs by expert and begins the replies, which results go to. */
static bool gather(barriers *x, const sl_round_task *t, batch *out) {
    batch b = count_pairs(x, t);
    uint32_t row = 0;
    x->spreads = returns_spread(x, t);
    if (t->n) b.x = gather_rows(x, t);
    for (uint32_t i = 0; i < t->n; i++) {
        const sl_wire_dispatch *v = &x->message[t->place[i]].view;
        sl_wire_return r = {0};
        uint32_t at = 0, n = returned_rows(x, v);
        x->reply[i] = begin_reply(x, t, t->member[i], v, &r);
        if (!x->reply[i] && (n || t->next)) {
            sl_worker_stop(x->w, sl_fail(&x->w->stop_err, SL_ERR_NOMEM, "reply of %u rows", n));
            while (i > 0) sl_net_buf_give(x->w->net, x->reply[--i]);
            return false;
        }
        place_results(x, i, &r, n);
        for (uint32_t j = 0; j < v->rows; j++) at = add_pairs(x, v, j, row++, at, x->first[i], &r);
    }
    *out = b;
    return true;
}

/* Rows for somebody who is gone since are not packed into his memory. */
static void leave_out_lost(barriers *x) {
    for (uint32_t i = 0; i < x->task.n; i++) {
        if (!sl_far_is_lost(x->reply[i])) continue;
        for (uint32_t r = x->first[i]; r < x->first[i + 1]; r++) x->back[r] = NULL;
    }
}

/* The task's returned rows, from sum into the replies. */
static void pack_returns(barriers *x) {
    uint32_t n = x->first[x->task.n], n_spread = 0;
    leave_out_lost(x);
    for (uint32_t i = 0; x->spreads && i < x->task.n; i++) {
        const uint32_t rows = x->first[i + 1] - x->first[i];
        if (rows == 0) continue;
        x->reply[i]->spread = sl_worker_spread(x->w, x->task.member[i], rows);
        x->reply[i]->spread.cut = true;
        x->spread[n_spread++] = (sl_stage_spread){
            .is = x->reply[i]->spread, .back = true, .rows = rows, .data = x->back[x->first[i]]};
    }
    const sl_stage_call c = {.op = SL_OP_PACK,
                             .queue = SL_QUEUE_EXPERTS,
                             .pack = {.n = n,
                                      .wire = wire_of(x),
                                      .rows = x->sum,
                                      .at = x->back,
                                      .spread = x->spread,
                                      .n_spread = n_spread,
                                      .cut = n_spread > 0}};
    if (n > 0 && !in_place(x)) submit(x, &c);
}

static void put_times(const barriers *x, uint32_t i) {
    const uint64_t held = sl_clock_now_us(&x->w->clock) - x->message[x->task.place[i]].came_us;
    const sl_buf *b = x->reply[i];
    sl_wire_return_times(b->data + b->len - SL_WIRE_TIMES_BYTES,
                         (uint32_t)SL_MIN(x->task_us, UINT32_MAX),
                         (uint32_t)SL_MIN(held, UINT32_MAX));
}

static void send_return(barriers *x, uint32_t i) {
    const sl_round_task *t = &x->task;
    bool owed = x->alone ? sl_calls_is_owed(&x->calls) : sl_rounds_is_owed(x->rounds, t->place[i]);
    if (!owed) {
        sl_net_buf_give(x->w->net, x->reply[i]);
        return;
    }
    const uint32_t rows = x->first[i + 1] - x->first[i];
    const bool timed = is_timed(x, rows);
    if (timed) put_times(x, i);
    const sl_wire_header h = {.kind = SL_MSG_RETURN,
                              .flags = (t->next ? SL_WIRE_SET : 0) |
                                       (x->alone ? SL_WIRE_AGAIN : 0) | (timed ? SL_WIRE_TIMED : 0),
                              .round = t->round,
                              .lane = t->lane,
                              .layer = t->layer,
                              .chunk = t->chunk,
                              .rows = rows};
    /* A member that died meanwhile is announced by the sequencer. */
    sl_worker_send(x->w, t->member[i], h, x->reply[i]);
}

/* From now on the thread works on this task. */
static void begin(const barriers *x, const sl_round_task *t, sl_trace_kind kind, uint32_t rows,
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
static uint64_t queued_ns(const barriers *x, const sl_round_task *t) {
    uint64_t now = sl_now_ns(), oldest = now;
    for (uint32_t i = 0; i < t->n; i++) {
        const message *p = &x->message[t->place[i]];
        if (p->view.rows) oldest = SL_MIN(oldest, p->came_ns);
    }
    return now - oldest;
}

/* Gives the task's experts to the device. False: the worker stops. */
static bool begin_task(barriers *x) {
    sl_worker *w = x->w;
    const sl_round_task *t = &x->task;
    begin(x, t, SL_TRACE_GATHER, 0, 0);
    uint64_t queued = queued_ns(x, t);
    batch b;
    if (!gather(x, t, &b)) return false;
    x->begun = true;
    x->entries = b.entries;
    if (b.entries == 0) return true;
    sl_expert_begins(w, b.entries, sl_rounds_rows(x->rounds));
    sl_worker_note_experts(w, t->layer, x->group_expert, x->group_first, b.n_groups);
    begin(x, t, SL_TRACE_EXPERT, b.entries, queued);
    const sl_stage_call c = {.op = SL_OP_EXPERTS,
                             .queue = SL_QUEUE_EXPERTS,
                             .layer = x->m->moe_layer[t->layer],
                             .stays = x->spreads,
                             .experts = {.n_groups = b.n_groups,
                                         .expert = x->group_expert,
                                         .first = x->group_first,
                                         .row = x->pair_row,
                                         .gate = x->pair_gate,
                                         .x = b.x,
                                         .n_rows = b.rows,
                                         .to = x->pair_to,
                                         .adds = x->pair_adds,
                                         .part = x->part,
                                         .n_parts = x->n_parts}};
    submit(x, &c);
    return true;
}

static void end_task(barriers *x) {
    if (!x->alone) {
        sl_rounds_end(x->rounds);
        return;
    }
    drop(x, x->call_place, true);
    sl_calls_end(&x->calls);
    x->alone = false;
}

/* The device is through with what the task has asked. All members are answered at once: who has its
 * answer may send the next layer. */
static void go_on(barriers *x) {
    if (!x->packing) {
        begin(x, &x->task, SL_TRACE_REPLY, 0, 0);
        x->w->n.expert_rows += x->entries;
        x->task_us = sl_expert_ends(x->w, x->entries);
        pack_returns(x);
        x->packing = true;
        return;
    }
    const uint32_t n = x->task.n;
    for (uint32_t k = 0; k < n; k++) send_return(x, sl_order_kth(x->w->id, n, k));
    x->begun = x->packing = false;
    end_task(x);
}

/* A call of one member, as a task. */
static bool take_call(barriers *x) {
    uint32_t call = sl_calls_begin(&x->calls);
    x->alone = call != SL_CALLS_NONE;
    if (!x->alone) return false;
    x->call_place = place_of_call(x, call);
    const sl_wire_header *h = &x->message[x->call_place].h;
    x->caller = h->src;
    x->task = (sl_round_task){.lane = h->lane,
                              .layer = h->layer,
                              .chunk = h->chunk,
                              .round = h->attempt,
                              .n = 1,
                              .member = &x->caller,
                              .place = &x->call_place};
    return true;
}

static bool waits(const void *side, uint32_t member) {
    const barriers *x = side;
    return sl_rounds_waits(x->rounds, member);
}

static bool run(void *side) {
    barriers *x = side;
    bool went = !x->begun;
    if (went && !take_call(x) && !sl_rounds_begin(x->rounds, &x->task)) {
        sl_expert_rests(x->w, waits, x);
        gather_some(x);
        return false;
    }
    if (went && !begin_task(x)) {
        end_task(x);
        return true;
    }
    for (; x->begun && sl_device_is_done(x->w->device, &x->event); went = true) go_on(x);
    return went;
}

static void waits_for(void *side, sl_trace_event *e) {
    barriers *x = side;
    uint32_t lane, layer;
    bool some;
    if (!sl_rounds_waiting(x->rounds, &lane, &layer, &some)) return;
    *e = (sl_trace_event){.kind = SL_TRACE_WAIT,
                          .why = some ? SL_TRACE_WHY_MEMBERS : SL_TRACE_WHY_DISPATCH,
                          .lane = sl_trace_u16(lane),
                          .layer = sl_trace_u16(x->m->moe_layer[layer])};
}

/* ---- life ---- */

static sl_status create_rounds(barriers *x, sl_err *err) {
    const sl_worker *w = x->w;
    const sl_plan *p = &w->plan;
    const size_t n = w->attention.n;
    const sl_rounds_shape shape = {.n_lanes = p->lanes,
                                   .n_moe = x->m->n_moe,
                                   .chunks = p->chunks,
                                   .self = w->id,
                                   .epoch = p->epoch,
                                   .members = &w->attention,
                                   .experts = &w->experts,
                                   .spare = sl_plan_has_replicas(p),
                                   .ops = {tell_set, tell_dead, refuse, recall, drop},
                                   .ctx = x,
                                   .watch = w->watch};
    sl_status st = sl_rounds_create(&shape, &x->rounds, err);
    if (st != SL_OK) return st;
    /* Of a member for each lane, chunk and owner in whose place this worker stands. */
    uint32_t others = sl_plan_has_replicas(p) ? (uint32_t)w->experts.n - 1 : 0;
    uint32_t calls = p->lanes * p->chunks * others;
    st = sl_calls_create(&w->attention, calls, &x->calls, err);
    if (st != SL_OK) return st;
    uint32_t places = place_of_call(x, sl_calls_places(&x->calls));
    x->arrays =
        sl_alloc_arrays(SL_ARRAY(x->message, places), SL_ARRAY(x->reply, n),
                        SL_ARRAY(x->first, n + 1), SL_ARRAY(x->part, n), SL_ARRAY(x->spread, n));
    if (x->arrays) return SL_OK;
    return sl_fail(err, SL_ERR_NOMEM, "%u messages of rounds", places);
}

static sl_status create_buffers(barriers *x, sl_err *err) {
    size_t e = x->m->n_experts + 1u, pairs;
    x->max_rows = sl_plan_lane_rows(&x->w->plan) * (uint32_t)x->w->attention.n;
    pairs = x->max_pairs = sl_worker_max_pairs(x->w, x->m);
    uint32_t max_back = x->w->plan.exact ? x->max_pairs : x->max_rows;
    x->scratch = sl_alloc_arrays(
        SL_ARRAY(x->from, x->max_rows), SL_ARRAY(x->back, max_back), SL_ARRAY(x->pair_row, pairs),
        SL_ARRAY(x->pair_to, pairs), SL_ARRAY(x->pair_adds, pairs), SL_ARRAY(x->pair_gate, pairs),
        SL_ARRAY(x->group_expert, e), SL_ARRAY(x->group_first, e), SL_ARRAY(x->cursor, e));
    if (!x->scratch)
        return sl_fail(err, SL_ERR_NOMEM, "buffers of an expert worker for %u rows", x->max_rows);
    sl_status st = sl_device_take_rows(x->w->device, x->max_rows, &x->x, err);
    return st == SL_OK ? sl_device_take_rows(x->w->device, max_back, &x->sum, err) : st;
}

static void free_buffers(barriers *x) {
    sl_device_give(x->w->device, x->x);
    sl_device_give(x->w->device, x->sum);
    x->x = x->sum = (sl_mem){0};
    sl_free(x->scratch);
    x->scratch = NULL;
}

static void free_side(void *side) {
    barriers *x = side;
    if (!x) return;
    for (uint32_t i = 0; x->begun && i < x->task.n; i++) sl_net_buf_give(x->w->net, x->reply[i]);
    if (x->rounds) sl_rounds_reset(x->rounds, 0);
    for (size_t i = 0; x->arrays && i < x->w->attention.n; i++)
        drop_calls(x, x->w->attention.ids[i]);
    if (x->alone) drop(x, x->call_place, true);
    sl_calls_free(&x->calls);
    sl_rounds_free(x->rounds);
    free_buffers(x);
    sl_free(x->arrays);
    sl_free(x);
}

static sl_status create(sl_worker *w, void **out, sl_err *err) {
    barriers *x = sl_alloc(1, sizeof *x);
    if (!x) return sl_fail(err, SL_ERR_NOMEM, "expert worker");
    x->w = w;
    x->m = w->device->spec;
    const char *gather = sl_options_gather();
    x->early = gather && strcmp(gather, "early") == 0;
    sl_status st = gather && !x->early
                       ? sl_fail(err, SL_ERR_ARG, "SLUICE_GATHER '%.40s' is unknown: early", gather)
                       : create_rounds(x, err);
    if (st == SL_OK) st = create_buffers(x, err);
    if (st == SL_OK)
        *out = x;
    else
        free_side(x);
    return st;
}

const sl_expert_side_ops sl_expert_barriers = {.create = create,
                                               .free = free_side,
                                               .on_dispatch = on_dispatch,
                                               .on_peer = on_peer,
                                               .is_dead = is_dead,
                                               .on_gone = on_gone,
                                               .run = run,
                                               .waits_for = waits_for};
