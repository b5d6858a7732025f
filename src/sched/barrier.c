/* Rounds of one lane at an expert worker: who must come, who has, which is complete. */
#include "sched/membership.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"

/* A round's messages are counted in steps: step = layer * chunks + chunk. */
#define DIED UINT32_MAX

typedef struct bar_worker {
    uint32_t id;
    bool dead;
    uint32_t unanswered; /* messages of it that wait here, at most `chunks` */
    uint64_t round;      /* the latest it sent for */
} bar_worker;

typedef struct bar_round {
    uint64_t round;
    uint32_t step;     /* the next to run */
    size_t owed, live; /* live members, and those of them that have not sent `step` yet */
    sl_idset set;
    uint32_t *sent; /* [max_members], parallel to set: steps sent, or DIED */
    uint32_t *cut;  /* [max_members][2]: into how many chunks it cuts a layer, even and odd ones:
                     * nobody is more than one ahead of the step */
} bar_round;

struct sl_barrier {
    uint32_t n_moe, chunks;
    uint32_t bears; /* open rounds of a member */
    size_t max_members;
    uint64_t epoch, newest;
    bar_worker *workers; /* ascending ids */
    size_t n_workers, cap_workers;
    bar_round *rounds; /* ascending rounds; [n_rounds, cap_rounds) own memory to be used again */
    size_t n_rounds, cap_rounds;
    sl_idset reply;
};

/* Two rounds overlap when a joiner is early; more only after deaths or with a single layer. */
#define ROUNDS_AT_FIRST 2

static sl_status grow_rounds(sl_barrier *b, size_t cap, sl_err *err) {
    if (cap <= b->cap_rounds) return SL_OK;
    bar_round *rounds = sl_grow(b->rounds, b->cap_rounds, cap, sizeof *rounds);
    if (!rounds) return sl_fail(err, SL_ERR_NOMEM, "no memory for %zu open rounds", cap);
    b->rounds = rounds;
    while (b->cap_rounds < cap) {
        bar_round r = {0};
        sl_status st = sl_idset_reserve(&r.set, b->max_members, err);
        r.sent = sl_alloc(3 * b->max_members, sizeof *r.sent);
        if (st == SL_OK && !r.sent)
            st = sl_fail(err, SL_ERR_NOMEM, "no memory for a round of %zu members", b->max_members);
        if (st != SL_OK) {
            sl_idset_free(&r.set);
            sl_free(r.sent);
            return st;
        }
        r.cut = r.sent + b->max_members;
        rounds[b->cap_rounds++] = r;
    }
    return SL_OK;
}

static sl_status grow_workers(sl_barrier *b, size_t cap, sl_err *err) {
    if (cap <= b->cap_workers) return SL_OK;
    if (cap > SL_MAX_WORKERS)
        return sl_fail(err, SL_ERR_LIMIT, "barrier: %zu workers seen, at most %u", cap,
                       SL_MAX_WORKERS);
    bar_worker *w = sl_grow(b->workers, b->cap_workers, cap, sizeof *w);
    if (!w) return sl_fail(err, SL_ERR_NOMEM, "no memory for %zu workers", cap);
    b->workers = w;
    b->cap_workers = cap;
    return SL_OK;
}

sl_status sl_barrier_create(uint32_t n_moe, uint32_t chunks, size_t max_members, sl_barrier **out,
                            sl_err *err) {
    *out = NULL;
    if (n_moe == 0 || chunks == 0 || n_moe > (DIED - 1) / chunks)
        return sl_fail(err, SL_ERR_ARG, "barrier: %u layers of %u chunks", n_moe, chunks);
    if (max_members == 0 || max_members > SL_MAX_WORKERS)
        return sl_fail(err, SL_ERR_ARG, "max_members is %zu, must be 1 to %u", max_members,
                       SL_MAX_WORKERS);
    sl_barrier *b = sl_alloc(1, sizeof *b);
    if (!b) return sl_fail(err, SL_ERR_NOMEM, "no memory for a barrier");
    b->n_moe = n_moe;
    b->chunks = chunks;
    b->max_members = max_members;
    b->bears = ROUNDS_AT_FIRST;
    sl_status st = sl_idset_reserve(&b->reply, max_members, err);
    if (st == SL_OK) st = grow_workers(b, max_members, err);
    if (st == SL_OK) st = grow_rounds(b, ROUNDS_AT_FIRST, err);
    if (st != SL_OK) {
        sl_barrier_free(b);
        return st;
    }
    *out = b;
    return SL_OK;
}

