/* Weights on the memory node of the cores that compute with them: which node that is, and what
 * became of it, in the log. For src/stage/cpu only. Thread: the one that opens the device. */
#ifndef SL_STAGE_CPU_NEAR_H
#define SL_STAGE_CPU_NEAR_H

#include "base/numa.h"
#include "base/topology.h"
#include "spec/gang.h"

#include <stdbool.h>

/* "rank 1 of 2: ", or nothing: what lines of the log about weights begin with. */
typedef struct sl_cpu_who {
    char text[40];
} sl_cpu_who;
sl_cpu_who sl_cpu_who_is(sl_rank is);

/* Pages may be moved from here on to the node of the CPUs that this thread may use. False: there is
 * no such node, or nothing to choose; the log says why. t: of this machine and thread, NULL: is
 * read. */
bool sl_cpu_near_begin(sl_rank is, const sl_topology *t, sl_numa *out);
/* One line: how much is there, was moved, is elsewhere. */
void sl_cpu_near_say(sl_rank is, const sl_numa *n);

#endif
