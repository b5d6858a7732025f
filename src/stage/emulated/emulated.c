/* The emulated device: a stage takes its modelled time and computes nothing, so coordinator, fabric
 * and schedules run for real with more workers than there are cores. Rows pass unchanged, experts
 * are drawn and add nothing; what travels is really packed, and what came back merged. */
#include "stage/emulated/emulated.h"

#include "base/rng.h"
#include "model/skew.h"
#include "spec/mtp_cost.h"
#include "spec/rank_cost.h"
#include "stage/stage_int.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

typedef struct emulated {
    sl_device base;
    sl_model_spec spec;
    sl_device_spec costs;
    sl_emulated clock;
    sl_skew *skew;
    sl_exec exec; /* of MERGE, with... */
    float *sum;   /* ...this */
} emulated;

/* x[i][d]: the id (below 2^24), which the head finds again, and zeroes. */
static void embed(const emulated *e, const sl_rowset *r) {
    size_t d = e->spec.d_model;
    float *x = sl_mem_ptr(r->x);
    memset(x, 0, r->n * d * sizeof *x);
    for (uint32_t i = 0; i < r->n; i++) x[i * d] = (float)r->id[i];
}

/* For tests of what is done about requests that crash workers. */
static void crash(void) {
    signal(SIGSEGV, SIG_DFL); /* also where a sanitizer has taken it */
    raise(SIGSEGV);
}

static void look_for(uint32_t crash_id, const sl_rowset *r) {
    for (uint32_t i = 0; crash_id && i < r->n; i++)
        if (r->id[i] == crash_id) crash();
}

static void attend(emulated *e, uint32_t layer, const sl_rowset *r) {
    uint64_t keys = 0;
    for (uint32_t i = 0; i < r->n; i++)
        keys += r->pos[i] - sl_sight_first(&e->spec, layer, r->pos[i]) + 1u;
    sl_emulated_run(&e->clock, SL_COST_ATTENTION, r->n, keys);
}

static void route(emulated *e, uint32_t layer, const sl_rowset *r) {
    size_t k = e->spec.top_k;
    uint32_t moe = e->spec.moe_index[layer];
    for (uint32_t i = 0; i < r->n; i++)
        sl_skew_draw(e->skew, r->id[i], r->pos[i], moe, r->expert + i * k, r->gate + i * k);
    memset(sl_mem_ptr(r->h), 0, (size_t)r->n * e->spec.d_model * sizeof(float));
    sl_emulated_run(&e->clock, SL_COST_ROUTER, r->n, 0);
}

/* Several stages pass as one task. */
static void pass_us(emulated *e, double us) {
    sl_emulated_pass(&e->clock, (uint64_t)(us * e->costs.time_scale * 1000.0));
}

static void experts(emulated *e, const sl_stage_experts *b) {
    const sl_stage_cost *cost = &e->costs.cost[SL_COST_EXPERT];
    double us = 0;
    for (uint32_t g = 0; g < b->n_groups; g++) {
        uint32_t n = b->first[g + 1] - b->first[g];
        if (n) us += sl_expert_cost_us(cost, e->costs.grouped, n, us <= 0);
    }
    for (uint32_t i = 0; i < b->n_parts; i++) {
        if (b->part[i].n == 0) continue; /* a member without rows: nothing is there */
        memset(sl_mem_ptr(b->part[i].rows), 0, b->part[i].n * e->spec.d_model * sizeof(float));
    }
    pass_us(e, us);
}

/* Experts add nothing, so the stream stays. */
static void inside(emulated *e, uint32_t layer, const sl_rowset *r) {
    const sl_stage_cost *cost = &e->costs.cost[SL_COST_EXPERT];
    uint32_t rows[SL_MAX_EXPERTS] = {0};
    double us = 0;
    route(e, layer, r);
    for (uint32_t i = 0; i < r->n * e->spec.top_k; i++) rows[r->expert[i]]++;
    for (uint32_t x = 0; x < e->spec.n_experts; x++)
        if (rows[x]) us += sl_expert_cost_us(cost, e->costs.grouped, rows[x], us <= 0);
    pass_us(e, us);
    if (e->spec.d_ff_shared) sl_emulated_run(&e->clock, SL_COST_SHARED, r->n, 0);
}

