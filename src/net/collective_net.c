/* Collectives over the connections of a net: every step is a round of messages, one from each rank
 * to each of those that wait for it. A message of a later round than the one that is waited for is
 * kept until its round comes: a peer that has what it needs goes on. */
#include "net/collective_int.h"

#include "base/mem.h"

#include <string.h>

/* Gatherings that are begun and not finished, and rounds that messages of any peer may be ahead: it
 * may have finished all that this rank has begun, and begun as many more. */
#define UNDER_WAY   8u
#define EARLY       (2 * UNDER_WAY + 4)
#define PIECE_BYTES ((size_t)16 << 20)
#define WAIT_US     1000u /* asleep at a time */

typedef struct parcel {
    uint64_t round; /* 0: nothing is here */
    sl_extent columns;
    uint32_t rows;
    sl_buf *payload; /* NULL: no values */
} parcel;

typedef struct peer {
    sl_conn *conn; /* NULL: not connected yet, or gone */
    bool gone;
    uint64_t heard;     /* the last round that it sent */
    parcel came[EARLY]; /* by round */
} peer;

/* Parts that all ranks are sent, and where theirs go. */
typedef struct gathering {
    uint64_t round;
    const float *part;
    size_t stride; /* of its rows, in values */
    uint32_t rows, width;
    sl_extent mine;
    float *whole;
} gathering;

typedef struct net_coll {
    sl_coll base;
    sl_net *net;
    uint64_t begun;                 /* the last round in which this rank has sent */
    uint64_t round;                 /* the one that is waited for, or was last */
    gathering under_way[UNDER_WAY]; /* a ring: n from `first` on */
    uint32_t first, n;
    peer peer[SL_MAX_RANKS];
} net_coll;

static net_coll *of(sl_coll *c) {
    return (net_coll *)c;
}

static parcel *parcel_of(net_coll *c, uint32_t rank) {
    return &c->peer[rank].came[c->round % EARLY];
}

static bool net_has_come(const sl_coll *base, uint32_t rank) {
    const net_coll *c = (const net_coll *)base;
    return c->peer[rank].came[c->round % EARLY].round == c->round;
}

static bool net_is_gone(const sl_coll *base, uint32_t rank) {
    return ((const net_coll *)base)->peer[rank].gone;
}

/* ---- messages ---- */

static void await_progress(net_coll *c) {
    const sl_coll_opts *o = &c->base.o;
    if (!sl_net_progress(c->net)) sl_net_wait(c->net, o->tick ? SL_MAX(o->tick_us, 1u) : WAIT_US);
}

static sl_status wait_for(net_coll *c, uint32_t rank, bool patient) {
    sl_coll_wait w = {0};
    sl_status st = SL_OK;
    while (st == SL_OK && !net_has_come(&c->base, rank)) {
        await_progress(c);
        /* Who never was connected cannot be heard to end. */
        const bool will_tell = patient && c->peer[rank].conn;
        if (!net_has_come(&c->base, rank)) st = sl_coll_look(&c->base, &w, rank, will_tell);
    }
    return st;
}

/* Takes values; NULL: none. */
static sl_status send(net_coll *c, uint32_t rank, sl_extent columns, uint32_t rows,
                      sl_buf *values) {
    sl_coll_wait w = {0};
    sl_status st = SL_OK;
    peer *p = &c->peer[rank];
    while (st == SL_OK && !p->conn && !p->gone) { /* on its way still */
        await_progress(c);
        st = sl_coll_look(&c->base, &w, rank, false);
    }
    const sl_wire_header h = {.kind = SL_MSG_COLLECTIVE,
                              .pass = c->begun,
                              .lane = columns.first,
                              .chunk = columns.n,
                              .rows = rows};
    if (st != SL_OK || !p->conn)
        sl_net_buf_give(c->net, values);
    else
        st = sl_net_send(c->net, p->conn, h, values);
    if (st != SL_OK && c->base.err.code == SL_OK && st != SL_ERR_PEER_DOWN)
        sl_fail(&c->base.err, st, "sending to rank %u of %u", rank, c->base.o.rank.of);
    /* Whoever is gone is missed when it is waited for: what it said before counts. */
    return c->base.err.code;
}

static sl_status send_rows(net_coll *c, uint32_t rank, sl_extent columns, const float *from,
                           uint32_t rows, size_t stride) {
    sl_buf *b = NULL;
    const size_t bytes = columns.n * sizeof *from;
    if (rows && columns.n && !(b = sl_net_buf_take(c->net, rows * bytes)))
        return sl_fail(&c->base.err, SL_ERR_NOMEM, "%zu bytes for rank %u", rows * bytes, rank);
    for (uint32_t r = 0; b && r < rows; r++) memcpy(b->data + r * bytes, from + r * stride, bytes);
    return send(c, rank, columns, rows, b);
}

