/* Messages whose rows are spread over a gang's ranks. */
#include "stage/gang/spread.h"
#include "stage/gang/rail.h"

#include "base/mem.h"

#include <string.h>

#define WORD sizeof(float) /* what collectives carry */

/* Messages that are gathered before a call asks for their rows, at most: as many gatherings can be
 * under way. */
#define MOST_BEGUN 8u

typedef struct bytes {
    uint8_t *at;
    size_t cap;
} bytes;

/* A message whose gathering has begun. All ranks have the same ones, since they do the same jobs;
 * it is the one place for what they have of them: the part itself is gone. */
typedef struct begun {
    sl_spread_name is;
    uint32_t rows; /* 0: none */
    uint64_t ticket;
    bytes whole; /* [rows] of what ranks have of a row, one behind the other (layout) */
} begun;

struct gang_scratch {
    bytes part, whole, tops; /* of gatherings */
    begun begun[MOST_BEGUN];
    float *sum;     /* [2][d_model] */
    uint8_t **base; /* of each message of a job, its first row; as it is gathered, if begun */
    sl_buf **buf;   /* in which that lies, at ranks beside the first */
    begun **early;  /* NULL: it is not begun */
    size_t n_base, n_buf, n_early;
    /* Of rank 0, to make jobs */
    gang_ref *ref;
    sl_stage_spread *message;
    uint32_t *row, *rest_row;
    uint8_t **rest;
    bytes plain;
    size_t n_ref, n_message, n_row, n_rest_row, n_rest;
};

void gang_scratch_free(gang_scratch *s) {
    if (!s) return;
    for (uint32_t i = 0; i < MOST_BEGUN; i++) sl_free(s->begun[i].whole.at);
    sl_free(s->part.at);
    sl_free(s->whole.at);
    sl_free(s->tops.at);
    sl_free(s->plain.at);
    sl_free(s->sum);
    sl_free(s->base);
    sl_free(s->buf);
    sl_free(s->early);
    sl_free(s->ref);
    sl_free(s->message);
    sl_free(s->row);
    sl_free(s->rest_row);
    sl_free(s->rest);
    sl_free(s);
}

static void fails(gang_rank *r, sl_status st, const char *what) {
    sl_err err;
    (void)sl_fail(&err, st, "%s", what);
    r->lost(r, &err);
}

static gang_scratch *scratch_of(gang_rank *r) {
    if (!r->scratch) r->scratch = sl_alloc(1, sizeof *r->scratch);
    if (!r->scratch) fails(r, SL_ERR_NOMEM, "room for rows of messages");
    return r->scratch;
}

/* The array, of n at least. */
static void *reserve(gang_rank *r, void *array, size_t *have, size_t n, size_t size) {
    if (n <= *have) return array;
    const size_t cap = SL_MAX(n, *have * 2);
    void *more = sl_grow(array, *have, cap, size);
    if (!more) fails(r, SL_ERR_NOMEM, "room for rows of messages");
    *have = cap;
    return more;
}

static uint8_t *bytes_of(gang_rank *r, bytes *b, size_t n) {
    b->at = reserve(r, b->at, &b->cap, SL_MAX(n, (size_t)1), 1);
    return b->at;
}

/* ---- at a rank ---- */

typedef struct spreading {
    gang_rank *r;
    gang_scratch *s;
    const gang_job *j;
    uint32_t d;
    sl_wire_format wire;
    sl_extent own; /* columns */
} spreading;

static float *row_at(const spreading *p, sl_mem rows, size_t i) {
    return (float *)sl_mem_ptr(rows) + i * p->d;
}

/* Row i of the job. */
static float *job_row(const spreading *p, uint32_t i) {
    return row_at(p, p->j->spread.rows, p->j->spread.row ? p->j->spread.row[i] : i);
}

/* Bytes of a row of the message, at this rank. */
static size_t stride_of(const spreading *p, const sl_stage_spread *m) {
    return sl_wire_row_bytes(p->wire, m->is.cut ? p->own.n : p->d);
}

/* Where a row of messages lies here. */
static uint8_t *place_of(const spreading *p, const gang_ref *ref) {
    return p->s->base[ref->message] + ref->row * stride_of(p, &p->j->spread.message[ref->message]);
}

