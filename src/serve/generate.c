/* A request from its JSON to its last byte: encode, submit, wait, decode, answer. */
#include "serve/server_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/random.h>

#define DEFAULT_COMPLETION_TOKENS 16u    /* OpenAI's, for /v1/completions */
#define TEMPLATE_BYTES            65536u /* of a chat that its template may write itself */
#define STREAM_BLOCK_BYTES        8192u

typedef enum take {
    TAKE_WAIT,   /* nothing yet; the connection is suspended */
    TAKE_TOKENS, /* call->taken has tokens, or *last says it is over */
    TAKE_REMARK, /* nothing yet, and for so long that *remark is to be said */
    TAKE_GONE,   /* nobody is there to answer */
    TAKE_FAILED, /* call->error is the answer */
} take;

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

/* Whether the connection has something to do; under the lock. *failed: some choice has ended with
 * an error. */
static bool has_work(const sl_call *call, bool *failed) {
    bool ready = false, all = true;
    *failed = false;
    for (size_t i = 0; i < call->n_choices; i++) {
        const sl_choice *c = &call->choice[i];
        if (c->finish) continue;
        bool over = c->last != SL_FINISH_NONE;
        *failed = *failed || c->last == SL_FINISH_ERROR;
        all = all && over;
        ready = ready || over || c->queue.len > 0;
    }
    return *failed || all || (ready && sl_call_has_enough(call));
}

/* The call and what it may take: what comes next of a kept answer is in its queues. */
static void pull(sl_call *call) {
    if (call->kept) sl_kept_settle(call->kept);
    if (call->kept) sl_kept_lock(call->kept);
    pthread_mutex_lock(&call->lock);
    if (call->kept && call->abort == SL_ABORT_NONE && sl_kept_pull(call) != SL_OK)
        call->abort = SL_ABORT_NOMEM;
}

static void leave(sl_call *call) {
    pthread_mutex_unlock(&call->lock);
    if (call->kept) sl_kept_unlock(call->kept);
}

/* What came while the disk was waited for wakes nobody who did not sleep yet. */
static void enter(sl_call *call) {
    bool failed;
    pull(call);
    while (call->kept && sl_kept_unsettled(call->kept) && call->abort == SL_ABORT_NONE &&
           !has_work(call, &failed)) {
        leave(call);
        pull(call);
    }
}

/* Tokens of its prompts whose rows were there, as far as is known: of each prompt what its first
 * choice found. */
static uint64_t cached_of(const sl_call *call) {
    uint64_t n = 0;
    uint32_t of_each = SL_MAX(call->params.n, 1u);
    for (size_t i = 0; i < call->n_choices; i += of_each)
        n += SL_MIN(call->choice[i].n_found, call->prompt[i / of_each].len);
    return n;
}

/* Moves waiting tokens to where they are decoded, or suspends the connection until there are some.
 */
static take take_tokens(sl_call *call, const char **remark) {
    take result = TAKE_TOKENS;
    bool failed;
    enter(call);
    *remark = call->remark;
    call->remark = NULL;
    if (call->abort == SL_ABORT_GONE || call->abort == SL_ABORT_SLOW) {
        result = TAKE_GONE;
    } else if (call->abort != SL_ABORT_NONE) {
        set_abort_error(call);
        result = TAKE_FAILED;
    } else if (!has_work(call, &failed)) {
        if (!*remark) suspend_locked(call);
        result = *remark ? TAKE_REMARK : TAKE_WAIT;
    }
    for (size_t i = 0; result == TAKE_TOKENS && i < call->n_choices; i++) {
        sl_choice *c = &call->choice[i];
        if (c->finish) continue;
        sl_ids ids = c->taken;
        sl_logprob_list logprobs = c->taken_logprobs;
        ids.len = logprobs.len = 0;
        c->taken = c->queue;
        c->taken_logprobs = c->queue_logprobs;
        c->queue = ids;
        c->queue_logprobs = logprobs;
        c->taken_at = 0;
        c->taken_last = c->last;
    }
    if (result == TAKE_TOKENS) {
        call->n_queued = 0;
        call->usage.cached = cached_of(call);
        sl_call_take_timings(call);
    }
    leave(call);
    return result;
}

