/* Collectives of ranks that share memory, and of ranks with a net each: drawn calls of 2, 4 and 8
 * ranks, threads and processes, give the sums of the one tree and every part of a row; who ends,
 * stops or stays away is an error that names it. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "net/collective.h"
#include "net/transports.h"
#include "sanitized.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define CALLS      (60u / take_one_in(SL_SLOW_BUILD == 2 ? 4 : 1))
#define MOST_ROWS  12u
#define MOST_WIDE  70000u /* a row that is more than a slot holds */
#define OVERLAPPED 11u    /* gatherings, more than are under way at once */
#define AHEAD      20u    /* rounds, as far as a peer may not be */
#define PATIENCE   60000u /* ms: of a machine with much else to do */

typedef struct meeting_point {
    _Atomic uint32_t known[SL_MAX_RANKS]; /* the address is there */
    _Atomic uint32_t done;                /* ranks that have made all their calls */
    char address[SL_MAX_RANKS][96];
} meeting_point;

typedef struct party {
    uint32_t ranks;
    uint64_t seed;
    bool one_memory;
    void *memory;
    const char *transport; /* NULL: collectives in that memory */
    sl_loop_hub *hub;
    meeting_point *where;
} party;

typedef struct guest {
    const party *of;
    uint32_t rank;
    pthread_t thread;
    char why[200]; /* "": all was as it should be */
} guest;

static void *shared(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

/* Value i of a rank in a call: of many sizes, so that the order of additions shows. */
static float value(uint64_t seed, uint32_t call, uint32_t rank, size_t i) {
    uint64_t rng = seed * 977 + call * 131071u + rank * 8191u + i;
    const float v = (float)sl_rng_below(&rng, 1u << 20) - 524288.0f;
    return v * (rank % 2 ? 1e-3f : 1.0f);
}

static float tree(uint64_t seed, uint32_t call, uint32_t ranks, size_t i) {
    float v[SL_MAX_RANKS];
    for (uint32_t r = 0; r < ranks; r++) v[r] = value(seed, call, r, i);
    for (uint32_t n = ranks; n > 1; n /= 2)
        for (uint32_t r = 0; r < n / 2; r++) v[r] = v[2 * r] + v[2 * r + 1];
    return v[0];
}

static bool differs(guest *g, const char *what, uint32_t call, size_t at, float got, float want) {
    if (memcmp(&got, &want, sizeof got) == 0) return false;
    snprintf(g->why, sizeof g->why, "%s %u at rank %u: value %zu is %a, not %a", what, call,
             g->rank, at, (double)got, (double)want);
    return true;
}

static bool reduces(guest *g, sl_coll *c, uint32_t call, float *y, size_t n, sl_err *err) {
    const party *p = g->of;
    for (size_t i = 0; i < n; i++) y[i] = value(p->seed, call, g->rank, i);
    if (sl_coll_all_reduce(c, y, n, err) != SL_OK) return false;
    for (size_t i = 0; i < n; i++)
        if (differs(g, "all_reduce", call, i, y[i], tree(p->seed, call, p->ranks, i))) return false;
    return true;
}

static bool scatters(guest *g, sl_coll *c, uint32_t call, float *y, uint32_t rows, uint32_t width,
                     sl_err *err) {
    const party *p = g->of;
    uint32_t first, n;
    for (size_t i = 0; i < (size_t)rows * width; i++) y[i] = value(p->seed, call, g->rank, i);
    if (sl_coll_reduce_scatter(c, y, rows, width, &first, &n, err) != SL_OK) return false;
    for (uint32_t r = 0; r < rows; r++)
        for (size_t i = (size_t)r * width + first; i < (size_t)r * width + first + n; i++)
            if (differs(g, "reduce_scatter", call, i, y[i], tree(p->seed, call, p->ranks, i)))
                return false;
    /* Every column is somebody's. */
    float owners[2] = {(float)n, (float)(g->rank ? 0 : first)};
    if (sl_coll_meet(c, SL_COLL_ALL, err) != SL_OK) return false;
    if (sl_coll_all_reduce(c, owners, 2, err) != SL_OK) return false;
    return !differs(g, "columns", call, 0, owners[0], (float)width) &&
           !differs(g, "columns", call, 1, owners[1], 0);
}

/* Parts of different sizes, some of which two ranks have, some empty. */
static sl_extent part_of(uint32_t rank, uint32_t ranks, uint32_t width, bool twice) {
    sl_extent e =
        sl_rank_range((sl_rank){twice ? rank / 2 : rank, twice ? ranks / 2 : ranks}, width);
    return e;
}

static bool gathers(guest *g, sl_coll *c, uint32_t call, float *part, float *whole, uint32_t rows,
                    uint32_t width, sl_err *err) {
    const party *p = g->of;
    const sl_extent mine = part_of(g->rank, p->ranks, width, call % 2);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < mine.n; i++)
            part[(size_t)r * mine.n + i] =
                value(p->seed, call, 0, (size_t)r * width + mine.first + i);
    if (sl_coll_all_gather(c, part, rows, mine.first, mine.n, width, whole, err) != SL_OK)
        return false;
    for (size_t i = 0; i < (size_t)rows * width; i++)
        if (differs(g, "all_gather", call, i, whole[i], value(p->seed, call, 0, i))) return false;
    return true;
}

