/* Choices of an answer: the engine hands tokens over, the connection decodes and writes them. */
#include "serve/server_int.h"

#include "base/clock.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>

#define WHOLE_TOKENS 256u /* taken together for an answer that is not streamed */
#define ID_LETTERS   24u  /* of a call's id behind "call_" */
#define MARKER_BYTES 128u /* more than any marker of a format has */
#define ID_SHORT     9u   /* templates of Mistral take exactly so many, and nothing else */

static void on_answer(void *ctx, const sl_answer_event *ev);
static void clear_calls(sl_choice *c);

/* What a chat's tokens say is told apart unless they are to be shown as they are. */
static sl_status begin_answer(sl_choice *c, sl_err *err) {
    const sl_call *call = c->call;
    const sl_api_params *p = &call->params;
    if (p->kind != SL_API_CHAT || p->show_special) return SL_OK;
    const sl_answer_options o = {.style = call->server->style,
                                 .tools = call->tools,
                                 .opened = call->opened,
                                 .one_call = p->one_call,
                                 .event = on_answer,
                                 .ctx = c};
    return sl_answer_create(call->server->o.tokenizer, &o, &c->answer, err);
}

sl_status sl_choices_create(sl_call *call, sl_err *err) {
    const sl_api_params *p = &call->params;
    size_t n = call->n_prompts * p->n;
    call->choice = sl_alloc(n, sizeof *call->choice);
    if (!call->choice) return sl_fail(err, SL_ERR_NOMEM, "%zu choices", n);
    for (size_t i = 0; i < n; i++) {
        sl_choice *c = &call->choice[call->n_choices++];
        c->call = call;
        c->index = (uint32_t)i;
        c->prompt = &call->prompt[i / p->n];
        c->text = sl_jbuf_init();
        c->reasoning = sl_jbuf_init();
        c->logprobs = sl_logprob_text_init(p->kind, p->ids_as_tokens);
        c->prompt_scores = sl_jbuf_init();
        if (sl_api_scores_prompt(p) && c->prompt->len)
            c->n_prompt_left = (uint32_t)c->prompt->len - 1;
        sl_status st = sl_stop_create(p->stop, p->n_stop, &c->stop, err);
        if (st == SL_OK) st = begin_answer(c, err);
        if (st != SL_OK) return st;
        sl_stop_include(c->stop, p->include_stop);
        /* What goes on where its prompt ended: a first space belongs to it. */
        c->detok.started = p->go_on || (p->kind == SL_API_COMPLETION && !p->echo);
        const sl_chat_message *last = p->echo_message ? &p->messages[p->n_messages - 1] : NULL;
        if (last) sl_jbuf_put(&c->text, (const char *)last->content.data, last->content.len);
    }
    return SL_OK;
}

void sl_choices_free(sl_call *call) {
    for (size_t i = 0; i < call->n_choices; i++) {
        sl_choice *c = &call->choice[i];
        sl_stop_free(c->stop);
        sl_answer_free(c->answer);
        clear_calls(c);
        sl_free(c->calls);
        sl_free(c->runs);
        sl_ids_free(&c->taken);
        sl_ids_free(&c->shown);
        sl_ids_free(&c->queue);
        sl_ids_free(&c->mute);
        sl_logprob_list_free(&c->mute_logprobs);
        sl_logprob_list_free(&c->taken_logprobs);
        sl_logprob_list_free(&c->queue_logprobs);
        sl_jbuf_free(&c->text);
        sl_jbuf_free(&c->reasoning);
        sl_jbuf_free(&c->prompt_scores);
        sl_logprob_text_free(&c->logprobs);
    }
    sl_free(call->choice);
    call->choice = NULL;
    call->n_choices = 0;
}

void sl_choices_cancel(sl_call *call) {
    for (size_t i = 0; i < call->n_choices; i++) {
        sl_choice *c = &call->choice[i];
        pthread_mutex_lock(&call->lock);
        bool running = c->submitted && c->last == SL_FINISH_NONE;
        uint64_t id = c->engine_id;
        pthread_mutex_unlock(&call->lock);
        if (running) sl_engine_cancel(call->server->o.engine, id);
    }
}

/* ---- the engine's side ---- */

