/* Inside of the server: one sl_call is one HTTP request from its first line to its last byte.
 *
 * Two parties hold a call: libmicrohttpd until the request is completed, and the engine until its
 * last event. The last to let go frees it. Fields are of the connection's thread unless they stand
 * under `lock`. Lock order: store, server, work, kept answer, call, metrics; that of the
 * connections comes last. */
#ifndef SL_SERVE_SERVER_INT_H
#define SL_SERVE_SERVER_INT_H

#include "serve/blocks.h"
#include "serve/conns.h"
#include "serve/cursor.h"
#include "serve/dialect.h"
#include "serve/journal_records.h"
#include "serve/keys.h"
#include "serve/logprobs.h"
#include "serve/metrics.h"
#include "serve/params.h"
#include "serve/plan.h"
#include "serve/server.h"

#include <microhttpd.h>
#include <stdatomic.h>

#define SL_WORK_MAX_THREADS  8u
#define SL_FINGERPRINT_BYTES 48u

typedef struct sl_call sl_call;
typedef struct sl_kept sl_kept;

typedef enum sl_call_phase {
    SL_CALL_BODY,    /* the request is still arriving */
    SL_CALL_WORK,    /* a thread of the pool reads the body; the connection is suspended */
    SL_CALL_WAIT,    /* submitted; nothing is answered yet */
    SL_CALL_STREAM,  /* the answer is under way */
    SL_CALL_REPLIED, /* the whole answer is queued */
} sl_call_phase;

/* A body of at most this many times the limit is read to its end, so that its sender hears of 413.
 */
#define SL_CALL_DISCARD 4u

/* Why a call ends without the engine's doing. */
typedef enum sl_call_abort {
    SL_ABORT_NONE,
    SL_ABORT_GONE, /* the client closed its end */
    SL_ABORT_SLOW, /* too many tokens unread */
    SL_ABORT_NOMEM,
    SL_ABORT_STOPPING, /* the server is being freed */
} sl_call_abort;

/* What is to be done about a body, and then on the connection's thread unless call->refusal says
 * what is wrong. */
typedef struct sl_job {
    void (*work)(struct sl_call *call);
    enum MHD_Result (*then)(struct sl_call *call);
    struct sl_call *next; /* in the queue, under its lock */
} sl_job;

/* The pool's threads, and the calls that wait for one. */
typedef struct sl_work {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    sl_call *first, *last;
    uint32_t n_waiting;
    bool stopping;
    pthread_t thread[SL_WORK_MAX_THREADS];
    uint32_t n_threads;
} sl_work;

/* Kept answers, the newest first. */
typedef struct sl_store {
    uint8_t salt[SL_JOURNAL_SALT_BYTES]; /* of hashes of callers and keys; the journal's */
    atomic_uint renewal;                 /* of the journal: how many have begun; under the lock */
    pthread_mutex_t lock;
    sl_kept *first;
    size_t n, bytes;
    uint64_t n_replayed, n_resumed;
    uint64_t last_number; /* of the journal's requests */
} sl_store;

/* The thread that syncs and renews the journal. */
typedef struct sl_keeper {
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopping;       /* under the lock */
    uint64_t renewed_ns; /* its own: when it last renewed, or tried */
    size_t kept_bytes;   /* of the file as it was renewed */
} sl_keeper;

#define SL_LIVE_WATCHERS 8u /* of /live, at once */

/* Who watches, and the thread that samples for them. */
typedef struct sl_live {
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopping; /* under the lock, as is: */
    uint32_t n_watchers;
} sl_live;

/* The planning for a client, one at a time, and the thread that waits for its process. */
typedef struct sl_planner {
    char *program, *model_path, *profile_path; /* absolute; of malloc, as realpath gives them */
    sl_profile costs;                          /* of the profile */
    bool offered;                              /* written before anybody is let in */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopping;           /* under the lock, as are: */
    sl_call *call;           /* planned for, with a reference; NULL: nothing is planned */
    sl_plan_request request; /* the thread's while there is a call */
    uint64_t done, total;    /* steps of the search */
} sl_planner;

