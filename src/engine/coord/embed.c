/* The public C API (include/sluice.h) on top of the engine. */
#include "sluice.h"

#include "base/clock.h"
#include "base/version.h"
#include "engine/coord/engine.h"
#include "format/plan_json.h"
#include "kernel/choice.h"
#include "text/chat.h"
#include "model/model.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct sluice {
    sl_engine *engine;
    sl_tokenizer *tok;
    sl_chat *chat;  /* NULL: the model has no known template */
    sl_err no_chat; /* why */
    uint32_t context;
};

#define TEXT_CAP (4u * SL_DETOK_MAX_OUT)

/* The engine's thread appends ids, for which there is room from the start; the caller's makes text
 * of them. */
struct sluice_stream {
    sluice *s;
    uint64_t id;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t *ids; /* [cap] */
    uint32_t cap, came;
    bool over, cancelled;
    sl_finish finish;
    char why[256];
    uint32_t given; /* from here on the caller's */
    bool flushed;
    sl_detok detok;
    char text[TEXT_CAP];
};

const char *sluice_version(void) {
    return sl_version();
}

static void explain(const sl_err *err, char *why, size_t cap) {
    if (cap) snprintf(why, cap, "%s", err->msg);
}

static sl_status open_parts(sluice *s, const sluice_options *o, sl_err *err) {
    sl_model_spec spec;
    sl_engine_opts eo = {.model_folder = o->model, .transport = "loop", .spawn = SL_SPAWN_THREADS};
    if (!o->model) return sl_fail(err, SL_ERR_ARG, "model: NULL, a folder is needed");
    sl_status st = sl_model_read_spec(o->model, &spec, NULL, err);
    if (st == SL_OK) st = sl_plan_local(&spec, o->attention, o->experts, &eo.plan, err);
    if (st != SL_OK) return st;
    eo.isa = sl_kernels_chosen();
    eo.plan.exact = o->exact != 0;
    eo.plan.threads = o->threads ? o->threads : 1;
    if (o->context) eo.plan.context = o->context;
    s->context = eo.plan.context;
    eo.plan.n_pages = SL_MAX(eo.plan.n_pages, sl_kv_pages_for(eo.plan.context));
    st = sl_tokenizer_open(o->model, &s->tok, err);
    if (st == SL_OK && sl_chat_open(o->model, &s->chat, &s->no_chat) != SL_OK) s->chat = NULL;
    if (st == SL_OK) st = sl_engine_create(&eo, &s->engine, err);
    sl_plan_free(&eo.plan);
    return st;
}

sluice *sluice_open(const sluice_options *options, char *why, size_t cap) {
    sl_err err = {0};
    sluice *s = sl_alloc(1, sizeof *s);
    if (!s) {
        sl_fail(&err, SL_ERR_NOMEM, "out of memory");
    } else if (open_parts(s, options, &err) == SL_OK) {
        return s;
    }
    explain(&err, why, cap);
    sluice_close(s);
    return NULL;
}

void sluice_close(sluice *s) {
    if (!s) return;
    sl_engine_free(s->engine);
    sl_chat_free(s->chat);
    sl_tokenizer_free(s->tok);
    sl_free(s);
}

static void on_event(void *ctx, const sl_request_event *ev) {
    sluice_stream *t = ctx;
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < ev->n && t->came < t->cap; i++) t->ids[t->came++] = ev->tokens[i];
    if (ev->finish != SL_FINISH_NONE) {
        t->finish = ev->finish;
        if (ev->message) snprintf(t->why, sizeof t->why, "%s", ev->message);
        t->over = true;
    }
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static sl_status take_ids(const sluice_request *r, sl_ids *ids, sl_err *err) {
    if (r->prompt) return sl_fail(err, SL_ERR_ARG, "prompt: there are ids, too");
    if (r->chat) return sl_fail(err, SL_ERR_ARG, "chat: 1, a template takes text, not ids");
    if (r->n_ids > UINT32_MAX) return sl_fail(err, SL_ERR_LIMIT, "n_ids: %zu", r->n_ids);
    return sl_ids_copy(ids, r->ids, r->n_ids) ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "out of memory");
}

static sl_status encode(sluice *s, const sluice_request *r, sl_ids *ids, sl_err *err) {
    if (r->ids) return take_ids(r, ids, err);
    if (!r->prompt) return sl_fail(err, SL_ERR_ARG, "prompt: NULL");
    const sl_span text = {(const uint8_t *)r->prompt, strlen(r->prompt)};
    if (!r->chat) return sl_tokenizer_encode(s->tok, text, true, true, ids, err);
    if (!s->chat) return sl_fail(err, SL_ERR_UNSUPPORTED, "%s", s->no_chat.msg);
    const sl_chat_message user = {.role = {(const uint8_t *)"user", 4}, .content = text};
    const sl_chat_options how = {.add_generation_prompt = true};
    return sl_chat_encode(s->chat, s->tok, &user, 1, how, ids, err);
}

static void free_stream(sluice_stream *t) {
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    sl_free(t->ids);
    sl_free(t);
}

