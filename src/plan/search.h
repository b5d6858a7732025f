/* One search over the deployments of all five systems: colocated with expert, tensor and pipeline
 * parallelism, expert groups (EPS), tensor parallelism in the node with fused exchange (MixServe),
 * attention and experts apart with one lane, ping-pong (MegaScale-Infer), fine chunks (FinDEP) or
 * no barrier (AMoE); on any pair of device types of the cluster. Stages cost what sl_costs say,
 * measured or estimated, whatever the deployment, so that kinds compare.
 *
 * The batch of a deployment is the largest that memory (95th percentile of lengths) and the
 * objectives for latency allow; latency grows with it, so it is bisected. Prompts are computed
 * beside decoding rows and lengthen the mean step, unless `decode_only`.
 * Pure. Thread: any. */
#ifndef SL_PLAN_SEARCH_H
#define SL_PLAN_SEARCH_H

#include "base/progress.h"
#include "base/status.h"
#include "spec/cluster.h"
#include "spec/costs.h"
#include "spec/plan.h"
#include "spec/shape.h"
#include "spec/workload.h"

/* Rows of the table; the schedules of spec/plan.h, and what only the planner knows. */
typedef enum sl_layout_kind {
    SL_LAYOUT_EP,
    SL_LAYOUT_EPS,
    SL_LAYOUT_HYBRID,   /* experts cut over the devices of a node, spread over nodes */
    SL_LAYOUT_PIPELINE, /* as EP or HYBRID, layers spread over stages */
    SL_LAYOUT_DEP,
    SL_LAYOUT_PINGPONG,
    SL_LAYOUT_FINDEP,
    SL_LAYOUT_AEP,
    SL_LAYOUT_COUNT
} sl_layout_kind;

const char *sl_layout_name(sl_layout_kind k);

static inline bool sl_layout_is_apart(sl_layout_kind k) {
    return k >= SL_LAYOUT_DEP;
}

/* One instance; `copies` of it are independent of each other. A worker is tp devices of a node. */
typedef struct sl_layout {
    sl_layout_kind kind;
    uint32_t attn_group, expert_group; /* node groups of the cluster; equal when colocated */
    uint32_t tp_a, tp_e;
    uint32_t n_a, n_e; /* workers; colocated: n_a tp_a == n_e tp_e devices of a stage */
    uint32_t stages;   /* of a pipeline */
    uint32_t lanes, chunks;
    sl_order order;
    sl_chunking chunking;
    uint32_t spare; /* expert copies a worker has room for beyond its share (skewed routing) */
} sl_layout;

/* Experts by expert beside attention with tensor parallelism: workers of their own on the same
 * devices, which take turns there, as a step's attention and experts do. They run as `dep`, groups
 * of experts as `findep` with one micro-batch whose chunks are these groups. */
static inline bool sl_layout_takes_turns(const sl_layout *l) {
    return (l->kind == SL_LAYOUT_EP || l->kind == SL_LAYOUT_EPS) && l->tp_a != l->tp_e;
}

/* What keeps the batch from growing. */
typedef enum sl_binding {
    SL_BINDING_MEMORY,
    SL_BINDING_TPOT,
    SL_BINDING_TTFT,
    SL_BINDING_CLIENTS, /* no more requests at once */
    SL_BINDING_GAIN,    /* more would gain under a hundredth (no objective for TPOT) */
    SL_BINDING_COUNT
} sl_binding;

/* What a step spends its time on. */
typedef enum sl_station {
    SL_STATION_ATTENTION,
    SL_STATION_EXPERTS,
    SL_STATION_LINK,
    SL_STATION_ROUND, /* nothing is busy all the time: one micro-batch's way round */
    SL_STATION_COUNT
} sl_station;

typedef struct sl_candidate {
    sl_layout layout;
    uint32_t copies;
    uint32_t devices; /* of all copies */
    double cost;      /* price an hour of all copies; 0: no prices */
    uint32_t rows;    /* decoding rows of one lane at one attention worker */
    uint64_t seqs;    /* requests at once, all copies */
    /* one lane in one routed block, microseconds */
    double attn_us, shared_us, expert_us, link_us, layer_us; /* layer: the period of all lanes */
    double expert_rows; /* rows of one expert in one execution */
    double expert_knee; /* below so many the expert waits for its weights */
    double imbalance;   /* busiest expert worker / mean */
    double hidden;      /* share of transfers beside computing */
    double attn_busy, expert_busy, link_busy;
    double step_us;                    /* decoding alone */
    double tpot_us, ttft_us;           /* with prompts beside it */
    double prefill_us;                 /* a mean prompt alone */
    double tokens_per_s;               /* generated, all copies */
    double per_cost;                   /* by the objective's divisor */
    double attn_memory, expert_memory; /* bytes of a device */
    sl_binding binding;
    sl_station bottleneck;
    bool estimated;  /* from data sheets, not measured */
    bool derived;    /* a measured device's costs, cut for tensor parallelism */
    bool bound;      /* no law for it: an optimistic estimate (aep not tried, half-duplex links) */
    double tried_us; /* step_us of a trial instead of a law's; 0: there was none */
} sl_candidate;

/* A deployment that is tried out, decoding requests alone: aep, for which there is no law, and
 * hybrid, as its ranks' ports are used. */
