/* Inside of a gang: its ranks, what they all do at once, and the ways in which the ranks beside the
 * first are had: threads of this process (threads.c), processes of this program (processes.c and,
 * there, child.c) and processes on other machines (machines.c and, there, remote.c). For
 * src/stage/gang only. */
#ifndef SL_STAGE_GANG_INT_H
#define SL_STAGE_GANG_INT_H

#include "net/collective.h"
#include "stage/stage_int.h"

#include <sched.h>

/* A rank that does not come for so long will not come. */
#define GANG_DEADLINE_MS 600000u

typedef enum gang_job_kind {
    GANG_OPEN,
    GANG_CALL,
    GANG_RUN, /* several calls on the same rows, one after the other */
    GANG_HOST,
    GANG_READ,   /* pages of their heads, into blocks */
    GANG_WRITE,  /* and from there */
    GANG_SPREAD, /* rows between here and messages that are spread over ranks (spread.h) */
    GANG_SETTLE, /* nobody asks for those any more that are here */
    GANG_MAP,    /* memory that all have: not of threads */
    GANG_UNMAP,
    GANG_LEAVE,
} gang_job_kind;

/* A call of a run. */
typedef struct gang_step {
    sl_stage_op op; /* ATTEND, DENSE, INSIDE or ROUTE */
    uint32_t layer;
    bool shares; /* after it each rank has all of the stream */
} gang_step;

/* A row of a job's messages. */
typedef struct gang_ref {
    uint32_t message; /* or one of these: */
    uint32_t row;
} gang_ref;
#define GANG_PLAIN  (UINT32_MAX - 1) /* the row comes with the job */
#define GANG_NO_ROW UINT32_MAX

/* What all ranks do at once. Plain data, but for pointers: to the address space of all, or to
 * memory that processes share (shared.c). */
typedef struct gang_job {
    gang_job_kind kind;
    union {
        struct {
            sl_device_opts o; /* but for what is rank 0's alone */
            sl_device_spec device;
            size_t folder_bytes, isa_bytes, hosted_bytes;
        } open;
        sl_stage_call call;
        struct {
            sl_stage_call call; /* but for op and layer; with room for what routers choose */
            const gang_step *step;
            uint32_t n_steps;
            bool together;    /* all ranks do it; else it is one rank's, of a pipeline */
            uint32_t *chosen; /* [INSIDE among them][rows][top_k]; NULL: nobody asks */
            /* Of a pipeline's rank: */
            uint64_t
                before;    /* job of the rank before it, whose rows these are; 0: they come along */
            bool hands_on; /* the rank behind it gets the rows; else the answer has them */
        } run;
        struct {
            const uint8_t *hosted;
            size_t hosted_bytes;
            uint32_t max_pairs;
            bool patient;
        } host;
        struct {
            sl_stage_op op; /* PACK, UNPACK or MERGE. UNPACK of no rows, n 0: ranks begin to gather
                             * its messages, of which another one asks for rows later */
            sl_wire_format wire;
            bool cut; /* as of sl_stage_pack */
            uint32_t n, n_messages, n_plain;
            sl_mem rows, shared; /* [..][d_model], as of sl_stage_pack and sl_stage_merge */
            const uint32_t *row; /* [n] of rows; NULL: i itself */
            const sl_stage_spread *message; /* data: rank 0's own */
            const gang_ref *ref;            /* [n]; of MERGE [n][top_k] */
            const uint8_t *plain;           /* [n_plain] whole rows */
            sl_extent columns[SL_MAX_RANKS];
        } spread;
        struct {
            uint32_t page, first, n;
            float *blocks; /* of all heads */
            size_t bytes;
        } page;
        struct {
            uint32_t id;
            uint64_t delivery;
            size_t bytes;
        } map;
    };
} gang_job;

/* What became of a job at one rank. */
typedef struct gang_report {
    _Alignas(64) bool ok;
    sl_err err;         /* unless it is */
    sl_idle idle;       /* GANG_OPEN */
    sl_extent kv_heads; /* GANG_OPEN */
    sl_extent out;      /* GANG_OPEN: its columns of what O and DOWN give */
    sl_extent blocks;   /* GANG_OPEN: that it has something of */
    sl_hosting left;    /* GANG_HOST */
} gang_report;

