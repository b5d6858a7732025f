/* A gang: ranks that compute as one device, each on a device of its own with its part of the
 * weights and its heads' KV (docs/tensor-parallel.md). The caller's thread is rank 0. A call is
 * handed to all ranks, which meet where sums cross them, and is through when submit returns. */
#include "stage/gang/spread.h"

#include "base/mem.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* As the threads of a pool. */
#define POLL_NS 30000u

uint32_t gang_poll_ns(uint32_t ranks) {
    return sysconf(_SC_NPROCESSORS_ONLN) >= (long)ranks ? POLL_NS : 0;
}

/* ---- all ranks at once ---- */

/* Also while ranks open: who misses one may neither go on nor pass it off as a coordinator that is
 * gone, which is what a worker takes an absence for. */
static void must_meet(gang *g, sl_coll_step step) {
    sl_err err;
    if (sl_coll_meet(g->own.coll, step, &err) != SL_OK) g->own.lost(&g->own, &err);
}

sl_status gang_do(gang *g, const gang_job *j, sl_err *err) {
    gang_job own;
    sl_status st = g->ways->show(g, j, &own, err);
    if (st != SL_OK) return st;
    if (!g->ways->hear) must_meet(g, SL_COLL_SPEAKS);
    gang_rank_do(&g->own, &own);
    if (g->ways->hear)
        g->ways->hear(g, &own);
    else
        must_meet(g, SL_COLL_HEARS);
    if (g->ways->take_back) g->ways->take_back(g, j);
    for (uint32_t i = 0; i < g->n; i++) {
        const gang_report *r = &g->own.board->report[i];
        if (r->ok) continue;
        *err = r->err;
        return sl_err_prefix(err, "rank %u of %u", i, g->n);
    }
    return SL_OK;
}

void gang_must_do(gang *g, const gang_job *j) {
    sl_err err;
    if (gang_do(g, j, &err) != SL_OK) g->own.lost(&g->own, &err);
}

/* ---- the device ---- */

/* Rows that only move need no gang; where ranks are apart, nor do those that need no other rank:
 * they would only travel. */
static bool is_for_one(const gang *g, sl_stage_op op) {
    if (g->ways->apart && (op == SL_OP_EMBED || op == SL_OP_ROUTE)) return true;
    return op == SL_OP_PACK || op == SL_OP_UNPACK || op == SL_OP_MOVE || op == SL_OP_MERGE;
}

static void do_alone(gang *g, const sl_stage_call *c) {
    sl_device_submit(g->own.device, c);
    if (g->ways->alone) g->ways->alone(g, c);
}

static void gang_submit(sl_device *base, const sl_stage_call *c) {
    gang *g = (gang *)base;
    const gang_job j = {.kind = GANG_CALL, .call = *c};
    if (gang_is_step(g, c)) {
        gang_wait(g, c);
        return;
    }
    gang_run_all(g);
    if (c->op == SL_OP_UNPACK) base->gathers = false;
    if (g->spreads && gang_is_spread(c))
        gang_spread_call(g, c);
    else if (is_for_one(g, c->op))
        do_alone(g, c);
    else
        gang_must_do(g, &j);
    sl_device_ran(base, c->queue);
}

static void gang_poll(sl_device *base) {
    gang_run_some((gang *)base);
}

static size_t hosted_bytes(const sl_model_spec *m) {
    return (size_t)m->n_moe * m->n_experts;
}

static sl_status gang_host(sl_device *base, const uint8_t *hosted, uint32_t max_pairs, bool patient,
                           sl_hosting *left, sl_err *err) {
    gang *g = (gang *)base;
    const gang_job j = {.kind = GANG_HOST,
                        .host = {.hosted = hosted,
                                 .hosted_bytes = hosted_bytes(base->spec),
                                 .max_pairs = max_pairs,
                                 .patient = patient}};
    gang_run_all(g);
    sl_status st = gang_do(g, &j, err);
    if (st != SL_OK) return st;
    *left = SL_HOSTING_DONE;
    for (uint32_t i = 0; i < g->n; i++) {
        gang_hosting_add(g->own.board->report[i].left, left);
    }
    return SL_OK;
}

