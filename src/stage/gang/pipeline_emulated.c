/* Ranks of a pipeline that are emulated: what calls do is done at once, and they are through when
 * their rank, which has one call at a time, would be through with them and the rows would be back.
 * A run of calls goes to its rank and comes back over the link between ranks. Rank 0 is an emulated
 * device as any other. */
#include "stage/gang/pipeline.h"

#include "base/clock.h"
#include "base/mem.h"
#include "spec/link.h"

#define TASKS   1024u   /* that a rank can hold; a power of two */
#define REST_NS 100000u /* at most, between two looks */

typedef struct task {
    uint64_t end_ns;
    uint32_t queue;
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

static uint32_t give(pipeline *p, uint32_t rank, const sl_stage_call *c, uint32_t n) {
    stage *s = ((crew *)p->others)->rank[rank];
    const uint64_t hop = hop_ns(p, rows_of(c)), came = sl_now_ns() + hop;
    uint64_t end = SL_MAX(came, s->free_ns);
    n = SL_MIN(n, (uint32_t)(TASKS - (s->given - s->told)));
    for (uint32_t i = 0; i < n; i++) {
        task *t = &s->ring[(s->given + i) % TASKS];
        sl_stage_call own = c[i];
        if (own.op == SL_OP_INSIDE) {
            if (!pipeline_ids_for(p, &t->ids, own.rows.n)) return 0;
            own.rows.expert = t->ids.expert;
            own.rows.gate = t->ids.gate;
        }
        t->queue = own.queue;
        end += sl_emulated_count(p->own, &own);
    }
    for (uint32_t i = 0; i < n; i++) s->ring[(s->given + i) % TASKS].end_ns = end + hop;
    s->given += n;
    s->free_ns = end;
    return n;
}

static void poll(pipeline *p) {
    const crew *c = p->others;
    const uint64_t now_ns = sl_now_ns();
    for (uint32_t i = 1; i < p->n; i++) {
        stage *s = c->rank[i];
        while (s->told < s->given && s->ring[s->told % TASKS].end_ns <= now_ns) {
            const task *t = &s->ring[s->told++ % TASKS];
            pipeline_ran(p, t->queue, t->ids.expert, t->ids.gate);
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
                                         .open = open,
                                         .give = give,
                                         .poll = poll,
                                         .host = host,
                                         .page = page,
                                         .close = close_all,
                                         .take = sl_host_take,
                                         .give_back = sl_host_give,
                                         .rest = rest};
