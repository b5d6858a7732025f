/* M senders and N receivers, each pair over its own connection: every sender sends BYTES to each
 * receiver, gets them back from each, and goes on: the traffic of attention and expert workers.
 * usage: bench_m2n shm|tcp|ucx [BYTES [SECONDS [DELAY_US [SENDERS [RECEIVERS [windows]]]]]]
 * With DELAY_US sender 0 sleeps that long before each of its rounds. One CSV line: transport,
 * bytes, delay, MB/s of all senders (both ways together), MB/s of all but sender 0, median round of
 * those in microseconds. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "net/probe.h"

#define SECRET     "of this benchmark alone"
#define MAX_SIDE   16u
#define SLOTS      2u /* of windows: one message is under way */
#define MAX_ROUNDS 1000000u
#define ROUND_NS   60000000000ull /* a round that takes longer is a failure */

typedef struct result {
    double mb_per_s, round_us;
} result;

typedef struct load {
    size_t bytes;
    double seconds;
    uint32_t delay_us, receivers, slots; /* of a window; 0: none */
} load;

/* A child: says its address, serves until its senders have left. */
static int run_receiver(const char *transport, const load *l, uint32_t senders, int out) {
    sl_probe n = {.echo = true, .window_slots = l->slots, .window_bytes = l->bytes};
    sl_err err = {0};
    char address[96] = {0};
    if (sl_probe_start(&n, transport, NULL, SECRET, (uint32_t)getpid(), &err) != SL_OK)
        return fprintf(stderr, "%s\n", err.msg), 1;
    snprintf(address, sizeof address, "%s", sl_net_address(n.net));
    if (write(out, address, sizeof address) != (ssize_t)sizeof address) return 1;
    while (n.downs < senders) sl_probe_step(&n);
    sl_net_free(n.net);
    return 0;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static bool run_round(sl_probe *n, sl_conn *const *c, const load *l, uint8_t fill) {
    uint32_t want = n->returned + l->receivers;
    for (uint32_t i = 0; i < l->receivers; i++) {
        sl_err err;
        if (sl_probe_send(n, c[i], l->bytes, fill, &err) != SL_OK) return false;
    }
    return sl_probe_await(n, &n->returned, want, sl_now_ns() + ROUND_NS);
}

/* A child: connects to all, says so, waits for the word, runs its rounds, reports. */
static int run_sender(const char *transport, const load *l, char (*address)[96], int out, int in) {
    sl_probe n = {.window_slots = l->slots, .window_bytes = l->bytes};
    sl_err err = {0};
    sl_conn *c[MAX_SIDE];
    char word = 0;
    double *us = calloc(MAX_ROUNDS, sizeof *us);
    if (!us || sl_probe_start(&n, transport, NULL, SECRET, (uint32_t)getpid(), &err) != SL_OK)
        return fprintf(stderr, "%s\n", err.msg), 1;
    for (uint32_t i = 0; i < l->receivers; i++)
        if (sl_net_connect(n.net, address[i], NULL, &c[i], &err) != SL_OK)
            return fprintf(stderr, "%s\n", err.msg), 1;
    bool ok = sl_probe_await(&n, &n.opened, l->receivers, sl_now_ns() + ROUND_NS);
    for (uint32_t i = 0; ok && i < 8; i++) ok = run_round(&n, c, l, (uint8_t)i); /* warm */
    if (!ok || write(out, "r", 1) != 1 || read(in, &word, 1) != 1) return 1;
    uint64_t begin_ns = sl_now_ns(), now_ns = begin_ns;
    uint32_t rounds = 0;
    while (ok && rounds < MAX_ROUNDS && (double)(now_ns - begin_ns) < l->seconds * 1e9) {
        if (l->delay_us) nanosleep(&(struct timespec){.tv_nsec = (long)l->delay_us * 1000}, NULL);
        uint64_t t0_ns = sl_now_ns();
        ok = run_round(&n, c, l, (uint8_t)rounds);
        now_ns = sl_now_ns();
        us[rounds++] = (double)(now_ns - t0_ns) / 1e3;
    }
    qsort(us, rounds, sizeof *us, compare);
    result r = {.round_us = rounds ? us[rounds / 2] : 0};
    r.mb_per_s = 2.0 * rounds * l->receivers * (double)l->bytes / (double)(now_ns - begin_ns) * 1e3;
    if (!ok || write(out, &r, sizeof r) != (ssize_t)sizeof r) return 1;
    free(us);
    sl_net_free(n.net);
    return 0;
}

static void report(const char *transport, const load *l, const result *r, uint32_t senders) {
    double total = 0, others = 0, rounds[MAX_SIDE];
    for (uint32_t i = 0; i < senders; i++) {
        total += r[i].mb_per_s;
        if (i) others += r[i].mb_per_s;
        rounds[i] = r[i].round_us;
    }
    uint32_t n = senders > 1 ? senders - 1 : 1;
    double *from = senders > 1 ? rounds + 1 : rounds;
    qsort(from, n, sizeof *from, compare);
    printf("%s,%zu,%u,%.0f,%.0f,%.1f\n", transport, l->bytes, l->delay_us, total, others,
           from[n / 2]);
}

/* Reads exactly n bytes; false when the child has ended. */
static bool take(int fd, void *out, size_t n) {
    size_t got = 0;
    for (ssize_t k; got < n && (k = read(fd, (char *)out + got, n - got)) > 0;) got += (size_t)k;
    return got == n;
}

static int run(const char *transport, load l, uint32_t senders) {
    pid_t pid[2 * MAX_SIDE];
    int from[2 * MAX_SIDE][2], to[2 * MAX_SIDE][2];
    char address[MAX_SIDE][96], word;
    result r[MAX_SIDE] = {0};
    uint32_t n = l.receivers + senders;
    bool ok = true;
    for (uint32_t i = 0; i < n; i++) {
        if (pipe(from[i]) != 0 || pipe(to[i]) != 0) return 1;
        load own = l;
        own.delay_us = i == l.receivers ? l.delay_us : 0;
        pid[i] = fork();
        if (pid[i] == 0)
            _exit(i < l.receivers ? run_receiver(transport, &own, senders, from[i][1])
                                  : run_sender(transport, &own, address, from[i][1], to[i][0]));
        close(from[i][1]);
        if (i < l.receivers) ok = ok && take(from[i][0], address[i], sizeof address[i]);
    }
    for (uint32_t i = l.receivers; ok && i < n; i++) ok = take(from[i][0], &word, 1);
    for (uint32_t i = l.receivers; ok && i < n; i++) ok = write(to[i][1], "g", 1) == 1;
    for (uint32_t i = 0; ok && i < senders; i++)
        ok = take(from[l.receivers + i][0], &r[i], sizeof r[i]);
    for (uint32_t i = 0; i < n; i++) {
        if (!ok) kill(pid[i], SIGKILL);
        waitpid(pid[i], NULL, 0);
    }
    if (!ok) return fprintf(stderr, "bench_m2n: a child ended early\n"), 1;
    report(transport, &l, r, senders);
    return 0;
}

static uint32_t number(int argc, char **argv, int i, uint32_t preset) {
    return argc > i ? (uint32_t)strtoul(argv[i], NULL, 10) : preset;
}

int main(int argc, char **argv) {
    if (argc < 2)
        return fprintf(stderr, "usage: bench_m2n shm|tcp|ucx [BYTES [SECONDS [DELAY_US [SENDERS "
                               "[RECEIVERS [windows]]]]]]\n"),
               2;
    load l = {.bytes = number(argc, argv, 2, 262144),
              .seconds = argc > 3 ? strtod(argv[3], NULL) : 2,
              .delay_us = number(argc, argv, 4, 0),
              .receivers = number(argc, argv, 6, 4),
              .slots = argc > 7 && strcmp(argv[7], "windows") == 0 ? SLOTS : 0};
    uint32_t senders = number(argc, argv, 5, 4);
    if (!senders || senders > MAX_SIDE || !l.receivers || l.receivers > MAX_SIDE || !l.bytes ||
        l.bytes > SL_WIRE_MAX_BYTES || l.delay_us >= 1000000)
        return fprintf(stderr,
                       "bench_m2n: 1 to %u senders and receivers, 1 to %u bytes, a delay "
                       "below 1 s\n",
                       MAX_SIDE, SL_WIRE_MAX_BYTES),
               2;
    sl_net_setup_process(argv[1]);
    return run(argv[1], l, senders);
}
