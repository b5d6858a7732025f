/* What stages of a model and messages of a transport cost on this machine, measured alone and in
 * well under two seconds: enough to choose a schedule, not to predict throughput to the percent.
 * Thread: owner. */
#ifndef SL_ENGINE_MEASURE_H
#define SL_ENGINE_MEASURE_H

#include "base/status.h"
#include "spec/activations.h"
#include "spec/costs.h"
#include "spec/model.h"
#include "spec/plan.h"

typedef struct sl_measure_opts {
    const char *model_folder;
    const sl_model_spec *m;
    const char *isa;  /* as of sl_kernels_select; NULL or "": its base */
    uint32_t threads; /* of one worker */
    sl_activations activations;
    uint32_t roles;               /* whose stages; what others have stays 0 */
    const sl_device_spec *device; /* what computes, not emulated; NULL: processors. Borrowed */
    void (*tick)(void *ctx);      /* called now and then meanwhile; NULL: never */
    void *ctx;
    uint32_t rows, keys; /* most rows of a step; keys of a decoding row's context */
} sl_measure_opts;

/* Attention, router, shared and routed experts of one MoE block: of each the time of one row and
 * of as many as 0.1 s allow, the best of a few calls. floor_us is the first, row_us and key_us the
 * slopes; out->link is left alone. The weights of a block are opened, and read where they are used,
 * or copied to the GPU. What a worker waits for with each call is in it: copies, too. */
sl_status sl_measure_stages(const sl_measure_opts *o, sl_costs *out, sl_err *err) SL_MUST_CHECK;

/* Of one kind of device. */
typedef struct sl_kind_costs {
    sl_costs costs;      /* its stages; no link */
    sl_link_cost copies; /* of each message from a worker there, or to it, besides: half of what
                          * rows take to the host and back. Of processors nothing */
} sl_kind_costs;

/* What tells kinds of devices apart: as sl_measure_stages of both roles, but of several blocks that
 * take turns, so that no cache holds their weights, and besides blocks without experts, the head,
 * and of a GPU rows on their way to the host and back. o->roles is not read. */
sl_status sl_measure_kind(const sl_measure_opts *o, sl_kind_costs *out, sl_err *err) SL_MUST_CHECK;

/* A link is measured with two messages: one of SL_MEASURE_SHORT bytes, and a longer one, half of a
 * step of `rows` rows of so many bytes. What follows from the time that either is under way. */
#define SL_MEASURE_SHORT  64u
#define SL_MEASURE_MOST   ((size_t)1 << 20) /* bytes of the longer one */
#define SL_MEASURE_ROUNDS 15u               /* there and back, that count; before them... */
#define SL_MEASURE_WARM   2u                /* ...so many that do not */
size_t sl_measure_long(double row_bytes, uint32_t rows);
sl_link_cost sl_measured_link(double short_us, double long_us, size_t long_bytes);
/* The median of us[n], which is sorted. */
double sl_measured_median(double *us, uint32_t n);

/* Half a round trip between two ends of the transport in this process: of a short message and of
 * one of `bytes` bytes, medians. delay_us, seed: of "loop". */
sl_status sl_measure_link(const char *transport, size_t bytes, uint64_t seed, uint32_t delay_us,
                          sl_link_cost *out, sl_err *err) SL_MUST_CHECK;

#endif
