/* A deployment: who hosts what, and how the work is scheduled. plan.json is its file form. */
#ifndef SL_SPEC_PLAN_H
#define SL_SPEC_PLAN_H

#include "spec/activations.h"
#include "spec/speculate.h"
#include "spec/costs.h"
#include "spec/gang.h"
#include "spec/kv_type.h"
#include "spec/lab.h"
#include "spec/limits.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define SL_PLAN_VERSION 1u

/* How the rows of an attention worker are grouped, and when a group may run (docs/schedules.md). */
typedef enum sl_schedule {
#define SL_PLANNED(id, name, why)
#define SL_SCHEDULE(id, name, sides, how, lanes, chunks, chunking, anew) SL_SCHED_##id,
#include "spec/schedules.def"
#undef SL_SCHEDULE
#undef SL_PLANNED
    SL_SCHED_COUNT
} sl_schedule;

/* What a chunk of a lane's rows is. */
typedef enum sl_chunking {
    SL_CHUNK_TOKENS,  /* consecutive rows with all their experts */
    SL_CHUNK_EXPERTS, /* all rows with the experts of one group; a row's data travels once */
    SL_CHUNKING_COUNT
} sl_chunking;

/* FinDEP: when the attention side runs a lane's shared experts. */
typedef enum sl_order {
    SL_ORDER_ASAS, /* right after the lane's attention */
    SL_ORDER_AASS, /* when no lane's attention can run */
    SL_ORDER_COUNT
} sl_order;

/* AMoE: which queue of a worker is drained next. */
typedef enum sl_policy {
    SL_POLICY_DEFRAG, /* longest queue plus what will follow it (lookahead, delta) */
    SL_POLICY_MTFS,   /* most tokens first */
    SL_POLICY_FLFS,   /* first layer first */
    SL_POLICY_RMF,    /* rearmost epoch and layer first */
    SL_POLICY_COUNT
} sl_policy;

#define SL_PLAN_MAX_CPU         1023
#define SL_PLAN_MAX_INCARNATION (1ull << 53) /* whole numbers that any reader of JSON keeps */

/* Bits of `roles`. */
#define SL_ROLE_ATTENTION 0x1u
#define SL_ROLE_EXPERT    0x2u

typedef struct sl_plan_worker {
    uint32_t id;          /* 0..n_workers-1 */
    uint32_t roles;       /* SL_ROLE_*; none, in a plan that a change takes: it is not there */
    uint64_t incarnation; /* who has come to this place (sched/roster.h); 0: nobody */
    char address[96];     /* where it listens; filled in when it joins */
    int32_t cpu;          /* its threads run there alone; -1: anywhere */
    bool on_gpu;          /* it computes on GPU `gpu` of its machine, not on the plan's `device` */
    uint32_t gpu;
    bool offload;    /* on a GPU: its experts' weights stay in its machine's memory */
    char ranks[256]; /* where its ranks beside the first answer, HOST:PORT with commas; "": they are
                      * no machines */
    bool spare;      /* nobody is there at first, and nothing is hosted there; somebody may be
                      * wanted there later */
    bool prefill;    /* of the side for prompts (format/plan_sides.h) */
    bool pages;      /* in what a worker of the other side sees: KV pages go there or come from
                      * there; and nothing else, if it has no role */
} sl_plan_worker;

/* One of the workers that host an expert: it takes the rows whose key is below `until` and not
 * below the one before's; the last one's `until` is UINT32_MAX and includes it. */
typedef struct sl_host {
    uint32_t worker, until;
} sl_host;

/* Who hosts which expert. n_layers is 1 (the same in every MoE block) or the number of MoE blocks.
 * Expert e of layer l has hosts host[first[i]] .. host[first[i + 1] - 1], i = l * n_experts + e
 * (l = 0 if n_layers is 1): distinct workers, at least one. Owned by the plan's holder. */
typedef struct sl_placement {
    uint32_t n_layers;
    uint32_t *first; /* [n_layers * n_experts + 1] */
    sl_host *host;   /* [first[n_layers * n_experts]] */
} sl_placement;

