/* The expert side of schedules with barriers: what one expert worker does about the rounds of every
 * lane. It drives the lanes' barriers and, at the sequencer, their sequencers (sched/membership.h,
 * where messages and members are explained), and decides what else there is to decide: what a
 * message that comes too early waits for, what is ready and in which order it runs, which set goes
 * with the last answers, who is told what, and what dead members and those that break the rules
 * leave behind.
 *
 * A message has a place, one for each lane, member and chunk; what lies there, the driver keeps. A
 * message that was answered stays until the member's last chunk of its layer is, since later chunks
 * may refer to its rows. A member may cut a layer into fewer chunks than there are: the last one
 * says so, and those that others have run without it.
 *
 * Events go in by the functions below; what is to be sent comes out by the driver's sl_rounds_ops
 * before they return. No I/O, clock or threads; memory is taken by create, and by lanes that have
 * more rounds in flight than ever before. Thread: owner, for every function here. */
#ifndef SL_SCHED_ROUNDS_H
#define SL_SCHED_ROUNDS_H

#include "sched/membership.h"
#include "sched/watch.h"

typedef struct sl_rounds sl_rounds;

#define SL_ROUNDS_NONE UINT32_MAX

/* A member's rows of a layer's chunk, or the word that it has none. */
typedef struct sl_round_msg {
    uint32_t member; /* worker id */
    uint32_t lane, layer, chunk;
    uint64_t round;
    uint32_t rows; /* counted in sl_rounds_rows alone */
    bool ends;     /* no further chunk of the layer follows, which is not the last */
    bool stay;     /* of the last layer's last chunk: STAY, else LEAVE */
    bool with_set;
    sl_idset set; /* with_set: what it carried, borrowed during the call */
} sl_round_msg;

/* What the driver does for sl_rounds. None of them may call back into it. */
typedef struct sl_rounds_ops {
    /* `set` is in this round of the lane: ROUND_SET to expert workers, or with `open` ROUND_OPEN to
     * members that join with it. All sets are borrowed during the call. */
    void (*tell_set)(void *ctx, bool open, const sl_idset *to, uint32_t lane, uint64_t round,
                     const sl_idset *set);
    /* MEMBER_DEAD(member) to expert worker `to`. */
    void (*tell_dead)(void *ctx, uint32_t to, uint32_t member);
    /* The member broke the rules: it has to go, as if it were lost. */
    void (*refuse)(void *ctx, uint32_t member, const char *why);
    /* The message at a place, as it was given to sl_rounds_on_dispatch; its round is announced. */
    void (*recall)(void *ctx, uint32_t place, sl_round_msg *out);
    /* What lies at a place is needed no more; not answered: its sender is gone. */
    void (*drop)(void *ctx, uint32_t place, bool answered);
} sl_rounds_ops;

typedef struct sl_rounds_shape {
    uint32_t n_lanes, n_moe, chunks; /* > 0; n_moe: layers with experts */
    uint32_t self;                   /* this worker's id */
    uint64_t epoch;                  /* of the plan */
    const sl_idset *members;         /* attention workers: who may be in a round; borrowed until
                                        sl_rounds_free, not empty */
    const sl_idset *experts; /* expert workers, self among them: the lowest is the sequencer */
    bool spare;              /* others stand in for this worker: sl_barrier_bear */
    sl_rounds_ops ops;
    void *ctx;             /* of ops */
    const sl_watch *watch; /* TASK; NULL: nobody */
} sl_rounds_shape;

/* A chunk that may run: messages of the round's live members that have it, or one of them when the
 * sequencer is gone. */
typedef struct sl_round_task {
    uint32_t lane, layer, chunk;
    uint64_t round;
    uint32_t n;             /* of members; 0 when all of them died since it was ready */
    const uint32_t *member; /* [n] worker ids, ascending: whom to answer */
    const uint32_t *place;  /* [n] where their messages lie */
    const sl_idset *next;   /* NEXT(round + 1, set), which goes with every answer; NULL: none */
} sl_round_task;

sl_status sl_rounds_create(const sl_rounds_shape *shape, sl_rounds **out,
                           sl_err *err) SL_MUST_CHECK;
/* NULL-safe. Drops nothing: the driver knows what lies where. */
void sl_rounds_free(sl_rounds *r);
/* Rounds begin anew in this epoch: what still lies here is dropped, also what a task runs on, which
 * the device has no more; the dead stay dead. */
void sl_rounds_reset(sl_rounds *r, uint64_t epoch);

