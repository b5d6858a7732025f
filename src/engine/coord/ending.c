/* How requests end: their place in the books is free, they are counted, and their clients hear of
 * it once. */
#include "engine/coord/coord_int.h"

#include "base/log.h"

/* Tells its client and frees it. */
static void report_end(sl_engine *e, sl_request *r, const sl_request_event *ev, uint32_t tokens,
                       bool cancelled) {
    static const char *const ends[] = {"", "stop", "length", "error"};
    pthread_mutex_lock(&e->lock);
    e->n_open--;
    if (ev->finish == SL_FINISH_ERROR)
        e->stats.finished_error++;
    else if (cancelled)
        e->stats.finished_cancelled++;
    else if (ev->finish == SL_FINISH_STOP)
        e->stats.finished_stop++;
    else
        e->stats.finished_length++;
    pthread_mutex_unlock(&e->lock);
    /* Those that come in floods are no warning. */
    bool worse = ev->finish == SL_FINISH_ERROR && ev->status != SL_ERR_OVERLOADED;
    sl_log_request(worse ? SL_LOG_WARN : SL_LOG_INFO, "engine", r->name,
                   "request %llu ends after %u tokens: %s%s%s", (unsigned long long)r->id, tokens,
                   cancelled ? "cancelled" : ends[ev->finish], ev->message ? ": " : "",
                   ev->message ? ev->message : "");
    r->p.on_event(r->p.ctx, ev);
    sl_request_free(r);
}

static void finish(sl_engine *e, sl_request *r, sl_request_event ev) {
    const sl_admit_request *q = sl_request_books(e, r);
    bool cancelled = q->state == SL_ADMIT_CANCELLING || ev.status == SL_ERR_CANCELLED;
    if (cancelled) { /* its last tokens are dropped */
        ev.n = 0;
        if (ev.finish != SL_FINISH_ERROR) ev.finish = SL_FINISH_STOP;
    }
    if (cancelled && r->fate) {
        ev = (sl_request_event){
            .finish = SL_FINISH_ERROR, .status = r->fate, .message = r->fate_text};
        cancelled = false;
    }
    ev.request = r->id;
    ev.n_found = r->n_found;
    ev.queued_us = q->starts ? r->queued_us : sl_clock_now_us(&e->clock) - q->came_us;
    uint32_t tokens = q->drawn;
    sl_admit_end(&e->admit, r->place);
    sl_ledger_remove(&e->ledger, r);
    report_end(e, r, &ev, tokens, cancelled);
}

void sl_coord_finish(sl_engine *e, sl_request *r, sl_finish how, sl_status status,
                     const char *text) {
    finish(e, r, (sl_request_event){.finish = how, .status = status, .message = text});
}

void sl_coord_finish_with(sl_engine *e, sl_request *r, sl_finish how, sl_request_event last) {
    last.finish = how;
    finish(e, r, last);
}

void sl_coord_refuse(sl_engine *e, sl_request *r, sl_status status, const char *text) {
    const sl_request_event ev = {
        .request = r->id, .finish = SL_FINISH_ERROR, .status = status, .message = text};
    report_end(e, r, &ev, 0, false);
}