/* Several at once, some of which have their columns where all are to be; finished in the end, one
 * of them before. */
static bool overlaps(guest *g, sl_coll *c, uint32_t call, float *a, float *b, uint32_t rows,
                     uint32_t width, sl_err *err) {
    const party *p = g->of;
    const sl_extent mine = part_of(g->rank, p->ranks, width, call % 2);
    const size_t all = (size_t)rows * width;
    uint64_t ticket[OVERLAPPED];
    for (uint32_t k = 0; k < OVERLAPPED; k++) {
        float *whole = b + k * all, *part = a + k * all;
        for (size_t i = 0; i < all; i++) {
            const bool its = sl_extent_has(mine, (uint32_t)(i % width));
            whole[i] = its ? value(p->seed, call, k, i) : 0;
            if (its) part[i / width * mine.n + i % width - mine.first] = whole[i];
        }
        const sl_status st =
            k % 3 ? sl_coll_begin_share(c, whole, rows, mine.first, mine.n, width, &ticket[k], err)
                  : sl_coll_begin_gather(c, part, rows, mine.first, mine.n, width, whole,
                                         &ticket[k], err);
        if (st != SL_OK) return false;
        if (k == 5 && sl_coll_finish(c, ticket[call % 5], err) != SL_OK) return false;
    }
    /* The next call finishes them, too. */
    if (call % 2 && sl_coll_finish(c, UINT64_MAX, err) != SL_OK) return false;
    if (call % 2 == 0 && sl_coll_meet(c, SL_COLL_ALL, err) != SL_OK) return false;
    for (uint32_t k = 0; k < OVERLAPPED; k++)
        for (size_t i = 0; i < all; i++)
            if (differs(g, "gathering under way", call, i, b[k * all + i],
                        value(p->seed, call, k, i)))
                return false;
    return true;
}

/* Rank 0 says something, the others answer. */
static bool talks(guest *g, sl_coll *c, uint32_t call, sl_err *err) {
    if (g->of->transport)
        return sl_coll_meet(c, SL_COLL_SPEAKS, err) == SL_OK &&
               sl_coll_meet(c, SL_COLL_HEARS, err) == SL_OK;
    uint32_t *said = (uint32_t *)(void *)((uint8_t *)g->of->memory + sl_coll_bytes(g->of->ranks));
    if (g->rank == 0) said[0] = call + 1;
    if (sl_coll_meet(c, SL_COLL_SPEAKS, err) != SL_OK) return false;
    if (g->rank) said[g->rank] = said[0];
    if (sl_coll_meet(c, SL_COLL_HEARS, err) != SL_OK) return false;
    for (uint32_t i = 1; g->rank == 0 && i < g->of->ranks; i++)
        if (differs(g, "answer", call, i, (float)said[i], (float)call + 1)) return false;
    return true;
}

