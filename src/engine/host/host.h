/* Inside of a worker, for src/engine only: what the loop, the attention side and the expert side
 * share. */
#ifndef SL_ENGINE_HOST_H
#define SL_ENGINE_HOST_H

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/trace.h"
#include "engine/host/counts.h"
#include "net/net.h"
#include "net/rails.h"
#include "net/window.h"
#include "sched/busy.h"
#include "sched/change.h"
#include "sched/idset.h"
#include "sched/watch.h"
#include "spec/plan.h"
#include "stage/stage.h"

typedef struct sl_expert_side_ops sl_expert_side_ops; /* engine/expert/expert.h */
typedef struct sl_far_window sl_far_window;           /* engine/host/far.h */

/* Where the wall time of the owner thread goes; the modes add up to it by construction. */
typedef enum sl_mode {
    SL_MODE_EXECUTE = SL_TRACE_CAT_EXECUTE,
    SL_MODE_PACK = SL_TRACE_CAT_PACK,
    SL_MODE_SEND = SL_TRACE_CAT_SEND,
    SL_MODE_POLL = SL_TRACE_CAT_POLL,
    SL_MODE_WAIT = SL_TRACE_CAT_WAIT,
    SL_MODE_SLEEP = SL_TRACE_CAT_IDLE,
    SL_MODE_COUNT = SL_TRACE_CAT_THREAD_COUNT
} sl_mode;

/* One thing that reached the worker: a message, or the end of a connection. */
typedef struct sl_inbox_item {
    sl_conn *conn;         /* NULL: from this worker itself, or gone meanwhile */
    bool own;              /* this worker's to itself */
    bool from_coordinator; /* else h.src is who the connection was authenticated for */
    bool down;             /* the connection ended... */
    bool left;             /* ...because the peer said goodbye */
    sl_wire_header h;
    sl_buf *payload;
    uint64_t came_ns, came_us; /* the latter on the worker's clock */
    sl_far_window *far;        /* of its connection (engine/host/far.h); NULL: none */
} sl_inbox_item;

/* A ring; zeroed: empty. */
typedef struct sl_inbox {
    sl_inbox_item *item; /* [cap], from head on */
    size_t cap, head, len;
    size_t more; /* that may wait, as the plan is large */
} sl_inbox;

typedef struct sl_worker_peer {
    sl_conn *conn; /* NULL: none */
    bool open;
    bool again;         /* it did not take the call: it is called again */
    uint64_t called_us; /* first; 0: not by this worker */
    bool window;        /* one is open for what it sends */
    sl_far_window *far; /* between its device and this one's; NULL: none */
    bool has_offered;   /* it has offered one: */
    uint32_t offered;   /* bytes of that, until it is joined */
    uint8_t offer[SL_WINDOW_OFFER_HEAD + SL_DEVICE_KEY_BYTES];
} sl_worker_peer;

/* Which experts the device shall host, and how far that is. */
typedef struct sl_host_goal {
    uint8_t *hosted; /* [n_moe][n_experts] */
    uint32_t max_pairs;
    bool due;                     /* it is not there yet */
    uint64_t since_us, resume_us; /* when it was set; not before that it is gone on with */
} sl_host_goal;