/* One answer to one prompt: a request of the engine's. */
typedef struct sl_choice {
    struct sl_call *call;
    uint32_t index;       /* in the answer */
    const sl_ids *prompt; /* one of call->prompt */
    uint32_t max_tokens;
    sl_pace pace;
    sl_detok detok;
    sl_stop *stop;
    sl_ids taken;    /* tokens moved out of `queue`, being decoded */
    size_t taken_at; /* of them, the next one */
    bool closed;     /* and the end, which is the last */
    sl_logprob_list taken_logprobs;
    sl_finish taken_last;   /* `last` as of then */
    uint32_t n_prompt_left; /* first tokens of the queue that are the prompt's */
    sl_ids shown;           /* tokens for the client: of this chunk, or all when not streamed */
    sl_jbuf text;           /* decoded and certain: of this chunk, or all when not streamed */
    sl_answer *answer;      /* of a chat: what its tokens say; NULL: nothing is told apart */
    sl_jbuf reasoning;      /* text of a chat that is not the answer, as `text` */
    sl_reply_call *calls;   /* of tools, as `text` */
    size_t n_calls, calls_cap;
    sl_reply_run *runs; /* in which order, where the dialect wants to know */
    size_t n_runs, runs_cap;
    sl_status told;           /* what went wrong while it was told apart */
    bool primed;              /* `answer` has what was forced */
    sl_jbuf prompt_scores;    /* entries of its list, when asked for */
    sl_logprob_text logprobs; /* the same */
    sl_ids mute;              /* of an answer in blocks: tokens that have said nothing yet, with */
    sl_logprob_list mute_logprobs;
    size_t n_scored;           /* bytes of `logprobs` that belong to runs */
    uint64_t offset;           /* characters decoded */
    bool echoed, begun, ended; /* prompt shown; first and last chunk written */
    uint64_t n_tokens;         /* generated and counted in usage */
    uint64_t n_counted;        /* of them, in call->usage */
    uint64_t n_thought;        /* of them, reasoning */
    uint64_t counted_thought;  /* of these, in call->usage */
    bool thinks;               /* the token at hand is reasoning */
    bool full;                 /* it gets less than it asked for: what the context left */
    const char *finish;        /* "stop", "length", "tool_calls" or NULL */
    bool by_id;                /* the last token is one of the request's stop ids: */
    uint32_t stop_id;

    /* under call->lock */
    bool submitted; /* engine_id is valid */
    uint64_t engine_id;
    bool muted;     /* tokens are no longer wanted */
    size_t n_heard; /* tokens that came from a kept answer */
    sl_pace made;   /* `pace` as of what is in the queue */
    size_t n_made;  /* tokens that came from the engine, and reports on the prompt's */
    size_t n_prompt_heard;
    uint32_t n_found; /* tokens of its prompt whose rows were there */
    sl_ids queue;
    sl_logprob_list queue_logprobs; /* [queue.len][sl_api_stride] */
    sl_finish last;
} sl_choice;

struct sl_call {
    sl_server *server;
    struct sl_call *prev, *next; /* server->calls, under its lock */
    uint64_t serial;
    bool told;      /* that the server stops; under its lock */
    bool answering; /* counted in server->n_answering; under its lock */
    atomic_uint refs;