static bool is_cut(const spreading *p, const gang_ref *ref) {
    return ref->message != GANG_PLAIN && p->j->spread.message[ref->message].is.cut;
}

/* A row of no rank's, or of all: whole. */
static const uint8_t *whole_at(const spreading *p, const gang_ref *ref) {
    if (ref->message != GANG_PLAIN) return place_of(p, ref);
    return p->j->spread.plain + ref->row * sl_wire_row_bytes(p->wire, p->d);
}

/* This rank's part of a message that came: rank 0 has it in the payload. *buf: in which it lies
 * elsewhere, the caller's. */
static uint8_t *take_part(const spreading *p, const sl_stage_spread *m, sl_buf **buf) {
    gang_rail *rail = p->r->rail;
    *buf = NULL;
    if (rail && !gang_rail_take(rail, &m->is, m->back, m->rows, buf))
        fails(p->r, SL_ERR_PROTOCOL, "a job of a gang: its part of a message is not here");
    return *buf ? (*buf)->data : (uint8_t *)(uintptr_t)m->data;
}

/* ...and room for one that leaves. */
static uint8_t *make_part(const spreading *p, const sl_stage_spread *m, sl_buf **buf) {
    const size_t len = p->r->rail ? m->rows * stride_of(p, m) : 0;
    *buf = len ? sl_net_buf_take(gang_rail_net(p->r->rail), len) : NULL;
    if (len && !*buf) fails(p->r, SL_ERR_NOMEM, "a part of a message");
    return *buf ? (*buf)->data : (uint8_t *)(uintptr_t)m->data;
}

static begun *begun_of(gang_scratch *s, const sl_stage_spread *m) {
    for (uint32_t i = 0; i < MOST_BEGUN; i++) {
        begun *b = &s->begun[i];
        if (b->rows && b->rows == m->rows && b->is.key == m->is.key && b->is.number == m->is.number)
            return b;
    }
    return NULL;
}

/* Messages of the job, as they are here. */
static void find_messages(const spreading *p) {
    gang_scratch *s = p->s;
    const sl_stage_op op = p->j->spread.op;
    const uint32_t n = p->j->spread.n_messages;
    s->base = reserve(p->r, s->base, &s->n_base, n, sizeof *s->base);
    s->buf = reserve(p->r, s->buf, &s->n_buf, n, sizeof *s->buf);
    s->early = reserve(p->r, s->early, &s->n_early, n, sizeof *s->early);
    for (uint32_t i = 0; i < n; i++) {
        const sl_stage_spread *m = &p->j->spread.message[i];
        s->buf[i] = NULL;
        s->early[i] = op == SL_OP_UNPACK ? begun_of(s, m) : NULL;
        if (s->early[i])
            s->base[i] = s->early[i]->whole.at;
        else
            s->base[i] =
                op == SL_OP_PACK ? make_part(p, m, &s->buf[i]) : take_part(p, m, &s->buf[i]);
    }
}

static void give_messages(const spreading *p) {
    for (uint32_t i = 0; i < p->j->spread.n_messages; i++) {
        if (p->s->early[i]) p->s->early[i]->rows = 0;
        if (p->r->rail) sl_net_buf_give(gang_rail_net(p->r->rail), p->s->buf[i]);
    }
}

static void finish(gang_rank *r, uint64_t ticket) {
    sl_err err;
    if (sl_coll_finish(r->coll, ticket, &err) != SL_OK) r->lost(r, &err);
}

/* What all ranks have of something, `bytes` of each in words, one behind the other; first: where
 * this rank's lie. What is begun is finished, too. */
static uint8_t *gather(const spreading *p, const uint8_t *part, uint32_t rows, size_t first,
                       size_t own, size_t all) {
    uint64_t ticket;
    sl_err err;
    uint8_t *whole = bytes_of(p->r, &p->s->whole, rows * all);
    if (sl_coll_begin_gather(p->r->coll, (const float *)(const void *)part, rows,
                             (uint32_t)(first / WORD), (uint32_t)(own / WORD),
                             (uint32_t)(all / WORD), (float *)(void *)whole, &ticket,
                             &err) != SL_OK)
        p->r->lost(p->r, &err);
    finish(p->r, ticket);
    return whole;
}

