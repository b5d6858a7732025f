/* Schedules on given stage times: ports, turns, makespan. */
#include "sim/stages.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "sched/policy.h"
#include "sched/turns.h"
#include "sim/events.h"
#include "spec/schedules.h"

/* The period is looked for in WINDOW layers of every lane, after at least as many and before END
 * more. */
#define WINDOW 120u
#define END    8u

#define MAX_JOBS (SL_PLAN_MAX_LANES * SL_PLAN_MAX_CHUNKS)

/* Ends of tasks; `who` is the lane, `what` the chunk. */
enum { BLOCK_ENDS, SHARED_ENDS, DISPATCHED, EXPERT_ENDS, RETURNED };

typedef struct queue {
    uint32_t job[MAX_JOBS], head, n; /* lane * chunks + chunk */
} queue;

/* aep: a lane is a batch of rows that moves through the layers on its own. */
typedef struct batch {
    uint32_t layer, pass;
    enum { NOBODY, ATTENTION, EXPERTS } waits_for;
    uint64_t since;         /* arrivals before it */
    bool back, shared_done; /* its rows; its shared experts */
} batch;

typedef struct world {
    const sl_stage_run *r;
    uint32_t layers; /* of all passes */
    bool colocated;
    sl_sim_events ev;
    sl_sim_port link[2]; /* there, back */
    bool busy[2];        /* the attention side's server, the experts' */
    sl_turns turns;
    sl_turn turn;
    uint64_t listed; /* tasks of the fixed list that have begun */
    queue ready;     /* tasks of the experts */
    batch batch[SL_PLAN_MAX_LANES];
    uint64_t arrivals;
    /* the policy's view of one side's queues, [layers] */
    sl_queue_state *state;
    uint64_t *total;
    double *ahead;
    void *arrays;
    double ms[SL_STAGE_COUNT];
    uint8_t *moe;
    double *done; /* [n_done] when a lane had all of a layer back; NULL: not wanted */
    size_t n_done;
} world;

sl_status sl_stage_run_check(const sl_stage_run *r, sl_err *err) {
    static const char *const kinds[] = {"attn", "shared", "a2e", "expert", "e2a"};
    if (r->schedule >= SL_SCHED_COUNT)
        return sl_fail(err, SL_ERR_ARG, "schedule %d", (int)r->schedule);
    const sl_schedule_traits *t = sl_schedule_traits_of(r->schedule);
    bool lanes = t->lanes > 1 || !t->barriers, chunks = t->chunks > 1;
    const struct {
        const char *name;
        uint32_t value, max;
    } counts[] = {{"layers", r->layers, SL_STAGE_MAX_LAYERS},
                  {"lanes", r->lanes, lanes ? SL_PLAN_MAX_LANES : 1},
                  {"chunks", r->chunks, chunks ? SL_PLAN_MAX_CHUNKS : 1},
                  {"iterations", r->iterations, SL_STAGE_MAX_ITERATIONS}};
    for (size_t i = 0; i < SL_LEN(counts); i++) {
        if (counts[i].value < 1 || counts[i].value > counts[i].max)
            return sl_fail(err, SL_ERR_ARG, "%s is %u, schedule %s has 1 to %u", counts[i].name,
                           counts[i].value, sl_schedule_name(r->schedule), counts[i].max);
    }
    uint64_t tasks = (uint64_t)r->layers * r->iterations * r->lanes * r->chunks;
    if (tasks > SL_STAGE_MAX_TASKS)
        return sl_fail(err, SL_ERR_ARG,
                       "iterations is %u: %llu chunks in all (layers * iterations * lanes * "
                       "chunks), at most %llu",
                       r->iterations, (unsigned long long)tasks, SL_STAGE_MAX_TASKS);
    for (int i = 0; i < SL_STAGE_COUNT; i++) {
        if (!(r->ms[i] >= 0 && r->ms[i] <= SL_STAGE_MAX_MS))
            return sl_fail(err, SL_ERR_ARG, "times.%s is %g ms, must be 0 to %g", kinds[i],
                           r->ms[i], SL_STAGE_MAX_MS);
    }
    if (r->fixed_list && r->schedule == SL_SCHED_AEP)
        return sl_fail(err, SL_ERR_ARG, "fixed_list is true: schedule aep has no fixed order");
    if (!(r->delta > 0 && r->delta <= 1))
        return sl_fail(err, SL_ERR_ARG, "delta is %g, must be above 0 and at most 1", r->delta);
    return SL_OK;
}

