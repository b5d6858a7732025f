/* Rows of KV pages on the host: rounded as they are written, widened a tile at a time before
 * attention reads them. What a table widens is what quant/kv_rows.h defines, to the bit. */
#include "kernel/kernel_int.h"
#include "kernel/ops_int.h"
#include "quant/kv_rows.h"

#include <string.h>

void sl_host_put_kv(const sl_exec *ex, const sl_kv_put *p) {
    (void)ex;
    if (p->n_tiles == 0) return; /* a rank without heads has no pages */
    const size_t column = sl_kv_column_offset(p->m, p->column);
    for (uint32_t r = 0; r < p->n_rows; r++) {
        uint8_t *row = p->kv.base + sl_kv_row_offset(p->m, &p->kv, p->pages[r], p->pos[r]);
        const float *x = p->x + (size_t)r * p->x_stride;
        for (uint32_t t = 0; t < p->n_tiles; t++, x += p->width)
            sl_kv_round(p->m->kv_type, x, p->width,
                        row + sl_kv_tile_offset(p->m, p->layer, p->is_v, t) + column);
    }
}

static void widen_q8_0(const sl_kernels *k, const uint8_t *src, uint32_t n, float *dst) {
    const uint32_t whole = n / SL_KV_Q8_BLOCK * SL_KV_Q8_BLOCK;
    if (whole) sl_call_widen(k, src, SL_Q8_0, whole, dst);
    if (whole < n)
        sl_kv_widen(SL_KV_Q8_0, src + sl_kv_part_bytes(SL_KV_Q8_0, whole), n - whole, dst + whole);
}

static void widen_fp8(const sl_kernels *k, const uint8_t *src, uint32_t n, float *dst) {
    float scale;
    memcpy(&scale, src, sizeof scale);
    k->widen_e4m3(src + SL_KV_FP8_HEAD, scale, n, dst);
}

static void widen_part(const sl_kernels *k, sl_kv_type t, const uint8_t *src, uint32_t n,
                       float *dst) {
    switch (t) {
    case SL_KV_F16:
    case SL_KV_BF16:
        sl_call_widen(k, src, t == SL_KV_F16 ? SL_F16 : SL_BF16, n, dst);
        break;
    case SL_KV_Q8_0:
        widen_q8_0(k, src, n, dst);
        break;
    case SL_KV_FP8:
        widen_fp8(k, src, n, dst);
        break;
    case SL_KV_F32:
    case SL_KV_TYPES:
        memcpy(dst, src, n * sizeof *dst);
        break;
    }
}

/* Whether neighbouring parts are one part: nothing of theirs lies between their values. */
static bool is_seamless(sl_kv_type t, uint32_t n) {
    return t != SL_KV_FP8 && (t != SL_KV_Q8_0 || n % SL_KV_Q8_BLOCK == 0);
}

/* n rows from `src` on, whose first part has `part` of their `dim` values. */
static void widen_rows(const sl_kernels *k, sl_kv_type t, uint32_t part, uint32_t dim,
                       const uint8_t *src, uint32_t n, float *dst) {
    const uint32_t rest = dim - part;
    const size_t row = sl_kv_row_of(t, part, dim);
    if (is_seamless(t, part) && is_seamless(t, rest)) {
        widen_part(k, t, src, n * dim, dst);
        return;
    }
    for (uint32_t i = 0; i < n; i++, src += row, dst += dim) {
        widen_part(k, t, src, part, dst);
        if (rest) widen_part(k, t, src + sl_kv_part_bytes(t, part), rest, dst + part);
    }
}

void sl_kv_rows_widen(const sl_kernels *k, const sl_model_spec *m, const uint8_t *tile,
                      uint32_t first, uint32_t n, float *dst) {
    widen_rows(k, m->kv_type, sl_kv_value_dim(m), m->head_dim, tile + first * sl_kv_row_bytes(m), n,
               dst);
}

void sl_attn_page_widened(const sl_kernels *k, const sl_attn_page *p) {
    _Alignas(64) float wide[2][SL_KV_PAGE_TOKENS * SL_HEAD_DIM_MAX];
    const size_t row = sl_kv_row_of(p->type, p->part, p->head_dim);
    const uint8_t *key = (const uint8_t *)p->k, *value = (const uint8_t *)p->v;
    sl_attn_page f32 = *p;
    uint32_t first, end = sl_attn_seen(p, &first);
    if (first >= end) return;
    const uint32_t n = end - first;
    const size_t at = (size_t)first * p->head_dim;
    f32.type = SL_KV_F32;
    f32.k = f32.v = wide[0];
    f32.next_k = f32.next_v = NULL;
    widen_rows(k, p->type, p->part, p->head_dim, key + first * row, n, wide[0] + at);
    if (value != key) {
        widen_rows(k, p->type, p->part, p->head_dim, value + first * row, n, wide[1] + at);
        f32.v = wide[1];
    }
    sl_call_attn_page(k, &f32);
}
