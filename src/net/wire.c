/* Messages to bytes and back: every count bounded, every length checked. */
#include "net/wire.h"

#include "spec/kv.h"

#include <math.h>

#include "base/crc32c.h"

/* Payload views are the payload's own bytes. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the wire is read in place: little-endian");
_Static_assert(sizeof(float) == 4, "f32 on the wire");
_Static_assert(sizeof(sl_wire_token) == 32, "token records are read in place");
_Static_assert(sizeof(sl_wire_pair) == 16, "pairs are read in place");
_Static_assert(sizeof(sl_wire_fetch) == 48, "fetches are read in place");
_Static_assert(sizeof(sl_wire_blocks) == SL_WIRE_BLOCKS_BYTES, "heads of blocks are copied");
_Static_assert(sizeof(sl_wire_kept) == 24, "kept pages are read in place");
_Static_assert(sizeof(sl_logprob) == 8, "log-probabilities are read in place");
_Static_assert(sizeof(sl_logit_bias) == 8, "biases are read in place");

#define BYTES_AT 64 /* of `bytes` in a header */
#define SUM_AT   68 /* of `sum` */

static uint32_t read_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

const char *sl_msg_kind_name(uint16_t kind) {
    static const char *const names[] = {
        [SL_MSG_HELLO] = "HELLO",         [SL_MSG_CHALLENGE] = "CHALLENGE",
        [SL_MSG_AUTH] = "AUTH",           [SL_MSG_WELCOME] = "WELCOME",
        [SL_MSG_REFUSE] = "REFUSE",       [SL_MSG_BYE] = "BYE",
        [SL_MSG_HEARTBEAT] = "HEARTBEAT", [SL_MSG_ERROR] = "ERROR",
        [SL_MSG_PLAN] = "PLAN",           [SL_MSG_READY] = "READY",
        [SL_MSG_SUBMIT] = "SUBMIT",       [SL_MSG_CANCEL] = "CANCEL",
        [SL_MSG_TOKENS] = "TOKENS",       [SL_MSG_ACK] = "ACK",
        [SL_MSG_STATS_GET] = "STATS_GET", [SL_MSG_STATS] = "STATS",
        [SL_MSG_SHUTDOWN] = "SHUTDOWN",   [SL_MSG_LOGITS] = "LOGITS",
        [SL_MSG_PAGES] = "PAGES",         [SL_MSG_ROWS] = "ROWS",
        [SL_MSG_KV_FETCH] = "KV_FETCH",   [SL_MSG_KV_HERE] = "KV_HERE",
        [SL_MSG_KV_KEPT] = "KV_KEPT",     [SL_MSG_KV_SAVE] = "KV_SAVE",
        [SL_MSG_UNABLE] = "UNABLE",       [SL_MSG_HOLD] = "HOLD",
        [SL_MSG_QUIET] = "QUIET",         [SL_MSG_TAKE] = "TAKE",
        [SL_MSG_TAKEN] = "TAKEN",         [SL_MSG_GO] = "GO",
        [SL_MSG_LOST] = "LOST",           [SL_MSG_SLOW] = "SLOW",
        [SL_MSG_DOUBT] = "DOUBT",         [SL_MSG_BUSY] = "BUSY",
        [SL_MSG_DISPATCH] = "DISPATCH",   [SL_MSG_RETURN] = "RETURN",
        [SL_MSG_JOIN] = "JOIN",           [SL_MSG_ROUND_OPEN] = "ROUND_OPEN",
        [SL_MSG_ROUND_SET] = "ROUND_SET", [SL_MSG_MEMBER_DEAD] = "MEMBER_DEAD",
        [SL_MSG_FUSED] = "FUSED",         [SL_MSG_COLLECTIVE] = "COLLECTIVE",
        [SL_MSG_RANK_IS] = "RANK_IS",     [SL_MSG_RANK_JOB] = "RANK_JOB",
        [SL_MSG_RANK_DONE] = "RANK_DONE", [SL_MSG_RANK_RAIL] = "RANK_RAIL",
        [SL_MSG_KV_GET] = "KV_GET",       [SL_MSG_KV_PAGES] = "KV_PAGES",
        [SL_MSG_CLOCK] = "CLOCK",         [SL_MSG_TRACE_GET] = "TRACE_GET",
        [SL_MSG_TRACE] = "TRACE",         [SL_MSG_RAILS] = "RAILS",
        [SL_MSG_STRIPED] = "STRIPED",     [SL_MSG_RAIL_IS] = "RAIL_IS",
        [SL_MSG_STRIPE] = "STRIPE",       [SL_MSG_MEASURE] = "MEASURE",
        [SL_MSG_COSTS] = "COSTS",         [SL_MSG_ECHO] = "ECHO",
        [SL_MSG_WINDOW] = "WINDOW",       [SL_MSG_DEVICE_WINDOW] = "DEVICE_WINDOW",
        [SL_MSG_RANK_ROWS] = "RANK_ROWS",
    };
    return kind < SL_LEN(names) ? names[kind] : NULL;
}

void sl_wire_text(sl_span in, char *out, size_t cap) {
    size_t n = SL_MIN(in.len, cap - 1);
    for (size_t i = 0; i < n; i++)
        out[i] = in.data[i] >= 0x20 && in.data[i] <= 0x7E ? (char)in.data[i] : '?';
    out[n] = 0;
}

/* ---- header ---- */

