/* A deployment: who hosts what, and how the work is scheduled. plan.json is its file form. */
#ifndef SL_SPEC_PLAN_H
#define SL_SPEC_PLAN_H

#include "spec/lab.h"

#include <stdbool.h>
#include <stdint.h>

#define SL_PLAN_MAX_WORKERS 64u
#define SL_PLAN_VERSION     1u

/* How the rows of an attention worker are grouped, and when a group may run (docs/schedules.md). */
typedef enum sl_schedule {
    SL_SCHED_EP,       /* colocated, one lane, barrier per layer */
    SL_SCHED_DEP,      /* attention and experts on separate workers, one lane, barrier per layer */
    SL_SCHED_PINGPONG, /* `lanes` micro-batches in flight, a barrier per lane and layer */
    SL_SCHED_FINDEP,   /* `lanes` micro-batches of `chunks` chunks each, a barrier per chunk */
    SL_SCHED_EPS,      /* colocated, one lane, `chunks` expert groups, a barrier per group */
    SL_SCHED_AEP,      /* no barrier: queues per layer and expert, `policy` picks */
    SL_SCHED_COUNT
} sl_schedule;

/* What a chunk of a lane's rows is. */
typedef enum sl_chunking {
    SL_CHUNK_TOKENS,  /* consecutive rows with all their experts */
    SL_CHUNK_EXPERTS, /* all rows with the experts of one group; a row's data travels once */
    SL_CHUNKING_COUNT
} sl_chunking;

/* FinDEP: when the attention side runs a lane's shared experts. */
typedef enum sl_order {
    SL_ORDER_ASAS, /* right after the lane's attention */
    SL_ORDER_AASS, /* when no lane's attention can run */
    SL_ORDER_COUNT
} sl_order;

/* AMoE: which queue of a worker is drained next. */
typedef enum sl_policy {
    SL_POLICY_DEFRAG, /* longest queue plus what will follow it (lookahead, delta) */
    SL_POLICY_MTFS,   /* most tokens first */
    SL_POLICY_FLFS,   /* first layer first */
    SL_POLICY_RMF,    /* rearmost epoch and layer first */
    SL_POLICY_COUNT
} sl_policy;

#define SL_PLAN_MAX_LANES  16u
#define SL_PLAN_MAX_CHUNKS 32u
#define SL_PLAN_MAX_CPU    1023

typedef struct sl_plan_worker {
    uint32_t id;      /* 0..n_workers-1 */
    uint32_t roles;   /* bit 0 attention, bit 1 expert */
    char address[96]; /* where it listens; filled in when it joins */
    int32_t cpu;      /* its threads run there alone; -1: anywhere */
} sl_plan_worker;

typedef struct sl_plan {
    uint32_t epoch; /* grows whenever the set of workers changes */
    sl_schedule schedule;
    uint32_t lanes;  /* m of ping-pong, r1 of FinDEP; else 1 */
    uint32_t chunks; /* r2 of FinDEP, N of EPS; else 1 */
    sl_chunking chunking;
    sl_order order;
    sl_policy policy;   /* of aep */
    uint32_t lookahead; /* of defrag: layers */
    double delta;       /* of defrag: weight lost per layer ahead, in (0, 1] */
    uint32_t n_workers;
    sl_plan_worker worker[SL_PLAN_MAX_WORKERS];
    /* owner[e] = worker of expert e of every MoE block; n_experts entries, owned by the plan's
     * holder */
    uint32_t *owner;
    uint32_t n_experts;
    /* numerics */
    uint32_t wire; /* sl_wire_format */
    bool exact;
    /* limits */
    uint32_t max_num_seqs;           /* requests running at one attention worker */
    uint32_t max_num_batched_tokens; /* rows of one lane step */
    double
        prefill_stretch; /* >= 1: prompt rows may make a step of decoding requests so much longer */
    uint32_t context;    /* positions a request may take */
    uint32_t n_pages;    /* KV pages of one attention worker */
    uint32_t threads;    /* kernel threads of one worker */
    /* experiments */
    sl_route_skew skew;
    sl_device device;
} sl_plan;

#endif