    sl_call_phase phase;
    char request_id[65];       /* X-Request-Id, and in log lines */
    const char *path;          /* static: the route it took; NULL: none */
    const sl_dialect *dialect; /* of its route, and of what it hears; never NULL */
    unsigned http;             /* status of its answer; 0: none yet */
    unsigned retry_after_s;    /* not 0: the answer says so */
    sl_jbuf body;
    bool keep_body;
    size_t held;               /* bytes of `body` counted in server->held */
    bool crowded;              /* all bodies together passed their limit: this one is not kept */
    bool too_large;            /* the body passed the limit and is read without being kept */
    size_t n_body, n_expected; /* bytes of the body: so far, announced (SIZE_MAX: in chunks) */
    bool closes;               /* the connection, with its answer */
    const char *allow;         /* with 405: what the path takes instead */
    sl_journal_digest caller;  /* who asks for tokens; not changed once it has started */
    const char *key;           /* Idempotency-Key; NULL: none, or nothing is kept */
    bool keeps;                /* it is to be kept: it has a key, or there is a journal */
    sl_kept *kept;             /* what it reads; NULL: its choices are the engine's requests */
    bool claims;               /* it has not read all of it; under the store's lock */
    sl_call *next_reader;      /* under that one's lock */
    bool replayed;             /* another call of that key came before */
    bool fetched, as_stream;   /* asked for by its id; and how */
    const char *after;         /* the event that its stream follows; NULL: it begins at the first */
    const char *after_name;    /* static: how it was said */

    /* the body is read; of the pool's thread while `working` */
    sl_job job;
    /* what has to be put into the body before it is read; NULL: nothing */
    sl_status (*complete)(struct sl_call *call, sl_api_error *e);
    sl_api_error refusal; /* http is 0 when there is none */
    sl_jbuf answer;       /* what was made of the body, when that is the answer */

    /* a generation */
    sl_api_params params;
    sl_ids *prompt; /* [n_prompts] */
    size_t n_prompts;
    sl_choice *choice; /* [n_choices]: of each prompt in turn */
    size_t n_choices;
    bool opened;        /* the prompt of the chat ends inside a thought */
    sl_tool_set *tools; /* that may be called; NULL: none */
    sl_shared *shape;   /* what its answers are to be like; NULL: anything */
    sl_ids forced;      /* what the prompt ends with: the beginning of a call, part of the answer */
    char *prompt_text;  /* of the prompt, for who asked; NULL: nobody did */
    char id[48];        /* "chatcmpl-..." */
    sl_reply_head head;
    sl_reply_usage usage;     /* of the chunks so far */
    sl_reply_timings timings; /* of an answer of one choice, as of what was taken */
    sl_blocks blocks;         /* of what is written of the answer */
    sl_cursor cursor;         /* of a stream whose answer is kept */
    sl_jbuf step;             /* what one token of it gave */
    sl_jbuf events;           /* server-sent events on their way */
    size_t events_at;         /* bytes of them already handed over */
    bool ended;               /* the last event is written */
    bool counted;             /* its outcome is in the metrics */
    uint64_t start_ns;
    uint64_t spoke_ns; /* when the client last got something; the watcher's while suspended */
    bool fd_watched;

    pthread_mutex_t lock;
    sl_conn *conn; /* until the call is closed */
    struct MHD_Connection *connection;
    int fd;
    bool suspended, closed;
    bool working;       /* a thread of the pool has it: suspended, whatever else happens */
    bool started;       /* something was submitted */
    uint64_t n_queued;  /* tokens in the queues of an answer that is not streamed */
    bool muted;         /* tokens are no longer wanted, of no choice */
    sl_api_error error; /* the first one; written once, under the lock, with `failed` */
    bool failed;
    sl_call_abort abort;
    bool marked;        /* the engine's callback set `abort`; the watcher acts on it */
    bool shut;          /* the socket of a slow client is shut down */
    bool watches;       /* what goes on: its `events` are under the lock */
    const char *remark; /* static: what a stream is to say that has been quiet; NULL: nothing */
};

