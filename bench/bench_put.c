/* Rows from one process to another over UCX, by our messages and by puts into registered memory,
 * in turn within one run.
 *
 * usage: bench_put [PEERS [BLOCKS [ROUNDS [nets]]]]    as UCX_* say; nets: our own ways alone
 *
 * One process sends to each of PEERS others, which send the same bytes back; a round is over when
 * all have. message: our net's (transport ucx). window: the same net's with windows. ring: our
 * net's by transport shm. put: raw UCX,
 * payload, fence, flag; whoever polls the flag sends on what lies in the window. copied: the same,
 * from a copy. told: the same, found by an active message of a header's length that follows the
 * flag. One CSV line a size and way: peers, bytes, way, blocks, median over blocks of the median
 * half round in microseconds, and the ratio to message (median over blocks of the blocks' own
 * ratios). */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <netinet/in.h>
#include <ucp/api/ucp.h>

#include "net/probe.h"

#define MAX_PEERS  8u
#define MOST       ((size_t)256 << 10)
#define SECRET     "of this benchmark alone"
#define GIVE_UP_NS 60000000000ull
#define WARM_UP    20u
#define SLOTS      1u

enum { INFO_ID = 3, TOLD_ID = 4 };
typedef enum way { MESSAGE, WINDOW, RING, N_NETS, PUT = N_NETS, COPIED, TOLD, N_WAYS } way;
static const char *const way_names[N_WAYS] = {"message", "window", "ring", "put", "copied", "told"};

/* Behind the payload's room in a window. */
typedef struct flag {
    uint64_t number; /* from 1; UINT64_MAX: the block is over */
    uint32_t bytes, way;
} flag;

/* What an end tells the other of its window. */
typedef struct info {
    uint64_t at;
    uint32_t rkey_bytes;
    uint8_t rkey[512];
} info;

/* One end of a pair. */
typedef struct end {
    ucp_ep_h ep;
    ucp_mem_h memory;
    uint8_t *window, *copy; /* MOST bytes, then (window) a flag */
    info peer;
    ucp_rkey_h rkey;
    bool known;
    uint64_t got, sent, told;
    flag out;
} end;

typedef struct raw {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_listener_h listener;
    end ends[MAX_PEERS];
    uint32_t n;
    ucp_conn_request_h call;
} raw;

static void must(ucs_status_t st, const char *what) {
    if (st == UCS_OK) return;
    fprintf(stderr, "bench_put: %s: %s\n", what, ucs_status_string(st));
    exit(1);
}

/* ---- raw UCX ---- */

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status) {
    (void)arg, (void)ep, (void)status;
}

/* Pairs are told apart by the endpoint that a reply would go to. */
static end *end_of(raw *r, ucp_ep_h ep) {
    for (uint32_t i = 0; i < r->n; i++)
        if (r->ends[i].ep == ep) return &r->ends[i];
    return NULL;
}

static ucs_status_t on_info(void *arg, const void *header, size_t header_length, void *data,
                            size_t length, const ucp_am_recv_param_t *param) {
    end *e = end_of(arg, param->reply_ep);
    (void)data, (void)length;
    if (!e || header_length != sizeof e->peer) return UCS_OK;
    memcpy(&e->peer, header, sizeof e->peer);
    e->known = true;
    return UCS_OK;
}

static ucs_status_t on_told(void *arg, const void *header, size_t header_length, void *data,
                            size_t length, const ucp_am_recv_param_t *param) {
    end *e = end_of(arg, param->reply_ep);
    (void)header, (void)header_length, (void)data, (void)length;
    if (e) e->told++;
    return UCS_OK;
}

static void on_call(ucp_conn_request_h request, void *arg) {
    ((raw *)arg)->call = request;
}

static void handle(raw *r, unsigned id, ucp_am_recv_callback_t cb) {
    ucp_am_handler_param_t am = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                                               UCP_AM_HANDLER_PARAM_FIELD_CB |
                                               UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                 .id = id,
                                 .cb = cb,
                                 .arg = r};
    must(ucp_worker_set_am_recv_handler(r->worker, &am), "handler");
}

static void raw_open(raw *r) {
    ucp_params_t p = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                      .features = UCP_FEATURE_AM | UCP_FEATURE_RMA};
    ucp_worker_params_t wp = {0};
    memset(r, 0, sizeof *r);
    must(ucp_init(&p, NULL, &r->context), "init");
    must(ucp_worker_create(r->context, &wp, &r->worker), "worker");
    handle(r, INFO_ID, on_info);
    handle(r, TOLD_ID, on_told);
}

