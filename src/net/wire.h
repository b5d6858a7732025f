/* The bytes between processes. Little-endian; docs/protocol.md is the byte table, golden vectors
 * are in tests. Decoders never trust a length: every view they return lies inside the span they
 * were given. Thread: any. */
#ifndef SL_NET_WIRE_H
#define SL_NET_WIRE_H

#include "base/span.h"
#include "base/status.h"
#include "base/trace.h"
#include "quant/wire_rows.h"
#include "spec/limits.h"
#include "spec/model.h"
#include "spec/page_key.h"
#include "spec/sampling.h"

#define SL_WIRE_MAGIC        0x43494C53u /* "SLIC" */
#define SL_WIRE_VERSION      8           /* 8: products with MXFP4 have other bits than before */
#define SL_WIRE_HEADER_BYTES 72
#define SL_WIRE_SEQ_AT       40 /* byte of `seq` in a header */
#define SL_WIRE_BYTES_AT     64 /* and of `bytes` */

typedef enum sl_msg_kind {
    /* session: handled inside src/net */
    SL_MSG_HELLO = 1,
    SL_MSG_CHALLENGE,
    SL_MSG_AUTH,
    SL_MSG_WELCOME,
    SL_MSG_REFUSE,
    SL_MSG_BYE,
    SL_MSG_HEARTBEAT,
    SL_MSG_ERROR,         /* reply to an unknown or unacceptable message: payload is text */
    SL_MSG_WINDOW,        /* here is a window for what you send (net/window.h) */
    SL_MSG_DEVICE_WINDOW, /* worker to worker: the same in memory of its device (net/row_slots.h) */
    /* control: coordinator and workers */
    SL_MSG_PLAN = 16, /* payload: plan.json, with ids and addresses filled in */
    SL_MSG_READY,     /* worker: the stages of plan `epoch` are mapped, peers are connected */
    SL_MSG_SUBMIT,
    SL_MSG_CANCEL,
    SL_MSG_TOKENS,
    SL_MSG_ACK,
    SL_MSG_STATS_GET,
    SL_MSG_STATS,
    SL_MSG_SHUTDOWN,
    SL_MSG_LOGITS,   /* worker: logits of consecutive positions of a request that asked for them */
    SL_MSG_PAGES,    /* pairs {request, page}: further KV pages, in position order */
    SL_MSG_ROWS,     /* worker: pairs {request, rows}: of a prompt, that are in its pages */
    SL_MSG_KV_FETCH, /* to attention workers: KV pages that they are to get from others */
    SL_MSG_KV_HERE,  /* worker: pairs {transfer, sl_kv_fate}: what became of these */
    SL_MSG_KV_KEPT,  /* worker, before READY: `rows` pages that it kept of a coordinator before */
    SL_MSG_KV_SAVE,  /* to attention workers, before SHUTDOWN: `rows` pages for the disk */
    /* token path: attention and expert workers */
    SL_MSG_DISPATCH = 32,
    SL_MSG_RETURN,
    SL_MSG_JOIN,          /* idle attention worker -> sequencer of a lane */
    SL_MSG_ROUND_OPEN,    /* sequencer -> joiner: round and member set */
    SL_MSG_MEMBER_DEAD,   /* sequencer -> expert workers, and from them to it */
    SL_MSG_FUSED,         /* a step of the fused collectives (net/fused.h) */
    SL_MSG_ROUND_SET,     /* sequencer -> other expert workers */
    SL_MSG_COLLECTIVE,    /* a rank's word of a round (net/collective.h) */
    SL_MSG_RANK_IS,       /* between ranks on machines: who this is of which gang (stage/gang) */
    SL_MSG_RANK_JOB,      /* rank 0 -> another: what to do, in pieces */
    SL_MSG_RANK_DONE,     /* the answer, in pieces */
    SL_MSG_RANK_RAIL,     /* between rank 0 and another, about its rail (net/rails.h) */
    SL_MSG_RANK_ROWS,     /* rank of a pipeline -> the next one: what its job left, in pieces */
    SL_MSG_KV_GET = 47,   /* attention worker to another: some blocks of a page, please */
    SL_MSG_KV_PAGES = 48, /* the answer */
    /* control, about plan `epoch` (sched/change.h), as PLAN and READY are */
    SL_MSG_UNABLE = 49, /* worker: why it cannot take the plan, as text */
    SL_MSG_HOLD,        /* to attention workers: begin no step */
    SL_MSG_QUIET,       /* attention worker: nothing is on its way */
    SL_MSG_TAKE,        /* the plan holds from now on */
    SL_MSG_TAKEN,       /* worker: it does */
    SL_MSG_GO,          /* begin steps by this plan, which holds */
    SL_MSG_LOST,        /* worker: its connection with this one of the plan is gone */
    SL_MSG_SLOW,        /* attention worker: others answered long before this expert worker, and
                         * have waited `number` us for it; to workers: count it as lost (sched/hedge.h) */
    SL_MSG_DOUBT,       /* attention worker: does this expert worker live? it does not answer */
    SL_MSG_BUSY,        /* expert to attention worker: `number` us of work (sched/busy.h) */
    /* watching: coordinator and workers, never while rows are under way */
    SL_MSG_CLOCK = 60, /* what is your clock? the answer repeats the question's `number` */
    SL_MSG_TRACE_GET,  /* events from `number` on; the worker stops recording. With `rows`: so many
                          at most of the last `number` ns; it goes on recording for a while */
    SL_MSG_TRACE,      /* `rows` events from `number` on */
    /* workers with rails (net/rails.h) */
    SL_MSG_RAILS = 64, /* who was called: where its rails are */
    SL_MSG_STRIPED,    /* the header of a message and its first stripe */
    SL_MSG_RAIL_IS,    /* over rail `chunk`: it is of the connection with key `number` */
    SL_MSG_STRIPE,     /* over rail `chunk`: its stripe of message `number` */
    /* before the plan: coordinator and workers on other machines (engine/measure/survey.h) */
    SL_MSG_MEASURE = 68, /* what do your stages cost? */
    SL_MSG_COSTS,        /* worker: that, or why it does not know */
    SL_MSG_ECHO,         /* the worker sends it back as it is, with `number` */
} sl_msg_kind;

