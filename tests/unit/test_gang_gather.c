/* Messages that a gang's ranks begin to gather before a call asks for their rows: two ranks on
 * machines, with the collectives and the rail that ship, and counterparts of the second that the
 * test plays. What comes out is what would have come out without it, whatever is begun in which
 * order, and what is given up is in nobody's way. */
#include "base/clock.h"
#include "base/rng.h"
#include "net_harness.h"
#include "stage/gang/rail.h"
#include "stage/gang/spread.h"

#include <stdlib.h>

#define WIDTH 24u
#define NODES 3u /* others, whose messages come */
#define ROWS  5u /* of each */
#define PLAIN 2u
#define MOST  (NODES * ROWS + PLAIN)
#define LATE  20000u /* ms: nobody is that late */

static const sl_extent columns[] = {{0, 16}, {16, 8}};

typedef struct scene scene;

typedef struct rank {
    scene *of;
    gang_rank r;
    sl_net *net;
    float x[MOST][WIDTH];
} rank;

/* One of others' ranks 1. */
typedef struct node {
    peer is;
    uint64_t number; /* of its last message */
} node;

struct scene {
    vclock clock;
    sl_loop_hub *hub;
    sl_model_spec spec;
    sl_device device;
    sl_wire_format wire;
    rank rank[2];
    node node[NODES];
    float sent[NODES][ROWS][WIDTH];
    uint8_t part[NODES][ROWS * (WIDTH * sizeof(float) + 8)]; /* rank 0's */
    uint8_t plain[PLAIN * (WIDTH * sizeof(float) + 8)];
    uint32_t came;       /* parts of which rank 1 has told */
    const gang_job *due; /* what rank 1 does while rank 0 waits */
    jmp_buf out;
    sl_status failed;
};

/* ---- ranks ---- */

static void tick(void *ctx) {
    scene *s = ctx;
    const gang_job *j = s->due;
    s->due = NULL;
    if (j) gang_spread_do(&s->rank[1].r, j);
}

static void lost(gang_rank *r, const sl_err *err) {
    scene *s = ((rank *)r->ctx)->of;
    s->failed = err->code;
    longjmp(s->out, 1);
}

static void say(void *ctx, const sl_rails_word *w) {
    ((scene *)ctx)->came += w->kind == SL_RAILS_HERE;
}

static bool is_sibling(const sl_hello *its) {
    return its->worker != SL_NO_WORKER;
}

static sl_status on_open(void *ctx, sl_conn *c, const sl_hello *its, sl_err *err) {
    rank *r = ctx;
    if (is_sibling(its)) return sl_coll_on_open(r->r.coll, its->worker, c, err);
    return gang_rail_on_open(r->r.rail, c, err);
}

static sl_status on_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *b,
                            sl_err *err) {
    rank *r = ctx;
    const sl_hello *its = sl_conn_hello(c);
    if (is_sibling(its)) return sl_coll_on_message(r->r.coll, its->worker, h, b, err);
    const sl_status st = gang_rail_on_message(r->r.rail, c, h, &b, err);
    sl_net_buf_give(r->net, b);
    return st;
}

static void on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    rank *r = ctx;
    (void)why;
    sl_coll_on_down(r->r.coll, c);
    if (r->r.rail) gang_rail_on_down(r->r.rail, c, text);
}

static void start_rank(scene *s, uint32_t index) {
    rank *r = &s->rank[index];
    sl_err err;
    const sl_net_opts o = {.transport = "loop",
                           .hub = s->hub,
                           .host = "",
                           .clock = {vclock_now, &s->clock},
                           .secret = {(const uint8_t *)KEY, strlen(KEY)},
                           .hello = {.worker = index, .incarnation = index + 1},
                           .on = {on_open, on_message, on_down},
                           .ctx = r};
    const sl_coll_opts co = {
        .rank = {index, 2}, .deadline_ms = LATE, .tick = tick, .tick_us = 1, .ctx = s};
    *r = (rank){.of = s};
    assert_int_equal(sl_net_create(&o, &r->net, &err), SL_OK);
    r->r = (gang_rank){.is = {index, 2}, .device = &s->device, .lost = lost, .ctx = r};
    r->r.link.out = columns[index];
    assert_int_equal(sl_coll_open_net(&co, r->net, &r->r.coll, &err), SL_OK);
    if (index == 0) return;
    const gang_rail_opts ro = {.net = r->net, .index = index, .say = say, .ctx = s};
    r->r.rail = gang_rail_create(&ro);
    assert_non_null(r->r.rail);
    gang_rail_set_row(r->r.rail, sl_wire_row_bytes(s->wire, columns[index].n));
}