static uint16_t raw_listen(raw *r) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (uint32_t port = 20000 + (uint32_t)getpid() % 8000, i = 0; i < 100; i++, port++) {
        a.sin_port = htons((uint16_t)port);
        ucp_listener_params_t p = {.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                                                 UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
                                   .sockaddr = {(struct sockaddr *)&a, sizeof a},
                                   .conn_handler = {on_call, r}};
        if (ucp_listener_create(r->worker, &p, &r->listener) == UCS_OK) return (uint16_t)port;
    }
    must(UCS_ERR_BUSY, "listener");
    return 0;
}

static void await(ucp_worker_h w, ucs_status_ptr_t p) {
    if (UCS_PTR_IS_ERR(p)) must(UCS_PTR_STATUS(p), "operation");
    if (!UCS_PTR_IS_PTR(p)) return;
    while (ucp_request_check_status(p) == UCS_INPROGRESS) ucp_worker_progress(w);
    ucp_request_free(p);
}

/* Makes the window and tells the other end of it. */
static void tell(raw *r, end *e) {
    ucp_mem_map_params_t mp = {.field_mask =
                                   UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                               .length = MOST + sizeof(flag),
                               .flags = UCP_MEM_MAP_ALLOCATE};
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    info own = {0};
    void *rkey;
    size_t n;
    must(ucp_mem_map(r->context, &mp, &e->memory), "memory");
    must(ucp_mem_query(e->memory, &attr), "memory");
    e->window = attr.address;
    e->copy = malloc(MOST);
    if (!e->copy) exit(1);
    memset(e->window, 0, MOST + sizeof(flag));
    memset(e->copy, 0, MOST);
    must(ucp_rkey_pack(r->context, e->memory, &rkey, &n), "rkey");
    if (n > sizeof own.rkey) must(UCS_ERR_BUFFER_TOO_SMALL, "rkey");
    own.at = (uint64_t)(uintptr_t)e->window;
    own.rkey_bytes = (uint32_t)n;
    memcpy(own.rkey, rkey, n);
    ucp_rkey_buffer_release(rkey);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_REPLY};
    await(r->worker, ucp_am_send_nbx(e->ep, INFO_ID, &own, sizeof own, NULL, 0, &param));
}

/* The caller speaks first, as in our handshake. */
static void meet(raw *r, end *e, bool called) {
    if (!called) tell(r, e);
    while (!e->known) ucp_worker_progress(r->worker);
    if (called) tell(r, e);
    must(ucp_ep_rkey_unpack(e->ep, e->peer.rkey, &e->rkey), "unpacking");
}

static void raw_call(raw *r, uint16_t port) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    ucp_ep_params_t p = {.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                                       UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                       UCP_EP_PARAM_FIELD_ERR_HANDLER,
                         .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
                         .sockaddr = {(struct sockaddr *)&a, sizeof a},
                         .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                         .err_handler = {on_error, NULL}};
    end *e = &r->ends[r->n++];
    must(ucp_ep_create(r->worker, &p, &e->ep), "endpoint");
    meet(r, e, false);
}

static void raw_answer(raw *r) {
    while (!r->call) ucp_worker_progress(r->worker);
    ucp_ep_params_t p = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST |
                                       UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                       UCP_EP_PARAM_FIELD_ERR_HANDLER,
                         .conn_request = r->call,
                         .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                         .err_handler = {on_error, NULL}};
    end *e = &r->ends[r->n++];
    must(ucp_ep_create(r->worker, &p, &e->ep), "endpoint");
    meet(r, e, true);
}

/* Payload, fence, flag, and the word that tells of it. What is in flight when this returns is the
 * library's: nothing of it is written to before the answer has come. */
static void put(raw *r, end *e, const uint8_t *from, size_t bytes, way w, uint64_t number) {
    static const uint8_t header[SL_WIRE_HEADER_BYTES];
    const ucp_request_param_t plain = {0};
    const ucp_request_param_t reply = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_AM_SEND_FLAG_REPLY};
    e->out = (flag){number, (uint32_t)bytes, (uint32_t)w};
    ucs_status_ptr_t p = ucp_put_nbx(e->ep, from, bytes, e->peer.at, e->rkey, &plain);
    must(ucp_worker_fence(r->worker), "fence");
    ucs_status_ptr_t f =
        ucp_put_nbx(e->ep, &e->out, sizeof e->out, e->peer.at + MOST, e->rkey, &plain);
    ucs_status_ptr_t t = NULL;
    if (w == TOLD) t = ucp_am_send_nbx(e->ep, TOLD_ID, header, sizeof header, NULL, 0, &reply);
    await(r->worker, p);
    await(r->worker, f);
    await(r->worker, t);
}

/* The flag of what came, when all of it has. */
static bool take(end *e, flag *out) {
    const flag *f = (const flag *)(const void *)(e->window + MOST);
    const uint64_t number = __atomic_load_n(&f->number, __ATOMIC_ACQUIRE);
    if (number == e->got) return false;
    if (number != UINT64_MAX && f->way == TOLD && e->told == 0) return false;
    *out = *f;
    if (out->way == TOLD && number != UINT64_MAX) e->told--;
    if (out->way != PUT) memcpy(e->copy, e->window, out->bytes);
    e->got = number;
    return true;
}