/* The rank's message of this round is through. */
static void drop(net_coll *c, uint32_t rank) {
    parcel *p = parcel_of(c, rank);
    sl_net_buf_give(c->net, p->payload);
    *p = (parcel){0};
}

static bool is_other(const net_coll *c, uint32_t rank) {
    return rank != c->base.o.rank.index;
}

static sl_status wait_for_all(net_coll *c) {
    sl_status st = SL_OK;
    for (uint32_t i = 0; st == SL_OK && i < c->base.o.rank.of; i++)
        if (is_other(c, i)) st = wait_for(c, i, false);
    return st;
}

/* Those of this round are through, of all others at once: who was heard may go while somebody else
 * is waited for. */
static void drop_all(net_coll *c) {
    for (uint32_t i = 0; i < c->base.o.rank.of; i++)
        if (is_other(c, i)) drop(c, i);
}

/* Whether the rank sent so many rows of these columns. */
static sl_status check(net_coll *c, uint32_t rank, uint32_t rows, sl_extent columns) {
    const parcel *p = parcel_of(c, rank);
    const size_t want = (size_t)rows * columns.n * sizeof(float);
    const size_t got = p->payload ? p->payload->len : 0;
    if (p->rows == rows && p->columns.first == columns.first && p->columns.n == columns.n &&
        got == want)
        return SL_OK;
    return sl_fail(&c->base.err, SL_ERR_PROTOCOL,
                   "rank %u of %u sent %u rows of columns %u to %u, %zu bytes: %u of %u to %u are "
                   "expected",
                   rank, c->base.o.rank.of, p->rows, p->columns.first,
                   p->columns.first + p->columns.n, got, rows, columns.first,
                   columns.first + columns.n);
}

static const float *values_of(net_coll *c, uint32_t rank) {
    const parcel *p = parcel_of(c, rank);
    return p->payload ? (const float *)(const void *)p->payload->data : NULL;
}

/* ---- calls ---- */

/* Whether rank `from` says a word to rank `to` at a step. */
static bool speaks(sl_coll_step step, uint32_t from, uint32_t to) {
    if (from == to) return false;
    return step == SL_COLL_ALL || (step == SL_COLL_SPEAKS ? from == 0 : to == 0);
}

static sl_status net_step(sl_coll *base, sl_coll_step step) {
    net_coll *c = of(base);
    const uint32_t own = base->o.rank.index, ranks = base->o.rank.of;
    sl_status st = SL_OK;
    c->round = ++c->begun;
    for (uint32_t i = 0; st == SL_OK && i < ranks; i++)
        if (speaks(step, own, i)) st = send(c, i, (sl_extent){0}, 0, NULL);
    for (uint32_t i = 0; st == SL_OK && i < ranks; i++)
        if (speaks(step, i, own)) st = wait_for(c, i, step == SL_COLL_SPEAKS);
    for (uint32_t i = 0; st == SL_OK && i < ranks; i++)
        if (speaks(step, i, own)) st = check(c, i, 0, (sl_extent){0});
    if (st == SL_OK) drop_all(c);
    return st;
}

/* Rows of a width that are one message. */
static uint32_t rows_of_piece(size_t width) {
    const size_t rows = PIECE_BYTES / SL_MAX(width * sizeof(float), (size_t)1);
    return (uint32_t)SL_MAX(SL_MIN(rows, (size_t)SL_WIRE_MAX_ROWS), (size_t)1);
}

static sl_status reduce_piece(net_coll *c, float *y, uint32_t rows, size_t width, sl_extent mine) {
    const sl_rank self = c->base.o.rank;
    const float *from[SL_MAX_RANKS];
    sl_status st = SL_OK;
    c->round = ++c->begun;
    for (uint32_t i = 0; st == SL_OK && i < self.of; i++) {
        const sl_extent its = sl_coll_columns((sl_rank){i, self.of}, width);
        if (is_other(c, i)) st = send_rows(c, i, its, y + its.first, rows, width);
    }
    if (st == SL_OK) st = wait_for_all(c);
    for (uint32_t i = 0; st == SL_OK && i < self.of; i++)
        if (is_other(c, i)) st = check(c, i, rows, mine);
    for (uint32_t r = 0; st == SL_OK && mine.n && r < rows; r++) {
        for (uint32_t i = 0; i < self.of; i++)
            from[i] =
                is_other(c, i) ? values_of(c, i) + (size_t)r * mine.n : y + r * width + mine.first;
        sl_coll_add_up(self.of, from, mine.n, y + r * width + mine.first);
    }
    if (st == SL_OK) drop_all(c);
    return st;
}

