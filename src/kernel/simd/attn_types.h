/* Attention over a page of any type of KV; after simd/attn_groups.h, whose loads of rows know the
 * types. */

/* A function for each type: its loads are all that differs. */
#define PAGE_OF(type)                                                                              \
    static __attribute__((noinline)) void page_##type(const sl_attn_page *a) {                     \
        page_by_groups(a, SL_KV_##type);                                                           \
    }
PAGE_OF(F32)
PAGE_OF(F16)
PAGE_OF(BF16)
PAGE_OF(Q8_0)
PAGE_OF(FP8)

/* Groups of queries would each widen the page anew: for several it is widened once, and so it is
 * where registers do not hold whole parts. `k`: this instruction set. */
static void page_by_type(const sl_kernels *k, const sl_attn_page *a) {
    const uint32_t unit = a->type == SL_KV_Q8_0 ? SL_KV_Q8_BLOCK : 16;
    if (a->type == SL_KV_F32)
        page_F32(a);
    else if (a->n > GROUP || a->head_dim % unit || a->part % unit ||
             (a->type == SL_KV_FP8 && a->part < a->head_dim))
        sl_attn_page_widened(k, a);
    else if (a->type == SL_KV_FP8)
        page_FP8(a);
    else if (a->type == SL_KV_Q8_0)
        page_Q8_0(a);
    else if (a->type == SL_KV_F16)
        page_F16(a);
    else
        page_BF16(a);
}