/* ---- PACK ---- */

/* Of rows of which each rank has its columns, the largest value of all of them. */
static const uint32_t *tops_of(const spreading *p) {
    const uint32_t n = p->j->spread.n, of = p->r->is.of;
    uint32_t *mine = (uint32_t *)(void *)bytes_of(p->r, &p->s->tops, n * WORD);
    for (uint32_t i = 0; i < n; i++) mine[i] = sl_wire_top(job_row(p, i) + p->own.first, p->own.n);
    const uint32_t *all = (const uint32_t *)(void *)gather(p, (const uint8_t *)mine, n,
                                                           p->r->is.index * WORD, WORD, of * WORD);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < of; k++) mine[i] = SL_MAX(mine[i], all[i * of + k]);
    return mine;
}

static void pack(const spreading *p) {
    const bool scaled = p->wire == SL_WIRE_FP8;
    const uint32_t *tops = scaled && p->j->spread.cut ? tops_of(p) : NULL;
    for (uint32_t i = 0; i < p->j->spread.n; i++) {
        const gang_ref *ref = &p->j->spread.ref[i];
        const float *row = job_row(p, i);
        if (!is_cut(p, ref)) {
            sl_wire_pack(p->wire, row, 1, p->d, place_of(p, ref));
            continue;
        }
        const uint32_t top = tops ? tops[i] : scaled ? sl_wire_top(row, p->d) : 0;
        if (p->own.n)
            sl_wire_pack_columns(p->wire, row + p->own.first, p->own.n, top, place_of(p, ref));
    }
    for (uint32_t i = 0; p->r->rail && i < p->j->spread.n_messages; i++) {
        const sl_stage_spread *m = &p->j->spread.message[i];
        sl_err err;
        if (gang_rail_send(p->r->rail, &m->is, m->back, m->rows, p->s->buf[i], &err) != SL_OK)
            p->r->lost(p->r, &err);
    }
}

/* ---- UNPACK ---- */

/* Bytes of n columns of a row among those that are gathered. */
static size_t words_of(const spreading *p, uint32_t n) {
    return n ? (sl_wire_row_bytes(p->wire, n) + WORD - 1) / WORD * WORD : 0;
}

/* A row that is gathered: where it has each rank's columns, and its bytes. */
typedef struct layout {
    size_t from[SL_MAX_RANKS], bytes;
} layout;

static layout layout_of(const spreading *p) {
    layout l = {.bytes = 0};
    for (uint32_t k = 0; k < p->r->is.of; k++) {
        l.from[k] = l.bytes;
        l.bytes += words_of(p, p->j->spread.columns[k].n);
    }
    return l;
}

/* Whether its gathering has begun. */
static bool is_early(const spreading *p, const gang_ref *ref) {
    return is_cut(p, ref) && p->s->early[ref->message];
}

/* Rows of which there is a part everywhere, in the order of the job, but for those that are begun.
 * NULL: there are none. */
static const uint8_t *gather_cut(const spreading *p, const layout *l) {
    const size_t own = words_of(p, p->own.n), stride = sl_wire_row_bytes(p->wire, p->own.n);
    const gang_ref *ref = p->j->spread.ref;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < p->j->spread.n; i++)
        rows += is_cut(p, &ref[i]) && !is_early(p, &ref[i]);
    if (rows == 0) return NULL;
    uint8_t *part = bytes_of(p->r, &p->s->part, rows * own);
    for (uint32_t i = 0, k = 0; own && i < p->j->spread.n; i++) {
        if (!is_cut(p, &ref[i]) || is_early(p, &ref[i])) continue;
        memcpy(part + k++ * own, place_of(p, &ref[i]), stride);
    }
    return gather(p, part, rows, l->from[p->r->is.index], own, l->bytes);
}

static void widen(const spreading *p, const layout *l, const uint8_t *gathered, float *row) {
    for (uint32_t k = 0; k < p->r->is.of; k++) {
        const sl_extent c = p->j->spread.columns[k];
        if (c.n) sl_wire_unpack(p->wire, gathered + l->from[k], 1, c.n, row + c.first);
    }
}