static sl_status net_reduce_scatter(sl_coll *base, float *y, uint32_t n_rows, uint32_t width,
                                    sl_extent mine) {
    const uint32_t most = rows_of_piece(width);
    sl_status st = SL_OK;
    for (uint32_t r = 0; st == SL_OK && r < n_rows; r += most)
        st = reduce_piece(of(base), y + (size_t)r * width, SL_MIN(n_rows - r, most), width, mine);
    return st;
}

/* ---- gatherings ---- */

/* The oldest that is under way. */
static sl_status finish_oldest(net_coll *c) {
    const gathering *g = &c->under_way[c->first];
    c->round = g->round;
    sl_status st = wait_for_all(c);
    for (uint32_t i = 0; st == SL_OK && i < c->base.o.rank.of; i++) {
        if (!is_other(c, i)) continue;
        const sl_extent its = parcel_of(c, i)->columns;
        st = sl_coll_check_part(&c->base, i, its, g->width);
        if (st == SL_OK) st = check(c, i, g->rows, its);
        if (st == SL_OK)
            sl_coll_put_part(values_of(c, i), 0, (size_t)g->rows * its.n, its, g->width, g->whole);
    }
    if (st != SL_OK) return st;
    if (g->part != g->whole + g->mine.first)
        sl_coll_put_part(g->part, 0, (size_t)g->rows * g->mine.n, g->mine, g->width, g->whole);
    drop_all(c);
    c->first = (c->first + 1) % UNDER_WAY;
    c->n--;
    return SL_OK;
}

static sl_status net_finish(sl_coll *base, uint64_t ticket) {
    net_coll *c = of(base);
    sl_status st = SL_OK;
    while (st == SL_OK && c->n && c->under_way[c->first].round <= ticket) st = finish_oldest(c);
    return st;
}

static sl_status begin_one(net_coll *c, gathering g) {
    sl_status st = c->n == UNDER_WAY ? finish_oldest(c) : SL_OK;
    if (st != SL_OK) return st;
    g.round = ++c->begun;
    c->under_way[(c->first + c->n++) % UNDER_WAY] = g;
    for (uint32_t i = 0; st == SL_OK && i < c->base.o.rank.of; i++)
        if (is_other(c, i)) st = send_rows(c, i, g.mine, g.part, g.rows, g.stride);
    return st;
}

static sl_status net_begin(sl_coll *base, const float *part, size_t stride, uint32_t n_rows,
                           sl_extent mine, uint32_t width, float *whole, uint64_t *ticket) {
    net_coll *c = of(base);
    const uint32_t most = rows_of_piece(width);
    sl_status st = sl_coll_check_part(base, base->o.rank.index, mine, width);
    for (uint32_t r = 0; st == SL_OK && r < n_rows; r += most)
        st = begin_one(c, (gathering){.part = part + r * stride,
                                      .stride = stride,
                                      .rows = SL_MIN(n_rows - r, most),
                                      .width = width,
                                      .mine = mine,
                                      .whole = whole + (size_t)r * width});
    *ticket = c->begun;
    return st;
}

static sl_status net_all_gather(sl_coll *base, const float *part, uint32_t n_rows, sl_extent mine,
                                uint32_t width, float *whole) {
    uint64_t ticket;
    sl_status st = net_begin(base, part, mine.n, n_rows, mine, width, whole, &ticket);
    return st == SL_OK ? net_finish(base, ticket) : st;
}

/* Everybody gets all values of everybody. */
static sl_status reduce_alone(net_coll *c, float *y, uint32_t n) {
    const float *from[SL_MAX_RANKS];
    const sl_extent all = {0, n};
    sl_status st = SL_OK;
    c->round = ++c->begun;
    for (uint32_t i = 0; st == SL_OK && i < c->base.o.rank.of; i++)
        if (is_other(c, i)) st = send_rows(c, i, all, y, 1, n);
    if (st == SL_OK) st = wait_for_all(c);
    for (uint32_t i = 0; st == SL_OK && i < c->base.o.rank.of; i++) {
        if (is_other(c, i)) st = check(c, i, 1, all);
        from[i] = is_other(c, i) ? values_of(c, i) : y;
    }
    if (st != SL_OK) return st;
    sl_coll_add_up(c->base.o.rank.of, from, n, y);
    drop_all(c);
    return SL_OK;
}