/* Of defrag, where nothing else is said. */
#define SL_PLAN_LOOKAHEAD 2u
#define SL_PLAN_DELTA     1.0

#define SL_PLAN_RAIL_BYTES 32768u /* unless the plan says otherwise */

#define SL_PLAN_COSTS_OF 96u /* bytes */

/* What sluice plan counted with: its cluster, and for either side the device's data sheet or the
 * machine that was profiled. Empty: nobody said. Nothing that runs a plan asks. */
typedef struct sl_plan_origin {
    char cluster[SL_PLAN_COSTS_OF];
    char attention[SL_PLAN_COSTS_OF], expert[SL_PLAN_COSTS_OF];
} sl_plan_origin;

typedef struct sl_plan {
    uint32_t epoch; /* grows whenever the set of workers changes */
    sl_schedule schedule;
    uint32_t lanes;  /* m of ping-pong, r1 of FinDEP; else 1 */
    uint32_t chunks; /* r2 of FinDEP, N of EPS; else 1 */
    sl_chunking chunking;
    sl_order order;
    uint32_t resolve;   /* findep chooses lanes, chunks, what they are and the order anew after so
                         * many steps (sched/resolve.h), eps its groups; 0: neither does */
    sl_policy policy;   /* of aep */
    uint32_t lookahead; /* of defrag: layers */
    double delta;       /* of defrag: weight lost per layer ahead, in (0, 1] */
    uint32_t n_workers;
    sl_plan_worker *worker; /* [n_workers], at most SL_MAX_WORKERS; owned */
    sl_placement place;
    sl_placement prefill_place; /* of the side for prompts, if it has experts of its own; else
                                 * empty */
    uint32_t n_experts;
    /* numerics */
    uint32_t wire; /* sl_wire_format */
    bool exact;
    sl_activations activations;
    sl_speculate speculate;
    sl_kv_type kv_type; /* of the KV pages of all attention workers; AUTO until a deployment has
                         * all of its plan */
    /* limits */
    uint32_t max_num_seqs;           /* requests running at one attention worker */
    uint32_t max_num_batched_tokens; /* rows of one lane step */
    double
        prefill_stretch; /* >= 1: prompt rows may make a step of decoding requests so much longer */
    uint32_t context;    /* positions a request may take */
    uint32_t n_pages;    /* KV pages of one attention worker */
    uint32_t
        prefill_rows;     /* that a request has to have computed start it at the side for prompts */
    uint32_t kv_replicas; /* copies of full KV pages at other attention workers: 0 or 1 */
    uint32_t threads;     /* kernel threads of one worker */
    uint32_t attention_tp, expert_tp; /* ranks of a worker that has attention, and of one that has
                                       * experts alone (spec/gang.h); 0: 1 */
    uint32_t pp;                      /* ranks of the pipeline that each worker is; 0: 1 */
    sl_rank_kind rank_kind;           /* of all workers that have several */
    uint32_t rail_bytes;              /* hybrid: the shortest message that goes in stripes */
    bool segments; /* with exact: sums that ranks share are taken in segments, so that bits do not
                    * depend on how many ranks there are */
    bool pin_auto; /* workers without a CPU choose cores of one node (base/topology.h) */
    bool numa;     /* and their weights are moved to the memory node of the CPUs that they have */
    bool pump;     /* a thread of each worker drives its fabric, too */
    /* What stages and the link were measured to cost; with them findep cuts each step's rows into
     * as many of its chunks as is fastest. */
    bool has_costs;
    sl_costs costs;
    sl_plan_origin origin;
    /* experiments */
    sl_route_skew skew;
    bool random_weights;   /* of a model whose folder has none */
    sl_device_spec device; /* of workers that are on no GPU; gpu_memory and numerics of those that
                            * are (sl_plan_device_of) */
} sl_plan;

