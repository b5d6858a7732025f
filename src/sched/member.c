/* A lane's part in rounds: joining, voting for the next set, leaving. */
#include "sched/membership.h"

#include <inttypes.h>

sl_status sl_member_init(sl_member *m, uint32_t id, size_t max_members, sl_err *err) {
    *m = (sl_member){.id = id};
    return sl_idset_reserve(&m->set, max_members, err);
}

void sl_member_free(sl_member *m) {
    sl_idset_free(&m->set);
}

static void send_join(sl_member *m, bool *out) {
    m->state = SL_MEMBER_JOINING;
    m->wanted = false;
    *out = true;
}

void sl_member_want(sl_member *m, bool *join) {
    *join = false;
    if (m->state == SL_MEMBER_IDLE)
        send_join(m, join);
    else if (m->state == SL_MEMBER_ROUND && m->voted && !m->stay)
        m->wanted = true;
}

/* Copies the set of a round that begins. */
static sl_status begin(sl_member *m, uint64_t round, const sl_idset *set, sl_err *err) {
    sl_status st = sl_idset_copy(set, &m->set, err);
    if (st != SL_OK) return st;
    m->state = SL_MEMBER_ROUND;
    m->round = round;
    m->voted = m->stay = m->wanted = false;
    return SL_OK;
}

sl_status sl_member_open(sl_member *m, uint64_t round, const sl_idset *set, sl_err *err) {
    if (m->state != SL_MEMBER_JOINING)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "worker %" PRIu32 ": round %" PRIu64 " opened, but no JOIN is pending",
                       m->id, round);
    if (round <= m->round)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "worker %" PRIu32 ": round %" PRIu64 " opened after round %" PRIu64, m->id,
                       round, m->round);
    if (!sl_idset_has(set, m->id))
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "worker %" PRIu32 ": round %" PRIu64
                       " opened without this worker in its set",
                       m->id, round);
    return begin(m, round, set, err);
}

void sl_member_vote(sl_member *m, bool stay) {
    SL_ASSERT(m->state == SL_MEMBER_ROUND && !m->voted);
    m->voted = true;
    m->stay = stay;
}

bool sl_member_needs_set(const sl_member *m, uint32_t layer, uint32_t chunk) {
    return m->state == SL_MEMBER_ROUND && layer == 0 && chunk == 0;
}

sl_status sl_member_next(sl_member *m, uint64_t round, const sl_idset *set, bool *join,
                         sl_err *err) {
    *join = false;
    if (m->state != SL_MEMBER_ROUND || !m->voted)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "worker %" PRIu32 ": NEXT round %" PRIu64 " before the last layer was sent",
                       m->id, round);
    if (round != m->round + 1)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "worker %" PRIu32 ": NEXT round %" PRIu64 " in round %" PRIu64, m->id, round,
                       m->round);
    bool in = sl_idset_has(set, m->id);
    if (in != m->stay)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "worker %" PRIu32 ": said %s in round %" PRIu64 " but is%s in the next set",
                       m->id, m->stay ? "STAY" : "LEAVE", m->round, in ? "" : " not");
    if (in) return begin(m, round, set, err);
    m->state = SL_MEMBER_IDLE;
    sl_idset_clear(&m->set);
    if (m->wanted) send_join(m, join);
    return SL_OK;
}

void sl_member_reset(sl_member *m, uint64_t epoch) {
    m->state = SL_MEMBER_IDLE;
    m->voted = m->stay = m->wanted = false;
    m->epoch = epoch;
    m->round = 0;
    sl_idset_clear(&m->set);
}
