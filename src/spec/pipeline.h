/* Pipelines: several ranks that compute as one worker, each with some of the blocks
 * (docs/pipeline.md). The first one has the embedding and the head besides. Pure. Thread: any. */
#ifndef SL_SPEC_PIPELINE_H
#define SL_SPEC_PIPELINE_H

#include "spec/gang.h"
#include "spec/model.h"

/* The blocks of rank r: each rank has one at least, in order, and the rank with the most weights
 * has as few of them as any such cut allows. mtp: the last one has the block that predicts a
 * further token besides. Asks for as many blocks as ranks. Whoever has the same model cuts it
 * alike. */
sl_extent sl_pipeline_blocks(const sl_model_spec *m, sl_rank r, bool mtp);

/* Whether the rows that whole blocks of rank r leave go straight to the next one, one hop, where
 * whole blocks follow. Rank 0's go with the calls that it gives, the last one's come back to it. */
static inline bool sl_pipeline_hands_on(sl_rank r) {
    return r.index > 0 && r.index + 1 < r.of;
}

#endif
