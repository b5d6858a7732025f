/* What a process that has ended did to itself: who counts faults of workers and of their ranks
 * counts the same. Pure. Thread: any. */
#ifndef SL_BASE_FAULT_H
#define SL_BASE_FAULT_H

#include <signal.h>
#include <stdbool.h>

/* Whether a program is killed by that signal by what it does; whatever else kills it comes from
 * outside. */
static inline bool sl_is_own_fault(int sig) {
    return sig == SIGSEGV || sig == SIGBUS || sig == SIGILL || sig == SIGFPE || sig == SIGABRT;
}

#endif
