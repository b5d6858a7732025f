/* Any bytes as the coefficients of a FinDEP problem: refused with a reason, or a problem that the
 * solver answers soundly (small ones: solving large ones takes time, not other paths). */
#include "format/coeffs.h"
#include "plan/findep.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_findep_problem p;
    sl_err err = {0};
    if (sl_coeffs_parse("fuzz", (sl_span){data, size}, &p, &err) != SL_OK) {
        SL_ASSERT(err.code != SL_OK && err.msg[0] != 0);
        return 0;
    }
    SL_ASSERT(p.layers && p.ag && p.eg && p.tokens && p.batch_per_ag && p.r2_max && p.skew >= 1);
    SL_ASSERT(p.top_k >= 1 && p.top_k <= p.experts);
    p.batch_per_ag = SL_MIN(p.batch_per_ag, 64u);
    p.r2_max = SL_MIN(p.r2_max, 64u);
    for (int published = 0; published < 2; published++) {
        sl_findep_result r;
        sl_status st = sl_findep_solve(&p, published, &r, &err);
        if (st != SL_OK) {
            SL_ASSERT((st == SL_ERR_INFEASIBLE || st == SL_ERR_ARG) && err.msg[0] != 0);
            continue;
        }
        SL_ASSERT(r.at.r1 >= 1 && r.at.ma >= 1 && r.at.r2 >= 1 && r.at.r2 <= p.r2_max);
        SL_ASSERT((uint64_t)r.at.r1 * r.at.ma <= p.batch_per_ag);
        SL_ASSERT(isfinite(r.makespan_ms) && r.makespan_ms > 0);
        SL_ASSERT(r.bound_ms <= r.makespan_ms * (1 + 1e-9));
    }
    return 0;
}
