/* Inside of the coordinator: requests and their books, the workers of the plan, local spawning.
 * Everything here belongs to the engine's thread, except where a lock is named. */
#ifndef SL_ENGINE_COORD_INT_H
#define SL_ENGINE_COORD_INT_H

#include "base/clock.h"
#include "base/mem.h"
#include "engine/host/counts.h"
#include "engine/coord/engine.h"
#include "engine/measure/auto.h"
#include "engine/measure/measure.h"
#include "engine/worker/worker.h"
#include "net/net.h"
#include "plan/expense.h"
#include "sched/admit.h"
#include "sched/change.h"
#include "sched/drain.h"
#include "sched/recover.h"
#include "sched/room.h"
#include "sched/roster.h"
#include "sched/suspect.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

/* ---- requests ---- */

/* What was asked, and what was answered so far. Its state, pages and worker are in the books
 * (sl_admit) under its place. */
typedef struct sl_request {
    uint64_t id;
    uint32_t place;
    char name[65];
    sl_request_params p; /* prompt and stop point to `tokens` and `stop`, sampling and report to
                          * what is behind them */
    uint32_t *stop;
    sl_logit_bias *bias;
    uint32_t *allowed, *bad, *scored;
    uint32_t n_prompt_reported; /* highest position of the prompt that was reported */
    uint32_t *tokens;           /* prompt and generated: what it is recomputed from */
    void *arrays;               /* what stop, tokens and those behind them are in */
    uint32_t n_before;          /* generated before it was last submitted */
    uint64_t queued_us;         /* how long it waited for its first start */
    uint64_t started_us;        /* last; 0: a token was drawn since */
    uint32_t n_asked;           /* rows that were to be computed then, before one is drawn */
    sl_page_key root;           /* of keys of its pages */
    uint32_t n_found;           /* tokens of its prompt whose rows were there at its first start */
    sl_suspect suspect;         /* losses of workers that it ran beside */
    sl_status fate;             /* it ends with that when its worker has let it go; SL_OK: none */
    char fate_text[300];
    struct sl_request *chain; /* in the hash */
} sl_request;

#define SL_REQUEST_BUCKETS 1024u

typedef struct sl_ledger {
    sl_request **at; /* [cap] by place; NULL: none */
    uint32_t cap;
    sl_request *bucket[SL_REQUEST_BUCKETS]; /* by id */
} sl_ledger;

/* Copies what p points to. NULL: out of memory. */
sl_request *sl_request_create(const sl_request_params *p, uint64_t id) SL_MUST_CHECK;
void sl_request_free(sl_request *r);
/* The request has this place from now on. SL_ERR_NOMEM. */
sl_status sl_ledger_add(sl_ledger *l, sl_request *r, uint32_t place, sl_err *err) SL_MUST_CHECK;
void sl_ledger_remove(sl_ledger *l, sl_request *r);
sl_request *sl_ledger_find(const sl_ledger *l, uint64_t id);
void sl_ledger_free(sl_ledger *l); /* of an empty one */

/* ---- workers ---- */

/* A worker says that its connection with another one is gone: to be looked at a little later. */
typedef struct sl_lost_link {
    uint32_t by, other, epoch;
    uint64_t due_us;
} sl_lost_link;

/* In the order in which they were said. Zeroed: none. */
typedef struct sl_links {
    sl_lost_link *link;
    size_t n, cap;
} sl_links;

/* Its life is in the roster. */
typedef struct sl_member_worker {
    sl_conn *conn;
    uint64_t doubt_us; /* somebody asks since then whether this worker lives; 0: nobody */
    uint64_t judge_us; /* one that stands still is not judged before */
    uint32_t cramped;  /* epoch in which others had no room for its experts, as was said */
    uint64_t loss;     /* number of its last one */
    uint64_t sign;     /* number of the question that it has not answered; 0: none */
    bool keeps;        /* its KV outlives it, at this place */
    bool saves;        /* pages of it can go to a disk */
    bool measures;     /* it is asked what its stages cost, and has not said */
    bool was_asked;
    uint64_t machine; /* that it runs on, of so many cores, as it said then; 0: not known */
    uint32_t cores, threads;
    uint32_t n_looks; /* questions of live.c that are not answered */
    sl_worker_stats stats;
    sl_counts counts; /* it, stats and latest: under the engine's lock */
    sl_worker_view latest;
} sl_member_worker;

