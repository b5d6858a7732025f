/* MixServe's dispatch and combine over n nodes of m ranks: equal bits with a reference that has no
 * messages, messages and values as the formulas say, closed forms against a small simulation.
 * usage: test_fused loop|tcp [SEED] */
#include "multi/fused_cluster.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define D        16u
#define HIDDEN   8u
#define EXPERTS  8u
#define MAX_T    13u
#define DELAY_US 200u

static const char *transport = "loop";
static uint64_t seed = 1;

/* ---- a MoE layer ---- */

typedef struct layer {
    float w1[EXPERTS][HIDDEN][D], w2[EXPERTS][D][HIDDEN];
} layer;

/* One node's tokens and where they go. */
typedef struct home {
    uint32_t n;
    float x[MAX_T][D];
    uint32_t k, expert[MAX_T][EXPERTS]; /* ascending */
    float gate[MAX_T][EXPERTS];
} home;

typedef struct job {
    uint32_t n, m;
    layer l;
    home home[4];
    uint32_t row[4][4][MAX_T]; /* S[v][u] */
    uint32_t n_row[4][4];
    uint8_t control[4][4][MAX_T * (4 + EXPERTS * 8)];
    size_t control_len[4][4];
} job;

static float uniform(uint64_t *rng) {
    return (float)sl_rng_below(rng, 2001) / 1000 - 1;
}

static uint32_t node_of(const job *j, uint32_t expert) {
    for (uint32_t u = 0;; u++)
        if (expert < (u + 1) * EXPERTS / j->n) return u;
}

static void pick_experts(home *h, uint32_t r, uint64_t *rng) {
    bool on[EXPERTS] = {0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < h->k; i++) {
        uint32_t e = (uint32_t)sl_rng_below(rng, EXPERTS);
        while (on[e]) e = (e + 1) % EXPERTS;
        on[e] = true;
    }
    for (uint32_t e = 0; e < EXPERTS; e++) {
        if (!on[e]) continue;
        h->expert[r][n] = e;
        h->gate[r][n++] = uniform(rng);
    }
}

/* S[v][u] and the control bytes of its rows: u32 count, then u32 expert, f32 gate. */
static void list_rows(job *j, uint32_t v, uint32_t u) {
    const home *h = &j->home[v];
    sl_wr w = sl_wr_of(j->control[v][u], sizeof j->control[v][u]);
    j->n_row[v][u] = 0;
    for (uint32_t r = 0; r < h->n; r++) {
        uint32_t here = 0;
        for (uint32_t i = 0; i < h->k; i++) here += node_of(j, h->expert[r][i]) == u;
        if (!here) continue;
        j->row[v][u][j->n_row[v][u]++] = r;
        sl_wr_u32(&w, here);
        for (uint32_t i = 0; i < h->k; i++) {
            if (node_of(j, h->expert[r][i]) != u) continue;
            sl_wr_u32(&w, h->expert[r][i]);
            sl_wr_f32(&w, h->gate[r][i]);
        }
    }
    assert_true(w.ok);
    j->control_len[v][u] = w.len;
}

static void make_job(job *j, uint32_t n, uint32_t m, uint32_t k, uint64_t *rng) {
    j->n = n;
    j->m = m;
    for (uint32_t e = 0; e < EXPERTS; e++)
        for (uint32_t i = 0; i < HIDDEN; i++)
            for (uint32_t d = 0; d < D; d++) {
                j->l.w1[e][i][d] = uniform(rng);
                j->l.w2[e][d][i] = uniform(rng);
            }
    for (uint32_t v = 0; v < n; v++) {
        home *h = &j->home[v];
        h->n = sl_rng_below(rng, 4) ? (uint32_t)sl_rng_below(rng, MAX_T + 1) : 0;
        h->k = k;
        for (uint32_t r = 0; r < h->n; r++) {
            for (uint32_t d = 0; d < D; d++) h->x[r][d] = uniform(rng);
            pick_experts(h, r, rng);
        }
    }
    for (uint32_t v = 0; v < n; v++)
        for (uint32_t u = 0; u < n; u++) list_rows(j, v, u);
}

/* out += gate * share t of expert e of x: the hidden values t*HIDDEN/m and so on. */
static void add_expert(const job *j, uint32_t e, uint32_t t, float gate, const float *x,
                       float *out) {
    uint32_t share = HIDDEN / j->m;
    for (uint32_t i = t * share; i < (t + 1) * share; i++) {
        float a = 0;
        for (uint32_t d = 0; d < D; d++) a += x[d] * j->l.w1[e][i][d];
        if (a < 0) a = 0;
        for (uint32_t d = 0; d < D; d++) out[d] += gate * (a * j->l.w2[e][d][i]);
    }
}

