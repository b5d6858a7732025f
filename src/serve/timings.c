/* How long an answer takes, for who reads it: the same moments as in /metrics. */
#include "serve/server_int.h"

sl_status sl_call_begin_timings(sl_call *call, sl_api_error *e) {
    bool asked = call->params.timings_each, one = call->n_choices == 1;
    bool again = call->keeps || call->fetched;
    if (asked && !one)
        return sl_api_error_bad(e, "timings_per_token",
                                "timings_per_token: %zu choices, only an answer of one has them",
                                call->n_choices);
    if (asked && again)
        return sl_api_error_bad(
            e, "timings_per_token",
            "timings_per_token: not of an answer that is kept (Idempotency-Key, "
            "--journal), whose events are the same for whoever reads them");
    if (again || !one || !(asked || call->server->o.timings)) return SL_OK;
    call->head.timings = &call->timings;
    call->head.timings_each = asked;
    return SL_OK;
}

void sl_call_take_timings(sl_call *call) {
    if (!call->head.timings) return;
    const sl_pace *p = &call->choice[0].made;
    uint64_t found = SL_MIN((uint64_t)call->choice[0].n_found, p->n_prompt);
    if (p->n_made == 0) return;
    uint64_t began = p->submit_ns + p->queued_ns;
    call->timings = (sl_reply_timings){
        .n_prompt = p->n_prompt,
        .n_cached = found,
        .n_made = p->n_made,
        .first_s = 1e-9 * (double)(p->first_ns - p->start_ns),
        .queued_s = 1e-9 * (double)p->queued_ns,
        .prompt_s = p->first_ns > began ? 1e-9 * (double)(p->first_ns - began) : 0,
        .made_s = 1e-9 * (double)(p->last_ns - p->first_ns),
    };
}