typedef enum sl_survey_phase {
    SL_SURVEY_NONE,
    SL_SURVEY_LINKS,
    SL_SURVEY_STAGES,
    SL_SURVEY_DONE, /* also where nobody is asked */
} sl_survey_phase;

/* What workers on other machines cost, asked before the plan: survey.c. */
typedef struct sl_survey {
    sl_survey_phase phase;
    sl_choose_load load; /* what is measured for */
    uint64_t began_us, most_us;
    /* links: of worker `at`; a short message, then one of long_bytes */
    uint32_t at, size, round, n_links;
    size_t long_bytes;
    uint64_t number, sent_us, sent_ns, from_us;
    bool echoes; /* that message has not come back */
    double us[SL_MEASURE_ROUNDS], half_us[2];
    uint32_t n_asked, n_measured; /* workers that are to say what their stages cost, and have */
    sl_surveyed found;
    sl_auto_report report; /* written before the engine is up, read after */
} sl_survey;

/* Local workers, started and reaped by spawn.c. */
typedef struct sl_spawned {
    sl_engine *engine;
    pthread_t thread;
    bool has_thread;
    bool of_caller; /* who started it said that it was there when that was last asked */
    pid_t pid;      /* 0: none */
    int pidfd;      /* of pid; -1: none */
    int kv_fd; /* where an attention worker's KV lies, so that the next process at this place has
                * it; 0: none */
    sl_worker_opts opts;
    _Atomic bool ended; /* the thread */
    bool is_news;       /* that it has ended */
    bool crashed;       /* its last process that ended, which is news */
    sl_status status;
    sl_err err; /* valid once ended */
} sl_spawned;

/* How ends of local workers come to be known. */
typedef struct sl_spawn_ends {
    int fd;     /* readable while a child has ended that is not reaped; -1: none */
    bool blind; /* it does not tell of all children: they are looked at from time to time */
    uint64_t next_look_us;
    _Atomic bool thread_ended; /* since the last look */
    uint32_t n_news;           /* that nobody was told */
    uint32_t n_crashes;        /* of these, which are told by themselves */
} sl_spawn_ends;

/* Another plan that somebody asks for, who keeps it until it is done. */
typedef struct sl_replan {
    sl_plan plan; /* to be taken, by those who are there; this and home: owned by who asks */
    sl_plan home; /* what was asked for */
    uint64_t timeout_us;
    const uint8_t *there; /* see sl_change_begin */
    bool breaks;
    bool done; /* under the engine's lock: */
    bool taken;
    sl_status status;
    sl_err err;
} sl_replan;

/* What somebody asks for about a worker, who keeps it until it is done. */
typedef struct sl_wish {
    sl_wish_kind kind;
    uint32_t worker, grace_ms;
    bool done; /* under the engine's lock: */
    uint32_t number;
    sl_status status;
    sl_err err;
} sl_wish;

typedef struct sl_command {
    struct sl_command *next;
    sl_request *submit; /* or NULL: */
    sl_replan *replan;  /* or NULL: */
    sl_wish *wish;      /* or NULL: */
    bool look;          /* or: */
    uint64_t cancel;
} sl_command;

/* Load of experts, and who shall host them: adapt.c. */
typedef struct sl_adapting {
    bool on;
    sl_adapt rule;
    sl_replan replan; /* the change that it asked for */
    bool changing;
    uint32_t epoch;        /* of the plan by which is counted */
    sl_expert_stats *seen; /* [n_workers][n_moe][n_experts] as last reported */
    uint64_t *seen_us;     /* [n_workers] of tasks of experts, the same */
    uint32_t *host;        /* [n_workers] */
    sl_expense cpus, gpus; /* what experts cost on either */
    uint8_t *gpu;          /* [n_workers] those that host experts on a GPU */
    void *arrays;
} sl_adapting;

/* What changes of plans cost: rehost.c. */
typedef struct sl_rehosting {
    sl_rehost rule;
    uint64_t bytes; /* that a worker gets at most by the change that is under way */
} sl_rehosting;

