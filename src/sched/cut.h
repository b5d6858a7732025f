/* Chunks: a lane's step travels to the experts in so many messages, each of which is computed and
 * answered on its own, so that links and experts work at once (FinDEP's r2, EPS's groups). A chunk
 * is a share of the rows, or of each expert worker's experts. What FinDEP does online and EPS-MoE
 * (4.3) for each load is here: with measured costs each step is cut into as many chunks as are
 * fastest for its rows. Pure; only create allocates. Thread: any. */
#ifndef SL_SCHED_CUT_H
#define SL_SCHED_CUT_H

#include "base/status.h"
#include "plan/choose.h"
#include "spec/model.h"
#include "spec/plan.h"

typedef struct sl_cut {
    uint32_t n_chunks;    /* of a step at most */
    sl_chunking chunking; /* the plan's, of one chunk: of rows */
    uint32_t *group;      /* [n_experts] the chunk that an expert is in where a step is cut into all
                             of them by expert; NULL: none ever is. Owned. */
    /* NULL: a step is cut into all of them, of rows into as many as there are at most */
    const sl_costs *costs;
    sl_choose_load load;
    sl_choice choice;
} sl_cut;

/* By the plan, whose costs are borrowed; row_bytes of a row on the wire. SL_ERR_NOMEM. */
sl_status sl_cut_create(const sl_plan *p, const sl_model_spec *m, size_t row_bytes, sl_cut *out,
                        sl_err *err) SL_MUST_CHECK;
void sl_cut_free(sl_cut *c); /* zeroed is fine */

/* Into how many chunks of the plan's kind a step of so many rows goes, each of which attends to
 * `keys` keys on average: 1 .. n_chunks; of experts a divisor of n_chunks. */
uint32_t sl_cut_choose(const sl_cut *c, uint32_t rows, double keys);

/* The chunk of an expert in a step that is cut into n_cut chunks of experts. */
static inline uint32_t sl_cut_group(const sl_cut *c, uint32_t n_cut, uint32_t expert) {
    return (uint32_t)((uint64_t)c->group[expert] * n_cut / c->n_chunks);
}

/* Rows [*first, *end) of a step of `rows` rows that chunk `chunk` has, where the rows go into
 * `n_cut`; none beyond those. */
static inline void sl_cut_rows(uint32_t rows, uint32_t n_cut, uint32_t chunk, uint32_t *first,
                               uint32_t *end) {
    uint64_t at = SL_MIN(chunk, n_cut), next = SL_MIN(chunk + 1, n_cut);
    *first = (uint32_t)(rows * at / n_cut);
    *end = (uint32_t)(rows * next / n_cut);
}

/* Chunks of a layer that are sent of the n_chunks there are: those that the step is cut into, one
 * word where there are no rows; of the last layer all, as its last one votes and is answered with
 * who is next. */
static inline uint32_t sl_cut_sent(uint32_t n_chunks, uint32_t n_cut, bool rows, bool last_layer) {
    if (last_layer) return n_chunks;
    return rows ? n_cut : 1;
}

#endif
