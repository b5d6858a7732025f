/* Inside of the attention side. From the ground up:
 *
 *   slot.c      requests that run here: their tokens out, their ends
 *   guided.c    those whose answers have a shape
 *   moves.c     KV pages that come from other attention workers, and go there
 *   stamp.c     what rows of KV depend on besides the keys of their pages
 *   keep.c      KV that is kept for the next coordinator
 *   disk.c      KV that is kept on a disk
 *   pass.c      rows that pass the blocks together, and what they ask of the device
 *   outgoing.c  the messages in which they leave for the experts
 *   head.c      the end of a step: logits
 *   draws.c     tokens from logits
 *   mtp.c       and the guesses of a checkpoint's own block
 *   lanes.c     schedules with barriers: lanes take turns (lane.c has their steps, dispatch.c their
 *               way to the experts and back, settle.c what changes between them)
 *   flow.c      aep: parts, each at its own block (flow_rows.c has their rows)
 *   attn.c      what the worker's loop calls
 *
 * Thread: owner of the worker. */
#ifndef SL_ENGINE_ATTN_INT_H
#define SL_ENGINE_ATTN_INT_H

#include "base/mutate.h"
#include "engine/attn/attn.h"
#include "grammar/grammar.h"
#include "model/sampler.h"
#include "sched/draft.h"
#include "sched/head.h"
#include "sched/hedge.h"
#include "sched/membership.h"
#include "sched/pages.h"
#include "sched/step.h"
#include "sched/twice.h"

/* What a request has here beside its life: the ids of its tokens, prompt and generated ones, where
 * its pages lie, how it draws. */
typedef struct sl_slot {
    sl_life *life;                          /* what scheduling knows of it: of sl_attn.slots */
    bool broken;                            /* and ends: a row of it was not finite... */
    uint32_t broken_block, broken_position; /* ...here; sl_model_spec.n_layers: at the head */
    uint64_t request;
    uint32_t *tokens;  /* ids; room for all it may generate */
    uint32_t n_prompt; /* of those given: the rest was generated before it came here */
    bool want_logits, want_logprobs, want_prompt_logprobs;
    sl_report report; /* what a token comes with: */
    uint32_t *scored; /* owned; the report points to it */
    sl_sampling sampling;
    sl_logit_bias *bias; /* owned; sampling points to it, as it does to: */
    uint32_t *bad;
    uint32_t *only;                              /* NULL: it may draw any token, else `allowed` */
    uint32_t stop[SL_MAX_STOP_IDS + SL_MAX_EOS]; /* ids that end it */
    uint32_t n_stop;
    uint32_t min_tokens;      /* of the generated ones: none of `stop` is drawn before */
    uint32_t *pages;          /* in position order, room for all it may ever need */
    uint32_t first_row;       /* of its rows in the running pass */
    bool tells;               /* the coordinator is to hear how far its prompt is */
    sl_pages_keys keys;       /* of its full pages, as they are asked for */
    struct sl_guide *guide;   /* what its answer is to be like; NULL: anything */
    uint32_t guide_at;        /* where it is in that (sl_grammar_at)... */
    uint32_t *may;            /* ...bits of the ids of `only` that may come next there, and... */
    sl_grammar_allowed n_may; /* ...how many these are, whatever `only` says... */
    bool knows_may;           /* ...as far as that was looked up */
    sl_draft draft;           /* of those who guess */
    uint32_t unfit;     /* position of the first guess whose row is not finite: it never counts */
    bool shapeless;     /* and ends: its answer cannot go on so... */
    sl_shape_fate fate; /* ...for this reason */
} sl_slot;

/* Its first pages, of which every row is computed. */
static inline uint32_t sl_slot_sure_pages(const sl_slot *s) {
    uint32_t rows = s->life->done;
    if (SL_MUTATION(EARLY_KEY)) rows = SL_MIN(rows + SL_KV_PAGE_TOKENS, s->life->tokens);
    return SL_MIN(rows / SL_KV_PAGE_TOKENS, s->life->pages);
}

/* How rows of the slots pass the blocks, with barriers or without. `side` is what create has made.
 */
typedef struct sl_attn_side_ops {
    sl_status (*create)(sl_attn *a, void **side, sl_err *err);
    void (*free)(void *side); /* NULL-safe */
    /* The slot may have got work. */
    void (*wake)(void *side, const sl_slot *s);
    /* Takes *payload and sets it NULL if it keeps it. */
    sl_status (*on_return)(void *side, uint32_t expert_index, const sl_wire_header *h,
                           sl_buf **payload, sl_err *err);
    /* ROUND_OPEN of the sequencer. */
    sl_status (*on_peer)(void *side, const sl_wire_header *h, sl_span payload, sl_err *err);
    /* Goes on with what the device has had, or begins what may run; false: nothing to do. */
    bool (*run)(void *side);
    /* No row is on its way, nobody is in a round or about to be. */
    bool (*rests)(const void *side);
    /* Makes e a WAIT with its reason if rows are elsewhere. */
    void (*waits_for)(const void *side, sl_trace_event *e);
    /* The expert worker is gone, or done without, and the others host all experts: what it owes is
     * asked of them. Of one that is done without its end may be told later. */
    void (*lose)(void *side, uint32_t expert_index, bool gone);
    /* Ends a head that there is, drops all rows: they are lost. The device has none of them any
     * more. */
    void (*give_up)(void *side);
} sl_attn_side_ops;