/* ---- what the sums have to be ---- */

/* In the documented order: shares by rank, then nodes, both ascending. */
static void reference(const job *j, uint32_t v, uint32_t r, float *y) {
    const home *h = &j->home[v];
    memset(y, 0, D * sizeof *y);
    for (uint32_t u = 0; u < j->n; u++) {
        float sum[D];
        bool any = false;
        for (uint32_t t = 0; t < j->m; t++) {
            float share[D] = {0};
            for (uint32_t i = 0; i < h->k; i++) {
                if (node_of(j, h->expert[r][i]) != u) continue;
                any = true;
                add_expert(j, h->expert[r][i], t, h->gate[r][i], h->x[r], share);
            }
            for (uint32_t d = 0; d < D; d++) sum[d] = t ? sum[d] + share[d] : share[d];
        }
        for (uint32_t d = 0; any && d < D; d++) y[d] += sum[d];
    }
}

/* In double, as a layer on one device would. */
static double exact(const job *j, uint32_t v, uint32_t r, uint32_t d) {
    const home *h = &j->home[v];
    double y = 0;
    for (uint32_t i = 0; i < h->k; i++) {
        uint32_t e = h->expert[r][i];
        for (uint32_t k = 0; k < HIDDEN; k++) {
            double a = 0;
            for (uint32_t q = 0; q < D; q++) a += (double)h->x[r][q] * (double)j->l.w1[e][k][q];
            y += (a > 0 ? a : 0) * (double)j->l.w2[e][d][k] * (double)h->gate[r][i];
        }
    }
    return y;
}

/* ---- a run ---- */

static void begin(const job *j, fc_rank *r, uint32_t pass) {
    uint32_t v = r->id / j->m;
    sl_fused_rows to[4];
    sl_err err = {0};
    for (uint32_t u = 0; u < j->n; u++)
        to[u] = (sl_fused_rows){.row = j->row[v][u],
                                .n = j->n_row[v][u],
                                .control = {j->control[v][u], j->control_len[v][u]}};
    sl_status st = sl_fused_dispatch(r->fused, pass, j->home[v].x[0], j->home[v].n, to, &err);
    if (st != SL_OK) fail_msg("%s", err.msg);
}

/* The experts of this rank's share, as the control bytes say. */
static void run_experts(const job *j, fc_rank *r, const sl_fused_chunk *c) {
    float out[MAX_T][D] = {{0}};
    sl_cur cur = sl_cur_of(c->control);
    sl_err err = {0};
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t count = sl_cur_u32(&cur);
        for (uint32_t e = 0; e < count; e++) {
            uint32_t expert = sl_cur_u32(&cur);
            float gate = sl_cur_f32(&cur);
            assert_true(cur.ok && expert < EXPERTS);
            assert_int_equal(node_of(j, expert), r->id / j->m);
            add_expert(j, expert, r->id % j->m, gate, c->x + (size_t)i * D, out[i]);
        }
    }
    assert_int_equal(sl_cur_left(&cur), 0);
    if (sl_fused_give(r->fused, c->node, out[0], &err) != SL_OK) fail_msg("%s", err.msg);
}

static void check_result(const job *j, fc_rank *r) {
    uint32_t v = r->id / j->m;
    const float *got = sl_fused_result(r->fused);
    assert_non_null(got);
    for (uint32_t i = 0; i < j->home[v].n; i++) {
        float want[D];
        reference(j, v, i, want);
        if (memcmp(want, got + (size_t)i * D, sizeof want))
            fail_msg("seed %llu, %u nodes of %u: rank %u, row %u differs", (unsigned long long)seed,
                     j->n, j->m, r->id, i);
        for (uint32_t d = 0; d < D; d++)
            assert_true(fabs((double)want[d] - exact(j, v, i, d)) < 1e-4);
    }
}

/* Passes of all ranks, each beginning its next one as soon as it may; jobs differ from pass to
 * pass.
 */
