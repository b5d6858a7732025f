/* A pipeline: ranks that compute as one device, each with some of the blocks on a device of its own
 * (docs/pipeline.md). The caller's thread is rank 0, which has the embedding and the head, too.
 * Calls go to whoever has their block. Those of one queue run in their order, whichever ranks they
 * are of; those of different queues meet at a rank in the order in which they came there. So with
 * as many lanes as ranks all ranks have something to do. */
#include "stage/gang/pipeline.h"

#include "base/clock.h"
#include "base/mem.h"

#include <sched.h>
#include <string.h>
#include <time.h>

/* While ranks compute the caller polls; nothing having come for so long, it sleeps between two
 * looks. */
#define RESTS_NS 300000u
#define REST_NS  30000
/* Polls without a new call after which none is expected: an engine's block takes some turns of its
 * worker's loop, in which it has nothing to submit. */
#define QUIET_POLLS 8u

void pipeline_fails(pipeline *p, sl_status st, const sl_err *err) {
    if (p->fails != SL_OK) return;
    p->fails = st;
    p->failure = *err;
}

/* Whoever drives the device hears of it when no rank uses the calls' memory any more. */
static bool has_failed(pipeline *p) {
    if (p->fails == SL_OK) return false;
    if (p->with_others == 0 && p->base.failed == SL_OK) {
        p->base.failure = p->failure;
        p->base.failed = p->fails;
    }
    return true;
}

/* ---- what routers chose ---- */

bool pipeline_ids_for(pipeline *p, pipeline_ids *ids, size_t n) {
    const size_t pairs = SL_MAX(n * p->base.spec->top_k, (size_t)1);
    sl_err err;
    if (pairs <= ids->cap) return true;
    pipeline_ids_free(ids);
    ids->expert = sl_alloc(pairs, sizeof *ids->expert);
    ids->gate = sl_alloc(pairs, sizeof *ids->gate);
    if (ids->expert && ids->gate) {
        ids->cap = pairs;
        return true;
    }
    sl_fail(&err, SL_ERR_NOMEM, "experts of %zu pairs", pairs);
    pipeline_fails(p, SL_ERR_NOMEM, &err);
    return false;
}

void pipeline_ids_free(pipeline_ids *ids) {
    sl_free(ids->expert);
    sl_free(ids->gate);
    *ids = (pipeline_ids){0};
}

/* ---- queues ---- */

/* Room for one more; false: no memory. */
static bool reserve(pipeline_queue *q) {
    const uint64_t held = q->submitted - q->done;
    if (held < q->cap) return true;
    const uint32_t cap = q->cap ? q->cap * 2 : 64;
    sl_stage_call *bigger = sl_alloc(cap, sizeof *bigger);
    if (!bigger) return false;
    for (uint64_t i = q->done; i < q->submitted; i++) bigger[i & (cap - 1)] = *pipeline_call(q, i);
    sl_free(q->call);
    q->call = bigger;
    q->cap = cap;
    return true;
}

/* Rows that only move are rank 0's, as are the ends of the model, but for the block behind it. */
static uint32_t rank_of(const pipeline *p, const sl_stage_call *c) {
    switch (c->op) {
    case SL_OP_ATTEND:
    case SL_OP_DENSE:
    case SL_OP_ROUTE:
    case SL_OP_SHARED:
    case SL_OP_EXPERTS:
    case SL_OP_INSIDE:
        return p->rank_of[c->layer];
    case SL_OP_MTP:
        return p->n - 1;
    default:
        return 0;
    }
}

/* Blocks inside of one queue write over each other: their last one's choices stay. */
static void leave_choice(const pipeline *p, const sl_stage_call *c, const uint32_t *expert,
                         const float *gate) {
    const size_t n = (size_t)c->rows.n * p->base.spec->top_k;
    if (!gate || !c->rows.expert || !c->rows.gate) return;
    memcpy(c->rows.expert, expert, n * sizeof *expert);
    memcpy(c->rows.gate, gate, n * sizeof *gate);
}