static void count_outcome(sl_call *call, sl_outcome outcome) {
    if (call->counted) return;
    call->counted = true;
    sl_metrics_finished(&call->server->metrics, outcome,
                        1e-9 * (double)(sl_now_ns() - call->start_ns));
}

typedef enum state { STATE_OPEN, STATE_DONE, STATE_FAILED } state;

/* Nothing more is wanted of any choice; the first error stays. */
static state give_up(sl_call *call, const sl_api_error *e) {
    pthread_mutex_lock(&call->lock);
    if (!call->failed) call->error = *e;
    call->failed = call->muted = true;
    pthread_mutex_unlock(&call->lock);
    sl_choices_cancel(call);
    return STATE_FAILED;
}

static bool too_large(const sl_call *call, size_t n, sl_api_error *e) {
    size_t limit = call->server->o.max_answer_bytes;
    if (call->params.stream || n <= limit) return false;
    sl_api_error_bad(
        e, NULL,
        "The answer has more than %zu bytes (--max-answer-bytes); ask for a stream, or "
        "for fewer tokens, choices (n) or logprobs.",
        limit);
    e->code = "answer_too_large";
    return true;
}

/* What a step gave, to those who are behind it. */
static void put_step(sl_call *call, size_t choice) {
    sl_cursor_put(&call->cursor, choice, &call->step, &call->events);
    sl_jbuf_clear(&call->step);
}

/* Where events have numbers, what a token gives is written before the next one is looked at. */
static sl_status decode(sl_choice *c) {
    sl_call *call = c->call;
    sl_status st = SL_OK;
    if (!call->cursor.n) return sl_choice_decode(c, SIZE_MAX);
    while (st == SL_OK && sl_choice_has_more(c)) {
        st = sl_choice_decode(c, 1);
        if (st == SL_OK) sl_choice_write_events(c, &call->step);
        put_step(call, c->index);
    }
    return st;
}

/* Decodes what was taken of every choice. */
static state decode_all(sl_call *call) {
    bool done = true, failed = false, at_limit = false;
    sl_api_error e;
    size_t bytes = 0;
    for (size_t i = 0; i < call->n_choices; i++) {
        sl_choice *c = &call->choice[i];
        if (!c->finish && decode(c) != SL_OK) {
            sl_api_error_of(&e, SL_ERR_NOMEM, NULL, NULL);
            return give_up(call, &e);
        }
        bytes += sl_choice_bytes(c);
        if (too_large(call, bytes, &e)) return give_up(call, &e);
        failed = failed || (!c->finish && c->taken_last == SL_FINISH_ERROR);
        done = done && c->finish;
        at_limit = at_limit || (c->finish && c->finish[0] == 'l');
    }
    if (failed) return STATE_FAILED;
    if (done) count_outcome(call, at_limit ? SL_OUTCOME_LENGTH : SL_OUTCOME_STOP);
    return done ? STATE_DONE : STATE_OPEN;
}

static sl_reply_usage usage_of(const sl_call *call) {
    sl_reply_usage u = {0};
    for (size_t i = 0; i < call->n_prompts; i++) u.prompt += call->prompt[i].len;
    u.cached = call->usage.cached;
    for (size_t i = 0; i < call->n_choices; i++) {
        u.completion += call->choice[i].n_tokens;
        u.thought += call->choice[i].n_thought;
    }
    return u;
}

static void write_failure(sl_call *call, const sl_api_error *e) {
    count_outcome(call, SL_OUTCOME_ERROR);
    call->dialect->fail(&call->events, &call->head, e);
    call->ended = true;
}

