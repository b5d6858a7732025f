/* How ranks on machines find each other, and what they send. */
#include "stage/gang/link.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/version.h"
#include "net/transports.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#define PIECE       ((size_t)16 << 20)
#define MOST_PIECES 4096u
#define WAIT_US     1000u     /* asleep at a time, where there is a tick; */
#define REST_US     100000u   /* and where only what comes is a reason to wake */
#define AGAIN_MS    200u      /* between two calls of a rank that is not there */
#define SILENCE_US  60000000u /* at most, of a rank on a machine that is late */

static void build_of(char out[64]) {
    snprintf(out, 64, "%s %zu %zu %zu", sl_version(), sizeof(gang_job), sizeof(gang_step),
             sizeof(gang_report));
}

/* ---- who is who ---- */

static uint32_t rank_of(const sl_conn *c) {
    return (uint32_t)(uintptr_t)sl_conn_user(c); /* 0: nobody has said so; else rank + 1 */
}

static gang_peer *peer_of(gang_link *l, const sl_conn *c) {
    const uint32_t user = rank_of(c);
    gang_peer *p = user ? &l->peer[user - 1] : NULL;
    return p && p->conn == c ? p : NULL;
}

static sl_status take_place(gang_link *l, uint32_t rank, sl_conn *c, sl_err *err) {
    sl_status st = sl_coll_on_open(l->coll, rank, c, err);
    if (st != SL_OK) return st;
    sl_conn_set_user(c, (void *)(uintptr_t)(rank + 1));
    l->peer[rank].conn = c;
    return SL_OK;
}

/* as: the rank that the other is to be, where rank 0 speaks; else 0. */
static sl_status say_who(gang_link *l, sl_conn *c, uint32_t as, sl_err *err) {
    sl_buf *b = sl_net_buf_take(l->net, sizeof l->own);
    if (!b) return sl_fail(err, SL_ERR_NOMEM, "a greeting");
    memcpy(b->data, &l->own, sizeof l->own);
    const sl_wire_header h = {.kind = SL_MSG_RANK_IS, .rows = as};
    return sl_net_send(l->net, c, h, b) == SL_OK
               ? SL_OK
               : sl_fail(err, SL_ERR_PEER_DOWN, "a rank is gone as it is greeted");
}

static sl_status begin_collectives(gang_link *l, sl_err *err) {
    const sl_coll_opts o = {.rank = l->own.rank,
                            .deadline_ms = GANG_DEADLINE_MS,
                            .tick = l->tick,
                            .tick_us = l->tick_us,
                            .ctx = l->ctx};
    return sl_coll_open_net(&o, l->net, &l->coll, err);
}

/* Rank 0 has come: this is a rank of its gang now, and calls those between. */
static sl_status join_gang(gang_link *l, const gang_greeting *said, sl_conn *c, uint32_t index,
                           sl_err *err) {
    l->own.rank = (sl_rank){index, said->rank.of};
    memcpy(l->own.gang, said->gang, sizeof l->own.gang);
    memcpy(l->own.at, said->at, sizeof l->own.at);
    sl_status st = begin_collectives(l, err);
    if (st == SL_OK) st = take_place(l, 0, c, err);
    for (uint32_t i = 1; st == SL_OK && i < index; i++) {
        sl_conn *to = NULL;
        st = sl_net_connect(l->net, l->own.at[i], (void *)(uintptr_t)(i + 1), &to, err);
        if (st != SL_OK) return sl_err_prefix(err, "rank %u at %s", i, l->own.at[i]);
        if ((st = sl_coll_on_open(l->coll, i, to, err)) == SL_OK) st = say_who(l, to, 0, err);
        l->peer[i].conn = to;
    }
    return st;
}

static bool is_same_gang(const gang_link *l, const gang_greeting *g) {
    return memcmp(l->own.gang, g->gang, sizeof g->gang) == 0 && g->rank.of == l->own.rank.of;
}

/* A place of one that went is free again. */
static sl_status greet_early(gang_link *l, const gang_greeting *g, sl_conn *c, sl_err *err) {
    uint32_t at = 0;
    while (at < l->n_early && l->early[at].conn) at++;
    if (at == SL_LEN(l->early)) return sl_fail(err, SL_ERR_PROTOCOL, "more ranks than a gang has");
    l->early[at].conn = c;
    l->early[at].said = *g;
    l->n_early = SL_MAX(l->n_early, at + 1);
    return SL_OK;
}

