/* Answers that outlive their connections. A request with an Idempotency-Key, and with a journal
 * every request, is a request of the engine's that no connection owns: calls read it, the first one
 * as those who come back with the same key or ask for its id.
 *
 * What is kept of an answer is its request and the engine's tokens. Every reader decodes them anew,
 * from the first on and at its own pace, so a stream may be heard again as a whole answer, and a
 * token takes four bytes rather than the events that told of it. Room for all that may come is
 * reserved when it is opened: nothing that was begun is given up for want of room.
 *
 * With --journal what happens to one is written down before any reader sees it (kept_log.c), and
 * resume.c makes it again from there. */
#include "serve/kept_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>

#define KEY_BYTES   255u
#define PULL_TOKENS 256u /* of a choice: the engine waits while they are copied */

/* ---- one answer ---- */

void sl_kept_release(sl_kept *k) {
    /* release what this holder wrote; the last one acquires it all before freeing */
    if (!k || atomic_fetch_sub_explicit(&k->refs, 1, memory_order_acq_rel) != 1) return;
    sl_server *s = k->server;
    for (size_t i = 0; k->track && i < k->n_tracks; i++) {
        sl_free(k->track[i].id);
        sl_free(k->track[i].logprob);
    }
    for (size_t i = 0; k->prompt && i < k->n_prompts; i++) sl_ids_free(&k->prompt[i]);
    sl_free(k->track);
    sl_free(k->prompt);
    sl_jbuf_free(&k->body);
    pthread_mutex_destroy(&k->lock);
    sl_free(k);
    sl_server_unref(s);
}

void sl_kept_hold(sl_kept *k) {
    atomic_fetch_add_explicit(&k->refs, 1, memory_order_relaxed);
}

static void shape(const sl_call *call, const sl_choice *c, sl_kept_track *t) {
    const sl_api_params *p = &call->params;
    t->most = c->max_tokens;
    t->room = c->max_tokens + (sl_api_scores_prompt(p) ? c->prompt->len : 0);
    t->stride = sl_api_stride(p);
}

sl_kept *sl_kept_new(sl_server *s, size_t n_prompts, size_t n_tracks) {
    sl_kept *k = sl_alloc(1, sizeof *k);
    if (!k) return NULL;
    if (pthread_mutex_init(&k->lock, NULL) != 0) {
        sl_free(k);
        return NULL;
    }
    k->server = s;
    atomic_init(&k->refs, 1);
    sl_server_ref(s);
    k->body = sl_jbuf_init();
    k->n_prompts = n_prompts;
    k->n_tracks = k->n_running = n_tracks;
    k->prompt = sl_alloc(n_prompts, sizeof *k->prompt);
    k->track = sl_alloc(n_tracks, sizeof *k->track);
    for (size_t i = 0; k->track && i < n_tracks; i++) {
        k->track[i].kept = k;
        k->track[i].index = (uint32_t)i;
    }
    if (k->prompt && k->track) return k;
    sl_kept_release(k);
    return NULL;
}

static bool make_room(sl_kept_track *t) {
    t->id = sl_alloc(t->room, sizeof *t->id);
    if (t->stride) t->logprob = sl_alloc(t->room, t->stride * sizeof *t->logprob);
    return t->id && (t->logprob || !t->stride);
}

/* With the store's reference and nothing submitted; takes the call's body. NULL: no memory. */
static sl_kept *create(sl_call *call, size_t bytes) {
    sl_store *st = &call->server->store;
    sl_kept *k = sl_kept_new(call->server, call->n_prompts, call->n_choices);
    if (!k) return NULL;
    bool ok = true;
    for (size_t i = 0; ok && i < call->n_choices; i++) {
        shape(call, &call->choice[i], &k->track[i]);
        ok = make_room(&k->track[i]);
    }
    for (size_t i = 0; ok && i < call->n_prompts; i++)
        ok = sl_ids_copy(&k->prompt[i], call->prompt[i].data, call->prompt[i].len);
    if (!ok) {
        sl_kept_release(k);
        return NULL;
    }
    k->dialect = call->dialect;
    k->created = call->head.created;
    k->seed = call->params.sampling.seed;
    k->start_ns = call->start_ns;
    k->bytes = bytes;
    snprintf(k->id, sizeof k->id, "%s", call->id);
    k->caller = call->caller;
    k->has_key = call->key != NULL;
    if (call->key) k->key = sl_digest_of(st, call->key);
    k->body = call->body;
    call->body = sl_jbuf_init();
    return k;
}

