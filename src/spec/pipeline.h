/* Pipelines: several ranks that compute as one worker, each with some of the blocks
 * (docs/pipeline.md). The first one has the embedding and the head besides. Pure. Thread: any. */
#ifndef SL_SPEC_PIPELINE_H
#define SL_SPEC_PIPELINE_H

#include "spec/gang.h"
#include "spec/model.h"

/* The blocks of rank r: each rank has one at least, in order, and the rank with the most weights
 * has as few of them as any such cut allows. Asks for as many blocks as ranks. Whoever has the same
 * model cuts it alike. */
sl_extent sl_pipeline_blocks(const sl_model_spec *m, sl_rank r);

#endif
