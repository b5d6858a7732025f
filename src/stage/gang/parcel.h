/* Jobs and answers between machines as bytes: the job as shared.h packs it, what it points to, the
 * rows that it reads; a rank's report and its part of the results. For src/stage/gang only. Thread:
 * the owner. */
#ifndef SL_STAGE_GANG_PARCEL_H
#define SL_STAGE_GANG_PARCEL_H

#include "stage/gang/carry.h"
#include "stage/gang/kept.h"
#include "stage/gang/link.h"

#define GANG_TICK_US 200u /* between two looks at the net while a rank computes */

typedef struct gang_parcel {
    uint8_t *data;
    size_t len, cap;
} gang_parcel;

void gang_parcel_free(gang_parcel *p);

/* j as it is on the board, for all ranks, without rows that they keep; kept NULL: they keep none.
 * SL_ERR_NOMEM. */
sl_status gang_parcel_fill(gang_parcel *p, const gang_memory *m, const gang_board *board,
                           const gang_job *j, const sl_model_spec *spec, gang_marks *marks,
                           gang_kept *kept, sl_err *err) SL_MUST_CHECK;
/* Whether rows come with it. */
bool gang_parcel_carries(const uint8_t *data, size_t len);
/* The same at a rank: onto its board, into its blocks. SL_ERR_PROTOCOL: it is no such parcel, or
 * the job fails gang_job_check. */
sl_status gang_parcel_take(const gang_memory *m, gang_board *board, const gang_bounds *b,
                           const uint8_t *data, size_t len, sl_err *err) SL_MUST_CHECK;

/* The rows of the run, which came from the rank before this one, to where it has them.
 * SL_ERR_PROTOCOL: they are another job's, or not as many. */
sl_status gang_rows_take(const gang_job *own, const sl_model_spec *spec, const gang_inbound *rows,
                         sl_err *err) SL_MUST_CHECK;

/* The rank's report of the job and its part of the results, as it did it. */
sl_status gang_answer_fill(gang_parcel *p, const gang_board *board, const gang_share *who,
                           const gang_job *own, const sl_model_spec *spec, gang_marks *marks,
                           sl_err *err) SL_MUST_CHECK;
/* The same at rank 0: onto its board, into the job's memory. SL_ERR_PROTOCOL. */
sl_status gang_answer_take(gang_board *board, sl_rank rank, const gang_job *own,
                           const sl_model_spec *spec, const uint8_t *data, size_t len,
                           gang_marks *marks, sl_err *err) SL_MUST_CHECK;

#endif