void sl_wire_header_encode(const sl_wire_header *h, uint8_t out[SL_WIRE_HEADER_BYTES]) {
    sl_wr w = sl_wr_of(out, SL_WIRE_HEADER_BYTES);
    sl_wr_u32(&w, SL_WIRE_MAGIC);
    sl_wr_u16(&w, SL_WIRE_VERSION);
    sl_wr_u16(&w, h->kind);
    sl_wr_u32(&w, h->flags);
    sl_wr_u32(&w, h->src);
    sl_wr_u64(&w, h->session);
    sl_wr_u32(&w, h->incarnation);
    sl_wr_u32(&w, h->epoch);
    sl_wr_u64(&w, h->round);
    sl_wr_u64(&w, h->seq);
    sl_wr_u32(&w, h->lane);
    sl_wr_u32(&w, h->layer);
    sl_wr_u32(&w, h->chunk);
    sl_wr_u32(&w, h->rows);
    sl_wr_u32(&w, h->bytes);
    sl_wr_u32(&w, h->sum);
    SL_ASSERT(w.ok && w.len == SL_WIRE_HEADER_BYTES);
}

static sl_status check_header(const sl_wire_header *h, uint32_t magic, uint16_t version,
                              sl_err *err) {
    if (magic != SL_WIRE_MAGIC)
        return sl_fail(err, SL_ERR_PROTOCOL, "header: magic 0x%08x, expected 0x%08x", magic,
                       SL_WIRE_MAGIC);
    if (version != SL_WIRE_VERSION)
        return sl_fail(err, SL_ERR_PROTOCOL, "header: wire version %u, this program speaks %u",
                       version, SL_WIRE_VERSION);
    if (h->flags & ~SL_WIRE_FLAGS)
        return sl_fail(err, SL_ERR_PROTOCOL, "header: unknown flags 0x%x",
                       h->flags & ~SL_WIRE_FLAGS);
    if (h->rows > SL_WIRE_MAX_ROWS)
        return sl_fail(err, SL_ERR_PROTOCOL, "header: %u rows, limit %u", h->rows,
                       SL_WIRE_MAX_ROWS);
    if (h->bytes > SL_WIRE_MAX_BYTES)
        return sl_fail(err, SL_ERR_PROTOCOL, "header: %u payload bytes, limit %u", h->bytes,
                       SL_WIRE_MAX_BYTES);
    return SL_OK;
}

uint32_t sl_wire_sum(const uint8_t head[SL_WIRE_HEADER_BYTES], sl_span payload) {
    return sl_crc32c(sl_crc32c(0, head, SUM_AT), payload.data, payload.len);
}

void sl_wire_set_sum(uint8_t head[SL_WIRE_HEADER_BYTES], uint32_t sum) {
    sl_wr w = sl_wr_of(head + SUM_AT, SL_WIRE_HEADER_BYTES - SUM_AT);
    sl_wr_u32(&w, sum);
}

uint32_t sl_wire_header_peek(const uint8_t head[SL_WIRE_HEADER_BYTES], bool *begins) {
    *begins = read_u32(head) == SL_WIRE_MAGIC;
    return read_u32(head + BYTES_AT);
}

sl_status sl_wire_header_decode(sl_span in, sl_wire_header *out, sl_err *err) {
    if (in.len != SL_WIRE_HEADER_BYTES)
        return sl_fail(err, SL_ERR_PROTOCOL, "header: %zu bytes, expected %d", in.len,
                       SL_WIRE_HEADER_BYTES);
    sl_cur c = sl_cur_of(in);
    sl_wire_header h = {0};
    uint32_t magic = sl_cur_u32(&c);
    uint16_t version = sl_cur_u16(&c);
    h.kind = sl_cur_u16(&c);
    h.flags = sl_cur_u32(&c);
    h.src = sl_cur_u32(&c);
    h.session = sl_cur_u64(&c);
    h.incarnation = sl_cur_u32(&c);
    h.epoch = sl_cur_u32(&c);
    h.round = sl_cur_u64(&c);
    h.seq = sl_cur_u64(&c);
    h.lane = sl_cur_u32(&c);
    h.layer = sl_cur_u32(&c);
    h.chunk = sl_cur_u32(&c);
    h.rows = sl_cur_u32(&c);
    h.bytes = sl_cur_u32(&c);
    h.sum = sl_cur_u32(&c);
    sl_status st = check_header(&h, magic, version, err);
    if (st == SL_OK) *out = h;
    return st;
}

/* ---- sections of a payload ---- */

/* A walk over sections that start at multiples of 8 (data: 64). `base` NULL only measures. */
typedef struct walk {
    uint8_t *base;
    uint64_t pos;
} walk;

static void *section(walk *w, uint64_t align, uint64_t bytes) {
    uint64_t at = (w->pos + align - 1) / align * align;
    if (w->base && at > w->pos) memset(w->base + w->pos, 0, at - w->pos);
    w->pos = at + bytes;
    return w->base ? w->base + at : NULL;
}

/* The walk of a received payload must not write the padding. */
static const void *view(const uint8_t *base, uint64_t *pos, uint64_t align, uint64_t bytes) {
    uint64_t at = (*pos + align - 1) / align * align;
    *pos = at + bytes;
    return base + at;
}

static bool is_aligned(const void *p, uintptr_t align) {
    return (uintptr_t)p % align == 0;
}

static sl_status check_set(const char *what, const uint32_t *set, uint32_t n, sl_err *err) {
    for (uint32_t i = 0; i < n; i++) {
        if (set[i] == SL_NO_WORKER)
            return sl_fail(err, SL_ERR_PROTOCOL, "%s: set[%u] is no worker id", what, i);
        if (i && set[i] <= set[i - 1])
            return sl_fail(err, SL_ERR_PROTOCOL, "%s: set[%u] = %u after %u, must ascend", what, i,
                           set[i], set[i - 1]);
    }
    return SL_OK;
}

