/* The attention side of schedule aep (AMoE 3.2 to 3.4): no lanes, rounds or barriers. What moves is
 * a part: the rows of one slot that travel together, a decode row with what is known to follow it
 * (at most SL_BATCH_MORE rows) or a chunk of a prompt. A
 * slot has at most one in flight, since a row needs the keys and values of all earlier positions.
 * Each part has its own layer; those that are ready for one block form a batch, whoever they belong
 * to, and a policy picks the block. Rows come back one router position at a time, in any order, and
 * a part is ready for the next block when all positions of all its rows are here.
 *
 *   wake    a slot may have got work: it waits for rows
 *   enter   those that wait get rows, as sched/intake.h says: their parts are ready for block 0
 *   take    a batch: all parts that are ready for the block that the policy picks
 *   leave   its block ran: rows are with the experts, or ready for the next block
 *   back    some of what the experts owe is here
 *   head    the last block's rows are a step's; over: it has ended, its slots may wait again
 *
 * Parts are named by slot, of lane 0; this object counts rows, the driver keeps what lies there. A
 * part whose request ends (sl_life.ends) goes no further than where it is noticed: take and back
 * name it, and the driver ends the request. Rows in flight never exceed the shape's max_rows, which
 * is what expert workers reserve.
 *
 * No I/O, clock or threads; only create allocates. Thread: owner. */
#ifndef SL_SCHED_PARTS_H
#define SL_SCHED_PARTS_H

#include "sched/intake.h"
#include "sched/policy.h"
#include "sched/step.h"

typedef enum sl_part_state {
    SL_PART_NONE,
    SL_PART_READY, /* in the queue of its layer */
    SL_PART_RUNS,  /* in the batch */
    SL_PART_AWAY,  /* rows of MoE block `layer` are with the experts */
} sl_part_state;

/* Of the slot with the same index. What is not state stays readable until the next one begins. */
typedef struct sl_part {
    sl_part_state state;
    sl_part_kind kind;
    bool sample;             /* the last row draws a token */
    bool listed;             /* waits in one of the lists for rows */
    bool goes_on;            /* its last part is just through: the next one follows it */
    uint32_t next;           /* slot behind it in its queue or list */
    uint32_t layer;          /* block to run next, n_layers: the head; AWAY: that has the rows */
    uint32_t rows;           /* positions done .. done + rows - 1 of its slot... */
    uint32_t guesses;        /* ...the last of which are guesses (sched/draft.h)... */
    bool tried;              /* ...or one that is to tell what they cost */
    uint32_t missing;        /* (row, position) pairs that the experts owe */
    uint32_t generation;     /* of the life, when it began */
    uint32_t prompts_beside; /* prompt rows in flight then */
    uint64_t wave, began_us;
} sl_part;

typedef struct sl_parts_shape {
    const sl_plan *plan; /* policy, lookahead, delta, prefill_stretch; borrowed */
    uint32_t n_layers;   /* blocks of the model */
    const uint8_t *moe;  /* [n_layers] nonzero: a block with routed experts. Borrowed. */
    uint32_t top_k;      /* positions of a row there */
    uint32_t max_rows;   /* in flight, > 0 */
} sl_parts_shape;

typedef struct sl_part_list {
    uint32_t head, tail, n; /* slots */
} sl_part_list;

typedef struct sl_parts {
    sl_parts_shape shape;
    sl_slots *slots;                     /* borrowed */
    sl_part *part;                       /* [per_lane] */
    sl_part_list waiting[SL_PART_KINDS]; /* slots that want rows */
    sl_intake in;
    sl_pacer pacer;
    sl_draft_price price;  /* of guesses: of one part, which others run beside */
    uint32_t n_free;       /* rows that may enter */
    uint64_t n_ready;      /* rows that wait for their block */
    sl_part_list *ready;   /* [n_layers + 1] */
    sl_queue_state *queue; /* [n_layers + 1] the same for the policy */
    uint64_t *total;
    double *ahead;
    uint64_t arrivals, newest, seen; /* seen: the latest wave that expert workers have met */

    /* The batch, until it leaves or is over. */
    uint32_t layer, n_batch, n_rows;
    uint64_t wave;
    uint32_t *batch; /* [per_lane] slots in the order in which they became ready */
    /* Of the last take: parts that were in the queue and are over, as their requests end. */
    uint32_t *ended, n_ended; /* [per_lane] */
    uint32_t *entered;        /* [per_lane] of the last enter */
    void *arrays;             /* what they are all in */
} sl_parts;

/* SL_ERR_NOMEM; *out can be freed then, too. */
sl_status sl_parts_create(sl_slots *slots, const sl_parts_shape *shape, sl_parts *out,
                          sl_err *err) SL_MUST_CHECK;
void sl_parts_free(sl_parts *p); /* zeroed is fine */

void sl_parts_wake(sl_parts *p, uint32_t slot);
/* Returns how many parts have entered now, and which in *slot (borrowed until the next call). */
uint32_t sl_parts_enter(sl_parts *p, uint64_t now_us, const uint32_t **slot);
/* False: no part is ready. The batch is empty if the requests of all that were have ended. Only
 * when there is no batch. */
bool sl_parts_take(sl_parts *p);
/* True: the batch's rows are with the experts now. Not after the head. */
bool sl_parts_leave(sl_parts *p);
/* `pairs` (row, position) of the part, which is AWAY and misses at least as many, are here. NONE:
 * with them all is, but its request ends. */
sl_part_state sl_parts_back(sl_parts *p, uint32_t slot, uint32_t pairs);
/* Expert workers have met this wave. */
void sl_parts_meet(sl_parts *p, uint64_t wave);
/* The batch, at layer n_layers, becomes a step whose head is due. */
void sl_parts_head(sl_parts *p, uint64_t now_us, sl_step *step);
/* That step has ended. */
void sl_parts_over(sl_parts *p);
/* All parts are given up, who waits is forgotten, waves begin anew. */
void sl_parts_reset(sl_parts *p);

/* Whether rows that are to enter `layer` were with the experts, and are not merged yet. */
static inline bool sl_parts_comes_back(const sl_parts *p, uint32_t layer) {
    return layer > 0 && p->shape.moe[layer - 1];
}

#endif
