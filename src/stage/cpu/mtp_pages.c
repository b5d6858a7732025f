/* Which rows of the prediction block's KV are there. */
#include "stage/cpu/mtp_pages.h"

sl_status sl_mtp_pages_open(const sl_model_spec *m, uint32_t n, sl_mtp_pages *out, sl_err *err) {
    const size_t page = sl_kv_block_bytes(m);
    size_t bytes;
    *out = (sl_mtp_pages){.n = n};
    if (__builtin_mul_overflow(n, page, &bytes))
        return sl_fail(err, SL_ERR_LIMIT, "%u KV pages overflow the address space", n);
    out->known = sl_alloc(n, sizeof *out->known);
    if (page) out->base = sl_reserve(n, page); /* costs memory where it is written to */
    if (!out->known || (page && !out->base))
        return sl_fail(err, SL_ERR_NOMEM, "%zu bytes of the prediction block's KV", bytes);
    out->kv = sl_kv_pool_of_blocks(m, out->base, sl_mtp_block(m), 1);
    return SL_OK;
}

void sl_mtp_pages_close(sl_mtp_pages *p) {
    sl_free(p->known);
    if (p->base) sl_release(p->base, p->n, p->kv.page);
    *p = (sl_mtp_pages){0};
}

void sl_mtp_pages_forget(sl_mtp_pages *p, const uint32_t *pos, const uint32_t *const *pages,
                         uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        sl_mtp_page *k = &p->known[pages[i][pos[i] / SL_KV_PAGE_TOKENS]];
        const uint8_t at = (uint8_t)(pos[i] % SL_KV_PAGE_TOKENS);
        if (at <= k->from)
            *k = (sl_mtp_page){0};
        else
            k->to = SL_MIN(k->to, at);
    }
}

void sl_mtp_pages_drop(sl_mtp_pages *p, uint32_t page) {
    p->known[page] = (sl_mtp_page){0};
}

/* The row at `at` is there: with those before it, or alone. */
static void note(sl_mtp_page *k, uint8_t at) {
    if (at < k->from || at > k->to || k->to == 0) k->from = at;
    k->to = (uint8_t)(at + 1);
}

static uint32_t first_without_gap(const sl_mtp_pages *p, const uint32_t *pages, uint32_t pos) {
    uint32_t g = pos / SL_KV_PAGE_TOKENS;
    while (p->known[pages[g]].from == 0 && g > 0 && p->known[pages[g - 1]].to == SL_KV_PAGE_TOKENS)
        g--;
    return g * SL_KV_PAGE_TOKENS + p->known[pages[g]].from;
}

void sl_mtp_pages_write(sl_mtp_pages *p, const uint32_t *pos, const uint32_t *const *pages,
                        uint32_t n, uint32_t *low) {
    for (uint32_t i = 0; i < n; i++) {
        note(&p->known[pages[i][pos[i] / SL_KV_PAGE_TOKENS]],
             (uint8_t)(pos[i] % SL_KV_PAGE_TOKENS));
        const bool follows = i > 0 && pages[i] == pages[i - 1] && pos[i] == pos[i - 1] + 1;
        low[i] = follows ? low[i - 1] : first_without_gap(p, pages[i], pos[i]);
    }
}
