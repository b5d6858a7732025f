/* The law: with exact numerics, ids and logits are the same bits for every schedule, worker count,
 * transport, arrival order and batch, and whatever pages of KV are there already.
 *
 * usage: test_law loop|shm|tcp SLUICE GOLDEN_FOLDER [SEED [ONE_IN [deferred|many|cuda|rows|exact]]]
 * For every fixture and wire format, and activations and types of KV that vary among these,
 * requests run alone in one process with one thread; then the same requests run all at once on each
 * deployment with each schedule that fits it, with random lanes, chunks, step sizes, pages, threads
 * and (loop) delays, and once more with the pages that the first ones have left, as far as these
 * were not wanted. With `deferred`, over loop only, their stages are computed by a device that
 * takes its time (deferred.h). With `many`, one fixture and one wire format run on a deployment of
 * 72 workers. With `cuda`, workers drawn at random are on GPU 0, with numerics cpu, and nothing
 * that GPUs exclude is drawn: one process and one thread of the CPU stays the reference. With
 * `rows`, these are on GPUs 0 and 1, if there are two, and rows between them stay there, some of
 * them at least. With
 * `exact`, all workers are on it, with numerics exact, and so is the reference; one more model has
 * heads that the kernels of attention take. */
#include "base/mem.h"
#include "base/rng.h"
#include "law_tally.h"
#include "rank_servers.h"
#include "deferred.h"
#include "engine/coord/engine.h"
#include "format/placement.h"
#include "format/plan_json.h"
#include "format/plan_sides.h"
#include "model/model.h"
#include "net/net.h"
#include "stage/cuda.h"
#include "stage/gang.h"
#include "kernel/slots.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ENOUGH_TO_CACHE 20u /* deployments: so many have some cached rows for certain */
#define N_REQUESTS      6u
#define N_NEW           12u
#define N_TOP           3u
#define N_SCORED        2u
#define N_REPORTED      (1 + N_TOP + N_SCORED)
#define MOST            192u /* positions of a request */
#define DEADLINE_S      60

typedef struct request {
    uint32_t prompt[160], n_prompt;
    sl_sampling sampling;
    sl_logit_bias bias[2];
    bool reports; /* log-probabilities, of the prompt too */
} request;

typedef struct outcome {
    uint32_t ids[N_NEW], n;
    float *logits;        /* [n_prompt + N_NEW - 1][vocab] */
    sl_logprob *reported; /* [positions][N_REPORTED]: row i is about the token at i + 1 */
    uint32_t vocab, positions;
    uint32_t n_found; /* tokens of the prompt whose rows were there */
    sl_finish finish;
    char message[160];
} outcome;

#define MANY_OF    "qwen3moe-tiny"
#define WIDE_HEADS "heads-of-64" /* a folder beside this file */

static const struct {
    const char *name;
    uint32_t attention, experts;
} deployments[] = {
    {"1 process", 0, 0}, {"1+1", 1, 1},         {"1+3", 1, 3},
    {"2+2", 2, 2},       {"3 colocated", 3, 0}, {"64+8", 64, 8} /* of `many` */,
};
#define N_FEW (SL_LEN(deployments) - 1)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint32_t n_open;
static uint64_t encrypts = 1; /* what is drawn beside everything else: which are encrypted */
static uint64_t sides = 1;    /* the same: where prompts are computed apart */
static uint64_t n_found;      /* tokens that were cached, of all deployments, */
static uint32_t n_ran;        /* and how many these were */
static const char *program, *transport;
static uint64_t seed = 1;
static uint32_t one_in = 1;    /* slow builds run a draw of the schedules: one in so many */
static bool skewed;            /* experts are drawn instead of routed */
static bool segmented;         /* sums in segments */
static deferred_maker devices; /* seed 0: the CPU computes */
static bool many;
static bool windows; /* workers put rows into each other's memory... */
static bool far;     /* ...or of their GPUs, so many */
static uint32_t n_gpus = 1;
static uint64_t n_put;             /* so many messages or bytes at least, of all deployments */
static bool gpus;                  /* some workers are on GPU 0; */
static bool of_gpu;                /* all of them are, with numerics exact */
static sl_activations activations; /* of a fixture's reference and all its deployments, */
static sl_kv_type kv_type;         /* and so is this */

static void on_event(void *ctx, const sl_request_event *ev) {
    outcome *o = ctx;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < ev->n && o->n < N_NEW; i++) {
        uint32_t at = ev->prompt_position ? ev->prompt_position - 1 : o->positions - N_NEW + o->n;
        if (ev->logprobs)
            memcpy(o->reported + (size_t)at * N_REPORTED, ev->logprobs + (size_t)i * N_REPORTED,
                   N_REPORTED * sizeof *o->reported);
        if (!ev->prompt_position) o->ids[o->n++] = ev->tokens[i];
    }
    if (ev->finish != SL_FINISH_NONE) {
        o->finish = ev->finish;
        o->n_found = ev->n_found;
        snprintf(o->message, sizeof o->message, "%s", ev->message ? ev->message : "");
        n_open--;
        pthread_cond_signal(&changed);
    }
    pthread_mutex_unlock(&lock);
}

