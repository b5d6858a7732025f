/* Attention over keys and values outside of pages, a span of positions at a time. */
#include "kernel/kernel_int.h"
#include "kernel/ops_int.h"

#include <math.h>

typedef struct span_ctx {
    const sl_kernels *k;
    const sl_attn_span *a;
    uint32_t blocks; /* of SL_ATTN_QUERIES rows */
} span_ctx;

/* The page at position `base`, of one head. */
static void span_page(const span_ctx *c, uint32_t head, uint32_t base, const uint32_t *pos,
                      uint32_t n, sl_attn_query *query) {
    const sl_attn_span *a = c->a;
    size_t tile = (size_t)SL_KV_PAGE_TOKENS * a->dim;
    size_t at = ((size_t)head * a->span + (base - a->first)) * a->dim;
    bool more = base + SL_KV_PAGE_TOKENS < a->first + a->span;
    for (uint32_t i = 0; i < n; i++) {
        bool sees = pos[i] >= base;
        query[i].first = sees ? 0 : 1;
        query[i].last = sees ? SL_MIN(pos[i] - base, SL_KV_PAGE_TOKENS - 1) : 0;
    }
    sl_call_attn_page(c->k, &(sl_attn_page){.query = query,
                                            .n = n,
                                            .head_dim = a->dim,
                                            .v_dim = a->v_dim,
                                            .k = a->k + at,
                                            .v = a->v + at,
                                            .next_k = more ? a->k + at + tile : NULL,
                                            .next_v = more ? a->v + at + tile : NULL,
                                            .scale = a->scale});
}

/* Item = (head, block of rows): neighbours read the same keys. */
static void span_items(void *ctx, size_t begin, size_t end) {
    const span_ctx *c = ctx;
    const sl_attn_span *a = c->a;
    sl_attn_query query[SL_ATTN_QUERIES];
    for (size_t item = begin; item < end; item++) {
        uint32_t head = (uint32_t)(item / c->blocks), high = 0;
        uint32_t r0 = (uint32_t)(item % c->blocks) * SL_ATTN_QUERIES;
        uint32_t n = SL_MIN(SL_ATTN_QUERIES, a->n_rows - r0);
        for (uint32_t i = 0; i < n; i++) {
            size_t row = r0 + i, state = row * a->n_heads + head;
            bool fresh = a->first == 0;
            query[i] = (sl_attn_query){.q = a->q + row * a->q_stride + (size_t)head * a->dim,
                                       .o = a->o + row * a->o_stride + (size_t)head * a->v_dim,
                                       .max = fresh ? -INFINITY : a->max[state],
                                       .sum = fresh ? 0 : a->sum[state]};
            if (fresh) memset(query[i].o, 0, a->v_dim * sizeof(float));
            high = SL_MAX(high, a->pos[row]);
        }
        for (uint32_t p = a->first; p <= high && p < a->first + a->span; p += SL_KV_PAGE_TOKENS)
            span_page(c, head, p, a->pos + r0, n, query);
        for (uint32_t i = 0; i < n; i++) {
            size_t state = (size_t)(r0 + i) * a->n_heads + head;
            a->max[state] = query[i].max;
            a->sum[state] = query[i].sum;
            if (a->last) c->k->divide(query[i].o, query[i].sum, a->v_dim);
        }
    }
}

void sl_host_attention_span(const sl_exec *ex, const sl_attn_span *a) {
    span_ctx c = {.k = ex->k, .a = a};
    c.blocks = (a->n_rows + SL_ATTN_QUERIES - 1) / SL_ATTN_QUERIES;
    size_t items = (size_t)c.blocks * a->n_heads;
    if (ex->pool)
        sl_pool_run(ex->pool, items, 1, span_items, &c);
    else
        span_items(&c, 0, items);
}

void sl_attention_span(const sl_exec *ex, const sl_attn_span *a) {
    SL_ASSERT(a->v_dim <= a->dim);
    SL_ASSERT(a->first % SL_KV_PAGE_TOKENS == 0 && a->span % SL_KV_PAGE_TOKENS == 0);
    sl_ops(ex)->attention_span(ex, a);
}
