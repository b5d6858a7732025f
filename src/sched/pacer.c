/* How many rows of prompts a step may have beside decodes, learnt from steps. */
#include "sched/pacer.h"

#include "base/status.h"

#define PROBE_EVERY 16u
#define FIRST_CHUNK 8.0 /* before anything is known */
#define NEW_SHARE   0.2 /* of a measurement in the moving averages */
#define MAX_CHUNK   65536.0

#define TAIL_SHARE 0.01  /* of steps without prompt rows that are above tail_us */
#define TAIL_RATE  0.05  /* how far one sample moves it, of decode_us */
#define TAIL_FIRST 1.1   /* times the first step */
#define TAIL_MOST  4.0   /* times decode_us: what was long ago does not count for ever */
#define OVER_SHARE 0.005 /* of mixed steps that are above their bound */
#define GAIN_RATE  0.1   /* how far one of them moves the gain */
#define GAIN_LEAST 0.5

static void blend(double *average, double value) {
    *average = *average > 0 ? *average + NEW_SHARE * (value - *average) : value;
}

uint32_t sl_pacer_chunk(sl_pacer *p, uint32_t decode_rows) {
    if (decode_rows == 0) return UINT32_MAX;
    if (p->decode_us <= 0 || p->mixed >= PROBE_EVERY) {
        p->mixed = 0;
        return 0;
    }
    p->mixed++;
    if (p->row_us <= 0) return (uint32_t)FIRST_CHUNK;
    double chunk = (1 - p->slack) * (p->stretch - 1) * p->decode_us / p->row_us;
    if (chunk > MAX_CHUNK) return (uint32_t)MAX_CHUNK;
    return chunk < 1 ? 1 : (uint32_t)chunk;
}

static void learn_decode(sl_pacer *p, double us) {
    blend(&p->decode_us, us);
    if (p->tail_us <= 0) p->tail_us = TAIL_FIRST * us;
    double up = TAIL_RATE * p->decode_us, down = up * TAIL_SHARE / (1 - TAIL_SHARE);
    p->tail_us += us > p->tail_us ? up : -down;
    p->tail_us = SL_MIN(SL_MAX(p->tail_us, p->decode_us), TAIL_MOST * p->decode_us);
}

static void learn_gain(sl_pacer *p, double us) {
    double gain = 1 - p->slack, bound = (1 + (p->stretch - 1) * 4 / 3) * p->tail_us;
    gain *= us > bound ? 1 - GAIN_RATE : 1 + GAIN_RATE * OVER_SHARE / (1 - OVER_SHARE);
    p->slack = 1 - SL_MIN(SL_MAX(gain, GAIN_LEAST), 1.0);
}

void sl_pacer_learn(sl_pacer *p, uint32_t decode_rows, uint32_t prompt_rows, uint64_t step_us) {
    double us = (double)step_us > 1 ? (double)step_us : 1;
    if (decode_rows == 0) return;
    if (prompt_rows == 0) {
        learn_decode(p, us);
        return;
    }
    if (p->decode_us <= 0) return;
    /* At least a sliver, so that one lucky measurement does not open the gate wide. */
    double extra = us - p->decode_us, least = us * 0.01;
    blend(&p->row_us, (extra > least ? extra : least) / prompt_rows);
    learn_gain(p, us);
}
