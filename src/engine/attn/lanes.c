/* The attention side of schedules with barriers: lanes take turns at the device, and each waits for
 * the experts while others run. */
#include "engine/attn/lane.h"

static void wake(void *side, const sl_slot *s) {
    sl_lanes *ls = side;
    sl_lane_wake(&ls->lane[sl_slots_lane(&ls->attn->slots, s->life)]);
}

static sl_status on_return(void *side, uint32_t expert_index, const sl_wire_header *h,
                           sl_buf **payload, sl_err *err) {
    sl_lanes *ls = side;
    return sl_lane_on_return(&ls->lane[h->lane], expert_index, h, payload, err);
}

/* ROUND_OPEN. */
static sl_status on_peer(void *side, const sl_wire_header *h, sl_span payload, sl_err *err) {
    sl_lanes *ls = side;
    const uint32_t *ids;
    uint32_t n;
    sl_idset set;
    sl_status st = sl_wire_set_decode(payload, &ids, &n, err);
    if (st == SL_OK) st = sl_idset_check((uint32_t *)(uintptr_t)ids, n, &set, err);
    if (st == SL_OK) st = sl_member_open(&ls->lane[h->lane].member, h->round, &set, err);
    if (st == SL_OK) sl_turns_open(&ls->turns, h->lane);
    return st;
}

static bool run(void *side) {
    sl_lanes *ls = side;
    sl_turn turn;
    for (uint32_t l = 0; l < ls->attn->n_lanes; l++)
        if (sl_lane_go_on(&ls->lane[l]) || sl_lane_ask_again(&ls->lane[l])) return true;
    if (!sl_turns_next(&ls->turns, &turn)) return false;
    sl_lane_run(&ls->lane[turn.lane], &turn);
    return true;
}

static bool rests(const void *side) {
    const sl_lanes *ls = side;
    for (uint32_t l = 0; l < ls->attn->n_lanes; l++)
        if (ls->lane[l].member.state != SL_MEMBER_IDLE) return false;
    return true;
}

static void waits_for(const void *side, sl_trace_event *e) {
    const sl_lanes *ls = side;
    for (uint32_t l = 0; l < ls->attn->n_lanes; l++) {
        const sl_lane *lane = &ls->lane[l];
        bool flight = sl_turns_awaits(&ls->turns, l),
             joining = lane->member.state == SL_MEMBER_JOINING;
        if (!flight && !joining) continue;
        *e = (sl_trace_event){.kind = SL_TRACE_WAIT,
                              .why = flight ? SL_TRACE_WHY_EXPERTS : SL_TRACE_WHY_ROUND,
                              .lane = sl_trace_u16(l),
                              .layer = flight ? sl_trace_u16(lane->pass.layer) : 0};
        if (flight) return;
    }
}

static void lose(void *side, uint32_t expert_index, bool gone) {
    sl_lanes *ls = side;
    if (expert_index == 0) ls->attn->leaderless = true;
    for (uint32_t l = 0; l < ls->attn->n_lanes; l++) sl_lane_lose(&ls->lane[l], expert_index, gone);
}

/* The head of a step needs no expert, and its requests have advanced. */
static void end_head(sl_lanes *ls) {
    while (ls->turns.in_head != SL_TURNS_NONE) {
        sl_lane *lane = &ls->lane[ls->turns.in_head];
        const sl_turn turn = {.kind = SL_TURN_HEAD, .lane = lane->id, .layer = lane->pass.layer};
        if (!lane->begun) sl_lane_run(lane, &turn);
        sl_device_drain(ls->attn->w->device);
        if (sl_worker_has_no_device(ls->attn->w)) return;
        sl_lane_go_on(lane);
    }
}

static void give_up(void *side) {
    sl_lanes *ls = side;
    end_head(ls);
    for (uint32_t l = 0; l < ls->attn->n_lanes; l++) sl_lane_reset(&ls->lane[l]);
}

/* ---- life ---- */

static void free_side(void *side) {
    sl_lanes *ls = side;
    if (!ls) return;
    for (uint32_t l = 0; ls->lane && l < ls->attn->n_lanes; l++) sl_lane_free(&ls->lane[l]);
    sl_free(ls->lane);
    sl_free(ls);
}

static sl_status create(sl_attn *a, void **out, sl_err *err) {
    const sl_turns_shape shape = {.n_lanes = a->n_lanes,
                                  .n_layers = a->m->n_layers,
                                  .moe = a->moe,
                                  .shared = a->m->d_ff_shared > 0,
                                  .n_replies = a->n_experts * a->n_chunks,
                                  .order = a->resolve.order,
                                  .watch = a->w->watch};
    sl_lanes *ls = sl_alloc(1, sizeof *ls);
    if (!ls) return sl_fail(err, SL_ERR_NOMEM, "lanes of an attention worker");
    ls->attn = a;
    sl_status st = sl_turns_init(&ls->turns, &shape, err);
    ls->lane = sl_alloc(a->n_lanes, sizeof *ls->lane);
    if (st == SL_OK && !ls->lane) st = sl_fail(err, SL_ERR_NOMEM, "%u lanes", a->n_lanes);
    for (uint32_t l = 0; st == SL_OK && l < a->n_lanes; l++)
        st = sl_lane_create(a, &ls->turns, l, &ls->lane[l], err);
    if (st == SL_OK)
        *out = ls;
    else
        free_side(ls);
    return st;
}

const sl_attn_side_ops sl_attn_lanes = {.create = create,
                                        .free = free_side,
                                        .wake = wake,
                                        .on_return = on_return,
                                        .on_peer = on_peer,
                                        .run = run,
                                        .rests = rests,
                                        .waits_for = waits_for,
                                        .lose = lose,
                                        .give_up = give_up};