void sl_barrier_free(sl_barrier *b) {
    if (!b) return;
    for (size_t i = 0; i < b->cap_rounds; i++) {
        sl_idset_free(&b->rounds[i].set);
        sl_free(b->rounds[i].sent);
    }
    sl_free(b->rounds);
    sl_free(b->workers);
    sl_idset_free(&b->reply);
    sl_free(b);
}

static bool find_worker(const sl_barrier *b, uint32_t id, size_t *at) {
    size_t lo = 0, hi = b->n_workers;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (b->workers[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    *at = lo;
    return lo < b->n_workers && b->workers[lo].id == id;
}

static bool is_dead(const sl_barrier *b, uint32_t id) {
    size_t at;
    return find_worker(b, id, &at) && b->workers[at].dead;
}

/* The worker's entry, added if it is new. */
static sl_status take_worker(sl_barrier *b, uint32_t id, bar_worker **out, sl_err *err) {
    size_t at;
    if (!find_worker(b, id, &at)) {
        if (b->n_workers == b->cap_workers) {
            size_t cap = SL_MAX(SL_MIN(2 * b->cap_workers, SL_MAX_WORKERS), b->n_workers + 1);
            sl_status st = grow_workers(b, cap, err);
            if (st != SL_OK) return st;
        }
        memmove(b->workers + at + 1, b->workers + at, (b->n_workers - at) * sizeof *b->workers);
        b->workers[at] = (bar_worker){.id = id};
        b->n_workers++;
    }
    *out = &b->workers[at];
    return SL_OK;
}

static bool find_round(const sl_barrier *b, uint64_t round, size_t *at) {
    *at = 0;
    while (*at < b->n_rounds && b->rounds[*at].round < round) ++*at;
    return *at < b->n_rounds && b->rounds[*at].round == round;
}

static void drop_round(sl_barrier *b, size_t at) {
    bar_round r = b->rounds[at];
    memmove(b->rounds + at, b->rounds + at + 1, (b->n_rounds - at - 1) * sizeof r);
    b->rounds[--b->n_rounds] = r;
}

/* A message of a round that is not open here. */
static sl_status refuse_unknown(const sl_barrier *b, uint32_t member, uint64_t round, sl_err *err) {
    return sl_fail(err, SL_ERR_PROTOCOL,
                   "worker %" PRIu32 " sent for round %" PRIu64
                   ", which is %s; the newest is %" PRIu64,
                   member, round, round > b->newest ? "not announced" : "over for it", b->newest);
}

/* A message of an open round: does it fit? */
static sl_status check_known(const sl_barrier *b, const bar_round *r, const bar_worker *w,
                             uint32_t member, uint32_t step, const sl_idset *set, sl_err *err) {
    size_t at;
    if (!sl_idset_find(&r->set, member, &at))
        return sl_fail(err, SL_ERR_PROTOCOL, "worker %" PRIu32 " is no member of round %" PRIu64,
                       member, r->round);
    if (w && r->round < w->round)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "worker %" PRIu32 " sent for round %" PRIu64 " after round %" PRIu64, member,
                       r->round, w->round);
    if (set && !sl_idset_equal(set, &r->set))
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "the set that worker %" PRIu32 " sent for round %" PRIu64
                       " (%zu members) is not the one decided (%zu members)",
                       member, r->round, set->n, r->set.n);
    if (step != r->sent[at])
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "worker %" PRIu32 " sent layer %" PRIu32 " chunk %" PRIu32
                       " of round %" PRIu64 ", its next is layer %" PRIu32 " chunk %" PRIu32,
                       member, step / b->chunks, step % b->chunks, r->round,
                       r->sent[at] / b->chunks, r->sent[at] % b->chunks);
    /* Who has cut a layer into fewer chunks than others may be at the next one before they are. */
    bool ahead = step - step % b->chunks > r->step;
    if (w &&
        ((ahead && w->unanswered > step % b->chunks) || (w->round != r->round && w->unanswered)))
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "worker %" PRIu32 " sent layer %" PRIu32 " of round %" PRIu64
                       " before its messages of the layer before were answered",
                       member, step / b->chunks, r->round);
    if (!set && step == 0)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "first message of round %" PRIu64 " from worker %" PRIu32
                       " carries no member set",
                       r->round, member);
    return SL_OK;
}

