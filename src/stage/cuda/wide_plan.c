/* Tiles of products of many rows, and their cost (wide_plan.h). */
#include "stage/cuda/wide_plan.h"

#include "base/status.h"
#include "stage/cuda/kernels/args_products.h"

const sl_wide_shape sl_wide_shape_of[SL_WIDE_SHAPES] = {
#define SL_WIDE_OF(halves, rows) {SL_CUDA_sl_k_fast_wide_##halves##_##rows, halves, rows},
    SL_WIDE_TILES(SL_WIDE_OF)
#undef SL_WIDE_OF
};

static uint32_t parts(uint32_t n, uint32_t each) {
    return (n + each - 1) / each;
}

static uint32_t columns_of(const sl_wide_job *j, uint32_t halves) {
    return j->end == SL_PRODUCT_SWIGLU ? SL_WIDE_BOX : halves * SL_WIDE_BOX;
}

/* Pairs of tiles one below another. */
static uint32_t down_of(const sl_wide_job *j, uint32_t halves, uint32_t pair) {
    return parts(j->n, pair * columns_of(j, halves));
}

/* Of a stage: products, or what shared memory gives and takes, 128 bytes each. */
static uint32_t stage_cycles(const sl_wide_shape *s) {
    const uint32_t products = 4 * s->halves * s->rows;
    const uint32_t reads = s->halves * (128 + 2 * s->rows), writes = 128 * s->halves + s->rows;
    return SL_MAX(SL_MAX(products, reads + writes), 300u); /* no stage comes faster */
}

/* Between two tiles: what is stored while nobody multiplies. */
static uint32_t end_cycles(const sl_wide_shape *s) {
    return 600 + 8 * s->halves * s->rows;
}

uint32_t sl_wide_cycles(const sl_wide_args *a, uint32_t shape, uint32_t sms) {
    const sl_wide_shape *s = &sl_wide_shape_of[shape];
    uint64_t tiles = 0, most = 0;
    for (uint32_t i = 0; i < a->n_jobs; i++) {
        const sl_wide_job *j = &a->job[i];
        if (j->end == SL_PRODUCT_SWIGLU && s->halves != 2) return UINT32_MAX;
        const uint64_t stages = (uint64_t)parts(j->k, SL_WIDE_K) * j->parts;
        const uint64_t one = stages * stage_cycles(s) + end_cycles(s);
        tiles += (uint64_t)down_of(j, s->halves, a->pair) * parts(j->n_rows, s->rows);
        most = SL_MAX(most, one);
    }
    const uint64_t rounds = (tiles + sms / a->pair - 1) / SL_MAX(sms / a->pair, 1u);
    const uint64_t all = rounds * most;
    return (uint32_t)SL_MIN(all, UINT32_MAX - 1);
}

uint32_t sl_wide_choose(const sl_wide_args *a, uint32_t sms) {
    uint32_t best = 0, least = UINT32_MAX;
    for (uint32_t i = 0; i < SL_WIDE_SHAPES; i++) {
        const uint32_t c = sl_wide_cycles(a, i, sms);
        if (c < least) least = c, best = i;
    }
    return best;
}

/* Those were measured at a third of the rate of the tensor cores, which is 2048 products a cycle.
 */
bool sl_wide_pays(const sl_wide_args *a, uint32_t shape, uint32_t sms) {
    double products = 0;
    for (uint32_t i = 0; i < a->n_jobs; i++) {
        const sl_wide_job *j = &a->job[i];
        const double sides = j->end == SL_PRODUCT_SWIGLU ? 2 : 1;
        products += sides * j->n * j->n_rows * j->k;
        if (j->parts > 1) return true; /* what else there is does not use tensor cores at all */
    }
    return sl_wide_cycles(a, shape, sms) < 3 * products / (2048.0 * sms);
}

void sl_wide_layout(sl_wide_args *a, uint32_t shape) {
    const sl_wide_shape *s = &sl_wide_shape_of[shape];
    a->tiles = 0;
    for (uint32_t i = 0; i < a->n_jobs; i++) {
        sl_wide_job *j = &a->job[i];
        j->first = a->tiles;
        j->down = down_of(j, s->halves, a->pair);
        a->tiles += j->down * parts(j->n_rows, s->rows);
    }
    a->stage_bytes = (s->halves * SL_WIDE_BOX + s->rows) * SL_WIDE_K * 2;
    a->stages = SL_MIN(SL_WIDE_STAGES, (SL_WIDE_SHARED - SL_WIDE_ROOM - 1024) / a->stage_bytes);
}