/* Pages are as those of one device, of all heads. */
static gang_job page_job(const sl_device *d, gang_job_kind kind, uint32_t page, uint32_t first,
                         uint32_t n, void *blocks) {
    return (gang_job){.kind = kind,
                      .page = {.page = page,
                               .first = first,
                               .n = n,
                               .blocks = blocks,
                               .bytes = n * sl_kv_block_bytes(d->spec)}};
}

static void gang_read_page(sl_device *base, uint32_t page, uint32_t first, uint32_t n, void *to) {
    const gang_job j = page_job(base, GANG_READ, page, first, n, to);
    gang_run_all((gang *)base);
    gang_must_do((gang *)base, &j);
}

static void gang_write_page(sl_device *base, uint32_t page, uint32_t first, uint32_t n,
                            const void *from) {
    const gang_job j = page_job(base, GANG_WRITE, page, first, n, (void *)(uintptr_t)from);
    gang_run_all((gang *)base);
    gang_must_do((gang *)base, &j);
}

static sl_status gang_take(sl_device *base, size_t bytes, sl_mem *out, sl_err *err) {
    gang_run_all((gang *)base);
    return ((gang *)base)->ways->take(base, bytes, out, err);
}

static void gang_give(sl_device *base, sl_mem m) {
    gang_run_all((gang *)base);
    ((gang *)base)->ways->give(base, m);
}

static void gang_tend(sl_device *base) {
    gang *g = (gang *)base;
    if (g->ways->tend) g->ways->tend(g);
}

/* Threads of rank 0: others have jobs of their own. */
static void gang_share(sl_device *base, size_t n, sl_pool_fn fn, void *ctx) {
    sl_device_share(((gang *)base)->own.device, n, fn, ctx);
}

/* Of ranks that are apart rank 0 waits while its worker has other things to do. */
static uint64_t gang_ranks_ns(const sl_device *base) {
    const gang *g = (const gang *)base;
    return g->own.coll && !g->ways->apart ? sl_coll_spent_ns(g->own.coll) - g->opened_ns : 0;
}

static void gang_rail_word(sl_device *base, uint32_t rank, const sl_rails_word *w) {
    gang *g = (gang *)base;
    g->ways->rail(g, rank, w);
}

static void gang_gather(sl_device *base, const sl_stage_spread *m, sl_wire_format f) {
    gang_run_all((gang *)base);
    if (gang_spread_begin((gang *)base, m, f)) base->gathers = true;
}

static void gang_settle(sl_device *base) {
    static const gang_job j = {.kind = GANG_SETTLE};
    base->gathers = false;
    gang_run_all((gang *)base);
    gang_must_do((gang *)base, &j);
}

/* ---- opening and closing ---- */

static void gang_close(sl_device *base) {
    gang *g = (gang *)base;
    static const gang_job leave = {.kind = GANG_LEAVE};
    gang_job own;
    sl_err err;
    bool told = g->own.coll && g->ways->show(g, &leave, &own, &err) == SL_OK &&
                (g->ways->hear || sl_coll_meet(g->own.coll, SL_COLL_SPEAKS, &err) == SL_OK);
    gang_rank_close(&g->own);
    g->ways->stop(g, told);
    /* The next gang of this thread takes its cores from all of them again. */
    if (g->apart) (void)sched_setaffinity(0, sizeof g->cpus, &g->cpus);
    sl_free(g);
}

/* Ranks that got nothing of something: more ranks than there are units of it. */
static void note_who_idles(gang *g) {
    size_t at = 0, cap = sizeof g->base.note;
    for (uint32_t i = 0; i < g->n && at < cap; i++) {
        const sl_idle idle = g->own.board->report[i].idle;
        if (!idle.heads && !idle.dense && !idle.expert && !idle.shared) continue;
        int n = snprintf(g->base.note + at, cap - at, "%srank %u of %u has none of%s%s%s%s",
                         at ? "; " : "", i, g->n, idle.heads ? " heads" : "",
                         idle.dense ? " dense" : "", idle.expert ? " experts" : "",
                         idle.shared ? " shared" : "");
        at += n > 0 ? (size_t)n : 0;
    }
}

