/* Times of the stages on a GPU, asked of it as a worker asks, and of rows that leave it and come
 * back. */
#include "profile.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/measure/stage_lab.h"
#include "format/plan_gpu.h"
#include "format/plan_json.h"
#include "plan/fit.h"
#include "spec/kv.h"
#include "stage/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS       8u /* that take turns */
#define MAX_ROWS     512u
#define MAX_PAIRS    4096u
#define MAX_GROUPS   32u
#define HEAD_ROWS    64u
#define MAX_CONTEXT  2048u
#define KV_BYTES     ((size_t)256 << 20)
#define WEIGHT_BYTES ((uint64_t)2 << 30) /* of experts: more than any cache of a GPU */
#define POINT_NS     40000000ull         /* a point is repeated for so long... */
#define MIN_REPS     5u                  /* ...but so often */
#define MAX_REPS     64u
#define SLOW_NS      300000000ull /* calls as slow as this are not repeated, and nothing larger */

typedef struct bench {
    sl_lab *lab;
    sl_model_spec spec;
    sl_lab_opts o;
    sl_profile_progress *progress;
    sl_profile_point point[SL_PROFILE_MAX_POINTS];
    uint32_t n_points;
} bench;

/* A stage, or rows that are copied. */
typedef struct doing {
    sl_lab_task task;
    bool copies, leave;
} doing;

