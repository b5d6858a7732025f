/* Descriptions from files: the first byte chooses the reader, the rest is the file. */
#include "base/mem.h"
#include "format/cluster_file.h"
#include "format/profile_file.h"
#include "format/shape_config.h"
#include "format/workload_file.h"
#include "plan/account.h"
#include "plan/lengths.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use_workload(sl_span text) {
    sl_workload w = {0};
    if (memmem(text.data, text.len, "trace", 5)) return; /* would open files */
    if (sl_workload_parse("f.yaml", text, &w, NULL) != SL_OK) return;
    uint32_t p95 = sl_length_p95(&w.input);
    if (p95 < 1 || p95 > SL_WORKLOAD_MAX_LENGTH || !(sl_length_mean(&w.output) >= 1)) abort();
    sl_workload_free(&w);
}

static void use_trace(sl_span text, bool csv) {
    sl_trace_request *t = NULL;
    size_t n = 0;
    if (sl_trace_parse("t", text, csv, &t, &n, NULL) != SL_OK) return;
    for (size_t i = 0; i < n; i++)
        if (t[i].input < 1 || t[i].output < 1 || (i && t[i].at_us < t[i - 1].at_us)) abort();
    if (n == 0 || t[0].at_us != 0) abort();
    sl_free(t);
}

static void use_cluster(sl_span text) {
    static sl_cluster c;
    if (sl_cluster_parse("c.yaml", "c", text, &c, NULL) != SL_OK) return;
    if (sl_cluster_devices(&c) == 0 || !(sl_cluster_price_per_hour(&c) >= 0)) abort();
    for (uint32_t g = 0; g < c.n_groups; g++)
        if (c.group[g].type >= c.n_types || !(c.group[g].inter.bandwidth > 0)) abort();
}

static void use_shape(sl_span text) {
    sl_shape s;
    if (sl_shape_config_parse("config.json", "m", text, &s, NULL) != SL_OK) return;
    sl_params p = sl_account_params(&s);
    if (p.active > p.total || !(sl_account_token_flops(&s, 100, false) > 0)) abort();
}

static void use_profile(sl_span text) {
    sl_profile p = {0};
    sl_costs c;
    if (sl_profile_parse("profile.json", text, &p, NULL) != SL_OK) return;
    if (sl_profile_costs(&p, NULL, 2, &c, NULL) != SL_OK) abort();
    if (!(sl_stage_cost_us(&c.stage[SL_COST_EXPERT], 4, 0) >= 0)) abort();
    sl_profile_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    sl_span text = {data + 1, size - 1};
    switch (data[0]) {
    case 'w':
        use_workload(text);
        break;
    case 'j':
        use_trace(text, false);
        break;
    case 'v':
        use_trace(text, true);
        break;
    case 'p':
        use_profile(text);
        break;
    case 's':
        use_shape(text);
        break;
    default:
        use_cluster(text);
    }
    return 0;
}
