/* What came back from the experts, into the residual stream: the one order of additions. */
#include "stage/stage_int.h"

#include <string.h>

/* sum = the pieces of a row that there are, in order. */
static void add_pieces(const sl_exec *ex, uint32_t d, uint32_t k, sl_wire_format wire,
                       const uint8_t *const *piece, float *sum, float *wide) {
    bool any = false;
    for (uint32_t j = 0; j < k; j++) {
        if (!piece[j]) continue;
        sl_wire_unpack(wire, piece[j], 1, d, any ? wide : sum);
        if (any) sl_vec_add(ex, sum, wide, d);
        any = true;
    }
    if (!any) memset(sum, 0, d * sizeof *sum);
}

void sl_stage_merge_rows(const sl_exec *ex, uint32_t d_model, uint32_t top_k,
                         const sl_stage_call *c, float *sum) {
    const sl_stage_merge *m = &c->merge;
    size_t d = d_model, k = top_k;
    float *to = sl_mem_ptr(c->rows.x);
    const float *x = sl_mem_ptr(m->x), *shared = sl_mem_ptr(m->shared);
    for (size_t i = 0; i < c->rows.n; i++) {
        size_t r = m->from ? m->from[i] : i;
        if (to + i * d != x + r * d) memcpy(to + i * d, x + r * d, d * sizeof *to);
        add_pieces(ex, d_model, top_k, m->wire, m->piece + i * k, sum, sum + d);
        if (shared) sl_vec_add(ex, sum, shared + r * d, d);
        sl_vec_add(ex, to + i * d, sum, d);
    }
}