/* flags of a header */
#define SL_WIRE_SET     0x1u   /* the payload carries a member set */
#define SL_WIRE_STAY    0x2u   /* last-layer dispatch: the sender takes part in the next round */
#define SL_WIRE_OLD     0x4u   /* dispatch: some rows' data came with an earlier chunk */
#define SL_WIRE_BREAK   0x8u   /* HOLD: steps in flight may never end: they are given up */
#define SL_WIRE_KEPT    0x10u  /* READY: KV lies in the file that its place has */
#define SL_WIRE_RESUMES 0x20u  /* READY: requests can begin with pages that others computed */
#define SL_WIRE_AGAIN   0x40u  /* DISPATCH, RETURN outside of rounds: for a worker that is lost */
#define SL_WIRE_ENDS    0x80u  /* dispatch: the sender has no further chunk of this layer */
#define SL_WIRE_SAVES   0x100u /* READY: pages can go to a disk there */
#define SL_WIRE_TIMED   0x200u /* RETURN: it says how long the task took */
#define SL_WIRE_FAR     0x400u /* DISPATCH, RETURN: it ends with a note (net/row_slots.h) */
/* Any other bit is refused. */
#define SL_WIRE_FLAGS                                                                              \
    (SL_WIRE_SET | SL_WIRE_STAY | SL_WIRE_OLD | SL_WIRE_BREAK | SL_WIRE_KEPT | SL_WIRE_RESUMES |   \
     SL_WIRE_AGAIN | SL_WIRE_ENDS | SL_WIRE_SAVES | SL_WIRE_TIMED | SL_WIRE_FAR)