static void run_passes(fc_cluster *c, const job *jobs, uint32_t n_passes) {
    uint32_t ranks = c->n * c->m, pass[FC_MAX_RANKS] = {0}, done = 0;
    uint64_t end_ns = sl_now_ns() + 60000000000ull;
    for (uint32_t r = 0; r < ranks; r++) begin(&jobs[0], &c->rank[r], 0);
    while (done < ranks) {
        fc_progress(c);
        if (c->failed != SL_OK) fail_msg("%s", c->err.msg);
        if (sl_now_ns() > end_ns) fail_msg("no result after 60 s");
        for (uint32_t i = 0; i < ranks; i++) {
            fc_rank *r = &c->rank[i];
            sl_fused_chunk chunk;
            while (pass[i] < n_passes && sl_fused_take(r->fused, &chunk))
                run_experts(&jobs[pass[i]], r, &chunk);
            if (pass[i] == n_passes || !sl_fused_result(r->fused)) continue;
            check_result(&jobs[pass[i]], r);
            if (++pass[i] < n_passes)
                begin(&jobs[pass[i]], r, pass[i]);
            else
                done++;
        }
    }
}

/* T2: the formulas of the specification. */
static void check_counts(fc_cluster *c, const job *jobs, uint32_t n_passes) {
    uint64_t n = c->n, m = c->m, away = 0, all = 0, homes = 0;
    sl_fused_stats sum = {0};
    for (uint32_t p = 0; p < n_passes; p++)
        for (uint32_t v = 0; v < n; v++) {
            homes += jobs[p].home[v].n;
            for (uint32_t u = 0; u < n; u++) {
                all += jobs[p].n_row[v][u];
                if (u != v) away += jobs[p].n_row[v][u];
            }
        }
    for (uint32_t r = 0; r < n * m; r++) {
        sl_fused_stats s = sl_fused_stats_of(c->rank[r].fused);
        sum.control_messages += s.control_messages;
        sum.inter_messages += s.inter_messages;
        sum.inter_values += s.inter_values;
        sum.intra_messages += s.intra_messages;
        sum.intra_values += s.intra_values;
    }
    assert_int_equal(sum.control_messages, n_passes * n * m * (n - 1));
    assert_int_equal(sum.inter_messages, n_passes * 2 * n * m * (n - 1));
    assert_int_equal(sum.inter_values, 2 * D * away);
    assert_int_equal(sum.intra_messages, n_passes * m * (m - 1) * (n * (n - 1) + n * n + n));
    assert_int_equal(sum.intra_values, (m - 1) * D * (away + all + homes));
}

static sl_fused_opts opts_of(uint32_t n, uint32_t m, bool unfused) {
    return (sl_fused_opts){.n_nodes = n,
                           .n_tp = m,
                           .d_model = D,
                           .max_rows = MAX_T,
                           .max_control = MAX_T * (4 + EXPERTS * 8),
                           .unfused = unfused};
}

#define PASSES 3u

static void equals_the_reference(void **state) {
    (void)state;
    static job jobs[PASSES];
    static const uint32_t ks[] = {1, 2, EXPERTS};
    uint64_t rng = seed;
    bool tcp = strcmp(transport, "tcp") == 0;
    for (uint32_t n = 1; n <= 4; n++)
        for (uint32_t m = 1; m <= 4; m *= 2)
            for (uint32_t how = 0; how < (tcp ? 1 : 6); how++) {
                fc_cluster c;
                sl_fused_opts o = opts_of(n, m, how % 2);
                for (uint32_t p = 0; p < PASSES; p++)
                    make_job(&jobs[p], n, m, ks[(how / 2 + p) % 3], &rng);
                if (fc_start(&c, transport, sl_rng_next(&rng) | 1, DELAY_US, &o) != SL_OK)
                    fail_msg("%s", c.err.msg);
                run_passes(&c, jobs, PASSES);
                check_counts(&c, jobs, PASSES);
                fc_stop(&c);
            }
}

/* ---- T3: closed forms ---- */

/* One rank of equal ones: chunk i leaves by the port between nodes at the rate of t_x each; a port
 * inside the node serves one chunk after the other. */
static double simulated_dispatch(uint32_t n, double t_x, double a_i, double v_i, bool fused) {
    double port = 0, inside = 0;
    for (uint32_t i = 1; i < n; i++) {
        port += t_x;
        inside = fmax(inside, port) + a_i + v_i;
    }
    return n < 2 ? 0 : fused ? inside : port + a_i + (n - 1) * v_i;
}

static double simulated_combine(uint32_t n, double t_x, double a_i, double v_i, bool fused) {
    double port = 0, inside = 0;
    for (uint32_t i = 1; i < n; i++) {
        inside += a_i + v_i;
        port = fmax(port, inside) + t_x;
    }
    inside += a_i + v_i; /* the own rows, while the last ones travel */
    return fused ? fmax(port, inside) : a_i + n * v_i + (n - 1) * t_x;
}

