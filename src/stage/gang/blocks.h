/* Memory of a gang whose ranks do not see this process's, by rank 0: blocks that every rank has
 * under the same number, in one of which jobs lie (shared.h). What ranks have in them is one memory
 * for processes, and each rank's own on machines. For src/stage/gang only. Thread: rank 0's. */
#ifndef SL_STAGE_GANG_BLOCKS_H
#define SL_STAGE_GANG_BLOCKS_H

#include "stage/gang/shared.h"

typedef struct gang_blocks gang_blocks;
struct gang_blocks {
    gang *of;
    gang_memory memory;
    uint64_t delivered; /* files of blocks, so far */
    /* The delivered-th file is on its way to all ranks, before the job that names it. NULL: they
     * make their own. */
    void (*deliver)(gang_blocks *b, int fd);
};

/* Of gang_ways, where `others` of a gang begins with its blocks: memory of zeroes that all ranks
 * have. SL_ERR_LIMIT, SL_ERR_NOMEM, SL_ERR_IO. */
sl_status gang_blocks_take(sl_device *d, size_t bytes, sl_mem *out, sl_err *err) SL_MUST_CHECK;
void gang_blocks_give(sl_device *d, sl_mem m);

/* The block that jobs lie in has so much room at least: where it has not, all ranks do a job. */
sl_status gang_blocks_reserve(gang_blocks *b, size_t bytes, sl_err *err) SL_MUST_CHECK;
/* The job onto the board, what it points to into the block of jobs, which grows; *own: the job as
 * rank 0 does it. */
sl_status gang_blocks_show(gang_blocks *b, const gang_job *j, gang_job *own,
                           sl_err *err) SL_MUST_CHECK;

#endif
