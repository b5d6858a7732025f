/* Queues of schedule aep: lists of places, their states for the policy, and batches out of them. */
#include "sched/queues.h"

#include "base/mem.h"
#include "sched/policy.h"

#define NONE UINT32_MAX

typedef struct entry {
    uint32_t next, source, rows;
} entry;

typedef struct queue {
    uint32_t front, back; /* places; of an empty one they mean nothing */
} queue;

struct sl_queues {
    sl_policy_view view;           /* its arrays are `state`, `total` and one for the policy */
    uint32_t n_moe, hosted;        /* experts */
    uint32_t *expert, *hosted_at;  /* [hosted] ids; [n_experts] places in it, or NONE */
    queue *queue;                  /* [n_moe][hosted] */
    sl_queue_state *state;         /* the same */
    uint64_t *total;               /* [n_moe] rows */
    uint64_t arrivals, seen, rows; /* rows that came; the highest wave; rows that wait */
    void *arrays;                  /* what all but those by place are in */

    entry *entry; /* [places] */
    uint32_t places, free, n_free;

    /* the batch that runs; between batches, scratch of drop */
    uint32_t n, *place;                                /* [places] */
    uint32_t *group_expert, *group_rows, *group_first; /* [hosted], the last [hosted + 1] */
    const sl_watch *watch;
};

/* ---- life ---- */

static void list_hosted(sl_queues *q, const sl_plan *plan, uint32_t worker) {
    for (uint32_t e = 0, at = 0; e < plan->n_experts; e++) {
        bool here = sl_plan_hosts_any(plan, e, worker);
        q->hosted_at[e] = here ? at : NONE;
        if (here) q->expert[at++] = e;
    }
}

static sl_status create_tables(sl_queues *q, const sl_plan *plan, uint32_t worker, sl_err *err) {
    q->hosted = sl_plan_n_hosted(plan, worker);
    size_t queues = (size_t)q->n_moe * q->hosted;
    double *ahead;
    q->arrays = sl_alloc_arrays(
        SL_ARRAY(q->expert, q->hosted), SL_ARRAY(q->hosted_at, plan->n_experts),
        SL_ARRAY(q->queue, queues), SL_ARRAY(q->state, queues), SL_ARRAY(q->total, q->n_moe),
        SL_ARRAY(q->group_expert, q->hosted), SL_ARRAY(q->group_rows, q->hosted),
        SL_ARRAY(q->group_first, q->hosted + 1u), SL_ARRAY(ahead, q->n_moe));
    if (!q->arrays) return sl_fail(err, SL_ERR_NOMEM, "%zu queues of an expert worker", queues);
    q->view = (sl_policy_view){.policy = plan->policy,
                               .lookahead = plan->lookahead,
                               .delta = plan->delta,
                               .ring = q->n_moe,
                               .n = q->hosted,
                               .queue = q->state,
                               .total = q->total,
                               .ahead = ahead};
    list_hosted(q, plan, worker);
    return SL_OK;
}

sl_status sl_queues_create(const sl_plan *plan, uint32_t n_moe, uint32_t worker, uint32_t places,
                           sl_queues **out, sl_err *err) {
    *out = NULL;
    sl_queues *q = sl_alloc(1, sizeof *q);
    if (!q) return sl_fail(err, SL_ERR_NOMEM, "queues of an expert worker");
    q->n_moe = n_moe;
    q->free = NONE;
    sl_status st = create_tables(q, plan, worker, err);
    if (st == SL_OK) st = sl_queues_reserve(q, places, err);
    if (st == SL_OK)
        *out = q;
    else
        sl_queues_free(q);
    return st;
}

void sl_queues_free(sl_queues *q) {
    if (!q) return;
    sl_free(q->entry);
    sl_free(q->place);
    sl_free(q->arrays);
    sl_free(q);
}

sl_status sl_queues_reserve(sl_queues *q, uint32_t places, sl_err *err) {
    if (places <= q->places) return SL_OK;
    entry *entries = sl_grow(q->entry, q->places, places, sizeof *entries);
    if (entries) q->entry = entries;
    uint32_t *place = sl_grow(q->place, q->places, places, sizeof *place);
    if (place) q->place = place;
    if (!entries || !place)
        return sl_fail(err, SL_ERR_NOMEM, "places for %u entries of an expert worker", places);
    for (uint32_t i = places; i-- > q->places;) { /* the lowest is taken first */
        q->entry[i].next = q->free;
        q->free = i;
    }
    q->n_free += places - q->places;
    q->places = places;
    return SL_OK;
}

void sl_queues_watch(sl_queues *q, const sl_watch *watch) {
    q->watch = watch;
}

uint32_t sl_queues_places(const sl_queues *q) {
    return q->places;
}

uint32_t sl_queues_room(const sl_queues *q) {
    return q->n_free;
}

uint64_t sl_queues_rows(const sl_queues *q) {
    return q->rows;
}

uint32_t sl_queues_waits(const sl_queues *q, uint32_t layer, uint32_t expert) {
    uint32_t at = q->hosted_at[expert];
    return at == NONE ? 0 : q->state[(size_t)layer * q->hosted + at].rows;
}