struct sl_server {
    sl_server_opts o; /* strings point to the copies below */
    char *api_key, *admin_key, *url;
    sl_keys keys;  /* api_key, and those of a file */
    bool keyed;    /* one of them is wanted */
    char **origin; /* [n_origins] of pages that may ask */
    size_t n_origins;
    bool any_origin;
    char **names; /* [n_names] what clients may call the model */
    size_t n_names;
    const char *model; /* the first of them */
    sl_api_limits limits;
    sl_metrics metrics;
    struct MHD_Daemon *daemon;
    int listen_fd;
    sl_tls_front *tls; /* NULL: clients speak in the clear */
    char *socket_path; /* where that is a file; NULL: an address */
    uint16_t port;
    uint64_t created;                       /* seconds since 1970 */
    char fingerprint[SL_FINGERPRINT_BYTES]; /* "": of no plan */
    const char *numerics;                   /* its name; NULL: of no plan */
    sl_answer_style style;                  /* how chats answer */
    sl_fim fim;                             /* how gaps are filled */
    atomic_bool told_tools;                 /* that its template shows none is in the log */
    size_t max_text_bytes;                  /* a longer prompt cannot fit the context */
    uint32_t max_num_seqs; /* requests that one attention worker runs at once; 0: of no plan */
    atomic_bool stopping;
    atomic_size_t held; /* bytes of all bodies that are kept */
    sl_conns conns;
    sl_work work;
    sl_store store;
    sl_keeper keeper;
    sl_live live;
    sl_planner planner;
    pthread_mutex_t guides_lock;
    struct sl_guides *guides; /* of shapes that were asked for; under that lock */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* calls left the list, or were freed */
    uint64_t refs;          /* the owner, and every call */
    sl_call *calls;
    uint64_t next_serial;
    bool draining;        /* no new generation starts */
    uint32_t n_answering; /* generations that are not answered to their end */

    int epoll_fd, event_fd;
    pthread_t watcher;
    atomic_bool watching;
};

/* call.c: the life of a call */
sl_call *sl_call_create(sl_server *s, sl_conn *conn, struct MHD_Connection *c,
                        const char *client_id);
void sl_call_unref(sl_call *call);
/* One of nobody's, only to submit what is in its params, prompts and choices. NULL: no memory. */
sl_call *sl_call_create_unheard(sl_server *s);
/* Asks the engine to drop it and wakes the connection; the first reason stays, SL_ABORT_NONE acts
 * on one already set. Thread: any but the engine's. */
void sl_call_abort_with(sl_call *call, sl_call_abort why);
/* libmicrohttpd is done with the request. */
void sl_call_close(sl_call *call);
/* Queues an answer; takes what is in b. */
enum MHD_Result sl_call_reply(sl_call *call, unsigned http, const char *content_type, sl_jbuf *b);
enum MHD_Result sl_call_reply_error(sl_call *call, const sl_api_error *e);
enum MHD_Result sl_call_reply_too_large(sl_call *call);
enum MHD_Result sl_call_reply_malformed(sl_call *call, const char *fault);
/* A header of the request by its name, borrowed; NULL: it has none. The connection's thread. */
static inline const char *sl_call_header(const sl_call *call, const char *name) {
    return MHD_lookup_connection_value(call->connection, MHD_HEADER_KIND, name);
}
/* Queues a response with what every one carries; takes it. ok: it is whole so far. */
enum MHD_Result sl_call_queue(sl_call *call, unsigned http, struct MHD_Response *r, bool ok);
enum MHD_Result sl_call_reply_crowded(sl_call *call);
/* Frees the body and what it takes of the limit of all bodies. */
void sl_call_drop_body(sl_call *call);
/* Keeps n more bytes of the body; false closes the connection. */
bool sl_call_add_body(sl_call *call, const char *data, size_t n);

/* choice.c: from the engine's tokens to text */
sl_status sl_choices_create(sl_call *call, sl_err *err) SL_MUST_CHECK;
void sl_choices_free(sl_call *call);
/* The engine's thread; ctx is the choice. */
void sl_choice_on_event(void *ctx, const sl_request_event *ev);
/* n more tokens to decode, with their log-probabilities or NULL; under the call's lock. */
sl_status sl_choice_queue(sl_choice *c, const uint32_t *id, size_t n,
                          const sl_logprob *logprob) SL_MUST_CHECK;
/* The first error stays; under the call's lock. */
void sl_call_fail(sl_call *call, sl_status why, const char *text);
/* Cancels what still runs. Thread: any but the engine's. */
void sl_choices_cancel(sl_call *call);
/* Whether the connection is to be woken for tokens before the last ones; under the call's lock. */
bool sl_call_has_enough(const sl_call *call);
/* Decodes `most` of the tokens that were taken, SIZE_MAX: all; sets finish when the choice is
 * complete. What the end of the last one brings is a step of its own, unless all are wanted. */