static bool calls(guest *g, sl_coll *c, float *a, float *b, sl_err *err) {
    uint64_t rng = g->of->seed;
    bool good = true;
    for (uint32_t call = 0; good && call < CALLS; call++) {
        const uint32_t kind = (uint32_t)sl_rng_below(&rng, 5), large = !sl_rng_below(&rng, 6);
        const uint32_t rows = 1 + (uint32_t)sl_rng_below(&rng, large ? 2 : MOST_ROWS);
        const uint32_t width = 1 + (uint32_t)sl_rng_below(&rng, large ? MOST_WIDE : 700);
        if (kind == 0) good = reduces(g, c, call, a, (size_t)rows * width, err);
        if (kind == 1) good = scatters(g, c, call, a, rows, width, err);
        if (kind == 2) good = gathers(g, c, call, a, b, rows, width, err);
        if (kind == 3) good = talks(g, c, call, err);
        if (kind == 4 && g->of->transport)
            good = overlaps(g, c, call, a, b, SL_MIN(rows, 4u), SL_MIN(width, 700u), err);
    }
    return good;
}

/* ---- a rank's net ---- */

typedef struct wired {
    sl_net *net;
    sl_coll *coll;
} wired;

static sl_status on_open(void *ctx, sl_conn *conn, const sl_hello *peer, sl_err *err) {
    return sl_coll_on_open(((wired *)ctx)->coll, peer->worker, conn, err);
}

static sl_status on_message(void *ctx, sl_conn *conn, const sl_wire_header *h, sl_buf *payload,
                            sl_err *err) {
    wired *w = ctx;
    if (w->coll) return sl_coll_on_message(w->coll, sl_conn_hello(conn)->worker, h, payload, err);
    sl_net_buf_give(w->net, payload);
    return SL_OK;
}

static void on_down(void *ctx, sl_conn *conn, sl_status why, const char *text) {
    (void)why, (void)text;
    if (((wired *)ctx)->coll) sl_coll_on_down(((wired *)ctx)->coll, conn);
}

/* Collectives over a net of its own, which calls all ranks before it. */
static sl_status wire_up(const party *p, const sl_coll_opts *co, wired *w, sl_err *err) {
    const uint32_t rank = co->rank.index;
    meeting_point *m = p->where;
    sl_net_opts o = {.transport = p->transport,
                     .hub = p->hub,
                     .host = "127.0.0.1",
                     .clock = sl_clock_real(),
                     .silence_limit_us = 60000000,
                     .secret = {(const uint8_t *)"a secret of collectives", 23},
                     .hello = {.worker = rank, .incarnation = rank + 1},
                     .on = {on_open, on_message, on_down},
                     .ctx = w};
    sl_status st = sl_net_create(&o, &w->net, err);
    if (st == SL_OK) st = sl_coll_open_net(co, w->net, &w->coll, err);
    if (st != SL_OK) return st;
    snprintf(m->address[rank], sizeof m->address[rank], "%s", sl_net_address(w->net));
    atomic_store(&m->known[rank], 1);
    for (uint32_t i = 0; st == SL_OK && i < rank; i++) {
        sl_conn *conn;
        while (!atomic_load(&m->known[i])) sl_net_wait(w->net, 1000);
        st = sl_net_connect(w->net, m->address[i], NULL, &conn, err);
    }
    return st;
}

/* What others still wait for leaves. */
static void unwire(const party *p, wired *w) {
    const uint64_t until = sl_now_ns() + PATIENCE * 1000000ull;
    if (p->where) atomic_fetch_add(&p->where->done, 1);
    while (w->net && atomic_load(&p->where->done) < p->ranks && sl_now_ns() < until) {
        sl_net_progress(w->net);
        sl_net_wait(w->net, 1000);
    }
    sl_coll_free(w->coll);
    w->coll = NULL;
    sl_net_free(w->net);
}

