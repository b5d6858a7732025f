/* Rounds at an expert worker: places of messages, what is ready in order, and the driving of
 * barriers and sequencers. */
#include "sched/rounds.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"

typedef enum state {
    EMPTY,
    EARLY,    /* its round is not announced here yet: it still has to go to the barrier */
    WAITS,    /* at the barrier */
    READY,    /* in `task` */
    ANSWERED, /* other chunks of its layer are not */
    LEFT,     /* its sender went while its task runs... */
    GONE,     /* ...which has ended */
} state;

typedef struct place {
    uint32_t state, layer, rows, task;
    bool ends; /* no chunk of the layer follows */
} place;

/* NEXT of a round that is closed and whose last chunk has not run. */
typedef struct next_set {
    uint64_t round;
    sl_idset set;
} next_set;

typedef struct lane_state {
    sl_barrier *barrier;
    sl_seq *seq;      /* NULL unless this worker is the sequencer */
    uint32_t n_here;  /* messages that are not answered */
    uint32_t n_early; /* of them */
    next_set *next;   /* [cap_next], the first n_next of ascending rounds in use */
    size_t n_next, cap_next;
} lane_state;

typedef struct task {
    uint32_t lane, layer, chunk, rows;
    uint64_t round;
} task;

struct sl_rounds {
    sl_rounds_shape shape;
    uint32_t n_members;
    uint8_t *dead;  /* [n_members] */
    sl_idset peers; /* the sequencer's: other expert workers */
    sl_idset lost;  /* expert workers that count as lost */
    uint32_t sequencer;
    bool leaderless;  /* it is gone */
    lane_state *lane; /* [n_lanes] */
    place *place;     /* [n_lanes][n_members][chunks] */
    task *task;       /* ring */
    uint32_t cap, head, n;
    uint64_t rows;                           /* of the ring's, but for one that runs */
    bool runs;                               /* the ring's first */
    uint32_t n_run, *run_member, *run_place; /* [n_members] its members */
    sl_idset run_next;
    void *arrays; /* what they are all in */
};

/* Rounds of a lane that are closed and not over: one, and one more when a joiner is early. */
#define NEXT_AT_FIRST 2
/* That a member may make without this worker before the sequencer hears of it, too. */
#define ROUNDS_WITHOUT 64u

/* ---- places ---- */

static bool find_member(const sl_rounds *r, uint32_t worker, uint32_t *at) {
    size_t index;
    bool found = sl_idset_find(r->shape.members, worker, &index);
    *at = (uint32_t)index;
    return found;
}

/* Of the member's first chunk. */
static uint32_t first_place(const sl_rounds *r, uint32_t lane, uint32_t at) {
    return (lane * r->n_members + at) * r->shape.chunks;
}

uint32_t sl_rounds_places(const sl_rounds *r) {
    return r->shape.n_lanes * r->n_members * r->shape.chunks;
}

uint32_t sl_rounds_place(const sl_rounds *r, uint32_t lane, uint32_t member, uint32_t chunk) {
    uint32_t at;
    bool found = find_member(r, member, &at);
    SL_ASSERT(found && lane < r->shape.n_lanes && chunk < r->shape.chunks);
    return first_place(r, lane, at) + chunk;
}

/* Not answered, and to be. */
static bool is_here(const place *p) {
    return p->state == EARLY || p->state == WAITS || p->state == READY;
}

bool sl_rounds_is_owed(const sl_rounds *r, uint32_t id) {
    return r->runs && r->place[id].state == READY && r->place[id].task == r->head;
}

static void vacate(sl_rounds *r, uint32_t lane, place *p) {
    r->lane[lane].n_here -= is_here(p);
    r->lane[lane].n_early -= p->state == EARLY;
    *p = (place){0};
}

/* The place of a member's message in the running task; NULL: there is none. */
static place *running_place(const sl_rounds *r, uint32_t lane, uint32_t at) {
    const task *t = &r->task[r->head];
    if (!r->runs || t->lane != lane) return NULL;
    place *p = &r->place[first_place(r, lane, at) + t->chunk];
    return p->state == LEFT || (p->state == READY && p->task == r->head) ? p : NULL;
}

