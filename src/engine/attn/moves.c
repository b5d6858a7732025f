/* KV pages that come here from other attention workers, and go there: told by the coordinator,
 * asked for by who wants them, some blocks at a time, and never in the way of tokens.
 *
 * A fetch is answered exactly once: its page is whole, or why it is not. It ends unheard when its
 * page is given to a request, so nothing that comes late can touch what is somebody's by then. Who
 * is asked gives only rows that are computed, of a request that it has and of tokens whose key is
 * the one that was asked for. */
#include "engine/attn/attn_int.h"

#include "base/crc32c.h"
#include "base/log.h"

#define PIECE_BYTES ((size_t)128 << 10) /* of a message, but a block at least */
#define PIECES      2u                  /* asked for and not here yet */
#define ASKED_MAX   64u                 /* by others, and not answered */
#define FETCH_US    10000000u           /* without a piece: its source is gone, or too slow */
/* While there are rows to compute, pages take at most one part in so many of the thread's time. */
#define YIELD 20u

typedef struct fetch {
    sl_wire_fetch is;
    uint32_t asked, came; /* blocks */
    uint32_t pieces;      /* on their way */
    uint64_t since_us;    /* with pieces on their way: of the last one, or since they are */
} fetch;

typedef struct asked {
    sl_wire_blocks what;
    uint32_t by;
} asked;

struct sl_moves {
    fetch fetch[SL_MAX_FETCHES]; /* in the order of coming */
    uint32_t n_fetches;
    asked asked[ASKED_MAX]; /* ring */
    uint32_t first_asked, n_asked;
    uint32_t blocks;  /* of a piece */
    uint64_t next_us; /* when it may go on beside rows */
};

/* ---- what is to come ---- */

static void end_fetch(sl_attn *a, uint32_t i, sl_kv_fate fate) {
    struct sl_moves *m = a->moves;
    const sl_wire_pair pair = {.request = m->fetch[i].is.transfer, .value = fate};
    for (m->n_fetches--; i < m->n_fetches; i++) m->fetch[i] = m->fetch[i + 1];
    sl_buf *b = sl_worker_buf(a->w, sizeof pair);
    if (!b) return;
    sl_wire_pairs_encode(&pair, 1, b->data);
    sl_worker_send(a->w, SL_NO_WORKER, (sl_wire_header){.kind = SL_MSG_KV_HERE, .rows = 1}, b);
}

void sl_moves_claim(sl_attn *a, const uint32_t *pages, uint32_t n) {
    struct sl_moves *m = a->moves;
    if (a->keep) sl_keep_forget(a->keep, pages, n);
    for (uint32_t p = 0; p < n; p++)
        for (uint32_t i = m->n_fetches; i > 0; i--)
            if (m->fetch[i - 1].is.page == pages[p]) end_fetch(a, i - 1, SL_KV_DROPPED);
}

static sl_status check_fetch(const sl_attn *a, const sl_wire_fetch *f, sl_err *err) {
    const sl_plan *p = &a->w->plan;
    if (f->page >= p->n_pages || f->index >= p->n_pages)
        return sl_fail(err, SL_ERR_PROTOCOL, "fetch of page %u into page %u, there are %u",
                       f->index, f->page, p->n_pages);
    if (f->from >= p->n_workers || f->from == a->w->id)
        return sl_fail(err, SL_ERR_PROTOCOL, "fetch from worker %u of %u, by worker %u", f->from,
                       p->n_workers, a->w->id);
    return SL_OK;
}

sl_status sl_attn_on_fetch(sl_attn *a, const sl_wire_header *h, sl_span payload, sl_err *err) {
    struct sl_moves *m = a->moves;
    const sl_wire_fetch *f;
    sl_status st = sl_wire_fetches_decode(h, payload, &f, err);
    if (st == SL_OK && !sl_device_copies(a->w->device))
        st = sl_fail(err, SL_ERR_PROTOCOL, "fetch of pages that are not all of a request's KV");
    for (uint32_t i = 0; st == SL_OK && i < h->rows; i++) {
        st = check_fetch(a, &f[i], err);
        if (st != SL_OK) break;
        sl_moves_claim(a, &f[i].page, 1);
        if (m->n_fetches == SL_MAX_FETCHES)
            return sl_fail(err, SL_ERR_PROTOCOL, "more than %u fetches", SL_MAX_FETCHES);
        m->fetch[m->n_fetches++] = (fetch){.is = f[i]};
    }
    return st;
}