static void *attend(void *arg) {
    guest *g = arg;
    const sl_coll_opts o = {.rank = {g->rank, g->of->ranks},
                            .one_memory = g->of->one_memory,
                            .poll_ns = 2000,
                            .deadline_ms = PATIENCE};
    sl_err err = {0};
    wired w = {0};
    const size_t most = 2 * (size_t)MOST_WIDE + MOST_ROWS * 700u;
    float *a = malloc(most * sizeof *a), *b = malloc(most * sizeof *b);
    sl_status st = g->of->transport ? wire_up(g->of, &o, &w, &err)
                                    : sl_coll_open(&o, g->of->memory, &w.coll, &err);
    if (!a || !b || st != SL_OK || !calls(g, w.coll, a, b, &err))
        if (!g->why[0]) snprintf(g->why, sizeof g->why, "rank %u: %s", g->rank, err.msg);
    unwire(g->of, &w);
    free(a), free(b);
    return NULL;
}

static size_t bytes_of(uint32_t ranks) {
    return sl_coll_bytes(ranks) + 64;
}

static void threads(uint32_t ranks, bool one_memory, const char *transport) {
    party p = {.ranks = ranks,
               .seed = ranks + 11u * one_memory,
               .one_memory = one_memory,
               .transport = transport};
    guest g[SL_MAX_RANKS] = {0};
    sl_err err;
    p.memory = shared(bytes_of(ranks));
    p.where = transport ? shared(sizeof *p.where) : NULL;
    if (transport && strcmp(transport, "loop") == 0)
        assert_int_equal(sl_loop_hub_create(5, 300, &p.hub, &err), SL_OK);
    for (uint32_t i = 0; i < ranks; i++) {
        g[i] = (guest){.of = &p, .rank = i};
        assert_int_equal(pthread_create(&g[i].thread, NULL, attend, &g[i]), 0);
    }
    for (uint32_t i = 0; i < ranks; i++) pthread_join(g[i].thread, NULL);
    for (uint32_t i = 0; i < ranks; i++)
        if (g[i].why[0]) fail_msg("%s", g[i].why);
    if (p.hub) sl_loop_hub_free(p.hub);
    if (p.where) munmap(p.where, sizeof *p.where);
    munmap(p.memory, bytes_of(ranks));
}

static void threads_agree(void **state) {
    (void)state;
    for (uint32_t ranks = 2; ranks <= SL_MAX_RANKS; ranks *= 2) {
        threads(ranks, false, NULL);
        threads(ranks, true, NULL);
    }
}

static void nets_agree(void **state) {
    (void)state;
    for (uint32_t ranks = 2; ranks <= SL_MAX_RANKS; ranks *= 2) {
        threads(ranks, false, "loop");
        threads(ranks, false, "tcp");
        threads(ranks, false, "shm");
    }
}

/* ---- processes ---- */

static pid_t rank_process(const party *p, uint32_t rank) {
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid) return pid;
    guest g = {.of = p, .rank = rank};
    if (p->transport) sl_net_setup_process(p->transport);
    attend(&g);
    if (g.why[0]) fprintf(stderr, "%s\n", g.why);
    _exit(g.why[0] ? 1 : 0);
}

static void processes(uint32_t ranks, const char *transport) {
    party p = {.ranks = ranks,
               .seed = 5 + ranks,
               .memory = shared(bytes_of(ranks)),
               .transport = transport,
               .where = shared(sizeof *p.where)};
    pid_t pid[SL_MAX_RANKS];
    for (uint32_t i = 0; i < ranks; i++) pid[i] = rank_process(&p, i);
    for (uint32_t i = 0; i < ranks; i++) {
        int status = -1;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_int_equal(status, 0);
    }
    munmap(p.where, sizeof *p.where);
    munmap(p.memory, bytes_of(ranks));
}

static bool has_transport(const char *name) {
    sl_err err;
    const sl_transport_kind *t = sl_transport_find(name, false, &err);
    return t && !t->needs;
}

static void processes_agree(void **state) {
    (void)state;
    for (uint32_t ranks = 2; ranks <= SL_MAX_RANKS; ranks *= 2) processes(ranks, NULL);
    processes(4, "tcp");
    processes(2, "shm");
    if (has_transport("ucx")) processes(2, "ucx");
}

static pid_t watched[SL_MAX_RANKS];