/* Common to both token batches: limits of the counts that lead the payload. */
static sl_status check_batch(const char *what, const sl_wire_header *h, sl_span payload,
                             sl_wire_format f, uint32_t *n_set, sl_err *err) {
    if ((unsigned)f >= SL_WIRE_FORMAT_COUNT)
        return sl_fail(err, SL_ERR_ARG, "%s: wire format %d", what, (int)f);
    if (!is_aligned(payload.data, 64))
        return sl_fail(err, SL_ERR_ARG, "%s: payload at %p is not 64-byte aligned", what,
                       (const void *)payload.data);
    if (h->rows > SL_WIRE_MAX_ROWS)
        return sl_fail(err, SL_ERR_PROTOCOL, "%s: %u rows, limit %u", what, h->rows,
                       SL_WIRE_MAX_ROWS);
    if (payload.len < 8)
        return sl_fail(err, SL_ERR_PROTOCOL, "%s: payload of %zu bytes, at least 8 expected", what,
                       payload.len);
    *n_set = read_u32(payload.data);
    if (*n_set > SL_MAX_WORKERS)
        return sl_fail(err, SL_ERR_PROTOCOL, "%s: set of %u workers, limit %u", what, *n_set,
                       SL_MAX_WORKERS);
    if (*n_set && !(h->flags & SL_WIRE_SET))
        return sl_fail(err, SL_ERR_PROTOCOL, "%s: set of %u workers without the flag SET", what,
                       *n_set);
    return SL_OK;
}

static sl_status check_bare(const char *what, const sl_wire_header *h, sl_err *err) {
    if (h->rows)
        return sl_fail(err, SL_ERR_PROTOCOL, "%s: %u rows without a payload", what, h->rows);
    if (h->flags & (SL_WIRE_SET | SL_WIRE_OLD))
        return sl_fail(err, SL_ERR_PROTOCOL, "%s: flag %s without a payload", what,
                       h->flags & SL_WIRE_SET ? "SET" : "OLD");
    return SL_OK;
}

static sl_status check_rows(const char *what, sl_wire_format f, const uint8_t *data, uint32_t rows,
                            uint32_t d_model, sl_err *err) {
    sl_status st = sl_wire_rows_check(f, data, rows, d_model, err);
    return st == SL_OK ? st : sl_err_prefix(err, "%s", what);
}

/* ---- dispatch ---- */

static size_t dispatch_walk(void *buf, const sl_wire_counts *n, uint32_t d_model, sl_wire_format f,
                            sl_wire_dispatch *out) {
    walk w = {.base = buf};
    *out = (sl_wire_dispatch){
        .rows = n->rows, .n_set = n->n_set, .n_entries = n->n_entries, .n_old = n->n_old};
    uint32_t *counts = section(&w, 8, n->n_old ? 16 : 8);
    if (counts) counts[0] = n->n_set, counts[1] = n->n_entries;
    if (counts && n->n_old) counts[2] = n->n_old, counts[3] = 0;
    out->set = section(&w, 8, 4 * (uint64_t)n->n_set);
    out->tag = section(&w, 8, 8 * (uint64_t)n->rows);
    out->first = section(&w, 8, 4 * ((uint64_t)n->rows + 1));
    out->expert = section(&w, 8, 4 * (uint64_t)n->n_entries);
    out->position = section(&w, 8, 4 * (uint64_t)n->n_entries);
    out->gate = section(&w, 8, 4 * (uint64_t)n->n_entries);
    if (n->n_old) out->old = section(&w, 8, 4 * (uint64_t)n->n_old);
    out->data = section(&w, 64, (uint64_t)(n->rows - n->n_old) * sl_wire_row_bytes(f, d_model));
    return w.pos;
}

size_t sl_wire_dispatch_bytes(const sl_wire_counts *n, uint32_t d_model, sl_wire_format f) {
    sl_wire_dispatch unused;
    return dispatch_walk(NULL, n, d_model, f, &unused);
}

void sl_wire_dispatch_layout(void *buf, const sl_wire_counts *n, uint32_t d_model, sl_wire_format f,
                             sl_wire_dispatch *out) {
    SL_ASSERT(is_aligned(buf, 64) && n->n_old <= n->rows);
    dispatch_walk(buf, n, d_model, f, out);
}

static sl_status check_entries(const sl_wire_dispatch *d, const sl_model_spec *m, sl_err *err) {
    if (d->first[0] != 0)
        return sl_fail(err, SL_ERR_PROTOCOL, "dispatch: first[0] is %u, expected 0", d->first[0]);
    if (d->first[d->rows] != d->n_entries)
        return sl_fail(err, SL_ERR_PROTOCOL, "dispatch: first[%u] is %u, expected %u entries",
                       d->rows, d->first[d->rows], d->n_entries);
    for (uint32_t r = 0; r < d->rows; r++) {
        uint32_t begin = d->first[r], end = d->first[r + 1];
        if (end <= begin || end > d->n_entries)
            return sl_fail(err, SL_ERR_PROTOCOL, "dispatch: row %u has entries [%u,%u) of %u", r,
                           begin, end, d->n_entries);
        for (uint32_t i = begin; i < end; i++) {
            if (d->expert[i] >= m->n_experts)
                return sl_fail(err, SL_ERR_PROTOCOL, "dispatch: row %u: expert %u of %u", r,
                               d->expert[i], m->n_experts);
            if (d->position[i] >= m->top_k)
                return sl_fail(err, SL_ERR_PROTOCOL, "dispatch: row %u: position %u of %u", r,
                               d->position[i], m->top_k);
            if (i > begin && d->position[i] <= d->position[i - 1])
                return sl_fail(err, SL_ERR_PROTOCOL, "dispatch: row %u: position %u after %u", r,
                               d->position[i], d->position[i - 1]);
            if (!isfinite(d->gate[i]))
                return sl_fail(err, SL_ERR_PROTOCOL, "dispatch: row %u: gate %u is not finite", r,
                               i - begin);
        }
    }
    return SL_OK;
}

