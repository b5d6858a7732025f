/* What a journal holds becomes kept answers again, before anybody is let in: those that have ended
 * are there for who asks, the others are submitted with prompt and tokens so far and go on, whether
 * somebody comes for them or not. */
#include "serve/kept_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>

#define BUCKETS 4096u

/* While the journal is read: requests by number. */
typedef struct reading {
    sl_server *server;
    sl_kept *bucket[BUCKETS];
    uint32_t n_open;
} reading;

sl_status sl_server_about(const sl_model_spec *spec, const sl_tokenizer *tok,
                          const sl_generation_spec *gen, sl_journal_about *out, sl_err *err) {
    crypto_generichash_state h;
    if (sodium_init() < 0) return sl_fail(err, SL_ERR_INTERNAL, "no source of random numbers");
    memcpy(out->model, spec->hash, sizeof out->model);
    crypto_generichash_init(&h, NULL, 0, sizeof out->service);
    for (uint32_t id = 0; id < sl_tokenizer_vocab_size(tok); id++) {
        sl_span piece = sl_tokenizer_piece(tok, id);
        const uint32_t about[] = {(uint32_t)piece.len, sl_tokenizer_is_special(tok, id)};
        crypto_generichash_update(&h, (const uint8_t *)about, sizeof about);
        if (piece.len) crypto_generichash_update(&h, piece.data, piece.len);
    }
    crypto_generichash_update(&h, (const uint8_t *)gen, sizeof *gen);
    crypto_generichash_update(&h, (const uint8_t *)spec->eos, spec->n_eos * sizeof *spec->eos);
    crypto_generichash_final(&h, out->service, sizeof out->service);
    return SL_OK;
}

/* ---- records ---- */

static sl_kept **place_of(reading *r, uint64_t number) {
    sl_kept **at = &r->bucket[number % BUCKETS];
    while (*at && (*at)->number != number) at = &(*at)->next;
    return at;
}

static bool copy_prompts(sl_kept *k, const sl_journal_request *from) {
    sl_span ids = from->ids;
    for (size_t i = 0; i < k->n_prompts; i++) {
        size_t n = sl_journal_u32_at(from->sizes, i);
        if (!sl_ids_copy(&k->prompt[i], NULL, n)) return false;
        memcpy(k->prompt[i].data, ids.data, 4 * n);
        ids.data += 4 * n;
        k->bytes += 4 * n;
    }
    return true;
}

/* Rooms grow with what comes: only what goes on takes all that it may need. */
static void shape_tracks(sl_kept *k, const sl_journal_request *from) {
    for (size_t i = 0; i < k->n_tracks; i++) {
        sl_kept_track *t = &k->track[i];
        t->most = sl_journal_u32_at(from->most, i);
        t->whole_room = sl_journal_u32_at(from->room, i);
        t->stride = from->stride;
        k->bytes += sizeof *t;
    }
}

static bool grow_room(sl_kept_track *t, size_t room) {
    if (room <= t->room) return true;
    uint32_t *id = sl_grow(t->id, t->room, room, sizeof *id);
    if (id) t->id = id;
    size_t each = t->stride * sizeof *t->logprob;
    sl_logprob *logprob = id && each ? sl_grow(t->logprob, t->room, room, each) : NULL;
    if (logprob) t->logprob = logprob;
    if (!id || (each && !logprob)) return false;
    t->kept->bytes += sl_kept_track_bytes(t, room - t->room);
    t->room = room;
    return true;
}