static bool has_ended(void *ctx, uint32_t rank) {
    siginfo_t info = {0};
    (void)ctx;
    return watched[rank] > 0 &&
           waitid(P_PID, (id_t)watched[rank], &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == watched[rank];
}

static void ticks(void *ctx) {
    ++*(uint32_t *)ctx;
}

/* A rank over tcp that ends is named, too, by who waits for it. */
static void a_dead_net_is_named(void **state) {
    party p = {.ranks = 2, .transport = "tcp", .where = shared(sizeof *p.where)};
    const sl_coll_opts o = {.rank = {0, 2}, .deadline_ms = PATIENCE};
    float y[8] = {1};
    wired w = {0};
    sl_err err = {0};
    (void)state;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const sl_coll_opts its = {.rank = {1, 2}, .deadline_ms = PATIENCE};
        if (wire_up(&p, &its, &w, &err) != SL_OK) _exit(1);
        if (sl_coll_all_reduce(w.coll, y, 8, &err) != SL_OK) _exit(1);
        (void)sl_net_progress(w.net);
        raise(SIGKILL);
    }
    assert_int_equal(wire_up(&p, &o, &w, &err), SL_OK);
    sl_status st = sl_coll_all_reduce(w.coll, y, 8, &err);
    if (st == SL_OK) st = sl_coll_all_reduce(w.coll, y, 8, &err);
    assert_int_equal(st, SL_ERR_PEER_DOWN);
    assert_string_equal(err.msg, "rank 1 of 2 has ended");
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    sl_coll_free(w.coll);
    w.coll = NULL;
    sl_net_free(w.net);
    munmap(p.where, sizeof *p.where);
}

static sl_status hand_in(wired *w, uint32_t rank, uint64_t pass, size_t bytes) {
    const sl_wire_header h = {.kind = SL_MSG_COLLECTIVE,
                              .pass = pass,
                              .rows = bytes > 0,
                              .chunk = (uint32_t)(bytes / sizeof(float))};
    sl_err err;
    sl_buf *b = bytes ? sl_net_buf_take(w->net, bytes) : NULL;
    assert_true(b || !bytes);
    return sl_coll_on_message(w->coll, rank, &h, b, &err);
}

/* Who is there of a gang without anybody else: connections that are none, of ranks 1 and on. */
static sl_conn *nobody(uint32_t rank) {
    static uint64_t conn[SL_MAX_RANKS];
    return (sl_conn *)(void *)&conn[rank];
}

static party alone(uint32_t ranks, wired *w) {
    const sl_coll_opts o = {.rank = {0, ranks}, .deadline_ms = PATIENCE};
    party p = {.ranks = ranks, .transport = "loop", .where = shared(sizeof *p.where)};
    sl_err err;
    assert_int_equal(sl_loop_hub_create(1, 0, &p.hub, &err), SL_OK);
    assert_int_equal(wire_up(&p, &o, w, &err), SL_OK);
    for (uint32_t i = 1; i < ranks; i++)
        assert_int_equal(sl_coll_on_open(w->coll, i, nobody(i), &err), SL_OK);
    return p;
}

static void leave_alone(party *p, wired *w) {
    sl_coll_free(w->coll);
    w->coll = NULL;
    sl_net_free(w->net);
    sl_loop_hub_free(p->hub);
    munmap(p->where, sizeof *p->where);
}

/* Who said its word of a step may leave while others are waited for: it is not who is missed. */
static void who_spoke_may_leave(void **state) {
    wired w = {0};
    sl_err err;
    (void)state;
    party p = alone(4, &w);
    assert_int_equal(hand_in(&w, 1, 1, 0), SL_OK);
    for (uint32_t i = 1; i < 4; i++) sl_coll_on_down(w.coll, nobody(i));
    assert_int_equal(sl_coll_meet(w.coll, SL_COLL_ALL, &err), SL_ERR_PEER_DOWN);
    assert_string_equal(err.msg, "rank 2 of 4 has ended");
    leave_alone(&p, &w);
}