/* Forgets what a member sent for its layer: now, or when the task ends that may use all of it. */
static void drop_chunks(sl_rounds *r, uint32_t lane, uint32_t at) {
    place *running = running_place(r, lane, at);
    if (running) {
        r->lane[lane].n_here -= is_here(running);
        running->state = LEFT;
        return;
    }
    for (uint32_t c = 0; c < r->shape.chunks; c++) {
        uint32_t id = first_place(r, lane, at) + c;
        place *p = &r->place[id];
        if (p->state == EMPTY) continue;
        bool answered = p->state == ANSWERED;
        vacate(r, lane, p);
        r->shape.ops.drop(r->shape.ctx, id, answered);
    }
}

/* ---- who is who ---- */

bool sl_rounds_is_sequencer(const sl_rounds *r) {
    return r->sequencer == r->shape.self;
}

bool sl_rounds_is_dead(const sl_rounds *r, uint32_t worker) {
    uint32_t at;
    return find_member(r, worker, &at) && r->dead[at];
}

bool sl_rounds_may_announce(const sl_rounds *r, uint32_t src) {
    return sl_rounds_is_sequencer(r) ? sl_idset_has(&r->peers, src) : src == r->sequencer;
}

bool sl_rounds_heeds(const sl_rounds *r, uint32_t src) {
    return !sl_idset_has(&r->lost, src);
}

bool sl_rounds_waits(const sl_rounds *r, uint32_t member) {
    uint32_t at;
    if (!find_member(r, member, &at)) return false;
    for (uint32_t lane = 0; lane < r->shape.n_lanes; lane++) {
        const place *p = &r->place[first_place(r, lane, at)];
        for (uint32_t c = 0; r->lane[lane].n_here > 0 && c < r->shape.chunks; c++)
            if (p[c].state == WAITS) return true;
    }
    return false;
}

bool sl_rounds_awaits_others(const sl_rounds *r, uint32_t id) {
    const lane_state *l = &r->lane[id / (r->n_members * r->shape.chunks)];
    uint64_t round;
    uint32_t layer;
    const sl_idset *missing;
    return r->place[id].state == WAITS &&
           sl_barrier_waiting(l->barrier, &round, &layer, &missing) &&
           !sl_idset_has(missing, r->shape.self);
}

static void tell_dead(sl_rounds *r, uint32_t to, uint32_t member) {
    if (to != member) r->shape.ops.tell_dead(r->shape.ctx, to, member);
}

static bool is_last(const sl_rounds *r, uint32_t layer, uint32_t chunk) {
    return layer == r->shape.n_moe - 1 && chunk == r->shape.chunks - 1;
}

/* ---- what is ready ---- */

/* Every message at the barrier is ready at most once, so the ring has room for all of them; not for
 * those that are dropped and sent again by members that break the rules faster than they go. */
static sl_status push_ready(sl_rounds *r, uint32_t lane, const sl_ready *ready, sl_err *err) {
    if (r->n == r->cap)
        return sl_fail(err, SL_ERR_INTERNAL, "%" PRIu32 " chunks are ready at once", r->n);
    uint32_t id = (r->head + r->n++) % r->cap, at;
    task *t = &r->task[id];
    *t = (task){.lane = lane, .layer = ready->layer, .chunk = ready->chunk, .round = ready->round};
    for (size_t i = 0; i < ready->reply_to->n; i++) {
        if (!find_member(r, ready->reply_to->ids[i], &at)) continue;
        place *p = &r->place[first_place(r, lane, at) + ready->chunk];
        if (p->state != WAITS) continue;
        p->state = READY;
        p->task = id;
        t->rows += p->rows;
    }
    r->rows += t->rows;
    return SL_OK;
}