static void on_logits(void *ctx, uint64_t first, uint32_t n, const float *logits) {
    outcome *o = ctx;
    for (uint32_t i = 0; i < n && first + i < o->positions; i++)
        memcpy(o->logits + (first + i) * o->vocab, logits + (size_t)i * o->vocab,
               o->vocab * sizeof *logits);
}

/* A quarter of the vocabulary, of which no token stands twice in a row. */
static void exclude(sl_sampling *s, uint32_t vocab) {
    static uint32_t allowed[SL_MAX_VOCAB / 32], bad[3 * SL_MAX_BAD_WORDS];
    memset(allowed, 0, sl_id_words(vocab) * sizeof *allowed);
    s->n_bad = 0;
    for (uint32_t id = 2; id < vocab; id += 4) {
        allowed[id / 32] |= 1u << id % 32;
        if (s->n_bad + 3 > SL_LEN(bad)) continue;
        bad[s->n_bad++] = 2;
        bad[s->n_bad++] = id;
        bad[s->n_bad++] = id;
    }
    s->n_allowed = sl_id_words(vocab);
    s->allowed = allowed;
    s->bad = bad;
}

static void make_requests(request *r, uint32_t vocab, uint64_t *state) {
    static const uint32_t lengths[N_REQUESTS] = {1, 3, 33, 64, 97, 150};
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        r[i].n_prompt = lengths[i];
        for (uint32_t j = 0; j < r[i].n_prompt; j++)
            r[i].prompt[j] = (uint32_t)sl_rng_below(state, vocab);
        for (uint32_t j = 7; i % 3 && j < r[i].n_prompt; j++) /* what it says next can be guessed */
            r[i].prompt[j] = r[i].prompt[j % 7];
        r[i].sampling = (sl_sampling){.top_p = 1};
        if (i % 2)
            r[i].sampling = (sl_sampling){
                .temperature = 0.9f, .top_p = 0.95f, .top_k = 40, .seed = sl_rng_next(state)};
        r[i].bias[0] = (sl_logit_bias){3, 1.5f};
        r[i].bias[1] = (sl_logit_bias){(uint32_t)sl_rng_below(state, vocab - 4) + 4, -2};
        r[i].reports = i < 4;
        if (i < 2) continue;
        r[i].sampling.presence_penalty = 0.5f;
        r[i].sampling.frequency_penalty = 0.25f;
        r[i].sampling.repetition_penalty = 1.125f;
        r[i].sampling.min_p = 0.001f;
        r[i].sampling.bias = r[i].bias;
        r[i].sampling.n_bias = 2;
        if (i >= 4) exclude(&r[i].sampling, vocab);
    }
}

/* COLD: all rows are computed; WARM: but those that are there. */
typedef enum caching { ALONE, COLD, WARM } caching;

static const uint32_t scored[N_SCORED] = {5, 3};

static int submit(sl_engine *e, const request *r, caching how, outcome *o) {
    sl_err err;
    uint64_t id;
    const sl_request_params p = {
        .prompt = r->prompt,
        .n_prompt = r->n_prompt,
        .max_tokens = N_NEW,
        .sampling = r->sampling,
        .ignore_eos = true,
        .logprobs = r->reports,
        .prompt_logprobs = r->reports && how != WARM,
        .report = {r->reports ? N_TOP : 0, r->reports ? N_SCORED : 0, scored},
        .on_event = on_event,
        .on_logits = how == WARM ? NULL : on_logits,
        .shares = how != ALONE,
        .ctx = o};
    pthread_mutex_lock(&lock);
    n_open++;
    pthread_mutex_unlock(&lock);
    if (sl_engine_submit(e, &p, &id, &err) == SL_OK) return 0;
    printf("submit: %s\n", err.msg);
    return 1;
}

static int await_all(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += DEADLINE_S;
    int rc = 0;
    pthread_mutex_lock(&lock);
    while (n_open > 0 && rc == 0) rc = pthread_cond_timedwait(&changed, &lock, &until);
    if (rc) printf("%u requests not finished after %d s\n", n_open, DEADLINE_S);
    pthread_mutex_unlock(&lock);
    return rc != 0;
}

