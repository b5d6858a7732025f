/* A schedule on given stage times, or a whole deployment, in virtual time. */
#include "cmd.h"

#include "base/mem.h"
#include "base/output.h"
#include "base/version.h"
#include "format/plan_json.h"
#include "format/stage_run_file.h"
#include "sim/stages.h"
#include "simulate.h"
#include "trace/trace_file.h"
#include "trace/trace_svg.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- stages ---- */

static void print_stages(const sl_stage_run *r, const sl_stage_result *s, bool json) {
    static const char *const kinds[SL_STAGE_COUNT] = {"attn", "shared", "a2e", "expert", "e2a"};
    if (json) {
        printf("{\"makespan_ms\":%.15g,\"period_ms\":%.15g,\"busy\":{", s->makespan_ms,
               s->period_ms);
        for (int i = 0; i < SL_STAGE_COUNT; i++)
            printf("%s\"%s\":%.15g", i ? "," : "", kinds[i], s->busy[i]);
        printf("}}\n");
        return;
    }
    printf("makespan          %14.6f ms, %u layers %u times\n", s->makespan_ms, r->layers,
           r->iterations);
    printf("a layer, all lanes%14.6f ms in the steady state\n", s->period_ms);
    for (int i = 0; i < SL_STAGE_COUNT; i++)
        printf("busy %-12s %14.1f %%\n", kinds[i], 100 * s->busy[i]);
}

static sl_status simulate_stages(const sl_options *o, sl_err *err) {
    sl_stage_run r;
    sl_stage_result s;
    if (o->n_args)
        return sl_fail(err, SL_ERR_ARG, "--stages has no model: leave out '%.60s'", o->arg[0]);
    sl_status st = sl_stage_run_load(o->stages, &r, err);
    if (st == SL_OK) {
        st = sl_stage_run_simulate(&r, &s, err);
        if (st != SL_OK) st = sl_err_prefix(err, "%s", o->stages);
    }
    if (st == SL_OK) print_stages(&r, &s, o->json);
    return st;
}

/* ---- a deployment ---- */

static const char *const roles[] = {"free", "attention", "expert", "both"};

static void put_dist(const char *name, const sl_sim_dist *d) {
    printf(",\"%s_ms\":{\"n\":%" PRIu64
           ",\"mean\":%.6g,\"p50\":%.6g,\"p90\":%.6g,\"p99\":%.6g,\"max\":%.6g}",
           name, d->n, d->mean / 1e3, d->p50 / 1e3, d->p90 / 1e3, d->p99 / 1e3, d->max / 1e3);
}

