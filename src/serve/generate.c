/* A request from its JSON to its last byte: encode, submit, wait, decode, answer. */
#include "serve/server_int.h"

#include "base/clock.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/random.h>

#define DEFAULT_COMPLETION_TOKENS 16u /* OpenAI's, for /v1/completions */
#define STREAM_BLOCK_BYTES        8192u

typedef enum take {
    TAKE_WAIT,   /* nothing yet; the connection is suspended */
    TAKE_TOKENS, /* call->taken has tokens, or *last says it is over */
    TAKE_GONE,   /* nobody is there to answer */
    TAKE_FAILED, /* call->error is the answer */
} take;

static double seconds_since(uint64_t then_ns, uint64_t now_ns) {
    return 1e-9 * (double)(now_ns - then_ns);
}

static void set_abort_error(sl_call *call) {
    if (call->abort == SL_ABORT_NOMEM)
        sl_api_error_of(&call->error, SL_ERR_NOMEM, NULL, NULL);
    else
        sl_api_error_of(&call->error, SL_ERR_CANCELLED, NULL,
                        "the server is stopping; the request was ended");
}

static void suspend_locked(sl_call *call) {
    call->suspended = true;
    MHD_suspend_connection(call->connection);
}

/* The engine's thread: hands tokens over and wakes the connection; never blocks for long. */
static void on_event(void *ctx, const sl_request_event *ev) {
    sl_call *call = ctx;
    sl_server *s = call->server;
    sl_err err = {0};
    uint64_t now_ns = sl_now_ns();
    pthread_mutex_lock(&call->lock);
    uint64_t before_ns = call->last_token_ns;
    if (ev->n > 0) call->last_token_ns = now_ns;
    if (!call->muted && call->params.stream && call->queue.len + ev->n > s->o.max_unread_tokens) {
        call->abort = SL_ABORT_SLOW;
        call->muted = call->marked = true;
    }
    for (uint32_t i = 0; i < ev->n && !call->muted; i++) {
        if (sl_ids_push(&call->queue, ev->tokens[i], &err) == SL_OK) continue;
        call->abort = SL_ABORT_NOMEM;
        call->muted = call->marked = true;
    }
    bool over = ev->finish != SL_FINISH_NONE, marked = call->marked;
    if (over) call->last = ev->finish;
    if (ev->finish == SL_FINISH_ERROR && call->abort == SL_ABORT_NONE)
        sl_api_error_of(&call->error, ev->status, NULL, ev->message);
    bool wanted = call->params.stream || call->params.n_stop > 0;
    if (call->suspended && (over || (wanted && ev->n > 0 && !marked))) {
        call->suspended = false;
        MHD_resume_connection(call->connection);
    }
    pthread_mutex_unlock(&call->lock);
    if (ev->n > 0 && before_ns == 0)
        sl_metrics_first_token(&s->metrics, seconds_since(call->start_ns, now_ns));
    else if (ev->n > 0)
        sl_metrics_inter_token(&s->metrics, seconds_since(before_ns, now_ns), ev->n);
    if (marked) sl_watch_kick(s);
    if (over) sl_call_unref(call);
}

/* Moves waiting tokens to call->taken, or suspends the connection until there are some. An answer
 * that is not streamed and has no stop strings is taken all at once. */
static take take_tokens(sl_call *call, sl_finish *last) {
    take result = TAKE_TOKENS;
    bool piecewise = call->params.stream || call->params.n_stop > 0;
    call->taken.len = 0;
    pthread_mutex_lock(&call->lock);
    *last = call->last;
    if (call->abort == SL_ABORT_GONE || call->abort == SL_ABORT_SLOW) {
        result = TAKE_GONE;
    } else if (call->abort != SL_ABORT_NONE) {
        set_abort_error(call);
        result = TAKE_FAILED;
    } else if (*last == SL_FINISH_NONE && (call->queue.len == 0 || !piecewise)) {
        suspend_locked(call);
        result = TAKE_WAIT;
    } else {
        sl_ids swap = call->taken;
        call->taken = call->queue;
        call->queue = swap;
    }
    pthread_mutex_unlock(&call->lock);
    return result;
}

static bool ends_text(const sl_call *call, uint32_t id) {
    const sl_model_spec *spec = sl_engine_spec(call->server->o.engine);
    for (uint32_t i = 0; i < spec->n_eos && !call->params.ignore_eos; i++)
        if (spec->eos[i] == id) return true;
    for (uint32_t i = 0; i < call->params.n_stop_ids; i++)
        if (call->params.stop_id[i] == id) return true;
    return false;
}

static void count_outcome(sl_call *call, sl_outcome outcome) {
    if (call->counted) return;
    call->counted = true;
    sl_metrics_finished(&call->server->metrics, outcome,
                        seconds_since(call->start_ns, sl_now_ns()));
}

