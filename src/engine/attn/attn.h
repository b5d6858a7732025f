/* The attention side of a worker: requests with their KV, and their rows' way through the blocks.
 * What a worker's loop calls. Thread: owner of the worker. */
#ifndef SL_ENGINE_ATTN_H
#define SL_ENGINE_ATTN_H

#include "engine/host/host.h"

typedef struct sl_attn sl_attn;

sl_status sl_attn_create(sl_worker *w, sl_attn **out, sl_err *err) SL_MUST_CHECK;
void sl_attn_free(sl_attn *a); /* NULL-safe */
sl_status sl_attn_on_submit(sl_attn *a, sl_span payload, sl_err *err) SL_MUST_CHECK;
/* CANCEL, ACK, PAGES. */
sl_status sl_attn_on_pairs(sl_attn *a, const sl_wire_header *h, sl_span payload,
                           sl_err *err) SL_MUST_CHECK;
/* Takes *payload and sets it NULL if it keeps it. */
sl_status sl_attn_on_return(sl_attn *a, uint32_t src, const sl_wire_header *h, sl_buf **payload,
                            sl_err *err) SL_MUST_CHECK;
/* ROUND_OPEN. */
sl_status sl_attn_on_peer(sl_attn *a, const sl_wire_header *h, sl_span payload,
                          sl_err *err) SL_MUST_CHECK;
/* Expert worker `id` is gone: every request here ends with an error, later ones are refused. why
 * NULL: it left in good order. */
void sl_attn_on_expert_lost(sl_attn *a, uint32_t id, const char *why);
/* Runs one task if one is ready; false: nothing to do. */
bool sl_attn_run(sl_attn *a);
/* No row of this side is on its way, no lane is in a round or about to be. While the worker's taker
 * holds it gets there by itself. */
bool sl_attn_rests(const sl_attn *a);
/* The worker's plan has changed, and this side rests: lanes begin anew, slots stay. SL_ERR_NOMEM.
 */
sl_status sl_attn_renew(sl_attn *a, sl_err *err) SL_MUST_CHECK;
/* Whoever has work may go on. */
void sl_attn_wake(sl_attn *a);
/* Makes e a WAIT with its reason if rows of this side are elsewhere. */
void sl_attn_waits_for(const sl_attn *a, sl_trace_event *e);

#endif
