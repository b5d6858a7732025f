/* Requests that kill workers: what src/sched/suspect says of each by the losses that it was in
 * flight at, carried out. */
#include "engine/coord/coord_int.h"

#include "base/log.h"
#include "base/mutate.h"

#include <stdio.h>

/* At an attention worker those that ran there; rows of all of them come to an expert worker. */
void sl_blame_note(sl_engine *e, uint32_t id, bool served) {
    bool experts = e->roster.worker[id].roles & SL_ROLE_EXPERT;
    sl_suspect_loss loss = {.number = ++e->n_losses, .experts = experts};
    loss.heard = !e->worker[id].sign || SL_MUTATION(EARLIER_END);
    e->worker[id].loss = loss.number;
    for (uint32_t i = 0; served && i < e->ledger.cap; i++) {
        sl_request *r = e->ledger.at[i];
        const sl_admit_request *q = r ? sl_request_books(e, r) : NULL;
        if (!q || !sl_admit_runs(q) || (!experts && q->worker != id)) continue;
        loss.alone = sl_admit_is_alone(&e->admit, i, id);
        sl_suspect_beside(&r->suspect, loss);
    }
}

static void say(const sl_request *r, const char *what) {
    sl_log_request(SL_LOG_WARN, "engine", r->name, "request %llu ran beside %u crashes: %s",
                   (unsigned long long)r->id, sl_suspect_crashes(&r->suspect), what);
}

static void clear(sl_engine *e, sl_request *r, const char *why) {
    sl_log_request(SL_LOG_INFO, "engine", r->name, "request %llu is no suspect any more: %s",
                   (unsigned long long)r->id, why);
    sl_admit_clear(&e->admit, r->place);
}

/* The crashes that a request is why of are nobody else's. Its pages are in use until its attention
 * worker, which may live, has let go of it. */
static void end(sl_engine *e, sl_request *r, uint32_t worker) {
    const sl_suspect culprit = r->suspect;
    const char *why = sl_spawn_why(e, worker);
    snprintf(
        r->fate_text, sizeof r->fate_text,
        "worker %u crashed while this request ran alone%s%s%s, and %u did before while it ran: "
        "it is given up",
        worker, why ? " (" : "", why ? why : "", why ? ")" : "", sl_suspect_crashes(&culprit) - 1);
    sl_log_request(SL_LOG_ERROR, "engine", r->name, "request %llu: %s", (unsigned long long)r->id,
                   r->fate_text);
    r->fate = SL_ERR_CRASHES;
    sl_coord_cancel(e, r->id);
    for (uint32_t i = 0; i < e->ledger.cap; i++) {
        sl_request *other = e->ledger.at[i];
        if (other && !other->fate && sl_suspect_explained(&other->suspect, &culprit))
            clear(e, other, "another one is why");
    }
}

void sl_blame_crash(sl_engine *e, uint32_t id) {
    for (uint32_t i = 0; i < e->ledger.cap; i++) {
        sl_request *r = e->ledger.at[i];
        if (!r) continue;
        switch (
            sl_suspect_crashed(&r->suspect, e->worker[id].loss, sl_request_books(e, r)->drawn)) {
        case SL_SUSPECT_FREE:
            break;
        case SL_SUSPECT_HOLD:
            say(r, "it is tried alone");
            sl_stay_end(e, r);
            sl_admit_suspect(&e->admit, i, r->suspect.everywhere);
            break;
        case SL_SUSPECT_END:
            end(e, r, id);
        }
    }
}

void sl_blame_token(sl_engine *e, sl_request *r) {
    if (!r->fate && e->admit.alone == r->place &&
        sl_suspect_drawn(&r->suspect, sl_request_books(e, r)->drawn))
        clear(e, r, "it got further alone");
}
