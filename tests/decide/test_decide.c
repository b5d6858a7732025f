/* The same arrivals with the same times of stages and messages through the engine on a virtual
 * clock and through src/sim: every decision is the same, in the same order, at every worker and at
 * the coordinator (sched/watch.h says which there are), and those that know the time say the same
 * time. There is no exception: whatever is decided is compared.
 *
 * usage: test_decide MODEL_FOLDER FIRST_SEED COUNT [--cover] [--planted]
 *
 * A seed draws a deployment of one of the schedules, costs and a load; where the two sides part,
 * the first difference of each worker is printed with what stands around it. --cover fails unless
 * the seeds together met every situation of SITUATIONS. With --planted one time differs by a
 * microsecond on the simulator's side, and the run succeeds when every seed notices.
 *
 * What both sides have in common is not tested here: the rules of src/sched, by unit.sched_*. What
 * the simulator has no word for does not happen here either: clients that leave, workers that die,
 * tokens that end a request early (tests/sim has them). Stages take time one after the other, as on
 * the CPU. Ranks of gangs are threads: those of other processes are no part of a virtual clock. */
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "decide.h"
#include "format/placement.h"
#include "format/plan_json.h"
#include "model/skew.h"
#include "quant/wire_rows.h"
#include "sched/admit.h"
#include "spec/kv.h"
#include "stage/emulated/emulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REQUESTS 40u
#define CONTEXT      200u
#define HEAD_PIECES  (32u * 17u) /* their time is a whole number for every model here */

static uint32_t below(uint64_t *rng, uint32_t n) {
    return (uint32_t)sl_rng_below(rng, n);
}

/* ---- a seed ---- */

/* Parts of a microsecond are powers of two: sums of times are exact in any order. */
static double draw_part_us(uint64_t *rng) {
    return below(rng, 2) ? below(rng, 64) / 1024.0 : 0;
}

static sl_link_cost draw_link(uint64_t *rng) {
    return (sl_link_cost){.alpha_us = 1 + below(rng, 60),
                          .byte_us = draw_part_us(rng),
                          .half_bytes = below(rng, 2) ? 512 : 0};
}

static sl_stage_cost draw_stage(uint64_t *rng) {
    return (sl_stage_cost){.fixed_us = below(rng, 100), .row_us = below(rng, 20)};
}

static void draw_costs(uint64_t *rng, scene *x) {
    x->attention = (sl_costs){.link = draw_link(rng)};
    x->expert = (sl_costs){.link = draw_link(rng)};
    x->attention.link.half_duplex = x->expert.link.half_duplex = below(rng, 4) == 0;
    for (uint32_t i = 0; i < SL_COST_COUNT; i++)
        x->attention.stage[i] = x->expert.stage[i] = draw_stage(rng);
    x->attention.stage[SL_COST_ATTENTION].key_us = below(rng, 3);
    x->attention.stage[SL_COST_HEAD] = (sl_stage_cost){.row_us = HEAD_PIECES * below(rng, 3)};
    x->control_us = 1 + below(rng, 200);
}

/* Some experts have two hosts, which split their rows. */
static bool draw_replicas(uint64_t *rng, scene *x) {
    sl_plan *p = &x->plan;
    sl_share share[2 * SL_MAX_EXPERTS];
    uint32_t count[SL_MAX_EXPERTS], host[MAX_WORKERS], n = 0, n_hosts = 0;
    sl_err err;
    for (uint32_t i = 0; i < p->n_workers; i++)
        if (p->worker[i].roles & SL_ROLE_EXPERT) host[n_hosts++] = i;
    for (uint32_t e = 0; e < p->n_experts; e++) {
        uint32_t first = below(rng, n_hosts), second = below(rng, n_hosts);
        double part = (1 + below(rng, 9)) / 10.0;
        count[e] = first == second ? 1 : 2;
        share[n++] = (sl_share){host[first], first == second ? 1 : part};
        if (first != second) share[n++] = (sl_share){host[second], 1 - part};
    }
    if (sl_placement_set_shares(share, count, 1, p, &err) == SL_OK) return true;
    return printf("%s\n", err.msg), false;
}

