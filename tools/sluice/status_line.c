/* The line at the bottom of a terminal: what the engine does right now. */
#include "cmd.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define PERIOD_NS 500000000u
#define ERASE     "\r\033[K"

/* What the engine said, and when; `of`: by worker and layer. */
typedef struct look {
    sl_engine_stats all;
    sl_engine_detail of;
    uint64_t at_ns;
} look;

struct sl_status_line {
    sl_engine *engine;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop, hidden;
    look now, before;
    sl_progress prompts; /* rows of those that are under way */
};

static size_t terminal_width(void) {
    struct winsize size;
    bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return known ? size.ws_col - 1u : 79;
}

/* Busy share between two reports of a worker; they come about twice a second. */
static double busy(const sl_worker_stats *now, const sl_worker_stats *before) {
    uint64_t work = now->execute_us + now->pack_us + now->send_us;
    uint64_t worked = before->execute_us + before->pack_us + before->send_us;
    uint64_t wall = now->wall_us - before->wall_us;
    return wall ? (double)(work - worked) / (double)wall : 0;
}

/* Prompts that are under way, as any long work. */
static void follow_prompts(sl_status_line *s) {
    uint64_t rows = 0, done = 0;
    for (uint32_t i = 0; i < s->now.of.n_workers; i++) {
        rows += s->now.of.worker[i].prompt_rows;
        done += s->now.of.worker[i].prompt_rows_done;
    }
    if (rows == 0)
        sl_progress_begin(&s->prompts, "prompts", SL_PROGRESS_STEPS, false);
    else
        sl_progress_set(&s->prompts, done, rows);
}

static size_t format(const sl_status_line *s, char *out, size_t cap) {
    const look *now_look = &s->now, *before_look = &s->before;
    const sl_engine_stats *now = &now_look->all, *before = &before_look->all;
    const sl_engine_detail *of = &now_look->of;
    double seconds = (double)(now_look->at_ns - before_look->at_ns) / 1e9;
    double rate =
        seconds > 0 ? (double)(now->generated_tokens - before->generated_tokens) / seconds : 0;
    size_t n = (size_t)snprintf(
        out, cap, "%s%.1f tokens/s | %u running, %u waiting | KV pages %" PRIu64 "/%" PRIu64,
        now->recovering ? "recovering | " : "", rate, now->running, now->waiting, now->pages_used,
        now->pages_total);
    if (s->prompts.total && n < cap) {
        char prompts[160];
        sl_progress_text(&s->prompts, prompts, sizeof prompts);
        n += (size_t)snprintf(out + n, cap - n, " | %s", prompts);
    }
    if (n < cap) n += (size_t)snprintf(out + n, cap - n, " | busy");
    for (uint32_t i = 0; i < of->n_workers && n < cap; i++) {
        static const char letter[] = {'-', 'A', 'E', 'W'}; /* attention, experts, both */
        n += (size_t)snprintf(out + n, cap - n, " %c%u %.0f%%", letter[of->worker[i].roles & 3], i,
                              100 * busy(&of->worker[i], &before_look->of.worker[i]));
    }
    return SL_MIN(n, cap - 1);
}

static void show(sl_status_line *s) {
    char text[512];
    size_t n = format(s, text, sizeof text);
    fprintf(stderr, ERASE "%.*s", (int)SL_MIN(n, terminal_width()), text);
    fflush(stderr);
}

/* A worker that has not reported anew keeps its older base, so its share does not drop to 0. */
static bool take(sl_status_line *s) {
    look next = {.at_ns = sl_now_ns()}, *base = &s->now;
    sl_err err;
    sl_engine_stats_get(s->engine, &next.all);
    if (sl_engine_detail_get(s->engine, &next.of, &err) != SL_OK) return false;
    for (uint32_t i = 0; i < base->of.n_workers && s->before.of.worker; i++) {
        if (next.of.worker[i].wall_us == base->of.worker[i].wall_us)
            base->of.worker[i] = s->before.of.worker[i];
    }
    sl_engine_detail_free(&s->before.of);
    s->before = *base;
    s->now = next;
    follow_prompts(s);
    return true;
}

static void *run(void *arg) {
    sl_status_line *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += PERIOD_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&s->changed, &s->lock, &until);
        if (s->stop || s->hidden) continue;
        if (take(s)) show(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

sl_status_line *sl_status_line_start(const sl_options *o, sl_engine *e) {
    if (o->no_status || !isatty(STDOUT_FILENO) || !isatty(STDERR_FILENO)) return NULL;
    sl_status_line *s = sl_alloc(1, sizeof *s);
    if (!s) return NULL; /* only a convenience */
    s->engine = e;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (take(s) && pthread_create(&s->thread, NULL, run, s) == 0) {
        sl_log_set_erase(true);
        return s;
    }
    sl_engine_detail_free(&s->now.of);
    sl_free(s);
    return NULL;
}

void sl_status_line_hide(sl_status_line *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    if (!s->hidden) {
        s->hidden = true;
        sl_log_set_erase(false);
        fputs(ERASE, stderr);
        fflush(stderr);
    }
    pthread_mutex_unlock(&s->lock);
}

void sl_status_line_stop(sl_status_line *s) {
    if (!s) return;
    sl_status_line_hide(s);
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    sl_engine_detail_free(&s->now.of);
    sl_engine_detail_free(&s->before.of);
    sl_free(s);
}
