/* Requests whose bodies take long to read. A few threads of libmicrohttpd carry every stream, so
 * what takes long is done here: the connection is suspended while a thread of the pool parses the
 * body, renders the template and tokenizes. These threads yield to those that compute tokens. */
#include "serve/server_int.h"

#include "base/log.h"
#include "base/quiet.h"

#include <stdio.h>

#define INLINE_BYTES ((size_t)4 << 10) /* bodies that take less than changing threads is worth */

static void run(sl_call *call) {
    pthread_mutex_lock(&call->lock);
    bool wanted = call->abort == SL_ABORT_NONE;
    pthread_mutex_unlock(&call->lock);
    if (wanted) call->job.work(call);
}

void sl_work_lend(sl_call *call) {
    pthread_mutex_lock(&call->lock);
    call->working = true;
    MHD_suspend_connection(call->connection);
    pthread_mutex_unlock(&call->lock);
    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
}

void sl_work_give_back(sl_call *call) {
    pthread_mutex_lock(&call->lock);
    call->working = false;
    MHD_resume_connection(call->connection);
    pthread_mutex_unlock(&call->lock);
    sl_call_unref(call);
}

static void *work(void *arg) {
    sl_server *s = arg;
    sl_work *w = &s->work;
    if (!sl_quiet_thread())
        sl_log(SL_LOG_DEBUG, "serve", "large bodies are read at the priority of everything else");
    pthread_mutex_lock(&w->lock);
    for (;;) {
        sl_call *call = w->first;
        if (!call && w->stopping) break;
        if (!call) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        w->first = call->job.next;
        w->n_waiting--;
        pthread_mutex_unlock(&w->lock);
        run(call);
        sl_work_give_back(call);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

sl_status sl_work_start(sl_server *s, sl_err *err) {
    for (; s->work.n_threads < s->o.work_threads; s->work.n_threads++) {
        int rc = pthread_create(&s->work.thread[s->work.n_threads], NULL, work, s);
        if (rc != 0) return sl_fail(err, SL_ERR_IO, "server: worker thread: %s", strerror(rc));
    }
    return SL_OK;
}

void sl_work_stop(sl_server *s) {
    sl_work *w = &s->work;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    for (; w->n_threads > 0; w->n_threads--) pthread_join(w->thread[w->n_threads - 1], NULL);
}

static void refuse_full(sl_api_error *e, uint32_t limit) {
    sl_api_error_bad(
        e, NULL, "%u requests with large bodies wait to be read, no more may; try again", limit);
    e->http = MHD_HTTP_SERVICE_UNAVAILABLE;
    e->type = "server_error";
    e->code = "too_many_bodies";
    e->retry_after_s = 1;
}

/* The last in the queue, with a reference; false, with the error, if there is no room. */
static bool enqueue(sl_call *call, sl_api_error *e) {
    sl_server *s = call->server;
    sl_work *w = &s->work;
    pthread_mutex_lock(&w->lock);
    bool room = w->n_waiting < s->o.max_work, open = room && !w->stopping;
    if (open) {
        sl_work_lend(call);
        call->job.next = NULL;
        *(w->first ? &w->last->job.next : &w->first) = call;
        w->last = call;
        w->n_waiting++;
        pthread_cond_signal(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    if (!room)
        refuse_full(e, s->o.max_work);
    else if (!open)
        sl_api_error_of(e, SL_ERR_CANCELLED, NULL, "the server is stopping");
    return open;
}

static enum MHD_Result finish(sl_call *call) {
    if (call->refusal.http) return sl_call_reply_error(call, &call->refusal);
    return call->job.then(call);
}

enum MHD_Result sl_work_do(sl_call *call, size_t n, void (*work_on)(sl_call *),
                           enum MHD_Result (*then)(sl_call *)) {
    call->job = (sl_job){.work = work_on, .then = then};
    if (n <= INLINE_BYTES) {
        work_on(call);
        return finish(call);
    }
    call->phase = SL_CALL_WORK;
    sl_watch_add(call);
    return enqueue(call, &call->refusal) ? MHD_YES : finish(call);
}

enum MHD_Result sl_work_done(sl_call *call) {
    pthread_mutex_lock(&call->lock);
    bool working = call->working;
    sl_call_abort why = call->abort;
    pthread_mutex_unlock(&call->lock);
    if (working) return MHD_YES;
    if (why == SL_ABORT_GONE) return MHD_NO;
    if (why != SL_ABORT_NONE)
        sl_api_error_of(&call->refusal, SL_ERR_CANCELLED, NULL, "the server is stopping");
    return finish(call);
}
