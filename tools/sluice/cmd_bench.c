/* Prefill and decode speed, as llama-bench tests them: pp = n_prompt tokens of one fresh request,
 * tg = n_gen tokens after n_depth, each of `batch` requests. JSON field names are llama-bench's.
 * All tokens are drawn at random, since what a model of random weights would say soon repeats
 * itself and then needs few experts. A request goes on with one token, drawn for it, by a bias on
 * its logit: that costs a copy of the logits and no distribution to draw from. */
#include "cmd.h"

#include "base/progress.h"
#include "base/clock.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_REPS  100
#define SURE_BIAS 100 /* the largest there is */

typedef struct result {
    uint64_t ns[MAX_REPS];
    double ts[MAX_REPS]; /* tokens per second */
    uint32_t n;
} result;

static void fill_random(uint32_t *ids, uint32_t n, uint32_t vocab, uint64_t *state) {
    for (uint32_t i = 0; i < n; i++) ids[i] = (uint32_t)sl_rng_below(state, vocab);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(const double *v, uint32_t n) {
    double sorted[MAX_REPS];
    memcpy(sorted, v, n * sizeof *v);
    qsort(sorted, n, sizeof *sorted, compare);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static void mean_and_sd(const double *v, uint32_t n, double *mean, double *sd) {
    double sum = 0, sq = 0;
    for (uint32_t i = 0; i < n; i++) sum += v[i];
    *mean = sum / n;
    for (uint32_t i = 0; i < n; i++) sq += (v[i] - *mean) * (v[i] - *mean);
    *sd = n > 1 ? sqrt(sq / (n - 1)) : 0;
}

typedef struct bench {
    const sl_options *o;
    const sl_deployment *d;
    sl_engine *engine;
    uint64_t state;
    uint32_t *ids; /* [batch][stride] */
    uint32_t stride;
    sl_logit_bias *next; /* [batch] */
    sl_generate_opts *opts;
    sl_generation *outs;
} bench;

static void set_request(bench *b, uint32_t i, uint32_t n_prompt, uint32_t n_gen) {
    uint32_t *ids = b->ids + (size_t)i * b->stride;
    b->next[i] = (sl_logit_bias){(uint32_t)sl_rng_below(&b->state, b->d->spec.vocab), SURE_BIAS};
    fill_random(ids, n_prompt, b->d->spec.vocab, &b->state);
    b->opts[i] = (sl_generate_opts){.prompt = ids,
                                    .n_prompt = n_prompt,
                                    .max_tokens = n_gen,
                                    .sampling = {.top_p = 1, .n_bias = 1, .bias = &b->next[i]},
                                    .ignore_eos = true};
    sl_generation_free(&b->outs[i]);
    b->outs[i] = (sl_generation){0};
}

/* `tokens` took `us`, of which a clock of microseconds sees at least one. */
static void note(result *r, uint64_t tokens, uint64_t us) {
    r->ns[r->n] = SL_MAX(us, 1) * 1000;
    r->ts[r->n] = (double)tokens * 1e9 / (double)r->ns[r->n];
    r->n++;
}

/* Prefill: from submission to the first token. */
static sl_status run_prefill(bench *b, result *r, sl_err *err) {
    set_request(b, 0, b->o->n_prompt, 1);
    sl_status st = sl_generate(b->engine, b->opts, b->outs, 1, err);
    if (st != SL_OK) return st;
    const sl_token_times *t = &b->outs[0].times;
    note(r, b->o->n_prompt, t->first_us - t->submitted_us);
    return SL_OK;
}

/* Decode: all requests are decoding from the last one's first token on, until the first one to end,
 * `a`, has its last. Measured are whole steps: from a token of `a` to its last. Other tokens of a
 * step may be handed out a little later than that of `a`, so they count by half a step more. */
static sl_status measure_together(const bench *b, uint32_t n, result *r, sl_err *err) {
    const sl_generation *a = &b->outs[0];
    uint64_t all = 0, begin = UINT64_MAX, made = 0, steps = 0;
    for (uint32_t i = 0; i < n; i++) {
        all = SL_MAX(all, b->outs[i].times.first_us);
        if (b->outs[i].times.last_us < a->times.last_us) a = &b->outs[i];
    }
    for (size_t k = a->ids.len; k-- > 0 && a->made_us[k] >= all; steps++) begin = a->made_us[k];
    const uint64_t end = a->times.last_us;
    if (begin >= end)
        return sl_fail(
            err, SL_ERR_INFEASIBLE,
            "--batch %u: they do not decode together (--max-num-seqs, --kv-pages, --ctx)", n);
    const uint64_t late = (end - begin) / (2 * steps);
    for (uint32_t i = 0; i < n; i++) {
        const sl_generation *g = &b->outs[i];
        for (size_t k = 0; k < g->ids.len; k++)
            made += g->made_us[k] > begin + late && g->made_us[k] <= end + late;
    }
    note(r, made, end - begin);
    return SL_OK;
}

/* r NULL: nothing is measured. */
static sl_status run_decode(bench *b, uint32_t n_gen, result *r, sl_err *err) {
    uint32_t n = b->o->batch;
    for (uint32_t i = 0; i < n; i++) set_request(b, i, b->o->n_depth, n_gen + 1);
    sl_status st = sl_generate(b->engine, b->opts, b->outs, n, err);
    return st == SL_OK && r ? measure_together(b, n, r, err) : st;
}

/* Waits until all workers have said anew how they fare, 3 s at most: they do so twice a second, and
 * a bench may be over before they have said anything. */
static bool heard(const bench *b, sl_engine_detail *d) {
    uint64_t said[SL_MAX_WORKERS] = {0};
    const uint64_t begin = sl_now_ns();
    for (bool first = true;; first = false) {
        bool all = !first;
        sl_err err;
        if (sl_engine_detail_get(b->engine, d, &err) != SL_OK) return false;
        for (uint32_t i = 0; i < d->n_workers; i++) {
            if (first) said[i] = d->worker[i].wall_us;
            if (d->worker[i].alive && d->worker[i].wall_us == said[i]) all = false;
        }
        if (all || sl_now_ns() - begin > 3000000000u) return true;
        sl_engine_detail_free(d);
        usleep(20000);
    }
}

/* Of the time that workers computed, in all that was run: what their ranks were in exchanges. */
static double ranks_share(const bench *b) {
    uint64_t ranks = 0, all = 0;
    sl_engine_detail d;
    const sl_plan *p = &b->d->opts.plan;
    const bool several =
        sl_plan_all_ranks(p, SL_ROLE_ATTENTION) > 1 || sl_plan_all_ranks(p, SL_ROLE_EXPERT) > 1;
    if (!several || !heard(b, &d)) return 0;
    for (uint32_t i = 0; i < d.n_workers; i++) {
        ranks += d.worker[i].ranks_us;
        all += d.worker[i].ranks_us ? d.worker[i].execute_us : 0;
    }
    sl_engine_detail_free(&d);
    return all ? (double)ranks / (double)all : 0;
}

/* ranks: as of ranks_share. */
static void print_result(const bench *b, const result *r, uint32_t n_prompt, uint32_t n_gen,
                         double ranks, bool first) {
    double mean, sd, ns_mean, ns_sd, ns[MAX_REPS];
    for (uint32_t i = 0; i < r->n; i++) ns[i] = (double)r->ns[i];
    mean_and_sd(r->ts, r->n, &mean, &sd);
    mean_and_sd(ns, r->n, &ns_mean, &ns_sd);
    const sl_plan *p = &b->d->opts.plan;
    if (!b->o->json) {
        printf("%s%-4u batch %-4u %10.2f tokens/s (median of %u; mean %.2f +- %.2f)\n",
               n_gen ? "tg" : "pp", n_gen ? n_gen : n_prompt, n_gen ? b->o->batch : 1,
               median(r->ts, r->n), r->n, mean, sd);
        return;
    }
    printf("%s{\"model_filename\": ", first ? "[" : ", ");
    sl_print_json_string(stdout, b->o->arg[0], strlen(b->o->arg[0]));
    printf(", \"n_params\": %llu, \"n_threads\": %u, \"n_workers\": %u, \"transport\": \"%s\", "
           "\"wire\": \"%s\", \"exact\": %s, \"n_prompt\": %u, \"n_gen\": %u, \"n_depth\": %u, "
           "\"n_batch\": %u, "
           "\"avg_ns\": %.0f, \"stddev_ns\": %.0f, \"avg_ts\": %.4f, \"stddev_ts\": %.4f, "
           "\"median_ts\": %.4f, \"ranks_share\": %.4f, \"samples_ns\": [",
           (unsigned long long)b->d->spec.n_params, p->threads, p->n_workers, b->d->opts.transport,
           sl_wire_format_name((sl_wire_format)p->wire), p->exact ? "true" : "false", n_prompt,
           n_gen, n_gen ? b->o->n_depth : 0, n_gen ? b->o->batch : 1, ns_mean, ns_sd, mean, sd,
           median(r->ts, r->n), ranks);
    for (uint32_t i = 0; i < r->n; i++)
        printf("%s%llu", i ? ", " : "", (unsigned long long)r->ns[i]);
    printf("], \"samples_ts\": [");
    for (uint32_t i = 0; i < r->n; i++) printf("%s%.4f", i ? ", " : "", r->ts[i]);
    printf("]}");
}

static sl_status run_tests(bench *b, sl_err *err) {
    result pp = {0}, tg = {0}, warm = {0};
    sl_status st = SL_OK;
    sl_progress line;
    sl_progress_begin(&line, "bench", SL_PROGRESS_STEPS, !b->o->json);
    sl_progress_set(&line, 0, b->o->reps);
    if (b->o->n_prompt)
        st = run_prefill(b, &warm, err); /* once unmeasured, as llama-bench does */
    else
        st = run_decode(b, 1, NULL, err);
    for (uint32_t i = 0; st == SL_OK && i < b->o->reps; i++) {
        if (b->o->n_prompt) st = run_prefill(b, &pp, err);
        if (st == SL_OK && b->o->n_gen) st = run_decode(b, b->o->n_gen, &tg, err);
        sl_progress_set(&line, i + 1, b->o->reps);
    }
    sl_progress_end(&line);
    if (st != SL_OK) return st;
    const double ranks = ranks_share(b);
    if (pp.n) print_result(b, &pp, b->o->n_prompt, 0, ranks, true);
    if (tg.n) print_result(b, &tg, 0, b->o->n_gen, ranks, pp.n == 0);
    if (b->o->json)
        printf("]\n");
    else if (ranks > 0)
        printf("ranks in exchanges: %.1f %% of what workers computed\n", 100 * ranks);
    return SL_OK;
}

int cmd_bench(const sl_options *o) {
    sl_err err = {0};
    sl_deployment d = {0};
    bench b = {.o = o, .d = &d, .state = o->seed + 1};
    sl_deploy_setup_process(o);
    sl_status st = SL_OK;
    if (o->n_prompt == 0 && o->n_gen == 0)
        st = sl_fail(&err, SL_ERR_ARG, "--n-prompt and --n-gen are both 0: nothing to measure");
    if (st == SL_OK)
        st = sl_deploy_prepare(o, strcmp(o->transport, "auto") != 0, o->batch, &d, &err);
    if (st == SL_OK && o->n_prompt + 1 > d.opts.plan.context)
        st = sl_fail(&err, SL_ERR_ARG, "--n-prompt: %u, the context has %u (--ctx)", o->n_prompt,
                     d.opts.plan.context);
    if (st == SL_OK && o->n_gen && (uint64_t)o->n_depth + o->n_gen + 1 > d.opts.plan.context)
        st = sl_fail(&err, SL_ERR_ARG, "--n-gen: %u, the context has %u (--ctx, --n-depth)",
                     o->n_gen, d.opts.plan.context);
    b.stride = SL_MAX(o->n_prompt, o->n_depth);
    b.ids = sl_alloc((size_t)o->batch * b.stride, sizeof *b.ids);
    b.next = sl_alloc(o->batch, sizeof *b.next);
    b.opts = sl_alloc(o->batch, sizeof *b.opts);
    b.outs = sl_alloc(o->batch, sizeof *b.outs);
    if (st == SL_OK && (!b.ids || !b.next || !b.opts || !b.outs))
        st = sl_fail(&err, SL_ERR_NOMEM, "bench buffers");
    if (st == SL_OK) st = sl_deploy_start(o, &d, &b.engine, &err);
    if (st == SL_OK) st = run_tests(&b, &err);
    st = sl_generate_end(b.engine, st, &err);
    for (uint32_t i = 0; b.outs && i < o->batch; i++) sl_generation_free(&b.outs[i]);
    sl_free(b.ids);
    sl_free(b.next);
    sl_free(b.opts);
    sl_free(b.outs);
    sl_deploy_free(&d);
    return st == SL_OK ? 0 : sl_cmd_fail("bench", &err);
}
