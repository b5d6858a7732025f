/* The expert side of schedule aep (AMoE 3.2 to 3.4): what waits in which queue of one expert
 * worker, and what runs next.
 *
 * There is a queue per (MoE layer, hosted expert). An entry is `rows` rows of one attention worker,
 * its source, for one expert: a single row in the engine, all rows of a part in the simulator. This
 * object names the place of each entry; what lies there, the driver keeps.
 *
 *   push   an entry arrived: it goes to the end of its queue
 *   take   what runs now: the queue that the policy picks. If no other layer has rows here, every
 *          queue of its layer in one batch: then no order of them lets later rows join, and there
 *          are fewer calls and messages
 *   done   the batch ran: its places are free
 *   drop   a source is gone: its entries leave the queues
 *
 * No I/O, clock or threads; memory is taken by create and reserve alone. Thread: owner, for every
 * function here. */
#ifndef SL_SCHED_QUEUES_H
#define SL_SCHED_QUEUES_H

#include "base/status.h"
#include "sched/watch.h"
#include "spec/plan.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sl_queues sl_queues;

typedef struct sl_queue_entry {
    uint32_t layer;  /* among MoE layers */
    uint32_t expert; /* hosted here */
    uint32_t source; /* worker id */
    uint32_t rows;   /* > 0 */
    uint64_t wave;
} sl_queue_entry;

/* Entries by expert: those of group i lie at place[first[i]] .. place[first[i + 1] - 1], in order
 * of arrival. */
typedef struct sl_queue_batch {
    uint32_t layer, n_groups, n;
    uint32_t oldest;        /* the place whose entry has waited longest */
    uint64_t n_rows;        /* of all groups */
    const uint32_t *expert; /* [n_groups] ids, ascending */
    const uint32_t *rows;   /* [n_groups] */
    const uint32_t *first;  /* [n_groups + 1] */
    const uint32_t *place;  /* [n] */
} sl_queue_batch;

/* Queues of the experts that the plan gives to `worker`, in each of n_moe > 0 layers, picked by the
 * plan's policy; the plan is not kept. `places` entries may be here at once, before
 * sl_queues_reserve. SL_ERR_NOMEM. */
sl_status sl_queues_create(const sl_plan *plan, uint32_t n_moe, uint32_t worker, uint32_t places,
                           sl_queues **out, sl_err *err) SL_MUST_CHECK;
void sl_queues_free(sl_queues *q); /* NULL-safe */
/* From now on `places` entries may be here; no effect if as many could be before. SL_ERR_NOMEM
 * leaves it as it was. */
sl_status sl_queues_reserve(sl_queues *q, uint32_t places, sl_err *err) SL_MUST_CHECK;

/* Who sees its batches, QUEUE and GROUP, from now on; NULL, as at first: nobody. Borrowed. */
void sl_queues_watch(sl_queues *q, const sl_watch *watch);

/* How many entries may be here, and how many more may come. */
uint32_t sl_queues_places(const sl_queues *q);
uint32_t sl_queues_room(const sl_queues *q);
uint64_t sl_queues_rows(const sl_queues *q); /* that wait */
/* Of them, for this expert of this layer; 0 if it is not hosted here. */
uint32_t sl_queues_waits(const sl_queues *q, uint32_t layer, uint32_t expert);
uint64_t sl_queues_seen(const sl_queues *q); /* the highest wave that arrived */

/* The place of the entry, until its batch is done or its source is dropped. There must be room. */
uint32_t sl_queues_push(sl_queues *q, const sl_queue_entry *e);
/* What runs now; false: nothing waits. *out is borrowed until sl_queues_done, which has to be
 * called before the next batch is taken or a source is dropped: a driver whose batches take time
 * copies what it needs. */
bool sl_queues_take(sl_queues *q, sl_queue_batch *out);
void sl_queues_done(sl_queues *q);
/* Takes the entries of a source out of all queues. Returns how many, and in *place (borrowed until
 * the next call) where they lay: these places are free. What they made of a queue's age and wave
 * stays until it is empty. */
uint32_t sl_queues_drop(sl_queues *q, uint32_t source, const uint32_t **place);

#endif
