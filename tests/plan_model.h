/* A model that plans are read for in tests, without weights. */
#ifndef TESTS_PLAN_MODEL_H
#define TESTS_PLAN_MODEL_H

#include "format/plan_json.h"

#include <string.h>

static const sl_model_spec plan_model = {.n_layers = 4,
                                         .n_moe = 3,
                                         .d_model = 64,
                                         .n_heads = 4,
                                         .n_kv_heads = 2,
                                         .head_dim = 32,
                                         .vocab = 1040,
                                         .n_experts = 8,
                                         .top_k = 2,
                                         .max_position = 512};

static inline sl_status plan_parse(const char *text, sl_plan *out, sl_err *err) {
    return sl_plan_parse((sl_span){(const uint8_t *)text, strlen(text)}, "plan.json", &plan_model,
                         out, err);
}

#endif