sl_status sl_choice_queue(sl_choice *c, const uint32_t *id, size_t n, const sl_logprob *logprob) {
    sl_err err = {0};
    sl_status st = SL_OK;
    c->call->n_queued += n;
    for (size_t i = 0; st == SL_OK && i < n; i++) st = sl_ids_push(&c->queue, id[i], &err);
    if (st == SL_OK && logprob)
        st = sl_logprob_list_push(&c->queue_logprobs, logprob, n * sl_api_stride(&c->call->params));
    return st;
}

/* Whoever saw `failed` reads the error without the lock: other choices' errors leave it alone. */
void sl_call_fail(sl_call *call, sl_status why, const char *text) {
    if (call->failed) return;
    call->failed = true;
    sl_api_error_of(&call->error, why, NULL, text);
}

static void abort_locked(sl_call *call, sl_call_abort why) {
    call->abort = why;
    call->muted = call->marked = true;
}

void sl_choice_on_event(void *ctx, const sl_request_event *ev) {
    sl_choice *c = ctx;
    sl_call *call = c->call;
    sl_server *s = call->server;
    bool made = ev->n > 0 && !ev->prompt_position, over = ev->finish != SL_FINISH_NONE;
    /* counted before anyone can see the token */
    sl_metrics_event(&s->metrics, &c->pace, ev, sl_now_ns());
    pthread_mutex_lock(&call->lock);
    bool wanted = !call->muted && !c->muted;
    if (wanted && made && call->params.stream &&
        c->queue.len + ev->n > c->n_prompt_left + s->o.max_unread_tokens)
        abort_locked(call, SL_ABORT_SLOW);
    else if (wanted && sl_choice_queue(c, ev->tokens, ev->n, ev->logprobs) != SL_OK)
        abort_locked(call, SL_ABORT_NOMEM);
    bool marked = call->marked;
    c->n_found = ev->n_found;
    c->made = c->pace;
    *(ev->prompt_position ? &c->n_prompt_heard : &c->n_made) += ev->n;
    if (over) c->last = ev->finish;
    if (ev->finish == SL_FINISH_ERROR && call->abort == SL_ABORT_NONE)
        sl_call_fail(call, ev->status, ev->message);
    if (call->suspended && (over || (ev->n > 0 && !marked && sl_call_has_enough(call)))) {
        call->suspended = false;
        MHD_resume_connection(call->connection);
    }
    pthread_mutex_unlock(&call->lock);
    if (marked) sl_watch_kick(s);
    if (over) sl_call_unref(call);
}

/* ---- the connection's side ---- */

/* An answer that is not streamed is decoded in pieces, too, but larger ones: what comes at its end
 * is not much work, and one that grows too large is noticed. */
bool sl_call_has_enough(const sl_call *call) {
    bool piecewise = call->params.stream || call->params.n_stop > 0;
    return piecewise || call->n_queued >= WHOLE_TOKENS;
}

/* The model's own end, or one of the request's ids, which is noted. */
static bool ends_text(sl_choice *c, uint32_t id) {
    const sl_api_params *p = &c->call->params;
    const sl_model_spec *spec = sl_engine_spec(c->call->server->o.engine);
    c->by_id = false;
    for (uint32_t i = 0; i < spec->n_eos && !p->ignore_eos; i++)
        if (spec->eos[i] == id) return true;
    for (uint32_t i = 0; i < p->n_stop_ids && !c->by_id; i++) c->by_id = p->stop_id[i] == id;
    c->stop_id = id;
    bool own = false; /* the format's end is the model's */
    for (uint32_t i = 0; i < p->n_own_ends && !own; i++) own = p->stop_id[p->n_stop_ids + i] == id;
    return c->by_id || own;
}

static sl_reply_stop stop_of(const sl_choice *c) {
    sl_reply_stop stop = {0};
    bool stopped = c->finish && !strcmp(c->finish, "stop");
    if (stopped && !sl_stop_hit(c->stop, &stop.text) && c->by_id)
        stop = (sl_reply_stop){.by_id = true, .id = c->stop_id};
    return stop;
}

/* ---- whose log-probabilities are a text's ---- */

/* A token on its way through the parser of answers, which may hold it back. */
static sl_status score_later(sl_choice *c, uint32_t id, const sl_logprob *p) {
    sl_err err = {0};
    sl_status st = sl_ids_push(&c->mute, id, &err);
    return st == SL_OK ? sl_logprob_list_push(&c->mute_logprobs, p, sl_api_stride(&c->call->params))
                       : st;
}

