/* The membership state machines of many workers on a seeded network: ordered channels per pair,
 * delivered in random order, with joins, leaves, deaths (also in the middle of a send), late
 * announcements, slow expert work and lost expert workers. The same properties as in
 * tests/model/membership.pml are checked, on the code itself. An argument
 * replays that seed. */
#include "sanitized.h"
#include "sched/membership.h"

#include "base/rng.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum {
    MAX_A = 7,
    MAX_E = 4,
    MAX_L = 3,
    MAX_C = 3,
    MAX_NODES = MAX_A + MAX_E,
    QUEUE = 128,
    MAX_ROUNDS = 4096
};

typedef enum { JOIN, ROWS, OPEN, REPLY, DEAD, SET } kind;

/* A fault planted to see that the checks see it. */
typedef enum { NO_FAULT, NO_ANNOUNCE, LOSE_OPEN, LOSE_SET, FLIP_VOTE, OMIT_JOINER } fault;

typedef struct msg {
    kind kind;
    uint64_t epoch, round;
    uint32_t lane, layer, chunk, who;
    uint64_t set; /* bit i: attention worker i */
    bool has_set, stay, ends;
} msg;

typedef struct queue {
    msg m[QUEUE];
    size_t head, n;
} queue;

typedef struct att {
    bool dead, detected;
    sl_member lane[MAX_L];
    uint32_t layer[MAX_L];
    uint32_t replies[MAX_L][MAX_E]; /* chunks of this layer that each expert worker has answered */
    msg next[MAX_L];                /* what the sequencer's last reply said */
    uint32_t cut[MAX_L];            /* chunks of this layer */
    uint32_t was_cut[MAX_L][2][3];  /* ghost: of even and odd rounds' layers */
    uint32_t work[MAX_L];           /* rounds still wanted */
} att;

typedef struct expert {
    bool lost;
    sl_seq *seq[MAX_L];
    sl_barrier *bar[MAX_L];
    queue jobs[MAX_L]; /* layers that ran and whose replies (set: to whom) are not out yet */
    uint64_t next_round[MAX_L], next_set[MAX_L];
    uint32_t sent[MAX_L][MAX_A]; /* ghost: messages taken from each and not replied to */
} expert;

typedef struct sim {
    uint64_t seed, rng, epoch;
    fault fault;
    uint32_t n_att, n_exp, n_lanes, n_moe, n_chunks;
    uint32_t deaths, losses, arrivals; /* how many may still happen */
    att a[MAX_A];
    expert e[MAX_E];
    queue ch[MAX_NODES][MAX_NODES];
    uint64_t truth[MAX_L][MAX_ROUNDS]; /* ghost: the set the sequencer fixed, of this epoch */
    uint64_t left[MAX_L];              /* ghost: said LEAVE and has not joined since */
    uint64_t rounds_done, sleeps, early, dropped, held, uneven;
    bool failed;
    char why[256];
} sim;