static uint32_t job_of(const world *w, uint32_t lane, uint32_t chunk) {
    return lane * w->r->chunks + chunk;
}

/* A task of a kind begins on a server that is free, and ends by itself. */
static void run(world *w, sl_stage_kind kind, uint32_t event, uint32_t lane, uint32_t chunk) {
    w->ms[kind] += w->r->ms[kind];
    sl_sim_events_push(&w->ev, w->ev.now + w->r->ms[kind], event, lane, chunk);
}

static void transfer(world *w, sl_stage_kind kind, uint32_t event, uint32_t lane, uint32_t chunk) {
    sl_sim_port *p = &w->link[kind == SL_STAGE_E2A && !w->r->half_duplex];
    w->ms[kind] += w->r->ms[kind];
    double end = sl_sim_port_take(p, w->ev.now, w->r->ms[kind]);
    sl_sim_events_push(&w->ev, end, event, lane, chunk);
}

static void layer_is_back(world *w) {
    if (w->done) w->done[w->n_done++] = w->ev.now;
}

/* ---- schedules with barriers ---- */

/* A barrier of one member is no barrier. */
static void arrive(world *w, uint32_t lane, uint32_t chunk) {
    w->ready.job[(w->ready.head + w->ready.n++) % MAX_JOBS] = job_of(w, lane, chunk);
}

static bool start_expert(world *w) {
    if (w->ready.n == 0) return false;
    uint32_t job = w->ready.job[w->ready.head];
    w->ready.head = (w->ready.head + 1) % MAX_JOBS;
    w->ready.n--;
    run(w, SL_STAGE_EXPERT, EXPERT_ENDS, job / w->r->chunks, job % w->r->chunks);
    return true;
}

/* FinDEP's order as a list: A0 S0 A1 S1 ... or A0 A1 ... S0 S1 ... of every layer. False: what is
 * next in it cannot run yet. */
static bool next_of_list(world *w, sl_turn *out) {
    bool shared = w->turns.shape.shared;
    uint32_t lanes = w->r->lanes, at = (uint32_t)(w->listed % (lanes * (1u + shared)));
    bool is_shared = w->r->order == SL_ORDER_AASS ? at >= lanes : shared && at % 2;
    uint32_t lane = w->r->order == SL_ORDER_AASS ? at % lanes : at / (1u + shared);
    const sl_turn_lane *l = &w->turns.lane[lane];
    if (is_shared ? !l->shared_due : l->phase != SL_TURN_READY) return false;
    *out = (sl_turn){is_shared ? SL_TURN_SHARED : l->next, lane, l->layer};
    w->listed += is_shared || l->next == SL_TURN_BLOCK;
    return true;
}

/* Only what follows the last block is not on the list. */
static bool next_turn(world *w, sl_turn *out) {
    uint64_t tasks = (uint64_t)w->layers * w->r->lanes * (1u + w->turns.shape.shared);
    bool listed = w->r->fixed_list && w->listed < tasks;
    return listed ? next_of_list(w, out) : sl_turns_next(&w->turns, out);
}

/* True: a task that takes time has begun. */
static bool start_turn(world *w) {
    while (next_turn(w, &w->turn)) {
        if (w->turn.kind == SL_TURN_BLOCK || w->turn.kind == SL_TURN_SHARED) {
            bool block = w->turn.kind == SL_TURN_BLOCK;
            run(w, block ? SL_STAGE_ATTN : SL_STAGE_SHARED, block ? BLOCK_ENDS : SHARED_ENDS,
                w->turn.lane, 0);
            return true;
        }
        sl_turns_done(&w->turns, &w->turn);
    }
    return false;
}

static void handle_turn(world *w, const sl_sim_event *e) {
    uint32_t lane = e->who;
    w->busy[0] = false;
    for (uint32_t c = 0; e->kind == BLOCK_ENDS && c < w->r->chunks; c++)
        transfer(w, SL_STAGE_A2E, DISPATCHED, lane, c);
    sl_turns_done(&w->turns, &w->turn);
}

static void handle_reply(world *w, uint32_t lane) {
    sl_turns_reply(&w->turns, lane);
    if (!sl_turns_awaits(&w->turns, lane)) layer_is_back(w);
}

