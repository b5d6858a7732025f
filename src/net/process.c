/* What a process sets up for its transport before it has threads. */
#include <stdlib.h>

#include "net/transports.h"

void sl_net_setup_process(const char *transport) {
    sl_err unknown; /* said where the net is created */
    const sl_transport_kind *kind = sl_transport_find(transport, false, &unknown);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    /* For child processes: UCX's memory hooks, installed before main, crash under ThreadSanitizer.
     */
    setenv("UCX_MEM_EVENTS", "n", 0);
#endif
    if (kind && kind->setup_process) kind->setup_process();
}
