/* Experts of one block moved one by one, where workers differ: in what an expert costs there, in
 * how many they have room for, in how many they can get at once. What is there is the beginning, so
 * that little moves:
 *
 *   of the dearest worker i a piece p goes to a worker j, or changes places with a piece q of j,
 *   where max(load_i', load_j') is least, as long as that is less than load_i by 1 in STEP_WORTH
 *
 * Nobody gets dearer than the dearest was, so it ends: at 64 steps at the latest, as what moves has
 * to be brought there. So what costs most where it is slow goes first to where it is fast, and what
 * is asked for least gives way there.
 *
 * Pure; nothing allocates. Thread: any. */
#ifndef SL_PLAN_SHIFT_H
#define SL_PLAN_SHIFT_H

#include "plan/fill.h"

#define SL_SHIFT_KINDS 2u

typedef struct sl_shift_host {
    uint32_t worker;
    uint8_t kind;   /* below SL_SHIFT_KINDS */
    uint32_t slots; /* experts of the block that it may have; what it has above that may stay */
    uint32_t gets;  /* of them that it has not and may get */
    double load;    /* microseconds; shift's to write, as what is behind it */
    uint32_t n;
} sl_shift_host;

typedef struct sl_shift {
    sl_fill_piece *piece; /* [n] by expert; each is at one of the hosts, no expert twice at one */
    uint32_t n;
    const double *us[SL_SHIFT_KINDS]; /* [n] what each costs at a host of either kind */
    uint32_t *home;                   /* [n] scratch: hosts (their index) where they are, ... */
    uint32_t *at;                     /* [n] ...and come to be */
    sl_shift_host *host;              /* [n_hosts] ascending */
    uint32_t n_hosts;
} sl_shift;

/* Moves pieces; they are not sorted by worker afterwards. What the dearest host costs then. *lacks:
 * a worker that would have got one at the last and may not, UINT32_MAX: there is none. */
double sl_shift_run(sl_shift *s, uint32_t *lacks);

#endif
