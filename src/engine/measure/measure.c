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
/* Of a kind of device: */
#define KIND_BLOCKS 8u
#define KIND_BYTES  (1024ull << 20) /* of all blocks' experts */
#define HEAD_ROWS   64u

typedef struct bench {
    const sl_measure_opts *o;
    sl_extent blocks;
    uint64_t expert_bytes; /* of weights, at most */
    uint32_t head_rows;    /* 0: no head */
    sl_lab *lab;
    uint32_t max_rows, keys, n_experts;
} bench;

/* A stage, or rows that are copied. */
typedef struct doing {
    sl_lab_task task;
    bool copies, leave;
} doing;

/* Returns how many calls that was. */
static uint32_t run(bench *b, const doing *d) {
    if (!d->copies) return sl_lab_run(b->lab, &d->task);
    sl_lab_copy(b->lab, d->leave, d->task.rows);
    return 1;
}

/* Microseconds of the fastest of a few calls; a first one touches the weights. */
static double time_of(bench *b, const doing *d) {
    uint64_t began_ns = sl_now_ns(), best_ns = UINT64_MAX;
    const uint32_t calls = run(b, d);
    for (int i = 0; i < MOST_CALLS && (i == 0 || sl_now_ns() - began_ns < STAGE_BUDGET_NS); i++) {
        if (!d->copies && d->task.kind == SL_COST_SHARED) sl_lab_renew(b->lab);
        uint64_t at_ns = sl_now_ns();
        run(b, d);
        best_ns = SL_MIN(best_ns, sl_now_ns() - at_ns);
        if (b->o->tick) b->o->tick(b->o->ctx);
    }
    return (double)best_ns / 1e3 / calls;
}

/* So many rows surely stay within the budget of a call. */
static uint32_t rows_within(double one_us, uint32_t most) {
    double rows = one_us > 0 ? CALL_BUDGET_NS / 1e3 / one_us : most;
    return rows >= most ? most : rows < 1 ? 1 : (uint32_t)rows;
}

/* Once in each of several blocks: else every call of the first figure met weights that nobody has
 * read, and waited for a disk. */
static void touch_blocks(bench *b, const doing *d) {
    for (uint32_t i = 0; b->blocks.n > 1 && i < b->blocks.n; i++) run(b, d);
}

static sl_stage_cost line_of(bench *b, sl_cost_kind kind, uint32_t most, double per) {
    doing d = {.task = {.kind = kind, .rows = 1, .experts = b->n_experts}};
    if (kind != SL_COST_HEAD) touch_blocks(b, &d);
    double one = time_of(b, &d);
    uint32_t n = d.task.rows = rows_within(one, most);
    double many = n > 1 ? time_of(b, &d) : one;
    return (sl_stage_cost){.floor_us = one / per, .row_us = SL_MAX(many, one) / n / per};
}