/* Those of this gang have their places; who cannot have one goes. */
static void place_early(gang_link *l) {
    sl_err err;
    for (uint32_t i = 0; i < l->n_early; i++) {
        sl_conn *c = l->early[i].conn;
        if (!c) continue;
        sl_status st = is_same_gang(l, &l->early[i].said)
                           ? take_place(l, l->early[i].said.rank.index, c, &err)
                           : sl_fail(&err, SL_ERR_PROTOCOL, "a rank of another gang");
        if (st != SL_OK) sl_net_close(l->net, c, st, err.msg);
    }
    l->n_early = 0;
}

/* Who says that it is rank 0 says by `rows` of the header which rank this one is to be. */
static sl_status greeted(gang_link *l, sl_conn *c, const sl_wire_header *h, const sl_buf *b,
                         sl_err *err) {
    gang_greeting g;
    char build[64];
    if (!b || b->len != sizeof g)
        return sl_fail(err, SL_ERR_PROTOCOL, "a greeting of %zu bytes, %zu expected",
                       b ? b->len : 0, sizeof g);
    memcpy(&g, b->data, sizeof g);
    build_of(build);
    g.build[sizeof g.build - 1] = 0;
    if (strcmp(g.build, build) != 0)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "ranks of one gang are of one program: \"%s\", not \"%s\"", build, g.build);
    bool good = g.rank.of <= SL_MAX_RANKS && g.rank.index < g.rank.of && !rank_of(c);
    for (uint32_t i = 0; i < SL_MAX_RANKS; i++) good = good && memchr(g.at[i], 0, GANG_ADDRESS);
    if (!good) return sl_fail(err, SL_ERR_PROTOCOL, "a greeting that is none");
    if (!l->serves) return sl_fail(err, SL_ERR_PROTOCOL, "a greeting for rank 0");
    if (g.rank.index > 0 && !l->coll) return greet_early(l, &g, c, err);
    if (g.rank.index > 0 && is_same_gang(l, &g)) return take_place(l, g.rank.index, c, err);
    if (g.rank.index > 0) return sl_fail(err, SL_ERR_PROTOCOL, "a rank of another gang");
    if (h->rows == 0 || h->rows >= g.rank.of)
        return sl_fail(err, SL_ERR_PROTOCOL, "rank %u of %u is none to be", h->rows, g.rank.of);
    sl_status st = l->coll ? sl_fail(err, SL_ERR_OVERLOADED, "it is a rank of another gang still")
                           : join_gang(l, &g, c, h->rows, err);
    if (st == SL_OK) place_early(l);
    /* It need not wait to find out. */
    if (st != SL_OK) sl_net_close(l->net, c, st, err->msg);
    return SL_OK;
}

/* ---- what the net says ---- */

static sl_status on_open(void *ctx, sl_conn *c, const sl_hello *peer, sl_err *err) {
    const gang_link *l = ctx;
    if (memcmp(l->model_hash, peer->model_hash, sizeof l->model_hash) == 0)
        return l->rail && !rank_of(c) ? gang_rail_on_open(l->rail, c, err) : SL_OK;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "it has another model, or another form of it");
}

/* A piece of what the rank sends, of `most` bytes. */
static sl_status add_piece(gang_peer *p, const sl_wire_header *h, const sl_buf *b, size_t most,
                           sl_err *err) {
    const size_t more = b ? b->len : 0;
    gang_inbound *in = gang_peer_at(p, p->n_whole);
    if (more > PIECE || p->n_whole == GANG_MOST_JOBS || h->chunk != p->came || h->layer == 0 ||
        h->layer > MOST_PIECES || (p->came && (h->layer != p->pieces || h->number != in->number)))
        return sl_fail(err, SL_ERR_PROTOCOL, "piece %u of %u of job %" PRIu64 ", out of turn",
                       h->chunk, h->layer, h->number);
    if (p->came == 0) in->len = 0;
    if (more > most || in->len > most - more)
        return sl_fail(err, SL_ERR_PROTOCOL, "over %zu bytes, which it may not send", most);
    if (in->len + more > in->cap) {
        const size_t cap = SL_MAX(in->len + more, in->cap * 2);
        uint8_t *data = sl_grow(in->data, in->cap, cap, 1);
        if (!data) return sl_fail(err, SL_ERR_NOMEM, "%zu bytes of a rank", cap);
        in->data = data;
        in->cap = cap;
    }
    if (more) memcpy(in->data + in->len, b->data, more);
    in->len += more;
    in->number = h->number;
    p->pieces = h->layer;
    if (++p->came < h->layer) return SL_OK;
    p->came = 0;
    p->n_whole++;
    return SL_OK;
}