static sl_status take_request(reading *r, sl_span payload, sl_err *err) {
    sl_journal_request from;
    sl_status st = sl_journal_request_read(payload, &from, err);
    if (st != SL_OK) return st;
    sl_kept **at = place_of(r, from.number);
    if (*at) return sl_fail(err, SL_ERR_FORMAT, "request %" PRIu64 " comes twice", from.number);
    sl_kept *k = sl_kept_new(r->server, from.n_prompts, from.n_choices);
    if (!k) return sl_fail(err, SL_ERR_NOMEM, "request %" PRIu64, from.number);
    k->bytes = sizeof *k + from.body.len;
    k->number = from.number;
    k->dialect = &sl_dialects[from.kind];
    k->caller = from.caller;
    k->has_key = from.has_key;
    k->key = from.key;
    k->resumed = true;
    k->created = from.created_s;
    k->seed = from.seed;
    k->start_ns = sl_now_ns();
    memcpy(k->id, from.id, sizeof k->id);
    sl_jbuf_put(&k->body, (const char *)from.body.data, from.body.len);
    shape_tracks(k, &from);
    if (!copy_prompts(k, &from) || !k->body.ok) {
        sl_kept_release(k);
        return sl_fail(err, SL_ERR_NOMEM, "request %" PRIu64, from.number);
    }
    *at = k;
    r->n_open++;
    r->server->store.last_number = SL_MAX(r->server->store.last_number, k->number);
    return SL_OK;
}

static sl_status take_tokens(reading *r, sl_span payload, sl_err *err) {
    sl_journal_tokens from;
    sl_status st = sl_journal_tokens_read(payload, &from, err);
    if (st != SL_OK) return st;
    sl_kept *k = *place_of(r, from.number);
    sl_kept_track *t = k && from.choice < k->n_tracks ? &k->track[from.choice] : NULL;
    if (!t || t->last != SL_FINISH_NONE || from.at != t->n || from.n > t->whole_room - t->n ||
        from.stride != t->stride)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%u tokens from %u on of request %" PRIu64 ", choice %u, which has %zu",
                       from.n, from.at, from.number, from.choice, t ? t->n : 0);
    if (from.n > t->room - t->n && !grow_room(t, SL_MIN(2 * (t->n + from.n), t->whole_room)))
        return sl_fail(err, SL_ERR_NOMEM, "%u tokens of request %" PRIu64, from.n, from.number);
    if (from.n) memcpy(t->id + t->n, from.ids.data, from.ids.len);
    if (from.logprobs.len)
        memcpy(t->logprob + t->n * t->stride, from.logprobs.data, from.logprobs.len);
    t->n = t->n_settled = t->n + from.n;
    t->n_found = from.n_found;
    t->last = (sl_finish)from.finish;
    k->n_running -= t->last != SL_FINISH_NONE;
    k->ended_s = SL_MAX(k->ended_s, from.ended_s);
    return SL_OK;
}

static sl_status take_drop(reading *r, sl_span payload, sl_err *err) {
    uint64_t number;
    sl_status st = sl_journal_drop_read(payload, &number, err);
    if (st != SL_OK) return st;
    sl_kept **at = place_of(r, number), *k = *at;
    if (!k) return sl_fail(err, SL_ERR_FORMAT, "the end of request %" PRIu64 ", of none", number);
    *at = k->next;
    k->next = NULL;
    r->n_open--;
    sl_kept_release(k);
    return SL_OK;
}

static sl_status take(void *ctx, uint32_t type, sl_span payload, sl_err *err) {
    switch (type) {
    case SL_JOURNAL_OPEN:
        return take_request(ctx, payload, err);
    case SL_JOURNAL_TOKENS:
        return take_tokens(ctx, payload, err);
    case SL_JOURNAL_DROP:
        return take_drop(ctx, payload, err);
    default:
        return sl_fail(err, SL_ERR_UNSUPPORTED, "a record of type %u", type);
    }
}

/* ---- going on ---- */

