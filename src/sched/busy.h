/* How long an expert worker has to do, as it tells attention workers, so that nobody takes it for
 * slow while it computes what somebody else has sent (sched/hedge.h). An attention worker knows its
 * own rows; what all others have sent only the expert worker knows.
 *
 * What tasks usually take is learnt by size, one by one and from none very much: a worker that has
 * become slow goes on to promise what it took before. It says a word when a task begins that takes
 * longer than most, with what waits behind it, and not again before what it said is nearly over.
 *
 * No I/O, clock or threads; no memory. Times are microseconds of one clock. Thread: owner. */
#ifndef SL_SCHED_BUSY_H
#define SL_SCHED_BUSY_H

#include <stdint.h>

#define SL_BUSY_CLASSES 25u /* of tasks by rows: 1, 2, 3..4, 5..8, ... */
#define SL_BUSY_SAY_US  2000u
/* Of the first task: weights may have to come from a disk. */
#define SL_BUSY_UNKNOWN_US 500000u
/* Nobody is believed to have more to do than this. */
#define SL_BUSY_MOST_US 30000000u
/* Rows that wait for others of their round are nobody's work: this is looked for so often, and who
 * has sent them hears so, every time when so much more has passed. */
#define SL_BUSY_WAITS_US 20000u
#define SL_BUSY_AGAIN_US 100000u

typedef struct sl_busy {
    double usual_us[SL_BUSY_CLASSES]; /* of tasks of that size; 0: there was none */
    double typical_us;                /* of all */
    uint64_t said_until_us;           /* nothing is to be said of what ends before */
} sl_busy;

/* What is usual follows what is met slowly, up more slowly than down, and nothing that is met once
 * changes it by much, as no more counts than twice what is usual and `over`: a worker that has
 * become slow is to be noticed before that is usual. */
static inline void sl_busy_learn(double *usual, double met, double over) {
    double most = 2 * *usual + over, by = (met < most ? met : most) - *usual;
    *usual += by / (by > 0 ? 96 : 32);
}

/* How long so many rows usually take; with none known of their size, rather too long. */
uint64_t sl_busy_usual(const sl_busy *b, uint64_t rows);
/* A task of so many rows begins, and others of so many rows in all wait behind it. How long that
 * takes, if it is to be said; else 0. */
uint64_t sl_busy_begins(sl_busy *b, uint64_t rows, uint64_t behind, uint64_t now_us);
/* It has ended. */
void sl_busy_ends(sl_busy *b, uint64_t rows, uint64_t us);

#endif
