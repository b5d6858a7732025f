/* The loop of lab_load: one thread submits, the engine's thread reports. What is measured begins
 * with the first token after the warm-up and ends before the first one after its time is over:
 * tokens come in bursts, a step's at once, and so whole steps are counted. */
#include "load_int.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct samples {
    float *ms;
    size_t n, cap;
} samples;

typedef struct driver driver;

typedef enum phase {
    PHASE_WARM,   /* nothing counts */
    PHASE_ARMED,  /* the next token begins the measurement */
    PHASE_ON,     /* everything counts */
    PHASE_ENDING, /* the next token ends the measurement */
    PHASE_OFF,
} phase;

typedef struct slot {
    driver *d;
    uint64_t request, submitted_ns, first_ns, last_ns; /* last_ns 0: no token yet */
    uint64_t tokens;
} slot;

struct driver {
    sl_engine *e;
    const load_spec *l;
    uint64_t rng;
    slot *slot;           /* [concurrency] */
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    uint32_t *idle; /* stack of slots without a request */
    uint32_t n_idle;
    phase phase;
    uint64_t begin_ns, end_ns; /* of what was measured */
    samples itl, first;
    uint64_t tokens, finished, kept, failed, submitted, refused;
    char why[256];
};

static void add(samples *s, double ms) {
    if (s->n == s->cap) {
        size_t cap = SL_MAX(s->cap * 2, (size_t)65536);
        float *bigger = realloc(s->ms, cap * sizeof *bigger);
        if (!bigger) return; /* the sample is lost, the run goes on */
        s->ms = bigger;
        s->cap = cap;
    }
    s->ms[s->n++] = (float)ms;
}

/* A token came: measurements begin and end with tokens. */
static void mark(driver *d, uint64_t now_ns) {
    if (d->phase == PHASE_ARMED) {
        d->phase = PHASE_ON;
        d->begin_ns = now_ns;
    } else if (d->phase == PHASE_ENDING) {
        d->phase = PHASE_OFF;
        d->end_ns = now_ns;
        pthread_cond_signal(&d->changed);
    }
}

/* Whether a request that has ended kept the objectives. */
static bool keeps(const load_spec *l, const slot *s) {
    double ttft = (double)(s->first_ns - s->submitted_ns) / 1e6;
    double tpot =
        s->tokens > 1 ? (double)(s->last_ns - s->first_ns) / 1e6 / (double)(s->tokens - 1) : 0;
    return s->tokens > 0 && (l->slo_ttft_ms <= 0 || ttft <= l->slo_ttft_ms) &&
           (l->slo_tpot_ms <= 0 || tpot <= l->slo_tpot_ms);
}