/* The engine drops what still runs. */
static void cancel(sl_kept *k) {
    pthread_mutex_lock(&k->lock);
    k->cancelled = true;
    pthread_mutex_unlock(&k->lock);
    for (size_t i = 0; i < k->n_tracks; i++) sl_kept_stop(k, i);
}

void sl_kept_stop(sl_kept *k, size_t choice) {
    sl_kept_track *t = &k->track[choice];
    pthread_mutex_lock(&k->lock);
    bool running = t->submitted && t->last == SL_FINISH_NONE;
    uint64_t id = t->engine_id;
    pthread_mutex_unlock(&k->lock);
    if (running) sl_engine_cancel(k->server->o.engine, id);
}

/* ---- the store ---- */

static void unlist(sl_store *st, sl_kept *k) {
    sl_kept **at = &st->first;
    while (*at != k) at = &(*at)->next;
    *at = k->next;
    k->next = NULL;
    k->listed = false;
    st->n--;
    st->bytes -= k->bytes;
}

/* Whether one of so many bytes fits beside those that run. */
static bool may_fit(const sl_store *st, const sl_server_opts *o, size_t bytes) {
    size_t n = 1;
    for (const sl_kept *k = st->first; k; k = k->next) {
        if (k->ended_ns) continue;
        bytes += k->bytes;
        n++;
    }
    return n <= o->responses && bytes <= o->responses_bytes;
}

/* Callers are told apart by some bits of a keyed hash: now and then two are taken for one. */
static size_t bucket_of(const sl_kept *k) {
    return k->caller.byte[0] | (size_t)(k->caller.byte[1] & 15) << 8;
}

/* Takes out one that has ended; NULL: none has. Those that are read are there until they have been
 * read, so they go last. The caller that keeps most gives way, with what ended first of it, so that
 * nobody fills the store to the cost of others. */
static sl_kept *evict(sl_store *st) {
    sl_kept *oldest = NULL;
    size_t held[4096] = {0};
    bool idle = false;
    for (const sl_kept *k = st->first; k; k = k->next) {
        if (k->ended_ns) held[bucket_of(k)] += k->bytes;
        idle = idle || (k->ended_ns && k->n_claims == 0);
    }
    for (sl_kept *k = st->first; k; k = k->next) {
        if (!k->ended_ns || (idle && k->n_claims > 0)) continue;
        size_t own = held[bucket_of(k)], most = oldest ? held[bucket_of(oldest)] : 0;
        if (!oldest || own > most || (own == most && k->ended_ns < oldest->ended_ns)) oldest = k;
    }
    if (oldest) unlist(st, oldest);
    return oldest;
}

/* The caller's own by its key, */
static sl_kept *find_key(sl_call *call) {
    const sl_store *st = &call->server->store;
    sl_journal_digest by = sl_digest_of(st, call->key);
    for (sl_kept *k = st->first; k; k = k->next)
        if (k->has_key && sl_digest_is(&k->key, &by) && sl_digest_is(&k->caller, &call->caller))
            return k;
    return NULL;
}

/* or by its id. */
static sl_kept *find_id(const sl_store *st, const sl_journal_digest *caller, const char *id) {
    for (sl_kept *k = st->first; k; k = k->next)
        if (!strcmp(k->id, id) && sl_digest_is(&k->caller, caller)) return k;
    return NULL;
}

