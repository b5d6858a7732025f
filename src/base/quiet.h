/* Work that gives way to everything else on the machine: preparations that nobody waits for, beside
 * those whose every microsecond a client sees.
 *
 * A thread may lower its priority without privileges, and without them none may raise it again. So
 * such work gets a thread, and the low priority ends with it. */
#ifndef SL_BASE_QUIET_H
#define SL_BASE_QUIET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The calling thread's, for good: a tenth of the time of one that competes for its core. False: it
 * stays as it is. */
bool sl_quiet_thread(void);

/* The same for a process of this user that has one thread. */
bool sl_quiet_process(int pid);

typedef struct sl_quiet {
    /* NULL, or called by the waiting thread about every tick_us. */
    void (*tick)(void *ctx);
    void *ctx;
    uint32_t tick_us;
    uint32_t at_most_ms; /* then *hurry is set */
    bool loud;           /* at the caller's priority from the first on: for the ticks alone */
} sl_quiet;

/* A piece of work, which looks at *hurry now and then: is it set, nobody knows how long the rest
 * would take at a low priority. False: it was given up for that, and is to be begun anew, this time
 * with NULL, which lets it take its time. */
typedef bool (*sl_quiet_work)(void *ctx, const atomic_bool *hurry);

/* Runs work(ctx, hurry) in a thread that runs where nobody else wants the core (SCHED_IDLE), and
 * what was given up there in one of the caller's priority; returns when it is over: what it wrote
 * is the caller's then. Where there is no thread to be had, the caller runs it. Thread: any. */
void sl_quiet_run(const sl_quiet *q, sl_quiet_work work, void *ctx);

#endif