/* Without rounds: the message runs by itself. */
static sl_status push_alone(sl_rounds *r, uint32_t lane, uint32_t chunk, place *p, uint64_t round,
                            sl_err *err) {
    if (r->n == r->cap)
        return sl_fail(err, SL_ERR_INTERNAL, "%" PRIu32 " chunks are ready at once", r->n);
    uint32_t id = (r->head + r->n++) % r->cap;
    r->task[id] =
        (task){.lane = lane, .layer = p->layer, .chunk = chunk, .rows = p->rows, .round = round};
    r->lane[lane].n_early -= p->state == EARLY;
    p->state = READY;
    p->task = id;
    r->rows += p->rows;
    return SL_OK;
}

static sl_status pop_ready(sl_rounds *r, uint32_t lane, sl_err *err) {
    sl_ready ready;
    sl_status st = SL_OK;
    while (st == SL_OK && !r->leaderless && sl_barrier_pop(r->lane[lane].barrier, &ready))
        st = push_ready(r, lane, &ready, err);
    return st;
}

/* ---- rounds begin ---- */

static sl_status reserve_next(sl_rounds *r, lane_state *l, size_t cap, sl_err *err) {
    if (cap <= l->cap_next) return SL_OK;
    next_set *next = sl_grow(l->next, l->cap_next, cap, sizeof *next);
    if (!next) return sl_fail(err, SL_ERR_NOMEM, "no memory for %zu sets of members", cap);
    l->next = next;
    while (l->cap_next < cap) {
        sl_status st = sl_idset_reserve(&next[l->cap_next].set, r->n_members, err);
        if (st != SL_OK) return st;
        l->cap_next++;
    }
    return SL_OK;
}

/* The set that last answers of the round before carry. */
static sl_status keep_next(sl_rounds *r, lane_state *l, uint64_t round, const sl_idset *set,
                           sl_err *err) {
    sl_status st = reserve_next(r, l, l->n_next + 1, err);
    if (st == SL_OK) st = sl_idset_copy(set, &l->next[l->n_next].set, err);
    if (st == SL_OK) l->next[l->n_next++].round = round;
    return st;
}

static sl_status begin_round(sl_rounds *r, uint32_t lane, uint64_t round, const sl_idset *set,
                             sl_err *err) {
    uint32_t absentee;
    sl_status st = sl_barrier_open(r->lane[lane].barrier, round, set, &absentee, err);
    if (st == SL_OK && absentee != SL_NOBODY)
        r->shape.ops.refuse(r->shape.ctx, absentee,
                            "votes for rounds at the sequencer and sends nothing here");
    return st;
}

/* What the sequencer decided: NEXT for the last answers, and who is in the new round. */
static sl_status apply(sl_rounds *r, uint32_t lane, const sl_seq_out *out, sl_err *err) {
    const sl_rounds_ops *ops = &r->shape.ops;
    sl_status st = SL_OK;
    if (out->closed) st = keep_next(r, &r->lane[lane], out->round, out->set, err);
    if (st != SL_OK || out->round == 0 || out->set->n == 0) return st;
    if (r->peers.n) ops->tell_set(r->shape.ctx, false, &r->peers, lane, out->round, out->set);
    if (out->open_to->n)
        ops->tell_set(r->shape.ctx, true, out->open_to, lane, out->round, out->set);
    return begin_round(r, lane, out->round, out->set, err);
}

sl_status sl_rounds_on_join(sl_rounds *r, uint32_t member, uint32_t lane, sl_err *err) {
    sl_seq_out out = {0};
    uint32_t at;
    if (!sl_rounds_is_sequencer(r) || lane >= r->shape.n_lanes || !find_member(r, member, &at))
        return sl_fail(err, SL_ERR_PROTOCOL, "join of lane %" PRIu32 " from worker %" PRIu32, lane,
                       member);
    sl_status st = sl_seq_join(r->lane[lane].seq, member, &out, err);
    return st == SL_OK && !out.dropped ? apply(r, lane, &out, err) : st;
}

/* ---- members die ---- */