sl_status sl_choice_decode(sl_choice *c, size_t most) SL_MUST_CHECK;
/* Whether there is something left to decode. */
bool sl_choice_has_more(const sl_choice *c);
/* What is new of a choice as events; what is whole as a choice of the answer. */
void sl_choice_write_events(sl_choice *c, sl_jbuf *b);
void sl_choice_write(const sl_choice *c, sl_jbuf *b);
/* Bytes that the answer has at least for what is decoded of a choice. */
size_t sl_choice_bytes(const sl_choice *c);
/* What a whole answer shows of its prompt; borrowed from c. */
sl_reply_ids sl_choice_prompt_ids(const sl_choice *c);

/* work.c: reading large bodies beside the connections */
sl_status sl_work_start(sl_server *s, sl_err *err) SL_MUST_CHECK;
/* Waits for what runs; what waits is skipped if it was aborted, and nothing comes any more. */
void sl_work_stop(sl_server *s);
/* Does the work on a body of n bytes, at once or on another thread, then `then` or the answer of
 * call->refusal. */
enum MHD_Result sl_work_do(sl_call *call, size_t n, void (*work_on)(sl_call *),
                           enum MHD_Result (*then)(sl_call *));
/* The connection waits, in SL_CALL_WORK: another thread has the call, with a reference, until it
 * gives it back; then what that wrote is the connection's. */
void sl_work_lend(sl_call *call);
void sl_work_give_back(sl_call *call);
/* The connection was woken in SL_CALL_WORK. */
enum MHD_Result sl_work_done(sl_call *call);

/* generate.c: requests that run on the engine */
enum MHD_Result sl_call_generate(sl_call *call, const char *rest);
/* What the engine is asked for a choice; borrows from its call. */
sl_request_params sl_call_request(const sl_choice *c);
/* From the body, or that of a kept answer, to choices that only have to be submitted. */
sl_status sl_call_prepare(sl_call *call, sl_api_error *e) SL_MUST_CHECK;
/* Params to call->prompt, which it makes. */
sl_status sl_call_encode(sl_call *call, sl_api_error *e) SL_MUST_CHECK;
/* The connection was woken while it waits for its answer. */
enum MHD_Result sl_call_advance(sl_call *call);

/* prefill.c */
/* The prompt of a chat whose answer goes on from the last message: call->prompt[0] and
 * call->opened. *param: the field at fault, where it is another one than is there. */
sl_status sl_call_go_on(sl_call *call, sl_chat_options options, const char **param,
                        sl_err *err) SL_MUST_CHECK;
/* What those words say of a thought: 1: they have opened one; -1: they are behind one, or without;
 * 0: there are no words, so what the template wrote counts. */
int sl_call_given_thought(const sl_call *call);

/* fingerprint.c */
/* A name of what decides the bits of answers: the program, the model by its hash, its chat template
 * (NULL: it has none), numerics, and without `exact` what of the plan sums a row's experts in
 * groups. Deployments that have the same bits, whatever their schedule and workers, have the same
 * name with `exact`. */
sl_status sl_fingerprint(const sl_model_spec *m, const sl_plan *p, const sl_chat *chat,
                         char out[SL_FINGERPRINT_BYTES], sl_err *err) SL_MUST_CHECK;

/* bias.c: texts of logit_bias become the ids of their tokens, each with the same bias. */
sl_status sl_call_take_bias(sl_call *call, sl_api_error *e) SL_MUST_CHECK;

/* timings.c: how long an answer takes */
/* What is said of it from now on: call->head.timings. Refuses what only an answer of one choice
 * that nobody can ask for again has. */
sl_status sl_call_begin_timings(sl_call *call, sl_api_error *e) SL_MUST_CHECK;
/* call->timings of what its choice has made; under the call's lock. */
void sl_call_take_timings(sl_call *call);

