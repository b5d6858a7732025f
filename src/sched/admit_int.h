/* What the files of the coordinator's books (sched/admit.h) share. */
#ifndef SL_SCHED_ADMIT_INT_H
#define SL_SCHED_ADMIT_INT_H

#include "sched/admit.h"

/* ---- admit.c ---- */

/* Pages that somebody who comes can have there. */
static inline uint32_t admit_spare(const sl_admit *a, uint32_t worker) {
    return sl_pages_spare(&a->worker[worker].pages) + a->copies.worker[worker].n_pages;
}
/* This request, which waits, or SL_ADMIT_NONE: any, may start there, as far as it does not depend
 * on its pages. */
bool admit_takes(const sl_admit *a, uint32_t worker, uint32_t request);
/* What of the worker is in the tree or in sums has changed. */
void admit_note(sl_admit *a, uint32_t worker);
/* Pages that let it run on until its next tokens are known. */
uint32_t admit_wanted(const sl_admit_request *r);
/* The same with its pages. */
bool admit_fits(const sl_admit *a, uint32_t worker, uint32_t request);
/* Pages of which every row is sure; or half a page more, as a planted bug has it. */
uint32_t admit_sure(const sl_admit_request *r, bool early);
/* What is sure of it others may have. */
void admit_tell_pages(sl_admit *a, sl_admit_request *r);
/* Pages of its first tokens that are there, if it began there, but for its last row; *held: of
 * these somebody has. */
uint32_t admit_find(sl_admit *a, uint32_t request, uint32_t worker, uint32_t *held);
/* It runs, and is told to end. */
void admit_begin_leaving(sl_admit *a, uint32_t request, sl_admit_state state);

/* ---- admit_copies.c ---- */

/* Only the first n of its copies stay. */
void admit_cut_copies(sl_admit *a, uint32_t request, uint32_t n);
/* It leaves its worker, and with that go those that are on their way. */
void admit_settle_copies(sl_admit *a, uint32_t request);
/* More of its rows are sure. */
void admit_copies_due(sl_admit *a, uint32_t request);
/* Somewhere there is room again, for prompts that wait to be handed over. */
void admit_hands_due(sl_admit *a);
/* HAND. */
bool admit_hand(sl_admit *a, sl_admit_decision *out);
/* COPY, of the next page of somebody. */
bool admit_copy(sl_admit *a, sl_admit_decision *out);
/* Where it would go on with copies now; SL_ADMIT_NONE: nowhere. */
uint32_t admit_place_of_copies(const sl_admit *a, uint32_t request);
/* Copies at its new worker are its pages from now on, and what is in them is sure. */
void admit_take_copies(sl_admit *a, sl_admit_request *r, uint32_t request);
/* No place is kept for it any longer. */
void admit_unkeep(sl_admit *a, uint32_t request);

#endif
