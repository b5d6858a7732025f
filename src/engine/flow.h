/* The attention side of schedule aep (AMoE 3.2 to 3.4): no lanes, rounds or barriers. What moves is
 * a part: the rows of one slot that travel together, one decode row or one chunk of a prompt. Each
 * part has its own layer; those that are ready for one block form a batch, whoever they belong to,
 * and a policy picks the block. Rows come back one router position at a time, in any order, and a
 * part is ready for the next block when all positions of all its rows are here (top-k merge).
 *
 * Slots, batch buffers and what follows the head are lane 0's. Rows in flight never exceed
 * sl_attn.max_rows, which is what expert workers reserve. Thread: owner of the worker. */
#ifndef SL_ENGINE_FLOW_H
#define SL_ENGINE_FLOW_H

#include "engine/attn_int.h"
#include "sched/intake.h"
#include "sched/policy.h"

sl_status sl_flow_create(sl_attn *a, sl_flow **out, sl_err *err) SL_MUST_CHECK;
void sl_flow_free(sl_flow *f); /* NULL-safe */
/* Slot s of lane 0 may have got work. */
void sl_flow_wake(sl_flow *f, const sl_slot *s);
/* Goes on with the batch that the device has had, or begins one if a part is ready; false: nothing
 * to do. */
bool sl_flow_run(sl_flow *f);
/* Rows of a RETURN; PROTOCOL: not exactly positions that expert worker `expert_index` owes. */
sl_status sl_flow_on_return(sl_flow *f, uint32_t expert_index, const sl_wire_header *h,
                            sl_span payload, sl_err *err) SL_MUST_CHECK;
/* WAIT if rows are with the experts; else leaves *e. */
void sl_flow_waits_for(const sl_flow *f, sl_trace_event *e);
/* Drops all parts: their rows are lost. */
void sl_flow_reset(sl_flow *f);

/* ---- between flow.c and flow_rows.c ---- */

#define SL_FLOW_NONE UINT32_MAX

typedef enum sl_part_state {
    SL_PART_NONE,
    SL_PART_READY, /* in the queue of its layer */
    SL_PART_RUNS,  /* in the batch */
    SL_PART_AWAY,  /* rows of MoE block `layer` are with the experts */
} sl_part_state;

/* Of the slot with the same index: a slot has at most one part in flight, since a row needs the
 * keys and values of all earlier positions. */
typedef struct sl_part {
    sl_part_state state;
    sl_part_kind kind;
    bool sample;
    bool listed;          /* waits in one of the lists for rows */
    bool goes_on;         /* its last part is just through: the next one follows it */
    uint32_t next;        /* slot behind it in its queue or list */
    uint32_t layer;       /* block to run next, n_layers: the head; AWAY: block that has the rows */
    uint32_t first, rows; /* rows of storage, chained by `next` of them */
    uint32_t missing;     /* (row, position) pairs that the experts owe */
    uint32_t generation;  /* of the slot, when it began */
    uint64_t epoch;
    uint64_t began_us,
        began_ns;            /* when it entered block 0, by the worker's clock and the real one */
    uint64_t sent_ns;        /* when its rows left last */
    uint32_t prompts_beside; /* prompt rows in flight then */
} sl_part;

/* What the batch waits for at the device. */
typedef enum sl_flow_phase {
    SL_FLOW_RESTS, /* there is no batch */
    SL_FLOW_BLOCK, /* its rows, routed or through a dense block */
    SL_FLOW_PACK,  /* the same as they leave */
    SL_FLOW_SHARED,
    SL_FLOW_HEAD, /* a piece of it */
} sl_flow_phase;

typedef struct sl_part_list {
    uint32_t head, tail, n; /* slots */
} sl_part_list;

struct sl_flow {
    sl_attn *a;
    sl_lane *lane;
    sl_part *part;                       /* [max_slots] */
    sl_part_list waiting[SL_PART_KINDS]; /* slots that want rows */
    sl_intake in;
    sl_part_list *list;    /* [n_layers + 1] ready parts */
    sl_queue_state *queue; /* [n_layers + 1] the same for the policy */
    uint64_t *total;
    double *ahead;
    uint64_t arrivals, wave, seen; /* seen: the latest epoch that expert workers have met */

    /* storage, by row */
    uint32_t *next; /* of its part, or of the free list */
    uint32_t *slot;
    uint64_t *tag;
    uint64_t *owed;  /* positions not here yet */
    uint32_t *owner; /* [max_rows][top_k] index of the expert worker that owes it */
    sl_mem x;        /* [max_rows][d_model] residual stream */
    sl_mem shared;   /* [max_rows][d_model] of rows that are away; none: no shared experts */
    uint8_t *piece;  /* [max_rows][top_k] rows of the wire format */
    uint32_t free_row, n_free;

    uint32_t *batch_row;  /* [max_rows] storage row of a row of the lane's buffers */
    uint32_t *batch_slot; /* [max_slots] slots of the batch */
    uint32_t n_batch;
    uint64_t batch_epoch;
    sl_flow_phase phase;
};

/* Gives the part at `slot` its rows, positions done .. done + rows - 1 of the slot. */
void sl_flow_take_rows(sl_flow *f, uint32_t slot, uint32_t rows);
void sl_flow_give_rows(sl_flow *f, uint32_t slot);
/* Adds the rows of a part to the batch in the lane's buffers, all but their values. */
void sl_flow_load(sl_flow *f, uint32_t slot);
/* The batch's residual stream out of storage, with what came back from the experts if `returned`.
 */
void sl_flow_merge(sl_flow *f, bool returned);
/* Rows of the batch, in the lane's order, to their places in storage: out [max_rows][d_model]. */
void sl_flow_store(sl_flow *f, sl_mem rows, sl_mem out);
/* The batch's rows begin to leave for the owners of their experts. SL_ERR_NOMEM. */
sl_status sl_flow_leave(sl_flow *f) SL_MUST_CHECK;
/* When the device has packed them. */
void sl_flow_send(sl_flow *f);
/* Books row i of a return; *slot is set when it completes a part, else SL_FLOW_NONE. */
sl_status sl_flow_collect(sl_flow *f, uint32_t expert_index, uint32_t moe, const sl_wire_return *v,
                          uint32_t i, uint32_t *slot, sl_err *err) SL_MUST_CHECK;

#endif