/* shapes.c: what answers are to be like */
/* call->shape of what its params and tools ask for; refuses what cannot be enforced. */
sl_status sl_call_take_shape(sl_call *call, sl_api_error *e) SL_MUST_CHECK;
/* Whether the call's answer has a thought (*opened: the prompt has begun it), or may begin with
 * one. */
bool sl_call_thinks(const sl_call *call, bool *opened);

/* bad_words.c: the tokens of p->bad_words, into the call's sampling; refuses too many. */
sl_status sl_call_take_bad_words(sl_call *call, sl_api_error *e) SL_MUST_CHECK;

/* prompts.c */
/* Refuses at once what would take long to tokenize and could never fit. */
sl_status sl_call_check_text(const sl_call *call, sl_api_error *e) SL_MUST_CHECK;
/* One prompt as ids; takes those that it has. */
sl_status sl_call_encode_prompt(const sl_call *call, sl_api_prompt *p, sl_ids *out,
                                sl_err *err) SL_MUST_CHECK;

/* The text of the prompt, special tokens written out, for an answer that is to have it. */
sl_status sl_call_take_text(sl_call *call, sl_api_error *e) SL_MUST_CHECK;

/* fill.c: answers that stand between two texts */
/* Refuses them where the model's tokenizer has no tokens for that; else their ends become ids that
 * end the answer. */
sl_status sl_call_take_fill(sl_call *call, sl_api_error *e) SL_MUST_CHECK;
/* One prompt of such a request. */
sl_status sl_call_fill(const sl_call *call, const sl_api_prompt *prompt, sl_ids *out,
                       sl_err *err) SL_MUST_CHECK;

/* thought.c: how long a thought may be, into the call's sampling; refuses what cannot be kept. */
sl_status sl_call_take_budget(sl_call *call, sl_api_error *e) SL_MUST_CHECK;
/* call->shape; where none sees to the function that has to be called, the prompt goes on with the
 * beginning of its call. */
sl_status sl_call_take_tools(sl_call *call, sl_api_error *e) SL_MUST_CHECK;
/* Whether the body may ask for a shape, which takes time to compile. */
bool sl_call_may_shape(sl_span body);

/* GET of a kept answer of the call's dialect by its id. */
enum MHD_Result sl_call_fetch(sl_call *call, const char *id);

/* responses.c: responses that go on, and by their ids */
enum MHD_Result sl_responses_create(sl_call *call, const char *rest);
enum MHD_Result sl_responses_get(sl_call *call, const char *rest);
enum MHD_Result sl_responses_delete(sl_call *call, const char *rest);
enum MHD_Result sl_responses_post(sl_call *call, const char *rest);

/* caller.c */
/* A text as what is kept in memory and on disk: no secret that opens anything. */
sl_journal_digest sl_digest_of(const sl_store *st, const char *text);
bool sl_digest_is(const sl_journal_digest *a, const sl_journal_digest *b);
/* Who asks: a key names the same caller under either header. The connection's thread. */
sl_journal_digest sl_caller_of(const sl_call *call);
/* The key of this server's that it came with, borrowed from its headers; NULL: none. */
const char *sl_caller_key(const sl_call *call);
/* Whether the request shares its KV pages, and with whom: shares and salt of *r. */
void sl_caller_tenant(const sl_call *call, sl_request_params *r);

/* slots.c */
enum MHD_Result sl_slots_answer(sl_call *call, const char *rest);
/* Requests that may run at once, at all attention workers that are there. */
uint32_t sl_server_slots(sl_server *s);

/* props.c */
enum MHD_Result sl_props_answer(sl_call *call, const char *rest);