static void pump(scene *s) {
    for (uint32_t i = 0; i < 60; i++, s->clock.now_us += 100) {
        for (uint32_t k = 0; k < 2; k++) (void)sl_net_progress(s->rank[k].net);
        for (uint32_t k = 0; k < NODES; k++)
            if (s->node[k].is.net) (void)sl_net_progress(s->node[k].is.net);
    }
}

static uint64_t key_of(uint32_t i) {
    return 11 + i;
}

/* A counterpart that rank 0 has said is expected. */
static void start_node(scene *s, uint32_t i) {
    peer *p = &s->node[i].is;
    const sl_rails_word w = {.kind = SL_RAILS_EXPECT, .key = key_of(i)};
    sl_conn *c;
    sl_err err;
    assert_int_equal(gang_rail_on_word(s->rank[1].r.rail, &w, &err), SL_OK);
    peer_start(p, s->hub, &s->clock, KEY);
    assert_int_equal(sl_net_connect(p->net, sl_net_address(s->rank[1].net), NULL, &c, &err), SL_OK);
    pump(s);
    assert_true(p->last == c);
    const sl_wire_header h = {.kind = SL_MSG_RAIL_IS, .number = key_of(i), .chunk = 1};
    assert_int_equal(sl_net_send(p->net, c, h, NULL), SL_OK);
    pump(s);
}

static void begin(scene *s, sl_wire_format wire) {
    sl_err err;
    sl_conn *c;
    memset(s, 0, sizeof *s);
    s->clock.now_us = 1000000;
    s->wire = wire;
    s->spec = (sl_model_spec){.d_model = WIDTH, .top_k = 2};
    s->device.spec = &s->spec;
    assert_int_equal(sl_loop_hub_create(1, 0, &s->hub, &err), SL_OK);
    for (uint32_t i = 0; i < 2; i++) start_rank(s, i);
    assert_int_equal(sl_net_connect(s->rank[1].net, sl_net_address(s->rank[0].net), NULL, &c, &err),
                     SL_OK);
    pump(s);
    for (uint32_t i = 0; i < NODES; i++) start_node(s, i);
}

static void finish(scene *s) {
    for (uint32_t i = 0; i < 2; i++) {
        gang_scratch_free(s->rank[i].r.scratch);
        gang_rail_free(s->rank[i].r.rail);
        sl_coll_free(s->rank[i].r.coll);
        sl_net_free(s->rank[i].net);
    }
    for (uint32_t i = 0; i < NODES; i++)
        if (s->node[i].is.net) sl_net_free(s->node[i].is.net);
    sl_loop_hub_free(s->hub);
}

/* ---- messages and jobs ---- */

static size_t row_bytes(const scene *s, uint32_t index) {
    return sl_wire_row_bytes(s->wire, columns[index].n);
}

/* The node's next message comes, of as many rows. */
static void come(scene *s, uint32_t i, uint64_t *rng) {
    node *n = &s->node[i];
    const uint32_t before = s->came;
    sl_buf *b = sl_net_buf_take(n->is.net, ROWS * row_bytes(s, 1));
    assert_non_null(b);
    for (uint32_t r = 0; r < ROWS; r++) {
        float *row = s->sent[i][r];
        for (uint32_t k = 0; k < WIDTH; k++)
            row[k] = ((float)sl_rng_below(rng, 2001) - 1000) / (float)(1 + sl_rng_below(rng, 99));
        const uint32_t top = sl_wire_top(row, WIDTH);
        sl_wire_pack_columns(s->wire, row, columns[0].n, top, s->part[i] + r * row_bytes(s, 0));
        sl_wire_pack_columns(s->wire, row + columns[1].first, columns[1].n, top,
                             b->data + r * row_bytes(s, 1));
    }
    const sl_wire_header h = {
        .kind = SL_MSG_STRIPE, .number = ++n->number, .chunk = 1, .rows = ROWS};
    assert_int_equal(sl_net_send(n->is.net, n->is.last, h, b), SL_OK);
    pump(s);
    assert_int_equal(s->came, before + 1);
}

static sl_stage_spread message_of(const scene *s, uint32_t i, bool of_first) {
    return (sl_stage_spread){.is = {.number = s->node[i].number, .key = key_of(i), .cut = true},
                             .rows = ROWS,
                             .data = of_first ? s->part[i] : NULL};
}