static void add_text(sl_call *call, const char *text, size_t n) {
    if (sl_stop_feed(call->stop, text, n, &call->text)) call->finish = "stop";
}

/* Decodes call->taken behind call->text; sets call->finish when the answer is complete. */
static sl_status decode_taken(sl_call *call, sl_finish last) {
    sl_err err = {0};
    char piece[SL_DETOK_MAX_OUT];
    const sl_tokenizer *tok = call->server->o.tokenizer;
    uint32_t vocab = sl_tokenizer_vocab_size(tok);
    for (size_t i = 0; i < call->taken.len && !call->finish; i++) {
        uint32_t id = call->taken.data[i];
        call->n_tokens++;
        if (call->params.return_token_ids && sl_ids_push(&call->shown, id, &err) != SL_OK)
            return err.code;
        if (id >= vocab || ends_text(call, id)) continue;
        size_t n = sl_detok_push(&call->detok, tok, id, true, piece);
        add_text(call, piece, n);
    }
    if (call->finish) { /* a stop string: what the engine still makes is not wanted */
        pthread_mutex_lock(&call->lock);
        call->muted = true;
        bool running = call->last == SL_FINISH_NONE;
        uint64_t id = call->engine_id;
        pthread_mutex_unlock(&call->lock);
        if (running) sl_engine_cancel(call->server->o.engine, id);
    } else if (last != SL_FINISH_NONE) {
        add_text(call, piece, sl_detok_flush(&call->detok, piece));
        if (!call->finish) sl_stop_flush(call->stop, &call->text);
        if (!call->finish && last == SL_FINISH_STOP) call->finish = "stop";
        if (!call->finish && last == SL_FINISH_LENGTH) call->finish = "length";
    }
    if (call->finish)
        count_outcome(call, call->finish[0] == 's' ? SL_OUTCOME_STOP : SL_OUTCOME_LENGTH);
    return call->text.ok ? SL_OK : SL_ERR_NOMEM;
}

static sl_span text_of(const sl_call *call) {
    return (sl_span){(const uint8_t *)(call->text.data ? call->text.data : ""), call->text.len};
}

static sl_reply_usage usage_of(const sl_call *call) {
    return (sl_reply_usage){.prompt = call->prompt.len, .completion = call->n_tokens};
}

static sl_reply_ids ids_of(const sl_call *call, bool prompt) {
    static const uint32_t none = 0; /* an empty list is still a list */
    sl_reply_ids ids = {0};
    if (!call->params.return_token_ids) return ids;
    if (prompt) {
        ids.prompt = call->prompt.data;
        ids.n_prompt = call->prompt.len;
    }
    ids.tokens = call->shown.data ? call->shown.data : &none;
    ids.n_tokens = call->shown.len;
    return ids;
}

/* Writes the events for what was just decoded. */
static void write_events(sl_call *call) {
    sl_jbuf *b = &call->events;
    bool chat = call->head.kind == SL_API_CHAT;
    if (!call->said_role && chat) {
        sl_reply_ids prompt = ids_of(call, true);
        prompt.tokens = NULL;
        sl_reply_event_role(b, &call->head, &prompt);
    }
    sl_reply_ids ids = ids_of(call, !call->said_role && !chat);
    call->said_role = true;
    if (call->text.len > 0 || call->shown.len > 0)
        sl_reply_event_text(b, &call->head, text_of(call), NULL, &ids);
    sl_jbuf_clear(&call->text);
    call->shown.len = 0;
    if (!call->finish) return;
    sl_reply_event_text(b, &call->head, text_of(call), call->finish, NULL);
    if (call->params.include_usage) sl_reply_event_usage(b, &call->head, usage_of(call));
    sl_reply_event_done(b);
    call->ended = true;
}

static void write_failure(sl_call *call, const sl_api_error *e) {
    count_outcome(call, SL_OUTCOME_ERROR);
    sl_reply_event_error(&call->events, e);
    call->ended = true;
}