/* A word that comes again when its round is through is not taken for one of a later round. */
static void no_word_comes_twice(void **state) {
    wired w = {0};
    sl_err err;
    (void)state;
    party p = alone(2, &w);
    sl_coll_on_down(w.coll, nobody(1));
    assert_int_equal(hand_in(&w, 1, 1, 0), SL_OK);
    assert_int_equal(sl_coll_meet(w.coll, SL_COLL_ALL, &err), SL_OK);
    assert_int_equal(hand_in(&w, 1, 1, 0), SL_ERR_PROTOCOL);
    /* One that nobody waits for keeps its place, and is none of a round so much later. */
    assert_int_equal(sl_coll_meet(w.coll, SL_COLL_SPEAKS, &err), SL_OK);
    assert_int_equal(hand_in(&w, 1, 2, 0), SL_OK);
    for (uint32_t i = 3; i < 2 + AHEAD; i++) {
        assert_int_equal(hand_in(&w, 1, i, 0), SL_OK);
        assert_int_equal(sl_coll_meet(w.coll, SL_COLL_ALL, &err), SL_OK);
    }
    assert_int_equal(hand_in(&w, 1, 2 + AHEAD, 0), SL_ERR_PROTOCOL);
    assert_int_equal(sl_coll_meet(w.coll, SL_COLL_ALL, &err), SL_ERR_PEER_DOWN);
    leave_alone(&p, &w);
}

/* Nobody is a rank that there is not, or that somebody else is or was. */
static void ranks_are_taken_once(void **state) {
    wired w = {0};
    sl_err err;
    (void)state;
    party p = alone(4, &w);
    assert_int_equal(sl_coll_on_open(w.coll, 0, nobody(5), &err), SL_ERR_PROTOCOL);
    assert_string_equal(err.msg, "rank 0 of 4 at rank 0");
    assert_int_equal(sl_coll_on_open(w.coll, SL_NO_WORKER, nobody(5), &err), SL_ERR_PROTOCOL);
    assert_int_equal(sl_coll_on_open(w.coll, 2, nobody(5), &err), SL_ERR_PROTOCOL);
    assert_string_equal(err.msg, "rank 2 of 4 is connected");
    sl_coll_on_down(w.coll, nobody(5)); /* the rank stays */
    assert_int_equal(sl_coll_on_open(w.coll, 2, nobody(5), &err), SL_ERR_PROTOCOL);
    sl_coll_on_down(w.coll, nobody(2));
    assert_int_equal(sl_coll_on_open(w.coll, 2, nobody(5), &err), SL_ERR_PROTOCOL);
    assert_string_equal(err.msg, "rank 2 of 4 was connected, and has ended");
    leave_alone(&p, &w);
}

/* A part that a rank says it has, in memory too, is one of the row. */
static void parts_lie_in_rows(void **state) {
    party p = {.ranks = 2, .memory = shared(bytes_of(2))};
    float y[8] = {0}, part[4] = {0};
    (void)state;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    const uint32_t rank = pid == 0;
    const sl_coll_opts o = {.rank = {rank, 2}, .deadline_ms = PATIENCE};
    sl_coll *c;
    sl_err err;
    sl_status st = sl_coll_open(&o, p.memory, &c, &err);
    if (st == SL_OK) st = sl_coll_all_gather(c, part, 1, rank ? 6 : 0, 4, 8, y, &err);
    if (rank) _exit(st != SL_ERR_PROTOCOL);
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(st, SL_ERR_PROTOCOL);
    assert_string_equal(err.msg, "rank 1 of 2 has columns 6 to 10 of 8");
    assert_int_equal(status, 0);
    sl_coll_free(c);
    munmap(p.memory, bytes_of(2));
}