extern const sl_attn_side_ops sl_attn_lanes, sl_attn_parts; /* lanes.c, flow.c */

struct sl_attn {
    sl_worker *w;
    const sl_model_spec *m;
    const sl_attn_side_ops *ops;
    bool barriers; /* the schedule has them */
    void *side;
    sl_slots slots;
    sl_slot *slot;        /* [n_lanes][max_slots] */
    sl_draft_prior prior; /* with which their guesses begin */
    uint8_t *moe;         /* [n_layers] nonzero: a block with routed experts */
    uint32_t n_lanes, n_chunks, max_slots, max_rows;
    sl_cut cut;
    sl_resolve resolve;       /* what of the schedule is chosen anew; outlives plans */
    uint32_t look;            /* slot that was asked for last */
    struct sl_moves *moves;   /* of moves.c */
    struct sl_keep *keep;     /* of the worker's; NULL: nothing is kept */
    sl_arena scratch;         /* of the sampler */
    char *model;              /* folder of the tokenizer; NULL: none */
    struct sl_guides *guides; /* NULL: nobody has asked */
    uint32_t n_waiting;       /* slots that wait for their guides */
    sl_head head;             /* of one pass at a time */
    struct sl_mtp *mtp;       /* of mtp.c; NULL: the block does not guess */
    struct sl_draws *draws;   /* of draws.c */
    uint64_t head_tokens;     /* that the worker had sampled before it */
    sl_mem head_rows;         /* [HEAD_ROWS][d_model], normed */
    float *logits;            /* [HEAD_ROWS][vocab] of the running head; of a device that finds */
    sl_sought *sought;        /* [HEAD_ROWS] what draws seek of them, */
    sl_found *found;          /* [HEAD_ROWS] and what it found; NULL: all logits come */
    bool seeks;               /* the running head's rows do */
    sl_wire_token *out;       /* tokens of this step for the coordinator */
    sl_logprob *pairs;        /* [pairs_cap] of them */
    uint32_t n_out, out_cap, n_pairs, pairs_cap;
    uint32_t n_experts;     /* expert workers */
    uint32_t *expert_index; /* [workers of the plan] by id: index among them, or UINT32_MAX */
    uint8_t *lost;          /* [workers of the plan] by id: an expert worker that is gone, or that
                             * others do without */
    sl_hedge hedge;         /* what expert workers owe, by id */
    bool guesses;           /* requests may guess what they say next */
    bool hedges;            /* somebody could stand in for them */
    sl_twice twice;         /* what was asked of two of them, over all plans */
    bool given_up;          /* steps were, and none begins by this plan */
    bool leaderless;        /* the sequencer is gone: no round begins by this plan */
};

/* No step is to begin. */
static inline bool sl_attn_holds(const sl_attn *a) {
    return a->given_up || a->leaderless || a->w->taker.holds;
}

/* n answers, or positions of rows, are due from expert worker `id` from now on, for so many rows
 * (attn.c). */
void sl_attn_sent(sl_attn *a, uint32_t lane, uint32_t id, uint64_t n, uint64_t rows);

/* ---- slots (slot.c) ---- */

/* Those of a lane, [max_slots]. */
static inline sl_slot *sl_attn_slots(const sl_attn *a, uint32_t lane) {
    return a->slot + (size_t)lane * a->max_slots;
}
/* The row at `position` has values that are not finite, found in `block`. Its request is cancelled:
 * what of it is on its way travels on, and then the coordinator hears why it ended. */
void sl_slot_break(sl_slot *s, uint32_t block, uint32_t position);
/* The end, without a token, of a request that was cancelled; releases its slot. */
void sl_slot_end(sl_attn *a, sl_slot *s);
/* A record of the token at `position` with its n log-probabilities. */
void sl_attn_emit(sl_attn *a, const sl_slot *s, uint32_t position, uint32_t token, sl_finish finish,
                  const sl_logprob *logprobs, uint32_t n);
void sl_attn_flush(sl_attn *a);
void sl_slot_release(sl_attn *a, sl_slot *s);
/* The end, without a token, of one that has said all: now, in the midst of its step. */
void sl_slot_finish(sl_attn *a, sl_slot *s);
/* The token at position `at` is drawn next: none that would end its answer while that is too short.
 */