/* libmicrohttpd wants up to `max` bytes of the stream. */
static ssize_t read_stream(void *cls, uint64_t pos, char *buf, size_t max) {
    (void)pos;
    sl_call *call = cls;
    sl_jbuf *b = &call->events;
    while (call->events_at == b->len) {
        sl_finish last;
        sl_jbuf_clear(b);
        call->events_at = 0;
        if (call->ended) return MHD_CONTENT_READER_END_OF_STREAM;
        switch (take_tokens(call, &last)) {
        case TAKE_WAIT:
            return 0;
        case TAKE_GONE:
            return MHD_CONTENT_READER_END_WITH_ERROR;
        case TAKE_FAILED:
            write_failure(call, &call->error);
            break;
        case TAKE_TOKENS:
            if (decode_taken(call, last) != SL_OK) return MHD_CONTENT_READER_END_WITH_ERROR;
            write_events(call);
            if (!call->finish && last == SL_FINISH_ERROR) write_failure(call, &call->error);
            break;
        }
        if (!b->ok) return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    size_t n = SL_MIN(max, b->len - call->events_at);
    memcpy(buf, b->data + call->events_at, n);
    call->events_at += n;
    return (ssize_t)n;
}

static enum MHD_Result start_stream(sl_call *call) {
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES,
                                                               read_stream, call, NULL);
    if (!r) return MHD_NO;
    call->phase = SL_CALL_STREAM;
    bool ok = MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream") &&
              MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache") &&
              MHD_add_response_header(r, "X-Accel-Buffering", "no") &&
              MHD_add_response_header(r, "X-Request-Id", call->request_id);
    enum MHD_Result done = ok ? MHD_queue_response(call->connection, MHD_HTTP_OK, r) : MHD_NO;
    MHD_destroy_response(r);
    return done;
}

static enum MHD_Result fail(sl_call *call) {
    count_outcome(call, SL_OUTCOME_ERROR);
    return sl_call_reply_error(call, &call->error);
}

/* A stream begins with the first tokens, so that a failure before them still has its status. */
static enum MHD_Result advance_stream(sl_call *call) {
    enum { WAIT, GONE, FAILED, BEGIN } what = BEGIN;
    pthread_mutex_lock(&call->lock);
    if (call->abort == SL_ABORT_GONE || call->abort == SL_ABORT_SLOW) {
        what = GONE;
    } else if (call->abort != SL_ABORT_NONE) {
        set_abort_error(call);
        what = FAILED;
    } else if (call->queue.len == 0 && call->last == SL_FINISH_ERROR) {
        what = FAILED;
    } else if (call->queue.len == 0 && call->last == SL_FINISH_NONE) {
        suspend_locked(call);
        what = WAIT;
    }
    pthread_mutex_unlock(&call->lock);
    if (what == WAIT) return MHD_YES;
    if (what == GONE) return MHD_NO;
    return what == FAILED ? fail(call) : start_stream(call);
}

enum MHD_Result sl_call_advance(sl_call *call) {
    if (call->params.stream) return advance_stream(call);
    while (!call->finish) {
        sl_finish last;
        switch (take_tokens(call, &last)) {
        case TAKE_WAIT:
            return MHD_YES;
        case TAKE_GONE:
            return MHD_NO;
        case TAKE_FAILED:
            return fail(call);
        case TAKE_TOKENS:
            break;
        }
        if (decode_taken(call, last) != SL_OK) {
            sl_api_error_of(&call->error, SL_ERR_NOMEM, NULL, NULL);
            return fail(call);
        }
        if (!call->finish && last == SL_FINISH_ERROR) return fail(call);
    }
    sl_jbuf b = sl_jbuf_init();
    sl_reply_ids ids = ids_of(call, true);
    sl_reply_full(&b, &call->head, text_of(call), call->finish, usage_of(call), &ids);
    return sl_call_reply(call, MHD_HTTP_OK, "application/json", &b);
}

sl_status sl_call_encode(sl_call *call, sl_api_error *e) {
    sl_err err = {0};
    sl_status st = SL_OK;
    const sl_server_opts *o = &call->server->o;
    sl_api_params *p = &call->params;
    const char *param = p->kind == SL_API_CHAT ? "messages" : "prompt";
    if (p->ids.len > 0) {
        call->prompt = p->ids;
        p->ids = (sl_ids){0};
    } else if (p->kind == SL_API_COMPLETION) {
        st =
            sl_tokenizer_encode(o->tokenizer, p->prompt, true, !p->no_special, &call->prompt, &err);
    } else if (!o->chat) {
        sl_api_error_bad(e, param, "this model has no chat template; use /v1/completions");
        e->code = "no_chat_template";
        return SL_ERR_UNSUPPORTED;
    } else {
        sl_chat_options options = {.add_generation_prompt = !p->no_generation};
        st = sl_chat_encode(o->chat, o->tokenizer, p->messages, p->n_messages, options,
                            &call->prompt, &err);
    }
    return st == SL_OK ? SL_OK : sl_api_error_of(e, st, param, err.msg);
}