static sl_status net_all_reduce(sl_coll *base, float *y, size_t n) {
    const size_t most = PIECE_BYTES / sizeof *y;
    sl_status st = SL_OK;
    if (n > 0 && n * base->o.rank.of <= SL_COLL_ALONE_FLOATS)
        return reduce_alone(of(base), y, (uint32_t)n);
    for (size_t at = 0; st == SL_OK && at < n; at += most) {
        const uint32_t some = (uint32_t)SL_MIN(n - at, most);
        const sl_extent mine = sl_coll_columns(base->o.rank, some);
        st = reduce_piece(of(base), y + at, 1, some, mine);
        if (st == SL_OK) st = net_all_gather(base, y + at + mine.first, 1, mine, some, y + at);
    }
    return st;
}

/* ---- what the owner of the net hears ---- */

static sl_status check_rank(const net_coll *c, uint32_t rank, sl_err *err) {
    const sl_rank self = c->base.o.rank;
    if (rank < self.of && rank != self.index) return SL_OK;
    return sl_fail(err, SL_ERR_PROTOCOL, "rank %u of %u at rank %u", rank, self.of, self.index);
}

sl_status sl_coll_on_open(sl_coll *base, uint32_t rank, sl_conn *conn, sl_err *err) {
    net_coll *c = of(base);
    sl_status st = check_rank(c, rank, err);
    if (st != SL_OK) return st;
    peer *p = &c->peer[rank];
    if (p->conn || p->gone)
        return sl_fail(err, SL_ERR_PROTOCOL, "rank %u of %u %s", rank, base->o.rank.of,
                       p->conn ? "is connected" : "was connected, and has ended");
    p->conn = conn;
    return SL_OK;
}

void sl_coll_on_down(sl_coll *base, const sl_conn *conn) {
    net_coll *c = of(base);
    for (uint32_t i = 0; i < base->o.rank.of; i++) {
        if (c->peer[i].conn != conn) continue;
        c->peer[i].conn = NULL;
        c->peer[i].gone = true;
        return;
    }
}

/* Of the round that this rank is in, it may be the last word that was missing. Each is sent once,
 * and has its place until it is through: one that nobody waited for keeps it. */
static sl_status check_round(const net_coll *c, uint32_t rank, uint64_t round, sl_err *err) {
    const peer *p = &c->peer[rank];
    if (round >= SL_MAX(c->round, 1u) && round < c->round + EARLY && round > p->heard &&
        p->came[round % EARLY].round == 0)
        return SL_OK;
    return sl_fail(err, SL_ERR_PROTOCOL, "rank %u of %u sends round %llu in round %llu", rank,
                   c->base.o.rank.of, (unsigned long long)round, (unsigned long long)c->round);
}

sl_status sl_coll_on_message(sl_coll *base, uint32_t rank, const sl_wire_header *h, sl_buf *payload,
                             sl_err *err) {
    net_coll *c = of(base);
    sl_status st = check_rank(c, rank, err);
    if (st == SL_OK) st = check_round(c, rank, h->pass, err);
    if (st != SL_OK) {
        sl_net_buf_give(c->net, payload);
        return st;
    }
    peer *p = &c->peer[rank];
    p->heard = h->pass;
    p->came[h->pass % EARLY] = (parcel){
        .round = h->pass, .columns = {h->lane, h->chunk}, .rows = h->rows, .payload = payload};
    return SL_OK;
}

/* ---- life ---- */

static void net_coll_free(sl_coll *base) {
    net_coll *c = of(base);
    for (uint32_t i = 0; i < base->o.rank.of; i++)
        for (uint32_t k = 0; k < EARLY; k++) sl_net_buf_give(c->net, c->peer[i].came[k].payload);
    sl_free(c);
}

sl_status sl_coll_open_net(const sl_coll_opts *o, sl_net *net, sl_coll **out, sl_err *err) {
    static const sl_coll_ops ops = {.free = net_coll_free,
                                    .step = net_step,
                                    .all_reduce = net_all_reduce,
                                    .reduce_scatter = net_reduce_scatter,
                                    .all_gather = net_all_gather,
                                    .begin = net_begin,
                                    .finish = net_finish,
                                    .has_come = net_has_come,
                                    .is_gone = net_is_gone};
    sl_coll_check(o);
    net_coll *c = sl_alloc(1, sizeof *c);
    if (!c) return sl_fail(err, SL_ERR_NOMEM, "collectives of %u ranks", o->rank.of);
    c->base = (sl_coll){.ops = &ops, .o = *o};
    c->net = net;
    *out = &c->base;
    return SL_OK;
}
