/* A lane: a micro-batch of an attention worker under schedules with barriers. Its step's rows pass
 * the blocks one after the other; a block with experts sends them out and waits for every answer.
 * lane.c has steps and rounds, dispatch.c the way to the experts and back, lanes.c whose turn it
 * is, settle.c what is chosen anew. Thread: owner of the worker. */
#ifndef SL_ENGINE_LANE_H
#define SL_ENGINE_LANE_H

#include "engine/attn/attn_int.h"
#include "sched/again.h"
#include "sched/membership.h"
#include "sched/turns.h"

typedef struct sl_reply {
    sl_buf *payload;
    sl_wire_return view;
    bool here;
} sl_reply;

typedef struct sl_lane {
    sl_attn *attn;
    sl_turns *turns; /* of all lanes */
    uint32_t id;
    sl_member member;
    sl_pass pass;
    sl_turn task;
    bool begun;       /* the task waits for pass.event */
    uint64_t task_us; /* when it began */

    uint64_t *covered; /* [max_rows] router positions that have come back */
    sl_reply *reply;   /* [chunks][expert workers] */
    sl_idset next;     /* NEXT of the running round */
    bool have_next;
    /* chunks by expert: which of the rows sent to an expert worker row r is, and how many they are;
     * [max_rows][expert workers] and [expert workers], else NULL */
    uint32_t *sent_row, *n_sent;
    uint64_t dispatched_ns;
    /* rows that leave, of all or, when the block runs inside the device, none: the device packs a
     * chunk, n_left have left, or are none that the layer has */
    uint32_t n_away;
    bool inside;
    bool leaves, stay; /* leaves: the task has come so far */
    uint32_t n_left;

    /* what lost expert workers owed, asked of others */
    sl_again again;
    sl_reply *answer; /* [answers] by call of `again` */
    uint32_t answers;
    bool asks;        /* the device packs an attempt, until... */
    sl_event asked;   /* ...this */
    uint32_t ask_of;  /* whose group it is */
    uint64_t attempt; /* its number */
} sl_lane;

/* The side. */
typedef struct sl_lanes {
    sl_attn *attn;
    sl_turns turns;
    sl_lane *lane; /* [n_lanes] */
} sl_lanes;

/* ---- lane.c ---- */

sl_status sl_lane_create(sl_attn *a, sl_turns *turns, uint32_t id, sl_lane *lane,
                         sl_err *err) SL_MUST_CHECK;
void sl_lane_free(sl_lane *lane);
/* Joins a round if the lane is idle and has work. */
void sl_lane_wake(sl_lane *lane);
/* Begins the task whose turn it is, which is one of this lane, and ends it if the device is through
 * with it. */
void sl_lane_run(sl_lane *lane, const sl_turn *turn);
/* Goes on with a task of the lane that has begun; false: there is none, or the device has it. */
bool sl_lane_go_on(sl_lane *lane);
sl_status sl_lane_on_return(sl_lane *lane, uint32_t expert_index, const sl_wire_header *h,
                            sl_buf **payload, sl_err *err) SL_MUST_CHECK;
/* The expert worker is gone, or done without and may still answer; others can stand in for it. */
void sl_lane_lose(sl_lane *lane, uint32_t expert_index, bool gone);
/* Drops the running step: its rows are lost. */
void sl_lane_reset(sl_lane *lane);

/* ---- settle.c ---- */

/* Its step of so many rows is over, and its turn is not. */
void sl_lane_settle(sl_lane *lane, uint32_t rows);

/* ---- dispatch.c ---- */

/* The rows of the pass (h, expert, gate) begin to leave for every expert worker, chunk by chunk;
 * bare headers where there are none. */
void sl_lane_leave(sl_lane *lane, bool stay);
/* When the device has packed a chunk: sends it and begins the next one. True: all have left. */
bool sl_lane_left(sl_lane *lane);
/* Goes on with asking others for what lost expert workers owe; false: nothing to do. */
bool sl_lane_ask_again(sl_lane *lane);
/* Checks that the replies cover every row exactly and adds them to x in ascending router position,
 * then the shared expert's rows. On an error *offender is the expert worker at fault. */
sl_status sl_lane_merge(sl_lane *lane, uint32_t *offender, sl_err *err) SL_MUST_CHECK;

#endif
