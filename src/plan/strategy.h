/* Parallel strategies and their notation (MixServe III-B, corrected: attention and experts have
 * degrees of their own).
 *
 *   strategy  := block ["," block] ["[PP=" degree "]"]     one block: it holds for both
 *   block     := parallel | parallel "+" parallel           inside a node + between nodes
 *   parallel  := ("TP" | "EP" | "DP") "=" degree            attention: TP, DP; experts: TP, EP
 *
 * e.g. "TP=4+DP=8, EP=32" or "TP=8, TP=8 [PP=2]". Published degrees are powers of two; here any
 * that divide the grid. Replicas of the experts are what the other degrees leave over.
 * Pure. Thread: any. */
#ifndef SL_PLAN_STRATEGY_H
#define SL_PLAN_STRATEGY_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define SL_STRATEGY_TEXT       96
#define SL_STRATEGY_MAX_DEGREE (1u << 24)

typedef struct sl_strategy {
    uint32_t tp_a, dp; /* attention */
    uint32_t tp_e, ep; /* experts */
    uint32_t pp;       /* pipeline stages */
} sl_strategy;

/* What has to divide. */
typedef struct sl_strategy_limits {
    uint32_t nodes, per_node;
    uint32_t layers, heads, experts, d_ff_expert;
} sl_strategy_limits;

/* SL_ERR_FORMAT: where and what was expected. */
sl_status sl_strategy_parse(const char *text, sl_strategy *out, sl_err *err) SL_MUST_CHECK;
/* The shortest text that parses to the same; at most SL_STRATEGY_TEXT bytes with the NUL. */
void sl_strategy_print(const sl_strategy *s, char out[SL_STRATEGY_TEXT]);

/* Degrees fill the grid, tensor parallelism stays in a node and divides heads and widths, expert
 * parallelism divides the experts. SL_ERR_INFEASIBLE says which does not. */
sl_status sl_strategy_check(const sl_strategy *s, const sl_strategy_limits *l,
                            sl_err *err) SL_MUST_CHECK;

/* Copies of every expert: devices of a stage / (tp_e ep). */
uint32_t sl_strategy_replicas(const sl_strategy *s);

/* Calls `each` for every strategy that passes sl_strategy_check, until it returns false. TP and PP
 * are powers of two. Returns how many were seen. */
uint32_t sl_strategy_enumerate(const sl_strategy_limits *l,
                               bool (*each)(void *ctx, const sl_strategy *s), void *ctx);

#endif
