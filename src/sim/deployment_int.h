/* Inside of a simulated deployment. deployment.c has the loop, sim_links.c messages and the
 * links they cross, sim_coord.c requests, sim_attn.c lanes, sim_expert.c barriers, sim_flow.c and
 * sim_queue.c schedule aep, sim_guess.c and sim_mtp.c guesses, sim_route.c draws experts,
 * sim_report.c counts. */
#ifndef SL_SIM_DEPLOYMENT_INT_H
#define SL_SIM_DEPLOYMENT_INT_H

#include "base/mem.h"
#include "base/rng.h"
#include "sched/admit.h"
#include "sched/head.h"
#include "sched/membership.h"
#include "sched/order.h"
#include "sched/parts.h"
#include "sched/roster.h"
#include "sched/turns.h"
#include "sim/events.h"
#include "sim/deployment.h"
#include "spec/kv.h"
#include "spec/limits.h"

#define SIM_NONE UINT32_MAX

typedef enum sim_event_kind {
    SIM_BEGIN,   /* those who are there at first are */
    SIM_COME,    /* who: - ; a request of the load arrives */
    SIM_CLIENT,  /* who: whether it failed; a client has seen the end of its request */
    SIM_SUBMIT,  /* who: worker, what: request; so with PAGE and CANCEL */
    SIM_PAGE,    /* one more page */
    SIM_CANCEL,  /* it is to give its pages back */
    SIM_ACK,     /* who: worker, what: so many of the oldest things it told are acknowledged */
    SIM_HEAR,    /* who: worker, what: so many of the oldest things it told reach the coordinator */
    SIM_TASK,    /* who: worker */
    SIM_BACK,    /* who: worker, what: lane; its rows are through its pipeline */
    SIM_HEAD,    /* who: receiver, what: message and stripe; it reaches its in-port */
    SIM_DELIVER, /* who: receiver, what: message; one of its stripes is here. In inboxes: all */
    SIM_PORT,    /* who: worker, what: port and turn; a message is through, if the turn still is */
    SIM_DIE,     /* who: worker */
    SIM_NOTICE,  /* who: worker */
    SIM_FETCH,   /* who: worker, what: message; another one asks for that KV page */
    SIM_COPIED,  /* what: message; the coordinator hears that the page came */
    SIM_END,     /* the measurement is over */
} sim_event_kind;

/* Codes of the wire's messages, for traces. */
typedef enum sim_msg_kind {
    SIM_MSG_DISPATCH,
    SIM_MSG_RETURN,
    SIM_MSG_JOIN,
    SIM_MSG_OPEN,
    SIM_MSG_SET,
    SIM_MSG_PAGES, /* round: the transfer */
    SIM_MSG_KINDS
} sim_msg_kind;

/* A set of workers that messages share. */
typedef struct sim_set {
    uint32_t refs;
    sl_idset ids;
} sim_set;

typedef struct sim_pair {
    uint32_t expert, rows;
} sim_pair;

/* aep: rows of one slot at one expert. */
typedef struct sim_entry {
    uint32_t src, slot, generation, rows, expert;
    uint32_t next;
    uint64_t wave;
    double came_at; /* at its expert worker */
} sim_entry;

typedef struct sim_msg {
    uint8_t kind;
    bool stay, with_set, ends;
    uint32_t task_us, held_us; /* of an answer: how long its task took, its rows were there */
    uint32_t groups;           /* with the last one's set: what is said of the next round's steps */
    uint32_t src, dst, lane, layer, chunk; /* layer: among MoE blocks */
    uint32_t rows, entries, old, bytes;
    uint64_t round;
    sim_set *set;     /* NEXT, OPEN, SET; owned reference */
    uint32_t n_pairs; /* barriers: rows by expert */
    uint32_t cap_pairs;
    sim_pair *pair;             /* kept for the next use of this place */
    uint32_t entry, last_entry; /* aep: list, in order of rows */
    uint32_t next;              /* in the free list */
    double came_at;             /* barriers: at its expert worker */
    uint32_t missing;           /* that has to come yet: of each stripe one, or, where ports are
                                   shared, of each piece its last byte and its passage through
                                   the in-port */
    bool waits;                 /* rails: an earlier one of its connection is not here, ... */
    uint32_t behind;            /* ...and the one that waits for it; or SIM_NONE */
} sim_msg;

