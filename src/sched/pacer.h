/* How much of waiting prompts may ride on a step of requests that are decoding: so much that the
 * step takes on average at most `stretch` times as long as without it, and 199 of 200 such steps at
 * most 1 + 4/3 (stretch - 1) times what 99 of 100 steps without prompt rows take. Learns from
 * measured steps; pure: time comes in as arguments. Thread: owner.
 *
 *   chunk = gain * (stretch - 1) * decode_us / row_us
 *   decode_us: moving average of steps without prompt rows (every PROBE_EVERYth mixed step is one,
 * so that it stays fresh); row_us: moving average of what one prompt row adds to a step.
 *   tail_us: the 99th percentile of steps without prompt rows, and gain, a factor of at most 1, by
 * stochastic approximation (Robbins and Monro, 1951): each moves up and down in such proportion
 * that it rests where the share of samples above the bound is the one that is asked for. */
#ifndef SL_SCHED_PACER_H
#define SL_SCHED_PACER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sl_pacer {
    double stretch;   /* >= 1 */
    double decode_us; /* 0: not measured yet */
    double tail_us;   /* with decode_us */
    double row_us;    /* 0: not measured yet */
    double slack;     /* 1 - gain */
    uint32_t mixed;   /* mixed steps since the last probe */
} sl_pacer;

/* Most prompt rows of the next step when `decode_rows` requests decode; UINT32_MAX: no limit
 * (nobody decodes); 0: none this time, the step is a probe. */
uint32_t sl_pacer_chunk(sl_pacer *p, uint32_t decode_rows);

/* A step of so many rows took so long. Steps without decoding rows teach nothing. */
void sl_pacer_learn(sl_pacer *p, uint32_t decode_rows, uint32_t prompt_rows, uint64_t step_us);

#endif