static void unpack(const spreading *p) {
    const layout l = layout_of(p);
    const uint8_t *cut = gather_cut(p, &l);
    for (uint32_t i = 0; i < p->j->spread.n_messages; i++)
        if (p->s->early[i]) finish(p->r, p->s->early[i]->ticket);
    for (uint32_t i = 0; i < p->j->spread.n; i++) {
        const gang_ref *ref = &p->j->spread.ref[i];
        float *row = job_row(p, i);
        if (is_early(p, ref)) {
            widen(p, &l, p->s->base[ref->message] + ref->row * l.bytes, row);
        } else if (is_cut(p, ref)) {
            widen(p, &l, cut, row);
            cut += l.bytes;
        } else {
            sl_wire_unpack(p->wire, whole_at(p, ref), 1, p->d, row);
        }
    }
}

/* ---- UNPACK of no rows ---- */

/* Where the message will be, in place of the one before it of its connection, which nobody asks for
 * any more; NULL: as many as can be have begun. */
static begun *free_for(gang_scratch *s, const sl_stage_spread *m) {
    begun *to = NULL;
    for (uint32_t i = 0; i < MOST_BEGUN; i++) {
        begun *b = &s->begun[i];
        if (!to && !b->rows) to = b;
        if (b->rows && b->is.key == m->is.key) to = b;
    }
    return to;
}

static begun *place_for(const spreading *p, const sl_stage_spread *m) {
    begun *to = free_for(p->s, m);
    if (!to) fails(p->r, SL_ERR_PROTOCOL, "a job of a gang: too many messages to gather");
    finish(p->r, to->ticket); /* what was begun here is written until then */
    return to;
}

static void begin_message(const spreading *p, const sl_stage_spread *m) {
    const layout l = layout_of(p);
    const size_t first = l.from[p->r->is.index], stride = stride_of(p, m);
    sl_buf *buf;
    sl_err err;
    const uint8_t *part = take_part(p, m, &buf);
    begun *b = place_for(p, m);
    uint8_t *whole = bytes_of(p->r, &b->whole, m->rows * l.bytes);
    for (uint32_t i = 0; p->own.n && i < m->rows; i++)
        memcpy(whole + i * l.bytes + first, part + i * stride, stride);
    if (p->r->rail) sl_net_buf_give(gang_rail_net(p->r->rail), buf);
    if (sl_coll_begin_share(p->r->coll, (float *)(void *)whole, m->rows, (uint32_t)(first / WORD),
                            (uint32_t)(words_of(p, p->own.n) / WORD), (uint32_t)(l.bytes / WORD),
                            &b->ticket, &err) != SL_OK)
        p->r->lost(p->r, &err);
    b->is = m->is;
    b->rows = m->rows;
}

void gang_spread_settle(gang_rank *r) {
    if (r->rail) gang_rail_settle(r->rail);
    for (uint32_t i = 0; r->scratch && i < MOST_BEGUN; i++) {
        begun *b = &r->scratch->begun[i];
        if (b->rows) finish(r, b->ticket);
        b->rows = 0;
    }
}

/* ---- MERGE ---- */

static void add(float *sum, const float *more, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) sum[i] += more[i];
}

/* This rank's columns of the sum of a row's pieces, in order, as of a device alone. */
static void add_pieces(const spreading *p, const gang_ref *ref, uint32_t k, float *sum,
                       float *wide) {
    bool any = false;
    for (uint32_t i = 0; i < k; i++) {
        if (ref[i].message == GANG_NO_ROW) continue;
        float *to = any ? wide : sum;
        if (is_cut(p, &ref[i]))
            sl_wire_unpack(p->wire, place_of(p, &ref[i]), 1, p->own.n, to);
        else
            sl_wire_unpack_columns(p->wire, whole_at(p, &ref[i]), p->own.first, p->own.n, to);
        if (any) add(sum, wide, p->own.n);
        any = true;
    }
    if (!any) memset(sum, 0, p->own.n * sizeof *sum);
}