static sl_status bury(sl_rounds *r, uint32_t lane, uint32_t at, bool *announce, sl_err *err) {
    lane_state *l = &r->lane[lane];
    uint32_t member = r->shape.members->ids[at];
    sl_seq_out out = {0};
    sl_status st = SL_OK;
    if (l->seq) st = sl_seq_dead(l->seq, member, &out, err);
    if (st == SL_OK && l->seq) st = apply(r, lane, &out, err);
    *announce = *announce || out.announce;
    drop_chunks(r, lane, at);
    if (st == SL_OK) st = sl_barrier_dead(l->barrier, member, err);
    return st == SL_OK ? pop_ready(r, lane, err) : st;
}

sl_status sl_rounds_on_dead(sl_rounds *r, uint32_t member, sl_err *err) {
    uint32_t at;
    if (!find_member(r, member, &at) || member == r->shape.self)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "death of worker %" PRIu32 ", which is no member of others", member);
    if (r->dead[at]) return SL_OK;
    r->dead[at] = 1;
    sl_status st = SL_OK;
    bool announce = false;
    for (uint32_t i = 0; st == SL_OK && i < r->shape.n_lanes; i++)
        st = bury(r, i, at, &announce, err);
    for (size_t i = 0; announce && i < r->peers.n; i++) tell_dead(r, r->peers.ids[i], member);
    return st;
}

sl_status sl_rounds_on_lost(sl_rounds *r, uint32_t member, sl_err *err) {
    if (sl_rounds_is_sequencer(r) || r->leaderless) return sl_rounds_on_dead(r, member, err);
    if (!sl_rounds_is_dead(r, member)) tell_dead(r, r->sequencer, member);
    return SL_OK;
}

/* ---- messages ---- */

sl_status sl_rounds_check(const sl_rounds *r, const sl_round_msg *m, sl_err *err) {
    const sl_rounds_shape *s = &r->shape;
    uint32_t at;
    if (!find_member(r, m->member, &at))
        return sl_fail(err, SL_ERR_PROTOCOL, "dispatch from worker %" PRIu32, m->member);
    if (m->lane >= s->n_lanes || m->layer >= s->n_moe || m->chunk >= s->chunks)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "dispatch for lane %" PRIu32 " of %" PRIu32 ", layer %" PRIu32 " of %" PRIu32
                       ", chunk %" PRIu32 " of %" PRIu32,
                       m->lane, s->n_lanes, m->layer, s->n_moe, m->chunk, s->chunks);
    /* The last chunk of the last layer votes and is answered with who is next. */
    if (m->ends && m->layer == s->n_moe - 1)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "dispatch of layer %" PRIu32 ", the last, that ends with chunk %" PRIu32,
                       m->layer, m->chunk);
    return SL_OK;
}

/* The sequencer itself knows every round before a member does. */
static bool comes_early(const sl_rounds *r, const sl_round_msg *m) {
    return !sl_rounds_is_sequencer(r) && sl_barrier_is_early(r->lane[m->lane].barrier, m->round);
}

/* *dropped: its sender is dead. */
static sl_status arrive(sl_rounds *r, const sl_round_msg *m, bool *dropped, sl_err *err) {
    return sl_barrier_arrive(r->lane[m->lane].barrier, m->member, m->round, m->layer, m->chunk,
                             m->ends, m->with_set ? &m->set : NULL, dropped, err);
}

static sl_status vote(sl_rounds *r, const sl_round_msg *m, sl_err *err) {
    sl_seq *seq = r->lane[m->lane].seq;
    sl_seq_out out = {0};
    if (!seq || !is_last(r, m->layer, m->chunk)) return SL_OK;
    sl_status st = sl_seq_last(seq, m->member, m->round, m->stay, &out, err);
    return st == SL_OK && !out.dropped ? apply(r, m->lane, &out, err) : st;
}