static void measure_attention(bench *b, sl_costs *out) {
    sl_stage_cost attention = line_of(b, SL_COST_ATTENTION, b->max_rows, 1);
    uint32_t n = SL_MIN(rows_within(attention.floor_us, KEY_ROWS), b->max_rows);
    const doing first = {.task = {.kind = SL_COST_ATTENTION, .rows = n}};
    const doing last = {.task = {.kind = SL_COST_ATTENTION, .rows = n, .context = b->keys}};
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

/* Those blocks, with some of their experts. */
static sl_status open_lab(bench *b, uint32_t roles, sl_err *err) {
    const sl_measure_opts *o = b->o;
    /* matrices in 16 bits */
    const uint64_t each = 6ull * o->m->d_model * o->m->d_ff_expert * b->blocks.n;
    const uint64_t fit = SL_MAX(b->expert_bytes / SL_MAX(each, 1u), 1u);
    b->max_rows = SL_MAX(SL_MIN(o->rows, MOST_ROWS), 1u);
    b->keys = SL_MAX(SL_MIN(o->keys, MOST_KEYS), 1u);
    b->n_experts = (uint32_t)SL_MIN(SL_MIN(fit, MOST_EXPERTS), o->m->n_experts);
    const sl_lab_opts lo = {.model_folder = o->model_folder,
                            .m = o->m,
                            .isa = o->isa,
                            .threads = o->threads,
                            .activations = o->activations,
                            .roles = roles,
                            .device = o->device,
                            .blocks = b->blocks,
                            .experts = b->n_experts,
                            .head_rows = b->head_rows,
                            .max_rows = SL_MAX(b->max_rows, EXPERT_ROWS),
                            .max_pairs = b->n_experts * EXPERT_ROWS,
                            .pages = sl_kv_pages_for(SL_MAX(b->keys, b->max_rows)),
                            .tick = o->tick,
                            .ctx = o->ctx};
    return sl_lab_open(&lo, &b->lab, err);
}

static void measure_experts(bench *b, sl_costs *out) {
    out->stage[SL_COST_EXPERT] = line_of(b, SL_COST_EXPERT, EXPERT_ROWS, b->n_experts);
}

sl_status sl_measure_stages(const sl_measure_opts *o, sl_costs *out, sl_err *err) {
    bench b = {.o = o,
               .blocks = {o->m->moe_layer[o->m->n_moe / 2], 1}, /* one in the middle */
               .expert_bytes = EXPERT_BYTES};
    if (o->m->n_linear) b.blocks = sl_lab_first_blocks(o->m, 1); /* or of each kind */
    sl_status st = open_lab(&b, o->roles, err);
    if (st != SL_OK) return st;
    if (o->roles & SL_ROLE_ATTENTION) measure_attention(&b, out);
    if (o->roles & SL_ROLE_EXPERT) measure_experts(&b, out);
    return sl_lab_close(b.lab, st, err);
}

/* ---- of a kind of device ---- */

/* Half of what rows take to the host and back: of each two messages one does either. */
static sl_link_cost measure_copies(bench *b) {
    const double row_bytes = (double)b->o->m->d_model * sizeof(float);
    sl_link_cost both = {0};
    for (int leave = 0; leave < 2; leave++) {
        doing d = {.task = {.rows = 1}, .copies = true, .leave = leave};
        const double one = time_of(b, &d);
        d.task.rows = b->max_rows;
        const double many = b->max_rows > 1 ? time_of(b, &d) : one;
        const double more_bytes = SL_MAX(b->max_rows - 1u, 1u) * row_bytes;
        const double byte_us = SL_MAX(many - one, 0) / more_bytes;
        both.byte_us += byte_us / 2;
        both.alpha_us += SL_MAX(one - byte_us * row_bytes, 0) / 2;
    }
    return both;
}

static bool has_dense(const bench *b) {
    for (uint32_t i = 0; i < b->blocks.n; i++)
        if (b->o->m->ffn[b->blocks.first + i] == SL_FFN_DENSE) return true;
    return false;
}

sl_status sl_measure_kind(const sl_measure_opts *o, sl_kind_costs *out, sl_err *err) {
    bench b = {.o = o,
               .blocks = sl_lab_first_blocks(o->m, KIND_BLOCKS),
               .expert_bytes = KIND_BYTES,
               .head_rows = HEAD_ROWS};
    *out = (sl_kind_costs){0};
    sl_status st = open_lab(&b, SL_ROLE_ATTENTION | SL_ROLE_EXPERT, err);
    if (st != SL_OK) return st;
    sl_stage_cost *stage = out->costs.stage;
    measure_attention(&b, &out->costs);
    measure_experts(&b, &out->costs);
    if (has_dense(&b)) stage[SL_COST_DENSE] = line_of(&b, SL_COST_DENSE, b.max_rows, 1);
    stage[SL_COST_HEAD] = line_of(&b, SL_COST_HEAD, SL_MIN(HEAD_ROWS, b.max_rows), 1);
    if (o->device && !sl_device_is_cpu(o->device)) out->copies = measure_copies(&b);
    return sl_lab_close(b.lab, st, err);
}
