/* Streams of GPUs that are not there: a thread each, which does what is asked in order, later than
 * it was asked. With a seed it does nothing until somebody waits for it: whoever reads a result too
 * early, or changes what is still to be read, does so every time. */
#include "emulator.h"
#include "fake_driver.h"
#include "fake_int.h"

#include "base/rng.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ASKED     4      /* questions at most until something is done */
#define MOMENT_NS 100000 /* that an answer takes at most */

struct CUstream_st {
    struct CUstream_st *next;
    pthread_t thread;
    fake_work *first, *last;
    uint64_t given, done; /* works */
    uint64_t wanted;      /* somebody waits for all up to this one */
    uint64_t rng;
    sl_cu_result broken;
    bool ends;
};

struct CUevent_st {
    sl_cu_stream stream; /* NULL: never put */
    uint64_t number;     /* of its last mark */
    double ms;           /* when that was done */
    bool captured;       /* it belongs to a graph */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* anything of any stream */
static sl_cu_stream streams;
static uint64_t seed_of_streams;
static bool seeded;
static struct {
    char call[48];
    uint32_t left;
    sl_cu_result result;
} failure;

/* With the lock. */
static uint64_t seed(void) {
    if (!seeded) seed_of_streams = fake_number("SLUICE_FAKE_CUDA_SEED", 0);
    seeded = true;
    return seed_of_streams;
}

FAKE_CALL sluice_fake_cuda_seed_fn sluice_fake_cuda_seed;
void sluice_fake_cuda_seed(uint64_t s) {
    pthread_mutex_lock(&lock);
    seed_of_streams = s;
    seeded = true;
    pthread_mutex_unlock(&lock);
}

FAKE_CALL sluice_fake_cuda_fail_fn sluice_fake_cuda_fail;
void sluice_fake_cuda_fail(const char *call, uint32_t nth, int result) {
    pthread_mutex_lock(&lock);
    strncpy(failure.call, call, sizeof failure.call - 1);
    failure.left = nth;
    failure.result = result;
    pthread_mutex_unlock(&lock);
}

/* With the lock. */
static sl_cu_result failure_of(const char *call) {
    if (!failure.left || strcmp(failure.call, call) != 0 || --failure.left) return SL_CU_OK;
    return failure.result;
}

sl_cu_result fake_failure(const char *call) {
    pthread_mutex_lock(&lock);
    const sl_cu_result r = failure_of(call);
    pthread_mutex_unlock(&lock);
    return r;
}

static void launch(const fake_work *w, uint64_t order) {
    const emu_launch l = {.kernel = w->kernel->name,
                          .thunk = w->kernel->thunk,
                          .args = w->args,
                          .grid = {w->grid[0], w->grid[1], w->grid[2]},
                          .threads = w->threads,
                          .dynamic_bytes = w->dynamic,
                          .plain = !w->asked,
                          .seed = order};
    emu_run(&l);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Without the lock. */
static void do_work(const fake_work *w, uint64_t order) {
    if (w->kind == FAKE_COPY) memmove(w->to, w->from, w->bytes);
    if (w->kind == FAKE_FILL) memset(w->to, w->byte, w->bytes);
    if (w->kind == FAKE_LAUNCH) launch(w, order);
}

/* With the lock: the other stream's work, which it does now where nobody else waits for it. */
static void wait_for_other(const fake_work *w) {
    if (w->other->wanted < w->until) w->other->wanted = w->until;
    pthread_cond_broadcast(&changed);
    while (w->other->done < w->until) pthread_cond_wait(&changed, &lock);
}

/* With the lock. */
static bool is_due(const struct CUstream_st *s) {
    return s->first && (!seed() || s->ends || s->wanted > s->done);
}

static void *stream_thread(void *arg) {
    sl_cu_stream s = arg;
    pthread_mutex_lock(&lock);
    while (!s->ends || s->first) {
        if (!is_due(s)) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        fake_work *w = s->first;
        const uint64_t order = seed() ? sl_rng_next(&s->rng) | 1 : 0;
        if (s->broken == SL_CU_OK) s->broken = failure_of("execute");
        const bool works = s->broken == SL_CU_OK;
        if (w->kind == FAKE_WAIT && works) wait_for_other(w);
        pthread_mutex_unlock(&lock);
        if (works) do_work(w, order);
        pthread_mutex_lock(&lock);
        if (w->mark && w->mark->number == w->number) w->mark->ms = now_ms();
        if (!(s->first = w->next)) s->last = NULL;
        s->done++;
        free(w->args);
        free(w);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    emu_release();
    return NULL;
}

sl_cu_result fake_stream_create(sl_cu_stream *out) {
    sl_cu_stream s = calloc(1, sizeof *s);
    if (!s) return SL_CU_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    s->rng = seed();
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&lock);
    if (pthread_create(&s->thread, NULL, stream_thread, s) != 0) abort();
    *out = s;
    return SL_CU_OK;
}

sl_cu_result fake_stream_destroy(sl_cu_stream s) {
    pthread_mutex_lock(&lock);
    s->ends = true;
    for (sl_cu_stream *at = &streams; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(s->thread, NULL);
    free(s);
    return SL_CU_OK;
}

sl_cu_result fake_stream_add(sl_cu_stream s, const fake_work *w) {
    sl_cu_result captured;
    if (fake_captures(s, w, &captured)) return captured;
    fake_work *mine = malloc(sizeof *mine);
    if (!mine) abort();
    *mine = *w;
    mine->next = NULL;
    pthread_mutex_lock(&lock);
    const sl_cu_result r = s->broken;
    mine->number = ++s->given;
    if (mine->mark) {
        mine->mark->stream = s;
        mine->mark->number = mine->number;
        mine->mark->captured = false;
    }
    if (s->last)
        s->last->next = mine;
    else
        s->first = mine;
    s->last = mine;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return r;
}

sl_cu_result fake_stream_after(sl_cu_stream s, sl_cu_event e) {
    fake_work w = {.kind = FAKE_WAIT};
    pthread_mutex_lock(&lock);
    w.other = e->stream;
    w.until = e->number;
    const bool captured = e->captured;
    pthread_mutex_unlock(&lock);
    if (captured) return SL_CU_CAPTURED_EVENT;
    return !w.other || w.other == s ? SL_CU_OK : fake_stream_add(s, &w);
}

/* With the lock. */
static sl_cu_result wait_until(sl_cu_stream s, uint64_t number) {
    if (s->wanted < number) s->wanted = number;
    pthread_cond_broadcast(&changed);
    while (s->done < number) pthread_cond_wait(&changed, &lock);
    return s->broken;
}

sl_cu_result fake_stream_wait(sl_cu_stream s) {
    pthread_mutex_lock(&lock);
    const sl_cu_result r = wait_until(s, s->given);
    pthread_mutex_unlock(&lock);
    return r;
}

void fake_streams_wait(void) {
    pthread_mutex_lock(&lock);
    for (sl_cu_stream s = streams; s;) { /* one may go while another is waited for */
        const bool waits = s->done < s->given;
        if (waits) {
            s->wanted = s->given;
            pthread_cond_broadcast(&changed);
            pthread_cond_wait(&changed, &lock);
        }
        s = waits ? streams : s->next;
    }
    pthread_mutex_unlock(&lock);
}

sl_cu_result fake_mark_create(sl_cu_event *out) {
    *out = calloc(1, sizeof **out);
    return *out ? SL_CU_OK : SL_CU_OUT_OF_MEMORY;
}

void fake_mark_captured(sl_cu_event e) {
    pthread_mutex_lock(&lock);
    e->captured = true;
    pthread_mutex_unlock(&lock);
}

/* With the lock: for a moment, or until something has happened. */
static void wait_a_moment(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += MOMENT_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    (void)pthread_cond_timedwait(&changed, &lock, &until);
}

/* Each question lets the stream go on by a little, so that who only asks gets there, too. Where the
 * stream is at work, the answer takes a moment: who asks in a loop would take a processor from it.
 */
sl_cu_result fake_mark_query(sl_cu_event e) {
    sl_cu_result r = SL_CU_OK;
    pthread_mutex_lock(&lock);
    sl_cu_stream s = e->stream;
    if (e->captured) r = SL_CU_CAPTURED_EVENT;
    if (s && !e->captured) {
        if (s->done < e->number && s->broken == SL_CU_OK && is_due(s)) wait_a_moment();
        if (s->done < e->number) r = SL_CU_NOT_READY;
        if (s->broken != SL_CU_OK) r = s->broken;
        if (r == SL_CU_NOT_READY && seed() && sl_rng_below(&s->rng, ASKED) == 0) {
            const uint64_t some = 1 + sl_rng_below(&s->rng, e->number - s->done);
            if (s->wanted < s->done + some) s->wanted = s->done + some;
            pthread_cond_broadcast(&changed);
        }
    }
    pthread_mutex_unlock(&lock);
    return r;
}

sl_cu_result fake_mark_wait(sl_cu_event e) {
    pthread_mutex_lock(&lock);
    sl_cu_result r = e->captured ? SL_CU_CAPTURED_EVENT : SL_CU_OK;
    if (e->stream && r == SL_CU_OK) r = wait_until(e->stream, e->number);
    pthread_mutex_unlock(&lock);
    return r;
}

sl_cu_result fake_mark_ms(sl_cu_event from, sl_cu_event to, float *out) {
    sl_cu_result r = SL_CU_OK;
    pthread_mutex_lock(&lock);
    if (!from->stream || !to->stream)
        r = SL_CU_INVALID_HANDLE;
    else if (from->stream->done < from->number || to->stream->done < to->number)
        r = SL_CU_NOT_READY;
    else
        *out = (float)(to->ms - from->ms);
    pthread_mutex_unlock(&lock);
    return r;
}

/* One that a stream has still to put is awaited. */
void fake_mark_free(sl_cu_event e) {
    (void)fake_mark_wait(e);
    free(e);
}