void sl_moves_lose(sl_attn *a, uint32_t worker) {
    struct sl_moves *m = a->moves;
    for (uint32_t i = m->n_fetches; i > 0; i--)
        if (m->fetch[i - 1].is.from == worker) end_fetch(a, i - 1, SL_KV_GONE);
}

static void end_late(sl_attn *a, uint64_t now_us) {
    struct sl_moves *m = a->moves;
    for (uint32_t i = m->n_fetches; i > 0; i--)
        if (m->fetch[i - 1].pieces > 0 && now_us - m->fetch[i - 1].since_us > FETCH_US)
            end_fetch(a, i - 1, SL_KV_GONE);
}

/* The next piece, if one may be asked for. */
static bool ask(sl_attn *a) {
    struct sl_moves *m = a->moves;
    uint32_t n_layers = a->m->n_layers, pieces = 0, i = 0;
    for (uint32_t j = 0; j < m->n_fetches; j++) pieces += m->fetch[j].pieces;
    while (i < m->n_fetches && m->fetch[i].asked == n_layers) i++;
    if (i == m->n_fetches || pieces >= PIECES) return false;
    fetch *f = &m->fetch[i];
    uint32_t n = SL_MIN(m->blocks, n_layers - f->asked);
    const sl_wire_blocks what = {.transfer = f->is.transfer,
                                 .key = f->is.key,
                                 .request = f->is.request,
                                 .index = f->is.index,
                                 .type = a->m->kv_type,
                                 .first = f->asked,
                                 .n = n,
                                 .bytes = (uint64_t)n * sl_kv_block_bytes(a->m)};
    sl_buf *b = sl_worker_buf(a->w, SL_WIRE_BLOCKS_BYTES);
    if (!b) return false;
    sl_wire_blocks_encode(&what, b->data);
    if (sl_worker_send(a->w, f->is.from, (sl_wire_header){.kind = SL_MSG_KV_GET}, b) != SL_OK) {
        end_fetch(a, i, SL_KV_GONE);
        return true;
    }
    if (f->pieces++ == 0) f->since_us = sl_clock_now_us(&a->w->clock);
    f->asked += n;
    return true;
}

/* Whether these are the blocks that this fetch waits for next. */
static bool is_next(const fetch *f, const sl_wire_blocks *b, uint32_t from) {
    return f->is.from == from && sl_page_key_is(f->is.key, b->key) && f->is.request == b->request &&
           f->is.index == b->index && b->first == f->came && f->came + b->n <= f->asked &&
           f->pieces > 0;
}

static void take(sl_attn *a, uint32_t i, const sl_wire_blocks *b, const uint8_t *data) {
    fetch *f = &a->moves->fetch[i];
    if (!data) {
        end_fetch(a, i, SL_KV_GONE);
        return;
    }
    if (sl_crc32c(0, data, b->bytes) != b->sum) {
        sl_log(SL_LOG_WARN, "worker", "KV of worker %u came damaged: page %u of request %llu",
               f->is.from, b->index, (unsigned long long)b->request);
        end_fetch(a, i, SL_KV_DAMAGED);
        return;
    }
    a->w->device->ops->write_page(a->w->device, f->is.page, b->first, b->n, data);
    f->came += b->n;
    f->pieces--;
    f->since_us = sl_clock_now_us(&a->w->clock);
    if (f->came == a->m->n_layers) end_fetch(a, i, SL_KV_HERE);
}

static sl_status on_answer(sl_attn *a, const sl_wire_header *h, sl_span payload, sl_err *err) {
    struct sl_moves *m = a->moves;
    sl_wire_blocks b;
    const uint8_t *data;
    uint32_t i = 0;
    sl_status st = sl_wire_blocks_decode(h, payload, a->m, &b, &data, err);
    if (st != SL_OK) return st;
    while (i < m->n_fetches && m->fetch[i].is.transfer != b.transfer) i++;
    if (i == m->n_fetches) return SL_OK; /* it ended unheard */
    if (!is_next(&m->fetch[i], &b, h->src))
        return sl_fail(err, SL_ERR_PROTOCOL, "%u blocks from %u on of a page that are not due", b.n,
                       b.first);
    take(a, i, &b, data);
    return SL_OK;
}