static void closed_forms_hold(void **state) {
    (void)state;
    uint64_t rng = seed;
    for (int i = 0; i < 20000; i++) {
        uint32_t n = 1 + (uint32_t)sl_rng_below(&rng, 9);
        double t_x = (double)sl_rng_below(&rng, 1000) / 100,
               a_i = (double)sl_rng_below(&rng, 300) / 100,
               v_i = (double)sl_rng_below(&rng, 1000) / 100;
        double fd = sl_fused_dispatch_time(n, t_x, a_i, v_i),
               ud = sl_unfused_dispatch_time(n, t_x, a_i, v_i),
               fc = sl_fused_combine_time(n, t_x, a_i, v_i),
               uc = sl_unfused_combine_time(n, t_x, a_i, v_i);
        assert_true(fabs(fd - simulated_dispatch(n, t_x, a_i, v_i, true)) < 1e-9);
        assert_true(fabs(ud - simulated_dispatch(n, t_x, a_i, v_i, false)) < 1e-9);
        assert_true(fabs(fc - simulated_combine(n, t_x, a_i, v_i, true)) < 1e-9);
        assert_true(fabs(uc - simulated_combine(n, t_x, a_i, v_i, false)) < 1e-9);
        if (n < 2) continue;
        assert_true(fabs(ud - fd - (n - 2) * fmin(v_i, t_x - a_i)) < 1e-9);
        assert_true(fabs(uc - fc - (n - 1) * fmin(v_i, t_x - a_i)) < 1e-9);
    }
}

/* ---- bad bytes ---- */

typedef struct lone {
    sl_net *net;
    sl_fused *f;
    uint32_t sent;
} lone;

static sl_status swallow(void *ctx, uint32_t rank, sl_wire_header h, sl_buf *payload) {
    lone *l = ctx;
    (void)rank, (void)h;
    l->sent++;
    sl_net_buf_give(l->net, payload);
    return SL_OK;
}

static sl_status on_open(void *ctx, sl_conn *c, const sl_hello *peer, sl_err *err) {
    (void)ctx, (void)c, (void)peer, (void)err;
    return SL_OK;
}
static sl_status on_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                            sl_err *err) {
    (void)c, (void)h, (void)err;
    sl_net_buf_give(((lone *)ctx)->net, payload);
    return SL_OK;
}
static void on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    (void)ctx, (void)c, (void)why, (void)text;
}

/* Rank 1 of node 0 of 2 x 2, with `rows` of its home rows for node 1. */
static void lone_start(lone *l, sl_loop_hub *hub) {
    sl_err err = {0};
    sl_net_opts no = {.transport = "loop", .hub = hub, .host = "x", .clock = sl_clock_real()};
    no.on = (sl_net_events){on_open, on_message, on_down};
    no.ctx = l;
    assert_int_equal(sl_net_create(&no, &l->net, &err), SL_OK);
    sl_fused_opts o = opts_of(2, 2, false);
    o.net = l->net;
    o.tp = 1;
    o.send = swallow;
    o.ctx = l;
    assert_int_equal(sl_fused_create(&o, &l->f, &err), SL_OK);
}

static sl_status lone_hears(lone *l, uint32_t rank, uint32_t step, uint32_t node, uint32_t rows,
                            size_t bytes, uint64_t round, sl_err *err) {
    const sl_wire_header h = {
        .kind = SL_MSG_FUSED, .chunk = step, .lane = node, .rows = rows, .pass = round};
    sl_buf *b = bytes ? sl_net_buf_take(l->net, bytes) : NULL;
    if (b) memset(b->data, 0, bytes);
    *err = (sl_err){0};
    return sl_fused_on_message(l->f, rank, &h, b, err);
}

