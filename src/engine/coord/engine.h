/* The coordinator: requests in, tokens out.
 *
 * It owns the request ledger, the page ledger and the plan; it starts or awaits workers, sends them
 * requests, and hands their tokens to callbacks. It is never on the token path between attention
 * and expert workers. One thread of its own drives it. Thread: sl_engine_* any, unless said;
 * callbacks run on the engine's thread and must not block. */
#ifndef SL_ENGINE_ENGINE_H
#define SL_ENGINE_ENGINE_H

#include "base/progress.h"
#include "base/shared.h"
#include "base/span.h"
#include "base/status.h"
#include "base/trace.h"
#include "engine/host/stats.h"
#include "engine/measure/predicted.h"
#include "net/net.h"
#include "sched/adapt.h"
#include "spec/model.h"
#include "spec/plan.h"
#include "stage/stage.h"

typedef struct sl_engine sl_engine;

/* How local workers run. */
typedef enum sl_spawn {
    SL_SPAWN_THREADS,   /* in this process over "loop" */
    SL_SPAWN_PROCESSES, /* children of this process: killing one hurts nobody else */
    SL_SPAWN_NONE,      /* the plan's workers join by themselves */
    SL_SPAWN_CALLER,    /* they are the caller's: sl_spawner */
} sl_spawn;

/* A caller who makes workers that the engine starts and kills like processes. On the engine's
 * thread. */
typedef struct sl_spawner {
    bool (*start)(void *ctx, uint32_t id);    /* one for this place; false: there is none */
    void (*kill)(void *ctx, uint32_t id);     /* ends who has the place, now or later */
    bool (*is_there)(void *ctx, uint32_t id); /* somebody was started who has not ended */
    void *ctx;
} sl_spawner;

typedef struct sl_engine_opts {
    const char *model_folder;
    sl_plan plan;          /* roles, lanes, schedule, numerics, limits (spec/plan.h) */
    const char *transport; /* "loop", "shm", "tcp" */
    sl_spawn spawn;
    sl_spawner spawner; /* for SL_SPAWN_CALLER */
    const char *host;   /* fabric bind address of the coordinator */
    uint16_t port;
    sl_span secret;         /* empty with local workers: a random one is made */
    const char *program;    /* path of this program, for SL_SPAWN_PROCESSES */
    const char *isa;        /* as of sl_kernels_select; NULL: its base */
    const char *trace_path; /* NULL: none; else every worker records, sl_engine_free writes it */
    uint64_t trace_events;  /* most that one worker keeps; 0: SL_TRACE_EVENTS */
    uint64_t delay_seed;    /* loop: seeded delays and reorderings of up to delay_us */
    uint32_t delay_us;
    double silence_limit_s;     /* see sl_net_opts; 0: its default */
    sl_net_when sums, encrypt;  /* see sl_net_opts */
    bool windows;               /* of local workers; see sl_net_opts */
    uint32_t join_timeout_s;    /* for all workers of the plan to be ready */
    uint32_t max_queue;         /* requests that may wait to run; 0: 4096 */
    double queue_timeout_s;     /* how long one may wait to run the first time; 0: for ever */
    double patience_s;          /* how long requests wait while lost workers are replaced; 0: 30 */
    sl_predicted predicted;     /* of the plan's schedule: see sl_engine_stats */
    bool choose;                /* the schedule, from what workers and links are found to cost... */
    uint32_t auto_requests;     /* ...for so many requests at once; 0: all there is room for */
    const sl_adapt_opts *adapt; /* NULL, or: experts move as their load asks (sched/adapt.h) */
    sl_stage_cost expert_cost;  /* with adapt: of SL_COST_EXPERT; all zero: not known */
    uint64_t expert_bytes;      /* of one expert of one block; 0: devices without weights */
    uint64_t adapt_memory;      /* most bytes that experts and KV that move on purpose take on a
                                   machine; 0: what is free */
    sl_device_maker device;     /* of workers that are threads; zeroed: as the plan says */
    const char *kv_disk;        /* NULL, or: cached KV pages outlive the workers in this folder
                                   (format/kv_folder.h), of those that are started here... */
    uint64_t kv_disk_bytes;     /* ...at most so many of each; 0: as many as it has pages */
    bool (*give_up)(void);   /* NULL, or asked now and then while waiting for them: true ends it */
    sl_progress_fn progress; /* NULL, or told meanwhile how many workers of the plan are ready */
    void *progress_ctx;
} sl_engine_opts;

