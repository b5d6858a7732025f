/* Attention over one page; after simd/scores.h and simd/gemm.h. */
/* Asks for part i of n of the next page while this one is worked on. */
static void simd_prefetch_part(const sl_attn_page *a, uint32_t i, uint32_t n) {
    if (!a->next_k) return;
    size_t bytes = (size_t)SIMD_TOKENS * a->head_dim * sizeof(float);
    for (size_t at = bytes * i / n / 64 * 64; at < bytes * (i + 1) / n; at += 64) {
        v_prefetch((const char *)a->next_k + at);
        if (a->next_v != a->next_k) v_prefetch((const char *)a->next_v + at);
    }
}

static void simd_attn_f32(const sl_attn_page *a) {
    _Alignas(64) float score[SL_ATTN_QUERIES * SIMD_TOKENS];
    const float *q[SL_ATTN_QUERIES];
    uint32_t first;
    const uint32_t end = sl_attn_seen(a, &first);
    if (first >= end) return;
    for (uint32_t i = 0; i < a->n; i++) q[i] = a->query[i].q;
    const sl_gemm_tile t = {.w = a->k + (size_t)first * a->head_dim,
                            .w_stride = a->head_dim * sizeof(float),
                            .dtype = SL_F32,
                            .k = a->head_dim,
                            .n_cols = end - first,
                            .n_rows = a->n,
                            .y_stride = SIMD_TOKENS,
                            .x = q,
                            .y = score + first};
    simd_gemm_tile(&t);
    for (uint32_t i = 0; i < a->n; i++) {
        sl_attn_query *u = &a->query[i];
        float *s = score + i * SIMD_TOKENS;
        simd_prefetch_part(a, i, a->n);
        if (u->first > u->last) continue;
        for (uint32_t j = 0; j < SIMD_TOKENS; j++)
            s[j] = j < u->first || j > u->last ? -INFINITY : s[j] * a->scale;
        float shrink = simd_probabilities(u, s);
        simd_add_values(a, u, s + u->first, shrink);
    }
}

static void simd_attn_page(const sl_attn_page *a) {
    if (a->type != SL_KV_F32)
        sl_attn_page_widened(&SIMD_SELF, a);
    else
        simd_attn_f32(a);
}
