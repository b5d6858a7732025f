#include <stdlib.h>
#include <string.h>
#include <strings.h>
#ifdef SL_HAVE_UCX
#include <ucs/config/global_opts.h>
#endif

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
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    /* For child processes: its memory hooks, installed before main, crash under ThreadSanitizer. */
    {"UCX_MEM_EVENTS", "n", "n"},
#endif
};

#ifdef SL_HAVE_UCX
/* UCX reads these when it is loaded, before main. What the user has set is left alone. */
static void set_loaded(const char *name, const char *preset, const char *value) {
    char now[64];
    if (ucs_global_opts_get_value(name, now, sizeof now) == UCS_OK && strcasecmp(now, preset) == 0)
        (void)ucs_global_opts_set_value(name, value);
}
#endif

void sl_net_setup_process(const char *transport) {
    bool shm = strcmp(transport, "shm") == 0;
    if (!shm && strcmp(transport, "tcp") != 0) return;
    for (size_t i = 0; i < SL_LEN(settings); i++) {
        const char *value = shm ? settings[i].shm : settings[i].tcp;
        if (value) setenv(settings[i].name, value, 0);
    }
#ifdef SL_HAVE_UCX
    set_loaded("WARN_UNUSED_ENV_VARS", "y", "n");
    /* Its log goes to standard output, which belongs to results; on_down tells what matters. */
    set_loaded("LOG_LEVEL", "warn", "fatal");
#endif
}