/* Starts workers and waits until every one is ready, or says which is missing. Copies what it
 * keeps. */
sl_status sl_engine_create(const sl_engine_opts *o, sl_engine **out, sl_err *err) SL_MUST_CHECK;
/* Cancels what runs, stops the workers it started, joins threads, writes the trace that was asked
 * for. Whatever it returns, `e` is gone; not SL_OK: there is no trace. NULL-safe. */
sl_status sl_engine_close(sl_engine *e, sl_err *err) SL_MUST_CHECK;
/* The same for one whose trace no longer counts: that it is missing is logged. */
void sl_engine_free(sl_engine *e);
const sl_model_spec *sl_engine_spec(const sl_engine *e);
/* With `choose`: what was chosen and why, and *plan's schedule becomes that. Once it serves. */
struct sl_auto_report; /* engine/measure/auto.h */
void sl_engine_chosen(sl_engine *e, struct sl_auto_report *out, sl_plan *plan);

/* What happens to a request; `n` tokens at `tokens` are borrowed for the call. Its last token and
 * its end are one event, so that whoever notes one has noted both. */
typedef struct sl_request_event {
    uint64_t request;
    const uint32_t *tokens;
    uint32_t n;
    /* With logprobs asked for: what each token comes with, [n][sl_reported]; else NULL. Borrowed
     * for the call. */
    const sl_logprob *logprobs;
    /* Not 0: no new token, but what was asked about the prompt's token at this position. They come
     * in order, once each, before the first new token. */
    uint32_t prompt_position;
    uint64_t made_us;    /* when the tokens were produced, on their worker's monotonic clock */
    uint64_t queued_us;  /* from submission to its first start, or so far */
    uint32_t n_found;    /* tokens of the prompt whose rows were there at its first start */
    sl_finish finish;    /* not NONE: the last event of this request */
    sl_status status;    /* with SL_FINISH_ERROR: why */
    const char *message; /* with SL_FINISH_ERROR, else NULL; borrowed for the call */
} sl_request_event;

#define SL_SALT_BYTES 32u

typedef struct sl_request_params {
    const char *name;       /* for log lines, or NULL; copied, at most 64 bytes */
    const uint32_t *prompt; /* >= 1 ids, each < vocab; copied */
    uint32_t n_prompt;
    uint32_t max_tokens;  /* >= 1 */
    sl_sampling sampling; /* what it points to is copied */
    bool ignore_eos;
    bool logprobs;        /* events carry log-probabilities */
    bool prompt_logprobs; /* with logprobs: those of the prompt from its second token on, too */
    sl_report report;     /* with logprobs: what a token comes with; ids are copied */
    const uint32_t *stop; /* further ids that end generation; copied */
    uint32_t n_stop;      /* <= SL_MAX_STOP_IDS */
    uint32_t min_tokens;  /* <= max_tokens: so many come before an end is drawn */
    /* NULL, or what the answer is to be like (sl_grammar_of_shape), held by the request. Neither
     * with ignore_eos nor with min_tokens: where it may end the shape says. */
    sl_shared *shape;
    /* Rows of full KV pages are computed once for all requests that share, and begin with the same
     * tokens and have the same salt, which says whose they are. One that does not share has a salt
     * that no other request has, or nobody else of those who share: of its pages others know
     * nothing, and it goes on with them alone. */
    bool shares;
    uint8_t salt[SL_SALT_BYTES];
    /* It was accepted, and perhaps begun, by a coordinator that is gone: it is never turned away
     * for want of a place or of time, and goes on behind what that one heard of it. */
    bool again;
    uint32_t n_prompt_reported; /* prompt_logprobs: of so many tokens from the second on */
    const uint32_t *drawn;      /* tokens that it drew, copied; they count in max_tokens */
    uint32_t n_drawn;           /* < max_tokens */
    void (*on_event)(void *ctx, const sl_request_event *ev);
    /* NULL, or: logits [n][vocab] of positions first.. as they are computed (prompt and generated).
     */
    void (*on_logits)(void *ctx, uint64_t first, uint32_t n, const float *logits);
    void *ctx; /* must stay valid until the last event */
} sl_request_params;

