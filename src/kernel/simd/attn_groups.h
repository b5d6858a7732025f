/* Attention over a page by groups of queries; after simd/attn_hints.h and what is written for each
 * instruction set: scores_of, scale_scores, add_rows, and STRIDE, the floats between two queries'
 * scores. */

/* Products to probabilities, +0 for tokens that are not seen, and what sums shrink by. */
static void weigh(const sl_attn_page *a, float *score, float *shrink) {
    _Alignas(64) float top[SL_ATTN_QUERIES] = {0}, was[SL_ATTN_QUERIES] = {0};
    for (uint32_t i = 0; i < a->n; i++) {
        const sl_attn_query *u = &a->query[i];
        if (u->first > u->last) continue;
        was[i] = u->max;
        top[i] = scale_scores(score + i * STRIDE, u, a->scale);
    }
    v_store(shrink, simd_exp(v_sub(v_load(was), v_load(top))));
    for (uint32_t i = 0; i < a->n; i++) {
        sl_attn_query *u = &a->query[i];
        float *s = score + i * STRIDE;
        if (u->first > u->last) continue;
        const v16 x = simd_exp(v_sub(v_load(s), v_set1(top[i])));
        const v16 y = simd_exp(v_sub(v_load(s + 16), v_set1(top[i])));
        v_store(s, x);
        v_store(s + 16, y);
        u->sum = fmaf(u->sum, shrink[i], v_tree(v_add(x, y)));
        u->max = top[i];
    }
}

/* Values of the tokens that Q queries see: the tokens that all do together, then the others. */
SL_INLINE void add_group(const sl_attn_page *a, const sl_attn_query *u, const float *score,
                         const float *shrink, hints *h, const sl_kv_type K, const uint32_t Q) {
    uint32_t first = u->first, last = u->last;
    bool together = true;
    for (uint32_t i = 1; i < Q; i++) {
        together = together && u[i].first == first;
        last = SL_MIN(last, u[i].last);
    }
    together = together && first <= last;
    if (together) add_rows(a, u, score, shrink, first, last + 1, h, K, Q);
    for (uint32_t i = 0; i < Q; i++) {
        const float s = together ? 1 : shrink[i];
        const uint32_t from = together ? last + 1 : u[i].first;
        if (from <= u[i].last)
            add_rows(a, u + i, score + i * STRIDE, &s, from, u[i].last + 1, h, K, 1);
    }
}

/* The page for all queries, by fours, a pair and one. */
SL_INLINE void page_by_groups(const sl_attn_page *a, const sl_kv_type K) {
    _Alignas(64) float score[SL_ATTN_QUERIES * STRIDE], shrink[SL_ATTN_QUERIES];
    uint32_t first, i;
    const uint32_t end = sl_attn_seen(a, &first);
    if (first >= end) return;
    const uint32_t fours = a->n / GROUP * GROUP, pairs = a->n / 2 * 2;
    const sl_attn_query *u = a->query;
    hints h = hints_for(a, K);
    const size_t step = h.step;
    /* The first queries ask, the others find the page in a cache. */
    if (fours) scores_of(a, u, first, end, score, &h, K, GROUP), h.step = 0;
    for (i = GROUP; i < fours; i += GROUP)
        scores_of(a, u + i, first, end, score + i * STRIDE, NULL, K, GROUP);
    for (i = fours; i < pairs; i += 2, h.step = 0)
        scores_of(a, u + i, first, end, score + i * STRIDE, &h, K, 2);
    if (i < a->n) scores_of(a, u + i, first, end, score + i * STRIDE, &h, K, 1);
    weigh(a, score, shrink);
    h.step = step;
    if (fours) add_group(a, u, score, shrink, &h, K, GROUP), h.step = 0;
    for (i = GROUP; i < fours; i += GROUP)
        add_group(a, u + i, score + i * STRIDE, shrink + i, NULL, K, GROUP);
    for (i = fours; i < pairs; i += 2, h.step = 0)
        add_group(a, u + i, score + i * STRIDE, shrink + i, &h, K, 2);
    if (i < a->n) add_group(a, u + i, score + i * STRIDE, shrink + i, &h, K, 1);
}