typedef struct sl_wire_header {
    uint16_t kind; /* sl_msg_kind */
    uint32_t flags;
    uint64_t session;     /* of this connection; 0 only before WELCOME */
    uint32_t src;         /* worker id of the sender, SL_NO_WORKER for the coordinator */
    uint32_t incarnation; /* of the sender's process */
    uint32_t epoch;       /* plan epoch */
    union {               /* one number, whose meaning the kind says */
        uint64_t round;   /* barriers: of the lane, from 1 in each epoch */
        uint64_t attempt; /* with AGAIN: of the sender of rows, from 1 in each epoch; repeated */
        uint64_t wave;    /* DISPATCH, RETURN of schedule aep: the rows'; the latest met */
        uint64_t pass;    /* FUSED, COLLECTIVE: which one, from 1 */
        uint64_t number;  /* RANK_JOB, RANK_DONE, RANK_ROWS: of the job; CLOCK: of the question;
                             TRACE_GET, TRACE: of the first event; BUSY; RAIL_IS, STRIPE; ECHO:
                             which one */
    };
    uint64_t seq; /* per connection and direction, from 1, no gaps */
    uint32_t lane, layer, chunk;
    uint32_t rows;  /* rows of a token batch */
    uint32_t bytes; /* of the payload that follows */
    uint32_t sum;   /* on connections with checksums: see sl_wire_sum; else 0 */
} sl_wire_header;

#define SL_NO_WORKER 0xFFFFFFFFu

void sl_wire_header_encode(const sl_wire_header *h, uint8_t out[SL_WIRE_HEADER_BYTES]);
/* What a stream of messages needs before one is whole: the bytes of its payload, and whether it
 * begins as a message does. Nothing else is checked. */
uint32_t sl_wire_header_peek(const uint8_t head[SL_WIRE_HEADER_BYTES], bool *begins);
/* Refuses (SL_ERR_PROTOCOL) wrong length, magic, version, unknown flags, and bytes/rows over the
 * limits. Unknown kinds decode fine. */
sl_status sl_wire_header_decode(sl_span in, sl_wire_header *out, sl_err *err) SL_MUST_CHECK;
/* CRC-32C of a message: of its encoded header up to `sum`, then of its payload. */
uint32_t sl_wire_sum(const uint8_t head[SL_WIRE_HEADER_BYTES], sl_span payload);
/* Puts it into the encoded header. */
void sl_wire_set_sum(uint8_t head[SL_WIRE_HEADER_BYTES], uint32_t sum);
const char *sl_msg_kind_name(uint16_t kind); /* NULL for an unknown kind */
/* What a peer says, for people: printable ASCII, anything else as '?', cut off at cap - 1. */
void sl_wire_text(sl_span in, char *out, size_t cap);

/* Row tag: opaque to experts. slot < 2^20, generation < 2^28, index < 2^16. */
static inline uint64_t sl_tag_make(uint32_t slot, uint32_t generation, uint32_t index) {
    return (uint64_t)slot << 44 | (uint64_t)(generation & 0xFFFFFFFu) << 16 | (index & 0xFFFFu);
}
static inline uint32_t sl_tag_slot(uint64_t t) {
    return (uint32_t)(t >> 44);
}
static inline uint32_t sl_tag_generation(uint64_t t) {
    return (uint32_t)(t >> 16) & 0xFFFFFFFu;
}
static inline uint32_t sl_tag_index(uint64_t t) {
    return (uint32_t)t & 0xFFFFu;
}

/* A token batch on its way to experts. Sections of the payload, in this order, each 8-byte aligned
 * (data: 64): u32 n_set, u32 n_entries, with SL_WIRE_OLD u32 n_old, u32 0, then set u32[n_set], tag
 * u64[rows], first u32[rows+1], expert u32[n_entries], position u32[n_entries], gate
 * f32[n_entries], old u32[n_old], data[rows - n_old][d_model] in the wire format. Row r has the
 * router positions entries first[r]..first[r+1]-1, in ascending position. The last n_old rows have
 * no data here: old[i] counts the rows with data in the earlier chunks of this sender, lane, round
 * and layer. */
