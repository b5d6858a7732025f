/* What executes the stages of a plan's workers, and what they cost in time on a device whose times
 * are known. Plain numbers of plan.json; src/stage makes the device. Thread: any. */
#ifndef SL_SPEC_DEVICE_H
#define SL_SPEC_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "spec/link.h"

#define SL_STAGE_MAX_STEP 65536

typedef enum sl_cost_kind {
    SL_COST_ATTENTION, /* of one block, with its norms and projections */
    SL_COST_ROUTER,
    SL_COST_DENSE,
    SL_COST_SHARED,
    SL_COST_EXPERT, /* one expert's rows of one task */
    SL_COST_HEAD,   /* with sampling */
    SL_COST_COUNT
} sl_cost_kind;

/* Microseconds of a stage: fixed + max(floor + slope * rows, row * rows + pad * (rows that fill the
 * last group of `step` rows) + key * keys) + task + sum + sum_row * rows. */
typedef struct sl_stage_cost {
    double fixed_us;
    double floor_us; /* e.g. reading the weights, which takes as long for one row as for many */
    double row_us;
    double key_us;  /* attention: per key of a row's context */
    double pad_us;  /* <= row_us: kernels compute whole groups of rows */
    uint32_t step;  /* rows of such a group; 0, 1: there are none */
    double read_us; /* of fixed_us: what reading weights takes, where that is not the floor */
    /* Of a gang (spec/rank_cost.h): what its ranks' sum takes, once a task, and for each row. */
    double sum_us, sum_row_us;
    double slope_us; /* of a row more while the floor takes the time: multiplying hides behind
                      * reading, but not whole */
    double task_us;  /* of experts: what a task takes however many it has */
    double again_us; /* what it takes less where its weights still lie in a cache */
} sl_stage_cost;

typedef enum sl_device_kind {
    SL_DEVICE_CPU,
    SL_DEVICE_EMULATED, /* nothing but the clock: stages take their times and compute nothing */
    SL_DEVICE_CUDA,     /* an NVIDIA GPU of the worker's machine */
    SL_DEVICE_KIND_COUNT
} sl_device_kind;

#define SL_MAX_GPU 1023u /* the highest index that a plan may name */

/* What the bits of a GPU's sums are (docs/gpu.md). */
typedef enum sl_numerics {
    SL_NUMERICS_CPU,   /* those of the CPU's kernels, as docs/numbers.md defines them */
    SL_NUMERICS_FAST,  /* what is fastest; they depend on the batch */
    SL_NUMERICS_EXACT, /* one arithmetic of a kind of GPU for all batches */
    SL_NUMERICS_COUNT,
    SL_NUMERICS_AUTO = SL_NUMERICS_COUNT /* of a plan that says none: sl_plan_numerics decides */
} sl_numerics;

/* Whether a plan with `exact` and without numerics takes EXACT where it can, and not CPU. What no
 * GPU has run nobody gets who does not ask: true once bench/gpu/lease.sh has passed fixtures, units
 * and law with it. */
#define SL_NUMERICS_EXACT_BY_ITSELF false

/* What a kind of GPU is called: its name and its compute capability (sl_cuda_kind). */
#define SL_GPU_KIND_BYTES 128u

typedef struct sl_device_spec {
    sl_device_kind kind;
    double time_scale; /* EMULATED: every stage takes so many times its cost */
    uint32_t crash_id; /* EMULATED: a row with this token crashes the worker; 0: none */
    /* EMULATED: what is said goes round after so many tokens, and so large a share of them stray:
     * what follows is another round. 0: ids go on. */
    uint32_t text_period;
    double text_strays;
    sl_stage_cost cost[SL_COST_COUNT];
    bool grouped;           /* EMULATED: as of sl_costs */
    sl_link_cost rank_link; /* EMULATED: between the ranks of a gang; all zero: not known */
    uint32_t index;         /* CUDA: which GPU, as its driver counts */
    uint64_t gpu_memory;    /* CUDA: bytes that the worker may take there; 0: what is free */
    sl_numerics numerics;   /* CUDA */
    bool offload; /* CUDA: routed experts' weights stay in the machine's memory, and are copied when
                   * they are computed */
    char gpu_kind[SL_GPU_KIND_BYTES]; /* CUDA: of all of them, zeros behind it; "": not known */
} sl_device_spec;

/* Whether its times are known beforehand and nothing is computed: it needs no weights and no cores,
 * and its stages cannot be cut into brief ones, since waits overshoot by tens of microseconds. */
static inline bool sl_device_is_modelled(const sl_device_spec *d) {
    return d->kind == SL_DEVICE_EMULATED;
}

/* Whether kernels run on the worker's cores, from weights and KV in its machine's memory. */
static inline bool sl_device_is_cpu(const sl_device_spec *d) {
    return d->kind == SL_DEVICE_CPU;
}

#endif
