/* What the journal is told of kept answers, and in which of its files: while it is written anew,
 * what the new file has already of an answer goes on in both. An answer's records are written under
 * its lock, so they stand in order, and nothing follows a DROP. */
#include "serve/kept_int.h"

#include "base/clock.h"

#define COPY_BYTES ((size_t)1 << 20) /* of the tokens in one record of a copy */

/* Between begin and commit: a renewal begins under the journal's lock, after the count. A file that
 * was begun when the answer was no longer kept knows nothing of it, and is told nothing. */
static sl_journal_where where_of(const sl_kept *k) {
    /* relaxed: the journal's lock orders it */
    uint32_t renewal = atomic_load_explicit(&k->server->store.renewal, memory_order_relaxed);
    if (k->renewal < sl_journal_file(k->server->o.journal)) return SL_JOURNAL_NOWHERE;
    return k->renewal == renewal ? SL_JOURNAL_BOTH : SL_JOURNAL_HERE;
}

static sl_span span_of(const void *data, size_t n) {
    return (sl_span){data, n};
}

/* Lists of numbers of one answer, as the record wants them: [2 * n_tracks + n_prompts + tokens]. */
static uint32_t *numbers_of(const sl_kept *k, sl_journal_request *r) {
    size_t n_ids = 0;
    for (size_t i = 0; i < k->n_prompts; i++) n_ids += k->prompt[i].len;
    uint32_t *list = sl_alloc(2 * k->n_tracks + k->n_prompts + n_ids, sizeof *list);
    if (!list) return NULL;
    uint32_t *room = list + k->n_tracks, *sizes = room + k->n_tracks, *ids = sizes + k->n_prompts;
    for (size_t i = 0; i < k->n_tracks; i++) {
        list[i] = k->track[i].most;
        room[i] = (uint32_t)SL_MAX(k->track[i].room, (size_t)k->track[i].most);
    }
    r->most = span_of(list, 4 * k->n_tracks);
    r->room = span_of(room, 4 * k->n_tracks);
    r->sizes = span_of(sizes, 4 * k->n_prompts);
    r->ids = span_of(ids, 4 * n_ids);
    for (size_t i = 0; i < k->n_prompts; i++) {
        sizes[i] = (uint32_t)k->prompt[i].len;
        memcpy(ids, k->prompt[i].data, k->prompt[i].len * sizeof *ids);
        ids += k->prompt[i].len;
    }
    return list;
}

static bool write_open(sl_kept *k, bool copy) {
    sl_journal *j = k->server->o.journal;
    sl_journal_request r = {.number = k->number,
                            .kind = (uint8_t)sl_dialect_id_of(k->dialect),
                            .has_key = k->has_key,
                            .caller = k->caller,
                            .key = k->key,
                            .created_s = k->created,
                            .seed = k->seed,
                            .stride = (uint32_t)k->track[0].stride,
                            .n_prompts = (uint32_t)k->n_prompts,
                            .n_choices = (uint32_t)k->n_tracks,
                            .body = span_of(k->body.data, k->body.len)};
    memcpy(r.id, k->id, sizeof r.id);
    uint32_t *numbers = numbers_of(k, &r);
    size_t n = sl_journal_request_bytes(&r);
    uint8_t *at = numbers ? sl_journal_begin(j, n) : NULL;
    bool ok = at != NULL;
    if (ok) {
        sl_journal_request_write(&r, at);
        ok =
            sl_journal_commit(j, copy ? SL_JOURNAL_NEW : where_of(k), SL_JOURNAL_OPEN, n, &k->upto);
    }
    sl_free(numbers);
    return ok;
}

bool sl_kept_log_open(sl_kept *k) {
    if (!k->number) return true;
    /* relaxed: renewals begin under the store's lock */
    k->renewal = atomic_load_explicit(&k->server->store.renewal, memory_order_relaxed);
    return write_open(k, false);
}

static bool write_tokens(sl_kept *k, const sl_kept_track *t, size_t from, size_t n, bool over,
                         bool copy) {
    sl_journal *j = k->server->o.journal;
    const sl_journal_tokens r = {
        .number = k->number,
        .choice = t->index,
        .at = (uint32_t)from,
        .n = (uint32_t)n,
        .stride = (uint32_t)t->stride,
        .finish = over ? (uint8_t)t->last : SL_FINISH_NONE,
        .ended_s = over ? k->ended_s : 0,
        .n_found = t->n_found,
        .ids = span_of(t->id + from, n * sizeof *t->id),
        .logprobs = span_of(t->stride ? t->logprob + from * t->stride : NULL,
                            n * t->stride * sizeof *t->logprob),
    };
    size_t bytes = sl_journal_tokens_bytes(&r);
    uint8_t *at = sl_journal_begin(j, bytes);
    if (!at) return false;
    sl_journal_tokens_write(&r, at);
    return sl_journal_commit(j, copy ? SL_JOURNAL_NEW : where_of(k), SL_JOURNAL_TOKENS, bytes,
                             &k->upto);
}

/* Neither failed nor given up: these are dropped, or go on when the service is started again. */
static bool ended_well(const sl_kept *k, const sl_kept_track *t) {
    return (t->last == SL_FINISH_STOP || t->last == SL_FINISH_LENGTH) &&
           (t->natural || !k->cancelled) && !k->failed;
}

void sl_kept_log_tokens(sl_kept *k, const sl_kept_track *t, size_t from) {
    bool over = ended_well(k, t);
    if (!k->number || k->dropped || (t->n == from && !over)) return;
    if (over) k->ended_s = sl_wall_s();
    write_tokens(k, t, from, t->n - from, over, false); /* the log says when it cannot */
}

void sl_kept_log_drop(sl_kept *k) {
    if (!k->number) return;
    pthread_mutex_lock(&k->lock);
    uint8_t *at = k->dropped ? NULL : sl_journal_begin(k->server->o.journal, SL_JOURNAL_DROP_BYTES);
    if (at) {
        sl_journal_drop_write(k->number, at);
        sl_journal_commit(k->server->o.journal, where_of(k), SL_JOURNAL_DROP, SL_JOURNAL_DROP_BYTES,
                          NULL);
    }
    k->dropped = true;
    pthread_mutex_unlock(&k->lock);
}

bool sl_kept_log_copy(sl_kept *k) {
    bool ok = true;
    pthread_mutex_lock(&k->lock);
    if (!k->dropped) {
        ok = write_open(k, true);
        for (size_t i = 0; ok && i < k->n_tracks; i++) {
            const sl_kept_track *t = &k->track[i];
            size_t most = COPY_BYTES / sl_kept_track_bytes(t, 1), at = 0;
            bool over = ended_well(k, t);
            for (size_t n; ok && (at < t->n || over); at += n) {
                n = SL_MIN(t->n - at, most);
                bool last = over && at + n == t->n;
                ok = write_tokens(k, t, at, n, last, true);
                over = over && !last;
            }
        }
        /* relaxed: only this thread changes it */
        k->renewal = atomic_load_explicit(&k->server->store.renewal, memory_order_relaxed);
    }
    pthread_mutex_unlock(&k->lock);
    return ok;
}