/* The k-th schedule of a deployment, with its parts drawn; false: there is no k-th. */
static bool vary_schedule(sl_plan *p, uint32_t k, uint64_t *state) {
    static uint32_t orders; /* both in every fixture */
    if (k < 3) p->order = (sl_order)(orders++ / 3 % SL_ORDER_COUNT);
    if (k == 0) return true; /* ep or dep */
    if (k == 1) sl_plan_set_schedule(p, SL_SCHED_PINGPONG);
    if (k == 2) sl_plan_set_schedule(p, SL_SCHED_FINDEP);
    if (k == 3) {
        static uint32_t turn; /* each policy in every fixture */
        sl_plan_set_schedule(p, SL_SCHED_AEP);
        p->policy = (sl_policy)(turn++ % SL_POLICY_COUNT);
        p->lookahead = (uint32_t)sl_rng_below(state, 8);
        p->delta = sl_rng_below(state, 2) ? 1 : 0.9;
        return true;
    }
    if (k == 5 && p->schedule == SL_SCHED_EP && !gpus) {
        sl_plan_set_schedule(p, SL_SCHED_HYBRID);
        p->rail_bytes = 1 + (uint32_t)sl_rng_below(state, 3) * 2000;
        return true;
    }
    if (k == 4 && p->schedule == SL_SCHED_EP)
        sl_plan_set_schedule(p, SL_SCHED_EPS);
    else if (k > 3)
        return false;
    p->lanes = 2 + (uint32_t)sl_rng_below(state, 3);
    if (k == 1) return true;
    p->lanes -= (uint32_t)sl_rng_below(state, 2);
    if (k == 4) p->lanes = 1;
    p->chunks = 2 + (uint32_t)sl_rng_below(state, 3);
    if (k == 2) p->chunking = (sl_chunking)sl_rng_below(state, SL_CHUNKING_COUNT);
    if ((k == 2 || k == 4) && sl_rng_below(state, 2)) { /* steps choose their chunks by these */
        p->has_costs = true;
        p->costs.stage[SL_COST_ATTENTION].row_us = 10;
        p->costs.stage[SL_COST_EXPERT].row_us = 5;
        p->costs.stage[SL_COST_EXPERT].floor_us = (double)sl_rng_below(state, 50);
        p->costs.link = (sl_link_cost){.alpha_us = 1, .byte_us = 0.05};
    }
    if (k == 4) p->order = (sl_order)sl_rng_below(state, SL_ORDER_COUNT);
    return true;
}

/* Few where they would be many on few cores. */
static uint32_t draw_ranks(uint32_t n_workers, uint64_t *state) {
    static const uint32_t of[] = {1, 1, 2, 2, 4, 8};
    uint32_t n = of[sl_rng_below(state, SL_LEN(of))];
    return n_workers > 2 ? SL_MIN(n, 2u) : n;
}

/* Two to four ranks by blocks, a third of them machines; a third of the others gangs. */
static void vary_pipeline(sl_plan *p, uint32_t n_layers, uint64_t *state) {
    p->pp = 2;
    if (p->n_workers < 3 && n_layers > 2)
        p->pp += (uint32_t)sl_rng_below(state, SL_MIN(n_layers, 4u) - 1);
    p->rank_kind = sl_rng_below(state, 3) ? SL_RANKS_THREADS : SL_RANKS_MACHINES;
    if (p->rank_kind == SL_RANKS_THREADS && sl_rng_below(state, 3) == 0)
        p->attention_tp = p->expert_tp = 2;
}

/* A third of the gangs of hybrid (three, as the deployment has that is colocated: messages of one
 * are gathered before those of another) are of machines, a sixth of the others, each rank of which
 * is a program that has to start, but not of as many workers as `many` has; one deployment in four
 * has pipelines. */
static void draw_gangs(sl_plan *p, uint32_t n_layers, uint64_t *state) {
    if (p->schedule == SL_SCHED_HYBRID) {
        p->attention_tp = p->expert_tp = sl_rng_below(state, 4) ? 2 : 4;
        p->rank_kind = (sl_rank_kind)sl_rng_below(state, SL_RANK_KIND_COUNT);
        return;
    }
    if (!devices.seed && sl_rng_below(state, 4) == 0) {
        vary_pipeline(p, n_layers, state);
        return;
    }
    p->attention_tp = draw_ranks(p->n_workers, state);
    p->expert_tp = draw_ranks(p->n_workers, state);
    if (p->worker[0].roles & SL_ROLE_EXPERT) p->expert_tp = p->attention_tp;
    static const sl_rank_kind kinds[] = {SL_RANKS_THREADS,   SL_RANKS_PROCESSES, SL_RANKS_THREADS,
                                         SL_RANKS_PROCESSES, SL_RANKS_PROCESSES, SL_RANKS_MACHINES};
    p->rank_kind = kinds[sl_rng_below(state, SL_LEN(kinds))];
}

static void vary_ranks(sl_plan *p, uint32_t n_layers, uint64_t *state) {
    draw_gangs(p, n_layers, state);
    if (many && p->rank_kind == SL_RANKS_MACHINES) p->rank_kind = SL_RANKS_THREADS;
}

