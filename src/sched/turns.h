/* Whose turn it is at an attention worker: the tasks of its lanes, and the order they run in.
 *
 * A lane's step is BEGIN, then for every block BLOCK (attention and router, or the dense block),
 * and for blocks with experts SHARED (if the model has shared experts) and MERGE, then HEAD. MERGE
 * needs every reply of the block and SHARED; between a BLOCK and its MERGE the rows are with the
 * experts and other lanes run. This is the attention side of ep, dep, pingpong, findep and eps:
 * they differ in the number of lanes and replies (docs/schedules.md).
 *
 * Order: lanes in the order in which they became ready, one that runs goes on until it waits. A
 * head runs in pieces, one lane's at a time: whatever else is ready goes before a piece, since
 * experts wait for it, but between two pieces only one lane does, so that a head ends.
 * SHARED is due when its BLOCK has run. ASAS: before anything else. AASS: when no BLOCK, MERGE,
 * BEGIN or HEAD can run, or when only it holds its lane up. With equal lanes and replies in order
 * these are FinDEP's orders A0 S0 A1 S1 ... and A0 A1 ... S0 S1 ... of every layer.
 *
 * No I/O, clock or threads: events in, task out. The engine calls it with what happened, a
 * simulator with what would happen; equal events give equal tasks. Thread: owner. */
#ifndef SL_SCHED_TURNS_H
#define SL_SCHED_TURNS_H

#include "base/status.h"
#include "sched/watch.h"
#include "spec/plan.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum sl_turn_kind {
    SL_TURN_BEGIN,  /* form the step */
    SL_TURN_BLOCK,  /* attention, then router and dispatch or the dense block, of `layer` */
    SL_TURN_SHARED, /* shared experts of `layer` */
    SL_TURN_MERGE,  /* returned rows of `layer` into the residual stream */
    SL_TURN_HEAD,   /* a piece of head and sampling; after the last the step ends */
} sl_turn_kind;

typedef struct sl_turn {
    sl_turn_kind kind;
    uint32_t lane, layer;
} sl_turn;

typedef struct sl_turns_shape {
    uint32_t n_lanes;   /* 1 .. SL_PLAN_MAX_LANES */
    uint32_t n_layers;  /* blocks of the model */
    const uint8_t *moe; /* [n_layers] nonzero: a block with routed experts. Borrowed. */
    bool shared;        /* blocks with routed experts have shared ones, too */
    uint32_t n_replies; /* per lane and block: expert workers times chunks, > 0 */
    sl_order order;
    const sl_watch *watch; /* TURN; NULL: nobody */
} sl_turns_shape;

typedef enum sl_turn_phase {
    SL_TURN_IDLE,  /* in no round */
    SL_TURN_READY, /* `next` can run */
    SL_TURN_BEGUN, /* `next` was submitted and is not done */
    SL_TURN_WAITS, /* for replies of `layer` */
} sl_turn_phase;

typedef struct sl_turn_lane {
    sl_turn_phase phase;
    sl_turn_kind next; /* when READY or BEGUN */
    uint32_t layer, replies;
    bool shared_due, shared_begun;
    uint64_t since; /* order of becoming ready */
} sl_turn_lane;

typedef struct sl_turns {
    sl_turns_shape shape;
    sl_turn_lane lane[SL_PLAN_MAX_LANES];
    uint64_t readied;
    uint32_t in_head; /* the lane whose head has begun and is not over; SL_TURNS_NONE */
    bool passed;      /* a lane has gone on until it waits since the last piece of a head */
} sl_turns;

#define SL_TURNS_NONE UINT32_MAX

/* SL_ERR_ARG: a count out of its range. */
sl_status sl_turns_init(sl_turns *t, const sl_turns_shape *shape, sl_err *err) SL_MUST_CHECK;

/* From now on. No result depends on it. */
static inline void sl_turns_set_order(sl_turns *t, sl_order order) {
    t->shape.order = order;
}

/* A round is open for the lane: its step may begin. */
void sl_turns_open(sl_turns *t, uint32_t lane);
/* One more reply of the lane's block is here. Only when sl_turns_awaits: from the time when its
 * BLOCK has begun, since rows leave before all have left. */
void sl_turns_reply(sl_turns *t, uint32_t lane);
bool sl_turns_awaits(const sl_turns *t, uint32_t lane);
/* Whether rows of the lane are with the experts, or back and not merged. */
bool sl_turns_in_flight(const sl_turns *t, uint32_t lane);
/* The task to run now; false: none. Does not change anything. */
bool sl_turns_next(const sl_turns *t, sl_turn *out);
/* The task (it was sl_turns_next's answer) was given to a device that may take a while: until it is
 * done others may begin, each lane having one of its own. Where tasks run at once this may be left
 * out. */
void sl_turns_begin(sl_turns *t, const sl_turn *turn);
/* The task ran (it was sl_turns_next's answer). After HEAD the lane is idle until sl_turns_open. */
void sl_turns_done(sl_turns *t, const sl_turn *turn);
/* A piece of HEAD ran (it was sl_turns_next's answer), and it was not the last. */
void sl_turns_pause(sl_turns *t, const sl_turn *turn);
/* The lane's step is given up. */
void sl_turns_drop(sl_turns *t, uint32_t lane);

#endif