void pipeline_ran(pipeline *p, uint32_t queue, const uint32_t *expert, const float *gate) {
    pipeline_queue *q = &p->queue[queue];
    const sl_stage_call *c = pipeline_call(q, q->done);
    SL_ASSERT(q->done < q->given && c->queue == queue);
    if (c->op == SL_OP_INSIDE) {
        if (p->routed) p->routed(p->ctx, c->layer, c->rows.n, expert);
        leave_choice(p, c, expert, gate);
    }
    q->done++;
    p->with_others -= q->rank > 0;
    sl_device_ran(&p->base, queue);
    p->moved_ns = sl_now_ns();
}

static void run_own(pipeline *p, pipeline_queue *q) {
    sl_stage_call c = *pipeline_call(q, q->given);
    if (c.op == SL_OP_INSIDE) {
        if (!pipeline_ids_for(p, &p->ids, c.rows.n)) return;
        c.rows.expert = p->ids.expert;
        c.rows.gate = p->ids.gate;
    }
    q->rank = 0;
    q->given++;
    p->computes = true;
    sl_device_submit(p->own, &c);
    p->computes = false;
    pipeline_ran(p, c.queue, p->ids.expert, p->ids.gate);
}

/* The calls from there on that are one rank's. */
static pipeline_leg leg_from(const pipeline *p, const pipeline_queue *q, uint64_t first) {
    const uint32_t rank = rank_of(p, pipeline_call(q, first));
    uint64_t i = first + 1;
    while (i < q->submitted && rank_of(p, pipeline_call(q, i)) == rank) i++;
    return (pipeline_leg){rank, (uint32_t)(i - first)};
}

/* Blocks as a whole, on the same rows: nothing between them is another rank's. */
static bool are_blocks(const pipeline_queue *q, uint64_t first, uint64_t end) {
    const sl_rowset *rows = &pipeline_call(q, first)->rows;
    for (uint64_t i = first; i < end; i++) {
        const sl_stage_call *c = pipeline_call(q, i);
        const bool block = c->op == SL_OP_ATTEND || c->op == SL_OP_DENSE || c->op == SL_OP_INSIDE;
        if (!block || c->rows.n != rows->n || c->rows.x.at != rows->x.at) return false;
    }
    return rows->n > 0;
}

/* The queue's next calls, up to those that need rows which have come back to rank 0. */
static uint32_t legs_of(const pipeline *p, const pipeline_queue *q, pipeline_leg *leg) {
    uint64_t at = q->given, next;
    uint32_t n = 0;
    leg[n++] = leg_from(p, q, at);
    while (p->ways->straight && sl_pipeline_hands_on((sl_rank){leg[n - 1].rank, p->n}) &&
           (next = at + leg[n - 1].n) < q->submitted) {
        const pipeline_leg to = leg_from(p, q, next);
        if (to.rank != leg[n - 1].rank + 1 || !are_blocks(q, at, next + to.n)) break;
        leg[n++] = to;
        at = next;
    }
    return n;
}

/* Gives calls to the other ranks as far as the order of the queue allows; notes that it is rank 0's
 * turn. */
static void pump_one(pipeline *p, pipeline_queue *q) {
    pipeline_leg leg[SL_MAX_RANKS];
    while (q->given < q->submitted && p->fails == SL_OK) {
        const uint32_t rank = rank_of(p, pipeline_call(q, q->given));
        if (q->given > q->done && (rank != q->rank || p->ways->apart)) return;
        if (rank == 0) {
            if (!q->ready) q->ready = ++p->turns;
            return;
        }
        const uint32_t n_legs = legs_of(p, q, leg), n = p->ways->give(p, q, leg, n_legs);
        if (n == 0) return;
        q->rank = leg[n_legs - 1].rank;
        q->given += n;
        p->with_others += n;
    }
}

static void pump(pipeline *p) {
    for (uint32_t i = 0; i < SL_STAGE_QUEUES; i++) pump_one(p, &p->queue[i]);
}

/* One call of rank 0's; false: it has none. A queue that has begun goes on as far as rank 0 has its
 * calls: its rows are then with the next rank while this one computes another queue's. Side by
 * side, both would come there late, and together. */
