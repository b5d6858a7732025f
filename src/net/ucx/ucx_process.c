/* What UCX reads from its environment, set before it looks. */
#include "net/ucx/ucx_int.h"

#include <stdlib.h>
#include <strings.h>
#include <ucs/config/global_opts.h>

/* Found by measurement with UCX 1.13: put-based rendezvous doubles the latency of large messages.
 * These keys are read from the environment only. */
static const struct {
    const char *name, *value;
} settings[] = {
    {"UCX_TLS", "tcp"},
    {"UCX_TCP_PUT_ENABLE", "n"},
    {"UCX_TCP_CM_REUSEADDR", "y"},
};

/* UCX reads these when it is loaded, before main. What the user has set is left alone. */
static void set_loaded(const char *name, const char *preset, const char *value) {
    char now[64];
    if (ucs_global_opts_get_value(name, now, sizeof now) == UCS_OK && strcasecmp(now, preset) == 0)
        (void)ucs_global_opts_set_value(name, value);
}

void sl_ucx_setup_process(void) {
    for (size_t i = 0; i < SL_LEN(settings); i++) setenv(settings[i].name, settings[i].value, 0);
    set_loaded("WARN_UNUSED_ENV_VARS", "y", "n");
    /* Its log goes to standard output, which belongs to results; on_down tells what matters. */
    set_loaded("LOG_LEVEL", "warn", "fatal");
}