/* What waits for a worker between its tasks, or for the coordinator. */
typedef struct sim_item {
    uint32_t kind, who; /* sim_event_kind; who: of HEAR */
    uint32_t what;
} sim_item;

/* FIFO: a ring. */
typedef struct sim_inbox {
    sim_item *item;
    uint32_t head, n, cap;
} sim_inbox;

/* Beside what the coordinator's books (sim.admit) have of it, at the same place. */
typedef struct sim_request {
    uint64_t number; /* of the load's requests */
    double came_at, first_at, last_at;
    sl_life *life; /* at its worker; NULL: not there (yet) */
} sim_request;

typedef enum sim_told_what {
    SIM_TOLD_TOKEN,
    SIM_TOLD_LAST,     /* token: the request has ended */
    SIM_TOLD_GAVE_WAY, /* its pages are free */
    SIM_TOLD_ROWS,     /* so many of its rows are computed */
} sim_told_what;

/* On its way to the coordinator and, as an acknowledgement, back. */
typedef struct sim_told {
    uint8_t what; /* sim_told_what */
    uint32_t request, generation, rows;
} sim_told;

typedef struct sim_lane {
    sl_member member;
    sl_life *life;     /* [max_slots], of sim_attn.slots */
    uint32_t *request; /* [max_slots] whose life it is */
    sl_step step;
    sl_draft_price *price; /* what guesses cost: the step's, or of all parts of aep */
    sl_draft *draft;       /* [max_slots] with guesses; else NULL, as... */
    bool *found;           /* ...[max_slots] whether there was something to look up, where the block
                              guesses, too... */
    uint32_t *first_pos;   /* ...[max_slots + 1] where parts of the step begin */
    uint32_t n_drawn;      /* tokens of the running step */
    double keys, began_at, sent_at; /* of the running step */
    uint64_t task_us;               /* when its task began */
    uint32_t layer;
    sim_set *next;
    double rank_us[SL_MAX_RANKS]; /* of a pipeline: what its step takes at each rank, */
    double back_at;               /* when its rows are through, */
    sl_turn held;                 /* and what waits for that */
} sim_lane;

/* What a worker's thread runs. */
typedef enum sim_running {
    SIM_REST,
    SIM_RUN_TURN,
    SIM_RUN_EXPERT,
    SIM_RUN_FLOW,
    SIM_RUN_QUEUE
} sim_running;

#define SIM_MAX_PARTS 4u
/* Kernels of the running task, one after the other. */
typedef struct sim_kernel {
    uint8_t kind; /* sl_trace_kind */
    uint32_t rows;
    double us, slow; /* slow: the share that a busy neighbour adds */
} sim_kernel;

/* A piece of a message's stripe at a port that is shared; of what waits, the first of those that
 * have not been there. */
typedef struct sim_passage {
    double until;  /* on the port's clock, when it is at it */
    uint64_t what; /* message, stripe and piece */
    uint32_t peer; /* at the other end */
    uint32_t pieces;
} sim_passage;

/* A port of a worker, and how long it was busy before the measurement began. Where ports are
 * shared, connections have one for what they send by turns, and one for what they get in equal
 * parts; its clock is what each of them has had. Messages of one connection go one after the
 * other. */
typedef struct sim_port {
    sl_sim_port at;
    double busy_from;
    bool turns;
    sim_passage *heap; /* [n] by until, those of one peer in their order; owned */
    uint32_t n, cap;
    sim_passage *wait; /* [n_wait] in the order in which they came; owned */
    uint32_t n_wait, cap_wait;
    double clock, looked_at, last_until;
    uint64_t turn; /* of the event that is to come */
} sim_port;

typedef struct sim_worker sim_worker;
typedef struct sim_attn sim_attn;
typedef struct sim_flow sim_flow;
typedef struct sim_mtp sim_mtp;
typedef struct sim_expert sim_expert;
typedef struct sim_queue sim_queue;

