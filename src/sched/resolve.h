/* FinDEP and EPS while requests run: what stages cost is measured as they run, and the solver of
 * src/plan says again and again how many lanes are open (r1), into how many chunks a step's rows go
 * (r2), whether a chunk is some of the rows or some of the experts, and the order of shared
 * experts; of EPS, whose workers have attention and experts, in how many groups experts are (N:
 * resolve_groups.c).
 *
 * One machine per attention worker, over what that one sees itself: how long its own tasks take,
 * how long an expert worker says that a task took and its rows were there, and how long the answer
 * was away beyond that: the link, where that is at its shortest. It keeps the link busy no longer
 * than the time since the answer before; what it takes beyond that is lag (plan/findep.h). No
 * costs have to be known before, so workers may be anywhere. Costs are lines through the means by
 * size; groups of experts share what a task of all of them takes, but for its launch.
 *
 * After every `window` steps the problem of the window's load is solved. What holds gives way when
 * the solver's best was faster by SL_CHOOSE_MARGIN in SL_RESOLVE_WINS windows one after the other:
 * never twice within so many. Lanes and order are chosen for all rows, chunks for steps of one size
 * (1, 2, 3..4, 5..8, ... rows), as prompts and decoding requests differ. EPS's groups are chosen by
 * the first of the workers, for all of them.
 *
 * No bit depends on what is chosen, as long as `regroup` says when a row's experts may be summed in
 * other groups, but where one depends on a step's rows anyway (docs/numbers.md). No I/O, clock or
 * threads; only create and deploy allocate. Times are microseconds of one clock. Thread: owner. */
#ifndef SL_SCHED_RESOLVE_H
#define SL_SCHED_RESOLVE_H

#include "base/status.h"
#include "base/trace.h"
#include "plan/choose.h"
#include "plan/findep.h"
#include "sched/watch.h"
#include "spec/model.h"
#include "spec/plan.h"

#define SL_RESOLVE_WINS    3u
#define SL_RESOLVE_CLASSES 16u /* of steps by rows: 1, 2, 3..4, ...; the last has all above */
#define SL_RESOLVE_TRIAL   4u  /* windows: so often two steps of EPS try other groups */

/* Tasks of one kind by size. */
typedef struct sl_resolve_class {
    double rows, us; /* means, of the latest ones more than of earlier ones */
    uint32_t n;
} sl_resolve_class;
typedef struct sl_resolve_meter {
    sl_resolve_class of[SL_RESOLVE_CLASSES];
} sl_resolve_meter;

/* Into what a step goes whose rows are of that class. */
typedef struct sl_resolve_cut {
    bool known; /* else the plan says, which was this at last */
    uint32_t chunks;
    sl_chunking chunking;
    uint32_t wins;
    double rows; /* of steps of this window... */
    uint32_t n;  /* ...and how many these are */
} sl_resolve_cut;

/* A chunk on its way. */
typedef struct sl_resolve_flight {
    uint32_t out; /* messages that are not answered */
    double entries;
    double task_us; /* of all expert workers... */
    uint32_t n;     /* ...that have answered */
} sl_resolve_flight;
typedef struct sl_resolve_message {
    uint64_t sent_us;
    uint32_t entries; /* 0: none is on its way */
} sl_resolve_message;

/* A layer of EPS whose groups are away. */
typedef struct sl_resolve_phase {
    uint64_t sent_us, first_us, last_us; /* the first group left, was answered; the last one was */
    uint32_t out, n;                     /* groups that are not answered, and those that are */
    double entries;
    double away_us; /* the longest way there and back to another worker; 0: none travels */
} sl_resolve_phase;

/* What has changed: of all (rows 0), or of steps of so many rows at most. */
typedef struct sl_resolve_change {
    uint32_t rows, lanes, chunks;
    sl_order order;
    sl_chunking chunking;
} sl_resolve_change;

typedef struct sl_resolve {
    uint32_t window; /* steps; 0: nothing is chosen */
    bool regroup, shared;
    bool eps; /* else FinDEP */
    uint32_t n_lanes, n_chunks, n_moe, n_experts, top_k;
    uint32_t memory, enough; /* tasks that a mean is of, and before anything is solved */
    uint32_t attention_workers, expert_workers;
    uint32_t self;        /* which of the latter this worker is, too; UINT32_MAX: none */
    sl_chunking chunking; /* the plan's */
    const sl_watch *watch;

    /* the choice */
    uint32_t lanes; /* open ones */
    sl_order order;
    uint32_t wins;
    sl_resolve_cut cut[SL_RESOLVE_CLASSES];
    uint64_t changes;
    sl_resolve_change change[1 + SL_RESOLVE_CLASSES]; /* [n_change] of the last window */
    uint32_t n_change;

    /* what is measured; sizes of experts and links are rows that an expert gets */
    sl_resolve_meter block, branch, expert;
    sl_resolve_meter away, link; /* there and back: in all, and what keeps the link busy; of EPS
                                  * of one group, and between the answers of two of most... */
    sl_resolve_meter span;       /* ...whose layer takes so long until all are here */
    double out_share;            /* of the rows that travel: those on their way out */
    double launch_us;  /* of an expert task: what its groups do not share; < 0: not known */
    uint32_t launches; /* tasks that it is the mean of */
    bool guessed;      /* `expert` is of groups: no task of all experts ran */
    uint32_t groups[SL_PLAN_MAX_LANES]; /* of the running step: chunks by expert, or 1 */
    bool trial;                         /* it tries its groups: those of EPS that are measured */
    uint32_t word, heard;               /* groups of the next round's steps: by this worker if it is
                                         * the first, and by that one; 0: nothing is said */
    sl_resolve_flight *flight;          /* [n_lanes][n_chunks] */
    sl_resolve_message *message;        /* [n_lanes][n_chunks][expert_workers] */
    uint64_t *answered_us;              /* [expert_workers] when the last answer came, */
    double *mean_us;                    /* and how long tasks there take */
    sl_resolve_phase phase;
    void *arrays;

    /* the window */
    uint32_t steps;
    uint64_t rows, requests, lanes_used;
} sl_resolve;