/* What all ranks see. */
typedef struct gang_board {
    gang_job job;
    uint32_t area; /* block of memory that the job's pointers lie in: not of threads */
    gang_report report[SL_MAX_RANKS];
    _Alignas(64) uint8_t collectives[];
} gang_board;

static inline size_t gang_board_bytes(uint32_t ranks) {
    return sizeof(gang_board) + sl_coll_bytes(ranks);
}

#define GANG_TOLD 32u /* parts of the stream that are on their way after a step, at most */

/* Rows of the stream that ranks tell each other as a step leaves them, part by part, each once its
 * columns are there. */
typedef struct gang_told {
    uint32_t n;
    struct {
        uint32_t end; /* the row behind it */
        uint64_t ticket;
    } part[GANG_TOLD];
} gang_told;

/* A rank, where it computes. */
typedef struct gang_rank gang_rank;
struct gang_rank {
    sl_rank is;
    gang_board *board;
    sl_coll *coll;
    sl_device *device; /* NULL: not open */
    sl_gang link;      /* what its model meets the others by */
    /* Where ranks are apart: what the step before has told, and what the one that is done does, if
     * it shares; rows are counted from x on. */
    gang_told before, now;
    const float *x;
    bool shares;
    uint32_t threads;             /* its kernel threads; 0: its share of the worker's */
    struct gang_rail *rail;       /* its own (rail.h); NULL: rank 0's is the worker's */
    struct gang_scratch *scratch; /* of jobs with messages (spread.h); NULL: there was none yet */
    /* Called about every tick_us while a stage keeps the thread; NULL: by rank 0 what the worker
     * wants, by the others nothing. */
    void (*tick)(void *ctx);
    uint32_t tick_us;
    /* Of rank 0 where ranks are apart, as of sl_device_opts; NULL: nobody. */
    void (*routed)(void *ctx, uint32_t layer, uint32_t rows, const uint32_t *expert);
    void *routed_ctx;
    /* The job of the board as this rank reads it. */
    sl_status (*read)(gang_rank *r, gang_job *out, sl_err *err);
    /* GANG_MAP and GANG_UNMAP; NULL: nothing. */
    sl_status (*map)(gang_rank *r, const gang_job *j, sl_err *err);
    /* Another rank does not come any more, or this one cannot go on: does not return. */
    void (*lost)(gang_rank *r, const sl_err *err);
    void *ctx;
};

typedef struct gang gang;

/* How the ranks beside the first are had. */
typedef struct gang_ways {
    bool in_place; /* they see all memory of this process */
    bool apart;    /* they have memory of their own: rank 0 does alone what rows need of nobody, and
                    * calls wait to be done as runs */
    /* They wait for their first job; all or none. Sets what `own` needs, but for is. */
    sl_status (*start)(gang *g, const sl_device_opts *o, sl_err *err);
    /* Puts the job where they see it; *own: as rank 0 does it. */
    sl_status (*show)(gang *g, const gang_job *j, gang_job *own, sl_err *err);
    /* Rank 0 has done the job: returns when the others have, with their part of its results. NULL:
     * ranks meet on the board before and after it. */
    void (*hear)(gang *g, const gang_job *own);
    /* What they wrote is where the job said after this. NULL: it is. */
    void (*take_back)(gang *g, const gang_job *j);
    /* They are there no longer; told: the job to leave was shown to them. NULL-safe after a start
     * that failed. */
    void (*stop)(gang *g, bool told);
    sl_status (*take)(sl_device *d, size_t bytes, sl_mem *out, sl_err *err);
    void (*give)(sl_device *d, sl_mem m);
    void (*alone)(gang *g, const sl_stage_call *c); /* rank 0 did it by itself. NULL: no matter */
    void (*tend)(gang *g);                          /* as of sl_device_ops; NULL: nothing */
    void (*rail)(gang *g, uint32_t rank, const sl_rails_word *w); /* the same */
} gang_ways;

extern const gang_ways gang_threads, gang_processes, gang_machines;