/* Queues a request. Refuses at once (no event follows): SL_ERR_ARG for bad ids or ranges,
 * SL_ERR_LIMIT when n_prompt + max_tokens - 1 positions exceed the context or the page pool,
 * SL_ERR_OVERLOADED when the queue is full, SL_ERR_WORKER_LOST when the plan's workers are not all
 * there. A request that finds the queue full a little later, or waits in it longer than
 * queue_timeout_s, ends with SL_ERR_OVERLOADED. */
sl_status sl_engine_submit(sl_engine *e, const sl_request_params *p, uint64_t *request,
                           sl_err *err) SL_MUST_CHECK;
/* The request's last event (finish STOP, after the tokens already on their way are dropped) follows
 * soon; unknown or finished ids are ignored. */
void sl_engine_cancel(sl_engine *e, uint64_t request);

/* The running deployment takes another plan: the same workers, schedule and limits, other hosts of
 * experts (SL_ERR_UNSUPPORTED names what else differs; addresses and the epoch are not read).
 * Requests go on: they pause for the steps in flight to end and for workers to agree. Returns when
 * it is taken, or given up and nothing has changed: SL_ERR_TIMEOUT when workers were not ready and
 * quiet within timeout_ms, SL_ERR_INFEASIBLE when one cannot host what it should, SL_ERR_AGAIN when
 * another plan is being taken. SL_ERR_WORKER_LOST: with an expert worker the service is gone. Not
 * from a callback. */
sl_status sl_engine_replan(sl_engine *e, const sl_plan *plan, uint32_t timeout_ms,
                           sl_err *err) SL_MUST_CHECK;

/* What can be asked about a worker while the deployment serves (sched/drain.h). */
typedef enum sl_wish_kind {
    SL_WISH_LEAVE, /* it is drained: its requests end or go on elsewhere, others get its experts */
    SL_WISH_RESTART, /* the same, then another one comes in its place */
    SL_WISH_RETURN,  /* a drained one comes, or one that is about to leave stays */
    SL_WISH_KILL,    /* its process ends at once, as by a fault: recovery does the rest */
} sl_wish_kind;

/* Asks for it. grace_ms: how long requests may end where they are, until they go on elsewhere.
 * *number is that of the wish: what becomes of it is seen at the worker (sl_worker_stats). Errors:
 * as sl_drain_leave and sl_drain_return; SL_ERR_UNSUPPORTED: one to be killed is no process of this
 * engine's; SL_ERR_CANCELLED: the server stops. Waits for the engine's
 * thread, not for what was asked. Not from a callback. */
sl_status sl_engine_wish(sl_engine *e, sl_wish_kind kind, uint32_t worker, uint32_t grace_ms,
                         uint32_t *number, sl_err *err) SL_MUST_CHECK;

typedef enum sl_worker_life {
    SL_WORKER_JOINING, /* it is awaited or gets ready */
    SL_WORKER_SERVING,
    SL_WORKER_DRAINING, /* it is asked to leave */
    SL_WORKER_DRAINED,  /* it has left, and nobody is wanted in its place */
    SL_WORKER_FREE,     /* nobody was wanted there yet: the deployment may grow by it */
    SL_WORKER_LOST,
} sl_worker_life;

