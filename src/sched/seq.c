/* The sequencer: opens rounds, merges members' words, tells of the dead. */
#include "sched/membership.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"

enum { OWES, STAYS, LEAVES, DIED }; /* what a member of the round has said */

struct sl_seq {
    size_t max_members;
    uint64_t epoch, round;
    size_t owed;   /* live members that have not voted */
    sl_idset set;  /* of `round`; empty: asleep */
    uint8_t *said; /* [max_members], parallel to set */
    sl_idset joiners;
    sl_idset dead;
    sl_idset next, next_to, open_to; /* scratch, and what sl_seq_out points at */
};

sl_status sl_seq_create(size_t max_members, sl_seq **out, sl_err *err) {
    *out = NULL;
    if (max_members == 0 || max_members > SL_MAX_WORKERS)
        return sl_fail(err, SL_ERR_ARG, "max_members is %zu, must be 1 to %u", max_members,
                       SL_MAX_WORKERS);
    sl_seq *s = sl_alloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_ERR_NOMEM, "no memory for a sequencer");
    s->max_members = max_members;
    sl_idset *sets[] = {&s->set, &s->joiners, &s->dead, &s->next, &s->next_to, &s->open_to};
    sl_status st = SL_OK;
    for (size_t i = 0; i < SL_LEN(sets) && st == SL_OK; i++)
        st = sl_idset_reserve(sets[i], max_members, err);
    s->said = sl_alloc(max_members, 1);
    if (st == SL_OK && !s->said)
        st = sl_fail(err, SL_ERR_NOMEM, "no memory for a sequencer of %zu members", max_members);
    if (st != SL_OK) {
        sl_seq_free(s);
        return st;
    }
    *out = s;
    return SL_OK;
}

void sl_seq_free(sl_seq *s) {
    if (!s) return;
    sl_idset *sets[] = {&s->set, &s->joiners, &s->dead, &s->next, &s->next_to, &s->open_to};
    for (size_t i = 0; i < SL_LEN(sets); i++) sl_idset_free(sets[i]);
    sl_free(s->said);
    sl_free(s);
}

static void out_clear(sl_seq *s, sl_seq_out *out) {
    sl_idset_clear(&s->next_to);
    sl_idset_clear(&s->open_to);
    *out = (sl_seq_out){.set = &s->set, .next_to = &s->next_to, .open_to = &s->open_to};
}

static void swap_sets(sl_idset *a, sl_idset *b) {
    sl_idset t = *a;
    *a = *b;
    *b = t;
}

/* Fixes s->next as the set of the next round and wakes its joiners; an empty one puts the lane to
 * sleep and leaves the round's number for whoever joins first. */
static void open_round(sl_seq *s, sl_seq_out *out) {
    out->round = s->round + 1;
    swap_sets(&s->set, &s->next);
    swap_sets(&s->open_to, &s->joiners);
    sl_idset_clear(&s->joiners);
    s->owed = s->set.n;
    memset(s->said, OWES, s->set.n);
    if (s->set.n > 0) s->round++;
}

/* next = stayers merged with joiners; neither holds a dead member. */
static void merge_next(sl_seq *s) {
    size_t i = 0, j = 0, n = 0;
    sl_idset_clear(&s->next_to);
    while (i < s->set.n || j < s->joiners.n) {
        if (j == s->joiners.n || (i < s->set.n && s->set.ids[i] < s->joiners.ids[j])) {
            uint32_t id = s->set.ids[i];
            if (s->said[i] != DIED) s->next_to.ids[s->next_to.n++] = id;
            if (s->said[i] == STAYS) s->next.ids[n++] = id;
            i++;
        } else {
            s->next.ids[n++] = s->joiners.ids[j++];
        }
    }
    s->next.n = n;
}

/* Closes the round if every live member has voted. */
static void check_close(sl_seq *s, sl_seq_out *out) {
    if (s->set.n == 0 || s->owed > 0) return;
    merge_next(s);
    out->closed = true;
    open_round(s, out);
}

static size_t live_members(const sl_seq *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->set.n; i++) n += s->said[i] != DIED;
    return n;
}

sl_status sl_seq_join(sl_seq *s, uint32_t member, sl_seq_out *out, sl_err *err) {
    out_clear(s, out);
    if (sl_idset_has(&s->dead, member)) {
        out->dropped = true;
        return SL_OK;
    }
    if (sl_idset_has(&s->set, member))
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "JOIN of worker %" PRIu32 ", which is in round %" PRIu64, member, s->round);
    if (sl_idset_has(&s->joiners, member))
        return sl_fail(err, SL_ERR_PROTOCOL, "second JOIN of worker %" PRIu32 " for round %" PRIu64,
                       member, s->round + 1);
    if (live_members(s) + s->joiners.n >= s->max_members)
        return sl_fail(err, SL_ERR_LIMIT, "JOIN of worker %" PRIu32 ": the lane has %zu members",
                       member, s->max_members);
    sl_status st = sl_idset_add(&s->joiners, member, err);
    if (st != SL_OK) return st;
    if (s->set.n == 0) {
        merge_next(s);
        open_round(s, out);
    }
    return SL_OK;
}

sl_status sl_seq_last(sl_seq *s, uint32_t member, uint64_t round, bool stay, sl_seq_out *out,
                      sl_err *err) {
    size_t at;
    out_clear(s, out);
    if (sl_idset_has(&s->dead, member)) {
        out->dropped = true;
        return SL_OK;
    }
    if (s->set.n == 0 || round != s->round)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "vote of worker %" PRIu32 " in round %" PRIu64 ", the lane %s %" PRIu64,
                       member, round, s->set.n == 0 ? "sleeps after round" : "is in round",
                       s->round);
    if (!sl_idset_find(&s->set, member, &at))
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "vote of worker %" PRIu32 ", no member of round %" PRIu64, member, round);
    if (s->said[at] != OWES)
        return sl_fail(err, SL_ERR_PROTOCOL, "second vote of worker %" PRIu32 " in round %" PRIu64,
                       member, round);
    s->said[at] = stay ? STAYS : LEAVES;
    s->owed--;
    check_close(s, out);
    return SL_OK;
}

sl_status sl_seq_dead(sl_seq *s, uint32_t member, sl_seq_out *out, sl_err *err) {
    size_t at;
    out_clear(s, out);
    if (sl_idset_has(&s->dead, member)) return SL_OK;
    sl_status st = sl_idset_add(&s->dead, member, err);
    if (st != SL_OK) return st;
    out->announce = true;
    out->dead = member;
    sl_idset_remove(&s->joiners, member);
    if (sl_idset_find(&s->set, member, &at)) {
        if (s->said[at] == OWES) s->owed--;
        s->said[at] = DIED;
        check_close(s, out);
    }
    return SL_OK;
}

void sl_seq_reset(sl_seq *s, uint64_t epoch) {
    sl_idset_clear(&s->set);
    sl_idset_clear(&s->joiners);
    s->owed = 0;
    s->round = 0;
    s->epoch = epoch;
}

uint64_t sl_seq_epoch(const sl_seq *s) {
    return s->epoch;
}

bool sl_seq_asleep(const sl_seq *s) {
    return s->set.n == 0;
}
