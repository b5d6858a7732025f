/* A deployment: who hosts what, and how the work is scheduled. plan.json is its file form. */
#ifndef SL_SPEC_PLAN_H
#define SL_SPEC_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#define SL_PLAN_MAX_WORKERS 64u
#define SL_PLAN_VERSION     1u

typedef enum sl_schedule {
    SL_SCHED_EP,  /* colocated, one lane, barrier per layer */
    SL_SCHED_DEP, /* attention and experts on separate workers, one lane, barrier per layer */
    SL_SCHED_COUNT
} sl_schedule;

typedef struct sl_plan_worker {
    uint32_t id;      /* 0..n_workers-1 */
    uint32_t roles;   /* bit 0 attention, bit 1 expert */
    char address[96]; /* where it listens; filled in when it joins */
} sl_plan_worker;

typedef struct sl_plan {
    uint32_t epoch; /* grows whenever the set of workers changes */
    sl_schedule schedule;
    uint32_t lanes;
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
} sl_plan;

#endif