static void merge(const spreading *p) {
    const uint32_t k = p->r->device->spec->top_k, n = p->j->spread.n;
    const sl_mem shared = p->j->spread.shared;
    gang_scratch *s = p->s;
    if (!s->sum) s->sum = sl_alloc(2 * (size_t)p->d, sizeof *s->sum);
    if (!s->sum) fails(p->r, SL_ERR_NOMEM, "room for a row");
    for (uint32_t i = 0; p->own.n && i < n; i++) {
        add_pieces(p, p->j->spread.ref + (size_t)i * k, k, s->sum, s->sum + p->d);
        if (shared.bytes) add(s->sum, row_at(p, shared, i) + p->own.first, p->own.n);
        add(row_at(p, p->j->spread.rows, i) + p->own.first, s->sum, p->own.n);
    }
    gang_rank_tell(p->r, sl_mem_ptr(p->j->spread.rows), n);
}

void gang_spread_do(gang_rank *r, const gang_job *j) {
    const spreading p = {.r = r,
                         .s = scratch_of(r),
                         .j = j,
                         .d = r->device->spec->d_model,
                         .wire = j->spread.wire,
                         .own = r->link.out};
    if (j->spread.n == 0) {
        for (uint32_t i = 0; i < j->spread.n_messages; i++)
            begin_message(&p, &j->spread.message[i]);
        return;
    }
    find_messages(&p);
    if (j->spread.op == SL_OP_PACK) {
        pack(&p);
        return;
    }
    if (j->spread.op == SL_OP_UNPACK)
        unpack(&p);
    else
        merge(&p);
    give_messages(&p);
}

/* ---- the job, at rank 0 ---- */

bool gang_is_spread(const sl_stage_call *c) {
    if (c->op == SL_OP_PACK || c->op == SL_OP_UNPACK) return c->pack.n_spread > 0;
    return c->op == SL_OP_MERGE && (c->merge.n_spread > 0 || c->merge.cut);
}

typedef struct making {
    gang *g;
    gang_scratch *s;
    const sl_stage_spread *spread;
    uint32_t n, last; /* of these; the one that a place was in */
    sl_wire_format wire;
    uint32_t n_plain;
} making;

/* Which row of a message that is; false: of none. */
static bool find_row(making *m, const uint8_t *at, gang_ref *out) {
    for (uint32_t i = 0; i < m->n; i++) {
        const uint32_t k = (m->last + i) % m->n;
        const sl_stage_spread *s = &m->spread[k];
        const size_t row = sl_device_row_bytes(&m->g->base, &s->is, m->wire);
        if (at < s->data || at >= s->data + s->rows * row) continue;
        m->last = k;
        *out = (gang_ref){k, (uint32_t)((size_t)(at - s->data) / row)};
        return true;
    }
    return false;
}

/* A row that comes with the job. */
static gang_ref add_plain(making *m, const uint8_t *at) {
    const size_t row = sl_wire_row_bytes(m->wire, m->g->base.spec->d_model);
    uint8_t *plain = bytes_of(&m->g->own, &m->s->plain, (m->n_plain + 1u) * row);
    memcpy(plain + m->n_plain * row, at, row);
    return (gang_ref){GANG_PLAIN, m->n_plain++};
}

static gang_job begin_job(making *m, const sl_stage_call *c, sl_mem rows, uint32_t n) {
    gang_rank *own = &m->g->own;
    gang_job j = {
        .kind = GANG_SPREAD,
        .spread = {.op = c->op, .wire = m->wire, .n = n, .n_messages = m->n, .rows = rows}};
    m->s->message = reserve(own, m->s->message, &m->s->n_message, m->n, sizeof *m->s->message);
    for (uint32_t i = 0; i < m->n; i++) m->s->message[i] = m->spread[i];
    for (uint32_t i = 0; i < m->g->n; i++) j.spread.columns[i] = own->board->report[i].out;
    j.spread.message = m->s->message;
    return j;
}