/* What is shown beside a token of the answer. */
static sl_logprob_beside beside(const sl_api_params *p, const sl_logprob *own) {
    const sl_report r = sl_api_report(p);
    if (p->n_scored) return (sl_logprob_beside){own + 1 + r.n_top, r.n_scored, true};
    return (sl_logprob_beside){own + 1, p->n_top, false};
}

/* n bytes of text have come: the last tokens that are as long say them, those before said nothing.
 */
static void score_text(sl_choice *c, size_t n) {
    const sl_api_params *asked = &c->call->params;
    const sl_tokenizer *tok = c->call->server->o.tokenizer;
    size_t first = c->mute.len, stride = sl_api_stride(asked);
    for (size_t said = 0; first > 0 && said < n; first--)
        said += sl_tokenizer_piece(tok, c->mute.data[first - 1]).len;
    for (size_t i = first; i < c->mute.len; i++)
        sl_logprob_text_add(&c->logprobs, tok, c->mute.data[i], c->mute_logprobs.data + i * stride,
                            beside(asked, c->mute_logprobs.data + i * stride), c->offset);
    c->mute.len = c->mute_logprobs.len = 0;
}

/* n more bytes of a kind, or that call, follow what there is. */
static void note_run(sl_choice *c, sl_run_kind kind, size_t n) {
    sl_reply_run *last = c->n_runs ? &c->runs[c->n_runs - 1] : NULL;
    bool call = kind == SL_RUN_CALL;
    if (!c->call->dialect->in_blocks || (!call && n == 0)) return;
    size_t scored = kind == SL_RUN_TEXT ? c->logprobs.part[0].len - c->n_scored : 0;
    c->n_scored += scored;
    if (last && last->kind == kind && (!call || last->n == n)) {
        if (!call) last->n += n;
        last->n_scores += scored;
        return;
    }
    if (c->n_runs == c->runs_cap) {
        size_t cap = SL_MAX(2 * c->runs_cap, (size_t)4);
        sl_reply_run *grown = sl_grow(c->runs, c->runs_cap, cap, sizeof *grown);
        if (!grown) {
            c->told = SL_ERR_NOMEM;
            return;
        }
        c->runs = grown;
        c->runs_cap = cap;
    }
    c->runs[c->n_runs++] = (sl_reply_run){kind, n, scored};
}

/* What may have been the beginning of a stop string, before the answer ends, */
static void flush_text(sl_choice *c) {
    size_t had = c->text.len;
    sl_stop_flush(c->stop, &c->text);
    note_run(c, SL_RUN_TEXT, c->text.len - had);
}

/* or goes on with something else, where the order counts. */
static void break_text(sl_choice *c) {
    size_t had = c->text.len;
    if (!c->call->dialect->in_blocks) return;
    sl_stop_break(c->stop, &c->text);
    note_run(c, SL_RUN_TEXT, c->text.len - had);
}

/* Stop strings are looked for in the answer alone. */
static void add_text(sl_choice *c, const char *text, size_t n) {
    size_t had = c->text.len;
    c->offset += sl_utf8_count(text, n);
    if (c->n_tokens < c->call->params.min_tokens) /* too early to end */
        sl_jbuf_put(&c->text, text, n);
    else if (sl_stop_feed(c->stop, text, n, &c->text))
        c->finish = "stop";
    note_run(c, SL_RUN_TEXT, c->text.len - had);
}

/* ---- calls of tools ---- */

/* An id of a call: the same for who asks again, so it is made of the answer's own. */
static void make_id(const sl_choice *c, uint32_t index, char *out, size_t cap) {
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    bool short_one = c->call->server->style.tools == SL_TOOLS_MISTRAL;
    uint64_t x = 0xcbf29ce484222325u; /* FNV-1a */
    char seed[96];
    int n =
        snprintf(seed, sizeof seed, "%s/%" PRIu32 "/%" PRIu32, c->call->head.id, c->index, index);
    for (int i = 0; i < n; i++) x = (x ^ (uint8_t)seed[i]) * 0x100000001b3u;
    size_t at = short_one ? 0 : (size_t)snprintf(out, cap, "call_");
    for (uint32_t i = 0; i < (short_one ? ID_SHORT : ID_LETTERS); i++) {
        uint64_t z = x += 0x9e3779b97f4a7c15u; /* SplitMix64 */
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        out[at++] = letters[(z ^ z >> 31) % (sizeof letters - 1)];
    }
    out[at] = 0;
}