typedef struct sl_worker {
    const struct sl_worker_opts *opts; /* engine/worker/worker.h */
    sl_clock clock;
    bool virtual_time;     /* the clock is the caller's: waiting does not move it */
    bool spare;            /* the others serve without it while it gets ready the first time */
    const sl_watch *watch; /* sees what is decided here; NULL: nobody */
    sl_net *net;
    sl_rails *rails; /* schedule hybrid: with other workers; NULL: all goes whole */
    sl_hello hello;
    sl_conn *coordinator;
    bool coordinator_open;
    sl_worker_peer *peer; /* [n_peers] by id: the plan's; before it is here, those that called */
    uint32_t n_peers;
    uint32_t n_again;   /* to be called again... */
    uint64_t again_us;  /* ...not before */
    bool windows_due;   /* peers may have come that have no window yet */
    sl_far_window *far; /* all that somebody names (engine/host/far.h) */
    bool far_due;       /* some of them may be parted from */
    bool far_said;      /* why there are none has been */

    sl_plan plan;
    sl_taker taker; /* of another plan, */
    sl_plan next;   /* which is this one; no workers: there is none */
    bool planned, stop;
    bool owes_ready;    /* for the plan that came last */
    bool chosen;        /* its schedule, by what workers and links cost */
    uint64_t echoed_ns; /* when the last ECHO went back; 0: none did */
    sl_host_goal goal;
    bool in_use; /* a request, a peer's word about one, or the end of a change has been here */
    sl_status stop_status;
    sl_err stop_err;
    uint32_t id, roles;
    sl_idset attention, experts; /* workers of the plan with that role */

    sl_device *device; /* runs every stage that this worker hosts; NULL before the plan is here */
    sl_trace *trace;
    uint64_t live_until_ns; /* the trace is kept for somebody who watches; 0: it is not */
    struct sl_keep *keep; /* engine/attn/keep.h: KV outlives the coordinator there; NULL: not so */
    int kv_fd;            /* the file that its KV lies in; 0: memory of the device */
    struct sl_kv_disk *disk; /* engine/attn/disk.h: where cached pages go; NULL: nowhere */
    struct sl_attn *attn;    /* NULL: none here */
    const sl_expert_side_ops *expert_ops;
    void *expert; /* NULL: none here */
    /* engine/expert/busy.c: what those hear who wait for this expert worker, by whatever plan;
     * since when its task runs; when rows that wait for others are looked for */
    sl_busy busy;
    uint64_t task_us, excused_us;
    uint32_t next_groups; /* what its expert side says of steps of the next round; 0: nothing */

    sl_inbox inbox;

    sl_trace_event doing; /* what the owner's thread does now, and since when */
    uint64_t mode_ns[SL_MODE_COUNT], started_ns;
    uint64_t tick_ns;      /* of `doing`: progress between chunks of a kernel */
    uint64_t last_task_ns; /* end of the last kernel */
    sl_counts counts;
    uint64_t came_ns, came_us; /* when the message being handled arrived */
#define SL_COUNTER_FIELD(name) uint64_t name;
    struct {
        SL_WORKER_COUNTERS(SL_COUNTER_FIELD)
    } n;
#undef SL_COUNTER_FIELD
} sl_worker;

/* Whether who is connected as worker `id` is another one than the plan means: it has come in the
 * place of that one. */
static inline bool sl_worker_is_newcomer(const sl_worker *w, const sl_plan *p, uint32_t id) {
    const sl_worker_peer *peer = &w->peer[id];
    uint64_t is = p->worker[id].incarnation;
    return peer->open && is && sl_conn_hello(peer->conn)->incarnation != is;
}

/* (row, expert) pairs of a task where so many experts are hosted. */
static inline uint32_t sl_worker_pairs(const sl_worker *w, const sl_plan *p, const sl_model_spec *m,
                                       uint32_t hosted) {
    return sl_plan_pairs(p, (uint32_t)w->attention.n, m->top_k, hosted);
}

/* Its KV outlives it in a file that its place has. */
static inline bool sl_worker_is_kept(const sl_worker *w) {
    return !w->keep && sl_device_keeps(w->device);
}

/* The loop ends with `why`, whose text is in w->stop_err if it is not SL_OK. */
static inline void sl_worker_stop(sl_worker *w, sl_status why) {
    w->stop = true;
    w->stop_status = why;
}

/* Its device failed at what it was asked for: a process that the coordinator started ends as a
 * crash does, so that it is counted as one. Returns in any other. */
void sl_worker_crash(const sl_worker *w);

/* The device has failed: the loop ends with its reason, and what it owes is no result. */
static inline bool sl_worker_has_no_device(sl_worker *w) {
    if (!w->device || w->device->failed == SL_OK) return false;
    if (w->device->own_fault) sl_worker_crash(w);
    w->stop_err = w->device->failure;
    sl_worker_stop(w, w->device->failed);
    return true;
}

/* ---- what the thread does, and since when (account.c) ---- */

/* From now on the thread does `what` (times are filled in); books the time until now to what it did
 * before. One call at the beginning of every task; the next call ends it. */
void sl_worker_begin(sl_worker *w, const sl_trace_event *what);
/* The same for what needs no details. */
void sl_worker_enter(sl_worker *w, sl_mode mode);
/* The fabric's progress between chunks of a kernel; its time is not the kernel's. */
void sl_worker_tick(void *worker);
/* SEND of a message; begin what it returns when the send is done. */
sl_trace_event sl_worker_begin_send(sl_worker *w, uint32_t dst, const sl_wire_header *h,
                                    size_t bytes);
void sl_worker_note_arrival(sl_worker *w, const sl_wire_header *h, uint64_t now_ns);
/* Rows of a call of experts of a MoE block, right before it begins: group i has first[i+1] -
 * first[i] rows. */
void sl_worker_note_experts(sl_worker *w, uint32_t block, const uint32_t *expert,
                            const uint32_t *first, uint32_t n);
