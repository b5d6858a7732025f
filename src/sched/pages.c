/* Books of a pool of KV pages: a stack of the free ones, threaded through them, a list of those
 * that are cached, by last use, and a hash of all whose content has a key. */
#include "sched/pages.h"

#include "base/mem.h"
#include "base/mutate.h"
#include "spec/kv.h"

#include <sodium.h>
#include <string.h>

#define FIRST_CAP 64u

/* ---- keys ---- */

static uint32_t *bucket_of(const sl_pages *p, sl_page_key key) {
    return &p->bucket[key.word[0] % p->cap];
}

static void enter(sl_pages *p, uint32_t id) {
    uint32_t *bucket = bucket_of(p, p->page[id].key);
    p->page[id].next = *bucket;
    *bucket = id;
}

static void leave(sl_pages *p, uint32_t id) {
    uint32_t *at = bucket_of(p, p->page[id].key);
    while (*at != id) at = &p->page[*at].next;
    *at = p->page[id].next;
    p->page[id].key = (sl_page_key){0};
    p->n_keys--;
    p->n_turns++;
}

/* As many bytes as BLAKE2b takes for the purpose; what is hashed for one is nothing for another. */
static sl_page_key hash(const void *data, size_t n, const char purpose[16 + 1]) {
    sl_page_key key;
    _Static_assert(sizeof key >= crypto_generichash_blake2b_BYTES_MIN, "a hash of this length");
    crypto_generichash_blake2b_salt_personal((uint8_t *)&key, sizeof key, data, n, NULL, 0, NULL,
                                             (const uint8_t *)purpose);
    if (sl_page_key_none(key)) key.word[0] = 1;
    return key;
}

sl_page_key sl_pages_root(const void *about, size_t n) {
    return hash(about, n, "sluice kv root 1");
}

sl_page_key sl_pages_chain(sl_page_key before, const uint32_t *tokens) {
    struct {
        sl_page_key before;
        uint32_t tokens[SL_KV_PAGE_TOKENS];
    } text = {.before = before};
    memcpy(text.tokens, tokens, sizeof text.tokens);
    return hash(&text, sizeof text, "sluice kv page 1");
}

sl_page_key sl_pages_key_of(sl_pages_keys *k, const uint32_t *tokens, uint32_t index) {
    if (k->n > index + 1) k->n = 0;
    for (; k->n <= index; k->n++)
        k->key = sl_pages_chain(k->n ? k->key : k->root, tokens + (size_t)k->n * SL_KV_PAGE_TOKENS);
    return k->key;
}

void sl_pages_set_key(sl_pages *p, uint32_t id, sl_page_key key) {
    SL_ASSERT(id < p->n_touched && p->page[id].holders > 0);
    SL_ASSERT(sl_page_key_none(p->page[id].key) && !sl_page_key_none(key));
    if (sl_pages_find(p, key) != SL_PAGES_NONE) return;
    p->page[id].key = key;
    p->n_keys++;
    enter(p, id);
}

uint32_t sl_pages_find(const sl_pages *p, sl_page_key key) {
    if (p->n_keys == 0 || sl_page_key_none(key)) return SL_PAGES_NONE;
    uint32_t id = *bucket_of(p, key);
    while (id != SL_PAGES_NONE && !sl_page_key_is(p->page[id].key, key)) id = p->page[id].next;
    return id;
}

/* ---- those that nobody holds ---- */

static void make_free(sl_pages *p, uint32_t id) {
    p->page[id].next = p->back;
    p->back = id;
    p->n_free++;
}

static void make_cached(sl_pages *p, uint32_t id) {
    p->page[id].older = p->newest;
    p->page[id].newer = SL_PAGES_NONE;
    *(p->newest == SL_PAGES_NONE ? &p->oldest : &p->page[p->newest].newer) = id;
    p->newest = id;
    p->n_cached++;
    p->n_turns++;
}

static void uncache(sl_pages *p, uint32_t id) {
    const sl_page *is = &p->page[id];
    *(is->older == SL_PAGES_NONE ? &p->oldest : &p->page[is->older].newer) = is->newer;
    *(is->newer == SL_PAGES_NONE ? &p->newest : &p->page[is->newer].older) = is->older;
    p->n_cached--;
    p->n_turns++;
}

/* The cached one that was given back longest ago. */
static void evict(sl_pages *p) {
    uint32_t id = p->oldest;
    uncache(p, id);
    leave(p, id);
    make_free(p, id);
}

/* ---- books ---- */

static bool reserve(sl_pages *p, uint32_t cap) {
    uint32_t *bucket = sl_alloc(cap, sizeof *bucket);
    sl_page *page = bucket ? sl_grow(p->page, p->cap, cap, sizeof *page) : NULL;
    if (!page) {
        sl_free(bucket);
        return false;
    }
    sl_free(p->bucket);
    p->page = page;
    p->bucket = bucket;
    p->cap = cap;
    for (uint32_t i = 0; i < cap; i++) bucket[i] = SL_PAGES_NONE;
    for (uint32_t id = 0; id < p->n_touched; id++)
        if (!sl_page_key_none(page[id].key)) enter(p, id);
    return true;
}