/* One more to show; NULL: no memory. */
static sl_reply_call *add_call(sl_choice *c, bool begins) {
    if (c->n_calls == c->calls_cap) {
        size_t cap = SL_MAX(2 * c->calls_cap, (size_t)4);
        sl_reply_call *grown = sl_grow(c->calls, c->calls_cap, cap, sizeof *grown);
        if (!grown) {
            c->told = SL_ERR_NOMEM;
            return NULL;
        }
        c->calls = grown;
        c->calls_cap = cap;
    }
    sl_reply_call *call = &c->calls[c->n_calls++];
    *call = (sl_reply_call){.index = sl_answer_calls(c->answer) - 1,
                            .begins = begins,
                            .name = sl_jbuf_init(),
                            .arguments = sl_jbuf_init()};
    return call;
}

static void clear_calls(sl_choice *c) {
    for (size_t i = 0; i < c->n_calls; i++) {
        sl_jbuf_free(&c->calls[i].name);
        sl_jbuf_free(&c->calls[i].arguments);
    }
    c->n_calls = 0;
}

static void begin_call(sl_choice *c, const sl_answer_event *ev) {
    break_text(c);
    sl_reply_call *call = add_call(c, true);
    if (!call) return;
    note_run(c, SL_RUN_CALL, c->n_calls - 1);
    sl_jbuf_put(&call->name, (const char *)ev->text.data, ev->text.len);
    if (ev->id.len > 0 && ev->id.len < sizeof call->id)
        snprintf(call->id, sizeof call->id, "%.*s", (int)ev->id.len, (const char *)ev->id.data);
    else
        make_id(c, call->index, call->id, sizeof call->id);
}

static void add_arguments(sl_choice *c, sl_span text) {
    uint32_t index = sl_answer_calls(c->answer) - 1;
    sl_reply_call *call = c->n_calls ? &c->calls[c->n_calls - 1] : NULL;
    if (!call || call->index != index) call = add_call(c, false);
    if (!call) return;
    note_run(c, SL_RUN_CALL, c->n_calls - 1);
    sl_jbuf_put(&call->arguments, (const char *)text.data, text.len);
    if (!call->arguments.ok) c->told = SL_ERR_NOMEM;
}

/* What the tokens say, piece by piece; nothing more once the answer has ended. */
static void on_answer(void *ctx, const sl_answer_event *ev) {
    sl_choice *c = ctx;
    if (c->finish) return;
    if (ev->kind != SL_ANSWER_TEXT) c->mute.len = c->mute_logprobs.len = 0;
    switch (ev->kind) {
    case SL_ANSWER_TEXT:
        score_text(c, ev->text.len);
        add_text(c, (const char *)ev->text.data, ev->text.len);
        return;
    case SL_ANSWER_REASONING:
        break_text(c);
        c->thinks = true;
        if (c->call->params.hide_reasoning) return;
        note_run(c, SL_RUN_REASONING, ev->text.len);
        sl_jbuf_put(&c->reasoning, (const char *)ev->text.data, ev->text.len);
        return;
    case SL_ANSWER_CALL:
        begin_call(c, ev);
        return;
    case SL_ANSWER_ARGUMENTS:
        add_arguments(c, ev->text);
        return;
    case SL_ANSWER_CALL_END:
        return;
    }
}

/* A token that tokenizing a text put before it: it is no part of the echo. */
static bool is_added(const sl_choice *c, const sl_tokenizer *tok) {
    const sl_call *call = c->call;
    sl_span text = call->params.prompts[c->index / call->params.n].text;
    uint32_t first = c->prompt->data[0];
    if (!text.data || first >= sl_tokenizer_vocab_size(tok) || !sl_tokenizer_is_special(tok, first))
        return false;
    sl_span piece = sl_tokenizer_piece(tok, first);
    return text.len < piece.len || memcmp(text.data, piece.data, piece.len) != 0;
}