static void claim(sl_kept *k, sl_call *call) {
    sl_kept_hold(k);
    k->n_claims++;
    call->kept = k;
    call->claims = true;
}

static sl_status refuse_other_body(sl_api_error *e) {
    sl_api_error_bad(e, NULL,
                     "Idempotency-Key: it was used with another path or body; take another key");
    e->http = MHD_HTTP_UNPROCESSABLE_CONTENT;
    e->code = "idempotency_key_reused";
    return SL_ERR_ARG;
}

static sl_status refuse_size(const sl_call *call, size_t bytes, sl_api_error *e) {
    const sl_server_opts *o = &call->server->o;
    sl_api_error_bad(e, NULL,
                     "up to %zu bytes would be kept of this request, all together have %zu "
                     "(--responses-bytes); ask for fewer tokens%s",
                     bytes, o->responses_bytes,
                     o->journal  ? ""
                     : call->key ? ", or without the Idempotency-Key"
                                 : ", or with \"store\": false");
    e->code = "answer_too_large";
    return SL_ERR_LIMIT;
}

static sl_status refuse_full(sl_api_error *e) {
    sl_api_error_bad(e, NULL,
                     "all answers that may be kept are still being made (--responses, "
                     "--responses-bytes); try again");
    e->http = MHD_HTTP_SERVICE_UNAVAILABLE;
    e->type = "server_error";
    e->code = "too_many_responses";
    e->retry_after_s = 1;
    return SL_ERR_OVERLOADED;
}

/* Who has a part of an answer is not served another one from its middle on. */
static sl_status refuse_gone(const sl_call *call, sl_api_error *e) {
    sl_api_error_bad(e, call->after_name,
                     "%s: no answer of that Idempotency-Key is kept: it failed, or its time is "
                     "over (--responses, --responses-ttl)",
                     call->after_name);
    e->http = MHD_HTTP_NOT_FOUND;
    e->code = "response_not_found";
    return SL_ERR_NOTFOUND;
}

static sl_status refuse_unwritten(sl_api_error *e) {
    sl_api_error_bad(e, NULL, "the journal cannot be written: nothing new is accepted; try again");
    e->http = MHD_HTTP_SERVICE_UNAVAILABLE;
    e->type = "server_error";
    e->code = "journal_unwritable";
    e->retry_after_s = 1;
    return SL_ERR_OVERLOADED;
}

void sl_kept_list(sl_kept *k) {
    sl_store *st = &k->server->store;
    k->next = st->first;
    st->first = k;
    k->listed = true;
    st->n++;
    st->bytes += k->bytes;
}

/* A new one; those taken out for it follow *old. Under the store's lock. */
static sl_status open_new(sl_call *call, sl_kept **old, sl_api_error *e) {
    sl_store *st = &call->server->store;
    const sl_server_opts *o = &call->server->o;
    size_t bytes = sizeof(sl_kept) + call->body.cap;
    for (size_t i = 0; i < call->n_prompts; i++) bytes += call->prompt[i].len * sizeof(uint32_t);
    for (size_t i = 0; i < call->n_choices; i++) {
        sl_kept_track t;
        shape(call, &call->choice[i], &t);
        bytes += sizeof t + sl_kept_track_bytes(&t, t.room);
    }
    if (bytes > o->responses_bytes) return refuse_size(call, bytes, e);
    if (!may_fit(st, o, bytes)) return refuse_full(e);
    while (st->n >= o->responses || st->bytes + bytes > o->responses_bytes) {
        sl_kept *k = evict(st);
        if (!k) return refuse_full(e); /* what was resumed may be more than there is room for */
        k->next = *old;
        *old = k;
    }
    sl_kept *k = create(call, bytes);
    if (!k) return sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    if (call->server->o.journal) k->number = ++st->last_number;
    if (!sl_kept_log_open(k)) {
        if (k->upto) sl_kept_log_drop(k); /* the file that is to replace this one may have it */
        sl_kept_release(k);
        return refuse_unwritten(e);
    }
    sl_kept_list(k);
    claim(k, call);
    return SL_OK;
}

