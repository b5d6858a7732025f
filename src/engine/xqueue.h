/* The expert side of schedule aep. Which entries wait, and which run next: src/sched/queues.h. Here
 * is what lies at their places, and each attention worker that has rows in a batch gets one message
 * back, with one position a row.
 *
 * Rows are unpacked when they come, into storage of max_num_batched_tokens rows for each attention
 * worker: what it may have in flight. Thread: owner of the worker. */
#ifndef SL_ENGINE_XQUEUE_H
#define SL_ENGINE_XQUEUE_H

#include "engine/worker_int.h"

sl_status sl_xqueue_create(sl_worker *w, sl_xqueue **out, sl_err *err) SL_MUST_CHECK;
void sl_xqueue_free(sl_xqueue *x); /* NULL-safe */
/* Takes *payload and sets it NULL if it keeps it. */
sl_status sl_xqueue_on_dispatch(sl_xqueue *x, uint32_t src, const sl_wire_header *h,
                                sl_buf **payload, sl_err *err) SL_MUST_CHECK;
/* Attention worker `src` is gone: its rows leave the queues. */
void sl_xqueue_on_dead(sl_xqueue *x, uint32_t src);
bool sl_xqueue_is_empty(const sl_xqueue *x); /* no row is stored */
/* The worker's plan has changed: queues begin anew, what still waits is of somebody who is gone.
 * SL_ERR_NOMEM: *x is NULL then. */
sl_status sl_xqueue_renew(sl_xqueue **x, sl_err *err) SL_MUST_CHECK;
/* Runs one batch; false: all queues are empty. */
bool sl_xqueue_run(sl_xqueue *x);

#endif
