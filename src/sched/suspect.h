/* Whether a request kills workers, by the losses of workers that it was in flight at.
 *
 *              crashed, the second time            crashed while it ran alone
 *      FREE ---------------------------> SUSPECT -----------------------------> END
 *        ^                                  |
 *        +----------------------------------+
 *          it ran alone and got further than it ever had, or
 *          what it was beside is explained by somebody who was there each time
 *
 * A crash is an end that a process made of itself (SIGSEGV and the like), not a kill, not a drain.
 * Requests that were in flight at two of them are suspects: they are held back and tried one at a
 * time, alone (sl_admit_suspect), so that the third crash has one possible cause. A worker may have
 * crashed before the suspect started, unheard of as yet: one that has given no sign of life since
 * proves nothing, unless that happens twice. Which loss was a crash may be heard later than the
 * loss, so losses have numbers.
 *
 * One record a request, zeroed is FREE; plain values, no memory. Thread: owner of the record. */
#ifndef SL_SCHED_SUSPECT_H
#define SL_SCHED_SUSPECT_H

#include <stdbool.h>
#include <stdint.h>

#define SL_SUSPECT_CRASHES 2u /* beside so many it is suspected */
#define SL_SUSPECT_LOSSES  6u /* that are remembered; crashes longest */
/* Tokens further than at any crash clear it: what crashed is computed again within so many, as
 * tokens that were on their way when a worker ended are lost. */
#define SL_SUSPECT_TOKENS 4u

typedef struct sl_suspect_loss {
    uint64_t number;
    bool crash;
    bool alone;   /* nobody else was in flight there... */
    bool heard;   /* ...and the worker has given a sign of life since that was so */
    bool experts; /* the worker had experts: rows of all workers come together there */
} sl_suspect_loss;

typedef struct sl_suspect {
    sl_suspect_loss loss[SL_SUSPECT_LOSSES]; /* in the order in which they came */
    uint32_t n;
    bool held;       /* it is suspected; for reading */
    bool everywhere; /* to be alone it has to be so at all workers; for reading */
    uint32_t goal;   /* tokens drawn that clear it */
} sl_suspect;

typedef enum sl_suspect_verdict {
    SL_SUSPECT_FREE, /* nothing follows */
    SL_SUSPECT_HOLD, /* it goes on only alone, as wide as `everywhere` says */
    SL_SUSPECT_END,  /* it is why */
} sl_suspect_verdict;

/* A worker is lost at which it was in flight. number: of the loss, growing, from 1 on. */
void sl_suspect_beside(sl_suspect *s, sl_suspect_loss loss);
/* The loss of that number was a crash. drawn: tokens of the request that are known. */
sl_suspect_verdict sl_suspect_crashed(sl_suspect *s, uint64_t number, uint32_t drawn);
/* So many are known while it runs alone: true if that clears it. */
bool sl_suspect_drawn(sl_suspect *s, uint32_t drawn);
/* The culprit's crashes are explained: true if that clears this one. */
bool sl_suspect_explained(sl_suspect *s, const sl_suspect *culprit);
/* Crashes beside which it ran. */
uint32_t sl_suspect_crashes(const sl_suspect *s);

#endif
