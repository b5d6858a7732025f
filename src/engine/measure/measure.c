/* Times of a model's stages on a device of this machine, for plans. */
#include "engine/measure/measure.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/measure/stage_lab.h"
#include "spec/kv.h"

#include <stdbool.h>

#define CALL_BUDGET_NS  100000000ull /* of one call, estimated from one row's */
#define STAGE_BUDGET_NS 150000000ull /* of all calls of one figure */
#define MOST_CALLS      5
#define MOST_ROWS       256u
#define MOST_KEYS       1024u
#define MOST_EXPERTS    8u
#define EXPERT_BYTES    (256ull << 20) /* of weights, which may have to come from a disk first */
#define EXPERT_ROWS     32u
#define KEY_ROWS        8u

typedef struct bench {
    const sl_measure_opts *o;
    sl_lab *lab;
    uint32_t max_rows, keys, n_experts;
} bench;

/* Microseconds of the fastest of a few calls; a first one touches the weights. */
static double time_of(bench *b, const sl_lab_task *t) {
    uint64_t began_ns = sl_now_ns(), best_ns = UINT64_MAX;
    sl_lab_run(b->lab, t);
    for (int i = 0; i < MOST_CALLS && (i == 0 || sl_now_ns() - began_ns < STAGE_BUDGET_NS); i++) {
        if (t->kind == SL_COST_SHARED) sl_lab_renew(b->lab);
        uint64_t at_ns = sl_now_ns();
        sl_lab_run(b->lab, t);
        best_ns = SL_MIN(best_ns, sl_now_ns() - at_ns);
        if (b->o->tick) b->o->tick(b->o->ctx);
    }
    return (double)best_ns / 1e3;
}

/* So many rows surely stay within the budget of a call. */
static uint32_t rows_within(double one_us, uint32_t most) {
    double rows = one_us > 0 ? CALL_BUDGET_NS / 1e3 / one_us : most;
    return rows >= most ? most : rows < 1 ? 1 : (uint32_t)rows;
}

static sl_stage_cost line_of(bench *b, sl_cost_kind kind, uint32_t most, double per) {
    sl_lab_task t = {.kind = kind, .rows = 1, .experts = b->n_experts};
    double one = time_of(b, &t);
    uint32_t n = t.rows = rows_within(one, most);
    double many = n > 1 ? time_of(b, &t) : one;
    return (sl_stage_cost){.floor_us = one / per, .row_us = SL_MAX(many, one) / n / per};
}

static void measure_attention(bench *b, sl_costs *out) {
    sl_stage_cost attention = line_of(b, SL_COST_ATTENTION, b->max_rows, 1);
    uint32_t n = SL_MIN(rows_within(attention.floor_us, KEY_ROWS), b->max_rows);
    const sl_lab_task first = {.kind = SL_COST_ATTENTION, .rows = n};
    const sl_lab_task last = {.kind = SL_COST_ATTENTION, .rows = n, .context = b->keys};
    double near = time_of(b, &first), far = time_of(b, &last);
    double keys = (double)n * (b->keys - 1);
    attention.key_us = keys > 0 && far > near ? (far - near) / keys : 0;
    /* The rows of the slope had keys, too. */
    uint32_t many = rows_within(attention.floor_us, b->max_rows);
    attention.row_us = SL_MAX(attention.row_us - attention.key_us * many / 2, attention.row_us / 4);
    out->stage[SL_COST_ATTENTION] = attention;
    out->stage[SL_COST_ROUTER] = line_of(b, SL_COST_ROUTER, b->max_rows, 1);
    if (b->o->m->d_ff_shared)
        out->stage[SL_COST_SHARED] = line_of(b, SL_COST_SHARED, b->max_rows, 1);
}

/* A block in the middle, with some of its experts. */
static sl_status open_lab(bench *b, sl_err *err) {
    const sl_measure_opts *o = b->o;
    const uint64_t each = 6ull * o->m->d_model * o->m->d_ff_expert; /* matrices in 16 bits */
    const uint64_t fit = SL_MAX(EXPERT_BYTES / SL_MAX(each, 1u), 1u);
    b->max_rows = SL_MAX(SL_MIN(o->rows, MOST_ROWS), 1u);
    b->keys = SL_MAX(SL_MIN(o->keys, MOST_KEYS), 1u);
    b->n_experts = (uint32_t)SL_MIN(SL_MIN(fit, MOST_EXPERTS), o->m->n_experts);
    const sl_lab_opts lo = {.model_folder = o->model_folder,
                            .m = o->m,
                            .isa = o->isa,
                            .threads = o->threads,
                            .activations = o->activations,
                            .roles = o->roles,
                            .device = o->device,
                            .blocks = {o->m->moe_layer[o->m->n_moe / 2], 1},
                            .experts = b->n_experts,
                            .max_rows = SL_MAX(b->max_rows, EXPERT_ROWS),
                            .max_pairs = b->n_experts * EXPERT_ROWS,
                            .pages = sl_kv_pages_for(SL_MAX(b->keys, b->max_rows)),
                            .tick = o->tick,
                            .ctx = o->ctx};
    return sl_lab_open(&lo, &b->lab, err);
}

sl_status sl_measure_stages(const sl_measure_opts *o, sl_costs *out, sl_err *err) {
    bench b = {.o = o};
    sl_status st = open_lab(&b, err);
    if (st != SL_OK) return st;
    if (o->roles & SL_ROLE_ATTENTION) measure_attention(&b, out);
    if (o->roles & SL_ROLE_EXPERT)
        out->stage[SL_COST_EXPERT] = line_of(&b, SL_COST_EXPERT, EXPERT_ROWS, b.n_experts);
    return sl_lab_close(b.lab, st, err);
}
