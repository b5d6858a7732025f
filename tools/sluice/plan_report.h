/* What sluice plan prints and writes. */
#ifndef SL_TOOLS_PLAN_REPORT_H
#define SL_TOOLS_PLAN_REPORT_H

#include "plan/search.h"

#include <stdio.h>

typedef struct sl_plan_file {
    const char *path;
    uint32_t context;           /* positions of a request; 0: the workload's longest */
    const char *const *machine; /* [the cluster's types] that was profiled; NULL, or of a type NULL:
                                 * costs are of its data sheet */
    bool on_gpus; /* workers on devices that are no processors say which GPU of their node is
                   * theirs */
} sl_plan_file;

static inline const char *sl_plan_type_of(const sl_search_problem *p, uint32_t group) {
    return p->cluster->type[p->cluster->group[group].type].name;
}

/* `before`, then the text as a JSON string. */
void sl_plan_put_text(const char *before, const char *text, FILE *out);

void sl_plan_report_text(const sl_search_problem *p, const sl_search_result *r, FILE *out);
/* `each`: NULL, or every deployment that the engine runs comes with its plan, of this context and
 * machine (its path is not used); null where the KV of one request does not fit. */
void sl_plan_report_json(const sl_search_problem *p, const sl_search_result *r,
                         const sl_plan_file *each, FILE *out);

/* plan.json of one copy: for the engine, with the prediction under "deployment". What the engine
 * does not run yet is planned all the same, and refused by name when it is served.
 * SL_ERR_LIMIT: no device holds the KV of a request of that context. */
sl_status sl_plan_report_write(const sl_search_problem *p, const sl_candidate *c,
                               const sl_plan_file *to, sl_err *err) SL_MUST_CHECK;

/* MixServe's analyzer: the `top` strategies of each node group that generate most. `to`: a path
 * gets the plan of the first of them that the engine runs, of the groups in the cluster's order
 * whose throughput is the highest (SL_ERR_UNSUPPORTED: none is run); `plans`: with json, each that
 * is run comes with its plan. */
sl_status sl_plan_report_strategies(const sl_search_problem *p, uint32_t top, bool json, bool plans,
                                    const sl_plan_file *to, FILE *out, sl_err *err) SL_MUST_CHECK;

#endif
