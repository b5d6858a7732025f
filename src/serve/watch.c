/* libmicrohttpd does not look at the socket of a suspended connection. This thread does, for every
 * request that runs on the engine: a client that closes (even only its sending side) ends its
 * request. It also does what an engine callback may not, cancelling a request whose client reads
 * too slowly; it wakes streams that have been quiet for too long; and it lets new connections in.
 */
#include "serve/server_int.h"

#include "base/clock.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SWEEP_MS 1000
#define PAUSE_MS 20

/* A stream that has begun says so soon when the engine mends itself: its client waits. */
#define QUIET_RECOVERING_NS 1000000000ull

/* What an event is about; anything else is the serial number of a call, which counts from 1. */
#define WOKEN    0u
#define LISTENER UINT64_MAX

/* A call with a reference, by serial number; NULL when it has left. */
static sl_call *find_call(sl_server *s, uint64_t serial) {
    pthread_mutex_lock(&s->lock);
    sl_call *call = s->calls;
    while (call && call->serial != serial) call = call->next;
    if (call) atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&s->lock);
    return call;
}

/* The same for any call that an engine callback marked and nobody has acted on. */
static sl_call *find_marked(sl_server *s) {
    pthread_mutex_lock(&s->lock);
    sl_call *call = s->calls;
    for (; call; call = call->next) {
        pthread_mutex_lock(&call->lock);
        bool marked = call->marked;
        call->marked = false;
        pthread_mutex_unlock(&call->lock);
        if (marked) break;
    }
    if (call) atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&s->lock);
    return call;
}

static bool await_clients(sl_server *s, int op, uint32_t events) {
    struct epoll_event ev = {.events = events, .data.u64 = LISTENER};
    return epoll_ctl(s->epoll_fd, op, s->listen_fd, &ev) == 0;
}

/* Lets clients in, until the server stops. When that has to pause, the socket is not looked at
 * until then. */
static void let_in(sl_server *s, bool *paused) {
    bool stopping = atomic_load_explicit(&s->stopping, memory_order_acquire);
    bool pause = !stopping && !sl_conns_accept(&s->conns, s->listen_fd, s->tls, s->daemon);
    if (stopping)
        await_clients(s, EPOLL_CTL_DEL, 0);
    else if (pause != *paused)
        await_clients(s, EPOLL_CTL_MOD, pause ? 0 : EPOLLIN);
    *paused = pause;
}

static void cancel_marked(sl_server *s) {
    for (sl_call *call; (call = find_marked(s));) {
        sl_call_abort_with(call, SL_ABORT_NONE);
        sl_call_unref(call);
    }
}

/* Wakes a suspended stream that has been quiet for too long. */
static void rouse(sl_call *call, uint64_t now_ns, uint64_t quiet_ns, bool recovering) {
    pthread_mutex_lock(&call->lock);
    if (call->suspended && call->started && call->params.stream) {
        bool begun = call->phase == SL_CALL_STREAM;
        uint64_t most = recovering && begun ? SL_MIN(quiet_ns, QUIET_RECOVERING_NS) : quiet_ns;
        if (now_ns >= call->spoke_ns + most) {
            call->remark = recovering ? "recovering" : "keep-alive";
            call->suspended = false;
            MHD_resume_connection(call->connection);
        }
    }
    pthread_mutex_unlock(&call->lock);
}

static void rouse_quiet(sl_server *s) {
    if (s->o.keepalive_s == 0) return;
    sl_engine_stats stats = {0};
    sl_engine_stats_get(s->o.engine, &stats);
    uint64_t now_ns = sl_now_ns(), quiet_ns = s->o.keepalive_s * 1000000000ull;
    pthread_mutex_lock(&s->lock);
    for (sl_call *call = s->calls; call; call = call->next)
        rouse(call, now_ns, quiet_ns, stats.recovering);
    pthread_mutex_unlock(&s->lock);
}

static void *watch(void *arg) {
    sl_server *s = arg;
    bool paused = false;
    uint64_t swept_ns = sl_now_ns();
    for (;;) {
        struct epoll_event ev[32];
        int n = epoll_wait(s->epoll_fd, ev, SL_LEN(ev), paused ? PAUSE_MS : SWEEP_MS);
        if (n < 0 && errno != EINTR) return NULL;
        if (paused) let_in(s, &paused);
        for (int i = 0; i < n; i++) {
            sl_call *call;
            if (ev[i].data.u64 == WOKEN) {
                uint64_t times;
                if (read(s->event_fd, &times, sizeof times) < 0 && errno != EAGAIN) return NULL;
                if (!atomic_load_explicit(&s->watching, memory_order_acquire)) return NULL;
                cancel_marked(s);
            } else if (ev[i].data.u64 == LISTENER) {
                let_in(s, &paused);
            } else if ((call = find_call(s, ev[i].data.u64))) {
                sl_call_abort_with(call, SL_ABORT_GONE);
                sl_call_unref(call);
            }
        }
        const uint64_t gap_ns = sl_now_ns() - swept_ns;
        if (gap_ns < SWEEP_MS * 1000000ull) continue;
        swept_ns += gap_ns;
        sl_conns_sweep(&s->conns, gap_ns);
        rouse_quiet(s);
        sl_kept_sweep(s);
    }
}

sl_status sl_watch_start(sl_server *s, sl_err *err) {
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = WOKEN};
    if (s->epoll_fd < 0 || s->event_fd < 0 ||
        epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->event_fd, &ev) != 0)
        return sl_fail(err, SL_ERR_IO, "server: epoll: %s", strerror(errno));
    /* pairs with the watcher's load */
    atomic_store_explicit(&s->watching, true, memory_order_release);
    int rc = pthread_create(&s->watcher, NULL, watch, s);
    if (rc == 0) return SL_OK;
    atomic_store_explicit(&s->watching, false, memory_order_release);
    return sl_fail(err, SL_ERR_IO, "server: watcher thread: %s", strerror(rc));
}

sl_status sl_watch_listen(sl_server *s, sl_err *err) {
    if (await_clients(s, EPOLL_CTL_ADD, EPOLLIN)) return SL_OK;
    return sl_fail(err, SL_ERR_IO, "server: epoll: %s", strerror(errno));
}

void sl_watch_stop(sl_server *s) {
    if (atomic_exchange_explicit(&s->watching, false, memory_order_acq_rel)) {
        sl_watch_kick(s);
        pthread_join(s->watcher, NULL);
    }
}

void sl_watch_kick(sl_server *s) {
    uint64_t one = 1;
    /* a full counter means the watcher is already due */
    if (write(s->event_fd, &one, sizeof one) < 0) return;
}

void sl_watch_add(sl_call *call) {
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLET, .data.u64 = call->serial};
    if (call->fd_watched) return;
    /* failing only delays the end of a request whose client left until its next write */
    call->fd_watched = epoll_ctl(call->server->epoll_fd, EPOLL_CTL_ADD, call->fd, &ev) == 0;
}

void sl_watch_remove(sl_call *call) {
    if (call->fd_watched) epoll_ctl(call->server->epoll_fd, EPOLL_CTL_DEL, call->fd, NULL);
    call->fd_watched = false;
}
