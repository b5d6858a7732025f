/* Rows that are moved, placed, weighed and summed where memory is the host's. */
#include "kernel/kernel_int.h"
#include "kernel/ops_int.h"
#include "quant/act_words.h"

#include <string.h>

#define SUM_COLUMNS 128u
#define ALONE       (1u << 16) /* values below which waking threads costs more */
#define CHUNK       (1u << 14) /* values that a thread takes at a time */

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

/* ---- gates of values ---- */

typedef struct gate_ctx {
    const sl_kernels *k;
    float *y;
    const float *gate;
} gate_ctx;

static void gate_some(void *ctx, size_t begin, size_t end) {
    const gate_ctx *c = ctx;
    c->k->gate_values(c->y + begin, c->gate + begin, end - begin);
}

void sl_host_gate_values(const sl_exec *ex, float *y, const float *gate, size_t n) {
    gate_ctx c = {ex->k, y, gate};
    if (ex->pool && n >= ALONE)
        sl_pool_run(ex->pool, n, CHUNK, gate_some, &c);
    else
        gate_some(&c, 0, n);
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
    if (ex->pool && (uint64_t)s->n_pairs * s->n >= ALONE)
        sl_pool_run(ex->pool, parts, 1, sum_columns, &c);
    else
        sum_columns(&c, 0, parts);
}

/* ---- rounded rows that ranks pass to each other ---- */

typedef struct words_ctx {
    const sl_kernels *k;
    const float *x; /* NULL: words are there */
    float *words;
    uint8_t *rows;
    uint32_t width;
    sl_act_kind kind;
} words_ctx;

static void pass_rows(void *ctx, size_t begin, size_t end) {
    const words_ctx *c = ctx;
    const size_t bytes = sl_act_row_bytes(c->kind, c->width), n = sl_act_words(c->kind, c->width);
    for (size_t r = begin; r < end; r++) {
        uint8_t *row = c->rows + r * bytes;
        float *words = c->words + r * n;
        if (c->x) {
            sl_call_quantise(c->k, c->x + r * c->width, c->width, c->kind, row);
            sl_act_to_words(c->kind, row, c->width, words);
        } else {
            sl_act_from_words(c->kind, words, c->width, row);
        }
    }
}

static void pass_all(const sl_exec *ex, uint32_t n_rows, words_ctx *c) {
    if (n_rows == 0 || c->width == 0) return;
    if (ex->pool && (uint64_t)n_rows * c->width >= ALONE)
        sl_pool_run(ex->pool, n_rows, SL_MAX(1, CHUNK / c->width), pass_rows, c);
    else
        pass_rows(c, 0, n_rows);
}

void sl_quantise_words(const sl_exec *ex, const float *x, uint32_t n_rows, uint32_t k,
                       sl_act_kind kind, uint8_t *rows, float *words) {
    pass_all(ex, n_rows, &(words_ctx){ex->k, x, words, rows, k, kind});
}

void sl_rows_of_words(const sl_exec *ex, const float *words, uint32_t n_rows, uint32_t k,
                      sl_act_kind kind, uint8_t *rows) {
    pass_all(ex, n_rows, &(words_ctx){ex->k, NULL, (float *)words, rows, k, kind});
}