/* The i-th address of a worker's `ranks`, of *len bytes; NULL: there are not so many. */
static inline const char *sl_rank_address(const char *ranks, uint32_t i, size_t *len) {
    const char *at = *ranks ? ranks : NULL;
    for (; at && i > 0; i--) {
        at = strchr(at, ',');
        at += at != NULL;
    }
    if (at) *len = strcspn(at, ",");
    return at;
}

/* Ranks of the gang that a worker with these roles is. */
static inline uint32_t sl_plan_ranks(const sl_plan *p, uint32_t roles) {
    const uint32_t n = roles & SL_ROLE_ATTENTION ? p->attention_tp : p->expert_tp;
    return n ? n : 1;
}

static inline bool sl_plan_has_gangs(const sl_plan *p) {
    return sl_plan_ranks(p, SL_ROLE_ATTENTION) > 1 || sl_plan_ranks(p, SL_ROLE_EXPERT) > 1;
}

/* Connections that a message of rows is striped over between two workers; 1: it goes whole. */
static inline uint32_t sl_plan_rails(const sl_plan *p) {
    return p->schedule == SL_SCHED_HYBRID ? sl_plan_ranks(p, SL_ROLE_ATTENTION) : 1;
}

/* Rails are those of ranks on machines of their own, which send and get rows themselves. */
static inline bool sl_plan_spreads(const sl_plan *p) {
    return sl_plan_rails(p) > 1 && p->rank_kind == SL_RANKS_MACHINES;
}

/* Of the pipeline that each worker is. */
static inline uint32_t sl_plan_pipeline(const sl_plan *p) {
    return p->pp ? p->pp : 1;
}

/* All ranks of such a worker, which is a gang or a pipeline. */
static inline uint32_t sl_plan_all_ranks(const sl_plan *p, uint32_t roles) {
    return sl_plan_ranks(p, roles) * sl_plan_pipeline(p);
}

/* Whether the KV of such a worker on a CPU may lie in a file that outlives its process: all of its
 * ranks are threads of that one and have all blocks. */
static inline bool sl_plan_kv_in_file(const sl_plan *p, uint32_t roles) {
    const bool threads = sl_plan_ranks(p, roles) == 1 || p->rank_kind == SL_RANKS_THREADS;
    return (roles & SL_ROLE_ATTENTION) && threads && sl_plan_pipeline(p) == 1;
}

/* What worker `id` computes on. A planner's trial says nothing of its workers one by one, a
 * simulation may have more than the plan. */
static inline sl_device_spec sl_plan_device_of(const sl_plan *p, uint32_t id) {
    sl_device_spec d = p->device;
    if (!p->worker || id >= p->n_workers || !p->worker[id].on_gpu) return d;
    d.kind = SL_DEVICE_CUDA;
    d.index = p->worker[id].gpu;
    d.offload = p->worker[id].offload;
    return d;
}

static inline bool sl_plan_on_gpu(const sl_plan *p, uint32_t id) {
    return sl_plan_device_of(p, id).kind == SL_DEVICE_CUDA;
}

/* Whether a row's experts may be summed in groups that are chosen: no bit depends on them. */
static inline bool sl_plan_regroups(const sl_plan *p) {
    return p->exact || sl_device_is_modelled(&p->device);
}

/* Rows that a step of one lane has room for, and one message on its way back. Where lanes close,
 * those that are open have all rows. */
static inline uint32_t sl_plan_lane_rows(const sl_plan *p) {
    return p->resolve || p->lanes == 0 ? p->max_num_batched_tokens
                                       : p->max_num_batched_tokens / p->lanes;
}

/* (row, expert) pairs of a task of a worker that is sent rows by so many attention workers, each of
 * which chooses top_k experts, and that hosts so many of these. */
static inline uint32_t sl_plan_pairs(const sl_plan *p, uint32_t senders, uint32_t top_k,
                                     uint32_t hosted) {
    const uint32_t of_row = hosted < top_k ? hosted : top_k;
    return sl_plan_lane_rows(p) * senders * (of_row ? of_row : 1);
}

/* Workers on GPUs, also those that come later. */
static inline uint32_t sl_plan_n_gpu(const sl_plan *p) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_workers; i++) n += sl_plan_on_gpu(p, i);
    return n;
}