#define GANG_WAITING (2 * SL_MAX_LAYERS)

/* Calls that wait, to be done as runs: of ranks that are apart (runs.c). */
typedef struct gang_waiting {
    sl_stage_call call[GANG_WAITING];
    gang_step step[GANG_WAITING]; /* of the run that is done */
    uint32_t n;
    uint32_t quiet; /* polls since the last came */
} gang_waiting;

struct gang {
    sl_device base;
    const gang_ways *ways;
    uint32_t n;
    gang_rank own;  /* rank 0 */
    cpu_set_t cpus; /* that the thread of rank 0 could use before it took its own, if `apart` */
    bool apart;
    bool spreads;         /* its ranks exchange rows with those of other gangs, */
    uint32_t spread_rows; /* of steps that have so many */
    gang_waiting waiting;
    uint64_t opened_ns; /* that rank 0 was in collectives until all were open */
    void *others;       /* of its ways */
};

/* ---- member.c ---- */

/* What its model meets the others by; its collectives are there. */
void gang_rank_link(gang_rank *r, bool apart);
/* Its collectives, over its board. */
sl_status gang_rank_open(gang_rank *r, const sl_coll_opts *o, sl_err *err) SL_MUST_CHECK;
void gang_rank_close(gang_rank *r); /* its device, too */
/* GANG_READ or GANG_WRITE of a device that has all of these blocks. */
static inline void gang_page_of(sl_device *d, const gang_job *j) {
    if (j->kind == GANG_READ)
        d->ops->read_page(d, j->page.page, j->page.first, j->page.n, j->page.blocks);
    else
        d->ops->write_page(d, j->page.page, j->page.first, j->page.n, j->page.blocks);
}
/* What all of them have left, with one more of them. */
static inline void gang_hosting_add(sl_hosting its, sl_hosting *left) {
    if (its == SL_HOSTING_GOES_ON) *left = SL_HOSTING_GOES_ON;
    if (its == SL_HOSTING_WAITS && *left == SL_HOSTING_DONE) *left = SL_HOSTING_WAITS;
}
/* Rows that a run has left are here, of all ranks: what is on its way until the next step needs it.
 */
void gang_rank_hear(gang_rank *r);
/* The next step needs these rows of the stream, of which each rank has its columns. */
void gang_rank_tell(gang_rank *r, float *x, uint32_t n_rows);
/* Does the job and reports it on the board. */
void gang_rank_do(gang_rank *r, const gang_job *j);
/* The caller's thread runs, with the threads that are made from here on, on the rank's own of the
 * CPUs that it may use, those of one memory node where they are enough. */
sl_status gang_take_cores(sl_rank is, uint32_t threads, sl_err *err) SL_MUST_CHECK;
/* What a rank of a pipeline opens its device with, from what the pipeline is opened with
 * (pipeline_rank.c). */
sl_status gang_pipeline_opts(sl_rank is, sl_device_opts *o, sl_err *err) SL_MUST_CHECK;
/* A rank beside the first: does what the board says until that is to leave. */
sl_status gang_rank_serve(gang_rank *r, sl_err *err) SL_MUST_CHECK;

/* ---- gang.c ---- */

/* All ranks do it. An error is of a rank that failed. One that does not come is `lost` of rank 0,
 * which does not return. */
sl_status gang_do(gang *g, const gang_job *j, sl_err *err) SL_MUST_CHECK;
/* What can only fail because somebody is missing, which ends this process. */
void gang_must_do(gang *g, const gang_job *j);
/* How long a rank polls: ranks that have no core each leave it to others at once. */
uint32_t gang_poll_ns(uint32_t ranks);

/* ---- runs.c: of ranks that are apart ---- */

/* Whether all ranks do the call as a step of a run. */
bool gang_is_step(const gang *g, const sl_stage_call *c);
/* It is done with those that follow it, in gang_run_all. */
void gang_wait(gang *g, const sl_stage_call *c);
/* The device is polled: they are through after it, unless more may come soon. */
void gang_run_some(gang *g);
/* All calls that wait are through after it, and what they left is here. */
void gang_run_all(gang *g);

#endif