/* ---- aep ---- */

static void enqueue(world *w, uint32_t side, uint32_t lane) {
    w->batch[lane].waits_for = side;
    w->batch[lane].since = w->arrivals++;
}

static void view_queues(world *w, uint32_t side) {
    memset(w->state, 0, w->r->layers * sizeof *w->state);
    memset(w->total, 0, w->r->layers * sizeof *w->total);
    for (const batch *b = w->batch; b < w->batch + w->r->lanes; b++) {
        sl_queue_state *q = &w->state[b->layer];
        if (b->waits_for != side) continue;
        bool first = q->rows++ == 0;
        q->head = first ? b->since : SL_MIN(q->head, b->since);
        q->wave = first ? b->pass : SL_MIN(q->wave, b->pass);
        w->total[b->layer]++;
    }
}

/* Takes the oldest batch of the queue that the policy picks; UINT32_MAX: all are empty. */
static uint32_t pick(world *w, uint32_t side) {
    const sl_policy_view v = {.policy = w->r->policy,
                              .lookahead = w->r->lookahead,
                              .delta = w->r->delta,
                              .ring = w->r->layers,
                              .n = 1,
                              .queue = w->state,
                              .total = w->total,
                              .ahead = w->ahead};
    uint32_t at, lane = 0;
    view_queues(w, side);
    if (!sl_policy_pick(&v, &at)) return UINT32_MAX;
    while (w->batch[lane].waits_for != side || w->batch[lane].layer != at ||
           w->batch[lane].since != w->state[at].head)
        lane++;
    w->batch[lane].waits_for = NOBODY;
    return lane;
}

static void next_layer(world *w, uint32_t lane) {
    batch *b = &w->batch[lane];
    if (!b->back || !b->shared_done) return;
    b->back = b->shared_done = false;
    if (++b->layer == w->r->layers) {
        b->layer = 0;
        if (++b->pass == w->r->iterations) return;
    }
    enqueue(w, ATTENTION, lane);
}

static bool start_batch(world *w, bool expert) {
    uint32_t lane = pick(w, expert ? EXPERTS : ATTENTION);
    if (lane == UINT32_MAX) return false;
    run(w, expert ? SL_STAGE_EXPERT : SL_STAGE_ATTN, expert ? EXPERT_ENDS : BLOCK_ENDS, lane, 0);
    return true;
}

static void handle_batch(world *w, const sl_sim_event *e) {
    uint32_t lane = e->who;
    switch (e->kind) {
    case BLOCK_ENDS:
        transfer(w, SL_STAGE_A2E, DISPATCHED, lane, 0);
        run(w, SL_STAGE_SHARED, SHARED_ENDS, lane, 0);
        break;
    case SHARED_ENDS:
        w->busy[0] = false;
        w->batch[lane].shared_done = true;
        next_layer(w, lane);
        break;
    case DISPATCHED:
        enqueue(w, EXPERTS, lane);
        break;
    default:
        w->batch[lane].back = true;
        layer_is_back(w);
        next_layer(w, lane);
    }
}

/* ---- both ---- */

static void handle(world *w, const sl_sim_event *e) {
    bool aep = w->r->schedule == SL_SCHED_AEP;
    if (e->kind == EXPERT_ENDS) {
        w->busy[!w->colocated] = false;
        transfer(w, SL_STAGE_E2A, RETURNED, e->who, (uint32_t)e->what);
    } else if (aep) {
        handle_batch(w, e);
    } else if (e->kind == DISPATCHED) {
        arrive(w, e->who, (uint32_t)e->what);
    } else if (e->kind == RETURNED) {
        handle_reply(w, e->who);
    } else {
        handle_turn(w, e);
    }
}

static void start(world *w) {
    bool aep = w->r->schedule == SL_SCHED_AEP, *expert = &w->busy[!w->colocated];
    if (!*expert) *expert = aep ? start_batch(w, true) : start_expert(w);
    if (!w->busy[0]) w->busy[0] = aep ? start_batch(w, false) : start_turn(w);
}

