/* The slots of an attention worker: what scheduling knows of each request that runs there. A lane
 * has `per_lane` of them; a request keeps its slot, and so its lane, from sl_slots_take to
 * sl_slots_release, unless sl_slots_move says otherwise. What else belongs to it (its tokens' ids,
 * where its pages lie, how it draws) is the driver's, kept at the same place: engine and simulator
 * drive the same slots.
 *
 * Of a request's tokens the first `done` have been through the model. sl_life_advance is the one
 * place where rows of a step become part of that past. State of a request that has no position (of
 * recurrent blocks) is committed there, too: it has two versions, rows of a step go from one to the
 * other, and the other becomes the one. A step that is given up leaves nothing behind.
 *
 * No I/O, clock or threads; only create allocates. Thread: owner. */
#ifndef SL_SCHED_SLOTS_H
#define SL_SCHED_SLOTS_H

#include "base/status.h"
#include "sched/watch.h"
#include "spec/kv.h"
#include "spec/limits.h"

#include <stdbool.h>
#include <stdint.h>

/* A request at its slot. */
typedef struct sl_life {
    bool used;
    bool ends;           /* cancelled, preempted or broken: it gets no more rows */
    bool waits;          /* for what its answer is to be like: it gets no rows until then */
    bool parks;          /* it gets no more rows once a token was drawn: it goes on elsewhere */
    bool in_step;        /* a step, or a part of aep, has rows of it... */
    bool samples;        /* ...and the last of them yields a token */
    uint32_t generation; /* tells it from who had its slot before: 1 .. 2^28 - 1, as a row's tag */
    uint64_t arrival;    /* lower is older */
    uint32_t given;      /* tokens that came with it */
    uint32_t tokens;     /* those and what was generated here: what is known */
    uint32_t max_new;    /* most tokens generated here, > 0 */
    uint32_t done;       /* tokens whose rows are in the KV cache */
    uint32_t version;    /* 0 or 1: of state without a position, the one that `done` tokens left */
    uint32_t pages;      /* of the KV cache */
    /* Parts that begin before this position go through the head with all their rows: their requests
     * want to know more than the last one's token. */
    uint32_t whole_until;
    uint64_t acked;   /* generated tokens that the coordinator is known to have seen */
    uint32_t guessed; /* tokens behind those that are known: guesses (sched/draft.h)... */
    double chance;    /* ...each right in so many cases... */
    bool made;        /* ...that a checkpoint's block has made */
    bool astray;      /* one of them in the running step was wrong: rows behind it are of no use */
} sl_life;

typedef struct sl_slots {
    uint32_t n_lanes, per_lane;
    uint32_t open;     /* lanes, the first ones, that requests come to; at first all */
    sl_life *life;     /* [n_lanes][per_lane]; owned */
    uint32_t *n_used;  /* [n_lanes] */
    uint32_t *look;    /* [n_lanes] where a free slot was found last */
    void *arrays;      /* what they are all in */
    uint64_t arrivals; /* so far */
    uint32_t last_generation;
    const sl_watch *watch; /* of them and of all that works on them; NULL, as at first: nobody */
} sl_slots;

/* Both counts > 0. SL_ERR_NOMEM; *out can be freed then, too. */
sl_status sl_slots_create(uint32_t n_lanes, uint32_t per_lane, sl_slots *out,
                          sl_err *err) SL_MUST_CHECK;
void sl_slots_free(sl_slots *t); /* zeroed is fine */

/* A life for a request of `given` tokens that may generate max_new and has so many pages: in the
 * emptiest open lane, the first of those as empty, at the free slot after the one found last there.
 * Borrowed until sl_slots_release. NULL: all slots of open lanes are used. */
sl_life *sl_slots_take(sl_slots *t, uint32_t given, uint32_t max_new, uint32_t pages);
/* A life of the lane, none of whose steps runs, that is to go on in another lane, as its own is not
 * open, or has two more than that one: it is there now, and *from, where it was, is free. What the
 * driver keeps at that place it moves, too. NULL: none. */
sl_life *sl_slots_move(sl_slots *t, uint32_t lane, sl_life **from);
/* The life is over, the slot free; nothing if it is. */
void sl_slots_release(sl_slots *t, sl_life *life);