/* Writes the events for what was just decoded. */
static void write_events(sl_call *call, state now) {
    bool numbered = call->cursor.n > 0; /* then they are written, but for the last */
    for (size_t i = 0; !numbered && i < call->n_choices; i++)
        sl_choice_write_events(&call->choice[i], &call->events);
    if (now == STATE_FAILED) write_failure(call, &call->error);
    if (now != STATE_DONE) return;
    call->dialect->end(numbered ? &call->step : &call->events, &call->head, usage_of(call));
    if (numbered) put_step(call, 0);
    call->ended = true;
    if (!sl_cursor_is_beyond(&call->cursor)) return;
    sl_kept_refuse_after(call, &call->error);
    write_failure(call, &call->error);
}

/* Takes what there is and writes its events. */
static take advance_events(sl_call *call) {
    const char *remark;
    take took = take_tokens(call, &remark);
    if (took == TAKE_REMARK) call->dialect->remark(&call->events, remark);
    if (took == TAKE_FAILED) write_failure(call, &call->error);
    if (took == TAKE_TOKENS) write_events(call, decode_all(call));
    return took;
}

/* libmicrohttpd wants up to `max` bytes of the stream. */
static ssize_t read_stream(void *cls, uint64_t pos, char *buf, size_t max) {
    (void)pos;
    sl_call *call = cls;
    sl_jbuf *b = &call->events;
    while (call->events_at == b->len) {
        sl_jbuf_clear(b);
        call->events_at = 0;
        if (call->ended) return MHD_CONTENT_READER_END_OF_STREAM;
        take took = advance_events(call);
        if (took == TAKE_WAIT) return 0;
        if (took == TAKE_GONE || !b->ok) return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    size_t n = SL_MIN(max, b->len - call->events_at);
    memcpy(buf, b->data + call->events_at, n);
    call->events_at += n;
    call->spoke_ns = sl_now_ns();
    if (call->ended && call->events_at == b->len) sl_kept_heard(call);
    return (ssize_t)n;
}

static enum MHD_Result start_stream(sl_call *call) {
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES,
                                                               read_stream, call, NULL);
    if (!r) return MHD_NO;
    call->phase = SL_CALL_STREAM;
    bool ok = MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream") &&
              MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache") &&
              MHD_add_response_header(r, "X-Accel-Buffering", "no");
    return sl_call_queue(call, MHD_HTTP_OK, r, ok);
}

static enum MHD_Result fail(sl_call *call) {
    /* One that was turned away never ran: the engine counts it. */
    call->counted = call->counted || call->error.http == MHD_HTTP_TOO_MANY_REQUESTS;
    count_outcome(call, SL_OUTCOME_ERROR);
    return sl_call_reply_error(call, &call->error);
}

/* One that goes on begins with what its reader has not, so that an id of no event has its status.
 */
static enum MHD_Result advance_resumed(sl_call *call) {
    while (call->events.len == 0 && !call->ended) {
        take took = advance_events(call);
        if (took == TAKE_WAIT) return MHD_YES;
        if (took == TAKE_GONE || !call->events.ok) return MHD_NO;
        if (took == TAKE_FAILED) return fail(call);
    }
    if (call->ended && sl_cursor_is_beyond(&call->cursor))
        return sl_call_reply_error(call, &call->error);
    return start_stream(call);
}

/* A stream begins with the first tokens, so that a failure before them still has its status, or
 * when it has been quiet for so long that it has to say something. */
static enum MHD_Result advance_stream(sl_call *call) {
    enum { WAIT, GONE, FAILED, BEGIN } what = BEGIN;
    bool failed, tokens = false;
    enter(call);
    if (call->abort == SL_ABORT_GONE || call->abort == SL_ABORT_SLOW) {
        what = GONE;
    } else if (call->abort != SL_ABORT_NONE) {
        set_abort_error(call);
        what = FAILED;
    } else if (!has_work(call, &failed)) {
        if (!call->remark) suspend_locked(call);
        what = call->remark ? BEGIN : WAIT;
    } else {
        for (size_t i = 0; i < call->n_choices; i++) tokens |= call->choice[i].queue.len > 0;
        if (failed && !tokens) what = FAILED;
    }
    leave(call);
    if (what == WAIT) return MHD_YES;
    if (what == GONE) return MHD_NO;
    if (what == FAILED) return fail(call);
    return call->after ? advance_resumed(call) : start_stream(call);
}

