/* How much of a list of like cases a test takes. What decides is in each case, so that `make test`
 * takes a sample, and a smaller one in builds with a sanitizer, which are several times as slow.
 * With SLUICE_WHOLE in the environment it takes all: tests/long.py, parts `whole`. */
#ifndef SL_TESTS_SANITIZED_H
#define SL_TESTS_SANITIZED_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__SANITIZE_THREAD__)
#define SL_SLOW_BUILD 2 /* times five to fifteen */
#elif defined(__SANITIZE_ADDRESS__) || defined(SL_UNDER_QEMU)
#define SL_SLOW_BUILD 1 /* times two to five; or ten, with two tables of kernels */
#else
#define SL_SLOW_BUILD 0
#endif

/* Whether all of each list is wanted. */
static inline bool take_whole(void) {
    const char *v = getenv("SLUICE_WHOLE");
    return v && *v;
}

/* One in how many cases is taken: `few` of a sample, or all. */
static inline uint32_t take_one_in(uint32_t few) {
    return take_whole() ? 1 : few;
}

#endif
