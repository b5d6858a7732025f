/* Payloads of the journal's records: written from what is kept of an answer, read with every bound
 * checked. Numbers are little-endian, and lie in the order of the structs. */
#include "serve/journal_records.h"

#include "engine/coord/engine.h"
#include "serve/dialect.h"

#define REQUEST_FIXED (8u + 1 + 1 + SL_JOURNAL_ID_BYTES + 32 + 32 + 8 + 8 + 5 * 4)
#define TOKENS_FIXED  (8u + 4 + 4 + 4 + 4 + 1 + 8 + 4)
#define LOGPROB_BYTES 8u

static void write_span(sl_wr *w, sl_span s) {
    sl_wr_bytes(w, s.data, s.len);
}

static sl_span take_span(sl_cur *c, size_t n) {
    return (sl_span){sl_cur_take(c, n), n};
}

/* ---- requests ---- */

size_t sl_journal_request_bytes(const sl_journal_request *r) {
    return REQUEST_FIXED + r->body.len + r->most.len + r->room.len + r->sizes.len + r->ids.len;
}

void sl_journal_request_write(const sl_journal_request *r, uint8_t *out) {
    sl_wr w = sl_wr_of(out, sl_journal_request_bytes(r));
    sl_wr_u64(&w, r->number);
    sl_wr_u8(&w, r->kind);
    sl_wr_u8(&w, r->has_key);
    sl_wr_bytes(&w, r->id, sizeof r->id);
    sl_wr_bytes(&w, r->caller.byte, sizeof r->caller.byte);
    sl_wr_bytes(&w, r->key.byte, sizeof r->key.byte);
    sl_wr_u64(&w, r->created_s);
    sl_wr_u64(&w, r->seed);
    sl_wr_u32(&w, r->stride);
    sl_wr_u32(&w, r->n_prompts);
    sl_wr_u32(&w, r->n_choices);
    sl_wr_u32(&w, (uint32_t)r->body.len);
    sl_wr_u32(&w, (uint32_t)(r->ids.len / 4));
    write_span(&w, r->most);
    write_span(&w, r->room);
    write_span(&w, r->sizes);
    write_span(&w, r->ids);
    write_span(&w, r->body);
}

static sl_status check_choices(const sl_journal_request *r, sl_err *err) {
    for (uint32_t i = 0; i < r->n_choices; i++) {
        uint32_t most = sl_journal_u32_at(r->most, i), room = sl_journal_u32_at(r->room, i);
        if (most == 0 || most > room || room > SL_JOURNAL_MAX_TOKENS)
            return sl_fail(err, SL_ERR_FORMAT, "choice %u makes %u tokens and keeps %u", i, most,
                           room);
    }
    return SL_OK;
}

static sl_status check_prompts(const sl_journal_request *r, sl_err *err) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < r->n_prompts; i++) {
        uint32_t n = sl_journal_u32_at(r->sizes, i);
        if (n == 0 || n > SL_JOURNAL_MAX_TOKENS)
            return sl_fail(err, SL_ERR_FORMAT, "prompt %u of %u tokens", i, n);
        all += n;
    }
    if (all * 4 != r->ids.len)
        return sl_fail(err, SL_ERR_FORMAT, "prompts of %zu bytes, their sizes say %llu tokens",
                       r->ids.len, (unsigned long long)all);
    return SL_OK;
}

