/* From options to a simulated deployment. */
#ifndef SL_TOOLS_SIMULATE_H
#define SL_TOOLS_SIMULATE_H

#include "base/options.h"
#include "sim/deployment.h"
#include "spec/gang.h"

#define SL_SIMULATE_MAX_DEATHS 64u

typedef struct sl_simulation {
    sl_model_spec model;
    sl_plan plan;
    sl_costs attention, expert;
    sl_workload load;
    sl_link_cost copies[2]; /* of a message at workers of either side, to a GPU and from there */
    sl_link_cost rail_link[SL_MAX_RANKS]; /* of ranks 1 and up */
    double *popularity;
    sl_sim_death death[SL_SIMULATE_MAX_DEATHS];
    char source[128];                /* where the costs are from */
    char costs_of[SL_PLAN_COSTS_OF]; /* the same as a plan says it; "": of no device */
    char warning[512];               /* the plan was made with other costs; "": no */
    sl_sim_setup setup;
} sl_simulation;

sl_status sl_simulation_prepare(const sl_options *o, sl_simulation *out, sl_err *err) SL_MUST_CHECK;
void sl_simulation_free(sl_simulation *x);

/* --try-sides: prints what each division of the workers into two sides gets of the load. */
sl_status sl_simulate_sides(const sl_options *o, sl_err *err) SL_MUST_CHECK;

#endif