typedef struct sl_wire_counts {
    uint32_t rows, n_set, n_entries, n_old; /* n_old <= rows */
} sl_wire_counts;

typedef struct sl_wire_dispatch {
    uint32_t rows, n_set, n_entries, n_old;
    uint32_t *set;
    uint64_t *tag;
    uint32_t *first, *expert, *position;
    float *gate;
    uint32_t *old;
    uint8_t *data; /* [rows - n_old] of sl_wire_row_bytes */
} sl_wire_dispatch;

/* Payload size, and the places to write to inside buf (64-byte aligned, that many bytes). */
size_t sl_wire_dispatch_bytes(const sl_wire_counts *n, uint32_t d_model, sl_wire_format f);
void sl_wire_dispatch_layout(void *buf, const sl_wire_counts *n, uint32_t d_model, sl_wire_format f,
                             sl_wire_dispatch *out);
/* Views into a received payload (64-byte aligned, borrowed); SL_ERR_PROTOCOL when it is malformed,
 * SL_ERR_ARG when it is misaligned. An empty payload is a bare header: rows must be 0 and every
 * pointer is NULL. A set needs SL_WIRE_SET (and may then be empty: the lane sleeps). Checks sizes,
 * that set is strictly ascending, first ascending from 0 to n_entries, every row has >= 1 entry,
 * expert < n_experts, position < top_k and strictly ascending within a row, gates finite, and
 * sl_wire_rows_check. What `old` refers to is the receiver's to check. */
sl_status sl_wire_dispatch_decode(const sl_wire_header *h, sl_span payload, const sl_model_spec *m,
                                  sl_wire_format f, sl_wire_dispatch *out,
                                  sl_err *err) SL_MUST_CHECK;
/* The same of rows that are `width` of the model's columns here. */
sl_status sl_wire_dispatch_decode_columns(const sl_wire_header *h, sl_span payload,
                                          const sl_model_spec *m, uint32_t width, sl_wire_format f,
                                          sl_wire_dispatch *out, sl_err *err) SL_MUST_CHECK;

/* Rows on their way back. Sections: u32 n_set, u32 groups, set u32[n_set], tag u64[rows],
 * mask u64[rows] (router positions that the row sums), data[rows][d_model], and behind these, with
 * SL_WIRE_TIMED, u32 task_us, u32 held_us: how long the task took that the rows were part of, and
 * how long they were there in all. groups: with SL_WIRE_SET, of how many groups of experts steps of
 * the next round are (sched/resolve.h); 0: nothing is said. */
typedef struct sl_wire_return {
    uint32_t rows, n_set, groups, task_us, held_us;
    uint32_t *set;
    uint64_t *tag, *mask;
    uint8_t *data;
} sl_wire_return;

size_t sl_wire_return_bytes(uint32_t rows, uint32_t n_set, uint32_t d_model, sl_wire_format f);
void sl_wire_return_layout(void *buf, uint32_t rows, uint32_t n_set, uint32_t d_model,
                           sl_wire_format f, sl_wire_return *out);
void sl_wire_return_groups(void *buf, uint32_t groups); /* of one that is laid out: instead of 0 */
/* The last SL_WIRE_TIMES_BYTES of a payload that goes with SL_WIRE_TIMED. */
void sl_wire_return_times(uint8_t *end, uint32_t task_us, uint32_t held_us);
sl_status sl_wire_return_decode(const sl_wire_header *h, sl_span payload, const sl_model_spec *m,
                                sl_wire_format f, sl_wire_return *out, sl_err *err) SL_MUST_CHECK;