sl_status sl_journal_request_read(sl_span payload, sl_journal_request *out, sl_err *err) {
    sl_cur c = sl_cur_of(payload);
    sl_journal_request r = {.number = sl_cur_u64(&c)};
    r.kind = sl_cur_u8(&c);
    uint8_t has_key = sl_cur_u8(&c);
    r.has_key = has_key == 1;
    const uint8_t *id = sl_cur_take(&c, sizeof r.id);
    const uint8_t *caller = sl_cur_take(&c, sizeof r.caller.byte);
    const uint8_t *key = sl_cur_take(&c, sizeof r.key.byte);
    r.created_s = sl_cur_u64(&c);
    r.seed = sl_cur_u64(&c);
    r.stride = sl_cur_u32(&c);
    r.n_prompts = sl_cur_u32(&c);
    r.n_choices = sl_cur_u32(&c);
    size_t n_body = sl_cur_u32(&c), n_ids = sl_cur_u32(&c);
    if (!c.ok) return sl_fail(err, SL_ERR_FORMAT, "a request of %zu bytes", payload.len);
    if (r.number == 0 || r.number > SL_JOURNAL_MAX_NUMBER || has_key > 1 ||
        r.kind >= SL_DIALECT_N || r.stride > SL_MAX_REPORTED ||
        memchr(id, 0, sizeof r.id) == NULL || id[0] == 0)
        return sl_fail(err, SL_ERR_FORMAT, "request %llu: kind %u, %u log-probabilities a token",
                       (unsigned long long)r.number, r.kind, r.stride);
    if (r.n_prompts == 0 || r.n_choices == 0 || r.n_choices > SL_JOURNAL_MAX_CHOICES ||
        r.n_choices % r.n_prompts)
        return sl_fail(err, SL_ERR_FORMAT, "request %llu: %u choices of %u prompts",
                       (unsigned long long)r.number, r.n_choices, r.n_prompts);
    memcpy(r.id, id, sizeof r.id);
    memcpy(r.caller.byte, caller, sizeof r.caller.byte);
    memcpy(r.key.byte, key, sizeof r.key.byte);
    r.most = take_span(&c, (size_t)4 * r.n_choices);
    r.room = take_span(&c, (size_t)4 * r.n_choices);
    r.sizes = take_span(&c, (size_t)4 * r.n_prompts);
    r.ids = take_span(&c, 4 * n_ids);
    r.body = take_span(&c, n_body);
    if (!c.ok || sl_cur_left(&c))
        return sl_fail(err, SL_ERR_FORMAT,
                       "request %llu of %zu bytes, which are not those it names",
                       (unsigned long long)r.number, payload.len);
    *out = r;
    sl_status st = check_choices(&r, err);
    if (st == SL_OK) st = check_prompts(&r, err);
    return st == SL_OK ? st : sl_err_prefix(err, "request %llu", (unsigned long long)r.number);
}

/* ---- tokens ---- */

size_t sl_journal_tokens_bytes(const sl_journal_tokens *t) {
    return TOKENS_FIXED + t->ids.len + t->logprobs.len;
}

void sl_journal_tokens_write(const sl_journal_tokens *t, uint8_t *out) {
    sl_wr w = sl_wr_of(out, sl_journal_tokens_bytes(t));
    sl_wr_u64(&w, t->number);
    sl_wr_u32(&w, t->choice);
    sl_wr_u32(&w, t->at);
    sl_wr_u32(&w, t->n);
    sl_wr_u32(&w, t->stride);
    sl_wr_u8(&w, t->finish);
    sl_wr_u64(&w, t->ended_s);
    sl_wr_u32(&w, t->n_found);
    write_span(&w, t->ids);
    write_span(&w, t->logprobs);
}

sl_status sl_journal_tokens_read(sl_span payload, sl_journal_tokens *out, sl_err *err) {
    sl_cur c = sl_cur_of(payload);
    sl_journal_tokens t = {.number = sl_cur_u64(&c)};
    t.choice = sl_cur_u32(&c);
    t.at = sl_cur_u32(&c);
    t.n = sl_cur_u32(&c);
    t.stride = sl_cur_u32(&c);
    t.finish = sl_cur_u8(&c);
    t.ended_s = sl_cur_u64(&c);
    t.n_found = sl_cur_u32(&c);
    bool fine = c.ok && t.choice < SL_JOURNAL_MAX_CHOICES && t.at <= SL_JOURNAL_MAX_TOKENS &&
                t.n <= SL_JOURNAL_MAX_TOKENS && t.n_found <= SL_JOURNAL_MAX_TOKENS &&
                t.stride <= SL_MAX_REPORTED && t.finish <= SL_FINISH_LENGTH;
    t.ids = take_span(&c, fine ? (size_t)4 * t.n : 0);
    t.logprobs = take_span(&c, fine ? (size_t)LOGPROB_BYTES * t.n * t.stride : 0);
    if (!fine || !c.ok || sl_cur_left(&c))
        return sl_fail(err, SL_ERR_FORMAT,
                       "tokens of request %llu, choice %u: %u from %u on, in %zu bytes",
                       (unsigned long long)t.number, t.choice, t.n, t.at, payload.len);
    *out = t;
    return SL_OK;
}

/* ---- ends ---- */

void sl_journal_drop_write(uint64_t number, uint8_t *out) {
    sl_wr w = sl_wr_of(out, SL_JOURNAL_DROP_BYTES);
    sl_wr_u64(&w, number);
}

sl_status sl_journal_drop_read(sl_span payload, uint64_t *number, sl_err *err) {
    sl_cur c = sl_cur_of(payload);
    *number = sl_cur_u64(&c);
    if (!c.ok || sl_cur_left(&c))
        return sl_fail(err, SL_ERR_FORMAT, "the end of a request in %zu bytes", payload.len);
    return SL_OK;
}