static void drop_all(sl_kept *k) {
    for (sl_kept *next; k; k = next) {
        next = k->next;
        sl_kept_log_drop(k);
        sl_kept_release(k);
    }
}

void sl_kept_fit(sl_server *s) {
    sl_store *st = &s->store;
    sl_kept *old = NULL;
    pthread_mutex_lock(&st->lock);
    while (st->n > s->o.responses || st->bytes > s->o.responses_bytes) {
        sl_kept *k = evict(st);
        if (!k) break;
        k->next = old;
        old = k;
    }
    pthread_mutex_unlock(&st->lock);
    drop_all(old);
}

sl_status sl_kept_open(sl_call *call, sl_api_error *e) {
    sl_store *st = &call->server->store;
    sl_kept *old = NULL;
    sl_status status = SL_OK;
    pthread_mutex_lock(&st->lock);
    sl_kept *k = call->key ? find_key(call) : NULL;
    bool again = k && k->dialect == call->dialect && k->body.len == call->body.len &&
                 !memcmp(k->body.data, call->body.data, k->body.len);
    if (again) {
        claim(k, call);
        call->replayed = true;
        st->n_replayed++;
    } else if (k) {
        status = refuse_other_body(e);
    } else {
        status = call->after ? refuse_gone(call, e) : open_new(call, &old, e);
    }
    pthread_mutex_unlock(&st->lock);
    sl_call_drop_body(call);
    drop_all(old);
    return status;
}

bool sl_kept_find(sl_call *call, const char *id) {
    sl_store *st = &call->server->store;
    const sl_journal_digest caller = sl_caller_of(call); /* it takes a look at all keys */
    pthread_mutex_lock(&st->lock);
    sl_kept *k = find_id(st, &caller, id);
    if (k && k->dialect == call->dialect) claim(k, call);
    pthread_mutex_unlock(&st->lock);
    return call->kept != NULL;
}

sl_span sl_kept_body(const sl_kept *k) {
    return (sl_span){(const uint8_t *)k->body.data, k->body.len};
}

static void forget(sl_kept *k) {
    sl_store *st = &k->server->store;
    pthread_mutex_lock(&st->lock);
    bool listed = k->listed;
    if (listed) unlist(st, k);
    pthread_mutex_unlock(&st->lock);
    if (!listed) return;
    sl_kept_log_drop(k);
    sl_kept_release(k);
}

sl_kept *sl_kept_borrow(sl_call *call, const char *id) {
    sl_store *st = &call->server->store;
    const sl_journal_digest caller = sl_caller_of(call); /* it takes a look at all keys */
    pthread_mutex_lock(&st->lock);
    sl_kept *k = find_id(st, &caller, id);
    if (k && k->dialect != call->dialect) k = NULL;
    if (k) sl_kept_hold(k);
    pthread_mutex_unlock(&st->lock);
    return k;
}

void sl_kept_give_up(sl_kept *k) {
    forget(k);
    pthread_mutex_lock(&k->lock);
    k->given_up = true;
    if (!k->failed && k->n_running > 0) {
        k->failed = SL_ERR_CANCELLED;
        snprintf(k->why, sizeof k->why, "its client cancelled it");
    }
    pthread_mutex_unlock(&k->lock);
    cancel(k);
}

/* ---- the engine's side ---- */

static void append(sl_kept_track *t, const sl_request_event *ev) {
    size_t n = SL_MIN((size_t)ev->n, t->room - t->n);
    if (n > 0) memcpy(t->id + t->n, ev->tokens, n * sizeof *t->id);
    if (n > 0 && t->stride && ev->logprobs)
        memcpy(t->logprob + t->n * t->stride, ev->logprobs, n * t->stride * sizeof *t->logprob);
    t->n += n;
}