/* Rank 0 says what it wants of a rail, the others what has become of that. */
static sl_status hear_word(gang_link *l, uint32_t rank, const sl_buf *b, sl_err *err) {
    sl_rails_word w;
    sl_status st = sl_rails_word_decode(b ? (sl_span){b->data, b->len} : (sl_span){0}, &w, err);
    if (st != SL_OK) return st;
    if (l->rail && rank == 0) return gang_rail_on_word(l->rail, &w, err);
    if (l->serves || !l->on_word || w.kind < SL_RAILS_BOUND)
        return sl_fail(err, SL_ERR_PROTOCOL, "word %d about a rail", (int)w.kind);
    l->on_word(l->ctx, rank, &w);
    return SL_OK;
}

/* Ranks wait for jobs of rank 0, which waits for answers; rows come from the rank before this one.
 * 0: what the rank sends is none of these, else how many bytes that may be. */
static size_t most_bytes(const gang_link *l, uint32_t rank, uint16_t kind) {
    if (kind == SL_MSG_RANK_ROWS)
        return l->serves && rank > 0 && rank + 1 == l->own.rank.index ? l->rows_bytes : 0;
    if (l->serves) return kind == SL_MSG_RANK_JOB && rank == 0 ? SIZE_MAX : 0;
    return kind == SL_MSG_RANK_DONE && rank > 0 ? SIZE_MAX : 0;
}

static void free_inbound(gang_peer *p) {
    for (uint32_t i = 0; i < SL_LEN(p->in); i++) sl_free(p->in[i].data);
}

static sl_status on_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                            sl_err *err) {
    gang_link *l = ctx;
    gang_peer *p = peer_of(l, c);
    const uint32_t rank = p ? rank_of(c) - 1 : 0;
    if (h->kind == SL_MSG_COLLECTIVE && p && l->coll)
        return sl_coll_on_message(l->coll, rank, h, payload, err);
    const size_t most = p ? most_bytes(l, rank, h->kind) : 0;
    sl_status st;
    if (h->kind == SL_MSG_RANK_IS)
        st = greeted(l, c, h, payload, err);
    else if (p && h->kind == SL_MSG_RANK_RAIL)
        st = hear_word(l, rank, payload, err);
    else if (!p && l->rail)
        st = gang_rail_on_message(l->rail, c, h, &payload, err);
    else if (most > 0)
        st = add_piece(p, h, payload, most, err);
    else
        st = sl_fail(err, SL_ERR_PROTOCOL, "kind %u of message, which ranks do not send",
                     (unsigned)h->kind);
    sl_net_buf_give(l->net, payload);
    return st;
}

static void on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    gang_link *l = ctx;
    gang_peer *p = peer_of(l, c);
    for (uint32_t i = 0; i < l->n_early; i++)
        if (l->early[i].conn == c) l->early[i].conn = NULL;
    if (!p && l->rail) gang_rail_on_down(l->rail, c, text);
    if (!p) return;
    if (l->coll) sl_coll_on_down(l->coll, c);
    p->conn = NULL;
    p->gone = true;
    p->why = why == SL_OK ? SL_ERR_PEER_DOWN : why;
    snprintf(p->text, sizeof p->text, "%s", text ? text : "");
}

/* ---- waiting ---- */

typedef struct waiting {
    uint64_t until_us; /* by the net's own time; 0: without an end */
    uint64_t tick_ns;
} waiting;

static uint64_t net_us(const gang_link *l) {
    const sl_clock c = sl_net_clock(l->net);
    return sl_clock_now_us(&c);
}