static void on_event(void *ctx, const sl_request_event *ev) {
    slot *s = ctx;
    driver *d = s->d;
    uint64_t now = sl_now_ns();
    pthread_mutex_lock(&d->lock);
    if (ev->n > 0) mark(d, now);
    for (uint32_t i = 0; i < ev->n; i++) {
        if (d->phase == PHASE_ON || d->phase == PHASE_ENDING) {
            bool is_first = s->last_ns == 0;
            uint64_t since = is_first ? s->submitted_ns : s->last_ns;
            add(is_first ? &d->first : &d->itl, (double)(now - since) / 1e6);
            d->tokens++;
        }
        if (s->tokens++ == 0) s->first_ns = now;
        s->last_ns = now;
    }
    if (ev->finish != SL_FINISH_NONE) {
        if (ev->finish == SL_FINISH_ERROR) {
            d->failed++;
            snprintf(d->why, sizeof d->why, "%s", ev->message ? ev->message : "no reason given");
        }
        bool counts = d->phase == PHASE_ON || d->phase == PHASE_ENDING;
        d->finished += counts;
        d->kept += counts && keeps(d->l, s);
        d->idle[d->n_idle++] = (uint32_t)(s - d->slot);
        pthread_cond_signal(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
}

static uint32_t between(driver *d, const uint32_t range[2]) {
    return range[0] + (uint32_t)sl_rng_below(&d->rng, range[1] - range[0] + 1u);
}

static sl_status submit(driver *d, slot *s, uint32_t *prompt, sl_err *err) {
    sl_request_params p = {.prompt = prompt,
                           .n_prompt = between(d, d->l->prompt),
                           .max_tokens = between(d, d->l->output),
                           .sampling = {.top_p = 1},
                           .ignore_eos = true,
                           .on_event = on_event,
                           .ctx = s};
    for (uint32_t i = 0; i < p.n_prompt; i++)
        prompt[i] = (uint32_t)sl_rng_below(&d->rng, d->l->vocab);
    s->last_ns = s->tokens = 0;
    s->submitted_ns = sl_now_ns();
    return sl_engine_submit(d->e, &p, &s->request, err);
}

/* Waits for `changed` or until_ns. */
static void wait_until(driver *d, uint64_t until_ns) {
    struct timespec ts;
    uint64_t now = sl_now_ns(), ns = until_ns > now ? until_ns - now : 0;
    clock_gettime(CLOCK_REALTIME, &ts);
    ns += (uint64_t)ts.tv_nsec;
    ts.tv_sec += (time_t)(ns / 1000000000u);
    ts.tv_nsec = (long)(ns % 1000000000u);
    pthread_cond_timedwait(&d->changed, &d->lock, &ts);
}

/* A slot to submit from now, or UINT32_MAX after a wait. In an open loop *next_ns is the next
 * arrival; one that finds no slot is refused. */
static uint32_t next_slot(driver *d, uint64_t end_ns, uint64_t *next_ns) {
    uint32_t got = UINT32_MAX;
    uint64_t now = sl_now_ns();
    pthread_mutex_lock(&d->lock);
    bool due = !d->l->open || now >= *next_ns;
    if (due && d->l->open) {
        double u = (double)(sl_rng_next(&d->rng) >> 11) * 0x1.0p-53;
        *next_ns += (uint64_t)(-log(1 - u) / d->l->rate * 1e9);
        d->refused += d->n_idle == 0;
    }
    if (due && d->n_idle > 0) {
        got = d->idle[--d->n_idle];
        d->submitted++;
    } else if (!due || !d->l->open) {
        wait_until(d, SL_MIN(end_ns, d->l->open ? *next_ns : end_ns));
    }
    pthread_mutex_unlock(&d->lock);
    return got;
}

/* Without a warm-up it begins at once: the first steps are meant to count. */
static void begin_measuring(driver *d) {
    pthread_mutex_lock(&d->lock);
    d->begin_ns = sl_now_ns();
    d->phase = d->l->warmup_s > 0 ? PHASE_ARMED : PHASE_ON;
    pthread_mutex_unlock(&d->lock);
}

/* With `now` at once, else with the next token, or when none comes for a minute. */
static void end_measuring(driver *d, bool now) {
    pthread_mutex_lock(&d->lock);
    uint64_t until = sl_now_ns() + (now ? 0 : 60000000000u);
    d->phase = PHASE_ENDING;
    while (d->phase == PHASE_ENDING && sl_now_ns() < until) wait_until(d, until);
    if (d->phase == PHASE_ENDING) d->end_ns = sl_now_ns();
    d->phase = PHASE_OFF;
    pthread_mutex_unlock(&d->lock);
}

static bool any_failed(driver *d) {
    pthread_mutex_lock(&d->lock);
    bool failed = d->failed > 0;
    pthread_mutex_unlock(&d->lock);
    return failed;
}

static bool is_done(driver *d) {
    return any_failed(d) || (d->l->requests && d->submitted >= d->l->requests);
}

/* Submits until end_ns, or all requests are submitted, or one failed. */
static sl_status drive(driver *d, uint64_t end_ns, uint32_t *prompt, uint64_t *next_ns,
                       sl_err *err) {
    sl_status st = SL_OK;
    while (st == SL_OK && sl_now_ns() < end_ns && !is_done(d)) {
        uint32_t i = next_slot(d, end_ns, next_ns);
        if (i == UINT32_MAX) continue;
        st = submit(d, &d->slot[i], prompt, err);
        if (st == SL_OK) continue;
        pthread_mutex_lock(&d->lock);
        d->idle[d->n_idle++] = i;
        d->submitted--;
        pthread_mutex_unlock(&d->lock);
    }
    return st;
}

/* Until every request has ended; with `cancel` they are told to. */
static void drain(driver *d, bool cancel) {
    for (uint32_t i = 0; cancel && i < d->l->concurrency; i++)
        sl_engine_cancel(d->e, d->slot[i].request);
    pthread_mutex_lock(&d->lock);
    while (d->n_idle < d->l->concurrency) pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

/* ---- the result ---- */

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static double at(const samples *s, double share) {
    return s->n ? (double)s->ms[(size_t)((double)(s->n - 1) * share)] : 0;
}

static double mean(const samples *s) {
    double sum = 0;
    for (size_t i = 0; i < s->n; i++) sum += (double)s->ms[i];
    return s->n ? sum / (double)s->n : 0;
}

static void print_samples(const char *name, samples *s) {
    if (s->n) qsort(s->ms, s->n, sizeof *s->ms, by_value);
    printf(" \"%s\": {\"n\": %zu, \"mean\": %.4f, \"p50\": %.4f, \"p90\": %.4f, \"p99\": %.4f, "
           "\"max\": %.4f},\n",
           name, s->n, mean(s), at(s, 0.5), at(s, 0.9), at(s, 0.99), at(s, 1));
}

/* Between two reports of one worker, as shares of the wall time. */
static void print_worker(const sl_worker_stats *a, const sl_worker_stats *b, bool last) {
    const struct {
        const char *name;
        uint64_t us;
    } part[] = {{"execute", b->execute_us - a->execute_us},
                {"pack", b->pack_us - a->pack_us},
                {"send", b->send_us - a->send_us},
                {"poll", b->poll_us - a->poll_us},
                {"wait", b->wait_us - a->wait_us},
                {"sleep", b->sleep_us - a->sleep_us},
                {"cpu", b->cpu_us - a->cpu_us}};
    uint64_t wall = SL_MAX(b->wall_us - a->wall_us, 1);
    printf("  {\"id\": %u, \"roles\": %u, \"wall_us\": %llu", b->id, b->roles,
           (unsigned long long)wall);
    for (size_t i = 0; i < SL_LEN(part); i++)
        printf(", \"%s\": %.4f", part[i].name, (double)part[i].us / (double)wall);
    printf(", \"attention_rows\": %llu, \"expert_rows\": %llu, \"rounds\": %llu, "
           "\"sent_messages\": %llu, \"sent_bytes\": %llu}%s\n",
           (unsigned long long)(b->attention_rows - a->attention_rows),
           (unsigned long long)(b->expert_rows - a->expert_rows),
           (unsigned long long)(b->rounds - a->rounds),
           (unsigned long long)(b->sent_messages - a->sent_messages),
           (unsigned long long)(b->sent_bytes - a->sent_bytes), last ? "" : ",");
}

static void print_result(driver *d, double seconds, const sl_engine_detail *a,
                         const sl_engine_detail *b) {
    double per_s = seconds > 0 ? (double)d->tokens / seconds : 0, scale = d->l->time_scale;
    printf("{\"begin_ns\": %llu, \"end_ns\": %llu,\n", (unsigned long long)d->begin_ns,
           (unsigned long long)d->end_ns);
    printf(" \"seconds\": %.3f, \"tokens\": %llu, \"tokens_per_s\": %.3f,\n \"requests\": "
           "{\"submitted\": %llu, \"finished\": %llu, \"refused\": %llu},\n",
           seconds, (unsigned long long)d->tokens, per_s, (unsigned long long)d->submitted,
           (unsigned long long)d->finished, (unsigned long long)d->refused);
    printf(" \"goodput_per_s\": %.4f,\n", seconds > 0 ? (double)d->kept / seconds : 0);
    print_samples("itl_ms", &d->itl);
    print_samples("ttft_ms", &d->first);
    printf(" \"time_scale\": %g, \"modelled\": {\"tokens_per_s\": %.2f, \"itl_ms_mean\": %.4f, "
           "\"itl_ms_p50\": %.4f, \"itl_ms_p99\": %.4f},\n \"workers\": [\n",
           scale, per_s * scale, mean(&d->itl) / scale, at(&d->itl, 0.5) / scale,
           at(&d->itl, 0.99) / scale);
    for (uint32_t i = 0; i < b->n_workers; i++)
        print_worker(&a->worker[i], &b->worker[i], i + 1 == b->n_workers);
    printf(" ]}\n");
}

static sl_status run(driver *d, uint32_t *prompt, sl_err *err) {
    sl_engine_detail before = {0}, after = {0};
    uint64_t begin = sl_now_ns(), next_ns = begin;
    uint64_t warm = begin + (uint64_t)(d->l->warmup_s * 1e9);
    sl_status st = drive(d, warm, prompt, &next_ns, err);
    if (st == SL_OK) st = sl_engine_detail_get(d->e, &before, err);
    begin_measuring(d);
    uint64_t end =
        d->l->measure_s > 0 ? sl_now_ns() + (uint64_t)(d->l->measure_s * 1e9) : UINT64_MAX;
    if (st == SL_OK) st = drive(d, end, prompt, &next_ns, err);
    bool all_submitted = st == SL_OK && sl_now_ns() < end && !any_failed(d);
    if (all_submitted) drain(d, false);
    end_measuring(d, all_submitted || st != SL_OK || any_failed(d));
    if (!all_submitted) { /* while all are still there */
        nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
        if (st == SL_OK) st = sl_engine_detail_get(d->e, &after, err);
    }
    drain(d, true);
    if (all_submitted) {
        nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 200000000}, NULL);
        st = sl_engine_detail_get(d->e, &after, err);
    }
    if (st == SL_OK && d->failed)
        st = sl_fail(err, SL_ERR_WORKER_LOST, "%llu requests failed: %s",
                     (unsigned long long)d->failed, d->why);
    if (st == SL_OK) print_result(d, (double)(d->end_ns - d->begin_ns) / 1e9, &before, &after);
    sl_engine_detail_free(&before);
    sl_engine_detail_free(&after);
    return st;
}

sl_status load_run(sl_engine *e, const load_spec *l, sl_err *err) {
    driver d = {.e = e, .l = l, .rng = l->seed};
    pthread_mutex_init(&d.lock, NULL);
    pthread_cond_init(&d.changed, NULL);
    d.slot = sl_alloc(l->concurrency, sizeof *d.slot);
    d.idle = sl_alloc(l->concurrency, sizeof *d.idle);
    uint32_t *prompt = sl_alloc(l->prompt[1], sizeof *prompt);
    sl_status st = SL_OK;
    if (!d.slot || !d.idle || !prompt)
        st = sl_fail(err, SL_ERR_NOMEM, "load of %u requests", l->concurrency);
    for (uint32_t i = 0; st == SL_OK && i < l->concurrency; i++) {
        d.slot[i].d = &d;
        d.idle[d.n_idle++] = l->concurrency - 1 - i;
    }
    if (st == SL_OK) st = run(&d, prompt, err);
    sl_free(d.slot);
    sl_free(d.idle);
    sl_free(prompt);
    free(d.itl.ms);
    free(d.first.ms);
    return st;
}
