/* A switch with slow cables: passes Ethernet frames between interfaces after a fixed one-way delay,
 * with optional jitter and rate, for kernels without netem. It works below TCP because UCX
 * connects to the addresses that its peers announce: nothing could sit between at the level of
 * sockets. Frames keep their offloads (64 KB segments, checksums left out), so a gigabit costs a
 * few thousand frames a second. Order is kept for each pair of an incoming interface and the
 * switch.
 *
 * usage: lab_cable [--delay-us D] [--jitter-us J] [--seed S] [--rate-mbit R] IF IF...
 * Prints "ready" once it listens; SIGTERM ends it and prints counters on stderr. Needs
 * CAP_NET_RAW. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_PORTS  32u
#define MAX_FRAME  (65536u + 4096u)
#define RING       16384u       /* frames on their way from one interface */
#define MAX_QUEUED (256u << 20) /* bytes on their way in all */

typedef struct frame {
    uint64_t due_ns;
    uint32_t len, out; /* out: port, or MAX_PORTS for all others */
    uint8_t *bytes;    /* virtio_net_hdr, then the frame */
} frame;

typedef struct port {
    const char *name;
    int fd;
    frame ring[RING];
    uint32_t head, len;
    uint64_t last_due_ns, free_ns; /* free_ns: when the cable has sent what it was given */
} port;

typedef struct station {
    uint8_t mac[ETH_ALEN];
    uint32_t port;
} station;

typedef struct cable {
    port *port;
    uint32_t n_ports;
    station station[256];
    uint32_t n_stations;
    uint64_t delay_ns, jitter_ns, rng, queued;
    double ns_per_byte;
    uint64_t frames, bytes, dropped;
} cable;

static volatile sig_atomic_t stopping;
static void on_signal(int sig) {
    (void)sig;
    stopping = 1;
}

static sl_status open_port(port *p, const char *name, sl_err *err) {
    int one = 1;
    unsigned index = if_nametoindex(name);
    if (!index) return sl_fail(err, SL_ERR_NOTFOUND, "interface %s: %s", name, strerror(errno));
    p->name = name;
    p->fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, htons(ETH_P_ALL));
    if (p->fd < 0) return sl_fail(err, SL_ERR_IO, "packet socket: %s", strerror(errno));
    const struct sockaddr_ll a = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)index};
    const struct packet_mreq all = {.mr_ifindex = (int)index, .mr_type = PACKET_MR_PROMISC};
    int bytes = 64 << 20;
    if (setsockopt(p->fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) ||
        setsockopt(p->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one) ||
        setsockopt(p->fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) ||
        setsockopt(p->fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) ||
        bind(p->fd, (const struct sockaddr *)&a, sizeof a))
        return sl_fail(err, SL_ERR_IO, "interface %s: %s", name, strerror(errno));
    return SL_OK;
}

static uint32_t find_station(const cable *c, const uint8_t *mac) {
    uint32_t i = 0;
    while (i < c->n_stations && memcmp(c->station[i].mac, mac, ETH_ALEN) != 0) i++;
    return i;
}

/* Learns where the sender is; says where the receiver is. */
static uint32_t route(cable *c, uint32_t in, const struct ether_header *h) {
    uint32_t from = find_station(c, h->ether_shost), to = find_station(c, h->ether_dhost);
    if (from == c->n_stations && from < SL_LEN(c->station)) {
        memcpy(c->station[from].mac, h->ether_shost, ETH_ALEN);
        c->n_stations++;
    }
    if (from < c->n_stations) c->station[from].port = in;
    return to < c->n_stations && to != from ? c->station[to].port : MAX_PORTS;
}

static void enqueue(cable *c, uint32_t in, const uint8_t *bytes, uint32_t len) {
    port *p = &c->port[in];
    const struct ether_header *h = (const void *)(bytes + sizeof(struct virtio_net_hdr));
    uint8_t *copy = NULL;
    if (p->len < RING && c->queued + len <= MAX_QUEUED) copy = malloc(len);
    if (!copy) {
        c->dropped++;
        return;
    }
    memcpy(copy, bytes, len);
    uint64_t now = sl_now_ns(), begin = SL_MAX(now, p->free_ns);
    p->free_ns = begin + (uint64_t)((double)len * c->ns_per_byte);
    uint64_t jitter = c->jitter_ns ? sl_rng_below(&c->rng, c->jitter_ns + 1) : 0;
    p->last_due_ns = SL_MAX(p->last_due_ns, p->free_ns + c->delay_ns + jitter);
    p->ring[(p->head + p->len++) % RING] =
        (frame){.due_ns = p->last_due_ns, .len = len, .out = route(c, in, h), .bytes = copy};
    c->queued += len;
}

