/* What the files for launchers say of a deployment, read from model and plan. */
#include "job.h"

#include "cmd.h"
#include "format/plan_json.h"
#include "spec/kv.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MB 1000000u

static sl_status absolute(const char *path, char out[4096], sl_err *err) {
    char *real = realpath(path, NULL);
    if (!real) return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    const bool fits = strlen(real) < 4096;
    if (fits) strcpy(out, real);
    free(real);
    return fits ? SL_OK : sl_fail(err, SL_ERR_LIMIT, "%s: limit 4095 characters", path);
}

/* The option's number, or the file's own: not this machine's share, as the job runs elsewhere. */
static sl_status find_threads(const sl_options *o, sl_job *j, sl_err *err) {
    sl_plan said = {0};
    sl_status st = o->plan[0] ? sl_plan_read(o->plan, &j->spec, &said, err) : SL_OK;
    if (st != SL_OK) return st;
    j->threads = o->threads ? o->threads : SL_MAX(said.threads, 1u);
    sl_plan_free(&said);
    return SL_OK;
}

sl_status sl_job_open(const sl_options *o, sl_job *out, sl_err *err) {
    sl_generation_spec gen;
    *out = (sl_job){0};
    sl_status st = sl_model_read_spec(o->arg[0], &out->spec, &gen, err);
    if (st == SL_OK && !out->spec.weightless) st = sl_model_inspect(o->arg[0], &out->info, err);
    if (st == SL_OK) st = sl_deploy_plan(o, &out->spec, &out->plan, err);
    if (st == SL_OK) st = absolute(o->arg[0], out->model, err);
    if (st == SL_OK && o->plan[0]) st = absolute(o->plan, out->plan_path, err);
    if (st == SL_OK) st = absolute("/proc/self/exe", out->program, err);
    if (st == SL_OK) st = find_threads(o, out, err);
    return st;
}

void sl_job_free(sl_job *j) {
    sl_plan_free(&j->plan);
}

uint32_t sl_job_experts(const sl_plan *p, uint32_t w) {
    uint32_t n = 0;
    for (uint32_t e = 0; e < p->n_experts; e++) n += sl_plan_hosts_any(p, e, w);
    return n;
}

uint64_t sl_job_weights(const sl_plan *p, const sl_model_spec *m, const sl_model_info *i,
                        uint32_t w) {
    const bool attention = (p->worker[w].roles & SL_ROLE_ATTENTION) != 0;
    return (uint64_t)sl_job_experts(p, w) * m->n_moe * i->bytes_expert +
           (attention ? i->bytes_attention : 0);
}

uint64_t sl_job_kv(const sl_plan *p, const sl_model_spec *m, uint32_t w) {
    if (!(p->worker[w].roles & SL_ROLE_ATTENTION)) return 0;
    return (uint64_t)p->n_pages * sl_kv_page_bytes(m);
}

uint64_t sl_job_memory_mb(const sl_job *j, uint32_t w) {
    const uint64_t bytes =
        sl_job_weights(&j->plan, &j->spec, &j->info, w) + sl_job_kv(&j->plan, &j->spec, w);
    return (bytes + MB - 1) / MB + SL_JOB_EXTRA_MB;
}

const char *sl_job_role(const sl_plan *p, uint32_t w) {
    const uint32_t roles = p->worker[w].roles;
    return roles == (SL_ROLE_ATTENTION | SL_ROLE_EXPERT) ? "both"
           : roles == SL_ROLE_ATTENTION                  ? "attention"
                                                         : "expert";
}

void sl_job_put_word(const char *text) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-./:,@%+=";
    if (*text && text[strspn(text, plain)] == '\0') {
        fputs(text, stdout);
        return;
    }
    putchar('\'');
    for (const char *c = text; *c; c++) {
        if (*c == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*c);
    }
    putchar('\'');
}

sl_status sl_job_check_word(const char *option, const char *value, const char *more, sl_err *err) {
    for (const char *c = value; *c; c++) {
        const bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                           (*c >= '0' && *c <= '9') || strchr(more, *c);
        if (!plain || strlen(value) > 128)
            return sl_fail(err, SL_ERR_ARG,
                           "%s: '%.40s': letters, digits and '%s', 128 at most, are possible",
                           option, value, more);
    }
    return SL_OK;
}