static waiting wait_for(const gang_link *l, uint32_t ms) {
    return (waiting){.until_us = ms ? net_us(l) + ms * UINT64_C(1000) : 0};
}

static uint64_t longest_sleep_us(const gang_link *l, const waiting *w) {
    const uint64_t now_us = net_us(l);
    if (l->tick) return SL_MIN(SL_MAX(l->tick_us, 1u), WAIT_US);
    if (!w->until_us) return REST_US;
    return w->until_us > now_us ? SL_MIN(w->until_us - now_us, REST_US) : 0;
}

/* A turn; false: time is up. */
static bool turn(gang_link *l, waiting *w) {
    if (!sl_net_progress(l->net)) sl_net_wait(l->net, longest_sleep_us(l, w));
    if (l->rail) gang_rail_turn(l->rail);
    const uint64_t now = sl_now_ns();
    if (l->tick && now - w->tick_ns >= l->tick_us * UINT64_C(1000)) {
        w->tick_ns = now;
        l->tick(l->ctx);
    }
    return !w->until_us || net_us(l) < w->until_us;
}

static sl_status missing(const gang_link *l, uint32_t rank, bool late, sl_err *err) {
    const gang_peer *p = &l->peer[rank];
    const char *at = l->own.at[rank];
    if (late && !p->gone)
        return sl_fail(err, SL_ERR_TIMEOUT, "rank %u of %u%s%s does not answer", rank,
                       l->own.rank.of, at[0] ? " at " : "", at);
    return sl_fail(err, SL_ERR_PEER_DOWN, "rank %u of %u%s%s: %s", rank, l->own.rank.of,
                   at[0] ? " at " : "", at, p->text[0] ? p->text : "it is gone");
}

sl_status gang_link_wait(gang_link *l, uint32_t rank, uint32_t ms, sl_err *err) {
    gang_peer *p = &l->peer[rank];
    waiting w = wait_for(l, ms);
    const uint64_t rests_ns = sl_now_ns() + SL_NET_POLL_US * UINT64_C(1000);
    bool polls = true;
    sl_net_set_poll(l->net, SL_NET_POLL_US);
    while (p->n_whole == 0) {
        if (p->gone) return missing(l, rank, false, err);
        if (l->serves && l->peer[0].gone) return missing(l, 0, false, err);
        if (polls && sl_now_ns() >= rests_ns) { /* nothing is under way */
            sl_net_set_poll(l->net, 0);
            polls = false;
        }
        if (!turn(l, &w) && p->n_whole == 0) return missing(l, rank, true, err);
    }
    sl_net_set_poll(l->net, SL_NET_POLL_US); /* in what follows ranks meet */
    return SL_OK;
}

void gang_link_took(gang_link *l, uint32_t rank) {
    gang_peer *p = &l->peer[rank];
    SL_ASSERT(p->n_whole > 0);
    p->first = (p->first + 1) % SL_LEN(p->in);
    p->n_whole--;
}

sl_status gang_link_send(gang_link *l, uint32_t rank, sl_msg_kind kind, uint64_t number,
                         const uint8_t *data, size_t len, sl_err *err) {
    const uint32_t pieces = (uint32_t)SL_MAX((len + PIECE - 1) / PIECE, (size_t)1);
    if (pieces > MOST_PIECES)
        return sl_fail(err, SL_ERR_LIMIT, "%zu bytes for a rank, %zu are possible", len,
                       MOST_PIECES * PIECE);
    for (uint32_t i = 0; i < pieces; i++) {
        const size_t n = SL_MIN(len - i * PIECE, PIECE);
        sl_buf *b = n ? sl_net_buf_take(l->net, n) : NULL;
        if (!l->peer[rank].conn || (n && !b)) {
            sl_net_buf_give(l->net, b);
            return n && !b ? sl_fail(err, SL_ERR_NOMEM, "%zu bytes for a rank", n)
                           : missing(l, rank, false, err);
        }
        if (b) memcpy(b->data, data + i * PIECE, n);
        const sl_wire_header h = {.kind = kind, .number = number, .layer = pieces, .chunk = i};
        const sl_status st = sl_net_send(l->net, l->peer[rank].conn, h, b);
        if (st == SL_ERR_PEER_DOWN) return missing(l, rank, false, err);
        if (st != SL_OK)
            return sl_fail(err, st, "%zu bytes for rank %u of %u cannot be sent", n, rank,
                           l->own.rank.of);
    }
    return SL_OK;
}