/* Memory of machines, and scratch for what is asked of it, each [n_workers]: room.c. */
typedef struct sl_rooming {
    uint64_t *free, *machine;
    uint32_t *added;
    uint8_t *there, *takes, *own;
    void *arrays;
} sl_rooming;

typedef struct sl_collect sl_collect;

struct sl_engine {
    sl_engine_opts o;
    sl_clock clock;
    char *model_folder, *trace_path, *program, *isa;
    char secret[SL_SECRET_MAX + 1];
    sl_plan plan;
    sl_model_spec spec;
    sl_net *net;
    sl_loop_hub *hub;
    sl_collect *collect;      /* NULL: no trace */
    sl_member_worker *worker; /* [plan.n_workers]; NULL: not started */
    sl_spawned *spawned;      /* [plan.n_workers] */
    sl_spawn_ends ends;
    uint64_t saved_bytes; /* of KV, that workers of this engine were told to save at its end */
    uint64_t spawned_us;  /* when the first of them were started */
    sl_roster roster;
    sl_change change;   /* to `plan` of... */
    sl_replan *replan;  /* ...this; NULL: it rests */
    sl_replan own;      /* what recovery asks for */
    uint64_t change_us; /* when that began */
    bool stuck;         /* the last of these was not taken in time */
    sl_recover recover;
    sl_adapting adapting;
    sl_rooming rooming;
    sl_rehosting rehosting;
    uint64_t held_us, pause_us; /* HOLD of the change that is under way; what the last one took */
    sl_drain drain;
    uint64_t show_us;           /* when others see next how workers are */
    uint64_t n_losses, n_signs; /* of blame.c and sign.c, so far */
    struct {
        uint64_t n, us;
    } rows;       /* from starts of requests to their first tokens: what a row costs */
    sl_plan home; /* of everybody: by which it started, or that was asked for since */
    uint64_t waits_since_us;
    sl_survey survey;
    bool planned;
    bool serving, stopping;
    char lost[400]; /* why it does not serve */
    sl_links links; /* that broke, as workers said */
    sl_ledger ledger;
    sl_admit admit; /* books of requests and pages; workers as in the plan */
    uint64_t next_stats_us, next_check_us;
    uint32_t seats; /* requests that all attention workers run at most */
    uint32_t max_queue;

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    sl_command *first_command, *last_command;
    uint64_t next_id;
    uint32_t n_open; /* submitted and not finished */
    bool stop;
    bool up;                /* serving, or... */
    sl_status start_status; /* ...why it could not start */
    sl_err start_err;
    sl_engine_stats stats;
    uint8_t *hosts; /* [n_moe][plan.n_workers], as in sl_engine_view */
};

/* engine.c: an engine without a thread, for a caller that owns the loop and the clock (the
 * simulation). sl_engine_step runs commands and one turn of the coordinator. */
sl_status sl_engine_create_stepped(const sl_engine_opts *o, sl_clock clock, sl_engine **out,
                                   sl_err *err) SL_MUST_CHECK;
bool sl_engine_step(sl_engine *e);
/* Within which all workers have to be ready. */
static inline uint32_t sl_engine_join_s(const sl_engine *e) {
    return e->o.join_timeout_s ? e->o.join_timeout_s : 120;
}

/* replan.c: on the engine's thread */
/* *r is done at once if the plan cannot be taken, else some steps later. */
void sl_replan_begin(sl_engine *e, sl_replan *r);
void sl_replan_step(sl_engine *e);
/* Whether READY of this worker is its answer to a change, or to one that was given up. */
bool sl_replan_asks(const sl_engine *e, uint32_t id);
/* That, UNABLE, QUIET, TAKEN. */
sl_status sl_replan_on_answer(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                              sl_err *err) SL_MUST_CHECK;
/* A change that there is ends here. */
void sl_replan_stop(sl_engine *e, sl_status status, const char *why);

/* adapt.c: on the engine's thread */
/* SL_ERR_UNSUPPORTED: nothing could move. Nothing without o.adapt. */
sl_status sl_adapting_open(sl_engine *e, sl_err *err) SL_MUST_CHECK;
void sl_adapting_close(sl_engine *e);
/* The plan that nobody has yet got another schedule. */
void sl_adapting_reschedule(sl_engine *e);
/* The worker has reported what it counted. */
void sl_adapting_note(sl_engine *e, uint32_t id);
void sl_adapting_step(sl_engine *e);

