/* Ranks on other machines, seen from rank 0: jobs go to them with the rows that they read, their
 * part of the results comes back. A rank that is gone is rank 0's end. */
#include "stage/gang/blocks.h"
#include "stage/gang/carry.h"
#include "stage/gang/machines.h"
#include "stage/gang/parcel.h"

#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CALL_MS 60000u /* that ranks may take to be there */

typedef struct crew {
    gang_blocks blocks; /* first */
    gang_link link;
    gang_parcel out; /* the job that goes to all */
    gang_marks marks;
    gang_kept kept;
    bool keeps; /* ranks do all jobs together; else each has rows of its own */
    uint64_t jobs;
    void (*tick)(void *ctx);
    void (*rail_word)(void *ctx, uint32_t rank, const sl_rails_word *w);
    void *ctx;
    gang_board *board;
} crew;

/* Who is gone, where it was and why, which collectives do not know. */
static const gang_peer *gone_of(const crew *c, uint32_t *rank) {
    for (uint32_t i = 1; i < SL_MAX_RANKS; i++)
        if (c->link.peer[i].gone) return *rank = i, &c->link.peer[i];
    return NULL;
}

/* The worker ends: what it would go on with is not there any more. */
static void lost(gang_rank *r, const sl_err *err) {
    crew *c = r->ctx;
    uint32_t rank;
    const gang_peer *p = gone_of(c, &rank);
    if (p)
        sl_log(SL_LOG_ERROR, "gang", "rank %u of %u at %s: %s: its worker ends with it", rank,
               r->is.of, c->link.own.at[rank], p->text);
    else
        sl_log(SL_LOG_ERROR, "gang", "%s: its worker ends with it", err->msg);
    if (err->code == SL_ERR_TIMEOUT) abort();
    gang_link_fail(&c->link, err);
    _exit(1);
}

static void tick(void *ctx) {
    crew *c = ctx;
    (void)sl_net_progress(c->link.net);
    if (c->tick) c->tick(c->ctx);
}

/* While it waits for ranks only the worker's: their net moves on anyway. */
static void tick_worker(void *ctx) {
    const crew *c = ctx;
    c->tick(c->ctx);
}

static void rail_word(void *ctx, uint32_t rank, const sl_rails_word *w) {
    const crew *c = ctx;
    c->rail_word(c->ctx, rank, w);
}

/* ---- starting ---- */

/* The n addresses of ranks 1 and on. */
static sl_status read_addresses(const char *text, uint32_t n, char at[][GANG_ADDRESS],
                                sl_err *err) {
    size_t len;
    for (uint32_t rank = 1; rank <= n; rank++) {
        const char *from = sl_rank_address(text, rank - 1, &len);
        if (!from)
            return sl_fail(err, SL_ERR_ARG, "fewer addresses than the %u of ranks beside the first",
                           n);
        if (len == 0 || len >= GANG_ADDRESS)
            return sl_fail(err, SL_ERR_ARG,
                           "rank %u: an address of %zu bytes, 1 to %u are possible", rank, len,
                           GANG_ADDRESS - 1);
        memcpy(at[rank], from, len);
        at[rank][len] = 0;
    }
    if (!sl_rank_address(text, n, &len)) return SL_OK;
    return sl_fail(err, SL_ERR_ARG, "more addresses than the %u of ranks beside the first", n);
}

