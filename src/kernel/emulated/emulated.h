/* The emulated device: a stage takes its modelled time and computes nothing, so coordinator, fabric
 * and schedules run for real with more workers than there are cores. src/model asks it instead of
 * computing when sl_exec has one; rows pass unchanged, experts add nothing.
 * Thread: owner of the sl_exec. */
#ifndef SL_KERNEL_EMULATED_EMULATED_H
#define SL_KERNEL_EMULATED_EMULATED_H

#include "kernel/kernel.h"
#include "spec/lab.h"

struct sl_emulated {
    const sl_device *device;
    /* Returns at or soon after CLOCK_MONOTONIC deadline_ns, keeping the fabric alive. */
    void (*wait)(void *ctx, uint64_t deadline_ns);
    void *ctx;
    bool in_head;     /* the last stage was the head: its next call is the same task */
    uint64_t late_ns; /* how much too late the last stage ended; the next one makes up for it */
};

/* Modelled time of one stage, scaled. */
uint64_t sl_emulated_ns(const sl_device *d, sl_cost_kind kind, uint64_t rows, uint64_t keys);

/* Lets the stage's time pass. The head is called for a few rows at a time: calls in a row count as
 * one, with one fixed cost. */
void sl_emulated_run(sl_emulated *e, sl_cost_kind kind, uint64_t rows, uint64_t keys);
/* Lets so much pass: stages that run as one task. */
void sl_emulated_pass(sl_emulated *e, uint64_t ns);

/* x[i][d]: the id (below 2^24), which the head finds again, and zeroes. */
void sl_emulated_embed(const uint32_t *ids, uint32_t n_rows, uint32_t d, float *x);
/* logits[vocab]: 1 at the id that follows, 0 elsewhere. The next id is a bijection of the last one:
 * requests that differ stay different. */
void sl_emulated_logits(const float *x, uint32_t vocab, float *logits);

#endif