enum MHD_Result sl_call_advance(sl_call *call) {
    if (call->params.stream) return advance_stream(call);
    const char *remark;
    for (state now = STATE_OPEN; now != STATE_DONE;) {
        switch (take_tokens(call, &remark)) {
        case TAKE_REMARK: /* only streams */
        case TAKE_WAIT:
            return MHD_YES;
        case TAKE_GONE:
            return MHD_NO;
        case TAKE_FAILED:
            return fail(call);
        case TAKE_TOKENS:
            break;
        }
        now = decode_all(call);
        if (now == STATE_FAILED) return fail(call);
    }
    sl_api_error e;
    sl_jbuf b = sl_jbuf_init();
    call->dialect->open(&b, &call->head);
    for (size_t i = 0; i < call->n_choices; i++) {
        sl_choice_write(&call->choice[i], &b);
        if (!too_large(call, b.len, &e)) continue; /* known only now: escapes, ids */
        sl_jbuf_free(&b);
        give_up(call, &e);
        return fail(call);
    }
    sl_reply_ids ids = {0};
    if (call->dialect->kind == SL_API_CHAT) ids = sl_choice_prompt_ids(&call->choice[0]);
    call->dialect->close(&b, &call->head, &ids, usage_of(call));
    sl_kept_heard(call);
    return sl_call_reply(call, MHD_HTTP_OK, "application/json", &b);
}

/* What a request says of reasoning, to the template in its own words; one that it does not know is
 * refused. */
static sl_status choose_reasoning(const sl_call *call, sl_chat_options *o, sl_api_error *e) {
    const sl_api_params *p = &call->params;
    const sl_chat *chat = call->server->o.chat;
    bool harmony = call->server->style.tools == SL_TOOLS_HARMONY;
    bool none = sl_span_is(p->effort, "none");
    bool level = sl_span_is(p->effort, "low") || sl_span_is(p->effort, "medium") ||
                 sl_span_is(p->effort, "high");
    o->thinking = p->thinking;
    bool thinks = harmony || call->server->style.thought;
    if (p->extra.as_it_is && !sl_chat_has_switch(chat) && (p->thinking == SL_CHAT_ON) == thinks)
        o->thinking = SL_CHAT_UNSET; /* it does so anyway */
    else if (p->thinking != SL_CHAT_UNSET && !sl_chat_has_switch(chat))
        return sl_api_error_bad(e, "enable_thinking",
                                "enable_thinking: this model's template has no such switch");
    if (!p->effort.data) return SL_OK;
    bool on_off = sl_chat_has_switch(chat) && p->thinking == SL_CHAT_UNSET;
    bool takes = sl_chat_has_effort(chat) && !none && (level || !harmony);
    if (takes) o->effort = p->effort;
    if (on_off) o->thinking = none ? SL_CHAT_OFF : SL_CHAT_ON;
    if (takes || sl_chat_has_switch(chat)) return SL_OK;
    return sl_api_error_bad(e, "reasoning_effort",
                            harmony ? "reasoning_effort: this model takes low, medium and high"
                                    : "reasoning_effort: this model's template knows no effort, "
                                      "and no switch for reasoning");
}

/* A chat as the template shows it. */
static sl_status encode_chat(sl_call *call, sl_chat_options options, const char **param,
                             sl_err *err) {
    const sl_server_opts *o = &call->server->o;
    sl_api_params *p = &call->params;
    if (p->go_on) return sl_call_go_on(call, options, param, err);
    return sl_chat_prompt(o->chat, o->tokenizer, p->messages, p->n_messages, options,
                          &call->prompt[0], &call->opened, err);
}

/* The same; a template that takes arguments of calls as values gets those that are no JSON as
 * texts. One that takes them as texts has them as they are. */
static sl_status encode_messages(sl_call *call, sl_chat_options options, const char **param,
                                 sl_err *err) {
    bool some = false;
    sl_err none = {0};
    sl_status st = encode_chat(call, options, param, err);
    if (st != SL_ERR_ARG) return st;
    if (sl_api_quote_arguments(&call->params, &some, &none) != SL_OK)
        return sl_fail(err, none.code, "%s", none.msg);
    return some ? encode_chat(call, options, param, err) : st;
}