static gang_job job_of(const scene *s, const sl_stage_spread *m, uint32_t n_messages) {
    return (gang_job){.kind = GANG_SPREAD,
                      .spread = {.op = SL_OP_UNPACK,
                                 .wire = s->wire,
                                 .n_messages = n_messages,
                                 .message = m,
                                 .columns = {columns[0], columns[1]}}};
}

/* Both ranks do it, the second while the first waits for it or when that is through. */
static void both(scene *s, gang_job first, gang_job second) {
    first.spread.rows = sl_mem_host(s->rank[0].x, sizeof s->rank[0].x);
    second.spread.rows = sl_mem_host(s->rank[1].x, sizeof s->rank[1].x);
    s->due = &second;
    gang_spread_do(&s->rank[0].r, &first);
    tick(s);
    pump(s);
}

/* Neither waits for the other. */
static void begins(scene *s, uint32_t i) {
    const sl_stage_spread m[2] = {message_of(s, i, true), message_of(s, i, false)};
    const gang_job first = job_of(s, &m[0], 1), second = job_of(s, &m[1], 1);
    gang_spread_do(&s->rank[0].r, &first);
    gang_spread_do(&s->rank[1].r, &second);
    pump(s);
}

/* Rows of these nodes' messages in a drawn order, and some that come with the job. */
typedef struct asked {
    sl_stage_spread message[2][NODES];
    gang_ref ref[MOST];
    uint32_t n, n_messages;
    bool with_plain;
} asked;

static asked ask(const scene *s, const uint32_t *nodes, uint32_t n, bool plain, uint64_t *rng) {
    asked a = {.n_messages = n, .with_plain = plain};
    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t t = 0; t < 2; t++) a.message[t][k] = message_of(s, nodes[k], t == 0);
        for (uint32_t r = 0; r < ROWS; r++) a.ref[a.n++] = (gang_ref){k, r};
    }
    for (uint32_t r = 0; plain && r < PLAIN; r++) a.ref[a.n++] = (gang_ref){GANG_PLAIN, r};
    for (uint32_t i = a.n - 1; i > 0; i--) {
        const uint32_t k = (uint32_t)sl_rng_below(rng, i + 1);
        const gang_ref r = a.ref[i];
        a.ref[i] = a.ref[k];
        a.ref[k] = r;
    }
    return a;
}

static gang_job unpack_of(const scene *s, const asked *a, uint32_t index) {
    gang_job j = job_of(s, a->message[index], a->n_messages);
    j.spread.n = a->n;
    j.spread.ref = a->ref;
    j.spread.plain = a->with_plain ? s->plain : NULL;
    j.spread.n_plain = a->with_plain ? PLAIN : 0;
    return j;
}

static void same(const scene *s, const asked *a, const uint32_t *nodes, uint32_t index) {
    for (uint32_t i = 0; i < a->n; i++) {
        float want[WIDTH];
        const gang_ref ref = a->ref[i];
        if (ref.message == GANG_PLAIN) {
            const size_t whole = sl_wire_row_bytes(s->wire, WIDTH);
            sl_wire_unpack(s->wire, s->plain + ref.row * whole, 1, WIDTH, want);
        } else {
            uint8_t bytes[WIDTH * sizeof(float) + 8];
            sl_wire_pack(s->wire, s->sent[nodes[ref.message]][ref.row], 1, WIDTH, bytes);
            sl_wire_unpack(s->wire, bytes, 1, WIDTH, want);
        }
        assert_memory_equal(s->rank[index].x[i], want, sizeof want);
    }
}

static void unpacks(scene *s, const uint32_t *nodes, uint32_t n, bool plain, uint64_t *rng) {
    const asked a = ask(s, nodes, n, plain, rng);
    both(s, unpack_of(s, &a, 0), unpack_of(s, &a, 1));
    for (uint32_t t = 0; t < 2; t++) same(s, &a, nodes, t);
}

/* ---- tests ---- */

/* Some are begun, in any order, some are not, some come with the job; round after round. */
static void whatever_is_begun(void **state) {
    (void)state;
    for (uint32_t wire = 0; wire < SL_WIRE_FORMAT_COUNT; wire++) {
        scene s;
        uint64_t rng = 7 + wire;
        begin(&s, (sl_wire_format)wire);
        float plain[PLAIN][WIDTH] = {{1, 2}, {-3.5f}};
        sl_wire_pack(s.wire, plain[0], PLAIN, WIDTH, s.plain);
        for (uint32_t round = 0; round < 40; round++) {
            uint32_t nodes[NODES], n = 0;
            const uint32_t first = (uint32_t)sl_rng_below(&rng, NODES);
            for (uint32_t i = 0; i < NODES; i++) {
                const uint32_t k = (first + i) % NODES;
                if (n && sl_rng_below(&rng, 4) == 0) continue;
                come(&s, k, &rng);
                if (sl_rng_below(&rng, 2)) begins(&s, k);
                nodes[n++] = k;
            }
            unpacks(&s, nodes, n, sl_rng_below(&rng, 2), &rng);
        }
        finish(&s);
    }
}

