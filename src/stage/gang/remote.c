/* A rank on a machine of its own: it waits for its gang's worker (machines.c), has blocks of memory
 * by the numbers that jobs name, and answers each job with its part of the results. Of a pipeline
 * it may hand the rows on to the next rank instead, whose job waits for them. */
#include "stage/gang/parcel.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/memfd.h"
#include "stage/gang.h"

#include <stdio.h>
#include <string.h>

typedef struct remote {
    gang_rank rank;
    const sl_rank_server *o;
    gang_link link;
    gang_memory memory;
    gang_pointers pointers;
    gang_bounds bounds;
    gang_marks marks;
    gang_parcel out;
    gang_job job; /* as this rank does it */
} remote;

/* Others may wait for it in the middle of a sum: there is no way back. */
static void lost(gang_rank *r, const sl_err *err) {
    remote *m = r->ctx;
    gang_link_fail(&m->link, err);
    m->o->again(m->o->ctx, err);
    SL_ASSERT(!"a rank goes on without its gang");
}

static void tick(void *ctx) {
    (void)sl_net_progress(((remote *)ctx)->link.net);
}

/* ---- jobs ---- */

static sl_status map(gang_rank *r, const gang_job *j, sl_err *err) {
    remote *m = r->ctx;
    int fd;
    gang_memory_unmap(&m->memory, j->map.id); /* of an attempt that another rank did not follow */
    if (j->kind == GANG_UNMAP) return SL_OK;
    sl_status st = sl_memfd_create(j->map.bytes, &fd, err);
    return st == SL_OK ? gang_memory_map(&m->memory, j->map.id, fd, j->map.bytes, err) : st;
}

/* What is of this machine is not for the worker to say; nor is anything of its process. */
static void make_own(remote *m, gang_job *j) {
    sl_device_opts *o = &j->open.o;
    o->folder = m->o->folder;
    o->isa = m->o->isa;
    o->numa = m->o->numa;
    o->tick = NULL;
    o->wait = NULL;
    o->progress = NULL;
    o->routed = NULL;
    o->rail_word = NULL;
    o->ctx = o->progress_ctx = NULL;
    o->quiet_ms = 0;
    o->hosts.blocks = (sl_extent){0}; /* of a pipeline: found out here */
    o->hosts.inner = o->inside = false;
    m->bounds = (gang_bounds){.max_rows = o->max_rows,
                              .max_pairs = o->max_pairs,
                              .kv_pages = o->kv_pages,
                              .together = o->pipeline <= 1,
                              .spreads = o->spreads && o->pipeline <= 1,
                              .wire = o->wire,
                              .is = m->rank.is,
                              .attention = o->hosts.attention,
                              .experts = o->hosts.experts};
}

/* Whoever shares matrices does so with as many as can; the table of hosted experts is as large as
 * this model's. */
static sl_status check_open(const remote *m, const gang_job *j, sl_err *err) {
    sl_model_spec s;
    if (j->open.o.pipeline > 1 && j->open.o.pipeline != m->rank.is.of)
        return sl_fail(err, SL_ERR_PROTOCOL, "a pipeline of %u ranks, which are %u",
                       j->open.o.pipeline, m->rank.is.of);
    if (j->open.o.pipeline <= 1 && !sl_ranks_can_be(m->rank.is.of))
        return sl_fail(err, SL_ERR_PROTOCOL, "a gang of %u ranks", m->rank.is.of);
    if (!j->open.o.hosts.hosted) return SL_OK;
    sl_status st = sl_model_read_spec(m->o->folder, &s, NULL, err);
    if (st == SL_OK && j->open.hosted_bytes != (size_t)s.n_moe * s.n_experts)
        st = sl_fail(err, SL_ERR_PROTOCOL, "a table of %zu hosted experts", j->open.hosted_bytes);
    return st;
}

static bool is_run(const gang_job *j) {
    return j->kind == GANG_RUN;
}

/* What the rank before this one has left. Jobs are done in the order in which they were given, at
 * every rank, so these are the next rows that come, or no job's. */
static sl_status take_rows(remote *m, sl_err *err) {
    const uint32_t from = m->rank.is.index - 1;
    sl_status st = gang_link_wait(&m->link, from, GANG_DEADLINE_MS, err);
    if (st == SL_OK)
        st = gang_rows_take(&m->job, m->bounds.spec, gang_peer_at(&m->link.peer[from], 0), err);
    if (st == SL_OK) gang_link_took(&m->link, from);
    return st;
}

static sl_status hand_on(remote *m, sl_err *err) {
    const sl_rowset *r = &m->job.run.call.rows;
    return gang_link_send(&m->link, m->rank.is.index + 1, SL_MSG_RANK_ROWS,
                          gang_peer_at(&m->link.peer[0], 0)->number, sl_mem_ptr(r->x),
                          r->n * m->bounds.spec->d_model * sizeof(float), err);
}

static sl_status read_job(remote *m, sl_err *err) {
    const gang_inbound *p = gang_peer_at(&m->link.peer[0], 0);
    gang_board *board = m->rank.board;
    /* Rows of the worker's come after those that ranks have told. */
    if (gang_parcel_carries(p->data, p->len)) gang_rank_hear(&m->rank);
    sl_status st = gang_parcel_take(&m->memory, board, &m->bounds, p->data, p->len, err);
    if (st != SL_OK) return st;
    const gang_job_kind kind = board->job.kind;
    m->job = board->job;
    if (!gang_job_has_lists(kind)) return SL_OK;
    st = gang_job_unpack(&m->memory, board->area, &board->job, &m->pointers, &m->job, err);
    if (st == SL_OK && kind == GANG_OPEN) st = check_open(m, &m->job, err);
    if (st == SL_OK && kind == GANG_OPEN) make_own(m, &m->job);
    return st == SL_OK && is_run(&m->job) && m->job.run.before ? take_rows(m, err) : st;
}