static void bad_messages_are_refused(void **state) {
    (void)state;
    enum { CONTROL, PART, GATHER, REDUCE, REPLY, FINAL };
    const uint32_t half = D / 2 * 4;
    const struct {
        uint32_t rank, step, node, rows;
        size_t bytes;
        uint64_t round;
        const char *text;
    } bad[] = {
        {3, 6, 1, 1, half, 1, "step 6"},
        {3, PART, 2, 1, half, 1, "node 2"},
        {0, PART, 1, 1, half, 1, "part of node 1 from rank 0"}, /* a sibling */
        {2, PART, 1, 1, half, 1, "part of node 1 from rank 2"}, /* another part */
        {3, PART, 0, 1, half, 1, "part of node 0 from rank 3"}, /* not its rows */
        {1, PART, 0, 1, half, 1, "from rank 1"},                /* myself */
        {9, PART, 1, 1, half, 1, "from rank 9"},
        {3, GATHER, 1, 1, half, 1, "gather of node 1 from rank 3"},
        {0, GATHER, 0, 1, half, 1, "gather of node 0"},
        {0, FINAL, 1, 1, half, 1, "final of node 1"},
        {3, PART, 1, MAX_T + 1, half, 1, "limit 13"},
        {3, PART, 1, 1, half - 4, 1, "28 bytes for 1 rows"},
        {3, PART, 1, 1, 0, 1, "0 bytes"},
        {3, PART, 1, 0, half, 1, "32 bytes for 0 rows"},
        {3, CONTROL, 1, 1, MAX_T * (4 + EXPERTS * 8) + 1, 1, "control of"},
        {3, PART, 1, 1, half, 0, "pass 0"},
        {3, PART, 1, 1, half, 3, "pass 3"},
        {0, REDUCE, 1, 1, half, 1, "again"}, /* nobody said how many rows */
        {3, REPLY, 1, 1, half, 1, "again"},  /* two rows went there */
        {0, FINAL, 0, 1, half, 1, "again"},  /* three home rows */
        {0, REDUCE, 0, 2, 2 * half, 1, "again"},
    };
    const uint32_t stay[] = {1}, leave[] = {0, 2};
    const sl_fused_rows to[] = {{.row = stay, .n = 1}, {.row = leave, .n = 2}};
    const float x[3 * D] = {0};
    sl_loop_hub *hub;
    sl_err err = {0};
    lone l = {0};
    assert_int_equal(sl_loop_hub_create(0, 0, &hub, &err), SL_OK);
    lone_start(&l, hub);
    assert_null(sl_fused_result(l.f));
    assert_int_equal(sl_fused_dispatch(l.f, 0, x, 3, to, &err), SL_OK);
    assert_int_equal(sl_fused_dispatch(l.f, 0, x, 3, to, &err), SL_ERR_AGAIN);
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_status st = lone_hears(&l, bad[i].rank, bad[i].step, bad[i].node, bad[i].rows,
                                  bad[i].bytes, bad[i].round, &err);
        if (st != SL_ERR_PROTOCOL || !strstr(err.msg, bad[i].text))
            fail_msg("case %zu: status %d, '%s', expected '%s'", i, st, err.msg, bad[i].text);
    }
    assert_int_equal(lone_hears(&l, 3, PART, 1, 2, 2 * half, 1, &err), SL_OK);
    assert_int_equal(lone_hears(&l, 3, PART, 1, 2, 2 * half, 1, &err), SL_ERR_PROTOCOL);
    assert_int_equal(lone_hears(&l, 0, GATHER, 1, 1, half, 1, &err), SL_ERR_PROTOCOL);
    assert_int_equal(lone_hears(&l, 3, CONTROL, 1, 1, 4, 1, &err), SL_ERR_PROTOCOL);
    for (uint32_t i = 0; i < 100; i++) { /* the next pass, without end */
        sl_status st = lone_hears(&l, 3, PART, 1, 2, 2 * half, 2, &err);
        if (st == SL_OK) continue;
        assert_int_equal(st, SL_ERR_PROTOCOL);
        assert_non_null(strstr(err.msg, "of the next pass"));
        break;
    }
    assert_non_null(strstr(err.msg, "of the next pass"));
    assert_int_equal(sl_fused_give(l.f, 1, x, &err), SL_ERR_ARG);
    assert_int_equal(sl_fused_give(l.f, 7, x, &err), SL_ERR_ARG);
    sl_fused_free(l.f);
    sl_net_abandon(l.net);
    sl_loop_hub_free(hub);
}

static void bad_options_are_refused(void **state) {
    (void)state;
    sl_fused *f = NULL;
    sl_err err = {0};
    for (int i = 0; i < 8; i++) {
        sl_fused_opts o = opts_of(2, 2, false);
        o.net = i ? (sl_net *)(void *)&err : NULL; /* not looked into */
        o.send = swallow;
        if (i == 1) o.n_nodes = 65;
        if (i == 2) o.n_tp = 0;
        if (i == 3) o.node = 2;
        if (i == 4) o.tp = 2;
        if (i == 5) o.d_model = 15;
        if (i == 6) o.max_rows = 65537;
        if (i == 7) o.max_rows = 65536, o.d_model = 4096;
        assert_int_equal(sl_fused_create(&o, &f, &err), SL_ERR_ARG);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) transport = argv[1];
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    if (strcmp(transport, "loop")) sl_net_setup_process(transport);
    printf("%s, seed %llu\n", transport, (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(closed_forms_hold),
        cmocka_unit_test(bad_messages_are_refused),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