/* room.c: on the engine's thread. What is refused is SL_ERR_LIMIT, with both figures. */
sl_status sl_rooming_open(sl_engine *e, sl_err *err) SL_MUST_CHECK;
void sl_rooming_close(sl_engine *e);
/* What workers' machines have left by their last reports; borrowed until the next look. */
sl_room sl_rooming_look(sl_engine *e);
/* A worker has reported, for the first time since it came or again. */
void sl_rooming_heard(sl_engine *e, uint32_t id, bool first);
/* Whether those who stay have the memory for what worker `id` leaves to them. */
sl_status sl_rooming_leave(sl_engine *e, uint32_t id, sl_err *err) SL_MUST_CHECK;
/* Whether this machine has it for what `home` gives worker `id`, if it is to be started here. */
sl_status sl_rooming_come(sl_engine *e, const sl_plan *home, uint32_t id,
                          sl_err *err) SL_MUST_CHECK;
/* Whether those in there[] have the memory for what the others leave to them. */
sl_status sl_rooming_among(sl_engine *e, const uint8_t *there, sl_err *err) SL_MUST_CHECK;
/* A loss leads to plan `to`: the log says what does not fit. */
void sl_rooming_tell(sl_engine *e, const sl_plan *to);

/* rehost.c: on the engine's thread */
/* How long the experts take to move of which sl_rooming_leave or _among, or a change, was asked
 * last. */
uint64_t sl_rehosting_us(const sl_engine *e);
/* How long those of all who are not in there[]; SL_REHOST_NEVER: there is no room, or no host. */
uint64_t sl_rehosting_among_us(sl_engine *e, const uint8_t *there);
/* A change to this plan begins; it was taken, in so long. */
void sl_rehosting_begin(sl_engine *e, const sl_plan *to);
void sl_rehosting_end(sl_engine *e, uint64_t took_us);

/* crew.c: on the engine's thread */
sl_status sl_crew_on_open(void *engine, sl_conn *c, const sl_hello *peer,
                          sl_err *err) SL_MUST_CHECK;
void sl_crew_on_down(void *engine, sl_conn *c, sl_status why, const char *text);
/* The first READY of worker `id`: it has what the plan gives it. */
sl_status sl_crew_on_ready(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                           sl_err *err) SL_MUST_CHECK;
/* What worker `you` is told of a plan, which sl_plan_print has printed. joins: it is its first one,
 * and the others run. NULL: out of memory. */
sl_buf *sl_plan_message(sl_engine *e, const char *plan, uint32_t you, bool joins) SL_MUST_CHECK;
/* Everybody has joined, for the first time: they are told the plan. */
void sl_crew_send_plans(sl_engine *e);
/* The worker is in the plan that holds. */
void sl_crew_serve(sl_engine *e, uint32_t id);
/* Ends whoever has this place, or is on its way to it. */
void sl_crew_drop(sl_engine *e, uint32_t id);
/* Of local workers. */
void sl_crew_notice_ends(sl_engine *e);

/* survey.c: on the engine's thread, once all have joined and before they are told the plan */
/* Whether nothing is left to ask; the plan has the schedule that was chosen then. */
bool sl_survey_step(sl_engine *e);
/* ECHO and COSTS of worker `id`. */
sl_status sl_survey_on_echo(sl_engine *e, uint32_t id, const sl_wire_header *h,
                            sl_err *err) SL_MUST_CHECK;
sl_status sl_survey_on_costs(sl_engine *e, uint32_t id, sl_span payload, sl_err *err) SL_MUST_CHECK;

/* blame.c: requests that kill workers (sched/suspect.h) */
/* Worker `id` is lost: which requests were in flight there, if it served. */
void sl_blame_note(sl_engine *e, uint32_t id, bool served);
/* Its process crashed, which may be heard of after it was lost. */
void sl_blame_crash(sl_engine *e, uint32_t id);
/* Another token of a request is known. */
void sl_blame_token(sl_engine *e, sl_request *r);

