/* A worker takes another plan while its requests run: what sched/change.h says, carried out.
 * Thread: owner of the worker. */
#ifndef SL_ENGINE_TAKE_H
#define SL_ENGINE_TAKE_H

#include "engine/host/host.h"

/* Who has which role in the worker's plan. SL_ERR_NOMEM. */
sl_status sl_take_roles(sl_worker *w, sl_err *err) SL_MUST_CHECK;
/* A plan after the first: maps what it adds to what is hosted here and calls whom it adds, so that
 * the worker gets ready, or tells the coordinator why it cannot be. Takes *next. SL_ERR_PROTOCOL:
 * it comes before the one before is taken or given up. */
sl_status sl_take_prepare(sl_worker *w, sl_plan *next, sl_err *err) SL_MUST_CHECK;
/* Each turn: a step towards what the plans ask to be hosted, less than a millisecond. False:
 * nothing was to be done. */
bool sl_take_host(sl_worker *w);
/* HOLD, TAKE and GO. HOLD may name workers that are lost: this one waits for them no more.
 * SL_ERR_PROTOCOL: not what follows the word before, or ids that are none of the plan's. */
sl_status sl_take_on_word(sl_worker *w, const sl_wire_header *h, sl_span payload,
                          sl_err *err) SL_MUST_CHECK;
/* After every turn of the loop: says QUIET when it is due. */
void sl_take_look(sl_worker *w);

#endif