static void print_json(const sl_simulation *x, const sl_sim_result *r) {
    printf("{\"schedule\":\"%s\",\"costs\":", sl_schedule_name(x->plan.schedule));
    sl_print_json_string(stdout, x->source, strlen(x->source));
    printf(",\"estimated\":%s,\"seed\":%" PRIu64 ",\"measured_s\":[%.9g,%.9g]",
           x->attention.estimated ? "true" : "false", x->setup.seed, r->from_us / 1e6,
           r->to_us / 1e6);
    if (x->warning[0]) {
        printf(",\"warning\":");
        sl_print_json_string(stdout, x->warning, strlen(x->warning));
    }
    printf(",\"tokens\":%" PRIu64 ",\"tokens_per_s\":%.6g,\"requests_per_s\":%.6g"
           ",\"goodput_per_s\":%.6g",
           r->tokens, r->tokens_per_s, r->requests_per_s, r->goodput_per_s);
    put_dist("ttft", &r->ttft_us);
    put_dist("itl", &r->itl_us);
    put_dist("tpot", &r->tpot_us);
    put_dist("queued", &r->queued_us);
    printf(",\"requests\":{\"submitted\":%" PRIu64 ",\"finished\":%" PRIu64 ",\"failed\":%" PRIu64
           ",\"refused\":%" PRIu64 ",\"too_long\":%" PRIu64 ",\"preempted\":%" PRIu64
           "},\"workers\":[",
           r->submitted, r->finished, r->failed, r->refused, r->too_long, r->preempted);
    for (uint32_t i = 0; i < r->n_workers; i++) {
        const sl_sim_worker_stats *w = &r->worker[i];
        printf("%s{\"id\":%u,\"role\":\"%s\",\"busy\":%.6g,\"out\":%.6g,\"in\":%.6g"
               ",\"queue_mean\":%.6g,\"queue_max\":%.6g,\"tasks\":%" PRIu64 ",\"rows\":%" PRIu64
               "}",
               i ? "," : "", i, roles[w->roles & 3], w->busy, w->out, w->in, w->depth_mean,
               w->depth_max, w->tasks, w->rows);
    }
    printf("]");
    if (sl_plan_has_prefill(&x->plan)) printf(",\"handed_over\":%" PRIu64, r->handed);
    if (x->plan.speculate)
        printf(",\"guesses\":{\"run\":%" PRIu64 ",\"right\":%" PRIu64 "}", r->guesses,
               r->guesses_right);
    if (sl_speculates_by_mtp(x->plan.speculate))
        printf(",\"block\":{\"calls\":%" PRIu64 ",\"rows\":%" PRIu64 ",\"guesses\":%" PRIu64 "}",
               r->block_calls, r->block_rows, r->block_guesses);
    printf(",\"rows\":{\"created\":%" PRIu64 ",\"merged\":%" PRIu64 ",\"cancelled\":%" PRIu64
           ",\"lost\":%" PRIu64 "},\"messages\":%" PRIu64
           ",\"message_bytes\":%.0f,\"events\":%" PRIu64 "}\n",
           r->rows_created, r->rows_merged, r->rows_cancelled, r->rows_lost, r->messages,
           r->message_bytes, r->events);
}

static void print_dist(const char *name, const sl_sim_dist *d) {
    if (d->n)
        printf("%-18s mean %9.2f  p50 %9.2f  p90 %9.2f  p99 %9.2f  max %9.2f ms\n", name,
               d->mean / 1e3, d->p50 / 1e3, d->p90 / 1e3, d->p99 / 1e3, d->max / 1e3);
}

static void print_table(const sl_simulation *x, const sl_sim_result *r) {
    printf("%s, costs of %s%s\n", sl_schedule_name(x->plan.schedule), x->source,
           x->attention.estimated ? " (ESTIMATES, nothing is measured)" : "");
    printf("%-18s %.1f tokens/s, %.3f requests/s, %.3f of them within the objectives\n",
           "throughput", r->tokens_per_s, r->requests_per_s, r->goodput_per_s);
    print_dist("first token", &r->ttft_us);
    print_dist("between tokens", &r->itl_us);
    print_dist("waits to run", &r->queued_us);
    printf("%-18s %" PRIu64 " submitted, %" PRIu64 " finished, %" PRIu64 " failed, %" PRIu64
           " refused, %" PRIu64 " preempted\n",
           "requests", r->submitted, r->finished, r->failed, r->refused, r->preempted);
    if (sl_plan_has_prefill(&x->plan))
        printf("%-18s %" PRIu64 " handed over\n", "prompts", r->handed);
    if (x->plan.speculate)
        printf("%-18s %" PRIu64 " run, %" PRIu64 " right\n", "guesses", r->guesses,
               r->guesses_right);
    if (sl_speculates_by_mtp(x->plan.speculate))
        printf("%-18s %" PRIu64 " calls of %" PRIu64 " rows made %" PRIu64 "\n", "their block",
               r->block_calls, r->block_rows, r->block_guesses);
    if (r->too_long)
        printf("%-18s %" PRIu64 " of the refused need more than the context of %u\n", "",
               r->too_long, x->plan.context);
    for (uint32_t i = 0; i < r->n_workers; i++) {
        const sl_sim_worker_stats *w = &r->worker[i];
        printf("worker %-3u %-9s busy %5.1f %%, out %5.1f %%, in %5.1f %%, waiting rows %.1f, at "
               "most %.0f\n",
               i, roles[w->roles & 3], 100 * w->busy, 100 * w->out, 100 * w->in, w->depth_mean,
               w->depth_max);
    }
    printf("%-18s %.3f to %.3f s of virtual time, %" PRIu64 " events\n", "measured",
           r->from_us / 1e6, r->to_us / 1e6, r->events);
}