sl_status sl_call_encode(sl_call *call, sl_api_error *e) {
    sl_err err = {0};
    sl_status st = sl_call_check_text(call, e);
    if (st == SL_OK) st = sl_call_take_fill(call, e);
    if (st == SL_OK) st = sl_call_take_bias(call, e);
    if (st != SL_OK) return st;
    const sl_server_opts *o = &call->server->o;
    sl_api_params *p = &call->params;
    bool chat = p->kind == SL_API_CHAT;
    const char *param = chat ? "messages" : "prompt";
    if (chat && !o->chat) {
        sl_api_error_bad(e, param, "this model has no chat template; use /v1/completions");
        e->code = "no_chat_template";
        return SL_ERR_UNSUPPORTED;
    }
    size_t n = chat ? 1 : p->n_prompts;
    call->prompt = sl_alloc(n, sizeof *call->prompt);
    if (!call->prompt) return sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    call->n_prompts = n;
    sl_chat_options options = {.add_generation_prompt = !p->no_generation,
                               .add_special = !p->no_special,
                               .tools = p->tools,
                               .kwargs = p->template_kwargs,
                               .max_bytes = call->server->max_text_bytes + TEMPLATE_BYTES};
    if (p->tools.value) st = sl_tool_set_create(p->tools, &call->tools, &err);
    if (st != SL_OK) return sl_api_error_of(e, st, "tools", err.msg);
    if (chat) {
        st = choose_reasoning(call, &options, e);
        if (st != SL_OK) return st;
        st = encode_messages(call, options, &param, &err);
    }
    for (size_t i = 0; !chat && st == SL_OK && i < n; i++)
        st = sl_call_encode_prompt(call, &p->prompts[i], &call->prompt[i], &err);
    return st == SL_OK ? SL_OK : sl_api_error_of(e, st, param, err.msg);
}

sl_status sl_call_take_tools(sl_call *call, sl_api_error *e) {
    const sl_api_params *p = &call->params;
    const sl_server *s = call->server;
    sl_err err = {0};
    uint32_t n_calls = 0;
    sl_status st = sl_call_take_shape(call, e);
    if (st != SL_OK || call->shape || !p->forced.data) return st;
    for (size_t i = 0; i < p->n_messages; i++)
        n_calls += (uint32_t)sl_json_count(sl_json_get(p->messages[i].fields, "tool_calls"));
    st = sl_answer_force(&s->style, s->o.tokenizer, call->tools, p->forced, call->opened, n_calls,
                         &call->forced, &err);
    for (size_t i = 0; i < call->forced.len && st == SL_OK; i++)
        st = sl_ids_push(&call->prompt[0], call->forced.data[i], &err);
    return st == SL_OK ? st : sl_api_error_of(e, st, "tool_choice", err.msg);
}

/* Prompts keep some of their tokens, if that was asked for. */
static void truncate_prompts(sl_call *call) {
    const sl_api_params *p = &call->params;
    uint32_t context = call->server->limits.context;
    uint32_t answer = p->max_tokens            ? p->max_tokens
                      : p->kind == SL_API_CHAT ? 1u
                                               : DEFAULT_COMPLETION_TOKENS;
    size_t keep = p->keep_tokens ? p->keep_tokens : context > answer ? context - answer : 1;
    for (size_t i = 0; p->truncate && i < call->n_prompts; i++) {
        sl_ids *ids = &call->prompt[i];
        if (ids->len <= keep) continue;
        size_t from = p->keep_first ? 0 : ids->len - keep;
        memmove(ids->data, ids->data + from, keep * sizeof *ids->data);
        ids->len = keep;
    }
}

