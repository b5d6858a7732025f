/* Trials of forms of kernels on the GPU that will run them. */
#include "stage/cuda/few_choice.h"

#include "base/log.h"
#include "base/mem.h"

#include <math.h>

#define TIMES  5u /* of each form */
#define FASTER 0.98
#define NEAR   1e-4f

static bool is_same(const sl_cuda_few_trial *t) {
    float most = 0;
    for (uint32_t i = 0; i < t->n; i++) most = fmaxf(most, fabsf(t->first[i]));
    for (uint32_t i = 0; i < t->n; i++)
        if (!(fabsf(t->out[i] - t->first[i]) <= NEAR * most)) return false;
    return true;
}

uint32_t sl_cuda_few_choose(const sl_cuda_few_trial *t) {
    double best[SL_CUDA_FEW_FORMS];
    uint32_t choice = 0;
    for (uint32_t i = 0; i < SL_CUDA_FEW_FORMS; i++) best[i] = INFINITY;
    for (uint32_t time = 0; time <= TIMES; time++) /* the first time warms up */
        for (uint32_t i = 0; i < SL_CUDA_FEW_FORMS; i++) {
            if (best[i] <= 0) continue; /* out */
            const double took = t->run(t->ctx, i, i || time ? t->out : t->first);
            if (took <= 0 || ((i || time) && !is_same(t)))
                best[i] = 0;
            else if (time)
                best[i] = fmin(best[i], took);
        }
    if (best[0] <= 0) return 0;
    for (uint32_t i = 1; i < SL_CUDA_FEW_FORMS; i++)
        if (best[i] > 0 && best[i] < FASTER * best[0] && (!choice || best[i] < best[choice]))
            choice = i;
    return choice;
}

/* ---- on a GPU ---- */

typedef struct row {
    sl_device *d;
    sl_cuda *c;
    sl_mem x, h;
    sl_cuda_event *from, *to;
    uint32_t expert[SL_MAX_TOP_K];
    float gate[SL_MAX_TOP_K];
} row;

static void ask(row *r, sl_stage_op op, uint32_t layer) {
    static const uint32_t zero;
    static const uint32_t *const pages = &zero;
    const sl_stage_call call = {.op = op,
                                .layer = layer,
                                .rows = {.n = 1,
                                         .id = &zero,
                                         .pos = &zero,
                                         .pages = &pages,
                                         .state = &zero,
                                         .done = &zero,
                                         .x = r->x,
                                         .h = r->h,
                                         .expert = r->expert,
                                         .gate = r->gate}};
    (void)sl_device_submit(r->d, &call);
}

/* One row of equal values through the first blocks with experts. */
static double pass(void *ctx, uint32_t form, float *out) {
    row *r = ctx;
    const sl_model_spec *m = r->d->spec;
    sl_err err;
    sl_cuda_set_few(r->c, sl_cuda_few_form(form));
    sl_cuda_fill(r->c, r->x.at, 0x3c, r->x.bytes);
    sl_cuda_event_record(r->c, r->from);
    for (uint32_t i = 0; i < SL_MIN(m->n_moe, SL_CUDA_FEW_BLOCKS); i++) {
        ask(r, SL_OP_ATTEND, m->moe_layer[i]);
        ask(r, SL_OP_INSIDE, m->moe_layer[i]);
    }
    sl_cuda_event_record(r->c, r->to);
    sl_cuda_event_wait(r->c, r->to);
    sl_device_drain(r->d);
    if (r->d->failed != SL_OK ||
        sl_cuda_copy_out(r->c, out, r->x.at, m->d_model * sizeof *out, &err) != SL_OK)
        return 0;
    return (double)sl_cuda_event_ms(r->c, r->from, r->to);
}

static void try_forms(row *r, float *room) {
    const uint32_t n = r->d->spec->d_model;
    const sl_cuda_few_trial t = {.run = pass, .ctx = r, .n = n, .first = room, .out = room + n};
    const uint32_t best = sl_cuda_few_choose(&t);
    const sl_cuda_few f = sl_cuda_few_form(best);
    sl_cuda_set_few(r->c, f);
    sl_log(SL_LOG_INFO, "cuda", "one row: weights %s%s%s",
           f.ring ? "by the copy engine" : "to registers", f.fetch ? ", fetched ahead" : "",
           f.routes ? ", routers in their products" : "");
}

void sl_cuda_few_try(sl_device *d, sl_cuda *c) {
    const size_t n = d->spec->d_model;
    row r = {.d = d, .c = c};
    sl_err err;
    float *room = sl_alloc(2 * n, sizeof *room);
    sl_status st = room ? SL_OK : sl_fail(&err, SL_ERR_NOMEM, "no memory for a trial of kernels");
    if (st == SL_OK) st = d->ops->take(d, n * sizeof(float), &r.x, &err);
    if (st == SL_OK) st = d->ops->take(d, n * sizeof(float), &r.h, &err);
    if (st == SL_OK) st = sl_cuda_event_create(c, &r.from, &err);
    if (st == SL_OK) st = sl_cuda_event_create(c, &r.to, &err);
    if (st == SL_OK) try_forms(&r, room);
    sl_cuda_event_free(c, r.from);
    sl_cuda_event_free(c, r.to);
    if (r.x.bytes) sl_device_give(d, r.x);
    if (r.h.bytes) sl_device_give(d, r.h);
    sl_free(room);
}