static sl_status open_link(gang *g, crew *c, const sl_device_opts *o, sl_err *err) {
    char at[SL_MAX_RANKS][GANG_ADDRESS] = {{0}};
    sl_model_spec m;
    sl_status st = read_addresses(o->ranks_at ? o->ranks_at : "", g->n - 1, at, err);
    if (st == SL_OK) st = sl_model_read_spec(o->folder, &m, NULL, err);
    if (st != SL_OK) return st;
    gang_link_opts lo = {.secret = o->secret,
                         .encrypt = o->encrypt,
                         .tick = c->tick ? tick_worker : NULL,
                         .tick_us = o->tick_us,
                         .ctx = c};
    memcpy(lo.model_hash, m.hash, sizeof lo.model_hash);
    lo.on_word = o->rail_word ? rail_word : NULL;
    st = gang_link_open(&c->link, &lo, err);
    if (st == SL_OK) st = gang_link_call(&c->link, g->n, at, CALL_MS, err);
    /* Else its worker would take the absence for its coordinator's. */
    if (st == SL_ERR_PEER_DOWN || st == SL_ERR_TIMEOUT) st = err->code = SL_ERR_IO;
    return st;
}

static sl_status machines_start(gang *g, const sl_device_opts *o, sl_err *err) {
    crew *c = g->others = sl_alloc(1, sizeof *c);
    if (c) c->board = g->own.board = sl_alloc(1, gang_board_bytes(g->n));
    if (!c || !c->board) return sl_fail(err, SL_ERR_NOMEM, "a gang of %u ranks", g->n);
    c->blocks.of = g;
    c->board->area = GANG_MAX_BLOCKS;
    c->keeps = o->pipeline <= 1;
    c->tick = o->tick;
    c->rail_word = o->rail_word;
    c->ctx = o->ctx;
    g->own.ctx = c;
    g->own.lost = lost;
    g->own.threads = o->threads;
    g->own.tick = tick;
    g->own.tick_us = o->tick_us ? o->tick_us : GANG_TICK_US;
    sl_status st = open_link(g, c, o, err);
    g->own.coll = c->link.coll;
    c->link.coll = st == SL_OK ? c->link.coll : NULL;
    gang_rank_link(&g->own, true);
    return st;
}

static void machines_stop(gang *g, bool told) {
    crew *c = g->others;
    (void)told;
    if (!c) return;
    c->link.coll = NULL; /* rank 0's, and closed with it */
    gang_link_close(&c->link);
    gang_parcel_free(&c->out);
    gang_marks_free(&c->marks);
    gang_kept_free(&c->kept);
    gang_memory_free(&c->blocks.memory);
    sl_free(c->board);
    sl_free(c);
}

/* ---- jobs ---- */

/* The job as bytes; *own: as rank 0 does it. */
static sl_status fill(gang *g, const gang_job *j, gang_job *own, sl_err *err) {
    crew *c = g->others;
    sl_status st = gang_blocks_show(&c->blocks, j, own, err);
    if (st == SL_OK)
        st = gang_parcel_fill(&c->out, &c->blocks.memory, c->board, j, g->base.spec, &c->marks,
                              c->keeps ? &c->kept : NULL, err);
    c->jobs++;
    return st;
}

static sl_status send(gang *g, uint32_t rank, sl_err *err) {
    crew *c = g->others;
    return gang_link_send(&c->link, rank, SL_MSG_RANK_JOB, c->jobs, c->out.data, c->out.len, err);
}

static sl_status machines_show(gang *g, const gang_job *j, gang_job *own, sl_err *err) {
    sl_status st = fill(g, j, own, err);
    const bool filled = st == SL_OK;
    for (uint32_t i = 1; st == SL_OK && i < g->n; i++) st = send(g, i, err);
    /* Some have it, some do not. */
    if (st != SL_OK && filled && j->kind != GANG_LEAVE) lost(&g->own, err);
    return st;
}

/* The rank's report of the job with that number, and its part of the results to where the job has
 * them. */
