/* MixServe's comparisons: the strategies of its Table II on its two clusters. */
#include "papers.h"

#include "base/status.h"
#include "format/presets.h"
#include "plan/mixserve.h"

static sl_mixserve_system system_of(const char *device, uint32_t nodes, sl_fabric intra,
                                    sl_fabric inter) {
    const sl_device_type *d = sl_preset_device(device);
    return (sl_mixserve_system){.nodes = nodes,
                                .per_node = 8,
                                .flops = 0.7 * d->flops[SL_COMPUTE_BF16],
                                .bandwidth = 0.8 * d->bandwidth,
                                .memory_bytes = 0.9 * d->memory_bytes,
                                .stage_us = 2 * d->launch_us,
                                .intra = intra,
                                .inter = inter};
}

/* Busiest expert group over the mean, 512 tokens, 256 experts of mildly skewed popularity placed at
 * random: few groups are balanced better than many. */
static double imbalance_of(uint32_t ep) {
    return ep >= 32 ? 1.60 : ep >= 16 ? 1.34 : ep >= 4 ? 1.10 : ep >= 2 ? 1.04 : 1;
}

static sl_mixserve_model model_of(const char *shape, double weight_bytes) {
    sl_mixserve_model m = sl_mixserve_model_of(sl_preset_model(shape));
    m.weight_bytes = weight_bytes;
    m.kv_layer_bytes = 2.0 * sl_shape_kv_values(sl_preset_model(shape));
    return m;
}

static void evaluate(FILE *out, const char *table, const char *key, const sl_mixserve_model *m,
                     const sl_mixserve_system *sys, const char *strategy, bool fused) {
    sl_mixserve_load load = {.input = 512, .output = 256, .cv2 = 1, .slots = 16, .fused = fused};
    sl_strategy s;
    sl_mixserve_result r;
    sl_err err;
    if (sl_strategy_parse(strategy, &s, &err) != SL_OK) return;
    load.imbalance = imbalance_of(s.ep);
    if (sl_mixserve_evaluate(m, sys, &load, &s, &r, &err) != SL_OK) {
        PAPERS_ROW(out, table, "fits", 0.0, "%s", key);
        return;
    }
    PAPERS_ROW(out, table, "ttft", r.ttft_us / 1e3, "%s", key);
    PAPERS_ROW(out, table, "itl", r.itl_us / 1e3, "%s", key);
    PAPERS_ROW(out, table, "tok/s", r.output_throughput, "%s", key);
}

/* The first of the strategies is MixServe's, fused; the others are baselines. all: Figure 11, where
 * all of them are fused. */
static void compare(FILE *out, const char *table, const char *system, const char *shape,
                    double weight_bytes, const sl_mixserve_system *sys,
                    const char *const *strategies, uint32_t n, bool all) {
    const sl_mixserve_model m = model_of(shape, weight_bytes);
    char key[96];
    for (uint32_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "%s|%s|%u", system, shape, i);
        evaluate(out, table, key, &m, sys, strategies[i], all || i == 0);
    }
}

/* Figure 12: the same with and without fusion, and what fused communication of a prompt's layer
 * takes over its part between nodes. */
static void fusion(FILE *out, const char *system, const sl_mixserve_system *sys,
                   const sl_fabric *inter) {
    const sl_mixserve_model m = model_of("deepseek-r1", 2);
    const sl_fabric none = {SL_FABRIC_PORT, 0, 0};
    sl_hybrid_comm h = {4, 8, 512, 7168 * 2, 256, 8, &sys->intra, inter};
    const sl_hybrid_times t = sl_hybrid_law(&h);
    char key[96];
    for (int fused = 0; fused < 2; fused++) {
        snprintf(key, sizeof key, "%s|%s", system, fused ? "fused" : "apart");
        evaluate(out, "mixserve12", key, &m, sys, "TP=8+DP=4, TP=8+EP=4", fused);
    }
    h.intra = &none;
    const sl_hybrid_times far = sl_hybrid_law(&h);
    PAPERS_ROW(out, "mixserve12", "over inter",
               (t.dispatch_us + t.combine_us) / (far.dispatch_apart_us + far.combine_apart_us),
               "%s|layer", system);
}

