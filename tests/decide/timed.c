/* A device whose stages take their modelled times on a virtual clock: the emulated one's results,
 * which need no weights, and a wait for what the stage costs, at the end of which the fabric is
 * driven once, as other devices do it all the while. */
#include "around.h"
#include "decide.h"
#include "spec/mtp_cost.h"

/* What the block that guesses cannot know: a quarter of all tokens strays. Nothing is said twice.
 */
const sl_device_spec decide_device = {.kind = SL_DEVICE_EMULATED,
                                      .time_scale = 1,
                                      .rank_link = {.alpha_us = 1},
                                      .text_period = 1u << 16,
                                      .text_strays = 0.25};

typedef struct timed {
    around in;
    const stage_times *times;
    void (*tick)(void *ctx);
    void *tick_ctx;
    double owed_us;       /* of a block's attention, and of guesses, which pass with what follows */
    uint32_t head_pieces; /* of the running call of the head */
} timed;

static double stage_us(const timed *t, sl_cost_kind kind, double rows, double keys) {
    return rows > 0 ? sl_stage_cost_us(&t->times->costs->stage[kind], rows, keys) : 0;
}

static double keys_of(const timed *t, const sl_stage_call *c) {
    double keys = 0;
    for (uint32_t i = 0; i < c->rows.n; i++) {
        uint32_t pos = c->rows.pos[i];
        keys += pos - sl_sight_first(t->in.base.spec, c->layer, pos) + 1u;
    }
    return keys;
}

/* The block that guesses sees all positions. */
static double whole_keys_of(const sl_stage_call *c) {
    double keys = 0;
    for (uint32_t i = 0; i < c->rows.n; i++) keys += c->rows.pos[i] + 1.0;
    return keys;
}

static double experts_us(const timed *t, const sl_stage_experts *b) {
    double us = 0;
    for (uint32_t g = 0; g < b->n_groups; g++)
        us += stage_us(t, SL_COST_EXPERT, b->first[g + 1] - b->first[g], 0);
    return us;
}

/* Its share of what the call's rows cost: pieces are alike, though the last has fewer columns. */
static double head_us(timed *t, const sl_stage_head *h) {
    if (h->first == 0) t->head_pieces = (t->in.base.spec->vocab - 1) / h->count + 1;
    return stage_us(t, SL_COST_HEAD, h->n, 0) / t->head_pieces;
}

static double call_us(timed *t, const sl_stage_call *c) {
    switch (c->op) {
    case SL_OP_EMBED:
        return c->rows.n == 0 ? SL_SIM_EMPTY_STEP_US : 0;
    case SL_OP_ATTEND:
        return stage_us(t, SL_COST_ATTENTION, c->rows.n, keys_of(t, c));
    case SL_OP_ROUTE:
        return stage_us(t, SL_COST_ROUTER, c->rows.n, 0);
    case SL_OP_DENSE:
        return stage_us(t, SL_COST_DENSE, c->rows.n, 0);
    case SL_OP_SHARED:
        return stage_us(t, SL_COST_SHARED, c->rows.n, 0);
    case SL_OP_EXPERTS:
        return experts_us(t, &c->experts);
    case SL_OP_HEAD:
        return head_us(t, &c->head);
    case SL_OP_MTP:
        return sl_mtp_cost_us(t->times->costs->stage, false, t->in.base.spec, c->rows.n,
                              whole_keys_of(c));
    default:
        return 0;
    }
}

static void timed_submit(sl_device *base, const sl_stage_call *c) {
    timed *t = (timed *)base;
    (void)sl_device_submit(t->in.inner, c);
    t->owed_us += call_us(t, c);
    const bool goes_on = c->op == SL_OP_ATTEND || (c->op == SL_OP_MTP && c->mtp.n_last > 0);
    if (t->owed_us > 0 && !goes_on) {
        t->times->pass(t->times->ctx, t->owed_us);
        t->owed_us = 0;
        t->tick(t->tick_ctx);
    }
    around_done(base, c->queue);
}

sl_status timed_open(void *ctx, const sl_device_opts *o, sl_device **out, sl_err *err) {
    static const sl_device_ops ops = {
        .close = around_close, .submit = timed_submit, .take = around_take, .give = around_give};
    sl_device_opts inner = *o;
    inner.device = &decide_device;
    inner.tick = NULL;
    around *a;
    sl_status st = around_open(sizeof(timed), &ops, sl_device_open, &inner, &a, err);
    if (st != SL_OK) return st;
    timed *t = (timed *)a;
    t->times = ctx;
    t->tick = o->tick;
    t->tick_ctx = o->ctx;
    t->in.base.in_place = true;
    t->in.base.mtp = t->in.inner->mtp;
    *out = &t->in.base;
    return SL_OK;
}