/* What a schedule leaves open. */
static void draw_schedule(uint64_t *rng, scene *x, sl_schedule schedule) {
    sl_plan *p = &x->plan;
    sl_plan_set_schedule(p, schedule);
    if (p->lanes > 1) p->lanes = 2 + below(rng, 2);
    if (p->chunks > 1) p->chunks = 2 + below(rng, 3);
    if (schedule == SL_SCHED_FINDEP) p->chunking = (sl_chunking)below(rng, SL_CHUNKING_COUNT);
    p->order = (sl_order)below(rng, SL_ORDER_COUNT);
    p->policy = (sl_policy)below(rng, SL_POLICY_COUNT);
    p->lookahead = 1 + below(rng, 3);
    p->delta = below(rng, 2) ? 0.5 : 1;
    p->has_costs = (schedule == SL_SCHED_FINDEP || schedule == SL_SCHED_EPS) && below(rng, 2);
    p->costs = x->attention;
    p->exact |= p->chunking == SL_CHUNK_EXPERTS || schedule == SL_SCHED_AEP;
}

/* Nodes that are gangs, and from where on messages of rows go in stripes: from none of them on to
 * all. In half of the deployments each rank has the same card, else stripes come one by one. */
static void draw_rails(uint64_t *rng, scene *x) {
    sl_plan *p = &x->plan;
    const bool same = below(rng, 2);
    p->attention_tp = p->expert_tp = 2u << below(rng, 2);
    p->rank_kind = SL_RANKS_THREADS;
    for (uint32_t i = 0; i < SL_LEN(x->rail); i++) {
        x->rail[i] = same ? x->attention.link : draw_link(rng);
        x->rail[i].half_duplex = x->attention.link.half_duplex;
    }
    p->rail_bytes = below(rng, 4) ? 1u << below(rng, 13) : SL_PLAN_RAIL_BYTES;
}

/* Of models that have the block. A device that is modelled leaves nothing in pages, so that nobody
 * goes on with another one's. */
static void draw_guesses(uint64_t *rng, sl_plan *p) {
    p->speculate = (sl_speculate)(SL_SPECULATE_MTP + below(rng, 4));
    p->device = decide_device;
}

static bool draw_plan(uint64_t *rng, scene *x, sl_schedule schedule) {
    static const uint32_t apart[][2] = {{1, 1}, {1, 3}, {2, 2}, {3, 1}, {3, 2}};
    sl_plan *p = &x->plan;
    sl_err err;
    bool together = schedule == SL_SCHED_EP || schedule == SL_SCHED_EPS ||
                    schedule == SL_SCHED_HYBRID || below(rng, 4) == 0;
    const uint32_t *shape = apart[below(rng, SL_LEN(apart))];
    if (schedule == SL_SCHED_DEP) together = false;
    if (sl_plan_local(x->model, shape[0], together ? 0 : shape[1], p, &err) != SL_OK)
        return printf("%s\n", err.msg), false;
    uint32_t pages = sl_kv_pages_for(CONTEXT);
    p->threads = 1;
    p->context = CONTEXT;
    p->exact = below(rng, 2);
    p->wire = below(rng, SL_WIRE_FORMAT_COUNT);
    p->max_num_seqs = 1 + below(rng, 8);
    p->n_pages = below(rng, 3) ? p->max_num_seqs * pages : pages + below(rng, 3);
    p->prefill_stretch = 1 + 0.25 * below(rng, 8);
    if (x->model->n_mtp && below(rng, 4)) draw_guesses(rng, p);
    draw_schedule(rng, x, schedule);
    if (schedule == SL_SCHED_HYBRID) draw_rails(rng, x);
    const bool resolves = schedule == SL_SCHED_EPS || (schedule == SL_SCHED_FINDEP && !together);
    if (resolves && below(rng, 4)) p->resolve = 1 + below(rng, 6);
    p->max_num_batched_tokens = 8 * p->lanes + below(rng, 60);
    if (p->exact && below(rng, 2) && !draw_replicas(rng, x)) return false;
    if (sl_plan_check(p, x->model, &err) == SL_OK) return true;
    return printf("%s\n", err.msg), false;
}

