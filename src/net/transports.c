/* The table of transports. */
#include "net/transports.h"

#include <stdio.h>
#include <string.h>

#include "net/loop/loop_int.h"
#include "net/shm/shm_int.h"
#include "net/tcp/tcp_int.h"
#ifdef SL_HAVE_UCX
#include "net/ucx/ucx_int.h"
#define NEEDS NULL
#else
#define NEEDS                   "UCX (install libucx-dev, rebuild)"
#define sl_ucx_transport_create NULL
#define sl_ucx_setup_process    NULL
#endif

static const sl_transport_kind kinds[] = {
    {"shm", false, NULL, false, NULL, sl_shm_transport_create, NULL},
    {"tcp", false, "net-tcp", false, NULL, sl_tcp_transport_create, NULL},
    {"ucx", false, "net-ucx", true, NEEDS, sl_ucx_transport_create, sl_ucx_setup_process},
    {"loop", true, NULL, false, NULL, sl_loop_transport_create, NULL},
};

const sl_transport_kind *sl_transport_at(size_t i) {
    return i < SL_LEN(kinds) ? &kinds[i] : NULL;
}

/* "a, b or c" */
static void list(bool machines, char *out, size_t size) {
    size_t n = 0, left = 0, at = 0;
    for (size_t i = 0; i < SL_LEN(kinds); i++) n += !machines || kinds[i].machines;
    for (size_t i = 0; i < SL_LEN(kinds); i++) {
        if (machines && !kinds[i].machines) continue;
        left = n - at++;
        size_t used = strlen(out);
        snprintf(out + used, size - used, "%s%s", kinds[i].name,
                 left > 2    ? ", "
                 : left == 2 ? " or "
                             : "");
    }
}

const sl_transport_kind *sl_transport_find(const char *name, bool machines, sl_err *err) {
    char names[128] = "";
    bool there = false;
    for (size_t i = 0; i < SL_LEN(kinds); i++) {
        if (!name || strcmp(kinds[i].name, name) != 0) continue;
        if (!machines || kinds[i].machines) return &kinds[i];
        there = true;
    }
    list(machines, names, sizeof names);
    sl_fail(err, SL_ERR_ARG, "transport '%.20s'%s: %s expected", name ? name : "",
            there ? " does not reach other machines" : "", names);
    return NULL;
}
