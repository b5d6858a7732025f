/* Which pages a request may begin with (sched/prefix.h): whose tokens its own are, which of its
 * rows have to be computed for their own sake, and what workers kept of a coordinator that is gone.
 */
#include "engine/coord/coord_int.h"

#include "base/log.h"

/* What a save may take: of a slow disk, and one that may have others' data to write first. */
#define SAVE_MS         60000u
#define SAVE_BYTES_A_MS 16384u
#define SAVE_MS_MOST    86400000ull

/* All that rows of KV depend on besides tokens and the tenant whose they are, as far as it can
 * differ between requests that ever meet in a pool. Zeroed before it is filled: hashed as it lies.
 */
typedef struct numerics {
    uint8_t model[32];
    sl_route_skew skew;
    uint32_t type, exact, wire, activations, segments, page_tokens, numerics, revision;
    char gpu_kind[SL_GPU_KIND_BYTES]; /* whose bits numerics exact are */
    uint8_t salt[SL_SALT_BYTES];
} numerics;

static sl_page_key root_of(const sl_engine *e, const sl_request *r) {
    const sl_route_skew *skew = &e->home.skew;
    numerics n;
    memset(&n, 0, sizeof n);
    memcpy(n.model, e->spec.hash, sizeof n.model);
    n.skew.on = skew->on; /* field by field: what is between them is 0 */
    n.skew.permuted = skew->permuted;
    n.skew.theta = skew->theta;
    n.skew.seed = skew->seed;
    n.type = e->spec.kv_type;
    n.exact = e->home.exact;
    n.wire = e->home.wire;
    n.activations = (uint32_t)e->home.activations;
    n.segments = e->home.segments;
    n.numerics = (uint32_t)sl_plan_numerics(&e->home);
    memcpy(n.gpu_kind, sl_plan_gpu_kind(&e->home), sizeof n.gpu_kind);
    n.page_tokens = SL_KV_PAGE_TOKENS;
    n.revision = SL_NUMERICS_REVISION;
    memcpy(n.salt, r->p.salt, sizeof n.salt);
    return sl_pages_root(&n, sizeof n);
}

/* Rows that need not be computed once more for their own sake: with those of the prompt goes what
 * was asked about its tokens. */
static uint32_t rows_to_spare(const sl_request *r) {
    bool reports = r->p.prompt_logprobs && r->n_prompt_reported + 1 < r->p.n_prompt;
    if (r->p.on_logits) return 0;
    return reports ? r->n_prompt_reported : UINT32_MAX;
}

sl_status sl_prefix_know(sl_engine *e, sl_request *r, sl_err *err) {
    r->root = root_of(e, r);
    const sl_prefix_text text = {
        .tokens = r->tokens, .root = r->root, .shares = r->p.shares, .spare = rows_to_spare(r)};
    return sl_admit_know(&e->admit, r->place, &text, err);
}

void sl_prefix_note_report(sl_engine *e, const sl_request *r) {
    sl_admit_spare(&e->admit, r->place, rows_to_spare(r));
}

uint32_t sl_prefix_save_ms(uint64_t bytes) {
    const uint64_t ms = SAVE_MS + bytes / SAVE_BYTES_A_MS;
    return bytes ? (uint32_t)SL_MIN(ms, SAVE_MS_MOST) : 0;
}

uint64_t sl_prefix_save(sl_engine *e, uint32_t id) {
    const sl_pages *pages = &e->admit.worker[id].pages;
    const uint32_t n = SL_MIN(pages->n_cached, SL_WIRE_MAX_ROWS);
    if (!e->worker[id].saves || !e->worker[id].conn || !e->o.kv_disk || n == 0) return 0;
    uint32_t *ids = sl_alloc(n, sizeof *ids);
    sl_buf *b = ids ? sl_net_buf_take(e->net, n * sizeof(sl_wire_kept)) : NULL;
    if (!b) {
        sl_log(SL_LOG_WARN, "engine", "KV of worker %u is not saved: out of memory", id);
        sl_free(ids);
        return 0;
    }
    sl_pages_newest(pages, n, ids);
    for (uint32_t i = 0; i < n; i++) {
        const sl_wire_kept is = {.page = ids[i], .key = pages->page[ids[i]].key};
        sl_wire_kept_encode(&is, 1, b->data + i * sizeof is);
    }
    sl_free(ids);
    const sl_wire_header h = {.kind = SL_MSG_KV_SAVE, .epoch = e->plan.epoch, .rows = n};
    sl_net_send(e->net, e->worker[id].conn, h, b); /* a lost one saves nothing */
    return n * sl_kv_page_bytes(&e->spec);
}

sl_status sl_prefix_on_kept(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                            sl_err *err) {
    const sl_wire_kept *kept;
    uint32_t *pages;
    sl_page_key *keys;
    if (e->roster.worker[id].state != SL_ROSTER_JOINING ||
        !(e->roster.worker[id].roles & SL_ROLE_ATTENTION))
        return sl_fail(err, SL_ERR_PROTOCOL, "unexpected KV_KEPT of %u pages", h->rows);
    sl_status st = sl_wire_kept_decode(h, payload, &kept, err);
    if (st != SL_OK) return st;
    void *arrays = sl_alloc_arrays(SL_ARRAY(pages, h->rows), SL_ARRAY(keys, h->rows));
    if (!arrays) return sl_fail(err, SL_ERR_NOMEM, "%u kept pages", h->rows);
    for (uint32_t i = 0; i < h->rows; i++) {
        pages[i] = kept[i].page;
        keys[i] = kept[i].key;
    }
    sl_stay_release(e, id); /* whoever had the pages before was another process */
    if (!sl_admit_adopt(&e->admit, id, pages, keys, h->rows))
        st = sl_fail(err, SL_ERR_PROTOCOL,
                     "worker %u kept %u pages, of which one is twice or none of its %u", id,
                     h->rows, e->admit.worker[id].pages.n_total);
    sl_free(arrays);
    if (st == SL_OK) sl_log(SL_LOG_INFO, "engine", "worker %u kept %u KV pages", id, h->rows);
    return st;
}