static bool draw_load(uint64_t *rng, scene *x) {
    uint64_t at = 0;
    x->n = 1 + below(rng, MAX_REQUESTS);
    x->arrival = sl_alloc(x->n, sizeof *x->arrival);
    x->token = sl_alloc(x->n, sizeof *x->token);
    bool ok = x->arrival && x->token;
    for (uint32_t i = 0; ok && i < x->n; i++) {
        sl_trace_request *t = &x->arrival[i];
        *t = (sl_trace_request){.at_us = at,
                                .input = 1 + below(rng, CONTEXT / 2),
                                .output = 1 + below(rng, CONTEXT / 2)};
        x->token[i] = sl_alloc(t->input + t->output, sizeof **x->token);
        ok = x->token[i] != NULL;
        at += below(rng, 2) ? below(rng, 5000) : 0;
    }
    return ok;
}

static void free_scene(scene *x) {
    for (uint32_t i = 0; x->token && i < x->n; i++) sl_free(x->token[i]);
    sl_free(x->token);
    sl_free(x->arrival);
    sl_plan_free(&x->plan);
}

/* ---- the simulator's run ---- */

typedef struct routes {
    const scene *x;
    sl_skew *skew;
} routes;

/* What the block guesses behind token `id` at `pos`. */
static uint32_t guess(const routes *r, uint32_t id, uint32_t pos) {
    return sl_emulated_follows(&decide_device, r->x->model->vocab, id, pos);
}

/* As the emulated device routes a row. */
static uint32_t route(void *ctx, uint64_t request, uint32_t position, uint32_t known, uint32_t moe,
                      uint32_t *expert) {
    const routes *r = ctx;
    float gate[SL_MAX_TOP_K];
    uint32_t id = r->x->token[request][SL_MIN(position, known - 1)];
    for (uint32_t pos = known; pos <= position; pos++) id = guess(r, id, pos - 1);
    sl_skew_draw(r->skew, id, position, moe, expert, gate);
    return sl_plan_row_key(id, position, moe);
}

/* As its block guesses. */
static bool guesses_right(void *ctx, uint64_t request, uint32_t position) {
    const routes *r = ctx;
    const uint32_t *id = r->x->token[request];
    return id[position] == guess(r, id[position - 1], position - 1);
}

static bool simulate(const scene *x, decisions *log) {
    static const sl_route_skew even = {.on = true};
    sl_watch watch[MAX_WORKERS + 1];
    sl_err err;
    sl_sim_result result;
    routes r = {.x = x};
    const sl_workload load = {
        .arrival = {.kind = SL_ARRIVAL_TRACE, .speed = 1}, .trace = x->arrival, .n_trace = x->n};
    for (uint32_t i = 0; i <= x->plan.n_workers; i++) watch[i] = (sl_watch){decisions_saw, &log[i]};
    const sl_sim_setup setup = {
        .model = x->model,
        .plan = &x->plan,
        .attention = &x->attention,
        .expert = &x->expert,
        .rail_link = x->rail,
        .row_bytes = sl_wire_row_bytes((sl_wire_format)x->plan.wire, x->model->d_model),
        .control_us = x->control_us,
        .load = &load,
        .route = route,
        .guess = guesses_right,
        .route_ctx = &r,
        .watch = watch};
    sl_status st = sl_skew_create(&even, x->model, &r.skew, &err);
    if (st == SL_OK) st = sl_sim_run(&setup, &result, &err);
    if (st == SL_OK)
        sl_sim_result_free(&result);
    else
        printf("the simulator's run: %s\n", err.msg);
    sl_skew_free(r.skew);
    return st == SL_OK;
}

/* ---- both ---- */

/* What a run of seeds must have met, each at least once. */
#define SITUATIONS(X)                                                                              \
    X(colocated)                                                                                   \
    X(apart)                                                                                       \
    X(several_of_both)                                                                             \
    X(replicas)                                                                                    \
    X(half_duplex)                                                                                 \
    X(gangs_on_nodes)                                                                              \
    X(message_in_stripes)                                                                          \
    X(no_message_in_stripes)                                                                       \
    X(page_grew)                                                                                   \
    X(preempted)                                                                                   \
    X(started_again)                                                                               \
    X(prompt_in_chunks)                                                                            \
    X(prompt_beside_decoding)                                                                      \
    X(step_without_rows)                                                                           \
    X(step_in_some_of_its_chunks)                                                                  \
    X(lanes_chosen_anew)                                                                           \
    X(order_chosen_anew)                                                                           \
    X(chunks_chosen_anew)                                                                          \
    X(groups_chosen_anew)                                                                          \
    X(other_chunking_chosen)                                                                       \
    X(request_to_another_lane)                                                                     \
    X(head_in_pieces)                                                                              \
    X(task_of_several_members)                                                                     \
    X(task_of_some_members)                                                                        \
    X(batch_of_several_requests)                                                                   \
    X(batch_of_several_experts)                                                                    \
    X(defrag)                                                                                      \
    X(mtfs)                                                                                        \
    X(flfs)                                                                                        \
    X(rmf)

