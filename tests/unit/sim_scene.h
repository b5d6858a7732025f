/* Deployments for tests of the simulator: a model, a plan, costs and a load, which tests fill in.
 */
#ifndef SL_TESTS_SIM_SCENE_H
#define SL_TESTS_SIM_SCENE_H

#include "base/mem.h"
#include "format/plan_json.h"
#include "model/skew.h"
#include "sim/deployment.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

typedef struct scene {
    sl_model_spec m;
    sl_plan p;
    sl_costs c;
    sl_workload load;
    sl_sim_setup s;
    double *popularity;
} scene;

static inline void model_of(sl_model_spec *m, uint32_t layers, uint32_t dense, uint32_t experts,
                            uint32_t top_k) {
    *m = (sl_model_spec){.n_layers = layers,
                         .d_model = 64,
                         .n_heads = 4,
                         .n_kv_heads = 2,
                         .head_dim = 16,
                         .vocab = 1000,
                         .n_experts = experts,
                         .top_k = top_k,
                         .max_position = 8192};
    for (uint32_t l = 0; l < layers; l++) {
        m->ffn[l] = l < dense ? SL_FFN_DENSE : SL_FFN_MOE;
        if (l < dense) continue;
        m->moe_index[l] = (uint16_t)m->n_moe;
        m->moe_layer[m->n_moe++] = (uint16_t)l;
    }
}

static inline void scene_init(scene *x, uint32_t attention, uint32_t experts,
                              sl_schedule schedule) {
    sl_err err;
    if (sl_plan_local(&x->m, attention, experts, &x->p, &err) != SL_OK) fail_msg("%s", err.msg);
    sl_plan_set_schedule(&x->p, schedule);
    x->p.max_num_seqs = 4096;
    x->p.max_num_batched_tokens = 4096;
    x->p.context = 4096;
    x->p.n_pages = 40000;
    x->s = (sl_sim_setup){.model = &x->m,
                          .plan = &x->p,
                          .attention = &x->c,
                          .expert = &x->c,
                          .row_bytes = 256,
                          .load = &x->load,
                          .seed = 1,
                          .control_us = 20};
}

static inline void lengths(scene *x, uint32_t in_low, uint32_t in_high, uint32_t out_low,
                           uint32_t out_high) {
    x->load.input = (sl_length){.kind = SL_LENGTH_UNIFORM, .low = in_low, .high = in_high};
    x->load.output = (sl_length){.kind = SL_LENGTH_UNIFORM, .low = out_low, .high = out_high};
}

static inline void closed(scene *x, uint32_t n) {
    x->load.arrival = (sl_arrival){.kind = SL_ARRIVAL_CLOSED, .concurrency = n};
}

static inline void skew(scene *x, double theta, bool permuted, uint64_t seed) {
    const sl_route_skew how = {.on = true, .permuted = permuted, .theta = theta, .seed = seed};
    sl_skew *k;
    sl_err err;
    assert_int_equal(sl_skew_create(&how, &x->m, &k, &err), SL_OK);
    x->popularity = sl_alloc((size_t)x->m.n_moe * x->m.n_experts, sizeof *x->popularity);
    sl_skew_popularity(k, x->popularity);
    x->s.popularity = x->popularity;
    x->s.n_layers = x->m.n_moe;
    sl_skew_free(k);
}

static inline sl_sim_result run(scene *x) {
    sl_sim_result r;
    sl_err err;
    if (sl_sim_run(&x->s, &r, &err) != SL_OK) fail_msg("%s", err.msg);
    return r;
}

static inline void scene_free(scene *x) {
    sl_plan_free(&x->p);
    sl_free(x->popularity);
    memset(x, 0, sizeof *x);
}

#endif
