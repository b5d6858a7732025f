#include "sched/pacer.h"

#define PROBE_EVERY 32u
#define FIRST_CHUNK 8.0 /* before anything is known */
#define NEW_SHARE   0.2 /* of a measurement in the moving averages */
#define MAX_CHUNK   65536.0

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
    double chunk = (p->stretch - 1) * p->decode_us / p->row_us;
    if (chunk > MAX_CHUNK) return (uint32_t)MAX_CHUNK;
    return chunk < 1 ? 1 : (uint32_t)chunk;
}

void sl_pacer_learn(sl_pacer *p, uint32_t decode_rows, uint32_t prompt_rows, uint64_t step_us) {
    double us = (double)step_us > 1 ? (double)step_us : 1;
    if (decode_rows == 0) return;
    if (prompt_rows == 0) {
        blend(&p->decode_us, us);
        return;
    }
    /* At least a sliver, so that one lucky measurement does not open the gate wide. */
    double extra = us - p->decode_us, least = us * 0.01;
    if (p->decode_us > 0) blend(&p->row_us, (extra > least ? extra : least) / prompt_rows);
}