/* Three of four that can choose lanes, chunks, order or groups anew do so, as often as can be. */
static void vary_resolve(sl_plan *p, uint64_t *state) {
    const bool apart = !(p->worker[0].roles & SL_ROLE_EXPERT);
    const bool can = p->schedule == SL_SCHED_EPS || (p->schedule == SL_SCHED_FINDEP && apart);
    if (can && sl_plan_pipeline(p) == 1 && sl_rng_below(state, 4))
        p->resolve = 1 + (uint32_t)sl_rng_below(state, 2);
}

static void set_devices(sl_plan *p) {
    sl_err err;
    p->device.numerics = SL_NUMERICS_EXACT;
    if (sl_cuda_kind(0, p->device.gpu_kind, &err) != SL_OK) printf("FAILED %s\n", err.msg);
    for (uint32_t i = 0; i < p->n_workers; i++) p->worker[i].on_gpu = true;
}

/* Some of those that have experts on a GPU keep these in the machine's memory. */
static void vary_offload(sl_plan *p, uint64_t *state) {
    for (uint32_t i = 0; i < p->n_workers; i++)
        p->worker[i].offload = p->worker[i].on_gpu && (p->worker[i].roles & SL_ROLE_EXPERT) &&
                               sl_rng_below(state, 3) == 0;
}

/* One of them at least. */
static void vary_devices(sl_plan *p, uint64_t *state) {
    p->device.numerics = SL_NUMERICS_CPU;
    for (uint32_t i = 0; i < p->n_workers; i++) p->worker[i].on_gpu = sl_rng_below(state, 3) > 0;
    p->worker[sl_rng_below(state, p->n_workers)].on_gpu = true;
    for (uint32_t i = 0; far && i < p->n_workers; i++)
        p->worker[i].gpu = (uint32_t)sl_rng_below(state, n_gpus);
}

/* Of a model that has a block of its own for them, that guesses in half of the cases, alone or
 * beside what is looked up. */
static void vary_guesses(sl_plan *p, const sl_model_spec *m, uint64_t *state) {
    if (!p->speculate || !m->n_mtp) return;
    const uint64_t how = sl_rng_below(state, 4);
    if (how < 2) p->speculate = how ? SL_SPECULATE_BOTH_ALWAYS : SL_SPECULATE_MTP_ALWAYS;
}

/* Each expert of each block at one or two of the expert workers, which are the last ones. */
static sl_status vary_placement(sl_plan *p, const sl_model_spec *m, uint32_t first, uint64_t *state,
                                sl_err *err) {
    uint32_t entries = m->n_moe * m->n_experts, n_hosts = p->n_workers - first, n = 0;
    sl_share *share = sl_alloc(entries, 2 * sizeof *share);
    uint32_t *count = sl_alloc(entries, sizeof *count);
    if (!share || !count) abort();
    for (uint32_t i = 0; i < entries; i++) {
        uint32_t a = (uint32_t)sl_rng_below(state, n_hosts);
        uint32_t b = (uint32_t)sl_rng_below(state, n_hosts);
        count[i] = a == b ? 1 : 2;
        share[n++] = (sl_share){first + a, 0.375};
        if (a != b) share[n++] = (sl_share){first + b, 0.625};
    }
    sl_placement_free(&p->place);
    sl_status st = sl_placement_of_shares(share, count, m->n_moe, m->n_experts, &p->place, err);
    sl_free(share);
    sl_free(count);
    return st;
}

/* Every third deployment computes with a mix of the tables that run here; ref only in kernels of
 * vectors, as its products would take long. */
static const char *vary_kernels(void) {
    static char spec[4][SL_KERNELS_SPEC_MAX];
    static uint32_t turn;
    uint32_t i = turn++;
    if (i % 3) return NULL;
    char *out = spec[i / 3 % SL_LEN(spec)];
    uint8_t from[SL_SLOTS];
    uint64_t rng = seed + i;
    sl_slot slot;
    const char *name = sl_kernels_name(sl_kernels_base());
    const size_t base = sl_table_find(name, strlen(name));
    bool can;
    for (uint32_t s = 0; s < SL_SLOTS; s++) {
        size_t at, tries = 0;
        sl_slot_at(s, &slot);
        do /* the base stands for what only ref has */
            at = tries++ < 50 ? (size_t)sl_rng_below(&rng, SL_TABLES_MAX) : base;
        while (at != base &&
               (!sl_kernels_at(at, &can) || !can || !sl_table_has(at, s) ||
                (sl_kernels_at(at, NULL) == &sl_kernels_ref && slot.per != SL_PER_ONE)));
        from[s] = (uint8_t)at;
    }
    if (!out[0]) sl_kernels_spec(from, out);
    return out;
}

