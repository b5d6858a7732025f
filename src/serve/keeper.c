/* The thread that keeps the journal: with --journal-sync second it makes it durable once a second;
 * it writes the file anew when more of it is past than what counts would take, when prompts lie in
 * it whose answers are no longer kept, and when a write has failed. */
#include "serve/kept_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <time.h>

#define SLACK_BYTES ((size_t)1 << 20) /* past records that nobody minds */

/* Those that are to be in the new file, each with a reference, the oldest first; what is opened
 * from now on writes to both files by itself. NULL with *n 0: there is no new file. */
static sl_kept **begin(sl_server *s, size_t *n, sl_err *err) {
    sl_store *st = &s->store;
    pthread_mutex_lock(&st->lock);
    sl_kept **all = sl_alloc(st->n, sizeof(sl_kept *));
    *n = 0;
    /* relaxed: the journal's lock orders it for those who write */
    uint32_t number = 1 + atomic_fetch_add_explicit(&st->renewal, 1, memory_order_relaxed);
    if (all && sl_journal_renew(s->o.journal, number, err) != SL_OK) {
        sl_free(all);
        all = NULL;
    }
    for (sl_kept *k = all ? st->first : NULL; k; k = k->next) {
        sl_kept_hold(k);
        all[st->n - 1 - (*n)++] = k;
    }
    pthread_mutex_unlock(&st->lock);
    return all;
}

static void renew(sl_server *s) {
    sl_err err = {.msg = "out of memory"};
    size_t n;
    sl_kept **all = begin(s, &n, &err);
    bool ok = all != NULL;
    for (size_t i = 0; i < n; i++) {
        ok = ok && sl_kept_log_copy(all[i]);
        sl_kept_release(all[i]);
    }
    if (all && sl_journal_renewed(s->o.journal, ok, &err) != SL_OK) ok = false;
    sl_free(all);
    if (!ok) sl_log(SL_LOG_ERROR, "journal", "it is not written anew: %s", err.msg);
}

static bool is_due(sl_server *s) {
    pthread_mutex_lock(&s->store.lock);
    size_t counts = s->store.bytes;
    pthread_mutex_unlock(&s->store.lock);
    size_t bytes = sl_journal_bytes(s->o.journal);
    if (sl_journal_is_broken(s->o.journal) || bytes > 2 * counts + SLACK_BYTES) return true;
    uint64_t age_ns = sl_now_ns() - s->keeper.renewed_ns;
    return bytes != s->keeper.kept_bytes && age_ns >= s->o.responses_ttl_s * 1000000000ull;
}

static void look(sl_server *s) {
    if (s->o.journal_sync == SL_SYNC_SECOND &&
        !sl_journal_sync(s->o.journal, sl_journal_end(s->o.journal)))
        sl_log(SL_LOG_ERROR, "journal", "it cannot be synced: %s", strerror(errno));
    if (!is_due(s)) return;
    renew(s);
    s->keeper.renewed_ns = sl_now_ns();
    s->keeper.kept_bytes = sl_journal_bytes(s->o.journal);
}

static void *keep(void *arg) {
    sl_server *s = arg;
    sl_keeper *keeper = &s->keeper;
    pthread_mutex_lock(&keeper->lock);
    while (!keeper->stopping) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec++;
        if (pthread_cond_timedwait(&keeper->changed, &keeper->lock, &until) != ETIMEDOUT) continue;
        pthread_mutex_unlock(&keeper->lock);
        look(s);
        pthread_mutex_lock(&keeper->lock);
    }
    pthread_mutex_unlock(&keeper->lock);
    return NULL;
}

sl_status sl_keeper_start(sl_server *s, sl_err *err) {
    sl_keeper *keeper = &s->keeper;
    pthread_condattr_t attr;
    if (!s->o.journal) return SL_OK;
    pthread_mutex_init(&keeper->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&keeper->changed, &attr);
    pthread_condattr_destroy(&attr);
    keeper->renewed_ns = sl_now_ns();
    int rc = pthread_create(&keeper->thread, NULL, keep, s);
    if (rc != 0) return sl_fail(err, SL_ERR_IO, "server: keeper's thread: %s", strerror(rc));
    keeper->running = true;
    return SL_OK;
}

void sl_keeper_stop(sl_server *s) {
    sl_keeper *keeper = &s->keeper;
    if (!keeper->running) return;
    pthread_mutex_lock(&keeper->lock);
    keeper->stopping = true;
    pthread_cond_signal(&keeper->changed);
    pthread_mutex_unlock(&keeper->lock);
    pthread_join(keeper->thread, NULL);
    keeper->running = false;
    pthread_cond_destroy(&keeper->changed);
    pthread_mutex_destroy(&keeper->lock);
    /* nothing is lost that a machine that stops now could lose */
    if (s->o.journal_sync != SL_SYNC_NEVER &&
        !sl_journal_sync(s->o.journal, sl_journal_end(s->o.journal)))
        sl_log(SL_LOG_ERROR, "journal", "it cannot be synced: %s", strerror(errno));
}
