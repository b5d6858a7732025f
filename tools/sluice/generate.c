/* Requests run to their end from a thread that waits: what run, logits and bench share. */
#include "cmd.h"

#include "base/clock.h"

#include <pthread.h>
#include <string.h>

typedef struct waiter waiter;

typedef struct watched {
    waiter *all;
    const sl_generate_opts *opts;
    sl_generation *out;
} watched;

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t open;
};

static void on_event(void *ctx, const sl_request_event *ev) {
    watched *w = ctx;
    sl_err err;
    uint64_t now = sl_now_ns();
    pthread_mutex_lock(&w->all->lock);
    sl_generation *g = w->out;
    for (uint32_t i = 0; i < ev->n; i++) {
        if (g->ids.len == 0) g->first_ns = now;
        g->last_ns = now;
        if (sl_ids_push(&g->ids, ev->tokens[i], &err) != SL_OK) g->status = err.code;
        if (w->opts->on_token) w->opts->on_token(w->opts->ctx, ev->tokens[i]);
    }
    if (ev->finish != SL_FINISH_NONE) {
        g->finish = ev->finish;
        if (ev->status != SL_OK) g->status = ev->status;
        snprintf(g->message, sizeof g->message, "%s", ev->message ? ev->message : "");
        w->all->open--;
        pthread_cond_signal(&w->all->changed);
    }
    pthread_mutex_unlock(&w->all->lock);
}

static void on_logits(void *ctx, uint64_t first, uint32_t n, const float *logits) {
    watched *w = ctx;
    w->opts->on_logits(w->opts->ctx, first, n, logits);
}

static sl_status submit(sl_engine *e, watched *w, sl_err *err) {
    const sl_generate_opts *o = w->opts;
    const sl_request_params p = {.prompt = o->prompt,
                                 .n_prompt = o->n_prompt,
                                 .max_tokens = o->max_tokens,
                                 .sampling = o->sampling,
                                 .ignore_eos = o->ignore_eos,
                                 .on_event = on_event,
                                 .on_logits = o->on_logits ? on_logits : NULL,
                                 .ctx = w};
    uint64_t id;
    pthread_mutex_lock(&w->all->lock);
    w->all->open++;
    w->out->submitted_ns = sl_now_ns();
    pthread_mutex_unlock(&w->all->lock);
    sl_status st = sl_engine_submit(e, &p, &id, err);
    if (st == SL_OK) return SL_OK;
    pthread_mutex_lock(&w->all->lock);
    w->all->open--;
    pthread_mutex_unlock(&w->all->lock);
    return st;
}

sl_status sl_generate(sl_engine *e, const sl_generate_opts *opts, sl_generation *outs, size_t n,
                      sl_err *err) {
    waiter all = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    watched *w = sl_alloc(n, sizeof *w);
    if (!w) return sl_fail(err, SL_ERR_NOMEM, "%zu requests", n);
    sl_status st = SL_OK;
    for (size_t i = 0; st == SL_OK && i < n; i++) {
        w[i] = (watched){.all = &all, .opts = &opts[i], .out = &outs[i]};
        st = submit(e, &w[i], err);
    }
    pthread_mutex_lock(&all.lock);
    while (all.open > 0) pthread_cond_wait(&all.changed, &all.lock);
    pthread_mutex_unlock(&all.lock);
    for (size_t i = 0; st == SL_OK && i < n; i++) {
        if (outs[i].status != SL_OK) st = sl_fail(err, outs[i].status, "%s", outs[i].message);
    }
    sl_free(w);
    return st;
}

void sl_print_json_string(FILE *out, const char *text, size_t len) {
    fputc('"', out);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c == '\n')
            fputs("\\n", out);
        else if (c < 0x20 || c == 0x7f)
            fprintf(out, "\\u%04x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}
