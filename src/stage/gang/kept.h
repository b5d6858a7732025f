/* Which rows all ranks have as rank 0 has them, where each has memory of its own: the one place
 * that knows, rank 0's. A row is kept once a job has carried it, or every rank has made it whole or
 * been told what the others made of it, until somebody writes it otherwise. A job carries what it
 * reads and is not kept. A rank knows nothing of it: it takes the rows that come. For
 * src/stage/gang only. Thread: rank 0's. */
#ifndef SL_STAGE_GANG_KEPT_H
#define SL_STAGE_GANG_KEPT_H

#include "stage/gang/shared.h"

/* Rows of the model's width, of each block those from its beginning on. */
typedef struct gang_kept {
    uint64_t *bits[GANG_MAX_BLOCKS]; /* NULL: none is */
} gang_kept;

void gang_kept_free(gang_kept *k);
/* The block comes or goes. */
void gang_kept_forget(gang_kept *k, uint32_t block);

/* Whether that row is kept, of `row` bytes from `at` on in a block. */
bool gang_kept_has(const gang_kept *k, uint32_t block, uint64_t at, size_t row);
/* It is, or is not, from here on; of many bytes all rows among them. Without memory none is. */
void gang_kept_note(gang_kept *k, const gang_memory *m, uint32_t block, uint64_t at, size_t bytes,
                    size_t row, bool kept);

/* All ranks have done the job. */
void gang_kept_after(gang_kept *k, const gang_memory *m, const sl_model_spec *spec,
                     const gang_job *j);
/* Rank 0 alone has done the call. */
void gang_kept_alone(gang_kept *k, const gang_memory *m, const sl_model_spec *spec,
                     const sl_stage_call *c);

#endif