/* Workers that see each other in rounds: all, or one of two sides (format/plan_sides.h). */
typedef struct sim_side {
    uint32_t n_attn, n_expert;
    uint32_t *attn_id, *expert_id; /* ascending worker ids */
    sl_idset members, experts;     /* the same: who takes part in rounds */
    sl_plan plan;                  /* as the side sees it; borrows all of the setup's */
} sim_side;

struct sim_attn {
    sl_stage_cost head_cost; /* of the step whose head runs in pieces */
    uint32_t index;          /* among attention workers of its side */
    bool lost;
    sl_slots slots;
    sl_draft_prior prior; /* with which guesses begin */
    sim_lane *lane;
    sim_told *told; /* ring of what is not acknowledged, oldest first */
    uint32_t told_head, n_told, cap_told;
    uint32_t n_sent, n_heard; /* of n_told: on their way or there; there */
    uint32_t n_owed;          /* of n_heard: acknowledgements that were not sent */
    sl_resolve resolve;
    sl_turns turns;
    sl_turn turn;                   /* running */
    sl_head head;                   /* of one lane at a time, ... */
    sim_mtp *mtp;                   /* ...and so are guesses of the block; NULL: there are none */
    double pipe_free[SL_MAX_RANKS]; /* of a pipeline: when a rank is through with what it has */
    sim_flow *flow;
};

struct sim_worker {
    uint32_t id;
    uint8_t roles;
    sim_side *side;
    bool dead, dirty;
    sim_inbox inbox; /* it takes up what came between its tasks */
    sim_running running;
    sim_kernel kernel[SIM_MAX_PARTS];
    uint32_t n_kernels;
    sl_trace_event about; /* lane, layer, chunk, round, queued of the running task */
    double began_at, rest_since, owed_us; /* owed: own time of messages, added to the next task */
    double slow, late_us;      /* what one busy neighbour adds, as a share; what they have added */
    double looked_at, area_at; /* when that was counted last, and sim.busy_area then */
    sim_port *out, *in;        /* [rails]; half duplex: `out` is both */
    uint32_t *last_to;         /* rails: [n_workers] the last message to each that is not there */
    double busy_us, busy_from; /* *_from: when the measurement began */
    double depth, depth_area, depth_since, depth_max;
    uint64_t tasks, rows;
    sim_attn *attn;
    sim_expert *expert;
    sim_queue *queue;
    sl_trace *trace;
};

/* ENDING: the next token ends the measurement. */
typedef enum sim_phase { SIM_WARM, SIM_ON, SIM_ENDING, SIM_OFF } sim_phase;

typedef struct sim_samples {
    float *v;
    size_t n, cap;
} sim_samples;

/* What caches still have of weights. */
typedef struct sim_cache sim_cache;

typedef struct sim {
    const sl_sim_setup *s;
    const sl_model_spec *m;
    uint32_t n_sight[SL_SIGHT_CHUNK + 1]; /* blocks of each sl_sight */
    const sl_plan *p;
    sl_sim_events ev;
    sim_worker *worker;
    sim_side side[2]; /* the second one: for prompts, with experts of its own */
    uint32_t n_workers;
    uint32_t *expert_index;   /* worker id -> index of expert worker on its side */
    uint32_t *dirty, n_dirty; /* who may have something to do: ids... */
    bool coord_dirty;         /* ...n_workers: the coordinator */
    sim_inbox heard;          /* what it has to hear */
    uint32_t lanes, chunks, max_rows, max_slots;
    bool aep, half;
    uint32_t rails; /* ports of a worker in either direction: a rank's each */
    uint32_t pipe;  /* ranks of the worker, which is a pipeline; 1: none is */
    sl_extent pipe_blocks[SL_MAX_RANKS];
    uint8_t *moe;  /* [n_layers] */
    void *workers; /* what they are all in */
    sim_port *ports;
    sl_cut cut;
    double scale, sigma;
    uint32_t n_busy;           /* workers that compute... */
    double busy_area, busy_at; /* ...and their times in all, up to busy_at */
    uint64_t rng, lengths_rng, guess_rng;
    sl_status status;
    sl_err *err;

    sim_msg *msg;
    uint32_t n_msgs, cap_msgs, free_msg;
    sim_entry *entry;
    uint32_t n_entries, cap_entries, free_entry;
    sim_request *req;
    uint32_t cap_req;
    sl_admit admit;   /* the coordinator's books... */
    sl_roster roster; /* ...and whom it counts on */
    uint32_t n_open;
    uint64_t trace_at;
    bool over, serving;

    /* routing: alias tables by layer of popularity, and scratch of one dispatch */
    uint32_t n_pop;
    float *alias_share;
    uint32_t *alias_other;
    double *weight;
    uint32_t *cell;               /* [a side's n_expert][n_experts] rows */
    uint32_t *touched, n_touched; /* those that are not 0 */
    uint32_t *to_msg;             /* [n_expert * chunks] message being built */
    uint32_t *last_row;           /* [n_expert * chunks] */
    uint32_t *expert_rows;        /* [n_experts] of a task */
    sim_cache *cache;             /* sim_costs.c; NULL: weights always come from memory */
    void *caches;                 /* what that is in */
    uint32_t *answer; /* [n_workers] aep: message of a batch's rows to that attention worker */
    uint32_t *answered, n_answered; /* [n_workers] who gets one */
    void *tables;                   /* what they are all in */

    /* results */
    sim_phase phase;
    sl_sim_result result; /* what it counts */
    uint64_t all_tokens, last_tokens, kept, rows_away;
    uint32_t shortest; /* positions of the shortest that were too long */
    sim_samples ttft, itl, tpot, queued;
} sim;

