/* The attention side of a worker: requests with their KV, and their rows' way through the blocks.
 * What a worker's loop calls. Thread: owner of the worker. */
#ifndef SL_ENGINE_ATTN_H
#define SL_ENGINE_ATTN_H

#include "engine/host/host.h"

typedef struct sl_attn sl_attn;

/* `folder`: of the model, whose tokenizer answers with a shape need. */
sl_status sl_attn_create(sl_worker *w, const char *folder, sl_attn **out,
                         sl_err *err) SL_MUST_CHECK;
void sl_attn_free(sl_attn *a); /* NULL-safe */
sl_status sl_attn_on_submit(sl_attn *a, sl_span payload, sl_err *err) SL_MUST_CHECK;
/* CANCEL, ACK, PAGES. */
sl_status sl_attn_on_pairs(sl_attn *a, const sl_wire_header *h, sl_span payload,
                           sl_err *err) SL_MUST_CHECK;
/* The coordinator is gone: full pages of its requests, all of whose rows are computed, are kept for
 * the next one (engine/attn/keep.h). The worker goes on no longer. */
void sl_attn_keep(sl_attn *a);
/* Before the first READY: the coordinator hears of what was kept, or came from the disk. */
void sl_attn_tell_kept(sl_attn *a);
/* Right after its creation: pages come from the worker's disk, if it has one (engine/attn/disk.h),
 * of the model in `folder`. */
void sl_attn_load(sl_attn *a, const char *folder);
/* Whether pages can go there. */
bool sl_attn_saves(const sl_attn *a);
/* KV_SAVE of the coordinator: these go there now. */
sl_status sl_attn_on_save(sl_attn *a, const sl_wire_header *h, sl_span payload,
                          sl_err *err) SL_MUST_CHECK;
/* KV_FETCH of the coordinator. */
sl_status sl_attn_on_fetch(sl_attn *a, const sl_wire_header *h, sl_span payload,
                           sl_err *err) SL_MUST_CHECK;
/* KV_GET, KV_PAGES of another attention worker, whatever the plan. */
sl_status sl_attn_on_blocks(sl_attn *a, const sl_wire_header *h, sl_span payload,
                            sl_err *err) SL_MUST_CHECK;
/* Goes on with pages that come and go, beside rows (busy) a little at a time; false: nothing to do
 * now. */
bool sl_attn_move(sl_attn *a, bool busy);
/* Takes *payload and sets it NULL if it keeps it. */
sl_status sl_attn_on_return(sl_attn *a, uint32_t src, const sl_wire_header *h, sl_buf **payload,
                            sl_err *err) SL_MUST_CHECK;
/* RETURN by an earlier plan, which counts for nothing. */
void sl_attn_on_stale(sl_attn *a, const sl_wire_header *h);
/* ROUND_OPEN. */
sl_status sl_attn_on_peer(sl_attn *a, const sl_wire_header *h, sl_span payload,
                          sl_err *err) SL_MUST_CHECK;
/* Worker `id` is gone, or (gone: false) done without by this plan, as others wait for it. Of an
 * expert worker: where replicas of all its experts are left they are asked for what it owes, and
 * steps go on; otherwise they are given up. With barriers an answer of one who is done without
 * counts if it comes before theirs; aep takes none of it. */
void sl_attn_lose(sl_attn *a, uint32_t id, bool gone);
/* BUSY of an expert worker. */
sl_status sl_attn_on_busy(sl_attn *a, const sl_wire_header *h, sl_err *err) SL_MUST_CHECK;
/* Time has passed: requests whose guides are compiled go on; the coordinator hears of expert
 * workers that let others wait too long, where somebody could stand in for them (sched/hedge.h). To
 * be called every SL_HEDGE_LOOK_US while one owes anything (sl_attn_is_owed), after what has come
 * was handled. */
void sl_attn_look(sl_attn *a);
bool sl_attn_is_owed(const sl_attn *a);
/* What is missing will not come, as a peer is gone: steps in flight are given up, but for the head
 * of one, which needs nobody; requests that were to end with them end. None begins before another
 * plan is taken. */
void sl_attn_give_up(sl_attn *a);
/* Runs one task if one is ready; false: nothing to do. */
bool sl_attn_run(sl_attn *a);
/* No row of this side is on its way, no lane is in a round or about to be. While the worker's taker
 * holds it gets there by itself. */
bool sl_attn_rests(const sl_attn *a);
/* Around a change of plans: what this side has of the old one goes, steps that there are are given
 * up; lanes and all else begin anew by the new one, slots stay. SL_ERR_NOMEM: it cannot be used. */
void sl_attn_close_side(sl_attn *a);
sl_status sl_attn_open_side(sl_attn *a, sl_err *err) SL_MUST_CHECK;
/* Rows of prompts that are under way and those that were asked of two, for the worker's next
 * report. */
void sl_attn_count(sl_attn *a);
/* Whoever has work may go on. */
void sl_attn_wake(sl_attn *a);
/* Makes e a WAIT with its reason if rows of this side are elsewhere. */
void sl_attn_waits_for(const sl_attn *a, sl_trace_event *e);

#endif