typedef enum situation {
#define SITUATION(name) MET_##name,
    SITUATIONS(SITUATION) SITUATIONS_N
#undef SITUATION
} situation;

static uint64_t met[SITUATIONS_N], n_decisions;

/* After the engine's run. */
static void note_scene(const scene *x) {
    const sl_plan *p = &x->plan;
    uint32_t attention = 0, both = 0;
    for (uint32_t i = 0; i < p->n_workers; i++) {
        attention += (p->worker[i].roles & SL_ROLE_ATTENTION) != 0;
        both += p->worker[i].roles == (SL_ROLE_ATTENTION | SL_ROLE_EXPERT);
    }
    met[both ? MET_colocated : MET_apart]++;
    met[MET_several_of_both] += !both && attention > 1 && p->n_workers > attention + 1;
    met[MET_replicas] += p->place.first[p->n_experts] > p->n_experts;
    met[MET_half_duplex] += x->attention.link.half_duplex;
    if (p->schedule == SL_SCHED_HYBRID) {
        met[MET_gangs_on_nodes]++;
        met[MET_message_in_stripes] += x->striped;
        met[MET_no_message_in_stripes] += x->striped == 0;
    }
    if (p->schedule == SL_SCHED_AEP) met[MET_defrag + (uint32_t)p->policy]++;
}

static void note_decision(const scene *x, const sl_decision *d) {
    const uint64_t *v = d->value;
    n_decisions++;
    switch (d->kind) {
    case SL_DECISION_ADMIT:
        met[MET_page_grew] += v[1] == SL_ADMIT_PAGE;
        met[MET_preempted] += v[1] == SL_ADMIT_PREEMPT;
        met[MET_started_again] += v[1] == SL_ADMIT_START && v[5] > 1;
        break;
    case SL_DECISION_STEP:
        met[MET_step_without_rows] += v[2] == 0;
        met[MET_prompt_beside_decoding] += v[3] > 0 && v[2] > v[3];
        met[MET_step_in_some_of_its_chunks] += v[2] > 0 && v[5] < x->plan.chunks;
        break;
    case SL_DECISION_STEP_PART:
        met[MET_prompt_in_chunks] += v[1] > 0 && v[2] > 1;
        break;
    case SL_DECISION_MOVE:
        met[MET_request_to_another_lane]++;
        break;
    case SL_DECISION_CHOICE:
        met[MET_lanes_chosen_anew] += v[1] == 0 && v[2] != x->plan.lanes;
        met[MET_order_chosen_anew] += v[1] == 0 && v[4] != (uint64_t)x->plan.order;
        met[MET_chunks_chosen_anew] += v[1] > 0 && x->plan.schedule == SL_SCHED_FINDEP;
        met[MET_groups_chosen_anew] += v[1] > 0 && x->plan.schedule == SL_SCHED_EPS;
        met[MET_other_chunking_chosen] += v[1] > 0 && v[5] != (uint64_t)x->plan.chunking;
        break;
    case SL_DECISION_HEAD:
        met[MET_head_in_pieces] += v[2] > 0;
        break;
    case SL_DECISION_TASK:
        met[MET_task_of_several_members] += v[4] > 1;
        met[MET_task_of_some_members] += v[4] == 1 && x->plan.n_workers > 2;
        break;
    case SL_DECISION_BATCH:
        met[MET_batch_of_several_requests] += v[1] > 1;
        break;
    case SL_DECISION_QUEUE:
        met[MET_batch_of_several_experts] += v[1] > 1;
        break;
    default:
        break;
    }
}

