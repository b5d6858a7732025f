/* Experts that move between a GPU and a processor while requests run, by what is asked for and by
 * how fast either is. The GPU is emulated, so it is slow: the processor is made slower than that,
 * and what is asked for most comes to the GPU, as far as its memory goes; then it is no more, and
 * they leave again. Where all had room and went, they stay: nobody measures a processor that
 * computes none. No token differs from those of one worker on a processor.
 *
 * usage: test_hot loop SLUICE MODEL_FOLDER */
#define STREAMS    6u
#define MAX_PROMPT 16u
#define N_NEW      16u
#define DEADLINE_S 150

#include "streams.h"

#include "around.h"
#include "base/clock.h"
#include "format/plan_gpu.h"
#include "format/plan_json.h"
#include "format/plan_lab.h"
#include "sanitized.h"

#include <stdatomic.h>

/* ---- a processor that takes its time ---- */

static _Atomic uint32_t slow_us; /* for a pair of row and expert */

static void slow_submit(sl_device *d, const sl_stage_call *c) {
    sl_device *inner = ((around *)d)->inner;
    sl_device_submit(inner, c);
    sl_device_drain(inner);
    if (c->op == SL_OP_EXPERTS) {
        const uint64_t us = (uint64_t)atomic_load(&slow_us) * c->experts.first[c->experts.n_groups];
        const struct timespec t = {.tv_sec = (time_t)(us / 1000000),
                                   .tv_nsec = (long)(us % 1000000 * 1000)};
        nanosleep(&t, NULL);
    }
    around_done(d, c->queue);
}

static sl_status open_slow(void *ctx, const sl_device_opts *o, sl_device **out, sl_err *err) {
    static const sl_device_ops ops = {.close = around_close,
                                      .submit = slow_submit,
                                      .take = around_take,
                                      .give = around_give,
                                      .host = around_host,
                                      .read_page = around_read_page,
                                      .write_page = around_write_page};
    around *a;
    (void)ctx;
    if (!sl_device_is_cpu(o->device)) return sl_device_open(o, out, err);
    sl_status st = around_open(sizeof *a, &ops, sl_device_open, o, &a, err);
    if (st == SL_OK) *out = &a->base;
    return st;
}

/* ---- deployments ---- */

static int run(sl_engine *e, outcome *o) {
    int bad = 0;
    n_begun = n_ended = 0;
    for (uint32_t i = 0; !bad && i < STREAMS; i++) bad = submit(e, i, 5 + i, N_NEW, &o[i]);
    return bad ? bad : await(&n_ended, STREAMS, STREAMS);
}

static void limits(sl_plan *p) {
    sl_err err;
    p->exact = true;
    p->threads = 1;
    p->kv_type = SL_KV_F32;
    p->context = MAX_PROMPT + N_NEW;
    p->n_pages = STREAMS * sl_kv_pages_for(p->context);
    p->max_num_batched_tokens = 32;
    p->device.numerics = SL_NUMERICS_CPU;
    if (sl_route_skew_parse("exp:0.6", &p->skew, &err) != SL_OK) abort();
}

typedef enum shape { APART, COLOCATED, BESIDE_ATTENTION } shape;

static const char *const shapes[] = {"apart", "colocated", "beside attention on the GPU"};

/* The GPU has the last experts, which are asked for least; beside attention that is alone with it,
 * none. */
static sl_plan plan_of(shape x, sl_schedule schedule, uint64_t memory, uint32_t *gpu) {
    const bool both = x == COLOCATED;
    sl_err err;
    sl_plan p;
    if (sl_plan_local(&spec, both ? 2 : 1, both ? 0 : 2, &p, &err) != SL_OK) abort();
    sl_plan_set_schedule(&p, schedule);
    limits(&p);
    *gpu = x == BESIDE_ATTENTION ? 0 : p.n_workers - 1;
    p.worker[*gpu].on_gpu = true;
    p.worker[*gpu].roles |= SL_ROLE_EXPERT;
    p.device.gpu_memory = memory;
    return p;
}

static sl_engine *start(const sl_plan *p, const sl_adapt_opts *adapt, uint64_t expert_bytes) {
    sl_err err;
    sl_engine *e = NULL;
    sl_engine_opts o = options_of(p);
    o.adapt = adapt;
    o.expert_bytes = expert_bytes;
    o.device = (sl_device_maker){.open = open_slow};
    if (sl_engine_create(&o, &e, &err) != SL_OK) printf("FAILED start: %s\n", err.msg);
    return e;
}

static int run_alone(outcome *want) {
    sl_err err;
    sl_plan p;
    if (sl_plan_local(&spec, 0, 0, &p, &err) != SL_OK) abort();
    limits(&p);
    sl_engine *e = start(&p, NULL, 0);
    int bad = e ? run(e, want) : 1;
    sl_engine_free(e);
    sl_plan_free(&p);
    return bad;
}