/* sign.c: on the engine's thread */
/* A suspect starts alone: whoever serves is asked for a sign of life (sl_member_worker.sign). */
void sl_sign_ask(sl_engine *e);
/* The CLOCK answers such a question; what follows of it. SL_ERR_PROTOCOL: nobody asked that. */
bool sl_sign_is(const sl_wire_header *h);
sl_status sl_sign_on_answer(sl_engine *e, uint32_t id, const sl_wire_header *h,
                            sl_err *err) SL_MUST_CHECK;

/* stay.c: on the engine's thread */
/* The request is sent to a worker; a token of it has come. */
void sl_stay_note_start(sl_engine *e, sl_request *r);
void sl_stay_note_token(sl_engine *e, sl_request *r);
/* Worker `id`, closed in the books, is gone: its requests stay, or wait again. */
void sl_stay_requeue(sl_engine *e, uint32_t id);
/* If it stays, it waits like others from now on. */
void sl_stay_end(sl_engine *e, const sl_request *r);
/* KV of worker `id` is not there any more: who stays for it waits like others. */
void sl_stay_release(sl_engine *e, uint32_t id);
/* For whom it is sooner, goes on elsewhere. */
void sl_stay_look(sl_engine *e);

/* copies.c: on the engine's thread */
/* Another plan holds: who keeps copies for whom. */
void sl_copying_pair(sl_engine *e);
/* SL_ADMIT_COPY: who is to fetch hears of it. */
void sl_copying_tell(sl_engine *e, sl_request *r, const sl_admit_decision *d);
/* KV_HERE of worker `id`. */
sl_status sl_copying_on_here(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                             sl_err *err) SL_MUST_CHECK;

/* prefix.c: on the engine's thread */
/* The request has a place in the books: they know its tokens from now on. SL_ERR_NOMEM. */
sl_status sl_prefix_know(sl_engine *e, sl_request *r, sl_err *err) SL_MUST_CHECK;
/* More of what it asked about its prompt was reported. */
void sl_prefix_note_report(sl_engine *e, const sl_request *r);
/* KV_KEPT of worker `id`. */
sl_status sl_prefix_on_kept(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                            sl_err *err) SL_MUST_CHECK;

/* The worker is about to be told to stop: before that, what is cached there goes to its disk, if it
 * has one; how many bytes that may be. */
uint64_t sl_prefix_save(sl_engine *e, uint32_t id);
/* How long a worker may take for so many bytes; 0: nothing is to be saved. */
uint32_t sl_prefix_save_ms(uint64_t bytes);

/* links.c: nothing if it is known. SL_ERR_NOMEM. */
sl_status sl_links_note(sl_links *l, sl_lost_link link, sl_err *err) SL_MUST_CHECK;
/* What worker `by` said was said by another process. */
void sl_links_forget(sl_links *l, uint32_t by);
/* The first one that is due is taken out. False: none is. */
bool sl_links_take(sl_links *l, uint64_t now_us, sl_lost_link *out);
void sl_links_free(sl_links *l);

/* recover.c: on the engine's thread */
sl_status sl_recover_open(sl_engine *e, sl_err *err) SL_MUST_CHECK;
/* LOST of worker `id`, by the plan of that epoch. */
sl_status sl_recover_on_link(sl_engine *e, uint32_t id, uint32_t epoch, sl_span payload,
                             sl_err *err) SL_MUST_CHECK;

void sl_recover_step(sl_engine *e);
/* Whether every expert has a host that takes part in the plan that holds, other than this worker.
 */
bool sl_recover_is_covered(const sl_engine *e, uint32_t id);

/* hedge.c: on the engine's thread */
/* SLOW or DOUBT of worker `id`, by the plan of that epoch. */
sl_status sl_hedge_on_word(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                           sl_err *err) SL_MUST_CHECK;
/* Workers that somebody has doubts about. */
void sl_hedge_step(sl_engine *e);

/* drain.c: on the engine's thread */
/* *w is done at once: what follows is seen at the worker. */
void sl_drain_begin(sl_engine *e, sl_wish *w);
void sl_drain_step(sl_engine *e);

/* live.c: on the engine's thread */
/* Another plan holds: what others see of it. */
void sl_live_on_plan(sl_engine *e);
/* Workers are asked what they did last. */
void sl_live_ask(sl_engine *e);
/* TRACE of worker `id`, of whom that was asked. */
sl_status sl_live_on_trace(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                           sl_err *err) SL_MUST_CHECK;