sl_status sl_wire_return_decode_columns(const sl_wire_header *h, sl_span payload,
                                        const sl_model_spec *m, uint32_t width, sl_wire_format f,
                                        sl_wire_return *out, sl_err *err) SL_MUST_CHECK;

/* ROUND_OPEN and ROUND_SET: header.round with its set: u32 n_set, u32 reserved, set u32[n_set]. */
size_t sl_wire_set_bytes(uint32_t n_set);
void sl_wire_set_encode(const uint32_t *set, uint32_t n_set, void *buf);
sl_status sl_wire_set_decode(sl_span payload, const uint32_t **set, uint32_t *n_set,
                             sl_err *err) SL_MUST_CHECK;

/* The answer to CLOCK: u64 ns of the worker's monotonic clock, u64 which clock that is (equal: the
 * same one; 0: unknown). */
#define SL_WIRE_CLOCK_BYTES 16u
/* TRACE: u64 events there are, u64 events that were overwritten, then header.rows events
 * (sl_trace_event_encode). */
#define SL_WIRE_TRACE_HEAD 16u
static inline size_t sl_wire_trace_bytes(uint32_t n) {
    return SL_WIRE_TRACE_HEAD + (size_t)n * SL_TRACE_EVENT_BYTES;
}

/* MEMBER_DEAD: the payload is one u32 worker id. */
#define SL_WIRE_WORKER_BYTES 4
void sl_wire_worker_encode(uint32_t worker, void *buf);
sl_status sl_wire_worker_decode(sl_span payload, uint32_t *out, sl_err *err) SL_MUST_CHECK;

/* A request handed to an attention worker. */
typedef struct sl_wire_submit {
    uint64_t request;    /* coordinator's id, never reused in a session */
    uint32_t max_tokens; /* new tokens at most */
    uint32_t flags;      /* SL_SUBMIT_* */
    uint32_t n_tokens, n_pages, n_stop;
    uint32_t n_prompt;      /* tokens[0..n_prompt) are the prompt, the rest was generated before */
    sl_report report;       /* what each token comes with */
    uint32_t min_tokens;    /* generated tokens, those before included, until an end may be drawn */
    uint32_t start;         /* its pages hold the rows of the tokens before this one already */
    sl_page_key root;       /* keys of its pages begin with it (sched/pages.h) */
    sl_sampling sampling;   /* but what is never drawn */
    const uint32_t *tokens; /* prompt, then what was generated before */
    const uint32_t *pages;  /* page ids in position order, enough for tokens + max_tokens */
    const uint32_t *stop;   /* ids that end generation besides the model's */
    uint32_t n_shape;
    const uint8_t
        *shape; /* what its answer is to be like (grammar/grammar.h); n_shape 0: anything */
} sl_wire_submit;
#define SL_SUBMIT_IGNORE_EOS      0x1u
#define SL_SUBMIT_LOGITS          0x2u  /* send the logits of every position back, too */
#define SL_SUBMIT_LOGPROBS        0x4u  /* token records carry log-probabilities */
#define SL_SUBMIT_PROMPT_LOGPROBS 0x8u  /* records of the prompt's tokens come, too */
#define SL_SUBMIT_ROWS            0x10u /* say how far its prompt is (ROWS) */
#define SL_SUBMIT_PARK            0x20u /* no rows once it has drawn a token: it goes on elsewhere */
#define SL_SUBMIT_FLAGS           0x3Fu /* any other bit is refused */
/* Sections: the head, tokens u32[], pages u32[], stop u32[], bias {u32 id, f32}[], allowed u32[],
 * bad u32[], scored u32[], shape u8[]. What lies where in the head: wire.c and spec/sampling.def.
 */
