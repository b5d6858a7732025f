/* What a worker has kept of requests whose coordinator is gone: a list of texts with their pages.
 */
#include "sched/estate.h"

#include "base/mem.h"
#include "spec/kv.h"

#include <string.h>

#define FIRST_CAP 8u

bool sl_estate_add(sl_estate *e, const uint32_t *tokens, const uint32_t *pages, uint32_t n_pages) {
    sl_estate_text t = {.n_pages = n_pages};
    if (e->n == e->cap) {
        uint32_t cap = SL_MAX(2 * e->cap, FIRST_CAP);
        sl_estate_text *bigger = sl_grow(e->text, e->cap, cap, sizeof *bigger);
        if (!bigger) return false;
        e->text = bigger;
        e->cap = cap;
    }
    t.arrays =
        sl_alloc_arrays(SL_ARRAY(t.pages, n_pages), SL_TABLE(t.tokens, n_pages, SL_KV_PAGE_TOKENS));
    if (!t.arrays) return false;
    memcpy(t.pages, pages, n_pages * sizeof *pages);
    memcpy(t.tokens, tokens, (size_t)n_pages * SL_KV_PAGE_TOKENS * sizeof *tokens);
    e->text[e->n++] = t;
    e->n_pages += n_pages;
    return true;
}

bool sl_estate_claim(const sl_estate *e, sl_pages *pool) {
    uint32_t *ids = sl_alloc(e->n_pages, sizeof *ids), n = 0;
    if (!ids) return false;
    for (uint32_t i = 0; i < e->n; i++) {
        memcpy(ids + n, e->text[i].pages, e->text[i].n_pages * sizeof *ids);
        n += e->text[i].n_pages;
    }
    bool ok = sl_pages_claim(pool, ids, n);
    sl_free(ids);
    return ok;
}

uint32_t sl_estate_find(const sl_estate *e, const uint32_t *tokens, uint32_t n, uint32_t *n_pages) {
    uint32_t best = SL_ESTATE_NONE;
    *n_pages = 0;
    for (uint32_t i = 0; i < e->n; i++) {
        const sl_estate_text *t = &e->text[i];
        uint32_t both = SL_MIN(n, t->n_pages * SL_KV_PAGE_TOKENS);
        uint32_t spares = both / SL_KV_PAGE_TOKENS;
        bool shorter =
            best != SL_ESTATE_NONE && spares == *n_pages && t->n_pages < e->text[best].n_pages;
        if (spares == 0 || (spares <= *n_pages && !shorter)) continue;
        if (memcmp(t->tokens, tokens, both * sizeof *tokens) != 0) continue;
        best = i;
        *n_pages = spares;
    }
    return best;
}

/* Of a text only the first n pages stay; one without is no text. */
static void cut(sl_estate *e, uint32_t text, uint32_t n, sl_pages *pool) {
    sl_estate_text *t = &e->text[text];
    if (pool) sl_pages_give(pool, t->pages + n, t->n_pages - n);
    e->n_pages -= t->n_pages - n;
    t->n_pages = n;
    if (n > 0) return;
    sl_free(t->arrays);
    e->text[text] = e->text[--e->n];
}

void sl_estate_take(sl_estate *e, uint32_t text, uint32_t n, uint32_t *pages, sl_pages *pool) {
    const sl_estate_text *t = &e->text[text];
    SL_ASSERT(text < e->n && n <= t->n_pages);
    for (uint32_t i = 0; i < n; i++) { /* one holder more, until the text has none */
        pages[i] = t->pages[i];
        sl_pages_share(pool, pages[i]);
    }
    cut(e, text, 0, pool);
}

void sl_estate_drop(sl_estate *e, uint32_t text, sl_pages *pool) {
    cut(e, text, 0, pool);
}

void sl_estate_yield(sl_estate *e, uint32_t n, sl_pages *pool) {
    while (pool->n_free < n && e->n > 0) {
        uint32_t has = e->text[e->n - 1].n_pages, missing = n - pool->n_free;
        cut(e, e->n - 1, has - SL_MIN(missing, has), pool);
    }
}

void sl_estate_clear(sl_estate *e, sl_pages *pool) {
    while (e->n > 0) cut(e, e->n - 1, 0, pool);
    sl_free(e->text);
    *e = (sl_estate){0};
}