sl_status sl_rounds_on_dispatch(sl_rounds *r, const sl_round_msg *m, uint32_t *out, sl_err *err) {
    bool dropped = false;
    *out = SL_ROUNDS_NONE;
    sl_status st = sl_rounds_check(r, m, err);
    if (st != SL_OK || sl_rounds_is_dead(r, m->member)) return st;
    uint32_t id = sl_rounds_place(r, m->lane, m->member, m->chunk);
    place *p = &r->place[id];
    /* The barrier counts a message as answered when it is ready, which is before it is. */
    if (p->state != EMPTY)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "worker %" PRIu32 " sent layer %" PRIu32 " of round %" PRIu64
                       " before its reply to layer %" PRIu32,
                       m->member, m->layer, m->round, p->layer);
    bool early = !r->leaderless && comes_early(r, m);
    if (!early && !r->leaderless) st = arrive(r, m, &dropped, err);
    if (st != SL_OK || dropped) return st;
    *p = (place){.state = early ? EARLY : WAITS,
                 .layer = m->layer,
                 .rows = m->rows,
                 .ends = m->ends || m->chunk == r->shape.chunks - 1};
    r->lane[m->lane].n_here++;
    r->lane[m->lane].n_early += early;
    if (r->leaderless)
        st = push_alone(r, m->lane, m->chunk, p, m->round, err);
    else
        st = vote(r, m, err);
    if (st == SL_OK) st = pop_ready(r, m->lane, err);
    if (st == SL_OK)
        *out = id;
    else
        vacate(r, m->lane, p);
    return st;
}

/* Messages that came before their round was announced go to the barrier now. */
static void admit_early(sl_rounds *r, uint32_t lane) {
    lane_state *l = &r->lane[lane];
    uint32_t n = r->n_members * r->shape.chunks, first = first_place(r, lane, 0);
    for (uint32_t id = first; l->n_early > 0 && id < first + n; id++) {
        place *p = &r->place[id];
        sl_round_msg m;
        sl_err err = {0};
        bool dropped = false;
        if (p->state != EARLY) continue;
        r->shape.ops.recall(r->shape.ctx, id, &m);
        if (comes_early(r, &m)) continue;
        p->state = WAITS;
        l->n_early--;
        if (arrive(r, &m, &dropped, &err) == SL_OK && !dropped) continue;
        drop_chunks(r, lane, (id - first) / r->shape.chunks);
        if (!dropped) r->shape.ops.refuse(r->shape.ctx, m.member, err.msg);
    }
}

sl_status sl_rounds_on_set(sl_rounds *r, uint32_t lane, uint64_t round, const sl_idset *set,
                           sl_err *err) {
    uint32_t at;
    if (lane >= r->shape.n_lanes)
        return sl_fail(err, SL_ERR_PROTOCOL, "round of lane %" PRIu32 " of %" PRIu32, lane,
                       r->shape.n_lanes);
    for (size_t i = 0; i < set->n; i++) {
        if (!find_member(r, set->ids[i], &at))
            return sl_fail(err, SL_ERR_PROTOCOL, "round with worker %" PRIu32, set->ids[i]);
    }
    if (r->leaderless) return SL_OK; /* its last word, which nobody needs */
    sl_status st = begin_round(r, lane, round, set, err);
    if (st != SL_OK) return st;
    admit_early(r, lane);
    return pop_ready(r, lane, err);
}

sl_status sl_rounds_on_expert_lost(sl_rounds *r, uint32_t worker, sl_err *err) {
    sl_status st = SL_OK;
    if (worker == r->shape.self || !sl_idset_has(r->shape.experts, worker)) return SL_OK;
    if (!sl_idset_has(&r->lost, worker)) st = sl_idset_add(&r->lost, worker, err);
    return st == SL_OK && worker == r->sequencer ? sl_rounds_on_leaderless(r, err) : st;
}

/* Chunk by chunk, as later ones may refer to the rows of earlier ones. */
sl_status sl_rounds_on_leaderless(sl_rounds *r, sl_err *err) {
    sl_status st = SL_OK;
    if (r->leaderless || sl_rounds_is_sequencer(r)) return SL_OK;
    r->leaderless = true;
    for (uint32_t id = 0; st == SL_OK && id < sl_rounds_places(r); id++) {
        place *p = &r->place[id];
        sl_round_msg m;
        if (p->state != EARLY && p->state != WAITS) continue;
        r->shape.ops.recall(r->shape.ctx, id, &m);
        st = push_alone(r, m.lane, m.chunk, p, m.round, err);
    }
    return st;
}

/* ---- work ---- */