#define SL_WIRE_SUBMIT_HEAD 132
size_t sl_wire_submit_bytes(const sl_wire_submit *s);
void sl_wire_submit_encode(const sl_wire_submit *s, void *buf);
/* Arrays are borrowed views into payload, of which the counts say the size exactly. Refuses
 * max_tokens 0, n_prompt outside 1..n_tokens, a start that leaves no token, or is in a page that is
 * not there, tokens over the vocabulary, n_stop
 * over SL_MAX_STOP_IDS, a report that sl_report_check refuses or without SL_SUBMIT_LOGPROBS,
 * min_tokens that max_tokens cannot reach, n_shape over SL_MAX_SHAPE, a shape with min_tokens or
 * without ends, unknown flags, and what sl_sampling_check refuses. */
sl_status sl_wire_submit_decode(sl_span payload, uint32_t vocab, sl_wire_submit *out,
                                sl_err *err) SL_MUST_CHECK;

/* New tokens, many requests at once. header.rows = count. A record whose position lies in the
 * prompt only reports that token's log-probabilities (SL_SUBMIT_PROMPT_LOGPROBS). */
typedef enum sl_finish {
    SL_FINISH_NONE,
    SL_FINISH_STOP,
    SL_FINISH_LENGTH,
    SL_FINISH_ERROR,
    SL_FINISH_NOT_FINITE, /* on the wire only: requests end with ERROR and why */
    SL_FINISH_SHAPE,      /* on the wire only, the same: its answer cannot take its shape */
    SL_FINISH_COUNT
} sl_finish;
/* Why an answer cannot take its shape. */
typedef enum sl_shape_fate {
    SL_SHAPE_STUCK,    /* no token goes on */
    SL_SHAPE_LIMIT,    /* it took too many steps, or too much memory */
    SL_SHAPE_REFUSED,  /* this worker cannot compile it */
    SL_SHAPE_STRANGE,  /* what was generated before is none of it */
    SL_SHAPE_EXCLUDED, /* what the request excludes is all that could be drawn, with a shape or
                          without */
    SL_SHAPE_FATES
} sl_shape_fate;
typedef struct sl_wire_token {
    uint64_t request;
    uint32_t position;   /* absolute position the token takes; of NOT_FINITE: whose row it is */
    uint32_t token;      /* UINT32_MAX: none; of ERROR: the expert worker that was lost; of
                            NOT_FINITE: the block, or for the head how many there are; of SHAPE:
                            sl_shape_fate */
    uint16_t finish;     /* sl_finish: this is the request's last record */
    uint16_t behind;     /* tokens before it whose rows are not computed yet, <= SL_MAX_AHEAD */
    uint32_t n_logprobs; /* 0, or sl_reported: as sl_logprobs has them */
    uint64_t made_us;    /* when it was produced, on the worker's monotonic clock */
} sl_wire_token;
/* After the n records come the log-probabilities of all of them, in order: n_pairs together. */
size_t sl_wire_tokens_bytes(uint32_t n, size_t n_pairs);
void sl_wire_tokens_encode(const sl_wire_token *t, uint32_t n, const sl_logprob *pairs,
                           size_t n_pairs, void *buf);
/* Refuses unknown finish codes, n_logprobs over SL_MAX_REPORTED, a first pair of another token
 * and values that are not finite or above 0. */
sl_status sl_wire_tokens_decode(const sl_wire_header *h, sl_span payload, const sl_wire_token **out,
                                const sl_logprob **pairs, sl_err *err) SL_MUST_CHECK;

/* CANCEL and ACK: n pairs {u64 request, u64 value}; ACK's value is the number of generated tokens
 * that the coordinator has seen (a worker runs at most SL_MAX_AHEAD tokens past it). */
typedef struct sl_wire_pair {
    uint64_t request, value;
} sl_wire_pair;
void sl_wire_pairs_encode(const sl_wire_pair *p, uint32_t n, void *buf);
sl_status sl_wire_pairs_decode(const sl_wire_header *h, sl_span payload, const sl_wire_pair **out,
                               sl_err *err) SL_MUST_CHECK;

/* KV pages on their way between workers. The coordinator, who knows what is in them, tells one to
 * fetch; that one asks who has the page, block by block as it can take them, and says what became
 * of it. The content's key (sl_pages_chain) is what all three mean by it. */