static sl_status create(world *w, sl_err *err) {
    const sl_stage_run *r = w->r;
    w->colocated = sl_schedule_traits_of(r->schedule)->sides == SL_SIDES_TOGETHER;
    w->arrays = sl_alloc_arrays(SL_ARRAY(w->state, r->layers), SL_ARRAY(w->total, r->layers),
                                SL_ARRAY(w->ahead, r->layers), SL_ARRAY(w->moe, w->layers));
    if (!w->arrays) return sl_fail(err, SL_ERR_NOMEM, "%u layers", w->layers);
    for (uint32_t i = 0; i < r->lanes; i++) enqueue(w, ATTENTION, i);
    if (r->schedule == SL_SCHED_AEP) return SL_OK;
    memset(w->moe, 1, w->layers);
    const sl_turns_shape shape = {.n_lanes = r->lanes,
                                  .n_layers = w->layers,
                                  .moe = w->moe,
                                  .shared = r->ms[SL_STAGE_SHARED] > 0,
                                  .n_replies = r->chunks,
                                  .order = r->order};
    sl_status st = sl_turns_init(&w->turns, &shape, err);
    for (uint32_t i = 0; st == SL_OK && i < r->lanes; i++) sl_turns_open(&w->turns, i);
    return st;
}

static bool all_done(const world *w) {
    bool done = true;
    for (uint32_t i = 0; i < w->r->lanes; i++)
        done = done && (w->r->schedule == SL_SCHED_AEP ? w->batch[i].pass == w->r->iterations
                                                       : w->turns.lane[i].phase == SL_TURN_IDLE);
    return done;
}

static sl_status play(const sl_stage_run *r, double *done, sl_stage_result *out, sl_err *err) {
    world w = {.r = r, .layers = r->layers * r->iterations, .done = done};
    sl_sim_event e;
    sl_status st = create(&w, err);
    if (st == SL_OK) {
        start(&w);
        while (!w.ev.failed && sl_sim_events_pop(&w.ev, &e)) {
            handle(&w, &e);
            if (!sl_sim_events_at_once(&w.ev)) start(&w);
        }
        if (w.ev.failed) st = sl_fail(err, SL_ERR_NOMEM, "events of a simulation");
    }
    if (st == SL_OK && !all_done(&w))
        st = sl_fail(err, SL_ERR_INTERNAL, "the simulation stopped at %g ms with work left",
                     w.ev.now);
    out->makespan_ms = w.ev.now;
    out->events = w.ev.popped;
    for (int i = 0; i < SL_STAGE_COUNT; i++) out->busy[i] = w.ev.now > 0 ? w.ms[i] / w.ev.now : 0;
    sl_free(w.arrays);
    sl_sim_events_free(&w.ev);
    return st;
}

sl_status sl_stage_run_makespan(const sl_stage_run *r, sl_stage_result *out, sl_err *err) {
    *out = (sl_stage_result){0};
    sl_status st = sl_stage_run_check(r, err);
    return st == SL_OK ? play(r, NULL, out, err) : st;
}

/* Every order here falls into a cycle of some layers (one mostly, AASS two): the shortest that the
 * last of n times repeat, or the mean over the window if none is short. */
static double period_of(const double *done, size_t n, uint32_t lanes) {
    size_t last = n - 1 - (size_t)END * lanes;
    for (uint32_t q = 1; q <= WINDOW / 2; q++) {
        double length = done[last] - done[last - (size_t)q * lanes];
        bool repeats = true;
        for (size_t j = 1; repeats && j <= (size_t)q * lanes; j++) {
            double other = done[last - j] - done[last - j - (size_t)q * lanes];
            repeats = fabs(other - length) <= 1e-9 * length;
        }
        if (repeats) return length / q;
    }
    return (done[last] - done[last - (size_t)WINDOW * lanes]) / WINDOW;
}

sl_status sl_stage_run_simulate(const sl_stage_run *r, sl_stage_result *out, sl_err *err) {
    sl_status st = sl_stage_run_makespan(r, out, err);
    if (st != SL_OK) return st;
    sl_stage_run longer = *r;
    longer.iterations = (2 * WINDOW + END) / r->layers + 1;
    size_t n = (size_t)longer.iterations * r->layers * r->lanes;
    double *done = sl_alloc(n, sizeof *done);
    if (!done) return sl_fail(err, SL_ERR_NOMEM, "%zu times", n);
    sl_stage_result unused;
    st = play(&longer, done, &unused, err);
    if (st == SL_OK) out->period_ms = period_of(done, n, r->lanes);
    sl_free(done);
    return st;
}
