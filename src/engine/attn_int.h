/* Inside of the attention side: slots (requests with their KV) and lanes (micro-batches in flight).
 * attn.c owns slots and talks to the coordinator, lane.c runs the steps and talks to experts,
 * head.c ends them. */
#ifndef SL_ENGINE_ATTN_INT_H
#define SL_ENGINE_ATTN_INT_H

#include "engine/worker_int.h"
#include "model/sampler.h"
#include "sched/head.h"
#include "sched/step.h"
#include "sched/turns.h"

/* What a request has here beside its life: the ids of its tokens, prompt and generated ones, where
 * its pages lie, how it draws. */
typedef struct sl_slot {
    sl_life *life;                          /* what scheduling knows of it: of sl_attn.slots */
    bool broken;                            /* and ends: a row of it was not finite... */
    uint32_t broken_block, broken_position; /* ...here; sl_model_spec.n_layers: at the head */
    uint64_t request;
    uint32_t *tokens;  /* ids; room for all it may generate */
    uint32_t n_prompt; /* of those given: the rest was generated before it came here */
    bool want_logits, want_logprobs, want_prompt_logprobs;
    uint32_t n_top; /* likeliest tokens reported with a token */
    sl_sampling sampling;
    sl_logit_bias *bias;                         /* owned; sampling points to it */
    uint32_t stop[SL_MAX_STOP_IDS + SL_MAX_EOS]; /* ids that end it */
    uint32_t n_stop;
    uint32_t min_tokens; /* of the generated ones: none of `stop` is drawn before */
    uint32_t *pages;     /* in position order, room for all it may ever need */
    uint32_t first_row;  /* of its rows in the running step */
} sl_slot;

typedef struct sl_reply {
    sl_buf *payload;
    sl_wire_return view;
    bool here;
} sl_reply;

typedef struct sl_outgoing sl_outgoing; /* engine/outgoing.h */

typedef struct sl_lane {
    uint32_t id;
    sl_attn *attn;
    sl_member member;
    uint32_t layer; /* of the running or last task */
    sl_turn task;
    bool begun;     /* the task waits for... */
    sl_event event; /* ...the last call that the lane submitted */

    sl_slot *slot; /* [max_num_seqs] */
    sl_step step;
    uint64_t step_began_ns;

    /* rows of the running step, [max_rows] each */
    uint32_t n_rows;
    uint32_t *row_id, *row_pos;
    uint64_t *row_tag;
    const uint32_t **row_pages;
    sl_mem x, h;           /* [max_rows][d_model]; h: what experts receive, then SHARED's result */
    uint32_t *expert;      /* [max_rows][top_k] */
    float *gate;           /* [max_rows][top_k] */
    uint32_t *owner;       /* [max_rows][top_k] index of the expert worker that computes it */
    uint64_t *covered;     /* router positions that have come back */
    const uint8_t **piece; /* [max_rows][top_k] wire rows by lowest position */

    sl_reply *reply;    /* [chunks][n_expert_workers] */
    uint32_t *next_set; /* NEXT of the running round, [SL_PLAN_MAX_WORKERS] */
    size_t n_next;
    bool have_next;
    /* chunks by expert: which of the rows sent to an expert worker row r is, and how many they are;
     * [max_rows][n_expert_workers] and [n_expert_workers], else NULL */
    uint32_t *sent_row, *n_sent;
    uint64_t dispatched_ns;
    /* rows that leave: `out` is the chunk that the device packs, n_left have left */
    bool leaves, leaving, stay; /* leaves: the task has come so far; leaving: some have not left */
    uint32_t n_left;
    sl_outgoing *out;   /* [n_expert_workers] */
    uint32_t *pack_row; /* [max_rows][least of top_k, n_expert_workers]: lane rows... */
    uint8_t **pack_at;  /* ...and where in messages they go */
    uint32_t n_pack;
} sl_lane;

typedef struct sl_flow sl_flow;

