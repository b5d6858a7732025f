/* Tiles of attention over a page, and where the next page is asked for; after simd/vec.h. All the
 * while the next page is asked for, its keys and its values side by side: two streams are read a
 * third faster than one, as the processor's own prefetching sees both. */
#define TOKENS SL_KV_PAGE_TOKENS
#define GROUP  4u /* queries of a tile */

/* `at` bytes into both streams; functions take NULL to ask for nothing. */
typedef struct hints {
    const char *one, *other;
    size_t at, step; /* 64, or 0: there is nothing more to ask for */
    size_t end;      /* bytes of a stream: of f32 as many as are asked for */
} hints;

SL_INLINE void ask(hints *h) {
    v_prefetch(h->one + h->at);
    v_prefetch(h->other + h->at);
    h->at += h->step;
}

/* Smaller types are asked for at the pace of f32, while there is something left of them. */
SL_INLINE void ask_times(hints *h, const sl_kv_type K, const uint32_t n) {
#pragma GCC unroll 4
    for (uint32_t i = 0; i < n; i++)
        if (K == SL_KV_F32 || h->at < h->end) ask(h);
}

/* Keys and values of the next page of that type, or both halves of the rows that are both. */
SL_INLINE hints hints_for(const sl_attn_page *a, const sl_kv_type K) {
    if (!a->next_k) return (hints){(const char *)a->k, (const char *)a->k, 0, 0, 0};
    const size_t half = TOKENS / 2 * sl_kv_row_of(K, a->part, a->head_dim);
    const char *next = (const char *)a->next_k;
    const bool apart = a->next_v && a->next_v != a->next_k;
    return (hints){next, apart ? (const char *)a->next_v : next + half, 0, 64,
                   apart ? 2 * half : half};
}