/* Gives back what was reserved and is not needed: bytes. */
static size_t trim(sl_kept_track *t) {
    uint32_t *id = sl_alloc(t->n, sizeof *id);
    sl_logprob *logprob = t->stride ? sl_alloc(t->n, t->stride * sizeof *logprob) : NULL;
    if (!id || (t->stride && !logprob)) {
        sl_free(id);
        sl_free(logprob);
        return 0;
    }
    if (t->n > 0) memcpy(id, t->id, t->n * sizeof *id);
    if (t->n > 0 && t->stride) memcpy(logprob, t->logprob, t->n * t->stride * sizeof *logprob);
    sl_free(t->id);
    sl_free(t->logprob);
    t->id = id;
    t->logprob = logprob;
    size_t unused = t->room - t->n;
    t->room = t->n;
    return sl_kept_track_bytes(t, unused);
}

void sl_kept_trim(sl_kept *k) {
    sl_store *st = &k->server->store;
    size_t unused = 0;
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < k->n_tracks; i++) unused += trim(&k->track[i]);
    pthread_mutex_unlock(&k->lock);
    pthread_mutex_lock(&st->lock);
    k->bytes -= unused;
    if (k->listed) st->bytes -= unused;
    pthread_mutex_unlock(&st->lock);
}

/* The last event of the last choice has come: an answer that failed is not kept. */
static void end(sl_kept *k) {
    bool at_limit = false;
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < k->n_tracks; i++)
        at_limit = at_limit || k->track[i].last == SL_FINISH_LENGTH;
    sl_status failed = k->given_up ? SL_OK : k->failed;
    bool cancelled = k->cancelled, ran = !k->refused && failed != SL_ERR_OVERLOADED;
    pthread_mutex_unlock(&k->lock);
    if (ran)
        sl_metrics_finished(&k->server->metrics,
                            failed      ? SL_OUTCOME_ERROR
                            : cancelled ? SL_OUTCOME_ABORT
                            : at_limit  ? SL_OUTCOME_LENGTH
                                        : SL_OUTCOME_STOP,
                            1e-9 * (double)(sl_now_ns() - k->start_ns));
    sl_kept_trim(k);
    if (failed || cancelled) forget(k);
}

/* Under kept->lock: a reader that found nothing is suspended by now, or has yet to look. */
static void wake_readers(sl_kept *k) {
    for (sl_call *call = k->readers; call; call = call->next_reader) {
        pthread_mutex_lock(&call->lock);
        if (call->suspended) {
            call->suspended = false;
            MHD_resume_connection(call->connection);
        }
        pthread_mutex_unlock(&call->lock);
    }
}

static void on_event(void *ctx, const sl_request_event *ev) {
    sl_kept_track *t = ctx;
    sl_kept *k = t->kept;
    sl_store *st = &k->server->store;
    bool over = ev->finish != SL_FINISH_NONE;
    uint64_t now_ns = sl_now_ns();
    sl_metrics_event(&k->server->metrics, &t->pace, ev, now_ns);
    /* Before a reader hears of it: who asks again then begins anew. */
    if (ev->finish == SL_FINISH_ERROR) forget(k);
    if (over) pthread_mutex_lock(&st->lock);
    pthread_mutex_lock(&k->lock);
    size_t had = t->n;
    append(t, ev);
    if (had == 0) t->n_found = ev->n_found; /* of an earlier coordinator, if that has begun */
    if (over) {
        t->last = k->given_up ? SL_FINISH_ERROR : ev->finish;
        t->natural = ev->n > 0;
        k->n_running--;
    }
    bool ended = over && k->n_running == 0;
    /* Also before: who has it all leaves it, or asks for the next one, at once. */
    if (ended) k->ended_ns = now_ns;
    if (over) pthread_mutex_unlock(&st->lock);
    if (ev->finish == SL_FINISH_ERROR && !k->failed) {
        k->failed = ev->status;
        snprintf(k->why, sizeof k->why, "%s", ev->message ? ev->message : "");
    }
    sl_kept_log_tokens(k, t, had);
    wake_readers(k);
    pthread_mutex_unlock(&k->lock);
    if (ended) end(k);
    if (over) sl_kept_release(k);
}

