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

typedef enum task_kind { TASK_OPEN, TASK_CALL, TASK_HOST, TASK_PAGE, TASK_LEAVE } task_kind;

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
    const gang_job *page;
} task;

typedef struct runner {
    sl_rank is;
    pthread_t thread;
    bool started;
    sl_device_opts opts; /* until it has opened its device */
    sl_device *device;   /* the thread's, but for pages of one that is no gang */
    bool gang;
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
    uint32_t tick_us;
    cpu_set_t cpus; /* that the owner could use before it took rank 0's, if `apart` */
    bool apart;
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

static sl_status open_device(const sl_device_opts *o, sl_device **out, sl_err *err) {
    return o->ranks > 1 ? sl_gang_open(o, out, err) : sl_cpu_open(o, out, err);
}

static void open_its(runner *r) {
    r->status = r->opts.apart ? gang_take_cores(r->is, r->opts.threads, &r->err) : SL_OK;
    if (r->status == SL_OK) r->status = open_device(&r->opts, &r->device, &r->err);
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
        if (t->kind == TASK_PAGE) gang_page_of(r->device, t->page);
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

static uint32_t give(pipeline *p, const pipeline_queue *q, const pipeline_leg *leg, uint32_t n) {
    runner *r = ((crew *)p->others)->rank[leg->rank];
    SL_ASSERT(n == 1);
    for (uint32_t i = 0; i < leg->n; i++) {
        const sl_stage_call *c = pipeline_call(q, q->given + i);
        task *t = next_task(r);
        if (!t) return i;
        t->kind = TASK_CALL;
        t->call = *c;
        t->queue = c->queue;
        if (c->op == SL_OP_INSIDE) {
            if (!pipeline_ids_for(p, &t->ids, c->rows.n)) return i;
            t->call.rows.expert = t->ids.expert;
            t->call.rows.gate = t->ids.gate;
        }
        give_task(r);
    }
    return leg->n;
}

static void poll_one(pipeline *p, runner *r) {
    const uint64_t done = atomic_load_explicit(&r->done, memory_order_acquire);
    while (r->told < done) {
        const task *t = &r->ring[r->told++ % TASKS];
        if (t->kind == TASK_CALL) pipeline_ran(p, t->queue, t->ids.expert, t->ids.gate);
    }
}

static void poll(pipeline *p) {
    crew *c = p->others;
    for (uint32_t i = 1; i < p->n; i++) poll_one(p, c->rank[i]);
}

/* Until the rank has done all that it was given. */
static void settle(pipeline *p, runner *r) {
    const crew *c = p->others;
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    uint64_t ticked_ns = sl_now_ns();
    for (;;) {
        poll_one(p, r);
        if (r->told == atomic_load_explicit(&r->given, memory_order_relaxed)) return;
        (void)nanosleep(&pause, NULL);
        const uint64_t now_ns = sl_now_ns();
        if (!p->tick || now_ns - ticked_ns < c->tick_us * UINT64_C(1000)) continue;
        ticked_ns = now_ns;
        p->tick(p->ctx);
    }
}

static sl_status host_one(pipeline *p, runner *r, const task *want, sl_hosting *left, sl_err *err) {
    settle(p, r);
    task *t = next_task(r);
    t->kind = TASK_HOST;
    t->host = want->host;
    give_task(r);
    settle(p, r);
    if (r->status == SL_OK) {
        gang_hosting_add(r->left, left);
        return SL_OK;
    }
    *err = r->err;
    return sl_err_prefix(err, "rank %u of %u", r->is.index, r->is.of);
}

static sl_status host(pipeline *p, const uint8_t *hosted, uint32_t max_pairs, bool patient,
                      sl_hosting *left, sl_err *err) {
    const crew *c = p->others;
    const task want = {.host = {hosted, max_pairs, patient}};
    sl_status st = sl_device_host(p->own, hosted, max_pairs, patient, left, err);
    for (uint32_t i = 1; st == SL_OK && i < p->n; i++)
        st = host_one(p, c->rank[i], &want, left, err);
    return st;
}

/* No call in flight touches these pages. Ranks of a gang do what their first one's thread says. */
static void page(pipeline *p, uint32_t rank, const gang_job *j) {
    runner *r = ((crew *)p->others)->rank[rank];
    if (!r->gang) {
        gang_page_of(r->device, j);
        return;
    }
    settle(p, r);
    task *t = next_task(r);
    t->kind = TASK_PAGE;
    t->page = j;
    give_task(r);
    settle(p, r);
}

/* ---- beginnings and ends ---- */

static sl_status start_one(pipeline *p, const sl_device_opts *o, uint32_t rank, sl_err *err) {
    runner *r = sl_alloc(1, sizeof *r);
    if (!r) return sl_fail(err, SL_ERR_NOMEM, "rank %u of %u", rank, p->n);
    ((crew *)p->others)->rank[rank] = r;
    r->is = (sl_rank){rank, p->n};
    r->gang = o->ranks > 1;
    r->opts = *o;
    r->opts.tick = NULL;
    r->opts.progress = NULL; /* ranks read about as much: one speaks for all */
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->more, NULL);
    sl_status st = gang_pipeline_opts(r->is, &r->opts, err);
    if (st != SL_OK) return st;
    next_task(r)->kind = TASK_OPEN;
    give_task(r);
    const int e = pthread_create(&r->thread, NULL, run, r);
    if (e)
        return sl_fail(err, SL_ERR_LIMIT, "rank %u of %u does not start: error %d", rank, p->n, e);
    r->started = true;
    return SL_OK;
}

static sl_status open_own(pipeline *p, const sl_device_opts *o, sl_err *err) {
    sl_device_opts mine = *o;
    mine.tick = pipeline_tick;
    mine.ctx = p;
    sl_status st = gang_pipeline_opts((sl_rank){0, p->n}, &mine, err);
    if (st == SL_OK && mine.apart) st = gang_take_cores((sl_rank){0, p->n}, mine.threads, err);
    return st == SL_OK ? open_device(&mine, &p->own, err) : st;
}

/* Until it has opened its device, or could not. */
static sl_status opened(pipeline *p, runner *r, sl_err *err) {
    settle(p, r);
    r->opts = (sl_device_opts){0}; /* what it pointed to is the caller's */
    if (r->status == SL_OK) return SL_OK;
    *err = r->err;
    return sl_err_prefix(err, "rank %u of %u", r->is.index, r->is.of);
}

static sl_status open(pipeline *p, const sl_device_opts *o, sl_err *err) {
    crew *c = p->others = sl_alloc(1, sizeof *c);
    if (!c) return sl_fail(err, SL_ERR_NOMEM, "a pipeline of %u ranks", p->n);
    c->tick_us = o->tick_us;
    c->apart = o->apart && sched_getaffinity(0, sizeof c->cpus, &c->cpus) == 0;
    sl_device_opts each = *o;
    each.threads = SL_MAX(o->threads / p->n, SL_MAX(o->ranks, 1u));
    each.apart = c->apart;
    sl_status st = SL_OK;
    for (uint32_t i = 1; st == SL_OK && i < p->n; i++) st = start_one(p, &each, i, err);
    if (st == SL_OK) st = open_own(p, &each, err);
    for (uint32_t i = 1; st == SL_OK && i < p->n; i++) st = opened(p, c->rank[i], err);
    return st;
}

static void stop_one(pipeline *p, runner *r) {
    if (!r) return;
    if (r->started) {
        settle(p, r);
        next_task(r)->kind = TASK_LEAVE;
        give_task(r);
        pthread_join(r->thread, NULL);
    }
    for (uint32_t i = 0; i < TASKS; i++) pipeline_ids_free(&r->ring[i].ids);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->more);
    sl_free(r);
}

static void close_all(pipeline *p) {
    crew *c = p->others;
    for (uint32_t i = 1; c && i < p->n; i++) stop_one(p, c->rank[i]);
    sl_device_close(p->own);
    /* The next device of this thread takes its cores from all of them again. */
    if (c && c->apart) (void)sched_setaffinity(0, sizeof c->cpus, &c->cpus);
    sl_free(c);
}

const pipeline_ways pipeline_threads = {.in_place = true,
                                        .open = open,
                                        .give = give,
                                        .poll = poll,
                                        .host = host,
                                        .page = page,
                                        .close = close_all,
                                        .take = sl_host_take,
                                        .give_back = sl_host_give};
