/* What of a job travels between ranks that are machines: the rows that it reads to each rank, each
 * rank's part of its results back. Rank 0's memory is the truth: of earlier jobs a rank has its KV,
 * the rows that are kept (kept.h) and the logits' rows of the first piece. For src/stage/gang only.
 * Thread: the owner of the memory. */
#ifndef SL_STAGE_GANG_CARRY_H
#define SL_STAGE_GANG_CARRY_H

#include "stage/gang/shared.h"

#include <string.h>

/* Rows of a call by number, marked; zeroed at first, grows. */
typedef struct gang_marks {
    uint64_t *bits;
    size_t cap; /* words */
} gang_marks;

void gang_marks_free(gang_marks *m);

/* What a rank has of results: its place, its columns of what O and DOWN give, its kv heads, its
 * blocks. */
typedef struct gang_share {
    sl_rank is;
    sl_extent out, kv_heads, blocks;
} gang_share;

/* Memory that the job reads, in ranges of blocks, in one order for all. SL_ERR_NOMEM. */
typedef void (*gang_input_fn)(void *ctx, const uint8_t *at, size_t bytes);
sl_status gang_each_input(const gang_job *j, const sl_model_spec *spec, gang_marks *marks,
                          gang_input_fn f, void *ctx, sl_err *err) SL_MUST_CHECK;

/* Floats that are the rank's part of the job's results, where the job has them, in one order for
 * all. SL_ERR_NOMEM. */
typedef void (*gang_result_fn)(void *ctx, float *at, size_t n);
sl_status gang_each_result(const gang_job *j, const sl_model_spec *spec, const gang_share *who,
                           gang_marks *marks, gang_result_fn f, void *ctx,
                           sl_err *err) SL_MUST_CHECK;

/* What came from elsewhere as a bool is one of the two. */
static inline bool gang_is_bool(const void *at) {
    uint8_t byte;
    memcpy(&byte, at, sizeof byte);
    return byte <= 1;
}

/* What a rank was opened with; spec NULL: it is not open. */
typedef struct gang_bounds {
    const sl_model_spec *spec;
    uint32_t max_rows, max_pairs, kv_pages;
    bool attention, experts;
    bool inside;         /* blocks with experts, whole */
    bool mtp;            /* the block that predicts a further token */
    bool together;       /* it is of a gang, not of a pipeline */
    bool spreads;        /* its ranks exchange rows with those of others, */
    sl_wire_format wire; /* in this format: */
    sl_rank is;          /* this one its columns */
    sl_extent out;
    sl_extent blocks;        /* that it has; n 0: all */
    const sl_device *device; /* which experts it has; NULL: all */
} gang_bounds;

/* Whether the packed job, of which `bytes` came into block `area`, names nothing but what there is,
 * so that unpacking and doing it touches nothing else. SL_ERR_PROTOCOL says what. */
sl_status gang_job_check(const gang_memory *m, uint32_t area, size_t bytes, const gang_job *j,
                         const gang_bounds *b, sl_err *err) SL_MUST_CHECK;

#endif