/* ---- the calls' side ---- */

sl_status sl_kept_join(sl_call *call, sl_api_error *e) {
    sl_kept *k = call->kept;
    if (call->n_choices != k->n_tracks || call->n_prompts != k->n_prompts)
        return sl_api_error_of(e, SL_ERR_INTERNAL, NULL, NULL);
    for (size_t i = 0; i < k->n_prompts; i++) { /* a template may have said another date then */
        call->prompt[i].len = 0;
        if (!sl_ids_copy(&call->prompt[i], k->prompt[i].data, k->prompt[i].len))
            return sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    }
    memcpy(call->id, k->id, sizeof call->id);
    call->head.created = k->created;
    call->counted = true; /* by end() */
    pthread_mutex_lock(&k->lock);
    call->next_reader = k->readers;
    k->readers = call;
    pthread_mutex_unlock(&k->lock);
    return SL_OK;
}

sl_status sl_kept_begin_stream(sl_call *call, sl_api_error *e) {
    const char *name = call->after_name;
    sl_cursor *c = &call->cursor;
    if (!call->params.stream)
        return call->after ? sl_api_error_bad(e, name, "%s: only a stream goes on (stream)", name)
                           : SL_OK;
    if (!sl_cursor_begin(c, call->n_choices)) return sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    if (!call->after || sl_cursor_go_on(c, call->after)) return SL_OK;
    return sl_api_error_bad(e, name,
                            "%s: \"%.64s\" is no id of an event of this stream, which has %zu "
                            "number%s, from 0 on%s",
                            name, call->after, c->n, c->n > 1 ? "s" : "",
                            c->n > 1 ? ", with commas between" : "");
}

sl_status sl_kept_refuse_after(const sl_call *call, sl_api_error *e) {
    return sl_api_error_bad(e, call->after_name,
                            "%s: \"%.64s\" is no id of an event of this stream, which has ended "
                            "before it",
                            call->after_name, call->after);
}

void sl_kept_lock(sl_kept *k) {
    pthread_mutex_lock(&k->lock);
}

void sl_kept_unlock(sl_kept *k) {
    pthread_mutex_unlock(&k->lock);
}

/* Whether nothing is shown before it is on the disk. */
static bool syncs_each(const sl_kept *k) {
    return k->number && k->server->o.journal_sync == SL_SYNC_EACH;
}

bool sl_kept_unsettled(const sl_kept *k) {
    return syncs_each(k) && k->settled < k->upto;
}

void sl_kept_settle(sl_kept *k) {
    size_t n[SL_API_MAX_CHOICES];
    pthread_mutex_lock(&k->lock);
    bool due = sl_kept_unsettled(k);
    uint64_t upto = k->upto;
    for (size_t i = 0; due && i < k->n_tracks; i++) n[i] = k->track[i].n;
    pthread_mutex_unlock(&k->lock);
    if (!due) return;
    /* a disk that fails holds nobody up: the log and /metrics say so */
    if (!sl_journal_sync(k->server->o.journal, upto))
        sl_log(SL_LOG_ERROR, "journal", "it cannot be synced: %s", strerror(errno));
    pthread_mutex_lock(&k->lock);
    k->settled = SL_MAX(k->settled, upto);
    for (size_t i = 0; i < k->n_tracks; i++)
        k->track[i].n_settled = SL_MAX(k->track[i].n_settled, n[i]);
    pthread_mutex_unlock(&k->lock);
}

