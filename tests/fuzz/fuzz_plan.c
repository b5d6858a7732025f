/* Any bytes as plan.json, and as the plan of a message, whose workers need not all be there,
 * against a fixed model: refused with a reason, or a plan that holds together and prints as one
 * that is read back the same. */
#include "base/mem.h"
#include "format/plan_json.h"
#include "net/net.h"
#include "plan_model.h"
#include "spec/kv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const sl_plan *p, bool all_there) {
    SL_ASSERT(p->n_workers >= 1 && p->n_workers <= SL_MAX_WORKERS);
    SL_ASSERT(p->lanes >= 1 && p->epoch >= 1 && p->max_num_seqs >= 1);
    SL_ASSERT(p->max_num_batched_tokens >= p->lanes && p->context <= plan_model.max_position);
    SL_ASSERT(p->n_pages >= sl_kv_pages_for(p->context));
    for (uint32_t e = 0; e < p->n_experts; e++) {
        for (uint32_t l = 0; l < p->place.n_layers; l++) {
            uint32_t n;
            const sl_host *h = sl_plan_hosts(p, l, e, &n);
            SL_ASSERT(n > 0 && h[n - 1].until == UINT32_MAX);
            for (uint32_t i = 0; i < n; i++) {
                SL_ASSERT(h[i].worker < p->n_workers);
                SL_ASSERT(p->worker[h[i].worker].roles & SL_ROLE_EXPERT);
            }
        }
    }
    for (uint32_t i = 0; i < p->n_workers; i++)
        SL_ASSERT(p->worker[i].id == i && (p->worker[i].roles || !all_there));
}

static sl_status parse_message(sl_span bytes, sl_plan *out, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_status st = sl_json_parse("message", bytes, &doc, err);
    if (st == SL_OK) st = sl_plan_from_message(sl_json_root(doc), &plan_model, out, err);
    sl_json_doc_free(doc);
    return st;
}

static void same(const sl_plan *a, const sl_plan *b) {
    size_t entries = (size_t)a->place.n_layers * a->n_experts;
    SL_ASSERT(a->place.n_layers == b->place.n_layers && a->n_workers == b->n_workers);
    SL_ASSERT(memcmp(a->place.first, b->place.first, (entries + 1) * sizeof *a->place.first) == 0);
    SL_ASSERT(
        memcmp(a->place.host, b->place.host, a->place.first[entries] * sizeof *a->place.host) == 0);
    for (uint32_t i = 0; i < a->n_workers; i++)
        SL_ASSERT(a->worker[i].roles == b->worker[i].roles &&
                  a->worker[i].incarnation == b->worker[i].incarnation);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_plan p = {0}, strict = {0}, again = {0};
    sl_err err = {0};
    bool all_there =
        sl_plan_parse((sl_span){data, size}, "fuzz", &plan_model, &strict, &err) == SL_OK;
    SL_ASSERT(all_there || (err.code != SL_OK && err.msg[0] != 0 && strict.place.first == NULL));
    if (parse_message((sl_span){data, size}, &p, &err) != SL_OK) {
        SL_ASSERT(!all_there && err.code != SL_OK && err.msg[0] != 0 && p.place.first == NULL);
        return 0;
    }
    check(&p, all_there);
    char *text = sl_plan_print(&p);
    SL_ASSERT(text != NULL);
    const sl_span span = {(const uint8_t *)text, strlen(text)};
    if (all_there) {
        same(&p, &strict);
        SL_ASSERT(sl_plan_parse(span, "printed", &plan_model, &again, &err) == SL_OK);
    } else {
        SL_ASSERT(parse_message(span, &again, &err) == SL_OK);
    }
    same(&p, &again);
    sl_plan_free(&strict);
    sl_plan_free(&again);
    sl_plan_free(&p);
    sl_free(text);
    return 0;
}
