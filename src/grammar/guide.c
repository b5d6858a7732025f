/* The store of guides: who uses which, what is compiled next, what is dropped. */
#include "grammar/guide.h"

#include "base/mem.h"
#include "text/tokenizer.h"

#include <pthread.h>
#include <stdatomic.h>

#define SPENT_BYTES (SL_GRAMMAR_MAX_MEMORY / 4)

struct sl_guide {
    sl_guides *store;
    sl_guide *newer, *older; /* by last use */
    sl_guide *next;          /* to be compiled; under the store's lock */
    uint8_t *shape;
    size_t n_shape;
    uint64_t hash;
    uint32_t users;
    bool spent;   /* it has learned much, or went bad: the next one who asks gets another */
    size_t bytes; /* that the store counts */
    /* written by who compiles, before `done` */
    sl_grammar *grammar;
    sl_status status;
    sl_err err;
    atomic_bool done;
};

struct sl_guides {
    sl_guides_opts o;
    char *model;
    uint32_t *ends;
    uint32_t *mask; /* of the model's ids, or of the vocabulary's where those are more */
    size_t words;
    sl_guide *newest, *oldest;
    size_t bytes;
    /* of who compiles */
    sl_tokenizer *tok;
    sl_vocab *vocab;
    sl_status status;
    sl_err err;
    /* the thread */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopping;
    sl_guide *first, *last; /* to be compiled */
};

/* ---- compiling ---- */

static sl_status make_vocab(sl_guides *s, sl_err *err) {
    const sl_tokenizer *tok = s->o.tok;
    sl_status st = SL_OK;
    if (!tok && !s->model)
        st = sl_fail(err, SL_ERR_UNSUPPORTED, "structured output: this worker has no tokenizer");
    if (st == SL_OK && !tok) st = sl_tokenizer_open(s->model, &s->tok, err);
    if (st == SL_OK)
        st = sl_vocab_of_tokenizer(tok ? tok : s->tok, s->ends, s->o.n_ends, &s->vocab, err);
    if (s->tok) sl_tokenizer_free(s->tok); /* the vocabulary has its texts */
    s->tok = NULL;
    return st;
}

/* The first mask is found here: it is the one that looks at most of the vocabulary. */
static void compile(sl_guides *s, sl_guide *g) {
    if (!s->vocab && s->status == SL_OK) s->status = make_vocab(s, &s->err);
    g->status = s->status;
    g->err = s->err;
    if (g->status == SL_OK)
        g->status =
            sl_grammar_of_shape(s->vocab, (sl_span){g->shape, g->n_shape}, &g->grammar, &g->err);
    uint32_t *mask = g->status == SL_OK ? sl_alloc(sl_vocab_words(s->vocab), sizeof *mask) : NULL;
    if (g->status == SL_OK && !mask) g->status = sl_fail(&g->err, SL_ERR_NOMEM, "a mask");
    if (g->status == SL_OK)
        g->status = sl_grammar_mask(g->grammar, sl_grammar_begin(g->grammar), mask, NULL, &g->err);
    sl_free(mask);
    atomic_store_explicit(&g->done, true, memory_order_release); /* with the loads below */
}