/* The counts that lead a dispatch. */
static sl_status read_counts(const sl_wire_header *h, sl_span payload, const sl_model_spec *m,
                             sl_wire_counts *n, sl_err *err) {
    n->rows = h->rows;
    n->n_entries = read_u32(payload.data + 4);
    if (n->n_entries > (uint64_t)h->rows * m->top_k)
        return sl_fail(err, SL_ERR_PROTOCOL, "dispatch: %u entries for %u rows of top %u",
                       n->n_entries, h->rows, m->top_k);
    if (!(h->flags & SL_WIRE_OLD)) return SL_OK;
    n->n_old = payload.len < 16 ? 0 : read_u32(payload.data + 8);
    if (n->n_old == 0 || n->n_old > h->rows || read_u32(payload.data + 12) != 0)
        return sl_fail(err, SL_ERR_PROTOCOL, "dispatch: %u of %u rows came before", n->n_old,
                       h->rows);
    return SL_OK;
}

sl_status sl_wire_dispatch_decode(const sl_wire_header *h, sl_span payload, const sl_model_spec *m,
                                  sl_wire_format f, sl_wire_dispatch *out, sl_err *err) {
    return sl_wire_dispatch_decode_columns(h, payload, m, m->d_model, f, out, err);
}

sl_status sl_wire_dispatch_decode_columns(const sl_wire_header *h, sl_span payload,
                                          const sl_model_spec *m, uint32_t width, sl_wire_format f,
                                          sl_wire_dispatch *out, sl_err *err) {
    if (payload.len == 0) {
        sl_status bare = check_bare("dispatch", h, err);
        if (bare == SL_OK) *out = (sl_wire_dispatch){0};
        return bare;
    }
    sl_wire_counts n = {0};
    sl_status st = check_batch("dispatch", h, payload, f, &n.n_set, err);
    if (st == SL_OK) st = read_counts(h, payload, m, &n, err);
    if (st != SL_OK) return st;
    /* dispatch_walk would write the padding: measure first, then walk again without writing. */
    size_t bytes = sl_wire_dispatch_bytes(&n, width, f);
    if (payload.len != bytes)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "dispatch: payload of %zu bytes, %zu expected for %u rows (%u old), %u "
                       "entries, set %u",
                       payload.len, bytes, h->rows, n.n_old, n.n_entries, n.n_set);
    uint64_t pos = n.n_old ? 16 : 8, entry_bytes = 4 * (uint64_t)n.n_entries;
    sl_wire_dispatch d = {
        .rows = n.rows, .n_set = n.n_set, .n_entries = n.n_entries, .n_old = n.n_old};
    d.set = (uint32_t *)view(payload.data, &pos, 8, 4 * (uint64_t)n.n_set);
    d.tag = (uint64_t *)view(payload.data, &pos, 8, 8 * (uint64_t)n.rows);
    d.first = (uint32_t *)view(payload.data, &pos, 8, 4 * ((uint64_t)n.rows + 1));
    d.expert = (uint32_t *)view(payload.data, &pos, 8, entry_bytes);
    d.position = (uint32_t *)view(payload.data, &pos, 8, entry_bytes);
    d.gate = (float *)view(payload.data, &pos, 8, entry_bytes);
    if (n.n_old) d.old = (uint32_t *)view(payload.data, &pos, 8, 4 * (uint64_t)n.n_old);
    d.data = (uint8_t *)view(payload.data, &pos, 64, 0);
    st = check_set("dispatch", d.set, n.n_set, err);
    if (st == SL_OK) st = check_entries(&d, m, err);
    if (st == SL_OK) st = check_rows("dispatch", f, d.data, d.rows - d.n_old, width, err);
    if (st == SL_OK) *out = d;
    return st;
}

/* ---- return ---- */

static size_t return_walk(void *buf, uint32_t rows, uint32_t n_set, uint32_t d_model,
                          sl_wire_format f, sl_wire_return *out) {
    walk w = {.base = buf};
    out->rows = rows;
    out->n_set = n_set;
    uint32_t *counts = section(&w, 8, 8);
    if (counts) counts[0] = n_set, counts[1] = 0;
    out->set = section(&w, 8, 4 * (uint64_t)n_set);
    out->tag = section(&w, 8, 8 * (uint64_t)rows);
    out->mask = section(&w, 8, 8 * (uint64_t)rows);
    out->data = section(&w, 64, (uint64_t)rows * sl_wire_row_bytes(f, d_model));
    return w.pos;
}

size_t sl_wire_return_bytes(uint32_t rows, uint32_t n_set, uint32_t d_model, sl_wire_format f) {
    sl_wire_return unused;
    return return_walk(NULL, rows, n_set, d_model, f, &unused);
}

void sl_wire_return_layout(void *buf, uint32_t rows, uint32_t n_set, uint32_t d_model,
                           sl_wire_format f, sl_wire_return *out) {
    SL_ASSERT(is_aligned(buf, 64));
    return_walk(buf, rows, n_set, d_model, f, out);
}

void sl_wire_return_groups(void *buf, uint32_t groups) {
    ((uint32_t *)buf)[1] = groups;
}

void sl_wire_return_times(uint8_t *end, uint32_t task_us, uint32_t held_us) {
    sl_wr w = sl_wr_of(end, SL_WIRE_TIMES_BYTES);
    sl_wr_u32(&w, task_us);
    sl_wr_u32(&w, held_us);
}

sl_status sl_wire_return_decode(const sl_wire_header *h, sl_span payload, const sl_model_spec *m,
                                sl_wire_format f, sl_wire_return *out, sl_err *err) {
    return sl_wire_return_decode_columns(h, payload, m, m->d_model, f, out, err);
}