static void receive(cable *c, uint32_t in, uint8_t *scratch) {
    for (int i = 0; i < 64; i++) {
        ssize_t n = recv(c->port[in].fd, scratch, MAX_FRAME, 0);
        if (n < (ssize_t)(sizeof(struct virtio_net_hdr) + sizeof(struct ether_header))) return;
        enqueue(c, in, scratch, (uint32_t)n);
    }
}

/* A full queue behind the interface loses the frame, as a switch would. */
static void send_on(cable *c, const frame *f, uint32_t out) {
    if (send(c->port[out].fd, f->bytes, f->len, 0) != (ssize_t)f->len) c->dropped++;
}

static void deliver(cable *c, uint32_t in) {
    port *p = &c->port[in];
    while (p->len > 0 && p->ring[p->head].due_ns <= sl_now_ns()) {
        frame *f = &p->ring[p->head];
        for (uint32_t i = 0; i < c->n_ports; i++)
            if (i == f->out || (f->out == MAX_PORTS && i != in)) send_on(c, f, i);
        c->frames++;
        c->bytes += f->len;
        c->queued -= f->len;
        free(f->bytes);
        p->head = (p->head + 1) % RING;
        p->len--;
    }
}

static void run(cable *c, uint8_t *scratch) {
    struct pollfd fd[MAX_PORTS];
    while (!stopping) {
        uint64_t now = sl_now_ns(), next = now + 1000000000u;
        for (uint32_t i = 0; i < c->n_ports; i++) {
            const port *p = &c->port[i];
            if (p->len) next = SL_MIN(next, p->ring[p->head].due_ns);
            fd[i] = (struct pollfd){.fd = p->fd, .events = POLLIN};
        }
        uint64_t ns = next > now ? next - now : 0;
        const struct timespec ts = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        if (ppoll(fd, c->n_ports, &ts, NULL) < 0 && errno != EINTR) break;
        for (uint32_t i = 0; i < c->n_ports; i++) deliver(c, i);
        for (uint32_t i = 0; i < c->n_ports; i++)
            if (fd[i].revents & POLLIN) receive(c, i, scratch);
    }
}

static uint64_t number(const char *text, const char *flag, uint64_t max) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || v > max) {
        fprintf(stderr, "lab_cable: %s: '%s' is not a number from 0 to %llu\n", flag, text,
                (unsigned long long)max);
        exit(2);
    }
    return v;
}

static int usage(void) {
    fprintf(stderr, "usage: lab_cable [--delay-us D] [--jitter-us J] [--seed S] [--rate-mbit R] "
                    "IF IF...\n");
    return 2;
}

/* Options into *c; the place of the first interface in argv. */
static int options(int argc, char **argv, cable *c) {
    int i = 1;
    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        if (strcmp(argv[i], "--delay-us") == 0)
            c->delay_ns = 1000 * number(argv[i + 1], argv[i], 10000000);
        else if (strcmp(argv[i], "--jitter-us") == 0)
            c->jitter_ns = 1000 * number(argv[i + 1], argv[i], 10000000);
        else if (strcmp(argv[i], "--seed") == 0)
            c->rng = number(argv[i + 1], argv[i], UINT64_MAX);
        else if (strcmp(argv[i], "--rate-mbit") == 0) {
            uint64_t mbit = number(argv[i + 1], argv[i], 1000000);
            c->ns_per_byte = mbit ? 8000.0 / (double)mbit : 0;
        } else
            exit(usage());
    }
    return i;
}

int main(int argc, char **argv) {
    cable c = {.rng = 1};
    sl_err err = {0};
    int first = options(argc, argv, &c);
    c.n_ports = (uint32_t)(argc - first);
    if (first >= argc || c.n_ports < 2 || c.n_ports > MAX_PORTS) return usage();
    c.port = sl_alloc(c.n_ports, sizeof *c.port);
    uint8_t *scratch = sl_alloc(MAX_FRAME, 1);
    sl_status st = c.port && scratch ? SL_OK : sl_fail(&err, SL_ERR_NOMEM, "%u ports", c.n_ports);
    for (uint32_t i = 0; st == SL_OK && i < c.n_ports; i++)
        st = open_port(&c.port[i], argv[first + (int)i], &err);
    if (st != SL_OK) {
        fprintf(stderr, "lab_cable: %s\n", err.msg);
        return 1;
    }
    const struct sigaction sa = {.sa_handler = on_signal}; /* without SA_RESTART */
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGINT, &sa, NULL);
    (void)prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
    /* A cable does not wait for a core: else others' time slices of 3 ms would be in its delay. */
    const struct sched_param first_come = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO, &first_come) != 0)
        fprintf(stderr, "lab_cable: without priority: %s\n", strerror(errno));
    puts("ready");
    fflush(stdout);
    run(&c, scratch);
    fprintf(stderr, "%llu frames, %llu bytes, %llu dropped\n", (unsigned long long)c.frames,
            (unsigned long long)c.bytes, (unsigned long long)c.dropped);
    return 0;
}