static void *run(void *arg) {
    sl_guides *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        sl_guide *g = s->first;
        if (!g) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        s->first = g->next;
        pthread_mutex_unlock(&s->lock);
        compile(s, g);
        if (s->o.ready) s->o.ready(s->o.ctx);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static bool is_done(const sl_guide *g) {
    return atomic_load_explicit(&g->done, memory_order_acquire);
}

/* ---- who is kept ---- */

static void unlist(sl_guide *g) {
    sl_guides *s = g->store;
    *(g->newer ? &g->newer->older : &s->newest) = g->older;
    *(g->older ? &g->older->newer : &s->oldest) = g->newer;
}

static void list_first(sl_guide *g) {
    sl_guides *s = g->store;
    g->newer = NULL;
    g->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = g;
    s->newest = g;
}

static void free_guide(sl_guide *g) {
    g->store->bytes -= g->bytes;
    sl_grammar_free(g->grammar);
    sl_free(g->shape);
    sl_free(g);
}

/* Drops what nobody uses until no more than this is left of it. */
static void fit(sl_guides *s, uint32_t most, size_t most_bytes) {
    uint32_t n = 0;
    size_t bytes = 0;
    for (sl_guide *g = s->newest, *older; g; g = older) {
        older = g->older;
        if (g->users || !is_done(g)) continue;
        n++;
        bytes += g->bytes;
        if (n <= most && bytes <= most_bytes && !g->spent) continue;
        unlist(g);
        free_guide(g);
    }
}

/* It has learned something. */
static sl_status count(sl_guide *g, sl_err *err) {
    sl_guides *s = g->store;
    const size_t now = sizeof *g + g->n_shape + (g->grammar ? sl_grammar_memory(g->grammar) : 0);
    s->bytes = s->bytes - g->bytes + now;
    g->bytes = now;
    g->spent = g->spent || now > SPENT_BYTES;
    if (s->bytes > SL_GUIDES_MAX_MEMORY) fit(s, 0, 0);
    if (s->bytes <= SL_GUIDES_MAX_MEMORY) return SL_OK;
    return sl_fail(err, SL_ERR_LIMIT,
                   "structured output: the grammars of running requests take more than %zu bytes",
                   SL_GUIDES_MAX_MEMORY);
}

static uint64_t hash_of(sl_span text) {
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a; equal ones are compared */
    for (size_t i = 0; i < text.len; i++) h = (h ^ text.data[i]) * 0x100000001b3u;
    return h;
}

static sl_guide *find(sl_guides *s, sl_span shape, uint64_t hash) {
    sl_guide *g = s->newest;
    while (g && (g->spent || g->hash != hash || g->n_shape != shape.len ||
                 memcmp(g->shape, shape.data, shape.len) != 0))
        g = g->older;
    if (g) unlist(g);
    return g;
}

static sl_guide *make(sl_guides *s, sl_span shape, uint64_t hash) {
    sl_guide *g = sl_alloc(1, sizeof *g);
    uint8_t *copy = g ? sl_alloc(shape.len, 1) : NULL;
    if (!copy) {
        sl_free(g);
        return NULL;
    }
    if (shape.len) memcpy(copy, shape.data, shape.len);
    g->store = s;
    g->shape = copy;
    g->n_shape = shape.len;
    g->hash = hash;
    s->bytes += g->bytes = sizeof *g + shape.len;
    return g;
}

static void hand_over(sl_guides *s, sl_guide *g) {
    pthread_mutex_lock(&s->lock);
    *(s->first ? &s->last->next : &s->first) = g;
    s->last = g;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

sl_guide *sl_guides_ask(sl_guides *s, sl_span shape) {
    const uint64_t hash = hash_of(shape);
    sl_guide *g = find(s, shape, hash);
    if (!g) {
        g = make(s, shape, hash);
        if (!g) return NULL;
        if (s->has_thread)
            hand_over(s, g);
        else
            compile(s, g);
    }
    g->users++;
    list_first(g);
    return g;
}

void sl_guide_let_go(sl_guide *g) {
    if (!g) return;
    SL_ASSERT(g->users > 0);
    if (--g->users == 0) fit(g->store, SL_GUIDES_MAX_IDLE, SL_GUIDES_IDLE_BYTES);
}

/* ---- a guide ---- */

sl_status sl_guide_state(const sl_guide *g, sl_err *err) {
    if (!is_done(g)) return sl_fail(err, SL_ERR_AGAIN, "structured output: still being compiled");
    if (g->status != SL_OK) *err = g->err;
    return g->status;
}

sl_grammar_at sl_guide_begin(const sl_guide *g) {
    return sl_grammar_begin(g->grammar);
}

sl_status sl_guide_take(sl_guide *g, const uint32_t *tokens, size_t n, sl_grammar_at *at,
                        sl_err *err) {
    sl_status st = SL_OK;
    sl_grammar_at to = *at;
    for (size_t i = 0; i < n && st == SL_OK; i++)
        st = sl_grammar_take(g->grammar, tokens[i], &to, err);
    if (st == SL_OK) st = count(g, err);
    if (st == SL_OK) *at = to;
    g->spent = g->spent || (st != SL_OK && st != SL_ERR_ARG);
    return st;
}

sl_status sl_guide_mask(sl_guide *g, sl_grammar_at at, const uint32_t **mask,
                        sl_grammar_allowed *allowed, sl_err *err) {
    sl_guides *s = g->store;
    const size_t need = sl_vocab_words(s->vocab);
    if (!s->mask) {
        s->words = SL_MAX(need, ((size_t)s->o.vocab + 31) / 32);
        s->mask = sl_alloc(s->words, sizeof *s->mask); /* ids without a token stay 0 */
        if (!s->mask) return sl_fail(err, SL_ERR_NOMEM, "a mask of %zu words", s->words);
    }
    sl_status st = sl_grammar_mask(g->grammar, at, s->mask, allowed, err);
    if (st == SL_OK) st = count(g, err);
    g->spent = g->spent || st != SL_OK;
    *mask = s->mask;
    return st;
}

/* ---- life ---- */

sl_status sl_guides_create(const sl_guides_opts *o, sl_guides **out, sl_err *err) {
    sl_guides *s = sl_alloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_ERR_NOMEM, "guides of answers");
    s->o = *o;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    const size_t n_model = o->model ? strlen(o->model) + 1 : 0;
    s->ends = sl_alloc(o->n_ends, sizeof *s->ends);
    if (o->model) s->model = sl_alloc(n_model, 1);
    sl_status st = SL_OK;
    if (!s->ends || (o->model && !s->model)) st = sl_fail(err, SL_ERR_NOMEM, "guides of answers");
    if (st == SL_OK && o->n_ends) memcpy(s->ends, o->ends, o->n_ends * sizeof *s->ends);
    if (st == SL_OK && o->model) memcpy(s->model, o->model, n_model);
    if (st == SL_OK && !o->at_once) {
        const int rc = pthread_create(&s->thread, NULL, run, s);
        if (rc != 0)
            st = sl_fail(err, SL_ERR_IO, "thread that compiles grammars: %s", strerror(rc));
        s->has_thread = rc == 0;
    }
    if (st == SL_OK)
        *out = s;
    else
        sl_guides_free(s);
    return st;
}

void sl_guides_free(sl_guides *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->has_thread) pthread_join(s->thread, NULL);
    for (sl_guide *g = s->newest, *older; g; g = older) {
        older = g->older;
        free_guide(g);
    }
    sl_vocab_free(s->vocab);
    sl_free(s->mask);
    sl_free(s->model);
    sl_free(s->ends);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    sl_free(s);
}
