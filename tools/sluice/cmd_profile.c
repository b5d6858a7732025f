/* Measures this machine's kernels for a model and the links between its processes, fits both, and
 * writes profile.json. */
#include "cmd.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/output.h"
#include "format/profile_file.h"
#include "profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KERNELS_NS 75000000000ull /* with links and opening this is below two minutes */

void sl_profile_step(sl_profile_progress *p, const char *what) {
    char name[64];
    p->done++;
    snprintf(name, sizeof name, "profile: %s", what);
    sl_progress_name(&p->line, name);
    sl_progress_set(&p->line, SL_MIN(p->done, p->total), p->total);
}

sl_status sl_profile_keep(const sl_profile_point *point, uint32_t n, sl_profile_points *out,
                          sl_err *err) {
    out->point = sl_alloc(n, sizeof *point);
    if (!out->point) return sl_fail(err, SL_ERR_NOMEM, "no memory for %u points", n);
    memcpy(out->point, point, n * sizeof *point);
    out->n = n;
    return SL_OK;
}

static void describe_machine(sl_profile *p) {
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    p->cores = cores > 0 ? (uint32_t)cores : 1;
    p->memory_bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon || !colon[1]) continue;
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(p->machine, sizeof p->machine, "%s", colon + 2);
        break;
    }
    if (f) fclose(f);
}

static void warn_when_busy(const sl_profile *p) {
    double load = 0;
    if (getloadavg(&load, 1) == 1 && load > 0.5 * p->cores)
        sl_log(SL_LOG_WARN, "profile",
               "other programs run here (load %.1f on %u cores): times will come out long", load,
               p->cores);
}

static bool is_of_device(const sl_options *o) {
    return o->device[0] && strcmp(o->device, "cpu") != 0;
}

static sl_status measure_machine(const sl_options *o, sl_profile_progress *progress, sl_profile *p,
                                 sl_err *err) {
    sl_model *m = NULL;
    sl_pool *pool = NULL;
    sl_exec ex = {.activations = SL_ACTIVATIONS_DEFAULT};
    char kernels[SL_KERNELS_SPEC_MAX];
    sl_status st = sl_deploy_kernels(o, kernels, err);
    if (st != SL_OK) return st;
    ex.k = sl_kernels_select(kernels);
    if (!ex.k) return sl_fail(err, SL_ERR_NOMEM, "table of kernels");
    p->threads = o->threads ? o->threads : p->cores;
    snprintf(p->isa, sizeof p->isa, "%s", sl_kernels_name(ex.k));
    if (is_of_device(o)) return sl_profile_device(o, kernels, progress, p, err);
    progress->total += SL_PROFILE_KERNEL_POINTS;
    for (size_t i = 0; sl_transport_at(i); i++)
        progress->total += sl_transport_at(i)->needs ? 0 : SL_PROFILE_LINK_POINTS;
    st = sl_profile_model_open(o->arg[0], &m, &p->random_weights, p->model, sizeof p->model, err);
    if (st == SL_OK) warn_when_busy(p);
    /* Peers are forked before the pool's threads exist. */
    const sl_transport_kind *kind;
    for (size_t i = 0; st == SL_OK && (kind = sl_transport_at(i)) != NULL; i++)
        if (!kind->needs) st = sl_profile_links(kind, progress, p, err);
    if (st == SL_OK) st = sl_pool_create(p->threads, &pool, err);
    ex.pool = pool;
    if (st == SL_OK) st = sl_profile_kernels(m, &ex, sl_now_ns() + KERNELS_NS, progress, p, err);
    sl_pool_free(pool);
    sl_model_free(m);
    return st;
}

static sl_status measure(const sl_options *o, sl_profile *p, sl_err *err) {
    sl_profile_progress progress = {0};
    uint64_t begin = sl_now_ns();
    sl_status st = SL_OK;
    describe_machine(p);
    sl_progress_begin(&progress.line, "profile", SL_PROGRESS_STEPS, !o->json);
    if (o->links_to[0]) progress.total = SL_PROFILE_LINK_POINTS;
    if (o->links_to[0]) st = sl_profile_links_to(o, &progress, p, err);
    if (st == SL_OK && o->n_args) st = measure_machine(o, &progress, p, err);
    sl_progress_end(&progress.line);
    p->seconds = (double)(sl_now_ns() - begin) / 1e9;
    return st;
}

/* Of equal times R2 says nothing. */
static void print_fit(const sl_fit_quality *q, bool flat) {
    if (flat)
        printf("  R2 -");
    else
        printf("  R2 %.4f", q->r2);
    printf(", error %4.1f %% (worst %.0f %%), %u points, %u outliers\n", 100 * q->median_error,
           100 * q->worst_error, q->n_points, q->n_outliers);
}