/* One token of the prompt; p is NULL for the first, which nothing predicts. */
static void take_prompt_token(sl_choice *c, size_t at, const sl_logprob *p) {
    char piece[SL_DETOK_MAX_OUT];
    const sl_api_params *asked = &c->call->params;
    const sl_tokenizer *tok = c->call->server->o.tokenizer;
    uint32_t id = c->prompt->data[at];
    if (asked->prompt_logprobs)
        sl_logprob_prompt_add(&c->prompt_scores, tok, p, asked->n_prompt_top);
    if (!asked->echo) return;
    const sl_logprob_beside likeliest = {p ? p + 1 : NULL, p ? asked->n_top : 0, false};
    if (asked->logprobs) sl_logprob_text_add(&c->logprobs, tok, id, p, likeliest, c->offset);
    if (id >= sl_tokenizer_vocab_size(tok) || (at == 0 && is_added(c, tok))) return;
    size_t n = sl_detok_push(&c->detok, tok, id, false, piece);
    sl_jbuf_put(&c->text, piece, n);
    c->offset += sl_utf8_count(piece, n);
}

/* All of it, or the first token where reports on the others come. */
static void begin_prompt(sl_choice *c) {
    c->echoed = true;
    size_t n = sl_api_scores_prompt(&c->call->params) ? 1 : c->prompt->len;
    for (size_t i = 0; i < n; i++) take_prompt_token(c, i, NULL);
}

static void end_with_calls(sl_choice *c) {
    flush_text(c);
    c->finish = "tool_calls";
}

/* The parser takes tokens for those of an answer's beginning: where it goes on from given words it
 * gets their texts instead. */
static sl_status answer_push(sl_choice *c, uint32_t id) {
    char piece[SL_DETOK_MAX_OUT], name[MARKER_BYTES];
    const sl_tokenizer *tok = c->call->server->o.tokenizer;
    if (!c->call->params.go_on) return sl_answer_push(c->answer, id);
    if (!sl_tokenizer_is_special(tok, id))
        return sl_answer_feed(c->answer, piece, sl_detok_push(&c->detok, tok, id, true, piece));
    sl_span text = sl_tokenizer_piece(tok, id);
    sl_status st = sl_answer_feed(c->answer, piece, sl_detok_flush(&c->detok, piece));
    if (st != SL_OK || text.len >= sizeof name) return st; /* no marker is so long */
    snprintf(name, sizeof name, "%.*s", (int)text.len, (const char *)text.data);
    return sl_answer_marker(c->answer, name);
}

static sl_status take_token(sl_choice *c, uint32_t id, const sl_logprob *p) {
    char piece[SL_DETOK_MAX_OUT];
    sl_err err = {0};
    sl_call *call = c->call;
    const sl_tokenizer *tok = call->server->o.tokenizer;
    if (c->n_prompt_left > 0) {
        take_prompt_token(c, c->prompt->len - c->n_prompt_left--, p);
        return SL_OK;
    }
    if (call->params.no_answer) return SL_OK;
    c->n_tokens++;
    if (call->params.return_token_ids && sl_ids_push(&c->shown, id, &err) != SL_OK) return err.code;
    bool in_blocks = c->answer && call->dialect->in_blocks;
    if (p && call->params.logprobs && !in_blocks)
        sl_logprob_text_add(&c->logprobs, tok, id, p, beside(&call->params, p), c->offset);
    else if (p && call->params.logprobs && score_later(c, id, p) != SL_OK)
        return SL_ERR_NOMEM;
    if (id >= sl_tokenizer_vocab_size(tok) || ends_text(c, id)) return SL_OK;
    if (c->answer) {
        c->thinks = false;
        sl_status st = answer_push(c, id);
        c->n_thought += c->thinks;
        if (st == SL_OK && !c->finish && sl_answer_is_done(c->answer)) end_with_calls(c);
        return st;
    }
    size_t n = sl_detok_push(&c->detok, tok, id, !call->params.show_special, piece);
    add_text(c, piece, n);
    return SL_OK;
}

/* A stop string: what the engine still makes is not wanted. */
static void stop_engine(sl_choice *c) {
    sl_call *call = c->call;
    pthread_mutex_lock(&call->lock);
    c->muted = true;
    bool running = c->last == SL_FINISH_NONE;
    uint64_t id = c->engine_id;
    pthread_mutex_unlock(&call->lock);
    if (call->kept)
        sl_kept_stop(call->kept, c->index);
    else if (running)
        sl_engine_cancel(call->server->o.engine, id);
}