sl_status sl_wire_return_decode_columns(const sl_wire_header *h, sl_span payload,
                                        const sl_model_spec *m, uint32_t width, sl_wire_format f,
                                        sl_wire_return *out, sl_err *err) {
    sl_wire_return d = {0};
    if (payload.len == 0) {
        sl_status bare = check_bare("return", h, err);
        if (bare == SL_OK) *out = d;
        return bare;
    }
    uint32_t n_set = 0;
    sl_status st = check_batch("return", h, payload, f, &n_set, err);
    if (st != SL_OK) return st;
    d.groups = read_u32(payload.data + 4);
    if (d.groups > SL_PLAN_MAX_CHUNKS || (d.groups && !(h->flags & SL_WIRE_SET)))
        return sl_fail(err, SL_ERR_PROTOCOL, "return: %u groups of experts, flags %x", d.groups,
                       h->flags);
    const bool timed = (h->flags & SL_WIRE_TIMED) != 0;
    size_t bytes =
        sl_wire_return_bytes(h->rows, n_set, width, f) + (timed ? SL_WIRE_TIMES_BYTES : 0);
    if (payload.len != bytes)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "return: payload of %zu bytes, %zu expected for %u rows, set %u",
                       payload.len, bytes, h->rows, n_set);
    uint64_t pos = 8;
    d.rows = h->rows;
    d.n_set = n_set;
    d.set = (uint32_t *)view(payload.data, &pos, 8, 4 * (uint64_t)n_set);
    d.tag = (uint64_t *)view(payload.data, &pos, 8, 8 * (uint64_t)h->rows);
    d.mask = (uint64_t *)view(payload.data, &pos, 8, 8 * (uint64_t)h->rows);
    d.data = (uint8_t *)view(payload.data, &pos, 64, 0);
    if (timed) d.task_us = read_u32(payload.data + bytes - SL_WIRE_TIMES_BYTES);
    if (timed) d.held_us = read_u32(payload.data + bytes - SL_WIRE_TIMES_BYTES + 4);
    st = check_set("return", d.set, n_set, err);
    uint64_t all = m->top_k >= 64 ? UINT64_MAX : ((uint64_t)1 << m->top_k) - 1;
    for (uint32_t r = 0; st == SL_OK && r < d.rows; r++)
        if (d.mask[r] == 0 || d.mask[r] & ~all)
            st = sl_fail(err, SL_ERR_PROTOCOL, "return: row %u: mask 0x%llx of %u positions", r,
                         (unsigned long long)d.mask[r], m->top_k);
    if (st == SL_OK) st = check_rows("return", f, d.data, d.rows, width, err);
    if (st == SL_OK) *out = d;
    return st;
}

/* ---- control ---- */

size_t sl_wire_set_bytes(uint32_t n_set) {
    return 8 + 4 * (size_t)n_set;
}

void sl_wire_set_encode(const uint32_t *set, uint32_t n_set, void *buf) {
    sl_wr w = sl_wr_of(buf, sl_wire_set_bytes(n_set));
    sl_wr_u32(&w, n_set);
    sl_wr_u32(&w, 0);
    sl_wr_bytes(&w, set, 4 * (size_t)n_set);
}

static sl_status check_records(const char *what, sl_span payload, uint64_t expected, sl_err *err) {
    if (!is_aligned(payload.data, 8))
        return sl_fail(err, SL_ERR_ARG, "%s: payload at %p is not 8-byte aligned", what,
                       (const void *)payload.data);
    if (payload.len != expected)
        return sl_fail(err, SL_ERR_PROTOCOL, "%s: payload of %zu bytes, %llu expected", what,
                       payload.len, (unsigned long long)expected);
    return SL_OK;
}

sl_status sl_wire_set_decode(sl_span payload, const uint32_t **set, uint32_t *n_set, sl_err *err) {
    sl_cur c = sl_cur_of(payload);
    uint32_t n = sl_cur_u32(&c), reserved = sl_cur_u32(&c);
    if (!c.ok)
        return sl_fail(err, SL_ERR_PROTOCOL, "set: payload of %zu bytes, at least 8 expected",
                       payload.len);
    if (n > SL_MAX_WORKERS)
        return sl_fail(err, SL_ERR_PROTOCOL, "set: %u workers, limit %u", n, SL_MAX_WORKERS);
    if (reserved) return sl_fail(err, SL_ERR_PROTOCOL, "set: reserved bytes are not zero");
    sl_status st = check_records("set", payload, sl_wire_set_bytes(n), err);
    const uint32_t *ids = (const uint32_t *)(payload.data + 8);
    if (st == SL_OK) st = check_set("set", ids, n, err);
    if (st != SL_OK) return st;
    *set = ids;
    *n_set = n;
    return SL_OK;
}

void sl_wire_worker_encode(uint32_t worker, void *buf) {
    sl_wr w = sl_wr_of(buf, SL_WIRE_WORKER_BYTES);
    sl_wr_u32(&w, worker);
}

sl_status sl_wire_worker_decode(sl_span payload, uint32_t *out, sl_err *err) {
    sl_cur c = sl_cur_of(payload);
    uint32_t worker = sl_cur_u32(&c);
    if (!c.ok || payload.len != SL_WIRE_WORKER_BYTES)
        return sl_fail(err, SL_ERR_PROTOCOL, "worker id: payload of %zu bytes, %d expected",
                       payload.len, SL_WIRE_WORKER_BYTES);
    if (worker == SL_NO_WORKER)
        return sl_fail(err, SL_ERR_PROTOCOL, "worker id: 0x%x is no worker", worker);
    *out = worker;
    return SL_OK;
}

size_t sl_wire_submit_bytes(const sl_wire_submit *s) {
    return SL_WIRE_SUBMIT_HEAD + 4 * ((size_t)s->n_tokens + s->n_pages + s->n_stop) +
           sizeof(sl_logit_bias) * (size_t)s->sampling.n_bias +
           4 * ((size_t)s->sampling.n_allowed + s->sampling.n_bad + s->report.n_scored) +
           s->n_shape;
}

