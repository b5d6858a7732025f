/* Attention of prompts by warp groups' tensor cores, numerics fast on sm_90a (fast_prompt_wide.cu):
 * a request's pages in bf16, then all rows over them. */
#include "stage/cuda/exec_rows.h"
#include "stage/cuda/exec_wide.h"

#define LEAST_ROWS 64u                 /* of a request */
#define MOST_BYTES ((size_t)512 << 20) /* of rounded pages */

static uint32_t up_to(uint32_t n, uint32_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

/* Positions that any row sees. */
static void seen_by(const sl_attn_args *a, uint32_t *from, uint32_t *to) {
    *from = UINT32_MAX;
    *to = 0;
    for (uint32_t r = 0; r < a->n_rows; r++) {
        *from = SL_MIN(*from, sl_sight_first(a->m, a->layer, a->pos[r]));
        *to = SL_MAX(*to, a->pos[r]);
    }
}

/* Pages as the kernel of attention reads them, and what it is told of them. */
static bool round_pages(sl_cuda *c, const sl_attn_args *a, const sl_k_attention_args *k,
                        sl_prompt_args *out) {
    const uint32_t heads = a->m->n_kv_heads, dim = a->m->head_dim;
    sl_prompt_keys_args p = {.k = k->k,
                             .v = k->v,
                             .page_bytes = k->page_bytes,
                             .head_bytes = k->head_bytes,
                             .type = k->type,
                             .page = k->page,
                             .dim = dim};
    seen_by(a, &p.from, &p.to);
    p.origin = p.from / SL_KV_PAGE_TOKENS * SL_KV_PAGE_TOKENS;
    p.span = up_to(p.to + 1 - p.origin, SL_PROMPT_KEYS);
    const size_t values = (size_t)heads * p.span * dim, o = (size_t)a->n_rows * a->o_stride;
    if (2 * values * sizeof(uint16_t) > MOST_BYTES) return false;
    const uint64_t at = sl_cuda_wide_room(c, (2 * values + o) * sizeof(uint16_t));
    if (!at) return false;
    p.keys = (uint16_t *)(uintptr_t)at;
    p.values = p.keys + values;
    out->o = p.values + values;
    out->origin = p.origin;
    out->span = p.span;
    if (!sl_cuda_wide_map(c, p.keys, heads * p.span, dim, 2ull * dim, SL_PROMPT_KEYS, &out->keys) ||
        !sl_cuda_wide_map(c, p.values, heads * dim, p.span, 2ull * p.span, dim, &out->values))
        return false;
    sl_cuda_launch(c, SL_CUDA_sl_k_fast_prompt_keys, p.span / SL_KV_PAGE_TOKENS, heads, 1,
                   SL_PROMPT_KEYS_THREADS, 0, &p);
    return true;
}

bool sl_cuda_prompt_can(const sl_cuda *c, const sl_attn_args *a) {
    const sl_kv_type t = a->m->kv_type;
    return sl_cuda_is_wide_gpu(c) && a->n_rows >= LEAST_ROWS && (t == SL_KV_F32 || t == SL_KV_BF16);
}

bool sl_cuda_prompt_wide(sl_cuda *c, const sl_attn_args *a, const sl_k_attention_args *k,
                         uint32_t walks) {
    const uint32_t dim = a->m->head_dim;
    const uint32_t shared =
        SL_PROMPT_ROOM + 1024 + SL_PROMPT_STAGES * 2 * SL_PROMPT_KEYS * dim * sizeof(uint16_t);
    sl_prompt_args p;
    memset(&p, 0, sizeof p);
    p.attn = *k;
    if (!round_pages(c, a, k, &p)) return false;
    sl_cuda_launch(c,
                   dim == 64 ? SL_CUDA_sl_k_fast_prompt_wide_64 : SL_CUDA_sl_k_fast_prompt_wide_128,
                   walks, a->m->n_kv_heads * k->slices, 1, SL_PROMPT_THREADS, shared, &p);
    if (a->o_stride == a->m->n_heads * dim)
        sl_cuda_have_rounded(c, a->o, a->n_rows, a->o_stride, (uint64_t)(uintptr_t)p.o);
    return true;
}