void sl_barrier_bear(sl_barrier *b, uint32_t rounds) {
    b->bears = rounds;
}

/* A live member of the set that as many open rounds hold as one may be in, or SL_NOBODY. */
static uint32_t find_absentee(const sl_barrier *b, const sl_idset *set) {
    for (size_t i = 0; i < set->n; i++) {
        size_t at, in = 0;
        for (size_t r = 0; r < b->n_rounds; r++)
            in +=
                sl_idset_find(&b->rounds[r].set, set->ids[i], &at) && b->rounds[r].sent[at] != DIED;
        if (in >= b->bears) return set->ids[i];
    }
    return SL_NOBODY;
}

sl_status sl_barrier_open(sl_barrier *b, uint64_t round, const sl_idset *set, uint32_t *absentee,
                          sl_err *err) {
    *absentee = SL_NOBODY;
    if (round <= b->newest || set->n == 0 || set->n > b->max_members)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "round %" PRIu64 " of %zu members announced after round %" PRIu64
                       ", at most %zu members",
                       round, set->n, b->newest, b->max_members);
    sl_status st = grow_rounds(b, b->n_rounds + 1, err);
    if (st != SL_OK) return st;
    *absentee = find_absentee(b, set);
    b->newest = round;
    bar_round *r = &b->rounds[b->n_rounds];
    st = sl_idset_copy(set, &r->set, err);
    SL_ASSERT(st == SL_OK); /* reserved */
    r->round = round;
    r->step = 0;
    r->live = 0;
    for (size_t i = 0; i < r->set.n; i++) {
        r->sent[i] = is_dead(b, r->set.ids[i]) ? DIED : 0;
        r->live += r->sent[i] != DIED;
    }
    r->owed = r->live;
    b->n_rounds += r->live > 0;
    return SL_OK;
}

bool sl_barrier_is_early(const sl_barrier *b, uint64_t round) {
    return round > b->newest;
}

static uint32_t *cut_of(const sl_barrier *b, const bar_round *r, size_t member, uint32_t step) {
    return &r->cut[2 * member + step / b->chunks % 2];
}

sl_status sl_barrier_arrive(sl_barrier *b, uint32_t member, uint64_t round, uint32_t layer,
                            uint32_t chunk, bool ends, const sl_idset *set, bool *dropped,
                            sl_err *err) {
    size_t at, wat, mat;
    bar_worker *w = find_worker(b, member, &wat) ? &b->workers[wat] : NULL;
    *dropped = w && w->dead;
    if (*dropped) return SL_OK;
    if (ends && layer + 1u == b->n_moe && chunk + 1u < b->chunks)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "worker %" PRIu32 " ends layer %" PRIu32 ", the last, with chunk %" PRIu32,
                       member, layer, chunk);
    if (layer >= b->n_moe || chunk >= b->chunks)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "worker %" PRIu32 " sent layer %" PRIu32 " of %" PRIu32 ", chunk %" PRIu32
                       " of %" PRIu32,
                       member, layer, b->n_moe, chunk, b->chunks);
    uint32_t step = layer * b->chunks + chunk;
    if (!find_round(b, round, &at)) return refuse_unknown(b, member, round, err);
    sl_status st = check_known(b, &b->rounds[at], w, member, step, set, err);
    if (st == SL_OK) st = take_worker(b, member, &w, err);
    if (st != SL_OK) return st;
    bar_round *r = &b->rounds[at];
    bool in = sl_idset_find(&r->set, member, &mat);
    SL_ASSERT(in && r->sent[mat] == step && step >= r->step);
    r->owed -= step == r->step;
    *cut_of(b, r, mat, step) = ends ? chunk + 1 : b->chunks;
    r->sent[mat] = ends ? (layer + 1) * b->chunks : step + 1;
    w->unanswered++;
    w->round = round;
    return SL_OK;
}

