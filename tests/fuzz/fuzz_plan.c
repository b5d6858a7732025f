/* Any bytes as plan.json against a fixed model: refused with a reason, or a plan that holds
 * together and prints as one that is read back the same. */
#include "base/mem.h"
#include "engine/plan_json.h"
#include "net/net.h"
#include "spec/kv.h"

#include "mutate.h"

const size_t fuzz_prefix = 0;

size_t fuzz_repair(uint8_t *data, size_t size) {
    return (void)data, size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const sl_model_spec model = {.n_layers = 4,
                                    .n_moe = 3,
                                    .d_model = 64,
                                    .n_heads = 4,
                                    .n_kv_heads = 2,
                                    .head_dim = 32,
                                    .vocab = 1040,
                                    .n_experts = 8,
                                    .top_k = 2,
                                    .max_position = 512};

static void check(const sl_plan *p) {
    SL_ASSERT(p->n_workers >= 1 && p->n_workers <= SL_PLAN_MAX_WORKERS);
    SL_ASSERT(p->lanes >= 1 && p->epoch >= 1 && p->max_num_seqs >= 1);
    SL_ASSERT(p->max_num_batched_tokens >= p->lanes && p->context <= model.max_position);
    SL_ASSERT(p->n_pages >= sl_kv_pages_for(p->context));
    for (uint32_t e = 0; e < p->n_experts; e++) {
        SL_ASSERT(p->owner[e] < p->n_workers);
        SL_ASSERT(p->worker[p->owner[e]].roles & SL_ROLE_EXPERT);
    }
    for (uint32_t i = 0; i < p->n_workers; i++)
        SL_ASSERT(p->worker[i].id == i && p->worker[i].roles);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_plan p = {0}, again = {0};
    sl_err err = {0};
    if (sl_plan_parse((sl_span){data, size}, "fuzz", &model, &p, &err) != SL_OK) {
        SL_ASSERT(err.code != SL_OK && err.msg[0] != 0 && p.owner == NULL);
        return 0;
    }
    check(&p);
    char *text = sl_plan_print(&p);
    SL_ASSERT(text != NULL);
    const sl_span span = {(const uint8_t *)text, strlen(text)};
    SL_ASSERT(sl_plan_parse(span, "printed", &model, &again, &err) == SL_OK);
    SL_ASSERT(memcmp(p.owner, again.owner, p.n_experts * sizeof *p.owner) == 0);
    sl_plan_free(&again);
    sl_plan_free(&p);
    sl_free(text);
    return 0;
}