/* One worker as last reported (about twice a second). Times in microseconds since its start. */
typedef struct sl_worker_stats {
    uint32_t id, roles;
    bool prefill; /* of the side for prompts */
    bool alive;
    sl_worker_life life;
    uint32_t running;           /* requests */
    uint32_t pages, pages_free; /* of KV, those that are... */
    uint32_t pages_cached;      /* ...cached among them */
    uint32_t wish;              /* number of the last one; 0: none */
    bool wish_done;             /* it is over, and how: */
    sl_status wish_status;
    char wish_error[200];
    int64_t pid; /* -1: a thread or remote */
    char name[64];
    uint64_t attention_rows, expert_rows, rounds, tokens;
    uint64_t tokens_forced;          /* of tokens: the shape of their answer alone decided them */
    uint64_t guesses, guesses_right; /* rows of what might be said next; those that were right */
    uint64_t sent_bytes, received_bytes, sent_messages, received_messages;
    uint64_t execute_us, pack_us, send_us, poll_us, wait_us, sleep_us, wall_us;
    uint64_t cpu_us; /* of its owner thread: the fabric's, where execution is emulated */
    uint64_t rows_created, rows_merged, rows_cancelled, rows_lost, rows_stale;
    uint64_t memory_free, machine; /* bytes that are left there; which one it is */
    uint64_t rows_reissued;        /* sent to another expert worker, as theirs was lost */
    uint64_t rows_late;            /* that came when another answer had counted */
    uint64_t again_asked;          /* of answers, asked of two: counted, late, lost or out */
    uint64_t again_counted, again_lost, again_out;
    uint64_t kv_loaded, kv_saved, kv_damaged; /* KV pages from the disk, to it, and not as they
                                                 were written */
    uint64_t choices;          /* of the schedule, made anew while it runs (sched/resolve.h) */
    uint64_t striped_messages; /* sent in stripes, one a rank; and of their bytes... */
    uint64_t rail_bytes;       /* ...those that ranks other than the first sent */
    uint64_t put_messages;     /* sent by windows (net/window.h) */
    uint64_t device_bytes;     /* of rows, sent from device to device and in no message */
    uint64_t expert_us;        /* that its device had tasks of experts */
    uint64_t device_free;      /* bytes of experts that find room on its device; UINT64_MAX: its
                                  machine's memory has them */
    uint64_t ranks_us;         /* in calls that ranks make together, nearly all of execute_us */
    uint64_t steps_given_up;   /* done again from their beginning */
    uint64_t prompt_rows;      /* of all prompts that are under way now... */
    uint64_t prompt_rows_done; /* ...and how many of them are computed */
    uint64_t batch[SL_BATCH_BUCKETS]; /* calls by rows of one expert */
} sl_worker_stats;

/* Experts that move while serving; zero without sl_engine_opts.adapt. */
typedef struct sl_adapt_stats {
    uint64_t changes, refused, failed; /* taken; did not fit into memory; given up */
    double imbalance;     /* what steps wait for experts over the least that they could, lately */
    double before, after; /* the same before the last change, and as it was predicted */
    double pause_s;       /* of all streams, by the last change */
} sl_adapt_stats;

/* What one recovery cost. */
typedef struct sl_pause {
    uint64_t ended_us; /* by the engine's clock */
    double s;          /* that requests waited */
    char why[96];      /* who was lost last, and how */
} sl_pause;
#define SL_PAUSES_KEPT 8u