/* ---- beginnings ---- */

/* A call that nobody answers may be answered a little later, when that rank has started. */
static bool is_worth_another(const gang_peer *p) {
    return p->why != SL_ERR_AUTH && p->why != SL_ERR_PROTOCOL && p->why != SL_ERR_UNSUPPORTED &&
           p->why != SL_ERR_ARG;
}

/* Until it is connected, or time is up, or it does not want to be. */
static sl_status call_one(gang_link *l, uint32_t rank, waiting *w, sl_err *err) {
    gang_peer *p = &l->peer[rank];
    for (;;) {
        sl_conn *c = NULL;
        bool in_time = true;
        p->gone = false;
        p->why = sl_net_connect(l->net, l->own.at[rank], (void *)(uintptr_t)(rank + 1), &c, err);
        p->gone = p->why != SL_OK; /* no route, no such name: perhaps not yet */
        if (p->gone) snprintf(p->text, sizeof p->text, "%s", err->msg);
        p->conn = p->gone ? NULL : c;
        while (in_time && !p->gone && !sl_conn_is_open(c)) in_time = turn(l, w);
        if (!p->gone && in_time) return SL_OK;
        if (!in_time || !is_worth_another(p)) return missing(l, rank, true, err);
        waiting pause = wait_for(l, AGAIN_MS);
        while (turn(l, &pause)) continue;
        if (!turn(l, w)) return missing(l, rank, true, err);
    }
}

/* All of them, and each has found the others: its first answer says so. */
static sl_status call_all(gang_link *l, waiting *w, sl_err *err) {
    const uint32_t of = l->own.rank.of;
    randombytes_buf(l->own.gang, sizeof l->own.gang);
    sl_status st = begin_collectives(l, err);
    for (uint32_t i = 1; st == SL_OK && i < of; i++) st = call_one(l, i, w, err);
    for (uint32_t i = 1; st == SL_OK && i < of; i++) {
        st = sl_coll_on_open(l->coll, i, l->peer[i].conn, err);
        if (st == SL_OK) st = say_who(l, l->peer[i].conn, i, err);
        if (st == SL_ERR_PEER_DOWN) st = missing(l, i, false, err);
    }
    for (uint32_t i = 1; st == SL_OK && i < of; i++) {
        while (st == SL_OK && l->peer[i].n_whole == 0) {
            const bool in_time = turn(l, w);
            for (uint32_t k = 1; k < of; k++)
                if (l->peer[k].gone) st = missing(l, k, false, err);
            if (st == SL_OK && !in_time && l->peer[i].n_whole == 0) st = missing(l, i, true, err);
        }
        if (st == SL_OK) gang_link_took(l, i);
    }
    return st;
}

void gang_link_say(gang_link *l, uint32_t rank, const sl_rails_word *w) {
    sl_conn *c = l->peer[rank].conn;
    sl_buf *b = c ? sl_net_buf_take(l->net, SL_RAILS_WORD_BYTES) : NULL;
    if (!c) return;
    if (!b) { /* it would wait for this in vain */
        sl_net_close(l->net, c, SL_ERR_NOMEM, "no memory for a word about a rail");
        return;
    }
    sl_rails_word_encode(w, b->data);
    (void)sl_net_send(l->net, c, (sl_wire_header){.kind = SL_MSG_RANK_RAIL}, b);
}

/* Nobody is called, as at first. */
static void hang_up(gang_link *l, const char *why) {
    for (uint32_t i = 1; i < l->own.rank.of; i++) {
        gang_peer *p = &l->peer[i];
        sl_conn *c = p->conn;
        free_inbound(p);
        *p = (gang_peer){0};
        if (c) sl_net_close(l->net, c, SL_ERR_PEER_DOWN, why);
    }
    sl_coll_free(l->coll);
    l->coll = NULL;
}

/* Whether it may go well a little later: who went may be a rank of an old gang still, or one that
 * could not reach another. */
