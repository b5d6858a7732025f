/* The public C API (include/sluice.h) on top of the engine. */
#include "sluice.h"

#include "engine/coord/engine.h"
#include "format/plan_json.h"
#include "text/chat.h"
#include "model/model.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct sluice {
    sl_engine *engine;
    sl_tokenizer *tok;
    sl_chat *chat;  /* NULL: the model has no known template */
    sl_err no_chat; /* why */
};

typedef struct call {
    const sluice_request *r;
    sluice *s;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    sl_detok detok;
    uint64_t id; /* 0: not known yet */
    bool over, stop;
    long tokens;
    sl_finish finish;
    char why[256];
} call;

const char *sluice_version(void) {
    return SL_VERSION;
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
    eo.plan.exact = o->exact != 0;
    eo.plan.threads = o->threads ? o->threads : 1;
    if (o->context) eo.plan.context = o->context;
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

static void hand_out(call *c, const char *text, size_t n) {
    if (n && !c->stop && c->r->on_text && c->r->on_text(c->r->ctx, text, n) != 0) c->stop = true;
}

static void on_event(void *ctx, const sl_request_event *ev) {
    call *c = ctx;
    char text[SL_DETOK_MAX_OUT];
    for (uint32_t i = 0; i < ev->n; i++) {
        c->tokens++;
        hand_out(c, text, sl_detok_push(&c->detok, c->s->tok, ev->tokens[i], true, text));
    }
    if (ev->finish == SL_FINISH_NONE) {
        if (c->stop) sl_engine_cancel(c->s->engine, ev->request);
        return;
    }
    hand_out(c, text, sl_detok_flush(&c->detok, text));
    pthread_mutex_lock(&c->lock);
    c->finish = ev->finish;
    if (ev->message) snprintf(c->why, sizeof c->why, "%s", ev->message);
    c->over = true;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static sl_status encode(sluice *s, const sluice_request *r, sl_ids *ids, sl_err *err) {
    if (!r->prompt) return sl_fail(err, SL_ERR_ARG, "prompt: NULL");
    const sl_span text = {(const uint8_t *)r->prompt, strlen(r->prompt)};
    if (!r->chat) return sl_tokenizer_encode(s->tok, text, true, true, ids, err);
    if (!s->chat) return sl_fail(err, SL_ERR_UNSUPPORTED, "%s", s->no_chat.msg);
    const sl_chat_message user = {.role = {(const uint8_t *)"user", 4}, .content = text};
    const sl_chat_options how = {.add_generation_prompt = true};
    return sl_chat_encode(s->chat, s->tok, &user, 1, how, ids, err);
}

static sl_status run(call *c, const sl_ids *ids, sl_err *err) {
    const sluice_request *r = c->r;
    const sl_request_params p = {.prompt = ids->data,
                                 .n_prompt = (uint32_t)ids->len,
                                 .max_tokens = r->max_tokens ? r->max_tokens : 128,
                                 .sampling = {.temperature = r->temperature,
                                              .top_p = r->top_p > 0 ? r->top_p : 1,
                                              .top_k = r->top_k,
                                              .repetition_penalty = 1,
                                              .seed = r->seed},
                                 .on_event = on_event,
                                 .ctx = c};
    sl_status st = sl_engine_submit(c->s->engine, &p, &c->id, err);
    if (st != SL_OK) return st;
    pthread_mutex_lock(&c->lock);
    while (!c->over) pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    if (c->finish == SL_FINISH_ERROR) return sl_fail(err, SL_ERR_WORKER_LOST, "%s", c->why);
    return SL_OK;
}

long sluice_generate(sluice *s, const sluice_request *request, char *why, size_t cap) {
    sl_err err = {0};
    sl_ids ids = {0};
    call c = {.r = request,
              .s = s,
              .lock = PTHREAD_MUTEX_INITIALIZER,
              .changed = PTHREAD_COND_INITIALIZER,
              .detok = {.started = !request->chat}};
    sl_status st = encode(s, request, &ids, &err);
    if (st == SL_OK) st = run(&c, &ids, &err);
    sl_ids_free(&ids);
    if (st == SL_OK) return c.tokens;
    explain(&err, why, cap);
    return -1;
}
