/* The OpenAI API over HTTP/1.1, in front of an engine. docs/api.md describes it to its users.
 *
 * A few threads of libmicrohttpd serve all connections: a connection that waits for tokens is
 * suspended, and the engine's callbacks wake it. Large bodies are read on further threads. One more
 * thread watches the sockets of waiting requests, so that a client who leaves stops its request.
 * Thread: owner for create and free. */
#ifndef SL_SERVE_SERVER_H
#define SL_SERVE_SERVER_H

#include "engine/coord/engine.h"
#include "format/cached.h"
#include "serve/journal.h"
#include "spec/plan.h"
#include "text/chat.h"
#include "tls/tls.h"

typedef struct sl_server sl_server;

/* When what the journal was told is made durable; it outlives this process anyway. */
typedef enum sl_sync {
    SL_SYNC_NEVER,  /* when the system likes */
    SL_SYNC_SECOND, /* about once a second */
    SL_SYNC_EACH,   /* before a client hears of it */
} sl_sync;

/* Pointers up to `chat` are borrowed until sl_server_free, strings are copied, the plan is read. 0
 * takes the default.
 */
/* Whose requests may begin with KV pages that another one computed: nobody's, those of one API key,
 * all. */
typedef enum sl_cache { SL_CACHE_OFF, SL_CACHE_KEY, SL_CACHE_SHARED } sl_cache;

typedef struct sl_server_opts {
    sl_engine *engine;
    const sl_tokenizer *tokenizer;
    const sl_chat *chat;     /* NULL: the model has no template, chat requests are refused */
    const sl_plan *plan;     /* of the engine, as it starts; NULL: answers have no fingerprint */
    const char *tool_format; /* of calls, by name; NULL or "auto": as the template says */
    const char *host;        /* address or "localhost"; NULL: 127.0.0.1 */
    uint16_t port;           /* 0: any free one */
    /* Its own reference is taken; NULL: clients speak in the clear. */
    sl_tls_pair *tls;
    const char *api_key;     /* NULL or "": none */
    const char *api_keys;    /* further ones, see sl_server_set_keys; NULL: none. Without any
                                key only a loopback host is accepted */
    const char *cors_origin; /* sites whose pages may ask, with commas; NULL or "": none */
    const char *admin_key;   /* of /admin; NULL or "": there is no such path */
    sl_cache cache;          /* who begins with pages that others computed; default: nobody */
    /* [SL_JOURNAL_SALT_BYTES] with which keys of KV pages are made where there is no journal, so
     * that pages of before are found; NULL: one that is drawn. Borrowed for the creation. */
    const uint8_t *salt;
    const char *served_model_name; /* or several, with commas; answers carry the first */
    sl_generation_spec generation; /* sampling where a request is silent */
    uint32_t context;           /* prompt and answer of a request together; default: the model's */
    uint32_t threads;           /* that serve connections; default 2 */
    uint32_t max_connections;   /* with requests for tokens; default 1024 */
    uint32_t idle_timeout_s;    /* of a connection that neither reads nor waits; default 120 */
    uint32_t stall_timeout_s;   /* of a body that brings less than 1 KiB a second; default 10 */
    uint32_t keepalive_s;       /* a stream that is quiet for so long gets a comment; 0: never */
    bool timings;               /* answers say how long they took */
    uint32_t max_unread_tokens; /* a stream whose client is further behind is cancelled; 4096 */
    size_t max_body_bytes;      /* default 16 MiB */
    size_t max_held_bytes;      /* of the bodies of all requests together; default 64 MiB */
    size_t max_answer_bytes;    /* of one that is not streamed; default 16 MiB */
    uint32_t work_threads;      /* that read large bodies, 8 at most; default 2 */
    uint32_t max_work;          /* requests that wait for one of these; default 1024 */
    uint32_t responses;         /* answers with an Idempotency-Key that are kept; 0: none */
    size_t responses_bytes;     /* of them together; default 64 MiB */
    uint32_t responses_ttl_s;   /* how long after their end; default 600 */
    uint32_t responses_grace_s; /* one that nobody reads is cancelled then; 0: at once */
    /* NULL: none. Else every request is kept and written down there, and what it holds goes on from
     * where it is. Borrowed until the server and the engine are gone; wants `responses`. */
    sl_journal *journal;
    sl_sync journal_sync;
    const sl_cached *weights; /* of this machine, for metrics; borrowed; NULL: nothing to tell */
    const char *planner;    /* this program, whose verb `plan` plans for clients; NULL: none does */
    const char *model_path; /* of what is served; with a planner */
    const char *profile;    /* measured costs for it; NULL or "": none */
    uint32_t plan_timeout_s; /* that it may take; default 60 */
    /* What --schedule auto said of a micro-batch in a block without experts, at the two points of
     * sl_predicted, whose lanes share its rows; 0: nothing, or there is no such block. */
    double predicted_dense_s[2];
} sl_server_opts;

/* Listens and serves when it returns. SL_ERR_ARG: a host that is no address, or one beyond this
 * machine without an api_key, or a file with TLS; SL_ERR_IO: the address cannot be bound;
 * SL_ERR_LIMIT: this process may have hardly any open files. Its soft limit of them is raised to
 * the hard one; where that allows less than max_connections, fewer are taken, and the log says so.
 */
sl_status sl_server_create(const sl_server_opts *o, sl_server **out, sl_err *err) SL_MUST_CHECK;

/* Stops listening, ends running requests with a clear error, waits for the engine's last events of
 * them (at most 10 s), closes all connections. NULL-safe. */
void sl_server_free(sl_server *s);

/* Other keys than those of api_keys, beside api_key: one a line, but for empty lines and those that
 * begin with '#'. What was let in goes on. On an error nothing has changed; none is one, too.
 * Thread: any. */
sl_status sl_server_set_keys(sl_server *s, const char *lines, sl_err *err) SL_MUST_CHECK;

/* Clients that connect from now on get this certificate, of a server that has had one. Its own
 * reference is taken. Thread: any. */
void sl_server_set_tls(sl_server *s, sl_tls_pair *pair);

/* From now on new generations are answered 503 and /health says "draining"; those that run go on.
 * Thread: any. */
void sl_server_drain(sl_server *s);
/* Generations that are not answered to their last byte. Thread: any. */
uint32_t sl_server_running(sl_server *s);

/* What a journal must fit: the model, and what decides how a request is read. */
sl_status sl_server_about(const sl_model_spec *spec, const sl_tokenizer *tok,
                          const sl_generation_spec *gen, sl_journal_about *out,
                          sl_err *err) SL_MUST_CHECK;

uint16_t sl_server_port(const sl_server *s);
/* "http://HOST:PORT" or, with TLS, "https://HOST:PORT"; borrowed until sl_server_free. */
const char *sl_server_url(const sl_server *s);

#endif