/* One deployment in four hands prompts over: those of more than a page, if they are not cached. */
static sl_status vary_sides(sl_plan *p, sl_err *err) {
    const bool together = p->worker[0].roles & SL_ROLE_EXPERT;
    if (sl_rng_below(&sides, 4) || many || p->rank_kind == SL_RANKS_MACHINES) return SL_OK;
    const uint32_t n = 1 + (uint32_t)sl_rng_below(&sides, 2);
    const bool alone = p->schedule != SL_SCHED_AEP || sl_rng_below(&sides, 2);
    p->prefill_rows = 1 + (uint32_t)sl_rng_below(&sides, 70);
    const bool both = alone && !together && p->rank_kind == SL_RANKS_THREADS &&
                      !sl_plan_has_gangs(p) && sl_plan_pipeline(p) == 1 && sl_rng_below(&sides, 2);
    return sl_plan_add_prefill(n, together || !alone || both ? 0 : 3 - n, both, p, err);
}

/* *count: where a deployment of that kind is counted. */
static sl_status start(const char *folder, const sl_model_spec *m, uint32_t attention,
                       uint32_t experts, uint32_t k, uint32_t wire, const char *how,
                       uint64_t *state, uint32_t **count, char *schedule, size_t n, sl_engine **e,
                       sl_err *err) {
    static const char *const kinds[SL_RANK_KIND_COUNT] = {"threads", "processes", "machines"};
    const sl_route_skew skew = {.on = skewed, .permuted = true, .theta = 0.6, .seed = seed};
    sl_engine_opts o = {.model_folder = folder,
                        .transport = how,
                        .spawn = strcmp(how, "loop") ? SL_SPAWN_PROCESSES : SL_SPAWN_THREADS,
                        .host = "127.0.0.1",
                        .program = program,
                        .secret = {(const uint8_t *)RANK_SECRET, strlen(RANK_SECRET)},
                        .join_timeout_s = DEADLINE_S};
    if (state && sl_rng_below(&encrypts, 2)) o.encrypt = SL_NET_WHEN_ON; /* over tcp and ucx */
    o.windows = windows && state;
    sl_status st = sl_plan_local(m, attention, experts, &o.plan, err);
    if (st != SL_OK) return st;
    o.plan.exact = true;
    o.plan.segments = segmented;
    o.plan.wire = wire;
    o.plan.activations = activations;
    o.plan.kv_type = kv_type;
    o.plan.threads = 1;
    o.plan.skew = skew;
    if (of_gpu) set_devices(&o.plan);
    if (state) { /* a varied deployment; the reference keeps the defaults */
        o.plan.max_num_batched_tokens = 5 + (uint32_t)sl_rng_below(state, 60);
        o.plan.max_num_seqs = 2 + (uint32_t)sl_rng_below(state, 6);
        o.plan.context = MOST;
        o.plan.n_pages = sl_kv_pages_for(MOST) * (1 + (uint32_t)sl_rng_below(state, 4));
        o.plan.threads = 1 + (uint32_t)sl_rng_below(state, 2);
        o.plan.pump = sl_rng_below(state, 4) == 0;
        if (sl_rng_below(state, 2)) o.plan.speculate = SL_SPECULATE_ALWAYS;
        o.delay_seed = sl_rng_next(state) | 1;
        o.delay_us = (uint32_t)sl_rng_below(state, 3) * 150;
        o.isa = vary_kernels();
        if (devices.seed) o.device = (sl_device_maker){deferred_open, &devices};
        if (!vary_schedule(&o.plan, k, state)) st = SL_ERR_NOTFOUND;
        if (m->n_linear && o.plan.schedule == SL_SCHED_HYBRID) /* which is of ranks */
            o.plan.schedule = o.plan.worker[0].roles & SL_ROLE_EXPERT ? SL_SCHED_EP : SL_SCHED_DEP;
        if (!gpus) vary_guesses(&o.plan, m, state);
        if (!gpus && !m->n_linear) vary_ranks(&o.plan, m->n_layers, state); /* states are not cut */
        if (gpus && !of_gpu) vary_devices(&o.plan, state);
        if (gpus) vary_offload(&o.plan, state);
        vary_resolve(&o.plan, state);
        if (st == SL_OK && experts > 1) st = vary_placement(&o.plan, m, attention, state, err);
        if (st == SL_OK && !devices.seed && !m->n_linear) st = vary_sides(&o.plan, err);
    }
    *count = &law_tally[o.plan.schedule][law_ranks_of(&o.plan)];
    snprintf(schedule, n, "%s %s, %u lanes, %u chunks of %s", sl_schedule_name(o.plan.schedule),
             o.plan.order == SL_ORDER_ASAS ? "asas" : "aass", o.plan.lanes, o.plan.chunks,
             o.plan.chunking == SL_CHUNK_TOKENS ? "tokens" : "experts");
    if (o.plan.resolve) snprintf(schedule + strlen(schedule), n - strlen(schedule), ", resolved");
    if (o.plan.schedule == SL_SCHED_AEP)
        snprintf(schedule, n, "aep, %s", sl_policy_names[o.plan.policy]);
    size_t used = strlen(schedule);
    if (sl_plan_has_prefill(&o.plan))
        used += (size_t)snprintf(schedule + used, n - used, ", prompts of %u apart%s",
                                 o.plan.prefill_rows,
                                 sl_plan_sides_apart(&o.plan) ? "" : ", same experts");
    if (!gpus)
        snprintf(schedule + used, n - used, ", tp %u and %u, pp %u, %s%s%s",
                 sl_plan_ranks(&o.plan, SL_ROLE_ATTENTION), sl_plan_ranks(&o.plan, SL_ROLE_EXPERT),
                 sl_plan_pipeline(&o.plan), kinds[o.plan.rank_kind], segmented ? ", segments" : "",
                 !o.plan.speculate                           ? ""
                 : !sl_speculates_by_mtp(o.plan.speculate)   ? ", guesses"
                 : sl_speculates_by_lookup(o.plan.speculate) ? ", guesses of both kinds"
                                                             : ", guesses of its block");
    for (uint32_t i = 0; gpus && i < o.plan.n_workers; i++) {
        used = strlen(schedule);
        snprintf(schedule + used, n - used, "%s%s", i ? "" : ", on ",
                 o.plan.worker[i].offload  ? "O"
                 : o.plan.worker[i].on_gpu ? "G"
                                           : "c");
    }
    if (st != SL_OK) {
        sl_plan_free(&o.plan);
        return st;
    }
    /* Here, as not every deployment that is drawn is run. */
    if (o.plan.rank_kind == SL_RANKS_MACHINES) serve_ranks_of(program, folder, &o.plan);
    st = sl_engine_create(&o, e, err);
    sl_plan_free(&o.plan);
    if (st != SL_OK) stop_rank_servers();
    return st;
}

