/* Tiles of attention over a page, and where the next page is asked for; after simd/vec.h. All the
 * while the next page is asked for, its keys and its values side by side: two streams are read a
 * third faster than one, as the processor's own prefetching sees both. */
#define TOKENS SL_KV_PAGE_TOKENS
#define GROUP  4u /* queries of a tile */

/* `at` bytes into both streams; functions take NULL to ask for nothing. */
typedef struct hints {
    const char *one, *other;
    size_t at, step; /* 64, or 0: there is nothing more to ask for */
} hints;

SL_INLINE void ask(hints *h) {
    v_prefetch(h->one + h->at);
    v_prefetch(h->other + h->at);
    h->at += h->step;
}

/* Keys and values of the next page, or both halves of the rows that are both. */
static hints hints_for(const sl_attn_page *a) {
    if (!a->next_k) return (hints){(const char *)a->k, (const char *)a->k, 0, 0};
    const float *half = a->next_k + TOKENS / 2 * (size_t)a->head_dim;
    const float *other = a->next_v && a->next_v != a->next_k ? a->next_v : half;
    return (hints){(const char *)a->next_k, (const char *)other, 0, 64};
}