/* Fits an answer into the context: silent requests take what is left of it. */
static sl_status choose_max_tokens(sl_choice *c, sl_api_error *e) {
    const sl_api_params *p = &c->call->params;
    bool chat = p->kind == SL_API_CHAT;
    uint64_t context = c->call->server->limits.context, n = c->prompt->len;
    uint64_t room = context + p->no_answer; /* what is made and dropped takes no position */
    uint64_t left = n < room ? room - n : 0;
    if (n == 0)
        return sl_api_error_bad(e, "prompt", "prompt: empty, the model needs one token at least");
    c->max_tokens = p->max_tokens;
    if (p->max_tokens == 0)
        c->max_tokens =
            (uint32_t)(chat || p->extra.to_end ? left
                                               : SL_MIN(left, (uint64_t)DEFAULT_COMPLETION_TOKENS));
    c->full = p->extra.at_most && left > 0 && c->max_tokens > left;
    if (c->full) c->max_tokens = (uint32_t)left;
    if (!chat && p->max_tokens == 0 && p->min_tokens > c->max_tokens && left > 0)
        return sl_api_error_bad(e, "min_tokens",
                                "min_tokens: more than the %" PRIu32
                                " that are made without max_tokens",
                                c->max_tokens);
    if (left > 0 && c->max_tokens <= left) return SL_OK;
    sl_api_error_bad(e, left == 0 ? (chat ? "messages" : "prompt") : "max_tokens",
                     "This model's maximum context length is %" PRIu64
                     " tokens (--ctx); the prompt has "
                     "%" PRIu64 " and %" PRIu32 " are asked for: %" PRIu64 " are left.",
                     context, n, SL_MAX(c->max_tokens, 1u), left);
    e->code = "context_length_exceeded";
    return SL_ERR_LIMIT;
}

/* A request that ends with its call. */
static sl_status submit_own(sl_choice *c, sl_request_params *r, sl_err *err) {
    sl_call *call = c->call;
    sl_engine *engine = call->server->o.engine;
    uint64_t id = 0;
    r->on_event = sl_choice_on_event;
    r->ctx = c;
    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
    c->pace =
        (sl_pace){.start_ns = call->start_ns, .submit_ns = sl_now_ns(), .n_prompt = c->prompt->len};
    sl_status st = sl_engine_submit(engine, r, &id, err);
    if (st != SL_OK) {
        sl_call_unref(call);
        return st;
    }
    pthread_mutex_lock(&call->lock);
    c->engine_id = id;
    c->submitted = true;
    bool late = call->abort != SL_ABORT_NONE;
    pthread_mutex_unlock(&call->lock);
    if (late) sl_engine_cancel(engine, id);
    return SL_OK;
}

sl_request_params sl_call_request(const sl_choice *c) {
    const sl_call *call = c->call;
    const sl_api_params *p = &call->params;
    const bool reports = sl_api_stride(p) > 0;
    sl_request_params r = {
        .name = call->request_id,
        .prompt = c->prompt->data,
        .n_prompt = (uint32_t)c->prompt->len,
        .max_tokens = c->max_tokens,
        .min_tokens = SL_MIN(p->min_tokens, c->max_tokens),
        .sampling = p->sampling,
        .ignore_eos = p->ignore_eos,
        .logprobs = reports,
        .prompt_logprobs = sl_api_scores_prompt(p),
        .report = reports ? sl_api_report(p) : (sl_report){0},
        .stop = p->stop_id,
        .n_stop = p->n_stop_ids + p->n_own_ends,
        .shape = call->shape,
    };
    /* a seed means the same alone and among other prompts; without one, equal prompts may differ */
    r.sampling.choice = p->has_seed ? c->index % p->n : c->index;
    sl_caller_tenant(call, &r);
    return r;
}

static sl_status submit_choice(sl_choice *c, sl_api_error *e) {
    sl_err err = {0};
    sl_call *call = c->call;
    sl_request_params r = sl_call_request(c);
    sl_status st =
        call->kept ? sl_kept_submit(call->kept, c->index, &r, &err) : submit_own(c, &r, &err);
    if (st != SL_OK) {
        sl_api_error_of(e, st, NULL, err.msg);
        if (st == SL_ERR_LIMIT) e->code = "context_length_exceeded";
        return st;
    }
    sl_metrics_add(&call->server->metrics, SL_MEASURE_ASKED_TOKENS, c->max_tokens);
    return SL_OK;
}