/* The oldest NEXT is over; its memory waits at the end to be used again. */
static void drop_next(lane_state *l) {
    next_set old = l->next[0];
    memmove(l->next, l->next + 1, (l->cap_next - 1) * sizeof *l->next);
    l->next[l->cap_next - 1] = old;
    l->n_next--;
}

/* NEXT for the answers of the task, out of the lane, with those of rounds that died out before
 * their last chunk ran. */
static const sl_idset *take_next(sl_rounds *r, const task *t) {
    lane_state *l = &r->lane[t->lane];
    const sl_idset *found = NULL;
    if (!is_last(r, t->layer, t->chunk)) return NULL;
    while (l->n_next > 0 && l->next[0].round <= t->round + 1) {
        if (l->next[0].round == t->round + 1) {
            sl_idset swap = r->run_next;
            r->run_next = l->next[0].set;
            l->next[0].set = swap;
            found = &r->run_next;
        }
        drop_next(l);
    }
    return found;
}

static void tell(const sl_rounds *r, const task *t) {
    const sl_watch *watch = r->shape.watch;
    sl_watch_tell(watch, TASK, t->lane, t->layer, t->chunk, t->round, r->n_run, t->rows);
    for (uint32_t i = 0; watch && i < r->n_run; i++) sl_watch_tell(watch, MEMBER, r->run_member[i]);
}

bool sl_rounds_begin(sl_rounds *r, sl_round_task *out) {
    SL_ASSERT(!r->runs);
    if (r->n == 0) return false;
    const task *t = &r->task[r->head];
    r->runs = true;
    r->rows -= t->rows;
    r->n_run = 0;
    for (uint32_t at = 0; at < r->n_members; at++) {
        uint32_t id = first_place(r, t->lane, at) + t->chunk;
        if (r->place[id].state != READY || r->place[id].task != r->head) continue;
        r->run_member[r->n_run] = r->shape.members->ids[at];
        r->run_place[r->n_run++] = id;
    }
    tell(r, t);
    *out = (sl_round_task){.lane = t->lane,
                           .layer = t->layer,
                           .chunk = t->chunk,
                           .round = t->round,
                           .n = r->n_run,
                           .member = r->run_member,
                           .place = r->run_place,
                           .next = take_next(r, t)};
    return true;
}

void sl_rounds_end(sl_rounds *r) {
    SL_ASSERT(r->runs);
    const task *t = &r->task[r->head];
    uint32_t first = first_place(r, t->lane, 0);
    for (uint32_t i = 0; i < r->n_run; i++) {
        place *p = &r->place[r->run_place[i]];
        bool left = p->state == LEFT;
        r->lane[t->lane].n_here -= is_here(p);
        p->state = left ? GONE : ANSWERED;
        if (left || p->ends) drop_chunks(r, t->lane, (r->run_place[i] - first) / r->shape.chunks);
    }
    r->head = (r->head + 1) % r->cap;
    r->n--;
    r->runs = false;
}

uint64_t sl_rounds_rows(const sl_rounds *r) {
    return r->rows;
}

bool sl_rounds_waiting(sl_rounds *r, uint32_t *lane, uint32_t *layer, bool *some) {
    bool any = false;
    *some = false;
    for (uint32_t i = 0; i < r->shape.n_lanes && !*some && !r->leaderless; i++) {
        uint64_t round;
        uint32_t of;
        const sl_idset *missing;
        if (!sl_barrier_waiting(r->lane[i].barrier, &round, &of, &missing)) continue;
        any = true;
        *lane = i;
        *layer = of;
        *some = r->lane[i].n_here > 0;
    }
    return any;
}

/* ---- life ---- */

static sl_status create_lane(sl_rounds *r, lane_state *l, sl_err *err) {
    const sl_rounds_shape *s = &r->shape;
    sl_status st = sl_barrier_create(s->n_moe, s->chunks, r->n_members, &l->barrier, err);
    if (st != SL_OK) return st;
    sl_barrier_reset(l->barrier, s->epoch);
    if (s->spare) sl_barrier_bear(l->barrier, ROUNDS_WITHOUT);
    if (!sl_rounds_is_sequencer(r)) return SL_OK;
    st = sl_seq_create(r->n_members, &l->seq, err);
    if (st == SL_OK) st = reserve_next(r, l, NEXT_AT_FIRST, err);
    if (st == SL_OK) sl_seq_reset(l->seq, s->epoch);
    return st;
}