typedef struct sl_search_trial {
    const sl_shape *shape;
    const sl_route_skew *skew;
    sl_costs attention, expert; /* of a worker of each side and its ports */
    uint32_t n_a, n_e;
    uint32_t ranks;    /* hybrid: of each worker, which has both roles; n_e is n_a. 0: aep */
    uint32_t slots;    /* requests at once at an attention worker */
    uint32_t spare;    /* as in sl_layout */
    double context;    /* keys of a request */
    size_t row_bytes;  /* between a port of an attention worker and an expert worker */
    uint64_t max_work; /* (row, expert) pairs and messages that may be followed */
} sl_search_trial;

typedef struct sl_search_tried {
    double step_us;                           /* mean time between two tokens of a request */
    double attn_busy, expert_busy, link_busy; /* means over workers; link: the busier direction; of
                                                 hybrid attn is both roles', expert 0 */
    uint64_t work;
} sl_search_tried;

/* SL_ERR_LIMIT: too large for max_work; out->work is what it took to find that out. A pure
 * function. Thread: any. */
typedef sl_status (*sl_search_try)(const sl_search_trial *t, sl_search_tried *out, sl_err *err);

typedef enum sl_objective {
    SL_OBJECTIVE_TOKENS, /* tok/s of the whole cluster */
    SL_OBJECTIVE_COST,   /* tok/s per price */
    SL_OBJECTIVE_DEVICE, /* tok/s per device */
} sl_objective;

/* What is known of a type of device beside its data sheet. */
typedef struct sl_type_costs {
    const sl_costs *costs; /* measured, tp = 1, more is derived; NULL: estimates */
    sl_link_cost copies;   /* of each message to or from other workers besides */
    bool cpu;              /* measured on processors */
} sl_type_costs;

typedef struct sl_search_problem {
    const sl_shape *shape;
    const sl_cluster *cluster;
    const sl_workload *workload;  /* lengths, arrivals, objectives for latency, skew */
    const sl_type_costs *of_type; /* [the cluster's types]; NULL: estimates of all */
    /* Measured links within a node and between nodes; NULL: the cluster's. */
    const sl_link_cost *measured_intra, *measured_inter;
    sl_objective objective;
    sl_compute compute;
    double reserve;         /* share of memory kept free */
    double value_bytes;     /* of a hidden value on the wire */
    sl_speculate speculate; /* of the plans; by mtp attention workers have a block more */
    bool decode_only;
    bool runnable;     /* only what the engine runs: whole devices, at most SL_MAX_WORKERS */
    bool as_published; /* published forms where they differ: balance, Eq. 5, no imbalance */
    uint32_t kinds;    /* bit k: sl_layout_kind k is considered; 0: all are */
    /* Prices the best of aep, which stay optimistic bounds without, and of hybrid, as far as the
     * engine runs it (sl_sim_try of sim/trial.h); NULL: nothing is tried. */
    sl_search_try trial;
    sl_progress_fn progress; /* NULL, or told about groups of the cluster and trials */
    void *progress_ctx;
} sl_search_problem;

#define SL_SEARCH_MAX_TOP   16u
#define SL_SEARCH_MAX_FRONT 64u

typedef struct sl_search_result {
    sl_candidate top[SL_LAYOUT_COUNT][SL_SEARCH_MAX_TOP]; /* best first */
    uint32_t n_top[SL_LAYOUT_COUNT];
    sl_candidate front[SL_SEARCH_MAX_FRONT]; /* fastest for one user first */
    uint32_t n_front;
    /* The front of each kind by itself. */
    sl_candidate curve[SL_LAYOUT_COUNT][SL_SEARCH_MAX_FRONT];
    uint32_t n_curve[SL_LAYOUT_COUNT];
    uint64_t layouts, evaluations;
} sl_search_result;

/* `top` layouts of each kind (1..SL_SEARCH_MAX_TOP). SL_ERR_INFEASIBLE: nothing keeps memory and
 * objectives, and the smallest change that something would. SL_ERR_ARG: a price is missing. */
sl_status sl_search_run(const sl_search_problem *p, uint32_t top, sl_search_result *out,
                        sl_err *err) SL_MUST_CHECK;

/* What the deployments that were refused lack least; 0: none was refused for it. */
typedef struct sl_search_lack {
    double tpot_us, ttft_us; /* of the fastest */
    double bytes;            /* of a device */
    double rate;             /* requests/s that the best could serve */
} sl_search_lack;

/* A deployment is too slow for the workload's objectives even with its smallest batch. */
void sl_search_note_slow(sl_search_lack *l, const sl_workload *w, double tpot_us, double ttft_us);
void sl_search_note_short(sl_search_lack *l, double bytes); /* its weights do not fit */
/* SL_ERR_INFEASIBLE with the nearest change. */
sl_status sl_search_infeasible(const sl_search_problem *p, const sl_search_lack *l,
                               sl_err *err) SL_MUST_CHECK;

/* Best of all kinds, and the best of the other kinds; NULL: there is none. */
const sl_candidate *sl_search_winner(const sl_search_result *r);
const sl_candidate *sl_search_runner_up(const sl_search_result *r);

#define SL_SEARCH_TEXT 512
/* What a deployment's experts, stations and batch come to, with numbers; beside what the experts of
 * `other` get, or NULL. */
void sl_search_about(const sl_candidate *c, const sl_candidate *other, char out[SL_SEARCH_TEXT]);
/* Why the winner wins: one sentence with numbers. */
void sl_search_why(const sl_search_problem *p, const sl_search_result *r, char out[SL_SEARCH_TEXT]);
const char *sl_binding_name(sl_binding b);
const char *sl_station_name(sl_station s);

/* NULL: the engine runs it; else what of it the engine does not run. Static text. */
const char *sl_layout_not_run(const sl_search_problem *p, const sl_layout *l);

#endif