static void idle(uint32_t *n) {
    if (++*n % 64 == 0) sched_yield();
}

/* A child: waits for the word of each block, answers until the block is over. */
static int serve_raw(int out, int in) {
    static raw r;
    char word;
    flag f;
    raw_open(&r);
    const uint16_t port = raw_listen(&r);
    if (write(out, &port, sizeof port) != (ssize_t)sizeof port) return 1;
    raw_answer(&r);
    end *e = &r.ends[0];
    while (read(in, &word, 1) == 1) {
        uint32_t n = 0;
        e->got = 0;
        for (;;) {
            if (!ucp_worker_progress(r.worker)) idle(&n);
            if (!take(e, &f)) continue;
            if (f.number == UINT64_MAX) break;
            put(&r, e, f.way == PUT ? e->window : e->copy, f.bytes, (way)f.way, f.number);
        }
        memset(e->window + MOST, 0, sizeof(flag));
        if (write(out, "d", 1) != 1) return 1;
    }
    return 0;
}

static const char *transport_of(way w) {
    return w == RING ? "shm" : "ucx";
}

static uint32_t slots_of(way w) {
    return w == WINDOW ? SLOTS : 0;
}

static int serve_messages(int out, way w) {
    sl_probe n = {.echo = true, .window_slots = slots_of(w), .window_bytes = MOST};
    sl_err err = {0};
    char address[96] = {0};
    if (sl_probe_start(&n, transport_of(w), NULL, SECRET, (uint32_t)getpid(), &err) != SL_OK)
        return fprintf(stderr, "%s\n", err.msg), 1;
    snprintf(address, sizeof address, "%s", sl_net_address(n.net));
    if (write(out, address, sizeof address) != (ssize_t)sizeof address) return 1;
    while (!n.downs) sl_probe_step(&n);
    sl_net_free(n.net);
    return 0;
}

/* ---- the one that measures ---- */

typedef struct bench {
    uint32_t peers, blocks, rounds, ways;
    raw r;
    sl_probe n[N_NETS]; /* of ways before N_NETS */
    sl_conn *conn[N_NETS][MAX_PEERS];
    pid_t pid[(1 + N_NETS) * MAX_PEERS];
    int to[MAX_PEERS], from[MAX_PEERS];
} bench;

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, size_t n) {
    qsort(v, n, sizeof *v, compare);
    return v[n / 2];
}

static void message_round(bench *b, size_t bytes, way w) {
    sl_probe *n = &b->n[w];
    const uint32_t want = n->returned + b->peers;
    sl_err err;
    for (uint32_t i = 0; i < b->peers; i++)
        if (sl_probe_send(n, b->conn[w][i], bytes, 0, &err) != SL_OK) exit(1);
    if (!sl_probe_await(n, &n->returned, want, sl_now_ns() + GIVE_UP_NS)) {
        fprintf(stderr, "bench_put: no answer\n");
        exit(1);
    }
}

static void put_round(bench *b, size_t bytes, way w) {
    uint32_t left = b->peers, n = 0;
    flag f;
    for (uint32_t i = 0; i < b->peers; i++) {
        end *e = &b->r.ends[i];
        put(&b->r, e, e->copy, bytes, w, ++e->sent);
    }
    while (left) {
        if (!ucp_worker_progress(b->r.worker)) idle(&n);
        for (uint32_t i = 0; i < b->peers; i++) left -= take(&b->r.ends[i], &f);
    }
}

/* Median half round in microseconds of one block. */
static double block(bench *b, size_t bytes, way w) {
    double *us = calloc(b->rounds, sizeof *us), mid;
    if (!us) exit(1);
    char word;
    for (uint32_t i = 0; w >= N_NETS && i < b->peers; i++) {
        b->r.ends[i].got = b->r.ends[i].sent = 0;
        memset(b->r.ends[i].window + MOST, 0, sizeof(flag));
        if (write(b->to[i], "g", 1) != 1) exit(1);
    }
    for (uint32_t i = 0; i < b->rounds + WARM_UP; i++) {
        const uint64_t begin_ns = sl_now_ns();
        if (w < N_NETS)
            message_round(b, bytes, w);
        else
            put_round(b, bytes, w);
        if (i >= WARM_UP) us[i - WARM_UP] = (double)(sl_now_ns() - begin_ns) / 2e3;
    }
    for (uint32_t i = 0; w >= N_NETS && i < b->peers; i++) {
        put(&b->r, &b->r.ends[i], b->r.ends[i].copy, 1, PUT, UINT64_MAX);
        await(b->r.worker, ucp_worker_flush_nb(b->r.worker, 0, NULL));
        if (read(b->from[i], &word, 1) != 1) exit(1);
    }
    mid = median(us, b->rounds);
    free(us);
    return mid;
}