/* kept.c: answers that outlive their connections */
/* Sets call->key; false, with the error, when the request has a key that is none. */
bool sl_kept_read_key(sl_call *call, sl_api_error *e);
/* Sets call->after: the event that the client has already. */
void sl_kept_read_after(sl_call *call);
/* Where the stream of call->kept begins, whose choices are known. Refuses an id that is none. */
sl_status sl_kept_begin_stream(sl_call *call, sl_api_error *e) SL_MUST_CHECK;
/* There is no such event: the answer has ended before it. */
sl_status sl_kept_refuse_after(const sl_call *call, sl_api_error *e);
/* The answer that belongs to call->key as call->kept: there already (call->replayed), or new, as
 * one without a key always is. Takes the body. Refuses a key that came with another body, what
 * there is no room for, and what the journal cannot take. */
sl_status sl_kept_open(sl_call *call, sl_api_error *e) SL_MUST_CHECK;
/* The caller's own answer of that id as call->kept; false: none. */
bool sl_kept_find(sl_call *call, const char *id);
/* The call is woken when it has more. */
sl_status sl_kept_join(sl_call *call, sl_api_error *e) SL_MUST_CHECK;
/* Its lock, taken before the call's by who wants to pull, or to wait because there is nothing. */
void sl_kept_lock(sl_kept *k);
void sl_kept_unlock(sl_kept *k);
/* With SL_SYNC_EACH: what there is of it becomes durable, which waits for the disk; whether there
 * is more now, under its lock. */
void sl_kept_settle(sl_kept *k);
bool sl_kept_unsettled(const sl_kept *k);
/* What comes next of it to the call's queues, a little at a time; under both locks. */
sl_status sl_kept_pull(sl_call *call) SL_MUST_CHECK;
/* The request it answers. */
sl_span sl_kept_body(const sl_kept *k);
/* Submits the request of one choice; sets its callback. */
sl_status sl_kept_submit(sl_kept *k, size_t choice, sl_request_params *r,
                         sl_err *err) SL_MUST_CHECK;
/* A submission failed: it is forgotten, and readers get this error. */
void sl_kept_refuse(sl_kept *k, sl_status why, const char *text);
/* No more tokens are wanted of a choice: a stop string was met. */
void sl_kept_stop(sl_kept *k, size_t choice);
/* All of it is on its way to the reader: it holds up nobody's eviction from here on. */
void sl_kept_heard(sl_call *call);
/* The call goes; the answer goes on. */
void sl_kept_leave(sl_call *call);
/* Forgets those that are too old, cancels those to which nobody came back. About once a second. */
void sl_kept_sweep(sl_server *s);
/* Cancels and forgets all; nothing is opened any more. The journal keeps them. */
void sl_kept_close(sl_server *s);
sl_metrics_kept sl_kept_stats(sl_server *s);

/* resume.c: what the journal has, before anybody is let in. */
sl_status sl_resume(sl_server *s, sl_err *err) SL_MUST_CHECK;

/* keeper.c: nothing without a journal */
sl_status sl_keeper_start(sl_server *s, sl_err *err) SL_MUST_CHECK;
void sl_keeper_stop(sl_server *s);

/* routes.c: every path */
/* One that ends in '/' takes what follows it as its argument, but for "/" itself. */
typedef struct sl_route {
    const char *path;
    enum { SL_GET, SL_POST, SL_DELETE } method; /* GET is HEAD, too */
    /* clients with the API key, all, those with the admin key */
    enum { SL_TO_KEY, SL_TO_ALL, SL_TO_ADMIN } to;
    enum MHD_Result (*answer)(sl_call *call, const char *rest);
    const char *says; /* what it answers */
    const char *rest; /* of its argument, what there is, with spaces between; NULL: it has none */
    /* Its body as a JSON Schema; NULL: it takes none, or reads nothing of it. */
    void (*body)(sl_jbuf *b, const sl_server *s, const struct sl_route *r);
    sl_dialect_id dialect; /* OpenAI's chats, unless it says otherwise */
} sl_route;
extern const sl_route sl_routes[];
extern const size_t sl_n_routes;
/* Whether the body is worth keeping: nobody without a key makes the server hold 16 MiB. */
bool sl_server_wants_body(sl_call *call, const char *path, const char *method);
enum MHD_Result sl_server_route(sl_call *call, const char *path, const char *method);

