/* Routed experts in numerics fast and exact on a context's stream (fast_experts.h). */
#include "stage/cuda/fast_experts.h"

#include "stage/cuda/context.h"

#define MAP_BYTES (SL_FAST_MAPS_BYTES / 3) /* of a tensor map */

void sl_cuda_fast_moe_by(sl_cuda *c, const sl_fast_moe *m, sl_fast_way way) {
    sl_fast_moe mine = *m;
    sl_fast_plan p;
    if (m->n_rows == 0) return;
    mine.few = c->few;
    mine.many = c->many;
    mine.sms = c->info.major == 9 ? c->info.sms : 0;
    mine.together = m->together || !c->d->image;
    mine.most_shared = c->info.shared_bytes;
    mine.maps = mine.sms && c->d->cuTensorMapEncodeTiled;
    sl_fast_plan_make(&mine, way, &p);
    for (uint32_t i = 0; i < p.n; i++) {
        const sl_fast_launch *l = &p.launch[i];
        sl_cuda_launch(c, l->kernel, l->grid_x, l->grid_y, 1, l->threads, l->shared, &l->args);
    }
}

void sl_cuda_fast_moe(sl_cuda *c, const sl_fast_moe *m) {
    sl_cuda_fast_moe_by(c, m, c->numerics == SL_NUMERICS_EXACT ? SL_FAST_EXACT : SL_FAST_AUTO);
}

/* What the copy engine is told of a matrix. */
static sl_status map_of(sl_cuda *c, const void *address, uint32_t rows, uint32_t values, void *out,
                        sl_err *err) {
    const uint64_t dim[2] = {values, rows}, stride[1] = {(uint64_t)values * 2};
    const uint32_t box[2] = {64, 128}, step[2] = {1, 1};
    return SL_CU_DO(c->d, err, cuTensorMapEncodeTiled, out, SL_CU_MAP_BF16, 2,
                    (uint64_t)(uintptr_t)address, dim, stride, box, step, 0, SL_CU_MAP_SWIZZLE_128,
                    SL_CU_MAP_FETCH_256, 0);
}

sl_status sl_cuda_fast_expert(sl_cuda *c, const void *gate, const void *up, const void *down,
                              uint32_t d_model, uint32_t d_ff, uint64_t maps, sl_fast_expert *out,
                              sl_err *err) {
    const void *const matrix[3] = {gate, up, down};
    _Alignas(64) uint8_t map[SL_FAST_MAPS_BYTES]; /* as the driver wants it */
    sl_status st = SL_OK;
    *out = (sl_fast_expert){gate, up, down, NULL};
    if (!maps || c->info.major != 9 || !c->d->cuTensorMapEncodeTiled) return SL_OK;
    for (uint32_t j = 0; st == SL_OK && j < 3; j++)
        st = map_of(c, matrix[j], j < 2 ? d_ff : d_model, j < 2 ? d_model : d_ff,
                    map + j * MAP_BYTES, err);
    if (st == SL_OK) st = sl_cuda_copy_in(c, maps, map, sizeof map, err);
    if (st == SL_OK) out->maps = (const void *)(uintptr_t)maps;
    return st;
}