/* The device tells when its calls ran as long as a trace is recorded: to be called when that
 * begins or ends. */
void sl_worker_watch_device(sl_worker *w);
/* A span of a lane that lies across tasks and ends now. */
void sl_worker_note_span(sl_worker *w, sl_trace_event e, uint64_t begin_ns);
/* Block of the model that a message of rows belongs to; 0 for others. */
uint16_t sl_worker_block_of(const sl_worker *w, const sl_wire_header *h);

/* ---- what the coordinator asks about the worker (report.c) ---- */

void sl_worker_send_stats(sl_worker *w);
sl_status sl_worker_answer_clock(sl_worker *w, const sl_wire_header *h);
/* Stops recording and sends a batch of events; or sends the latest and records on. */
sl_status sl_worker_send_trace(sl_worker *w, const sl_wire_header *h);

/* ---- messages (post.c) ---- */

/* Room for twice as many as there was. SL_ERR_NOMEM, SL_ERR_LIMIT. */
sl_status sl_inbox_reserve(sl_inbox *in, sl_err *err) SL_MUST_CHECK;
/* Takes the item's payload unless it fails. */
sl_status sl_inbox_push(sl_inbox *in, sl_inbox_item item, sl_err *err) SL_MUST_CHECK;
/* The oldest; false: there is none. */
bool sl_inbox_pop(sl_inbox *in, sl_inbox_item *out);
/* The i-th after the oldest; until the next push or pop. */
static inline sl_inbox_item *sl_inbox_at(const sl_inbox *in, size_t i) {
    return &in->item[(in->head + i) % in->cap];
}
void sl_inbox_free(sl_inbox *in); /* of an empty one */

/* A message that its sender may not send: SL_ERR_PROTOCOL. */
sl_status sl_worker_refuse(const sl_wire_header *h, sl_err *err);
/* Whether a DISPATCH or RETURN may be one of aep's, with `bytes` of rows, where the latest wave was
 * `seen`. SL_ERR_PROTOCOL. */
sl_status sl_worker_check_wave(const sl_worker *w, const sl_wire_header *h, size_t bytes,
                               uint64_t seen, sl_err *err) SL_MUST_CHECK;

/* Room for a message that others wait for. NULL: memory is out, and the worker stops with that, as
 * nobody would ever answer what was not sent. */
sl_buf *sl_worker_buf(sl_worker *w, size_t len) SL_MUST_CHECK;

/* The coordinator hears a word of this kind about worker `id`, with a number. */
void sl_worker_tell_of(sl_worker *w, uint16_t kind, uint32_t id, uint64_t number);

/* Whether others could do the work of worker `id` if they waited for it: it has no requests of its
 * own, and there is another one for experts. */
static inline bool sl_worker_can_spare(const sl_worker *w, uint32_t id) {
    return w->plan.worker[id].roles == SL_ROLE_EXPERT && w->experts.n > 1;
}

/* Sends to worker `dst` of the plan (itself included) or to the coordinator (SL_NO_WORKER). Fills
 * epoch where there is none. Takes payload. A lost destination is SL_ERR_PEER_DOWN. */
sl_status sl_worker_send(sl_worker *w, uint32_t dst, sl_wire_header h, sl_buf *payload);

/* Whether a message with so many bytes of rows is to leave for that worker spread over ranks; this
 * one: stay so. */
bool sl_worker_can_spread(const sl_worker *w, uint32_t id, size_t bytes);
/* What its payload says then, and ranks call it by; in the order in which they send. */
sl_spread_name sl_worker_spread(sl_worker *w, uint32_t id, uint32_t rows);
/* Columns of a row that are in this payload. */
static inline uint32_t sl_worker_row_width(const sl_worker *w, const sl_buf *payload) {
    if (payload->far.window) return 0;
    return payload->spread.cut ? w->device->spreads : w->device->spec->d_model;
}

/* ---- for experiments (lab.c) ---- */

/* What a device without computations does meanwhile. */
void sl_worker_wait_until(void *worker, uint64_t deadline_ns);
/* Whether that is sl_topology_pick's choice. */
bool sl_worker_picks_cpus(const sl_worker *w, int32_t wanted);
/* Pins this thread, and so those it starts: to CPU wanted - 1; 0: as the plan says; -1: as
 * sl_topology_pick says for so many threads. */
sl_status sl_worker_pin(const sl_worker *w, int32_t wanted, uint32_t threads,
                        sl_err *err) SL_MUST_CHECK;

#endif
