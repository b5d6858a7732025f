/* Ranks that wait at addresses of this machine as they would on others: `sluice rank`, for tests
 * that draw deployments. Thread: one. */
#ifndef SL_TESTS_RANK_SERVERS_H
#define SL_TESTS_RANK_SERVERS_H

#include "base/status.h"
#include "kernel/slots.h"
#include "spec/plan.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANK_SECRET  "a secret of ranks that tests draw"
#define RANK_SERVERS 64u

static struct {
    pid_t pid[RANK_SERVERS];
    int held[RANK_SERVERS]; /* sockets that hold their ports: nobody else is given these */
    uint32_t n;
    char secret[64]; /* file with it; "": not written yet */
} rank_servers;

static void forget_rank_secret(void) {
    unlink(rank_servers.secret);
}

static void write_rank_secret(void) {
    if (rank_servers.secret[0]) return;
    snprintf(rank_servers.secret, sizeof rank_servers.secret, "/tmp/sluice-ranks-XXXXXX");
    const int fd = mkstemp(rank_servers.secret);
    const size_t n = strlen(RANK_SECRET);
    if (fd < 0 || write(fd, RANK_SECRET, n) != (ssize_t)n || close(fd)) abort();
    atexit(forget_rank_secret);
}

/* One that only who asks for it by number gets from here on: a socket that may share its address
 * and does not listen is bound to it. */
static uint16_t hold_port(int *fd) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t n = sizeof at;
    const int one = 1;
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0 || setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
        bind(*fd, (struct sockaddr *)&at, n) || getsockname(*fd, (struct sockaddr *)&at, &n))
        abort();
    return ntohs(at.sin_port);
}

static uint16_t serve_rank(const char *program, const char *folder) {
    char port[8];
    if (rank_servers.n == RANK_SERVERS) abort();
    const uint16_t at = hold_port(&rank_servers.held[rank_servers.n]);
    snprintf(port, sizeof port, "%u", at);
    const pid_t parent = getpid(), pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody */
        if (getppid() != parent) _exit(1);
        execl(program, program, "rank", folder, "--fabric-port", port, "--secret-file",
              rank_servers.secret, "--threads", "1", "--isa", sl_kernels_base()->name, "--log",
              "warn", (char *)NULL);
        _exit(127);
    }
    rank_servers.pid[rank_servers.n++] = pid;
    return at;
}

/* All ranks beside the first of the plan's workers, which are machines from here on. They need not
 * be there before their worker. */
static void serve_ranks_of(const char *program, const char *folder, sl_plan *p) {
    write_rank_secret();
    for (uint32_t i = 0; i < p->n_workers; i++) {
        sl_plan_worker *w = &p->worker[i];
        size_t at = 0;
        for (uint32_t r = 1; r < sl_plan_all_ranks(p, w->roles); r++)
            at += (size_t)snprintf(w->ranks + at, sizeof w->ranks - at, "%s127.0.0.1:%u",
                                   r > 1 ? "," : "", serve_rank(program, folder));
    }
    p->rank_kind = SL_RANKS_MACHINES;
}

static void stop_rank_servers(void) {
    for (uint32_t i = 0; i < rank_servers.n; i++) kill(rank_servers.pid[i], SIGKILL);
    for (uint32_t i = 0; i < rank_servers.n; i++) {
        (void)waitpid(rank_servers.pid[i], NULL, 0);
        close(rank_servers.held[i]);
    }
    rank_servers.n = 0;
}

#endif
