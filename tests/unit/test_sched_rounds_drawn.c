/* Rounds at many expert workers on a seeded network: attention workers (sl_member) that join, leave
 * and die, also in the middle of a send; connections that are noticed to be gone one after the
 * other; slow experts. A plain model of each expert worker says what has to be announced, what is
 * ready and whom it answers, from nothing but who has sent what; sl_rounds has to agree in every
 * step, every message is answered once, nothing hangs, and every place is dropped once. An argument
 * replays that seed. */
#include "base/rng.h"
#include "sched/rounds.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum {
    MAX_A = 6,
    MAX_E = 4,
    MAX_L = 3,
    MAX_C = 3,
    MAX_STEPS = 4 * MAX_C,
    MAX_NODES = MAX_A + MAX_E,
    MAX_PLACES = MAX_L * MAX_A * MAX_C,
    QUEUE = 256,
    MAX_ROUNDS = 600,
    MAX_TASKS = 256
};

typedef enum kind { JOIN, ROWS, OPEN, REPLY, DEAD, ROUND } kind;

typedef struct msg {
    kind kind;
    uint32_t who; /* worker id */
    uint32_t lane, layer, chunk;
    uint64_t round;
    uint32_t set; /* bit i: attention worker i */
    bool has_set, stay, ends;
} msg;

typedef struct fifo {
    msg m[QUEUE];
    uint32_t head, n;
} fifo;

typedef struct attention {
    bool dead;
    sl_member lane[MAX_L];
    uint32_t layer[MAX_L], replies[MAX_L][MAX_E], work[MAX_L];
    uint32_t cut[MAX_L];  /* chunks of its layer */
    uint32_t next[MAX_L]; /* set of the sequencer's last reply */
} attention;

/* The plain model of a lane at an expert worker. */
typedef struct plain_round {
    bool known, closed;      /* announced here; at the sequencer: over */
    uint32_t set, next;      /* members; of the round after it, when closed */
    uint32_t done;           /* chunks that were ready, in order */
    uint32_t sent[MAX_A];    /* chunks that came, or will not */
    uint32_t has[MAX_STEPS]; /* members that have the chunk */
} plain_round;

typedef struct plain_lane {
    plain_round round[MAX_ROUNDS];
    uint64_t newest;                    /* known */
    uint64_t current;                   /* the sequencer's */
    uint32_t open, voted, stays, joins; /* its round's set, and who said what */
} plain_lane;

typedef struct plain_task {
    uint32_t lane, layer, chunk;
    uint64_t round;
} plain_task;

typedef struct network network;

typedef struct expert {
    network *net;
    uint32_t at;
    sl_rounds *rounds;
    sl_round_msg here[MAX_PLACES];
    uint32_t ids[MAX_PLACES][MAX_A];
    bool taken[MAX_PLACES];
    bool runs;
    sl_round_task task;
    uint32_t task_next;  /* of the running task, copied */
    uint32_t dead, lost; /* members: known to be dead; whose connection is known to be gone */
    plain_lane lane[MAX_L];
    plain_task ready[MAX_TASKS];
    uint32_t n_ready, begun;
    msg said[MAX_L]; /* what the model expects to be announced last; round 0: nothing */
} expert;

struct network {
    uint64_t rng;
    uint32_t n_att, n_exp, n_lanes, n_moe, chunks;
    uint32_t deaths, arrivals;
    attention a[MAX_A];
    expert e[MAX_E];
    fifo ch[MAX_NODES][MAX_NODES];
    sl_idset members, experts;
    uint32_t member_ids[MAX_A], expert_ids[MAX_E];
    uint64_t tasks, early, sleeps, buried, replies, uneven;
    bool failed;
    char why[256];
};

