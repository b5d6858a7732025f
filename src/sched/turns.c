/* Whose turn it is: lanes through blocks, replies awaited, pauses. */
#include "sched/turns.h"

sl_status sl_turns_init(sl_turns *t, const sl_turns_shape *shape, sl_err *err) {
    if (shape->n_lanes == 0 || shape->n_lanes > SL_PLAN_MAX_LANES || shape->n_replies == 0)
        return sl_fail(err, SL_ERR_ARG, "turns: %u lanes of 1 to %u, %u replies", shape->n_lanes,
                       SL_PLAN_MAX_LANES, shape->n_replies);
    *t = (sl_turns){.shape = *shape, .in_head = SL_TURNS_NONE};
    return SL_OK;
}

static void make_ready(sl_turns *t, sl_turn_lane *l, sl_turn_kind next) {
    l->phase = SL_TURN_READY;
    l->next = next;
    l->since = ++t->readied;
}

/* Replies and the lane's own shared experts may come in either order. */
static void merge_when_due(sl_turns *t, sl_turn_lane *l) {
    if (l->phase == SL_TURN_WAITS && l->replies == t->shape.n_replies && !l->shared_due)
        make_ready(t, l, SL_TURN_MERGE);
}

/* The lane goes on without giving its place in the order away. */
static void next_block(const sl_turns *t, sl_turn_lane *l, uint32_t layer) {
    l->layer = layer;
    l->replies = 0;
    l->phase = SL_TURN_READY;
    l->next = layer < t->shape.n_layers ? SL_TURN_BLOCK : SL_TURN_HEAD;
}

void sl_turns_open(sl_turns *t, uint32_t lane) {
    sl_turn_lane *l = &t->lane[lane];
    SL_ASSERT(l->phase == SL_TURN_IDLE);
    l->layer = 0;
    make_ready(t, l, SL_TURN_BEGIN);
}

/* Whether a BLOCK with experts has begun: its rows leave one message at a time. */
static bool is_leaving(const sl_turns *t, const sl_turn_lane *l) {
    return l->phase == SL_TURN_BEGUN && l->next == SL_TURN_BLOCK && t->shape.moe[l->layer];
}

bool sl_turns_awaits(const sl_turns *t, uint32_t lane) {
    const sl_turn_lane *l = &t->lane[lane];
    return (l->phase == SL_TURN_WAITS || is_leaving(t, l)) && l->replies < t->shape.n_replies;
}

bool sl_turns_in_flight(const sl_turns *t, uint32_t lane) {
    const sl_turn_lane *l = &t->lane[lane];
    bool merges = l->phase == SL_TURN_READY || l->phase == SL_TURN_BEGUN;
    return l->phase == SL_TURN_WAITS || (merges && l->next == SL_TURN_MERGE);
}

void sl_turns_reply(sl_turns *t, uint32_t lane) {
    sl_turn_lane *l = &t->lane[lane];
    SL_ASSERT(sl_turns_awaits(t, lane));
    l->replies++;
    merge_when_due(t, l);
}

static const sl_turn_lane *older(const sl_turn_lane *a, const sl_turn_lane *b) {
    return !a || b->since < a->since ? b : a;
}

/* Which of the lanes that are ready runs; NULL: none is. */
static const sl_turn_lane *ready_lane(const sl_turns *t) {
    const sl_turn_lane *head = NULL, *other = NULL;
    for (uint32_t i = 0; i < t->shape.n_lanes; i++) {
        const sl_turn_lane *l = &t->lane[i];
        if (l->phase != SL_TURN_READY) continue;
        if (l->next == SL_TURN_HEAD)
            head = older(head, l);
        else
            other = older(other, l);
    }
    if (head && t->in_head != SL_TURNS_NONE)
        head = t->lane[t->in_head].phase == SL_TURN_READY ? &t->lane[t->in_head] : NULL;
    return head && (!other || t->passed) ? head : other;
}

bool sl_turns_next(const sl_turns *t, sl_turn *out) {
    const sl_turn_lane *ready = ready_lane(t), *shared = NULL;
    for (uint32_t i = 0; i < t->shape.n_lanes; i++)
        if (t->lane[i].shared_due && !t->lane[i].shared_begun) shared = older(shared, &t->lane[i]);
    if (shared && (!ready || t->shape.order == SL_ORDER_ASAS)) {
        *out = (sl_turn){SL_TURN_SHARED, (uint32_t)(shared - t->lane), shared->layer};
        return true;
    }
    if (!ready) return false;
    *out = (sl_turn){ready->next, (uint32_t)(ready - t->lane), ready->layer};
    return true;
}

static void block_done(sl_turns *t, sl_turn_lane *l) {
    if (!t->shape.moe[l->layer]) {
        next_block(t, l, l->layer + 1);
        return;
    }
    l->phase = SL_TURN_WAITS;
    l->shared_due = t->shape.shared;
    t->passed = true;
    merge_when_due(t, l);
}

void sl_turns_begin(sl_turns *t, const sl_turn *turn) {
    sl_watch_tell(t->shape.watch, TURN, turn->kind, turn->lane, turn->layer);
    sl_turn_lane *l = &t->lane[turn->lane];
    if (turn->kind == SL_TURN_SHARED) {
        l->shared_begun = true;
        return;
    }
    SL_ASSERT(l->phase == SL_TURN_READY && l->next == turn->kind);
    l->phase = SL_TURN_BEGUN;
    if (turn->kind == SL_TURN_HEAD) t->in_head = turn->lane;
}

static void leave_head(sl_turns *t, uint32_t lane) {
    if (t->in_head == lane) t->in_head = SL_TURNS_NONE;
}

void sl_turns_pause(sl_turns *t, const sl_turn *turn) {
    sl_turn_lane *l = &t->lane[turn->lane];
    t->passed = false;
    if (l->phase == SL_TURN_IDLE) return; /* dropped while the piece ran */
    l->phase = SL_TURN_READY;
    t->in_head = turn->lane;
}

void sl_turns_done(sl_turns *t, const sl_turn *turn) {
    sl_turn_lane *l = &t->lane[turn->lane];
    if (l->phase == SL_TURN_IDLE) return; /* dropped while the task ran */
    switch (turn->kind) {
    case SL_TURN_BEGIN:
        next_block(t, l, 0);
        break;
    case SL_TURN_BLOCK:
        block_done(t, l);
        break;
    case SL_TURN_SHARED:
        l->shared_due = l->shared_begun = false;
        merge_when_due(t, l);
        break;
    case SL_TURN_MERGE:
        next_block(t, l, l->layer + 1);
        break;
    case SL_TURN_HEAD:
        l->phase = SL_TURN_IDLE;
        leave_head(t, turn->lane);
        t->passed = false;
        break;
    }
}

void sl_turns_drop(sl_turns *t, uint32_t lane) {
    t->lane[lane] = (sl_turn_lane){.phase = SL_TURN_IDLE};
    leave_head(t, lane);
}
