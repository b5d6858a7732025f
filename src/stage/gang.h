/* Processes of a gang's ranks (docs/tensor-parallel.md). A device whose ranks are processes starts
 * them as `/proc/self/exe worker --rank-fd FD`: a program that opens such devices calls
 * sl_gang_run_rank where it is started so. Ranks on machines are there before their worker is. */
#ifndef SL_STAGE_GANG_H
#define SL_STAGE_GANG_H

#include "base/span.h"
#include "base/status.h"
#include "net/net.h"

#include <stdint.h>

/* Computes as the rank that who holds the other end of the socket says, until it is told to leave
 * (SL_OK) or that end is closed (SL_ERR_PEER_DOWN). Takes the socket. From here on SIGINT, SIGTERM
 * and SIGHUP do nothing to this process: it ends with the one that started it. Thread: the only
 * one. */
sl_status sl_gang_run_rank(int fd, sl_err *err) SL_MUST_CHECK;

/* ---- ranks on machines ---- */

typedef struct sl_rank_server {
    const char *folder; /* of the model */
    const char *isa;    /* as of sl_kernels_select; NULL or "": its base */
    uint32_t threads;   /* kernel threads of the rank */
    bool numa;          /* as of sl_device_opts */
    const char *host;   /* to listen at */
    uint16_t port;      /* 0: any free one */
    sl_span secret;     /* of the fabric: whoever calls proves to have it */
    /* What it and others of its gang say to each other; see sl_net_opts. ON: who calls in the clear
     * is refused. */
    sl_net_when encrypt;
    /* Where it listens, before anybody is waited for. NULL: nobody asks. */
    void (*listens)(void *ctx, const char *address);
    /* The gang is gone, or this rank cannot go on with it: starts this process anew, or ends it.
     * Never returns. */
    void (*again)(void *ctx, const sl_err *err);
    void *ctx;
} sl_rank_server;

/* Waits until a worker calls whose ranks are on machines (sl_device_opts.ranks_at), computes as the
 * rank that it says until it is told to leave, and returns then. SL_ERR_IO: the address cannot be
 * listened at; SL_ERR_NOTFOUND and others: of the model. What goes wrong once there is a gang is
 * for `again`. Thread: the only one. */
sl_status sl_gang_serve_rank(const sl_rank_server *o, sl_err *err) SL_MUST_CHECK;

#endif