uint64_t sl_queues_seen(const sl_queues *q) {
    return q->seen;
}

/* ---- arrival ---- */

static void release(sl_queues *q, uint32_t place) {
    q->entry[place].next = q->free;
    q->free = place;
    q->n_free++;
}

uint32_t sl_queues_push(sl_queues *q, const sl_queue_entry *e) {
    SL_ASSERT(q->n_free > 0 && e->rows > 0 && e->layer < q->n_moe &&
              q->hosted_at[e->expert] != NONE);
    size_t at = (size_t)e->layer * q->hosted + q->hosted_at[e->expert];
    sl_queue_state *s = &q->state[at];
    uint32_t place = q->free;
    q->free = q->entry[place].next;
    q->n_free--;
    q->entry[place] = (entry){.next = NONE, .source = e->source, .rows = e->rows};
    if (s->rows == 0) {
        *s = (sl_queue_state){.head = q->arrivals, .wave = e->wave};
        q->queue[at].front = place;
    } else {
        q->entry[q->queue[at].back].next = place;
    }
    q->queue[at].back = place;
    s->rows += e->rows;
    s->wave = SL_MIN(s->wave, e->wave);
    q->arrivals += e->rows;
    q->total[e->layer] += e->rows;
    q->rows += e->rows;
    q->seen = SL_MAX(q->seen, e->wave);
    return place;
}

/* ---- a batch ---- */

/* All of a queue becomes a further group of the batch. */
static void drain(sl_queues *q, uint32_t layer, uint32_t e, sl_queue_batch *b) {
    size_t at = (size_t)layer * q->hosted + e;
    uint32_t rows = q->state[at].rows;
    if (rows == 0) return;
    q->group_expert[b->n_groups] = q->expert[e];
    q->group_rows[b->n_groups++] = rows;
    for (uint32_t id = q->queue[at].front; id != NONE; id = q->entry[id].next)
        q->place[q->n++] = id;
    q->group_first[b->n_groups] = q->n;
    q->state[at].rows = 0;
    q->total[layer] -= rows;
    q->rows -= rows;
    b->n_rows += rows;
}

static void tell(const sl_queues *q, const sl_queue_batch *b) {
    sl_watch_tell(q->watch, QUEUE, b->layer, b->n_groups, b->n_rows, q->seen);
    for (uint32_t g = 0; q->watch && g < b->n_groups; g++)
        sl_watch_tell(q->watch, GROUP, b->expert[g], b->rows[g]);
}

bool sl_queues_take(sl_queues *q, sl_queue_batch *out) {
    SL_ASSERT(q->n == 0);
    uint32_t picked, oldest = 0;
    if (q->rows == 0 || !sl_policy_pick(&q->view, &picked)) return false;
    uint32_t layer = picked / q->hosted, e = picked % q->hosted;
    bool whole = q->rows == q->total[layer];
    const sl_queue_state *state = q->state + (size_t)layer * q->hosted;
    sl_queue_batch b = {.layer = layer,
                        .expert = q->group_expert,
                        .rows = q->group_rows,
                        .first = q->group_first,
                        .place = q->place};
    uint64_t age = UINT64_MAX;
    for (uint32_t i = whole ? 0 : e; i < (whole ? q->hosted : e + 1); i++) {
        if (state[i].rows && state[i].head < age) {
            age = state[i].head;
            oldest = q->queue[(size_t)layer * q->hosted + i].front;
        }
        drain(q, layer, i, &b);
    }
    b.n = q->n;
    b.oldest = oldest;
    tell(q, &b);
    *out = b;
    return true;
}

void sl_queues_done(sl_queues *q) {
    for (uint32_t i = q->n; i-- > 0;) release(q, q->place[i]);
    q->n = 0;
}

/* ---- a source is gone ---- */

/* Takes its entries out of one queue; their places go to the end of q->place. Returns their rows.
 */
static uint32_t drop_from(sl_queues *q, size_t at, uint32_t source, uint32_t *n) {
    uint32_t *link = &q->queue[at].front, last = NONE, rows = 0;
    while (*link != NONE) {
        uint32_t id = *link;
        if (q->entry[id].source == source) {
            *link = q->entry[id].next;
            rows += q->entry[id].rows;
            q->place[(*n)++] = id;
        } else {
            last = id;
            link = &q->entry[id].next;
        }
    }
    q->queue[at].back = last;
    return rows;
}

uint32_t sl_queues_drop(sl_queues *q, uint32_t source, const uint32_t **place) {
    SL_ASSERT(q->n == 0);
    uint32_t n = 0;
    for (size_t at = 0; at < (size_t)q->n_moe * q->hosted; at++) {
        if (q->state[at].rows == 0) continue;
        uint32_t rows = drop_from(q, at, source, &n);
        q->state[at].rows -= rows;
        q->total[at / q->hosted] -= rows;
        q->rows -= rows;
    }
    for (uint32_t i = 0; i < n; i++) release(q, q->place[i]);
    *place = q->place;
    return n;
}
