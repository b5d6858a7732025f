/* What the fused order of dispatch and combine saves, measured against its closed form.
 * usage: bench_fused loop|tcp [PASSES [NODES RANKS T_X_MS V_I_MS]]
 * n nodes of m ranks run the real collectives over the transport; the ports of each rank are slowed
 * down to a given time: t_x a chunk's part between nodes, v_i gathering or reducing a chunk inside
 * a node. Fused and unfused passes take turns. One CSV line a shape: transport, n, m, t_x, v_i,
 * then for dispatch and for combine (with the final gathering): median time fused, its closed form,
 * unfused, its closed form, the saving and its closed form, all in ms. */
#include <sched.h>

#include "multi/fused_cluster.h"

#define ROWS  8u
#define D     256u
#define QUEUE 4096u

/* A message that waits for its port. */
typedef struct waiting {
    uint64_t due_ns;
    uint32_t rank;
    sl_wire_header h;
    sl_buf *payload;
} waiting;

typedef struct port {
    uint64_t free_ns;
    uint64_t ns_per_message;
    waiting queue[QUEUE];
    uint32_t head, n;
} port;

typedef struct ports {
    port between, inside;
} ports;

static ports port_of[2][FC_MAX_RANKS]; /* of the unfused and the fused cluster */
static fc_cluster cluster[2];

static sl_status slow_send(void *ctx, uint32_t rank, sl_wire_header h, sl_buf *payload) {
    fc_rank *r = ctx;
    ports *p = &port_of[r->all == &cluster[1]][r->id];
    bool inside = rank / r->all->m == r->id / r->all->m;
    if (h.chunk == 0) return fc_send(ctx, rank, h, payload); /* control: costs nothing here */
    port *q = inside ? &p->inside : &p->between;
    if (q->n == QUEUE) abort();
    uint64_t now_ns = sl_now_ns();
    q->free_ns = SL_MAX(q->free_ns, now_ns) + q->ns_per_message;
    q->queue[(q->head + q->n++) % QUEUE] =
        (waiting){.due_ns = q->free_ns, .rank = rank, .h = h, .payload = payload};
    return SL_OK;
}

static void flush_port(fc_rank *r, port *q) {
    uint64_t now_ns = sl_now_ns();
    while (q->n && q->queue[q->head].due_ns <= now_ns) {
        waiting *w = &q->queue[q->head];
        sl_status st = fc_send(r, w->rank, w->h, w->payload);
        if (st != SL_OK) fc_fail(r->all, st, "send");
        q->head = (q->head + 1) % QUEUE;
        q->n--;
    }
}

static void turn(fc_cluster *c) {
    for (uint32_t i = 0; i < c->n * c->m; i++) {
        ports *p = &port_of[c == &cluster[1]][i];
        flush_port(&c->rank[i], &p->between);
        flush_port(&c->rank[i], &p->inside);
        sl_net_progress(c->rank[i].net);
    }
    sched_yield();
}

