/* Ranks of a pipeline that are threads of this process, each with a device of its own: calls go to
 * them through a ring, and rows lie where they are. */
#include "stage/gang/pipeline.h"

#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define TASKS    256u   /* that a rank can hold; a power of two */
#define POLL_NS  30000u /* as the threads of a pool */
#define PAUSE_NS 50000  /* between two looks for what a rank does alone */

typedef enum task_kind { TASK_OPEN, TASK_CALL, TASK_HOST, TASK_LEAVE } task_kind;

typedef struct task {
    task_kind kind;
    sl_stage_call call;
    pipeline_ids ids; /* of INSIDE */
    uint32_t queue;   /* of the pipeline's, that the call is of */
    struct {
        const uint8_t *hosted;
        uint32_t max_pairs;
        bool patient;
    } host;
} task;

typedef struct runner {
    pipeline *of;
    sl_rank is;
    pthread_t thread;
    bool started;
    sl_device_opts opts; /* until it has opened its device */
    sl_device *device;   /* the thread's, but for pages at rest */
    task ring[TASKS];
    _Alignas(64) _Atomic uint64_t given; /* by the owner; */
    _Atomic bool sleeps;                 /* the thread waits for more */
    _Alignas(64) _Atomic uint64_t done;  /* by the thread */
    uint64_t told;                       /* of these, what the owner has said */
    sl_status status;                    /* of the last task that was no call */
    sl_err err;
    sl_hosting left;
    pthread_mutex_t lock; /* of sleeping */
    pthread_cond_t more;
} runner;

typedef struct crew {
    runner *rank[SL_MAX_RANKS]; /* but for the first */
    void (*tick)(void *ctx);
    uint32_t tick_us;
} crew;

/* ---- the thread ---- */

static bool has_more(const runner *r, uint64_t taken) {
    return atomic_load(&r->given) > taken;
}

/* A giver counts before it looks for a sleeper, who says that it sleeps before it looks once more,
 * both sequentially consistent: one sees the other. */
static void await(runner *r, uint64_t taken) {
    const bool polls = sysconf(_SC_NPROCESSORS_ONLN) >= (long)r->is.of;
    const uint64_t until_ns = sl_now_ns() + (polls ? POLL_NS : 0);
    while (!has_more(r, taken) && sl_now_ns() < until_ns) sched_yield();
    if (has_more(r, taken)) return;
    pthread_mutex_lock(&r->lock);
    atomic_store(&r->sleeps, true);
    while (!has_more(r, taken)) pthread_cond_wait(&r->more, &r->lock);
    atomic_store(&r->sleeps, false);
    pthread_mutex_unlock(&r->lock);
}

static void open_its(runner *r) {
    r->status = r->opts.apart ? gang_take_cores(r->is, r->opts.threads, &r->err) : SL_OK;
    if (r->status == SL_OK) r->status = sl_cpu_open(&r->opts, &r->device, &r->err);
}

static void *run(void *arg) {
    runner *r = arg;
    for (uint64_t taken = 0;; taken++) {
        await(r, taken);
        task *t = &r->ring[taken % TASKS];
        if (t->kind == TASK_LEAVE) break;
        if (t->kind == TASK_OPEN) open_its(r);
        if (t->kind == TASK_CALL) sl_device_submit(r->device, &t->call);
        if (t->kind == TASK_HOST)
            r->status = sl_device_host(r->device, t->host.hosted, t->host.max_pairs,
                                       t->host.patient, &r->left, &r->err);
        atomic_store_explicit(&r->done, taken + 1, memory_order_release);
    }
    sl_device_close(r->device);
    return NULL;
}

/* ---- the owner ---- */

static task *next_task(runner *r) {
    const uint64_t given = atomic_load_explicit(&r->given, memory_order_relaxed);
    return given - r->told < TASKS ? &r->ring[given % TASKS] : NULL;
}

static void give_task(runner *r) {
    atomic_fetch_add(&r->given, 1);
    if (!atomic_load(&r->sleeps)) return;
    pthread_mutex_lock(&r->lock);
    pthread_cond_signal(&r->more);
    pthread_mutex_unlock(&r->lock);
}

static uint32_t give(pipeline *p, uint32_t rank, const sl_stage_call *c, uint32_t n) {
    runner *r = ((crew *)p->others)->rank[rank];
    for (uint32_t i = 0; i < n; i++) {
        task *t = next_task(r);
        if (!t) return i;
        t->kind = TASK_CALL;
        t->call = c[i];
        t->queue = c[i].queue;
        if (c[i].op == SL_OP_INSIDE && !pipeline_ids_for(p, &t->ids, &t->call)) return i;
        give_task(r);
    }
    return n;
}

