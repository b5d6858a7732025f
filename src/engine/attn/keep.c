/* KV pages that wait for the next coordinator: kept when one is gone, told to the next one with
 * their keys, forgotten as that one gives them to somebody. */
#include "engine/attn/keep.h"

#include "base/log.h"
#include "base/memfd.h"
#include "engine/attn/attn_int.h"
#include "engine/attn/stamp.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What is in a page. */
typedef struct content {
    sl_page_key key;      /* none: nothing that is kept */
    uint32_t index, page; /* of its request's pages it is that one; and which one it is here */
} content;

struct sl_keep {
    int fd; /* 0: none */
    sl_kv_stamp of;
    uint32_t n_pages;
    content *in; /* [n_pages] */
    uint32_t n;  /* pages that are kept */
    char *question, *answer;
};

/* ---- the file ---- */

sl_keep *sl_keep_create(void) {
    return sl_alloc(1, sizeof(sl_keep));
}

static void drop(sl_keep *k) {
    sl_free(k->in);
    k->in = NULL;
    k->n = 0;
    if (k->fd) close(k->fd);
    k->fd = 0;
}

void sl_keep_free(sl_keep *k) {
    if (!k) return;
    drop(k);
    sl_free(k->question);
    sl_free(k->answer);
    sl_free(k);
}

/* ---- what was measured ---- */

const char *sl_keep_answer(const sl_keep *k, const char *question) {
    return k->answer && strcmp(k->question, question) == 0 ? k->answer : NULL;
}

void sl_keep_note_answer(sl_keep *k, const char *question, const char *answer) {
    char *asked = sl_strdup(question), *said = sl_strdup(answer);
    sl_free(k->question);
    sl_free(k->answer);
    k->question = k->answer = NULL;
    if (asked && said) {
        k->question = asked;
        k->answer = said;
        return;
    }
    sl_free(asked);
    sl_free(said);
}

int sl_keep_file(sl_keep *k, uint32_t id, const sl_plan *p, const sl_model_spec *m,
                 const char *folder) {
    const uint32_t roles = p->worker[id].roles;
    const sl_device_spec device = sl_plan_device_of(p, id);
    sl_kv_stamp of;
    size_t bytes = 0;
    sl_err err;
    sl_kv_stamp_of(id, p, m, folder, &of);
    const bool needed = sl_plan_kv_in_file(p, roles) && sl_device_is_cpu(&device);
    if (needed && k->fd && k->n_pages == p->n_pages && memcmp(&of, &k->of, sizeof of) == 0)
        return k->fd;
    if (k->n)
        sl_log(SL_LOG_WARN, "worker",
               "%u KV pages are of no use by this plan: another model, other numerics or another "
               "pool",
               k->n);
    drop(k);
    if (!needed || !sl_kv_file_bytes(m, p->n_pages, sl_plan_ranks(p, roles), &bytes)) return 0;
    k->in = sl_alloc(p->n_pages, sizeof *k->in);
    if (!k->in) return 0;
    if (sl_memfd_create(bytes, &k->fd, &err) != SL_OK)
        sl_log(SL_LOG_WARN, "worker", "KV ends with this coordinator: %s", err.msg);
    k->of = of;
    k->n_pages = p->n_pages;
    return k->fd;
}

/* ---- what is kept ---- */

void sl_attn_keep(sl_attn *a) {
    sl_keep *k = a->keep;
    uint32_t before = k ? k->n : 0;
    for (uint32_t i = 0; k && i < a->n_lanes * a->max_slots; i++) {
        sl_slot *s = &a->slot[i];
        if (!s->life->used || s->life->ends) continue;
        for (uint32_t p = 0, n = sl_slot_sure_pages(s); p < n; p++) {
            content *in = &k->in[s->pages[p]];
            k->n += sl_page_key_none(in->key);
            *in = (content){sl_pages_key_of(&s->keys, s->tokens, p), p, s->pages[p]};
        }
    }
    if (k && k->n > before)
        sl_log(SL_LOG_INFO, "worker", "%u KV pages are kept for the next coordinator",
               k->n - before);
}

/* Last pages of requests first, as they are of no use without those before them. */
static int by_use(const void *a, const void *b) {
    const content *x = a, *y = b;
    if (x->index != y->index) return x->index > y->index ? -1 : 1;
    return (x->page > y->page) - (x->page < y->page);
}

/* All that are kept, [k->n], those of most use last; NULL: no memory. */
static content *in_order(const sl_keep *k) {
    content *c = sl_alloc(k->n, sizeof *c);
    uint32_t n = 0;
    for (uint32_t page = 0; c && page < k->n_pages; page++)
        if (!sl_page_key_none(k->in[page].key)) c[n++] = k->in[page];
    if (c) qsort(c, n, sizeof *c, by_use);
    return c;
}

void sl_attn_tell_kept(sl_attn *a) {
    const sl_keep *k = a->keep;
    const sl_wire_kept *found;
    const uint32_t n_found = sl_disk_found(a->w->disk, &found);
    uint32_t n = k ? SL_MIN(k->n, (uint32_t)SL_WIRE_MAX_ROWS) : 0;
    content *c = n ? in_order(k) : NULL;
    if (!c) n = n_found; /* in a pool where nothing is kept, as it was new */
    sl_buf *b = n ? sl_net_buf_take(a->w->net, n * sizeof(sl_wire_kept)) : NULL;
    for (uint32_t i = 0; c && b && i < n; i++) {
        const content *in = &c[k->n - n + i];
        const sl_wire_kept is = {.page = in->page, .key = in->key};
        sl_wire_kept_encode(&is, 1, b->data + i * sizeof is);
    }
    if (!c && b) sl_wire_kept_encode(found, n, b->data);
    sl_free(c);
    sl_disk_told(a->w->disk);
    if (!b) return; /* all of it is computed again */
    sl_worker_send(a->w, SL_NO_WORKER, (sl_wire_header){.kind = SL_MSG_KV_KEPT, .rows = n}, b);
}

void sl_keep_forget(sl_keep *k, const uint32_t *pages, uint32_t n) {
    for (uint32_t i = 0; k->n && i < n; i++) {
        k->n -= !sl_page_key_none(k->in[pages[i]].key);
        k->in[pages[i]] = (content){0};
    }
}
