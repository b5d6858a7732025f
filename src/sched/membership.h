/* Membership of a lane's barrier: who must send before a layer of a round may run.
 *
 * The member set of a (lane, round) is fixed before its first message. Three state machines agree
 * on it; tests/model/membership.pml is the same protocol, model-checked; docs/membership.md draws
 * it.
 *
 *   sl_member   one per lane at each attention worker
 *   sl_seq      one per lane at the sequencer, the lowest live expert worker
 *   sl_barrier  one per lane at each expert worker (the sequencer too)
 *
 * Messages (each object sees one lane; between two workers they arrive in the order sent):
 *   JOIN                      member -> sequencer, only while it is in no round
 *   ROUND_OPEN(round, set)    sequencer -> each newly joined member
 *   ROUND_SET(round, set)     sequencer -> every other expert worker, for each round
 *   rows(round, layer)        member -> every expert worker, a bare header where it has no rows;
 *                             layer 0 carries the set, the last layer carries STAY or LEAVE
 *   reply(round, layer)       expert worker -> member, one per message, bare if there are no rows;
 *                             the sequencer's reply of the last layer carries NEXT(round + 1, set)
 *   DEAD(member)              sequencer -> other expert workers; also from them to the sequencer
 *
 * Only the sequencer's word makes a round: an expert worker that hears of one from a member first
 * keeps that message until ROUND_SET comes, and the set that members send is only compared.
 *
 * A layer's rows may be cut into chunks, the same number for every layer and member: each chunk is
 * a message of its own, and has its own reply. A member sends the chunks of a layer in order,
 * without waiting between them, and layer l + 1 when every expert worker has answered every chunk
 * of layer l, so it has at most `chunks` unanswered messages at each of them; the barrier enforces
 * it. The set travels with the first chunk of layer 0, STAY or LEAVE with the last chunk of the
 * last layer, NEXT with the reply to that. Layers are indices of MoE layers, 0 .. n_moe - 1. Rounds
 * count from 1 in each epoch. Worker ids are never reused in a session: a restarted worker comes
 * back under a new id, so the dead may be remembered for ever: SL_MAX_WORKERS of them, as there may
 * be members of a lane.
 *
 * Bad events return SL_ERR_PROTOCOL and leave the object as it was. What a dead member had still
 * in flight is not an error: such calls return SL_OK and say `dropped`.
 *
 * No I/O, clock or threads. Memory is reserved at creation; the barrier allocates again only when
 * more rounds are in flight than ever before. Thread: owner, for every function here. */
#ifndef SL_SCHED_MEMBERSHIP_H
#define SL_SCHED_MEMBERSHIP_H

#include "sched/idset.h"

/* ---- sequencer ---- */

typedef struct sl_seq sl_seq;

/* What an event at the sequencer asks the caller to send. The sets are never NULL and borrowed
 * until the next call on this sl_seq: copy or encode them at once, since last-layer replies leave
 * later. */
typedef struct sl_seq_out {
    bool dropped;            /* the event came from a dead member: ignore its message */
    bool closed;             /* a round closed: next_to get NEXT(round, set) on the last reply */
    uint64_t round;          /* the round that `set` is for; 0 if neither closed nor opened. With a
                                set that is not empty it begins: tell every barrier */
    const sl_idset *set;     /* members of `round`; empty: the lane sleeps until the next JOIN */
    const sl_idset *next_to; /* live members of the closed round, stayers and leavers */
    const sl_idset *open_to; /* newly joined members: each gets ROUND_OPEN(round, set) */
    bool announce;           /* send DEAD(dead) to every other expert worker */
    uint32_t dead;
} sl_seq_out;

/* max_members: most members of this lane, 1 .. SL_MAX_WORKERS. */
sl_status sl_seq_create(size_t max_members, sl_seq **out, sl_err *err);
void sl_seq_free(sl_seq *s);

/* JOIN arrived. A sleeping lane opens a round at once; otherwise the joiner is in the next set.
 * SL_ERR_PROTOCOL: it is in the round or has joined already. SL_ERR_LIMIT: lane is full. */
sl_status sl_seq_join(sl_seq *s, uint32_t member, sl_seq_out *out, sl_err *err);
/* A last-layer message arrived (give it to the barrier first). The last one of the live members
 * closes the round: next set = stayers + joiners - dead.
 * SL_ERR_PROTOCOL: no member of the round, another round, or a second vote. */
sl_status sl_seq_last(sl_seq *s, uint32_t member, uint64_t round, bool stay, sl_seq_out *out,
                      sl_err *err);
/* The member is dead (whoever found out, the sequencer decides). May close the round. A second
 * notice of the same death is SL_OK and announces nothing. */
sl_status sl_seq_dead(sl_seq *s, uint32_t member, sl_seq_out *out, sl_err *err);
/* An expert worker was lost: forget rounds and joiners, keep the dead. */
void sl_seq_reset(sl_seq *s, uint64_t epoch);
uint64_t sl_seq_epoch(const sl_seq *s);
bool sl_seq_asleep(const sl_seq *s);

/* ---- barrier ---- */

typedef struct sl_barrier sl_barrier;

/* A layer of a round that may run now. */
typedef struct sl_ready {
    uint64_t round;
    uint32_t layer, chunk;
    const sl_idset *reply_to; /* its live members that have this chunk, never empty: each gets
                                 exactly one reply; borrowed until the next call on this barrier */
} sl_ready;