static void poll_one(pipeline *p, runner *r) {
    const uint64_t done = atomic_load_explicit(&r->done, memory_order_acquire);
    while (r->told < done) {
        const task *t = &r->ring[r->told++ % TASKS];
        if (t->kind == TASK_CALL) pipeline_ran(p, t->queue, t->ids.expert);
    }
}

static void poll(pipeline *p) {
    crew *c = p->others;
    for (uint32_t i = 1; i < p->n; i++) poll_one(p, c->rank[i]);
}

/* Until the rank has done all that it was given. */
static void rest(pipeline *p, runner *r) {
    const crew *c = p->others;
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    uint64_t ticked_ns = sl_now_ns();
    for (;;) {
        poll_one(p, r);
        if (r->told == atomic_load_explicit(&r->given, memory_order_relaxed)) return;
        (void)nanosleep(&pause, NULL);
        const uint64_t now_ns = sl_now_ns();
        if (!c->tick || now_ns - ticked_ns < c->tick_us * UINT64_C(1000)) continue;
        ticked_ns = now_ns;
        c->tick(p->ctx);
    }
}

static sl_status host(pipeline *p, uint32_t rank, const uint8_t *hosted, uint32_t max_pairs,
                      bool patient, sl_hosting *left, sl_err *err) {
    runner *r = ((crew *)p->others)->rank[rank];
    rest(p, r);
    task *t = next_task(r);
    t->kind = TASK_HOST;
    t->host.hosted = hosted;
    t->host.max_pairs = max_pairs;
    t->host.patient = patient;
    give_task(r);
    rest(p, r);
    *left = r->left;
    if (r->status != SL_OK) *err = r->err;
    return r->status;
}

/* No call in flight touches these pages. */
static void page(pipeline *p, uint32_t rank, const gang_job *j) {
    sl_device *d = ((crew *)p->others)->rank[rank]->device;
    if (j->kind == GANG_READ)
        d->ops->read_page(d, j->page.page, j->page.first, j->page.n, j->page.blocks);
    else
        d->ops->write_page(d, j->page.page, j->page.first, j->page.n, j->page.blocks);
}

/* ---- beginnings and ends ---- */

static sl_status start_one(pipeline *p, const sl_device_opts *o, uint32_t rank, sl_err *err) {
    runner *r = sl_alloc(1, sizeof *r);
    if (!r) return sl_fail(err, SL_ERR_NOMEM, "rank %u of %u", rank, p->n);
    ((crew *)p->others)->rank[rank] = r;
    r->of = p;
    r->is = (sl_rank){rank, p->n};
    r->opts = pipeline_rank_opts(p, o, rank);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->more, NULL);
    next_task(r)->kind = TASK_OPEN;
    give_task(r);
    const int e = pthread_create(&r->thread, NULL, run, r);
    if (e)
        return sl_fail(err, SL_ERR_LIMIT, "rank %u of %u does not start: error %d", rank, p->n, e);
    r->started = true;
    return SL_OK;
}

static sl_status start(pipeline *p, const sl_device_opts *o, sl_err *err) {
    crew *c = p->others = sl_alloc(1, sizeof *c);
    if (!c) return sl_fail(err, SL_ERR_NOMEM, "a pipeline of %u ranks", p->n);
    c->tick = o->tick;
    c->tick_us = o->tick_us;
    sl_status st = SL_OK;
    for (uint32_t i = 1; st == SL_OK && i < p->n; i++) st = start_one(p, o, i, err);
    return st;
}

static sl_status opened(pipeline *p, sl_err *err) {
    for (uint32_t i = 1; i < p->n; i++) {
        runner *r = ((crew *)p->others)->rank[i];
        rest(p, r);
        r->opts = (sl_device_opts){0}; /* what it pointed to is the caller's */
        if (r->status == SL_OK) continue;
        *err = r->err;
        return sl_err_prefix(err, "rank %u of %u", i, p->n);
    }
    return SL_OK;
}

static void stop_one(pipeline *p, runner *r) {
    if (!r) return;
    if (r->started) {
        rest(p, r);
        next_task(r)->kind = TASK_LEAVE;
        give_task(r);
        pthread_join(r->thread, NULL);
    }
    for (uint32_t i = 0; i < TASKS; i++) pipeline_ids_free(&r->ring[i].ids);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->more);
    sl_free(r);
}

static void stop(pipeline *p) {
    crew *c = p->others;
    for (uint32_t i = 1; c && i < p->n; i++) stop_one(p, c->rank[i]);
    sl_free(c);
}

const pipeline_ways pipeline_threads = {.in_place = true,
                                        .start = start,
                                        .opened = opened,
                                        .give = give,
                                        .poll = poll,
                                        .host = host,
                                        .page = page,
                                        .stop = stop,
                                        .take = sl_host_take,
                                        .give_back = sl_host_give};