/* Rank 0 has them as all have. */
bool gang_spread_begin(gang *g, const sl_stage_spread *m, sl_wire_format f) {
    gang_scratch *s = scratch_of(&g->own);
    const sl_stage_call c = {.op = SL_OP_UNPACK};
    making one = {.g = g, .s = s, .spread = m, .n = 1, .wire = f};
    if (!free_for(s, m)) return false;
    const gang_job j = begin_job(&one, &c, (sl_mem){0}, 0);
    gang_must_do(g, &j);
    return true;
}

static void end_job(making *m, gang_job *j) {
    j->spread.ref = m->s->ref;
    j->spread.plain = m->n_plain ? m->s->plain.at : NULL;
    j->spread.n_plain = m->n_plain;
    if (j->spread.n) gang_must_do(m->g, j);
}

/* Rows of messages that are not spread rank 0 packs by itself. */
static void call_pack(making *m, const sl_stage_call *c) {
    gang_rank *own = &m->g->own;
    gang_scratch *s = m->s;
    const sl_stage_pack *p = &c->pack;
    uint32_t n = 0, rest = 0;
    s->ref = reserve(own, s->ref, &s->n_ref, p->n, sizeof *s->ref);
    s->row = reserve(own, s->row, &s->n_row, p->n, sizeof *s->row);
    s->rest = reserve(own, s->rest, &s->n_rest, p->n, sizeof *s->rest);
    s->rest_row = reserve(own, s->rest_row, &s->n_rest_row, p->n, sizeof *s->rest_row);
    for (uint32_t i = 0; i < p->n; i++) {
        const uint32_t row = p->row ? p->row[i] : i;
        if (find_row(m, p->at[i], &s->ref[n])) {
            s->row[n++] = row;
        } else {
            s->rest[rest] = p->at[i];
            s->rest_row[rest++] = row;
        }
    }
    SL_ASSERT(!p->cut || rest == 0);
    gang_job j = begin_job(m, c, p->rows, n);
    j.spread.cut = p->cut;
    j.spread.row = s->row;
    end_job(m, &j);
    sl_stage_call alone = *c;
    alone.pack = (sl_stage_pack){
        .n = rest, .wire = p->wire, .rows = p->rows, .row = s->rest_row, .at = s->rest};
    if (rest) sl_device_submit(own->device, &alone);
}

static void call_unpack(making *m, const sl_stage_call *c) {
    const sl_stage_pack *p = &c->pack;
    m->s->ref = reserve(&m->g->own, m->s->ref, &m->s->n_ref, p->n, sizeof *m->s->ref);
    for (uint32_t i = 0; i < p->n; i++)
        if (!find_row(m, p->at[i], &m->s->ref[i])) m->s->ref[i] = add_plain(m, p->at[i]);
    gang_job j = begin_job(m, c, p->rows, p->n);
    j.spread.row = p->row;
    end_job(m, &j);
}

static void call_merge(making *m, const sl_stage_call *c) {
    const size_t n = (size_t)c->rows.n * m->g->base.spec->top_k;
    SL_ASSERT(!c->merge.from && c->merge.x.at == c->rows.x.at);
    m->s->ref = reserve(&m->g->own, m->s->ref, &m->s->n_ref, n, sizeof *m->s->ref);
    for (size_t i = 0; i < n; i++) {
        const uint8_t *at = c->merge.piece[i];
        gang_ref *ref = &m->s->ref[i];
        if (!at)
            *ref = (gang_ref){GANG_NO_ROW, 0};
        else if (!find_row(m, at, ref))
            *ref = add_plain(m, at);
    }
    gang_job j = begin_job(m, c, c->rows.x, c->rows.n);
    j.spread.shared = c->merge.shared;
    end_job(m, &j);
}

void gang_spread_call(gang *g, const sl_stage_call *c) {
    const bool merges = c->op == SL_OP_MERGE;
    making m = {.g = g,
                .s = scratch_of(&g->own),
                .spread = merges ? c->merge.spread : c->pack.spread,
                .n = merges ? c->merge.n_spread : c->pack.n_spread,
                .wire = merges ? c->merge.wire : c->pack.wire};
    if (c->op == SL_OP_PACK)
        call_pack(&m, c);
    else if (c->op == SL_OP_UNPACK)
        call_unpack(&m, c);
    else
        call_merge(&m, c);
}