static bool print_met(bool demand) {
    static const char *const names[] = {
#define NAME(name) #name,
        SITUATIONS(NAME)
#undef NAME
    };
    bool ok = true;
    for (int i = 0; i < SITUATIONS_N; i++) {
        printf("%9llu times: %s%s\n", (unsigned long long)met[i], names[i],
               met[i] ? "" : " (NEVER)");
        ok = ok && met[i] > 0;
    }
    return ok || !demand;
}

static bool compare(const scene *x, const decisions *engine, const decisions *simulator,
                    bool quiet) {
    bool ok = true;
    uint32_t n = x->plan.n_workers;
    for (uint32_t i = 0; i <= n; i++) {
        char who[40];
        snprintf(who, sizeof who, i < n ? "worker %u" : "the coordinator", i);
        for (size_t j = 0; j < engine[i].n; j++) note_decision(x, &engine[i].of[j]);
        ok = decisions_equal(&engine[i], &simulator[i], quiet ? NULL : who) && ok;
    }
    return ok;
}

static void print_scene(const scene *x, uint64_t seed) {
    const sl_plan *p = &x->plan;
    printf("seed %llu: %s, workers", (unsigned long long)seed, sl_schedule_name(p->schedule));
    for (uint32_t i = 0; i < p->n_workers; i++) printf(" %u", p->worker[i].roles);
    if (p->schedule == SL_SCHED_HYBRID)
        printf(" of %u ranks, stripes from %u bytes on", sl_plan_rails(p), p->rail_bytes);
    printf(", %u lanes, %u chunks, order %d, policy %d, wire %u%s%s, resolve %u, %u seqs, %u rows, "
           "%u pages, "
           "links of %g us and %g a byte, %g and %g%s, control %g us, %u requests\n",
           p->lanes, p->chunks, (int)p->order, (int)p->policy, p->wire, p->exact ? ", exact" : "",
           p->has_costs ? ", cuts online" : "", p->resolve, p->max_num_seqs,
           p->max_num_batched_tokens, p->n_pages, x->attention.link.alpha_us,
           x->attention.link.byte_us, x->expert.link.alpha_us, x->expert.link.byte_us,
           x->attention.link.half_duplex ? ", half duplex" : "", x->control_us, x->n);
}

/* planted: the simulator is given one time that differs by a microsecond. */
static bool run_seed(const char *folder, const sl_model_spec *m, uint64_t seed, bool planted) {
    static decisions engine[MAX_WORKERS + 1], simulator[MAX_WORKERS + 1];
    uint64_t rng = seed * 7919;
    scene x = {.folder = folder, .model = m};
    draw_costs(&rng, &x);
    bool ok = draw_plan(&rng, &x, (sl_schedule)(seed % SL_SCHED_COUNT)) && draw_load(&rng, &x) &&
              world_run(&x, engine);
    if (ok) note_scene(&x);
    if (planted) x.control_us += 1;
    ok = ok && simulate(&x, simulator) && compare(&x, engine, simulator, planted);
    if (!ok && !planted) print_scene(&x, seed);
    for (uint32_t i = 0; i <= MAX_WORKERS; i++) {
        decisions_free(&engine[i]);
        decisions_free(&simulator[i]);
    }
    free_scene(&x);
    return ok;
}

int main(int argc, char **argv) {
    static sl_model_spec m;
    sl_err err;
    bool cover = false, planted = false;
    if (argc < 4) return fprintf(stderr, "usage: test_decide MODEL FIRST_SEED COUNT ...\n"), 2;
    for (int i = 4; i < argc; i++) {
        cover = cover || strcmp(argv[i], "--cover") == 0;
        planted = planted || strcmp(argv[i], "--planted") == 0;
    }
    uint64_t first = strtoull(argv[2], NULL, 10), count = strtoull(argv[3], NULL, 10), bad = 0;
    sl_log_set_level(SL_LOG_ERROR);
    if (sl_model_read_spec(argv[1], &m, NULL, &err) != SL_OK) return printf("%s\n", err.msg), 2;
    for (uint64_t seed = first; seed < first + count; seed++)
        bad += !run_seed(argv[1], &m, seed, planted);
    bool covered = print_met(cover);
    printf("%llu seeds, %llu decisions of the engine, %llu seeds differ\n",
           (unsigned long long)count, (unsigned long long)n_decisions, (unsigned long long)bad);
    return planted ? bad != count : bad != 0 || !covered;
}
