/* sluice rank: a rank of some worker's gang, on a machine of its own. It computes in a process that
 * is started anew when its gang is gone, so that the worker that comes next finds it. */
#include "cmd.h"

#include "base/log.h"
#include "format/plan_lab.h"
#include "net/net.h"
#include "stage/gang.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CANNOT   2 /* exit status of a rank that cannot serve at all: there is no use in another */
#define PAUSE_US 200000u

static void listens(void *ctx, const char *address) {
    (void)ctx;
    sl_log(SL_LOG_INFO, "rank", "waits for its worker at %s", address);
}

/* The next process waits for the next gang. */
static void again(void *ctx, const sl_err *err) {
    (void)ctx;
    sl_log(SL_LOG_WARN, "rank", "its gang is gone: %s", err->msg);
    exit(1);
}

static int serve(const sl_rank_server *o, pid_t parent) {
    sl_err err;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) return CANNOT; /* it has ended before that */
    if (sl_gang_serve_rank(o, &err) == SL_OK) return 0;
    (void)sl_cmd_fail("rank", &err);
    return CANNOT;
}

/* One process after the other, until one cannot listen, or read the model. */
static int serve_on(const sl_rank_server *o) {
    const pid_t parent = getpid();
    for (;;) {
        int status = 0; /* who ignores SIGCHLD hears of none */
        const pid_t pid = fork();
        if (pid == 0) return serve(o, parent);
        while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
        if (pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == CANNOT) return 1;
        if (pid > 0 && WIFSIGNALED(status))
            sl_log(SL_LOG_ERROR, "rank", "ended by signal %d: another one follows",
                   WTERMSIG(status));
        usleep(PAUSE_US);
    }
}

int cmd_rank(const sl_options *o) {
    sl_err err = {0};
    sl_net_when encrypt = SL_NET_WHEN_AUTO;
    bool numa = false;
    char secret[SL_SECRET_MAX + 1], kernels[SL_KERNELS_SPEC_MAX];
    sl_status st = sl_deploy_secret(o, secret, &err);
    if (st == SL_OK && !secret[0])
        st = sl_fail(&err, SL_ERR_ARG, "--secret-file is missing: workers prove that they have it");
    if (st == SL_OK && !o->fabric_port)
        st = sl_fail(&err, SL_ERR_ARG, "--fabric-port is missing: workers are told where it is");
    if (st == SL_OK) st = sl_net_when_parse("--encrypt", o->encrypt, &encrypt, &err);
    if (st == SL_OK && o->numa[0]) st = sl_numa_parse(o->numa, &numa, &err);
    if (st == SL_OK) st = sl_deploy_kernels(o, kernels, &err);
    if (st != SL_OK) return sl_cmd_fail("rank", &err);
    sl_log_set_who("rank");
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const sl_rank_server r = {.folder = o->arg[0],
                              .isa = kernels,
                              .threads =
                                  o->threads ? o->threads : (uint32_t)SL_MIN(SL_MAX(cores, 1), 256),
                              .numa = numa,
                              .host = o->fabric_host,
                              .port = (uint16_t)o->fabric_port,
                              .secret = {(const uint8_t *)secret, strlen(secret)},
                              .encrypt = encrypt,
                              .listens = listens,
                              .again = again};
    return serve_on(&r);
}
