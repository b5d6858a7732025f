/* Ranks of a pipeline that are processes on other machines: a gang of machines (machines.c) whose
 * ranks have blocks. Calls on the same rows that follow each other go as one job, with the rows
 * that its first one reads, and its last one's rows come back.
 *
 * Where the next rank goes on with these rows both have their jobs at once, and the rows go
 * straight from the one to the other. Jobs of such a chain are given all together or not at all, so
 * chains have one order, at all ranks, and each rank does jobs in the order in which they were
 * given. So a job waits only for jobs that were given before it, here or at ranks before this one:
 * there is no circle, nobody is overtaken, and rows come in the order in which jobs ask for them.
 * Other orders gain nothing while all lanes have whole blocks: the rows of the chain behind are
 * later. */
#include "stage/gang/machines.h"
#include "stage/gang/pipeline.h"

#include "base/mem.h"
#include "stage/gang/link.h"

/* Calls that a rank has been given as one job. */
typedef struct under_way {
    gang_job job; /* as it was given */
    uint64_t number;
    uint64_t first; /* of its calls, in the queue */
    uint32_t queue, n_calls;
    pipeline_ids ids; /* what its blocks inside chose, one behind the other */
    gang_step *step;
    uint32_t cap; /* of steps */
} under_way;

typedef struct crew {
    gang *gang;
    /* Rings by rank: those from `told` to `given` are under way. */
    under_way ring[SL_MAX_RANKS][GANG_MOST_JOBS];
    uint64_t given[SL_MAX_RANKS], told[SL_MAX_RANKS];
    size_t wants; /* so large a job waits until none is under way; 0: none does */
} crew;

/* ---- giving ---- */

static bool is_step(sl_stage_op op) {
    return op == SL_OP_ATTEND || op == SL_OP_DENSE || op == SL_OP_ROUTE || op == SL_OP_INSIDE;
}

/* How many of n calls are one run: steps on the same rows, a router last. */
static uint32_t length_of_run(const pipeline_queue *q, uint64_t first, uint32_t n) {
    const sl_rowset *rows = &pipeline_call(q, first)->rows;
    for (uint32_t i = 0; i < n; i++) {
        const sl_stage_call *c = pipeline_call(q, first + i);
        if (!is_step(c->op) || c->rows.n != rows->n || c->rows.x.at != rows->x.at) return i;
        if (c->op == SL_OP_ROUTE) return i + 1;
    }
    return n;
}

static bool reserve_steps(under_way *u, uint32_t n) {
    if (n <= u->cap) return true;
    gang_step *more = sl_grow(u->step, u->cap, n, sizeof *more);
    if (!more) return false;
    u->step = more;
    u->cap = n;
    return true;
}

/* The calls as one job. False: no memory, and the device has failed. */
static bool make_run(pipeline *p, under_way *u, const pipeline_queue *q, uint32_t n) {
    uint32_t inside = 0;
    sl_err err;
    u->n_calls = n;
    if (!reserve_steps(u, n)) {
        sl_fail(&err, SL_ERR_NOMEM, "a run of %u calls", n);
        pipeline_fails(p, SL_ERR_NOMEM, &err);
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        const sl_stage_call *c = pipeline_call(q, u->first + i);
        u->step[i] = (gang_step){c->op, c->layer};
        inside += c->op == SL_OP_INSIDE;
    }
    u->job =
        (gang_job){.kind = GANG_RUN,
                   .run = {.call = *pipeline_call(q, u->first), .step = u->step, .n_steps = n}};
    sl_rowset *rows = &u->job.run.call.rows;
    /* For all blocks inside and, where the caller has no room, once more. */
    if (!pipeline_ids_for(p, &u->ids, (size_t)rows->n * (inside + 1))) return false;
    if (inside) u->job.run.chosen = u->ids.expert;
    if (!rows->expert)
        rows->expert = u->ids.expert + (size_t)inside * rows->n * p->base.spec->top_k;
    if (!rows->gate) rows->gate = u->ids.gate;
    return true;
}

/* Of the n calls from `first` on as many as can be one. */
static bool make_job(pipeline *p, under_way *u, const pipeline_queue *q, uint64_t first,
                     uint32_t n) {
    const sl_stage_call *c = pipeline_call(q, first);
    u->first = first;
    u->queue = c->queue;
    if (is_step(c->op) && c->rows.n > 0) return make_run(p, u, q, length_of_run(q, first, n));
    u->job = (gang_job){.kind = GANG_CALL, .call = *c};
    u->n_calls = 1;
    return true;
}

/* Jobs of the legs, each its rank's next. False: not now, or never. */
static bool make_jobs(pipeline *p, const pipeline_queue *q, const pipeline_leg *leg, uint32_t n,
                      under_way *of[SL_MAX_RANKS]) {
    crew *x = p->others;
    uint64_t first = q->given;
    for (uint32_t i = 0; i < n; first += leg[i++].n) {
        const uint32_t rank = leg[i].rank;
        if (x->given[rank] - x->told[rank] == GANG_MOST_JOBS) return false;
        of[i] = &x->ring[rank][x->given[rank] % GANG_MOST_JOBS];
        if (!make_job(p, of[i], q, first, leg[i].n)) return false;
        if (n > 1) of[i]->job.run.hands_on = i + 1 < n;
    }
    return true;
}

