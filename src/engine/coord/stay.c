/* Requests of lost attention workers: those whose KV is there still wait for who comes in that
 * place, or go on elsewhere, with the copies that are there of it or computed again from their
 * tokens; which is sooner, src/sched/recover says. */
#include "engine/coord/coord_int.h"

#include "base/log.h"

#define ROWS_MEANT 8192u /* what rows cost is the mean of about so many, the last ones */
#define ROWS_TELL                                                                                  \
    256u /* starts of fewer rows are counted where nothing else is known: they take                \
            a step beside others, however few they are */

/* Who is not expected before is not waited for where there is no place elsewhere, either: those who
 * stay are in no line, and others would start before them for so long, or for ever. */
#define LONG_US 2000000u

/* ---- what a row costs ---- */

void sl_stay_note_start(sl_engine *e, sl_request *r) {
    const sl_admit_request *q = sl_request_books(e, r);
    r->started_us = sl_clock_now_us(&e->clock);
    r->n_asked = sl_admit_known(q) - q->sure;
    if (q->starts < 2) return;
    pthread_mutex_lock(&e->lock);
    e->stats.rows_kept += q->sure;
    e->stats.rows_recomputed += r->n_asked;
    pthread_mutex_unlock(&e->lock);
}

void sl_stay_note_token(sl_engine *e, sl_request *r) {
    if (!r->started_us) return;
    if (e->rows.n > ROWS_MEANT) {
        e->rows.n /= 2;
        e->rows.us /= 2;
    }
    if (r->n_asked >= ROWS_TELL || e->rows.n < ROWS_TELL) {
        e->rows.n += r->n_asked;
        e->rows.us += sl_clock_now_us(&e->clock) - r->started_us;
    }
    r->started_us = 0;
}

/* ---- who stays ---- */

/* Its pages come back, it waits again. */
static void let_go(sl_engine *e, const sl_request *r) {
    sl_admit_gave_way(&e->admit, r->place);
    pthread_mutex_lock(&e->lock);
    e->stats.requeued++;
    pthread_mutex_unlock(&e->lock);
}

void sl_stay_requeue(sl_engine *e, uint32_t id) {
    const sl_admit_worker *at = &e->admit.worker[id];
    uint32_t n = 0, n_stay = at->staying.n;
    while (at->running.n > 0) {
        sl_request *r = e->ledger.at[at->running.first];
        const sl_admit_request *q = sl_request_books(e, r);
        if (q->state == SL_ADMIT_CANCELLING) {
            sl_coord_finish(e, r, SL_FINISH_STOP, SL_ERR_CANCELLED, NULL);
            continue;
        }
        if (e->worker[id].keeps && q->state == SL_ADMIT_RUNNING && q->sure > 0 && !q->suspect)
            sl_admit_stay(&e->admit, r->place);
        else
            let_go(e, r);
        n++;
    }
    n_stay = at->staying.n - n_stay;
    if (n)
        sl_log(SL_LOG_WARN, "engine", "%u requests of worker %u wait again, of %u the KV is there",
               n, id, n_stay);
}

void sl_stay_end(sl_engine *e, const sl_request *r) {
    if (sl_request_books(e, r)->state == SL_ADMIT_STAYING) let_go(e, r);
}

void sl_stay_release(sl_engine *e, uint32_t id) {
    const sl_admit_list *staying = &e->admit.worker[id].staying;
    while (staying->n > 0) let_go(e, e->ledger.at[staying->first]);
}

/* In the order of their starts. */
static void look_at(sl_engine *e, uint32_t id, uint64_t back_us) {
    const sl_admit_list *staying = &e->admit.worker[id].staying;
    double row_us = e->rows.n ? (double)e->rows.us / (double)e->rows.n : 0;
    uint64_t rows = 0;
    uint32_t at = staying->first, n = 0;
    while (at != SL_ADMIT_NONE) {
        const sl_admit_request *q = &e->admit.request[at];
        const sl_request *r = e->ledger.at[at];
        at = q->link[SL_ADMIT_PLACE].next;
        bool place = sl_admit_has_place(&e->admit, r->place) || back_us > LONG_US;
        uint32_t others = place ? e->admit.n_open : 0;
        uint32_t copied = sl_admit_copied_rows(&e->admit, r->place);
        uint32_t again = q->sure - SL_MIN(copied, q->sure);
        if (sl_recover_stays(rows + again, row_us, others, back_us)) continue;
        rows += again;
        let_go(e, r);
        n++;
    }
    if (n)
        sl_log(SL_LOG_INFO, "engine",
               "%u requests of worker %u are computed again elsewhere: %llu rows of %.0f us, it is "
               "back in %.0f ms",
               n, id, (unsigned long long)rows, row_us, 1e-3 * (double)back_us);
}

void sl_stay_look(sl_engine *e) {
    uint64_t now_us = sl_clock_now_us(&e->clock);
    for (uint32_t i = 0; e->admit.n_staying > 0 && i < e->plan.n_workers; i++)
        if (e->admit.worker[i].staying.n > 0 && !e->admit.worker[i].open)
            look_at(e, i, sl_recover_back_us(&e->recover, i, now_us));
}
