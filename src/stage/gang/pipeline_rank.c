/* What one rank of a pipeline has of the model, wherever it is. */
#include "spec/pipeline.h"
#include "stage/gang/gang_int.h"

/* A router that comes before its block's attention has no way inside. */
sl_status gang_pipeline_opts(sl_rank is, sl_device_opts *o, sl_err *err) {
    sl_model_spec m;
    sl_status st = sl_model_read_spec(o->folder, &m, NULL, err);
    if (st != SL_OK) return st;
    if (m.n_layers < is.of)
        return sl_fail(err, SL_ERR_ARG,
                       "a pipeline of %u ranks: %s has %u blocks, one a rank is needed", is.of,
                       o->folder, m.n_layers);
    o->pipeline = 0;
    o->gang = NULL;
    o->kv_fd = 0;
    o->hosts.rank = (sl_rank){0};
    const bool mtp = o->hosts.mtp && o->hosts.attention;
    o->hosts.blocks = sl_pipeline_blocks(&m, is, mtp);
    o->hosts.inner = is.index > 0;
    o->hosts.mtp = mtp && is.index + 1 == is.of; /* what it reads the last block leaves */
    o->inside = o->hosts.attention && o->hosts.experts && !m.dense_branch && o->ranks <= 1;
    return SL_OK;
}