/* Places are 0 .. sl_rounds_places() - 1; those of a member's chunks follow each other. */
uint32_t sl_rounds_places(const sl_rounds *r);
/* lane, member and chunk as sl_rounds_check allows them. */
uint32_t sl_rounds_place(const sl_rounds *r, uint32_t lane, uint32_t member, uint32_t chunk);
bool sl_rounds_is_sequencer(const sl_rounds *r);
bool sl_rounds_is_dead(const sl_rounds *r, uint32_t worker);
/* Whether worker `src` may say who is dead: the sequencer to others, other expert workers to it. */
bool sl_rounds_may_announce(const sl_rounds *r, uint32_t src);
/* Whether what it announces counts: not of one that counts as lost by this plan, and lives. What it
 * has lost is its own. */
bool sl_rounds_heeds(const sl_rounds *r, uint32_t src);
/* Whether the member has a message here that waits for other members of its round. */
bool sl_rounds_waits(const sl_rounds *r, uint32_t member);
/* Whether what lies there waits for other workers' messages of its round alone: this one's own, if
 * it is in the round, is here. */
bool sl_rounds_awaits_others(const sl_rounds *r, uint32_t place);
/* Rows of chunks that are ready and have not begun. */
uint64_t sl_rounds_rows(const sl_rounds *r);
/* What the worker waits for when nothing is ready: the first lane that waits for some members of a
 * round while others' messages are here (*some), else the last with a round at all. false: none. */
bool sl_rounds_waiting(sl_rounds *r, uint32_t *lane, uint32_t *layer, bool *some);

/* ---- events ---- */

/* Whether such a message can be for this worker, whatever it says: to be asked before it is read.
 * SL_ERR_PROTOCOL: not from an attention worker, or a lane, layer or chunk that is not there. */
sl_status sl_rounds_check(const sl_rounds *r, const sl_round_msg *m, sl_err *err) SL_MUST_CHECK;
/* A member's rows. *place: where they lie from now on; SL_ROUNDS_NONE: with its dead sender they
 * are forgotten. SL_ERR_PROTOCOL as sl_rounds_check, sl_barrier_arrive and sl_seq_last, and for a
 * message that comes before the answer to the one at its place: its sender has to go; nothing is
 * kept. */
sl_status sl_rounds_on_dispatch(sl_rounds *r, const sl_round_msg *m, uint32_t *out,
                                sl_err *err) SL_MUST_CHECK;
/* The sequencer's word on who is in a round, at the other expert workers. SL_ERR_PROTOCOL: as
 * sl_barrier_open, or a set with others than members. */
sl_status sl_rounds_on_set(sl_rounds *r, uint32_t lane, uint64_t round, const sl_idset *set,
                           sl_err *err) SL_MUST_CHECK;
/* JOIN, at the sequencer. SL_ERR_PROTOCOL: as sl_seq_join, from no attention worker, or elsewhere.
 */
sl_status sl_rounds_on_join(sl_rounds *r, uint32_t member, uint32_t lane,
                            sl_err *err) SL_MUST_CHECK;
/* The member is dead: the sequencer says so, or at the sequencer somebody who may announce it. A
 * second notice does nothing. SL_ERR_PROTOCOL: not one of the other attention workers. */
sl_status sl_rounds_on_dead(sl_rounds *r, uint32_t member, sl_err *err) SL_MUST_CHECK;
/* The connection to the member is gone: the sequencer decides that it is dead, others tell it. */
sl_status sl_rounds_on_lost(sl_rounds *r, uint32_t member, sl_err *err) SL_MUST_CHECK;
/* Another expert worker counts as lost until the next reset: nothing that it says counts. Of the
 * sequencer: sl_rounds_on_leaderless. */
sl_status sl_rounds_on_expert_lost(sl_rounds *r, uint32_t worker, sl_err *err) SL_MUST_CHECK;
/* The sequencer is gone, elsewhere. Nobody knows any more who is in which round, so nobody is
 * waited for: each message, also those that wait here already, runs by itself from now on, until
 * the next reset. */
sl_status sl_rounds_on_leaderless(sl_rounds *r, sl_err *err) SL_MUST_CHECK;

/* ---- work ---- */

/* What has been ready longest runs from now on; false: nothing is ready. *out is borrowed until
 * sl_rounds_end, which has to be called before the next one begins. What lies at its places, and at
 * those of earlier chunks of its layer, stays until then. */
bool sl_rounds_begin(sl_rounds *r, sl_round_task *out);
/* Whether the message at this place of the running task is to be answered: its member has not gone
 * since the task began. */
bool sl_rounds_is_owed(const sl_rounds *r, uint32_t place);
/* It ran, and its members are answered. */
void sl_rounds_end(sl_rounds *r);

#endif