/* Lives of a lane, [per_lane]. */
static inline sl_life *sl_slots_of(const sl_slots *t, uint32_t lane) {
    return t->life + (size_t)lane * t->per_lane;
}
static inline uint32_t sl_slots_lane(const sl_slots *t, const sl_life *life) {
    return (uint32_t)(life - t->life) / t->per_lane;
}
/* Within its lane. */
static inline uint32_t sl_slots_index(const sl_slots *t, const sl_life *life) {
    return (uint32_t)(life - t->life) % t->per_lane;
}

/* Where the committed version of a life's state is among 2 n_lanes per_lane places; the other one
 * is at this ^ 1. */
static inline uint32_t sl_slots_state(const sl_slots *t, const sl_life *life) {
    return (uint32_t)(life - t->life) * 2 + life->version;
}

/* Requests that are here. */
static inline uint32_t sl_slots_used(const sl_slots *t) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < t->n_lanes; l++) n += t->n_used[l];
    return n;
}
/* Whether it is one of these. */
static inline bool sl_slots_has(const sl_slots *t, const sl_life *life) {
    return life >= t->life && life < t->life + (size_t)t->n_lanes * t->per_lane;
}
/* Whether a step of the lane, formed now, would have rows. */
bool sl_slots_have_work(const sl_slots *t, uint32_t lane);
/* Whether a step formed after the running one will, as far as can be known before that one's tokens
 * are drawn: they may end their requests. */
bool sl_slots_will_stay(const sl_slots *t, uint32_t lane);

/* Requests of a lane whose prompts are done, and that go on. */
uint32_t sl_slots_decoding(const sl_slots *t, uint32_t lane);
/* Rows of all prompts that are under way, and how many of them are done. */
void sl_slots_prompts(const sl_slots *t, uint64_t *rows, uint64_t *done);

/* ---- a life ---- */

static inline uint32_t sl_life_generated(const sl_life *l) {
    return l->tokens - l->given;
}
/* Whether the next rows are of tokens that came with it. */
static inline bool sl_life_prefills(const sl_life *l) {
    return l->done < l->given;
}
/* Rows that may be computed next as far as pages and its lead over the coordinator allow: 0 parks
 * it. */
uint32_t sl_life_room(const sl_life *l);
static inline bool sl_life_has_work(const sl_life *l) {
    return sl_life_room(l) > 0;
}
/* Whether one more token may be known before its row is computed. */
bool sl_life_leads(const sl_life *l);
/* Of a token at `position`: tokens before it whose rows are not computed yet. 0 of those that came
 * with it. */
static inline uint16_t sl_life_behind(const sl_life *l, uint32_t position) {
    return (uint16_t)(position >= l->given && position > l->done ? position - l->done : 0);
}
/* Most pages that it may ever need. */
uint32_t sl_life_max_pages(const sl_life *l);

/* The next `rows` tokens are in the cache, and what they left in the other version of state. */
static inline void sl_life_advance(sl_life *l, uint32_t rows) {
    if (rows == 0) return;
    l->done += rows;
    l->version ^= 1;
}
/* Guesses that it may have now: each may be followed by a token that is drawn. */
uint32_t sl_life_most_guesses(const sl_life *l);
/* Of these what a checkpoint's block may make (model/mtp.c): each has a place, and so has the
 * block's row behind it. */
uint32_t sl_life_most_made(const sl_life *l);
/* The token behind those that are known is drawn now, and is, or is not, the first guess. */
static inline void sl_life_judge(sl_life *l, bool right) {
    l->astray = !right;
    l->guessed = right ? l->guessed - 1 : 0;
}
/* Of a row at `pos` that went through the head: whether it draws the next token. It may be of a
 * guess that was wrong, or be behind one, or what follows it may be known; rows of a step are asked
 * in their order. Of a guess that was right it is in the cache from now on; *right: it is. */
static inline bool sl_life_draws(sl_life *l, uint32_t pos, bool *right) {
    *right = pos >= l->done && !l->astray && pos < l->tokens;
    if (*right) l->done = pos + 1;
    return pos < l->done && pos + 1 == l->tokens;
}
/* A token was drawn; true: the last that it may generate. */
static inline bool sl_life_append(sl_life *l) {
    l->tokens++;
    return sl_life_generated(l) >= l->max_new;
}
/* The coordinator has seen so many generated tokens; earlier words of it may come late. */
static inline void sl_life_ack(sl_life *l, uint64_t seen) {
    l->acked = SL_MAX(l->acked, seen);
}
/* It is to end without another token; true: now, else with the step that has rows of it, which
 * still use its pages. The driver releases it. */
static inline bool sl_life_end(sl_life *l) {
    l->ends = true;
    return !l->in_step;
}

#endif
