/* What an expert worker tells those who wait for it: that it has much to do, for others, too, or
 * that it waits itself. Without that they would take it for slow (sched/hedge.h). */
#include "engine/expert/expert.h"

static void tell(sl_worker *w, uint32_t member, uint64_t us) {
    const sl_wire_header h = {.kind = SL_MSG_BUSY, .number = us};
    sl_worker_send(w, member, h, NULL); /* one that is gone is reported by its connection */
}

void sl_expert_begins(sl_worker *w, uint64_t rows, uint64_t behind) {
    w->task_us = sl_clock_now_us(&w->clock);
    w->excused_us = w->task_us + SL_BUSY_WAITS_US;
    uint64_t us = sl_busy_begins(&w->busy, rows, behind, w->task_us);
    if (us == 0 || !sl_worker_can_spare(w, w->id)) return;
    for (size_t i = 0; i < w->attention.n; i++) tell(w, w->attention.ids[i], us);
}

uint64_t sl_expert_ends(sl_worker *w, uint64_t rows) {
    const uint64_t us = sl_clock_now_us(&w->clock) - w->task_us;
    sl_busy_ends(&w->busy, rows, us);
    w->n.expert_us += us;
    return us;
}

void sl_expert_rests(sl_worker *w, bool (*waits)(const void *side, uint32_t member),
                     const void *side) {
    uint64_t now_us = sl_clock_now_us(&w->clock);
    if (now_us < w->excused_us || !sl_worker_can_spare(w, w->id)) return;
    w->excused_us = now_us + SL_BUSY_WAITS_US;
    for (size_t i = 0; i < w->attention.n; i++) {
        if (!waits(side, w->attention.ids[i])) continue;
        tell(w, w->attention.ids[i], SL_BUSY_AGAIN_US / 2);
        w->excused_us = now_us + SL_BUSY_AGAIN_US;
    }
}