/* Communication of a layer, as the corrected model has it: 4096 and 16 rows a node, DeepSeek-R1. */
static void layers(FILE *out, const char *key, uint32_t n, const sl_fabric *in,
                   const sl_fabric *ex) {
    for (int i = 0; i < 2; i++) {
        double tokens = i ? 16 : 4096, row = 7168 * 2;
        sl_hybrid_comm h = {n, 8, tokens, row, 256, 8, in, ex};
        sl_hybrid_times t = sl_hybrid_law(&h);
        double pair = 2 * sl_collective_exchange_two_us(in, ex, tokens / 8 * 8 * row, n, 8) +
                      sl_collective_gather_us(in, tokens * row, 8);
        PAPERS_ROW(out, "mixlayer", "apart", t.dispatch_apart_us + t.combine_apart_us, "%s|%.0f",
                   key, tokens);
        PAPERS_ROW(out, "mixlayer", "fused", t.dispatch_us + t.combine_us, "%s|%.0f", key, tokens);
        PAPERS_ROW(out, "mixlayer", "pairwise", pair, "%s|%.0f", key, tokens);
    }
}

void papers_mixserve(FILE *out) {
    static const char *const h20[] = {"TP=8+DP=2, TP=8+EP=2", "TP=8 [PP=2]",
                                      "TP=8+DP=2, EP=16",     "TP=4+DP=4, EP=16",
                                      "TP=8+DP=2, TP=8+EP=2", "TP=4+DP=4, TP=4+EP=4"};
    static const char *const ascend[] = {"TP=8+DP=4, TP=8+EP=4", "TP=8 [PP=4]", "TP=8+DP=4, EP=32",
                                         "TP=4+DP=8, EP=32"};
    /* Figure 11: DP = EP, DP > EP, DP < EP. */
    static const char *const h20_degrees[] = {"TP=8+DP=2, TP=8+EP=2", "TP=4+DP=4, TP=8+EP=2",
                                              "TP=8+DP=2, TP=4+EP=4"};
    static const char *const ascend_degrees[] = {"TP=8+DP=4, TP=8+EP=4", "TP=4+DP=8, TP=8+EP=4",
                                                 "TP=8+DP=4, TP=4+EP=8"};
    static const sl_fabric nvlink = {SL_FABRIC_PORT, 8, 1e6 / 450e9};
    static const sl_fabric ib = {SL_FABRIC_PORT, 15, 1e6 / 50e9};
    static const sl_fabric port = {SL_FABRIC_PORT, 15, 1e6 / 60e9};
    static const sl_fabric mesh = {SL_FABRIC_MESH, 15, 1e6 / 60e9};
    static const sl_fabric roce = {SL_FABRIC_PORT, 25, 1e6 / 25e9};
    sl_mixserve_system a = system_of("H20", 2, nvlink, ib), b = system_of("910B", 4, port, roce),
                       c = system_of("910B", 4, mesh, roce);
    const char *shapes[] = {"deepseek-r1", "qwen3-235b-a22b"};
    for (int i = 0; i < 2; i++) {
        compare(out, "mixserve", "H20", shapes[i], i ? 2 : 1, &a, h20, SL_LEN(h20), false);
        compare(out, "mixserve", "910B port", shapes[i], 2, &b, ascend, SL_LEN(ascend), false);
        compare(out, "mixserve", "910B mesh", shapes[i], 2, &c, ascend, SL_LEN(ascend), false);
        compare(out, "mixserve11", "H20", shapes[i], i ? 2 : 1, &a, h20_degrees, 3, true);
        compare(out, "mixserve11", "910B port", shapes[i], 2, &b, ascend_degrees, 3, true);
        compare(out, "mixserve11", "910B mesh", shapes[i], 2, &c, ascend_degrees, 3, true);
    }
    fusion(out, "910B port", &b, &roce);
    fusion(out, "910B mesh", &c, &roce);
    layers(out, "H20", 2, &nvlink, &ib);
    layers(out, "910B port", 4, &port, &roce);
    layers(out, "910B mesh", 4, &mesh, &roce);
}
