/* A process that is started again when it ends, until a signal or its own end says that it is
 * over. */
#ifndef SL_TOOLS_SUPERVISE_H
#define SL_TOOLS_SUPERVISE_H

#include "base/status.h"

#include <stdbool.h>

#define SL_SUPERVISED_WORDS 40 /* of a command line, with the NULL behind the last */

typedef struct sl_supervised {
    const char *who; /* in the log: "worker 2" */
    /* The command line of the next process, a path first, NULL behind the last word; borrowed until
     * the next call. SL_ERR_CANCELLED: it is over, and that is well. Another error is logged once,
     * and the question comes again a second later. */
    sl_status (*words)(void *ctx, const char *out[SL_SUPERVISED_WORDS], sl_err *err);
    /* It ended by itself after so many seconds, with an exit status, or 128 and the number of a
     * signal. True: another one is wanted. */
    bool (*again)(void *ctx, int status, double lived_s);
    void *ctx;
    /* SIGTERM, SIGINT and SIGUSR1 to this process end the whole. Deaf: they are not passed on, the
     * process hears from elsewhere that it is over. Else it gets SIGTERM, or SIGINT. Whoever still
     * lives stop_s seconds later is killed. */
    bool deaf;
    double stop_s;
} sl_supervised;

/* Returns what this process exits with: 0 when it is over, else the last process's status. The
 * process dies with this one, however that ends. Thread: main, alone. */
int sl_supervise(const sl_supervised *s);

#endif
