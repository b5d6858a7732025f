/* The problem that FinDEP solves: how the samples of a forward pass are cut into micro-batches and
 * chunks so that attention workers, experts and links keep each other busy. Plain numbers; src/plan
 * solves it, src/format reads it from a file. Times in milliseconds. */
#ifndef SL_SPEC_FINDEP_H
#define SL_SPEC_FINDEP_H

#include "spec/plan.h"

/* alpha + max(floor, beta * x): x is samples (attention, shared) or tokens per expert (the rest).
 * `floor` is what must be read however few tokens there are; 0 but for experts. */
typedef struct sl_findep_line {
    double alpha, beta, floor;
} sl_findep_line;

/* What a chunk may be. */
typedef enum sl_findep_cut {
    SL_FINDEP_CUT_TOKENS,  /* rows with all their experts: each chunk reads all weights */
    SL_FINDEP_CUT_EXPERTS, /* all rows of a group of experts: weights are read once */
    SL_FINDEP_CUT_EITHER,  /* whichever is faster */
} sl_findep_cut;

/* Where the largest r1 comes from (FinDEP leaves getMaxR1 open). Bytes of one device. */
typedef struct sl_findep_memory {
    double ag_bytes, eg_bytes;
    double reserve;   /* share of either that stays free */
    double elt_bytes; /* of a weight or an activation */
    double hidden, expert_width;
    double ag_params;      /* of attention, shared experts and router of all layers, embeddings */
    double work_width;     /* values a token has at most within one attention-side task */
    double kv_token_bytes; /* keys and values of a token in one layer */
    double generated;      /* tokens a sample may have beyond the problem's */
    double credits;        /* chunk slots of an expert worker; 0: a whole batch fits in */
} sl_findep_memory;

typedef struct sl_findep_problem {
    uint32_t layers, ag, eg, tokens, experts, top_k; /* tokens: of one sample */
    uint32_t batch_per_ag;                           /* samples an attention worker has */
    uint32_t ma;                                     /* samples of a micro-batch; 0: any number */
    uint32_t r1_max;                                 /* 0: only the batch and memory bind */
    uint32_t r2_max;
    bool integer_tokens; /* tokens per expert are rounded up */
    double skew;         /* >= 1: rows of the busiest expert worker over the mean */
    sl_findep_line attn, shared, a2e, expert, e2a;
    double lag; /* of a chunk's way there and back, beside what keeps links busy */
    sl_findep_cut cut;
    bool has_memory;
    sl_findep_memory memory;
} sl_findep_problem;

/* One way of running it. */
typedef struct sl_findep_point {
    sl_order order;
    uint32_t r1, ma, r2;
    sl_chunking chunking;
} sl_findep_point;

#endif