static uint32_t common_divisor(uint32_t a, uint32_t b) {
    while (b) {
        uint32_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* The next id is a bijection of the last one, of texts that repeat at each position: requests that
 * differ stay different. A round of a text is `period` tokens, a step apart. */
uint32_t sl_emulated_follows(const sl_device_spec *d, uint32_t vocab, uint32_t id, uint32_t pos) {
    uint32_t step = vocab / 3 + 1;
    while (common_divisor(vocab, step) != 1) step++;
    const bool ends = d->text_period && (pos + 1) % d->text_period == 0;
    const uint64_t back = ends ? (uint64_t)step * (d->text_period - 1) % vocab : 0;
    return (uint32_t)((ends ? (uint64_t)id + vocab - back : (uint64_t)id + step) % vocab);
}

/* Who strays goes on in the round that lies half of the vocabulary away. A function of the row. */
static bool strays(const sl_device_spec *d, uint64_t id, uint32_t pos) {
    uint64_t seed = id << 32 | pos;
    return d->text_period && (double)(sl_rng_next(&seed) >> 11) * 0x1p-53 < d->text_strays;
}

/* logits[vocab]: 1 at `id`, 0 elsewhere. */
static void say(const emulated *e, uint32_t id, float *logits) {
    memset(logits, 0, e->spec.vocab * sizeof *logits);
    logits[id] = 1;
}

/* The id behind that of row x, which is at `pos`. */
static void next_id(const emulated *e, const float *x, uint32_t pos, float *logits) {
    const uint32_t vocab = e->spec.vocab, id = (uint32_t)x[0];
    const uint32_t next = sl_emulated_follows(&e->costs, vocab, id, pos);
    say(e, strays(&e->costs, id, pos) ? (next + vocab / 2) % vocab : next, logits);
}

/* All of it with the last columns. */
static void head(emulated *e, const sl_stage_call *c) {
    const sl_stage_head *h = &c->head;
    size_t d = e->spec.d_model, vocab = e->spec.vocab;
    const float *x = sl_mem_ptr(c->rows.x);
    if (h->n == 0 || h->first + h->count < vocab) return;
    for (uint32_t i = 0; i < h->n && h->made; i++)
        say(e, (uint32_t)((const float *)sl_mem_ptr(h->h))[i * d], h->logits + i * vocab);
    for (uint32_t i = 0; i < h->n && !h->made; i++)
        next_id(e, x + h->row[i] * d, c->rows.pos[h->row[i]], h->logits + i * vocab);
    sl_emulated_run(&e->clock, SL_COST_HEAD, h->n, 0);
}

/* The block that guesses knows the text, and not who strays: rows that guess are the ids that they
 * say. */
static void guess(emulated *e, const sl_stage_call *c) {
    const sl_stage_mtp *m = &c->mtp;
    const size_t d = e->spec.d_model;
    double keys = 0;
    for (uint32_t i = 0; i < c->rows.n; i++) keys += c->rows.pos[i] + 1.0;
    for (uint32_t i = 0; i < m->n_last; i++) {
        const uint32_t r = m->last[i];
        float *h = (float *)sl_mem_ptr(m->h) + i * d;
        memset(h, 0, d * sizeof *h);
        h[0] =
            (float)sl_emulated_follows(&e->costs, e->spec.vocab, c->rows.id[r], c->rows.pos[r] + 1);
    }
    pass_us(e, sl_mtp_cost_us(e->costs.cost, e->costs.grouped, &e->spec, c->rows.n, keys));
}

static void run(emulated *e, const sl_stage_call *c) {
    const sl_rowset *r = &c->rows;
    sl_emulated_begin(&e->clock);
    switch (c->op) {
    case SL_OP_EMBED:
        look_for(e->costs.crash_id, r);
        embed(e, r);
        break;
    case SL_OP_ATTEND:
        if (r->n) attend(e, c->layer, r);
        break;
    case SL_OP_DENSE:
        if (r->n) sl_emulated_run(&e->clock, SL_COST_DENSE, r->n, 0);
        break;
    case SL_OP_ROUTE:
        if (r->n) route(e, c->layer, r);
        break;
    case SL_OP_INSIDE:
        if (r->n) inside(e, c->layer, r);
        break;
    case SL_OP_SHARED: /* leaves h, which ROUTE has zeroed */
        if (r->n) sl_emulated_run(&e->clock, SL_COST_SHARED, r->n, 0);
        break;
    case SL_OP_EXPERTS:
        experts(e, &c->experts);
        break;
    case SL_OP_HEAD:
        head(e, c);
        break;
    case SL_OP_MTP:
        guess(e, c);
        break;
    default:
        (void)sl_stage_run_rows(&e->exec, &e->spec, c, e->sum);
    }
    sl_emulated_end(&e->clock);
}

static void emulated_submit(sl_device *base, const sl_stage_call *c) {
    run((emulated *)base, c);
    sl_device_ran(base, c->queue);
}

uint64_t sl_emulated_count(sl_device *base, const sl_stage_call *c) {
    emulated *e = (emulated *)base;
    e->clock.counts = true;
    e->clock.counted_ns = 0;
    run(e, c);
    e->clock.counts = false;
    return e->clock.counted_ns;
}

static void emulated_close(sl_device *base) {
    emulated *e = (emulated *)base;
    sl_skew_free(e->skew);
    sl_free(e->sum);
    sl_free(e);
}

/* A gang is one device that takes as long as its ranks: nothing else of it would be seen. */
static void cost_of_gang(emulated *e, uint32_t ranks) {
    const sl_gang_cut cut = {.ranks = ranks,
                             .n_kv_heads = e->spec.n_kv_heads,
                             .latents = e->spec.kv_lora > 0,
                             .link = &e->costs.rank_link,
                             .row_bytes = e->spec.d_model * sizeof(float)};
    sl_gang_stages(e->costs.cost, &cut, e->costs.cost);
}

sl_status sl_emulated_open(const sl_device_opts *o, sl_device **out, sl_err *err) {
    static const sl_device_ops ops = {.close = emulated_close,
                                      .submit = emulated_submit,
                                      .take = sl_host_take,
                                      .give = sl_host_give};
    /* Without a router's logits every expert is as likely as the next. */
    const sl_route_skew even = {.on = true};
    emulated *e = sl_alloc(1, sizeof *e);
    if (!e) return sl_fail(err, SL_ERR_NOMEM, "device");
    e->costs = *o->device;
    e->clock = (sl_emulated){.device = &e->costs, .wait = o->wait, .ctx = o->ctx};
    e->base = (sl_device){.ops = &ops, .spec = &e->spec, .in_place = true, .inside = o->inside};
    e->base.mtp = o->hosts.mtp && o->hosts.attention;
    sl_status st = sl_stage_kernels(o->isa, &e->exec.k, err);
    if (st == SL_OK) st = sl_model_read_spec(o->folder, &e->spec, NULL, err);
    if (st == SL_OK) cost_of_gang(e, SL_MAX(o->ranks, 1u));
    if (st == SL_OK)
        st = sl_skew_create(o->hosts.skew.on ? &o->hosts.skew : &even, &e->spec, &e->skew, err);
    if (st == SL_OK && !(e->sum = sl_alloc(2 * (size_t)e->spec.d_model, sizeof *e->sum)))
        st = sl_fail(err, SL_ERR_NOMEM, "rows of %u", e->spec.d_model);
    /* The default slack of 50 us would be added to every wait. */
    (void)prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
    if (st == SL_OK)
        *out = &e->base;
    else
        emulated_close(&e->base);
    return st;
}
