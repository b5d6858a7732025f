/* Decisions of the state machines of this folder, for whoever watches: plain values, told when they
 * are taken. Each machine has a `watch`, NULL where nobody does; then telling costs a test of that.
 * Engine and simulator drive the same machines, so what one says can be held against what the other
 * says, one by one (tests/decide). Thread: of the machine. */
#ifndef SL_SCHED_WATCH_H
#define SL_SCHED_WATCH_H

#include <stddef.h>
#include <stdint.h>

#define SL_DECISION_VALUES 6u

/* Kind, and what its values say: as many names as there are values, by '|'. Times are in
 * microseconds of the driver's clock, and first. */
#define SL_DECISIONS(X)                                                                            \
    /* the coordinator: sl_admit_kind */                                                           \
    X(ADMIT, "us|what|request|worker|page|starts")                                                 \
    /* an attention worker */                                                                      \
    X(SLOT, "lane|slot|given|pages")                                                               \
    X(MOVE, "lane|slot|to_lane|to_slot")             /* a request goes on in another lane */       \
    X(CHOICE, "us|rows|lanes|chunks|order|chunking") /* sched/resolve.h; rows 0: of all */         \
    X(STEP, "us|lane|rows|decoding|parts|cut")                                                     \
    X(STEP_PART, "slot|done|rows|sample") /* of STEP, ENTER: as many as there are parts */         \
    X(TURN, "kind|lane|layer")            /* sl_turn_kind */                                       \
    X(HEAD, "lane|kind|first|n|rows")     /* sl_head_kind */                                       \
    X(ENTER, "us|parts|free")             /* aep: parts enter block 0 */                           \
    X(BATCH, "layer|parts|rows|ended|wave")                                                        \
    X(BATCH_PART, "slot|rows")                                                                     \
    /* an expert worker */                                                                         \
    X(TASK, "lane|layer|chunk|round|members|rows")                                                 \
    X(MEMBER, "worker")                                                                            \
    X(QUEUE, "layer|groups|rows|seen")                                                             \
    X(GROUP, "expert|rows")

typedef enum sl_decision_kind {
#define SL_DECISION_KIND(id, values) SL_DECISION_##id,
    SL_DECISIONS(SL_DECISION_KIND)
#undef SL_DECISION_KIND
        SL_DECISION_KINDS
} sl_decision_kind;

typedef struct sl_decision {
    sl_decision_kind kind;
    uint64_t value[SL_DECISION_VALUES]; /* 0 where the kind has fewer */
} sl_decision;

/* Borrowed by the machines that tell it. */
typedef struct sl_watch {
    void (*saw)(void *ctx, const sl_decision *d);
    void *ctx;
} sl_watch;

/* sl_watch_tell(w, STEP, us, lane, ...) */
#define sl_watch_tell(w, id, ...)                                                                  \
    do {                                                                                           \
        const sl_watch *watch_ = (w);                                                              \
        if (watch_) watch_->saw(watch_->ctx, &(sl_decision){SL_DECISION_##id, {__VA_ARGS__}});     \
    } while (0)

#endif