/* The head of SUBMIT: type, byte and field; those of sampling are rows of sampling.def. */
#define SUBMIT_HEAD(X)                                                                             \
    X(u64, 0, request)                                                                             \
    X(u32, 16, max_tokens)                                                                         \
    X(u32, 20, min_tokens)                                                                         \
    X(u32, 40, flags)                                                                              \
    X(u32, 44, n_tokens)                                                                           \
    X(u32, 48, n_pages)                                                                            \
    X(u32, 52, n_stop)                                                                             \
    X(u32, 56, n_prompt)                                                                           \
    X(u32, 76, report.n_top)                                                                       \
    X(u32, 80, sampling.n_bias)                                                                    \
    X(u32, 84, start)                                                                              \
    X(u32, 88, n_shape)                                                                            \
    X(u64, 92, root.word[0])                                                                       \
    X(u64, 100, root.word[1])                                                                      \
    X(u32, 120, sampling.n_allowed)                                                                \
    X(u32, 124, sampling.n_bad)                                                                    \
    X(u32, 128, report.n_scored)

struct submit_head { /* every byte of it has a field */
#define BYTES(type, byte, field) uint8_t at_##byte[sizeof(sl_field_##type)];
    SUBMIT_HEAD(BYTES)
#define SL_SAMPLING(type, name, byte, ...) BYTES(type, byte, name)
#define SL_DRAW(type, name, byte, what)    BYTES(type, byte, name)
#include "spec/sampling.def"
};
_Static_assert(sizeof(struct submit_head) == SL_WIRE_SUBMIT_HEAD, "SUBMIT's head");

void sl_wire_submit_encode(const sl_wire_submit *s, void *buf) {
    uint8_t *head = buf;
    sl_wr w = sl_wr_of(head + SL_WIRE_SUBMIT_HEAD, sl_wire_submit_bytes(s) - SL_WIRE_SUBMIT_HEAD);
#define PUT(type, byte, field)                                                                     \
    sl_wr_##type(&(sl_wr){head + (byte), sizeof(sl_field_##type), 0, true}, s->field);
    SUBMIT_HEAD(PUT)
#define SL_SAMPLING(type, name, byte, ...) PUT(type, byte, sampling.name)
#define SL_DRAW(type, name, byte, what)    PUT(type, byte, sampling.name)
#include "spec/sampling.def"
    sl_wr_bytes(&w, s->tokens, 4 * (size_t)s->n_tokens);
    sl_wr_bytes(&w, s->pages, 4 * (size_t)s->n_pages);
    sl_wr_bytes(&w, s->stop, 4 * (size_t)s->n_stop);
    sl_wr_bytes(&w, s->sampling.bias, sizeof *s->sampling.bias * s->sampling.n_bias);
    sl_wr_bytes(&w, s->sampling.allowed, 4 * (size_t)s->sampling.n_allowed);
    sl_wr_bytes(&w, s->sampling.bad, 4 * (size_t)s->sampling.n_bad);
    sl_wr_bytes(&w, s->report.scored, 4 * (size_t)s->report.n_scored);
    if (s->n_shape) sl_wr_bytes(&w, s->shape, s->n_shape);
    SL_ASSERT(w.ok && w.len == w.cap);
}

static sl_status check_submit(const sl_wire_submit *s, sl_err *err) {
    unsigned long long id = s->request;
    if (s->max_tokens == 0)
        return sl_fail(err, SL_ERR_PROTOCOL, "submit %llu: max_tokens is 0", id);
    if (s->n_prompt == 0 || s->n_prompt > s->n_tokens)
        return sl_fail(err, SL_ERR_PROTOCOL, "submit %llu: prompt of %u in %u tokens", id,
                       s->n_prompt, s->n_tokens);
    if (s->start >= s->n_tokens || s->start > (uint64_t)s->n_pages * SL_KV_PAGE_TOKENS)
        return sl_fail(err, SL_ERR_PROTOCOL, "submit %llu: start at %u of %u tokens, %u pages", id,
                       s->start, s->n_tokens, s->n_pages);
    if (s->min_tokens > (uint64_t)(s->n_tokens - s->n_prompt) + s->max_tokens)
        return sl_fail(err, SL_ERR_PROTOCOL, "submit %llu: min_tokens %u of %u at most", id,
                       s->min_tokens, s->n_tokens - s->n_prompt + s->max_tokens);
    if (s->flags & ~SL_SUBMIT_FLAGS)
        return sl_fail(err, SL_ERR_PROTOCOL, "submit %llu: unknown flags 0x%x", id, s->flags);
    if (sl_reported(&s->report) > 1 && !(s->flags & SL_SUBMIT_LOGPROBS))
        return sl_fail(err, SL_ERR_PROTOCOL, "submit %llu: %u log-probabilities with flags 0x%x",
                       id, sl_reported(&s->report), s->flags);
    if (s->n_stop > SL_MAX_STOP_IDS)
        return sl_fail(err, SL_ERR_PROTOCOL, "submit %llu: %u stop ids, limit %u", id, s->n_stop,
                       SL_MAX_STOP_IDS);
    if (s->n_shape > SL_MAX_SHAPE)
        return sl_fail(err, SL_ERR_PROTOCOL, "submit %llu: shape of %u bytes, limit %u", id,
                       s->n_shape, SL_MAX_SHAPE);
    if (s->n_shape && (s->min_tokens || (s->flags & SL_SUBMIT_IGNORE_EOS)))
        return sl_fail(err, SL_ERR_PROTOCOL, "submit %llu: a shape whose end is not its own", id);
    return SL_OK;
}

/* What the payload's arrays hold. */
static sl_status check_submitted(const sl_wire_submit *s, uint32_t vocab, sl_err *err) {
    unsigned long long id = s->request;
    sl_err why;
    for (uint32_t i = 0; i < s->n_tokens; i++)
        if (s->tokens[i] >= vocab)
            return sl_fail(err, SL_ERR_PROTOCOL, "submit %llu: token %u, the vocabulary has %u", id,
                           s->tokens[i], vocab);
    if (sl_sampling_check(&s->sampling, vocab, &why) != SL_OK ||
        sl_report_check(&s->report, vocab, &why) != SL_OK)
        return sl_fail(err, SL_ERR_PROTOCOL, "submit %llu: %s", id, why.msg);
    return SL_OK;
}

