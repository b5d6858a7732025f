/* Counters by layer, and by block and expert: of one worker, and on their way to the coordinator.
 * Thread: owner.
 */
#ifndef SL_ENGINE_COUNTS_H
#define SL_ENGINE_COUNTS_H

#include "base/span.h"
#include "base/trace.h"
#include "engine/host/stats.h"
#include "spec/model.h"

/* In SL_MSG_STATS after SL_WORKER_COUNTERS: u32 n_layers, u32 n_moe, u32 n_experts, then u64: the
 * layers' SL_LAYER_COUNTERS, rows and calls (u64) and waits (u32) of each expert of each MoE block,
 * SL_BATCH_BUCKETS numbers (u64) of calls. */
typedef struct sl_counts {
    uint32_t n_layers, n_moe, n_experts;
    sl_layer_stats *layer;
    sl_expert_stats *expert; /* [n_moe][n_experts] */
    uint64_t batch[SL_BATCH_BUCKETS];
    uint32_t *seen; /* [n_experts], all 0 */
} sl_counts;

sl_status sl_counts_create(const sl_model_spec *m, sl_counts *out, sl_err *err) SL_MUST_CHECK;
void sl_counts_free(sl_counts *c);
/* A task that has ended. */
void sl_counts_task(sl_counts *c, const sl_trace_event *e);
/* Rows of a call of MoE block `block` by expert: group i has first[i+1] - first[i]. */
void sl_counts_experts(sl_counts *c, uint32_t block, const uint32_t *expert, const uint32_t *first,
                       uint32_t n);
/* The same of rows of block `layer` of the model whose experts, n of them, are named one after
 * another, and that no task is noted of. */
void sl_counts_routed(sl_counts *c, uint32_t layer, uint32_t block, const uint32_t *expert,
                      size_t n);
size_t sl_counts_bytes(const sl_counts *c);
void sl_counts_encode(const sl_counts *c, sl_wr *w);
/* Reads the rest of a message into counts made for the same model; they stay as they are when it is
 * refused. */
sl_status sl_counts_decode(sl_cur *c, sl_counts *out, sl_err *err) SL_MUST_CHECK;

#endif
