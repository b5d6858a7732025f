/* Counterparts of a rank and their parts of messages. */
#include "stage/gang/rail.h"

#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

#define AGAIN_US 200000u /* between two calls of a rank that is not there */

/* A part that has come, or stays here. */
typedef struct part {
    struct part *next;
    uint64_t number;
    uint32_t rows;
    sl_buf *bytes; /* NULL: of no columns */
} part;

typedef struct line {
    part *first, **last; /* in ascending order */
    uint32_t n;
} line;

/* A counterpart; key 0: the rank itself. */
typedef struct end {
    struct end *next;
    uint64_t key;
    sl_conn *conn;
    bool calls, open, hung_up;
    bool broken;       /* rank 0 has heard it */
    uint64_t again_us; /* it is called again then; 0: it is not */
    uint64_t got;
    char at[SL_RAILS_ADDRESS];
    line line[2]; /* of DISPATCH and of RETURN */
} end;

struct gang_rail {
    gang_rail_opts o;
    size_t row; /* bytes; 0: not known */
    bool knows_row;
    end *ends;
};

static uint64_t now_us(const gang_rail *r) {
    const sl_clock c = sl_net_clock(r->o.net);
    return sl_clock_now_us(&c);
}

static end *end_of(const gang_rail *r, uint64_t key) {
    end *e = r->ends;
    while (e && e->key != key) e = e->next;
    return e;
}

static end *end_by(const gang_rail *r, const sl_conn *c) {
    end *e = r->ends;
    while (e && e->conn != c) e = e->next;
    return e;
}

static void say(const gang_rail *r, const end *e, sl_rails_word_kind kind, const char *text) {
    sl_rails_word w = {.kind = kind, .key = e->key};
    if (text) snprintf(w.text, sizeof w.text, "%s", text);
    r->o.say(r->o.ctx, &w);
}

/* ---- parts that wait ---- */

static void drop_first(gang_rail *r, line *l) {
    part *p = l->first;
    if (!(l->first = p->next)) l->last = &l->first;
    l->n--;
    sl_net_buf_give(r->o.net, p->bytes);
    sl_free(p);
}

static void drop_parts(gang_rail *r, end *e) {
    for (size_t i = 0; i < SL_LEN(e->line); i++)
        while (e->line[i].first) drop_first(r, &e->line[i]);
}

/* Takes the bytes. */
static sl_status add_part(gang_rail *r, line *l, uint64_t number, uint32_t rows, sl_buf *bytes,
                          sl_err *err) {
    part *p = sl_alloc(1, sizeof *p);
    if (!p) {
        sl_net_buf_give(r->o.net, bytes);
        return sl_fail(err, SL_ERR_NOMEM, "a part of %u rows", rows);
    }
    *p = (part){.number = number, .rows = rows, .bytes = bytes};
    *l->last = p;
    l->last = &p->next;
    l->n++;
    return SL_OK;
}

/* ---- counterparts ---- */

static end *add_end(gang_rail *r, uint64_t key) {
    end *e = sl_alloc(1, sizeof *e);
    if (!e) return NULL;
    *e = (end){.next = r->ends, .key = key};
    for (size_t i = 0; i < SL_LEN(e->line); i++) e->line[i].last = &e->line[i].first;
    r->ends = e;
    return e;
}

static void forget(gang_rail *r, end *gone) {
    end **at = &r->ends;
    while (*at != gone) at = &(*at)->next;
    *at = gone->next;
    drop_parts(r, gone);
    sl_free(gone);
}

static void breaks(const gang_rail *r, end *e, const char *why) {
    if (e->hung_up || e->broken) return;
    e->broken = true;
    e->open = false;
    say(r, e, SL_RAILS_BROKE, why);
}

static void call(gang_rail *r, end *e) {
    sl_err err;
    e->again_us = 0;
    if (sl_net_connect(r->o.net, e->at, NULL, &e->conn, &err) == SL_OK) return;
    e->conn = NULL;
    e->again_us = now_us(r) + AGAIN_US;
}

static void hang_up(gang_rail *r, end *e) {
    sl_conn *c = e->conn;
    e->conn = NULL;
    e->open = false;
    e->hung_up = true;
    e->again_us = 0;
    if (c) sl_net_close(r->o.net, c, SL_OK, "its main connection ended");
    if (!e->line[0].first && !e->line[1].first) forget(r, e); /* nobody asks for anything */
}

sl_status gang_rail_on_word(gang_rail *r, const sl_rails_word *w, sl_err *err) {
    end *e = end_of(r, w->key);
    const bool begins = w->kind == SL_RAILS_EXPECT || w->kind == SL_RAILS_CALL;
    if (w->kind == SL_RAILS_HANG_UP) {
        if (e) hang_up(r, e);
        return SL_OK;
    }
    if (!begins || e) return sl_fail(err, SL_ERR_PROTOCOL, "word %d about a rail", (int)w->kind);
    if (!(e = add_end(r, w->key))) return sl_fail(err, SL_ERR_NOMEM, "a counterpart of a rank");
    if (w->kind == SL_RAILS_EXPECT) return SL_OK;
    e->calls = true;
    memcpy(e->at, w->text, sizeof e->at);
    call(r, e);
    return SL_OK;
}

void gang_rail_turn(gang_rail *r) {
    for (end *e = r->ends; e; e = e->next)
        if (e->again_us && now_us(r) >= e->again_us) call(r, e);
}

/* ---- what the net says ---- */

static sl_status say_key(const gang_rail *r, const end *e, sl_err *err) {
    const sl_wire_header h = {.kind = SL_MSG_RAIL_IS, .number = e->key, .chunk = r->o.index};
    if (sl_net_send(r->o.net, e->conn, h, NULL) == SL_OK) return SL_OK;
    return sl_fail(err, SL_ERR_PEER_DOWN, "a counterpart is gone as it is greeted");
}