static inline bool sim_counts(const sim *s) {
    return s->phase == SIM_ON || s->phase == SIM_ENDING;
}

/* ---- sim_world.c ---- */
static inline double sim_now(const sim *s) {
    return s->ev.now;
}
/* One expert's rows of a worker's task; first: of its experts. moe: which block with experts. */
double sim_expert_us(sim *s, const sim_worker *w, uint32_t moe, uint32_t expert, uint32_t rows,
                     bool first);
/* A stage of a block, as it costs a worker now: its weights may still be in a cache. Once a call.
 */
sl_stage_cost sim_stage_cost(sim *s, const sim_worker *w, sl_cost_kind kind, uint32_t layer);
sl_status sim_cache_create(sim *s);
void sim_fail(sim *s, sl_status st);
sl_status sim_oom(sim *s, const char *what);
void sim_touch(sim *s, sim_worker *w);
void sim_touch_coord(sim *s);
void sim_inbox_push(sim *s, sim_inbox *b, sim_item item);
bool sim_inbox_pop(sim_inbox *b, sim_item *out);
static inline const sl_watch *sim_watch(const sim *s, uint32_t worker) {
    return s->s->watch ? &s->s->watch[worker] : NULL;
}
double sim_uniform(uint64_t *rng);
/* What a worker that is a gang on machines takes to carry `rows` rows that its ranks read, and
 * `back` rows of which they give it their columns; 0: it is none, or ranks send and get rows
 * themselves. */
double sim_carried_us(const sim *s, uint32_t role, double rows, double back);
/* Attention of a block, with what is carried to its ranks. */
void sim_attention_add(sim *s, sim_worker *w, uint32_t layer, double rows, double keys);
/* Another stage of a block. */
void sim_stage_add(sim *s, sim_worker *w, sl_trace_kind trace, sl_cost_kind kind, uint32_t layer,
                   double rows);
/* A kernel of the task that is about to begin. */
void sim_kernel_add(sim *s, sim_worker *w, sl_trace_kind trace, const sl_stage_cost *c, double rows,
                    double keys);
uint32_t sim_msg_take(sim *s, sim_msg_kind kind, uint32_t src, uint32_t dst);
void sim_msg_drop(sim *s, uint32_t id);
void sim_msg_add_pair(sim *s, uint32_t id, uint32_t expert, uint32_t rows);
void sim_msg_add_entry(sim *s, uint32_t id, uint32_t entry);
uint32_t sim_entry_take(sim *s);
void sim_entry_give(sim *s, uint32_t id);
void sim_entries_give(sim *s, uint32_t list);
sim_set *sim_set_of(sim *s, const sl_idset *ids);
void sim_set_drop(sim_set *set);
bool sim_msg_is_void(const sim *s, const sim_msg *m); /* one of its ends is dead */
/* Into the trace, where there is one; the second until now. */
void sim_note(sim_worker *w, sl_trace_event e, double begin_us, double end_us);
void sim_note_span(sim *s, sim_worker *w, sl_trace_event e, double begin_us);
/* What a message is called in traces. */
sl_trace_event sim_msg_event(const sim *s, const sim_msg *m, sl_trace_kind kind, uint32_t peer);
size_t sim_dispatch_bytes(const sim *s, const sim_msg *m, size_t n_set);
size_t sim_return_bytes(const sim *s, uint32_t rows, size_t n_set);

