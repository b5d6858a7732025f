/* Half round trips between two processes over a transport of the fabric.
 *
 * usage: bench_net TRANSPORT [ROUNDS [sums|encrypt]]
 *
 * sums: a checksum over each message; encrypt: each is encrypted. One CSV line a size: transport,
 * payload bytes, rounds, p10, p50, p90 in microseconds. The process starts itself again as the peer
 * that answers ("echo"). */
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net/probe.h"

#define WARM_UP     100u
#define SECRET      "of this benchmark alone"
#define DEADLINE_NS 120000000000ull

extern char **environ;

/* What messages have beside their bytes, by its name. */
static sl_net_when has(const char *extra, const char *name) {
    return extra && strcmp(extra, name) == 0 ? SL_NET_WHEN_ON : SL_NET_WHEN_OFF;
}

static int run_echo(const char *transport, const char *extra) {
    sl_probe n = {.echo = true, .sums = has(extra, "sums"), .encrypt = has(extra, "encrypt")};
    sl_err err = {0};
    if (sl_probe_start(&n, transport, NULL, SECRET, (uint32_t)getpid(), &err) != SL_OK)
        return fprintf(stderr, "%s\n", err.msg), 1;
    printf("%s\n", sl_net_address(n.net));
    fflush(stdout);
    uint64_t end_ns = sl_now_ns() + DEADLINE_NS;
    while (!n.downs && sl_now_ns() < end_ns) sl_probe_step(&n);
    sl_net_free(n.net);
    return 0;
}

static int compare_ns(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static int measure(sl_probe *n, sl_conn *c, const char *transport, size_t bytes, uint32_t rounds) {
    uint64_t *ns = calloc(rounds, sizeof *ns);
    if (!ns) return 1;
    for (uint32_t i = 0; i < rounds + WARM_UP; i++) {
        sl_err err;
        uint64_t begin_ns = sl_now_ns();
        uint32_t want = n->returned + 1;
        if (sl_probe_send(n, c, bytes, (int)i, &err) != SL_OK ||
            !sl_probe_await(n, &n->returned, want, begin_ns + DEADLINE_NS))
            break;
        if (i >= WARM_UP) ns[i - WARM_UP] = sl_now_ns() - begin_ns;
    }
    qsort(ns, rounds, sizeof *ns, compare_ns);
    printf("%s,%zu,%u,%.2f,%.2f,%.2f\n", transport, bytes, rounds, (double)ns[rounds / 10] / 2e3,
           (double)ns[rounds / 2] / 2e3, (double)ns[rounds / 10 * 9] / 2e3);
    free(ns);
    return n->downs != 0;
}

static pid_t spawn_echo(const char *program, const char *transport, const char *extra,
                        char *address, size_t cap) {
    int out[2];
    pid_t pid = 0;
    posix_spawn_file_actions_t fa;
    if (pipe2(out, O_CLOEXEC) != 0) return 0;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, out[1], 1);
    char *argv[] = {(char *)(uintptr_t)program, (char *)(uintptr_t)transport, "echo",
                    (char *)(uintptr_t)extra, NULL};
    int rc = posix_spawn(&pid, program, &fa, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    close(out[1]);
    size_t n = 0;
    while (rc == 0 && n < cap - 1 && read(out[0], address + n, 1) == 1 && address[n] != '\n') n++;
    address[n] = 0;
    close(out[0]);
    return rc == 0 && n > 0 ? pid : 0;
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {8, 4096, 65536, 262144, 1048576, 4194304};
    if (argc < 2) return fprintf(stderr, "usage: bench_net shm|tcp [ROUNDS [sums|encrypt]]\n"), 2;
    sl_net_setup_process(argv[1]);
    const char *extra = argc > 3 ? argv[3] : NULL;
    if (argc > 2 && strcmp(argv[2], "echo") == 0) return run_echo(argv[1], extra);
    uint32_t rounds = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 1000;
    sl_probe n = {.sums = has(extra, "sums"), .encrypt = has(extra, "encrypt")};
    sl_err err = {0};
    sl_conn *c = NULL;
    char address[96];
    pid_t pid = spawn_echo("/proc/self/exe", argv[1], extra, address, sizeof address);
    if (!pid) return fprintf(stderr, "bench_net: the peer did not start\n"), 1;
    sl_status st = sl_probe_start(&n, argv[1], NULL, SECRET, (uint32_t)getpid(), &err);
    if (st == SL_OK) st = sl_net_connect(n.net, address, NULL, &c, &err);
    int bad = st != SL_OK || !sl_probe_await(&n, &n.opened, 1, sl_now_ns() + DEADLINE_NS);
    if (bad) fprintf(stderr, "bench_net: no connection: %s\n", err.msg);
    for (size_t i = 0; !bad && i < SL_LEN(sizes); i++)
        bad = measure(&n, c, argv[1], sizes[i], rounds < 10 ? 10 : rounds);
    sl_net_free(n.net);
    if (bad) kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return bad;
}
