/* The clock of the emulated device: how long a stage takes, and letting that pass; and what follows
 * a token in its texts. Thread: owner of the device. */
#ifndef SL_STAGE_EMULATED_EMULATED_H
#define SL_STAGE_EMULATED_EMULATED_H

#include "spec/device.h"

typedef struct sl_emulated {
    const sl_device_spec *device;
    /* Returns at or soon after CLOCK_MONOTONIC deadline_ns, keeping the fabric alive. */
    void (*wait)(void *ctx, uint64_t deadline_ns);
    void *ctx;
    bool counts; /* stages take no time: it is added up */
    uint64_t counted_ns;
    bool in_head;     /* the last stage was the head: its next call is the same task */
    uint64_t late_ns; /* how much too late the last stage ended, and what the host did since in the
                       * device's place; the next one makes up for it, up to its own length */
    uint64_t from_ns; /* since when the host works in the device's place; 0: it does not */
} sl_emulated;

/* Modelled time of one stage, scaled. */
uint64_t sl_emulated_ns(const sl_device_spec *d, sl_cost_kind kind, uint64_t rows, uint64_t keys);

/* Lets the stage's time pass. The head is called for a few rows at a time: calls in a row count as
 * one, with one fixed cost. */
void sl_emulated_run(sl_emulated *e, sl_cost_kind kind, uint64_t rows, uint64_t keys);
/* The host begins, and ends, to work in the device's place: it moves rows and makes up logits. What
 * that took is part of the stage that it is for or, where there is none, of the next: a device's
 * times are its costs and nothing else. */
void sl_emulated_begin(sl_emulated *e);
void sl_emulated_end(sl_emulated *e);
/* Lets so much pass: stages that run as one task. */
void sl_emulated_pass(sl_emulated *e, uint64_t ns);

/* What follows token `id` at `pos` where nothing strays. Thread: any. */
uint32_t sl_emulated_follows(const sl_device_spec *d, uint32_t vocab, uint32_t id, uint32_t pos);

#endif
