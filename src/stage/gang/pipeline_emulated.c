/* Ranks of a pipeline that are emulated: what calls do is done at once, and they are through when
 * their rank, which has one call at a time, would be through with them and the rows would be back.
 * A run of calls goes to its rank and comes back over the link between ranks, or goes on to the
 * next one. Rank 0 is an emulated device as any other. */
#include "stage/gang/pipeline.h"

#include "base/clock.h"
#include "base/mem.h"
#include "spec/link.h"

#define TASKS   1024u   /* that a rank can hold; a power of two */
#define REST_NS 100000u /* at most, between two looks */

typedef struct task {
    uint64_t end_ns;
    uint32_t queue;
    uint64_t call;    /* which of the queue's */
    pipeline_ids ids; /* of INSIDE */
} task;

typedef struct stage {
    task ring[TASKS];
    uint64_t given, told;
    uint64_t free_ns; /* when it is through with all of them */
} stage;

typedef struct crew {
    stage *rank[SL_MAX_RANKS]; /* but for the first */
    sl_link_cost link;
    double scale;
    void (*wait)(void *ctx, uint64_t deadline_ns);
} crew;

/* ---- calls ---- */

static uint64_t hop_ns(const pipeline *p, uint32_t rows) {
    const crew *c = p->others;
    const double bytes = (double)rows * p->base.spec->d_model * sizeof(float);
    return (uint64_t)(1000 * c->scale * sl_link_cost_us(&c->link, bytes));
}

static uint32_t rows_of(const sl_stage_call *c) {
    return c->op == SL_OP_EXPERTS ? c->experts.first[c->experts.n_groups] : c->rows.n;
}

/* n calls from `first` on, whose rows are at the rank's end of the link at *at; *at: when those
 * that it leaves are at its end. False: no memory. */
static bool give_leg(pipeline *p, const pipeline_queue *q, stage *s, uint64_t first, uint32_t n,
                     uint64_t *at) {
    const uint64_t hop = hop_ns(p, rows_of(pipeline_call(q, first)));
    uint64_t end = SL_MAX(*at + hop, s->free_ns);
    for (uint32_t i = 0; i < n; i++) {
        task *t = &s->ring[(s->given + i) % TASKS];
        sl_stage_call own = *pipeline_call(q, first + i);
        if (own.op == SL_OP_INSIDE) {
            if (!pipeline_ids_for(p, &t->ids, own.rows.n)) return false;
            own.rows.expert = t->ids.expert;
            own.rows.gate = t->ids.gate;
        }
        t->queue = own.queue;
        t->call = first + i;
        end += sl_emulated_count(p->own, &own);
    }
    for (uint32_t i = 0; i < n; i++) s->ring[(s->given + i) % TASKS].end_ns = end + hop;
    s->given += n;
    s->free_ns = *at = end;
    return true;
}

static uint32_t give(pipeline *p, const pipeline_queue *q, const pipeline_leg *leg, uint32_t n) {
    const crew *c = p->others;
    uint64_t at = sl_now_ns(), next = q->given;
    uint32_t room[SL_MAX_RANKS];
    for (uint32_t i = 0; i < n; i++) {
        const stage *s = c->rank[leg[i].rank];
        room[i] = SL_MIN(leg[i].n, (uint32_t)(TASKS - (s->given - s->told)));
        if (room[i] < leg[i].n && i + 1 < n) return 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (room[i] && !give_leg(p, q, c->rank[leg[i].rank], next, room[i], &at)) break;
        next += room[i];
    }
    return (uint32_t)(next - q->given);
}

static void poll(pipeline *p) {
    const crew *c = p->others;
    const uint64_t now_ns = sl_now_ns();
    for (uint32_t i = 1; i < p->n; i++) {
        stage *s = c->rank[i];
        while (s->told < s->given && s->ring[s->told % TASKS].end_ns <= now_ns) {
            const task *t = &s->ring[s->told % TASKS];
            if (!pipeline_is_next(p, t->queue, t->call)) break;
            pipeline_ran(p, t->queue, t->ids.expert, t->ids.gate);
            s->told++;
        }
    }
}

/* When the next call is through, `until` at the latest. */
static uint64_t next_ns(const pipeline *p, uint64_t until) {
    const crew *c = p->others;
    for (uint32_t i = 1; i < p->n; i++) {
        const stage *s = c->rank[i];
        if (s->told < s->given) until = SL_MIN(until, s->ring[s->told % TASKS].end_ns);
    }
    return until;
}

/* Rank 0's stage passes: rows of others come and go meanwhile. */
static void wait_own(void *ctx, uint64_t deadline_ns) {
    pipeline *p = ctx;
    const crew *c = p->others;
    do {
        c->wait(p->ctx, next_ns(p, deadline_ns));
        pipeline_go_on(p);
    } while (sl_now_ns() < deadline_ns);
}

static void rest(pipeline *p) {
    const crew *c = p->others;
    c->wait(p->ctx, next_ns(p, sl_now_ns() + REST_NS));
}

/* ---- the rest of it ---- */

static sl_status host(pipeline *p, const uint8_t *hosted, uint32_t max_pairs, bool patient,
                      sl_hosting *left, sl_err *err) {
    return sl_device_host(p->own, hosted, max_pairs, patient, left, err);
}

static void page(pipeline *p, uint32_t rank, const gang_job *j) {
    (void)p, (void)rank, (void)j;
    SL_ASSERT(!"an emulated device has no pages");
}

static sl_status open(pipeline *p, const sl_device_opts *o, sl_err *err) {
    crew *c = p->others = sl_alloc(1, sizeof *c);
    if (!c) return sl_fail(err, SL_ERR_NOMEM, "a pipeline of %u ranks", p->n);
    c->link = o->device->rank_link;
    c->scale = o->device->time_scale;
    c->wait = o->wait;
    for (uint32_t i = 1; i < p->n; i++) {
        c->rank[i] = sl_alloc(1, sizeof *c->rank[i]);
        if (!c->rank[i]) return sl_fail(err, SL_ERR_NOMEM, "a pipeline of %u ranks", p->n);
    }
    sl_device_opts mine = *o;
    mine.wait = wait_own;
    mine.ctx = p;
    sl_status st = gang_pipeline_opts((sl_rank){0, p->n}, &mine, err);
    return st == SL_OK ? sl_emulated_open(&mine, &p->own, err) : st;
}

static void close_all(pipeline *p) {
    crew *c = p->others;
    if (p->own) sl_device_close(p->own);
    for (uint32_t i = 1; c && i < p->n; i++) {
        for (uint32_t k = 0; c->rank[i] && k < TASKS; k++)
            pipeline_ids_free(&c->rank[i]->ring[k].ids);
        sl_free(c->rank[i]);
    }
    sl_free(c);
}

const pipeline_ways pipeline_emulated = {.in_place = true,
                                         .straight = true,
                                         .open = open,
                                         .give = give,
                                         .poll = poll,
                                         .host = host,
                                         .page = page,
                                         .close = close_all,
                                         .take = sl_host_take,
                                         .give_back = sl_host_give,
                                         .rest = rest};