bool sl_choice_has_more(const sl_choice *c) {
    bool over = c->taken_last != SL_FINISH_NONE && !c->closed;
    return !c->finish && (c->taken_at < c->taken.len || over);
}

/* No token comes any more, and no stop string ended it. */
static sl_status end_choice(sl_choice *c) {
    char piece[SL_DETOK_MAX_OUT];
    c->closed = true;
    size_t n = sl_detok_flush(&c->detok, piece);
    if (c->answer &&
        (sl_answer_feed(c->answer, piece, n) != SL_OK || sl_answer_end(c->answer) != SL_OK))
        return SL_ERR_NOMEM;
    if (!c->answer) add_text(c, piece, n);
    if (!c->finish) flush_text(c);
    bool calls = c->answer && sl_answer_calls(c->answer) > 0;
    if (!c->finish && c->taken_last == SL_FINISH_STOP) c->finish = calls ? "tool_calls" : "stop";
    if (!c->finish && c->taken_last == SL_FINISH_LENGTH) c->finish = "length";
    if (c->finish && c->call->params.no_answer) c->finish = "length";
    return SL_OK;
}

sl_status sl_choice_decode(sl_choice *c, size_t most) {
    const sl_api_params *asked = &c->call->params;
    size_t stride = sl_api_stride(asked);
    if ((asked->echo || asked->prompt_logprobs) && !c->echoed) begin_prompt(c);
    for (size_t i = 0; c->answer && !c->primed && i < c->call->forced.len; i++)
        if (sl_answer_push(c->answer, c->call->forced.data[i]) != SL_OK) return SL_ERR_NOMEM;
    c->primed = true;
    for (; c->taken_at < c->taken.len && most > 0 && !c->finish; most--) {
        size_t i = c->taken_at++;
        bool has = stride > 0 && (i + 1) * stride <= c->taken_logprobs.len;
        const sl_logprob *p = has ? c->taken_logprobs.data + i * stride : NULL;
        sl_status st = take_token(c, c->taken.data[i], p);
        if (st != SL_OK) return st;
    }
    sl_status st = SL_OK;
    if (c->finish)
        stop_engine(c);
    else if (most > 0 && c->taken_last != SL_FINISH_NONE)
        st = end_choice(c);
    if (st != SL_OK) return st;
    return c->text.ok && c->reasoning.ok ? c->told : SL_ERR_NOMEM;
}

static sl_span span_of(const sl_jbuf *b) {
    return (sl_span){(const uint8_t *)(b->data ? b->data : ""), b->len};
}

static sl_reply_ids ids_of(const sl_choice *c, bool prompt, bool tokens) {
    static const uint32_t none = 0; /* an empty list is still a list */
    sl_reply_ids ids = {0};
    if (!c->call->params.return_token_ids) return ids;
    if (prompt) {
        ids.prompt = c->prompt->data;
        ids.n_prompt = c->prompt->len;
    }
    if (tokens) {
        ids.tokens = c->shown.data ? c->shown.data : &none;
        ids.n_tokens = c->shown.len;
    }
    return ids;
}

static sl_span scores_of(const sl_choice *c) {
    return c->call->params.prompt_logprobs ? span_of(&c->prompt_scores) : (sl_span){0};
}

sl_reply_ids sl_choice_prompt_ids(const sl_choice *c) {
    sl_reply_ids ids = ids_of(c, true, false);
    ids.whole = true;
    ids.scores = scores_of(c);
    return ids;
}

/* What a chunk says is counted in its usage: the role alone is no token. */
static void count_tokens(sl_choice *c) {
    c->call->usage.completion += c->n_tokens - c->n_counted;
    c->call->usage.thought += c->n_thought - c->counted_thought;
    c->n_counted = c->n_tokens;
    c->counted_thought = c->n_thought;
}

/* What is written, but for entries whose text is held back. */
static void forget_scores(sl_choice *c) {
    sl_jbuf *entries = &c->logprobs.part[0];
    size_t left = c->call->dialect->in_blocks ? entries->len - c->n_scored : 0;
    if (left)
        memmove(entries->data, entries->data + c->n_scored, left + 1);
    else
        sl_logprob_text_clear(&c->logprobs);
    entries->len = left;
    c->n_scored = 0;
}

