/* The attention side of schedule aep: what lies in the parts of src/sched/parts.h here. A part's
 * rows are in a storage from when it enters until it is over; a batch is copied into the buffers of
 * a pass, runs there, and is copied back. flow.c has what runs when, flow_rows.c the rows.
 * Thread: owner of the worker. */
#ifndef SL_ENGINE_FLOW_H
#define SL_ENGINE_FLOW_H

#include "engine/attn/attn_int.h"
#include "sched/parts.h"

#define SL_FLOW_NONE UINT32_MAX

/* Of the part of the slot with the same index. */
typedef struct sl_flow_part {
    uint32_t first;    /* rows of storage, chained by `next` of them */
    uint64_t began_ns; /* when it entered block 0, */
    uint64_t sent_ns;  /* and when its rows left last: by the real clock */
} sl_flow_part;

/* What the batch waits for at the device. */
typedef enum sl_flow_phase {
    SL_FLOW_RESTS, /* there is no batch */
    SL_FLOW_BLOCK, /* its rows, routed or through a dense block */
    SL_FLOW_PACK,  /* the same as they leave */
    SL_FLOW_SHARED,
    SL_FLOW_HEAD,  /* a piece of it */
    SL_FLOW_AGAIN, /* there is none; rows leave again, as a lost expert worker owes them */
} sl_flow_phase;

typedef struct sl_flow {
    sl_attn *a;
    sl_pass pass; /* the batch */
    sl_parts parts;
    sl_flow_part *part; /* [max_slots] */
    sl_flow_phase phase;

    /* storage, by row */
    uint32_t *next; /* of its part, or of the free list */
    uint32_t *slot;
    uint64_t *tag;
    uint64_t *owed;  /* positions not here yet, */
    uint64_t *again; /* and those that were asked of two */
    uint32_t *owner; /* [max_rows][top_k] index of the expert worker that owes it */
    sl_mem x;        /* [max_rows][d_model] residual stream */
    sl_mem shared;   /* [max_rows][d_model] of rows that are away; none: no shared experts */
    uint8_t *piece;  /* [max_rows][top_k] rows of the wire format */
    /* Where there are replicas: what left, to leave again. */
    sl_mem sent;           /* [max_rows][d_model] */
    uint32_t *sent_expert; /* [max_rows][top_k] */
    float *sent_gate;      /* [max_rows][top_k] */
    uint8_t *copies;       /* [max_rows] sent again of a row that is away, */
    uint32_t n_copies;     /* and of all */
    bool due;              /* an expert worker was lost: rows may have to leave again */
    uint32_t free_row;
    uint32_t *batch_row; /* [max_rows] storage row of a row of the pass */
    void *arrays;        /* what they are all in */
} sl_flow;

/* Storage for the part at `slot`, which has just entered, and back when it is over. */
void sl_flow_take_rows(sl_flow *f, uint32_t slot);
void sl_flow_give_rows(sl_flow *f, uint32_t slot);
/* Adds the rows of a part to the batch, all but their values. */
void sl_flow_load(sl_flow *f, uint32_t slot);
/* The batch's residual stream out of storage, with what came back from the experts if `returned`.
 */
void sl_flow_merge(sl_flow *f, bool returned);
/* Rows of the batch, in its order, to their places in storage: out [max_rows][d_model]. */
void sl_flow_store(sl_flow *f, sl_mem rows, sl_mem out);
/* The batch's rows begin to leave for the owners of their experts. SL_ERR_NOMEM. */
sl_status sl_flow_leave(sl_flow *f) SL_MUST_CHECK;
/* When the device has packed them. */
void sl_flow_send(sl_flow *f);
/* What the expert worker owes is asked of others from now on, though it may still answer. */
void sl_flow_spare(sl_flow *f, uint32_t expert_index);
/* Rows of one block that lost expert workers owe leave again, for others. False: there are none.
 * SL_ERR_LIMIT: more than expert workers have room for, SL_ERR_NOMEM. */
sl_status sl_flow_leave_again(sl_flow *f, bool *leave) SL_MUST_CHECK;
/* Books row i of a return; *slot is set when it completes a part, which is ready then or over, else
 * SL_FLOW_NONE. */
sl_status sl_flow_collect(sl_flow *f, uint32_t expert_index, uint32_t moe, const sl_wire_return *v,
                          uint32_t i, uint32_t *slot, sl_err *err) SL_MUST_CHECK;

#endif
