/* Suspects: which losses a request was in flight at, and what follows of them. */
#include "sched/suspect.h"

#include "base/mutate.h"

#include <string.h>

static void forget(sl_suspect *s, uint32_t at) {
    s->n--;
    memmove(s->loss + at, s->loss + at + 1, (s->n - at) * sizeof *s->loss);
}

static void clear(sl_suspect *s) {
    *s = (sl_suspect){0};
}

/* When there is no room: the oldest that is no crash, or the oldest. */
void sl_suspect_beside(sl_suspect *s, sl_suspect_loss loss) {
    uint32_t oldest = 0;
    while (oldest < s->n && s->loss[oldest].crash) oldest++;
    if (s->n == SL_SUSPECT_LOSSES) forget(s, oldest < s->n ? oldest : 0);
    loss.crash = false;
    s->loss[s->n++] = loss;
}

uint32_t sl_suspect_crashes(const sl_suspect *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) n += s->loss[i].crash;
    return n;
}

static sl_suspect_loss *find(sl_suspect *s, uint64_t number) {
    for (uint32_t i = 0; i < s->n; i++)
        if (s->loss[i].number == number) return &s->loss[i];
    return NULL;
}

static void suspect(sl_suspect *s, uint32_t drawn) {
    uint32_t goal = drawn + SL_SUSPECT_TOKENS;
    s->goal = s->held && s->goal > goal ? s->goal : goal;
    s->held = true;
    s->everywhere = false;
    for (uint32_t i = 0; i < s->n; i++) s->everywhere |= s->loss[i].crash && s->loss[i].experts;
}

/* Of the loss l, at which it was alone. */
static bool is_proof(const sl_suspect *s, const sl_suspect_loss *l) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) n += s->loss[i].crash && s->loss[i].alone;
    return l->heard || n > 1;
}

sl_suspect_verdict sl_suspect_crashed(sl_suspect *s, uint64_t number, uint32_t drawn) {
    sl_suspect_loss *l = find(s, number);
    if (!l || l->crash) return SL_SUSPECT_FREE;
    l->crash = true;
    bool proof = l->alone && is_proof(s, l);
    if (s->held && (proof || SL_MUTATION(HASTY_VERDICT))) return SL_SUSPECT_END;
    if (sl_suspect_crashes(s) < SL_SUSPECT_CRASHES) return SL_SUSPECT_FREE;
    suspect(s, drawn);
    return SL_SUSPECT_HOLD;
}

bool sl_suspect_drawn(sl_suspect *s, uint32_t drawn) {
    if (!s->held || drawn < s->goal) return false;
    clear(s);
    return true;
}

bool sl_suspect_explained(sl_suspect *s, const sl_suspect *culprit) {
    for (uint32_t i = 0; i < culprit->n; i++) {
        const sl_suspect_loss *own = find(s, culprit->loss[i].number);
        if (culprit->loss[i].crash && own) forget(s, (uint32_t)(own - s->loss));
    }
    if (!s->held || sl_suspect_crashes(s) >= SL_SUSPECT_CRASHES) return false;
    s->held = s->everywhere = false;
    s->goal = 0;
    return true;
}