static sl_status take_answer(gang *g, uint32_t rank, uint64_t number, const gang_job *own,
                             sl_err *err) {
    crew *c = g->others;
    sl_status st = gang_link_wait(&c->link, rank, GANG_DEADLINE_MS, err);
    if (st != SL_OK) return st;
    const gang_inbound *p = gang_peer_at(&c->link.peer[rank], 0);
    const sl_model_spec *spec = g->own.device ? sl_cpu_stored_of(g->own.device) : NULL;
    if (p->number != number)
        return sl_fail(err, SL_ERR_PROTOCOL, "rank %u of %u answers job %llu, %llu is due", rank,
                       g->n, (unsigned long long)p->number, (unsigned long long)number);
    st = gang_answer_take(c->board, (sl_rank){rank, g->n}, own, spec, p->data, p->len, &c->marks,
                          err);
    if (st != SL_OK) return sl_err_prefix(err, "rank %u of %u", rank, g->n);
    gang_link_took(&c->link, rank);
    return SL_OK;
}

static void machines_hear(gang *g, const gang_job *own) {
    crew *c = g->others;
    const uint64_t number = c->jobs;
    sl_err err;
    for (uint32_t i = 1; i < g->n; i++) {
        if (!gang_job_is_answered(own))
            c->board->report[i].ok = true;
        else if (take_answer(g, i, number, own, &err) != SL_OK)
            lost(&g->own, &err);
    }
    if (c->keeps) gang_kept_after(&c->kept, &c->blocks.memory, g->base.spec, own);
}

static void machines_alone(gang *g, const sl_stage_call *call) {
    crew *c = g->others;
    if (c->keeps) gang_kept_alone(&c->kept, &c->blocks.memory, g->base.spec, call);
}

/* Heartbeats leave, and who is gone is heard of. */
static void machines_tend(gang *g) {
    crew *c = g->others;
    uint32_t rank;
    sl_err err;
    (void)sl_net_progress(c->link.net);
    if (!gone_of(c, &rank)) return;
    sl_fail(&err, SL_ERR_PEER_DOWN, "rank %u of %u is gone", rank, g->n);
    lost(&g->own, &err);
}

static void machines_rail(gang *g, uint32_t rank, const sl_rails_word *w) {
    gang_link_say(&((crew *)g->others)->link, rank, w);
}

/* ---- jobs of one rank, of pipelines ---- */

size_t gang_machines_lack(const gang *g, const gang_job *j) {
    const crew *c = g->others;
    const uint32_t area = c->board->area;
    const size_t wanted = gang_job_bytes(j, g->base.spec);
    const size_t have = area < GANG_MAX_BLOCKS ? c->blocks.memory.block[area].bytes : 0;
    return wanted > have ? wanted : 0;
}

void gang_machines_reserve(gang *g, size_t bytes) {
    crew *c = g->others;
    sl_err err;
    if (gang_blocks_reserve(&c->blocks, bytes, &err) != SL_OK) lost(&g->own, &err);
}

uint64_t gang_machines_give(gang *g, uint32_t rank, const gang_job *j) {
    gang_job own;
    sl_err err;
    sl_status st = fill(g, j, &own, &err);
    if (st == SL_OK) st = send(g, rank, &err);
    if (st != SL_OK) lost(&g->own, &err);
    return ((const crew *)g->others)->jobs;
}

bool gang_machines_have_answer(gang *g, uint32_t rank) {
    return ((crew *)g->others)->link.peer[rank].n_whole > 0;
}

void gang_machines_take_answer(gang *g, uint32_t rank, uint64_t number, const gang_job *own) {
    const gang_report *r = &g->own.board->report[rank];
    sl_err err;
    sl_status st = take_answer(g, rank, number, own, &err);
    if (st == SL_OK && !r->ok) {
        err = r->err;
        st = sl_err_prefix(&err, "rank %u of %u", rank, g->n);
    }
    if (st != SL_OK) lost(&g->own, &err);
}

const gang_ways gang_machines = {.apart = true,
                                 .start = machines_start,
                                 .show = machines_show,
                                 .hear = machines_hear,
                                 .stop = machines_stop,
                                 .take = gang_blocks_take,
                                 .give = gang_blocks_give,
                                 .alone = machines_alone,
                                 .tend = machines_tend,
                                 .rail = machines_rail};