typedef struct sl_engine_stats {
    uint32_t running, waiting;
    uint64_t pages_total, pages_used; /* by requests; beside these... */
    uint64_t page_copies;             /* ...so many are copies, which give way */
    uint64_t
        pages_cached; /* ...and in so many is what requests may begin with; the others are... */
    uint64_t pages_free;
    uint64_t pages_evicted;              /* so far: cached ones whose page somebody wanted */
    uint64_t cached_asked, cached_found; /* so far: tokens of requests that looked for cached pages,
                                            and those of them that they found */
    uint64_t pages_copied, copies_failed; /* so far: that came, and that could not be had */
    uint64_t prompt_tokens, generated_tokens;
    uint64_t finished_stop, finished_length, finished_error, finished_cancelled, preempted;
    uint64_t rejected_full, rejected_late; /* no place in the queue; too long in it */
    bool serving;                          /* every worker of the plan is ready */
    bool recovering;                       /* a lost worker is made good; requests wait */
    char lost[160];                        /* while recovering: who was lost last, and why */
    uint64_t lost_workers, restarted_workers;
    uint64_t hedged_workers;   /* times that one was left out, as others waited for it too long */
    uint64_t rehosted_workers; /* of these: others had to map what it hosted */
    uint32_t n_left_out;       /* that live and are left out for a while, whatever the reason */
    uint64_t drained_workers, joined_workers; /* so far, on purpose */
    uint32_t n_drained;                       /* that are away on purpose */
    uint64_t handed;    /* times that a request went on elsewhere, its prompt being computed */
    uint64_t moved;     /* times that a request went on elsewhere, its worker being drained */
    uint64_t requeued;  /* times that a request went on elsewhere, its worker being lost */
    uint64_t rows_kept; /* of requests that started again, and were there */
    uint64_t rows_recomputed; /* the same, and were not */
    double longest_pause_s;   /* of all recoveries, as requests notice it */
    sl_adapt_stats adapt;
    sl_schedule schedule; /* of the plan, with what it is made of */
    uint32_t lanes, chunks;
    uint32_t epoch; /* of the plan that holds */
    bool changing;  /* another one is being taken */
    sl_predicted predicted;
    bool as_predicted; /* the plan that holds has the workers for which that was */
    uint64_t n_pauses; /* recoveries so far for which requests waited, and the last of them: */
    sl_pause pause[SL_PAUSES_KEPT]; /* the i-th is at i % SL_PAUSES_KEPT, i < n_pauses */
    uint32_t n_workers;
} sl_engine_stats;
void sl_engine_stats_get(sl_engine *e, sl_engine_stats *out);

/* As last reported: each worker, and sums over all of them by layer and expert. */
typedef struct sl_engine_detail {
    uint32_t n_workers, n_layers, n_experts, n_expert_workers;
    sl_worker_stats *worker; /* [n_workers] by id */
    sl_layer_stats *layer;   /* [n_layers] */
    uint64_t *most_rows;     /* [n_layers]: rows of the expert worker with the most */
    sl_expert_stats *expert; /* [n_experts], of all layers */
    void *arrays;            /* what they are all in */
} sl_engine_detail;
sl_status sl_engine_detail_get(sl_engine *e, sl_engine_detail *out, sl_err *err) SL_MUST_CHECK;
void sl_engine_detail_free(sl_engine_detail *d);

/* What one worker did in the last moments before it was asked. */
typedef struct sl_worker_view {
    uint64_t taken_ns; /* when it answered, by sl_now_ns; 0: it has not yet */
    bool same_clock;   /* else its times are moved so that they end at taken_ns */
    uint32_t n;
    sl_trace_event *event; /* [n], as the worker wrote them; times by sl_now_ns */
} sl_worker_view;

#define SL_VIEW_NS     200000000u /* how far back */
#define SL_VIEW_EVENTS 4096u      /* of one worker; the latest */

typedef struct sl_engine_view {
    uint32_t n_workers, n_moe, n_experts;
    sl_worker_view *worker; /* [n_workers] by id */
    uint64_t *expert_rows;  /* [n_moe][n_experts], of all workers, as last reported */
    uint8_t *hosts;         /* [n_moe][n_workers]: 1 for those that host experts of the block */
    uint32_t sequencer;     /* whose word makes a round: n_workers where nobody serves experts */
    void *arrays;           /* what they are in */
    sl_trace_event *events;
} sl_engine_view;

/* Asks workers what they did last; their answers come some ms later. One that was asked records
 * for three seconds, then no more: who watches asks about once a second. Returns at once. */
sl_status sl_engine_look(sl_engine *e, sl_err *err) SL_MUST_CHECK;
sl_status sl_engine_view_get(sl_engine *e, sl_engine_view *out, sl_err *err) SL_MUST_CHECK;
void sl_engine_view_free(sl_engine_view *v);

#endif
