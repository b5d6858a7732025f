/* One rank of a gang: what it does of a job, and how its model meets the others. The same
 * whatever ranks are. */
#include "stage/gang/rail.h"
#include "stage/gang/spread.h"

#include "base/mem.h"
#include "base/topology.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

/* Parts in which a block that stays inside tells its rows: as attention takes them, or few. */
#define PART_ROWS  64u
#define MOST_PARTS 4u

/* ---- how its model meets the others ---- */

static void sum(void *ctx, const sl_exec *ex, float *y, uint32_t n_rows, uint32_t width,
                uint32_t *first, uint32_t *n) {
    gang_rank *r = ctx;
    sl_err err;
    (void)ex;
    if (sl_coll_reduce_scatter(r->coll, y, n_rows, width, first, n, &err) != SL_OK)
        r->lost(r, &err);
}

static void gather(void *ctx, const float *part, uint32_t n_rows, uint32_t first, uint32_t n,
                   uint32_t width, float *whole) {
    gang_rank *r = ctx;
    sl_err err;
    if (sl_coll_all_gather(r->coll, part, n_rows, first, n, width, whole, &err) != SL_OK)
        r->lost(r, &err);
}

static void meet(void *ctx) {
    gang_rank *r = ctx;
    sl_err err;
    if (sl_coll_meet(r->coll, SL_COLL_ALL, &err) != SL_OK) r->lost(r, &err);
}

/* Others read it from where it lies. */
static void wrote(void *ctx, float *x, uint32_t n_rows) {
    (void)x, (void)n_rows;
    meet(ctx);
}

/* ---- the same where ranks are apart ---- */

/* Nobody sees what others wrote. */
static void meet_nobody(void *ctx) {
    (void)ctx;
}

static uint64_t begin(void *ctx, const float *part, uint32_t n_rows, uint32_t first, uint32_t n,
                      uint32_t width, float *whole) {
    gang_rank *r = ctx;
    uint64_t ticket;
    sl_err err;
    if (sl_coll_begin_gather(r->coll, part, n_rows, first, n, width, whole, &ticket, &err) != SL_OK)
        r->lost(r, &err);
    return ticket;
}

static void end(void *ctx, uint64_t ticket) {
    gang_rank *r = ctx;
    sl_err err;
    if (sl_coll_finish(r->coll, ticket, &err) != SL_OK) r->lost(r, &err);
}

/* The row behind n rows from x on. */
static uint32_t row_behind(const gang_rank *r, const float *x, uint32_t n) {
    return (uint32_t)((size_t)(x - r->x) / r->device->spec->d_model) + n;
}

static void tell(void *ctx, float *x, uint32_t n_rows) {
    gang_rank *r = ctx;
    gang_told *t = &r->now;
    sl_err err;
    if (!r->shares) return;
    if (t->n == GANG_TOLD) t->n--; /* a part's ticket is that of all before it, too */
    t->part[t->n].end = row_behind(r, x, n_rows);
    if (sl_coll_begin_share(r->coll, x, n_rows, r->link.out.first, r->link.out.n,
                            r->device->spec->d_model, &t->part[t->n].ticket, &err) != SL_OK)
        r->lost(r, &err);
    t->n++;
}

static void hear(void *ctx, const float *x, uint32_t n_rows) {
    gang_rank *r = ctx;
    const gang_told *t = &r->before;
    uint32_t i = 0;
    if (t->n == 0) return;
    const uint32_t wanted = row_behind(r, x, n_rows);
    while (i + 1 < t->n && t->part[i].end < wanted) i++;
    end(r, t->part[i].ticket);
}

void gang_rank_hear(gang_rank *r) {
    if (r->before.n || r->now.n) end(r, UINT64_MAX);
    r->before.n = r->now.n = 0;
}

static void hear_all(void *ctx) {
    gang_rank_hear(ctx);
}

/* Rows of which the block after this one can begin with some. */
static void tell_in_parts(gang_rank *r, float *x, uint32_t n_rows) {
    const uint32_t each = SL_MAX(PART_ROWS, (n_rows + MOST_PARTS - 1) / MOST_PARTS);
    for (uint32_t at = 0, n; at < n_rows; at += n) {
        n = SL_MIN(each, n_rows - at);
        tell(r, x + (size_t)at * r->device->spec->d_model, n);
    }
}

void gang_rank_link(gang_rank *r, bool apart) {
    r->link = (sl_gang){.sum = sum, .gather = gather, .meet = meet, .wrote = wrote, .ctx = r};
    if (!apart) return;
    r->link.apart = true;
    r->link.meet = meet_nobody;
    r->link.begin = begin;
    r->link.end = end;
    r->link.wrote = tell;
    r->link.needs = hear;
    r->link.hear = hear_all;
}

void gang_rank_tell(gang_rank *r, float *x, uint32_t n_rows) {
    gang_rank_hear(r);
    r->x = x;
    r->shares = true;
    tell_in_parts(r, x, n_rows);
    r->shares = false;
}