static int same(const outcome *want, const outcome *got, const char *what, uint32_t i) {
    if (got->finish != SL_FINISH_LENGTH) {
        printf("FAILED %s request %u: finish %d %s\n", what, i, got->finish, got->message);
        return 1;
    }
    if (want->n != got->n || memcmp(want->ids, got->ids, want->n * sizeof *want->ids)) {
        printf("FAILED %s request %u: other ids\n", what, i);
        return 1;
    }
    size_t n = (size_t)want->positions * want->vocab;
    for (size_t j = 0; j < n; j++) {
        if (memcmp(&want->logits[j], &got->logits[j], sizeof(float)) == 0) continue;
        printf("FAILED %s request %u: logit of position %zu token %zu is %a, alone %a\n", what, i,
               j / want->vocab, j % want->vocab, (double)got->logits[j], (double)want->logits[j]);
        return 1;
    }
    if (memcmp(want->reported, got->reported,
               (size_t)want->positions * N_REPORTED * sizeof *want->reported)) {
        printf("FAILED %s request %u: other log-probabilities\n", what, i);
        return 1;
    }
    return 0;
}

/* Where its last rows are all that it computed. */
static int same_warm(const outcome *want, const outcome *got, const char *what, uint32_t i) {
    size_t from = want->positions - N_NEW;
    if (got->finish != SL_FINISH_LENGTH || want->n != got->n ||
        memcmp(want->ids, got->ids, want->n * sizeof *want->ids) ||
        memcmp(want->reported + from * N_REPORTED, got->reported + from * N_REPORTED,
               (size_t)N_NEW * N_REPORTED * sizeof *want->reported)) {
        printf("FAILED %s request %u behind %u cached tokens: finish %d %s, other ids or "
               "log-probabilities\n",
               what, i, got->n_found, got->finish, got->message);
        return 1;
    }
    return 0;
}

/* What a reference reports is the log softmax of its own logits, the likeliest first. */
static int true_reports(const request *r, const outcome *o) {
    for (uint32_t at = 0; at < o->positions; at++) {
        const float *l = o->logits + (size_t)at * o->vocab;
        const sl_logprob *p = o->reported + (size_t)at * N_REPORTED;
        uint32_t next = at + 1 < r->n_prompt ? r->prompt[at + 1] : o->ids[at + 1 - r->n_prompt];
        double sum = 0, top = l[p[1].id];
        for (uint32_t i = 0; i < o->vocab; i++) sum += exp((double)l[i] - top);
        for (uint32_t j = 0; j < N_REPORTED; j++)
            if (!(fabs(p[j].logprob - (l[p[j].id] - top - log(sum))) < 1e-4) ||
                (j > 1 && j <= N_TOP && l[p[j].id] > l[p[j - 1].id]) || p[0].id != next ||
                !(sum >= 1))
                return printf("FAILED position %u: log-probability %u of token %u is %g\n", at, j,
                              p[j].id, (double)p[j].logprob),
                       1;
    }
    return 0;
}

