/* Steps as graphs (steps.h): which calls a step has, which graphs there are, when one runs. */
#include "stage/cuda/steps.h"

#include "base/log.h"

#include <string.h>

#define SEEN     2u /* rows are recorded when they come for that time */
#define FAILURES 3u /* in a row: no more are tried */
#define LEAST    8u /* parts of attention */
#define LISTS    (96u << 10)
#define ALIGN    64u

/* ---- the calls of a step ---- */

sl_stage_call sl_cuda_steps_call(const sl_cuda_steps *s, uint32_t i, const sl_stage_call *of) {
    sl_stage_call c = {.op = SL_OP_EMBED, .queue = of->queue, .rows = of->rows};
    if (i == 0) return c;
    c.layer = (i - 1) / 2;
    c.op = i % 2 ? SL_OP_ATTEND : s->m->ffn[c.layer] == SL_FFN_DENSE ? SL_OP_DENSE : SL_OP_INSIDE;
    return c;
}

/* Whether calls are of one step. */
static bool same_rows(const sl_rowset *a, const sl_rowset *b) {
    return a->n == b->n && a->x.at == b->x.at && a->h.at == b->h.at && a->id == b->id &&
           a->pos == b->pos && a->pages == b->pages;
}

static bool is_next(const sl_cuda_steps *s, const sl_cuda_following *f, const sl_stage_call *c) {
    const sl_stage_call want = sl_cuda_steps_call(s, f->next, c);
    return c->op == want.op && c->layer == want.layer && same_rows(&c->rows, &f->rows);
}

/* ---- results ---- */

static size_t row_bytes(const sl_cuda_steps *s) {
    return s->m->top_k * (sizeof(uint32_t) + sizeof(float));
}