/* The request as it was read when it came, with what was drawn then. */
static sl_status read_again(const sl_kept *k, sl_call *call, sl_api_error *e) {
    sl_err err = {0};
    sl_server *s = k->server;
    sl_status st = sl_dialect_read(k->dialect, sl_kept_body(k), &s->limits, &call->params, e);
    if (st != SL_OK) return st;
    call->dialect = k->dialect;
    call->caller = k->caller;
    call->prompt = sl_alloc(k->n_prompts, sizeof *call->prompt);
    if (!call->prompt) return sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    call->n_prompts = k->n_prompts;
    for (size_t i = 0; i < k->n_prompts; i++)
        if (!sl_ids_copy(&call->prompt[i], k->prompt[i].data, k->prompt[i].len))
            return sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    st = sl_call_take_shape(call, e);
    if (st == SL_OK) st = sl_call_take_budget(call, e);
    if (st == SL_OK) st = sl_call_take_bad_words(call, e);
    if (st == SL_OK) st = sl_call_take_fill(call, e);
    if (st == SL_OK) st = sl_call_take_bias(call, e);
    if (st != SL_OK) return st;
    st = sl_choices_create(call, &err);
    if (st != SL_OK) return sl_api_error_of(e, st, NULL, err.msg);
    const sl_api_params *p = &call->params;
    if (call->n_choices != k->n_tracks || k->track[0].stride != sl_api_stride(p))
        return sl_api_error_of(e, SL_ERR_FORMAT, NULL, "its body asks for something else");
    call->params.sampling.seed = k->seed;
    snprintf(call->request_id, sizeof call->request_id, "%s", k->id);
    snprintf(call->id, sizeof call->id, "%s", k->id);
    return SL_OK;
}

static sl_status submit_track(sl_kept *k, sl_call *call, size_t i, sl_api_error *e) {
    sl_err err = {0};
    sl_kept_track *t = &k->track[i];
    call->choice[i].max_tokens = t->most;
    sl_request_params r = sl_call_request(&call->choice[i]);
    size_t reports = r.prompt_logprobs ? r.n_prompt - 1 : 0;
    r.again = true;
    r.n_prompt_reported = (uint32_t)SL_MIN(t->n, reports);
    r.drawn = t->id + r.n_prompt_reported;
    r.n_drawn = (uint32_t)(t->n - r.n_prompt_reported);
    sl_status st = sl_kept_submit(k, i, &r, &err);
    return st == SL_OK ? st : sl_api_error_of(e, st, NULL, err.msg);
}

static sl_status make_rooms(sl_kept *k, sl_api_error *e) {
    sl_store *st = &k->server->store;
    uint32_t context = k->server->limits.context;
    bool ok = true;
    for (size_t i = 0; i < k->n_tracks; i++)
        if (k->track[i].most > context) {
            sl_api_error_bad(e, NULL, "it may make %u tokens, the context has %u (--ctx)",
                             k->track[i].most, context);
            return SL_ERR_LIMIT;
        }
    pthread_mutex_lock(&st->lock);
    size_t had = k->bytes;
    for (size_t i = 0; ok && i < k->n_tracks; i++)
        ok = grow_room(&k->track[i], k->track[i].whole_room);
    st->bytes += k->bytes - had; /* it is listed */
    pthread_mutex_unlock(&st->lock);
    return ok ? SL_OK : sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
}

/* Without a client. What cannot go on is said, and no longer kept. */
static bool go_on(sl_kept *k) {
    sl_api_error e = {0};
    sl_call *call = sl_call_create_unheard(k->server);
    sl_status st = call ? read_again(k, call, &e) : sl_api_error_of(&e, SL_ERR_NOMEM, NULL, NULL);
    if (st == SL_OK) st = make_rooms(k, &e);
    for (size_t i = 0; st == SL_OK && i < k->n_tracks; i++)
        if (k->track[i].last == SL_FINISH_NONE) st = submit_track(k, call, i, &e);
    if (call) sl_call_unref(call);
    if (st == SL_OK) return true;
    sl_log(SL_LOG_WARN, "journal", "%s cannot go on: %s", k->id, e.msg);
    sl_kept_refuse(k, st, e.msg);
    return false;
}