sl_status sl_wire_submit_decode(sl_span payload, uint32_t vocab, sl_wire_submit *out, sl_err *err) {
    sl_wire_submit s = {0};
    const uint8_t *head = payload.data;
    if (payload.len < SL_WIRE_SUBMIT_HEAD)
        return sl_fail(err, SL_ERR_PROTOCOL, "submit: payload of %zu bytes, at least %d expected",
                       payload.len, SL_WIRE_SUBMIT_HEAD);
#define GET(type, byte, field)                                                                     \
    s.field = sl_cur_##type(&(sl_cur){head + (byte), sizeof(sl_field_##type), 0, true});
    SUBMIT_HEAD(GET)
#define SL_SAMPLING(type, name, byte, ...) GET(type, byte, sampling.name)
#define SL_DRAW(type, name, byte, what)    GET(type, byte, sampling.name)
#include "spec/sampling.def"
    sl_status st = check_submit(&s, err);
    if (st == SL_OK) st = check_records("submit", payload, sl_wire_submit_bytes(&s), err);
    if (st != SL_OK) return st;
    s.tokens = (const uint32_t *)(payload.data + SL_WIRE_SUBMIT_HEAD);
    s.pages = s.tokens + s.n_tokens;
    s.stop = s.pages + s.n_pages;
    s.sampling.bias = (const sl_logit_bias *)(const void *)(s.stop + s.n_stop);
    s.sampling.allowed = (const uint32_t *)(s.sampling.bias + s.sampling.n_bias);
    s.sampling.bad = s.sampling.allowed + s.sampling.n_allowed;
    s.report.scored = s.sampling.bad + s.sampling.n_bad;
    s.shape = (const uint8_t *)(s.report.scored + s.report.n_scored);
    st = check_submitted(&s, vocab, err);
    if (st == SL_OK) *out = s;
    return st;
}

size_t sl_wire_tokens_bytes(uint32_t n, size_t n_pairs) {
    return (size_t)n * sizeof(sl_wire_token) + n_pairs * sizeof(sl_logprob);
}

void sl_wire_tokens_encode(const sl_wire_token *t, uint32_t n, const sl_logprob *pairs,
                           size_t n_pairs, void *buf) {
    if (n) memcpy(buf, t, n * sizeof *t);
    if (n_pairs) memcpy((uint8_t *)buf + n * sizeof *t, pairs, n_pairs * sizeof *pairs);
}

static sl_status check_pairs(const sl_wire_token *t, uint32_t i, const sl_logprob *pairs,
                             sl_err *err) {
    if (t->n_logprobs && pairs[0].id != t->token)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "tokens: record %u: token %u, but the log-probability of %u", i, t->token,
                       pairs[0].id);
    for (uint32_t j = 0; j < t->n_logprobs; j++)
        if (!isfinite(pairs[j].logprob) || pairs[j].logprob > 0)
            return sl_fail(err, SL_ERR_PROTOCOL, "tokens: record %u: log-probability %g", i,
                           pairs[j].logprob);
    return SL_OK;
}

sl_status sl_wire_tokens_decode(const sl_wire_header *h, sl_span payload, const sl_wire_token **out,
                                const sl_logprob **pairs, sl_err *err) {
    size_t heads = sl_wire_tokens_bytes(h->rows, 0), n_pairs = 0;
    if (payload.len < heads) return check_records("tokens", payload, heads, err);
    sl_status st = check_records("tokens", (sl_span){payload.data, heads}, heads, err);
    if (st != SL_OK) return st;
    const sl_wire_token *t = (const sl_wire_token *)payload.data;
    for (uint32_t i = 0; i < h->rows; i++) {
        if (t[i].finish >= SL_FINISH_COUNT)
            return sl_fail(err, SL_ERR_PROTOCOL, "tokens: record %u: finish %u", i, t[i].finish);
        if (t[i].n_logprobs > SL_MAX_REPORTED)
            return sl_fail(err, SL_ERR_PROTOCOL,
                           "tokens: record %u: %u log-probabilities, limit %u", i, t[i].n_logprobs,
                           SL_MAX_REPORTED);
        if (t[i].behind > SL_MIN(t[i].position, SL_MAX_AHEAD))
            return sl_fail(err, SL_ERR_PROTOCOL,
                           "tokens: record %u: %u rows behind, at position %u", i, t[i].behind,
                           t[i].position);
        n_pairs += t[i].n_logprobs;
    }
    st = check_records("tokens", payload, sl_wire_tokens_bytes(h->rows, n_pairs), err);
    const sl_logprob *p = h->rows ? (const sl_logprob *)(const void *)(t + h->rows) : NULL, *at = p;
    for (uint32_t i = 0; st == SL_OK && i < h->rows; i++) {
        st = check_pairs(&t[i], i, at, err);
        at += t[i].n_logprobs;
    }
    if (st != SL_OK) return st;
    *out = t;
    *pairs = p;
    return SL_OK;
}

void sl_wire_pairs_encode(const sl_wire_pair *p, uint32_t n, void *buf) {
    if (n) memcpy(buf, p, (size_t)n * sizeof *p);
}

sl_status sl_wire_pairs_decode(const sl_wire_header *h, sl_span payload, const sl_wire_pair **out,
                               sl_err *err) {
    sl_status st = check_records("pairs", payload, (uint64_t)h->rows * sizeof(sl_wire_pair), err);
    if (st == SL_OK) *out = (const sl_wire_pair *)payload.data;
    return st;
}

/* ---- KV pages ---- */

void sl_wire_fetches_encode(const sl_wire_fetch *f, uint32_t n, void *buf) {
    if (n) memcpy(buf, f, n * sizeof *f);
}