sl_status sl_barrier_dead(sl_barrier *b, uint32_t member, sl_err *err) {
    bar_worker *w;
    sl_status st = take_worker(b, member, &w, err);
    if (st != SL_OK || w->dead) return st;
    w->dead = true;
    w->unanswered = 0;
    for (size_t i = b->n_rounds; i-- > 0;) {
        bar_round *r = &b->rounds[i];
        size_t at;
        if (!sl_idset_find(&r->set, member, &at)) continue;
        r->owed -= r->sent[at] <= r->step;
        r->sent[at] = DIED;
        if (--r->live == 0) drop_round(b, i);
    }
    return SL_OK;
}

/* The step of a round that all have sent is over: whom to answer, into b->reply. */
static void pop_step(sl_barrier *b, bar_round *r) {
    const uint32_t step = r->step++;
    size_t at;
    sl_idset_clear(&b->reply);
    for (size_t m = 0; m < r->set.n; m++) {
        if (r->sent[m] == DIED) continue;
        r->owed += r->sent[m] <= r->step;
        if (step % b->chunks >= *cut_of(b, r, m, step)) continue; /* its layer has no such chunk */
        uint32_t id = r->set.ids[m];
        b->reply.ids[b->reply.n++] = id;
        bool in = find_worker(b, id, &at);
        SL_ASSERT(in && b->workers[at].unanswered > 0);
        b->workers[at].unanswered--;
    }
}

bool sl_barrier_pop(sl_barrier *b, sl_ready *out) {
    for (size_t i = 0; i < b->n_rounds;) {
        bar_round *r = &b->rounds[i];
        if (r->owed > 0) {
            i++;
            continue;
        }
        *out = (sl_ready){.round = r->round,
                          .layer = r->step / b->chunks,
                          .chunk = r->step % b->chunks,
                          .reply_to = &b->reply};
        pop_step(b, r);
        if (r->step == b->n_moe * b->chunks) drop_round(b, i);
        if (b->reply.n > 0) return true; /* else nobody has that chunk */
    }
    return false;
}

void sl_barrier_reset(sl_barrier *b, uint64_t epoch) {
    size_t n = 0;
    for (size_t i = 0; i < b->n_workers; i++)
        if (b->workers[i].dead) b->workers[n++] = (bar_worker){b->workers[i].id, .dead = true};
    b->n_workers = n;
    b->n_rounds = 0;
    b->newest = 0;
    b->epoch = epoch;
}

uint64_t sl_barrier_epoch(const sl_barrier *b) {
    return b->epoch;
}

bool sl_barrier_waiting(sl_barrier *b, uint64_t *round, uint32_t *layer, const sl_idset **missing) {
    if (b->n_rounds == 0) return false;
    const bar_round *r = &b->rounds[0];
    *round = r->round;
    *layer = r->step / b->chunks;
    sl_idset_clear(&b->reply);
    for (size_t m = 0; m < r->set.n; m++)
        if (r->sent[m] <= r->step) b->reply.ids[b->reply.n++] = r->set.ids[m];
    *missing = &b->reply;
    return true;
}
