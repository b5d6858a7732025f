/* Calls of a gang whose ranks are apart, done as runs: those on the same rows that wait when the
 * device is polled are one job, in which each rank has what the call before it has left. */
#include "stage/gang/shared.h"

/* Polls without a new call after which none is expected: an engine's block takes some turns of its
 * worker's loop, in which it has nothing to submit. */
#define QUIET_POLLS 8u
/* Rows from which on a job for each block costs little beside it, and what else the worker has to
 * do would wait for long. */
#define MANY_ROWS 64u

/* Ranks may have to send its rows themselves. */
static bool leaves_spread(const gang *g, const sl_stage_call *c) {
    return g->spreads && c->rows.n >= g->spread_rows;
}

/* The router needs the stream alone. Ranks that have it make what the shared expert reads, too, and
 * what they send to others; else rank 0 routes, and nobody needs the stream that attention leaves.
 */
static bool all_route(const gang *g, const sl_stage_call *c) {
    const sl_model_spec *s = g->base.spec;
    return (s->d_ff_shared || leaves_spread(g, c)) && !s->dense_branch;
}

bool gang_is_step(const gang *g, const sl_stage_call *c) {
    if (!g->ways->apart) return false;
    if (c->op == SL_OP_ROUTE) return all_route(g, c);
    return c->op == SL_OP_ATTEND || c->op == SL_OP_DENSE || c->op == SL_OP_INSIDE;
}

/* Whether ranks read the stream as the step leaves it; next: of the same run, NULL: it is the last.
 * Of the last block some rows are read, by the head. */
static bool is_read(const gang *g, const sl_stage_call *c, const sl_stage_call *next) {
    const sl_model_spec *s = g->base.spec;
    if (c->op == SL_OP_ROUTE) return false;
    if (next) return true;
    if (c->op == SL_OP_ATTEND)
        return s->ffn[c->layer] == SL_FFN_DENSE || s->d_ff_shared || leaves_spread(g, c);
    return c->layer + 1u < s->n_layers;
}

/* How many of n > 0 calls are one run. */
static uint32_t length_of_run(const sl_stage_call *c, uint32_t n) {
    uint32_t i = 1;
    while (i < n && c[i].queue == c->queue && c[i].rows.n == c->rows.n &&
           c[i].rows.x.at == c->rows.x.at)
        i++;
    return i;
}

static void do_run(gang *g, const sl_stage_call *c, uint32_t n) {
    gang_step *step = g->waiting.step;
    gang_job j = {.kind = GANG_RUN,
                  .run = {.call = *c, .step = step, .n_steps = n, .together = true}};
    for (uint32_t i = 0; i < n; i++)
        step[i] = (gang_step){c[i].op, c[i].layer, is_read(g, &c[i], i + 1 < n ? &c[i + 1] : NULL)};
    /* Only routers write there. */
    if (!gang_run_chooses(&j)) j.run.call.rows.expert = NULL, j.run.call.rows.gate = NULL;
    if (c->rows.n) gang_must_do(g, &j);
    for (uint32_t i = 0; i < n; i++) sl_device_ran(&g->base, c->queue);
}

static void run_waiting(gang *g) {
    gang_waiting *w = &g->waiting;
    const uint32_t all = w->n;
    for (uint32_t at = 0, n; at < all; at += n) {
        n = length_of_run(w->call + at, all - at);
        do_run(g, w->call + at, n);
    }
    w->n = 0;
}

void gang_wait(gang *g, const sl_stage_call *c) {
    if (g->waiting.n == GANG_WAITING) run_waiting(g);
    g->waiting.call[g->waiting.n++] = *c;
    g->waiting.quiet = 0;
}

void gang_run_all(gang *g) {
    run_waiting(g);
    gang_rank_hear(&g->own);
}

/* Nobody waits for a block that stays inside, but for the last: the next one follows. */
static bool goes_on(const gang *g) {
    const gang_waiting *w = &g->waiting;
    const sl_stage_call *last = &w->call[w->n - 1];
    return last->op == SL_OP_INSIDE && last->layer + 1u < g->base.spec->n_layers &&
           last->rows.n < MANY_ROWS;
}

void gang_run_some(gang *g) {
    if (g->waiting.n && goes_on(g) && g->waiting.quiet++ < QUIET_POLLS) return;
    run_waiting(g);
}