void sl_slot_spare_stops(sl_slot *s, uint32_t at);
/* Where the request is; NULL: it has ended, or never was here. */
sl_slot *sl_slot_of(sl_attn *a, uint64_t request);
/* Its part of a step is over: it may guess what comes next. */
void sl_slot_guess(sl_attn *a, sl_slot *s);
/* Whether what can be looked up is likelier than what the block would guess. */
bool sl_slot_looks_up(sl_attn *a, sl_slot *s);
/* Appends a sampled token, decides whether the request is over, tells the coordinator. */
void sl_slot_append(sl_attn *a, sl_slot *s, uint32_t token, const sl_logprob *logprobs, uint32_t n);

/* ---- answers that have a shape (guided.c) ---- */

/* The slot's request wants this one: it waits until its guide is compiled. SL_ERR_NOMEM, SL_ERR_IO:
 * no thread. */
sl_status sl_guided_ask(sl_attn *a, sl_slot *s, sl_span shape, sl_err *err) SL_MUST_CHECK;
/* Those whose guides are ready go on. */
void sl_guided_look(sl_attn *a);
typedef enum sl_guided_may {
    SL_GUIDED_DRAW, /* a token, of those in s->may, which are s->sampling.allowed now */
    SL_GUIDED_END,  /* nothing more can be said, and it may end: without a token */
    SL_GUIDED_STUCK /* the slot ends */
} sl_guided_may;
/* What may be drawn next. */
sl_guided_may sl_guided_mask(sl_attn *a, sl_slot *s);
/* The token, which may be, was drawn; false: the slot ends without it. */
bool sl_guided_take(sl_slot *s, uint32_t token);
/* Nothing can be drawn behind `past`: whether all tokens are excluded, or their logits are not
 * finite. It ends, well if its shape has it so. */
void sl_guided_stick(sl_attn *a, sl_slot *s, const sl_history *past);
/* Tokens behind the last one that nothing but the shape decides are appended at once, as far as the
 * request may lead: their rows go with that one's (sched/batcher.h). Not where somebody wants to
 * know how likely they are. The slot may be released. */
void sl_guided_go_on(sl_attn *a, sl_slot *s);

/* ---- KV pages on their way (moves.c) ---- */

/* Makes and frees a->moves. */
sl_status sl_moves_create(sl_attn *a, sl_err *err) SL_MUST_CHECK;
void sl_moves_free(sl_attn *a);
/* These pages are given to somebody: nothing is fetched into them any more. */
void sl_moves_claim(sl_attn *a, const uint32_t *pages, uint32_t n);
/* Nothing comes from this worker any more. */
void sl_moves_lose(sl_attn *a, uint32_t worker);

/* ---- KV for the next coordinator (keep.c) ---- */

/* These pages, all of the pool, are given to somebody: they are kept no longer. */
void sl_keep_forget(struct sl_keep *k, const uint32_t *pages, uint32_t n);

/* Pages that came from the disk, those of most use last, until sl_disk_told; their number. d: NULL
 * is none. (disk.c) */
uint32_t sl_disk_found(const struct sl_kv_disk *d, const sl_wire_kept **out);
void sl_disk_told(struct sl_kv_disk *d);

/* ---- passes (pass.c) ---- */

typedef struct sl_outgoing sl_outgoing; /* engine/attn/outgoing.h */

/* Rows that pass the blocks together: those of a lane's step, or of a batch of parts. Of one lane's
 * slots, whose step they are when they come to the head. */
typedef struct sl_pass {
    sl_attn *attn;
    uint32_t lane;  /* whose slots they are of; their queue of the device */
    uint64_t round; /* of traces; 0: there are none */
    uint32_t layer; /* block of the running or last task */
    sl_event event; /* the last call that was submitted */
    sl_slot *slot;  /* [max_slots] of the lane */
    sl_step step;
    sl_draft_price *price;  /* what guesses cost: the step's, or of all parts of aep */
    uint64_t step_began_ns; /* for traces: the real clock */

    /* its rows; those of a slot have consecutive positions */
    uint32_t n;
    uint32_t *id, *pos, *state, *done; /* as of sl_rowset */
    uint64_t *tag;
    const uint32_t **pages;
    sl_mem x, h;           /* [max_rows][d_model]; h: what experts receive, */
    sl_mem shared;         /* SHARED's result; none: h is, as no row leaves twice */
    uint32_t *expert;      /* [max_rows][top_k] */
    float *gate;           /* [max_rows][top_k] */
    uint32_t *owner;       /* [max_rows][top_k] index of the expert worker that computes it */
    const uint8_t **piece; /* [max_rows][top_k] wire rows by lowest position */

    /* rows that leave */
    bool leaving;       /* the device packs the messages in `out` */
    sl_outgoing *out;   /* [expert workers] */
    uint32_t *pack_row; /* [max_rows][least of top_k, expert workers]: rows... */
    uint8_t **pack_at;  /* ...and where in messages they go */
    uint32_t n_pack;
    /* [chunks][expert workers] messages that are spread over ranks: those that leave, or what came
     * back */
    sl_stage_spread *spread;
    uint32_t n_spread; /* of those that are packed last */
    bool cut;          /* of what SHARED left for this block each rank has its columns alone */
    void *arrays;      /* what they are all in */
} sl_pass;

