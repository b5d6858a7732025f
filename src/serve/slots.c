/* GET /slots: what runs, place by place, in the manner of llama.cpp's server. A place is one of so
 * many requests as may run at once; they are filled in the order in which requests came. Who asks
 * sees its own ones; of the others, that they are there. */
#include "serve/kept_int.h"

#include "base/log.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* One choice that has not ended. */
typedef struct slot {
    uint64_t start_ns;
    uint32_t choice;
    uint32_t max_tokens;
    bool own;
    char id[SL_JOURNAL_ID_BYTES];
    size_t n_prompt, n_prompt_heard, n_made;
} slot;

typedef struct slots {
    const sl_journal_digest *caller; /* who asks */
    slot *of;
    size_t n, cap;
    bool nomem;
} slots;

static void add(slots *all, slot one) {
    if (all->n == all->cap) {
        size_t cap = SL_MAX(2 * all->cap, (size_t)64);
        slot *grown = sl_grow(all->of, all->cap, cap, sizeof *grown);
        if (!grown) {
            all->nomem = true;
            return;
        }
        all->of = grown;
        all->cap = cap;
    }
    all->of[all->n++] = one;
}

/* Choices that are requests of their call's own. */
static void add_calls(sl_server *s, slots *all) {
    pthread_mutex_lock(&s->lock);
    for (sl_call *call = s->calls; call; call = call->next) {
        pthread_mutex_lock(&call->lock);
        for (size_t i = 0; call->started && i < call->n_choices; i++) {
            const sl_choice *c = &call->choice[i];
            if (!c->submitted || c->last != SL_FINISH_NONE) continue;
            slot one = {.start_ns = call->start_ns,
                        .choice = c->index,
                        .max_tokens = c->max_tokens,
                        .own = sl_digest_is(&call->caller, all->caller),
                        .n_prompt = c->prompt->len,
                        .n_prompt_heard = c->n_prompt_heard,
                        .n_made = c->n_made};
            snprintf(one.id, sizeof one.id, "%s", call->id);
            add(all, one);
        }
        pthread_mutex_unlock(&call->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

/* Those of answers that are kept, whoever reads them. */
static void add_kept(sl_server *s, slots *all) {
    pthread_mutex_lock(&s->store.lock);
    for (sl_kept *k = s->store.first; k; k = k->next) {
        pthread_mutex_lock(&k->lock);
        for (size_t i = 0; i < k->n_tracks; i++) {
            const sl_kept_track *t = &k->track[i];
            if (!t->submitted || t->last != SL_FINISH_NONE) continue;
            size_t n_prompt = k->prompt[i / (k->n_tracks / k->n_prompts)].len;
            /* what is asked about the prompt comes first */
            size_t room = t->whole_room ? t->whole_room : t->room;
            size_t reports = room > t->most ? n_prompt - 1 : 0;
            slot one = {.start_ns = k->start_ns,
                        .choice = t->index,
                        .max_tokens = t->most,
                        .own = sl_digest_is(&k->caller, all->caller),
                        .n_prompt = n_prompt,
                        .n_prompt_heard = SL_MIN(t->n, reports),
                        .n_made = t->n - SL_MIN(t->n, reports)};
            snprintf(one.id, sizeof one.id, "%s", k->id);
            add(all, one);
        }
        pthread_mutex_unlock(&k->lock);
    }
    pthread_mutex_unlock(&s->store.lock);
}

static int by_arrival(const void *a, const void *b) {
    const slot *x = a, *y = b;
    int order = (x->start_ns > y->start_ns) - (x->start_ns < y->start_ns);
    return order ? order : (x->choice > y->choice) - (x->choice < y->choice);
}

uint32_t sl_server_slots(sl_server *s) {
    sl_engine_detail d = {0};
    sl_err err;
    uint32_t n = 0;
    if (sl_engine_detail_get(s->o.engine, &d, &err) != SL_OK) {
        sl_log(SL_LOG_WARN, "serve", "places of requests: %s", err.msg);
        return 0;
    }
    for (uint32_t i = 0; i < d.n_workers; i++) {
        const sl_worker_stats *w = &d.worker[i];
        bool away = w->life == SL_WORKER_FREE || w->life == SL_WORKER_DRAINED;
        n += (w->roles & SL_ROLE_ATTENTION) && !away ? s->max_num_seqs : 0;
    }
    sl_engine_detail_free(&d);
    return n;
}

/* What its caller is told of it. A prompt is known to be done when its first token is here. */
static void put_own(sl_jbuf *b, const slot *one) {
    size_t done = one->n_made ? one->n_prompt : one->n_prompt_heard;
    sl_jbuf_fmt(b, ",\"request\":");
    sl_jbuf_cstring(b, one->id);
    sl_jbuf_fmt(b,
                ",\"choice\":%" PRIu32 ",\"n_prompt_tokens\":%zu,\"n_prompt_tokens_processed\":%zu,"
                "\"params\":{\"max_tokens\":%" PRIu32 ",\"n_predict\":%" PRIu32
                "},\"next_token\":[{\"has_next_token\":true,\"n_remain\":%" PRId64
                ",\"n_decoded\":%zu}]",
                one->choice, one->n_prompt, done, one->max_tokens, one->max_tokens,
                (int64_t)one->max_tokens - (int64_t)one->n_made, one->n_made);
}

enum MHD_Result sl_slots_answer(sl_call *call, const char *rest) {
    (void)rest;
    sl_server *s = call->server;
    sl_api_error e;
    sl_engine_stats stats = {0};
    const sl_journal_digest caller = sl_caller_of(call);
    slots all = {.caller = &caller};
    add_kept(s, &all);
    add_calls(s, &all);
    if (all.nomem) {
        sl_free(all.of);
        sl_api_error_of(&e, SL_ERR_NOMEM, NULL, NULL);
        return sl_call_reply_error(call, &e);
    }
    if (all.n) qsort(all.of, all.n, sizeof *all.of, by_arrival);
    sl_engine_stats_get(s->o.engine, &stats);
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_put(&b, "[", 1);
    uint32_t n = sl_server_slots(s);
    for (uint32_t i = 0; i < n && b.ok; i++) {
        const slot *one = i < all.n ? &all.of[i] : NULL;
        bool runs = one && (one->n_made > 0 || i < stats.running);
        sl_jbuf_fmt(&b, "%s{\"id\":%" PRIu32 ",\"n_ctx\":%" PRIu32 ",\"is_processing\":%s",
                    i ? "," : "", i, s->limits.context, runs ? "true" : "false");
        if (one && one->own) put_own(&b, one);
        sl_jbuf_put(&b, "}", 1);
    }
    sl_jbuf_put(&b, "]", 1);
    sl_free(all.of);
    return sl_call_reply(call, MHD_HTTP_OK, "application/json", &b);
}