static void run(bench *b, const doing *d) {
    if (d->copies)
        sl_lab_copy(b->lab, d->leave, d->task.rows);
    else
        (void)sl_lab_run(b->lab, &d->task); /* one call: GPUs have no linear attention */
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median of the repetitions, microseconds. The first call meets code that was never run. */
static double time_of(bench *b, const doing *d) {
    double us[MAX_REPS];
    uint64_t spent = 0;
    uint32_t n = 0;
    run(b, d);
    while (n < MAX_REPS && (n < MIN_REPS || spent < POINT_NS)) {
        if (!d->copies && d->task.kind == SL_COST_SHARED) sl_lab_renew(b->lab);
        const uint64_t began_ns = sl_now_ns();
        run(b, d);
        const uint64_t took_ns = sl_now_ns() - began_ns;
        us[n++] = (double)took_ns / 1e3;
        spent += took_ns;
        if (took_ns > SLOW_NS) break;
    }
    qsort(us, n, sizeof *us, by_value);
    return us[n / 2];
}

/* Points of so many rows, up to `most`; of copies in bytes. */
static void series(bench *b, const char *what, doing d, uint32_t most) {
    const double row_bytes = (double)b->spec.d_model * sizeof(float);
    for (uint32_t rows = 1; rows <= most && b->n_points < SL_PROFILE_MAX_POINTS; rows *= 2) {
        d.task.rows = rows;
        const double us = time_of(b, &d), keys = (double)rows * d.task.context;
        b->point[b->n_points++] =
            (sl_profile_point){.rows = d.copies ? rows * row_bytes : rows,
                               .keys = keys,
                               .us = us / SL_MAX(d.copies ? 1u : d.task.experts, 1u)};
        sl_profile_step(b->progress, what);
        if (us * 1e3 > (double)SLOW_NS && rows > 1) return;
    }
}

/* ---- what is measured ---- */

static sl_status finish(bench *b, sl_profile_stage *s, sl_err *err) {
    sl_status st = sl_fit_stage(b->point, b->n_points, &s->cost, &s->fit, err);
    if (st == SL_OK) st = sl_profile_keep(b->point, b->n_points, &s->points, err);
    s->present = true;
    b->n_points = 0;
    return st;
}

static sl_status measure_attention(bench *b, sl_profile *p, sl_err *err) {
    for (uint32_t context = 32; context <= MAX_CONTEXT; context *= 8) {
        if (sl_kv_pages_for(context) > b->o.pages) break;
        const doing d = {.task = {.kind = SL_COST_ATTENTION, .context = context}};
        series(b, "attention", d, MAX_ROWS);
    }
    return finish(b, &p->stage[SL_COST_ATTENTION], err);
}

static sl_status measure_experts(bench *b, sl_profile *p, sl_err *err) {
    const uint32_t groups = SL_MIN(b->o.experts, MAX_GROUPS);
    const doing d = {.task = {.kind = SL_COST_EXPERT, .experts = groups}};
    series(b, "experts", d, SL_MIN(MAX_PAIRS / groups, MAX_ROWS));
    return finish(b, &p->stage[SL_COST_EXPERT], err);
}

static sl_status measure_plain(bench *b, sl_cost_kind kind, const char *what, uint32_t most,
                               sl_profile *p, sl_err *err) {
    series(b, what, (doing){.task = {.kind = kind}}, most);
    return finish(b, &p->stage[kind], err);
}

static sl_status measure_copies(bench *b, bool leave, const char *name, sl_profile *p,
                                sl_err *err) {
    if (p->n_links == SL_PROFILE_MAX_LINKS) return SL_OK;
    sl_profile_link *l = &p->link[p->n_links];
    *l = (sl_profile_link){.peers = 1};
    snprintf(l->transport, sizeof l->transport, "%s", name);
    series(b, "copies", (doing){.copies = true, .leave = leave}, MAX_ROWS);
    sl_status st = sl_fit_link(b->point, b->n_points, &l->cost, &l->fit, err);
    if (st == SL_OK) st = sl_profile_keep(b->point, b->n_points, &l->points, err);
    b->n_points = 0;
    if (st == SL_OK) p->n_links++;
    return st;
}

static bool has_dense(const bench *b) {
    const sl_extent *e = &b->o.blocks;
    for (uint32_t i = 0; i < e->n; i++)
        if (b->spec.ffn[e->first + i] == SL_FFN_DENSE) return true;
    return false;
}

static sl_status measure(bench *b, sl_profile *p, sl_err *err) {
    sl_status st = measure_experts(b, p, err);
    if (st == SL_OK) st = measure_attention(b, p, err);
    if (st == SL_OK) st = measure_plain(b, SL_COST_ROUTER, "router", MAX_ROWS, p, err);
    if (st == SL_OK && has_dense(b))
        st = measure_plain(b, SL_COST_DENSE, "dense", MAX_ROWS, p, err);
    if (st == SL_OK && b->spec.d_ff_shared)
        st = measure_plain(b, SL_COST_SHARED, "shared", MAX_ROWS, p, err);
    if (st == SL_OK) st = measure_plain(b, SL_COST_HEAD, "head", HEAD_ROWS, p, err);
    if (st == SL_OK) st = measure_copies(b, true, SL_PROFILE_GPU_OUT, p, err);
    return st == SL_OK ? measure_copies(b, false, SL_PROFILE_GPU_IN, p, err) : st;
}

/* ---- on what ---- */

/* --device and --numerics, as of a plan with one worker. */
static sl_status read_device(const sl_options *o, sl_model_spec *m, sl_device_spec *out,
                             sl_err *err) {
    sl_plan p;
    if (strncmp(o->device, "cuda:", 5) != 0)
        return sl_fail(err, SL_ERR_ARG, "--device: '%.40s' is neither cpu nor a GPU, cuda:N",
                       o->device);
    sl_status st = sl_plan_local(m, 1, 0, &p, err);
    if (st != SL_OK) return st;
    st = sl_plan_set_devices("--device", SL_DEVICES_OF_ALL, o->device, &p, err);
    *out = sl_plan_device_of(&p, 0);
    out->numerics = SL_NUMERICS_FAST;
    if (st == SL_OK && o->numerics[0]) st = sl_numerics_parse(o->numerics, &out->numerics, err);
    sl_plan_free(&p);
    return st;
}

static void plan_lab(bench *b, const sl_options *o, const sl_device_spec *device,
                     const char *kernels) {
    const sl_model_spec *m = &b->spec;
    const sl_extent blocks = sl_lab_first_blocks(m, BLOCKS);
    const uint64_t each = 6ull * m->d_model * m->d_ff_expert * blocks.n; /* in 16 bits */
    const uint64_t fit = SL_MAX(WEIGHT_BYTES / SL_MAX(each, 1u), 1u);
    const size_t page = blocks.n * sl_kv_block_bytes(m);
    b->o = (sl_lab_opts){.model_folder = o->arg[0],
                         .m = m,
                         .isa = kernels,
                         .threads = 1,
                         .activations = SL_ACTIVATIONS_DEFAULT,
                         .roles = SL_ROLE_ATTENTION | SL_ROLE_EXPERT,
                         .device = device,
                         .blocks = blocks,
                         .experts = (uint32_t)SL_MIN(fit, m->n_experts),
                         .head_rows = HEAD_ROWS,
                         .max_rows = MAX_ROWS,
                         .max_pairs = MAX_PAIRS,
                         .pages = (uint32_t)SL_MAX(KV_BYTES / page, sl_kv_pages_for(MAX_ROWS))};
}

static void describe_gpu(uint32_t index, sl_profile *p) {
    sl_cuda_gpus all;
    sl_cuda_list_devices(&all);
    for (uint32_t i = 0; i < all.n; i++)
        if (all.gpu[i].index == index) {
            snprintf(p->machine, sizeof p->machine, "%s", all.gpu[i].name);
            p->memory_bytes = (double)all.gpu[i].memory_bytes;
        }
    sl_cuda_gpus_free(&all);
    snprintf(p->isa, sizeof p->isa, "cuda");
    p->threads = 1;
}

sl_status sl_profile_device(const sl_options *o, const char *kernels, sl_profile_progress *progress,
                            sl_profile *p, sl_err *err) {
    sl_device_spec device;
    bench *b = sl_alloc(1, sizeof *b);
    if (!b) return sl_fail(err, SL_ERR_NOMEM, "no memory to measure");
    b->progress = progress;
    sl_status st = sl_model_read_spec(o->arg[0], &b->spec, NULL, err);
    if (st == SL_OK && b->spec.weightless)
        st = sl_fail(err, SL_ERR_UNSUPPORTED,
                     "%s has no weights: a GPU is measured with a checkpoint's", o->arg[0]);
    b->spec.kv_type = SL_KV_F32; /* what `auto` is where there is a GPU */
    if (st == SL_OK) st = read_device(o, &b->spec, &device, err);
    progress->total += SL_PROFILE_DEVICE_POINTS;
    if (st == SL_OK) {
        describe_gpu(device.index, p);
        sl_profile_name(o->arg[0], p->model, sizeof p->model);
        plan_lab(b, o, &device, kernels);
        st = sl_lab_open(&b->o, &b->lab, err);
    }
    if (st == SL_OK) st = sl_lab_close(b->lab, measure(b, p, err), err);
    sl_free(b);
    return st;
}