struct sl_attn {
    sl_worker *w;
    const sl_model_spec *m;
    sl_slots slots;
    sl_lane *lane;
    sl_flow *flow; /* aep: moves the rows of lane 0's slots; else NULL */
    sl_turns turns;
    uint8_t *moe; /* [n_layers], of turns */
    uint32_t n_lanes, n_chunks, max_slots, max_rows;
    sl_cut cut;
    uint32_t look;        /* slot that was asked for last */
    sl_arena scratch;     /* of the sampler */
    sl_head head;         /* of one lane at a time */
    uint64_t head_tokens; /* that the worker had sampled before it */
    sl_mem head_rows;     /* [HEAD_ROWS][d_model], normed */
    float *logits;        /* [HEAD_ROWS][vocab] */
    sl_wire_token *out;   /* tokens of this step for the coordinator */
    sl_logprob *pairs;    /* [out_cap][1 + SL_MAX_LOGPROBS] of them */
    uint32_t n_out, out_cap, n_pairs;
    uint32_t expert_index[SL_PLAN_MAX_WORKERS]; /* worker id -> index of expert worker */
    bool lost;                                  /* an expert worker is gone: */
    uint32_t lost_worker;
};

/* From now on the thread works on this lane: one call where a task begins. */
static inline void sl_lane_begin(const sl_lane *lane, sl_trace_kind kind, uint32_t rows) {
    sl_worker_begin(lane->attn->w, &(sl_trace_event){.kind = (uint8_t)kind,
                                                     .lane = sl_trace_u16(lane->id),
                                                     .layer = sl_trace_u16(lane->layer),
                                                     .round = (uint32_t)lane->member.round,
                                                     .rows = rows});
}

/* attn_stage.c: what lane and flow ask of the device for a lane's rows, in block lane->layer */
sl_stage_call sl_lane_call(const sl_lane *lane, sl_stage_op op);
/* Any number in a row: lane->event is the last one's. */
void sl_lane_submit(sl_lane *lane, const sl_stage_call *c);
void sl_lane_embed(sl_lane *lane);
/* Attention, and the dense feed-forward or the router; of a model with dense branches the router
 * comes first. */
void sl_lane_block(sl_lane *lane);
/* After the router: rows that are not finite end their requests. */
void sl_lane_break(sl_lane *lane);
/* Rows pack_row of h to pack_at. */
void sl_lane_pack(sl_lane *lane);
/* The shared expert, or the dense branch, in place: nobody needs the rows that left for the experts
 * any more, and the result is held where they were until the merge. */
void sl_lane_shared(sl_lane *lane);
/* What came back, into x. */
void sl_lane_add(sl_lane *lane, const sl_stage_merge *m);

/* attn.c */
/* The row at `position` has values that are not finite, found in `block`. Its request is cancelled:
 * what of it is on its way travels on, and then the coordinator hears why it ended. */
void sl_slot_break(sl_slot *s, uint32_t block, uint32_t position);
/* The end, without a token, of a request that was cancelled; releases its slot. */
void sl_slot_end(sl_attn *a, sl_slot *s);
/* A record of the token at `position` with its n log-probabilities. */
void sl_attn_emit(sl_attn *a, const sl_slot *s, uint32_t position, uint32_t token, sl_finish finish,
                  const sl_logprob *logprobs, uint32_t n);
void sl_attn_flush(sl_attn *a);
void sl_slot_release(sl_attn *a, sl_slot *s);
/* Appends a sampled token, decides whether the request is over, tells the coordinator. */
void sl_slot_append(sl_attn *a, sl_slot *s, uint32_t token, const sl_logprob *logprobs, uint32_t n);

/* lane.c */
sl_status sl_lane_create(sl_attn *a, uint32_t id, sl_lane *lane, sl_err *err) SL_MUST_CHECK;
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
/* Drops the running step: its rows are lost. */
void sl_lane_reset(sl_lane *lane);

/* head.c */
/* A piece of what follows the last block: step and x of the lane say which rows of which slots
 * are through; their slots advance, report, sample, end. Until the step is over no other lane may
 * call these. */
void sl_lane_begin_head(sl_lane *lane);
/* When the device is through with the piece. True: the step is over. */
bool sl_lane_end_head(sl_lane *lane);

/* dispatch.c: rows to experts and back */
/* The rows of block lane->layer (h, expert, gate of the lane) begin to leave for every expert
 * worker, chunk by chunk; bare headers where there are none. */
void sl_lane_leave(sl_lane *lane, bool stay);
/* When the device has packed a chunk: sends it and begins the next one. True: all have left. */
bool sl_lane_left(sl_lane *lane);
/* Forgets what has not left. */
void sl_lane_stays(sl_lane *lane);
/* Checks that the replies cover every row exactly and adds them to x in ascending router position,
 * then the shared expert's rows. On an error *offender is the expert worker at fault. */
sl_status sl_lane_merge(sl_lane *lane, uint32_t *offender, sl_err *err) SL_MUST_CHECK;

#endif