static sl_status write_trace(const sl_options *o, const sl_simulation *x, const sl_sim_result *r,
                             const char *path, sl_err *err) {
    sl_output out;
    sl_status st = sl_output_open(path, &out, err);
    if (st != SL_OK) return st;
    const char **role = sl_alloc(r->n_workers, sizeof *role);
    for (uint32_t i = 0; role && i < r->n_workers; i++) role[i] = roles[r->worker[i].roles & 3];
    const sl_trace_about about = {.model = o->arg[0],
                                  .schedule = sl_schedule_name(x->plan.schedule),
                                  .transport = "simulated links",
                                  .version = sl_version(),
                                  .lanes = x->plan.lanes,
                                  .layers = x->setup.model->n_layers,
                                  .message_name = sl_sim_message_name};
    st = role ? sl_trace_rings_write(out.f, &about, r->trace, role, r->n_workers, err)
              : sl_fail(err, SL_ERR_NOMEM, "trace of %u workers", r->n_workers);
    sl_free(role);
    return sl_output_end(&out, st, err);
}

/* The picture is drawn from a trace, a temporary file: the one that was asked for may be a pipe. */
static sl_status write_svg(const sl_options *o, const sl_simulation *x, const sl_sim_result *r,
                           sl_err *err) {
    char trace[] = "/tmp/sluice-trace-XXXXXX";
    double from_us = o->from_ms < 0 ? -1 : o->from_ms * 1e3;
    double to_us = o->to_ms < 0 ? -1 : o->to_ms * 1e3;
    int fd = mkstemp(trace);
    if (fd < 0) return sl_fail(err, SL_ERR_IO, "%s: %s", trace, strerror(errno));
    close(fd);
    sl_output out = {0};
    sl_status st = write_trace(o, x, r, trace, err);
    if (st == SL_OK) st = sl_output_open(o->svg, &out, err);
    if (st == SL_OK) {
        st = sl_trace_svg_write(trace, from_us, to_us, out.f, err);
        st = sl_output_end(&out, st, err);
    }
    unlink(trace);
    return st;
}

static sl_status simulate_deployment(const sl_options *o, sl_err *err) {
    sl_simulation *x = sl_alloc(1, sizeof *x);
    sl_sim_result r = {0};
    if (!x) return sl_fail(err, SL_ERR_NOMEM, "simulation");
    sl_status st = sl_simulation_prepare(o, x, err);
    if (st == SL_OK && x->warning[0]) fprintf(stderr, "sluice simulate: %s\n", x->warning);
    if (st == SL_OK) st = sl_sim_run(&x->setup, &r, err);
    if (st == SL_OK && o->trace[0]) st = write_trace(o, x, &r, o->trace, err);
    if (st == SL_OK && o->svg[0]) st = write_svg(o, x, &r, err);
    if (st == SL_OK && o->json) print_json(x, &r);
    if (st == SL_OK && !o->json) print_table(x, &r);
    sl_sim_result_free(&r);
    sl_simulation_free(x);
    sl_free(x);
    return st;
}

int cmd_simulate(const sl_options *o) {
    sl_err err = {0};
    sl_status st;
    if (o->stages[0])
        st = simulate_stages(o, &err);
    else if (o->n_args == 0)
        st = sl_fail(&err, SL_ERR_ARG, "a model or --stages FILE is missing (see --help)");
    else if (o->try_sides)
        st = sl_simulate_sides(o, &err);
    else
        st = simulate_deployment(o, &err);
    return st == SL_OK ? 0 : sl_cmd_fail("simulate", &err);
}