/* All choices or none: what was submitted before a refusal is cancelled. */
static sl_status submit_all(sl_call *call, sl_api_error *e) {
    sl_status st = SL_OK;
    for (size_t i = 0; st == SL_OK && i < call->n_choices; i++)
        st = submit_choice(&call->choice[i], e);
    if (st == SL_OK)
        sl_metrics_add(&call->server->metrics, SL_MEASURE_ASKED_CHOICES, call->params.n);
    return st;
}

/* From now on tokens come: of requests of its own, or of an answer that is kept. */
static sl_status submit(sl_call *call, sl_api_error *e) {
    sl_status st = SL_OK;
    pthread_mutex_lock(&call->lock);
    call->started = true;
    pthread_mutex_unlock(&call->lock);
    if (call->keeps) st = sl_kept_open(call, e);
    bool reads = call->replayed || call->fetched;
    if (st == SL_OK && call->kept) st = sl_kept_join(call, e);
    if (st == SL_OK && call->kept) st = sl_kept_begin_stream(call, e);
    call->usage.prompt = usage_of(call).prompt;
    if (call->params.continuous_usage) call->head.so_far = &call->usage;
    if (st == SL_OK && !reads) st = submit_all(call, e);
    if (st == SL_OK) {
        sl_watch_add(call);
        return SL_OK;
    }
    if (call->kept && !reads) sl_kept_refuse(call->kept, st, e->msg);
    pthread_mutex_lock(&call->lock);
    call->started = false;
    call->muted = true;
    pthread_mutex_unlock(&call->lock);
    sl_choices_cancel(call);
    return st;
}

/* Whether the answer is kept without an Idempotency-Key. */
static sl_status choose_store(sl_call *call, sl_api_error *e) {
    sl_chat_switch store = call->params.extra.store;
    bool can = call->server->o.responses > 0;
    if (!call->dialect->stores || call->fetched) return SL_OK;
    if (store == SL_CHAT_ON && !can)
        return sl_api_error_bad(e, "store", "store: this server keeps no answers (--responses N)");
    call->keeps = call->keeps || (can && store != SL_CHAT_OFF);
    return SL_OK;
}

sl_status sl_call_prepare(sl_call *call, sl_api_error *e) {
    sl_server *s = call->server;
    sl_err err = {0};
    uint64_t random[3];
    sl_status st = SL_OK;
    if (call->complete && !call->fetched) st = call->complete(call, e);
    if (st != SL_OK) return st;
    sl_span body = call->fetched ? sl_kept_body(call->kept)
                                 : (sl_span){(const uint8_t *)call->body.data, call->body.len};
    st = sl_dialect_read(call->dialect, body, &s->limits, &call->params, e);
    if (st == SL_OK) st = choose_store(call, e);
    if (!call->keeps) sl_call_drop_body(call); /* else it belongs to the answer */
    if (st != SL_OK) return st;
    if (call->dialect->needs_max_tokens && call->params.max_tokens == 0)
        return sl_api_error_bad(e, "max_tokens", "max_tokens: missing");
    if (call->params.tools.value && s->style.tools == SL_TOOLS_NONE)
        return sl_api_error_bad(e, "tools",
                                "tools: this server reads no calls (--tool-format none); it takes "
                                "tools only with \"tool_choice\": \"none\"");
    if (call->params.tools.value && s->style.generic &&
        !atomic_exchange_explicit(&s->told_tools, true, memory_order_relaxed))
        sl_log(SL_LOG_WARN, "serve",
               "the chat template shows no tools: a message tells the model of them, and asks for "
               "calls as hermes");
    if (call->fetched) call->params.stream = call->as_stream;
    st = sl_call_encode(call, e);
    if (st == SL_OK) st = sl_call_take_tools(call, e);
    if (st == SL_OK) st = sl_call_take_budget(call, e);
    if (st == SL_OK) st = sl_call_take_bad_words(call, e);
    if (st != SL_OK) return st;
    truncate_prompts(call);
    st = sl_choices_create(call, &err);
    if (st != SL_OK) return sl_api_error_of(e, st, "stop", err.msg);
    st = sl_api_params_forget(&call->params, &err);
    if (st != SL_OK) return sl_api_error_of(e, st, NULL, err.msg);
    for (size_t i = 0; st == SL_OK && i < call->n_choices; i++)
        st = choose_max_tokens(&call->choice[i], e);
    if (st != SL_OK) return st;
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return sl_api_error_of(e, SL_ERR_INTERNAL, NULL, "no random numbers");
    if (!call->params.has_seed) call->params.sampling.seed = random[0] >> 1;
    snprintf(call->id, sizeof call->id, "%s%016" PRIx64 "%08" PRIx32, call->dialect->id_prefix,
             random[1], (uint32_t)random[2]);
    call->head = (sl_reply_head){
        .kind = call->dialect->kind,
        .id = call->id,
        .model = s->model,
        .fingerprint = s->fingerprint,
        .created = sl_wall_s(),
        .with_usage = call->params.include_usage,
        .usage = &call->usage,
        .blocks = &call->blocks,
        .stored = call->keeps || call->fetched,
        .echo = {(const uint8_t *)call->params.extra.echo.data, call->params.extra.echo.len}};
    st = sl_call_begin_timings(call, e);
    return st == SL_OK ? sl_call_take_text(call, e) : st;
}