sl_status sl_pass_create(sl_attn *a, uint32_t lane, sl_pass *out, sl_err *err) SL_MUST_CHECK;
void sl_pass_free(sl_pass *p); /* zeroed is fine */

/* From now on the thread works on these rows: one call where a task begins. */
static inline void sl_pass_begin(const sl_pass *p, sl_trace_kind kind, uint32_t rows) {
    sl_worker_begin(p->attn->w, &(sl_trace_event){.kind = (uint8_t)kind,
                                                  .lane = sl_trace_u16(p->lane),
                                                  .layer = sl_trace_u16(p->layer),
                                                  .round = (uint32_t)p->round,
                                                  .rows = rows});
}
/* One more row, of token pos of s; returns its number. */
uint32_t sl_pass_row(sl_pass *p, const sl_slot *s, uint32_t pos, uint64_t tag);
sl_stage_call sl_pass_call(const sl_pass *p, sl_stage_op op);
/* Any number in a row: p->event is the last one's. */
void sl_pass_submit(sl_pass *p, const sl_stage_call *c);
void sl_pass_embed(sl_pass *p);
/* Attention, and the dense feed-forward or the router; of a model with dense branches the router
 * comes first. */
void sl_pass_block(sl_pass *p);
/* Attention and a whole block of experts inside the device, which nobody waits for unless its gates
 * are wanted. */
void sl_pass_inside(sl_pass *p, bool wanted);
/* After the router: rows that are not finite end their requests. */
void sl_pass_break(sl_pass *p);
/* Rows pack_row of h to pack_at. */
void sl_pass_pack(sl_pass *p);
/* The shared expert, or the dense branch, of the rows that left for the experts: in place unless
 * they may have to leave again, as there are replicas. */
void sl_pass_shared(sl_pass *p);
/* Where its result is held until the merge; none: this model has no such thing. */
sl_mem sl_pass_shared_rows(const sl_pass *p);
/* What came back, into x. */
void sl_pass_add(sl_pass *p, const sl_stage_merge *m);

/* ---- the head (head.c) ---- */

/* A piece of what follows the last block: step and x say which rows of which slots are through;
 * their slots advance, report, sample, end. Until the step is over no other pass may call these. */
void sl_pass_begin_head(sl_pass *p);
/* When the device is through with the piece. True: the step is over. */
bool sl_pass_end_head(sl_pass *p);
/* The head is given up, or over. */
void sl_attn_drop_head(sl_attn *a);

/* ---- tokens of several requests at once (draws.c) ---- */

/* Makes and frees a->draws. The device is there. */
sl_status sl_draws_create(sl_attn *a, sl_err *err) SL_MUST_CHECK;
void sl_draws_free(sl_attn *a);
/* What a row of the head's call, of position `pos`, which will draw, seeks of its logits. */
void sl_draws_seek(sl_attn *a, sl_slot *s, uint32_t pos, sl_sought *out);
/* Row `row` of the head's call, of part number `part` of the step, draws from its logits, which
 * stay until it is made; none of the slot's waits. What is drawn is a matter of its history, so the
 * next one of a slot waits. */
void sl_draws_add(sl_attn *a, sl_slot *s, uint32_t part, uint32_t row);
bool sl_draws_wait(const sl_attn *a, const sl_slot *s);
/* All that were added: draws, and what follows from each; none where the device has failed. Slots
 * may be released. */
void sl_draws_make(sl_pass *p);

/* ---- guesses of the block that predicts a further token (mtp.c) ---- */

/* Makes and frees a->mtp. */
sl_status sl_mtp_create(sl_attn *a, sl_err *err) SL_MUST_CHECK;
void sl_mtp_free(sl_attn *a);
/* The head of the pass's step is through, and its tokens are known: whether the block has rows. */
bool sl_mtp_open(sl_pass *p);
bool sl_mtp_runs(const sl_attn *a);
/* A piece of it: p->event is its end. */
void sl_mtp_begin(sl_pass *p);
/* When the device is through with the piece. True: its guesses are there. */
bool sl_mtp_end(sl_pass *p);
/* Nothing runs any more. */
void sl_mtp_drop(sl_attn *a);

#endif
