/* Graphs of CUDA: what is asked of a context's stream, captured by the driver. */
#include "stage/cuda/graph.h"

#include "base/mem.h"
#include "stage/cuda/context.h"

#include <stdatomic.h>
#include <stdio.h>

struct sl_cuda_graph {
    sl_cu_graph_exec exec;
    uint64_t moved; /* when it was recorded */
};

bool sl_cuda_has_graphs(const sl_cuda *c) {
    const sl_cu_driver *d = c->d;
    return d->cuStreamBeginCapture_v2 && d->cuStreamEndCapture && d->cuGraphInstantiateWithFlags &&
           d->cuGraphLaunch && d->cuGraphExecDestroy && d->cuGraphDestroy;
}

const sl_cuda_step *sl_cuda_step_with(const sl_cuda *c, const uint32_t *list, uint32_t n) {
    const sl_cuda_step *s = c->recording.step;
    return c->recording.on && s->n == n && (list == s->id || list == s->pos) ? s : NULL;
}

/* What the context remembers of rows is of another order of things. */
static void forget(sl_cuda *c) {
    c->rounded.x = NULL;
    c->asked++;
}

bool sl_cuda_record_begin(sl_cuda *c, const sl_cuda_step *step, char why[SL_CUDA_WHY_BYTES]) {
    sl_err err;
    why[0] = 0;
    sl_cuda_settle(c);
    if (c->failed) return false;
    forget(c);
    c->recording = (sl_cuda_recording){
        .step = step, .moved = atomic_load_explicit(&c->moved, memory_order_relaxed)};
    const sl_cu_result r = c->d->cuStreamBeginCapture_v2(c->stream, SL_CU_CAPTURE_THREAD);
    if (sl_cu_check(c->d, "cuStreamBeginCapture", r, &err) != SL_OK)
        snprintf(why, SL_CUDA_WHY_BYTES, "%s", err.msg);
    return c->recording.on = r == SL_CU_OK;
}

/* Of what was captured; NULL: it cannot be. */
static sl_cuda_graph *make(sl_cuda *c, sl_cu_graph g) {
    sl_cuda_graph *out = sl_alloc(1, sizeof *out);
    if (!out) {
        sl_cuda_refuse(c, "no memory for a graph");
        return NULL;
    }
    out->moved = c->recording.moved;
    if (SL_CUDA_DO(c, cuGraphInstantiateWithFlags, &out->exec, g, 0)) return out;
    sl_free(out);
    return NULL;
}

sl_cuda_graph *sl_cuda_record_end(sl_cuda *c, char why[SL_CUDA_WHY_BYTES]) {
    sl_cu_graph g = NULL;
    sl_cuda_graph *out = NULL;
    sl_cuda_settle(c);
    forget(c);
    const bool ended = SL_CUDA_DO(c, cuStreamEndCapture, c->stream, &g);
    if (ended && g && !c->recording.why[0]) out = make(c, g);
    if (ended && g) (void)c->d->cuGraphDestroy(g);
    if (!out) sl_cuda_refuse(c, "nothing was captured");
    snprintf(why, SL_CUDA_WHY_BYTES, "%s", c->recording.why);
    c->recording = (sl_cuda_recording){0};
    return out;
}

bool sl_cuda_graph_is_stale(const sl_cuda *c, const sl_cuda_graph *g) {
    return g->moved != atomic_load_explicit(&c->moved, memory_order_relaxed);
}

bool sl_cuda_graph_run(sl_cuda *c, const sl_cuda_graph *g, char why[SL_CUDA_WHY_BYTES]) {
    sl_err err;
    why[0] = 0;
    sl_cuda_settle(c);
    forget(c);
    if (c->failed) return true; /* as launches, which do nothing then */
    const sl_cu_result r = c->d->cuGraphLaunch(g->exec, c->stream);
    if (r != SL_CU_OUT_OF_MEMORY) return sl_cuda_did(c, "cuGraphLaunch", r) || c->failed;
    (void)!sl_cu_check(c->d, "cuGraphLaunch", r, &err); /* it wants some of the GPU's at first */
    snprintf(why, SL_CUDA_WHY_BYTES, "%s", err.msg);
    return false;
}

void sl_cuda_graph_free(sl_cuda *c, sl_cuda_graph *g) {
    if (g) (void)c->d->cuGraphExecDestroy(g->exec);
    sl_free(g);
}