static void broken(network *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void broken(network *s, const char *fmt, ...) {
    va_list ap;
    if (s->failed) return;
    s->failed = true;
    va_start(ap, fmt);
    vsnprintf(s->why, sizeof s->why, fmt, ap);
    va_end(ap);
}

static uint32_t pick(network *s, uint32_t n) {
    return (uint32_t)sl_rng_below(&s->rng, n);
}

/* Ids ascend with gaps; attention workers' lie between expert workers'. */
static uint32_t att_id(uint32_t a) {
    return 5 + 10 * a;
}
static uint32_t exp_id(uint32_t e) {
    return 10 * e;
}
static uint32_t att_at(uint32_t id) {
    return (id - 5) / 10;
}

static uint32_t mask_of(const sl_idset *set) {
    uint32_t mask = 0;
    for (size_t i = 0; i < set->n; i++) mask |= 1u << att_at(set->ids[i]);
    return mask;
}

static sl_idset set_of(uint32_t mask, uint32_t ids[MAX_A]) {
    sl_idset set = {.ids = ids};
    for (uint32_t a = 0; a < MAX_A; a++)
        if (mask >> a & 1) ids[set.n++] = att_id(a);
    return set;
}

static uint32_t exp_node(uint32_t e) {
    return MAX_A + e;
}

static void push(network *s, uint32_t from, uint32_t to, msg m) {
    fifo *q = &s->ch[from][to];
    if (to < MAX_A && s->a[to].dead) return;
    if (q->n == QUEUE)
        broken(s, "a channel is full");
    else
        q->m[(q->head + q->n++) % QUEUE] = m;
}

static void check(network *s, sl_status st, const sl_err *err, const char *where) {
    if (st != SL_OK) broken(s, "%s: %s", where, err->msg);
}

/* ---- the plain model ---- */

static uint32_t steps(const network *s) {
    return s->n_moe * s->chunks;
}

static void plain_known(expert *x, uint32_t lane, uint64_t round, uint32_t set) {
    plain_lane *l = &x->lane[lane];
    if (round >= MAX_ROUNDS) {
        broken(x->net, "too many rounds");
        return;
    }
    l->round[round].known = true;
    l->round[round].set = set;
    l->newest = round;
}

/* A chunk is ready when all members that live have sent it, and the one before was; the oldest
 * round first. */
static void plain_ready(expert *x, uint32_t lane) {
    plain_lane *l = &x->lane[lane];
    const network *s = x->net;
    for (uint64_t r = 1; r <= l->newest; r++) {
        plain_round *p = &l->round[r];
        uint32_t live = p->set & ~x->dead;
        bool all = p->known && live && p->done < steps(s);
        for (uint32_t a = 0; a < s->n_att; a++)
            all = all && (!(live >> a & 1) || p->sent[a] > p->done);
        if (!all) continue;
        if (p->has[p->done] & live)
            x->ready[x->n_ready++ % MAX_TASKS] =
                (plain_task){lane, p->done / s->chunks, p->done % s->chunks, r};
        p->done++;
        r = 0; /* from the oldest again */
    }
}

/* At the sequencer: the round is over when all that live have voted; a lane that sleeps wakes when
 * somebody joins. */
static void plain_close(expert *x, uint32_t lane) {
    plain_lane *l = &x->lane[lane];
    uint32_t live = l->open & ~x->dead;
    if (l->open == 0 ? l->joins == 0 : (live & ~l->voted) != 0) return;
    uint32_t next = (l->stays & live) | l->joins;
    if (l->open) {
        l->round[l->current].closed = true;
        l->round[l->current].next = next;
    }
    if (next) {
        plain_known(x, lane, ++l->current, next);
        x->said[lane] = (msg){.round = l->current, .set = next, .who = l->joins};
    }
    x->net->sleeps += next == 0;
    l->open = next;
    l->voted = l->stays = l->joins = 0;
}

/* ---- what rounds ask for ---- */

static void tell_set(void *ctx, bool open, const sl_idset *to, uint32_t lane, uint64_t round,
                     const sl_idset *set) {
    expert *x = ctx;
    network *s = x->net;
    uint32_t mask = mask_of(set);
    const msg *want = &x->said[lane];
    if (round != want->round || mask != want->set)
        broken(s, "expert %u announces round %u.%" PRIu64 " of %x, not %" PRIu64 " of %x", x->at,
               lane, round, mask, want->round, want->set);
    if (open ? mask_of(to) != want->who : to->n != s->n_exp - 1)
        broken(s, "round %u.%" PRIu64 " is told to others", lane, round);
    for (size_t i = 0; i < to->n; i++)
        push(s, exp_node(x->at), open ? att_at(to->ids[i]) : exp_node(to->ids[i] / 10),
             (msg){.kind = open ? OPEN : ROUND, .lane = lane, .round = round, .set = mask});
}

static void tell_dead(void *ctx, uint32_t to, uint32_t member) {
    const expert *x = ctx;
    push(x->net, exp_node(x->at), exp_node(to / 10), (msg){.kind = DEAD, .who = member});
}

static void refuse(void *ctx, uint32_t member, const char *why) {
    const expert *x = ctx;
    broken(x->net, "expert %u refuses worker %u: %s", x->at, member, why);
}

static void recall(void *ctx, uint32_t place, sl_round_msg *out) {
    *out = ((const expert *)ctx)->here[place];
}

static void drop(void *ctx, uint32_t place, bool answered) {
    expert *x = ctx;
    bool dead = x->dead >> att_at(x->here[place].member) & 1;
    if (!x->taken[place]) broken(x->net, "expert %u: place %u is dropped twice", x->at, place);
    if (!answered && !dead) broken(x->net, "expert %u drops what it owes", x->at);
    x->taken[place] = false;
    x->net->buried += !answered;
}

/* ---- expert workers ---- */

static void exp_join(network *s, expert *x, const msg *in) {
    sl_err err = {0};
    uint32_t bit = 1u << att_at(in->who);
    if (!(x->dead & bit)) x->lane[in->lane].joins |= bit;
    if (x->lane[in->lane].open == 0) plain_close(x, in->lane);
    check(s, sl_rounds_on_join(x->rounds, in->who, in->lane, &err), &err, "join");
}

static void exp_rows(network *s, expert *x, const msg *in) {
    uint32_t ids[MAX_A], place, a = att_at(in->who);
    sl_err err = {0};
    sl_round_msg m = {.member = in->who,
                      .lane = in->lane,
                      .layer = in->layer,
                      .chunk = in->chunk,
                      .round = in->round,
                      .rows = 1,
                      .ends = in->ends,
                      .stay = in->stay,
                      .with_set = in->has_set,
                      .set = set_of(in->set, ids)};
    plain_lane *l = &x->lane[in->lane];
    bool dead = x->dead >> a & 1;
    if (!dead) {
        s->early += in->round > l->newest;
        plain_round *p = &l->round[in->round];
        p->has[p->sent[a]] |= 1u << a;
        p->sent[a] = in->ends ? (in->layer + 1) * s->chunks : p->sent[a] + 1;
        if (x->at == 0 && in->layer == s->n_moe - 1 && in->chunk == s->chunks - 1) {
            l->voted |= 1u << a;
            if (in->stay) l->stays |= 1u << a;
            plain_close(x, in->lane);
        }
        plain_ready(x, in->lane);
    }
    check(s, sl_rounds_on_dispatch(x->rounds, &m, &place, &err), &err, "rows");
    if (s->failed) return;
    if ((place == SL_ROUNDS_NONE) != dead) broken(s, "rows of worker %u: dead %d", in->who, dead);
    if (dead || s->failed) return;
    if (x->taken[place]) broken(s, "place %u is taken", place);
    x->taken[place] = true;
    x->here[place] = m;
    x->here[place].set.ids = x->ids[place];
    memcpy(x->ids[place], ids, sizeof ids);
}

static void exp_round(network *s, expert *x, const msg *in) {
    uint32_t ids[MAX_A];
    sl_idset set = set_of(in->set, ids);
    sl_err err = {0};
    plain_known(x, in->lane, in->round, in->set);
    plain_ready(x, in->lane);
    if (!s->failed)
        check(s, sl_rounds_on_set(x->rounds, in->lane, in->round, &set, &err), &err, "round");
}

static void plain_dead(expert *x, uint32_t id) {
    if (x->dead >> att_at(id) & 1) return;
    x->dead |= 1u << att_at(id);
    for (uint32_t i = 0; i < x->net->n_lanes; i++) {
        x->lane[i].joins &= ~x->dead;
        if (x->at == 0) plain_close(x, i);
        plain_ready(x, i);
    }
}

static void exp_dead(network *s, expert *x, uint32_t id) {
    sl_err err = {0};
    plain_dead(x, id);
    check(s, sl_rounds_on_dead(x->rounds, id, &err), &err, "dead");
}

/* The connection ends when what was sent has come. */
static void exp_lost(network *s, expert *x, uint32_t a) {
    sl_err err = {0};
    x->lost |= 1u << a;
    if (x->at == 0) plain_dead(x, att_id(a));
    check(s, sl_rounds_on_lost(x->rounds, att_id(a), &err), &err, "lost");
}

static void exp_begin(network *s, expert *x) {
    sl_round_task *t = &x->task;
    uint32_t members = 0;
    if (!sl_rounds_begin(x->rounds, t)) {
        broken(s, "expert %u has nothing ready", x->at);
        return;
    }
    const plain_task *want = &x->ready[x->begun++ % MAX_TASKS];
    const plain_round *p = &x->lane[want->lane].round[want->round];
    if (t->lane != want->lane || t->round != want->round || t->layer != want->layer ||
        t->chunk != want->chunk)
        broken(s, "expert %u runs %u.%" PRIu64 ".%u.%u, not %u.%" PRIu64 ".%u.%u", x->at, t->lane,
               t->round, t->layer, t->chunk, want->lane, want->round, want->layer, want->chunk);
    for (uint32_t i = 0; i < t->n; i++) {
        const sl_round_msg *m = &x->here[t->place[i]];
        members |= 1u << att_at(t->member[i]);
        if (!x->taken[t->place[i]] || m->member != t->member[i] || m->lane != t->lane ||
            m->round != t->round || m->layer != t->layer || m->chunk != t->chunk)
            broken(s, "expert %u: the message of worker %u is another", x->at, t->member[i]);
    }
    uint32_t step = t->layer * s->chunks + t->chunk;
    if (members != (p->set & p->has[step] & ~x->dead))
        broken(s, "expert %u answers %x", x->at, members);
    bool last = x->at == 0 && t->layer == s->n_moe - 1 && t->chunk == s->chunks - 1;
    if ((t->next != NULL) != last || (last && (!p->closed || mask_of(t->next) != p->next)))
        broken(s, "expert %u: wrong NEXT after round %u.%" PRIu64, x->at, t->lane, t->round);
    x->task_next = t->next ? mask_of(t->next) : 0;
    x->runs = true;
    s->tasks++;
}

static void exp_end(network *s, expert *x) {
    const sl_round_task *t = &x->task;
    for (uint32_t i = 0; i < t->n; i++) {
        bool dead = x->dead >> att_at(t->member[i]) & 1;
        for (uint32_t c = 0; c <= t->chunk; c++)
            if (!x->taken[t->place[i] - c]) broken(s, "expert %u: what runs is dropped", x->at);
        if (sl_rounds_is_owed(x->rounds, t->place[i]) == dead)
            broken(s, "expert %u owes worker %u: dead %d", x->at, t->member[i], dead);
        if (dead) continue;
        push(s, exp_node(x->at), att_at(t->member[i]),
             (msg){.kind = REPLY,
                   .lane = t->lane,
                   .round = t->round,
                   .layer = t->layer,
                   .chunk = t->chunk,
                   .set = x->task_next});
        s->replies++;
    }
    x->runs = false;
    sl_rounds_end(x->rounds);
}

/* ---- attention workers ---- */

static void die(network *s, uint32_t a) {
    s->a[a].dead = true;
    s->deaths--;
    for (uint32_t e = 0; e < s->n_exp; e++) s->ch[exp_node(e)][a].n = 0;
}

static void send_join(network *s, uint32_t a, uint32_t lane, bool join) {
    if (join) push(s, a, exp_node(0), (msg){.kind = JOIN, .who = att_id(a), .lane = lane});
}

/* Sends the chunks of the current layer to all expert workers, or dies in the middle. */
static void send_layer(network *s, uint32_t a, uint32_t lane) {
    attention *w = &s->a[a];
    sl_member *m = &w->lane[lane];
    msg out = {
        .kind = ROWS, .who = att_id(a), .lane = lane, .round = m->round, .layer = w->layer[lane]};
    if (out.layer == s->n_moe - 1) {
        if (w->work[lane] > 0) w->work[lane]--;
        out.stay = w->work[lane] > 0 || pick(s, 8) == 0; /* at times a round without work */
        sl_member_vote(m, out.stay);
    }
    memset(w->replies[lane], 0, sizeof w->replies[lane]);
    w->cut[lane] = out.layer == s->n_moe - 1 ? s->chunks : 1 + pick(s, s->chunks);
    s->uneven += w->cut[lane] < s->chunks;
    uint32_t first = pick(s, s->n_exp);
    for (uint32_t i = 0; i < s->n_exp * w->cut[lane]; i++) {
        if (s->deaths > 0 && pick(s, 200) == 0) {
            die(s, a);
            return;
        }
        out.chunk = i / s->n_exp;
        out.ends = out.chunk + 1 == w->cut[lane] && w->cut[lane] < s->chunks;
        out.has_set = sl_member_needs_set(m, out.layer, out.chunk);
        out.set = out.has_set ? mask_of(&m->set) : 0;
        push(s, a, exp_node((first + i) % s->n_exp), out);
    }
}

static void att_reply(network *s, uint32_t a, uint32_t e, const msg *in) {
    attention *w = &s->a[a];
    uint32_t lane = in->lane, ids[MAX_A];
    sl_member *m = &w->lane[lane];
    if (m->state != SL_MEMBER_ROUND || in->round != m->round || in->layer != w->layer[lane] ||
        in->chunk != w->replies[lane][e])
        broken(s, "worker %u, lane %u: a reply that was not asked for", a, lane);
    w->replies[lane][e]++;
    if (e == 0) w->next[lane] = in->set;
    for (uint32_t i = 0; i < s->n_exp; i++)
        if (w->replies[lane][i] < w->cut[lane]) return;
    if (s->failed) return;
    if (++w->layer[lane] < s->n_moe) {
        send_layer(s, a, lane);
        return;
    }
    sl_idset set = set_of(w->next[lane], ids);
    bool join = false;
    sl_err err = {0};
    check(s, sl_member_next(m, m->round + 1, &set, &join, &err), &err, "next");
    w->layer[lane] = 0;
    if (s->failed) return;
    if (m->state == SL_MEMBER_ROUND) send_layer(s, a, lane);
    send_join(s, a, lane, join && !w->dead);
}

static void att_open(network *s, uint32_t a, const msg *in) {
    uint32_t ids[MAX_A];
    sl_idset set = set_of(in->set, ids);
    sl_err err = {0};
    check(s, sl_member_open(&s->a[a].lane[in->lane], in->round, &set, &err), &err, "open");
    s->a[a].layer[in->lane] = 0;
    if (!s->failed) send_layer(s, a, in->lane);
}

static void work_arrives(network *s) {
    uint32_t a = pick(s, s->n_att), lane = pick(s, s->n_lanes);
    bool join;
    s->arrivals--;
    if (s->a[a].dead) return;
    s->a[a].work[lane] += 1 + pick(s, 3);
    sl_member_want(&s->a[a].lane[lane], &join);
    send_join(s, a, lane, join);
}

/* ---- the network ---- */

static void deliver(network *s, uint32_t from, uint32_t to) {
    fifo *q = &s->ch[from][to];
    msg m = q->m[q->head];
    q->head = (q->head + 1) % QUEUE;
    q->n--;
    expert *x = to < MAX_A ? NULL : &s->e[to - MAX_A];
    switch (m.kind) {
    case JOIN:
        exp_join(s, x, &m);
        break;
    case ROWS:
        exp_rows(s, x, &m);
        break;
    case ROUND:
        exp_round(s, x, &m);
        break;
    case DEAD:
        exp_dead(s, x, m.who);
        break;
    case OPEN:
        att_open(s, to, &m);
        break;
    case REPLY:
        att_reply(s, to, from - MAX_A, &m);
    }
}

/* One of everything that could happen now; false if nothing is left. */
static bool step(network *s) {
    struct {
        uint32_t what, x, y;
    } can[256];
    uint32_t n = 0, a = pick(s, s->n_att);
    if (s->arrivals > 0 && pick(s, 6) == 0) {
        work_arrives(s);
        return true;
    }
    if (s->deaths > 0 && pick(s, 150) == 0 && !s->a[a].dead) {
        die(s, a);
        return true;
    }
    for (uint32_t i = 0; i < MAX_NODES; i++)
        for (uint32_t j = 0; j < MAX_NODES; j++)
            if (s->ch[i][j].n > 0) can[n].what = 0, can[n].x = i, can[n++].y = j;
    for (uint32_t e = 0; e < s->n_exp; e++) {
        expert *x = &s->e[e];
        if (x->runs || x->begun < x->n_ready) can[n].what = 1, can[n++].x = e;
        for (a = 0; a < s->n_att; a++)
            if (s->a[a].dead && !(x->lost >> a & 1) && s->ch[a][exp_node(e)].n == 0)
                can[n].what = 2, can[n].x = e, can[n++].y = a;
    }
    if (n == 0) return s->arrivals > 0;
    uint32_t i = pick(s, n);
    if (can[i].what == 0)
        deliver(s, can[i].x, can[i].y);
    else if (can[i].what == 2)
        exp_lost(s, &s->e[can[i].x], can[i].y);
    else if (s->e[can[i].x].runs)
        exp_end(s, &s->e[can[i].x]);
    else
        exp_begin(s, &s->e[can[i].x]);
    return true;
}

static void check_end(network *s) {
    uint32_t lane, layer;
    bool some;
    for (uint32_t i = 0; i < s->n_lanes; i++)
        for (uint32_t a = 0; a < s->n_att; a++)
            if (!s->a[a].dead && (s->a[a].lane[i].state != SL_MEMBER_IDLE || s->a[a].work[i]))
                broken(s, "lane %u: worker %u hangs in state %d", i, a, s->a[a].lane[i].state);
    for (uint32_t e = 0; e < s->n_exp; e++) {
        expert *x = &s->e[e];
        if (sl_rounds_waiting(x->rounds, &lane, &layer, &some))
            broken(s, "expert %u waits in lane %u", e, lane);
        if (sl_rounds_rows(x->rounds)) broken(s, "expert %u has rows", e);
        for (uint32_t i = 0; i < sl_rounds_places(x->rounds); i++)
            if (x->taken[i]) broken(s, "expert %u: place %u is not dropped", e, i);
    }
}

static void start(network *s, uint64_t seed) {
    sl_err err = {0};
    memset(s, 0, sizeof *s);
    s->rng = seed;
    s->n_att = 1 + pick(s, MAX_A);
    s->n_exp = 1 + pick(s, MAX_E);
    s->n_lanes = 1 + pick(s, MAX_L);
    s->chunks = 1 + pick(s, MAX_C);
    s->n_moe = 1 + pick(s, 3);
    s->arrivals = 5 + pick(s, 60);
    s->deaths = pick(s, s->n_att + 1);
    for (uint32_t i = 0; i < s->n_att; i++) s->member_ids[i] = att_id(i);
    for (uint32_t i = 0; i < s->n_exp; i++) s->expert_ids[i] = exp_id(i);
    s->members = (sl_idset){.ids = s->member_ids, .n = s->n_att};
    s->experts = (sl_idset){.ids = s->expert_ids, .n = s->n_exp};
    for (uint32_t a = 0; a < s->n_att; a++)
        for (uint32_t i = 0; i < s->n_lanes; i++)
            check(s, sl_member_init(&s->a[a].lane[i], att_id(a), s->n_att, &err), &err, "member");
    for (uint32_t e = 0; e < s->n_exp; e++) {
        expert *x = &s->e[e];
        x->net = s;
        x->at = e;
        const sl_rounds_shape shape = {.n_lanes = s->n_lanes,
                                       .n_moe = s->n_moe,
                                       .chunks = s->chunks,
                                       .self = exp_id(e),
                                       .members = &s->members,
                                       .experts = &s->experts,
                                       .ops = {tell_set, tell_dead, refuse, recall, drop},
                                       .ctx = x};
        check(s, sl_rounds_create(&shape, &x->rounds, &err), &err, "create");
    }
}

static bool run(network *s, uint64_t seed) {
    uint32_t n = 0;
    start(s, seed);
    while (!s->failed && step(s))
        if (++n > 1000000) broken(s, "no end after %u steps", n);
    if (!s->failed) check_end(s);
    for (uint32_t e = 0; e < s->n_exp; e++) sl_rounds_free(s->e[e].rounds);
    for (uint32_t a = 0; a < s->n_att; a++)
        for (uint32_t i = 0; i < s->n_lanes; i++) sl_member_free(&s->a[a].lane[i]);
    return !s->failed;
}

static uint64_t only_seed;

static void drawn_networks(void **state) {
    (void)state;
    static network s;
    uint64_t first = only_seed ? only_seed : 1, n = only_seed ? 1 : 1500;
    uint64_t tasks = 0, early = 0, sleeps = 0, buried = 0, replies = 0, uneven = 0;
    for (uint64_t seed = first; seed < first + n; seed++) {
        if (!run(&s, seed)) fail_msg("seed %" PRIu64 ": %s", seed, s.why);
        tasks += s.tasks;
        early += s.early;
        sleeps += s.sleeps;
        buried += s.buried;
        replies += s.replies;
        uneven += s.uneven;
    }
    print_message("%" PRIu64 " seeds: %" PRIu64 " chunks, %" PRIu64 " answers, %" PRIu64
                  " messages before their round's announcement, %" PRIu64 " sleeps, %" PRIu64
                  " messages of the dead dropped\n",
                  n, tasks, replies, early, sleeps, buried);
    if (!only_seed)
        assert_true(tasks > 100 * n && early > n && sleeps > n && buried > n / 10 && uneven > n);
}

int main(int argc, char **argv) {
    if (argc > 1) only_seed = strtoull(argv[1], NULL, 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(drawn_networks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