static size_t result_bytes(const sl_cuda_steps *s, const sl_cuda_known *k) {
    return (k->n * row_bytes(s) + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t result_offset(const sl_cuda_steps *s, const sl_cuda_known *k,
                            const sl_stage_call *c) {
    return c->op == SL_OP_INSIDE ? s->m->moe_index[c->layer] * result_bytes(s, k) : 0;
}

static uint8_t *result_of(const sl_cuda_steps *s, const sl_cuda_known *k, const sl_stage_call *c) {
    const bool has = c->op == SL_OP_INSIDE && (s->tells || sl_is_last_moe(s->m, c->layer));
    return has ? k->results + result_offset(s, k, c) : NULL;
}

/* ---- what is known ---- */

static void forget_graph(sl_cuda_steps *s, sl_cuda_known *k) {
    if (k->in_flight) s->work.wait(s->work.ctx);
    sl_cuda_graph_free(s->c, k->graph);
    k->graph = NULL;
}

static void forget(sl_cuda_steps *s, sl_cuda_known *k) {
    forget_graph(s, k);
    sl_cuda_event_free(s->c, k->end);
    sl_cuda_unpin(s->c, k->results);
    *k = (sl_cuda_known){0};
}

/* As many parts as there may be: so that a context grows for a while before another graph is
 * needed, and few blocks have nothing to do. 0 stays. */
static uint32_t round_up(uint32_t blocks) {
    uint32_t most = LEAST;
    if (!blocks) return 0;
    while (most < blocks) most += most % 3 ? most / 2 : most / 3; /* 8, 12, 16, 24, 32 ... */
    return most;
}

static bool is_of(const sl_cuda_known *k, const sl_rowset *r,
                  const uint32_t blocks[SL_CUDA_SIGHTS]) {
    return k->used && k->n == r->n && k->x == r->x.at && k->h == r->h.at &&
           memcmp(k->blocks, blocks, sizeof k->blocks) == 0;
}

/* Calls that a graph has run for are still to come. */
static bool is_awaited(const sl_cuda_steps *s, const sl_cuda_known *k) {
    for (uint32_t q = 0; q < SL_STAGE_QUEUES; q++)
        if (s->queue[q].run == k) return true;
    return false;
}

_Static_assert(SL_CUDA_STEPS > SL_STAGE_QUEUES, "one of them is not awaited");

/* The one of such rows, or in place of the one that was not used for longest. */
static sl_cuda_known *find(sl_cuda_steps *s, const sl_rowset *r,
                           const uint32_t blocks[SL_CUDA_SIGHTS]) {
    sl_cuda_known *oldest = NULL;
    for (uint32_t i = 0; i < SL_CUDA_STEPS; i++) {
        sl_cuda_known *k = &s->known[i];
        if (is_of(k, r, blocks)) return k;
        if ((!oldest || k->used < oldest->used) && !is_awaited(s, k)) oldest = k;
    }
    SL_ASSERT(oldest != NULL);
    forget(s, oldest);
    *oldest = (sl_cuda_known){.x = r->x.at, .h = r->h.at, .n = r->n};
    memcpy(oldest->blocks, blocks, sizeof oldest->blocks);
    return oldest;
}

/* ---- recording ---- */

static void fails(sl_cuda_steps *s, uint32_t n, const char *why) {
    s->failures++;
    if (!s->said)
        sl_log(SL_LOG_INFO, "cuda",
               "a step of %u rows is no graph, but launched kernel by kernel: %s", n, why);
    s->said = true;
}

/* Memory of a graph's own, and what its launches want that comes with the first of them. */
static bool make_room(sl_cuda_steps *s, sl_cuda_known *k, const sl_cuda_step_rows *rows,
                      sl_err *err) {
    void *results = k->results;
    sl_status st = SL_OK;
    if (!k->end) st = sl_cuda_event_create(s->c, &k->end, err);
    if (st == SL_OK && !results) {
        st = sl_cuda_pin(s->c, s->m->n_moe * result_bytes(s, k), &results, &k->results_at, err);
        k->results = results;
    }
    if (st == SL_OK && !sl_cuda_step_reserve(s->c, rows, k->blocks)) st = sl_cuda_failed(s->c, err);
    return st == SL_OK;
}

static void launch_all(sl_cuda_steps *s, const sl_cuda_known *k, const sl_stage_call *of) {
    for (uint32_t i = 0; i < s->calls; i++) {
        const sl_stage_call c = sl_cuda_steps_call(s, i, of);
        const size_t at = result_offset(s, k, &c);
        s->work.launch(s->work.ctx, &c, k->results + at, k->results_at + at);
    }
}

static bool record(sl_cuda_steps *s, sl_cuda_known *k, const sl_cuda_step_rows *rows,
                   const sl_stage_call *of) {
    char why[SL_CUDA_WHY_BYTES];
    sl_cuda_step step;
    sl_err err;
    if (!make_room(s, k, rows, &err)) {
        fails(s, k->n, err.msg);
        return false;
    }
    sl_cuda_step_at(rows, s->lists.at, k->blocks, &step);
    if (sl_cuda_record_begin(s->c, &step, why)) {
        launch_all(s, k, of);
        k->graph = sl_cuda_record_end(s->c, why);
    }
    if (!k->graph) {
        fails(s, k->n, why);
        return false;
    }
    s->failures = 0;
    sl_log(SL_LOG_DEBUG, "cuda", "a step of %u rows, %u parts of attention, is a graph", k->n,
           k->blocks[0]);
    return true;
}

/* ---- running ---- */

/* Memory of the GPU for so many bytes of lists. */
static bool lists_room(sl_cuda_steps *s, size_t bytes) {
    sl_err err;
    size_t cap = SL_MAX(s->lists.bytes, (size_t)LISTS);
    while (cap < bytes) cap *= 2;
    if (sl_cuda_slabs_grow(s->memory, cap, "lists of steps", &s->lists, &err) == SL_OK) return true;
    fails(s, 0, err.msg);
    return false;
}

static bool run(sl_cuda_steps *s, sl_cuda_known *k, const uint8_t *lists, size_t bytes) {
    char why[SL_CUDA_WHY_BYTES];
    sl_cuda_copy_in_later(s->c, s->lists.at, lists, bytes);
    if (!sl_cuda_graph_run(s->c, k->graph, why)) {
        fails(s, k->n, why);
        forget_graph(s, k);
        return false;
    }
    sl_cuda_event_record(s->c, k->end);
    k->runs++;
    return true;
}

/* A graph of these rows that may run now; NULL: there is none yet, or none can be. */
static sl_cuda_known *ready(sl_cuda_steps *s, const sl_cuda_step_rows *rows, const sl_stage_call *c,
                            uint32_t blocks[SL_CUDA_SIGHTS]) {
    for (uint32_t i = 0; i < SL_CUDA_SIGHTS; i++) blocks[i] = round_up(blocks[i]);
    sl_cuda_known *k = find(s, &c->rows, blocks);
    k->used = ++s->clock;
    if (k->graph && sl_cuda_graph_is_stale(s->c, k->graph)) forget_graph(s, k);
    if (k->graph && k->in_flight) s->work.wait(s->work.ctx); /* its results are read still */
    if (k->graph) return k;
    if (++k->seen < SEEN) return NULL;
    return record(s, k, rows, c) ? k : NULL;
}

static sl_cuda_known *try_run(sl_cuda_steps *s, const sl_stage_call *c) {
    const sl_rowset *r = &c->rows;
    const sl_cuda_step_rows rows = {
        .m = s->m, .kv = s->kv, .n = r->n, .id = r->id, .pos = r->pos, .pages = r->pages};
    uint32_t blocks[SL_CUDA_SIGHTS];
    const void *at;
    if (!r->pos || !r->pages || !sl_cuda_step_fits(&rows)) return NULL;
    const size_t bytes = sl_cuda_step_bytes(&rows);
    if (!lists_room(s, bytes)) return NULL;
    uint8_t *lists = sl_cuda_list_room(s->c, bytes, &at);
    sl_cuda_step_fill(s->c, &rows, lists, blocks);
    sl_cuda_known *k = ready(s, &rows, c, blocks);
    if (k && !run(s, k, lists, bytes)) k = NULL;
    sl_cuda_fence(s->c);
    return k;
}

static void begin(sl_cuda_steps *s, sl_cuda_following *f, const sl_stage_call *c) {
    const bool may = f->whole && s->failures < FAILURES;
    *f = (sl_cuda_following){.goes = true, .whole = f->whole, .next = 1, .rows = c->rows};
    if (may) f->run = try_run(s, c);
}

sl_cuda_step_says sl_cuda_steps_take(sl_cuda_steps *s, const sl_stage_call *c) {
    sl_cuda_step_says says = {0};
    sl_cuda_following *f = &s->queue[c->queue];
    if (!s->c) return says;
    if (c->op == SL_OP_EMBED) {
        begin(s, f, c);
    } else if (!f->goes) {
        return says;
    } else if (!is_next(s, f, c)) {
        /* A call of another step finds nothing that this one would have left. */
        if (f->run && same_rows(&c->rows, &f->rows)) says.again = f->next;
        *f = (sl_cuda_following){0};
        return says;
    } else if (++f->next == s->calls) {
        f->goes = false;
        f->whole = true;
    }
    says.run = f->run;
    if (!says.run) return says;
    says.result = result_of(s, says.run, c);
    says.run->in_flight++;
    if (!f->goes) f->run = NULL;
    return says;
}

/* ---- life ---- */

sl_status sl_cuda_steps_create(sl_cuda *c, const sl_model_spec *m, sl_cuda_slabs *memory,
                               sl_kv_pool kv, const sl_cuda_step_work *work, sl_cuda_steps *out,
                               sl_err *err) {
    *out = (sl_cuda_steps){0};
    if (!sl_cuda_has_graphs(c))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "the CUDA driver has no graphs: it is too old");
    *out = (sl_cuda_steps){.c = c, .m = m, .memory = memory, .kv = kv, .work = *work};
    out->calls = 2 * (m->moe_layer[m->n_moe - 1u] + 1u) + 1;
    return SL_OK;
}

void sl_cuda_steps_free(sl_cuda_steps *s) {
    uint64_t runs = 0, graphs = 0;
    if (!s->c) return;
    for (uint32_t i = 0; i < SL_CUDA_STEPS; i++) {
        runs += s->known[i].runs;
        graphs += s->known[i].graph != NULL;
        s->known[i].in_flight = 0;
        forget(s, &s->known[i]);
    }
    sl_cuda_slabs_return(s->memory, s->lists.at, s->lists.bytes);
    sl_log(SL_LOG_INFO, "cuda", "%llu steps ran as %llu graphs", (unsigned long long)runs,
           (unsigned long long)graphs);
    *s = (sl_cuda_steps){0};
}