static void fresh(outcome *o, const request *r, uint32_t vocab) {
    *o = (outcome){.vocab = vocab, .positions = r->n_prompt + N_NEW - 1};
    o->logits = sl_alloc((size_t)o->positions * vocab, sizeof *o->logits);
    o->reported = sl_alloc(o->positions, N_REPORTED * sizeof *o->reported);
    if (!o->logits || !o->reported) abort();
}

static void drop(outcome *o) {
    sl_free(o->logits);
    sl_free(o->reported);
}

static int run_reference(const char *folder, const sl_model_spec *m, uint32_t wire,
                         const request *r, outcome *ref) {
    sl_err err;
    sl_engine *e = NULL;
    char schedule[160];
    uint32_t *count;
    if (start(folder, m, 0, 0, 0, wire, "loop", NULL, &count, schedule, sizeof schedule, &e, &err))
        return printf("FAILED reference: %s\n", err.msg), 1;
    int bad = 0;
    for (uint32_t i = 0; !bad && i < N_REQUESTS; i++) {
        fresh(&ref[i], &r[i], m->vocab);
        bad = submit(e, &r[i], ALONE, &ref[i]) || await_all(); /* alone: one after another */
        bad = bad || ref[i].finish != SL_FINISH_LENGTH;
        bad = bad || (r[i].reports && true_reports(&r[i], &ref[i]));
    }
    sl_engine_free(e);
    return bad;
}

/* What workers tell they tell now and then: the first deployment that says so is enough. */
static void count_puts(sl_engine *e) {
    for (int i = 0; (windows || far) && n_put == 0 && i < 30; i++) {
        sl_engine_detail d;
        sl_err err;
        if (sl_engine_detail_get(e, &d, &err) != SL_OK) return;
        for (uint32_t id = 0; id < d.n_workers; id++)
            n_put += far ? d.worker[id].device_bytes : d.worker[id].put_messages;
        sl_engine_detail_free(&d);
        if (n_put == 0) usleep(100000);
    }
}

/* Whether the k-th schedule of a deployment runs, and right; *none: there is no k-th. The first
 * that there is fills the reference. */
static int run_deployment(const char *folder, const sl_model_spec *m, uint32_t wire, size_t which,
                          uint32_t k, const request *r, outcome *ref, uint64_t *state, bool *none) {
    char what[280], schedule[160];
    sl_err err;
    sl_engine *e = NULL;
    outcome got[N_REQUESTS];
    uint32_t *count = NULL;
    sl_status st = start(folder, m, deployments[which].attention, deployments[which].experts, k,
                         wire, transport, state, &count, schedule, sizeof schedule, &e, &err);
    *none = st == SL_ERR_NOTFOUND;
    if (*none) return 0;
    snprintf(what, sizeof what, "%s %s, %s, wire %s, activations %s, KV %s, %s%s", m->arch,
             deployments[which].name, schedule, sl_wire_format_name((sl_wire_format)wire),
             sl_activations_names[activations], sl_kv_type_names[kv_type], transport,
             skewed ? ", drawn routes" : "");
    if (st != SL_OK) return printf("FAILED %s: %s\n", what, err.msg), 1;
    int bad = !ref[0].logits && run_reference(folder, m, wire, r, ref);
    uint32_t found = 0;
    for (caching how = COLD; how <= WARM; how++) {
        for (uint32_t i = 0; i < N_REQUESTS; i++) {
            fresh(&got[i], &r[i], m->vocab);
            bad |= submit(e, &r[i], how, &got[i]);
        }
        bad |= await_all();
        for (uint32_t i = 0; i < N_REQUESTS; i++) {
            if (!bad)
                bad = how == COLD ? same(&ref[i], &got[i], what, i)
                                  : same_warm(&ref[i], &got[i], what, i);
            found += got[i].n_found;
            drop(&got[i]);
        }
    }
    if (deployments[which].attention) count_puts(e);
    sl_engine_free(e);
    stop_rank_servers();
    n_found += found;
    n_ran++;
    ++*count;
    if (!bad) printf("same bits, %u tokens cached: %s\n", found, what);
    return bad;
}

/* A deployment's first schedule is drawn more often than its others. */
static uint32_t first_in(void) {
    return SL_MAX(2u, one_in / 4);
}

/* So that fixtures differ in what is drawn. */
static uint64_t name_code(const char *folder) {
    uint64_t code = 0;
    for (const char *c = strrchr(folder, '/'); c && *c; c++)
        code = code * 1000003 + (unsigned char)*c;
    return code;
}