/* ---- sim_links.c ---- */
/* Its ports. */
sl_status sim_links_create(sim *s);
void sim_links_free(sim *s);
/* Sends; bytes of a payload. The place is the receiver's until it drops it. */
void sim_msg_send(sim *s, uint32_t id, size_t bytes);
/* SIM_HEAD: the first byte of a stripe is at the receiver's in-port. SIM_DELIVER: its last one is;
 * with the last stripe of a message whose turn it is that one lies in the inbox. */
void sim_msg_head(sim *s, uint64_t what);
/* SIM_PORT: who is through at a shared port leaves it. */
void sim_port_turn(sim *s, uint32_t worker, uint64_t what);
void sim_msg_deliver(sim *s, uint32_t id);
/* The measurement begins. */
void sim_links_mark(sim_worker *w, uint32_t rails);
/* Share of `span` since then that the busiest of such ports was busy. */
double sim_links_share(const sim_port *port, uint32_t rails, double span);
/* Whether no port of it was busy longer than there was time. */
bool sim_links_add_up(const sim *s, const sim_worker *w);

/* ---- sim_route.c ---- */
sl_status sim_route_create(sim *s);
/* One more pair of a row and an expert of a dispatch. */
void sim_route_pair(sim *s, uint32_t worker, uint32_t expert);
/* top_k distinct experts of a MoE block for the row at this position; returns its key. */
uint32_t sim_route_row(sim *s, uint32_t request, uint32_t position, uint32_t moe, uint32_t *expert);
/* Messages of a lane's rows to every expert worker. */
void sim_route_dispatch(sim *s, sim_worker *w, uint32_t lane_id, uint32_t moe, bool stay);

/* ---- sim_coord.c ---- */
sl_status sim_coord_start(sim *s);
void sim_coord_come(sim *s);
void sim_coord_client(sim *s, bool failed);
/* SIM_COPIED. */
void sim_coord_copied(sim *s, uint32_t msg);
/* It hears what is there, and decides. */
void sim_coord_run(sim *s);
void sim_coord_worker_lost(sim *s, uint32_t worker);
void sim_coord_experts_lost(sim *s);

/* ---- sim_attn.c ---- */
sl_status sim_attn_create(sim *s, sim_worker *w);
void sim_attn_free(sim *s, sim_worker *w);
/* SIM_SUBMIT, PAGE, CANCEL or ACK is here. */
void sim_attn_on_control(sim *s, sim_worker *w, sim_event_kind kind, uint32_t what);
/* The oldest thing that it told and nobody heard: the coordinator does. */
const sim_told *sim_attn_next_told(sim_attn *a);
bool sim_attn_start(sim *s, sim_worker *w);
void sim_attn_finish(sim *s, sim_worker *w);
void sim_attn_on_return(sim *s, sim_worker *w, uint32_t msg);
void sim_attn_on_open(sim *s, sim_worker *w, uint32_t msg);
/* What the slot may run may have changed. */
void sim_attn_wake(sim *s, sim_worker *w, const sl_life *life);
/* A request that gives way has left its step or part: the coordinator hears of it. */
void sim_attn_give_way(sim *s, sim_worker *w, sl_life *life);
/* A piece of the lane's head ran; true: the step is over. */
bool sim_attn_end_head(sim *s, sim_worker *w, sim_lane *l);
/* Keys that so many rows from position `done` on attend to, the mean over blocks. */
double sim_attn_keys(const sim *s, uint32_t done, uint32_t rows);
/* The lane's step is formed, and its rows are not in the cache yet. */
void sim_guess_begin_step(sim_lane *l);
/* A request comes to that slot. */
void sim_guess_begin(sim_attn *a, const sl_life *life);
/* Whether there is something to look up for the request of a part that samples, whose step is about
 * to end, and that is likelier than what the block guesses. */