static void measure(bench *b, size_t bytes) {
    double *us = calloc((size_t)N_WAYS * b->blocks, sizeof *us);
    double *ratio = calloc(b->blocks, sizeof *ratio);
    if (!us || !ratio) exit(1);
    for (uint32_t k = 0; k < b->blocks; k++)
        for (uint32_t w = 0; w < b->ways; w++) us[w * b->blocks + k] = block(b, bytes, (way)w);
    for (uint32_t w = b->ways; w-- > 0;) { /* MESSAGE, which is sorted then, last */
        double *of = us + (size_t)w * b->blocks;
        for (uint32_t k = 0; k < b->blocks; k++) ratio[k] = of[k] / us[k];
        const double share = median(ratio, b->blocks);
        printf("%u,%zu,%s,%u,%.2f,%.2f\n", b->peers, bytes, way_names[w], b->blocks,
               median(of, b->blocks), share);
    }
    fflush(stdout);
    free(us);
    free(ratio);
}

static void start(bench *b) {
    uint16_t port[MAX_PEERS];
    char address[N_NETS * MAX_PEERS][96];
    sl_err err = {0};
    for (uint32_t i = 0; i < (1 + N_NETS) * b->peers; i++) {
        int out[2], in[2];
        if (pipe(out) != 0 || pipe(in) != 0) exit(1);
        if ((b->pid[i] = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* they poll without end */
            close(in[1]);
            for (uint32_t k = 0; k < i && k < b->peers; k++) close(b->to[k]);
            _exit(i < b->peers ? serve_raw(out[1], in[0])
                               : serve_messages(out[1], (way)(i / b->peers - 1)));
        }
        close(out[1]);
        close(in[0]);
        if (i < b->peers) {
            b->to[i] = in[1];
            b->from[i] = out[0];
            if (read(out[0], &port[i], sizeof port[i]) != (ssize_t)sizeof port[i]) exit(1);
        } else if (read(out[0], address[i - b->peers], 96) != 96) {
            exit(1);
        }
    }
    raw_open(&b->r);
    for (uint32_t i = 0; b->ways > N_NETS && i < b->peers; i++) raw_call(&b->r, port[i]);
    for (uint32_t w = MESSAGE; w < N_NETS; w++) {
        sl_probe *n = &b->n[w];
        *n = (sl_probe){.window_slots = slots_of((way)w), .window_bytes = MOST};
        sl_status st =
            sl_probe_start(n, transport_of((way)w), NULL, SECRET, (uint32_t)getpid() + w, &err);
        for (uint32_t i = 0; st == SL_OK && i < b->peers; i++)
            st = sl_net_connect(n->net, address[w * b->peers + i], NULL, &b->conn[w][i], &err);
        if (st == SL_OK && sl_probe_await(n, &n->opened, b->peers, sl_now_ns() + GIVE_UP_NS))
            continue;
        fprintf(stderr, "bench_put: %s\n", err.msg);
        exit(1);
    }
}

static uint32_t number(int argc, char **argv, int i, uint32_t preset, uint32_t most) {
    const uint32_t v = argc > i ? (uint32_t)strtoul(argv[i], NULL, 10) : preset;
    return v < 1 ? 1 : v > most ? most : v;
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {2048, 8192, 16384, 32768, 65536, 131072, 262144};
    static bench b;
    b.peers = number(argc, argv, 1, 1, MAX_PEERS);
    b.blocks = number(argc, argv, 2, 11, 1000);
    b.rounds = number(argc, argv, 3, 100, 100000);
    b.ways = argc > 4 && strcmp(argv[4], "nets") == 0 ? N_NETS : N_WAYS;
    sl_net_setup_process("ucx");
    start(&b);
    printf("peers,bytes,way,blocks,us,of_message\n");
    for (size_t i = 0; i < SL_LEN(sizes); i++) measure(&b, sizes[i]);
    for (uint32_t i = 0; i < b.peers; i++) close(b.to[i]);
    fprintf(stderr, "%llu messages went by windows\n",
            (unsigned long long)sl_net_window_stats(b.n[WINDOW].net).put);
    for (uint32_t w = MESSAGE; w < N_NETS; w++) sl_net_free(b.n[w].net);
    for (uint32_t i = 0; b.ways == N_NETS && i < b.peers; i++)
        kill(b.pid[i], SIGTERM); /* uncalled */
    for (uint32_t i = 0; i < (1 + N_NETS) * b.peers; i++) waitpid(b.pid[i], NULL, 0);
    return 0;
}
