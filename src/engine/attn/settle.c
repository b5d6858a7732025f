/* The end of a lane's step where the schedule is chosen anew while it runs (sched/resolve.h): what
 * changed is told, and requests whose lane has closed, or has two more than the emptiest open one,
 * go on in another one. Where the device keeps state by place they stay until they end: new ones
 * come to open lanes alone. */
#include "engine/attn/lane.h"

#include "base/log.h"
#include "format/plan_json.h"

static void note_change(sl_worker *w, const sl_resolve_change *c, uint32_t lane) {
    sl_trace_event e = sl_resolve_event(c, lane);
    e.begin_ns = e.end_ns = sl_now_ns();
    sl_trace_add(w->trace, &e);
    if (c->rows == 0)
        sl_log(SL_LOG_INFO, "lane", "resolved: %u lanes, order %s", c->lanes,
               sl_order_names[c->order]);
    else
        sl_log(SL_LOG_INFO, "lane", "resolved: steps of up to %u rows in %u chunks of %s", c->rows,
               c->chunks, sl_chunking_names[c->chunking]);
}

static void adopt(sl_lane *lane) {
    sl_attn *a = lane->attn;
    const sl_resolve *r = &a->resolve;
    for (uint32_t i = 0; i < r->n_change; i++) note_change(a->w, &r->change[i], lane->id);
    a->slots.open = r->lanes;
    sl_turns_set_order(lane->turns, r->order);
}

/* Everything that is kept for a request at its slot moves, but the life that the place has. */
static void move_slot(sl_attn *a, sl_slot *to, sl_slot *from) {
    sl_life *to_life = to->life, *from_life = from->life;
    *to = *from;
    *from = (sl_slot){.life = from_life};
    to->life = to_life;
    a->ops->wake(a->side, to);
}

void sl_lane_settle(sl_lane *lane, uint32_t rows) {
    sl_attn *a = lane->attn;
    sl_life *to, *from;
    if (!sl_resolve_is_on(&a->resolve)) return;
    if (sl_resolve_step(&a->resolve, lane->id, rows, sl_slots_used(&a->slots),
                        sl_clock_now_us(&a->w->clock)))
        adopt(lane);
    if (a->w->device->placed) return;
    while ((to = sl_slots_move(&a->slots, lane->id, &from)))
        move_slot(a, &a->slot[to - a->slots.life], &a->slot[from - a->slots.life]);
}
