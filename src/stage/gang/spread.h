/* Rows between a gang's memory and messages whose rows are spread over its ranks, where each of
 * them is on a machine of its own (schedule hybrid). A row of a message that is cut lies at rank t
 * as the columns that O and DOWN give that rank, in the wire's format; so results are packed, and
 * what came back is added up, by columns. What experts read they gather, still in that format.
 *
 *   PACK    each rank rounds its columns of rows, and sends them to its counterpart (rail.h)
 *   UNPACK  what came to each is gathered: all have the rows. Of a message that is whole while
 *           others are still awaited that begins before (an UNPACK of no rows)
 *   MERGE   each adds its columns of what came back to its columns of the stream, and tells them
 *
 * For src/stage/gang only. Thread: the rank's. */
#ifndef SL_STAGE_GANG_SPREAD_H
#define SL_STAGE_GANG_SPREAD_H

#include "stage/gang/gang_int.h"

typedef struct gang_scratch gang_scratch;
void gang_scratch_free(gang_scratch *s); /* NULL-safe */

/* GANG_SPREAD at a rank. Without memory, or what the job names, it is `lost`. */
void gang_spread_do(gang_rank *r, const gang_job *j);

/* GANG_SETTLE: nobody asks for what is here. */
void gang_spread_settle(gang_rank *r);

/* Rank 0: whether ranks do the call, as it names messages that are spread. */
bool gang_is_spread(const sl_stage_call *c);
/* Does it. */
void gang_spread_call(gang *g, const sl_stage_call *c);
/* Rank 0: a message came, and its ranks begin to gather it; false: too many are begun already, it
 * is gathered when a call asks for it. */
bool gang_spread_begin(gang *g, const sl_stage_spread *m, sl_wire_format f);

#endif