static void read_request(sl_call *call) {
    if (sl_call_prepare(call, &call->refusal) == SL_OK) return;
    sl_dialect_rename_error(call->dialect, &call->refusal);
    sl_api_params_free(&call->params);
}

static enum MHD_Result begin(sl_call *call) {
    sl_api_error e = {0};
    if (submit(call, &e) != SL_OK) return sl_call_reply_error(call, &e);
    call->phase = SL_CALL_WAIT;
    return sl_call_advance(call);
}

/* How much there is to do before a request can be submitted: a shape is compiled. */
static size_t work_of(sl_span body, bool long_one) {
    return long_one || sl_call_may_shape(body) ? SIZE_MAX : body.len;
}

enum MHD_Result sl_call_generate(sl_call *call, const char *rest) {
    (void)rest;
    sl_api_error e = {0};
    if (!sl_kept_read_key(call, &e)) return sl_call_reply_error(call, &e);
    sl_kept_read_after(call);
    if (call->after && !call->key) {
        sl_api_error_bad(&e, call->after_name,
                         "%s: a stream goes on for who sends the Idempotency-Key of its request%s",
                         call->after_name,
                         call->server->o.responses ? ""
                                                   : "; this server keeps none (--responses N)");
        return sl_call_reply_error(call, &e);
    }
    if (!sl_server_enter(call, &e)) return sl_call_reply_error(call, &e);
    call->caller = sl_caller_of(call);
    call->keeps = call->key || call->server->o.journal;
    sl_span body = {(const uint8_t *)call->body.data, call->body.len};
    /* one that may go on from a long conversation is as large as that */
    bool long_one = call->dialect->stores && call->server->o.responses;
    return sl_work_do(call, work_of(body, long_one), read_request, begin);
}

enum MHD_Result sl_call_fetch(sl_call *call, const char *id) {
    sl_api_error e = {0};
    const char *stream =
        MHD_lookup_connection_value(call->connection, MHD_GET_ARGUMENT_KIND, "stream");
    sl_kept_read_after(call);
    call->fetched = true;
    call->as_stream = stream && !strcmp(stream, "true");
    if (!sl_server_enter(call, &e)) return sl_call_reply_error(call, &e);
    if (sl_kept_find(call, id))
        return sl_work_do(call, work_of(sl_kept_body(call->kept), false), read_request, begin);
    sl_api_error_bad(
        &e, NULL,
        "no answer of yours is kept as %.64s: it had no Idempotency-Key, or it failed, "
        "or its time is over (--responses)",
        id);
    e.http = MHD_HTTP_NOT_FOUND;
    e.code = "response_not_found";
    return sl_call_reply_error(call, &e);
}
