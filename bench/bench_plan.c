/* CPU time of the search on big clusters: `bench_plan [MODEL]`, one line a size. The bars are 1 s
 * for 1,024 devices and 10 s for 10,000. */
#include "format/presets.h"
#include "plan/search.h"
#include "sim/trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Half of it H20, half L40S, eight a node. */
static sl_cluster mixed(uint32_t devices) {
    sl_cluster c = {.name = "mixed", .n_types = 2, .n_groups = 2};
    c.type[0] = *sl_preset_device("H20");
    c.type[1] = *sl_preset_device("L40S");
    for (uint32_t g = 0; g < 2; g++)
        c.group[g] = (sl_node_group){.type = g,
                                     .devices_per_node = 8,
                                     .count = devices / 16,
                                     .intra = {.bandwidth = g ? 25e9 : 450e9, .latency_us = 10},
                                     .inter = {.bandwidth = g ? 12.5e9 : 25e9, .latency_us = 10}};
    return c;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "deepseek-v3";
    const sl_shape *shape = sl_preset_model(name);
    if (!shape) {
        fprintf(stderr, "bench_plan: no preset '%s'\n", name);
        return 2;
    }
    sl_workload w = {.input = {.kind = SL_LENGTH_FIXED, .low = 571, .high = 571},
                     .output = {.kind = SL_LENGTH_FIXED, .low = 159, .high = 159},
                     .slo_tpot_us = 150e3,
                     .slo_ttft_us = 2e6};
    sl_search_result *r = malloc(sizeof *r);
    static const uint32_t sizes[] = {16, 128, 1024, 10000};
    for (size_t i = 0; r && i < SL_LEN(sizes); i++) {
        sl_cluster c = mixed(sizes[i]);
        sl_search_problem p = {.shape = shape,
                               .cluster = &c,
                               .workload = &w,
                               .objective = SL_OBJECTIVE_COST,
                               .compute = SL_COMPUTE_BF16,
                               .reserve = 0.1,
                               .value_bytes = 2,
                               .trial = sl_sim_try};
        sl_err err = {0};
        clock_t from = clock();
        sl_status st = sl_search_run(&p, 1, r, &err);
        double s = (double)(clock() - from) / CLOCKS_PER_SEC;
        char why[SL_SEARCH_TEXT] = "";
        if (st == SL_OK) sl_search_why(&p, r, why);
        printf("%5u devices  %.3f s  %8llu layouts  %9llu evaluations  %s\n", sizes[i], s,
               (unsigned long long)r->layouts, (unsigned long long)r->evaluations,
               st == SL_OK ? why : err.msg);
    }
    free(r);
    return r ? 0 : 1;
}
