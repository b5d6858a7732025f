/* What the stages of one GPU, or of one of a gang's, take by data sheet: a file for emulated
 * devices whose ranks' sums somebody else adds (bench/strategies.py --paper). */
#include "papers.h"

#include "format/plan_lab.h"
#include "format/presets.h"
#include "plan/roofline.h"
#include "spec/rank_cost.h"

#include <stdlib.h>
#include <string.h>

/* MODEL DEVICE BYTES RANKS RANKS: bytes a weight, ranks of attention and of experts. */
int papers_costs(FILE *out, char **argv) {
    const sl_shape *preset = sl_preset_model(argv[0]);
    const sl_device_type *device = sl_preset_device(argv[1]);
    const uint32_t tp_a = (uint32_t)atoi(argv[3]), tp_e = (uint32_t)atoi(argv[4]);
    if (!preset || !device || !tp_a || !tp_e) return 2;
    sl_shape s = *preset;
    s.attention_weight_bytes = s.expert_weight_bytes = atof(argv[2]);
    const sl_roofline r = {
        .device = device, .compute = SL_COMPUTE_BF16, .work = {.tp = 1, .activation_bytes = 2}};
    const sl_link_tier none = {.bandwidth = 1e12};
    const sl_costs c = sl_roofline_costs(&s, &r, &none);
    sl_device_spec d = {.kind = SL_DEVICE_EMULATED, .time_scale = 1, .grouped = c.grouped};
    /* Ranks read the same latents, but operations are what they take time for: those of heads. */
    const uint32_t kv = s.attention == SL_ATTENTION_MLA ? s.n_heads : s.n_kv_heads;
    for (int k = 0; k < SL_COST_COUNT; k++)
        d.cost[k] =
            sl_rank_stage_cost(&c.stage[k], (sl_cost_kind)k, k == SL_COST_EXPERT ? tp_e : tp_a, kv);
    char *text = NULL;
    json_t *v = sl_device_json(&d);
    if (v) text = json_dumps(v, JSON_INDENT(1));
    if (text) fprintf(out, "%s\n", text);
    free(text);
    json_decref(v);
    return text ? 0 : 1;
}
