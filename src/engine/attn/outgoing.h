/* A message of rows to one expert worker while it is made: counted first, then laid out, then
 * written row by row. Rows are those of a pass (h, tag, expert, gate). Thread: owner of the worker.
 */
#ifndef SL_ENGINE_OUTGOING_H
#define SL_ENGINE_OUTGOING_H

#include "engine/attn/attn_int.h"

#define SL_NO_ROW UINT32_MAX

struct sl_outgoing {
    sl_wire_counts n;
    uint32_t at_row, at_entry; /* written so far */
    uint32_t last_row;         /* last row counted or written, or SL_NO_ROW */
    sl_buf *buf;
    sl_wire_dispatch view;
    bool far;     /* it may leave without its rows (engine/host/far.h) */
    bool spreads; /* over the ranks of this gang and of the expert worker's */
    size_t row_bytes;
};

/* Fills p->owner for the rows at block p->layer: by row and router position, the index of the
 * expert worker that computes it. */
void sl_outgoing_assign(sl_pass *p);

/* The index of the expert worker, of those who are there, that computes entry rj = row * top_k +
 * position of them. */
uint32_t sl_outgoing_host(const sl_pass *p, size_t rj);

/* Messages that are to be spread over ranks are, as many as can be; before they are laid out. */
void sl_outgoing_spread(const sl_attn *a, sl_outgoing *out);
/* Those of them that are, for PACK: their number. */
uint32_t sl_outgoing_list(const sl_attn *a, const sl_outgoing *out, sl_stage_spread *list);
/* Takes a buffer for what o->n counts; `set` has o->n.n_set ids. SL_ERR_NOMEM. */
sl_status sl_outgoing_layout(const sl_attn *a, uint32_t worker, const uint32_t *set,
                             sl_outgoing *o) SL_MUST_CHECK;
/* Begins row r, with its data, which sl_pass_pack will write, or (a row that came with an
 * earlier chunk) without. */
void sl_outgoing_row(sl_pass *p, uint32_t r, bool with_data, sl_outgoing *o);
/* Position j of row r, which is the row begun last. */
void sl_outgoing_entry(const sl_pass *p, uint32_t r, uint32_t j, sl_outgoing *o);

/* Forgets messages that have not left. */
void sl_outgoing_drop(sl_pass *p);

#endif