/* One pass of all ranks; mean ms of dispatch and of combine. */
static bool run_pass(fc_cluster *c, double *dispatch_ms, double *combine_ms) {
    static float x[ROWS * D], partial[ROWS * D];
    static uint32_t row[ROWS];
    uint32_t ranks = c->n * c->m, taken[FC_MAX_RANKS] = {0}, done = 0;
    sl_fused_rows to[FC_MAX_RANKS];
    sl_fused_chunk chunk;
    sl_err err = {0};
    for (uint32_t i = 0; i < ROWS; i++) row[i] = i;
    for (uint32_t u = 0; u < c->n; u++) to[u] = (sl_fused_rows){.row = row, .n = ROWS};
    uint64_t begin_ns = sl_now_ns(), end_ns = begin_ns + 20000000000ull, sum_ns = 0;
    for (uint32_t i = 0; i < ranks; i++)
        if (sl_fused_dispatch(c->rank[i].fused, 0, x, ROWS, to, &err) != SL_OK) return false;
    while (done < ranks && c->failed == SL_OK && sl_now_ns() < end_ns) {
        turn(c);
        for (uint32_t i = 0; i < ranks; i++)
            while (sl_fused_take(c->rank[i].fused, &chunk)) {
                if (++taken[i] < c->n) continue;
                sum_ns += sl_now_ns() - begin_ns;
                done++;
            }
    }
    *dispatch_ms = (double)sum_ns / ranks / 1e6;
    begin_ns = sl_now_ns();
    for (uint32_t i = 0; i < ranks; i++)
        for (uint32_t k = 1; k <= c->n; k++) /* the ring's order, own rows last */
            if (sl_fused_give(c->rank[i].fused, (i / c->m + k) % c->n, partial, &err) != SL_OK)
                return false;
    bool seen[FC_MAX_RANKS] = {0};
    for (done = 0, sum_ns = 0; done < ranks && c->failed == SL_OK && sl_now_ns() < end_ns;) {
        turn(c);
        for (uint32_t i = 0; i < ranks; i++) {
            if (seen[i] || !sl_fused_result(c->rank[i].fused)) continue;
            seen[i] = true;
            sum_ns += sl_now_ns() - begin_ns;
            done++;
        }
    }
    *combine_ms = (double)sum_ns / ranks / 1e6;
    return done == ranks;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, uint32_t n) {
    qsort(v, n, sizeof *v, compare);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

typedef struct shape {
    uint32_t n, m;
    double t_x, v_i;
} shape;

static int run_shape(const char *transport, shape s, uint32_t passes) {
    double ms[2][2][256] = {{{0}}}; /* fused?, combine?, pass */
    int bad = 0;
    memset(port_of, 0, sizeof port_of);
    for (uint32_t k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < s.n * s.m; i++) {
            port_of[k][i].between.ns_per_message = (uint64_t)(s.t_x * 1e6);
            port_of[k][i].inside.ns_per_message = (uint64_t)(s.v_i * 1e6 / SL_MAX(s.m - 1, 1u));
        }
        const sl_fused_opts o = {.n_nodes = s.n,
                                 .n_tp = s.m,
                                 .d_model = D,
                                 .max_rows = ROWS,
                                 .unfused = k == 0,
                                 .send = slow_send};
        if (fc_start(&cluster[k], transport, 0, 0, &o) != SL_OK) bad = 1;
    }
    for (uint32_t p = 0; !bad && p <= passes; p++) /* the first one warms up */
        for (uint32_t k = 0; !bad && k < 2; k++)
            bad = !run_pass(&cluster[k], &ms[k][0][p ? p - 1 : 0], &ms[k][1][p ? p - 1 : 0]);
    for (uint32_t k = 0; k < 2; k++) {
        if (cluster[k].failed != SL_OK || bad) fprintf(stderr, "%s\n", cluster[k].err.msg);
        fc_stop(&cluster[k]);
    }
    if (bad) return 1;
    double v = s.m > 1 ? s.v_i : 0;
    double fd = median(ms[1][0], passes), ud = median(ms[0][0], passes);
    double fc = median(ms[1][1], passes), uc = median(ms[0][1], passes);
    double fd0 = sl_fused_dispatch_time(s.n, s.t_x, 0, v),
           ud0 = sl_unfused_dispatch_time(s.n, s.t_x, 0, v),
           fc0 = sl_fused_combine_time(s.n, s.t_x, 0, v) + v,
           uc0 = sl_unfused_combine_time(s.n, s.t_x, 0, v) + v;
    printf("%s,%u,%u,%.1f,%.1f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f\n",
           transport, s.n, s.m, s.t_x, v, fd, fd0, ud, ud0, ud - fd, ud0 - fd0, fc, fc0, uc, uc0,
           uc - fc, uc0 - fc0);
    return 0;
}

int main(int argc, char **argv) {
    static const shape shapes[] = {{2, 2, 40, 40}, {2, 4, 40, 40}, {3, 2, 40, 40}, {4, 2, 40, 20},
                                   {4, 2, 40, 40}, {4, 4, 40, 40}, {4, 4, 20, 40}, {4, 4, 40, 10}};
    if (argc < 2 || (argc > 3 && argc != 7))
        return fprintf(stderr,
                       "usage: bench_fused loop|tcp [PASSES [NODES RANKS T_X_MS V_I_MS]]\n"),
               2;
    uint32_t passes = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 7;
    passes = SL_MIN(SL_MAX(passes, 1u), 255u);
    if (strcmp(argv[1], "loop")) sl_net_setup_process(argv[1]);
    printf("transport,n,m,t_x,v_i,dispatch_fused,model,unfused,model,saving,model,"
           "combine_fused,model,unfused,model,saving,model\n");
    if (argc == 7) {
        const shape s = {(uint32_t)strtoul(argv[3], NULL, 10), (uint32_t)strtoul(argv[4], NULL, 10),
                         strtod(argv[5], NULL), strtod(argv[6], NULL)};
        if (s.n == 0 || s.m == 0 || s.n > 4 || s.m > 4 || !(s.t_x >= 0 && s.t_x < 1000) ||
            !(s.v_i >= 0 && s.v_i < 1000))
            return fprintf(stderr, "bench_fused: 1 to 4 nodes and ranks, times below 1000 ms\n"), 2;
        return run_shape(argv[1], s, passes);
    }
    int bad = 0;
    for (size_t i = 0; !bad && i < SL_LEN(shapes); i++) bad = run_shape(argv[1], shapes[i], passes);
    return bad;
}
