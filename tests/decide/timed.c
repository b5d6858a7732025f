/* A device whose stages take their modelled times on a virtual clock: the emulated one's results,
 * which need no weights, and a wait for what the stage costs, at the end of which the fabric is
 * driven once, as other devices do it all the while. */
#include "base/mem.h"
#include "decide.h"

typedef struct timed {
    sl_device base;
    sl_device *inner;
    const stage_times *times;
    void (*tick)(void *ctx);
    void *tick_ctx;
    double owed_us;       /* of a block's attention, which passes with what follows it */
    uint32_t head_pieces; /* of the running call of the head */
} timed;

static double stage_us(const timed *t, sl_cost_kind kind, double rows, double keys) {
    return rows > 0 ? sl_stage_cost_us(&t->times->costs->stage[kind], rows, keys) : 0;
}

static double keys_of(const timed *t, const sl_stage_call *c) {
    double keys = 0;
    for (uint32_t i = 0; i < c->rows.n; i++) {
        uint32_t pos = c->rows.pos[i];
        keys += pos - sl_sight_first(t->base.spec, c->layer, pos) + 1u;
    }
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
    if (h->first == 0) t->head_pieces = (t->base.spec->vocab - 1) / h->count + 1;
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
    default:
        return 0;
    }
}

static void timed_submit(sl_device *base, const sl_stage_call *c) {
    timed *t = (timed *)base;
    (void)sl_device_submit(t->inner, c);
    t->owed_us += call_us(t, c);
    if (t->owed_us > 0 && c->op != SL_OP_ATTEND) {
        t->times->pass(t->times->ctx, t->owed_us);
        t->owed_us = 0;
        t->tick(t->tick_ctx);
    }
    base->done[c->queue]++;
    base->in_flight--;
}

static sl_status timed_take(sl_device *base, size_t bytes, sl_mem *out, sl_err *err) {
    sl_device *inner = ((timed *)base)->inner;
    return inner->ops->take(inner, bytes, out, err);
}

static void timed_give(sl_device *base, sl_mem m) {
    sl_device *inner = ((timed *)base)->inner;
    inner->ops->give(inner, m);
}

static void timed_close(sl_device *base) {
    timed *t = (timed *)base;
    sl_device_close(t->inner);
    sl_free(t);
}

sl_status timed_open(void *ctx, const sl_device_opts *o, sl_device **out, sl_err *err) {
    static const sl_device_ops ops = {
        .close = timed_close, .submit = timed_submit, .take = timed_take, .give = timed_give};
    static const sl_device_spec nothing = {.kind = SL_DEVICE_EMULATED};
    sl_device_opts inner = *o;
    inner.device = &nothing;
    inner.tick = NULL;
    timed *t = sl_alloc(1, sizeof *t);
    if (!t) return sl_fail(err, SL_ERR_NOMEM, "device");
    sl_status st = sl_device_open(&inner, &t->inner, err);
    if (st != SL_OK) {
        sl_free(t);
        return st;
    }
    t->times = ctx;
    t->tick = o->tick;
    t->tick_ctx = o->ctx;
    t->base = (sl_device){.ops = &ops, .spec = t->inner->spec, .in_place = true};
    *out = &t->base;
    return SL_OK;
}