/* Nobody is given more until what waits for room has it: else it would wait as long as others have
 * work. */
static bool makes_room(pipeline *p, under_way *const *of, uint32_t n) {
    crew *x = p->others;
    for (uint32_t i = 0; i < n; i++)
        x->wants = SL_MAX(x->wants, gang_machines_lack(x->gang, &of[i]->job));
    if (!x->wants) return true;
    if (p->with_others || p->computes) return false;
    gang_machines_reserve(x->gang, x->wants);
    x->wants = 0;
    return true;
}

static uint32_t give(pipeline *p, const pipeline_queue *q, const pipeline_leg *leg, uint32_t n) {
    crew *x = p->others;
    under_way *of[SL_MAX_RANKS];
    uint32_t calls = 0;
    if (!make_jobs(p, q, leg, n, of) || !makes_room(p, of, n)) return 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0) of[i]->job.run.before = of[i - 1]->number;
        of[i]->number = gang_machines_give(x->gang, leg[i].rank, &of[i]->job);
        x->given[leg[i].rank]++;
        calls += of[i]->n_calls;
    }
    return calls;
}

/* ---- what comes back ---- */

static void tell(pipeline *p, const under_way *u) {
    const uint32_t *chosen = u->job.kind == GANG_RUN ? u->job.run.chosen : NULL;
    const size_t n = (size_t)u->job.run.call.rows.n * p->base.spec->top_k;
    for (uint32_t i = 0; i < u->n_calls; i++) {
        const bool inside = u->job.kind == GANG_RUN && u->step[i].op == SL_OP_INSIDE;
        pipeline_ran(p, u->queue, chosen, NULL);
        if (inside) chosen += n;
    }
}

static void poll(pipeline *p) {
    crew *x = p->others;
    x->gang->base.ops->tend(&x->gang->base);
    for (uint32_t i = 1; i < p->n; i++) {
        while (x->told[i] < x->given[i] && gang_machines_have_answer(x->gang, i)) {
            under_way *u = &x->ring[i][x->told[i] % GANG_MOST_JOBS];
            if (!pipeline_is_next(p, u->queue, u->first)) break;
            gang_machines_take_answer(x->gang, i, u->number, &u->job);
            x->told[i]++;
            tell(p, u);
        }
    }
}

/* ---- what all ranks do ---- */

static sl_status host(pipeline *p, const uint8_t *hosted, uint32_t max_pairs, bool patient,
                      sl_hosting *left, sl_err *err) {
    pipeline_rest(p);
    return sl_device_host(&((crew *)p->others)->gang->base, hosted, max_pairs, patient, left, err);
}

static void page(pipeline *p, uint32_t rank, const gang_job *j) {
    (void)rank;
    pipeline_rest(p);
    gang_page_of(&((crew *)p->others)->gang->base, j);
}

static sl_status take(sl_device *base, size_t bytes, sl_mem *out, sl_err *err) {
    pipeline *p = (pipeline *)base;
    sl_device *d = &((crew *)p->others)->gang->base;
    pipeline_rest(p);
    return d->ops->take(d, bytes, out, err);
}

static void give_back(sl_device *base, sl_mem m) {
    pipeline *p = (pipeline *)base;
    sl_device *d = &((crew *)p->others)->gang->base;
    pipeline_rest(p);
    d->ops->give(d, m);
}

static void tend(pipeline *p) {
    sl_device_tend(&((crew *)p->others)->gang->base);
}

/* ---- beginnings and ends ---- */

static sl_status open(pipeline *p, const sl_device_opts *o, sl_err *err) {
    crew *x = p->others = sl_alloc(1, sizeof *x);
    sl_device *d = NULL;
    if (!x) return sl_fail(err, SL_ERR_NOMEM, "a pipeline of %u ranks", p->n);
    sl_device_opts all = *o;
    all.tick = pipeline_tick;
    all.ctx = p;
    sl_status st = sl_gang_open(&all, &d, err);
    if (st != SL_OK) return st;
    x->gang = (gang *)d;
    p->own = x->gang->own.device;
    return SL_OK;
}

static void close_all(pipeline *p) {
    crew *x = p->others;
    if (!x) return;
    if (x->gang) sl_device_close(&x->gang->base);
    for (uint32_t r = 0; r < SL_MAX_RANKS; r++) {
        for (uint32_t i = 0; i < GANG_MOST_JOBS; i++) {
            pipeline_ids_free(&x->ring[r][i].ids);
            sl_free(x->ring[r][i].step);
        }
    }
    sl_free(x);
}

const pipeline_ways pipeline_machines = {.apart = true,
                                         .straight = true,
                                         .open = open,
                                         .give = give,
                                         .poll = poll,
                                         .host = host,
                                         .page = page,
                                         .close = close_all,
                                         .take = take,
                                         .give_back = give_back,
                                         .tend = tend};
