/* POST /plan: deployments planned for clients, by `sluice plan` as a process of its own. Nothing of
 * the planner is linked into the server: a search that fails, grows or hangs is a process that
 * ends, and cancelling it is killing it. */
#ifndef SL_SERVE_PLAN_H
#define SL_SERVE_PLAN_H

#include "format/profile_file.h"
#include "serve/reply.h"

#define SL_PLAN_MAX_BODY    ((size_t)32 << 10)
#define SL_PLAN_MAX_DEVICES 1024u /* of a cluster: plans list their workers */
#define SL_PLAN_MAX_ARGS    40u

/* Files that the planner's process has open, beside the first three. */
#define SL_PLAN_REPORT_FD   3
#define SL_PLAN_CLUSTER_FD  4
#define SL_PLAN_WORKLOAD_FD 5

/* What requests are about; borrowed. */
typedef struct sl_plan_offer {
    const char *model;       /* the name that is served */
    const char *path;        /* of its files, absolute */
    const char *profile;     /* file of measured costs, absolute; NULL: none */
    const sl_profile *costs; /* what it holds */
    uint32_t seconds;        /* that planning may take */
} sl_plan_offer;

/* Arguments of `sluice plan`, and descriptions that it reads as files. */
typedef struct sl_plan_request {
    char *arg[SL_PLAN_MAX_ARGS]; /* owned, as are: */
    size_t n_args;
    char *cluster, *workload; /* texts; NULL: a name is among the arguments, or nothing */
} sl_plan_request;

/* A body. On failure *e names field, value and limit, and nothing is left to free. Pure. */
sl_status sl_plan_request_parse(sl_span body, const sl_plan_offer *offer, sl_plan_request *out,
                                sl_api_error *e) SL_MUST_CHECK;
void sl_plan_request_free(sl_plan_request *r);
/* The JSON Schema of a body, from the table by which it is read. */
void sl_plan_request_schema(sl_jbuf *b);
/* The field of a request behind an option that the planner names in an error; NULL: none. */
const char *sl_plan_request_field(const char *text);

/* The machine that was profiled, as a cluster of one node, a device a worker: text of a cluster
 * file. False: no room. */
bool sl_plan_measured_cluster(const sl_profile *costs, char *out, size_t cap);

/* What may be asked for: models, clusters with what they are, devices, workloads, schedules,
 * limits. */
void sl_plan_catalogue(const sl_plan_offer *offer, sl_jbuf *b);

#endif
