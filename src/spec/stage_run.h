/* A schedule on given stage times: what `sluice simulate --stages` runs. Read by
 * src/format/stage_run_file.h, run by src/sim/stages.h. Thread: immutable after filling. */
#ifndef SL_SPEC_STAGE_RUN_H
#define SL_SPEC_STAGE_RUN_H

#include "spec/plan.h"

#define SL_STAGE_MAX_LAYERS     512u
#define SL_STAGE_MAX_ITERATIONS 100000u
#define SL_STAGE_MAX_TASKS      1000000000ull /* layers * iterations * lanes * chunks */
#define SL_STAGE_MAX_MS         1e9

typedef enum sl_stage_kind {
    SL_STAGE_ATTN,
    SL_STAGE_SHARED,
    SL_STAGE_A2E,
    SL_STAGE_EXPERT,
    SL_STAGE_E2A,
    SL_STAGE_COUNT
} sl_stage_kind;

typedef struct sl_stage_run {
    sl_schedule schedule;
    uint32_t layers;
    uint32_t lanes;  /* m of ping-pong, r1 of FinDEP, batches in flight of aep */
    uint32_t chunks; /* r2 of FinDEP, N of EPS */
    sl_order order;
    uint32_t iterations; /* passes of each lane through all layers, back to back */
    bool half_duplex;    /* both directions share the link */
    bool fixed_list; /* the attention side runs FinDEP's list as printed and waits for what is next,
                        where the engine runs what is ready */
    sl_policy policy; /* of aep, with lookahead and delta */
    uint32_t lookahead;
    double delta;
    double ms[SL_STAGE_COUNT]; /* of one task: attn and shared of a lane, the others of a chunk */
} sl_stage_run;

#endif
