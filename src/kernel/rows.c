/* Rows that are moved, placed, weighed and summed where memory is the host's. */
#include "kernel/kernel_int.h"
#include "kernel/ops_int.h"

#include <string.h>

#define SUM_COLUMNS 128u
#define SUM_ALONE   (1u << 16) /* values below which waking threads costs more */

void sl_host_embed(const sl_exec *ex, const sl_mat *w, const uint32_t *ids, uint32_t n_rows,
                   float *x) {
    for (uint32_t i = 0; i < n_rows; i++) sl_widen_row(ex, w, ids[i], x + (size_t)i * w->k);
}

void sl_host_copy_rows(const sl_exec *ex, const float *x, size_t x_stride, uint32_t n_rows,
                       uint32_t width, float *y, size_t y_stride) {
    (void)ex;
    for (size_t r = 0; r < n_rows; r++)
        memcpy(y + r * y_stride, x + r * x_stride, width * sizeof *y);
}

void sl_host_pick_rows(const sl_exec *ex, const float *x, const uint32_t *row, const float *factor,
                       uint32_t n_rows, uint32_t width, float *y) {
    for (size_t r = 0; r < n_rows; r++) {
        const float *from = x + (row ? row[r] : r) * (size_t)width;
        float *to = y + r * width;
        if (factor)
            ex->k->scale(to, from, factor[r], width);
        else if (to != from)
            memcpy(to, from, width * sizeof *to);
    }
}

void sl_host_scale_part(const sl_exec *ex, float *x, size_t stride, uint32_t n, uint32_t width,
                        float a) {
    for (size_t i = 0; i < n; i++) ex->k->scale(x + i * stride, x + i * stride, a, width);
}

void sl_host_split_pairs(const sl_exec *ex, float *x, uint32_t n, uint32_t dim, size_t stride) {
    float odd[SL_HEAD_DIM_MAX / 2];
    uint32_t half = dim / 2;
    (void)ex;
    SL_ASSERT(dim <= SL_HEAD_DIM_MAX);
    for (uint32_t h = 0; h < n; h++, x += stride) {
        for (uint32_t i = 0; i < half; i++) {
            odd[i] = x[2 * i + 1];
            x[i] = x[2 * i];
        }
        memcpy(x + half, odd, half * sizeof *odd);
    }
}

/* ---- sums of pairs ---- */

typedef struct sum_ctx {
    const sl_kernels *k;
    const sl_pair_sum *s;
} sum_ctx;

static void sum_some(const sum_ctx *c, size_t at, size_t n) {
    const sl_pair_sum *s = c->s;
    for (uint32_t p = 0; p < s->n_pairs; p++) {
        const float *y = s->y + (size_t)p * s->d + at;
        float *to = s->to[p] + at;
        if (!s->gate && s->adds[p])
            c->k->add(to, y, n);
        else if (!s->gate)
            memcpy(to, y, n * sizeof *to);
        else if (s->adds[p])
            c->k->add_scaled(to, y, s->gate[p], n);
        else
            c->k->scale(to, y, s->gate[p], n);
    }
}

static void sum_columns(void *ctx, size_t begin, size_t end) {
    const sum_ctx *c = ctx;
    size_t at = begin * SUM_COLUMNS;
    sum_some(c, c->s->first + at, SL_MIN(end * SUM_COLUMNS, c->s->n) - at);
}

void sl_host_sum_pairs(const sl_exec *ex, const sl_pair_sum *s) {
    sum_ctx c = {.k = ex->k, .s = s};
    uint32_t parts = (s->n + SUM_COLUMNS - 1) / SUM_COLUMNS;
    if (ex->pool && (uint64_t)s->n_pairs * s->n >= SUM_ALONE)
        sl_pool_run(ex->pool, parts, 1, sum_columns, &c);
    else
        sum_columns(&c, 0, parts);
}