/* n_moe > 0: number of MoE layers, chunks > 0: of each. max_members as in sl_seq_create. */
sl_status sl_barrier_create(uint32_t n_moe, uint32_t chunks, size_t max_members, sl_barrier **out,
                            sl_err *err);
void sl_barrier_free(sl_barrier *b);

/* Others stand in for this worker: members may do without it before the sequencer has heard that
 * they do, and are in so many open rounds here and none is an absentee. 2 at first. */
void sl_barrier_bear(sl_barrier *b, uint32_t rounds);
/* The sequencer has fixed the set of a round; rounds are announced in ascending order. *absentee: a
 * live member that two open rounds here hold already (sl_barrier_bear), else SL_NOBODY. An honest
 * one is never: it votes for a round only when all expert workers have answered it in the round
 * before. It has to go, for otherwise rounds that it votes for at the sequencer alone pile up here.
 * SL_ERR_PROTOCOL: a round that is not above the last, no members or too many. */
#define SL_NOBODY UINT32_MAX
sl_status sl_barrier_open(sl_barrier *b, uint64_t round, const sl_idset *set, uint32_t *absentee,
                          sl_err *err);
/* Whether this round is still to be announced here: keep its messages until it is. */
bool sl_barrier_is_early(const sl_barrier *b, uint64_t round);
/* A message of a member arrived. ends: no further chunk of the layer follows; not of the last
 * layer, whose last chunk everybody sends. set: what it carried, NULL if nothing. After SL_OK call
 * sl_barrier_pop until it is false. *dropped: the sender is dead, forget the message and its rows.
 * Rounds are independent of each other: a joiner's layer 0 of the next round may arrive, and run,
 * while members of this round still owe their last layer here.
 * SL_ERR_PROTOCOL: not a member, first message of a round without the set, a set that differs from
 * the sequencer's, a round that is over or not announced, a layer or chunk that is not next, a
 * layer before the replies to the one before. */
sl_status sl_barrier_arrive(sl_barrier *b, uint32_t member, uint64_t round, uint32_t layer,
                            uint32_t chunk, bool ends, const sl_idset *set, bool *dropped,
                            sl_err *err);
/* The sequencer announced (or is) the end of this member: it counts as a bare header from now on.
 * Only the sequencer's word counts: a broken connection alone is no reason to call this.
 * After SL_OK call sl_barrier_pop until it is false. SL_ERR_LIMIT: too many dead to remember. */
sl_status sl_barrier_dead(sl_barrier *b, uint32_t member, sl_err *err);
/* Takes the next layer that may run; false if the barrier waits. */
bool sl_barrier_pop(sl_barrier *b, sl_ready *out);
/* Forget rounds and arrivals, keep the dead. */
void sl_barrier_reset(sl_barrier *b, uint64_t epoch);
uint64_t sl_barrier_epoch(const sl_barrier *b);
/* For error messages and metrics: the oldest open (round, layer) and who has not sent; false if no
 * round is open. missing: borrowed until the next call on this barrier. */
bool sl_barrier_waiting(sl_barrier *b, uint64_t *round, uint32_t *layer, const sl_idset **missing);

/* ---- member ---- */

typedef enum sl_member_state {
    SL_MEMBER_IDLE,    /* in no round, no JOIN on its way */
    SL_MEMBER_JOINING, /* JOIN sent, ROUND_OPEN not yet here */
    SL_MEMBER_ROUND,   /* in a round */
} sl_member_state;

typedef struct sl_member {
    uint32_t id;
    sl_member_state state;
    bool voted;  /* STAY or LEAVE is said for this round */
    bool stay;   /* what was said */
    bool wanted; /* work came after LEAVE: join again when the round ends */
    uint64_t epoch;
    uint64_t round; /* current or latest round, 0: none in this epoch */
    sl_idset set;   /* of the current round; owned */
} sl_member;

/* Sets of up to max_members need no memory later. */
sl_status sl_member_init(sl_member *m, uint32_t id, size_t max_members, sl_err *err);
void sl_member_free(sl_member *m);

/* There is work for this lane. *send_join: send JOIN now. In a round it only remembers the wish if
 * LEAVE was said already. A JOIN cannot be taken back: if the work vanishes, spend the round with
 * bare headers and say LEAVE. */
void sl_member_want(sl_member *m, bool *send_join);
/* ROUND_OPEN arrived. SL_ERR_PROTOCOL: not joining, not in the set, round not above the latest. */
sl_status sl_member_open(sl_member *m, uint64_t round, const sl_idset *set, sl_err *err);
/* STAY or LEAVE, to be called once a round, before the last layer's messages are sent. */
void sl_member_vote(sl_member *m, bool stay);
/* Whether messages of this chunk carry the set: the first of layer 0 does, to every expert worker.
 */
bool sl_member_needs_set(const sl_member *m, uint32_t layer, uint32_t chunk);
/* NEXT arrived. Call it when every expert worker has answered the last layer. With this member in
 * the set the round `round` begins; without it the lane is IDLE here, or JOINING with *send_join if
 * work came meanwhile. SL_ERR_PROTOCOL: not the round after this one, before the vote, or a set
 * that contradicts the vote. */
sl_status sl_member_next(sl_member *m, uint64_t round, const sl_idset *set, bool *send_join,
                         sl_err *err);
/* Back to IDLE; the caller drops the unfinished step and calls sl_member_want if there is work. */
void sl_member_reset(sl_member *m, uint64_t epoch);

#endif