static bool run_next(pipeline *p) {
    pipeline_queue *next = NULL;
    for (uint32_t i = 0; i < SL_STAGE_QUEUES; i++) {
        pipeline_queue *q = &p->queue[i];
        if (q->ready && (!next || q->ready < next->ready)) next = q;
    }
    if (!next) return false;
    const uint64_t turn = next->ready;
    run_own(p, next);
    next->ready = 0;
    pump_one(p, next);
    if (next->ready) next->ready = turn;
    return true;
}

/* ---- the device ---- */

static void pipeline_submit(sl_device *base, const sl_stage_call *c) {
    pipeline *p = (pipeline *)base;
    pipeline_queue *q = &p->queue[c->queue];
    sl_err err;
    if (p->fails != SL_OK) return; /* never through */
    if (!reserve(q)) {
        sl_fail(&err, SL_ERR_NOMEM, "calls of a pipeline");
        pipeline_fails(p, SL_ERR_NOMEM, &err);
        return;
    }
    *pipeline_call(q, q->submitted++) = *c;
    p->quiet = 0;
}

/* Who has submitted has more to submit, perhaps a word to itself later: calls go when it has not,
 * so that those of one queue go together. */
static void pipeline_poll(sl_device *base) {
    pipeline *p = (pipeline *)base;
    const struct timespec rest = {.tv_nsec = REST_NS};
    p->ways->poll(p);
    if (has_failed(p)) return;
    if (p->quiet < QUIET_POLLS) {
        p->quiet++;
        return;
    }
    pump(p);
    if (run_next(p)) return;
    if (p->tick) p->tick(p->ctx); /* whoever drains the device does nothing else */
    if (p->ways->rest)
        p->ways->rest(p);
    else if (sl_now_ns() - p->moved_ns < RESTS_NS)
        sched_yield();
    else
        (void)nanosleep(&rest, NULL);
}

void pipeline_go_on(pipeline *p) {
    if (!p->computes || p->fails != SL_OK) return;
    p->ways->poll(p);
    pump(p);
}

void pipeline_tick(void *ctx) {
    pipeline *p = ctx;
    if (p->tick) p->tick(p->ctx);
    pipeline_go_on(p);
}

void pipeline_rest(pipeline *p) {
    const struct timespec rest = {.tv_nsec = REST_NS};
    while (p->with_others) {
        p->ways->poll(p);
        if (p->tick) p->tick(p->ctx);
        if (p->with_others) (void)nanosleep(&rest, NULL);
    }
}

static sl_status pipeline_host(sl_device *base, const uint8_t *hosted, uint32_t max_pairs,
                               bool patient, sl_hosting *left, sl_err *err) {
    pipeline *p = (pipeline *)base;
    return p->ways->host(p, hosted, max_pairs, patient, left, err);
}

/* Each rank's part of the blocks. */
static void each_part(pipeline *p, gang_job j) {
    const size_t block = sl_kv_block_bytes(p->base.spec);
    const uint32_t end = j.page.first + j.page.n;
    uint8_t *at = (uint8_t *)j.page.blocks;
    while (j.page.first < end) {
        const uint32_t rank = p->rank_of[j.page.first];
        const sl_extent has = p->blocks[rank];
        j.page.n = SL_MIN(end, has.first + has.n) - j.page.first;
        j.page.blocks = (float *)(void *)at;
        j.page.bytes = j.page.n * block;
        if (rank > 0)
            p->ways->page(p, rank, &j);
        else
            gang_page_of(p->own, &j);
        at += j.page.bytes;
        j.page.first += j.page.n;
    }
}

static void pipeline_read_page(sl_device *base, uint32_t page, uint32_t first, uint32_t n,
                               void *to) {
    each_part((pipeline *)base,
              (gang_job){.kind = GANG_READ,
                         .page = {.page = page, .first = first, .n = n, .blocks = to}});
}

static void pipeline_write_page(sl_device *base, uint32_t page, uint32_t first, uint32_t n,
                                const void *from) {
    each_part(
        (pipeline *)base,
        (gang_job){
            .kind = GANG_WRITE,
            .page = {.page = page, .first = first, .n = n, .blocks = (void *)(uintptr_t)from}});
}