static void broken(sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void broken(sim *s, const char *fmt, ...) {
    va_list ap;
    if (s->failed) return;
    s->failed = true;
    va_start(ap, fmt);
    vsnprintf(s->why, sizeof s->why, fmt, ap);
    va_end(ap);
}

static uint32_t pick(sim *s, uint32_t n) {
    return (uint32_t)sl_rng_below(&s->rng, n);
}

static uint32_t id_of(uint32_t a) {
    return 3 + 1000003u * (MAX_A - a);
} /* sparse, descending */

static uint64_t mask_of(const sl_idset *set) {
    uint64_t mask = 0;
    for (uint32_t a = 0; a < MAX_A; a++)
        if (sl_idset_has(set, id_of(a))) mask |= 1ull << a;
    return mask;
}

static sl_idset set_of(uint64_t mask, uint32_t ids[MAX_A]) {
    sl_idset set = {.ids = ids};
    for (uint32_t a = MAX_A; a-- > 0;)
        if (mask >> a & 1) ids[set.n++] = id_of(a);
    return set;
}

static uint32_t index_of(uint32_t id) {
    for (uint32_t a = 0; a < MAX_A; a++)
        if (id_of(a) == id) return a;
    return MAX_A;
}

static void push(sim *s, queue *q, msg m) {
    if (q->n == QUEUE) {
        broken(s, "a queue of %d messages is full", QUEUE);
        return;
    }
    q->m[(q->head + q->n++) % QUEUE] = m;
}

static msg take(queue *q) {
    msg m = q->m[q->head];
    q->head = (q->head + 1) % QUEUE;
    q->n--;
    return m;
}

static uint32_t att_node(uint32_t a) {
    return a;
}
static uint32_t exp_node(uint32_t e) {
    return MAX_A + e;
}

static uint32_t sequencer(const sim *s) {
    uint32_t e = 0;
    while (s->e[e].lost) e++;
    return e;
}

static void att_send(sim *s, uint32_t a, uint32_t e, msg m) {
    m.epoch = s->epoch;
    m.who = id_of(a);
    if (!s->e[e].lost) push(s, &s->ch[att_node(a)][exp_node(e)], m);
}

static void exp_send(sim *s, uint32_t e, uint32_t a, msg m) {
    m.epoch = s->epoch;
    if (!s->a[a].dead) push(s, &s->ch[exp_node(e)][att_node(a)], m);
}

static void check(sim *s, sl_status st, const sl_err *err, const char *where) {
    if (st != SL_OK) broken(s, "%s: %s", where, err->msg);
}

/* ---- attention worker ---- */

static void die(sim *s, uint32_t a) {
    s->a[a].dead = true;
    s->deaths--;
    for (uint32_t e = 0; e < s->n_exp; e++) s->ch[exp_node(e)][att_node(a)].n = 0;
}

static void send_join(sim *s, uint32_t a, uint32_t lane, bool join) {
    if (!join) return;
    s->left[lane] &= ~(1ull << a);
    att_send(s, a, sequencer(s), (msg){.kind = JOIN, .lane = lane});
}

/* Sends the chunks of the current layer to all expert workers, or dies in the middle. */
static void send_layer(sim *s, uint32_t a, uint32_t lane) {
    att *w = &s->a[a];
    sl_member *m = &w->lane[lane];
    msg out = {.kind = ROWS, .lane = lane, .round = m->round, .layer = w->layer[lane]};
    if (out.layer == s->n_moe - 1) {
        if (w->work[lane] > 0) w->work[lane]--;
        bool stay = w->work[lane] > 0 || pick(s, 8) == 0; /* at times a round without work */
        sl_member_vote(m, stay);
        if (!stay) s->left[lane] |= 1ull << a;
        out.stay = stay != (s->fault == FLIP_VOTE && pick(s, 16) == 0);
    }
    memset(w->replies[lane], 0, sizeof w->replies[lane]);
    w->cut[lane] = out.layer == s->n_moe - 1 ? s->n_chunks : 1 + pick(s, s->n_chunks);
    w->was_cut[lane][m->round % 2][out.layer] = w->cut[lane];
    s->uneven += w->cut[lane] < s->n_chunks;
    uint32_t first = pick(s, s->n_exp);
    for (uint32_t i = 0; i < s->n_exp * w->cut[lane]; i++) {
        if (s->deaths > 0 && pick(s, 200) == 0) {
            die(s, a);
            return;
        }
        out.chunk = i / s->n_exp;
        out.ends = out.chunk + 1 == w->cut[lane] && w->cut[lane] < s->n_chunks;
        out.has_set = sl_member_needs_set(m, out.layer, out.chunk);
        out.set = out.has_set ? mask_of(&m->set) : 0;
        att_send(s, a, (first + i) % s->n_exp, out);
    }
}

static void att_reply(sim *s, uint32_t a, uint32_t e, const msg *in) {
    att *w = &s->a[a];
    uint32_t lane = in->lane;
    sl_member *m = &w->lane[lane];
    if (m->state != SL_MEMBER_ROUND || in->round != m->round || in->layer != w->layer[lane] ||
        in->chunk != w->replies[lane][e])
        broken(s, "worker %u, lane %u: a reply that was not asked for", a, lane);
    w->replies[lane][e]++;
    if (e == sequencer(s)) w->next[lane] = *in;
    for (uint32_t i = 0; i < s->n_exp; i++)
        if (!s->e[i].lost && w->replies[lane][i] < w->cut[lane]) return;
    if (s->failed) return;
    if (++w->layer[lane] < s->n_moe) {
        send_layer(s, a, lane);
        return;
    }
    uint32_t ids[MAX_A];
    sl_idset set = set_of(w->next[lane].set, ids);
    bool join;
    sl_err err = {0};
    check(s, sl_member_next(m, m->round + 1, &set, &join, &err), &err, "next");
    if (s->failed) return;
    w->layer[lane] = 0;
    s->rounds_done++;
    if (m->state == SL_MEMBER_ROUND) send_layer(s, a, lane);
    send_join(s, a, lane, join);
}

static void att_open(sim *s, uint32_t a, const msg *in) {
    uint32_t ids[MAX_A];
    sl_idset set = set_of(in->set, ids);
    sl_err err = {0};
    check(s, sl_member_open(&s->a[a].lane[in->lane], in->round, &set, &err), &err, "open");
    s->a[a].layer[in->lane] = 0;
    if (!s->failed) send_layer(s, a, in->lane);
}

static void work_arrives(sim *s) {
    uint32_t a = pick(s, s->n_att), lane = pick(s, s->n_lanes);
    bool join;
    s->arrivals--;
    if (s->a[a].dead) return;
    s->a[a].work[lane] += 1 + pick(s, 3);
    sl_member_want(&s->a[a].lane[lane], &join);
    send_join(s, a, lane, join);
}

/* ---- expert worker ---- */

static void exp_set(sim *s, uint32_t e, uint32_t lane, uint64_t round, uint64_t mask) {
    uint32_t ids[MAX_A], absentee = 0;
    sl_idset set = set_of(mask, ids);
    sl_err err = {0};
    check(s, sl_barrier_open(s->e[e].bar[lane], round, &set, &absentee, &err), &err, "round");
    if (!s->failed && absentee != SL_NOBODY)
        broken(s, "lane %u: worker %u is in three rounds", lane, index_of(absentee));
}

/* The sequencer knows at once, the other expert workers are told. */
static void round_begins(sim *s, uint32_t e, uint32_t lane, uint64_t round, uint64_t set) {
    exp_set(s, e, lane, round, set);
    const msg m = {.kind = SET, .lane = lane, .round = round, .set = set, .epoch = s->epoch};
    for (uint32_t i = e + 1; i < s->n_exp; i++) {
        if (s->e[i].lost || (s->fault == LOSE_SET && pick(s, 16) == 0)) continue;
        push(s, &s->ch[exp_node(e)][exp_node(i)], m);
    }
}

static void seq_said(sim *s, uint32_t e, uint32_t lane, const sl_seq_out *out) {
    if (out->round == 0) return;
    uint64_t set = mask_of(out->set), opened = mask_of(out->open_to);
    if (out->round >= MAX_ROUNDS) {
        broken(s, "too many rounds");
        return;
    }
    if (s->fault == OMIT_JOINER && pick(s, 16) == 0) set &= ~opened;
    if (set & s->left[lane]) broken(s, "lane %u: a leaver is in round %" PRIu64, lane, out->round);
    if (set == 0)
        s->sleeps++;
    else if (s->truth[lane][out->round])
        broken(s, "round %" PRIu64 " fixed twice", out->round);
    s->truth[lane][out->round] = set;
    if (out->closed) {
        s->e[e].next_round[lane] = out->round;
        s->e[e].next_set[lane] = set;
    }
    if (set) round_begins(s, e, lane, out->round, set);
    msg m = {.kind = OPEN, .lane = lane, .round = out->round, .set = set};
    for (uint32_t a = 0; a < s->n_att; a++) {
        if (!(opened >> a & 1) || (s->fault == LOSE_OPEN && pick(s, 16) == 0)) continue;
        exp_send(s, e, a, m);
    }
}

/* Takes what the barrier lets run and checks it against the ghosts. */
static void run_ready(sim *s, uint32_t e, uint32_t lane) {
    expert *x = &s->e[e];
    sl_ready r;
    while (sl_barrier_pop(x->bar[lane], &r)) {
        uint64_t truth = s->truth[lane][r.round], to = mask_of(r.reply_to);
        msg job = {.kind = REPLY,
                   .lane = lane,
                   .round = r.round,
                   .layer = r.layer,
                   .chunk = r.chunk,
                   .set = to};
        if (to == 0 || (to & ~truth)) broken(s, "lane %u: replies to no members", lane);
        for (uint32_t a = 0; a < s->n_att; a++) {
            bool member = truth >> a & 1, replied = to >> a & 1;
            bool has = r.chunk < s->a[a].was_cut[lane][r.round % 2][r.layer];
            if (member && !s->a[a].dead && has != replied)
                broken(s, "lane %u, round %" PRIu64 ": ran without worker %u", lane, r.round, a);
            if (replied && (x->sent[lane][a] < 1 || x->sent[lane][a] > s->n_chunks - r.chunk))
                broken(s, "lane %u: worker %u sent %u messages", lane, a, x->sent[lane][a]);
            if (replied) x->sent[lane][a]--;
        }
        if (e == sequencer(s) && r.layer == s->n_moe - 1 && r.chunk == s->n_chunks - 1) {
            if (x->next_round[lane] != r.round + 1)
                broken(s, "lane %u: round %" PRIu64 " ran but is not closed", lane, r.round);
            job.who = 1; /* carries NEXT, kept here as `epoch` */
            job.epoch = x->next_set[lane];
        }
        push(s, &x->jobs[lane], job);
    }
}

static void exp_rows(sim *s, uint32_t e, const msg *in) {
    expert *x = &s->e[e];
    uint32_t ids[MAX_A], lane = in->lane, a = index_of(in->who);
    sl_idset set = set_of(in->set, ids);
    bool dropped = false;
    sl_err err = {0};
    uint64_t round;
    uint32_t layer;
    const sl_idset *missing;
    if (sl_barrier_waiting(x->bar[lane], &round, &layer, &missing) && round < in->round) s->early++;
    check(s,
          sl_barrier_arrive(x->bar[lane], in->who, in->round, in->layer, in->chunk, in->ends,
                            in->has_set ? &set : NULL, &dropped, &err),
          &err, "arrive");
    if (s->failed) return;
    if (dropped) {
        s->dropped++;
        if (!s->a[a].dead) broken(s, "a live worker's message was dropped");
        return;
    }
    x->sent[lane][a]++;
    if (in->has_set && in->set != s->truth[lane][in->round]) broken(s, "lane %u: wrong set", lane);
    if (e == sequencer(s) && in->layer == s->n_moe - 1 && in->chunk == s->n_chunks - 1) {
        sl_seq_out out;
        check(s, sl_seq_last(x->seq[lane], in->who, in->round, in->stay, &out, &err), &err, "last");
        if (!s->failed) seq_said(s, e, lane, &out);
    }
    run_ready(s, e, lane);
}

static void exp_join(sim *s, uint32_t e, const msg *in) {
    sl_seq_out out;
    sl_err err = {0};
    check(s, sl_seq_join(s->e[e].seq[in->lane], in->who, &out, &err), &err, "join");
    if (!s->failed) seq_said(s, e, in->lane, &out);
}

static void exp_dead(sim *s, uint32_t e, uint32_t id) {
    sl_err err = {0};
    for (uint32_t lane = 0; lane < s->n_lanes; lane++) {
        expert *x = &s->e[e];
        if (e == sequencer(s)) {
            sl_seq_out out;
            check(s, sl_seq_dead(x->seq[lane], id, &out, &err), &err, "seq dead");
            if (!s->failed) seq_said(s, e, lane, &out);
            msg m = {.kind = DEAD, .who = id};
            if (lane == 0 && out.announce && s->fault != NO_ANNOUNCE)
                for (uint32_t i = e + 1; i < s->n_exp; i++)
                    if (!s->e[i].lost) push(s, &s->ch[exp_node(e)][exp_node(i)], m);
        }
        check(s, sl_barrier_dead(x->bar[lane], id, &err), &err, "barrier dead");
        x->sent[lane][index_of(id)] = 0;
        run_ready(s, e, lane);
    }
}

/* Replies of one finished layer leave. */
static void exp_finish(sim *s, uint32_t e, uint32_t lane) {
    msg job = take(&s->e[e].jobs[lane]);
    for (uint32_t a = 0; a < s->n_att; a++) {
        msg m = {.kind = REPLY,
                 .lane = lane,
                 .round = job.round,
                 .layer = job.layer,
                 .chunk = job.chunk};
        if (job.who) m.set = job.epoch;
        if (job.set >> a & 1) exp_send(s, e, a, m);
    }
}

/* An expert worker is gone: everybody forgets its rounds, what is in flight is void, and the new
 * sequencer learns of the dead anew. */
static void lose_expert(sim *s, uint32_t lost) {
    s->losses--;
    s->e[lost].lost = true;
    s->epoch++;
    memset(s->truth, 0, sizeof s->truth);
    memset(s->left, 0, sizeof s->left);
    for (uint32_t e = 0; e < s->n_exp; e++)
        for (uint32_t i = 0; i < s->n_exp; i++)
            if (e == lost || i == lost) s->ch[exp_node(e)][exp_node(i)].n = 0;
    for (uint32_t e = 0; e < s->n_exp; e++) {
        for (uint32_t lane = 0; lane < s->n_lanes; lane++) {
            sl_seq_reset(s->e[e].seq[lane], s->epoch);
            sl_barrier_reset(s->e[e].bar[lane], s->epoch);
            s->e[e].jobs[lane].n = 0;
        }
        memset(s->e[e].sent, 0, sizeof s->e[e].sent);
    }
    for (uint32_t a = 0; a < s->n_att; a++) {
        s->a[a].detected = false;
        for (uint32_t lane = 0; lane < s->n_lanes; lane++) {
            bool join = false;
            sl_member_reset(&s->a[a].lane[lane], s->epoch);
            if (s->a[a].dead) continue;
            if (s->a[a].work[lane] > 0) sl_member_want(&s->a[a].lane[lane], &join);
            send_join(s, a, lane, join);
        }
    }
}

/* ---- the network ---- */

static void deliver(sim *s, uint32_t from, uint32_t to) {
    msg m = take(&s->ch[from][to]);
    if (m.kind != DEAD && m.epoch != s->epoch) return;
    if (to < MAX_A) {
        if (m.kind == OPEN)
            att_open(s, to, &m);
        else
            att_reply(s, to, from - MAX_A, &m);
    } else {
        uint32_t e = to - MAX_A;
        if (m.kind == JOIN)
            exp_join(s, e, &m);
        else if (m.kind == ROWS)
            exp_rows(s, e, &m);
        else if (m.kind == SET)
            exp_set(s, e, m.lane, m.round, m.set);
        else
            exp_dead(s, e, m.who);
    }
}

/* Rare events; true if one happened. */
static bool disturb(sim *s) {
    if (s->arrivals > 0 && pick(s, 6) == 0) {
        work_arrives(s);
        return true;
    }
    uint32_t a = pick(s, s->n_att), e = pick(s, s->n_exp), live = 0;
    if (s->deaths > 0 && pick(s, 150) == 0 && !s->a[a].dead) {
        die(s, a);
        return true;
    }
    for (uint32_t i = 0; i < s->n_exp; i++) live += !s->e[i].lost;
    if (s->losses > 0 && live > 1 && !s->e[e].lost && pick(s, 300) == 0) {
        lose_expert(s, e);
        return true;
    }
    return false;
}

/* A message of a round that its receiver has not been told of waits for that. */
static bool is_held(sim *s, uint32_t from, uint32_t to) {
    const msg *m = &s->ch[from][to].m[s->ch[from][to].head];
    if (to < MAX_A || m->kind != ROWS || m->epoch != s->epoch) return false;
    bool held = sl_barrier_is_early(s->e[to - MAX_A].bar[m->lane], m->round);
    s->held += held;
    return held;
}

/* One of everything that could happen now; false if nothing is left. */
static bool step(sim *s) {
    struct {
        uint32_t what, x, y;
    } can[256];
    uint32_t n = 0, seq = sequencer(s);
    if (disturb(s)) return true;
    for (uint32_t i = 0; i < MAX_NODES; i++)
        for (uint32_t j = 0; j < MAX_NODES; j++) {
            bool gone = (j < MAX_A && s->a[j].dead) || (j >= MAX_A && s->e[j - MAX_A].lost);
            if (s->ch[i][j].n > 0 && !gone && !is_held(s, i, j))
                can[n].what = 0, can[n].x = i, can[n++].y = j;
        }
    for (uint32_t e = 0; e < s->n_exp; e++)
        for (uint32_t lane = 0; lane < s->n_lanes; lane++)
            if (!s->e[e].lost && s->e[e].jobs[lane].n > 0)
                can[n].what = 1, can[n].x = e, can[n++].y = lane;
    for (uint32_t a = 0; a < s->n_att; a++) {
        if (s->a[a].dead && !s->a[a].detected) can[n].what = 2, can[n++].x = a;
    }
    if (n == 0) return s->arrivals > 0;
    uint32_t i = pick(s, n), x = can[i].x;
    if (can[i].what == 0)
        deliver(s, x, can[i].y);
    else if (can[i].what == 1)
        exp_finish(s, x, can[i].y);
    else if (can[i].what == 2) {
        s->a[x].detected = true;
        exp_dead(s, seq, id_of(x));
    }
    return true;
}

static void check_end(sim *s) {
    for (uint32_t lane = 0; lane < s->n_lanes && !s->failed; lane++) {
        for (uint32_t a = 0; a < s->n_att; a++)
            if (!s->a[a].dead && (s->a[a].lane[lane].state != SL_MEMBER_IDLE || s->a[a].work[lane]))
                broken(s, "lane %u: worker %u hangs in state %d, %u rounds wanted", lane, a,
                       s->a[a].lane[lane].state, s->a[a].work[lane]);
        for (uint32_t e = 0; e < s->n_exp; e++) {
            uint64_t round;
            uint32_t layer;
            const sl_idset *missing;
            if (!s->e[e].lost && sl_barrier_waiting(s->e[e].bar[lane], &round, &layer, &missing))
                broken(s, "lane %u: expert worker %u waits in round %" PRIu64, lane, e, round);
        }
        if (!sl_seq_asleep(s->e[sequencer(s)].seq[lane])) broken(s, "lane %u does not sleep", lane);
    }
}

static void sim_init(sim *s, uint64_t seed, fault f) {
    sl_err err = {0};
    memset(s, 0, sizeof *s);
    s->seed = s->rng = seed;
    s->fault = f;
    s->n_att = 1 + pick(s, MAX_A);
    s->n_exp = 1 + pick(s, MAX_E);
    s->n_lanes = 1 + pick(s, MAX_L);
    s->n_chunks = 1 + pick(s, MAX_C);
    s->n_moe = 1 + pick(s, 3);
    s->arrivals = 5 + pick(s, 60);
    s->deaths = pick(s, s->n_att + 1);
    s->losses = pick(s, 3) == 0 ? pick(s, s->n_exp) : 0;
    for (uint32_t lane = 0; lane < s->n_lanes; lane++) {
        for (uint32_t a = 0; a < s->n_att; a++)
            check(s, sl_member_init(&s->a[a].lane[lane], id_of(a), s->n_att, &err), &err, "member");
        for (uint32_t e = 0; e < s->n_exp; e++) {
            check(s, sl_seq_create(s->n_att, &s->e[e].seq[lane], &err), &err, "seq");
            check(s, sl_barrier_create(s->n_moe, s->n_chunks, s->n_att, &s->e[e].bar[lane], &err),
                  &err, "bar");
        }
    }
}

static void sim_free(sim *s) {
    for (uint32_t lane = 0; lane < s->n_lanes; lane++) {
        for (uint32_t a = 0; a < s->n_att; a++) sl_member_free(&s->a[a].lane[lane]);
        for (uint32_t e = 0; e < s->n_exp; e++) {
            sl_seq_free(s->e[e].seq[lane]);
            sl_barrier_free(s->e[e].bar[lane]);
        }
    }
}

static bool sim_run(sim *s, uint64_t seed, fault f) {
    sim_init(s, seed, f);
    uint32_t steps = 0;
    while (!s->failed && step(s))
        if (++steps > 1000000) broken(s, "no end after %u steps", steps);
    check_end(s);
    sim_free(s);
    return !s->failed;
}

static uint64_t only_seed;

static void random_runs_keep_every_property(void **state) {
    (void)state;
    static sim s;
    uint64_t first = only_seed ? only_seed : 1, n = only_seed ? 1 : SL_SLOW_BUILD ? 1000 : 4000;
    uint64_t rounds = 0, sleeps = 0, early = 0, dropped = 0, resets = 0, held = 0;
    for (uint64_t seed = first; seed < first + n; seed++) {
        if (!sim_run(&s, seed, NO_FAULT)) fail_msg("seed %" PRIu64 ": %s", seed, s.why);
        rounds += s.rounds_done;
        sleeps += s.sleeps;
        early += s.early;
        dropped += s.dropped;
        resets += s.epoch;
        held += s.held > 0;
    }
    print_message("%" PRIu64 " seeds: %" PRIu64 " member rounds, %" PRIu64 " sleeps, %" PRIu64
                  " early joiners, %" PRIu64 " messages of the dead, %" PRIu64 " resets, %" PRIu64
                  " seeds with news before the announcement\n",
                  n, rounds, sleeps, early, dropped, resets, held);
    if (!only_seed)
        assert_true(rounds > n && sleeps > n && early > 100 && dropped > 100 && resets > 100 &&
                    held > 100);
}

/* The checks above are worth something only if they see a broken protocol. */
static void planted_faults_are_found(void **state) {
    (void)state;
    static sim s;
    const fault faults[] = {NO_ANNOUNCE, LOSE_OPEN, LOSE_SET, FLIP_VOTE, OMIT_JOINER};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        uint32_t found = 0;
        for (uint64_t seed = 1; seed <= 300; seed++) found += !sim_run(&s, seed, faults[i]);
        print_message("fault %d: seen by %u of 300 seeds, last: %s\n", faults[i], found, s.why);
        assert_true(found > 0);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) only_seed = strtoull(argv[1], NULL, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_runs_keep_every_property),
        cmocka_unit_test(planted_faults_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
