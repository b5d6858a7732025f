/* The FinDEP solver alone, on coefficients from a file. */
#include "cmd.h"

#include "base/clock.h"
#include "format/coeffs.h"
#include "plan/findep.h"

#include <math.h>

static const char *order_name(sl_order order) {
    return order == SL_ORDER_ASAS ? "ASAS" : "AASS";
}

typedef struct answer {
    sl_findep_result r;
    bool published;  /* chosen by Eq. 13 */
    double solve_us; /* without reading the file */
} answer;

static void print_json(const sl_findep_problem *p, const answer *a) {
    const sl_findep_result *r = &a->r;
    printf("{\"order\": \"%s\", \"r1\": %u, \"ma\": %u, \"r2\": %u, \"me\": %.15g, "
           "\"makespan_ms\": %.17g, \"lower_bound_ms\": %.17g, \"throughput_samples_per_s\": %.17g",
           order_name(r->at.order), r->at.r1, r->at.ma, r->at.r2, r->tokens,
           a->published ? r->published_ms : r->makespan_ms, r->bound_ms,
           a->published ? r->samples_per_s * r->makespan_ms / r->published_ms : r->samples_per_s);
    if (a->published) printf(", \"exact_makespan_ms\": %.17g", r->makespan_ms);
    if (p->cut != SL_FINDEP_CUT_TOKENS)
        printf(", \"chunk_by\": \"%s\"", r->at.chunking == SL_CHUNK_TOKENS ? "tokens" : "experts");
    printf(", \"solve_us\": %.1f}\n", a->solve_us);
}

/* Which station is busy longest, as one task of each micro-batch and layer. */
static void print_times(const sl_findep_times *t, uint32_t r1, uint32_t r2) {
    double experts = r2 * t->e, attention = t->a + t->s, link = r2 * fmax(t->c, t->d);
    double most = fmax(fmax(experts, attention), link);
    const char *what = most == attention ? "attention" : most == experts ? "experts" : "the link";
    double round = t->a + t->c + t->e + t->d + (r2 - 1) * fmax(fmax(t->c, t->d), t->e);
    printf(
        "times        attention %.4g, shared %.4g, out %.4g, experts %.4g, back %.4g ms a task\n",
        t->a, t->s, t->c, t->e, t->d);
    if (round > r1 * most)
        printf("limit        the round trip of one micro-batch, %.4g ms: more of them would fill "
               "the waits\n",
               round);
    else
        printf("limit        %s, %.4g ms a layer and micro-batch\n", what, most);
}

static void print_text(const sl_findep_problem *p, const answer *a) {
    const sl_findep_result *r = &a->r;
    sl_findep_times t = sl_findep_times_at(p, &r->at);
    bool tokens = r->at.chunking == SL_CHUNK_TOKENS;
    printf("schedule     %u micro-batch%s of %u sample%s per attention worker, each in %u chunk%s "
           "by %s;\n             shared experts %s\n",
           r->at.r1, r->at.r1 == 1 ? "" : "es", r->at.ma, r->at.ma == 1 ? "" : "s", r->at.r2,
           r->at.r2 == 1 ? "" : "s", tokens ? "tokens" : "expert group",
           r->at.order == SL_ORDER_ASAS ? "right after each attention (ASAS)"
                                        : "after the attention of all micro-batches (AASS)");
    printf("rows         %.4g per expert and chunk\n", r->tokens);
    print_times(&t, r->at.r1, r->at.r2);
    printf("makespan     %.6g ms for %u layers", r->makespan_ms, p->layers);
    if (r->published_ms > 0) printf("; Eq. 13 as printed says %.6g", r->published_ms);
    printf("\nbound        %.6g ms, no order of the same tasks is faster: gap %.2f %%\n",
           r->bound_ms, 100 * (r->makespan_ms / r->bound_ms - 1));
    printf("throughput   %.6g samples/s\n", r->samples_per_s);
    printf("solved in    %.1f us%s\n", a->solve_us,
           a->published ? " (ASAS by Eq. 13 as printed)" : "");
}

int cmd_solve(const sl_options *o) {
    sl_err err = {0};
    sl_findep_problem p;
    sl_findep_point at;
    answer a = {.published = o->as_published};
    sl_status st = o->coeffs[0] ? sl_coeffs_read(o->coeffs, &p, &err)
                                : sl_fail(&err, SL_ERR_ARG, "--coeffs FILE is missing");
    if (st == SL_OK && o->fix[0] && (st = sl_coeffs_parse_point(o->fix, &at, &err)) != SL_OK)
        sl_err_prefix(&err, "--fix");
    if (st == SL_OK && o->fix[0] && a.published && at.order == SL_ORDER_AASS)
        st = sl_fail(&err, SL_ERR_ARG, "--as-published: the paper has no makespan for AASS");
    if (st != SL_OK) return sl_cmd_fail("solve", &err);
    if (o->fix[0] && p.cut == SL_FINDEP_CUT_EXPERTS) at.chunking = SL_CHUNK_EXPERTS;
    uint64_t began_ns = sl_now_ns();
    st = o->fix[0] ? sl_findep_evaluate(&p, &at, &a.r, &err)
                   : sl_findep_solve(&p, a.published, &a.r, &err);
    a.solve_us = (double)(sl_now_ns() - began_ns) / 1e3;
    if (st != SL_OK) {
        sl_err_prefix(&err, "%s", o->coeffs);
        return sl_cmd_fail("solve", &err);
    }
    if (o->json)
        print_json(&p, &a);
    else
        print_text(&p, &a);
    return 0;
}