/* Whose bits the whole deployment has: the CPU's where nothing is on a GPU. What AUTO is: fast, or
 * with `exact` those of the kind of GPU that all workers are known to have, or else the CPU's. */
static inline sl_numerics sl_plan_numerics(const sl_plan *p) {
    const uint32_t gpus = sl_plan_n_gpu(p);
    if (sl_device_is_modelled(&p->device) || gpus == 0) return SL_NUMERICS_CPU;
    if (p->device.numerics != SL_NUMERICS_AUTO) return p->device.numerics;
    if (!p->exact) return SL_NUMERICS_FAST;
    const bool one_kind = gpus == p->n_workers && p->device.gpu_kind[0];
    return one_kind && SL_NUMERICS_EXACT_BY_ITSELF ? SL_NUMERICS_EXACT : SL_NUMERICS_CPU;
}

/* Of numerics exact the kind of GPU whose bits they are, else "": zeros behind it. */
static inline const char *sl_plan_gpu_kind(const sl_plan *p) {
    static const char none[SL_GPU_KIND_BYTES];
    return sl_plan_numerics(p) == SL_NUMERICS_EXACT ? p->device.gpu_kind : none;
}

/* What AUTO is: f32 where a GPU has pages, or a model of a device nothing to round. */
static inline sl_kv_type sl_plan_kv_type(const sl_plan *p) {
    if (p->kv_type != SL_KV_AUTO) return p->kv_type;
    const bool other = sl_device_is_modelled(&p->device) || sl_plan_n_gpu(p) > 0;
    return other ? SL_KV_F32 : SL_KV_AUTO_ON_CPUS;
}

/* Whether somebody is for prompts. */
static inline bool sl_plan_has_prefill(const sl_plan *p) {
    for (uint32_t i = 0; p->worker && i < p->n_workers; i++)
        if (p->worker[i].prefill) return true;
    return false;
}

/* Whether it is for prompts; a simulation may have workers that the plan does not. */
static inline bool sl_plan_is_prefill(const sl_plan *p, uint32_t worker) {
    return p->worker && worker < p->n_workers && p->worker[worker].prefill;
}

/* The side for prompts has experts of its own (format/plan_sides.h). */
static inline bool sl_plan_sides_apart(const sl_plan *p) {
    return p->prefill_place.n_layers > 0;
}
/* Whether one of the two is in the plan that the other sees. */
static inline bool sl_plan_is_seen(const sl_plan *p, uint32_t a, uint32_t b) {
    return !sl_plan_sides_apart(p) || sl_plan_is_prefill(p, a) == sl_plan_is_prefill(p, b);
}

/* Who is there at first: the roles of worker `id` then, none of a free place. */
static inline uint32_t sl_plan_first_roles(const sl_plan *p, uint32_t id) {
    return p->worker[id].spare ? 0 : p->worker[id].roles;
}
/* Workers that are there at first. */
static inline uint32_t sl_plan_n_first(const sl_plan *p) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_workers; i++) n += !p->worker[i].spare;
    return n;
}

/* The hosts of an expert of a MoE block (index among MoE blocks), *n of them. */
static inline const sl_host *sl_plan_hosts(const sl_plan *p, uint32_t layer, uint32_t expert,
                                           uint32_t *n) {
    uint32_t i = (p->place.n_layers == 1 ? 0 : layer) * p->n_experts + expert;
    *n = p->place.first[i + 1] - p->place.first[i];
    return p->place.host + p->place.first[i];
}