static sluice_stream *make_stream(sluice *s, const sluice_request *r, uint32_t max_tokens) {
    sluice_stream *t = sl_alloc(1, sizeof *t);
    if (!t) return NULL;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&t->lock, NULL);
    t->s = s;
    t->detok.started = !r->chat;
    t->cap = SL_MIN(max_tokens, s->context); /* the engine refuses more */
    t->ids = sl_alloc(t->cap, sizeof *t->ids);
    if (t->ids) return t;
    free_stream(t);
    return NULL;
}

static sl_status submit(sluice_stream *t, const sluice_request *r, uint32_t max_tokens,
                        sl_err *err) {
    sl_ids ids = {0};
    sl_status st = encode(t->s, r, &ids, err);
    const sl_request_params p = {.prompt = ids.data,
                                 .n_prompt = (uint32_t)ids.len,
                                 .max_tokens = max_tokens,
                                 .sampling = {.temperature = r->temperature,
                                              .top_p = r->top_p > 0 ? r->top_p : 1,
                                              .top_k = r->top_k,
                                              .repetition_penalty = 1,
                                              .seed = r->seed},
                                 .shares = true, /* all requests are one caller's */
                                 .on_event = on_event,
                                 .ctx = t};
    if (st == SL_OK) st = sl_engine_submit(t->s->engine, &p, &t->id, err);
    sl_ids_free(&ids);
    return st;
}

sluice_stream *sluice_start(sluice *s, const sluice_request *request, char *why, size_t cap) {
    sl_err err = {0};
    const uint32_t max_tokens = request->max_tokens ? request->max_tokens : 128;
    sluice_stream *t = make_stream(s, request, max_tokens);
    if (!t) {
        sl_fail(&err, SL_ERR_NOMEM, "out of memory");
    } else if (submit(t, request, max_tokens, &err) == SL_OK) {
        return t;
    } else {
        free_stream(t);
    }
    explain(&err, why, cap);
    return NULL;
}

/* Until something came or it is over; with the lock. */
static void await_news(sluice_stream *t, uint32_t timeout_ms) {
    const uint64_t until_ns = sl_now_ns() + timeout_ms * 1000000ull;
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                   .tv_nsec = (long)(until_ns % 1000000000u)};
    int rc = 0;
    while (t->given == t->came && !t->over && rc == 0)
        rc = pthread_cond_timedwait(&t->changed, &t->lock, &until);
}

static sluice_finish how_it_ended(const sluice_stream *t) {
    if (t->finish == SL_FINISH_LENGTH) return SLUICE_LENGTH;
    return t->cancelled ? SLUICE_CANCELLED : SLUICE_STOP;
}

int sluice_next(sluice_stream *t, uint32_t timeout_ms, sluice_piece *out, char *why, size_t cap) {
    *out = (sluice_piece){.text = t->text, .ids = t->ids + t->given};
    pthread_mutex_lock(&t->lock);
    await_news(t, timeout_ms);
    const uint32_t came = t->came;
    const bool over = t->over;
    pthread_mutex_unlock(&t->lock);
    if (t->given == came && !over) return 0;
    if (t->given == came && t->finish == SL_FINISH_ERROR) {
        if (cap) snprintf(why, cap, "%s", t->why);
        return -1;
    }
    for (; t->given < came && out->len + 2 * SL_DETOK_MAX_OUT <= TEXT_CAP; out->n_ids++)
        out->len +=
            sl_detok_push(&t->detok, t->s->tok, t->ids[t->given++], true, t->text + out->len);
    if (t->given < came || !over || t->finish == SL_FINISH_ERROR) return 1;
    if (!t->flushed) out->len += sl_detok_flush(&t->detok, t->text + out->len);
    t->flushed = true;
    out->finish = how_it_ended(t);
    return 1;
}

void sluice_cancel(sluice_stream *t) {
    pthread_mutex_lock(&t->lock);
    if (!t->over) t->cancelled = true;
    pthread_mutex_unlock(&t->lock);
    sl_engine_cancel(t->s->engine, t->id);
}

void sluice_stream_close(sluice_stream *t) {
    if (!t) return;
    sluice_cancel(t);
    pthread_mutex_lock(&t->lock);
    while (!t->over) pthread_cond_wait(&t->changed, &t->lock); /* the engine ends every request */
    pthread_mutex_unlock(&t->lock);
    free_stream(t);
}

long sluice_generate(sluice *s, const sluice_request *request, char *why, size_t cap) {
    sluice_stream *t = sluice_start(s, request, why, cap);
    if (!t) return -1;
    sluice_piece piece;
    int news = 0;
    bool stop = !request->on_text;
    do {
        news = sluice_next(t, 1000, &piece, why, cap);
        if (news <= 0 || piece.len == 0 || stop) continue;
        stop = request->on_text(request->ctx, piece.text, piece.len) != 0;
        if (stop) sluice_cancel(t);
    } while (news == 0 || (news > 0 && piece.finish == SLUICE_RUNNING));
    const long tokens = news < 0 ? -1 : (long)t->given;
    sluice_stream_close(t);
    return tokens;
}
