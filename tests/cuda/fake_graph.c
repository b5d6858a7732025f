/* Graphs of the driver library without a GPU: what a stream is asked for while it is captured is
 * written down and not done, arguments of kernels as they are then; a graph that is launched asks
 * the stream for all of it. What a real driver forbids meanwhile is forbidden, and spoils the
 * capture. */
#include "fake_driver.h"
#include "fake_int.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct CUgraph_st {
    fake_work *work;
    size_t n;
};

struct CUgraphExec_st {
    struct CUgraph_st of;
};

/* The stream that this thread captures, what of it is there, and what has spoilt it. */
static _Thread_local struct {
    sl_cu_stream stream;
    struct CUgraph_st *graph;
    sl_cu_result spoilt;
} capture;

static atomic_uint_fast64_t counts[FAKE_COUNTS];

FAKE_CALL sluice_fake_cuda_counts_fn sluice_fake_cuda_counts;
void sluice_fake_cuda_counts(uint64_t out[FAKE_COUNTS]) {
    for (int i = 0; i < FAKE_COUNTS; i++) out[i] = atomic_load(&counts[i]);
}

void fake_count(fake_counted what, uint64_t n) {
    atomic_fetch_add(&counts[what], n);
}

sl_cu_result fake_forbidden(void) {
    if (!capture.stream) return SL_CU_OK;
    capture.spoilt = SL_CU_CAPTURE_INVALIDATED;
    return SL_CU_CAPTURE_UNSUPPORTED;
}

static sl_cu_result copy_args(fake_work *w) {
    if (!w->args) return SL_CU_OK;
    void *args = malloc(*w->kernel->bytes);
    if (!args) return SL_CU_OUT_OF_MEMORY;
    w->args = memcpy(args, w->args, *w->kernel->bytes);
    return SL_CU_OK;
}

static void drop(struct CUgraph_st *g) {
    for (size_t i = 0; i < g->n; i++) free(g->work[i].args);
    free(g->work);
    *g = (struct CUgraph_st){0};
}

bool fake_is_captured(sl_cu_stream s) {
    return capture.stream && capture.stream == s;
}

bool fake_captures(sl_cu_stream s, const fake_work *w, sl_cu_result *out) {
    if (!fake_is_captured(s)) return false;
    struct CUgraph_st *g = capture.graph;
    fake_work *more = realloc(g->work, (g->n + 1) * sizeof *more);
    if (!more) abort();
    g->work = more;
    g->work[g->n++] = *w;
    *out = capture.spoilt ? SL_CU_CAPTURE_INVALIDATED : SL_CU_OK;
    if (w->mark) fake_mark_captured(w->mark);
    return true;
}

#define ENTER(name)                                                                                \
    const sl_cu_result wanted_ = fake_failure(#name);                                              \
    if (wanted_ != SL_CU_OK) return wanted_

FAKE_CALL sl_cu_result cuStreamBeginCapture_v2(sl_cu_stream s, int mode);
sl_cu_result cuStreamBeginCapture_v2(sl_cu_stream s, int mode) {
    ENTER(cuStreamBeginCapture_v2);
    if (!s || mode != SL_CU_CAPTURE_THREAD || capture.stream) return SL_CU_INVALID_VALUE;
    struct CUgraph_st *g = calloc(1, sizeof *g);
    if (!g) return SL_CU_OUT_OF_MEMORY;
    capture.stream = s;
    capture.graph = g;
    capture.spoilt = SL_CU_OK;
    return SL_CU_OK;
}

FAKE_CALL sl_cu_result cuGraphDestroy(sl_cu_graph g);
sl_cu_result cuGraphDestroy(sl_cu_graph g) {
    drop(g);
    free(g);
    return SL_CU_OK;
}

FAKE_CALL sl_cu_result cuStreamEndCapture(sl_cu_stream s, sl_cu_graph *out);
sl_cu_result cuStreamEndCapture(sl_cu_stream s, sl_cu_graph *out) {
    *out = NULL;
    if (!fake_is_captured(s)) return SL_CU_CAPTURE_UNMATCHED;
    struct CUgraph_st *g = capture.graph;
    const sl_cu_result wanted = fake_failure("cuStreamEndCapture");
    const sl_cu_result r = wanted ? wanted : capture.spoilt;
    capture.stream = NULL;
    capture.graph = NULL;
    if (r != SL_CU_OK)
        (void)cuGraphDestroy(g);
    else
        *out = g;
    return r;
}

/* Copies and fills of memory that is there, and nowhere a mark: who would ask for it? */
static bool is_sound(const fake_work *w) {
    const bool to =
        fake_holds(FAKE_DEVICE, w->to, w->bytes) || fake_holds(FAKE_HOST, w->to, w->bytes);
    const bool from = w->kind == FAKE_FILL || fake_holds(FAKE_DEVICE, w->from, w->bytes) ||
                      fake_holds(FAKE_HOST, w->from, w->bytes);
    return w->kind == FAKE_LAUNCH || (w->kind != FAKE_MARK && to && from);
}

FAKE_CALL sl_cu_result cuGraphInstantiateWithFlags(sl_cu_graph_exec *out, sl_cu_graph g,
                                                   unsigned long long flags);
sl_cu_result cuGraphInstantiateWithFlags(sl_cu_graph_exec *out, sl_cu_graph g,
                                         unsigned long long flags) {
    *out = NULL;
    ENTER(cuGraphInstantiateWithFlags);
    if (flags || fake_forbidden()) return SL_CU_INVALID_VALUE;
    for (size_t i = 0; i < g->n; i++)
        if (!is_sound(&g->work[i])) return SL_CU_INVALID_VALUE;
    struct CUgraphExec_st *e = calloc(1, sizeof *e);
    fake_work *work = calloc(g->n + 1, sizeof *work);
    if (!e || !work) abort();
    for (size_t i = 0; i < g->n; i++) {
        work[i] = g->work[i];
        if (copy_args(&work[i]) != SL_CU_OK) abort();
    }
    e->of = (struct CUgraph_st){work, g->n};
    *out = e;
    return SL_CU_OK;
}

FAKE_CALL sl_cu_result cuGraphLaunch(sl_cu_graph_exec e, sl_cu_stream s);
sl_cu_result cuGraphLaunch(sl_cu_graph_exec e, sl_cu_stream s) {
    sl_cu_result r = fake_forbidden();
    ENTER(cuGraphLaunch);
    fake_count(FAKE_GRAPHS, 1);
    for (size_t i = 0; r == SL_CU_OK && i < e->of.n; i++) {
        fake_work w = e->of.work[i];
        if (!is_sound(&w)) return SL_CU_ILLEGAL_ADDRESS;
        r = copy_args(&w);
        fake_count(FAKE_OF_GRAPHS, w.kind == FAKE_LAUNCH);
        fake_count(FAKE_EARLY_OF_GRAPHS, w.early);
        if (r == SL_CU_OK) r = fake_stream_add(s, &w);
    }
    return r;
}

FAKE_CALL sl_cu_result cuGraphExecDestroy(sl_cu_graph_exec e);
sl_cu_result cuGraphExecDestroy(sl_cu_graph_exec e) {
    fake_count(FAKE_GRAPHS_GONE, 1);
    drop(&e->of);
    free(e);
    return SL_CU_OK;
}