/* coord.c: on the engine's thread */
sl_status sl_coord_start(sl_engine *e, sl_err *err) SL_MUST_CHECK;
/* Progress, admission, periodic work; false: nothing came. */
bool sl_coord_step(sl_engine *e);
void sl_coord_shutdown(sl_engine *e); /* ends requests, tells the workers to stop */
void sl_coord_command(sl_engine *e, sl_command *c);

/* What the books have of a request; until another one is submitted. */
static inline const sl_admit_request *sl_request_books(const sl_engine *e, const sl_request *r) {
    return &e->admit.request[r->place];
}

/* ending.c: the last event of a request; gives its pages back and frees it. */
void sl_coord_finish(sl_engine *e, sl_request *r, sl_finish how, sl_status status,
                     const char *text);
/* The same with the token that it ends with; last.n is 0: with none. */
void sl_coord_finish_with(sl_engine *e, sl_request *r, sl_finish how, sl_request_event last);
/* The same for one that is in no books: it cannot even wait. */
void sl_coord_refuse(sl_engine *e, sl_request *r, sl_status status, const char *text);

/* admit.c: carries out what the books decide. */
void sl_coord_admit(sl_engine *e);
void sl_coord_cancel(sl_engine *e, uint64_t id); /* unknown: it has ended */
/* Its worker is to let go of it: it goes on later, or elsewhere. */
void sl_coord_preempt(sl_engine *e, const sl_request *r, uint32_t worker);
/* Nobody serves any more: all requests that run, wherever, */
void sl_coord_fail_running(sl_engine *e, const char *why);
/* and all that wait. */
void sl_coord_fail_waiting(sl_engine *e, const char *why);

/* collect.c: --trace. The on_* calls take what workers answered. */
sl_status sl_collect_create(const char *path, uint32_t n_workers, sl_collect **out,
                            sl_err *err) SL_MUST_CHECK;
void sl_collect_free(sl_collect *c);
void sl_collect_ready(sl_engine *e, uint32_t id);
sl_status sl_collect_on_clock(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                              sl_err *err) SL_MUST_CHECK;
sl_status sl_collect_on_trace(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                              sl_err *err) SL_MUST_CHECK;
/* Takes the events of all workers that are there and writes the file. Drives the net itself: the
 * engine's thread has ended. Not SL_OK: there is none. */
sl_status sl_collect_finish(sl_engine *e, sl_err *err) SL_MUST_CHECK;

/* spawn.c */
sl_status sl_spawn_start(sl_engine *e, sl_err *err) SL_MUST_CHECK;
/* A local worker that has ended, or UINT32_MAX: each end is told once, whoever noticed it first.
 * Children's ends wake the net's wait. Without any: at most one system call. */
uint32_t sl_spawn_next_ended(sl_engine *e);
/* One whose process crashed, or UINT32_MAX; each crash is told once. */
uint32_t sl_spawn_next_crashed(sl_engine *e);
/* Why a local worker ended, valid until it is started again. NULL: it has not, or nobody knows. */
const char *sl_spawn_why(sl_engine *e, uint32_t id);
/* Another thread or process for a place that was given up. Its last process, if that is still
 * there, is killed, which blocks for some ms; its end, if it was not told yet, will not be.
 * SL_ERR_AGAIN: the last one has not ended (a thread ends when it likes). SL_ERR_UNSUPPORTED:
 * workers are started by somebody else. SL_ERR_IO, SL_ERR_NOMEM: there is none. After these two and
 * AGAIN it may be tried again. */
sl_status sl_spawn_again(sl_engine *e, uint32_t id, sl_err *err) SL_MUST_CHECK;
/* Its process or thread has not ended. */
bool sl_spawn_lives(sl_engine *e, uint32_t id);
/* Nobody needs what is in its pages any more: who comes in its place has new ones. */
void sl_spawn_drop_kv(sl_engine *e, uint32_t id);
/* Ends a worker that hangs, if it is a child: sl_spawn_next_ended tells. */
void sl_spawn_kill(sl_engine *e, uint32_t id);
/* Waits for local workers, kills processes that do not leave within grace_ms. */
void sl_spawn_stop(sl_engine *e, uint32_t grace_ms);

#endif