sl_status sl_wire_fetches_decode(const sl_wire_header *h, sl_span payload,
                                 const sl_wire_fetch **out, sl_err *err) {
    if (h->rows > SL_MAX_FETCHES)
        return sl_fail(err, SL_ERR_PROTOCOL, "%u fetches, limit %u", h->rows, SL_MAX_FETCHES);
    sl_status st =
        check_records("fetches", payload, (uint64_t)h->rows * sizeof(sl_wire_fetch), err);
    const sl_wire_fetch *f = (const sl_wire_fetch *)(const void *)payload.data;
    for (uint32_t i = 0; st == SL_OK && i < h->rows; i++)
        if (sl_page_key_none(f[i].key) || f[i].reserved)
            st = sl_fail(err, SL_ERR_PROTOCOL, "fetch %llu without a key, or with %u reserved",
                         (unsigned long long)f[i].transfer, f[i].reserved);
    if (st == SL_OK) *out = f;
    return st;
}

void sl_wire_blocks_encode(const sl_wire_blocks *b, void *buf) {
    memcpy(buf, b, sizeof *b);
}

/* Sizes multiply in 64 bits: a block of any model that is read has far below 2^40 bytes. */
static sl_status check_blocks(const sl_wire_blocks *b, const sl_model_spec *m, bool answers,
                              sl_err *err) {
    unsigned long long id = b->transfer;
    if (b->type < SL_KV_TYPES && b->type != m->kv_type)
        return sl_fail(err, SL_ERR_PROTOCOL, "page %llu: of %s, pages here are of %s", id,
                       sl_kv_type_names[b->type], sl_kv_type_names[m->kv_type]);
    if (b->type >= SL_KV_TYPES || sl_page_key_none(b->key) || b->reserved)
        return sl_fail(err, SL_ERR_PROTOCOL, "page %llu: type %u, %u reserved, or no key", id,
                       b->type, b->reserved);
    if (b->n == 0 || b->n > m->n_layers || b->first > m->n_layers - b->n)
        return sl_fail(err, SL_ERR_PROTOCOL, "page %llu: %u blocks from %u on, of %u", id, b->n,
                       b->first, m->n_layers);
    uint64_t whole = (uint64_t)b->n * sl_kv_block_bytes(m);
    bool none = answers && b->bytes == 0;
    if (!none && b->bytes != whole)
        return sl_fail(err, SL_ERR_PROTOCOL, "page %llu: %llu bytes for %u blocks of %llu", id,
                       (unsigned long long)b->bytes, b->n, (unsigned long long)(whole / b->n));
    if (b->sum && (none || !answers))
        return sl_fail(err, SL_ERR_PROTOCOL, "page %llu: a sum of nothing", id);
    return SL_OK;
}

sl_status sl_wire_blocks_decode(const sl_wire_header *h, sl_span payload, const sl_model_spec *m,
                                sl_wire_blocks *out, const uint8_t **data, sl_err *err) {
    bool answers = h->kind == SL_MSG_KV_PAGES;
    sl_wire_blocks b;
    if (payload.len < SL_WIRE_BLOCKS_BYTES)
        return check_records("blocks", payload, SL_WIRE_BLOCKS_BYTES, err);
    memcpy(&b, payload.data, sizeof b);
    sl_status st = check_blocks(&b, m, answers, err);
    if (st == SL_OK)
        st = check_records("blocks", payload, SL_WIRE_BLOCKS_BYTES + (answers ? b.bytes : 0), err);
    if (st != SL_OK) return st;
    *out = b;
    *data = answers && b.bytes ? payload.data + SL_WIRE_BLOCKS_BYTES : NULL;
    return SL_OK;
}

void sl_wire_kept_encode(const sl_wire_kept *k, uint32_t n, void *buf) {
    if (n) memcpy(buf, k, n * sizeof *k);
}

sl_status sl_wire_kept_decode(const sl_wire_header *h, sl_span payload, const sl_wire_kept **out,
                              sl_err *err) {
    if (h->rows == 0) return sl_fail(err, SL_ERR_PROTOCOL, "no pages were kept, as is said");
    sl_status st = check_records("kept pages", payload, (uint64_t)h->rows * sizeof **out, err);
    const sl_wire_kept *k = (const sl_wire_kept *)(const void *)payload.data;
    for (uint32_t i = 0; st == SL_OK && i < h->rows; i++)
        if (sl_page_key_none(k[i].key) || k[i].reserved)
            st = sl_fail(err, SL_ERR_PROTOCOL, "kept page %u without a key, or with %u reserved",
                         k[i].page, k[i].reserved);
    if (st == SL_OK) *out = k;
    return st;
}

/* At most 256 MiB of payload, so only a vocabulary that the caller made up could overflow. */
size_t sl_wire_logits_bytes(uint32_t rows, uint32_t vocab) {
    return SL_WIRE_LOGITS_AT + (size_t)rows * vocab * sizeof(float);
}

float *sl_wire_logits_layout(void *buf, uint64_t request, uint64_t position) {
    sl_wr w = sl_wr_of(buf, SL_WIRE_LOGITS_AT);
    sl_wr_u64(&w, request);
    sl_wr_u64(&w, position);
    memset(w.data + w.len, 0, w.cap - w.len);
    return (float *)((uint8_t *)buf + SL_WIRE_LOGITS_AT);
}

sl_status sl_wire_logits_decode(const sl_wire_header *h, sl_span payload, uint32_t vocab,
                                uint64_t *request, uint64_t *position, const float **out,
                                sl_err *err) {
    uint64_t expected = SL_WIRE_LOGITS_AT + (uint64_t)h->rows * vocab * sizeof(float);
    sl_status st = check_records("logits", payload, expected, err);
    if (st != SL_OK) return st;
    sl_cur c = sl_cur_of(payload);
    *request = sl_cur_u64(&c);
    *position = sl_cur_u64(&c);
    *out = (const float *)(payload.data + SL_WIRE_LOGITS_AT);
    return SL_OK;
}
