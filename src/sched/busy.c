/* How long tasks of an expert worker take, and who is to hear of it. */
#include "sched/busy.h"

#include "base/status.h"

#define LEARN_US 1000.0 /* so much longer than usual counts in any case */
#define LONG     2.0    /* times as long as is typical is worth a word */

/* The smallest power of two that is not below `rows`, as its exponent. */
static uint32_t class_of(uint64_t rows) {
    uint32_t c = 0;
    while (c < SL_BUSY_CLASSES - 1 && (1ull << c) < rows) c++;
    return c;
}

uint64_t sl_busy_usual(const sl_busy *b, uint64_t rows) {
    if (rows == 0) return 0;
    uint32_t c = class_of(rows), below = c, above = c;
    while (below > 0 && b->usual_us[below] <= 0) below--;
    while (above < SL_BUSY_CLASSES - 1 && b->usual_us[above] <= 0) above++;
    double us = SL_BUSY_UNKNOWN_US;
    if (b->usual_us[below] > 0)
        us = b->usual_us[below] * (double)(1ull << (c - below));
    else if (b->usual_us[above] > 0)
        us = b->usual_us[above];
    return (uint64_t)SL_MIN(us, (double)SL_BUSY_MOST_US);
}

uint64_t sl_busy_begins(sl_busy *b, uint64_t rows, uint64_t behind, uint64_t now_us) {
    uint64_t us = sl_busy_usual(b, rows) + sl_busy_usual(b, behind);
    if (us < SL_BUSY_SAY_US || (double)us < LONG * b->typical_us) return 0;
    if (now_us + us <= b->said_until_us) return 0;
    b->said_until_us = now_us + 2 * us;
    return SL_MIN(us, SL_BUSY_MOST_US);
}

void sl_busy_ends(sl_busy *b, uint64_t rows, uint64_t us) {
    double *usual = &b->usual_us[class_of(rows)], took_us = SL_MAX((double)us, 1.0);
    if (rows == 0) return;
    if (*usual > 0)
        sl_busy_learn(usual, took_us, LEARN_US);
    else
        *usual = took_us;
    sl_busy_learn(&b->typical_us, took_us, LEARN_US);
}
