/* --schedule auto: measures what stages and the link of a deployment cost where it will run, and
 * sets the schedule that the closed forms of src/plan/choose.h predict to be fastest. Workers on
 * other machines measure for themselves, when the coordinator asks them (engine/coord/survey.c).
 * Thread: owner. */
#ifndef SL_ENGINE_AUTO_H
#define SL_ENGINE_AUTO_H

#include "base/status.h"
#include "engine/measure/predicted.h"
#include "plan/choose.h"
#include "spec/model.h"
#include "spec/plan.h"

typedef struct sl_auto_opts {
    const char *model_folder;
    const sl_model_spec *m;
    const char *transport;
    const char *isa;     /* as of sl_kernels_select; NULL or "": its base */
    bool here;           /* the workers run on this machine; sl_plan_auto: they do */
    uint32_t requests;   /* that run at once; 0: as many as the plan has room for */
    uint64_t delay_seed; /* of "loop" */
    uint32_t delay_us;
} sl_auto_opts;

/* Where the plan's schedule comes from. */
typedef struct sl_auto_report {
    bool measured;   /* false: the rest is zero, the plan keeps the schedule of its roles */
    char why[160];   /* one line: what was chosen and why, or why nothing was measured */
    char times[240]; /* one line: what stages and the link cost */
    sl_choice choice;
    uint32_t rows[2]; /* of one attention worker, decode and prompt: what choice is for */
    double measure_ms;
} sl_auto_report;

/* What it says of a block with experts. */
sl_predicted sl_auto_predicted(const sl_auto_report *r);

/* Changes schedule, lanes, chunks, chunking, order and costs of *p, which passes sl_plan_check
 * before and after. Logs times, each candidate and the choice (info). Without --exact only
 * schedules that sum a row's experts as the simplest one does are candidates, so that no
 * measurement changes a bit. What cannot be measured leaves the plan as it is: never an error but
 * NOMEM or a broken model. */
sl_status sl_plan_auto(const sl_auto_opts *o, sl_plan *p, sl_auto_report *out,
                       sl_err *err) SL_MUST_CHECK;

/* Whether what workers cost, here or elsewhere, has to be known before a schedule can be chosen;
 * else *out says why the plan keeps its schedule. */
bool sl_plan_auto_asks(const sl_plan *p, bool here, sl_auto_report *out);

/* What they said, the dearest of each kind: of one device with all of a worker's threads, and of
 * the link between the coordinator and a worker. */
typedef struct sl_surveyed {
    sl_costs costs;
    uint32_t threads; /* most of one; 0: as the plan says */
    uint32_t rails;   /* network cards that each of them has for its ranks; 1: for all together */
    /* The machine that has the least cores for its workers, and these; none: not known. */
    double cores;
    uint32_t core_attention, core_experts;
    double ms; /* it took so long */
} sl_surveyed;

/* As sl_plan_auto, from that. SL_ERR_ARG: such costs are none of a plan's. */
sl_status sl_plan_auto_from(const sl_surveyed *s, const sl_model_spec *m, uint32_t requests,
                            sl_plan *p, sl_auto_report *out, sl_err *err) SL_MUST_CHECK;

/* What is predicted of *p, whose workers run on this machine and whose stages and link cost so
 * much: with `open` of the schedule that sl_plan_auto would choose for that, which *p gets, else of
 * its own. *load: who works on how much. Measures and logs nothing. */
sl_status sl_plan_predict(const sl_costs *c, const sl_model_spec *m, uint32_t requests, bool open,
                          sl_plan *p, sl_auto_report *out, sl_choose_load *load,
                          sl_err *err) SL_MUST_CHECK;

/* The schedule, and what it was chosen from, are those of `from`. */
void sl_plan_schedule_as(const sl_plan *from, sl_plan *p);

/* What one expert of a block costs there: as the plan knows it, or its device; else measured, as
 * above. All zero: the workers are elsewhere. */
sl_status sl_plan_expert_cost(const sl_auto_opts *o, const sl_plan *p, sl_stage_cost *out,
                              sl_err *err) SL_MUST_CHECK;

#endif
