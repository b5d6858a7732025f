/* AMoE, Figures 4 and 9 to 13, by the simulator on costs of an A100 (assumed; the paper has one
 * step of each layer): 32 blocks, 8 experts of popularity exp(-theta e), another order in each
 * block. */
#include "papers.h"

#include "base/mem.h"
#include "format/plan_json.h"
#include "model/skew.h"
#include "sim/deployment.h"

#include <math.h>

typedef struct scene {
    sl_model_spec m;
    sl_plan p;
    sl_costs c;
    sl_workload load;
    double *popularity;
} scene;

typedef struct setting {
    uint32_t experts, top_k, workers; /* all of them; aep: half attention, half experts */
    double theta;
    sl_schedule schedule;
    sl_policy policy;
    uint32_t out_low, out_high;
    uint32_t clients; /* 0: rate */
    double rate;
    double warm_s, measure_s;
} setting;

static void fill_model(sl_model_spec *m, const setting *s) {
    *m = (sl_model_spec){.n_layers = 32,
                         .d_model = 64,
                         .n_heads = 4,
                         .n_kv_heads = 2,
                         .head_dim = 16,
                         .vocab = 1000,
                         .n_experts = s->experts,
                         .top_k = s->top_k,
                         .max_position = 8192};
    for (uint32_t l = 0; l < m->n_layers; l++) {
        m->ffn[l] = SL_FFN_MOE;
        m->moe_index[l] = m->moe_layer[l] = (uint16_t)l;
        m->n_moe++;
    }
}

static sl_status fill_scene(scene *x, const setting *s, sl_err *err) {
    bool aep = s->schedule == SL_SCHED_AEP;
    fill_model(&x->m, s);
    x->c =
        (sl_costs){.stage = {[SL_COST_ATTENTION] = {.fixed_us = 150, .row_us = 1},
                             [SL_COST_EXPERT] = {.fixed_us = 50, .floor_us = 200, .row_us = 1.55},
                             [SL_COST_HEAD] = {.fixed_us = 50, .row_us = 0.2}},
                   .link = {.alpha_us = 50}};
    sl_status st = sl_plan_local(&x->m, aep ? s->workers / 2 : s->workers, aep ? s->workers / 2 : 0,
                                 &x->p, err);
    if (st != SL_OK) return st;
    sl_plan_set_schedule(&x->p, s->schedule);
    x->p.policy = s->policy;
    x->p.max_num_seqs = x->p.max_num_batched_tokens = 4096;
    x->p.context = 4096;
    x->p.n_pages = 60000;
    x->load.input = (sl_length){.low = 1, .high = 1}; /* decoding: prompts are elsewhere */
    x->load.output = (sl_length){SL_LENGTH_UNIFORM, .low = s->out_low, .high = s->out_high};
    x->load.arrival = s->clients
                          ? (sl_arrival){.kind = SL_ARRIVAL_CLOSED, .concurrency = s->clients}
                          : (sl_arrival){.kind = SL_ARRIVAL_POISSON, .rate = s->rate};
    const sl_route_skew how = {.on = true, .permuted = true, .theta = s->theta, .seed = 1};
    sl_skew *skew = NULL;
    st = sl_skew_create(&how, &x->m, &skew, err);
    if (st != SL_OK) return st;
    x->popularity = sl_alloc((size_t)x->m.n_moe * x->m.n_experts, sizeof *x->popularity);
    if (x->popularity) sl_skew_popularity(skew, x->popularity);
    sl_skew_free(skew);
    return x->popularity ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "popularity");
}

/* Share of the time that a device of the barrier waits: the mean, and of the one that waits most.
 */
static void put_waits(FILE *out, const char *table, const char *key, const sl_sim_result *r) {
    double sum = 0, most = 0;
    for (uint32_t i = 0; i < r->n_workers; i++) {
        double waits = 1 - r->worker[i].busy;
        sum += waits;
        most = fmax(most, waits);
    }
    PAPERS_ROW(out, table, "mean", sum / r->n_workers, "%s", key);
    PAPERS_ROW(out, table, "most", most, "%s", key);
}

/* A mean step of either side: its rows, and what they cost. */
static void put_steps(FILE *out, const char *table, const char *key, const sl_costs *c,
                      const sl_sim_result *r) {
    for (int expert = 0; expert < 2; expert++) {
        double rows = 0, tasks = 0;
        for (uint32_t i = 0; i < r->n_workers; i++) {
            if (r->worker[i].roles != (expert ? SL_ROLE_EXPERT : SL_ROLE_ATTENTION)) continue;
            rows += (double)r->worker[i].rows;
            tasks += (double)r->worker[i].tasks;
        }
        const sl_stage_cost *stage = &c->stage[expert ? SL_COST_EXPERT : SL_COST_ATTENTION];
        double ms = sl_stage_cost_us(stage, rows / tasks, 0) / 1e3;
        PAPERS_ROW(out, table, expert ? "expert_rows" : "attention_rows", rows / tasks, "%s", key);
        PAPERS_ROW(out, table, expert ? "expert_ms" : "attention_ms", ms, "%s", key);
    }
}