/* ---- jobs ---- */

sl_status gang_take_cores(sl_rank is, uint32_t threads, sl_err *err) {
    uint32_t each[SL_MAX_RANKS];
    uint16_t cpu[SL_MAX_CPUS];
    cpu_set_t set;
    sl_topology *t = sl_alloc(1, sizeof *t);
    if (!t) return sl_fail(err, SL_ERR_NOMEM, "no memory for the list of CPUs");
    for (uint32_t i = 0; i < is.of; i++) each[i] = threads;
    sl_status st = sl_topology_read("/sys", NULL, t, err);
    const uint32_t n = st == SL_OK ? sl_topology_pick(t, each, is.of, is.index, cpu) : 0;
    sl_free(t);
    CPU_ZERO(&set);
    for (uint32_t i = 0; i < n; i++) CPU_SET(cpu[i], &set);
    if (st == SL_OK && sched_setaffinity(0, sizeof set, &set) != 0)
        st = sl_fail(err, SL_ERR_ARG, "rank %u of %u cannot be pinned: %s", is.index, is.of,
                     strerror(errno));
    return st;
}

/* Blocks with experts stay inside where all experts are: of the stream ranks tell each other their
 * columns. A router that comes before its block's attention has no way inside. */
static sl_status compute_inside(sl_device_opts *o, sl_err *err) {
    sl_model_spec m;
    sl_status st = sl_model_read_spec(o->folder, &m, NULL, err);
    if (st != SL_OK) return st;
    const size_t n = (size_t)m.n_moe * m.n_experts;
    const uint8_t *hosted = o->hosts.hosted;
    o->inside = n > 0 && o->hosts.attention && o->hosts.experts && !m.dense_branch;
    for (size_t i = 0; hosted && o->inside && i < n; i++) o->inside = hosted[i] != 0;
    return SL_OK;
}

static sl_status do_open(gang_rank *r, const gang_job *j, gang_report *report) {
    sl_device_opts o = j->open.o;
    sl_status st = SL_OK;
    o.device = &j->open.device;
    o.ranks = 0;
    o.hosts.rank = r->is;
    o.threads = r->threads ? r->threads : SL_MAX(o.threads / r->is.of, 1u);
    o.apart = o.apart && !r->threads;
    o.gang = &r->link;
    o.loud = r->link.apart;
    if (o.pipeline > 1)
        st = gang_pipeline_opts(r->is, &o, &report->err);
    else if (r->link.apart)
        st = compute_inside(&o, &report->err);
    if (st != SL_OK) return st;
    if (r->threads) r->link.threads = SL_MAX(j->open.o.threads, 1u); /* rank 0's */
    if (r->is.index) o.tick = NULL;
    if (r->tick) o.tick = r->tick, o.ctx = r->ctx, o.tick_us = r->tick_us;
    if (r->is.index) o.progress = NULL; /* ranks read about as much: one speaks for all */
    if (o.apart) st = gang_take_cores(r->is, o.threads, &report->err);
    if (st == SL_OK) st = sl_cpu_open(&o, &r->device, &report->err);
    if (st != SL_OK) return st;
    report->idle = sl_cpu_idle(r->device);
    report->kv_heads = sl_cpu_kv_heads(r->device);
    report->blocks = sl_cpu_blocks(r->device);
    if (!o.gang)
        report->out = (sl_extent){0, r->device->spec->d_model};
    else if (!sl_cpu_out(r->device, &report->out))
        report->out = sl_coll_columns(r->is, r->device->spec->d_model);
    r->link.out = report->out;
    if (r->rail) gang_rail_set_row(r->rail, sl_wire_row_bytes(o.wire, report->out.n));
    return SL_OK;
}

/* Whether a rank before this one has that kv head, too: it speaks for it. */
static bool is_told(const gang_rank *r, uint32_t layer, uint32_t head) {
    for (uint32_t i = 0; i < r->is.index; i++) {
        const gang_report *its = &r->board->report[i];
        if (sl_extent_has(its->blocks, layer) && sl_extent_has(its->kv_heads, head)) return true;
    }
    return false;
}

/* The tiles of its heads in one block of a page, and their places among all heads'. */
static void do_block(const gang_rank *r, const gang_job *j, uint32_t layer, uint8_t *block) {
    const sl_model_spec *all = r->device->spec;
    const sl_extent heads = sl_cpu_kv_heads(r->device);
    const size_t tile = sl_kv_tile_bytes(all);
    if (heads.n == 0) return;
    uint8_t *mine = sl_cpu_block(r->device, j->page.page, layer);
    for (uint32_t side = 0; side < sl_kv_sides(all); side++) {
        for (uint32_t h = 0; h < heads.n; h++) {
            uint8_t *whole = block + ((size_t)side * all->n_kv_heads + heads.first + h) * tile;
            uint8_t *own = mine + ((size_t)side * heads.n + h) * tile;
            if (j->kind == GANG_WRITE)
                memcpy(own, whole, tile);
            else if (!is_told(r, layer, heads.first + h))
                memcpy(whole, own, tile);
        }
    }
}

