/* Times of messages between processes of this machine, as the fabric carries them. */
#include "profile.h"

#include "base/clock.h"
#include "net/probe.h"
#include "plan/fit.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_PEERS             4u
#define OPEN_NS               5000000000ull
#define POINT_NS              30000000ull /* a size is repeated for so long */
#define WAIT_US               50000u
#define SL_PROFILE_LINK_SIZES 9u
#define MIN_ROUNDS            10u
#define MAX_ROUNDS            400u
#define WARM_ROUNDS           5u

#define SLOW_NS     1000000000ull /* a size that takes longer is repeated less... */
#define SLOW_ROUNDS 2u
#define SLOWEST_US  600000.0 /* ...and none that would take much longer is tried */

static const size_t sizes[SL_PROFILE_LINK_SIZES] = {64,     1024,   4096,    16384,  65536,
                                                    262144, 524288, 1048576, 4194304};

/* A peer that sends everything back: a child process, or with "loop" a thread. */
typedef struct peer {
    pid_t pid;
    pthread_t thread;
    bool has_thread;
    sl_probe node; /* of the thread */
    atomic_bool stop;
    char address[96];
    sl_conn *conn;
    const char *secret;
} peer;

/* ---- peers ---- */

_Noreturn static void child_main(const char *transport, const char *secret, int out) {
    sl_probe n = {.echo = true, .think_ns = SL_PROFILE_THINK_NS};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (sl_probe_start(&n, transport, NULL, secret, (uint32_t)getpid(), NULL) != SL_OK) _exit(1);
    const char *address = sl_net_address(n.net);
    if (write(out, address, strlen(address) + 1) < 0) _exit(1);
    close(out);
    while (!n.downs) sl_probe_step(&n);
    sl_net_free(n.net);
    _exit(0);
}

static sl_status start_child(peer *p, const char *transport, sl_err *err) {
    int fd[2];
    size_t n = 0;
    if (pipe(fd) != 0) return sl_fail(err, SL_ERR_IO, "no pipe for a peer");
    fflush(NULL);
    p->pid = fork();
    if (p->pid == 0) {
        close(fd[0]);
        child_main(transport, p->secret, fd[1]);
    }
    close(fd[1]);
    while (p->pid > 0 && n < sizeof p->address - 1 && read(fd[0], p->address + n, 1) == 1 &&
           p->address[n])
        n++;
    close(fd[0]);
    if (n == 0) return sl_fail(err, SL_ERR_IO, "a peer over %s did not start", transport);
    return SL_OK;
}

static void *thread_main(void *arg) {
    peer *p = arg;
    while (!atomic_load_explicit(&p->stop, memory_order_acquire)) sl_probe_step(&p->node);
    return NULL;
}

static sl_status start_thread(peer *p, sl_loop_hub *hub, uint32_t id, sl_err *err) {
    p->node.echo = true;
    p->node.think_ns = SL_PROFILE_THINK_NS;
    sl_status st = sl_probe_start(&p->node, "loop", hub, p->secret, id, err);
    if (st != SL_OK) return st;
    snprintf(p->address, sizeof p->address, "%s", sl_net_address(p->node.net));
    p->has_thread = pthread_create(&p->thread, NULL, thread_main, p) == 0;
    return p->has_thread ? SL_OK : sl_fail(err, SL_ERR_IO, "a thread did not start");
}

static void stop_peer(peer *p) {
    if (p->pid > 0) {
        kill(p->pid, SIGTERM);
        waitpid(p->pid, NULL, 0);
    }
    if (p->has_thread) {
        atomic_store_explicit(&p->stop, true, memory_order_release);
        sl_net_wake(p->node.net);
        pthread_join(p->thread, NULL);
    }
    sl_net_free(p->node.net);
}

/* ---- measuring ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One message to each peer and back: false when a connection is gone. The last peer thinks, so that
 * this thread waits for a while. *work_ns: its own time for it. */
static bool round_trip(sl_probe *n, sl_conn *const *peers, uint32_t n_peers, size_t bytes,
                       uint64_t *work_ns) {
    uint32_t want = n->returned + n_peers;
    uint64_t end_ns = sl_now_ns() + OPEN_NS, cpu_ns = sl_thread_cpu_ns();
    for (uint32_t i = 0; i < n_peers; i++) {
        sl_err err;
        bool last = i == n_peers - 1;
        if (sl_probe_send(n, peers[i], bytes, last, &err) != SL_OK) return false;
    }
    *work_ns = sl_thread_cpu_ns() - cpu_ns;
    while (n->returned < want && !n->downs && sl_now_ns() < end_ns) {
        sl_net_wait(n->net, WAIT_US);
        cpu_ns = sl_thread_cpu_ns();
        sl_net_progress(n->net);
        *work_ns += sl_thread_cpu_ns() - cpu_ns;
    }
    return n->returned >= want;
}

/* Lower quartile: what comes on top is mostly others'. */
static double quartile_us(double *us, uint32_t n) {
    qsort(us, n, sizeof *us, by_value);
    return us[n / 4];
}

/* *one_way: of messages to all peers, until the last of them, who waited, has its in hand; it comes
 * back in back_us, and no slower than it went. *work: of that, this thread's own time a message. */