typedef struct sl_wire_fetch {
    uint64_t transfer; /* its number, never used again in a session */
    sl_page_key key;   /* of all tokens up to the page's end; not none */
    uint64_t request;  /* by this id its source knows it, ... */
    uint32_t index;    /* ...and of its pages this is that one */
    uint32_t page;     /* where it goes, a page of who fetches */
    uint32_t from;     /* worker */
    uint32_t reserved; /* 0 */
} sl_wire_fetch;
void sl_wire_fetches_encode(const sl_wire_fetch *f, uint32_t n, void *buf);
/* header.rows records, a borrowed view: refuses more than SL_MAX_FETCHES, no key, and what is
 * reserved. */
sl_status sl_wire_fetches_decode(const sl_wire_header *h, sl_span payload,
                                 const sl_wire_fetch **out, sl_err *err) SL_MUST_CHECK;

/* What became of a transfer. */
typedef enum sl_kv_fate {
    SL_KV_HERE,    /* all of it is in its page */
    SL_KV_GONE,    /* its source is gone, or does not have it, or was too slow */
    SL_KV_DAMAGED, /* on the way */
    SL_KV_DROPPED, /* its page was given to somebody meanwhile */
    SL_KV_FATES
} sl_kv_fate;

/* Blocks of a KV page: what KV_GET asks for, and the head of KV_PAGES. */
typedef struct sl_wire_blocks {
    uint64_t transfer;
    sl_page_key key;
    uint64_t request;
    uint32_t index;
    uint32_t type;     /* sl_kv_type */
    uint32_t first, n; /* blocks, n > 0 */
    uint64_t bytes;    /* n blocks of the model in that type; of an answer 0: it is not there */
    uint32_t sum;      /* CRC-32C of them; of KV_GET, and of nothing, 0 */
    uint32_t reserved; /* 0 */
} sl_wire_blocks;
#define SL_WIRE_BLOCKS_BYTES 64u /* the head; what follows is aligned */
void sl_wire_blocks_encode(const sl_wire_blocks *b, void *buf);
/* Of either kind; *data: of KV_PAGES, inside the payload, NULL of none. Refuses blocks that the
 * model has not, types that are none, bytes that are not those blocks', and a payload of another
 * length. The sum is the receiver's to compare: what is damaged breaks no rule. */
sl_status sl_wire_blocks_decode(const sl_wire_header *h, sl_span payload, const sl_model_spec *m,
                                sl_wire_blocks *out, const uint8_t **data,
                                sl_err *err) SL_MUST_CHECK;

/* KV_KEPT, KV_SAVE: a page and what is in it; the last ones are of more use than the first. */
typedef struct sl_wire_kept {
    uint32_t page;
    uint32_t reserved; /* 0 */
    sl_page_key key;   /* not none */
} sl_wire_kept;
void sl_wire_kept_encode(const sl_wire_kept *k, uint32_t n, void *buf);
/* header.rows > 0 records, a borrowed view: refuses no key, and what is reserved. Which pages there
 * are is the receiver's to know. */
sl_status sl_wire_kept_decode(const sl_wire_header *h, sl_span payload, const sl_wire_kept **out,
                              sl_err *err) SL_MUST_CHECK;

/* LOGITS: u64 request, u64 first position, then f32 [header.rows][vocab], starting at byte 64. */
#define SL_WIRE_LOGITS_AT 64u
size_t sl_wire_logits_bytes(uint32_t rows, uint32_t vocab);
/* Writes the head; returns where the logits go. */
float *sl_wire_logits_layout(void *buf, uint64_t request, uint64_t position);
sl_status sl_wire_logits_decode(const sl_wire_header *h, sl_span payload, uint32_t vocab,
                                uint64_t *request, uint64_t *position, const float **out,
                                sl_err *err) SL_MUST_CHECK;

#endif