static int check_fixture(const char *folder) {
    sl_model_spec m;
    sl_generation_spec gen;
    sl_err err;
    int bad = 0;
    if (sl_model_read_spec(folder, &m, &gen, &err) != SL_OK) return printf("%s\n", err.msg), 1;
    if (gpus && m.n_linear) return 0; /* GPUs do not have it */
    for (uint32_t i = 0; i <= (many ? 0u : SL_WIRE_FORMAT_COUNT); i++) {
        uint32_t wire = i % SL_WIRE_FORMAT_COUNT;
        skewed = i == SL_WIRE_FORMAT_COUNT;
        segmented = !gpus && !m.n_linear && (seed + i + name_code(folder) / 3) % 2;
        activations = (sl_activations)((seed + i + name_code(folder)) %
                                       (gpus ? SL_ACTIVATIONS_BF16 : SL_ACTIVATIONS_COUNT));
        kv_type = (sl_kv_type)((seed + 2 * i + name_code(folder) / 6) % SL_KV_TYPES);
        request r[N_REQUESTS];
        outcome ref[N_REQUESTS] = {0};
        uint64_t state = seed * 1000 + i + name_code(folder);
        make_requests(r, m.vocab, &state);
        for (size_t d = many ? N_FEW : 0; !bad && d < (many ? N_FEW + 1 : N_FEW); d++) {
            bool none = false;
            for (uint32_t k = 0; !bad && !none; k++) {
                if (one_in > 1 && sl_rng_below(&state, k ? one_in : first_in())) continue;
                bad |= run_deployment(folder, &m, wire, d, k, r, ref, &state, &none);
            }
        }
        for (uint32_t q = 0; q < N_REQUESTS; q++) drop(&ref[q]);
    }
    return bad;
}

/* On two GPUs, where there are as many. */
static void begin_far(void) {
    sl_cuda_gpus there;
    sl_cuda_list_devices(&there);
    n_gpus = SL_MIN(SL_MAX(there.n, 1u), 2u);
    sl_cuda_gpus_free(&there);
    setenv("SLUICE_CUDA_ROWS", "try", 1);
}

/* A rank of a worker that is a thread of this program. */
static int as_rank(int fd) {
    sl_err err;
    return sl_gang_run_rank(fd, &err) == SL_OK ? 0 : (fprintf(stderr, "%s\n", err.msg), 1);
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[2], "--rank-fd") == 0) return as_rank(atoi(argv[3]));
    if (argc < 4)
        return fprintf(stderr, "usage: test_law TRANSPORT SLUICE GOLDEN [SEED [ONE_IN]]\n"), 2;
    transport = argv[1];
    program = argv[2];
    setenv("SLUICE_GATHER", "early", 1); /* what is not taken unasked holds, too */
    if (argc > 4) seed = strtoull(argv[4], NULL, 10);
    if (argc > 5) one_in = (uint32_t)strtoul(argv[5], NULL, 10);
    if (argc > 6 && strcmp(argv[6], "deferred") == 0) devices.seed = seed;
    many = argc > 6 && strcmp(argv[6], "many") == 0;
    windows = argc > 6 && strcmp(argv[6], "windows") == 0;
    of_gpu = argc > 6 && strcmp(argv[6], "exact") == 0;
    far = argc > 6 && strcmp(argv[6], "rows") == 0;
    gpus = of_gpu || far || (argc > 6 && strcmp(argv[6], "cuda") == 0);
    if (far) begin_far();
    printf("seed %llu\n", (unsigned long long)seed);
    if (strcmp(transport, "loop")) sl_net_setup_process(transport);
    setvbuf(stdout, NULL, _IOLBF, 0);
    DIR *dir = opendir(argv[3]);
    if (!dir) return perror(argv[3]), 1;
    int bad = 0, fixtures = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char folder[4096], config[4200];
        snprintf(folder, sizeof folder, "%s/%s", argv[3], e->d_name);
        snprintf(config, sizeof config, "%s/config.json", folder);
        size_t n = strlen(e->d_name);
        bool gguf = n > 5 && strcmp(e->d_name + n - 5, ".gguf") == 0;
        if (e->d_name[0] == '.' || (!gguf && access(config, R_OK) != 0)) continue;
        if (many && strcmp(e->d_name, MANY_OF) != 0) continue;
        bad |= check_fixture(folder);
        fixtures++;
    }
    closedir(dir);
    if (of_gpu) {
        char folder[4096];
        snprintf(folder, sizeof folder, "%s/../multi/" WIDE_HEADS, argv[3]);
        one_in = SL_MAX(one_in / 100, 1u); /* nothing else has what is asked of it */
        bad |= check_fixture(folder);
        fixtures++;
    }
    law_tally_print();
    printf("%d fixtures, %u deployments: %s\n", fixtures, (unsigned)n_ran,
           bad ? "FAILED" : "the law holds");
    const bool cold = n_found == 0 && n_ran >= ENOUGH_TO_CACHE;
    if (cold) printf("nothing was cached\n");
    const bool unseen = (windows || far) && n_put == 0;
    if (unseen) printf("nothing went by windows\n");
    return bad || n_ran == 0 || cold || unseen;
}