sl_status sl_kept_pull(sl_call *call) {
    sl_kept *k = call->kept;
    sl_status st = SL_OK;
    for (size_t i = 0; st == SL_OK && i < k->n_tracks; i++) {
        const sl_kept_track *t = &k->track[i];
        sl_choice *c = &call->choice[i];
        if (c->muted) continue;
        /* What the journal could not be told waits for nothing: that is settled with the last
         * record that it took. */
        size_t at = c->n_heard, there = sl_kept_unsettled(k) ? SL_MAX(t->n_settled, at) : t->n,
               n = SL_MIN(there - at, PULL_TOKENS - SL_MIN(c->queue.len, PULL_TOKENS));
        st = sl_choice_queue(c, t->id + at, n, t->stride ? t->logprob + at * t->stride : NULL);
        c->n_heard += n;
        c->n_found = t->n_found;
        if (c->n_heard == t->n && !sl_kept_unsettled(k)) c->last = t->last;
    }
    if (k->failed) sl_call_fail(call, k->failed, k->why);
    return st;
}

sl_status sl_kept_submit(sl_kept *k, size_t choice, sl_request_params *r, sl_err *err) {
    sl_kept_track *t = &k->track[choice];
    uint64_t id = 0;
    t->pace = (sl_pace){.start_ns = k->start_ns, .submit_ns = sl_now_ns(), .n_prompt = r->n_prompt};
    r->on_event = on_event;
    r->ctx = t;
    sl_kept_hold(k);
    sl_status st = sl_engine_submit(k->server->o.engine, r, &id, err);
    if (st != SL_OK) {
        sl_kept_release(k);
        return st;
    }
    pthread_mutex_lock(&k->lock);
    t->engine_id = id;
    t->submitted = true;
    bool late = k->cancelled;
    pthread_mutex_unlock(&k->lock);
    if (late) sl_kept_stop(k, choice);
    return SL_OK;
}

void sl_kept_refuse(sl_kept *k, sl_status why, const char *text) {
    forget(k);
    pthread_mutex_lock(&k->lock);
    if (!k->failed) snprintf(k->why, sizeof k->why, "%s", text);
    if (!k->failed) k->failed = why;
    k->refused = true;
    for (size_t i = 0; i < k->n_tracks; i++) {
        if (k->track[i].submitted) continue; /* the engine tells its end */
        k->track[i].last = SL_FINISH_ERROR;
        k->n_running--;
    }
    wake_readers(k);
    pthread_mutex_unlock(&k->lock);
    cancel(k);
}

static bool is_stopping(sl_server *s) {
    return atomic_load_explicit(&s->stopping, memory_order_acquire);
}

/* Under the store's lock. */
static void unclaim(sl_call *call) {
    sl_kept *k = call->kept;
    if (!call->claims) return;
    call->claims = false;
    if (--k->n_claims == 0) k->left_ns = sl_now_ns();
}

void sl_kept_heard(sl_call *call) {
    if (!call->kept) return;
    sl_store *st = &call->server->store;
    pthread_mutex_lock(&st->lock);
    unclaim(call);
    pthread_mutex_unlock(&st->lock);
}

void sl_kept_leave(sl_call *call) {
    sl_kept *k = call->kept;
    if (!k) return;
    sl_store *st = &k->server->store;
    pthread_mutex_lock(&k->lock);
    sl_call **at = &k->readers;
    while (*at && *at != call) at = &(*at)->next_reader;
    if (*at) *at = call->next_reader;
    bool failed = k->failed != SL_OK, over = k->n_running == 0;
    pthread_mutex_unlock(&k->lock);
    if (failed) cancel(k); /* its other choices */
    pthread_mutex_lock(&st->lock);
    unclaim(call);
    /* Without a key its client is not expected to come back; but a service that stops leaves it to
     * the one that resumes. */
    bool alone = k->n_claims == 0 && !over && !k->has_key && !k->resumed && k->listed &&
                 !is_stopping(k->server);
    if (alone) unlist(st, k);
    pthread_mutex_unlock(&st->lock);
    call->kept = NULL;
    if (alone) {
        cancel(k);
        sl_kept_log_drop(k);
        sl_kept_release(k);
    }
    sl_kept_release(k);
}