/* ---- what others ask for ---- */

static sl_status on_question(sl_attn *a, const sl_wire_header *h, sl_span payload, sl_err *err) {
    struct sl_moves *m = a->moves;
    const uint8_t *data;
    if (m->n_asked == ASKED_MAX || !sl_device_copies(a->w->device))
        return sl_fail(err, SL_ERR_PROTOCOL, "KV_GET beside %u others", m->n_asked);
    asked *q = &m->asked[(m->first_asked + m->n_asked) % ASKED_MAX];
    q->by = h->src;
    sl_status st = sl_wire_blocks_decode(h, payload, a->m, &q->what, &data, err);
    m->n_asked += st == SL_OK;
    return st;
}

/* Where it is, if it is here: all its rows are computed, and of these tokens. */
static bool find(sl_attn *a, const sl_wire_blocks *b, uint32_t *page) {
    sl_slot *s = sl_slot_of(a, b->request);
    if (!s || b->index >= sl_slot_sure_pages(s)) return false;
    *page = s->pages[b->index];
    return sl_page_key_is(sl_pages_key_of(&s->keys, s->tokens, b->index), b->key);
}

static void answer(sl_attn *a) {
    struct sl_moves *m = a->moves;
    const asked q = m->asked[m->first_asked];
    sl_wire_blocks b = q.what;
    uint32_t page = 0;
    m->first_asked = (m->first_asked + 1) % ASKED_MAX;
    m->n_asked--;
    if (!find(a, &b, &page)) b.bytes = 0;
    sl_buf *out = sl_worker_buf(a->w, SL_WIRE_BLOCKS_BYTES + b.bytes);
    if (!out) return;
    uint8_t *data = out->data + SL_WIRE_BLOCKS_BYTES;
    if (b.bytes) a->w->device->ops->read_page(a->w->device, page, b.first, b.n, data);
    if (b.bytes) b.sum = sl_crc32c(0, data, b.bytes);
    sl_wire_blocks_encode(&b, out->data);
    sl_worker_send(a->w, q.by, (sl_wire_header){.kind = SL_MSG_KV_PAGES}, out);
}

/* ---- the loop ---- */

/* What began at since_us has taken its part of the thread. */
static void rest(sl_attn *a, uint64_t since_us) {
    uint64_t now_us = sl_clock_now_us(&a->w->clock);
    a->moves->next_us = SL_MAX(a->moves->next_us, now_us) + (YIELD - 1) * (now_us - since_us);
}

sl_status sl_attn_on_blocks(sl_attn *a, const sl_wire_header *h, sl_span payload, sl_err *err) {
    uint64_t since_us = sl_clock_now_us(&a->w->clock);
    if (h->kind == SL_MSG_KV_GET) return on_question(a, h, payload, err);
    sl_status st = on_answer(a, h, payload, err);
    rest(a, since_us);
    return st;
}

bool sl_attn_move(sl_attn *a, bool busy) {
    struct sl_moves *m = a->moves;
    if (m->n_asked == 0 && m->n_fetches == 0) return false;
    uint64_t now_us = sl_clock_now_us(&a->w->clock);
    end_late(a, now_us);
    if (busy && now_us < m->next_us) return false;
    bool answers = m->n_asked > 0;
    if (answers) answer(a);
    bool asks = ask(a);
    if (answers || asks) rest(a, now_us);
    return answers || asks;
}

/* ---- life ---- */

sl_status sl_moves_create(sl_attn *a, sl_err *err) {
    a->moves = sl_alloc(1, sizeof *a->moves);
    if (!a->moves) return sl_fail(err, SL_ERR_NOMEM, "an attention worker's fetches");
    a->moves->blocks = (uint32_t)SL_MAX(PIECE_BYTES / sl_kv_block_bytes(a->m), (size_t)1);
    return SL_OK;
}

void sl_moves_free(sl_attn *a) {
    sl_free(a->moves);
    a->moves = NULL;
}