static sl_status answer(remote *m, sl_err *err) {
    const gang_rank *r = &m->rank;
    const gang_report *report = &r->board->report[r->is.index];
    if (m->job.kind == GANG_OPEN && r->device) {
        m->bounds.spec = sl_cpu_stored_of(r->device);
        m->bounds.device = r->device;
        m->bounds.blocks = report->blocks;
        m->bounds.out = report->out;
        m->bounds.inside = r->device->inside;
        m->bounds.mtp = r->device->mtp;
        if (!m->bounds.together && r->is.index > 1)
            m->link.rows_bytes = m->bounds.max_rows * m->bounds.spec->d_model * sizeof(float);
    }
    /* More experts are more pairs of a call: the device has the room now. */
    if (m->job.kind == GANG_HOST && report->ok)
        m->bounds.max_pairs = SL_MAX(m->bounds.max_pairs, m->job.host.max_pairs);
    const gang_share who = {r->is, report->out, report->kv_heads, report->blocks};
    sl_status st =
        gang_answer_fill(&m->out, r->board, &who, &m->job, m->bounds.spec, &m->marks, err);
    if (st == SL_OK)
        st =
            gang_link_send(&m->link, 0, SL_MSG_RANK_DONE, gang_peer_at(&m->link.peer[0], 0)->number,
                           m->out.data, m->out.len, err);
    return st;
}

static sl_status serve(remote *m, sl_err *err) {
    for (;;) {
        sl_status st = gang_link_wait(&m->link, 0, 0, err);
        if (st == SL_OK) st = read_job(m, err);
        if (st != SL_OK || m->job.kind == GANG_LEAVE) return st;
        gang_rank_do(&m->rank, &m->job);
        if (is_run(&m->job) && m->job.run.hands_on) st = hand_on(m, err);
        if (st == SL_OK && gang_job_is_answered(&m->job)) st = answer(m, err);
        if (st != SL_OK) return st;
        gang_link_took(&m->link, 0);
    }
}

/* ---- life ---- */

static void say_word(void *ctx, const sl_rails_word *w) {
    gang_link_say(&((remote *)ctx)->link, 0, w);
}

static sl_status open_link(remote *m, sl_err *err) {
    sl_model_spec s;
    const sl_rank_server *o = m->o;
    sl_status st = sl_model_read_spec(o->folder, &s, NULL, err);
    if (st != SL_OK) return st;
    gang_link_opts lo = {
        .host = o->host, .port = o->port, .secret = o->secret, .encrypt = o->encrypt};
    memcpy(lo.model_hash, s.hash, sizeof lo.model_hash);
    st = gang_link_open(&m->link, &lo, err);
    if (st == SL_OK && o->listens) o->listens(o->ctx, sl_net_address(m->link.net));
    return st;
}

static sl_status join(remote *m, sl_err *err) {
    char who[32];
    sl_status st = gang_link_answer(&m->link, err);
    if (st != SL_OK) return st;
    gang_rank *r = &m->rank;
    r->is = m->link.own.rank;
    snprintf(who, sizeof who, "rank %u of %u", r->is.index, r->is.of);
    sl_log_set_who(who);
    sl_log(SL_LOG_INFO, "gang", "it computes for a worker%s",
           sl_conn_is_encrypted(m->link.peer[0].conn) ? ", encrypted" : "");
    const gang_rail_opts ro = {.net = m->link.net, .index = r->is.index, .say = say_word, .ctx = m};
    r->rail = m->link.rail = gang_rail_create(&ro);
    r->board = sl_alloc(1, gang_board_bytes(r->is.of));
    if (!r->board || !r->rail) return sl_fail(err, SL_ERR_NOMEM, "a rank");
    r->coll = m->link.coll;
    r->ctx = m;
    r->map = map;
    r->lost = lost;
    r->threads = SL_MAX(m->o->threads, 1u);
    r->tick = tick;
    r->tick_us = GANG_TICK_US;
    gang_rank_link(r, true);
    return SL_OK;
}

static void leave(remote *m) {
    if (m->rank.coll) m->link.coll = NULL; /* closed with the rank */
    gang_rank_close(&m->rank);
    gang_link_close(&m->link);
    gang_memory_free(&m->memory);
    gang_pointers_free(&m->pointers);
    gang_marks_free(&m->marks);
    gang_parcel_free(&m->out);
    sl_free(m->rank.board);
    sl_free(m);
}

sl_status sl_gang_serve_rank(const sl_rank_server *o, sl_err *err) {
    remote *m = sl_alloc(1, sizeof *m);
    if (!m) return sl_fail(err, SL_ERR_NOMEM, "a rank");
    m->o = o;
    sl_status st = open_link(m, err);
    if (st == SL_OK) {
        st = join(m, err);
        if (st == SL_OK) st = serve(m, err);
        if (st != SL_OK) gang_link_fail(&m->link, err);
        if (st != SL_OK) o->again(o->ctx, err);
    }
    leave(m);
    return st;
}