/* ---- time ---- */

/* Takes out what has had its time, or everything; gives up what still runs of it. */
static void take_out(sl_server *s, bool all) {
    sl_store *st = &s->store;
    sl_kept *out = NULL;
    uint64_t now_ns = sl_now_ns();
    pthread_mutex_lock(&st->lock);
    for (sl_kept *k = st->first, *next; k; k = next) {
        next = k->next;
        uint64_t since_ns = k->ended_ns ? k->ended_ns : k->left_ns;
        uint64_t most_s = k->ended_ns ? s->o.responses_ttl_s : s->o.responses_grace_s;
        bool due = k->n_claims == 0 && now_ns - since_ns >= most_s * 1000000000ull;
        /* What was resumed is made to its end, unless somebody came for it and left. */
        if (!k->ended_ns && k->resumed && k->left_ns == 0) due = false;
        if (!all && !due) continue;
        unlist(st, k);
        k->next = out;
        out = k;
    }
    pthread_mutex_unlock(&st->lock);
    for (sl_kept *k = out; k; k = k->next) cancel(k);
    if (!all) {
        drop_all(out);
        return;
    }
    for (sl_kept *next; out; out = next) { /* the journal goes on with it */
        next = out->next;
        sl_kept_release(out);
    }
}

void sl_kept_sweep(sl_server *s) {
    take_out(s, false);
}

void sl_kept_close(sl_server *s) {
    take_out(s, true);
}

sl_metrics_kept sl_kept_stats(sl_server *s) {
    pthread_mutex_lock(&s->store.lock);
    sl_metrics_kept stats = {.n = s->store.n,
                             .bytes = s->store.bytes,
                             .n_replayed = s->store.n_replayed,
                             .n_resumed = s->store.n_resumed};
    pthread_mutex_unlock(&s->store.lock);
    if (s->o.journal) stats.journal_bytes = sl_journal_bytes(s->o.journal);
    if (s->o.journal) stats.journal_broken = sl_journal_is_broken(s->o.journal);
    return stats;
}

/* ---- keys ---- */

typedef struct keys {
    const char *first;
    unsigned n;
} keys;

static enum MHD_Result see_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                  const char *value) {
    keys *k = cls;
    (void)kind;
    if (strcasecmp(name, "Idempotency-Key") != 0) return MHD_YES;
    if (k->n++ == 0) k->first = value ? value : "";
    return MHD_YES;
}

bool sl_kept_read_key(sl_call *call, sl_api_error *e) {
    keys k = {0};
    if (call->server->o.responses == 0) return true;
    MHD_get_connection_values(call->connection, MHD_HEADER_KIND, see_header, &k);
    if (k.n == 0) return true;
    size_t n = strlen(k.first);
    bool text = true;
    for (size_t i = 0; i < n; i++) text = text && k.first[i] >= ' ' && k.first[i] <= '~';
    if (k.n == 1 && n > 0 && n <= KEY_BYTES && text) {
        call->key = k.first;
        return true;
    }
    sl_api_error_bad(e, NULL, "Idempotency-Key: one of 1 to %u characters of ASCII is wanted",
                     KEY_BYTES);
    e->code = "invalid_idempotency_key";
    return false;
}

void sl_kept_read_after(sl_call *call) {
    static const struct {
        const char *name;
        enum MHD_ValueKind kind;
    } places[] = {{"Last-Event-ID", MHD_HEADER_KIND}, /* a browser adds it to the same address */
                  {"after", MHD_GET_ARGUMENT_KIND},
                  {"starting_after", MHD_GET_ARGUMENT_KIND}}; /* OpenAI's */
    for (size_t i = 0; i < SL_LEN(places) && !call->after; i++) {
        call->after = MHD_lookup_connection_value(call->connection, places[i].kind, places[i].name);
        call->after_name = places[i].name;
    }
}
