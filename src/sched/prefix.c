/* Keys of one request's pages, and which of them a pool has. */
#include "sched/prefix.h"

#include "base/mem.h"
#include "spec/kv.h"

bool sl_prefix_begin(sl_prefix *x, const sl_prefix_text *is, uint32_t n) {
    if (n > x->cap) {
        sl_page_key *key = sl_alloc(n, sizeof *key);
        if (!key) return false;
        sl_free(x->key);
        x->key = key;
        x->cap = n;
    }
    *x = (sl_prefix){.is = *is, .key = x->key, .cap = x->cap};
    return true;
}

void sl_prefix_free(sl_prefix *x) {
    sl_free(x->key);
    *x = (sl_prefix){0};
}

sl_page_key sl_prefix_key(sl_prefix *x, uint32_t index) {
    SL_ASSERT(x->is.tokens && index < x->cap);
    for (; x->n_keys <= index; x->n_keys++)
        x->key[x->n_keys] = sl_pages_chain(x->n_keys ? x->key[x->n_keys - 1] : x->is.root,
                                           x->is.tokens + (size_t)x->n_keys * SL_KV_PAGE_TOKENS);
    return x->key[index];
}

void sl_prefix_find(sl_prefix *x, const sl_pages *pool, uint32_t rows, uint64_t who,
                    sl_prefix_seen *seen) {
    uint32_t most = SL_MIN(rows, x->is.spare) / SL_KV_PAGE_TOKENS;
    if (seen->who != who || seen->turns != pool->n_turns || seen->n > most)
        *seen = (sl_prefix_seen){.who = who, .turns = pool->n_turns};
    if (!x->is.tokens || pool->n_keys == 0) return;
    for (; seen->n < most; seen->n++) {
        uint32_t id = sl_pages_find(pool, sl_prefix_key(x, seen->n));
        if (id == SL_PAGES_NONE) break;
        seen->held += pool->page[id].holders > 0;
    }
}

void sl_prefix_take(sl_prefix *x, sl_pages *pool, uint32_t n, uint32_t *pages) {
    for (uint32_t i = 0; i < n; i++) {
        pages[i] = sl_pages_find(pool, x->key[i]);
        sl_pages_share(pool, pages[i]);
    }
    x->n_told = n;
}

void sl_prefix_tell(sl_prefix *x, sl_pages *pool, const uint32_t *pages, uint32_t n) {
    for (; x->is.shares && x->n_told < n; x->n_told++)
        sl_pages_set_key(pool, pages[x->n_told], sl_prefix_key(x, x->n_told));
}