sl_status sl_pages_create(uint32_t n, uint32_t room, sl_pages *out, sl_err *err) {
    *out = (sl_pages){.n_total = n,
                      .n_free = n,
                      .back = SL_PAGES_NONE,
                      .oldest = SL_PAGES_NONE,
                      .newest = SL_PAGES_NONE};
    if (room == 0 || reserve(out, SL_MIN(room, n))) return SL_OK;
    return sl_fail(err, SL_ERR_NOMEM, "books of %u KV pages", room);
}

void sl_pages_free(sl_pages *p) {
    sl_free(p->page);
    sl_free(p->bucket);
    *p = (sl_pages){0};
}

/* So that n pages can be taken without another look at memory. */
static bool has_room(sl_pages *p, uint32_t n) {
    uint32_t untouched = p->n_total - p->n_touched;
    uint32_t back = p->n_free - untouched + (n > p->n_free ? n - p->n_free : 0);
    uint32_t need = p->n_touched + (n > back ? n - back : 0);
    if (need <= p->cap) return true;
    uint32_t cap = SL_MAX(SL_MAX(2 * p->cap, FIRST_CAP), need);
    return reserve(p, SL_MIN(cap, p->n_total));
}

bool sl_pages_take(sl_pages *p, uint32_t n, uint32_t *ids) {
    if (n > sl_pages_spare(p) || !has_room(p, n)) return false;
    for (; p->n_free < n; p->n_evicted++) evict(p);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = p->back;
        if (id == SL_PAGES_NONE)
            id = p->n_touched++;
        else
            p->back = p->page[id].next;
        p->page[id] = (sl_page){.holders = 1};
        ids[i] = id;
    }
    p->n_free -= n;
    return true;
}

void sl_pages_share(sl_pages *p, uint32_t id) {
    sl_page *is = &p->page[id];
    bool cached = is->holders == 0;
    SL_ASSERT(id < p->n_touched && (!cached || !sl_page_key_none(is->key)));
    if (cached) uncache(p, id);
    if (cached || !SL_MUTATION(UNCOUNTED_SHARE)) is->holders++;
}

void sl_pages_give(sl_pages *p, const uint32_t *ids, uint32_t n) {
    for (uint32_t i = n; i > 0; i--) {
        uint32_t id = ids[i - 1];
        SL_ASSERT(id < p->n_touched && p->page[id].holders > 0);
        if (--p->page[id].holders > 0) continue;
        if (sl_page_key_none(p->page[id].key))
            make_free(p, id);
        else
            make_cached(p, id);
    }
}

void sl_pages_forget(sl_pages *p) {
    while (p->n_cached > 0) evict(p);
    for (uint32_t id = 0; p->n_keys > 0 && id < p->n_touched; id++)
        if (!sl_page_key_none(p->page[id].key)) leave(p, id);
}

uint32_t sl_pages_newest(const sl_pages *p, uint32_t most, uint32_t *ids) {
    uint32_t n = SL_MIN(most, p->n_cached), id = p->newest;
    for (uint32_t i = n; i > 0; i--, id = p->page[id].older) ids[i - 1] = id;
    return n;
}

/* As many as are in the list are held, those below the highest of them free; false: not so many. */
static bool hold_these(sl_pages *p, const uint32_t *ids, uint32_t n, uint32_t end) {
    uint32_t twice = 0;
    for (uint32_t id = 0; id < end; id++) p->page[id] = (sl_page){0};
    for (uint32_t i = 0; i < n; i++) twice += p->page[ids[i]].holders++ > 0;
    if (twice) return false;
    for (uint32_t id = end; id > 0; id--) {
        if (p->page[id - 1].holders > 0) continue;
        p->page[id - 1].next = p->back;
        p->back = id - 1;
    }
    p->n_touched = end;
    p->n_free -= n;
    return true;
}

bool sl_pages_adopt(sl_pages *p, const uint32_t *ids, const sl_page_key *keys, uint32_t n) {
    uint32_t end = 0;
    sl_pages_forget(p);
    if (p->n_free != p->n_total) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] >= p->n_total) return false;
        end = SL_MAX(end, ids[i] + 1);
    }
    p->n_touched = 0; /* all are free, and none has a key */
    p->back = SL_PAGES_NONE;
    if (end > p->cap && !reserve(p, SL_MIN(SL_MAX(2 * p->cap, end), p->n_total))) return false;
    if (!hold_these(p, ids, n, end)) return false;
    for (uint32_t i = 0; i < n; i++) {
        sl_pages_set_key(p, ids[i], keys[i]);
        sl_pages_give(p, &ids[i], 1);
    }
    return true;
}