/* What a worker has computed so far, and the room that its device has. */
static int look(sl_engine *e, uint32_t worker, uint64_t *rows, uint64_t *all, uint64_t *room) {
    sl_engine_detail d;
    sl_err err;
    if (sl_engine_detail_get(e, &d, &err) != SL_OK) return printf("FAILED %s\n", err.msg);
    *rows = d.worker[worker].expert_rows;
    *room = d.worker[worker].device_free;
    *all = 0;
    for (uint32_t i = 0; i < d.n_workers; i++) *all += d.worker[i].expert_rows;
    sl_engine_detail_free(&d);
    return 0;
}

/* Requests until the GPU computes such a share of the rows, `most` or more of them or less. */
static int run_until(sl_engine *e, uint32_t gpu, bool onto, double share, const outcome *want) {
    static outcome got[STREAMS];
    const uint64_t until_ns = sl_now_ns() + DEADLINE_S * 1000000000ull;
    double is = onto ? 0 : 1;
    uint32_t rounds = 0;
    int bad = 0;
    sl_engine_stats s;
    while (!bad && (onto ? is < share : is > share)) {
        uint64_t rows[2] = {0}, all[2] = {0}, room;
        bad = look(e, gpu, &rows[0], &all[0], &room);
        if (!bad) bad = run(e, got);
        if (!bad) bad = same(want, got, STREAMS);
        nanosleep(&(struct timespec){.tv_nsec = 600000000}, NULL); /* two reports */
        if (!bad) bad = look(e, gpu, &rows[1], &all[1], &room);
        if (!bad && all[1] > all[0]) is = (double)(rows[1] - rows[0]) / (double)(all[1] - all[0]);
        rounds++;
        sl_engine_stats_get(e, &s);
        if (!bad && sl_now_ns() > until_ns)
            bad = printf("FAILED after %u rounds and %llu changes the GPU has %.2f of the rows\n",
                         rounds, (unsigned long long)s.adapt.changes, is);
    }
    sl_engine_stats_get(e, &s);
    if (!bad && s.adapt.failed)
        bad = printf("FAILED %llu changes\n", (unsigned long long)s.adapt.failed);
    if (!bad)
        printf("  %u rounds, %llu changes: the GPU has %.2f of the rows\n", rounds,
               (unsigned long long)s.adapt.changes, is);
    return bad;
}

static sl_adapt_opts quick(void) {
    sl_adapt_opts o = SL_ADAPT_OPTS;
    o.window_us = 200000;
    o.window_rows = 60;
    o.rest_us = 300000;
    o.horizon_us = 3600000000u;
    return o;
}

/* Memory for about `more` experts beside those that the GPU begins with. */
static int choose_memory(sl_plan *p, uint32_t gpu, uint64_t expert_bytes, uint32_t more) {
    int bad = 0;
    for (int k = 0; !bad && k < 2; k++) { /* room is said with caution: the less, the closer */
        uint64_t rows, all, room = 0;
        sl_engine *e = start(p, NULL, expert_bytes);
        bad = e ? 0 : 1;
        for (int i = 0; !bad && room == 0 && i < 100; i++) {
            nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
            bad = look(e, gpu, &rows, &all, &room);
        }
        sl_engine_free(e);
        p->device.gpu_memory -= room;
        p->device.gpu_memory += more * expert_bytes;
    }
    return bad;
}

static int run_deployment(shape x, sl_schedule schedule, uint32_t more, const outcome *want) {
    const sl_adapt_opts o = quick();
    sl_model_info info;
    sl_err err;
    uint64_t memory = 64u << 20;
    if (sl_model_inspect(folder, &info, &err) != SL_OK) return printf("FAILED %s\n", err.msg);
    printf("%s, %s, room for %s\n", shapes[x], sl_schedule_name(schedule),
           more ? "few more" : "all");
    uint32_t gpu;
    sl_plan p = plan_of(x, schedule, memory, &gpu);
    int bad = more ? choose_memory(&p, gpu, info.bytes_expert_most, more) : 0;
    atomic_store(&slow_us, 20000);
    sl_engine *e = bad ? NULL : start(&p, &o, info.bytes_expert_most);
    bad |= !e;
    if (!bad) bad = run_until(e, gpu, true, more ? 0.5 : 0.6, want);
    atomic_store(&slow_us, 0);
    if (!bad && more) bad = run_until(e, gpu, false, 0.3, want);
    sl_engine_free(e);
    sl_plan_free(&p);
    return bad;
}

int main(int argc, char **argv) {
    static outcome want[STREAMS];
    size_t one_in;
    if (!read_arguments(argc, argv, &one_in)) return 2;
    int bad = run_alone(want);
    if (!bad && take_whole()) bad = run_deployment(APART, SL_SCHED_DEP, 0, want);
    if (!bad) bad = run_deployment(APART, SL_SCHED_AEP, 5, want);
    if (!bad) bad = run_deployment(COLOCATED, SL_SCHED_EP, 5, want);
    if (!bad && take_whole()) bad = run_deployment(BESIDE_ATTENTION, SL_SCHED_AEP, 0, want);
    printf("%s\n", bad ? "FAILED" : "no token changed");
    return bad != 0;
}
