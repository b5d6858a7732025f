/* The book of answers that an attention worker asked of two: rows that an expert worker lets it
 * wait for are asked of others (sched/again.h), and so more is to come than can count. Rows are
 * those of answers, as they travel; each has whoever owes it, by id.
 *
 *   asked = counted + late + lost + out
 *
 * asked: what was sent to those who stand in, and what an owner that is done without owed then. It
 * is out until it comes, and counted or late then: another answer has counted, or the step was
 * given up. It is lost only when nothing can come any more: the connection with who owes it has
 * ended, or that one serves a later plan, for which it has dropped all of the one before.
 *
 * No I/O, clock or threads; only create allocates. Thread: owner. */
#ifndef SL_SCHED_TWICE_H
#define SL_SCHED_TWICE_H

#include "base/status.h"

#include <stdint.h>

typedef struct sl_twice_debt {
    uint64_t rows;
    uint32_t epoch; /* the plan by which they were asked */
} sl_twice_debt;

typedef struct sl_twice {
    uint64_t asked, counted, late, lost, out;
    uint64_t first; /* of `counted`: by owners that were done without, before others answered */
    uint32_t n_workers;
    sl_twice_debt *debt; /* [n_workers] */
} sl_twice;

/* SL_ERR_NOMEM. */
sl_status sl_twice_create(uint32_t n_workers, sl_twice *out, sl_err *err) SL_MUST_CHECK;
void sl_twice_free(sl_twice *t); /* zeroed is fine */

/* So many rows are due from the worker by plan `epoch`, and from somebody else, too. */
void sl_twice_asked(sl_twice *t, uint32_t worker, uint32_t epoch, uint64_t rows);
/* They came, and count. */
void sl_twice_counted(sl_twice *t, uint32_t worker, uint64_t rows);
/* The same, of an owner that is done without. */
void sl_twice_first(sl_twice *t, uint32_t worker, uint64_t rows);
/* They came, and are dropped. More than it owes here is no matter of this book. */
void sl_twice_late(sl_twice *t, uint32_t worker, uint64_t rows);
/* The worker serves plan `epoch`. */
void sl_twice_serves(sl_twice *t, uint32_t worker, uint32_t epoch);
/* The connection with it has ended. */
void sl_twice_gone(sl_twice *t, uint32_t worker);

#endif