/* What splits rows among replicas: the row's own identity, so that neither batch nor arrival do. */
static inline uint32_t sl_plan_row_key(uint32_t token, uint32_t position, uint32_t layer) {
    uint64_t z = ((uint64_t)token << 32 | position) + (layer + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

/* The worker that computes this expert for a row with that key. */
static inline uint32_t sl_plan_host_of(const sl_plan *p, uint32_t layer, uint32_t expert,
                                       uint32_t key) {
    uint32_t n, i = 0;
    const sl_host *h = sl_plan_hosts(p, layer, expert, &n);
    while (i + 1 < n && key >= h[i].until) i++;
    return h[i].worker;
}

/* Whether the worker hosts it, on its side. */
static inline bool sl_plan_is_host(const sl_plan *p, uint32_t layer, uint32_t expert,
                                   uint32_t worker) {
    const bool prefill = sl_plan_sides_apart(p) && sl_plan_is_prefill(p, worker);
    const sl_placement *place = prefill ? &p->prefill_place : &p->place;
    const uint32_t at = (place->n_layers == 1 ? 0 : layer) * p->n_experts + expert;
    for (uint32_t i = place->first[at]; i < place->first[at + 1]; i++)
        if (place->host[i].worker == worker) return true;
    return false;
}

/* The same while some workers are lost (lost[n_workers], nonzero): the next of the expert's hosts
 * stands in. UINT32_MAX: all of them are lost. */
static inline uint32_t sl_plan_host_among(const sl_plan *p, uint32_t layer, uint32_t expert,
                                          uint32_t key, const uint8_t *lost) {
    uint32_t n, i = 0;
    const sl_host *h = sl_plan_hosts(p, layer, expert, &n);
    while (i + 1 < n && key >= h[i].until) i++;
    for (uint32_t left = n; left > 0; left--, i = (i + 1) % n)
        if (!lost[h[i].worker]) return h[i].worker;
    return UINT32_MAX;
}

/* The only host of that expert that is not lost; UINT32_MAX: there are several, or none. */
static inline uint32_t sl_plan_sole_host(const sl_plan *p, uint32_t layer, uint32_t expert,
                                         const uint8_t *lost) {
    uint32_t n, sole = UINT32_MAX;
    const sl_host *h = sl_plan_hosts(p, layer, expert, &n);
    for (uint32_t i = 0; i < n; i++) {
        if (lost[h[i].worker]) continue;
        if (sole != UINT32_MAX) return UINT32_MAX;
        sole = h[i].worker;
    }
    return sole;
}

static inline uint32_t sl_plan_entries(const sl_plan *p) {
    return p->place.n_layers * p->n_experts;
}

/* Whether some expert has several hosts. */
static inline bool sl_plan_has_replicas(const sl_plan *p) {
    return p->place.first[sl_plan_entries(p)] > sl_plan_entries(p);
}

static inline bool sl_placement_is_covered(const sl_placement *place, uint32_t n_experts,
                                           const uint8_t *lost) {
    for (uint32_t i = 0; i < place->n_layers * n_experts; i++) {
        uint32_t at = place->first[i];
        while (at < place->first[i + 1] && lost[place->host[at].worker]) at++;
        if (at == place->first[i + 1]) return false;
    }
    return true;
}

/* Whether every expert has a host that is not lost; on the side for prompts where its attention is
 * not, either. */
static inline bool sl_plan_is_covered(const sl_plan *p, const uint8_t *lost) {
    bool prompts = false;
    for (uint32_t i = 0; sl_plan_sides_apart(p) && i < p->n_workers; i++)
        prompts |= p->worker[i].prefill && (p->worker[i].roles & SL_ROLE_ATTENTION) && !lost[i];
    return sl_placement_is_covered(&p->place, p->n_experts, lost) &&
           (!prompts || sl_placement_is_covered(&p->prefill_place, p->n_experts, lost));
}

/* Whether the worker hosts that expert in any block. */
static inline bool sl_plan_hosts_any(const sl_plan *p, uint32_t expert, uint32_t worker) {
    for (uint32_t l = 0; l < p->place.n_layers; l++) {
        if (sl_plan_is_host(p, l, expert, worker)) return true;
    }
    return false;
}

/* How many experts the worker hosts in any block. */
static inline uint32_t sl_plan_n_hosted(const sl_plan *p, uint32_t worker) {
    uint32_t n = 0;
    for (uint32_t e = 0; e < p->n_experts; e++) n += sl_plan_hosts_any(p, e, worker);
    return n;
}

#endif