void sl_choice_write_events(sl_choice *c, sl_jbuf *b) {
    const sl_reply_head *head = &c->call->head;
    const sl_dialect *d = c->call->dialect;
    bool chat = d->kind == SL_API_CHAT;
    bool news = c->text.len > 0 || c->reasoning.len > 0 || c->n_calls > 0 || c->shown.len > 0 ||
                (c->logprobs.n > 0 && !d->in_blocks);
    if (c->ended || (!news && !c->finish && (c->begun || c->taken.len == 0))) return;
    if (d->begin && !c->begun)
        d->begin(b, head, &(sl_reply_choice){.index = c->index, .ids = ids_of(c, true, false)});
    count_tokens(c);
    if (news) {
        sl_jbuf logprobs = sl_jbuf_init();
        sl_logprob_text_write(&c->logprobs, &logprobs);
        d->news(b, head,
                &(sl_reply_choice){.index = c->index,
                                   .text = span_of(&c->text),
                                   .reasoning = span_of(&c->reasoning),
                                   .calls = c->calls,
                                   .n_calls = c->n_calls,
                                   .runs = c->runs,
                                   .n_runs = c->n_runs,
                                   .ids = ids_of(c, !chat && !c->begun, true),
                                   .logprobs = span_of(&logprobs),
                                   .scores = span_of(&c->logprobs.part[0])});
        b->ok = b->ok && logprobs.ok;
        sl_jbuf_free(&logprobs);
        c->begun = true;
    }
    c->begun = c->begun || chat;
    sl_jbuf_clear(&c->text);
    sl_jbuf_clear(&c->reasoning);
    clear_calls(c);
    c->n_runs = 0;
    forget_scores(c);
    c->shown.len = 0;
    if (!c->finish) return;
    d->finish(b, head,
              &(sl_reply_choice){.index = c->index,
                                 .finish = c->finish,
                                 .stop = stop_of(c),
                                 .full = c->full,
                                 .ids = ids_of(c, !chat && !c->begun, true)});
    c->ended = true;
}

/* What its tokens say, special ones written out; false: no memory. */
static bool raw_text(const sl_choice *c, char **out, size_t *n) {
    sl_err err = {0};
    return sl_tokenizer_decode(c->call->server->o.tokenizer, c->shown.data, c->shown.len, false,
                               out, n, &err) == SL_OK;
}

void sl_choice_write(const sl_choice *c, sl_jbuf *b) {
    sl_jbuf logprobs = sl_jbuf_init();
    sl_logprob_text_write(&c->logprobs, &logprobs);
    const sl_dialect *d = c->call->dialect;
    sl_reply_ids ids = ids_of(c, d->kind != SL_API_CHAT, true);
    ids.whole = true;
    ids.scores = scores_of(c);
    char *raw = NULL;
    size_t n_raw = 0;
    if (c->call->params.verbose && d->in_blocks) b->ok = b->ok && raw_text(c, &raw, &n_raw);
    d->add(b, &c->call->head,
           &(sl_reply_choice){.index = c->index,
                              .text = span_of(&c->text),
                              .reasoning = span_of(&c->reasoning),
                              .calls = c->calls,
                              .n_calls = c->n_calls,
                              .runs = c->runs,
                              .n_runs = c->n_runs,
                              .finish = c->finish,
                              .stop = stop_of(c),
                              .full = c->full,
                              .ids = ids,
                              .logprobs = span_of(&logprobs),
                              .raw = {(const uint8_t *)raw, n_raw},
                              .scores = span_of(&c->logprobs.part[0])});
    sl_free(raw);
    b->ok = b->ok && logprobs.ok && c->prompt_scores.ok;
    sl_jbuf_free(&logprobs);
}

size_t sl_choice_bytes(const sl_choice *c) {
    const size_t id = 2; /* a digit and a comma */
    sl_reply_ids ids = ids_of(c, c->call->dialect->kind != SL_API_CHAT, true);
    size_t n = c->text.len + 2 * c->reasoning.len + c->prompt_scores.len +
               id * (ids.n_prompt + ids.n_tokens);
    for (size_t i = 0; i < c->n_calls; i++) n += c->calls[i].name.len + c->calls[i].arguments.len;
    for (size_t i = 0; i < SL_LEN(c->logprobs.part); i++) n += c->logprobs.part[i].len;
    return n;
}
