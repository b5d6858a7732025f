/* Books of a pool of KV pages: a stack of the free ones, threaded through them, and a hash of those
 * whose content has a key. */
#include "sched/pages.h"

#include "base/mem.h"
#include "base/rng.h"
#include "spec/kv.h"

#define FIRST_CAP 64u

/* ---- keys ---- */

static void enter(sl_pages *p, uint32_t id) {
    uint32_t *bucket = &p->bucket[p->page[id].key % p->cap];
    p->page[id].next = *bucket;
    *bucket = id;
}

static void leave(sl_pages *p, uint32_t id) {
    uint32_t *at = &p->bucket[p->page[id].key % p->cap];
    while (*at != id) at = &p->page[*at].next;
    *at = p->page[id].next;
    p->page[id].key = 0;
}

uint64_t sl_pages_chain(uint64_t before, const uint32_t *tokens) {
    uint64_t key = before;
    for (uint32_t i = 0; i < SL_KV_PAGE_TOKENS; i++) {
        uint64_t state = key ^ tokens[i];
        key = sl_rng_next(&state);
    }
    return key ? key : 1;
}

uint64_t sl_pages_key_of(sl_pages_keys *k, const uint32_t *tokens, uint32_t index) {
    if (k->n > index + 1) *k = (sl_pages_keys){0};
    for (; k->n <= index; k->n++)
        k->key = sl_pages_chain(k->key, tokens + (size_t)k->n * SL_KV_PAGE_TOKENS);
    return k->key;
}

void sl_pages_set_key(sl_pages *p, uint32_t id, uint64_t key) {
    SL_ASSERT(id < p->n_touched && p->page[id].holders > 0 && p->page[id].key == 0 && key != 0);
    p->page[id].key = key;
    enter(p, id);
}

uint32_t sl_pages_find(const sl_pages *p, uint64_t key) {
    if (key == 0 || p->cap == 0) return SL_PAGES_NONE;
    uint32_t id = p->bucket[key % p->cap];
    while (id != SL_PAGES_NONE && p->page[id].key != key) id = p->page[id].next;
    return id;
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
        if (page[id].key) enter(p, id);
    return true;
}

sl_status sl_pages_create(uint32_t n, uint32_t room, sl_pages *out, sl_err *err) {
    *out = (sl_pages){.n_total = n, .n_free = n, .back = SL_PAGES_NONE};
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
    uint32_t untouched = p->n_total - p->n_touched, back = p->n_free - untouched;
    uint32_t need = p->n_touched + (n > back ? n - back : 0);
    if (need <= p->cap) return true;
    uint32_t cap = SL_MAX(SL_MAX(2 * p->cap, FIRST_CAP), need);
    return reserve(p, SL_MIN(cap, p->n_total));
}

bool sl_pages_take(sl_pages *p, uint32_t n, uint32_t *ids) {
    if (n > p->n_free || !has_room(p, n)) return false;
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

bool sl_pages_claim(sl_pages *p, const uint32_t *ids, uint32_t n) {
    uint32_t end = 0, twice = 0;
    if (p->n_free != p->n_total) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] >= p->n_total) return false;
        end = SL_MAX(end, ids[i] + 1);
    }
    p->n_touched = 0; /* all are free, and none has a key */
    p->back = SL_PAGES_NONE;
    if (end > p->cap && !reserve(p, SL_MIN(SL_MAX(2 * p->cap, end), p->n_total))) return false;
    for (uint32_t id = 0; id < end; id++) p->page[id] = (sl_page){0};
    for (uint32_t i = 0; i < n; i++) twice += p->page[ids[i]].holders++ > 0;
    if (twice) return false;
    for (uint32_t id = end; id > 0; id--)
        if (p->page[id - 1].holders == 0) {
            p->page[id - 1].next = p->back;
            p->back = id - 1;
        }
    p->n_touched = end;
    p->n_free -= n;
    return true;
}

void sl_pages_share(sl_pages *p, uint32_t id) {
    SL_ASSERT(id < p->n_touched && p->page[id].holders > 0);
    p->page[id].holders++;
}

void sl_pages_give(sl_pages *p, const uint32_t *ids, uint32_t n) {
    for (uint32_t i = n; i > 0; i--) {
        uint32_t id = ids[i - 1];
        SL_ASSERT(id < p->n_touched && p->page[id].holders > 0);
        if (--p->page[id].holders > 0) continue;
        if (p->page[id].key) leave(p, id);
        p->page[id].next = p->back;
        p->back = id;
        p->n_free++;
    }
}