/* admin.c: routes of whoever has the key for them */
enum MHD_Result sl_admin_list(sl_call *call, const char *rest);
enum MHD_Result sl_admin_wish(sl_call *call, const char *rest);
/* The JSON Schema of a wish's body. */
void sl_admin_write_wish(sl_jbuf *b, const sl_api_limits *limits);

/* live.c: samples of what goes on */
void sl_live_init(sl_live *live);
sl_status sl_live_start(sl_server *s, sl_err *err) SL_MUST_CHECK;
void sl_live_stop(sl_server *s);
enum MHD_Result sl_live_answer(sl_call *call, const char *rest);

/* planner.c: deployments planned for clients */
void sl_planner_init(sl_planner *p);
sl_status sl_planner_start(sl_server *s, sl_err *err) SL_MUST_CHECK;
void sl_planner_stop(sl_server *s); /* waits for what runs, whose call is aborted by then */
enum MHD_Result sl_planner_catalogue(sl_call *call, const char *rest);
enum MHD_Result sl_planner_progress(sl_call *call, const char *rest);
enum MHD_Result sl_planner_plan(sl_call *call, const char *rest);

/* vocabulary.c: the tokenizer's own words */
enum MHD_Result sl_vocabulary_answer(sl_call *call, const char *rest);

/* openapi.c */
enum MHD_Result sl_openapi_answer(sl_call *call, const char *rest);

/* page.c: the web page */
enum MHD_Result sl_page_index(sl_call *call, const char *rest);
enum MHD_Result sl_page_icon(sl_call *call, const char *rest);
enum MHD_Result sl_page_answer(sl_call *call, const char *rest);

/* framing.c: requests that are not exactly HTTP/1.1 */
/* What is wrong with the head of a request, or NULL; *chunked: its body comes in chunks. */
const char *sl_framing_fault(struct MHD_Connection *c, const char *method, const char *url,
                             const char *version, bool *chunked);
/* The target is as it was sent. */
bool sl_framing_target_is_clean(const char *target);

/* guard.c: what a browser may ask of a server without a key */
/* False, with the error, if the request may come from a page of another site. */
bool sl_server_trusts_origin(sl_call *call, sl_api_error *e);

/* cors.c: pages of other sites that may ask */
/* The list of the options; SL_ERR_ARG names what is no origin. */
sl_status sl_cors_set(sl_server *s, const char *list, sl_err *err) SL_MUST_CHECK;
/* What the answer says of the request's Origin; NULL: it has none, or one that may not. */
const char *sl_cors_allows(const sl_call *call);
/* Headers of every answer; false: no memory. */
bool sl_cors_add(const sl_call *call, struct MHD_Response *r);
/* Whether a browser asks whether a page may ask. */
bool sl_cors_asks(const sl_call *call, const char *method);

/* watch.c: the thread that watches sockets */
sl_status sl_watch_start(sl_server *s, sl_err *err) SL_MUST_CHECK;
/* It accepts connections from now on, until the server is stopping. */
sl_status sl_watch_listen(sl_server *s, sl_err *err) SL_MUST_CHECK;

/* listen.c */
/* Binds listen_fd, and sets port and url. host: an address, or unix:PATH. */
sl_status sl_server_listen(sl_server *s, const char *host, sl_err *err) SL_MUST_CHECK;
void sl_server_unlisten(sl_server *s);
void sl_watch_stop(sl_server *s);
void sl_watch_add(sl_call *call); /* again: nothing happens */
void sl_watch_remove(sl_call *call);
void sl_watch_kick(sl_server *s);

/* gate.c */
/* Counts the call among those that a drain waits for. False, with the error: the server drains, or
 * has too many connections. */
bool sl_server_enter(sl_call *call, sl_api_error *e);
bool sl_server_is_draining(sl_server *s);
/* One place of SL_LIVE_WATCHERS, and it is given back. */
bool sl_server_enter_watcher(sl_server *s);
void sl_server_leave_watcher(sl_server *s);
void sl_server_ref(sl_server *s);
void sl_server_unref(sl_server *s);

#endif