bool sim_guess_looks_up(sim *s, sim_lane *l, const sl_step_part *part);
/* What may be said next by the request of a part, whose step ends. */
void sim_guess(sim *s, sim_lane *l, const sl_step_part *part);
/* Whether row `row` of the step, of that part, draws a token; and if it does, whether the guess was
 * right. */
bool sim_guess_draws(sim *s, sim_lane *l, uint32_t part, uint32_t row);

/* ---- sim_mtp.c ---- */
/* Where the plan asks for the block. */
sl_status sim_mtp_create(sim *s, sim_worker *w);
void sim_mtp_free(sim_attn *a);
/* The step's tokens are drawn; true: the block has rows of it, ... */
bool sim_mtp_open(sim *s, sim_worker *w, sim_lane *l);
bool sim_mtp_runs(const sim_attn *a);                 /* ...which go through it in... */
void sim_mtp_start(sim *s, sim_worker *w);            /* ...calls; */
bool sim_mtp_end(sim *s, sim_worker *w, sim_lane *l); /* true: that was the last one */
void sim_mtp_drop(sim_attn *a);                       /* the step is given up */

/* Every request here is lost. */
void sim_attn_lose(sim *s, sim_worker *w);
double sim_attn_depth(const sim *s, const sim_worker *w);

/* A task that was held is over. */
void sim_attn_back(sim *s, sim_worker *w, uint32_t lane);

/* ---- sim_pipeline.c ---- */
sl_status sim_pipeline_create(sim *s);
/* What a call of `us` at the last rank takes besides, where `back` rows of it come to rank 0: until
 * that rank has time, and what is on its way. */
double sim_pipeline_last_us(sim *s, sim_worker *w, double us, uint32_t back);
/* SL_TURN_BLOCK begins. */
void sim_pipeline_start(sim *s, sim_worker *w, const sl_turn *t);
/* It is over at rank 0; true: not for the lane, of which sim_attn_back will hear. */
bool sim_pipeline_holds(sim *s, sim_worker *w, const sl_turn *t);

/* ---- sim_expert.c ---- */
sl_status sim_expert_create(sim *s, sim_worker *w);
void sim_expert_free(sim_worker *w);
void sim_expert_on_dispatch(sim *s, sim_worker *w, uint32_t msg);
void sim_expert_on_join(sim *s, sim_worker *w, uint32_t msg);
void sim_expert_on_set(sim *s, sim_worker *w, uint32_t msg);
void sim_expert_on_dead(sim *s, sim_worker *w, uint32_t member);
bool sim_expert_start(sim *s, sim_worker *w);
void sim_expert_finish(sim *s, sim_worker *w);
double sim_expert_depth(const sim_worker *w);

/* ---- sim_flow.c, sim_queue.c: aep ---- */
sl_status sim_flow_create(sim *s, sim_worker *w);
void sim_flow_free(sim_attn *a);
void sim_flow_wake(sim_worker *w, const sl_life *life);
/* Whether the batch that has left has more to do at once, before anything else happens here. */
bool sim_flow_goes_on(const sim_worker *w);
bool sim_flow_start(sim *s, sim_worker *w);
void sim_flow_finish(sim *s, sim_worker *w);
void sim_flow_on_return(sim *s, sim_worker *w, uint32_t msg);
void sim_flow_reset(sim *s, sim_worker *w);
double sim_flow_depth(const sim_worker *w);
sl_status sim_queue_create(sim *s, sim_worker *w);
void sim_queue_free(sim_worker *w);
void sim_queue_on_dispatch(sim *s, sim_worker *w, uint32_t msg);
void sim_queue_on_dead(sim *s, sim_worker *w, uint32_t member);
bool sim_queue_start(sim *s, sim_worker *w);
void sim_queue_finish(sim *s, sim_worker *w);
double sim_queue_depth(const sim_worker *w);

/* ---- sim_report.c ---- */
void sim_sample(sim *s, sim_samples *to, double us);
sl_status sim_report(sim *s, sl_sim_result *out);

#endif