static sl_status pipeline_take(sl_device *base, size_t bytes, sl_mem *out, sl_err *err) {
    return ((pipeline *)base)->ways->take(base, bytes, out, err);
}

static void pipeline_give_back(sl_device *base, sl_mem m) {
    ((pipeline *)base)->ways->give_back(base, m);
}

static void pipeline_tend(sl_device *base) {
    pipeline *p = (pipeline *)base;
    if (p->ways->tend) p->ways->tend(p);
}

/* ---- opening and closing ---- */

static void pipeline_close(sl_device *base) {
    pipeline *p = (pipeline *)base;
    p->ways->close(p);
    for (uint32_t i = 0; i < SL_STAGE_QUEUES; i++) sl_free(p->queue[i].call);
    pipeline_ids_free(&p->ids);
    sl_free(p);
}

static void pipeline_share(sl_device *base, size_t n, sl_pool_fn fn, void *ctx) {
    sl_device_share(((pipeline *)base)->own, n, fn, ctx);
}

/* Which rank has what. */
static void learn(pipeline *p, const sl_device_opts *o) {
    p->base.spec = p->own->spec;
    p->base.resumes = p->own->resumes;
    p->base.sharers = p->own->sharers;
    p->base.inside = p->base.inside_exact = p->own->inside;
    p->base.mtp = o->hosts.mtp && o->hosts.attention;
    for (uint32_t i = 0; i < p->n; i++) {
        p->blocks[i] = sl_pipeline_blocks(p->base.spec, (sl_rank){i, p->n}, p->base.mtp);
        memset(p->rank_of + p->blocks[i].first, (int)i, p->blocks[i].n);
    }
}

sl_status sl_pipeline_open(const sl_device_opts *o, sl_device **out, sl_err *err) {
    static const sl_device_ops ops = {.close = pipeline_close,
                                      .submit = pipeline_submit,
                                      .poll = pipeline_poll,
                                      .take = pipeline_take,
                                      .give = pipeline_give_back,
                                      .host = pipeline_host,
                                      .read_page = pipeline_read_page,
                                      .write_page = pipeline_write_page,
                                      .share = pipeline_share,
                                      .tend = pipeline_tend};
    static const pipeline_ways *const ways[SL_RANK_KIND_COUNT] = {
        [SL_RANKS_THREADS] = &pipeline_threads, [SL_RANKS_MACHINES] = &pipeline_machines};
    if (o->pipeline > SL_MAX_RANKS)
        return sl_fail(err, SL_ERR_ARG, "a pipeline of %u ranks: up to %u", o->pipeline,
                       SL_MAX_RANKS);
    const bool gangs = o->ranks > 1, modelled = sl_device_is_modelled(o->device);
    if ((o->device->kind != SL_DEVICE_CPU && !modelled) || !ways[o->rank_kind] ||
        (gangs && o->rank_kind != SL_RANKS_THREADS))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "a pipeline of %u ranks: they can only be threads or machines, gangs of %u "
                       "threads, on cpu",
                       o->pipeline, SL_MAX(o->ranks, 1u));
    pipeline *p = sl_alloc(1, sizeof *p);
    if (!p) return sl_fail(err, SL_ERR_NOMEM, "a pipeline of %u ranks", o->pipeline);
    p->ways = modelled ? &pipeline_emulated : ways[o->rank_kind];
    p->base = (sl_device){.ops = &ops, .in_place = p->ways->in_place};
    p->n = o->pipeline;
    p->tick = o->tick;
    p->routed = o->routed;
    p->ctx = o->ctx;
    sl_status st = p->ways->open(p, o, err);
    if (st == SL_OK && p->own->spec->n_linear && !modelled)
        st = sl_fail(err, SL_ERR_UNSUPPORTED,
                     "a pipeline of %u ranks: %s has linear attention, whose states have no parts",
                     p->n, p->own->spec->arch);
    if (st != SL_OK) {
        pipeline_close(&p->base);
        return st;
    }
    learn(p, o);
    *out = &p->base;
    return SL_OK;
}
