/* The expert side of a worker: takes rows from attention workers, runs them through the experts
 * that are hosted here, answers. Two kinds: with barriers a layer of a round runs when all members
 * have sent (barriers.c), without them entries wait in queues by layer and expert (queues.c,
 * schedule aep). Thread: owner of the worker. */
#ifndef SL_ENGINE_EXPERT_H
#define SL_ENGINE_EXPERT_H

#include "engine/host/host.h"

/* What the loop asks of it. `side` is what create has made. */
struct sl_expert_side_ops {
    sl_status (*create)(sl_worker *w, void **side, sl_err *err);
    /* What it still has is given up. The device has none of it any more. NULL-safe. */
    void (*free)(void *side);
    /* Takes *payload and sets it NULL if it keeps it. */
    sl_status (*on_dispatch)(void *side, const sl_wire_header *h, sl_buf **payload, sl_err *err);
    /* Who is in a round, who is dead: JOIN, ROUND_SET, MEMBER_DEAD. NULL: nobody may say so. */
    sl_status (*on_peer)(void *side, const sl_wire_header *h, sl_span payload, sl_err *err);
    /* Whether a peer has said that worker `id` is dead. NULL: nobody does. */
    bool (*is_dead)(const void *side, uint32_t id);
    /* Worker `id` of the plan is gone; left: in good order. */
    sl_status (*on_gone)(void *side, uint32_t id, bool left, sl_err *err);
    /* Goes on with what the device has had, or begins what may run; false: nothing to do. */
    bool (*run)(void *side);
    /* Makes e a WAIT with its reason if rows are due. NULL: they are never. */
    void (*waits_for)(void *side, sl_trace_event *e);
    /* Sets what lies in the queue of each expert. NULL: there are no queues. */
    void (*count)(const void *side, sl_counts *out);
};

extern const sl_expert_side_ops sl_expert_barriers, sl_expert_queues;

/* ---- for those who wait (busy.c) ---- */

/* A task of so many rows begins, and ends; `behind` rows are ready and wait for it. Attention
 * workers hear of one that takes long. */
void sl_expert_begins(sl_worker *w, uint64_t rows, uint64_t behind);
uint64_t sl_expert_ends(sl_worker *w, uint64_t rows);
/* Nothing is ready. Members for whom waits() is true have rows here that wait for others of their
 * round: after a while they hear that it is not this worker that lets them wait. */
void sl_expert_rests(sl_worker *w, bool (*waits)(const void *side, uint32_t member),
                     const void *side);

/* For tests: no row is stored at the side, which is one of queues. */
bool sl_expert_queues_are_empty(const void *side);

/* ---- any kind (rows.c) ---- */

/* (row, expert) pairs that one task of experts may have. */
uint32_t sl_worker_max_pairs(const sl_worker *w, const sl_model_spec *m);
/* By another plan of the same workers. */
uint32_t sl_worker_pairs_by(const sl_worker *w, const sl_plan *p, const sl_model_spec *m);
/* Of a decoded dispatch: with the `held` rows of its sender that are here already no more than
 * `most`, which are reserved, all for experts that are hosted here, no row for one twice. */
sl_status sl_worker_check_rows(const sl_worker *w, const sl_wire_header *h,
                               const sl_wire_dispatch *v, uint32_t held, uint32_t most,
                               sl_err *err) SL_MUST_CHECK;

#endif