/* With "loop" nobody copies: there is no rate. */
static void print_rate(const sl_profile_link *l) {
    const sl_link_cost *c = &l->cost;
    printf("  %-7s to %u   %8.2f us (%.2f at either end)", l->transport, l->peers, c->alpha_us,
           c->work_us);
    if (c->byte_us > 0)
        printf(" + bytes at %7.3f GB/s", 1e-3 / c->byte_us);
    else
        printf(" + bytes at no rate    ");
    if (c->beyond_us > 0)
        printf(", from %.0f KiB on %.3f GB/s", c->knee_bytes / 1024,
               1e-3 / (c->byte_us + c->beyond_us));
}

static void print_text(const sl_profile *p) {
    if (p->threads == 0)
        printf("%s: links alone: %.0f s\n", p->machine, p->seconds);
    else
        printf("%s on %s, %s, %u thread%s of %u cores%s: %.0f s\n", p->model, p->machine, p->isa,
               p->threads, p->threads == 1 ? "" : "s", p->cores,
               p->random_weights ? ", random weights" : "", p->seconds);
    for (int k = 0; k < SL_COST_COUNT; k++) {
        const sl_profile_stage *s = &p->stage[k];
        if (!s->present) continue;
        printf("  %-10s %9.2f us + max(%9.2f", sl_cost_name((sl_cost_kind)k), s->cost.fixed_us,
               s->cost.floor_us);
        if (s->cost.slope_us > 0) printf(" + %.2f a row", s->cost.slope_us);
        printf(", %9.3f a row", s->cost.row_us);
        if (k == SL_COST_ATTENTION) printf(" + %.5f a key", s->cost.key_us);
        if (s->cost.step > 1) printf(" + %.3f to a multiple of %u", s->cost.pad_us, s->cost.step);
        printf(")");
        if (s->cost.task_us > 0) printf(" + %.2f a task", s->cost.task_us);
        if (s->cost.again_us > 0) printf(", %.2f less from a cache", s->cost.again_us);
        if (s->beside > 0) printf(" x %.3f beside a neighbour", s->beside);
        print_fit(&s->fit, false);
    }
    for (uint32_t i = 0; i < p->n_links; i++) {
        const sl_profile_link *l = &p->link[i];
        print_rate(l);
        print_fit(&l->fit, l->cost.byte_us <= 0);
    }
}

static sl_status write_profile(const char *path, const sl_profile *p, sl_err *err) {
    json_t *v = sl_profile_json(p);
    sl_output o = {0};
    sl_status st = SL_OK;
    if (!v) st = sl_fail(err, SL_ERR_NOMEM, "no memory for the profile");
    if (st == SL_OK) st = sl_output_open(path, &o, err);
    if (st == SL_OK) {
        if (json_dumpf(v, o.f, JSON_REAL_PRECISION(9)) != 0)
            st = sl_fail(err, SL_ERR_IO, "%s: the profile cannot be written", path);
        fputc('\n', o.f);
        st = sl_output_end(&o, st, err);
    }
    json_decref(v);
    return st;
}

int cmd_profile(const sl_options *o) {
    sl_err err = {0};
    sl_status st = SL_OK;
    if (o->n_args == 0 && !o->links_to[0] && !o->listen[0])
        st = sl_fail(&err, SL_ERR_ARG, "MODEL, --links-to or --listen is missing (see --help)");
    else if (o->listen[0] && (o->n_args || o->links_to[0]))
        st = sl_fail(&err, SL_ERR_ARG,
                     "--listen measures nothing here: leave out MODEL and --links-to");
    if (st != SL_OK) return sl_cmd_fail("profile", &err);
    for (size_t i = 0; sl_transport_at(i); i++) { /* MODEL: all are measured */
        const char *name = sl_transport_at(i)->name;
        if (o->n_args || strcmp(o->transport, name) == 0) sl_net_setup_process(name);
    }
    if (is_of_device(o) && !o->n_args) {
        sl_fail(&err, SL_ERR_ARG, "--device is of the stages of a MODEL, which is missing");
        return sl_cmd_fail("profile", &err);
    }
    if (o->listen[0]) {
        st = sl_profile_listen(o, &err);
        return st == SL_OK ? 0 : sl_cmd_fail("profile", &err);
    }
    sl_profile *p = sl_alloc(1, sizeof *p);
    if (!p) st = sl_fail(&err, SL_ERR_NOMEM, "no memory for a profile");
    if (st == SL_OK) st = measure(o, p, &err);
    if (st == SL_OK && !o->json) print_text(p);
    if (st == SL_OK && o->json) st = write_profile("-", p, &err);
    if (st == SL_OK && (o->out[0] || !o->json)) {
        const char *path = o->out[0] ? o->out : "profile.json";
        st = write_profile(path, p, &err);
        if (st == SL_OK && !o->json) printf("written to %s\n", path);
    }
    if (p) sl_profile_free(p);
    sl_free(p);
    return st == SL_OK ? 0 : sl_cmd_fail("profile", &err);
}
