/* The model of time and memory of MegaScale-Infer (4.1, 4.2, Eq. 1 to 8), repaired, under its
 * search (Algorithm 1, apart.h, which `sluice plan` calls with costs of its own): memory in bytes,
 * three matrices an expert, two bytes a value on the wire, utilisation of links by the message of a
 * pair, the exact pipeline law (pingpong.h), 95th percentile of contexts for memory, any number of
 * attention nodes instead of a balance of slopes, all pairs of device types (4.3). The published
 * forms are evaluated instead when `as_published` is set.
 *
 * An instance is n_a attention nodes of tp_a devices and one expert node of tp_e devices an expert
 * (its weights of all layers). Decoding only.
 * Pure. Thread: any. */
#ifndef SL_PLAN_MEGASCALE_H
#define SL_PLAN_MEGASCALE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sl_megascale_model {
    uint32_t layers, d_model, experts, top_k, d_ff, vocab;
    double group; /* query heads that share keys and values */
} sl_megascale_model;

typedef struct sl_megascale_device {
    const char *name;
    double price; /* of one device, any unit */
    double memory_bytes;
    double bandwidth, flops; /* per second, as data sheets say */
    double nic;              /* bytes/s to other nodes, of one device */
    double nvlink;           /* bytes/s within the node, of one device */
} sl_megascale_device;

typedef struct sl_megascale_options {
    double flops_efficiency, bandwidth_efficiency;
    double half_bytes;             /* message size that gets half the bandwidth of a link */
    double attn_us, expert_us;     /* of a stage, whatever its size */
    double context, context_p95;   /* positions: mean for time, 95th percentile for memory */
    double reserve;                /* share of attention memory kept free */
    double imbalance;              /* busiest expert node / mean, >= 1 (sl_megascale_imbalance) */
    double slo_us;                 /* time per output token */
    uint32_t lanes_max, nodes_max; /* N_m; attention nodes */
    bool as_published;
} sl_megascale_options;

/* 0.7 and 0.8 efficiency, 128 KB, 25 and 20 us, 650 positions, no reserve, balanced, 150 ms, 4
 * lanes, 64 nodes: assumptions, not the paper's. */
sl_megascale_options sl_megascale_defaults(void);

typedef struct sl_megascale_plan {
    uint32_t attn_device, expert_device; /* indices into the devices */
    uint32_t tp_a, tp_e, nodes, lanes;
    uint64_t micro; /* rows of a micro-batch at one attention node */
    uint64_t batch; /* micro * lanes * nodes */
    double attn_us, expert_us, link_us, tpot_us;
    double throughput; /* tokens/s */
    double cost, per_cost;
    bool memory_bound; /* the batch stops at memory, not at the SLO */
} sl_megascale_plan;

/* Bytes of the weights of one attention node, of one expert's, and of KV a position. As published
 * these are numbers of parameters (and are compared with bytes). */
double sl_megascale_attn_bytes(const sl_megascale_model *m, const sl_megascale_options *o);
double sl_megascale_expert_bytes(const sl_megascale_model *m, const sl_megascale_options *o);
double sl_megascale_kv_bytes(const sl_megascale_model *m);

/* Fills times, throughput and cost of p for its tp_a, tp_e, nodes, lanes and micro. */
void sl_megascale_evaluate(const sl_megascale_model *m, const sl_megascale_device *devices,
                           const sl_megascale_options *o, sl_megascale_plan *p);

/* Largest micro-batch that memory holds (constraint 8); 0: not even one row. */
uint64_t sl_megascale_memory_batch(const sl_megascale_model *m, const sl_megascale_device *devices,
                                   const sl_megascale_options *o, const sl_megascale_plan *p);

/* SIMULATE of Algorithm 1: the largest micro-batch within memory and SLO, evaluated.
 * false: not even one row. */
bool sl_megascale_fill_batch(const sl_megascale_model *m, const sl_megascale_device *devices,
                             const sl_megascale_options *o, sl_megascale_plan *p);

/* Best throughput per cost over all pairs of the n devices; ties: fewer devices, then fewer lanes,
 * then smaller tp_a, then tp_e. SL_ERR_INFEASIBLE says what lacks least. */
sl_status sl_megascale_search(const sl_megascale_model *m, const sl_megascale_device *devices,
                              uint32_t n, const sl_megascale_options *o, sl_megascale_plan *out,
                              sl_err *err) SL_MUST_CHECK;

/* Busiest node / mean for measured popularity, experts replicated by sl_fill_replicas with `slots`
 * experts a node. */
sl_status sl_megascale_imbalance(const double *popularity, uint32_t experts, uint32_t nodes,
                                 uint32_t slots, double *out, sl_err *err) SL_MUST_CHECK;

#endif