static bool may_go_well(const gang_link *l, sl_status st) {
    for (uint32_t i = 1; i < l->own.rank.of; i++)
        if (l->peer[i].gone && !is_worth_another(&l->peer[i])) return false;
    return st == SL_ERR_PEER_DOWN;
}

sl_status gang_link_call(gang_link *l, uint32_t of, const char at[][GANG_ADDRESS], uint32_t ms,
                         sl_err *err) {
    waiting w = wait_for(l, ms);
    l->own.rank = (sl_rank){0, of};
    for (uint32_t i = 1; i < of; i++) memcpy(l->own.at[i], at[i], GANG_ADDRESS);
    for (;;) {
        const sl_status st = call_all(l, &w, err);
        if (st == SL_OK || !may_go_well(l, st)) return st;
        hang_up(l, "the gang is called anew");
        waiting pause = wait_for(l, AGAIN_MS);
        while (turn(l, &pause)) continue;
        if (!turn(l, &w)) return st;
    }
}

static bool is_there(const gang_peer *p) {
    return p->conn && sl_conn_is_open(p->conn);
}

static bool all_there(const gang_link *l) {
    for (uint32_t i = 0; i < l->own.rank.of; i++)
        if (i != l->own.rank.index && !is_there(&l->peer[i])) return false;
    return true;
}

sl_status gang_link_answer(gang_link *l, sl_err *err) {
    waiting w = {0};
    l->serves = true;
    while (!l->coll) (void)turn(l, &w);
    w = wait_for(l, GANG_DEADLINE_MS);
    while (!all_there(l)) {
        bool in_time = turn(l, &w);
        for (uint32_t i = 0; i < l->own.rank.of; i++)
            if (l->peer[i].gone || (!in_time && !l->peer[i].conn && i != l->own.rank.index))
                return missing(l, i, !l->peer[i].gone, err);
    }
    return gang_link_send(l, 0, SL_MSG_RANK_DONE, 0, NULL, 0, err);
}

/* The first transport that reaches other machines. */
static const char *between_machines(void) {
    size_t i = 0;
    while (sl_transport_at(i) && !sl_transport_at(i)->machines) i++;
    return sl_transport_at(i) ? sl_transport_at(i)->name : NULL;
}

sl_status gang_link_open(gang_link *l, const gang_link_opts *o, sl_err *err) {
    *l = (gang_link){.on_word = o->on_word, .tick = o->tick, .tick_us = o->tick_us, .ctx = o->ctx};
    if (sodium_init() < 0) return sl_fail(err, SL_ERR_INTERNAL, "no source of random numbers");
    build_of(l->own.build);
    sl_net_opts no = {.transport = between_machines(),
                      .host = o->host,
                      .port = o->port,
                      .secret = o->secret,
                      .hello = {.worker = SL_NO_WORKER, .incarnation = randombytes_random()},
                      .clock = sl_clock_real(),
                      .silence_limit_us = SILENCE_US,
                      .sums = SL_NET_WHEN_OFF,
                      .encrypt = o->encrypt,
                      .on = {on_open, on_message, on_down},
                      .ctx = l};
    memcpy(l->model_hash, o->model_hash, sizeof l->model_hash);
    memcpy(no.hello.model_hash, o->model_hash, sizeof no.hello.model_hash);
    snprintf(no.hello.name, sizeof no.hello.name, "rank");
    return sl_net_create(&no, &l->net, err);
}

void gang_link_fail(gang_link *l, const sl_err *err) {
    for (uint32_t i = 0; l->net && i < SL_MAX_RANKS; i++)
        if (l->peer[i].conn) sl_net_close(l->net, l->peer[i].conn, SL_ERR_PEER_DOWN, err->msg);
    gang_rail_free(l->rail);
    l->rail = NULL;
    if (l->net) sl_net_free(l->net);
    l->net = NULL;
}

void gang_link_close(gang_link *l) {
    sl_coll_free(l->coll);
    gang_rail_free(l->rail);
    if (l->net) sl_net_free(l->net);
    for (uint32_t i = 0; i < SL_MAX_RANKS; i++) free_inbound(&l->peer[i]);
    *l = (gang_link){0};
}