/* Fits the answer into the context: silent requests take what is left of it. */
static sl_status choose_max_tokens(sl_call *call, sl_api_error *e) {
    sl_api_params *p = &call->params;
    uint64_t context = call->server->limits.context, n = call->prompt.len;
    uint64_t left = n < context ? context - n : 0;
    if (p->max_tokens == 0)
        p->max_tokens =
            (uint32_t)(p->kind == SL_API_CHAT ? left
                                              : SL_MIN(left, (uint64_t)DEFAULT_COMPLETION_TOKENS));
    if (left > 0 && p->max_tokens <= left) return SL_OK;
    sl_api_error_bad(e, left == 0 ? (p->kind == SL_API_CHAT ? "messages" : "prompt") : "max_tokens",
                     "This model's maximum context length is %" PRIu64 " tokens; the prompt has "
                     "%" PRIu64 " and %" PRIu32 " are asked for.",
                     context, n, SL_MAX(p->max_tokens, 1u));
    e->code = "context_length_exceeded";
    return SL_ERR_LIMIT;
}

static sl_status submit(sl_call *call, sl_api_error *e) {
    sl_err err = {0};
    sl_engine *engine = call->server->o.engine;
    const sl_api_params *p = &call->params;
    sl_request_params r = {
        .prompt = call->prompt.data,
        .n_prompt = (uint32_t)call->prompt.len,
        .max_tokens = p->max_tokens,
        .sampling = p->sampling,
        .ignore_eos = p->ignore_eos,
        .stop = p->stop_id,
        .n_stop = p->n_stop_ids,
        .on_event = on_event,
        .ctx = call,
    };
    uint64_t id = 0;
    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
    sl_status st = sl_engine_submit(engine, &r, &id, &err);
    if (st != SL_OK) {
        sl_call_unref(call);
        sl_api_error_of(e, st, NULL, err.msg);
        if (st == SL_ERR_LIMIT) e->code = "context_length_exceeded";
        return st;
    }
    pthread_mutex_lock(&call->lock);
    call->engine_id = id;
    call->submitted = true;
    bool late = call->abort != SL_ABORT_NONE;
    pthread_mutex_unlock(&call->lock);
    if (late) sl_engine_cancel(engine, id);
    sl_watch_add(call);
    return SL_OK;
}

/* Refuses at once what would take long to tokenize and could never fit. */
static sl_status check_text(const sl_call *call, sl_api_error *e) {
    const sl_api_params *p = &call->params;
    size_t n = p->prompt.len, limit = call->server->max_text_bytes;
    for (size_t i = 0; i < p->n_messages; i++) n += p->messages[i].content.len;
    if (n <= limit) return SL_OK;
    sl_api_error_bad(e, p->kind == SL_API_CHAT ? "messages" : "prompt",
                     "This model's maximum context length is %" PRIu32
                     " tokens; they cannot hold a text of %zu bytes.",
                     call->server->limits.context, n);
    e->code = "context_length_exceeded";
    return SL_ERR_LIMIT;
}

static sl_status prepare(sl_call *call, sl_api_kind kind, sl_api_error *e) {
    sl_server *s = call->server;
    sl_err err = {0};
    uint64_t random[3];
    sl_span body = {(const uint8_t *)call->body.data, call->body.len};
    sl_status st = sl_api_params_parse(kind, body, &s->limits, &call->params, e);
    sl_jbuf_free(&call->body);
    if (st != SL_OK) return st;
    st = check_text(call, e);
    if (st == SL_OK) st = sl_call_encode(call, e);
    if (st == SL_OK && call->prompt.len == 0)
        st = sl_api_error_bad(e, "prompt", "prompt: empty, the model needs one token at least");
    if (st == SL_OK) st = choose_max_tokens(call, e);
    if (st != SL_OK) return st;
    st = sl_stop_create(call->params.stop, call->params.n_stop, &call->stop, &err);
    if (st != SL_OK) return sl_api_error_of(e, st, "stop", err.msg);
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return sl_api_error_of(e, SL_ERR_INTERNAL, NULL, "no random numbers");
    if (!call->params.has_seed) call->params.sampling.seed = random[0] >> 1;
    snprintf(call->id, sizeof call->id, "%s-%016" PRIx64 "%08" PRIx32,
             kind == SL_API_CHAT ? "chatcmpl" : "cmpl", random[1], (uint32_t)random[2]);
    call->head = (sl_reply_head){.kind = kind,
                                 .id = call->id,
                                 .model = s->model,
                                 .created = sl_wall_s(),
                                 .with_usage = call->params.include_usage};
    return SL_OK;
}

enum MHD_Result sl_call_generate(sl_call *call, sl_api_kind kind) {
    sl_api_error e = {0};
    sl_status st = prepare(call, kind, &e);
    if (st == SL_OK) st = submit(call, &e);
    if (st != SL_OK) return sl_call_reply_error(call, &e);
    call->phase = SL_CALL_WAIT;
    return sl_call_advance(call);
}
