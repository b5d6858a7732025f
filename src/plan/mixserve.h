/* The analyzer of MixServe (III-B), corrected: time of a layer from operations, bytes and
 * collectives, memory a device, queueing by requests; TTFT, ITL and throughput of one strategy on
 * one grid of equal devices. `as_published` evaluates the printed communication (Eq. 1 to 5),
 * memory (Eq. 8), waiting (Eq. 7) and throughput (Eq. 11) instead; computing stays as corrected,
 * because Eq. 4 carries a factor h too many to be a time.   Pure. Thread: any. */
#ifndef SL_PLAN_MIXSERVE_H
#define SL_PLAN_MIXSERVE_H

#include "base/status.h"
#include "plan/collective.h"
#include "plan/strategy.h"
#include "spec/cluster.h"
#include "spec/shape.h"

typedef struct sl_mixserve_model {
    uint32_t layers, d_model, heads, kv_heads, experts, top_k, d_ff_expert;
    double head_values;             /* per head and key: (dk + dv) / 2 of one head */
    double layer_params;            /* of a layer but its routed experts */
    double expert_params;           /* of one expert */
    double other_params;            /* embedding and head */
    double weight_bytes, row_bytes; /* a parameter; a row of hidden state on the wire */
    double kv_layer_bytes;          /* KV of one position in one layer */
    uint32_t kv_shards;             /* parts that TP can cut the KV into; MLA: 1 */
} sl_mixserve_model;

typedef struct sl_mixserve_system {
    uint32_t nodes, per_node;
    double flops, bandwidth; /* of a device, as reached, per second */
    double memory_bytes;     /* usable */
    double stage_us;         /* of every layer, whatever its size */
    sl_fabric intra, inter;
} sl_mixserve_system;

typedef struct sl_mixserve_load {
    double input, output; /* mean tokens */
    double rate;          /* requests/s; 0: as many as fit */
    double cv2;           /* squared variation of service times */
    uint32_t slots;       /* requests at once at most; 0: as memory allows */
    double imbalance;     /* busiest expert group / mean */
    bool fused;
    bool as_published;
} sl_mixserve_load;

/* One layer, for the rows of all devices of one stage. */
typedef struct sl_mixserve_layer {
    double attn_us, moe_us;           /* computing */
    double attn_comm_us, moe_comm_us; /* communication */
} sl_mixserve_layer;

typedef struct sl_mixserve_result {
    sl_mixserve_layer decode, prefill;
    double memory_bytes, memory_limit; /* of one device */
    uint32_t slots;
    double prefill_us, decode_us; /* one prompt for each DP rank; one step of all slots */
    double busy;                  /* rho */
    double wait_us, ttft_us, itl_us;
    double capacity;   /* requests/s at saturation */
    double throughput; /* input + output tokens/s at the given rate, or at saturation */
    double output_throughput;
} sl_mixserve_result;

/* Bytes of a device with `slots` requests of input + output positions. */
double sl_mixserve_memory(const sl_mixserve_model *m, const sl_mixserve_load *load,
                          const sl_strategy *s, double slots);

/* Most slots that memory holds, a multiple of dp pp (every rank of every stage has work); 0: not
 * one of each. */
uint32_t sl_mixserve_slots(const sl_mixserve_model *m, const sl_mixserve_system *sys,
                           const sl_mixserve_load *load, const sl_strategy *s);

/* Time to wait for one of `slots` servers (Allen-Cunneen): C(slots, rho) X / (slots (1 - rho))
 * (1 + cv2) / 2. `service` is X, in any unit; rate per that unit. Infinite from rho = 1. */
double sl_queue_wait(double slots, double service, double rate, double cv2);

/* SL_ERR_INFEASIBLE: memory, or the rate is above capacity (result filled in then). */
sl_status sl_mixserve_evaluate(const sl_mixserve_model *m, const sl_mixserve_system *sys,
                               const sl_mixserve_load *load, const sl_strategy *s,
                               sl_mixserve_result *out, sl_err *err) SL_MUST_CHECK;

/* Counts of sl_account_params; 2 bytes a value on the wire and in KV as the shape says. */
sl_mixserve_model sl_mixserve_model_of(const sl_shape *s);
/* One node group; devices at their stated efficiencies, `reserve` of the memory kept free. */
sl_mixserve_system sl_mixserve_system_of(const sl_cluster *c, uint32_t group, sl_compute compute,
                                         double reserve);
sl_strategy_limits sl_mixserve_limits(const sl_mixserve_model *m, const sl_mixserve_system *sys);

#endif
