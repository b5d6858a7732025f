/* A schedule on given stage times, or a whole deployment, in virtual time. */
#include "cmd.h"

#include "format/stage_run_file.h"
#include "sim/stages.h"

static void print_stages(const sl_stage_run *r, const sl_stage_result *s, bool json) {
    static const char *const kinds[SL_STAGE_COUNT] = {"attn", "shared", "a2e", "expert", "e2a"};
    if (json)
        printf("{\"makespan_ms\":%.15g,\"period_ms\":%.15g,\"busy\":{", s->makespan_ms,
               s->period_ms);
    for (int i = 0; json && i < SL_STAGE_COUNT; i++)
        printf("%s\"%s\":%.15g", i ? "," : "", kinds[i], s->busy[i]);
    if (json) printf("}}\n");
    if (json) return;
    printf("makespan          %14.6f ms, %u layers %u times\n", s->makespan_ms, r->layers,
           r->iterations);
    printf("a layer, all lanes%14.6f ms in the steady state\n", s->period_ms);
    for (int i = 0; i < SL_STAGE_COUNT; i++)
        printf("busy %-12s %14.1f %%\n", kinds[i], 100 * s->busy[i]);
}

static int simulate_stages(const sl_options *o) {
    sl_err err = {0};
    sl_stage_run r;
    sl_stage_result s;
    sl_status st =
        o->n_args ? sl_fail(&err, SL_ERR_ARG, "--stages has no model: leave out '%.60s'", o->arg[0])
                  : sl_stage_run_load(o->stages, &r, &err);
    if (st == SL_OK) {
        st = sl_stage_run_simulate(&r, &s, &err);
        if (st != SL_OK) st = sl_err_prefix(&err, "%s", o->stages);
    }
    if (st != SL_OK) return sl_cmd_fail("simulate", &err);
    print_stages(&r, &s, o->json);
    return 0;
}

int cmd_simulate(const sl_options *o) {
    sl_err err;
    if (o->stages[0]) return simulate_stages(o);
    (void)!sl_fail(&err, SL_ERR_ARG, "--stages FILE is missing (see --help)");
    return sl_cmd_fail("simulate", &err);
}
