#include <stdlib.h>
#include <string.h>

#include "net/net.h"

typedef struct setting {
    const char *name, *shm, *tcp; /* NULL: left alone */
} setting;

/* Found by measurement with UCX 1.13: without error handling on the shared-memory segments two
 * processes of one box silently talk TCP; segments of 32 KB halve the latency of large messages;
 * put-based rendezvous doubles it. These keys are read from the environment only. */
static const setting settings[] = {
    {"UCX_TLS", "shm,tcp,self", "tcp"},
    {"UCX_POSIX_ERROR_HANDLING", "y", NULL},
    {"UCX_SYSV_ERROR_HANDLING", "y", NULL},
    {"UCX_POSIX_SEG_SIZE", "32k", NULL},
    {"UCX_SYSV_SEG_SIZE", "32k", NULL},
    {"UCX_TCP_PUT_ENABLE", "n", "n"},
    {"UCX_TCP_CM_REUSEADDR", "y", "y"},
    {"UCX_WARN_UNUSED_ENV_VARS", "n", "n"},
    /* Standard output belongs to results; a dead peer is reported through on_down. */
    {"UCX_LOG_FILE", "stderr", "stderr"},
    {"UCX_LOG_LEVEL", "fatal", "fatal"},
    /* A crash is the program's to report. */
    {"UCX_HANDLE_ERRORS", "none", "none"},
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    {"UCX_MEM_EVENTS", "n", "n"},
#endif
};

void sl_net_setup_process(const char *transport) {
    bool shm = strcmp(transport, "shm") == 0;
    if (!shm && strcmp(transport, "tcp") != 0) return;
    for (size_t i = 0; i < SL_LEN(settings); i++) {
        const char *value = shm ? settings[i].shm : settings[i].tcp;
        if (value) setenv(settings[i].name, value, 0);
    }
}