static sl_status create_peers(sl_rounds *r, sl_err *err) {
    if (!sl_rounds_is_sequencer(r)) return SL_OK;
    sl_status st = sl_idset_copy(r->shape.experts, &r->peers, err);
    if (st == SL_OK) st = sl_idset_reserve(&r->run_next, r->n_members, err);
    if (st == SL_OK) sl_idset_remove(&r->peers, r->shape.self);
    return st;
}

static sl_status create(sl_rounds *r, sl_err *err) {
    size_t places = (size_t)r->shape.n_lanes * r->n_members * r->shape.chunks;
    if (places == 0 || places >= SL_ROUNDS_NONE || !sl_idset_has(r->shape.experts, r->shape.self))
        return sl_fail(err, SL_ERR_ARG,
                       "rounds of %" PRIu32 " members, %" PRIu32 " lanes, %" PRIu32
                       " chunks at worker %" PRIu32,
                       r->n_members, r->shape.n_lanes, r->shape.chunks, r->shape.self);
    r->cap = (uint32_t)places;
    r->sequencer = r->shape.experts->ids[0];
    r->arrays = sl_alloc_arrays(SL_ARRAY(r->dead, r->n_members),
                                SL_ARRAY(r->lane, r->shape.n_lanes), SL_ARRAY(r->place, places),
                                SL_ARRAY(r->task, places), SL_ARRAY(r->run_member, r->n_members),
                                SL_ARRAY(r->run_place, r->n_members));
    if (!r->arrays)
        return sl_fail(err, SL_ERR_NOMEM, "no memory for %zu messages of rounds", places);
    sl_status st = create_peers(r, err);
    if (st == SL_OK) st = sl_idset_reserve(&r->lost, r->shape.experts->n, err);
    for (uint32_t i = 0; st == SL_OK && i < r->shape.n_lanes; i++)
        st = create_lane(r, &r->lane[i], err);
    return st;
}

sl_status sl_rounds_create(const sl_rounds_shape *shape, sl_rounds **out, sl_err *err) {
    *out = NULL;
    sl_rounds *r = sl_alloc(1, sizeof *r);
    if (!r) return sl_fail(err, SL_ERR_NOMEM, "no memory for rounds");
    r->shape = *shape;
    r->n_members = (uint32_t)shape->members->n;
    sl_status st = create(r, err);
    if (st == SL_OK)
        *out = r;
    else
        sl_rounds_free(r);
    return st;
}

void sl_rounds_reset(sl_rounds *r, uint64_t epoch) {
    r->runs = false;
    for (uint32_t i = 0; i < r->shape.n_lanes; i++) {
        lane_state *l = &r->lane[i];
        for (uint32_t at = 0; at < r->n_members; at++) drop_chunks(r, i, at);
        l->n_next = 0;
        sl_barrier_reset(l->barrier, epoch);
        if (l->seq) sl_seq_reset(l->seq, epoch);
    }
    r->shape.epoch = epoch;
    r->leaderless = false;
    sl_idset_clear(&r->lost);
    r->head = r->n = 0;
    r->rows = 0;
}

void sl_rounds_free(sl_rounds *r) {
    if (!r) return;
    for (uint32_t i = 0; r->lane && i < r->shape.n_lanes; i++) {
        lane_state *l = &r->lane[i];
        sl_barrier_free(l->barrier);
        sl_seq_free(l->seq);
        for (size_t j = 0; j < l->cap_next; j++) sl_idset_free(&l->next[j].set);
        sl_free(l->next);
    }
    sl_idset_free(&r->peers);
    sl_idset_free(&r->lost);
    sl_idset_free(&r->run_next);
    sl_free(r->arrays);
    sl_free(r);
}
