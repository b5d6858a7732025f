/* What the threads of a block add up of values (attention_walk.h, attention_far.cu), once for each
 * variant: no guard. ATTN_OF(part): names; ATTN_THREADS that add; ATTN_QUERIES of a block at most;
 * ATTN_COLUMNS of a thread at most. `type`: of values as they are added, a constant in most. */

/* Sums of a thread: columns d, d + lanes, ... of queries part, part + parts, ... */
typedef struct ATTN_OF(_sums) {
    uint32_t lanes, parts, part, d;
    float o[ATTN_COLUMNS][ATTN_QUERIES];
} ATTN_OF(_sums);

SL_DEV void ATTN_OF(_begin_sums)(const sl_k_attention_args *a, const block_queries *b,
                                 uint32_t thread, ATTN_OF(_sums) * s) {
    s->lanes = SL_WARP;
    while (s->lanes < a->v_dim && s->lanes < ATTN_THREADS) s->lanes *= 2;
    s->parts = ATTN_THREADS / s->lanes;
    s->part = thread / s->lanes;
    s->d = thread & (s->lanes - 1);
    SL_UNROLL
    for (uint32_t i = 0; i < ATTN_QUERIES; i++) {
        const uint32_t u = i * s->parts + s->part;
        SL_UNROLL
        for (uint32_t c = 0; c < ATTN_COLUMNS; c++) {
            const uint32_t column = s->d + c * s->lanes;
            const bool goes_on = a->goes_on && u < b->n && column < a->v_dim;
            s->o[c][i] = goes_on ? out_of_query(a, b, u)[column] : 0.0f;
        }
    }
}

/* What the page has at position j in this thread's column number c. Of a column that there is not
 * it is read by nobody: 0, or where reading takes several steps the last column's, without a
 * branch. */
SL_DEV float ATTN_OF(_value)(const ATTN_OF(_sums) * s, uint32_t type, uint32_t c, uint32_t v_dim,
                             const block_page *page, uint32_t j) {
    const uint32_t column = s->d + c * s->lanes;
    if (type == SL_KV_F32) return column < v_dim ? value_of_page(page, SL_KV_F32, j, column) : 0.0f;
    return value_of_page(page, type, j, column < v_dim ? column : v_dim - 1);
}

/* Adds what four of the page's values weigh, from j on, which all queries see. n: queries of this
 * thread, a constant; those that a block lacks are computed from what lies there. */
SL_DEV void ATTN_OF(_add_four)(ATTN_OF(_sums) * s, uint32_t type, uint32_t n, uint32_t v_dim,
                               const block_page *page, uint32_t j) {
    float x[ATTN_COLUMNS][4];
    SL_UNROLL
    for (uint32_t c = 0; c < ATTN_COLUMNS; c++) {
        SL_UNROLL
        for (uint32_t e = 0; e < 4; e++) x[c][e] = ATTN_OF(_value)(s, type, c, v_dim, page, j + e);
    }
    SL_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t u = i * s->parts + s->part;
        const float4 p = *(const float4 *)(page->weight + u * PAGE + j);
        SL_UNROLL
        for (uint32_t c = 0; c < ATTN_COLUMNS; c++) {
            s->o[c][i] = fmaf(p.x, x[c][0], s->o[c][i]);
            s->o[c][i] = fmaf(p.y, x[c][1], s->o[c][i]);
            s->o[c][i] = fmaf(p.z, x[c][2], s->o[c][i]);
            s->o[c][i] = fmaf(p.w, x[c][3], s->o[c][i]);
        }
    }
}

SL_DEV void ATTN_OF(_add_even_of)(ATTN_OF(_sums) * s, uint32_t type, uint32_t n, uint32_t v_dim,
                                  const block_page *page) {
    SL_ROLLED
    for (uint32_t j = 0; j < PAGE; j += 8) {
        ATTN_OF(_add_four)(s, type, n, v_dim, page, j);
        ATTN_OF(_add_four)(s, type, n, v_dim, page, j + 4);
    }
}

SL_DEV void ATTN_OF(_add_even)(ATTN_OF(_sums) * s, uint32_t type, uint32_t n, uint32_t v_dim,
                               const block_page *page) {
    const uint32_t mine = (n + s->parts - 1) / s->parts;
    if (mine <= 1)
        ATTN_OF(_add_even_of)(s, type, 1, v_dim, page);
    else if (mine <= 2)
        ATTN_OF(_add_even_of)(s, type, 2, v_dim, page);
    else if (mine <= 4)
        ATTN_OF(_add_even_of)(s, type, 4, v_dim, page);
    else if (mine <= 8 && ATTN_QUERIES > 8)
        ATTN_OF(_add_even_of)(s, type, 8, v_dim, page);
    else
        ATTN_OF(_add_even_of)(s, type, ATTN_QUERIES, v_dim, page);
}

/* The same where some do not: what a query does not see is left out. */
SL_DEV void ATTN_OF(_add_seen)(ATTN_OF(_sums) * s, uint32_t type, uint32_t n, uint32_t v_dim,
                               const block_page *page) {
    SL_ROLLED
    for (uint32_t j = 0; j < PAGE; j++) {
        float x[ATTN_COLUMNS];
        SL_UNROLL
        for (uint32_t c = 0; c < ATTN_COLUMNS; c++) {
            x[c] = ATTN_OF(_value)(s, type, c, v_dim, page, j);
        }
        SL_UNROLL
        for (uint32_t i = 0; i < ATTN_QUERIES; i++) {
            const uint32_t u = i * s->parts + s->part;
            if (u >= n || !(page->sees[u] >> j & 1)) continue;
            SL_UNROLL
            for (uint32_t c = 0; c < ATTN_COLUMNS; c++)
                s->o[c][i] = fmaf(page->weight[u * PAGE + j], x[c], s->o[c][i]);
        }
    }
}

SL_DEV void ATTN_OF(_add)(ATTN_OF(_sums) * s, uint32_t type, uint32_t n, uint32_t v_dim, bool even,
                          const block_page *page) {
    SL_UNROLL
    for (uint32_t i = 0; i < ATTN_QUERIES; i++) {
        const uint32_t u = i * s->parts + s->part;
        if (u >= n) continue;
        SL_UNROLL
        for (uint32_t c = 0; c < ATTN_COLUMNS; c++) s->o[c][i] *= page->shrink[u];
    }
    if (even)
        ATTN_OF(_add_even)(s, type, n, v_dim, page);
    else
        ATTN_OF(_add_seen)(s, type, n, v_dim, page);
}

/* Results, or sums that go on. total: of each query, what its weights add up to. */
SL_DEV void ATTN_OF(_store)(const sl_k_attention_args *a, const block_queries *b,
                            const ATTN_OF(_sums) * s, const float *total) {
    SL_UNROLL
    for (uint32_t i = 0; i < ATTN_QUERIES; i++) {
        const uint32_t u = i * s->parts + s->part;
        if (u >= b->n) continue;
        float *to = out_of_query(a, b, u);
        SL_UNROLL
        for (uint32_t c = 0; c < ATTN_COLUMNS; c++) {
            const uint32_t column = s->d + c * s->lanes;
            if (column < a->v_dim) to[column] = a->more ? s->o[c][i] : s->o[c][i] / total[u];
        }
    }
}
