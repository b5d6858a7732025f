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

uint64_t sl_token_times_add(sl_token_times *t, const sl_request_event *ev) {
    if (t->n == 0) {
        /* Workers of this machine share our clock. Another's first token is taken to be made when
         * it came, later ones by that worker's clock. */
        uint64_t now = sl_now_ns() / 1000;
        bool ours = ev->made_us >= t->submitted_us && ev->made_us <= now;
        t->shift_us = ours ? 0 : now - ev->made_us;
        t->first_us = ev->made_us + t->shift_us;
        t->last_us = t->first_us;
    }
    t->last_us = SL_MAX(t->last_us, ev->made_us + t->shift_us);
    t->n += ev->n;
    return t->last_us;
}

double sl_token_times_rate(const sl_token_times *t) {
    uint64_t us = t->last_us - t->first_us;
    return t->n > 1 && us ? (double)(t->n - 1) * 1e6 / (double)us : 0.0;
}

void sl_generation_free(sl_generation *g) {
    sl_ids_free(&g->ids);
    sl_free(g->made_us);
    g->made_us = NULL;
    g->made_cap = 0;
}

static void add_token(sl_generation *g, uint32_t id, uint64_t made_us) {
    sl_err err;
    if (g->ids.len == g->made_cap) {
        size_t cap = SL_MAX(2 * g->made_cap, 64u);
        uint64_t *grown = sl_grow(g->made_us, g->made_cap, cap, sizeof *grown);
        if (!grown) {
            g->status = SL_ERR_NOMEM;
            return;
        }
        g->made_us = grown;
        g->made_cap = cap;
    }
    g->made_us[g->ids.len] = made_us;
    if (sl_ids_push(&g->ids, id, &err) != SL_OK) g->status = err.code;
}

static void on_event(void *ctx, const sl_request_event *ev) {
    watched *w = ctx;
    pthread_mutex_lock(&w->all->lock);
    sl_generation *g = w->out;
    uint64_t made_us = ev->n ? sl_token_times_add(&g->times, ev) : 0;
    for (uint32_t i = 0; i < ev->n; i++) {
        add_token(g, ev->tokens[i], made_us);
        if (w->opts->on_token) w->opts->on_token(w->opts->ctx, ev->tokens[i]);
    }
    g->n_found = ev->n_found;
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
                                 .shares = o->shares,
                                 .on_event = on_event,
                                 .on_logits = o->on_logits ? on_logits : NULL,
                                 .ctx = w};
    uint64_t id;
    pthread_mutex_lock(&w->all->lock);
    w->all->open++;
    w->out->times.submitted_us = sl_now_ns() / 1000;
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

sl_status sl_generate_end(sl_engine *e, sl_status st, sl_err *err) {
    if (st == SL_OK) return sl_engine_close(e, err);
    sl_engine_free(e);
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