static sl_status measure_size(sl_probe *n, sl_conn *const *peers, uint32_t n_peers, size_t bytes,
                              double back_us, double *one_way, double *work, sl_err *err) {
    double us[MAX_ROUNDS], own_us[MAX_ROUNDS];
    uint32_t count = 0;
    uint64_t first = sl_now_ns(), begin = first, work_ns;
    for (uint32_t i = 0; count < MAX_ROUNDS; i++) {
        sl_probe_think(SL_PROFILE_THINK_NS);
        uint64_t at = sl_now_ns();
        if (!round_trip(n, peers, n_peers, bytes, &work_ns))
            return sl_fail(err, SL_ERR_PEER_DOWN,
                           "a peer went away, or took over %.0f s, at messages of %zu bytes",
                           OPEN_NS / 1e9, bytes);
        uint64_t end = sl_now_ns();
        if (i < WARM_ROUNDS && end - first < SLOW_NS) {
            begin = end;
            continue;
        }
        own_us[count] = (double)work_ns / 2e3 / n_peers;
        double both_us = ((double)(end - at) - SL_PROFILE_THINK_NS) / 1e3;
        us[count++] = SL_MAX(SL_MAX(both_us - back_us, both_us / 2), 1e-3);
        if (count >= MIN_ROUNDS && end - begin > POINT_NS) break;
        if (count >= SLOW_ROUNDS && end - first > 2 * SLOW_NS) break;
    }
    *one_way = quartile_us(us, count);
    *work = quartile_us(own_us, count);
    return SL_OK;
}

sl_status sl_profile_link_measure(sl_probe *n, sl_conn *const *peers, uint32_t n_peers,
                                  const char *name, double *single_us,
                                  sl_profile_progress *progress, sl_profile *p, sl_err *err) {
    sl_profile_point point[SL_PROFILE_LINK_SIZES];
    double work[SL_PROFILE_LINK_SIZES];
    uint32_t count = 0;
    sl_status st = SL_OK;
    if (p->n_links == SL_PROFILE_MAX_LINKS)
        return sl_fail(err, SL_ERR_LIMIT, "more than %d links", SL_PROFILE_MAX_LINKS);
    for (size_t i = 0; st == SL_OK && i < SL_PROFILE_LINK_SIZES; i++) {
        sl_profile_step(progress, name);
        if (count < i || (i > 0 && point[count - 1].us > SLOWEST_US)) continue;
        point[i] = (sl_profile_point){.rows = (double)sizes[i]};
        double back_us = n_peers > 1 ? single_us[i] : INFINITY;
        st = measure_size(n, peers, n_peers, sizes[i], back_us, &point[i].us, &work[i], err);
        if (n_peers == 1) single_us[i] = point[i].us;
        count++;
    }
    if (st != SL_OK) return st;
    sl_profile_link *l = &p->link[p->n_links++];
    snprintf(l->transport, sizeof l->transport, "%s", name);
    l->peers = n_peers;
    st = sl_fit_link(point, count, &l->cost, &l->fit, err);
    l->cost.work_us = SL_MIN(quartile_us(work, count), l->cost.alpha_us / 2);
    return st == SL_OK ? sl_profile_keep(point, count, &l->points, err) : st;
}

static sl_status connect_peers(sl_probe *n, peer *peers, sl_err *err) {
    uint64_t end_ns = sl_now_ns() + OPEN_NS;
    for (uint32_t i = 0; i < MAX_PEERS; i++) {
        sl_status st = sl_net_connect(n->net, peers[i].address, NULL, &peers[i].conn, err);
        if (st != SL_OK) return st;
    }
    if (!sl_probe_await(n, &n->opened, MAX_PEERS, end_ns))
        return sl_fail(err, SL_ERR_TIMEOUT, "%u of %u peers answered", n->opened, MAX_PEERS);
    return SL_OK;
}

sl_status sl_profile_links(const sl_transport_kind *kind, sl_profile_progress *progress,
                           sl_profile *p, sl_err *err) {
    sl_probe n = {0};
    peer *peers = sl_alloc(MAX_PEERS, sizeof *peers);
    sl_loop_hub *hub = NULL;
    double single_us[SL_PROFILE_LINK_SIZES];
    char secret[SL_SECRET_MAX + 1];
    sl_status st = peers ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "peers");
    const char *transport = kind->name;
    if (st == SL_OK) st = sl_secret_make(secret, err);
    if (st == SL_OK && kind->threads) st = sl_loop_hub_create(0, 0, &hub, err);
    for (uint32_t i = 0; st == SL_OK && i < MAX_PEERS; i++) {
        peers[i].secret = secret;
        st = kind->threads ? start_thread(&peers[i], hub, i + 1, err)
                           : start_child(&peers[i], transport, err);
    }
    if (st == SL_OK) st = sl_probe_start(&n, transport, hub, secret, (uint32_t)getpid(), err);
    if (st == SL_OK) st = connect_peers(&n, peers, err);
    sl_conn *conns[MAX_PEERS] = {NULL};
    for (uint32_t i = 0; st == SL_OK && i < MAX_PEERS; i++) conns[i] = peers[i].conn;
    for (uint32_t g = 1; st == SL_OK && g <= MAX_PEERS; g *= 2)
        st = sl_profile_link_measure(&n, conns, g, transport, single_us, progress, p, err);
    sl_net_free(n.net);
    for (uint32_t i = 0; peers && i < MAX_PEERS; i++) stop_peer(&peers[i]);
    sl_loop_hub_free(hub);
    sl_free(peers);
    return st == SL_OK ? SL_OK : sl_err_prefix(err, "links over %s", transport);
}