/* Monotonic time of its end. */
static uint64_t ended_ns(const sl_kept *k, uint64_t wall_s) {
    uint64_t now_ns = sl_now_ns(), age_ns = (wall_s - SL_MIN(k->ended_s, wall_s)) * 1000000000ull;
    return now_ns > age_ns ? now_ns - age_ns : 1;
}

static int by_number(const void *a, const void *b) {
    const sl_kept *x = *(sl_kept *const *)a, *y = *(sl_kept *const *)b;
    return (x->number > y->number) - (x->number < y->number);
}

/* Into the store, in the order in which they came; those whose time is over are left out. */
static sl_status list_all(reading *r, sl_err *err) {
    sl_server *s = r->server;
    uint64_t wall_s = sl_wall_s();
    sl_kept **all = sl_alloc(r->n_open, sizeof(sl_kept *));
    if (!all) return sl_fail(err, SL_ERR_NOMEM, "%u requests of the journal", r->n_open);
    uint32_t n = 0;
    for (uint32_t i = 0; i < BUCKETS; i++)
        for (sl_kept *k; (k = r->bucket[i]);) {
            r->bucket[i] = k->next;
            k->next = NULL;
            all[n++] = k;
        }
    qsort(all, n, sizeof(sl_kept *), by_number);
    for (uint32_t i = 0; i < n; i++) {
        sl_kept *k = all[i];
        bool over = k->n_running == 0;
        if (over && wall_s > k->ended_s + s->o.responses_ttl_s) {
            sl_kept_log_drop(k);
            sl_kept_release(k);
            continue;
        }
        if (over) k->ended_ns = ended_ns(k, wall_s);
        if (over) sl_kept_trim(k); /* once it is listed it may have had its time */
        pthread_mutex_lock(&s->store.lock);
        sl_kept_list(k);
        pthread_mutex_unlock(&s->store.lock);
    }
    sl_free(all);
    return SL_OK;
}

static void release_all(reading *r) {
    for (uint32_t i = 0; i < BUCKETS; i++)
        for (sl_kept *k; (k = r->bucket[i]);) {
            r->bucket[i] = k->next;
            k->next = NULL;
            sl_kept_release(k);
        }
}

/* One that runs, with a reference; NULL: all that there were are submitted. */
static sl_kept *next_open(sl_server *s, uint64_t after) {
    sl_kept *found = NULL;
    pthread_mutex_lock(&s->store.lock);
    for (sl_kept *k = s->store.first; k && k->number > after; k = k->next)
        if (!k->ended_ns) found = k; /* the newest come first */
    if (found) sl_kept_hold(found);
    pthread_mutex_unlock(&s->store.lock);
    return found;
}

sl_status sl_resume(sl_server *s, sl_err *err) {
    reading r = {.server = s};
    if (!s->o.journal && s->o.salt) {
        memcpy(s->store.salt, s->o.salt, sizeof s->store.salt);
        return SL_OK;
    }
    if (!s->o.journal) {
        randombytes_buf(s->store.salt, sizeof s->store.salt);
        return SL_OK;
    }
    if (s->o.responses == 0)
        return sl_fail(err, SL_ERR_ARG,
                       "journal: --responses N has to say how many answers it may "
                       "hold");
    memcpy(s->store.salt, sl_journal_salt(s->o.journal), sizeof s->store.salt);
    sl_status st = sl_journal_read(s->o.journal, take, &r, err);
    if (st == SL_OK) st = list_all(&r, err);
    if (st != SL_OK) {
        release_all(&r);
        return st;
    }
    size_t n = s->store.n;
    uint64_t done = 0;
    for (sl_kept *k; (k = next_open(s, done));) {
        done = k->number;
        s->store.n_resumed += go_on(k);
        sl_kept_release(k);
    }
    sl_kept_fit(s);
    if (n)
        sl_log(SL_LOG_WARN, "journal", "%zu requests: %zu answers are there, %" PRIu64 " go on", n,
               n - s->store.n_resumed, s->store.n_resumed);
    return SL_OK;
}
