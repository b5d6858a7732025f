/* MegaScale-Infer, Figures 8, 9, 12 and 13. */
#include "papers.h"

#include "base/mem.h"
#include "format/cluster_file.h"
#include "format/presets.h"
#include "plan/megascale.h"
#include "plan/search.h"

#include <math.h>

static const char *const names[] = {"mixtral-8x22b", "dbrx", "scaled-moe"};
static const sl_megascale_model models[] = {{56, 6144, 8, 2, 16384, 32768, 6},
                                            {40, 6144, 16, 4, 10752, 100352, 6},
                                            {48, 8192, 32, 4, 8192, 32000, 8}};
static const sl_megascale_device a800 = {"A800", 2.26, 80e9, 2039e9, 312e12, 25e9, 200e9};

/* Best value of the kinds from..to on `groups` of a preset's node groups, `nodes` of each. */
static double best(const char *shape, const char *preset, uint32_t group, uint32_t nodes,
                   sl_objective objective, sl_layout_kind from, sl_layout_kind to, uint32_t tp) {
    sl_err err;
    sl_cluster cluster;
    sl_search_result *r = sl_alloc(1, sizeof *r);
    double value = 0;
    if (!r || sl_cluster_open(preset, &cluster, &err) != SL_OK) return 0;
    if (nodes > 0) { /* one group of so many nodes */
        cluster.group[0] = cluster.group[group];
        cluster.group[0].count = nodes;
        cluster.n_groups = 1;
    }
    sl_workload w = {.input = {.low = 571, .high = 571},
                     .output = {.low = 159, .high = 159},
                     .slo_tpot_us = 150e3};
    sl_search_problem p = {.shape = sl_preset_model(shape),
                           .cluster = &cluster,
                           .workload = &w,
                           .objective = objective,
                           .compute = SL_COMPUTE_BF16,
                           .reserve = 0.1,
                           .value_bytes = 2,
                           .decode_only = true};
    if (sl_search_run(&p, SL_SEARCH_MAX_TOP, r, &err) == SL_OK) {
        for (int k = (int)from; k <= (int)to; k++) {
            for (uint32_t i = 0; i < r->n_top[k]; i++) {
                const sl_candidate *c = &r->top[k][i];
                if (tp && (c->layout.n_a != 1 || c->layout.tp_a != tp)) continue;
                value = fmax(value, c->per_cost);
            }
        }
    }
    sl_free(r);
    return value;
}

static void figures_8_and_9(FILE *out) {
    for (int i = 0; i < 3; i++) {
        uint32_t nodes = i == 2 ? 2 : 1; /* what the weights need */
        sl_layout_kind tensor = i == 2 ? SL_LAYOUT_PIPELINE : SL_LAYOUT_HYBRID;
        double ping = best(names[i], "megascale-ampere", 0, 0, SL_OBJECTIVE_DEVICE,
                           SL_LAYOUT_PINGPONG, SL_LAYOUT_PINGPONG, 0);
        double base =
            best(names[i], "megascale-ampere", 0, nodes, SL_OBJECTIVE_DEVICE, tensor, tensor, 8);
        PAPERS_ROW(out, "megascale8", "pingpong", ping, "%s", names[i]);
        PAPERS_ROW(out, "megascale8", "tensor", base, "%s", names[i]);
        ping = best(names[i], "megascale-hetero", 0, 0, SL_OBJECTIVE_COST, SL_LAYOUT_PINGPONG,
                    SL_LAYOUT_PINGPONG, 0);
        base = best(names[i], "megascale-hetero", 0, nodes, SL_OBJECTIVE_COST, tensor, tensor, 8);
        PAPERS_ROW(out, "megascale9", "pingpong", ping, "%s", names[i]);
        PAPERS_ROW(out, "megascale9", "tensor", base, "%s", names[i]);
    }
}

/* Micro-batches of constant size: of the best plan with three. */
static void figure_12(FILE *out) {
    for (int i = 0; i < 3; i++) {
        sl_megascale_options o = sl_megascale_defaults();
        sl_megascale_plan p;
        sl_err err;
        if (sl_megascale_search(&models[i], &a800, 1, &o, &p, &err) != SL_OK) continue;
        p.lanes = 3;
        if (!sl_megascale_fill_batch(&models[i], &a800, &o, &p)) continue;
        for (p.lanes = 1; p.lanes <= 4; p.lanes++) {
            sl_megascale_evaluate(&models[i], &a800, &o, &p);
            PAPERS_ROW(out, "megascale12", "tok/s", p.throughput, "%s|%u", names[i], p.lanes);
        }
        double work = fmax(p.attn_us, p.expert_us);
        PAPERS_ROW(out, "megascale12", "link/work", p.link_us / work, "%s|-", names[i]);
        PAPERS_ROW(out, "megascale12", "balance", fmin(p.attn_us, p.expert_us) / work, "%s|-",
                   names[i]);
    }
}

static void figure_13(FILE *out) {
    sl_megascale_options o = sl_megascale_defaults();
    for (uint32_t nodes = 1; nodes <= 32; nodes *= 2) {
        sl_megascale_plan p = {.tp_a = 1, .tp_e = 1, .nodes = nodes, .lanes = 3, .micro = 96};
        sl_megascale_evaluate(&models[1], &a800, &o, &p);
        PAPERS_ROW(out, "megascale13", "tpot_ms", p.tpot_us / 1e3, "%u", nodes);
        PAPERS_ROW(out, "megascale13", "tok/s/gpu", p.throughput / (nodes + 16), "%u", nodes);
    }
}

void papers_megascale(FILE *out) {
    figures_8_and_9(out);
    figure_12(out);
    figure_13(out);
}