static void do_page(const gang_rank *r, const gang_job *j) {
    const size_t block = sl_kv_block_bytes(r->device->spec);
    const sl_extent has = sl_cpu_blocks(r->device);
    if (j->kind == GANG_WRITE) sl_cpu_page_came(r->device, j->page.page);
    for (uint32_t i = 0; i < j->page.n; i++)
        if (sl_extent_has(has, j->page.first + i))
            do_block(r, j, j->page.first + i, (uint8_t *)j->page.blocks + i * block);
}

/* Attention and dense blocks ask for rows part by part; other steps begin when all are there. */
static void do_step(gang_rank *r, const gang_step *s, const sl_stage_call *c) {
    float *x = sl_mem_ptr(c->rows.x);
    if ((s->op != SL_OP_ATTEND && s->op != SL_OP_DENSE) || x != r->x) gang_rank_hear(r);
    r->before = r->now;
    r->now.n = 0;
    r->x = x;
    r->shares = s->shares;
    sl_device_submit(r->device, c);
    if (s->op == SL_OP_INSIDE) tell_in_parts(r, x, c->rows.n);
    r->shares = false;
}

/* What blocks inside choose is kept of each of them, where somebody asks. */
static void do_run(gang_rank *r, const gang_job *j) {
    sl_stage_call c = j->run.call;
    const size_t n = (size_t)c.rows.n * r->device->spec->top_k;
    uint32_t *chosen = j->run.chosen;
    for (uint32_t i = 0; i < j->run.n_steps; i++) {
        c.op = j->run.step[i].op;
        c.layer = j->run.step[i].layer;
        do_step(r, &j->run.step[i], &c);
        if (c.op != SL_OP_INSIDE) continue;
        if (r->routed) r->routed(r->routed_ctx, c.layer, c.rows.n, c.rows.expert);
        if (chosen) memcpy(chosen, c.rows.expert, n * sizeof *chosen);
        if (chosen) chosen += n;
    }
}

/* Of a call of several stages ranks tell each other the rows that one leaves to the next. */
static void do_call(gang_rank *r, const sl_stage_call *c) {
    r->shares = c->op == SL_OP_MTP;
    if (r->shares) r->x = sl_mem_ptr(c->mtp.out);
    sl_device_submit(r->device, c);
    r->shares = false;
}

static sl_status do_job(gang_rank *r, const gang_job *j, gang_report *report) {
    switch (j->kind) {
    case GANG_OPEN:
        return do_open(r, j, report);
    case GANG_CALL:
        do_call(r, &j->call);
        return SL_OK;
    case GANG_RUN:
        do_run(r, j);
        return SL_OK;
    case GANG_HOST:
        return sl_device_host(r->device, j->host.hosted, j->host.max_pairs, j->host.patient,
                              &report->left, &report->err);
    case GANG_READ:
    case GANG_WRITE:
        do_page(r, j);
        return SL_OK;
    case GANG_SPREAD:
        gang_spread_do(r, j);
        return SL_OK;
    case GANG_SETTLE:
        gang_spread_settle(r);
        return SL_OK;
    case GANG_MAP:
    case GANG_UNMAP:
        return r->map ? r->map(r, j, &report->err) : SL_OK;
    case GANG_LEAVE:
        return SL_OK;
    }
    return sl_fail(&report->err, SL_ERR_INTERNAL, "job %d of a gang", (int)j->kind);
}

void gang_rank_do(gang_rank *r, const gang_job *j) {
    gang_report *report = &r->board->report[r->is.index];
    if (j->kind != GANG_RUN) gang_rank_hear(r);
    report->ok = do_job(r, j, report) == SL_OK;
}

sl_status gang_rank_serve(gang_rank *r, sl_err *err) {
    gang_report *report = &r->board->report[r->is.index];
    for (;;) {
        sl_status st = sl_coll_meet(r->coll, SL_COLL_SPEAKS, err);
        gang_job j;
        if (st != SL_OK || r->board->job.kind == GANG_LEAVE) return st;
        report->ok = r->read(r, &j, &report->err) == SL_OK;
        /* In the sums of a call others wait for it: they may not take its end of the job for one.
         */
        if (!report->ok && r->board->job.kind == GANG_CALL) r->lost(r, &report->err);
        if (report->ok) gang_rank_do(r, &j);
        st = sl_coll_meet(r->coll, SL_COLL_HEARS, err);
        if (st != SL_OK) return st;
    }
}

/* ---- life ---- */

sl_status gang_rank_open(gang_rank *r, const sl_coll_opts *o, sl_err *err) {
    gang_rank_link(r, false);
    return sl_coll_open(o, r->board->collectives, &r->coll, err);
}

void gang_rank_close(gang_rank *r) {
    sl_device_close(r->device);
    sl_coll_free(r->coll);
    gang_scratch_free(r->scratch);
    r->scratch = NULL;
    r->device = NULL;
    r->coll = NULL;
}