static void put_rates(FILE *out, const char *table, const char *key, const sl_sim_result *r) {
    PAPERS_ROW(out, table, "ktok/s", r->tokens_per_s / 1e3, "%s", key);
    PAPERS_ROW(out, table, "itl_ms", r->itl_us.mean / 1e3, "%s", key);
    PAPERS_ROW(out, table, "req/s", r->requests_per_s, "%s", key);
}

typedef enum shown { RATES, WAITS, STEPS } shown;

static void simulate_and(shown what, FILE *out, const char *table, const char *key,
                         const setting *s) {
    static scene x;
    sl_err err = {0};
    sl_sim_result r = {0};
    x = (scene){0};
    sl_status st = fill_scene(&x, s, &err);
    sl_sim_setup setup = {.model = &x.m,
                          .plan = &x.p,
                          .attention = &x.c,
                          .expert = &x.c,
                          .row_bytes = 256,
                          .load = &x.load,
                          .popularity = x.popularity,
                          .n_layers = x.m.n_moe,
                          .seed = 1,
                          .warmup_us = s->warm_s * 1e6,
                          .measure_us = s->measure_s * 1e6};
    if (st == SL_OK) st = sl_sim_run(&setup, &r, &err);
    if (st != SL_OK)
        fprintf(stderr, "%s %s: %s\n", table, key, err.msg);
    else if (what == RATES)
        put_rates(out, table, key, &r);
    else if (what == WAITS)
        put_waits(out, table, key, &r);
    else
        put_steps(out, table, key, &x.c, &r);
    sl_sim_result_free(&r);
    sl_plan_free(&x.p);
    sl_free(x.popularity);
}

static void simulate(FILE *out, const char *table, const char *key, const setting *s) {
    simulate_and(RATES, out, table, key, s);
}

/* What a barrier makes the devices wait, with the arrivals of the paper and with many requests. */
static void figure_4(FILE *out) {
    setting s = {8, 2, 8, 1.0, SL_SCHED_EP, SL_POLICY_DEFRAG, 50, 250, 0, 100, 10, 5};
    simulate_and(WAITS, out, "amoe4", "100/s", &s);
    s.clients = 4096;
    simulate_and(WAITS, out, "amoe4", "4096", &s);
}

/* The mean step of either side under the load of Figure 9. */
static void figure_13(FILE *out) {
    const setting s = {8, 1, 8, 1.0, SL_SCHED_AEP, SL_POLICY_DEFRAG, 50, 250, 8192, 0, 4, 2};
    simulate_and(STEPS, out, "amoe13", "top-1", &s);
}

/* Both systems over the number of requests at once; decoding does not depend on lengths. */
static void figure_9(FILE *out) {
    static const uint32_t clients[] = {512, 1024, 2048, 4096, 8192, 12288};
    char key[64];
    for (uint32_t top_k = 1; top_k <= 2; top_k++) {
        for (size_t n = 0; n < SL_LEN(clients); n++) {
            for (int aep = 0; aep < 2; aep++) {
                setting s = {8,
                             top_k,
                             8,
                             1.0,
                             aep ? SL_SCHED_AEP : SL_SCHED_EP,
                             SL_POLICY_DEFRAG,
                             50,
                             250,
                             clients[n],
                             0,
                             10,
                             3};
                snprintf(key, sizeof key, "top-%u|%u|%s", top_k, clients[n], aep ? "aep" : "ep");
                simulate(out, "amoe9", key, &s);
            }
        }
    }
}

/* Twice the experts and devices, twice the requests. */
static void figure_10(FILE *out) {
    char key[64];
    for (uint32_t size = 8; size <= 16; size *= 2) {
        for (int aep = 0; aep < 2; aep++) {
            setting s = {size,
                         1,
                         size,
                         1.0,
                         aep ? SL_SCHED_AEP : SL_SCHED_EP,
                         SL_POLICY_DEFRAG,
                         50,
                         250,
                         size * 512,
                         0,
                         6,
                         3};
            snprintf(key, sizeof key, "%u|%s", size, aep ? "aep" : "ep");
            simulate(out, "amoe10", key, &s);
        }
    }
}

/* Policies with requests that arrive at the paper's rates; FLFS's completions lag (Figure 12). */
static void figures_11_and_12(FILE *out) {
    static const struct {
        const char *name;
        sl_policy policy;
    } policies[] = {{"defrag", SL_POLICY_DEFRAG},
                    {"mtfs", SL_POLICY_MTFS},
                    {"flfs", SL_POLICY_FLFS},
                    {"rmf", SL_POLICY_RMF}};
    static const double rates[] = {250, 150};
    char key[64];
    for (uint32_t top_k = 1; top_k <= 2; top_k++) {
        for (size_t i = 0; i < SL_LEN(policies); i++) {
            setting s = {
                8,  top_k, 8, 1.0, SL_SCHED_AEP, policies[i].policy, 50, 250, 0, rates[top_k - 1],
                10, 8};
            snprintf(key, sizeof key, "top-%u|%s", top_k, policies[i].name);
            simulate(out, "amoe11", key, &s);
        }
    }
}

void papers_amoe(FILE *out) {
    figure_4(out);
    figure_13(out);
    figure_9(out);
    figure_10(out);
    figures_11_and_12(out);
}