sl_status gang_rail_on_open(gang_rail *r, sl_conn *c, sl_err *err) {
    const end *e = end_by(r, c);
    return e ? say_key(r, e, err) : SL_OK;
}

/* Who calls says the key, who is called repeats it. */
static sl_status greeted(gang_rail *r, sl_conn *c, const sl_wire_header *h, sl_err *err) {
    end *e = h->number ? end_of(r, h->number) : NULL;
    const bool expected = e && (e->calls ? e->conn == c : !e->conn && !end_by(r, c));
    if (!expected || e->open || e->hung_up || e->broken || h->chunk != r->o.index)
        return sl_fail(err, SL_ERR_PROTOCOL, "a rank %u says that it is a counterpart of rank %u",
                       h->chunk, r->o.index);
    e->conn = c;
    sl_status st = e->calls ? SL_OK : say_key(r, e, err);
    if (st != SL_OK) return st;
    e->open = true;
    say(r, e, SL_RAILS_BOUND, NULL);
    return SL_OK;
}

static sl_status take_part(gang_rail *r, end *e, const sl_wire_header *h, sl_buf **payload,
                           sl_err *err) {
    const size_t bytes = *payload ? (*payload)->len : 0;
    if (!r->knows_row || h->number <= e->got || h->layer > 1 || h->rows == 0 ||
        bytes != h->rows * r->row || e->line[h->layer].n == GANG_MOST_PARTS)
        return sl_fail(err, SL_ERR_PROTOCOL, "part %llu after %llu: %u rows in %zu bytes, %u wait",
                       (unsigned long long)h->number, (unsigned long long)e->got, h->rows, bytes,
                       h->layer > 1 ? 0 : e->line[h->layer].n);
    sl_buf *b = *payload;
    *payload = NULL;
    sl_status st = add_part(r, &e->line[h->layer], h->number, h->rows, b, err);
    if (st != SL_OK) return st;
    e->got = h->number;
    const sl_rails_word w = {
        .kind = SL_RAILS_HERE, .rows = h->rows, .key = e->key, .number = h->number};
    r->o.say(r->o.ctx, &w);
    return SL_OK;
}

sl_status gang_rail_on_message(gang_rail *r, sl_conn *c, const sl_wire_header *h, sl_buf **payload,
                               sl_err *err) {
    end *e = end_by(r, c);
    if (h->kind == SL_MSG_RAIL_IS) return greeted(r, c, h, err);
    if (h->kind == SL_MSG_STRIPE && e && e->open) return take_part(r, e, h, payload, err);
    return sl_fail(err, SL_ERR_PROTOCOL, "kind %u of message, which counterparts do not send",
                   (unsigned)h->kind);
}

void gang_rail_on_down(gang_rail *r, sl_conn *c, const char *text) {
    end *e = c ? end_by(r, c) : NULL;
    if (!e) return;
    e->conn = NULL;
    if (e->open)
        breaks(r, e, text && text[0] ? text : "it is gone");
    else if (e->calls && !e->hung_up && !e->broken)
        e->again_us = now_us(r) + AGAIN_US;
}

/* ---- what jobs want ---- */

/* What stays here. Takes the bytes. */
static sl_status keep_part(gang_rail *r, const sl_spread_name *what, bool back, uint32_t rows,
                           sl_buf *bytes, sl_err *err) {
    end *own = end_of(r, 0);
    if (!own && !(own = add_end(r, 0))) {
        sl_net_buf_give(r->o.net, bytes);
        return sl_fail(err, SL_ERR_NOMEM, "a part of %u rows", rows);
    }
    return add_part(r, &own->line[back], what->number, rows, bytes, err);
}

sl_status gang_rail_send(gang_rail *r, const sl_spread_name *what, bool back, uint32_t rows,
                         sl_buf *bytes, sl_err *err) {
    if (!what->key) return keep_part(r, what, back, rows, bytes, err);
    const end *e = end_of(r, what->key);
    if (!e || !e->open) {
        sl_net_buf_give(r->o.net, bytes);
        return SL_OK;
    }
    const sl_wire_header h = {.kind = SL_MSG_STRIPE,
                              .number = what->number,
                              .chunk = r->o.index,
                              .layer = back,
                              .rows = rows};
    (void)sl_net_send(r->o.net, e->conn, h, bytes); /* on_down says that it is gone */
    return SL_OK;
}

bool gang_rail_take(gang_rail *r, const sl_spread_name *what, bool back, uint32_t rows,
                    sl_buf **out) {
    end *e = end_of(r, what->key);
    line *l = e ? &e->line[back] : NULL;
    while (l && l->first && l->first->number < what->number) drop_first(r, l);
    part *p = l ? l->first : NULL;
    if (!p || p->number != what->number || p->rows != rows) return false;
    *out = p->bytes;
    p->bytes = NULL;
    drop_first(r, l);
    return true;
}

void gang_rail_settle(gang_rail *r) {
    for (end *e = r->ends, *next; e; e = next) {
        next = e->next;
        if (!e->key || e->hung_up) forget(r, e);
    }
}

/* ---- life ---- */

sl_net *gang_rail_net(const gang_rail *r) {
    return r->o.net;
}

void gang_rail_set_row(gang_rail *r, size_t bytes) {
    r->row = bytes;
    r->knows_row = true;
}

gang_rail *gang_rail_create(const gang_rail_opts *o) {
    gang_rail *r = sl_alloc(1, sizeof *r);
    if (r) r->o = *o;
    return r;
}

void gang_rail_free(gang_rail *r) {
    if (!r) return;
    while (r->ends) forget(r, r->ends);
    sl_free(r);
}
