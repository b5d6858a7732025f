#include <stdlib.h>
#include <string.h>
#include <strings.h>
#ifdef SL_HAVE_UCX
#include <ucs/config/global_opts.h>
#endif

#include "net/net.h"

typedef struct setting {
    const char *name, *value;
} setting;

/* Found by measurement with UCX 1.13: put-based rendezvous doubles the latency of large messages.
 * These keys are read from the environment only. */
static const setting settings[] = {
    {"UCX_TLS", "tcp"},
    {"UCX_TCP_PUT_ENABLE", "n"},
    {"UCX_TCP_CM_REUSEADDR", "y"},
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
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    /* For child processes: its memory hooks, installed before main, crash under ThreadSanitizer. */
    setenv("UCX_MEM_EVENTS", "n", 0);
#endif
    if (strcmp(transport, "ucx") != 0) return;
    for (size_t i = 0; i < SL_LEN(settings); i++) setenv(settings[i].name, settings[i].value, 0);
#ifdef SL_HAVE_UCX
    set_loaded("WARN_UNUSED_ENV_VARS", "y", "n");
    /* Its log goes to standard output, which belongs to results; on_down tells what matters. */
    set_loaded("LOG_LEVEL", "warn", "fatal");
#endif
}