/* What a peer may not send: a round long past or far ahead, one twice, rows that nobody expects. */
static void peers_break_no_rules(void **state) {
    sl_err err;
    wired w = {0};
    (void)state;
    party p = alone(2, &w);
    const struct {
        uint32_t rank;
        uint64_t pass;
        sl_status want;
    } sent[] = {{0, 1, SL_ERR_PROTOCOL},     {2, 1, SL_ERR_PROTOCOL}, {1, 0, SL_ERR_PROTOCOL},
                {1, AHEAD, SL_ERR_PROTOCOL}, {1, 1, SL_OK},           {1, 1, SL_ERR_PROTOCOL}};
    for (size_t i = 0; i < SL_LEN(sent); i++)
        assert_int_equal(hand_in(&w, sent[i].rank, sent[i].pass, 16), sent[i].want);
    float y[8] = {0}; /* there are 4 values of 8 */
    sl_coll_on_down(w.coll, nobody(1));
    assert_int_equal(sl_coll_all_reduce(w.coll, y, 8, &err), SL_ERR_PROTOCOL);
    assert_non_null(strstr(err.msg, "rank 1 of 2 sent 1 rows of columns 0 to 4, 16 bytes: 1 of 0"));
    leave_alone(&p, &w);
}

/* Rank 2 of 4 gets that signal instead of going on; what rank 0 then hears. */
static sl_err without_rank_2(int sig, uint32_t deadline_ms, uint32_t *ticked) {
    party p = {.ranks = 4, .memory = shared(bytes_of(4))};
    sl_coll *c;
    sl_err err = {0};
    for (uint32_t i = 1; i < 4; i++) {
        watched[i] = fork();
        assert_true(watched[i] >= 0);
        if (watched[i]) continue;
        const sl_coll_opts o = {.rank = {i, 4}, .deadline_ms = PATIENCE};
        float y[8] = {1};
        if (sl_coll_open(&o, p.memory, &c, &err) != SL_OK) _exit(1);
        if (sl_coll_all_reduce(c, y, 8, &err) != SL_OK) _exit(1);
        if (i == 2) raise(sig);
        (void)!sl_coll_all_reduce(c, y, 8, &err);
        _exit(0);
    }
    const sl_coll_opts o = {.rank = {0, 4},
                            .deadline_ms = deadline_ms,
                            .is_gone = has_ended,
                            .tick = ticks,
                            .tick_us = 500,
                            .ctx = ticked};
    float y[8] = {1};
    assert_int_equal(sl_coll_open(&o, p.memory, &c, &err), SL_OK);
    assert_int_equal(sl_coll_all_reduce(c, y, 8, &err), SL_OK);
    assert_int_not_equal(sl_coll_all_reduce(c, y, 8, &err), SL_OK);
    sl_err again = {0}; /* nothing works any more */
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(sl_coll_meet(c, SL_COLL_HEARS, &again), err.code);
    assert_string_equal(again.msg, err.msg);
    sl_coll_free(c);
    for (uint32_t i = 1; i < 4; i++) {
        kill(watched[i], SIGKILL);
        assert_int_equal(waitpid(watched[i], NULL, 0), watched[i]);
        watched[i] = 0;
    }
    munmap(p.memory, bytes_of(4));
    return err;
}

static void a_dead_rank_is_named(void **state) {
    uint32_t ticked = 0;
    (void)state;
    const sl_err err = without_rank_2(SIGKILL, PATIENCE, &ticked);
    assert_int_equal(err.code, SL_ERR_PEER_DOWN);
    assert_string_equal(err.msg, "rank 2 of 4 has ended");
    assert_true(ticked > 0);
}

static void a_stopped_rank_is_named(void **state) {
    uint32_t ticked = 0;
    (void)state;
    /* The others wait for it as rank 0 does, who may ask for any of them. */
    const sl_err err = without_rank_2(SIGSTOP, 1000, &ticked);
    assert_int_equal(err.code, SL_ERR_TIMEOUT);
    assert_string_equal(err.msg, "rank 2 of 4 did not come within 1000 ms");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_agree),           cmocka_unit_test(nets_agree),
        cmocka_unit_test(processes_agree),         cmocka_unit_test(a_dead_rank_is_named),
        cmocka_unit_test(a_dead_net_is_named),     cmocka_unit_test(peers_break_no_rules),
        cmocka_unit_test(a_stopped_rank_is_named), cmocka_unit_test(who_spoke_may_leave),
        cmocka_unit_test(no_word_comes_twice),     cmocka_unit_test(ranks_are_taken_once),
        cmocka_unit_test(parts_lie_in_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