/* Only the table of hosted experts has a size that options do not say. */
static sl_status open_ranks(gang *g, const sl_device_opts *o, sl_err *err) {
    gang_job j = {.kind = GANG_OPEN,
                  .open = {.o = *o, .device = *o->device, .folder_bytes = strlen(o->folder) + 1}};
    if (o->isa) j.open.isa_bytes = strlen(o->isa) + 1;
    if (!g->ways->in_place) j.open.o.kv_fd = 0; /* another process's number says nothing */
    if (o->hosts.hosted && !g->ways->in_place) {
        sl_model_spec m;
        sl_status st = sl_model_read_spec(o->folder, &m, NULL, err);
        if (st != SL_OK) return st;
        j.open.hosted_bytes = hosted_bytes(&m);
    }
    return gang_do(g, &j, err);
}

sl_status sl_gang_open(const sl_device_opts *o, sl_device **out, sl_err *err) {
    static const sl_device_ops ops = {.close = gang_close,
                                      .submit = gang_submit,
                                      .poll = gang_poll,
                                      .take = gang_take,
                                      .give = gang_give,
                                      .host = gang_host,
                                      .read_page = gang_read_page,
                                      .write_page = gang_write_page,
                                      .share = gang_share,
                                      .ranks_ns = gang_ranks_ns,
                                      .tend = gang_tend,
                                      .rail = gang_rail_word,
                                      .gather = gang_gather,
                                      .settle = gang_settle};
    static const gang_ways *const ways[SL_RANK_KIND_COUNT] = {[SL_RANKS_THREADS] = &gang_threads,
                                                              [SL_RANKS_PROCESSES] =
                                                                  &gang_processes,
                                                              [SL_RANKS_MACHINES] = &gang_machines};
    const bool pipeline = o->pipeline > 1; /* of machines: their ranks have blocks */
    const uint32_t n = pipeline ? o->pipeline : o->ranks;
    if (!pipeline && !sl_ranks_can_be(n))
        return sl_fail(err, SL_ERR_ARG, "a gang of %u ranks: 1, 2, 4 or 8", n);
    if (o->device->kind != SL_DEVICE_CPU)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "a gang of %u ranks: their devices can only be cpu",
                       n);
    gang *g = sl_alloc(1, sizeof *g);
    if (!g) return sl_fail(err, SL_ERR_NOMEM, "a gang of %u ranks", n);
    g->ways = ways[o->rank_kind];
    g->base = (sl_device){.ops = &ops, .in_place = g->ways->in_place, .resumes = true};
    g->n = n;
    g->own.is = (sl_rank){0, n};
    g->apart = o->apart && !g->ways->apart && sched_getaffinity(0, sizeof g->cpus, &g->cpus) == 0;
    if (g->ways->apart && !pipeline) g->own.routed = o->routed, g->own.routed_ctx = o->ctx;
    g->spreads = o->spreads && g->ways->apart && !pipeline;
    g->spread_rows = o->spread_rows;
    sl_status st = g->ways->start(g, o, err);
    if (st == SL_OK) st = open_ranks(g, o, err);
    if (st != SL_OK) {
        gang_close(&g->base);
        return st;
    }
    g->base.spec = sl_cpu_stored_of(g->own.device);
    g->base.sharers = g->own.device->sharers;
    g->base.inside = g->base.inside_exact = g->base.inside_f32 = g->own.device->inside && !pipeline;
    g->base.mtp = g->own.device->mtp;
    if (g->spreads) g->base.spreads = g->own.board->report[0].out.n;
    g->base.kept = o->kv_fd && o->kv_pages && g->ways->in_place;
    note_who_idles(g);
    if (g->own.coll) g->opened_ns = sl_coll_spent_ns(g->own.coll);
    *out = &g->base;
    return SL_OK;
}