/* For a trace, without its time: of the lane with whose step the window ended. */
static inline sl_trace_event sl_resolve_event(const sl_resolve_change *c, uint32_t lane) {
    static const uint8_t whys[SL_ORDER_COUNT][SL_CHUNKING_COUNT] = {
        {SL_TRACE_WHY_ASAS_TOKENS, SL_TRACE_WHY_ASAS_EXPERTS},
        {SL_TRACE_WHY_AASS_TOKENS, SL_TRACE_WHY_AASS_EXPERTS}};
    return (sl_trace_event){.kind = SL_TRACE_CHOICE,
                            .why = whys[c->order][c->chunking],
                            .lane = sl_trace_u16(lane),
                            .group = sl_trace_u16(c->lanes),
                            .chunk = sl_trace_u16(c->chunks),
                            .rows = c->rows};
}

/* By a plan; one without `resolve` makes a machine that chooses nothing and asks for no calls. */
void sl_resolve_init(const sl_plan *p, const sl_model_spec *m, const sl_watch *watch,
                     sl_resolve *out);
/* So many workers there are from now on, of those with experts this one has the index self
 * (UINT32_MAX: it has none), and nothing is on its way. What is chosen stays, what experts and
 * links cost is forgotten. SL_ERR_NOMEM. */
sl_status sl_resolve_deploy(sl_resolve *r, uint32_t attention_workers, uint32_t expert_workers,
                            uint32_t self, sl_err *err) SL_MUST_CHECK;
void sl_resolve_free(sl_resolve *r); /* zeroed is fine */

/* Whether it chooses: else no other call of those below is needed, and none does anything. */
static inline bool sl_resolve_is_on(const sl_resolve *r) {
    return r->window > 0;
}

/* What the first of the workers says of EPS's groups: all have as many in a round, or experts would
 * run twice, for the rows of one worker and of another. It goes with who is in the next round. */
static inline uint32_t sl_resolve_word(const sl_resolve *r) {
    return r->eps && r->self == 0 ? r->word : 0;
}
/* It is heard; 0: nothing was said. False: groups that there cannot be. */
bool sl_resolve_hear(sl_resolve *r, uint32_t groups);

/* Rows that a step may have where a lane has room for max_rows. */
static inline uint32_t sl_resolve_rows(const sl_resolve *r, uint32_t max_rows) {
    return sl_resolve_is_on(r) ? SL_MAX(max_rows / r->lanes, 1u) : max_rows;
}

/* A step of the lane with so many rows is formed for a round, which would go into *chunks: says
 * what else. */
void sl_resolve_form(sl_resolve *r, uint32_t lane, uint32_t rows, uint64_t round, uint32_t *chunks,
                     sl_chunking *chunking);
/* A task of the attention side ran: of a block with experts, or its shared ones. */
void sl_resolve_block(sl_resolve *r, uint32_t rows, uint64_t us);
void sl_resolve_shared(sl_resolve *r, uint32_t rows, uint64_t us);
/* A message of so many (row, expert) pairs, with the data of so many rows, has left for the expert
 * worker with that index. */
void sl_resolve_sent(sl_resolve *r, uint32_t lane, uint32_t chunk, uint32_t expert, uint32_t pairs,
                     uint32_t rows, uint64_t now_us);
/* It was answered at now_us; its task took so long, its rows were there for so long. Answers that
 * nobody waits for are nothing. */
void sl_resolve_answered(sl_resolve *r, uint32_t lane, uint32_t chunk, uint32_t expert,
                         uint32_t task_us, uint32_t held_us, uint64_t now_us);
/* Nothing of the lane is on its way any more, or is waited for: before its next rows leave, too, as
 * others may have answered for one that is lost or spared. */
void sl_resolve_drop(sl_resolve *r, uint32_t lane);
/* A step of the lane with so many rows is over, and so many requests are here. True: something else
 * holds from now on, `change` says what. */
bool sl_resolve_step(sl_resolve *r, uint32_t lane, uint32_t rows, uint32_t requests,
                     uint64_t now_us);

#endif