/* Whose messages are all begun needs nobody when it is asked for them: they are here. */
static void nothing_is_gathered_twice(void **state) {
    (void)state;
    static const uint32_t nodes[] = {0, 1, 2};
    scene s;
    uint64_t rng = 3;
    begin(&s, SL_WIRE_BF16);
    for (uint32_t i = 0; i < NODES; i++) come(&s, i, &rng);
    for (uint32_t i = 0; i < NODES; i++) begins(&s, NODES - 1 - i);
    const asked a = ask(&s, nodes, NODES, false, &rng);
    gang_job j = unpack_of(&s, &a, 0);
    j.spread.rows = sl_mem_host(s.rank[0].x, sizeof s.rank[0].x);
    gang_spread_do(&s.rank[0].r, &j);
    same(&s, &a, nodes, 0);
    finish(&s);
}

/* Nobody asks for one: others go on, what comes next by its connection takes its place, and what
 * is settled leaves none. */
static void one_is_given_up(void **state) {
    (void)state;
    static const uint32_t others[] = {0, 2}, all[] = {1, 0, 2};
    for (uint32_t again = 0; again < 3; again++) {
        scene s;
        uint64_t rng = 5;
        begin(&s, SL_WIRE_F32);
        for (uint32_t i = 0; i < NODES; i++) come(&s, i, &rng);
        begins(&s, 0);
        begins(&s, 1);
        unpacks(&s, others, 2, false, &rng);
        for (uint32_t i = 0; again == 2 && i < 2; i++) gang_spread_settle(&s.rank[i].r);
        for (uint32_t i = 0; i < NODES; i++) come(&s, i, &rng);
        if (again == 1) begins(&s, 1);
        unpacks(&s, all, 3, false, &rng);
        finish(&s);
    }
}

/* A collective of something else finishes what is begun; its rows are there all the same. */
static void other_calls_come_between(void **state) {
    (void)state;
    static const uint32_t nodes[] = {2, 0};
    scene s;
    uint64_t rng = 9;
    sl_err err;
    begin(&s, SL_WIRE_FP8);
    come(&s, 0, &rng);
    come(&s, 2, &rng);
    begins(&s, 2);
    for (uint32_t i = 0; i < 2; i++) { /* they speak, and do not wait */
        uint64_t ticket;
        static float rows[2][4];
        assert_int_equal(sl_coll_begin_share(s.rank[i].r.coll, rows[i], 2, i, 1, 2, &ticket, &err),
                         SL_OK);
    }
    pump(&s);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(sl_coll_finish(s.rank[i].r.coll, UINT64_MAX, &err), SL_OK);
    unpacks(&s, nodes, 2, false, &rng);
    finish(&s);
}

/* A job that rank 1 cannot do is its end: of parts that are not there, twice, of other rows, of a
 * connection that nobody has. */
static void jobs_that_cannot_be(void **state) {
    (void)state;
    for (uint32_t which = 0; which < 4; which++) {
        scene s;
        uint64_t rng = 1;
        begin(&s, SL_WIRE_BF16);
        come(&s, 0, &rng);
        sl_stage_spread m[2] = {message_of(&s, 0, false), message_of(&s, 0, false)};
        gang_ref ref = {0, 0};
        gang_job j = job_of(&s, m, which == 1 ? 2 : 1);
        if (which == 0) m[0].is.number++;
        if (which == 2) begins(&s, 0);
        if (which == 2) m[0].rows--, j.spread.n = 1, j.spread.ref = &ref;
        if (which == 3) m[0].is.key = 99;
        j.spread.rows = sl_mem_host(s.rank[1].x, sizeof s.rank[1].x);
        if (setjmp(s.out) == 0) {
            gang_spread_do(&s.rank[1].r, &j);
            fail_msg("job %u was done", which);
        }
        assert_int_equal(s.failed, SL_ERR_PROTOCOL);
        finish(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_is_begun),   cmocka_unit_test(nothing_is_gathered_twice),
        cmocka_unit_test(one_is_given_up),     cmocka_unit_test(other_calls_come_between),
        cmocka_unit_test(jobs_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
