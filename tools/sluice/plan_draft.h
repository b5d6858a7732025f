/* A deployment as plan.json has it, of a search (plan_report.c) or of a strategy
 * (plan_strategies.c): workers, experts, limits, and where it is from. */
#ifndef SL_TOOLS_PLAN_DRAFT_H
#define SL_TOOLS_PLAN_DRAFT_H

#include "plan_report.h"

typedef struct sl_plan_draft {
    const char *schedule;
    uint32_t lanes, chunks;
    bool by_experts; /* what chunks are of */
    sl_order order;
    bool apart;         /* n_a workers of attention and n_e of experts; else n_a of both */
    uint32_t n_a, tp_a; /* workers, and ranks of each */
    uint32_t n_e, tp_e;
    uint32_t stages; /* ranks of the pipeline that each worker is */
    uint32_t groups; /* of expert workers that have all experts together; n_e is a multiple of it */
    uint32_t attn_group, expert_group; /* node groups of the cluster */
    uint64_t seqs;                     /* requests at once of one attention worker */
    double attn_memory;                /* bytes of one of its devices without KV */
    void (*put_prediction)(const void *ctx, FILE *out); /* a JSON value */
    const void *ctx;
} sl_plan_draft;

/* SL_ERR_LIMIT: no device holds the KV of a request of that context. */
sl_status sl_plan_draft_save(const sl_search_problem *p, const sl_plan_draft *d,
                             const sl_plan_file *to, sl_err *err) SL_MUST_CHECK;
/* The same as a JSON value; null: no draft, or one that sl_plan_draft_save refuses. */
void sl_plan_draft_put(const sl_search_problem *p, const sl_plan_draft *d, const sl_plan_file *to,
                       FILE *out);

#endif
